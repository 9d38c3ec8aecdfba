//! An HTTP server for language models, with the routes of the OpenAI API.
//!
//! [`wire`] has the types of requests and responses and their conversion, without HTTP. With the
//! feature `http`, on by default, [`serve`] answers requests until it is stopped.
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
#[cfg(feature = "http")]
mod http;
pub mod wire;

#[cfg(feature = "http")]
pub use http::{Address, Bound, Engine, ModelSource, ServeOptions, Stop, bind, serve};
