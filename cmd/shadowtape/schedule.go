package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// scheduleFlags say which part of a trace is played, and when what of it is due. Replay and simulate have them in common.
type scheduleFlags struct {
	window, spread, tenant, onlyModel, sessions string
	fill                                        string
	thin                                        []string
	speed, rate                                 float64
	duration, preroll, ramp, think              time.Duration
	loop, users                                 int
	maxRequests                                 int64
}

// register declares the flags; verb is what is done with the trace.
func (f *scheduleFlags) register(fl *pflag.FlagSet, verb string) {
	fl.Float64Var(&f.speed, "speed", 1, "play so many times as fast")
	fl.Float64Var(&f.rate, "rate", 0, "scale time to this many requests a second on average, instead of --speed")
	fl.StringVar(&f.window, "window", "", verb+" only this part of the trace, as `FROM..TO` from its start, such as 10m..40m")
	fl.DurationVar(&f.preroll, "preroll", 0, verb+" so much of the trace before the window as warm-up, and keep the cache it leaves")
	fl.IntVar(&f.loop, "loop", 1, "play the trace so many times; 0: until --duration or --max-requests")
	fl.StringArrayVar(&f.thin, "thin", nil, verb+" a `share` of the sessions, such as 0.1, or one server's share, as server=ID")
	fl.StringVar(&f.tenant, "tenant", "", verb+" only this tenant_id (16 hex digits)")
	fl.StringVar(&f.onlyModel, "only-model", "", verb+" only requests for this recorded model")
	fl.StringVar(&f.spread, "spread", "none", "uniform: spread arrivals within the ticks of a coarse clock; none: leave them")
	fl.StringVar(&f.fill, "fill", "auto", "what the trace does not say: auto: draw it from a model of the trace; `MODEL.json`: from this one (which also gives a batch its times); none: leave it")
	fl.DurationVar(&f.duration, "duration", 0, "end after this time (default: the whole trace)")
	fl.Int64Var(&f.maxRequests, "max-requests", 0, "end after so many requests (default: all)")
	fl.StringVar(&f.sessions, "sessions", "absolute", "absolute: turns at their recorded times; think-time: after the previous answer and the recorded think time")
	fl.IntVar(&f.users, "users", 0, "closed loop: so many users send one request after the other, whatever the recorded times")
	fl.DurationVar(&f.ramp, "ramp", 0, "over which the users begin")
	fl.DurationVar(&f.think, "think", 0, "between an answer and the user's next request")
}

// filling is how what a trace does not say is drawn.
func (f scheduleFlags) filling() (schedule.Fill, error) {
	switch f.fill {
	case "", "auto":
		return schedule.Fill{}, nil
	case "none":
		return schedule.Fill{Off: true}, nil
	}
	m, err := readModel(f.fill)
	return schedule.Fill{Model: m}, err
}

// generate is how much of a workload model is wanted: what the selection then cuts to size. Its rate is the model's to keep.
func (f scheduleFlags) generate(seed uint64) workload.Options {
	o := workload.Options{Seed: seed, Rate: f.rate}
	if f.maxRequests > 0 {
		o.Requests = 1 << 40 // the selection takes what it needs
	}
	if f.duration > 0 {
		from, _, _ := strings.Cut(f.window, "..")
		start, _ := time.ParseDuration(from) // selection reports it
		o.Seconds = start.Seconds() + f.duration.Seconds()*f.speed
	}
	return o
}

// selection is which part of the trace is played.
func (f scheduleFlags) selection(c *cobra.Command) (schedule.Selection, error) {
	sel := schedule.Selection{Tenant: f.tenant, Model: f.onlyModel, Preroll: f.preroll, Loops: f.loop, Rate: f.rate, Duration: f.duration, MaxRequests: f.maxRequests}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, name := range []string{"ramp", "think"} {
		if f.users == 0 && c.Flags().Changed(name) {
			bad("--%s is of --users, which is not given", name)
		}
	}
	if !(f.speed > 0) {
		bad("--speed %v is not positive", f.speed)
	}
	if sel.Speed = f.speed; f.rate > 0 && !c.Flags().Changed("speed") {
		sel.Speed = 0
	}
	if f.loop == 0 || f.users > 0 && !c.Flags().Changed("loop") && (f.duration > 0 || f.maxRequests > 0) {
		sel.Loops = -1 // users go on until they are told to stop
	}
	switch f.sessions {
	case "absolute":
	case "think-time":
		sel.ThinkTime = true
	default:
		bad("--sessions is absolute or think-time, not %q", f.sessions)
	}
	if f.loop < 0 {
		bad("--loop %d is negative", f.loop)
	}
	if f.spread != "uniform" && f.spread != "none" {
		bad("--spread is uniform or none, not %q", f.spread)
	}
	if f.window != "" {
		from, to, ok := strings.Cut(f.window, "..")
		var err1, err2 error
		if from != "" {
			sel.From, err1 = time.ParseDuration(from)
		}
		if to != "" {
			sel.To, err2 = time.ParseDuration(to)
		}
		if !ok || err1 != nil || err2 != nil {
			bad("--window wants FROM..TO, such as 10m..40m, not %q", f.window)
		}
	}
	for _, t := range f.thin {
		if id, ok := strings.CutPrefix(t, "server="); ok {
			sel.Server = id
			continue
		}
		v, err := strconv.ParseFloat(t, 64)
		if err != nil || !(v > 0 && v <= 1) {
			bad("--thin wants a share above 0 and up to 1, or server=ID, not %q", t)
			continue
		}
		sel.Thin = v
	}
	return sel, errors.Join(errors.Join(errs...), sel.Validate())
}
