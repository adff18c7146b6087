package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxControlBytes bounds what is read of an answer to a question about the server itself.
const maxControlBytes = 8 << 20

// AskTime is how long one question may take, from its connection to the last byte of its answer, and all tries of Insist together: an
// answer that drips, has no end, or is put off by interim responses holds nothing up for longer.
const AskTime = 30 * time.Second

// Reply is the answer to a question that is no part of the load.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte // 8 MiB at most
}

// HTML says whether the answer is a web page.
func (r *Reply) HTML() bool {
	start := strings.ToLower(string(bytes.TrimSpace(r.Body[:min(len(r.Body), 256)])))
	return strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "text/html") || strings.HasPrefix(start, "<!doctype html") || strings.HasPrefix(start, "<html")
}

// OK says whether the answer is a good one: HTTP 200, and no web page.
func (r *Reply) OK() bool { return r.Status == http.StatusOK && !r.HTML() }

// Ask asks the target something that is no part of the load, over connections of its own, for AskTime at most. body is marshalled; nil
// sends none. Errors name neither method nor URL: who asks knows them.
func (p *Target) Ask(ctx context.Context, method, path string, body any) (Reply, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return Reply{}, err
		}
		in = bytes.NewReader(b)
	}
	asking, cancel := context.WithTimeout(ctx, AskTime)
	defer cancel()
	req, err := http.NewRequestWithContext(asking, method, p.url.String()+path, in)
	if err != nil {
		return Reply{}, err
	}
	for k, v := range p.c.o.Header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	req.Header.Set("User-Agent", p.c.o.UserAgent)
	req.Header.Set("Accept", "application/json, text/plain;version=0.0.4;q=0.9, */*;q=0.1")
	if path == "/metrics" {
		req.Header.Set("Accept", "text/plain;version=0.0.4")
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if p.c.o.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+p.c.o.APIKey)
	}
	late := func(err error) error {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) && asking.Err() != nil {
			return fmt.Errorf("no whole answer in %v: %w", AskTime, err)
		}
		return err
	}
	res, err := p.ctl.Do(req)
	if err != nil {
		return Reply{}, late(bare(err))
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxControlBytes))
	return Reply{res.StatusCode, res.Header, answer}, late(err)
}

// Insist is Ask for questions whose answer decides how the run goes: a server that is busy, breaks off, or answers with anything but
// JSON is asked again, four times in all and no longer than AskTime.
func (p *Target) Insist(ctx context.Context, method, path string, body any) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, AskTime)
	defer cancel()
	for try := 0; ; try++ {
		r, err := p.Ask(ctx, method, path, body)
		busy := err != nil || r.Status == http.StatusTooManyRequests || r.Status >= 500 || r.Status == http.StatusOK && (r.HTML() || !json.Valid(r.Body))
		if !busy || try == 3 || ctx.Err() != nil {
			return r, err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// bare takes the method and URL off an error of net/http: who asks knows them.
func bare(err error) error {
	for {
		u := errors.Unwrap(err)
		if u == nil || !strings.Contains(err.Error(), `"`) {
			return err
		}
		err = u
	}
}
