import { bar, cards, make, panel, svg, table } from "./dom.js";
import { counted, size, whole } from "../shared/num.js";

const WORST = 10, FEW = 24, FULL_DB = 50;
const percent = (v) => `${(100 * v).toFixed(2)} %`;
const shapeText = (shape) => shape.join(" \u00d7 ");
const decibels = (v) => v === null || v === undefined ? "-" : `${v.toFixed(1)} dB`;
const channel = (c) => c ? `${c.snr.toFixed(1)} dB (${c.channel})` : "-";
const formatOf = (w) => `${w.format ?? `E0M${w.bits}`}${w.group_size ? ` in groups of ${w.group_size}` : ""}`;

/* What the command adds to its report: source, target, command line and time. */
function headerOf(report, kind, headline, facts) {
  const meta = report.report ?? {};
  const title = meta.source ? `${meta.source}${meta.target ? ` \u2192 ${meta.target}` : ""}` : "Quantized model";
  const origin = [meta.time, meta.command].filter(Boolean);
  return { kind, title, headline: meta.headline ?? headline, more: [
    origin.length ? make("p", { class: "v-hint v-origin" }, meta.time ?? "", meta.time && meta.command ? " \u00b7 " : "", meta.command ? make("span", { class: "v-mono" }, meta.command) : null) : null,
    cards(facts)] };
}

/** The part of a name before a number, the number, and the rest: `model.layers.`, 3, `mlp.up_proj`. */
export function nameParts(name) {
  let from = 0;
  for (const m of name.matchAll(/[^A-Za-z0-9]/g)) {
    const word = name.slice(from, m.index), kind = name.slice(m.index + 1);
    if (/^\d+$/.test(word) && kind) return [name.slice(0, from), Number(word), kind.replace(/\.weight$/, "")];
    from = m.index + 1;
  }
  return null;
}

/** Weights of repeated layers by kind, or null if fewer than three layers have numbers. */
export function layersOf(weights) {
  const counts = new Map();
  for (const w of weights) {
    const p = nameParts(w.name);
    if (p) counts.set(p[0], (counts.get(p[0]) ?? new Set()).add(p[1]));
  }
  const family = [...counts].sort((a, b) => b[1].size - a[1].size)[0];
  if (!family || family[1].size < 3) return null;
  const kinds = new Map(), others = [];
  for (const w of weights) {
    const p = nameParts(w.name);
    if (!p || p[0] !== family[0]) { others.push(w); continue; }
    if (!kinds.has(p[2])) kinds.set(p[2], new Map());
    kinds.get(p[2]).set(p[1], w);
  }
  return { numbers: [...family[1]].sort((a, b) => a - b), kinds: [...kinds], others };
}

