//! Curves of a run as one HTML page without other files.

use serde_json::Value;
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;

/// A curve: its name, and pairs of a step and a number.
type Curve = (&'static str, Vec<(f64, f64)>);

/// The numbers of a key in the lines of metrics, by step.
fn curve(lines: &[Value], key: &'static str) -> Curve {
    let pair = |line: &Value| Some((line.get("step")?.as_f64()?, line.get(key)?.as_f64()?));
    (key, lines.iter().filter_map(pair).collect())
}

fn chart(page: &mut String, title: &str, curves: &[Curve]) {
    let points = || curves.iter().flat_map(|c| &c.1);
    let most = |f: fn(&(f64, f64)) -> f64| points().map(f).fold(f64::NEG_INFINITY, f64::max);
    let least = points().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let (right, top) = (most(|p| p.0).max(1.0), most(|p| p.1));
    if !(least.is_finite() && top.is_finite()) {
        return;
    }
    let span = (top - least).max(1e-9);
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<h2>{title}</h2><svg viewBox=\"-60 -10 {} {}\">",
        WIDTH + 80.0,
        HEIGHT + 40.0
    );
    for (name, points) in curves {
        let place = |(x, y): &(f64, f64)| {
            format!(
                "{:.1},{:.1}",
                x / right * WIDTH,
                HEIGHT - (y - least) / span * HEIGHT
            )
        };
        let path: Vec<String> = points.iter().map(place).collect();
        let _ = write!(
            page,
            "<polyline class=\"{name}\" points=\"{}\"><title>{name}</title></polyline>",
            path.join(" ")
        );
    }
    let _ = write!(
        page,
        "<text x=\"-55\" y=\"6\">{top:.4}</text><text x=\"-55\" y=\"{HEIGHT}\">{least:.4}</text>\
         <text x=\"0\" y=\"{0}\">0</text><text x=\"{WIDTH}\" y=\"{0}\" text-anchor=\"end\">step {right}</text></svg>",
        HEIGHT + 20.0
    );
    let names: Vec<String> = curves
        .iter()
        .map(|c| format!("<span class=\"{0}\">{0}</span>", c.0))
        .collect();
    let _ = write!(page, "<p>{}</p>", names.join(" "));
}

/// The page of a run with these lines of metrics.
pub fn page(lines: &[Value]) -> String {
    let mut page = "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>Training</title><style>\
        body{font:16px sans-serif;max-width:50em;margin:2em auto;padding:0 1em}\
        svg{width:100%;border:1px solid #ccc}text{font-size:12px}polyline{fill:none;stroke-width:1.5;stroke:#06c}\
        .test_accuracy{stroke:#c30;color:#c30}span{color:#06c}</style><h1>Training</h1>"
        .to_owned();
    chart(&mut page, "Loss", &[curve(lines, "loss")]);
    chart(
        &mut page,
        "Accuracy",
        &[curve(lines, "accuracy"), curve(lines, "test_accuracy")],
    );
    chart(&mut page, "Learning rate", &[curve(lines, "learning_rate")]);
    page.push_str("</html>\n");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_of_all_lines_are_drawn() {
        let line = |step: u64, loss: f64| serde_json::json!({"step": step, "loss": loss, "accuracy": 0.5});
        let made = page(&[
            line(1, 2.0),
            line(2, 1.0),
            serde_json::json!({"step": 2, "test_accuracy": 0.9}),
        ]);
        assert!(made.contains("0.0,") || made.contains("360.0,0.0"), "{made}");
        assert!(made.contains("points=\"360.0,0.0 720.0,240.0\""), "{made}");
        assert_eq!(made.matches("<svg").count(), 2, "no learning rates were given");
    }
}
