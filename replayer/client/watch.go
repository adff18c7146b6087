package client

import (
	"context"
	"net/http"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
)

// Watch follows the /metrics pages of the targets until ctx ends, and those of more: see promtext.Watch. It has its own schedule
// and its own connections, and is never on the dispatcher's path.
func (c *Client) Watch(ctx context.Context, every time.Duration, more []promtext.Endpoint, sink func([]formats.ServerSample) error) (promtext.WatchStats, error) {
	var all []promtext.Endpoint
	for _, p := range c.targets {
		h := http.Header{"User-Agent": {c.o.UserAgent}}
		for k, v := range c.o.Header {
			h[http.CanonicalHeaderKey(k)] = v
		}
		if c.o.APIKey != "" {
			h.Set("Authorization", "Bearer "+c.o.APIKey)
		}
		all = append(all, promtext.Endpoint{Target: p.url.String(), URL: p.url.String() + "/metrics", Header: h, Client: p.ctl})
	}
	return promtext.Watch(ctx, append(all, more...), every, sink)
}
