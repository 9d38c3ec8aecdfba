//! JSON schemas as grammars of the JSON texts that satisfy them.

mod array;
mod defaults;
mod emit;
mod logic;
mod number;
mod object;
mod scalar;
#[cfg(test)]
mod tests;
mod text;
pub(super) mod watch;

use defaults::Defaults;
use llguidance::derivre::RegexAst;
use llguidance::earley::Grammar;
use llguidance::earley::lexerspec::LexerSpec;
use serde_json::Value;
use std::fmt;

/// White space between the tokens of JSON that a schema constrains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhiteSpace {
    /// Up to 20 blanks, or a line break and up to 20 blanks.
    #[default]
    Bounded,
    /// None, so that the text is on one line.
    Compact,
    /// Any, without an upper bound.
    Unlimited,
}

impl WhiteSpace {
    fn regex(self) -> RegexAst {
        match self {
            Self::Bounded => RegexAst::Regex(r"[ \t]{1,20}|\r?\n[ \t]{0,20}".to_owned()),
            Self::Compact => RegexAst::NoMatch,
            Self::Unlimited => RegexAst::Regex(r"[ \t\r\n]+".to_owned()),
        }
    }
}

/// How JSON that a schema constrains is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaOptions {
    /// White space between the tokens.
    pub json_space: WhiteSpace,
    /// Lifts the bounds of values that the schema does not bound ([`DefaultBound`]).
    pub json_unbounded: bool,
}

/// A bound for values that the schema does not bound, so that an answer ends. A schema that demands
/// larger values has larger bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultBound {
    /// A number has at most 40 digits.
    Digits,
    /// A string, or the name of a member, has at most 4096 characters.
    Characters,
    /// An array has at most 256 items, and an object at most 256 members that are not declared.
    Items,
}

impl DefaultBound {
    /// What it counts, in reports: `digits`, `characters` or `items`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Digits => "digits",
            Self::Characters => "characters",
            Self::Items => "items",
        }
    }

    /// The largest number of digits, characters or items.
    pub fn most(self) -> u32 {
        match self {
            Self::Digits => 40,
            Self::Characters => 4096,
            Self::Items => 256,
        }
    }
}

impl fmt::Display for DefaultBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, keyword) = match self {
            Self::Digits => ("a number ended at the default bound of 40 digits", "`maximum`"),
            Self::Characters => (
                "a string or name ended at the default bound of 4096 characters",
                "`maxLength`",
            ),
            Self::Items => (
                "an array or object ended at the default bound of 256 items or undeclared members",
                "`maxItems` or `maxProperties`",
            ),
        };
        write!(f, "{value}; {keyword} in the schema sets another bound")
    }
}

/// A schema as a grammar.
pub(super) struct Compiled {
    pub grammar: Grammar,
    pub lexer: LexerSpec,
    /// Objects may have members that are not declared. The grammar does not forbid that two of them
    /// have the same name.
    pub open: bool,
    pub defaults: Defaults,
}

/// The grammar of JSON that satisfies `schema`. The error names the keyword that is wrong or cannot
/// be expressed.
pub(super) fn compile(schema: &Value, options: &SchemaOptions) -> Result<Compiled, String> {
    emit::grammar(schema, options)
}
