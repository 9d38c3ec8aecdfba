//! Answers on a terminal, broken between words.

use std::io::Write;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Marks the lines around code, which is not broken.
const FENCE: &str = "```";

/// Breaks lines of text between words. The end of a text is held back until its word is complete,
/// or until a line feed.
pub struct WordWrap<W: Write> {
    out: W,
    /// Columns of the terminal; `None` if they are not known.
    columns: fn() -> Option<usize>,
    /// Columns used on the line of the screen.
    used: usize,
    /// White space before `word` that is not written yet.
    gap: String,
    /// Held back.
    word: String,
    /// What the line of the text begins with after white space, up to the length of [`FENCE`].
    start: String,
    in_code: bool,
}

impl<W: Write> WordWrap<W> {
    pub fn new(out: W, columns: fn() -> Option<usize>) -> Self {
        Self {
            out,
            columns,
            used: 0,
            gap: String::new(),
            word: String::new(),
            start: String::new(),
            in_code: false,
        }
    }

    fn push(&mut self, c: char, columns: usize) -> std::io::Result<()> {
        if c == '\n' {
            self.end_word(columns)?;
            self.gap.clear();
            self.in_code ^= self.start == FENCE;
            self.start.clear();
            self.used = 0;
            return self.out.write_all(b"\n");
        }
        let is_indent = self.start.is_empty() && (c == ' ' || c == '\t');
        if self.start.len() < FENCE.len() && !is_indent {
            self.start.push(c);
        }
        if c == ' ' || c == '\t' {
            self.end_word(columns)?;
            self.gap.push(c);
            return Ok(());
        }
        // Scripts with wide characters have no spaces between words.
        let is_wide = width(c) > 1;
        if is_wide || self.word.width() + width(c) > columns {
            self.end_word(columns)?;
        }
        self.word.push(c);
        if is_wide || self.in_code {
            self.end_word(columns)?;
        }
        Ok(())
    }

    fn end_word(&mut self, columns: usize) -> std::io::Result<()> {
        if self.word.is_empty() {
            return Ok(());
        }
        let gap: usize = self.gap.chars().map(width).sum();
        let word: usize = self.word.chars().map(width).sum();
        let fits = self.used + gap + word <= columns;
        if self.used == 0 || fits || self.in_code {
            self.out.write_all(self.gap.as_bytes())?;
            self.used += gap + word;
        } else {
            self.out.write_all(b"\n")?;
            self.used = word;
        }
        self.out.write_all(self.word.as_bytes())?;
        self.gap.clear();
        self.word.clear();
        Ok(())
    }
}

/// Columns of a character, of which control characters become a sign and tabs at most eight.
fn width(c: char) -> usize {
    match c {
        '\t' => 8,
        c => c.width().unwrap_or(1),
    }
}

impl<W: Write> Write for WordWrap<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let Some(columns) = (self.columns)() else {
            return self.out.write(bytes);
        };
        for c in String::from_utf8_lossy(bytes).chars() {
            self.push(c, columns)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Drop for WordWrap<W> {
    fn drop(&mut self) {
        // With the stream closed there is nobody to write to.
        let columns = (self.columns)().unwrap_or(usize::MAX);
        let _closed = self.end_word(columns).and_then(|()| self.out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces on a terminal of 10 columns.
    fn shown(pieces: &[&str]) -> String {
        let mut out = Vec::new();
        let mut wrap = WordWrap::new(&mut out, || Some(10));
        pieces.iter().for_each(|p| wrap.write_all(p.as_bytes()).unwrap());
        drop(wrap);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_break_between_words_however_they_arrive() {
        let text = "The unsigned numbers of a very long line";
        let broken = "The\nunsigned\nnumbers of\na very\nlong line";
        assert_eq!(shown(&[text]), broken);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(shown(&letters), broken);
        for (text, broken) in [
            ("  indented\n\n- a  b", "  indented\n\n- a  b"),
            ("0123456789abc d", "0123456789\nabc d"),
            ("日本語テキスト", "日本語テキ\nスト"),
            ("ends \n", "ends\n"),
            ("é1 é2 é3 é4", "é1 é2 é3\né4"),
        ] {
            assert_eq!(shown(&[text]), broken);
        }
    }

    #[test]
    fn code_and_unknown_widths_are_left_alone() {
        let code = "```\nlet long = line + of + code;\n```\n";
        assert_eq!(shown(&[code]), code);
        assert_eq!(shown(&[code, "one two three"]), format!("{code}one two\nthree"));
        let indented = "- list\n\n  ```sh\n  tlite generate model\n  ```\n";
        assert_eq!(
            shown(&[indented, "one two three"]),
            format!("{indented}one two\nthree")
        );
        let mut out = Vec::new();
        WordWrap::new(&mut out, || None)
            .write_all(b"one two three")
            .unwrap();
        assert_eq!(out, b"one two three");
    }
}
