package kv

import "math/bits"

// index finds pages by the hash that stands in them: open addressing with linear probing, at most half full. A lookup touches one word
// of the table and one page, where a general map touches its own copy of the key and the value as well; nothing else in a simulation
// is called as often.
type index struct {
	slots []int32 // page numbers, none where empty; the length is a power of two
	shift uint    // from a scattered hash to a slot
	n     int
}

// reset empties the index for a pool of the given size.
func (x *index) reset(pages int) {
	b := bits.Len(uint(2*pages - 1))
	x.slots, x.shift, x.n = make([]int32, 1<<b), uint(64-b), 0
	for i := range x.slots {
		x.slots[i] = none
	}
}

// slot is where a hash is looked for first.
func (x *index) slot(hash uint64) int { return int(hash * 0x9e3779b97f4a7c15 >> x.shift) }

// find returns the page with a hash, or none.
func (x *index) find(pages []page, hash uint64) int32 {
	mask := len(x.slots) - 1
	for s := x.slot(hash); ; s = (s + 1) & mask {
		i := x.slots[s]
		if i == none || pages[i].hash == hash {
			return i
		}
	}
}

// add enters a page whose hash no other page has.
func (x *index) add(pages []page, i int32) {
	mask := len(x.slots) - 1
	s := x.slot(pages[i].hash)
	for x.slots[s] != none {
		s = (s + 1) & mask
	}
	x.slots[s] = i
	x.n++
}

// remove takes a page out, moving back those that were pushed past its slot.
func (x *index) remove(pages []page, i int32) {
	mask := len(x.slots) - 1
	hole := x.slot(pages[i].hash)
	for x.slots[hole] != i {
		hole = (hole + 1) & mask
	}
	for s := hole; ; {
		s = (s + 1) & mask
		j := x.slots[s]
		if j == none {
			break
		}
		// j may fill the hole if its own first slot is not after the hole.
		if home := x.slot(pages[j].hash); (s-home)&mask >= (s-hole)&mask {
			x.slots[hole] = j
			hole = s
		}
	}
	x.slots[hole] = none
	x.n--
}
