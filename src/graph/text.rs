//! Stable text form of a graph, for golden tests and `tlite inspect`.

use super::Graph;
use crate::error::Result;
use crate::shape::Known;
use std::fmt::Write as _;

/// One line for each input, state, node (in execution order) and output. Weights are shown by name,
/// small known integers by value.
pub fn print(graph: &Graph) -> Result<String> {
    let mut out = String::new();
    let fact = |v| {
        let v = graph.value(v);
        v.fact
            .as_ref()
            .map_or_else(|| "?".to_owned(), ToString::to_string)
    };
    for v in graph.inputs() {
        let _ = writeln!(out, "input {}: {}", graph.value(*v).name, fact(*v));
    }
    for s in graph.states() {
        let _ = writeln!(
            out,
            "state {} -> {}: {} grows along {} from {}{}",
            graph.value(s.input).name,
            graph.value(s.output).name,
            fact(s.input),
            s.axis,
            s.past,
            s.window
                .map_or_else(String::new, |w| format!(", window of {w} rows")),
        );
    }
    for id in graph.order()? {
        let Some(node) = graph.node(id) else { continue };
        let names: Vec<String> = node
            .inputs
            .iter()
            .map(|v| {
                let Some(v) = v else { return "-".to_owned() };
                match graph.value(*v).fact.as_ref() {
                    Some(f) if matches!(f.known, Known::Const(_) | Known::Dims(_)) => match f.as_dims() {
                        Some(d) if d.len() <= 8 => {
                            let d: Vec<String> = d.iter().map(ToString::to_string).collect();
                            format!("[{}]", d.join(", "))
                        }
                        _ => graph.value(*v).name.clone(),
                    },
                    _ => graph.value(*v).name.clone(),
                }
            })
            .collect();
        let outs: Vec<String> = node
            .outputs
            .iter()
            .map(|v| format!("{}: {}", graph.value(*v).name, fact(*v)))
            .collect();
        let _ = writeln!(
            out,
            "{} = {} {:?} ({})",
            outs.join(", "),
            node.op.name(),
            node.op,
            names.join(", ")
        );
    }
    for v in graph.outputs() {
        let _ = writeln!(out, "output {}: {}", graph.value(*v).name, fact(*v));
    }
    Ok(out)
}
