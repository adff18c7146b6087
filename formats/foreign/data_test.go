package foreign

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// TestData imports each file under a folder of real traces and prints the table of docs/INTEROP.md, with
//
//	SHADOWTAPE_DATA=DIR go test ./formats/foreign -run TestData -v
func TestData(t *testing.T) {
	root := os.Getenv("SHADOWTAPE_DATA")
	if root == "" {
		t.Skip("set SHADOWTAPE_DATA to a folder of real traces")
	}
	fmt.Println("| file | format | read | kept | dropped | noted |\n|---|---|---|---|---|---|")
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := guess(b[:min(len(b), headBytes)])
		if err != nil {
			fmt.Printf("| %s | none | | | | not a trace |\n", d.Name())
			return nil
		}
		files++
		var said []string
		o := Options{}
		load := func() (Report, formats.Header, error) {
			where := filepath.Join(t.TempDir(), "t")
			r, err := Import(context.Background(), f, []Source{{d.Name(), strings.NewReader(string(b))}}, where, formats.Header{}, o)
			if err != nil {
				return r, formats.Header{}, err
			}
			tr, err := formats.Open(where)
			if err != nil {
				return r, formats.Header{}, err
			}
			defer tr.Close()
			return r, tr.Header, nil
		}
		r, h, err := load()
		if errors.Is(err, ErrPromptsUnknown) {
			o.Prompts = promptsCumulative
			said = append(said, "`--session-prompts` must say it")
			r, h, err = load()
		}
		if err != nil {
			t.Errorf("%s: %v", d.Name(), err)
			return nil
		}
		if r.Read != r.Kept+r.Dropped || r.Kept == 0 {
			t.Errorf("%s: %+v", d.Name(), r)
		}
		dropped := []string{fmt.Sprint(r.Dropped)}
		for _, k := range slices.Sorted(maps.Keys(r.Reasons)) {
			dropped = append(dropped, fmt.Sprintf("%s %d", k, r.Reasons[k]))
		}
		if h.TimeQuantumNS > 0 {
			said = append(said, fmt.Sprintf("time quantum %d ms", h.TimeQuantumNS/1e6))
		}
		if h.PrefixBlockSize > 0 {
			said = append(said, fmt.Sprintf("blocks of %d, rule %s", h.PrefixBlockSize, h.PrefixBlockRule))
		}
		if h.Prompts != "" && o.Prompts == "" {
			said = append(said, "prompts "+h.Prompts)
		}
		for _, k := range slices.Sorted(maps.Keys(r.Notes)) {
			said = append(said, fmt.Sprintf("%s %d", k, r.Notes[k]))
		}
		fmt.Printf("| %s | `%s` | %d | %d | %s | %s |\n", d.Name(), f.Name, r.Read, r.Kept, strings.Join(dropped, ", "), strings.Join(said, "; "))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Error("no trace was found")
	}
}
