//! Runs ONNX cases with tract. It needs shapes and axes when it plans, so a case that fails is
//! tried again with integer inputs as constants.

use onnx_score::{Data, Input, Tensor, serve};
use std::path::Path;
use std::sync::Arc;
use tract_onnx::data_resolver::MmapDataResolver;
use tract_onnx::prelude::*;

fn run(model: &Path, inputs: &[Input], constants: bool) -> TractResult<Vec<Tensor>> {
    let given = inputs.iter().map(|i| {
        let proto = tract_onnx::tensor::proto_from_reader(std::fs::File::open(&i.file)?)?;
        tract_onnx::tensor::load_tensor(&MmapDataResolver, &proto, None)
    });
    let given: Vec<_> = given.collect::<TractResult<_>>()?;
    let mut model = tract_onnx::onnx().model_for_path(model)?;
    for (i, tensor) in given.iter().enumerate() {
        let fact = if constants && tensor.datum_type().is_integer() {
            InferenceFact::from(tensor.clone())
        } else {
            InferenceFact::dt_shape(tensor.datum_type(), tensor.shape())
        };
        model.set_input_fact(i, fact)?;
    }
    let plan = Arc::new(model.into_optimized()?.into_runnable()?);
    let found = plan.run(given.into_iter().map(IntoTValue::into_tvalue).collect())?;
    let convert = |t: &TValue| {
        let data = if t.datum_type().is_float() {
            Data::Float(t.cast_to::<f64>()?.to_plain_array_view::<f64>()?.iter().copied().collect())
        } else {
            Data::Int(t.cast_to::<i64>()?.to_plain_array_view::<i64>()?.iter().copied().collect())
        };
        Ok(Tensor { kind: 0, shape: Some(t.shape().to_vec()), data })
    };
    found.iter().map(convert).collect()
}

fn main() {
    serve(|model, inputs, _| {
        let result = run(model, inputs, false).or_else(|_| run(model, inputs, true));
        result.map_err(|e| format!("{e:#}"))
    });
}
