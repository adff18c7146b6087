package workload

import (
	"errors"
	"fmt"
	"math"
)

// Arrival is a process of arrivals. Which fields a family reads stands with it; the others are 0.
type Arrival struct {
	Family string  `json:"family"`
	Rate   float64 `json:"rate_per_s"`         // mean; of all families
	CV     float64 `json:"cv,omitempty"`       // gamma, weibull: coefficient of variation of the gaps
	Burst  float64 `json:"burst,omitempty"`    // mmpp: rate while on ÷ rate while off; +Inf is no arrival while off, written as 0
	On     float64 `json:"on_s,omitempty"`     // mmpp: mean time on, seconds
	Off    float64 `json:"off_s,omitempty"`    // mmpp: mean time off, seconds
	From   float64 `json:"from,omitempty"`     // ramp: rate at the start, as a multiple of Rate
	To     float64 `json:"to,omitempty"`       // ramp: rate at the end, as a multiple of Rate
	Over   float64 `json:"over_s,omitempty"`   // ramp: from start to end, seconds
	Peak   float64 `json:"peak,omitempty"`     // diurnal: highest rate ÷ lowest rate
	Period float64 `json:"period_s,omitempty"` // diurnal: seconds; the lowest rate is at the start
}

// The families of arrivals.
const (
	Constant = "constant" // equal gaps
	Poisson  = "poisson"  // exponential gaps
	Gamma    = "gamma"    // gamma gaps
	Weibull  = "weibull"  // Weibull gaps
	MMPP     = "mmpp"     // Poisson whose rate jumps between two values, exponential times in each
	Ramp     = "ramp"     // Poisson whose rate grows or falls linearly, then stays
	Diurnal  = "diurnal"  // Poisson whose rate follows a sine
)

// Validate reports parameters that describe no process.
func (a Arrival) Validate() error {
	var errs []error
	positive := func(name string, v float64) {
		if !(v > 0) || math.IsInf(v, 0) {
			errs = append(errs, fmt.Errorf("arrival %s: %s %v must be positive", a.Family, name, v))
		}
	}
	within := func(name string, v, least, most float64) {
		if !(v >= least && v <= most) {
			errs = append(errs, fmt.Errorf("arrival %s: %s %v must be between %v and %v", a.Family, name, v, least, most))
		}
	}
	positive("rate", a.Rate)
	if a.Rate > maxRate {
		errs = append(errs, fmt.Errorf("arrival %s: rate %v is over %v a second", a.Family, a.Rate, maxRate))
	}
	switch a.Family {
	case Constant, Poisson:
	case Gamma:
		within("cv", a.CV, 1e-3, 1e3) // beyond, all arrivals come at one instant, and none after it
	case Weibull:
		within("cv", a.CV, 0.05, 20)
	case MMPP:
		within("on", a.On, 1e-9, 1e9)
		within("off", a.Off, 1e-9, 1e9)
		if a.Burst < 0 || math.IsNaN(a.Burst) {
			errs = append(errs, fmt.Errorf("arrival mmpp: burst %v must not be negative", a.Burst))
		}
		if (a.On+a.Off)*a.Rate < 1e-6 {
			errs = append(errs, fmt.Errorf("arrival mmpp: %v s on and %v s off: a million times from one arrival to the next", a.On, a.Off))
		}
	case Ramp:
		within("duration", a.Over, 1e-9, maxSeconds)
		if a.From < 0 || a.To < 0 || a.From+a.To == 0 {
			errs = append(errs, fmt.Errorf("arrival ramp: from %v to %v: must not be negative, nor both 0", a.From, a.To))
		}
	case Diurnal:
		within("period", a.Period, 1e-3, maxSeconds)
		if !(a.Peak >= 1) || math.IsInf(a.Peak, 0) {
			errs = append(errs, fmt.Errorf("arrival diurnal: peak %v must be at least 1", a.Peak))
		}
	default:
		errs = append(errs, fmt.Errorf("arrival %q: there are constant, poisson, gamma, weibull, mmpp, ramp and diurnal", a.Family))
	}
	return errors.Join(errs...)
}

// Rates are the two rates of an mmpp, per second: off and on.
func (a Arrival) Rates() (off, on float64) {
	share := a.On / (a.On + a.Off)
	if a.Burst == 0 || math.IsInf(a.Burst, 1) {
		return 0, a.Rate / share
	}
	off = a.Rate / (float64(share*a.Burst) + 1 - share)
	return off, float64(off * a.Burst)
}

// IDC is the index of dispersion of counts over windows of the given seconds: the variance of the number of arrivals ÷ its mean, in
// closed form. For gamma and weibull it is the limit of long windows, CV²; for ramp and diurnal, whose windows differ, it is NaN.
func (a Arrival) IDC(window float64) float64 {
	switch a.Family {
	case Constant:
		return 0
	case Poisson:
		return 1
	case Gamma, Weibull:
		return a.CV * a.CV
	case MMPP:
		// The rate is a two-state Markov chain with covariance p(1-p)(on-off)² exp(-rt) (Fischer and Meier-Hellstern 1993).
		off, on := a.Rates()
		p := a.On / (a.On + a.Off)
		r := 1/a.On + 1/a.Off
		return 1 + 2*p*(1-p)*(on-off)*(on-off)/(a.Rate*r)*(1-(1-math.Exp(-r*window))/(r*window))
	}
	return math.NaN()
}

