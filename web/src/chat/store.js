import { createStore, del, entries, set, setMany } from "idb-keyval";

/* Chats in the browser's database. Without one (private windows of some browsers) they last as long as the page. */
let database = null;

export async function load() {
  try {
    database = createStore("transformer-lite", "chats");
    return { chats: (await entries(database)).map(([, c]) => c).filter((c) => c && c.nodes), kept: true };
  } catch {
    database = null;
    return { chats: [], kept: false };
  }
}

export const save = (chat) => database ? set(chat.id, chat, database).catch((e) => console.warn("chat not kept:", e)) : Promise.resolve();
export const saveAll = (chats) => database ? setMany(chats.map((c) => [c.id, c]), database) : Promise.resolve();
export const remove = (id) => database ? del(id, database).catch(() => {}) : Promise.resolve();

const PREFS = "tlite-preferences";
export const defaults = { probabilities: true, keys: true, settings: true, theme: "system" };

export function preferences() {
  try { return { ...defaults, ...JSON.parse(localStorage.getItem(PREFS) ?? "{}") }; } catch { return { ...defaults }; }
}

export function keep(prefs) {
  try { localStorage.setItem(PREFS, JSON.stringify(prefs)); } catch { /* The browser keeps nothing. */ }
}
