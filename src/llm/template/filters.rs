//! Filters and tests of Jinja 3.1 that the engine lacks, or for which it has other arguments or
//! results.

use super::call::{Call, Function, bind, refuse, values};
use super::meter::{Meter, NODE};
use super::printf::{printf, remainder};
use super::text::{self, functions};
use super::{guard, objects, python, sequences};
use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, tests};
use std::sync::Arc;

/// Filters with their Python parameters.
const FILTERS: &[Function] = functions! {
    "abs"() => |c| match c.subject.kind() {
        ValueKind::Bool => Ok(Value::from(u8::from(c.subject.is_true()))),
        _ => filters::abs(c.subject.clone()),
    };
    "attr"("name") => |c| match c.subject.kind() {
        // Items are not attributes.
        ValueKind::Map if !objects::is_other_mapping(c.subject) => Ok(Value::UNDEFINED),
        _ => c.subject.get_item(c.required(0)?),
    };
    "capitalize"() => |c| Ok(Value::from(text::capitalized(&c.text()?)));
    "center"("width") => |c| text::centered(c, &c.text()?, c.set_integer(0)?.unwrap_or(80));
    "count"() => length;
    "d"("default_value", "boolean") => default;
    "default"("default_value", "boolean") => default;
    "e"() => escape;
    "escape"() => escape;
    "filesizeformat"("binary") => file_size;
    "float"("default") => |c| Ok(float(c.subject).map_or_else(|| fallback(c, 0.0), Value::from));
    "forceescape"() => |c| Ok(Value::from_safe_string(escaped(&c.text()?)));
    "indent"("width", "first", "blank") => indent;
    "int"("default", "base") => int;
    "length"() => length;
    "lower"() => |c| Ok(Value::from(c.text()?.to_lowercase()));
    "pprint"() => pretty;
    "replace"("old", "new", "count") => |c| {
        let of = |at| c.required(at).and_then(python::text);
        text::replaced(c, &of(0)?, &of(1)?)
    };
    "round"("precision", "method") => round;
    "string"() => |c| Ok(Value::from(c.text()?));
    "striptags"() => strip_tags;
    "tojson"("ensure_ascii", "indent", "separators", "sort_keys") => python::to_json;
    "trim"("chars") => text::trimmed;
    "truncate"("length", "killwords", "end", "leeway") => truncate;
    "upper"() => |c| Ok(Value::from(c.text()?.to_uppercase()));
    "urlencode"() => url_encode;
    "wordcount"() => |c| {
        let text = c.text()?;
        let word = |c: char| c == '_' || c.is_alphanumeric();
        Ok(Value::from(text.split(|c: char| !word(c)).filter(|w| !w.is_empty()).count()))
    };
    "wordwrap"("width", "break_long_words", "wrapstring", "break_on_hyphens") => word_wrap;
    "xmlattr"("autospace") => xml_attributes;
};

/// Adds the filters and tests to `environment`.
pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    for filter in FILTERS.iter().chain(sequences::FILTERS) {
        let meter = meter.clone();
        environment.add_filter(filter.name, move |all: Rest<ValueOrKwargs>| {
            match values(all).split_first() {
                Some((subject, given)) => filter.call(&meter, subject, given),
                None => refuse("a filter has no operand"),
            }
        });
    }
    let counting = meter.clone();
    environment.add_filter("format", move |format: Value, all: Rest<ValueOrKwargs>| {
        printf(&counting, &python::text(&format)?, &values(all))
    });
    let counting = meter.clone();
    environment.add_filter(
        "map",
        move |state: &mut State<'_, '_>, subject: Value, given: Rest<ValueOrKwargs>| {
            map(&counting, state, &subject, &values(given))
        },
    );
    install_tests(environment);
}

