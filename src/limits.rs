//! Limits on what a model, which is untrusted input, may consume.
#![warn(missing_docs)]

use crate::error::{Error, ErrorKind, Result, Stage};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Limits on what loading and running one model may consume. Reaching a limit is an error of kind
/// [`ErrorKind::LimitExceeded`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of tensors in host memory that one call may hold at once. `None` allows what the
    /// machine has. Mapped weights do not count.
    pub memory: Option<u64>,
    /// Time of one load, or of one run outside text generation. `None` is unlimited.
    pub time: Option<Duration>,
    /// Iterations of one ONNX `Loop` or `Scan`.
    pub iterations: u64,
    /// Nodes of a graph, subgraphs included.
    pub nodes: usize,
    /// Bytes of a configuration file, a tokenizer or another text file of a model.
    pub text_file: u64,
    /// Steps that rendering a chat template may take.
    pub template_steps: u64,
    /// Bytes of a rendered chat template.
    pub template_output: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: None,
            time: None,
            iterations: 1 << 24,
            nodes: 1 << 20,
            text_file: 256 << 20,
            template_steps: 1_000_000,
            template_output: 16 << 20,
        }
    }
}

/// Reads a regular file of at most `most` bytes.
pub fn read_file(path: &Path, most: u64) -> Result<Vec<u8>> {
    let cannot = |e| Error::io("cannot read", path, e);
    // Opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(cannot)?;
    let invalid = |what: String| Error::file(Stage::Import, path, what);
    if !metadata.is_file() {
        return Err(invalid("expected a regular file".to_owned()));
    }
    let too_large = || {
        invalid(format!("the file is larger than {most} bytes, the limit")).of_kind(ErrorKind::LimitExceeded)
    };
    if metadata.len() > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // The file may grow, and files of some file systems have no length.
    let file = File::open(path).map_err(cannot)?;
    file.take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    if u64::try_from(bytes.len()).map_or(true, |len| len > most) {
        return Err(too_large());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_as_many_bytes_as_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"1234").unwrap();
        assert_eq!(read_file(&path, 4).unwrap(), b"1234");
        assert_eq!(read_file(&path, 3).unwrap_err().kind(), ErrorKind::LimitExceeded);
    }

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            read_file(dir.path(), 4).unwrap_err().kind(),
            ErrorKind::InvalidFile
        );
        #[cfg(unix)]
        assert_eq!(
            read_file(Path::new("/dev/zero"), 4).unwrap_err().kind(),
            ErrorKind::InvalidFile
        );
        let missing = read_file(&dir.path().join("missing"), 4).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Io);
    }
}
