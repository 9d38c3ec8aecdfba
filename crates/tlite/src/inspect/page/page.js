"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const text = (i) => data.texts[i];

/* A new element with attributes, properties and children; strings become text, never markup. */
function make(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) {
    if (v === null || v === undefined || v === false) continue;
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (k === "color") e.style.background = v;
    else e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.filter((c) => c !== null));
  return e;
}

/* ---- expressions ---- */

/* A function from symbols to a number, of the text of an expression: + - * / % floor ceil min max mod, where / rounds down
   except inside of floor and ceil. */
function compile(source) {
  const tokens = source.match(/\d+|[A-Za-z_]\w*|\/\/|\*\*|[-+*\/%(),]/g) || [];
  let at = 0;
  const take = (t) => tokens[at] === t && ++at;
  const bad = () => { throw new Error("not an expression: " + source); };
  const need = (t) => take(t) || bad();
  function sum(exact) {
    let a = product(exact);
    for (;;) {
      const x = a;
      if (take("+")) { const y = product(exact); a = (v) => x(v) + y(v); }
      else if (take("-")) { const y = product(exact); a = (v) => x(v) - y(v); }
      else return a;
    }
  }
  function product(exact) {
    let a = power(exact);
    for (;;) {
      const x = a;
      if (take("*")) { const y = power(exact); a = (v) => x(v) * y(v); }
      else if (take("/") || take("//")) { const y = power(exact); a = exact ? (v) => x(v) / y(v) : (v) => Math.floor(x(v) / y(v)); }
      else if (take("%")) { const y = power(exact); a = (v) => modulo(x(v), y(v)); }
      else return a;
    }
  }
  function power(exact) {
    if (take("-")) { const x = power(exact); return (v) => -x(v); }
    const x = atom(exact);
    if (take("**")) { const y = atom(exact); return (v) => x(v) ** y(v); }
    return x;
  }
  function atom(exact) {
    const t = tokens[at++];
    if (t === undefined) bad();
    if (t === "(") { const x = sum(exact); need(")"); return x; }
    if (/^\d/.test(t)) { const n = Number(t); return () => n; }
    if (!/^\w/.test(t)) bad();
    if (!take("(")) return (v) => { if (v.has(t)) return v.get(t); throw new Error("no value for " + t); };
    const inner = t === "floor" || t === "ceil";
    const args = [sum(inner || exact)];
    while (take(",")) args.push(sum(inner || exact));
    need(")");
    const all = (v) => args.map((f) => f(v));
    switch (t) {
      case "floor": return (v) => Math.floor(args[0](v));
      case "ceil": return (v) => Math.ceil(args[0](v));
      case "min": return (v) => Math.min(...all(v));
      case "max": return (v) => Math.max(...all(v));
      case "mod": return (v) => modulo(...all(v));
      default: return bad();
    }
  }
  const whole = sum(false);
  if (at !== tokens.length) bad();
  return whole;
}
const modulo = (a, b) => a - b * Math.floor(a / b);
const compiled = data.exprs.map(() => null);
/* The value of expression i, or null where a symbol has none. */
function value(i, env) {
  try {
    compiled[i] ||= compile(data.exprs[i]);
    const v = compiled[i](env);
    return Number.isFinite(v) ? v : null;
  } catch { return null; }
}

/* ---- numbers ---- */

function size(n) {
  if (n === null) return "?";
  let v = n;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (v < 999.95 || unit === "TB") return unit === "B" ? `${n} B` : `${v.toFixed(1)} ${unit}`;
    v /= 1000;
  }
}
const whole = (n) => n === null ? "?" : n.toLocaleString("en");
const percent = (a, b) => b > 0 ? `${(100 * a / b).toFixed(a / b < .1 ? 1 : 0)} %` : "-";

/* ---- state ---- */

const plans = data.plans;
const settings = { plan: 0, view: "operators", values: new Map() };
for (const s of data.symbols) settings.values.set(s.name, s.upper ?? Math.max(s.lower, 1));

