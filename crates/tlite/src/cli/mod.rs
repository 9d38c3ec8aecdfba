//! The command line. Results go to standard output; progress and notes go to standard error.

mod answer;
mod bench;
mod cache;
mod calibration;
mod chat;
mod choices;
mod convert;
mod dequantize;
mod devices;
mod docs;
mod draft;
mod eval;
mod fields;
mod generate;
mod habits;
mod inspect;
pub mod interrupt;
mod list;
pub mod load;
mod measuring;
mod model;
mod near;
mod options;
mod other;
mod output;
pub mod page;
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
#[cfg(feature = "serve")]
mod serve;
mod template;
mod tune;

pub use cache::CacheOptions;
pub use docs::{json_markdown, markdown, operators_markdown};
pub use interrupt::INTERRUPTED;
pub use options::{DeviceOptions, ExecOptions, LimitOptions, ModelArg, Precision, Verbosity};
pub use output::{LogLines, is_broken_pipe, message};
pub use sampling::{Chosen, SamplingOptions};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use interrupt::Interrupt;
use std::fmt::Write as _;
use transformer_lite::unstable::error::Result;

const HINT: &str = "`tlite COMMAND -h` shows the common options of a command, `--help` all.";

/// Run language models and other ONNX models on GPUs and CPUs
#[derive(Debug, Parser)]
#[command(
    name = "tlite",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = HINT,
    after_long_help = "\
`tlite COMMAND -h` shows the common options of a command, `tlite COMMAND --help` all of them.

Examples:
  tlite chat MODEL
  tlite generate MODEL \"What is the capital of France?\"
  tlite devices"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Chat(Box<chat::Args>),
    Generate(Box<generate::Args>),
    Run(Box<run::Args>),
    #[cfg(feature = "serve")]
    Serve(Box<serve::Args>),
    Pull(pull::Args),
    List(list::Args),
    Rm(rm::Args),
    Convert(convert::Args),
    Quantize(quantize::Args),
    Dequantize(dequantize::Args),
    Bench(bench::Args),
    Perplexity(perplexity::Args),
    Eval(Box<eval::Args>),
    Profile(profile::Args),
    Roofline(roofline::Args),
    Tune(tune::Args),
    Inspect(inspect::Args),
    Devices(devices::Args),
    Selftest(selftest::Args),
    Cache(cache::Args),
    Completions(other::CompletionsArgs),
    Man(other::ManArgs),
}

/// The groups of commands in `tlite --help`.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Run", &["chat", "generate", "serve", "run"]),
    (
        "Models",
        &["pull", "list", "rm", "convert", "quantize", "dequantize"],
    ),
    (
        "Measure",
        &["bench", "perplexity", "eval", "profile", "roofline", "tune"],
    ),
    (
        "Other",
        &[
            "inspect",
            "devices",
            "selftest",
            "cache",
            "completions",
            "man",
            "help",
        ],
    ),
];

/// Value names of options that take numbers.
const NUMBERS: [&str; 5] = ["F", "MS", "N", "N,...", "P"];

/// `command` whose options for numbers parse negative ones, so that the error for them says what is
/// expected instead of that there is no such option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let negative = |arg: clap::Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        let is_number = names.iter().any(|n| NUMBERS.contains(&n.as_str()));
        arg.allow_negative_numbers(is_number)
    };
    command.mut_args(negative).mut_subcommands(with_negative_numbers)
}

