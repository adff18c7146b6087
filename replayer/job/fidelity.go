package job

import (
	"math"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer"
)

// fidelity says how faithful a run was to its trace: figures, and under "verdicts" of each of them good, off or unknown. The keys are
// run.json's.
func fidelity(s *replayer.Stats, p Plan) map[string]any {
	q := &s.Quality
	f := map[string]any{}
	verdicts := map[string]any{}
	put := func(name string, n uint64, v float64) {
		if n > 0 {
			f[name] = v
		}
	}
	judge := func(name string, known, good bool) {
		switch {
		case !known:
			verdicts[name] = "unknown"
		case good:
			verdicts[name] = "good"
		default:
			verdicts[name] = "off"
		}
	}
	share := func(name string, part, whole int64) float64 {
		if whole == 0 {
			return 0
		}
		v := float64(part) / float64(whole)
		f[name] = v
		return v
	}
	lag := q.SendLag.Quantile(0.99)
	put("send_lag_p50_ms", q.SendLag.N(), q.SendLag.Quantile(0.5))
	put("send_lag_p99_ms", q.SendLag.N(), lag)
	put("send_lag_max_ms", q.SendLag.N(), q.SendLag.Max())
	judge("arrivals", q.SendLag.N() > 0, lag <= 10)
	put("client_delay_p99_ms", q.ClientDelay.N(), q.ClientDelay.Quantile(0.99))
	for _, p := range []struct {
		name string
		q    float64
	}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}} {
		put("input_error_"+p.name, q.InputError.N(), q.InputError.Quantile(p.q))
		put("output_error_"+p.name, q.OutputError.N(), q.OutputError.Quantile(p.q))
	}
	judge("input_lengths", q.InputError.N() > 0, q.InputError.Quantile(0.5) <= 0.01)
	judge("output_lengths", q.OutputError.N() > 0, q.OutputError.Quantile(0.5) <= 0.01)
	put("tokens_per_event", q.PerEvent.N(), q.PerEvent.Mean())
	put("tokens_per_event_recorded", q.RecordedPer.N(), q.RecordedPer.Mean())
	both := q.PerEvent.N() > 0 && q.RecordedPer.N() > 0
	judge("tokens_per_event", both, math.Abs(q.PerEvent.Mean()/q.RecordedPer.Mean()-1) <= 0.1)
	share("coalesced_share", q.Coalesced, q.Events)
	judge("stream", q.StreamAsked > 0, share("stream_kept_share", q.StreamKept, q.StreamAsked) == 1)
	judge("aborts", q.Aborts > 0, share("aborts_kept_share", q.AbortsKept, q.Aborts) >= 0.95)
	judge("drops", s.Requests.Scheduled > 0, share("dropped_share", s.Requests.Dropped, s.Requests.Scheduled) <= 0.001)
	expected, observed := share("prefix_hit_share_expected", q.PrefixExpected, q.PrefixInput), share("prefix_hit_share", q.PrefixObserved, q.PrefixInput)
	judge("prefix_hits", q.PrefixInput > 0, math.Abs(expected-observed) <= 0.05)
	if d := q.Drawn.Counts(); len(d) > 0 {
		f["drawn"] = d
	}
	if p.Sessions {
		f["overlapping_turns"], f["overlapping_turns_planned"] = s.Overlapped, p.Overlapping
	}
	seconds := func(d formats.Null[time.Duration]) any {
		if !d.Valid {
			return nil
		}
		return d.V.Seconds()
	}
	f["steady_state"] = map[string]any{"method": "MSER-5", "ttft_after_s": seconds(s.Steady.TTFTAfter), "throughput_after_s": seconds(s.Steady.ThroughputAfter), "seconds": s.Steady.Seconds}
	f["verdicts"] = verdicts
	return f
}
