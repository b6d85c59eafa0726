"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HEIGHT = 250;
const LABEL_PX = 15;
const ROUND_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400];
let charts = [];

const trim = (v) => String(+v.toPrecision(3));
const LEAST_S = 1e-4;
const secs = (v) => (v == null ? "–" : v < 0.9995 ? trim(v * 1e3) + " ms" : trim(v) + " s");
const count = (v) =>
  v == null ? "–" : v >= 1e6 ? trim(v / 1e6) + "M" : v >= 1e4 ? trim(v / 1e3) + "k" : trim(v);
const share = (v) => (v == null ? "–" : trim(v * 100) + "%");
const clock = (v, span) => {
  if (v == null) return "–";
  if (span < 10) return secs(v);
  const s = Math.round(v), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  const two = (n) => String(n).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
};

const axis = (format, size, label) => ({
  stroke: css("--soft"), font: "11px system-ui, sans-serif", size: size,
  label, labelSize: LABEL_PX, labelGap: 0, labelFont: "11px system-ui, sans-serif",
  grid: { stroke: css("--line"), width: 1 }, ticks: { show: false },
  values: (_, ticks) => ticks.map((v) => (v == null ? "" : format(v))),
});
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const line = (run, index, format) => ({
  label: data.runs.length > 1 ? run.name : "value", stroke: css(`--run-${index % 6}`),
  // The first of a few runs is broadest, so that equal runs hide none.
  width: data.runs.length > 3 ? 1.8 : 1.6 + 1.6 * (data.runs.length - 1 - index),
  dash: DASHES[Math.floor(index / 6) % DASHES.length],
  points: { show: false }, spanGaps: true, value: (_, v) => format(v),
});

function draw(element, options, values) {
  const plot = new uPlot(
    { width: element.clientWidth, height: HEIGHT, legend: { live: true }, ...options }, values, element,
  );
  charts.push([plot, element]);
}

const MARKS = [[1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8], [1, 2, 5], [1, 3], [1]];
const TICK_PX = 58;
// Where a logarithmic axis has its lines: the most marks of a decade that leave room for their labels, and
// round steps where all requests took much the same time.
function logTicks(low, high, most) {
  if (high < 4 * low) {
    const rough = (high - low) / Math.max(most, 2), unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((part) => part * unit >= rough);
    const ticks = [];
    for (let n = Math.ceil(low / step); n * step <= high; n++) ticks.push(+(n * step).toPrecision(6));
    return ticks;
  }
  for (const marks of MARKS) {
    const ticks = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
      ticks.push(...marks.map((m) => +(m * 10 ** e).toPrecision(3)).filter((v) => v >= low && v <= high));
    }
    if (ticks.length > most) continue;
    if (ticks.length > 1) return ticks;
  }
  return [low, high].map((v) => +v.toPrecision(3));
}

function cdf(element) {
  const name = element.dataset.cdf;
  const runs = data.runs.map((run, index) => [run, index]).filter(([run]) => run.cdfs[name]);
  if (!runs.length) {
    element.textContent = "No request came so far.";
    return;
  }
  const tables = runs.map(([run]) => {
    // The curve rises from nothing at the fastest request, so that one request is a line, too.
    const x = [Math.max(run.cdfs[name][0], LEAST_S) * 0.999], y = [0];
    run.cdfs[name].forEach((v, i) => {
      v = Math.max(v, LEAST_S);
      if (x.length && v <= x[x.length - 1]) y[y.length - 1] = data.percents[i] / 100;
      else { x.push(v); y.push(data.percents[i] / 100); }
    });
    return [x, y];
  });
  const limits = [...new Set(runs.flatMap(([run]) => run.limits_s[name] ?? []))];
  // The axis ends where the curves and limits do, and not at the next power of ten.
  const seen = tables.flatMap(([x]) => [x[0], x[x.length - 1]]), all = [...seen, ...limits];
  const range = (_, low, high) =>
    low > Math.min(...seen) || high < Math.max(...seen) ? [low, high]
      : Math.max(...all) <= LEAST_S ? [LEAST_S, 10 * LEAST_S] : [Math.max(Math.min(...all) / 1.05, LEAST_S), Math.max(...all) * 1.05];
  const splits = (plot, _, low, high) => logTicks(low, high, plot.bbox.width / devicePixelRatio / TICK_PX);
  draw(element, {
    scales: { x: { time: false, distr: 3, range }, y: { range: [0, 1] } },
    axes: [
      { ...axis((v) => (v > LEAST_S ? secs(v) : "≤ " + secs(LEAST_S)), 34, "at most"), splits, filter: (_, ticks) => ticks },
      axis(share, 46, "share of requests"),
    ],
    hooks: { draw: [(plot) => limits.forEach((limit, row) => mark(plot, limit, row))] },
    series: [{ label: "at most", value: (_, v) => secs(v) }, ...runs.map(([r, i]) => line(r, i, share))],
  }, uPlot.join(tables));
}

