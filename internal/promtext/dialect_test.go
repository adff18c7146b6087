package promtext

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What each page says, written down by reading the page: name, or name/engine, and value. "-" means that it must not be there.
var canonical = map[string]string{
	"vllm_v0.6.6_v0engine.txt": `vllm kv_usage=0.6372549019607843 kv_pages_used=17767 kv_pages_total=27881 kv_page_tokens=16 running=14 waiting=3 preemptions=2
		prefill_tokens=184320 decode_tokens=30720 iteration_tokens_sum=214930 iterations=3041 prefix_queries=- prefix_hits=-`,
	"vllm_v0.8.5_v1engine.txt": `vllm kv_usage/0=0.7071 kv_pages_used/0=19714 kv_pages_total/0=27881 prefix_queries/0=11520 prefix_hits/0=4608 running/0=16 waiting/0=5
		preemptions/0=1 prefill_tokens/0=184320 decode_tokens/0=30720`,
	"vllm_v0.10.0.txt":                       `vllm kv_usage/0=0.31420118343195264 prefix_queries/0=184320 prefix_hits/0=73728 prefill_tokens/0=110592 decode_tokens/0=30720`,
	"vllm_v0.11.0.txt":                       `vllm kv_usage/0=0.9216 prefix_queries/0=1843200 prefix_hits/0=737280 running/0=24 waiting/0=7 preemptions/0=11 prefill_tokens/0=1105920 decode_tokens/0=307200 iterations/0=19700`,
	"vllm_v0.11.0_multiproc_apiservers2.txt": `vllm kv_usage/0=0.52 kv_usage/1=0.49 running/0=12 running/1=11 prefill_tokens/0=78000 prefill_tokens/1=26000`,
	"vllm_main_2026-08_dp2_specdecode.txt":   `vllm kv_usage/0=0.8125 kv_usage/1=0.4375 prefix_hits/0=2048000 prefix_hits/1=1300000 prefill_tokens/0=2048000 prefill_tokens/1=2600000 waiting/0=4 waiting/1=0 decode_tokens/1=600000`,
	"vllm_rust_frontend_openmetrics_2026-08.txt": `vllm kv_usage/0=0.25 prefix_queries/0=40960 prefix_hits/0=8192 running/0=9 waiting/0=1 preemptions/0=1 prefill_tokens/0=32768 decode_tokens/0=5120
		kv_pages_total/0=- iterations/0=-`,
	"llm-d-inference-sim_v0.10.2.txt": `vllm kv_usage=0.125 kv_pages_used=128 kv_pages_total=1024 prefix_hits=320 prefix_queries=1000 prefill_tokens=680 decode_tokens=400 running=5 waiting=2`,
	"sglang_v0.4.6.txt":               `sglang kv_usage=0.28 running=20 waiting=2 prefix_queries=128201 prefix_hits=64100 prefill_tokens=64101 decode_tokens=7557572 kv_pages_used=- preemptions=-`,
	"sglang_v0.5.5.txt":               `sglang kv_usage=0.28 prefix_hits=64100 preemptions=- prefill_tokens=64101`,
	"sglang_v0.5.9.txt":               `sglang kv_usage=0.28 kv_pages_used=31250 kv_pages_total=110000 kv_page_tokens=1 prefix_queries=128201 prefix_hits=64100 preemptions=3 prefill_tokens=64101 decode_tokens=75901`,
	"sglang_v0.5.18.txt": `sglang kv_usage=0.6472727272727272 kv_pages_used=71200 kv_pages_total=110000 prefix_queries=1500000 prefix_hits=600000 preemptions=4 prefill_tokens=900000
		decode_tokens=240000 running=32 waiting=6`,
	"sglang_v0.5.18_v1_loads_prometheus.txt": `sglang kv_usage/0=0.6473 running/0=32 waiting/0=6`,
	"trtllm_main_2026_prometheus.txt": `trtllm kv_usage=0.58 kv_pages_used=5220 kv_pages_total=9000 kv_page_tokens=32 prefix_queries=204800 prefix_hits=81920 prefill_tokens=122880 decode_tokens=38000
		running=32 waiting=5`,
	"triton_trtllm_backend.txt":       `triton kv_usage/tensorrt_llm=0.4875 kv_pages_used/tensorrt_llm=3041 kv_pages_total/tensorrt_llm=6239 kv_page_tokens/tensorrt_llm=64 running/tensorrt_llm=17 waiting/tensorrt_llm=3`,
	"tgi_v3.3.7.txt":                  `tgi running=18 waiting=4 prefill_tokens=400000 decode_tokens=60000 iterations=60310 kv_usage=-`,
	"llamacpp_b4747_2025-02.txt":      `llamacpp kv_usage=0.52 running=4 waiting=2 prefill_tokens=184320 decode_tokens=1234570 prefix_hits=-`,
	"llamacpp_b10573_2026-08.txt":     `llamacpp kv_usage=- prefix_queries=184320 prefix_hits=73728 prefill_tokens=110592`,
	"lmdeploy_v0.16.0.txt":            `lmdeploy kv_usage/0=0.3328 running/0=18 waiting/0=2 prefix_queries/0=153600 prefix_hits/0=61440 prefill_tokens/0=92160 decode_tokens/0=38400 iterations/0=2290`,
	"dynamo_frontend_2026.txt":        `dynamo kv_pages_used/7587888812345=4100 kv_pages_total=27881 kv_page_tokens=16 running=16 waiting=3 prefill_tokens=412000 decode_tokens=51200`,
	"dynamo_worker_2025.txt":          `vllm kv_usage/0=0.147 kv_pages_total=-`,
	"nim_1.x_v1_metrics.txt":          `nim kv_usage=0.12 running=8 waiting=1 prefill_tokens=20480 decode_tokens=5120`,
	"litellm_proxy.txt":               ``,
	"edge_vllm_disable_log_stats.txt": ``,
}

