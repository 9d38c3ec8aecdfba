/**
 * Conversations as trees. A chat holds `nodes` by id; a node has a parent (null for first questions) and children.
 * `chosen` maps a parent's id ("" for the root) to the child that is shown.
 */
export const FORMAT = "transformer-lite-chats";

/** A random id. `crypto.randomUUID` is missing on pages without TLS on another host. */
export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

export function newChat(model) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, model: model ?? null, system: "", sampling: {}, schema: { on: false, text: "" }, nodes: {}, roots: [], chosen: {} };
}

export const siblings = (chat, node) => node.parent === null ? chat.roots : chat.nodes[node.parent].children;

/** The shown nodes from the first question down. */
export function path(chat) {
  const out = [];
  let list = chat.roots, key = "";
  while (list.length) {
    const id = list.includes(chat.chosen[key]) ? chat.chosen[key] : list[list.length - 1];
    const node = chat.nodes[id];
    if (!node) break;
    out.push(node);
    list = node.children;
    key = id;
  }
  return out;
}

/** The nodes from the root to a node, both included. */
export function ancestry(chat, node) {
  const out = [];
  for (let n = node; n; n = n.parent === null ? null : chat.nodes[n.parent]) out.unshift(n);
  return out;
}

/** Adds a node below a parent (an id or null) and shows it. */
export function add(chat, parent, fields) {
  const node = { id: newId(), parent, children: [], created: Date.now(), content: "", ...fields };
  chat.nodes[node.id] = node;
  siblings(chat, node).push(node.id);
  chat.chosen[parent ?? ""] = node.id;
  chat.updated = Date.now();
  if (!chat.title && node.role === "user") chat.title = titleOf(node);
  return node;
}

const titleOf = (node) => (node.content.trim() || node.files?.[0]?.name || "New chat").replace(/\s+/g, " ").slice(0, 60);

/** Shows the sibling that lies `by` places further. */
export function turn(chat, node, by) {
  const all = siblings(chat, node), at = all.indexOf(node.id) + by;
  if (at < 0 || at >= all.length) return false;
  chat.chosen[node.parent ?? ""] = all[at];
  return true;
}

