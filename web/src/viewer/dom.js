/** A new element. Strings become text, never markup. `style` is an object of CSS properties. */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

let space = null;
/** A new SVG element. The parser knows the namespace, so that the page needs no address. */
export function svg(tag, attributes = {}, ...children) {
  if (!space) {
    const template = make("template");
    template.innerHTML = "<svg></svg>";
    space = template.content.firstChild.namespaceURI;
  }
  return filled(document.createElementNS(space, tag), attributes, children);
}

function filled(e, attributes, children) {
  for (const [k, v] of Object.entries(attributes)) {
    if (v === null || v === undefined || v === false) continue;
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (k === "style") for (const [p, text] of Object.entries(v)) e.style.setProperty(p, text);
    else e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

let count = 0;
/** An id that no other element has. */
export const unique = (name) => `v-${name}-${++count}`;

/** A titled section. */
export function panel(title, ...children) {
  const id = unique("title");
  return make("section", { class: "v-panel", "aria-labelledby": id }, make("h2", { id }, title), ...children);
}

/** Cards of facts: name, value, and a smaller line. */
export function cards(all) {
  return make("dl", { class: "v-cards" }, all.map(([name, value, more, color, title]) =>
    make("div", {}, make("dt", {}, color ? dot(color) : null, name), make("dd", { title }, value, more ? make("small", {}, more) : null))));
}

export const dot = (color) => make("span", { class: "v-dot", style: { background: color } });

/** Fills a list with the meaning of colors. */
export function legend(list, entries) {
  list.replaceChildren(...entries.map(([name, color, line]) => {
    const mark = line
      ? make("span", { class: line === "dash" ? "v-stroke dash" : "v-stroke", style: { "border-color": color } })
      : dot(color);
    return make("li", {}, mark, name);
  }));
  return list;
}

/** Radio buttons that look like one control. */
export function choice(label, options, chosen, change) {
  const name = unique("choice");
  return make("div", { role: "radiogroup", "aria-label": label, class: "v-choice" }, options.map(([value, text]) =>
    make("label", {}, make("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) }), text)));
}

/** A definition list of names and values. */
export function facts(entries, name = "v-about") {
  return make("dl", { class: name }, entries.flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)]));
}

/**
 * A table that sorts by the column whose heading is pressed, with a search box from 12 rows on.
 *
 * A column has a `name`, a `text(row)` that gives a string or an element, optionally a `key(row)` to sort by,
 * `left` for text, `wide` if phones leave it out, and `find` if the search looks at it.
 */
export function table(caption, columns, rows, { limit = 100, last = null, found = "row" } = {}) {
  const cells = (row) => columns.map((c) => {
    const content = c.text(row);
    return make("td", { class: classes(c) }, content);
  });
  const key = (c, row) => c.key ? c.key(row) : c.text(row);
  const body = make("tbody"), note = make("p", { class: "v-hint" });
  let order = null, down = false, words = [], all = false;
  const heads = columns.map((c, i) => make("th", { scope: "col", class: classes(c) },
    c.name ? make("button", { type: "button", onclick: () => sort(i) }, c.name) : make("span", { class: "visually-hidden" }, c.label ?? "bar")));

  function sort(i) {
    down = order === i ? !down : typeof (rows.length ? key(columns[i], rows[0]) : 0) === "number";
    order = i;
    heads.forEach((h, k) => k === i ? h.setAttribute("aria-sort", down ? "descending" : "ascending") : h.removeAttribute("aria-sort"));
    fill();
  }

  function fill() {
    const searched = columns.filter((c) => c.find);
    let shown = rows;
    if (words.length) shown = rows.filter((r) => { const t = searched.map((c) => c.text(r)).join(" ").toLowerCase(); return words.every((w) => t.includes(w)); });
    if (order !== null) {
      const c = columns[order];
      shown = [...shown].sort((a, b) => compare(key(c, a), key(c, b)) * (down ? -1 : 1));
    }
    const cut = all ? shown : shown.slice(0, limit);
    body.replaceChildren(...cut.map((r) => make("tr", {}, cells(r))));
    if (last && !words.length && cut.length === shown.length) body.append(last());
    const left = shown.length - cut.length;
    note.replaceChildren(...(left > 0
      ? [`${cut.length} of ${shown.length} shown. `, make("button", { type: "button", onclick: () => { all = true; fill(); } }, "Show all")]
      : words.length ? [`${shown.length} of ${rows.length} ${found}${rows.length === 1 ? "" : "s"}.`] : []));
  }

  fill();
  const search = rows.length >= 12 && columns.some((c) => c.find)
    ? make("label", { class: "v-search" }, "Search ", make("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: (e) => {
      words = e.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      fill();
    } }))
    : null;
  const scroll = make("div", { class: "v-scroll", tabindex: "0", role: "group", "aria-label": caption },
    make("table", {}, make("caption", { class: "visually-hidden" }, caption), make("thead", {}, make("tr", {}, heads)), body));
  return make("div", { class: "v-table" }, search, scroll, note);
}

const classes = (c) => [c.left && "left", c.wide && "wide", c.bar && "bar"].filter(Boolean).join(" ") || null;

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number" || typeof b === "number") return typeof a === "number" ? 1 : -1;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** A bar of this share of its cell. */
export const bar = (share, color) =>
  make("span", { class: "v-bar", style: { width: `${(100 * Math.max(0, Math.min(1, share))).toFixed(1)}%`, ...(color ? { background: color } : {}) } });

/** The color that a CSS variable has at an element, as a canvas needs it. */
export function colorsAt(root, names) {
  const probe = make("span", { hidden: true });
  root.append(probe);
  const out = {};
  for (const n of names) {
    probe.style.color = `var(--${n})`;
    out[n] = getComputedStyle(probe).color;
  }
  probe.remove();
  return out;
}

/** The context of a canvas with this size in CSS pixels, cleared, sharp on every screen. */
export function fitted(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

/** The end of a text that fits into a width. */
export function clipped(g, t, width) {
  if (g.measureText(t).width <= width) return t;
  let lo = 0, hi = t.length;
  while (lo < hi) {
    const mid = (lo + hi + 1) >> 1;
    if (g.measureText("\u2026" + t.slice(t.length - mid)).width <= width) lo = mid; else hi = mid - 1;
  }
  return lo > 1 ? "\u2026" + t.slice(t.length - lo) : "";
}
