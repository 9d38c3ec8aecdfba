import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { siblings } from "./chats.js";
import { Icon, IconButton } from "./icons.jsx";
import { MarkdownView, copied } from "./markdown.js";
import { ask, busy, continueAnswer, regenerate, state, toast, turn, update } from "./state.js";
import { TokenView } from "./TokenView.jsx";

/** Pretty JSON of an answer to a schema, as Markdown. */
function asJson(text, done) {
  if (done) try { return "```json\n" + JSON.stringify(JSON.parse(text), null, 2) + "\n```"; } catch { /* It is not complete. */ }
  return "```json\n" + text + (done ? "\n```" : "");
}

function Markdown({ node, generation, grown }) {
  const root = useRef(null), view = useRef(null);
  useLayoutEffect(() => {
    view.current ??= new MarkdownView(root.current);
    const show = () => {
      const done = !generation?.running;
      view.current.update(node.json ? asJson(node.content, done) : node.content, done);
      grown?.();
    };
    show();
    return generation?.listen(show);
  }, [node, node.content, generation]);
  return <div class="markdown" ref={root} />;
}

function Reasoning({ node, generation }) {
  const text = useRef(null), [, tick] = useState(0), has = useRef(Boolean(node.reasoning));
  useEffect(() => {
    const show = () => {
      if (!node.reasoning) return;
      if (!has.current) { has.current = true; tick((n) => n + 1); return; }
      const e = text.current;
      if (!e) return;
      const known = e.firstChild;
      if (known && node.reasoning.startsWith(known.data)) known.appendData(node.reasoning.slice(known.data.length)); else e.textContent = node.reasoning;
    };
    show();
    return generation?.listen(show);
  });
  if (!node.reasoning) return null;
  return <details class="reasoning"><summary>{generation?.running && !node.content ? "Reasoning\u2026" : "Reasoning"}</summary><div class="reasoning-text" ref={text} /></details>;
}

function Branches({ node }) {
  const all = siblings(state.chat, node);
  if (all.length < 2) return null;
  const at = all.indexOf(node.id), what = node.role === "user" ? "question" : "answer";
  return (
    <span class="branches" role="group" aria-label={`Versions of this ${what}`}>
      <IconButton icon="left" label={`Previous version of this ${what}`} disabled={at === 0} onClick={() => turn(node, -1)} />
      <span>{at + 1}<span aria-hidden="true">/</span><span class="visually-hidden"> of </span>{all.length}</span>
      <IconButton icon="right" label={`Next version of this ${what}`} disabled={at === all.length - 1} onClick={() => turn(node, 1)} />
    </span>
  );
}

const seconds = (v) => v < 10 ? `${v.toFixed(2)} s` : `${v.toFixed(0)} s`;

function Stats({ node }) {
  const s = node.stats;
  const parts = [node.model];
  if (s) {
    if (s.first !== null && s.first !== undefined) parts.push(`first token ${seconds(s.first)}`);
    if (s.speed) parts.push(`${s.speed.toFixed(s.speed < 100 ? 1 : 0)} tokens/s`);
    if (s.tokens) parts.push(`${s.tokens.toLocaleString("en")} tokens`);
    if (s.prompt) parts.push(`prompt ${s.prompt.toLocaleString("en")}${s.cached ? `, ${s.cached.toLocaleString("en")} cached` : ""}`);
  }
  return <p class="stats">{parts.filter(Boolean).map((t, i) => <span>{i > 0 && <span aria-hidden="true"> · </span>}{t}</span>)}</p>;
}

const FINISH = { length: "Stopped at the token limit.", stopped: "Stopped.", content_filter: "Stopped by the server.", lost: "The page closed before this answer was complete." };

