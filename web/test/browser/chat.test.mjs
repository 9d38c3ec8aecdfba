import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { start } from "../mock.mjs";
import { opened, root, shared } from "./setup.mjs";

const last = (page, selector) => page.locator(selector).last();
const requests = () => shared.server.requests.filter((r) => r.path === "/v1/chat/completions" && r.body);
const drop = (page, name, type, content) => page.evaluate(([n, t, c]) => {
  const data = new DataTransfer();
  data.items.add(new File([c], n, { type: t }));
  document.querySelector(".app").dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
}, [name, type, content]);

test("01_answers_stream_as_markdown_with_speed", async () => {
  const { page, ask, close } = await opened();
  await ask("A slow table", { wait: false });
  await page.waitForSelector(".answer table, .answer p");
  assert.equal(await page.locator("[aria-busy=true]").count(), 1);
  await page.locator("[title=Stop]").click();
  await ask("A table");
  assert.equal(await last(page, ".answer table").locator("tr").count(), 3);
  assert.equal(await last(page, ".answer").locator("ol > li").count(), 2);
  assert.equal(await last(page, ".answer td").evaluate((e) => getComputedStyle(e).textAlign), "right");
  assert.match(await last(page, ".stats").innerText(), /first token 0\.\d\d s · \d+ tokens\/s · \d+ tokens · prompt \d+/);
  await close();
});

