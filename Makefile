# Shadowtape. `make help` lists what can be done; `make demo` and `make test` are the two commands of a fresh machine.
SHELL   := bash
GO      ?= go
DEMO    ?= demo
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# go-nvml's generated code calls what NVIDIA has deprecated; gcc would say so on every build.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.DEFAULT_GOAL := help
.PHONY: help build build-nvml sim-image gpu-check demo test test-static race lint fuzz bench bench-gate release release-check soak bench-record bench-live bench-proxy bench-neighbor bench-analyze bench-accuracy bench-lag fixed-length clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the one static binary, bin/shadowtape
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/shadowtape ./cmd/shadowtape

build-nvml: ## build bin/shadowtape with NVML, for machines with NVIDIA GPUs (needs gcc, Linux)
	@CGO_ENABLED=1 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/shadowtape ./cmd/shadowtape

sim-image: build ## build the container image of the simulator, shadowtape-sim (needs docker or podman)
	@$$(command -v docker || command -v podman) build -q -t shadowtape-sim:latest -f Dockerfile.sim .

gpu-check: ## exercise NVML and leases on a machine with NVIDIA GPUs (under three minutes); fails where there is none
	@CGO_ENABLED=1 SHADOWTAPE_GPU_CHECK=1 $(GO) test -count=1 -timeout 3m -run '^TestMachine$$' ./internal/gpu

demo: build ## the main job on the built-in simulator: replay, replay slower, diff (under two minutes)
	@DEMO='$(DEMO)' bash samples/demo/demo.sh

test: ## run all tests
	$(GO) test -timeout 25m $(TESTFLAGS) ./...

test-static: ## run the tests that need a binary without cgo: dropped privileges
	CGO_ENABLED=0 $(GO) test ./recorder/ring

race: ## run all tests under the race detector (needs gcc)
	$(GO) test -race -timeout 60m ./...

lint: ## gofmt, vet (for macOS and the benchmarks too), staticcheck, and a build without cgo
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'gofmt would change:'; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	GOOS=darwin CGO_ENABLED=0 $(GO) vet ./...
	$(GO) vet -tags bench ./cmd/shadowtape
	$(GO) tool staticcheck ./...
	CGO_ENABLED=0 $(GO) build ./...

FUZZTIME ?= 30s

fuzz: ## run every fuzz target for FUZZTIME (30s each; docs/FUZZING.md)
	@set -e; git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | while IFS=: read -r file target; do \
		echo "$$(dirname $$file) $${target#func }"; \
		$(GO) test "./$$(dirname $$file)" -run '^$$' -fuzz "^$${target#func }$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x; \
	done

bench: ## run all benchmark groups (ten minutes), and write docs/PERFORMANCE.md's tables and bench.json; GROUPS="size synth" runs some
	$(GO) run ./internal/benchreport/bench -doc docs/PERFORMANCE.md -json bench.json $(GROUPS)

bench-gate: ## hold our own speed, as ratios measured in one run, against samples/bench/limits.json (a minute or two)
	$(GO) run ./internal/benchreport/bench -json bench.json -gate samples/bench/limits.json

release: ## build for linux and darwin on amd64 and arm64 into dist/, with checksums, an SBOM, man pages and completions
	@VERSION='$(VERSION)' COMMIT='$(COMMIT)' GO='$(GO)' bash samples/release/release.sh dist

SOAK ?= 30m
SOAK_RATE ?= 40

soak: ## replayer, recording proxy and simulator at steady load for SOAK (30m): memory, threads, files and goroutines stay flat, nothing is lost
	CGO_ENABLED=0 $(GO) test ./cmd/shadowtape -count 1 -timeout 0 -run '^TestSoak$$' -v -soak $(SOAK) -soak-rate $(SOAK_RATE)

release-check: ## build the release twice, in two places, and compare
	@VERSION='$(VERSION)' COMMIT='$(COMMIT)' GO='$(GO)' bash samples/release/check.sh

bench-record: ## `record --pcap` on a made capture of 1 GB, beside tcpdump and tshark on the same file (ten minutes; 2 GB of disk)
	$(GO) test ./recorder -count 1 -timeout 30m -run '^TestBenchFile$$' -v -file-mb=1024

