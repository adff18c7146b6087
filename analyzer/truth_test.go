package analyzer

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// truths are the metrics that truth has.
var truths = []string{"ttft", "ttft_from_send", "ttfc", "ttfc_from_send", "tpot", "itl", "event_gap", "e2el", "e2el_from_send", "end", "send_lag", "client_delay"}

// truth is a second implementation of every metric, written from the definitions and for one exchange at a time, without sharing code.
func truth(xs []*formats.Exchange) (map[string][]float64, Requests) {
	out := map[string][]float64{}
	put := func(name string, ns int64) { out[name] = append(out[name], float64(ns)/1e6) }
	var n Requests
	for _, x := range xs {
		if x.Phase == "warmup" {
			continue
		}
		n.Scheduled++
		if x.EndReason == "not_sent" {
			n.Dropped++
			continue
		}
		n.Sent++
		ok, whole := true, false
		switch {
		case x.ErrorKind != "" || x.EndReason == "server_abort" || x.EndReason == "timeout" || x.EndReason == "error_in_stream":
			n.Failed++
			ok = false
		case x.EndReason == "complete":
			n.Completed++
			whole = true
		case x.EndReason == "client_abort":
			n.Aborted++
		case x.EndReason == "run_end" || x.EndReason == "capture_cut":
			n.RunEnd++
		default:
			n.Unknown++
		}
		if x.SentNS.Valid {
			put("send_lag", x.SentNS.V)
		}
		if x.ClientDelayUS.Valid {
			put("client_delay", x.ClientDelayUS.V*1000)
		}
		if !ok {
			continue
		}
		// untimely: 2 sent again, 4 lost before it, 32 the prompt perhaps
		untimely := func(i int) bool {
			return x.EventFlags != nil && i >= 0 && i < len(x.EventFlags) && (x.EventFlags[i]&2 != 0 || x.EventFlags[i]&4 != 0 || x.EventFlags[i]&32 != 0)
		}
		if x.FirstTokenNS.Valid && !untimely(0) {
			put("ttft", x.FirstTokenNS.V)
			if x.SentNS.Valid && x.FirstTokenNS.V >= x.SentNS.V {
				put("ttft_from_send", x.FirstTokenNS.V-x.SentNS.V)
			}
		}
		content, when := -1, int64(0)
		for i := 0; i < len(x.EventGapUS) && content < 0; i++ {
			if when += int64(x.EventGapUS[i]); x.FirstTokenNS.V+when*1000 == x.FirstContentNS.V {
				content = i
			}
		}
		if x.FirstContentNS.Valid && !untimely(content) {
			put("ttfc", x.FirstContentNS.V)
			if x.SentNS.Valid && x.FirstContentNS.V >= x.SentNS.V {
				put("ttfc_from_send", x.FirstContentNS.V-x.SentNS.V)
			}
		}
		if whole {
			last := x.EndNS
			if x.LastTokenNS.Valid {
				last = x.LastTokenNS
			}
			if last.Valid && !untimely(len(x.EventGapUS)-1) {
				put("e2el", last.V)
				if x.SentNS.Valid && last.V >= x.SentNS.V {
					put("e2el_from_send", last.V-x.SentNS.V)
				}
			}
			if x.EndNS.Valid {
				put("end", x.EndNS.V)
			}
		}
		// the stream, as absolute event times by choice
		type event struct {
			at     int64
			tokens int
			bad    bool // the gap that it ends
			spoils bool // the gap that it begins
			index  int
		}
		byChoice := map[int32][]event{}
		at := int64(0)
		for i, g := range x.EventGapUS {
			at += int64(g)
			e := event{at: at, tokens: 1, index: i}
			if x.EventTokens != nil {
				e.tokens = int(x.EventTokens[i])
			}
			if x.EventFlags != nil {
				e.bad = x.EventFlags[i]&1 != 0 || x.EventFlags[i]&2 != 0 || x.EventFlags[i]&4 != 0 || x.EventFlags[i]&32 != 0
				e.spoils = x.EventFlags[i]&2 != 0 || x.EventFlags[i]&32 != 0
			}
			c := int32(0)
			if x.EventChoice != nil {
				c = x.EventChoice[i]
			}
			byChoice[c] = append(byChoice[c], e)
		}
		for c, events := range byChoice {
			for i := 1; i < len(events); i++ {
				if events[i].bad || events[i-1].spoils {
					continue
				}
				gap := float64(events[i].at-events[i-1].at) / 1000
				out["event_gap"] = append(out["event_gap"], gap)
				for range events[i].tokens {
					out["itl"] = append(out["itl"], gap/float64(events[i].tokens))
				}
			}
			tokens := x.OutputTokens
			if x.N.Or(1) > 1 {
				tokens = formats.Of(x.ChoiceOutputTokens[c])
			}
			if after := tokens.V - int64(events[0].tokens); tokens.Valid && after > 0 && !untimely(events[0].index) && !untimely(events[len(events)-1].index) {
				out["tpot"] = append(out["tpot"], float64(events[len(events)-1].at-events[0].at)/1000/float64(after))
			}
		}
	}
	for _, v := range out {
		slices.Sort(v)
	}
	return out, n
}

