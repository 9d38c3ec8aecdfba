import * as api from "./api.js";
import * as chats from "./chats.js";
import * as store from "./store.js";
import { Generation } from "./generation.js";
import { textUpTo } from "./tokens.js";

export const MAX_FILE = 2 << 20;

export const state = {
  ready: false, kept: true, models: [], problem: null, cards: new Map(), chats: [], chat: chats.newChat(null), tab: "chat", prefs: store.preferences(), live: new Map(),
  drawer: null, dialog: null, toast: null, status: "", editing: null, tokens: new Set(), draft: "", files: [], filter: "",
};

const listeners = new Set();
export const subscribe = (f) => { listeners.add(f); return () => listeners.delete(f); };
export function update(change) {
  change?.(state);
  for (const f of listeners) f();
}

export const modelId = () => state.models.some((m) => m.id === state.chat.model) ? state.chat.model : state.models[0]?.id ?? null;
export const card = () => state.cards.get(modelId()) ?? null;
export const busy = () => chats.path(state.chat).some((n) => state.live.has(n.id));
const known = () => state.chats.includes(state.chat);

let toastTimer = null;
export function toast(text, action = null) {
  clearTimeout(toastTimer);
  update((s) => { s.toast = { text, action }; });
  toastTimer = setTimeout(() => update((s) => { s.toast = null; }), action ? 8000 : 4000);
}

export async function start() {
  applyTheme();
  api.onKeyNeeded((wrong) => new Promise((resolve) => update((s) => { s.dialog = { name: "key", wrong, resolve: (key) => { update((t) => { t.dialog = null; }); resolve(key); } }; })));
  const loaded = await store.load();
  update((s) => { s.chats = loaded.chats.sort((a, b) => b.updated - a.updated); s.kept = loaded.kept; s.ready = true; });
  await connect();
}

/** Reads the list of models and the card of the chosen one. */
export async function connect() {
  try {
    const { data } = await api.models();
    update((s) => { s.models = data; s.problem = null; });
    await readCard();
  } catch (e) { update((s) => { s.problem = e.message; }); }
}

export async function readCard() {
  const id = modelId();
  if (!id || state.cards.has(id)) return;
  try {
    const value = await api.modelCard(id);
    update((s) => s.cards.set(id, value));
  } catch (e) { if (e.status === 404) update((s) => s.cards.set(id, { id, name: id, notes: [], sampling: {}, missing: true })); }
}

export function chooseModel(id) {
  update((s) => { s.chat.model = id; });
  if (known()) store.save(state.chat, state.live);
  readCard();
}

export function changeChat(change) {
  update((s) => change(s.chat));
  if (known()) store.save(state.chat, state.live);
}

export function changePrefs(change) {
  update((s) => Object.assign(s.prefs, change));
  store.keep(state.prefs);
  if ("theme" in change) applyTheme();
}

const THEMES = ["system", "light", "dark"];
export const nextTheme = () => changePrefs({ theme: THEMES[(THEMES.indexOf(state.prefs.theme) + 1) % 3] });
function applyTheme() {
  document.documentElement.dataset.theme = state.prefs.theme;
  dispatchEvent(new Event("themechange"));
}

/* ---- chats ---- */

export function openChat(chat) {
  update((s) => { s.chat = chat; s.editing = null; s.tab = "chat"; if (s.drawer === "chats") s.drawer = null; });
  readCard();
}

export function freshChat() {
  const chat = chats.newChat(modelId());
  chat.system = state.chat.system;
  chat.sampling = { ...state.chat.sampling };
  openChat(chat);
}

export function nextChat(by) {
  const at = state.chats.indexOf(state.chat), to = state.chats[at + by];
  if (to) openChat(to);
}

export function rename(chat, title) {
  update(() => { chat.title = title.trim() || chat.title; });
  store.save(chat, state.live);
}

export function removeChat(chat) {
  for (const n of Object.values(chat.nodes)) state.live.get(n.id)?.stop();
  const at = state.chats.indexOf(chat);
  update((s) => { s.chats = s.chats.filter((c) => c !== chat); });
  store.remove(chat.id);
  if (state.chat === chat) freshChat();
  toast(`Deleted \u201c${chat.title}\u201d.`, { label: "Undo", run: () => { update((s) => { s.chats.splice(at, 0, chat); s.toast = null; }); store.save(chat); openChat(chat); } });
}