test("02_streamed_markdown_equals_markdown_in_one_piece", async () => {
  const { page, ask, close } = await opened();
  await ask("long");
  const streamed = await last(page, ".markdown").innerHTML();
  await page.reload();
  await page.locator(".chat-item").first().click();
  await page.waitForSelector(".answer");
  const plain = (s) => s.replace(/<span class="hljs[^>]*>|<\/span>/g, "").replace(/\n(?=<)/g, "");
  assert.equal(plain(streamed).length > 5000, true);
  assert.equal(plain(await last(page, ".markdown").innerHTML()), plain(streamed));
  await close();
});

test("03_code_is_highlighted_and_copied", async () => {
  const { page, ask, close } = await opened();
  await ask("code");
  await page.waitForSelector(".code-box .hljs-keyword");
  await page.getByRole("button", { name: "Copy code" }).click();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^use transformer_lite::Session;\n/);
  await page.getByRole("button", { name: "Copy answer" }).click();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^This program.*```rust/s);
  await close();
});

test("04_stop_closes_the_request_and_continue_goes_on", async () => {
  const { page, ask, done, close } = await opened();
  await ask("slow", { wait: false });
  await page.waitForFunction(() => document.querySelector(".answer .markdown")?.textContent.length > 5);
  const before = shared.server.requests.length;
  await page.locator("[title=Stop]").click();
  await done();
  await page.getByText("Stopped.", { exact: true }).waitFor();
  await page.waitForTimeout(100);
  assert.ok(shared.server.requests.slice(before - 1).some((r) => r.method === "CLOSE" && r.sent < r.of));
  await page.getByRole("button", { name: "Continue" }).click();
  await page.waitForFunction(() => document.querySelector(".answer .markdown").textContent.length > 20);
  await page.locator("[title=Stop]").click();
  const body = requests().at(-1).body;
  assert.equal(body.continue_final_message, true);
  assert.equal(body.add_generation_prompt, false);
  assert.equal(body.messages.at(-1).role, "assistant");
  await close();
});

test("04b_answers_that_were_cut_off_by_a_reload_continue", async () => {
  const { page, ask, close } = await opened();
  await ask("slow", { wait: false });
  await page.waitForTimeout(3600);
  await page.reload();
  await page.locator(".chat-item").first().click();
  await page.getByText("The page closed before this answer was complete.").waitFor();
  assert.ok((await page.locator(".markdown").innerText()).length > 10);
  assert.equal(await page.getByRole("button", { name: "Continue" }).count(), 1);
  await close();
});

test("04c_chats_that_are_deleted_while_they_stream_stay_deleted", async () => {
  const { page, ask, close } = await opened();
  await ask("slow", { wait: false });
  await page.waitForTimeout(800);
  await page.getByRole("button", { name: "Delete slow" }).click();
  await page.waitForTimeout(400);
  await page.reload();
  await page.waitForSelector("#message");
  await page.waitForTimeout(300);
  assert.equal(await page.locator(".chat-item").count(), 0);
  await close();
});

test("05_regenerated_answers_are_branches", async () => {
  const { page, ask, done, close } = await opened();
  await ask("Hello");
  await page.getByRole("button", { name: "Regenerate answer" }).click();
  await page.getByText("2 of 2").or(page.locator(".branches")).first().waitFor();
  await done();
  assert.equal(await page.locator(".answer").count(), 1);
  assert.equal((await page.locator(".answer .branches > span").first().innerText()).replace(/\s/g, "").replace("of", ""), "2/2");
  await page.getByRole("button", { name: "Previous version of this answer" }).click();
  assert.match((await page.locator(".answer .branches > span").first().innerText()).replace(/\s/g, ""), /^1/);
  await close();
});

test("06_edited_questions_are_branches_with_their_answers", async () => {
  const { page, ask, done, close } = await opened();
  await ask("A table");
  await ask("More code");
  await page.locator(".question").first().hover();
  await page.getByRole("button", { name: "Edit question" }).first().click();
  await page.fill("[aria-label='Edit question']", "Something else");
  await page.getByRole("button", { name: "Send as new version" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".question").length === 1);
  await done();
  assert.deepEqual(requests().at(-1).body.messages.map((m) => m.content), ["Something else"]);
  await page.getByRole("button", { name: "Previous version of this question" }).click();
  assert.equal(await page.locator(".question").count(), 2);
  assert.equal(await page.locator(".answer table").count(), 1);
  await close();
});

test("07_system_prompt_and_sampling_are_sent_with_defaults_shown", async () => {
  const { page, ask, close } = await opened();
  await page.waitForFunction(() => document.querySelector("#s-temperature").placeholder === "0.2");
  assert.equal(await page.getAttribute("#s-top_k", "placeholder"), "off");
  await page.fill("#system", "Be brief.");
  await page.fill("#s-temperature", "0.5");
  await page.fill("#s-seed", "7");
  await page.fill("#s-max_tokens", "9");
  await page.fill("#stop", "END\nSTOP");
  await ask("Hello");
  const { body } = requests().at(-1);
  assert.deepEqual([body.temperature, body.seed, body.max_tokens, body.stop, body.top_p], [.5, 7, 9, ["END", "STOP"], undefined]);
  assert.deepEqual(body.messages[0], { role: "system", content: "Be brief." });
  assert.deepEqual([body.stream, body.stream_options, body.logprobs, body.top_logprobs], [true, { include_usage: true }, true, 10]);
  await page.getByText("Stopped at the token limit.").waitFor();
  await page.getByRole("button", { name: "Reset" }).click();
  assert.equal(await page.inputValue("#s-seed"), "");
  await close();
});

test("08_context_gauge_shows_used_and_cached_tokens", async () => {
  const { page, ask, close } = await opened();
  await ask("Hello");
  await ask("And more");
  const gauge = page.getByRole("meter", { name: "Context used" });
  assert.match(await gauge.getAttribute("aria-valuetext"), /^\d+ of 4,096 tokens used, \d+ cached$/);
  assert.ok(Number(await gauge.getAttribute("aria-valuenow")) > 60);
  await close();
});

test("09_tokens_show_alternatives_and_continue_from_one", async () => {
  const { page, ask, done, close } = await opened();
  await ask("Hello");
  const before = await page.locator(".markdown").innerText();
  await page.getByRole("button", { name: "Show token probabilities" }).click();
  const count = await page.locator(".token-strip .tok").count();
  assert.ok(count > 40);
  assert.ok(await page.locator(".token-strip .p0, .token-strip .p1, .token-strip .p2").count() > 0);
  await page.locator(".token-strip .tok").nth(5).click();
  assert.equal(await page.locator(".alternatives li").count(), 10);
  await page.locator(".alternatives li button:not([disabled])").nth(2).click();
  await page.waitForSelector(".token-strip .forked");
  await done();
  const { body } = requests().at(-1);
  assert.equal(body.continue_final_message, true);
  assert.equal(body.add_generation_prompt, false);
  const prefix = body.messages.at(-1).content;
  assert.ok(!before.startsWith(prefix) && before.slice(0, 5) === prefix.slice(0, 5));
  await page.getByRole("button", { name: "Show token probabilities" }).click();
  assert.ok((await page.locator(".markdown").innerText()).startsWith(prefix));
  assert.match((await page.locator(".answer .branches > span").first().innerText()).replace(/\s/g, ""), /^2/);
  await close();
});

test("10_tokens_are_reached_by_keyboard", async () => {
  const { page, ask, close } = await opened();
  await ask("Hello");
  await page.locator(".messages").focus();
  await page.keyboard.press("t");
  await page.locator(".token-strip .tok").first().focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog", { name: "Alternatives of token 3" }).waitFor();
  await page.keyboard.press("Escape");
  assert.equal(await page.locator(".alternatives").count(), 0);
  assert.equal(await page.evaluate(() => document.activeElement.dataset.i), "2");
  await close();
});

test("11_schema_constrains_the_answer", async () => {
  const { page, ask, close } = await opened();
  await page.getByLabel("JSON that matches a schema").check();
  await page.fill("#schema", "{");
  await page.waitForSelector(".hint.bad");
  await page.fill("#message", "Give me one");
  await page.press("#message", "Enter");
  await page.getByText("The JSON schema cannot be used.").waitFor();
  const schema = { type: "object", properties: { name: { type: "string" }, year: { type: "integer" } }, required: ["name", "year"] };
  await page.fill("#schema", JSON.stringify(schema));
  await ask("Give me one");
  assert.deepEqual(requests().at(-1).body.response_format, { type: "json_schema", json_schema: { name: "answer", schema, strict: true } });
  await page.getByText("Valid JSON.").waitFor();
  assert.deepEqual(JSON.parse(await page.locator(".code-box code").innerText()), { name: "Apollo 11", year: 1969 });
  await close();
});

test("12_models_are_selectable_and_have_a_card_and_a_report", async () => {
  const { page, ask, close } = await opened();
  await page.waitForFunction(() => document.querySelectorAll(".model-select option").length === 2);
  await page.getByRole("button", { name: "Model", exact: true }).click();
  await page.getByText("sampling defaults are those of tlite").waitFor();
  await page.waitForSelector(".report .v-timeline");
  assert.ok(await page.locator(".report .v-roofline").count() >= 1);
  await page.selectOption(".model-select", "qwen2.5-0.5b");
  await page.getByText("This server offers no report of this model.").waitFor();
  assert.match(await page.locator(".card").innerText(), /Arc\(TM\)/);
  await page.getByRole("button", { name: "Chat", exact: true }).click();
  await page.waitForFunction(() => document.querySelector("#s-top_k").placeholder === "20");
  await ask("Hello");
  assert.equal(requests().at(-1).body.model, "qwen2.5-0.5b");
  await close();
});

test("13_chats_stay_after_a_reload_and_are_renamed_and_deleted", async () => {
  const { page, ask, close } = await opened();
  await ask("First question");
  await page.getByRole("button", { name: "New chat" }).click();
  await ask("Second question");
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll(".chat-item").length === 2);
  await page.getByRole("button", { name: "First question", exact: true }).click();
  assert.match(await page.locator(".question").innerText(), /First question/);
  await page.getByRole("button", { name: "Rename First question" }).click();
  await page.fill("[aria-label='Title of the chat']", "Renamed");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Delete Renamed" }).click();
  assert.equal(await page.locator(".chat-item").count(), 1);
  await page.getByRole("button", { name: "Undo" }).click();
  assert.equal(await page.locator(".chat-item").count(), 2);
  await close();
});

test("14_all_chats_export_and_import", async () => {
  const a = await opened();
  await a.ask("A table");
  await a.ask("code");
  const [download] = await Promise.all([a.page.waitForEvent("download"), a.page.getByRole("button", { name: "Export" }).click()]);
  const file = await download.path(), text = readFileSync(file, "utf8");
  assert.equal(JSON.parse(text).format, "transformer-lite-chats");
  await a.close();
  const b = await opened();
  const input = b.page.locator("input[aria-label='File of chats to import']");
  await input.setInputFiles({ name: "broken.json", mimeType: "application/json", buffer: Buffer.from("{}") });
  await b.page.getByText("Not imported.").waitFor();
  await input.setInputFiles({ name: "chats.json", mimeType: "application/json", buffer: Buffer.from(text) });
  await b.page.getByText("1 of 1 chat imported").waitFor();
  await b.page.locator(".chat-item").first().click();
  assert.equal(await b.page.locator(".answer").count(), 2);
  await b.page.reload();
  await b.page.waitForSelector(".chat-item");
  await b.close();
});

test("15_reasoning_is_folded", async () => {
  const { page, ask, close } = await opened();
  await ask("think please");
  assert.equal(await page.locator(".reasoning").getAttribute("open"), null);
  assert.ok(!(await page.locator(".markdown").innerText()).includes("The user asks"));
  await page.locator(".reasoning summary").click();
  assert.match(await page.locator(".reasoning-text").innerText(), /The user asks a question\..*briefly\./);
  await close();
});

test("16_text_files_are_counted_and_pictures_refused", async () => {
  const { page, ask, close } = await opened();
  await drop(page, "notes.md", "text/markdown", "# Notes\n\nThe *first* line.");
  await page.waitForFunction(() => /\d+ tokens/.test(document.querySelector(".composer .file")?.innerText ?? ""));
  await drop(page, "cat.png", "image/png", "\x89PNG");
  await page.getByText("cat.png was not added. These models read text only").waitFor();
  await drop(page, "data.bin", "application/octet-stream", "a\0b");
  await page.getByText("data.bin was not added. It is not a text file").waitFor();
  assert.equal(await page.locator(".composer .file").count(), 1);
  await ask("Summarize");
  assert.equal(requests().at(-1).body.messages[0].content, "File notes.md:\n```\n# Notes\n\nThe *first* line.\n```\n\nSummarize");
  assert.match(await page.locator(".question .file").innerText(), /notes\.md/);
  await close();
});