/// The command line, with commands in groups.
pub fn command() -> clap::Command {
    // Most quantizations read no pictures.
    let brief = |arg: clap::Arg| {
        let is_picture = arg.get_help_heading() == Some("Pictures");
        let is_hidden = arg.is_hide_short_help_set();
        arg.hide_short_help(is_hidden || is_picture)
    };
    let command = with_negative_numbers(Cli::command()).mut_subcommand("quantize", |c| c.mut_args(brief));
    let mut built = command.clone();
    built.build();
    let mut template = "{about}\n\n{usage-heading} tlite [OPTIONS] COMMAND\n".to_owned();
    for (title, names) in GROUPS {
        // Writing to a string cannot fail.
        let _ok = write!(template, "\n{title}:\n");
        for name in names {
            if let Some(about) = built.find_subcommand(name).and_then(clap::Command::get_about) {
                let _ok = writeln!(template, "  {name:<13}{about}");
            }
        }
    }
    template += "\nOptions:\n{options}{after-help}";
    command.help_template(template)
}

/// Whether standard input is a pipe or a file.
fn has_input() -> bool {
    #[cfg(unix)]
    {
        use rustix::fs::{FileType, fstat};
        let kind = fstat(std::io::stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
        kind.is_ok_and(|kind| matches!(kind, FileType::Fifo | FileType::RegularFile))
    }
    #[cfg(not(unix))]
    false
}

/// Parses the arguments of this process. Errors are to be printed; those for help and version too.
pub fn parse() -> Result<Cli, clap::Error> {
    let mut command = command();
    let args = habits::translated(&command, std::env::args_os().collect(), has_input())?;
    let parsed = command
        .try_get_matches_from_mut(args)
        .and_then(|matches| Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut command)));
    parsed.map_err(plain)
}

/// `error` without tips that mislead.
fn plain(mut error: clap::Error) -> clap::Error {
    match error.kind() {
        // All values are listed anyway, and the most similar one is often not what was meant.
        ErrorKind::InvalidValue => drop(error.remove(ContextKind::SuggestedValue)),
        // How to pass a text that looks like an option.
        ErrorKind::UnknownArgument => drop(error.remove(ContextKind::Suggested)),
        _ => {}
    }
    for (given, tip) in [
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
    ] {
        let given = error.get(given).map(ToString::to_string).unwrap_or_default();
        let near = |tip: &&String| near::is_near(&given, tip.split(' ').next().unwrap_or_default());
        let (found, kept) = match error.get(tip) {
            Some(ContextValue::String(one)) => (true, Some(one).filter(near).cloned()),
            Some(ContextValue::Strings(all)) => (true, all.iter().find(near).cloned()),
            _ => (false, None),
        };
        if found {
            error.remove(tip);
        }
        if let Some(kept) = kept {
            error.insert(tip, ContextValue::String(kept));
        }
    }
    error
}

/// Runs the command. Errors for which [`transformer_lite::unstable::error::Error::is_usage`] holds
/// are wrong usage, others are failures.
pub fn run(cli: Cli) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let done = match cli.command {
        Command::Devices(args) => devices::run(&args),
        Command::Pull(args) => pull::run(&args, &interrupt),
        Command::List(args) => list::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Convert(args) => convert::run(&args, &interrupt),
        Command::Quantize(args) => quantize::run(&args, &interrupt),
        Command::Dequantize(args) => dequantize::run(&args, &interrupt),
        Command::Generate(args) => generate::run(&args, &interrupt),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args, &interrupt),
        Command::Chat(args) => chat::run(&args, &interrupt),
        Command::Bench(args) => bench::run(&args, &interrupt),
        Command::Perplexity(args) => perplexity::run(&args, &interrupt),
        Command::Eval(args) => eval::run(&args, &interrupt),
        Command::Profile(args) => profile::run(&args, &interrupt),
        Command::Roofline(args) => roofline::run(&args, &interrupt),
        Command::Inspect(args) => inspect::run(&args, &interrupt),
        Command::Run(args) => run::run(&args, &interrupt),
        Command::Selftest(args) => selftest::run(&args, &interrupt),
        Command::Tune(args) => tune::run(&args, &interrupt),
        Command::Cache(args) => cache::run(&args),
        Command::Completions(args) => other::completions(&args),
        Command::Man(args) => other::man(&args),
    };
    done.map_err(fields::in_options)
}

#[cfg(test)]
mod tests;
