import { make, panel } from "./dom.js";
import { inspect } from "./inspect.js";
import { int8, quantize } from "./quantize.js";
import { roofline } from "./roofline.js";

/** The kind of a report: what it says, else what its keys say. */
export function kindOf(report) {
  if (!report || typeof report !== "object") return null;
  if (report.report?.kind) return report.report.kind;
  if (report.operators && report.plans) return "inspect";
  if (report.peaks && report.runs) return "profile";
  if (report.peaks && report.work) return "roofline";
  if (report.layers && report.outputs) return "int8";
  if (report.weights && report.bits_per_weight !== undefined) return "quantize";
  return null;
}

const VIEWS = { inspect, profile: roofline, roofline, quantize, int8 };

/** Draws a report into an element. `level` is the heading level of its title: 1 on a page of its own. */
export function mount(root, report, { level = 1 } = {}) {
  root.classList.add("viewer");
  const draw = Object.hasOwn(VIEWS, kindOf(report)) ? VIEWS[kindOf(report)] : null;
  if (!draw) {
    root.replaceChildren(panel("This report has no picture", make("pre", { class: "v-formula", tabindex: "0" }, JSON.stringify(report, null, 1).slice(0, 200_000))));
    return { title: "tlite report", set() {}, recolor() {} };
  }
  const view = draw(report), { kind, title, headline, more } = view.header;
  const version = report.report?.version;
  const head = make("div", { class: "v-header" }, make("p", { class: "v-eyebrow" }, version ? `${kind} \u00b7 tlite ${version}` : kind), make(`h${level}`, { class: "v-title" }, title), make("p", { class: "v-headline" }, headline), more);
  root.replaceChildren(head, ...view.body);
  // The server may add the roofline or a profile to the report of a model.
  for (const extra of [report.roofline, report.profile]) {
    const kind = extra && kindOf(extra);
    if (kind !== "profile" && kind !== "roofline") continue;
    const part = roofline(extra);
    root.append(make("div", { class: "v-extra" }, make("h2", { class: "v-title" }, kind === "profile" ? "Measured times" : "Roofline"), make("p", { class: "v-hint" }, part.header.headline), part.header.more, part.body));
  }
  view.start?.();
  return { title: `${title} - ${view.header.kind.startsWith("tlite") ? view.header.kind : "tlite inspect"}`, set: view.set ?? (() => {}), recolor: view.recolor ?? (() => {}) };
}