/** The report of `tlite quantize` for weights. */
export function quantize(report) {
  const all = report.weights, bits = [...new Set(all.map((w) => w.bits))].sort((a, b) => a - b);
  const range = !bits.length ? "no weights" : bits.length === 1 ? `${bits[0]}-bit weights` : `${bits[0]}- to ${bits.at(-1)}-bit weights`;
  const groups = [...new Set(all.map((w) => w.group_size))];
  const headline = `method ${report.method}${groups.length === 1 ? groups[0] ? `, groups of ${groups[0]}` : ", one scale per column" : ""}`;
  const header = headerOf(report, "tlite quantize", headline, [
    ["bits per weight", report.bits_per_weight.toFixed(2), `${report.report?.formats ?? range}, with scales`], ["relative error", `${(100 * report.relative_error).toFixed(3)} %`, "RMS over all weights"],
    ["size", size(report.bytes_after), `before: ${size(report.bytes_before)}`], ["weights", whole(all.length), `of ${counted(all.length + report.left.length, "matrix").replace("matrixs", "matrices")}`]]);
  const body = [];
  const layers = layersOf(all);
  if (layers) body.push(heat(layers));
  if (all.length > FEW) {
    const worst = [...all].sort((a, b) => b.relative_error - a.relative_error).slice(0, WORST), most = Math.max(1e-12, worst[0].relative_error);
    body.push(ranking(`The ${worst.length} largest errors`, null, worst.map((w) => [w.name, bar(w.relative_error / most), percent(w.relative_error), formatOf(w)]), "error", "format"));
  }
  const compared = methods(report);
  if (compared) body.push(compared);
  const most = all.reduce((m, w) => Math.max(m, w.relative_error), 1e-12);
  const list = table("All weights", [
    { name: "weight", text: (w) => w.name, left: true, find: true }, { name: "shape", text: (w) => shapeText(w.shape), key: (w) => w.shape.reduce((a, b) => a * b, 1), wide: true },
    { name: "bits", text: (w) => String(w.bits), key: (w) => w.bits }, { name: "group", text: (w) => String(w.group_size ?? "-"), key: (w) => w.group_size ?? 0, wide: true },
    { name: "", bar: true, text: (w) => bar(w.relative_error / most), label: "error as a bar", wide: true }, { name: "error", text: (w) => percent(w.relative_error), key: (w) => w.relative_error },
    { name: "vs. INT4", text: (w) => w.mae_int4 > 0 ? `${(w.mae / w.mae_int4).toFixed(2)}x` : "-", key: (w) => w.mae_int4 > 0 ? w.mae / w.mae_int4 : 0 },
    { name: "max error", text: (w) => w.max_error.toFixed(4), key: (w) => w.max_error, wide: true }, { name: "size", text: (w) => size(w.bytes_after), key: (w) => w.bytes_after, wide: true },
    { name: "before", text: (w) => size(w.bytes_before), key: (w) => w.bytes_before, wide: true }], all, { found: "weight" });
  body.push(panel("Weights", make("details", { open: all.length <= FEW }, make("summary", {}, `All ${counted(all.length, "weight")}`), list),
    report.left.length ? [make("h3", {}, "Not quantized"), make("ul", { class: "v-hint" }, report.left.map((l) => make("li", {}, `${l.name} (${shapeText(l.shape)}): ${l.reason}`)))] : null));
  return { header, body };
}

