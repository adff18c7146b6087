package promtext

import (
	"encoding/json"
	"math"
)

// Tracker follows one server over many scrapes: its counters go on growing where the server's start anew. The zero value is ready. Not
// safe for concurrent use.
type Tracker struct {
	Resets int // counters that were seen to start anew

	last map[key]float64 // as the server says it
	base map[key]float64 // what it said before it started anew
	iter iterations
}

type key struct{ name, engine string }

// Follow makes the counters among readings grow for ever; gauges stay as they are. It changes rs in place and returns it. A counter that
// falls by rounding (a difference of two counters read at one moment) keeps its value instead of starting anew.
func (t *Tracker) Follow(rs []Reading) []Reading {
	if t.last == nil {
		t.last, t.base = map[key]float64{}, map[key]float64{}
	}
	for i := range rs {
		r := &rs[i]
		if !r.Counter {
			continue
		}
		k := key{r.Name, r.Engine}
		if old, ok := t.last[k]; ok && r.Value < old {
			if r.Value < old/2 {
				t.base[k] += old
				t.Resets++
			} else {
				r.Value = old
			}
		}
		t.last[k] = r.Value
		r.Value += t.base[k]
	}
	return rs
}

// iterations adds up the iteration statistics of TensorRT-LLM, of which each is told once.
type iterations struct {
	prefill, decode, steps float64
	any                    bool
}

type iteration struct {
	Active *float64 `json:"numActiveRequests"`
	Queued *float64 `json:"numQueuedRequests"`
	KV     *struct {
		Max       *float64 `json:"maxNumBlocks"`
		Used      *float64 `json:"usedNumBlocks"`
		TokensPer *float64 `json:"tokensPerBlock"`
		Reused    *float64 `json:"reusedBlocks"`
		Missed    *float64 `json:"missedBlocks"`
	} `json:"kvCacheStats"`
	Batch *struct {
		Context *float64 `json:"numCtxTokens"`
		Gen     *float64 `json:"numGenRequests"`
		Per     *float64 `json:"avgNumDecodedTokensPerIter"`
	} `json:"inflightBatchingStats"`
}

// ReadIterations reads TensorRT-LLM's JSON page of iteration statistics (GET /metrics with enable_iter_perf_stats), which each scrape
// drains: token counters are added up over the scrapes, so every page must be given once and in order. ok is false where the body is no
// such page. Its prefix counters count pages.
func (t *Tracker) ReadIterations(body []byte) (out []Reading, ok bool) {
	var its []iteration
	if json.Unmarshal(body, &its) != nil {
		return nil, false
	}
	for _, it := range its {
		t.iter.any = true
		t.iter.steps++
		if b := it.Batch; b != nil {
			if b.Context != nil {
				t.iter.prefill += *b.Context
			}
			if b.Gen != nil {
				per := 1.0
				if b.Per != nil && *b.Per > 0 {
					per = *b.Per
				}
				t.iter.decode += *b.Gen * per
			}
		}
	}
	put := func(name string, counter bool, v *float64) {
		if v != nil && !math.IsNaN(*v) {
			out = append(out, Reading{Name: name, Value: *v, Counter: counter})
		}
	}
	if len(its) > 0 {
		it := its[len(its)-1]
		put(Running, false, it.Active)
		put(Waiting, false, it.Queued)
		if kv := it.KV; kv != nil {
			put(KVPagesUsed, false, kv.Used)
			put(KVPagesTotal, false, kv.Max)
			put(PageTokens, false, kv.TokensPer)
			if kv.Used != nil && kv.Max != nil && *kv.Max > 0 {
				u := *kv.Used / *kv.Max
				put(KVUsage, false, &u)
			}
			put(PrefixHits, true, kv.Reused)
			if kv.Reused != nil && kv.Missed != nil {
				q := *kv.Reused + *kv.Missed
				put(PrefixQueries, true, &q)
			}
		}
	}
	if t.iter.any {
		all := t.iter.prefill + t.iter.decode
		put(PrefillTokens, true, &t.iter.prefill)
		put(DecodeTokens, true, &t.iter.decode)
		put(IterationTokens, true, &all)
		put(Iterations, true, &t.iter.steps)
	}
	return out, true
}
