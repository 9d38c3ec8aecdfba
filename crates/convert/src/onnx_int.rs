use transformer_lite::unstable::error::{Error, Result, Stage};

/// `n` as an integer of an ONNX file, which is signed.
pub(crate) fn onnx_int(n: usize) -> Result<i64> {
    i64::try_from(n).map_err(|e| Error::caused(Stage::Convert, format!("size {n}"), e))
}
