import { useEffect, useRef, useState } from "preact/hooks";
import { formatOf } from "./chats.js";
import { Icon, IconButton } from "./icons.jsx";
import { card, changeChat, changePrefs, exportChats, freshChat, importChats, openChat, removeAll, removeChat, rename, state, toggleSettings, update } from "./state.js";

/** The list of chats. */
export function Sidebar() {
  const [renaming, setRenaming] = useState(null), file = useRef(null), words = state.filter.toLowerCase();
  const shown = state.chats.filter((c) => !words || c.title.toLowerCase().includes(words) || Object.values(c.nodes).some((n) => n.content.toLowerCase().includes(words)));
  return (
    <nav class="sidebar" id="chats" aria-label="Chats" data-open={state.drawer === "chats"}>
      <div class="side-head">
        <button type="button" class="button primary wide" onClick={freshChat}><Icon name="plus" /><span>New chat</span></button>
        <span class="only-narrow"><IconButton icon="close" label="Close the list of chats" onClick={() => update((s) => { s.drawer = null; })} /></span>
      </div>
      {state.chats.length > 4 && <input class="field" type="search" aria-label="Search chats" placeholder="Search" value={state.filter} onInput={(e) => update((s) => { s.filter = e.target.value; })} />}
      <ul class="chat-list">
        {shown.map((c) => (
          <li key={c.id} class={c === state.chat ? "current" : ""}>
            {renaming === c.id ? (
              <input class="field" aria-label="Title of the chat" defaultValue={c.title} ref={(e) => e?.focus()}
                onKeyDown={(e) => { if (e.key === "Enter") { rename(c, e.target.value); setRenaming(null); } if (e.key === "Escape") { e.stopPropagation(); setRenaming(null); } }}
                onBlur={(e) => { if (renaming === c.id) rename(c, e.target.value); setRenaming(null); }} />
            ) : <button type="button" class="chat-item" aria-current={c === state.chat ? "true" : undefined} onClick={() => openChat(c)} onDblClick={() => setRenaming(c.id)}>{c.title || "New chat"}</button>}
            <span class="chat-tools">
              <IconButton icon="edit" label={`Rename ${c.title}`} onClick={() => setRenaming(c.id)} />
              <IconButton icon="trash" label={`Delete ${c.title}`} onClick={() => removeChat(c)} />
            </span>
          </li>
        ))}
      </ul>
      {!state.chats.length && <p class="hint">Chats stay in this browser.</p>}
      {!state.kept && <p class="hint" role="status">This browser keeps no data: chats are lost when the page closes.</p>}
      <div class="side-foot">
        <button type="button" class="link" disabled={!state.chats.length} onClick={exportChats}>Export</button>
        <button type="button" class="link" onClick={() => file.current.click()}>Import</button>
        <button type="button" class="link" disabled={!state.chats.length} onClick={removeAll}>Delete all</button>
        <input ref={file} type="file" accept=".json,application/json" class="visually-hidden" tabIndex={-1} aria-label="File of chats to import" onChange={(e) => { if (e.target.files[0]) importChats(e.target.files[0]); e.target.value = ""; }} />
      </div>
    </nav>
  );
}

const FIELDS = [
  ["temperature", "Temperature", { min: 0, step: .1 }], ["top_p", "Top-p", { min: 0, max: 1, step: .05 }], ["top_k", "Top-k", { min: 0, step: 1 }], ["min_p", "Min-p", { min: 0, max: 1, step: .01 }],
  ["repetition_penalty", "Repetition penalty", { min: 0, step: .05 }], ["seed", "Seed", { step: 1 }], ["max_tokens", "Maximum tokens", { min: 1, step: 1 }],
];
const EXAMPLE = JSON.stringify({ type: "object", properties: { name: { type: "string" }, year: { type: "integer" }, tags: { type: "array", items: { type: "string" }, maxItems: 3 } }, required: ["name", "year", "tags"], additionalProperties: false }, null, 2);

