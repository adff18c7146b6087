package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Arm is a side of a gate.
type Arm string

// The sides.
const (
	Base      Arm = "base"
	Candidate Arm = "candidate"
)

// Leg is one launch of a gate: a server started for it alone, warmed up, measured, and stopped.
type Leg struct {
	Pair int // from 1
	Arm  Arm
	Try  int // from 1; more where an earlier launch was invalid
}

// Name is the leg's place in the experiment's directory.
func (l Leg) Name() string {
	name := fmt.Sprintf("p%02d-%s", l.Pair, l.Arm)
	if l.Try > 1 {
		name += fmt.Sprintf("-try%d", l.Try)
	}
	return name
}

// Launch makes one leg. An invalid measurement is no error; a server that does not start is one.
type Launch func(ctx context.Context, l Leg) (*Measured, error)

// GateOptions describe a gate.
type GateOptions struct {
	Compare  CompareOptions
	Budget   time.Duration // 0: as long as it takes
	Each     time.Duration // what one launch is expected to take, until one was made
	MaxPairs int           // 0: the last look's
	Tries    int           // launches of one leg, at most; 0: 3
	// PastOf looks up the history of the base's series once its first run is there; nil: Compare.Past is all.
	PastOf func(base *Measured) map[string]verdict.Past
	// Done returns a leg that an earlier call has made, so that a gate can be resumed; nil: none.
	Done func(l Leg) (*Measured, bool, error)
	// Progress is told before each launch and after each look; nil: nobody is.
	Progress func(GateProgress)
	Now      func() time.Time // nil: time.Now
}

// Validate says what cannot work.
func (o GateOptions) Validate() error {
	var errs []error
	if o.Budget < 0 || o.Each < 0 {
		errs = append(errs, errors.New("a budget or a launch of negative length"))
	}
	if o.MaxPairs < 0 || o.Tries < 0 {
		errs = append(errs, errors.New("a negative number of pairs or tries"))
	}
	return errors.Join(append(errs, verdict.Options{Metrics: o.Compare.metrics()}.Validate())...)
}

// GateProgress is a moment of a gate.
type GateProgress struct {
	Leg      Leg
	Resumed  bool // the leg was there
	Elapsed  time.Duration
	Each     time.Duration     // what a launch takes, by those made
	Findings []verdict.Finding // after a look
}

// GatePlan is what a gate is about to do.
type GatePlan struct {
	Each       time.Duration
	Pairs      int                // that the budget affords, or that may be needed at most
	Looks      []verdict.Look     // those within reach
	Prior      bool               // the history has A/A pairs
	Detectable map[string]float64 // percent, by gated metric: the change that so many pairs find with 80 % power
}

// Plan says what a gate would do. Without A/A pairs nothing is known of what it could see.
func (o GateOptions) Plan() GatePlan {
	s := o.sequence()
	p := GatePlan{Each: o.Each, Pairs: o.most(s), Detectable: map[string]float64{}}
	if o.Budget > 0 && o.Each > 0 {
		p.Pairs = min(p.Pairs, int(o.Budget/(2*o.Each)))
	}
	for _, l := range s.Plan {
		if l.Pairs <= p.Pairs {
			p.Looks = append(p.Looks, l)
		}
	}
	p.Prior = s.Plan[0].Pairs == verdict.Looks(true)[0].Pairs
	for _, m := range o.Compare.metrics() {
		prior := stats.PriorOf(o.Compare.Past[m.Name].AA)
		if !m.Gate || prior.DF == 0 || p.Pairs == 0 {
			continue
		}
		e := stats.Estimate{N: p.Pairs, SD: prior.Sigma, DF: prior.DF + float64(p.Pairs-1)}
		v := changePct(m, e.Detectable(verdict.DefaultAlpha, 0.8))
		if !math.IsInf(v, 0) && !math.IsNaN(v) {
			p.Detectable[m.Name] = v
		}
	}
	return p
}

// sequence is the test, its plan made.
func (o GateOptions) sequence() *verdict.Sequence {
	s := &verdict.Sequence{Options: verdict.Options{Metrics: o.Compare.metrics(), Past: o.Compare.Past}}
	s.Most()
	return s
}

