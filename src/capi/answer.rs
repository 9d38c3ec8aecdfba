//! Answers that are generated for a caller in C.

use super::TliteFinish;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::llm::{Finish, Piece};

/// Clears a flag when it is dropped.
pub(super) struct Over<'a>(pub &'a Cancel);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.reset();
    }
}

/// Passes the texts of `pieces` to `put` until it returns false. Returns whether `put` took them
/// all.
pub(super) fn stream(
    pieces: &mut dyn Iterator<Item = Result<Piece>>,
    put: &mut dyn FnMut(&str) -> bool,
) -> Result<bool> {
    for piece in pieces {
        let text = piece?.text;
        if !text.is_empty() && !put(&text) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn finish(wanted: bool, finish: Option<Finish>) -> TliteFinish {
    match finish {
        _ if !wanted => TliteFinish::Callback,
        Some(Finish::Stop) => TliteFinish::StopString,
        Some(Finish::MaxTokens) => TliteFinish::MaxTokens,
        Some(Finish::ContextFull) => TliteFinish::ContextFull,
        Some(Finish::Cancelled) => TliteFinish::Cancelled,
        Some(Finish::Eos(_) | Finish::Complete) | None => TliteFinish::EndOfText,
    }
}
