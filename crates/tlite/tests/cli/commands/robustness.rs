//! Files and outputs that try to take all memory, to block, or to get lost.

use super::{fails_as, onnx_folder, path, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;
use tlite_testing::gguf::{Traits, tiny};
use tlite_testing::{bounded, failed_in_a_line};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::DType;
use transformer_lite_convert::gguf::{Array, Value};

/// A file of `fuzz/regressions`.
fn data(name: &str) -> PathBuf {
    Path::new(tlite_testing::ROOT).join("fuzz/regressions").join(name)
}

/// A model `y = Relu(x)` whose input has these sizes.
fn relu(dir: &Path, sizes: &[Size]) -> PathBuf {
    let mut w = ModelWriter::create(Stage::Convert, dir, "relu.onnx", "g").unwrap();
    w.opset("", 18);
    w.add_input("x", DType::F32, sizes).unwrap();
    w.add_output("y", DType::F32, sizes).unwrap();
    w.add_node(NodeSpec {
        domain: "",
        op: "Relu",
        name: "n",
        inputs: &["x"],
        outputs: &["y"],
        attributes: &[],
    })
    .unwrap();
    w.finish().unwrap();
    dir.join("relu.onnx")
}

#[cfg(target_os = "linux")]
#[test]
fn hostile_pictures_and_arrays_need_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let of = [1, 3, 224, 224].map(Size::Fixed);
    let model = relu(dir.path(), &of);
    let run = |file: &str, more: &[&str]| {
        let file = data(file);
        let args = ["run", path(&model), path(&file), "--backend", "reference"];
        bounded(3_000_000, &[&args[..], more].concat())
    };
    for fit in ["stretch", "crop", "pad"] {
        let output = run("picture/tall_1x60000.png", &["--image-fit", fit]);
        assert_eq!(output.status.code(), Some(0), "{fit}: {}", stderr(&output));
    }
    failed_in_a_line(
        &run("picture/bomb_20000x20000.png", &[]),
        1,
        "LimitExceeded",
        &["20000"],
    );
    failed_in_a_line(&run("npy/header_4gb.npy", &[]), 1, "File", &["143"]);
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_not_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let model = relu(dir.path(), &[Size::Fixed(2)]);
    for name in ["x.npy", "x.pb", "x.png"] {
        let pipe = dir.path().join(name);
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fails_as(
            &["run", path(&model), path(&pipe), "--backend", "reference"],
            2,
            "Usage",
            &[path(&pipe)],
        );
        let zero = dir.path().join(format!("zero-{name}"));
        std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
        fails_as(
            &["run", path(&model), path(&zero), "--backend", "reference"],
            2,
            "Usage",
            &[path(&zero)],
        );
    }
    for name in ["model.onnx", "config.json"] {
        let folder = dir.path().join(name.replace('.', "-"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("config.json"), "{}").unwrap();
        let _other = std::fs::remove_file(folder.join(name));
        let pipe = folder.join(name);
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let out = dir.path().join("out");
        let output = tlite_testing::tlite(&["convert", path(&folder), "-o", path(&out)]);
        assert_ne!(output.status.code(), Some(0), "{name}");
        let output = tlite_testing::tlite(&["inspect", path(&pipe)]);
        assert_ne!(output.status.code(), Some(0), "{name}");
    }
}

/// The second run of each command learns at once that the first one writes the output.
#[cfg(target_os = "linux")]
#[test]
fn the_second_run_to_an_output_fails_at_once() {
    use transformer_lite_convert::new_folder::{CONVERT, DEQUANTIZE, NewFolder, QUANTIZE};
    let dir = onnx_folder();
    let gguf = dir.path().join("tiny.gguf");
    std::fs::write(&gguf, tiny("llama", Traits::default()).bytes()).unwrap();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    for (command, model, prefix) in [
        ("convert", &gguf, CONVERT),
        ("dequantize", &input, DEQUANTIZE),
        ("quantize", &input, QUANTIZE),
    ] {
        let first = NewFolder::create(&out, prefix).unwrap();
        let args = [command, path(model), "-o", path(&out)];
        let failure = tlite_testing::assert_fails(&args, 1, &[path(&out)]);
        assert!(failure.error.contains("Busy"), "{}", failure.error);
        for word in ["delete", "remove", "resume"] {
            assert!(!failure.message.contains(word), "{}", failure.message);
        }
        drop(first);
    }
}

/// Killed conversions, whose leftovers the next command with an output beside them removes.
#[cfg(target_os = "linux")]
#[test]
fn a_killed_conversion_leaves_nothing_for_long() {
    let dir = onnx_folder();
    let gguf = dir.path().join("tiny.gguf");
    std::fs::write(&gguf, tiny("llama", Traits::default()).bytes()).unwrap();
    let out = |n: usize| dir.path().join(format!("out-{n}"));
    for n in 0..5u64 {
        let to = out(0);
        let mut child = tlite_testing::command()
            .args(["convert", path(&gguf), "-o", path(&to)])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(7 * n));
        child.kill().unwrap();
        child.wait().unwrap();
        let _whole = std::fs::remove_dir_all(&to);
    }
    let to = out(1);
    let output = tlite_testing::tlite(&["convert", path(&gguf), "-o", path(&to)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(super::names(dir.path()), ["in", "out-1", "tiny.gguf"]);
}

/// Too little memory for a vocabulary and weights is an error.
#[cfg(target_os = "linux")]
#[test]
fn a_conversion_without_memory_fails_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = tiny("llama", Traits::default());
    let texts = Value::Array(Array::String(vec![String::new(); 4_000_000]));
    file.metadata.push(("padding.texts".to_owned(), texts));
    let gguf = dir.path().join("tiny.gguf");
    std::fs::write(&gguf, file.bytes()).unwrap();
    let out = dir.path().join("out");
    let program = std::fs::metadata(env!("CARGO_BIN_EXE_tlite")).unwrap().len();
    let size = std::fs::metadata(&gguf).unwrap().len();
    let kilobytes = u32::try_from((program + size) / 1000).unwrap() + 150_000;
    let output = bounded(kilobytes, &["convert", path(&gguf), "-o", path(&out)]);
    failed_in_a_line(&output, 1, "OutOfMemory", &["padding.texts"]);
    assert_eq!(super::names(dir.path()), ["tiny.gguf"]);
}
