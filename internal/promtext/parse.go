package promtext

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Sample is one value of one series.
type Sample struct {
	Name   string
	Labels string  // name="value" pairs, sorted by name, joined by commas, values escaped as on the page; "" where there are none
	Value  float64 // may be NaN or infinite
	UnixMS int64   // the page's own timestamp; 0 where it has none
}

// Page is what a scrape said.
type Page struct {
	Samples   []Sample          // in the page's order
	Types     map[string]string // family to type, as declared: counter, gauge, histogram, summary, untyped, info, …
	Bad       int               // lines that could not be read and were left out
	Over      int               // samples and types beyond MaxSamples, left out
	Truncated bool              // the last line was cut
	EOF       bool              // an OpenMetrics page that says it is whole
}

// MaxSamples is how many samples of one page are kept, and how many types: ten times what the largest servers show. maxLabels and maxLine
// bound one series. So a page cannot take more memory than a few times its own size, whoever made it.
const (
	MaxSamples = 100_000
	maxLabels  = 128
	maxLine    = 64 << 10
)

// Parse reads a page in the Prometheus text format or OpenMetrics (https://prometheus.io/docs/instrumenting/exposition_formats/,
// https://github.com/prometheus/OpenMetrics), keeping everything it can read: both line ends, names with and without _total, exemplars,
// timestamps, unknown types, a body that was cut. It never fails; Bad, Over and Truncated say what was left out.
func Parse(body []byte) Page {
	p := Page{Types: map[string]string{}}
	for len(body) > 0 {
		line, rest, whole := bytes.Cut(body, []byte("\n"))
		body = rest
		if len(line) > maxLine {
			p.leave(whole)
			continue
		}
		s := strings.TrimSpace(string(line)) // a carriage return goes with the spaces
		if s == "" {
			continue
		}
		if s[0] == '#' {
			p.comment(s)
			continue
		}
		v, ok := parseSample(s)
		switch {
		case ok && len(p.Samples) == MaxSamples:
			p.Over++
		case ok:
			p.Samples = append(p.Samples, v)
		default:
			p.leave(whole)
		}
	}
	return p
}

// leave counts a line that cannot be read.
func (p *Page) leave(whole bool) {
	if whole {
		p.Bad++
	} else {
		p.Truncated = true
	}
}

func (p *Page) comment(s string) {
	f := strings.Fields(s[1:])
	switch {
	case len(f) == 1 && f[0] == "EOF":
		p.EOF = true
	case len(f) >= 3 && f[0] == "TYPE":
		if _, known := p.Types[f[1]]; !known && len(p.Types) == MaxSamples {
			p.Over++
			return
		}
		p.Types[f[1]] = f[2]
	}
}

// parseSample reads `name{labels} value [timestamp] [# exemplar]`.
func parseSample(s string) (Sample, bool) {
	var v Sample
	i := strings.IndexAny(s, "{ \t")
	if i < 0 {
		return v, false
	}
	v.Name, s = s[:i], s[i:]
	if s[0] == '{' {
		labels, name, rest, ok := parseLabels(s[1:])
		if !ok {
			return v, false
		}
		if v.Name == "" {
			v.Name = name
		}
		v.Labels, s = labels, rest
	}
	if v.Name == "" || !validName(v.Name) {
		return v, false
	}
	if i := strings.Index(s, "#"); i >= 0 { // an exemplar; labels are behind us
		s = s[:i]
	}
	f := strings.Fields(s)
	if len(f) == 0 || len(f) > 2 {
		return v, false
	}
	var ok bool
	if v.Value, ok = number(f[0]); !ok {
		return v, false
	}
	if len(f) == 2 {
		t, ok := number(f[1])
		if !ok || math.IsNaN(t) || math.IsInf(t, 0) {
			return v, false
		}
		if strings.Contains(f[1], ".") { // OpenMetrics: seconds
			t *= 1000
		}
		if math.Abs(t) < 1<<62 {
			v.UnixMS = int64(t)
		}
	}
	return v, true
}

// number reads a value; the format's spellings of infinity are Go's.
func number(s string) (float64, bool) {
	if strings.ContainsAny(s, "xX_pP") { // hexadecimal and underscores are Go's alone
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil && !(math.IsInf(v, 0) && len(s) > 0) { // out of range is infinite
		return 0, false
	}
	return v, true
}

func validName(s string) bool {
	for i, c := range []byte(s) {
		if !(c == '_' || c == ':' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80 || i > 0 && (c >= '0' && c <= '9' || c == '.' || c == '-')) {
			return false
		}
	}
	return true
}

// parseLabels reads up to the closing brace. A quoted string without a value is the series' name, as in {"a.b",c="d"}.
func parseLabels(s string) (labels, name, rest string, ok bool) {
	var pairs []string
	sorted := true
	for {
		s = strings.TrimLeft(s, " \t,")
		if s == "" {
			return "", "", "", false
		}
		if s[0] == '}' {
			break
		}
		var key string
		if s[0] == '"' {
			if key, s, ok = quoted(s); !ok {
				return "", "", "", false
			}
			if u := strings.TrimLeft(s, " \t"); u == "" || u[0] != '=' {
				name = key
				continue
			}
		} else {
			i := strings.IndexByte(s, '=')
			if i <= 0 {
				return "", "", "", false
			}
			key, s = strings.TrimSpace(s[:i]), s[i:]
			if key == "" || !validName(key) {
				return "", "", "", false
			}
		}
		s = strings.TrimLeft(s, " \t")
		s = strings.TrimLeft(strings.TrimPrefix(s, "="), " \t")
		if s == "" || s[0] != '"' {
			return "", "", "", false
		}
		raw, after, found := quotedRaw(s)
		if !found {
			return "", "", "", false
		}
		if len(pairs) == maxLabels {
			return "", "", "", false
		}
		pair := key + "=" + raw
		if n := len(pairs); n > 0 && pairs[n-1] > pair {
			sorted = false
		}
		pairs = append(pairs, pair)
		s = after
	}
	if !sorted {
		slices.Sort(pairs)
	}
	return strings.Join(pairs, ","), name, s[1:], true
}

// quotedRaw splits a quoted string, its quotes and escapes kept, from what follows.
func quotedRaw(s string) (raw, rest string, ok bool) {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i+1], s[i+1:], true
		}
	}
	return "", "", false
}

func quoted(s string) (v, rest string, ok bool) {
	raw, rest, ok := quotedRaw(s)
	if !ok {
		return "", "", false
	}
	return unescape(raw[1 : len(raw)-1]), rest, true
}

var escapes = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return escapes.Replace(s)
}

// Label returns the value of one of a sample's labels, unescaped.
func Label(labels, name string) (string, bool) {
	for labels != "" {
		key, rest, ok := strings.Cut(labels, "=")
		if !ok || rest == "" {
			return "", false
		}
		raw, after, ok := quotedRaw(rest)
		if !ok {
			return "", false
		}
		if key == name {
			return unescape(raw[1 : len(raw)-1]), true
		}
		labels = strings.TrimPrefix(after, ",")
	}
	return "", false
}

// Bucket reports whether a sample is one bucket of a histogram or one quantile of a summary.
func (s Sample) Bucket() bool {
	if strings.HasSuffix(s.Name, "_bucket") {
		_, ok := Label(s.Labels, "le")
		return ok
	}
	_, ok := Label(s.Labels, "quantile")
	return ok
}
