package history

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Series is the runs of one identity.
type Series struct {
	ID      string
	Key     Key
	Team    string
	Runs    []Record // valid ones, by time
	Invalid int
	Slow    []int
	Anchor  []string // ids of the pinned runs
	pairs   []Record
	accepts []Record
}

// Series groups the records, in the order of their first run.
func (db *DB) Series() []*Series {
	var out []*Series
	byID := map[string]*Series{}
	find := func(id string) *Series {
		s := byID[id]
		if s == nil {
			s = &Series{ID: id}
			byID[id] = s
			out = append(out, s)
		}
		return s
	}
	for _, r := range db.Records {
		s := find(r.Series)
		switch r.Kind {
		case RunKind:
			if s.Key == nil {
				s.Key = r.Key
			}
			if r.Team != "" {
				s.Team = r.Team
			}
			if len(r.Invalid) > 0 {
				s.Invalid++
			} else {
				s.Runs = append(s.Runs, r)
			}
		case AAKind:
			s.pairs = append(s.pairs, r)
		case SlowKind:
			if s.Slow == nil { // the first stays
				s.Slow = r.Slow
			}
		case AcceptKind:
			s.accepts = append(s.accepts, r)
		case AnchorKind:
			s.Anchor = r.Runs
		}
	}
	return slices.DeleteFunc(out, func(s *Series) bool { return len(s.Runs) == 0 && s.Invalid == 0 })
}

