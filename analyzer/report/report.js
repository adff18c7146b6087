"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  const runs = data.runs;
  const many = runs.length > 1;
  const redraw = [], zoomed = [];
  const dashes = [[], [8, 5], [2, 4], [12, 4, 2, 4], [2, 2], [6, 2]];

  // el makes an element; strings become text, never markup.
  function el(name, attrs, ...children) {
    const e = document.createElement(name);
    for (const k in attrs || {}) {
      if (k === "class") e.className = attrs[k]; else e.setAttribute(k, attrs[k]);
    }
    for (const c of children.flat()) if (c !== null && c !== undefined) e.append(c);
    return e;
  }
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = (i) => css("--s" + (i % 6));
  const key = (i) => el("span", { class: "key k" + (i % 6) });

  function num(v) {
    if (v === null || v === undefined) return "–";
    const a = Math.abs(v);
    if (a === 0) return "0";
    if (Number.isInteger(v) && a < 1e6) return v.toLocaleString("en");
    if (a < 0.001) return v.toExponential(1);
    if (a < 10) return v.toFixed(a < 1 ? 3 : 2);
    if (a < 1000) return v.toFixed(1);
    if (a < 1e6) return Math.round(v).toLocaleString("en");
    return (v / 1e6).toFixed(2) + "M";
  }
  const pct = (v) => (v === null || v === undefined ? "–" : num(v * 100) + " %");
  const metric = (r, name) => r.summary.metrics[name] || {};
  const aggregate = (r, name) => (r.summary.aggregates[name] || {}).value;

  function verdictOfRun(s, i) {
    const q = s.requests;
    page.append(el("div", { class: "verdict " + (s.valid ? "good" : "bad") },
      el("strong", {}, many ? key(i) : null, s.valid ? "valid" : "INVALID"), " ", s.kind, " ", el("b", {}, s.label), " · ",
      `${num(q.sent)} sent, ${num(q.completed)} completed, ${num(q.failed)} failed, ${num(q.aborted)} aborted, ${num(q.dropped)} dropped in ${num(s.window_s)} s`,
      (s.invalid || []).map((t) => el("p", { class: "bad" }, t)),
      (s.warnings || []).map((t) => el("p", { class: "quiet" }, "warning: " + t))));
  }

  function verdictOfDiff(d) {
    const words = { worse: "The candidate is worse", better: "The candidate is better", "~": "No difference that these runs can vouch for", invalid: "Invalid: a side cannot be trusted" };
    const kind = { worse: "bad", better: "good", "~": "unsure", invalid: "bad" }[d.verdict] || "unsure";
    page.append(el("div", { class: "verdict " + kind }, el("strong", {}, words[d.verdict] || d.verdict),
      el("p", {}, d.metrics.filter((m) => m.gates && m.verdict !== "~").map((m) => `${m.name} ${signed(m)}`).join(", ")),
      el("p", { class: "quiet" }, `${d.method}; ${num(d.pairs)} requests matched`),
      d.cost ? el("p", {}, d.cost.change_per_month === null ? "What it costs the fleet is unknown: " + d.cost.reason :
        `For a fleet of ${num(d.cost.fleet_gpus)} GPUs at ${num(d.cost.gpu_hour_price)} an hour the change ${d.cost.change_per_month > 0 ? "costs" : "saves"} ${num(Math.abs(d.cost.change_per_month))} a month.`) : null,
      d.warnings.map((t) => el("p", { class: "quiet" }, "warning: " + t))));
  }
  const signed = (m) => (m.change_pct === null ? "–" : (m.change_pct >= 0 ? "+" : "") + m.change_pct.toFixed(1) + (m.unit === "share" ? " points" : " %"));

  function cards() {
    const list = [
      ["time to first token, median", "ms", (r) => metric(r, "ttft").p50], ["time to first token, p99", "ms", (r) => metric(r, "ttft").p99],
      ["time per output token, median", "ms", (r) => metric(r, "tpot").p50], ["time per output token, p99", "ms", (r) => metric(r, "tpot").p99],
      ["end to end, median", "ms", (r) => metric(r, "e2el").p50], ["requests", "1/s", (r) => aggregate(r, "request_rate")],
      ["output", "tokens/s", (r) => aggregate(r, "output_rate")], ["failed", "%", (r) => percent(aggregate(r, "error_rate"))],
      ["pages in use, model", "", (r) => (r.summary.pages && r.summary.pages.in_use.high.mean)], ["prefill and decode at once", "%", (r) => r.summary.mix && percent(r.summary.mix.early.mixed)],
      ["met every limit", "%", (r) => percent(aggregate(r, "slo_attainment"))], ["per million output tokens", "", (r) => r.summary.cost && r.summary.cost.per_million_output_tokens], ["per million, saturated", "", (r) => r.summary.cost && r.summary.cost.per_million_output_tokens_saturated],
      ["capacity", "tokens/s/GPU", (r) => aggregate(r, "capacity")],
    ];
    const box = el("div", { class: "cards" });
    for (const [name, unit, of] of list) {
      const values = runs.map(of);
      if (values.every((v) => v === null || v === undefined)) continue;
      const card = el("div", { class: "card" }, el("div", { class: "name" }, name));
      if (!many) card.append(el("div", { class: "value" }, num(values[0]), " ", el("span", { class: "unit" }, unit)));
      else values.forEach((v, i) => card.append(el("div", { class: "by" }, el("span", {}, key(i)), el("span", {}, num(v) + " " + unit))));
      box.append(card);
    }
    page.append(box);
    const c = data.capacity;
    if (c) page.append(el("p", {}, c.request_rate === null ? "Capacity: the limits are missed at every rate." :
      `Capacity: ${num(c.request_rate)} requests/s, ${num(c.output_rate_per_gpu)} output tokens/s per GPU, meet the limits` + (c.next_rate === null ? "; no rate missed them." : `; ${num(c.next_rate)} do not.`) +
      (c.per_million_output_tokens === null ? "" : ` At that rate a million output tokens cost ${num(c.per_million_output_tokens)}.`)));
  }
  function percent(v) { return v === null || v === undefined ? null : v * 100; }

  function table(head, rows, textColumns) {
    const t = el("table", {}, el("thead", {}, el("tr", {}, head.map((h, i) => el("th", { class: (textColumns || []).includes(i) ? "text" : "" }, h)))));
    const body = el("tbody");
    for (const r of rows) body.append(el("tr", {}, r.map((c, i) => (c instanceof Node && c.tagName === "TD" ? c : el("td", { class: (textColumns || []).includes(i) ? "text" : "" }, c)))));
    t.append(body);
    return el("div", { class: "scroll" }, t);
  }

  function diffTable(d) {
    page.append(el("h2", {}, "Base against candidate"));
    page.append(table(["metric", "unit", "base", "candidate", "change", `${d.confidence * 100} % interval`, "verdict"], d.metrics.map((m) => [
      m.name, m.unit, num(m.base), num(m.candidate), signed(m), m.interval_pct[0] === null ? "–" : `${num(m.interval_pct[0])} to ${num(m.interval_pct[1])}`,
      el("td", { class: "text " + ({ worse: "bad", better: "good" }[m.verdict] || "") }, m.gates ? m.verdict : `(${m.verdict})`)])));
  }

  function metricTables() {
    page.append(el("h2", {}, "Latencies"));
    const head = ["ms", "n", "mean", "std", "p50", "p90", "p95", "p99", "p99.9", "max"];
    runs.forEach((r, i) => {
      if (many) page.append(el("h3", {}, key(i), r.summary.label));
      const rows = data.metrics.filter((m) => (metric(r, m.name).n || 0) > 0).map((m) => {
        const f = metric(r, m.name);
        const cell = (p) => {
          const between = (f.intervals || {})[p];
          return el("td", between ? { title: `${num(between[0])} to ${num(between[1])} within this run (95 %)` } : (f.withheld || {})[p] ? { title: f.withheld[p] } : {}, num(f[p]));
        };
        return [el("td", { title: m.definition }, m.name), num(f.n), cell("mean"), num(f.std), cell("p50"), cell("p90"), cell("p95"), cell("p99"), cell("p99_9"), num(f.max)];
      });
      page.append(rows.length ? table(head, rows) : el("p", { class: "quiet" }, "The exchanges do not say when their answers came."));
    });
    page.append(el("p", { class: "quiet" }, "Latencies start at the scheduled time; …_from_send at the first request byte. A dash is a percentile that the sample cannot know at 99 % confidence. Point at a figure for its interval, within this run."));
  }

  // wholeRun is a row for each figure of whole runs, in the metric table's order.
  function wholeRun() {
    page.append(el("h2", {}, "Of the whole run"));
    const rows = data.metrics.filter((m) => runs.some((r) => { const v = aggregate(r, m.name); return v !== null && v !== undefined; })).map((m) =>
      [el("td", { title: m.definition }, m.name), el("td", { class: "text" }, m.unit)].concat(runs.map((r) => {
        const a = r.summary.aggregates[m.name] || {}, of = m.unit === "share" ? pct : num;
        return el("td", a.interval ? { title: `${of(a.interval[0])} to ${of(a.interval[1])} within this run (95 %)` } : {}, of(a.value));
      })));
    page.append(table(["figure", "unit"].concat(runs.map((r) => r.summary.label)), rows, [1]));
  }

  // compared is what runs are set beside each other by: what a load is made of, what it did to the cache and the batch, what users waited.
  const pages = (r) => r.summary.pages || { in_use: { low: {}, high: {} } };
  const mix = (r) => (r.summary.mix || {}).early || {};
  const compared = [
    ["Of the load", [
      ["requests a second", num, (r) => aggregate(r, "request_rate"), ""], ["input tokens, mean", num, (r) => mean(r, "input_rate"), ""], ["output tokens, mean", num, (r) => mean(r, "output_rate"), ""],
    ]],
    ["What users wait", [
      ["time to first token, p99", ms, (r) => metric(r, "ttft").p99, "one request in a hundred waits longer"], ["time to first token, median", ms, (r) => metric(r, "ttft").p50, ""],
      ["time per output token, p99", ms, (r) => metric(r, "tpot").p99, ""], ["end to end, p99", ms, (r) => metric(r, "e2el").p99, ""],
    ]],
    ["What it does to the cache", [
      ["page sharing", num, (r) => pages(r).sharing, "requests that hold one page, on average"], ["prompt blocks that an LRU cache hits", pct, (r) => pages(r).lru_hit_rate, ""],
      ["page fill", pct, (r) => pages(r).fill, "tokens in the slots of the pages that are held"], ["peak demand of the cache", pct, (r) => pages(r).peak_share, "above 100 % requests wait or are preempted"],
    ]],
    ["What it does to the batch", [
      ["prefill and decode at once", pct, (r) => mix(r).mixed, "share of the time"], ["switches a second", num, (r) => mix(r).switches_per_s, "between idle, prefill, decode and both"],
      ["a token beside prefill", times, (r) => r.summary.interference && r.summary.interference.slowdown, "gap per token while a prefill runs ÷ while none does"],
    ]],
  ];
  function ms(v) { return v === null || v === undefined ? "–" : num(v) + " ms"; }
  function times(v) { return v === null || v === undefined ? "–" : num(v) + " ×"; }

  function sideBySide() {
    page.append(el("h2", {}, "Side by side"));
    runs.slice(1).forEach((r, k) => { const text = sameMeans(runs[0], r); if (text && (runs.length < 4 || !text.endsWith("the same."))) page.append(el("p", { class: "say" }, key(k + 1), text)); });
    for (const [title, figures] of compared) {
      const box = el("div", { class: "sides" });
      for (const [name, print, of, note] of figures) {
        const values = runs.map((r) => { const v = of(r); return v === undefined || v === null ? null : v; });
        if (values.every((v) => v === null)) continue;
        const most = Math.max(...values.map((v) => v || 0)) || 1;
        const side = el("div", { class: "side" }, el("h3", {}, name), note ? el("p", { class: "quiet" }, note) : null);
        values.forEach((v, i) => {
          const fill = el("i", { class: "b" + (i % 6) });
          fill.style.width = (v === null ? 0 : Math.max(v / most * 100, 0.5)) + "%";
          side.append(el("div", { class: "row" }, el("span", { class: "who" }, runs[i].summary.label), el("span", { class: "track" }, fill), el("span", { class: "what" }, print(v), i > 0 ? ratio(values[0], v) : null)));
        });
        box.append(side);
      }
      if (box.childNodes.length) page.append(el("h3", { class: "group" }, title), box);
    }
  }
  // ratio is a run's figure in terms of the first run's.
  function ratio(first, v) {
    if (!first || v === null) return el("small", {}, "");
    if (v === 0) return el("small", { class: "off" }, "none");
    const q = v / first;
    return el("small", { class: Math.abs(q - 1) > 0.1 ? "off" : "" }, Math.abs(q - 1) <= 0.005 ? "same" : q >= 1 ? `${num(q)} × ` : `1 ÷ ${num(1 / q)}`);
  }
  // sameMeans says of two loads that look alike by rate and mean lengths what they did to the slowest requests; "" where they do not look alike.
  function sameMeans(a, b) {
    const near = (x, y) => x && y && Math.abs(y / x - 1) < 0.05;
    const alike = [[aggregate(a, "request_rate"), aggregate(b, "request_rate")], [mean(a, "input_rate"), mean(b, "input_rate")], [mean(a, "output_rate"), mean(b, "output_rate")]];
    const x = metric(a, "ttft").p99, y = metric(b, "ttft").p99;
    if (!alike.every(([p, q]) => near(p, q)) || !x || !y) return "";
    const q = y / x;
    const says = Math.abs(q - 1) <= 0.1 ? "the same" : q < 1 ? `${num(1 / q)} times too low` : `${num(q)} times too high`;
    return `${b.summary.label} has the request rate and the mean lengths of ${a.summary.label}. One request in a hundred waits ${ms(y)} for its first token; in ${a.summary.label} it is ${ms(x)}: ${says}.`;
  }
  function mean(r, rate) {
    const a = aggregate(r, rate), n = aggregate(r, "request_rate");
    return a === null || !n ? null : a / n;
  }

  // charts
  function distributions() {
    page.append(el("h2", {}, "Distributions"));
    const dist = el("div", { class: "charts" });
    page.append(dist);
    for (const [name, title] of [["ttft", "time to first token, ms"], ["tpot", "time per output token, ms"], ["itl", "gap per token (itl), ms"], ["e2el", "end to end, ms"]]) ecdf(dist, name, title);
  }

  function chartSections() {
    page.append(el("h2", {}, "Over time"), el("p", { class: "quiet noprint" }, "Drag to zoom all charts, double-click for everything. Latencies stand at their scheduled time, gaps at the time they ended."));
    runs.forEach((r, i) => {
      const cuts = (r.charts || {}).throttled || [];
      if (cuts.length) page.append(el("p", { class: "unsure" }, many ? key(i) : null, `Shaded: the clocks of a GPU were cut (${[...new Set(cuts.flatMap((t) => t.reasons))].join(", ")}); what is slow then is not the software.`));
    });
    const box = el("div", { class: "charts" });
    page.append(box);
    over(box, "arrivals, 1/s", [["arrivals", ""], ["failures", "failed", true]]);
    over(box, "in flight", [["in_flight", ""], ["server_waiting", "waiting, server", true]]);
    over(box, "time to first token, ms", [["ttft_p50", "p50"], ["ttft_p95", "p95"]], true);
    over(box, "gap per token (itl), ms", [["itl_p50", "p50"], ["itl_p95", "p95"]], true);
    over(box, "time per output token, ms", [["tpot_p50", "p50"], ["tpot_p95", "p95"]], true);
    over(box, "end to end, ms", [["e2el_p50", "p50"], ["e2el_p95", "p95"]], true);
    over(box, "tokens/s", [["output_rate", "output"], ["prefill_rate", "prefill"]]);
    over(box, "pages in use", [["pages_high", "model, high"], ["pages_low", "model, low"], ["server_pages_n", "server"]]);
    over(box, "page fill", [["page_fill", ""]]);
    over(box, "share of time with prefill and decode at once", [["mix_mixed", "mixed"], ["mix_decode", "decode only"]]);
    over(box, "client: send lag, largest, ms", [["send_lag_max", "", true]]);
    over(box, "client: CPU, cores", [["client_cpu", ""]]);
    over(box, "GPU: share of time busy", [["gpu_util", ""]]);
    over(box, "GPU: power, W", [["gpu_power", ""]]);
    over(box, "GPU: SM clock, MHz", [["gpu_clock", ""]]);
  }

  // over draws series of all runs against the time since each run's start.
  function over(box, title, names, log) {
    const series = [], columns = [];
    let longest = null;
    runs.forEach((r, i) => {
      if (!r.charts) return;
      if (!longest || r.charts.step_s > longest.step_s) longest = r.charts;
      const t = r.charts.time;
      if (t.server_pages && r.summary.pages && r.summary.pages.capacity) t.server_pages_n = t.server_pages.map((v) => (v === null ? null : v * r.summary.pages.capacity));
      names.forEach(([name, label, quiet], k) => { // quiet: not worth a line where it is nothing all the time
        if (!t[name] || t[name].every((v) => v === null || quiet && v === 0)) return;
        series.push({ run: i, k, label: [many ? r.summary.label : "", label || (many ? "" : title.split(",")[0])].filter(Boolean).join(" "), step: r.charts.step_s });
        columns.push(t[name]);
      });
    });
    if (!series.length) return;
    const step = longest.step_s, n = Math.max(...columns.map((c) => c.length));
    const x = Array.from({ length: n }, (_, i) => (i + 0.5) * step);
    const resampled = columns.map((c, j) => (series[j].step === step ? c : x.map((at) => { const i = Math.floor(at / series[j].step); return i < c.length ? c[i] : null; })));
    draw(box, title, [x].concat(resampled), series, { log: log && resampled.every((c) => c.every((v) => v === null || v > 0)), time: true });
  }

  function ecdf(box, name, title) {
    const with_ = runs.map((r, i) => [r, i]).filter(([r]) => r.charts && r.charts.quantiles[name]);
    if (!with_.length) return;
    const values = [...new Set(with_.flatMap(([r]) => r.charts.quantiles[name]))].filter((v) => v > 0).sort((a, b) => a - b);
    if (values.length < 2) return;
    const columns = with_.map(([r]) => {
      const q = r.charts.quantiles[name], share = r.charts.share;
      let i = 0;
      return values.map((v) => { while (i < q.length && q[i] <= v) i++; return i === 0 ? 0 : share[i - 1]; });
    });
    draw(box, "share of " + title, [values].concat(columns), with_.map(([r, i]) => ({ run: i, k: 0, label: many ? r.summary.label : name })), { logX: true });
  }

  function draw(box, title, columns, series, o) {
    const holder = el("div", { class: "plot" });
    const chart = el("div", { class: "chart" }, el("h3", {}, title), holder);
    box.append(chart);
    const axis = () => ({ stroke: css("--quiet"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid") }, font: "11px system-ui, sans-serif" });
    const time = (v) => (v >= 7200 ? +(v / 3600).toFixed(2) + " h" : v >= 120 ? +(v / 60).toFixed(1) + " min" : +v.toFixed(v < 10 ? 2 : 0) + " s");
    const rounds = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
    let plot = null;
    function make() {
      if (plot) { const at = zoomed.indexOf(plot); if (at >= 0) zoomed.splice(at, 1); plot.destroy(); }
      plot = new uPlot({
        width: Math.max(holder.clientWidth, 200), height: 210, cursor: { sync: o.time ? { key: "time" } : undefined, drag: { x: true, y: false } },
        scales: { x: { time: false, distr: o.logX ? 3 : 1, range: o.logX ? undefined : (u, lo, hi) => [lo, hi] }, y: { distr: o.log ? 3 : 1, range: o.log ? undefined : (u, lo, hi) => [0, hi > 0 ? hi * 1.05 : 1] } },
        axes: [Object.assign(axis(), { values: (u, vs) => vs.map((v) => (v === null ? "" : o.time ? time(v) : num(v))), space: 60 }, o.time ? { incrs: rounds } : {}), Object.assign(axis(), { values: (u, vs) => vs.map((v) => (v === null ? "" : num(v))), size: 58 })],
        series: [{ label: o.time ? "at" : "value", value: (u, v) => (v === null ? "–" : o.time ? time(v) : num(v)) }].concat(series.map((s, j) => ({
          label: s.label || title, stroke: color(many ? s.run : s.k), width: many && s.k > 0 ? 1 : 1.6, dash: many ? dashes[s.run % 6] : dashes[s.k % 6], alpha: many && s.k > 0 ? 0.6 : 1,
          spanGaps: sparse(columns[j + 1]), points: { show: sparse(columns[j + 1]), size: 4 }, value: (u, v) => num(v),
        }))),
        hooks: { drawClear: [(u) => { if (o.time) shade(u); }], setScale: [(u, k) => { if (o.time && k === "x") follow(u); }] },
      }, columns, holder);
      if (o.time) zoomed.push(plot);
    }
    make();
    redraw.push(make);
    new ResizeObserver(() => { const w = holder.clientWidth; if (plot && w > 0 && Math.abs(w - plot.width) > 1) plot.setSize({ width: w, height: 210 }); }).observe(holder);
  }
  // shade marks the time in which a GPU's clocks were cut.
  function shade(u) {
    runs.forEach((r, i) => ((r.charts || {}).throttled || []).forEach((t) => {
      const a = Math.max(u.valToPos(t.from_s, "x", true), u.bbox.left), b = Math.min(u.valToPos(t.to_s, "x", true), u.bbox.left + u.bbox.width);
      if (b < a) return;
      u.ctx.save();
      u.ctx.globalAlpha = 0.28;
      u.ctx.fillStyle = many ? color(i) : css("--cut");
      u.ctx.fillRect(a, u.bbox.top, Math.max(b - a, 2), u.bbox.height);
      u.ctx.restore();
    }));
  }
  // sparse: so few values that a line would not show them
  const sparse = (c) => c.filter((v) => v !== null && v !== undefined).length < c.length * 0.6;
  let following = false;
  function follow(u) {
    if (following) return;
    following = true;
    const { min, max } = u.scales.x;
    for (const p of zoomed) if (p !== u && (p.scales.x.min !== min || p.scales.x.max !== max)) p.setScale("x", { min, max });
    following = false;
  }

  function modelSection() {
    if (!runs.some((r) => r.summary.mix || r.summary.pages)) return;
    page.append(el("h2", {}, "Pages and mix"));
    const box = el("div", { class: "charts" });
    page.append(box);
    runs.forEach((r, i) => {
      const m = r.summary.mix, p = r.summary.pages, f = r.charts && r.charts.interference;
      const part = el("div", { class: "chart" }, el("h3", {}, many ? key(i) : null, r.summary.label));
      if (m && m.early.idle !== null) {
        const shares = [["idle", m.early.idle], ["prefill only", m.early.prefill_only], ["decode only", m.early.decode_only], ["both", m.early.mixed]];
        const bar = el("div", { class: "bar", role: "img", "aria-label": shares.map(([n, v]) => n + " " + pct(v)).join(", ") });
        shares.forEach(([n, v], k) => { const part = el("i", { class: "m" + k, title: n + " " + pct(v) }); part.style.width = (v * 100) + "%"; bar.append(part); });
        part.append(bar, el("p", {}, shares.map(([n, v]) => n + " " + pct(v)).join(" · ") + ` · ${num(m.early.switches_per_s)} switches/s`));
        part.append(el("p", { class: "quiet" }, `Where prefill starts as late as it can: idle ${pct(m.late.idle)}, prefill ${pct(m.late.prefill_only)}, decode ${pct(m.late.decode_only)}, both ${pct(m.late.mixed)}. Prefill ${num(m.prefill_tokens_per_s)} and decode ${num(m.decode_tokens_per_s)} tokens/s; the server counts ${num(m.server_prefill_tokens_per_s)} and ${num(m.server_decode_tokens_per_s)}.`));
      }
      if (p && p.in_use.high.mean !== null) part.append(el("p", {}, `Pages: ${num(p.in_use.low.mean)} to ${num(p.in_use.high.mean)} in use` + (p.capacity ? ` of ${num(p.capacity)} (${p.block_size} tokens each)` : ` (${p.block_size} tokens each, ${p.block_size_source})`) + `, peak demand ${num(p.peak_demand)}; fill ${pct(p.fill)}, sharing ${num(p.sharing)}. The server says ${num(p.server_mean)}` + (p.difference === null ? "." : `, ${pct(p.difference)} from the middle of the model.`)));
      if (f && f.slowdown !== null) part.append(el("p", {}, `Interference: a token took ${num(f.itl_decode_only_ms)} ms while only decode ran and ${num(f.itl_mixed_ms)} ms while prefill did too: ${num(f.slowdown)} times. First token against requests in flight: rank correlation ${num(f.ttft_in_flight_correlation)}; against pages: ${num(f.ttft_pages_correlation)}.`));
      box.append(part);
    });
    scatter(box, "gap per token (p50, ms) against prefill tokens/s", "prefill_rate", "itl_p50");
    scatter(box, "first token (p50, ms) against requests in flight", "in_flight", "ttft_p50");
    scatter(box, "first token (p50, ms) against requests waiting, server", "server_waiting", "ttft_p50");
    scatter(box, "first token (p50, ms) against pages in use, model", "pages_high", "ttft_p50");
    missRatio(box);
  }

  function scatter(box, title, xs, ys) {
    const with_ = runs.map((r, i) => [r, i]).filter(([r]) => r.charts && r.charts.time[xs] && r.charts.time[ys]);
    if (!with_.length) return;
    const points = with_.flatMap(([r, i]) => r.charts.time[xs].map((x, k) => [x, r.charts.time[ys][k], i])).filter(([x, y]) => x !== null && y !== null).sort((a, b) => a[0] - b[0]);
    if (points.length < 3) return;
    const columns = [points.map((p) => p[0])].concat(with_.map(([, i]) => points.map((p) => (p[2] === i ? p[1] : null))));
    const holder = el("div", { class: "plot" });
    box.append(el("div", { class: "chart" }, el("h3", {}, title), holder));
    let plot = null;
    function make() {
      if (plot) plot.destroy();
      const axis = { stroke: css("--quiet"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid") }, font: "11px system-ui, sans-serif" };
      plot = new uPlot({
        width: Math.max(holder.clientWidth, 200), height: 210, scales: { x: { time: false }, y: { range: (u, lo, hi) => [0, hi > 0 ? hi * 1.05 : 1] } },
        axes: [Object.assign({}, axis, { values: (u, vs) => vs.map(num), space: 60 }), Object.assign({}, axis, { values: (u, vs) => vs.map(num), size: 58 })],
        series: [{ label: "at", value: (u, v) => num(v) }].concat(with_.map(([r, i]) => ({ label: r.summary.label, stroke: color(i), paths: () => null, points: { show: true, size: 4, fill: color(i) }, value: (u, v) => num(v) }))),
      }, columns, holder);
    }
    make();
    redraw.push(make);
    new ResizeObserver(() => { const w = holder.clientWidth; if (w > 0 && Math.abs(w - plot.width) > 1) plot.setSize({ width: w, height: 210 }); }).observe(holder);
  }

  function missRatio(box) {
    const with_ = runs.map((r, i) => [r, i]).filter(([r]) => r.summary.pages && r.summary.pages.curve && r.summary.pages.curve.length > 1);
    if (!with_.length) return;
    const x = [...new Set(with_.flatMap(([r]) => r.summary.pages.curve.map((c) => c.pages)))].sort((a, b) => a - b);
    draw(box, "share of prompt blocks that an LRU cache of so many pages hits", [x].concat(with_.map(([r]) => { const m = new Map(r.summary.pages.curve.map((c) => [c.pages, c.hit_rate])); return x.map((v) => (m.has(v) ? m.get(v) : null)); })),
      with_.map(([r, i]) => ({ run: i, k: 0, label: many ? r.summary.label : "hits" })), { logX: true });
  }

  function anomalies() {
    if (!runs.some((r) => (r.summary.anomalies || []).length)) return;
    page.append(el("h2", {}, "What stands out"));
    runs.forEach((r, i) => {
      const rows = (r.summary.anomalies || []).map((a) => [el("td", { class: "text" }, many ? key(i) : null, a.name), a.at_s === null ? "–" : num(a.at_s) + " s", el("td", { class: "wrap" }, a.evidence)]);
      if (rows.length) page.append(table(["what", "when", "evidence"], rows, [0, 2]));
    });
  }

  function slowest() {
    if (!runs.some((r) => r.charts && (r.charts.slowest || []).length)) return;
    page.append(el("h2", {}, "The slowest requests"));
    runs.forEach((r, i) => {
      if (!r.charts || !(r.charts.slowest || []).length) return;
      if (many) page.append(el("h3", {}, key(i), r.summary.label));
      page.append(table(["exchange", "at, s", "input", "output", "ttft, ms", "tpot, ms", "e2el, ms", "send lag, ms", "end", "model"],
        r.charts.slowest.map((s) => [num(s.exchange_id), num(s.at_s), num(s.input_tokens), num(s.output_tokens), num(s.ttft_ms), num(s.tpot_ms), num(s.e2el_ms), num(s.send_lag_ms), s.end || "–", s.model || "–"]), [8, 9]));
    });
  }

  function words() {
    page.append(el("h2", {}, "The same word, another meaning"));
    page.append(table(["ours", "vLLM bench", "GuideLLM", "AIPerf", "inference-perf"], [
      ["ttft, from schedule; from send beside it", "from send, first chunk with choices", "from send, first text, reasoning or tool", "from before the connection, first of any kind", "first content only"],
      ["tpot = (last − first) ÷ (tokens after the first event)", "(e2el − ttft) ÷ (n − 1)", "called ITL", "called ITL", "(last − first) ÷ (n − 1)"],
      ["itl, weighted by tokens", "per chunk", "none", "ICL, per chunk", "per token, k − 1 zeros for a chunk of k"],
      ["none", "", "TPOT: from the request's start over n", "", "NTPOT"],
      ["e2el, to the last token", "to the last chunk", "to the end", "to the last content chunk", "to the end"],
    ], [0, 1, 2, 3, 4]));
    if (data.synthetic) page.append(el("h3", {}, "The nearest fixed-length load"), el("pre", {}, el("code", {}, data.synthetic)), el("p", { class: "quiet" }, "Same means, but every request alike and none sharing a prefix: see what that does to pages, mix and the slowest requests."));
    page.append(el("details", {}, el("summary", {}, "Definitions"), table(["figure", "unit", "definition"], data.metrics.map((m) => [m.name, m.unit, el("td", { class: "wrap" }, m.definition)]), [1, 2])));
    page.append(el("p", { class: "quiet" }, "Intervals are within a run: they are blind to what differs from one start of a server to the next. Made by Shadowtape " + (data.version || "") + "; charts by uPlot (MIT)."));
  }

  // first screen
  page.append(el("h1", {}, data.title || runs.map((r) => r.summary.label).join(" · ")));
  if (data.diff) verdictOfDiff(data.diff);
  runs.forEach((r, i) => verdictOfRun(r.summary, i));
  cards();
  if (many) { sideBySide(); distributions(); }
  if (data.diff) diffTable(data.diff);
  metricTables();
  wholeRun();
  chartSections();
  if (!many) distributions();
  modelSection();
  anomalies();
  slowest();
  words();

  const again = () => redraw.forEach((f) => f());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  // Paper is light whatever the screen is, and as wide as it is.
  addEventListener("beforeprint", () => { document.documentElement.classList.add("paper"); again(); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); again(); });
  window.shadowtape = { ranges: () => zoomed.map((p) => [p.scales.x.min, p.scales.x.max]), over: () => zoomed[0].over }; // what the charts over time show, for tests
  document.documentElement.dataset.ready = "yes";
})();
