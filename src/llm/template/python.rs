//! Prints values like Python, and JSON like Python's `json` module.

use super::call::{Call, refuse};
use super::filters::escaped;
use super::meter::{NODE, units};
use super::objects::{self, Group, Range, View};
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Error, Output, State, Value};
use serde_json::Value as Json;
use std::fmt::Write;

/// An integer, or a boolean as 0 or 1.
pub(super) fn integer(value: &Value) -> Option<i64> {
    match value.kind() {
        ValueKind::Bool => Some(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value.as_i64(),
        _ => None,
    }
}

/// The integer part of a float. Fails for NaN and infinities.
pub(super) fn truncated(v: f64) -> Result<Value, Error> {
    // The cast saturates beyond this.
    const MOST: f64 = 1e38;
    if v.abs() < MOST {
        #[expect(clippy::cast_possible_truncation, reason = "the fraction is dropped")]
        let whole = v as i128;
        return Ok(Value::from(whole));
    }
    refuse(format!("{} has no integer part", float(v)))
}

/// The keys and values of an object.
pub(super) fn items(value: &Value) -> impl Iterator<Item = [Value; 2]> + '_ {
    let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
    pairs.into_iter().flatten().map(|(key, value)| [key, value])
}

/// Fails if Python cannot order these values.
pub(super) fn check_comparable(a: &Value, b: &Value) -> Result<(), Error> {
    let class = |value: &Value| match value.kind() {
        ValueKind::Bool => ValueKind::Number,
        other => other,
    };
    let ordered = matches!(
        class(a),
        ValueKind::Number | ValueKind::String | ValueKind::Bytes | ValueKind::Seq
    );
    match ordered && class(a) == class(b) {
        true => Ok(()),
        false => refuse(format!(
            "values of the types {} and {} have no order",
            a.kind(),
            b.kind()
        )),
    }
}

/// The negative of a number or a boolean.
pub(super) fn negative(value: &Value) -> Result<Value, Error> {
    let negated = match value.kind() {
        ValueKind::Bool => Some(Value::from(-i8::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone())
            .ok()
            .and_then(i128::checked_neg)
            .map(Value::from),
        ValueKind::Number => Some(Value::from(-f64::try_from(value.clone())?)),
        _ => None,
    };
    negated.map_or_else(|| refuse(format!("a {} has no negative", value.kind())), Ok)
}

/// Prints a value like Jinja: the result of Python's `str`.
pub(super) fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let text = text(value)?;
    let plain = value.is_safe() || *state.auto_escape() == AutoEscape::None;
    out.write_str(&if plain { text } else { escaped(&text) })?;
    Ok(())
}

/// Python's `str` of a value; a text is returned unchanged.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Undefined => Ok(String::new()),
        _ => repr_text(value),
    }
}

/// Python's `repr` of a value.
pub(super) fn repr_text(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    repr(&mut out, value)?;
    Ok(out)
}

/// `text` with all characters except ASCII escaped.
pub(super) fn ascii(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c.is_ascii() {
            true => out.push(c),
            false => out.push_str(&escape(c)),
        }
    }
    out
}

/// The escape of a character in a Python string literal.
pub(super) fn escape(c: char) -> String {
    match u32::from(c) {
        n @ 0..=0xff => format!("\\x{n:02x}"),
        n @ 0x100..=0xffff => format!("\\u{n:04x}"),
        n => format!("\\U{n:08x}"),
    }
}

/// Whether Python's `repr` writes a character unescaped.
pub(super) fn is_printable(c: char) -> bool {
    // Rust escapes the same characters, and also a combining character at the start of a text.
    let text: String = ['a', c].iter().collect();
    matches!(c, '\'' | '"' | '\\') || text.escape_debug().eq(text.chars())
}

/// Writes Python's `repr` of a value.
fn repr(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    if let Some(range) = value.downcast_object_ref::<Range>() {
        return Ok(write!(out, "{range}")?);
    }
    if objects::is_namespace(value) {
        out.write_str("<Namespace ")?;
    }
    match value.kind() {
        ValueKind::None => out.write_str("None")?,
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" })?,
        ValueKind::Number if value.is_integer() => write!(out, "{value}")?,
        ValueKind::Number => out.write_str(&float(f64::try_from(value.clone())?))?,
        ValueKind::String => {
            let text = quoted(value.as_str().unwrap_or_default(), is_printable);
            out.write_str(&if value.is_safe() {
                format!("Markup({text})")
            } else {
                text
            })?;
        }
        ValueKind::Undefined => out.write_str("Undefined")?,
        ValueKind::Bytes => {
            let text: String = value
                .as_bytes()
                .unwrap_or_default()
                .iter()
                .map(|b| char::from(*b))
                .collect();
            out.write_str("b")?;
            out.write_str(&quoted(&text, |c| matches!(c, ' '..='~')))?;
        }
        ValueKind::Seq => {
            let tuple = value.is_tuple() || value.downcast_object_ref::<Group>().is_some();
            let [open, close] = if tuple { ["(", ")"] } else { ["[", "]"] };
            out.write_str(open)?;
            for (i, item) in value.try_iter()?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                repr(out, &item)?;
            }
            if tuple && value.len() == Some(1) {
                out.write_str(",")?;
            }
            out.write_str(close)?;
        }
        ValueKind::Map => {
            out.write_str("{")?;
            for (i, key) in value.try_iter()?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                repr(out, &key)?;
                out.write_str(": ")?;
                repr(out, &value.get_item(&key)?)?;
            }
            out.write_str("}")?;
        }
        ValueKind::Iterable => {
            let items = value.try_iter()?.collect();
            match value.downcast_object_ref::<View>() {
                Some(view) => write!(out, "{}({})", view.name, repr_text(&items)?)?,
                None => repr(out, &items)?,
            }
        }
        other => return refuse(format!("a value of the type {other} cannot be printed")),
    }
    if objects::is_namespace(value) {
        out.write_str(">")?;
    }
    Ok(())
}

