package prompt

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// The limits of what is made up for one request.
const (
	maxMessages = 4096
	maxTools    = 1024
	maxImages   = 64
	maxPixels   = 4096 * 4096
)

// chatMessages appends the messages of a chat: as many as were recorded, the last of them the user's. All the text but a word for each
// further message stands in the first, so that a longer conversation begins as the shorter one did.
func (p *Maker) chatMessages(w *writer, x *formats.Exchange, tokens int64) {
	c := &p.o.Text
	n := int(min(max(x.MessageCount.Or(1), 1), maxMessages))
	text := float64(tokens) - c.Overhead - float64(n-1)*c.PerMessage
	first := int64(math.Round(text)) - int64(math.Round(float64(n-1)*c.TokensPerWord))
	if first < 1 {
		first = 1
	}
	w.b = append(w.b, '[')
	for i := range n {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		role := "user"
		if (n-1-i)%2 == 1 {
			role = "assistant"
			if i == 0 {
				role = "system"
			}
		}
		w.b = append(w.b, `{"role":"`...)
		w.b = append(w.b, role...)
		w.b = append(w.b, `","content":`...)
		images := 0
		if i == n-1 && p.o.Images {
			images = int(min(x.ImageCount.V, maxImages))
		}
		if images > 0 {
			w.b = append(w.b, `[{"type":"text","text":`...)
		}
		w.b = append(w.b, '"')
		if i == 0 {
			w.b = p.text(w.b, x, first, c)
		} else {
			w.b = append(w.b, c.Words[p.key('m', uint64(i))%uint64(len(c.Words))]...)
		}
		w.b = append(w.b, '"')
		if images > 0 {
			w.b = append(w.b, '}')
			for k := range images {
				w.b = p.picture(w.b, x, k, images)
			}
			w.b = append(w.b, ']')
		}
		w.b = append(w.b, '}')
	}
	w.b = append(w.b, ']')
	x.MessageCount = formats.Of(int32(n))
}

// picture appends an image of an equal share of the recorded pixels: a pattern of its own, so that no cache knows it.
func (p *Maker) picture(b []byte, x *formats.Exchange, k, of int) []byte {
	pixels := x.ImagePixels.Or(int64(of)*512*512) / int64(of)
	side := int(math.Sqrt(float64(min(max(pixels, 64), maxPixels))))
	m := image.NewPaletted(image.Rect(0, 0, side, side), palette)
	state := p.key('i', uint64(x.SourceID.Or(x.ExchangeID))^pass(x)^uint64(k)<<56)
	const tile = 16
	row := make([]uint8, side)
	for y := range side {
		if y%tile == 0 {
			for left := 0; left < side; left += tile {
				state += 0x9e3779b97f4a7c15
				v := uint8(stats.Mix(state) % uint64(len(palette)))
				for i := left; i < min(left+tile, side); i++ {
					row[i] = v
				}
			}
		}
		copy(m.Pix[y*m.Stride:], row)
	}
	var out bytes.Buffer
	if png.Encode(&out, m) != nil { // it cannot fail on a buffer
		return b
	}
	b = append(b, `,{"type":"image_url","image_url":{"url":"data:image/png;base64,`...)
	b = base64.StdEncoding.AppendEncode(b, out.Bytes())
	return append(b, `"}}`...)
}

var palette = func() color.Palette {
	var p color.Palette
	for i := range 64 {
		p = append(p, color.RGBA{uint8(i&3) * 85, uint8(i>>2&3) * 85, uint8(i>>4&3) * 85, 255})
	}
	return p
}()

// tools appends tool schemas of the recorded count and, as nearly as words allow, of the recorded bytes. Equal counts and bytes are
// equal tools: they are part of the prompt's shared prefix. The model is told to call none: a forced length and a call do not go together.
func (p *Maker) tools(w *writer, x *formats.Exchange) {
	n := int(min(x.ToolCount.V, maxTools))
	total := int(min(x.ToolBytes.Or(int64(n)*400), 1<<20))
	w.name("tools")
	w.b = append(w.b, ToolSchemas(n, total, p.key('f', uint64(n)<<32^uint64(total)), p.o.Text.Words)...)
	w.str("tool_choice", "none")
}

// ToolSchemas is a JSON array of n tools that take total bytes, as nearly as words allow; key names their text.
func ToolSchemas(n, total int, key uint64, words []string) []byte {
	b := []byte{'['}
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		end := total * (i + 1) / n
		b = append(b, fmt.Sprintf(`{"type":"function","function":{"name":"tool_%d","description":"`, i)...)
		const rest = `","parameters":{"type":"object","properties":{"text":{"type":"string"}}}}}`
		first := true
		draw(span{key + uint64(i), int64(max(end-len(b)-len(rest)-1, 5) / 5)}, uint64(len(words)), func(v uint64) {
			if !first {
				b = append(b, ' ')
			}
			first = false
			b = append(b, words[v]...)
		})
		b = append(b, rest...)
	}
	return append(b, ']')
}

// toolTokens is what the recorded tools take of a prompt, by the calibration.
func (p *Maker) toolTokens(x *formats.Exchange) int64 {
	n := min(x.ToolCount.V, maxTools)
	return int64(math.Round(p.o.Text.ToolOverhead + float64(x.ToolBytes.Or(int64(n)*400))*p.o.Text.TokensPerToolByte))
}
