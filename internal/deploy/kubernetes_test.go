package deploy

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// apiServer is the part of a cluster's API that a candidate needs: objects by path, a pod once a Deployment was applied, a NodePort
// service that leads to a server of this test.
type apiServer struct {
	*httptest.Server
	mu       sync.Mutex
	token    string
	objects  map[string]map[string]any
	deleted  []string
	nodePort int
	service  string // its type
	looks    int    // at the Deployment; ready from the third on
	waiting  string // reason that the pod does not run
	restarts int
	forbid   string // path that is answered with 403
	refused  string // why the Deployment's pods are not made
}

func newAPIServer(t *testing.T) *apiServer {
	candidate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			io.WriteString(w, `{"version":"0.9.9"}`)
		}
	}))
	t.Cleanup(candidate.Close)
	u, _ := url.Parse(candidate.URL)
	a := &apiServer{token: "let-me-in", objects: map[string]map[string]any{}, service: "NodePort"}
	fmt.Sscan(u.Port(), &a.nodePort)
	a.Server = httptest.NewTLSServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	return a
}

func (a *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	say := func(code int, v any) {
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(v)
	}
	if r.Header.Get("Authorization") != "Bearer "+a.token {
		say(401, map[string]any{"message": "Unauthorized"})
		return
	}
	if a.forbid != "" && strings.HasPrefix(r.URL.Path, a.forbid) {
		say(403, map[string]any{"message": "pods is forbidden: User \"me\" cannot do that"})
		return
	}
	const ns = "/namespaces/bench/"
	switch path := r.URL.Path; {
	case path == "/version":
		say(200, map[string]any{"gitVersion": "v1.33.1"})
	case path == "/api/v1":
		say(200, map[string]any{"resources": []any{map[string]any{"name": "services", "kind": "Service", "namespaced": true}, map[string]any{"name": "services/status", "kind": "Service", "namespaced": true},
			map[string]any{"name": "configmaps", "kind": "ConfigMap", "namespaced": true}}})
	case path == "/apis/apps/v1":
		say(200, map[string]any{"resources": []any{map[string]any{"name": "deployments", "kind": "Deployment", "namespaced": true}}})
	case path == "/api/v1/nodes":
		say(200, map[string]any{"items": []any{map[string]any{"status": map[string]any{"addresses": []any{map[string]any{"type": "Hostname", "address": "n1"}, map[string]any{"type": "InternalIP", "address": "127.0.0.1"}}}}}})
	case path == "/api/v1/nodes/n1":
		say(200, map[string]any{"metadata": map[string]any{"labels": map[string]any{"nvidia.com/gpu.product": "NVIDIA-H200", "other": "x"}}, "status": map[string]any{"nodeInfo": map[string]any{"kernelVersion": "6.1"}}})
	case path == "/api/v1"+ns+"pods":
		say(200, map[string]any{"items": a.pods(r.URL.Query().Get("labelSelector"))})
	case strings.HasPrefix(path, "/api/v1"+ns+"pods/") && strings.HasSuffix(path, "/log"):
		switch r.URL.Query().Get("container") {
		case "vllm":
			io.WriteString(w, "loading model\nCUDA out of memory, says the test\n")
		case "shadowtape":
			io.WriteString(w, "recording beside it\n")
		default:
			say(400, map[string]any{"message": "a container name must be specified for pod candidate-1, choose one of: [vllm shadowtape]"})
		}
	case r.Method == http.MethodPatch:
		var o map[string]any
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Content-Type") != "application/apply-patch+yaml" || r.URL.Query().Get("fieldManager") != "shadowtape" || json.Unmarshal(b, &o) != nil {
			say(400, map[string]any{"message": "no apply"})
			return
		}
		a.objects[path] = o
		say(201, o)
	case r.Method == http.MethodDelete:
		if a.objects[path] == nil {
			say(404, map[string]any{"message": "not found"})
			return
		}
		delete(a.objects, path)
		a.deleted = append(a.deleted, path[strings.LastIndexByte(path, '/')+1:])
		say(200, map[string]any{})
	case a.objects[path] == nil && path != "/api/v1"+ns+"services/standing":
		say(404, map[string]any{"message": strings.TrimPrefix(path, "/api/v1"+ns) + " not found"})
	case strings.Contains(path, "/services/"):
		s := map[string]any{"type": a.service, "clusterIP": "10.0.0.1", "selector": map[string]any{"app": "candidate"}, "ports": []any{map[string]any{"name": "http", "port": 8000, "nodePort": a.nodePort}}}
		if a.service == "ClusterIP" {
			s["ports"] = []any{map[string]any{"name": "http", "port": 8000}}
		}
		say(200, map[string]any{"metadata": a.objects[path]["metadata"], "spec": s})
	case strings.Contains(path, "/deployments/"):
		a.looks++
		ready, conditions := 0, []any{map[string]any{"type": "Progressing", "status": "True"}}
		if a.refused != "" {
			conditions = append(conditions, map[string]any{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": a.refused})
		} else if a.looks > 3 && a.waiting == "" {
			ready = 1
		}
		say(200, map[string]any{"metadata": a.objects[path]["metadata"], "spec": map[string]any{"replicas": 1}, "status": map[string]any{"readyReplicas": ready, "conditions": conditions}})
	default:
		say(200, a.objects[path])
	}
}

// pods is one pod where a selector finds the Deployment's template or the standing service's app.
func (a *apiServer) pods(selector string) []any {
	found := selector == "app=candidate"
	for _, o := range a.objects {
		spec, _ := o["spec"].(map[string]any)
		template, _ := spec["template"].(map[string]any)
		meta, _ := template["metadata"].(map[string]any)
		labels, _ := meta["labels"].(map[string]any)
		for k, v := range labels {
			found = found || selector == k+"="+fmt.Sprint(v)
		}
	}
	if !found {
		return []any{}
	}
	state := map[string]any{"running": map[string]any{}}
	if a.waiting != "" {
		state = map[string]any{"waiting": map[string]any{"reason": a.waiting, "message": "says the test"}}
	}
	return []any{map[string]any{"metadata": map[string]any{"name": "candidate-1"}, "spec": map[string]any{"nodeName": "n1", "containers": []any{map[string]any{"name": "vllm"}, map[string]any{"name": "shadowtape"}}},
		"status": map[string]any{"phase": "Running", "containerStatuses": []any{map[string]any{"image": "vllm:x", "imageID": "vllm@sha256:abc", "restartCount": a.restarts, "state": state}}}}}
}

func (a *apiServer) left() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.objects)
}

