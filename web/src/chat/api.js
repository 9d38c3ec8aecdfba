import { createParser } from "eventsource-parser";

/** An error that the server reported, or a connection that failed. */
export class ApiError extends Error {
  constructor(message, { status = 0, type = null, code = null, param = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, type, code, param, retryAfter });
  }
}

const KEY = "tlite-key";
let askForKey = null, asking = null;

/** Sets what asks the user for a key: an async function that returns it, or null. */
export function onKeyNeeded(ask) { askForKey = ask; }

function headers(body) {
  const out = { accept: "application/json" }, key = sessionStorage.getItem(KEY);
  if (body !== undefined) out["content-type"] = "application/json";
  if (key) out.authorization = `Bearer ${key}`;
  return out;
}

async function send(method, path, body, signal) {
  for (let tries = 0; ; tries++) {
    let response;
    try {
      response = await fetch(path, { method, headers: headers(body), body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store", credentials: "same-origin" });
    } catch (e) {
      if (e.name === "AbortError") throw e;
      throw new ApiError("The server cannot be reached. Is it still running?", { code: "unreachable" });
    }
    if (response.ok) return response;
    if (response.status === 401 && askForKey && tries < 3) {
      asking ??= askForKey(tries > 0 || sessionStorage.getItem(KEY) !== null).finally(() => { asking = null; });
      const key = await asking;
      if (key) { sessionStorage.setItem(KEY, key); continue; }
    }
    throw await problem(response);
  }
}

async function problem(response) {
  let error = null;
  try { error = (await response.json()).error; } catch { /* The body is not JSON. */ }
  const retryAfter = Number(response.headers.get("retry-after")) || null;
  return new ApiError(error?.message ?? `The server answered ${response.status} ${response.statusText}.`.replace(" .", "."), { status: response.status, ...error, retryAfter });
}

const json = async (method, path, body, signal) => (await send(method, path, body, signal)).json();

export const models = () => json("GET", "v1/models");
export const modelCard = (id) => json("GET", `tlite/model?model=${encodeURIComponent(id)}`);
export const report = (id) => json("GET", `tlite/report?model=${encodeURIComponent(id)}`);
export const tokenize = (content, model, signal) => json("POST", "tokenize", model ? { content, model } : { content }, signal);

/** Sends a chat request and calls `event` for each JSON event of its stream. Throws what the stream reports. */
export async function stream(body, signal, event) {
  const response = await send("POST", "v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  let done = false, failed = null;
  const parser = createParser({
    onEvent({ data }) {
      if (data === "[DONE]") { done = true; return; }
      let value;
      try { value = JSON.parse(data); } catch { failed ??= new ApiError("The server sent an event that is not JSON."); return; }
      if (value.error) failed ??= new ApiError(value.error.message ?? "The server reported an error.", value.error);
      else event(value);
    },
  });
  const reader = response.body.getReader(), decoder = new TextDecoder();
  try {
    for (;;) {
      const { value, done: end } = await reader.read();
      if (end) break;
      parser.feed(decoder.decode(value, { stream: true }));
      if (failed) { reader.cancel().catch(() => {}); throw failed; }
    }
  } catch (e) {
    if (e instanceof ApiError || e.name === "AbortError") throw e;
    throw new ApiError("The connection broke before the answer was complete.", { code: "disconnected" });
  }
  if (!done) throw new ApiError("The connection ended before the answer was complete.", { code: "disconnected" });
}
