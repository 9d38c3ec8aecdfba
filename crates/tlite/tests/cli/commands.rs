//! The built command: exit codes, and what goes to which stream.

mod calibration;
mod device;
mod eval;
mod generation;
mod hostile;
mod int8;
mod perplexity;
mod quantize;
mod robustness;
mod run;
mod vision;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use tlite_testing::{assert_fails, carries, tlite};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec};
use transformer_lite::unstable::tensor::{DType, HostTensor};

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Runs a command that must fail with `code`, nothing on standard output, and an error that carries
/// `values`.
#[track_caller]
fn fails(args: &[&str], code: i32, values: &[&str]) {
    assert_fails(args, code, values);
}

/// As [`fails`], with an error of this kind or variant.
#[track_caller]
fn fails_as(args: &[&str], code: i32, variant: &str, values: &[&str]) {
    let failure = assert_fails(args, code, values);
    assert!(
        carries(&failure.error, variant),
        "{args:?}: expected {variant}: {}",
        failure.error
    );
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
    for command in [
        &[][..],
        &["devices"],
        &["convert"],
        &["quantize"],
        &["generate"],
        &["chat"],
        &["bench"],
        &["inspect"],
        &["perplexity"],
        &["eval"],
        &["run"],
        &["selftest"],
        &["tune"],
    ] {
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
        "--stop",
        "--draft",
        "--grammar",
        "--prompt-cache",
        "--json",
    ] {
        assert!(help("generate").contains(option), "{option}");
    }
    for command in ["generate", "chat", "bench", "perplexity", "eval"] {
        for option in ["--backend", "--device", "--priority", "--context", "--float"] {
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
        &["generate", "m", "--prompt", "x", "--backend", "npu"],
        2,
        &["npu", "opencl", "wgpu", "reference", "auto"],
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
        ("--max-tokens", "-3"),
        ("--seed", "-2"),
        ("--typical-p", "0"),
        ("--min-p", "1.5"),
        ("--repetition-penalty", "0"),
        ("--repetition-penalty", "1e-40"),
        ("--frequency-penalty", "-2.5"),
        ("--presence-penalty", "many"),
        ("--penalty-last-n", "-1"),
        ("--dry-multiplier", "-1"),
        ("--dry-base", "0.9"),
        ("--dry-allowed-length", "0"),
        ("--logit-bias", "7"),
        ("--logit-bias", "7=inf"),
        ("--draft-tokens", "65"),
        ("--draft", "guess"),
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
    for (other, value) in [("--prefill", "8"), ("--depth", "8"), ("--parallel", "2")] {
        fails(
            &["bench", "m", "--draft", "ngram", other, value],
            2,
            &["--draft", other],
        );
    }
    let random = ["bench", "--random", "smollm2-135m", "--draft", "ngram"];
    fails(&random, 2, &["--random"]);
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
        2,
        &["tokenizer.json", "tlite run"],
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
        &["MODEL", "tokenizer.json"],
    );
    let file = dir.path().join("x.gguf");
    std::fs::write(&file, b"GGUF\x03\0\0\0").unwrap();
    let model = path(&file);
    for args in [
        &["run", model, "--random"][..],
        &["quantize", model, "-o", "out"],
        &["dequantize", model, "-o", "out"],
    ] {
        fails(args, 2, &["MODEL", "x.gguf", "GGUF", "tlite convert"]);
    }
    // These convert it.
    for args in [
        &["generate", model, "--prompt", "x"][..],
        &["bench", model],
        &["inspect", model],
        &["profile", model],
    ] {
        fails(args, 1, &["x.gguf", "24", "8"]);
    }
}

#[test]
fn broken_folders_are_named() {
    let folder = model_folder();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let model = path(folder.path());
    fails_as(&["chat", model], 2, "NoTemplate", &[model, "--raw"]);
    write("chat_template.jinja", "{% for %}");
    fails_as(&["chat", model], 1, "InvalidFile", &["chat_template.jinja"]);
    write("chat_template.jinja", "{{ raise_exception('USERS=0') }}");
    fails_as(
        &["generate", model, "--prompt", "hello"],
        1,
        "TemplateRefused",
        &["chat_template.jinja", "USERS=0"],
    );
    write("tokenizer_config.json", "[");
    fails(
        &["generate", model, "--prompt", "hello"],
        1,
        &["tokenizer_config.json"],
    );
    write("tokenizer_config.json", "{}");
    write("tokenizer.json", "{\"model\": 3}");
    fails(&["generate", model, "--prompt", "hello"], 1, &["tokenizer.json"]);
}

#[test]
fn devices() {
    let output = tlite(&["devices"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for backend in ["opencl: ", "wgpu: ", "reference: "] {
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
    assert!(devices.contains(&"reference".to_owned()));
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

/// A folder `in` with a small model whose weights are outside of the model file.
fn onnx_folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("in");
    std::fs::create_dir(&folder).unwrap();
    let mut w = ModelWriter::create(Stage::Convert, &folder, "model.onnx", "g").unwrap();
    w.opset("", 18);
    w.add_input("x", DType::F32, &["n".into(), 64.into()]).unwrap();
    w.add_output("logits", DType::F32, &["n".into(), 64.into()])
        .unwrap();
    for (name, from, to, head) in [("first", "x", "y", false), ("second", "y", "logits", true)] {
        let data: Vec<f32> = (0..64 * 64)
            .map(|i| (i as f32 * 0.37 + f32::from(head)).sin())
            .collect();
        w.add_initializer(name, &HostTensor::from_f32(&[64, 64], &data).unwrap())
            .unwrap();
        w.add_node(NodeSpec {
            domain: "",
            op: "MatMul",
            name: to,
            inputs: &[from, name],
            outputs: &[to],
            attributes: &[],
        })
        .unwrap();
    }
    w.finish().unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    dir
}

/// Names in a folder, sorted; hidden ones too.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A limit on the size of files stands for a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let dir = onnx_folder();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let script = "trap '' XFSZ; ulimit -f 4; exec \"$0\" quantize \"$1\" -o \"$2\" --format e0m4";
    let output = Command::new("sh")
        .args([
            "-c",
            script,
            env!("CARGO_BIN_EXE_tlite"),
            path(&input),
            path(&out),
        ])
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("error: ") && text.contains(".quantize-out"),
        "{text}"
    );
    // What the system calls it.
    tlite_testing::assert_carries(text, &["27"]);
    assert_eq!(names(dir.path()), ["in"]);
}

/// As with `| head`, once head is gone.
#[test]
fn a_closed_standard_output_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = tlite_testing::command()
        .args(["devices", "--json"])
        // Without it a library under the Vulkan drivers complains.
        .env("XDG_RUNTIME_DIR", std::env::temp_dir())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

/// Ctrl-C in the middle of the work, which then goes on.
#[cfg(target_os = "linux")]
#[test]
fn interrupted_work_leaves_no_model_and_goes_on() {
    use std::time::{Duration, Instant};
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    std::fs::create_dir(&input).unwrap();
    let mut w = ModelWriter::create(Stage::Convert, &input, "model.onnx", "g").unwrap();
    w.opset("", 18);
    w.add_input("x", DType::F32, &["n".into(), 4096.into()]).unwrap();
    w.add_output("y", DType::F32, &["n".into(), 2048.into()]).unwrap();
    let data: Vec<f32> = (0..1 << 23)
        .map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * 1e-7)
        .collect();
    let weight = HostTensor::from_f32(&[4096, 2048], &data).unwrap();
    w.add_initializer("w", &weight).unwrap();
    w.add_node(NodeSpec {
        domain: "",
        op: "MatMul",
        name: "n",
        inputs: &["x", "w"],
        outputs: &["y"],
        attributes: &[],
    })
    .unwrap();
    w.finish().unwrap();
    let child = tlite_testing::command()
        .args([
            "quantize",
            path(&input),
            "-o",
            path(&dir.path().join("out")),
            "--format",
            "e0m4",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    // The data file is there from the first weight on.
    let begun = || {
        let made = |name: &String| {
            name.starts_with(".quantize-") && dir.path().join(name).join("model/model.onnx.data").exists()
        };
        names(dir.path()).iter().any(made)
    };
    while !begun() {
        assert!(start.elapsed() < Duration::from_secs(20), "no temporary folder");
        std::thread::sleep(Duration::from_millis(1));
    }
    send_interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(names(dir.path()), [".quantize-out", "in"]);
    assert!(!dir.path().join(".quantize-out/model/model.onnx").exists());
    let output = tlite(&["quantize", path(&input), "-o", path(&dir.path().join("out"))]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(names(dir.path()), ["in", "out"]);
}

/// Sends what Ctrl-C sends.
#[cfg(unix)]
pub fn send_interrupt(child: &std::process::Child) {
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success(), "kill could not be run");
}

/// Outside of generation Ctrl-C ends the program.
#[cfg(target_os = "linux")]
#[test]
fn interrupt_exits_130() {
    use std::time::{Duration, Instant};
    const SIGINT: u32 = 2;
    let folder = model_folder();
    let mut child = tlite_testing::command()
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
    send_interrupt(&child);
    let output = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty());
}
