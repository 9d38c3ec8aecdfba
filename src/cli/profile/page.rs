//! The page of `--html`: one file without references to others, with a roofline picture of each run.
//!
//! Axes are logarithmic: operations for each byte to the right, operations a second upwards. The roof is what memory allows on the left and what
//! arithmetic allows on the right. Each operator is a dot under it, the larger the more time it takes, with the number of its row in the table.

use super::Report;
use crate::inspect::page::{CSS, escaped};
use crate::plan::Arithmetic;
use crate::roofline::measured::{Profile, TimedKind, roof};
use crate::roofline::{Bound, Peaks};
use crate::units::{quantity, size_text};
use std::fmt::Write;

/// What the style of all pages has not.
const STYLE: &str = "
main { display: block; } main .panel { margin-bottom: 18px; }
.roofline { display: block; width: 100%; max-width: 860px; height: auto; margin: .6rem 0; font: 12px system-ui, sans-serif; }
.roofline text { fill: var(--ink); } .roofline .soft { fill: var(--soft); } .roofline .grid { stroke: var(--line); }
.roofline .roof { fill: none; stroke: var(--ink); stroke-width: 2; } .roofline .under { fill: var(--sunken); }
.roofline circle { stroke: var(--panel); stroke-width: 1.5; } .roofline .number { font-weight: 650; paint-order: stroke; stroke: var(--panel); stroke-width: 3px; }
.roofline .lead { stroke: var(--soft); stroke-width: .8; }
.memory { fill: var(--weights); } .arithmetic { fill: var(--arena); }
.legend .memory { background: var(--weights); } .legend .arithmetic { background: var(--arena); }
.headline { margin-bottom: .8rem; } .wide { overflow-x: auto; }
@media (max-width: 640px) { .roofline { font-size: 19px; } }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
td, th { padding: .2rem .8rem .2rem 0; text-align: right; white-space: nowrap; } td:nth-child(2), th:nth-child(2) { text-align: left; }
tr + tr td { border-top: 1px solid var(--line); } .all td { font-weight: 650; }
";

/// Size of the picture, and where its axes begin and end.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 536.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 332.0;

/// The page, whole.
pub fn render(report: &Report<'_>) -> String {
    let name = escaped(&report.model);
    let p = &report.peaks;
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{name} - tlite profile</title>\n<style>\n{CSS}{STYLE}</style>\n</head>\n<body data-ready=\"yes\">\n<header>\n\
         <p class=\"eyebrow\">tlite profile</p>\n<h1>{name}</h1>\n<p class=\"headline\">{}, {}, {}</p>\n<dl class=\"cards\">\n",
        escaped(report.device),
        escaped(report.backend),
        escaped(report.driver),
    );
    let mut cards = vec![
        ("memory, measured", quantity(p.bytes_per_s, "B/s")),
        ("f32, measured", quantity(p.f32_flops_per_s, "FLOP/s")),
    ];
    cards.extend(
        p.matrix_flops_per_s
            .map(|v| ("matrix units, measured", quantity(v, "FLOP/s"))),
    );
    cards.extend(p.int8_ops_per_s.map(|v| ("bytes, measured", quantity(v, "OP/s"))));
    cards.push(("a launch, measured", quantity(p.launch_s, "s")));
    for (what, value) in cards {
        let _ = writeln!(out, "<div><dt>{what}</dt><dd>{value}</dd></div>");
    }
    out.push_str("</dl>\n</header>\n<main>\n");
    for run in &report.runs {
        section(&mut out, run, p);
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn class(bound: Bound) -> &'static str {
    bound.name()
}