export function Answer({ node, number, grown }) {
  const generation = state.live.get(node.id), running = Boolean(generation), tokens = state.tokens.has(node.id);
  const toggle = () => update((s) => { if (!s.tokens.delete(node.id)) s.tokens.add(node.id); });
  // An answer without an end was being written when the page closed.
  const finish = node.finish ?? (node.error || running ? null : "lost");
  let json = null;
  if (node.json && !running && node.content) try { JSON.parse(node.content); json = "Valid JSON."; } catch { json = "Not complete JSON."; }
  return (
    <article class="message answer" aria-label={`Answer ${number}`} aria-busy={running}>
      <Reasoning node={node} generation={generation} />
      {tokens
        ? node.tokens?.length || running ? <TokenView node={node} generation={generation} /> : (
          <p class="hint note">This answer has no token probabilities. Turn on &ldquo;Record token probabilities&rdquo; in the settings and regenerate it.</p>
        )
        : <Markdown key={node.id} node={node} generation={generation} grown={grown} />}
      {running && <Waiting node={node} generation={generation} />}
      {json && <p class="hint note">{json}</p>}
      {!running && FINISH[finish] && <p class="hint note">{FINISH[finish]}</p>}
      {node.error && <div class="error" role="alert"><span>{node.error.message}{node.error.retryAfter ? ` Try again in ${node.error.retryAfter} s.` : ""}</span><button type="button" class="button" onClick={() => regenerate(node)}>Try again</button></div>}
      {!running && <Stats node={node} />}
      <div class="actions">
        <Branches node={node} />
        {!running && <>
          <IconButton icon="copy" label="Copy answer" onClick={async () => { await copied(node.content); toast("Copied."); }} />
          <IconButton icon="redo" label="Regenerate answer" disabled={busy()} onClick={() => regenerate(node)} />
          {["length", "stopped", "lost"].includes(finish) && node.content && <IconButton icon="more" text="Continue" label="Continue this answer" onClick={() => continueAnswer(node)} />}
        </>}
        <IconButton icon="tokens" label="Show token probabilities" aria-pressed={tokens} onClick={toggle} />
      </div>
    </article>
  );
}

/* A mark while nothing has arrived. */
function Waiting({ node, generation }) {
  const [waits, set] = useState(!node.content && !node.reasoning);
  useEffect(() => generation.listen(() => { if (node.content || node.reasoning) set(false); }), [generation]);
  return waits ? <p class="waiting"><span class="visually-hidden">Waiting for the first token</span><span class="dots" aria-hidden="true"><i /><i /><i /></span></p> : null;
}

export function Question({ node, number }) {
  const editing = state.editing === node.id, [text, set] = useState(node.content), box = useRef(null);
  useEffect(() => { if (editing) { set(node.content); box.current?.focus(); } }, [editing]);
  const send = () => {
    if (busy() || !text.trim() && !node.files?.length) return;
    update((s) => { s.editing = null; });
    ask(node.parent, text.trim(), node.files);
  };
  return (
    <article class="message question" aria-label={`Question ${number}`}>
      {node.files?.length > 0 && <ul class="files" aria-label="Files">{node.files.map((f) => <li class="file"><Icon name="file" /><span>{f.name}</span>{f.tokens !== null && <span class="soft">{f.tokens.toLocaleString("en")} tokens</span>}</li>)}</ul>}
      {editing ? (
        <form class="edit" onSubmit={(e) => { e.preventDefault(); send(); }}>
          <textarea ref={box} aria-label="Edit question" rows={Math.min(12, text.split("\n").length + 1)} value={text} onInput={(e) => set(e.target.value)}
            onKeyDown={(e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); } if (e.key === "Escape") { e.stopPropagation(); update((s) => { s.editing = null; }); } }} />
          <div class="row"><button type="button" class="button" onClick={() => update((s) => { s.editing = null; })}>Cancel</button><button class="button primary" disabled={busy()}>Send as new version</button></div>
        </form>
      ) : node.content && <div class="question-text">{node.content}</div>}
      {!editing && (
        <div class="actions">
          <Branches node={node} />
          <IconButton icon="copy" label="Copy question" onClick={async () => { await copied(node.content); toast("Copied."); }} />
          <IconButton icon="edit" label="Edit question" disabled={busy()} onClick={() => update((s) => { s.editing = node.id; })} />
        </div>
      )}
    </article>
  );
}
