//! `tlite rm`.

use super::output::put;
use std::io::{BufRead, IsTerminal, Read, Write};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::fmt::size_text;
use transformer_lite_convert::models::hub::{Cached, Hub, PREFIX};
use transformer_lite_convert::models::{Entry, ModelStore};

/// Remove models that were downloaded or converted
///
/// Source files are kept: your own GGUF files, and downloads in the cache of the Hugging Face Hub.
/// `tlite list` then shows such a download under a name that begins with hf:, by which it can be
/// removed as well.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tlite rm [OPTIONS] NAME...",
    after_help = "\
Examples:
  tlite rm SmolLM2-135M-Instruct-Q4_0
  tlite rm --yes SmolLM2-135M-Instruct-Q4_0 SmolLM2-360M-Instruct-Q8_0
  tlite rm hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q8_0.gguf"
)]
pub struct Args {
    /// Names of the models, as `tlite list` shows them
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Remove without asking
    #[arg(short, long)]
    yes: bool,
}

/// Something that can be removed.
enum Target {
    Entry(Entry),
    Download(Cached),
}

impl Target {
    fn name(&self) -> String {
        match self {
            Self::Entry(entry) => entry.name().to_owned(),
            Self::Download(cached) => cached.spec.to_string(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Entry(entry) => entry.bytes(),
            Self::Download(cached) => cached.bytes,
        }
    }

    fn remove(&self, store: &ModelStore) -> Result<()> {
        match self {
            Self::Entry(entry) => store.remove(entry),
            Self::Download(cached) => Hub::from_env()?.forget(cached),
        }
    }
}

/// What `name` stands for. A usage error where that is nothing.
fn target(store: &ModelStore, name: &str) -> Result<Target> {
    if let Some(entry) = store.find(name)? {
        return Ok(Target::Entry(entry));
    }
    let entries = store.entries()?;
    let downloads = if name.starts_with(PREFIX) {
        Hub::from_env()?.cached()
    } else {
        Vec::new()
    };
    let download = downloads.into_iter().find(|c| c.spec.to_string() == name);
    download.map(Target::Download).ok_or_else(|| {
        let known: Vec<&str> = entries.iter().map(Entry::name).collect();
        let known = match known.is_empty() {
            true => "there are no models here".to_owned(),
            false => format!("the models here are {}", known.join(", ")),
        };
        Error::usage(
            "NAME",
            format!("there is no model {}; {known}", name.escape_debug()),
        )
    })
}

/// Bytes of an answer.
const MAX_ANSWER: u64 = 1024;

/// True where the user agrees. A usage error where nobody can be asked.
fn agreed(targets: &[Target]) -> Result<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let what = "is required if standard input is not a terminal";
        return Err(Error::usage("--yes", what));
    }
    let names: Vec<String> = targets.iter().map(Target::name).collect();
    let bytes = targets.iter().map(Target::bytes).sum();
    let question = format!("Remove {} ({})? [y/N] ", names.join(", "), size_text(bytes));
    let mut stderr = std::io::stderr();
    let _closed = stderr
        .write_all(question.as_bytes())
        .and_then(|()| stderr.flush());
    let mut line = String::new();
    let read = stdin.lock().take(MAX_ANSWER).read_line(&mut line);
    read.map_err(|e| Error::io("cannot read", std::path::Path::new("standard input"), e))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

pub fn run(args: &Args) -> Result<()> {
    let store = ModelStore::open_default()?;
    store.sweep();
    let mut targets: Vec<Target> = Vec::new();
    for name in &args.names {
        let found = target(&store, name)?;
        if !targets.iter().any(|t| t.name() == found.name()) {
            targets.push(found);
        }
    }
    // Ctrl-C during the question ends the program at once only while nobody holds standard output.
    let agreed = args.yes || agreed(&targets)?;
    let mut out = std::io::stdout().lock();
    if !agreed {
        return put(&mut out, "nothing is removed\n");
    }
    for target in &targets {
        let bytes = target.bytes();
        target.remove(&store)?;
        put(
            &mut out,
            &format!("removed {}, {}\n", target.name(), size_text(bytes)),
        )?;
    }
    Ok(())
}
