//! Output folders that appear complete or not at all.

use crate::lock;
use std::fs::File;
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::temporary::{Claim, abandoned, claim};

/// Prefixes of the names of temporary folders: of conversions,
pub const CONVERT: &str = ".convert-";
/// of conversions back to floats,
pub const DEQUANTIZE: &str = ".dequantize-";
/// of quantization to 8-bit integers,
pub const INT8: &str = ".int8-";
/// and of quantization of weights, which can resume.
pub const QUANTIZE: &str = ".quantize-";

/// The lock file in a temporary folder.
const LOCK: &str = "tlite.lock";
/// The folder in a temporary folder that becomes the output.
const RESULT: &str = "model";
/// How many times a temporary folder is made that other processes remove.
const ATTEMPTS: usize = 100;
/// How many times, with pauses, a lock is tried: others who sweep hold it for a moment.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// A temporary folder beside an output, whose folder [`NewFolder::path`] becomes the output once it
/// is complete. It holds a lock, so no other process writes the same output meanwhile.
///
/// If it is dropped before [`NewFolder::commit`], it is removed with its contents, unless it was
/// made by [`NewFolder::resume`]. If the process is killed, the next run beside it removes or
/// resumes it.
#[derive(Debug)]
pub struct NewFolder {
    output: PathBuf,
    replace: bool,
    temporary: PathBuf,
    result: PathBuf,
    keep: bool,
    /// `None` on a file system without locks.
    _lock: Option<File>,
}

impl NewFolder {
    /// Creates the temporary folder of `output`: `prefix` plus the output's name. What killed
    /// processes left in the parent folder is removed first.
    ///
    /// `output` must not exist or must be an empty folder, and its parent folder must exist.
    /// Errors: the output exists ([`Error::is_usage`]); another process writes it
    /// ([`ErrorKind::Busy`]); the folder cannot be created.
    pub fn create(output: &Path, prefix: &str) -> Result<Self> {
        let mut new = Self::resume(output, prefix)?;
        new.keep = false;
        Ok(new)
    }

    /// Like [`NewFolder::create`], but leaves the temporary folder in place when it is dropped, for
    /// the next run; see [`NewFolder::discard`]. What an earlier run left there stays, except for
    /// [`NewFolder::path`], which is empty.
    pub fn resume(output: &Path, prefix: &str) -> Result<Self> {
        let replace = check(output)?;
        let temporary = Self::unfinished(output, prefix).ok_or_else(|| {
            let option = format!("output {}", output.display());
            Error::usage(option, "has no file name; give the path of a folder")
        })?;
        sweep(parent(output));
        let lock = lock(&temporary, output)?;
        let result = temporary.join(RESULT);
        match std::fs::remove_dir_all(&result) {
            Err(e) if e.kind() != NotFound => return Err(Error::io("cannot remove", &result, e)),
            _ => {}
        }
        std::fs::create_dir(&result).map_err(|e| Error::io("cannot create", &result, e))?;
        Ok(Self {
            output: output.to_owned(),
            replace,
            temporary,
            result,
            keep: true,
            _lock: lock,
        })
    }

    /// The temporary folder of `output`; `None` if `output` has no file name.
    pub fn unfinished(output: &Path, prefix: &str) -> Option<PathBuf> {
        let mut temporary = std::ffi::OsString::from(prefix);
        temporary.push(output.file_name()?);
        Some(output.with_file_name(temporary))
    }

    /// The folder that becomes the output.
    pub fn path(&self) -> &Path {
        &self.result
    }

    /// The temporary folder, for files that do not become part of the output.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Another name for the output, in the same folder as before. Errors as of
    /// [`NewFolder::create`].
    pub fn rename_output(&mut self, output: PathBuf) -> Result<()> {
        self.replace = check(&output)?;
        self.output = output;
        Ok(())
    }

    /// Removes the temporary folder with its contents.
    pub fn discard(mut self) {
        self.keep = false;
    }

    /// Flushes the result to disk, renames it to the output and removes the rest.
    pub fn commit(self) -> Result<()> {
        synced(&self.result)?;
        if self.replace {
            std::fs::remove_dir(&self.output).map_err(|e| Error::io("cannot replace", &self.output, e))?;
        }
        std::fs::rename(&self.result, &self.output).map_err(|e| match std::fs::read_dir(&self.output) {
            Ok(_) => {
                let what = "another run has written this folder in the meantime; its result is kept";
                let e = std::io::Error::new(e.kind(), what);
                Error::io("cannot move the result to", &self.output, e)
            }
            Err(_) => Error::io("cannot move the result to", &self.output, e),
        })?;
        let synced = synced(parent(&self.output));
        self.discard();
        synced
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.keep {
            remove(&self.temporary);
        }
    }
}

