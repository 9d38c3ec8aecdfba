//! Sessions.

use crate::args::object;
use crate::error::guarded;
use crate::generate::TliteMetrics;
use crate::model::TliteModel;
use crate::options::write;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError, TryLockError};
use transformer_lite::{Cancel, Conversation, Error, ErrorKind, Metrics, Result, Stage};

/// A token sequence with its own KV cache. Only one call at a time may use it, except
/// `tlite_cancel` and `tlite_cancel_clear`, which may be called at any time.
pub struct TliteSession {
    pub(crate) conversation: Mutex<Conversation>,
    pub(crate) cancel: Cancel,
    /// Of the last answer.
    pub(crate) metrics: Mutex<Metrics>,
}

/// Creates a session with an empty KV cache, to be freed with `tlite_session_free`, or returns NULL
/// on failure. Sessions share weights and compiled kernels; each allocates its own cache.
///
/// `model` is NULL or from `tlite_model_load` and is not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_new(model: *const TliteModel) -> *mut TliteSession {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let model = unsafe { object("model", model) }?;
        let session = TliteSession {
            conversation: Mutex::new(Conversation::new(model.0.session()?, Vec::new())),
            cancel: Cancel::default(),
            metrics: Mutex::default(),
        };
        Ok(Box::into_raw(Box::new(session)))
    })
}

/// Frees a session. NULL is allowed.
///
/// `session` is NULL or from `tlite_session_new`, is not freed yet, and no other call is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_free(session: *mut TliteSession) {
    guarded((), || {
        if !session.is_null() {
            // SAFETY: the pointer is from `Box::into_raw` and is returned once.
            drop(unsafe { Box::from_raw(session) });
        }
        Ok(())
    });
}

/// Empties the KV cache of a session. Returns 0, or -1 if another call is using the session.
///
/// `session` is NULL or from `tlite_session_new` and is not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_clear(session: *const TliteSession) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let session = unsafe { object("session", session) }?;
        session.with(|c| {
            c.clear();
            Ok(0)
        })
    })
}

/// Stops the answer that the session is generating, within one step. If there is none, the next
/// answer ends before its first token, so a call just before an answer starts is not lost. May be
/// called from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_cancel(session: *const TliteSession) {
    guarded((), || {
        // SAFETY: as the caller promises.
        unsafe { object("session", session) }?.cancel.cancel();
        Ok(())
    });
}

/// Clears a `tlite_cancel` that arrived while no answer was being generated. The end of each answer
/// clears it as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_cancel_clear(session: *const TliteSession) {
    guarded((), || {
        // SAFETY: as the caller promises.
        unsafe { object("session", session) }?.cancel.reset();
        Ok(())
    });
}

/// Writes counts and times of the session's last answer to `metrics`; `size` is `sizeof *metrics`.
/// They are 0 before the first answer. Returns 0, or -1 if the library does not know this size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_metrics(
    session: *const TliteSession,
    metrics: *mut TliteMetrics,
    size: usize,
) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let session = unsafe { object("session", session) }?;
        let found = *session.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as the caller promises.
        unsafe { write("metrics", found.into(), metrics, size) }?;
        Ok(0)
    })
}

impl TliteSession {
    pub(crate) fn set_metrics(&self, metrics: Metrics) {
        *self.metrics.lock().unwrap_or_else(PoisonError::into_inner) = metrics;
    }

    /// Runs `work` with the session's conversation; an error if another call is using it.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Conversation) -> Result<T>) -> Result<T> {
        match self.conversation.try_lock() {
            Ok(mut conversation) => work(&mut conversation),
            Err(TryLockError::WouldBlock) => {
                let used = Error::usage("session", "is in use by another call");
                Err(used.of_kind(ErrorKind::Busy))
            }
            Err(TryLockError::Poisoned(_)) => {
                let what = "the session is unusable after an internal error; free it";
                Err(Error::other(Stage::Run, what))
            }
        }
    }
}
