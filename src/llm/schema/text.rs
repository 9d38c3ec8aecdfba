//! JSON strings as regular expressions. They match the quotation marks, and each character either
//! as itself or in any of its JSON escapes.

use llguidance::derivre::RegexAst;
use llguidance::regex_to_lark;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// A character: itself, an escape, or a pair of escapes for a UTF-16 surrogate pair.
pub const CHARACTER: &str = concat!(
    r#"([^"\\\x00-\x1F]|\\["\\/bfnrt]|\\u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"#,
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))",
);
/// Characters with a short escape, such as `\n`, and the character after its backslash.
const SHORT: [(char, char); 8] = [
    ('"', '"'),
    ('\\', '\\'),
    ('/', '/'),
    ('\u{8}', 'b'),
    ('\u{c}', 'f'),
    ('\n', 'n'),
    ('\r', 'r'),
    ('\t', 't'),
];

fn regex(text: impl Into<String>) -> RegexAst {
    RegexAst::Regex(text.into())
}

fn quoted(inner: RegexAst) -> RegexAst {
    let mark = || RegexAst::Literal("\"".to_owned());
    RegexAst::Concat(vec![mark(), inner, mark()])
}

/// Any number of characters.
fn many() -> RegexAst {
    regex(format!("{CHARACTER}*"))
}

/// All strings.
pub fn any() -> RegexAst {
    quoted(many())
}

/// The longest text that a schema may demand. `llguidance` walks the shortest texts of some sets
/// character by character, without a limit of its own.
const LONGEST: usize = 4096;

/// An error if texts of `least` units are demanded, which are longer than [`LONGEST`].
pub fn demand(least: usize, unit: &str) -> Result<(), String> {
    if least <= LONGEST {
        return Ok(());
    }
    Err(format!(
        "needs texts of at least {least} {unit}; the limit is {LONGEST}"
    ))
}

/// Strings of `least` to `most` characters.
pub fn lengths(least: u32, most: u32) -> RegexAst {
    quoted(RegexAst::Repeat(Box::new(regex(CHARACTER)), least, most))
}

/// The strings of `ast` without escapes for printable ASCII characters, which some models choose
/// where the text is given. Escapes such as `\n` and `\/` remain.
pub fn plainly(ast: RegexAst) -> RegexAst {
    RegexAst::And(vec![ast, quoted(regex(format!("{}*", plain_character())))])
}

/// A character, but printable ASCII only as itself or in a short escape.
fn plain_character() -> String {
    let others = [(0, 0x1f), (0x7f, 0xd7ff), (0xe000, 0xffff)];
    let mut escaped: Vec<String> = others
        .into_iter()
        .flat_map(|(low, high)| hex(low, high, 4))
        .map(|h| format!(r"\\u{h}"))
        .collect();
    escaped.extend(pairs(0x1_0000, 0x10_ffff));
    format!(r#"([^"\\\x00-\x1F]|\\["\\/bfnrt]|{})"#, escaped.join("|"))
}

/// The string `text`.
pub fn equal(text: &str) -> RegexAst {
    quoted(regex(text.chars().map(|c| class(&[(c, c)])).collect::<String>()))
}

/// Strings that contain a match of `pattern`, as in JSON Schema. The error says which part of the
/// pattern is wrong or not supported.
pub fn matching(pattern: &str) -> Result<RegexAst, String> {
    let hir = regex_syntax::Parser::new()
        .parse(&regex_to_lark(pattern, "dw"))
        .map_err(|e| {
            let text = e.to_string();
            let last = text.lines().last().unwrap_or_default();
            last.trim_start_matches("error: ").to_owned()
        })?;
    demand(hir.properties().minimum_len().unwrap_or(0), "bytes")?;
    place(&hir, Edge::Open, Edge::Open).map(quoted)
}

/// What comes before or after a part of a pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edge {
    /// Any text that the pattern does not describe.
    Open,
    /// Nothing: the string begins or ends there.
    End,
    /// Another part of the pattern.
    Inside,
}

/// The texts that match a part of a pattern, with any text that may surround it.
fn place(hir: &Hir, left: Edge, right: Edge) -> Result<RegexAst, String> {
    if hir.properties().look_set().is_empty() {
        return around(characters(hir)?, left, right);
    }
    match hir.kind() {
        HirKind::Look(Look::Start) => at_edge(left, right, true),
        HirKind::Look(Look::End) => at_edge(left, right, false),
        HirKind::Capture(group) => place(&group.sub, left, right),
        HirKind::Alternation(list) => {
            let list: Result<_, _> = list.iter().map(|h| place(h, left, right)).collect();
            Ok(RegexAst::Or(list?))
        }
        HirKind::Concat(list) => sequence(list, left, right),
        _ => Err("word boundaries and repeated anchors are not supported".to_owned()),
    }
}

fn around(inner: RegexAst, left: Edge, right: Edge) -> Result<RegexAst, String> {
    let open = |edge| (edge == Edge::Open).then(many);
    let parts = [open(left), Some(inner), open(right)];
    Ok(RegexAst::Concat(parts.into_iter().flatten().collect()))
}

