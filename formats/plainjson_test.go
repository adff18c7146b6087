package formats

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlainJSON(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"{\n\t\"a\": \"b — 漢字 \\\\n \\\" \\u00e9\"\n}", "{\n\t\"a\": \"b — 漢字 \\\\n \\\" \\u00e9\"\n}"},
		{`"a\nb\r\u001b[31m\u009B\u202e"`, `"a` + "\ufffdb\ufffd\ufffd[31m\ufffd\ufffd" + `"`},
		{"\"\u009b\x7f\u2028\"", "\"\ufffd\ufffd\ufffd\""},
		{`"\\\n"`, `"\\` + "\ufffd" + `"`},
		{`"cut \u00`, `"cut \u00`},
		{`"cut \`, `"cut \`},
	} {
		if got := string(PlainJSON([]byte(c.in))); got != c.want {
			t.Errorf("%q became %q, want %q", c.in, got, c.want)
		}
	}
}

func FuzzPlainJSON(f *testing.F) {
	f.Add([]byte(`{"label":"a\nb","x":["\u001b\\",1]}`))
	f.Add([]byte(`"\u00`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v any
		plain := PlainJSON(b)
		if json.Valid(b) != json.Valid(plain) && json.Valid(b) {
			t.Fatalf("%q is no JSON any more: %q", b, plain)
		}
		if json.Unmarshal(plain, &v) != nil {
			return
		}
		if s, ok := v.(string); ok && strings.ContainsFunc(s, commands) {
			t.Fatalf("%q keeps a control character: %q", b, s)
		}
	})
}

func TestNamesOfARunBeginNoLine(t *testing.T) {
	where := filepath.Join(t.TempDir(), "run")
	w, err := CreateRun(where, Manifest{Kind: "replay"})
	if err != nil {
		t.Fatal(err)
	}
	w.SetHeader(Header{Licence: "a\n\x1bb"})
	if err := w.Write(&Exchange{Phase: PhaseMeasure, ArrivalUnixNS: 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(Manifest{Kind: "replay", Label: "x\nPASSED\x1b[2J"}); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	if tr.Manifest.Label != "x\ufffdPASSED\ufffd[2J" || tr.Header.Licence != "a\ufffd\ufffdb" {
		t.Errorf("label %q, licence %q", tr.Manifest.Label, tr.Header.Licence)
	}
}

func TestImpossibleTimes(t *testing.T) {
	for name, x := range map[string]*Exchange{
		"arrival": {Phase: PhaseMeasure, ArrivalUnixNS: 1<<63 - 1},
		"before":  {Phase: PhaseMeasure, ArrivalUnixNS: -1 << 63},
	} {
		where := filepath.Join(t.TempDir(), "t")
		writeAll(t, where, Header{}, SegmentOptions{}, []*Exchange{x})
		tr, err := Open(where)
		if err == nil {
			for _, e := range tr.All() {
				err = e
			}
			tr.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "is no time") {
			t.Errorf("%s: %v", name, err)
		}
		if err := x.Possible(); err == nil || !strings.Contains(err.Error(), "is no time") {
			t.Errorf("%s: possible: %v", name, err)
		}
	}
	if err := (&Exchange{ArrivalUnixNS: farthest, EndNS: Of(farthest), Seed: Of[int64](1<<63 - 1)}).Possible(); err != nil {
		t.Error(err)
	}
	where := filepath.Join(t.TempDir(), "t")
	writeAll(t, where, Header{}, SegmentOptions{}, []*Exchange{
		{Phase: PhaseMeasure, ArrivalUnixNS: 7, EndNS: Of[int64](1<<63 - 1)},
		{Phase: PhaseMeasure, ArrivalUnixNS: 8, FirstTokenNS: Of[int64](-1 << 63), LastTokenNS: Of[int64](5)},
		{Phase: PhaseMeasure, ArrivalUnixNS: 9, ConnectNS: Of(farthest + 1), EndNS: Of[int64](1)},
	})
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		if x.FirstTokenNS.Valid || x.ConnectNS.Valid || x.EndNS.Valid != (x.ArrivalUnixNS == 9) || x.LastTokenNS.Valid != (x.ArrivalUnixNS == 8) {
			t.Errorf("%+v", x)
		}
	}
	if n := tr.Doubted(); n != 3 || tr.Header.EndUnixNS != 10 {
		t.Errorf("%d times are doubted, the trace ends at %d", n, tr.Header.EndUnixNS)
	}
	if b, err := json.Marshal([]Null[float64]{Of(math.NaN()), Of(math.Inf(1)), Of(1.5)}); err != nil || string(b) != "[null,null,1.5]" {
		t.Errorf("%s, %v", b, err)
	}
}
