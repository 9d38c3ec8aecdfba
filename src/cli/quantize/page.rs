//! The page of `--report`: one file without references to others, with the error of each weight and method as a picture.

use super::shape_text;
use crate::graph::onnx::quantize::{Options, Quantized, Summary};
use crate::inspect::page::{CSS, escaped};
use crate::quant::{Bits, Integers, Method};
use crate::units::size_text;
use std::fmt::Write;
use std::path::Path;

/// What the style of all pages has not.
const STYLE: &str = "
main { display: block; } main .panel { margin-bottom: 18px; overflow-x: auto; }
svg { font: 12px system-ui, sans-serif; max-width: none; } svg text { fill: var(--ink); } svg .soft { fill: var(--soft); }
svg .grid { stroke: var(--line); } svg .one { stroke: var(--ink); stroke-dasharray: 4 3; } svg .band { fill: var(--sunken); }
svg .rtn { fill: var(--shape); } svg .mse { fill: var(--weights); } svg .mae { fill: var(--arena); } svg .bar { fill: var(--group); }
svg .int { fill: var(--soft); } svg .written { fill: none; stroke: var(--ink); stroke-width: 1.5; }
.legend .rtn { background: var(--shape); } .legend .mse { background: var(--weights); } .legend .mae { background: var(--arena); }
.legend .int { background: var(--soft); } .legend .written { border: 1.5px solid var(--ink); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } td, th { padding: .15rem .8rem .15rem 0; text-align: right; }
td:first-child, th:first-child { text-align: left; }
";

/// The page for what was made of `model`.
pub fn page(model: &Path, options: &Options, s: &Summary) -> String {
    let name = escaped(&model.file_name().unwrap_or(model.as_os_str()).to_string_lossy());
    let how = match options.budget {
        Some(bits) => format!("mixed formats at {bits} bits a weight"),
        None => format!("{}, method {}", options.bits, s.method),
    };
    let group = match options.group_size {
        crate::quant::PER_CHANNEL => "a scale a column".to_owned(),
        n => format!("groups of {n}"),
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{name} - tlite quantize</title>\n<style>\n{CSS}{STYLE}</style>\n</head>\n<body>\n<header>\n\
         <p class=\"eyebrow\">tlite quantize</p>\n<h1>{name}</h1>\n<p class=\"headline\">{how}, {group}</p>\n<dl class=\"cards\">\n"
    );
    let cards = [
        (
            "weights",
            format!("{} of {}", s.weights.len(), s.weights.len() + s.left.len()),
        ),
        ("bits a weight", format!("{:.3}", s.bits_per_weight)),
        ("relative error", format!("{:.3} %", s.relative_error * 100.0)),
        ("before", size_text(s.bytes_before)),
        ("after", size_text(s.bytes_after)),
    ];
    for (what, value) in cards {
        let _ = writeln!(out, "<div><dt>{what}</dt><dd>{value}</dd></div>");
    }
    out.push_str(
        "</dl>\n</header>\n<main>\n<section class=\"panel\">\n<h2>Error of each weight</h2>\n\
         <p class=\"hint\">Left: the mean absolute error of methods at the weight's format, divided by that of asymmetric INT4 with the same groups \
         (the dashed line), on some of its columns; rings are what was written, on all of them. Methods that learn from a text let weights be farther from where they were \
         for results that are nearer. Right: the relative error of what was written, as a square root of mean squares.</p>\n\
         <ul class=\"legend\">",
    );
    for method in Method::NAMES
        .map(|(name, _)| name)
        .into_iter()
        .chain([Integers::NAME])
    {
        let _ = write!(out, "<li><span class=\"dot {method}\"></span>{method}</li>");
    }
    let _ = write!(
        out,
        "<li><span class=\"dot written\"></span>written: {}</li>",
        s.method
    );
    out.push_str("</ul>\n");
    picture(&mut out, &s.weights);
    out.push_str("</section>\n<section class=\"panel\">\n<h2>Numbers</h2>\n<table>\n<tr><th>weight</th><th>shape</th><th>bits</th><th>group</th><th>mae</th><th>mae of INT4</th><th>mse</th><th>size</th></tr>\n");
    for w in &s.weights {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.4e}</td><td>{}</td><td>{:.4e}</td><td>{}</td></tr>",
            escaped(&w.name),
            shape_text(&w.shape),
            w.bits.count(),
            w.group,
            w.mae,
            w.mae_int4.map_or_else(|| "-".to_owned(), |e| format!("{e:.4e}")),
            w.mse,
            size_text(w.bytes_after)
        );
    }
    for l in &s.left {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td colspan=\"6\">left as it is: {}</td></tr>",
            escaped(&l.name),
            shape_text(&l.shape),
            escaped(&l.reason)
        );
    }
    out.push_str("</table>\n</section>\n</main>\n</body>\n</html>\n");
    out
}

