package recorder

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/shadowtape/shadowtape/formats"
)

// Bodies writes the literal bodies of requests into a file of their own: the one place where text reaches the disk, for laboratories only.
// A line is {"exchange_id": 7, "body": {…}}, written when its row has been, so that a replay of the trace can send it again. Every exchange
// that is written is counted once: kept, or why not. Safe for concurrent use.
type Bodies struct {
	o BodyOptions

	mu    sync.Mutex
	f     *os.File
	size  int64 // of the file
	held  map[*formats.Exchange]heldBody
	bytes int64 // held
	notes map[string]int64
	err   error // the first that the disk gave

	name   string
	made   bool   // by us: there was none
	beside string // the file's name until the first body is written, where it is to replace another
}

// BodyOptions bound what Bodies keeps. Zero values mean the defaults.
type BodyOptions struct {
	Each   int64 // bytes of one body, without the white space of its JSON; default 4 MiB
	File   int64 // bytes of the file; beyond it no body is kept. Default 1 GiB
	Memory int64 // bytes of bodies whose exchange has not ended; default 64 MiB
	Append bool  // go on with a file that is there
	Force  bool  // replace one
}

// heldBody is a body that waits for its exchange's row, or the reason for which it is not kept.
type heldBody struct {
	body []byte
	why  string
}

// The notes about bodies. They add up to the exchanges written.
const (
	bodiesKept       = "bodies_kept"
	bodiesLarge      = "bodies_over_limit"  // of one body, or of the file
	bodiesCrowded    = "bodies_over_memory" // too many of exchanges in flight
	bodiesUnreadable = "bodies_unreadable"  // bytes are missing, or it is no JSON object
	bodiesFailed     = "bodies_failed"      // the disk
)

// KeepBodies makes the file, readable by its owner only. A file that is there is gone on with or replaced only as the options say, and only
// where it is one of bodies that others cannot read.
func KeepBodies(name string, o BodyOptions) (*Bodies, error) {
	b, err := keepBodies(name, o)
	if err != nil {
		return nil, fmt.Errorf("keep bodies in %s: %w", name, err)
	}
	return b, nil
}

func keepBodies(name string, o BodyOptions) (*Bodies, error) {
	if o.Each < 0 || o.File < 0 || o.Memory < 0 {
		return nil, errors.New("a negative limit")
	}
	o.Each, o.File, o.Memory = cmpOr(o.Each, 4<<20), cmpOr(o.File, 1<<30), cmpOr(o.Memory, 64<<20)
	b := &Bodies{o: o, held: map[*formats.Exchange]heldBody{}, notes: map[string]int64{}}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	b.name, b.made = name, err == nil
	if errors.Is(err, fs.ErrExist) && (o.Append || o.Force) {
		if f, err = reopenBodies(name, o); err == nil && !o.Append {
			if err = f.Close(); err == nil {
				f, err = os.CreateTemp(filepath.Dir(name), ".shadowtape-bodies-") // readable by its owner only
			}
			if err == nil {
				b.beside = f.Name()
			}
		}
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b.f, b.size = f, info.Size()
	return b, nil
}

// bodiesBegin is how every line begins.
const bodiesBegin = `{"exchange_id":`

func reopenBodies(name string, o BodyOptions) (*os.File, error) {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a file")
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("others may read it (mode %04o): chmod 600", info.Mode().Perm())
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	head := make([]byte, len(bodiesBegin))
	if n, _ := f.ReadAt(head, 0); n > 0 && string(head[:n]) != bodiesBegin {
		return nil, errors.Join(errors.New("it is no file of bodies"), f.Close())
	}
	if !o.Append {
		return f, nil
	}
	if err = endLine(f, info.Size()); err != nil {
		return nil, errors.Join(fmt.Errorf("its end: %w", err), f.Close())
	}
	return f, nil
}

// endLine cuts off what stands after the last line: a machine that dies may have left half a line.
func endLine(f *os.File, size int64) error {
	buf := make([]byte, 64<<10)
	for end := size; end > 0; {
		n := min(end, int64(len(buf)))
		if _, err := f.ReadAt(buf[:n], end-n); err != nil {
			return err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return f.Truncate(end - n + int64(i) + 1)
		}
		end -= n
	}
	return f.Truncate(0)
}

// take holds an exchange's body until its row is written. body is nil where it is not whole; it is not kept itself. A nil Bodies takes
// nothing.
func (b *Bodies) take(x *formats.Exchange, body []byte, large bool) {
	if b == nil {
		return
	}
	h := heldBody{why: bodiesUnreadable}
	switch {
	case large || int64(len(body)) > 8*b.o.Each:
		h.why = bodiesLarge
	case len(body) > 0 && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")):
		var line bytes.Buffer
		if json.Compact(&line, body) == nil {
			if h = (heldBody{body: bytes.Clone(line.Bytes())}); int64(len(h.body)) > b.o.Each {
				h = heldBody{why: bodiesLarge}
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes+int64(len(h.body)) > b.o.Memory {
		h = heldBody{why: bodiesCrowded}
	}
	b.bytes += int64(len(h.body))
	b.held[x] = h
}

// forget lets go of the body of an exchange that is not written.
func (b *Bodies) forget(x *formats.Exchange) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= int64(len(b.held[x].body))
	delete(b.held, x)
}

// write writes the body of an exchange whose row has been written and has its number.
func (b *Bodies) write(x *formats.Exchange) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h, ok := b.held[x]
	b.bytes -= int64(len(h.body))
	delete(b.held, x)
	if !ok {
		h.why = bodiesUnreadable
	}
	line := make([]byte, 0, len(h.body)+48)
	if h.why == "" {
		line = strconv.AppendInt(append(line, bodiesBegin...), x.ExchangeID, 10)
		line = append(append(append(line, `,"body":`...), h.body...), "}\n"...)
		if b.size+int64(len(line)) > b.o.File {
			h.why = bodiesLarge
		}
	}
	if h.why != "" {
		b.notes[h.why]++
		return
	}
	if err := b.replace(); err != nil && b.err == nil {
		b.err = err
	}
	// At once: what a killed process has written is in the file, whole.
	if _, err := b.f.WriteAt(line, b.size); err != nil {
		if err = errors.Join(err, b.f.Truncate(b.size)); b.err == nil {
			b.err = err
		}
		b.notes[bodiesFailed]++
		return
	}
	b.size += int64(len(line))
	b.notes[bodiesKept]++
}

// Notes counts what has become of bodies so far.
func (b *Bodies) Notes() map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.notes)
}

// replace puts the file in the place of the one that it replaces.
func (b *Bodies) replace() error {
	if b.beside == "" {
		return nil
	}
	beside := b.beside
	b.beside = ""
	return os.Rename(beside, b.name)
}

// Discard gives up a file that nothing has been written to, in place of Close: one that was to be replaced, or gone on with, stays as it is.
func (b *Bodies) Discard() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.f.Close()
	switch {
	case b.beside != "":
		err = errors.Join(err, os.Remove(b.beside))
	case b.made && b.size == 0:
		err = errors.Join(err, os.Remove(b.name))
	}
	return err
}

// Close syncs the file. It returns the first error that the disk gave.
func (b *Bodies) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.err
	if e := errors.Join(b.f.Sync(), b.f.Close(), b.replace()); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("keep bodies: %w", err)
	}
	return nil
}
