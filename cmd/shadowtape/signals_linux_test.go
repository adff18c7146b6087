package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// endless starts a replay of minutes in a process of its own, and returns it once the target has answered some of its requests.
func endless(t *testing.T, out string, errs *os.File, args ...string) *exec.Cmd {
	t.Helper()
	target, log := startSim(t, "--ttft", "1ms", "--itl", "1ms")
	trace := smallTrace(t, 12000, 50*time.Millisecond, nil)
	c := child(t, errs, append([]string{"replay", trace, "--target", target, "-o", out, "--allow-invalid"}, args...)...)
	for {
		if b, _ := os.ReadFile(log); bytes.Count(b, []byte("\n")) > 20 {
			return c
		}
		if t.Context().Err() != nil || syscall.Kill(c.Process.Pid, 0) != nil {
			t.Fatal("it ended too early")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A run that a signal cuts short does not take the place of the whole one that --force would replace: both are kept, and the error says
// where. A terminal that is closed is such a signal.
func TestForceInterrupted(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			dir := t.TempDir()
			run := filepath.Join(dir, "run")
			must(t, "simulate", smallTrace(t, 7, time.Millisecond, nil), "-o", run)
			errs, err := os.Create(filepath.Join(t.TempDir(), "errs"))
			if err != nil {
				t.Fatal(err)
			}
			defer errs.Close()
			c := endless(t, run, errs, "--force")
			c.Process.Signal(s)
			c.Wait()
			said, _ := os.ReadFile(errs.Name())
			if c.ProcessState.ExitCode() != exitInterrupted || !strings.Contains(string(said), "run is as it was") {
				t.Errorf("%v: %s", c.ProcessState, said)
			}
			if m, rows := readRun(t, run); m.Kind != "simulate" || len(rows) != 7 {
				t.Errorf("the old run is gone: %s, %d rows", m.Kind, len(rows))
			}
			kept, err := filepath.Glob(filepath.Join(dir, ".shadowtape-*", "run"))
			if err != nil || len(kept) != 1 {
				t.Fatalf("%v %v", kept, err)
			}
			if m, rows := readRun(t, kept[0]); !m.Interrupted || len(rows) == 0 || !strings.Contains(string(said), kept[0]) {
				t.Errorf("%+v, %d rows: %s", m.Requests, len(rows), said)
			}
		})
	}
}

// Ctrl-C of "replay 2>&1 | tee log" ends tee too, at once: that nobody reads any more does not cut the run's end short. An answer that nobody
// reads ends as any filter's.
func TestNobodyReads(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := endless(t, run, w)
	w.Close()
	r.Close()
	c.Process.Signal(syscall.SIGTERM)
	c.Wait()
	if m, rows := readRun(t, run); !m.Interrupted || len(rows) == 0 {
		t.Errorf("%v: %+v, %d rows", c.ProcessState, m, len(rows))
	}
	r, w, err = os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	self, err := exec.LookPath("shadowtape")
	if err != nil {
		t.Fatal(err)
	}
	i := exec.Command(self, "inspect", run)
	i.Stdout = w
	var said strings.Builder
	i.Stderr = &said
	i.Run()
	w.Close()
	if i.ProcessState.ExitCode() != exitBrokenPipe || said.Len() > 0 {
		t.Errorf("%v: %s", i.ProcessState, said.String())
	}
}

// What --force replaces through a link is what the link names, where that stands: the link stays.
func TestForceThroughALink(t *testing.T) {
	dir, links := t.TempDir(), t.TempDir()
	for _, name := range []string{"trace", "trace.parquet"} {
		old, link := filepath.Join(dir, name), filepath.Join(links, name)
		writeTrace(t, old, 30)
		if err := os.Symlink(old, link); err != nil {
			t.Fatal(err)
		}
		must(t, "synth", "--preset", "short", "--rate", "2", "--requests", "7", "-o", link, "--force")
		if to, err := os.Readlink(link); err != nil || to != old {
			t.Errorf("the link is gone: %v", err)
		}
		if tr, err := formats.Open(old); err != nil || tr.Rows != 7 {
			t.Errorf("%s was not replaced: %v", old, err)
		} else {
			tr.Close()
		}
	}
}
