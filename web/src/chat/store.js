import { createStore, del, entries, set, setMany } from "idb-keyval";

/* Chats in the browser's database. Without one (private windows of some browsers) they last as long as the page. */
let database = null;

export async function load() {
  try {
    database = createStore("transformer-lite", "chats");
    return { chats: (await entries(database)).map(([, c]) => c).filter((c) => c && c.nodes).map(unpacked), kept: true };
  } catch {
    database = null;
    return { chats: [], kept: false };
  }
}

/* Tokens with their alternatives are many small arrays: as one text they are kept much faster. Those of an answer that is
   being written wait until it is complete. */
const texts = new WeakMap();
/** Gives the text of tokens that never change again. */
export const remember = (tokens, text) => texts.set(tokens, text);

function packed(chat, live) {
  const nodes = {};
  for (const [id, n] of Object.entries(chat.nodes)) {
    if (!n.tokens) { nodes[id] = n; continue; }
    const { tokens, ...rest } = n;
    if (!live?.has(id)) {
      if (!texts.has(tokens)) texts.set(tokens, JSON.stringify(tokens));
      rest.packed = texts.get(tokens);
    }
    nodes[id] = rest;
  }
  return { ...chat, nodes };
}

function unpacked(chat) {
  for (const n of Object.values(chat.nodes)) {
    if (typeof n.packed !== "string") continue;
    n.tokens = JSON.parse(n.packed);
    texts.set(n.tokens, n.packed);
    delete n.packed;
  }
  return chat;
}

export const save = (chat, live) => database ? set(chat.id, packed(chat, live), database).catch((e) => console.warn("chat not kept:", e)) : Promise.resolve();
export const saveAll = (chats) => database ? setMany(chats.map((c) => [c.id, packed(c)]), database) : Promise.resolve();
export const remove = (id) => database ? del(id, database).catch(() => {}) : Promise.resolve();

const PREFS = "tlite-preferences";
export const defaults = { probabilities: true, keys: true, settings: true, theme: "system" };

export function preferences() {
  try { return { ...defaults, ...JSON.parse(localStorage.getItem(PREFS) ?? "{}") }; } catch { return { ...defaults }; }
}

export function keep(prefs) {
  try { localStorage.setItem(PREFS, JSON.stringify(prefs)); } catch { /* The browser keeps nothing. */ }
}
