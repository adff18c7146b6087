package report

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// browser is a headless Chromium that is told what to do over a pair of pipes: the DevTools protocol, messages ending in a zero byte.
type browser struct {
	t       *testing.T
	ctx     context.Context
	in      io.Writer
	out     *bufio.Reader
	session string
	next    int
	console []string // what pages wrote to the console or threw
}

// openBrowser starts one for the length of a test, which is skipped where there is no Chromium, or none that answers.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	name := ""
	for _, n := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(n); err == nil {
			name = path
			break
		}
	}
	if name == "" {
		t.Skip("skipped: no chromium on PATH, the report is not opened in a browser")
	}
	if testing.Short() {
		t.Skip("skipped by -short: starts a browser")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "report-browser-*")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--headless", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir=" + dir, "about:blank"}
	if os.Getuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...)
	}
	c := exec.CommandContext(ctx, name, args...)
	c.ExtraFiles = []*os.File{theirIn, theirOut}
	c.WaitDelay = 5 * time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, ctx: ctx, in: ourOut, out: bufio.NewReader(ourIn)}
	t.Cleanup(func() {
		if t.Context().Err() == nil || ctx.Err() == nil {
			fmt.Fprintf(ourOut, `{"id":%d,"method":"Browser.close"}`+"\x00", b.next+1)
		}
		ourOut.Close()
		_ = c.Wait() // it may have been killed
		cancel()
		ourIn.Close()
		os.RemoveAll(dir)
	})
	go func() { // a browser that hangs is killed with the context; then the read ends
		<-ctx.Done()
		ourIn.SetReadDeadline(time.Now())
	}()
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// call sends a command and waits for its answer.
func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	b.next++
	m := map[string]any{"id": b.next, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	text, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		text, err := b.out.ReadBytes(0)
		if err != nil {
			if b.ctx.Err() != nil && errors.Is(b.ctx.Err(), context.DeadlineExceeded) {
				b.t.Skip("skipped: the browser did not answer in five minutes")
			}
			b.t.Fatalf("%s: %v", method, err)
		}
		var answer struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(text[:len(text)-1], &answer); err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		switch {
		case answer.Method == "Runtime.consoleAPICalled", answer.Method == "Runtime.exceptionThrown", answer.Method == "Log.entryAdded":
			b.console = append(b.console, string(answer.Params))
		case answer.ID == b.next && answer.Error != nil:
			b.t.Fatalf("%s: %s", method, answer.Error.Message)
		case answer.ID == b.next:
			if result != nil {
				if err := json.Unmarshal(answer.Result, result); err != nil {
					b.t.Fatalf("%s: %v", method, err)
				}
			}
			return
		}
	}
}

// open shows a file on a screen of the given width and colors, and waits until the page says that it is done.
func (b *browser) open(path string, width int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call("Page.navigate", map[string]any{"url": "file://" + path}, nil)
	b.wait(`document.readyState === "complete" && location.protocol === "file:" && document.documentElement.dataset.ready === "yes"`)
}

// wait asks until an expression is true.
func (b *browser) wait(expression string) {
	b.t.Helper()
	for {
		if b.eval(expression) == true {
			return
		}
		select {
		case <-b.ctx.Done():
			b.t.Fatalf("never true: %s; the console says %v", expression, b.console)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// eval runs an expression in the page.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails any
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	if out.ExceptionDetails != nil {
		b.t.Fatalf("%s: %v", expression, out.ExceptionDetails)
	}
	return out.Result.Value
}

// shoot keeps a picture of the whole page, where SHADOWTAPE_SHOTS names a directory: for eyes.
func (b *browser) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("SHADOWTAPE_SHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data []byte }
	b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "format": "png"}, &shot)
	if err := os.WriteFile(filepath.Join(dir, name+".png"), shot.Data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// print makes a PDF of the page on A4.
func (b *browser) print() []byte {
	b.t.Helper()
	var pdf struct{ Data string }
	b.call("Page.printToPDF", map[string]any{"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": true}, &pdf)
	out, err := base64.StdEncoding.DecodeString(pdf.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// drag moves the mouse with its button down, in the page's pixels.
func (b *browser) drag(x0, y0, x1, y1 float64) {
	b.t.Helper()
	mouse := func(kind string, x, y float64, buttons int) {
		b.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1}, nil)
	}
	mouse("mouseMoved", x0, y0, 0)
	mouse("mousePressed", x0, y0, 1)
	mouse("mouseMoved", (x0+x1)/2, (y0+y1)/2, 1)
	mouse("mouseMoved", x1, y1, 1)
	mouse("mouseReleased", x1, y1, 0)
}
