package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/objects/s3test"
)

// TestVerbsOnObjectStorage takes a trace through the verbs with every name in object storage: ours in memory, and those of others that are
// installed.
func TestVerbsOnObjectStorage(t *testing.T) {
	t.Run("in memory", func(t *testing.T) { verbsOnObjectStorage(t, s3test.New(t)) })
	for _, name := range s3test.Installed {
		t.Run(name, func(t *testing.T) { verbsOnObjectStorage(t, s3test.Start(t, name)) })
	}
}

// verbsOnObjectStorage holds the answers against those of the same files in directories.
func verbsOnObjectStorage(t *testing.T, s interface{ Uploads() int }) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	local, remote := filepath.Join(dir, "local"), "s3://traces/e2e"
	csv := filepath.Join("..", "..", "samples", "traces", "azure-conv-25s.csv")
	ok := func(code int, args ...string) string {
		t.Helper()
		got, out, errs := shadowtape(t, args...)
		if got != code {
			t.Fatalf("%q: exit %d, want %d: %s%s", args, got, code, out, errs)
		}
		return out
	}
	if err := os.Mkdir(local, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{local, remote} {
		ok(exitGood, "import", "azure-llm", csv, "-o", at+"/trace")
		ok(exitGood, "simulate", at+"/trace", "--profile", "llama-3.1-8b-h100", "-o", at+"/run1")
		ok(exitGood, "simulate", at+"/run1", "--profile", "llama-3.1-8b-h100", "--slowdown", "1.5", "-o", at+"/run2")
	}
	for _, verb := range [][]string{{"inspect", "trace"}, {"inspect", "trace", "--json"}, {"inspect", "run1", "--privacy"}, {"analyze", "run1", "--json"}, {"diff", "run1", "run2", "--json"}, {"fit", "trace", "-o", "model"},
		{"export", "csv", "trace", "-o", "model"}, {"baseline", "save", "run1", "-o", "model"}} {
		var texts []string
		for _, at := range []string{local, remote} {
			file := filepath.Join(t.TempDir(), "model.json")
			args := []string{verb[0]}
			for _, a := range verb[1:] {
				switch {
				case a == "model":
					a = file
				case a == "trace" || strings.HasPrefix(a, "run"):
					a = at + "/" + a
				}
				args = append(args, a)
			}
			code, out, errs := shadowtape(t, args...)
			if code != exitGood && code != exitInconclusive {
				t.Fatalf("%q: exit %d: %s", args, code, errs)
			}
			if verb[0] == "export" {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				out = string(b)
			}
			texts = append(texts, strings.ReplaceAll(strings.ReplaceAll(out, at, "AT"), file, "FILE"))
		}
		if verb[0] == "fit" || strings.Contains(texts[0], "created") { // says when
			continue
		}
		if texts[0] != texts[1] {
			t.Errorf("%q: from a directory\n%s\nfrom object storage\n%s", verb, texts[0], texts[1])
		}
	}
	ok(exitFailed, "simulate", remote+"/trace", "--profile", "llama-3.1-8b-h100", "-o", remote+"/run1")
	ok(exitGood, "simulate", remote+"/trace", "--profile", "llama-3.1-8b-h100", "-o", remote+"/run1", "--force")
	ok(exitUsage, "sweep", "--target", "http://127.0.0.1:1", "--rate", "1", "--input", "1", "--output", "1", "--duration", "1s", "-o", remote+"/sweep")
	ok(exitFailed, "repair", remote+"/trace")
	target, _ := startSim(t, "--ttft", "1ms", "--itl", "1ms")
	ok(exitGood, "replay", remote+"/trace", "--target", target, "--max-requests", "5", "--speed", "20", "-o", remote+"/run3", "--allow-invalid")
	if tr, err := formats.Open(remote + "/run3"); err != nil || tr.Rows != 5 || tr.Manifest == nil || tr.Manifest.Label != "run3" {
		t.Errorf("%+v %v", tr, err)
	}
	start := time.Now().Add(4 * time.Second).UTC().Format(time.RFC3339)
	var shards sync.WaitGroup
	for i := 1; i <= 2; i++ {
		shards.Go(func() {
			args := []string{"replay", remote + "/trace", "--shard", fmt.Sprintf("%d/2", i), "--start-at", start, "--target", target, "--max-requests", "20", "--speed", "50", "-o", fmt.Sprintf("%s/shards/%d", remote, i), "--allow-invalid"}
			if code, out, errs := shadowtape(t, args...); code != exitGood {
				t.Errorf("%q: exit %d: %s%s", args, code, out, errs)
			}
		})
	}
	shards.Wait()
	ok(exitGood, "merge", remote+"/shards", "-o", remote+"/merged", "--allow-invalid")
	if tr, err := formats.Open(remote + "/merged"); err != nil || tr.Rows != 20 || len(tr.Manifest.Shards) != 2 {
		t.Errorf("merged: %+v %v", tr, err)
	}
	plan := filepath.Join(dir, "plan")
	deployment := write(t, filepath.Join(dir, "d.yaml"), simDeployment)
	ok(exitGood, "gate", "--base", deployment, "--aa", "--trace", remote+"/trace", "--plan", "-o", plan)
	if left, err := filepath.Glob(filepath.Join(dir, "shadowtape-*")); err != nil || len(left) > 0 {
		t.Errorf("left on this machine: %q %v", left, err)
	}
	if s.Uploads() != 0 {
		t.Error("uploads that are not finished")
	}
}

