//! Writing to the cache: unfinished files, locks, and the links of a version.

use super::super::digest::{Hash, feed};
use super::{REVISION, Repo};
use crate::lock;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::read::read_config;
use transformer_lite::unstable::files::temporary;

/// A file that is not yet whole.
pub(super) struct Partial {
    pub path: PathBuf,
    pub file: File,
    /// Of what is there.
    pub hash: Hash,
    pub done: u64,
    pub total: Option<u64>,
}

impl Partial {
    /// The file that an earlier run left, or a new one.
    pub fn open(path: &Path, total: Option<u64>) -> Result<Self> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| unwritable(path, &e))?;
        let mut partial = Self {
            path: path.to_owned(),
            file,
            hash: Hash::default(),
            done: 0,
            total,
        };
        let mut done = 0;
        feed(&mut partial.hash, &mut partial.file, |bytes| done += bytes)
            .map_err(|e| Error::io("cannot read", path, e))?;
        partial.done = done;
        if total.is_some_and(|total| done > total) {
            partial.restart()?;
        }
        Ok(partial)
    }

    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.map_err(|e| unwritable(&self.path, &e))?;
        self.hash.update(bytes);
        self.done += bytes.len() as u64;
        Ok(())
    }

    pub fn restart(&mut self) -> Result<()> {
        let emptied = self
            .file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|e| unwritable(&self.path, &e))?;
        self.hash = Hash::default();
        self.done = 0;
        Ok(())
    }
}

impl Repo {
    /// Takes the lock of a file, as the hub's own library does, or waits for it after a call of
    /// `waiting`.
    pub fn lock(&self, etag: &str, waiting: impl FnOnce()) -> Result<File> {
        let path = self.locks.join(format!("{etag}.lock"));
        std::fs::create_dir_all(&self.locks).map_err(|e| unwritable(&self.locks, &e))?;
        let file = lock::open(&path).map_err(|e| unwritable(&path, &e))?;
        lock::wait_for(&file, waiting).unwrap_or_else(|e| log::debug!("cannot lock {}: {e}", path.display()));
        Ok(file)
    }

    /// Gives `blob` its name in a version.
    pub fn link(&self, commit: &str, name: &str, blob: &Path) -> Result<PathBuf> {
        let path = self.folder.join("snapshots").join(commit).join(name);
        let folder = path.parent().unwrap_or(&path);
        std::fs::create_dir_all(folder).map_err(|e| unwritable(folder, &e))?;
        let same = |path: &Path| {
            std::fs::canonicalize(path)
                .ok()
                .zip(std::fs::canonicalize(blob).ok())
        };
        if same(&path).is_some_and(|(there, blob)| there == blob) {
            return Ok(path);
        }
        // A link cannot replace another, so it is made under another name. A killed process may
        // have left that.
        let _turn = self.lock("links", || ())?;
        let beside = folder.join(".tlite-link");
        let _left = std::fs::remove_file(&beside);
        let up = "../".repeat(name.split('/').count() + 1);
        let file = blob.file_name().unwrap_or_default();
        let target = Path::new(&up).join("blobs").join(file);
        link_file(&target, blob, &beside)
            .and_then(|()| std::fs::rename(&beside, &path))
            .map_err(|e| unwritable(&path, &e))?;
        Ok(path)
    }

    /// Makes `commit` the present version.
    pub fn set_present(&self, commit: &str) -> Result<()> {
        let path = self.folder.join("refs").join(REVISION);
        if read_config(&path).is_ok_and(|text| text.trim_ascii() == commit.as_bytes()) {
            return Ok(());
        }
        let folder = self.folder.join("refs");
        std::fs::create_dir_all(&folder)
            .and_then(|()| temporary::create(&folder, 0o644))
            .and_then(|mut file| {
                file.write_all(commit.as_bytes())?;
                file.persist(&path).map(drop).map_err(|e| e.error)
            })
            .map_err(|e| unwritable(&path, &e))
    }
}

#[cfg(unix)]
fn link_file(target: &Path, _: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Elsewhere links may need rights that a user has not; a hard link does as well.
#[cfg(not(unix))]
fn link_file(_: &Path, blob: &Path, link: &Path) -> std::io::Result<()> {
    std::fs::hard_link(blob, link).or_else(|_| std::fs::copy(blob, link).map(drop))
}

pub(super) fn unwritable(path: &Path, e: &std::io::Error) -> Error {
    let what = format!(
        "cannot write {}: {e}; to download to another folder, set HF_HOME",
        path.display()
    );
    Error::other(Stage::Download, what).of_kind(transformer_lite::unstable::error::ErrorKind::Io)
}
