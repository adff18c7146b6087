package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"github.com/shadowtape/shadowtape/formats"
)

// The canonical prompt is what the prefix blocks are hashes of: tool definitions, then system text, then the messages in order, each
// as its role, its text unescaped, images and audio as digests, tool calls as JSON without white space. The marks keep parts apart. It is
// not a server's template, but two prompts share a prefix of it exactly as far as they share one under any template that keeps this
// order. Prompts of token ids are four bytes an id, little endian.
const (
	markMessage = "\x01"
	markPart    = "\x02"
	markMedia   = "\x03"
	markCall    = "\x04"
	markTools   = "\x05"
)

// prompt counts and hashes what the model will read.
func (q *reader) prompt() {
	x := q.x
	if q.tools.kind() == '[' || q.functions.kind() == '[' {
		n := q.tools.count() + q.functions.count()
		x.ToolCount = formats.Of(int32(n))
		x.ToolBytes = formats.Of(int64(len(q.tools) + len(q.functions)))
	}
	var c *chain
	if q.h != nil {
		c = &chain{h: q.h, blocks: []int64{}, tokens: -1}
		if q.h.counter != nil {
			c.tokens = 0
		}
	}
	prompts := 0
	switch {
	case len(q.messages) > 0:
		prompts = 1
		q.chat(c, q.messages)
	case x.Endpoint == formats.EndpointRerank:
		if x.PromptCount.Valid {
			prompts = int(x.PromptCount.V)
		}
		c = nil
	case len(q.ids) > 0:
		prompts = q.tokens(c, q.ids)
	case len(q.input) > 0 && x.Endpoint == formats.EndpointResponses && q.input.kind() == '[':
		prompts = 1
		q.chat(c, q.input)
	case len(q.input) > 0:
		if x.Endpoint == formats.EndpointResponses {
			q.head(c)
		}
		prompts = q.plain(c, q.input)
	}
	if prompts > 0 {
		x.PromptCount = formats.Of(int32(prompts))
	}
	if c != nil && x.InputTokensSource == "" { // the ids of tokens say nothing of how long text is
		c.cut()
		q.h.prompt = c.total
		if prompts > 0 && !x.ImageCount.Valid && !x.AudioCount.Valid {
			q.h.tokens = c.tokens
		}
	}
	if c != nil && prompts == 1 {
		x.PrefixBlocks = c.blocks
		x.PrefixTailTokens = formats.Of(int64(c.n))
	}
}

// head writes what stands before the first message.
func (q *reader) head(c *chain) {
	if c != nil && len(q.tools)+len(q.functions) > 0 {
		c.str(markTools)
		compact(c, q.tools)
		compact(c, q.functions)
	}
	if len(q.system) > 0 {
		if c != nil {
			c.str(markMessage + "system" + markPart)
		}
		q.content(c, q.system)
	}
}

// chat writes messages (chat completions, Messages, Responses input items).
func (q *reader) chat(c *chain, messages value) {
	q.head(c)
	n := int32(0)
	messages.elements(func(m value) {
		n++
		q.message(c, m)
		if c != nil && len(q.h.turns) < 4096 {
			q.h.turns = append(q.h.turns, c.mark())
		}
	})
	q.x.MessageCount = formats.Of(n)
}

func (q *reader) message(c *chain, m value) {
	if m.kind() == '"' { // an item that is a bare string
		q.content(c, m)
		return
	}
	var role, kind string
	var body, calls, call, args, output, name value
	m.members(func(k []byte, v value) {
		switch string(k) {
		case "role":
			role = v.str(32)
		case "type":
			kind = v.str(48)
		case "content", "summary":
			body = v
		case "tool_calls":
			calls = v
		case "function_call":
			call = v
		case "arguments", "input":
			args = v
		case "output":
			output = v
		case "name":
			name = v
		case "images": // Ollama
			v.elements(func(v value) { q.media(c, v) })
		}
	})
	if role == "" {
		role = kind
	}
	if c != nil {
		c.str(markMessage + role + markPart)
	}
	q.content(c, body)
	q.content(c, output)
	if c != nil && len(calls)+len(call)+len(args) > 0 {
		c.str(markCall)
		compact(c, name)
		compact(c, calls)
		compact(c, call)
		compact(c, args)
	}
}

