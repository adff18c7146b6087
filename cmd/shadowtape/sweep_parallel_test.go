package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/gpu"
)

// fourFreeGPUs is a machine whose four GPUs nobody uses.
type fourFreeGPUs struct{ twoGPUs }

func (fourFreeGPUs) GPUs() (out []gpu.GPU, err error) {
	for i := range 4 {
		out = append(out, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Name: "NVIDIA H200", Persistence: formats.Of(true)})
	}
	return out, nil
}

// Parallelism, the number of GPUs and the topology are axes like any other: they reach the engine's arguments and the lease, and stand in
// the results.
func TestSweepParallelism(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: needs Linux: candidates as processes are tested on Linux")
	}
	withGPUs(t, func() (gpu.Reader, error) { return fourFreeGPUs{}, nil })
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	write(t, filepath.Join(dir, "engine.yaml"), `
name: tp${matrix.tensor_parallel}-pp${matrix.pipeline_parallel}-dp${matrix.data_parallel}
process:
  - sh
  - -c
  - echo "$* $CUDA_VISIBLE_DEVICES" >> '`+seen+`'; exec '`+program(t)+`' sim --listen "127.0.0.1:$0" --profile instant
  - ${port}
  - --tensor-parallel-size=${matrix.tensor_parallel}
  - --pipeline-parallel-size=${matrix.pipeline_parallel}
  - --data-parallel-size=${matrix.data_parallel}
  - --topology=${matrix.topology}
gpus: ${matrix.gpus}
dialect: sim
health: {path: /health, interval: 20ms, timeout: 1m}
stop: 2s
warm_up: {requests: 0, duration: 0s, steady: false}
`)
	matrix := write(t, filepath.Join(dir, "matrix.yaml"), `
deploy: engine.yaml
matrix:
  tensor_parallel: [1, 2]
  pipeline_parallel: [1]
  data_parallel: [1, 2]
  gpus: [1, 2, 4]
  topology: [nvlink]
  input: 16
  output: 4
  rate: 100
exclude:
  - {tensor_parallel: 1, data_parallel: 2}
  - {tensor_parallel: 1, gpus: 2}
  - {tensor_parallel: 1, gpus: 4}
  - {tensor_parallel: 2, gpus: 1}
  - {tensor_parallel: 2, data_parallel: 1, gpus: 4}
  - {tensor_parallel: 2, data_parallel: 2, gpus: 2}
include:
  - {tensor_parallel: 2, gpus: 2, topology: pcie}
requests: 5
`)
	out := filepath.Join(dir, "sweep")
	code, text, errs := invoke("sweep", matrix, "-o", out, "--lock-dir", dir, "--allow-invalid")
	if code != exitGood {
		t.Fatalf("exit %d\n%s%s", code, text, errs)
	}
	b, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		got = append(got, strings.Join(f[:4], " ")+" on "+fmt.Sprint(1+strings.Count(f[4], ",")))
	}
	want := []string{
		"--tensor-parallel-size=1 --pipeline-parallel-size=1 --data-parallel-size=1 --topology=nvlink on 1",
		"--tensor-parallel-size=2 --pipeline-parallel-size=1 --data-parallel-size=1 --topology=nvlink on 2",
		"--tensor-parallel-size=2 --pipeline-parallel-size=1 --data-parallel-size=2 --topology=nvlink on 4",
		"--tensor-parallel-size=2 --pipeline-parallel-size=1 --data-parallel-size=1 --topology=pcie on 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("launches\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	file, err := os.Open(filepath.Join(out, "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if head := rows[0][:5]; !slices.Equal(head, []string{"tensor_parallel", "pipeline_parallel", "data_parallel", "gpus", "topology"}) {
		t.Errorf("columns %v", rows[0])
	}
	if last := rows[len(rows)-1][:5]; !slices.Equal(last, []string{"2", "1", "1", "2", "pcie"}) {
		t.Errorf("last row %v", last)
	}
	if !strings.Contains(text, "tensor_parallel 2") || !strings.Contains(text, "topology pcie") {
		t.Errorf("the table does not name the axes:\n%s", text)
	}
}
