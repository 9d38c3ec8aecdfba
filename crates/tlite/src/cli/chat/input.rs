//! Reading of what is typed into a chat.

use super::editor::Editor;
use crate::cli::interrupt::Interrupt;
use std::io::{BufRead, Read, Write};
use std::path::Path;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::read::MAX_TEXT_FILE;

/// Begins and ends a message of several lines.
pub const QUOTES: &str = "\"\"\"";
/// Prompt for an entry.
pub const PROMPT: &str = "> ";
/// Prompt for further lines of an entry.
pub const INDENT: &str = "  ";
/// Hint after Ctrl-C at an empty prompt.
pub const HINT: &str = "(Ctrl-C again or /exit to leave)";

#[derive(Debug, PartialEq)]
pub enum Input {
    Text {
        /// The text without [`QUOTES`] and continuation backslashes.
        text: String,
        /// True if the text was in [`QUOTES`]: it is a message even if it looks like a command.
        quoted: bool,
    },
    /// A line that is not UTF-8.
    NotText,
    /// Ctrl-C at an empty prompt.
    Interrupt,
    /// End of the input.
    End,
}

/// A source of entries.
pub trait Source {
    /// Reads the next entry.
    fn read(&mut self) -> Result<Input>;
}

/// How the current entry was typed.
#[derive(Debug, Default)]
pub struct Draft {
    /// The text up to and including each `\` that continued a line.
    continued: Vec<String>,
    /// The beginnings of pasted texts that start with [`QUOTES`]. Such quotes belong to the
    /// message.
    literal: Vec<String>,
}

/// Length of these beginnings in characters.
const RECOGNISED: usize = 100;

/// Splits `text` at opening [`QUOTES`], which are at its start or after `/system`.
fn opened(text: &str) -> Option<(&str, &str)> {
    let start = text.trim_start();
    let body = match start.strip_prefix("/system") {
        Some(rest) if rest.starts_with(' ') => rest.trim_start(),
        _ => start,
    };
    let inside = body.strip_prefix(QUOTES)?;
    let before = start.get(..start.len() - body.len())?;
    Some((before, inside))
}

impl Draft {
    /// Records that `text` was pasted.
    pub fn pasted(&mut self, text: &str) {
        let text = text.trim();
        if text.starts_with(QUOTES) {
            self.literal.push(text.chars().take(RECOGNISED).collect());
        }
    }

    /// As [`opened`], but only for quotes that were typed.
    fn opened<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        let start = text.trim_start();
        match self.literal.iter().any(|pasted| start.starts_with(pasted)) {
            true => None,
            false => opened(text),
        }
    }

    /// True if `text` continues after Enter.
    pub fn goes_on(&mut self, text: &str) -> bool {
        match self.opened(text) {
            Some((_, inside)) => !inside.trim_end().ends_with(QUOTES),
            _ if text.ends_with('\\') => {
                self.continued.push(text.to_owned());
                true
            }
            _ => false,
        }
    }

    /// The finished entry of `text`, and whether it was quoted.
    pub fn finish(&self, text: &str) -> (String, bool) {
        let mut text = text.to_owned();
        for part in self.continued.iter().rev() {
            // After an edit before it, a backslash stays.
            if text
                .strip_prefix(part.as_str())
                .is_some_and(|rest| rest.starts_with('\n'))
            {
                text.remove(part.len() - 1);
            }
        }
        let Some((before, inside)) = self.opened(&text) else {
            return (text, false);
        };
        let Some(inside) = inside.trim_end().strip_suffix(QUOTES) else {
            return (text, false);
        };
        let inside = inside.strip_prefix('\n').unwrap_or(inside);
        let inside = inside.strip_suffix('\n').unwrap_or(inside);
        (format!("{before}{inside}"), before.is_empty())
    }
}

/// Reads lines. Each line of a pipe or file is an entry; typed entries may have several lines.
pub struct Lines<'a> {
    input: &'a mut dyn BufRead,
    typed: Option<Typed<'a>>,
}

