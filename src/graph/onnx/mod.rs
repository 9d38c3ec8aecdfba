//! ONNX files: reading, writing and quantizing them. No type of the wire format leaves this folder.

mod import;
mod proto;
pub mod quantize;
mod weights;
pub mod write;

pub use import::{ImportOptions, import, import_with};

use super::op::{OpError, OpResult};
use crate::error::{Error, Result, Stage};
use crate::tensor::{Bytes, DType, HostTensor};
use prost::Message;
use std::path::Path;

/// Reads a file that holds one tensor, a `TensorProto` on its own, as test data of ONNX does.
pub fn read_tensor(path: &Path) -> Result<HostTensor> {
    let file = weights::map(path)?;
    let proto = proto::TensorProto::decode(file.bytes())
        .map_err(|e| Error::parse(Stage::Import, path, "not an ONNX tensor, or damaged", e))?;
    weights::Weights::new(path).tensor(&proto)
}

/// Keys and values that the exporter of a model left in it: names of classes, alphabets, licences.
pub fn metadata(path: &Path) -> Result<Vec<(String, String)>> {
    let file = weights::map(path)?;
    let model = proto::ModelProto::decode(file.bytes())
        .map_err(|e| Error::parse(Stage::Import, path, "not an ONNX model, or damaged", e))?;
    Ok(model
        .metadata_props
        .into_iter()
        .map(|p| (p.key, p.value))
        .collect())
}

/// The element type with this code of `TensorProto.DataType`.
pub fn dtype_of(code: i64) -> OpResult<DType> {
    Ok(match code {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        12 => DType::U32,
        _ => {
            return Err(OpError::Unsupported(format!(
                "element type {code} ({})",
                type_name(code)
            )));
        }
    })
}

fn type_name(code: i64) -> &'static str {
    match code {
        4 => "uint16",
        5 => "int16",
        8 => "string",
        11 => "double",
        13 => "uint64",
        14 => "complex64",
        15 => "complex128",
        16 => "bfloat16",
        17..=20 => "an 8-bit float",
        21 => "uint4",
        22 => "int4",
        _ => "unknown",
    }
}
