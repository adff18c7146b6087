package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
	"github.com/shadowtape/shadowtape/replayer"
)

const recordKey = "a key of the record tests, long enough"

func keyFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(name, []byte(recordKey), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// recording is a record that runs in process.
type recording struct {
	base string // what it listens on, as a URL
	end  func() (code int, out, errs string)
}

// startRecording runs record until end is called.
func startRecording(t *testing.T, args ...string) recording {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r, w := io.Pipe()
	var out bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"record"}, args...), strings.NewReader(""), &out, w)
		w.Close()
	}()
	lines := bufio.NewScanner(r)
	var errs strings.Builder
	base := ""
	for base == "" && lines.Scan() {
		errs.WriteString(lines.Text() + "\n")
		for _, before := range []string{"recording what passes from ", "recording requests mirrored to "} {
			if rest, ok := strings.CutPrefix(lines.Text(), before); ok {
				base = "http://" + strings.Fields(rest)[0]
			}
		}
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines.Scan() {
			errs.WriteString(lines.Text() + "\n")
		}
	}()
	if base == "" {
		t.Fatalf("record did not start: %s", errs.String())
	}
	end := sync.OnceValues(func() (int, string) {
		stop()
		c := <-code
		<-read
		return c, errs.String()
	})
	t.Cleanup(func() { end() })
	return recording{base, func() (int, string, string) { c, e := end(); return c, out.String(), e }}
}

// TestCircle: what the proxy records between replay and simulator and what the replay writes agree on every request, and the recording
// replays again.
func TestCircle(t *testing.T) {
	target, _ := startSim(t, "--ttft", "20ms", "--itl", "3ms")
	dir := t.TempDir()
	rec, first, second, third := filepath.Join(dir, "rec"), filepath.Join(dir, "run1"), filepath.Join(dir, "run2"), filepath.Join(dir, "run3")
	trace := smallTrace(t, 80, 15*time.Millisecond, func(i int, x *formats.Exchange) { x.Stream = formats.Of(i%4 != 3) })
	p := startRecording(t, "--listen", "127.0.0.1:0", "--upstream", target, "-o", rec, "--key-file", keyFile(t))
	if code, out, errs := shadowtape(t, "replay", trace, "--target", p.base, "-o", first, "--allow-invalid"); code != exitGood {
		t.Fatalf("replay: %d %s %s", code, out, errs)
	}
	if code, out, errs := p.end(); code != exitGood || !strings.Contains(out, " 0 dropped") {
		t.Fatalf("record: %d %s %s", code, out, errs)
	}
	agree(t, rec, first, 80)
	if code, out, errs := shadowtape(t, "replay", rec, "--target", target, "-o", second, "--allow-invalid"); code != exitGood {
		t.Fatalf("replay of the recording: %d %s %s", code, out, errs)
	}
	if code, out, errs := shadowtape(t, "replay", second, "--target", target, "-o", third, "--allow-invalid"); code != exitGood {
		t.Fatalf("replay of the replay of the recording: %d %s %s", code, out, errs)
	}
	for _, verb := range [][]string{{"analyze", rec, first, second, third}, {"diff", second, third}} {
		if code, out, errs := shadowtape(t, verb...); code != exitGood && code != exitInconclusive && code != exitInvalid {
			t.Errorf("%v: %d %s %s", verb, code, out, errs)
		}
	}
}