/* The values that a plan sees: what is fixed in it is fixed, what it bounds is bounded, a padded length is padded. */
function environment(plan) {
  const env = new Map(settings.values);
  for (const [s, v] of Object.entries(plan.fixed)) env.set(s, v);
  for (const [s, most] of Object.entries(plan.bounds)) if (env.has(s)) env.set(s, Math.min(env.get(s), most));
  const p = plan.padding;
  if (p && env.has(p.symbol)) {
    const v = env.get(p.symbol), most = plan.bounds[p.symbol] ?? Infinity;
    const up = Math.ceil((v + p.beyond) / p.multiple) * p.multiple - p.beyond;
    env.set(p.symbol, Math.max(v, Math.min(up, most)));
  }
  return env;
}

/* Sizes and offsets of all tensors of a plan with these values. Slots keep the order in which they are stacked: each lies on the
   highest of those below it that live at the same time. */
function place(plan, env) {
  plan.slots ||= slotsOf(plan);
  const align = data.device.view_align, up = (n) => Math.ceil(n / align) * align;
  const bytes = plan.tensors.map((t) => { const v = value(t[1], env); return v === null ? t[2] : Math.max(v, 8); });
  const offset = new Array(plan.tensors.length).fill(0);
  let arena = 0;
  for (const { i, below } of plan.slots) {
    let start = 0;
    for (const j of below) start = Math.max(start, up(offset[j] + bytes[j]));
    offset[i] = start;
    arena = Math.max(arena, start + bytes[i]);
  }
  plan.tensors.forEach((t, i) => { if (t[8] !== i) offset[i] = offset[t[8]] + (t[3] - plan.tensors[t[8]][3]); });
  const steps = plan.steps.length + 1, change = new Array(steps + 1).fill(0);
  for (const { i } of plan.slots) {
    const t = plan.tensors[i];
    change[Math.min(t[4], steps)] += bytes[i];
    change[Math.min(t[5] + 1, steps)] -= bytes[i];
  }
  const live = [];
  let now = 0;
  for (let s = 0; s < steps; s++) live.push(now += change[s]);
  return { bytes, offset, arena: up(arena), live, most: Math.max(0, ...live), sum: bytes.reduce((a, b) => a + b, 0) };
}

/* The tensors that have memory of their own, from below; for each those that it lies above. */
function slotsOf(plan) {
  const own = plan.tensors.map((t, i) => i).filter((i) => plan.tensors[i][8] === i);
  own.sort((a, b) => plan.tensors[a][3] - plan.tensors[b][3] || a - b);
  return own.map((i, k) => {
    const t = plan.tensors[i];
    const below = own.slice(0, k).filter((j) => {
      const o = plan.tensors[j];
      return o[4] <= t[5] && t[4] <= o[5] && o[3] + o[2] <= t[3];
    });
    return { i, below };
  });
}

/* ---- colours, from the style sheet ---- */

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = new Proxy({}, { get: (_, name) => style.getPropertyValue("--" + name).trim() });
  const read = {};
  for (const n of ["ink", "soft", "line", "sunken", "panel", "accent", "tensor", "tensor-fill", "shape", "shape-fill", "host", "host-fill", "group",
    "group-fill", "port", "port-fill", "box0", "box1", "view", "place", "live", "bound", "arena"]) read[n] = colours[n];
  colours = read;
}

