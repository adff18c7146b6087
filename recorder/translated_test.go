package recorder

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// translate makes the packets that the other side of an address translator shows: the server has another address and port, and with
// masquerade the client too.
func translate(in []frame, masquerade bool) (out []frame) {
	server, serverPort := []byte{10, 9, 0, 7}, uint16(9000)
	for _, f := range in {
		d := bytes.Clone(f.data)
		ip, port := 30, 36 // destination
		if binary.BigEndian.Uint16(d[34:]) == 8000 {
			ip, port = 26, 34
		}
		copy(d[ip:], server)
		binary.BigEndian.PutUint16(d[port:], serverPort)
		if masquerade {
			copy(d[56-ip:], []byte{10, 9, 0, 1})
			binary.BigEndian.PutUint16(d[70-port:], 32768+binary.BigEndian.Uint16(d[70-port:])%30000)
		}
		d[22]-- // one router more
		out = append(out, frame{f.at, d})
	}
	return out
}

// bothSides is what a recorder on the translator sees: each packet on the side that it comes from, and 20 microseconds later on the other.
func bothSides(before, after []frame) (out []frame) {
	for i := range before {
		b, a := before[i], after[i]
		if binary.BigEndian.Uint16(b.data[34:]) == 8000 {
			b.at += 20_000
		} else {
			a.at += 20_000
		}
		out = append(out, b, a)
	}
	slices.SortStableFunc(out, func(a, b frame) int { return int(a.at - b.at) })
	return out
}

// TestTranslated: a connection that is seen before and behind an address translator is recorded once, with the address that answers.
func TestTranslated(t *testing.T) {
	before := traffic(5, 12, 3, 20)
	clean, _ := recordFrames(t, before)
	for _, masquerade := range []bool{false, true} {
		after := translate(before, masquerade)
		for _, x := range clean {
			x.ServerID = "10.9.0.7:9000"
		}
		got, st := recordFrames(t, bothSides(before, after))
		if r := compare(t, fmt.Sprint("masquerade ", masquerade), clean, got, 0); r.exact != len(clean) || len(got) != len(clean) {
			t.Errorf("masquerade %t: %+v of %d rows, %v", masquerade, r, len(got), st.Notes)
		}
		if st.Notes["translated_connections"] != 12 || st.Notes["duplicate_packets"] == 0 || st.Notes["retransmitted_packets"] != 0 {
			t.Errorf("masquerade %t: %v", masquerade, st.Notes)
		}
	}
	// Three sights: through a service's address and a masquerade.
	three := bothSides(before, translate(before, false))
	for _, f := range translate(before, true) {
		f.data[22]--
		f.at += 40_000
		three = append(three, f)
	}
	slices.SortStableFunc(three, func(a, b frame) int { return int(a.at - b.at) })
	if got, st := recordFrames(t, three); len(got) != len(clean) || st.Notes["translated_connections"] != 24 {
		t.Errorf("three sights: %d rows of %d, %v", len(got), len(clean), st.Notes)
	}
}

// TestTranslatedJoined: the recorder comes while the connections are open.
func TestTranslatedJoined(t *testing.T) {
	before := traffic(5, 12, 3, 20)
	all := bothSides(before, translate(before, false))
	for _, share := range []int{4, 3, 2} {
		cut := len(before) / share
		clean, _ := recordFrames(t, before[cut:])
		from := slices.IndexFunc(all, func(f frame) bool { return f.at >= before[cut].at })
		got, st := recordFrames(t, all[from:])
		if d := len(got) - len(clean); d < -2 || d > 2 || st.Notes["translated_connections"] < 8 {
			t.Errorf("from 1/%d on: %d rows, want about %d, %v", share, len(got), len(clean), st.Notes)
		}
	}
}

// TestNotTranslated: connections that only look alike are two.
func TestNotTranslated(t *testing.T) {
	make1 := func(n int, seq [2]uint32, body string, at int64) (out []frame) {
		k := newTalk(&out, n)
		k.seq = seq
		k.open(at)
		k.send(at+1e6, client, post("/v1/chat/completions", "same", body))
		k.send(at+2e6, server, []byte(answerOf(`{"object":"chat.completion","model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)))
		k.close(at + 3e6)
		return out
	}
	high := [2]uint32{0x80000001, 0x90000001}
	ttl := func(in []frame) []frame { return each(in, func(b []byte) []byte { b[22]--; return b }) }
	id := func(in []frame) []frame { return each(in, func(b []byte) []byte { b[18] ^= 0x40; return b }) }
	const at = int64(1_700_000_000_000_000_000)
	for _, c := range []struct {
		name string
		b    []frame
		low  bool
		rows int
	}{
		{"once more through a router", ttl(make1(2, high, ask, at+20_000)), false, 1},
		{"another request", ttl(make1(2, high, ask+" ", at+20_000)), false, 2},
		{"another server's number", ttl(make1(2, [2]uint32{high[0], high[1] + 1}, ask, at+20_000)), false, 2},
		{"another client's number", ttl(make1(2, [2]uint32{high[0] + 1, high[1]}, ask, at+20_000)), false, 2},
		{"other packets", id(ttl(make1(2, high, ask, at+20_000))), false, 2},
		{"a second later", ttl(make1(2, high, ask, at+1e9)), false, 2},
		{"the same way", make1(2, high, ask, at+20_000), false, 2},
		{"numbers made by hand", ttl(make1(2, [2]uint32{1000, 2000}, ask, at+20_000)), true, 2},
	} {
		seq := high
		if c.low {
			seq = [2]uint32{1000, 2000}
		}
		both := append(make1(1, seq, ask, at), c.b...)
		slices.SortStableFunc(both, func(a, b frame) int { return int(a.at - b.at) })
		got, st := recordFrames(t, both)
		if len(got) != c.rows || st.Notes["translated_connections"] != int64(2-c.rows) {
			t.Errorf("%s: %d rows, want %d; %v", c.name, len(got), c.rows, st.Notes)
		}
		for _, x := range got {
			if x.EndReason != formats.EndComplete || flaggedRow(x) {
				t.Errorf("%s: %+v", c.name, x)
			}
		}
	}
}
