package formats

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated part of docs/FORMAT.md")

// columnTable is the part of FORMAT.md that stands in the code.
func columnTable() string {
	var b strings.Builder
	b.WriteString("| column | type | unit | meaning |\n|---|---|---|---|\n")
	group := ""
	for _, c := range columns {
		if c.group != group {
			group = c.group
			fmt.Fprintf(&b, "| **%s** | | | |\n", group)
		}
		doc := c.doc
		if c.required {
			doc += ". Never null"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", c.name, c.kind, c.unit, doc)
	}
	return b.String()
}

func TestFormatDocument(t *testing.T) {
	const begin, end = "<!-- columns: written from the code by `go test ./formats -update` -->\n", "<!-- end of columns -->"
	name := filepath.Join("..", "docs", "FORMAT.md")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	have, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("FORMAT.md has lost its marks")
	}
	if *update {
		if err := os.WriteFile(name, []byte(before+begin+columnTable()+end+after), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != columnTable() {
		t.Error("the column table of FORMAT.md is not the code's: go test ./formats -update")
	}
}

// TestNamesMatchTable: each Column constant is a line of the table, and names are what Parquet calls them.
func TestNamesMatchTable(t *testing.T) {
	if len(columns) != len(byName) || len(columns) != len(schema.Columns()) {
		t.Errorf("%d columns, %d names, %d in the schema", len(columns), len(byName), len(schema.Columns()))
	}
	for i, path := range schema.Columns() {
		if path[0] != string(columns[i].name) {
			t.Errorf("column %d is %s in the schema and %s in the table", i, path[0], columns[i].name)
		}
	}
	b, err := os.ReadFile("names.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), " Column = \""); n != len(columns) {
		t.Errorf("%d constants, %d columns", n, len(columns))
	}
}

// TestSize holds the format to what DESIGN promises of it, fixed costs included.
func TestSize(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit float64
		make  func(r *rand.Rand, i int, at int64, x *Exchange)
	}{
		{"import", 8, func(r *rand.Rand, _ int, at int64, x *Exchange) {
			*x = Exchange{Phase: PhaseRecord, ArrivalUnixNS: at / 1000 * 1000, InputTokens: Of(int64(r.ExpFloat64() * 1500)), InputTokensSource: TokensTrace,
				OutputTokens: Of(int64(r.ExpFloat64() * 200)), OutputTokensSource: TokensTrace}
		}},
		{"recording", 64, recorded},
	} {
		t.Run(c.name, func(t *testing.T) {
			const rows = 30_000
			dir := filepath.Join(t.TempDir(), "t")
			write(t, dir, rows, SegmentOptions{}, c.make)
			per := float64(size(t, dir)) / rows
			t.Logf("%.2f bytes an exchange", per)
			if per >= c.limit {
				t.Errorf("%.2f bytes an exchange, limit %v", per, c.limit)
			}
		})
	}
}
