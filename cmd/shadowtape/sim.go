package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/sim"
)

// engineFlags are those that `sim` and `simulate` share.
type engineFlags struct {
	profile     string
	pages       int
	blockSize   int
	maxNumSeqs  int
	tokenBudget int
	seed        uint64
	slowdown    string
	noise       string
}

func (f *engineFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.profile, "profile", engine.Profiles()[0].Name, "model and GPU: a name (--list-profiles) or a profile file")
	fs.IntVar(&f.pages, "pages", 0, "pages of the KV cache (default: the profile's)")
	fs.IntVar(&f.blockSize, "block-size", 0, "tokens in a page (default: the profile's)")
	fs.IntVar(&f.maxNumSeqs, "max-num-seqs", 0, "sequences that run at once (default: the profile's)")
	fs.IntVar(&f.tokenBudget, "token-budget", 0, "tokens computed in one step (default: the profile's)")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of noise, faults and undetermined lengths")
	fs.StringVar(&f.slowdown, "slowdown", "", "factor on times: 1.15, or prefill=1.1,decode=1.2")
	fs.StringVar(&f.noise, "noise", "", "random factors, as standard deviations: launch=2%,step=1%")
}

// resolve reads the profile and applies the flags that change it.
func (f *engineFlags) resolve() (p engine.Profile, s engine.Slowdown, n engine.Noise, err error) {
	if strings.ContainsAny(f.profile, "./\\") && !isProfile(f.profile) {
		data, err := os.ReadFile(f.profile)
		if err != nil {
			return p, s, n, fmt.Errorf("read profile: %w", err)
		}
		if p, err = engine.ParseProfile(data); err != nil {
			return p, s, n, fmt.Errorf("%s: %w", f.profile, err)
		}
	} else if p, err = engine.FindProfile(f.profile); err != nil {
		return p, s, n, usageError(err, "--list-profiles shows them; a file needs a slash or a dot in its name")
	}
	for _, o := range []struct {
		flag  int
		field *int
	}{{f.pages, &p.Pages}, {f.blockSize, &p.PageSize}, {f.maxNumSeqs, &p.MaxSeqs}, {f.tokenBudget, &p.TokenBudget}} {
		if o.flag != 0 {
			*o.field = o.flag
		}
	}
	if err := p.Validate(); err != nil {
		return p, s, n, usageError(err, "")
	}
	if s, err = parseSlowdown(f.slowdown); err != nil {
		return p, s, n, usageError(err, "--slowdown 1.15, or --slowdown prefill=1.1,decode=1.2")
	}
	if n, err = parseNoise(f.noise); err != nil {
		return p, s, n, usageError(err, "--noise launch=2%,step=1%")
	}
	return p, s, n, nil
}

func isProfile(name string) bool {
	_, err := engine.FindProfile(name)
	return err == nil
}

// parseSlowdown reads one factor for everything, or prefill=F,decode=F.
func parseSlowdown(text string) (s engine.Slowdown, err error) {
	if text == "" {
		return s, nil
	}
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		s = engine.Slowdown{Prefill: v, Decode: v}
	} else {
		err := parsePairs(text, strconv64, map[string]*float64{"prefill": &s.Prefill, "decode": &s.Decode})
		if err != nil {
			return s, fmt.Errorf("slowdown: %w", err)
		}
	}
	for _, v := range []float64{s.Prefill, s.Decode} {
		if !(v >= 0 && v < 1e6) {
			return s, fmt.Errorf("slowdown %q: a factor must be positive", text)
		}
	}
	return s, nil
}

