#!/usr/bin/env bash
# Summarize ten million exchanges with shadowtape and ask DuckDB for the same quantiles of the same Parquet file, in one run on two cores.
# ROWS and RUNS change the size; DuckDB goes into a scratch Python environment that is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
rows=${ROWS:-10000000} runs=${RUNS:-3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trace=$scratch/trace.parquet

python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" --quiet install duckdb # 2.0.1 for the table in docs/PERFORMANCE.md
CGO_ENABLED=0 go build -o "$scratch/shadowtape" ./cmd/shadowtape
go test ./analyzer -run WriteBenchTrace -bench-out "$trace" -bench-rows "$rows" >/dev/null

cat >"$scratch/measure.py" <<'PY'
import json, os, resource, subprocess, sys, time
tool, trace, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
SQL = """
with m as (
  select first_token_ns/1e6 as ttft, coalesce(last_token_ns, end_ns)/1e6 as e2el,
         (last_token_ns - first_token_ns)/1e6/nullif(output_tokens - 1, 0) as tpot, end_reason
  from read_parquet('%s') where phase <> 'warmup' and end_reason <> 'not_sent' and error_kind is null)
select count(ttft), avg(ttft), stddev_pop(ttft), quantile_cont(ttft, [0.5, 0.9, 0.95, 0.99]), max(ttft),
       count(tpot), avg(tpot), stddev_pop(tpot), quantile_cont(tpot, [0.5, 0.9, 0.95, 0.99]), max(tpot),
       count(e2el) filter (end_reason = 'complete'), avg(e2el), stddev_pop(e2el), quantile_cont(e2el, [0.5, 0.9, 0.95, 0.99]), max(e2el)
from m
""" % trace
DUCK = "import duckdb,json,sys; c=duckdb.connect(); c.execute('set threads=2'); c.execute('set enable_progress_bar=false'); print(json.dumps(c.execute(sys.argv[1]).fetchone(), default=float))"

def timed(cmd):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE)
    out, _ = p.communicate()
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if p.returncode:
        sys.exit("%s: exit %d" % (cmd[0], p.returncode))
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, out

def peak(cmd):  # kB, in a child of its own so that peaks do not mix
    code = "import resource,subprocess,sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    return int(subprocess.run([sys.executable, "-c", code] + cmd, stdout=subprocess.PIPE, check=True).stdout)

os.environ["GOMAXPROCS"] = "2"
FIGURES, DUCKDB, ALL = "shadowtape analyze --no-models, every metric", "DuckDB, quantiles of three metrics", "shadowtape analyze, with pages, mix, anomalies"
commands = {FIGURES: [tool, "analyze", "--json", "--no-models", trace], DUCKDB: [sys.executable, "-c", DUCK, SQL], ALL: [tool, "analyze", "--json", trace]}
rows = {name: [] for name in commands}
outs = {}
for _ in range(runs):
    for name, cmd in commands.items():
        wall, cpu, outs[name] = timed(cmd)
        rows[name].append((wall, cpu))
print("| what | wall s (best of %d) | CPU s | peak MB |\n|---|---|---|---|" % runs)
for name, r in rows.items():
    print("| %s | %.2f | %.2f | %d |" % (name, min(w for w, _ in r), min(c for _, c in r), peak(commands[name]) / 1024))
ours = json.loads(outs[FIGURES])["runs"][0]["metrics"]
duck = json.loads(outs[DUCKDB])
worst = 0
for k, name in enumerate(["ttft", "tpot", "e2el"]):
    n, mean, std, q, top = duck[5*k:5*k+5]
    m = ours[name]
    if m["n"] != n:
        sys.exit("%s: %d samples here, %d in DuckDB" % (name, m["n"], n))
    for got, want in [(m["mean"], mean), (m["std"], std), (m["max"], top)] + list(zip([m["p50"], m["p90"], m["p95"], m["p99"]], q)):
        worst = max(worst, abs(got / want - 1))
wall, cpu = [{name: min(x[k] for x in r) for name, r in rows.items()} for k in (0, 1)]
print("\nthe same quantiles: %.2f times DuckDB's wall time, %.2f times its CPU time" % (wall[FIGURES] / wall[DUCKDB], cpu[FIGURES] / cpu[DUCKDB]))
print("largest relative difference of a figure: %.2g" % worst)
if worst > 0.0005:
    sys.exit("the figures differ")
PY
"$scratch/venv/bin/python" "$scratch/measure.py" "$scratch/shadowtape" "$trace" "$runs"