// TestRecordIntoObjectStorage: two recorders write under one prefix, one of them while the storage is away; the prefix reads as one trace.
func TestRecordIntoObjectStorage(t *testing.T) {
	s := s3test.New(t)
	spool := t.TempDir()
	target, _ := startSim(t, "--ttft", "1ms", "--itl", "1ms")
	trace := smallTrace(t, 30, 5*time.Millisecond, func(int, *formats.Exchange) {})
	key := keyFile(t)
	var away atomic.Bool
	s.Break(func(r *http.Request) int {
		if away.Load() {
			return http.StatusForbidden
		}
		return 0
	})
	for i, node := range []string{"node-a", "node-b"} {
		away.Store(i == 1)
		p := startRecording(t, "--listen", "127.0.0.1:0", "--upstream", target, "-o", "s3://traces/prod", "--node", node, "--key-file", key, "--spool", spool)
		if code, out, errs := shadowtape(t, "replay", trace, "--target", p.base, "-o", filepath.Join(t.TempDir(), "run"), "--allow-invalid"); code != exitGood {
			t.Fatalf("replay: %d %s %s", code, out, errs)
		}
		if i == 1 {
			time.AfterFunc(500*time.Millisecond, func() { away.Store(false) })
		}
		code, out, errs := p.end()
		if code != exitGood || !strings.Contains(errs, "shipped 2 objects") {
			t.Fatalf("record: %d %s %s", code, out, errs)
		}
	}
	if es, err := os.ReadDir(spool); err != nil || len(es) > 0 {
		t.Errorf("left in the spool: %v %v", es, err)
	}
	tr, err := formats.Open("s3://traces/prod")
	if err != nil {
		t.Fatal(err)
	}
	rows, last := map[string]int{}, int64(0)
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		if rows[x.Node]++; x.Endpoint != formats.EndpointCompletions {
			rows[x.Node]-- // what the replayer asks of the target before it begins
		}
		last = max(last, x.ExchangeID)
	}
	if rows["node-a"] < 30 || rows["node-b"] < 30 || tr.Header.HashKeyID == "" {
		t.Errorf("%v of %d rows, key %q", rows, tr.Rows, tr.Header.HashKeyID)
	}
	if code, out, errs := shadowtape(t, "replay", "s3://traces/prod", "--target", target, "--speed", "10", "-o", filepath.Join(t.TempDir(), "run"), "--allow-invalid"); code != exitGood {
		t.Errorf("replay of the prefix: %d %s %s", code, out, errs)
	}
}

