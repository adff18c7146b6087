package openai

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
)

// imageHead is how many bytes of an image are looked at for its size: a JPEG's may stand behind a preview.
const imageHead = 64 << 10

// pixels returns the number of pixels of an image that is sent along as a data URL or as bare base64; false where it is only referred to,
// or of a kind that is not known.
func pixels(v value) (n int64, ok bool) {
	switch v.kind() {
	case '{': // {"url": …}, or a source with its data
		v.members(func(k []byte, v value) {
			if s := string(k); s == "url" || s == "data" || s == "image_url" {
				if m, known := pixels(v); known {
					n, ok = m, true
				}
			}
		})
		return n, ok
	case '"':
	default:
		return 0, false
	}
	b := []byte(v[1 : len(v)-1])
	if bytes.HasPrefix(b, []byte("data:")) {
		i := bytes.Index(b[:min(len(b), 256)], []byte(";base64,"))
		if i < 0 {
			return 0, false
		}
		b = b[i+8:]
	} else if bytes.Contains(b[:min(len(b), 16)], []byte("://")) {
		return 0, false
	}
	b = b[:min(len(b), imageHead/3*4)]
	img := make([]byte, base64.StdEncoding.DecodedLen(len(b)))
	got, _ := base64.StdEncoding.Decode(img, b) // what was decoded before an error is enough
	w, h := imageSize(img[:got])
	if w <= 0 || h <= 0 || w > 1<<20 || h > 1<<20 {
		return 0, false
	}
	return int64(w) * int64(h), true
}

// imageSize reads the size from the head of a PNG, GIF, WebP or JPEG.
func imageSize(b []byte) (w, h int) {
	be, le := binary.BigEndian, binary.LittleEndian
	switch {
	case len(b) >= 24 && string(b[:8]) == "\x89PNG\r\n\x1a\n":
		return int(be.Uint32(b[16:])), int(be.Uint32(b[20:]))
	case len(b) >= 10 && string(b[:4]) == "GIF8":
		return int(le.Uint16(b[6:])), int(le.Uint16(b[8:]))
	case len(b) >= 30 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WEBP":
		switch string(b[12:16]) {
		case "VP8 ":
			return int(le.Uint16(b[26:]) & 0x3fff), int(le.Uint16(b[28:]) & 0x3fff)
		case "VP8L":
			n := le.Uint32(b[21:])
			return int(n&0x3fff) + 1, int(n>>14&0x3fff) + 1
		case "VP8X":
			return int(le.Uint32(append(b[24:27:27], 0))) + 1, int(le.Uint32(append(b[27:30:30], 0))) + 1
		}
	case len(b) >= 4 && b[0] == 0xff && b[1] == 0xd8:
		for i := 2; i+9 < len(b); {
			if b[i] != 0xff {
				return 0, 0
			}
			m := b[i+1]
			if m >= 0xc0 && m <= 0xcf && m != 0xc4 && m != 0xc8 && m != 0xcc { // a frame header
				return int(be.Uint16(b[i+7:])), int(be.Uint16(b[i+5:]))
			}
			if m == 0xff {
				i++
				continue
			}
			i += 2 + int(be.Uint16(b[i+2:]))
		}
	}
	return 0, 0
}
