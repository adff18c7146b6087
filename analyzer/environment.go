package analyzer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// Difference is one thing that two runs' manifests say differently: the first suspect for a change in the figures.
type Difference struct {
	What      string `json:"what"` // dotted path in the manifest's environment
	Base      string `json:"base"`
	Candidate string `json:"candidate"`
}

// restless are the last parts of paths whose values differ from launch to launch and mean nothing.
var restless = []string{"url", "round_trip_ms", "start_up_ms", "id", "name", "created", "max_model_len_source", "executable", "hostname_container"}

// servedFirst orders differences: what is served and by what, before where. Earlier words come first.
var servedFirst = []string{"model", "engine_version", "version", "image", "command", "env", "model_files", "probes", "executable", "gpu", "driver"}

// Differences lists what two manifests say differently about what was measured and where, what is served first. A listening port is no
// difference. What only one side says stands as "absent" on the other.
func Differences(base, candidate *formats.Manifest) []Difference {
	if base == nil || candidate == nil {
		return []Difference{}
	}
	x, y := leaves(base), leaves(candidate)
	all := maps.Clone(x)
	maps.Copy(all, y)
	out := []Difference{}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		last := k[strings.LastIndexByte(k, '.')+1:]
		if x[k] == y[k] || slices.Contains(restless, last) || strings.HasPrefix(last, "round_trip") {
			continue
		}
		out = append(out, Difference{k, cmp.Or(x[k], "absent"), cmp.Or(y[k], "absent")})
	}
	rank := func(what string) int {
		for i, word := range servedFirst {
			if strings.Contains(what, word) {
				return i
			}
		}
		return len(servedFirst)
	}
	slices.SortStableFunc(out, func(a, b Difference) int { return rank(a.What) - rank(b.What) })
	return out
}

// leaves writes an environment's values under dotted paths, with what else of the manifest says what was measured.
func leaves(m *formats.Manifest) map[string]string {
	out := map[string]string{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				walk(strings.TrimPrefix(path+"."+k, "."), e)
			}
		case []any:
			if slices.ContainsFunc(v, func(e any) bool { _, is := e.(map[string]any); return is }) {
				for i, e := range v {
					walk(fmt.Sprintf("%s.%d", path, i), e)
				}
				return
			}
			words := make([]string, len(v))
			for i, e := range v {
				words[i] = withoutListeningPort(fmt.Sprint(e), i > 0 && words[i-1] == "--port")
			}
			out[path] = strings.Join(words, " ")
		case nil:
		default:
			out[path] = fmt.Sprint(v)
		}
	}
	walk("", map[string]any(m.Environment))
	if m.Model != "" {
		out["model"] = m.Model
	}
	if m.ToolVersion != "" {
		out["shadowtape"] = m.ToolVersion
	}
	return out
}

// withoutListeningPort takes the port out of a word of a command line: a free one is another each time.
func withoutListeningPort(word string, afterPort bool) string {
	if afterPort {
		return "PORT"
	}
	if head, _, ok := strings.Cut(word, "--port="); ok && head == "" {
		return "--port=PORT"
	}
	if i := strings.LastIndex(word, "127.0.0.1:"); i >= 0 && strings.Trim(word[i+len("127.0.0.1:"):], "0123456789") == "" {
		return word[:i] + "127.0.0.1:PORT"
	}
	return word
}

// words are the two values without the words that they begin and end with alike, so that the change in a long command line is seen.
func (d Difference) words() (base, candidate string) {
	x, y := strings.Fields(d.Base), strings.Fields(d.Candidate)
	if len(x) < 4 || len(y) < 4 {
		return d.Base, d.Candidate
	}
	head := 0
	for head < min(len(x), len(y)) && x[head] == y[head] {
		head++
	}
	tail := 0
	for tail < min(len(x), len(y))-head && x[len(x)-1-tail] == y[len(y)-1-tail] {
		tail++
	}
	cut := func(w []string) string {
		middle := w[max(head-1, 0) : len(w)-tail] // with the flag before a changed value
		text := strings.Join(middle, " ")
		if head > 1 {
			text = "… " + text
		}
		if tail > 0 {
			text += " …"
		}
		return text
	}
	return cut(x), cut(y)
}

// gpuModel is the model of the GPUs that a run's candidate had, "" where the manifest does not say.
func gpuModel(m *formats.Manifest) string {
	if m == nil {
		return ""
	}
	all := leaves(m)
	if v := all["deployment.gpu_names"]; v != "" {
		return v
	}
	for k, v := range all {
		if strings.HasPrefix(k, "deployment.nodes.") && strings.HasSuffix(k, "nvidia.com/gpu.product") {
			return v
		}
	}
	return ""
}

// placement says in words where two runs' clients were, if not in the same place.
func placement(base, candidate *Run) string {
	a, b := base.Manifest, candidate.Manifest
	switch {
	case a == nil && b == nil:
		return ""
	case a == nil || b == nil:
		recording, replay := base, candidate
		if b == nil {
			recording, replay = candidate, base
		}
		if recording.Kind != "recording" || replay.Kind != "replay" {
			return ""
		}
		at := map[string]string{"proxy": "at a proxy", "pcap": "from packets", "interface": "from packets"}[recording.Header.SourceKind]
		if at == "" {
			at = "where it was recorded"
		}
		client := ""
		if host := leaves(replay.Manifest)["client.host"]; host != "" {
			client = " on " + host
		}
		return fmt.Sprintf("%s was timed %s, %s by its client%s: the way between them is part of the difference", recording.Label, at, replay.Label, client)
	}
	x, y := leaves(a), leaves(b)
	if p, q := x["client.host"], y["client.host"]; p != q && p != "" && q != "" {
		return fmt.Sprintf("the clients were on different machines, %s and %s: their networks are part of the difference", p, q)
	}
	local := func(m map[string]string) string {
		if m["deployment.kind"] == "kubernetes" || m["deployment.kind"] == "" {
			return ""
		}
		return m["deployment.host.hostname"]
	}
	if p, q := local(x), local(y); p != q && p != "" && q != "" {
		return fmt.Sprintf("the candidates were on different machines, %s and %s", p, q)
	}
	return ""
}
