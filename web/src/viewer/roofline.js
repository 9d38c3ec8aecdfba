import { bar, cards, legend, make, panel, svg, table } from "./dom.js";
import { quantity, size, whole } from "../shared/num.js";

const EXCEEDED = "> probe: faster than the device's limit, so the probe was too low (the machine was busy), or caches held the data; `tlite devices --probe` measures again";
const KINDS = [["f32", "f32", "f32_flops_per_s"], ["tensor cores", "tensor-cores", "matrix_flops_per_s"], ["f16", "f16", "f16_flops_per_s"],
  ["int8", "int8", "int8_ops_per_s"], ["int16", "int16", "int16_ops_per_s"]].map(([name, style, peak]) => ({ name, style, peak, unit: name.startsWith("int") ? "OP/s" : "FLOP/s" }));
const WIDTH = 560, HEIGHT = 330, LEFT = 48, RIGHT = 440, TOP = 26, BOTTOM = 284;
/* Shares of time from which an operator has a line in the list, and a name in the picture; lines in the list. */
const MIN_SHARE = .001, NAMED_SHARE = .01, LISTED = 8;

const share = (v) => `${(100 * v).toFixed(1)} %`;
const limit = (v) => v > 1 ? "> probe" : share(v);
const bytesOf = (k) => k.read_bytes + k.written_bytes;

/** The arithmetic of some work: as the report says, else the one whose peak gives the share of arithmetic. */
export function arithmeticOf(k, peaks) {
  const named = KINDS.find((a) => a.name === k.arithmetic || a.style === k.arithmetic);
  if (named) return named;
  const rate = k.flops > 0 && (k.share_of_arithmetic > 0 ? k.flops_per_s / k.share_of_arithmetic : k.arithmetic_s > 0 ? k.flops / k.arithmetic_s : 0);
  if (!rate) return KINDS[0];
  const far = (a) => peaks[a.peak] ? Math.abs(Math.log(peaks[a.peak] / rate)) : Infinity;
  return KINDS.reduce((best, a) => far(a) < far(best) ? a : best);
}

/** The reports of `tlite profile`, and of `tlite roofline`, which has lower bounds instead of measured times. */
export function roofline(report) {
  const p = report.peaks, measured = Boolean(report.runs), runs = report.runs ?? report.work.map(estimated);
  const peaks = [["memory", p.bytes_per_s, "B/s"], ["f32", p.f32_flops_per_s, "FLOP/s"], ["f16", p.f16_flops_per_s, "FLOP/s"], ["tensor cores", p.matrix_flops_per_s, "FLOP/s"],
    ["int8 dot product", p.int8_ops_per_s, "OP/s"], ["int16", p.int16_ops_per_s, "OP/s"], ["launch", p.launch_s, "s"]].filter(([, v]) => v !== null && v !== undefined);
  const body = [make("p", { class: "v-hint v-note" }, "In the pictures each dot is an operator. x: operations per byte; y: operations per second; size: share of time. "
    + "A roof is what the device allows for one kind of arithmetic; a dot is limited by the roof of its color. Dots at the left edge move data and compute nothing.")];
  if (!measured) body.push(make("p", { class: "v-hint v-note" }, "Times are lower bounds, computed without running the model. A dot below its roof loses time to launches."));
  if (measured && runs.some((r) => [r.whole, ...r.kinds].some((k) => k.exceeds_probe))) body.push(make("p", { class: "v-hint v-note" }, EXCEEDED));
  for (const run of runs) body.push(section(run, p, measured));
  return {
    header: {
      kind: measured ? "tlite profile" : "tlite roofline", title: report.model, headline: `${report.device} (${report.backend})`,
      more: [make("details", { class: "v-more-about" }, make("summary", {}, "Driver"), make("p", { class: "v-hint" }, report.driver)),
        cards(peaks.map(([name, v, unit]) => [name, quantity(v, unit), "measured peak"]))],
    },
    body,
  };
}

/* A run of the roofline report, as if it took as long as it must at least. */
function estimated(work) {
  const whole = work.whole.least_s;
  const timed = (k) => ({ ...k, seconds: k.least_s, share: k.least_s / Math.max(whole, 1e-12), bytes_per_s: bytesOf(k) / Math.max(k.least_s, 1e-12),
    flops_per_s: k.flops / Math.max(k.least_s, 1e-12), share_of_least: 1 });
  return { ...work, whole: timed(work.whole), kinds: work.kinds.map(timed), lines: work.lines.map(timed) };
}

