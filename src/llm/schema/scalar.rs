//! Sets of scalars: `null`, `true`, `false`, numbers and strings.

use super::logic::{Claim, Kind, Outcome, Schemas};
use super::number::{self, Bound, Decimal};
use super::text;
use llguidance::derivre::{RegexAst, RegexBuilder};
use serde_json::{Map, Value};

/// Work limit for each query of a regular expression.
const FUEL: u64 = 50_000;

/// A set of texts.
#[derive(Clone, Debug)]
pub enum Rx {
    None,
    /// All texts of the kind.
    All,
    Some(RegexAst),
}

impl Rx {
    pub fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::None, _) | (_, Self::None) => Self::None,
            (Self::All, x) | (x, Self::All) => x.clone(),
            (Self::Some(a), Self::Some(b)) => Self::Some(RegexAst::And(vec![a.clone(), b.clone()])),
        }
    }

    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, _) | (_, Self::All) => Self::All,
            (Self::None, x) | (x, Self::None) => x,
            (Self::Some(a), Self::Some(b)) => Self::Some(RegexAst::Or(vec![a, b])),
        }
    }

    /// False if the set is certainly empty.
    pub fn may_match(&self) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(ast) => {
                let mut builder = RegexBuilder::new();
                let made = builder.mk(ast).and_then(|e| builder.to_regex_limited(e, FUEL));
                made.map_or(true, |mut regex| !regex.always_empty())
            }
        }
    }

    /// Whether the set contains the string `name`. Fails if its expression is too complex.
    pub fn has(&self, name: &str) -> Outcome<bool> {
        Ok(match self {
            Self::None => false,
            Self::All => true,
            Self::Some(ast) => {
                let mut builder = RegexBuilder::new();
                let text = Value::from(name).to_string();
                let made = builder.mk(ast).and_then(|e| builder.to_regex_limited(e, FUEL));
                let regex = made.map_err(|e| format!("its patterns for the member {text}: {e}"));
                regex?.is_match(&text)
            }
        })
    }
}

/// A kind of scalar value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Null,
    True,
    False,
    Number,
    Text,
}

impl Scalar {
    pub const ALL: [Self; 5] = [Self::Null, Self::True, Self::False, Self::Number, Self::Text];

    /// The regular expression of a set.
    pub fn regex(self, set: Rx) -> Option<RegexAst> {
        let word = |text: &str| RegexAst::Literal(text.to_owned());
        match set {
            Rx::None => None,
            Rx::Some(ast) => Some(ast),
            Rx::All => Some(match self {
                Self::Null => word("null"),
                Self::True => word("true"),
                Self::False => word("false"),
                Self::Number => number::any(),
                Self::Text => text::any(),
            }),
        }
    }

    /// Numbers of so many digits, or strings of so many characters, and other texts.
    pub fn lengths(self, least: u32, most: u32) -> RegexAst {
        match self {
            Self::Number => number::digits(least, most),
            _ => text::lengths(least, most),
        }
    }

    fn set(all: bool) -> Rx {
        if all { Rx::All } else { Rx::None }
    }

    fn number_keyword(
        claim: &Claim<'_>,
        map: &Map<String, Value>,
        key: &str,
        value: &Value,
    ) -> Outcome<Option<Rx>> {
        let low = key == "minimum" || key == "exclusiveMinimum";
        match key {
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {}
            _ => return Ok(None),
        }
        let exclusive = key.starts_with("exclusive");
        // In draft 4, this is a flag of `minimum` or `maximum`.
        if exclusive && value.is_boolean() {
            return Ok(None);
        }
        let Value::Number(number) = value else {
            return Err(claim.expected(key, "a number", value));
        };
        let value = Decimal::new(number);
        if key == "multipleOf" {
            let found = number::multiples(&value, claim.holds);
            return found
                .map(|ast| Some(Rx::Some(ast)))
                .map_err(|e| claim.fault(key, e));
        }
        let flag = if low {
            "exclusiveMinimum"
        } else {
            "exclusiveMaximum"
        };
        let open = exclusive || map.get(flag) == Some(&Value::Bool(true));
        // The numbers that violate it lie on the other side of the bound.
        let bound = Bound {
            value,
            inclusive: open != claim.holds,
        };
        Ok(Some(match low == claim.holds {
            true => number::range(Some(&bound), None),
            false => number::range(None, Some(&bound)),
        }))
    }

