package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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
