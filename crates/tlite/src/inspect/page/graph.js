/* ---- graph ---- */

const graph = (() => {
  const canvas = $("canvas"), scroller = $("scroller"), sheet = $("sheet");
  const NODE = 30, LEVEL = 62, GAP = 16, WIDEST = 210, MARGIN = 26, LONG = 14, STUB = 15;
  const measure = document.createElement("canvas").getContext("2d");
  measure.font = "600 12px system-ui, sans-serif";
  const HOW = ["unchanged", "rewritten", "part of a fused node", "folded: known from shapes and constants", "removed: nothing needs it"];
  let zoom = 1, shown = null, chosen = null, asked = false;
  const models = {};

  /* Operators or planned nodes as vertices, with inputs and outputs of the model, edges between them, and groups of repeated
     parts by their names. */
  function model(view) {
    if (models[view]) return models[view];
    const all = data[view], vertices = [], producer = new Map(), edges = [];
    // Of the plan, what only computes shapes and does not run is left out.
    const rows = view === "nodes" ? all.filter((r) => r[2] === 0 || r[6].length) : all;
    rows.forEach((r, i) => {
      vertices.push({ kind: "op", i, order: i, name: text(r[0]), label: text(r[1]), shape: r[2] === 1 });
      for (const o of r[4]) producer.set(data.values[o][0], i);
    });
    const ports = new Map();
    for (const v of data.inputs) {
      const name = data.values[v][0];
      if (producer.has(name)) continue;
      ports.set(name, vertices.length);
      vertices.push({ kind: "input", i: v, order: -1, name: text(name), label: text(name) });
    }
    rows.forEach((r, i) => {
      const seen = new Set();
      for (const v of r[3]) {
        if (v < 0) continue;
        const name = data.values[v][0], from = producer.get(name) ?? ports.get(name);
        if (from !== undefined && from !== i && !seen.has(from)) { seen.add(from); edges.push([from, i]); }
      }
    });
    for (const v of data.outputs) {
      const from = producer.get(data.values[v][0]);
      if (from === undefined) continue;
      edges.push([from, vertices.length]);
      vertices.push({ kind: "output", i: v, order: rows.length, name: text(data.values[v][0]), label: text(data.values[v][0]) });
    }
    const used = new Set(edges.flat());
    const groups = grouped(vertices, edges);
    const folded = new Set();
    if (rows.length > 200) [...groups.keys()].slice(1).forEach((k) => folded.add(k));
    return models[view] = { view, rows, vertices, edges, groups, folded, used };
  }

  /* Parts that repeat: names with a number in them, such as `/layers.3/mlp/...`, where at least three numbers occur and each has
     some operators. */
  function grouped(vertices, edges) {
    const families = new Map();
    for (const v of vertices) {
      if (v.kind !== "op") continue;
      const m = /^(.*?(?:^|[^A-Za-z0-9]))(\d+)(?=[^A-Za-z0-9])/.exec(v.name);
      if (!m) continue;
      v.key = m[1] + m[2];
      if (!families.has(m[1])) families.set(m[1], new Map());
      const family = families.get(m[1]);
      if (!family.has(v.key)) family.set(v.key, []);
      family.get(v.key).push(v);
    }
    const groups = new Map();
    for (const family of families.values()) {
      const all = [...family.entries()].filter(([, list]) => list.length >= 4);
      if (all.length < 3) continue;
      for (const [key, list] of all) groups.set(key, list);
    }
    for (const v of vertices) if (!groups.has(v.key)) v.key = null;
    // A port with readers, or a producer, in one part only belongs to it.
    const near = new Map();
    for (const [a, b] of edges) {
      if (vertices[a].kind === "input") near.set(a, (near.get(a) || new Set()).add(vertices[b].key));
      if (vertices[b].kind === "output") near.set(b, (near.get(b) || new Set()).add(vertices[a].key));
    }
    for (const [i, keys] of near) if (keys.size === 1) vertices[i].key = [...keys][0];
    return groups;
  }

  /* Vertices that are shown, each in a level below all that it reads, and edges with a point in every level that they cross. */
  function layout(m) {
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
      n.width = Math.min(WIDEST, Math.max(54, measure.measureText(n.title).width + 26 + (n.group ? 40 : 0)));
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
      const path = [e.a];
      const span = e.b.level - e.a.level;
      const short = span > 0 && span <= LONG;
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
    const map = new Map();
    list.forEach((n) => { if (n.v) map.set(n.v, n); else map.set(n.group, n); });
    return { list, links, levels, width, height: 2 * MARGIN + (levels.length - 1) * LEVEL + NODE, map };
  }

  function order(levels) {
    levels.forEach((level) => { level.sort((a, b) => a.order - b.order); level.forEach((n, i) => { n.place = i; }); });
    const mean = (n, side) => {
      const near = n[side];
      return near && near.length ? near.reduce((s, o) => s + (o.place + .5) / levels[o.level].length, 0) / near.length : (n.place + .5) / levels[n.level].length;
    };
    for (let round = 0; round < 6; round++) {
      const down = round % 2 === 0, side = down ? "up" : "down";
      const sweep = down ? levels : [...levels].reverse();
      for (const level of sweep) {
        if (level.length < 2) continue;
        const keys = new Map(level.map((n) => [n, mean(n, side)]));
        level.sort((a, b) => keys.get(a) - keys.get(b));
        level.forEach((n, i) => { n.place = i; });
      }
    }
  }

  /* Positions on each level in its order, near to the neighbours' and not too near to each other: the least squares of a list that
     must not decrease are found by joining blocks. */
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
    const all = levels.flat(), left = Math.min(...all.map((n) => n.x - n.width / 2)), right = Math.max(...all.map((n) => n.x + n.width / 2));
    for (const n of all) n.x += MARGIN - left;
    return right - left + 2 * MARGIN;
  }

  function show() {
    const m = model(settings.view);
    shown = { m, ...layout(m) };
    resize();
    const button = $("fold-all"), any = m.groups.size > 0;
    button.hidden = !any;
    button.textContent = m.folded.size ? "Unfold all layers" : "Fold repeated layers";
  }

  function resize() {
    // The view keeps its place when the zoom changes.
    sheet.style.width = Math.max(scroller.clientWidth, shown.width * zoom) + "px";
    sheet.style.height = Math.max(scroller.clientHeight, shown.height * zoom) + "px";
    draw();
  }

  function draw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; paint(); });
  }

  const shift = () => Math.max(0, (scroller.clientWidth - shown.width * zoom) / 2);

  function paint() {
    if (!shown) return;
    const width = scroller.clientWidth, height = scroller.clientHeight;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const g = fitted(canvas, width, height);
    g.translate(shift() - scroller.scrollLeft, -scroller.scrollTop);
    g.scale(zoom, zoom);
    const top = scroller.scrollTop / zoom, bottom = (scroller.scrollTop + height) / zoom;
    const active = chosen === null ? null : shown.map.get(chosen) ?? shown.map.get(chosen.key);
    for (const strong of [false, true]) {
      for (const e of shown.links) {
        const y0 = Math.min(e.a.y, e.b.y), y1 = Math.max(e.a.y, e.b.y);
        if (y1 < top || y0 > bottom || strong !== (active !== null && (e.a === active || e.b === active))) continue;
        g.strokeStyle = strong ? colours.accent : colours.soft;
        g.globalAlpha = strong ? 1 : e.path.length > 3 ? .34 : .6;
        g.lineWidth = strong ? 2 : 1.1;
        g.beginPath();
        if (!e.short && !strong) {
          // An edge that goes far is drawn whole only when one of its ends is chosen.
          g.setLineDash([2, 3]);
          g.moveTo(e.a.x, e.a.y + NODE / 2);
          g.lineTo(e.a.x, e.a.y + NODE / 2 + STUB);
          g.moveTo(e.b.x, e.b.y - NODE / 2 - STUB);
          g.lineTo(e.b.x, e.b.y - NODE / 2);
          g.stroke();
          g.setLineDash([]);
          continue;
        }
        g.moveTo(e.a.x, e.a.y + NODE / 2);
        for (let k = 1; k < e.path.length; k++) {
          const p = e.path[k - 1], q = e.path[k];
          const py = p.dummy ? p.y : p.y + NODE / 2, qy = q.dummy ? q.y : q.y - NODE / 2, mid = (py + qy) / 2;
          g.bezierCurveTo(p.x, mid, q.x, mid, q.x, qy);
        }
        g.stroke();
      }
    }
    g.globalAlpha = 1;
    for (const n of shown.list) {
      if (n.y + NODE < top || n.y - NODE > bottom) continue;
      const [line, fill, hollow] = look(n);
      g.beginPath();
      g.roundRect(n.x - n.width / 2, n.y - NODE / 2, n.width, NODE, n.v && n.v.kind !== "op" ? NODE / 2 : 8);
      g.fillStyle = hollow ? colours.sunken : fill;
      g.fill();
      g.strokeStyle = n === active ? colours.accent : line;
      g.lineWidth = n === active ? 3 : 1.2;
      if (hollow) g.setLineDash([4, 3]);
      g.stroke();
      g.setLineDash([]);
      if (zoom < .35) continue;
      g.fillStyle = hollow ? colours.soft : colours.ink;
      g.font = "600 12px system-ui, sans-serif";
      g.textBaseline = "middle";
      g.textAlign = "center";
      const title = n.group ? `${n.title}  +${n.count}` : n.title;
      g.fillText(clipped(g, title, n.width - 14), n.x, n.y + .5);
    }
  }

  /* Line and fill of a vertex, and whether nothing runs for it. */
  function look(n) {
    if (n.group) return [colours.group, colours["group-fill"], false];
    const v = n.v;
    if (v.kind !== "op") return [colours.port, colours["port-fill"], false];
    const r = shown.m.rows[v.i];
    if (shown.m.view === "operators") return v.shape ? [colours.shape, colours["shape-fill"], false] : [colours.tensor, colours["tensor-fill"], false];
    const steps = r[6].flatMap(([p, all]) => all.map((s) => plans[p].steps[s]));
    if (steps.some((s) => s && s[0] === 1)) return [colours.host, colours["host-fill"], false];
    if (v.shape) return [colours.shape, colours["shape-fill"], !steps.length];
    return [colours.tensor, colours["tensor-fill"], !steps.length];
  }

  function legends() {
    legend($("graph-legend"), settings.view === "operators"
      ? [["computes tensors", "var(--tensor)"], ["computes shapes", "var(--shape)"], ["repeated layers, folded", "var(--group)"]]
      : [["runs on the device", "var(--tensor)"], ["runs on the host", "var(--host)"], ["dashed: nothing runs", "var(--line)"], ["repeated layers, folded", "var(--group)"]]);
  }

  /* ---- choosing ---- */

  function centre(n) {
    scroller.scrollTo({ left: n.x * zoom + shift() - scroller.clientWidth / 2, top: n.y * zoom - scroller.clientHeight / 2 });
  }

  function choose(v, scroll) {
    chosen = v;
    if (v && v.key !== null && shown.m.folded.has(v.key) && scroll) {
      shown.m.folded.delete(v.key);
      show();
    }
    const n = v && (shown.map.get(v) ?? shown.map.get(v.key));
    if (n && scroll) centre(n);
    for (const b of $("found").querySelectorAll("button")) b.setAttribute("aria-current", String(v !== null && b.dataset.name === v.name));
    tell();
    draw();
  }

  function at(event) {
    const rect = canvas.getBoundingClientRect();
    const x = (event.clientX - rect.left - shift() + scroller.scrollLeft) / zoom, y = (event.clientY - rect.top + scroller.scrollTop) / zoom;
    return shown.list.find((n) => Math.abs(x - n.x) <= n.width / 2 && Math.abs(y - n.y) <= NODE / 2);
  }

  function fact(v, env) {
    const [dtype, dims] = data.types[data.values[v][1]];
    const symbolic = `${dtype}[${dims.map((d) => data.exprs[d]).join(", ")}]`;
    const numbers = dims.map((d) => value(d, env));
    const now = dims.some((d) => !/^-?\d+$/.test(data.exprs[d])) ? ` = [${numbers.map(whole).join(", ")}]` : "";
    return make("li", {}, text(data.values[v][0]), " ", make("span", { class: "mono" }, symbolic), now ? make("span", { class: "now mono" }, now) : null);
  }

  function tell() {
    const box = $("node");
    if (!chosen) {
      box.replaceChildren(make("p", { class: "hint" }, "Choose an operator in the graph or in the list."));
      return;
    }
    const plan = plans[settings.plan], env = environment(plan), v = chosen;
    if (v.kind !== "op") {
      box.replaceChildren(make("h3", {}, v.name), make("p", { class: "hint" }, v.kind === "input" ? "input of the model" : "output of the model"), make("ul", {}, fact(v.i, env)));
      return;
    }
    const r = shown.m.rows[v.i], list = (title, all) => all.length ? [make("h4", {}, title), make("ul", {}, ...all)] : [];
    const step = (p, s) => {
      const [place, name, kernel, grid, why] = plans[p].steps[s] || [];
      if (name === undefined) return null;
      const here = environment(plans[p]);
      return make("li", {}, make("span", { class: place ? "tag host" : "tag tensor" }, plans.length > 1 ? plans[p].name : place ? "host" : "device"),
        make("span", { class: "mono" }, kernel === null ? text(name) : text(kernel)),
        grid ? ` over ${grid.map((d) => whole(value(d, here))).join(" \u00d7 ")} work-groups (${grid.map((d) => data.exprs[d]).join(", ")})` : "",
        why === null ? "" : ` on the host: ${text(why)}`);
    };
    const nodes = settings.view === "operators" ? r[6].map((i) => data.nodes[i]) : [r];
    const folded = settings.view === "operators" && r[5] >= 3;
    const runs = folded ? [] : nodes.flatMap((n) => n[6].flatMap(([p, all]) => all.map((s) => step(p, s)))).filter(Boolean);
    const nothing = folded ? [] : nodes.filter((n) => n[7] !== null).map((n) => make("li", {}, "Nothing: " + text(n[7]) + "."));
    const became = settings.view !== "operators" ? []
      : [make("li", {}, HOW[r[5]]), ...(r[5] === 0 || folded ? [] : nodes.map((n) => make("li", {}, make("b", {}, text(n[1])), " ", text(n[0]), n[5].length > 1 ? `, which stands for ${n[5].length} operators` : "")))];
    const origin = settings.view === "operators" || r[5].length === 1 && text(r[5][0]) === v.name ? [] : r[5].map((o) => make("li", {}, text(o)));
    box.replaceChildren(make("h3", {}, v.label), make("p", {}, make("span", { class: v.shape ? "tag shape" : "tag tensor" }, v.shape ? "shape" : "tensor"), v.name),
      ...list("Reads", r[3].filter((x) => x >= 0).map((x) => fact(x, env))), ...list("Makes", r[4].map((x) => fact(x, env))),
      ...list("In the plan", became), ...list("Runs", [...runs, ...nothing]), ...list(`Stands for ${origin.length}`, origin));
  }

  /* `t` with all occurrences of the words marked. */
  function marked(t, words) {
    const low = t.toLowerCase(), hits = [];
    for (const w of words) for (let i = low.indexOf(w); i >= 0; i = low.indexOf(w, i + w.length)) hits.push([i, i + w.length]);
    hits.sort((a, b) => a[0] - b[0]);
    const out = [];
    let at = 0;
    for (const [from, to] of hits) {
      if (to <= at) continue;
      const start = Math.max(from, at);
      if (start > at) out.push(t.slice(at, start));
      out.push(make("mark", {}, t.slice(start, to)));
      at = to;
    }
    out.push(t.slice(at));
    return out;
  }

  function search() {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), most = 150;
    const all = shown.m.vertices.filter((v) => v.kind === "op" && words.every((w) => v.name.toLowerCase().includes(w) || v.label.toLowerCase().includes(w)));
    // Types come before names.
    const byType = (v) => words.some((w) => v.label.toLowerCase().includes(w));
    if (words.length) all.sort((a, b) => byType(b) - byType(a));
    $("found").replaceChildren(...all.slice(0, most).map((v) => make("li", {}, make("button", { type: "button", "data-name": v.name, title: v.name, onclick: () => choose(v, true) },
      make("b", {}, ...marked(v.label, words)), make("span", {}, ...marked(v.name, words))))),
      ...(all.length > most ? [make("li", { class: "more" }, `and ${whole(all.length - most)} more`)] : []),
      ...(all.length ? [] : [make("li", { class: "more" }, "No operator has that in its name or type.")]));
  }

  function zoomTo(z) {
    const mid = (scroller.scrollTop + scroller.clientHeight / 2) / zoom, centre = (scroller.scrollLeft + scroller.clientWidth / 2 - shift()) / zoom;
    zoom = Math.max(.12, Math.min(2, z));
    resize();
    scroller.scrollTo({ top: mid * zoom - scroller.clientHeight / 2, left: centre * zoom + shift() - scroller.clientWidth / 2 });
  }

  function switched(view) {
    settings.view = view;
    chosen = null;
    show();
    legends();
    search();
    choose(shown.m.vertices.find((v) => v.kind === "op") ?? null, false);
    zoom = Math.max(.5, Math.min(1, scroller.clientWidth / shown.width));
    resize();
    const top = shown.levels.slice(0, 8).flat().filter((n) => !n.dummy), middle = top.reduce((sum, n) => sum + n.x, 0) / Math.max(1, top.length);
    scroller.scrollTo({ top: 0, left: middle * zoom + shift() - scroller.clientWidth / 2 });
  }

  function start() {
    choice($("view-choice"), "view", [["operators", `As exported (${whole(data.operators.length)})`], ["nodes", `As planned (${whole(model("nodes").rows.length)})`]], settings.view, switched);
    scroller.addEventListener("scroll", draw);
    new ResizeObserver(() => shown && resize()).observe(scroller);
    canvas.addEventListener("click", (e) => {
      const n = at(e);
      if (!n) return choose(null, false);
      if (!n.group) return choose(n.v, false);
      shown.m.folded.delete(n.group);
      const y = n.y * zoom - scroller.scrollTop;
      const first = shown.m.groups.get(n.group)[0];
      show();
      scroller.scrollTo({ top: (shown.map.get(first).y) * zoom - y });
      choose(first, false);
    });
    $("zoom-in").addEventListener("click", () => zoomTo(zoom * 1.25));
    $("zoom-out").addEventListener("click", () => zoomTo(zoom / 1.25));
    $("zoom-fit").addEventListener("click", () => zoomTo(Math.min(1, scroller.clientWidth / shown.width)));
    $("fold-all").addEventListener("click", () => {
      const { folded, groups } = shown.m;
      if (folded.size) folded.clear(); else [...groups.keys()].slice(1).forEach((k) => folded.add(k));
      show();
      // The layout is another one: what was chosen, or comes first, stays in sight.
      const first = shown.m.vertices.find((v) => v.kind === "op"), v = chosen ?? first, n = v && (shown.map.get(v) ?? shown.map.get(v.key));
      if (n) centre(n);
    });
    $("search").addEventListener("input", search);
    switched(settings.view);
  }

  return { start, draw, tell, find(name) { const v = shown.m.vertices.find((o) => o.name === name); if (v) choose(v, true); } };
})();