function section(run, peaks, measured) {
  const of = run.whole.share_of_least;
  const title = measured ? `${run.name}: ${quantity(run.whole.seconds, "s")}, ${of > 1 ? limit(of) : `${limit(of)} of the device's limit`}`
    : `${run.name}: at least ${quantity(run.whole.seconds, "s")}${run.most_tokens_per_s ? `, at most ${whole(Math.round(run.most_tokens_per_s))} tokens/s` : ""}`;
  const columns = (name, label, more = []) => [
    { name: label, text: (k) => k[name], left: true, find: true }, ...more,
    { name: measured ? "time" : "minimum time", text: (k) => quantity(k.seconds, "s"), key: (k) => k.seconds }, { name: "share", text: (k) => share(k.share), key: (k) => k.share },
    { name: "bytes", text: (k) => onDevice(k) ? size(bytesOf(k)) : "-", key: bytesOf, wide: true }, { name: "FLOP", text: (k) => k.flops ? quantity(k.flops, "") : "-", key: (k) => k.flops, wide: true },
    ...(measured ? [
      { name: "memory", text: (k) => onDevice(k) ? quantity(k.bytes_per_s, "B/s") : "-", key: (k) => k.bytes_per_s, wide: true }, { name: "of peak", text: (k) => onDevice(k) ? limit(k.share_of_memory) : "-", key: (k) => k.share_of_memory, wide: true },
      { name: "arithmetic", text: (k) => k.flops ? quantity(k.flops_per_s, arithmeticOf(k, peaks).unit) : "-", key: (k) => k.flops_per_s, wide: true }, { name: "of peak", text: (k) => k.flops ? limit(k.share_of_arithmetic) : "-", key: (k) => k.share_of_arithmetic, wide: true },
    ] : []),
    { name: "bound by", text: (k) => onDevice(k) ? k.bound : "not on the device", left: true },
    ...(measured ? [{ name: "of limit", text: (k) => onDevice(k) ? limit(k.share_of_least) : "-", key: (k) => k.share_of_least }] : [])];
  const nodes = { name: "nodes", text: (k) => whole(k.nodes), key: (k) => k.nodes, wide: true };
  const kinds = columns("op", "operator", [nodes]);
  const total = { ...run.whole, op: "all", nodes: run.lines.length };
  const detail = (title, content) => make("details", {}, make("summary", {}, title), content);
  return panel(title, make("div", { class: "v-run" }, make("div", { class: "v-scroll", tabindex: "0", role: "group", "aria-label": `Picture of ${run.name}` }, picture(run, peaks)),
    make("div", {}, make("h3", {}, measured ? "Where the time goes" : "Where the minimum time goes"), times(run, peaks))),
  table(`Operators of ${run.name}`, kinds, run.kinds, { limit: 12, found: "operator", last: () => make("tr", { class: "v-all" },
    kinds.map((c) => make("td", { class: [c.left && "left", c.wide && "wide"].filter(Boolean).join(" ") || null }, c.text(total)))) }),
  run.kernels?.length ? detail(`Kernels (${run.kernels.length})`, table(`Kernels of ${run.name}`, [{ name: "kernel", text: (k) => make("span", { class: "v-mono" }, k.kernel), key: (k) => k.kernel, left: true },
    { name: "dispatches", text: (k) => whole(k.dispatches), key: (k) => k.dispatches }, { name: "time", text: (k) => quantity(k.seconds, "s"), key: (k) => k.seconds },
    { name: "share", text: (k) => share(k.seconds / Math.max(run.whole.seconds, 1e-12)), key: (k) => k.seconds, wide: true }], run.kernels, { limit: 20, found: "kernel" })) : null,
  run.lines?.length ? detail(`Nodes (${run.lines.length})`, table(`Nodes of ${run.name}`, columns("node", "node", [{ name: "operator", text: (k) => k.op, left: true, find: true, wide: true }]), run.lines, { limit: 40, found: "node" })) : null);
}

const onDevice = (k) => k.launches > 0;

