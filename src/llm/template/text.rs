//! Methods of Python's `str`.

use super::call::{Call, Function, refuse};
use super::meter::{Meter, NODE, units};
use super::objects::View;
use super::python;
use super::strformat::str_format;
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

macro_rules! functions {
    ($($name:literal ($($parameter:literal),*) => $call:expr;)*) => {
        &[$(Function { name: $name, parameters: &[$($parameter),*], call: $call }),*]
    };
}
pub(super) use functions;

pub(super) const METHODS: &[Function] = functions! {
    "capitalize"() => |c| Ok(Value::from(capitalized(&c.text()?)));
    "casefold"() => |c| Ok(Value::from(c.text()?.to_lowercase().replace('ß', "ss")));
    "center"("width", "fillchar") => |c| padded(c, Side::Both);
    "count"("sub", "start", "end") => |c| Ok(Value::from(match window(c)? {
        Some((text, _)) => text.matches(c.text_at(0)?).count(),
        None => 0,
    }));
    "encode"("encoding", "errors") => encode;
    "endswith"("suffix", "start", "end") => |c| affix(c, |text, end| text.ends_with(end));
    "expandtabs"("tabsize") => expand_tabs;
    "find"("sub", "start", "end") => |c| Ok(Value::from(found(c, |t, s| t.find(s))?.unwrap_or(-1)));
    "index"("sub", "start", "end") => |c| existing(found(c, |t, s| t.find(s))?);
    "isalnum"() => |c| all(c, char::is_alphanumeric);
    "isalpha"() => |c| all(c, char::is_alphabetic);
    "isascii"() => |c| Ok(Value::from(c.text()?.is_ascii()));
    "isdecimal"() => |c| all(c, is_decimal);
    "isdigit"() => |c| all(c, |c| is_decimal(c) || matches!(c, '²' | '³' | '¹' | '⁰'..='⁹' | '₀'..='₉'));
    "isidentifier"() => |c| {
        let text = c.text()?;
        let starts = text.starts_with(|c: char| c == '_' || c.is_alphabetic());
        Ok(Value::from(starts && text.chars().all(|c| c == '_' || c.is_alphanumeric())))
    };
    "islower"() => |c| Ok(Value::from(is_cased(&c.text()?, char::is_lowercase, char::is_uppercase)));
    "isnumeric"() => |c| all(c, char::is_numeric);
    "isprintable"() => |c| Ok(Value::from(c.text()?.chars().all(python::is_printable)));
    "isspace"() => |c| all(c, is_space);
    "istitle"() => |c| {
        let text = c.text()?;
        Ok(Value::from(text.contains(|c: char| c.is_lowercase() || c.is_uppercase()) && titled(&text) == text))
    };
    "isupper"() => |c| Ok(Value::from(is_cased(&c.text()?, char::is_uppercase, char::is_lowercase)));
    "join"("iterable") => join;
    "ljust"("width", "fillchar") => |c| padded(c, Side::Right);
    "lower"() => |c| Ok(Value::from(c.text()?.to_lowercase()));
    "lstrip"("chars") => |c| stripped(c, true, false);
    "partition"("sep") => |c| parted(c, false);
    "removeprefix"("prefix") => |c| {
        let text = c.text()?;
        Ok(Value::from(text.strip_prefix(c.text_at(0)?).unwrap_or(&text)))
    };
    "removesuffix"("suffix") => |c| {
        let text = c.text()?;
        Ok(Value::from(text.strip_suffix(c.text_at(0)?).unwrap_or(&text)))
    };
    "replace"("old", "new", "count") => |c| replaced(c, c.text_at(0)?, c.text_at(1)?);
    "rfind"("sub", "start", "end") => |c| Ok(Value::from(found(c, |t, s| t.rfind(s))?.unwrap_or(-1)));
    "rindex"("sub", "start", "end") => |c| existing(found(c, |t, s| t.rfind(s))?);
    "rjust"("width", "fillchar") => |c| padded(c, Side::Left);
    "rpartition"("sep") => |c| parted(c, true);
    "rsplit"("sep", "maxsplit") => |c| split(c, true);
    "rstrip"("chars") => |c| stripped(c, false, true);
    "split"("sep", "maxsplit") => |c| split(c, false);
    "splitlines"("keepends") => split_lines;
    "startswith"("prefix", "start", "end") => |c| affix(c, |text, start| text.starts_with(start));
    "strip"("chars") => |c| stripped(c, true, true);
    "swapcase"() => |c| {
        let swapped = |c: char| match c.is_lowercase() {
            true => c.to_uppercase().collect(),
            false => c.to_lowercase().collect::<String>(),
        };
        Ok(Value::from(c.text()?.chars().map(swapped).collect::<String>()))
    };
    "title"() => |c| Ok(Value::from(titled(&c.text()?)));
    "upper"() => |c| Ok(Value::from(c.text()?.to_uppercase()));
    "zfill"("width") => zero_filled;
};