test("17_keys_work_and_are_listed", async () => {
  const { page, ask, close } = await opened();
  await ask("Hello");
  await page.locator(".messages").focus();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard" }).waitFor();
  assert.ok(await page.locator(".keys kbd").count() >= 15);
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("dialog").count(), 0);
  await page.keyboard.press("d");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
  await page.keyboard.press("d");
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(18, 21, 27)");
  await page.keyboard.press("s");
  assert.equal(await page.getAttribute(".settings", "data-open"), "false");
  await page.keyboard.press("m");
  await page.waitForSelector(".model-tab");
  await page.keyboard.press("/");
  await page.waitForFunction(() => document.activeElement?.id === "message");
  await page.keyboard.type("?");
  assert.equal(await page.inputValue("#message"), "?");
  await page.keyboard.press("Escape");
  await page.keyboard.press("n");
  assert.equal(await page.locator(".question").count(), 0);
  await page.keyboard.press("Escape");
  await page.keyboard.press("]");
  await page.waitForSelector(".chat-item");
  await close();
});

test("18_errors_are_shown_and_tried_again", async () => {
  const { page, ask, close, problems } = await opened();
  await ask("busy");
  await page.getByText("All slots are taken and the queue is full. Try again in 2 s.").waitFor();
  await ask("refuse");
  await page.getByText("the schema needs more than 1 s to compile").waitFor();
  await ask("fail");
  await page.getByText("The device was lost.").waitFor();
  assert.ok((await last(page, ".markdown").innerText()).length > 10);
  await ask("break");
  await page.getByText("The connection broke before the answer was complete.").waitFor();
  await ask("garbage");
  await page.getByText("The server sent an event that is not JSON.").waitFor();
  await last(page, ".error .button").click();
  await page.waitForFunction(() => document.querySelector(".answer:last-of-type .branches"));
  problems.splice(0, Infinity, ...problems.filter((p) => !/Failed to load resource|net::ERR/.test(p)));
  await close();
});

