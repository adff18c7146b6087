package recorder

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// mutation changes a share of a capture's packets and says how far it moved them in time at most.
type mutation struct {
	name string
	do   func(rng *rand.Rand, in []frame, share float64) ([]frame, int64)
}

var mutations = []mutation{
	{"dropped", func(rng *rand.Rand, in []frame, share float64) (out []frame, moved int64) {
		for _, f := range in {
			if rng.Float64() >= share {
				out = append(out, f)
			}
		}
		return out, 0
	}},
	{"swapped", func(rng *rand.Rand, in []frame, share float64) (out []frame, moved int64) {
		out = slices.Clone(in)
		for i := 0; i+1 < len(out); i++ {
			if rng.Float64() < share {
				moved = max(moved, out[i+1].at-out[i].at)
				out[i].data, out[i+1].data = out[i+1].data, out[i].data
				i++
			}
		}
		return out, moved
	}},
	{"duplicated", func(rng *rand.Rand, in []frame, share float64) (out []frame, moved int64) {
		for i, f := range in {
			out = append(out, f)
			if rng.Float64() < share {
				d := f
				if i+1 < len(in) && rng.IntN(2) == 0 { // right behind, or after the next packet
					out = append(out, in[i+1])
				}
				d.at = out[len(out)-1].at
				out = append(out, d)
			}
		}
		return out, 0
	}},
	{"sent again", func(rng *rand.Rand, in []frame, share float64) (out []frame, moved int64) {
		out = slices.Clone(in)
		for _, f := range in {
			if len(payloadOf(f)) > 0 && rng.Float64() < share { // a retransmission timer later, with an IP id of its own
				again := frame{f.at + 2e8, slices.Clone(f.data)}
				again.data[18] ^= 0x55
				out = append(out, again)
			}
		}
		slices.SortStableFunc(out, func(a, b frame) int { return cmp.Compare(a.at, b.at) })
		return out, 0
	}},
	{"split", func(rng *rand.Rand, in []frame, share float64) (out []frame, moved int64) {
		for _, f := range in {
			n := len(payloadOf(f))
			if n < 2 || rng.Float64() >= share {
				out = append(out, f)
				continue
			}
			at := 1 + rng.IntN(n-1)
			out = append(out, slice(f, 0, at), slice(f, at, n))
		}
		return out, 0
	}},
	{"merged", func(rng *rand.Rand, in []frame, share float64) (out []frame, moved int64) {
		out = slices.Clone(in)
		first := map[int]int64{} // when the oldest part of a merged packet came
		for i := range out {
			if out[i].data == nil || len(payloadOf(out[i])) == 0 || rng.Float64() >= share {
				continue
			}
			j, ok := follower(out, i)
			if !ok {
				continue
			}
			// As receive offload does: one packet, stamped when the last part came.
			first[j] = out[i].at
			if at, ok := first[i]; ok {
				first[j] = at
			}
			moved = max(moved, out[j].at-first[j])
			for a := i + 1; a < j; a++ { // the receiver had nothing to acknowledge before
				if out[a].data != nil && string(out[a].data[26:30])+string(out[a].data[30:34]) == string(out[i].data[30:34])+string(out[i].data[26:30]) && string(out[a].data[34:36]) == string(out[i].data[36:38]) {
					out[a].data = nil
				}
			}
			out[j] = join(out[i], out[j])
			out[i].data = nil
		}
		return slices.DeleteFunc(out, func(f frame) bool { return f.data == nil }), moved
	}},
}

func payloadOf(f frame) []byte { return f.data[54:] }

func slice(f frame, from, to int) frame {
	d := append(slices.Clone(f.data[:54]), f.data[54+from:54+to]...)
	binary.BigEndian.PutUint16(d[16:], uint16(40+to-from))
	binary.BigEndian.PutUint32(d[38:], binary.BigEndian.Uint32(f.data[38:])+uint32(from))
	if from > 0 {
		d[19]++ // its own IP id
	}
	return frame{f.at, d}
}

func join(a, b frame) frame {
	d := append(slices.Clone(a.data), payloadOf(b)...)
	binary.BigEndian.PutUint16(d[16:], uint16(len(d)-14))
	copy(d[42:46], b.data[42:46]) // the newer acknowledgement
	d[47] |= b.data[47]
	return frame{b.at, d}
}

// follower finds the packet that continues packet i.
func follower(fs []frame, i int) (int, bool) {
	end := binary.BigEndian.Uint32(fs[i].data[38:]) + uint32(len(payloadOf(fs[i])))
	for j := i + 1; j < len(fs) && j < i+40; j++ {
		if fs[j].data == nil || string(fs[j].data[26:38]) != string(fs[i].data[26:38]) {
			continue
		}
		return j, len(payloadOf(fs[j])) > 0 && binary.BigEndian.Uint32(fs[j].data[38:]) == end && len(fs[j].data)+len(payloadOf(fs[i])) < 65000
	}
	return 0, false
}

// flaggedRow reports whether a row says of itself that the capture was not clean.
func flaggedRow(x *formats.Exchange) bool {
	if x.GapBytes.Or(0) > 0 || x.Retransmits.Or(0) > 0 || x.Truncated.V || x.Midstream.V || x.EndReason == formats.EndCaptureCut {
		return true
	}
	for _, f := range x.EventFlags {
		if f&(formats.FlagGap|formats.FlagRetransmit) != 0 {
			return true
		}
	}
	return false
}

