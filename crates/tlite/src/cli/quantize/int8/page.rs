//! The page of `--report` with `--format int8`: one file without references to others, with the
//! signal-to-noise ratio of every layer.

use super::super::page::{SCRIPT, STYLE, command, now};
use super::{Task, channel, decibels, scheme, shape_text};
use crate::inspect::model_name;
use crate::inspect::page::{document, escaped};
use std::fmt::Write;
use transformer_lite::unstable::fmt::size_text;
use transformer_lite_convert::int8::{LayerReport, Options, Summary};

/// The ratio at which a bar is full, in dB.
const FULL: f64 = 50.0;
/// Layers in the list of the lowest ratios.
const WORST: usize = 10;

/// The page for what was made.
pub fn page(task: &Task<'_>, options: &Options, s: &Summary) -> String {
    let source = model_name(task.model).unwrap_or_else(|_| task.model.display().to_string());
    let target = task
        .output
        .file_name()
        .unwrap_or(task.output.as_os_str())
        .to_string_lossy();
    let title = format!("{source} \u{2192} {target}");
    let mut out = format!(
        "<header>\n<p class=\"eyebrow\">tlite quantize</p>\n<h1>{}</h1>\n<p class=\"headline\">int8, {}</p>\n\
         <p class=\"hint origin\">{} &middot; <span class=\"mono\">{}</span></p>\n<dl class=\"cards\">\n",
        escaped(&title),
        escaped(&scheme(options)),
        now(),
        escaped(&command()),
    );
    let mut cards: Vec<(String, String, String)> = Vec::new();
    for o in &s.outputs {
        let more = format!(
            "median; lowest {:.1} dB; same largest element for {} of {}",
            o.lowest_snr, o.same_largest, s.compared
        );
        cards.push((
            format!("SNR of {}", o.name),
            format!("{:.1} dB", o.median_snr),
            more,
        ));
    }
    cards.push((
        "layers".to_owned(),
        s.layers.len().to_string(),
        format!("{} nodes in floats", s.left.len()),
    ));
    let size = format!("before: {}", size_text(s.bytes_before));
    cards.push(("size".to_owned(), size_text(s.bytes_after), size));
    let items = format!("{} compared", s.compared);
    cards.push(("calibration items".to_owned(), s.items.to_string(), items));
    for (what, value, more) in cards {
        let _ = writeln!(
            out,
            "<div><dt>{}</dt><dd>{value}<small>{}</small></dd></div>",
            escaped(&what),
            escaped(&more)
        );
    }
    out.push_str("</dl>\n</header>\n<main>\n");
    worst(&mut out, s);
    all(&mut out, s);
    left(&mut out, s);
    out.push_str("</main>\n");
    document(&format!("{title} - tlite quantize"), STYLE, &out, Some(SCRIPT))
}

/// A bar as long as a ratio is high.
fn bar(snr: Option<f64>) -> String {
    let snr = snr.unwrap_or_default();
    let share = 100.0 * (snr / FULL).clamp(0.0, 1.0);
    format!("<td class=\"bar\" data-v=\"{snr:.3}\"><span style=\"width: {share:.1}%\"></span></td>")
}

fn worst(out: &mut String, s: &Summary) {
    let mut sorted: Vec<&LayerReport> = s
        .layers
        .iter()
        .filter(|l| l.snr.is_some() && l.kind != "move")
        .collect();
    if sorted.is_empty() {
        return;
    }
    sorted.sort_by(|a, b| a.snr.unwrap_or_default().total_cmp(&b.snr.unwrap_or_default()));
    sorted.truncate(WORST);
    let _ = writeln!(
        out,
        "<section class=\"panel\">\n<h2>The {} lowest signal-to-noise ratios</h2>\n<p class=\"hint\">Of the results of \
         layers, with the noise of all earlier layers.</p>\n<table><tbody>",
        sorted.len()
    );
    for l in sorted {
        let _ = writeln!(
            out,
            "<tr><td>{}</td>{}<td>{}</td><td class=\"wide\">{}</td></tr>",
            escaped(&l.name),
            bar(l.snr),
            decibels(l.snr),
            escaped(&l.ops.join(" "))
        );
    }
    out.push_str("</tbody></table>\n</section>\n");
}

fn all(out: &mut String, s: &Summary) {
    let _ = write!(
        out,
        "<section class=\"panel\">\n<details open><summary>All {} layers</summary>\n<p class=\"hint\">In parentheses: the \
         channel.</p>\n<table class=\"sortable\">\n<thead><tr><th>layer</th><th class=\"wide\">operators</th>\
         <th class=\"wide\">weights</th><th class=\"wide\">range</th><th class=\"wide\">zero point</th>\
         <th>SNR of weights</th><th class=\"wide\">worst channel</th><th></th><th>SNR</th>\
         <th class=\"wide\">worst channel</th></tr></thead>\n<tbody>\n",
        s.layers.len()
    );
    let sorted = |v: Option<f64>| v.unwrap_or_default();
    for l in &s.layers {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"wide\">{}</td><td class=\"wide\" data-v=\"{}\">{}</td>\
             <td class=\"wide\" data-v=\"{:e}\">{:.3} to {:.3}</td><td class=\"wide\">{}</td><td data-v=\"{:.3}\">{}</td>\
             <td class=\"wide\" data-v=\"{:.3}\">{}</td>{}<td data-v=\"{:.3}\">{}</td><td class=\"wide\" data-v=\"{:.3}\">{}</td></tr>",
            escaped(&l.name),
            escaped(&l.ops.join(" ")),
            l.shape.iter().product::<usize>(),
            shape_text(&l.shape),
            l.range.1 - l.range.0,
            l.range.0,
            l.range.1,
            l.zero,
            sorted(l.weights_snr),
            decibels(l.weights_snr),
            sorted(l.worst_weights.map(|c| c.snr)),
            channel(l.worst_weights),
            bar(l.snr),
            sorted(l.snr),
            decibels(l.snr),
            sorted(l.worst.map(|c| c.snr)),
            channel(l.worst),
        );
    }
    out.push_str("</tbody></table>\n</details>\n</section>\n");
}

fn left(out: &mut String, s: &Summary) {
    if s.left.is_empty() {
        return;
    }
    out.push_str("<section class=\"panel\">\n<h2>Nodes in floats</h2>\n<ul class=\"hint\">\n");
    for l in &s.left {
        let _ = writeln!(
            out,
            "<li>{} {}: {}</li>",
            escaped(&l.op),
            escaped(&l.name),
            escaped(l.reason)
        );
    }
    out.push_str("</ul>\n</section>\n");
}
