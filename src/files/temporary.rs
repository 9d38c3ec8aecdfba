//! Temporary files beside their final places, and locks that tell whether their process lives.
//!
//! A lock ends with its process, however that ends. Whoever finds a temporary file or folder whose
//! lock is free may remove it.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tempfile::NamedTempFile;

const PREFIX: &str = ".tlite-";
const SUFFIX: &str = ".tmp";
/// Random characters between prefix and suffix.
const RANDOM: usize = 6;
/// On a file system without locks, what is older than this counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// The state of a lock file after [`claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The lock is held until the file is closed.
    Held,
    /// Another process holds the lock.
    Taken,
    /// The lock is held, but another process has removed the file; open it again.
    Gone,
}

/// Takes the lock of `file`, which was opened as `path`, without waiting. An error if the file
/// system has no locks.
pub fn claim(file: &File, path: &Path) -> Result<Claim> {
    match file.try_lock() {
        Ok(()) if is_at(file, path) => Ok(Claim::Held),
        Ok(()) => Ok(Claim::Gone),
        Err(TryLockError::WouldBlock) => Ok(Claim::Taken),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Whether `path` still names `file`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let both = file
        .metadata()
        .and_then(|a| Ok((a, std::fs::symlink_metadata(path)?)));
    both.is_ok_and(|(a, b)| (a.dev(), a.ino()) == (b.dev(), b.ino()))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Whether no process uses the lock file `path` any more; returns it with its lock. Without locks,
/// its age decides.
pub fn abandoned(path: &Path) -> Option<File> {
    // Some file systems lock only files that are open for writing.
    let file = File::options().read(true).write(true).open(path).ok()?;
    let free = match claim(&file, path) {
        Ok(claim) => claim == Claim::Held,
        Err(_) => {
            let changed = file.metadata().and_then(|m| m.modified()).ok();
            changed.is_some_and(|t| t.elapsed().is_ok_and(|age| age > ABANDONED))
        }
    };
    free.then_some(file)
}

/// Creates a locked temporary file in `folder`; `mode` is for Unix, less the umask. It is removed
/// when dropped. A process's first call for a folder removes what killed processes left there.
pub fn create(folder: &Path, mode: u32) -> Result<NamedTempFile> {
    sweep_once(folder);
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(mode));
    }
    let _ = mode;
    loop {
        let file = builder.tempfile_in(folder)?;
        match claim(file.as_file(), file.path()) {
            Ok(Claim::Held) | Err(_) => return Ok(file),
            // A sweep of another process came between creation and lock.
            Ok(Claim::Taken | Claim::Gone) => {}
        }
    }
}

fn sweep_once(folder: &Path) {
    static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut swept = SWEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if swept.insert(folder.to_owned()) {
        drop(swept);
        sweep(folder);
    }
}

/// Removes the temporary files that killed processes left in `folder`. What cannot be removed
/// stays.
pub fn sweep(folder: &Path) {
    for item in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = item.file_name();
        let random = name
            .to_str()
            .and_then(|n| n.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        let ours = random.is_some_and(|r| r.len() == RANDOM && r.bytes().all(|b| b.is_ascii_alphanumeric()));
        if !ours || !item.file_type().is_ok_and(|t| t.is_file()) {
            continue;
        }
        if let Some(_lock) = abandoned(&item.path()) {
            let removed = std::fs::remove_file(item.path());
            removed.unwrap_or_else(|e| log::debug!("cannot remove {}: {e}", item.path().display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap().flatten();
        names.map(|i| i.file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn only_abandoned_files_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let used = create(dir.path(), 0o600).unwrap();
        let left = create(dir.path(), 0o600).unwrap().keep().unwrap();
        drop(left.0);
        for foreign in [".tlite-notes", ".tlite-.tmp", "x.tmp"] {
            std::fs::write(dir.path().join(foreign), "").unwrap();
        }
        std::fs::create_dir(dir.path().join(".tlite-folder.tmp")).unwrap();
        sweep(dir.path());
        assert!(used.path().exists() && !left.1.exists());
        assert_eq!(names(dir.path()).len(), 5, "{:?}", names(dir.path()));
    }

    #[test]
    fn a_first_file_sweeps_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".tlite-abc123.tmp"), "half").unwrap();
        let file = create(dir.path(), 0o600).unwrap();
        assert_eq!(names(dir.path()).len(), 1);
        drop(file);
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn writers_and_sweeps_at_once_lose_no_file() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for n in 0..4 {
                let dir = dir.path();
                scope.spawn(move || {
                    for i in 0..50 {
                        let file = create(dir, 0o600).unwrap();
                        sweep(dir);
                        file.persist(dir.join(format!("{n}-{i}"))).unwrap();
                    }
                });
            }
        });
        assert_eq!(names(dir.path()).len(), 200);
    }

    #[test]
    fn a_lock_has_one_owner_and_a_removed_file_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = File::create(&path).unwrap();
        assert_eq!(claim(&first, &path).unwrap(), Claim::Held);
        let second = File::open(&path).unwrap();
        assert_eq!(claim(&second, &path).unwrap(), Claim::Taken);
        assert!(abandoned(&path).is_none());
        drop(first);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(claim(&second, &path).unwrap(), Claim::Gone);
        std::fs::write(&path, "").unwrap();
        assert!(abandoned(&path).is_some());
    }
}