// agree joins a recording and a run on x-request-id.
func agree(t *testing.T, rec, run string, n int) {
	t.Helper()
	h := openai.NewHasher([]byte(recordKey))
	a, err := formats.Open(run)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	prefix, _ := a.Manifest.Options["request_ids"].(string)
	recorded := readBy(t, rec)
	joined := 0
	var differ []time.Duration
	for x, err := range a.All() {
		if err != nil {
			t.Fatal(err)
		}
		if x.Phase != formats.PhaseMeasure {
			continue
		}
		y := recorded[h.Sum("request", replayer.RequestID(prefix, x.ArrivalIndex.V))]
		if y == nil {
			t.Errorf("request %d is not in the recording", x.ArrivalIndex.V)
			continue
		}
		joined++
		if x.InputTokens != y.InputTokens || x.OutputTokens != y.OutputTokens || x.Stream != y.Stream || x.Status != y.Status || x.EndReason != y.EndReason || x.FinishReason != y.FinishReason || x.ResponseBytes != y.ResponseBytes {
			t.Errorf("request %d:\n   run %+v\nrecord %+v", x.ArrivalIndex.V, x, y)
		}
		if x.Stream.V {
			// The proxy stands between: what it measures lies within what the client measures.
			client, wire := x.FirstTokenNS.V-x.SentNS.V, y.FirstTokenNS.V
			if wire > client {
				t.Errorf("request %d: first token after %d ns on the wire, %d ns at the client", x.ArrivalIndex.V, wire, client)
			}
			differ = append(differ, time.Duration(client-wire))
		}
	}
	if joined != n {
		t.Errorf("%d of %d requests joined", joined, n)
	}
	if slices.Sort(differ); len(differ) > 0 {
		t.Logf("time to first token at the client minus that on the wire: median %s", differ[len(differ)/2])
	}
}

// readBy reads a trace by correlation id; one that comes twice is an error.
func readBy(t *testing.T, where string) map[formats.Hash]*formats.Exchange {
	t.Helper()
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	all := map[formats.Hash]*formats.Exchange{}
	c := tr.Header.Counters
	if c.Seen != c.Filtered+c.Dropped+c.Written {
		t.Errorf("%+v does not add up", c)
	}
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		if !x.CorrelationID.Valid {
			continue
		}
		if all[x.CorrelationID.V] != nil {
			t.Errorf("one request is recorded twice: %+v and %+v", x, all[x.CorrelationID.V])
		}
		all[x.CorrelationID.V] = x
	}
	return all
}

var kills = flag.Int("kills", 6, "how often TestKilled kills the recorder")

// TestRecordChild is the program itself in a process of its own, for tests that kill it; by itself it does nothing.
func TestRecordChild(t *testing.T) {
	if args := os.Getenv("RECORD_TEST_CHILD"); args != "" {
		os.Args = append([]string{"shadowtape"}, strings.Split(args, "\n")...)
		main()
	}
}

