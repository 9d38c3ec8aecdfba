//! Checks and prepares the text of a template before it is parsed.

use super::call::refuse;
use super::meter::Stopped;
use super::python;
use minijinja::Error;
use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use std::ops::Range;

/// Operators of a tag, squared, times its bytes, summed over the tags. The parser and the compiler
/// descend once per operator in a row, and constant operands are computed once per operator around
/// them.
const MAX_OPERATORS: u64 = 1 << 30;

/// `{% elif %}` tags: each nests one level deeper.
const MAX_BRANCHES: usize = 500;

/// The variable `loop` outside of loops, where templates may set it.
const OUTER_LOOP: &str = "__loop";

/// The text to compile. An error if its expressions are too long to be parsed in bounded time and
/// stack. Some expressions are rewritten:
///
/// * Line ends become line feeds. Escapes in string literals become escapes that the engine knows.
/// * A unary `+` becomes two `-`.
/// * A factor `1|int` is added to products, so that the compiler does not evaluate products of
///   constants, which may be of any size. `~` gets another operand that is not constant, because
///   the compiler would join constants differently.
/// * `{% generation %}` blocks, which mark text for training, become `{% with %}` blocks.
/// * Macros that use `varargs` or `kwargs` declare both.
/// * Outside of loops, `loop` is an ordinary variable if it is set.
pub(super) fn prepared(text: &str, syntax: SyntaxConfig) -> Result<String, Error> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    let mut checks = Checks::default();
    let mut before = Before::default();
    let sets_loop = text.contains("set loop");
    let mut macros = Macros::default();
    for token in tokenize(&text, false, syntax) {
        let (token, span) = token?;
        let place = range(span);
        checks.see(&token, span, before)?;
        if before.own && !matches!(token, Token::Dot) {
            return refuse("`self` must be followed by the name of a block");
        }
        macros.see(&token, place.start, before);
        match &token {
            Token::Mul if before.operand => edits.push((place, "* 1|int *".to_owned())),
            Token::Tilde => edits.push((place, "~ ''|string ~".to_owned())),
            Token::Plus if !before.operand => edits.push((place, "- -".to_owned())),
            Token::String(_) => {
                let written = text.get(place.clone()).unwrap_or_default();
                edits.push((place, constant(written)?));
            }
            Token::Ident(word @ ("generation" | "endgeneration")) if before.starts => {
                edits.push((place, word.replace("generation", "with")));
            }
            Token::Ident("loop") if sets_loop && !before.dot && checks.loops() == 0 => {
                edits.push((place, OUTER_LOOP.to_owned()));
            }
            _ => {}
        }
        before = Before::next(&token, before);
    }
    edits.extend(macros.edits);
    edits.sort_by_key(|(place, _)| place.start);
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (place, new) in edits {
        out.push_str(text.get(done..place.start).unwrap_or_default());
        out.push_str(&new);
        done = place.end;
    }
    out.push_str(text.get(done..).unwrap_or_default());
    Ok(out)
}

fn range(span: Span) -> Range<usize> {
    let at = |offset: u32| usize::try_from(offset).unwrap_or(usize::MAX);
    at(span.start_offset)..at(span.end_offset)
}

/// What the previous token implies for the next one.
#[derive(Clone, Copy, Default)]
struct Before {
    /// The previous token ends an operand.
    operand: bool,
    /// The next token is an attribute.
    dot: bool,
    /// The next token is the name of a tag.
    starts: bool,
    /// The previous token is the variable `self`.
    own: bool,
}

impl Before {
    fn next(token: &Token<'_>, before: Self) -> Self {
        Self {
            operand: match token {
                Token::Ident(word) => {
                    !matches!(*word, "and" | "or" | "not" | "if" | "elif" | "else" | "is" | "in")
                }
                Token::Str(_)
                | Token::String(_)
                | Token::Int(_)
                | Token::Int128(_)
                | Token::Float(_)
                | Token::BracketClose
                | Token::ParenClose
                | Token::BraceClose => true,
                _ => false,
            },
            dot: matches!(token, Token::Dot),
            starts: matches!(token, Token::BlockStart),
            own: matches!(token, Token::Ident("self")) && !before.dot,
        }
    }
}

/// Declares the parameters `varargs` and `kwargs` of macros that use them. `guard` passes them in
/// calls.
#[derive(Default)]
struct Macros {
    /// For the macro being read: where its parameters end, and the text to insert there.
    header: Option<(usize, &'static str)>,
    /// Number of open brackets in a macro header. `None` outside of a header.
    depth: Option<usize>,
    edits: Vec<(Range<usize>, String)>,
}

impl Macros {
    fn see(&mut self, token: &Token<'_>, at: usize, before: Before) {
        match token {
            Token::Ident("macro") if before.starts => (self.header, self.depth) = (None, Some(0)),
            Token::Ident("endmacro") if before.starts => self.header = None,
            Token::BlockEnd => self.depth = None,
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                self.depth = self.depth.map(|depth| depth + 1);
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                self.depth = self.depth.map(|depth| depth.saturating_sub(1));
                if self.depth == Some(0) && matches!(token, Token::ParenClose) {
                    let added = if before.operand {
                        ", varargs=(), kwargs={}"
                    } else {
                        "varargs=(), kwargs={}"
                    };
                    self.header = Some((at, added));
                }
            }
            Token::Ident("varargs" | "kwargs") if !before.dot && self.depth.is_none() => {
                if let Some((at, added)) = self.header.take() {
                    self.edits.push((at..at, added.to_owned()));
                }
            }
            _ => {}
        }
    }
}