/// Creates the folder `temporary` of `output` and takes its lock.
fn lock(temporary: &Path, output: &Path) -> Result<Option<File>> {
    let path = temporary.join(LOCK);
    let mut tries = 0;
    for _ in 0..ATTEMPTS {
        match std::fs::create_dir(temporary) {
            Err(e) if e.kind() != AlreadyExists => {
                let e = match e.kind() {
                    NotFound => std::io::Error::new(NotFound, "there is no such folder; create it first"),
                    _ => e,
                };
                return Err(Error::io("cannot create a folder in", parent(output), e));
            }
            _ => {}
        }
        let file = match lock::open(&path) {
            // Another process sweeps.
            Err(e) if e.kind() == NotFound => continue,
            file => file.map_err(|e| Error::io("cannot write", &path, e))?,
        };
        match claim(&file, &path) {
            Ok(Claim::Held) => return Ok(Some(file)),
            Ok(Claim::Gone) => {}
            Ok(Claim::Taken) if tries < TRIES => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            Ok(Claim::Taken) => {
                let what = "another run is writing this output; wait for it or choose another output";
                return Err(Error::file(Stage::Convert, output, what).of_kind(ErrorKind::Busy));
            }
            Err(e) => {
                log::debug!("no lock {}: {e}", path.display());
                return Ok(None);
            }
        }
    }
    let e = std::io::Error::from(NotFound);
    Err(Error::io("cannot create", &path, e))
}

/// Removes the temporary folders that killed processes left in `folder`, for any output. Those of
/// quantization stay while they can be resumed. What cannot be removed stays.
pub fn sweep(folder: &Path) {
    for item in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (item.file_name(), item.path());
        let Some(name) = name.to_str() else { continue };
        let ours = |name: &str| {
            [CONVERT, DEQUANTIZE, INT8, QUANTIZE]
                .iter()
                .any(|p| name.starts_with(p))
        };
        if name.strip_prefix(REMOVED).is_some_and(ours) {
            remove(&path);
        } else if ours(name) && !path.join(LOCK).exists() {
            // A process was killed before it made the lock, or after it removed it.
            let _in_use = std::fs::remove_dir(&path);
        } else if ours(name)
            && let Some(_lock) = abandoned(&path.join(LOCK))
        {
            // An output takes its place before the rest is removed.
            let done = |output| !path.join(RESULT).exists() && check(&folder.join(output)).is_err();
            if name.strip_prefix(QUANTIZE).is_none_or(done) {
                remove(&path);
            }
        }
    }
}

/// Removes a temporary folder, its lock last: a removal that is cut short can be repeated.
fn remove(folder: &Path) {
    let remove = || -> std::io::Result<()> {
        for item in std::fs::read_dir(folder)? {
            let item = item?;
            match item.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(item.path())?,
                false if item.file_name() == LOCK => {}
                false => std::fs::remove_file(item.path())?,
            }
        }
        match std::fs::remove_file(folder.join(LOCK)) {
            Err(e) if e.kind() != NotFound => Err(e),
            _ => std::fs::remove_dir(folder),
        }
    };
    remove().unwrap_or_else(|e| log::debug!("cannot remove {}: {e}", folder.display()));
}

/// How names begin of files and folders that are about to be removed.
pub(crate) const REMOVED: &str = ".removed-";

/// Renames `path` to a hidden name beside it and returns that. Files can then be removed one by one
/// without anybody taking what is left for the whole.
pub fn set_aside(path: &Path) -> std::io::Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().display();
    let aside = path.with_file_name(format!("{REMOVED}{name}-{}-{number}", std::process::id()));
    std::fs::rename(path, &aside).map(|()| aside)
}

/// The folder that holds `output`; a usage error if there is none.
pub(crate) fn folder_of(output: &Path) -> Result<&Path> {
    let folder = parent(output);
    if folder.is_dir() {
        return Ok(folder);
    }
    let what = format!("there is no folder {}", folder.display());
    Err(Error::usage(format!("output {}", output.display()), what))
}

/// The folder that holds `path`.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Flushes the directory entry to disk, on systems that support it.
fn synced(folder: &Path) -> Result<()> {
    #[cfg(unix)]
    std::fs::File::open(folder)
        .and_then(|f| f.sync_all())
        .map_err(|e| Error::io("cannot write", folder, e))?;
    let _ = folder;
    Ok(())
}

/// True if an empty folder has to be replaced; an error if anything else is in the way.
fn check(output: &Path) -> Result<bool> {
    let in_the_way = |what: &str| {
        Err(Error::usage(
            format!("output {}", output.display()),
            format!("{what}; give a folder that does not exist or is empty"),
        ))
    };
    match std::fs::symlink_metadata(output) {
        Err(e) if e.kind() == NotFound => Ok(false),
        Err(e) => Err(Error::io("cannot read", output, e)),
        Ok(meta) if !meta.is_dir() => in_the_way("exists and is not a folder"),
        Ok(_) => {
            let mut entries = std::fs::read_dir(output).map_err(|e| Error::io("cannot read", output, e))?;
            if entries.next().is_some() {
                in_the_way("the folder is not empty")
            } else {
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests;
