//! Delivers the library's log lines to a C callback.

use crate::error::{c_text, guarded};
use ::log::{Level, LevelFilter, Log, Metadata, Record};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{OnceLock, PoisonError, RwLock};
use transformer_lite::{Error, Result, Stage};

type Callback = unsafe extern "C" fn(TliteLogLevel, *const c_char, *mut c_void);

struct Listener {
    callback: Callback,
    user: *mut c_void,
}

// SAFETY: the creator promises that the callback may be called with the pointer from any thread,
// also from several at once.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

impl Listener {
    /// # Safety
    ///
    /// `callback` may be called with `user` from any thread, also from several at once, until the
    /// listener is dropped.
    unsafe fn new(callback: Callback, user: *mut c_void) -> Self {
        Self { callback, user }
    }

    fn report(&self, level: Level, text: &str) {
        let level = match level {
            Level::Error => TliteLogLevel::Error,
            Level::Warn => TliteLogLevel::Warning,
            Level::Info | Level::Debug | Level::Trace => TliteLogLevel::Info,
        };
        let text = c_text(text);
        // SAFETY: the text outlives the call and ends with a 0; the rest is as promised to `new`.
        unsafe { (self.callback)(level, text.as_ptr(), self.user) };
    }
}

static LISTENER: RwLock<Option<Listener>> = RwLock::new(None);

/// The logger of a process whose program is not written in Rust.
struct ToListener;

impl Log for ToListener {
    /// Accepts this library's lines up to `Info`, and only errors of other crates.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let own = ["transformer_lite", "tlite_c"]
            .iter()
            .any(|name| metadata.target().starts_with(name));
        metadata.level() <= if own { Level::Info } else { Level::Error }
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata())
            && let Some(listener) = &*LISTENER.read().unwrap_or_else(PoisonError::into_inner)
        {
            listener.report(record.level(), &record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Replaces the listener. When this returns, the callback of the previous one is no longer running.
/// An error if the process has another logger.
fn set(listener: Option<Listener>) -> Result<()> {
    static OURS: OnceLock<bool> = OnceLock::new();
    let level = match listener {
        Some(_) => LevelFilter::Info,
        None => LevelFilter::Off,
    };
    if listener.is_some() && !*OURS.get_or_init(|| ::log::set_logger(&ToListener).is_ok()) {
        return Err(Error::other(
            Stage::Run,
            "the program has already set its own logger",
        ));
    }
    *LISTENER.write().unwrap_or_else(PoisonError::into_inner) = listener;
    if OURS.get() == Some(&true) {
        ::log::set_max_level(level);
    }
    Ok(())
}

/// Severity of a log line.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TliteLogLevel {
    /// A failure that no call returns as its own error.
    Error = 1,
    /// Something differs from what was requested or from the best case: notes of loading,
    /// rejections by drivers.
    Warning = 2,
    /// Information, such as memory use.
    Info = 3,
}

/// Receives a line of the log, in UTF-8 and valid only during the call. It may be called from any
/// thread and from several at once. It must return normally and must not call any function of this
/// library.
pub type TliteLogCallback =
    Option<unsafe extern "C" fn(level: TliteLogLevel, text: *const c_char, user: *mut c_void)>;

/// Sends log lines of all threads to `callback`, together with `user`: warnings, and notes of
/// loading a model about what differs from the options. NULL stops this. When this function
/// returns, the previous callback is no longer running. Returns 0, or -1 if a Rust program has set
/// its own logger, which then receives the lines.
///
/// `callback` may be called with `user` until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_set_log(callback: TliteLogCallback, user: *mut c_void) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let listener = callback.map(|callback| unsafe { Listener::new(callback, user) });
        set(listener).map(|()| 0)
    })
}