/// Applies a filter to each item, or gets an attribute of each.
fn map(meter: &Meter, state: &mut State<'_, '_>, subject: &Value, given: &[Value]) -> Result<Value, Error> {
    let Some((name, arguments)) = given.split_first().filter(|(name, _)| !name.is_kwargs()) else {
        let bound = bind("map", &["attribute", "default"], given)?;
        let [Some(path), default] = bound.as_slice() else {
            return Err(Error::new(
                ErrorKind::MissingArgument,
                "map: a filter or an attribute is needed",
            ));
        };
        let path = python::text(path)?;
        let mut all = Vec::new();
        for item in subject.try_iter()? {
            let found = sequences::attribute_of(&item, &path)?;
            let default = default
                .as_ref()
                .filter(|value| found.is_undefined() && !value.is_none());
            all.push(default.cloned().unwrap_or(found));
        }
        return Ok(Value::from(all));
    };
    // Names of guards start with `#`.
    let Some(name) = name.as_str().filter(|name| !name.starts_with('#')) else {
        return refuse(format!(
            "map: expected the name of a filter, found {}",
            name.kind()
        ));
    };
    let what = format!("|{name}");
    let mut all = Vec::new();
    for item in subject.try_iter()? {
        let mut operands = vec![item];
        operands.extend_from_slice(arguments);
        guard::before(meter, &what, &operands)?;
        all.push(guard::plain(meter, state.apply_filter(name, &operands)?)?);
    }
    Ok(Value::from(all))
}

fn install_tests(environment: &mut Environment<'_>) {
    // In Python, None is not iterable.
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_test("sequence", |value: &Value| {
        let kinds = [
            ValueKind::Undefined,
            ValueKind::String,
            ValueKind::Bytes,
            ValueKind::Seq,
            ValueKind::Map,
        ];
        kinds.contains(&value.kind()) && !objects::is_other_mapping(value)
    });
    environment.add_test("mapping", |value: &Value| {
        value.kind() == ValueKind::Map && !objects::is_other_mapping(value)
    });
    type Known = fn(&State<'_, '_>, &str) -> bool;
    let known: [(&str, Known); 2] = [
        ("filter", |state, name| tests::is_filter(state, name)),
        ("test", |state, name| tests::is_test(state, name)),
    ];
    for (test, is_known) in known {
        environment.add_test(test, move |state: &State<'_, '_>, value: &Value| {
            value.as_str().is_some_and(|name| is_known(state, name))
        });
    }
    environment.add_test("divisibleby", |value: &Value, given: Rest<ValueOrKwargs>| {
        let divisor = bind("divisibleby", &["num"], &values(given))?.pop().flatten();
        let divisor = divisor.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
        Ok::<_, Error>(remainder(value, &divisor)? == Value::from(0))
    });
    environment.add_test("callable", |value: &Value| match value.kind() {
        ValueKind::Undefined => true,
        ValueKind::Plain => !objects::is_cycler(value),
        _ => false,
    });
    let cased = |is: fn(char) -> bool, other: fn(char) -> bool| {
        move |value: &Value| Ok::<_, Error>(text::is_cased(&python::text(value)?, is, other))
    };
    environment.add_test("lower", cased(char::is_lowercase, char::is_uppercase));
    environment.add_test("upper", cased(char::is_uppercase, char::is_lowercase));
}

fn default(c: &Call<'_>) -> Result<Value, Error> {
    let other = || c.optional(0).cloned().unwrap_or_else(|| Value::from(""));
    let used = c.subject.is_undefined() || (c.flag(1) && !c.subject.is_true());
    Ok(if used { other() } else { c.subject.clone() })
}

fn length(c: &Call<'_>) -> Result<Value, Error> {
    match c.subject.len() {
        Some(length) => Ok(Value::from(length)),
        None if c.subject.is_undefined() => Ok(Value::from(0)),
        None => refuse(format!("{} has no length", c.subject.kind())),
    }
}

/// Argument 0, or `zero` if it is not given.
fn fallback(c: &Call<'_>, zero: impl Into<Value>) -> Value {
    c.optional(0).cloned().unwrap_or_else(|| zero.into())
}

/// The digits of a number that Python can read, without surrounding white space and underscores.
fn digits(text: &str) -> Option<String> {
    let text = text.trim_matches(text::is_space);
    let wrong = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    (!wrong).then(|| text.replace('_', ""))
}

/// Python's `float`.
fn float(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::String => digits(value.as_str()?)?.parse().ok(),
        _ => None,
    }
}

