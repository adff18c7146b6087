// Package workload models what clients do: when requests arrive, how long they are, what they have in common. A model is fitted to a
// trace or written down from a few figures, and gives traces of any length and rate that keep what hurts a server: bursts at every
// time scale, lengths that drift, long prompts that come together, shared beginnings.
//
// The default model is piecewise: windows in their order, each with its own count, its own family of arrivals and its own lengths.
// A stationary process with the right rate, dispersion and length histogram is not enough: what queues is work, and work drifts.
package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
)

// ModelSchema is the version of models that this build writes and reads.
const ModelSchema = 1

// Model is a workload. Its windows repeat after Seconds.
type Model struct {
	Schema   int            `json:"schema"`
	Source   string         `json:"source,omitempty"`    // what it was fitted to
	Seconds  float64        `json:"seconds,omitempty"`   // of all windows together; 0: the one window of each client never ends
	Quantum  float64        `json:"quantum_s,omitempty"` // the source's times stood at multiples of it; arrivals are spread unless told otherwise
	Clients  []Client       `json:"clients"`
	Mix      []Kind         `json:"mix,omitempty"`      // none: streamed completions
	Threads  *Threads       `json:"threads,omitempty"`  // none: nothing is shared
	Sessions *SessionLaw    `json:"sessions,omitempty"` // of a model that was written down; a fitted one has threads
	Aborted  float64        `json:"aborted_share,omitempty"`
	Extra    map[string]any `json:"extra,omitempty"`
}

// Client is one tenant, or all traffic together.
type Client struct {
	Tenant  string   `json:"tenant,omitempty"` // 16 hex digits of its keyed hash
	Windows []Window `json:"windows"`          // in the order of time
}

// Window is a stretch of time in which nothing changes.
type Window struct {
	Start   float64 `json:"start_s"`
	Seconds float64 `json:"seconds,omitempty"` // 0: it never ends
	Count   float64 `json:"count,omitempty"`   // arrivals, exactly; 0 in an endless window, where they are as many as come
	Arrival Arrival `json:"arrival"`
	Lengths Lengths `json:"lengths"`
}

// Lengths are the input and output tokens of requests: a joint table as it was seen, or two laws that do not depend on each other.
type Lengths struct {
	// Inputs are means of equal parts of the sorted input lengths; Outputs[i] the same of the outputs of the requests in part i.
	Inputs    []float64   `json:"inputs,omitempty"`
	Outputs   [][]float64 `json:"outputs,omitempty"`
	InputLaw  *Length     `json:"input_law,omitempty"`
	OutputLaw *Length     `json:"output_law,omitempty"`
}

// Kind is a kind of request; what it leaves out is unknown.
type Kind struct {
	Weight            float64          `json:"weight"`
	Endpoint          formats.Endpoint `json:"endpoint,omitempty"`
	Model             string           `json:"model,omitempty"`
	Stream            *bool            `json:"stream,omitempty"`
	Temperature       *float64         `json:"temperature,omitempty"`
	TopP              *float64         `json:"top_p,omitempty"`
	TopK              *int64           `json:"top_k,omitempty"`
	PresencePenalty   *float64         `json:"presence_penalty,omitempty"`
	FrequencyPenalty  *float64         `json:"frequency_penalty,omitempty"`
	RepetitionPenalty *float64         `json:"repetition_penalty,omitempty"`
	N                 *int32           `json:"n,omitempty"`
	ResponseFormat    string           `json:"response_format,omitempty"`
}

