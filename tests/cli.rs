//! The built command: exit codes, and what goes to which stream.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn tlite(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tlite"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Runs a command that must fail with `code`, say nothing on standard output and `words` on standard error.
#[track_caller]
fn fails(args: &[&str], code: i32, words: &[&str]) {
    let output = tlite(args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?} wrote to standard output");
    assert!(text.starts_with("error: "), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: expected {word:?} in: {text}");
    }
}

/// A folder whose tokenizer knows the single word `hello`.
fn model_folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"hello": 0, "?": 1}, "unk_token": "?"}}"#;
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer).unwrap();
    dir
}

fn path(dir: &Path) -> &str {
    dir.to_str().unwrap()
}

#[test]
fn help_and_version() {
    for command in [&[][..], &["devices"], &["generate"], &["chat"], &["bench"]] {
        let output = tlite(&[command, &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(output.stderr.is_empty(), "{command:?}: {}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Usage: tlite"), "{text}");
        assert!(!text.contains('\u{1b}'), "no colours outside of a terminal");
    }
    let output = tlite(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("tlite {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn help_names_the_options() {
    let help = |command| String::from_utf8(tlite(&[command, "--help"]).stdout).unwrap();
    for option in [
        "--prompt",
        "--raw",
        "--system",
        "--max-tokens",
        "--temperature",
        "--top-k",
        "--top-p",
        "--seed",
        "--json",
    ] {
        assert!(help("generate").contains(option), "{option}");
    }
    for command in ["generate", "chat", "bench"] {
        for option in ["--backend", "--device", "--context"] {
            assert!(help(command).contains(option), "{command} {option}");
        }
    }
}

#[test]
fn wrong_usage() {
    fails(&["devices", "--colour"], 2, &["--colour"]);
    fails(&["generate", "m"], 2, &["--prompt"]);
    fails(&["generate", "--prompt", "x"], 2, &["<MODEL>"]);
    fails(&["fly"], 2, &["fly"]);
    fails(
        &["generate", "m", "--prompt", "x", "--backend", "cuda"],
        2,
        &["cuda", "opencl", "wgpu", "host", "auto"],
    );
    fails(
        &["generate", "m", "--prompt", "x", "--raw", "--system", "y"],
        2,
        &["--raw", "--system"],
    );
    assert_eq!(tlite(&[]).status.code(), Some(2));
}

#[test]
fn values_out_of_range() {
    for (option, value) in [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--temperature", "hot"),
        ("--top-p", "0"),
        ("--top-p", "2"),
        ("--top-p", "-0.5"),
        ("--top-k", "-1"),
        ("--max-tokens", "0"),
        ("--max-tokens", "-3"),
        ("--seed", "-1"),
        ("--context", "0"),
        ("--context", "99999999999999999999999"),
    ] {
        fails(
            &["generate", "m", "--prompt", "x", option, value],
            2,
            &[option, value],
        );
        fails(&["chat", "m", option, value], 2, &[option, value]);
    }
    for (option, value) in [
        ("--prefill", "0"),
        ("--prefill", "128,x"),
        ("--decode", "-1"),
        ("--repeat", "0"),
    ] {
        fails(&["bench", "m", option, value], 2, &[option]);
    }
}

#[test]
fn missing_models_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent");
    for args in [
        &["generate", path(&absent), "--prompt", "x"][..],
        &["chat", path(&absent)],
        &["bench", path(&absent)],
    ] {
        fails(args, 2, &["absent"]);
        assert_eq!(stderr(&tlite(args)).lines().count(), 1);
    }
    fails(
        &["generate", path(dir.path()), "--prompt", "x"],
        1,
        &["tokenizer.json", "caused by: "],
    );
    let folder = model_folder();
    fails(
        &["generate", path(folder.path()), "--raw", "--prompt", "hello"],
        2,
        &["model.onnx"],
    );
    fails(&["bench", path(folder.path())], 2, &["model.onnx"]);
    fails(
        &[
            "generate",
            path(&folder.path().join("tokenizer.json")),
            "--prompt",
            "x",
        ],
        2,
        &["is a file"],
    );
}

#[test]
fn broken_folders_are_named() {
    let folder = model_folder();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let model = path(folder.path());
    fails(&["chat", model], 1, &["no chat template", model]);
    write("chat_template.jinja", "{% for %}");
    fails(
        &["chat", model],
        1,
        &["chat_template.jinja", "syntax error", "caused by: "],
    );
    write("chat_template.jinja", "{{ raise_exception('no users here') }}");
    fails(
        &["generate", model, "--prompt", "hello"],
        1,
        &["chat_template.jinja", "no users here"],
    );
    write("tokenizer_config.json", "[");
    fails(
        &["generate", model, "--prompt", "hello"],
        1,
        &["tokenizer_config.json"],
    );
    write("tokenizer_config.json", "{}");
    write("tokenizer.json", "{\"model\": 3}");
    fails(
        &["generate", model, "--prompt", "hello"],
        1,
        &["tokenizer.json", "not a tokenizer description"],
    );
}

#[test]
fn devices() {
    let output = tlite(&["devices"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for backend in ["opencl: ", "wgpu: ", "host: "] {
        assert!(
            text.lines().any(|l| l.starts_with(backend)),
            "{backend} in {text}"
        );
    }

    let output = tlite(&["devices", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let named = |list: &str| -> Vec<String> {
        let rows = json[list].as_array().unwrap().iter();
        rows.map(|row| row["backend"].as_str().unwrap().to_owned())
            .collect()
    };
    let (devices, absent) = (named("devices"), named("absent"));
    assert!(devices.contains(&"host".to_owned()));
    for backend in ["opencl", "wgpu"].map(str::to_owned) {
        assert!(
            devices.contains(&backend) != absent.contains(&backend),
            "{backend}: {json}"
        );
    }
    for row in json["absent"].as_array().unwrap() {
        assert!(!row["why"].as_str().unwrap().is_empty());
    }
}

/// As with `| head`, once head is gone.
#[test]
fn a_closed_standard_output_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_tlite"))
        .args(["devices", "--json"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

/// Outside of generation Ctrl-C ends the program.
#[cfg(target_os = "linux")]
#[test]
fn interrupt_exits_130() {
    use std::time::{Duration, Instant};
    const SIGINT: u32 = 2;
    let folder = model_folder();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tlite"))
        .args(["generate", path(folder.path()), "--prompt", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let handled = || {
        let text = std::fs::read_to_string(&status).unwrap();
        let mask = text.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (SIGINT - 1)) != 0
    };
    let start = Instant::now();
    while !handled() {
        assert!(start.elapsed() < Duration::from_secs(20), "no handler was set");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Until its standard input ends the command waits for the prompt.
    let input = child.stdin.take();
    assert!(
        Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty());
}
