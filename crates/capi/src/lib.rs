//! The C library; its header is `include/tlite.h`.
//!
//! Every function may be called from any thread. NULL pointers are checked, and no panic crosses
//! the boundary. A failed call returns an error value and records a message and a code, which
//! [`tlite_last_error`](error::tlite_last_error) and
//! [`tlite_last_error_code`](error::tlite_last_error_code) return. These two and the log callback
//! ([`tlite_set_log`](log::tlite_set_log)) are the only global state.
//!
//! Option structs begin with their size, so new members can be added at the end.
#![warn(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unreachable,
    clippy::unwrap_used,
    missing_docs
)]
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header copies these comments; it states the callers' duties in plain sentences"
)]

mod args;
pub mod batch;
pub mod convert;
pub mod error;
pub mod generate;
pub mod log;
pub mod model;
mod options;
pub mod progress;
pub mod quarantine;
pub mod runner;
pub mod session;
#[cfg(test)]
mod tests;