fn section(out: &mut String, run: &Profile, peaks: &Peaks) {
    let _ = write!(
        out,
        "<section class=\"panel\">\n<h2>{}: {}, {} of what the device allows</h2>\n\
         <p class=\"hint\">Each operator is a dot, numbered as in the table: to the right the operations for each byte that it moves, upwards those that \
         it does a second, as large as its share of the time. The line is what memory and arithmetic allow. Dots at the left edge move bytes and compute nothing; those without a number take next to no time.</p>\n\
         <ul class=\"legend\">",
        escaped(&run.name),
        quantity(run.seconds(), "s"),
        percent(run.whole.share_of_least),
    );
    for (bound, what) in [
        (Bound::Memory, "bound by memory"),
        (Bound::Arithmetic, "by arithmetic"),
    ] {
        let _ = write!(out, "<li><span class=\"dot {}\"></span>{what}</li>", class(bound));
    }
    out.push_str("</ul>\n");
    picture(out, run, peaks);
    out.push_str(
        "<div class=\"wide\"><table>\n<tr><th>#</th><th>operator</th><th>nodes</th><th>time</th><th>share</th><th>bytes</th><th>FLOP</th><th>memory</th>\
         <th>of peak</th><th>arithmetic</th><th>of peak</th><th>bound</th><th>of limit</th></tr>\n",
    );
    for (i, kind) in run.kinds.iter().enumerate() {
        row(
            out,
            &(i + 1).to_string(),
            &kind.op,
            kind.nodes,
            &kind.measured,
            "",
        );
    }
    row(out, "", "all", run.lines.len(), &run.whole, " class=\"all\"");
    out.push_str("</table></div>\n</section>\n");
}

fn row(out: &mut String, number: &str, op: &str, nodes: usize, m: &super::Measured, class: &str) {
    let t = &m.work.total;
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let flops = t.flops as f64;
    let _ = write!(
        out,
        "<tr{class}><td>{number}</td><td>{}</td><td>{nodes}</td><td>{}</td><td>{}</td>",
        escaped(op),
        quantity(m.seconds, "s"),
        percent(m.share)
    );
    if t.launches == 0 {
        out.push_str("<td colspan=\"8\">not on the device</td></tr>\n");
        return;
    }
    let some = |text: String| if t.flops == 0 { "0".to_owned() } else { text };
    let _ = writeln!(
        out,
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        size_text(t.bytes()),
        some(quantity(flops, "")),
        quantity(m.bytes_per_s, "B/s"),
        percent(m.share_of_memory),
        some(quantity(m.flops_per_s, "FLOP/s")),
        some(percent(m.share_of_arithmetic)),
        m.work.bound.name(),
        percent(m.share_of_least)
    );
}

/// A logarithmic axis.
struct Axis {
    /// Powers of ten at its ends.
    low: f64,
    high: f64,
    /// Places of its ends.
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: &[f64], [from, to]: [f64; 2]) -> Self {
        let logs = || {
            values
                .iter()
                .filter(|v| **v > 0.0 && v.is_finite())
                .map(|v| v.log10())
        };
        let (low, high) = (
            logs().fold(f64::INFINITY, f64::min),
            logs().fold(f64::NEG_INFINITY, f64::max),
        );
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        Self {
            low: low.floor(),
            high: high.ceil().max(low.floor() + 1.0),
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let log = value.max(1e-30).log10().clamp(self.low, self.high);
        self.from + (log - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// The powers of ten that have a line, fewer where there are many.
    fn powers(&self) -> impl Iterator<Item = f64> + '_ {
        let every = ((self.high - self.low) / 7.0).ceil().max(1.0);
        let count = ((self.high - self.low) / every).floor();
        (0..=30)
            .map(f64::from)
            .take_while(move |i| *i <= count)
            .map(move |i| 10f64.powf(self.low + i * every))
    }
}

/// A dot: its number, row, and place.
struct Dot<'a> {
    number: usize,
    kind: &'a TimedKind,
    x: f64,
    y: f64,
    radius: f64,
}

