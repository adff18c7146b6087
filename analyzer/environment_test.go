package analyzer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

func environmentOf(version, gpu, host string, port int) *formats.Manifest {
	return &formats.Manifest{Model: "m", ToolVersion: "v1", Environment: map[string]any{
		"client": map[string]any{"host": host},
		"deployment": map[string]any{"kind": "container", "engine_version": version, "start_up_ms": float64(port), "name": "x" + version, "gpu_names": []any{gpu, gpu},
			"command": []any{"serve", "--port", "8000", "--listen", "127.0.0.1:" + strings.Repeat("1", port)}, "host": map[string]any{"hostname": "gpu1", "kernel": "6.1"},
			"gpus": []any{map[string]any{"uuid": "GPU-a"}}},
	}}
}

func TestDifferences(t *testing.T) {
	a, b := environmentOf("0.10.0", "NVIDIA H200", "c1", 3), environmentOf("0.11.0", "NVIDIA H200", "c1", 4)
	if d := Differences(a, a); len(d) != 0 {
		t.Error(d)
	}
	b.Environment["deployment"].(map[string]any)["host"].(map[string]any)["kernel"] = "6.2"
	b.Environment["deployment"].(map[string]any)["driver"] = "570"
	want := []Difference{{"deployment.engine_version", "0.10.0", "0.11.0"}, {"deployment.driver", "absent", "570"}, {"deployment.host.kernel", "6.1", "6.2"}}
	if d := cmp.Diff(want, Differences(a, b)); d != "" {
		t.Error(d)
	}
	if got := Differences(nil, a); len(got) != 0 {
		t.Error(got)
	}
	if p := placement(&Run{Manifest: a}, &Run{Manifest: environmentOf("0.10.0", "x", "c2", 3)}); !strings.Contains(p, "different machines, c1 and c2") {
		t.Error(p)
	}
	if p := placement(&Run{Manifest: a}, &Run{Manifest: b}); p != "" {
		t.Error(p)
	}
}

func TestCompareRefusesAnotherGPU(t *testing.T) {
	a := &Run{Label: "a", Manifest: environmentOf("1", "NVIDIA H200", "c", 1)}
	b := &Run{Label: "b", Manifest: environmentOf("1", "NVIDIA A100", "c", 1)}
	_, err := Compare([]*Run{a}, []*Run{b}, CompareOptions{})
	if !errors.Is(err, ErrOtherGPU) || !strings.Contains(err.Error(), "NVIDIA H200 NVIDIA H200 and NVIDIA A100 NVIDIA A100") {
		t.Error(err)
	}
}

func TestDifferenceWords(t *testing.T) {
	for _, c := range [][4]string{
		{"0.10", "0.11", "0.10", "0.11"},
		{"vllm serve m --max-num-seqs 256 --port PORT", "vllm serve m --max-num-seqs 512 --port PORT", "… --max-num-seqs 256 …", "… --max-num-seqs 512 …"},
		{"vllm serve m --tp 1", "vllm serve m --tp 1 --enforce-eager", "… 1", "… 1 --enforce-eager"},
		{"a b c d", "a b c d", "… d", "… d"},
	} {
		was, is := (Difference{Base: c[0], Candidate: c[1]}).words()
		if was != c[2] || is != c[3] {
			t.Errorf("%q and %q give %q and %q", c[0], c[1], was, is)
		}
	}
}