/// A row a weight: its name, a dot a method, a bar.
#[expect(clippy::cast_precision_loss, reason = "rows of a page")]
fn picture(out: &mut String, weights: &[Quantized]) {
    const ROW: f64 = 20.0;
    const TOP: f64 = 26.0;
    const DOTS: f64 = 420.0;
    const BARS: f64 = 300.0;
    let longest = weights.iter().map(|w| w.name.chars().count()).max().unwrap_or(0);
    let left = (longest as f64 * 6.6 + 16.0).max(80.0);
    let right = left + DOTS + 60.0;
    let (width, height) = (right + BARS + 150.0, TOP + ROW * weights.len() as f64 + 8.0);
    // Against INT4 the other widths would take the axis for themselves.
    let of_four = |w: &&Quantized| w.bits == Bits::Four;
    let written = |w: &Quantized| w.mae_int4.filter(|e| *e > 0.0).map(|e| w.mae / e);
    let ratios = || {
        weights
            .iter()
            .filter(of_four)
            .flat_map(|w| w.compared.iter().map(|c| c.1).chain(written(w)))
    };
    // Tenths that hold all dots and INT4's line.
    let low = (ratios().fold(0.9, f64::min) * 10.0 - 0.2).floor() / 10.0;
    let high = (ratios().fold(1.0, f64::max) * 10.0 + 0.2).ceil() / 10.0;
    let x = |ratio: f64| left + (ratio - low) / (high - low) * DOTS;
    let most = weights.iter().map(|w| w.relative_error).fold(1e-9, f64::max);
    let _ = writeln!(
        out,
        "<svg width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"Error of each weight\">"
    );
    for i in (0..weights.len()).step_by(2) {
        let y = TOP + ROW * i as f64;
        let _ = writeln!(
            out,
            "<rect class=\"band\" x=\"0\" y=\"{y}\" width=\"{width:.0}\" height=\"{ROW}\"/>"
        );
    }
    let steps = ((high - low) * 10.0).round();
    let every = (steps / 8.0).ceil().max(1.0);
    let mut i = 0.0;
    while i <= steps {
        let ratio = low + i / 10.0;
        let class = if (ratio - 1.0).abs() < 1e-9 { "one" } else { "grid" };
        let at = x(ratio);
        let _ = writeln!(
            out,
            "<text class=\"soft\" x=\"{at:.1}\" y=\"16\" text-anchor=\"middle\">{ratio:.1}</text>\
             <line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{height:.0}\"/>"
        );
        i += every;
    }
    if !((1.0 - low) * 10.0 / every).fract().abs().lt(&1e-9) {
        let at = x(1.0);
        let _ = writeln!(
            out,
            "<line class=\"one\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{height:.0}\"/>"
        );
    }
    for (i, w) in weights.iter().enumerate() {
        let middle = TOP + ROW * (i as f64 + 0.5);
        let base = middle + 4.0;
        let _ = writeln!(out, "<text x=\"6\" y=\"{base:.1}\">{}</text>", escaped(&w.name));
        if !of_four(&w) {
            let (least, most) = w
                .compared
                .iter()
                .fold((f64::INFINITY, 0f64), |(l, m), c| (l.min(c.1), m.max(c.1)));
            if most > 0.0 {
                let _ = writeln!(
                    out,
                    "<text class=\"soft\" x=\"{left:.1}\" y=\"{base:.1}\">{}: {least:.3} to {most:.3}</text>",
                    w.bits
                );
            }
        }
        for (method, ratio) in w.compared.iter().filter(|_| of_four(&w)) {
            let _ = writeln!(
                out,
                "<circle class=\"{0}\" cx=\"{1:.1}\" cy=\"{middle:.1}\" r=\"4.5\"><title>{0}: {ratio:.4} of INT4</title></circle>",
                method,
                x(*ratio)
            );
        }
        if let Some(ratio) = written(w).filter(|_| of_four(&w)) {
            let _ = writeln!(
                out,
                "<circle class=\"written\" cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"6.5\"><title>written: {ratio:.4} of INT4</title></circle>",
                x(ratio)
            );
        }
        let length = w.relative_error / most * BARS;
        let (top, end) = (middle - 5.0, right + length + 6.0);
        let _ = writeln!(
            out,
            "<rect class=\"bar\" x=\"{right:.1}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"10\" rx=\"2\"/>\
             <text class=\"soft\" x=\"{end:.1}\" y=\"{base:.1}\">{:.2} %, {}, {}</text>",
            w.relative_error * 100.0,
            w.bits,
            w.group
        );
    }
    out.push_str("</svg>\n");
}
