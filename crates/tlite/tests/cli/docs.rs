//! Generated chapters of the documentation are up to date. `UPDATE_DOCS=1` rewrites them.

use std::path::Path;
use tlite::cli;

#[track_caller]
fn is_current(file: &str, text: &str) {
    let path = Path::new(tlite_testing::ROOT).join("docs").join(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let same = found
        .lines()
        .zip(text.lines())
        .take_while(|(a, b)| a == b)
        .count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(end)").to_owned();
    assert!(
        found == text,
        "docs/{file} is stale from line {}: it has {:?}, the code gives {:?}; run UPDATE_DOCS=1 cargo test --test docs",
        same + 1,
        line(&found),
        line(text)
    );
}

#[test]
fn cli_chapter_is_current() {
    is_current("cli.md", &cli::markdown());
}

#[test]
fn json_chapter_is_current() {
    is_current("json.md", &cli::json_markdown());
}

#[test]
fn operators_chapter_is_current() {
    is_current("operators.md", &cli::operators_markdown());
}
