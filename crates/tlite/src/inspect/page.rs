//! The page of a report: one self-contained file that shows the graph and the memory of each plan.
//! It evaluates all sizes again when a length is changed.
//!
//! The page holds the report as data and a script that reads it. Names and expressions are
//! interned, since large graphs repeat them. Strings of the model enter the page only as JSON with
//! `<` escaped, and the document only as text.

use super::{How, NodeReport, Operator, PlanReport, Report, StepReport, ValueReport};
use serde_json::{Value, json};
use std::collections::HashMap;
use transformer_lite::unstable::fmt::size_text;
use transformer_lite::unstable::graph::class::Class;
use transformer_lite::unstable::num;

const HTML: &str = include_str!("page/page.html");
/// The style of pages.
const CSS: &str = include_str!("page/page.css");
const JS: &str = include_str!("page/page.js");
const GRAPH: &str = include_str!("page/graph.js");

/// Texts by number, each once.
#[derive(Default)]
struct Interned<'a> {
    index: HashMap<&'a str, usize>,
    all: Vec<&'a str>,
}

impl<'a> Interned<'a> {
    fn at(&mut self, text: &'a str) -> usize {
        *self.index.entry(text).or_insert_with(|| {
            self.all.push(text);
            self.all.len() - 1
        })
    }
}

/// Tables that the parts of the page share.
#[derive(Default)]
struct Tables<'a> {
    /// Names and other texts.
    texts: Interned<'a>,
    exprs: Interned<'a>,
    /// Types: element type and sizes.
    types: HashMap<(&'a str, &'a [String]), usize>,
    type_list: Vec<Value>,
    /// Values: name and type.
    values: HashMap<(usize, usize), usize>,
    value_list: Vec<Value>,
}

impl<'a> Tables<'a> {
    fn value(&mut self, v: &'a ValueReport) -> usize {
        let exprs = &mut self.exprs;
        let list = &mut self.type_list;
        let ty = *self.types.entry((&v.dtype, &v.shape)).or_insert_with(|| {
            let dims: Vec<usize> = v.shape.iter().map(|d| exprs.at(d)).collect();
            list.push(json!([v.dtype, dims]));
            list.len() - 1
        });
        let name = self.texts.at(&v.name);
        let list = &mut self.value_list;
        *self.values.entry((name, ty)).or_insert_with(|| {
            list.push(json!([name, ty]));
            list.len() - 1
        })
    }

    fn operands(&mut self, all: &'a [Option<ValueReport>]) -> Vec<i64> {
        all.iter()
            .map(|v| v.as_ref().map_or(-1, |v| num::signed(self.value(v))))
            .collect()
    }

    fn results(&mut self, all: &'a [ValueReport]) -> Vec<usize> {
        all.iter().map(|v| self.value(v)).collect()
    }

    fn operator(&mut self, o: &'a Operator) -> Value {
        let how = match o.becomes.how {
            How::Kept => 0,
            How::Rewritten => 1,
            How::Fused => 2,
            How::Folded => 3,
            How::Removed => 4,
        };
        json!([
            self.texts.at(&o.name),
            self.texts.at(&o.op),
            i32::from(o.class == Class::Shape),
            self.operands(&o.inputs),
            self.results(&o.outputs),
            how,
            o.becomes.nodes,
        ])
    }

    fn node(&mut self, n: &'a NodeReport, plans: &[PlanReport], class: Class) -> Value {
        let plan = |name: &str| plans.iter().position(|p| p.name == name).unwrap_or(0);
        let runs: Vec<Value> = n.runs.iter().map(|r| json!([plan(r.plan), r.steps])).collect();
        let origin: Vec<usize> = n.origin.iter().map(|o| self.texts.at(o)).collect();
        json!([
            self.texts.at(&n.name),
            self.texts.at(&n.op),
            i32::from(class == Class::Shape),
            self.operands(&n.inputs),
            self.results(&n.outputs),
            origin,
            runs,
            n.nothing.map(|t| self.texts.at(t)),
        ])
    }

    fn step(&mut self, s: &'a StepReport) -> Value {
        let grid = s
            .grid
            .as_ref()
            .map(|g| g.iter().map(|d| self.exprs.at(d)).collect::<Vec<_>>());
        json!([
            i32::from(s.place == "host"),
            self.texts.at(&s.name),
            s.kernel.as_ref().map(|k| self.texts.at(k)),
            grid,
            s.why.as_ref().map(|w| self.texts.at(w)),
            self.texts.at(&s.node),
        ])
    }

