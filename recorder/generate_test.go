package recorder

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// frame is one packet of a made capture: Ethernet, IPv4, TCP.
type frame struct {
	at   int64
	data []byte
}

// talk makes the packets of one TCP connection. Every data packet is acknowledged, as a stream's are.
type talk struct {
	out     *[]frame
	ip      [2][4]byte
	port    [2]uint16
	seq     [2]uint32
	ipID    [2]uint16
	noAcks  bool
	gone    bool // reset
	maxSeg  int
	latency int64 // until the other side acknowledges
}

// newTalk is a connection of client n to port 8000.
func newTalk(out *[]frame, n int) *talk {
	return &talk{out: out, ip: [2][4]byte{{10, 1, byte(n >> 8), byte(n)}, {10, 2, 0, 1}}, port: [2]uint16{uint16(20000 + n%40000), 8000},
		seq: [2]uint32{uint32(n)*2654435761 + 7, uint32(n)*40503 + 99}, maxSeg: 1448, latency: 5000}
}

const (
	client = 0
	server = 1
)

func (k *talk) packet(at int64, from int, flags byte, payload []byte) {
	b := make([]byte, 14+20+20+len(payload))
	copy(b, []byte{2, 0, 0, 0, 0, byte(1 - from), 2, 0, 0, 0, 0, byte(from), 8, 0})
	ip := b[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(40+len(payload)))
	k.ipID[from]++
	binary.BigEndian.PutUint16(ip[4:], k.ipID[from])
	ip[6] = 0x40
	copy(ip[12:], k.ip[from][:])
	copy(ip[16:], k.ip[1-from][:])
	tcp := ip[20:]
	binary.BigEndian.PutUint16(tcp, k.port[from])
	binary.BigEndian.PutUint16(tcp[2:], k.port[1-from])
	binary.BigEndian.PutUint32(tcp[4:], k.seq[from])
	if flags&tcpACK != 0 {
		binary.BigEndian.PutUint32(tcp[8:], k.seq[1-from])
	}
	tcp[12], tcp[13] = 0x50, flags
	binary.BigEndian.PutUint16(tcp[14:], 0xffff)
	copy(tcp[20:], payload)
	*k.out = append(*k.out, frame{at, b})
	k.seq[from] += uint32(len(payload))
	if flags&(tcpSYN|tcpFIN) != 0 {
		k.seq[from]++
	}
}

func (k *talk) open(at int64) {
	k.packet(at, client, tcpSYN, nil)
	k.packet(at+k.latency, server, tcpSYN|tcpACK, nil)
	k.packet(at+2*k.latency, client, tcpACK, nil)
}

// send sends bytes in segments, each acknowledged.
func (k *talk) send(at int64, from int, p []byte) {
	for len(p) > 0 {
		n := min(len(p), k.maxSeg)
		k.packet(at, from, tcpACK|tcpPSH, p[:n])
		p = p[n:]
		if !k.noAcks {
			k.packet(at+k.latency, 1-from, tcpACK, nil)
		}
	}
}

func (k *talk) close(at int64) {
	k.packet(at, client, tcpFIN|tcpACK, nil)
	k.packet(at+k.latency, server, tcpFIN|tcpACK, nil)
	k.packet(at+2*k.latency, client, tcpACK, nil)
}

func (k *talk) reset(at int64, from int) {
	k.packet(at, from, tcpRST|tcpACK, nil)
	k.gone = true
}

func post(path, id, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nx-request-id: %s\r\nContent-Length: %d\r\n\r\n%s", path, id, len(body), body)
}

func httpChunk(s string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(s), s) }

const streamHead = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"

