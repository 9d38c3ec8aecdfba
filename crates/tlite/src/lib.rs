//! The command `tlite` as a library: its commands, and the reports that they print.
//!
//! * [`cli`]: options, commands and their output;
//! * [`inspect`]: what a model needs to run, from its file alone;
//! * [`roofline`]: lower bounds on run time;
//! * [`files`]: tensors and pictures from files.
#![warn(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unreachable,
    clippy::unwrap_used
)]
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]
pub mod cli;
pub mod files;
pub mod inspect;
pub mod roofline;