/* A bar per operator. */
function times(run, peaks) {
  const kinds = new Set(run.kinds.filter(onDevice).map((k) => arithmeticOf(k, peaks)));
  const most = Math.max(1e-9, run.kinds[0]?.share ?? 1), shown = run.kinds.slice(0, LISTED).filter((k) => k.share >= MIN_SHARE), rest = run.kinds.slice(shown.length);
  const line = (name, color, part, seconds) => [make("span", { class: "v-what" }, name), make("span", { class: "v-track" }, bar(part / most, color)),
    make("span", { class: "v-soft" }, quantity(seconds, "s")), make("span", {}, share(part))];
  return [legend(make("ul", { class: "v-legend" }), [...kinds].map((a) => [`${a.name} arithmetic`, `var(--${a.style})`])),
    make("div", { class: "v-times" }, shown.map((k) => line(k.op, onDevice(k) ? `var(--${arithmeticOf(k, peaks).style})` : "var(--soft)", k.share, k.seconds)),
      rest.length ? line(`${rest.length} other${rest.length > 1 ? "s" : ""}`, "var(--soft)", rest.reduce((s, k) => s + k.share, 0), rest.reduce((s, k) => s + k.seconds, 0)) : null)];
}

/** A logarithmic axis between powers of ten. */
export function axis(values, from, to) {
  const logs = values.filter((v) => v > 0 && Number.isFinite(v)).map(Math.log10);
  const low = logs.length ? Math.floor(Math.min(...logs)) : 0, high = Math.max(low + 1, logs.length ? Math.ceil(Math.max(...logs)) : 1);
  const every = Math.max(1, Math.ceil((high - low) / 7));
  return {
    low, high,
    at: (v) => from + (Math.max(low, Math.min(high, Math.log10(Math.max(v, 1e-30)))) - low) / (high - low) * (to - from),
    powers: Array.from({ length: Math.floor((high - low) / every) + 1 }, (_, i) => 10 ** (low + i * every)),
  };
}

