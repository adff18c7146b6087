package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The bounds of a tokenizer.json. The largest in use (Gemma's, 262,144 tokens) takes 33 MB.
const (
	maxFile     = 128 << 20
	maxTokens   = 1 << 21
	maxMerges   = 1 << 22
	maxTokenLen = 4096
	maxSteps    = 16 // normalizers, pre-tokenizers
	maxAdded    = 1 << 16
)

var errNested = errors.New("too many parts, or nested too deeply")

// unsupported names what a file asks for and cannot be done.
func unsupported(part, what string) error {
	if what == "" {
		what = "none"
	}
	return fmt.Errorf("%s %s is not supported", part, strconv.Quote(short(what)))
}

func empty(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// jsonPattern is a pattern of a tokenizer.json: {"String": …} or {"Regex": …}.
type jsonPattern struct {
	Literal *string `json:"String"`
	Regex   *string `json:"Regex"`
}

func (p *jsonPattern) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		p.Literal = &s
		return nil
	}
	type plain jsonPattern
	return json.Unmarshal(b, (*plain)(p))
}

func (p *jsonPattern) program() (*program, error) {
	switch {
	case p.Regex != nil:
		return compile(*p.Regex)
	case p.Literal != nil && *p.Literal != "" && len(*p.Literal) <= 256:
		var b strings.Builder
		for _, r := range *p.Literal {
			fmt.Fprintf(&b, `\x{%x}`, r)
		}
		return compile(b.String())
	}
	return nil, errors.New("no pattern")
}

