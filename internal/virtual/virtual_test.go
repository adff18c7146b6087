package virtual_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/sim"
	"github.com/shadowtape/shadowtape/internal/virtual"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

func of(rows []*formats.Exchange) iter.Seq2[*formats.Exchange, error] {
	return func(yield func(*formats.Exchange, error) bool) {
		for _, x := range rows {
			if !yield(x, nil) {
				return
			}
		}
	}
}

func profile(t *testing.T) engine.Profile {
	t.Helper()
	p, err := engine.FindProfile("llama-3.1-8b-h100")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const block = 16

// header says that prefix blocks are of one page each.
var header = formats.Header{PrefixBlockUnit: "tokens", PrefixBlockSize: block, PrefixBlockRule: "floor"}

// trace makes a load of n requests in which a third of the prompts continue earlier ones.
func trace(seed uint64, n int, gap time.Duration) []*formats.Exchange {
	rng := rand.New(rand.NewPCG(seed, 0))
	var at int64 = 1_700_000_000_000_000_000
	rows := make([]*formats.Exchange, n)
	next := int64(1)
	for i := range rows {
		at += int64(rng.ExpFloat64() * float64(gap))
		x := &formats.Exchange{ExchangeID: int64(i + 1), ArrivalUnixNS: at, Stream: formats.Of(true), Endpoint: formats.EndpointCompletions,
			InputTokens: formats.Of(int64(1 + rng.IntN(2000))), OutputTokens: formats.Of(int64(1 + rng.IntN(100)))}
		x.PrefixBlocks = []int64{}
		if i > 0 && rng.IntN(3) == 0 {
			old := rows[rng.IntN(i)].PrefixBlocks
			x.PrefixBlocks = append(x.PrefixBlocks, old[:min(len(old), int(x.InputTokens.V)/block)]...)
		}
		for len(x.PrefixBlocks) < int(x.InputTokens.V)/block {
			x.PrefixBlocks = append(x.PrefixBlocks, next)
			next++
		}
		rows[i] = x
	}
	return rows
}

// simulate runs rows and returns what came out.
func simulate(t *testing.T, rows []*formats.Exchange, o virtual.Options) ([]*formats.Exchange, virtual.Stats) {
	t.Helper()
	return play(t, schedule.FromRows(of(rows)), o)
}

// play runs a schedule and returns what came out.
func play(t *testing.T, arrivals schedule.Arrivals, o virtual.Options) ([]*formats.Exchange, virtual.Stats) {
	t.Helper()
	var got []*formats.Exchange
	st, err := virtual.Play(t.Context(), arrivals, o, virtual.Output{Exchange: func(x *formats.Exchange) error {
		got = append(got, x)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if st.Scheduled != st.Sent+st.Dropped || st.Sent != st.Completed+st.Failed+st.Aborted || int(st.Scheduled+st.Warmup.Scheduled) != len(got) {
		t.Errorf("not conserved: %+v with %d rows", st, len(got))
	}
	return got, st
}

// TestSameTimesAsTheServer sends one load through the HTTP server on a virtual clock and through this package: every token of every
// request comes at the same nanosecond, with noise, prefix cache and queueing.
func TestSameTimesAsTheServer(t *testing.T) {
	p := profile(t)
	p.Pages, p.MaxSeqs = 600, 12
	noise := engine.Noise{Launch: 0.02, Step: 0.01}
	rows := trace(3, 120, 30*time.Millisecond)
	want, st := simulate(t, rows, virtual.Options{Profile: p, Header: header, Seed: 9, Noise: noise})
	if st.Preemptions == 0 || st.CachedTokens == 0 {
		t.Fatalf("%d preemptions and %d cached tokens: the load tests too little", st.Preemptions, st.CachedTokens)
	}
	synctest.Test(t, func(t *testing.T) {
		s, err := sim.New(sim.Options{Profile: p, Seed: 9, Noise: noise})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l := pipes{make(chan net.Conn), make(chan struct{})}
		go s.Serve(l)
		start := time.Now()
		var wg sync.WaitGroup
		for i, x := range rows {
			wg.Go(func() {
				time.Sleep(time.Duration(x.ArrivalUnixNS - rows[0].ArrivalUnixNS))
				client, server := net.Pipe()
				l.conns <- server
				defer client.Close()
				body := tokenIDs(x)
				fmt.Fprintf(client, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				times, err := tokens(client, start)
				if err != nil {
					t.Error(err)
				}
				base := time.Duration(x.ArrivalUnixNS - rows[0].ArrivalUnixNS)
				if first, last := times[0]-base, times[len(times)-1]-base; len(times) != int(x.OutputTokens.V) ||
					int64(first) != want[i].FirstTokenNS.V || int64(last) != want[i].LastTokenNS.V {
					t.Errorf("request %d: %d tokens from %v to %v; in virtual time %d from %v to %v", i, len(times), first, last,
						len(want[i].EventGapUS), time.Duration(want[i].FirstTokenNS.V), time.Duration(want[i].LastTokenNS.V))
				}
			})
		}
		wg.Wait()
	})
}

// tokenIDs renders a row as token ids that are equal where its blocks are.
func tokenIDs(x *formats.Exchange) string {
	var b bytes.Buffer
	for i := range int(x.InputTokens.V) {
		id := 1_000_000 + x.ExchangeID // of the tail
		if i/block < len(x.PrefixBlocks) {
			id = x.PrefixBlocks[i/block]
		}
		fmt.Fprintf(&b, ",%d", id)
	}
	return fmt.Sprintf(`{"prompt":[%s],"stream":true,"ignore_eos":true,"max_tokens":%d}`, b.String()[1:], x.OutputTokens.V)
}

// tokens reads the times of a stream's tokens.
func tokens(c net.Conn, start time.Time) (times []time.Duration, err error) {
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return times, nil
		}
		if err != nil {
			return nil, err
		}
		if strings.Contains(line, `"text":" `) {
			times = append(times, time.Since(start))
		}
	}
}

type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	close(p.closed)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestRowsAreARun(t *testing.T) {
	rows := trace(1, 300, 20*time.Millisecond)
	rows[3].OutputTokens = formats.Null[int64]{}
	rows[4].InputTokens = formats.Of[int64](1 << 20)
	rows[5].EndReason = formats.EndClientAbort
	rows[6].Stream = formats.Of(false)
	rows[7].N = formats.Of[int32](2)
	rows[7].OutputTokens = formats.Of[int64](20)
	rows[8].Endpoint, rows[8].Stream = formats.EndpointEmbeddings, formats.Of(false)
	got, st := play(t, schedule.Speed(schedule.FromRows(of(rows)), 2), virtual.Options{Profile: profile(t), Header: header})
	if st.Dropped != 1 || st.Failed != 1 || st.Aborted != 1 || st.DropReasons["no_length"] != 1 {
		t.Errorf("%+v", st)
	}
	for i, x := range got {
		if x.ArrivalIndex.V != int64(i) || x.SourceID.V != rows[i].ExchangeID {
			t.Fatalf("row %d is arrival %d of source %d", i, x.ArrivalIndex.V, x.SourceID.V)
		}
		if want := rows[0].ArrivalUnixNS + (rows[i].ArrivalUnixNS-rows[0].ArrivalUnixNS)/2; x.ArrivalUnixNS < want-1 || x.ArrivalUnixNS > want+1 {
			t.Fatalf("row %d arrives at %d, want %d", i, x.ArrivalUnixNS, want)
		}
		if i >= 3 && i <= 8 {
			continue
		}
		sum := int64(0)
		for _, g := range x.EventGapUS {
			sum += int64(g)
		}
		if want := (x.LastTokenNS.V - x.FirstTokenNS.V) / 1000; sum != want || len(x.EventGapUS) != int(x.OutputTokens.V) || x.OutputTokens != rows[i].OutputTokens || len(x.EventTokens) != len(x.EventGapUS) {
			t.Fatalf("row %d: gaps add up to %d us, want %d; %d events", i, sum, want, len(x.EventGapUS))
		}
	}
	if x := got[3]; x.EndReason != formats.EndNotSent || x.SentNS.Valid {
		t.Errorf("unknown length: %+v", x)
	}
	if x := got[4]; x.Status.V != 400 || x.ErrorKind != "http_400" {
		t.Errorf("too long: %+v", x)
	}
	if x := got[5]; x.EndReason != formats.EndClientAbort || !x.PlannedAbort.V || len(x.EventGapUS) != int(rows[5].OutputTokens.V) {
		t.Errorf("abort: %+v", x)
	}
	if x := got[6]; x.FirstTokenNS.Valid || x.EventGapUS != nil || !x.EndNS.Valid {
		t.Errorf("not streamed: %+v", x)
	}
	if x := got[7]; !reflect.DeepEqual(x.ChoiceOutputTokens, []int64{10, 10}) || len(x.EventChoice) != 20 || x.OutputTokens.V != 20 {
		t.Errorf("two choices: %+v", x)
	}
	if x := got[8]; x.FirstTokenNS.Valid || x.OutputTokens.V != 0 || x.EndNS.V <= 0 {
		t.Errorf("embeddings: %+v", x)
	}
}

func TestTheSameSeedGivesTheSameRun(t *testing.T) {
	rows := trace(2, 200, 20*time.Millisecond)
	o := virtual.Options{Profile: profile(t), Header: header, Replicas: 3, Route: virtual.Prefix, Noise: engine.Noise{Launch: 0.05, Step: 0.05}, Seed: 4}
	a, _ := simulate(t, rows, o)
	b, _ := simulate(t, rows, o)
	if !reflect.DeepEqual(a, b) {
		t.Error("two runs with one seed differ")
	}
	o.Seed = 5
	if c, _ := simulate(t, rows, o); reflect.DeepEqual(a, c) {
		t.Error("another seed gives the same run")
	}
}

func TestRoutes(t *testing.T) {
	rows := trace(4, 600, 15*time.Millisecond)
	o := virtual.Options{Profile: profile(t), Header: header, Replicas: 4}
	o.Profile.Pages = 2000
	cached := map[virtual.Route]int64{}
	for _, o.Route = range virtual.Routes() {
		got, st := simulate(t, rows, o)
		cached[o.Route] = st.CachedTokens
		sent := map[string]int{}
		for _, x := range got {
			sent[x.ServerID]++
		}
		if len(sent) != 4 {
			t.Errorf("%s used %v", o.Route, sent)
		}
		if o.Route == virtual.RoundRobin && sent["replica-0"] != 150 {
			t.Errorf("round robin dealt %v", sent)
		}
	}
	if cached[virtual.Prefix] < 2*cached[virtual.RoundRobin] {
		t.Errorf("cached tokens by route %v: the prefix route should find far more", cached)
	}
}

func TestSamplesAndSteps(t *testing.T) {
	rows := trace(5, 100, 20*time.Millisecond)
	var ticks []int64
	last := map[string]float64{}
	steps := 0
	var end time.Duration
	st, err := virtual.Run(t.Context(), of(rows), virtual.Options{Profile: profile(t), Header: header, Sample: 250 * time.Millisecond}, virtual.Output{
		Server: func(s []formats.ServerSample) error {
			ticks = append(ticks, s[0].UnixNS)
			for _, v := range s {
				last[v.Series] = v.Value
			}
			return nil
		},
		Step: func(_ int, zero int64, s engine.Step) error {
			if zero != rows[0].ArrivalUnixNS {
				t.Errorf("steps are since %d", zero)
			}
			if s.Start < end {
				t.Errorf("step at %v before %v", s.Start, end)
			}
			end = s.End
			steps++
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if int64(steps) != st.Steps || steps == 0 {
		t.Errorf("%d steps told, %d counted", steps, st.Steps)
	}
	for i, at := range ticks[:len(ticks)-1] {
		if at != rows[0].ArrivalUnixNS+int64(i)*250e6 {
			t.Fatalf("sample %d at %d", i, at)
		}
	}
	if last["vllm:generation_tokens_total"] != float64(st.OutputTokens) || last["vllm:prompt_tokens_total"] != float64(st.InputTokens) || last["vllm:iteration_tokens_total_count"] != float64(steps) {
		t.Errorf("last sample %v, totals %+v", last, st)
	}
}

func TestErrorsEndARun(t *testing.T) {
	boom := errors.New("boom")
	broken := func(yield func(*formats.Exchange, error) bool) {
		yield(trace(1, 1, time.Second)[0], nil)
		yield(nil, boom)
	}
	o := virtual.Options{Profile: profile(t)}
	if _, err := virtual.Run(t.Context(), broken, o, virtual.Output{}); !errors.Is(err, boom) {
		t.Errorf("a broken trace: %v", err)
	}
	rows := of(trace(1, 50, time.Millisecond))
	if _, err := virtual.Run(t.Context(), rows, o, virtual.Output{Exchange: func(*formats.Exchange) error { return boom }}); !errors.Is(err, boom) {
		t.Errorf("a full disk: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := virtual.Run(ctx, rows, o, virtual.Output{}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	o.Route = "random"
	if _, err := virtual.Run(t.Context(), rows, o, virtual.Output{}); err == nil {
		t.Error("an unknown route was taken")
	}
}
