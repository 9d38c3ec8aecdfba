//! The wording of the most common messages, in one file: `messages.snap.txt`. Other tests
//! look at kinds and values only. `UPDATE_GOLDEN=1` writes the file anew; review the difference.
//!
//! No driver and no model is needed: all that runs, runs on the host.

use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tlite_testing::gguf::{Traits, tiny};
use tlite_testing::tiny_model;
use transformer_lite::unstable::backend::BackendError;
use transformer_lite::unstable::error::{Error, Stage};
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::note::{Note, Unused};
use transformer_lite::unstable::tensor::{DType, HostTensor};
use transformer_lite_convert::gguf::Value;

/// A folder for models, in which commands run, and what was said so far.
struct Snapshot {
    dir: tempfile::TempDir,
    text: String,
}

impl Snapshot {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }

    /// What a command writes to standard error, and its exit code.
    fn command(&mut self, title: &str, args: &[&str]) {
        let output = tlite_testing::command()
            .args(args)
            .current_dir(&self.dir)
            .env_remove("RUST_LOG")
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let code = output.status.code().unwrap();
        let quoted = args.iter().map(|a| match a.contains(' ') {
            true => format!("\"{a}\""),
            false => (*a).to_owned(),
        });
        let line = quoted.collect::<Vec<_>>().join(" ");
        let said = format!("$ tlite {line}\n{}\nexit code {code}", said.trim_end());
        self.add(title, &said);
    }

    /// What the library says.
    fn said(&mut self, title: &str, message: &dyn Display) {
        self.add(title, &message.to_string());
    }

    fn add(&mut self, title: &str, said: &str) {
        let dir = self.dir.path().display().to_string();
        let said = said
            .replace(&dir, "DIR")
            .replace(env!("CARGO_PKG_VERSION"), "VERSION");
        writeln!(self.text, "# {title}\n").unwrap();
        for line in said.lines() {
            writeln!(self.text, "{}", without_hashes(line)).unwrap();
        }
        self.text.push('\n');
    }
}

/// A line in which `HASH` stands for hashes of files.
fn without_hashes(line: &str) -> String {
    let is_hash = |w: &str| w.len() == 16 && w.bytes().all(|b| b.is_ascii_hexdigit());
    let mut line = line.to_owned();
    let words = line.split(|c: char| !c.is_alphanumeric());
    let hashes: Vec<String> = words.filter(|w| is_hash(w)).map(str::to_owned).collect();
    for hash in hashes {
        line = line.replace(&hash, "HASH");
    }
    line
}

/// A model of one node over `x`, of these sizes.
fn one_node(dir: &Path, sizes: &[Size], op: &str, name: &str, weight: Option<&HostTensor>) {
    let mut w = ModelWriter::create(Stage::Convert, dir, "model.onnx", "g").unwrap();
    w.opset("", 18);
    w.add_input("x", DType::F32, sizes).unwrap();
    w.add_output("y", DType::F32, sizes).unwrap();
    if let Some(weight) = weight {
        w.add_initializer("w", weight).unwrap();
    }
    let inputs = if weight.is_some() { &["x", "w"][..] } else { &["x"] };
    w.add_node(NodeSpec {
        domain: "",
        op,
        name,
        inputs,
        outputs: &["y"],
        attributes: &[],
    })
    .unwrap();
    w.finish().unwrap();
}