// Find returns the series of a key, nil where there is none. A nil history has none.
func (db *DB) Find(id string) *Series {
	if db == nil {
		return nil
	}
	for _, s := range db.Series() {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// Night is one night of a series: the median of its launches.
type Night struct {
	Day    string
	Level  float64
	Runs   []*Record
	Commit string // of its last launch
}

// Nights are the nights on which a metric was measured.
func (s *Series) Nights(metric string) []Night {
	var out []Night
	var levels []float64
	for i := range s.Runs {
		r := &s.Runs[i]
		v, ok := r.Levels[metric]
		if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		if n := len(out); n == 0 || out[n-1].Day != r.Night() {
			out = append(out, Night{Day: r.Night()})
			levels = levels[:0]
		}
		n := &out[len(out)-1]
		levels = append(levels, v)
		n.Level, n.Runs, n.Commit = stats.Median(levels), append(n.Runs, r), r.Commit
	}
	return out
}

// Change is a change of level of a series' metric.
type Change struct {
	Metric        string
	At            int // index of the first night of the new level
	Day           string
	Before, After float64 // levels, on the metric's scale
	LastGood      string  // commit of the night before
	FirstBad      string  // commit of the first night after
	P             float64
	Worse         bool
	Accepted      bool
	Reason        string // of the acceptance
	WentAway      bool   // the series has come back to where it was
}

// Segment is a stretch of nights of one level.
type Segment struct {
	From, To int // nights [From, To)
	Level    float64
}

// Changes finds where the metric's level changed, and cuts the series there and where a change was accepted.
func (s *Series) Changes(m verdict.Metric) ([]Change, []Segment, []Night) {
	nights := s.Nights(m.Name)
	x := make([]float64, len(nights))
	for i, n := range nights {
		x[i] = n.Level
	}
	least := math.Log1p(m.Minimum)
	if m.Kind == verdict.Share || m.Kind == verdict.Count {
		least = m.Minimum
	}
	var out []Change
	cuts := []int{0}
	for _, c := range stats.Changes(x, stats.ChangeOptions{MinShift: least}) {
		n := Change{Metric: m.Name, At: c.At, Day: nights[c.At].Day, Before: c.Before, After: c.After, P: c.P, FirstBad: nights[c.At].Commit, LastGood: nights[c.At-1].Commit}
		n.Worse = (c.After > c.Before) == (m.Better == "lower")
		out = append(out, n)
		cuts = append(cuts, c.At)
	}
	for _, a := range s.accepts {
		if a.Metric != m.Name {
			continue
		}
		at := slices.IndexFunc(nights, func(n Night) bool {
			return slices.ContainsFunc(n.Runs, func(r *Record) bool { return r.Commit == a.Commit || r.ID == a.Commit }) || n.Day == a.Commit
		})
		if at < 0 {
			continue
		}
		near := false
		for i := range out { // an acceptance says when; a detection may be a night or two off
			if d := out[i].At - at; d >= -2 && d <= 2 {
				out[i].Accepted, out[i].Reason, near = true, a.Reason, true
			}
		}
		if !near && at > 0 {
			cuts = append(cuts, at)
		}
	}
	slices.Sort(cuts)
	cuts = append(slices.Compact(cuts), len(x))
	var segments []Segment
	for i := 0; i+1 < len(cuts); i++ {
		if cuts[i] < cuts[i+1] {
			segments = append(segments, Segment{cuts[i], cuts[i+1], stats.Median(x[cuts[i]:cuts[i+1]])})
		}
	}
	for i := range out {
		if n := len(out); i+1 < n && math.Abs(out[n-1].After-out[i].Before) < least {
			out[i].WentAway = true
		}
	}
	return out, segments, nights
}

// Past is what the series says of a metric, from the nights of at most window before now; a window of 0 is all of it.
func (s *Series) Past(m verdict.Metric, now time.Time, window time.Duration) verdict.Past {
	p := verdict.Past{}
	if m.Kind == verdict.Slow {
		p.Slow = s.Slow
	}
	_, segments, nights := s.Changes(m)
	for i, g := range segments {
		for _, n := range nights[g.From:g.To] {
			if window > 0 && n.Runs[0].At.Before(now.Add(-window)) {
				continue
			}
			if i == len(segments)-1 {
				p.Nights = append(p.Nights, n.Level)
			} else {
				p.Earlier = append(p.Earlier, n.Level-g.Level)
			}
		}
	}
	for _, r := range s.pairs {
		if d, ok := r.Differences[m.Name]; ok && (window == 0 || !r.At.Before(now.Add(-4*window))) { // a deviation ages more slowly than a level
			p.AA = append(p.AA, d)
		}
	}
	return p
}

// Drift is a slow move away from the pinned anchor.
type Drift struct {
	Metric  string
	Anchor  float64 // level
	Now     float64 // mean of the last seven nights
	Limit   float64
	Past    bool   // the mean is past the limit
	CUSUM   bool   // the cumulative sum has passed its limit and the series has not come back
	Since   string // the day on which the cumulative sum began to grow
	Worse   bool
	Nights  int    // of the anchor
	Missing string // why nothing can be said
}

// driftNights is how many of the last nights are held against the anchor.
const driftNights = 7

// Drift holds the last nights against the anchor: their mean may be off by 2 % or 3.5 deviations of such a mean, whichever is more; and
// Page's cumulative sum of the nights' deviations from it (k = 0.5, h = 8). Accepted changes after the anchor move it along.
func (s *Series) Drift(m verdict.Metric) Drift {
	d := Drift{Metric: m.Name}
	changes, _, nights := s.Changes(m)
	if len(s.Anchor) == 0 {
		d.Missing = "no anchor is pinned"
		return d
	}
	var pinned []float64
	last := -1
	for i, n := range nights {
		if slices.ContainsFunc(n.Runs, func(r *Record) bool { return slices.Contains(s.Anchor, r.ID) }) {
			pinned = append(pinned, n.Level)
			last = i
		}
	}
	after := nights[last+1:]
	if len(pinned) > 0 {
		d.Nights, d.Anchor = len(pinned), stats.Median(pinned)
	}
	if len(pinned) == 0 || len(after) < driftNights {
		d.Missing = fmt.Sprintf("%d nights of the anchor and %d after it: want 1 and %d", len(pinned), len(after), driftNights)
		return d
	}
	x := make([]float64, len(nights))
	for i, n := range nights {
		x[i] = n.Level
	}
	sigma := stats.StepSD(x)
	for _, c := range changes {
		if c.Accepted && c.At > last {
			shift := c.After - c.Before
			for i := c.At; i < len(x); i++ {
				x[i] -= shift
			}
		}
	}
	sum := 0.0
	for _, v := range x[len(x)-driftNights:] {
		sum += v / driftNights
	}
	d.Now = sum
	floor := math.Log1p(0.02)
	if m.Kind == verdict.Share || m.Kind == verdict.Count {
		floor = max(m.Minimum, 0.02)
	}
	d.Limit = max(floor, 3.5*sigma*math.Sqrt(1.0/driftNights+1/float64(len(pinned))))
	d.Past = math.Abs(d.Now-d.Anchor) > d.Limit
	d.Worse = (d.Now > d.Anchor) == (m.Better == "lower")
	if sigma > 0 {
		z := make([]float64, 0, len(after))
		for _, v := range x[last+1:] {
			z = append(z, (v-d.Anchor)/sigma)
		}
		for _, a := range (stats.CUSUM{K: 0.5, H: 8}).Run(z) {
			// it counts while the last nights are still off on that side by more than what does not matter
			if a.Up == (d.Now > d.Anchor) && math.Abs(d.Now-d.Anchor) > floor/2 {
				d.CUSUM = true
				if d.Since == "" {
					d.Since = after[min(a.Since, len(after)-1)].Day
				}
			}
		}
	}
	return d
}

// FalseAlarms counts the gates that were run on identical builds and those whose verdict was wrong. A gate whose pairs could not have called
// anything worse, such as a nightly A/A pair alone, is no trial. last is the latest of them; nil where there is none.
func (db *DB) FalseAlarms() (wrong, all int, last *Record) {
	for i := range db.Records {
		r := &db.Records[i]
		if r.Kind == GateKind && r.AA && r.Tested && r.Verdict != string(verdict.Invalid) {
			all++
			last = r
			if r.Verdict == string(verdict.Regressed) {
				wrong++
			}
		}
	}
	return wrong, all, last
}
