//! What the commands that measure share: progress, Ctrl-C, and refusals of options.

use super::interrupt::Interrupt;
use super::options::first_given;
use super::output::{bar, note};
use indicatif::ProgressBar;
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::llm::Cancel;
use transformer_lite::unstable::llm::load::Used;

/// Runs `work` with a bar over `steps`. Also returns whether Ctrl-C ended it early by setting its
/// flag.
pub fn interruptible<T>(
    steps: usize,
    interrupt: &Interrupt,
    work: impl FnOnce(&Cancel, &ProgressBar) -> Result<T>,
) -> Result<(T, bool)> {
    let progress = bar(steps);
    let generating = interrupt.generating();
    let cancel = generating.flag();
    let done = work(&cancel, &progress);
    progress.finish_and_clear();
    Ok((done?, cancel.is_cancelled()))
}

/// A callback that names each step of a bar before it starts.
pub fn stepper(bar: &ProgressBar) -> impl FnMut(&str) {
    let bar = bar.clone();
    move |name| {
        bar.set_message(name.to_owned());
        bar.inc(1);
    }
}

/// The end of a command that Ctrl-C may have ended early.
pub fn ended(interrupted: bool) -> Result<()> {
    match interrupted {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// The end of a command that Ctrl-C ended before `what`.
pub fn ended_before(what: &str) -> Result<()> {
    note(&format!("interrupted before {what}"));
    Err(Error::Interrupted)
}

/// A note on activations, for the place of a result.
pub fn int8_text(used: &Used) -> &'static str {
    match used.act {
        "int8" => ", int8 activations",
        _ => "",
    }
}

/// A usage error for an option `--bind` of a language model; `options` are those to use instead.
pub fn check_no_bind(bind: &[String], options: &str) -> Result<()> {
    match bind {
        [] => Ok(()),
        _ => {
            let what = format!("does not apply to language models; use {options}");
            Err(Error::usage("--bind", what))
        }
    }
}

/// A usage error for the first option that is given, although `model` is not a language model.
pub fn check_no_decoder(model: &Path, options: &[(&'static str, bool)]) -> Result<()> {
    let Some(option) = first_given(options) else {
        return Ok(());
    };
    let what = format!("applies to language models only; {} is not one", model.display());
    Err(Error::usage(option, what))
}
