//! Whole models on the host and on every device, by the library, by C and by the command; and the
//! command on a fake driver.
//!
//! A trial is named as the module that adds it and what it is about, such as
//! `api::sessions@opencl`.

#![expect(clippy::result_large_err, reason = "the library's error, on no hot path")]

mod api;
mod cache;
mod checkpoints;
mod faults;
#[cfg(target_os = "linux")]
mod hostile;
mod models;
mod older;
mod phone_path;

use std::process::ExitCode;

fn main() -> ExitCode {
    tlite_testing::suite::run(&[
        ("api", api::trials),
        ("cache", cache::trials),
        ("checkpoints", checkpoints::trials),
        ("faults", faults::trials),
        #[cfg(target_os = "linux")]
        ("hostile", hostile::trials),
        ("models", models::trials),
        ("older", older::trials),
        ("phone_path", phone_path::trials),
    ])
}