// clock draws the gaps of an arrival process, in nanoseconds.
type clock struct {
	a       Arrival
	src     source
	now     float64 // seconds
	shape   float64 // gamma, weibull
	scale   float64 // weibull: 1 ÷ mean of the standard law
	on      bool    // mmpp
	left    float64 // mmpp: seconds in this state
	rateOn  float64
	rateOff float64
}

func newClock(a Arrival, src source) *clock {
	c := &clock{a: a, src: src}
	switch a.Family {
	case Gamma:
		c.shape = 1 / float64(a.CV*a.CV)
	case Weibull:
		c.shape = weibullShape(a.CV)
		c.scale = 1 / rounded(math.Gamma(1+1/c.shape))
	case MMPP:
		c.rateOff, c.rateOn = a.Rates()
		c.on = c.src.uniform() < a.On/(a.On+a.Off)
		c.left = c.src.exponential() * c.stay()
	}
	return c
}

func (c *clock) stay() float64 {
	if c.on {
		return c.a.On
	}
	return c.a.Off
}

// gap is the time from the last arrival (or the start) to the next, in seconds.
func (c *clock) gap() float64 {
	switch c.a.Family {
	case Constant:
		return 1 / c.a.Rate
	case Poisson:
		return c.src.exponential() / c.a.Rate
	case Gamma:
		return c.src.gamma(c.shape) / c.a.Rate
	case Weibull:
		return float64(c.scale*exp(ln(c.src.exponential())/c.shape)) / c.a.Rate
	case MMPP:
		return c.modulated()
	}
	return c.thinned()
}

// modulated walks through the states of an mmpp until one brings an arrival.
func (c *clock) modulated() float64 {
	waited := 0.0
	for {
		rate := c.rateOff
		if c.on {
			rate = c.rateOn
		}
		if rate > 0 {
			if g := c.src.exponential() / rate; g < c.left {
				c.left -= g
				return waited + g
			}
		}
		waited += c.left
		c.on = !c.on
		c.left = float64(c.src.exponential() * c.stay())
	}
}

// thinned draws from a Poisson process of the highest rate and keeps each arrival with its share of it.
func (c *clock) thinned() float64 {
	start := c.now
	for {
		peak := max(c.a.From, c.a.To) * c.a.Rate
		if c.a.Family == Diurnal {
			peak = float64(c.a.Rate*2*c.a.Peak) / (c.a.Peak + 1)
		}
		c.now += c.src.exponential() / peak
		if c.src.uniform()*peak < c.rate(c.now) {
			return c.now - start
		}
		if c.a.Family == Ramp && c.a.To == 0 && c.now > c.a.Over {
			return math.Inf(1)
		}
	}
}

// rate is the rate at a time, of ramp and diurnal.
func (c *clock) rate(t float64) float64 {
	if c.a.Family == Ramp {
		f := min(t/c.a.Over, 1)
		return float64(c.a.Rate * (c.a.From + float64((c.a.To-c.a.From)*f)))
	}
	// Rate (1 - d cos), d from the ratio of the extremes.
	d := (c.a.Peak - 1) / (c.a.Peak + 1)
	return float64(c.a.Rate * (1 - float64(d*cosine(t/c.a.Period))))
}

// cosine is cos(2 pi x), exactly the same everywhere: by its series around the nearest half turn.
func cosine(x float64) float64 {
	x -= math.Floor(x)
	x = math.Abs(float64(2*x) - 1) // 1 at full turns, 0 at the half turn: cos(2 pi x) = -cos(pi |2x-1|)
	flip := -1.0
	if x > 0.5 {
		x, flip = 1-x, 1
	}
	y := float64(math.Pi * x)
	y = float64(y * y)
	sum := 1.0
	for n := 18; n >= 2; n -= 2 {
		sum = 1 - float64(float64(y*sum)/float64(n*(n-1)))
	}
	return float64(flip * sum)
}

// weibullShape finds the shape c with CV² = Γ(1+2/c)/Γ(1+1/c)² − 1.
func weibullShape(cv float64) float64 {
	lo, hi := 0.05, 50.0
	for range 200 {
		c := (lo + hi) / 2
		l2, _ := math.Lgamma(1 + 2/c)
		l1, _ := math.Lgamma(1 + 1/c)
		if math.Expm1(l2-2*l1) > cv*cv {
			lo = c
		} else {
			hi = c
		}
	}
	return rounded((lo + hi) / 2)
}

// rounded drops the last digits, in which machines may differ.
func rounded(x float64) float64 { return math.Round(x*1e9) / 1e9 }
