//! Cases of ONNX through tract.

use onnx_score::{Data, Input, Tensor, serve};
use std::path::Path;
use std::sync::Arc;
use tract_onnx::data_resolver::MmapDataResolver;
use tract_onnx::prelude::*;

fn run(model: &Path, inputs: &[Input], _: &[String]) -> TractResult<Vec<Tensor>> {
    let given = inputs.iter().map(|i| {
        let proto = tract_onnx::tensor::proto_from_reader(std::fs::File::open(&i.file)?)?;
        tract_onnx::tensor::load_tensor(&MmapDataResolver, &proto, None)
    });
    let given: Vec<_> = given.collect::<TractResult<_>>()?;
    let mut model = tract_onnx::onnx().model_for_path(model)?;
    for (i, tensor) in given.iter().enumerate() {
        model.set_input_fact(i, InferenceFact::dt_shape(tensor.datum_type(), tensor.shape()))?;
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
    serve(|model, inputs, outputs| run(model, inputs, outputs).map_err(|e| format!("{e:#}")));
}
