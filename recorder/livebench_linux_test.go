package recorder

import (
	"context"
	"flag"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/benchreport"
	"github.com/shadowtape/shadowtape/recorder/netlab"
	"github.com/shadowtape/shadowtape/recorder/ring"
)

var livePackets = flag.Int("live-packets", 0, "packets that TestBenchLive sends at each rate; 0: it does not run")

// TestBenchLive sends made chat traffic over a veth at growing rates and says what the recorder on it lost.
func TestBenchLive(t *testing.T) {
	if *livePackets == 0 {
		t.Skip("SKIPPED: a measurement: go test ./recorder -run BenchLive -live-packets=1000000 -v")
	}
	var frames []frame
	for seed := uint64(1); len(frames) < *livePackets; seed++ {
		frames = append(frames, traffic(seed, 50, 4, 200)...)
	}
	var b strings.Builder
	best, most := 0.0, 0.0 // packets a second without a drop, and what they took of a processor
	fmt.Fprintf(&b, "%d packets, %d CPUs, ring of 32 MiB, %s\n\n| asked packets/s | sent packets/s | Mbit/s | kernel drops | CPU s of the recorder's process per s | exchanges |\n|---|---|---|---|---|---|\n", len(frames), runtime.NumCPU(), time.Now().UTC().Format("2006-01-02 15:04"))
	for _, rate := range []int{50_000, 100_000, 200_000, 400_000, 0} {
		h, far := netlab.NewHost(t), netlab.NewHost(t)
		netlab.Link(h, "v0", "", far, "v1", "")
		l := &Live{Ring: ring.Options{Interface: "v0", Filter: ring.Ports(8000)}, Key: liveKey}
		var err error
		h.Do(func() { err = l.Open() })
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		n := 0
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx, Filter{}, func(*formats.Exchange) { n++ }) }()
		cpu, start := cpuTime(), time.Now()
		bytes, own := blast(t, far, "v1", frames, rate)
		took := time.Since(start)
		used := cpuTime() - cpu - own
		time.Sleep(300 * time.Millisecond)
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		s := l.Stats()
		l.Close()
		asked := "as fast as it goes"
		if rate > 0 {
			asked = fmt.Sprint(rate)
		}
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %d | %.2f | %d |\n", asked, float64(len(frames))/took.Seconds(), float64(bytes)*8/1e6/took.Seconds(), s.Notes["kernel_drops"], used.Seconds()/took.Seconds(), n)
		if sent := float64(len(frames)) / took.Seconds(); s.Notes["kernel_drops"] == 0 && sent > best {
			best, most = sent, used.Seconds()/took.Seconds()
		}
		if s.Notes["kernel_received"] != s.Packets+s.Notes["kernel_drops"] {
			t.Errorf("%+v", s)
		}
	}
	t.Log("\n" + b.String())
	note := "over a veth, one worker, a ring of 32 MiB; the sender may be the limit"
	benchreport.Record(t, benchreport.Figure{Group: "recorder", Name: "live packets a second without a drop", Value: best, Unit: "1/s", Better: "higher", Note: note})
	benchreport.Record(t, benchreport.Figure{Group: "recorder", Name: "processors at that rate", Value: most, Unit: "CPUs", Better: "lower", Note: note})
}

// blast sends frames out of an interface at a rate, 0 as fast as it goes; it returns their bytes and the CPU time of the sending thread.
func blast(t *testing.T, h *netlab.Host, name string, frames []frame, rate int) (bytes int64, own time.Duration) {
	t.Helper()
	var err error
	h.Do(func() {
		var ifi *net.Interface
		if ifi, err = net.InterfaceByName(name); err != nil {
			return
		}
		var fd int
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); err != nil {
			return
		}
		defer unix.Close(fd)
		_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
		if err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifi.Index}); err != nil {
			return
		}
		var before, after unix.Rusage
		unix.Getrusage(unix.RUSAGE_THREAD, &before)
		start := time.Now()
		for i := range frames {
			if rate > 0 && i%64 == 0 {
				for due := start.Add(time.Duration(i) * time.Second / time.Duration(rate)); time.Now().Before(due); {
					time.Sleep(20 * time.Microsecond)
				}
			}
			if _, err = unix.Write(fd, frames[i].data); err != nil {
				return
			}
			bytes += int64(len(frames[i].data))
		}
		unix.Getrusage(unix.RUSAGE_THREAD, &after)
		own = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes, own
}
