//! `tlite run`: what it says to sizes and options that do not fit, and how it sums outputs up. And
//! decoders as other commands take them.

use super::{fails, onnx_folder, path, stderr};
use std::path::{Path, PathBuf};
use std::process::Output;
use tlite_testing::{assert_carries, tiny_model, tlite};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Joins pictures with themselves at half size and back: height and width must be even.
fn even_pictures(dir: &Path) -> PathBuf {
    let mut w = ModelWriter::create(Stage::Convert, dir, "even.onnx", "g").unwrap();
    w.opset("", 18);
    let sizes = [Size::Fixed(1), Size::Fixed(3), "height".into(), "width".into()];
    w.add_input("x", DType::F32, &sizes).unwrap();
    w.add_output("y", DType::F32, &["a".into(), "b".into(), "c".into(), "d".into()])
        .unwrap();
    w.add_constant(
        "scales",
        &HostTensor::from_f32(&[4], &[1.0, 1.0, 2.0, 2.0]).unwrap(),
    )
    .unwrap();
    let two = || Attr::Ints(vec![2, 2]);
    let mut node = |op: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attr)]| {
        w.add_node(NodeSpec {
            domain: "",
            op,
            name: op,
            inputs,
            outputs: &[output],
            attributes,
        })
        .unwrap();
    };
    node(
        "MaxPool",
        &["x"],
        "half",
        &[("kernel_shape", two()), ("strides", two())],
    );
    node(
        "Resize",
        &["half", "", "scales"],
        "whole",
        &[("mode", Attr::Str("nearest".to_owned()))],
    );
    node("Concat", &["x", "whole"], "y", &[("axis", Attr::Int(1))]);
    w.finish().unwrap();
    dir.join("even.onnx")
}

/// A picture of `width` by `height` pixels.
fn picture(dir: &Path, width: u32, height: u32) -> String {
    let file = dir.join(format!("{width}x{height}.png"));
    image::RgbImage::new(width, height).save(&file).unwrap();
    format!("x={}", file.display())
}

#[track_caller]
fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn sizes_that_the_model_takes_are_suggested() {
    let dir = tempfile::tempdir().unwrap();
    let model = even_pictures(dir.path());
    let base = ["run", path(&model), "--backend", "reference", "--random"];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    fails(&base, 2, &["--random", "--bind height=2,width=2"]);
    // What is given stays.
    fails(&with(&["--bind", "height=6"]), 2, &["--bind width=2"]);
    fails(
        &with(&["--bind", "height=6,width=3"]),
        2,
        &["--bind", "Concat", "width=3", "--bind height=2,width=2"],
    );
    let text = stdout(&tlite(&with(&["--bind", "height=2", "--bind", "width=4"])));
    assert!(text.contains("f32[1, 6, 2, 4]"), "{text}");
    fails(
        &with(&["--bind", "height=2", "--bind", "height=4"]),
        2,
        &["--bind", "height", "2", "4"],
    );
}

#[test]
fn pictures_of_other_sizes_get_a_multiple() {
    let dir = tempfile::tempdir().unwrap();
    let model = even_pictures(dir.path());
    let odd = picture(dir.path(), 5, 3);
    let base = ["run", path(&model), "--backend", "reference", "--input", &odd];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    fails(&base, 2, &["Concat", "height=3, width=5", "--image-multiple 2"]);
    fails(
        &with(&["--image-size", "7x9"]),
        2,
        &["height=9, width=7", "--image-size 8x10"],
    );
    let text = stdout(&tlite(&with(&["--image-multiple", "2"])));
    assert!(text.contains("f32[1, 6, 4, 6]"), "{text}");
}

#[test]
fn options_without_effect_are_refused() {
    let dir = onnx_folder();
    let model = dir.path().join("in");
    let picture = picture(dir.path(), 2, 2);
    let numbers = ["run", path(&model), "--random", "--bind", "n=1"];
    let run = |more: &[&str], values: &[&str]| fails(&[&numbers[..], more].concat(), 2, values);
    run(
        &["--float", "f16", "--backend", "reference"],
        &["--float", "reference"],
    );
    run(
        &["--profile", "--backend", "reference"],
        &["--profile", "reference"],
    );
    run(&["--tolerance", "0.1"], &["--compare"]);
    for (option, value) in [
        ("--image-size", "2x2"),
        ("--image-multiple", "32"),
        ("--image-fit", "crop"),
        ("--image-mean", "imagenet"),
        ("--image-std", "1"),
    ] {
        run(&[option, value], &[option]);
    }
    run(&["--image-bgr"], &["--image-bgr"]);
    let without = |more: &[&str], values: &[&str]| {
        fails(
            &[&["run", path(&model), "--input", &picture][..], more].concat(),
            2,
            values,
        );
    };
    without(&["--bind", "n=1"], &["--random"]);
    without(&["--image-std", "0"], &["--image-std", "0"]);
    without(
        &["--image-size", "2x2", "--image-multiple", "2"],
        &["--image-multiple", "--image-size"],
    );
    for option in ["--context", "--chunk", "--padding"] {
        fails(&["inspect", path(&model), option, "64"], 2, &[option]);
    }
}

