//! Symbols of a model (`batch`, `sequence_length`, ...) and values bound to them.

use super::dim::DimError;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Maximum length of a name in [`Symbol::parse`].
const MAX_NAME: usize = 256;

/// `text` for an error message; a very long text is cut and ends in `...`.
pub(super) fn shortened(text: &str) -> String {
    const KEPT: usize = 160;
    match text.char_indices().nth(KEPT) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// A named unknown integer. Two symbols are equal when their names are equal.
///
/// Names follow the rule of C identifiers (paper, section 2.1).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(Arc<str>);

impl Symbol {
    /// Makes a symbol; characters that are not allowed in a C identifier become `_`.
    pub fn new(name: &str) -> Self {
        let mut out: String = name
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '_' {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
            out.insert(0, '_');
        }
        Self(out.into())
    }

    /// The symbol of this name, which must be a C identifier: letters, digits and `_`, no leading
    /// digit, at most 256 bytes.
    pub fn parse(name: &str) -> Result<Self, DimError> {
        let legal = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !legal
            || name.is_empty()
            || name.len() > MAX_NAME
            || name.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(DimError::Symbol(shortened(name)));
        }
        Ok(Self(name.into()))
    }

    /// A symbol for internal use that no text can name.
    pub(super) fn hidden(name: &str) -> Self {
        Self(format!("`{name}`").into())
    }

    /// The name as written in expressions.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Values of symbols for one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(BTreeMap<Symbol, i64>);

impl Bindings {
    /// Bindings without any symbol.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds `symbol` to `value`, replacing an earlier value.
    pub fn set(&mut self, symbol: &Symbol, value: i64) -> &mut Self {
        self.0.insert(symbol.clone(), value);
        self
    }

    /// Removes the value of `symbol`.
    pub fn remove(&mut self, symbol: &Symbol) {
        self.0.remove(symbol);
    }

    /// The value of `symbol`, if bound.
    pub fn get(&self, symbol: &Symbol) -> Option<i64> {
        self.0.get(symbol).copied()
    }

    /// All bound symbols, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Symbol, i64)> {
        self.0.iter().map(|(s, v)| (s, *v))
    }
}

impl<const N: usize> From<[(&str, i64); N]> for Bindings {
    fn from(pairs: [(&str, i64); N]) -> Self {
        Self(pairs.into_iter().map(|(n, v)| (Symbol::new(n), v)).collect())
    }
}
