package deploy

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	nameRule   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
	envRule    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	secretRule = regexp.MustCompile(`(?i)(^|_)(token|secret|password|passwd|(api|access|private|secret)_?key)$`)
	imageRule  = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?$`)
	uuidRule   = regexp.MustCompile(`^(GPU|MIG)-[0-9a-zA-Z/-]+$`)
	ulimits    = []string{"core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack"}
)

// Validate says everything that is wrong with the file, one error each. It looks at nothing outside the file: whether the image, the
// model and the GPUs are there is found at Start.
func (f *File) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if f.Name != "" && !nameRule.MatchString(f.Name) {
		bad("name %q: letters, digits, _ . and - only", f.Name)
	}
	ways := 0
	for _, is := range []bool{f.Image != "", len(f.Process) > 0, !f.Kubernetes.none()} {
		if is {
			ways++
		}
	}
	switch {
	case ways == 0:
		bad("it names neither an image nor a process nor a Kubernetes service")
	case ways > 1:
		bad("it names several of an image, a process and a Kubernetes service: one candidate is one of them")
	case f.Image != "" && !imageRule.MatchString(f.Image):
		bad("image %q is not NAME[:TAG] or NAME@sha256:DIGEST", f.Image)
	}
	if strings.Contains(f.Image, "://") {
		bad("image %q is an address; a registry is named without https://", f.Image)
	}
	d, known := dialects[f.Dialect]
	if !known {
		bad("dialect %q is not one of %s", f.Dialect, strings.Join(Dialects(), ", "))
	}
	if len(f.Process) > 0 {
		for _, what := range f.imageOnly() {
			bad("%s belongs to an image; a process has its own words only", what)
		}
		if f.Port == 0 && !mentions(f, "${port}") {
			bad("process has neither a port nor a ${port} among its words: where does it listen?")
		}
	} else if !f.Kubernetes.none() {
		errs = append(errs, f.validateKubernetes()...)
	} else if ways > 0 {
		if f.Dir != "" {
			bad("dir belongs to a process")
		}
		if f.Port == 0 && d.port == 0 {
			bad("port is missing: dialect %q has no usual one", f.Dialect)
		}
	}
	if f.Port < 0 || f.Port > 65535 {
		bad("port %d is not a TCP port", f.Port)
	}
	for _, what := range given(map[string]bool{"process": len(f.Process) > 0 && f.Process[0] == "", "entrypoint": len(f.Entrypoint) > 0 && f.Entrypoint[0] == ""}) {
		bad("the first word of %s, the program, is empty", what)
	}
	for _, words := range [][]string{f.Process, f.Entrypoint, f.Command} {
		for _, w := range words {
			if strings.ContainsRune(w, 0) {
				bad("%q holds a zero byte", w)
			}
			if strings.Contains(w, "${env:") {
				bad("%q: a command line is visible to every user and is recorded; pass secrets in env", w)
			}
		}
	}
	errs = append(errs, f.validateEnv()...)
	errs = append(errs, f.validateContainer()...)
	if n := f.GPUs.ways(); n > 1 {
		bad("gpus names several of all, count, indices and uuids: which?")
	}
	if f.GPUs.Count < 0 || f.GPUs.Count > 1024 {
		bad("gpus.count %d: that many GPUs cannot be asked for", f.GPUs.Count)
	}
	if f.GPUs.None() && f.GPUs.Free > 0 {
		bad("gpus.free asks for memory on no GPU")
	}
	for i, v := range f.GPUs.Indices {
		if v < 0 || slices.Contains(f.GPUs.Indices[:i], v) {
			bad("gpus.indices: %d is negative or there twice", v)
		}
	}
	for i, v := range f.GPUs.UUIDs {
		if !uuidRule.MatchString(v) || slices.Contains(f.GPUs.UUIDs[:i], v) {
			bad("gpus.uuids: %q is no GPU-… or MIG-… identifier, or there twice", v)
		}
	}
	if p := f.Health.Path; p != "" && (!strings.HasPrefix(p, "/") || strings.ContainsAny(p, " \r\n")) {
		bad("health.path %q does not begin with / or holds a blank", p)
	} else if _, err := url.Parse("http://x" + p); err != nil {
		bad("health.path %q is no path of a URL", p)
	}
	for _, name := range given(map[string]bool{"health.timeout": f.Health.Timeout.Or(1) == 0, "health.interval": f.Health.Interval.Or(1) == 0}) {
		bad("%s is 0s: give it more, or leave it out for the default", name)
	}
	if w := f.WarmUp; w.Duration != nil && w.Timeout != nil && *w.Duration > *w.Timeout {
		bad("warm_up.duration %s is longer than warm_up.timeout %s: it would never be warm", time.Duration(*w.Duration), time.Duration(*w.Timeout))
	}
	if n := f.WarmUp.Requests; n != nil && *n < 0 {
		bad("warm_up.requests %d is negative", *n)
	}
	for _, name := range sortedKeys(f.Probes) {
		words := f.Probes[name]
		if len(words) == 0 || words[0] == "" {
			bad("probe %q has no command", name)
		}
	}
	for i, p := range f.Prepare {
		if len(p.Command) == 0 || p.Command[0] == "" {
			bad("prepare step %d has no command", i+1)
		}
		if p.Timeout.Or(1) == 0 {
			bad("prepare.timeout of step %d is 0s: give it more, or leave it out for the default", i+1)
		}
	}
	if f.Files.Weights && f.Files.Path == "" {
		bad("model_files.weights without model_files.path")
	}
	return errors.Join(errs...)
}

// imageOnly names what is given of the keys that only an image has.
func (f *File) imageOnly() []string {
	return given(map[string]bool{"entrypoint": len(f.Entrypoint) > 0, "command": len(f.Command) > 0, "volumes": len(f.Volumes) > 0, "shm": f.Shm > 0, "ipc": f.IPC != "",
		"ulimits": len(f.Ulimits) > 0, "pull": f.Pull != ""})
}

// given are the names that are, sorted: errors come in one order.
func given(names map[string]bool) []string {
	return slices.DeleteFunc(sortedKeys(names), func(name string) bool { return !names[name] })
}

func (f *File) validateEnv() []error {
	var errs []error
	for _, name := range sortedKeys(f.Env) {
		v := f.Env[name]
		switch {
		case name == Mark || name == ownerVariable:
			errs = append(errs, fmt.Errorf("env %s is the launch's own", name))
		case !envRule.MatchString(name):
			errs = append(errs, fmt.Errorf("env %q is no variable name", name))
		case strings.ContainsRune(v, 0):
			errs = append(errs, fmt.Errorf("env %s holds a zero byte", name))
		case strings.HasPrefix(v, "${env:") && !envReference.MatchString(v):
			errs = append(errs, fmt.Errorf("env %s: a secret is the whole value, ${env:NAME}", name))
		case !isSecret(v) && v != "" && secretRule.MatchString(name):
			errs = append(errs, fmt.Errorf("env %s: a secret is named by reference, ${env:%s} or file:PATH, not written in the file", name, name))
		}
	}
	return errs
}

func (f *File) validateContainer() []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	targets := map[string]bool{}
	for _, s := range f.Volumes {
		v, err := parseVolume(s)
		switch {
		case err != nil:
			errs = append(errs, err)
		case v.container == "/":
			bad("volume %q would cover the whole container", s)
		case targets[v.container]:
			bad("volume %q: something is mounted at %s already", s, v.container)
		}
		targets[v.container] = true
	}
	if !slices.Contains([]string{"", "private", "shareable", "host"}, f.IPC) {
		bad("ipc %q is not private, shareable or host", f.IPC)
	}
	if !slices.Contains([]string{"", "missing", "always", "never"}, f.Pull) {
		bad("pull %q is not missing, always or never", f.Pull)
	}
	for _, name := range sortedKeys(f.Ulimits) {
		if !slices.Contains(ulimits, name) {
			bad("ulimits has no %q", name)
		} else if _, _, err := parseUlimit(f.Ulimits[name]); err != nil {
			bad("ulimits.%s: %w", name, err)
		}
	}
	return errs
}

func (g GPURequest) ways() int {
	n := 0
	for _, is := range []bool{g.All, g.Count != 0, len(g.Indices) > 0, len(g.UUIDs) > 0} {
		if is {
			n++
		}
	}
	return n
}

// mentions reports whether a word or a variable of the process holds s.
func mentions(f *File, s string) bool {
	holds := func(w string) bool { return strings.Contains(w, s) }
	if slices.ContainsFunc(f.Process, holds) {
		return true
	}
	for _, v := range f.Env {
		if holds(v) {
			return true
		}
	}
	return false
}

// volume is one mount.
type volume struct {
	host, container string
	write           bool
}

func parseVolume(s string) (volume, error) {
	parts := strings.Split(s, ":")
	v := volume{}
	if len(parts) == 3 {
		switch parts[2] {
		case "rw":
			v.write = true
		case "ro":
		default:
			return v, fmt.Errorf("volume %q ends in %q, not in ro or rw", s, parts[2])
		}
		parts = parts[:2]
	}
	if len(parts) != 2 || parts[0] == "" || !path.IsAbs(parts[1]) {
		return v, fmt.Errorf("volume %q is not HOST:/CONTAINER/PATH[:ro|rw]", s)
	}
	v.host, v.container = parts[0], path.Clean(parts[1])
	return v, nil
}

func parseUlimit(s string) (soft, hard int64, err error) {
	a, b, two := strings.Cut(s, ":")
	if !two {
		b = a
	}
	if soft, err = strconv.ParseInt(a, 10, 64); err == nil {
		hard, err = strconv.ParseInt(b, 10, 64)
	}
	if err != nil || soft < -1 || hard < -1 || hard != -1 && (soft == -1 || soft > hard) {
		return 0, 0, fmt.Errorf("%q is not SOFT[:HARD] with -1 for unlimited", s)
	}
	return soft, hard, nil
}
