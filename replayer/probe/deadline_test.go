package probe

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/prompt"
)

// A target that answers one path in a way that never comes to an end holds no probe longer than its one deadline, and what it need not
// say costs a few seconds and nothing else.
func TestProbesHaveDeadlines(t *testing.T) {
	forever := func(every time.Duration, head, piece string) func(net.Conn) {
		return func(c net.Conn) {
			_, err := io.WriteString(c, head)
			for err == nil {
				time.Sleep(every)
				_, err = io.WriteString(c, piece)
			}
		}
	}
	ways := map[string]func(net.Conn){
		"silence":     func(c net.Conn) { io.Copy(io.Discard, c) },
		"a slow head": forever(time.Second, "HTTP/1.1 200 OK\r\nX-Pad: ", "x"),
		"a slow body": forever(time.Second, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n", " "),
		"slow 100s":   forever(time.Second, "", "HTTP/1.1 100 Continue\r\n\r\n"),
		"100s":        forever(0, "", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 1000)),
		"103s":        forever(time.Second, "", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 10)),
		"a long body": forever(0, "HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("x", 1<<16)),
		"a busy answer": func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") // fails once it has gone
		},
	}
	for way, misbehave := range ways {
		for _, bad := range []string{"/v1/models", "/health", "/version", "/metrics", "/server_info", "/tokenizer_info", "/tokenize", "/v1/chat/completions", "/v1/completions", "/reset_prefix_cache"} {
			if much := way == "100s" || way == "a long body"; much && bad != "/v1/models" && bad != "/tokenize" {
				continue // megabytes, on a pipe
			}
			synctest.Test(t, func(t *testing.T) {
				h := &counter{ids: true, images: true, tokenize: true}
				var serving sync.WaitGroup
				c, err := client.New(client.Options{Targets: []string{"http://target"}, Dial: func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					serving.Go(func() {
						defer theirs.Close()
						for b := bufio.NewReader(theirs); ; {
							r, err := http.ReadRequest(b)
							if err != nil {
								return
							}
							if r.URL.Path == bad {
								serving.Go(func() { io.Copy(io.Discard, b) })
								misbehave(theirs)
								return
							}
							w := httptest.NewRecorder()
							h.ServeHTTP(w, r)
							a := w.Result()
							a.ContentLength = int64(w.Body.Len()) // else it ends with the connection
							if a.Write(theirs) != nil {
								return
							}
						}
					})
					return ours, nil
				}})
				if err != nil {
					t.Fatal(err)
				}
				within := func(what string, limit time.Duration, ask func()) {
					began := time.Now()
					if ask(); time.Since(began) > limit {
						t.Errorf("%s on %s: %s took %v, more than %v", way, bad, what, time.Since(began), limit)
					}
				}
				infos := []Info{{Dialect: prompt.Dialect{ResetCache: "/reset_prefix_cache"}}}
				within("asking what it is", patience, func() {
					got, err := Targets(t.Context(), c, "")
					switch must := bad == "/v1/models" || bad == "/health" || bad == "/v1/completions"; {
					case err == nil && (len(got) != 1 || !got[0].TokenIDs && bad != "/v1/completions"):
						t.Errorf("%s on %s: %+v", way, bad, got)
					case err != nil && !must:
						t.Errorf("%s on %s: %v", way, bad, err)
					case err == nil && must && (way == "silence" || strings.HasPrefix(way, "slow")):
						t.Errorf("%s on %s is no error", way, bad)
					}
				})
				cal := prompt.Calibration{Words: prompt.Words}
				within("calibrating", calibrateTime, func() {
					got, err := Calibrate(t.Context(), c, "m1", formats.EndpointChat)
					if err == nil {
						cal = got
					}
					if err != nil || (got.Method == "tokenize") == (bad == "/tokenize") {
						t.Errorf("%s on %s: by %q, %v", way, bad, got.Method, err)
					}
				})
				within("calibrating by usage", calibrateTime, func() {
					h.tokenize = false
					if _, err := Calibrate(t.Context(), c, "m1", formats.EndpointChat); (err != nil) != (bad == "/v1/chat/completions") && bad != "/tokenize" {
						t.Errorf("%s on %s: %v", way, bad, err)
					}
				})
				within("calibrating tools", calibrateTime, func() { CalibrateTools(t.Context(), c, "m1", &cal) })
				within("trying a picture", client.AskTime, func() { TakesImages(t.Context(), c, "m1") })
				within("measuring a round trip", courtesy, func() { RoundTrip(t.Context(), c.Targets()[0]) })
				within("emptying the cache", client.AskTime, func() { ResetPrefixCache(t.Context(), c, infos) })
				c.Close()
				serving.Wait()
			})
		}
	}
}

// Answers that each come in time, and together do not, end a calibration too.
func TestCalibrationHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var serving sync.WaitGroup
		h := &counter{}
		c, err := client.New(client.Options{Targets: []string{"http://target"}, Dial: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			serving.Go(func() {
				defer theirs.Close()
				r, err := http.ReadRequest(bufio.NewReader(theirs))
				if err != nil {
					return
				}
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, r); r.URL.Path == "/v1/chat/completions" {
					time.Sleep(client.AskTime - time.Second)
				}
				w.Result().Write(theirs) // ends with the connection; fails once it has gone
			})
			return ours, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = Calibrate(t.Context(), c, "m1", formats.EndpointChat)
		if took := time.Since(began); took > calibrateTime {
			t.Errorf("it took %v, more than %v", took, calibrateTime)
		}
		if err != nil {
			t.Error(err) // two counts are all that is needed
		}
		began = time.Now()
		cal := prompt.Calibration{Words: prompt.Words}
		if CalibrateTools(t.Context(), c, "m1", &cal); time.Since(began) > calibrateTime {
			t.Errorf("tools took %v, more than %v", time.Since(began), calibrateTime)
		}
		c.Close()
		serving.Wait()
	})
}