/// An anchor that is a part of its own.
fn at_edge(left: Edge, right: Edge, start: bool) -> Result<RegexAst, String> {
    match if start { left } else { right } {
        Edge::Inside => Ok(RegexAst::NoMatch),
        _ if start => around(RegexAst::EmptyString, Edge::End, right),
        _ => around(RegexAst::EmptyString, left, Edge::End),
    }
}

fn sequence(list: &[Hir], mut left: Edge, mut right: Edge) -> Result<RegexAst, String> {
    let mut list = list;
    while let [first, rest @ ..] = list
        && *first.kind() == HirKind::Look(Look::Start)
    {
        if left == Edge::Inside {
            return Ok(RegexAst::NoMatch);
        }
        (left, list) = (Edge::End, rest);
    }
    while let [rest @ .., last] = list
        && *last.kind() == HirKind::Look(Look::End)
    {
        if right == Edge::Inside {
            return Ok(RegexAst::NoMatch);
        }
        (right, list) = (Edge::End, rest);
    }
    match list {
        [] => around(RegexAst::EmptyString, left, right),
        [only] => place(only, left, right),
        [first, middle @ .., last] => {
            let mut parts = vec![place(first, left, Edge::Inside)?];
            for part in middle {
                parts.push(place(part, Edge::Inside, Edge::Inside)?);
            }
            parts.push(place(last, Edge::Inside, right)?);
            Ok(RegexAst::Concat(parts))
        }
    }
}

/// The texts that match a part without anchors.
fn characters(hir: &Hir) -> Result<RegexAst, String> {
    let all = |list: &[Hir]| list.iter().map(characters).collect::<Result<Vec<_>, _>>();
    Ok(match hir.kind() {
        HirKind::Empty => RegexAst::EmptyString,
        HirKind::Literal(text) => {
            let text = String::from_utf8_lossy(&text.0);
            regex(text.chars().map(|c| class(&[(c, c)])).collect::<String>())
        }
        HirKind::Class(Class::Unicode(found)) => {
            let ranges: Vec<_> = found.iter().map(|r| (r.start(), r.end())).collect();
            regex(class(&ranges))
        }
        HirKind::Class(Class::Bytes(found)) => {
            let ranges = found.iter().map(|r| (char::from(r.start()), char::from(r.end())));
            regex(class(&ranges.collect::<Vec<_>>()))
        }
        HirKind::Look(_) => return Err("an anchor at this place is not supported".to_owned()),
        HirKind::Repetition(r) => {
            RegexAst::Repeat(Box::new(characters(&r.sub)?), r.min, r.max.unwrap_or(u32::MAX))
        }
        HirKind::Capture(group) => characters(&group.sub)?,
        HirKind::Concat(list) => RegexAst::Concat(all(list)?),
        HirKind::Alternation(list) => RegexAst::Or(all(list)?),
    })
}

/// A regular expression for one character in any of the ranges, with its escapes.
fn class(ranges: &[(char, char)]) -> String {
    if ranges == [('\0', char::MAX)] {
        return CHARACTER.to_owned();
    }
    let inside = |c: char| ranges.iter().any(|(low, high)| (*low..=*high).contains(&c));
    let (mut plain, mut escaped) = (String::new(), Vec::new());
    for (low, high) in ranges {
        let (low, high) = (u32::from(*low), u32::from(*high));
        // Control characters, the quotation mark and the backslash must be escaped.
        for (from, to) in [(0x20, 0x21), (0x23, 0x5b), (0x5d, 0x10_ffff)] {
            let (from, to) = (low.max(from), high.min(to));
            if from <= to {
                plain += &format!(r"\x{{{from:x}}}-\x{{{to:x}}}");
            }
        }
        for (from, to) in [(0, 0xd7ff), (0xe000, 0xffff)] {
            let (from, to) = (low.max(from), high.min(to));
            if from <= to {
                escaped.extend(hex(from, to, 4).into_iter().map(|h| format!(r"\\u{h}")));
            }
        }
        escaped.extend(pairs(low.max(0x1_0000), high));
    }
    let mut parts = Vec::new();
    if !plain.is_empty() {
        parts.push(format!("[{plain}]"));
    }
    let short = SHORT.iter().filter(|(c, _)| inside(*c));
    let short: String = short
        .map(|(_, letter)| format!(r"\x{{{:x}}}", u32::from(*letter)))
        .collect();
    if !short.is_empty() {
        parts.push(format!(r"\\[{short}]"));
    }
    parts.extend(escaped);
    if parts.is_empty() {
        return "[^\\x{0}-\\x{10ffff}]".to_owned();
    }
    format!("({})", parts.join("|"))
}

