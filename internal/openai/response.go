package openai

import (
	"github.com/shadowtape/shadowtape/formats"
)

// Response follows one HTTP response and fills an Exchange from it: the one definition of first token, gaps, usage and end, used on
// the wire by the recorder and in the client by the replayer. Feed it the decoded body (no chunk framing, no compression) as it
// arrives. Not safe for concurrent use.
type Response struct{ x *formats.Exchange }

// NewResponse starts a response to the request that x describes (its Endpoint, Stream and N steer the parser). contentType is the
// header's value.
func NewResponse(x *formats.Exchange, status int, contentType string) *Response {
	return &Response{x: x}
}

// Write takes body bytes that all became available at one instant: at is in nanoseconds from x.ArrivalUnixNS, flags are formats.Flag
// bits of the packets or read they came in. It keeps no reference to p. Events that complete in one Write are coalesced.
func (r *Response) Write(p []byte, at int64, flags int32) {}

// Done reports whether the stream has said that it is over ([DONE], response.completed, message_stop).
func (r *Response) Done() bool { return false }

// End closes the response at the given time. complete says whether the HTTP body ended as its framing promised. It sets EndNS,
// EndReason, ErrorKind, token counts and the event lists.
func (r *Response) End(at int64, complete bool) {}

// ReadRequest fills the request and sampling columns of x from a request's path and body, without keeping any text. hash makes keyed
// hashes of identifiers and prompt blocks; nil leaves them unknown.
func ReadRequest(x *formats.Exchange, path string, body []byte, hash *Hasher) error { return nil }

// Hasher makes keyed hashes: HMAC-SHA-256 cut to 64 bits.
type Hasher struct{ key []byte }
