package inspect

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
)

// Held lists every distinct string that a trace holds, and where: what a privacy officer reads. Keyed hashes are no strings and are
// only counted.
type Held struct {
	Schema    int                         `json:"schema"`
	Exchanges int64                       `json:"exchanges"`
	Strings   map[string]map[string]int64 `json:"strings"` // place → string → how often
	Hashes    map[string]int64            `json:"hashes"`  // place → distinct keyed hashes
}

// Strings reads everything in a trace or run that is text: the string columns and lists of its exchanges, its header, its manifest, and the
// names and labels of scraped series. It holds every distinct string.
func Strings(r *analyzer.Run) (Held, error) {
	h := Held{Schema: 1, Strings: map[string]map[string]int64{}, Hashes: map[string]int64{}}
	hashes := map[string]map[formats.Hash]struct{}{}
	fields := stringFields()
	for x, err := range r.Exchanges() {
		if err != nil {
			return h, fmt.Errorf("inspect %s: %w", r.Name, err)
		}
		h.Exchanges++
		v := reflect.ValueOf(x).Elem()
		for _, f := range fields {
			switch at := v.Field(f.index); f.kind {
			case reflect.String:
				h.add(f.name, at.String())
			case reflect.Slice:
				for i := range at.Len() {
					h.add(f.name, at.Index(i).String())
				}
			default:
				if id := at.Interface().(formats.Null[formats.Hash]); id.Valid {
					if hashes[f.name] == nil {
						hashes[f.name] = map[formats.Hash]struct{}{}
					}
					hashes[f.name][id.V] = struct{}{}
				}
			}
		}
	}
	for name, set := range hashes {
		h.Hashes[name] = int64(len(set))
	}
	h.walk("header", reflect.ValueOf(r.Header))
	if r.Manifest != nil {
		h.walk("run.json", reflect.ValueOf(*r.Manifest))
	}
	for s, err := range r.ServerSamples() {
		if err != nil {
			return h, fmt.Errorf("inspect %s: %w", r.Name, err)
		}
		h.add("server.target", s.Target)
		h.add("server.series", s.Series)
		h.add("server.labels", s.Labels)
	}
	return h, nil
}

type stringField struct {
	name  string
	index int
	kind  reflect.Kind // String, Slice of strings, or Struct: a keyed hash
}

// stringFields finds the text of an Exchange by its types, so that a new column cannot be forgotten.
func stringFields() []stringField {
	var out []stringField
	t := reflect.TypeFor[formats.Exchange]()
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case f.Type.Kind() == reflect.String:
			out = append(out, stringField{snake(f.Name), i, reflect.String})
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.String:
			out = append(out, stringField{snake(f.Name), i, reflect.Slice})
		case f.Type == reflect.TypeFor[formats.Null[formats.Hash]]():
			out = append(out, stringField{snake(f.Name), i, reflect.Struct})
		}
	}
	return out
}

// snake spells a field's name as its column: SessionID is session_id.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && (runes[i-1] >= 'a' && runes[i-1] <= 'z' || i+1 < len(runes) && runes[i+1] >= 'a' && runes[i+1] <= 'z' && runes[i-1] != '_') {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}

func (h Held) add(place, s string) {
	if s == "" {
		return
	}
	if h.Strings[place] == nil {
		h.Strings[place] = map[string]int64{}
	}
	h.Strings[place][s]++
}

// walk collects the strings of a header or manifest, keys of maps included.
func (h Held) walk(place string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		h.add(place, v.String())
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() {
			h.walk(place, v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			h.walk(place, v.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			h.walk(place, k)
			h.walk(place, v.MapIndex(k))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				h.walk(place+"."+v.Type().Field(i).Name, v.Field(i))
			}
		}
	}
}

// Text writes one string a line, by place, the most frequent first. Control characters are quoted.
func (h Held) Text(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s exchanges hold these strings\n", figure.Count(h.Exchanges))
	for _, place := range slices.Sorted(maps.Keys(h.Strings)) {
		held := slices.Sorted(maps.Keys(h.Strings[place]))
		sort.SliceStable(held, func(i, j int) bool { return h.Strings[place][held[i]] > h.Strings[place][held[j]] })
		fmt.Fprintf(b, "%s (%d distinct)\n", place, len(held))
		for _, s := range held {
			fmt.Fprintf(b, "  %8d  %q\n", h.Strings[place][s], s)
		}
	}
	for _, place := range slices.Sorted(maps.Keys(h.Hashes)) {
		fmt.Fprintf(b, "%s: %s distinct keyed hashes\n", place, figure.Count(h.Hashes[place]))
	}
	return b.Flush()
}