bench-live: ## packets a second that `record --interface` takes over a veth without a drop (root)
	$(GO) test ./recorder -count 1 -timeout 10m -run '^TestBenchLive$$' -v -live-packets=1000000

bench-proxy: ## what the proxy adds to 1,000 streams of 20 tokens/s, beside nginx and the direct way, sharing two processors, and with one of its own (seven minutes)
	CGO_ENABLED=0 $(GO) test ./cmd/shadowtape -count 1 -timeout 20m -run '^TestBenchProxy$$' -v -proxy-streams=1000
	CGO_ENABLED=0 $(GO) test ./cmd/shadowtape -count 1 -timeout 20m -run '^TestBenchProxy$$' -v -proxy-streams=1000 -proxy-core
	CGO_ENABLED=0 $(GO) test ./cmd/shadowtape -count 1 -timeout 20m -run '^TestBenchProxy$$' -v -proxy-streams=1000 -proxy-core -proxy-even

bench-neighbor: ## the time between a simulator's tokens with a recorder on its interface and without (root; two minutes)
	CGO_ENABLED=0 $(GO) test -tags bench -count 1 -timeout 20m -run '^TestBenchNeighbor$$' -v ./cmd/shadowtape

.PHONY: bench-import interop interop-replays bench-beside
bench-import: ## a million rows of each format imported: rows a CPU second
	$(GO) test ./formats/foreign -run '^$$' -bench Import -benchtime 1000000x

interop-replays: ## our exports replayed by AIPerf, GuideLLM, inference-perf: is it the trace's load? (needs python3.12, network; docs/INTEROP.md)
	@bash samples/interop/replays.sh

bench-beside: ## the replayer beside AIPerf and GuideLLM at the same rates (needs python3.12, network; five minutes; docs/PERFORMANCE.md)
	@bash samples/bench/beside.sh

interop: ## real clients against real servers through the recording proxy (needs python3, node, network; docs/INTEROP.md)
	@bash samples/interop/interop.sh

bench-accuracy: ## the replayer's own error: its times against the simulator's emission log, at 1 to 1,000 streams
	CGO_ENABLED=0 $(GO) test -tags bench -count 1 -run TestBenchAccuracy -v ./cmd/shadowtape

bench-lag: ## how late requests leave at 100 to 5,000 a second, 10 s each (SHADOWTAPE_BENCH_SECONDS=100 for dispersion over 10 s), and in a burst
	CGO_ENABLED=0 $(GO) test -tags bench -count 1 -run TestBenchLag -v ./cmd/shadowtape

.PHONY: bench-shards bench-aggregate
bench-shards: ## one trace by one replayer and by four, four times each, against simulators of one seed (root; four minutes)
	CGO_ENABLED=0 $(GO) test -tags bench -count 1 -timeout 20m -run '^TestBenchShards$$' -v ./cmd/shadowtape

bench-aggregate: ## most requests a second, and most streams, of a valid run: by one replayer and by four in namespaces (root; four minutes)
	CGO_ENABLED=0 $(GO) test -tags bench -count 1 -timeout 20m -run '^TestBenchAggregate$$' -v ./cmd/shadowtape

bench-analyze: ## ten million exchanges summarized, beside DuckDB on the same file (needs python3 and network)
	@bash samples/bench/analyze.sh

TRACE ?= samples/traces/mooncake-conversation.parquet

fixed-length: build ## production, its replay and a fixed-length load of the same means on one page (TRACE=…; a minute; docs/FIXED_LENGTH.md)
	@samples/fixed-length/compare.sh $(TRACE) fixed-length

gate-sim: ## how often the gate's rules and the classic ones are wrong, on drawn launches (about ten minutes; docs/GATE.md)
	$(GO) run ./internal/experiment/gatesim -trials 2000

gate-virtual: ## 400 gates on identical builds, 200 on slower ones and a few on each kind of change, on the simulated engine (about ten minutes)
	SHADOWTAPE_GATES=400 $(GO) test -count 1 -timeout 0 -run '^TestGateVirtual$$' -v ./internal/experiment

clean: ## remove what build and demo made
	rm -rf bin demo dist bench.json fixed-length
