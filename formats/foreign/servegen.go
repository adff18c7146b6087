package foreign

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// servegen is ServeGen's form: a pool of clients, each with a table of windows (start, rate, coefficient of variation, distribution and its
// two parameters) and a JSON file of length distributions by longer windows. The files of a client are paired by what comes before
// "-trace" and "-dataset" in their names.
//
// It is expanded to requests: in each window a renewal process of the fitted shape at the stated rate, which goes on from window to window.
// Input and output are drawn apart, the number of requests in a window is left to chance, and clients do not start together.

// serveClient is one client of the pool.
type serveClient struct {
	name    string
	windows []serveWindow
	lengths []serveLengths // by start
}

type serveWindow struct {
	start, rate float64 // seconds, requests a second
	gamma       bool    // else Weibull
	shape       float64
}

type serveLengths struct {
	start                 float64
	input, output, reason pmf
}

const serveWindowSeconds = 600

// pmf is a discrete distribution: values and what they add up to.
type pmf struct {
	values []float64
	sums   []float64
}

// draw returns a value, NaN from an empty distribution. The sum need not be 1.
func (p pmf) draw(r *rand.Rand) float64 {
	if len(p.values) == 0 {
		return math.NaN()
	}
	u := r.Float64() * p.sums[len(p.sums)-1]
	i := sort.Search(len(p.sums), func(i int) bool { return p.sums[i] > u })
	return p.values[min(i, len(p.values)-1)]
}

// readPMF reads what Python prints of a dictionary of numbers: {60: 0.2179, 61: 0.01}.
func readPMF(s string) (pmf, error) {
	var p pmf
	s = strings.TrimSpace(s)
	if !strings.HasPrefix(s, "{") || !strings.HasSuffix(s, "}") {
		return p, fmt.Errorf("%q is no distribution", shortened(s))
	}
	sum := 0.0
	for pair := range strings.SplitSeq(s[1:len(s)-1], ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, ":")
		value, err1 := strconv.ParseFloat(strings.Trim(strings.TrimSpace(k), `'"`), 64)
		weight, err2 := strconv.ParseFloat(strings.TrimSpace(v), 64)
		if !ok || err1 != nil || err2 != nil || !(weight >= 0) || math.IsInf(weight, 0) || math.IsNaN(value) {
			return p, fmt.Errorf("%q is no value and weight", shortened(pair))
		}
		if weight > 0 {
			sum += weight
			p.values, p.sums = append(p.values, value), append(p.sums, sum)
		}
	}
	return p, nil
}

// looksLikeServeGen finds a row of a client's table, or the lengths of its windows.
func looksLikeServeGen(head []byte) bool {
	line, _, _ := strings.Cut(string(head), "\n")
	if f := strings.Split(strings.TrimSpace(line), ","); len(f) == 6 && (f[3] == "Gamma" || f[3] == "Weibull" || f[3] == "") {
		_, err1 := strconv.ParseFloat(f[0], 64)
		_, err2 := strconv.ParseFloat(f[1], 64)
		return err1 == nil && err2 == nil
	}
	for k := range firstObject(head) {
		if _, err := strconv.ParseFloat(k, 64); err == nil {
			return strings.Contains(string(head), `_tokens"`)
		}
	}
	return false
}

// serveGen pairs the files and expands the pool.
func serveGen(ins []*input) (formats.Decoder, error) {
	clients := map[string]*serveClient{}
	for _, in := range ins {
		name, kind := serveName(in.name)
		c := clients[name]
		if c == nil {
			c = &serveClient{name: name}
			clients[name] = c
		}
		b, err := readWhole(in)
		if err != nil {
			return nil, err
		}
		if kind == "dataset" {
			err = c.readLengths(b)
		} else {
			err = c.readWindows(string(b))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", in.name, err)
		}
	}
	h, o := ins[0].header, ins[0].o
	h.TimeBase = "relative"
	h.Extra = map[string]any{"seed": o.Seed, "clients": len(clients)}
	from, span := o.From.Seconds(), o.Duration.Seconds()
	if span == 0 {
		span = time.Hour.Seconds()
	}
	var flows []*serveFlow
	for i, name := range slices.Sorted(maps.Keys(clients)) {
		c := clients[name]
		if len(c.windows) == 0 || len(c.lengths) == 0 {
			return nil, fmt.Errorf("client %s: it needs both its trace and its dataset file", name)
		}
		f := &serveFlow{c: c, r: rand.New(rand.NewPCG(o.Seed, uint64(i))), tenant: ins[0].hash.of("tenant", name), from: from, to: from + span}
		if f.first(); f.at < f.to {
			flows = append(flows, f)
		}
	}
	return func(x *formats.Exchange) error {
		if len(flows) == 0 {
			return io.EOF
		}
		least := 0
		for i := range flows {
			if flows[i].at < flows[least].at {
				least = i
			}
		}
		f := flows[least]
		err := f.fill(x)
		if f.next(); f.at >= f.to {
			flows = slices.Delete(flows, least, least+1)
		}
		return err
	}, nil
}

// serveName takes a file's name apart: chunk-7-trace.csv is client chunk-7's trace.
func serveName(file string) (client, kind string) {
	base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(file, ".gz"), ".csv"), ".json")
	if c, ok := strings.CutSuffix(base, "-dataset"); ok {
		return c, "dataset"
	}
	return strings.TrimSuffix(base, "-trace"), "trace"
}

