package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

var soakTime = flag.Duration("soak", 0, "length of TestSoak; 0: it does not run (make soak)")

var soakRate = flag.Float64("soak-rate", 40, "requests a second of TestSoak")

// held is what a process holds at one moment.
type held struct{ rss, threads, files float64 }

func holds(t *testing.T, pid int) (h held) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		v, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "VmRSS:":
			h.rss = v / 1024
		case "Threads:":
			h.threads = v
		}
	}
	es, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	h.files = float64(len(es))
	return h
}

// grew says whether the last third of a series lies above its middle third by more than a quarter and a slack: the first third is warm-up.
// Memory is held by its average; what follows the requests in flight, such as files, by its lower quartile, which a leak lifts and a peak does
// not.
func grew(v []float64, slack float64, low bool) (middle, last float64, bad bool) {
	n := len(v) / 3
	of := func(third []float64) float64 {
		third = slices.Sorted(slices.Values(third))
		if low {
			return third[n/4]
		}
		sum := 0.0
		for _, x := range third {
			sum += x
		}
		return sum / float64(n)
	}
	middle, last = of(v[n:2*n]), of(v[2*n:3*n])
	return middle, last, last > 1.25*middle+slack
}

// TestSoak runs replayer, recording proxy and simulator as processes at steady load: what each holds stays flat, every request is accounted
// for on both sides, and nothing is dropped.
func TestSoak(t *testing.T) {
	if *soakTime == 0 {
		t.Skip("SKIPPED: half an hour: make soak")
	}
	self, err := exec.LookPath("shadowtape")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	start := func(until string, args ...string) (*exec.Cmd, string) {
		c := exec.Command(self, args...)
		out, err := c.StdoutPipe()
		if until != "" {
			out, err = c.StderrPipe()
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Signal(syscall.SIGTERM); c.Wait() })
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if rest, ok := strings.CutPrefix(lines.Text(), until); ok {
				go func() {
					for lines.Scan() {
					}
				}()
				return c, strings.Fields(rest)[0]
			}
		}
		t.Fatalf("%q did not start", args)
		return nil, ""
	}
	sim, target := start("", "sim", "--listen", "127.0.0.1:0", "--ttft", "20ms", "--itl", "5ms")
	trace, run := filepath.Join(dir, "rec"), filepath.Join(dir, "run")
	proxy, address := start("recording what passes from ", "record", "--listen", "127.0.0.1:0", "--upstream", target, "-o", trace, "--segment-age", "5s")
	load := smallTrace(t, 600, time.Duration(float64(time.Second) / *soakRate), func(i int, x *formats.Exchange) { x.Stream = formats.Of(i%4 > 0) })
	replay := exec.Command(self, "replay", load, "--target", "http://"+address, "-o", run, "--loop", "0", "--duration", soakTime.String(), "--allow-invalid")
	var errs strings.Builder
	replay.Stderr = &errs
	if err := replay.Start(); err != nil {
		t.Fatal(err)
	}
	processes := map[string]*exec.Cmd{"simulator": sim, "recording proxy": proxy, "replayer": replay}
	series := map[string][]float64{}
	began := time.Now()
	for time.Since(began) < *soakTime-*soakTime/20 {
		time.Sleep(*soakTime / 120)
		for name, c := range processes {
			h := holds(t, c.Process.Pid)
			for what, v := range map[string]float64{"MB": h.rss, "threads": h.threads, "files": h.files} {
				series[name+" "+what] = append(series[name+" "+what], v)
			}
		}
	}
	if err := replay.Wait(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	proxy.Process.Signal(syscall.SIGTERM)
	proxy.Wait()
	tr, err := formats.Open(run)
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range tr.ClientSamples() {
		if err != nil {
			t.Fatal(err)
		}
		series["replayer goroutines"] = append(series["replayer goroutines"], float64(c.Goroutines))
	}
	for name, v := range series {
		slack := 8.0
		middle, last, bad := grew(v, slack, !strings.HasSuffix(name, "MB"))
		t.Logf("%s: %.1f in the middle third, %.1f in the last", name, middle, last)
		if bad {
			t.Errorf("%s grew from %.1f to %.1f", name, middle, last)
		}
	}
	rec, err := formats.Open(trace)
	if err != nil {
		t.Fatal(err)
	}
	m, k := tr.Manifest.Requests, rec.Header.Counters
	t.Logf("replayed %+v, recorded %+v", m, k)
	if m.Failed > 0 || m.Dropped > 0 || m.Scheduled != m.Sent+m.Dropped || m.Sent != m.Completed+m.Aborted+m.Failed+m.RunEnd {
		t.Errorf("replayed %+v", m)
	}
	if k.Dropped > 0 || k.Written < m.Completed || k.Seen != k.Filtered+k.Dropped+k.Written {
		t.Errorf("recorded %+v of %+v", k, m)
	}
}

func TestGrew(t *testing.T) {
	flat, rising := make([]float64, 90), make([]float64, 90)
	for i := range flat {
		flat[i], rising[i] = 50, 50+2*float64(i)
	}
	for _, low := range []bool{false, true} {
		if _, _, bad := grew(flat, 8, low); bad {
			t.Error("a flat series grew")
		}
		if _, _, bad := grew(rising, 8, low); !bad {
			t.Error("a rising series is flat")
		}
	}
	peak := slices.Clone(flat)
	for i := range 15 {
		peak[70+i] = 500
	}
	if _, _, bad := grew(peak, 8, true); bad {
		t.Error("a peak is a leak")
	}
	if _, _, bad := grew(peak, 8, false); !bad {
		t.Error("a peak of memory is none")
	}
}