// Validate reports what a model lacks.
func (m *Model) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.Schema != ModelSchema {
		bad("workload model: schema %d, this build reads %d", m.Schema, ModelSchema)
	}
	if len(m.Clients) == 0 {
		bad("workload model: no clients")
	}
	if !(m.Seconds >= 0) || m.Aborted < 0 || m.Aborted > 1 || !(m.Quantum >= 0) {
		bad("workload model: %v seconds, %v aborted, quantum %v", m.Seconds, m.Aborted, m.Quantum)
	}
	for i, c := range m.Clients {
		if _, err := parseHash(c.Tenant); err != nil {
			bad("client %d: %w", i, err)
		}
		if len(c.Windows) == 0 {
			bad("client %d: no windows", i)
		}
		for k, w := range c.Windows {
			if err := w.validate(m.Seconds); err != nil {
				bad("client %d: window %d: %w", i, k, err)
			}
			if k > 0 && w.Start < c.Windows[k-1].Start+c.Windows[k-1].Seconds {
				bad("client %d: window %d begins before the one before it ends", i, k)
			}
		}
	}
	weight := 0.0
	for i, k := range m.Mix {
		if !(k.Weight >= 0) || math.IsInf(k.Weight, 0) {
			bad("mix %d: weight %v", i, k.Weight)
		}
		weight += k.Weight
	}
	if len(m.Mix) > 0 && weight <= 0 {
		bad("mix: all weights are 0")
	}
	if m.Threads != nil && m.Sessions != nil {
		bad("threads and sessions: a model has one of them")
	}
	if m.Threads != nil {
		errs = append(errs, m.Threads.validate())
	}
	if m.Sessions != nil {
		errs = append(errs, m.Sessions.validate())
	}
	return errors.Join(errs...)
}

func (w Window) validate(cycle float64) error {
	if cycle == 0 && w.Seconds != 0 || cycle > 0 && !(w.Seconds > 0 && w.Start >= 0 && w.Start+w.Seconds <= cycle*(1+1e-9)) {
		return fmt.Errorf("from %v for %v s does not lie in the model's %v s", w.Start, w.Seconds, cycle)
	}
	if w.Count < 0 || w.Count > 1e9 || math.IsNaN(w.Count) {
		return fmt.Errorf("count %v", w.Count)
	}
	if w.Count > 0 || w.Seconds == 0 {
		if err := w.Arrival.Validate(); err != nil {
			return err
		}
		return w.Lengths.validate()
	}
	return nil
}

func (l Lengths) validate() error {
	if l.InputLaw != nil && l.OutputLaw != nil {
		return errors.Join(l.InputLaw.Validate(), l.OutputLaw.Validate())
	}
	if len(l.Inputs) == 0 || len(l.Inputs) != len(l.Outputs) {
		return fmt.Errorf("lengths: %d inputs and outputs for %d of them", len(l.Inputs), len(l.Outputs))
	}
	for i, o := range l.Outputs {
		if len(o) == 0 || !(l.Inputs[i] >= 0 && l.Inputs[i] < 1e12) || !sort.Float64sAreSorted(o) || !(o[0] >= 0 && o[len(o)-1] < 1e12) {
			return fmt.Errorf("lengths: part %d is %v with outputs %v", i, l.Inputs[i], o)
		}
	}
	return nil
}

// Rate is the model's mean rate, per second.
func (m *Model) Rate() float64 {
	rate := 0.0
	for _, c := range m.Clients {
		for _, w := range c.Windows {
			if m.Seconds == 0 {
				rate += w.Arrival.Rate
			} else {
				rate += w.Count / m.Seconds
			}
		}
	}
	return rate
}

// Parse reads a model from JSON and validates it.
func Parse(data []byte) (*Model, error) {
	var m Model
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read workload model: %w", err)
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	return &m, nil
}

// parseHash reads 16 hex digits; "" is unknown.
func parseHash(s string) (h formats.Null[formats.Hash], err error) {
	if s == "" {
		return h, nil
	}
	var v uint64
	if _, err := fmt.Sscanf(s, "%016x", &v); err != nil || len(s) != 16 {
		return h, fmt.Errorf("%q is not 16 hex digits", s)
	}
	return formats.Of(hashOf(v)), nil
}

func hashOf(v uint64) (h formats.Hash) {
	for i := range h {
		h[i] = byte(v >> (56 - 8*i))
	}
	return h
}

// Header is the header of traces that the model generates; their times are relative.
func (m *Model) Header() formats.Header {
	h := formats.Header{SourceKind: "synth", TimeBase: "relative"}
	block := 0
	if m.Threads != nil {
		block = m.Threads.BlockSize
	}
	if m.Sessions != nil {
		block = m.Sessions.BlockSize
		h.Prompts = "cumulative"
	}
	if block > 0 {
		h.PrefixBlockUnit, h.PrefixBlockSize, h.PrefixBlockRule = "tokens", block, "floor"
		if m.Threads != nil && m.Threads.CeilRule {
			h.PrefixBlockRule = "ceil"
		}
	}
	return h
}
