package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"gopkg.in/yaml.v3"
)

// Label marks the objects and pods of one launch.
const Label = "shadowtape-deployment"

// maxBody bounds what is read of an answer.
const maxBody = 16 << 20

// StatusError is an answer that is no success.
type StatusError struct {
	Code    int
	Message string // the API server's own words
}

func (e *StatusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.Code, e.Message) }

// NotFound reports whether an error says that an object is not there.
func NotFound(err error) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Code == http.StatusNotFound
}

// request sends one request, again where its token has ended, and returns the answer, whose body the caller closes, or a *StatusError.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, contentType string, body []byte) (*http.Response, error) {
	token, err := "", error(nil)
	if c.token != nil {
		if token, err = c.token(""); err != nil {
			return nil, err
		}
	}
	resp, err := c.requestAs(ctx, token, method, path, query, contentType, body)
	var status *StatusError
	if token != "" && errors.As(err, &status) && status.Code == http.StatusUnauthorized {
		if next, terr := c.token(token); terr == nil && next != token {
			return c.requestAs(ctx, next, method, path, query, contentType, body)
		}
	}
	return resp, err
}

func (c *Client) requestAs(ctx context.Context, token, method, path string, query url.Values, contentType string, body []byte) (*http.Response, error) {
	u := c.server + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "shadowtape")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var status struct{ Message string }
	if json.Unmarshal(b, &status) != nil || status.Message == "" {
		status.Message = strings.TrimSpace(string(b[:min(len(b), 200)]))
	}
	return nil, &StatusError{resp.StatusCode, strings.ReplaceAll(status.Message, "\n", " ")}
}

// call sends one request and decodes the answer into v, which may be nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, contentType string, body []byte, v any) error {
	resp, err := c.request(ctx, method, path, query, contentType, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if v == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
		return err
	}
	return json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(v)
}

// Version is the cluster's version.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v struct{ GitVersion string }
	err := c.call(ctx, http.MethodGet, "/version", nil, "", nil, &v)
	return v.GitVersion, err
}

// Object is one object of a manifest.
type Object struct {
	Kind, Name, Namespace string
	group                 string // API group and version: v1, apps/v1
	path                  string // of the object in the API
	made                  bool   // asked for, and not refused: it may exist even where the answer did not come
	fields                map[string]any
}

// String is kind/name.
func (o *Object) String() string { return strings.ToLower(o.Kind) + "/" + o.Name }

