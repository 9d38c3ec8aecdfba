//! Python's operator `%`.

use super::call::refuse;
use super::meter::{Meter, units};
use super::python;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

/// Python's `%`: formats if `left` is a text, and otherwise computes the remainder of numbers.
pub(super) fn percent(meter: &Meter, left: &Value, right: &Value) -> Result<Value, Error> {
    let Some(text) = left.as_str() else {
        return remainder(left, right);
    };
    let values: Vec<Value> = match right.is_tuple() {
        true => right.try_iter()?.collect(),
        false => vec![right.clone()],
    };
    printf(meter, text, &values).map(Value::from)
}

/// The remainder. It has the sign of the divisor.
pub(super) fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    let number = |value: &Value| python::integer(value);
    if let (Some(a), Some(b)) = (number(left), number(right)) {
        let rest = (b != 0).then(|| a.wrapping_rem(b)).map(|rest| {
            if rest != 0 && (rest < 0) != (b < 0) {
                rest + b
            } else {
                rest
            }
        });
        return rest.map_or_else(
            || refuse("the divisor of `%` is zero"),
            |rest| Ok(Value::from(rest)),
        );
    }
    let real = |value: &Value| match value.kind() {
        ValueKind::Number | ValueKind::Bool => f64::try_from(value.clone()).ok(),
        _ => None,
    };
    match (real(left), real(right)) {
        (Some(_), Some(0.0)) => refuse("the divisor of `%` is zero"),
        (Some(a), Some(b)) => {
            let rest = a % b;
            let same = rest == 0.0 || (rest < 0.0) == (b < 0.0);
            Ok(Value::from(if same { rest.abs().copysign(b) } else { rest + b }))
        }
        _ => refuse(format!(
            "`%` does not work on {} and {}",
            left.kind(),
            right.kind()
        )),
    }
}

/// A conversion such as `%-8.3f` or `%(name)s`.
struct Conversion<'t> {
    key: Option<&'t str>,
    flags: &'t str,
    width: &'t str,
    precision: Option<&'t str>,
    letter: char,
}

impl<'t> Conversion<'t> {
    /// Parses the text after a `%`. Also returns the rest of the text.
    fn read(text: &'t str) -> Option<(Self, &'t str)> {
        let number = |text: &'t str| {
            let digits = text.strip_prefix('*');
            let rest = digits.unwrap_or_else(|| text.trim_start_matches(|c: char| c.is_ascii_digit()));
            (text.strip_suffix(rest).unwrap_or_default(), rest)
        };
        let (key, rest) = match text.strip_prefix('(') {
            Some(inside) => inside.split_once(')').map(|(key, rest)| (Some(key), rest))?,
            None => (None, text),
        };
        let after = rest.trim_start_matches(['-', '+', ' ', '#', '0']);
        let flags = rest.strip_suffix(after).unwrap_or_default();
        let (width, rest) = number(after);
        let (precision, rest) = match rest.strip_prefix('.') {
            Some(rest) => {
                let (precision, rest) = number(rest);
                (Some(precision), rest)
            }
            None => (None, rest),
        };
        let rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
        let letter = rest.chars().next()?;
        let conversion = Self {
            key,
            flags,
            width,
            precision,
            letter,
        };
        Some((conversion, rest.get(letter.len_utf8()..)?))
    }
}

/// The values that conversions consume.
struct Values<'a> {
    all: &'a [Value],
    next: usize,
    /// The only value, if it is a mapping.
    mapping: Option<&'a Value>,
}

impl Values<'_> {
    fn take(&mut self) -> Result<Value, Error> {
        let value = self.all.get(self.next).cloned();
        self.next += 1;
        value.map_or_else(|| refuse("not enough arguments for the format string"), Ok)
    }

    fn named(&mut self, key: &str) -> Result<Value, Error> {
        let Some(mapping) = self.mapping else {
            return refuse("a format with names needs a mapping");
        };
        self.next = 1;
        let value = mapping.get_attr(key)?;
        match value.is_undefined() {
            true => refuse(format!("the format string names `{key}`, which is missing")),
            false => Ok(value),
        }
    }

    /// A width or a precision. `*` takes it from the values.
    fn size(&mut self, written: &str) -> Result<Option<i64>, Error> {
        let size = match written {
            "" => return Ok(None),
            "*" => python::integer(&self.take()?),
            digits => digits.parse().ok(),
        };
        size.map_or_else(
            || refuse("a format string has an invalid width or precision"),
            |n| Ok(Some(n)),
        )
    }
}

