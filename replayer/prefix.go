package replayer

import (
	"github.com/shadowtape/shadowtape/formats"
)

// maxSeenBlocks bounds the memory of what was seen: about 200 MB. Past it nothing more is said of what a cache could have hit.
const maxSeenBlocks = 1 << 22

// seenBlocks says what of a prompt's prefix the schedule has brought before: the hits of a cache that forgets nothing.
type seenBlocks struct {
	per  float64 // tokens in a block; 0: unknown
	seen map[uint64]struct{}
}

// hit is how many tokens of x's prompt are a prefix that came before; unknown where x has no blocks. It then notes x's own.
func (s *seenBlocks) hit(x *formats.Exchange, loop int32) formats.Null[int64] {
	if s.per <= 0 || x.PrefixBlocks == nil || !x.InputTokens.Valid || len(s.seen)+len(x.PrefixBlocks) > maxSeenBlocks {
		return none
	}
	if s.seen == nil {
		s.seen = map[uint64]struct{}{}
	}
	matched, same := 0, true
	for _, b := range x.PrefixBlocks {
		k := uint64(b) ^ uint64(loop)*0xd1342543de82ef95
		if _, ok := s.seen[k]; ok && same {
			matched++
		} else {
			same = false
			s.seen[k] = struct{}{}
		}
	}
	return formats.Of(min(int64(float64(matched)*s.per), x.InputTokens.V))
}
