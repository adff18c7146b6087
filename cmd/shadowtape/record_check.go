package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// checkAnswer is what record --check --json prints.
type checkAnswer struct {
	Seconds     float64          `json:"seconds"`
	Exchanges   int64            `json:"exchanges"`
	PerMinute   float64          `json:"exchanges_per_minute"`
	Complete    int64            `json:"complete"`
	Streamed    int64            `json:"streamed"`
	WithUsage   int64            `json:"with_usage"`
	Gaps        int64            `json:"with_gaps"`
	Endpoints   map[string]int64 `json:"endpoints"`
	Filtered    map[string]int64 `json:"filtered"`
	Packets     int64            `json:"packets"`
	KernelDrops int64            `json:"kernel_drops"`
	TLS         int64            `json:"tls_connections"`
	HTTP2       int64            `json:"http2_connections"`
	NotHTTP     int64            `json:"not_http_connections"`
}

// checkLive says what would be recorded.
func (a *app) checkLive(ctx context.Context, o recordFlags, src *liveSource) error {
	c := checkAnswer{Endpoints: map[string]int64{}}
	start := time.Now()
	fmt.Fprintf(a.err, "looking at %s, writing nothing\n", src.note)
	err := src.run(ctx, func(x *formats.Exchange) {
		c.Exchanges++
		c.Endpoints[string(x.Endpoint)]++
		for _, k := range []struct {
			is bool
			n  *int64
		}{{x.EndReason == formats.EndComplete, &c.Complete}, {x.Stream.Or(false), &c.Streamed}, {x.OutputTokensSource == formats.TokensUsage, &c.WithUsage}, {x.GapBytes.Or(0) > 0, &c.Gaps}} {
			if k.is {
				*k.n++
			}
		}
	})
	if err != nil {
		return err
	}
	c.Seconds = time.Since(start).Seconds()
	c.PerMinute = float64(c.Exchanges) / c.Seconds * 60
	s := src.stats()
	c.Filtered, c.Packets, c.KernelDrops = s.Filtered, s.Packets, s.Notes["kernel_drops"]
	c.TLS, c.HTTP2, c.NotHTTP = s.Notes["tls_connections"], s.Notes["http2_connections"], s.Notes["not_http_connections"]
	if o.asJSON {
		return json.NewEncoder(a.out).Encode(c)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d exchanges in %.0f s (%.1f a minute): %d complete, %d streamed, %d with usage, %d with gaps\n", c.Exchanges, c.Seconds, c.PerMinute, c.Complete, c.Streamed, c.WithUsage, c.Gaps)
	for _, k := range slices.Sorted(maps.Keys(c.Endpoints)) {
		fmt.Fprintf(&b, "  %-28s %d\n", k, c.Endpoints[k])
	}
	fmt.Fprintf(&b, "%d packets, %d dropped by the kernel\n", c.Packets, c.KernelDrops)
	for _, n := range []struct {
		what string
		n    int64
	}{{"connections in TLS, which cannot be read: record behind what terminates it", c.TLS}, {"connections in HTTP/2, which is not read yet", c.HTTP2}, {"connections that are no HTTP", c.NotHTTP}} {
		if n.n > 0 {
			fmt.Fprintf(&b, "%d %s\n", n.n, n.what)
		}
	}
	switch {
	case c.Packets == 0:
		fmt.Fprintln(&b, "no packet: is it the right interface and port?")
	case c.Exchanges == 0 && c.TLS == 0 && c.HTTP2 == 0:
		fmt.Fprintln(&b, "no exchange: packets pass, but no request for a language model")
	case c.WithUsage*2 < c.Complete:
		fmt.Fprintln(&b, "most answers carry no usage: clients ask for it with stream_options.include_usage, vLLM can be told to add it (--enable-force-include-usage)")
	}
	_, err = io.Copy(a.out, &b)
	return err
}
