//! A range outside a list is an error. With a default, a wrong range would be a short read that
//! looks valid.

use super::documents::{files, name, read};
use super::sizes::code;

/// Files that may use a default, each with the reason why no range is outside.
const FILES: &[(&str, &str)] = &[
    ("src/llm/schema/number.rs", "all digits have one byte"),
    ("src/llm/template/guard.rs", "the range saturates"),
    (
        "src/llm/template/source.rs",
        "edits are sorted ranges of the text",
    ),
    ("src/llm/template/strformat.rs", "a brace has one byte"),
    ("src/llm/template/text.rs", "a sign has one byte"),
];

/// Number of calls of `get` with a range that are followed by `unwrap_or_default` in `code`, which
/// has no strings and comments.
fn defaults(code: &str) -> usize {
    let dense: String = code.split_whitespace().collect();
    let calls = [".get(", ".get_mut("];
    let calls = calls.iter().flat_map(|call| dense.match_indices(call));
    let is_default = |(at, call): &(usize, &str)| {
        let rest = &dense[at + call.len()..];
        let mut open = 1;
        let end = rest.find(|c| {
            match c {
                '(' => open += 1,
                ')' => open -= 1,
                _ => {}
            }
            open == 0
        });
        end.is_some_and(|end| rest[..end].contains("..") && rest[end..].starts_with(").unwrap_or_default()"))
    };
    calls.filter(is_default).count()
}

#[test]
fn ranges_outside_a_list_are_errors() {
    let mut found = Vec::new();
    for path in files("src", &["rs"]) {
        let (text, file) = (read(&path), name(&path).replace('\\', "/"));
        let is_allowed = FILES.iter().any(|(allowed, _)| *allowed == file);
        if is_allowed || file.contains("/tests/") || file.ends_with("tests.rs") {
            continue;
        }
        let (text, _) = text
            .split_once("#[cfg(test)]\nmod tests {")
            .unwrap_or((&text, ""));
        if defaults(&code(text)) > 0 {
            found.push(file);
        }
    }
    assert!(
        found.is_empty(),
        "`get(range).unwrap_or_default()` hides wrong ranges, use `num::part`: {found:#?}"
    );
}

#[test]
fn defaults_of_ranges_are_found() {
    let text = r#"
        a.get(f(1)..).unwrap_or_default(); // a.get(..).unwrap_or_default()
        b.c()
            .get_mut(i * (n + 1)..n)
            .unwrap_or_default();
        d.get(i).unwrap_or_default();
        e.get("..").unwrap_or_default();
        f.get(1..).map(g).unwrap_or_default();
    "#;
    assert_eq!(defaults(&code(text)), 2);
}
