package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/formats"
)

// notRead refuses an output that --force would remove although the verb reads it: the output is one of the inputs, or holds one.
func notRead(out string, inputs ...string) error {
	at := located(out)
	for _, in := range inputs {
		if p := located(in); p == at || strings.HasPrefix(p, at+"/") {
			return usageError(fmt.Errorf("-o %s holds %s, which is read: --force would remove it", out, in), "another place for the result")
		}
	}
	return nil
}

// errInterrupted is what write of replacing says of a result that a signal cut short, where it would replace another.
var errInterrupted = errors.New("interrupted")

// replacing calls write with the place of a result: the name itself, or, with force, one beside what stands there. That stays as it is until
// write has ended well.
func replacing(out string, force bool, write func(out string) error) error {
	if !force {
		return write(out)
	}
	r, err := formats.Replace(out)
	if err != nil {
		return err
	}
	err = write(r.Where)
	if err == nil {
		return r.Commit()
	}
	end := r.Discard
	if t, e := formats.Open(r.Where); e == nil && r.Where != out {
		if t.Rows > 0 { // a measurement that cannot be had again
			err, end = fmt.Errorf("%w; what came of it is in %s, and %s is as it was", err, r.Where, out), r.Keep
		}
		t.Close() // it was only read
	}
	if e := end(); e != nil {
		err = errors.Join(err, e)
	}
	return err
}

// located is one name for a file, directory or prefix, whatever it is called: what does not exist is not there to be removed.
func located(name string) string {
	if formats.Remote(name) {
		return strings.TrimRight(name, "/")
	}
	p, err := filepath.Abs(name)
	if err != nil {
		return name
	}
	if _, err := os.Lstat(p); err == nil {
		if r, err := filepath.EvalSymlinks(p); err == nil {
			return filepath.ToSlash(r)
		}
	}
	return filepath.ToSlash(p)
}

// openTrace opens a trace or run whose requests are to be used, and says what in it does not add up, and what it lacks of its load.
func (a *app) openTrace(where string) (*formats.Trace, error) {
	t, err := formats.Open(where)
	if err != nil {
		return t, err
	}
	a.warn(where, t.Warnings)
	if m := t.Manifest; m != nil && m.Interrupted {
		a.warn(where, []string{fmt.Sprintf("this run was cut short: its %d requests are not the whole load; take what it replayed (%s)", t.Rows, m.TracePath)})
	} else if m != nil && m.RowsLost > 0 {
		a.warn(where, []string{fmt.Sprintf("its disk was too slow for %d rows: the %d that are here are not the whole load; take what it replayed (%s)", m.RowsLost, t.Rows, m.TracePath)})
	}
	return t, nil
}

// warn prints what was found wrong with something that is read.
func (a *app) warn(where string, warnings []string) {
	for _, w := range warnings {
		fmt.Fprintf(a.err, "shadowtape: warning: %s: %s\n", where, oneLine(w))
	}
}

// leftovers says what a --force that was killed has left beside the places that a command names, before it reads or writes them.
func (a *app) leftovers(c *cobra.Command, args []string) {
	names := slices.Clone(args)
	c.Flags().Visit(func(f *pflag.Flag) {
		if list, ok := f.Value.(pflag.SliceValue); ok {
			names = append(names, list.GetSlice()...)
		} else if f.Value.Type() == "string" {
			names = append(names, f.Value.String())
		}
	})
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		for _, n := range formats.Leftovers(name) {
			fmt.Fprintf(a.err, "shadowtape: warning: %s\n", oneLine(n))
		}
	}
}
