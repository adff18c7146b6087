package workload

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
)

// kindKey is a kind without its weight, as a map's key.
type kindKey struct {
	endpoint               formats.Endpoint
	model, format          string
	stream                 formats.Null[bool]
	temperature, topP      formats.Null[float64]
	topK                   formats.Null[int64]
	presence, frequency, r formats.Null[float64]
	n                      formats.Null[int32]
}

func keyOf(x *formats.Exchange) kindKey {
	return kindKey{x.Endpoint, x.RequestModel, x.ResponseFormat, x.Stream, x.Temperature, x.TopP, x.TopK, x.PresencePenalty, x.FrequencyPenalty, x.RepetitionPenalty, x.N}
}

// maxKinds bounds how many kinds a counter tells apart.
const maxKinds = 200

// KindCounter counts the kinds of requests. The zero value is ready.
type KindCounter struct{ counts map[kindKey]float64 }

// Add counts a request's kind. Past 200 kinds, new ones are left out.
func (c *KindCounter) Add(x *formats.Exchange) {
	if c.counts == nil {
		c.counts = map[kindKey]float64{}
	}
	if k := keyOf(x); len(c.counts) < maxKinds || c.counts[k] > 0 {
		c.counts[k]++
	}
}

// Mix lists the kinds with their counts, the most frequent first; nil where nothing is known of any.
func (c *KindCounter) Mix() []Kind {
	kinds := c.counts
	if _, nothing := kinds[kindKey{}]; nothing && len(kinds) == 1 {
		return nil
	}
	var mix []Kind
	for k, n := range kinds {
		mix = append(mix, Kind{Weight: n, Endpoint: k.endpoint, Model: k.model, Stream: pointer(k.stream), Temperature: pointer(k.temperature), TopP: pointer(k.topP),
			TopK: pointer(k.topK), PresencePenalty: pointer(k.presence), FrequencyPenalty: pointer(k.frequency), RepetitionPenalty: pointer(k.r), N: pointer(k.n), ResponseFormat: k.format})
	}
	slices.SortFunc(mix, func(a, b Kind) int {
		return cmp.Or(cmp.Compare(b.Weight, a.Weight), cmp.Compare(fmt.Sprint(a.key()), fmt.Sprint(b.key())))
	})
	return mix
}

// key is the kind's own, for a fixed order among equals.
func (k *Kind) key() kindKey {
	var x formats.Exchange
	k.apply(&x)
	return keyOf(&x)
}

func pointer[T any](n formats.Null[T]) *T {
	if !n.Valid {
		return nil
	}
	return &n.V
}

// kindPicker draws kinds by their weights.
type kindPicker struct {
	kinds []Kind
	sums  []float64
}

func newKindPicker(kinds []Kind) kindPicker {
	p := kindPicker{kinds: kinds}
	sum := 0.0
	for _, k := range kinds {
		sum += k.Weight
		p.sums = append(p.sums, sum)
	}
	return p
}

func (p *kindPicker) apply(x *formats.Exchange, s *source) {
	if len(p.kinds) == 0 {
		x.Endpoint, x.Stream = formats.EndpointCompletions, formats.Of(true)
		return
	}
	u := float64(s.uniform() * p.sums[len(p.sums)-1])
	i := 0
	for i < len(p.sums)-1 && p.sums[i] <= u {
		i++
	}
	p.kinds[i].apply(x)
	x.Drawn.V |= formats.DrawnSampling
}

// apply sets what a kind knows and x does not.
func (k *Kind) apply(x *formats.Exchange) {
	if x.Endpoint == "" {
		x.Endpoint = k.Endpoint
	}
	if x.RequestModel == "" {
		x.RequestModel = k.Model
	}
	if x.ResponseFormat == "" {
		x.ResponseFormat = k.ResponseFormat
	}
	set(&x.Stream, k.Stream)
	set(&x.Temperature, k.Temperature)
	set(&x.TopP, k.TopP)
	set(&x.TopK, k.TopK)
	set(&x.PresencePenalty, k.PresencePenalty)
	set(&x.FrequencyPenalty, k.FrequencyPenalty)
	set(&x.RepetitionPenalty, k.RepetitionPenalty)
	set(&x.N, k.N)
}

func set[T any](to *formats.Null[T], from *T) {
	if !to.Valid && from != nil {
		*to = formats.Of(*from)
	}
}
