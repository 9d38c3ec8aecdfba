//! What tests ask of a message: the values that it must carry, never its words, so that it can be
//! reworded.
//!
//! Values are names of files, nodes, tensors, options, commands and symbols, and numbers.

// Of the library, or of the crate that includes this.
use super::{Error, ErrorKind};

/// True when `text` holds `value`, and not as a part of a longer word or number.
pub fn carries(text: &str, value: &str) -> bool {
    assert!(is_value(value), "{value:?} is a sentence: assert on a value");
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let (first, last) = (value.starts_with(word), value.ends_with(word));
    text.match_indices(value).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + value.len()..]);
        !(first && before.ends_with(word) || last && after.starts_with(word))
    })
}

/// Fails unless `text` carries each of `values`.
#[track_caller]
pub fn assert_carries(text: impl std::fmt::Display, values: &[&str]) {
    let text = text.to_string();
    for value in values {
        assert!(carries(&text, value), "expected {value:?} in: {text}");
    }
}

/// Fails unless the error is of this kind and carries each of `values`.
#[track_caller]
pub fn assert_error(e: &Error, kind: ErrorKind, values: &[&str]) {
    assert_eq!(e.kind(), kind, "{}", e.chain());
    assert_carries(e.chain(), values);
}

/// Fails unless the error is about this option or argument, and carries each of `values`.
#[track_caller]
pub fn assert_usage(e: &Error, option: &str, values: &[&str]) {
    assert!(
        matches!(e, Error::Usage { name, .. } if name == option),
        "{}",
        e.chain()
    );
    assert_carries(e.chain(), values);
}

/// False for English: two words of small letters side by side. Commands, as `tlite run` and `apt
/// install`, are values.
fn is_value(text: &str) -> bool {
    let small = |word: &str| word.len() > 1 && word.bytes().all(|b| b.is_ascii_lowercase());
    let words: Vec<&str> = text.split_whitespace().collect();
    let command = ["tlite ", "apt "].iter().any(|c| text.starts_with(c));
    command || !words.windows(2).any(|pair| pair.iter().all(|word| small(word)))
}
