//! The command line. Results go to standard output; progress and notes go to standard error.

mod answer;
mod bench;
mod cache;
mod calibration;
mod chat;
mod convert;
mod dequantize;
mod devices;
mod fields;
mod generate;
mod inspect;
pub mod interrupt;
mod list;
pub mod load;
mod model;
mod options;
mod output;
mod perplexity;
mod profile;
mod pull;
mod quantize;
mod random;
mod rm;
mod roofline;
mod run;
mod sampling;
mod selftest;
mod template;
mod tune;

pub use cache::CacheOptions;
pub use interrupt::INTERRUPTED;
pub use options::{DeviceOptions, ExecOptions, Float};
pub use output::is_broken_pipe;
pub use sampling::SamplingOptions;

use crate::error::Result;
use clap::{Parser, Subcommand};
use interrupt::Interrupt;

/// ONNX models on phone and desktop GPUs.
#[derive(Debug, Parser)]
#[command(
    name = "tlite",
    version,
    about,
    propagate_version = true,
    arg_required_else_help = false
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Devices(devices::Args),
    Pull(pull::Args),
    List(list::Args),
    Rm(rm::Args),
    Convert(convert::Args),
    Quantize(quantize::Args),
    Dequantize(dequantize::Args),
    Generate(Box<generate::Args>),
    Chat(Box<chat::Args>),
    Bench(bench::Args),
    Perplexity(perplexity::Args),
    Profile(profile::Args),
    Roofline(roofline::Args),
    Inspect(inspect::Args),
    Run(Box<run::Args>),
    Selftest(selftest::Args),
    Tune(tune::Args),
    Cache(cache::Args),
}

/// Runs the command that was asked for. Errors for which [`crate::error::Error::is_usage`] holds are wrong
/// usage, others are failures.
pub fn run(cli: Cli) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let done = match cli.command {
        Command::Devices(args) => devices::run(&args),
        Command::Pull(args) => pull::run(&args, &interrupt),
        Command::List(args) => list::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Convert(args) => convert::run(&args, &interrupt),
        Command::Quantize(args) => quantize::run(&args),
        Command::Dequantize(args) => dequantize::run(&args, &interrupt),
        Command::Generate(args) => generate::run(&args, &interrupt),
        Command::Chat(args) => chat::run(&args, &interrupt),
        Command::Bench(args) => bench::run(&args, &interrupt),
        Command::Perplexity(args) => perplexity::run(&args, &interrupt),
        Command::Profile(args) => profile::run(&args, &interrupt),
        Command::Roofline(args) => roofline::run(&args, &interrupt),
        Command::Inspect(args) => inspect::run(&args, &interrupt),
        Command::Run(args) => run::run(&args, &interrupt),
        Command::Selftest(args) => selftest::run(&args),
        Command::Tune(args) => tune::run(&args, &interrupt),
        Command::Cache(args) => cache::run(&args),
    };
    done.map_err(fields::in_options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_description_is_consistent() {
        Cli::command().debug_assert();
    }
}
