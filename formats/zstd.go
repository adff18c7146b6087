package formats

import (
	"encoding/binary"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/format"
)

// pageCodec compresses Parquet pages with zstd. The library's own codec keeps an encoder of several megabytes for each file, which is most
// of the cost of a small segment: eighty columns, nearly all of them a few bytes.
type pageCodec struct{ encoder *zstd.Encoder }

// pages is made, and used once, while the program starts: an encoder that is first used within a test's bubble of virtual time could not be
// used outside of it.
var pages = func() pageCodec {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(2), zstd.WithEncoderLevel(zstd.SpeedBetterCompression),
		zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true), zstd.WithEncoderCRC(false))
	if err != nil {
		panic(err) // the options are wrong
	}
	e.EncodeAll([]byte{0}, nil)
	return pageCodec{e}
}()

func (pageCodec) String() string { return "ZSTD" }

func (pageCodec) CompressionCodec() format.CompressionCodec { return format.Zstd }

const smallPage = 64

// Encode writes a frame. A page of a few bytes cannot become smaller and is framed as it is (RFC 8878, sections 3.1.1.1 and 3.1.1.2: a
// single segment, its size in one byte, one raw block that is the last).
func (c pageCodec) Encode(dst, src []byte) ([]byte, error) {
	if len(src) > smallPage {
		return c.encoder.EncodeAll(src, dst[:0]), nil
	}
	dst = append(dst[:0], 0x28, 0xb5, 0x2f, 0xfd, 0x20, byte(len(src)))
	var block [4]byte
	binary.LittleEndian.PutUint32(block[:], uint32(len(src))<<3|1)
	return append(append(dst, block[:3]...), src...), nil
}

// Decode reads a frame; files are read with the library's codec, and this is for whoever asks.
func (pageCodec) Decode(dst, src []byte) ([]byte, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.DecodeAll(src, dst[:0])
}
