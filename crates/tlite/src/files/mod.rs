//! Tensors from files and to files: `.npy`, ONNX tensors, pictures.

pub mod npy;
pub mod picture;
mod resample;

use picture::PictureOptions;
use std::path::Path;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::graph::onnx;
use transformer_lite::unstable::shape::Fact;
use transformer_lite::unstable::tensor::HostTensor;

/// Reads the tensor in `path` for an input of the model. The file's extension decides: `.npy` and
/// `.pb` are read as they are; `.png`, `.jpg` and `.jpeg` are converted to the form that `fact`
/// asks for (see [`picture::read`]). An error for another extension, and for a file of another
/// format.
pub fn read(path: &Path, fact: &Fact, options: &PictureOptions) -> Result<HostTensor> {
    match ending(path).as_deref() {
        Some("npy") => npy::read(path),
        Some("pb") => onnx::read_tensor(path),
        _ if is_picture(path) => picture::read(path, fact, options),
        _ => Err(Error::usage(
            path.display().to_string(),
            "the file name must end in .npy, .pb, .png, .jpg or .jpeg",
        )),
    }
}

/// An empty vector with room for `count` elements, or an error of kind [`ErrorKind::OutOfMemory`].
fn room<T>(count: usize) -> Result<Vec<T>> {
    let mut out = Vec::new();
    out.try_reserve_exact(count).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        let what = format!("not enough memory for {bytes} bytes of an input");
        Error::other(Stage::Run, what).of_kind(ErrorKind::OutOfMemory)
    })?;
    Ok(out)
}

fn ending(path: &Path) -> Option<String> {
    path.extension().map(|e| e.to_string_lossy().to_lowercase())
}

/// True where [`read`] takes the file for a picture.
pub fn is_picture(path: &Path) -> bool {
    matches!(ending(path).as_deref(), Some("png" | "jpg" | "jpeg"))
}
