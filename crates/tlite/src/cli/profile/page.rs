//! The page of `--html`: one file without references to others. For each run it shows where the
//! time goes, a roofline picture, and a table.
//!
//! The axes of a picture are logarithmic: operations per byte to the right, operations per second
//! upwards. A roof is what memory allows on the left and what one kind of arithmetic allows on the
//! right. Each operator is a dot under the roof of its color, the larger the more time it takes.

use super::Report;
use crate::inspect::page::{document, escaped};
use crate::roofline::measured::{EXCEEDED_HELP, Measured, Profile, TimedKind, limit_text, roof};
use std::fmt::Write;
use transformer_lite::unstable::fmt::{quantity, size_text};
use transformer_lite::unstable::plan::Arithmetic;
use transformer_lite::unstable::probe::Peaks;

const STYLE: &str = "
main { display: block; } main .panel { margin-bottom: 18px; }
.driver { margin: -.6rem 0 1rem; } .driver + .driver { margin: -.5rem 0 1rem; max-width: 110ch; }
.run { display: grid; grid-template-columns: minmax(0, 1.5fr) minmax(260px, 1fr); gap: 8px 28px; align-items: start; margin-top: .5rem; }
.roofline { display: block; width: 100%; max-width: 760px; height: auto; font: 11.5px system-ui, sans-serif; }
.roofline text { fill: var(--ink); } .roofline .soft { fill: var(--soft); } .roofline .grid { stroke: var(--line); }
.roofline .roof { fill: none; stroke-width: 2; } .roofline circle { stroke: var(--panel); stroke-width: 1.2; fill-opacity: .88; }
.roofline .name { font-size: 10.5px; font-weight: 600; paint-order: stroke; stroke: var(--panel); stroke-width: 3px; stroke-linejoin: round; }
.roofline .lead { stroke: var(--soft); stroke-width: .8; }
.f32 { --kind: var(--weights); } .int8 { --kind: var(--live); } .f16 { --kind: var(--arena); } .tensor-cores, .int16 { --kind: var(--cache); }
circle, .roofline text.rate { fill: var(--kind); } .roof { stroke: var(--kind); } .legend .dot, .times .bar { background: var(--kind); }
.times { display: grid; grid-template-columns: fit-content(46%) minmax(0, 1fr) auto auto; gap: .3rem .7rem; font-size: .88rem; align-items: center; margin-top: .6rem; font-variant-numeric: tabular-nums; }
.times .what { overflow-wrap: anywhere; } .times .track { background: var(--sunken); border-radius: 4px; height: 12px; }
.times .bar { display: block; height: 12px; border-radius: 4px; min-width: 2px; } .times .soft { color: var(--soft); text-align: right; }
.times .value { text-align: right; } .times .others .bar { background: var(--soft); }
table { font-size: .86rem; } td, th { padding: .2rem 0 .2rem 1rem; white-space: nowrap; } td:first-child, th:first-child { padding-left: 0; }
.all td { font-weight: 650; } td.folded { white-space: normal; color: var(--soft); }
@media (max-width: 900px) { .run { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 760px) { .wide { display: none; } td, th { padding-left: .5rem; } }
";

/// Size of the picture, and where its axes begin and end.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 440.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 284.0;

/// Part of a run's time below which an operator has no line of its own.
const MIN_SHARE: f64 = 0.001;
/// Part of a run's time from which on a dot has a name.
const NAMED_SHARE: f64 = 0.01;
/// Operators in the list of times.
const LISTED: usize = 8;

pub fn render(report: &Report<'_>) -> String {
    let name = escaped(&report.model);
    let p = &report.peaks;
    let mut out = format!(
        "<header>\n<p class=\"eyebrow\">tlite profile</p>\n<h1>{name}</h1>\n\
         <p class=\"headline\">{} ({})</p>\n<dl class=\"cards\">\n",
        escaped(report.device),
        escaped(report.backend),
    );
    let mut cards = vec![
        ("memory", quantity(p.bytes_per_s, "B/s")),
        ("f32", quantity(p.f32_flops_per_s, "FLOP/s")),
    ];
    cards.extend(p.f16_flops_per_s.map(|v| ("f16", quantity(v, "FLOP/s"))));
    cards.extend(
        p.matrix_flops_per_s
            .map(|v| ("tensor cores", quantity(v, "FLOP/s"))),
    );
    cards.extend(
        p.int8_ops_per_s
            .map(|v| ("int8 dot product", quantity(v, "OP/s"))),
    );
    cards.extend(p.int16_ops_per_s.map(|v| ("int16", quantity(v, "OP/s"))));
    cards.push(("launch", quantity(p.launch_s, "s")));
    for (what, value) in cards {
        let _ = writeln!(
            out,
            "<div><dt>{what}</dt><dd>{value}<small>measured peak</small></dd></div>"
        );
    }
    let _ = write!(
        out,
        "</dl>\n<details class=\"driver\"><summary>Driver</summary><p class=\"hint\">{}</p></details>\n\
         <p class=\"hint driver\">In the pictures each dot is an operator. x: operations per byte; y: operations per second; \
         size: share of time. A roof is what the device allows for one kind of arithmetic; a dot is limited by the roof of \
         its color. Dots at the left edge move data and compute nothing.</p>\n</header>\n<main>\n",
        escaped(report.driver)
    );
    if report.runs.iter().any(Profile::exceeds_probe) {
        let _ = writeln!(out, "<p class=\"hint\">{}</p>", escaped(EXCEEDED_HELP));
    }
    for run in &report.runs {
        section(&mut out, run, p);
    }
    out.push_str("</main>\n");
    document(&format!("{} - tlite profile", report.model), STYLE, &out, None)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Name of a kind of arithmetic, and its class in the style.
fn arithmetic_name(a: Arithmetic) -> (&'static str, &'static str) {
    match a {
        Arithmetic::F32 => ("f32", "f32"),
        Arithmetic::TensorCores => ("tensor cores", "tensor-cores"),
        Arithmetic::F16 => ("f16", "f16"),
        Arithmetic::Bytes => ("int8", "int8"),
        Arithmetic::Int16 => ("int16", "int16"),
    }
}

/// The unit in which speeds of this arithmetic are counted.
fn unit(a: Arithmetic) -> &'static str {
    match a {
        Arithmetic::Bytes | Arithmetic::Int16 => "OP/s",
        _ => "FLOP/s",
    }
}

fn on_device(kind: &TimedKind) -> bool {
    kind.measured.work.total.launches > 0
}

/// The operators with a line of their own, and the others.
fn folded(kinds: &[TimedKind]) -> (&[TimedKind], &[TimedKind]) {
    let first = kinds.iter().take_while(|k| k.measured.share >= MIN_SHARE).count();
    // One line is not shorter than another.
    let first = if kinds.len() == first + 1 {
        kinds.len()
    } else {
        first
    };
    kinds.split_at_checked(first).unwrap_or((kinds, &[]))
}

fn section(out: &mut String, run: &Profile, peaks: &Peaks) {
    let _ = writeln!(
        out,
        "<section class=\"panel\">\n<h2>{}: {}, {}</h2>\n<div class=\"run\">\n<div>",
        escaped(&run.name),
        quantity(run.seconds(), "s"),
        match run.whole.share_of_least {
            share if share > 1.0 => limit_text(share),
            share => format!("{} of the device's limit", limit_text(share)),
        }
    );
    picture(out, run, peaks);
    out.push_str("</div>\n<div>\n<h3>Where the time goes</h3>\n");
    times(out, run);
    out.push_str("</div>\n</div>\n");
    table(out, run);
    out.push_str("</section>\n");
}

/// A bar per operator.
fn times(out: &mut String, run: &Profile) {
    let mut kinds: Vec<Arithmetic> = Vec::new();
    for kind in run.kinds.iter().filter(|k| on_device(k)) {
        if !kinds.contains(&kind.arithmetic) {
            kinds.push(kind.arithmetic);
        }
    }
    out.push_str("<ul class=\"legend\">");
    for kind in kinds {
        let (name, class) = arithmetic_name(kind);
        let _ = write!(
            out,
            "<li class=\"{class}\"><span class=\"dot\"></span>{name} arithmetic</li>"
        );
    }
    out.push_str("</ul>\n<div class=\"times\">\n");
    let most = run.kinds.first().map_or(1.0, |k| k.measured.share.max(1e-9));
    let mut line = |class: &str, name: &str, share: f64, seconds: f64| {
        let _ = writeln!(
            out,
            "<span class=\"what\">{}</span><span class=\"track {class}\"><span class=\"bar\" style=\"width: {:.1}%\"></span></span>\
             <span class=\"soft\">{}</span><span class=\"value\">{}</span>",
            escaped(name),
            100.0 * share / most,
            quantity(seconds, "s"),
            percent(share),
        );
    };
    let shown = run.kinds.iter().take(LISTED);
    let shown: Vec<&TimedKind> = shown.filter(|k| k.measured.share >= MIN_SHARE).collect();
    for kind in &shown {
        let class = if on_device(kind) {
            arithmetic_name(kind.arithmetic).1
        } else {
            "others"
        };
        line(class, &kind.op, kind.measured.share, kind.measured.seconds);
    }
    let rest = run.kinds.get(shown.len()..).unwrap_or_default();
    if !rest.is_empty() {
        let share = rest.iter().map(|k| k.measured.share).sum();
        let seconds = rest.iter().map(|k| k.measured.seconds).sum();
        line("others", &format!("{} others", rest.len()), share, seconds);
    }
    out.push_str("</div>\n");
}

fn table(out: &mut String, run: &Profile) {
    out.push_str(
        "<table>\n<tr><th>operator</th><th class=\"wide\">nodes</th><th>time</th><th>share</th><th class=\"wide\">bytes</th>\
         <th class=\"wide\">FLOP</th><th class=\"wide\">memory</th><th class=\"wide\">of peak</th>\
         <th class=\"wide\">arithmetic</th><th class=\"wide\">of peak</th><th>bound by</th><th>of limit</th></tr>\n",
    );
    let (own, others) = folded(&run.kinds);
    for kind in own {
        row(out, &kind.op, kind.nodes, &kind.measured, kind.arithmetic, "");
    }
    if !others.is_empty() {
        let names: Vec<&str> = others.iter().map(|k| k.op.as_str()).collect();
        let _ = writeln!(
            out,
            "<tr><td class=\"folded\">{} others</td><td class=\"wide\">{}</td><td>{}</td><td>{}</td><td colspan=\"8\" class=\"folded\">{}</td></tr>",
            others.len(),
            others.iter().map(|k| k.nodes).sum::<usize>(),
            quantity(others.iter().map(|k| k.measured.seconds).sum(), "s"),
            percent(others.iter().map(|k| k.measured.share).sum()),
            escaped(&names.join(", ")),
        );
    }
    let all = " class=\"all\"";
    row(out, "all", run.lines.len(), &run.whole, Arithmetic::F32, all);
    out.push_str("</table>\n");
}

fn row(out: &mut String, op: &str, nodes: usize, m: &Measured, arithmetic: Arithmetic, class: &str) {
    let t = &m.work.total;
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let flops = t.flops as f64;
    let _ = write!(
        out,
        "<tr{class}><td>{}</td><td class=\"wide\">{nodes}</td><td>{}</td><td>{}</td>",
        escaped(op),
        quantity(m.seconds, "s"),
        percent(m.share)
    );
    if t.launches == 0 {
        out.push_str("<td colspan=\"8\" class=\"folded\">not on the device</td></tr>\n");
        return;
    }
    let some = |text: String| if t.flops == 0 { "-".to_owned() } else { text };
    let _ = writeln!(
        out,
        "<td class=\"wide\">{}</td><td class=\"wide\">{}</td><td class=\"wide\">{}</td><td class=\"wide\">{}</td>\
         <td class=\"wide\">{}</td><td class=\"wide\">{}</td><td>{}</td><td>{}</td></tr>",
        size_text(t.bytes()),
        some(quantity(flops, "")),
        quantity(m.bytes_per_s, "B/s"),
        limit_text(m.share_of_memory),
        some(quantity(m.flops_per_s, unit(arithmetic))),
        some(limit_text(m.share_of_arithmetic)),
        m.work.bound.name(),
        limit_text(m.share_of_least)
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

/// An operator in the picture.
struct Dot<'a> {
    kind: &'a TimedKind,
    x: f64,
    y: f64,
    radius: f64,
}

fn computes(k: &TimedKind) -> bool {
    k.measured.work.total.flops > 0
}

/// Operations per second; for what computes nothing, its bytes per second at the left `edge`, where
/// it is as high as under the roof of memory.
fn height(k: &TimedKind, edge: f64) -> f64 {
    match computes(k) {
        true => k.measured.flops_per_s,
        false => k.measured.bytes_per_s * edge,
    }
}

fn picture(out: &mut String, run: &Profile, peaks: &Peaks) {
    let on_device = run.kinds.iter().filter(|k| k.measured.work.total.bytes() > 0);
    let on_device: Vec<&TimedKind> = on_device.collect();
    let intensity = |k: &TimedKind| k.measured.work.total.intensity();
    let computing = on_device.iter().filter(|k| computes(k));
    let mut intensities: Vec<f64> = computing.map(|k| intensity(k)).collect();
    let ridge = |rate: f64| 2.0 * rate / peaks.bytes_per_s;
    intensities.extend([0.1, ridge(peaks.f32_flops_per_s)]);
    let others = [peaks.matrix_flops_per_s, peaks.int8_ops_per_s];
    let others = others.into_iter().flatten();
    let top = others.clone().fold(peaks.f32_flops_per_s, f64::max);
    intensities.extend(others.map(ridge));
    let x = Axis::new(&intensities, [LEFT, RIGHT]);
    let edge = 10f64.powf(x.low);
    let mut speeds: Vec<f64> = on_device.iter().map(|k| height(k, edge)).collect();
    speeds.extend([top, edge * peaks.bytes_per_s]);
    let y = Axis::new(&speeds, [BOTTOM, TOP]);
    let _ = writeln!(
        out,
        "<svg class=\"roofline\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Roofline of {}\">",
        escaped(&run.name)
    );
    axes(out, &x, &y);
    let taken = roofs(out, &x, &y, run, peaks);
    let dots = on_device.into_iter().map(|kind| Dot {
        kind,
        x: x.at(if computes(kind) { intensity(kind) } else { edge }),
        y: y.at(height(kind, edge)),
        radius: 2.5 + 12.0 * kind.measured.share.clamp(0.0, 1.0).sqrt(),
    });
    let mut dots: Vec<Dot<'_>> = dots.collect();
    // Small ones stay visible on large ones.
    dots.sort_by(|a, b| b.radius.total_cmp(&a.radius));
    dots.iter().for_each(|dot| circle(out, dot));
    labels(out, &dots, taken);
    out.push_str("</svg>\n");
}

fn circle(out: &mut String, dot: &Dot<'_>) {
    let m = &dot.kind.measured;
    let (name, class) = arithmetic_name(dot.kind.arithmetic);
    let _ = writeln!(
        out,
        "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{:.1}\" data-op=\"{op}\">\
         <title>{op}: {}, {} of the time, {} of its limit, bound by {}, {name}</title></circle>",
        dot.x,
        dot.y,
        dot.radius,
        quantity(m.seconds, "s"),
        percent(m.share),
        limit_text(m.share_of_least),
        m.work.bound.name(),
        op = escaped(&dot.kind.op),
    );
}

fn axes(out: &mut String, x: &Axis, y: &Axis) {
    for v in x.powers() {
        let at = x.at(v);
        let text = if v >= 1.0 {
            format!("{v:.0}")
        } else {
            format!("{v:.*}", 3).trim_end_matches('0').to_owned()
        };
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>\
             <text class=\"soft\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
            BOTTOM + 16.0
        );
    }
    for v in y.powers() {
        let at = y.at(v);
        let text = quantity(v, "").replace(".00", "").replace(".0", "");
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">operations per byte</text>\n\
         <text class=\"soft\" x=\"2\" y=\"{:.1}\">operations per second</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 34.0,
        TOP - 12.0
    );
}

/// Draws the roofs, and returns where their text stands in the picture.
fn roofs(out: &mut String, x: &Axis, y: &Axis, run: &Profile, peaks: &Peaks) -> Vec<Area> {
    let (low, high) = (10f64.powf(x.low), 10f64.powf(x.high));
    let kinds = [
        (true, Arithmetic::F32),
        (peaks.matrix_flops_per_s.is_some(), Arithmetic::TensorCores),
        (peaks.f16_flops_per_s.is_some(), Arithmetic::F16),
        (peaks.int8_ops_per_s.is_some(), Arithmetic::Bytes),
        (
            run.kinds.iter().any(|k| k.arithmetic == Arithmetic::Int16),
            Arithmetic::Int16,
        ),
    ];
    let mut rates: Vec<(f64, Arithmetic)> = kinds
        .into_iter()
        .filter(|(measured, _)| *measured)
        .map(|(_, a)| (peaks.rate(a), a))
        .filter(|(rate, _)| rate.is_finite())
        .collect();
    rates.sort_by(|a, b| b.0.total_cmp(&a.0));
    // Names of roofs stand outside of the picture, one below the other.
    let mut free = TOP - 8.0;
    for (rate, arithmetic) in rates {
        let (name, class) = arithmetic_name(arithmetic);
        let ridge = (rate / peaks.bytes_per_s).clamp(low, high);
        let points =
            [low, ridge, high].map(|i| format!("{:.1},{:.1}", x.at(i), y.at(roof(i, peaks, arithmetic).0)));
        let at = y.at(rate).max(free);
        free = at + 30.0;
        let _ = writeln!(
            out,
            "<polyline class=\"roof {class}\" data-roof=\"{name}\" points=\"{}\"/>\
             <text class=\"rate {class}\" x=\"{left:.1}\" y=\"{at:.1}\">{name}</text>\
             <text class=\"rate {class}\" x=\"{left:.1}\" y=\"{:.1}\">{}</text>",
            points.join(" "),
            at + 12.5,
            quantity(rate, unit(arithmetic)),
            left = RIGHT + 8.0,
        );
    }
    // Above the roof of memory, turned as it is.
    let (a, b) = (low, (peaks.f32_flops_per_s / peaks.bytes_per_s).clamp(low, high));
    let (ax, ay) = (x.at(a), y.at(a * peaks.bytes_per_s));
    let (bx, by) = (x.at(b), y.at(b * peaks.bytes_per_s));
    let angle = (by - ay).atan2(bx - ax).to_degrees();
    let middle = |part: f64| (ax + part * (bx - ax), ay + part * (by - ay));
    let at = middle(0.45);
    let _ = writeln!(
        out,
        "<text class=\"soft\" transform=\"translate({:.1} {:.1}) rotate({angle:.1})\" text-anchor=\"middle\" dy=\"-6\">memory {}</text>",
        at.0,
        at.1,
        quantity(peaks.bytes_per_s, "B/s")
    );
    let piece = |part: f64| {
        let (x, y) = middle(part);
        Area {
            left: x - 14.0,
            top: y - 18.0,
            width: 28.0,
            height: 22.0,
        }
    };
    [0.25, 0.35, 0.45, 0.55, 0.65].map(piece).to_vec()
}

/// A rectangle of the picture.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Area {
    fn meets(&self, o: &Self) -> bool {
        self.left < o.left + o.width
            && o.left < self.left + self.width
            && self.top < o.top + o.height
            && o.top < self.top + self.height
    }

    /// True where a circle reaches into it.
    fn meets_circle(&self, x: f64, y: f64, radius: f64) -> bool {
        let near = |v: f64, from: f64, size: f64| v.clamp(from, from + size) - v;
        near(x, self.left, self.width).hypot(near(y, self.top, self.height)) < radius
    }

    fn inside(&self) -> bool {
        self.left > LEFT + 2.0
            && self.left + self.width < RIGHT - 2.0
            && self.top > TOP + 2.0
            && self.top + self.height < BOTTOM - 2.0
    }
}

