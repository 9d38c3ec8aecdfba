//! The page of `--report`: one file without references to others, with the errors of weights by
//! layer and kind, the weights with the largest errors, and how methods compare.

use super::{formats_text, shape_text};
use crate::inspect::model_name;
use crate::inspect::page::{document, escaped};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use transformer_lite::unstable::fmt::size_text;
use transformer_lite::unstable::quant::{Bits, Method, PER_CHANNEL};
use transformer_lite_convert::quantize::{Options, Quantized, Summary};

/// Text of the last cell of a row.
type LastColumn<'a> = dyn Fn(&BTreeMap<usize, &Quantized>) -> String + 'a;

/// A line of dots: its name, its label, and a name and value per dot.
type Strip<'a> = (&'a str, String, Vec<(&'a str, f64)>);

const STYLE: &str = "
main { display: block; } main .panel { margin-bottom: 18px; }
.headline { max-width: none; } .origin { margin: .1rem 0 1rem; }
.heat { display: grid; gap: 2px; margin-top: .6rem; font-size: .82rem; align-items: center; font-variant-numeric: tabular-nums; }
.heat .kind { padding-right: .5rem; overflow-wrap: anywhere; } .heat .soft { color: var(--soft); text-align: center; }
.heat .mean { padding-left: .5rem; text-align: right; }
.heat .cell, .scale { background: color-mix(in srgb, var(--group) var(--v, 0%), var(--sunken)); }
.heat .cell { height: 20px; border-radius: 3px; min-width: 0; text-align: center; line-height: 20px; overflow: hidden; }
.heat .none { background: none; }
.scale { display: inline-block; width: 120px; height: 10px; border-radius: 3px; background: linear-gradient(to right, var(--sunken), var(--group)); }
.strips { display: grid; grid-template-columns: max-content minmax(0, 1fr) max-content; gap: 0 .8rem; align-items: center; margin-top: .6rem; font-size: .86rem; }
.strips svg { display: block; width: 100%; height: 28px; overflow: visible; } .strips .soft { color: var(--soft); }
.strips .axis { position: relative; height: 1.4em; color: var(--soft); } .strips .axis span { position: absolute; transform: translateX(-50%); }
svg .grid { stroke: var(--line); } svg .one { stroke: var(--ink); stroke-dasharray: 4 3; }
circle { fill-opacity: .5; } svg .rtn { fill: var(--shape); } svg .mse { fill: var(--weights); } svg .mae { fill: var(--arena); } svg .written { fill: var(--group); }
table { font-size: .86rem; } td, th { padding: .2rem 0 .2rem 1rem; white-space: nowrap; }
td:first-child, th:first-child { padding-left: 0; white-space: normal; overflow-wrap: anywhere; }
td.text { white-space: normal; } td.text, th.text { text-align: left; } .sortable th { white-space: normal; vertical-align: bottom; }
td.bar { width: 40%; min-width: 90px; } .sortable td.bar { width: 20%; } td.bar span { display: block; height: 10px; border-radius: 3px; background: var(--group); min-width: 2px; }
table.sortable th { cursor: pointer; } table.sortable th[aria-sort]::after { content: \" \\25be\"; } table.sortable th[aria-sort=ascending]::after { content: \" \\25b4\"; }
@media (max-width: 760px) { .wide { display: none; } td, th { padding-left: .5rem; } .heat { font-size: .74rem; gap: 1px; } }
";

/// Sorts tables by the column whose head is clicked.
const SCRIPT: &str = "
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = [...table.rows[0].cells];
  heads.forEach((head, i) => {
    head.tabIndex = 0;
    const sort = () => {
      const up = head.getAttribute('aria-sort') === 'descending';
      heads.forEach((h) => h.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      const key = (row) => row.cells[i].dataset.v ?? row.cells[i].textContent;
      const rows = [...table.rows].slice(1).sort((a, b) => {
        const [x, y] = [key(a), key(b)], order = isNaN(x) || isNaN(y) ? x.localeCompare(y, 'en', { numeric: true }) : x - y;
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    };
    head.addEventListener('click', sort);
    head.addEventListener('keydown', (e) => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); sort(); } });
  });
}
";

/// Weights in the list of the largest errors.
const WORST: usize = 10;
/// Weights up to which the list of all is open.
const FEW: usize = 24;

/// A fact at the top of a page: its name, its value as HTML, and more about it.
pub(super) type Card = (String, String, String);

/// The page for what was made of `model`, written to `output`.
pub fn page(model: &Path, output: &Path, options: &Options, s: &Summary) -> String {
    let how = match options.budget {
        Some(bits) => format!("mixed formats at {bits} bits per weight"),
        None => format!("{}, method {}", options.bits, s.method),
    };
    let group = match options.group_size {
        PER_CHANNEL => "one scale per column".to_owned(),
        n => format!("groups of {n}"),
    };
    let cards = [
        (
            "bits per weight",
            format!("{:.2}", s.bits_per_weight),
            format!("{}, with scales", formats_text(options, &s.weights)),
        ),
        (
            "relative error",
            format!("{:.3} %", s.relative_error * 100.0),
            "RMS over all weights".to_owned(),
        ),
        (
            "size",
            size_text(s.bytes_after),
            format!("before: {}", size_text(s.bytes_before)),
        ),
        (
            "weights",
            s.weights.len().to_string(),
            format!("of {} matrices", s.weights.len() + s.left.len()),
        ),
    ];
    let cards = cards.map(|(what, value, more)| (what.to_owned(), value, more));
    let mut out = String::new();
    if let Some(layers) = Layers::of(&s.weights) {
        layers.section(&mut out);
    }
    if s.weights.len() > FEW {
        worst(&mut out, &s.weights);
    }
    methods(&mut out, s);
    all(&mut out, s);
    framed(model, output, &format!("{how}, {group}"), &cards, &out)
}

/// A page with a headline, facts and a body, which is HTML, on what was made of `model`.
pub(super) fn framed(model: &Path, output: &Path, headline: &str, cards: &[Card], body: &str) -> String {
    let source = model_name(model).unwrap_or_else(|_| model.display().to_string());
    let target = output.file_name().unwrap_or(output.as_os_str()).to_string_lossy();
    let title = format!("{source} \u{2192} {target}");
    let mut out = format!(
        "<header>\n<p class=\"eyebrow\">tlite quantize</p>\n<h1>{}</h1>\n<p class=\"headline\">{}</p>\n\
         <p class=\"hint origin\">{} &middot; <span class=\"mono\">{}</span></p>\n<dl class=\"cards\">\n",
        escaped(&title),
        escaped(headline),
        now(),
        escaped(&command()),
    );
    for (what, value, more) in cards {
        let (what, more) = (escaped(what), escaped(more));
        let _ = writeln!(
            out,
            "<div><dt>{what}</dt><dd>{value}<small>{more}</small></dd></div>"
        );
    }
    let _ = write!(out, "</dl>\n</header>\n<main>\n{body}</main>\n");
    document(&format!("{title} - tlite quantize"), STYLE, &out, Some(SCRIPT))
}

/// The command line of this process.
fn command() -> String {
    let words = std::env::args().skip(1).map(|word| quoted(&word));
    let command: Vec<String> = std::iter::once("tlite".to_owned()).chain(words).collect();
    command.join(" ")
}

/// Date and time of day.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    utc(since.map_or(0, |d| d.as_secs()))
}

