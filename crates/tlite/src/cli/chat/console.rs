//! Output of a chat: answers on standard output, everything else on standard error.

use super::super::output::printable;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use std::io::{IsTerminal, Write};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Appearance of a chat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// Standard input and error are terminals.
    pub interactive: bool,
    /// Use colours for notes and status lines.
    pub colour: bool,
    /// Print no notes and no status lines. Refusals and replies to commands are still printed.
    pub quiet: bool,
    /// Maximum length of lines on standard error.
    pub width: Width,
}

/// A maximum line length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// No limit.
    #[default]
    Free,
    /// The width of the terminal at the time of writing.
    Terminal,
    /// A fixed number of columns.
    #[cfg(test)]
    Columns(usize),
}

impl Width {
    fn columns(self) -> Option<usize> {
        match self {
            Self::Free => None,
            Self::Terminal => {
                let (width, _) = terminal_size::terminal_size_of(std::io::stderr())?;
                Some(usize::from(width.0)).filter(|w| *w > 0)
            }
            #[cfg(test)]
            Self::Columns(columns) => Some(columns),
        }
    }
}

impl Looks {
    /// The appearance that suits the streams and environment of this process.
    pub fn of_process(quiet: bool) -> Self {
        let (input, notes) = (std::io::stdin(), std::io::stderr());
        Self {
            interactive: input.is_terminal() && notes.is_terminal(),
            // anstream allows colours on any terminal of a CI run.
            colour: AutoStream::choice(&notes) != ColorChoice::Never && !is_dumb(),
            quiet,
            width: Width::Terminal,
        }
    }
}

/// True if the terminal does not support control sequences.
pub fn is_dumb() -> bool {
    match std::env::var_os("TERM") {
        Some(term) => term == "dumb" || term.is_empty(),
        // Windows consoles have no name.
        None => cfg!(unix),
    }
}

/// The two output streams of a chat.
pub struct Console<'a> {
    pub out: &'a mut dyn Write,
    pub notes: &'a mut dyn Write,
    pub looks: Looks,
}

const DIM: Style = Style::new().dimmed();
const ALARM: Style = AnsiColor::Yellow.on_default();

impl Console<'_> {
    /// Writes a note or status line, unless `--quiet` is given.
    pub fn note(&mut self, text: &str) {
        if !self.looks.quiet {
            self.line(DIM, text);
        }
    }

    /// Writes why something was not done.
    pub fn refuse(&mut self, text: &str) {
        self.line(ALARM, &format!("note: {text}"));
    }

    /// Writes the reply to a command.
    pub fn reply(&mut self, text: &str) {
        self.line(Style::new(), text);
    }

    /// Writes a table of names and descriptions.
    pub fn rows(&mut self, rows: &[(&str, String)]) {
        let names = rows.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        for (name, what) in rows {
            let pad = " ".repeat(names - name.width());
            let start = format!("{name}{pad}  ");
            let text = wrapped(&printable(what), start.len(), self.looks.width.columns());
            self.write(&format!("{}{text}\n", printable(&start)));
        }
    }

    fn line(&mut self, style: Style, text: &str) {
        let text = wrapped(&printable(text), 0, self.looks.width.columns());
        let style = if self.looks.colour { style } else { Style::new() };
        self.write(&format!("{style}{text}{style:#}\n"));
    }

    fn write(&mut self, text: &str) {
        // With the stream closed there is nobody to write to.
        let _closed = self
            .notes
            .write_all(text.as_bytes())
            .and_then(|()| self.notes.flush());
    }
}

/// Fewer columns than this are as good as none.
const MIN_COLUMNS: usize = 8;

/// Wraps `text` at words to `width` columns. All lines but the first are indented by `indent`
/// spaces. If that leaves less than [`MIN_COLUMNS`] columns, the text is not wrapped.
fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let Some(room) = width
        .map(|w| w.saturating_sub(indent))
        .filter(|r| *r >= MIN_COLUMNS)
    else {
        return text.to_owned();
    };
    let mut out = String::new();
    let pad = " ".repeat(indent);
    for (at, line) in text.lines().enumerate() {
        if at > 0 {
            out.push('\n');
            out.push_str(&pad);
        }
        let mut used = 0;
        for word in line.split(' ') {
            let space = usize::from(used > 0);
            if used > 0 && used + space + word.width() > room {
                out.push('\n');
                out.push_str(&pad);
                used = 0;
            } else if used > 0 {
                out.push(' ');
                used += 1;
            }
            for c in word.chars() {
                let columns = c.width().unwrap_or(0);
                if used + columns > room {
                    out.push('\n');
                    out.push_str(&pad);
                    used = 0;
                }
                out.push(c);
                used += columns;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_the_terminal() {
        let long = "one two three four five";
        assert_eq!(wrapped(long, 0, None), long);
        assert_eq!(wrapped(long, 0, Some(9)), "one two\nthree\nfour five");
        assert_eq!(wrapped(long, 4, Some(13)), "one two\n    three\n    four five");
        assert_eq!(wrapped("0123456789ab", 0, Some(10)), "0123456789\nab");
        // Wide characters take two columns.
        assert_eq!(wrapped("日本語テキスト", 0, Some(9)), "日本語テ\nキスト");
        assert_eq!(wrapped(long, 4, Some(6)), long, "no room is as good as no limit");
        assert_eq!(wrapped("a\n\nb", 0, Some(20)), "a\n\nb");
    }

    fn printed(looks: Looks, print: impl Fn(&mut Console<'_>)) -> String {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        print(&mut Console {
            out: &mut out,
            notes: &mut notes,
            looks,
        });
        assert!(out.is_empty());
        String::from_utf8(notes).unwrap()
    }

    #[test]
    fn colours_and_quiet_are_kept_to() {
        let plain = Looks::default();
        assert_eq!(printed(plain, |c| c.note("a")), "a\n");
        assert_eq!(printed(plain, |c| c.refuse("a")), "note: a\n");
        let colour = Looks {
            colour: true,
            ..plain
        };
        assert_eq!(printed(colour, |c| c.note("a")), "\u{1b}[2ma\u{1b}[0m\n");
        let quiet = Looks { quiet: true, ..plain };
        assert_eq!(printed(quiet, |c| c.note("a")), "");
        assert_eq!(printed(quiet, |c| c.refuse("a")), "note: a\n");
        assert_eq!(printed(quiet, |c| c.reply("a")), "a\n");
    }

    #[test]
    fn no_control_characters_reach_the_terminal() {
        let evil = "a\u{1b}]0;title\u{7}b\u{9b}2J";
        let text = printed(Looks::default(), |c| {
            c.note(evil);
            c.refuse(evil);
            c.reply(evil);
            c.rows(&[("name", evil.to_owned())]);
        });
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert_eq!(text.matches("]0;title").count(), 4, "{text:?}");
    }
}
