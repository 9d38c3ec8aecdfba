import { useEffect, useRef, useState } from "preact/hooks";
import { report as readReport } from "./api.js";
import { size } from "../shared/num.js";
import { card, modelId, state } from "./state.js";

const reports = new Map();

function styled() {
  if (document.querySelector('link[href="report.css"]')) return Promise.resolve();
  return new Promise((resolve) => {
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = "report.css";
    link.onload = link.onerror = resolve;
    document.head.append(link);
  });
}

export function ModelTab() {
  const id = modelId(), c = card(), root = useRef(null), [message, set] = useState("Reading the report\u2026");

  useEffect(() => {
    if (!id) return;
    let view = null, gone = false;
    const recolor = () => view?.recolor();
    set("Reading the report\u2026");
    root.current.replaceChildren();
    (async () => {
      try {
        const [{ mount }, report] = await Promise.all([import("./report.js"), reports.get(id) ?? readReport(id), styled()]);
        reports.set(id, report);
        if (gone) return;
        set(null);
        view = mount(root.current, report, { level: 2 });
      } catch (e) { if (!gone) set(e.status === 404 ? "This server offers no report of this model." : `The report cannot be shown. ${e.message}`); }
    })();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("themechange", recolor);
    dark.addEventListener("change", recolor);
    return () => { gone = true; removeEventListener("themechange", recolor); dark.removeEventListener("change", recolor); };
  }, [id]);

  const m = c?.memory, total = m ? m.weights + m.cache + m.arena : 0;
  const facts = c && !c.missing ? [["Backend", c.backend], ["Device", c.device], ["Driver", c.driver], ["Weights", c.weights], ["Context", c.context && `${c.context.toLocaleString("en")} tokens`], ["Version", c.version && `tlite ${c.version}`]].filter(([, v]) => v) : [];
  return (
    <div class="model-tab">
      <div class="model-inner">
        <section class="card" aria-labelledby="card-title">
          <h1 id="card-title">{c?.name ?? id ?? "No model"}</h1>
          {c?.missing && <p class="hint">This server gives no details of this model.</p>}
          <dl class="card-facts">{facts.map(([k, v]) => <div><dt>{k}</dt><dd>{v}</dd></div>)}</dl>
          {m && <>
            <div class="split" role="img" aria-label={`Memory: weights ${size(m.weights)}, cache ${size(m.cache)}, activations ${size(m.arena)}`}>
              {[["weights", m.weights], ["cache", m.cache], ["arena", m.arena]].map(([k, v]) => <span class={k} style={{ flexGrow: v }} />)}
            </div>
            <ul class="split-key">
              <li><i class="weights" />Weights {size(m.weights)}</li><li><i class="cache" />KV cache {size(m.cache)}</li><li><i class="arena" />Activations {size(m.arena)}</li>
              <li>Total {size(total)}{m.device ? `, of ${size(m.device)} on the device` : ""}</li>
            </ul>
          </>}
          {c?.notes?.length > 0 && <div class="notes"><h2>Notes from loading</h2><ul>{c.notes.map((n) => <li>{n}</li>)}</ul></div>}
        </section>
        {message && <p class="hint note" role="status">{state.problem ?? message}</p>}
        <div ref={root} class="report" />
      </div>
    </div>
  );
}
