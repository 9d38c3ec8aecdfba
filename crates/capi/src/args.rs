//! Arguments of C callers, checked.

use std::ffi::{CStr, c_char};
use transformer_lite::options::Values;
use transformer_lite::{Error, Result};

pub(crate) fn null(what: &str) -> Error {
    Error::usage(what, "is NULL")
}

/// The object at a caller's pointer; an error for NULL.
///
/// # Safety
///
/// `pointer` is NULL or points to a live object, which is not changed while the result lives.
pub(crate) unsafe fn object<'a, T>(what: &str, pointer: *const T) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// The text at a caller's pointer; an error for NULL or invalid UTF-8.
///
/// # Safety
///
/// `pointer` is NULL or points to a string that ends with a 0 and is not changed during the
/// result's lifetime.
pub(crate) unsafe fn text<'a>(what: &str, pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: it is not NULL, the rest is as the caller promises.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes
        .to_str()
        .map_err(|e| Error::usage(what, format!("is not UTF-8 at byte {}", e.valid_up_to())))
}

/// Like [`text`], but `None` for NULL.
///
/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn text_or_none<'a>(what: &str, pointer: *const c_char) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    unsafe { text(what, pointer) }.map(Some)
}

/// The JSON object at a caller's pointer; an empty one for NULL.
///
/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn json_object(what: &str, pointer: *const c_char) -> Result<Values> {
    // SAFETY: as the caller promises.
    let text = unsafe { text_or_none(what, pointer) }?;
    let object = text.map_or_else(|| Ok(Values::new()), serde_json::from_str);
    object.map_err(|e| Error::usage(what, format!("not a JSON object: {e}")))
}

/// The array at a caller's pointer. NULL is an empty array, or an error if `count` is not 0.
///
/// # Safety
///
/// `pointer` is NULL or points to `count` elements that are not changed while the result lives.
pub(crate) unsafe fn array<'a, T>(what: &str, pointer: *const T, count: usize) -> Result<&'a [T]> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: it is not NULL, the rest is as the caller promises.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}
