#!/usr/bin/env bash
# A toy repository of ten commits whose server is the simulator; the seventh makes the time between tokens three times as long, and the
# fourth does not build. Bisect has git find the seventh. Takes a few minutes; everything is made under $WORK (default: a temporary directory).
set -euo pipefail
tape=$(realpath "${SHADOWTAPE:-bin/shadowtape}")
csv=$(realpath "$(dirname "$0")/../traces/azure-conv-25s.csv")
work=${WORK:-$(mktemp -d)}
mkdir -p "$work/toy"
cd "$work/toy"
git init -q -b main .
git config user.name toy
git config user.email toy@example.org
for i in $(seq 10); do
  itl=4ms
  [ "$i" -lt 7 ] || itl=12ms
  cat >deploy.yaml <<YAML
process: ["\${self}", sim, --listen, "127.0.0.1:\${port}", --ttft, 20ms, --itl, $itl]
dialect: sim
YAML
  [ "$i" = 4 ] && echo 'exit 1' >build.sh || echo 'exit 0' >build.sh
  echo "$i" >version
  git add -A
  git commit -qm "change $i"
done
"$tape" import azure-llm "$csv" -o "$work/trace" --force >/dev/null
"$tape" bisect --good HEAD~9 --bad HEAD --build "sh build.sh" --deploy deploy.yaml --trace "$work/trace" --duration 4s --warm-up 10 --metric tpot "$@" -o "$work/out"
