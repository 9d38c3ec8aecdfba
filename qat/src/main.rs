//! The command `tlite-qat`.

mod cli;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let parsed = cli::Command::parse();
    match cli::run(parsed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // With standard error closed, the exit code has to do.
            let _closed = writeln!(std::io::stderr(), "error: {}", cli::message(&e));
            if e.is_usage() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
