//! Tensors from files and to files: `.npy`, ONNX tensors, pictures.

pub mod kind;
pub mod npy;
pub mod picture;

use crate::error::{Error, Result};
use crate::graph::onnx;
use crate::shape::Fact;
use crate::tensor::HostTensor;
use picture::PictureOptions;
use std::io::Write;
use std::path::Path;

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

fn ending(path: &Path) -> Option<String> {
    path.extension().map(|e| e.to_string_lossy().to_lowercase())
}

/// True where [`read`] takes the file for a picture.
pub fn is_picture(path: &Path) -> bool {
    matches!(ending(path).as_deref(), Some("png" | "jpg" | "jpeg"))
}

/// Writes a file beside its place and gives it its name when it is whole.
pub fn write_whole(file: &Path, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let folder = match file.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let failed = |e| Error::io("cannot write", file, e);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tlite-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o644));
    }
    let mut new = builder.tempfile_in(folder).map_err(failed)?;
    {
        let mut buffer = std::io::BufWriter::new(new.as_file_mut());
        write(&mut buffer).and_then(|()| buffer.flush()).map_err(failed)?;
    }
    new.persist(file).map_err(|e| failed(e.error))?;
    Ok(())
}