fn int(c: &Call<'_>) -> Result<Value, Error> {
    let subject = c.subject;
    match subject.kind() {
        ValueKind::Undefined => return refuse("int: the value is undefined"),
        ValueKind::Bool => return Ok(Value::from(u8::from(subject.is_true()))),
        ValueKind::Number if subject.is_integer() => return Ok(subject.clone()),
        ValueKind::String => {
            let (base, text) = (
                c.set_integer(1)?.unwrap_or(10),
                subject.as_str().unwrap_or_default(),
            );
            if text.contains(|c: char| !c.is_ascii() && c.is_numeric()) {
                return refuse("int: digits other than 0 to 9 are not supported");
            }
            if let Some(n) = digits(text).and_then(|text| parsed(&text, base)) {
                return Ok(Value::from(n));
            }
        }
        _ => {}
    }
    let number = float(subject).filter(|v| v.is_finite());
    number.map_or_else(|| Ok(fallback(c, 0)), python::truncated)
}

/// Python's `int` of a text without white space and underscores.
fn parsed(text: &str, base: i64) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = text.to_lowercase();
    let prefixed = [("0b", 2), ("0o", 8), ("0x", 16)]
        .into_iter()
        .find(|(prefix, of)| lower.starts_with(prefix) && (base == 0 || base == *of));
    let (text, base) = match prefixed {
        Some((prefix, of)) => (lower.strip_prefix(prefix)?, of),
        None if base == 0 => (lower.as_str(), 10),
        None => (lower.as_str(), base),
    };
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?;
    let n = Some(text).filter(|t| !t.starts_with(['+', '-']))?;
    let n = i128::from_str_radix(n, base).ok()?;
    Some(if negative { -n } else { n })
}

fn round(c: &Call<'_>) -> Result<Value, Error> {
    let method = c.set_text(1)?.unwrap_or("common");
    let places = c.set_integer(0)?.unwrap_or(0);
    if !(-30..=300).contains(&places) {
        return refuse("round: the precision must be from -30 to 300");
    }
    let Some(v) = float(c.subject).filter(|_| c.subject.kind() != ValueKind::String) else {
        return refuse(format!("round: expected a number, found {}", c.subject.kind()));
    };
    let factor = 10f64.powi(i32::try_from(places).unwrap_or(0));
    let rounded = match method {
        "ceil" => (v * factor).ceil() / factor,
        "floor" => (v * factor).floor() / factor,
        "common" => match (python::integer(c.subject), usize::try_from(places)) {
            (Some(n), Ok(_)) => return Ok(Value::from(n)),
            (Some(n), Err(_)) => {
                let unit = 10i128.pow(u32::try_from(-places).unwrap_or(0));
                let (whole, rest) = (i128::from(n).div_euclid(unit), i128::from(n).rem_euclid(unit));
                let up = rest * 2 > unit || (rest * 2 == unit && whole % 2 != 0);
                return Ok(Value::from((whole + i128::from(up)) * unit));
            }
            // Like Python, formatting rounds the exact value.
            (None, Ok(places)) => format!("{v:.places$}").parse().unwrap_or(v),
            (None, Err(_)) => (v * factor).round_ties_even() / factor,
        },
        _ => return refuse("round: the method must be common, ceil or floor"),
    };
    Ok(Value::from(rounded))
}

/// `text` with HTML special characters escaped.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

fn escape(c: &Call<'_>) -> Result<Value, Error> {
    match c.subject.is_safe() {
        true => Ok(c.subject.clone()),
        false => Ok(Value::from_safe_string(escaped(&c.text()?))),
    }
}

fn file_size(c: &Call<'_>) -> Result<Value, Error> {
    let Some(bytes) = float(c.subject) else {
        return refuse(format!(
            "filesizeformat: expected a number, found {}",
            c.subject.kind()
        ));
    };
    let (base, suffix) = if c.flag(0) { (1024.0, "iB") } else { (1000.0, "B") };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{} Bytes", python::truncated(bytes)?)));
    }
    let first = if c.flag(0) { 'K' } else { 'k' };
    let (mut unit, mut letter) = (base, first);
    for next in ['M', 'G', 'T', 'P', 'E', 'Z', 'Y'] {
        if bytes < unit * base {
            break;
        }
        (unit, letter) = (unit * base, next);
    }
    Ok(Value::from(format!("{:.1} {letter}{suffix}", bytes / unit)))
}

