import { cards, choice, colorsAt, facts, legend, make, panel, table, unique } from "./dom.js";
import { graph } from "./graph.js";
import { environment, place, plansOf } from "./plan.js";
import { timeline } from "./timeline.js";
import { counted, parameters, percent, size, whole } from "../shared/num.js";

const WHO = { bind: "from --bind", bounds: "from --bounds", context: "the context", chunk: "one prefill run",
  one_sequence: "one sequence at a time", assumed: "assumed; set it with --bounds", data: "known during the run" };
const COLORS = ["ink", "soft", "line", "sunken", "panel", "accent", "tensor", "tensor-fill", "shape", "shape-fill", "host", "host-fill", "group",
  "group-fill", "port", "port-fill", "box0", "box1", "view", "place", "live", "bound"];

/** Format of weights in words: `4-bit E0M4 in groups of 32`. */
function formatText(w) {
  const names = { f32: "32-bit floats (f32)", f16: "16-bit floats (f16)", bf16: "16-bit floats (bf16)" };
  if (names[w.format]) return names[w.format];
  return `${w.bits}-bit ${w.format}${w.group ? ` in groups of ${w.group}` : ""}`;
}

/** The storage of the weights of matrices and, if it differs, of embedding and head. */
export function weightsText(s) {
  const matrices = (head) => (s.weights ?? []).filter((w) => w.matrix && w.head === head);
  const body = matrices(false), head = matrices(true), total = body.reduce((n, w) => n + w.parameters, 0);
  const most = body.filter((w) => w.parameters >= Math.floor(total / 50)), bits = s.bits_per_weight;
  if (!most.length) return head.length ? formatText(head[0]) : null;
  let text = most.length > 1 ? `${[...new Set(most.map((w) => w.format))].sort().join(", ")}: ${(bits ?? 0).toFixed(2)} bits on average`
    : formatText(most[0]) + (most[0].group && bits ? `, ${bits.toFixed(2)} bits with scales` : "");
  if (head.some((w) => w.format !== most[0].format)) text += `; embedding and head ${[...new Set(head.map(formatText))].join(" and ")}`;
  return text;
}

function lineOf(s) {
  return [s.architecture, `${parameters(s.parameters)} parameters`, s.layers && `${s.layers} layers`, weightsText(s),
    s.vocabulary && `vocabulary of ${s.vocabulary} tokens`, s.max_context && `context up to ${s.max_context} tokens`].filter(Boolean).join(", ");
}

function factsOf(report) {
  const s = report.model.summary, yes = (b) => b === null || b === undefined ? null : b ? "yes" : "no";
  const heads = s.heads ? `${s.heads}${s.kv_heads && s.kv_heads !== s.heads ? ` (${s.kv_heads} for keys and values)` : ""}${s.head_size ? `, ${s.head_size} wide` : ""}` : null;
  return [["name", report.model.own_name], ["architecture", s.architecture], ["parameters", parameters(s.parameters)], ["weights", weightsText(s)], ["layers", s.layers],
    ["hidden size", s.hidden_size], ["heads", heads], ["vocabulary", s.vocabulary && `${s.vocabulary} tokens`], ["context", s.max_context && `${s.max_context} tokens`],
    ["chat template", yes(s.chat_template)], ["tokenizer", s.tokenizer], ["files", (s.files ?? []).map((f) => `${f.name} (${size(f.bytes)})`).join(", ")],
    ["planned for", `${report.device.name} (${report.device.backend})`]]
    .filter(([, v]) => v).map(([k, v]) => [k, String(v)]);
}

