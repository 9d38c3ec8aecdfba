//! Which part of the library may name which dependency.

use std::path::{Path, PathBuf};

/// All Rust files under `folder`, with their paths relative to `root`.
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
    let root = Path::new(tlite_testing::ROOT);
    let mut files = Vec::new();
    for folder in ["src", "crates/convert/src", "crates/tlite/src"] {
        sources(root, &root.join(folder), &mut files);
    }
    assert!(files.len() > 50, "only {} files found", files.len());
    // The words, and the only folder that may hold them.
    let rules: &[(&[&str], &str)] = &[
        (&["prost"], "src/graph/onnx|crates/convert/src/quantize"),
        (
            &["proto::"],
            "src/graph/onnx|crates/convert/src/quantize|crates/convert/src/quantize.rs",
        ),
        (&["opencl3", "cl3"], "src/backend/opencl"),
        (&["::wgpu", "pollster"], "src/backend/wgpu"),
        (&["minijinja"], "src/llm"),
        (&["tokenizers"], "src/llm|crates/convert/src/gguf"),
        (&["llguidance"], "src/llm"),
        (&["clap", "indicatif", "ctrlc"], "crates/tlite/src/cli"),
        (&["reedline", "anstream", "anstyle"], "crates/tlite/src/cli/chat"),
        (&["terminal_size"], "crates/tlite/src/cli"),
        (&["ureq"], "crates/convert/src/models/hub"),
        (&["sha2"], "crates/convert/src/models"),
        (&["env_logger"], "crates/tlite/src/main.rs"),
        (&["no_mangle", "c_char"], "src/capi.rs|src/capi"),
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
