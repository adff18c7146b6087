package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// pushed is a report with labels that need care.
func pushed(t *testing.T) *Report {
	t.Helper()
	b := newLab(1.2)
	r, _, err := Gate(t.Context(), b.launch, b.options())
	if err != nil {
		t.Fatal(err)
	}
	r.Candidate, r.Base = "pr, of \"x\" = 1\\", "main"
	return &r
}

// fields reads a message's fields.
func fields(t *testing.T, b []byte, f func(protowire.Number, []byte)) {
	t.Helper()
	for len(b) > 0 {
		n, typ, k := protowire.ConsumeTag(b)
		if k < 0 {
			t.Fatal("a broken tag")
		}
		b = b[k:]
		k = protowire.ConsumeFieldValue(n, typ, b)
		if k < 0 {
			t.Fatal("a broken field")
		}
		v := b[:k]
		if typ == protowire.BytesType {
			v, _ = protowire.ConsumeBytes(b)
		}
		f(n, v)
		b = b[k:]
	}
}

// TestRemoteWriteSaysTheReport reads what is sent back and finds each figure, its labels in order.
func TestRemoteWriteSaysTheReport(t *testing.T) {
	var body []byte
	var head http.Header
	status := http.StatusNoContent
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		head = r.Header
		w.WriteHeader(status)
		io.WriteString(w, "out of\norder")
	}))
	defer s.Close()
	r, at := pushed(t), time.UnixMilli(1_700_000_000_123)
	if err := (Pusher{Token: "t"}).RemoteWrite(t.Context(), s.URL+"/api/v1/write", r, at); err != nil {
		t.Fatal(err)
	}
	if head.Get("Content-Encoding") != "snappy" || head.Get("Content-Type") != "application/x-protobuf" || head.Get("X-Prometheus-Remote-Write-Version") != "0.1.0" || head.Get("Authorization") != "Bearer t" {
		t.Errorf("%v", head)
	}
	plain, err := snappy.Decode(nil, body)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	fields(t, plain, func(_ protowire.Number, series []byte) {
		key, last := "", ""
		fields(t, series, func(n protowire.Number, m []byte) {
			if n == seriesLabels {
				var name, value string
				fields(t, m, func(n protowire.Number, v []byte) {
					if n == labelName {
						name = string(v)
					} else {
						value = string(v)
					}
				})
				if name <= last || value == "" {
					t.Errorf("label %q after %q, %q", name, last, value)
				}
				last = name
				if name == "__name__" || name == "metric" {
					key += value + " "
				}
				if name == "candidate" && value != r.Candidate {
					t.Errorf("%q", value)
				}
				return
			}
			var value float64
			var stamp uint64
			fields(t, m, func(n protowire.Number, v []byte) {
				if n == sampleValue {
					bits, _ := protowire.ConsumeFixed64(v)
					value = math.Float64frombits(bits)
				} else {
					stamp, _ = protowire.ConsumeVarint(v)
				}
			})
			if stamp != 1_700_000_000_123 {
				t.Errorf("stamp %d", stamp)
			}
			got[key] = value
		})
	})
	if len(got) != len(r.samples()) || got["shadowtape_gate_state "] != 3 {
		t.Errorf("%d series of %d: %v", len(got), len(r.samples()), got)
	}
	status = http.StatusBadRequest
	if err := (Pusher{}).RemoteWrite(t.Context(), s.URL+"/secret?key=secret", r, at); err == nil || !strings.Contains(err.Error(), "HTTP 400: out of order") || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
	s.Close()
	for _, to := range []string{strings.Replace(s.URL, "//", "//user:secret@", 1) + "/secret", "ftp://x/secret", "http://", ":secret"} {
		if err := (Pusher{}).Influx(t.Context(), to, r, at); err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", to, err)
		}
	}
}

