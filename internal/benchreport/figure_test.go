package benchreport

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRecordRead(t *testing.T) {
	out := filepath.Join(t.TempDir(), "figures")
	t.Setenv(OutVariable, out)
	a := Figure{Group: "recorder", Name: "packets", Value: 2.5e6, Unit: "1/s", Better: "higher"}
	b := Figure{Group: "recorder", Name: "beside tcpdump", Value: 3.9, Unit: Ratio, Better: "lower", Note: "CPU time"}
	Record(t, a)
	Record(t, b)
	a.Value = 2.6e6
	Record(t, a) // of another round
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Figure{a, b}, got); d != "" {
		t.Error(d)
	}
}

func TestValidate(t *testing.T) {
	for name, f := range map[string]Figure{
		"no group":     {Name: "a", Unit: "s"},
		"no unit":      {Group: "g", Name: "a"},
		"not a number": {Group: "g", Name: "a", Unit: "s", Value: math.NaN()},
		"better":       {Group: "g", Name: "a", Unit: "s", Better: "more"},
	} {
		if f.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Read(bytes.NewReader([]byte("{\"group\":\"g\"}\n"))); err == nil {
		t.Error("a line without a name was read")
	}
}

func TestText(t *testing.T) {
	for _, c := range []struct {
		value      float64
		unit, want string
	}{{2551234.7, "1/s", "2,551,235 1/s"}, {3.94444, Ratio, "3.944x"}, {0.02, "ms", "0.02 ms"}, {999.4, "us", "999.4 us"}, {0, "ms", "0 ms"}, {-1234, "B", "-1,234 B"}, {0.0000123, "s", "1.23e-05 s"}} {
		if got := (Figure{Value: c.value, Unit: c.unit}).text(); got != c.want {
			t.Errorf("%v %s: %q, want %q", c.value, c.unit, got, c.want)
		}
	}
}
