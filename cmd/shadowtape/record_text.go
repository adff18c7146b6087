package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/tokenizer"
	"github.com/shadowtape/shadowtape/recorder"
)

// textFlags are the flags of record about the text that it reads: what is counted of it, and, in laboratories, kept.
type textFlags struct {
	tokenizer string
	bodies    string
	limit     byteSize
}

func (o *textFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.tokenizer, "tokenizer", "", "count the tokens that servers do not: `FILE|NAME`, the model's tokenizer.json, a .tiktoken file, or cl100k_base, o200k_base (default: estimate them)")
	f.StringVar(&o.bodies, "keep-bodies", "", "write the TEXT of every request into this `file`, for replay --bodies: for laboratories only")
	o.limit = 1 << 30
	f.Var(&o.limit, "keep-bodies-limit", "bytes that the file may take; bodies beyond are counted, not kept")
}

// open reads the tokenizer and makes the file of bodies. appends: the trace is gone on with; memory is what bodies in flight may take.
func (o *textFlags) open(a *app, r recordFlags, appends bool, memory int64) (c recorder.Counting, err error) {
	if o.tokenizer != "" {
		if c.Tokenizer, err = tokenizer.Open(o.tokenizer); err != nil {
			return c, withHint(err, "a Hugging Face tokenizer.json with a BPE model, a .tiktoken file named after its encoding, cl100k_base, o200k_base or o200k_harmony")
		}
	}
	if o.bodies == "" {
		return c, nil
	}
	c.Bodies, err = recorder.KeepBodies(o.bodies, recorder.BodyOptions{File: int64(o.limit), Memory: memory, Append: appends, Force: r.force})
	if errors.Is(err, fs.ErrExist) {
		return c, withHint(err, "--force replaces it")
	}
	if err == nil {
		fmt.Fprintf(a.err, "shadowtape: WARNING: --keep-bodies writes the TEXT OF EVERY REQUEST into %s (readable by its owner only): for laboratories, never for users' traffic. Delete it when it is no longer needed.\n", o.bodies)
	}
	return c, err
}

// describe says in a trace's header what is done with text.
func (o *textFlags) describe(h *formats.Header, key []byte, c recorder.Counting) {
	recorder.Describe(h, key, c)
	if c.Bodies != nil {
		h.KeptBodies = filepath.Base(o.bodies)
	}
}

// abandon takes back a file of bodies that nothing has been written to, where the recording cannot begin.
func (o *textFlags) abandon(c recorder.Counting) {
	if c.Bodies != nil {
		c.Bodies.Discard() // nothing was written
	}
}

// inside reports whether a file would stand in a directory, or be it.
func inside(file, dir string) bool {
	f, err := filepath.Abs(file)
	d, err2 := filepath.Abs(dir)
	if err != nil || err2 != nil {
		return false
	}
	if real, err := filepath.EvalSymlinks(filepath.Dir(f)); err == nil {
		f = filepath.Join(real, filepath.Base(f))
	}
	if real, err := filepath.EvalSymlinks(d); err == nil {
		d = real
	}
	return f == d || strings.HasPrefix(f, d+string(filepath.Separator))
}
