//! What the library's own tests ask of errors: kinds, names and values, never words. And of
//! devices: that there are some.

#[cfg(any(feature = "opencl", feature = "wgpu"))]
#[path = "../tests/support/not_tested.rs"]
mod not_tested;
#[path = "../tests/support/values.rs"]
mod values;

#[cfg(any(feature = "opencl", feature = "wgpu"))]
use crate::backend::BackendKind;
use crate::error::{Error, ErrorKind};
pub use values::{assert_carries, assert_error, assert_usage, carries};

/// False where a backend has no device, after a line on standard error that names the test; a
/// failure where `REQUIRE_BACKENDS` names it.
#[cfg(any(feature = "opencl", feature = "wgpu"))]
#[track_caller]
pub fn has_device(kind: BackendKind) -> bool {
    let why = match crate::devices::list(kind) {
        Ok(all) if !all.is_empty() => return true,
        Ok(_) => "the driver lists none".to_owned(),
        Err(e) => e.to_string(),
    };
    assert!(!not_tested::required().contains(&kind.to_string()), "{why}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    not_tested::not_tested(&format!("{test}: no device for backend {kind}: {why}"));
    false
}
