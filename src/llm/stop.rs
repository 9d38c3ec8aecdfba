//! Stop strings, matched across token boundaries.

use crate::error::{Error, Result};

/// Strings that end an answer and are not part of it.
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
            found: None,
        }
    }
}

/// Looks for stop strings in a text that arrives in pieces. The result does not depend on how the
/// text is split: it ends before the string that is completed first, or before the longest if
/// several are completed together.
#[derive(Debug)]
pub struct StopMatcher {
    strings: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
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
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let certain = self.held.len() - self.beginning();
        let rest = self.held.split_off(certain);
        std::mem::replace(&mut self.held, rest)
    }

    /// Length of the longest suffix of the held text that is a prefix of a stop string.
    fn beginning(&self) -> usize {
        let most = self.strings.iter().map(|s| s.len() - 1).max().unwrap_or(0);
        let starts = self.held.char_indices().map(|(at, _)| at);
        let mut ends = starts.filter(|at| self.held.len() - at <= most);
        let is_start = |at: &usize| {
            let end = self.held.get(*at..).unwrap_or_default();
            self.strings.iter().any(|s| s.starts_with(end))
        };
        ends.find(is_start).map_or(0, |at| self.held.len() - at)
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.strings.get(self.found?).map(String::as_str)
    }

    /// Ends the text and returns the held text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
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
    fn empty_ones_are_refused() {
        let e = StopStrings::new(vec!["a".to_owned(), String::new()]).unwrap_err();
        crate::testing::assert_usage(&e, "stop", &[]);
        assert_eq!(strings(&[]).matcher().push("anything"), "anything");
    }
}
