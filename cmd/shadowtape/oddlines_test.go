package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What nobody means is refused in one line that says where it is wrong, with the exit code of its kind, and leaves nothing behind.
func TestOddLines(t *testing.T) {
	dir := t.TempDir()
	trace, model, out := filepath.Join(dir, "a.trace"), filepath.Join(dir, "w.json"), filepath.Join(dir, "out")
	must(t, "synth", "--preset", "short", "--rate", "20", "--duration", "5s", "-o", trace)
	must(t, "fit", trace, "-o", model)
	was, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none")
	write(t, filepath.Join(dir, "dot.json"), ".")
	sweep := "sweep --target http://127.0.0.1:1 --input 16 --output 4 -o OUT "
	for _, c := range []struct {
		line string
		code int
		want string // in the line
	}{
		{"synth -o OUT", exitUsage, "--rate is missing"},
		{"synth MODEL --rate NaN -o OUT", exitUsage, "rate"},
		{"synth MODEL --rate 1e300 -o OUT", exitUsage, "rate"},
		{"synth MODEL --duration -1s -o OUT", exitUsage, "-1 seconds"},
		{"synth DIR/dot.json -o OUT", exitFailed, "dot.json"},
		{"synth --input uniform:9-3 --output 1 --rate 1 --duration 1s -o OUT", exitUsage, "uniform"},
		{"synth --preset short --arrival gamma:cv=NaN --rate 1 --duration 1s -o OUT", exitUsage, "cv"},
		{"synth --preset short --prefix roots=1,share=40%,block=0 --rate 1 --duration 1s -o OUT", exitUsage, "block"},
		{"synth --preset short --rate 1 --duration 1s -o NONE/x", exitFailed, "no such file or directory"},
		{"fit TRACE -o DIR/sub", exitFailed, "it is a directory"},
		{"fit TRACE -o DIR/sub --force", exitFailed, "it is a directory"},
		{"fit TRACE -o NONE/w.json", exitFailed, "no such file or directory"},
		{"fit TRACE -o MODEL", exitFailed, "it exists"},
		{"fit TRACE -o TRACE --force", exitUsage, "which is read"},
		{"fit TRACE -o OUT --fold 1ns", exitUsage, "fold"},
		{"fit TRACE -o OUT --lengths zipf", exitUsage, "zipf"},
		{"simulate TRACE -o OUT --speed 1e-308", exitUsage, "speed"},
		{"simulate TRACE -o OUT --pages 9223372036854775807", exitUsage, "pages"},
		{"simulate TRACE -o OUT --noise bogus=1%", exitUsage, "bogus"},
		{"simulate TRACE -o OUT --users 3 --think 1000000h", exitUsage, "think"},
		{"calibrate TRACE -o OUT --hold-out NaN", exitUsage, "holding out NaN"},
		{"inspect TRACE NONE", exitFailed, "no such file or directory"},
		{sweep + "--rate NaN", exitUsage, "rate"},
		{sweep + "--search 64..1 --slo ttft=1s", exitUsage, "search"},
		{sweep + "--rate 1 --repeats 1000000000", exitUsage, "repeats"},
		{"sweep --target bogus --input 16 --output 4 --rate 1 -o OUT", exitUsage, `target "bogus" is no http or https URL`},
		{"replay TRACE --target http://127.0.0.1: -o OUT", exitUsage, `target "http://127.0.0.1:" has a colon and no port`},
		{"replay TRACE --target https://[::1]: -o OUT", exitUsage, "has a colon and no port"},
		{"replay TRACE --target http://:8000 -o OUT", exitUsage, "names no host"},
		{"replay TRACE --target http://h:65536 -o OUT", exitUsage, "has the port 65536"},
		{"replay TRACE --target http://h --proxy http://p: -o OUT", exitUsage, `proxy "http://p:" has a colon and no port`},
		{"replay TRACE --target http://h --metrics http://h:/metrics -o OUT", exitUsage, "has a colon and no port"},
		{"replay TRACE --target http://h --gpu-metrics http://h:/metrics -o OUT", exitUsage, "has a colon and no port"},
		{"sweep --target http://127.0.0.1: --input 16 --output 4 --rate 1 -o OUT", exitUsage, "has a colon and no port"},
		{"record --listen 127.0.0.1:0 --upstream http://127.0.0.1: -o OUT", exitUsage, `--upstream "http://127.0.0.1:" has a colon and no port`},
		{"record --listen 127.0.0.1:0 --upstream http://h --metrics http://h: -o OUT", exitUsage, "has a colon and no port"},
		{"record --listen 127.0.0.1:0 --upstream http://h --gpu-metrics http://h:0 -o OUT", exitUsage, "has the port 0"},
		{"sweep --deploy NONE.yaml --input 16 --output 4 --rate 1 -o OUT", exitFailed, "no such file or directory"},
	} {
		line := strings.NewReplacer("TRACE", trace, "MODEL", model, "OUT", out, "NONE", none, "DIR", dir).Replace(c.line)
		code, text, errs := invoke(strings.Fields(line)...)
		said := slices.DeleteFunc(strings.Split(strings.TrimSpace(errs), "\n"), func(l string) bool {
			return strings.HasPrefix(l, "hint: ") || strings.HasPrefix(l, "plan: ")
		})
		if code != c.code || len(said) != 1 || !strings.HasPrefix(said[0], "shadowtape: ") || !strings.Contains(said[0], c.want) || text != "" {
			t.Errorf("%s: exit %d, want %d and one line with %q:\n%s%s", c.line, code, c.code, c.want, text, errs)
		}
		if _, err := os.Lstat(out); err == nil {
			t.Errorf("%s: left something behind", c.line)
			os.RemoveAll(out)
		}
	}
	if b, err := os.ReadFile(model); err != nil || string(b) != string(was) {
		t.Errorf("the model changed: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 4 {
		t.Errorf("left behind: %v", left)
	}
}