    fn text_keyword(claim: &Claim<'_>, key: &str, value: &Value) -> Outcome<Option<Rx>> {
        let holds = claim.holds;
        let checked = |n: usize| u32::try_from(n).unwrap_or(u32::MAX - 1);
        let found = match key {
            "minLength" | "maxLength" => {
                let n = checked(claim.count(key, value)?);
                let (least, most) = match (key == "minLength", holds) {
                    (true, true) => (n, None),
                    (false, true) => (0, Some(n)),
                    (false, false) => (n + 1, None),
                    (true, false) => match n.checked_sub(1) {
                        Some(most) => (0, Some(most)),
                        None => return Ok(Some(Rx::None)),
                    },
                };
                if (least, most) == (0, None) {
                    return Ok(Some(Rx::All));
                }
                text::demand(least as usize, "characters").map_err(|e| claim.fault(key, e))?;
                return Ok(Some(Rx::Some(text::lengths(least, most.unwrap_or(u32::MAX)))));
            }
            "pattern" => {
                let pattern = value.as_str();
                let pattern = pattern.ok_or_else(|| claim.expected(key, "a string", value))?;
                text::matching(pattern).map_err(|e| claim.fault(key, format!("{pattern:?}: {e}")))?
            }
            "format" => {
                let name = value.as_str();
                let name = name.ok_or_else(|| claim.expected(key, "a string", value))?;
                let Some(pattern) = text::format(name) else {
                    return Ok(None);
                };
                text::matching(&pattern).map_err(|e| claim.fault(key, e))?
            }
            _ => return Ok(None),
        };
        Ok(Some(Rx::Some(if holds {
            text::plainly(found)
        } else {
            other_texts(found)
        })))
    }
}

/// The strings that `ast` does not match.
pub fn other_texts(ast: RegexAst) -> RegexAst {
    RegexAst::And(vec![text::any(), RegexAst::Not(Box::new(ast))])
}

impl<'s> Kind<'s> for Scalar {
    type Set = Rx;

    fn all(&self, all: bool) -> Rx {
        Self::set(all)
    }

    fn and(&self, a: &Rx, b: &Rx) -> Outcome<Rx> {
        Ok(a.and(b))
    }

    fn or(&self, a: Rx, b: Rx) -> Rx {
        a.or(b)
    }

    fn is_none(&self, set: &Rx) -> bool {
        matches!(set, Rx::None)
    }

    fn may_hold(&self, _: &Schemas<'s>, set: &Rx) -> Outcome<bool> {
        Ok(set.may_match())
    }

    fn of_type(&self, name: &str, holds: bool) -> Rx {
        let own = match self {
            Self::Null => "null",
            Self::True | Self::False => "boolean",
            Self::Number => "number",
            Self::Text => "string",
        };
        match name {
            "integer" if *self == Self::Number => Rx::Some(number::integers(holds)),
            _ => Self::set((name == own) == holds),
        }
    }

    fn constant(&self, claim: &Claim<'s>) -> Outcome<Rx> {
        let holds = claim.holds;
        Ok(match (self, claim.schema) {
            (Self::Null, Value::Null)
            | (Self::True, Value::Bool(true))
            | (Self::False, Value::Bool(false)) => Self::set(holds),
            (Self::Number, Value::Number(n)) if holds => Rx::Some(number::equal(n)),
            (Self::Number, Value::Number(n)) => {
                let bound = Bound {
                    value: Decimal::new(n),
                    inclusive: false,
                };
                number::range(Some(&bound), None).or(number::range(None, Some(&bound)))
            }
            (Self::Text, Value::String(text)) if holds => Rx::Some(text::plainly(text::equal(text))),
            (Self::Text, Value::String(text)) => Rx::Some(other_texts(text::equal(text))),
            _ => Self::set(!holds),
        })
    }

    fn keyword(
        &self,
        _: &Schemas<'s>,
        claim: &Claim<'s>,
        map: &'s Map<String, Value>,
        key: &'s str,
        value: &'s Value,
    ) -> Outcome<Option<Rx>> {
        match self {
            Self::Number => Self::number_keyword(claim, map, key, value),
            Self::Text => Self::text_keyword(claim, key, value),
            _ => Ok(None),
        }
    }
}
