//! Output folders that appear complete or not at all.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use transformer_lite::unstable::error::{Error, Result};

/// A temporary folder that replaces the output folder once it is complete. If it is dropped before
/// [`NewFolder::commit`], it is removed with its contents, unless it was made by
/// [`NewFolder::resume`].
#[derive(Debug)]
pub struct NewFolder {
    output: PathBuf,
    replace: bool,
    temporary: Temporary,
}

#[derive(Debug)]
enum Temporary {
    Fresh(tempfile::TempDir),
    Resumed(PathBuf),
}

impl NewFolder {
    /// Creates an empty temporary folder next to `output`, with a name that starts with `prefix`.
    ///
    /// `output` must not exist or must be an empty folder, and its parent folder must exist.
    /// Errors: the output exists ([`Error::is_usage`]), or the folder cannot be created.
    pub fn create(output: &Path, prefix: &str) -> Result<Self> {
        let replace = check(output)?;
        let parent = parent(output);
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o777));
        }
        let temporary = builder
            .tempdir_in(parent)
            .map_err(|e| Error::io("cannot create a folder in", parent, e))?;
        Ok(Self {
            output: output.to_owned(),
            replace,
            temporary: Temporary::Fresh(temporary),
        })
    }

    /// Like [`NewFolder::create`], but names the folder `prefix` plus the output's name, so that a
    /// later run finds it. Dropping does not remove it; see [`NewFolder::discard`].
    pub fn resume(output: &Path, prefix: &str) -> Result<Self> {
        let replace = check(output)?;
        let temporary = Self::resumed(output, prefix).ok_or_else(|| {
            let option = format!("output {}", output.display());
            Error::usage(option, "has no file name; give the path of a folder")
        })?;
        match std::fs::create_dir(&temporary) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(Error::io("cannot create a folder in", parent(output), e))
            }
            _ => Ok(Self {
                output: output.to_owned(),
                replace,
                temporary: Temporary::Resumed(temporary),
            }),
        }
    }

    /// The temporary folder of [`NewFolder::resume`]; `None` if `output` has no file name.
    pub fn resumed(output: &Path, prefix: &str) -> Option<PathBuf> {
        let mut temporary = std::ffi::OsString::from(prefix);
        temporary.push(output.file_name()?);
        Some(output.with_file_name(temporary))
    }

    pub fn path(&self) -> &Path {
        match &self.temporary {
            Temporary::Fresh(t) => t.path(),
            Temporary::Resumed(path) => path,
        }
    }

    /// Another name for the output, in the same folder as before. Errors as of
    /// [`NewFolder::create`].
    pub fn rename_output(&mut self, output: PathBuf) -> Result<()> {
        self.replace = check(&output)?;
        self.output = output;
        Ok(())
    }

    /// Removes the temporary folder with its contents.
    pub fn discard(self) -> Result<()> {
        let path = self.path();
        std::fs::remove_dir_all(path).map_err(|e| Error::io("cannot remove", path, e))
    }

    /// Creates an empty folder `name` in the temporary folder and replaces one that an earlier run
    /// left; see [`NewFolder::commit_part`].
    pub fn empty_part(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        match std::fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("cannot remove", &path, e));
            }
            _ => {}
        }
        std::fs::create_dir(&path).map_err(|e| Error::io("cannot create", &path, e))?;
        Ok(path)
    }

    /// Flushes the folder to disk and renames it to the output. After an error it stays where it
    /// was.
    pub fn commit(self) -> Result<()> {
        self.take_place(self.path())?;
        if let Temporary::Fresh(temporary) = self.temporary {
            // The folder has moved; there is nothing to delete.
            let _moved = temporary.keep();
        }
        Ok(())
    }

    /// Renames the folder `name` in the temporary one to the output, like [`NewFolder::commit`],
    /// and removes the rest.
    pub fn commit_part(self, name: &str) -> Result<()> {
        self.take_place(&self.path().join(name))?;
        self.discard()
    }

    fn take_place(&self, folder: &Path) -> Result<()> {
        synced(folder)?;
        if self.replace {
            std::fs::remove_dir(&self.output).map_err(|e| Error::io("cannot replace", &self.output, e))?;
        }
        std::fs::rename(folder, &self.output).map_err(|e| match std::fs::read_dir(&self.output) {
            Ok(_) => {
                let what = "another run has written this folder in the meantime; its result is kept";
                let e = std::io::Error::new(e.kind(), what);
                Error::io("cannot move the result to", &self.output, e)
            }
            Err(_) => Error::io("cannot move the result to", &self.output, e),
        })?;
        synced(parent(&self.output))
    }
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
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
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
