/* The viewer as a page of its own. */
import { mount } from "./index.js";
import { make } from "./dom.js";

const THEMES = ["system", "light", "dark"];
const root = document.getElementById("view");

/** The report of the page: JSON, or a JSON string with gzip in base64. */
async function read() {
  const report = JSON.parse(document.getElementById("report").textContent);
  if (typeof report !== "string") return report;
  const bytes = Uint8Array.from(atob(report), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function themeButton(changed) {
  let at = 0;
  try { at = Math.max(0, THEMES.indexOf(localStorage.getItem("tlite-theme"))); } catch { /* Some browsers keep nothing for files. */ }
  const button = make("button", { type: "button", onclick: () => { at = (at + 1) % THEMES.length; apply(); } });
  function apply() {
    document.documentElement.dataset.theme = THEMES[at];
    button.textContent = `Theme: ${THEMES[at]}`;
    try { localStorage.setItem("tlite-theme", THEMES[at]); } catch { /* as above */ }
    changed();
  }
  return [button, apply];
}

async function start() {
  const report = await read();
  if (report === null) {
    root.append(make("h1", {}, "No report"), make("p", { class: "v-hint" }, "This page shows a report that tlite writes into it: tlite inspect MODEL --html page.html"));
    return;
  }
  let view = { recolor() {} };
  const [button, apply] = themeButton(() => view.recolor());
  apply();
  view = mount(root, report);
  document.title = view.title;
  root.querySelector(".v-header")?.append(make("div", { class: "v-page-tools" }, button, make("button", { type: "button", onclick: () => print() }, "Print")));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.recolor());
  const fromHash = () => { for (const [k, v] of new URLSearchParams(location.hash.slice(1))) view.set(k, v); };
  addEventListener("hashchange", fromHash);
  fromHash();
  let opened = [];
  addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("details:not([open])")]; opened.forEach((d) => { d.open = true; }); });
  addEventListener("afterprint", () => opened.forEach((d) => { d.open = false; }));
}

addEventListener("error", (e) => { document.body.dataset.error = e.message; });
start().then(() => { document.body.dataset.ready = "yes"; }, (e) => {
  document.body.dataset.error = e.message;
  root.append(make("p", { role: "alert" }, `The report cannot be shown: ${e.message}`));
});
