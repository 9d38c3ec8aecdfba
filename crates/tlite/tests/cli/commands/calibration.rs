//! `tlite quantize` with methods that run the model over a text.

use super::{fails, names, onnx_folder, path, stderr};
use std::path::Path;
use tlite_testing::gguf::{HEADS, Traits, tiny};
use tlite_testing::{converted, tiny_model, tlite};
use transformer_lite::unstable::cache::FOLDER_VARIABLE;
use transformer_lite_convert::gguf::Value;

const TEXT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/pride_and_prejudice.txt"
);

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
    let output = tlite(&[&base[..], &["--backend", "reference", "--tokens", tokens]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    found["kl_mean"].as_f64().unwrap()
}

const LEARN: [&str; 6] = [
    "--calibration",
    TEXT,
    "--calibration-tokens",
    "600",
    "--backend",
    "reference",
];

#[test]
fn methods_that_look_at_inputs_diverge_less() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let of = |method: &str, calibrated: bool| {
        let out = dir.path().join(format!("{method}{calibrated}"));
        let more = if calibrated { &LEARN[..] } else { &[] };
        let report = quantized(&model, &out, &[&["--method", method][..], more].concat());
        assert!(report["weights"].as_array().unwrap().len() > 10);
        divergence(&out, &model, "600")
    };
    let (rtn, mse) = (of("rtn", false), of("mse", false));
    let (gptq, awq, weighted) = (of("gptq", true), of("awq", true), of("mse", true));
    assert!(mse < rtn && gptq < 0.8 * mse, "rtn {rtn}, mse {mse}, gptq {gptq}");
    // Random weights make no inputs that are much larger than others, so that scaling finds little;
    // where there are, see the library's tests.
    assert!(
        awq < 1.05 * weighted && weighted < rtn,
        "rtn {rtn}, awq {awq}, weighted {weighted}"
    );
}

#[test]
fn scaling_alone_changes_nothing() {
    // Of heads that share values and of those that do not, tied and not.
    for (heads_alike, untied) in [(false, false), (true, false), (true, true)] {
        let traits = Traits {
            untied,
            ..Traits::default()
        };
        for architecture in ["llama", "qwen2"] {
            let mut file = tiny(architecture, traits);
            if heads_alike {
                let heads = u32::try_from(HEADS).unwrap();
                file.set(
                    &format!("{architecture}.attention.head_count_kv"),
                    Value::U32(heads),
                );
                for t in &mut file.tensors {
                    if t.name.contains("attn_k.") || t.name.contains("attn_v.") {
                        // The rows of two heads, and once more, with other signs.
                        let more: Vec<u8> = t
                            .data
                            .as_chunks()
                            .0
                            .iter()
                            .flat_map(|b| (-f32::from_le_bytes(*b)).to_le_bytes())
                            .collect();
                        t.data.extend(more);
                        *t.dims.last_mut().unwrap() *= 2;
                    }
                }
            }
            let (dir, model) = converted(&file);
            let eight = |method: &str, more: &[&str]| {
                let out = dir.path().join(method);
                let base = [
                    "quantize",
                    path(&model),
                    "-o",
                    path(&out),
                    "--bits",
                    "8",
                    "--group-size",
                    "16",
                ];
                let output = tlite(&[&base[..], &["--method", method], more].concat());
                assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
                divergence(&out, &model, "120")
            };
            let (plain, scaled) = (eight("mse", &[]), eight("awq", &LEARN));
            assert!(
                scaled < 3.0 * plain + 1e-6,
                "{architecture} {heads_alike} {untied}: {scaled} {plain}"
            );
        }
    }
}

#[test]
fn mixed_looks_at_results_where_a_text_tells_them() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let of = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        let base = [
            "quantize",
            path(&model),
            "-o",
            path(&out),
            "--method",
            "mixed",
            "--bits",
            "5",
            "--head-bits",
            "4",
            "--json",
        ];
        let output = tlite(&[&base[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["bits_per_weight"].as_f64().unwrap() <= 5.0);
        let bits = report["weights"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w["bits"].as_u64().unwrap());
        (bits.collect::<Vec<_>>(), divergence(&out, &model, "600"))
    };
    let (by_weights, plain) = of("plain", &[]);
    let (by_results, learnt) = of("learnt", &LEARN);
    assert!(learnt < plain, "{learnt} {plain}");
    // The first weight of the file is the embedding.
    assert!(by_weights[0] >= 4 && by_results[0] >= 4);
}

/// One core against all: the same bytes.
#[cfg(target_os = "linux")]
#[test]
fn the_number_of_cores_changes_nothing() {
    let (dir, model) = tiny_model("llama", Traits::default());
    for method in ["mse", "gptq", "awq", "awq-gptq"] {
        let bytes = |name: &str, program: &[&str]| {
            let out = dir.path().join(format!("{method}{name}"));
            let args = ["quantize", path(&model), "-o", path(&out), "--method", method];
            let all = [program, &[env!("CARGO_BIN_EXE_tlite")], &args, &LEARN].concat();
            let output = std::process::Command::new(all[0])
                .args(&all[1..])
                .env(FOLDER_VARIABLE, concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"))
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
            std::fs::read(out.join("model.onnx.data")).unwrap()
        };
        assert!(
            bytes("all", &[]) == bytes("one", &["taskset", "-c", "0"]),
            "{method}"
        );
    }
}

#[test]
fn a_calibration_gives_the_same_bytes_again() {
    let (dir, model) = tiny_model("qwen2", Traits::default());
    for method in ["gptq", "awq", "awq-gptq"] {
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
            quantized(&model, &out, &[&learn[..], &["--backend", "reference"]].concat());
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
    let refused = |model: &Path, more: &[&str], code, values: &[&str]| {
        let base = ["quantize", path(model), "-o", path(&out), "--format", "e0m4"];
        fails(&[&base[..], more].concat(), code, values);
        assert!(!out.exists());
    };
    let learn = ["--calibration", TEXT, "--backend", "reference"];
    refused(&model, &["--method", "gptq"], 2, &["--calibration", "gptq"]);
    refused(&model, &["--method", "awq"], 2, &["--calibration", "awq"]);
    refused(
        &model,
        &[&["--method", "rtn"][..], &learn].concat(),
        2,
        &["--calibration"],
    );
    refused(
        &model,
        &["--method", "best"],
        2,
        &["--method", "gptq", "awq", "mse"],
    );
    let absent = ["--method", "gptq", "--calibration", "no-such-file"];
    refused(&model, &absent, 2, &["--calibration", "no-such-file"]);
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let args = [
        "--method",
        "gptq",
        "--calibration",
        path(&empty),
        "--backend",
        "reference",
    ];
    refused(&model, &args, 2, &["--calibration", "0"]);
    let halves = [&["--method", "gptq", "--float", "f16"][..], &learn].concat();
    refused(&model, &halves, 2, &["--float", "reference"]);
    // A graph without a cache, in a folder with a tokenizer.
    let other = onnx_folder();
    let input = other.path().join("in");
    std::fs::copy(model.join("tokenizer.json"), input.join("tokenizer.json")).unwrap();
    refused(
        &input,
        &[&["--method", "gptq"][..], &learn].concat(),
        2,
        &["model.onnx", "input_ids"],
    );
    assert_eq!(names(other.path()), ["in"]);
}
