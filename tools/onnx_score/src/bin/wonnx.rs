//! Runs ONNX cases with wonnx, on wgpu. Its results have no shape; only elements are compared.

use onnx_score::{Data, Input, Tensor, serve};
use std::collections::HashMap;
use std::path::Path;
use wonnx::Session;
use wonnx::utils::{InputTensor, OutputTensor};

type AnyError = Box<dyn std::error::Error>;

fn run(model: &Path, inputs: &[Input], outputs: &[String]) -> Result<Vec<Tensor>, AnyError> {
    let session = pollster::block_on(Session::from_path(model))?;
    let mut given = HashMap::new();
    for i in inputs {
        let tensor: InputTensor<'_> = match (&i.tensor.data, i.tensor.kind) {
            (Data::Float(data), 1) => InputTensor::F32(data.iter().map(|v| *v as f32).collect()),
            (Data::Int(data), 2) => InputTensor::U8(data.iter().map(|v| *v as u8).collect()),
            (Data::Int(data), 6) => InputTensor::I32(data.iter().map(|v| *v as i32).collect()),
            (Data::Int(data), 7) => InputTensor::I64(data.clone().into()),
            (_, other) => return Err(format!("unsupported input type {other}").into()),
        };
        given.insert(i.name.clone(), tensor);
    }
    let mut found = pollster::block_on(session.run(&given))?;
    let mut out = Vec::new();
    for name in outputs {
        let data = match found.remove(name).ok_or("an output is missing")? {
            OutputTensor::F32(v) => Data::Float(v.into_iter().map(f64::from).collect()),
            OutputTensor::I32(v) => Data::Int(v.into_iter().map(i64::from).collect()),
            OutputTensor::I64(v) => Data::Int(v),
            OutputTensor::U8(v) => Data::Int(v.into_iter().map(i64::from).collect()),
        };
        out.push(Tensor { kind: 0, shape: None, data });
    }
    Ok(out)
}

fn main() {
    serve(|model, inputs, outputs| run(model, inputs, outputs).map_err(|e| e.to_string()));
}
