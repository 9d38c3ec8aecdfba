//! Standard output for results; standard error for progress, notes and figures.

use super::interrupt::lock;
use indicatif::{ProgressBar, ProgressStyle, WeakProgressBar};
use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, StdoutLock, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::fmt::{is_control, shown};
use transformer_lite::unstable::num;

const STDOUT: &str = "standard output";

/// How much a command prints beside its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    Quiet = 0,
    /// Notes, warnings and one line of figures.
    #[default]
    Normal = 1,
    Verbose = 2,
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Normal as u8);
static FIGURES: AtomicBool = AtomicBool::new(true);

/// Sets what this process prints from now on. `figures` is false for JSON output, which has them
/// already.
pub fn set_level(level: Level, figures: bool) {
    LEVEL.store(level as u8, Ordering::Relaxed);
    FIGURES.store(figures, Ordering::Relaxed);
    if level == Level::Quiet && std::env::var_os("RUST_LOG").is_none() {
        log::set_max_level(log::LevelFilter::Error);
    }
}

fn prints(at_least: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) >= at_least as u8
}

/// True with `--verbose`.
pub fn is_verbose() -> bool {
    prints(Level::Verbose)
}

/// Writes a piece of the result and passes it on at once.
pub fn put(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(refused)
}

/// Prints a report on standard output: with `json` the object, else the text, whose names may hold
/// control characters, as [`printable`].
pub fn print_report(json: bool, object: &impl serde::Serialize, text: impl FnOnce() -> String) -> Result<()> {
    let mut out = text_output();
    match json {
        true => put_json(&mut out, object),
        false => put(&mut out, &printable(&text())),
    }
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

/// Writes `note: TEXT`, unless `--quiet` is given.
pub fn note(text: &str) {
    marked(&mut std::io::stderr(), Level::Normal, "note: ", text);
}

/// Writes `warning: TEXT`, unless `--quiet` is given.
pub fn warning(text: &str) {
    marked(&mut std::io::stderr(), Level::Normal, "warning: ", text);
}

/// Writes `note: TEXT` with `--verbose`.
pub fn detail(text: &str) {
    marked(&mut std::io::stderr(), Level::Verbose, "note: ", text);
}

/// Writes a line of figures, unless `--quiet` or `--json` is given.
pub fn figures(text: &str) {
    if FIGURES.load(Ordering::Relaxed) {
        marked(&mut std::io::stderr(), Level::Normal, "", text);
    }
}

fn marked(notes: &mut dyn Write, at_least: Level, mark: &str, text: &str) {
    if !prints(at_least) {
        return;
    }
    let line = format!("{mark}{}\n", message(text));
    aside(|| {
        // With the stream closed there is nobody to write to.
        let _closed = notes.write_all(line.as_bytes()).and_then(|()| notes.flush());
    });
}

/// The progress line on the terminal, if there is one.
static SHOWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

fn on_screen(bar: ProgressBar) -> ProgressBar {
    *lock(&SHOWN) = Some(bar.downgrade());
    bar
}

/// Runs `write` while the progress line is off the terminal.
fn aside(write: impl FnOnce()) {
    let bar = lock(&SHOWN).clone();
    match bar.and_then(|bar| bar.upgrade()) {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Standard error for the log: whole lines, which do not mix with a progress line.
#[derive(Debug)]
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut written = Ok(());
        aside(|| written = std::io::stderr().write_all(bytes));
        written.map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Takes the place of a control character.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// `text` without control characters, which could move the cursor or change settings. Line feeds
/// and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    let parts = text.split_inclusive(['\n', '\t']).map(|part| {
        let end = part.len() - usize::from(part.ends_with(['\n', '\t']));
        let (part, end) = part.split_at(end);
        shown(part) + end
    });
    match text.contains(is_control) {
        true => Cow::Owned(parts.collect()),
        false => Cow::Borrowed(text),
    }
}

/// An error, a note or a log line without control characters, with `...` in place of the middle of
/// long lines. Of line breaks, those before two spaces stay, as messages have them; others came
/// with a name and are escaped, so that no name can begin a line of its own.
pub fn message(text: &str) -> String {
    const BREAK: &str = "\n  ";
    /// Characters of a line. Text from a file may be longer.
    const MAX: usize = 4000;
    let lines: Vec<String> = text
        .split(BREAK)
        .map(|line| shortened(&shown(line), MAX))
        .collect();
    lines.join(BREAK)
}

/// A writer that replaces control characters. Carriage returns are dropped.
#[derive(Debug)]
pub struct Sanitized<W> {
    out: W,
    /// The last byte written was the first of two that may encode a control character.
    begun: bool,
}

