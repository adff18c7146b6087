package replayer

import (
	"math"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// MSER5 judges where a series becomes steady: how many of its first observations to leave out, by the marginal standard error rule on
// means of five (White, Cobb, Spratt: A comparison of five steady-state truncation heuristics for simulation, WSC 2000). ok is false
// where the series is too short (under 50), or where the rule would leave out more than half, which means that it never was steady.
func MSER5(series []float64) (leaveOut int, ok bool) {
	n := len(series) / 5
	if n < 10 {
		return 0, false
	}
	means := make([]float64, n)
	for i := range means {
		for _, v := range series[5*i : 5*i+5] {
			means[i] += v / 5
		}
	}
	// Sums from the end, so that each truncation costs one step.
	best, at := math.Inf(1), 0
	var sum, squares float64
	for d := n - 1; d >= 0; d-- {
		sum += means[d]
		squares += means[d] * means[d]
		k := float64(n - d)
		if k < 5 { // the last few would always win
			continue
		}
		if z := math.Max(squares-sum*sum/k, 0) / (k * k); z <= best {
			best, at = z, d
		}
	}
	return 5 * at, 2*at <= n
}

// Course follows TTFT and throughput second by second. The zero value is ready; it is safe for concurrent use.
type Course struct {
	mu     sync.Mutex
	ttft   []float64 // sums in ms, by the second of the arrival
	n      []float64
	tokens []float64 // generated, by the second the answer ended in
}

func grow(s *[]float64, i int) *float64 {
	for len(*s) <= i {
		*s = append(*s, 0)
	}
	return &(*s)[i]
}

// maxSeconds bounds what is followed: a week.
const maxSeconds = 7 * 24 * 3600

// Add takes a row; due is its time in nanoseconds from the start.
func (s *Course) Add(x *formats.Exchange, due int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	second := int(due / int64(time.Second))
	if second < 0 || second >= maxSeconds {
		return
	}
	if x.FirstTokenNS.Valid {
		*grow(&s.ttft, second) += float64(x.FirstTokenNS.V) / 1e6
		*grow(&s.n, second)++
	}
	if end := int((due + x.EndNS.V) / int64(time.Second)); x.OutputTokens.Valid && end < maxSeconds {
		*grow(&s.tokens, end) += float64(x.OutputTokens.V)
	}
}

// SteadyState is what a run's own figures say about when it became steady.
type SteadyState struct {
	TTFTAfter, ThroughputAfter formats.Null[time.Duration] // unknown: the run is too short, or was never steady
	Seconds                    int                         // that were looked at
}

// Judge looks at the seconds up to the last arrival: what comes after is the load's end, not its course.
func (s *Course) Judge(span time.Duration) SteadyState {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := int(span / time.Second)
	out := SteadyState{Seconds: last}
	var ttft []float64
	mean := 0.0
	for i := 0; i < last && i < len(s.n); i++ {
		if s.n[i] > 0 { // a second without arrivals keeps the last figure
			mean = s.ttft[i] / s.n[i]
		}
		ttft = append(ttft, mean)
	}
	if k, ok := MSER5(ttft); ok {
		out.TTFTAfter = formats.Of(time.Duration(k) * time.Second)
	}
	if k, ok := MSER5(s.tokens[:min(last, len(s.tokens))]); ok {
		out.ThroughputAfter = formats.Of(time.Duration(k) * time.Second)
	}
	return out
}