/// Whether Python regards `c` as white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

fn is_decimal(c: char) -> bool {
    let outside =
        |c| matches!(c, '²' | '³' | '¹' | '¼'..='¾' | '\u{2070}'..='\u{2189}' | '\u{2460}'..='\u{24ff}');
    c.is_ascii_digit() || (!c.is_ascii() && c.is_numeric() && !outside(c))
}

/// Whether Python regards `c` as a line end.
pub(super) fn ends_line(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn all(c: &Call<'_>, is: fn(char) -> bool) -> Result<Value, Error> {
    let text = c.text()?;
    Ok(Value::from(!text.is_empty() && text.chars().all(is)))
}

pub(super) fn is_cased(text: &str, is: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.contains(is) && !text.contains(other)
}

pub(super) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().collect::<String>() + &letters.as_str().to_lowercase()
}

/// `text` in title case: each run of letters starts with an upper-case letter.
fn titled(text: &str) -> String {
    let (mut out, mut inside) = (String::new(), false);
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

/// The byte offset of the character at index `at`. Negative indices count from the end.
fn byte(text: &str, at: i64) -> Option<usize> {
    let at = match at < 0 {
        true => i64::try_from(text.chars().count())
            .ok()?
            .saturating_add(at)
            .max(0),
        false => at,
    };
    let at = usize::try_from(at).ok()?;
    match text.char_indices().nth(at) {
        Some((byte, _)) => Some(byte),
        None => (text.chars().count() == at).then_some(text.len()),
    }
}

/// The part of the operand between the indices in arguments 1 and 2, and its start in characters.
/// `None` if there is no such part.
fn window<'c>(c: &'c Call<'_>) -> Result<Option<(std::borrow::Cow<'c, str>, usize)>, Error> {
    let text = c.text()?;
    let (start, end) = (c.set_integer(1)?, c.set_integer(2)?);
    if start.is_none() && end.is_none() {
        return Ok(Some((text, 0)));
    }
    let from = byte(&text, start.unwrap_or(0));
    let to = end
        .map_or(Some(text.len()), |end| byte(&text, end))
        .unwrap_or(text.len());
    let part =
        from.and_then(|from| Some((text.get(..from)?.chars().count(), text.get(from..to)?.to_owned())));
    Ok(part.map(|(skipped, part)| (part.into(), skipped)))
}

/// The position of argument 0 in the operand, in characters.
fn found(c: &Call<'_>, find: fn(&str, &str) -> Option<usize>) -> Result<Option<i64>, Error> {
    let needle = c.text_at(0)?;
    let Some((text, skipped)) = window(c)? else {
        return Ok(None);
    };
    let at = find(&text, needle).and_then(|at| text.get(..at));
    Ok(at.and_then(|before| i64::try_from(skipped + before.chars().count()).ok()))
}

pub(super) fn existing(at: Option<i64>) -> Result<Value, Error> {
    at.map_or_else(
        || refuse("index: the value is not found"),
        |at| Ok(Value::from(at)),
    )
}