/** The report of `tlite quantize --format int8`. */
export function int8(report) {
  const facts = report.outputs.map((o) => [`SNR of ${o.name}`, `${o.median_snr.toFixed(1)} dB`, `median; lowest ${o.lowest_snr.toFixed(1)} dB`
    + (o.same_largest !== null && o.same_largest !== undefined ? `; same largest element in ${o.same_largest} of ${report.compared} items` : "")
    + (o.last_layer ? `; lowest of its last layers: ${o.last_layer.snr.toFixed(1)} dB` : "")]);
  facts.push(["layers", whole(report.layers.length), `${counted(report.left.length, "node")} in floats`], ["size", size(report.bytes_after), `before: ${size(report.bytes_before)}`],
    ["calibration items", whole(report.items), `${whole(report.compared)} compared`]);
  const weighted = report.layers.filter((l) => l.compensated !== null && l.compensated !== undefined), made = weighted.filter((l) => l.compensated).length;
  const rounded = !made ? "" : made === weighted.length ? ", compensated weights" : `, compensated weights in ${made} of ${counted(weighted.length, "layer")}`;
  const headline = `int8, ${report.per_tensor ? "per-tensor" : "per-channel"} weights, ${report.symmetric ? "symmetric" : "asymmetric"} activations, ${report.ranges} ranges`
    + `${report.equalized ? `, ${counted(report.equalized, "tensor")} equalized` : ""}${rounded}`;
  const header = headerOf(report, "tlite quantize --format int8", headline, facts), body = [];
  const full = (v) => bar((v ?? 0) / FULL_DB);
  const worst = report.layers.filter((l) => l.kind !== "move" && l.snr !== null && l.snr !== undefined).sort((a, b) => a.snr - b.snr).slice(0, WORST);
  if (worst.length) {
    body.push(ranking(`The ${worst.length} lowest signal-to-noise ratios`, "Of the results of layers, with the noise of all earlier layers.",
      worst.map((l) => [l.name, full(l.snr), decibels(l.snr), l.ops.join(" ")]), "SNR", "operators"));
  }
  const number = (v) => v ?? -Infinity;
  body.push(panel("Layers", make("p", { class: "v-hint" }, "The number in parentheses is the channel."), table("All layers", [
    { name: "layer", text: (l) => l.name, left: true, find: true }, { name: "operators", text: (l) => l.ops.join(" "), left: true, find: true, wide: true },
    { name: "weights", text: (l) => l.shape.length ? shapeText(l.shape) : "-", key: (l) => l.shape.length ? l.shape.reduce((a, b) => a * b, 1) : 0, wide: true },
    { name: "range", text: (l) => `${l.range[0].toFixed(3)} to ${l.range[1].toFixed(3)}`, key: (l) => l.range[1] - l.range[0], wide: true },
    { name: "scale", text: (l) => l.scale.toPrecision(3), key: (l) => l.scale, wide: true },
    { name: "zero point", text: (l) => String(l.zero_point), key: (l) => l.zero_point, wide: true },
    { name: "SNR of weights", text: (l) => decibels(l.weights_snr), key: (l) => number(l.weights_snr) }, { name: "worst channel", text: (l) => channel(l.worst_weights), key: (l) => number(l.worst_weights?.snr), wide: true },
    ...(report.compared > 0 ? [{ name: "SNR", text: (l) => decibels(l.snr), key: (l) => number(l.snr) }, { name: "worst channel", text: (l) => channel(l.worst), key: (l) => number(l.worst?.snr), wide: true }] : []),
  ], report.layers, { found: "layer" })));
  if (report.left.length) {
    body.push(panel("Nodes in floats", table("Nodes in floats", [{ name: "operator", text: (l) => l.op, left: true, find: true }, { name: "node", text: (l) => l.name, left: true, find: true },
      { name: "reason", text: (l) => l.reason, left: true, find: true }], report.left, { found: "node" })));
  }
  const warnings = report.warnings ?? report.report?.warnings ?? [];
  if (warnings.length) body.push(panel("Warnings", make("ul", { class: "v-hint" }, warnings.map((w) => make("li", {}, w)))));
  return { header, body };
}

function ranking(title, hint, rows, value, more) {
  return panel(title, hint ? make("p", { class: "v-hint" }, hint) : null, table(title, [{ name: "name", text: (r) => r[0], left: true }, { name: "", label: `${value} as a bar`, bar: true, text: (r) => r[1] },
    { name: value, text: (r) => r[2], key: (r) => Number.parseFloat(r[2]) }, { name: more, text: (r) => r[3], left: true, wide: true }], rows));
}

/* A grid of cells by layer and kind of weight. */
function heat(layers) {
  const all = layers.kinds.flatMap(([, m]) => [...m.values()]), errors = all.map((w) => w.relative_error);
  const low = Math.min(...errors), high = Math.max(...errors), span = Math.max(1e-9, high - low);
  const out = panel("Relative error by layer and kind", make("p", { class: "v-hint" }, percent(low), " ", make("span", { class: "v-scale" }), " ", percent(high)),
    grid(layers, (w) => (w.relative_error - low) / span, () => "", (m) => percent([...m.values()].reduce((s, w) => s + w.relative_error, 0) / m.size)));
  if (new Set(all.map((w) => w.bits)).size > 1) out.append(make("h3", {}, "Bits by layer and kind"), grid(layers, (w) => w.bits / 10, (w) => String(w.bits), null));
  if (layers.others.length) out.append(make("p", { class: "v-hint" }, `Outside of layers: ${layers.others.map((w) => `${w.name} ${percent(w.relative_error)} (${formatOf(w)})`).join(", ")}`));
  return out;
}