// child starts the program in a process that ends with the test.
func child(t *testing.T, errs io.Writer, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestRecordChild$")
	c.Env = append(os.Environ(), "RECORD_TEST_CHILD="+strings.Join(args, "\n"))
	dieWithParent(c)
	c.Stderr = errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// TestKilled kills the recorder with -9 at random moments while it records, and compares what is on disk with what was served: no
// exchange that ended more than a second before a kill is lost, none is there twice; and the bodies that it keeps are those of their rows.
func TestKilled(t *testing.T) {
	target, _ := startSim(t, "--ttft", "4ms", "--itl", "1ms")
	dir := t.TempDir()
	rec, bodies, key := filepath.Join(dir, "rec"), filepath.Join(dir, "bodies"), keyFile(t)
	address := freeAddress(t)
	type served struct {
		id  int
		end time.Time
	}
	var mu sync.Mutex
	var ended []served
	sent := 0
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{}}
			for {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				sent++
				id := sent
				mu.Unlock()
				r, _ := http.NewRequest("POST", "http://"+address+"/v1/chat/completions", strings.NewReader(fmt.Sprintf(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":8,"ignore_eos":true,"messages":[{"role":"user","content":"kill-%d"}]}`, id)))
				r.Header.Set("X-Request-Id", fmt.Sprint("kill-", id))
				resp, err := client.Do(r)
				if err == nil {
					b, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err == nil && bytes.Contains(b, []byte("[DONE]")) {
						mu.Lock()
						ended = append(ended, served{id, time.Now()})
						mu.Unlock()
					}
				} else {
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
	// A machine that lets a sleeper oversleep lets the recorder wait as well: it is given ten times as long on top.
	var overslept atomic.Int64
	clients.Go(func() {
		for {
			before := time.Now()
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			overslept.Store(max(overslept.Load(), int64(time.Since(before)-10*time.Millisecond)))
		}
	})
	grace := func() time.Duration { return time.Second + 10*time.Duration(overslept.Load()) }
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	var killed []time.Time
	args := []string{"record", "--listen", address, "--upstream", target, "-o", rec, "--append", "--key-file", key, "--segment-age", "400ms", "--keep-bodies", bodies}
	for range *kills {
		c := child(t, io.Discard, args...)
		due := func() (n int) { // of this process, and long enough ago
			mu.Lock()
			defer mu.Unlock()
			for i := len(ended) - 1; i >= 0 && (len(killed) == 0 || ended[i].end.After(killed[len(killed)-1])); i-- {
				if time.Since(ended[i].end) > grace() {
					n++
				}
			}
			return n
		}
		for began := time.Now(); due() < 10; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > 3*time.Minute {
				t.Fatal("nothing is served")
			}
		}
		time.Sleep(time.Duration(r.IntN(900)) * time.Millisecond)
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		c.Wait()
		killed = append(killed, time.Now())
	}
	close(stop)
	clients.Wait()
	if code, out, errs := shadowtape(t, "repair", rec); code != exitGood {
		t.Fatalf("repair: %d %s %s", code, out, errs)
	}
	h := openai.NewHasher([]byte(recordKey))
	onDisk := readBy(t, rec)
	texts := bodiesIn(t, bodies) // of which none is half, and no number is there twice
	due, late := 0, 0
	for _, s := range ended {
		after, _ := slices.BinarySearchFunc(killed, s.end, time.Time.Compare)
		x := onDisk[h.Sum("request", fmt.Sprint("kill-", s.id))]
		switch {
		case after < len(killed) && killed[after].Sub(s.end) <= grace():
			late++
		case x == nil:
			t.Errorf("request %d ended %s before the kill and is lost", s.id, killed[min(after, len(killed)-1)].Sub(s.end))
		case x.EndReason != formats.EndComplete || x.OutputTokens.V != 8:
			t.Errorf("request %d was served whole and is recorded as %s, %d tokens", s.id, x.EndReason, x.OutputTokens.V)
		case !strings.Contains(texts[x.ExchangeID], fmt.Sprintf(`"kill-%d"`, s.id)):
			t.Errorf("request %d is row %d, whose body is %q", s.id, x.ExchangeID, texts[x.ExchangeID])
		default:
			due++
		}
	}
	cut := 0
	rows := map[int64]bool{}
	for _, x := range onDisk {
		rows[x.ExchangeID] = true
		if x.EndReason == formats.EndCaptureCut {
			cut++
		}
	}
	for id := range texts {
		if !rows[id] {
			t.Errorf("a body of row %d, which is not there", id)
		}
	}
	t.Logf("%d kills: %d exchanges served, %d of them in the last second before a kill, %d on disk (%d cut in flight)", *kills, len(ended), late, len(onDisk), cut)
	if due == 0 || len(onDisk) > sent {
		t.Errorf("%d due, %d on disk, %d sent: the test tests nothing", due, len(onDisk), sent)
	}
}

// TestTerminated sends SIGTERM while an answer is under way: it is finished and recorded, new connections are refused, and the process ends
// well.
func TestTerminated(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 8 {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"w%d \"}}]}\n\n", i)
			if i == 0 {
				w.(http.Flusher).Flush()
				close(asked)
				<-release
			}
		}
		io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":8}}\n\ndata: [DONE]\n\n")
	}))
	defer server.Close()
	rec, address := filepath.Join(t.TempDir(), "rec"), freeAddress(t)
	var errs lockedBuffer
	c := child(t, &errs, "record", "--listen", address, "--upstream", server.URL, "-o", rec, "--sample", "1", "--json")
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(errs.String(), "recording what passes"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(errs.String())
		}
	}
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Post("http://"+address+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":8,"ignore_eos":true,"messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			answer <- err.Error()
			return
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		answer <- string(b)
	}()
	<-asked
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) { // it has heard when it refuses
		probe, err := net.Dial("tcp", address)
		if err != nil {
			break
		}
		probe.Close()
		if time.Now().After(deadline) {
			t.Error("it still accepts connections")
			break
		}
	}
	close(release)
	if a := <-answer; !strings.Contains(a, "[DONE]") {
		t.Errorf("the answer under way: %.300q", a)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.String())
	}
	tr, err := formats.Open(rec)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	for x, err := range tr.All() {
		if err != nil || x.EndReason != formats.EndComplete || x.OutputTokens.V != 8 {
			t.Errorf("%+v %v", x, err)
		}
	}
	if tr.Rows != 1 {
		t.Errorf("%d rows", tr.Rows)
	}
}