/// Names beside the dots that take time, where there is room; each dot has its name as a title too.
fn labels(out: &mut String, dots: &[Dot<'_>], mut taken: Vec<Area>) {
    const LETTER: f64 = 6.9;
    const LINE: f64 = 13.0;
    for dot in dots.iter().filter(|d| d.kind.measured.share >= NAMED_SHARE) {
        let name = &dot.kind.op;
        #[expect(clippy::cast_precision_loss, reason = "letters of a name")]
        let width = name.chars().count() as f64 * LETTER;
        let area = |far: f64, angle: f64| {
            let (sin, cos) = angle.to_radians().sin_cos();
            let (x, y) = (dot.x + far * cos, dot.y + far * sin);
            // The side of the name that is near to the dot.
            let left = x - width * (1.0 - cos) / 2.0;
            Area {
                left,
                top: y - LINE / 2.0,
                width,
                height: LINE,
            }
        };
        let free = |a: &Area| {
            a.inside()
                && !taken.iter().any(|t| t.meets(a))
                && !dots.iter().any(|d| a.meets_circle(d.x, d.y, d.radius + 1.0))
        };
        let around = (0..9).flat_map(|ring| {
            let far = dot.radius + 5.0 + 9.0 * f64::from(ring);
            [0.0, 180.0, 45.0, -45.0, 135.0, -135.0, 90.0, -90.0].map(|angle| (far, angle))
        });
        let Some((a, far, angle)) = around
            .map(|(far, angle)| (area(far, angle), far, angle))
            .find(|(a, ..)| free(a))
        else {
            continue;
        };
        taken.push(a);
        if far > dot.radius + 8.0 {
            let (sin, cos) = f64::to_radians(angle).sin_cos();
            let _ = writeln!(
                out,
                "<line class=\"lead\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
                dot.x + dot.radius * cos,
                dot.y + dot.radius * sin,
                dot.x + (far - 3.0) * cos,
                dot.y + (far - 3.0) * sin
            );
        }
        let _ = writeln!(
            out,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            a.left,
            a.top + LINE - 3.0,
            escaped(name)
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

    #[test]
    fn names_keep_clear_of_dots_and_of_each_other() {
        let area = |left, top| Area {
            left,
            top,
            width: 40.0,
            height: 13.0,
        };
        let a = area(100.0, 100.0);
        assert!(a.inside() && a.meets(&area(130.0, 105.0)) && !a.meets(&area(141.0, 100.0)));
        assert!(a.meets_circle(90.0, 106.0, 11.0) && !a.meets_circle(90.0, 106.0, 9.0));
        assert!(!area(RIGHT - 20.0, 100.0).inside());
    }
}
