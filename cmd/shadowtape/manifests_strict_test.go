package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	strict "sigs.k8s.io/yaml"
)

// kubeTypes are the API types of the kinds in the samples.
var kubeTypes = map[string]func() any{
	"v1 Namespace":             func() any { return &corev1.Namespace{} },
	"v1 Service":               func() any { return &corev1.Service{} },
	"v1 ServiceAccount":        func() any { return &corev1.ServiceAccount{} },
	"v1 PersistentVolumeClaim": func() any { return &corev1.PersistentVolumeClaim{} },
	"apps/v1 Deployment":       func() any { return &appsv1.Deployment{} },
	"apps/v1 DaemonSet":        func() any { return &appsv1.DaemonSet{} },
	"batch/v1 Job":             func() any { return &batchv1.Job{} },
}

// decodeStrictly reads every document of a file into its API type: a field that the type does not have, or has another kind of, is an error.
func decodeStrictly(t *testing.T, name string, text []byte) (all []any) {
	t.Helper()
	for i, doc := range bytes.Split(text, []byte("\n---\n")) {
		var head struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
		}
		if err := yaml.Unmarshal(doc, &head); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		make, ok := kubeTypes[head.APIVersion+" "+head.Kind]
		if !ok {
			t.Errorf("%s, document %d: the test knows no %s %s", name, i+1, head.APIVersion, head.Kind)
			continue
		}
		o := make()
		if err := strict.UnmarshalStrict(doc, o); err != nil {
			t.Errorf("%s, document %d: %v", name, i+1, err)
		}
		all = append(all, o)
	}
	return all
}

func TestManifestsDecodeStrictly(t *testing.T) {
	dir := filepath.Join("..", "..", "samples", "kubernetes")
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range files {
		if filepath.Base(f) == "kustomization.yaml" {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		seen += len(decodeStrictly(t, filepath.Base(f), text))
	}
	if seen < 10 {
		t.Errorf("%d objects only", seen)
	}
}

// checkReplayJob holds a Job against what the shards of a replay need.
func checkReplayJob(t *testing.T, where string, j *batchv1.Job) {
	t.Helper()
	s, p := j.Spec, j.Spec.Template.Spec
	if s.CompletionMode == nil || *s.CompletionMode != batchv1.IndexedCompletion || s.Completions == nil || s.Parallelism == nil || *s.Completions != *s.Parallelism {
		t.Fatalf("%s: not an Indexed Job whose pods run all at once", where)
	}
	if p.RestartPolicy != corev1.RestartPolicyNever || s.BackoffLimitPerIndex == nil || s.PodReplacementPolicy == nil || *s.PodReplacementPolicy != batchv1.Failed {
		t.Errorf("%s: a lost pod must be replaced by another pod, one at a time", where)
	}
	c := p.Containers[0]
	if c.Args[0] != "replay" {
		t.Fatalf("%s: %q", where, c.Args)
	}
	r := replayCommand(&app{out: io.Discard, err: io.Discard})
	if err := r.ParseFlags(c.Args[2:]); err != nil || len(r.Flags().Args()) > 0 {
		t.Fatalf("%s: %v, %q are no flags", where, err, r.Flags().Args())
	}
	get := func(name string) string { return r.Flags().Lookup(name).Value.String() }
	if want := fmt.Sprintf("job/%d", *s.Completions); get("shard") != want {
		t.Errorf("%s: --shard %s, the Job has %d completions", where, get("shard"), *s.Completions)
	}
	if get("start-at") == "" || !strings.HasPrefix(c.Args[1], "s3://") || !strings.HasSuffix(get("output"), "/$(POD_NAME)") {
		t.Errorf("%s: %q", where, c.Args)
	}
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		return e.Name == "POD_NAME" && e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "metadata.name"
	}) {
		t.Errorf("%s: no POD_NAME", where)
	}
	spool := slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		return e.Name == "TMPDIR" && slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == e.Value })
	})
	if !spool {
		t.Errorf("%s: the root is read-only, and TMPDIR is no volume", where)
	}
}

// TestReplayJob checks the Job, and the overlay's patches as JSON patches on it.
func TestReplayJob(t *testing.T) {
	dir := filepath.Join("..", "..", "samples", "kubernetes")
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	objects := decodeStrictly(t, "replay-job.yaml", read("replay-job.yaml"))
	job := objects[len(objects)-1].(*batchv1.Job)
	checkReplayJob(t, "replay-job.yaml", job)
	for _, m := range readManifests(t, "replay-job.yaml") {
		if m.Kind != "Job" {
			continue
		}
		if against := restricted(m.Spec.Template.Spec); len(against) > 0 {
			t.Errorf("replay-job.yaml against `restricted`: %q", against)
		}
	}
	var base, over struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Resources  []string
		Images     []struct{ Name, NewName, NewTag string }
		Patches    []struct {
			Target struct{ Kind, Name string }
			Patch  string
		}
	}
	for name, to := range map[string]any{"kustomization.yaml": &base, filepath.Join("..", "kustomize", "kustomization.yaml"): &over} {
		if err := strict.UnmarshalStrict(read(name), to); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if !slices.Equal(base.Resources, []string{"replay-job.yaml"}) || !slices.Equal(over.Resources, []string{"../kubernetes"}) || len(over.Patches) != 1 {
		t.Fatalf("%+v %+v", base, over)
	}
	if p := over.Patches[0]; p.Target.Kind != "Job" || p.Target.Name != job.Name {
		t.Errorf("the patch is for %+v", p.Target)
	}
	var doc any
	b, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var ops []struct {
		Op, Path string
		Value    any
	}
	if err := strict.UnmarshalStrict([]byte(over.Patches[0].Patch), &ops); err != nil {
		t.Fatal(err)
	}
	for _, o := range ops {
		if o.Op != "replace" || !replaceAt(doc, strings.Split(o.Path, "/")[1:], o.Value) {
			t.Errorf("%s %s: there is nothing to replace", o.Op, o.Path)
		}
	}
	if b, err = json.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	var patched batchv1.Job
	if err := json.Unmarshal(b, &patched); err != nil {
		t.Fatal(err)
	}
	checkReplayJob(t, "overlay", &patched)
	if *patched.Spec.Completions != 16 {
		t.Errorf("%d shards", *patched.Spec.Completions)
	}
}

// replaceAt is the operation replace of RFC 6902.
func replaceAt(doc any, path []string, v any) bool {
	last := len(path) == 1
	switch d := doc.(type) {
	case map[string]any:
		old, ok := d[path[0]]
		if ok && last {
			d[path[0]] = v
		}
		return ok && (last || replaceAt(old, path[1:], v))
	case []any:
		var i int
		if _, err := fmt.Sscan(path[0], &i); err != nil || i < 0 || i >= len(d) {
			return false
		}
		if last {
			d[i] = v
			return true
		}
		return replaceAt(d[i], path[1:], v)
	}
	return false
}
