package workload

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The functions here read the short forms in which a person writes a workload down: "gamma:cv=2", "lognormal:p50=700,p99=8000".

// split reads "name:key=value,key=value".
func split(text string) (name string, params map[string]string, err error) {
	name, rest, _ := strings.Cut(strings.TrimSpace(text), ":")
	params = map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		key, value, _ := strings.Cut(part, "=")
		if value == "" { // a bare value
			key, value = "", key
		}
		if _, twice := params[key]; twice {
			return name, nil, fmt.Errorf("%q: %s stands twice", text, key)
		}
		params[key] = value
	}
	return name, params, nil
}

// fields fills numbers in from parameters; a duration like 10s is seconds, a percentage a share.
func fields(text string, params map[string]string, into map[string]*float64) error {
	for key, value := range params {
		place, ok := into[key]
		if !ok {
			known := make([]string, 0, len(into))
			for k := range into {
				known = append(known, k)
			}
			if len(known) == 0 {
				return fmt.Errorf("%q: %s is not known here: it takes no parameters", text, key)
			}
			return fmt.Errorf("%q: %s is not known here (%s are)", text, key, strings.Join(sorted(known), ", "))
		}
		v, err := number(value)
		if err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		*place = v
	}
	return nil
}

func sorted(s []string) []string {
	for i := range s { // a handful
		for j := i; j > 0 && s[j] < s[j-1]; j-- {
			s[j], s[j-1] = s[j-1], s[j]
		}
	}
	return s
}

func number(s string) (float64, error) {
	if digits, ok := strings.CutSuffix(s, "%"); ok {
		v, err := strconv.ParseFloat(digits, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is no percentage", s)
		}
		return v / 100, nil
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return 0, fmt.Errorf("%q is not finite", s)
		}
		return v, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is neither a number nor a duration", s)
	}
	return d.Seconds(), nil
}

// ParseArrival reads an arrival process of the given mean rate: constant, poisson, gamma:cv=2, weibull:cv=2, mmpp:burst=10,on=10s,off=50s,
// ramp:from=0.5,to=2 (multiples of the rate, over the given duration in seconds), diurnal:peak=4,period=24h.
func ParseArrival(text string, rate, duration float64) (Arrival, error) {
	name, params, err := split(text)
	if err != nil {
		return Arrival{}, fmt.Errorf("arrival %w", err)
	}
	a := Arrival{Family: name, Rate: rate}
	into := map[string]*float64{}
	switch name {
	case Gamma, Weibull:
		a.CV = 1
		into["cv"] = &a.CV
	case MMPP:
		a.Burst, a.On, a.Off = 10, 10, 50
		into["burst"], into["on"], into["off"] = &a.Burst, &a.On, &a.Off
	case Ramp:
		a.From, a.To, a.Over = 0, 2, duration
		into["from"], into["to"], into["over"] = &a.From, &a.To, &a.Over
	case Diurnal:
		a.Peak, a.Period = 4, 86400
		into["peak"], into["period"] = &a.Peak, &a.Period
	}
	if err := fields(text, params, into); err != nil {
		return a, fmt.Errorf("arrival %w", err)
	}
	return a, a.Validate()
}

