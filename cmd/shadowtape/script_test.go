package main

import (
	"strconv"
	"testing"

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
			"exitcode": exitCode,
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
