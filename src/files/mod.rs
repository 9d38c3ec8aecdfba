//! Files: bounded reading, what an unexpected file seems to be, and writing one completely or not
//! at all.

pub mod kind;
pub mod read;
pub mod temporary;

use crate::error::{Error, Result};
use std::io::Write;
use std::path::Path;

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
