import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import { path } from "./chats.js";
import { Icon, IconButton } from "./icons.jsx";
import { Answer, Question } from "./Message.jsx";
import { copied } from "./markdown.js";
import { ModelTab } from "./ModelTab.jsx";
import { Help, KeyDialog, Settings, Sidebar } from "./Panels.jsx";
import { addFiles, busy, card, chooseModel, connect, freshChat, modelId, nextChat, nextTheme, regenerate, removeFile, sendDraft, state, stop, subscribe, toast, toggleSettings, update, wideSettings } from "./state.js";

export function App() {
  const [, tick] = useReducer((n) => n + 1, 0), [over, setOver] = useState(false);
  useEffect(() => subscribe(tick), []);
  useEffect(() => { addEventListener("keydown", shortcut); return () => removeEventListener("keydown", shortcut); }, []);
  useEffect(() => {
    const wide = matchMedia("(min-width: 1100px)");
    wide.addEventListener("change", tick);
    return () => wide.removeEventListener("change", tick);
  }, []);
  const settings = state.tab === "chat" && (wideSettings() ? state.prefs.settings : state.drawer === "settings");
  const files = (e) => [...(e.dataTransfer?.types ?? [])].includes("Files");
  return (
    <div class="app" data-settings={settings} onDragOver={(e) => { if (files(e)) { e.preventDefault(); setOver(true); } }} onDragLeave={(e) => { if (!e.relatedTarget) setOver(false); }}
      onDrop={(e) => { if (!files(e)) return; e.preventDefault(); setOver(false); addFiles(e.dataTransfer.files); }}>
      {state.tab === "chat" && <nav class="skip-box" aria-label="Skip"><a class="skip" href="#message">Skip to the message box</a></nav>}
      <Sidebar />
      <div class="middle">
        <Header settings={settings} />
        {state.problem && <div class="banner" role="alert"><span>{state.problem}</span><button type="button" class="button" onClick={connect}>Try again</button></div>}
        <main>{state.tab === "model" ? <ModelTab /> : <Chat />}</main>
        {state.tab === "chat" && <Composer />}
      </div>
      <Settings open={settings} />
      {state.drawer && <div class="backdrop" onClick={() => update((s) => { s.drawer = null; })} />}
      {over && <div class="drop" aria-hidden="true"><p>Drop a text file to add it to the message</p></div>}
      <div class="toast-box" role="status">{state.toast && <div class="toast"><span>{state.toast.text}</span>{state.toast.action && <button type="button" class="link" onClick={state.toast.action.run}>{state.toast.action.label}</button>}</div>}</div>
      <p class="visually-hidden" role="status">{state.status}</p>
      {state.dialog?.name === "help" && <Help />}
      {state.dialog?.name === "key" && <KeyDialog {...state.dialog} />}
    </div>
  );
}

function Header({ settings }) {
  const theme = { system: "system", light: "sun", dark: "moon" }[state.prefs.theme];
  return (
    <header class="header">
      <span class="only-narrow"><IconButton icon="menu" label="Show the list of chats" aria-expanded={state.drawer === "chats"} aria-controls="chats" onClick={() => update((s) => { s.drawer = "chats"; })} /></span>
      <div class="tabs" role="group" aria-label="View">
        {[["chat", "Chat"], ["model", "Model"]].map(([k, t]) => <button type="button" aria-pressed={state.tab === k} onClick={() => update((s) => { s.tab = k; })}>{t}</button>)}
      </div>
      <select class="field model-select" aria-label="Model" value={modelId() ?? ""} disabled={state.models.length < 2 || busy()} onChange={(e) => chooseModel(e.target.value)}>
        {!state.models.length && <option value="">No model</option>}
        {state.models.map((m) => <option value={m.id}>{m.id}</option>)}
      </select>
      <Gauge />
      <span class="header-end">
        <span class="only-wide"><IconButton icon="help" label="Keyboard" onClick={() => update((s) => { s.dialog = { name: "help" }; })} /></span>
        <span class="only-wide"><IconButton icon={theme} label={`Theme: ${state.prefs.theme}`} onClick={nextTheme} /></span>
        {state.tab === "chat" && <IconButton icon="settings" label="Settings" aria-expanded={settings} aria-controls="settings" onClick={toggleSettings} />}
      </span>
    </header>
  );
}

/* Used context of the shown chat, and how much of the last prompt came from the cache. */
function Gauge() {
  const context = card()?.context;
  if (!context) return null;
  const last = path(state.chat).filter((n) => n.stats?.prompt).at(-1)?.stats, used = last ? last.prompt + (last.tokens ?? 0) : 0, cached = last?.cached ?? 0;
  const n = (v) => v.toLocaleString("en"), text = `${n(used)} of ${n(context)} tokens used${cached ? `, ${n(cached)} cached` : ""}`;
  return (
    <div class="gauge" role="meter" aria-label="Context used" aria-valuemin="0" aria-valuemax={context} aria-valuenow={Math.min(used, context)} aria-valuetext={text} title={`Context: ${text}`}>
      <span class="gauge-bar" data-full={used > .9 * context}><span class="gauge-cached" style={{ width: `${Math.min(100, 100 * cached / context)}%` }} /><span class="gauge-used" style={{ width: `${Math.min(100, 100 * Math.max(0, used - cached) / context)}%` }} /></span>
      <span class="gauge-text" aria-hidden="true">{n(used)} / {n(context)}{cached ? ` · ${n(cached)} cached` : ""}</span>
    </div>
  );
}

