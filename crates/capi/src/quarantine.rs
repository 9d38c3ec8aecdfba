//! Kernels in quarantine.

use crate::args::{null, text};
use crate::error::{c_text, guarded};
use crate::generate::TliteCallback;
use crate::model::kernel_cache_in;
use std::ffi::{c_char, c_int, c_void};
use transformer_lite::{Error, Stage};

/// Passes a JSON array to `callback`, with `user`: the kernel variants that models loaded with the
/// folder `kernel_cache` do not use because they failed on a device. Each element has `backend`,
/// `device`, `driver` and `kernels`. Each kernel has `variant`, `cause` ("wrong-results",
/// "does-not-build" or "launch-refused"), `why`, and `since`, the time in seconds since 1970. All
/// but wrong results are tried again after 7 days. Returns the number of kernels, or -1 on failure.
///
/// `callback` is called once, and its result is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_quarantine_list(
    kernel_cache: *const c_char,
    callback: TliteCallback,
    user: *mut c_void,
) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let folder = unsafe { text("kernel_cache", kernel_cache) }?;
        let callback = callback.ok_or_else(|| null("callback"))?;
        let lists = kernel_cache_in(folder).quarantined()?;
        let json = serde_json::to_string(&lists)
            .map_err(|e| Error::internal(Stage::Run, format!("the list of kernels: {e}")))?;
        // SAFETY: the text outlives the call; the caller guarantees the rest.
        unsafe { callback(c_text(&json).as_ptr(), json.len(), user) };
        Ok(count(lists.iter().map(|list| list.kernels.len()).sum()))
    })
}

/// Ends the quarantine of all kernel variants in the folder `kernel_cache`: models loaded later try
/// them again. Returns their number, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_quarantine_clear(kernel_cache: *const c_char) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let folder = unsafe { text("kernel_cache", kernel_cache) }?;
        kernel_cache_in(folder).clear_quarantined().map(count)
    })
}

fn count(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}
