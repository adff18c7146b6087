//go:build unix

package recorder

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/internal/benchreport"
)

var (
	fileMB     = flag.Int("file-mb", 0, "size of the capture that TestBenchFile records; 0: it does not run")
	fileRounds = flag.Int("file-rounds", 5, "rounds of TestBenchFile")
	tsharkMB   = flag.Int("tshark-mb", 64, "how much of the capture tshark reads: it takes minutes for a gigabyte, and its memory")
)

// ran is what a command took.
type ran struct {
	wall, cpu time.Duration
	memory    int64 // bytes, at most
}

// best keeps the least of each figure: what other work on the machine adds is no property of the command.
func (r *ran) best(o ran) {
	if r.wall == 0 {
		*r = o
		return
	}
	r.wall, r.cpu, r.memory = min(r.wall, o.wall), min(r.cpu, o.cpu), max(r.memory, o.memory)
}

func measure(t *testing.T, name string, args ...string) ran {
	t.Helper()
	c := exec.Command(name, args...)
	c.Stdout = io.Discard
	var errs strings.Builder
	c.Stderr = &errs
	start := time.Now()
	if err := c.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	// The system's own account of a child's memory begins with its parent's.
	ended, seen := make(chan struct{}), make(chan int64)
	go func() {
		memory := int64(0)
		for {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
			if _, rest, ok := strings.Cut(string(b), "VmHWM:"); ok {
				n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				memory = max(memory, n<<10)
			}
			select {
			case <-ended:
				seen <- memory
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	err := c.Wait()
	close(ended)
	memory := <-seen
	if err != nil {
		t.Fatalf("%s: %v %s", name, err, errs.String())
	}
	return ran{time.Since(start), c.ProcessState.UserTime() + c.ProcessState.SystemTime(), memory}
}

// TestBenchFile records a made capture of 200 concurrent clients from a file with the program itself, trace written, beside tcpdump copying
// the same file to nowhere and tshark reading request lines out of its beginning, in turns.
func TestBenchFile(t *testing.T) {
	if *fileMB == 0 {
		t.Skip("SKIPPED: a measurement: go test ./recorder -run BenchFile -file-mb=1024 -v")
	}
	dir := t.TempDir()
	capture, part, binary := filepath.Join(dir, "bench.pcap"), filepath.Join(dir, "part.pcap"), filepath.Join(dir, "shadowtape")
	writeTraffic(t, capture, *fileMB<<20)
	writeTraffic(t, part, min(*tsharkMB, *fileMB)<<20)
	build := exec.Command("go", "build", "-o", binary, "../cmd/shadowtape")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	info, err := os.Stat(capture)
	if err != nil {
		t.Fatal(err)
	}
	packets := 0
	for f, err := openCounted(capture); ; {
		if err != nil {
			t.Fatal(err)
		}
		var p packet
		if f.next(&p) != nil {
			break
		}
		packets++
	}
	record := func(name string) ran {
		return measure(t, binary, "record", "--pcap", name, "-o", filepath.Join(dir, "trace"), "--force")
	}
	var own, ownPart, tcpdump, tshark ran
	_, noTcpdump := exec.LookPath("tcpdump")
	_, noTshark := exec.LookPath("tshark")
	for range *fileRounds {
		own.best(record(capture))
		if noTcpdump == nil {
			tcpdump.best(measure(t, "tcpdump", "-r", capture, "-w", "/dev/null"))
		}
	}
	if noTshark == nil {
		tshark = measure(t, "tshark", "-r", part, "-T", "fields", "-e", "http.request.uri")
		ownPart = record(part)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d MB, %d packets, best of %d rounds, %d CPUs, %s %s, %s\n\n| what | CPU | wall | memory |\n|---|---|---|---|\n", info.Size()>>20, packets, *fileRounds, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, time.Now().UTC().Format("2006-01-02 15:04"))
	row := func(what string, r ran) {
		if r.wall > 0 {
			fmt.Fprintf(&b, "| %s | %.2f s | %.2f s | %d MB |\n", what, r.cpu.Seconds(), r.wall.Seconds(), r.memory>>20)
		}
	}
	row("`shadowtape record --pcap FILE`", own)
	row("`tcpdump -r FILE -w /dev/null`", tcpdump)
	row(fmt.Sprintf("`shadowtape record` of the first %d MB", *tsharkMB), ownPart)
	row(fmt.Sprintf("`tshark -r FILE -T fields -e http.request.uri` of the first %d MB", *tsharkMB), tshark)
	t.Log("\n" + b.String())
	figure := func(name string, v float64, unit, better, note string) {
		benchreport.Record(t, benchreport.Figure{Group: "recorder", Name: name, Value: v, Unit: unit, Better: better, Note: note})
	}
	note := fmt.Sprintf("a capture of %d MB, trace written, best of %d", info.Size()>>20, *fileRounds)
	figure("packets a CPU second, from a file", float64(packets)/own.cpu.Seconds(), "1/s", "higher", note)
	figure("bytes a CPU second, from a file", float64(info.Size())/own.cpu.Seconds(), "bytes/s", "higher", note)
	figure("memory, from a file", float64(own.memory), "bytes", "lower", note)
	if tcpdump.cpu > 0 {
		figure("CPU time of tcpdump -w /dev/null", own.cpu.Seconds()/tcpdump.cpu.Seconds(), benchreport.Ratio, "lower", "as many times as much; the best of each")
		figure("memory of tcpdump", float64(tcpdump.memory), "bytes", "", "")
	}
	if tshark.cpu > 0 {
		figure("CPU time, tshark's as a multiple", tshark.cpu.Seconds()/ownPart.cpu.Seconds(), benchreport.Ratio, "higher", fmt.Sprintf("on %d MB", *tsharkMB))
		figure("wall time, tshark's as a multiple", tshark.wall.Seconds()/ownPart.wall.Seconds(), benchreport.Ratio, "higher", fmt.Sprintf("on %d MB", *tsharkMB))
		figure("memory of tshark", float64(tshark.memory), "bytes", "", fmt.Sprintf("on %d MB", *tsharkMB))
	}
}

func openCounted(name string) (*captureReader, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return newCaptureReader(f)
}
