#!/usr/bin/env bash
# Production, its replay, and a fixed-length load of the same rate and mean lengths, on one page: compare.sh TRACE [DIRECTORY]
#
# TRACE is a trace, or a file of Mooncake's JSON lines. The page is DIRECTORY/report.html (default: fixed-length). By default the server is the
# simulator in virtual time, and an hour takes seconds: "production" is the trace on it, "replay" is what production left, sent to another
# launch of the same server. With LIVE=1 everything is real but the GPU: a simulated server behind a recording proxy, `replay` over
# sockets, in real time, three times the trace's.
#   SERVERS=3       how many servers of the profile the simulated one is as fast and as large as
#   PROFILE=...     llama-3.1-8b-h100
#   DURATION=...    of the trace's beginning: 10m (default: all of it)
#   SHADOWTAPE=...  the program (default: bin/shadowtape)
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,12p' "$0" >&2; exit 2; }
trace=$1 out=${2:-fixed-length}
tape=${SHADOWTAPE:-$(cd "$(dirname "$0")/../.." && pwd)/bin/shadowtape}
servers=${SERVERS:-3} profile=${PROFILE:-llama-3.1-8b-h100} duration=${DURATION:-} live=${LIVE:-0}
mkdir -p "$out"
say() { echo "== $*"; }
number() { sed -n "s/^ *\"$1\": \([0-9.]*\),*$/\1/p" "$out/profile.json" | head -n 1; }           # of a key of inspect's document
mean() { awk -v at="\"$1\":" '$1 == at { on = 1 } on && $1 == "\"mean\":" { sub(/,$/, "", $2); printf "%.0f", $2; exit }' "$out/profile.json"; }

case $trace in
  *.jsonl | *.jsonl.gz | *.jsonl.zst) say "import $trace"; "$tape" import mooncake "$trace" --force -o "$out/trace"; trace=$out/trace ;;
esac

# A trace whose times stand on a coarse clock has bursts that nobody sent: its arrivals are spread within the ticks.
"$tape" inspect "$trace" --json >"$out/profile.json"
tick=$(number time_quantum_ms)
if [ "${tick%.*}" ] && [ "${tick%.*}" -ge 1000 ]; then
  say "arrivals stand on a clock of $tick ms: spread within its ticks"
  "$tape" export mooncake "$trace" --force -o "$out/ticks.jsonl"
  awk -v tick="$tick" 'BEGIN { s = 1 } { match($0, /"timestamp": *[0-9.]+/); split(substr($0, RSTART, RLENGTH), a, ": *"); s = s * 16807 % 2147483647
    sub(/"timestamp": *[0-9.]+/, sprintf("\"timestamp\": %d", a[2] + tick * s / 2147483647)); print }' "$out/ticks.jsonl" | sort -t: -s -k2n >"$out/spread.jsonl"
  "$tape" import mooncake "$out/spread.jsonl" --force -o "$out/spread"
  trace=$out/spread
fi

slowdown=$(awk -v n="$servers" 'BEGIN { printf "%.4f", 1 / n }')
pages=$(("$servers" * $("$tape" sim --list-profiles | awk -v p="$profile" '$0 == p { on = 1 } on && match($0, /[0-9]+ pages/) { print substr($0, RSTART, RLENGTH - 6); exit }')))
server=(--profile "$profile" --slowdown "$slowdown" --pages "$pages")
part=(${duration:+--duration "$duration"})

# serve starts a simulated server; proxy starts a recorder before it. Each sets $target and is ended by its number.
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
await() { for _ in $(seq 100); do target=$(sed -nE "s#.*$2([0-9.]+:[0-9]+).*#http://\\1#p" "$1" | head -n 1); [ -n "$target" ] && return; sleep 0.1; done; echo "compare: no address in $1" >&2; exit 1; }
serve() { "$tape" sim --listen 127.0.0.1:0 "${server[@]}" --seed "$1" >"$out/sim.log" 2>&1 & pids+=($!); await "$out/sim.log" http://; }
finish() { for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill -TERM "${pids[i]}"; wait "${pids[i]}" 2>/dev/null || true; done; pids=(); }
# run NAME TRACE SEED: what a server of that seed made of the trace.
run() {
  if [ "$live" = 1 ]; then
    serve "$3"
    "$tape" replay "$2" --target "$target" "${part[@]}" --label "$1" --allow-invalid --force -o "$out/$1"
    finish
  else
    "$tape" simulate "$2" "${server[@]}" --noise launch=1%,step=2% --seed "$3" "${part[@]}" --label "$1" --force -o "$out/$1"
  fi
}

say "production"
if [ "$live" = 1 ]; then
  serve 1
  "$tape" record --listen 127.0.0.1:0 --upstream "$target" --metrics "$target/metrics" --force -o "$out/production" >"$out/record.log" 2>&1 &
  pids+=($!)
  await "$out/record.log" "from "
  "$tape" replay "$trace" --target "$target" "${part[@]}" --allow-invalid --force -o "$out/users"
  finish
else
  run production "$trace" 1
fi
part=()
say "its replay"
run replay "$out/production" 2
say "the fixed-length load of the same means"
"$tape" inspect "$out/production" --json >"$out/profile.json"
"$tape" synth --arrival poisson --rate "$(number rate_per_s)" --duration "$(number span_s)s" --input "$(mean input_tokens)" --output "$(mean output_tokens)" \
  --prefix roots=1,share=0%,block=512 --force -o "$out/fixed.trace"
run fixed "$out/fixed.trace" 3
say "side by side"
"$tape" analyze "$out/production" "$out/replay" "$out/fixed" --block-size 16 --pages "$pages" --allow-invalid --force --html "$out/report.html" | sed -n '/^side by side/,$p'
echo "page: $out/report.html"
