#!/usr/bin/env bash
# shadowtape beside what users run today, AIPerf and GuideLLM: the same Poisson rate against the same simulator, one after the other (make bench-beside).
# RATES, SECONDS_EACH and TOOLS change what is run; RUN is put in front of tool and simulator alike (RUN='chrt -r 1' where the machine has other work). Scratch
# Python environments go to $INTEROP_DIR and are used again; nothing of theirs is in this repository. Five minutes with the defaults, once they are made.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=${INTEROP_DIR:-${TMPDIR:-/tmp}/shadowtape-interop}
python=${PYTHON:-python3}
run=${RUN:-}
mkdir -p "$dir" && cd "$dir"
venv() {
	[ -e "$1/done" ] && return
	rm -rf "$1" && "$python" -m venv "$1" && "$1/bin/pip" -q install "${@:2}" && touch "$1/done"
}
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OPENAI_API_KEY=none
CGO_ENABLED=0 go build -C "$root" -o "$dir/shadowtape" ./cmd/shadowtape
venv aiperf aiperf
venv guidellm guidellm
[ -e tiny-hf ] || guidellm/bin/python "$root/samples/interop/tinymodel.py" hf tiny-hf
version() { "$1/bin/python" -c 'import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))' "$2"; } # ENVIRONMENT PACKAGE
port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true' EXIT

printf '%s, %s, Python %s, load average before: %s%s\n\n' "$(date -u +%F)" "$(uname -sr)" "$("$python" -c 'import platform; print(platform.python_version())')" "$(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || echo unknown)" "${run:+, $run}"
cat <<'T'
| requests/s | tool | requests | TTFT it reports, mean | in the simulator, mean | error mean | error p99 | send lag p99 | CPU time | largest process |
|---|---|---|---|---|---|---|---|---|---|
T
for rate in ${RATES:-20 100}; do
	for tool in ${TOOLS:-shadowtape aiperf guidellm}; do
		p=$(port)
		rm -f emitted.jsonl
		$run "$dir/shadowtape" sim --listen "127.0.0.1:$p" --ttft 50ms --itl 10ms --emission-log emitted.jsonl >sim.log 2>&1 &
		server=$!
		for ((i = 0; i < 100; i++)); do curl -fs -o /dev/null "http://127.0.0.1:$p/health" && break || sleep 0.1; done
		model=$(curl -s "http://127.0.0.1:$p/v1/models" | "$python" -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
		v=; [ "$tool" = shadowtape ] || v=$(version "$tool" "$tool")
		$run "$python" "$here/beside.py" "$tool" "$rate" "${SECONDS_EACH:-20}" "$dir" "http://127.0.0.1:$p" "$model" "$dir/emitted.jsonl" "$v" || true
		kill "$server" && wait "$server" 2>/dev/null || true
		server=
	done
done