/** Settings of the chat, and of the page. */
export function Settings({ open }) {
  const { chat, prefs } = state, sampling = card()?.sampling ?? {}, changed = Object.values(chat.sampling).some((v) => v !== "" && v !== undefined);
  let problem = null;
  if (chat.schema.on) try { formatOf(chat); } catch (e) { problem = chat.schema.text.trim() ? e.message : "Enter a schema."; }
  const preset = (k) => k === "seed" ? "random" : k === "max_tokens" ? "context" : sampling[k] === null ? "off" : sampling[k] === undefined ? "the model's" : String(sampling[k]);
  return (
    <aside class="settings" id="settings" aria-label="Settings" data-open={open}>
      <div class="side-head"><h2>Settings</h2><IconButton icon="close" label="Close settings" onClick={toggleSettings} /></div>
      <section>
        <label class="label" for="system">System prompt</label>
        <textarea id="system" class="field" rows={4} placeholder="None" value={chat.system} onInput={(e) => changeChat((c) => { c.system = e.target.value; })} />
      </section>
      <section aria-labelledby="sampling-title">
        <div class="row"><h3 id="sampling-title">Sampling</h3><button type="button" class="link" disabled={!changed} onClick={() => changeChat((c) => { c.sampling = {}; })}>Reset</button></div>
        <p class="hint" id="sampling-hint">Empty fields use the defaults shown in gray.</p>
        <div class="grid">
          {FIELDS.map(([k, name, limits]) => (
            <div class="setting"><label for={`s-${k}`}>{name}</label>
              <input id={`s-${k}`} class="field" type="number" {...limits} step={limits.step} inputMode="decimal" placeholder={preset(k)} aria-describedby="sampling-hint" value={chat.sampling[k] ?? ""}
                onInput={(e) => changeChat((c) => { c.sampling[k] = e.target.value; })} /></div>
          ))}
        </div>
        <label class="label small" for="stop">Stop strings, one per line</label>
        <textarea id="stop" class="field" rows={2} placeholder="None" value={chat.sampling.stop ?? ""} onInput={(e) => changeChat((c) => { c.sampling.stop = e.target.value; })} />
      </section>
      <section aria-labelledby="format-title">
        <h3 id="format-title">Answer format</h3>
        <label class="check"><input type="checkbox" checked={chat.schema.on} onChange={(e) => changeChat((c) => { c.schema.on = e.target.checked; if (c.schema.on && !c.schema.text) c.schema.text = EXAMPLE; })} /><span>JSON that matches a schema</span></label>
        {chat.schema.on && <>
          <label class="label small" for="schema">JSON schema</label>
          <textarea id="schema" class="field mono" rows={12} spellcheck={false} aria-invalid={problem !== null} aria-describedby="schema-problem" value={chat.schema.text} onInput={(e) => changeChat((c) => { c.schema.text = e.target.value; })} />
          <p class={problem ? "hint bad" : "hint"} id="schema-problem" role="status">{problem ?? "Answers are constrained to this schema."}</p>
        </>}
      </section>
      <section aria-labelledby="page-title">
        <h3 id="page-title">Page</h3>
        <label class="check"><input type="checkbox" checked={prefs.probabilities} onChange={(e) => changePrefs({ probabilities: e.target.checked })} /><span>Record token probabilities</span></label>
        <label class="check"><input type="checkbox" checked={prefs.keys} onChange={(e) => changePrefs({ keys: e.target.checked })} /><span>Keyboard shortcuts with single keys</span></label>
        <div class="setting"><label for="theme">Theme</label>
          <select id="theme" class="field" value={prefs.theme} onChange={(e) => changePrefs({ theme: e.target.value })}><option value="system">as the system</option><option value="light">light</option><option value="dark">dark</option></select></div>
      </section>
    </aside>
  );
}

/** A modal dialog. */
export function Dialog({ title, close, children }) {
  const box = useRef(null);
  useEffect(() => { box.current.showModal(); }, []);
  return (
    <dialog ref={box} aria-labelledby="dialog-title" onCancel={(e) => { e.preventDefault(); close(); }} onClick={(e) => { if (e.target === box.current) close(); }}>
      <div class="dialog"><div class="side-head"><h2 id="dialog-title">{title}</h2><IconButton icon="close" label="Close" onClick={close} /></div>{children}</div>
    </dialog>
  );
}

export const KEYS = [
  [["Enter"], "Send the message"], [["Shift", "Enter"], "New line"], [["Esc"], "Stop the answer, or close what is open"], [["/"], "Go to the message box"], [["N"], "New chat"], [["["], "Newer chat"], [["]"], "Older chat"],
  [["R"], "Regenerate the last answer"], [["E"], "Edit the last question"], [["C"], "Copy the last answer"], [["T"], "Show the tokens of the last answer"], [["M"], "Show the model or the chat"], [["S"], "Show or hide the settings"], [["D"], "Change the theme"], [["?"], "Show this list"],
];

export function Help() {
  return (
    <Dialog title="Keyboard" close={() => update((s) => { s.dialog = null; })}>
      <dl class="keys">{KEYS.map(([keys, what]) => <div><dt>{keys.map((k, i) => <>{i > 0 && " + "}<kbd>{k}</kbd></>)}</dt><dd>{what}</dd></div>)}</dl>
      <p class="hint">Single keys work outside of text fields. The settings turn them off. In the token view, arrow keys move between tokens and Enter shows alternatives.</p>
    </Dialog>
  );
}

export function KeyDialog({ wrong, resolve }) {
  const [key, set] = useState("");
  return (
    <Dialog title="Key needed" close={() => resolve(null)}>
      <form class="key-form" onSubmit={(e) => { e.preventDefault(); resolve(key.trim() || null); }}>
        <p>{wrong ? "The server did not accept the key." : "This server asks for a key."} It is kept until this tab closes.</p>
        <label class="label" for="key">Key</label>
        <input id="key" class="field" type="password" autocomplete="off" value={key} onInput={(e) => set(e.target.value)} />
        <div class="row end"><button class="button primary" disabled={!key.trim()}>Use key</button></div>
      </form>
    </Dialog>
  );
}
