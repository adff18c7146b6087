package formats

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// everything is all that a trace or run says when it is read.
type everything struct {
	header   Header
	manifest *Manifest
	rows     []*Exchange
	server   []ServerSample
	client   []ClientSample
	gpu      []GPUSample
}

func readEverything(where string) (all everything, err error) {
	tr, err := Open(where)
	if err != nil {
		return all, err
	}
	all.header, all.manifest = tr.Header, tr.Manifest
	for x, err := range tr.All() {
		if err != nil {
			return all, err
		}
		all.rows = append(all.rows, x)
	}
	for s, err := range tr.ServerSamples() {
		if err != nil {
			return all, err
		}
		all.server = append(all.server, s)
	}
	for s, err := range tr.ClientSamples() {
		if err != nil {
			return all, err
		}
		all.client = append(all.client, s)
	}
	for s, err := range tr.GPUSamples() {
		if err != nil {
			return all, err
		}
		all.gpu = append(all.gpu, s)
	}
	return all, nil
}

// smallRun writes a run with something in every file.
func smallRun(t *testing.T, where string) {
	t.Helper()
	w, err := CreateRun(where, Manifest{Schema: 1, Kind: "replay", ToolVersion: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		at := int64(i + 1)
		x := &Exchange{Phase: PhaseMeasure, ArrivalUnixNS: at * 1e9, ServerID: "a", InputTokens: Of(100 * at), OutputTokens: Of(at), FirstTokenNS: Of(at * 1e6), EndNS: Of(at * 1e7),
			EndReason: EndComplete, Status: Of(int32(200)), EventGapUS: []int32{0, int32(i)}, Temperature: Of(0.5)}
		err = errors.Join(err, w.Write(x), w.WriteClient(ClientSample{UnixNS: at, InFlight: at, Sent: at}),
			w.WriteServer([]ServerSample{{UnixNS: at, Target: "t", Series: "s", Labels: `a="x"`, Value: float64(i)}}),
			w.WriteGPU([]GPUSample{{UnixNS: at, UUID: "GPU-1", SMUtil: Of(0.5), Throttle: []string{"idle"}}}))
	}
	if err := errors.Join(err, w.Close(Manifest{Schema: 1, Kind: "replay", ToolVersion: "v1", TraceSHA256: "ab", Valid: true, Requests: RequestCounts{Scheduled: 20, Sent: 20, Completed: 20}})); err != nil {
		t.Fatal(err)
	}
}

// TestEveryByteCounts flips a bit of the bytes of every file of a run, one at a time, every byte of small files and every few of others: what is read then is what was written, or an
// error of one line that names the file.
func TestEveryByteCounts(t *testing.T) {
	where := filepath.Join(t.TempDir(), "run")
	smallRun(t, where)
	want, err := readEverything(where)
	if err != nil {
		t.Fatal(err)
	}
	if len(want.rows) != 20 || len(want.server) != 20 || len(want.client) != 20 || len(want.gpu) != 20 {
		t.Fatalf("not everything is there: %+v", want)
	}
	for _, name := range names(t, where) {
		path := filepath.Join(where, name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		unseen := 0
		step := 1 + len(whole)/400
		for i := 0; i < len(whole); i += step {
			b := bytes.Clone(whole)
			b[i] ^= 1 << (i % 8)
			if err := os.WriteFile(path, b, 0o666); err != nil {
				t.Fatal(err)
			}
			switch got, err := readEverything(where); {
			case err == nil && !reflect.DeepEqual(want, got):
				unseen++
				t.Errorf("%s: byte %d of %d was flipped, and something else was read", name, i, len(whole))
			case err == nil:
			case !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n"):
				t.Errorf("%s: byte %d: %q", name, i, err)
			}
			if unseen > 5 {
				break
			}
		}
		if err := os.WriteFile(path, whole, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRepairFindsFlippedBits: what a bit of was flipped is found and set aside by Repair, and what is good beside it is read.
func TestRepairFindsFlippedBits(t *testing.T) {
	flip := func(path string, at int) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[at] ^= 4
		if err := os.WriteFile(path, b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	where := filepath.Join(t.TempDir(), "run")
	smallRun(t, where)
	flip(filepath.Join(where, "server.parquet"), 100)
	_, err := readEverything(where)
	if want := "read " + where + ": server.parquet: damaged between bytes 0 and "; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "column unix_ns of row group 1") {
		t.Errorf("%v, want %s", err, want)
	}
	r, err := Repair(where)
	if err != nil || !reflect.DeepEqual(r.Damaged, []string{"server.parquet"}) {
		t.Fatalf("%+v, %v", r, err)
	}
	if all, err := readEverything(where); err != nil || len(all.rows) != 20 || len(all.server) != 0 || len(all.client) != 20 {
		t.Errorf("%+v, %v", all, err)
	}

	where = filepath.Join(t.TempDir(), "trace")
	writeAll(t, where, Header{SourceKind: "pcap"}, SegmentOptions{MaxRows: 2}, []*Exchange{row(1), row(2), row(3), row(4), row(5)})
	flip(filepath.Join(where, "exchanges-00002.parquet"), 100)
	flip(filepath.Join(where, "trace.json"), 100)
	if r, err = Repair(where); err != nil || !reflect.DeepEqual(r.Damaged, []string{"exchanges-00002.parquet", "trace.json"}) {
		t.Fatalf("%+v, %v", r, err)
	}
	if all, err := readEverything(where); err != nil || len(all.rows) != 3 || all.header.SourceKind != "pcap" || all.header.Counters.Written != 5 {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestChecksumsAreNeeded: a file of ours does not pass for one of an earlier version, which has no checksums, by losing them.
func TestChecksumsAreNeeded(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t.parquet")
	writeAll(t, where, Header{}, SegmentOptions{}, []*Exchange{row(1)})
	b, err := os.ReadFile(where)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndex(b, []byte(sumMagic))
	if at < 0 {
		t.Fatal("it has none")
	}
	b[at] = 's'
	if err := os.WriteFile(where, b, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := readEverything(where); err == nil || !strings.Contains(err.Error(), "damaged footer") {
		t.Error(err)
	}
}

// TestWrittenAnew: another program that reads a trace and writes its rows keeps the key-value metadata, and has no checksums of ours.
func TestWrittenAnew(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t.parquet")
	writeAll(t, where, Header{}, SegmentOptions{}, []*Exchange{row(1), row(2)})
	b, err := os.ReadFile(where)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	var anew bytes.Buffer
	options := []parquet.WriterOption{f.Schema(), parquet.CreatedBy("parquet-cpp-arrow", "26.0.1", "")}
	for _, kv := range f.Metadata().KeyValueMetadata {
		options = append(options, parquet.KeyValueMetadata(kv.Key, kv.Value))
	}
	w := parquet.NewGenericWriter[any](&anew, options...)
	if _, err := parquet.CopyRows(w, f.RowGroups()[0].Rows()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(where, anew.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	if all, err := readEverything(where); err != nil || len(all.rows) != 2 {
		t.Errorf("%d rows, %v", len(all.rows), err)
	}
}

// TestAccount: what trace.json counts is held against itself and against the rows that are there.
func TestAccount(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	w, err := Create(where, Header{}, SegmentOptions{MaxRows: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if err := w.Write(row(int64(i))); err != nil {
			t.Fatal(err)
		}
	}
	w.Header().Counters = Counters{Seen: 8, Filtered: 1, Dropped: 2, Written: 5} // a row behind
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	open := func() *Trace {
		tr, err := Open(where)
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	if tr := open(); len(tr.Warnings) > 0 || tr.Header.Counters.Written != 6 || tr.Header.Counters.Seen != 9 {
		t.Errorf("%q, %+v", tr.Warnings, tr.Header.Counters)
	}
	if err := os.Remove(filepath.Join(where, "exchanges-00002.parquet")); err != nil {
		t.Fatal(err)
	}
	if got, want := open().Warnings, []string{"trace.json counts 6 exchanges written, and 4 are here: segments were lost or added, or are still to come"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(filepath.Join(where, "trace.json"), []byte(`{"format_version": 1, "counters": {"seen": 9, "dropped": 1, "written": 4}}`), 0o666); err != nil {
		t.Fatal(err)
	}
	if got, want := open().Warnings, []string{"trace.json counts 9 exchanges seen, which are not the 0 filtered, 1 dropped and 4 written that it counts too"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

// TestDocuments: a document says what it said, however it is laid out, and nothing else passes for it. One without a checksum is taken as it is.
func TestDocuments(t *testing.T) {
	for _, indent := range []string{"", "  "} {
		b, err := MarshalDocument(map[string]any{"b": 1.50, "a": []any{"x<y", nil, int64(1) << 60}, "c": map[string]any{"z": 1, "y": true}}, indent)
		if err != nil {
			t.Fatal(err)
		}
		var laid bytes.Buffer
		if err := json.Indent(&laid, b, "\t", "    "); err != nil {
			t.Fatal(err)
		}
		for _, same := range []string{string(b), laid.String(), `{"c":{"y":true,"z":1},` + string(bytes.TrimSpace(b))[1:]} {
			if err := CheckDocument([]byte(same)); err != nil {
				t.Errorf("%s: %v", same, err)
			}
		}
		for _, other := range []string{strings.Replace(string(b), "1.5", "1.6", 1), strings.Replace(string(b), "true", "false", 1), strings.Replace(string(b), `"y"`, `"Y"`, 1),
			strings.Replace(string(b), "crc32c:", "crc32c:0", 1), strings.Replace(string(b), "1152921504606846976", "1152921504606846977", 1)} {
			if err := CheckDocument([]byte(other)); !errors.Is(err, ErrChanged) {
				t.Errorf("%s: %v", other, err)
			}
		}
	}
	for _, old := range []string{`{"a": 1}`, `[1]`, `{`, ``, `{"a": 1} {"checksum": "x"}`} {
		if err := CheckDocument([]byte(old)); err != nil {
			t.Errorf("%q: %v", old, err)
		}
	}
}