/** The report of `tlite inspect`. Returns its header, its body, and actions for the address's fragment. */
export function inspect(report) {
  const plans = plansOf(report), d = report.model.decoder;
  const state = { plans, plan: 0, values: new Map(report.symbols.map((s) => [s.name, s.upper ?? Math.max(s.lower, 1)])) };
  const main = make("div", { class: "v-main" });
  let placed = null, palette = null;
  const colors = () => palette ??= colorsAt(main, COLORS);
  const time = timeline(() => ({ plan: plans[state.plan], placed }), colors);
  const net = graph(report, state, colors);

  /* ---- header ---- */

  const lengths = report.symbols.filter((s) => s.bound_from !== "data" && s.upper !== null).map((s) => `${s.name} = ${whole(s.upper)}`);
  const at = d ? `at context ${whole(d.context)}` : lengths.length ? "at " + lengths.join(", ") : "fixed sizes";
  const parts = [["Weights", report.weights_bytes, "var(--weights)", "as kernels read them"],
    ["Cache", report.states_bytes, "var(--cache)", counted(report.states.length, "tensor")],
    ["Activations", report.arena_bytes, "var(--arena)", "one arena for all plans"]].filter(([, n], i) => i !== 1 || n > 0);
  const split = bars("v-split", parts.map(([n, b, c]) => [`${n} ${percent(b, report.total_bytes)}`, b, c]));
  const header = {
    kind: [d ? "text-generation model" : "ONNX model", `${whole(report.operators.length)} operators`,
      ...report.model.opsets.map(([domain, v]) => domain ? `${domain} ${v}` : `opset ${v}`)].join(" \u00b7 "),
    title: report.model.name,
    headline: lineOf(report.model.summary),
    more: [make("details", { class: "v-more-about" }, make("summary", {}, "More about this model"), facts(factsOf(report))), split,
      cards([["Memory", size(report.total_bytes), at, null, `${whole(report.total_bytes)} bytes`],
        ...parts.map(([n, b, c, t]) => [n, size(b), t, c, `${whole(b)} bytes`]),
        ["Shape computations", whole(report.shape_ops_at_runtime), `at run time, of ${whole(report.shape_ops_total)} in the file`]])],
  };

  /* ---- lengths ---- */

  const padding = make("p", { class: "v-hint" }), now = make("dl", { class: "v-facts" });
  const planChoice = plans.length < 2 ? null : choice("Plan", plans.map((p, i) => [String(i), p.name]), "0", (v) => { state.plan = Number(v); time.reset(); changed(); });
  const controls = report.symbols.map((s) => {
    const most = s.upper, moves = most === null || most > s.lower, wide = most !== null && most - s.lower > 1, id = unique("symbol");
    const number = make("input", { type: "number", id, min: s.lower, max: most, step: 1, value: state.values.get(s.name), disabled: !moves });
    const range = wide ? make("input", { type: "range", min: s.lower, max: most, step: 1, value: state.values.get(s.name), "aria-label": `${s.name}, slider` }) : null;
    const set = (from) => {
      if (from.disabled) return;
      let v = Math.round(Number(from.value));
      if (!Number.isFinite(v) || from.value === "") return;
      v = Math.max(s.lower, most === null ? v : Math.min(v, most));
      state.values.set(s.name, v);
      if (range) range.value = v;
      if (from !== number) number.value = v;
      changed();
    };
    number.addEventListener("input", () => set(number));
    number.addEventListener("change", () => { number.value = state.values.get(s.name); });
    range?.addEventListener("input", () => set(range));
    const bounds = most === null ? `at least ${whole(s.lower)}` : moves ? `${whole(s.lower)} to ${whole(most)}` : whole(most);
    const name = make("span", {}, s.name.split("_").flatMap((part, i) => i ? [make("wbr"), "_" + part] : [part]));
    const box = make("div", { class: "v-symbol" }, make("label", { class: "v-name", for: id }, name, number), range,
      make("small", {}, `${bounds}, ${WHO[s.bound_from] ?? s.bound_from}. ${s.source[0].toUpperCase()}${s.source.slice(1)}.`));
    return { s, number, range, box, set };
  });

  function changed() {
    const plan = plans[state.plan], env = environment(plan, state.values);
    placed = place(plan, env, report.device.view_align);
    for (const { s, number, range, box } of controls) {
      const fixed = plan.fixed[s.name];
      box.classList.toggle("off", fixed !== undefined);
      // A plan may fix a length that another one leaves open.
      if (!range) continue;
      number.disabled = range.disabled = fixed !== undefined;
      range.value = fixed ?? state.values.get(s.name);
      if (document.activeElement !== number) number.value = range.value;
    }
    const p = plan.padding;
    padding.textContent = p && state.values.has(p.symbol)
      ? `Sizes are those for ${p.symbol} = ${whole(env.get(p.symbol))}: lengths are padded to multiples of ${p.multiple}.` : "";
    const bytes = [["Arena filled", placed.arena, "arena-now"], ["Largest live set", placed.most, "live-now"], ["All tensors", placed.sum, "sum-now"], ["Reserved arena", report.arena_bytes, "arena-reserved"]];
    if (d) {
      const tokens = Math.min(d.context, (state.values.get(d.past) ?? 0) + (plan.fixed[d.sequence] ?? state.values.get(d.sequence) ?? 0));
      bytes.push(["Cache in use", Math.round(report.states_bytes / d.context * tokens), "cache-now"]);
    }
    now.replaceChildren(...bytes.flatMap(([name, n, key]) => [make("dt", {}, name), make("dd", { id: key, "data-bytes": n, title: `${whole(n)} bytes` }, size(n))]),
      ...[["Dispatches", whole(plan.dispatches)], ["Kernels", whole(plan.kernels)], ["Read-backs, uploads", `${plan.read_backs}, ${plan.uploads}`]]
        .flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)]));
    formula.textContent = plan.arena_formula;
    const saved = [["views", plan.gained.views, "var(--view)"], ["results in place", plan.gained.in_place, "var(--place)"],
      ["packing by lifetime", plan.gained.packing, "var(--packing)"], ["left: the arena", plan.arena_bytes, "var(--arena)"]];
    savings.replaceChildren(bars("v-split", saved.map(([n, b, c]) => [`${n} ${size(b)}`, b, c])),
      legend(make("ul", { class: "v-legend" }), [...saved.map(([name, n, c]) => [`${name} ${size(n)}`, c]), [`of ${size(plan.arena_no_reuse_bytes)} without reuse`, "transparent"]]));
    const conditions = [...(plan.conditions ?? []), ...(plan.padding_refused ? [`No length is padded: ${plan.padding_refused}`] : [])];
    rules.replaceChildren(...(conditions.length ? [make("h3", {}, "Each run checks")] : []), make("ul", { class: "v-hint v-rules" }, conditions.map((t) => make("li", {}, t))));
    time.draw();
    time.describe();
    net.describe();
  }

  /* ---- body ---- */

  const formula = make("p", { class: "v-formula" }), savings = make("div"), rules = make("div");
  const used = report.passes.filter((p) => p.edits > 0), rest = report.passes.filter((p) => p.edits === 0);
  const aside = make("aside", { class: "v-aside", "aria-label": "Lengths and sizes" },
    panel("Lengths", planChoice, controls.length ? controls.map((c) => c.box) : make("p", { class: "v-hint" }, "All shapes of this model are numbers."), padding),
    panel("At these lengths", now, rules));
  const memory = panel("Memory over time", time.legend(), ...time.elements,
    make("h3", {}, "What reuse saves, at the longest lengths"), savings,
    make("details", {}, make("summary", {}, "The arena as a formula"), formula));
  const limits = limitsOf(report);
  const work = make("div", { class: "v-work" }, memory, panel("Graph", net.legends, ...net.elements),
    panel("Operators", operators(report)),
    report.states.length ? panel("States", table("KV caches and other states", [
      { name: "input", text: (s) => s.name, left: true, find: true }, { name: "shape", text: (s) => `${s.dtype}[${s.shape.join(", ")}]`, left: true, wide: true },
      { name: "rows", text: (s) => whole(s.rows), key: (s) => s.rows }, { name: "window", text: (s) => s.window ? whole(s.window) : "-", key: (s) => s.window ?? 0, wide: true },
      { name: "size", text: (s) => size(s.bytes), key: (s) => s.bytes }], report.states, { limit: 8, found: "state" })) : null,
    limits,
    panel("Passes", used.length ? table("Graph passes", [{ name: "pass", text: (p) => p.pass, left: true }, { name: "rewrites", text: (p) => whole(p.edits), key: (p) => p.edits },
      { name: "nodes before", text: (p) => whole(p.nodes_before), key: (p) => p.nodes_before, wide: true }, { name: "nodes after", text: (p) => whole(p.nodes_after), key: (p) => p.nodes_after }], used) : null,
    rest.length ? make("p", { class: "v-hint" }, `Nothing to rewrite: ${rest.map((p) => p.pass).join(", ")}.`) : null));
  main.append(aside, work);

  const keep = () => aside.classList.toggle("sticky", aside.offsetHeight < innerHeight - 28);
  new ResizeObserver(keep).observe(aside);

  return {
    header, body: [main],
    start() { time.reset(); changed(); net.start(); },
    recolor() { palette = null; time.draw(); net.draw(); },
    /* `#past=100&plan=decode&view=planned&node=NAME&search=WORD&layer&unfold` sets lengths as a person would. */
    set(key, v) {
      if (key === "plan") planChoice?.querySelectorAll("input")[plans.findIndex((p) => p.name === v)]?.click();
      else if (key === "view") net.view(v);
      else if (key === "node") net.find(v);
      else if (key === "layer") time.oneLayer();
      else if (key === "unfold") net.unfold();
      else if (key === "search") net.search(v);
      else {
        const c = controls.find((x) => x.s.name === key);
        if (c) { (c.range ?? c.number).value = v; c.set(c.range ?? c.number); }
      }
    },
  };
}

