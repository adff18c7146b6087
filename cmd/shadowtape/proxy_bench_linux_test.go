package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/internal/benchreport"
)

var (
	proxyStreams = flag.Int("proxy-streams", 0, "streams of TestBenchProxy; 0: it does not run")
	proxyRounds  = flag.Int("proxy-rounds", 3, "rounds of TestBenchProxy")
	proxyBinary  = flag.String("proxy-binary", "", "the program for TestBenchProxy (default: it is built)")
	proxyTime    = flag.Duration("proxy-time", 8*time.Second, "length of each of its measurements")
	proxyCore    = flag.Bool("proxy-core", false, "the proxies run on the second processor, and all others on the first, in place of sharing both")
	proxyEven    = flag.Bool("proxy-even", false, "with -proxy-core: server and clients are one thread that never sleeps, so that nothing leaves in bursts")
)

// TestBenchServer is the server of TestBenchProxy in a process of its own: it answers each request after 50 ms with an event every 50 ms.
// An event carries the server's own times: when it had the request, and when it wrote the event.
func TestBenchServer(t *testing.T) {
	address := os.Getenv("PROXY_BENCH_SERVER")
	if address == "" {
		return
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go benchServe(c)
	}
}

func benchServe(c net.Conn) {
	defer c.Close()
	b := make([]byte, 4096)
	var out []byte
	for {
		n := 0
		for !bytes.HasSuffix(b[:n], []byte("}")) { // the request's body ends so
			m, err := c.Read(b[n:])
			if err != nil {
				return
			}
			n += m
		}
		had := time.Now().UnixNano()
		next := time.Now()
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range 40 {
			next = next.Add(50 * time.Millisecond)
			time.Sleep(time.Until(next))
			out = benchChunk(out[:0], had)
			if _, err := c.Write(out); err != nil {
				return
			}
		}
		io.WriteString(c, benchLast)
	}
}

// benchChunk appends an event written now.
func benchChunk(out []byte, had int64) []byte {
	event := fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","had":%d,"wrote":%d,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}`, had, time.Now().UnixNano())
	return fmt.Appendf(out, "%x\r\n%s\n\n\r\n", len(event)+2, event)
}

const benchLast = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

// benchTimes are what a client saw: the way there and back of a first token, and the way back of every token.
type benchTimes struct {
	first, token []time.Duration
	seen         map[benchEvent]int64 // when the client had read each event; nil: it is not asked
}

// benchEvent is an event, by when the server had its request and wrote it.
type benchEvent struct{ had, wrote int64 }

// number reads the number behind a key.
func number(line []byte, key string) int64 {
	_, rest, _ := bytes.Cut(line, []byte(key))
	digits, _, _ := bytes.Cut(rest, []byte(","))
	n, _ := strconv.ParseInt(string(digits), 10, 64)
	return n
}

// benchClient keeps one stream open after another until the end.
func benchClient(address string, delay time.Duration, end time.Time, keep bool) (all benchTimes, err error) {
	c, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return all, err
	}
	defer c.Close()
	if keep {
		all.seen = map[benchEvent]int64{}
	}
	time.Sleep(time.Second + delay) // all have connected by then
	r := bufio.NewReaderSize(c, 4096)
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(benchBody), benchBody)
	for time.Now().Before(end) {
		sent := time.Now().UnixNano()
		if _, err := c.Write(request); err != nil {
			return all, err
		}
		for tokens := 0; ; {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return all, err
			}
			now := time.Now().UnixNano()
			if bytes.HasPrefix(line, []byte("data: {")) {
				e := benchEvent{number(line, `"had":`), number(line, `"wrote":`)}
				back := now - e.wrote
				all.token = append(all.token, time.Duration(back))
				if keep {
					all.seen[e] = now
				}
				if tokens++; tokens == 1 {
					all.first = append(all.first, time.Duration(back+e.had-sent))
				}
			}
			if bytes.HasPrefix(line, []byte("0\r")) {
				if _, err := r.ReadSlice('\n'); err != nil {
					return all, err
				}
				break
			}
		}
	}
	return all, nil
}

const benchBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":1}]}`