#[test]
fn numbers_out_of_range_name_the_range() {
    for (option, value, range) in [
        ("--repeat", "0", &["1"][..]),
        ("--repeat", "x", &["1"]),
        ("--seed", "-1", &["0"]),
        ("--seed", "18446744073709551616", &["0", "18446744073709551615"]),
        ("--edit-limit", "-1", &["0"]),
        ("--slice-ms", "-1", &["0", "10000"]),
        ("--slice-ms", "1e9", &["0", "10000"]),
        ("--image-multiple", "5000", &["1", "4096"]),
        ("--tolerance", "-1", &["0"]),
    ] {
        let values = [&[option, value], range].concat();
        fails(&["run", "m", "--random", option, value], 2, &values);
    }
    fails(&["inspect", "m", "--chunk", "0"], 2, &["--chunk", "0", "1"]);
    for (option, value, range) in [
        ("--max-tokens", "-2", &["0"][..]),
        ("--context", "none", &["1"]),
        ("--top-k", "-1", &["0"]),
        ("--padding", "8", &["32", "256"]),
        ("--temperature", "hot", &["0"]),
        ("--top-p", "x", &["0", "1"]),
    ] {
        fails(
            &["chat", "m", option, value],
            2,
            &[&[option, value], range].concat(),
        );
    }
}

#[test]
fn outputs_are_summed_up() {
    let dir = onnx_folder();
    let model = dir.path().join("in");
    let args = [
        "run",
        path(&model),
        "--random",
        "--bind",
        "n=1",
        "--backend",
        "reference",
    ];
    let json = stdout(&tlite(&[&args[..], &["--json"]].concat()));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let output = &json["outputs"][0];
    let top = output["top"].as_array().unwrap();
    assert_eq!(top.len(), 5);
    assert_eq!(top[0]["value"], output["max"]);
    assert_eq!(
        (output["nan"].as_u64(), output["infinite"].as_u64()),
        (Some(0), Some(0))
    );
    assert!(
        top.windows(2)
            .all(|p| p[0]["value"].as_f64() >= p[1]["value"].as_f64())
    );
    // Two rows are no scores of one thing.
    let two = tlite(&[
        "run",
        path(&model),
        "--random",
        "--bind",
        "n=2",
        "--backend",
        "reference",
        "--json",
    ]);
    let two: serde_json::Value = serde_json::from_str(&stdout(&two)).unwrap();
    assert!(
        two["outputs"][0].get("top").is_none_or(|top| top.is_null()),
        "{two}"
    );
}

#[test]
fn what_is_no_decoder_is_for_run() {
    let dir = onnx_folder();
    let model = dir.path().join("in");
    let file = model.join("model.onnx");
    let bench = ["bench", path(&model), "--backend", "reference"];
    fails(&bench, 2, &["model.onnx", "input_ids", "tlite run"]);
    fails(&["chat", path(&file)], 2, &[path(&file), "tlite run"]);
    std::fs::remove_file(model.join("tokenizer.json")).unwrap();
    fails(
        &["generate", path(&model), "--prompt", "x"],
        2,
        &["tokenizer.json", "tlite run"],
    );
}

#[test]
fn generate_says_why_it_stopped() {
    let (_dir, model) = tiny_model("llama", Default::default());
    let base = ["generate", path(&model), "--raw", "--prompt", "a", "--json"];
    let with = |more: &[&'static str]| {
        let output = tlite(&[&base[..], more].concat());
        let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        json
    };
    let host = with(&["--backend", "reference", "--max-tokens", "1"]);
    assert!(
        host["stop"] == "max_tokens" || host["stop"] == "end_of_text",
        "{host}"
    );
    let full = with(&["--backend", "reference", "--context", "8", "--max-tokens", "100"]);
    assert!(
        full["stop"] == "context_full" || full["stop"] == "end_of_text",
        "{full}"
    );
    fails(
        &[&base[..], &["--backend", "reference", "--float", "f16"]].concat(),
        2,
        &["--float", "reference"],
    );
    let json = with(&["--max-tokens", "2", "--float", "f32"]);
    assert!(!json["tokens"].as_array().unwrap().is_empty() || json["stop"] == "end_of_text");
    fails(
        &[&base[..], &["--backend", "cpu", "--float", "f16"]].concat(),
        2,
        &["--float", "f16", "cpu"],
    );
}

/// The loader finds no library there, and no other.
#[cfg(target_os = "linux")]
#[test]
fn a_missing_driver_is_wrong_usage_and_named() {
    let dir = onnx_folder();
    let model = dir.path().join("in");
    std::fs::write(dir.path().join("libOpenCL.so.1"), "not a library").unwrap();
    let run = |backend: &str, named: &str| {
        tlite_testing::command()
            .args([
                "run",
                path(&model),
                "--random",
                "--bind",
                "n=1",
                "--backend",
                backend,
            ])
            .env("LD_LIBRARY_PATH", dir.path())
            .env("OPENCL_DYLIB_PATH", named)
            .env("XDG_RUNTIME_DIR", std::env::temp_dir())
            .env("VK_DRIVER_FILES", dir.path().join("none.json"))
            .output()
            .unwrap()
    };
    let output = run("opencl", "/no/such/library.so");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_carries(text, &["--backend", "opencl", "/no/such/library.so"]);
    let output = run("auto", "/no/such/library.so");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    // The processor needs no driver.
    assert_carries(text, &["/no/such/library.so"]);
}

/// Ctrl-C between runs ends them; what was measured is shown.
#[cfg(target_os = "linux")]
#[test]
fn interrupted_runs_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let model = even_pictures(dir.path());
    let args = [
        "run",
        path(&model),
        "--backend",
        "reference",
        "--random",
        "--bind",
        "height=2,width=2",
        "--repeat",
        "1000000000",
        "--json",
    ];
    let output = super::generation::interrupted_at_work(&args);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // The first run is not among them.
    let done = 1 + json["runs_ms"].as_array().map_or(0, Vec::len);
    assert_carries(errors, &[&done.to_string(), "1000000000"]);
    assert_eq!(json["interrupted"], true, "{json}");
    assert!(!json["runs_ms"].as_array().unwrap().is_empty(), "{json}");
}
