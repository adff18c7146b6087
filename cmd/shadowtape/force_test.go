package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/objects/s3test"
)

// What --force replaces is not what the verb reads, and is not removed for a result that can be seen not to come.
func TestForceKeepsWhatIsRead(t *testing.T) {
	dir := t.TempDir()
	trace, run, other, file, link := filepath.Join(dir, "trace"), filepath.Join(dir, "run"), filepath.Join(dir, "other"), filepath.Join(dir, "one.parquet"), filepath.Join(dir, "link")
	writeTrace(t, trace, 30)
	writeTrace(t, file, 30)
	must(t, "simulate", trace, "-o", run)
	must(t, "simulate", trace, "-o", other)
	if err := os.Symlink(trace, link); err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		kept, says string
		code       int
		args       []string
	}{
		{trace, "which is read", exitUsage, []string{"simulate", trace, "-o", trace + "/", "--force"}},
		{trace, "which is read", exitUsage, []string{"simulate", link, "-o", trace, "--force"}},
		{file, "which is read", exitUsage, []string{"simulate", file, "-o", file, "--force"}},
		{run, "which is read", exitUsage, []string{"replay", run, "--target", "http://127.0.0.1:1", "-o", run, "--force"}},
		{run, "which is read", exitUsage, []string{"merge", run, "-o", run, "--force"}},
		{other, "not the run of a shard", exitFailed, []string{"merge", run, "-o", other, "--force"}},
		{trace, "no such file", exitFailed, []string{"import", "azure-llm", filepath.Join(dir, "none.csv"), "-o", trace, "--force"}},
		{trace, "which is read", exitUsage, []string{"import", "rows", filepath.Join(trace, "trace.json"), "-o", trace, "--force"}},
	} {
		if code, _, errs := invoke(v.args...); code != v.code || !strings.Contains(errs, v.says) {
			t.Errorf("%v: exit %d, %s", v.args, code, errs)
		}
		tr, err := formats.Open(v.kept)
		if err != nil || tr.Rows != 30 {
			t.Fatalf("%v: what was there is gone: %v", v.args, err)
		}
		tr.Close()
	}
	must(t, "simulate", trace, "-o", run, "--force")
}

