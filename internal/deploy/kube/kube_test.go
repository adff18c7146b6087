package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	list, err := Read([]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, namespace: other, labels: {x: y}}\nspec: {template: {spec: {}}}\n---\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n"), "bench", "id1")
	if err != nil || len(list) != 2 || list[0].Namespace != "other" || list[1].Namespace != "bench" || list[1].String() != "configmap/b" {
		t.Fatalf("%v %v", list, err)
	}
	labels := list[0].fields["metadata"].(map[string]any)["labels"].(map[string]any)
	template := list[0].fields["spec"].(map[string]any)["template"].(map[string]any)["metadata"].(map[string]any)["labels"].(map[string]any)
	if labels[Label] != "id1" || labels["x"] != "y" || template[Label] != "id1" {
		t.Errorf("%v %v", labels, template)
	}
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
