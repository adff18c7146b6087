package formats

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestPageCodec(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	for n := range 300 {
		src := make([]byte, n)
		for i := range src {
			src[i] = byte(r.IntN(3))
		}
		frame, err := pages.Encode(nil, src)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pages.Decode(nil, frame)
		if err != nil || !bytes.Equal(src, got) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if n <= smallPage && len(frame) != n+9 {
			t.Fatalf("%d bytes are framed in %d", n, len(frame))
		}
	}
}
