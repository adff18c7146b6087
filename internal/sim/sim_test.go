package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/internal/engine"
)

const ms = time.Millisecond

// pipes is a listener whose connections are pipes: no sockets, so that a virtual clock can run.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// instant is the profile of tests.
func instant(t *testing.T) engine.Profile {
	t.Helper()
	p, err := engine.FindProfile("instant")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// serving starts a server on pipes; the returned function stops it.
func serving(t *testing.T, o Options) (*Server, *pipes, func()) {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	l := newPipes()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	return s, l, func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
}

func post(w io.Writer, path, id, body string) {
	fmt.Fprintf(w, "POST %s HTTP/1.1\r\nHost: sim\r\nX-Request-Id: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, id, len(body), body)
}

// event is a server-sent event and when it came.
type event struct {
	at   time.Duration
	data string
	doc  chunkDoc
}

type chunkDoc struct {
	Object  string
	Choices []struct {
		Index        int
		Text         string
		Delta        struct{ Role, Content string }
		Message      struct{ Role, Content string }
		FinishReason *string `json:"finish_reason"`
	}
	Usage *usageDoc
	Error *struct{ Message string }
	Data  []struct{ Embedding []float64 }
}

type usageDoc struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// readStream reads one streamed answer from a connection.
func readStream(t *testing.T, br *bufio.Reader, start time.Time) (events []event, err error) {
	t.Helper()
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("status %d, %s: %s", resp.StatusCode, resp.Header.Get("Content-Type"), b)
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok {
			e := event{at: time.Since(start), data: data}
			if data != "[DONE]" {
				if err := json.Unmarshal([]byte(data), &e.doc); err != nil {
					t.Fatalf("event %q: %v", data, err)
				}
			}
			events = append(events, e)
		}
	}
}

func readDoc(t *testing.T, br *bufio.Reader) (int, chunkDoc) {
	t.Helper()
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var d chunkDoc
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return resp.StatusCode, d
}

const chatBody = `{"model":"m","messages":[{"role":"user","content":"hello you"}],"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":4}`

func TestStreamTimesAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		_, l, stop := serving(t, Options{Profile: instant(t), Fixed: true, TTFT: 50 * ms, ITL: 10 * ms, EmissionLog: &log})
		start := time.Now()
		c := l.dial()
		defer c.Close()
		br := bufio.NewReader(c)
		time.Sleep(7 * ms)
		post(c, "/v1/chat/completions", "abc", chatBody)
		events, err := readStream(t, br, start)
		if err != nil {
			t.Fatal(err)
		}
		wantAt := []time.Duration{57 * ms, 57 * ms, 67 * ms, 77 * ms, 87 * ms, 87 * ms, 87 * ms}
		if len(events) != len(wantAt) {
			t.Fatalf("%d events, want %d", len(events), len(wantAt))
		}
		for i, e := range events {
			if e.at != wantAt[i] {
				t.Errorf("event %d at %v, want %v: %s", i, e.at, wantAt[i], e.data)
			}
		}
		if d := events[0].doc.Choices[0].Delta; d.Role != "assistant" || d.Content != "" {
			t.Errorf("first event %+v", d)
		}
		for _, e := range events[1:4] {
			if len(e.doc.Choices[0].Delta.Content) != wordBytes || e.doc.Choices[0].FinishReason != nil {
				t.Errorf("token event %s", e.data)
			}
		}
		if f := events[4].doc.Choices[0].FinishReason; f == nil || *f != "length" {
			t.Errorf("last token event %s", events[4].data)
		}
		// "hello you" is "hel" "lo" " yo" "u": 4 tokens and the template's 4 + 4.
		if u := events[5].doc.Usage; u == nil || u.Prompt != 12 || u.Completion != 4 || u.Total != 16 || len(events[5].doc.Choices) != 0 {
			t.Errorf("usage event %s", events[5].data)
		}
		if events[6].data != "[DONE]" {
			t.Errorf("last event %s", events[6].data)
		}
		post(c, "/v1/chat/completions", "def", chatBody) // the connection goes on
		again, err := readStream(t, br, start)
		if err != nil || len(again) != 7 || again[0].at != 137*ms {
			t.Errorf("second answer: %d events, %v", len(again), err)
		}
		stop()
		var line emissionLine
		if err := json.NewDecoder(&log).Decode(&line); err != nil {
			t.Fatal(err)
		}
		zero := start.UnixNano()
		want := []int64{zero + int64(57*ms), zero + int64(67*ms), zero + int64(77*ms), zero + int64(87*ms)}
		if line.RequestID != "abc" || line.Arrival != zero+int64(7*ms) || !slices.Equal(line.Tokens, want) || line.End != "complete" || line.Input != 12 {
			t.Errorf("emission log %+v", line)
		}
	})
}

func TestEngineTimesAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := instant(t)
		p.Instant = false
		p.Coefficients = engine.Coefficients{Fixed: 0.010, PerPrefill: 0.001, PerDecode: 0.002}
		var states bytes.Buffer
		_, l, stop := serving(t, Options{Profile: p, StateLog: &states})
		start := time.Now()
		c := l.dial()
		defer c.Close()
		post(c, "/v1/completions", "x", `{"prompt":[1,2,3,4,5],"stream":true,"ignore_eos":true,"max_tokens":3}`)
		events, err := readStream(t, bufio.NewReader(c), start)
		if err != nil {
			t.Fatal(err)
		}
		var got []time.Duration
		for _, e := range events {
			got = append(got, e.at)
		}
		if want := []time.Duration{15 * ms, 27 * ms, 39 * ms, 39 * ms}; !slices.Equal(got, want) {
			t.Errorf("events at %v, want %v", got, want)
		}
		stop()
		z := start.UnixNano()
		want := stateHeader
		for _, row := range [][]int64{{0, 15, 5, 0, 0}, {15, 27, 0, 1, 5}, {27, 39, 0, 1, 6}} {
			want += fmt.Sprintf("%d,%d,%d,%d,%d,1,1,0,0\n", z+row[0]*1e6, z+row[1]*1e6, row[2], row[3], row[4])
		}
		if states.String() != want {
			t.Errorf("state log:\n%swant:\n%s", states.String(), want)
		}
	})
}

func TestAbortFreesPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s, l, stop := serving(t, Options{Profile: instant(t), Fixed: true, TTFT: 50 * ms, ITL: 10 * ms, EmissionLog: &log})
		c := l.dial()
		post(c, "/v1/completions", "x", `{"prompt":"a long way to go","stream":true,"ignore_eos":true,"max_tokens":1000}`)
		go io.Copy(io.Discard, c)
		time.Sleep(105 * ms)
		synctest.Wait()
		if n := s.engine.Counters(); n.Running != 1 || n.Pages == 0 {
			t.Errorf("before: %+v", n)
		}
		c.Close()
		synctest.Wait()
		if n := s.engine.Counters(); n.Running != 0 || n.Pages != 0 {
			t.Errorf("after: %+v", n)
		}
		stop()
		if !strings.Contains(log.String(), `"end":"abort"`) || strings.Count(log.String(), "000000") == 0 {
			t.Errorf("emission log %s", log.String())
		}
	})
}

func TestSlowReaderDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, stop := serving(t, Options{Profile: instant(t), Fixed: true, TTFT: 50 * ms, ITL: 10 * ms})
		defer stop()
		slow, c := l.dial(), l.dial()
		defer c.Close()
		defer slow.Close()
		post(slow, "/v1/chat/completions", "slow", chatBody) // and never reads
		start := time.Now()
		post(c, "/v1/chat/completions", "fast", chatBody)
		events, err := readStream(t, bufio.NewReader(c), start)
		if err != nil || len(events) != 7 || events[6].at != 80*ms {
			t.Errorf("%d events, %v", len(events), err)
		}
	})
}