    fn plan(&mut self, p: &'a PlanReport) -> Value {
        let index: HashMap<&str, usize> = p
            .tensors
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.as_str(), i))
            .collect();
        // The tensor whose place this one is in, and how far behind its start.
        let root = |i: usize| {
            let mut at = i;
            // Sharing has no cycles; the limit is for names that several tensors have.
            for _ in 0..p.tensors.len() {
                let of = p
                    .tensors
                    .get(at)
                    .and_then(|t| t.view_of.as_ref().or(t.in_place_of.as_ref()));
                match of.and_then(|of| index.get(of.as_str())) {
                    Some(next) => at = *next,
                    None => break,
                }
            }
            at
        };
        let mut tensors = Vec::with_capacity(p.tensors.len());
        for (i, t) in p.tensors.iter().enumerate() {
            let at = root(i);
            let (kind, of) = match (&t.view_of, &t.in_place_of) {
                (Some(of), _) => (1, Some(of)),
                (None, Some(of)) => (2, Some(of)),
                (None, None) => (0, None),
            };
            tensors.push(json!([
                self.texts.at(&t.name),
                self.exprs.at(&t.size),
                t.bytes,
                t.offset,
                t.first,
                t.last,
                kind,
                of.map(|of| self.texts.at(of)),
                at,
            ]));
        }
        json!({
            "name": p.name,
            "float": p.float,
            "fixed": p.fixed,
            "bounds": p.bounds,
            "padding": p.padding,
            "arena": p.arena_bytes,
            "lower": p.arena_lower_bound_bytes,
            "alone": p.arena_no_reuse_bytes,
            "gained": p.gained,
            "formula": self.exprs.at(&p.arena_formula),
            "dispatches": p.dispatches,
            "kernels": p.kernels,
            "readBacks": p.read_backs,
            "uploads": p.uploads,
            "steps": p.steps.iter().map(|s| self.step(s)).collect::<Vec<_>>(),
            "tensors": tensors,
        })
    }
}

fn data(report: &Report) -> Value {
    let mut tables = Tables::default();
    let inputs = tables.results(&report.inputs);
    let outputs = tables.results(&report.outputs);
    let operators: Vec<Value> = report.operators.iter().map(|o| tables.operator(o)).collect();
    let class_of: HashMap<&str, Class> = report
        .operators
        .iter()
        .map(|o| (o.name.as_str(), o.class))
        .collect();
    let class = |n: &NodeReport| {
        let mut shape = n.origin.iter().filter_map(|o| class_of.get(o.as_str()));
        let all_shape = !n.origin.is_empty() && shape.all(|c| *c == Class::Shape);
        if all_shape { Class::Shape } else { Class::Tensor }
    };
    let nodes: Vec<Value> = report
        .nodes
        .iter()
        .map(|n| tables.node(n, &report.plans, class(n)))
        .collect();
    let plans: Vec<Value> = report.plans.iter().map(|p| tables.plan(p)).collect();
    let summary = &report.model.summary;
    let files = summary
        .files
        .iter()
        .map(|f| format!("{} ({})", f.name, size_text(f.bytes)));
    let mut facts = summary.facts();
    facts.push(("files", files.collect::<Vec<_>>().join(", ")));
    json!({
        "model": report.model.name,
        "line": report.model.summary.line(),
        "facts": facts,
        "opsets": report.model.opsets,
        "decoder": report.model.decoder,
        "device": report.device,
        "symbols": report.symbols,
        "constraints": report.constraints,
        "weights": report.weights_bytes,
        "states": report.states_bytes,
        "stateCount": report.states.len(),
        "arena": report.arena_bytes,
        "total": report.total_bytes,
        "shapeOps": report.shape_ops_total,
        "shapeOpsLeft": report.shape_ops_at_runtime,
        "passes": report.passes,
        "inputs": inputs,
        "outputs": outputs,
        "operators": operators,
        "nodes": nodes,
        "plans": plans,
        "values": tables.value_list,
        "types": tables.type_list,
        "exprs": tables.exprs.all,
        "texts": tables.texts.all,
    })
}

/// JSON in which an HTML parser finds no markup.
fn embedded(value: &Value) -> String {
    value
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

/// `text` escaped for content or an attribute.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A self-contained page. `style` is added to the style of all pages; `body` must be escaped.
/// Without a `script` the page forbids scripts.
pub(crate) fn document(title: &str, style: &str, body: &str, script: Option<&str>) -> String {
    let (policy, script) = match script {
        Some(script) => (
            "; script-src 'unsafe-inline'",
            format!("<script>\n{script}</script>\n"),
        ),
        None => ("", String::new()),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'{policy}\">\n\
         <title>{}</title>\n<style>\n{CSS}{style}</style>\n</head>\n<body data-ready=\"yes\">\n{body}{script}</body>\n</html>\n",
        escaped(title)
    )
}

/// The page of a report.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    // Each part of the template up to a mark, and what the mark stands for; nothing that was put in
    // is looked at again.
    let mut rest = HTML;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let (mark, after) = after.split_once("}}").unwrap_or((after, ""));
        match mark {
            "title" => out.push_str(&escaped(&report.model.name)),
            "css" => out.push_str(CSS),
            "js" => out.push_str(&JS.replace("//GRAPH", GRAPH)),
            "data" => out.push_str(&embedded(&data(report))),
            _ => {}
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
