//! `tlite selftest` and `tlite tune`.

use super::{fails, path, stderr};
use std::collections::BTreeSet;
use std::path::Path;
use tlite_testing::gguf::Traits;
use tlite_testing::{LOG, assert_carries, assert_failed, carries, present, tiny_model, tlite};

fn backends() -> Vec<String> {
    let kinds: BTreeSet<String> = present().iter().map(|d| d.kind.to_string()).collect();
    kinds.into_iter().collect()
}

fn report(args: &[&str]) -> serde_json::Value {
    let output = tlite(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn selftest_checks_a_case_of_each_kernel() {
    for backend in backends() {
        let report = report(&["selftest", "--quick", "--json", "--backend", &backend]);
        assert_eq!(
            (report["quick"].as_bool(), report["failed"].as_u64()),
            (Some(true), Some(0)),
            "{report}"
        );
        assert!(report["passed"].as_u64().is_some_and(|n| n > 20), "{report}");
        let devices = report["devices"].as_array().unwrap();
        assert_eq!(
            (devices.len(), devices[0]["backend"].as_str()),
            (1, Some(backend.as_str()))
        );
        assert!(devices[0]["extensions"].as_array().is_some_and(|e| !e.is_empty()));
        assert_eq!(devices[0]["quarantined"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn selftest_of_nothing_is_wrong_usage() {
    fails(
        &["selftest", "--backend", "reference"],
        2,
        &["--backend", "reference"],
    );
    // Without any device the error is about that.
    let name: &[&str] = if backends().is_empty() { &[] } else { &["nosuch"] };
    fails(
        &["selftest", "--device", "nosuch"],
        2,
        &[&["--device"], name].concat(),
    );
    fails(&["selftest", "model"], 2, &["model"]);
}

fn tokens(model: &Path, backend: &str, cache: &Path) -> serde_json::Value {
    let text = ["--raw", "--prompt", "hello world", "--max-tokens", "8"];
    let text = [&text[..], &["--temperature", "0", "--json"]].concat();
    let on = ["--backend", backend, "--cache-dir", path(cache)];
    report(&[&["generate", path(model)][..], &text, &on].concat())["tokens"].take()
}

#[test]
fn tune_keeps_what_is_fastest() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let quantized = dir.path().join("e0m4");
    let output = tlite(&["quantize", path(&model), "-o", path(&quantized)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for backend in backends() {
        let (tuned, plain) = (
            dir.path().join("tuned").join(&backend),
            dir.path().join("plain").join(&backend),
        );
        let on = ["--backend", &backend, "--cache-dir", path(&tuned)];
        // Sums of bytes have no numbers to choose.
        let float = [
            "tune",
            path(&quantized),
            "--seconds",
            "5",
            "--json",
            "--act",
            "float",
        ];
        let args = [&float[..], &on].concat();
        let report = report(&args);
        // Native kernels have no numbers to choose.
        if backend == "cpu" {
            assert_eq!(report["all"], 0, "{report}");
            continue;
        }
        let shapes = report["shapes"].as_array().unwrap();
        let kernels: BTreeSet<&str> = shapes.iter().filter_map(|s| s["kernel"].as_str()).collect();
        assert!(
            kernels.is_superset(&BTreeSet::from(["matvec_e0m", "matmul_e0m"])),
            "{report}"
        );
        for shape in shapes {
            assert!(
                shape["best_ns"].as_u64() <= shape["default_ns"].as_u64(),
                "{shape}"
            );
        }
        let (measured, all) = (report["measured"].as_u64(), report["all"].as_u64());
        assert!(measured > Some(0) && measured <= all, "{report}");
        assert_eq!(
            tokens(&quantized, &backend, &tuned),
            tokens(&quantized, &backend, &plain)
        );
        // What was chosen is a file of its own, and no other.
        let output = tlite(&["cache", "clear", "--kind", "tuning", "--cache-dir", path(&tuned)]);
        assert_carries(String::from_utf8(output.stdout).unwrap(), &["1"]);
    }
}

#[test]
fn tune_without_a_device_is_wrong_usage() {
    let (_dir, model) = tiny_model("llama", Traits::default());
    fails(
        &["tune", path(&model), "--backend", "reference"],
        2,
        &["--backend", "reference"],
    );
    fails(&["tune", path(&model), "--seconds", "0"], 2, &["--seconds"]);
    fails(&["tune", "/no/such/model"], 2, &["/no/such/model"]);
}

#[test]
fn what_needs_a_device_says_why_there_is_none() {
    let (dir, model) = tiny_model("llama", Traits::default());
    for (command, backend) in [("profile", "opencl"), ("roofline", "wgpu"), ("tune", "opencl")] {
        let args = [command, path(&model), "--no-cache", "--backend", backend];
        let output = tlite_testing::command()
            .args(args)
            .env("OCL_ICD_VENDORS", dir.path())
            .env("XDG_RUNTIME_DIR", std::env::temp_dir())
            .env("VK_DRIVER_FILES", dir.path().join("none.json"))
            .env("RUST_LOG", LOG)
            .output()
            .unwrap();
        let failure = assert_failed(&args, &output, 2, &["--backend", backend]);
        assert_carries(failure.error, &["NoDevice"]);
    }
}

#[test]
fn reports_are_not_written_to_a_file_named_as_standard_output() {
    let (_dir, model) = tiny_model("llama", Traits::default());
    for option in ["--trace", "--html"] {
        fails(&["profile", path(&model), option, "-"], 2, &[option, "-"]);
    }
    assert!(!Path::new("-").exists());
}

/// On the host, as on a backend that is there and cannot.
#[test]
fn what_a_backend_cannot_is_wrong_usage() {
    let (_dir, model) = tiny_model("llama", Traits::default());
    let backends = backends();
    let others = backends.iter().map(String::as_str).filter(|b| *b != "opencl");
    for backend in others.chain(["reference"]) {
        for (option, value) in [("--slice-ms", "5"), ("--images", "1d"), ("--recording", "qcom")] {
            let args = [
                "generate",
                path(&model),
                "--raw",
                "--prompt",
                "x",
                "--backend",
                backend,
                option,
                value,
            ];
            fails(&args, 2, &[option, value, "opencl"]);
            assert_eq!(stderr(&tlite(&args)).lines().count(), 1);
        }
    }
}

#[test]
fn devices_are_filtered_and_tell_what_can_be_opened() {
    let (_dir, model) = tiny_model("llama", Traits::default());
    let all = report(&["devices", "--json"]);
    for device in all["devices"].as_array().unwrap() {
        let name = device["device"].as_str().unwrap();
        let found = report(&["devices", "--json", "--device", &name.to_uppercase()]);
        let found = found["devices"].as_array().unwrap();
        assert!(
            found.iter().any(|d| d["device"] == name)
                && found.iter().all(|d| d["device"].as_str().unwrap().contains(name)),
            "{name}: {found:?}"
        );
        if device["backend"] == "opencl" {
            for (kind, pixels) in [("1d", "max_pixels"), ("2d", "max_rows")] {
                let args = [
                    "generate",
                    path(&model),
                    "--raw",
                    "--prompt",
                    "x",
                    "--max-tokens",
                    "1",
                    "--device",
                    name,
                    "--images",
                    kind,
                ];
                let output = tlite(&args);
                let offered = device["images"][pixels] != 0;
                let code = if offered { 0 } else { 2 };
                assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
                let told = ["--images", kind, name]
                    .iter()
                    .all(|v| carries(stderr(&output), v));
                assert_eq!(told, !offered, "{}", stderr(&output));
            }
        }
    }
    let opencl = all["devices"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|d| d["backend"] == "opencl");
    let names: Vec<&str> = opencl.filter_map(|d| d["device"].as_str()).collect();
    if let [only] = names.as_slice() {
        let second = format!("{only}#2");
        let args = ["bench", path(&model), "--backend", "opencl", "--device", &second];
        fails(&args, 2, &["--device", only, "1", "#2"]);
    }
    fails(&["devices", "--device", "nosuch"], 2, &["--device", "\"nosuch\""]);
}

#[test]
fn made_up_models_are_measured() {
    for backend in backends() {
        let args = [
            "bench",
            "--random",
            "smollm2-135m",
            "--layers",
            "1",
            "--group-size",
            "32",
            "--seed",
            "3",
            "--backend",
            &backend,
            "--context",
            "64",
            "--prefill",
            "8",
            "--decode",
            "4",
            "--repeat",
            "1",
            "--json",
        ];
        let output = tlite(&args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let speed = |i: usize, field: &str| json["results"][i][field].as_f64().unwrap();
        assert!(
            speed(0, "prefill_tokens_per_s") > 0.0 && speed(1, "decode_tokens_per_s") > 0.0,
            "{json}"
        );
    }
    let small = ["bench", "--random", "smollm2-135m"];
    let with = |more: &[&'static str]| [&small, more].concat();
    fails(
        &["bench", "--random", "llama3"],
        2,
        &["--random", "llama2-7b", "smollm2-135m"],
    );
    fails(
        &["bench", "m", "--random", "llama2-7b"],
        2,
        &["--random", "[MODEL]"],
    );
    fails(&["bench"], 2, &["MODEL"]);
    fails(&["bench", "m", "--layers", "1"], 2, &["--layers", "--random"]);
    fails(&with(&["--layers", "31"]), 2, &["--layers", "smollm2-135m", "30"]);
    fails(&with(&["--group-size", "12"]), 2, &["--group-size"]);
    fails(&with(&["--backend", "reference"]), 2, &["--backend", "device"]);
}

/// Ctrl-C at any time shows what there is.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_tune_shows_what_it_has() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let quantized = dir.path().join("e0m4");
    let output = tlite(&["quantize", path(&model), "-o", path(&quantized)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for backend in backends() {
        let mut wait = std::time::Duration::from_secs(1);
        loop {
            let cache = dir.path().join(format!("{backend}-{}", wait.as_secs()));
            let on = ["--backend", &backend, "--cache-dir", path(&cache)];
            let float = [
                "tune",
                path(&quantized),
                "--json",
                "--seconds",
                "3600",
                "--act",
                "float",
            ];
            let args = [&float[..], &on].concat();
            let output = super::generation::interrupted(&args, wait);
            let code = output.status.code();
            // A machine that is busy gets more time.
            if output.stdout.is_empty() && wait.as_secs() < 60 {
                wait *= 4;
                continue;
            }
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            // Where all sets were measured by then there was nothing to stop.
            let (stopped, whole) = (json["interrupted"] == true, json["measured"] == json["all"]);
            assert!(
                if stopped { code == Some(130) } else { whole },
                "{code:?}: {json}"
            );
            break;
        }
    }
}
