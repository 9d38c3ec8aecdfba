//! Files and folders that appear whole or not at all.

use super::MODEL;
use crate::new_folder::{INT8, NewFolder, folder_of};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::temporary;

/// The model that is being made, beside the path where it will appear: a file if the name of that
/// ends in `.onnx`, else a folder with `model.onnx`. It is removed if it is dropped before it is
/// whole.
#[derive(Debug)]
pub struct Output(Place);

#[derive(Debug)]
enum Place {
    Folder(NewFolder),
    File(NamedTempFile, PathBuf),
}

impl Output {
    /// Reserves `path`.
    ///
    /// Usage errors ([`Error::is_usage`]): it exists and is not an empty folder, or there is no
    /// folder to hold it.
    pub fn create(path: &Path) -> Result<Self> {
        if path.extension().is_none_or(|e| e != "onnx") {
            return Ok(Self(Place::Folder(NewFolder::create(path, INT8)?)));
        }
        if path.symlink_metadata().is_ok() {
            let what = "exists; give a file that does not exist";
            return Err(Error::usage(format!("output {}", path.display()), what));
        }
        let file = temporary::create(folder_of(path)?, 0o644);
        let file = file.map_err(|e| Error::io("cannot write", path, e))?;
        Ok(Self(Place::File(file, path.to_owned())))
    }

    /// The file or folder that holds what is there so far.
    pub fn temporary(&self) -> &Path {
        match &self.0 {
            Place::Folder(new) => new.temporary(),
            Place::File(file, _) => file.path(),
        }
    }

    /// The folder that is made; `None` for a file.
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
            Place::File(file, _) => file.path().to_owned(),
        }
    }

    pub(super) fn commit(self) -> Result<()> {
        match self.0 {
            Place::Folder(new) => new.commit(),
            Place::File(file, path) => {
                let moved = file.persist_noclobber(&path);
                moved
                    .map(|_| ())
                    .map_err(|e| Error::io("cannot write", &path, e.error))
            }
        }
    }
}
