//! Reading, decoding and conversion, on golden files and tiny random models.

mod blocks;
mod conversion;
mod reading;
mod vocabularies;

use super::convert::convert;
use super::dequant::{GgmlType, SUPPORTED, dequantize};
use super::params::params;
use super::read::{Array, Gguf, Value};
use super::testing::{self, File, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, Traits, VOCAB, tiny};
use super::tokenizer::Vocabulary;
use std::path::Path;
use tlite_testing::onnx::read_back::{self, Model};
use tlite_testing::{assert_carries, assert_error, assert_usage, carries};
use tokenizers::{PreTokenizer, Tokenizer};
use transformer_lite::unstable::error::{Error, ErrorKind};

fn golden() -> Gguf {
    Gguf::open(&Path::new(tlite_testing::ROOT).join("tests/golden/gguf/dequant.gguf")).unwrap()
}

/// Fails unless the result is an error of a damaged file that carries each of `values`.
#[track_caller]
fn invalid<T>(result: Result<T, Error>, values: &[&str]) {
    assert_error(&result.err().unwrap(), ErrorKind::InvalidFile, values);
}

fn written(file: &File) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    (folder, path)
}

fn converted(file: &File) -> (tempfile::TempDir, Model) {
    let (folder, path) = written(file);
    let out = folder.path().join("out");
    let mut last = (0, 0);
    convert(&path, &out, false, &mut |p| {
        assert!(p.done > last.0 && p.done <= p.total);
        last = (p.done, p.total);
    })
    .unwrap();
    assert_eq!(last.0, last.1, "progress ends at the total");
    let model = read_back::open(&out.join("model.onnx"));
    (folder, model)
}

fn floats(t: &testing::Tensor) -> Vec<f32> {
    t.data
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}
