package kube

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	list, err := Read([]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, namespace: bench, labels: {x: y, since: 2024-01-02}}\nspec: {template: {spec: {}}}\n---\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n"), "bench", "id1")
	if err != nil || len(list) != 2 || list[1].Namespace != "bench" || list[1].String() != "configmap/b" {
		t.Fatalf("%v %v", list, err)
	}
	labels := list[0].fields["metadata"].(map[string]any)["labels"].(map[string]any)
	template := list[0].fields["spec"].(map[string]any)["template"].(map[string]any)["metadata"].(map[string]any)["labels"].(map[string]any)
	if labels[Label] != "id1" || labels["x"] != "y" || labels["since"] != "2024-01-02" || template[Label] != "id1" {
		t.Errorf("%v %v", labels, template)
	}
}

// TestReadLists: a List stands for its items, as kubectl takes it, also within another, and a list of one kind for items that do not name it.
func TestReadLists(t *testing.T) {
	list, err := Read([]byte("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n- apiVersion: v1\n  kind: List\n  items: [{apiVersion: v1, kind: ConfigMap, metadata: {name: b}}]\n"+
		"---\napiVersion: apps/v1\nkind: DeploymentList\nitems: [{metadata: {name: c}, spec: {template: {}}}]\n---\n{apiVersion: v1, kind: List}\n---\n{apiVersion: x/v1, kind: WaitingList, metadata: {name: d}}\n"), "bench", "id1")
	var got []string
	for _, o := range list {
		got = append(got, o.group+" "+o.String())
		if o.fields["metadata"].(map[string]any)["labels"].(map[string]any)[Label] != "id1" || o.fields["kind"] != o.Kind {
			t.Errorf("%v", o.fields)
		}
	}
	if want := "v1 service/a|v1 configmap/b|apps/v1 deployment/c|x/v1 waitinglist/d"; err != nil || strings.Join(got, "|") != want {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Read([]byte("{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: a}}, x]}"), "bench", "id1"); err == nil || !strings.Contains(err.Error(), "document 1: item 2 of its List is no object") {
		t.Error(err)
	}
}

// A credential plugin's token ends, or is refused, in the middle of a run: it is asked again.
func TestTokenEnds(t *testing.T) {
	good := "token-1"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+good {
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"message":"Unauthorized"}`)
			return
		}
		io.WriteString(w, `{"gitVersion":"v1.36.3"}`)
	}))
	defer api.Close()
	dir := t.TempDir()
	plugin := filepath.Join(dir, "plugin")
	script := "#!/bin/sh\necho x >> $0.asked\necho '{\"status\":{\"token\":\"token-'$(wc -l < $0.asked | tr -d ' ')'\"'$(cat $0.until)'}}'\n"
	config := filepath.Join(dir, "config")
	text := "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: '" + api.URL + "'}}]\nusers: [{name: u, user: {exec: {command: ./plugin}}}]\n"
	for path, content := range map[string]string{plugin: script, plugin + ".until": "", config: text} {
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Connect(Options{Config: config, Environ: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(want int) {
		t.Helper()
		if v, err := c.Version(t.Context()); err != nil || v != "v1.36.3" {
			t.Errorf("%q %v", v, err)
		}
		if b, err := os.ReadFile(plugin + ".asked"); err != nil || strings.Count(string(b), "x") != want {
			t.Errorf("asked %d times, want %d", strings.Count(string(b), "x"), want)
		}
	}
	ask(1)
	ask(1)
	good = "token-2" // the first ends
	ask(2)
	ask(2)
	good = "none" // two refusals are final
	var refused *StatusError
	if _, err := c.Version(t.Context()); !errors.As(err, &refused) || refused.Code != http.StatusUnauthorized {
		t.Error(err)
	}
	good = "token-4"
	if err := os.WriteFile(plugin+".until", []byte(`,"expirationTimestamp":"2020-01-01T00:00:00Z"`), 0o600); err != nil {
		t.Fatal(err)
	}
	ask(4) // after token-3
	good = "token-5"
	ask(5) // before it is used, since it has ended
}

func TestConnectRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string][2]string{
		"no file":    {"", "no such file"},
		"no yaml":    {"a: [", "read kubeconfig"},
		"no context": {"current-context: x\n", `has no context "x"`},
		"no cluster": {"current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n", "names no cluster"},
		"bad CA":     {"current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'https://x', certificate-authority-data: eA==}}]\n", "is no certificate"},
		"bad base64": {"current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'https://x', certificate-authority-data: '%'}}]\n", "not base64"},
		"old auth":   {"current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: 'https://x'}}]\nusers: [{name: u, user: {auth-provider: {name: gcp}}}]\n", "exec plugin"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if c[0] != "" {
			if err := os.WriteFile(path, []byte(c[0]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Connect(Options{Config: path}); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n"))
	f.Add([]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, labels: 3}\nspec: {template: {metadata: []}}\n"))
	f.Add([]byte("a: &a [*a]\n---\n- 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := Read(b, "ns", "id")
		if err == nil && len(list) == 0 {
			t.Error("nothing, and no error")
		}
	})
}
