//! Prints values like Python, and JSON like Python's `json` module.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value, escape_formatter};
use serde_json::Value as Json;
use std::fmt::Write;

/// Prints a value like Jinja: the result of Python's `str`.
pub(super) fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            repr(out, value)
        }
        _ => escape_formatter(out, state, value),
    }
}

/// Python's `str` of a value; a text is returned unchanged.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => {
            let mut out = String::new();
            repr(&mut out, value)?;
            Ok(out)
        }
    }
}

/// Writes Python's `repr` of a value.
fn repr(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.write_str("None")?,
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" })?,
        ValueKind::Number if !value.is_integer() => out.write_str(&float(f64::try_from(value.clone())?))?,
        ValueKind::String => out.write_str(&quoted(value.as_str().unwrap_or_default()))?,
        ValueKind::Seq => {
            out.write_str("[")?;
            for (i, item) in value.try_iter()?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                repr(out, &item)?;
            }
            out.write_str("]")?;
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
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

/// A quoted text: with single quotes unless it contains single quotes and no double quotes.
fn quoted(text: &str) -> String {
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
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// A float with the fewest digits that identify it; exponents have a sign and at least two digits.
fn float(v: f64) -> String {
    let text = format!("{v:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |p| ('-', p));
            format!("{digits}e{sign}{power:0>2}")
        }
    }
}

/// Formatting options of `json.dumps`.
struct Style {
    indent: Option<usize>,
    ascii: bool,
    sort_keys: bool,
    item: String,
    key: String,
}

/// The filter `tojson`, without HTML escaping.
pub(super) fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let [item, key] = match separators {
        Some(given) => <[String; 2]>::try_from(given).map_err(|given| {
            let what = format!("tojson: expected 2 separators, found {}", given.len());
            Error::new(ErrorKind::InvalidOperation, what)
        })?,
        None if indent.is_some() => [",", ": "].map(str::to_owned),
        None => [", ", ": "].map(str::to_owned),
    };
    let style = Style {
        indent: indent.map(|n| n.min(64)),
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        item,
        key,
    };
    options.assert_all_used()?;
    let refuse = |what: &str| Error::new(ErrorKind::BadSerialization, format!("tojson: {what}"));
    if value.is_undefined() {
        return Err(refuse("an undefined value has no JSON form"));
    }
    let json =
        serde_json::to_value(&value).map_err(|e| refuse("the value has no JSON form").with_source(e))?;
    let mut out = String::new();
    style.write(&mut out, &json, 0);
    Ok(out)
}

impl Style {
    fn write(&self, out: &mut String, value: &Json, depth: usize) {
        match value {
            Json::Number(n) if n.is_f64() => out.push_str(&n.as_f64().map_or_else(String::new, float)),
            Json::String(text) => self.text(out, text),
            Json::Array(list) => {
                self.parts(out, ['[', ']'], list.iter(), depth, |out, v| {
                    self.write(out, v, depth + 1);
                });
            }
            Json::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.parts(out, ['{', '}'], entries.into_iter(), depth, |out, (key, v)| {
                    self.text(out, key);
                    out.push_str(&self.key);
                    self.write(out, v, depth + 1);
                });
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => out.push_str(&value.to_string()),
        }
    }

    fn parts<T>(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        parts: impl ExactSizeIterator<Item = T>,
        depth: usize,
        mut write: impl FnMut(&mut String, T),
    ) {
        let empty = parts.len() == 0;
        let line = |out: &mut String, depth: usize| {
            if let Some(n) = self.indent.filter(|_| !empty) {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', n * depth));
            }
        };
        out.push(open);
        for (i, part) in parts.enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            line(out, depth + 1);
            write(out, part);
        }
        line(out, depth);
        out.push(close);
    }

    fn text(&self, out: &mut String, text: &str) {
        let escaped = Json::from(text).to_string();
        if !self.ascii {
            out.push_str(&escaped);
            return;
        }
        for c in escaped.chars() {
            if c.is_ascii() {
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