/* A canvas of the size that it has on the page, sharp on every screen. */
function fitted(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

function legend(list, entries) {
  list.replaceChildren(...entries.map(([name, colour, line]) => {
    const mark = line ? make("span", { class: line === "dash" ? "bar dash" : "bar" }) : make("span", { class: "dot" });
    if (line) mark.style.borderColor = colour; else mark.style.background = colour;
    return make("li", {}, mark, name);
  }));
}

/* ---- header ---- */

function header() {
  const d = data.decoder;
  $("model").textContent = data.model;
  $("kind").textContent = [d ? "text-generation model" : "ONNX model", `${whole(data.operators.length)} operators`,
    ...data.opsets.map(([domain, v]) => domain ? `${domain} ${v}` : `opset ${v}`)].join(" \u00b7 ");
  const lengths = data.symbols.filter((s) => s.bound_from !== "data" && s.upper !== null).map((s) => `${s.name} = ${whole(s.upper)}`);
  const at = d ? `at context ${whole(d.context)}` : lengths.length ? "at " + lengths.join(", ") : "fixed sizes";
  $("headline").textContent = data.line;
  $("about").replaceChildren(...data.facts.flatMap(([name, v]) => [make("dt", {}, name), make("dd", {}, v)]));
  const parts = [["Weights", data.weights, "--weights", "as kernels read them"],
    ["Cache", data.states, "--cache", `${whole(data.stateCount)} tensors`],
    ["Activations", data.arena, "--arena", "one arena for all plans"]].filter(([, n], i) => i !== 1 || data.stateCount > 0);
  $("split").setAttribute("aria-label", parts.map(([n, b]) => `${n} ${percent(b, data.total)}`).join(", "));
  $("split").replaceChildren(...parts.map(([, n, c]) => { const s = make("span", { color: `var(${c})` }); s.style.flexGrow = n; return s; }));
  const card = (name, n, colour, small) => make("div", {}, make("dt", {}, colour ? make("span", { class: "dot", color: `var(${colour})` }) : null, name),
    make("dd", { title: `${whole(n)} bytes` }, size(n), make("small", {}, small)));
  $("cards").replaceChildren(card("Memory", data.total, null, at), ...parts.map(([n, b, c, t]) => card(n, b, c, t)),
    make("div", {}, make("dt", {}, "Shape computations"), make("dd", {}, whole(data.shapeOpsLeft), make("small", {}, `at run time, of ${whole(data.shapeOps)} in the file`))));
  const used = data.passes.filter((p) => p.edits > 0), rest = data.passes.filter((p) => p.edits === 0);
  $("passes").tBodies[0].replaceChildren(...used.map((p) => make("tr", {}, make("td", {}, p.pass), make("td", {}, whole(p.edits)), make("td", {}, whole(p.nodes_after)))));
  $("passes").hidden = !used.length;
  $("passes-rest").textContent = rest.length ? `Nothing to rewrite: ${rest.map((p) => p.pass).join(", ")}.` : "";
}

function choice(box, name, options, chosen, change) {
  box.replaceChildren(...options.map(([value, label]) =>
    make("label", {}, make("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) }), label)));
}

/* ---- lengths ---- */

const WHO = { bind: "from --bind", bounds: "from --bounds", context: "the context", chunk: "one prefill run",
  one_sequence: "one sequence at a time", assumed: "assumed; set it with --bounds", data: "known during the run" };

function lengths() {
  const box = $("plan-choice");
  box.hidden = plans.length < 2;
  choice(box, "plan", plans.map((p, i) => [String(i), p.name]), String(settings.plan), (v) => { settings.plan = Number(v); timeline.reset(); changed(); });
  $("symbols").replaceChildren(...data.symbols.map((s) => {
    const most = s.upper, moves = most === null || most > s.lower, wide = most !== null && most - s.lower > 1;
    const id = "symbol-" + s.name;
    const number = make("input", { type: "number", id, min: s.lower, max: most, step: 1, value: settings.values.get(s.name), disabled: !moves });
    const range = wide ? make("input", { type: "range", min: s.lower, max: most, step: 1, value: settings.values.get(s.name), "aria-label": `${s.name}, slider` }) : null;
    const set = (from) => {
      if (from.disabled) return;
      let v = Math.round(Number(from.value));
      if (!Number.isFinite(v) || from.value === "") return;
      v = Math.max(s.lower, most === null ? v : Math.min(v, most));
      settings.values.set(s.name, v);
      if (range) range.value = v;
      if (from !== number) number.value = v;
      changed();
    };
    number.addEventListener("input", () => set(number));
    number.addEventListener("change", () => { number.value = settings.values.get(s.name); });
    if (range) range.addEventListener("input", () => set(range));
    const bounds = most === null ? `at least ${whole(s.lower)}` : moves ? `${whole(s.lower)} to ${whole(most)}` : whole(most);
    const name = make("span", {}, ...s.name.split("_").flatMap((part, i) => i ? [make("wbr"), "_" + part] : [part]));
    return make("div", { class: "symbol", "data-symbol": s.name }, make("label", { class: "name", for: id }, name, number), range,
      make("small", {}, `${bounds}, ${WHO[s.bound_from]}. ${s.source[0].toUpperCase()}${s.source.slice(1)}.`));
  }));
  if (!data.symbols.length) $("symbols").replaceChildren(make("p", { class: "hint" }, "All shapes of this model are numbers."));
}

/* ---- what follows from the lengths ---- */

let placed = null;

function changed() {
  const plan = plans[settings.plan], env = environment(plan);
  placed = place(plan, env);
  for (const e of document.querySelectorAll(".symbol")) {
    const name = e.dataset.symbol, fixed = plan.fixed[name];
    e.classList.toggle("off", fixed !== undefined);
    const number = e.querySelector("input[type=number]"), range = e.querySelector("input[type=range]");
    // A plan may fix a length that another one leaves open.
    if (range) {
      number.disabled = range.disabled = fixed !== undefined;
      range.value = fixed ?? settings.values.get(name);
      if (document.activeElement !== number) number.value = range.value;
    }
  }
  const p = plan.padding;
  $("padding").textContent = p && settings.values.has(p.symbol)
    ? `Sizes are those for ${p.symbol} = ${whole(env.get(p.symbol))}: lengths are padded to multiples of ${p.multiple}.` : "";
  const facts = [["Arena filled", placed.arena, "arena-now"], ["Largest live set", placed.most, "live-now"], ["All tensors", placed.sum, "sum-now"],
    ["Reserved arena", data.arena, "arena-reserved"]];
  const d = data.decoder;
  if (d) {
    const tokens = Math.min(d.context, (settings.values.get(d.past) ?? 0) + (plan.fixed[d.sequence] ?? settings.values.get(d.sequence) ?? 0));
    facts.push(["Cache in use", Math.round(data.states / d.context * tokens), "cache-now"]);
  }
  $("now").replaceChildren(...facts.flatMap(([name, n, id]) => [make("dt", {}, name), make("dd", { id, "data-bytes": n, title: `${whole(n)} bytes` }, size(n))]),
    make("dt", {}, "Dispatches"), make("dd", {}, whole(plan.dispatches)),
    make("dt", {}, "Kernels"), make("dd", {}, whole(plan.kernels)),
    make("dt", {}, "Read-backs, uploads"), make("dd", {}, `${plan.readBacks}, ${plan.uploads}`));
  $("formula").textContent = data.exprs[plan.formula];
  saved(plan);
  timeline.draw();
  timeline.tell();
  graph.tell();
}

function saved(plan) {
  const parts = [["views", plan.gained.views, "var(--view)"], ["results in place", plan.gained.in_place, "var(--place)"],
    ["packing by lifetime", plan.gained.packing, "var(--packing)"], ["left: the arena", plan.arena, "var(--arena)"]];
  $("saved").setAttribute("aria-label", parts.map(([n, b]) => `${n}: ${size(b)}`).join(", ") + `, of ${size(plan.alone)}`);
  $("saved").replaceChildren(...parts.map(([, n, c]) => { const s = make("span", { color: c }); s.style.flexGrow = n; return s; }));
  legend($("saved-legend"), [...parts.map(([name, n, c]) => [`${name} ${size(n)}`, c]), [`of ${size(plan.alone)} without reuse`, "transparent"]]);
}

/* ---- memory over time ---- */

const timeline = (() => {
  const canvas = $("timeline"), scroll = $("time-scroll"), strip = $("strip");
  const pad = { left: 56, right: 10, top: 12, bottom: 24 };
  let frame = null, step = null, chosen = null, asked = false, stretch = 1;

  const stepsOf = (plan) => plan.count ||= Math.max(1, plan.steps.length, ...plan.tensors.map((t) => t[5] + 1));
  /* Width of all steps; the canvas shows a part of them. */
  const span = () => scroll.clientWidth * stretch - pad.left - pad.right;

  /* Shows so many times fewer steps; the one at `px` in the canvas stays where it is. */
  function zoomTo(z, px) {
    const steps = stepsOf(plans[settings.plan]), at = (scroll.scrollLeft + px - pad.left) / span();
    stretch = Math.max(1, Math.min(Math.max(8, steps / 10), z));
    strip.style.width = `${100 * stretch}%`;
    scroll.scrollLeft = at * span() + pad.left - px;
    $("time-all").hidden = stretch === 1;
    draw();
  }

  /* Shows steps `first` to `last`. */
  function zoomToSteps(first, last) {
    const steps = stepsOf(plans[settings.plan]);
    zoomTo(steps / (1.1 * (last - first + 1)), 0);
    scroll.scrollLeft = (first + last + 1) / 2 / steps * span() + pad.left - scroll.clientWidth / 2;
    draw();
  }

  /* First and last steps of repeated layers, which have numbers in the names of their nodes. */
  function layers(plan) {
    if (plan.layers) return plan.layers;
    const families = new Map();
    plan.steps.forEach((s, i) => {
      const m = /^(.*?(?:^|[^A-Za-z0-9]))(\d+)(?=[^A-Za-z0-9])/.exec(text(s[5]));
      if (!m) return;
      if (!families.has(m[1])) families.set(m[1], new Map());
      const family = families.get(m[1]), known = family.get(m[2]);
      if (known) known[1] = i; else family.set(m[2], [i, i]);
    });
    const most = [...families.values()].sort((a, b) => b.size - a.size)[0];
    return plan.layers = most && most.size >= 3 ? [...most.values()] : [];
  }

  function oneLayer() {
    const all = layers(plans[settings.plan]);
    const here = step === null ? undefined : all.find(([a, b]) => a <= step && step <= b);
    const [first, last] = here ?? all[Math.floor(all.length / 2)];
    zoomToSteps(first, last);
  }

  function scales() {
    const width = scroll.clientWidth, height = canvas.clientHeight, plan = plans[settings.plan], steps = stepsOf(plan);
    const top = Math.max(1, placed.arena), all = span(), left = scroll.scrollLeft;
    const x = (s) => pad.left + all * s / steps - left;
    const y = (b) => height - pad.bottom - (height - pad.top - pad.bottom) * b / top;
    const at = (px) => Math.floor((px + left - pad.left) / all * steps);
    const from = Math.max(0, at(pad.left)), to = Math.min(steps - 1, at(width - pad.right - 1));
    return { width, height, plan, steps, top, x, y, at, from, to };
  }

  function draw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; paint(); });
  }

  function paint() {
    if (!placed) return;
    frame = scales();
    const { width, height, plan, steps, top, x, y, from, to } = frame;
    canvas.style.width = width + "px";
    const g = fitted(canvas, width, height);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    for (const tick of ticks(top)) {
      g.fillStyle = colours.line;
      g.fillRect(pad.left, y(tick), width - pad.left - pad.right, 1);
      g.fillStyle = colours.soft;
      g.textAlign = "right";
      g.fillText(size(tick).replace(".0 ", " "), pad.left - 6, y(tick));
    }
    g.textAlign = "left";
    g.fillStyle = colours.soft;
    g.fillText(`step ${from}`, pad.left, height - 9);
    g.textAlign = "right";
    g.fillText(`${to}`, width - pad.right, height - 9);
    g.save();
    g.beginPath();
    g.rect(pad.left, 0, width - pad.left - pad.right, height - pad.bottom + 1);
    g.clip();
    const seen = (t) => t[4] <= to && from <= t[5];
    const order = plan.tensors.map((_, i) => i).filter((i) => seen(plan.tensors[i])).sort((a, b) => plan.tensors[a][6] - plan.tensors[b][6]);
    const fills = [colours.box0, colours.box1];
    for (const i of order) {
      const t = plan.tensors[i];
      const x0 = x(t[4]), w = Math.max(1, x(t[5] + 1) - x0), y1 = y(placed.offset[i]), h = Math.max(1, y1 - y(placed.offset[i] + placed.bytes[i]));
      g.fillStyle = t[6] === 1 ? colours.view : t[6] === 2 ? colours.place : fills[i % 2];
      g.fillRect(x0, y1 - h, w, h);
      if (w > 4 && h > 4) {
        g.strokeStyle = colours.sunken;
        g.lineWidth = 1;
        g.strokeRect(x0 + .5, y1 - h + .5, w - 1, h - 1);
      }
      if (w > 64 && h > 15 && t[6] === 0) {
        g.fillStyle = colours.ink;
        g.textAlign = "left";
        const left = Math.max(x0, pad.left) + 5, right = Math.min(x0 + w, width - pad.right) - 5;
        if (right - left > 50) g.fillText(clipped(g, text(t[0]), right - left), left, y1 - h / 2);
      }
    }
    g.lineWidth = span() / steps < 3 ? 1 : 1.8;
    g.strokeStyle = colours.live;
    g.beginPath();
    placed.live.forEach((b, s) => { g.lineTo(x(s), y(b)); g.lineTo(x(s + 1), y(b)); });
    g.stroke();
    g.setLineDash([6, 4]);
    g.strokeStyle = colours.bound;
    g.beginPath();
    g.moveTo(pad.left, y(placed.most));
    g.lineTo(width - pad.right, y(placed.most));
    g.stroke();
    g.setLineDash([]);
    if (step !== null) {
      g.strokeStyle = colours.accent;
      g.lineWidth = 1;
      g.beginPath();
      g.moveTo(x(step + .5), pad.top);
      g.lineTo(x(step + .5), height - pad.bottom);
      g.stroke();
    }
    if (chosen !== null) {
      const t = plan.tensors[chosen], x0 = x(t[4]), y1 = y(placed.offset[chosen]), y0 = y(placed.offset[chosen] + placed.bytes[chosen]);
      g.strokeStyle = colours.accent;
      g.lineWidth = 2.5;
      g.strokeRect(x0, Math.min(y0, y1 - 1), Math.max(2, x(t[5] + 1) - x0), Math.max(2, y1 - y0));
    }
    g.restore();
  }

  function ticks(top) {
    const raw = top / 4, unit = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= raw) || raw;
    const out = [];
    for (let t = 0; t <= top; t += step) out.push(Math.round(t));
    return out;
  }

  /* Tensors alive at a step, from above, shared ones before what they share. */
  function alive(s) {
    const plan = plans[settings.plan];
    const all = plan.tensors.map((_, i) => i).filter((i) => plan.tensors[i][4] <= s && s <= plan.tensors[i][5]);
    return all.sort((a, b) => placed.offset[b] - placed.offset[a] || plan.tensors[b][6] - plan.tensors[a][6]);
  }

  function tell() {
    const plan = plans[settings.plan], box = $("tensor");
    if (step === null) {
      box.replaceChildren("Point at a box, or use the arrow keys, to see its tensor.");
      return;
    }
    const s = plan.steps[step], at = s ? `Step ${step}, ${s[0] ? "host: " : ""}${text(s[1])}. ` : `After the last step. `;
    const live = `${size(placed.live[step] ?? 0)} live. `;
    if (chosen === null) { box.replaceChildren(at + live); return; }
    const t = plan.tensors[chosen];
    const shared = t[6] === 1 ? ` A part of ${text(t[7])}.` : t[6] === 2 ? ` Written over ${text(t[7])}.` : "";
    box.replaceChildren(at + live, make("b", {}, text(t[0])), ` holds ${size(placed.bytes[chosen])} (${whole(placed.bytes[chosen])} = `,
      make("span", { class: "mono" }, data.exprs[t[1]]), `) at offset ${whole(placed.offset[chosen])}, steps ${t[4]} to ${t[5]}.${shared}`);
  }

  function point(event) {
    if (!frame) return;
    const rect = canvas.getBoundingClientRect(), px = event.clientX - rect.left, py = event.clientY - rect.top;
    const { steps, at, width, height, top } = frame;
    const s = px < pad.left || px > width - pad.right ? -1 : at(px);
    const b = (height - pad.bottom - py) / (height - pad.top - pad.bottom) * top;
    step = s >= 0 && s < steps ? s : null;
    chosen = step === null ? null : alive(step).filter((i) => placed.offset[i] <= b && b <= placed.offset[i] + placed.bytes[i])
      .sort((a, c) => plans[settings.plan].tensors[c][6] - plans[settings.plan].tensors[a][6])[0] ?? null;
    draw();
    tell();
  }

  function key(event) {
    const steps = frame ? frame.steps : 0, move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], turn = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (move) {
      step = Math.max(0, Math.min(steps - 1, (step ?? (move > 0 ? -1 : steps)) + move));
      const plan = plans[settings.plan];
      if (chosen === null || step < plan.tensors[chosen][4] || step > plan.tensors[chosen][5]) chosen = alive(step)[0] ?? null;
      if (step < frame.from || step > frame.to) scroll.scrollLeft = step / steps * span() + pad.left - scroll.clientWidth / 2;
    } else if (turn && step !== null) {
      const all = alive(step), k = all.indexOf(chosen);
      chosen = all.length ? all[(k + turn + all.length) % all.length] : null;
    } else return;
    event.preventDefault();
    draw();
    tell();
  }

  const middle = () => scroll.clientWidth / 2;
  $("time-in").addEventListener("click", () => zoomTo(stretch * 2, middle()));
  $("time-out").addEventListener("click", () => zoomTo(stretch / 2, middle()));
  $("time-all").addEventListener("click", () => zoomTo(1, 0));
  $("time-layer").addEventListener("click", oneLayer);
  scroll.addEventListener("scroll", draw);
  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomTo(stretch * Math.exp(-event.deltaY / 200), event.clientX - scroll.getBoundingClientRect().left);
  }, { passive: false });
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("keydown", key);
  return {
    draw, tell,
    reset() { step = null; chosen = null; $("time-layer").hidden = !layers(plans[settings.plan]).length; },
    legend() {
      legend($("memory-legend"), [["tensor (two shades)", "linear-gradient(90deg, var(--box0) 50%, var(--box1) 50%)"], ["view", "var(--view)"], ["in place", "var(--place)"], ["live set", "var(--live)", "line"],
        ["lower bound", "var(--bound)", "dash"]]);
    },
  };
})();

