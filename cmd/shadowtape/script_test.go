package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets scripts and documents run the binary under test as `shadowtape`: the test binary is the program when called by that name.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"shadowtape": main})
}

// TestScripts runs whole command lines with files, pipes, signals and exit codes: one story a file.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exitcode":  exitCode,
			"listening": listening,
			"nonempty":  nonempty,
		},
		Setup: func(e *testscript.Env) error {
			e.Setenv("ADDR", "127.0.0.1:"+freePort(t))
			root, err := filepath.Abs(filepath.Join("..", ".."))
			e.Setenv("SAMPLES", filepath.Join(root, "samples"))
			e.Setenv("CAPTURES", filepath.Join(root, "recorder", "testdata"))
			return err
		},
		RequireExplicitExec: true,
	})
}

// exitCode is `exitcode N command args…`: the command must exit with N.
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode N command args")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := "0"
	if e, ok := err.(interface{ ExitCode() int }); ok {
		code = strconv.Itoa(e.ExitCode())
	} else if err != nil {
		ts.Fatalf("%v: %v", args[1:], err)
	}
	if code != args[0] {
		ts.Fatalf("%v: exit %s, want %s", args[1:], code, args[0])
	}
}

// listening is `listening ADDRESS`: it waits until something accepts connections there.
func listening(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: listening address")
	}
	for range 2400 {
		if c, err := net.Dial("tcp", args[0]); err == nil {
			c.Close()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("nothing listens on %s", args[0])
}

// nonempty is `nonempty FILE`: it waits until something stands in the file.
func nonempty(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: nonempty file")
	}
	for range 2400 {
		if info, err := os.Stat(ts.MkAbs(args[0])); err == nil && info.Size() > 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("%s stays empty", args[0])
}