// namespaceless are the kinds that a manifest may not hold: they belong to the cluster, not to one candidate.
var namespaceless = []string{"Namespace", "Node", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "StorageClass", "PriorityClass", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"}

// Read reads a manifest's documents. Each object and each pod template gets the launch's label. All are in the namespace, where the pods
// and the service are looked for.
func Read(manifest []byte, namespace, launch string) ([]*Object, error) {
	dec := yaml.NewDecoder(bytes.NewReader(manifest))
	var list []*Object
	documents := 0
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		var fields map[string]any
		if err == nil {
			datesAreText(&doc)
			err = doc.Decode(&fields)
		}
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		if len(fields) == 0 {
			continue
		}
		documents++
		objects, err := listed(fields)
		if err != nil {
			return nil, fmt.Errorf("read manifest: document %d: %w", documents, err)
		}
		for _, fields := range objects {
			o, err := object(fields, namespace, launch)
			if err != nil {
				return nil, fmt.Errorf("read manifest: document %d: %w", documents, err)
			}
			list = append(list, o)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("read manifest: it holds no object")
	}
	return list, nil
}

// listed are the objects of a document: itself, or the items of a List, as kubectl takes them.
func listed(fields map[string]any) ([]map[string]any, error) {
	kind, _ := fields["kind"].(string)
	of, is := strings.CutSuffix(kind, "List")
	items, list := fields["items"].([]any)
	switch {
	case !is || of != "" && !list: // an object of a kind whose name ends so
		return []map[string]any{fields}, nil
	case !list && fields["items"] != nil:
		return nil, fmt.Errorf("the items of its %s are no list", kind)
	}
	var all []map[string]any
	for i, item := range items {
		one, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("item %d of its %s is no object", i+1, kind)
		}
		if of != "" { // the items of a list of one kind may leave it out
			for name, v := range map[string]any{"kind": of, "apiVersion": fields["apiVersion"]} {
				if one[name] == nil {
					one[name] = v
				}
			}
		}
		more, err := listed(one)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// object makes one object of a manifest the launch's own.
func object(fields map[string]any, namespace, launch string) (*Object, error) {
	o := &Object{fields: fields, Namespace: namespace}
	o.Kind, _ = fields["kind"].(string)
	o.group, _ = fields["apiVersion"].(string)
	meta := child(fields, "metadata")
	o.Name, _ = meta["name"].(string)
	if ns, ok := meta["namespace"].(string); ok && ns != "" && ns != namespace {
		return nil, fmt.Errorf("%s is in namespace %s, the candidate in %s: kubernetes.namespace names both", o, ns, namespace)
	}
	if o.Kind == "" || o.group == "" || o.Name == "" {
		return nil, errors.New("it lacks kind, apiVersion or metadata.name")
	}
	for _, k := range namespaceless {
		if o.Kind == k {
			return nil, fmt.Errorf("%s is a cluster's own object, and would be deleted with the candidate", o)
		}
	}
	child(meta, "labels")[Label] = launch
	if spec, ok := fields["spec"].(map[string]any); ok {
		if t, ok := spec["template"].(map[string]any); ok {
			child(child(t, "metadata"), "labels")[Label] = launch
		}
	}
	return o, nil
}

// datesAreText leaves what looks like a date as it is written, as kubectl does: JSON has no dates.
func datesAreText(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, c := range n.Content {
		datesAreText(c)
	}
}

// child is a mapping within a mapping, made where it is missing.
func child(m map[string]any, key string) map[string]any {
	c, ok := m[key].(map[string]any)
	if !ok {
		c = map[string]any{}
		m[key] = c
	}
	return c
}

// locate asks the API where objects of this kind live.
func (c *Client) locate(ctx context.Context, o *Object) error {
	base := "/apis/" + o.group
	if o.group == "v1" {
		base = "/api/v1"
	}
	var list struct {
		Resources []struct {
			Name, Kind string
			Namespaced bool
		}
	}
	if err := c.call(ctx, http.MethodGet, base, nil, "", nil, &list); err != nil {
		return fmt.Errorf("look %s up: %w", o, err)
	}
	for _, r := range list.Resources {
		if r.Kind == o.Kind && !strings.Contains(r.Name, "/") {
			if !r.Namespaced {
				return fmt.Errorf("%s is a cluster's own object, and would be deleted with the candidate", o)
			}
			o.path = base + "/namespaces/" + url.PathEscape(o.Namespace) + "/" + r.Name + "/" + url.PathEscape(o.Name)
			return nil
		}
	}
	return fmt.Errorf("the cluster knows no %s in %s", o.Kind, o.group)
}

// Apply makes an object. One of its name that is there already is refused: it would be changed, and deleted afterwards.
func (c *Client) Apply(ctx context.Context, o *Object) error {
	if err := c.locate(ctx, o); err != nil {
		return err
	}
	var there struct {
		Metadata struct{ Labels map[string]string }
	}
	err := c.call(ctx, http.MethodGet, o.path, nil, "", nil, &there)
	if err == nil {
		if id := there.Metadata.Labels[Label]; id != "" {
			return fmt.Errorf("%s is left over from an earlier run (%s=%s), or another run is using it", o, Label, id)
		}
		return fmt.Errorf("%s exists already in namespace %s and is not ours", o, o.Namespace)
	}
	if !NotFound(err) {
		return fmt.Errorf("look at %s: %w", o, err)
	}
	body, err := json.Marshal(o.fields)
	if err != nil {
		return fmt.Errorf("apply %s: %w", o, err)
	}
	o.made = true
	if err := c.call(ctx, http.MethodPatch, o.path, url.Values{"fieldManager": {"shadowtape"}}, "application/apply-patch+yaml", body, nil); err != nil {
		var refused *StatusError
		if errors.As(err, &refused) && refused.Code < 500 {
			o.made = false
		}
		return fmt.Errorf("apply %s: %w", o, err)
	}
	return nil
}

// Delete deletes an object that Apply made, and what belongs to it. One that Apply did not make, or that is gone, is no error.
func (c *Client) Delete(ctx context.Context, o *Object) error {
	if !o.made {
		return nil
	}
	err := c.call(ctx, http.MethodDelete, o.path, nil, "application/json", []byte(`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground"}`), nil)
	if err != nil && !NotFound(err) {
		return fmt.Errorf("delete %s: %w", o, err)
	}
	return nil
}

// Ready reports whether an object is: a Deployment, StatefulSet, ReplicaSet or Pod by its own status, anything else once it is there.
// Otherwise says what is missing.
func (c *Client) Ready(ctx context.Context, o *Object) (ready bool, otherwise string, err error) {
	var s struct {
		Metadata struct{ Generation int64 }
		Spec     struct{ Replicas *int64 }
		Status   struct {
			ObservedGeneration                                int64
			ReadyReplicas, AvailableReplicas, UpdatedReplicas int64
			Conditions                                        []condition
		}
	}
	if err := c.call(ctx, http.MethodGet, o.path, nil, "", nil, &s); err != nil {
		return false, "", fmt.Errorf("look at %s: %w", o, err)
	}
	switch o.Kind {
	case "Deployment", "StatefulSet", "ReplicaSet":
		want := int64(1)
		if s.Spec.Replicas != nil {
			want = *s.Spec.Replicas
		}
		if s.Status.ObservedGeneration >= s.Metadata.Generation && s.Status.ReadyReplicas >= want {
			return true, "", nil
		}
		otherwise = fmt.Sprintf("%s has %d of %d ready", o, s.Status.ReadyReplicas, want)
		for _, x := range s.Status.Conditions {
			if x.Type == "ReplicaFailure" && x.Status == "True" { // its pods are refused: a quota, a Pod Security profile
				otherwise += ": " + strings.TrimSpace(x.Reason+" "+strings.ReplaceAll(x.Message, "\n", " "))
			}
		}
		return false, otherwise, nil
	case "Pod":
		for _, x := range s.Status.Conditions {
			if x.Type == "Ready" && x.Status == "True" {
				return true, "", nil
			}
		}
		return false, o.String() + " is not ready", nil
	}
	return true, "", nil
}

type condition struct{ Type, Status, Reason, Message string }

// Pod is the state of one pod.
type Pod struct {
	Name, Node, Phase string
	Restarts          int
	Waiting           string   // why it does not run: unschedulable, an image that cannot be pulled, …
	Broken            bool     // Waiting does not pass by itself
	Containers        []string // their names
	Images            []string // of its containers, by digest once they run
}

// broken are the reasons that do not pass by themselves.
var broken = map[string]bool{"ImagePullBackOff": true, "ErrImagePull": true, "InvalidImageName": true, "CrashLoopBackOff": true, "CreateContainerConfigError": true, "CreateContainerError": true, "RunContainerError": true}

// Pods lists the pods that a selector finds.
func (c *Client) Pods(ctx context.Context, selector string) ([]Pod, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct {
				NodeName   string
				Containers []struct{ Name string }
			}
			Status struct {
				Phase, Reason, Message string
				Conditions             []condition
				ContainerStatuses      []struct {
					Image, ImageID string
					RestartCount   int
					State          struct {
						Waiting, Terminated *struct {
							Reason, Message string
							ExitCode        int
						}
					}
				}
			}
		}
	}
	path := "/api/v1/namespaces/" + url.PathEscape(c.Namespace) + "/pods"
	if err := c.call(ctx, http.MethodGet, path, url.Values{"labelSelector": {selector}}, "", nil, &list); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var pods []Pod
	for _, i := range list.Items {
		p := Pod{Name: i.Metadata.Name, Node: i.Spec.NodeName, Phase: i.Status.Phase}
		for _, x := range i.Spec.Containers {
			p.Containers = append(p.Containers, x.Name)
		}
		for _, x := range i.Status.Conditions {
			if x.Type == "PodScheduled" && x.Status == "False" {
				p.Waiting = strings.TrimSpace(x.Reason + " " + x.Message)
			}
		}
		for _, s := range i.Status.ContainerStatuses {
			p.Restarts += s.RestartCount
			id := s.ImageID
			if id == "" {
				id = s.Image
			}
			p.Images = append(p.Images, id)
			if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
				p.Waiting, p.Broken = strings.TrimSpace(w.Reason+" "+w.Message), p.Broken || broken[w.Reason]
			}
			if t := s.State.Terminated; t != nil {
				p.Waiting, p.Broken = fmt.Sprintf("ended with exit code %d %s", t.ExitCode, t.Reason), true
			}
		}
		if p.Phase == "Failed" {
			p.Waiting, p.Broken = strings.TrimSpace(i.Status.Reason+" "+i.Status.Message+" "+p.Waiting), true
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// Logs follows the log of a pod's container until it or ctx ends.
func (c *Client) Logs(ctx context.Context, pod, container string, w io.Writer) error {
	path := "/api/v1/namespaces/" + url.PathEscape(c.Namespace) + "/pods/" + url.PathEscape(pod) + "/log"
	resp, err := c.request(ctx, http.MethodGet, path, url.Values{"follow": {"true"}, "container": {container}}, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return err
}

// Node describes a node: kernel, runtime, and the labels that say which GPUs it has.
func (c *Client) Node(ctx context.Context, name string) (map[string]any, error) {
	var n struct {
		Metadata struct{ Labels map[string]string }
		Status   struct {
			NodeInfo struct{ KernelVersion, OSImage, ContainerRuntimeVersion, KubeletVersion, Architecture string }
		}
	}
	if err := c.call(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(name), nil, "", nil, &n); err != nil {
		return nil, err
	}
	i := n.Status.NodeInfo
	out := map[string]any{"name": name, "kernel": i.KernelVersion, "os": i.OSImage, "runtime": i.ContainerRuntimeVersion, "kubelet": i.KubeletVersion, "arch": i.Architecture}
	for k, v := range n.Metadata.Labels {
		if strings.HasPrefix(k, "nvidia.com/") {
			out[k] = v
		}
	}
	return out, nil
}

// Address is the URL of a service's port, as it can be reached from here: its cluster address inside the cluster, its load balancer or
// a node's port outside. port is a number, a name, or "" for the only one.
func (c *Client) Address(ctx context.Context, service, port string) (string, map[string]string, error) {
	var s struct {
		Spec struct {
			Type, ClusterIP string
			Selector        map[string]string
			Ports           []struct {
				Name           string
				Port, NodePort int
			}
		}
		Status struct {
			LoadBalancer struct {
				Ingress []struct{ IP, Hostname string }
			}
		}
	}
	path := "/api/v1/namespaces/" + url.PathEscape(c.Namespace) + "/services/" + url.PathEscape(service)
	if err := c.call(ctx, http.MethodGet, path, nil, "", nil, &s); err != nil {
		return "", nil, fmt.Errorf("look at service %s: %w", service, err)
	}
	chosen := -1
	for i, p := range s.Spec.Ports {
		if port == p.Name && port != "" || port == fmt.Sprint(p.Port) || port == "" && len(s.Spec.Ports) == 1 {
			chosen = i
		}
	}
	if chosen < 0 {
		return "", nil, fmt.Errorf("service %s has %d ports and none is %q", service, len(s.Spec.Ports), port)
	}
	p := s.Spec.Ports[chosen]
	at := func(host string, port int) string { return "http://" + net.JoinHostPort(host, fmt.Sprint(port)) }
	switch {
	case c.InCluster && s.Spec.ClusterIP != "" && s.Spec.ClusterIP != "None":
		return at(s.Spec.ClusterIP, p.Port), s.Spec.Selector, nil
	case c.InCluster:
		return at(service+"."+c.Namespace+".svc", p.Port), s.Spec.Selector, nil
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IP != "" {
			return at(i.IP, p.Port), s.Spec.Selector, nil
		}
		if i.Hostname != "" {
			return at(i.Hostname, p.Port), s.Spec.Selector, nil
		}
	}
	if p.NodePort > 0 {
		host, err := c.nodeAddress(ctx)
		return at(host, p.NodePort), s.Spec.Selector, err
	}
	if s.Spec.Type == "LoadBalancer" {
		return "", s.Spec.Selector, errPending
	}
	return "", nil, fmt.Errorf("service %s is of type %s and cannot be reached from outside the cluster", service, s.Spec.Type)
}

// errPending is a load balancer that has no address yet.
var errPending = errors.New("its load balancer has no address yet")

// Pending reports whether a service's address may still come.
func Pending(err error) bool { return errors.Is(err, errPending) }

// nodeAddress is an address of some node: its external one, else its internal one.
func (c *Client) nodeAddress(ctx context.Context) (string, error) {
	var list struct {
		Items []struct {
			Status struct {
				Addresses []struct{ Type, Address string }
			}
		}
	}
	if err := c.call(ctx, http.MethodGet, "/api/v1/nodes", nil, "", nil, &list); err != nil {
		return "", fmt.Errorf("look for a node's address: %w", err)
	}
	for _, want := range []string{"ExternalIP", "InternalIP"} {
		for _, n := range list.Items {
			for _, a := range n.Status.Addresses {
				if a.Type == want && a.Address != "" {
					return a.Address, nil
				}
			}
		}
	}
	return "", errors.New("no node says an address")
}
