//! JSON numbers as regular expressions.
//!
//! A number without bounds may have any form. A number with bounds either has no exponent, or has
//! an exponent and one digit before the point. For these two forms, the texts of all numbers
//! between two bounds are a regular language. Every text that an expression matches has an allowed
//! value.

use super::scalar::Rx;
use llguidance::derivre::RegexAst;
use serde_json::Number;

/// An integer without its sign.
const WHOLE: &str = "(0|[1-9][0-9]*)";
/// An optional fraction.
const FRACTION: &str = r"(\.[0-9]+)?";
/// An optional fraction of zeros.
const ZEROS: &str = r"(\.0+)?";
/// Maximum number of digits of the form of a constant without an exponent.
const EXPANDED: i64 = 25;
/// Upper bound of the digits of a factor of `multipleOf`, read as an integer. The parser computes
/// remainders in 32 bits.
const MAX_FACTOR: u32 = 100_000_000;
/// Maximum number of digits of a factor after the point.
const MAX_PLACES: i64 = 8;

/// The value of a JSON number: `0.DIGITS` times ten to the power `exponent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    pub negative: bool,
    /// The first and the last digit are not zero. Empty for zero.
    digits: String,
    exponent: i64,
}

/// An end of a range.
#[derive(Clone, Debug)]
pub struct Bound {
    pub value: Decimal,
    /// The value itself is in the range.
    pub inclusive: bool,
}

impl Decimal {
    /// The exact value of the number as it is written.
    pub fn new(number: &Number) -> Self {
        let text = number.to_string();
        let (text, negative) = match text.strip_prefix('-') {
            Some(rest) => (rest, true),
            None => (text.as_str(), false),
        };
        let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let digits = all.trim_start_matches('0');
        let leading = all.len() - digits.len();
        let digits = digits.trim_end_matches('0').to_owned();
        let power: i64 = power.parse().unwrap_or(0);
        let exponent = power + signed(whole.len()) - signed(leading);
        Self {
            negative: negative && !digits.is_empty(),
            exponent: if digits.is_empty() { 0 } else { exponent },
            digits,
        }
    }

    fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    /// The digits before and after the point.
    fn parts(&self) -> (String, String) {
        let count = usize::try_from(self.exponent).unwrap_or(0);
        if self.exponent <= 0 {
            let zeros = usize::try_from(-self.exponent).unwrap_or(0);
            return ("0".to_owned(), "0".repeat(zeros) + &self.digits);
        }
        match self.digits.split_at_checked(count) {
            Some((whole, fraction)) => (whole.to_owned(), fraction.to_owned()),
            None => (format!("{:0<count$}", self.digits), String::new()),
        }
    }

