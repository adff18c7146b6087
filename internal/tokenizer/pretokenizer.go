package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
)

// preTokenizer reads the "pre_tokenizer" of a tokenizer.json.
type preTokenizer struct {
	stages    []stage
	byteLevel bool // what comes out is bytes in the byte-level alphabet
}

// byteLevelPattern is what a ByteLevel pre-tokenizer cuts by (the GPT-2 tokenizer's).
const byteLevelPattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

var behaviors = map[string]behavior{"Isolated": isolated, "Removed": removed, "MergedWithPrevious": withPrevious, "MergedWithNext": withNext, "Contiguous": contiguous}

func (p *preTokenizer) add(s stage, pattern string) (err error) {
	if pattern != "" {
		s.pattern, err = compile(pattern)
	}
	p.stages = append(p.stages, s)
	return err
}

func (p *preTokenizer) read(raw json.RawMessage, depth int) error {
	if empty(raw) {
		return nil
	}
	var j struct {
		Type        string            `json:"type"`
		Parts       []json.RawMessage `json:"pretokenizers"`
		Pattern     jsonPattern       `json:"pattern"`
		Behavior    string            `json:"behavior"`
		Invert      bool              `json:"invert"`
		PrefixSpace *bool             `json:"add_prefix_space"`
		UseRegex    *bool             `json:"use_regex"`
		Individual  bool              `json:"individual_digits"`
		Replacement string            `json:"replacement"`
		Scheme      string            `json:"prepend_scheme"`
		Split       *bool             `json:"split"`
	}
	if err := json.Unmarshal(raw, &j); err != nil {
		return fmt.Errorf("pre_tokenizer: %w", err)
	}
	if len(p.stages) >= maxSteps || depth > 4 {
		return errNested
	}
	if p.byteLevel && j.Type != "Sequence" {
		return unsupported("pre_tokenizer", j.Type+" after ByteLevel")
	}
	keep, known := behaviors[j.Behavior]
	yes := func(b *bool) bool { return b == nil || *b }
	var err error
	switch j.Type {
	case "Sequence":
		for _, part := range j.Parts {
			if err := p.read(part, depth+1); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		s := stage{keep: isolated}
		if yes(j.PrefixSpace) {
			s.prefix = alwaysPrefix
		}
		pattern := byteLevelPattern
		if !yes(j.UseRegex) {
			pattern = ""
		}
		p.byteLevel = true
		return p.add(s, pattern)
	case "Split":
		if !known {
			return unsupported("pre_tokenizer Split with the behavior", j.Behavior)
		}
		s := stage{keep: keep, invert: j.Invert}
		if s.pattern, err = j.Pattern.program(); err == nil {
			p.stages = append(p.stages, s)
		}
	case "Digits":
		s, pattern := stage{keep: contiguous}, `\p{N}`
		if j.Individual {
			s.keep = isolated
		}
		return p.add(s, pattern)
	case "Punctuation":
		if !known {
			keep = isolated
		}
		return p.add(stage{keep: keep}, `[!-/:-@\[-`+"`"+`{-~\p{P}]`)
	case "Whitespace":
		return p.add(stage{keep: removed, invert: true}, `\w+|[^\w\s]+`)
	case "WhitespaceSplit":
		return p.add(stage{keep: removed}, `\s`)
	case "Metaspace":
		if j.Replacement == "" {
			j.Replacement = "▁"
		}
		if len(j.Replacement) > 8 || strings.Contains(j.Replacement, " ") {
			return unsupported("pre_tokenizer Metaspace with the replacement", j.Replacement)
		}
		s := stage{mark: j.Replacement, keep: withNext}
		switch j.Scheme {
		case "always", "":
			if j.Scheme == "always" || yes(j.PrefixSpace) {
				s.prefix = alwaysPrefix
			}
		case "first":
			s.prefix = firstPrefix
		case "never":
		default:
			return unsupported("pre_tokenizer Metaspace with the prepend_scheme", j.Scheme)
		}
		if yes(j.Split) {
			s.pattern, err = (&jsonPattern{Literal: &j.Replacement}).program()
		}
		if err == nil {
			p.stages = append(p.stages, s)
		}
	default:
		return unsupported("pre_tokenizer", j.Type)
	}
	if err != nil {
		return fmt.Errorf("pre_tokenizer %s: %w", j.Type, err)
	}
	return nil
}