/// A quoted text: with single quotes unless it contains single quotes and no double quotes.
/// Characters that are not `printable` are escaped.
fn quoted(text: &str, printable: fn(char) -> bool) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if printable(c) => out.push(c),
            c => out.push_str(&escape(c)),
        }
    }
    out.push(quote);
    out
}

/// A float with the fewest digits that identify it; exponents have a sign and at least two digits.
fn float(v: f64) -> String {
    let text = format!("{v:?}").to_lowercase();
    match text.split_once('e') {
        None => text,
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |p| ('-', p));
            format!("{digits}e{sign}{power:0>2}")
        }
    }
}

/// A float in the JSON that Python writes.
fn json_float(v: f64) -> String {
    match v {
        v if v.is_nan() => "NaN".to_owned(),
        v if v.is_infinite() => if v > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        v => float(v),
    }
}

/// Formatting options of `json.dumps`.
struct Style {
    indent: Option<String>,
    ascii: bool,
    sort_keys: bool,
    item: String,
    key: String,
}

/// The filter `tojson`, without HTML escaping.
pub(super) fn to_json(c: &Call<'_>) -> Result<Value, Error> {
    let indent = match c.set(1) {
        Some(text) if text.as_str().is_some() => Some(c.text_at(1)?.to_owned()),
        _ => c
            .set_integer(1)?
            .map(|n| " ".repeat(usize::try_from(n).unwrap_or(0).min(64))),
    };
    let separators: Vec<String> = match c.set(2) {
        Some(given) => given
            .try_iter()?
            .filter_map(|v| Some(v.as_str()?.to_owned()))
            .collect(),
        None => [if indent.is_some() { "," } else { ", " }, ": "]
            .map(str::to_owned)
            .into(),
    };
    let [item, key] = <[String; 2]>::try_from(separators)
        .or_else(|given| refuse(format!("tojson: expected 2 separators, found {}", given.len())))?;
    let style = Style {
        indent,
        ascii: c.flag(0),
        sort_keys: c.flag(3),
        item,
        key,
    };
    let indent = style.indent.as_ref().map_or(0, String::len);
    let all = c.meter.places(c.subject)?;
    let each = all
        .depth
        .saturating_mul(indent)
        .saturating_add(style.item.len() + style.key.len());
    c.meter.charge((all.units / NODE).saturating_mul(units(each)))?;
    let mut out = String::new();
    style.write(&mut out, c.subject, 0)?;
    Ok(Value::from(out))
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&json_float(f64::try_from(value.clone())?)),
            ValueKind::String => self.text(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq if value.downcast_object_ref::<Range>().is_none() => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.parts(out, ['[', ']'], items.iter(), depth, |out, v| {
                    self.write(out, v, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for [key, value] in items(value) {
                    let key = match key.kind() {
                        ValueKind::None => "null".to_owned(),
                        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
                        ValueKind::Number if key.is_integer() => key.to_string(),
                        ValueKind::Number => json_float(f64::try_from(key.clone())?),
                        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
                        other => return refuse(format!("tojson: a key of the type {other}")),
                    };
                    entries.push((key, value));
                }
                if self.sort_keys {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.parts(out, ['{', '}'], entries.iter(), depth, |out, (key, v)| {
                    self.text(out, key);
                    out.push_str(&self.key);
                    self.write(out, v, depth + 1)
                })?;
            }
            other => return refuse(format!("tojson: a value of the type {other} has no JSON form")),
        }
        Ok(())
    }

    fn parts<T>(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        parts: impl ExactSizeIterator<Item = T>,
        depth: usize,
        mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let empty = parts.len() == 0;
        let line = |out: &mut String, depth: usize| {
            if let Some(indent) = self.indent.as_ref().filter(|_| !empty) {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        out.push(open);
        for (i, part) in parts.enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            line(out, depth + 1);
            write(out, part)?;
        }
        line(out, depth);
        out.push(close);
        Ok(())
    }

    fn text(&self, out: &mut String, text: &str) {
        let escaped = Json::from(text).to_string();
        if !self.ascii {
            out.push_str(&escaped);
            return;
        }
        for c in escaped.chars() {
            if c.is_ascii() && c != '\x7f' {
                out.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _done = write!(out, "\\u{unit:04x}");
            }
        }
    }
}