    /// The first digit and the others.
    fn mantissa(&self) -> (&str, &str) {
        self.digits.split_at_checked(1).unwrap_or(("0", ""))
    }
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn regex(text: impl Into<String>) -> RegexAst {
    RegexAst::Regex(text.into())
}

fn any_of(parts: Vec<String>) -> RegexAst {
    RegexAst::Or(parts.into_iter().map(RegexAst::Regex).collect())
}

fn not(ast: RegexAst) -> RegexAst {
    RegexAst::Not(Box::new(ast))
}

fn minus(ast: RegexAst) -> RegexAst {
    RegexAst::Concat(vec![RegexAst::Literal("-".to_owned()), ast])
}

/// All numbers.
pub fn any() -> RegexAst {
    regex(format!("-?{}", unsigned()))
}

/// Texts with `least` to `most` digits and any other characters of numbers.
pub fn digits(least: u32, most: u32) -> RegexAst {
    let most = if most < u32::MAX {
        most.to_string()
    } else {
        String::new()
    };
    regex(format!("[-+.eE]*([0-9][-+.eE]*){{{least},{most}}}"))
}

fn unsigned() -> String {
    format!("{WHOLE}{FRACTION}([eE][+-]?[0-9]+)?")
}

/// The digits of `text` with their indices.
fn digits_of(text: &str) -> impl Iterator<Item = (usize, u8)> {
    text.bytes().enumerate().map(|(i, b)| (i, b.saturating_sub(b'0')))
}

/// The character class of the digits `least` to `most`. `None` if it is empty.
fn between(least: u8, most: u8) -> Option<String> {
    (least <= most && most <= 9).then(|| format!("[{least}-{most}]"))
}

fn before(text: &str, end: usize) -> &str {
    text.get(..end).unwrap_or_default()
}

/// Decimals of at most `whole.fraction`, as alternatives. If `whole` has one digit, theirs is at
/// least `least`. Without `point`, integers only.
fn at_most(whole: &str, fraction: &str, inclusive: bool, least: u8, point: bool) -> Vec<String> {
    let rest = if point { FRACTION } else { "" };
    let count = whole.len();
    let mut parts = Vec::new();
    if count > 1 {
        let more = count - 2;
        let zero = if least == 0 { "0|" } else { "" };
        parts.push(format!("({zero}[1-9][0-9]{{0,{more}}}){rest}"));
    }
    for (i, digit) in digits_of(whole) {
        let first = if i == 0 && count > 1 {
            1
        } else if i == 0 {
            least
        } else {
            0
        };
        let smaller = digit.checked_sub(1).and_then(|most| between(first, most));
        parts.extend(smaller.map(|class| {
            let free = count - i - 1;
            format!("{}{class}[0-9]{{{free}}}{rest}", before(whole, i))
        }));
    }
    if !point || fraction.is_empty() {
        if inclusive {
            parts.push(format!("{whole}{}", if point { ZEROS } else { "" }));
        }
        return parts;
    }
    parts.push(whole.to_owned());
    for (i, digit) in digits_of(fraction) {
        let same = before(fraction, i);
        if i > 0 {
            parts.push(format!(r"{whole}\.{same}"));
        }
        let smaller = digit.checked_sub(1).and_then(|most| between(0, most));
        parts.extend(smaller.map(|class| format!(r"{whole}\.{same}{class}[0-9]*")));
    }
    if inclusive {
        parts.push(format!(r"{whole}\.{fraction}0*"));
    }
    parts
}

/// Decimals of at least `whole.fraction`, as alternatives. With `single`, they have one digit
/// before the point.
fn at_least(whole: &str, fraction: &str, inclusive: bool, single: bool, point: bool) -> Vec<String> {
    let rest = if point { FRACTION } else { "" };
    let count = whole.len();
    let mut parts = Vec::new();
    if !single {
        parts.push(format!("[1-9][0-9]{{{count},}}{rest}"));
    }
    for (i, digit) in digits_of(whole) {
        parts.extend(between(digit + 1, 9).map(|class| {
            let free = count - i - 1;
            format!("{}{class}[0-9]{{{free}}}{rest}", before(whole, i))
        }));
    }
    if !point || fraction.is_empty() {
        parts.push(match inclusive {
            true => format!("{whole}{rest}"),
            false if point => format!(r"{whole}\.0*[1-9][0-9]*"),
            false => return parts,
        });
        return parts;
    }
    for (i, digit) in digits_of(fraction) {
        let same = before(fraction, i);
        let larger = between(digit + 1, 9);
        parts.extend(larger.map(|class| format!(r"{whole}\.{same}{class}[0-9]*")));
    }
    let more = if inclusive { "[0-9]*" } else { "0*[1-9][0-9]*" };
    parts.push(format!(r"{whole}\.{fraction}{more}"));
    parts
}

/// Exponents of at most `most`, with an optional sign and leading zeros.
fn exponents_to(most: i64) -> String {
    let size = most.unsigned_abs().to_string();
    if most >= 0 {
        format!(
            r"(-[0-9]+|\+?0*({}))",
            at_most(&size, "", true, 0, false).join("|")
        )
    } else {
        format!("-0*({})", at_least(&size, "", true, false, false).join("|"))
    }
}

/// Exponents of at least `least`.
fn exponents_from(least: i64) -> String {
    let size = least.unsigned_abs().to_string();
    if least > 0 {
        format!(r"\+?0*({})", at_least(&size, "", true, false, false).join("|"))
    } else {
        format!(
            r"(\+?[0-9]+|-0*({}))",
            at_most(&size, "", true, 0, false).join("|")
        )
    }
}

fn exponent(value: i64) -> String {
    match value {
        0 => "[+-]?0+".to_owned(),
        1.. => format!(r"\+?0*{value}"),
        _ => format!("-0*{}", value.unsigned_abs()),
    }
}

/// Zero without a minus sign.
fn zero() -> RegexAst {
    regex(format!("0{ZEROS}([eE][+-]?[0-9]+)?"))
}

/// Numbers without a minus sign that are at most `bound`, which is not negative.
fn up_to(bound: &Bound) -> RegexAst {
    let value = &bound.value;
    if value.is_zero() {
        return if bound.inclusive {
            zero()
        } else {
            RegexAst::NoMatch
        };
    }
    let (whole, fraction) = value.parts();
    let (first, more) = value.mantissa();
    let power = value.exponent - 1;
    let scaled = at_most(first, more, bound.inclusive, 1, true);
    RegexAst::Or(vec![
        any_of(at_most(&whole, &fraction, bound.inclusive, 0, true)),
        zero(),
        regex(format!("[1-9]{FRACTION}[eE]{}", exponents_to(power - 1))),
        with_power(scaled, power),
    ])
}

/// Numbers without a minus sign that are at least `bound`, which is not negative.
fn from(bound: &Bound) -> RegexAst {
    let value = &bound.value;
    let all = regex(unsigned());
    if value.is_zero() {
        return if bound.inclusive {
            all
        } else {
            RegexAst::And(vec![all, not(zero())])
        };
    }
    let (whole, fraction) = value.parts();
    let (first, more) = value.mantissa();
    let power = value.exponent - 1;
    let scaled = at_least(first, more, bound.inclusive, true, true);
    RegexAst::Or(vec![
        any_of(at_least(&whole, &fraction, bound.inclusive, false, true)),
        regex(format!("[1-9]{FRACTION}[eE]{}", exponents_from(power + 1))),
        with_power(scaled, power),
    ])
}

/// Mantissas with the exponent `power`.
fn with_power(mantissas: Vec<String>, power: i64) -> RegexAst {
    RegexAst::Concat(vec![any_of(mantissas), regex(format!("[eE]{}", exponent(power)))])
}

/// Numbers between two bounds.
pub fn range(low: Option<&Bound>, high: Option<&Bound>) -> Rx {
    if low.is_none() && high.is_none() {
        return Rx::All;
    }
    let zero_in = |bound: Option<&Bound>, far: bool| {
        bound.is_none_or(|b| {
            if b.value.is_zero() {
                b.inclusive
            } else {
                b.value.negative != far
            }
        })
    };
    let absolute = |b: &Bound| Bound {
        value: Decimal {
            negative: false,
            ..b.value.clone()
        },
        inclusive: b.inclusive,
    };
    let nothing = |inclusive| Bound {
        value: Decimal {
            negative: false,
            digits: String::new(),
            exponent: 0,
        },
        inclusive,
    };
    // Zero lies above a negative lower bound, and below a positive upper one.
    let has_zero = zero_in(low, false) && zero_in(high, true);
    let mut parts = Vec::new();
    if high.is_none_or(|b| !b.value.negative) {
        let least = low
            .filter(|b| !b.value.negative)
            .map_or_else(|| nothing(true), absolute);
        let most = high.map(|b| up_to(&absolute(b)));
        parts.push(RegexAst::And(
            [Some(from(&least)), most].into_iter().flatten().collect(),
        ));
    }
    if low.is_none_or(|b| b.value.negative) {
        let least = match high {
            Some(b) if b.value.negative => absolute(b),
            _ => nothing(has_zero),
        };
        let most = low.map(|b| up_to(&absolute(b)));
        parts.push(minus(RegexAst::And(
            [Some(from(&least)), most].into_iter().flatten().collect(),
        )));
    } else if has_zero {
        parts.push(minus(zero()));
    }
    Rx::Some(RegexAst::Or(parts))
}

/// Numbers that equal `value`, in the forms in which programs write them.
pub fn equal(number: &Number) -> RegexAst {
    let value = Decimal::new(number);
    let mut forms = vec![RegexAst::Literal(number.to_string())];
    if value.exponent.abs() + signed(value.digits.len()) <= EXPANDED {
        let sign = if value.negative { "-" } else { "" };
        let (whole, fraction) = value.parts();
        if fraction.is_empty() {
            forms.push(RegexAst::Literal(format!("{sign}{whole}.0")));
            forms.push(RegexAst::Literal(format!("{sign}{whole}")));
        } else {
            forms.push(RegexAst::Literal(format!("{sign}{whole}.{fraction}")));
        }
    }
    let power = value.exponent - 1;
    if !value.is_zero() && power.abs() > 4 {
        let (first, more) = value.mantissa();
        let point = if more.is_empty() { "" } else { r"\." };
        let sign = if value.negative { "-" } else { "" };
        let marks = if power < 0 { "-" } else { r"\+?" };
        let power = power.unsigned_abs();
        forms.push(regex(format!("{sign}{first}{point}{more}[eE]{marks}0?{power}")));
    }
    RegexAst::Or(forms)
}

/// Integers, or, if `holds` is false, numbers that are not integers.
pub fn integers(holds: bool) -> RegexAst {
    let fraction = if holds { "" } else { r"\.[0-9]*[1-9][0-9]*" };
    regex(format!("-?{WHOLE}{fraction}"))
}

/// Multiples of `factor`, whose sign is ignored; or, if `holds` is false, all other numbers.
pub fn multiples(factor: &Decimal, holds: bool) -> Result<RegexAst, String> {
    let places = signed(factor.digits.len()) - factor.exponent;
    let zeros = usize::try_from(-places).unwrap_or(0);
    let digits = (zeros < 10).then(|| factor.digits.clone() + &"0".repeat(zeros));
    let whole = digits.and_then(|d| d.parse::<u32>().ok());
    let Some(coefficient) = whole.filter(|c| (1..MAX_FACTOR).contains(c) && places <= MAX_PLACES) else {
        return Err(format!(
            "expected a number above 0 of fewer than 9 digits, with at most {MAX_PLACES} after the point"
        ));
    };
    let scale = u32::try_from(places).unwrap_or(0);
    // The parser expects as many digits after the point as the factor has. For a number with fewer
    // digits, the factor is replaced by its smallest multiple that has as few.
    let forms = (0..=scale).map(|places| {
        let divisor = coefficient / greatest_common_divisor(coefficient, 10_u32.pow(scale - places));
        let fraction = if places == 0 {
            String::new()
        } else {
            format!(r"\.[0-9]{{{places}}}")
        };
        let multiple = RegexAst::MultipleOf(divisor, places);
        let multiple = if holds { multiple } else { not(multiple) };
        let number = RegexAst::And(vec![regex(format!("{WHOLE}{fraction}")), multiple]);
        let zeros = if places > 0 && places == scale { "0*" } else { "" };
        RegexAst::Concat(vec![regex("-?"), number, regex(zeros)])
    });
    Ok(RegexAst::Or(forms.collect()))
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}
