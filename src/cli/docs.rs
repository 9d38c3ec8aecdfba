//! Chapters of the documentation that are generated from the code.

/// `docs/cli.md`.
pub fn markdown() -> String {
    String::new()
}

/// `docs/json.md`.
pub fn json_markdown() -> String {
    String::new()
}

/// `docs/operators.md`.
pub fn operators_markdown() -> String {
    String::new()
}
