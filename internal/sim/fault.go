package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/shadowtape/shadowtape/internal/stats"
)

// Faults are what goes wrong, by kind, as shares of all requests. The kinds are http<code> (an error answer at once), html (status 200
// and a web page), stall (silence for Options.StallTime half way), reset (the connection is reset half way), cut (it is closed half way
// without an end), and error (an error in the stream half way; a 500 where nothing is streamed).
type Faults map[string]float64

var faultKinds = []string{"html", "stall", "reset", "cut", "error"}

// Validate reports unknown kinds and shares that are no shares.
func (f Faults) Validate() error {
	sum := 0.0
	for kind, share := range f {
		if code, ok := strings.CutPrefix(kind, "http"); ok {
			if n, err := strconv.Atoi(code); err != nil || n < 400 || n > 599 {
				return fmt.Errorf("fault %q: an HTTP error code is 400 to 599", kind)
			}
		} else if !slices.Contains(faultKinds, kind) {
			return fmt.Errorf("fault %q: there are http<code>, %s", kind, strings.Join(faultKinds, ", "))
		}
		if !(share >= 0 && share <= 1) {
			return fmt.Errorf("fault %s=%v: a share is between 0 and 1", kind, share)
		}
		sum += share
	}
	if sum > 1 {
		return fmt.Errorf("faults add up to %v of all requests", sum)
	}
	return nil
}

// ParseFaults reads "http429=1%,reset=0.005".
func ParseFaults(s string) (Faults, error) {
	f := Faults{}
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		kind, value, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("fault %q: it is kind=share", part)
		}
		share, err := ParseShare(value)
		if err != nil {
			return nil, fmt.Errorf("fault %q: %w", part, err)
		}
		f[kind] += share
	}
	return f, f.Validate()
}

// ParseShare reads "1.5%" or "0.015".
func ParseShare(s string) (float64, error) {
	digits, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number or percentage", s)
	}
	if percent {
		v /= 100
	}
	return v, nil
}

// draw returns the fault of the n-th request, or "".
func (f Faults) draw(seed, n uint64) string {
	if len(f) == 0 {
		return ""
	}
	kinds := make([]string, 0, len(f))
	for kind := range f {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	u := rand.New(rand.NewPCG(stats.Scatter(seed^0x6661756c74), n)).Float64()
	for _, kind := range kinds {
		if u -= f[kind]; u < 0 {
			return kind
		}
	}
	return ""
}
