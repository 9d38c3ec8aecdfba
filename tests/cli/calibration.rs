//! `tlite quantize` with methods that run the model over a text.

use crate::support::gguf::Traits;
use crate::support::{tiny_model, tlite};
use crate::{fails, names, onnx_folder, path, stderr};
use std::path::Path;

const TEXT: &str = "tests/data/pride_and_prejudice.txt";

fn quantized(model: &Path, out: &Path, more: &[&str]) -> serde_json::Value {
    let base = [
        "quantize",
        path(model),
        "-o",
        path(out),
        "--format",
        "e0m4",
        "--json",
    ];
    let output = tlite(&[&base[..], more].concat());
    assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Mean divergence of a quantized model from its source.
fn divergence(out: &Path, model: &Path, tokens: &str) -> f64 {
    let base = [
        "perplexity",
        path(out),
        "--reference",
        path(model),
        "--text",
        TEXT,
        "--json",
    ];
    let output = tlite(&[&base[..], &["--backend", "host", "--tokens", tokens]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    found["kl_mean"].as_f64().unwrap()
}

#[test]
fn methods_that_look_at_inputs_diverge_less() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let learn = [
        "--calibration",
        TEXT,
        "--calibration-tokens",
        "600",
        "--backend",
        "host",
    ];
    let of = |method: &str, calibrated: bool| {
        let out = dir.path().join(format!("{method}{calibrated}"));
        let more = if calibrated { &learn[..] } else { &[] };
        let report = quantized(&model, &out, &[&["--method", method][..], more].concat());
        assert!(report["weights"].as_array().unwrap().len() > 10);
        divergence(&out, &model, "600")
    };
    let (rtn, mse) = (of("rtn", false), of("mse", false));
    let (gptq, awq, weighted) = (of("gptq", true), of("awq", true), of("mse", true));
    assert!(mse < rtn && gptq < 0.8 * mse, "rtn {rtn}, mse {mse}, gptq {gptq}");
    assert!(
        awq < rtn && weighted < rtn,
        "rtn {rtn}, awq {awq}, weighted {weighted}"
    );
}

#[test]
fn a_calibration_gives_the_same_bytes_again() {
    let (dir, model) = tiny_model("qwen2", Traits::default());
    for method in ["gptq", "awq"] {
        let bytes = |name: &str| {
            let out = dir.path().join(format!("{method}{name}"));
            let learn = [
                "--method",
                method,
                "--calibration",
                TEXT,
                "--calibration-tokens",
                "200",
            ];
            quantized(&model, &out, &[&learn[..], &["--backend", "host"]].concat());
            let read = |file: &str| std::fs::read(out.join(file)).unwrap();
            (read("model.onnx"), read("model.onnx.data"))
        };
        assert!(bytes("first") == bytes("second"), "{method}");
    }
}

#[test]
fn calibrations_that_cannot_be_used() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let out = dir.path().join("out");
    let refused = |model: &Path, more: &[&str], code, words: &[&str]| {
        let base = ["quantize", path(model), "-o", path(&out), "--format", "e0m4"];
        fails(&[&base[..], more].concat(), code, words);
        assert!(!out.exists());
    };
    let learn = ["--calibration", TEXT, "--backend", "host"];
    refused(
        &model,
        &["--method", "gptq"],
        2,
        &["--calibration", "need a text"],
    );
    refused(&model, &["--method", "awq"], 2, &["--calibration", "need a text"]);
    refused(
        &model,
        &[&["--method", "rtn"][..], &learn].concat(),
        2,
        &["--calibration", "weights only"],
    );
    refused(
        &model,
        &["--method", "best"],
        2,
        &["--method", "gptq", "awq", "mse"],
    );
    let absent = ["--method", "gptq", "--calibration", "no-such-file"];
    refused(&model, &absent, 2, &["--calibration: there is no file"]);
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let args = [
        "--method",
        "gptq",
        "--calibration",
        path(&empty),
        "--backend",
        "host",
    ];
    refused(&model, &args, 2, &["--calibration: the text has no tokens"]);
    // A graph without a cache, in a folder with a tokenizer.
    let other = onnx_folder();
    let input = other.path().join("in");
    std::fs::copy(model.join("tokenizer.json"), input.join("tokenizer.json")).unwrap();
    refused(
        &input,
        &[&["--method", "gptq"][..], &learn].concat(),
        2,
        &["is no decoder"],
    );
    assert_eq!(names(other.path()), ["in"]);
}