func TestCanonicalSeries(t *testing.T) {
	for file, want := range canonical {
		d, rs := Read(page(t, file))
		fields := strings.Fields(want)
		if len(fields) == 0 {
			if d != "" || len(rs) != 0 {
				t.Errorf("%s is taken for %q: %v", file, d, rs)
			}
			continue
		}
		if d != fields[0] {
			t.Errorf("%s is taken for %q", file, d)
		}
		got := map[string]string{}
		for _, r := range rs {
			k := r.Name
			if r.Engine != "" {
				k += "/" + r.Engine
			}
			if _, twice := got[k]; twice {
				t.Errorf("%s: %s stands twice", file, k)
			}
			got[k] = fmt.Sprint(r.Value)
			if math.Abs(r.Value) >= 1e6 {
				got[k] = fmt.Sprintf("%.0f", r.Value)
			}
		}
		for _, f := range fields[1:] {
			k, v, _ := strings.Cut(f, "=")
			if g, ok := got[k]; v == "-" && ok || v != "-" && g != v {
				t.Errorf("%s: %s is %q, want %s", file, k, g, v)
			}
		}
	}
	files, _ := filepath.Glob("testdata/*.txt")
	for _, f := range files {
		if _, ok := canonical[filepath.Base(f)]; !ok && !strings.Contains(f, "edge_") {
			t.Errorf("nothing is expected of %s", f)
		}
	}
}

// Each process of one server has a gauge of its own: the largest is the one that is alive, and their sum is nothing. Engines stay apart.
func TestGaugesOfProcessesAreNotAdded(t *testing.T) {
	text := `vllm:kv_cache_usage_perc{engine="0",pid="1"} 0.52
vllm:kv_cache_usage_perc{engine="0",pid="2"} 0.31
vllm:kv_cache_usage_perc{engine="1",pid="1"} 0.25
vllm:kv_cache_usage_perc{engine="1",pid="2"} 0.47
vllm:num_requests_running{engine="0",pid="1"} 3
vllm:num_requests_running{engine="0",pid="2"} 9
vllm:generation_tokens_total{engine="0",pid="1"} 100
vllm:generation_tokens_total{engine="0",pid="2"} 20
`
	_, rs := Read(Parse([]byte(text)))
	got := map[string]float64{}
	for _, r := range rs {
		got[r.Name+"/"+r.Engine] = r.Value
	}
	if want := map[string]float64{KVUsage + "/0": 0.52, KVUsage + "/1": 0.47, Running + "/0": 9, DecodeTokens + "/0": 120}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestCounterReset(t *testing.T) {
	var tr Tracker
	read := func(name string) float64 {
		_, rs := Read(page(t, name))
		rs = tr.Follow(rs)
		i := slices.IndexFunc(rs, func(r Reading) bool { return r.Name == DecodeTokens })
		return rs[i].Value
	}
	if v := read("edge_counter_reset_before.txt"); v != 50000 {
		t.Errorf("before: %v", v)
	}
	if v := read("edge_counter_reset_after.txt"); v != 50120 || tr.Resets != 1 {
		t.Errorf("after: %v, %d resets", v, tr.Resets)
	}
	if rs := tr.Follow([]Reading{{Name: DecodeTokens, Engine: "0", Value: 119.5, Counter: true}, {Name: KVUsage, Value: 0.1}}); rs[0].Value != 50120 || rs[1].Value != 0.1 || tr.Resets != 1 {
		t.Errorf("a counter that falls a little: %v", rs)
	}
}

func TestIterationStatistics(t *testing.T) {
	body, err := os.ReadFile("testdata/trtllm_metrics_iteration_stats.json")
	if err != nil {
		t.Fatal(err)
	}
	var tr Tracker
	want := map[string]float64{KVPagesUsed: 5221, KVPagesTotal: 9000, PageTokens: 32, Running: 32, Waiting: 5, PrefixHits: 2560, PrefixQueries: 6400,
		PrefillTokens: 2048, DecodeTokens: 62, IterationTokens: 2110, Iterations: 2, KVUsage: 5221.0 / 9000}
	for pass := 1.0; pass <= 2; pass++ {
		rs, ok := tr.ReadIterations(body)
		if !ok || len(rs) != len(want) {
			t.Fatalf("%d readings", len(rs))
		}
		for _, r := range rs {
			w := want[r.Name]
			switch r.Name {
			case PrefillTokens, DecodeTokens, IterationTokens, Iterations:
				w *= pass
			}
			if r.Value != w {
				t.Errorf("scrape %v: %s is %v, want %v", pass, r.Name, r.Value, w)
			}
		}
	}
	if rs, ok := tr.ReadIterations([]byte("[]")); !ok || len(rs) != 4 {
		t.Errorf("an idle server: %v %t", rs, ok)
	}
	if _, ok := tr.ReadIterations([]byte(`{"a":1}`)); ok {
		t.Error("an object is no list of iterations")
	}
	var empty Tracker
	if rs, ok := empty.ReadIterations([]byte("[]")); !ok || rs != nil {
		t.Errorf("a server that has done nothing: %v", rs)
	}
}

func FuzzReadIterations(f *testing.F) {
	b, err := os.ReadFile("testdata/trtllm_metrics_iteration_stats.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("[{}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var tr Tracker
		if rs, ok := tr.ReadIterations(b); ok && !json.Valid(b) {
			t.Errorf("%v from no JSON", rs)
		}
	})
}
