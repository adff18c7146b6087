#!/usr/bin/env bash
# The main job on the built-in simulator: replay 25 seconds of real arrivals against a server, then against one whose steps take 15 %
# longer, and diff the two runs. `make demo` calls it; the trace and both runs stay in $DEMO (default: demo).
set -euo pipefail
cd "$(dirname "$0")/../.."
demo=${DEMO:-demo}
tape=${SHADOWTAPE:-bin/shadowtape}
sim=0
trap '[ "$sim" = 0 ] || kill "$sim" 2>/dev/null || true' EXIT

# serve NAME FLAG… starts a simulator on a free port and sets $target to its address.
serve() {
  local name=$1
  shift
  : >"$demo/$name.address"
  "$tape" sim --listen 127.0.0.1:0 "$@" >"$demo/$name.address" 2>"$demo/$name.log" &
  sim=$!
  for _ in $(seq 100); do
    target=$(head -n 1 "$demo/$name.address")
    [ -n "$target" ] && return
    kill -0 "$sim" 2>/dev/null || break
    sleep 0.1
  done
  echo "demo: the simulator did not start:" >&2
  cat "$demo/$name.log" >&2
  exit 1
}

# replay NAME replays the trace into run $demo/NAME. A machine too busy to send on time makes a run invalid (exit 4): the demo says so
# and goes on; a pipeline would run it again.
replay() {
  local code=0
  "$tape" replay "$demo/trace" --target "$target" --force -o "$demo/$1" || code=$?
  [ "$code" = 0 ] || [ "$code" = 4 ] || exit "$code"
  kill "$sim"
  wait "$sim" 2>/dev/null || true
  sim=0
}

mkdir -p "$demo"
echo "== 1. a trace: 25 seconds of the Azure conversation trace 2023"
"$tape" import azure-llm samples/traces/azure-conv-25s.csv --force -o "$demo/trace"
echo "== 2. replay it against the simulated server"
serve base
replay base
echo "== 3. replay it against the same server with steps 15 % slower"
serve candidate --slowdown 1.15
replay candidate
echo "== 4. what was measured"
"$tape" analyze --allow-invalid "$demo/base"
echo "== 5. is the candidate worse?"
code=0
"$tape" diff --allow-invalid "$demo/base" "$demo/candidate" || code=$?
case $code in
  0) echo "exit 0: no metric looks worse" ;;
  5) echo "exit 5: it looks worse; one run a side informs, and --single-run would make it exit 3" ;;
  *) exit "$code" ;;
esac
echo "runs: $demo/base $demo/candidate"
