//! ONNX files: reading, writing and quantizing them. The types of the wire format are private to
//! this module.

pub mod decode;
pub mod describe;
mod functions;
mod import;
mod missing;
mod panels;
pub mod proto;
mod sequences;
pub mod weights;
pub mod write;

pub use import::{ImportOptions, import, import_with};
pub use missing::{Missing, MissingParts};

use super::op::{OpError, OpResult};
use crate::error::{Error, Result, Stage};
use crate::tensor::{Bytes, DType, HostTensor};
use prost::Message;
use std::path::Path;

/// Reads a file that holds a single tensor (a bare `TensorProto`), such as ONNX test data.
pub fn read_tensor(path: &Path) -> Result<HostTensor> {
    let file = weights::map(path)?;
    let proto = proto::TensorProto::decode(file.bytes()).map_err(|e| {
        Error::parse(
            Stage::Import,
            path,
            "not an ONNX tensor, or the file is damaged",
            e,
        )
    })?;
    weights::Weights::new(path).tensor(&proto)
}

/// The codes of `TensorProto.DataType` and their types.
const TYPES: &[(i32, DType)] = &[
    (1, DType::F32),
    (2, DType::U8),
    (3, DType::I8),
    (4, DType::U16),
    (5, DType::I16),
    (6, DType::I32),
    (7, DType::I64),
    (9, DType::Bool),
    (10, DType::F16),
    (11, DType::F64),
    (12, DType::U32),
    (13, DType::U64),
    (16, DType::BF16),
    (17, DType::F8E4M3),
    (18, DType::F8E4M3Uz),
    (19, DType::F8E5M2),
    (20, DType::F8E5M2Uz),
    (21, DType::U4),
    (22, DType::I4),
    (23, DType::F4E2M1),
    (24, DType::F8E8M0),
    (25, DType::U2),
    (26, DType::I2),
];

fn known(code: i64) -> Option<DType> {
    TYPES
        .iter()
        .find(|(c, _)| i64::from(*c) == code)
        .map(|(_, dtype)| *dtype)
}

/// The element type for a code of `TensorProto.DataType`; an error if it is not supported.
pub fn dtype_of(code: i64) -> OpResult<DType> {
    known(code).ok_or_else(|| OpError::Unsupported(format!("element type {code} ({})", type_name(code))))
}

/// The name of an element type for messages.
pub fn type_name(code: i64) -> String {
    match code {
        8 => "string".to_owned(),
        14 => "complex64".to_owned(),
        15 => "complex128".to_owned(),
        code => known(code).map_or_else(|| "unknown".to_owned(), |t| t.to_string()),
    }
}

/// The code of an element type in `TensorProto.DataType`.
pub fn type_code(dtype: DType) -> i32 {
    let found = TYPES.iter().find(|(_, t)| *t == dtype);
    found.map_or(0, |(code, _)| *code)
}