test("19_a_key_is_asked_for_and_kept_in_the_tab", async () => {
  const server = await start({ key: "secret" });
  const { page, ask, close } = await opened({ url: server.url });
  await page.getByRole("dialog", { name: "Key needed" }).waitFor();
  await page.fill("#key", "wrong");
  await page.keyboard.press("Enter");
  await page.getByText("The server did not accept the key.").waitFor();
  await page.fill("#key", "secret");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelectorAll(".model-select option").length === 2);
  await ask("Hello");
  assert.equal(await page.evaluate(() => sessionStorage.getItem("tlite-key")), "secret");
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("secret")), false);
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll(".model-select option").length === 2);
  await close();
  await server.close();
});

test("20_the_page_works_on_a_phone", async () => {
  const { page, ask, close } = await opened({ phone: true });
  await ask("A table and code");
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
  await page.getByRole("button", { name: "Show the list of chats" }).click();
  await page.locator(".chat-item").waitFor();
  await page.getByRole("button", { name: "Close the list of chats" }).click();
  await page.getByRole("button", { name: "Settings", exact: true }).click();
  await page.fill("#s-temperature", "1");
  await page.getByRole("button", { name: "Close settings" }).click();
  assert.ok(!await page.locator("#s-temperature").isVisible());
  await page.getByRole("button", { name: "Show token probabilities" }).click();
  await page.locator(".token-strip .tok").nth(8).click();
  const box = await page.locator(".alternatives").boundingBox();
  assert.ok(box.x >= 0 && box.x + box.width <= 390);
  await close();
});

