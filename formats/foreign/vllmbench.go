package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// vllmResult is what is read of a result of vllm bench serve: by the Python program (vllm/benchmarks/serve.py) or the Rust one
// (rust/src/bench), which writes the same keys in alphabetical order, latencies besides, and for embeddings and reranking no tokens.
type vllmResult struct {
	Date       string      `json:"date"`
	Model      string      `json:"model_id"`
	Endpoint   string      `json:"endpoint_type"`
	Mode       string      `json:"mode"`
	InputLens  []int64     `json:"input_lens"`
	OutputLens []int64     `json:"output_lens"`
	TTFTs      []float64   `json:"ttfts"`
	ITLs       [][]float64 `json:"itls"`
	Latencies  []float64   `json:"latencies"`
	Starts     []float64   `json:"start_times"`
	Errors     []string    `json:"errors"`
}

// looksLikeVLLMBench knows a result by its lists, or by its sums, where those stand before lists that are longer than the head.
func looksLikeVLLMBench(head []byte) bool {
	return anywhere(`"input_lens"`, `"ttfts"`)(head) || anywhere(`"burstiness"`, `"completed"`, `"duration"`)(head) || anywhere(`"backend"`, `"conversations_completed"`)(head)
}

// vllmBench reads the detailed lists of one result. A file to which --append-result wrote several gives the first. Old versions do not
// write when a request started.
func vllmBench(in *input, m *formats.Manifest) (formats.Decoder, error) {
	b, err := readWhole(in)
	if err != nil {
		return nil, err
	}
	var doc vllmResult
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&doc); err != nil {
		return nil, plainJSON(err)
	}
	more := 0
	for ; ; more++ {
		var other json.RawMessage
		if err := d.Decode(&other); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("behind the first result: %w", plainJSON(err))
		}
	}
	if more > 0 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("the file holds %d results; this is the first", more+1))
	}
	return doc.rows(m)
}

// rows turns the lists into exchanges.
func (doc *vllmResult) rows(m *formats.Manifest) (formats.Decoder, error) {
	n := len(doc.InputLens)
	generated := len(doc.OutputLens) == n && len(doc.TTFTs) == n
	switch {
	case doc.Mode == "multi_turn":
		return nil, errors.New("it is a multi-turn result: vllm bench writes sums of turns there, and no list of requests")
	case n == 0 || !generated && len(doc.Latencies) != n:
		return nil, errors.New("it has no list of requests: vllm bench serve writes one with --save-detailed")
	}
	date := when(doc.Date)
	m.Model = doc.Model
	if len(doc.Starts) != n {
		m.Warnings = append(m.Warnings, "the file does not say when requests started: rates and what was in flight mean nothing")
	}
	var rows []*formats.Exchange
	for i := range n {
		x := &formats.Exchange{ArrivalUnixNS: date, RequestModel: doc.Model, InputTokens: counted(&doc.InputLens[i]), Endpoint: vllmEndpoint(doc.Endpoint)}
		if len(doc.Starts) == n {
			x.ArrivalUnixNS += atSeconds(doc.Starts[i] - doc.Starts[0]) // when it was sent: the schedule is not in the file, nor is the lag
		} else {
			x.Drawn = formats.Of(formats.DrawnArrival)
		}
		if generated {
			x.OutputTokens = counted(&doc.OutputLens[i])
			var gaps []float64
			if i < len(doc.ITLs) {
				gaps = doc.ITLs[i]
			}
			streamed(x, doc.TTFTs[i], gaps)
		}
		used(x)
		if x.EndNS = x.LastTokenNS; len(doc.Latencies) == n && doc.Latencies[i] > 0 {
			x.EndNS = seconds(doc.Latencies[i])
		}
		x.EndReason = formats.EndComplete
		if i < len(doc.Errors) && doc.Errors[i] != "" {
			x.EndReason = "" // a failure may have come in the middle of a stream: its first tokens stay
			failed(x, statusIn(doc.Errors[i]), strings.Contains(strings.ToLower(doc.Errors[i]), "timeout"))
			x.OutputTokens, x.OutputTokensSource = formats.Null[int64]{}, ""
		}
		rows = append(rows, x)
	}
	return listed(rows), nil
}

var httpStatus = regexp.MustCompile(`^HTTP ([1-5][0-9]{2})\b`)

// statusIn is the HTTP status that an error's text begins with, as the Rust program writes it.
func statusIn(text string) formats.Null[int32] {
	s := httpStatus.FindStringSubmatch(text)
	if s == nil {
		return formats.Null[int32]{}
	}
	n, err := strconv.Atoi(s[1])
	if err != nil {
		return formats.Null[int32]{}
	}
	return formats.Of(int32(n))
}

func vllmEndpoint(s string) formats.Endpoint {
	switch {
	case strings.Contains(s, "embed"):
		return formats.EndpointEmbeddings
	case strings.Contains(s, "rerank"):
		return formats.EndpointRerank
	case strings.Contains(s, "responses"):
		return formats.EndpointResponses
	case strings.Contains(s, "chat"):
		return formats.EndpointChat
	case s == "vllm" || s == "openai":
		return formats.EndpointCompletions
	}
	return ""
}