/// A word of a command line, in quotes where a shell needs them.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Seconds since 1970 as a date and time of day.
fn utc(seconds: u64) -> String {
    // Years begin in March, so that a leap day is their last, and are counted from the year 0.
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * of_era + of_era / 4 - of_era / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + of_era + u64::from(month <= 2);
    let (hour, minute) = (rest / 3600, rest % 3600 / 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

fn percent(v: f64) -> String {
    format!("{:.2} %", 100.0 * v)
}

/// Format and group of a weight.
fn format_of(w: &Quantized) -> String {
    format!("{} in groups of {}", w.bits, w.group)
}

/// The part of a name before a number, the number, and what follows: `model.layers.`, 3,
/// `mlp.up_proj`. `None` for a name without a number between separators.
fn parts(name: &str) -> Option<(&str, usize, &str)> {
    let word = |c: char| c.is_ascii_alphanumeric();
    let mut from = 0;
    for (at, separator) in name.char_indices().filter(|(_, c)| !word(*c)) {
        let number = name.get(from..at)?;
        let kind = name.get(at + separator.len_utf8()..)?;
        if let Ok(n) = number.parse()
            && !kind.is_empty()
        {
            let kind = kind.strip_suffix(".weight").unwrap_or(kind);
            return Some((name.get(..from)?, n, kind));
        }
        from = at + separator.len_utf8();
    }
    None
}

/// Weights of repeated layers.
struct Layers<'a> {
    /// Numbers of layers, ascending.
    numbers: Vec<usize>,
    /// Kinds of weights in their order in the first layer, with that of each layer.
    kinds: Vec<(&'a str, BTreeMap<usize, &'a Quantized>)>,
    /// Weights outside of layers.
    others: Vec<&'a Quantized>,
}

impl<'a> Layers<'a> {
    /// `None` for a model without at least three layers with numbers in the names of their weights.
    fn of(weights: &'a [Quantized]) -> Option<Self> {
        let mut counts: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        for (prefix, n, _) in weights.iter().filter_map(|w| parts(&w.name)) {
            counts.entry(prefix).or_default().insert(n);
        }
        let (family, numbers) = counts.into_iter().max_by_key(|(_, n)| n.len())?;
        if numbers.len() < 3 {
            return None;
        }
        let mut layers = Self {
            numbers: numbers.into_iter().collect(),
            kinds: Vec::new(),
            others: Vec::new(),
        };
        for w in weights {
            match parts(&w.name).filter(|(prefix, ..)| *prefix == family) {
                Some((_, n, kind)) => match layers.kinds.iter_mut().find(|(k, _)| *k == kind) {
                    Some((_, all)) => {
                        all.insert(n, w);
                    }
                    None => layers.kinds.push((kind, [(n, w)].into())),
                },
                None => layers.others.push(w),
            }
        }
        Some(layers)
    }

    fn section(&self, out: &mut String) {
        let all = || self.kinds.iter().flat_map(|(_, all)| all.values());
        let errors = || all().map(|w| w.relative_error);
        let (low, high) = (
            errors().fold(f64::INFINITY, f64::min),
            errors().fold(0.0, f64::max),
        );
        let _ = writeln!(
            out,
            "<section class=\"panel\">\n<div class=\"row\"><h2>Relative error by layer and kind</h2>\
             <p class=\"hint\">{} <span class=\"scale\"></span> {}</p></div>",
            percent(low),
            percent(high)
        );
        let span = (high - low).max(1e-9);
        self.map(
            out,
            &|w| (w.relative_error - low) / span,
            &|_| String::new(),
            Some(&|all| {
                #[expect(clippy::cast_precision_loss, reason = "a number of layers")]
                let mean = all.values().map(|w| w.relative_error).sum::<f64>() / all.len().max(1) as f64;
                percent(mean)
            }),
        );
        let bits: BTreeSet<u32> = all().map(|w| w.bits.count()).collect();
        if bits.len() > 1 {
            out.push_str("<h3>Bits by layer and kind</h3>\n");
            self.map(
                out,
                &|w| f64::from(w.bits.count()) / 10.0,
                &|w| w.bits.count().to_string(),
                None,
            );
        }
        if !self.others.is_empty() {
            let others = self.others.iter().map(|w| {
                format!(
                    "{} {} ({})",
                    escaped(&w.name),
                    percent(w.relative_error),
                    format_of(w)
                )
            });
            let others: Vec<String> = others.collect();
            let _ = writeln!(
                out,
                "<p class=\"hint\">Outside of layers: {}</p>",
                others.join(", ")
            );
        }
        out.push_str("</section>\n");
    }

    /// A grid of cells, as dark as `shade` says from 0 to 1; `last` is a column behind them.
    fn map(
        &self,
        out: &mut String,
        shade: &dyn Fn(&Quantized) -> f64,
        text: &dyn Fn(&Quantized) -> String,
        last: Option<&LastColumn<'_>>,
    ) {
        let every = self.numbers.len().div_ceil(12).max(1);
        let end = if last.is_some() { " max-content" } else { "" };
        let _ = write!(
            out,
            "<div class=\"heat\" style=\"grid-template-columns: fit-content(30%) repeat({}, minmax(0, 1fr)){end}\">\n\
             <span class=\"soft\">layer</span>",
            self.numbers.len()
        );
        for (i, n) in self.numbers.iter().enumerate() {
            let number = if i % every == 0 {
                n.to_string()
            } else {
                String::new()
            };
            let _ = write!(out, "<span class=\"soft\">{number}</span>");
        }
        if last.is_some() {
            out.push_str("<span class=\"soft mean\">mean</span>");
        }
        out.push('\n');
        for (kind, all) in &self.kinds {
            let _ = write!(out, "<span class=\"kind\">{}</span>", escaped(kind));
            for n in &self.numbers {
                let Some(w) = all.get(n) else {
                    out.push_str("<span class=\"cell none\"></span>");
                    continue;
                };
                let _ = write!(
                    out,
                    "<span class=\"cell\" style=\"--v: {:.0}%\" title=\"{}: {}, {}\">{}</span>",
                    100.0 * shade(w).clamp(0.0, 1.0),
                    escaped(&w.name),
                    percent(w.relative_error),
                    format_of(w),
                    text(w)
                );
            }
            if let Some(last) = last {
                let _ = write!(out, "<span class=\"mean\">{}</span>", last(all));
            }
            out.push('\n');
        }
        out.push_str("</div>\n");
    }
}

fn bar(share: f64) -> String {
    format!(
        "<td class=\"bar\"><span style=\"width: {:.1}%\"></span></td>",
        100.0 * share
    )
}

fn worst(out: &mut String, weights: &[Quantized]) {
    let mut sorted: Vec<&Quantized> = weights.iter().collect();
    sorted.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
    sorted.truncate(WORST);
    let most = sorted.first().map_or(1.0, |w| w.relative_error.max(1e-12));
    let rows = sorted.iter().map(|w| {
        let (error, share) = (w.relative_error, w.relative_error / most);
        (w.name.as_str(), bar(share), percent(error), format_of(w))
    });
    ranking(
        out,
        &format!("<h2>The {} largest errors</h2>", sorted.len()),
        rows,
    );
}

/// A row of a ranking: its name, its bar as HTML, its value, and more about it.
pub(super) type Ranked<'a> = (&'a str, String, String, String);

