package client

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
)

// stream is one exchange on an HTTP/2 connection. Its response is fed by the connection's reader until the stream is over; from then on
// it is the exchange's.
type stream struct {
	c      *conn2
	id     uint32
	window int64         // what we may send on it; of c.mu
	wakes  chan struct{} // of the windows
	hint   chan struct{} // the answer has said that it is over
	done   chan struct{} // closed when it is
	owed   int           // bytes read and not given back to its window; of the reader

	x   *formats.Exchange
	clk Clock
	due int64
	cut Cut

	deadline time.Time // of the exchange

	mu       sync.Mutex // of what follows
	ended    bool
	err      error
	whole    bool // END_STREAM came
	started  bool
	head     head
	first    int64 // when the head came
	last     int64 // when the last bytes came
	total    int64
	hinted   bool
	response *openai.Response
}

// wake lets the writer look at the windows again.
func (s *stream) wake() {
	select {
	case s.wakes <- struct{}{}:
	default:
	}
}

// over ends the stream; the first reason counts.
func (s *stream) over(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.overLocked(err)
}

func (s *stream) overLocked(err error) {
	if s.ended {
		return
	}
	s.ended, s.err = true, err
	s.c.forget(s)
	close(s.done)
}

// headers takes a response's head, an interim one, or trailers.
func (s *stream) headers(f *http2.MetaHeadersFrame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	at, kernel := s.c.read.time(s.clk)
	if s.response == nil {
		if !s.started {
			s.started, s.first = true, at
		}
		h := head{length: -1}
		status, err := strconv.Atoi(f.PseudoValue("status"))
		if err != nil || f.Truncated {
			s.overLocked(errProtocol)
			return
		}
		if status < 200 {
			return
		}
		h.status = status
		for _, v := range f.RegularFields() {
			switch v.Name {
			case "content-type":
				h.contentType = v.Value
			case "content-encoding":
				if !strings.EqualFold(v.Value, "identity") {
					h.encoding = strings.ToLower(v.Value)
				}
			}
		}
		s.head, s.last = h, at
		s.x.Clock = formats.ClockUser
		if kernel {
			s.x.Clock = formats.ClockKernel
		}
		s.response = openai.NewResponse(s.x, h.status, h.contentType)
	}
	if f.StreamEnded() {
		s.whole = true
		s.overLocked(nil)
	}
}

// data takes what one frame brought. An event of a read that has brought one before, to whichever stream, is coalesced: the read's
// stamp is that of its newest segment, and which of them was in it is not known.
func (s *stream) data(p []byte, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	if s.response == nil {
		s.overLocked(errProtocol)
		return
	}
	c, x := s.c, s.x
	at, kernel := c.read.time(s.clk)
	if len(p) > 0 || end { // a frame without a byte says nothing
		s.last = at
	}
	if !kernel {
		x.Clock = formats.ClockUser
	}
	if s.total += int64(len(p)); s.total > s.c.target.c.o.AnswerBytes {
		s.overLocked(errTooLong)
		return
	}
	if len(p) > 0 {
		var flags int32
		if c.eventRead == c.read.no {
			flags = formats.FlagCoalesced
		}
		before, events := x.FirstTokenNS.Valid, len(x.EventGapUS)
		s.response.Write(p, at-s.due, flags)
		if len(x.EventGapUS) > events {
			c.eventRead = c.read.no
		}
		if !before && x.FirstTokenNS.Valid && kernel {
			x.ClientDelayUS = formats.Of((int64(c.read.at.Sub(s.clk.start)) - at) / 1000)
		}
		if s.cut.tokens > 0 && !s.response.Done() && s.cut.reached(x) {
			s.overLocked(errAborted)
			return
		}
	}
	if end {
		s.whole = true
		s.overLocked(nil)
	} else if !s.hinted && s.response.Done() {
		s.hinted = true
		close(s.hint)
	}
}

// cutNow ends the exchange because the run is over.
func (s *stream) cutNow() {
	s.over(os.ErrDeadlineExceeded)
	s.c.interrupt()
}