/// `values` formatted by `format`. If the only value is a mapping, its values are also available by
/// key.
pub(super) fn printf(meter: &Meter, format: &str, values: &[Value]) -> Result<String, Error> {
    let mapping = match values {
        [only] if only.kind() == ValueKind::Map => Some(only),
        _ => None,
    };
    let mut values = Values {
        all: values,
        next: 0,
        mapping,
    };
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let Some((conversion, after)) = Conversion::read(after) else {
            return refuse("a format string ends within a conversion");
        };
        rest = after;
        if conversion.letter == '%' {
            out.push('%');
            continue;
        }
        convert(meter, &conversion, &mut values, &mut out)?;
    }
    out.push_str(rest);
    if values.mapping.is_none() && values.next < values.all.len() {
        return refuse("not all arguments are used by the format string");
    }
    Ok(out)
}

fn convert(
    meter: &Meter,
    conversion: &Conversion<'_>,
    values: &mut Values<'_>,
    out: &mut String,
) -> Result<(), Error> {
    let width = values.size(conversion.width)?;
    let precision = match conversion.precision {
        Some("") => Some(0),
        Some(written) => values.size(written)?.map(|n| n.max(0)),
        None => None,
    };
    let value = match conversion.key {
        Some(key) => values.named(key)?,
        None => values.take()?,
    };
    let left = conversion.flags.contains('-') || width.is_some_and(|n| n < 0);
    let (width, precision) = (width.map(i64::unsigned_abs), precision.map(i64::unsigned_abs));
    let size = width.unwrap_or(0).saturating_add(precision.unwrap_or(0));
    meter.charge(size.saturating_add(meter.weigh(&value)?.units))?;
    let text = match conversion.letter {
        's' => python::text(&value)?,
        'r' => python::repr_text(&value)?,
        'a' => python::ascii(&python::repr_text(&value)?),
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'c' => {
            let flags = match left {
                true => format!("-{}", conversion.flags.replace('0', "")),
                false => conversion.flags.to_owned(),
            };
            let width = width.map_or_else(String::new, |n| n.to_string());
            let precision = precision.map_or_else(String::new, |n| format!(".{n}"));
            let letter = conversion.letter;
            out.push_str(&number(
                &format!("%{flags}{width}{precision}{letter}"),
                letter,
                &value,
            )?);
            return Ok(());
        }
        other => return refuse(format!("a format string has an unknown conversion `%{other}`")),
    };
    let most = precision.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let text: String = text.chars().take(most).collect();
    let pad = width.map_or(0, |n| n.saturating_sub(units(text.chars().count())));
    let pad = std::iter::repeat_n(' ', usize::try_from(pad).unwrap_or(0));
    if left {
        out.push_str(&text);
        out.extend(pad);
    } else {
        out.extend(pad);
        out.push_str(&text);
    }
    Ok(())
}

/// A number, formatted by the single conversion `written`.
fn number(written: &str, letter: char, value: &Value) -> Result<String, Error> {
    let whole = matches!(letter, 'd' | 'i' | 'u');
    let value = match value.kind() {
        ValueKind::Bool => Value::from(u8::from(value.is_true())),
        ValueKind::Number if whole && !value.is_integer() => {
            python::truncated(f64::try_from(value.clone())?)?
        }
        ValueKind::Number => value.clone(),
        ValueKind::String if letter == 'c' => value.clone(),
        other => return refuse(format!("`%{letter}` needs a number, found {other}")),
    };
    let written = match letter {
        'i' | 'u' => written.replace(letter, "d"),
        _ => written.to_owned(),
    };
    format(FormatStyle::Printf, &written, &[value])
}