/// A table of the worst of something, under a heading.
pub(super) fn ranking<'a>(out: &mut String, heading: &str, rows: impl Iterator<Item = Ranked<'a>>) {
    let _ = writeln!(out, "<section class=\"panel\">\n{heading}\n<table><tbody>");
    for (name, bar, value, more) in rows {
        let (name, more) = (escaped(name), escaped(&more));
        let _ = writeln!(
            out,
            "<tr><td>{name}</td>{bar}<td>{value}</td><td class=\"wide\">{more}</td></tr>"
        );
    }
    out.push_str("</tbody></table>\n</section>\n");
}

/// Mean absolute error of what was written, by that of INT4.
fn written(w: &Quantized) -> Option<f64> {
    w.mae_int4.filter(|e| *e > 0.0).map(|e| w.mae / e)
}

/// [`written`] as a cell of a table.
pub(super) fn versus_int4(w: &Quantized) -> String {
    written(w).map_or_else(|| "-".to_owned(), |r| format!("{r:.2}x"))
}

/// How methods compare on weights of 4 bits: a strip of dots per method.
fn methods(out: &mut String, s: &Summary) {
    // Against INT4 the other widths would take the axis for themselves.
    let four: Vec<&Quantized> = s.weights.iter().filter(|w| w.bits == Bits::Four).collect();
    let names = Method::NAMES.map(|(name, _)| name);
    let of = |name: &str| -> Vec<(&str, f64)> {
        let found = four.iter().filter_map(|w| {
            let ratio = w.compared.iter().find(|(n, _)| *n == name).map(|c| c.1);
            Some((w.name.as_str(), ratio?))
        });
        found.collect()
    };
    let mut strips: Vec<Strip<'_>> = names.into_iter().map(|n| (n, n.to_owned(), of(n))).collect();
    let made = four.iter().filter_map(|w| Some((w.name.as_str(), written(w)?)));
    strips.push(("written", format!("written: {}", s.method), made.collect()));
    strips.retain(|(.., dots)| !dots.is_empty());
    if strips.is_empty() {
        return;
    }
    let ratios = || strips.iter().flat_map(|(.., dots)| dots.iter().map(|d| d.1));
    // Tenths around all dots and INT4's line; an error is not negative.
    let low = ((ratios().fold(0.9, f64::min) * 10.0 - 0.2).floor() / 10.0).max(0.0);
    let high = (ratios().fold(1.0, f64::max) * 10.0 + 0.2).ceil() / 10.0;
    let at = |ratio: f64| 100.0 * (ratio - low) / (high - low);
    out.push_str(
        "<section class=\"panel\">\n<h2>Methods compared with INT4</h2>\n\
         <p class=\"hint\">Each dot is a 4-bit weight: the mean absolute error of the method, divided by that of asymmetric \
         INT4 with the same groups (dashed line). Left is better. Methods are compared on a sample of columns; what was \
         written is measured on all. Calibrated methods may move weights further but keep outputs closer.</p>\n\
         <div class=\"strips\">\n",
    );
    let ticks = ((high - low) * 10.0).round();
    let every = (ticks / 6.0).ceil().max(1.0);
    let count = (ticks / every).floor();
    let ticks: Vec<f64> = (0..=10u8)
        .map(f64::from)
        .take_while(|i| *i <= count)
        .map(|i| low + i * every / 10.0)
        .collect();
    for (class, name, dots) in &strips {
        let _ = write!(
            out,
            "<span>{}</span><svg role=\"img\" aria-label=\"{0}\">",
            escaped(name)
        );
        for t in &ticks {
            let x = at(*t);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"28\"/>"
            );
        }
        let one = at(1.0);
        let _ = write!(
            out,
            "<line class=\"one\" x1=\"{one:.2}%\" x2=\"{one:.2}%\" y1=\"0\" y2=\"28\"/>"
        );
        for (i, (weight, ratio)) in dots.iter().enumerate() {
            // Dots of one value lie beside each other.
            let y = 14 + [0, -6, 6, -3, 3].get(i % 5).copied().unwrap_or(0);
            let _ = write!(
                out,
                "<circle class=\"{class}\" cx=\"{:.2}%\" cy=\"{y}\" r=\"3.5\"><title>{}: {ratio:.3}</title></circle>",
                at(*ratio),
                escaped(weight)
            );
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of weights")]
        let mean = dots.iter().map(|d| d.1).sum::<f64>() / dots.len() as f64;
        let _ = writeln!(out, "</svg><span class=\"soft\">mean {mean:.2}</span>");
    }
    out.push_str("<span></span><div class=\"axis\">");
    for t in &ticks {
        let _ = write!(out, "<span style=\"left: {:.2}%\">{t:.1}</span>", at(*t));
    }
    out.push_str("</div><span></span>\n</div>\n</section>\n");
}