func TestEveryMetricAgainstBruteForce(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 9))
		var xs []*formats.Exchange
		for id := range int64(1 + r.IntN(900)) {
			xs = append(xs, randomExchange(r, id+1))
		}
		want, counts := truth(xs)
		s, err := Summarize(RunOf("r", nil, xs, nil), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if s.Requests != counts {
			t.Fatalf("seed %d: requests %+v, want %+v", seed, s.Requests, counts)
		}
		n := s.Requests
		if n.Scheduled != n.Sent+n.Dropped || n.Sent != n.Completed+n.Failed+n.Aborted+n.RunEnd+n.Unknown {
			t.Fatalf("seed %d: not conserved: %+v", seed, n)
		}
		for _, m := range Metrics() {
			if !slices.Contains(truths, m.Name) {
				t.Errorf("%s has no second implementation", m.Name)
			}
			checkFigures(t, m.Name, s.Metrics[m.Name], want[m.Name])
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func checkFigures(t *testing.T, name string, f Figures, want []float64) {
	t.Helper()
	if f.N != uint64(len(want)) {
		t.Errorf("%s: %d samples, want %d", name, f.N, len(want))
		return
	}
	if len(want) == 0 {
		if f.Mean.Valid || f.P50.Valid || f.Max.Valid {
			t.Errorf("%s: a figure without a sample", name)
		}
		return
	}
	var mean, v float64
	for _, x := range want {
		mean += x / float64(len(want))
	}
	for _, x := range want {
		v += (x - mean) * (x - mean) / float64(len(want))
	}
	same := func(what string, got Null, want float64) {
		if !got.Valid || math.Abs(got.V-want) > 1e-9*max(1, math.Abs(want)) {
			t.Errorf("%s %s: %v, want %v", name, what, got, want)
		}
	}
	same("mean", f.Mean, mean)
	if len(want) > 1 {
		if math.Abs(f.Std.V-math.Sqrt(v)) > 1e-6*max(1, math.Sqrt(v)) {
			t.Errorf("%s std: %v, want %v", name, f.Std, math.Sqrt(v))
		}
	} else if f.Std.Valid {
		t.Errorf("%s: the deviation of one sample", name)
	}
	same("max", f.Max, want[len(want)-1])
	same("p50", f.P50, stats.Quantile(want, 0.5))
	for _, p := range []struct {
		got   Null
		name  string
		p     float64
		floor int
	}{{f.P90, "p90", 0.9, 64}, {f.P95, "p95", 0.95, 130}, {f.P99, "p99", 0.99, 662}, {f.P999, "p99_9", 0.999, 6636}} {
		if len(want) < p.floor {
			if p.got.Valid || f.Withheld[p.name] == "" {
				t.Errorf("%s %s of %d samples: %v, withheld %q", name, p.name, len(want), p.got, f.Withheld[p.name])
			}
			continue
		}
		same(p.name, p.got, stats.Quantile(want, p.p))
	}
}
