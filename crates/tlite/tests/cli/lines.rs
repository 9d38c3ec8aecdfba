//! How many lines of code each part has. A part grows on purpose: the change that lets it grow
//! changes the table, too. `UPDATE_GOLDEN=1` writes it anew; review the difference.

use super::documents::{files, name, read};
use super::sizes::code;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use tlite_testing::ROOT;

/// Folders with code, and the extensions of its files.
const FOLDERS: [&str; 7] = ["cl", "crates", "python", "qat", "shaders", "src", "web"];
const EXTENSIONS: [&str; 8] = ["c", "cl", "h", "js", "py", "rs", "ts", "wgsl"];
/// Folders and files that are not counted: tests, and what `npm` writes.
const TESTS: [&str; 6] = ["tests", "test", "benches", "examples", "dist", "node_modules"];

/// The part to which a file belongs: a folder of the first or second level, or of the third for
/// the largest.
fn part(file: &str) -> String {
    let folders: Vec<&str> = file.split('/').collect();
    let depth = match folders[..] {
        ["src", "graph" | "backend" | "kernels", _, _, ..] => 3,
        ["src" | "crates" | "web", _, _, ..] => 2,
        _ => 1,
    };
    folders[..depth].join("/")
}

/// The number of lines of code without comments and blank lines. Rust's `#[cfg(test)]` items do not
/// count.
fn count(text: &str) -> usize {
    let code = code(text);
    let mut lines = code.lines().filter(|line| !line.trim().is_empty());
    let mut count = 0;
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            skip_item(&mut lines);
        } else {
            count += 1;
        }
    }
    count
}

/// Skips the lines of an item, to its closing brace or semicolon.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    let (mut depth, mut opened) = (0, false);
    for line in lines {
        for c in line.chars() {
            match c {
                '{' => (depth, opened) = (depth + 1, true),
                '}' => depth -= 1,
                _ => {}
            }
        }
        let ends = if opened {
            depth == 0
        } else {
            line.trim_end().ends_with(';')
        };
        if ends {
            return;
        }
    }
}

#[test]
fn parts_have_the_lines_of_the_table() {
    let mut parts: BTreeMap<String, usize> = BTreeMap::new();
    for folder in FOLDERS.into_iter().filter(|f| Path::new(ROOT).join(f).exists()) {
        for path in files(folder, &EXTENSIONS) {
            let file = name(&path).replace('\\', "/");
            let is_test = |word: &str| TESTS.contains(&word.trim_end_matches(".rs"));
            if !file.split('/').any(is_test) {
                *parts.entry(part(&file)).or_default() += count(&read(&path));
            }
        }
    }
    let mut found = String::new();
    for (part, lines) in &parts {
        writeln!(found, "{lines:>7}  {part}").unwrap();
    }
    writeln!(found, "{:>7}  total", parts.values().sum::<usize>()).unwrap();
    let table = Path::new(ROOT).join("crates/tlite/tests/cli/lines.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&table, &found).unwrap();
    }
    let listed = read(&table);
    assert_eq!(
        listed, found,
        "the lines of code have changed; on purpose? UPDATE_GOLDEN=1 writes the table anew"
    );
}

#[test]
fn tests_and_comments_do_not_count() {
    let text = "
//! Comment.
fn first() { // {
    let a = '}';

}
#[cfg(test)]
use std::fmt;
#[cfg(test)]
mod tests {
    fn second() {}
}
/* A
comment. */
const A: u8 = 1;
";
    assert_eq!(count(text), 4);
    assert_eq!(part("src/graph/op/reduce/softmax.rs"), "src/graph/op");
    assert_eq!(part("src/graph/mod.rs"), "src/graph");
    assert_eq!(part("src/lib.rs"), "src");
    assert_eq!(part("cl/reduce/softmax.cl"), "cl");
}