/// The cost of a template so far, and its open blocks.
#[derive(Default)]
struct Checks {
    start: u64,
    operators: u64,
    all: u64,
    branches: usize,
    /// Names of open blocks that have their own variables.
    blocks: Vec<&'static str>,
}

impl Checks {
    fn see(&mut self, token: &Token<'_>, span: Span, before: Before) -> Result<(), Error> {
        match token {
            Token::VariableStart | Token::BlockStart => {
                (self.start, self.operators) = (u64::from(span.start_offset), 0);
            }
            Token::VariableEnd | Token::BlockEnd => {
                let bytes = u64::from(span.end_offset).saturating_sub(self.start);
                let tag = self
                    .operators
                    .saturating_mul(self.operators)
                    .saturating_mul(bytes);
                self.all = self.all.saturating_add(tag);
            }
            Token::Ident(word) if before.starts => self.block(word)?,
            _ => {}
        }
        if is_operator(token) {
            // These are replaced by two operators.
            let two = matches!(token, Token::Tilde | Token::Mul)
                || (matches!(token, Token::Plus) && !before.operand);
            self.operators += 1 + u64::from(two);
        }
        match self.all > MAX_OPERATORS || self.branches > MAX_BRANCHES {
            true => Err(Stopped::Bound("its expressions are too long").into()),
            false => Ok(()),
        }
    }

    fn block(&mut self, word: &str) -> Result<(), Error> {
        const BLOCKS: [&str; 6] = ["for", "with", "generation", "macro", "call", "block"];
        if word == "elif" {
            self.branches += 1;
        }
        if let Some(block) = BLOCKS.iter().find(|block| **block == word) {
            self.blocks.push(block);
        }
        let ended = word.strip_prefix("end");
        if ended.is_some() && self.blocks.last().copied() == ended {
            self.blocks.pop();
        }
        let leaves = matches!(word, "break" | "continue");
        match self.blocks.last().copied() {
            Some(block @ ("with" | "generation")) if leaves && self.loops() > 0 => refuse(format!(
                "`{word}` in a `{block}` block inside a loop is not supported"
            )),
            _ => Ok(()),
        }
    }

    /// Number of open loops.
    fn loops(&self) -> usize {
        self.blocks.iter().filter(|block| **block == "for").count()
    }
}

/// True for a token that can make an expression deeper.
fn is_operator(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(word) => matches!(*word, "and" | "or" | "not" | "if" | "else" | "is" | "in"),
        Token::TemplateData(_)
        | Token::VariableStart
        | Token::VariableEnd
        | Token::BlockStart
        | Token::BlockEnd
        | Token::Str(_)
        | Token::String(_)
        | Token::Int(_)
        | Token::Int128(_)
        | Token::Float(_)
        | Token::Comma
        | Token::Colon
        | Token::Assign
        | Token::BracketClose
        | Token::ParenClose
        | Token::BraceClose => false,
        _ => true,
    }
}

/// Converts a string literal with Python's escapes to one with escapes that the engine also knows.
fn constant(written: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(written.len());
    let mut rest = written;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let mut letters = after.chars();
        let Some(letter) = letters.next() else { break };
        let digits = match letter {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let tail = letters.as_str();
        let (code, tail) = tail.split_at_checked(digits).unwrap_or((tail, ""));
        if digits > 0 && (code.len() < digits || !code.bytes().all(|b| b.is_ascii_hexdigit())) {
            return refuse(format!(
                "a string constant has an incomplete escape `\\{letter}{code}`"
            ));
        }
        match letter {
            '\n' => {}
            'a' => out.push_str("\\x07"),
            'v' => out.push_str("\\x0b"),
            'N' => {
                return refuse("`\\N{...}` in a string constant is not supported; use the character itself");
            }
            'u' | 'U' => {
                let c = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
                let Some(c) = c else {
                    return refuse(format!(
                        "`\\{letter}{code}` in a string constant is not a character"
                    ));
                };
                match c {
                    '\\' | '\'' | '"' => out.extend(['\\', c]),
                    c => out.push(c),
                }
            }
            'x' => {
                out.push_str("\\x");
                out.push_str(code);
            }
            '\\' | '\'' | '"' | 'b' | 'f' | 'n' | 'r' | 't' | '0'..='7' => out.extend(['\\', letter]),
            // Jinja escapes these characters before it evaluates escapes.
            c if !c.is_ascii() => {
                out.push('\\');
                out.push_str(&python::escape(c));
            }
            c => out.extend(['\\', '\\', c]),
        }
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}
