//! Special tokens that are only text: a mark inside their names keeps them from being recognized.

use super::Tokenizer;
use crate::error::{Cause, Error, Result, Stage};
use serde_json::Value;
use std::ops::Range;
use tokenizers::AddedToken;

/// Stands after the first character of a name. Unicode reserves it for internal use.
const MARK: char = '\u{fdd0}';
/// Begins a text that is not the start of a prompt.
const FENCE: char = '\u{fdd1}';

/// Marks the special tokens in all texts of `value`, except in roles.
pub(in super::super) fn mark(tokenizer: &Tokenizer, value: &mut Value) {
    let names: Vec<String> = tokenizer
        .specials()
        .into_values()
        .filter(|n| !n.is_empty())
        .collect();
    mark_names(&names, value);
}

fn mark_names(names: &[String], value: &mut Value) {
    match value {
        Value::String(text) => {
            let starts = |rest: &str| names.iter().any(|name| rest.starts_with(name.as_str()));
            let mut marked = String::with_capacity(text.len());
            for (at, c) in text.char_indices().filter(|(_, c)| ![MARK, FENCE].contains(c)) {
                marked.push(c);
                if starts(&text[at..]) {
                    marked.push(MARK);
                }
            }
            *text = marked;
        }
        Value::Array(list) => list.iter_mut().for_each(|value| mark_names(names, value)),
        Value::Object(map) => {
            let texts = map.iter_mut().filter(|(key, _)| *key != "role");
            texts.for_each(|(_, value)| mark_names(names, value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Tokenizer {
    /// The tokens of `text`, in which marked special tokens are text.
    pub(in super::super) fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
        if !text.contains(MARK) {
            return self.encode(text, false);
        }
        self.encoded(|| self.marked_ids(text))
    }

    fn marked_ids(&self, text: &str) -> Result<Vec<u32>, Cause> {
        let mut plain = self.inner.clone();
        plain.set_encode_special_tokens(true);
        plain.add_tokens([AddedToken::from(FENCE, false).normalized(false)])?;
        // The tokens of a part between special tokens.
        let part_ids = |part: Range<usize>, ids: &[u32]| -> Result<Vec<u32>, Cause> {
            let first = part.start == 0;
            let part = text.get(part).ok_or("the offsets of special tokens overlap")?;
            if !part.contains(MARK) {
                return Ok(ids.to_vec());
            }
            let part = part.replace(MARK, "");
            let fence = if first { String::new() } else { FENCE.to_string() };
            let encoding = plain.encode_fast(fence + &part, false)?;
            let skipped = if first { 0 } else { 1 };
            Ok(encoding.get_ids().iter().skip(skipped).copied().collect())
        };
        let specials = self.specials();
        let encoding = self.inner.encode(text, false)?;
        let (mut ids, mut between, mut start) = (Vec::new(), Vec::new(), 0);
        for (id, (from, to)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            // The token for unknown text may be a special one. Tokens of bytes may be parts of
            // characters.
            let is_written = |name: &str| text.get(*from..*to).is_some_and(|t| t.contains(name));
            match specials.get(id) {
                Some(name) if is_written(name) => {
                    ids.extend(part_ids(start..*from, &between)?);
                    ids.push(*id);
                    between.clear();
                    start = *to;
                }
                _ => between.push(*id),
            }
        }
        ids.extend(part_ids(start..text.len(), &between)?);
        Ok(ids)
    }
}

/// An error for messages that are not JSON.
pub(in super::super) fn not_json(e: serde_json::Error) -> Error {
    Error::caused(Stage::Text, "a message cannot be written as JSON", e)
}