impl<W: Write> Sanitized<W> {
    /// Passes on to `out` what terminals may be given.
    pub fn new(out: W) -> Self {
        Self { out, begun: false }
    }
}

impl<W: Write> Write for Sanitized<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        const BEGIN: u8 = 0xc2;
        let mut text = Vec::with_capacity(bytes.len());
        let mut begun = self.begun;
        let replaced = |text: &mut Vec<u8>| {
            text.extend_from_slice(REPLACEMENT.encode_utf8(&mut [0; 4]).as_bytes());
        };
        for &byte in bytes {
            if std::mem::take(&mut begun) {
                if (0x80..=0x9f).contains(&byte) {
                    replaced(&mut text);
                    continue;
                }
                text.push(BEGIN);
            }
            match byte {
                BEGIN => begun = true,
                b'\r' => {}
                b'\n' | b'\t' => text.push(byte),
                0..=0x1f | 0x7f => replaced(&mut text),
                _ => text.push(byte),
            }
        }
        self.out.write_all(&text)?;
        self.begun = begun;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Standard output: a terminal gets no control characters, a pipe every byte.
pub fn text_output() -> Box<dyn Write> {
    let out: StdoutLock<'static> = std::io::stdout().lock();
    match out.is_terminal() {
        true => Box::new(Sanitized::new(out)),
        false => Box::new(out),
    }
}

/// A moving line on standard error until it is dropped or cleared; nothing when that is no
/// terminal.
pub fn spinner(text: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(printable(&text).into_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    on_screen(bar)
}

/// Columns of the terminal on standard output; `None` if it is not a terminal.
pub fn terminal_columns() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some(usize::from(width.0)).filter(|w| *w > 0)
}

const COUNTED: &str = "{bar:20} {pos}/{len} {wide_msg}";
const BYTES: &str = "{bar:20} {decimal_bytes}/{decimal_total_bytes} {wide_msg}";
/// Of a bar whose total is not known yet.
const UNKNOWN: &str = "{wide_msg}";

fn style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

/// A bar over `steps` on standard error; nothing when that is no terminal.
pub fn bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(num::wide(steps));
    style(&bar, COUNTED);
    on_screen(bar)
}

/// Makes a moving line a bar that has come to `done` of `all`, called `what`. Does nothing if `all`
/// is 0.
pub fn count(line: &ProgressBar, done: usize, all: usize, what: &str) {
    if all == 0 {
        return;
    }
    style(line, COUNTED);
    line.set_message(printable(what).into_owned());
    line.set_length(num::wide(all));
    line.set_position(num::wide(done));
}

/// A bar over bytes on standard error; nothing when that is no terminal. Only its message is shown
/// until [`advance`] sets the total.
pub fn byte_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    style(&bar, UNKNOWN);
    on_screen(bar)
}

/// Moves a [`byte_bar`], called `what`, to `done` of `total` bytes. Does not move it if `total` is
/// 0.
pub fn advance(bar: &ProgressBar, done: u64, total: u64, what: &str) {
    bar.set_message(what.to_owned());
    if total == 0 {
        return;
    }
    if bar.length() == Some(0) {
        style(bar, BYTES);
    }
    bar.set_length(total);
    bar.set_position(done);
}

/// A column of a table: its title, and the cell of an item.
pub type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

