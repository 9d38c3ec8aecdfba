//! The command `tlite`: parses, runs, reports errors. Exit code 0 done, 1 failed, 2 wrong usage,
//! 130 interrupted, 128 plus the number of another signal that ended it.
#![warn(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unreachable,
    clippy::unwrap_used
)]

use log::Level;
use std::io::Write as _;
use std::process::ExitCode;
use tlite::cli;
use transformer_lite::unstable::backend::NOTE;
use transformer_lite::unstable::error::Error;

/// Turns off Mesa's device-select layer if it would complain on standard error that there is no
/// runtime folder. The layer only reorders devices, which `--device` does here.
fn silence_device_select() {
    let set = |name| std::env::var_os(name).is_some();
    if !set("XDG_RUNTIME_DIR") && !set("NODEVICE_SELECT") {
        // SAFETY: called first in `main`, before any other thread exists that could read the
        // environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// Log lines look like notes of the command. With `RUST_LOG` they have a time, a level and a
/// target.
fn start_log() {
    let full = std::env::var_os("RUST_LOG").is_some();
    let quiet = env_logger::Env::default().default_filter_or("error,transformer_lite=warn,tlite=warn");
    env_logger::Builder::from_env(quiet)
        .target(env_logger::Target::Pipe(Box::new(cli::LogLines)))
        .format(move |out, record| {
            let (level, target) = (record.level(), record.target());
            if full && target != NOTE {
                let (time, text) = (out.timestamp(), record.args().to_string());
                return writeln!(out, "[{time} {level:<5} {target}] {}", cli::message(&text));
            }
            let mark = match level {
                Level::Error => "error",
                Level::Warn if target != NOTE => "warning",
                _ => "note",
            };
            let text = record.args().to_string();
            writeln!(out, "{mark}: {}", cli::message(&text))
        })
        .init();
}

fn main() -> ExitCode {
    silence_device_select();
    #[cfg(feature = "opencl")]
    transformer_lite::unstable::backend::opencl::name_library();
    start_log();
    let parsed = match cli::parse() {
        Ok(parsed) => parsed,
        Err(e) => {
            // With its stream closed there is nobody to write to.
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

/// The error and its causes on standard error. `RUST_LOG=transformer_lite::error=debug`
/// shows its variants and fields too.
fn report(error: &Error) {
    log::debug!(target: "transformer_lite::error", "{error:?}");
    let text = error.lines().join("\n  caused by: ");
    // With standard error closed, the exit code has to do.
    let _closed = writeln!(std::io::stderr(), "error: {}", cli::message(&text));
}