/// Alternatives for the numbers `low` to `high`, written with `count` hexadecimal digits.
fn hex(low: u32, high: u32, count: u32) -> Vec<String> {
    let Some(last) = count.checked_sub(1) else {
        return vec![String::new()];
    };
    let unit = 1_u32 << (4 * last);
    if low == 0 && high == unit * 16 - 1 {
        return vec![format!("[0-9a-fA-F]{{{count}}}")];
    }
    let (first, end) = (low / unit, high / unit);
    let under = |digit: u32, low: u32, high: u32| -> Vec<String> {
        let rest = hex(low, high, last).into_iter();
        rest.map(|rest| hex_digits(digit, digit) + &rest).collect()
    };
    if first == end {
        return under(first, low % unit, high % unit);
    }
    let (mut from, mut to, mut parts) = (first, end, Vec::new());
    if !low.is_multiple_of(unit) {
        parts.extend(under(first, low % unit, unit - 1));
        from += 1;
    }
    if high % unit != unit - 1 {
        parts.extend(under(end, 0, high % unit));
        to -= 1;
    }
    if from <= to {
        let rest = if last == 0 {
            String::new()
        } else {
            format!("[0-9a-fA-F]{{{last}}}")
        };
        parts.push(hex_digits(from, to) + &rest);
    }
    parts
}

/// The character class of the hexadecimal digits `low` to `high` in upper and lower case.
fn hex_digits(low: u32, high: u32) -> String {
    let digits = (low..=high).filter_map(|d| char::from_digit(d, 16));
    let all: String = digits.flat_map(|c| [c, c.to_ascii_uppercase()]).collect();
    format!("[{all}]")
}

/// Alternatives for the pairs of escapes that stand for characters above U+FFFF.
fn pairs(low: u32, high: u32) -> Vec<String> {
    if low > high {
        return Vec::new();
    }
    let (low, high) = (low - 0x1_0000, high - 0x1_0000);
    let (first, end) = (low >> 10, high >> 10);
    let join = |from: u32, to: u32, low: u32, high: u32| {
        let second = hex(0xdc00 + low, 0xdc00 + high, 4).join("|");
        let lead = hex(0xd800 + from, 0xd800 + to, 4).join("|");
        format!(r"\\u({lead})\\u({second})")
    };
    if first == end {
        return vec![join(first, first, low & 0x3ff, high & 0x3ff)];
    }
    let (mut from, mut to, mut parts) = (first, end, Vec::new());
    if low & 0x3ff != 0 {
        parts.push(join(first, first, low & 0x3ff, 0x3ff));
        from += 1;
    }
    if high & 0x3ff != 0x3ff {
        parts.push(join(end, end, 0, high & 0x3ff));
        to -= 1;
    }
    if from <= to {
        parts.push(join(from, to, 0, 0x3ff));
    }
    parts
}

/// The pattern of a format that is checked. `None` for other formats, which are annotations.
pub fn format(name: &str) -> Option<String> {
    let digits = |n: u8| format!("[0-9]{{{n}}}");
    let date = format!(
        "{}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))",
        digits(4)
    );
    let hours = "([01][0-9]|2[0-3]):[0-5][0-9]";
    let time = format!(r"{hours}:([0-5][0-9]|60)(\.[0-9]+)?([zZ]|[+-]{hours})");
    let label = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    let hostname = format!(r"{label}(\.{label})*");
    let byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    let ipv4 = format!(r"({byte}\.){{3}}{byte}");
    let atom = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+";
    let inner = match name {
        "date" => date,
        "time" => time,
        "date-time" => format!("{date}[tT]{time}"),
        "duration" => {
            let clock = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
            let days = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)";
            format!("P({days}({clock})?|{clock}|[0-9]+W)")
        }
        "email" => format!(r"{atom}(\.{atom})*@({hostname}|\[{ipv4}\])"),
        "hostname" => hostname,
        "ipv4" => ipv4,
        "ipv6" => ipv6(),
        "uuid" => "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        "uri" => uri(byte),
        _ => return None,
    };
    Some(format!("^({inner})$"))
}

/// IPv6 addresses: eight groups, some of which `::` may replace.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut forms = vec![format!("({group}:){{7}}{group}")];
    for before in 0..8_usize {
        let head = match before {
            0 => String::new(),
            1 => group.to_owned(),
            _ => format!("({group}:){{{}}}{group}", before - 1),
        };
        let tail = match 7 - before {
            0 => String::new(),
            after => format!("({group}(:{group}){{0,{}}})?", after - 1),
        };
        forms.push(format!("{head}::{tail}"));
    }
    forms.join("|")
}

fn uri(byte: &str) -> String {
    let safe = "[a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2}";
    let part = format!("({safe}|[:@])");
    let address = format!(r"\[({}|v[0-9a-fA-F]+\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\]", ipv6());
    let host = format!(r"({address}|({byte}\.){{3}}{byte}|({safe})*)");
    let authority = format!("(({safe}|:)*@)?{host}(:[0-9]*)?");
    let path = format!("{part}+(/{part}*)*");
    format!(
        r"[a-zA-Z][a-zA-Z0-9+.-]*:(//{authority}(/{part}*)*|/({path})?|{path}|)(\?({part}|[/?])*)?(#({part}|[/?])*)?"
    )
}
