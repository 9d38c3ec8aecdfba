import { stream } from "./api.js";
import { formatOf, messagesOf, samplingOf } from "./chats.js";
import { remember } from "./store.js";
import { kept } from "./tokens.js";

/**
 * An answer that is being written. It fills its node, and tells its listeners at most once per frame, so that the speed
 * of a stream does not matter to the page.
 */
export class Generation {
  constructor(node) {
    this.node = node;
    this.abort = new AbortController();
    this.listeners = new Set();
    this.asked = false;
    this.cost = 0;
    this.running = true;
  }

  listen(f) { this.listeners.add(f); return () => this.listeners.delete(f); }
  stop() { this.abort.abort(); }

  changed() {
    if (this.asked) return;
    this.asked = true;
    const wait = this.cost > 8 ? 3 * this.cost : 0;
    const tell = () => requestAnimationFrame(() => {
      this.asked = false;
      const from = performance.now();
      for (const f of this.listeners) f();
      this.cost = performance.now() - from;
    });
    if (document.hidden) { setTimeout(() => { this.asked = false; for (const f of this.listeners) f(); }, 250); return; }
    if (wait) setTimeout(tell, wait); else tell();
  }

  /** Runs the request. `prefix` is the text that the answer starts with, to be continued. */
  async run(chat, history, { model, probabilities, prefix }) {
    const { node } = this, start = performance.now();
    let first = null, last = start, count = 0, usage = null;
    // The tokens as text, made bit by bit: making it at the end would take long.
    const texts = (node.tokens ?? []).map((t) => JSON.stringify(t));
    const messages = messagesOf(chat, history);
    if (prefix) {
      const message = { role: "assistant", content: prefix };
      if (node.reasoning) message.reasoning_content = node.reasoning;
      messages.push(message);
    }
    try {
      const format = formatOf(chat);
      const body = { model, messages, ...samplingOf(chat), ...(format ? { response_format: format } : {}),
        ...(probabilities ? { logprobs: true, top_logprobs: 10 } : {}), ...(prefix ? { continue_final_message: true, add_generation_prompt: false } : {}) };
      if (format) node.json = true;
      await stream(body, this.abort.signal, (event) => {
        if (event.usage) usage = event.usage;
        const choice = event.choices?.[0];
        if (!choice) return;
        const { content, reasoning_content: reasoning } = choice.delta ?? {};
        if (reasoning) node.reasoning = (node.reasoning ?? "") + reasoning;
        if (content) node.content += content;
        const entries = choice.logprobs?.content ?? [];
        for (const e of entries) {
          const token = kept(e, Boolean(reasoning) && !content);
          (node.tokens ??= []).push(token);
          texts.push(JSON.stringify(token));
        }
        if (content || reasoning || entries.length) {
          last = performance.now();
          first ??= last;
          count += entries.length || 1;
        }
        if (choice.finish_reason) node.finish = choice.finish_reason;
        this.changed();
      });
    } catch (e) {
      if (e.name === "AbortError") node.finish = "stopped";
      else node.error = { message: e.message, status: e.status ?? 0, code: e.code ?? null, retryAfter: e.retryAfter ?? null };
    }
    const made = usage?.completion_tokens ?? count;
    node.stats = { first: first === null ? null : (first - start) / 1000, total: (last - start) / 1000, tokens: made,
      speed: first !== null && made > 1 && last > first ? (made - 1) / ((last - first) / 1000) : null,
      prompt: usage?.prompt_tokens ?? null, cached: usage?.prompt_tokens_details?.cached_tokens ?? null };
    if (node.tokens) remember(node.tokens, `[${texts.join(",")}]`);
    this.running = false;
    for (const f of this.listeners) f();
  }
}
