//! Which part of the library may name which dependency.

use std::path::{Path, PathBuf};

/// All Rust files under `folder`, with their paths relative to `src`.
fn sources(root: &Path, folder: &Path, out: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(root, &path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            out.push((path.strip_prefix(root).unwrap().to_owned(), text));
        }
    }
}

/// True when `line` holds `word` with no letter, digit or underscore on either side.
fn holds(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

#[test]
fn dependencies_stay_in_their_folders() {
    let root = Path::new(tlite_testing::ROOT).join("src");
    let mut files = Vec::new();
    sources(&root, &root, &mut files);
    assert!(files.len() > 50, "only {} files found", files.len());
    // The words, and the only folder that may hold them.
    let rules: &[(&[&str], &str)] = &[
        (&["prost", "proto::"], "graph/onnx"),
        (&["opencl3", "cl3"], "backend/opencl"),
        (&["::wgpu", "pollster"], "backend/wgpu"),
        (&["minijinja"], "llm"),
        (&["tokenizers"], "llm|gguf"),
        (&["llguidance"], "llm"),
        (&["clap", "indicatif", "ctrlc"], "cli|main.rs"),
        (&["reedline", "anstream", "anstyle"], "cli/chat"),
        (&["terminal_size"], "cli"),
        (&["ureq"], "models/hub"),
        (&["sha2"], "models"),
        (&["anyhow", "env_logger"], "main.rs"),
        (&["no_mangle", "c_char"], "capi.rs|capi"),
    ];
    let mut wrong = Vec::new();
    for (words, folders) in rules {
        let mut used = false;
        for (path, text) in &files {
            let inside = folders.split('|').any(|f| path.starts_with(f));
            for (number, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let Some(word) = words.iter().find(|w| holds(code, w)) else {
                    continue;
                };
                used = true;
                // Our own module of the same name is `crate::backend::wgpu`.
                if !inside && !code.contains("backend::wgpu") {
                    wrong.push(format!(
                        "{}:{}: {word} outside of {folders}",
                        path.display(),
                        number + 1
                    ));
                }
            }
        }
        assert!(used, "nothing holds {words:?}: the rule is out of date");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
