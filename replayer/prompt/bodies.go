package prompt

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/shadowtape/shadowtape/formats"
)

// Bodies sends literal request bodies out of a file, for laboratories: a JSON line for each exchange, {"exchange_id": 7, "body": {…}}.
// Only the model is replaced, and a request_id taken out: it must be new. Exchanges without a body in the file are made by Maker, or
// dropped where it is nil. Safe for concurrent use; the caller closes it.
type Bodies struct {
	Maker *Maker
	Model string

	f     *os.File
	where map[int64][2]int64 // offset and length of a body's line, by exchange id
}

// OpenBodies reads where each body stands; the bodies stay in the file.
func OpenBodies(name string) (*Bodies, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open bodies: %w", err)
	}
	b := &Bodies{f: f, where: map[int64][2]int64{}}
	r := bufio.NewReaderSize(f, 1<<20)
	var at int64
	for line := 1; ; line++ {
		text, err := r.ReadBytes('\n')
		if len(text) > 1 {
			var l struct {
				ID   int64           `json:"exchange_id"`
				Body json.RawMessage `json:"body"`
			}
			if e := json.Unmarshal(text, &l); e != nil || l.ID == 0 || len(l.Body) == 0 {
				f.Close()
				return nil, fmt.Errorf("open bodies %s: line %d is no exchange_id and body", name, line)
			}
			b.where[l.ID] = [2]int64{at, int64(len(text))}
		}
		at += int64(len(text))
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("open bodies %s: %w", name, err)
		}
	}
}

// Close closes the file.
func (b *Bodies) Close() error { return b.f.Close() }

// Len is how many bodies there are.
func (b *Bodies) Len() int { return len(b.where) }

// Body is the literal body of the exchange that x re-issues.
func (b *Bodies) Body(x *formats.Exchange) ([]byte, error) {
	w, ok := b.where[x.SourceID.Or(x.ExchangeID)]
	if !ok {
		if b.Maker == nil {
			return nil, errors.New("the file of bodies has none for it")
		}
		return b.Maker.Body(x)
	}
	text := make([]byte, w[1])
	if _, err := b.f.ReadAt(text, w[0]); err != nil {
		return nil, err
	}
	var l struct {
		Body map[string]json.RawMessage `json:"body"`
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, err
	}
	l.Body["model"] = json.RawMessage(strconv.Quote(b.Model))
	delete(l.Body, "request_id")
	if _, ok := l.Body["previous_response_id"]; ok {
		return nil, ErrStateful
	}
	x.RequestModel = b.Model
	var stream bool
	if s, ok := l.Body["stream"]; !ok || json.Unmarshal(s, &stream) == nil {
		x.Stream = formats.Of(stream)
	}
	if x.Endpoint == "" {
		x.Endpoint = formats.EndpointCompletions
		if _, ok := l.Body["messages"]; ok {
			x.Endpoint = formats.EndpointChat
		}
	}
	if stream && (x.Endpoint == formats.EndpointChat || x.Endpoint == formats.EndpointCompletions) {
		l.Body["stream_options"] = json.RawMessage(`{"include_usage":true}`)
	}
	return json.Marshal(l.Body)
}