function bars(name, parts) {
  return make("div", { class: name, role: "img", "aria-label": parts.map(([n]) => n).join(", ") },
    parts.map(([, n, color]) => make("span", { style: { background: color, "flex-grow": String(n) } })));
}

function operators(report) {
  const types = new Map();
  for (const o of report.operators) types.set(o.op, (types.get(o.op) ?? 0) + 1);
  const list = [...types].sort((a, b) => b[1] - a[1]).map(([op, n]) => `${n} ${op}`).join(", ");
  const shape = (v) => v ? `${v.dtype}[${v.shape.join(", ")}]` : "-";
  return [make("p", { class: "v-hint" }, list), make("details", {}, make("summary", {}, `All ${counted(report.operators.length, "operator")}`), table("Operators", [
    { name: "operator", text: (o) => o.op, left: true, find: true }, { name: "name", text: (o) => o.name, left: true, find: true },
    { name: "makes", text: (o) => o.outputs.map(shape).join(" "), left: true, wide: true },
    { name: "attributes", text: (o) => Object.entries(o.attributes ?? {}).map(([k, v]) => `${k}=${typeof v === "string" ? v : JSON.stringify(v)}`).join(" "), left: true, wide: true, find: true },
    { name: "in the plan", text: (o) => o.becomes.how, left: true }], report.operators, { limit: 50, found: "operator" }))];
}

