//! Reads files of bounded size.

use crate::error::{Error, ErrorKind, Result, Stage};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Maximum size of a configuration file or another text file, in bytes.
pub const MAX_TEXT_FILE: u64 = 256 << 20;

/// Opens a regular file and returns its length.
pub fn open_file(path: &Path) -> Result<(File, u64)> {
    let cannot = |e| Error::io("cannot read", path, e);
    // Opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(cannot)?;
    if !metadata.is_file() {
        return Err(Error::file(Stage::Import, path, "expected a regular file"));
    }
    Ok((File::open(path).map_err(cannot)?, metadata.len()))
}

/// Reads a regular file of at most `most` bytes: for files that a model folder contains.
pub fn read_file(path: &Path, most: u64) -> Result<Vec<u8>> {
    let (file, length) = open_file(path)?;
    if length > most {
        return Err(too_large(path, most));
    }
    let mut bytes = Vec::new();
    let room = usize::try_from(length).map_err(|_| too_large(path, most))?;
    bytes
        .try_reserve_exact(room.saturating_add(1))
        .map_err(|e| Error::io("cannot read", path, std::io::Error::other(e)))?;
    // The file may grow, and files of some file systems have no length.
    read_into(bytes, file, path, most)
}

/// Reads a configuration file or another text file of a model folder.
pub fn read_config(path: &Path) -> Result<Vec<u8>> {
    read_file(path, MAX_TEXT_FILE)
}

/// Reads a file of at most `most` bytes that the user named. It may be a pipe.
pub fn read_given(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| Error::io("cannot read", path, e))?;
    read_all(file, path, most)
}

/// Reads `source` to its end; fails if it has more than `most` bytes. Errors name `path`.
pub fn read_all(source: impl Read, path: &Path, most: u64) -> Result<Vec<u8>> {
    read_into(Vec::new(), source, path, most)
}

fn read_into(mut bytes: Vec<u8>, source: impl Read, path: &Path, most: u64) -> Result<Vec<u8>> {
    source
        .take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("cannot read", path, e))?;
    match u64::try_from(bytes.len()) {
        Ok(len) if len <= most => Ok(bytes),
        _ => Err(too_large(path, most)),
    }
}

fn too_large(path: &Path, most: u64) -> Error {
    let what = format!("the file is larger than {most} bytes, the limit");
    Error::file(Stage::Import, path, what).of_kind(ErrorKind::LimitExceeded)
}

/// `None` for a file that does not exist.
pub fn if_exists<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
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
    fn files_that_users_name_may_be_pipes_but_not_endless() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"1234").unwrap();
        assert_eq!(read_given(&path, 4).unwrap(), b"1234");
        #[cfg(unix)]
        assert_eq!(
            read_given(Path::new("/dev/zero"), 4).unwrap_err().kind(),
            ErrorKind::LimitExceeded
        );
        let missing = dir.path().join("missing");
        assert!(if_exists(read_given(&missing, 4)).unwrap().is_none());
        assert!(if_exists(read_file(dir.path(), 4)).is_err());
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
