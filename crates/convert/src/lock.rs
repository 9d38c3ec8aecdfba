//! Lock files, which processes that work on the same thing share.

use std::fs::{File, TryLockError};
use std::io::Result;
use std::path::Path;

/// Opens the lock file `path`, which is created if it does not exist.
pub fn open(path: &Path) -> Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
}

/// Takes the lock of `file`, or waits for it after a call of `waiting`.
pub fn wait_for(file: &File, waiting: impl FnOnce()) -> Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            waiting();
            file.lock()
        }
        Err(TryLockError::Error(e)) => Err(e),
    }
}
