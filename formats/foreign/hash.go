package foreign

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"

	"github.com/shadowtape/shadowtape/formats"
)

// hasher makes the keyed hashes of identifiers, by the construction that a recording uses (HMAC-SHA-256 over length-prefixed strings, cut
// to 64 bits), so that an import and a recording with one key agree.
type hasher struct {
	mac  hash.Hash
	used bool
}

// newHasher draws a key where none is given.
func newHasher(key []byte) *hasher {
	if len(key) == 0 {
		key = make([]byte, 32)
		rand.Read(key) // never fails
	}
	return &hasher{mac: hmac.New(sha256.New, key)}
}

// sum hashes an identifier; kind keeps name spaces apart.
func (h *hasher) sum(kind string, parts ...string) (f formats.Hash) {
	h.used = true
	h.mac.Reset()
	var n [4]byte
	for _, p := range append([]string{kind}, parts...) {
		binary.LittleEndian.PutUint32(n[:], uint32(len(p)))
		h.mac.Write(n[:])
		h.mac.Write([]byte(p))
	}
	copy(f[:], h.mac.Sum(nil))
	return f
}

// of is sum of what may be unknown: "" and the spellings of nothing that careless programs write.
func (h *hasher) of(kind, s string) formats.Null[formats.Hash] {
	switch s {
	case "", "None", "null", "nan", "NaN", "undefined", "<nil>":
		return formats.Null[formats.Hash]{}
	}
	return formats.Of(h.sum(kind, s))
}

// keyID names the key, as a recording's header does.
func (h *hasher) keyID() string {
	used := h.used
	s := h.sum("key-id")
	h.used = used
	return hex.EncodeToString(s[:])
}

// scope makes block ids that are local to something, a session or a file, distinct in a whole trace. Equal ids of one scope stay equal.
type scope uint64

func (h *hasher) scope(name string) scope {
	s := h.sum("blocks", name)
	return scope(binary.LittleEndian.Uint64(s[:]))
}

// block is the trace's id of a local one (the finalizer of SplitMix64, which is a permutation: within a scope no two ids meet).
func (s scope) block(id int64) int64 {
	z := uint64(s) + uint64(id)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64(z ^ z>>31)
}
