package recorder

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// dialFrames is a clean connection with one streamed exchange: SYN, SYN-ACK, ACK, the question, its ACK, then for each event a packet and an
// ACK, and the FINs. The packets' positions in it are what the tests name.
func dialFrames(tokens int) (out []frame) {
	k := newTalk(&out, 1)
	const start = int64(1_700_000_000_000_000_000)
	k.open(start)
	k.send(start+1e6, client, []byte(question()))
	k.send(start+2e6, server, []byte(streamHead))
	for i := range tokens - 1 {
		k.send(start+int64(i+3)*1e6, server, httpChunk(token))
	}
	k.send(start+int64(tokens+2)*1e6, server, append(httpChunk(lastToken), "0\r\n\r\n"...))
	k.close(start + int64(tokens+3)*1e6)
	return out
}

const (
	atQuestion  = 3
	atHead      = 5
	atFirstText = 7
)

// times gives packets new times, a microsecond apart where they would be equal or run backwards.
func inOrder(in []frame) []frame {
	for i := 1; i < len(in); i++ {
		if in[i].at <= in[i-1].at {
			in[i].at = in[i-1].at + 1000
		}
	}
	return in
}

func move(in []frame, from, to int) []frame {
	out := slices.Clone(in)
	f := out[from]
	out = slices.Delete(out, from, from+1)
	out = slices.Insert(out, to, f)
	for i := range out { // the times stay where they were
		out[i].at = in[i].at
	}
	return out
}

func one(t *testing.T, frames []frame) (*formats.Exchange, Stats) {
	t.Helper()
	xs, st := recordFrames(t, frames)
	if len(xs) != 1 {
		t.Fatalf("%d rows, %+v", len(xs), st)
	}
	return xs[0], st
}

func flags(x *formats.Exchange, bit int32) (n int) {
	for _, f := range x.EventFlags {
		if f&bit != 0 {
			n++
		}
	}
	return n
}

// TestTokenTimes: a token's time is the running maximum of the times of the packets that hold its bytes.
func TestTokenTimes(t *testing.T) {
	clean := dialFrames(5)
	// The second token's packet comes after the third's, as the network brought it: the third is there when the second is.
	frames := slices.Clone(clean)
	second, third := atFirstText+2, atFirstText+4
	frames[second].data, frames[third].data = frames[third].data, frames[second].data
	frames = slices.Delete(frames, second+1, second+2) // no acknowledgement of what has not come
	x, _ := one(t, frames)
	if fmt.Sprint(x.EventGapUS) != "[0 2000 0 1000 1000]" || x.Retransmits.V != 1 || flags(x, formats.FlagRetransmit) == 0 || x.ErrorKind != "" {
		t.Errorf("gaps %v, flags %v, %v", x.EventGapUS, x.EventFlags, x.Retransmits)
	}
}

// TestSentAgain: a segment that the sender repeats later may have reached the client only then, and all after it.
func TestSentAgain(t *testing.T) {
	frames := dialFrames(6)
	again := frame{frames[atFirstText+6].at + 5e5, slices.Clone(frames[atFirstText+2].data)}
	again.data[18], again.data[19] = 0x77, 0x77 // its own IP id
	frames = slices.Insert(frames, atFirstText+7, again)
	x, st := one(t, inOrder(frames))
	if x.Retransmits.V != 1 || fmt.Sprint(x.EventFlags) != "[0 2 2 2 0 0]" || len(x.EventGapUS) != 6 || st.Notes["retransmitted_packets"] != 1 {
		t.Errorf("%v %v %v", x.Retransmits, x.EventFlags, st.Notes)
	}
	// After the stream's end, while the client has not acknowledged it.
	frames = dialFrames(3)
	last := atFirstText + 4
	again = frame{frames[last].at + 2e8, slices.Clone(frames[last].data)}
	again.data[19] ^= 0x55
	frames = append(slices.Clone(frames[:last+1]), again)
	if x, _ = one(t, frames); x.Retransmits.V != 1 || x.EventFlags[2]&formats.FlagRetransmit == 0 || x.EventFlags[1] != 0 {
		t.Errorf("late: %v %v", x.Retransmits, x.EventFlags)
	}
}