// What --force replaces is there until the new one is whole: whatever comes in between, the old one is as it was, and nothing is left beside.
func TestForceReplacesWhatIsWhole(t *testing.T) {
	store := s3test.New(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	wrong, results, capture := filepath.Join(dir, "wrong.csv"), filepath.Join(dir, "wrong.json"), filepath.Join(dir, "wrong.pcap")
	for _, name := range []string{wrong, results, capture} {
		if err := os.WriteFile(name, []byte("a,b\n1,2\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	good := filepath.Join("..", "..", "samples", "traces", "azure-conv-25s.csv")
	for _, at := range []string{filepath.Join(dir, "here"), "s3://traces/there"} {
		if !formats.Remote(at) {
			if err := os.Mkdir(at, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		trace, one, run := at+"/trace", at+"/one.parquet", at+"/run"
		must(t, "import", "azure-llm", good, "-o", trace)
		must(t, "import", "azure-llm", good, "-o", one)
		must(t, "simulate", trace, "-o", run)
		first, err := formats.Open(trace)
		if err != nil {
			t.Fatal(err)
		}
		rows := first.Rows
		first.Close()
		for _, args := range [][]string{
			{"import", "azure-llm", wrong, "-o", trace, "--force"},
			{"import", "azure-llm", wrong, "-o", one, "--force"},
			{"import", "auto", wrong, "-o", trace, "--force"},
			{"import-result", "vllm-bench", results, "-o", run, "--force"},
			{"record", "--pcap", capture, "-o", trace, "--force"},
			{"replay", good, "--target", "http://127.0.0.1:1", "-o", run, "--force"},
			{"diff", trace, run}, {"replay", trace, "--target", "http://127.0.0.1:1", "-o", run, "--force"},
			{"simulate", good, "-o", run, "--force"},
			{"simulate", trace, "--state-log", filepath.Join(dir, "no", "where"), "-o", run, "--force"},
			{"merge", run, run, "-o", run, "--force"},
			{"synth", wrong, "-o", trace, "--force"},
		} {
			code, _, errs := invoke(args...)
			if code != exitFailed && code != exitUsage {
				t.Errorf("%v: exit %d, %s", args, code, errs)
			}
			for _, where := range []string{trace, one, run} {
				tr, err := formats.Open(where)
				if err != nil || tr.Rows != rows {
					t.Fatalf("%v: %s is gone: %v", args, where, err)
				}
				tr.Close()
			}
		}
		must(t, "synth", "--preset", "short", "--rate", "2", "--requests", "7", "-o", trace, "--force")
		must(t, "synth", "--preset", "short", "--rate", "2", "--requests", "7", "-o", one, "--force")
		must(t, "simulate", trace, "-o", run, "--force")
		for _, where := range []string{trace, one, run} {
			tr, err := formats.Open(where)
			if err != nil || tr.Rows != 7 {
				t.Fatalf("%s was not replaced: %v", where, err)
			}
			if tr.Manifest != nil && tr.Manifest.Label != "run" {
				t.Errorf("its label is %q", tr.Manifest.Label)
			}
			tr.Close()
		}
	}
	for _, places := range []string{filepath.Join(dir, "here"), os.Getenv("TMPDIR")} {
		es, err := os.ReadDir(places)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			if strings.HasPrefix(e.Name(), ".") || places != filepath.Join(dir, "here") {
				t.Errorf("%s is left in %s", e.Name(), places)
			}
		}
	}
	if store.Uploads() != 0 {
		t.Error("uploads that are not finished")
	}
}

// A recording has its place from the start: the old one goes when the new one has begun, and comes back where it cannot begin. Text that was
// kept beside it too.
func TestForceOfARecording(t *testing.T) {
	dir := t.TempDir()
	trace, bodies := filepath.Join(dir, "trace"), filepath.Join(dir, "bodies.jsonl")
	writeTrace(t, trace, 30)
	line := `{"exchange_id":1,"body":{}}` + "\n"
	if err := os.WriteFile(bodies, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, args := range [][]string{
		{"record", "--listen", taken.Addr().String(), "--upstream", "http://127.0.0.1:1", "-o", trace, "--keep-bodies", bodies, "--force"},
		{"record", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--segment-size", "-5", "-o", trace, "--keep-bodies", bodies, "--force"},
		{"record", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "-o", dir, "--keep-bodies", bodies, "--force"}, // it holds the bodies, which are no trace
	} {
		if code, _, errs := invoke(args...); code == exitGood {
			t.Errorf("%v: %s", args, errs)
		}
		tr, err := formats.Open(trace)
		if err != nil || tr.Rows != 30 {
			t.Fatalf("%v: the trace is gone: %v", args, err)
		}
		tr.Close()
		if b, err := os.ReadFile(bodies); err != nil || string(b) != line {
			t.Fatalf("%v: the bodies are gone: %q, %v", args, b, err)
		}
	}
	must(t, "record", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "-o", trace, "--keep-bodies", bodies, "--duration", "10ms", "--force")
	if tr, err := formats.Open(trace); err != nil || tr.Rows != 0 {
		t.Errorf("the trace was not replaced: %v", err)
	}
	if b, err := os.ReadFile(bodies); err != nil || len(b) > 0 {
		t.Errorf("the bodies were not replaced: %q, %v", b, err)
	}
	es, err := os.ReadDir(dir)
	if err != nil || len(es) != 2 {
		t.Errorf("%v are left, %v", es, err)
	}
}

// Nothing is said of a candidate that has no answers, whichever side it stands on; a load without end is refused; a trace is not exported into
// itself.
func TestNonsenseIsRefused(t *testing.T) {
	dir := t.TempDir()
	csv, trace, run := filepath.Join(dir, "a.csv"), filepath.Join(dir, "trace"), filepath.Join(dir, "run")
	if err := os.WriteFile(csv, []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.6805900,374,44\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	must(t, "import", "azure-llm", csv, "-o", trace)
	must(t, "simulate", trace, "-o", run)
	for _, v := range []struct {
		says string
		code int
		args []string
	}{
		{"trace does not say when its answers came", exitFailed, []string{"diff", run, trace}},
		{"trace does not say when its answers came", exitFailed, []string{"diff", trace, run}},
		{"--policy is for launches", exitUsage, []string{"diff", "--base", run, "--candidate", run, "--policy", "threshold:x"}},
		{"--db is for launches", exitUsage, []string{"diff", run, run, "--db", "/nope"}},
		{"negative", exitUsage, []string{"diff", run, run, "--gpu-hour-price", "NaN"}},
		{"a second", exitUsage, []string{"synth", "--preset", "short", "--rate", "1e308", "--duration", "1s", "-o", filepath.Join(dir, "s")}},
		{"which is read", exitUsage, []string{"export", "jsonl", trace, "-o", filepath.Join(trace, "exchanges-00001.parquet"), "--force"}},
	} {
		if code, _, errs := invoke(v.args...); code != v.code || !strings.Contains(errs, v.says) {
			t.Errorf("%v: exit %d, %s", v.args, code, errs)
		}
	}
	if tr, err := formats.Open(trace); err != nil || tr.Rows != 2 {
		t.Errorf("the trace is gone: %v", err)
	}
}

// TestLostSegments: every verb says that a trace has not the rows that it counts, and a run of which some are gone is not valid.
func TestLostSegments(t *testing.T) {
	dir := t.TempDir()
	trace, run := filepath.Join(dir, "trace"), filepath.Join(dir, "run")
	w, err := formats.Create(trace, formats.Header{}, formats.SegmentOptions{MaxRows: 10})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		if err := w.Write(&formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: int64(i+1) * 1e8, InputTokens: formats.Of[int64](20), OutputTokens: formats.Of[int64](4), Endpoint: formats.EndpointCompletions,
			SentNS: formats.Of[int64](0), FirstTokenNS: formats.Of[int64](1e7), LastTokenNS: formats.Of[int64](4e7), EndNS: formats.Of[int64](5e7), EndReason: formats.EndComplete, Status: formats.Of[int32](200)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	must(t, "simulate", trace, "-o", run)
	if err := os.Remove(filepath.Join(trace, "exchanges-00002.parquet")); err != nil {
		t.Fatal(err)
	}
	says := "trace.json counts 30 exchanges written, and 20 are here"
	for _, args := range [][]string{
		{"inspect", trace}, {"inspect", trace, "--json"}, {"inspect", trace, "--privacy"}, {"analyze", trace}, {"fit", trace, "-o", filepath.Join(dir, "w.json")}, {"export", "jsonl", trace, "-o", filepath.Join(dir, "x.jsonl")},
		{"simulate", trace, "-o", filepath.Join(dir, "again")}, {"replay", trace, "--target", "http://127.0.0.1:1", "-o", filepath.Join(dir, "r")},
		{"gate", "--base", "b.yaml", "--candidate", "c.yaml", "--trace", trace, "-o", filepath.Join(dir, "g")},
	} {
		_, out, errs := invoke(args...)
		if flat := strings.Join(strings.Fields(out+errs), " "); !strings.Contains(flat, says) && !strings.Contains(flat, "trace.json counts 30 exchanges written, and 20") {
			t.Errorf("%v: %s%s", args, out, errs)
		}
	}
	if err := os.Remove(filepath.Join(run, "exchanges-00001.parquet")); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := invoke("analyze", run); code != exitInvalid || !strings.Contains(strings.Join(strings.Fields(out), " "), "counts 30 exchanges written, and 0") {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// TestNothingIsOverwritten: no file that a verb is asked to write takes the place of one that is there, unless --force says so, and that is
// known before the work.
func TestNothingIsOverwritten(t *testing.T) {
	dir := t.TempDir()
	trace, mine, db := filepath.Join(dir, "trace"), filepath.Join(dir, "mine.csv"), filepath.Join(dir, "history")
	writeTrace(t, trace, 30)
	runs := launches(t, 2, 1)
	must(t, "history", "add", runs[0], "--db", db)
	if err := os.WriteFile(mine, []byte("precious"), 0o666); err != nil {
		t.Fatal(err)
	}
	launched := []string{"diff", "--base", runs[0], "--base", runs[0], "--candidate", runs[1], "--candidate", runs[1]}
	gate := []string{"gate", "--base", "b.yaml", "--candidate", "c.yaml", "--trace", trace, "-o", filepath.Join(dir, "g")}
	var calls [][]string
	for _, flag := range []string{"--md", "--html", "--junit", "--annotations", "--openmetrics", "--influx"} {
		calls = append(calls, append(launched[:len(launched):len(launched)], flag, mine), append(gate[:len(gate):len(gate)], flag, mine))
	}
	for _, flag := range []string{"--md", "--html", "--rows", "--openmetrics"} {
		calls = append(calls, []string{"analyze", runs[0], flag, mine})
	}
	for _, args := range append(calls,
		[]string{"diff", runs[0], runs[1], "--md", mine}, []string{"diff", runs[0], runs[1], "--html", mine},
		[]string{"sim", "--emission-log", mine}, []string{"sim", "--state-log", mine},
		[]string{"simulate", trace, "-o", filepath.Join(dir, "run"), "--state-log", mine},
		[]string{"sweep", "--target", "http://127.0.0.1:1", "--input", "16", "--output", "4", "--rate", "1", "-o", filepath.Join(dir, "sweep"), "--html", mine},
		[]string{"history", "trend", "--db", db, "--html", mine}, []string{"history", "digest", "--db", db, "--md", mine},
		[]string{"fit", trace, "-o", mine}, []string{"calibrate", runs[0], "-o", mine}, []string{"export", "jsonl", trace, "-o", mine}, []string{"baseline", "save", runs[0], "-o", mine},
	) {
		code, _, errs := invoke(args...)
		if b, err := os.ReadFile(mine); code != exitFailed || !strings.Contains(errs, "exists") || !strings.Contains(errs, "--force replaces it") || string(b) != "precious" {
			t.Errorf("%v: exit %d, %q, %v\n%s", args, code, b, err, errs)
			os.WriteFile(mine, []byte("precious"), 0o666)
		}
	}
	for _, made := range []string{"g", "run", "sweep"} {
		if _, err := os.Stat(filepath.Join(dir, made)); err == nil {
			t.Errorf("%s was made before it was known", made)
		}
	}
	for _, args := range [][]string{{"history", "trend", "--db", db, "--html", mine}, {"simulate", trace, "-o", filepath.Join(dir, "run"), "--state-log", mine}} {
		must(t, append(args, "--force")...)
	}
	must(t, "simulate", trace, "-o", filepath.Join(dir, "run"), "--state-log", filepath.Join(dir, "other"), "--force")
	inside := filepath.Join(dir, "inside")
	must(t, "simulate", trace, "-o", inside, "--state-log", filepath.Join(inside, "states.csv"))
	if _, err := os.Stat(filepath.Join(inside, "states.csv")); err != nil {
		t.Error(err)
	}
}

// TestForceLeavesAreNamed: what a killed --force left is named by the next command that names the place, or deleted where that is all that was
// left to do.
func TestForceLeavesAreNamed(t *testing.T) {
	dir := t.TempDir()
	trace, left := filepath.Join(dir, "trace"), filepath.Join(dir, ".shadowtape-7")
	if err := os.Mkdir(left, 0o777); err != nil {
		t.Fatal(err)
	}
	writeTrace(t, filepath.Join(left, "trace"), 3)
	writeTrace(t, filepath.Join(left, "trace.replaced"), 3)
	for _, args := range [][]string{{"inspect", trace}, {"synth", "--preset", "short", "--rate", "2", "--requests", "7", "-o", trace, "--force"}, {"analyze", trace + "/"}} {
		if _, _, errs := invoke(args...); !strings.Contains(errs, "a --force was cut short while it replaced "+trace+": the new one is "+left+"/trace, the old one "+left+"/trace.replaced") {
			t.Errorf("%v: %s", args, errs)
		}
	}
	if err := os.RemoveAll(filepath.Join(left, "trace")); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := invoke("inspect", trace); code != exitGood || strings.Contains(errs, "warning") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("what was only to be deleted is still there")
	}
}
