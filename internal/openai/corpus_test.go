package openai

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/shadowtape/shadowtape/formats"
)

var update = flag.Bool("update", false, "write the expected exchanges")

// dialogueFile is one file of testdata/streams: a request, a response, and the exchange that they make. The response's first line is its
// status, content type and line end; then the body. Each event (or line of NDJSON) arrives a millisecond after the one before it.
func TestDialects(t *testing.T) {
	files, err := filepath.Glob("testdata/streams/*.txtar")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			x := &formats.Exchange{}
			first, request, _ := strings.Cut(string(a.Files[0].Data), "\n")
			path := strings.TrimPrefix(first, "POST ")
			if err := ReadRequest(x, path, []byte(strings.TrimSpace(request)), NewHasher([]byte("key"))); err != nil {
				t.Fatal(err)
			}
			line, body, _ := strings.Cut(string(a.Files[1].Data), "\n")
			status, rest, _ := strings.Cut(line, " ")
			i := strings.LastIndex(rest, " ")
			code, err := strconv.Atoi(status)
			sep, serr := strconv.Unquote(`"` + rest[i+1:] + `"`)
			if err != nil || serr != nil {
				t.Fatalf("first line %q", line)
			}
			pieces := pieces(body, rest[:i], sep)
			echo := Echoed(x.Endpoint, []byte(strings.TrimSpace(request)))
			var kept *texts
			run := func(x *formats.Exchange, pieces []string, step int64, keep bool) string {
				r := NewResponse(x, code, rest[:i])
				r.Expect(echo)
				if keep {
					r.KeepText(1 << 20)
				}
				for n, p := range pieces {
					r.Write([]byte(p), int64(n+1)*step, 0)
				}
				r.End(int64(len(pieces))*step, true)
				kept = r.texts
				return show(x)
			}
			fresh := func() *formats.Exchange {
				y := *x
				return &y
			}
			got := run(fresh(), pieces, 1e6, false)
			if *update {
				a.Files[2].Data = []byte(got)
				if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := string(a.Files[2].Data); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			// Where the reads end must not matter: all at once, and byte by byte, all at one time.
			whole := strings.Join(pieces, "")
			if one, bytewise := run(fresh(), []string{whole}, 0, false), run(fresh(), strings.Split(whole, ""), 0, false); one != bytewise {
				t.Errorf("at once\n%s\nbyte by byte\n%s", one, bytewise)
			}
			// Nor whether the text is kept, and what is kept.
			if with := run(fresh(), pieces, 1e6, true); with != got {
				t.Errorf("with text kept\n%s", with)
			}
			inPieces := kept.choices
			if run(fresh(), strings.Split(whole, ""), 0, true); fmt.Sprintf("%q", kept.choices) != fmt.Sprintf("%q", inPieces) {
				t.Errorf("kept %q, byte by byte %q", inPieces, kept.choices)
			}
		})
	}
}

func pieces(body, mime, sep string) (out []string) {
	if strings.Contains(mime, "ndjson") {
		return strings.SplitAfter(strings.TrimSuffix(body, "\n"), "\n")
	}
	if !strings.Contains(mime, "event-stream") {
		return []string{strings.TrimSuffix(body, "\n")}
	}
	for _, ev := range strings.SplitAfter(body+"\n", "\n\n") {
		if ev == "" {
			continue
		}
		if sep == "\n\r\n" {
			ev = strings.ReplaceAll(ev, "\n\n", sep)
		} else {
			ev = strings.ReplaceAll(ev, "\n", sep)
		}
		out = append(out, ev)
	}
	return out
}

// show prints what is known of an exchange, one column a line.
func show(x *formats.Exchange) string {
	var b strings.Builder
	v := reflect.ValueOf(*x)
	for i := range v.NumField() {
		name, f := v.Type().Field(i).Name, v.Field(i)
		if f.IsZero() {
			continue
		}
		if f.Kind() == reflect.Struct {
			if !f.FieldByName("Valid").Bool() {
				continue
			}
			f = f.FieldByName("V")
		}
		if h, ok := f.Interface().(formats.Hash); ok {
			fmt.Fprintf(&b, "%s %x\n", name, h[:])
			continue
		}
		fmt.Fprintf(&b, "%s %v\n", name, f.Interface())
	}
	return b.String()
}

// TestBigEvents reads events far beyond any line limit.
func TestBigEvents(t *testing.T) {
	// An event of several MiB, in pieces of 64 KiB, takes no memory for its size.
	big := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 3<<20) + `"},"finish_reason":"stop"}],"prompt_token_ids":[` + strings.Repeat("123456,", 200000) + "1]}\n\n"
	x := &formats.Exchange{Endpoint: formats.EndpointChat}
	r := NewResponse(x, http.StatusOK, "text/event-stream")
	allocated := testing.AllocsPerRun(1, func() {
		in := bufio.NewReader(strings.NewReader(big))
		buf := make([]byte, 64<<10)
		for {
			n, err := in.Read(buf)
			r.Write(buf[:n], 1, 0)
			if err != nil {
				return
			}
		}
	})
	r.End(2, true)
	if !x.FirstTokenNS.Valid || x.ErrorKind != "" || allocated > 20 {
		t.Errorf("%v allocations, %s", allocated, show(x))
	}
}

// TestManyLines: what lines end with costs nothing that grows with the square of what is read at once.
func TestManyLines(t *testing.T) {
	x := &formats.Exchange{Endpoint: formats.EndpointChat}
	r := NewResponse(x, http.StatusOK, "text/event-stream")
	r.Write(bytes.Repeat([]byte(":\r"), 4<<20), 1, 0)
	r.Write([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\r\r"), 2, 0)
	r.End(3, true)
	if x.FirstTokenNS.V != 2 || x.ErrorKind != "" {
		t.Error(show(x))
	}
}
