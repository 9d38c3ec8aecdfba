//! Stop strings, matched across token boundaries.

use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// Strings that end an answer and are not part of it. A special token in a string stands for that
/// token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStrings(Vec<String>);

impl StopStrings {
    /// A usage error for an empty string.
    pub fn new(list: Vec<String>) -> Result<Self> {
        if list.iter().any(String::is_empty) {
            return Err(Error::usage("stop", "a stop string must not be empty"));
        }
        Ok(Self(list))
    }

    /// Starts matching at the beginning of a text.
    pub fn matcher(&self) -> StopMatcher {
        StopMatcher {
            strings: self.0.clone(),
            held: String::new(),
            hidden: Vec::new(),
            found: None,
        }
    }

    /// The special tokens of `tokenizer` that occur in a string, with their names, by ID.
    pub(super) fn specials(&self, tokenizer: &Tokenizer) -> BTreeMap<u32, String> {
        if self.0.is_empty() {
            return BTreeMap::new();
        }
        let mut all = tokenizer.specials();
        all.retain(|_, name| !name.is_empty() && self.0.iter().any(|s| s.contains(name.as_str())));
        all
    }
}

/// Looks for stop strings in a text that arrives in pieces. The result does not depend on how the
/// text is split: it ends before the string that is completed first, or before the longest if
/// several are completed together.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    strings: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
    /// Parts of `held` that are names of special tokens, which the text does not contain.
    hidden: Vec<Range<usize>>,
    /// Index of the stop string that was found.
    found: Option<usize>,
}

impl StopMatcher {
    /// Takes the next piece and returns the text that is certain to stay. Returns nothing once a
    /// stop string was found.
    pub fn push(&mut self, piece: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held.push_str(piece);
        let ends = self.strings.iter().enumerate().filter_map(|(i, s)| {
            let start = self.held.find(s.as_str())?;
            Some((start + s.len(), start, i))
        });
        if let Some((_, start, i)) = ends.min() {
            self.found = Some(i);
            let text = self.split(start);
            (self.held, self.hidden) = Default::default();
            return text;
        }
        self.split(self.held.len() - self.beginning())
    }

    /// Takes a special token. Its name is matched like text, but never returned.
    pub fn push_special(&mut self, name: &str) -> String {
        let start = self.held.len();
        self.hidden.push(start..start + name.len());
        self.push(name)
    }

    /// Takes the first `len` bytes of what is held. Returns their text.
    fn split(&mut self, len: usize) -> String {
        let rest = self.held.split_off(len);
        let start = std::mem::replace(&mut self.held, rest);
        let (mut text, mut done) = (String::new(), 0);
        for range in &mut self.hidden {
            text.push_str(&start[done..range.start.min(len)]);
            done = range.end.min(len).max(done);
            *range = range.start.saturating_sub(len)..range.end.saturating_sub(len);
        }
        text.push_str(&start[done..]);
        self.hidden.retain(|range| range.end > 0);
        text
    }

    /// Length of the longest suffix of the held text that is a prefix of a stop string.
    fn beginning(&self) -> usize {
        let most = self.strings.iter().map(|s| s.len() - 1).max().unwrap_or(0);
        let starts = self.held.char_indices().map(|(at, _)| at);
        let mut ends = starts.filter(|at| self.held.len() - at <= most);
        let is_start = |at: &usize| self.strings.iter().any(|s| s.starts_with(&self.held[*at..]));
        ends.find(is_start).map_or(0, |at| self.held.len() - at)
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.strings.get(self.found?).map(String::as_str)
    }

    /// Ends the text and returns the held text.
    pub fn finish(&mut self) -> String {
        self.split(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strings(list: &[&str]) -> StopStrings {
        StopStrings::new(list.iter().map(|s| (*s).to_owned()).collect()).unwrap()
    }

    /// The text before the first stop string, read character by character.
    fn reference(text: &str, list: &[String]) -> (String, bool) {
        let mut seen = String::new();
        for c in text.chars() {
            seen.push(c);
            let longest = list
                .iter()
                .filter(|s| seen.ends_with(s.as_str()))
                .map(String::len)
                .max();
            if let Some(n) = longest {
                seen.truncate(seen.len() - n);
                return (seen, true);
            }
        }
        (seen, false)
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            pieces in proptest::collection::vec("[ab\u{e9}]{0,3}", 0..12),
            list in proptest::collection::vec("[ab\u{e9}]{1,4}", 0..4),
        ) {
            let stop = StopStrings::new(list.clone()).unwrap();
            let mut matcher = stop.matcher();
            let mut shown = String::new();
            let mut given = String::new();
            for piece in &pieces {
                let certain = matcher.push(piece);
                shown.push_str(&certain);
                given.push_str(piece);
                prop_assert!(given.starts_with(&shown), "{shown:?} of {given:?}");
                if matcher.found().is_none() {
                    let (wanted, found) = reference(&given, &list);
                    prop_assert!(!found && wanted.starts_with(&shown));
                }
            }
            let found = matcher.found().is_some();
            shown.push_str(&matcher.finish());
            prop_assert_eq!((shown, found), reference(&pieces.concat(), &list));
        }
    }

    #[test]
    fn only_what_may_become_a_stop_string_waits() {
        let stop = strings(&["</s>", "\n\nUser"]);
        let mut matcher = stop.matcher();
        let pieces = ["Hi <", "b>", "</", "s", "x", "\n", "\n", "User: more", "x"].map(|p| matcher.push(p));
        assert_eq!(pieces, ["Hi ", "<b>", "", "", "</sx", "", "", "", ""]);
        assert!(matcher.found().is_some());
        assert_eq!(matcher.finish(), "");
        let mut matcher = stop.matcher();
        assert_eq!(matcher.push("a\n"), "a");
        assert!(matcher.found().is_none());
        assert_eq!(matcher.finish(), "\n", "what was held back is text after all");
    }

    #[test]
    fn names_of_special_tokens_are_matched_but_not_shown() {
        let stop = strings(&["<e>", "x<f>y"]);
        let mut matcher = stop.matcher();
        assert_eq!(matcher.push("ab"), "ab");
        assert_eq!(matcher.push("x"), "");
        assert_eq!(matcher.push_special("<f>"), "");
        assert_eq!(matcher.push("zx"), "xz", "no stop string after all");
        assert_eq!(matcher.push_special("<e>"), "x");
        assert_eq!(matcher.found(), Some("<e>"));
        let mut matcher = stop.matcher();
        let pieces = [
            matcher.push("abx"),
            matcher.push_special("<f>"),
            matcher.push("y"),
        ];
        assert_eq!((pieces.concat().as_str(), matcher.found()), ("ab", Some("x<f>y")));
        let mut matcher = stop.matcher();
        let pieces = [matcher.push("x"), matcher.push_special("<f>"), matcher.finish()];
        assert_eq!(pieces, ["", "", "x"]);
    }

    #[test]
    fn empty_ones_are_refused() {
        let e = StopStrings::new(vec!["a".to_owned(), String::new()]).unwrap_err();
        crate::testing::assert_usage(&e, "stop", &[]);
        assert_eq!(strings(&[]).matcher().push("anything"), "anything");
    }
}
