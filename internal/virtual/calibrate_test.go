package virtual_test

import (
	"cmp"
	"context"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/sim"
	"github.com/shadowtape/shadowtape/internal/virtual"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/prompt"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// TestCalibrateFindsTheCoefficients gives a simulated run back to Calibrate.
func TestCalibrateFindsTheCoefficients(t *testing.T) {
	p := profile(t)
	truth := engine.Coefficients{Fixed: 0.012, PerPrefill: 6e-5, PerDecode: 4e-5, PerContext: 9e-8}
	p.Coefficients = truth
	rows := trace(11, 400, 120*time.Millisecond)
	measured, _ := simulate(t, rows, virtual.Options{Profile: p, Header: header})
	blind := profile(t)
	got, fit, err := virtual.Calibrate(t.Context(), measured, virtual.CalibrateOptions{Profile: blind, Header: header, HoldOut: 0.3})
	if err != nil {
		t.Fatal(err)
	}
	near(t, got.Coefficients, truth, 0.05)
	if fit.Fitted.Requests != 280 || fit.HeldOut.Requests != 120 {
		t.Errorf("fitted to %d and held out %d", fit.Fitted.Requests, fit.HeldOut.Requests)
	}
	for _, e := range []virtual.Errors{fit.Fitted, fit.HeldOut} {
		if e.TTFTMedian > 0.01 || e.TPOTMedian > 0.01 || math.Abs(e.TTFTQuantile.P99) > 0.03 {
			t.Errorf("errors %+v", e)
		}
	}
}

// TestCalibrateThroughNoise does the same with 2 % of noise between steps.
func TestCalibrateThroughNoise(t *testing.T) {
	p := profile(t)
	rows := trace(12, 300, 60*time.Millisecond)
	measured, _ := simulate(t, rows, virtual.Options{Profile: p, Header: header, Seed: 3, Noise: engine.Noise{Step: 0.02}})
	_, fit, err := virtual.Calibrate(t.Context(), measured, virtual.CalibrateOptions{Profile: p, Header: header, Evaluations: 250, HoldOut: 0.3})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []virtual.Errors{fit.Fitted, fit.HeldOut} { // a prompt that meets another step waits for it
		if e.TTFTMedian > 0.1 || math.Abs(e.TTFTQuantile.P50) > 0.06 || e.TPOTMedian > 0.02 || math.Abs(e.TPOTQuantile.P50) > 0.02 {
			t.Errorf("errors %+v", e)
		}
	}
}

// near checks coefficients against the true ones.
func near(t *testing.T, got, truth engine.Coefficients, tolerance float64) {
	t.Helper()
	for _, k := range []struct {
		name      string
		got, want float64
	}{{"fixed", got.Fixed, truth.Fixed}, {"per prompt token", got.PerPrefill, truth.PerPrefill}, {"per sequence", got.PerDecode, truth.PerDecode}, {"per context token", got.PerContext, truth.PerContext}} {
		if math.Abs(k.got/k.want-1) > tolerance {
			t.Errorf("%s: %g, truth %g", k.name, k.got, k.want)
		}
	}
}

// TestCalibrateAReplay replays a trace through the replayer's client against the simulated server, on a virtual clock, over connections that
// take their time, and calibrates to what the client measured.
func TestCalibrateAReplay(t *testing.T) {
	const oneWay = 2 * time.Millisecond
	p := profile(t)
	truth := engine.Coefficients{Fixed: 0.009, PerPrefill: 7e-5, PerDecode: 5e-5, PerContext: 6e-8}
	p.Coefficients = truth
	rows := trace(13, 300, 90*time.Millisecond)
	var measured []*formats.Exchange
	synctest.Test(t, func(t *testing.T) {
		s, err := sim.New(sim.Options{Profile: p})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l := pipes{make(chan net.Conn), make(chan struct{})}
		go s.Serve(l)
		c, err := client.New(client.Options{Targets: []string{"http://target"}, Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := delayed(oneWay)
			l.conns <- far
			return near, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		dialect, _ := prompt.DialectNamed("sim")
		m, err := prompt.New(prompt.Options{Model: "m", Dialect: dialect, Endpoint: formats.EndpointCompletions, TokenIDs: true, BlockUnit: "tokens", BlockSize: block, BlockRule: "floor"})
		if err != nil {
			t.Fatal(err)
		}
		var dst collector
		if _, err := replayer.Replay(t.Context(), schedule.FromRows(of(rows)), m, c, &dst, replayer.Options{Sleep: replayer.SleepTimer}); err != nil {
			t.Fatal(err)
		}
		measured = dst.rows
	})
	slices.SortFunc(measured, func(a, b *formats.Exchange) int { return cmp.Compare(a.ArrivalUnixNS, b.ArrivalUnixNS) })
	got, fit, err := virtual.Calibrate(t.Context(), measured, virtual.CalibrateOptions{Profile: profile(t), Header: header, RoundTrip: 2 * oneWay, HoldOut: 0.3})
	if err != nil {
		t.Fatal(err)
	}
	near(t, got.Coefficients, truth, 0.05)
	if e := fit.HeldOut; e.Requests != 90 || e.TTFTMedian > 0.05 || e.TPOTMedian > 0.01 || math.Abs(e.TTFTQuantile.P50) > 0.02 || math.Abs(e.TTFTQuantile.P99) > 0.03 {
		t.Errorf("held out: %+v", e)
	}
}

// collector keeps the rows of a replay.
type collector struct {
	mu   sync.Mutex
	rows []*formats.Exchange
}

func (c *collector) Write(x *formats.Exchange) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows = append(c.rows, x)
	return nil
}

// delayed is a connection on which everything takes so long.
func delayed(oneWay time.Duration) (near, far net.Conn) {
	near, a := net.Pipe()
	b, far := net.Pipe()
	go carry(a, b, oneWay)
	go carry(b, a, oneWay)
	return near, far
}

// carry passes bytes on, each read oneWay after it was made, until either side closes.
func carry(from, to net.Conn, oneWay time.Duration) {
	type piece struct {
		at    time.Time
		bytes []byte
	}
	way := make(chan piece, 1<<16)
	go func() {
		defer close(way)
		for {
			b := make([]byte, 4096)
			n, err := from.Read(b)
			if n > 0 {
				way <- piece{time.Now().Add(oneWay), b[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range way {
		time.Sleep(time.Until(p.at))
		if _, err := to.Write(p.bytes); err != nil {
			from.Close()
			for range way { // the reader ends
			}
			return
		}
	}
	to.Close()
}

func TestCalibrateNeedsData(t *testing.T) {
	_, _, err := virtual.Calibrate(t.Context(), trace(1, 100, time.Second), virtual.CalibrateOptions{Profile: profile(t), HoldOut: 0.3})
	if err == nil || !strings.Contains(err.Error(), "0 of the first 70") {
		t.Errorf("a run without times: %v", err)
	}
}
