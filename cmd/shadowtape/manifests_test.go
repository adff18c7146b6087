package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// kubeObject is what the tests look at of a Kubernetes object.
type kubeObject struct {
	Kind     string
	Metadata struct {
		Name      string
		Namespace string
		Labels    map[string]string
	}
	Spec struct {
		Template struct {
			Spec kubePod
		}
	}
}

type kubePod struct {
	HostNetwork, HostPID, HostIPC bool
	SecurityContext               securityContext `yaml:"securityContext"`
	Containers                    []kubeContainer
	Volumes                       []map[string]any
}

type kubeContainer struct {
	Name            string
	Args            []string
	SecurityContext securityContext `yaml:"securityContext"`
	Ports           []struct {
		HostPort int `yaml:"hostPort"`
	}
}

type securityContext struct {
	RunAsNonRoot             *bool `yaml:"runAsNonRoot"`
	RunAsUser                *int  `yaml:"runAsUser"`
	Privileged               bool
	AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
	ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
	Capabilities             struct{ Add, Drop []string }
	SeccompProfile           struct{ Type string } `yaml:"seccompProfile"`
}

func readManifests(t *testing.T, name string) []kubeObject {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "samples", "kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	var all []kubeObject
	for d := yaml.NewDecoder(bytes.NewReader(b)); ; {
		var m kubeObject
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, m)
	}
}

// restricted lists what the Pod Security profile `restricted` (https://kubernetes.io/docs/concepts/security/pod-security-standards/)
// has against a pod.
func restricted(p kubePod) (against []string) {
	if p.HostNetwork || p.HostPID || p.HostIPC {
		against = append(against, "host namespaces")
	}
	for _, v := range p.Volumes {
		for kind := range v {
			if !slices.Contains([]string{"name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}, kind) {
				against = append(against, "volume "+kind)
			}
		}
	}
	for _, c := range p.Containers {
		s, pod := c.SecurityContext, p.SecurityContext
		nonRoot := pod.RunAsNonRoot
		if s.RunAsNonRoot != nil {
			nonRoot = s.RunAsNonRoot
		}
		user := pod.RunAsUser
		if s.RunAsUser != nil {
			user = s.RunAsUser
		}
		seccomp := pod.SeccompProfile.Type
		if s.SeccompProfile.Type != "" {
			seccomp = s.SeccompProfile.Type
		}
		for what, bad := range map[string]bool{
			"privileged":           s.Privileged,
			"privilege escalation": s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation,
			"capabilities kept":    !slices.Contains(s.Capabilities.Drop, "ALL"),
			"capabilities added":   slices.ContainsFunc(s.Capabilities.Add, func(c string) bool { return c != "NET_BIND_SERVICE" }),
			"may be root":          nonRoot == nil || !*nonRoot || user != nil && *user == 0,
			"no seccomp profile":   seccomp != "RuntimeDefault" && seccomp != "Localhost",
			"host port": slices.ContainsFunc(c.Ports, func(p struct {
				HostPort int `yaml:"hostPort"`
			}) bool {
				return p.HostPort != 0
			}),
		} {
			if bad {
				against = append(against, c.Name+": "+what)
			}
		}
	}
	return against
}

// parsesAsRecord checks a command line's flags against the command.
func parsesAsRecord(t *testing.T, where string, args []string) {
	t.Helper()
	if len(args) == 0 || args[0] != "record" {
		t.Errorf("%s: arguments %q are not for record", where, args)
		return
	}
	c, o := recordWithFlags(&app{out: io.Discard, err: io.Discard})
	if err := c.ParseFlags(args[1:]); err != nil {
		t.Errorf("%s: %v", where, err)
	}
	if err := o.misuse(c.Flags().Changed); err != nil {
		t.Errorf("%s: %v", where, err)
	}
	if left := c.Flags().Args(); len(left) > 0 {
		t.Errorf("%s: %q is no flag", where, left)
	}
	for _, need := range []string{"output", "append", "key-file", "quota", "metrics-listen"} {
		if !c.Flags().Changed(need) {
			t.Errorf("%s: no --%s", where, need)
		}
	}
}

func TestManifests(t *testing.T) {
	for name, want := range map[string]struct {
		restricted bool
		enforce    string
	}{"proxy.yaml": {true, "restricted"}, "sink.yaml": {true, ""}, "sidecar.yaml": {false, "privileged"}, "daemonset.yaml": {false, "privileged"}} {
		pods := 0
		for _, m := range readManifests(t, name) {
			if m.Kind == "Namespace" && m.Metadata.Labels["pod-security.kubernetes.io/enforce"] != want.enforce {
				t.Errorf("%s: the namespace is labelled %v, want %s", name, m.Metadata.Labels, want.enforce)
			}
			p := m.Spec.Template.Spec
			if len(p.Containers) == 0 {
				continue
			}
			pods++
			against := restricted(p)
			if want.restricted != (len(against) == 0) {
				t.Errorf("%s: restricted %t: %q", name, want.restricted, against)
			}
			for _, c := range p.Containers {
				if c.Name != "shadowtape" {
					continue
				}
				parsesAsRecord(t, name, c.Args)
				s := c.SecurityContext
				if !want.restricted && (!slices.Equal(s.Capabilities.Add, []string{"NET_RAW"}) || !slices.Equal(s.Capabilities.Drop, []string{"ALL"})) {
					t.Errorf("%s: capabilities %+v, want NET_RAW only", name, s.Capabilities)
				}
				if !s.ReadOnlyRootFilesystem || s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
					t.Errorf("%s: %+v", name, s)
				}
			}
		}
		if pods != 1 {
			t.Errorf("%s: %d pods", name, pods)
		}
	}
}

