"""One load generator at one rate against the simulator: what it reports against what the simulator did. Called by beside.sh.

  beside.py TOOL RATE SECONDS DIR URL MODEL EMISSIONS VERSION

Prints a row of the table in docs/PERFORMANCE.md. The error of a request is the tool's TTFT less the time from its arrival in the simulator to its first
token there: for each request where the tool tells its x-request-id, else of the means.
"""

import hashlib, hmac, json, os, resource, statistics, subprocess, sys, time

tool, rate, seconds, home, url, model, emissions, version = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:9]
out = os.path.join(home, "out-%s-%g" % (tool, rate))
INPUT, OUTPUT = 64, 100


def commands():
    bin = lambda env, name: os.path.join(home, env, "bin", name)
    if tool == "shadowtape":
        ours = os.path.join(home, "shadowtape")
        trace = os.path.join(home, "poisson-%g.parquet" % rate)
        subprocess.run([ours, "synth", "--arrival", "poisson", "--rate", "%g" % rate, "--input", str(INPUT), "--output", str(OUTPUT), "--duration", "%ds" % seconds, "-o", trace, "--force"], check=True, stdout=subprocess.DEVNULL)
        return [ours, "replay", trace, "--target", url, "-o", out, "--force", "--allow-invalid"]
    if tool == "aiperf":
        return ["env", "-u", "HF_HUB_OFFLINE", "-u", "TRANSFORMERS_OFFLINE", bin("aiperf", "aiperf"), "profile", "--model", model, "--url", url, "--endpoint-type", "chat", "--streaming", "--arrival-pattern", "poisson", "--request-rate", "%g" % rate, "--request-count", str(int(rate * seconds)),
                "--synthetic-input-tokens-mean", str(INPUT), "--output-tokens-mean", str(OUTPUT), "--extra-inputs", "ignore_eos:true", "--tokenizer", os.path.join(home, "tiny-hf"), "--artifact-dir", out, "--ui-type", "none"]
    return [bin("guidellm", "guidellm"), "run", "--backend", "kind=openai_http,target=%s,model=%s" % (url, model), "--profile", "kind=poisson,rate=%g" % rate, "--constraint", "kind=max_duration,seconds=%d" % seconds,
            "--data", "kind=synthetic_text,prompt_tokens=%d,output_tokens=%d" % (INPUT, OUTPUT), "--tokenizer", "kind=hf_auto,model=" + os.path.join(home, "tiny-hf"), "--output", "kind=json,path=" + out + ".json"]


def reported():
    """TTFT and send lag in ms of each request, by x-request-id where the tool tells it, and the lag's p99 where it knows one."""
    if tool == "aiperf":
        for root, _, files in os.walk(out):
            for f in files:
                if f == "profile_export.jsonl":
                    for line in open(os.path.join(root, f)):
                        r = json.loads(line)
                        if r["metadata"].get("benchmark_phase") == "profiling" and "time_to_first_token" in r["metrics"]:
                            yield r["metadata"].get("x_request_id"), r["metrics"]["time_to_first_token"]["value"], None
    elif tool == "guidellm":
        for b in json.load(open(out + ".json"))["benchmarks"]:
            for r in b["requests"]["successful"]:
                t = (r.get("info") or {}).get("timings") or r
                first = t.get("first_token_iteration") or t.get("first_iteration") or t.get("first_token_time")
                start = t.get("request_start") or t.get("start_time")
                if first and start:
                    due = t.get("targeted_start")
                    yield None, (first - start) * 1e3, (start - due) * 1e3 if due and due > 1e9 else None  # before its start it plans for no time of day
    else:
        prefix = json.load(open(os.path.join(out, "run.json")))["options"]["request_ids"].encode()
        rows = subprocess.run([os.path.join(home, "shadowtape"), "export", "jsonl", out, "-o", "-"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        ids = {hmac.new(prefix, i.encode(), hashlib.sha256).hexdigest()[:16]: i for i in truth}
        for line in rows.splitlines():
            r = json.loads(line)
            if r["first_token_ns"] is not None:
                yield ids.get(r["correlation_id"]), (r["first_token_ns"] - r["sent_ns"]) / 1e6, r["sent_ns"] / 1e6


def at(v, q):
    v = sorted(v)
    return v[min(len(v) - 1, int(q * (len(v) - 1) + 0.5))]


before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time_ns()
command = commands()
prepared = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(out + ".log", "w") as log:
    if subprocess.run(command, stdout=log, stderr=log).returncode:
        print("%s ended badly: %s.log" % (tool, out), file=sys.stderr)
after = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu = after.ru_utime + after.ru_stime - prepared.ru_utime - prepared.ru_stime
time.sleep(0.5)
truth = {}
for line in open(emissions):
    e = json.loads(line)
    if e["arrival_unix_ns"] >= began and e["token_unix_ns"] and e["input_tokens"] >= INPUT // 2:
        truth[e["x_request_id"] or len(truth)] = (e["token_unix_ns"][0] - e["arrival_unix_ns"]) / 1e6
said = list(reported())
if not said or not truth:
    print("| %g | %s %s | none | | | | | | | |" % (rate, tool, version), flush=True)
    sys.exit("%s: no request came back; the machine may have been too busy for it: %s.log" % (tool, out))
paired = [t - truth[i] for i, t, _ in said if i in truth]
ttft, real = statistics.mean(t for _, t, _ in said), statistics.mean(truth.values())
lags = [l for _, _, l in said if l is not None]
f = lambda x: "%.2f" % x
print("| %g | %s %s | %d | %s ms | %s ms | %s ms | %s | %s | %.1f s | %d MB |" % (rate, tool, version, len(said), f(ttft), f(real), f(statistics.mean(paired) if len(paired) > len(said) // 2 else ttft - real),
      f(at(paired, 0.99)) + " ms" if len(paired) > len(said) // 2 else "", f(at(lags, 0.99)) + " ms" if lags else "", cpu, after.ru_maxrss // 1024), flush=True)