// TestRecorderThatDiedIsShipped: what a killed recorder left in the spool is repaired and shipped by the next.
func TestRecorderThatDiedIsShipped(t *testing.T) {
	s3test.New(t)
	spool := t.TempDir()
	dead := filepath.Join(spool, "node-a-20261130T000000.000Z")
	w, err := formats.Create(dead, formats.Header{SourceKind: "proxy"}, formats.SegmentOptions{Journal: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		if err := w.Write(&formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: int64(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	crash(t, dead, w)
	target, _ := startSim(t)
	p := startRecording(t, "--listen", "127.0.0.1:0", "--upstream", target, "-o", "s3://traces/prod", "--spool", spool)
	if code, out, errs := p.end(); code != exitGood || !strings.Contains(errs, "an earlier recorder left") {
		t.Fatalf("record: %d %s %s", code, out, errs)
	}
	if code, out, errs := shadowtape(t, "inspect", "s3://traces/prod", "--json"); code != exitGood || !strings.Contains(out, `"exchanges": 7`) {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

// crash leaves a directory as the death of its writer would: the journal is there, the lock is not.
func crash(t *testing.T, dir string, w *formats.Writer) {
	t.Helper()
	copied := dir + ".copy"
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(copied, dir); err != nil {
		t.Fatal(err)
	}
}

// TestRecordIntoInstalledStorage: two recorders write under one prefix of a storage of others; while the second does, it is down, and comes
// up again.
func TestRecordIntoInstalledStorage(t *testing.T) {
	for _, name := range s3test.Installed {
		t.Run(name, func(t *testing.T) {
			s := s3test.Start(t, name)
			spool := t.TempDir()
			target, _ := startSim(t, "--ttft", "1ms", "--itl", "1ms")
			trace := smallTrace(t, 30, 5*time.Millisecond, func(int, *formats.Exchange) {})
			key := keyFile(t)
			down := []bool{false, true}
			if name == "moto_server" { // it forgets
				down[1] = false
			}
			for i, node := range []string{"node-a", "node-b"} {
				p := startRecording(t, "--listen", "127.0.0.1:0", "--upstream", target, "-o", "s3://traces/prod", "--node", node, "--key-file", key, "--spool", spool, "--segment-age", "100ms")
				if down[i] {
					s.Stop()
				}
				if code, out, errs := shadowtape(t, "replay", trace, "--target", p.base, "-o", filepath.Join(t.TempDir(), "run"), "--allow-invalid"); code != exitGood {
					t.Fatalf("replay: %d %s %s", code, out, errs)
				}
				if down[i] {
					time.AfterFunc(500*time.Millisecond, s.Restart)
				}
				if code, out, errs := p.end(); code != exitGood || !strings.Contains(errs, "shipped ") {
					t.Fatalf("record: %d %s %s", code, out, errs)
				}
			}
			if es, err := os.ReadDir(spool); err != nil || len(es) > 0 {
				t.Errorf("left in the spool: %v %v", es, err)
			}
			tr, err := formats.Open("s3://traces/prod")
			if err != nil {
				t.Fatal(err)
			}
			rows := map[string]int{}
			for x, err := range tr.All() {
				if err != nil {
					t.Fatal(err)
				}
				rows[x.Node]++
			}
			if rows["node-a"] < 30 || rows["node-b"] < 30 || s.Uploads() != 0 {
				t.Errorf("%v of %d rows, %q", rows, tr.Rows, s.Keys())
			}
			for _, args := range [][]string{{"inspect", "s3://traces/prod", "--json"}, {"analyze", "s3://traces/prod", "--json"}, {"replay", "s3://traces/prod", "--target", target, "--speed", "10", "-o", "s3://traces/run", "--allow-invalid"}, {"inspect", "s3://traces/run"}} {
				if code, out, errs := shadowtape(t, args...); code != exitGood {
					t.Errorf("%q: %d %s %s", args, code, out, errs)
				}
			}
			for _, c := range []struct{ secret, where, want string }{{"wrong", "s3://traces/prod", "AWS_SECRET_ACCESS_KEY"}, {"testtest", "s3://nowhere/prod", "there is no bucket nowhere"}} {
				if t.Setenv("AWS_SECRET_ACCESS_KEY", c.secret); name == "moto_server" && c.secret == "wrong" {
					continue // it lets anybody in
				}
				for _, args := range [][]string{{"inspect", c.where}, {"analyze", c.where}, {"replay", c.where, "--target", target, "-o", filepath.Join(t.TempDir(), "x")}, {"merge", c.where, "-o", filepath.Join(t.TempDir(), "x")},
					{"simulate", trace, "--profile", "llama-3.1-8b-h100", "-o", c.where}} {
					if code, out, errs := shadowtape(t, args...); code == exitGood || !strings.Contains(errs, c.want) || strings.Count(errs, "shadowtape: ") != 1 {
						t.Errorf("%q: %d %s %s", args, code, out, errs)
					}
				}
			}
		})
	}
}