// TestGaps: a hole that the client has acknowledged was lost by the capture and is given up at once; what it touched says so.
func TestGaps(t *testing.T) {
	frames := slices.Delete(dialFrames(200), atFirstText+20, atFirstText+21)
	x, st := one(t, frames)
	if x.GapBytes.V == 0 || len(x.EventGapUS) != 199 || flags(x, formats.FlagGap) != 1 || x.EventFlags[10]&formats.FlagGap == 0 || x.EndReason != formats.EndComplete || st.Notes["gaps"] != 1 {
		t.Errorf("%v, %d events, flags %v, %v", x.GapBytes, len(x.EventGapUS), x.EventFlags, st.Notes)
	}
	if x.OutputTokens.Valid || x.EventTokens != nil {
		t.Error("tokens are known though some were lost")
	}
	// The capture of one direction has no acknowledgements: time decides, by the packets' clock.
	var only []frame
	for _, f := range frames {
		if binary.BigEndian.Uint16(f.data[34:]) == 8000 || len(payloadOf(f)) > 0 || f.data[47]&tcpSYN != 0 {
			only = append(only, f)
		}
	}
	for i := range only {
		if i > 20 {
			only[i].at += int64(i) * 1e9
		}
	}
	if x, _ = one(t, only); x.GapBytes.V == 0 || len(x.EventGapUS) != 199 {
		t.Errorf("without acknowledgements: %v, %d events", x.GapBytes, len(x.EventGapUS))
	}
}

// TestStarts: fast open, a SYN sent twice, a connection joined in the middle, the same ports in use again.
func TestStarts(t *testing.T) {
	clean := dialFrames(4)
	want, _ := one(t, clean)
	check := func(name string, frames []frame, flagged bool) {
		t.Helper()
		x, st := one(t, inOrder(frames))
		if d := difference(want, x, 1e7); flaggedRow(x) != flagged || !flagged && d != "" {
			t.Errorf("%s: differs in %s: %+v %+v", name, d, st, x)
		}
		if len(x.EventGapUS) != 4 || x.ErrorKind != "" || !x.MessageCount.Valid {
			t.Errorf("%s: %+v", name, x)
		}
	}
	// TCP fast open: the question rides on the SYN.
	fast := slices.Delete(slices.Clone(clean), atQuestion, atQuestion+1)
	fast[0].data = append(slices.Clone(clean[0].data), payloadOf(clean[atQuestion])...)
	binary.BigEndian.PutUint16(fast[0].data[16:], uint16(len(fast[0].data)-14))
	fast[0].at, fast[1].at, fast[2].at = clean[atQuestion].at, clean[atQuestion].at+1, clean[atQuestion].at+2
	check("fast open", fast, false)
	check("SYN sent twice", slices.Insert(slices.Clone(clean), 1, clean[0]), false)
	check("no SYN", clean[1:], false)
	check("no handshake", clean[3:], true)
	check("SYN-ACK lost", slices.Delete(slices.Clone(clean), 1, 2), false)
	check("half a server's start", slices.Concat(clean[:1], clean[3:]), false)
	// The connection is joined during an earlier answer.
	var out []frame
	k := newTalk(&out, 1)
	k.open(0)
	k.send(1e6, client, []byte(question()))
	k.send(2e6, server, []byte(streamHead))
	k.send(3e6, server, httpChunk(token))
	from := len(out)
	k.send(4e6, server, append(httpChunk(lastToken), "0\r\n\r\n"...))
	k.send(5e6, client, []byte(question()))
	k.send(6e6, server, []byte(answerOf(plain)))
	x, _ := one(t, out[from:])
	if !x.Midstream.V || x.InputTokens.V != 5 || x.ConnReused.V {
		t.Errorf("joined: %+v", x)
	}
	// The same pair of addresses again, with a new sequence: after a reset that was not seen, and while the first is still open.
	next := dialFrames(4)
	for i := range next {
		next[i].at += 1e10
		next[i].data = shiftSeq(shiftSeq(next[i].data, 8000, 987654321), 20001, 123456789)
	}
	xs, st := recordFrames(t, append(slices.Clone(clean[:atFirstText+2]), next...))
	if len(xs) != 2 || xs[0].EndReason != formats.EndCaptureCut || xs[1].EndReason != formats.EndComplete || len(xs[1].EventGapUS) != 4 || flaggedRow(xs[1]) {
		t.Errorf("tuple in use again: %+v %+v", st, xs)
	}
}

