import { clipped, fitted, legend, make } from "./dom.js";
import { IN_PLACE, OWN, VIEW } from "./plan.js";
import { size, whole } from "../shared/num.js";

const PAD = { left: 60, right: 10, top: 12, bottom: 24 };

/**
 * The picture of memory over time: one box per tensor, steps to the right, offsets in the arena upwards.
 * `now()` gives the shown plan and its placement; `colors()` gives colors by name.
 */
export function timeline(now, colors) {
  const canvas = make("canvas", { tabindex: "0", role: "img", class: "v-timeline", "aria-label": "Memory over time. Left and right move through the steps, up and down through the tensors alive." });
  const strip = make("div", { class: "v-strip" }, canvas), scroll = make("div", { class: "v-time", tabindex: "-1" }, strip);
  const detail = make("p", { class: "v-detail", "aria-live": "polite" });
  let frame = null, step = null, chosen = null, asked = false, stretch = 1;

  /* Width of all steps; the canvas shows a part of them. */
  const span = () => scroll.clientWidth * stretch - PAD.left - PAD.right;

  function zoomTo(z, px) {
    const at = (scroll.scrollLeft + px - PAD.left) / span();
    stretch = Math.max(1, Math.min(Math.max(8, now().plan.count / 10), z));
    strip.style.width = `${100 * stretch}%`;
    scroll.scrollLeft = at * span() + PAD.left - px;
    buttons.all.hidden = stretch === 1;
    draw();
  }

  function oneLayer() {
    const { plan } = now(), all = plan.layers;
    if (!all.length) return;
    const here = step === null ? undefined : all.find(([a, b]) => a <= step && step <= b);
    const [first, last] = here ?? all[Math.floor(all.length / 2)];
    zoomTo(plan.count / (1.1 * (last - first + 1)), 0);
    scroll.scrollLeft = (first + last + 1) / 2 / plan.count * span() + PAD.left - scroll.clientWidth / 2;
    draw();
  }

  function scales() {
    const { plan, placed } = now(), width = scroll.clientWidth, height = canvas.clientHeight, steps = plan.count;
    const top = Math.max(1, placed.arena), all = span(), left = scroll.scrollLeft;
    const x = (s) => PAD.left + all * s / steps - left;
    const y = (b) => height - PAD.bottom - (height - PAD.top - PAD.bottom) * b / top;
    const at = (px) => Math.floor((px + left - PAD.left) / all * steps);
    const from = Math.max(0, at(PAD.left)), to = Math.min(steps - 1, at(width - PAD.right - 1));
    return { plan, placed, width, height, steps, top, x, y, at, from, to };
  }

  function draw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; paint(); });
  }

  function paint() {
    if (!scroll.clientWidth) return;
    frame = scales();
    const { plan, placed, width, height, steps, top, x, y, from, to } = frame, c = colors();
    canvas.style.width = width + "px";
    const g = fitted(canvas, width, height);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    for (const tick of ticks(top)) {
      g.fillStyle = c.line;
      g.fillRect(PAD.left, y(tick), width - PAD.left - PAD.right, 1);
      g.fillStyle = c.soft;
      g.textAlign = "right";
      g.fillText(size(tick).replace(".0 ", " "), PAD.left - 6, y(tick));
    }
    g.textAlign = "left";
    g.fillStyle = c.soft;
    g.fillText(`step ${from}`, PAD.left, height - 9);
    g.textAlign = "right";
    g.fillText(`${to}`, width - PAD.right, height - 9);
    g.save();
    g.beginPath();
    g.rect(PAD.left, 0, width - PAD.left - PAD.right, height - PAD.bottom + 1);
    g.clip();
    const order = plan.tensors.map((_, i) => i).filter((i) => plan.tensors[i].first <= to && from <= plan.tensors[i].last)
      .sort((a, b) => plan.tensors[a].kind - plan.tensors[b].kind);
    const fills = [c.box0, c.box1];
    for (const i of order) {
      const t = plan.tensors[i];
      const x0 = x(t.first), w = Math.max(1, x(t.last + 1) - x0), y1 = y(placed.offset[i]), h = Math.max(1, y1 - y(placed.offset[i] + placed.bytes[i]));
      g.fillStyle = t.kind === VIEW ? c.view : t.kind === IN_PLACE ? c.place : fills[i % 2];
      g.fillRect(x0, y1 - h, w, h);
      if (w > 4 && h > 4) {
        g.strokeStyle = c.sunken;
        g.lineWidth = 1;
        g.strokeRect(x0 + .5, y1 - h + .5, w - 1, h - 1);
      }
      if (w > 64 && h > 15 && t.kind === OWN) {
        g.fillStyle = c.ink;
        g.textAlign = "left";
        const left = Math.max(x0, PAD.left) + 5, right = Math.min(x0 + w, width - PAD.right) - 5;
        if (right - left > 50) g.fillText(clipped(g, t.name, right - left), left, y1 - h / 2);
      }
    }
    g.lineWidth = span() / steps < 3 ? 1 : 1.8;
    g.strokeStyle = c.live;
    g.beginPath();
    placed.live.forEach((b, s) => { g.lineTo(x(s), y(b)); g.lineTo(x(s + 1), y(b)); });
    g.stroke();
    g.setLineDash([6, 4]);
    g.strokeStyle = c.bound;
    g.beginPath();
    g.moveTo(PAD.left, y(placed.most));
    g.lineTo(width - PAD.right, y(placed.most));
    g.stroke();
    g.setLineDash([]);
    if (step !== null) {
      g.strokeStyle = c.accent;
      g.lineWidth = 1;
      g.beginPath();
      g.moveTo(x(step + .5), PAD.top);
      g.lineTo(x(step + .5), height - PAD.bottom);
      g.stroke();
    }
    if (chosen !== null) {
      const t = plan.tensors[chosen], x0 = x(t.first), y1 = y(placed.offset[chosen]), y0 = y(placed.offset[chosen] + placed.bytes[chosen]);
      g.strokeStyle = c.accent;
      g.lineWidth = 2.5;
      g.strokeRect(x0, Math.min(y0, y1 - 1), Math.max(2, x(t.last + 1) - x0), Math.max(2, y1 - y0));
    }
    g.restore();
  }

  /* Tensors alive at a step, from the highest offset down, shared ones before those they share. */
  function alive(s) {
    const { plan, placed } = now();
    const all = plan.tensors.map((_, i) => i).filter((i) => plan.tensors[i].first <= s && s <= plan.tensors[i].last);
    return all.sort((a, b) => placed.offset[b] - placed.offset[a] || plan.tensors[b].kind - plan.tensors[a].kind);
  }

  function describe() {
    const { plan, placed } = now();
    if (step === null) { detail.replaceChildren("Point at a box, or use the arrow keys, to see its tensor."); return; }
    const s = plan.steps[step], at = s ? `Step ${step}, ${s.place === "host" ? "host: " : ""}${s.name}. ` : "After the last step. ";
    const live = `${size(placed.live[step] ?? 0)} live. `;
    if (chosen === null) { detail.replaceChildren(at + live); return; }
    const t = plan.tensors[chosen];
    const shared = t.kind === VIEW ? ` A part of ${t.of}.` : t.kind === IN_PLACE ? ` Written over ${t.of}.` : "";
    detail.replaceChildren(at + live, make("b", {}, t.name), ` holds ${size(placed.bytes[chosen])} (${whole(placed.bytes[chosen])} = `,
      make("span", { class: "v-mono" }, t.size), `) at offset ${whole(placed.offset[chosen])}, steps ${t.first} to ${t.last}.${shared}`);
  }

  function point(event) {
    if (!frame) return;
    const { plan, placed } = now(), rect = canvas.getBoundingClientRect(), px = event.clientX - rect.left, py = event.clientY - rect.top;
    const { steps, at, width, height, top } = frame;
    const s = px < PAD.left || px > width - PAD.right ? -1 : at(px);
    const b = (height - PAD.bottom - py) / (height - PAD.top - PAD.bottom) * top;
    step = s >= 0 && s < steps ? s : null;
    chosen = step === null ? null : alive(step).filter((i) => placed.offset[i] <= b && b <= placed.offset[i] + placed.bytes[i])
      .sort((a, c) => plan.tensors[c].kind - plan.tensors[a].kind)[0] ?? null;
    draw();
    describe();
  }

  function key(event) {
    const { plan } = now(), steps = frame ? frame.steps : 0;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], turn = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (move) {
      step = Math.max(0, Math.min(steps - 1, (step ?? (move > 0 ? -1 : steps)) + move));
      if (chosen === null || step < plan.tensors[chosen].first || step > plan.tensors[chosen].last) chosen = alive(step)[0] ?? null;
      if (step < frame.from || step > frame.to) scroll.scrollLeft = step / steps * span() + PAD.left - scroll.clientWidth / 2;
    } else if (turn && step !== null) {
      const all = alive(step), k = all.indexOf(chosen);
      chosen = all.length ? all[(k + turn + all.length) % all.length] : null;
    } else return;
    event.preventDefault();
    draw();
    describe();
  }

  const middle = () => scroll.clientWidth / 2;
  const button = (text, press, label) => make("button", { type: "button", onclick: press, "aria-label": label }, text);
  const buttons = {
    layer: button("Zoom to one layer", oneLayer),
    all: button("All steps", () => zoomTo(1, 0)),
    out: button("\u2212", () => zoomTo(stretch / 2, middle()), "Zoom out of the memory picture"),
    in: button("+", () => zoomTo(stretch * 2, middle()), "Zoom into the memory picture"),
  };
  buttons.all.hidden = true;
  scroll.addEventListener("scroll", draw);
  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomTo(stretch * Math.exp(-event.deltaY / 200), event.clientX - scroll.getBoundingClientRect().left);
  }, { passive: false });
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("keydown", key);
  new ResizeObserver(draw).observe(scroll);

  return {
    elements: [make("div", { class: "v-row" },
      make("p", { class: "v-hint" }, "One box is one tensor. x: steps of a run; y: offset in the arena. Ctrl + wheel zooms."),
      make("div", { class: "v-tools" }, Object.values(buttons))), scroll, detail],
    legend: () => legend(make("ul", { class: "v-legend" }), [["tensor (two shades)", "linear-gradient(90deg, var(--box0) 50%, var(--box1) 50%)"],
      ["view", "var(--view)"], ["in place", "var(--place)"], ["live set", "var(--live)", "line"], ["lower bound", "var(--bound)", "dash"]]),
    draw, describe, oneLayer,
    reset() { step = null; chosen = null; buttons.layer.hidden = !now().plan.layers.length; },
  };
}

/** Round numbers from zero up to `top`, about four. */
export function ticks(top) {
  const raw = top / 4, unit = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= raw) || raw;
  const out = [];
  for (let t = 0; t <= top; t += step) out.push(Math.round(t));
  return out;
}
