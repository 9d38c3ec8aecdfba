import assert from "node:assert/strict";
import { test } from "node:test";
import { axeFindings, opened } from "./setup.mjs";

for (const phone of [false, true]) {
  for (const scheme of ["light", "dark"]) {
    test(`axe_finds_nothing_${phone ? "phone" : "desktop"}_${scheme}`, async () => {
      const { page, ask, close } = await opened({ phone, scheme, motion: "reduce" });
      const check = async (what) => assert.deepEqual(await axeFindings(page), [], what);
      await page.waitForFunction(() => document.querySelectorAll(".model-select option").length === 2);
      await check("empty chat");
      await ask("think of code and a table");
      await ask("memory");
      await ask("busy");
      await page.waitForTimeout(200);
      await check("chat");
      await page.getByRole("button", { name: "Show token probabilities" }).nth(1).click();
      await page.locator(".token-strip .tok").nth(8).click();
      await check("tokens");
      await page.keyboard.press("Escape");
      await page.locator(".messages").focus();
      await page.keyboard.press("e");
      if (phone) await page.getByRole("button", { name: "Settings", exact: true }).click();
      await page.getByLabel("JSON that matches a schema").check();
      await check("settings and editing");
      if (phone) {
        await page.getByRole("button", { name: "Close settings" }).click();
        await page.getByRole("button", { name: "Show the list of chats" }).click();
        await check("list of chats");
        await page.getByRole("button", { name: "Close the list of chats" }).click();
      }
      await page.locator(".messages").focus();
      await page.keyboard.press("?");
      await check("help");
      await page.keyboard.press("Escape");
      await page.getByRole("button", { name: "Model", exact: true }).click();
      await page.waitForSelector(".report .v-roofline");
      await check("model");
      await close();
    });
  }
}