function mark(plot, limit, row) {
  const at = plot.valToPos(limit, "x", true), { left, top, width, height } = plot.bbox;
  if (!(at >= left && at <= left + width)) return;
  const context = plot.ctx;
  context.save();
  context.strokeStyle = context.fillStyle = css("--sun");
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(at, top);
  context.lineTo(at, top + height);
  context.stroke();
  context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  const words = `limit ${secs(limit)}`, right = at + context.measureText(words).width + 8 < left + width;
  context.textAlign = right ? "left" : "right";
  context.fillText(words, at + (right ? 4 : -4), top + height - 6 - 14 * row * devicePixelRatio);
  context.restore();
}

const duration = (runs) => Math.max(...runs.map((run) => run.time_s[run.time_s.length - 1]));
const timeAxis = (span) => ({ ...axis((v) => clock(v, span), 34, "since the first arrival"), incrs: ROUND_S });

function timeline(element) {
  const name = element.dataset.time, isShare = element.dataset.unit === "%";
  const format = isShare ? share : count, least = isShare ? 0.001 : 1, span = duration(data.runs);
  draw(element, {
    scales: { x: { time: false }, y: { range: (_, lo, hi) => [0, Math.max(hi * 1.05, least)] } },
    axes: [timeAxis(span), axis(format, 46, element.dataset.label)],
    series: [
      { label: "at", value: (_, v) => clock(v, span) },
      ...data.runs.map((r, i) => line(r, i, format)),
    ],
  }, uPlot.join(data.runs.map((run) => [run.time_s, run[name]])));
}

function stack(element) {
  const run = data.runs[0];
  const both = run.decode_tokens_per_s.map((v, i) => v + run.prefill_tokens_per_s[i]);
  const area = (label, color, own) => ({
    label, stroke: css(color), fill: css(color) + "55", width: 1.2, points: { show: false },
    value: (u, v, _, i) => (i == null ? "–" : count(own[i])),
  });
  draw(element, {
    scales: { x: { time: false }, y: { range: (_, lo, hi) => [0, Math.max(hi * 1.05, 1)] } },
    axes: [timeAxis(duration([run])), axis(count, 46, "tokens/s")],
    series: [
      { label: "at", value: (_, v) => clock(v, duration([run])) },
      area("prefill", "--run-1", run.prefill_tokens_per_s),
      area("decode", "--run-0", run.decode_tokens_per_s),
    ],
    bands: [{ series: [1, 2] }],
  }, [run.time_s, both, run.decode_tokens_per_s]);
}

function drawAll() {
  charts.forEach(([plot]) => plot.destroy());
  charts = [];
  document.querySelectorAll("[data-cdf]").forEach(cdf);
  document.querySelectorAll("[data-time]").forEach(timeline);
  document.querySelectorAll("[data-stack]").forEach(stack);
}
drawAll();
let pending;
addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(drawAll, 120); });
for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", drawAll);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
document.querySelectorAll("[data-cdf],[data-time],[data-stack]").forEach((chart) =>
  chart.setAttribute("aria-label", `${chart.closest("figure").querySelector("figcaption").textContent}; its figures are in the table below`));
