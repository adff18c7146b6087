package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer"
)

// fresh opens a connection for each request: one that is kept may be closed while a request is on its way, which the proxy answers with 502.
var fresh = &http.Transport{DisableKeepAlives: true}

// whole has a proxied request sent from memory: where the answer comes before net/http has seen the end of a body that is still being
// read, it closes the body, takes that for a failed write, and breaks off the answer.
func whole(r *httputil.ProxyRequest) {
	b, err := io.ReadAll(r.In.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
}

// smallKey is a certificate for localhost with a key that takes little to sign with: a hundred handshakes at once are no load.
func smallKey(t *testing.T) tls.Certificate {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}
}

// secured puts net/http's own server of HTTP/2 over TLS in front of a simulator, and returns its address and certificate file.
func secured(t *testing.T, target string, two bool) (where, cert string) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &httputil.ReverseProxy{FlushInterval: -1, Transport: fresh, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u); whole(r) }}
	s := httptest.NewUnstartedServer(p)
	s.EnableHTTP2, s.Config.ErrorLog = two, log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{smallKey(t)}}
	s.StartTLS()
	t.Cleanup(s.Close)
	cert = filepath.Join(t.TempDir(), "cert.pem")
	if err := os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return s.URL, cert
}

// protocolOf is what a run's manifest says that its target spoke.
func protocolOf(t *testing.T, m formats.Manifest) string {
	t.Helper()
	targets, ok := m.Environment["targets"].([]any)
	if !ok || len(targets) != 1 {
		t.Fatalf("environment %v", m.Environment)
	}
	p, _ := targets[0].(map[string]any)["protocol"].(string)
	return p
}

// Over HTTP/2 a run is what it is over HTTP/1.1: every answer is the one that the server's log says, and the manifest says what was
// spoken.
func TestReplayOverHTTP2(t *testing.T) {
	sim, logName := startSim(t, "--profile", "instant")
	target, cert := secured(t, sim, true)
	trace := smallTrace(t, 60, 2*time.Millisecond, func(i int, x *formats.Exchange) {
		if i%3 == 0 {
			x.Endpoint, x.Stream = formats.EndpointChat, formats.Of(i%2 == 0)
		}
		if i == 30 {
			x.InputTokens = formats.Of(int64(30_000)) // several windows long
		}
	})
	for _, c := range []struct{ flag, want string }{{"auto", "HTTP/2"}, {"2", "HTTP/2"}, {"1.1", "HTTP/1.1"}} {
		dir := filepath.Join(t.TempDir(), "run")
		code, out, errs := shadowtape(t, "replay", trace, "--target", target, "--ca-cert", cert, "--http", c.flag, "-o", dir, "--allow-invalid",
			"--connect-timeout", "10m") // on a machine out of breath sixty handshakes have taken more than ten seconds
		if code != exitGood || !strings.Contains(out, "scheduled 60 = sent 60 + dropped 0; completed 60") {
			t.Fatalf("--http %s: exit %d\n%s%s", c.flag, code, out, errs)
		}
		m, rows := readRun(t, dir)
		if p := protocolOf(t, m); p != c.want || m.Options["http"] != c.flag {
			t.Errorf("--http %s: %s was spoken", c.flag, p)
		}
		type emitted struct {
			ID     string  `json:"x_request_id"`
			Tokens []int64 `json:"token_unix_ns"`
			Input  int64   `json:"input_tokens"`
		}
		truth := map[formats.Hash]emitted{}
		b, err := os.ReadFile(logName)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			var e emitted
			if json.Unmarshal([]byte(line), &e) == nil {
				truth[replayer.CorrelationID(m.Options["request_ids"].(string), e.ID)] = e
			}
		}
		for _, x := range rows {
			e, ok := truth[x.CorrelationID.V]
			// More than one attempt: on a machine out of breath net/http gives connections up before it has read their first frames.
			if !ok || int64(len(e.Tokens)) != x.OutputTokens.V || e.Input != x.InputTokens.V || x.Attempt.V < 1 || x.SentNS.V > x.RequestEndNS.V {
				t.Fatalf("--http %s, row %d: %d tokens of %d input, the server says %d of %d; attempt %d", c.flag, x.ExchangeID, x.OutputTokens.V, x.InputTokens.V, len(e.Tokens), e.Input, x.Attempt.V)
			}
			if len(e.Tokens) > 0 && x.FirstTokenNS.Valid && x.ArrivalUnixNS+x.FirstTokenNS.V < e.Tokens[0] {
				t.Errorf("row %d: the first token came before it was sent", x.ExchangeID)
			}
		}
	}
	// Without TLS HTTP/2 is spoken where it is asked for.
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := url.Parse(sim)
		(&httputil.ReverseProxy{FlushInterval: -1, Transport: fresh, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(u); whole(p) }}).ServeHTTP(w, r)
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	dir := filepath.Join(t.TempDir(), "run")
	code, out, errs := shadowtape(t, "replay", trace, "--target", s.URL, "--http", "2", "-o", dir, "--allow-invalid", "--max-requests", "20")
	if code != exitGood || !strings.Contains(out, "completed 20") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	if m, _ := readRun(t, dir); protocolOf(t, m) != "HTTP/2" {
		t.Errorf("environment %v", m.Environment)
	}
	// A target that does not offer it is refused before anything is sent.
	old, cert := secured(t, sim, false)
	code, _, errs = shadowtape(t, "replay", trace, "--target", old, "--ca-cert", cert, "--http", "2", "-o", filepath.Join(t.TempDir(), "run"))
	if code != exitFailed || !strings.Contains(errs, "reach "+old) || !strings.Contains(errs, "hint: --http auto") {
		t.Errorf("exit %d: %s", code, errs)
	}
	code, _, errs = shadowtape(t, "replay", trace, "--target", sim, "--http", "2", "-o", filepath.Join(t.TempDir(), "run"))
	if code != exitFailed || !strings.Contains(errs, "reach "+sim) || !strings.Contains(errs, "hint: --http auto") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if code, _, errs = shadowtape(t, "replay", trace, "--target", target, "--http", "3", "-o", dir); code != exitUsage {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// What goes wrong in a server behind HTTP/2 is counted, and ends no other stream of its connection.
func TestReplayFaultsOverHTTP2(t *testing.T) {
	sim, _ := startSim(t, "--profile", "instant", "--fault", "http429=8%,reset=8%,cut=8%,error=8%,html=8%")
	target, cert := secured(t, sim, true)
	trace := smallTrace(t, 200, time.Millisecond, nil)
	dir := filepath.Join(t.TempDir(), "run")
	code, out, errs := shadowtape(t, "replay", trace, "--target", target, "--ca-cert", cert, "--http", "2", "-o", dir, "--allow-invalid")
	if code != exitGood {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	m, rows := readRun(t, dir)
	if r := m.Requests; len(rows) != 200 || r.Sent != 200 || r.Completed+r.Failed != 200 || r.Completed < 60 {
		t.Errorf("%+v %v", r, m.Errors)
	}
	for _, kind := range []string{"http_429", formats.ErrorReset, formats.ErrorInStream, formats.ErrorHTML} {
		if m.Errors[kind] < 4 {
			t.Errorf("%d of %s: %v", m.Errors[kind], kind, m.Errors)
		}
	}
}
