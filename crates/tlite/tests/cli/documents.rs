//! The documents: sizes, width, and links that lead somewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const ROOT: &str = tlite_testing::ROOT;

/// Columns of prose and of comments.
const COLUMNS: usize = 100;

/// Most bytes of a document.
const SIZES: [(&str, usize); 4] = [
    ("README.md", 10_000),
    ("ARCHITECTURE.md", 15_000),
    ("BENCHMARKS.md", 8_000),
    ("CONTRIBUTING.md", 6_000),
];

/// Most bytes of a design note.
const NOTE: usize = 6_000;

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn name(path: &Path) -> String {
    path.strip_prefix(ROOT).unwrap_or(path).display().to_string()
}

/// Files below `folder` whose name ends with one of `extensions`.
pub fn files(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![Path::new(ROOT).join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            // Links are other names of files that are found elsewhere.
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|e| extensions.iter().any(|x| e == *x))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The documents at the root and below `docs`.
fn documents() -> Vec<PathBuf> {
    let root = std::fs::read_dir(ROOT).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<PathBuf> = root
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .collect();
    all.extend(files("docs", &["md"]));
    all.sort();
    assert!(all.len() > 20, "the documents of {ROOT}");
    all
}

/// The lines of a document outside of code blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((i + 1, line));
        }
    }
    lines
}

#[test]
fn documents_keep_their_sizes() {
    for (document, most) in SIZES {
        let bytes = read(&Path::new(ROOT).join(document)).len();
        assert!(bytes <= most, "{document}: {bytes} bytes, at most {most} allowed");
    }
    for note in files("docs/design", &["md"]) {
        let bytes = read(&note).len();
        assert!(
            bytes <= NOTE,
            "{}: {bytes} bytes, at most {NOTE} allowed",
            name(&note)
        );
    }
}

/// The steps that the documents show are those that the scripts print.
#[test]
fn documents_show_the_steps_of_the_scripts() {
    let scripts = files("tools", &["sh", "py"]);
    let scripts: String = scripts.iter().map(|path| read(path)).collect();
    for (document, block, script) in [
        ("README.md", "demo-output", "demo.sh"),
        ("CONTRIBUTING.md", "test-output", "test.sh"),
    ] {
        let text = read(&Path::new(ROOT).join(document));
        let (from, to) = (format!("<!-- {block} -->"), format!("<!-- /{block} -->"));
        let (_, shown) = text.split_once(&from).unwrap();
        let (shown, _) = shown.split_once(&to).unwrap();
        let steps: Vec<&str> = shown.lines().filter_map(|l| l.strip_prefix("==> ")).collect();
        assert!(steps.len() > 3, "{script}: {steps:?}");
        for step in steps {
            let word = step.split([' ', ':']).next().unwrap_or_default();
            let printed = scripts.contains(&format!("\"{word}"));
            assert!(printed, "{script} prints no \"{step}\"");
        }
    }
}

/// The rows of the tables below a heading of `text`, without the heading rows. With the heading
/// "", those of the whole text.
fn rows<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let mut rows = Vec::new();
    let (mut inside, mut body) = (heading.is_empty(), false);
    for (_, line) in prose(text) {
        if !heading.is_empty() && line.starts_with('#') {
            inside = line == heading;
        }
        if !line.starts_with('|') {
            body = false;
        } else if line.starts_with("|---") {
            body = true;
        } else if inside && body {
            rows.push(line);
        }
    }
    rows
}

/// The numbers of a table row, such as `16 846` and `3.7`.
fn figures(row: &str) -> Vec<String> {
    let number = |word: &str| word.parse::<f64>().is_ok();
    let mut found: Vec<String> = Vec::new();
    // Whether the last word can be the thousands of the next one.
    let mut open = false;
    for word in row.split_whitespace() {
        if !number(word) {
            open = false;
            continue;
        }
        match found.last_mut() {
            Some(last) if open && word.len() == 3 && !word.contains('.') => {
                *last = format!("{last} {word}");
            }
            _ => found.push(word.to_owned()),
        }
        open = !word.contains('.');
    }
    found
}

#[test]
fn figures_of_a_row_are_found() {
    let row = "| Llama-2 7B | pp1024: 16 846 | 686 to 886 | 3.7 GB | 13 MB |";
    assert_eq!(figures(row), ["16 846", "686", "886", "3.7", "13"]);
}