fn affix(c: &Call<'_>, has: fn(&str, &str) -> bool) -> Result<Value, Error> {
    let given = c.required(0)?;
    let all: Vec<Value> = match given.is_tuple() {
        true => given.try_iter()?.collect(),
        false => vec![given.clone()],
    };
    let part = window(c)?;
    let mut any = false;
    for affix in &all {
        let Some(affix) = affix.as_str() else {
            return refuse(format!(
                "expected a string or a tuple of strings, found {}",
                affix.kind()
            ));
        };
        any |= part.as_ref().is_some_and(|(text, _)| has(text, affix));
    }
    Ok(Value::from(any))
}

fn encode(c: &Call<'_>) -> Result<Value, Error> {
    let text = c.text()?;
    let name = c.set_text(0)?.unwrap_or("utf-8").to_lowercase().replace('_', "-");
    match name.as_str() {
        "utf-8" | "utf8" => {}
        "ascii" | "us-ascii" if text.is_ascii() => {}
        _ => {
            return refuse(format!(
                "encode: the encoding {name} is not supported for this text"
            ));
        }
    }
    Ok(Value::from_bytes(text.as_bytes().to_vec()))
}

fn expand_tabs(c: &Call<'_>) -> Result<Value, Error> {
    let size = usize::try_from(c.set_integer(0)?.unwrap_or(8)).unwrap_or(0);
    let text = c.text()?;
    c.charge(text.matches('\t').count(), size)?;
    let (mut out, mut column) = (String::new(), 0);
    for letter in text.chars() {
        match letter {
            '\t' => {
                let width = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', width));
                column += width;
            }
            letter => {
                out.push(letter);
                column = if matches!(letter, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    Ok(Value::from(out))
}

fn join(c: &Call<'_>) -> Result<Value, Error> {
    let separator = c.text()?;
    let mut out = String::new();
    for (at, item) in c.required(0)?.try_iter()?.enumerate() {
        let Some(text) = item.as_str() else {
            return refuse(format!("join: expected strings, found {}", item.kind()));
        };
        if at > 0 {
            c.charge(1, separator.len())?;
            out.push_str(&separator);
        }
        c.charge(1, text.len())?;
        out.push_str(text);
    }
    Ok(Value::from(out))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    Both,
}

fn padded(c: &Call<'_>, side: Side) -> Result<Value, Error> {
    let mut fill = c.set_text(1)?.unwrap_or(" ").chars();
    let (Some(fill), None) = (fill.next(), fill.next()) else {
        return refuse("the fill character must be exactly one character");
    };
    c.required(0)?;
    let text = c.text()?;
    pad(c, &text, c.set_integer(0)?.unwrap_or(0), fill, side)
}

/// `text` centered in `width` characters.
pub(super) fn centered(c: &Call<'_>, text: &str, width: i64) -> Result<Value, Error> {
    pad(c, text, width, ' ', Side::Both)
}

fn pad(c: &Call<'_>, text: &str, width: i64, fill: char, side: Side) -> Result<Value, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    c.charge(missing, fill.len_utf8())?;
    let before = match side {
        Side::Left => missing,
        Side::Right => 0,
        // Rounds like Python.
        Side::Both => missing / 2 + (missing & width & 1),
    };
    let mut out: String = std::iter::repeat_n(fill, before).collect();
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, missing - before));
    Ok(Value::from(out))
}

fn parted(c: &Call<'_>, last: bool) -> Result<Value, Error> {
    let (text, separator) = (c.text()?, c.text_at(0)?);
    if separator.is_empty() {
        return refuse("partition: the separator is empty");
    }
    let cut = match last {
        true => text.rsplit_once(separator),
        false => text.split_once(separator),
    };
    let parts = match cut {
        Some((before, after)) => [before, separator, after],
        None if last => ["", "", &text],
        None => [&text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// The operand with `old` replaced by `new`. Argument 2 limits the number of replacements.
pub(super) fn replaced(c: &Call<'_>, old: &str, new: &str) -> Result<Value, Error> {
    let text = c.text()?;
    let count = c
        .set_integer(2)?
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    c.charge(text.matches(old).count().min(count), new.len())?;
    Ok(Value::from(text.replacen(old, new, count)))
}

fn stripped(c: &Call<'_>, start: bool, end: bool) -> Result<Value, Error> {
    let text = c.text()?;
    let set: Option<Vec<char>> = c.set_text(0)?.map(|set| set.chars().collect());
    if let Some(set) = &set {
        c.charge(text.len(), set.len())?;
    }
    let drop = |letter: char| {
        set.as_ref()
            .map_or_else(|| is_space(letter), |set| set.contains(&letter))
    };
    let mut text: &str = &text;
    if start {
        text = text.trim_start_matches(drop);
    }
    if end {
        text = text.trim_end_matches(drop);
    }
    Ok(Value::from(text))
}

/// The operand without surrounding white space, or without surrounding characters of argument 0.
pub(super) fn trimmed(c: &Call<'_>) -> Result<Value, Error> {
    stripped(c, true, true)
}

fn split(c: &Call<'_>, from_end: bool) -> Result<Value, Error> {
    let text = c.text()?;
    let most = c
        .set_integer(1)?
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    let mut add = |part| {
        parts.push(part);
        c.meter.charge(NODE)
    };
    let mut rest: &str = &text;
    match c.set_text(0)? {
        Some("") => return refuse("split: the separator is empty"),
        Some(separator) => {
            for _ in 0..most {
                let cut = match from_end {
                    true => rest.rsplit_once(separator).map(|(rest, part)| (part, rest)),
                    false => rest.split_once(separator),
                };
                let Some((part, more)) = cut else { break };
                add(part)?;
                rest = more;
            }
            add(rest)?;
        }
        None => {
            let trim = |text: &'_ str| -> usize {
                match from_end {
                    true => text.trim_end_matches(is_space).len(),
                    false => text.len() - text.trim_start_matches(is_space).len(),
                }
            };
            for step in 0usize.. {
                let at = trim(rest);
                rest = if from_end { rest.get(..at) } else { rest.get(at..) }.unwrap_or_default();
                if rest.is_empty() {
                    break;
                }
                let cut = match from_end {
                    true => rest
                        .rfind(is_space)
                        .map(|at| at + rest.get(at..).map_or(0, first_length)),
                    false => rest.find(is_space),
                };
                let Some((before, after)) = cut
                    .filter(|_| step < most)
                    .and_then(|at| rest.split_at_checked(at))
                else {
                    add(rest)?;
                    break;
                };
                let (part, more) = if from_end {
                    (after, before)
                } else {
                    (before, after)
                };
                add(part)?;
                rest = more;
            }
        }
    }
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Length of the first character in bytes.
fn first_length(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

/// The lines of `text` with their line ends.
fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let at = rest.find(ends_line);
        let end = at.map(|at| match rest.get(at..) {
            Some(after) if after.starts_with("\r\n") => at + 2,
            Some(after) => at + first_length(after),
            None => at,
        });
        let (line, more) = rest.split_at_checked(end.unwrap_or(rest.len()))?;
        rest = more;
        (!line.is_empty()).then_some(line)
    })
}

/// The lines of `text` without their line ends.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    whole_lines(text).map(|line| {
        line.strip_suffix("\r\n")
            .unwrap_or_else(|| line.strip_suffix(ends_line).unwrap_or(line))
    })
}

