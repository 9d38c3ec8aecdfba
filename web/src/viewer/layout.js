import { numbered } from "./plan.js";

export const NODE = 30, LEVEL = 62, STUB = 15;
const GAP = 16, WIDEST = 210, MARGIN = 26, LONG = 14;

/**
 * Operators or planned nodes as vertices, with the model's inputs and outputs, edges between them, and groups of
 * repeated layers. `shapeOnly(row)` says whether a row computes only shapes.
 */
export function graphOf(report, view, shapeOnly) {
  const vertices = [], producer = new Map(), edges = [];
  // In the planned graph, rows that only compute shapes and do not run are left out.
  const rows = view === "nodes" ? report.nodes.filter((r) => !shapeOnly(r) || r.runs.length) : report.operators;
  rows.forEach((r, i) => {
    vertices.push({ kind: "op", i, order: i, name: r.name, label: r.op, shape: shapeOnly(r), key: null });
    for (const o of r.outputs) producer.set(o.name, i);
  });
  const ports = new Map();
  for (const v of report.inputs) {
    if (producer.has(v.name)) continue;
    ports.set(v.name, vertices.length);
    vertices.push({ kind: "input", value: v, order: -1, name: v.name, label: v.name, key: null });
  }
  rows.forEach((r, i) => {
    const seen = new Set();
    for (const v of r.inputs) {
      if (!v) continue;
      const from = producer.get(v.name) ?? ports.get(v.name);
      if (from !== undefined && from !== i && !seen.has(from)) { seen.add(from); edges.push([from, i]); }
    }
  });
  for (const v of report.outputs) {
    const from = producer.get(v.name);
    if (from === undefined) continue;
    edges.push([from, vertices.length]);
    vertices.push({ kind: "output", value: v, order: rows.length, name: v.name, label: v.name, key: null });
  }
  const groups = grouped(vertices, edges), folded = new Set();
  if (rows.length > 200) [...groups.keys()].slice(1).forEach((k) => folded.add(k));
  return { view, rows, vertices, edges, groups, folded, used: new Set(edges.flat()) };
}

/* Names with a number in them, such as `/layers.3/mlp/...`, form a group where at least three numbers occur and each has
   at least four operators. */
function grouped(vertices, edges) {
  const families = new Map();
  for (const v of vertices) {
    const m = v.kind === "op" && numbered(v.name);
    if (!m) continue;
    v.key = m[0] + m[1];
    if (!families.has(m[0])) families.set(m[0], new Map());
    const family = families.get(m[0]);
    if (!family.has(v.key)) family.set(v.key, []);
    family.get(v.key).push(v);
  }
  const groups = new Map();
  for (const family of families.values()) {
    const all = [...family.entries()].filter(([, list]) => list.length >= 4);
    if (all.length >= 3) for (const [key, list] of all) groups.set(key, list);
  }
  for (const v of vertices) if (!groups.has(v.key)) v.key = null;
  // An input or output that only one group touches belongs to it.
  const near = new Map();
  for (const [a, b] of edges) {
    if (vertices[a].kind === "input") near.set(a, (near.get(a) || new Set()).add(vertices[b].key));
    if (vertices[b].kind === "output") near.set(b, (near.get(b) || new Set()).add(vertices[a].key));
  }
  for (const [i, keys] of near) if (keys.size === 1) vertices[i].key = [...keys][0];
  return groups;
}

