import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { data } from "../mock.mjs";
import { axeFindings, opened, root, viewer } from "./setup.mjs";

const KINDS = ["inspect-llm", "profile", "roofline", "quantize", "int8"];

for (const kind of KINDS) {
  test(`axe_finds_nothing_in_${kind}`, async () => {
    for (const [scheme, phone] of [["light", false], ["dark", true]]) {
      const { page, close } = await opened({ html: viewer(kind), scheme, phone });
      await page.evaluate(() => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
      await page.waitForTimeout(100);
      assert.deepEqual(await axeFindings(page), [], scheme);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing is wider than the window");
      await close();
    }
  });
}

test("inspect_shows_all_facts_and_evaluates_lengths", async () => {
  const report = data("inspect-llm"), { page, close } = await opened({ html: viewer("inspect-llm") });
  assert.equal(await page.title(), "smollm2-135m/e0m4 - tlite inspect");
  const fact = (name) => page.getAttribute(`#${name}`, "data-bytes").then(Number);
  assert.equal(await fact("arena-now"), report.plans[0].arena_bytes);
  assert.equal(await fact("arena-reserved"), report.arena_bytes);
  await page.getByText("Each run checks").waitFor();
  await page.getByLabel("sequence_length, slider", { exact: true }).fill("16");
  assert.ok(await fact("arena-now") < report.plans[0].arena_bytes / 2);
  await page.locator(".v-aside").getByText("decode", { exact: true }).click();
  assert.equal(await fact("arena-now"), report.plans[1].arena_bytes);
  const text = await page.locator("#view").innerText();
  for (const part of ["194.2 MB", "98.3 MB", "94.4 MB", "at run time, of 5 in the file", "multiples of 64", "As exported (1,831)", "As planned (312)", "norm_matmul"]) assert.ok(text.includes(part), part);
  await close();
});

test("inspect_searches_the_graph_and_shows_attributes", async () => {
  const { page, close } = await opened({ html: viewer("inspect-llm") });
  await page.getByLabel("Find operators").fill("layers.3 softmax");
  await page.locator(".v-found button").first().click();
  const node = await page.locator(".v-node").innerText();
  for (const part of ["Softmax", "Attributes", "axis", "Reads", "Makes", "part of a fused node", "Runs"]) assert.ok(node.includes(part), part);
  assert.ok(await page.locator(".v-found mark").count() > 0);
  await page.locator(".v-timeline").focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator(".v-detail").innerText(), /^Step 0, .* holds .* at offset/);
  await close();
});

test("fragments_of_the_address_set_lengths_and_plans", async () => {
  const { page, close } = await opened({ html: viewer("inspect-llm") });
  await page.evaluate(() => { location.hash = "#plan=decode&past_sequence_length=100&view=planned&search=mlp"; });
  await page.waitForFunction(() => document.querySelector(".v-aside").innerText.includes("past_sequence_length = 127"));
  assert.ok(await page.locator(".v-found button").count() > 10);
  await close();
});

test("tables_sort_and_search", async () => {
  const { page, close } = await opened({ html: viewer("quantize") });
  await page.getByText("All 211 weights").click();
  const table = page.getByRole("table", { name: "All weights" }), first = () => table.locator("tbody tr").first().innerText();
  await table.getByRole("button", { name: "error", exact: true }).click();
  assert.match(await first(), /layers\.0\.self_attn\.o_proj.*23\.27 %/s);
  assert.equal(await table.locator("th[aria-sort=descending]").count(), 1);
  await table.getByRole("button", { name: "error", exact: true }).click();
  assert.match(await first(), /embed_tokens/);
  await page.getByLabel("Search").last().fill("layers.7. mlp");
  assert.equal(await table.locator("tbody tr").count(), 3);
  await close();
});

test("profile_shows_bars_dots_kernels_and_nodes", async () => {
  const report = data("profile"), { page, close } = await opened({ html: viewer("profile") });
  const text = await page.locator("#view").innerText();
  for (const part of ["prefill 128: 435 ms, 20.1 % of the device's limit", "int16 arithmetic", "measured peak", "18.1 GB/s", "QuantizedMatMul+", "> probe: faster than", "bound by"]) assert.ok(text.includes(part), part);
  assert.equal(await page.locator(".v-roofline").first().locator("circle").count(), report.runs[0].kinds.length);
  assert.ok(await page.locator(".v-roofline .roof").count() >= 6);
  await page.getByText(`Kernels (${report.runs[0].kernels.length})`).click();
  await page.getByText(`Nodes (${report.runs[0].lines.length})`).click();
  assert.ok(await page.locator(".v-table tbody tr").count() > 60);
  await close();
});

test("int8_and_quantize_show_their_facts", async () => {
  const int8 = await opened({ html: viewer("int8") }), text = await int8.page.locator("#view").innerText();
  for (const part of ["32.9 dB", "same largest element in 5 of 6 items", "43 tensors equalized", "compensated weights", "The 10 lowest signal-to-noise ratios", "worst channel", "zero point"]) assert.ok(text.includes(part), part);
  await int8.close();
  const weights = data("quantize").weights.map((w) => ({ ...w, bits: 4, compared: [["rtn", 1.1], ["mse", .9]] }));
  const extra = { weights, left: [{ name: "odd", shape: [3], reason: "too small" }], report: { kind: "quantize", source: "a<b>", target: "out", command: "tlite quantize a -o out", time: "2026-11-30 10:00 UTC", version: "0.1.0" } };
  const q = await opened({ html: viewer("quantize", { extra }) }), all = await q.page.locator("#view").innerText();
  for (const part of ["a<b> \u2192 out", "tlite quantize a -o out", "2026-11-30 10:00 UTC", "Methods compared with INT4", "mean 1.10", "odd (3): too small", "Relative error by layer and kind", "The 10 largest errors"]) assert.ok(all.includes(part), part);
  assert.equal(await q.page.locator(".v-strips svg").count(), 3);
  await q.close();
});

test("compressed_reports_are_read", async () => {
  const html = viewer("inspect-llm", { packed: true }), { page, close } = await opened({ html });
  assert.ok(html.length < 220_000);
  assert.equal(await page.title(), "smollm2-135m/e0m4 - tlite inspect");
  await close();
});

test("names_in_a_report_are_text", async () => {
  const report = data("inspect-cnn"), evil = "</script><img src=x onerror=window.hacked=1>";
  report.operators[0].name = report.model.name = evil;
  const { page, close } = await opened({ html: viewer("inspect-cnn", { extra: { operators: report.operators, model: report.model } }) });
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator("h1").innerText(), evil);
  await close();
});

test("the_theme_switches_and_the_page_prints", async () => {
  const { page, close } = await opened({ html: viewer("profile") });
  await page.getByRole("button", { name: "Theme: system" }).click();
  await page.getByRole("button", { name: "Theme: light" }).click();
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(18, 21, 27)");
  await page.emulateMedia({ media: "print" });
  assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).colorScheme), "light");
  assert.ok((await page.pdf()).length > 20_000);
  await close();
});

test("the_page_names_nothing_elsewhere", () => {
  const html = readFileSync(path.join(root, "dist/viewer.html"), "utf8");
  for (const word of ["http://", "https://", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "import("]) assert.ok(!html.includes(word), word);
  assert.equal(html.split("</script>").length, 3);
});

test("a_page_without_report_says_so", async () => {
  const html = viewer("int8").replace(/(id="report">)[^]*?<\/script>/, "$1null</script>"), { page, close } = await opened({ html });
  assert.equal(await page.locator("h1").innerText(), "No report");
  await close();
});
