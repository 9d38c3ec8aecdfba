//! Replays `fuzz/regressions` in the targets that need no driver.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The targets of a folder of regressions, which is named as its only target otherwise.
fn targets(folder: &str) -> Vec<&str> {
    match folder {
        "models" => vec!["plan", "run", "cpu"],
        only => vec![only],
    }
}

#[test]
fn regressions_have_no_findings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let entries = std::fs::read_dir(&root).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() > 3, "{folders:?}");
    for folder in folders {
        for target in targets(folder.file_name().unwrap().to_str().unwrap()) {
            let work = tempfile::tempdir().unwrap();
            let output = Command::new(env!("CARGO_BIN_EXE_fuzz"))
                .env("FUZZ_TARGET", target)
                .env("FUZZ_WORK", work.path())
                .args(["-runs=0", "-timeout=60", "-detect_leaks=0"])
                .arg(format!("-artifact_prefix={}/", work.path().display()))
                .arg(&folder)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{target}: {text}");
            let count = std::fs::read_dir(&folder).unwrap().count();
            assert!(
                text.contains(&format!("{count} files found in")),
                "{target}: {text}"
            );
        }
    }
}