function Chat() {
  const scroller = useRef(null), stuck = useRef(true), nodes = path(state.chat);
  const grown = () => { if (stuck.current && scroller.current) scroller.current.scrollTop = scroller.current.scrollHeight; };
  useLayoutEffect(() => { stuck.current = true; grown(); }, [state.chat, nodes.length]);
  const onScroll = () => { const s = scroller.current; stuck.current = s.scrollHeight - s.scrollTop - s.clientHeight < 48; };
  let questions = 0, answers = 0;
  return (
    <div class="messages" ref={scroller} onScroll={onScroll} tabIndex={0} role="region" aria-label="Messages">
      <h1 class="visually-hidden">{state.chat.title || "New chat"}</h1>
      <div class="messages-inner">
        {!nodes.length && state.ready && <Empty />}
        {nodes.map((n) => n.role === "user" ? <Question key={n.id} node={n} number={++questions} /> : <Answer key={n.id} node={n} number={++answers} grown={grown} />)}
      </div>
    </div>
  );
}

function Empty() {
  const c = card();
  return (
    <div class="empty">
      <h2>{c?.name ?? modelId() ?? "No model"}</h2>
      {c && !c.missing && <p class="soft">{[c.device, c.backend, c.weights, c.context && `context ${c.context.toLocaleString("en")} tokens`].filter(Boolean).join(" · ")}</p>}
      {c?.notes?.length > 0 && <ul class="hint">{c.notes.map((n) => <li>{n}</li>)}</ul>}
    </div>
  );
}

function Composer() {
  const box = useRef(null), file = useRef(null), running = busy();
  useLayoutEffect(() => {
    const e = box.current;
    e.style.height = "auto";
    e.style.height = `${Math.min(e.scrollHeight + 2, innerHeight * .4)}px`;
  }, [state.draft]);
  useEffect(() => { if (matchMedia("(pointer: fine)").matches) box.current?.focus(); }, [state.chat]);
  const submit = (e) => { e?.preventDefault(); sendDraft(); };
  return (
    <form class="composer" aria-label="New message" onSubmit={submit}>
      {state.files.length > 0 && (
        <ul class="files" aria-label="Files to send">{state.files.map((f) => (
          <li class="file"><Icon name="file" /><span>{f.name}</span><span class="soft">{f.tokens === undefined ? "counting\u2026" : f.tokens === null ? "not counted" : `${f.tokens.toLocaleString("en")} tokens`}</span>
            <IconButton icon="close" label={`Remove ${f.name}`} onClick={() => removeFile(f)} /></li>
        ))}</ul>
      )}
      <div class="composer-box">
        <IconButton icon="attach" label="Add a text file" onClick={() => file.current.click()} />
        <input ref={file} type="file" multiple class="visually-hidden" tabIndex={-1} aria-label="Text files to add" onChange={(e) => { addFiles([...e.target.files]); e.target.value = ""; }} />
        <textarea id="message" ref={box} rows={1} aria-label="Message" placeholder="Message" value={state.draft} onInput={(e) => update((s) => { s.draft = e.target.value; })}
          onPaste={(e) => { if (e.clipboardData?.files.length) { e.preventDefault(); addFiles([...e.clipboardData.files]); } }}
          onKeyDown={(e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) submit(e); }} />
        {running ? <IconButton icon="stop" label="Stop" class="icon-button filled" onClick={stop} />
          : <button class="icon-button filled" aria-label="Send" title="Send" disabled={!state.draft.trim() && !state.files.length}><Icon name="send" /></button>}
      </div>
      <p class="hint composer-hint">Answers can be wrong. Enter sends, Shift + Enter starts a new line.</p>
    </form>
  );
}

/* Single keys outside of text fields, and Escape everywhere. */
function shortcut(e) {
  const last = path(state.chat).at(-1), typing = e.target.closest?.("input, textarea, select, [contenteditable]");
  if (e.key === "Escape") {
    if (state.dialog || e.target.closest?.("dialog")) return;
    if (state.drawer) update((s) => { s.drawer = null; }); else if (busy()) stop(); else if (typing) e.target.blur();
    return;
  }
  if (typing || e.ctrlKey || e.metaKey || e.altKey || state.dialog || !state.prefs.keys) return;
  const answer = last?.role === "assistant" ? last : null, question = path(state.chat).filter((n) => n.role === "user").at(-1);
  const run = {
    "?": () => update((s) => { s.dialog = { name: "help" }; }), "/": () => { update((s) => { s.tab = "chat"; }); setTimeout(() => document.getElementById("message")?.focus()); },
    n: freshChat, "[": () => nextChat(-1), "]": () => nextChat(1), r: () => answer && regenerate(answer), e: () => question && !busy() && update((s) => { s.tab = "chat"; s.editing = question.id; }),
    c: () => answer && copied(answer.content).then(() => toast("Copied.")), t: () => answer && update((s) => { if (!s.tokens.delete(answer.id)) s.tokens.add(answer.id); }),
    m: () => update((s) => { s.tab = s.tab === "chat" ? "model" : "chat"; }), s: toggleSettings, d: nextTheme,
  }[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  if (!run) return;
  e.preventDefault();
  run();
}
