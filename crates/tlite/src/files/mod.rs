//! Tensors from files and to files: `.npy`, ONNX tensors, pictures.

pub mod npy;

use std::path::Path;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::graph::onnx;
use transformer_lite::unstable::shape::Fact;
use transformer_lite::unstable::tensor::HostTensor;
use transformer_lite::unstable::vision::picture::{self, PictureOptions, is_picture};

/// Reads the tensor in `path` for an input of the model. The file's extension decides: `.npy` and
/// `.pb` are read as they are; pictures are converted to the form that `fact` asks for (see
/// [`picture::read`]). An error for another extension, and for a file of another format.
pub fn read(path: &Path, fact: &Fact, options: &PictureOptions) -> Result<HostTensor> {
    match picture::ending(path).as_deref() {
        Some("npy") => npy::read(path),
        Some("pb") => onnx::read_tensor(path),
        _ if is_picture(path) => picture::read(path, fact, options),
        _ => Err(Error::usage(
            path.display().to_string(),
            format!(
                "the file name must end in .npy, .pb or, of a picture, {}",
                picture::ENDINGS.join(", ")
            ),
        )),
    }
}
