// Package recorder turns what passes on the wire into exchanges: packets to byte ranges with times, bytes to HTTP messages, messages to
// rows without a word of their text. It never guesses: what was damaged is flagged, and everything that it met ends in one counter.
//
// A Source yields exchanges. Sources of packets drive an engine (packet after packet, one engine a worker, finish at the end), which
// decodes frames, reassembles TCP, keeps one dialogue a connection and hands exchanges to its emit when the client has acknowledged them.
// Sources that have the two byte streams of a connection already, such as a proxy, drive dialogues by themselves: newDialogue, then
// data(direction, bytes, time, flags) as bytes arrive, gap(direction, n, truncated) where some are missing, close(direction, how, time) at the
// end; the exchanges that have ended stand in the dialogue's over, to be taken and given to the engine's emitExchange.
package recorder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
	"github.com/shadowtape/shadowtape/internal/tokenizer"
)

// Source yields exchanges. Run returns when the source is exhausted or ctx is done (then without an error), and calls emit from one
// goroutine at a time; the exchange is the callee's to keep. Stats may be called when Run has returned.
type Source interface {
	Run(ctx context.Context, f Filter, emit func(*formats.Exchange)) error
	Stats() SourceStats
}

// Sink takes exchanges, in the order in which they ended. It may keep them.
type Sink interface {
	Write(*formats.Exchange) error
}

// Filter says what a source should look at. The zero value is everything.
type Filter struct {
	Ports []uint16 // TCP ports of servers; packets of others are not reassembled
}

// Limits bound what a recorder holds. Zero values mean the defaults.
type Limits struct {
	IdleTimeout    time.Duration // a connection silent for longer is given up; default 15 minutes, more than any time to first token
	GapTimeout     time.Duration // a hole that no acknowledgement explains is given up after this; default 10 s
	MaxHeld        int           // bytes of segments that wait for others, all connections together; default 64 MiB
	MaxHeldEach    int           // the same, of one connection; default 8 MiB
	MaxBody        int           // of one request; a larger one is recorded without what its body says; default 32 MiB
	MaxBodies      int           // bytes of requests being read, all connections together; beyond it as over MaxBody; default 256 MiB
	MaxConnections int           // beyond it the longest silent are given up; default 1 << 17
}

// Counting is what a source does with text while it has it. The zero value lets it go.
type Counting struct {
	Tokenizer *tokenizer.Model // counts the lengths that a server does not state; nil: they are estimated, or unknown
	Bodies    *Bodies          // keeps requests' bodies; nil: nothing does
}

func (l *Limits) defaults() {
	if l.IdleTimeout == 0 {
		l.IdleTimeout = 15 * time.Minute
	}
	if l.GapTimeout == 0 {
		l.GapTimeout = 10 * time.Second
	}
	if l.MaxHeld == 0 {
		l.MaxHeld = 64 << 20
	}
	if l.MaxHeldEach == 0 {
		l.MaxHeldEach = 8 << 20
	}
	if l.MaxBody == 0 {
		l.MaxBody = 32 << 20
	}
	if l.MaxBodies == 0 {
		l.MaxBodies = 256 << 20
	}
	if l.MaxConnections == 0 {
		l.MaxConnections = 1 << 17
	}
}

func (l *Limits) validate() error {
	if l.IdleTimeout < 0 || l.GapTimeout < 0 || l.MaxHeld < 0 || l.MaxHeldEach < 0 || l.MaxBody < 0 || l.MaxBodies < 0 || l.MaxConnections < 0 {
		return errors.New("recorder limits: negative")
	}
	return nil
}

// Options say how to record.
type Options struct {
	Filter Filter
	Bodies *Bodies // of the source; nil: none are kept
}

// Validate reports what is wrong with the options.
func (o Options) Validate() error {
	for _, p := range o.Filter.Ports {
		if p == 0 {
			return errors.New("recorder options: port 0")
		}
	}
	return nil
}

// SourceStats count what a source met besides the exchanges that it emitted.
type SourceStats struct {
	Packets  int64
	Bytes    int64
	Filtered map[string]int64 // exchanges left out on purpose, by reason
	Dropped  map[string]int64 // exchanges that could not be recorded, by reason
	Notes    map[string]int64 // what was met and handled: gaps, retransmissions, unreadable packets, connections that are no HTTP, …
	Warnings []string         // one line each, for the user
}

func newSourceStats() SourceStats {
	return SourceStats{Filtered: map[string]int64{}, Dropped: map[string]int64{}, Notes: map[string]int64{}}
}

// Stats account for a recording: Seen == Filtered + Dropped + Written, always.
type Stats struct {
	formats.Counters
	Packets  int64
	Bytes    int64
	First    int64 // arrival of the first exchange written, nanoseconds since 1970; 0: none
	Last     int64 // latest arrival or end
	Warnings []string
}

// Record moves a source's exchanges to a sink until the source ends or ctx is done. The first error of the sink stops it; what the
// source still yields then counts as dropped. The stats are right whatever is returned.
func Record(ctx context.Context, src Source, dst Sink, o Options) (Stats, error) {
	if err := o.Validate(); err != nil {
		return Stats{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var st Stats
	var sinkErr error
	lost := int64(0)
	err := src.Run(ctx, o.Filter, func(x *formats.Exchange) {
		st.Seen++
		if sinkErr != nil {
			o.Bodies.forget(x)
			lost++
			return
		}
		if err := dst.Write(x); err != nil {
			o.Bodies.forget(x)
			sinkErr = fmt.Errorf("write exchange: %w", err)
			lost++
			cancel()
			return
		}
		o.Bodies.write(x)
		st.Written++
		if st.First == 0 || x.ArrivalUnixNS < st.First {
			st.First = x.ArrivalUnixNS
		}
		st.Last = max(st.Last, x.ArrivalUnixNS+max(x.EndNS.Or(0), 0))
	})
	s := src.Stats()
	st.Reasons, st.Notes = map[string]int64{}, s.Notes
	for reason, n := range s.Filtered {
		st.Filtered += n
		st.Reasons["filtered_"+reason] += n
	}
	for reason, n := range s.Dropped {
		st.Dropped += n
		st.Reasons["dropped_"+reason] += n
	}
	if o.Bodies != nil {
		maps.Copy(st.Notes, o.Bodies.Notes())
	}
	st.Seen += st.Filtered + st.Dropped
	if lost > 0 {
		st.Dropped += lost
		st.Reasons["dropped_sink"] = lost
	}
	st.Packets, st.Bytes, st.Warnings = s.Packets, s.Bytes, s.Warnings
	if sinkErr != nil {
		return st, sinkErr
	}
	return st, err
}

// hasherOf returns a hasher for a key; nil where there is none.
func hasherOf(key []byte) *openai.Hasher {
	if len(key) == 0 {
		return nil
	}
	return openai.NewHasher(key)
}

// Describe fills in what a trace's header says about the hashes that this package makes with a key, and about the tokenizer.
func Describe(h *formats.Header, key []byte, c Counting) {
	if c.Tokenizer != nil {
		h.TokenizerID = c.Tokenizer.ID()
	}
	if k := hasherOf(key); k != nil {
		h.HashKeyID = k.KeyID()
		h.PrefixBlockUnit, h.PrefixBlockSize, h.PrefixBlockRule = "bytes", openai.PrefixBlockBytes, "floor"
		h.Prompts = "cumulative"
	}
}
