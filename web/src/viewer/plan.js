import { value } from "./expr.js";

export const OWN = 0, VIEW = 1, IN_PLACE = 2;

/** The plans of a report, with what the pictures need: how tensors share memory, and their slots. */
export function plansOf(report) {
  return report.plans.map((p) => {
    const index = new Map(p.tensors.map((t, i) => [t.name, i]));
    const parent = (t) => t.view_of ?? t.in_place_of ?? null;
    // The tensor whose memory this one uses. Sharing has no cycles; the limit is for repeated names.
    const root = (i) => {
      for (let n = 0; n < p.tensors.length; n++) {
        const next = index.get(parent(p.tensors[i]));
        if (next === undefined) break;
        i = next;
      }
      return i;
    };
    const tensors = p.tensors.map((t, i) => ({ ...t, of: parent(t), kind: t.view_of ? VIEW : t.in_place_of ? IN_PLACE : OWN, root: root(i) }));
    const plan = { ...p, tensors };
    plan.slots = slotsOf(plan);
    plan.count = Math.max(1, p.steps.length, ...tensors.map((t) => t.last + 1));
    plan.layers = layersOf(plan);
    return plan;
  });
}

/** Tensors with memory of their own, from low to high offsets, each with those that it lies above. */
function slotsOf(plan) {
  const own = plan.tensors.map((t, i) => i).filter((i) => plan.tensors[i].root === i);
  own.sort((a, b) => plan.tensors[a].offset - plan.tensors[b].offset || a - b);
  return own.map((i, k) => {
    const t = plan.tensors[i];
    const below = own.slice(0, k).filter((j) => {
      const o = plan.tensors[j];
      return o.first <= t.last && t.first <= o.last && o.offset + o.bytes <= t.offset;
    });
    return { i, below };
  });
}

/** First and last steps of repeated layers, found by numbers in the names of nodes. */
function layersOf(plan) {
  const families = new Map();
  plan.steps.forEach((s, i) => {
    const m = numbered(s.node ?? "");
    if (!m) return;
    if (!families.has(m[0])) families.set(m[0], new Map());
    const family = families.get(m[0]), known = family.get(m[1]);
    if (known) known[1] = i; else family.set(m[1], [i, i]);
  });
  const most = [...families.values()].sort((a, b) => b.size - a.size)[0];
  return most && most.size >= 3 ? [...most.values()] : [];
}

/** The prefix and the number of a name such as `/layers.3/mlp/MatMul`, or null. */
export function numbered(name) {
  const m = /^(.*?(?:^|[^A-Za-z0-9]))(\d+)(?=[^A-Za-z0-9])/.exec(name);
  return m && [m[1], m[2]];
}

/** The values that a plan sees: its fixed symbols, its bounds, and its padding applied to `values`. */
export function environment(plan, values) {
  const env = new Map(values);
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

/**
 * Sizes and offsets of all tensors of a plan at these values. Slots keep their order: each lies on the highest of those
 * below it that live at the same time.
 */
export function place(plan, env, align) {
  const up = (n) => Math.ceil(n / align) * align;
  const bytes = plan.tensors.map((t) => { const v = value(t.size, env); return v === null ? t.bytes : Math.max(v, 8); });
  const offset = new Array(plan.tensors.length).fill(0);
  let arena = 0;
  for (const { i, below } of plan.slots) {
    let start = 0;
    for (const j of below) start = Math.max(start, up(offset[j] + bytes[j]));
    offset[i] = start;
    arena = Math.max(arena, start + bytes[i]);
  }
  plan.tensors.forEach((t, i) => { if (t.root !== i) offset[i] = offset[t.root] + (t.offset - plan.tensors[t.root].offset); });
  const steps = plan.steps.length + 1, change = new Array(steps + 1).fill(0);
  for (const { i } of plan.slots) {
    const t = plan.tensors[i];
    change[Math.min(t.first, steps)] += bytes[i];
    change[Math.min(t.last + 1, steps)] -= bytes[i];
  }
  const live = [];
  let now = 0;
  for (let s = 0; s < steps; s++) live.push(now += change[s]);
  return { bytes, offset, arena: up(arena), live, most: live.reduce((a, b) => Math.max(a, b), 0), sum: bytes.reduce((a, b) => a + b, 0) };
}