export function exportChats() {
  const text = JSON.stringify(chats.exported(state.chats), null, 1), link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `chats-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export async function importChats(file) {
  try {
    const more = chats.imported(await file.text()), { chats: all, count } = chats.merged(state.chats, more);
    await store.saveAll(more.filter((c) => all.includes(c)));
    update((s) => {
      s.chats = all.sort((a, b) => b.updated - a.updated);
      s.chat = all.find((c) => c.id === s.chat.id) ?? s.chat;
    });
    toast(`${count} of ${more.length} chat${more.length === 1 ? "" : "s"} imported${count < more.length ? "; the others are here already" : ""}.`);
  } catch (e) { toast(`Not imported. ${e.message}`); }
}

export function removeAll() {
  for (const g of state.live.values()) g.stop();
  const all = state.chats;
  update((s) => { s.chats = []; });
  for (const c of all) store.remove(c.id);
  freshChat();
  toast(`Deleted ${all.length} chats.`, { label: "Undo", run: () => { update((s) => { s.chats = all; s.toast = null; }); store.saveAll(all); } });
}

/* ---- questions and answers ---- */

/** Adds a question below a node (or at the root) and answers it. */
export function ask(parent, content, files = []) {
  const { chat } = state;
  if (!modelId()) { toast(state.problem ?? "No model is ready."); return; }
  try { chats.formatOf(chat); } catch (e) { toast(`The JSON schema cannot be used. ${e.message}`); openSettings(); return; }
  if (!known()) update((s) => s.chats.unshift(chat));
  const question = chats.add(chat, parent, { role: "user", content, ...(files.length ? { files } : {}) });
  update((s) => { s.chats.sort((a, b) => b.updated - a.updated); });
  return answer(chat, question);
}

export function sendDraft() {
  const { draft, files } = state;
  if (busy() || (!draft.trim() && !files.some((f) => f.text !== undefined))) return;
  const last = chats.path(state.chat).at(-1);
  update((s) => { s.draft = ""; s.files = []; });
  const sent = files.filter((f) => f.text !== undefined).map(({ name, text, tokens }) => ({ name, text, tokens: tokens ?? null }));
  // A question without an answer, after an error, is asked again with the new one below it.
  return ask(last?.id ?? null, draft.trim(), sent);
}

async function answer(chat, question, start = {}) {
  const model = modelId();
  const node = chats.add(chat, question.id, { role: "assistant", model, ...start });
  const generation = new Generation(node);
  update((s) => { s.live.set(node.id, generation); s.status = "Answer started."; });
  // A chat that was deleted meanwhile stays deleted.
  const save = () => { if (state.chats.includes(chat)) store.save(chat, state.live); };
  save();
  const timer = setInterval(save, 3000);
  await generation.run(chat, chats.ancestry(chat, question), { model, probabilities: state.prefs.probabilities, prefix: start.content });
  clearInterval(timer);
  chat.updated = Date.now();
  update((s) => { s.live.delete(node.id); s.status = node.error ? "The answer failed." : node.finish === "stopped" ? "Answer stopped." : "Answer complete."; });
  save();
}

export function regenerate(node) {
  if (busy() || node.role !== "assistant") return;
  return answer(state.chat, state.chat.nodes[node.parent]);
}

/** Continues an answer from an alternative of its token, as a new branch. */
export function continueFrom(node, index, alternative) {
  if (busy()) return;
  const content = textUpTo(node.tokens, index, alternative);
  if (content === null || !content) { toast("An answer cannot continue from a part of a character."); return; }
  const [t, p, b] = alternative, token = { t, p, a: node.tokens[index].a, ...(b ? { b } : {}) };
  const start = { content, tokens: [...node.tokens.slice(0, index), token], forked: index };
  if (node.reasoning) start.reasoning = node.reasoning;
  const next = answer(state.chat, state.chat.nodes[node.parent], start);
  // The branch is shown as tokens, too.
  update((s) => s.tokens.add(chats.path(s.chat).at(-1).id));
  return next;
}

/** Continues an answer that was cut off. */
export function continueAnswer(node) {
  if (busy()) return;
  const start = { content: node.content, ...(node.tokens ? { tokens: [...node.tokens] } : {}), ...(node.reasoning ? { reasoning: node.reasoning } : {}) };
  return answer(state.chat, state.chat.nodes[node.parent], start);
}

export function stop() {
  for (const n of chats.path(state.chat)) state.live.get(n.id)?.stop();
}

export const turn = (node, by) => changeChat((c) => chats.turn(c, node, by));

/* ---- files ---- */

/** Adds files to the draft. Texts are counted in tokens; others are refused with the reason. */
export async function addFiles(list) {
  for (const file of list) {
    const refuse = (why) => toast(`${file.name} was not added. ${why}`);
    if (/^(image|video|audio)\//.test(file.type)) { refuse("These models read text only: pictures, sound and video are not supported."); continue; }
    if (file.size > MAX_FILE) { refuse(`It is larger than ${MAX_FILE >> 20} MB.`); continue; }
    let text;
    try { text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()); } catch { text = null; }
    if (text === null || text.includes("\0")) { refuse("It is not a text file in UTF-8."); continue; }
    const entry = { name: file.name, text, tokens: undefined };
    update((s) => s.files.push(entry));
    api.tokenize(text, modelId()).catch((e) => e.status === 400 ? api.tokenize(text) : Promise.reject(e)).then(({ tokens }) => { entry.tokens = tokens.length; }, () => { entry.tokens = null; }).then(() => update());
  }
}

export const removeFile = (file) => update((s) => { s.files = s.files.filter((f) => f !== file); });

export const wideSettings = () => matchMedia("(min-width: 1100px)").matches;
export function openSettings() {
  if (wideSettings()) changePrefs({ settings: true }); else update((s) => { s.drawer = "settings"; });
}
export function toggleSettings() {
  if (wideSettings()) changePrefs({ settings: !state.prefs.settings }); else update((s) => { s.drawer = s.drawer === "settings" ? null : "settings"; });
}
