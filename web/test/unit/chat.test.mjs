import assert from "node:assert/strict";
import { test } from "node:test";
import { add, ancestry, contentOf, exported, formatOf, imported, merged, messagesOf, newChat, path, samplingOf, siblings, turn } from "../../src/chat/chats.js";
import { chance, kept, level, textUpTo, visible } from "../../src/chat/tokens.js";

function talk() {
  const chat = newChat("m");
  const q = add(chat, null, { role: "user", content: "First  question\nwith two lines" });
  const a = add(chat, q.id, { role: "assistant", content: "One" });
  return { chat, q, a };
}

test("branches_are_shown_as_chosen", () => {
  const { chat, q, a } = talk();
  const b = add(chat, q.id, { role: "assistant", content: "Two" });
  const q2 = add(chat, b.id, { role: "user", content: "Next" });
  assert.deepEqual(path(chat).map((n) => n.content), [q.content, "Two", "Next"]);
  assert.ok(turn(chat, b, -1));
  assert.deepEqual(path(chat).map((n) => n.id), [q.id, a.id]);
  assert.ok(!turn(chat, a, -1));
  assert.ok(turn(chat, a, 1));
  assert.deepEqual(ancestry(chat, q2).map((n) => n.id), [q.id, b.id, q2.id]);
  assert.equal(siblings(chat, a).length, 2);
  assert.equal(chat.title, "First question with two lines");
});

test("edited_questions_are_siblings_at_the_root", () => {
  const { chat, q } = talk();
  const other = add(chat, null, { role: "user", content: "Other" });
  assert.deepEqual(path(chat).map((n) => n.id), [other.id]);
  turn(chat, other, -1);
  assert.equal(path(chat)[0].id, q.id);
});

test("messages_hold_system_prompt_files_and_no_reasoning", () => {
  const { chat, a } = talk();
  chat.system = "Be brief.";
  a.reasoning = "hidden";
  const q = add(chat, a.id, { role: "user", content: "And this?", files: [{ name: "a.md", text: "```js\n1\n```", tokens: 5 }] });
  assert.deepEqual(messagesOf(chat, ancestry(chat, q)).map((m) => m.role), ["system", "user", "assistant", "user"]);
  assert.equal(contentOf(q), "File a.md:\n````\n```js\n1\n```\n````\n\nAnd this?");
  assert.ok(!JSON.stringify(messagesOf(chat, path(chat))).includes("hidden"));
});

test("empty_sampling_fields_are_not_sent", () => {
  const chat = newChat(null);
  chat.sampling = { temperature: "0", top_k: "", seed: "7", stop: "END\n\\n\\n\n" };
  assert.deepEqual(samplingOf(chat), { temperature: 0, seed: 7, stop: ["END", "\n\n"] });
});

test("schemas_must_be_json_objects", () => {
  const chat = newChat(null);
  assert.equal(formatOf(chat), null);
  chat.schema = { on: true, text: '{"type":"object"}' };
  assert.deepEqual(formatOf(chat), { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" }, strict: true } });
  for (const text of ["", "[]", "3", "{"]) { chat.schema.text = text; assert.throws(() => formatOf(chat), text); }
});

test("exported_chats_import_unchanged", () => {
  const { chat, a } = talk();
  a.tokens = [{ t: "On", p: -.1, a: [["On", -.1], ["\ufffd", -3, [226]]] }, { t: "\ufffd", p: -1, a: [], b: [226, 130] }];
  a.stats = { first: .1, total: 1, tokens: 2, speed: null, prompt: 9, cached: 3 };
  const [back] = imported(JSON.stringify(exported([chat])));
  const drop = (c) => { delete c.nodes[a.id].stats; delete c.nodes[a.id].tokens; return c; };
  assert.deepEqual(back.nodes[a.id].tokens, a.tokens);
  assert.deepEqual(drop(structuredClone(back)), drop(structuredClone(chat)));
});

test("broken_imports_are_refused_with_a_reason", () => {
  assert.throws(() => imported("no"), /not JSON/);
  assert.throws(() => imported("{}"), /no exported chats/);
  assert.throws(() => imported(JSON.stringify({ ...exported([]), version: 2 })), /version 2/);
  assert.throws(() => imported(JSON.stringify(exported([{ id: "a", nodes: { x: { role: "tool", content: "" } } }]))), /Chat 1/);
});

test("cycles_and_orphans_of_an_import_are_cut", () => {
  const node = (children) => ({ role: "user", content: "x", children });
  const [chat] = imported(JSON.stringify(exported([{ id: "c", title: "t", nodes: { a: node(["b"]), b: node(["a", "b", "gone"]), lost: node(["a"]) }, roots: ["a", "a"], chosen: { "": "a", a: "lost" } }])));
  assert.deepEqual(path(chat).map((n) => n.id), ["a", "b"]);
  assert.deepEqual(Object.keys(chat.nodes), ["a", "b"]);
  assert.deepEqual(chat.chosen, { "": "a" });
});

test("prototype_keys_of_an_import_do_no_harm", () => {
  const text = '{"format":"transformer-lite-chats","version":1,"chats":[{"id":"c","nodes":{"__proto__":{"role":"user","content":"x"}},"roots":["__proto__"]}]}';
  imported(text);
  assert.equal({}.role, undefined);
});

test("merging_keeps_the_newer_chat", () => {
  const old = { id: "a", updated: 2 }, newer = { id: "a", updated: 3 };
  assert.deepEqual(merged([old], [newer, { id: "b", updated: 1 }]), { chats: [newer, { id: "b", updated: 1 }], count: 2 });
  assert.deepEqual(merged([newer], [old]), { chats: [newer], count: 0 });
});

test("token_bytes_are_kept_where_text_loses_them", () => {
  const whole = kept({ token: "a", bytes: [97], logprob: -.12345678, top_logprobs: [{ token: "a", bytes: [97], logprob: -.1 }] });
  assert.deepEqual(whole, { t: "a", p: -.1235, a: [["a", -.1]] });
  const part = kept({ token: "\ufffd", bytes: [240, 159], logprob: -1, top_logprobs: [] }, true);
  assert.deepEqual(part, { t: "\ufffd", p: -1, a: [], b: [240, 159], r: 1 });
});

test("text_up_to_a_token_joins_bytes_and_skips_reasoning", () => {
  const tokens = [{ t: "think", p: 0, a: [], r: 1 }, { t: "A ", p: 0, a: [] }, { t: "\ufffd", p: 0, a: [], b: [240, 159] }, { t: "\ufffd", p: 0, a: [], b: [166, 138] }];
  assert.equal(textUpTo(tokens, 4), "A \u{1f98a}");
  assert.equal(textUpTo(tokens, 3), null);
  assert.equal(textUpTo(tokens, 2, ["dog", -1]), "A dog");
  assert.equal(textUpTo(tokens, 2, ["\ufffd", -1, [240]]), null);
});

test("probabilities_have_levels_and_texts", () => {
  assert.deepEqual([.95, .8, .6, .4, .2, .01].map((p) => level(Math.log(p))), [5, 4, 3, 2, 1, 0]);
  assert.equal(chance(Math.log(.4321)), "43.2 %");
  assert.equal(chance(-99), "< 0.01 %");
  assert.equal(visible(" the\n"), "\u2423the\u23ce");
});
