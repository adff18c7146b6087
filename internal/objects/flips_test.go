package objects

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/objects/s3test"
)

// TestFlippedAnswers damages what a storage says of its objects, many times over: what is read is right, or an error in one line, and never
// a panic. FLIPS=3000 makes it long.
func TestFlippedAnswers(t *testing.T) {
	n := 60
	if s := os.Getenv("FLIPS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	s := s3test.New(t)
	r := rand.New(rand.NewPCG(1, 2))
	var flips bool
	damage := func(b []byte) []byte {
		b = append([]byte(nil), b...)
		odd := []string{"", "-1", "0", "99999999999999999999", "\x00", "&x;", "<", "</Key>", "../../../etc/passwd", "<Contents/>", "<IsTruncated>true</IsTruncated>", "\xff\xfe", strings.Repeat("<a>", 3000)}
		at := r.IntN(len(b) + 1)
		switch r.IntN(4) {
		case 0:
			if at < len(b) {
				b[at] ^= 1 << r.IntN(8)
			}
			return b
		case 1:
			return b[:at]
		case 2:
			end := min(len(b), at+1+r.IntN(30))
			return append(b[:at:at], b[end:]...)
		default:
			return append(append(b[:at:at], odd[r.IntN(len(odd))]...), b[at:]...)
		}
	}
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if asked++; asked > 200 {
			panic(http.ErrAbortHandler) // one reading asks for so much only where it goes round in circles
		}
		w2 := httptest.NewRecorder()
		s.ServeHTTP(w2, q)
		body := w2.Body.Bytes()
		for name, values := range w2.Header() {
			w.Header()[name] = values
		}
		switch {
		case !flips || r.IntN(4) > 0:
		case q.Method == "HEAD":
			name := []string{"Etag", "Content-Length", "Last-Modified", "Accept-Ranges"}[r.IntN(4)]
			if v := w2.Header().Get(name); v != "" && r.IntN(2) == 0 {
				v = strings.Map(func(c rune) rune {
					if c < ' ' || c > '~' {
						return '?'
					}
					return c
				}, string(damage([]byte(v))))
				w.Header().Set(name, v)
			}
		case q.Header.Get("Range") == "":
			body = damage(body)
		case len(body) > 0:
			body[r.IntN(len(body))] ^= 1 << r.IntN(8)
		}
		if q.Method != "HEAD" {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		w.WriteHeader(w2.Code)
		w.Write(body)
	}))
	defer server.Close()
	mount := func() {
		formats.Mount("s3", New(t.Context(), Config{Endpoint: server.URL, Region: "us-east-1", Temp: t.TempDir()}).Store)
	}
	mount()
	write(t, "s3://traces/a", 250)
	good, bad := 0, 0
	for seed := range n {
		asked, flips = 0, seed > 0
		mount() // what an earlier reading holds is not this one's
		rows, err := 0, error(nil)
		tr, err := formats.Open("s3://traces/a")
		if err == nil {
			for _, e := range tr.All(formats.ColInputTokens) {
				if err = e; err != nil {
					break
				}
				rows++
			}
		}
		switch {
		case err != nil && strings.Contains(strings.TrimSpace(err.Error()), "\n"):
			t.Errorf("%d: %q", seed, err)
		case err != nil:
			bad++
		case seed == 0 && rows != 250, rows%50 != 0: // a listing without one of the segments is a smaller trace
			t.Errorf("%d: %d rows, and no error", seed, rows)
		default:
			good++
		}
	}
	t.Logf("%d of %d readings well, %d with an error", good, n, bad)
	if good == 0 || bad == 0 && n > 10 {
		t.Error("nothing was damaged, or everything")
	}
}
