package engine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Coefficients are the linear model of a step's time. All are in seconds.
type Coefficients struct {
	Fixed      float64 `json:"fixed_s"`       // of any step: weights read, launches, sampling, scheduling
	PerPrefill float64 `json:"per_prefill_s"` // per prompt token
	PerDecode  float64 `json:"per_decode_s"`  // per decoding sequence
	PerContext float64 `json:"per_context_s"` // per token that attention reads from pages
}

// Slowdown multiplies step times; 0 stands for 1. Prefill applies to the time of prompt tokens, Decode to the time of decoding sequences
// and of context; the fixed part takes Decode where anything decodes, else Prefill.
type Slowdown struct {
	Prefill float64 `json:"prefill"`
	Decode  float64 `json:"decode"`
}

func (s Slowdown) factors() (prefill, decode float64) {
	prefill, decode = s.Prefill, s.Decode
	if prefill == 0 {
		prefill = 1
	}
	if decode == 0 {
		decode = 1
	}
	return prefill, decode
}

// Noise is what repeated measurements of one deployment differ by. Factors are log-normal with mean 1.
type Noise struct {
	Launch float64 `json:"launch"` // standard deviation of the logarithm of one factor for the engine's whole life
	Step   float64 `json:"step"`   // the same for each step
}

// seconds is the time of a step without noise.
func (c Coefficients) seconds(s Slowdown, prefill, decode, context int) float64 {
	sp, sd := s.factors()
	fixed := c.Fixed * sd
	if decode == 0 {
		fixed = c.Fixed * sp
	}
	return fixed + c.PerPrefill*float64(prefill)*sp + (c.PerDecode*float64(decode)+c.PerContext*float64(context))*sd
}

func (c Coefficients) validate() error {
	for _, v := range []float64{c.Fixed, c.PerPrefill, c.PerDecode, c.PerContext} {
		if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("step time coefficients %+v: each must be finite and not negative", c)
		}
	}
	return nil
}

func validateNoise(s Slowdown, n Noise) error {
	var errs []error
	for _, v := range []float64{s.Prefill, s.Decode} {
		if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			errs = append(errs, fmt.Errorf("slowdown %v: must be positive", v))
		}
	}
	for _, v := range []float64{n.Launch, n.Step} {
		if !(v >= 0 && v < 1) {
			errs = append(errs, fmt.Errorf("noise %v: must be at least 0 and below 1", v))
		}
	}
	return errors.Join(errs...)
}

// jitter draws the noise of one engine.
type jitter struct {
	launch, step float64
	rng          *rand.Rand
}

func newJitter(n Noise, seed uint64) jitter {
	j := jitter{step: n.Step, rng: rand.New(rand.NewPCG(seed, 0x6a697474))}
	j.launch = j.factor(n.Launch)
	return j
}

func (j *jitter) factor(sigma float64) float64 {
	if sigma == 0 {
		return 1
	}
	return math.Exp(sigma*j.rng.NormFloat64() - sigma*sigma/2)
}

// duration turns a time without noise into one with it.
func (j *jitter) duration(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds * j.launch * j.factor(j.step) * 1e9))
}
