package recorder

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// twoWorkers are two workers of one live recorder, without their rings.
func twoWorkers() (workers [2]*engine, got *collect) {
	l := &Live{Key: []byte("key"), admit: newAdmission(Selection{}), talks: newSessions(), seen: newSights()}
	got = new(collect)
	for i := range workers {
		workers[i] = l.engine(Filter{}, func(x *formats.Exchange) { got.Write(x) })
	}
	return workers, got
}

func (f frame) packet() packet {
	return packet{data: f.data, at: f.at, orig: len(f.data), link: linkEthernet}
}

// TestTranslatedWorkers: the sights before and behind an address translator are in the hands of two workers, and recorded once.
func TestTranslatedWorkers(t *testing.T) {
	before := traffic(5, 12, 3, 20)
	clean, _ := recordFrames(t, before)
	after := translate(before, true)
	both := [2][]frame{{}, {}}
	for i := range before { // each packet 20 microseconds later on the side that it goes to
		b, a := before[i], after[i]
		if b.data[34] == 8000>>8 && b.data[35] == 8000&0xff {
			b.at += 20_000
		} else {
			a.at += 20_000
		}
		both[0], both[1] = append(both[0], b), append(both[1], a)
	}
	run := func(e *engine, frames []frame) {
		for _, f := range frames {
			p := f.packet()
			e.packet(&p)
		}
	}
	window := func(frames []frame, from, to int64) []frame {
		lo := slices.IndexFunc(frames, func(f frame) bool { return f.at >= from })
		hi := slices.IndexFunc(frames, func(f frame) bool { return f.at >= to })
		switch {
		case lo < 0:
			return nil
		case hi < 0:
			hi = len(frames)
		}
		return frames[lo:hi]
	}
	for i := range both {
		slices.SortStableFunc(both[i], func(a, b frame) int { return int(a.at - b.at) })
	}
	begin, end := both[0][0].at, both[0][len(before)-1].at+1e6
	inTurns := func(first int, step int64) func([2]*engine) {
		return func(w [2]*engine) {
			for at := begin; at < end; at += step {
				run(w[first], window(both[first], at, at+step))
				run(w[1-first], window(both[1-first], at, at+step))
			}
		}
	}
	for _, c := range []struct {
		name   string
		do     func([2]*engine)
		server string // that every row names; "" where it depends on who came first
	}{
		{"packet by packet", inTurns(0, 10_000), "10.9.0.7:9000"},
		{"the side of the server first", inTurns(1, 200e6), "10.9.0.7:9000"},
		{"the side of the client first, in blocks", inTurns(0, 200e6), ""},
		{"at once", func(w [2]*engine) {
			var wg sync.WaitGroup
			for i := range w {
				wg.Go(func() { run(w[i], both[i]) })
			}
			wg.Wait()
		}, ""},
	} {
		workers, got := twoWorkers()
		c.do(workers)
		st := newSourceStats()
		for _, e := range workers {
			e.finish()
			if len(e.conns)+len(e.pairs)+e.count != 0 {
				t.Errorf("%s: a finished worker holds %d connections", c.name, e.count)
			}
			st = merge(st, e.stats)
		}
		if n := len(workers[0].o.seen.pairs); n != 0 {
			t.Errorf("%s: %d connections are still known", c.name, n)
		}
		for i, x := range *got {
			if c.server != "" && x.ServerID != c.server {
				t.Errorf("%s: answered by %s", c.name, x.ServerID)
			}
			x.ServerID = clean[0].ServerID
			if slices.ContainsFunc((*got)[:i], func(y *formats.Exchange) bool { return y.CorrelationID == x.CorrelationID }) {
				t.Errorf("%s: an exchange is there twice", c.name)
			}
		}
		if r := compare(t, c.name, clean, *got, 20_000); r.exact != len(clean) || len(*got) != len(clean) {
			t.Errorf("%s: %+v of %d rows, want %d; %v", c.name, r, len(*got), len(clean), st.Notes)
		}
		if st.Notes["translated_connections"] != 12 || st.Notes["duplicate_packets"] == 0 || len(st.Dropped) != 0 {
			t.Errorf("%s: %v, dropped %v", c.name, st.Notes, st.Dropped)
		}
	}
}

// TestElsewhere: what another worker has is forgotten when it ends or its addresses are used again, and not before, however long it is silent.
func TestElsewhere(t *testing.T) {
	const at = int64(1_700_000_000_000_000_000)
	talk := func(n int, isn uint32, at int64, pause int64, ends bool) (out []frame) {
		k := newTalk(&out, n)
		k.seq = [2]uint32{isn, isn + 1<<20}
		k.open(at)
		k.send(at+1e6, client, post("/v1/chat/completions", fmt.Sprint(isn), ask))
		k.send(at+2e6+pause, server, []byte(answerOf(`{"object":"chat.completion","model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)))
		if ends {
			k.close(at + 3e6 + pause)
		}
		return out
	}
	for _, c := range []struct {
		name   string
		frames []frame
		rows   int
	}{
		{"five minutes of silence", talk(1, 0x80000001, at, 300e9, true), 1},
		{"the addresses again", slices.Concat(talk(1, 0x80000001, at, 0, false), talk(1, 0xa0000001, at+10e6, 0, true)), 2},
	} {
		workers, got := twoWorkers()
		after := translate(c.frames, false)
		for i := range c.frames {
			p, q := c.frames[i].packet(), after[i].packet()
			q.at += 20_000
			workers[0].packet(&p)
			workers[1].packet(&q)
		}
		late := at + 1000e9
		for i, e := range workers {
			e.tick(late)
			if e.count != 0 {
				t.Errorf("%s: worker %d still holds %d connections", c.name, i, e.count)
			}
			e.finish()
		}
		if len(*got) != c.rows || len(workers[1].stats.Dropped) != 0 || workers[1].stats.Notes["translated_connections"] != int64(c.rows) {
			t.Errorf("%s: %d rows, want %d; %v %v", c.name, len(*got), c.rows, workers[1].stats.Notes, workers[1].stats.Dropped)
		}
	}
}