fn indent(c: &Call<'_>) -> Result<Value, Error> {
    let indent = match c.set(0) {
        Some(text) if text.as_str().is_some() => c.text_at(0)?.to_owned(),
        _ => {
            let width = usize::try_from(c.set_integer(0)?.unwrap_or(4)).unwrap_or(0);
            c.charge(width, 1)?;
            " ".repeat(width)
        }
    };
    let (first, blank) = (c.flag(1), c.flag(2));
    if c.subject.kind() != ValueKind::String {
        return refuse(format!("indent: expected a string, found {}", c.subject.kind()));
    }
    let text = c.text()? + "\n";
    let mut out = String::new();
    for (at, line) in text::lines(&text).enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            c.charge(1, indent.len())?;
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// Python's `pprint`, only for values that fit on one line and need no sorting.
fn pretty(c: &Call<'_>) -> Result<Value, Error> {
    const WIDTH: usize = 80;
    let mut maps = 0;
    c.meter.visit(c.subject, &mut |value| {
        maps += usize::from(value.kind() == ValueKind::Map && value.len().is_some_and(|n| n > 1));
        Ok(0)
    })?;
    let text = python::repr_text(c.subject)?;
    if maps > 0 || text.chars().count() > WIDTH {
        return refuse("pprint: only values on one line, without objects, are supported; use tojson");
    }
    Ok(Value::from(text))
}

fn strip_tags(c: &Call<'_>) -> Result<Value, Error> {
    let text = c.text()?;
    let mut rest: &str = &text;
    let mut plain = String::new();
    let between = |rest: &mut &str, open: &str, close: &str, plain: &mut String| -> bool {
        let cut = rest
            .split_once(open)
            .and_then(|(before, inside)| Some((before, inside.split_once(close)?.1)));
        cut.is_some_and(|(before, after)| {
            plain.push_str(before);
            *rest = after;
            true
        })
    };
    // Comments go first, since they may contain tags.
    while between(&mut rest, "<!--", "-->", &mut plain) {}
    plain.push_str(rest);
    let (text, mut plain) = (plain, String::new());
    let mut rest: &str = &text;
    while between(&mut rest, "<", ">", &mut plain) {}
    plain.push_str(rest);
    let named = |at: &str| at.starts_with(|c: char| c == '#' || c.is_ascii_alphabetic());
    if plain.split('&').skip(1).any(named) {
        return refuse("striptags: character references such as `&amp;` are not supported");
    }
    let words: Vec<&str> = plain
        .split(text::is_space)
        .filter(|word| !word.is_empty())
        .collect();
    Ok(Value::from(words.join(" ")))
}

fn truncate(c: &Call<'_>) -> Result<Value, Error> {
    let size = |at: usize, default: usize| match c.set_integer(at)? {
        Some(n) => {
            usize::try_from(n).or_else(|_| refuse("truncate: the length and the leeway must not be negative"))
        }
        None => Ok(default),
    };
    let (length, leeway) = (size(0, 255)?, size(3, 5)?);
    let end = c.set_text(2)?.unwrap_or("...");
    let text = c.text()?;
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return refuse("truncate: the length is smaller than that of the end");
    };
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(Value::from(text));
    }
    let cut: String = text.chars().take(kept).collect();
    let cut = match c.flag(1) {
        true => cut.as_str(),
        false => cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words),
    };
    Ok(Value::from(format!("{cut}{end}")))
}

