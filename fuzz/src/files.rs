//! Models and tensors in files.

use crate::work::{Random, emptied, folder, put, split};
use std::collections::BTreeSet;
use std::path::Path;
use tlite::files;
use tlite::inspect::{self, Request};
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::graph::onnx;
use transformer_lite::unstable::limits::Limits;
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::shape::{Bindings, Dim, Fact, Shape};
use transformer_lite::unstable::tensor::{DType, HostTensor};
use transformer_lite_convert::{checkpoint, gguf as convert};

/// What a model of a few kilobytes may take.
fn limits() -> Limits {
    let limits = "memory=64M,time=500ms,iterations=1000".parse();
    limits.expect("a list of limits")
}

/// How models are run.
pub fn options() -> RunnerOptions {
    RunnerOptions {
        limits: limits(),
        ..Default::default()
    }
}

/// Imports and plans, as `tlite inspect` does.
pub fn plan(data: &[u8]) {
    let request = Request {
        context: Some(16),
        chunk: 8,
        limits: limits(),
        ..Default::default()
    };
    if let Err(e) = inspect::inspect(&put("model.onnx", data), &request) {
        e.chain();
    }
}

/// Small random inputs of a model; `None` if it has none.
pub fn inputs(runner: &Runner) -> Option<Vec<Named>> {
    let mut symbols = BTreeSet::new();
    for (_, fact) in runner.inputs() {
        fact.shape.0.iter().for_each(|d| d.symbols(&mut symbols));
    }
    let sizes = runner.small_sizes(&symbols, &Bindings::new())?;
    let mut random = Random::new(7);
    let mut given = Vec::new();
    for (name, fact) in runner.inputs() {
        let shape = fact.shape.eval(&sizes).ok()?;
        let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        if count > 100_000 {
            return None;
        }
        let tensor = if fact.dtype.is_int() || fact.dtype == DType::Bool {
            let values: Vec<i64> = (0..count).map(|_| random.below(2) as i64).collect();
            HostTensor::from_ints(fact.dtype, &shape, &values)
        } else {
            let value = |r: &mut Random| r.below(2001) as f32 / 1000.0 - 1.0;
            let values: Vec<f32> = (0..count).map(|_| value(&mut random)).collect();
            HostTensor::from_floats(fact.dtype, &shape, &values)
        };
        given.push((name.to_owned(), tensor.ok()?));
    }
    Some(given)
}

/// Imports and runs in the interpreter.
pub fn run(data: &[u8]) {
    if let Ok(mut runner) = Runner::load(&put("model.onnx", data), None, &options())
        && let Some(given) = inputs(&runner)
    {
        let _ = runner.run(&given, &Cancel::default());
    }
}

/// Converts a GGUF file.
pub fn gguf(data: &[u8]) {
    let path = put("in.gguf", data);
    let keep_bits = data.len().is_multiple_of(2);
    let _ = convert::convert_into(&path, &emptied("out"), keep_bits, &mut |_| {});
}

/// Converts a checkpoint: `config.json`, four zero bytes, a safetensors file.
pub fn safetensors(data: &[u8]) {
    let (config, weights) = split(data);
    let input = folder().join("in");
    if !input.exists() {
        emptied("in");
        put("in/tokenizer.json", b"{}");
    }
    put("in/config.json", config);
    put("in/model.safetensors", weights.unwrap_or_default());
    let _ = checkpoint::folder::convert_into(&input, &emptied("out"), &mut |_| {});
}

fn read(path: &Path, dims: Vec<Dim>) {
    let _ = files::read(path, &Fact::new(DType::F32, Shape(dims)), &Default::default());
}

/// Reads a NumPy array.
pub fn npy(data: &[u8]) {
    read(&put("in.npy", data), Vec::new());
}

/// Reads an ONNX tensor.
pub fn pb(data: &[u8]) {
    let _ = onnx::read_tensor(&put("in.pb", data));
}

/// Reads a picture for inputs of fixed and of open sizes.
pub fn picture(data: &[u8]) {
    let path = put("in.png", data);
    read(&path, [1, 3, 16, 16].map(Dim::from).into());
    read(
        &path,
        vec![1.into(), 3.into(), Dim::symbol("h"), Dim::symbol("w")],
    );
}
