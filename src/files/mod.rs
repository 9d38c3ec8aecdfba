//! Files: bounded reading, what an unexpected file seems to be, and writing one completely or not
//! at all.

pub mod kind;
pub mod read;
pub mod temporary;

use crate::error::{Error, ErrorKind, Result, Stage};
use std::io::Write;
use std::path::Path;

/// An empty vector with room for `count` elements, or an error of kind [`ErrorKind::OutOfMemory`].
pub fn room<T>(count: usize) -> Result<Vec<T>> {
    let mut out = Vec::new();
    out.try_reserve_exact(count).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        let what = format!("not enough memory for {bytes} bytes of a file");
        Error::other(Stage::Run, what).of_kind(ErrorKind::OutOfMemory)
    })?;
    Ok(out)
}

/// Writes a file beside its place and gives it its name when it is whole.
pub fn write_whole(file: &Path, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let folder = match file.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let failed = |e| Error::io("cannot write", file, e);
    let mut new = temporary::create(folder, 0o644).map_err(failed)?;
    {
        let mut buffer = std::io::BufWriter::new(new.as_file_mut());
        write(&mut buffer).and_then(|()| buffer.flush()).map_err(failed)?;
    }
    new.persist(file).map_err(|e| failed(e.error))?;
    Ok(())
}
