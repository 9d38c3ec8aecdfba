//! The command `tlite`: parses, runs, reports errors. Exit code 0 done, 1 failed, 2 wrong usage, 130 interrupted.
#![warn(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unreachable,
    clippy::unwrap_used
)]

use clap::Parser;
use std::io::Write as _;
use std::process::ExitCode;
use transformer_lite::backend::NOTE;
use transformer_lite::cli;
use transformer_lite::error::Error;

/// Without a session's runtime folder, Mesa's device-select layer complains on standard error of every program. The
/// layer only reorders devices, which `--device` does here.
fn silence_device_select() {
    let set = |name| std::env::var_os(name).is_some();
    if !set("XDG_RUNTIME_DIR") && !set("NODEVICE_SELECT") {
        // SAFETY: called first in `main`, before any other thread exists that could read the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

fn main() -> ExitCode {
    silence_device_select();
    #[cfg(feature = "opencl")]
    transformer_lite::backend::opencl::name_library();
    env_logger::Builder::from_env(
        env_logger::Env::default().default_filter_or("error,transformer_lite=warn"),
    )
    .format(|out, record| match record.target() {
        NOTE => writeln!(out, "note: {}", record.args()),
        target => {
            let (time, level) = (out.timestamp(), record.level());
            writeln!(out, "[{time} {level:<5} {target}] {}", record.args())
        }
    })
    .init();
    let parsed = match cli::Cli::try_parse() {
        Ok(parsed) => parsed,
        Err(e) => {
            // With its stream closed there is nobody to tell.
            let _closed = e.print();
            return u8::try_from(e.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    match cli::run(parsed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if cli::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(Error::Interrupted) => ExitCode::from(cli::INTERRUPTED),
        Err(e) => {
            report(&e);
            if e.is_usage() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// The error and its causes on standard error. `RUST_LOG=transformer_lite::error=debug` shows its variants and fields too.
fn report(error: &Error) {
    log::debug!(target: "transformer_lite::error", "{error:?}");
    let text = format!("error: {}\n", error.lines().join("\n  caused by: "));
    // With standard error closed the exit code has to do.
    let _closed = std::io::stderr().write_all(text.as_bytes());
}
