package formats

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTextRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 500 {
		x, y := randomExchange(r), &Exchange{}
		for _, c := range Columns() {
			if s, ok := c.Text(x); ok {
				if err := c.Parse(y, s); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !reflect.DeepEqual(x, y) {
			t.Fatal(cmp.Diff(x, y))
		}
	}
	for _, c := range []struct {
		column Column
		text   string
	}{{ColInputTokens, "x"}, {ColTurn, "4294967296"}, {ColStream, "maybe"}, {ColTemperature, "hot"}, {ColSessionID, "0102"}, {ColSessionID, "zz02030405060708"}, {ColEventGap, "[1"}, {ColTemplateFlags, "a"}} {
		if err := c.column.Parse(&Exchange{}, c.text); err == nil {
			t.Errorf("%s took %q", c.column, c.text)
		}
	}
}