fn split_lines(c: &Call<'_>) -> Result<Value, Error> {
    let text = c.text()?;
    let count = units(text.matches(ends_line).count()).saturating_add(1);
    c.meter.charge(count.saturating_mul(NODE))?;
    Ok(match c.flag(0) {
        true => whole_lines(&text).map(Value::from).collect(),
        false => lines(&text).map(Value::from).collect(),
    })
}

fn zero_filled(c: &Call<'_>) -> Result<Value, Error> {
    c.required(0)?;
    let text = c.text()?;
    let digits = text.trim_start_matches(['+', '-']);
    let digits = if text.len() - digits.len() > 1 {
        text.get(1..).unwrap_or_default()
    } else {
        digits
    };
    let sign = text.strip_suffix(digits).unwrap_or_default();
    let width = usize::try_from(c.set_integer(0)?.unwrap_or(0)).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    c.charge(missing, 1)?;
    Ok(Value::from(format!("{sign}{}{digits}", "0".repeat(missing))))
}

/// Methods of `dict`, except those that modify it.
pub(super) const DICT_METHODS: &[Function] = functions! {
    "copy"() => |c| Ok(c.subject.clone());
    "get"("key", "default") => |c| {
        let default = || c.optional(1).cloned().unwrap_or_else(|| Value::from(()));
        let key = c.required(0)?;
        let found = c.subject.as_object().and_then(|object| object.get_value(key));
        Ok(found.unwrap_or_else(default))
    };
    "items"() => |c| view(c, "dict_items", |pair| Value::from(Tuple::from(pair)));
    "keys"() => |c| view(c, "dict_keys", |[key, _]| key);
    "values"() => |c| view(c, "dict_values", |[_, value]| value);
};