// traffic makes the capture of many clients' chat traffic: keep-alive connections with streamed and unstreamed answers, reasoning, tool
// calls, errors and aborts. The same seed gives the same packets.
func traffic(seed uint64, clients, perClient, tokens int) []frame {
	rng := rand.New(rand.NewPCG(seed, 1))
	var out []frame
	const start = int64(1_700_000_000_000_000_000)
	for n := range clients {
		k := newTalk(&out, n+1)
		k.seq[0] += uint32(seed) * 7919777
		k.seq[1] += uint32(seed) * 104729999
		at := start + rng.Int64N(2e9)
		k.open(at)
		at += 1e6
		abort := rng.IntN(4) == 0
		for i := range perClient {
			at = chat(k, rng, at, fmt.Sprintf("req-%d-%d", n, i), tokens, abort && i == perClient-1)
			at += 1e8 + rng.Int64N(1e9)
		}
		if !k.gone {
			k.close(at)
		}
	}
	slices.SortStableFunc(out, func(a, b frame) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	return out
}

// chat is one exchange on a connection; it returns the time after it.
func chat(k *talk, rng *rand.Rand, at int64, id string, tokens int, abort bool) int64 {
	kind := rng.IntN(10)
	stream := kind < 8
	n := 1 + rng.IntN(2*tokens)
	prompt := strings.Repeat(fmt.Sprintf("word%d ", rng.IntN(100)), 5+rng.IntN(400))
	body := fmt.Sprintf(`{"model":"m1","stream":%t,"stream_options":{"include_usage":true},"messages":[{"role":"system","content":"You are terse."},{"role":"user","content":"%s"}],"temperature":0.%d,"max_tokens":%d,"seed":%d}`,
		stream, prompt, rng.IntN(10), n, rng.IntN(1000))
	k.send(at, client, post("/v1/chat/completions", id, body))
	at += 2e7 + rng.Int64N(1e8)
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`, len(prompt)/6+12, n, len(prompt)/6+12+n, 16)
	if kind == 9 {
		e := `{"error":{"message":"queue full","type":"TooManyRequests","code":429}}`
		k.send(at, server, fmt.Appendf(nil, "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", len(e), e))
		return at
	}
	if !stream {
		at += int64(n) * 1e7
		answer := fmt.Sprintf(`{"id":"x","object":"chat.completion","model":"m1","choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],%s}`, strings.Repeat("tok ", n), usage)
		k.send(at, server, fmt.Appendf(nil, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", len(answer), answer))
		return at
	}
	k.send(at, server, []byte(streamHead))
	at += 1e6
	event := func(delta, finish string) []byte {
		return httpChunk(fmt.Sprintf(`data: {"id":"chatcmpl-%s","object":"chat.completion.chunk","created":1779162158,"model":"m1","choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s,"token_ids":null}]}`+"\n\n", id, delta, finish))
	}
	k.send(at, server, event(`{"role":"assistant","content":""}`, "null"))
	stop := n
	if abort {
		stop = n / 2
	}
	for i := range stop {
		finish := "null"
		if i == n-1 {
			finish = `"length"`
		}
		switch {
		case kind == 1 && i < n/2:
			k.send(at, server, event(`{"reasoning":"hm"}`, finish))
		case kind == 2:
			k.send(at, server, event(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}`, finish))
		default:
			k.send(at, server, event(fmt.Sprintf(`{"content":"t%d "}`, rng.IntN(1000)), finish))
		}
		at += 8e6 + rng.Int64N(4e6)
	}
	if abort {
		k.reset(at, client)
		return at
	}
	k.send(at, server, append(append(httpChunk(`data: {"id":"x","object":"chat.completion.chunk","model":"m1","choices":[],`+usage+"}\n\n"), httpChunk("data: [DONE]\n\n")...), "0\r\n\r\n"...))
	return at
}

// pcapBytes writes frames as a pcap file with nanosecond times.
func pcapBytes(link uint32, frames []frame) []byte {
	var b bytes.Buffer
	h := make([]byte, 24)
	binary.LittleEndian.PutUint32(h, 0xa1b23c4d)
	binary.LittleEndian.PutUint16(h[4:], 2)
	binary.LittleEndian.PutUint16(h[6:], 4)
	binary.LittleEndian.PutUint32(h[16:], 262144)
	binary.LittleEndian.PutUint32(h[20:], link)
	b.Write(h)
	for _, f := range frames {
		r := make([]byte, 16)
		binary.LittleEndian.PutUint32(r, uint32(f.at/1e9))
		binary.LittleEndian.PutUint32(r[4:], uint32(f.at%1e9))
		binary.LittleEndian.PutUint32(r[8:], uint32(len(f.data)))
		binary.LittleEndian.PutUint32(r[12:], uint32(len(f.data)))
		b.Write(r)
		b.Write(f.data)
	}
	return b.Bytes()
}

// recordFrames records a made capture.
func recordFrames(t testing.TB, frames []frame) (collect, Stats) {
	t.Helper()
	return recordBytes(t, pcapBytes(linkEthernet, frames))
}

func recordBytes(t testing.TB, b []byte) (collect, Stats) {
	t.Helper()
	return record(t, write(t, b))
}

// write puts bytes into a file.
func write(t testing.TB, b []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "made.pcap")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// readFrames reads a capture file's packets.
func readFrames(t testing.TB, name string) (frames []frame) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := newCaptureReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var p packet
	for r.next(&p) == nil {
		frames = append(frames, frame{p.at, bytes.Clone(p.data)})
	}
	return frames
}
