/* Builds web/dist from web/src. The same sources and lock file give the same bytes. */
import { build } from "esbuild";
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";
import path from "node:path";
import { fileURLToPath } from "node:url";

const web = path.dirname(fileURLToPath(import.meta.url));
const src = (...p) => path.join(web, "src", ...p), dist = (...p) => path.join(web, "dist", ...p);
const shared = {
  absWorkingDir: web, bundle: true, minify: true, write: false, legalComments: "none", charset: "utf8", logLevel: "warning",
  target: ["chrome123", "firefox128", "safari17.5"], jsx: "automatic", jsxImportSource: "preact", loader: { ".js": "jsx" }, keepNames: false,
};
const PLACEHOLDER = '<script type="application/json" id="report">null</script>';
const LIMITS = { first: 120_000, viewer: 76_000 };

async function bundled(entry, options = {}) {
  const out = await build({ ...shared, entryPoints: [src(entry)], ...options });
  return out.outputFiles[0].text;
}

const esm = { format: "esm" };
const files = {
  "index.html": await readFile(src("index.html"), "utf8"),
  "icon.svg": await readFile(src("icon.svg"), "utf8"),
  "app.js": await bundled("chat/main.js", { ...esm, external: ["./highlight.js", "./report.js"] }),
  "app.css": await bundled("chat/app.css"),
  "highlight.js": await bundled("chat/highlight.js", esm),
  "report.js": await bundled("viewer/index.js", esm),
  "report.css": await bundled("viewer/viewer.css"),
};

const style = (await bundled("shared/theme.css")) + (await bundled("viewer/page.css")) + files["report.css"];
const script = await bundled("viewer/page.js", { format: "iife" });
const template = await readFile(src("viewer.html"), "utf8");
files["viewer.html"] = template.replace("/*CSS*/", () => style.replaceAll("\n", "")).replace("/*JS*/", () => script.trim());
if (files["viewer.html"].split(PLACEHOLDER).length !== 2) throw new Error("viewer.html must hold the placeholder of the report exactly once");

files.NOTICES = await notices();
await rm(dist(), { recursive: true, force: true });
await mkdir(dist(), { recursive: true });
for (const [name, text] of Object.entries(files)) await writeFile(dist(name), text);

const packed = (name) => gzipSync(files[name], { level: 9 }).length;
for (const name of Object.keys(files)) console.log(`${name.padEnd(14)} ${String(Buffer.byteLength(files[name])).padStart(8)} bytes ${String(packed(name)).padStart(7)} compressed`);
const first = ["index.html", "app.js", "app.css"].reduce((n, name) => n + packed(name), 0);
console.log(`first load: ${first} bytes compressed, limit ${LIMITS.first}`);
if (first > LIMITS.first) throw new Error("the first load is too large");
if (Buffer.byteLength(files["viewer.html"]) > LIMITS.viewer) throw new Error("viewer.html is too large");

/* The licenses of all packages in the bundles. */
async function notices() {
  const { dependencies } = JSON.parse(await readFile(path.join(web, "package.json"), "utf8"));
  const parts = ["The files in this folder contain these packages.\n"];
  for (const name of Object.keys(dependencies).sort()) {
    const folder = path.join(web, "node_modules", name), about = JSON.parse(await readFile(path.join(folder, "package.json"), "utf8"));
    const found = (await readdir(folder)).filter((f) => /^licen[cs]e/i.test(f)).sort();
    const texts = await Promise.all(found.map((f) => readFile(path.join(folder, f), "utf8")));
    parts.push(`${"=".repeat(80)}\n${name} ${about.version} (${about.license})\n${"=".repeat(80)}\n\n${texts.map((t) => t.replaceAll("\r\n", "\n").trim()).join("\n\n")}\n`);
  }
  return parts.join("\n");
}
