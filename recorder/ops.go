package recorder

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/recorder/proxy"
)

// Monitor shows a recorder at work over HTTP: /metrics in the exposition format, /healthz, which is fine while the process lives (a full
// disk is no reason to restart what stands in the traffic), and /readyz, which is not once it has been told to stop.
type Monitor struct {
	Stats    func() Stats
	Backlog  func() (bytes int64, err error) // of the spool
	Traffic  func() proxy.Stats              // of a proxy; nil otherwise
	Draining func() bool                     // nil: never
	Version  string
	Started  time.Time
}

// ServeHTTP implements http.Handler.
func (m *Monitor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	switch r.URL.Path {
	case "/metrics":
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_ = m.WriteMetrics(w)
	case "/healthz":
		if _, err := m.Backlog(); err != nil {
			fmt.Fprintf(w, "alive, not recording: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
			return
		}
		io.WriteString(w, "ok\n")
	case "/readyz":
		if m.Draining != nil && m.Draining() {
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, "draining\n")
			return
		}
		io.WriteString(w, "ok\n")
	default:
		http.NotFound(w, r)
	}
}

// WriteMetrics writes the metrics page. No label holds anything that came over the wire.
func (m *Monitor) WriteMetrics(w io.Writer) error {
	p := page{w: bufio.NewWriter(w)}
	st := m.Stats()
	p.counter("shadowtape_exchanges_seen_total", "Exchanges met: filtered, dropped and written together.", st.Seen)
	p.counter("shadowtape_exchanges_written_total", "Exchanges written to the trace.", st.Written)
	filtered, dropped := map[string]int64{}, map[string]int64{}
	for reason, n := range st.Reasons {
		if name, ok := strings.CutPrefix(reason, "filtered_"); ok {
			filtered[name] += n
		} else if name, ok := strings.CutPrefix(reason, "dropped_"); ok {
			dropped[name] += n
		}
	}
	p.byReason("shadowtape_exchanges_filtered_total", "Exchanges left out as asked for.", filtered)
	p.byReason("shadowtape_exchanges_dropped_total", "Exchanges lost by the recorder.", dropped)
	p.counter("shadowtape_packets_total", "Packets read.", st.Packets)
	p.counter("shadowtape_bytes_total", "Bytes read.", st.Bytes)
	p.byReason("shadowtape_events_total", "What the recorder met and handled, by kind.", st.Notes)
	backlog, err := m.Backlog()
	p.gauge("shadowtape_queue_bytes", "Exchanges that wait for the disk.", backlog)
	p.gauge("shadowtape_writing", "1 while exchanges can be written.", boolean(err == nil))
	if m.Traffic != nil {
		t := m.Traffic()
		p.counter("shadowtape_proxy_connections_total", "Connections accepted.", t.Accepted)
		p.gauge("shadowtape_proxy_connections", "Connections now open.", t.Open)
		p.counter("shadowtape_proxy_upstream_unreachable_total", "Connections refused for want of the upstream.", t.DialFailed)
		p.counter("shadowtape_proxy_from_client_bytes_total", "Bytes passed to the upstream.", t.FromClient)
		p.counter("shadowtape_proxy_from_server_bytes_total", "Bytes passed to clients.", t.FromServer)
		p.gauge("shadowtape_proxy_backlog_bytes", "Bytes that passed and were not read along yet.", t.Backlog)
		p.counter("shadowtape_proxy_backlog_lost_bytes_total", "Bytes that passed and were not kept.", t.LostBytes)
		p.counter("shadowtape_proxy_parser_panics_total", "Failures of the parser that traffic did not notice.", t.Panics)
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	p.gauge("shadowtape_heap_bytes", "Heap in use.", int64(mem.HeapInuse))
	p.gauge("go_goroutines", "Goroutines.", int64(runtime.NumGoroutine()))
	p.seconds("process_cpu_seconds_total", "counter", "CPU time, user and system.", cpuTime().Seconds())
	p.seconds("process_start_time_seconds", "gauge", "Start, in seconds since 1970.", float64(m.Started.UnixNano())/1e9)
	p.head("shadowtape_build_info", "gauge", "The version.")
	fmt.Fprintf(p.w, "shadowtape_build_info{version=%s} 1\n", strconv.Quote(m.Version))
	return errors.Join(p.w.Flush())
}

func boolean(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// page writes the exposition format.
type page struct{ w *bufio.Writer }

func (p page) head(name, kind, help string) {
	fmt.Fprintf(p.w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (p page) counter(name, help string, n int64) {
	p.head(name, "counter", help)
	fmt.Fprintf(p.w, "%s %d\n", name, n)
}

func (p page) gauge(name, help string, n int64) {
	p.head(name, "gauge", help)
	fmt.Fprintf(p.w, "%s %d\n", name, n)
}

func (p page) seconds(name, kind, help string, v float64) {
	p.head(name, kind, help)
	fmt.Fprintf(p.w, "%s %s\n", name, strconv.FormatFloat(v, 'g', -1, 64))
}

func (p page) byReason(name, help string, m map[string]int64) {
	p.head(name, "counter", help)
	for _, reason := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(p.w, "%s{kind=%s} %d\n", name, strconv.Quote(reason), m[reason])
	}
}

// Budget divides the memory that a recorder may use.
type Budget struct {
	Memory  int64 // all of it
	Ring    int   // of packets, outside the Go heap, all workers together
	Held    int   // segments that wait for others
	Bodies  int   // of requests being read
	Backlog int64 // what passed a proxy and was not read along yet, or what a sink has read
	Queue   int64 // exchanges that wait for the disk
	Heap    int64 // soft limit of the Go heap
}

// The bounds of a budget.
const (
	MinMemory     = 64 << 20
	DefaultMemory = 512 << 20 // where neither the user nor the control group says anything
)

// Divide divides memory bytes, at least MinMemory. ring is what the packet rings take, 0 without any.
func Divide(memory, ring int64) Budget {
	memory = max(memory, MinMemory)
	b := Budget{Memory: memory, Ring: int(min(ring, memory/4))}
	rest := memory - int64(b.Ring)
	b.Held, b.Bodies, b.Backlog, b.Queue = int(rest/8), int(rest/8), rest/8, rest/16
	b.Heap = rest * 9 / 10
	return b
}