// content writes a message's content: a string, or a list of parts.
func (q *reader) content(c *chain, v value) {
	switch v.kind() {
	case '"':
		if c != nil {
			unescape(v[1:len(v)-1], c.Write)
		}
	case '[':
		v.elements(func(p value) { q.part(c, p) })
	case '{':
		q.part(c, v)
	}
}

func (q *reader) part(c *chain, p value) {
	if p.kind() == '"' {
		q.content(c, p)
		return
	}
	var kind string
	var text, media, inner value
	p.members(func(k []byte, v value) {
		switch string(k) {
		case "type":
			kind = v.str(32)
		case "text", "thinking", "refusal":
			text = v
		case "image_url", "input_audio", "video_url", "audio_url", "source", "file", "image", "audio", "video", "file_data", "file_id":
			media = v
		case "content":
			inner = v
		case "name", "input":
			if c != nil {
				c.str(markCall)
				compact(c, v)
			}
		}
	})
	if c != nil {
		c.str(markPart)
	}
	q.content(c, text)
	if len(media) > 0 {
		switch kind {
		case "input_audio", "audio_url", "audio":
			q.x.AudioCount = formats.Of(q.x.AudioCount.Or(0) + 1)
			q.digest(c, media)
		case "image_url", "input_image", "image", "video_url", "video":
			q.media(c, media)
		default:
			q.digest(c, media)
		}
	}
	if len(inner) > 0 { // a tool result
		q.content(c, inner)
	}
}

// media counts an image; the pixels are known where they are of all.
func (q *reader) media(c *chain, v value) {
	n, ok := pixels(v)
	switch {
	case ok && (!q.x.ImageCount.Valid || q.x.ImagePixels.Valid):
		q.x.ImagePixels = formats.Of(q.x.ImagePixels.Or(0) + n)
	default:
		q.x.ImagePixels.Valid = false
	}
	q.x.ImageCount = formats.Of(q.x.ImageCount.Or(0) + 1)
	q.digest(c, v)
}

// digest writes a medium as the hash of its JSON: its bytes are no text and can be large.
func (q *reader) digest(c *chain, v value) {
	if c == nil {
		return
	}
	c.str(markMedia)
	h := sha256.New()
	compactTo(v, func(p []byte) { h.Write(p) })
	c.put(h.Sum(nil))
	if c.tokens >= 0 {
		c.tokens = -1 // a file's tokens are the server's secret
	}
}

// plain writes a prompt of completions or embeddings and returns how many prompts there are.
func (q *reader) plain(c *chain, v value) int {
	switch v.kind() {
	case '"':
		q.content(c, v)
		return 1
	case '[':
		first := byte(0)
		n := 0
		v.elements(func(e value) {
			if n++; n == 1 {
				first = e.kind()
			}
		})
		if first == '0' || first == '[' {
			return q.tokens(c, v)
		}
		if first == '"' {
			v.elements(func(e value) {
				if q.content(c, e); c != nil {
					c.cut()
				}
			})
		}
		return n
	}
	return 1
}

// tokens writes a prompt of token ids: their number is exact.
func (q *reader) tokens(c *chain, v value) int {
	prompts, ids, lists := 0, int64(0), false
	one := func(e value) {
		ids++
		if n, ok := e.integer(); ok && c != nil {
			var b [4]byte
			binary.LittleEndian.PutUint32(b[:], uint32(n))
			c.put(b[:])
		}
	}
	v.elements(func(e value) {
		if e.kind() == '[' {
			lists = true
			prompts++
			e.elements(one)
			return
		}
		one(e)
	})
	if !lists {
		prompts = 1
	}
	q.x.InputTokens, q.x.InputTokensSource = formats.Of(ids), formats.TokensTokenizer
	return prompts
}

// compact writes JSON without the white space between its tokens.
func compact(c *chain, v value) { compactTo(v, c.Write) }

func compactTo(v value, out func([]byte)) {
	for i := 0; i < len(v); {
		if v[i] == '"' {
			end := skipString(v, i)
			if end < 0 {
				end = len(v)
			}
			out(v[i:end])
			i = end
			continue
		}
		j := bytes.IndexAny(v[i:], "\" \t\r\n")
		if j < 0 {
			out(v[i:])
			return
		}
		if j > 0 {
			out(v[i : i+j])
		}
		if i += j; v[i] != '"' {
			i++
		}
	}
}
