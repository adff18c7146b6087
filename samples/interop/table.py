"""Holds what the recorder wrote against what clients sent and saw, and prints a Markdown table and what differs.

  python table.py KEYFILE SERVER=OBSERVATIONS=ROWS...

OBSERVATIONS is what clients.py and clients.mjs print, ROWS is `shadowtape export jsonl`. Exit 1 if a call has no row, or a column differs.
"""

import collections, hashlib, hmac, json, statistics, struct, sys


def keyed(key, kind, text):
    """A trace's keyed hash (docs/FORMAT.md): HMAC-SHA-256 over strings behind their lengths, cut to 64 bits."""
    m = hmac.new(key, digestmod=hashlib.sha256)
    for s in (kind, text):
        b = s.encode()
        m.update(struct.pack("<I", len(b)) + b)
    return m.hexdigest()[:16]


def differences(o, rows):
    """What a row has otherwise than the client, as lines; the first row of a request is the one compared."""
    if not rows:
        return ["no row"]
    x, out = rows[0], []
    if len(rows) > 1 and rows[0].get("status") == 200:
        out.append("%d rows" % len(rows))
    for side in ("sent", "seen"):
        for k, v in o[side].items():
            if x.get(k) != v:
                out.append("%s: client %r, recorder %r" % (k, v, x.get(k)))
    streamed = x.get("stream") and o["seen"].get("status") == 200 and o["problem"] is None
    if streamed and o["events"] is not None and len(x.get("event_gap_us") or []) != o["events"]:
        out.append("events: client %d, recorder %s" % (o["events"], len(x.get("event_gap_us") or [])))
    return out


def main():
    key = open(sys.argv[1], "rb").read().strip(b"\r\n")
    lines, wrong, notes, refusals = [], [], [], collections.defaultdict(list)
    for arg in sys.argv[2:]:
        server, observations, rows = arg.split("=", 2)
        by = collections.defaultdict(list)
        for line in open(rows):
            x = json.loads(line)
            by[x["correlation_id"]].append(x)
        clients = collections.defaultdict(list)
        for line in open(observations):
            o = json.loads(line)
            clients[o["client"]].append(o)
        for client, calls in clients.items():
            ok, refused, events, lags, tokens = 0, 0, 0, [], 0
            for o in calls:
                found = by[keyed(key, "request", o["id"])]
                d = differences(o, found)
                if d:
                    wrong.append("%s, %s, %s: %s" % (server, client, o["call"], "; ".join(d)))
                else:
                    ok += 1
                if o["problem"]:
                    notes.append("%s, %s, %s: %s" % (server, client, o["call"], o["problem"]))
                if o["seen"].get("status", 200) != 200:
                    refused += 1
                    refusals["%s, %s: %s" % (server, o["seen"]["status"], o["call"])].append(client.split()[0] + (" (%d times)" % len(found) if len(found) > 1 else ""))
                if found and not d and o["seen"].get("output_tokens") is not None:
                    tokens += 1
                if found and found[0].get("stream") and o["first_unix_ns"] and found[0].get("first_token_ns") is not None:
                    events += len(found[0].get("event_gap_us") or [])
                    lags.append((o["first_unix_ns"] - found[0]["arrival_unix_ns"] - found[0]["first_token_ns"]) / 1e6)
            late = "%.1f ms, at most %.1f" % (statistics.median(lags), max(lags)) if lags else ""
            lines.append("| %s | %s | %d | %d | %d | %d | %d | %s |" % (server, client, len(calls), ok, refused, tokens, events, late))
    print("| server | client | calls | agree in all | refused by the server | with equal token counts | events of streams | first token at the client after the recorder |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    refused = ["%s (%s)" % (k, ", ".join(sorted(set(v)))) for k, v in refusals.items()]
    for title, found in (("refused by the server", refused), ("differs", wrong), ("the client gave up", notes)):
        if found:
            print("\n%s:\n  %s" % (title, "\n  ".join(found)))
    sys.exit(1 if wrong else 0)


main()