// tokenizerJSON is what is read of a tokenizer.json; padding and truncation are the caller's there and nobody's here.
type tokenizerJSON struct {
	Added []struct {
		ID         int32  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
	} `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         json.RawMessage `json:"model"`
}

type modelJSON struct {
	Type         string           `json:"type"`
	Vocab        map[string]int32 `json:"vocab"`
	Merges       []mergeJSON      `json:"merges"`
	Dropout      *float64         `json:"dropout"`
	Unknown      *string          `json:"unk_token"`
	Prefix       *string          `json:"continuing_subword_prefix"`
	Suffix       *string          `json:"end_of_word_suffix"`
	Fuse         bool             `json:"fuse_unk"`
	Fallback     bool             `json:"byte_fallback"`
	IgnoreMerges bool             `json:"ignore_merges"`
}

// mergeJSON is "left right" or ["left", "right"].
type mergeJSON [2]string

func (m *mergeJSON) UnmarshalJSON(b []byte) error {
	var s string
	if len(b) > 0 && b[0] == '[' {
		var two []string
		if err := json.Unmarshal(b, &two); err != nil || len(two) != 2 {
			return errors.New("a merge that is no pair")
		}
		*m = mergeJSON(two)
		return nil
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	left, right, ok := strings.Cut(s, " ")
	if !ok || strings.Contains(right, " ") {
		return errors.New("a merge that is no pair")
	}
	*m = mergeJSON{left, right}
	return nil
}

// ReadJSON reads a Hugging Face tokenizer.json whose model is a byte-pair encoding. The error names the part that is not supported.
func ReadJSON(data []byte) (*Model, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("%d bytes, more than any tokenizer.json has", len(data))
	}
	var j tokenizerJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, fmt.Errorf("no tokenizer.json: %w", err)
	}
	var kind struct {
		Type  string          `json:"type"`
		Vocab json.RawMessage `json:"vocab"`
	}
	if empty(j.Model) {
		return nil, errors.New("no tokenizer.json: it has no model")
	}
	if err := json.Unmarshal(j.Model, &kind); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if kind.Type != "BPE" && (kind.Type != "" || len(kind.Vocab) == 0 || kind.Vocab[0] != '{') {
		return nil, unsupported("the model", kind.Type)
	}
	m := &Model{}
	var err error
	if m.normal, err = readNormalizers(j.Normalizer, 0); err != nil {
		return nil, err
	}
	pre := preTokenizer{}
	if err = pre.read(j.PreTokenizer, 0); err != nil {
		return nil, err
	}
	m.stages = pre.stages
	var mj modelJSON
	if err = json.Unmarshal(j.Model, &mj); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if m.bpe, err = mj.bpe(pre.byteLevel); err != nil {
		return nil, err
	}
	if m.special, err = readSpecial(j.PostProcessor, 0); err != nil {
		return nil, err
	}
	return m, m.readAdded(&j)
}

// bpe makes the encoding. byteLevel: the vocabulary is written in the byte-level alphabet.
func (j *modelJSON) bpe(byteLevel bool) (bpe, error) {
	b := bpe{byByte: byteLevel, unknown: -1, fuse: j.Fuse}
	switch {
	case len(j.Vocab) == 0 || len(j.Vocab) > maxTokens || len(j.Merges) > maxMerges:
		return b, fmt.Errorf("model: %d tokens and %d merges: at least one token, at most %d and %d", len(j.Vocab), len(j.Merges), maxTokens, maxMerges)
	case j.Dropout != nil && *j.Dropout != 0:
		return b, unsupported("the model's dropout", strconv.FormatFloat(*j.Dropout, 'g', -1, 64))
	case j.Prefix != nil && *j.Prefix != "":
		return b, unsupported("the model's continuing_subword_prefix", *j.Prefix)
	case j.Suffix != nil && *j.Suffix != "":
		return b, unsupported("the model's end_of_word_suffix", *j.Suffix)
	case j.Fallback && byteLevel:
		return b, unsupported("the model's byte_fallback", "with a ByteLevel pre-tokenizer")
	}
	for i := range b.bytes {
		b.bytes[i] = -1
	}
	if j.Unknown != nil {
		if id, ok := j.Vocab[*j.Unknown]; ok {
			b.unknown = id
		}
	}
	if j.IgnoreMerges {
		b.whole = make(map[string]int32, len(j.Vocab))
	}
	b.chars = map[rune]int32{}
	for t, id := range j.Vocab {
		if id < 0 || len(t) > maxTokenLen {
			return b, fmt.Errorf("model: the token %s is too long, or its number below 0", strconv.Quote(short(t)))
		}
		if byteLevel {
			raw, ok := fromByteAlphabet(t)
			if !ok { // a mark, which no text turns into
				continue
			}
			if len(raw) == 1 {
				b.bytes[raw[0]] = id
			}
			t = raw
		} else if r, n := utf8.DecodeRuneInString(t); n == len(t) && n > 0 {
			b.chars[r] = id
		} else if c, ok := byteToken(t); ok && j.Fallback {
			b.bytes[c] = id
		}
		if b.whole != nil {
			b.whole[t] = id
		}
	}
	return b, j.merge(&b)
}

// merge fills in the pairs, and the seams where symbols are characters.
func (j *modelJSON) merge(b *bpe) error {
	b.pairs = newPairTable(len(j.Merges))
	plain := true // no merge has a part that stands for a byte
	for rank, m := range j.Merges {
		left, ok := j.Vocab[m[0]]
		right, ok2 := j.Vocab[m[1]]
		id, ok3 := j.Vocab[m[0]+m[1]]
		if !ok || !ok2 || !ok3 {
			return fmt.Errorf("model: merge %d, %s and %s: not all of it are tokens", rank, strconv.Quote(short(m[0])), strconv.Quote(short(m[1])))
		}
		b.pairs.put(left, right, pair{uint32(rank), uint32(id)})
		for _, part := range m {
			_, is := byteToken(part)
			plain = plain && !is
		}
	}
	fallback := true
	for _, id := range b.bytes {
		fallback = fallback && id >= 0
	}
	if !b.byByte && plain && (fallback || b.unknown < 0 || !b.fuse) && b.whole == nil {
		b.seams = newSeams()
		for _, m := range j.Merges {
			b.seams.token(m[0] + m[1])
		}
	}
	return nil
}

// byteToken reads a token that stands for a byte: <0x0A>.
func byteToken(t string) (byte, bool) {
	if len(t) != 6 || t[:3] != "<0x" || t[5] != '>' {
		return 0, false
	}
	n, err := strconv.ParseUint(t[3:5], 16, 8)
	return byte(n), err == nil
}

// byteAlphabet are the characters that stand for bytes in a byte-level vocabulary: printable ones for themselves, the others moved
// beyond U+0100 in order (the GPT-2 tokenizer's rule).
var byteAlphabet = func() (of map[rune]byte) {
	of = map[rune]byte{}
	next := rune(256)
	for b := range 256 {
		if r := rune(b); r >= '!' && r <= '~' || r >= 0xa1 && r <= 0xac || r >= 0xae {
			of[r] = byte(b)
			continue
		}
		of[next] = byte(b)
		next++
	}
	return of
}()

func fromByteAlphabet(t string) (string, bool) {
	raw := make([]byte, 0, len(t))
	for _, r := range t {
		b, ok := byteAlphabet[r]
		if !ok {
			return "", false
		}
		raw = append(raw, b)
	}
	return string(raw), len(raw) > 0
}

// readAdded reads the added tokens.
func (m *Model) readAdded(j *tokenizerJSON) error {
	if len(j.Added) > maxAdded {
		return fmt.Errorf("%d added tokens, at most %d", len(j.Added), maxAdded)
	}
	var raw, made []addedToken
	c := m.NewCounter()
	for _, a := range j.Added {
		t := addedToken{id: a.ID, text: a.Content, whole: a.SingleWord, eatLeft: a.LStrip, eatRight: a.RStrip}
		if a.ID < 0 || len(a.Content) > maxTokenLen {
			return fmt.Errorf("the added token %s is too long, or its number below 0", strconv.Quote(short(a.Content)))
		}
		if a.Content == "" {
			continue
		}
		if !a.Normalized {
			raw = append(raw, t)
			continue
		}
		c.match.steps = stepsPerByte * (len(a.Content) + 64)
		text := []byte(a.Content)
		for _, n := range m.normal {
			text = n(c, text)
		}
		if t.text = string(text); t.text != "" {
			made = append(made, t)
		}
	}
	m.raw, m.made = newAdded(raw), newAdded(made)
	return nil
}

// readSpecial counts the tokens that a post-processor puts around one text.
func readSpecial(raw json.RawMessage, depth int) (int, error) {
	if empty(raw) {
		return 0, nil
	}
	var j struct {
		Type       string            `json:"type"`
		Processors []json.RawMessage `json:"processors"`
		Single     []struct {
			Special *struct {
				ID string `json:"id"`
			} `json:"SpecialToken"`
		} `json:"single"`
		Tokens map[string]struct {
			IDs []int32 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(raw, &j); err != nil {
		return 0, fmt.Errorf("post_processor: %w", err)
	}
	n := 0
	switch j.Type {
	case "ByteLevel":
	case "BertProcessing", "RobertaProcessing":
		n = 2
	case "TemplateProcessing":
		for _, s := range j.Single {
			if s.Special != nil {
				n += max(len(j.Tokens[s.Special.ID].IDs), 1)
			}
		}
	case "Sequence":
		if depth > 4 || len(j.Processors) > maxSteps {
			return 0, errNested
		}
		for _, p := range j.Processors {
			k, err := readSpecial(p, depth+1)
			if err != nil {
				return 0, err
			}
			n += k
		}
	default:
		return 0, unsupported("post_processor", j.Type)
	}
	return min(n, 1024), nil
}
