//! Files and folders that appear complete or not at all.

use super::MODEL;
use crate::new_folder::{INT8, NewFolder, folder_of};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::temporary;

/// The model being made, beside the path where it will appear: a file if the path ends in `.onnx`,
/// otherwise a folder with `model.onnx`. It is removed if it is dropped before it is complete.
#[derive(Debug)]
pub struct Output(Place);

#[derive(Debug)]
enum Place {
    Folder(NewFolder),
    /// The last field is true if the path may exist.
    File(NamedTempFile, PathBuf, bool),
}

impl Output {
    /// Checks `path` and creates the temporary file or folder. With `replace`, a file that exists
    /// is replaced once the new one is complete.
    ///
    /// Usage errors ([`Error::is_usage`]): it exists and is neither an empty folder nor a file to
    /// replace, or its parent folder does not exist.
    pub fn create(path: &Path, replace: bool) -> Result<Self> {
        let folder = folder_of(path)?;
        if path.extension().is_none_or(|e| e != "onnx") {
            return Ok(Self(Place::Folder(NewFolder::create(path, INT8)?)));
        }
        if path.symlink_metadata().is_ok() && !(replace && path.is_file()) {
            let what = "exists; give a file that does not exist, or replace it with --force";
            return Err(Error::usage(format!("output {}", path.display()), what));
        }
        let file = temporary::create(folder, 0o644);
        let file = file.map_err(|e| Error::io("cannot write", path, e))?;
        Ok(Self(Place::File(file, path.to_owned(), replace)))
    }

    /// The file or folder that holds the unfinished output.
    pub fn temporary(&self) -> &Path {
        match &self.0 {
            Place::Folder(new) => new.temporary(),
            Place::File(file, ..) => file.path(),
        }
    }

    /// The folder being made; `None` for a file.
    pub(super) fn folder(&self) -> Option<&Path> {
        match &self.0 {
            Place::Folder(new) => Some(new.path()),
            Place::File(..) => None,
        }
    }

    /// Where to write the model.
    pub(super) fn model(&self) -> PathBuf {
        match &self.0 {
            Place::Folder(new) => new.path().join(MODEL),
            Place::File(file, ..) => file.path().to_owned(),
        }
    }

    pub(super) fn commit(self) -> Result<()> {
        match self.0 {
            Place::Folder(new) => new.commit(),
            Place::File(file, path, replace) => {
                let moved = match replace {
                    true => file.persist(&path),
                    false => file.persist_noclobber(&path),
                };
                moved
                    .map(|_| ())
                    .map_err(|e| Error::io("cannot write", &path, e.error))
            }
        }
    }
}