function picture(run, peaks) {
  const all = run.kinds.filter((k) => bytesOf(k) > 0), intensity = (k) => k.flops / bytesOf(k), ridge = (rate) => 2 * rate / peaks.bytes_per_s;
  const roofs = KINDS.filter((a) => peaks[a.peak] && (a.name !== "int16" || run.kinds.some((k) => arithmeticOf(k, peaks) === a)))
    .map((a) => ({ ...a, rate: peaks[a.peak] })).sort((a, b) => b.rate - a.rate);
  const rates = roofs.map((r) => r.rate);
  const x = axis([.1, ...rates.map(ridge), ...all.filter((k) => k.flops > 0).map(intensity)], LEFT, RIGHT), edge = 10 ** x.low;
  // What computes nothing stands at the left edge, as high as under the roof of memory.
  const height = (k) => k.flops > 0 ? k.flops_per_s : k.bytes_per_s * edge;
  const y = axis([...all.map(height), ...rates.slice(0, 1), edge * peaks.bytes_per_s], BOTTOM, TOP);
  const out = svg("svg", { class: "v-roofline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Roofline of ${run.name}. The table below has the same facts.` });
  const text = (cls, tx, ty, anchor, content) => svg("text", { class: cls, x: tx.toFixed(1), y: ty.toFixed(1), "text-anchor": anchor }, content);
  for (const v of x.powers) {
    const at = x.at(v).toFixed(1);
    out.append(svg("line", { class: "grid", x1: at, x2: at, y1: TOP, y2: BOTTOM }), text("soft", x.at(v), BOTTOM + 16, "middle", v >= 1 ? v.toFixed(0) : String(Number(v.toFixed(3)))));
  }
  for (const v of y.powers) {
    const at = y.at(v).toFixed(1);
    out.append(svg("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: at, y2: at }), text("soft", LEFT - 6, y.at(v) + 4, "end", quantity(v, "").replace(".00", "").replace(".0", "")));
  }
  out.append(text("soft", (LEFT + RIGHT) / 2, BOTTOM + 34, "middle", "operations per byte"), text("soft", 2, TOP - 12, "start", "operations per second"));

  // Names of roofs stand to the right of the picture, one below the other.
  const low = 10 ** x.low, high = 10 ** x.high;
  let free = TOP - 8;
  for (const r of roofs) {
    const points = [low, Math.max(low, Math.min(high, r.rate / peaks.bytes_per_s)), high].map((i) => `${x.at(i).toFixed(1)},${y.at(Math.min(r.rate, i * peaks.bytes_per_s)).toFixed(1)}`);
    const at = Math.max(free, y.at(r.rate));
    free = at + 30;
    out.append(svg("polyline", { class: `roof ${r.style}`, points: points.join(" ") }), text(`rate ${r.style}`, RIGHT + 8, at, "start", r.name), text(`rate ${r.style}`, RIGHT + 8, at + 12.5, "start", quantity(r.rate, r.unit)));
  }
  const knee = Math.max(low, Math.min(high, peaks.f32_flops_per_s / peaks.bytes_per_s));
  const a = [x.at(low), y.at(low * peaks.bytes_per_s)], b = [x.at(knee), y.at(knee * peaks.bytes_per_s)];
  const along = (part) => [a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1])], [mx, my] = along(.45);
  out.append(svg("text", { class: "soft", "text-anchor": "middle", dy: "-6", transform: `translate(${mx.toFixed(1)} ${my.toFixed(1)}) rotate(${(Math.atan2(b[1] - a[1], b[0] - a[0]) * 180 / Math.PI).toFixed(1)})` },
    `memory ${quantity(peaks.bytes_per_s, "B/s")}`));
  const taken = [.25, .35, .45, .55, .65].map(along).map(([px, py]) => ({ left: px - 14, top: py - 18, width: 28, height: 22 }));

  const dots = all.map((kind) => ({ kind, x: x.at(kind.flops > 0 ? intensity(kind) : edge), y: y.at(height(kind)), radius: 2.5 + 12 * Math.sqrt(Math.max(0, Math.min(1, kind.share))) }));
  dots.sort((p, q) => q.radius - p.radius);
  for (const d of dots) {
    const k = d.kind, kind = arithmeticOf(k, peaks);
    out.append(svg("circle", { class: kind.style, "data-op": k.op, cx: d.x.toFixed(1), cy: d.y.toFixed(1), r: d.radius.toFixed(1) },
      svg("title", {}, `${k.op}: ${quantity(k.seconds, "s")}, ${share(k.share)} of the time, ${limit(k.share_of_least)} of its limit, bound by ${k.bound}, ${kind.name}`)));
  }
  labels(out, dots, taken);
  return out;
}

export const meets = (a, b) => a.left < b.left + b.width && b.left < a.left + a.width && a.top < b.top + b.height && b.top < a.top + a.height;
export function meetsCircle(a, x, y, radius) {
  const near = (v, from, length) => Math.max(from, Math.min(from + length, v)) - v;
  return Math.hypot(near(x, a.left, a.width), near(y, a.top, a.height)) < radius;
}
const inside = (a) => a.left > LEFT + 2 && a.left + a.width < RIGHT - 2 && a.top > TOP + 2 && a.top + a.height < BOTTOM - 2;

/* Names beside the dots that take time, where there is room. */
function labels(out, dots, taken) {
  const LETTER = 6.9, LINE = 13;
  for (const d of dots.filter((o) => o.kind.share >= NAMED_SHARE)) {
    const width = d.kind.op.length * LETTER;
    let place = null;
    search: for (let ring = 0; ring < 9; ring++) {
      for (const angle of [0, 180, 45, -45, 135, -135, 90, -90]) {
        const far = d.radius + 5 + 9 * ring, cos = Math.cos(angle * Math.PI / 180), sin = Math.sin(angle * Math.PI / 180);
        const area = { left: d.x + far * cos - width * (1 - cos) / 2, top: d.y + far * sin - LINE / 2, width, height: LINE };
        if (!inside(area) || taken.some((t) => meets(t, area)) || dots.some((o) => meetsCircle(area, o.x, o.y, o.radius + 1))) continue;
        place = { area, far, cos, sin };
        break search;
      }
    }
    if (!place) continue;
    const { area, far, cos, sin } = place;
    taken.push(area);
    if (far > d.radius + 8) {
      out.append(svg("line", { class: "lead", x1: (d.x + d.radius * cos).toFixed(1), y1: (d.y + d.radius * sin).toFixed(1), x2: (d.x + (far - 3) * cos).toFixed(1), y2: (d.y + (far - 3) * sin).toFixed(1) }));
    }
    out.append(svg("text", { class: "name", x: area.left.toFixed(1), y: (area.top + LINE - 3).toFixed(1) }, d.kind.op));
  }
}
