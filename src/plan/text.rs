//! Stable text form of a plan, for golden tests and `inspect`.

use super::{FieldValue, MemoryReport, Plan, Port, Storage};
use crate::backend::kernel::epilogue;
use crate::graph::Graph;
use crate::lower::Pack;
use std::fmt::Write as _;

fn storage_text(p: Storage) -> String {
    match p {
        Storage::Arena { offset, len, .. } => format!("arena {offset}+{len}"),
        Storage::Weight(i) => format!("weight {i}"),
        Storage::State(i) => format!("state {i}"),
        Storage::Live => "live".to_owned(),
        Storage::Counters => "counters".to_owned(),
        Storage::Fault => "fault".to_owned(),
        Storage::Known { offset, len } => format!("live {offset}+{len}"),
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
        p.storage.map_or_else(|| "host memory".to_owned(), storage_text)
    );
}

/// Prints ports, states, weights and steps, one per line. Below a step: its operands, its
/// parameters as expressions, its generated source and the nodes that it computes. The memory
/// report comes last. `graph` is the planned graph.
pub fn print(plan: &Plan, graph: &Graph) -> String {
    let mut out = String::new();
    for (symbol, most) in plan.bounds.iter() {
        let _ = writeln!(out, "symbol {symbol} <= {most}");
    }
    for p in &plan.inputs {
        port(&mut out, "input", p);
    }
    stored(&mut out, plan, graph);
    conditions(&mut out, plan);
    for h in &plan.host {
        let _ = writeln!(out, "host {} \"{}\": {}", h.work.name(), h.name, h.why);
    }
    for i in 0..plan.steps.len() {
        step(&mut out, plan, i);
    }
    for p in &plan.outputs {
        port(&mut out, "output", p);
    }
    memory(&mut out, &plan.memory);
    out
}

/// States, weights and the table of live values.
fn stored(out: &mut String, plan: &Plan, graph: &Graph) {
    for (i, s) in plan.states.iter().enumerate() {
        let window = s
            .window
            .map_or_else(String::new, |w| format!(", {} rows, window {w}", s.rows));
        let _ = writeln!(
            out,
            "state {i} \"{}\": {}, {} bytes{window}",
            s.name, s.dtype, s.bytes
        );
    }
    for (i, w) in plan.weights.iter().enumerate() {
        let names = w.names(graph).join("\", \"");
        let _ = writeln!(out, "weight {i} \"{names}\": {}", layout(&w.pack));
    }
    for (at, d) in plan.formulas.live() {
        let _ = writeln!(out, "live {at} = {d}");
    }
}

fn layout(pack: &Pack) -> String {
    match pack {
        Pack::Plain { dtype } => format!("{dtype}"),
        Pack::Bytes => "bytes".to_owned(),
        Pack::Words { tile, sums } => {
            let sums = if *sums { " and sums" } else { "" };
            format!("words in panels of {tile}{sums}")
        }
        Pack::Rows { dtype, first, count } => format!("{dtype} rows {first}+{count}"),
        Pack::Tiles {
            dtype,
            rows,
            tile,
            first,
            count,
        } => {
            format!("{dtype} tiles {first}+{count} of {tile} of {rows}")
        }
        Pack::Columns {
            dtype,
            transpose,
            first,
            count,
            stride,
            panel,
        } => {
            let turned = if *transpose { " of the transpose" } else { "" };
            format!("{dtype} columns {first}+{count}{turned}, stride {stride}, panels of {panel}")
        }
    }
}

fn conditions(out: &mut String, plan: &Plan) {
    let _ = match &plan.padding {
        Ok(p) => writeln!(
            out,
            "{} + {} is padded to multiples of {}",
            p.symbol, p.beyond, p.multiple
        ),
        Err(why) => writeln!(out, "no length is padded: {why}"),
    };
    for c in &plan.conditions {
        let relation = if c.equal { "=" } else { ">=" };
        let _ = writeln!(out, "{} {relation} 0, else {}", c.dim, c.meaning);
    }
}

fn step(out: &mut String, plan: &Plan, i: usize) {
    let step = &plan.steps[i];
    let spec = &plan.kernels[step.kernel];
    let [x, y, z] = step.grid.map(|e| plan.formulas.at(e));
    let _ = writeln!(out, "step {i} {spec} grid [{x}, {y}, {z}]");
    let operands: Vec<String> = spec
        .bound()
        .zip(&step.args)
        .map(|((arg, _), p)| format!("{} = {}", arg.name, storage_text(*p)))
        .collect();
    let _ = writeln!(out, "  {}", operands.join(", "));
    let fields: Vec<String> = spec
        .fields()
        .zip(&step.fields)
        .map(|((name, _), (_, value))| match value {
            FieldValue::Expr(e) => format!("{name} = {}", plan.formulas.at(*e)),
            FieldValue::F32(v) => format!("{name} = {v:?}"),
        })
        .collect();
    let _ = writeln!(out, "  {}", fields.join(", "));
    let function = spec.epilogue.as_ref().map(|e| &e.function);
    let source = match function {
        Some(epilogue::Function::Source(source)) => source.opencl_c.as_str(),
        Some(epilogue::Function::Program(program)) => {
            let _ = writeln!(out, "  {program}");
            ""
        }
        None => "",
    };
    for line in source.lines().filter(|l| l.contains(" apply(")) {
        let _ = writeln!(out, "  {line}");
    }
    let _ = writeln!(out, "  computes {}", step.nodes.join(", "));
}

fn memory(out: &mut String, m: &MemoryReport) {
    let _ = writeln!(
        out,
        "memory: arena {} bytes = {} (lower bound {}), states {}",
        m.arena, m.formula, m.lower_bound, m.states
    );
    let _ = writeln!(
        out,
        "without reuse {}; gained {} by views, {} in place, {} by packing",
        m.without_reuse, m.gained_by_views, m.gained_in_place, m.gained_by_packing
    );
}
