package tokenizer

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The vocabularies of the encodings that are known by name, each token's length in a byte and then its bytes, in order of rank, as bzip2
// leaves them: 1.2 MB for both. vocab/README.md says where they come from.
//
//go:embed vocab/*.bz2
var vocabularies embed.FS

// encoding is a tiktoken encoding: how it cuts a text, and where its vocabulary is.
type encoding struct {
	name     string
	pattern  string
	embedded string // "": only read from a file
}

const (
	patternGPT2   = `'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s`
	patternCL100K = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`
	patternO200K  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// encodings are in order of how their names are looked for in a file's.
var encodings = []encoding{
	{"cl100k_base", patternCL100K, "cl100k_base"},
	{"o200k_base", patternO200K, "o200k_base"},
	{"o200k_harmony", patternO200K, "o200k_base"},
	{"p50k_base", patternGPT2, ""},
	{"p50k_edit", patternGPT2, ""},
	{"r50k_base", patternGPT2, ""},
	{"gpt2", patternGPT2, ""},
	{"qwen", patternQwen, ""},
}

// Open reads a tokenizer: the name of a tiktoken encoding (cl100k_base, o200k_base, o200k_harmony), a Hugging Face tokenizer.json, a
// directory that holds one, or a .tiktoken vocabulary, which is named after its encoding.
func Open(name string) (*Model, error) {
	for _, e := range encodings {
		if e.name == name && e.embedded != "" {
			return e.open()
		}
	}
	m, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("read tokenizer %s: %w", name, err)
	}
	return m, nil
}

func open(name string) (*Model, error) {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(name, "/.\\") {
		return nil, errors.New("no such file, and no encoding that is known by name: cl100k_base, o200k_base, o200k_harmony")
	}
	if err == nil && info.IsDir() {
		name = filepath.Join(name, "tokenizer.json")
	}
	if err != nil {
		return nil, bare(err)
	}
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	var m *Model
	if strings.HasSuffix(name, ".tiktoken") {
		m, err = readNamed(filepath.Base(name), data)
	} else {
		m, err = ReadJSON(data)
	}
	if err != nil {
		return nil, err
	}
	if m.id = "sha256:" + hex.EncodeToString(sum[:8]); m.bpe.byByte && strings.HasSuffix(name, ".tiktoken") {
		m.id = known(sum, m.id)
	}
	return m, nil
}

// bare is an error without the path, which the caller names.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, bare(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, bare(err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("more than %d bytes: no tokenizer", maxFile)
	}
	return data, nil
}

// digests are the SHA-256 of the .tiktoken files whose tokens are embedded, as tiktoken itself checks them.
var digests = map[string]string{
	"cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
	"o200k_base":  "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}

// known is the name of the encoding whose file has this digest, so that a file and a name that count equally have one id.
func known(sum [sha256.Size]byte, id string) string {
	for name, d := range digests {
		if d == hex.EncodeToString(sum[:]) {
			return name
		}
	}
	return id
}

// readNamed reads a .tiktoken file, whose name says how a text is cut.
func readNamed(base string, data []byte) (*Model, error) {
	var names []string
	for _, e := range encodings {
		if strings.HasPrefix(base, e.name) {
			tokens, err := readTiktoken(data)
			if err != nil {
				return nil, err
			}
			return e.model(tokens)
		}
		names = append(names, e.name)
	}
	return nil, fmt.Errorf("a .tiktoken file does not say how a text is cut: its name has to begin with that of its encoding (%s)", strings.Join(names, ", "))
}

// maxRanked is the longest token of a .tiktoken file; the longest of those in use has 128 bytes.
const maxRanked = 256

// readTiktoken reads the lines "BASE64 RANK" of a vocabulary and returns the tokens by rank.
func readTiktoken(data []byte) ([]string, error) {
	var tokens []string
	in := bufio.NewScanner(bytes.NewReader(data))
	in.Buffer(nil, 4*maxRanked)
	for line := 1; in.Scan(); line++ {
		text := bytes.TrimSpace(in.Bytes())
		if len(text) == 0 {
			continue
		}
		word, number, ok := bytes.Cut(text, []byte(" "))
		token, err := base64.StdEncoding.DecodeString(string(word))
		rank, err2 := strconv.Atoi(string(number))
		if !ok || err != nil || err2 != nil || len(token) == 0 || len(token) > maxRanked || rank < len(tokens) || rank >= maxTokens {
			return nil, fmt.Errorf("line %d is no token and rank, in order of rank", line)
		}
		tokens = slices.Grow(tokens, rank+1-len(tokens))
		for len(tokens) < rank { // a rank that no token has
			tokens = append(tokens, "")
		}
		tokens = append(tokens, string(token))
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	if len(tokens) == 0 {
		return nil, errors.New("no tokens in it")
	}
	return tokens, nil
}

// open reads an embedded vocabulary.
func (e encoding) open() (*Model, error) {
	tokens, err := unpack(e.embedded)
	if err != nil {
		return nil, fmt.Errorf("read encoding %s: %w", e.name, err)
	}
	m, err := e.model(tokens)
	if err == nil {
		m.id = e.embedded
	}
	return m, err
}

func unpack(name string) (tokens []string, err error) {
	f, err := vocabularies.Open("vocab/" + name + ".bz2")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReader(bzip2.NewReader(f))
	buf := make([]byte, 256)
	for {
		n, err := in.ReadByte()
		if err == io.EOF {
			return tokens, nil
		}
		if err == nil {
			_, err = io.ReadFull(in, buf[:n])
		}
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, string(buf[:n]))
	}
}

// model makes the encoding of tokens in order of rank. Two neighbors can be joined where what they make together is a token, and its
// rank is the pair's.
func (e encoding) model(tokens []string) (*Model, error) {
	p, err := compile(e.pattern)
	if err != nil {
		return nil, err
	}
	b := bpe{byByte: true, unknown: -1, whole: make(map[string]int32, len(tokens))}
	for i := range b.bytes {
		b.bytes[i] = -1
	}
	for rank, t := range tokens {
		if t == "" {
			continue
		}
		b.whole[t] = int32(rank)
		if len(t) == 1 {
			b.bytes[t[0]] = int32(rank)
		}
	}
	for c, id := range b.bytes {
		if id < 0 {
			return nil, fmt.Errorf("no token for the byte 0x%02x", c)
		}
	}
	type join struct {
		a, b int32
		rank uint32
	}
	var joins []join
	for rank, t := range tokens {
		for i := 1; i < len(t); i++ {
			left, ok := b.whole[t[:i]]
			if !ok {
				continue
			}
			if right, ok := b.whole[t[i:]]; ok {
				if joins = append(joins, join{left, right, uint32(rank)}); len(joins) > 2*maxMerges {
					return nil, errors.New("more pairs of tokens than any vocabulary has")
				}
			}
		}
	}
	b.pairs = newPairTable(len(joins))
	for _, j := range joins {
		b.pairs.put(j.a, j.b, pair{j.rank, j.rank})
	}
	return &Model{bpe: b, stages: []stage{{pattern: p, keep: isolated}}}, nil
}
