//! JSON schemas as grammars of the JSON texts that satisfy them.

mod array;
mod emit;
mod logic;
mod number;
mod object;
mod scalar;
#[cfg(test)]
mod tests;
mod text;

use llguidance::derivre::RegexAst;
use llguidance::earley::Grammar;
use llguidance::earley::lexerspec::LexerSpec;
use serde_json::Value;

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

/// The grammar and the lexer of JSON that satisfies `schema`. The error names the keyword that is
/// wrong or cannot be expressed.
pub(super) fn compile(schema: &Value, space: WhiteSpace) -> Result<(Grammar, LexerSpec), String> {
    emit::grammar(schema, space.regex())
}