// ParseLength reads a length distribution: fixed:512 (or 512), uniform:100-2000, exponential:mean=500, gamma:mean=500,cv=2,
// lognormal:p50=700,p99=8000, mixture:p50=700,p99=4000,share=5%,min=8000,alpha=1.5; each with max=. file:NAME takes the numbers that
// read returns for the name.
func ParseLength(text string, read func(name string) ([]float64, error)) (Length, error) {
	if rest, ok := strings.CutPrefix(text, "file:"); ok {
		values, err := read(rest)
		if err != nil {
			return Length{}, err
		}
		return TableOf(values)
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		text = Fixed + ":" + text
	}
	name, params, err := split(text)
	if err != nil {
		return Length{}, fmt.Errorf("length %w", err)
	}
	l := Length{Family: name}
	into := map[string]*float64{"max": &l.Max}
	switch name {
	case Fixed:
		into[""], into["mean"] = &l.Mean, &l.Mean
	case Exponential:
		into[""], into["mean"] = &l.Mean, &l.Mean
	case GammaLength:
		l.CV = 1
		into["mean"], into["cv"] = &l.Mean, &l.CV
	case Uniform:
		into["low"], into["high"] = &l.Low, &l.High
		if lo, hi, ok := strings.Cut(params[""], "-"); ok {
			delete(params, "")
			params["low"], params["high"] = lo, hi
		}
	case Lognormal, Mixture:
		into["p50"], into["p99"] = &l.P50, &l.P99
		if name == Mixture {
			into["share"], into["min"], into["alpha"] = &l.Share, &l.Min, &l.Alpha
		}
	}
	if err := fields(text, params, into); err != nil {
		return l, fmt.Errorf("length %w", err)
	}
	return l, l.Validate()
}

// defaultBlock is the size of prefix blocks that are made up, in tokens: a page of most servers.
const defaultBlock = 16

// defaultKeep is what is kept of a prompt that shrinks: its beginning and a summary.
const defaultKeep = 0.3

// ParseSessions reads what conversations and prompts have in common: sessions "turns=5,think=60s,token=20ms,max=32000,shrink=5%,keep=30%" and prefix
// "roots=10,share=40%,block=16". Either may be "". Both empty is nil: nothing is shared.
func ParseSessions(conversations, prefix string) (*SessionLaw, error) {
	if conversations == "" && prefix == "" {
		return nil, nil
	}
	l := SessionLaw{Turns: 1, Think: 60, PerToken: 0.02, Keep: defaultKeep, BlockSize: defaultBlock}
	roots, block, top := 0.0, float64(defaultBlock), 0.0
	for _, part := range []struct {
		text string
		into map[string]*float64
	}{
		{conversations, map[string]*float64{"turns": &l.Turns, "think": &l.Think, "token": &l.PerToken, "max": &top, "shrink": &l.Shrink, "keep": &l.Keep}},
		{prefix, map[string]*float64{"roots": &roots, "share": &l.RootShare, "block": &block}},
	} {
		_, params, err := split(":" + part.text)
		if err != nil {
			return nil, err
		}
		if err := fields(part.text, params, part.into); err != nil {
			return nil, err
		}
	}
	for _, v := range []struct {
		name  string
		value float64
	}{{"roots", roots}, {"block", block}, {"max", top}} {
		if !(v.value >= 0 && v.value <= 1e9) {
			return nil, fmt.Errorf("%s=%v: must be between 0 and 1e9", v.name, v.value)
		}
	}
	if roots == 0 && l.RootShare > 0 {
		roots = 1
	}
	l.Roots, l.BlockSize, l.MaxInput = int(roots), int(block), int64(top)
	return &l, l.validate()
}

// Written is a model from a few figures: one endless window. sessions may be nil.
func Written(a Arrival, input, output Length, sessions *SessionLaw) (*Model, error) {
	if sessions != nil && sessions.Turns > 1 {
		a.Rate /= sessions.Turns // what arrives by itself opens a conversation; the rate is that of all turns
	}
	m := &Model{Schema: ModelSchema, Source: "written", Clients: []Client{{Windows: []Window{{Arrival: a, Lengths: Lengths{InputLaw: &input, OutputLaw: &output}}}}}, Sessions: sessions}
	return m, m.Validate()
}

// Preset returns the input and output lengths of a preset: short, medium and long are 512, 2,048 and 8,192 input tokens with 128 output
// tokens.
func Preset(name string) (input, output Length, err error) {
	tokens, ok := map[string]float64{"short": 512, "medium": 2048, "long": 8192}[name]
	if !ok {
		return input, output, errors.New("there are the presets short, medium and long")
	}
	return Length{Family: Fixed, Mean: tokens}, Length{Family: Fixed, Mean: 128}, nil
}
