//! What the library's own tests ask of errors: kinds, names and values, never words.

#[path = "../tests/support/values.rs"]
mod values;

use crate::error::{Error, ErrorKind};
pub use values::{assert_carries, carries};

/// Fails unless the error is of this kind and carries each of `values`.
#[track_caller]
pub fn assert_error(e: &Error, kind: ErrorKind, values: &[&str]) {
    assert_eq!(e.kind(), kind, "{}", e.chain());
    assert_carries(e.chain(), values);
}

/// Fails unless the error is about this option or argument, and carries each of `values`.
#[track_caller]
pub fn assert_usage(e: &Error, option: &str, values: &[&str]) {
    assert!(
        matches!(e, Error::Usage { name, .. } if name == option),
        "{}",
        e.chain()
    );
    assert_carries(e.chain(), values);
}
