package deploy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	f := parse(t, `
image: vllm/vllm-openai@sha256:`+strings.Repeat("ab", 32)+`
command: [--model, /models/it, --tensor-parallel-size, "${matrix.tp}"]
gpus: ${matrix.gpus}
shm: 16g
ulimits: {memlock: -1, stack: 67108864}
dialect: vllm
health: {timeout: 20m}
stop: 0s
warm_up: {requests: 500, duration: 2m, steady: true, timeout: 10m}
env: {HF_TOKEN: "${env:HF_TOKEN}", OMP_NUM_THREADS: 1, TOKENIZERS_PARALLELISM: "false"}
volumes: ["models/it:/models/it"]
`, map[string]string{"tp": "2", "gpus": "2", "unused": "x"})
	if f.GPUs.Count != 2 || f.Command[3] != "2" || f.Shm != 16<<30 || f.Ulimits["memlock"] != "-1" || f.Health.Timeout.Or(0) != 20*time.Minute || f.Health.Interval.Or(1) != 1 || f.Stop.Or(1) != 0 ||
		*f.WarmUp.Requests != 500 || !*f.WarmUp.Steady || f.Env["OMP_NUM_THREADS"] != "1" {
		t.Errorf("%+v", f)
	}
	for _, c := range []struct {
		text string
		want GPURequest
	}{{"all", GPURequest{All: true}}, {"{count: 3}", GPURequest{Count: 3}}, {"{indices: [0, 2], free: 60g}", GPURequest{Indices: []int{0, 2}, Free: 60 << 30}},
		{"{uuids: [GPU-a-b, MIG-c]}", GPURequest{UUIDs: []string{"GPU-a-b", "MIG-c"}}}, {"0", GPURequest{}}} {
		g := parse(t, "{image: x, port: 1, gpus: "+c.text+"}", nil).GPUs
		if fmt.Sprint(g) != fmt.Sprint(c.want) {
			t.Errorf("gpus: %s gives %+v", c.text, g)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "it is empty"},
		{"list", "- a\n", "not a mapping"},
		{"two documents", "image: x\nport: 1\n---\nimage: y\n", "more than one YAML document"},
		{"broken", "image: [x\n", "line 1"},
		{"unknown field", "image: x\nport: 1\ncomand: [a]\n", `line 3: there is no field "comand"; is it "command"?`},
		{"unknown nested", "image: x\nport: 1\nhealth:\n  path: /h\n  timout: 3s\n", `line 5: there is no field "health.timout"; is it "timeout"?`},
		{"unknown in list", "image: x\nport: 1\nprepare:\n- comand: [a]\n", `line 4: there is no field "prepare.comand"`},
		{"unknown, nothing near", "image: x\nport: 1\nreplicas: 3\n", `line 3: there is no field "replicas"`},
		{"twice", "image: x\nimage: y\n", `line 2: mapping key "image" already defined at line 1`},
		{"type", "image: x\nport: many\n", `line 2: port is a whole number, not "many"`},
		{"fraction", "image: x\nport: 80.5\n", `line 2: port is a whole number, not "80.5"`},
		{"number as text", "image: x\nport: '80'\n", `line 2: port is a whole number, not the text "80"`},
		{"list of numbers", "image: x\nport: [80]\n", "line 2: port is a whole number, not a list"},
		{"negative port", "image: x\nport: -1\n", "port -1 is not a TCP port"},
		{"command is text", "image: x\nport: 1\ncommand: --model x\n", `line 3: command is a list, [a, b], not "--model x"`},
		{"words are mappings", "process: [{a: b}, '${port}']\n", "line 1: process is one value, not a mapping"},
		{"empty item", "process: [~, '${port}']\n", "line 1: process has an item without a value"},
		{"empty program", "process: ['', '${port}']\n", "the first word of process, the program, is empty"},
		{"empty process", "process: []\n", "neither an image nor a process"},
		{"zero byte in a word", "process: [\"a\\0b\", '${port}']\n", "holds a zero byte"},
		{"env is a list", "image: x\nport: 1\nenv: [A=b]\n", "line 3: env is a mapping of names to values, not a list"},
		{"env within env", "image: x\nport: 1\nenv: {A: {b: c}}\n", "line 3: env.A is one value, not a mapping"},
		{"env of the launch", "image: x\nport: 1\nenv: {SHADOWTAPE_DEPLOYMENT: x}\n", "is the launch's own"},
		{"kubernetes is text", "kubernetes: yes\n", `line 1: kubernetes is a mapping of fields, not "yes"`},
		{"all is text", "image: x\nport: 1\ngpus: {all: many}\n", "line 3: gpus.all is true or false"},
		{"gpus is a list", "image: x\nport: 1\ngpus: [0, 1]\n", "line 3: gpus is a number, all, or one of"},
		{"gpus are fractions", "image: x\nport: 1\ngpus: 1.5\n", "line 3: gpus is a number"},
		{"fewer than no gpus", "image: x\nport: 1\ngpus: -1\n", "line 3: gpus is a number"},
		{"gpu before the first", "image: x\nport: 1\ngpus: {indices: [-1]}\n", "gpus.indices: -1 is negative"},
		{"free on none", "image: x\nport: 1\ngpus: {free: 10g}\n", "memory on no GPU"},
		{"no time to be healthy", "image: x\nport: 1\nhealth: {timeout: 0s}\n", "health.timeout is 0s"},
		{"no time between polls", "image: x\nport: 1\nhealth: {interval: 0ms}\n", "health.interval is 0s"},
		{"no time to prepare", "image: x\nport: 1\nprepare: [{command: [a], timeout: 0s}]\n", "prepare.timeout of step 1 is 0s"},
		{"tag", "image: !!python/object x\nport: 1\n", "line 1: tags such as !!python/object"},
		{"merge", "<<: {image: x}\nport: 1\n", `there is no field "<<"`},
		{"nested aliases", "name: &a [x, x]\nprocess: &b [*a, *a]\n", "anchors and aliases"},
		{"tab", "image: x\nport: 1\nhealth:\n\tpath: /h\n", "line 4: found character that cannot start any token: is it a tab?"},
		{"deep", "image: " + strings.Repeat("[", 20000), "exceeded max depth"},
		{"huge", "image: x\n# " + strings.Repeat("a", 1<<20), "longer than 1048576 bytes"},
		{"not text", "\x00\x01\xff", "control characters"},
		{"place without a name", "image: ${matrix.}\nport: 1\n", "${matrix.} has no value"},
		{"never warm", "image: x\nport: 1\nwarm_up: {duration: 5m, timeout: 1m}\n", "warm_up.duration 5m0s is longer than warm_up.timeout 1m0s"},
		{"negative requests", "image: x\nport: 1\nwarm_up: {requests: -1}\n", "warm_up.requests -1 is negative"},
		{"digest cut short", "image: 'x@sha256:abc'\nport: 1\n", "is not NAME[:TAG]"},
		{"image is an address", "image: https://x/y\nport: 1\n", "named without https://"},
		{"name climbs", "image: x\nport: 1\nname: ../../etc\n", "letters, digits"},
		{"two at one place", "image: x\nport: 1\nvolumes: ['/a:/m', '/b:/m/']\n", "something is mounted at /m already"},
		{"over everything", "image: x\nport: 1\nvolumes: ['/a:/']\n", "cover the whole container"},
		{"health escape", "image: x\nport: 1\nhealth: {path: /%zz}\n", "is no path of a URL"},
		{"carriage returns", "image: x\r\nport: many\r\n", "line 2: port is a whole number"},
		{"alias", "image: &a x\nport: 1\n", "line 1: anchors"},
		{"duration", "image: x\nport: 1\nstop: 30\n", `line 3: "30" is not a time span such as 30s`},
		{"size", "image: x\nport: 1\nshm: 16q\n", `line 3: "16q" is not a size`},
		{"size overflows", "image: x\nport: 1\nshm: 9223372036854775807t\n", "is not a size"},
		{"gpus", "image: x\nport: 1\ngpus: many\n", "line 3: gpus is a number, all, or"},
		{"matrix", "image: x\nport: 1\ngpus: ${matrix.n}\n", `line 3: ${matrix.n} has no value`},
		{"neither", "port: 1\n", "neither an image nor a process"},
		{"both", "image: x\nprocess: [x]\nport: 1\n", "several of an image, a process"},
		{"kubernetes without service", "kubernetes: {manifest: x.yaml}\n", "kubernetes.service is missing"},
		{"kubernetes with gpus", "kubernetes: {service: x}\ngpus: 1\n", "gpus is said in the manifest"},
		{"bad image", "image: 'x y'\nport: 1\n", "is not NAME[:TAG]"},
		{"dialect", "image: x\nport: 1\ndialect: vlm\n", "is not one of llamacpp, lmdeploy, openai, sglang, sim, tgi, trtllm, vllm"},
		{"no port", "image: x\n", "port is missing"},
		{"port", "image: x\nport: 70000\n", "not a TCP port"},
		{"process without port", "process: [x]\n", "where does it listen"},
		{"process with shm", "process: [x, '${port}']\nshm: 1g\n", "shm belongs to an image"},
		{"secret in command", "image: x\nport: 1\ncommand: ['--api-key=${env:K}']\n", "pass secrets in env"},
		{"literal secret", "image: x\nport: 1\nenv: {HF_TOKEN: hf_abc}\n", "env HF_TOKEN: a secret is named by reference"},
		{"half secret", "image: x\nport: 1\nenv: {A: '${env:B}x'}\n", "a secret is the whole value"},
		{"env name", "image: x\nport: 1\nenv: {1A: x}\n", "no variable name"},
		{"volume", "image: x\nport: 1\nvolumes: [models]\n", "is not HOST:/CONTAINER"},
		{"volume mode", "image: x\nport: 1\nvolumes: ['a:/b:rx']\n", "not in ro or rw"},
		{"ipc", "image: x\nport: 1\nipc: shared\n", "ipc"},
		{"ulimit", "image: x\nport: 1\nulimits: {memlok: -1}\n", `ulimits has no "memlok"`},
		{"ulimit value", "image: x\nport: 1\nulimits: {nofile: '10:5'}\n", "SOFT[:HARD]"},
		{"two ways", "image: x\nport: 1\ngpus: {count: 1, indices: [0]}\n", "several of all, count"},
		{"index twice", "image: x\nport: 1\ngpus: {indices: [0, 0]}\n", "there twice"},
		{"uuid", "image: x\nport: 1\ngpus: {uuids: ['0']}\n", "identifier"},
		{"health path", "image: x\nport: 1\nhealth: {path: health}\n", "does not begin with /"},
		{"probe", "image: x\nport: 1\nprobes: {a: []}\n", `probe "a" has no command`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.text), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// A matrix value is text in one place: it cannot add fields, and numbers stay numbers.
func TestTemplateCannotInject(t *testing.T) {
	f := parse(t, "image: x\nport: 1\nname: a-${matrix.v}\n", map[string]string{"v": "b"})
	if f.Name != "a-b" {
		t.Error(f.Name)
	}
	for _, v := range []string{"x\nprocess: [rm]", "{a: b}", "[1, 2]", "&a", "*a", "!!binary aGk="} {
		f, err := Parse([]byte("image: x\nport: 1\ncommand: [\"${matrix.v}\", \"-${matrix.v}\"]\n"), map[string]string{"v": v})
		if err != nil || f.Command[0] != v || f.Command[1] != "-"+v {
			t.Errorf("%q became %v, %v", v, f, err)
		}
	}
	if got := MatrixNames([]byte("a ${matrix.b} ${matrix.a} ${matrix.b} ${env:X}")); !slices.Equal(got, []string{"b", "a"}) {
		t.Error(got)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cand.yaml")
	if err := os.WriteFile(path, []byte("image: x\nport: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Load(path, nil)
	if err != nil || f.Name != "cand" || f.path("m") != filepath.Join(dir, "m") || f.path("/m") != "/m" {
		t.Errorf("%+v %v", f, err)
	}
	if _, err := Load(filepath.Join(dir, "none.yaml"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestEngineErrors(t *testing.T) {
	for _, c := range []struct {
		err        error
		want, hint string
	}{
		{fmt.Errorf("dial unix: %w", os.ErrPermission), "permission denied", "docker group"},
		{errors.New("permission denied while trying to connect"), "permission denied", "docker group"},
		{errors.New("dial unix /x: connect: connection refused"), "nobody answers", "start Docker"},
		{errors.New("teapot"), "teapot", ""},
	} {
		err := engineError("unix:///x", c.err)
		var e *Error
		if !strings.Contains(err.Error(), c.want) || errors.As(err, &e) != (c.hint != "") || e != nil && !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%v gives %v", c.err, err)
		}
	}
	_, _, _, err := connect(t.Context(), "garbage")
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint, "tcp://HOST:PORT") {
		t.Error(err)
	}
}

func TestOwner(t *testing.T) {
	me := thisOwner()
	if got, ok := parseOwner(me.String()); !ok || got != me {
		t.Errorf("%v is read as %v", me, got)
	}
	if me.start == "" {
		t.Skip("SKIPPED: needs /proc")
	}
	for _, c := range []struct {
		name string
		o    owner
		dead bool
	}{
		{"this process", me, false},
		{"number given again", owner{me.boot, me.namespace, me.pid, "1"}, true},
		{"another namespace", owner{me.boot, "1", me.pid, "1"}, false},
		{"before a reboot", owner{"other", me.namespace, me.pid, me.start}, true},
	} {
		if c.o.dead() != c.dead {
			t.Errorf("%s: dead is %t", c.name, c.o.dead())
		}
	}
}

func TestDigestFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"config.json": "{}", "model.safetensors": "weights", "tokenizer_config.json": `{"chat_template": "hi {{x}}"}`, "a/b/deep.json": "{}", "a/b/c/too-deep.json": "{}", ".git/config.json": "{}", "README.md": "x"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d, err := digestFiles(t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	// sha256 of "{}" and of "hi {{x}}" by sha256sum
	const braces, template = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "2b04a0f1564ddabfdfcd95b1b8e85ee11d238597aed3a72950dc9941f1c84719"
	sums := d["sha256"].(map[string]any)
	if sums["config.json"] != braces || sums["a/b/deep.json"] != braces || len(sums) != 3 {
		t.Errorf("%v", sums)
	}
	if w := d["weight_bytes"].(map[string]any); w["model.safetensors"] != int64(7) || len(w) != 1 {
		t.Errorf("%v", w)
	}
	if d["chat_template_sha256"] != template {
		t.Errorf("template %v", d["chat_template_sha256"])
	}
	all, err := digestFiles(t.Context(), dir, true)
	if err != nil || len(all["sha256"].(map[string]any)) != 4 || all["weight_bytes"] != nil {
		t.Errorf("%v %v", all, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("image: x\nport: 1\n"))
	f.Add([]byte("process: [a, '${port}']\nenv: {A: '${env:B}'}\n"))
	f.Add([]byte("a: &a [*a, *a]\n"))
	f.Add([]byte("gpus: {indices: [0, ${matrix.x}]}\nprepare: [{command: [x]}]\n"))
	f.Add([]byte("<<: {image: x}\n? [a, b]\n: c\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Parse(b, map[string]string{"x": "1"})
		if err == nil && d.Validate() != nil {
			t.Error("parsed, and not valid")
		}
	})
}

// TestErrorsInOneOrder: what is wrong with a file is said in the same words in the same order, however often it is read.
func TestErrorsInOneOrder(t *testing.T) {
	text := "process: [\"\"]\ndialect: vllm\nentrypoint: [\"\"]\ncommand: [b]\nvolumes: [\"/a:/b\"]\nshm: 1g\nipc: host\nulimits: {core: \"1\"}\npull: never\nhealth: {timeout: 0s, interval: 0s}\nprobes: {a: [], b: [], c: []}\n"
	cluster := "kubernetes: {service: s}\ndialect: vllm\nentrypoint: [a]\ncommand: [b]\nipc: host\nenv: {A: b}\nprobes: {a: [x]}\ngpus: {count: 1}\ndir: d\nport: 5\n"
	for _, text := range []string{text, cluster} {
		first := ""
		for range 50 {
			_, err := Parse([]byte(text), nil)
			if err == nil || strings.Count(err.Error(), "\n") < 5 {
				t.Fatalf("%v", err)
			}
			if first == "" {
				first = err.Error()
			} else if err.Error() != first {
				t.Fatalf("%s\n--- and before\n%s", err, first)
			}
		}
	}
}