// lockedBuffer may be written and read by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func TestRecordSink(t *testing.T) {
	rec := filepath.Join(t.TempDir(), "rec")
	s := startRecording(t, "--sink", "127.0.0.1:0", "-o", rec, "--key-file", keyFile(t), "--json", "--metrics-listen", "127.0.0.1:0", "--sample-by", "window", "--sample", "0.999999")
	if resp, err := http.Get(s.base + "/health"); err == nil { // filtered
		resp.Body.Close()
	}
	for i := range 5 {
		resp, err := http.Post(s.base+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"m","max_tokens":%d,"messages":[{"role":"user","content":"x"}]}`, i+1)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			t.Error(resp.Status)
		}
	}
	code, out, errs := s.end()
	var a recordAnswer
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != exitGood || a.Written != 5 || !strings.Contains(errs, "metrics on http://") {
		t.Errorf("%d %s %s %v", code, out, errs, err)
	}
	documentedKeys(t, "record", out)
	tr, err := formats.Open(rec)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if h := tr.Header; h.SamplingFraction != 0.999999 || h.Extra["sample_by"] != "window" || h.Extra["sample_window_s"] != 300.0 || h.SourceKind != "sink" || h.Counters.Written != 5 || h.Counters.Filtered != 1 {
		t.Errorf("%+v", h)
	}
	if code, out, errs := shadowtape(t, "inspect", rec); code != exitGood || !strings.Contains(out, "5 exchanges") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

func TestRecordLiveUsage(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args, want string
	}{
		{"", "record needs a source"},
		{"--interface lo --sink :0 -o x", "one source"},
		{"--listen :0 -o x", "--upstream"},
		{"--listen :0 --upstream ftp://x -o x", "is no http or https URL"},
		{"--listen :0 --upstream http://x/v1 -o x", "server only"},
		{"--listen :0 --upstream http://x", "needs -o"},
		{"--listen :0 --upstream http://x -o x.parquet", "directory"},
		{"--sink :0 --check", "--check"},
		{"--sink :0 -o x --sample 0", "--sample 0"},
		{"--sink :0 -o x --sample 2", "fraction"},
		{"--sink :0 -o x --sample-by request", "session, tenant or window"},
		{"--sink :0 -o x --status 6xx", "status"},
		{"--sink :0 -o x --memory 1MB", "--memory"},
		{"--sink :0 -o x --memory lots", "no size"},
		{"--interface lo -o x --filter udp", "not one of"},
		{"--interface lo -o x --ring 1", "ring of"},
	} {
		args := strings.Fields(c.args)
		for i, a := range args {
			if a == "x" {
				args[i] = filepath.Join(dir, "x")
			}
		}
		code, out, errs := shadowtape(t, append([]string{"record"}, args...)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("record %s: %d %s%s", c.args, code, out, errs)
		}
	}
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "4096": 4096, "64KiB": 65536, "1.5GiB": 3 << 29, "100 MB": 100_000_000, "7B": 7} {
		var b byteSize
		if err := b.Set(text); err != nil || int64(b) != want {
			t.Errorf("%s: %d, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "NaN", "1e30", "1XB"} {
		var b byteSize
		if b.Set(text) == nil {
			t.Errorf("%s: %d", text, b)
		}
	}
	if b := byteSize(64 << 20); b.String() != "64MiB" {
		t.Error(b.String())
	}
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
