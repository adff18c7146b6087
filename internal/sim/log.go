package sim

import (
	"bufio"
	"encoding/json"
	"io"
	"strconv"

	"github.com/shadowtape/shadowtape/internal/engine"
)

// logEntry is an ended exchange or a step.
type logEntry struct {
	exchange *exchange
	step     engine.Step
}

// stateHeader names the state log's columns. Times are nanoseconds since 1970; pages are those held during the step, shared ones once;
// context is the tokens in pages that the step's sequences attended to.
const stateHeader = "start_unix_ns,end_unix_ns,prefill_tokens,decode_sequences,context_tokens,pages,running,waiting,preempted\n"

// StateRow appends a line of the state log; zero is the time of the engine's start in nanoseconds since 1970.
func StateRow(b []byte, zero int64, st engine.Step) []byte {
	for i, v := range []int64{zero + int64(st.Start), zero + int64(st.End), int64(st.Prefill), int64(st.Decode), int64(st.Context),
		int64(st.Pages), int64(st.Running), int64(st.Waiting), int64(st.Preempted)} {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return append(b, '\n')
}

// StateHeader is the state log's first line.
func StateHeader() string { return stateHeader }

// emissionLine is a line of the emission log. token_unix_ns are the times just before each token's bytes were handed to the kernel, or,
// for an answer that is not streamed, the times at which the engine generated them.
type emissionLine struct {
	RequestID string  `json:"x_request_id"`
	Endpoint  string  `json:"endpoint"`
	Stream    bool    `json:"stream"`
	Arrival   int64   `json:"arrival_unix_ns"`  // the request was read to its end
	Response  int64   `json:"response_unix_ns"` // the last byte was handed over
	Input     int     `json:"input_tokens"`
	Cached    int     `json:"cached_tokens"`
	Output    int     `json:"output_tokens"` // generated and handed over
	End       string  `json:"end"`           // complete, abort, or the fault's kind
	Tokens    []int64 `json:"token_unix_ns"`
	Choices   []int   `json:"token_choice,omitempty"` // where there are several
	Preempted int     `json:"preempted,omitempty"`
	Fault     string  `json:"injected_fault,omitempty"`
}

// writeLogs writes what comes until the channel is closed. After an error it only drains.
func (s *Server) writeLogs() {
	defer close(s.logDone)
	var emissions, states *bufio.Writer
	if s.o.EmissionLog != nil {
		emissions = bufio.NewWriterSize(s.o.EmissionLog, 256<<10)
	}
	if s.o.StateLog != nil {
		states = bufio.NewWriterSize(s.o.StateLog, 256<<10)
		_, s.logErr = states.WriteString(stateHeader)
	}
	flush := func() {
		for _, w := range []*bufio.Writer{emissions, states} {
			if w != nil {
				s.keep(w.Flush())
			}
		}
	}
	for e := range s.logs {
		if s.logErr == nil {
			if e.exchange == nil {
				_, err := states.Write(StateRow(states.AvailableBuffer(), s.startNS, e.step))
				s.keep(err)
			} else if emissions != nil {
				s.keep(writeEmission(emissions, e.exchange))
			}
		}
		if len(s.logs) == 0 {
			flush()
		}
	}
	flush()
}

func (s *Server) keep(err error) {
	if s.logErr == nil {
		s.logErr = err
	}
}

func writeEmission(w io.Writer, ex *exchange) error {
	line := emissionLine{RequestID: ex.id, Endpoint: ex.endpoint, Stream: ex.stream, Arrival: ex.server.startNS + int64(ex.arrived), Response: ex.responded,
		Output: len(ex.times), End: ex.how, Tokens: ex.times, Fault: ex.fault}
	for i := range ex.choices {
		line.Preempted += ex.choices[i].request.Preempted
	}
	line.Input, line.Cached = ex.inputTokens, ex.cachedTokens()
	if len(ex.choices) > 1 {
		line.Choices = ex.order
	}
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