func (b *benchTimes) add(o benchTimes) {
	b.first, b.token = append(b.first, o.first...), append(b.token, o.token...)
	if b.seen != nil {
		maps.Copy(b.seen, o.seen)
	}
}

func at(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[int(p*float64(len(d)-1))]
}

// usage is a process's memory and CPU time, its children's included.
func usage(pid int) (rss int64, cpu time.Duration) {
	pids := []int{pid}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, f := range strings.Fields(string(children)) {
		n, _ := strconv.Atoi(f)
		pids = append(pids, n)
	}
	for _, p := range pids {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
		if _, rest, ok := strings.Cut(string(status), "VmRSS:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			rss += n << 10
		}
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if _, rest, ok := strings.Cut(string(stat), ") "); ok {
			f := strings.Fields(rest)
			user, _ := strconv.ParseInt(f[11], 10, 64)
			system, _ := strconv.ParseInt(f[12], 10, 64)
			cpu += time.Duration(user+system) * 10 * time.Millisecond
		}
	}
	return rss, cpu
}

// TestBenchProxy measures what the recording proxy adds, against the direct way and nginx, in turns in the same minutes.
func TestBenchProxy(t *testing.T) {
	if *proxyStreams == 0 {
		t.Skip("SKIPPED: a measurement: go test ./cmd/shadowtape -run BenchProxy -proxy-streams 1000 -v")
	}
	dir := t.TempDir()
	if *proxyCore { // and so do the children, unless start says otherwise
		if out, err := exec.Command("taskset", "-a", "-c", "-p", "0", strconv.Itoa(os.Getpid())).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		runtime.GOMAXPROCS(1)
	}
	start := func(env, name string, args ...string) *exec.Cmd {
		if *proxyCore && env == "" {
			name, args = "taskset", append([]string{"-c", "1", name}, args...)
		}
		c := exec.Command(name, args...)
		c.Env = append(os.Environ(), env)
		c.Dir, c.WaitDelay, c.Stderr = dir, time.Second, os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Signal(syscall.SIGTERM); c.Wait() })
		return c
	}
	server, recorder, front := freeAddress(t), freeAddress(t), freeAddress(t)
	if !*proxyEven {
		start("PROXY_BENCH_SERVER="+server, os.Args[0], "-test.run=^TestBenchServer$", "-test.timeout=1h")
	}
	binary := *proxyBinary
	if binary == "" {
		binary = filepath.Join(dir, "shadowtape")
		build := exec.Command("go", "build", "-o", binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	ways := []struct {
		name, address string
		process       *exec.Cmd
		times         benchTimes
		cpu           time.Duration
		tokens        int
		rss           int64
	}{{name: "direct", address: server}}
	add := func(name, address string, c *exec.Cmd) {
		w := ways[0]
		w.name, w.address, w.process = name, address, c
		ways = append(ways, w)
	}
	if nginx, err := exec.LookPath("nginx"); err == nil {
		config := filepath.Join(dir, "nginx.conf")
		text := fmt.Sprintf("worker_processes 1; pid nginx.pid; error_log stderr crit; events { worker_connections 8192; }\nhttp { access_log off; upstream s { server %s; keepalive 4096; }\n"+
			"server { listen %s backlog=8192; keepalive_requests 1000000; location / { proxy_pass http://s; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; } } }\n", server, front)
		if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		add("nginx, 1 worker", front, start("", nginx, "-p", dir, "-c", config, "-g", "daemon off; user root;"))
	}
	add("shadowtape record", recorder, start("", binary, "record", "--listen", recorder, "--upstream", "http://"+server, "-o", filepath.Join(dir, "trace")))
	time.Sleep(time.Second)
	load := func(name, address string, times *benchTimes) {
		if *proxyEven {
			got, err := runEven(server, address, *proxyStreams, *proxyTime)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			times.add(*got)
			return
		}
		end := time.Now().Add(time.Second + *proxyTime)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for s := range *proxyStreams {
			wg.Go(func() {
				got, err := benchClient(address, time.Duration(s)*2*time.Second/time.Duration(*proxyStreams), end, times.seen != nil)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				times.add(got)
			})
		}
		wg.Wait()
	}
	for round := range *proxyRounds {
		for i := range ways {
			w := &ways[i]
			var before, after time.Duration
			if w.process != nil {
				_, before = usage(w.process.Process.Pid)
			}
			load(w.name, w.address, &w.times)
			w.tokens = len(w.times.token)
			if w.process != nil {
				var rss int64
				rss, after = usage(w.process.Process.Pid)
				w.rss = max(w.rss, rss)
				w.cpu += after - before
			}
			t.Logf("round %d, %s: %d first tokens", round+1, w.name, len(w.times.first))
		}
	}
	var parts strings.Builder
	for _, w := range ways {
		if *proxyEven {
			break // the way is all there is
		}
		times := benchTimes{seen: map[benchEvent]int64{}}
		wire, err := onLoopback(dir, server, w.address, func() { load(w.name, w.address, &times) })
		if err != nil {
			t.Logf("where the time goes is not known: %v", err)
			break
		}
		parts.WriteString(benchParts(w.name, wire, times.seen))
	}
	var b strings.Builder
	shared := "shared by all"
	if *proxyCore {
		shared = "one of them the proxy's own"
	}
	if *proxyEven {
		shared += ", events one by one"
	}
	fmt.Fprintf(&b, "%d streams of 20 tokens/s, %d rounds of %s each, %d CPUs, %s, %s\n\n", *proxyStreams, *proxyRounds, *proxyTime, runtime.NumCPU(), shared, time.Now().UTC().Format("2006-01-02 15:04"))
	fmt.Fprintln(&b, "| way | first token p50 | p99 | token p50 | p99 | CPU us a token | memory |\n|---|---|---|---|---|---|---|")
	us := func(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e3, 'f', 0, 64) + " us" }
	for _, w := range ways {
		slices.Sort(w.times.first)
		slices.Sort(w.times.token)
		cpu, memory := "", ""
		if w.process != nil {
			cpu, memory = strconv.FormatFloat(float64(w.cpu)/1e3/float64(w.tokens), 'f', 1, 64), fmt.Sprintf("%d MiB", w.rss>>20)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", w.name, us(at(w.times.first, .5)), us(at(w.times.first, .99)), us(at(w.times.token, .5)), us(at(w.times.token, .99)), cpu, memory)
	}
	if parts.Len() > 0 {
		fmt.Fprintf(&b, "\nWhere a token's time goes, by the kernel's stamps of the packets on loopback (tcpdump beside it takes its part of the processors):\n\n")
		fmt.Fprintln(&b, "| way | part | p50 | p90 | p99 |\n|---|---|---|---|---|")
		b.WriteString(parts.String())
	}
	t.Log("\n" + b.String())
	figure := func(name string, v float64, unit, better string) {
		benchreport.Record(t, benchreport.Figure{Group: "proxy", Name: fmt.Sprintf("%s, %d streams%s", name, *proxyStreams, map[bool]string{true: ", a core of its own"}[*proxyCore]+map[bool]string{true: ", events one by one"}[*proxyEven]), Value: v, Unit: unit, Better: better})
	}
	direct := ways[0]
	var added [2][2]float64 // nginx, shadowtape: of the first token at p50 and p99, in microseconds
	for i, w := range ways[1:] {
		for j, p := range []float64{.5, .99} {
			us := float64(at(w.times.first, p)-at(direct.times.first, p)) / 1e3
			figure(fmt.Sprintf("added to the first token's p%g by %s", 100*p, w.name), us, "us", "lower")
			if i == len(ways)-2 {
				added[1][j] = us
			} else {
				added[0][j] = us
			}
		}
		figure("CPU a token of "+w.name, float64(w.cpu)/1e3/float64(w.tokens), "us", "lower")
		figure("memory of "+w.name, float64(w.rss), "bytes", "lower")
	}
	if len(ways) == 3 && added[0][0] > 0 && added[0][1] > 0 {
		figure("added to the first token's p50, as a multiple of nginx's", added[1][0]/added[0][0], benchreport.Ratio, "lower")
		figure("added to the first token's p99, as a multiple of nginx's", added[1][1]/added[0][1], benchreport.Ratio, "lower")
		figure("CPU a token, as a multiple of nginx's", float64(ways[2].cpu)/float64(ways[2].tokens)/(float64(ways[1].cpu)/float64(ways[1].tokens)), benchreport.Ratio, "lower")
	}
}