fn picture(out: &mut String, run: &Profile, peaks: &Peaks) {
    let on_device: Vec<(usize, &TimedKind)> = (1..)
        .zip(&run.kinds)
        .filter(|(_, k)| k.measured.work.total.bytes() > 0)
        .collect();
    let computes = |k: &TimedKind| k.measured.work.total.flops > 0;
    let mut intensities: Vec<f64> = on_device
        .iter()
        .filter(|(_, k)| computes(k))
        .map(|(_, k)| k.measured.work.total.intensity())
        .collect();
    let ridge = peaks.f32_flops_per_s / peaks.bytes_per_s;
    intensities.extend([0.1, ridge * 2.0]);
    let others = [peaks.matrix_flops_per_s, peaks.int8_ops_per_s];
    let top = others.into_iter().flatten().fold(peaks.f32_flops_per_s, f64::max);
    intensities.extend(
        others
            .into_iter()
            .flatten()
            .map(|rate| 2.0 * rate / peaks.bytes_per_s),
    );
    let x = Axis::new(&intensities, [LEFT, RIGHT]);
    let edge = 10f64.powf(x.low);
    // What computes nothing stands at the left edge, as high as its bytes a second are under the roof of memory.
    let height = |k: &TimedKind| {
        let m = &k.measured;
        if computes(k) {
            m.flops_per_s
        } else {
            m.bytes_per_s * edge
        }
    };
    let mut speeds: Vec<f64> = on_device.iter().map(|(_, k)| height(k)).collect();
    speeds.extend([top, edge * peaks.bytes_per_s]);
    let y = Axis::new(&speeds, [BOTTOM, TOP]);
    let _ = writeln!(
        out,
        "<svg class=\"roofline\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Roofline of {}\">",
        escaped(&run.name)
    );
    axes(out, &x, &y);
    roofs(out, &x, &y, peaks);
    let mut dots: Vec<Dot<'_>> = on_device
        .iter()
        .map(|(number, kind)| {
            let m = &kind.measured;
            let intensity = if computes(kind) {
                m.work.total.intensity()
            } else {
                edge
            };
            Dot {
                number: *number,
                kind,
                x: x.at(intensity),
                y: y.at(height(kind)),
                radius: 3.5 + 13.0 * m.share.clamp(0.0, 1.0).sqrt(),
            }
        })
        .collect();
    // Small ones stay visible on large ones.
    dots.sort_by(|a, b| b.radius.total_cmp(&a.radius));
    for dot in &dots {
        let m = &dot.kind.measured;
        let _ = writeln!(
            out,
            "<circle class=\"{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{:.1}\" data-op=\"{}\"><title>{}: {}, {} of the time, {} of its limit</title></circle>",
            class(m.work.bound),
            dot.x,
            dot.y,
            dot.radius,
            escaped(&dot.kind.op),
            escaped(&dot.kind.op),
            quantity(m.seconds, "s"),
            percent(m.share),
            percent(m.share_of_least)
        );
    }
    labels(out, &dots);
    out.push_str("</svg>\n");
}

fn axes(out: &mut String, x: &Axis, y: &Axis) {
    for v in x.powers() {
        let at = x.at(v);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>"
        );
        let text = if v >= 1.0 {
            format!("{v:.0}")
        } else {
            format!("{v:.*}", 3).trim_end_matches('0').to_owned()
        };
        let _ = writeln!(
            out,
            "<text class=\"soft\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
            BOTTOM + 20.0
        );
    }
    for v in y.powers() {
        let at = y.at(v);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        );
        let text = quantity(v, "").replace(".00", "").replace(".0", "");
        let _ = writeln!(
            out,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 7.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">operations for each byte</text>\n\
         <text class=\"soft\" x=\"2\" y=\"{:.1}\">operations a second</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 42.0,
        TOP - 16.0
    );
}

