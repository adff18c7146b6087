package fit

import (
	"math"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/optimize"

	"github.com/shadowtape/shadowtape/internal/workload"
)

// maxGaps bounds how many gaps a family is fitted to; the first are taken.
const maxGaps = 4000

// minGaps is the least number of gaps that tell one family from another.
const minGaps = 20

// Arrival chooses among poisson, gamma, weibull and mmpp the family that explains gaps best: the one with the least Bayesian
// information criterion, k ln n - 2 ln L, each at its most likely parameters. The gaps are those between the arrivals of one stretch of
// time, in seconds and in order. Few gaps are called poisson. Gaps of 0 are taken as half the smallest other: the clock's resolution.
func Arrival(gaps []float64) workload.Arrival {
	gaps = gaps[:min(len(gaps), maxGaps)]
	n := float64(len(gaps))
	sum, logs, squares := 0.0, 0.0, 0.0
	g := make([]float64, len(gaps))
	smallest := math.Inf(1)
	for _, x := range gaps {
		if x > 0 {
			smallest = min(smallest, x)
		}
	}
	if math.IsInf(smallest, 1) {
		smallest = 1e-6
	}
	for i, x := range gaps {
		g[i] = max(x, smallest/2)
		sum += g[i]
		logs += math.Log(g[i])
		squares += g[i] * g[i]
	}
	if len(g) < minGaps {
		return workload.Arrival{Family: workload.Poisson, Rate: max(n/max(sum, 1e-6), 1e-9)}
	}
	mean := sum / n
	rate := 1 / mean
	best := workload.Arrival{Family: workload.Poisson, Rate: rate}
	least := math.Log(n) - 2*(n*math.Log(rate)-n)
	try := func(a workload.Arrival, parameters, logLikelihood float64) {
		if bic := parameters*math.Log(n) - 2*logLikelihood; bic < least && a.Validate() == nil {
			best, least = a, bic
		}
	}
	shape, l := fitGamma(mean, logs/n, n)
	try(workload.Arrival{Family: workload.Gamma, Rate: rate, CV: 1 / math.Sqrt(shape)}, 2, l)
	if c, l := fitWeibull(g, logs); c >= 0.2 {
		l2, _ := math.Lgamma(1 + 2/c)
		l1, _ := math.Lgamma(1 + 1/c)
		try(workload.Arrival{Family: workload.Weibull, Rate: rate, CV: math.Sqrt(math.Expm1(l2 - 2*l1))}, 2, l)
	}
	if cv := math.Sqrt(squares/n-mean*mean) / mean; cv > 1.1 {
		a, l := fitMMPP(g, rate)
		try(a, 4, l)
	}
	return best
}

// fitGamma solves ln k - digamma(k) = ln mean - mean ln by Newton's method (Minka 2002).
func fitGamma(mean, meanLog, n float64) (shape, logLikelihood float64) {
	s := max(math.Log(mean)-meanLog, 1e-9)
	k := (3 - s + math.Sqrt((s-3)*(s-3)+24*s)) / (12 * s)
	for range 50 {
		h := 1e-5 * k
		slope := (mathext.Digamma(k+h) - mathext.Digamma(k-h)) / (2 * h)
		next := 1 / (1/k + (meanLog-math.Log(mean)+math.Log(k)-mathext.Digamma(k))/(k*k*(1/k-slope)))
		if math.Abs(next-k) < 1e-10*k || !(next > 0) {
			break
		}
		k = next
	}
	lg, _ := math.Lgamma(k)
	return k, n * ((k-1)*meanLog - k - k*math.Log(mean/k) - lg)
}

// fitWeibull solves the likelihood equation for the shape by bisection.
func fitWeibull(g []float64, logs float64) (shape, logLikelihood float64) {
	n := float64(len(g))
	lo, hi := 0.05, 20.0
	for range 60 {
		c := (lo + hi) / 2
		num, den := 0.0, 0.0
		for _, x := range g {
			p := math.Pow(x, c)
			num += p * math.Log(x)
			den += p
		}
		if num/den-1/c-logs/n > 0 {
			hi = c
		} else {
			lo = c
		}
	}
	c := (lo + hi) / 2
	den := 0.0
	for _, x := range g {
		den += math.Pow(x, c)
	}
	scale := math.Pow(den/n, 1/c)
	return c, n*(math.Log(c)-c*math.Log(scale)) + (c-1)*logs - n
}

// fitMMPP maximizes the likelihood of a two-state Markov-modulated Poisson process by the simplex method, from starts that take on and
// off to change within a few and within many gaps.
func fitMMPP(g []float64, rate float64) (workload.Arrival, float64) {
	best, most := workload.Arrival{}, math.Inf(-1)
	for _, gaps := range []float64{5, 40} {
		problem := optimize.Problem{Func: func(v []float64) float64 {
			a := mmppOf(v, rate)
			return -likelihood(g, a)
		}}
		result, err := optimize.Minimize(problem, []float64{math.Log(8), math.Log(gaps / rate), math.Log(4 * gaps / rate), 0}, &optimize.Settings{FuncEvaluations: 250}, &optimize.NelderMead{SimplexSize: 0.7})
		if result == nil || err != nil && result.F == 0 {
			continue
		}
		if l := -result.F; l > most {
			best, most = mmppOf(result.X, rate), l
		}
	}
	// The rate is the data's; what the likelihood made of it is its own mean, which long quiet times pull about.
	best.Rate = rate
	return best, most
}

// mmppOf makes a process of logarithms: burst - 1, time on, time off, rate ÷ the data's.
func mmppOf(v []float64, rate float64) workload.Arrival {
	bound := func(x float64) float64 { return math.Exp(min(max(x, -15), 15)) }
	return workload.Arrival{Family: workload.MMPP, Rate: rate * bound(v[3]), Burst: 1 + bound(v[0]), On: bound(v[1]), Off: bound(v[2])}
}

// likelihood is the logarithm of the density of gaps from one arrival on (Fischer and Meier-Hellstern 1993): a vector over the states
// goes through exp((Q - L) g) L for every gap g.
func likelihood(gaps []float64, a workload.Arrival) float64 {
	off, on := a.Rates()
	up, down := 1/a.Off, 1/a.On // from off to on, and back
	m00, m01, m10, m11 := -(off + up), up, down, -(on + down)
	s := (m00 + m11) / 2
	d := math.Sqrt((m00-m11)*(m00-m11)/4 + m01*m10)
	// The state that an arrival finds.
	p0, p1 := a.Off*off, a.On*on
	if p0+p1 == 0 {
		return math.Inf(-1)
	}
	p0, p1 = p0/(p0+p1), p1/(p0+p1)
	sum := 0.0
	for _, g := range gaps {
		e1, e2 := math.Exp((s+d)*g), math.Exp((s-d)*g)
		c, h := (e1+e2)/2, g
		if d > 1e-12 {
			h = (e1 - e2) / (2 * d)
		} else {
			h = g * e1
		}
		q0 := p0*(c+h*(m00-s)) + p1*h*m10
		q1 := p0*h*m01 + p1*(c+h*(m11-s))
		q0, q1 = max(q0, 0)*off, max(q1, 0)*on
		t := q0 + q1
		if !(t > 0) {
			return math.Inf(-1)
		}
		sum += math.Log(t)
		p0, p1 = q0/t, q1/t
	}
	return sum
}
