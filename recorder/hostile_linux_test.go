package recorder

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/recorder/proxy"
)

// honest is a server as others write them: it reads what it is asked and answers.
func honest(t *testing.T) string {
	t.Helper()
	l := listenLocal(t)
	s := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, fmt.Sprintf("after %d bytes: %v", n, err), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, plain)
	})}
	go s.Serve(patient{l})
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// patient accepts connections whose Close reads what is left first: a close with something unread is a reset, for which the system may take
// back what was said before it.
type patient struct{ net.Listener }

func (p patient) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &patientConn{TCPConn: c.(*net.TCPConn)}, nil
}

type patientConn struct {
	*net.TCPConn
	once sync.Once
}

func (c *patientConn) Close() (err error) {
	c.once.Do(func() {
		c.CloseWrite()
		c.SetReadDeadline(time.Now().Add(5 * time.Second)) // nobody is waited for without end
		io.Copy(io.Discard, c.TCPConn)
		err = c.TCPConn.Close()
	})
	return err
}

// saying is a server that answers a connection by hand.
func saying(t *testing.T, f func(c *net.TCPConn, r *bufio.Reader)) string {
	t.Helper()
	l := listenLocal(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c.(*net.TCPConn), bufio.NewReader(c))
			}()
		}
	}()
	return l.Addr().String()
}

// asked reads a request's head and the length that it states.
func asked(r *bufio.Reader) bool {
	q, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, q.Body)
	return err == nil
}

// converseWith says pieces to an address, then ends as told, and returns what came back.
func converseWith(t *testing.T, address string, say []string, end string, hear int) string {
	t.Helper()
	nc, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c := nc.(*net.TCPConn)
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	heard := make(chan struct{})
	var got bytes.Buffer
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 64<<10)
		for told := false; ; {
			if !told && got.Len() >= hear {
				told = true
				close(heard)
			}
			n, err := c.Read(b)
			got.Write(b[:n])
			if err != nil {
				if !told {
					close(heard)
				}
				return
			}
		}
	}()
	for _, p := range say {
		if _, err := io.WriteString(c, p); err != nil {
			break // it has had enough
		}
	}
	<-heard
	switch end {
	case "half":
		c.CloseWrite()
	case "close":
		c.Close()
	case "reset":
		c.SetLinger(0)
		c.Close()
	}
	<-ended
	return regexp.MustCompile(`Date: [^\r]*\r\n`).ReplaceAllString(got.String(), "")
}

const headOf = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"