// exchange sends the request and waits for the end of its answer. again says that it may be sent once more: the server has not looked
// at it.
func (c *conn2) exchange(x *formats.Exchange, w *Wire, clk Clock, due int64, deadline time.Time, retry, kept bool, cut Cut, sent func(at int64)) (again bool) {
	s := &stream{c: c, wakes: make(chan struct{}, 1), hint: make(chan struct{}), done: make(chan struct{}), x: x, clk: clk, due: due, cut: cut, deadline: deadline}
	defer c.release()
	if !c.target.c.enter(s) {
		sent(-1)
		fail(x, clk.Now()-due, "", formats.EndRunEnd)
		return false
	}
	defer c.target.c.leave(s)
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	at, rest, err := c.open(s, w)
	hint, over := s.hint, false
	if s.id == 0 {
		s.over(err)
	} else {
		sent(int64(at.Sub(clk.start)))
	}
	for !over && err == nil && len(rest) > 0 { // where it cannot be written on, an answer may be there all the same
		if rest, err = c.more(s, rest); len(rest) == 0 || err != nil {
			break
		}
		select {
		case <-s.wakes:
		case <-s.done: // an answer may come before the whole request has been sent
			over = true
		case <-timer.C:
			s.over(os.ErrDeadlineExceeded)
		}
	}
	if s.id != 0 {
		x.RequestEndNS = formats.Of(clk.Now() - due)
	}
	for !over {
		select {
		case <-s.done:
			over = true
		case <-hint: // its framing may take a moment to end
			hint = nil
			timer.Reset(min(doneGrace, time.Until(deadline)))
		case <-timer.C:
			s.over(os.ErrDeadlineExceeded)
		}
	}
	if again = s.settle(w, retry, kept); !again {
		sent(-1) // unless it was
	}
	return again
}

// untouched says whether a stream that had no answer may be opened again: the server has said that it did not look at it, or is most
// unlikely to have. began is false where it never came past our settings, which it must acknowledge before it looks at any stream (RFC 9113,
// section 6.5.3): servers give connections up whose first frames they were too slow to read, without a word.
func (s *stream) untouched(kept bool) (untouched, began bool) {
	c, err := s.c, s.err
	c.mu.Lock()
	began = c.heeded
	looked := s.id != 0 && int64(s.id) <= c.looked
	c.mu.Unlock()
	var byServer errStream // it looked at it, and reset it
	switch {
	case errors.Is(err, errRefused), errors.Is(err, errGone):
		return true, began
	case errors.As(err, &byServer), !closed(err), looked:
		return false, began
	case s.id == 0, !began:
		return true, began
	}
	return kept, began
}

// settle fills the row once the stream is over.
func (s *stream) settle(w *Wire, retry, kept bool) (again bool) {
	s.mu.Lock() // the reader has let go of it; this is for the memory model
	defer s.mu.Unlock()
	x, err := s.x, s.err
	var byServer errStream
	asked := errors.As(err, &byServer)                        // the server looked at it, and reset it
	if !s.whole && !asked && err != errRefused && s.id != 0 { // the server may still be at it
		s.c.reset(s.id, http2.ErrCodeCancel)
	}
	if !s.started {
		untouched, began := s.untouched(kept)
		if retry && untouched {
			return true
		}
		kind, reason := classify(err)
		if untouched && !began {
			kind = formats.ErrorConnect
		}
		fail(x, s.clk.Now()-s.due, kind, reason)
		return false
	}
	*w = Wire{}
	x.ResponseHeaderNS = formats.Of(s.first - s.due)
	if s.response == nil {
		kind, reason := classify(err)
		fail(x, s.clk.Now()-s.due, kind, reason)
		return false
	}
	if err == os.ErrDeadlineExceeded && s.hinted || errors.Is(err, io.EOF) && s.response.Done() {
		err, s.whole = nil, true // it said that it was over
	}
	x.ResponseBytes = formats.Of(s.total)
	s.response.End(s.last-s.due, s.whole)
	s.c.target.c.note(s.response)
	verdict(x, &s.head, err, s.last-s.due, s.clk.Now()-s.due)
	return false
}
