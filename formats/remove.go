package formats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// logFile is what the command that a run measured wrote; the verb that starts it puts it beside the run.
const logFile = "candidate.log"

// Remove deletes a trace or run, and nothing else: what Removable refuses. What does not exist is no error.
func Remove(where string) error {
	if Remote(where) {
		return removeRemote(where, true)
	}
	info, err := os.Lstat(where)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		if err := Removable(where); err != nil {
			return err
		}
		return os.Remove(where)
	}
	if err := Removable(where); err != nil {
		return err
	}
	lock, err := lockDirectory(where)
	if err != nil {
		return fmt.Errorf("remove %s: %w", where, bare(err))
	}
	defer lock.Close()
	return os.RemoveAll(where)
}

// Removable says why Remove would not delete something, or nil: a file that is no trace, a directory that holds anything that this package
// does not write, or names of ours alone, with nothing in it that says it is a trace or run. What does not exist, and an empty directory,
// may be removed.
func Removable(where string) error {
	if Remote(where) {
		return removeRemote(where, false)
	}
	no := func(why string) error { return fmt.Errorf("remove %s: %s", where, why) }
	info, err := os.Stat(where)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(where); err == nil {
			return no("it is a link to nothing")
		}
		return nil
	case err != nil:
		return err
	case info.Mode().IsRegular():
		if _, err := inspectSegment(directory(filepath.Dir(where)), filepath.Base(where)); err != nil {
			return fmt.Errorf("remove %s: %w", where, err)
		}
		return nil
	case !info.IsDir():
		return no("it is neither a file nor a directory")
	}
	es, err := os.ReadDir(where)
	if err != nil {
		return fmt.Errorf("remove %s: %w", where, err)
	}
	for _, e := range es {
		if !e.Type().IsRegular() || !ownFile(strings.TrimSuffix(e.Name(), temporary)) {
			return no(e.Name() + " in it is not part of a trace or run")
		}
	}
	if len(es) > 0 && !slices.ContainsFunc(es, func(e fs.DirEntry) bool { return signed(directory(where), e.Name()) }) {
		return no("it is no trace and no run")
	}
	return nil
}

// removeRemote is Removable of object storage, and Remove where do is set: the manifest goes first, so that what is cut short is no run.
func removeRemote(where string, do bool) error {
	bad := func(err error) error { return fmt.Errorf("remove %s: %w", where, bare(err)) }
	s, file, err := place(where)
	if err != nil {
		return bad(err)
	}
	if file != "" {
		there, err := occupied(s, file)
		if err == nil && there {
			if _, err = inspectSegment(s, file); err == nil && do {
				err = s.Remove(file)
			}
		}
		if err != nil {
			return bad(err)
		}
		return nil
	}
	es, err := s.List("")
	if err != nil {
		return bad(err)
	}
	below, err := s.Below()
	if err != nil {
		return bad(err)
	}
	if len(below) > 0 {
		return bad(fmt.Errorf("%s/ in it is not part of a trace or run", below[0]))
	}
	says := len(es) == 0
	for _, e := range es {
		if !ownFile(e.Name) {
			return bad(fmt.Errorf("%s in it is not part of a trace or run", e.Name))
		}
		says = says || signed(s, e.Name)
	}
	if !says {
		return bad(errors.New("it is no trace and no run"))
	}
	if !do {
		return nil
	}
	slices.SortStableFunc(es, func(a, b Entry) int { // run.json, trace.json, the others
		of := func(e Entry) int { return slices.Index([]string{traceFile, runFile}, e.Name) }
		return of(b) - of(a)
	})
	for _, e := range es {
		if err := s.Remove(e.Name); err != nil {
			return bad(err)
		}
	}
	return nil
}

// signed reports whether a file says of itself that this package wrote it: the manifest of a run, the header of a trace, a segment, a
// journal. Other programs write a run.json too.
func signed(d Store, name string) bool {
	switch {
	case name == traceFile:
		var h Header
		return readJSON(d, name, &h) == nil && h.FormatVersion > 0
	case name == runFile:
		var m map[string]any
		return readJSON(d, name, &m) == nil && m["trace_sha256"] != nil && m["requests"] != nil && m["tool_version"] != nil
	case strings.HasSuffix(name, journalSuffix):
		r, err := d.Open(name)
		if err != nil {
			return false
		}
		defer r.Close()
		b := make([]byte, len(journalMagic))
		_, err = r.ReadAt(b, 0)
		return err == nil && string(b) == journalMagic
	case strings.HasPrefix(name, segmentPrefix):
		_, err := inspectSegment(d, name)
		return err == nil
	}
	return false
}

// ownFile reports whether this package writes a file of that name into a trace or run.
func ownFile(name string) bool {
	name = strings.TrimSuffix(name, damagedSuffix)
	switch name {
	case traceFile, runFile, pinFile, logFile:
		return true
	}
	if sampleKind(name) != "" {
		return true
	}
	number, ok := strings.CutPrefix(name, segmentPrefix)
	number, segment := strings.CutSuffix(number, segmentSuffix)
	number, journal := strings.CutSuffix(number, journalSuffix)
	return ok && segment != journal && number != "" && strings.Trim(number, "0123456789") == ""
}
