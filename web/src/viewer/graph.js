import { choice, clipped, fitted, legend, make } from "./dom.js";
import { graphOf, layout, NODE, STUB } from "./layout.js";
import { environment } from "./plan.js";
import { value } from "./expr.js";
import { whole } from "../shared/num.js";

const HOW = { kept: "unchanged", rewritten: "rewritten", fused: "part of a fused node", folded: "folded: known from shapes and constants", removed: "removed: nothing needs it" };
const FONT = "600 12px system-ui, sans-serif";
const LISTED = 150;

/** The graph with its list of operators. `state` holds the plans, the chosen plan and the values of symbols. */
export function graph(report, state, colors) {
  const canvas = make("canvas", { "aria-hidden": "true", class: "v-canvas" }), sheet = make("div", { class: "v-sheet" }, canvas);
  const scroller = make("div", { class: "v-scroller", tabindex: "0", role: "group", "aria-label": "Graph. Scroll with the arrow keys; choose operators in the list." }, sheet);
  const input = make("input", { type: "search", placeholder: "name or type", autocomplete: "off", spellcheck: "false", oninput: search });
  const list = make("ul", { class: "v-found", tabindex: "0", "aria-label": "Operators found" }), box = make("div", { class: "v-node", "aria-live": "polite", tabindex: "0", role: "group", "aria-label": "Chosen operator" });
  const legends = make("ul", { class: "v-legend" });
  const measure = document.createElement("canvas").getContext("2d");
  measure.font = FONT;
  let view = "operators", zoom = 1, shown = null, chosen = null, asked = false;
  const models = {}, classOf = new Map(report.operators.map((o) => [o.name, o.class]));
  const shapeOnly = (r) => r.class ? r.class === "shape" : r.origin.length > 0 && r.origin.every((o) => (classOf.get(o) ?? "shape") === "shape");
  const model = (v) => models[v] ??= graphOf(report, v, shapeOnly);
  const planOf = (name) => state.plans.find((p) => p.name === name);
  const stepsOf = (r) => r.runs.flatMap(({ plan, steps }) => steps.map((s) => [planOf(plan), planOf(plan)?.steps[s]])).filter(([, s]) => s);

  function show() {
    const m = model(view);
    shown = { m, ...layout(m, (t) => measure.measureText(t).width) };
    fold.hidden = !m.groups.size;
    fold.textContent = m.folded.size ? "Unfold all layers" : "Fold repeated layers";
    resize();
  }

  function resize() {
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
  const nodeOf = (v) => v && (shown.map.get(v) ?? shown.map.get(v.key));

  function paint() {
    const width = scroller.clientWidth, height = scroller.clientHeight;
    if (!shown || !width) return;
    const c = colors();
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const g = fitted(canvas, width, height);
    g.translate(shift() - scroller.scrollLeft, -scroller.scrollTop);
    g.scale(zoom, zoom);
    const top = scroller.scrollTop / zoom, bottom = (scroller.scrollTop + height) / zoom, active = nodeOf(chosen) ?? null;
    for (const strong of [false, true]) {
      for (const e of shown.links) {
        const y0 = Math.min(e.a.y, e.b.y), y1 = Math.max(e.a.y, e.b.y);
        if (y1 < top || y0 > bottom || strong !== (active !== null && (e.a === active || e.b === active))) continue;
        g.strokeStyle = strong ? c.accent : c.soft;
        g.globalAlpha = strong ? 1 : e.path.length > 3 ? .34 : .6;
        g.lineWidth = strong ? 2 : 1.1;
        g.beginPath();
        if (!e.short && !strong) {
          // A long edge is drawn whole only when one of its ends is chosen.
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
      const [name, hollow] = look(n);
      g.beginPath();
      g.roundRect(n.x - n.width / 2, n.y - NODE / 2, n.width, NODE, n.v && n.v.kind !== "op" ? NODE / 2 : 8);
      g.fillStyle = hollow ? c.sunken : c[name + "-fill"];
      g.fill();
      g.strokeStyle = n === active ? c.accent : c[name];
      g.lineWidth = n === active ? 3 : 1.2;
      if (hollow) g.setLineDash([4, 3]);
      g.stroke();
      g.setLineDash([]);
      if (zoom < .35) continue;
      g.fillStyle = hollow ? c.soft : c.ink;
      g.font = FONT;
      g.textBaseline = "middle";
      g.textAlign = "center";
      g.fillText(clipped(g, n.group ? `${n.title}  +${n.count}` : n.title, n.width - 14), n.x, n.y + .5);
    }
  }

  /* Color of a vertex, and whether nothing runs for it. */
  function look(n) {
    if (n.group) return ["group", false];
    if (n.v.kind !== "op") return ["port", false];
    const own = n.v.shape ? "shape" : "tensor";
    if (view === "operators") return [own, false];
    const steps = stepsOf(shown.m.rows[n.v.i]);
    return steps.some(([, s]) => s.place === "host") ? ["host", false] : [own, !steps.length];
  }

  function centre(n) {
    scroller.scrollTo({ left: n.x * zoom + shift() - scroller.clientWidth / 2, top: n.y * zoom - scroller.clientHeight / 2 });
  }

  function choose(v, scroll) {
    chosen = v;
    if (v && v.key !== null && shown.m.folded.has(v.key) && scroll) {
      shown.m.folded.delete(v.key);
      show();
    }
    const n = nodeOf(v);
    if (n && scroll) centre(n);
    for (const b of list.querySelectorAll("button")) b.setAttribute("aria-current", String(v !== null && b.dataset.name === v.name));
    describe();
    draw();
  }

  function fact(v, env) {
    const numbers = v.shape.map((d) => value(d, env));
    const now = v.shape.some((d) => !/^-?\d+$/.test(d)) ? ` = [${numbers.map(whole).join(", ")}]` : "";
    const constant = v.constant !== undefined && v.constant !== null ? ` = ${JSON.stringify(v.constant)}` : "";
    return make("li", {}, v.name, " ", make("span", { class: "v-mono" }, `${v.dtype}[${v.shape.join(", ")}]`),
      now ? make("span", { class: "v-now v-mono" }, now) : null, constant ? make("span", { class: "v-mono" }, constant) : null);
  }

  function describe() {
    if (!chosen) {
      box.replaceChildren(make("p", { class: "v-hint" }, "Choose an operator in the graph or in the list."));
      return;
    }
    const env = environment(state.plans[state.plan], state.values), v = chosen;
    if (v.kind !== "op") {
      box.replaceChildren(make("h3", {}, v.name), make("p", { class: "v-hint" }, `${v.kind} of the model`), make("ul", {}, fact(v.value, env)));
      return;
    }
    const r = shown.m.rows[v.i], part = (title, all) => all.length ? [make("h4", {}, title), make("ul", {}, all)] : [];
    const step = ([plan, s]) => {
      const here = environment(plan, state.values);
      return make("li", {}, make("span", { class: s.place === "host" ? "v-tag host" : "v-tag tensor" }, state.plans.length > 1 ? plan.name : s.place),
        make("span", { class: "v-mono" }, s.kernel ?? s.name),
        s.grid ? ` over ${s.grid.map((d) => whole(value(d, here))).join(" \u00d7 ")} work-groups (${s.grid.join(", ")})` : "",
        s.why ? ` on the host: ${s.why}` : "");
    };
    const exported = view === "operators", nodes = exported ? r.becomes.nodes.map((i) => report.nodes[i]) : [r];
    const gone = exported && (r.becomes.how === "folded" || r.becomes.how === "removed");
    const runs = gone ? [] : nodes.flatMap((n) => stepsOf(n).map(step));
    const nothing = gone ? [] : nodes.filter((n) => n.nothing).map((n) => make("li", {}, `Nothing: ${n.nothing}.`));
    const became = !exported ? [] : [make("li", {}, HOW[r.becomes.how] ?? r.becomes.how),
      ...(r.becomes.how === "kept" || gone ? [] : nodes.map((n) => make("li", {}, make("b", {}, n.op), " ", n.name,
        n.origin.length > 1 ? `, which stands for ${n.origin.length} operators` : "")))];
    const origin = exported || r.origin.length === 1 && r.origin[0] === v.name ? [] : r.origin.map((o) => make("li", {}, o));
    const attributes = Object.entries(r.attributes ?? {}).map(([k, a]) => make("li", {}, k, " ", make("span", { class: "v-mono" }, typeof a === "string" ? a : JSON.stringify(a))));
    box.replaceChildren(make("h3", {}, v.label), make("p", {}, make("span", { class: v.shape ? "v-tag shape" : "v-tag tensor" }, v.shape ? "shape" : "tensor"), v.name),
      ...part("Attributes", attributes), ...part("Reads", r.inputs.filter(Boolean).map((x) => fact(x, env))), ...part("Makes", r.outputs.map((x) => fact(x, env))),
      ...part("In the plan", became), ...part("Runs", [...runs, ...nothing]), ...part(`Stands for ${origin.length}`, origin));
  }

  /* A text with all occurrences of the words marked. */
  function marked(t, words) {
    const low = t.toLowerCase(), hits = [], out = [];
    for (const w of words) for (let i = low.indexOf(w); i >= 0; i = low.indexOf(w, i + w.length)) hits.push([i, i + w.length]);
    hits.sort((a, b) => a[0] - b[0]);
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
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean), inLabel = (v) => words.some((w) => v.label.toLowerCase().includes(w));
    const all = shown.m.vertices.filter((v) => v.kind === "op" && words.every((w) => v.name.toLowerCase().includes(w) || v.label.toLowerCase().includes(w)));
    if (words.length) all.sort((a, b) => inLabel(b) - inLabel(a));
    list.replaceChildren(...all.slice(0, LISTED).map((v) => make("li", {}, make("button", { type: "button", "data-name": v.name, title: v.name, "aria-current": String(v === chosen), onclick: () => choose(v, true) },
      make("b", {}, marked(v.label, words)), make("span", {}, marked(v.name, words))))),
    ...(all.length > LISTED ? [make("li", { class: "v-more" }, `and ${whole(all.length - LISTED)} more`)] : []),
    ...(all.length ? [] : [make("li", { class: "v-more" }, "No operator has that in its name or type.")]));
  }

  function zoomTo(z) {
    const mid = (scroller.scrollTop + scroller.clientHeight / 2) / zoom, centre = (scroller.scrollLeft + scroller.clientWidth / 2 - shift()) / zoom;
    zoom = Math.max(.12, Math.min(2, z));
    resize();
    scroller.scrollTo({ top: mid * zoom - scroller.clientHeight / 2, left: centre * zoom + shift() - scroller.clientWidth / 2 });
  }

  function switched(to) {
    view = to;
    chosen = null;
    show();
    legend(legends, view === "operators"
      ? [["computes tensors", "var(--tensor)"], ["computes shapes", "var(--shape)"], ["repeated layers, folded", "var(--group)"]]
      : [["runs on the device", "var(--tensor)"], ["runs on the host", "var(--host)"], ["dashed: nothing runs", "var(--line)"], ["repeated layers, folded", "var(--group)"]]);
    search();
    choose(shown.m.vertices.find((v) => v.kind === "op") ?? null, false);
    home();
  }

  function home() {
    zoom = Math.max(.5, Math.min(1, (scroller.clientWidth || 800) / shown.width));
    resize();
    const top = shown.levels.slice(0, 8).flat().filter((n) => !n.dummy), middle = top.reduce((sum, n) => sum + n.x, 0) / Math.max(1, top.length);
    scroller.scrollTo({ top: 0, left: middle * zoom + shift() - scroller.clientWidth / 2 });
  }

  const button = (text, press, label) => make("button", { type: "button", onclick: press, "aria-label": label }, text);
  const fold = button("", () => {
    const { folded, groups } = shown.m;
    if (folded.size) folded.clear(); else [...groups.keys()].slice(1).forEach((k) => folded.add(k));
    show();
    const n = nodeOf(chosen ?? shown.m.vertices.find((v) => v.kind === "op"));
    if (n) centre(n);
  });
  const views = choice("Graph to show", [["operators", `As exported (${whole(report.operators.length)})`], ["nodes", `As planned (${whole(model("nodes").rows.length)})`]], view, switched);
  scroller.addEventListener("scroll", draw);
  let sized = false;
  new ResizeObserver(() => {
    if (!shown || !scroller.clientWidth) return;
    if (sized) resize(); else { sized = true; home(); }
  }).observe(scroller);
  canvas.addEventListener("click", (event) => {
    const rect = canvas.getBoundingClientRect();
    const x = (event.clientX - rect.left - shift() + scroller.scrollLeft) / zoom, y = (event.clientY - rect.top + scroller.scrollTop) / zoom;
    const n = shown.list.find((o) => Math.abs(x - o.x) <= o.width / 2 && Math.abs(y - o.y) <= NODE / 2);
    if (!n || !n.group) return choose(n ? n.v : null, false);
    shown.m.folded.delete(n.group);
    const from = n.y * zoom - scroller.scrollTop, first = shown.m.groups.get(n.group)[0];
    show();
    scroller.scrollTo({ top: shown.map.get(first).y * zoom - from });
    choose(first, false);
  });

  return {
    elements: [
      make("div", { class: "v-tools" }, views, button("\u2212", () => zoomTo(zoom / 1.25), "Zoom out of the graph"), button("+", () => zoomTo(zoom * 1.25), "Zoom into the graph"),
        button("Fit width", () => zoomTo(Math.min(1, scroller.clientWidth / shown.width))), fold),
      make("div", { class: "v-graph" }, scroller, make("div", { class: "v-side" }, make("label", { class: "v-search" }, "Find operators ", input), list, box)),
    ],
    legends, draw, describe,
    start: () => switched(view),
    view(name) { views.querySelector(`input[value="${name === "planned" ? "nodes" : "operators"}"]`)?.click(); },
    find(name) { const v = shown.m.vertices.find((o) => o.name === name); if (v) choose(v, true); },
    search(text) { input.value = text; search(); },
    unfold: () => fold.click(),
  };
}
