//! Reports progress to a callback, which may end the work.

use crate::error::stopped;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use transformer_lite::unstable::quota;
use transformer_lite::{Cancel, Error, Result};

/// Receives progress: `done` of `total`, where `what` names the unit: "kernels" that are ready, or
/// "bytes" that are converted, counted as 32-bit floats. `what` is valid only during the call.
/// Returns 0 to continue. Any other value ends the work as soon as possible, and the call that
/// reports progress then fails with `TLITE_ERROR_INTERRUPTED`. It must return normally (no
/// `longjmp`, no exception).
pub type TliteProgressCallback =
    Option<unsafe extern "C" fn(what: *const c_char, done: u64, total: u64, user: *mut c_void) -> c_int>;

/// A callback, and what it wants.
pub(crate) struct Progress {
    callback: TliteProgressCallback,
    user: *mut c_void,
    returned: Cell<c_int>,
    cancel: Cancel,
}

impl Progress {
    /// # Safety
    ///
    /// `callback` may be called with `user` until the progress is dropped.
    pub(crate) unsafe fn new(callback: TliteProgressCallback, user: *mut c_void) -> Self {
        Self {
            callback,
            user,
            returned: Cell::new(0),
            cancel: Cancel::default(),
        }
    }

    /// A usage error if there is a callback.
    pub(crate) fn refuse(&self, why: &str) -> Result<()> {
        match self.callback {
            Some(_) => Err(Error::usage("on_progress", format!("must be NULL: {why}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn report(&self, what: &CStr, done: u64, total: u64) {
        if let (Some(callback), 0) = (self.callback, self.returned.get()) {
            // SAFETY: the text outlives the call; the rest is as promised to `new`.
            self.returned
                .set(unsafe { callback(what.as_ptr(), done, total, self.user) });
            if self.returned.get() != 0 {
                self.cancel.cancel();
            }
        }
    }

    /// The result of `work`, during which the callback may end the calls of this thread; an error
    /// if it did.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _entered = quota::cancellable(&self.cancel);
        let result = work();
        match self.returned.get() {
            0 => result,
            value => Err(stopped("on_progress", value)),
        }
    }
}
