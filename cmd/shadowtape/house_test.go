package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/shadowtape/shadowtape"

// layers says which of our packages each of the large rooms may import, the rooms' own subpackages aside. What stands in internal/ and
// is not listed here may import formats and internal packages only.
var layers = map[string][]string{
	"formats":             {},
	"recorder":            {"formats", "internal"},
	"replayer":            {"formats", "internal"},
	"analyzer":            {"formats", "internal"},
	"internal":            {"formats", "internal"},
	"internal/virtual":    {"formats", "internal", "replayer/schedule"}, // one schedule for replays and simulations
	"internal/experiment": {"formats", "internal", "replayer", "analyzer"},
	"cmd":                 {"formats", "internal", "recorder", "replayer", "analyzer"},
}

// only says which packages may import a third-party module. A module that is not listed may not be imported at all: each has its line
// in docs/ARCHITECTURE.md first.
var only = map[string][]string{
	"github.com/google/gopacket":       {"recorder"},
	"github.com/parquet-go/parquet-go": {"formats"},
	"github.com/klauspost/compress":    {"formats", "recorder", "internal/openai", "internal/experiment"},
	"google.golang.org/protobuf":       {"internal/experiment"},
	"github.com/andybalholm/brotli":    {"recorder", "internal/openai"},
	"github.com/vbauerster/mpb/v8":     {"internal/term"},
	"github.com/NVIDIA/go-nvml":        {"internal/gpu"},
	"github.com/spf13/pflag":           {"cmd"},
	"github.com/spf13/cobra":           {"cmd"},
	"gonum.org/v1/gonum":               {"internal/workload", "internal/stats", "analyzer"},
	"github.com/moby/moby/client":      {"internal/deploy"},
	"github.com/moby/moby/api":         {"internal/deploy"},
	"github.com/containerd/errdefs":    {"internal/deploy"},
	"golang.org/x/sys":                 {"recorder", "replayer", "internal/gpu", "internal/deploy", "internal/term", "internal/sim", "formats"},
	"golang.org/x/net/bpf":             {"recorder"},
	"golang.org/x/net/http2":           {"replayer/client", "test"},
	"golang.org/x/text":                {"internal/tokenizer"},
	"golang.org/x/term":                {"internal/term", "cmd"},
	"github.com/minio/minio-go/v7":     {"internal/objects"},
	"gopkg.in/yaml.v3":                 {"cmd", "internal/experiment", "internal/deploy"},
	"github.com/rogpeppe/go-internal":  {"test"},
	"github.com/google/go-cmp":         {"test"},
	"k8s.io/api":                       {"test"},
	"sigs.k8s.io/yaml":                 {"test"},
}

// absent says what a package may never import, itself and its subpackages: the invariants stated as absences.
var absent = map[string][]string{
	"analyzer":        {"net", "net/http", "os/exec"},
	"internal/engine": {"net", "net/http", "time/tzdata"},
	"internal/kv":     {"net", "net/http"},
	"internal/stats":  {module + "/formats"},
	"formats":         {"net/http", "os/exec", "log"},

	"replayer/schedule": {"net", "net/http", module + "/replayer", module + "/replayer/client", module + "/replayer/job", module + "/replayer/prompt"},
	"replayer/prompt":   {"net", "net/http", module + "/replayer", module + "/replayer/client", module + "/replayer/job", module + "/replayer/schedule"},
	"replayer/client":   {module + "/replayer", module + "/replayer/job", module + "/replayer/prompt", module + "/replayer/schedule"},
}

func within(pkg, room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") }

// roomOf returns the longest key of layers that holds pkg.
func roomOf(pkg string) string {
	best := ""
	for room := range layers {
		if within(pkg, room) && len(room) > len(best) {
			best = room
		}
	}
	return best
}

func TestImportDirection(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root && d.Name() != ".." || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		seen++
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(rel))
		test := strings.HasSuffix(path, "_test.go")
		for _, spec := range f.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if bad := checkImport(pkg, name, test); bad != "" {
				t.Errorf("%s: %s", filepath.ToSlash(rel), bad)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 10 {
		t.Fatalf("looked at %d files only: the walk has lost the repository", seen)
	}
}

// checkImport says what is wrong with pkg importing name, or "".
func checkImport(pkg, name string, test bool) string {
	if !test {
		for room, names := range absent {
			if within(pkg, room) && slices.Contains(names, name) {
				return room + " may not import " + name
			}
		}
	}
	if ours, ok := strings.CutPrefix(name, module+"/"); ok {
		room := roomOf(pkg)
		if room == "" {
			return "package " + pkg + " stands in no room of the house (layers in house_test.go)"
		}
		if within(ours, room) && ours != "internal/experiment" || test {
			return ""
		}
		allowed := slices.ContainsFunc(layers[room], func(r string) bool { return within(ours, r) })
		if !allowed || ours == "internal/experiment" && room != "cmd" {
			return room + " may not import " + ours
		}
		return ""
	}
	first, _, _ := strings.Cut(name, "/")
	if !strings.Contains(first, ".") {
		return "" // the standard library
	}
	for mod, rooms := range only {
		if !within(name, mod) {
			continue
		}
		for _, r := range rooms {
			if within(pkg, r) || r == "test" && test {
				return ""
			}
		}
		return name + " may be imported in " + strings.Join(rooms, ", ") + " only"
	}
	return name + " is not in the table of dependencies (only in house_test.go, docs/ARCHITECTURE.md)"
}

func TestCheckImport(t *testing.T) {
	for _, c := range []struct {
		pkg, name string
		test, bad bool
	}{
		{"formats", module + "/internal/stats", false, true},
		{"formats/imports", module + "/formats", false, false},
		{"recorder", module + "/replayer", false, true},
		{"replayer", module + "/analyzer", false, true},
		{"analyzer", module + "/formats", false, false},
		{"analyzer", "net/http", false, true},
		{"internal/sim", module + "/replayer", false, true},
		{"internal/experiment", module + "/replayer", false, false},
		{"internal/sim", module + "/internal/experiment", false, true},
		{"cmd/shadowtape", module + "/internal/experiment", false, false},
		{"recorder", "github.com/google/gopacket/layers", false, false},
		{"replayer", "github.com/google/gopacket", false, true},
		{"replayer/prompt", "net/http", false, true},
		{"replayer/client", module + "/replayer/schedule", false, true},
		{"replayer/job", module + "/replayer/client", false, false},
		{"cmd/shadowtape", "github.com/spf13/cobra", false, false},
		{"analyzer", "github.com/spf13/cobra", false, true},
		{"formats", "github.com/google/go-cmp/cmp", true, false},
		{"formats", "github.com/google/go-cmp/cmp", false, true},
		{"formats", "example.org/unknown", false, true},
	} {
		if got := checkImport(c.pkg, c.name, c.test); (got != "") != c.bad {
			t.Errorf("checkImport(%q, %q, test=%t) = %q", c.pkg, c.name, c.test, got)
		}
	}
}

// TestNoMachineTraces keeps what is tracked free of this or any developer's machine.
func TestNoMachineTraces(t *testing.T) {
	forbidden := []string{"/wo" + "rk/", ".." + "/shared"}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == "bin" || d.Name() == "demo" {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".md", ".yaml", ".yml", ".sh", ".json", ".txt", ".toml", ".service", "":
		default:
			return nil
		}
		if info, err := d.Info(); err != nil || info.Size() > 4<<20 {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, f := range forbidden {
			if strings.Contains(string(b), f) {
				t.Errorf("%s holds %q", path, f)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