// kubeconfig is a file that leads to the API server, with a token or a credential plugin.
func (a *apiServer) kubeconfig(t *testing.T, user string) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	path := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: c, user: u, namespace: bench}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: %s}]
`, a.URL, base64.StdEncoding.EncodeToString(ca), user)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const k8sManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: candidate}
spec:
  replicas: 1
  selector: {matchLabels: {app: candidate}}
  template:
    metadata: {labels: {app: candidate}}
    spec: {containers: [{name: vllm, image: "vllm:x"}]}
---
apiVersion: v1
kind: Service
metadata: {name: candidate}
spec: {type: NodePort, selector: {app: candidate}, ports: [{port: 8000}]}
`

func k8sFile(t *testing.T, text, manifest string) *File {
	t.Helper()
	f := parse(t, text, nil)
	f.dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(f.dir, "k8s.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

const k8sText = "{name: k, dialect: vllm, kubernetes: {manifest: k8s.yaml, service: candidate}, health: {path: /health, interval: 20ms, timeout: 1m}, stop: 5s}"

func TestKubernetes(t *testing.T) {
	a := newAPIServer(t)
	var log bytes.Buffer
	c, err := Start(t.Context(), k8sFile(t, k8sText, k8sManifest), Options{Kubeconfig: a.kubeconfig(t, "{token: let-me-in}"), Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop(t.Context())
	if a.left() != 2 || !strings.HasPrefix(c.URL, "http://127.0.0.1:") {
		t.Errorf("%d objects, %s", a.left(), c.URL)
	}
	a.mu.Lock()
	for path, o := range a.objects {
		if labels := o["metadata"].(map[string]any)["labels"].(map[string]any); labels["shadowtape-deployment"] != c.ID {
			t.Errorf("%s has labels %v", path, labels)
		}
	}
	a.mu.Unlock()
	env := c.Environment(t.Context())
	text, _ := json.Marshal(env)
	for _, want := range []string{`"kind":"kubernetes"`, `"cluster_version":"v1.33.1"`, `"image_digests":["vllm@sha256:abc"]`, `"nvidia.com/gpu.product":"NVIDIA-H200"`, `"engine_version":"0.9.9"`, `"manifest_sha256":"`, `"objects":["deployment/candidate","service/candidate"]`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is missing in %s", want, text)
		}
	}
	if err := c.Died(); err != nil {
		t.Error(err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if a.left() != 0 || !slices.Equal(a.deleted, []string{"candidate", "candidate"}) {
		t.Errorf("%d objects left, deleted %v", a.left(), a.deleted)
	}
	if !strings.Contains(log.String(), "loading model") || !strings.Contains(log.String(), "recording beside it") {
		t.Errorf("log %q", log.String())
	}
}

// An operator's own object, whose pods do not carry the launch's label: they are found by the service's selector, and watched.
func TestKubernetesOperator(t *testing.T) {
	a := newAPIServer(t)
	manifest := "{apiVersion: v1, kind: ConfigMap, metadata: {name: model}}\n---\n{apiVersion: v1, kind: Service, metadata: {name: candidate}, spec: {type: NodePort, selector: {app: candidate}, ports: [{port: 8000}]}}\n"
	c, err := Start(t.Context(), k8sFile(t, k8sText, manifest), Options{Kubeconfig: a.kubeconfig(t, "{token: let-me-in}")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop(t.Context())
	if env := c.Environment(t.Context()); env["pods"] != 1 {
		t.Errorf("%v", env)
	}
	a.mu.Lock()
	a.restarts = 2
	a.mu.Unlock()
	<-c.Exited()
	if err := c.Died(); err == nil || !strings.Contains(err.Error(), "its containers started again: 2 times") {
		t.Error(err)
	}
}

func TestKubernetesExistingService(t *testing.T) {
	a := newAPIServer(t)
	plugin := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\necho '{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"'$WORD'\"}}'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := parse(t, "{dialect: vllm, kubernetes: {service: standing, port: http}, health: {path: /health, interval: 20ms}}", nil)
	c, err := Start(t.Context(), f, Options{Kubeconfig: a.kubeconfig(t, "{exec: {apiVersion: client.authentication.k8s.io/v1, command: "+plugin+", env: [{name: WORD, value: let-me-in}]}}")})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context()); err != nil || len(a.deleted) != 0 {
		t.Errorf("%v, deleted %v", err, a.deleted)
	}
}

func TestKubernetesDies(t *testing.T) {
	a := newAPIServer(t)
	c, err := Start(t.Context(), k8sFile(t, k8sText, k8sManifest), Options{Kubeconfig: a.kubeconfig(t, "{token: let-me-in}")})
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.restarts = 1
	a.mu.Unlock()
	<-c.Exited()
	if err := c.Died(); err == nil || !strings.Contains(err.Error(), "its containers started again: 1 times") {
		t.Error(err)
	}
	if err := c.Stop(t.Context()); err != nil || a.left() != 0 {
		t.Errorf("%v, %d objects left", err, a.left())
	}
}

func TestKubernetesFails(t *testing.T) {
	good := "{token: let-me-in}"
	for _, c := range []struct {
		name, text, manifest, user string
		set                        func(*apiServer)
		want, hint                 string
	}{
		{"no right", k8sText, k8sManifest, "{token: wrong}", nil, "HTTP 401: Unauthorized", "kubectl"},
		{"forbidden", k8sText, k8sManifest, good, func(a *apiServer) { a.forbid = "/api/v1/namespaces/bench/pods" }, "HTTP 403: pods is forbidden", ""},
		{"image cannot be pulled", k8sText, k8sManifest, good, func(a *apiServer) { a.waiting = "ImagePullBackOff" }, "pod candidate-1: ImagePullBackOff says the test", ""},
		{"crash loop", k8sText, k8sManifest, good, func(a *apiServer) { a.waiting = "CrashLoopBackOff" }, "CrashLoopBackOff", ""},
		{"never ready", strings.Replace(k8sText, "1m", "10ms", 1), k8sManifest, good, nil, "not ready after 10ms: deployment/candidate has 0 of 1 ready", "health.timeout"},
		{"pods are refused", strings.Replace(k8sText, "1m", "10ms", 1), k8sManifest, good, func(a *apiServer) { a.refused = "pods \"x\" is forbidden: violates PodSecurity\n\"restricted:latest\"" },
			"deployment/candidate has 0 of 1 ready: FailedCreate pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\"", "kubectl describe"},
		{"another namespace", k8sText, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: other}}", good, nil, "configmap/a is in namespace other, the candidate in bench", ""},
		{"theirs", k8sText, k8sManifest, good, func(a *apiServer) {
			a.objects["/apis/apps/v1/namespaces/bench/deployments/candidate"] = map[string]any{"metadata": map[string]any{"name": "candidate"}}
		}, "deployment/candidate exists already in namespace bench and is not ours", ""},
		{"left over", k8sText, k8sManifest, good, func(a *apiServer) {
			a.objects["/apis/apps/v1/namespaces/bench/deployments/candidate"] = map[string]any{"metadata": map[string]any{"labels": map[string]any{"shadowtape-deployment": "old"}}}
		}, "deployment/candidate is left over from an earlier run (shadowtape-deployment=old)", ""},
		{"cluster's own", k8sText, "{apiVersion: v1, kind: Namespace, metadata: {name: x}}", good, nil, "namespace/x is a cluster's own object", ""},
		{"unknown kind", k8sText, "{apiVersion: apps/v1, kind: Deploymint, metadata: {name: x}}", good, nil, "the cluster knows no Deploymint in apps/v1", ""},
		{"no name", k8sText, "{apiVersion: apps/v1, kind: Deployment}", good, nil, "document 1: it lacks kind, apiVersion or metadata.name", ""},
		{"no name in a list", k8sText, "{apiVersion: v1, kind: List, items: [{apiVersion: apps/v1, kind: Deployment}]}", good, nil, "document 1: it lacks kind, apiVersion or metadata.name", ""},
		{"no items in a list", k8sText, "{apiVersion: v1, kind: List, items: 7}", good, nil, "document 1: the items of its List are no list", ""},
		{"cluster's own in a list", k8sText, "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Namespace, metadata: {name: x}}]}", good, nil, "namespace/x is a cluster's own object", ""},
		{"empty manifest", k8sText, "", good, nil, "it holds no object", ""},
		{"no such service", strings.Replace(k8sText, "service: candidate", "service: other", 1), k8sManifest, good, nil, "look at service other: HTTP 404", ""},
		{"no such port", strings.Replace(k8sText, "service: candidate", "service: candidate, port: grpc", 1), k8sManifest, good, nil, `has 1 ports and none is "grpc"`, ""},
		{"not reachable", k8sText, k8sManifest, good, func(a *apiServer) { a.service = "ClusterIP" }, "is of type ClusterIP and cannot be reached", "inside the cluster"},
		{"no context", strings.Replace(k8sText, "service: candidate", "service: candidate, context: prod", 1), k8sManifest, good, nil, `has no context "prod"`, "KUBECONFIG"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAPIServer(t)
			before := 0
			if c.set != nil {
				a.mu.Lock()
				c.set(a)
				before = len(a.objects)
				a.mu.Unlock()
			}
			cand, err := Start(t.Context(), k8sFile(t, c.text, c.manifest), Options{Kubeconfig: a.kubeconfig(t, c.user)})
			if err == nil {
				cand.Stop(t.Context())
				t.Fatal("it started")
			}
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || !strings.Contains(e.Hint, c.hint) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, hint %q, want %q and %q", err, e.Hint, c.want, c.hint)
			}
			if a.left() != before {
				t.Errorf("%d objects, %d before", a.left(), before)
			}
			if c.name == "crash loop" && !strings.Contains(strings.Join(e.Tail, "\n"), "CUDA out of memory") {
				t.Errorf("tail %q", e.Tail)
			}
		})
	}
	if _, err := Start(t.Context(), k8sFile(t, k8sText, k8sManifest), Options{}); err == nil || !strings.Contains(err.Error(), "no kubeconfig is named") {
		t.Error(err)
	}
}

func TestKubernetesCancelled(t *testing.T) {
	a := newAPIServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Start(ctx, k8sFile(t, k8sText, k8sManifest), Options{Kubeconfig: a.kubeconfig(t, "{token: let-me-in}"), Progress: func(p Progress) {
		if p.Stage == "health" {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || a.left() != 0 {
		t.Errorf("%v, %d objects left", err, a.left())
	}
}

// Cancelled while it looks whether an object is there: what is there is somebody else's and stays.
func TestKubernetesCancelledBeforeApply(t *testing.T) {
	a := newAPIServer(t)
	a.objects["/apis/apps/v1/namespaces/bench/deployments/candidate"] = map[string]any{"metadata": map[string]any{"name": "candidate"}}
	ctx, cancel := context.WithCancel(t.Context())
	inner := a.Config.Handler
	a.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/deployments/candidate") && r.Method == http.MethodGet {
			cancel()
		}
		inner.ServeHTTP(w, r)
	})
	if _, err := Start(ctx, k8sFile(t, k8sText, k8sManifest), Options{Kubeconfig: a.kubeconfig(t, "{token: let-me-in}")}); err == nil {
		t.Fatal("it started")
	}
	if a.left() != 1 || len(a.deleted) != 0 {
		t.Errorf("%d objects, deleted %v", a.left(), a.deleted)
	}
}