func strconv64(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

// parseNoise reads launch=SHARE,step=SHARE.
func parseNoise(text string) (n engine.Noise, err error) {
	if err := parsePairs(text, sim.ParseShare, map[string]*float64{"launch": &n.Launch, "step": &n.Step}); err != nil {
		return n, fmt.Errorf("noise: %w", err)
	}
	for _, v := range []float64{n.Launch, n.Step} {
		if !(v >= 0 && v < 1) {
			return n, fmt.Errorf("noise %q: a share is at least 0 and below 1", text)
		}
	}
	return n, nil
}

// parsePairs reads name=value pairs into the named places.
func parsePairs(text string, parse func(string) (float64, error), into map[string]*float64) error {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		place, ok := into[name]
		if !ok {
			return fmt.Errorf("%q is not known", part)
		}
		v, err := parse(value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		*place = v
	}
	return nil
}

func simCommand(a *app) *cobra.Command {
	var (
		f         engineFlags
		listen    string
		ttft, itl time.Duration
		faults    string
		stall     time.Duration
		emissions string
		states    string
		force     bool
		list      bool
	)
	c := &cobra.Command{
		Use:   "sim",
		Short: "Run a simulated inference server: OpenAI endpoints, vLLM's streams and metrics, no GPU",
		Long: "Run a simulated inference server. Its engine schedules as vLLM's does and takes step times from a linear model, or fixed times.\n" +
			"When it is ready it prints one line, its address. It runs until it is interrupted.",
		Example: "  shadowtape sim --listen 127.0.0.1:8000\n" +
			"  shadowtape sim --listen 127.0.0.1:0 --ttft 50ms --itl 10ms --emission-log emitted.jsonl\n" +
			"  shadowtape sim --profile llama-3.1-8b-h100 --slowdown decode=1.15 \\\n" +
			"    --noise launch=2%,step=1% --fault http429=1%,reset=0.5%",
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if list {
				return listProfiles(a.out)
			}
			p, slow, noise, err := f.resolve()
			if err != nil {
				return err
			}
			o := sim.Options{Profile: p, TTFT: ttft, ITL: itl, Seed: f.seed, Slowdown: slow, Noise: noise, StallTime: stall, Precise: true}
			o.Fixed = c.Flags().Changed("ttft") || c.Flags().Changed("itl")
			if o.Faults, err = sim.ParseFaults(faults); err != nil {
				return usageError(err, "--fault http429=1%,http503=1%,stall=1%,reset=1%,cut=1%,error=1%,html=1%")
			}
			if emissions == "" && states == "" {
				if err := o.Validate(); err != nil {
					return usageError(err, "")
				}
			}
			for _, log := range []string{emissions, states} {
				if log != "" {
					if err := writable(log, force); err != nil {
						return err
					}
				}
			}
			return a.serveSim(c.Context(), o, listen, emissions, states)
		},
	}
	fs := c.Flags()
	fs.StringVar(&listen, "listen", "127.0.0.1:8000", "address to serve on; port 0 takes a free one")
	f.add(fs)
	fs.BoolVar(&list, "list-profiles", false, "print the profiles and where their numbers come from")
	fs.DurationVar(&ttft, "ttft", 0, "fixed time to the first token instead of the profile's step times")
	fs.DurationVar(&itl, "itl", 0, "fixed time between tokens instead of the profile's step times")
	fs.StringVar(&faults, "fault", "", "faults as shares of requests: http<code>, html, stall, reset, cut, error")
	fs.DurationVar(&stall, "stall-time", 30*time.Second, "how long a stalled stream is silent")
	fs.StringVar(&emissions, "emission-log", "", "write the true time of every token, a JSON line a request")
	fs.StringVar(&states, "state-log", "", "write a CSV line a step: time, prefill tokens, decode sequences, pages, waiting")
	fs.BoolVar(&force, "force", false, "replace logs that are there")
	groupFlags(c,
		flagGroup{"Server", []string{"listen", "profile", "list-profiles", "pages", "block-size", "max-num-seqs", "token-budget"}},
		flagGroup{"Times", []string{"slowdown", "noise", "seed", "ttft", "itl"}},
		flagGroup{"Faults", []string{"fault", "stall-time"}},
		flagGroup{"What truly happened", []string{"emission-log", "state-log", "force"}})
	return c
}

func listProfiles(w io.Writer) error {
	for _, p := range engine.Profiles() {
		k := p.Coefficients
		_, err := fmt.Fprintf(w, "%s\n  %s; %d pages of %d tokens, %d sequences, %d tokens a step\n  step = %.3g ms + %.3g us/prompt token + %.3g us/sequence + %.3g us/1000 context tokens\n  %s\n",
			p.Name, p.Model, p.Pages, p.PageSize, p.MaxSeqs, p.TokenBudget, k.Fixed*1e3, k.PerPrefill*1e6, k.PerDecode*1e6, k.PerContext*1e9, p.Source)
		if err != nil {
			return err
		}
	}
	return nil
}

// serveSim runs a server until the context ends.
func (a *app) serveSim(ctx context.Context, o sim.Options, listen, emissions, states string) (err error) {
	for _, log := range []struct {
		name string
		to   *io.Writer
	}{{emissions, &o.EmissionLog}, {states, &o.StateLog}} {
		if log.name == "" {
			continue
		}
		file, err2 := os.Create(log.name)
		if err2 != nil {
			return fmt.Errorf("write log: %w", err2)
		}
		defer func() {
			if e := file.Close(); err == nil {
				err = e
			}
		}()
		*log.to = file
	}
	if err := o.Validate(); err != nil {
		return usageError(err, "")
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s, err := sim.New(o)
	if err != nil {
		l.Close()
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	if _, err := fmt.Fprintf(a.out, "http://%s\n", l.Addr()); err != nil {
		s.Close()
		return err
	}
	select {
	case <-ctx.Done():
		err = s.Close()
		if e := <-served; err == nil {
			err = e
		}
	case err = <-served:
		if e := s.Close(); err == nil {
			err = e
		}
	}
	return err
}