// An answer without a length, on a connection that the client wants closed, ends with the connection.
func TestLastAnswerOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, stop := serving(t, Options{Profile: instant(t), Fixed: true, TTFT: 50 * ms, ITL: 10 * ms})
		defer stop()
		for _, stream := range []bool{true, false} {
			c := l.dial()
			defer c.Close()
			body := strings.Replace(chatBody, `"stream":true`, fmt.Sprintf(`"stream":%t`, stream), 1)
			start := time.Now()
			fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			b, err := io.ReadAll(c)
			if took := time.Since(start); err != nil || took != 80*ms || !strings.Contains(string(b), "\r\nconnection: close\r\n") || strings.Contains(string(b), "[DONE]") != stream {
				t.Errorf("stream %t: after %v, %v: %s", stream, took, err, b)
			}
		}
	})
}

func TestWholeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, stop := serving(t, Options{Profile: instant(t)})
		defer stop()
		c := l.dial()
		defer c.Close()
		br := bufio.NewReader(c)
		post(c, "/v1/chat/completions", "a", `{"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}],"max_tokens":5,"ignore_eos":true,"n":2}`)
		status, d := readDoc(t, br)
		if status != 200 || len(d.Choices) != 2 || d.Usage.Completion != 10 || len(d.Choices[1].Message.Content) != 5*wordBytes || d.Choices[0].Message == d.Choices[1].Message {
			t.Errorf("chat: %d %+v", status, d)
		}
		post(c, "/v1/completions", "b", `{"prompt":["one","two three"],"max_tokens":3,"min_tokens":3,"n":2}`)
		status, d = readDoc(t, br)
		if status != 200 || len(d.Choices) != 4 || d.Usage.Completion != 12 || d.Usage.Prompt != 1+3 || len(d.Choices[3].Text) != 3*wordBytes {
			t.Errorf("completions: %d %+v", status, d)
		}
		post(c, "/v1/embeddings", "c", `{"input":[[1,2,3],[4,5]]}`)
		status, d = readDoc(t, br)
		if status != 200 || len(d.Data) != 2 || len(d.Data[0].Embedding) != 16 || d.Usage.Prompt != 5 || d.Usage.Total != 5 {
			t.Errorf("embeddings: %d %+v", status, d)
		}
		for body, why := range map[string]string{
			`{"prompt":"x","max_tokens":0}`:                "max_tokens",
			`{"prompt":"x","max_tokens":200000}`:           "maximum context length",
			`{"prompt":"x","max_tokens":3,"min_tokens":4}`: "min_tokens",
			`{"prompt":"x","n":0}`:                         "n must",
			`{"prompt":""}`:                                "no token",
			`{}`:                                           "prompt",
			`{"prompt"`:                                    "body",
			`{"prompt":[1,-2]}`:                            "prompt",
		} {
			post(c, "/v1/completions", "d", body)
			if status, d := readDoc(t, br); status != 400 || d.Error == nil || !strings.Contains(d.Error.Message, why) {
				t.Errorf("%s: %d %+v", body, status, d.Error)
			}
		}
	})
}

func TestPrefixCacheAcrossTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l, stop := serving(t, Options{Profile: instant(t)})
		defer stop()
		c := l.dial()
		defer c.Close()
		br := bufio.NewReader(c)
		question := strings.Repeat("some words ", 30)
		post(c, "/v1/chat/completions", "1", `{"messages":[{"role":"user","content":"`+question+`"}],"max_tokens":40,"ignore_eos":true}`)
		_, first := readDoc(t, br)
		turn2 := `{"messages":[{"role":"user","content":"` + question + `"},{"role":"assistant","content":"` + first.Choices[0].Message.Content + `"},{"role":"user","content":"go on"}],"max_tokens":2,"ignore_eos":true}`
		post(c, "/v1/chat/completions", "2", turn2)
		_, second := readDoc(t, br)
		// The second prompt repeats the first and its answer; all their full pages but one that ends in the last token are found. The
		// last generated token never enters a page: nothing was computed from it.
		want := (first.Usage.Total - 1) / 16 * 16
		if first.Usage.Details.Cached != 0 || second.Usage.Details.Cached != want {
			t.Errorf("cached %d, then %d; want 0 and %d", first.Usage.Details.Cached, second.Usage.Details.Cached, want)
		}
		post(c, "/reset_prefix_cache", "", "")
		if status, _ := readDoc(t, br); status != 200 {
			t.Errorf("reset: %d", status)
		}
		post(c, "/v1/chat/completions", "3", turn2)
		if _, third := readDoc(t, br); third.Usage.Details.Cached != 0 {
			t.Errorf("cached %d after the reset", third.Usage.Details.Cached)
		}
		if n := s.engine.Counters(); n.PrefixHits != int64(want) {
			t.Errorf("hits %d, want %d", n.PrefixHits, want)
		}
	})
}

func TestFaults(t *testing.T) {
	run := func(t *testing.T, fault string, stream bool) (string, []event, error) {
		f, err := ParseFaults(fault + "=100%")
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		_, l, stop := serving(t, Options{Profile: instant(t), Fixed: true, TTFT: 10 * ms, ITL: 10 * ms, Faults: f, StallTime: time.Second, EmissionLog: &log})
		c := l.dial()
		defer c.Close()
		start := time.Now()
		post(c, "/v1/completions", "x", `{"prompt":"x","max_tokens":4,"ignore_eos":true,"stream":`+strconv.FormatBool(stream)+`}`)
		var events []event
		br := bufio.NewReader(c)
		if head, _ := br.Peek(12); stream && string(head) == "HTTP/1.1 200" && fault != "html" {
			events, err = readStream(t, br, start)
		} else {
			var resp *http.Response
			if resp, err = http.ReadResponse(br, nil); err == nil {
				b, _ := io.ReadAll(resp.Body)
				events = []event{{data: fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Content-Type"), " ", string(b))}}
			}
		}
		stop()
		return log.String(), events, err
	}
	for _, test := range []struct {
		fault  string
		stream bool
		events int
		last   string
		broken bool
	}{
		{"http429", true, 1, "429 application/json", false},
		{"http503", true, 1, "503 application/json", false},
		{"html", true, 1, "200 text/html", false},
		{"error", true, 4, "[DONE]", false}, // two tokens, the error, the end
		{"error", false, 1, "500 application/json", false},
		{"reset", true, 2, "", true},
		{"cut", true, 2, "", true},
		{"stall", true, 5, "[DONE]", false},
	} {
		t.Run(test.fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, events, err := run(t, test.fault, test.stream)
				if len(events) != test.events || (err != nil) != test.broken {
					t.Fatalf("%d events, %v", len(events), err)
				}
				if last := events[len(events)-1]; !strings.HasPrefix(last.data, test.last) {
					t.Errorf("last event %s", last.data)
				}
				if test.fault == "stall" && (events[1].at != 20*ms || events[2].at != 1030*ms) {
					t.Errorf("stall: tokens at %v and %v", events[1].at, events[2].at)
				}
				if !strings.Contains(log, `"injected_fault":"`+test.fault+`"`) {
					t.Errorf("emission log %s", log)
				}
			})
		})
	}
}

func TestFaultSharesAreSeeded(t *testing.T) {
	f, err := ParseFaults("http429=10%, reset=0.05")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for n := range uint64(20000) {
		kind := f.draw(1, n)
		if again := f.draw(1, n); again != kind {
			t.Fatalf("a draw changed from %q to %q", kind, again)
		}
		count[kind]++
	}
	if count["http429"] < 1850 || count["http429"] > 2150 || count["reset"] < 900 || count["reset"] > 1100 {
		t.Errorf("draws %v", count)
	}
	for _, bad := range []string{"x=1%", "http200=1%", "reset", "reset=2", "reset=a", "reset=60%,cut=60%"} {
		if _, err := ParseFaults(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