/* Relations between symbols, assumptions, limits of the device and integer arithmetic. */
function limitsOf(report) {
  const { device } = report, out = [facts([["device", `${device.name}, ${device.kind}`], ["largest buffer", size(device.max_buffer_bytes)],
    ["memory", device.memory_bytes ? size(device.memory_bytes) : "not known"], ["alignment", `${whole(device.view_align)} bytes`],
    ["arena, lower bound", size(report.arena_lower_bound_bytes)], ["arena without reuse", size(report.arena_no_reuse_bytes)],
    ...(report.model.decoder ? [["prefill run", `${whole(report.model.decoder.chunk)} tokens`], ["padding", `multiples of ${whole(report.model.decoder.padding)}`]] : [])])];
  if (report.constraints.length) out.push(make("h3", {}, "Relations between symbols"), make("ul", { class: "v-plain" }, report.constraints.map((c) => make("li", { class: "v-mono" }, c))));
  if (report.assumptions.length) {
    out.push(make("h3", {}, "Assumptions, checked in each run"), table("Assumptions", [
      { name: "condition", text: (a) => make("span", { class: "v-mono" }, a.condition), key: (a) => a.condition, left: true }, { name: "node", text: (a) => a.node, left: true, find: true, wide: true },
      { name: "if it fails", text: (a) => a.meaning, left: true, find: true }], report.assumptions, { limit: 20, found: "assumption" }));
  }
  if (report.integer) {
    out.push(make("h3", {}, "Integer arithmetic"), make("p", { class: "v-hint" }, `${counted(report.integer.nodes, "node")} computed with integers.`));
    if (report.integer.float_nodes.length) {
      out.push(table("Nodes that stay in floats", [{ name: "node", text: (n) => n.node, left: true, find: true }, { name: "operator", text: (n) => n.op, left: true, find: true },
        { name: "reason", text: (n) => n.reason, left: true }], report.integer.float_nodes, { limit: 20, found: "node" }));
    }
  }
  return panel("Limits", ...out);
}