fn roofs(out: &mut String, x: &Axis, y: &Axis, peaks: &Peaks) {
    let (low, high) = (10f64.powf(x.low), 10f64.powf(x.high));
    let kinds = [
        ("f32", Some(Arithmetic::F32)),
        (
            "matrix units",
            peaks.matrix_flops_per_s.map(|_| Arithmetic::MatrixUnits),
        ),
        ("halves", peaks.f16_flops_per_s.map(|_| Arithmetic::F16)),
        ("bytes", peaks.int8_ops_per_s.map(|_| Arithmetic::Bytes)),
    ];
    for (name, arithmetic) in kinds.into_iter().filter_map(|(n, a)| Some((n, a?))) {
        let rate = peaks.rate(arithmetic);
        let ridge = (rate / peaks.bytes_per_s).clamp(low, high);
        let points =
            [low, ridge, high].map(|i| format!("{:.1},{:.1}", x.at(i), y.at(roof(i, peaks, arithmetic).0)));
        let _ = writeln!(
            out,
            "<polyline class=\"roof\" data-roof=\"{name}\" points=\"{}\"/>",
            points.join(" ")
        );
        let _ = writeln!(
            out,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name} {}</text>",
            RIGHT - 4.0,
            y.at(rate) - 7.0,
            quantity(rate, "FLOP/s")
        );
    }
    // Beside the roof of memory, turned as it is.
    let (a, b) = (low, (peaks.f32_flops_per_s / peaks.bytes_per_s).clamp(low, high));
    let (ax, ay) = (x.at(a), y.at(a * peaks.bytes_per_s));
    let (bx, by) = (x.at(b), y.at(b * peaks.bytes_per_s));
    let angle = (by - ay).atan2(bx - ax).to_degrees();
    let _ = writeln!(
        out,
        "<text class=\"soft\" transform=\"translate({:.1} {:.1}) rotate({angle:.1})\" text-anchor=\"middle\" dy=\"-6\">memory {}</text>",
        ax + 0.45 * (bx - ax),
        ay + 0.45 * (by - ay),
        quantity(peaks.bytes_per_s, "B/s")
    );
}

/// Of the time of a run, what gives a dot its number.
const LEAST_SHARE: f64 = 0.002;

/// A number beside each dot that takes time, where no other number stands.
fn labels(out: &mut String, dots: &[Dot<'_>]) {
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for dot in dots.iter().filter(|d| d.kind.measured.share >= LEAST_SHARE) {
        let free = |at: &(f64, f64)| {
            let inside =
                (LEFT + 4.0..RIGHT - 4.0).contains(&at.0) && (TOP + 6.0..BOTTOM - 2.0).contains(&at.1);
            let clear = dots
                .iter()
                .all(|d| d.number == dot.number || (d.x - at.0).hypot(d.y - at.1) > d.radius + 6.0);
            inside
                && clear
                && taken
                    .iter()
                    .all(|t| (t.0 - at.0).abs() > 17.0 || (t.1 - at.1).abs() > 12.0)
        };
        let around = (1..=6).flat_map(|ring| {
            let far = dot.radius + 10.0 * f64::from(ring);
            [0.0, 45.0, -45.0, 90.0, -90.0, 135.0, -135.0, 180.0].map(|angle: f64| {
                let (sin, cos) = angle.to_radians().sin_cos();
                (dot.x + far * cos, dot.y + far * sin)
            })
        });
        let at = around.into_iter().find(free).unwrap_or((dot.x, dot.y));
        taken.push(at);
        if (at.0 - dot.x).hypot(at.1 - dot.y) > dot.radius + 12.0 {
            let _ = writeln!(
                out,
                "<line class=\"lead\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
                dot.x, dot.y, at.0, at.1
            );
        }
        let _ = writeln!(
            out,
            "<text class=\"number\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            at.0,
            at.1 + 4.0,
            dot.number
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_their_values_between_powers_of_ten() {
        let axis = Axis::new(&[0.3, 40.0], [0.0, 300.0]);
        assert_eq!((axis.low, axis.high), (-1.0, 2.0));
        assert_eq!(
            (axis.at(0.1), axis.at(1.0), axis.at(100.0), axis.at(1e9)),
            (0.0, 100.0, 300.0, 300.0)
        );
        assert_eq!(axis.powers().count(), 4);
        assert_eq!(Axis::new(&[], [0.0, 1.0]).powers().count(), 2);
    }
}
