/* Makes docs/images/page.png. `node test/picture.mjs [URL]` uses a running server, or else the mock server. */
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { start } from "./mock.mjs";

const out = path.join(path.dirname(fileURLToPath(import.meta.url)), "..", "..", "docs", "images", "page.png");
const server = process.argv[2] ? null : await start({ rate: 52 });
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1200, height: 750 }, colorScheme: "light" });
await page.goto(process.argv[2] ?? server.url);
await page.waitForSelector(".empty h2");
for (const question of ["Why does decoding depend on memory?", "And what limits prefill?"]) {
  const before = await page.locator(".stats").count();
  await page.fill("#message", question);
  await page.press("#message", "Enter");
  await page.waitForFunction((n) => document.querySelectorAll(".stats").length > n, before, { timeout: 120_000 });
}
await page.getByRole("button", { name: "Show token probabilities" }).last().click();
await page.locator(".token-strip .p1, .token-strip .p2").nth(1).click();
await page.mouse.move(5, 500);
await page.waitForTimeout(300);
await page.screenshot({ path: out });
await browser.close();
await server?.close();
