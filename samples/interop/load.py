"""Holds the load that another tool made from an export against the trace, by what our proxy recorded: load.py TOOL TRACE.jsonl RECORDED.jsonl

Both files are `shadowtape export jsonl`. Rows are paired in order of arrival; times count from the first. Prints a row of a Markdown table.
"""

import json, statistics, sys


def rows(path):
    out = [json.loads(l) for l in open(path)]
    return sorted((r for r in out if r["endpoint"] not in ("other", "embeddings")), key=lambda r: r["arrival_unix_ns"])


def at(values, q):
    v = sorted(values)
    return v[min(len(v) - 1, int(q * (len(v) - 1) + 0.5))] if v else float("nan")


tool, want, got = sys.argv[1], rows(sys.argv[2]), rows(sys.argv[3])
n = min(len(want), len(got))
if n == 0:
    print("| %s | %d of %d | | | |" % (tool, len(got), len(want)))
    sys.exit(1)
offset = [(got[i]["arrival_unix_ns"] - got[0]["arrival_unix_ns"] - want[i]["arrival_unix_ns"] + want[0]["arrival_unix_ns"]) / 1e6 for i in range(n)]
middle = statistics.median(offset)
late = [o - middle for o in offset]


def lengths(column):
    pairs = [(g[column], w[column]) for g, w in zip(got, want) if g.get(column) is not None and w[column] is not None]
    same = sum(a == b for a, b in pairs)
    off = [abs(a / b - 1) * 100 for a, b in pairs if b]
    return "%d of %d, off by %.1f %% in the median, %.1f %% at most" % (same, len(pairs), at(off, 0.5), at(off, 1)) if pairs else "unknown"


print("| %s | %d of %d | within %.0f ms (p99), %.0f at most | %s | %s |" % (tool, len(got), len(want), at(map(abs, late), 0.99), at(map(abs, late), 1), lengths("input_tokens"), lengths("output_tokens")))