/// The rows of a [`table`]: the titles, then a row for each item.
pub fn titled<T>(items: &[T], columns: &[Column<'_, T>]) -> Vec<Vec<String>> {
    let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let row = |item| columns.iter().map(|(_, cell)| cell(item)).collect();
    std::iter::once(titles).chain(items.iter().map(row)).collect()
}

/// `items` by key; groups and their items keep their order.
pub fn grouped<'a, T, K: PartialEq>(items: &'a [T], key: impl Fn(&'a T) -> K) -> Vec<(K, Vec<&'a T>)> {
    let mut groups: Vec<(K, Vec<&T>)> = Vec::new();
    for item in items {
        let key = key(item);
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, group)) => group.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

/// Widest cell to which the other cells of its column are padded.
const WIDEST: usize = 200;

/// A table of columns of equal width: `left` of them aligned to the left, the others to the right.
/// Cells are [`shown`].
pub fn table(rows: &[Vec<String>], left: usize) -> String {
    let shown = |row: &Vec<String>| row.iter().map(|cell| shown(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(shown).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| {
            rows.iter()
                .filter_map(|r| r.get(c))
                .map(|t| t.chars().count())
                .max()
                .unwrap_or(0)
                .min(WIDEST)
        })
        .collect();
    let mut out = String::new();
    for row in &rows {
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

/// Widest line of a table.
pub const COLUMNS: usize = 100;

/// A [`table`] of at most [`COLUMNS`] columns: texts in the column `cut` are shortened if
/// necessary, in the middle, as their ends often tell them apart.
pub fn fitted_table(rows: &[Vec<String>], left: usize, cut: usize) -> String {
    let text = table(rows, left);
    let width = text.lines().map(|l| l.chars().count()).max().unwrap_or(0);
    let lengths = rows.iter().filter_map(|r| r.get(cut)).map(|t| t.chars().count());
    let room = lengths
        .max()
        .unwrap_or(0)
        .saturating_sub(width.saturating_sub(COLUMNS));
    if width <= COLUMNS {
        return text;
    }
    let mut rows = rows.to_vec();
    for text in rows.iter_mut().filter_map(|r| r.get_mut(cut)) {
        *text = shortened(text, room.max(12));
    }
    table(&rows, left)
}

/// Lines of words of `text`, of at most `width` characters where its words allow that.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        let fits = line.chars().count() + 1 + word.chars().count() <= width;
        if line.is_empty() {
            line.push_str(word);
        } else if fits {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// `text` in at most `most` characters, with `...` in the place of its middle.
pub fn shortened(text: &str, most: usize) -> String {
    let all: Vec<char> = text.chars().collect();
    if all.len() <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(3);
    let end = all.len() - kept / 2;
    let start = all.iter().take(kept - kept / 2);
    start
        .chain(&['.', '.', '.'])
        .chain(all.iter().skip(end))
        .collect()
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
    fn wide_tables_are_cut_in_one_column() {
        let row = |name: &str| ["program", name, "3"].map(str::to_owned).to_vec();
        let lines = fitted_table(&[row("short"), row(&"long".repeat(40)), row("x")], 2, 1);
        assert!(lines.lines().all(|l| l.chars().count() <= COLUMNS), "{lines}");
        assert!(
            lines
                .lines()
                .nth(1)
                .is_some_and(|l| l.contains("...") && l.len() == COLUMNS),
            "{lines}"
        );
        let short = [row("short"), row("x")];
        assert_eq!(fitted_table(&short, 2, 1), table(&short, 2));
        assert_eq!(
            (shortened("abcdefgh", 7), shortened("abc", 3)),
            ("ab...gh".to_owned(), "abc".to_owned())
        );
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

    #[test]
    fn notes_have_one_mark_and_no_control_characters() {
        let written = |at_least, mark: &str, text: &str| {
            let mut out = Vec::new();
            marked(&mut out, at_least, mark, text);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(Level::Normal, "note: ", "a"), "note: a\n");
        let escaped = written(Level::Normal, "warning: ", "b\u{1b}[2J");
        assert_eq!(escaped, "warning: b\\u{1b}[2J\n");
        assert_eq!(
            written(Level::Verbose, "note: ", "c"),
            "",
            "details need --verbose"
        );
    }

    #[test]
    fn long_lines_of_messages_are_shortened() {
        let long = message(&format!("begin {}\n  end", "x".repeat(1 << 20)));
        assert!(long.len() < 5000, "{} bytes", long.len());
        assert!(long.starts_with("begin x") && long.ends_with("\n  end"));
    }

    #[test]
    fn names_begin_no_line_of_a_message() {
        assert_eq!(message("a\n  caused by: b"), "a\n  caused by: b");
        assert_eq!(message("a \"\nerror: b\"\n  c\t"), "a \"\\nerror: b\"\n  c\\t");
        let rows = [["\nerror: a".to_owned(), "\u{1b}[2J".to_owned()].to_vec()];
        assert_eq!(table(&rows, 2), "\\nerror: a  \\u{1b}[2J\n");
    }

    #[test]
    fn terminals_get_no_control_characters() {
        let clean = |pieces: &[&[u8]]| {
            let mut out = Sanitized::new(Vec::new());
            pieces.iter().for_each(|p| out.write_all(p).unwrap());
            String::from_utf8(out.out).unwrap()
        };
        assert_eq!(clean(&[b"a\tb\r\nc"]), "a\tb\nc");
        assert_eq!(
            clean(&[b"\x1b[31mred\x07\x7f"]),
            "\u{fffd}[31mred\u{fffd}\u{fffd}"
        );
        assert_eq!(clean(&["\u{9b}2J é ¿".as_bytes()]), "\u{fffd}2J é ¿");
        // A character may be cut between two writes.
        assert_eq!(clean(&[b"x\xc2", b"\x9b", b"y\xc2", b"\xbf"]), "x\u{fffd}y¿");
        assert_eq!(printable("a\rb\u{85}c\n\td"), "a\\rb\\u{85}c\n\td");
    }
}