/** The text that the model gets for a question: its files, then what was typed. */
export function contentOf(node) {
  const files = (node.files ?? []).map((f) => {
    const longest = Math.max(2, ...[...f.text.matchAll(/`+/g)].map((m) => m[0].length)), fence = "`".repeat(longest + 1);
    return `File ${f.name}:\n${fence}\n${f.text}${f.text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...files, node.content].filter(Boolean).join("\n\n");
}

/** The messages of a request: the system prompt and the nodes in order. */
export function messagesOf(chat, nodes) {
  const out = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  for (const n of nodes) {
    if (n.role === "user") out.push({ role: "user", content: contentOf(n) });
    else if (n.content) out.push({ role: "assistant", content: n.content });
  }
  return out;
}

const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens"];

/** The fields of a request that follow from the settings of a chat. Empty ones keep the server's defaults. */
export function samplingOf(chat) {
  const out = {};
  for (const k of SAMPLING) {
    const v = chat.sampling[k];
    if (v !== undefined && v !== null && v !== "" && Number.isFinite(Number(v))) out[k] = Number(v);
  }
  const stop = (chat.sampling.stop ?? "").split("\n").filter((s) => s !== "");
  if (stop.length) out.stop = stop.map((s) => s.replaceAll("\\n", "\n"));
  return out;
}

/** The response format of a chat, or null. Throws if its schema is not a JSON object. */
export function formatOf(chat) {
  if (!chat.schema.on) return null;
  const schema = JSON.parse(chat.schema.text);
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) throw new Error("A schema is a JSON object.");
  return { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
}

export const exported = (chats) => ({ format: FORMAT, version: 1, exported: new Date().toISOString(), chats });

/** The chats of an exported file. Throws with a reason if it is not one. Unknown fields are dropped. */
export function imported(text) {
  let data;
  try { data = JSON.parse(text); } catch { throw new Error("The file is not JSON."); }
  if (data?.format !== FORMAT || !Array.isArray(data.chats)) throw new Error("The file holds no exported chats.");
  if (data.version !== 1) throw new Error(`The file has version ${data.version}; this page reads version 1.`);
  return data.chats.map((c, i) => {
    try { return cleaned(c); } catch (e) { throw new Error(`Chat ${i + 1}: ${e.message}`); }
  });
}

const string = (v, name) => { if (typeof v !== "string") throw new Error(`${name} is not text.`); return v; };
const isObject = (v) => v !== null && typeof v === "object" && !Array.isArray(v);

function cleaned(c) {
  if (!isObject(c) || !isObject(c.nodes)) throw new Error("it has no nodes.");
  const chat = newChat(typeof c.model === "string" ? c.model : null);
  chat.id = string(c.id, "id");
  chat.title = string(c.title ?? "", "title");
  chat.system = string(c.system ?? "", "system");
  for (const k of ["created", "updated"]) if (Number.isFinite(c[k])) chat[k] = c[k];
  if (isObject(c.sampling)) for (const k of [...SAMPLING, "stop"]) if (["string", "number"].includes(typeof c.sampling[k])) chat.sampling[k] = String(c.sampling[k]);
  if (isObject(c.schema)) chat.schema = { on: c.schema.on === true, text: typeof c.schema.text === "string" ? c.schema.text : "" };
  const nodes = new Map();
  for (const [id, n] of Object.entries(c.nodes)) {
    if (!isObject(n) || (n.role !== "user" && n.role !== "assistant")) throw new Error("a message has no role.");
    const node = { id, parent: null, children: [], created: Number.isFinite(n.created) ? n.created : chat.created, role: n.role, content: string(n.content, "content") };
    for (const k of ["reasoning", "model", "finish"]) if (typeof n[k] === "string") node[k] = n[k];
    if (Array.isArray(n.files)) node.files = n.files.map((f) => ({ name: string(f?.name, "name"), text: string(f?.text, "text"), tokens: Number.isFinite(f.tokens) ? f.tokens : null }));
    if (Array.isArray(n.tokens)) node.tokens = n.tokens.filter((t) => isObject(t) && typeof t.t === "string" && Number.isFinite(t.p)).map(cleanToken);
    if (isObject(n.stats)) { node.stats = {}; for (const [k, v] of Object.entries(n.stats)) if (Number.isFinite(v)) node.stats[k] = v; }
    if (n.json === true) node.json = true;
    if (isObject(n.error) && typeof n.error.message === "string") node.error = { message: n.error.message };
    nodes.set(id, node);
  }
  chat.nodes = Object.fromEntries(nodes);
  // Children are linked from the root down, so that a broken file makes no cycles.
  const seen = new Set();
  const link = (ids, parent, list) => {
    for (const id of Array.isArray(ids) ? ids : []) {
      const node = nodes.get(id);
      if (!node || seen.has(id)) continue;
      seen.add(id);
      node.parent = parent;
      list.push(id);
    }
    return list;
  };
  const open = link(c.roots, null, chat.roots).slice();
  while (open.length) {
    const id = open.pop();
    open.push(...link(c.nodes[id].children, id, nodes.get(id).children));
  }
  for (const id of nodes.keys()) if (!seen.has(id)) delete chat.nodes[id];
  if (isObject(c.chosen)) for (const [k, v] of Object.entries(c.chosen)) if ((k === "" || seen.has(k)) && seen.has(v)) chat.chosen[k] = v;
  return chat;
}

function cleanToken(t) {
  const bytes = (b) => Array.isArray(b) ? b.filter((n) => Number.isInteger(n) && n >= 0 && n < 256) : undefined;
  const out = { t: t.t, p: t.p, a: (Array.isArray(t.a) ? t.a : []).filter((a) => Array.isArray(a) && typeof a[0] === "string" && Number.isFinite(a[1])).map((a) => a[2] ? [a[0], a[1], bytes(a[2])] : [a[0], a[1]]) };
  if (t.b) out.b = bytes(t.b);
  if (t.r) out.r = 1;
  return out;
}

/** Adds chats to a list by id; the newer one of two stays. Returns the list and how many were new or newer. */
export function merged(old, more) {
  const byId = new Map(old.map((c) => [c.id, c]));
  let count = 0;
  for (const c of more) {
    const known = byId.get(c.id);
    if (known && known.updated >= c.updated) continue;
    byId.set(c.id, c);
    count++;
  }
  return { chats: [...byId.values()], count };
}
