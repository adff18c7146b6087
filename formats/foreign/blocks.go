package foreign

import "github.com/shadowtape/shadowtape/formats"

// blockRule is how a trace's block lists relate to its input lengths.
type blockRule struct {
	size int64
	rule string // ceil: a partial tail is a block; floor: it is not
}

// sample is one row's input length and number of blocks.
type sample struct{ tokens, blocks int64 }

func (b blockRule) holds(s sample) bool {
	if b.rule == "ceil" {
		return (s.tokens+b.size-1)/b.size == s.blocks
	}
	return s.tokens/b.size == s.blocks
}

// findRule returns the size and rule that most samples obey, of equals the one that comes first; ok is false where it is not most of
// them by far: three of four.
func findRule(samples []sample, sizes []int64, rules ...string) (best blockRule, ok bool) {
	most := 0
	for _, size := range sizes {
		for _, rule := range rules {
			b := blockRule{size, rule}
			n := 0
			for _, s := range samples {
				if b.holds(s) {
					n++
				}
			}
			if n > most {
				best, most = b, n
			}
		}
	}
	return best, most > 0 && 4*most >= 3*len(samples)
}

// set fills the prefix columns of x; it counts what does not obey the rule in notes.
func (b blockRule) set(x *formats.Exchange, list ids, notes map[string]int64) {
	if list == nil {
		return
	}
	if len(list) == 0 && !b.holds(sample{x.InputTokens.V, 0}) {
		notes["empty_hash_ids"]++ // a prompt without its list, not a prompt without blocks
		return
	}
	x.PrefixBlocks = list
	if b.size == 0 || !x.InputTokens.Valid || !b.holds(sample{x.InputTokens.V, int64(len(list))}) {
		notes["block_count_mismatch"]++
		return
	}
	full := int64(len(list))
	if b.rule == "ceil" && full > 0 {
		full--
	}
	x.PrefixTailTokens = formats.Of(x.InputTokens.V - full*b.size)
}

// describe states the rule in a header.
func (b blockRule) describe(h *formats.Header) {
	h.PrefixBlockUnit, h.PrefixBlockSize, h.PrefixBlockRule = "tokens", int(b.size), b.rule
}
