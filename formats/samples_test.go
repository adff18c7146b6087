package formats

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sampleRows are a page's worth of samples at a time.
func sampleRows(at int64, n int) []ServerSample {
	rows := make([]ServerSample, n)
	for i := range rows {
		rows[i] = ServerSample{UnixNS: at, Target: "http://server", Series: fmt.Sprint("series_", i), Labels: `a="b"`, Value: float64(at) / 3}
	}
	return rows
}

// readTimes returns the times of the server's and the GPUs' samples of a trace, in the order they come.
func readTimes(t *testing.T, where string) (server, gpu []int64) {
	t.Helper()
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	for s, err := range tr.ServerSamples() {
		if err != nil {
			t.Fatal(err)
		}
		server = append(server, s.UnixNS)
	}
	for s, err := range tr.GPUSamples() {
		if err != nil {
			t.Fatal(err)
		}
		gpu = append(gpu, s.UnixNS)
	}
	return server, gpu
}

func names(t *testing.T, where string) []string {
	t.Helper()
	es, err := os.ReadDir(where)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		out = append(out, e.Name())
	}
	return out
}

// TestSamplesRotate: samples of an hour stand in several parts, in order; the trace reads them as one, and Remove takes them along.
func TestSamplesRotate(t *testing.T) {
	where := filepath.Join(t.TempDir(), "trace")
	w, err := Create(where, Header{ToolVersion: "v"}, SegmentOptions{Journal: true})
	if err != nil {
		t.Fatal(err)
	}
	var want []int64
	for i := range int64(60) {
		if i%16 == 15 { // a quarter of an hour has passed
			w.server.opened, w.gpu.opened = time.Now().Add(-samplesAge), time.Now().Add(-samplesAge)
		}
		if err := errors.Join(w.WriteServer(sampleRows(i, 2)), w.WriteGPU([]GPUSample{{UnixNS: i, UUID: "GPU-1", SMUtil: Of(0.0), Throttle: []string{}}}), w.WriteServer(nil)); err != nil {
			t.Fatal(err)
		}
		want = append(want, i)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteServer(sampleRows(1, 1)); err == nil {
		t.Error("a closed writer takes samples")
	}
	if n := names(t, where); !slices.Equal(n, []string{"exchanges-00001.parquet", "gpu-00002.parquet", "gpu-00003.parquet", "gpu-00004.parquet", "gpu.parquet",
		"server-00002.parquet", "server-00003.parquet", "server-00004.parquet", "server.parquet", "trace.json"}) {
		t.Errorf("%q", n)
	}
	server, gpu := readTimes(t, where)
	if !slices.Equal(gpu, want) || len(server) != 2*len(want) || !slices.IsSorted(server) {
		t.Errorf("%v %v", gpu, server)
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	for s := range tr.GPUSamples() { // what is zero and what is unknown stay apart
		if s.SMUtil != Of(0.0) || s.MemUtil.Valid || s.Throttle == nil || s.Processes != nil {
			t.Errorf("%+v", s)
		}
		break
	}
	if err := Remove(where); err != nil {
		t.Error(err)
	}
}

// TestSamplesCrash: what was sampled before the process died comes back, up to a torn record, once; a trace that goes on after it counts
// its parts on.
func TestSamplesCrash(t *testing.T) {
	where := filepath.Join(t.TempDir(), "trace")
	h := Header{ToolVersion: "v"}
	w, err := Create(where, h, SegmentOptions{Journal: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(5) {
		if err := errors.Join(w.WriteServer(sampleRows(i, 3)), w.WriteGPU([]GPUSample{{UnixNS: i, UUID: "GPU-1"}})); err != nil {
			t.Fatal(err)
		}
	}
	w.lock.Close() // the process is gone
	journal := filepath.Join(where, "server.journal")
	b, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(journal, b[:len(b)-7], 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(where, "server.parquet.tmp"), b, 0o666); err != nil { // it was being folded
		t.Fatal(err)
	}
	w, err = Create(where, h, SegmentOptions{Journal: true, Append: true})
	if err != nil {
		t.Fatal(err)
	}
	if server, gpu := readLive(t, w); server != 12 || gpu != 5 {
		t.Errorf("%d, %d after the repair", server, gpu)
	}
	if err := errors.Join(w.WriteServer(sampleRows(9, 1)), w.Close()); err != nil {
		t.Fatal(err)
	}
	server, _ := readTimes(t, where)
	if !slices.Equal(server, []int64{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 9}) {
		t.Errorf("%v", server)
	}
	// Folding was done, the journal was not removed yet: the same again.
	if err := os.WriteFile(journal, b, 0o666); err != nil {
		t.Fatal(err)
	}
	r, err := Repair(where)
	if err != nil || !slices.Equal(r.Samples, []string{"server.parquet"}) {
		t.Errorf("%+v %v", r, err)
	}
	if server, _ := readTimes(t, where); len(server) != 16 {
		t.Errorf("%v", server)
	}
}

// readLive counts the samples of a trace that is being written.
func readLive(t *testing.T, w *Writer) (server, gpu int) {
	t.Helper()
	tr := &Trace{Name: w.where, store: w.store}
	for _, err := range tr.ServerSamples() {
		if err != nil {
			t.Fatal(err)
		}
		server++
	}
	for _, err := range tr.GPUSamples() {
		if err != nil {
			t.Fatal(err)
		}
		gpu++
	}
	return server, gpu
}

// TestSamplesDamaged: a journal of samples that cannot be read is set aside; the exchanges come back all the same.
func TestSamplesDamaged(t *testing.T) {
	where := filepath.Join(t.TempDir(), "trace")
	w, err := Create(where, Header{}, SegmentOptions{Journal: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write(&Exchange{ArrivalUnixNS: 1}), w.WriteServer(sampleRows(1, 1))); err != nil {
		t.Fatal(err)
	}
	if err := w.server.j.raw([]byte("sno Parquet file")); err != nil { // whole, and wrong
		t.Fatal(err)
	}
	w.lock.Close()
	r, err := Repair(where)
	if err != nil || r.Recovered != 1 || !slices.Equal(r.Damaged, []string{"server.journal"}) {
		t.Errorf("%+v %v", r, err)
	}
	if n := names(t, where); !slices.Equal(n, []string{"exchanges-00001.parquet", "server.journal.damaged", "trace.json"}) {
		t.Errorf("%q", n)
	}
	if err := Remove(where); err != nil {
		t.Error(err)
	}
}

// TestSamplesQuota: the quota deletes samples and segments by their age, whichever there are, but not the newest of a kind, and not what is
// pinned.
func TestSamplesQuota(t *testing.T) {
	where := filepath.Join(t.TempDir(), "trace")
	w, err := Create(where, Header{}, SegmentOptions{Journal: true, Quota: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := Pin(where, 2, 2); err != nil {
		t.Fatal(err)
	}
	for i := range int64(5) { // five parts: an old journal each time
		if err := w.WriteServer(sampleRows(i, 1)); err != nil {
			t.Fatal(err)
		}
		w.server.opened = w.server.opened.Add(-samplesAge)
		if err := w.WriteServer(sampleRows(i, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if server, _ := readTimes(t, where); !slices.Equal(server, []int64{2, 2, 4, 4}) {
		t.Errorf("%v", server)
	}
}

// TestSamplesFull: a full disk is the samples' error only, and is named.
func TestSamplesFull(t *testing.T) {
	w, err := Create(filepath.Join(t.TempDir(), "trace"), Header{}, SegmentOptions{Journal: true})
	if err != nil {
		t.Fatal(err)
	}
	before := openAppend
	openAppend = func(string) (appendFile, error) { return nil, syscall.ENOSPC }
	err = w.WriteServer(sampleRows(1, 1))
	openAppend = before
	if !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	if err := errors.Join(w.Write(&Exchange{ArrivalUnixNS: 1}), w.WriteServer(sampleRows(1, 1)), w.Close()); err != nil {
		t.Error(err)
	}
	single, err := Create(filepath.Join(t.TempDir(), "x.parquet"), Header{}, SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := single.WriteGPU([]GPUSample{{}}); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Error(err)
	}
	if err := single.Close(); err != nil {
		t.Error(err)
	}
}

// TestSamplesOfOtherColumns: files of other columns in the place of samples are no panic.
func TestSamplesOfOtherColumns(t *testing.T) {
	where := filepath.Join(t.TempDir(), "trace")
	w, err := Create(where, Header{}, SegmentOptions{Journal: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write(&Exchange{ArrivalUnixNS: 1}), w.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(where, "exchanges-00001.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"server.parquet", "gpu.parquet"} {
		if err := os.WriteFile(filepath.Join(where, name), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	for range tr.ServerSamples() { // whatever it says
	}
	for range tr.GPUSamples() {
	}
}

// FuzzSamples: no bytes in a record of samples make reading it panic.
func FuzzSamples(f *testing.F) {
	w, err := Create(filepath.Join(f.TempDir(), "trace"), Header{}, SegmentOptions{Journal: true})
	if err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(w.WriteServer(sampleRows(1, 2)), w.WriteGPU([]GPUSample{{UnixNS: 1, UUID: "GPU-1"}})); err != nil {
		f.Fatal(err)
	}
	for _, kind := range []string{serverKind, gpuKind} {
		b, err := get(w.store, partName(kind, 1, journalSuffix))
		if err != nil {
			f.Fatal(err)
		}
		_, rest, _ := record(b[len(journalMagic):])
		body, _, ok := record(rest)
		if !ok {
			f.Fatal("no record")
		}
		f.Add(body[1:])
		f.Add(body[1 : len(body)/2])
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = eachRow(memory{bytes.NewReader(b)}, func(ServerSample) bool { return true })
		_ = eachRow(memory{bytes.NewReader(b)}, func(gpuRow) bool { return true })
	})
}

// TestRunSamplesOutliveTheProcess: what a run has sampled when it is killed comes back with its exchanges; of a run that ends there is one
// file of each kind, however many parts it took.
func TestRunSamplesOutliveTheProcess(t *testing.T) {
	where := filepath.Join(t.TempDir(), "run")
	w, err := CreateRun(where, Manifest{Kind: "replay"})
	if err != nil {
		t.Fatal(err)
	}
	write := func(at int64) {
		t.Helper()
		if err := errors.Join(w.WriteServer(sampleRows(at, 2)), w.WriteClient(ClientSample{UnixNS: at, Sent: at}), w.WriteGPU([]GPUSample{{UnixNS: at, UUID: "GPU-a"}}), w.Write(&Exchange{ArrivalUnixNS: at})); err != nil {
			t.Fatal(err)
		}
	}
	for at := range int64(3) {
		write(at)
		if at == 1 { // as after 4 MiB
			if err := errors.Join(w.server.fold(), w.client.fold()); err != nil {
				t.Fatal(err)
			}
		}
	}
	killed := filepath.Join(t.TempDir(), "killed")
	if err := os.CopyFS(killed, os.DirFS(where)); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(killed); err != nil {
		t.Fatal(err)
	}
	check := func(where string, want []int64, file string) {
		t.Helper()
		server, gpu := readTimes(t, where)
		tr, err := Open(where)
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		var client []int64
		for s, err := range tr.ClientSamples() {
			if err != nil {
				t.Fatal(err)
			}
			client = append(client, s.Sent)
		}
		var twice []int64
		for _, v := range want {
			twice = append(twice, v, v)
		}
		if !slices.Equal(server, twice) || !slices.Equal(gpu, want) || !slices.Equal(client, want) {
			t.Errorf("server %v, gpu %v, client %v, want %v", server, gpu, client, want)
		}
		if n := names(t, where); slices.Contains(n, "server-00002.parquet") != (file != "") {
			t.Errorf("%q", n)
		}
	}
	check(killed, []int64{0, 1, 2}, "server-00002.parquet")
	write(3)
	if err := w.Close(Manifest{Kind: "replay", Valid: true}); err != nil {
		t.Fatal(err)
	}
	check(where, []int64{0, 1, 2, 3}, "")
}