/// `text`, percent-encoded for a URL. In a query, spaces become `+`, and slashes are encoded, too.
fn quoted(text: &str, query: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b' ' if query => out.push('+'),
            b'/' if !query => out.push('/'),
            b if b.is_ascii_alphanumeric() || b"_.-~".contains(&b) => out.push(char::from(b)),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

fn url_encode(c: &Call<'_>) -> Result<Value, Error> {
    let pair = |key: &Value, value: &Value| -> Result<String, Error> {
        Ok(format!(
            "{}={}",
            quoted(&python::text(key)?, true),
            quoted(&python::text(value)?, true)
        ))
    };
    let mut pairs = Vec::new();
    match c.subject.kind() {
        ValueKind::Map => {
            for [key, value] in python::items(c.subject) {
                pairs.push(pair(&key, &value)?);
            }
        }
        _ if c.is_list() => {
            for item in c.subject.try_iter()? {
                let mut parts = item.try_iter()?;
                let (Some(key), Some(value), None) = (parts.next(), parts.next(), parts.next()) else {
                    return refuse("urlencode: expected pairs of a key and a value");
                };
                pairs.push(pair(&key, &value)?);
            }
        }
        _ => return Ok(Value::from(quoted(&c.text()?, false))),
    }
    Ok(Value::from(pairs.join("&")))
}

/// Wraps lines at spaces.
fn word_wrap(c: &Call<'_>) -> Result<Value, Error> {
    let width = usize::try_from(c.set_integer(0)?.unwrap_or(79)).unwrap_or(0);
    let line_end = c.set_text(2)?.unwrap_or("\n");
    let breaks = c.optional(1).is_none_or(Value::is_true);
    let text = c.text()?;
    if width == 0 {
        return refuse("wordwrap: the width must be positive");
    }
    if text.contains('-') && c.optional(3).is_none_or(Value::is_true) {
        return refuse("wordwrap: breaks at hyphens are not supported; use break_on_hyphens=false");
    }
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text::lines(&text) {
        let (mut line, mut used) = (String::new(), 0);
        let first = lines.len();
        for chunk in chunks(paragraph) {
            let space = chunk.starts_with(text::is_space);
            let mut chunk: &str = chunk;
            loop {
                let size = chunk.chars().count();
                if space && used == 0 && lines.len() > first {
                    break;
                }
                if used + size <= width {
                    line.push_str(chunk);
                    used += size;
                    break;
                }
                let room = if size > width && breaks && !space {
                    width - used
                } else {
                    0
                };
                let cut = chunk.char_indices().nth(room).map_or(0, |(at, _)| at);
                let (head, tail) = chunk.split_at_checked(cut).unwrap_or(("", chunk));
                line.push_str(head);
                chunk = tail;
                if line.is_empty() {
                    // A word longer than a line.
                    line.push_str(chunk);
                    used = size;
                    break;
                }
                c.charge(1, line_end.len() + NODE_BYTES)?;
                lines.push(
                    std::mem::take(&mut line)
                        .trim_end_matches(text::is_space)
                        .to_owned(),
                );
                used = 0;
            }
        }
        let line = line.trim_end_matches(text::is_space);
        if !line.is_empty() || lines.len() == first {
            lines.push(line.to_owned());
        }
    }
    Ok(Value::from(lines.join(line_end)))
}

/// [`NODE`] as a `usize`.
const NODE_BYTES: usize = 32;
const _: () = assert!(NODE_BYTES as u64 == NODE, "two forms of one number");

/// The words of `text` and the white space between them.
fn chunks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let space = rest.chars().next().map(text::is_space)?;
        let end = rest.find(|c| text::is_space(c) != space).unwrap_or(rest.len());
        let (chunk, more) = rest.split_at_checked(end)?;
        rest = more;
        Some(chunk)
    })
}

fn xml_attributes(c: &Call<'_>) -> Result<Value, Error> {
    let mut all = Vec::new();
    for [key, value] in python::items(c.subject) {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let key = python::text(&key)?;
        if key.contains(|c: char| " \t\n\r\x0b\x0c/>=".contains(c)) {
            return refuse("xmlattr: a name contains a space, a slash, `>` or `=`");
        }
        let value = match value.is_safe() {
            true => python::text(&value)?,
            false => escaped(&python::text(&value)?),
        };
        all.push(format!("{}=\"{value}\"", escaped(&key)));
    }
    let all = all.join(" ");
    let spaced = !all.is_empty() && c.optional(0).is_none_or(Value::is_true);
    Ok(Value::from(if spaced { format!(" {all}") } else { all }))
}
