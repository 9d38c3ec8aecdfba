import DOMPurify from "dompurify";
import { Marked } from "marked";

const escape = (t) => t.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

/* HTML in an answer is shown as text. Pictures become a note: loading one could send the chat elsewhere. */
const marked = new Marked({ gfm: true, breaks: false, async: false, renderer: {
  html: ({ text }) => escape(text),
  image: ({ href, text }) => `<span class="picture">Picture not loaded${text ? `: ${escape(text)}` : ""} (${escape(href.length > 120 ? `${href.slice(0, 120)}\u2026` : href)})</span>`,
  code: ({ text, lang }) => `<pre><code class="language-${escape((lang ?? "").match(/^[\w+#-]*/)[0].toLowerCase())}">${escape(text)}</code></pre>`,
  checkbox: ({ checked }) => checked ? "\u2611 " : "\u2610 ",
} });

const CLEAN = {
  ALLOWED_TAGS: ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a", "table", "thead", "tbody", "tr", "th", "td", "span"],
  ALLOWED_ATTR: ["href", "title", "class", "align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i, ADD_URI_SAFE_ATTR: ["align", "start"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true,
};
const purify = DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    if (!node.hasAttribute("href")) return;
    node.setAttribute("rel", "noopener noreferrer nofollow");
    node.setAttribute("target", "_blank");
  } else if (node.tagName === "SPAN" && node.className !== "picture") node.removeAttribute("class");
  // Answers stand below the headings of the page.
  else if (/^H[1-6]$/.test(node.tagName)) node.setAttribute("class", `h-${node.tagName[1]}`);
});

/** The nodes of some blocks of Markdown, sanitized. */
function rendered(tokens) {
  const fragment = purify.sanitize(marked.parser(tokens), CLEAN);
  for (const h of fragment.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const level = document.createElement("div");
    level.setAttribute("role", "heading");
    level.setAttribute("aria-level", String(Math.min(6, Number(h.tagName[1]) + 2)));
    level.className = h.className;
    level.append(...h.childNodes);
    h.replaceWith(level);
  }
  for (const t of fragment.querySelectorAll("table")) {
    const box = document.createElement("div");
    box.className = "table-box";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Table");
    t.replaceWith(box);
    box.append(t);
  }
  for (const pre of fragment.querySelectorAll("pre")) codeBox(pre);
  return fragment;
}

function codeBox(pre) {
  const code = pre.querySelector("code"), language = (code?.className ?? "").replace("language-", "");
  const box = document.createElement("div"), head = document.createElement("div"), name = document.createElement("span"), copy = document.createElement("button");
  box.className = "code-box";
  head.className = "code-head";
  name.textContent = language || "text";
  copy.type = "button";
  copy.textContent = "Copy";
  copy.setAttribute("aria-label", "Copy code");
  copy.addEventListener("click", async () => { await copied(code.textContent); copy.textContent = "Copied"; setTimeout(() => { copy.textContent = "Copy"; }, 1500); });
  head.append(name, copy);
  pre.tabIndex = 0;
  pre.replaceWith(box);
  box.append(head, pre);
}

/** Copies a text, also where the page has no clipboard (plain HTTP on another host). */
export async function copied(text) {
  try { await navigator.clipboard.writeText(text); } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

let highlighter = null;
/** Colors the code of finished blocks, when the browser has time. */
function color(nodes) {
  const codes = nodes.flatMap((n) => n.querySelectorAll ? [...n.querySelectorAll("pre code[class]")] : []).filter((c) => /language-./.test(c.className) && c.textContent.length < 50_000);
  if (!codes.length) return;
  highlighter ??= import("./highlight.js");
  highlighter.then(({ highlight }) => {
    for (const c of codes) {
      (window.requestIdleCallback ?? setTimeout)(() => {
        const html = highlight(c.textContent, c.className.replace("language-", ""));
        if (html !== null && c.isConnected) c.replaceChildren(DOMPurify(window).sanitize(html, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true }));
      });
    }
  }, () => {});
}

/**
 * Markdown that grows. Blocks that are complete are rendered once; only the last, open block is parsed again.
 */
export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.reset();
  }

  reset() {
    this.text = "";
    this.closed = 0;
    this.blocks = [];
    this.openNodes = [];
    this.finished = false;
    this.parses = 0;
    this.root.replaceChildren();
  }

  /** Shows a text. It should start with the text shown before; else all is rendered again. */
  update(text, done) {
    if (text.includes("\r")) text = text.replace(/\r\n?/g, "\n");
    if (!text.startsWith(this.text) || (this.finished && text !== this.text)) this.reset();
    if (text === this.text && this.finished === done) return;
    if (done && !this.same(text)) this.reset();
    this.text = text;
    const tail = text.slice(this.closed);
    if (!done && this.appendCode(tail)) return;
    const tokens = marked.lexer(tail);
    this.parses += tail.length;
    let last = tokens.length;
    if (!done) {
      const back = () => { do last--; while (last > 0 && tokens[last].type === "space"); };
      back();
      // The beginning of a line may still turn into a part of the block before it.
      if (last > 0 && !tokens[last].raw.includes("\n")) back();
      last = Math.max(0, last);
    }
    for (const n of this.openNodes) n.remove();
    this.openNodes = [];
    if (last > 0) {
      const complete = tokens.slice(0, last);
      complete.links = tokens.links;
      color(this.append(complete));
      this.blocks.push(...complete.map(mark));
      this.closed += complete.reduce((n, t) => n + t.raw.length, 0);
    }
    if (last < tokens.length) {
      const open = tokens.slice(last);
      open.links = tokens.links;
      this.openNodes = this.append(open);
      this.openFence = open.length === 1 ? this.openCode(open[0], text.slice(this.closed)) : 0;
    } else this.openFence = 0;
    this.finished = done;
  }

  /* Whether the blocks that were rendered so far are those of the whole text. In rare cases later text changes them, and a
     link may use a definition in another block. */
  same(text) {
    if (!this.closed) return true;
    const tokens = marked.lexer(text);
    return !Object.keys(tokens.links).length && this.blocks.every((b, i) => tokens[i] && mark(tokens[i]) === b);
  }

  /* The length of the tail if it is an open code block that starts at the margin, else 0. */
  openCode(token, tail) {
    const head = /^(`{3,}|~{3,})[^\n]*\n/.exec(tail);
    const code = this.openNodes[0]?.querySelector?.("pre code");
    if (token.type !== "code" || !head || !code || token.raw.length !== tail.length || closedFence(token.raw)) return 0;
    code.textContent = tail.slice(head[0].length);
    return tail.length;
  }

  /* Adds to an open code block without parsing it, as long as no character may end it. */
  appendCode(tail) {
    if (!this.openFence) return false;
    const added = tail.slice(this.openFence), code = this.openNodes[0].querySelector("pre code");
    if (/[`~]/.test(added)) { this.openFence = 0; return false; }
    if (code.lastChild) code.lastChild.appendData(added); else code.textContent = added;
    this.openFence = tail.length;
    return true;
  }

  append(tokens) {
    const fragment = rendered(tokens), nodes = [...fragment.childNodes];
    this.root.append(fragment);
    return nodes;
  }
}

const mark = (t) => `${t.type}\n${t.raw}\n${t.text ?? ""}`;

function closedFence(raw) {
  const fence = /^ {0,3}(`{3,}|~{3,})/.exec(raw)[1];
  return new RegExp(`\\n {0,3}${fence[0]}{${fence.length},}[ \\t]*\\n*$`).test(raw);
}