func (o GateOptions) most(s *verdict.Sequence) int {
	most := s.Most()
	if o.MaxPairs > 0 {
		most = min(most, o.MaxPairs)
	}
	return most
}

// gate is a gate on its way.
type gate struct {
	o               GateOptions
	launch          Launch
	seq             *verdict.Sequence
	began           time.Time
	made            time.Duration // of the launches made
	legs            int
	base, candidate []*Measured
}

// Gate makes pairs of launches, the first arm of each turned round from the pair before (A B, B A, …), until every gated metric is
// decided, the looks are over, or the budget is. A launch that is invalid by itself is made again, whichever arm it is; a pair whose
// launches do not match is left out. A cancelled context ends it with its error and the report of what there is.
func Gate(ctx context.Context, launch Launch, o GateOptions) (Report, Sides, error) {
	if err := o.Validate(); err != nil {
		return Report{}, Sides{}, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Tries = cmp.Or(o.Tries, 3)
	g := &gate{o: o, launch: launch, seq: o.sequence(), began: o.Now()}
	err := g.run(ctx)
	if len(g.base) == 0 || len(g.candidate) == 0 {
		return Report{}, Sides{}, cmp.Or(err, errors.New("gate: the budget is too small for one pair"))
	}
	r, e := g.report()
	return r, Sides{g.base, g.candidate}, errors.Join(err, e)
}

// Sides are the runs of a gate, in the order of their pairs.
type Sides struct{ Base, Candidate []*Measured }

// GateAlone launches the candidate three times and holds it against the history alone, for a first answer in a few minutes.
func GateAlone(ctx context.Context, launch Launch, o GateOptions) (Report, Sides, error) {
	if err := o.Validate(); err != nil {
		return Report{}, Sides{}, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Tries = cmp.Or(o.Tries, 3)
	g := &gate{o: o, launch: launch, seq: o.sequence(), began: o.Now()}
	for i := range aloneLaunches {
		m, ok, err := g.leg(ctx, i+1, Candidate)
		if err != nil {
			return Report{}, Sides{}, err
		}
		if !ok {
			break
		}
		g.candidate = append(g.candidate, m)
	}
	if len(g.candidate) == 0 {
		return Report{}, Sides{}, errors.New("gate: the budget is too small for one launch")
	}
	past := o.Compare.Past
	if o.PastOf != nil {
		past = o.PastOf(g.candidate[0])
	}
	r := Report{Schema: 1, Method: againstBaseline, Verdict: verdict.Inconclusive, Findings: []verdict.Finding{}, Runs: []RunRow{}, Differences: []Difference{}, Explanation: []string{},
		Again: []string{}, Warnings: []string{}, Next: []string{}, FalseAlarms: o.Compare.FalseAlarms, Base: "history", Candidate: cmp.Or(o.Compare.Candidate, names(g.candidate)), Alpha: verdict.AloneAlpha}
	var runs []*verdict.Run
	for i, m := range g.candidate {
		r.Runs = append(r.Runs, RunRow{Label: m.Run.Label, Where: m.Where, Arm: string(Candidate), Pair: i + 1, Valid: len(m.Invalid) == 0, Invalid: m.Invalid, Requests: m.Summary.Requests.Sent})
		if len(m.Invalid) > 0 && !o.Compare.AllowInvalid {
			r.Again = append(r.Again, m.Where+": "+m.Invalid[0])
			continue
		}
		runs = append(runs, m.Run)
	}
	r.Pairs = len(runs)
	var err error
	if r.Findings, err = verdict.DecideAlone(runs, nil, verdict.Options{Metrics: o.Compare.metrics(), Past: past}); err != nil {
		return r, Sides{}, err
	}
	if len(r.Findings) == 0 && len(runs) > 0 {
		r.Warnings = append(r.Warnings, "the history has too few nights of this workload on this machine with these flags: it says nothing")
	}
	r.judge()
	return r, Sides{Candidate: g.candidate}, nil
}

// aloneLaunches is how many launches are held against the history alone.
const aloneLaunches = 3

func (g *gate) run(ctx context.Context) error {
	bad := 0
	for pair := 1; pair <= g.o.most(g.seq)+bad && !g.seq.Done(); pair++ {
		order := []Arm{Base, Candidate}
		if pair%2 == 0 {
			order = []Arm{Candidate, Base}
		}
		got := map[Arm]*Measured{}
		for _, arm := range order {
			m, ok, err := g.leg(ctx, pair, arm)
			if err != nil {
				return err
			}
			if !ok {
				return nil // the budget is over; half a pair says nothing
			}
			got[arm] = m
		}
		g.base, g.candidate = append(g.base, got[Base]), append(g.candidate, got[Candidate])
		if pair == 1 && g.o.PastOf != nil {
			g.o.Compare.Past = g.o.PastOf(got[Base])
			g.seq = g.o.sequence()
		}
		if !usable(got[Base], got[Candidate], g.o.Compare.AllowInvalid) {
			if bad++; bad == 2 {
				return nil // the host is not fit to measure on
			}
			continue
		}
		a, b := g.valid()
		found, looked, err := g.seq.Next(a, b)
		if err != nil {
			return err
		}
		if looked && g.o.Progress != nil {
			g.o.Progress(GateProgress{Leg: Leg{Pair: pair}, Elapsed: g.o.Now().Sub(g.began), Each: g.each(), Findings: found})
		}
	}
	return nil
}

func usable(a, b *Measured, allow bool) bool {
	return allow || len(a.Invalid) == 0 && len(b.Invalid) == 0 && len(pairInvalid(a, b)) == 0
}

func (g *gate) valid() (a, b []*verdict.Run) {
	for i := range g.base {
		if usable(g.base[i], g.candidate[i], g.o.Compare.AllowInvalid) {
			a, b = append(a, g.base[i].Run), append(b, g.candidate[i].Run)
		}
	}
	return a, b
}

// each is what a launch takes, by those made so far.
func (g *gate) each() time.Duration {
	if g.legs == 0 {
		return g.o.Each
	}
	return g.made / time.Duration(g.legs)
}

// leg makes one launch, again where it was invalid. ok is false where the budget does not allow it.
func (g *gate) leg(ctx context.Context, pair int, arm Arm) (m *Measured, ok bool, err error) {
	for try := 1; try <= g.o.Tries; try++ {
		l := Leg{pair, arm, try}
		resumed := false
		if g.o.Done != nil {
			if m, resumed, err = g.o.Done(l); err != nil {
				return nil, false, err
			}
		}
		elapsed := g.o.Now().Sub(g.began)
		if !resumed && g.o.Budget > 0 && elapsed+g.each() > g.o.Budget {
			return nil, false, nil
		}
		if g.o.Progress != nil {
			g.o.Progress(GateProgress{Leg: l, Resumed: resumed, Elapsed: elapsed, Each: g.each()})
		}
		if !resumed {
			if err := ctx.Err(); err != nil {
				return nil, false, err
			}
			from := g.o.Now()
			if m, err = g.launch(ctx, l); err != nil {
				return nil, false, fmt.Errorf("pair %d, %s: %w", pair, arm, err)
			}
			g.made += g.o.Now().Sub(from)
			g.legs++
		}
		if len(m.Invalid) == 0 || g.o.Compare.AllowInvalid {
			return m, true, nil
		}
	}
	return m, true, nil
}

// report judges what was measured.
func (g *gate) report() (Report, error) {
	r, a, b, err := newReport(g.base, g.candidate, g.o.Compare)
	if err != nil {
		return r, err
	}
	r.Method = fmt.Sprintf("fresh launches in pairs, looks at %s", looks(g.seq.Plan))
	if r.Pairs == 0 {
		r.Verdict = verdict.Invalid
		r.next()
		return r, nil
	}
	if g.o.Compare.Policy.Rule != "" {
		r.Policy = g.o.Compare.Policy.String()
		r.Findings, r.PolicyNote, err = g.o.Compare.Policy.Decide(a, b, g.o.Compare.metrics(), g.o.Compare.Past)
	} else {
		r.Findings, err = g.seq.Last(a, b)
	}
	if err != nil {
		return r, err
	}
	r.Alpha = g.seq.Spent()
	r.judge()
	return r, nil
}

func looks(plan []verdict.Look) string {
	s := ""
	for i, l := range plan {
		switch {
		case i == 0:
		case i == len(plan)-1:
			s += " and "
		default:
			s += ", "
		}
		s += fmt.Sprint(l.Pairs)
	}
	return s + " pairs"
}
