package formats

import (
	"encoding/json"
	"errors"
)

// Null is a value that may be unknown. The zero value is unknown; unknown is never 0.
type Null[T any] struct {
	V     T
	Valid bool
}

// Of returns a known value.
func Of[T any](v T) Null[T] { return Null[T]{V: v, Valid: true} }

// Or returns the value, or d where it is unknown.
func (n Null[T]) Or(d T) T {
	if n.Valid {
		return n.V
	}
	return d
}

// MarshalJSON writes the value, or null where it is unknown.
func (n Null[T]) MarshalJSON() ([]byte, error) {
	if !n.Valid {
		return []byte("null"), nil
	}
	b, err := json.Marshal(n.V)
	var no *json.UnsupportedValueError
	if errors.As(err, &no) { // not a number, or infinite: a server's page may say so
		return []byte("null"), nil
	}
	return b, err
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (n *Null[T]) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = Null[T]{}
		return nil
	}
	n.Valid = true
	return json.Unmarshal(b, &n.V)
}

// Phase says what a row belongs to.
type Phase string

// The phases. A recording has PhaseRecord only; a replay marks its warm-up.
const (
	PhaseRecord  Phase = "record"
	PhaseWarmup  Phase = "warmup"
	PhaseMeasure Phase = "measure"
)

// Endpoint names the API that a request used.
type Endpoint string

// The endpoints.
const (
	EndpointChat        Endpoint = "chat_completions"
	EndpointCompletions Endpoint = "completions"
	EndpointResponses   Endpoint = "responses"
	EndpointEmbeddings  Endpoint = "embeddings"
	EndpointMessages    Endpoint = "messages"
	EndpointRerank      Endpoint = "rerank"
	EndpointOther       Endpoint = "other"
)

// TokenSource says where a token count came from.
type TokenSource string

// The sources, most trusted first. TokensTrace is a count that an imported file stated; TokensDrawn came from a workload model.
const (
	TokensUsage     TokenSource = "usage"
	TokensTokenizer TokenSource = "tokenizer"
	TokensEstimated TokenSource = "estimated"
	TokensTrace     TokenSource = "trace"
	TokensDrawn     TokenSource = "drawn"
)

// EndReason says how an exchange ended.
type EndReason string

// The end reasons.
const (
	EndComplete      EndReason = "complete"
	EndClientAbort   EndReason = "client_abort"
	EndServerAbort   EndReason = "server_abort"
	EndTimeout       EndReason = "timeout"
	EndErrorInStream EndReason = "error_in_stream"
	EndCaptureCut    EndReason = "capture_cut" // the capture ended before the exchange did
	EndRunEnd        EndReason = "run_end"     // the replay ended before the exchange did
	EndNotSent       EndReason = "not_sent"    // a scheduled arrival that was dropped
)

// Clock says which clock stamped the response's bytes.
type Clock string

// The clocks.
const (
	ClockKernel Clock = "kernel"
	ClockUser   Clock = "user"
	ClockPacket Clock = "packet"
)

// The bits of Exchange.EventFlags.
const (
	FlagCoalesced  int32 = 1 << iota // shared a read or packet with the event before it
	FlagRetransmit                   // some of its bytes were retransmitted
	FlagGap                          // touched by lost bytes
	FlagReasoning                    // carried reasoning
	FlagTool                         // carried a tool call
	FlagEcho                         // may hold the prompt, which the request asked to be repeated: it may carry no generated token
)

// The bits of Exchange.Drawn: which fields the workload model supplied.
const (
	DrawnArrival int64 = 1 << iota
	DrawnInput
	DrawnOutput
	DrawnSampling
	DrawnSession
)

// The kinds of Exchange.ErrorKind. HTTP failures are "http_<status>".
const (
	ErrorConnect     = "connect"           // no connection to the target: refused, unreachable, a bad name or certificate
	ErrorConnectTime = "connect_timeout"   // no connection to the target in time
	ErrorReset       = "reset"             // the connection broke before the answer was whole
	ErrorTimeout     = "timeout"           // no answer had begun by the deadline; of imported files: no whole answer
	ErrorStall       = "stall"             // the answer had begun, and nothing more of it came for a while before the deadline
	ErrorEndless     = "endless"           // the answer was still coming at the deadline, or was longer than anybody reads
	ErrorInStream    = "error_in_stream"   // HTTP 200, then an error in the stream
	ErrorIncomplete  = "incomplete_stream" // the stream ended without a finish reason
	ErrorHTML        = "html"              // the answer is a web page: of a gateway, a login, another service
	ErrorContentType = "content_type"      // the answer is neither JSON, nor an event stream, nor a web page
	ErrorProtocol    = "protocol"          // the answer is no HTTP, or its JSON cannot be read
	ErrorNoTokens    = "no_tokens"         // a complete answer that held no token
	ErrorMaxInFlight = "max_in_flight"     // not sent: as many requests as allowed were in flight
	ErrorPrompt      = "prompt"            // not sent: no body could be made for it
	ErrorUnsaid      = "error"             // an imported file says that it failed, and not how
	ErrorLateStart   = "late_start"        // not sent: the replayer began after its time
	ErrorStateful    = "stateful"          // not sent: it continues what only the recorded server holds (previous_response_id, conversation)
)

// Hash is the first 64 bits of a keyed hash (HMAC-SHA-256); 16 hex digits in text.
type Hash [8]byte

