package formats

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// replaceWith replaces what stands at a place by a trace of so many rows.
func replaceWith(t *testing.T, where string, rows int) {
	t.Helper()
	r, err := Replace(where)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*Exchange, rows)
	for i := range all {
		all[i] = row(int64(i + 1))
	}
	writeAll(t, r.Where, Header{}, SegmentOptions{}, all)
	if err := r.Commit(); err != nil {
		t.Fatal(err)
	}
}

// TestReplaceInOneStep: while one trace takes the place of another there is always a whole one there, and nothing is left beside it. A file
// system that cannot exchange names is served as well.
func TestReplaceInOneStep(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	writeAll(t, where, Header{}, SegmentOptions{}, []*Exchange{row(1)})
	exchange, times := exchangeNames, 0
	defer func() { exchangeNames = exchange }()
	exchangeNames = func(a, b string) error {
		err := exchange(a, b)
		if err == nil {
			times++
			for _, name := range []string{a, b} { // as whoever dies here leaves them
				if tr, err := Open(name); err != nil || tr.Rows == 0 {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		return err
	}
	replaceWith(t, where, 2)
	if times == 0 {
		t.Log("this file system cannot exchange names")
	}
	exchangeNames = func(a, b string) error { return errNoExchange }
	replaceWith(t, where, 3)
	if n := len(readAll(t, where)); n != 3 {
		t.Errorf("%d rows", n)
	}
	if es := names(t, filepath.Dir(where)); len(es) != 1 {
		t.Errorf("%q are left", es)
	}
}

// TestLeftovers: what a process that was killed while it replaced something has left is named, with what it is; what it had only still to
// delete is deleted; what a process that lives is at work on is left alone.
func TestLeftovers(t *testing.T) {
	for _, c := range []struct {
		name              string
		final, fresh, old bool
		says              string
		gone              bool
	}{
		{"between two renames", false, true, true, "the new one is DIR/t, the old one DIR/t.replaced", false},
		{"before the second of them", false, false, true, "the old one is DIR/t.replaced: mv it", false},
		{"set aside for a recording", false, true, false, "DIR/t is left of it: mv it", false},
		{"before the exchange", true, true, false, "DIR/t is left of a --force that did not end", false},
		{"after the exchange", true, false, true, "", true},
		{"nothing of this name", true, false, false, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := t.TempDir()
			final, dir := filepath.Join(in, "t"), filepath.Join(in, ".shadowtape-123")
			if err := os.Mkdir(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			for where, there := range map[string]bool{final: c.final, filepath.Join(dir, "t"): c.fresh, filepath.Join(dir, "t.replaced"): c.old} {
				if there {
					writeAll(t, where, Header{}, SegmentOptions{}, []*Exchange{row(1)})
				}
			}
			lock, err := lockDirectory(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := Leftovers(final); len(got) > 0 {
				t.Errorf("of a process that lives: %q", got)
			}
			if err := lock.Close(); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(Leftovers(final+"/"), "\n")
			if says := strings.ReplaceAll(c.says, "DIR", dir); !strings.Contains(got, says) || (says == "") != (got == "") {
				t.Errorf("%q, want %q", got, says)
			}
			if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) != c.gone {
				t.Errorf("the directory: %v", err)
			}
		})
	}
}
