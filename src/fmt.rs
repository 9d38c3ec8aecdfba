//! Formats numbers and names for people.

use std::borrow::Cow;

/// A number of bytes with a decimal unit: `1.5 GB`.
pub fn size_text(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 999.95 {
            return if unit == "B" {
                format!("{bytes} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// True for a character that could change what a terminal shows around it: a control character, a
/// line or paragraph separator, or a control of the direction of text.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name from a model or a file for errors, log lines and tables: on one line, with escapes in
/// place of what [`is_control`] names.
pub fn shown(name: &str) -> Cow<'_, str> {
    if !name.contains(is_control) {
        return Cow::Borrowed(name);
    }
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match is_control(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// A count with a noun: `1 token`, `2 tokens`.
pub fn count_text(count: usize, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    }
}

/// A count of dispatches: `1 dispatch`, `2 dispatches`.
pub fn dispatches_text(count: usize) -> String {
    match count {
        1 => "1 dispatch".to_owned(),
        _ => format!("{count} dispatches"),
    }
}

/// A value with about three digits and an SI prefix: `39.1 GB/s`, `12.0 µs`.
pub fn quantity(value: f64, unit: &str) -> String {
    let prefixes = [
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "µ"),
    ];
    let found = prefixes.iter().find(|(power, _)| value >= 0.9995 * power);
    let (power, prefix) = found.copied().unwrap_or((1e-9, "n"));
    let scaled = value / power;
    let digits = if scaled < 9.995 {
        2
    } else {
        usize::from(scaled < 99.95)
    };
    let text = format!("{scaled:.digits$} {prefix}{unit}");
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_on_one_line() {
        assert_eq!(shown("a é \u{1f600}"), "a é \u{1f600}");
        assert_eq!(shown("\u{1b}]0;x\u{7}\nerror: b"), r"\u{1b}]0;x\u{7}\nerror: b");
        assert_eq!(
            shown("\u{7f}\u{9b}\u{2028}\u{202e}\u{2066}\u{200f}"),
            r"\u{7f}\u{9b}\u{2028}\u{202e}\u{2066}\u{200f}"
        );
    }

    #[test]
    fn quantities() {
        let texts = [39.1e9, 1.0e12, 999.6e6, 4.3e12, 0.0].map(|v| quantity(v, "B/s"));
        assert_eq!(
            texts,
            ["39.1 GB/s", "1.00 TB/s", "1.00 GB/s", "4.30 TB/s", "0.00 nB/s"]
        );
        assert_eq!(
            [12e-6, 3.456e-3, 2.0].map(|v| quantity(v, "s")),
            ["12.0 µs", "3.46 ms", "2.00 s"]
        );
    }

    #[test]
    fn counts() {
        assert_eq!(
            [0, 1, 2].map(|n| count_text(n, "kernel")),
            ["0 kernels", "1 kernel", "2 kernels"]
        );
        assert_eq!([1, 2].map(dispatches_text), ["1 dispatch", "2 dispatches"]);
    }

    #[test]
    fn sizes() {
        let texts = [0, 999, 1000, 999_949, 999_950, 98_400_000, 5_000_000_000_000].map(size_text);
        assert_eq!(
            texts,
            [
                "0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "98.4 MB", "5.0 TB"
            ]
        );
    }
}