fn copied(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn folders(s: &mut Snapshot) {
    s.command("Missing folder", &["chat", "absent"]);
    s.write("empty/config.json", "{}");
    s.command(
        "Folder without a tokenizer",
        &["generate", "empty", "--prompt", "hello"],
    );
    let (_dir, model) = tiny_model("llama", Traits::default());
    copied(&model, &s.at("tiny"));
    s.write(
        "words/tokenizer.json",
        std::fs::read(model.join("tokenizer.json")).unwrap(),
    );
    s.command("Folder without model.onnx", &["bench", "words"]);
    s.command("File in place of a folder", &["chat", "words/tokenizer.json"]);
    copied(&model, &s.at("plain"));
    std::fs::remove_file(s.at("plain/tokenizer_config.json")).unwrap();
    let args = ["chat", "plain", "--backend", "reference"];
    s.command("Model without a chat template", &args);
    copied(&model, &s.at("strict"));
    s.write(
        "strict/chat_template.jinja",
        "{{ raise_exception('system messages are not supported') }}",
    );
    let args = [
        "generate",
        "strict",
        "--prompt",
        "hello",
        "--backend",
        "reference",
    ];
    s.command("Chat template that refuses a message", &args);
}

fn gguf_files(s: &mut Snapshot) {
    let good = tiny("llama", Traits::default());
    let bytes = good.bytes();
    s.write("cut.gguf", &bytes[..bytes.len() / 2]);
    s.command("Truncated GGUF file", &["convert", "cut.gguf", "-o", "out"]);
    s.write("text.gguf", "Call me Ishmael. Some years ago");
    s.command("Not a GGUF file", &["convert", "text.gguf", "-o", "out"]);
    let mut other = good.clone();
    other.set("general.architecture", Value::String("mamba".to_owned()));
    s.write("mamba.gguf", other.bytes());
    s.command(
        "GGUF file of an unsupported architecture",
        &["convert", "mamba.gguf", "-o", "out"],
    );
    let mut other = good;
    let t = other.tensor("blk.1.attn_v.weight");
    // IQ2_XXS.
    (t.ggml_type, t.dims) = (16, vec![256, 2]);
    s.write("iq2.gguf", other.bytes());
    s.command(
        "GGUF file with an unsupported tensor type",
        &["convert", "iq2.gguf", "-o", "out"],
    );
}

fn onnx_files(s: &mut Snapshot) {
    let (dir, fixed) = (s.at("mismatch"), [Size::Fixed(2), Size::Fixed(4096)]);
    std::fs::create_dir(&dir).unwrap();
    let weight = HostTensor::from_f32(&[4095, 8], &vec![1.0; 4095 * 8]).unwrap();
    one_node(&dir, &fixed, "MatMul", "/layers.3/attn/MatMul", Some(&weight));
    let run = |model| ["run", model, "--random", "--backend", "reference"];
    s.command("Shapes that do not fit", &run("mismatch"));
    let dir = s.at("operator");
    std::fs::create_dir(&dir).unwrap();
    one_node(&dir, &fixed, "Wavelet", "/frontend/Wavelet", None);
    s.command("Unsupported operator", &run("operator"));
    let dir = s.at("open");
    std::fs::create_dir(&dir).unwrap();
    one_node(&dir, &["batch".into(), Size::Fixed(8)], "Relu", "relu", None);
    s.command("Sizes that are not given", &run("open"));
    s.command(
        "Input that is not given",
        &["run", "open", "--backend", "reference"],
    );
    s.command(
        "Input that the model does not have",
        &["run", "open", "--backend", "reference", "--input", "y=x.npy"],
    );
    let whole = std::fs::read(s.at("open/model.onnx")).unwrap();
    s.write("damaged/model.onnx", &whole[..whole.len() / 2]);
    s.command("Damaged ONNX file", &run("damaged"));
    copied(&s.at("mismatch"), &s.at("light"));
    std::fs::remove_file(s.at("light/model.onnx.data")).unwrap();
    s.command("Weights that are not there", &run("light"));
    s.command("Output that is not empty", &["quantize", "tiny", "-o", "words"]);
}

fn options(s: &mut Snapshot) {
    let generate = ["generate", "tiny", "--raw", "--backend", "reference"];
    let with = |more: &[&'static str]| [&generate[..], more].concat();
    s.command("Option out of range", &with(&["--prompt", "x", "--top-p", "2"]));
    s.command("Unknown backend", &["bench", "tiny", "--backend", "npu"]);
    s.command("Unknown option", &["devices", "--colour"]);
    s.command(
        "Prompt longer than the context",
        &with(&["--prompt", "hello world hello world", "--context", "4"]),
    );
    s.command(
        "Context longer than the model's",
        &with(&["--prompt", "x", "--context", "1000000"]),
    );
    s.command(
        "Option that the reference interpreter does not have",
        &with(&["--prompt", "x", "--slice-ms", "5"]),
    );
    let cached = [
        "--prompt",
        "hello world",
        "--max-tokens",
        "1",
        "--prompt-cache",
        "kept",
    ];
    let made = tlite_testing::command()
        .args(with(&cached))
        .current_dir(&s.dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let whole = std::fs::read(s.at("kept")).unwrap();
    let (_dir, other) = tiny_model("qwen2", Traits::default());
    copied(&other, &s.at("other"));
    let args = [
        "generate",
        "other",
        "--raw",
        "--backend",
        "reference",
        "--prompt",
        "x",
    ];
    s.command(
        "Prompt cache of another model",
        &[&args[..], &["--prompt-cache", "kept"]].concat(),
    );
    s.write("kept", &whole[..whole.len() - 7]);
    s.command("Truncated prompt cache", &with(&cached));
}

fn devices(s: &mut Snapshot) {
    let named = |e: BackendError| Error::usage("--device", e.to_string());
    let unknown = BackendError::NoDevice {
        asked: "radeon".to_owned(),
        found: "NVIDIA H100, llvmpipe".to_owned(),
    };
    s.said("Unknown device", &named(unknown));
    let several = BackendError::ManyDevices {
        asked: "nvidia".to_owned(),
        found: "NVIDIA H100 (570.1), NVIDIA H100 (535.2)".to_owned(),
    };
    s.said("Several devices of a name", &named(several));
    let full = BackendError::OutOfMemory {
        label: "kv".to_owned(),
        bytes: 1 << 31,
        why: "CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)".to_owned(),
    };
    let full = Error::device(Stage::Plan, "the KV cache", full);
    s.said("Out of memory on a device", &full.chain());
}

fn notes(s: &mut Snapshot) {
    s.said("Note: no device", &Note::NoDevice);
    let priority = Note::NoEffect {
        option: "priority",
        value: "high".to_owned(),
        reason: Unused::Reference,
    };
    s.said("Note: an option without effect", &priority);
    let shorter = Note::ShorterContext {
        context: 4096,
        wanted: 32_768,
    };
    s.said("Note: a context that fits the device", &shorter);
    s.said("Note: a model without a KV cache", &Note::NoCache);
    let window = Note::WindowIgnored { length: 4096 };
    s.said("Note: a sliding window that is not in the graph", &window);
    let left = Note::KernelQuarantined {
        variant: "norm_row".to_owned(),
        why: "does not build".to_owned(),
        device: "Adreno (TM) 740".to_owned(),
        driver: "OpenCL 3.0".to_owned(),
    };
    s.said("Note: a kernel that is not used", &left);
}

/// The sections of a snapshot by their titles.
fn sections(text: &str) -> Vec<(&str, &str)> {
    let parts = text.split("\n# ");
    parts.map(|p| p.split_once("\n\n").unwrap_or((p, ""))).collect()
}

#[test]
fn common_messages_are_worded_as_in_the_snapshot() {
    let mut s = Snapshot {
        dir: tempfile::tempdir().unwrap(),
        text: String::new(),
    };
    for part in [folders, gguf_files, onnx_files, options, devices, notes] {
        part(&mut s);
    }
    let path = Path::new(tlite_testing::ROOT).join("crates/tlite/tests/cli/messages.snap.txt");
    let found = format!("{}\n", s.text.trim_end());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, found).unwrap();
        return;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    let old = sections(&wanted);
    for (i, new) in sections(&found).into_iter().enumerate() {
        assert_eq!(
            old.get(i),
            Some(&new),
            "{} is out of date; UPDATE_GOLDEN=1 writes it anew",
            path.display()
        );
    }
    assert_eq!(wanted, found, "{}", path.display());
}
