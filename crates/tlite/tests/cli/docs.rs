//! Generated chapters of the documentation are up to date. `UPDATE_DOCS=1` rewrites them.

use std::path::Path;
use tlite::cli;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::graph::pass::pipeline::steps;

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
        "docs/{file} is stale from line {}: it has {:?}, the code gives {:?}; run UPDATE_DOCS=1 cargo test --test cli docs",
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
    let text = cli::json_markdown();
    is_current("json.md", &text);
    let link = text.lines().find(|line| line.contains("[`"));
    assert_eq!(link, None, "a link that only rustdoc resolves");
}

#[test]
fn operators_chapter_is_current() {
    is_current("operators.md", &cli::operators_markdown());
}

const PASSES: &str = "\
# Graph passes

<!-- Generated from the code; UPDATE_DOCS=1 cargo test --test cli docs rewrites it. -->

The order in which passes run. The second column says for which models and devices. Most passes
also refuse to change values with other readers and outputs of the graph. The comment at the top of
each pass describes the exact form that it recognizes. See the [design note](design/passes.md).
";

/// The chapter on passes, `docs/passes.md`.
fn passes_markdown() -> String {
    let mut out = PASSES.to_owned();
    let mut phase = None;
    for step in steps(&Target::DEVICE) {
        if phase.replace(step.phase) != Some(step.phase) {
            out += &format!(
                "\n## {}\n\n| pass | runs for | does | refuses |\n|---|---|---|---|\n",
                step.phase
            );
        }
        let (pass, targets) = (step.pass, step.when.targets);
        out += &format!(
            "| `{}` | {targets} | {} | {} |\n",
            pass.name, pass.does, pass.refuses
        );
    }
    out
}

#[test]
fn passes_chapter_is_current() {
    is_current("passes.md", &passes_markdown());
}