// database starts a program that is a database until the test ends, and waits for its address to answer.
func database(t *testing.T, health string, name string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	c := exec.Command(name, args...)
	c.Stdout, c.Stderr = &said, &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
		if t.Failed() {
			t.Logf("%s: %.3000s", name, said.String())
		}
	})
	for range 1200 {
		if resp, err := http.Get(health); err == nil {
			resp.Body.Close()
			if resp.StatusCode/100 == 2 {
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s does not answer: %.3000s", name, said.String())
}

func needProgram(t *testing.T, name, debian string) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("SKIPPED by -short: starts a %s", name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIPPED LOUDLY: no %s here (Debian: apt install %s): what it takes was not tested", name, debian)
	}
	return path
}

func loopback(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func ask(t *testing.T, to string, into any) {
	t.Helper()
	resp, err := http.Get(to)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v: %s", to, err, b)
	}
}

// TestARealPrometheusTakesIt writes to Debian's Prometheus and asks it back; it also scrapes the file that node_exporter would read.
func TestARealPrometheusTakesIt(t *testing.T) {
	program := needProgram(t, "prometheus", "prometheus")
	r := pushed(t)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0")
		r.OpenMetrics(w)
	}))
	defer page.Close()
	dir, address := t.TempDir(), loopback(t)
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - {job_name: textfile, static_configs: [{targets: [%q]}]}\n", strings.TrimPrefix(page.URL, "http://"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	base := "http://" + address
	database(t, base+"/-/ready", program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--web.enable-remote-write-receiver")
	if err := (Pusher{}).RemoteWrite(t.Context(), base+"/api/v1/write", r, time.Now()); err != nil {
		t.Fatal(err)
	}
	value := func(query string) (n int, labels map[string]string, v string) {
		var answer struct {
			Data struct {
				Result []struct {
					Metric map[string]string
					Value  [2]any
				}
			}
		}
		ask(t, base+"/api/v1/query?query="+url.QueryEscape(query), &answer)
		for _, x := range answer.Data.Result {
			labels, v = x.Metric, fmt.Sprint(x.Value[1])
		}
		return len(answer.Data.Result), labels, v
	}
	if n, labels, v := value(`shadowtape_gate_state{job=""}`); n != 1 || v != "3" || labels["candidate"] != r.Candidate {
		t.Errorf("%d results, %v, %s", n, labels, v)
	}
	if n, _, v := value(`shadowtape_metric_change_percent{job="",metric="tpot"}`); n != 1 || v != fmt.Sprint(finding(r, "tpot").ChangePct.V) {
		t.Errorf("%d results, %s", n, v)
	}
	for range 1200 { // the scrape comes in its own time
		if n, labels, v := value(`shadowtape_gate_state{job="textfile"}`); n == 1 {
			if v != "3" || labels["candidate"] != r.Candidate {
				t.Errorf("scraped %v, %s", labels, v)
			}
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("the page was not scraped")
}

func finding(r *Report, metric string) verdict.Finding {
	for _, f := range r.Findings {
		if f.Metric == metric {
			return f
		}
	}
	return verdict.Finding{}
}

// TestARealInfluxTakesIt writes to Debian's InfluxDB and asks it back.
func TestARealInfluxTakesIt(t *testing.T) {
	program := needProgram(t, "influxd", "influxdb")
	dir, address := t.TempDir(), loopback(t)
	config := filepath.Join(dir, "influx.conf")
	text := fmt.Sprintf("reporting-disabled = true\nbind-address = %q\n[meta]\n dir = %q\n[data]\n dir = %q\n wal-dir = %q\n[http]\n bind-address = %q\n", loopback(t), dir+"/meta", dir+"/data", dir+"/wal", address)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	base := "http://" + address
	database(t, base+"/ping", program, "-config", config)
	if resp, err := http.PostForm(base+"/query", url.Values{"q": {"CREATE DATABASE perf"}}); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v %v", resp, err)
	}
	r := pushed(t)
	if err := (Pusher{}).Influx(context.Background(), base+"/write?db=perf", r, time.Unix(1_700_000_000, 5)); err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Results []struct {
			Series []struct {
				Columns []string
				Values  [][]any
			}
		}
	}
	ask(t, base+"/query?db=perf&epoch=ns&q="+url.QueryEscape(`SELECT state, pairs, candidate FROM shadowtape_gate`), &answer)
	if len(answer.Results) != 1 || len(answer.Results[0].Series) != 1 {
		t.Fatalf("%+v", answer)
	}
	if got := fmt.Sprint(answer.Results[0].Series[0].Values); !strings.HasSuffix(got, fmt.Sprintf(" 3 %d %s]]", r.Pairs, strings.ReplaceAll(r.Candidate, `\`, "/"))) {
		t.Errorf("%s", got)
	}
	if err := (Pusher{}).Influx(t.Context(), base+"/write?db=absent", r, time.Now()); err == nil || !strings.Contains(err.Error(), "database not found") {
		t.Errorf("%v", err)
	}
}
