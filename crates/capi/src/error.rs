//! Errors: what the last call of a thread returned.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use transformer_lite::{Error, ErrorKind, Result};

/// Kind of failure.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TliteError {
    /// No call on this thread has failed.
    #[default]
    None = 0,
    /// A failure without a code of its own.
    Other = 1,
    /// An argument or an option has an invalid value.
    Usage = 2,
    /// A prompt or conversation has more tokens than the context holds.
    ContextExceeded = 3,
    /// The model has no chat template, so it cannot answer a conversation.
    NoTemplate = 4,
    /// The chat template rejected the messages.
    TemplateRefused = 5,
    /// A token ID is outside the model's vocabulary.
    TokenOutOfRange = 6,
    /// The prompt cache file is damaged or is not a prompt cache.
    PromptCacheDamaged = 7,
    /// The prompt cache was written by another model or with another KV cache type.
    PromptCacheMismatch = 8,
    /// No driver was found, or no device has the given name.
    NoDevice = 9,
    /// A device or the host ran out of memory.
    OutOfMemory = 10,
    /// The device was lost. Models and sessions on it can no longer be used.
    DeviceLost = 11,
    /// The operating system refused an operation on a file.
    Io = 12,
    /// A file's content is not valid for its format.
    InvalidFile = 13,
    /// The work was interrupted: by a limit of time, or because a callback returned a value other
    /// than 0.
    Interrupted = 14,
    /// A bug in the library.
    Internal = 15,
    /// Valid, but not implemented: an operator, a tensor type, an architecture.
    Unsupported = 16,
    /// Sizes or element types do not fit one another, or the model's.
    ShapeMismatch = 17,
    /// An input, the size of an open dimension or the elements of a weight are not given.
    MissingInput = 18,
    /// Another call or process is using the session, file or folder.
    Busy = 19,
    /// A model or a file exceeds one of the limits.
    LimitExceeded = 20,
    /// The model computed logits that are NaN or infinite.
    NotFinite = 21,
}

impl From<ErrorKind> for TliteError {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Usage => Self::Usage,
            ErrorKind::ContextExceeded => Self::ContextExceeded,
            ErrorKind::NoTemplate => Self::NoTemplate,
            ErrorKind::TemplateRefused => Self::TemplateRefused,
            ErrorKind::TokenOutOfRange => Self::TokenOutOfRange,
            ErrorKind::PromptCacheDamaged => Self::PromptCacheDamaged,
            ErrorKind::PromptCacheMismatch => Self::PromptCacheMismatch,
            ErrorKind::NoDevice => Self::NoDevice,
            ErrorKind::OutOfMemory => Self::OutOfMemory,
            ErrorKind::DeviceLost => Self::DeviceLost,
            ErrorKind::Io => Self::Io,
            ErrorKind::InvalidFile => Self::InvalidFile,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::ShapeMismatch => Self::ShapeMismatch,
            ErrorKind::MissingInput => Self::MissingInput,
            ErrorKind::Busy => Self::Busy,
            ErrorKind::NotFinite => Self::NotFinite,
            ErrorKind::LimitExceeded => Self::LimitExceeded,
            ErrorKind::Interrupted => Self::Interrupted,
            ErrorKind::Internal => Self::Internal,
            // Kinds that have no code yet, too.
            _ => Self::Other,
        }
    }
}

thread_local! {
    pub(crate) static LAST_ERROR: RefCell<(TliteError, CString)> = RefCell::default();
}

/// A text for C, cut at its first zero byte.
pub(crate) fn c_text(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().take_while(|b| *b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

pub(crate) fn remember(code: TliteError, message: &str) {
    let message = c_text(message);
    // A thread that is ending may have destroyed its value; the message is then lost.
    let _lost = LAST_ERROR.try_with(|last| last.replace((code, message)));
}

/// Code and message of the last failed call of this thread.
pub(crate) fn last() -> (TliteError, String) {
    let last = LAST_ERROR.try_with(|last| last.borrow().clone());
    let (code, message) = last.unwrap_or_default();
    (code, message.to_string_lossy().into_owned())
}

fn panicked(payload: &(dyn Any + Send)) -> String {
    let words = payload.downcast_ref::<&str>().copied();
    let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("internal error: {}", words.unwrap_or("a panic without a message"))
}

/// What a call returns, or remembers, after `callback` returned a value other than 0.
pub(crate) fn stopped(callback: &str, value: c_int) -> Error {
    Error::usage(callback, format!("returned {value}, which ended the work")).of_kind(ErrorKind::Interrupted)
}

/// Returns the result of `work`, or `failed` after an error or a panic, whose message is recorded.
pub(crate) fn guarded<T>(failed: T, work: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(e)) => {
            remember(e.kind().into(), &e.chain());
            failed
        }
        Err(payload) => {
            remember(TliteError::Internal, &panicked(payload.as_ref()));
            failed
        }
    }
}

/// The version of the library, such as "0.1.0". The pointer stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The error message of the last failed call on this thread, in UTF-8; empty if none has failed. It
/// stays valid until the next failed call on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_last_error() -> *const c_char {
    // A thread that is ending may have destroyed its value.
    let message = LAST_ERROR.try_with(|last| last.try_borrow().map(|l| l.1.as_ptr()));
    match message {
        Ok(Ok(pointer)) => pointer,
        _ => c"".as_ptr(),
    }
}

/// The kind of failure that `tlite_last_error` describes, or `TLITE_ERROR_NONE`. Later versions may
/// add codes.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_last_error_code() -> TliteError {
    let code = LAST_ERROR.try_with(|last| last.try_borrow().map(|l| l.0));
    code.map_or(TliteError::None, |code| code.unwrap_or_default())
}
