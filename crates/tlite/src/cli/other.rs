//! `tlite completions` and `tlite man`: files for shells and for `man`.

use super::command;
use super::output::{note, put, text_output};
use clap_complete::Shell;
use std::path::PathBuf;
use transformer_lite::unstable::error::{Error, Result};

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tlite completions SHELL",
    after_help = "\
Examples:
  tlite completions bash > ~/.local/share/bash-completion/completions/tlite
  tlite completions zsh > ~/.zfunc/_tlite
  tlite completions fish > ~/.config/fish/completions/tlite.fish"
)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write man pages into a folder
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tlite man DIR",
    after_help = "\
Examples:
  tlite man man1
  tlite man ~/.local/share/man/man1
  tlite man /usr/local/share/man/man1"
)]
pub struct ManArgs {
    /// Folder to write to; it is created if needed
    dir: PathBuf,
}

pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "tlite", &mut script);
    put(&mut text_output(), &String::from_utf8_lossy(&script))
}

pub fn man(args: &ManArgs) -> Result<()> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir).map_err(|e| Error::io("cannot create", dir, e))?;
    clap_mangen::generate_to(command(), dir).map_err(|e| Error::io("cannot write man pages to", dir, e))?;
    note(&format!("man pages written to {}", dir.display()));
    Ok(())
}