// TestEnds: FIN and RST before the data that they follow, and a capture that ends first.
func TestConnectionEnds(t *testing.T) {
	clean := dialFrames(4)
	want, _ := one(t, clean)
	serverFIN := len(clean) - 2
	x, _ := one(t, move(clean, serverFIN, serverFIN-4))
	if d := difference(want, x, 1e8); d != "" {
		t.Errorf("FIN overtakes: differs in %s: %+v", d, x)
	}
	// The server's RST overtakes its last bytes, and it says how far it had heard.
	var out []frame
	k := newTalk(&out, 1)
	k.open(0)
	k.send(1e6, client, []byte(question()))
	k.send(2e6, server, []byte(streamHead))
	k.send(3e6, server, httpChunk(token))
	k.send(4e6, server, httpChunk(token))
	k.reset(5e6, server)
	n := len(out)
	out[n-1], out[n-3] = out[n-3], out[n-1]
	x, _ = one(t, inOrder(out))
	if len(x.EventGapUS) != 2 || x.EndReason != formats.EndServerAbort || x.ErrorKind != formats.ErrorIncomplete {
		t.Errorf("RST overtakes: %+v", x)
	}
	// Half-open at the capture's end.
	x, _ = one(t, clean[:atFirstText+2])
	if x.EndReason != formats.EndCaptureCut || x.ErrorKind != "" || len(x.EventGapUS) != 1 || x.EndNS.V != x.LastTokenNS.V {
		t.Errorf("cut: %+v", x)
	}
	x, _ = one(t, clean[:atQuestion+1])
	if x.EndReason != formats.EndCaptureCut || x.Status.Valid || !x.MessageCount.Valid {
		t.Errorf("cut before the answer: %+v", x)
	}
}

// TestOneSide: requests alone give arrivals and what was asked; answers alone give nothing, and are counted.
func TestOneSide(t *testing.T) {
	frames := traffic(21, 5, 3, 5)
	all, _ := recordFrames(t, frames)
	side := func(port int) []frame {
		var out []frame
		for _, f := range frames {
			if binary.BigEndian.Uint16(f.data[port:]) == 8000 {
				out = append(out, f)
			}
		}
		return out
	}
	asked, st := recordFrames(t, side(36))
	if len(asked) != len(all) {
		t.Fatalf("%d of %d requests, %+v", len(asked), len(all), st)
	}
	for i, x := range asked {
		if x.ArrivalUnixNS != all[i].ArrivalUnixNS || x.MaxTokens != all[i].MaxTokens || x.EndReason != formats.EndCaptureCut || x.ErrorKind != "" || x.Status.Valid {
			t.Errorf("request %d: %+v", i, x)
		}
	}
	answered, st := recordFrames(t, side(34))
	if len(answered) != 0 || st.Dropped == 0 || st.Seen != st.Dropped {
		t.Errorf("answers alone: %d rows, %+v", len(answered), st)
	}
}

// TestConflictingOverlap: of bytes that came twice and differ, the first delivered win, and the row says so.
func TestConflictingOverlap(t *testing.T) {
	frames := dialFrames(4)
	evil := frame{frames[atFirstText].at, slices.Clone(frames[atFirstText+2].data)}
	for i := range payloadOf(evil) {
		evil.data[54+i] = 'Z'
	}
	evil.data[19] ^= 0x40
	// It comes after the true one, and again before it as a segment that has to wait.
	x, st := one(t, inOrder(slices.Insert(slices.Clone(frames), atFirstText+3, evil)))
	if len(x.EventGapUS) != 4 || x.ErrorKind != "" || x.Retransmits.V == 0 {
		t.Errorf("after: %+v %+v", st, x)
	}
	held := slices.Clone(frames)
	first := held[atFirstText]
	held = slices.Delete(held, atFirstText, atFirstText+2)
	held = slices.Insert(held, atFirstText+2, frame{first.at, evil.data}, frame{first.at, first.data})
	x, st = one(t, inOrder(held))
	if len(x.EventGapUS) != 4 || x.ErrorKind != "" || st.Notes["conflicting_overlaps"] == 0 || !flaggedRow(x) {
		t.Errorf("held: %+v %+v", st, x)
	}
}