// difference names the first column in which two rows differ, times apart, which may differ by moved.
func difference(a, b *formats.Exchange, moved int64) string {
	va, vb := reflect.ValueOf(*a), reflect.ValueOf(*b)
	for i := range va.NumField() {
		name := va.Type().Field(i).Name
		x, y := va.Field(i).Interface(), vb.Field(i).Interface()
		switch name {
		case "ExchangeID":
			continue
		case "RequestModel":
			if a.Status.V != 200 || b.Status.V != 200 { // hashed unless an answer to another request has vouched for it
				continue
			}
		case "InputTokens", "InputTokensSource":
			if guessed(a.InputTokensSource) && guessed(b.InputTokensSource) {
				continue
			}
		case "OutputTokens", "OutputTokensSource":
			if guessed(a.OutputTokensSource) && guessed(b.OutputTokensSource) {
				continue
			}
		case "ArrivalUnixNS":
			if abs(x.(int64)-y.(int64)) > moved {
				return name
			}
			continue
		case "EventGapUS":
			g, h := x.([]int32), y.([]int32)
			if len(g) != len(h) {
				return name
			}
			for j := range g {
				if abs(int64(g[j]-h[j])) > 2*moved/1000+1 {
					return name
				}
			}
			continue
		case "EventFlags":
			if !slices.Equal(uncoalesced(x.([]int32), a), uncoalesced(y.([]int32), b)) {
				return name
			}
			continue
		}
		if n, ok := x.(formats.Null[int64]); ok && len(name) > 2 && name[len(name)-2:] == "NS" {
			m := y.(formats.Null[int64])
			if n.Valid != m.Valid || abs(n.V-m.V) > 2*moved {
				return fmt.Sprintf("%s: %v, want %v", name, m, n)
			}
			continue
		}
		if !reflect.DeepEqual(x, y) {
			return fmt.Sprintf("%s: %v, want %v", name, y, x)
		}
	}
	return ""
}

// guessed: what is estimated depends on what other rows taught, and says that it is a guess.
func guessed(s formats.TokenSource) bool { return s == "" || s == formats.TokensEstimated }

func uncoalesced(flags []int32, x *formats.Exchange) []int32 {
	out := make([]int32, len(x.EventGapUS))
	for i := range flags {
		out[i] = flags[i] &^ formats.FlagCoalesced
	}
	return out
}

func abs(n int64) int64 { return max(n, -n) }

type lossRow struct{ exact, flagged, missing, wrong int }

// compare judges a mutated recording against the clean one. Rows are matched by x-request-id, else by position.
func compare(t *testing.T, what string, clean, got collect, moved int64) (r lossRow) {
	t.Helper()
	by := map[formats.Hash]*formats.Exchange{}
	for _, x := range clean {
		by[x.CorrelationID.V] = x
	}
	for _, x := range got {
		want := by[x.CorrelationID.V]
		diff := ""
		if want == nil {
			diff = "no such exchange"
		} else {
			diff = difference(want, x, moved)
			delete(by, x.CorrelationID.V)
		}
		switch {
		case diff == "" && !flaggedRow(x):
			r.exact++
		case flaggedRow(x):
			r.flagged++
		default:
			r.wrong++
			if r.wrong < 4 {
				t.Errorf("%s: row of %d silently wrong: %s", what, x.ArrivalUnixNS, diff)
			}
		}
	}
	r.missing = len(by)
	return r
}

// TestLossTable mutates clean captures and requires that no row is silently wrong: what differs says so.
func TestLossTable(t *testing.T) {
	made := traffic(3, 20, 3, 40)
	real := readFrames(t, "testdata/openai_stream_usage.pcap")
	for _, c := range []struct {
		name   string
		frames []frame
	}{{"made", made}, {"deepflow", stripOptions(real)}} {
		clean, _ := recordFrames(t, c.frames)
		if r := compare(t, "clean", clean, clean, 0); r.exact != len(clean) || len(clean) == 0 {
			t.Fatalf("clean capture: %+v", r)
		}
		for _, m := range mutations {
			for _, share := range []float64{0.0001, 0.001, 0.01, 0.05} {
				var sum lossRow
				for seed := range seeds() {
					rng := rand.New(rand.NewPCG(seed, 9))
					frames, moved := m.do(rng, c.frames, share)
					got, _ := recordFrames(t, frames)
					r := compare(t, fmt.Sprintf("%s %s %g %% seed %d", c.name, m.name, share*100, seed), clean, got, moved)
					sum = lossRow{sum.exact + r.exact, sum.flagged + r.flagged, sum.missing + r.missing, sum.wrong + r.wrong}
				}
				t.Logf("%-9s %-10s %5.2f %%: exact %4d, flagged %4d, missing %4d, silently wrong %d", c.name, m.name, share*100, sum.exact, sum.flagged, sum.missing, sum.wrong)
			}
		}
	}
}

// stripOptions rewrites TCP headers to 20 bytes, which is what the mutations handle.
func stripOptions(in []frame) (out []frame) {
	for _, f := range in {
		n := int(f.data[46]>>4) * 4
		d := append(slices.Clone(f.data[:54]), f.data[34+n:]...)
		d[46] = 0x50
		binary.BigEndian.PutUint16(d[16:], uint16(len(d)-14))
		out = append(out, frame{f.at, d})
	}
	return out
}

// seeds is how often each mutation is tried: SHADOWTAPE_LOSS_SEEDS makes a long run of it.
func seeds() uint64 {
	if n, err := strconv.Atoi(os.Getenv("SHADOWTAPE_LOSS_SEEDS")); err == nil && n > 0 {
		return uint64(n)
	}
	return 6
}
