//! Stable text form of a plan, for golden tests and `inspect`.

use super::lower::Pack;
use super::{MemoryReport, Place, Plan, Port, Value};
use crate::graph::Graph;
use std::fmt::Write as _;

fn place(p: Place) -> String {
    match p {
        Place::Arena { offset, len } => format!("arena {offset}+{len}"),
        Place::Weight(i) => format!("weight {i}"),
        Place::State(i) => format!("state {i}"),
    }
}

fn port(out: &mut String, kind: &str, p: &Port) {
    let _ = writeln!(
        out,
        "{kind} {}: {}{} as {} in {}",
        p.name,
        p.dtype,
        p.shape,
        p.device,
        place(p.place)
    );
}

/// Ports, states, weights and steps, one line each; below a step its operands, its parameters as expressions, its
/// generated text and the nodes that it computes; the memory report at the end. `graph` is the one that was planned.
pub fn print(plan: &Plan, graph: &Graph) -> String {
    let mut out = String::new();
    for (symbol, most) in plan.bounds.iter() {
        let _ = writeln!(out, "symbol {symbol} <= {most}");
    }
    for p in &plan.inputs {
        port(&mut out, "input", p);
    }
    for (i, s) in plan.states.iter().enumerate() {
        let _ = writeln!(out, "state {i} \"{}\": {}, {} bytes", s.name, s.dtype, s.bytes);
    }
    for (i, w) in plan.weights.iter().enumerate() {
        let form = match &w.pack {
            Pack::Plain { dtype } => format!("{dtype}"),
            Pack::Rows { dtype, first, count } => format!("{dtype} rows {first}+{count}"),
            Pack::Columns {
                dtype,
                transpose,
                first,
                count,
                stride,
                panel,
            } => {
                let turned = if *transpose { " of the transpose" } else { "" };
                format!("{dtype} columns {first}+{count}{turned}, padded to {stride} in panels of {panel}")
            }
        };
        let _ = writeln!(out, "weight {i} \"{}\": {form}", graph.value(w.value).name);
    }
    for (i, step) in plan.steps.iter().enumerate() {
        let spec = &plan.kernels[step.kernel];
        let [x, y, z] = step.grid.map(|e| &plan.exprs[e]);
        let _ = writeln!(out, "step {i} {spec} grid [{x}, {y}, {z}]");
        let operands: Vec<String> = spec
            .bound()
            .zip(&step.args)
            .map(|((arg, _), p)| format!("{} = {}", arg.name, place(*p)))
            .collect();
        let _ = writeln!(out, "  {}", operands.join(", "));
        let fields: Vec<String> = spec
            .kernel
            .params
            .fields
            .iter()
            .zip(&step.fields)
            .map(|((name, _), (_, value))| match value {
                Value::Expr(e) => format!("{name} = {}", plan.exprs[*e]),
                Value::F32(v) => format!("{name} = {v:?}"),
            })
            .collect();
        let _ = writeln!(out, "  {}", fields.join(", "));
        for line in spec.snippet.cl.lines().filter(|l| l.contains(" apply(")) {
            let _ = writeln!(out, "  {line}");
        }
        let _ = writeln!(out, "  computes {}", step.nodes.join(", "));
    }
    for p in &plan.outputs {
        port(&mut out, "output", p);
    }
    let MemoryReport {
        without_reuse,
        arena,
        lower_bound,
        states,
    } = plan.memory;
    let _ = writeln!(
        out,
        "memory: arena {arena} bytes (lower bound {lower_bound}, without reuse {without_reuse}), states {states}"
    );
    out
}
