//! Decodes model files, and says in plain words why a file cannot be decoded.

use super::proto::ModelProto;
use crate::error::{Error, Result, Stage};
use crate::files::kind;
use prost::Message;
use std::path::Path;

/// Numbers of the fields of `ModelProto`, of those that this engine skips too.
const FIELDS: [u64; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25];

/// What is wrong with bytes that are not a model.
#[derive(Debug, PartialEq, Eq)]
enum FieldFault {
    /// A field reaches beyond the last byte, to this one.
    CutOff(u64),
    /// A field of no model.
    OtherFormat,
}

/// The model in `bytes`, the content of the file `path`. The error of a file that is cut off says
/// how many bytes are missing.
pub fn model(stage: Stage, path: &Path, bytes: &[u8]) -> Result<ModelProto> {
    let decoded = match ModelProto::decode(bytes) {
        // Some other files decode as a message without any known field.
        Ok(model) if model.graph.is_some() => return Ok(model),
        other => other,
    };
    Err(match (fault(bytes), decoded) {
        (Some(FieldFault::CutOff(needs)), _) => Error::cut_off(stage, path, needs, bytes.len() as u64),
        (Some(FieldFault::OtherFormat), _) => {
            Error::file(stage, path, kind::explained("not an ONNX model", bytes))
        }
        (None, Err(e)) => Error::damaged(stage, path, e),
        (None, Ok(_)) => Error::file(stage, path, "not an ONNX model: there is no graph in it"),
    })
}

/// Walks over the fields of a model; `None` if they are in order.
fn fault(bytes: &[u8]) -> Option<FieldFault> {
    if kind::guess(bytes).is_some() {
        return Some(FieldFault::OtherFormat);
    }
    let mut at = 0;
    while at < bytes.len() {
        let Some(key) = varint(bytes, &mut at) else {
            return Some(FieldFault::CutOff(bytes.len() as u64 + 1));
        };
        if !FIELDS.contains(&(key >> 3)) {
            return Some(FieldFault::OtherFormat);
        }
        match key & 7 {
            0 => {
                if varint(bytes, &mut at).is_none() {
                    return Some(FieldFault::CutOff(bytes.len() as u64 + 1));
                }
            }
            2 => {
                let Some(length) = varint(bytes, &mut at) else {
                    return Some(FieldFault::CutOff(bytes.len() as u64 + 1));
                };
                let end = (at as u64).saturating_add(length);
                match usize::try_from(end).ok().filter(|end| *end <= bytes.len()) {
                    Some(end) => at = end,
                    None => return Some(FieldFault::CutOff(end)),
                }
            }
            _ => return Some(FieldFault::OtherFormat),
        }
    }
    None
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::onnx::proto::GraphProto;

    #[test]
    fn a_cut_model_says_how_long_it_should_be() {
        let whole = ModelProto {
            ir_version: 8,
            producer_name: "test".to_owned(),
            graph: Some(GraphProto {
                name: "g".repeat(300),
                ..Default::default()
            }),
            ..Default::default()
        }
        .encode_to_vec();
        let path = Path::new("model.onnx");
        assert!(model(Stage::Import, path, &whole).is_ok());
        let length = whole.len() as u64;
        assert_eq!(fault(&whole), None);
        // From where the length of the graph can be read, the length of the file is known.
        for cut in 12..whole.len() {
            assert_eq!(fault(&whole[..cut]), Some(FieldFault::CutOff(length)), "{cut}");
        }
        assert!(model(Stage::Import, path, &whole[..100]).is_err());
    }

    #[test]
    fn other_files_are_not_called_damaged() {
        for bytes in [&b"<html></html>"[..], b"", b"GGUF\x03\0\0\0", b"hello world"] {
            assert_eq!(fault(bytes), Some(FieldFault::OtherFormat), "{bytes:?}");
        }
        assert!(model(Stage::Import, Path::new("x"), &[0x08, 0x08]).is_err());
    }
}
