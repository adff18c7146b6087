// Package s3test is an S3-compatible server in memory for tests: objects, listings, ranges, uploads in parts, and the faults that a
// storage has.
package s3test

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Server is a storage with one bucket. Safe for concurrent use.
type Server struct {
	URL, Bucket string

	mu      sync.Mutex
	objects map[string][]byte
	uploads map[string]map[int][]byte
	next    int
	// Fault is asked before each request; an answer that is not 0 is given in place of the server's: a status, or -1, which breaks the
	// connection off in the middle of the body. Set it with Break.
	fault    func(r *http.Request) int
	requests map[string]int // by method
}

// New starts a server that ends with the test, and points the environment's endpoint and credentials at it.
func New(t testing.TB) *Server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return On(t, l)
}

// On is New with a listener.
func On(t testing.TB, l net.Listener) *Server {
	s := &Server{Bucket: "traces", objects: map[string][]byte{}, uploads: map[string]map[int][]byte{}, requests: map[string]int{}}
	h := httptest.NewUnstartedServer(s)
	h.Listener.Close()
	h.Listener = l
	h.Start()
	t.Cleanup(h.Close)
	s.URL = "http://" + l.Addr().String()
	if t, ok := t.(interface{ Setenv(key, value string) }); ok {
		for k, v := range s.Environment() {
			t.Setenv(k, v)
		}
	}
	return s
}

// Environment is what a client needs to be told.
func (s *Server) Environment() map[string]string {
	return map[string]string{"AWS_ENDPOINT_URL_S3": s.URL, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_REGION": "us-east-1"}
}

// Break sets what is asked before each request; nil: nothing is broken.
func (s *Server) Break(fault func(r *http.Request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// Keys are the names of all objects, sorted.
func (s *Server) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for k := range s.objects {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// Uploads is how many uploads in parts were begun and neither completed nor given up.
func (s *Server) Uploads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.uploads)
}

// Requests is how many requests of a method came.
func (s *Server) Requests(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[method]
}

func etag(b []byte) string {
	sum := md5.Sum(b)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/xml")
	io.WriteString(w, xml.Header)
	xml.NewEncoder(w).Encode(v)
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests[r.Method]++
	fault := s.fault
	s.mu.Unlock()
	broken := 0
	if fault != nil {
		broken = fault(r)
	}
	if broken > 0 {
		fail(w, broken, map[int]string{403: "AccessDenied", 503: "SlowDown"}[broken], "Access Denied.")
		return
	}
	if !strings.Contains(r.Header.Get("Authorization"), "Credential=test/") {
		fail(w, 403, "InvalidAccessKeyId", "The key is not known.")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != s.Bucket {
		fail(w, 404, "NoSuchBucket", "The bucket does not exist.")
		return
	}
	q := r.URL.Query()
	switch {
	case key == "" && r.Method == "GET" && q.Has("location"):
		answer(w, struct {
			XMLName xml.Name `xml:"LocationConstraint"`
		}{})
	case key == "" && r.Method == "GET":
		s.list(w, q.Get("prefix"), q.Get("delimiter"), q.Get("continuation-token"))
	case r.Method == "PUT" || r.Method == "POST":
		s.put(w, r, key)
	case r.Method == "DELETE":
		s.mu.Lock()
		if id := q.Get("uploadId"); id != "" {
			delete(s.uploads, id)
		} else {
			delete(s.objects, key)
		}
		s.mu.Unlock()
		w.WriteHeader(204)
	default:
		s.get(w, r, key, broken < 0)
	}
}

// page is how many keys a listing holds: few, so that tests come to the next page.
const page = 3

func (s *Server) list(w http.ResponseWriter, prefix, delimiter, after string) {
	type content struct {
		Key, ETag, LastModified string
		Size                    int
	}
	type common struct{ Prefix string }
	var out struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		Contents              []content
		CommonPrefixes        []common
	}
	n, last := 0, ""
	for _, k := range s.Keys() {
		rest, ok := strings.CutPrefix(k, prefix)
		if !ok {
			continue
		}
		name := k
		if dir, _, below := strings.Cut(rest, "/"); below && delimiter == "/" {
			name = prefix + dir + "/"
		}
		if name <= after || name == last {
			continue
		}
		if n++; n > page {
			out.IsTruncated, out.NextContinuationToken = true, last
			break
		}
		last = name
		if strings.HasSuffix(name, "/") {
			out.CommonPrefixes = append(out.CommonPrefixes, common{name})
			continue
		}
		s.mu.Lock()
		b := s.objects[k]
		s.mu.Unlock()
		out.Contents = append(out.Contents, content{k, etag(b), time.Unix(1_000_000_000, 0).UTC().Format("2006-01-02T15:04:05.000Z"), len(b)})
	}
	answer(w, out)
}

// body reads what is sent, out of the frames of a signed stream where it is one.
func body(r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return b, err
	}
	var out []byte
	for {
		head, rest, ok := bytes.Cut(b, []byte("\r\n"))
		if !ok {
			return out, nil
		}
		size, _, _ := bytes.Cut(head, []byte(";"))
		n, err := strconv.ParseInt(string(size), 16, 64)
		if err != nil || n > int64(len(rest)) {
			return nil, fmt.Errorf("a frame of %q bytes", size)
		}
		if n == 0 {
			return out, nil
		}
		out, b = append(out, rest[:n]...), bytes.TrimPrefix(rest[n:], []byte("\r\n"))
	}
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, key string) {
	b, err := body(r)
	if err != nil {
		fail(w, 400, "IncompleteBody", err.Error())
		return
	}
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	id := q.Get("uploadId")
	switch {
	case q.Has("uploads"):
		s.next++
		id := strconv.Itoa(s.next)
		s.uploads[id] = map[int][]byte{}
		answer(w, struct {
			XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
			Bucket, Key, UploadId string
		}{Bucket: s.Bucket, Key: key, UploadId: id})
	case id != "" && s.uploads[id] == nil:
		fail(w, 404, "NoSuchUpload", "The upload does not exist.")
	case r.Method == "PUT" && id != "":
		n, _ := strconv.Atoi(q.Get("partNumber"))
		s.uploads[id][n] = b
		w.Header().Set("ETag", etag(b))
	case id != "":
		var numbers []int
		for n := range s.uploads[id] {
			numbers = append(numbers, n)
		}
		slices.Sort(numbers)
		var whole []byte
		for _, n := range numbers {
			whole = append(whole, s.uploads[id][n]...)
		}
		s.objects[key] = whole
		delete(s.uploads, id)
		answer(w, struct {
			XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
			Bucket, Key, ETag string
		}{Bucket: s.Bucket, Key: key, ETag: etag(whole)})
	default:
		s.objects[key] = b
		w.Header().Set("ETag", etag(b))
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, key string, cut bool) {
	s.mu.Lock()
	b, ok := s.objects[key]
	s.mu.Unlock()
	switch match := r.Header.Get("If-Match"); {
	case !ok:
		fail(w, 404, "NoSuchKey", "The key does not exist.")
		return
	case match != "" && strings.Trim(match, `"`) != strings.Trim(etag(b), `"`):
		fail(w, 412, "PreconditionFailed", "A condition did not hold.")
		return
	}
	w.Header().Set("ETag", etag(b))
	if cut {
		w.Header().Set("Last-Modified", time.Unix(1_000_000_000, 0).UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		w.Write(b[:len(b)/2])
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, r, "", time.Unix(1_000_000_000, 0), bytes.NewReader(b))
}
