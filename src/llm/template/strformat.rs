//! Python's `str.format`.

use super::call::refuse;
use super::meter::Meter;
use super::python;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

/// The arguments of a call.
struct Arguments<'a> {
    given: &'a [Value],
    /// Position of the argument for the next field without a name.
    next: usize,
}

/// Python's `text.format(*given)`.
pub(super) fn str_format(meter: &Meter, text: &str, given: &[Value]) -> Result<String, Error> {
    filled(meter, text, &mut Arguments { given, next: 0 }, true)
}

/// `text` with its fields replaced. A field inside a format specification must not have one of its
/// own.
fn filled(meter: &Meter, text: &str, all: &mut Arguments<'_>, outer: bool) -> Result<String, Error> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, after) = rest.split_at_checked(at).unwrap_or((rest, ""));
        out.push_str(before);
        if let Some(after) = after.strip_prefix("{{").or(after.strip_prefix("}}")) {
            out.push_str(rest.get(at..at + 1).unwrap_or_default());
            rest = after;
            continue;
        }
        let field = after
            .strip_prefix('{')
            .and_then(|after| Some(after.split_at_checked(end(after)?)));
        let Some(Some((field, after))) = field else {
            return refuse("format: a single brace in a format string");
        };
        rest = after.strip_prefix('}').unwrap_or(after);
        let (name, spec) = match field.split_once(':') {
            Some(_) if !outer => return refuse("format: fields are nested too deeply"),
            Some((name, spec)) => (name, spec),
            None => (field, ""),
        };
        let (name, conversion) = match name.rsplit_once('!') {
            Some((name, conversion)) => (name, Some(conversion)),
            None => (name, None),
        };
        // Before those of the specification, which are numbered after it.
        let value = all.value(name)?;
        let spec = filled(meter, spec, all, false)?;
        let value = match conversion {
            None => value,
            Some("s") => Value::from(python::text(&value)?),
            Some("r") => Value::from(python::repr_text(&value)?),
            Some("a") => Value::from(python::ascii(&python::repr_text(&value)?)),
            Some(other) => return refuse(format!("format: unknown conversion `!{other}`")),
        };
        let width = spec
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse::<u64>().ok())
            .max();
        let long = spec
            .split(|c: char| !c.is_ascii_digit())
            .any(|digits| digits.len() > 18);
        meter.charge(if long { u64::MAX } else { width.unwrap_or(0) })?;
        meter.weigh(&value)?;
        out.push_str(&field_text(&value, &spec)?);
    }
    out.push_str(rest);
    Ok(out)
}

/// The end of the field at the start of `text`.
fn end(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    text.char_indices().find_map(|(at, c)| match c {
        '{' => {
            depth += 1;
            None
        }
        '}' if depth == 0 => Some(at),
        '}' => {
            depth -= 1;
            None
        }
        _ => None,
    })
}

impl Arguments<'_> {
    /// The value of a field. `name` may be empty, or, for example, `0`, `name.attribute` or
    /// `name[key]`.
    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let first = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut path) = name.split_at_checked(first).unwrap_or((name, ""));
        let positional = self.given.iter().filter(|value| !value.is_kwargs());
        let mut value = match (first, first.parse::<usize>()) {
            ("", _) => {
                let value = positional.clone().nth(self.next).cloned();
                self.next += 1;
                value
            }
            (_, Ok(at)) => positional.clone().nth(at).cloned(),
            (name, Err(_)) => {
                let named = self.given.last().filter(|last| last.is_kwargs());
                named
                    .map(|named| named.get_attr(name))
                    .transpose()?
                    .filter(|value| !value.is_undefined())
            }
        };
        while let Some(found) = value.as_ref().filter(|_| !path.is_empty()) {
            let (part, rest) = match path.strip_prefix('[') {
                Some(inside) => inside.split_once(']').unwrap_or((inside, "")),
                None => {
                    let name = path.trim_start_matches('.');
                    name.split_at_checked(name.find(['.', '[']).unwrap_or(name.len()))
                        .unwrap_or((name, ""))
                }
            };
            value = Some(match part.parse::<usize>() {
                Ok(at) => found.get_item(&Value::from(at))?,
                Err(_) => found.get_attr(part)?,
            });
            path = rest;
        }
        value.map_or_else(
            || refuse(format!("format: there is no argument for `{{{name}}}`")),
            Ok,
        )
    }
}

/// `value`, formatted by the specification.
fn field_text(value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return python::text(value);
    }
    let value = match value.kind() {
        ValueKind::Bool => Value::from(u8::from(value.is_true())),
        ValueKind::Number | ValueKind::String => value.clone(),
        other => {
            return refuse(format!(
                "format: `{spec}` cannot format a value of the type {other}"
            ));
        }
    };
    let Some(places) = spec.strip_suffix('%') else {
        return format(FormatStyle::StrFormat, &format!("{{:{spec}}}"), &[value]);
    };
    let places = if places.is_empty() {
        Some(6)
    } else {
        places.strip_prefix('.').and_then(|n| n.parse().ok())
    };
    match (places, f64::try_from(value)) {
        (Some(places @ 0..=300), Ok(number)) => Ok(format!("{:.places$}%", number * 100.0)),
        _ => refuse(format!("format: the specification `{spec}` is not supported")),
    }
}
