package experiment

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"
)

// pushTimeout bounds one delivery to a database.
const pushTimeout = 15 * time.Second

// Pusher sends a report's figures to databases over HTTP. The zero value works.
type Pusher struct {
	Client *http.Client // nil: one of its own, which gives up after 15 s
	Token  string       // sent as Authorization: "Bearer TOKEN" to Prometheus, "Token TOKEN" to InfluxDB; "": none
	Agent  string       // the User-Agent; "" is shadowtape
}

// RemoteWrite sends a report to a Prometheus remote-write receiver (specification 1.0: a WriteRequest in protocol buffers, snappy's block
// format), such as http://host:9090/api/v1/write. Errors name the host, never the path, a user or a query.
func (p Pusher) RemoteWrite(ctx context.Context, to string, r *Report, at time.Time) error {
	return p.post(ctx, "remote write", to, snappy.Encode(nil, r.writeRequest(at)), http.Header{
		"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"}, "Authorization": {"Bearer " + p.Token},
	})
}

// Influx sends a report to InfluxDB's write endpoint: http://host:8086/write?db=NAME of version 1, or /api/v2/write?org=…&bucket=… of
// version 2. Times are in nanoseconds, which is what both take where nothing else is said.
func (p Pusher) Influx(ctx context.Context, to string, r *Report, at time.Time) error {
	var lines bytes.Buffer
	if err := r.Influx(&lines, at); err != nil {
		return err
	}
	return p.post(ctx, "write to InfluxDB", to, lines.Bytes(), http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "Authorization": {"Token " + p.Token}})
}

// IsURL reports whether a destination is an address and no file.
func IsURL(to string) bool {
	return strings.HasPrefix(to, "http://") || strings.HasPrefix(to, "https://")
}

func (p Pusher) post(ctx context.Context, what, to string, body []byte, h http.Header) error {
	u, err := url.Parse(to)
	if err != nil || !IsURL(to) || u.Host == "" {
		return fmt.Errorf("%s: the address is no http or https URL", what)
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: the address is no http or https URL", what)
	}
	req.Header = h
	if p.Token == "" {
		req.Header.Del("Authorization")
	}
	req.Header.Set("User-Agent", cmp.Or(p.Agent, "shadowtape"))
	client := cmp.Or(p.Client, &http.Client{})
	resp, err := client.Do(req)
	if err != nil {
		var e *url.Error
		if errors.As(err, &e) {
			err = e.Err // without the address
		}
		return fmt.Errorf("%s to %s: %w", what, u.Host, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return fmt.Errorf("%s to %s: HTTP %d: %s", what, u.Host, resp.StatusCode, strings.Join(strings.Fields(string(said)), " "))
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // so that the connection can be used again
	return nil
}

// The fields of prometheus.WriteRequest and what it holds (prometheus/prompb, remote.proto and types.proto).
const (
	requestSeries   protowire.Number = 1
	seriesLabels    protowire.Number = 1
	seriesSamples   protowire.Number = 2
	labelName       protowire.Number = 1
	labelValue      protowire.Number = 2
	sampleValue     protowire.Number = 1
	sampleTimestamp protowire.Number = 2
)

// writeRequest is the report as a WriteRequest: one series a figure, labels in the order of their names, as receivers want them.
func (r *Report) writeRequest(at time.Time) (b []byte) {
	message := func(b []byte, n protowire.Number, m []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), m)
	}
	for _, s := range r.samples() {
		labels := append([][2]string{{"__name__", s.name}}, s.labels...)
		slices.SortFunc(labels, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
		var series []byte
		for _, l := range labels {
			if l[1] == "" { // to a receiver an empty label is none
				continue
			}
			series = message(series, seriesLabels, message(message(nil, labelName, []byte(l[0])), labelValue, []byte(strings.ToValidUTF8(l[1], "\uFFFD"))))
		}
		value := protowire.AppendFixed64(protowire.AppendTag(nil, sampleValue, protowire.Fixed64Type), math.Float64bits(s.value))
		value = protowire.AppendVarint(protowire.AppendTag(value, sampleTimestamp, protowire.VarintType), uint64(at.UnixMilli()))
		b = message(b, requestSeries, message(series, seriesSamples, value))
	}
	return b
}
