//! What commands do to get from MODEL to a folder: conversions and downloads, with their progress.

use super::interrupt::{Interrupt, Scratch};
use super::output::{advance, byte_bar, note};
use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::fmt::size_text;
use transformer_lite_convert::models::{self, Event};

/// See [`models::resolve`]. Standard error shows a conversion or a download.
pub fn model_path(given: &Path, interrupt: &Interrupt) -> Result<PathBuf> {
    let mut view = View::new(interrupt);
    models::resolve(given, &mut |event| view.show(event))
}

/// Shows on standard error what happens: as a bar on a terminal, else as one line for each file.
pub struct View<'a> {
    interrupt: &'a Interrupt,
    terminal: bool,
    bar: Option<ProgressBar>,
    /// What the bar or the last line is about.
    subject: String,
    /// The folder that Ctrl-C removes.
    unfinished: Option<Scratch<'a>>,
}

impl<'a> View<'a> {
    /// A view that shows nothing yet.
    pub fn new(interrupt: &'a Interrupt) -> Self {
        Self {
            interrupt,
            terminal: std::io::stderr().is_terminal(),
            bar: None,
            subject: String::new(),
            unfinished: None,
        }
    }

    pub fn show(&mut self, event: Event<'_>) {
        if let Event::Begin { folder, .. } = event {
            self.unfinished = Some(self.interrupt.scratch(folder));
        }
        match event {
            Event::Hashing { name, done, total } => {
                // Without a terminal the conversion that follows says enough.
                if self.terminal {
                    self.advance(&format!("reading {name}"), done, Some(total));
                }
            }
            Event::Begin { name, .. } => {
                self.clear();
                if !self.terminal {
                    note(&format!("converting {name} for its first use"));
                }
            }
            Event::Converting { name, done, total } => {
                if self.terminal {
                    self.advance(&format!("converting {name} for its first use"), done, Some(total));
                }
            }
            Event::Downloading { file, done, total } => {
                let size = total.map_or(String::new(), |t| format!(" ({})", size_text(t)));
                let subject = format!("downloading {file}");
                if self.terminal {
                    self.advance(&subject, done, total);
                } else if self.subject != subject {
                    note(&format!("{subject}{size}"));
                    self.subject = subject;
                }
            }
            Event::Waiting { name } => note(&format!("waiting for another process that prepares {name}")),
            Event::Retrying { why, seconds } => note(&format!("{why}; trying again in {seconds:.1} s")),
            Event::Offline { why } => note(&format!("{why}; using the files downloaded earlier")),
        }
    }

    fn advance(&mut self, subject: &str, done: u64, total: Option<u64>) {
        if self.subject != subject {
            self.clear();
            subject.clone_into(&mut self.subject);
        }
        let bar = self.bar.get_or_insert_with(byte_bar);
        advance(bar, done, total.unwrap_or(done), subject);
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_conversion_is_removed_by_an_interrupt() {
        let dir = tempfile::tempdir().unwrap();
        let folders = ["done", "begun"].map(|n| dir.path().join(n));
        let interrupt = Interrupt::without_handler();
        let begin = |view: &mut View<'_>, folder: &Path| {
            std::fs::create_dir(folder).unwrap();
            view.show(Event::Begin { folder, name: "m" });
        };
        let [done, begun] = &folders;
        begin(&mut View::new(&interrupt), done);
        let mut view = View::new(&interrupt);
        begin(&mut view, begun);
        interrupt.remove_scratch();
        assert_eq!(folders.each_ref().map(|f| f.exists()), [true, false]);
    }
}
