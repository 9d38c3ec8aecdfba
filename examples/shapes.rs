//! Prints the inferred types and shapes of all values of a model, before any pass, as JSON:
//! `cargo run --release --example shapes -- MODEL_DIR_OR_FILE`. Weights are not needed.

use serde_json::{Value, json};
use std::path::PathBuf;
use transformer_lite::unstable::graph::onnx::{ImportOptions, import_with};
use transformer_lite::unstable::graph::{Graph, ValueId, derive};

fn described(graph: &Graph, v: ValueId) -> Result<Value, Box<dyn std::error::Error>> {
    let fact = graph.fact(v)?;
    let shape: Vec<String> = fact.shape.0.iter().map(ToString::to_string).collect();
    Ok(json!({ "name": graph.value(v).name, "dtype": fact.dtype.to_string(), "shape": shape }))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut path = PathBuf::from(std::env::args().nth(1).ok_or("usage: shapes MODEL")?);
    if path.is_dir() {
        path.push("model.onnx");
    }
    let mut graph = import_with(&path, ImportOptions::PLANNING)?;
    derive::derive(&mut graph)?;
    let all = |values: &mut dyn Iterator<Item = ValueId>| -> Result<Vec<Value>, _> {
        values.map(|v| described(&graph, v)).collect()
    };
    let inputs = all(&mut graph.inputs().iter().copied())?;
    let mut results = Vec::new();
    for id in graph.order()? {
        let outputs = graph.node(id).map(|n| n.outputs.clone()).unwrap_or_default();
        results.extend(all(&mut outputs.into_iter())?);
    }
    println!(
        "{}",
        serde_json::to_string(&json!({ "inputs": inputs, "values": results }))?
    );
    Ok(())
}
