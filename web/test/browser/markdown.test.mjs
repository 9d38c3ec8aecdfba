import assert from "node:assert/strict";
import path from "node:path";
import { test } from "node:test";
import { build } from "esbuild";
import { root, shared } from "./setup.mjs";

const SAMPLES = [
  "para\n#hashtag\n\n# Heading\ntext", "para\n-\nmore", "para\n- item\n- item\n\n  more of the item\n\nend", "1. a\n2. b\n   - c\n\n   d\n3. e\n\ntext", "a\n===\nb\n---\nc",
  "\n\n```js\nlet a = 1;\n\n// ~ and ` in code\nlet b = `x`;\n```\nafter", "```\nnever closed\n\nmore", "~~~py\na\n```\nb\n~~~\n\nend", "````md\n```\ninner\n```\n````\nend", "- list\n\n      code in it\n\n```rust\nfn main() {}\n```",
  "| a | b |\n|---|:-:|\n| 1 | 2 |\n| 3 | 4\n\nafter", "> quote\n> more\nlazy\n\n> other\n>\n> - list", "[ref]: https://example.com 'title'\n\nA [link][ref] and [other].\n\n[other]: https://example.org", "a  \nb\\\nc\r\nd\re", "***bold and em*** **open\n\n*x", "<div>\n\n*text*\n\n</div>\n\n<b>x</b>",
  "![p](https://example.com/x.png) <https://example.com> https://example.net", "    indented\n    code\n\ntext\n\n\n\nmore", "- [x] done\n- [ ] open", "Term\n: no list\n\n***\n\n+ a\n* b\n- c", "&amp; &lt; \\* \\` `` ` ``", "",
];
const PARTS = ["word ", "\n", "\n\n", "# ", "- ", "1. ", "```", "```js\n", "`", "**", "> ", "| a | b |\n|---|---|\n| 1 | 2 |\n", "    ", "~~~\n", "---\n", "===\n", "<b>", "[x](https://example.com)", "\t", "text\nmore text", "* ", "_", "[r]: https://example.com\n"];

test("markdown_in_any_chunks_equals_markdown_in_one_piece", async () => {
  const out = await build({ absWorkingDir: root, entryPoints: ["src/chat/markdown.js"], bundle: true, format: "iife", globalName: "markdown", write: false, external: ["./highlight.js"], logLevel: "error" });
  const page = await shared.browser.newPage();
  await page.evaluate(out.outputFiles[0].text + ";window.MarkdownView = markdown.MarkdownView");
  const failures = await page.evaluate(([samples, parts]) => {
    let seed = 7;
    const next = (n) => { seed = (seed * 1664525 + 1013904223) >>> 0; return Math.floor(seed / 2 ** 32 * n); };
    const view = () => new MarkdownView(document.createElement("div"));
    for (let i = 0; i < 600; i++) samples.push(Array.from({ length: 2 + next(14) }, () => parts[next(parts.length)]).join(""));
    const out = [];
    for (const text of samples) {
      const whole = view(), grown = view();
      whole.update(text, true);
      for (let at = 0; at < text.length;) {
        at = Math.min(text.length, at + 1 + next(4));
        grown.update(text.slice(0, at), false);
      }
      grown.update(text, true);
      // What is shown before the end must not differ much: only the end is open.
      if (whole.root.innerHTML !== grown.root.innerHTML) out.push([text, whole.root.innerHTML, grown.root.innerHTML]);
    }
    return out;
  }, [SAMPLES, PARTS]);
  assert.deepEqual(failures.slice(0, 3), [], `${failures.length} differ`);
  const cost = await page.evaluate(() => {
    const view = new MarkdownView(document.createElement("div")), text = "A paragraph with *some* words in it.\n\n- one\n- two\n\n```js\nlet a = 1;\n```\n\n".repeat(200);
    for (let at = 0; at < text.length; at += 4) view.update(text.slice(0, at), false);
    return view.parses / text.length;
  });
  console.log(`# each character is parsed ${cost.toFixed(1)} times in chunks of 4`);
  assert.ok(cost < 40);
  await page.close();
});
