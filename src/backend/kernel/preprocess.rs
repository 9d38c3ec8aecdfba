//! The preprocessor of kernel sources: conditionals and shared files.

use super::{ByLanguage, Language};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// An entry of [`COMMON`]: a file in both languages, or in the one named.
macro_rules! shared {
    (@cl $name:literal) => {
        include_str!(concat!("../../../cl/common/", $name, ".cl"))
    };
    (@wgsl $name:literal) => {
        include_str!(concat!("../../../shaders/common/", $name, ".wgsl"))
    };
    (@entry $name:literal, $opencl_c:expr, $wgsl:expr) => {
        (
            $name,
            ByLanguage {
                opencl_c: $opencl_c,
                wgsl: $wgsl,
            },
        )
    };
    ($name:literal) => {
        shared!(@entry $name, shared!(@cl $name), shared!(@wgsl $name))
    };
    ($name:literal, opencl_c) => {
        shared!(@entry $name, shared!(@cl $name), "")
    };
    ($name:literal, wgsl) => {
        shared!(@entry $name, "", shared!(@wgsl $name))
    };
}

/// Shared helper files by name; empty in a language that does not have one.
const COMMON: &[(&str, ByLanguage<&str>)] = &[
    shared!("reduce"),
    shared!("places"),
    shared!("batches"),
    shared!("tile"),
    shared!("mma", opencl_c),
    shared!("e0m_mma", opencl_c),
    shared!("e0m"),
    shared!("parts"),
    shared!("dot"),
    shared!("pairs", wgsl),
    shared!("attention_scores", wgsl),
    shared!("bytes"),
    shared!("chains"),
    shared!("int8"),
    shared!("order"),
];

/// Joins lines into a text.
pub(super) fn lines(lines: &[&str]) -> String {
    lines.iter().flat_map(|l| [l, "\n"]).collect()
}

/// The shared files that a text includes, directly or indirectly, whatever the conditions, in the
/// order of [`COMMON`].
pub(super) fn included(text: &str, language: Language) -> Vec<&'static str> {
    let (mut found, mut left) = (BTreeSet::new(), vec![text]);
    while let Some(text) = left.pop() {
        for line in text.lines().filter(|l| l.trim_start().starts_with("#include")) {
            let all = COMMON.iter().enumerate();
            let file = all.filter(|(_, (name, _))| line.contains(&format!("\"common/{name}\"")));
            for (i, (_, sources)) in file {
                if found.insert(i) {
                    left.push(*sources.of(language));
                }
            }
        }
    }
    let files = found.into_iter().filter_map(|i| COMMON.get(i));
    files.map(|(_, sources)| *sources.of(language)).collect()
}

pub(super) fn preprocess(
    text: &str,
    language: Language,
    names: &[String],
    depth: usize,
    out: &mut String,
) -> Result<(), String> {
    if depth > 4 {
        return Err("#include nested more than 4 deep".to_owned());
    }
    // For each open conditional: whether the branch is taken, and whether `#else` has been seen.
    let mut open: Vec<(bool, bool)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let at = |why: &str| format!("line {}: {why}: {line}", number + 1);
        let live = open.iter().all(|(taken, _)| *taken);
        let mut words = line.split_whitespace();
        match words.next() {
            Some(directive @ ("#ifdef" | "#ifndef")) => {
                let name = words.next().ok_or_else(|| at("name missing"))?;
                open.push((names.iter().any(|n| n == name) == (directive == "#ifdef"), false));
            }
            Some("#else") => {
                let (taken, seen) = open.last_mut().ok_or_else(|| at("no open conditional"))?;
                if *seen {
                    return Err(at("second #else"));
                }
                (*taken, *seen) = (!*taken, true);
            }
            Some("#endif") => {
                open.pop().ok_or_else(|| at("no open conditional"))?;
            }
            Some("#include") if live => {
                let name = words
                    .next()
                    .and_then(|w| w.trim_matches('"').strip_prefix("common/"))
                    .ok_or_else(|| at("expected \"common/<file>\""))?;
                let (_, sources) = COMMON
                    .iter()
                    .find(|(n, _)| *n == name)
                    .ok_or_else(|| at("no such file"))?;
                preprocess(sources.of(language), language, names, depth + 1, out)?;
            }
            _ if live => {
                out.push_str(line);
                out.push('\n');
            }
            _ => {}
        }
    }
    if open.is_empty() {
        Ok(())
    } else {
        Err("a conditional is not closed by #endif".to_owned())
    }
}

/// The lines of `source` around line `line` (1-based) with line numbers; its start if `line` is
/// `None`.
pub fn excerpt(source: &str, line: Option<usize>) -> String {
    let first = line.map_or(1, |l| l.saturating_sub(4).max(1));
    let mut s = String::new();
    for (n, text) in source
        .lines()
        .enumerate()
        .skip(first - 1)
        .take(if line.is_some() { 9 } else { 60 })
    {
        let mark = if Some(n + 1) == line { '>' } else { ' ' };
        let _ = writeln!(s, "{mark}{:4} | {text}", n + 1);
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_carries;

    #[test]
    fn conditionals_nest_and_mistakes_are_named() {
        let run = |text: &str, names: &[&str]| {
            let mut out = String::new();
            let names: Vec<String> = names.iter().map(|s| (*s).to_owned()).collect();
            preprocess(text, Language::Wgsl, &names, 0, &mut out).map(|()| out)
        };
        let text = "#ifdef A\n1\n#ifdef B\n2\n#else\n3\n#endif\n#else\n4\n#endif";
        assert_eq!(run(text, &["A"]).unwrap(), "1\n3\n");
        assert_eq!(run(text, &["A", "B"]).unwrap(), "1\n2\n");
        assert_eq!(run(text, &["B"]).unwrap(), "4\n");
        assert_carries(run("#endif", &[]).unwrap_err(), &["1"]);
        assert!(run("#ifdef A", &[]).is_err());
        assert_carries(
            run("#include \"common/none\"", &[]).unwrap_err(),
            &["common/none"],
        );
    }
}