/// For typed lines: where prompts go, and Ctrl-C.
struct Typed<'a> {
    prompt: &'a mut dyn Write,
    interrupt: &'a Interrupt,
}

impl<'a> Lines<'a> {
    /// Lines of a pipe or a file.
    pub fn new(input: &'a mut dyn BufRead) -> Self {
        Self { input, typed: None }
    }

    /// Lines of a terminal without an editor. Prompts go to `prompt`. The first Ctrl-C prints
    /// [`HINT`].
    pub fn typed(input: &'a mut dyn BufRead, prompt: &'a mut dyn Write, interrupt: &'a Interrupt) -> Self {
        Self {
            input,
            typed: Some(Typed { prompt, interrupt }),
        }
    }

    fn show(&mut self, text: &str) {
        if let Some(typed) = &mut self.typed {
            // With the stream closed there is nobody to prompt.
            let _closed = typed
                .prompt
                .write_all(text.as_bytes())
                .and_then(|()| typed.prompt.flush());
        }
    }

    /// The next line without its line end; `None` at the end of the input.
    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let input = Path::new("standard input");
        let most = MAX_TEXT_FILE;
        let mut limited = Read::take(&mut *self.input, most);
        let read = limited.read_until(b'\n', &mut line);
        if read.map_err(|e| Error::io("cannot read", input, e))? == 0 {
            return Ok(None);
        }
        if limited.limit() == 0 && !line.ends_with(b"\n") {
            let what = format!("a line is longer than {most} bytes, the limit");
            return Err(Error::file(Stage::Text, input, what).of_kind(ErrorKind::LimitExceeded));
        }
        if line.ends_with(b"\n") {
            line.pop();
        }
        if line.ends_with(b"\r") {
            line.pop();
        }
        Ok(Some(line))
    }
}

impl Source for Lines<'_> {
    fn read(&mut self) -> Result<Input> {
        // Before the prompt, so that Ctrl-C at a visible prompt never ends the program at once.
        let interrupt = self.typed.as_ref().map(|typed| typed.interrupt);
        let _hinting = interrupt.map(|interrupt| {
            interrupt.hinting(|| {
                let text = format!("\n{HINT}\n{PROMPT}");
                let mut notes = std::io::stderr();
                let _closed = notes.write_all(text.as_bytes());
            })
        });
        self.show(PROMPT);
        let mut draft = Draft::default();
        let mut text = String::new();
        loop {
            let Some(line) = self.line()? else {
                self.show("\n");
                return Ok(Input::End);
            };
            let Ok(line) = String::from_utf8(line) else {
                return Ok(Input::NotText);
            };
            text.push_str(&line);
            if self.typed.is_none() {
                return Ok(Input::Text { text, quoted: false });
            }
            if !draft.goes_on(&text) {
                let (text, quoted) = draft.finish(&text);
                return Ok(Input::Text { text, quoted });
            }
            text.push('\n');
            self.show(INDENT);
        }
    }
}

/// Reads from a terminal, with an editor if the terminal supports one.
pub struct Terminal<'a> {
    editor: Option<Editor<'a>>,
    lines: Lines<'a>,
}

impl<'a> Terminal<'a> {
    /// Reads from `editor`. Without one, or after it fails, reads from `lines`.
    pub fn new(editor: Option<Editor<'a>>, lines: Lines<'a>) -> Self {
        Self { editor, lines }
    }
}

