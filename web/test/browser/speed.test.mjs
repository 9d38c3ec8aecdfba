import assert from "node:assert/strict";
import { test } from "node:test";
import { opened } from "./setup.mjs";

const LIMIT = Number(process.env.FRAME_LIMIT_MS ?? 50);

for (const view of ["markdown", "tokens"]) {
  test(`200_tokens_per_second_keep_frames_short_as_${view}`, async () => {
    const { page, ask, done, close } = await opened();
    await ask("Hello");
    await page.evaluate(() => {
      window.gaps = [];
      let last = performance.now();
      const frame = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(frame); };
      requestAnimationFrame(frame);
    });
    await ask("fast", { wait: false });
    if (view === "tokens") await page.getByRole("button", { name: "Show token probabilities" }).last().click();
    await page.waitForTimeout(300);
    await page.evaluate(() => { window.gaps.length = 0; });
    await done();
    const { gaps, tokens } = await page.evaluate(() => ({ gaps: window.gaps.slice(0, -3), tokens: document.querySelector(".answer:last-of-type .stats, .stats:last-of-type") && [...document.querySelectorAll(".stats")].at(-1).innerText }));
    gaps.sort((a, b) => a - b);
    const at = (q) => gaps[Math.floor(q * (gaps.length - 1))].toFixed(1), slow = gaps.filter((g) => g > LIMIT).length;
    console.log(`# ${view}: ${gaps.length} frames, gaps in ms: median ${at(.5)}, 99 % ${at(.99)}, largest ${at(1)}; over ${LIMIT} ms: ${slow}; ${tokens}`);
    assert.equal(slow, 0);
    await close();
  });
}
