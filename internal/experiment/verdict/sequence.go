package verdict

import "slices"

// Sequence is a sequential test over the looks: what is decided at one look stays decided, so that looking again cannot change it by
// chance. The zero value with Options set is ready; not safe for concurrent use.
type Sequence struct {
	Options Options // Alpha and Fixed are the sequence's own
	Plan    []Look  // nil: Looks, by whether the gated metrics that have A/A pairs have enough of them

	looked   int     // looks taken
	spent    float64 // of the level
	findings []Finding
}

// Next looks if as many pairs as the next look wants are there; it returns what is known so far and whether a look was taken.
func (s *Sequence) Next(base, candidate []*Run) ([]Finding, bool, error) {
	s.plan()
	pairs := min(len(base), len(candidate))
	if s.looked >= len(s.Plan) || pairs < s.Plan[s.looked].Pairs {
		return s.findings, false, nil
	}
	for s.looked+1 < len(s.Plan) && pairs >= s.Plan[s.looked+1].Pairs {
		s.looked++ // a look that was passed over is not made up for
	}
	alpha := s.Plan[s.looked].Alpha
	s.looked++
	err := s.look(base, candidate, alpha)
	return s.findings, true, err
}

func (s *Sequence) look(base, candidate []*Run, alpha float64) (err error) {
	o := s.Options
	o.Alpha, o.Fixed = alpha, map[string]Finding{}
	s.spent += alpha
	for _, f := range s.findings {
		if f.Gated && f.State != Inconclusive {
			o.Fixed[f.Metric] = f
		}
	}
	s.findings, err = Decide(base, candidate, o)
	return err
}

// Last looks once more with what is left of the level, where an end that has nothing to do with the figures, such as a budget, came
// between two looks. After the last planned look, or where nothing came in since the one before, it only returns what is known.
func (s *Sequence) Last(base, candidate []*Run) ([]Finding, error) {
	s.plan()
	pairs := min(len(base), len(candidate))
	if s.looked >= len(s.Plan) || pairs == 0 || s.Done() || s.looked > 0 && pairs <= s.Plan[s.looked-1].Pairs {
		return s.findings, nil
	}
	left := -s.spent
	for _, l := range s.Plan {
		left += l.Alpha
	}
	s.looked = len(s.Plan)
	err := s.look(base, candidate, left)
	return s.findings, err
}

// Spent is how much of the level the looks so far have used.
func (s *Sequence) Spent() float64 { return s.spent }

func (s *Sequence) plan() {
	if s.Plan != nil {
		return
	}
	with, short := 0, 0 // gated metrics whose A/A pairs make a prior, and those that have some and too few
	for _, m := range s.Options.Metrics {
		switch n := len(s.Options.Past[m.Name].AA); {
		case !m.Gate || n == 0: // a metric that was never measured, such as the attainment of limits that were not given
		case n < priorLeast:
			short++
		default:
			with++
		}
	}
	s.Plan = Looks(with > 0 && short == 0)
}

// priorLeast is how many A/A differences make a prior: below, three pairs do not know their own deviation.
const priorLeast = 10

// Done reports whether every gated metric is decided or the last look was taken.
func (s *Sequence) Done() bool {
	s.plan()
	if s.looked >= len(s.Plan) {
		return true
	}
	return len(s.findings) > 0 && !slices.ContainsFunc(s.findings, func(f Finding) bool { return f.Gated && f.State == Inconclusive })
}

// Most is the number of pairs of the last look.
func (s *Sequence) Most() int {
	s.plan()
	return s.Plan[len(s.Plan)-1].Pairs
}

// NextLook is the number of pairs of the next look; 0 after the last.
func (s *Sequence) NextLook() int {
	s.plan()
	if s.looked >= len(s.Plan) {
		return 0
	}
	return s.Plan[s.looked].Pairs
}