// Exchange is one request and what happened to it: one row of a trace. Names, types and meanings are docs/FORMAT.md's; the column
// table in columns.go is the one list of them. Every field but ExchangeID, Phase and ArrivalUnixNS may be unknown: an invalid
// Null, an empty string, a nil slice. Times that end in NS are offsets from ArrivalUnixNS in nanoseconds unless said otherwise.
type Exchange struct {
	// Identity.
	ExchangeID    int64       // 1, 2, 3 … in a trace
	SourceID      Null[int64] // the recorded exchange that a replay re-issues
	ArrivalIndex  Null[int64] // position in the replay's schedule, from 0; two runs of one schedule pair on it
	Loop          Null[int32] // which pass over the trace, from 0
	SessionID     Null[Hash]
	Turn          Null[int32] // from 1
	ParentID      Null[int64] // exchange id of the caller of a sub-agent
	TenantID      Null[Hash]
	CorrelationID Null[Hash] // of x-request-id
	ServerID      string     // recording: the answering address; replay: the target
	Node          string     // the machine that recorded or replayed
	Phase         Phase

	// Time.
	ArrivalUnixNS    int64       // recording: first request byte; replay: the scheduled time. Nanoseconds since 1970 (or since the trace's start where the header's time base is relative)
	SentNS           Null[int64] // first request byte written
	RequestEndNS     Null[int64] // last request byte
	ResponseHeaderNS Null[int64] // first byte of the response
	FirstEventNS     Null[int64] // first stream event of any kind
	FirstTokenNS     Null[int64] // first event that carries a generated token: content, reasoning, refusal or a tool call. Role-only, empty and usage events do not count
	FirstContentNS   Null[int64] // first event with answer content (not reasoning)
	LastTokenNS      Null[int64] // last event that carries a generated token
	EndNS            Null[int64] // last response byte, or when the exchange was given up
	DNSNS            Null[int64] // duration
	ConnectNS        Null[int64] // duration
	TLSNS            Null[int64] // duration
	ConnReused       Null[bool]
	ClientDelayUS    Null[int64] // microseconds from the kernel's receive stamp to the user-space read of the first token

	// Request.
	Endpoint          Endpoint
	RequestModel      string
	Stream            Null[bool]
	RequestBytes      Null[int64] // of the body
	PromptCount       Null[int32] // prompts in one request (batched completions, embeddings)
	InputTokens       Null[int64] // of all prompts together
	InputTokensSource TokenSource
	MessageCount      Null[int32]
	ToolCount         Null[int32]
	ToolBytes         Null[int64] // of the tool schemas
	ImageCount        Null[int32]
	ImagePixels       Null[int64]
	AudioCount        Null[int32]
	PrefixBlocks      []int64     // chained keyed hashes of the prompt's full blocks, first to last; nil is unknown, empty is none
	PrefixTailTokens  Null[int64] // in units of the header's prefix block, after the last full block. An imported block list that counts its partial tail as a block keeps it, and this is that block's fill

	// Sampling.
	Temperature       Null[float64]
	TopP              Null[float64]
	TopK              Null[int64]
	MinP              Null[float64]
	PresencePenalty   Null[float64]
	FrequencyPenalty  Null[float64]
	RepetitionPenalty Null[float64]
	Seed              Null[int64]
	N                 Null[int32]
	BestOf            Null[int32]
	Logprobs          Null[int32] // alternatives asked for; 0 is the chosen token's only
	MaxTokens         Null[int64]
	MinTokens         Null[int64]
	StopCount         Null[int32]
	IgnoreEOS         Null[bool]
	ResponseFormat    string // text, json_object, json_schema, structural_tag, regex, grammar, choice
	ReasoningEffort   string // none, minimal, low, medium, high, other
	ServiceTier       string
	Priority          Null[int32]
	CacheSalted       Null[bool]
	TemplateFlags     []string // "name=value" of boolean and numeric chat_template_kwargs, sorted
	ExtraParams       []string // names of other parameters, sorted: known ones as they are, unknown ones as 16 hex digits of their keyed hash

	// Outcome.
	Status             Null[int32] // HTTP status
	ErrorKind          string
	FinishReason       string // of the first choice that has one
	EndReason          EndReason
	PlannedAbort       Null[bool]  // the replay itself aborted, as recorded
	Attempt            Null[int32] // from 1; more: connection-reuse races retried
	ResponseBytes      Null[int64] // of the body as it came over the wire
	OutputTokens       Null[int64] // of all choices together, reasoning included
	OutputTokensSource TokenSource
	ReasoningTokens    Null[int64]
	CachedTokens       Null[int64] // input tokens that the server took from its prefix cache
	ResponseModel      string
	ChoiceOutputTokens []int64 // by choice index; only where n > 1

	// Stream: one entry per event that carries tokens, in arrival order, all of one length.
	EventGapUS  []int32 // microseconds since the event before it; the first is 0 and stands at FirstTokenNS. Longer gaps than an int32 holds are cut to its largest value
	EventTokens []int32 // tokens the event carried; nil where unknown
	EventChoice []int32 // choice index; nil unless n > 1
	EventFlags  []int32 // Flag bits; nil where all are 0

	// Quality.
	GapBytes    Null[int64] // bytes the capture lost
	Retransmits Null[int32] // retransmitted segments
	Midstream   Null[bool]  // the capture joined the connection after its start
	Truncated   Null[bool]  // packets were cut by the snap length
	Clock       Clock
	Drawn       Null[int64] // Drawn bits
}

// Failed reports whether the exchange was sent and ended in an error: anything that is not complete, a client's own abort, or cut by
// the end of a capture or run.
func (x *Exchange) Failed() bool {
	return x.ErrorKind != "" && x.EndReason != EndNotSent
}