fn all(out: &mut String, s: &Summary) {
    let open = if s.weights.len() <= FEW { " open" } else { "" };
    let most = s.weights.iter().map(|w| w.relative_error).fold(1e-12, f64::max);
    let _ = write!(
        out,
        "<section class=\"panel\">\n<details{open}><summary>All {} weights</summary>\n<table class=\"sortable\">\n\
         <thead><tr><th>weight</th><th class=\"wide\">shape</th><th>bits</th><th class=\"wide\">group</th><th></th>\
         <th>error</th><th>vs. INT4</th><th class=\"wide\">max error</th><th class=\"wide\">size</th></tr></thead>\n<tbody>\n",
        s.weights.len()
    );
    for w in &s.weights {
        let elements: usize = w.shape.iter().product();
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"wide\" data-v=\"{elements}\">{}</td><td>{}</td><td class=\"wide\">{}</td>{}\
             <td data-v=\"{:e}\">{}</td><td data-v=\"{:e}\">{}</td><td class=\"wide\" data-v=\"{:e}\">{:.4}</td>\
             <td class=\"wide\" data-v=\"{}\">{}</td></tr>",
            escaped(&w.name),
            shape_text(&w.shape),
            w.bits.count(),
            w.group,
            bar(w.relative_error / most).replace("<td ", &format!("<td data-v=\"{:e}\" ", w.relative_error)),
            w.relative_error,
            percent(w.relative_error),
            written(w).unwrap_or(0.0),
            versus_int4(w),
            w.max_error,
            w.max_error,
            w.bytes_after,
            size_text(w.bytes_after)
        );
    }
    out.push_str("</tbody></table>\n</details>\n");
    if !s.left.is_empty() {
        out.push_str("<h3>Not quantized</h3>\n<ul class=\"hint\">\n");
        for l in &s.left {
            let _ = writeln!(
                out,
                "<li>{} ({}): {}</li>",
                escaped(&l.name),
                shape_text(&l.shape),
                escaped(&l.reason)
            );
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_found_in_names() {
        assert_eq!(
            parts("model.layers.12.mlp.up_proj.weight"),
            Some(("model.layers.", 12, "mlp.up_proj"))
        );
        assert_eq!(parts("/h.3/attn/MatMul"), Some(("/h.", 3, "attn/MatMul")));
        for name in ["lm_head.weight", "onnx::MatMul_439", "x2y.weight", ""] {
            assert_eq!(parts(name), None, "{name}");
        }
    }

    #[test]
    fn dates_and_words_of_commands() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_795_546_262), "2026-11-24 18:51 UTC");
        assert_eq!(quoted("models/a-b"), "models/a-b");
        assert_eq!(quoted("a b's"), "'a b'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