impl Source for Terminal<'_> {
    fn read(&mut self) -> Result<Input> {
        if let Some(editor) = &mut self.editor {
            match editor.read() {
                Ok(input) => return Ok(input),
                Err(e) => {
                    log::warn!("no line editing on this terminal: {e}");
                    self.editor = None;
                }
            }
        }
        self.lines.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types `lines`, each followed by Enter. Returns the entry and how many lines it took.
    fn typed(lines: &[&str]) -> (String, bool, usize) {
        let (mut draft, mut text) = (Draft::default(), String::new());
        for (at, line) in lines.iter().enumerate() {
            text.push_str(line);
            if !draft.goes_on(&text) {
                let (text, quoted) = draft.finish(&text);
                return (text, quoted, at + 1);
            }
            text.push('\n');
        }
        panic!("{lines:?} are not finished");
    }

    #[test]
    fn entries_go_on_over_lines() {
        for (lines, text, quoted) in [
            (&["hi", "there"][..], "hi", false),
            (&["a \\", "b\\", "c", "d"], "a \nb\nc", false),
            (&["\\", ""], "\n", false),
            (&["\"\"\"", "a", "", " b", "\"\"\""], "a\n\n b", true),
            (&["\"\"\"a", "b\"\"\"  "], "a\nb", true),
            (&["\"\"\"one line\"\"\""], "one line", true),
            (&["\"\"\"", "/exit \\", "\"\"\""], "/exit \\", true),
            (&["\"\"\"\"\"\""], "", true),
            (
                &["\"\"\"", "x = \"\"\"y\"\"\" # doc", "\"\"\""],
                "x = \"\"\"y\"\"\" # doc",
                true,
            ),
            (
                &["/system \"\"\"", "be", "kind", "\"\"\""],
                "/system be\nkind",
                false,
            ),
            (&["/systems \"\"\""], "/systems \"\"\"", false),
            (&["say \"\"\""], "say \"\"\"", false),
        ] {
            let (found, was_quoted, used) = typed(lines);
            assert_eq!((found.as_str(), was_quoted), (text, quoted), "{lines:?}");
            assert!(
                used == lines.len() || lines[used..].len() == 1,
                "{lines:?}: {used}"
            );
        }
    }

    #[test]
    fn pasted_signs_are_part_of_the_message() {
        let mut draft = Draft::default();
        let paste = "\"\"\"Doc.\"\"\"\n#define X \\\n  1\nx = 1";
        draft.pasted(paste);
        assert!(!draft.goes_on(paste));
        assert_eq!(draft.finish(paste), (paste.to_owned(), false));
        // Inside typed quotes they are text.
        let typed = format!("{QUOTES}\n{paste}");
        assert!(draft.goes_on(&typed));
        let whole = format!("{typed}\n{QUOTES}");
        assert!(!draft.goes_on(&whole));
        assert_eq!(draft.finish(&whole), (paste.to_owned(), true));
        // A backslash typed after a paste continues the line.
        let mut draft = Draft::default();
        let text = "a \\\nb \\";
        draft.pasted(text);
        assert!(draft.goes_on(text));
        assert_eq!(draft.finish("a \\\nb \\\nc"), ("a \\\nb \nc".to_owned(), false));
        // An edit removed the continuation.
        assert_eq!(draft.finish("a \\\nb"), ("a \\\nb".to_owned(), false));
    }

    #[test]
    fn lines_of_pipes_are_entries_as_they_are() {
        let mut bytes = &b"a \\\r\n\n\"\"\"\n\xff\xfe\nlast"[..];
        let mut lines = Lines::new(&mut bytes);
        let mut read = Vec::new();
        loop {
            match lines.read().unwrap() {
                Input::End => break,
                Input::Text { text, quoted: false } => read.push(text),
                Input::NotText => read.push("?".to_owned()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(read, ["a \\", "", "\"\"\"", "?", "last"]);
    }

    #[test]
    fn lines_of_terminals_are_prompted_for() {
        let mut bytes = &b"\"\"\"\na\n\"\"\"\nb\n"[..];
        let (mut prompts, interrupt) = (Vec::new(), Interrupt::without_handler());
        let mut lines = Lines::typed(&mut bytes, &mut prompts, &interrupt);
        let text = |text: &str, quoted| Input::Text {
            text: text.to_owned(),
            quoted,
        };
        assert_eq!(lines.read().unwrap(), text("a", true));
        assert_eq!(lines.read().unwrap(), text("b", false));
        assert_eq!(lines.read().unwrap(), Input::End);
        let expected = [PROMPT, INDENT, INDENT, PROMPT, PROMPT, "\n"].concat();
        assert_eq!(String::from_utf8(prompts).unwrap(), expected);
    }
}
