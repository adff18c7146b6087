package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/objects/s3test"
)

// mount starts a server and mounts it.
func mount(t *testing.T) *s3test.Server {
	s := s3test.New(t)
	formats.Mount("s3", New(t.Context(), Config{Endpoint: s.URL, Region: "us-east-1", Temp: t.TempDir()}).Store)
	return s
}

func write(t *testing.T, where string, rows int) {
	t.Helper()
	w, err := formats.Create(where, formats.Header{SourceKind: "interface"}, formats.SegmentOptions{MaxRows: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if err := w.Write(&formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: int64(1 + i*1000), InputTokens: formats.Of(int64(i))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, where string) (inputs []int64) {
	t.Helper()
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, x.InputTokens.V)
	}
	return inputs
}

func TestTrace(t *testing.T) {
	s := mount(t)
	where := "s3://traces/prod/monday"
	write(t, where, 250)
	want := []string{"prod/monday/exchanges-00001.parquet", "prod/monday/exchanges-00002.parquet", "prod/monday/exchanges-00003.parquet", "prod/monday/trace.json"}
	if got := s.Keys(); !slices.Equal(got, want) {
		t.Fatalf("objects %q", got)
	}
	if got := read(t, where); len(got) != 250 || got[249] != 249 {
		t.Errorf("%d rows", len(got))
	}
	if got := read(t, where+"/exchanges-00002.parquet"); len(got) != 100 || got[0] != 100 {
		t.Errorf("%d rows of one segment", len(got))
	}
	if _, err := formats.Create(where, formats.Header{}, formats.SegmentOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("written over: %v", err)
	}
	for name, want := range map[string]bool{where: true, "s3://traces/prod/tuesday": false, where + "/exchanges-00001.parquet": true} {
		if got, err := formats.Exists(name); got != want || err != nil {
			t.Errorf("%s exists: %t %v", name, got, err)
		}
	}
	write(t, "s3://traces/prod/tuesday", 50)
	if got := read(t, "s3://traces/prod/"); len(got) != 300 {
		t.Errorf("%d rows under the prefix", len(got))
	}
	if err := formats.Remove("s3://traces/prod"); err == nil || !strings.Contains(err.Error(), "is not part of a trace") {
		t.Errorf("what holds traces was removed: %v", err)
	}
	if err := formats.Remove(where); err != nil {
		t.Error(err)
	}
	if got := s.Keys(); len(got) != 2 {
		t.Errorf("left: %q", got)
	}
}

func TestRun(t *testing.T) {
	s := mount(t)
	where := "s3://traces/runs/1"
	w, err := formats.CreateRun(where, formats.Manifest{ToolVersion: "t", TraceSHA256: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(&formats.Exchange{Phase: formats.PhaseMeasure, ArrivalUnixNS: 5}); err != nil {
		t.Fatal(err)
	}
	if len(s.Keys()) > 0 {
		t.Errorf("there before it is a run: %q", s.Keys())
	}
	// The storage is away when the run ends: it is kept, and the error says where.
	s.Break(func(r *http.Request) int {
		if r.Method == "PUT" {
			return 403
		}
		return 0
	})
	err = w.Close(formats.Manifest{Valid: true})
	if err == nil {
		t.Fatal("a run that is nowhere")
	}
	_, rest, _ := strings.Cut(err.Error(), "kept in ")
	kept, _, _ := strings.Cut(rest, ": ")
	tr, kerr := formats.Open(kept)
	if kerr != nil || tr.Rows != 1 || tr.Manifest == nil || !tr.Manifest.Valid || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v: %v", err, kerr)
	}
	s.Break(nil)
	if err := formats.Remove(kept); err != nil {
		t.Error(err)
	}
	w, err = formats.CreateRun(where, formats.Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(formats.Manifest{Label: "again", Valid: true}); err != nil {
		t.Fatal(err)
	}
	if tr, err := formats.Open(where); err != nil || tr.Manifest.Label != "again" {
		t.Errorf("%v", err)
	}
	if _, err := formats.CreateRun(where, formats.Manifest{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a run: %v", err)
	}
}

func TestErrors(t *testing.T) {
	s := mount(t)
	write(t, "s3://traces/a", 10)
	for where, want := range map[string]string{
		"s3://nowhere/a":                        "there is no bucket nowhere",
		"s3://traces/none":                      "no segments",
		"s3://":                                 "it names no bucket",
		"s3://traces/../a":                      "no plain prefix",
		"gs://traces/a":                         "knows no storage named gs://",
		"s3://traces/a/exchanges-00009.parquet": "file does not exist",
	} {
		_, err := formats.Open(where)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", where, err)
		}
	}
	s.Break(func(*http.Request) int { return 403 })
	if _, err := formats.Open("s3://traces/a"); err == nil || !strings.Contains(err.Error(), "AccessDenied") || !strings.Contains(err.Error(), "AWS_PROFILE") {
		t.Errorf("denied: %v", err)
	}
	if _, err := New(t.Context(), Config{Endpoint: "localhost:9000"}).Store("s3://a/b"); err == nil {
		t.Error("an endpoint that is no URL")
	}
}

// TestFaults breaks off and refuses some requests: what is read and written is whole all the same.
func TestFaults(t *testing.T) {
	s := mount(t)
	var n atomic.Int64
	s.Break(func(r *http.Request) int {
		switch k := n.Add(1); {
		case r.Method == "GET" && r.Header.Get("Range") != "" && k%3 == 0:
			return -1
		case k%5 == 0:
			return 503
		}
		return 0
	})
	write(t, "s3://traces/a", 350)
	if got := read(t, "s3://traces/a"); len(got) != 350 {
		t.Errorf("%d rows", len(got))
	}
}

func TestParts(t *testing.T) {
	s := mount(t)
	storage := New(t.Context(), Config{Endpoint: s.URL, Region: "us-east-1", Temp: t.TempDir()})
	storage.part = 5 << 20 // the least that the protocol allows
	st, err := storage.Store("s3://traces/big")
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 6<<20)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(content)
	put := func() error {
		o, err := st.Create("o")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Write(content); err != nil {
			t.Fatal(err)
		}
		return st.Commit(o)
	}
	s.Break(func(r *http.Request) int { // the last part is refused
		if r.URL.Query().Get("partNumber") == "2" {
			return 403
		}
		return 0
	})
	if err := put(); err == nil {
		t.Error("an object with a part missing")
	}
	if s.Uploads() != 0 || len(s.Keys()) != 0 {
		t.Errorf("left behind: %d uploads, objects %q", s.Uploads(), s.Keys())
	}
	s.Break(nil)
	if err := put(); err != nil {
		t.Fatal(err)
	}
	o, err := st.Open("o")
	if err != nil {
		t.Fatal(err)
	}
	before := s.Requests("GET")
	got, err := io.ReadAll(io.NewSectionReader(o, 0, o.Size()))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
	if n := s.Requests("GET") - before; n != len(content)/blockSize {
		t.Errorf("%d requests for %d blocks", n, len(content)/blockSize)
	}
	// Replaced while it is read: an error, not a mixture.
	content[len(content)-1]++
	for i := range cacheBlocks { // what stands in the cache of the old one does not matter
		content[i*7]++
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	stale := &reader{st: st.(*store), key: "big/o", etag: o.(*reader).etag + "0", size: o.Size()}
	if _, err := stale.ReadAt(b, 0); err == nil || !strings.Contains(err.Error(), "replaced while it was read") {
		t.Errorf("%v", err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	c := newCache()
	for i := range int64(5 * cacheBlocks) {
		b, err := c.get(blockID{i: i}, func() ([]byte, error) { return fmt.Append(nil, i), nil })
		if err != nil || string(b) != fmt.Sprint(i) {
			t.Fatal(string(b), err)
		}
	}
	if c.recent.Len() != cacheBlocks || len(c.blocks) != cacheBlocks {
		t.Errorf("%d blocks, %d listed", c.recent.Len(), len(c.blocks))
	}
	fetched := false
	if _, err := c.get(blockID{i: 5*cacheBlocks - 1}, func() ([]byte, error) { fetched = true; return nil, nil }); err != nil || fetched {
		t.Error("the last block is not kept")
	}
	if _, err := c.get(blockID{key: "bad"}, func() ([]byte, error) { return nil, io.ErrUnexpectedEOF }); err == nil {
		t.Error("no error")
	}
	if _, err := c.get(blockID{key: "bad"}, func() ([]byte, error) { return nil, nil }); err != nil {
		t.Error("an error was kept")
	}
}

func TestCancelled(t *testing.T) {
	s := s3test.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	st, err := New(ctx, Config{Endpoint: s.URL, Region: "us-east-1", Temp: t.TempDir()}).Store("s3://traces/a")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	o, err := st.Create("o") // what was begun is written
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Commit(o); err != nil {
		t.Error(err)
	}
	if _, err := st.Open("o"); err == nil {
		t.Error("read after the end")
	}
}

// An endpoint that is none is said in one line, with what says where the storage is.
func TestWrongEndpoint(t *testing.T) {
	page := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	l.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "k")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	for endpoint, want := range map[string]string{
		nobody: "connection refused (AWS_ENDPOINT_URL_S3",
		page(405, "<html>\n<p>not here</p>\n</html>"): "answered 405",
		page(200, "<html><p>hello</html>"):            "as object storage does",
		page(200, "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body><p>hello</p></body></html>"): "as object storage does",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		st, err := New(ctx, Config{Endpoint: endpoint, Region: "us-east-1", Temp: t.TempDir()}).Store("s3://traces/a")
		if err != nil {
			t.Fatal(err)
		}
		_, err = st.List("")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), endpoint) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", want, err)
		}
		cancel()
	}
}

// TestWebPageKeepsNothing: whatever answers every request with a page and a 200, as a portal does, is no storage: nothing is taken for kept.
func TestWebPageKeepsNothing(t *testing.T) {
	portal := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "<html><body><p>Sign in</p></body></html>")
	}))
	defer portal.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testtest")
	st, err := New(t.Context(), Config{Endpoint: portal.URL, Region: "us-east-1", Temp: t.TempDir()}).Store("s3://traces/a")
	if err != nil {
		t.Fatal(err)
	}
	if es, err := st.List(""); err == nil || !strings.Contains(err.Error(), "as object storage does") {
		t.Errorf("%v, %v", es, err)
	}
	if names, err := st.Below(); err == nil {
		t.Errorf("%v", names)
	}
	o, err := st.Create("x")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(o, "precious")
	if err := st.Commit(o); err == nil || !strings.Contains(err.Error(), "as object storage does") {
		t.Errorf("it was taken for kept: %v", err)
	}
}