fn view(c: &Call<'_>, name: &'static str, part: fn([Value; 2]) -> Value) -> Result<Value, Error> {
    let items = python::items(c.subject).map(part).collect();
    Ok(Value::from_object(View { name, items }))
}

/// Methods of `list` and `tuple`, except those that modify them.
pub(super) const LIST_METHODS: &[Function] = functions! {
    "copy"() => |c| match c.subject.is_tuple() {
        true => refuse("a tuple has no method `copy`"),
        false => Ok(c.subject.clone()),
    };
    "count"("value") => |c| {
        let wanted = c.required(0)?;
        Ok(Value::from(c.subject.try_iter()?.filter(|item| item == wanted).count()))
    };
    "index"("value", "start", "stop") => |c| {
        let (wanted, length) = (c.required(0)?, c.subject.len().unwrap_or(0));
        let place = |at: Option<i64>, default: usize| match at {
            Some(at) if at < 0 => length.saturating_sub(usize::try_from(at.unsigned_abs()).unwrap_or(length)),
            Some(at) => usize::try_from(at).unwrap_or(length),
            None => default,
        };
        let (start, stop) = (place(c.set_integer(1)?, 0), place(c.set_integer(2)?, length));
        let mut items = c.subject.try_iter()?.enumerate();
        let found = items.find(|(at, item)| (start..stop).contains(at) && item == wanted);
        existing(found.and_then(|(at, _)| i64::try_from(at).ok()))
    };
};

/// Methods that modify their operand, which templates must not call, and methods that have another
/// signature.
const OTHERS: [(ValueKind, &[&str]); 3] = [
    (
        ValueKind::String,
        &["format", "format_map", "maketrans", "translate"],
    ),
    (
        ValueKind::Map,
        &["clear", "fromkeys", "pop", "popitem", "setdefault", "update"],
    ),
    (
        ValueKind::Seq,
        &[
            "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
        ],
    ),
];

/// The methods of values of this kind.
fn methods(kind: ValueKind) -> &'static [Function] {
    match kind {
        ValueKind::String => METHODS,
        ValueKind::Map => DICT_METHODS,
        ValueKind::Seq => LIST_METHODS,
        _ => &[],
    }
}

/// Whether values of this kind have the method `name`.
pub(super) fn has_method(kind: ValueKind, name: &str) -> bool {
    let mut others = OTHERS.iter().filter(|(of, _)| *of == kind);
    methods(kind).iter().any(|method| method.name == name) || others.any(|(_, names)| names.contains(&name))
}

/// Whether values of any kind have the method `name`.
pub(super) fn is_method(name: &str) -> bool {
    [ValueKind::String, ValueKind::Map, ValueKind::Seq]
        .into_iter()
        .any(|kind| has_method(kind, name))
}

/// Calls a method. Fails with [`ErrorKind::UnknownMethod`] if it does not exist.
pub(super) fn call_method(
    meter: &Meter,
    subject: &Value,
    name: &str,
    given: &[Value],
) -> Result<Value, Error> {
    match (name, subject.as_str()) {
        ("format", Some(text)) => str_format(meter, text, given).map(Value::from),
        _ => {
            let method = methods(subject.kind()).iter().find(|method| method.name == name);
            let method = method.ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
            method.call(meter, subject, given)
        }
    }
}
