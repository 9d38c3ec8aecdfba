//! Symbols of a model (`batch`, `sequence_length`, ...) and values bound to them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A named unknown integer. Two symbols are equal when their names are equal.
///
/// Names follow the rule of C identifiers (paper, section 2.1).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(Arc<str>);

impl Symbol {
    /// Makes a symbol, replacing every character that a C identifier cannot hold by `_`.
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
    /// No symbol bound.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds `symbol` to `value`, replacing an earlier value.
    pub fn set(&mut self, symbol: &Symbol, value: i64) -> &mut Self {
        self.0.insert(symbol.clone(), value);
        self
    }

    /// Takes the value of `symbol` away.
    pub fn remove(&mut self, symbol: &Symbol) {
        self.0.remove(symbol);
    }

    /// The value of `symbol`, if bound.
    pub fn get(&self, symbol: &Symbol) -> Option<i64> {
        self.0.get(symbol).copied()
    }

    /// All bound symbols in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&Symbol, i64)> {
        self.0.iter().map(|(s, v)| (s, *v))
    }
}

impl<const N: usize> From<[(&str, i64); N]> for Bindings {
    fn from(pairs: [(&str, i64); N]) -> Self {
        Self(pairs.into_iter().map(|(n, v)| (Symbol::new(n), v)).collect())
    }
}
