package sim

import (
	"math/bits"

	"github.com/shadowtape/shadowtape/internal/stats"
)

// The tokenizer needs no vocabulary file. A piece is up to three bytes: any first byte, then up to two bytes above the space, so that
// white space always begins a piece (" the" is " th", "e"). A piece's id is its bytes as a number, after all shorter pieces; ids
// above stand for the chat template's marks. Tokenizing is exactly invertible, and tokens of a text's beginning are, but for the last,
// tokens of the text: prompts that grow share their pages.
const (
	firstPair    = 256
	firstTriple  = firstPair + 1<<16
	firstSpecial = firstTriple + 1<<24

	tokenBegin  = firstSpecial + iota - 3 // of the prompt
	tokenStart                            // of a message
	tokenHeader                           // end of a message's role
	tokenEnd                              // of a message
	tokenImage                            // one of imageTokens that stand for an image
	tokenSystem                           // roles
	tokenUser
	tokenAssistant
	tokenTool
	tokenOther

	vocabulary = tokenOther + 1
)

// The chat template's cost: tokenBegin once, four marks a message (start, role, header end, end), and three marks that open the answer.
const (
	templateOnce       = 4
	templatePerMessage = 4
	imageTokens        = 256
)

// appendTokens appends the tokens of a text.
func appendTokens(dst []int32, text string) []int32 {
	for i := 0; i < len(text); {
		j := i + 1
		for j < len(text) && j < i+3 && text[j] > ' ' {
			j++
		}
		switch j - i {
		case 1:
			dst = append(dst, int32(text[i]))
		case 2:
			dst = append(dst, firstPair+int32(text[i])<<8+int32(text[i+1]))
		case 3:
			dst = append(dst, firstTriple+int32(text[i])<<16+int32(text[i+1])<<8+int32(text[i+2]))
		}
		i = j
	}
	return dst
}

// appendText appends the text of tokens. Marks have none; an id that is none of ours is the replacement character.
func appendText(dst []byte, tokens []int32) []byte {
	for _, t := range tokens {
		switch {
		case t < 0 || t >= vocabulary:
			dst = append(dst, "\uFFFD"...)
		case t < firstPair:
			dst = append(dst, byte(t))
		case t < firstTriple:
			t -= firstPair
			dst = append(dst, byte(t>>8), byte(t))
		case t < firstSpecial:
			t -= firstTriple
			dst = append(dst, byte(t>>16), byte(t>>8), byte(t))
		}
	}
	return dst
}

// roleToken is the mark of a role.
func roleToken(role string) int32 {
	switch role {
	case "system", "developer":
		return tokenSystem
	case "user":
		return tokenUser
	case "assistant":
		return tokenAssistant
	case "tool", "function":
		return tokenTool
	}
	return tokenOther
}

// A generated token is a space and two letters, so that an answer tokenizes into the tokens it was made of.
const wordBytes = 3

// word returns the letters of token k of an answer with the given seed.
func word(seed uint64, k int) (a, b byte) {
	h := stats.Scatter(seed + uint64(k)*stats.MixStep)
	return 'a' + byte(h%26), 'a' + byte(h>>32%26)
}

func wordToken(a, b byte) int32 { return firstTriple + ' '<<16 + int32(a)<<8 + int32(b) }

// pages returns the chained hashes of the full pages of a prompt and of the answer with the given seed and length after it.
func pages(prompt []int32, salt uint64, size int, seed uint64, output int) []uint64 {
	hashes := make([]uint64, 0, (len(prompt)+output)/size)
	h := salt
	for i := range len(prompt) + output {
		var t int32
		if i < len(prompt) {
			t = prompt[i]
		} else {
			t = wordToken(word(seed, i-len(prompt)))
		}
		hi, lo := bits.Mul64(h^uint64(t)^0xa0761d6478bd642f, 0xe7037ed1a0b428db)
		h = hi ^ lo
		if (i+1)%size == 0 {
			hashes = append(hashes, stats.Scatter(h))
		}
	}
	return hashes
}
