//! Checks and prepares the text of a template before it is parsed.

use super::meter::Stopped;
use minijinja::Error;
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Operators of a tag, squared, times its bytes, summed over the tags. The parser and the compiler
/// descend once per operator in a row, and constant operands are computed once per operator around
/// them.
const MAX_OPERATORS: u64 = 1 << 30;

/// `{% elif %}` tags: each nests one level deeper.
const MAX_BRANCHES: usize = 500;

/// The text to compile. An error if its expressions are too long to be parsed in bounded time and
/// stack. A factor `1|int` is added to products, so that the compiler does not compute products of
/// constants, which may be of any size.
pub(super) fn prepared(text: &str, syntax: SyntaxConfig) -> Result<String, Error> {
    let text = without_generation_blocks(text);
    let (mut start, mut operators, mut all, mut branches) = (0u64, 0u64, 0u64, 0usize);
    let mut factors = Vec::new();
    let mut unpacks = false;
    let mut first = false;
    for token in tokenize(&text, false, syntax) {
        let (token, span) = token?;
        match &token {
            Token::VariableStart | Token::BlockStart => {
                (start, operators) = (u64::from(span.start_offset), 0);
            }
            Token::VariableEnd | Token::BlockEnd => {
                let bytes = u64::from(span.end_offset).saturating_sub(start);
                let tag = operators.saturating_mul(operators).saturating_mul(bytes);
                all = all.saturating_add(tag);
            }
            Token::Mul if !unpacks => factors.push(span.end_offset),
            Token::Ident("elif") if first => branches += 1,
            _ => {}
        }
        if is_operator(&token) {
            operators += 1;
        }
        if all > MAX_OPERATORS || branches > MAX_BRANCHES {
            return Err(Stopped::Bound("its expressions are too long").into());
        }
        // A `*` here unpacks a list.
        unpacks = matches!(token, Token::ParenOpen | Token::Comma);
        first = matches!(token, Token::BlockStart);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    let mut done = 0;
    for at in factors {
        let at = usize::try_from(at).ok();
        let parts = at.and_then(|at| Some((at, rest.split_at_checked(at.saturating_sub(done))?)));
        let Some((at, (before, after))) = parts else { break };
        out.push_str(before);
        out.push_str(" 1|int *");
        (rest, done) = (after, at);
    }
    out.push_str(rest);
    Ok(out)
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

/// Replaces `{% generation %}` blocks, which mark text for training, by blocks without effect.
/// Their white-space control is kept.
fn without_generation_blocks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let (tag, after) = tag.find("%}").map_or((tag, ""), |end| tag.split_at(end + 2));
        let word = tag
            .trim_start_matches("{%")
            .trim_end_matches("%}")
            .trim_matches(|c: char| "-+ \t\r\n".contains(c));
        out.push_str(&match word {
            "generation" => tag.replace(word, "if true"),
            "endgeneration" => tag.replace(word, "endif"),
            _ => tag.to_owned(),
        });
        rest = after;
    }
    out.push_str(rest);
    out
}