// TestMemory: whoever holds most pays, and nobody else.
func TestMemory(t *testing.T) {
	var xs []*formats.Exchange
	e := testEngine(&xs)
	good, bad := dialFrames(50), []frame(nil)
	k := newTalk(&bad, 2)
	k.open(good[0].at)
	k.send(good[0].at+1e6, client, []byte(question()))
	k.seq[server] += 1000 // a hole that nobody acknowledges
	k.noAcks = true
	for i := range 40 {
		k.packet(good[0].at+int64(i+2)*1e6, server, tcpACK, make([]byte, 1000))
	}
	both := append(slices.Clone(good), bad...)
	slices.SortStableFunc(both, func(a, b frame) int { return int(a.at - b.at) })
	most := 0
	for _, f := range both {
		e.packet(&packet{data: f.data, at: f.at, orig: len(f.data), link: linkEthernet})
		most = max(most, e.heldBytes)
	}
	e.finish()
	checkEmpty(e)
	if most > e.o.MaxHeld+2000 || e.stats.Notes["over_memory"] == 0 || len(xs) != 2 {
		t.Fatalf("held %d of %d, %v, %d rows", most, e.o.MaxHeld, e.stats.Notes, len(xs))
	}
	for _, x := range xs {
		if (len(x.EventGapUS) == 50) == flaggedRow(x) {
			t.Errorf("%d events, flagged %t", len(x.EventGapUS), flaggedRow(x))
		}
	}
}

// TestTinySegments: a sender that floods with one-byte segments from the end backwards costs no more than its share of memory and time.
func TestTinySegments(t *testing.T) {
	var xs []*formats.Exchange
	e := testEngine(&xs)
	e.o.MaxHeld, e.o.MaxHeldEach = 64<<20, 64<<20
	var out []frame
	k := newTalk(&out, 3)
	k.noAcks = true
	k.open(1)
	start := k.seq[client]
	for i := range 20000 {
		k.seq[client] = start + uint32(40000-2*i)
		k.packet(int64(10+i), client, tcpACK, []byte{'x'})
	}
	most := 0
	for _, f := range out {
		e.packet(&packet{data: f.data, at: f.at, orig: len(f.data), link: linkEthernet})
		for _, c := range e.conns {
			most = max(most, len(c.half[0].held), len(c.half[1].held))
		}
	}
	e.finish()
	checkEmpty(e)
	if most > maxSegments+1 || len(xs) != 0 {
		t.Errorf("%d segments held, %d rows", most, len(xs))
	}
}

// TestConnectionLimit: beyond the limit the longest silent connections go, those with an open exchange last.
func TestConnectionLimit(t *testing.T) {
	var xs []*formats.Exchange
	e := testEngine(&xs) // holds 64 connections
	var out []frame
	for n := range 300 {
		k := newTalk(&out, n+1)
		k.open(int64(n+1) * 1e6)
		if n == 5 {
			k.send(int64(n+1)*1e6+1000, client, []byte(question()))
		}
	}
	for _, f := range out {
		e.packet(&packet{data: f.data, at: f.at, orig: len(f.data), link: linkEthernet})
	}
	if e.count > 64 || e.stats.Notes["connections_evicted"] < 200 || len(xs) != 0 {
		t.Errorf("%d connections, %v, %d rows", e.count, e.stats.Notes, len(xs))
	}
	e.finish()
	checkEmpty(e)
	if len(xs) != 1 || xs[0].EndReason != formats.EndCaptureCut {
		t.Errorf("%d rows", len(xs))
	}
}

// TestCaptureWindow cuts captures at random places: whatever is cut, no row is silently wrong.
func TestCaptureWindow(t *testing.T) {
	frames := traffic(17, 15, 3, 20)
	clean, _ := recordFrames(t, frames)
	rng := rand.New(rand.NewPCG(4, 4))
	var sum lossRow
	for range 25 {
		a, b := rng.IntN(len(frames)/2), len(frames)/2+rng.IntN(len(frames)/2)
		got, _ := recordFrames(t, frames[a:b])
		r := compare(t, fmt.Sprintf("packets %d to %d", a, b), clean, got, 0)
		sum = lossRow{sum.exact + r.exact, sum.flagged + r.flagged, sum.missing + r.missing, sum.wrong + r.wrong}
	}
	if sum.exact == 0 || sum.flagged == 0 {
		t.Errorf("nothing was tested: %+v", sum)
	}
}