function grid(layers, shade, text, last) {
  const every = Math.max(1, Math.ceil(layers.numbers.length / 12));
  const columns = `fit-content(30%) repeat(${layers.numbers.length}, minmax(0, 1fr))${last ? " max-content" : ""}`;
  return make("div", { class: "v-heat", style: { "grid-template-columns": columns } },
    make("span", { class: "v-soft" }, "layer"), layers.numbers.map((n, i) => make("span", { class: "v-soft" }, i % every ? "" : String(n))), last ? make("span", { class: "v-soft v-mean" }, "mean") : null,
    layers.kinds.map(([kind, m]) => [make("span", {}, kind), layers.numbers.map((n) => {
      const w = m.get(n);
      if (!w) return make("span", { class: "v-cell none" });
      return make("span", { class: "v-cell", title: `${w.name}: ${percent(w.relative_error)}, ${formatOf(w)}`, style: { "--v": `${Math.round(100 * Math.max(0, Math.min(1, shade(w))))}%` } }, text(w));
    }), last ? make("span", { class: "v-mean" }, last(m)) : null].flat()));
}

/* How methods compare on weights of 4 bits: a strip of dots per method. */
function methods(report) {
  const four = report.weights.filter((w) => w.bits === 4), names = [...new Set(four.flatMap((w) => (w.compared ?? []).map((c) => c[0])))];
  const strips = names.map((n) => [n, n, four.flatMap((w) => w.compared?.filter((c) => c[0] === n).map((c) => [w.name, c[1]]) ?? [])]);
  strips.push(["written", `written: ${report.method}`, four.filter((w) => w.mae_int4 > 0).map((w) => [w.name, w.mae / w.mae_int4])]);
  const shown = strips.filter(([,, dots]) => dots.length);
  if (!shown.length) return null;
  const ratios = shown.flatMap(([,, dots]) => dots.map((d) => d[1]));
  // Tenths around all dots and the line of INT4.
  const low = Math.max(0, Math.floor(Math.min(.9, ...ratios) * 10 - .2) / 10), high = Math.ceil(Math.max(1, ...ratios) * 10 + .2) / 10;
  const at = (r) => `${(100 * (r - low) / (high - low)).toFixed(2)}%`, tenths = Math.round((high - low) * 10), every = Math.max(1, Math.ceil(tenths / 6));
  const marks = Array.from({ length: Math.floor(tenths / every) + 1 }, (_, i) => low + i * every / 10);
  return panel("Methods compared with INT4", make("p", { class: "v-hint" }, "Each dot is a 4-bit weight: the mean absolute error of the method, divided by that of asymmetric INT4 with the same groups (dashed line). "
    + "Left is better. Methods are compared on a sample of columns; what was written is measured on all. Calibrated methods may move weights further but keep outputs closer."),
  make("div", { class: "v-strips" }, shown.map(([style, name, dots]) => {
    const mean = dots.reduce((s, d) => s + d[1], 0) / dots.length;
    const line = (r, cls) => svg("line", { class: cls, x1: at(r), x2: at(r), y1: 0, y2: 28 });
    return [make("span", {}, name), svg("svg", { class: `v-strip-${style}`, role: "img", "aria-label": `${name}: mean ${mean.toFixed(2)} of INT4's error` }, marks.map((m) => line(m, "grid")), line(1, "one"),
      dots.map(([weight, r], i) => svg("circle", { cx: at(r), cy: 14 + [0, -6, 6, -3, 3][i % 5], r: 3.5 }, svg("title", {}, `${weight}: ${r.toFixed(3)}`)))), make("span", { class: "v-soft" }, `mean ${mean.toFixed(2)}`)];
  }).flat(), make("span"), make("div", { class: "v-axis" }, marks.map((m) => make("span", { style: { left: at(m) } }, m.toFixed(1)))), make("span")));
}
