package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normalizer changes a text before it is cut. It may return the text itself, or memory of the counter's that the next one overwrites.
type normalizer func(c *Counter, text []byte) []byte

var forms = map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}

// readNormalizers reads the "normalizer" of a tokenizer.json.
func readNormalizers(raw json.RawMessage, depth int) ([]normalizer, error) {
	if empty(raw) {
		return nil, nil
	}
	var j struct {
		Type        string            `json:"type"`
		Normalizers []json.RawMessage `json:"normalizers"`
		Prepend     string            `json:"prepend"`
		Pattern     jsonPattern       `json:"pattern"`
		Content     string            `json:"content"`
		Left        bool              `json:"strip_left"`
		Right       bool              `json:"strip_right"`
	}
	if err := json.Unmarshal(raw, &j); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if len(j.Prepend)+len(j.Content) > 64 {
		return nil, unsupported("normalizer with the text", j.Prepend+j.Content)
	}
	switch j.Type {
	case "Sequence":
		if depth > 4 {
			return nil, errNested
		}
		var all []normalizer
		for _, raw := range j.Normalizers {
			n, err := readNormalizers(raw, depth+1)
			if err != nil {
				return nil, err
			}
			if all = append(all, n...); len(all) > maxSteps {
				return nil, errNested
			}
		}
		return all, nil
	case "NFC", "NFD", "NFKC", "NFKD":
		form := forms[j.Type]
		return []normalizer{func(c *Counter, text []byte) []byte {
			if form.IsNormal(text) {
				return text
			}
			return form.Append(nil, text...)
		}}, nil
	case "Lowercase":
		return []normalizer{func(c *Counter, text []byte) []byte { return bytes.ToLower(text) }}, nil
	case "Strip":
		return []normalizer{func(c *Counter, text []byte) []byte {
			if j.Left {
				text = bytes.TrimLeftFunc(text, unicode.IsSpace)
			}
			if j.Right {
				text = bytes.TrimRightFunc(text, unicode.IsSpace)
			}
			return text
		}}, nil
	case "Prepend":
		return []normalizer{func(c *Counter, text []byte) []byte {
			if len(text) == 0 {
				return text
			}
			return append([]byte(j.Prepend), text...)
		}}, nil
	case "Replace":
		if j.Pattern.Literal != nil {
			from, to := []byte(*j.Pattern.Literal), []byte(j.Content)
			if len(from) == 0 {
				return nil, unsupported("normalizer", "Replace of nothing")
			}
			return []normalizer{func(c *Counter, text []byte) []byte { return replaced(c, text, from, to) }}, nil
		}
		p, err := j.Pattern.program()
		if err != nil {
			return nil, fmt.Errorf("normalizer Replace: %w", err)
		}
		return []normalizer{func(c *Counter, text []byte) []byte {
			var out []byte
			for pos := 0; pos < len(text); {
				start, end := c.find(p, text, pos)
				if out = append(out, text[pos:start]...); start < end {
					out = append(out, j.Content...)
				}
				if pos = end; len(out) > maxNormal {
					c.match.steps = -1
					return nil
				}
			}
			return out
		}}, nil
	}
	return nil, unsupported("normalizer", j.Type)
}

// maxNormal is how long a text may become when it is normalized; a longer one is not counted.
const maxNormal = 4 * MaxText

// replaced replaces one text by another.
func replaced(c *Counter, text, from, to []byte) []byte {
	if !bytes.Contains(text, from) {
		return text
	}
	out := c.scratch[:0]
	if len(out) == 0 && cap(out) > 0 && len(text) > 0 && &out[:1][0] == &text[0] { // it was made by the Replace before
		out = nil
	}
	for {
		at := bytes.Index(text, from)
		if at < 0 {
			break
		}
		out = append(append(out, text[:at]...), to...)
		if text = text[at+len(from):]; len(out) > maxNormal {
			c.match.steps = -1
			return nil
		}
	}
	c.scratch = append(out, text...)
	return c.scratch
}
