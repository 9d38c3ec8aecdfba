//! `tlite selftest` and `tlite tune`.

use super::{fails, path, stderr};
use crate::support::gguf::Traits;
use crate::support::{devices, tiny_model, tlite};
use std::collections::BTreeSet;
use std::path::Path;

fn backends() -> Vec<String> {
    let (found, _) = devices();
    let kinds: BTreeSet<String> = found.iter().map(|d| d.kind.to_string()).collect();
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
        &["selftest", "--backend", "host"],
        2,
        &["--backend", "compared with"],
    );
    fails(&["selftest", "--device", "no such"], 2, &["--device", "no such"]);
    fails(&["selftest", "model"], 2, &["model"]);
}

fn tokens(model: &Path, backend: &str, cache: &Path) -> serde_json::Value {
    let text = ["--raw", "--prompt", "hello world", "--max-tokens", "8", "--json"];
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
        let args = [&["tune", path(&quantized), "--seconds", "5", "--json"][..], &on].concat();
        let report = report(&args);
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
        assert!(
            String::from_utf8(output.stdout)
                .unwrap()
                .starts_with("removed 1 file"),
            "{backend}"
        );
    }
}

#[test]
fn tune_without_a_device_is_wrong_usage() {
    let (_dir, model) = tiny_model("llama", Traits::default());
    fails(
        &["tune", path(&model), "--backend", "host"],
        2,
        &["--backend", "the host has nothing to tune"],
    );
    fails(&["tune", path(&model), "--seconds", "0"], 2, &["--seconds"]);
    fails(&["tune", "/no/such/model"], 2, &["/no/such/model"]);
}