func TestSystemdUnit(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "samples", "systemd", "shadowtape.service"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok {
			parsesAsRecord(t, "shadowtape.service", strings.Fields(command)[1:])
			return
		}
	}
	t.Error("no ExecStart")
}

// TestSystemdVerifies has systemd read the unit, and say how exposed the service would be.
func TestSystemdVerifies(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: there is no systemd-analyze here (Debian: systemd)")
	}
	b, err := os.ReadFile(filepath.Join("..", "..", "samples", "systemd", "shadowtape.service"))
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "shadowtape.service")
	if err := os.WriteFile(unit, bytes.ReplaceAll(b, []byte("/usr/local/bin/shadowtape"), []byte(os.Args[0])), 0o600); err != nil { // a program that is there
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", unit).CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("verify: %v\n%s", err, out)
	}
	out, err := exec.Command(analyze, "security", "--offline=true", "--no-pager", "--threshold=30", unit).CombinedOutput()
	if err != nil && bytes.Contains(out, []byte("unrecognized option")) {
		t.Skip("SKIPPED: this systemd cannot tell how exposed a unit is without running it (before version 250)")
	}
	if err != nil {
		t.Errorf("more exposed than 3.0: %v\n%s", err, out)
	}
}

// TestCISamples: every flag that the samples for CI and roll-outs give to shadowtape is one of the verb's.
func TestCISamples(t *testing.T) {
	calls := 0
	for _, name := range []string{"argo/analysis.yaml", "argo/recordings.yaml", "github/action/action.yml", "github/workflows/performance.yml", "gitlab/.gitlab-ci.yml"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "samples", name))
		if err != nil {
			t.Fatal(err)
		}
		for d := yaml.NewDecoder(bytes.NewReader(b)); ; {
			var v any
			if err := d.Decode(&v); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		text := strings.NewReplacer("\\\n", " ", `"$SHADOWTAPE"`, "shadowtape").Replace(string(b))
		for line := range strings.Lines(text) {
			_, call, ok := strings.Cut(line, "shadowtape ")
			words := strings.Fields(call)
			if !ok || len(words) < 2 || strings.Contains(words[0], ",") || !strings.Contains(line, "--") && words[0] != "diff" {
				continue
			}
			verb := words[:1]
			if words[0] == "history" || words[0] == "baseline" {
				verb = words[:2]
			}
			code, help, _ := invoke(append(slices.Clone(verb), "--help")...)
			if code != exitGood {
				t.Errorf("%s: there is no verb %v", name, verb)
				continue
			}
			calls++
			for _, w := range words[1:] {
				if flag, ok := strings.CutPrefix(w, "--"); ok && !strings.Contains(help, "--"+flag) {
					t.Errorf("%s: %v has no --%s", name, verb, flag)
				}
			}
		}
	}
	if calls < 8 {
		t.Errorf("%d calls were found", calls)
	}
}
