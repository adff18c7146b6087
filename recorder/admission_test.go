package recorder

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
)

func TestSelectionValidate(t *testing.T) {
	for _, s := range []Selection{{}, {Fraction: 1, By: SampleWindows, Window: time.Minute, Statuses: []string{"200", "4xx", "none"}, Paths: []string{"*/chat/completions"}}} {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	bad := Selection{Fraction: math.NaN(), By: "request", Window: -1, Statuses: []string{"6xx", "20", "2000", "0"}, Models: []string{"*"}}
	err := bad.Validate()
	for _, want := range []string{"fraction", `"request"`, "window", `"6xx"`, `"20"`, `"2000"`, `"0"`, `"*"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

func TestSelection(t *testing.T) {
	a := newAdmission(Selection{Paths: []string{"*/chat/completions", "/v1/messages"}, Models: []string{"qwen*", "exact"}, Statuses: []string{"2xx", "429"}})
	for path, want := range map[string]string{"/v1/chat/completions?api-version=1": "", "/proxy/v1/chat/completions": "", "/v1/messages": "", "/v1/messages/count": leftOutPath, "/v1/completions": leftOutPath} {
		if got := a.head(path, &formats.Exchange{}, 1); got.reason != want || got.drop {
			t.Errorf("path %s: %+v", path, got)
		}
	}
	for model, want := range map[string]string{"qwen3-8b": "", "exact": "", "exactly": leftOutModel, "": leftOutModel} {
		if got := a.request(&formats.Exchange{RequestModel: model}, 1); got.reason != want {
			t.Errorf("model %s: %+v", model, got)
		}
	}
	for status, want := range map[int32]string{200: "", 299: "", 300: leftOutStatus, 429: "", 500: leftOutStatus, 0: leftOutStatus} {
		x := &formats.Exchange{}
		if status > 0 {
			x.Status = formats.Of(status)
		}
		if got := a.over(x); got.reason != want {
			t.Errorf("status %d: %+v", status, got)
		}
	}
	var nobody *admission
	if nobody.head("/x", &formats.Exchange{}, 0).reason+nobody.request(&formats.Exchange{}, 0).reason+nobody.over(&formats.Exchange{}).reason != "" {
		t.Error("a nil admission refuses")
	}
}

// TestSampling: units are kept or left out as a whole, at the share asked for, and two recorders with one key agree.
func TestSampling(t *testing.T) {
	const units = 5000
	for _, by := range []SampleUnit{SampleSessions, SampleTenants, SampleWindows} {
		for _, fraction := range []float64{0.01, 0.25, 0.9} {
			one, two := newAdmission(Selection{Fraction: fraction, By: by, Window: time.Second}), newAdmission(Selection{Fraction: fraction, By: by, Window: time.Second})
			h, g := openai.NewHasher([]byte("the same key")), openai.NewHasher([]byte("the same key"))
			kept := 0
			for i := range units {
				in := 0
				for turn := range 3 {
					make := func(h *openai.Hasher) *formats.Exchange {
						x := &formats.Exchange{ArrivalUnixNS: int64(i)*1e9 + int64(turn)*1e8, TenantID: formats.Of(h.Sum("tenant", string(rune(i))))}
						if by == SampleSessions {
							x.SessionID = formats.Of(h.Sum("session", string(rune(i))))
							x.TenantID = formats.Of(h.Sum("tenant", "all"))
						}
						return x
					}
					x, y := make(h), make(g)
					a := one.head("/", x, uint64(turn)).reason+one.request(x, uint64(turn)).reason == ""
					b := two.head("/", y, 77).reason+two.request(y, 77).reason == ""
					if a != b {
						t.Fatalf("by %s: two recorders disagree on unit %d", by, i)
					}
					if a {
						in++
					}
				}
				if in != 0 && in != 3 {
					t.Fatalf("by %s: %d of 3 exchanges of unit %d were kept", by, in, i)
				}
				kept += in / 3
			}
			// Six standard deviations of a binomial.
			if want, sd := fraction*units, math.Sqrt(units*fraction*(1-fraction)); math.Abs(float64(kept)-want) > 6*sd {
				t.Errorf("by %s: kept %d of %d units, want about %.0f", by, kept, units, want)
			}
		}
	}
}

// TestShed: load is shed by whole sessions, and what is shed at a small share is shed at a larger one.
func TestShed(t *testing.T) {
	a := newAdmission(Selection{})
	h := openai.NewHasher([]byte("key"))
	before := map[int]bool{}
	for _, share := range []float64{0, 0.2, 0.5, 1} {
		a.setShed(share)
		shed := map[int]bool{}
		for i := range 5000 {
			x := &formats.Exchange{SessionID: formats.Of(h.Sum("session", string(rune(i))))}
			v := a.head("/", x, uint64(i))
			if v.reason != "" {
				if v != (verdictOf{droppedCPU, true}) {
					t.Fatalf("%+v", v)
				}
				shed[i] = true
			}
			if w := a.head("/", x, uint64(i+1)); w != v {
				t.Fatal("one session, two verdicts")
			}
		}
		if got := float64(len(shed)) / 5000; math.Abs(got-share) > 0.05 {
			t.Errorf("share %v: shed %v", share, got)
		}
		for i := range before {
			if !shed[i] {
				t.Fatal("a session that was shed came back at a higher share")
			}
		}
		before = shed
	}
}
