package benchreport

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Document is everything that was measured in one call of `make bench`, as JSON.
type Document struct {
	Schema  int      `json:"schema"` // 1
	Date    string   `json:"date"`   // UTC, to the minute
	Machine string   `json:"machine"`
	Load    string   `json:"load"` // the load average when it began: how busy the machine was with other work
	Commit  string   `json:"commit"`
	Groups  []Group  `json:"groups"`
	Figures []Figure `json:"figures"`
}

// Group is how the figures of a group were made.
type Group struct {
	Name    string `json:"name"`
	What    string `json:"what"`
	Command string `json:"command"`
	Failed  string `json:"failed,omitempty"` // why it has no figures, or not all
}

// ParseGo reads figures out of what `go test -bench` prints: one for each value of a benchmark's line, named by the benchmark and without
// the number of processors. Better is known of the testing package's own units.
func ParseGo(group string, r io.Reader) ([]Figure, error) {
	var all []Figure
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 && strings.Trim(name[i+1:], "0123456789") == "" {
			name = name[:i]
		}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return all, fmt.Errorf("%s: %q is no number", name, f[i])
			}
			better := "higher"
			switch f[i+1] {
			case "ns/op", "cpu-ns/op", "B/op", "allocs/op", "disk-B/row":
				better = "lower"
			}
			all = put(all, Figure{Group: group, Name: name + ", " + f[i+1], Value: v, Unit: f[i+1], Better: better})
		}
	}
	return all, s.Err()
}

const (
	begin = "<!-- make bench: begin -->"
	end   = "<!-- make bench: end -->"
)

// Markdown is the document's tables, one a group.
func (d *Document) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, on %s, load average %s when it began, commit %s.\n", d.Date, d.Machine, d.Load, d.Commit)
	for _, g := range d.Groups {
		fmt.Fprintf(&b, "\n**%s**: %s. `%s`\n\n", g.Name, g.What, g.Command)
		if g.Failed != "" {
			fmt.Fprintf(&b, "It failed: %s.\n", g.Failed)
		}
		rows := slices.DeleteFunc(slices.Clone(d.Figures), func(f Figure) bool { return f.Group != g.Name })
		if len(rows) == 0 {
			continue
		}
		b.WriteString("| what | figure | better | |\n|---|---|---|---|\n")
		for _, f := range rows {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.Name, f.text(), f.Better, f.Note)
		}
	}
	return b.String()
}

// Replace puts the tables between the markers of a page. A page without them is an error.
func Replace(page, tables string) (string, error) {
	head, rest, ok := strings.Cut(page, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("the page has no lines %q and %q", begin, end)
	}
	return head + begin + "\n\n" + tables + "\n" + end + tail, nil
}

// Limit is what a figure must keep.
type Limit struct {
	Group string   `json:"group"`
	Name  string   `json:"name"`
	Min   *float64 `json:"min,omitempty"`
	Max   *float64 `json:"max,omitempty"`
	Why   string   `json:"why"`
}

// Gate says which limits are not kept. A figure that was not measured keeps none; a figure of a unit that depends on the machine cannot have
// one.
func Gate(figures []Figure, limits []Limit) []string {
	var bad []string
	for _, l := range limits {
		i := slices.IndexFunc(figures, func(f Figure) bool { return f.Group == l.Group && f.Name == l.Name })
		if i < 0 {
			bad = append(bad, fmt.Sprintf("%s: %s was not measured", l.Group, l.Name))
			continue
		}
		f := figures[i]
		switch {
		case l.Min == nil && l.Max == nil:
			bad = append(bad, fmt.Sprintf("%s: %s has a limit that limits nothing", l.Group, l.Name))
		case f.Unit != Ratio && f.Unit != "disk-B/row":
			bad = append(bad, fmt.Sprintf("%s: %s is in %s, which is another on every machine", l.Group, l.Name, f.Unit))
		case l.Min != nil && !(f.Value >= *l.Min):
			bad = append(bad, fmt.Sprintf("%s: %s is %s, under %v: %s", l.Group, l.Name, f.text(), *l.Min, l.Why))
		case l.Max != nil && !(f.Value <= *l.Max):
			bad = append(bad, fmt.Sprintf("%s: %s is %s, over %v: %s", l.Group, l.Name, f.text(), *l.Max, l.Why))
		}
	}
	return bad
}
