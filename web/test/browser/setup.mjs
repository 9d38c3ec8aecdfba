/* One browser and one mock server for the tests of a file. CHROMIUM names another browser than Debian's. */
import { after, before } from "node:test";
import { readFileSync } from "node:fs";
import { gunzipSync, gzipSync } from "node:zlib";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { start } from "../mock.mjs";

export const root = path.join(path.dirname(fileURLToPath(import.meta.url)), "..", "..");
export const DESKTOP = { width: 1280, height: 800 }, PHONE = { width: 390, height: 844 };
const axe = readFileSync(path.join(root, "node_modules/axe-core/axe.min.js"), "utf8");

export const shared = { browser: null, server: null };
before(async () => {
  shared.server = await start();
  shared.browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
});
after(async () => { await shared.browser?.close(); await shared.server?.close(); });

/** Opens the page in a context of its own. Fails the test on script errors, policy violations and requests to elsewhere. */
export async function opened({ viewport = DESKTOP, scheme = "light", phone = false, url = shared.server.url, html = null, motion = "no-preference" } = {}) {
  const context = await shared.browser.newContext({ viewport: phone ? PHONE : viewport, colorScheme: scheme, isMobile: phone, hasTouch: phone, reducedMotion: motion, permissions: html ? [] : ["clipboard-read", "clipboard-write"] });
  const page = await context.newPage(), problems = [], elsewhere = [];
  page.setDefaultTimeout(20_000);
  page.on("pageerror", (e) => problems.push(e.message));
  page.on("console", (m) => { if (m.type() === "error" && !/status of (401|400|404|503)/.test(m.text()) && !/ERR_(INCOMPLETE_CHUNKED|CONNECTION|EMPTY)/.test(m.text())) problems.push(m.text()); });
  context.on("request", (r) => { if (!r.url().startsWith(url) && !/^(data|blob|about):/.test(r.url()) && !(html && r.url() === "http://report.test/")) elsewhere.push(r.url()); });
  if (html) {
    await context.route("http://report.test/", (route) => route.fulfill({ body: html, contentType: "text/html" }));
    await page.goto("http://report.test/");
    await page.waitForSelector("body[data-ready]");
  } else {
    await page.goto(url);
    await page.waitForSelector("#message");
  }
  const ask = async (text, { wait = true } = {}) => {
    const before = await page.locator(".answer").count();
    await page.fill("#message", text);
    await page.press("#message", "Enter");
    await page.waitForFunction((n) => document.querySelectorAll(".answer").length > n, before);
    if (wait) await done();
  };
  const done = () => page.waitForFunction(() => document.querySelector(".answer") && !document.querySelector("[aria-busy=true]"), null, { timeout: 90_000 });
  return {
    page, context, problems, elsewhere, ask, done,
    async close() {
      await context.close();
      if (problems.length) throw new Error(`problems on the page: ${problems.join("; ")}`);
      if (elsewhere.length) throw new Error(`requests to elsewhere: ${elsewhere.join(" ")}`);
    },
  };
}

/** What axe-core finds wrong. The page's policy allows no foreign scripts, so axe runs in the tool's own world. */
export async function axeFindings(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  return violations.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.target.join(" ")}: ${n.failureSummary.split("\n").slice(1, 2).join("").trim()}`).slice(0, 4).join(" | ")}`);
}

/** viewer.html with a report in it, as the command writes it. */
export function viewer(kind, { packed = false, extra = {} } = {}) {
  const raw = gunzipSync(readFileSync(path.join(root, "test/data", `${kind}.json.gz`))), report = JSON.stringify({ ...JSON.parse(raw), ...extra });
  const json = packed ? JSON.stringify(gzipSync(report).toString("base64")) : report.replaceAll("<", "\\u003c");
  return readFileSync(path.join(root, "dist/viewer.html"), "utf8").replace('<script type="application/json" id="report">null</script>', () => `<script type="application/json" id="report">${json}</script>`);
}