// TestHostilePeers lets clients and servers say what none should through the proxy. Each side gets what it would get without it, to the
// byte; the rows say what passed; nothing is held when it is over.
func TestHostilePeers(t *testing.T) {
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n", n) }
	good := headOf + length(len(ask)) + "\r\n" + ask
	last := strings.Replace(good, "\r\n", "\r\nConnection: close\r\n", 1)
	chunked := headOf + "Transfer-Encoding: chunked\r\n"
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n", len(ask), ask)
	ok := answerOf(plain, "Content-Type: application/json")
	reply := func(parts ...string) func(c *net.TCPConn, r *bufio.Reader) {
		return func(c *net.TCPConn, r *bufio.Reader) {
			if asked(r) {
				for _, p := range parts {
					io.WriteString(c, p)
				}
			}
		}
	}
	var noise strings.Builder
	for i := range 1 << 16 {
		noise.WriteByte(byte(i*i>>3 ^ i*131))
	}
	const abort, broken = "200 client_abort", "0 server_abort protocol"
	for _, c := range []struct {
		name   string
		say    []string
		end    string                                // half, close, reset; "": the server ends it
		hear   int                                   // bytes before that
		server func(c *net.TCPConn, r *bufio.Reader) // nil: an honest one
		rows   string                                // status, end reason, error kind, bytes of the request
		notes  string                                // one that must be counted
		check  func(t *testing.T, st Stats, heard string)
	}{
		{name: "nothing wrong", say: []string{good, last}, rows: "200 complete  56; 200 complete  56"},
		{name: "a length and chunks", say: []string{chunked + length(5) + "\r\n" + chunks + "\r\n" + last}, rows: "200 complete  56; 200 complete  56"},
		{name: "two lengths", say: []string{headOf + length(56) + length(5) + "\r\n" + ask}, notes: "protocol_errors"},
		{name: "two lengths in one field", say: []string{headOf + "Content-Length: 56, 5\r\n\r\n" + ask}, notes: "protocol_errors"},
		{name: "one length twice", say: []string{headOf + length(56) + length(56) + "Connection: close\r\n\r\n" + ask}, rows: "200 complete  56"},
		{name: "a length with a sign", say: []string{headOf + "Content-Length: +56\r\n\r\n" + ask}, notes: "protocol_errors"},
		{name: "a length below nothing", say: []string{headOf + "Content-Length: -1\r\n\r\n" + ask}, notes: "protocol_errors"},
		{name: "a length of 2^64", say: []string{headOf + "Content-Length: 18446744073709551672\r\n\r\n" + ask}, notes: "protocol_errors"},
		{name: "bare line feeds", say: []string{strings.ReplaceAll(last, "\r\n", "\n")}, rows: "200 complete  56"},
		{name: "a chunk size with a sign", say: []string{chunked + "\r\n+" + chunks + "\r\n"}, rows: "400 complete http_400 -", notes: "protocol_errors"},
		{name: "a chunk size of 2^64", say: []string{chunked + "\r\n10000000000000000\r\n" + ask}, rows: "400 complete http_400 -", notes: "protocol_errors"},
		{name: "a chunk size of nothing", say: []string{chunked + "\r\n\r\n" + ask}, rows: "400 complete http_400 -", notes: "protocol_errors"},
		{name: "a coding that is none", say: []string{headOf + "Transfer-Encoding: xchunked\r\n\r\n" + chunks + "\r\n"}, rows: "501 complete http_501 -"},
		{name: "chunked twice", say: []string{chunked + "Transfer-Encoding: chunked\r\n\r\n" + chunks + "\r\n"}, check: func(t *testing.T, st Stats, heard string) {}},
		{name: "a name with a space", say: []string{headOf + "Content-Length : 56\r\n\r\n" + ask}, check: func(t *testing.T, st Stats, heard string) {}},
		{name: "a head of 1 MiB", say: []string{headOf, "X: " + strings.Repeat("x", 1<<20), "\r\n\r\n"}, end: "half", notes: "heads_too_large"},
		{name: "fields without end", say: []string{headOf, strings.Repeat("X: y\r\n", 1<<18), "\r\n"}, notes: "heads_too_large"},
		{name: "trailers without end", say: []string{chunked + "Connection: close\r\n\r\n" + chunks, strings.Repeat("X: y\r\n", 1000), "\r\n"}, check: func(t *testing.T, st Stats, heard string) {}},
		{name: "half a head, half closed", say: []string{headOf}, end: "half"},
		{name: "half a head, closed", say: []string{headOf}, end: "close"},
		{name: "half a head, reset", say: []string{headOf}, end: "reset"},
		{name: "nothing, half closed", end: "half"},
		{name: "nothing, reset", end: "reset"},
		{name: "half a body, half closed", say: []string{headOf + length(1000) + "\r\n" + ask}, end: "half", rows: "400 complete http_400 -"},
		{name: "half a body, reset", say: []string{headOf + length(1000) + "\r\n" + ask}, end: "reset", rows: "0 client_abort  -"},
		{name: "no body after 100-continue, half closed", say: []string{headOf + length(1000) + "Expect: 100-continue\r\n\r\n"}, hear: 20, end: "half", rows: "400 complete http_400 -"},
		{name: "no body after 100-continue, reset", say: []string{headOf + length(1000) + "Expect: 100-continue\r\n\r\n"}, hear: 20, end: "reset", rows: "0 client_abort  -"},
		{name: "half closed when it has asked", say: []string{good}, end: "half", rows: "200 complete  56"},
		{name: "reset after the answer", say: []string{good}, hear: 200, end: "reset", rows: "200 complete  56"},
		{name: "an upgrade, then noise", say: []string{strings.Replace(good, "\r\n", "\r\nConnection: Upgrade\r\nUpgrade: x\r\n", 1), noise.String()}, end: "half", check: func(t *testing.T, st Stats, heard string) {}},
		{name: "the preface of HTTP/2", say: []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", noise.String()}, end: "half", notes: "http2_connections"},
		{name: "a TLS hello", say: []string{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", noise.String()}, end: "half", notes: "tls_connections"},
		{name: "noise", say: []string{noise.String()}, end: "half", notes: "not_http_connections"},

		{name: "interim heads", say: []string{good}, server: reply(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 20_000), ok), rows: "200 complete  56"},
		{name: "interim heads, then the end", say: []string{good}, server: reply(strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20_000)), rows: "0 server_abort reset 56"},
		{name: "fields without end of an answer", say: []string{good}, server: reply("HTTP/1.1 200 OK\r\n", strings.Repeat("X: y\r\n", 1<<18)), rows: broken + " 56", notes: "protocol_errors"},
		{name: "a length too long", say: []string{good}, server: reply(strings.Replace(ok, "Content-Length: ", "Content-Length: 1", 1)), rows: "200 server_abort reset 56"},
		{name: "a length too short", say: []string{good}, server: reply(strings.Replace(ok, "Content-Length: "+fmt.Sprint(len(plain)), "Content-Length: 10", 1)), rows: "200 complete protocol 56", notes: "protocol_errors"},
		{name: "two lengths of an answer", say: []string{good}, server: reply("HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello!"), rows: broken + " 56", notes: "protocol_errors"},
		{name: "a length and chunks of an answer", say: []string{good}, server: reply(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(plain), plain)), rows: "200 complete  56"},
		{name: "an answer before the question is whole", say: []string{headOf + length(1000) + "\r\n" + ask}, hear: 20, end: "half", server: func(c *net.TCPConn, r *bufio.Reader) {
			r.ReadString('{')
			io.WriteString(c, strings.Replace(ok, "200 OK", "413 Content Too Large", 1))
			io.Copy(io.Discard, r)
		}, rows: "413 complete http_413 -"},
		{name: "an answer without a question", say: []string{good}, hear: len(ok), server: func(c *net.TCPConn, r *bufio.Reader) {
			if asked(r) {
				io.WriteString(c, ok+strings.Replace(ok, "200 OK", "500 Oops", 1))
			}
		}, rows: "200 complete  56", check: func(t *testing.T, st Stats, heard string) {
			if st.Reasons["dropped_no_request"] != 1 {
				t.Errorf("%v", st.Reasons)
			}
		}},
		{name: "another protocol that nobody asked for", say: []string{good}, server: reply("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", noise.String()), rows: broken + " 56", notes: "protocol_errors"},
		{name: "another protocol that was asked for", say: []string{strings.Replace(good, "\r\n", "\r\nConnection: Upgrade\r\nUpgrade: x\r\n", 1)}, server: reply("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", noise.String()),
			check: func(t *testing.T, st Stats, heard string) {
				if st.Reasons["dropped_upgraded"] != 1 {
					t.Errorf("%v", st.Reasons)
				}
			}},
		{name: "an answer that is none", say: []string{good}, server: reply(noise.String()), rows: broken + " 56", notes: "protocol_errors"},
		{name: "a chunk of an answer with a sign", say: []string{good}, server: reply("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", string(httpChunk(token)), "-1\r\n"+token+"\r\n"), rows: "200 server_abort protocol 56", notes: "protocol_errors"},
		{name: "reset in mid-answer", say: []string{good}, hear: 60, end: "reset", server: func(c *net.TCPConn, r *bufio.Reader) {
			if asked(r) {
				io.WriteString(c, streamHead+string(httpChunk(token)))
				io.Copy(io.Discard, r)
			}
		}, rows: abort + "  56"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := ""
			if c.server == nil {
				up = honest(t)
			} else {
				up = saying(t, c.server)
			}
			direct := converseWith(t, up, c.say, c.end, c.hear)
			before := runtime.NumGoroutine()
			w := &faultySegments{}
			p := &Proxy{Options: proxy.Options{Upstream: up}}
			var spool *Spool
			heard := ""
			st, err := runProxy(t, p, func() *Spool { spool = NewSpool(w, p.Stats, SpoolOptions{}); return spool }, func(base string) {
				heard = converseWith(t, strings.TrimPrefix(base, "http://"), c.say, c.end, c.hear)
			})
			if err != nil {
				t.Fatal(err)
			}
			addsUp(t, st.Counters)
			if heard != direct && c.end != "reset" && c.end != "close" {
				t.Errorf("by way of the proxy\n%.600q\nwithout it\n%.600q", heard, direct)
			}
			var rows []string
			for _, x := range w.rows {
				size := "-"
				if x.RequestBytes.Valid {
					size = fmt.Sprint(x.RequestBytes.V)
				}
				rows = append(rows, fmt.Sprintf("%d %s %s %s", x.Status.V, x.EndReason, x.ErrorKind, size))
			}
			if got := strings.Join(rows, "; "); got != c.rows && (c.check == nil || c.rows != "") {
				t.Errorf("rows %q, want %q; notes %v, %v; heard %.200q", got, c.rows, st.Notes, st.Reasons, heard)
			}
			if c.notes != "" && st.Notes[c.notes] == 0 {
				t.Errorf("notes %v", st.Notes)
			}
			if c.check != nil {
				c.check(t, st, heard)
				t.Logf("rows %q, notes %v, %v, heard %.120q", rows, st.Notes, st.Reasons, heard)
			}
			if s := p.Traffic(); s.Open != 0 || s.Backlog != 0 || s.LostBytes != 0 || s.Panics != 0 {
				t.Errorf("%+v", s)
			}
			checkEmpty(p.engine)
			for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
				}
			}
		})
	}
}

