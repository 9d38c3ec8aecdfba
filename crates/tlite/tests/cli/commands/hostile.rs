//! Files that try to hang or end the process, or to control the terminal.

use super::{fails_as, model_folder, path, stderr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tlite_testing::gguf::Traits;
use tlite_testing::{tiny_model, tlite};

/// A file of `fuzz/regressions`.
fn data(name: &str) -> PathBuf {
    Path::new(tlite_testing::ROOT).join("fuzz/regressions").join(name)
}

#[test]
fn hostile_chat_templates_end_with_an_error() {
    let names = [
        "batch",
        "big_output",
        "doubling",
        "format",
        "nested_range",
        "replace",
    ];
    let read = |name| std::fs::read_to_string(data(&format!("template/{name}.jinja"))).unwrap();
    let sums = [6000, 25_000].map(|count| ("sum", format!("{{{{ 1{} }}}}", "+1".repeat(count))));
    for (name, template) in names.map(|name| (name, read(name))).into_iter().chain(sums) {
        let model = model_folder();
        std::fs::write(model.path().join("chat_template.jinja"), template).unwrap();
        let start = Instant::now();
        let args = ["generate", path(model.path()), "--prompt", "hello"];
        fails_as(&args, 1, "LimitExceeded", &["chat_template.jinja"]);
        // Far more than it takes, as tests run beside others and without optimization.
        assert!(start.elapsed() < Duration::from_secs(20), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn pipes_in_a_model_folder_do_not_block() {
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "chat_template.jinja",
    ] {
        let model = model_folder();
        let pipe = model.path().join(name);
        let _none = std::fs::remove_file(&pipe);
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let output = tlite(&["generate", path(model.path()), "--prompt", "hello"]);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{name}: {output:?}");
        assert!(stderr(&output).contains(name), "{name}: {output:?}");
    }
}

#[cfg(unix)]
#[test]
fn files_that_users_name_may_be_pipes() {
    let (_dir, model) = tiny_model("llama", Traits::default());
    let script = r#"exec "$0" "$@" --json-schema <(echo '{"const": 5}')"#;
    let output = std::process::Command::new("bash")
        .args([
            "-c",
            script,
            env!("CARGO_BIN_EXE_tlite"),
            "generate",
            path(&model),
        ])
        .args([
            "--prompt",
            "x",
            "--raw",
            "--backend",
            "reference",
            "--max-tokens",
            "9",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let endless = ["--json-schema", "/dev/zero"];
    let base = [
        "generate",
        path(&model),
        "--prompt",
        "x",
        "--raw",
        "--backend",
        "reference",
    ];
    fails_as(
        &[&base[..], &endless].concat(),
        2,
        "LimitExceeded",
        &["--json-schema", "/dev/zero"],
    );
}

#[test]
fn names_of_models_do_not_control_the_terminal() {
    for (name, commands) in [
        (
            "models/escape_names.onnx",
            &[&["inspect"][..], &["run", "--random", "--backend", "reference"]][..],
        ),
        (
            "models/escape_names_ok.onnx",
            &[
                &["inspect"],
                &["inspect", "-v"],
                &["run", "--random", "--backend", "reference"],
                &["profile"],
                &["roofline"],
            ],
        ),
    ] {
        for command in commands {
            let model = data(name);
            let output = tlite(&[command, &[path(&model)][..]].concat());
            let text = [output.stdout.as_slice(), &output.stderr].concat();
            let text = String::from_utf8(text).unwrap();
            let control = |c: char| c.is_control() && c != '\n';
            assert!(!text.contains(control), "{name} {command:?}: {text:?}");
            assert!(
                !text.lines().any(|line| line.starts_with("error: fake")),
                "{name} {command:?}: {text}"
            );
        }
        // Programs get the names.
        let output = tlite(&["inspect", "--json", path(&data(name))]);
        if output.status.success() {
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(report.to_string().contains("\\u001b"), "{report}");
        }
    }
}