test("21_markup_of_an_answer_does_no_harm", async () => {
  const { page, ask, elsewhere, close } = await opened();
  await ask("xss");
  await page.waitForTimeout(300);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  const found = await page.evaluate(() => {
    const all = [...document.querySelectorAll(".markdown *")];
    return {
      tags: [...new Set(all.map((e) => e.tagName.toLowerCase()))].filter((t) => ["script", "img", "iframe", "svg", "style", "form", "input", "math", "object", "embed", "link", "meta", "base"].includes(t)),
      handlers: all.flatMap((e) => [...e.attributes].map((a) => a.name)).filter((n) => /^on|^style$|^src/.test(n)),
      links: [...document.querySelectorAll(".markdown a")].map((a) => [a.getAttribute("href"), a.rel, a.target]),
    };
  });
  assert.deepEqual(found.tags, []);
  assert.deepEqual(found.handlers, []);
  assert.ok(found.links.filter(([href]) => href).length >= 2);
  for (const [href, rel, target] of found.links.filter(([h]) => h)) assert.deepEqual([/^https:\/\//.test(href), rel, target], [true, "noopener noreferrer nofollow", "_blank"]);
  assert.match(await page.locator(".markdown").innerText(), /Picture not loaded: leak/);
  assert.deepEqual(elsewhere, []);
  // The same text in a question, a title, a file name and an imported chat is text.
  await ask("<img src=https://evil.example/q.png onerror=window.hacked=10> xss");
  await page.getByRole("button", { name: "Show token probabilities" }).first().click();
  await page.waitForTimeout(200);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator("img").count(), 0);
  await close();
});

test("22_servers_without_card_and_report_are_usable", async () => {
  const server = await start({ card: false, report: false });
  const { page, ask, close } = await opened({ url: server.url });
  await ask("Hello");
  assert.equal(await page.getByRole("meter").count(), 0);
  await page.getByRole("button", { name: "Model", exact: true }).click();
  await page.getByText("This server gives no details of this model.").waitFor();
  await page.getByText("This server offers no report of this model.").waitFor();
  await server.close();
  await page.getByRole("button", { name: "Chat", exact: true }).click();
  await ask("Are you there?");
  await page.getByText("The server cannot be reached. Is it still running?").waitFor();
  await close();
});

test("23_first_load_is_small_and_from_one_origin", async () => {
  const { page, close } = await opened();
  const names = await page.evaluate(() => performance.getEntriesByType("resource").map((e) => new URL(e.name).pathname).filter((n) => /\.(js|css|svg|html)$/.test(n)));
  const bytes = ["/index.html", ...new Set(names)].reduce((n, name) => n + gzipSync(readFileSync(path.join(root, "dist", name.slice(1))), { level: 9 }).length, 0);
  console.log(`# first load: ${bytes} bytes compressed`);
  assert.ok(bytes <= 120_000);
  await close();
});