/// Measured figures of the README come from BENCHMARKS.md.
#[test]
fn figures_of_the_readme_stand_in_benchmarks() {
    let readme = read(&Path::new(ROOT).join("README.md"));
    let benchmarks = read(&Path::new(ROOT).join("BENCHMARKS.md"));
    let known: BTreeSet<String> = rows(&benchmarks, "").into_iter().flat_map(figures).collect();
    for heading in ["## How fast is it?", "## How much memory does it take?"] {
        let shown: Vec<String> = rows(&readme, heading).into_iter().flat_map(figures).collect();
        assert!(shown.len() > 3, "the figures under \"{heading}\": {shown:?}");
        for figure in shown {
            assert!(
                known.contains(&figure),
                "{heading}: {figure} is not in BENCHMARKS.md"
            );
        }
    }
}

/// `tools/plot_llama_cpp.py` draws the last column of the table.
#[test]
fn the_plot_shows_the_ratios_of_benchmarks() {
    let benchmarks = read(&Path::new(ROOT).join("BENCHMARKS.md"));
    let plot = read(&Path::new(ROOT).join("docs/llama-cpp.svg"));
    let rows = rows(&benchmarks, "## Next to llama.cpp");
    let last = |row: &&str| row.trim_matches(['|', ' ']).rsplit('|').next().map(str::to_owned);
    let ratios: Vec<String> = rows.iter().filter_map(last).collect();
    assert!(ratios.len() > 5, "{ratios:?}");
    for ratio in &ratios {
        let shown = plot.contains(&format!(">{}</text>", ratio.trim()));
        assert!(shown, "{ratio}: run tools/plot_llama_cpp.py");
    }
    let bars = plot.matches(" fill=\"#ffffff\" text-anchor=\"end\"").count();
    assert_eq!(bars, ratios.len(), "bars: run tools/plot_llama_cpp.py");
}

#[test]
fn prose_keeps_its_width() {
    let mut wide = Vec::new();
    for document in documents() {
        let text = read(&document);
        for (number, line) in prose(&text) {
            let exempt = line.contains("](") || line.contains("://") || line.trim_start().starts_with('|');
            if line.chars().count() > COLUMNS && !exempt {
                wide.push(format!("{}:{number}", name(&document)));
            }
        }
    }
    assert!(wide.is_empty(), "lines over {COLUMNS} columns: {wide:#?}");
}

#[test]
fn comments_keep_their_width() {
    let mut wide = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "examples", "fuzz"] {
        for file in files(folder, &["rs"]) {
            for (i, line) in read(&file).lines().enumerate() {
                let comment = line.trim_start();
                let table = comment.starts_with("//! |") || comment.starts_with("/// |");
                let exempt = table || line.contains("://");
                if comment.starts_with("//") && line.chars().count() > COLUMNS && !exempt {
                    wide.push(format!("{}:{}", name(&file), i + 1));
                }
            }
        }
    }
    assert!(wide.is_empty(), "comments over {COLUMNS} columns: {wide:#?}");
}

/// The targets of the links of a line of Markdown.
fn targets(line: &str) -> Vec<&str> {
    let parts = line.split("](").skip(1);
    parts.filter_map(|part| part.split(')').next()).collect()
}

/// The anchor that code hosts and mdBook make of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars();
    kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
        .collect()
}

#[test]
fn relative_links_lead_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = read(&document);
        for (number, line) in prose(&text) {
            for target in targets(line) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (file, part) = target.split_once('#').unwrap_or((target, ""));
                let path = match file {
                    "" => document.clone(),
                    file => document.parent().unwrap().join(file),
                };
                let found = path.exists()
                    && (part.is_empty()
                        || prose(&read(&path))
                            .iter()
                            .any(|(_, l)| l.starts_with('#') && anchor(l) == part));
                if !found {
                    broken.push(format!("{}:{number}: {target}", name(&document)));
                }
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}

#[test]
fn the_summary_lists_every_chapter() {
    let docs = Path::new(ROOT).join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let listed: BTreeSet<PathBuf> = summary.lines().flat_map(targets).map(|t| docs.join(t)).collect();
    let chapters = files("docs", &["md"]);
    let missing: Vec<String> = chapters
        .iter()
        .filter(|p| !p.ends_with("SUMMARY.md") && !listed.contains(*p))
        .map(|p| name(p))
        .collect();
    assert!(
        missing.is_empty(),
        "chapters that docs/SUMMARY.md does not list: {missing:#?}"
    );
}

#[test]
fn library_page_shows_the_server_that_is_tested() {
    let source = read(&Path::new(ROOT).join("examples/server/src/main.rs"));
    let (shown, _) = source.split_once("\n#[cfg(test)]").unwrap();
    assert!(shown.lines().count() <= 40);
    assert!(
        read(&Path::new(ROOT).join("docs/library.md"))
            .contains(&format!("```rust,ignore\n{}\n```", shown.trim_end()))
    );
}