function clipped(g, t, width) {
  if (g.measureText(t).width <= width) return t;
  let lo = 0, hi = t.length;
  while (lo < hi) {
    const mid = (lo + hi + 1) >> 1;
    if (g.measureText("\u2026" + t.slice(t.length - mid)).width <= width) lo = mid; else hi = mid - 1;
  }
  return lo > 1 ? "\u2026" + t.slice(t.length - lo) : "";
}

//GRAPH

/* ---- start ---- */

function start() {
  readColours();
  header();
  lengths();
  timeline.legend();
  timeline.reset();
  graph.start();
  fromHash();
  changed();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); timeline.draw(); graph.draw(); });
  new ResizeObserver(() => timeline.draw()).observe($("time-scroll"));
  // What is longer than the window scrolls with the page.
  const aside = document.querySelector("aside"), keep = () => aside.classList.toggle("sticky", aside.offsetHeight < innerHeight - 28);
  new ResizeObserver(keep).observe(aside);
  addEventListener("resize", keep);
  addEventListener("hashchange", fromHash);
  document.body.dataset.ready = "yes";
}

/* `#past=100&plan=decode&view=planned&node=NAME&search=WORD&layer&unfold` sets lengths through their inputs, as a person would. */
function fromHash() {
  for (const [k, v] of new URLSearchParams(location.hash.slice(1))) {
    if (k === "plan") {
      const i = plans.findIndex((p) => p.name === v);
      document.querySelectorAll("#plan-choice input")[i]?.click();
    } else if (k === "view") {
      document.querySelector(`#view-choice input[value="${v === "planned" ? "nodes" : "operators"}"]`)?.click();
    } else if (k === "node") graph.find(v);
    else if (k === "layer") $("time-layer").click();
    else if (k === "unfold") $("fold-all").click();
    else if (k === "search") { $("search").value = v; $("search").dispatchEvent(new Event("input")); }
    else {
      const box = [...document.querySelectorAll(".symbol")].find((e) => e.dataset.symbol === k);
      const input = box && (box.querySelector("input[type=range]") || box.querySelector("input"));
      if (!input) continue;
      input.value = v;
      input.dispatchEvent(new Event("input"));
    }
  }
}

addEventListener("error", (e) => { document.body.dataset.error = e.message; });
start();
})();