func (c *serveClient) readWindows(s string) error {
	row := 0
	for line := range strings.Lines(s) {
		row++
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		f := strings.Split(line, ",")
		if len(f) != 6 {
			return fmt.Errorf("row %d: %d fields, not 6", row, len(f))
		}
		var w serveWindow
		var err error
		if w.start, err = strconv.ParseFloat(f[0], 64); err != nil {
			return fmt.Errorf("row %d: %q is no time", row, shortened(f[0]))
		}
		if f[3] == "" { // the client is idle
			c.windows = append(c.windows, w)
			continue
		}
		if w.rate, err = strconv.ParseFloat(f[1], 64); err != nil || !(w.rate >= 0 && w.rate < 1e6) {
			return fmt.Errorf("row %d: %q is no rate", row, shortened(f[1]))
		}
		if w.shape, err = strconv.ParseFloat(f[4], 64); err != nil || !(w.shape > 0.01 && w.shape < 1e6) {
			return fmt.Errorf("row %d: %q is no shape", row, shortened(f[4]))
		}
		switch f[3] {
		case "Gamma":
			w.gamma = true
		case "Weibull":
		default:
			return fmt.Errorf("row %d: distribution %q", row, shortened(f[3]))
		}
		c.windows = append(c.windows, w)
	}
	slices.SortStableFunc(c.windows, func(a, b serveWindow) int { return int(math.Copysign(1, a.start-b.start)) })
	return nil
}

func (c *serveClient) readLengths(b []byte) error {
	var windows map[string]map[string]string
	if err := json.Unmarshal(b, &windows); err != nil {
		return plainJSON(err)
	}
	for start, fields := range windows {
		l := serveLengths{}
		var err error
		if l.start, err = strconv.ParseFloat(start, 64); err != nil {
			return fmt.Errorf("%q is no window", shortened(start))
		}
		for _, f := range []struct {
			to    *pmf
			names []string
		}{{&l.input, []string{"input_tokens", "text_tokens"}}, {&l.output, []string{"output_tokens"}}, {&l.reason, []string{"reason_ratio"}}} {
			for _, n := range f.names {
				if s, ok := fields[n]; ok && len(f.to.values) == 0 {
					if *f.to, err = readPMF(s); err != nil {
						return fmt.Errorf("window %s, %s: %w", start, n, err)
					}
				}
			}
		}
		c.lengths = append(c.lengths, l)
	}
	slices.SortFunc(c.lengths, func(a, b serveLengths) int { return int(math.Copysign(1, a.start-b.start)) })
	return nil
}

// serveFlow is one client's requests in order.
type serveFlow struct {
	c        *serveClient
	r        *rand.Rand
	tenant   formats.Null[formats.Hash]
	from, to float64
	window   int
	at       float64 // of the next request, in seconds
	row      int64
}

// gap draws the time to the next request in the units of a mean gap.
func (w serveWindow) gap(r *rand.Rand) float64 {
	if w.gamma {
		return gammaDraw(r, w.shape) / w.shape
	}
	return math.Pow(r.ExpFloat64(), 1/w.shape) / math.Gamma(1+1/w.shape)
}

// gammaDraw draws from the Gamma distribution of scale 1 by Marsaglia and Tsang's method (2000).
func gammaDraw(r *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gammaDraw(r, shape+1) * math.Pow(1-r.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-r.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// first places the first request: somewhere within a first gap, so that clients do not start together.
func (f *serveFlow) first() {
	f.at = f.from
	for f.window < len(f.c.windows) && f.c.windows[f.window].start+serveWindowSeconds <= f.from {
		f.window++
	}
	f.walk(f.r.Float64() * f.draw())
}

func (f *serveFlow) next() { f.walk(f.draw()) }

// draw is a gap of the present window, in mean gaps.
func (f *serveFlow) draw() float64 {
	if f.window >= len(f.c.windows) || f.c.windows[f.window].rate == 0 {
		return f.r.ExpFloat64()
	}
	return f.c.windows[f.window].gap(f.r)
}

// walk goes on by some mean gaps, each window passing as many of them as its rate makes in its time: the process goes on over the windows'
// edges, and stands still where the client is idle.
func (f *serveFlow) walk(gaps float64) {
	for f.window < len(f.c.windows) {
		w := f.c.windows[f.window]
		end := w.start + serveWindowSeconds
		f.at = max(f.at, w.start)
		if here := max(end-f.at, 0) * w.rate; gaps < here {
			f.at += gaps / w.rate
			return
		} else {
			gaps -= here
		}
		f.at = end
		f.window++
	}
	f.at = math.Inf(1)
}

func (f *serveFlow) fill(x *formats.Exchange) error {
	f.row++
	i := sort.Search(len(f.c.lengths), func(i int) bool { return f.c.lengths[i].start > f.at }) - 1
	l := f.c.lengths[max(i, 0)]
	in, out := l.input.draw(f.r), l.output.draw(f.r)
	if !(in >= 0 && in < 1e15 && out >= 0 && out < 1e15) { // none, or none that can be
		return &formats.RowError{Row: f.row, Reason: "no_lengths"}
	}
	x.ArrivalUnixNS, x.TenantID = int64(f.at*1e9), f.tenant
	x.InputTokens, x.InputTokensSource = formats.Of(int64(in)), formats.TokensDrawn
	x.OutputTokens, x.OutputTokensSource = formats.Of(int64(out)), formats.TokensDrawn
	if ratio := l.reason.draw(f.r); ratio >= 0 && ratio <= 1 {
		x.ReasoningTokens = formats.Of(int64(math.Round(out * ratio)))
	}
	x.Drawn = formats.Of(formats.DrawnArrival | formats.DrawnInput | formats.DrawnOutput)
	return nil
}
