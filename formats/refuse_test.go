package formats

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
)

func row(at int64) *Exchange { return &Exchange{Phase: PhaseRecord, ArrivalUnixNS: at} }

// later is a row as a later version might write it: a column that this build does not know, and most of ours absent.
type later struct {
	ExchangeID int64   `parquet:"exchange_id"`
	Phase      string  `parquet:"phase"`
	Arrival    int64   `parquet:"arrival_unix_ns"`
	Input      *int32  `parquet:"input_tokens"` // another width than ours
	Mood       *string `parquet:"mood"`
	Gaps       []int32 `parquet:"event_gap_us,list"`
}

func writeLater(t *testing.T, where string, h map[string]any, rows ...later) {
	t.Helper()
	f, err := os.Create(where)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := parquet.NewGenericWriter[later](f)
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if h != nil {
		b, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		w.SetKeyValueMetadata(headerKey, string(b))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestLaterVersionThatOnlyAddsColumns(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t.parquet")
	mood, input := "fine", int32(12)
	writeLater(t, where, map[string]any{"format_version": 7, "compatible_with": 1, "weather": "rain"},
		later{1, "record", 5, &input, &mood, []int32{0, 3}}, later{2, "measure", 6, nil, nil, nil})
	want := []*Exchange{
		{ExchangeID: 1, Phase: PhaseRecord, ArrivalUnixNS: 5, InputTokens: Of(int64(12)), EventGapUS: []int32{0, 3}},
		{ExchangeID: 2, Phase: PhaseMeasure, ArrivalUnixNS: 6, EventGapUS: []int32{}},
	}
	if d := cmp.Diff(want, readAll(t, where)); d != "" {
		t.Error(d)
	}
}

func TestOpenRefuses(t *testing.T) {
	d := t.TempDir()
	in := func(name string) string { return filepath.Join(d, name) }
	put := func(name, content string) {
		if err := os.WriteFile(in(name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	put("words.csv", "a,b\n1,2\n")
	put("empty.parquet", "")
	put("short.parquet", "PAR1PAR1")
	put("nonsense.parquet", "PAR1 nothing of the kind \xff\xff\xff\x7fPAR1")
	if err := os.Mkdir(in("none"), 0o777); err != nil {
		t.Fatal(err)
	}
	writeLater(t, in("other.parquet"), nil, later{})
	writeLater(t, in("future.parquet"), map[string]any{"format_version": 9, "compatible_with": 8}, later{})
	writeLater(t, in("future-silent.parquet"), map[string]any{"format_version": 9}, later{})
	writeLater(t, in("unversioned.parquet"), map[string]any{"source_kind": "x"}, later{})
	writeAll(t, in("cut"), Header{}, SegmentOptions{MaxRows: 1}, []*Exchange{row(1), row(2), row(3)})
	b, err := os.ReadFile(in("cut/exchanges-00002.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	put("cut/exchanges-00002.parquet", string(b[:len(b)-9]))
	writeAll(t, in("bent"), Header{}, SegmentOptions{}, []*Exchange{row(1)})
	put("bent/trace.json", `{"format_version": 9}`)
	writeAll(t, in("torn"), Header{}, SegmentOptions{}, []*Exchange{row(1)})
	put("torn/trace.json", `{"format_version": `)
	for _, c := range []struct{ name, want string }{
		{"absent", "no such file or directory"},
		{"none", "no segments (exchanges-*.parquet) in this directory"},
		{"words.csv", "not a Parquet file"},
		{"empty.parquet", "not a Parquet file"},
		{"short.parquet", "cut short"},
		{"nonsense.parquet", "damaged"},
		{"other.parquet", "a Parquet file, but no trace"},
		{"future.parquet", "format version 9, this build reads up to 1"},
		{"future-silent.parquet", "format version 9, this build reads up to 1"},
		{"unversioned.parquet", "no format version"},
		{"cut", "segment 2, exchanges-00002.parquet: cut short: a Parquet file without its footer; 2 of 3 segments are good"},
		{"bent", "trace.json: format version 9"},
		{"torn", "trace.json: unexpected end of JSON input"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(in(c.name))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "open trace "+in(c.name)+": ") {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %q", err)
			}
		})
	}
}

// TestDamage flips bits all over a small trace: reading gives rows or an error, and never panics.
func TestDamage(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t.parquet")
	writeAll(t, where, Header{}, SegmentOptions{}, []*Exchange{
		{Phase: PhaseRecord, ArrivalUnixNS: 7, ServerID: "a", EventGapUS: []int32{0, 5}, TemplateFlags: []string{"x=1"}, SessionID: Of(Hash{1})},
		{Phase: PhaseRecord, ArrivalUnixNS: 9, Stream: Of(true), Temperature: Of(0.5)},
	})
	whole, err := os.ReadFile(where)
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for i := 0; i < len(whole); i += 61 {
		b := append([]byte(nil), whole...)
		b[i] ^= 1 << (i % 8)
		if err := os.WriteFile(where, b, 0o666); err != nil {
			t.Fatal(err)
		}
		tr, err := Open(where)
		if err != nil {
			damaged++
			continue
		}
		for _, err := range tr.All() {
			if err != nil {
				damaged++
			}
		}
	}
	if damaged == 0 {
		t.Error("no damage was noticed")
	}
}

func TestCreateNeverOverwrites(t *testing.T) {
	d := t.TempDir()
	file, dir, run := filepath.Join(d, "t.parquet"), filepath.Join(d, "t"), filepath.Join(d, "run")
	writeAll(t, file, Header{}, SegmentOptions{}, []*Exchange{row(1)})
	writeAll(t, dir, Header{}, SegmentOptions{}, []*Exchange{row(1)})
	w, err := CreateRun(run, Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(Manifest{}); err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{file, dir, run} {
		if strings.HasSuffix(where, "run") {
			if _, err := CreateRun(where, Manifest{}); !errors.Is(err, fs.ErrExist) {
				t.Errorf("%s: %v", where, err)
			}
		}
		if _, err := Create(where, Header{}, SegmentOptions{}); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", where, err)
		}
		if err := Remove(where); err != nil {
			t.Errorf("remove %s: %v", where, err)
		}
		if err := Remove(where); err != nil {
			t.Errorf("remove %s again: %v", where, err)
		}
		writeAll(t, where, Header{}, SegmentOptions{}, []*Exchange{row(1)})
	}
	if _, err := Create(filepath.Join(d, "absent", "t"), Header{}, SegmentOptions{}); err == nil {
		t.Error("a trace in a directory that is not there")
	}
	if _, err := Create(filepath.Join(d, "u"), Header{}, SegmentOptions{MaxRows: -1}); err == nil {
		t.Error("negative rows")
	}
}

func TestRemoveTakesTracesOnly(t *testing.T) {
	d := t.TempDir()
	mine := filepath.Join(d, "mine")
	writeAll(t, mine, Header{}, SegmentOptions{}, []*Exchange{row(1)})
	if err := os.WriteFile(filepath.Join(mine, "thesis.txt"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(d, "other.parquet")
	writeLater(t, other, nil, later{})
	names := filepath.Join(d, "names") // files of our names that are not ours
	for name, content := range map[string]string{"run.json": `{"name":"an npm script"}`, "trace.json": "[]", "exchanges-00001.parquet": "precious", "server.parquet": "precious"} {
		if err := errors.Join(os.MkdirAll(names, 0o777), os.WriteFile(filepath.Join(names, name), []byte(content), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	word := filepath.Join(d, "word")
	writeAll(t, word, Header{}, SegmentOptions{}, []*Exchange{row(1)})
	if err := os.WriteFile(filepath.Join(word, "exchanges-thesis.parquet"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{mine, other, filepath.Join(mine, "thesis.txt"), d, names, word, os.DevNull} {
		if err := Remove(where); err == nil {
			t.Errorf("%s was removed", where)
		}
		if _, err := os.Stat(where); err != nil {
			t.Error(err)
		}
	}
}
