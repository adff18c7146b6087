package recorder

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Selection says which exchanges are recorded. What a request's head can decide is decided there, before its body is kept; what its body
// can decide, before its answer is read. The zero value is everything.
type Selection struct {
	Paths    []string // of the URL, without its query: exact, or with a * at either end; none: all
	Models   []string // asked for: exact, or with a * at either end; none: all
	Statuses []string // "200", "4xx", or "none" for exchanges without an answer; none: all

	Fraction float64       // of what is sampled that is kept, above 0 and up to 1; 0: all
	By       SampleUnit    // what is kept or left out as a whole
	Window   time.Duration // of SampleWindows; 0: 5 minutes
}

// SampleUnit is what sampling keeps or leaves out as a whole. Thinning single requests would change how they cluster.
type SampleUnit string

// The units. A session is the one that a request's header or body names, else a conversation, else a tenant, else a connection; a tenant
// is the one that the header names, else the key sent, else a connection. Recorders with the same key keep the same ones.
const (
	SampleSessions SampleUnit = "session" // also what "" means
	SampleTenants  SampleUnit = "tenant"
	SampleWindows  SampleUnit = "window" // windows of time
)

const defaultSampleWindow = 5 * time.Minute

// Validate reports everything that is wrong with the selection.
func (s Selection) Validate() error {
	var errs []error
	if s.Fraction < 0 || s.Fraction > 1 || math.IsNaN(s.Fraction) {
		errs = append(errs, fmt.Errorf("sample fraction %v: above 0 and up to 1", s.Fraction))
	}
	switch s.By {
	case "", SampleSessions, SampleTenants, SampleWindows:
	default:
		errs = append(errs, fmt.Errorf("sample by %q: session, tenant or window", s.By))
	}
	if s.Window < 0 {
		errs = append(errs, fmt.Errorf("sample window %s is negative", s.Window))
	}
	for _, t := range s.Statuses {
		if _, _, err := statusRange(t); err != nil {
			errs = append(errs, err)
		}
	}
	for _, list := range [][]string{s.Paths, s.Models} {
		for _, p := range list {
			if strings.Trim(p, "*") == "" {
				errs = append(errs, fmt.Errorf("pattern %q: it names nothing", p))
			}
		}
	}
	return errors.Join(errs...)
}

func statusRange(s string) (from, to int32, err error) {
	switch {
	case s == "none":
		return 0, 0, nil
	case len(s) == 3 && s[0] >= '1' && s[0] <= '5' && s[1:] == "xx":
		from = int32(s[0]-'0') * 100
		return from, from + 99, nil
	}
	if _, err := fmt.Sscanf(s, "%d", &from); err != nil || len(s) != 3 || from < 100 {
		return 0, 0, fmt.Errorf("status %q: three digits, as 4xx, or none", s)
	}
	return from, from, nil
}

// matches reports whether s fits a pattern with a * at either end.
func matches(pattern, s string) bool {
	p, before := strings.CutPrefix(pattern, "*")
	p, after := strings.CutSuffix(p, "*")
	switch {
	case before && after:
		return strings.Contains(s, p)
	case before:
		return strings.HasSuffix(s, p)
	case after:
		return strings.HasPrefix(s, p)
	}
	return s == p
}

func matchesAny(patterns []string, s string) bool {
	for _, p := range patterns {
		if matches(p, s) {
			return true
		}
	}
	return len(patterns) == 0
}

// The reasons for which an exchange is left out; the last is a loss, the others were asked for.
const (
	leftOutPath    = "path"
	leftOutModel   = "model"
	leftOutStatus  = "status"
	leftOutSampled = "sampled_out"
	droppedCPU     = "max_cpu"
)

// admission applies a selection, and sheds load when the process may not use more of the CPU. A nil admission lets everything in.
type admission struct {
	s    Selection
	shed atomic.Uint64 // share of sessions to leave out for want of CPU, in 2^-64
}

func newAdmission(s Selection) *admission { return &admission{s: s} }

// setShed sets the share of sessions that are shed.
func (a *admission) setShed(share float64) {
	if share >= 1 {
		a.shed.Store(math.MaxUint64)
		return
	}
	a.shed.Store(uint64(max(share, 0) * (1 << 64)))
}

// verdictOf is what an admission says of an exchange: "" lets it in; drop tells a loss from a choice.
type verdictOf struct {
	reason string
	drop   bool
}

// head decides when a request's head is known. connection tells connections apart.
func (a *admission) head(path string, x *formats.Exchange, connection uint64) verdictOf {
	if a == nil {
		return verdictOf{}
	}
	if i := strings.IndexByte(path, '?'); i >= 0 {
		path = path[:i]
	}
	switch {
	case !matchesAny(a.s.Paths, path):
		return verdictOf{reason: leftOutPath}
	case a.s.By == SampleWindows || a.s.By == SampleTenants || x.SessionID.Valid:
		if !a.sampled(x, connection) {
			return verdictOf{reason: leftOutSampled}
		}
	}
	if shed := a.shed.Load(); shed > 0 && mix(a.unit(x, connection, SampleSessions)+1) < shed {
		return verdictOf{droppedCPU, true}
	}
	return verdictOf{}
}

// request decides when a request has been read.
func (a *admission) request(x *formats.Exchange, connection uint64) verdictOf {
	switch {
	case a == nil:
	case !matchesAny(a.s.Models, x.RequestModel):
		return verdictOf{reason: leftOutModel}
	case !a.sampled(x, connection): // what the head could decide comes out the same
		return verdictOf{reason: leftOutSampled}
	}
	return verdictOf{}
}

// over decides when an exchange has ended.
func (a *admission) over(x *formats.Exchange) verdictOf {
	if a == nil || len(a.s.Statuses) == 0 {
		return verdictOf{}
	}
	for _, t := range a.s.Statuses {
		if from, to, _ := statusRange(t); x.Status.Or(0) >= from && x.Status.Or(0) <= to {
			return verdictOf{}
		}
	}
	return verdictOf{reason: leftOutStatus}
}

func (a *admission) sampled(x *formats.Exchange, connection uint64) bool {
	if a.s.Fraction == 0 || a.s.Fraction == 1 {
		return true
	}
	return float64(mix(a.unit(x, connection, a.s.By)))/(1<<64) < a.s.Fraction
}

// unit is a number that all exchanges of one unit share.
func (a *admission) unit(x *formats.Exchange, connection uint64, by SampleUnit) uint64 {
	switch {
	case by == SampleWindows:
		w := a.s.Window
		if w == 0 {
			w = defaultSampleWindow
		}
		return uint64(x.ArrivalUnixNS / int64(w))
	case by != SampleTenants && x.SessionID.Valid:
		return binary.LittleEndian.Uint64(x.SessionID.V[:])
	case x.TenantID.Valid:
		return binary.LittleEndian.Uint64(x.TenantID.V[:])
	}
	return connection
}

// mix spreads a number evenly over 64 bits (the finalizer of MurmurHash3, Appleby, public domain).
func mix(v uint64) uint64 {
	v ^= v >> 33
	v *= 0xff51afd7ed558ccd
	v ^= v >> 33
	v *= 0xc4ceb9fe1a85ec53
	return v ^ v>>33
}