/** Positions of the vertices: each in a level below all that it reads; edges have a point in every level they cross. */
export function layout(m, measure) {
  const key = (v) => v.key !== null && m.folded.has(v.key) ? v.key : null;
  const index = new Map(), list = [];
  m.vertices.forEach((v, i) => {
    if (v.kind !== "op" && !m.used.has(i)) return;
    const k = key(v);
    if (k === null) { index.set(i, list.length); list.push({ v, order: v.order }); return; }
    if (!index.has(k)) { index.set(k, list.length); list.push({ group: k, count: 0, order: Infinity }); }
    const g = list[index.get(k)];
    if (v.kind === "op") { g.count++; g.order = Math.min(g.order, v.order); }
    index.set(i, index.get(k));
  });
  for (const n of list) {
    n.title = n.group ? n.group.replace(/^\//, "") : n.v.label;
    n.width = Math.min(WIDEST, Math.max(54, measure(n.title) + 26 + (n.group ? 40 : 0)));
    n.into = []; n.from = []; n.level = 0;
  }
  const edges = new Map();
  for (const [a, b] of m.edges) {
    const x = index.get(a), y = index.get(b);
    if (x === y || x === undefined || y === undefined) continue;
    const id = x * list.length + y;
    if (!edges.has(id)) edges.set(id, { a: list[x], b: list[y] });
  }
  const forward = [...edges.values()].filter((e) => e.a.order < e.b.order || (e.a.order === e.b.order && e.a.v && e.a.v.kind === "input"));
  for (const e of forward) { e.a.into.push(e.b); e.b.from.push(e.a); }
  const byOrder = [...list].sort((p, q) => p.order - q.order);
  for (const n of byOrder) for (const f of n.from) n.level = Math.max(n.level, f.level + 1);
  for (const n of byOrder.reverse()) {
    const late = n.v && (n.v.kind === "input" || n.v.shape) || n.from.length === 0;
    if (late && n.into.length) n.level = Math.max(n.level, Math.min(...n.into.map((t) => t.level)) - 1);
  }
  const levels = [];
  const put = (n) => { (levels[n.level] ||= []).push(n); return n; };
  list.forEach(put);
  const links = [];
  for (const e of edges.values()) {
    const path = [e.a], span = e.b.level - e.a.level, short = span > 0 && span <= LONG;
    if (span > 1 && short) {
      for (let l = e.a.level + 1; l < e.b.level; l++) path.push(put({ dummy: true, level: l, width: 2, order: e.a.order, into: [], from: [] }));
    }
    path.push(e.b);
    if (short) {
      for (let k = 0; k + 1 < path.length; k++) { (path[k].down ||= []).push(path[k + 1]); (path[k + 1].up ||= []).push(path[k]); }
    }
    links.push({ ...e, path, short });
  }
  for (let l = 0; l < levels.length; l++) levels[l] ||= [];
  order(levels);
  const width = coordinates(levels);
  levels.forEach((level, l) => level.forEach((n) => { n.y = MARGIN + l * LEVEL + NODE / 2; }));
  const map = new Map(list.map((n) => [n.v ?? n.group, n]));
  return { list, links, levels, width, height: 2 * MARGIN + (levels.length - 1) * LEVEL + NODE, map };
}

/* Sorts each level by the mean place of neighbors, a few times down and up. */
function order(levels) {
  levels.forEach((level) => { level.sort((a, b) => a.order - b.order); level.forEach((n, i) => { n.place = i; }); });
  const mean = (n, side) => {
    const near = n[side];
    return near && near.length ? near.reduce((s, o) => s + (o.place + .5) / levels[o.level].length, 0) / near.length : (n.place + .5) / levels[n.level].length;
  };
  for (let round = 0; round < 6; round++) {
    const down = round % 2 === 0, side = down ? "up" : "down";
    for (const level of down ? levels : [...levels].reverse()) {
      if (level.length < 2) continue;
      const keys = new Map(level.map((n) => [n, mean(n, side)]));
      level.sort((a, b) => keys.get(a) - keys.get(b));
      level.forEach((n, i) => { n.place = i; });
    }
  }
}

/* Positions near those of neighbors that keep the order and the gaps: least squares under an order (pool adjacent violators). */
function coordinates(levels) {
  for (const level of levels) {
    let x = 0;
    for (const n of level) { n.x = x + n.width / 2; x += n.width + GAP; }
    for (const n of level) n.x -= x / 2;
  }
  for (let round = 0; round < 14; round++) {
    const side = round % 2 === 0 ? "up" : "down", other = side === "up" ? "down" : "up";
    for (const level of round % 2 === 0 ? levels : [...levels].reverse()) {
      const blocks = [];
      let offset = 0;
      level.forEach((n, i) => {
        if (i) offset += level[i - 1].width / 2 + n.width / 2 + GAP;
        const near = n[side] && n[side].length ? n[side] : round > 8 ? n[other] || [] : [];
        const wish = near.length ? near.reduce((s, o) => s + o.x, 0) / near.length : n.x;
        n.offset = offset;
        const weight = n.dummy && near.length && near[0].dummy ? 4 : 1;
        let block = { sum: (wish - offset) * weight, weight, nodes: [n] };
        while (blocks.length && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].weight > block.sum / block.weight) {
          const last = blocks.pop();
          block = { sum: last.sum + block.sum, weight: last.weight + block.weight, nodes: last.nodes.concat(block.nodes) };
        }
        blocks.push(block);
      });
      for (const b of blocks) for (const n of b.nodes) n.x = b.sum / b.weight + n.offset;
    }
  }
  const all = levels.flat();
  const left = all.reduce((m, n) => Math.min(m, n.x - n.width / 2), Infinity), right = all.reduce((m, n) => Math.max(m, n.x + n.width / 2), -Infinity);
  for (const n of all) n.x += MARGIN - left;
  return right - left + 2 * MARGIN;
}
