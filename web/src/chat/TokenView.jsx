import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { busy, continueFrom } from "./state.js";
import { chance, level, textUpTo, visible } from "./tokens.js";

/** The tokens of an answer, colored by probability, with the alternatives of the chosen one. */
export function TokenView({ node, generation }) {
  const strip = useRef(null), box = useRef(null), spans = useRef([]), line = useRef(null), [chosen, choose] = useState(null);

  useLayoutEffect(() => {
    strip.current.replaceChildren();
    spans.current = [];
    line.current = null;
    choose(null);
    show();
  }, [node]);

  useEffect(() => { show(); return generation?.listen(show); }, [node, generation]);

  /* Adds the tokens that are not shown yet. Lines are blocks of their own, so that a new token moves only its line. */
  function show() {
    const all = spans.current, tokens = node.tokens ?? [];
    for (let i = all.length; i < tokens.length; i++) {
      if (i && tokens[i - 1].r && !tokens[i].r) line.current = null;
      if (!line.current) { line.current = document.createElement("div"); strip.current.append(line.current); }
      all.push(tokenOf(tokens[i], i, node.forked === i));
      line.current.append(all[i]);
      if (tokens[i].t.endsWith("\n")) line.current = null;
    }
  }

  useEffect(() => {
    for (const e of strip.current.querySelectorAll("[aria-expanded=true]")) e.setAttribute("aria-expanded", "false");
    if (chosen === null) return;
    spans.current[chosen]?.setAttribute("aria-expanded", "true");
    place(box.current, spans.current[chosen], strip.current);
    box.current.querySelector("button")?.focus({ preventScroll: true });
    box.current.scrollIntoView({ block: "nearest" });
  }, [chosen]);

  const focusOn = (i) => {
    const all = spans.current, to = all[Math.max(0, Math.min(all.length - 1, i))];
    if (!to) return;
    strip.current.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    to.tabIndex = 0;
    to.focus();
  };
  const close = () => { const i = chosen; choose(null); if (i !== null) focusOn(i); };
  const indexOf = (e) => { const t = e.target.closest("[data-i]"); return t ? Number(t.dataset.i) : null; };
  const key = (e) => {
    const i = indexOf(e);
    if (i === null) return;
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: Infinity }[e.key];
    if (to !== undefined) focusOn(to); else if (e.key === "Enter" || e.key === " ") choose(i); else return;
    e.preventDefault();
    e.stopPropagation();
  };
  const token = chosen === null ? null : node.tokens[chosen];
  return (
    <div class="token-view">
      <p class="token-key" aria-hidden="true">{[["p5", "90 % and more"], ["p4", "70"], ["p3", "50"], ["p2", "30"], ["p1", "10"], ["p0", "less"]].map(([c, t]) => <span class={`tok ${c}`}>{t}</span>)}</p>
      <div class="token-strip" role="group" aria-label="Tokens, colored by probability. Arrow keys move, Enter shows alternatives." ref={strip} onKeyDown={key}
        onClick={(e) => { const i = indexOf(e); if (i !== null) choose(i === chosen ? null : i); }} />
      {token && (
        <div class="alternatives" role="dialog" aria-label={`Alternatives of token ${chosen + 1}`} ref={box} onKeyDown={(e) => { if (e.key === "Escape") { e.stopPropagation(); close(); } }}>
          <div class="alternatives-head"><span>Token {chosen + 1}: <code>{visible(token.t)}</code>, {chance(token.p)}</span><button type="button" class="link" onClick={close}>Close</button></div>
          {token.r && <p class="hint">Reasoning cannot be continued from an alternative.</p>}
          <ol>{token.a.map((a) => {
            const same = a[0] === token.t, broken = textUpTo(node.tokens, chosen, a) === null, off = same || token.r || broken || busy();
            return (
              <li><button type="button" disabled={off} title={broken ? "A part of a character: an answer cannot continue from it." : same ? "The token of this answer" : `Continue with ${visible(a[0])}`} onClick={() => continueFrom(node, chosen, a)}>
                <code>{visible(a[0])}</code><span class="alternative-bar"><span style={{ width: `${Math.max(1, 100 * Math.exp(a[1]))}%` }} /></span><span class="alternative-chance">{chance(a[1])}</span>
                <span class="alternative-act">{same ? "chosen" : off ? "" : "continue"}</span>
              </button></li>
            );
          })}</ol>
          {!token.a.length && <p class="hint">No alternatives were recorded.</p>}
        </div>
      )}
    </div>
  );
}

function tokenOf(t, i, forked) {
  const e = document.createElement("span");
  e.className = `tok p${level(t.p)}${t.r ? " reasoned" : ""}${forked ? " forked" : ""}`;
  e.dataset.i = i;
  e.setAttribute("role", "button");
  e.setAttribute("aria-expanded", "false");
  e.tabIndex = i === 0 ? 0 : -1;
  e.textContent = t.t === "\n" || t.t === "\n\n" ? `\u23ce${t.t}` : t.t;
  if (!t.t.trim()) e.setAttribute("aria-label", `${visible(t.t)}, ${chance(t.p)}`);
  e.title = chance(t.p);
  return e;
}

/* Below its token, within the answer. */
function place(box, token, strip) {
  if (!box || !token) return;
  const line = token.getClientRects()[0], area = strip.getBoundingClientRect(), view = strip.parentElement.getBoundingClientRect();
  const width = box.offsetWidth, left = Math.max(0, Math.min(line.left - view.left, area.right - view.left - width));
  box.style.left = `${left}px`;
  box.style.top = `${line.bottom - view.top + 6}px`;
}
