package formats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	replacePrefix  = ".shadowtape-" // of the hidden directory in which a replacement is written
	replacedSuffix = ".replaced"    // of what it replaced, there
)

// Leftovers looks beside a name of this machine for what a Replace left whose process was killed, or that was kept, and says in a line each
// what it is and how to have it back or be rid of it. What only waited to be deleted, with the new one in its place, is deleted.
func Leftovers(where string) []string {
	if where == "" || Remote(where) {
		return nil
	}
	final := filepath.Clean(where)
	if p, err := filepath.EvalSymlinks(final); err == nil {
		final = p
	}
	beside, base := filepath.Split(final)
	dirs, _ := filepath.Glob(filepath.Join(globbed(beside), replacePrefix+"*")) // a pattern of ours is not wrong
	var notes []string
	for _, dir := range dirs {
		if n := leftover(dir, base, final); n != "" {
			notes = append(notes, n)
		}
	}
	return notes
}

// globbed is a path as a pattern that only it matches.
func globbed(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// leftover is Leftovers of one hidden directory; "" is one of something else, or of a process that lives.
func leftover(dir, base, final string) string {
	there := func(name string) bool { _, err := os.Lstat(name); return err == nil }
	fresh, old := filepath.Join(dir, base), filepath.Join(dir, base+replacedSuffix)
	if !there(fresh) && !there(old) {
		return ""
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return ""
	}
	defer lock.Close()
	_, err = os.Lstat(final)
	switch gone := errors.Is(err, fs.ErrNotExist); {
	case there(old) && !there(fresh) && !gone:
		if Removable(old) == nil {
			os.RemoveAll(dir)
		}
		return ""
	case there(old) && there(fresh):
		return fmt.Sprintf("a --force was cut short while it replaced %s: the new one is %s, the old one %s: mv one of them to its name, and rm -r %s", final, fresh, old, dir)
	case gone && there(old):
		return fmt.Sprintf("a --force was cut short while it replaced %s: the old one is %s: mv it to its name, and rm -r %s", final, old, dir)
	case gone:
		return fmt.Sprintf("a --force was cut short while it replaced %s: %s is left of it: mv it to its name, and rm -r %s", final, fresh, dir)
	}
	return fmt.Sprintf("%s is left of a --force that did not end, beside %s: shadowtape inspect shows what is in it, mv takes it elsewhere, rm -r %s removes it", fresh, final, dir)
}
