//! The page of `--report` with `--format int8`: one file without references to others, with the
//! signal-to-noise ratio of every layer.

use super::super::Args;
use super::super::page::{Card, framed, ranking};
use super::{channel, computing, decibels, scheme, weights};
use crate::inspect::page::escaped;
use std::fmt::Write;
use transformer_lite::unstable::fmt::{count_text, size_text};
use transformer_lite_convert::int8::{Options, Summary};

/// The ratio at which a bar is full, in dB.
const FULL: f64 = 50.0;
/// Layers in the list of the lowest ratios.
const WORST: usize = 10;

/// The page for what was made.
pub fn page(args: &Args, options: &Options, s: &Summary) -> String {
    let mut cards: Vec<Card> = Vec::new();
    for o in &s.outputs {
        let mut more = format!("median; lowest {:.1} dB", o.lowest_snr);
        if let Some(same) = o.same_largest {
            let _ = write!(more, "; same largest element in {same} of {} items", s.compared);
        }
        if let Some(last) = &o.last_layer {
            let _ = write!(more, "; lowest of its last layers: {:.1} dB", last.snr);
        }
        cards.push((
            format!("SNR of {}", o.name),
            format!("{:.1} dB", o.median_snr),
            more,
        ));
    }
    cards.push((
        "layers".to_owned(),
        s.layers.len().to_string(),
        format!("{} in floats", count_text(s.left.len(), "node")),
    ));
    let size = format!("before: {}", size_text(s.bytes_before));
    cards.push(("size".to_owned(), size_text(s.bytes_after), size));
    let items = format!("{} compared", s.compared);
    cards.push(("calibration items".to_owned(), s.items.to_string(), items));
    let mut out = String::new();
    worst(&mut out, s);
    all(&mut out, s);
    left(&mut out, s);
    let headline = format!("int8, {}", scheme(options, s));
    framed(&args.model, &args.output, &headline, &cards, &out)
}

/// A bar as long as a ratio is high.
fn bar(snr: Option<f64>) -> String {
    let snr = snr.unwrap_or_default();
    let share = 100.0 * (snr / FULL).clamp(0.0, 1.0);
    format!("<td class=\"bar\" data-v=\"{snr:.3}\"><span style=\"width: {share:.1}%\"></span></td>")
}

fn worst(out: &mut String, s: &Summary) {
    let mut sorted = computing(s);
    sorted.retain(|l| l.snr.is_some());
    if sorted.is_empty() {
        return;
    }
    sorted.sort_by(|a, b| a.snr.unwrap_or_default().total_cmp(&b.snr.unwrap_or_default()));
    sorted.truncate(WORST);
    let heading = format!(
        "<h2>The {} lowest signal-to-noise ratios</h2>\n<p class=\"hint\">Of the results of \
         layers, with the noise of all earlier layers.</p>",
        sorted.len()
    );
    let rows = sorted
        .iter()
        .map(|l| (l.name.as_str(), bar(l.snr), decibels(l.snr), l.ops.join(" ")));
    ranking(out, &heading, rows);
}

fn all(out: &mut String, s: &Summary) {
    let mut columns = vec![
        ("layer", ""),
        ("operators", "wide text"),
        ("weights", "wide"),
        ("range", "wide"),
        ("zero point", "wide"),
        ("SNR of weights", ""),
        ("worst channel", "wide"),
    ];
    if s.compared > 0 {
        columns.extend([("SNR", ""), ("worst channel", "wide")]);
    }
    let _ = write!(
        out,
        "<section class=\"panel\">\n<details open><summary>All {} layers</summary>\n<p class=\"hint\">The number in parentheses is the \
         channel.</p>\n<table class=\"sortable\">\n<thead><tr>",
        s.layers.len()
    );
    for (name, class) in &columns {
        let _ = write!(out, "<th class=\"{class}\">{name}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    let sorted = |v: Option<f64>| format!("{:.3}", v.unwrap_or_default());
    for l in &s.layers {
        let cells = [
            (String::new(), l.name.clone()),
            (String::new(), l.ops.join(" ")),
            (l.shape.iter().product::<usize>().to_string(), weights(l)),
            (
                format!("{:e}", l.range.1 - l.range.0),
                format!("{:.3} to {:.3}", l.range.0, l.range.1),
            ),
            (String::new(), l.zero.to_string()),
            (sorted(l.weights_snr), decibels(l.weights_snr)),
            (sorted(l.worst_weights.map(|c| c.snr)), channel(l.worst_weights)),
            (sorted(l.snr), decibels(l.snr)),
            (sorted(l.worst.map(|c| c.snr)), channel(l.worst)),
        ];
        out.push_str("<tr>");
        for ((key, text), (_, class)) in cells.iter().zip(&columns) {
            let key = match key.is_empty() {
                true => String::new(),
                false => format!(" data-v=\"{key}\""),
            };
            let _ = write!(out, "<td class=\"{class}\"{key}>{}</td>", escaped(text));
        }
        out.push_str("</tr>\n");
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
            escaped(&l.reason)
        );
    }
    out.push_str("</ul>\n</section>\n");
}
