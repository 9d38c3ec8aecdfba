//! Runs ONNX cases with rten, which uses 32-bit integers for 64-bit ones and for booleans.

use onnx_score::{Data, Input, Tensor, serve};
use rten::{Model, Value};
use rten_tensor::{AsView as _, Layout as _};
use std::path::Path;

type AnyError = Box<dyn std::error::Error>;

fn value(t: &Tensor) -> Result<Value, AnyError> {
    let shape = t.shape.clone().unwrap_or_default();
    fn narrow<T: TryFrom<i64>>(data: &[i64]) -> Result<Vec<T>, AnyError> {
        data.iter().map(|v| T::try_from(*v).map_err(|_| "an integer exceeds 32 bits".into())).collect()
    }
    Ok(match (&t.data, t.kind) {
        (Data::Float(data), _) => Value::from_shape(shape.as_slice(), data.iter().map(|v| *v as f32).collect::<Vec<f32>>())?,
        (Data::Int(data), 2) => Value::from_shape(shape.as_slice(), narrow::<u8>(data)?)?,
        (Data::Int(data), 3) => Value::from_shape(shape.as_slice(), narrow::<i8>(data)?)?,
        (Data::Int(data), _) => {
            // The largest integers mean "to the end".
            let clamped: Vec<i64> = data.iter().map(|v| (*v).clamp(i32::MIN.into(), i32::MAX.into())).collect();
            Value::from_shape(shape.as_slice(), narrow::<i32>(&clamped)?)?
        }
    })
}

fn run(model: &Path, inputs: &[Input], outputs: &[String]) -> Result<Vec<Tensor>, AnyError> {
    let model = Model::load_file(model)?;
    let mut given = Vec::new();
    for i in inputs {
        given.push((model.node_id(&i.name)?, value(&i.tensor)?.into()));
    }
    let wanted = outputs.iter().map(|name| model.node_id(name)).collect::<Result<Vec<_>, _>>()?;
    let mut out = Vec::new();
    for found in model.run(given, &wanted, None)? {
        let (shape, data) = match &found {
            Value::FloatTensor(t) => (t.shape().to_vec(), Data::Float(t.iter().map(|v| f64::from(*v)).collect())),
            Value::Int32Tensor(t) => (t.shape().to_vec(), Data::Int(t.iter().map(|v| i64::from(*v)).collect())),
            Value::Int8Tensor(t) => (t.shape().to_vec(), Data::Int(t.iter().map(|v| i64::from(*v)).collect())),
            Value::UInt8Tensor(t) => (t.shape().to_vec(), Data::Int(t.iter().map(|v| i64::from(*v)).collect())),
            _ => return Err("a result is not a supported tensor".into()),
        };
        out.push(Tensor { kind: 0, shape: Some(shape), data });
    }
    Ok(out)
}

fn main() {
    serve(|model, inputs, outputs| run(model, inputs, outputs).map_err(|e| e.to_string()));
}
