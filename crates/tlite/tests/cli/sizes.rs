//! Limits on the length of files and functions. The few exceptions are listed with a reason.

use super::documents::{files, name, read};
use std::collections::BTreeSet;

/// Maximum number of lines in a file.
const LONGEST_FILE: usize = 700;
/// Maximum number of lines of code in a function, without blank lines and comments.
const LONGEST_FUNCTION: usize = 80;

/// Maximum numbers of exceptions.
const MAX_FILES: usize = 3;
const MAX_FUNCTIONS: usize = 14;

/// Files that exceed the limit, each with the reason.
const FILES: &[(&str, &str)] = &[];

/// Functions that exceed the limit: file, name and reason.
#[rustfmt::skip]
const FUNCTIONS: &[(&str, &str, &str)] = &[
    ("crates/convert/src/gguf/tests/conversion.rs", "what_cannot_be_converted_is_named_and_leaves_nothing", "a table of cases, one after another"),
    ("crates/convert/src/quantize/tests.rs", "a_model_survives_and_tied_weights_are_packed_once", "one model, checked in order"),
    ("src/graph/op/attention/attention.rs", "cases", "a table of cases, one after another"),
    ("src/graph/op/matmul/matmul.rs", "lower", "the arguments of one kernel, with a reason for each"),
    ("src/graph/op/conv/resize.rs", "cases", "a table of cases, one after another"),
    ("src/graph/op/attention/rotary_embedding.rs", "parts", "a graph, node by node"),
    ("src/llm/sampler/tests.rs", "numbers_out_of_range_name_their_option", "a table of cases, one after another"),
    ("crates/tlite/src/cli/eval.rs", "run", "the steps of the command, in order"),
    ("crates/tlite/tests/cli/commands/eval.rs", "questions_that_cannot_be_used", "a table of cases, one after another"),
    ("src/graph/op/attention/sdpa.rs", "eval", "the reference, as the paper and ONNX state it"),
];

/// The text with comments replaced by spaces, and strings and characters by quotes, so that lines
/// within a string still count as code.
pub(super) fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after_word = out.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let (len, mask) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), ' ')
        } else if rest.starts_with("/*") {
            (block_comment(rest), ' ')
        } else if let (false, Some(len)) = (after_word, raw_string(rest)) {
            (len, '"')
        } else if first == '"' {
            (string(rest), '"')
        } else if let Some(len) = character(rest) {
            (len, '"')
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        let (masked, after) = rest.split_at(len);
        out.extend(masked.chars().map(|c| if c == '\n' { c } else { mask }));
        rest = after;
    }
    out
}

/// Length of the block comment at the start of the text; comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += 1;
        }
        if depth == 0 || rest.is_empty() {
            return at.min(text.len());
        }
    }
}

/// Length of the raw string at the start of the text, if there is one.
fn raw_string(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r"].into_iter().find(|p| text.starts_with(p))?;
    let marks = text[prefix.len()..].bytes().take_while(|b| *b == b'#').count();
    let start = prefix.len() + marks + 1;
    if !text[start - 1..].starts_with('"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(marks));
    Some(start + text[start..].find(&end)? + end.len())
}

/// Length of the string at the start of the text.
fn string(text: &str) -> usize {
    let mut escaped = true;
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !escaped => return i + 1,
            b'\\' if !escaped => escaped = true,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Length of the character literal at the start of the text; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    if let Some(escape) = inner.strip_prefix('\\') {
        return Some(2 + 1 + escape[1..].find('\'')? + 1);
    }
    let first = inner.chars().next()?;
    inner[first.len_utf8()..]
        .starts_with('\'')
        .then_some(1 + first.len_utf8() + 1)
}

/// The functions in `code`, which has no strings and comments: names and numbers of lines of code.
fn functions(code: &str) -> Vec<(&str, usize)> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let name = code[at + 3..].split(|c| !word(c)).next().unwrap();
        if name.is_empty() || code[..at].ends_with(word) {
            continue;
        }
        // A declaration without a body ends with a semicolon. Semicolons within brackets belong to
        // array types.
        let mut brackets = 0;
        let start = code[at..].find(|c| {
            match c {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets -= 1,
                _ => {}
            }
            brackets == 0 && (c == '{' || c == ';')
        });
        let Some(start) = start.map(|s| at + s).filter(|s| code[*s..].starts_with('{')) else {
            continue;
        };
        let mut braces = 0;
        let end = code[start..].find(|c| {
            match c {
                '{' => braces += 1,
                '}' => braces -= 1,
                _ => {}
            }
            braces == 0
        });
        let line = code[..at].rfind('\n').map_or(0, |i| i + 1);
        let end = end.map_or(code.len(), |e| start + e + 1);
        let lines = code[line..end].lines().filter(|l| !l.trim().is_empty());
        found.push((name, lines.count()));
    }
    found
}

/// Fails unless exactly the listed items exceed the limit and there are at most `most` of them.
#[track_caller]
fn compare(found: &BTreeSet<String>, listed: &BTreeSet<String>, most: usize) {
    let new: Vec<_> = found.difference(listed).collect();
    assert!(
        new.is_empty(),
        "too long, split by subject or into steps: {new:#?}"
    );
    let gone: Vec<_> = listed.difference(found).collect();
    assert!(
        gone.is_empty(),
        "no longer too long: remove from the list: {gone:#?}"
    );
    assert!(
        listed.len() <= most,
        "{} exceptions, {most} allowed",
        listed.len()
    );
}

#[test]
fn files_and_functions_have_few_lines() {
    let (mut long_files, mut long_functions) = (BTreeSet::new(), BTreeSet::new());
    for folder in ["src", "crates", "tests", "benches", "examples"] {
        for path in files(folder, &["rs"]) {
            let (text, file) = (read(&path), name(&path).replace('\\', "/"));
            for (function, lines) in functions(&code(&text)) {
                if lines > LONGEST_FUNCTION {
                    long_functions.insert(format!("{file} {function}"));
                }
            }
            if text.lines().count() > LONGEST_FILE {
                long_files.insert(file);
            }
        }
    }
    let listed = FILES.iter().map(|(file, _)| (*file).to_owned());
    compare(&long_files, &listed.collect(), MAX_FILES);
    let listed = FUNCTIONS.iter().map(|(file, name, _)| format!("{file} {name}"));
    compare(&long_functions, &listed.collect(), MAX_FUNCTIONS);
}

#[test]
fn lines_of_code_are_counted() {
    let text = r##"
fn first(a: [u8; 2]) -> u8 { // }
    /* {
    */
    let b = ["}", r#"}""#, "\"}"];

    let c = ('}', '\'', b'}', 'a');
    |x: &'static u8| c
}
trait T { fn declared(&self, a: [u8; 2]); fn second() { "
{" } }
"##;
    let code = code(text);
    assert_eq!(functions(&code), [("first", 5), ("second", 2)]);
}
