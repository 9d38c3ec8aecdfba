//! Standard output as a place for results, and standard error as a place for progress and notes.

use crate::error::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

const STDOUT: &str = "standard output";

/// Writes a piece of the result and passes it on at once.
pub fn put(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(refused)
}

/// Writes one JSON object and the end of the line.
pub fn put_json(out: &mut dyn Write, value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|e| refused(e.into()))?;
    put(out, &format!("{text}\n"))
}

fn refused(e: std::io::Error) -> Error {
    Error::io("cannot write", Path::new(STDOUT), e)
}

/// True when the reader of standard output has gone, as `head` does: no failure of ours.
pub fn is_broken_pipe(e: &Error) -> bool {
    matches!(e, Error::Io { path, source, .. } if path == Path::new(STDOUT) && source.kind() == ErrorKind::BrokenPipe)
}

/// A line for people. Nothing is left to be done when standard error is closed.
pub fn note(notes: &mut dyn Write, text: &str) {
    let _closed = writeln!(notes, "{text}");
}

/// A moving line on standard error until it is dropped or cleared; nothing when that is no terminal.
pub fn spinner(text: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(text);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

const COUNTED: &str = "{bar:30} {pos}/{len} {msg}";

/// A bar over `steps` on standard error; nothing when that is no terminal.
pub fn bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(steps).unwrap_or(u64::MAX));
    match ProgressStyle::with_template(COUNTED) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Makes a moving line a bar that has come to `done` of `all`, called `what`.
pub fn count(line: &ProgressBar, done: usize, all: usize, what: &'static str) {
    if let Ok(style) = ProgressStyle::with_template(COUNTED) {
        line.set_style(style);
    }
    line.set_message(what);
    line.set_length(u64::try_from(all).unwrap_or(u64::MAX));
    line.set_position(u64::try_from(done).unwrap_or(u64::MAX));
}

/// A bar over bytes on standard error, whose length is set later; nothing when that is no terminal.
pub fn byte_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    match ProgressStyle::with_template("{bar:30} {decimal_bytes}/{decimal_total_bytes} {wide_msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// A table of columns of equal width: `left` of them aligned to the left, the others to the right.
pub fn table(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| {
            rows.iter()
                .filter_map(|r| r.get(c))
                .map(|t| t.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(c, (text, &width))| {
                if c < left {
                    format!("{text:<width$}")
                } else {
                    format!("{text:>width$}")
                }
            })
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "test", "1"], ["bcd", "x", "22"]].map(|r| r.map(str::to_owned).to_vec());
        assert_eq!(table(&rows, 2), "a    test   1\nbcd  x     22\n");
        assert_eq!(table(&[], 0), "");
    }

    #[test]
    fn only_standard_output_can_break_quietly() {
        let broken = || std::io::Error::from(ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&refused(broken())));
        assert!(!is_broken_pipe(&Error::io(
            "cannot write",
            Path::new("model.onnx"),
            broken()
        )));
        assert!(!is_broken_pipe(&refused(ErrorKind::StorageFull.into())));
    }
}
