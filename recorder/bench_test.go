//go:build unix

package recorder

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// nowhere is a sink that counts.
type nowhere struct{ n int }

func (s *nowhere) Write(*formats.Exchange) error { s.n++; return nil }

// BenchmarkRecordFile records a made capture of 200 concurrent clients' streamed chats from a file: packets and bytes per second of one
// worker. SHADOWTAPE_BENCH_MB sets the file's size (default 32 MB), SHADOWTAPE_BENCH_FILE keeps it at that path for other tools.
func BenchmarkRecordFile(b *testing.B) {
	mb := 32
	if n, err := strconv.Atoi(os.Getenv("SHADOWTAPE_BENCH_MB")); err == nil && n > 0 {
		mb = n
	}
	name := os.Getenv("SHADOWTAPE_BENCH_FILE")
	if name == "" {
		name = filepath.Join(b.TempDir(), "bench.pcap")
	}
	writeTraffic(b, name, mb<<20)
	info, err := os.Stat(name)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(info.Size())
	b.ReportAllocs()
	b.ResetTimer()
	var packets, exchanges int64
	used := cpu(b)
	for b.Loop() {
		st, err := Record(context.Background(), &Files{Names: []string{name}, Key: []byte("0123456789abcdef")}, &nowhere{}, Options{})
		if err != nil || st.Written == 0 || st.Dropped > 0 {
			b.Fatalf("%v %+v", err, st)
		}
		packets += st.Packets
		exchanges += st.Written
	}
	b.ReportMetric(float64(packets)/b.Elapsed().Seconds(), "packets/s")
	b.ReportMetric(float64(packets)/(cpu(b)-used).Seconds(), "packets/cpu-s") // what the machine's other work does not change
	b.ReportMetric(float64(exchanges)/b.Elapsed().Seconds(), "exchanges/s")
}

// writeTraffic writes at least size bytes of a capture, one stretch of traffic after the other.
func writeTraffic(b testing.TB, name string, size int) {
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	written, shift := 0, int64(0)
	for seed := uint64(1); written < size; seed++ {
		frames := traffic(seed, 200, 4, 128)
		base := frames[0].at
		for i := range frames {
			frames[i].at += shift
		}
		out := pcapBytes(linkEthernet, frames)
		if written > 0 {
			out = out[24:]
		}
		if _, err := f.Write(out); err != nil {
			b.Fatal(err)
		}
		written += len(out)
		shift += frames[len(frames)-1].at - base - shift + 1e9
	}
}

// cpu is the process's user and system time so far.
func cpu(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