// TestHostileCrowd: connections that say nothing, and such as never end their head, take the place of none that has something to say.
func TestHostileCrowd(t *testing.T) {
	w := &faultySegments{}
	const most, crowd = 50, 300
	p := &Proxy{Options: proxy.Options{Upstream: honest(t), MaxConnections: most}}
	st, err := runProxy(t, p, func() *Spool { return NewSpool(w, p.Stats, SpoolOptions{}) }, func(base string) {
		var idle []net.Conn
		for range crowd {
			c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			idle = append(idle, c)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
		for range 20 {
			resp, err := client.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(ask))
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		for _, c := range idle {
			c.Close()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	addsUp(t, st.Counters)
	if s := p.Traffic(); len(w.rows) != 20 || s.Evicted < crowd-most || s.Accepted != crowd+20 {
		t.Errorf("%d rows; %+v", len(w.rows), s)
	}
}

// TestPipelined: requests upon requests without an answer take no more than so much memory, and no answer is taken for another's.
func TestPipelined(t *testing.T) {
	var steps []step
	const n = 5000
	for i := range n {
		steps = append(steps, sends(int64(1+i), question()))
	}
	steps = append(steps, replies(n+1, strings.Repeat(answerOf(plain), n)), sends(n+2, question()), replies(n+3, answerOf(plain)))
	xs, st := converse(t, steps...)
	if len(xs) != n+1 || st.Notes["pipelined_over_cap"] != 1 {
		t.Fatalf("%d rows, %v", len(xs), st.Notes)
	}
	for i, x := range xs {
		if x.EndReason != formats.EndCaptureCut || x.Status.Valid || x.RequestBytes.V != int64(len(ask)) {
			t.Fatalf("row %d: %+v", i, x)
		}
	}
	// As many as are allowed are answered each by its own.
	steps = steps[:0]
	for range maxPipelined {
		steps = append(steps, sends(1, question()))
	}
	xs, st = converse(t, append(steps, replies(2, strings.Repeat(answerOf(plain), maxPipelined)))...)
	for i, x := range xs {
		if x.EndReason != formats.EndComplete || len(xs) != maxPipelined {
			t.Fatalf("row %d of %d: %+v", i, len(xs), x)
		}
	}
	// Where all together take much, a few of each connection are left.
	var rows []*formats.Exchange
	e := testEngine(&rows)
	e.o.MaxBodies = 1 << 20
	var all []*dialogue
	for range 100 {
		d := newDialogue(e, "server", true, formats.ClockUser)
		all = append(all, d)
		d.data(fromClient, []byte(strings.Repeat(question(), 100)), 1, 0)
		for _, x := range d.over {
			e.emitExchange(x)
		}
		d.over = nil
		if e.open > (1<<20)/exchangeBytes+100*fewPipelined {
			t.Fatalf("%d exchanges are open", e.open)
		}
	}
	for _, d := range all {
		d.close(fromServer, closedCut, 2)
		for _, x := range d.over {
			e.emitExchange(x)
		}
	}
	if checkEmpty(e); len(rows) != 100*100 {
		t.Errorf("%d rows", len(rows))
	}
}

// TestHeadsAreBounded: heads that never end hold so much together; who holds most is read no further, the others are.
func TestHeadsAreBounded(t *testing.T) {
	var rows []*formats.Exchange
	e := testEngine(&rows)
	e.o.MaxBodies = 8 << 20
	var all []*dialogue
	for i := range 300 {
		d := newDialogue(e, "server", true, formats.ClockUser)
		all = append(all, d)
		dir, text := fromClient, headOf+"X: "
		if i%2 == 1 {
			d.data(fromClient, []byte(question()), 1, 0)
			dir, text = fromServer, "HTTP/1.1 200 OK\r\nX: "
		}
		d.data(dir, []byte(text), 1, 0)
	}
	small := newDialogue(e, "server", true, formats.ClockUser)
	q := question()
	small.data(fromClient, []byte(q[:50]), 1, 0)
	for range 200 {
		for i, d := range all {
			d.data(i%2, []byte(strings.Repeat("x", 1000)), 2, 0)
		}
		if e.heads > e.mostHeads() {
			t.Fatalf("%d bytes are held", e.heads)
		}
	}
	small.data(fromClient, []byte(q[50:]), 3, 0)
	small.data(fromServer, []byte(answerOf(plain)), 4, 0)
	for _, d := range append(all, small) {
		d.close(fromServer, closedCut, 5)
		for _, x := range d.over {
			e.emitExchange(x)
		}
	}
	checkEmpty(e)
	complete := 0
	for _, x := range rows {
		if x.EndReason == formats.EndComplete {
			complete++
		} else if x.EndReason != formats.EndCaptureCut {
			t.Errorf("%+v", x)
		}
	}
	if complete != 1 || len(rows) != 151 || e.stats.Notes["heads_over_memory"] < 200 {
		t.Errorf("%d rows, %d complete, %v", len(rows), complete, e.stats.Notes)
	}
}
