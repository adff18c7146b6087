package replayer

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// answer is a whole chat answer over net/http.
func answer(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	io.WriteString(w, role+token+stop+usageEvent(7, 1)+done)
}

// sendTen replays ten requests over real sockets and returns the rows.
func sendTen(t *testing.T, o client.Options, ro Options) []*formats.Exchange {
	t.Helper()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := prompts(t)
	var dst sink
	st, err := Replay(t.Context(), every(2*time.Millisecond, 10), p, c, &dst, ro)
	if err != nil || st.Requests.Completed != 10 {
		t.Fatalf("%+v %v %v", st.Requests, st.Errors, err)
	}
	return dst.byIndex()
}

func TestTLSAndProxies(t *testing.T) {
	var seen atomic.Int64
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { seen.Add(1); answer(w, r) })
	secure := httptest.NewUnstartedServer(h)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	plain := httptest.NewServer(h)
	defer plain.Close()
	var viaProxy atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		viaProxy.Add(1)
		if r.Method == http.MethodConnect {
			up, err := net.Dial("tcp", r.Host)
			if err != nil {
				t.Error(err)
				return
			}
			down, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n")
			var wg sync.WaitGroup
			wg.Go(func() { io.Copy(up, down); up.Close() })
			wg.Go(func() { io.Copy(down, up); down.Close() })
			wg.Wait()
			return
		}
		if !strings.HasPrefix(r.RequestURI, plain.URL+"/v1/") {
			t.Errorf("the proxy is asked for %s", r.RequestURI)
		}
		answer(w, r)
	}))
	defer proxy.Close()
	pu, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	trust := &tls.Config{RootCAs: secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}

	rows := sendTen(t, client.Options{Targets: []string{secure.URL}, TLS: trust}, Options{Cold: true})
	if x := rows[0]; !x.TLSNS.Valid || !x.ConnectNS.Valid || x.TLSNS.V <= 0 {
		t.Errorf("set-up of the first: tls %v, connect %v", x.TLSNS, x.ConnectNS)
	}
	sendTen(t, client.Options{Targets: []string{secure.URL}, TLS: trust, Proxy: pu}, Options{})
	if viaProxy.Load() == 0 || seen.Load() != 20 {
		t.Errorf("%d tunnels, %d requests", viaProxy.Load(), seen.Load())
	}
	before := viaProxy.Load()
	sendTen(t, client.Options{Targets: []string{plain.URL}, Proxy: pu}, Options{})
	if viaProxy.Load()-before != 10 || seen.Load() != 20 {
		t.Errorf("%d requests through the proxy", viaProxy.Load()-before)
	}
	// A certificate that nobody vouches for is a failure to connect.
	c, err := client.New(client.Options{Targets: []string{secure.URL}})
	if err != nil {
		t.Fatal(err)
	}
	var dst sink
	st, err := Replay(context.Background(), at(0), prompts(t), c, &dst, Options{})
	if err != nil || st.Errors[formats.ErrorConnect] != 1 {
		t.Errorf("%v %v", st.Errors, err)
	}
}

func TestSeveralTargets(t *testing.T) {
	var n [2]atomic.Int64
	var targets []string
	for i := range n {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n[i].Add(1); answer(w, r) }))
		defer s.Close()
		targets = append(targets, s.URL)
	}
	rows := sendTen(t, client.Options{Targets: targets}, Options{})
	if n[0].Load() != 5 || rows[1].ServerID != targets[1] || rows[2].ServerID != targets[0] {
		t.Errorf("in turn: %d of 10 to the first, %s, %s", n[0].Load(), rows[1].ServerID, rows[2].ServerID)
	}
	c, err := client.New(client.Options{Targets: []string{"http://a", "http://b", "http://c"}})
	if err != nil {
		t.Fatal(err)
	}
	r := replay{o: Options{BySession: true}, c: c}
	used := map[*client.Target]bool{}
	for i := range 60 {
		a := Arrival{Exchange: &formats.Exchange{SessionID: formats.Of(formats.Hash{byte(i % 20)})}}
		p := r.route(a, int64(i))
		used[p] = true
		if p != r.route(a, int64(i+1)) {
			t.Fatal("a session moves")
		}
	}
	if len(used) != 3 {
		t.Errorf("%d of 3 targets are used", len(used))
	}
}
