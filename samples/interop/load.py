"""Holds the load that another tool made from an export against the trace, by what our proxy recorded: load.py TOOL TRACE.jsonl RECORDED.jsonl

Both files are `shadowtape export jsonl`. Arrivals are compared in order, counted from the first, lengths by size. Prints a row of a Markdown table.
"""

import json, statistics, sys


def rows(path):
    out = [json.loads(l) for l in open(path)]
    return sorted((r for r in out if r["endpoint"] not in ("other", "embeddings")), key=lambda r: r["arrival_unix_ns"])


def at(values, q):
    v = sorted(values)
    return v[min(len(v) - 1, int(q * (len(v) - 1) + 0.5))] if v else float("nan")


tool, want, got = sys.argv[1], rows(sys.argv[2]), rows(sys.argv[3])
before = max(len(got) - len(want), 0)  # probes of the server, ahead of the load
got = got[before:]
n = min(len(want), len(got))
if n == 0:
    print("| %s | %d of %d | | | |" % (tool, len(got), len(want)))
    sys.exit(1)
offset = [(got[i]["arrival_unix_ns"] - got[0]["arrival_unix_ns"] - want[i]["arrival_unix_ns"] + want[0]["arrival_unix_ns"]) / 1e6 for i in range(n)]
middle = statistics.median(offset)
late = [o - middle for o in offset]


def lengths(column):
    """All lengths against all lengths, smallest to largest: requests that a busy machine let pass one another are no error of a length."""
    a, b = (sorted(r[column] for r in side[:n] if r.get(column) is not None) for side in (got, want))
    if len(a) != len(b):
        return "%d known of %d" % (len(a), len(b))
    off = [abs(x / y - 1) * 100 for x, y in zip(a, b) if y]
    return "%d of %d, off by %.1f %% in the median, %.1f %% at most" % (sum(x == y for x, y in zip(a, b)), len(b), at(off, 0.5), at(off, 1))


print("| %s | %d of %d%s | within %.0f ms (p99), %.0f at most | %s | %s |" % (tool, len(got), len(want), " and %d before" % before if before else "", at(map(abs, late), 0.99), at(map(abs, late), 1), lengths("input_tokens"), lengths("output_tokens")))
