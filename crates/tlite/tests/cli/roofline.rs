//! `tlite devices --probe`, `tlite roofline` and `tlite profile`: what they print, write and
//! refuse, on each device there is.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use transformer_lite::unstable::backend::DeviceKind;
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Runs the command with this folder for what it keeps.
fn tlite(cache: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tlite"))
        .args(args)
        .env("TLITE_CACHE_DIR", cache)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn json(cache: &Path, args: &[&str]) -> Value {
    let output = tlite(cache, &[args, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Fails with wrong usage, and an error that carries `values`.
#[track_caller]
fn refused(cache: &Path, args: &[&str], values: &[&str]) {
    let output = tlite(cache, args);
    tlite_testing::assert_failed(args, &output, 2, values);
}

/// `y = relu(x w)` of `x [N, 64]`, in `folder`.
fn product(folder: &Path) {
    let mut w = ModelWriter::create(Stage::Convert, folder, "model.onnx", "product").unwrap();
    w.opset("", 17);
    w.add_input("x", DType::F32, &[Size::from("N"), Size::from(64)])
        .unwrap();
    let weight = HostTensor::from_f32(&[64, 32], &vec![0.01; 64 * 32]).unwrap();
    w.add_external("w", &weight).unwrap();
    for (op, inputs, output) in [("MatMul", &["x", "w"][..], "a"), ("Relu", &["a"], "y")] {
        w.add_node(NodeSpec {
            domain: "",
            op,
            name: output,
            inputs,
            outputs: &[output],
            attributes: &[],
        })
        .unwrap();
    }
    w.add_output("y", DType::F32, &[Size::from("N"), Size::from(32)])
        .unwrap();
    w.finish().unwrap();
}

#[track_caller]
fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or_else(|| panic!("{field} of {of}"))
}

#[test]
fn devices_are_measured_once_and_models_against_them() {
    let cache = tempfile::tempdir().unwrap();
    let models = tempfile::tempdir().unwrap();
    product(models.path());
    let (_dir, decoder) = tlite_testing::tiny_model("llama", Default::default());
    for device in tlite_testing::present() {
        let _turn = device.turn();
        let backend = device.kind.to_string();
        let on = device.share();
        let name = transformer_lite::unstable::backend::Backend::caps(&on)
            .device
            .clone();
        let start = std::time::Instant::now();
        let probed = json(cache.path(), &["devices", "--probe", "--device", &name]);
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("{backend}: probed in {seconds:.1} s");
        let rows = probed["devices"].as_array().unwrap();
        let row = rows.iter().find(|r| r["backend"] == backend.as_str()).unwrap();
        let probe = &row["probe"];
        assert!(
            row["extensions"].as_array().is_some_and(|e| !e.is_empty()),
            "{row}"
        );
        for field in ["copy_bytes_per_s", "read_bytes_per_s", "f32_flops_per_s"] {
            // A slow core moves and computes more than this, and no device a thousand times what
            // today's do.
            assert!((1e7..1e17).contains(&number(probe, field)), "{field}: {probe}");
        }
        assert!((0.0..0.01).contains(&number(probe, "launch_s")), "{probe}");
        for field in [
            "image_bytes_per_s",
            "f16_flops_per_s",
            "int8_ops_per_s",
            "matrix_flops_per_s",
        ] {
            let told = probe["not_measured"][field].is_string();
            assert_ne!(probe[field].is_number(), told, "{field}: {probe}");
        }
        let kept = json(cache.path(), &["cache", "list"]);
        let files = kept["files"].as_array().unwrap();
        assert!(
            files
                .iter()
                .any(|f| f["kind"] == "probe" && f["device"] == name.as_str()),
            "{kept}"
        );

        let place = ["--backend", &backend, "--device", &name];
        let small = models.path().to_str().unwrap();
        let run = |args: &[&str]| json(cache.path(), &[args, &place].concat());
        let roofline = run(&["roofline", small, "--bind", "N=10"]);
        assert_eq!(
            roofline["probe"]["f32_flops_per_s"], probe["f32_flops_per_s"],
            "what was kept is used"
        );
        let halves = run(&["roofline", small, "--bind", "N=10", "--float", "f16"]);
        let read = |of: &Value| number(&of["work"][0]["whole"], "read_bytes");
        assert!(read(&halves) < read(&roofline), "{halves}");
        let work = &roofline["work"][0];
        let product = &work["kinds"]
            .as_array()
            .unwrap()
            .iter()
            .find(|k| k["op"].as_str().unwrap().starts_with("MatMul"))
            .unwrap()
            .clone();
        assert!(number(product, "flops") >= 2.0 * 10.0 * 64.0 * 32.0, "{product}");
        assert!(
            number(product, "flops") <= 2.0 * 10.0 * 64.0 * 32.0 + 1000.0,
            "{product}"
        );
        assert!(number(&work["whole"], "least_s") > 0.0);
        let decoded = run(&[
            "roofline",
            decoder.to_str().unwrap(),
            "--prefill",
            "16,32",
            "--depth",
            "8",
            "--context",
            "64",
        ]);
        let names: Vec<&str> = decoded["work"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["prefill 16", "prefill 32", "decode at 8"]);
        // Of the true size: a token takes the 30 layers' weights at least.
        let made_up = run(&[
            "roofline",
            "--random",
            "smollm2-135m",
            "--depth",
            "8",
            "--context",
            "64",
        ]);
        assert_eq!(made_up["model"], "smollm2-135m");
        let work = made_up["work"].as_array().unwrap();
        let decoded = work.iter().find(|w| w["name"] == "decode at 8").unwrap();
        let bytes = number(&decoded["whole"], "read_bytes");
        assert!((0.8e8..1.2e8).contains(&bytes), "{bytes} bytes");
        let dispatches = number(&decoded["whole"], "launches");
        let launches = number(decoded, "launches");
        let caps = transformer_lite::unstable::backend::Backend::caps(&on);
        let joins = caps.driver.contains("PoCL") && cfg!(target_arch = "x86_64");
        assert_eq!(launches < dispatches, joins, "{launches} of {dispatches}");

        if !transformer_lite::unstable::backend::Backend::caps(&on).profiling {
            refused(
                cache.path(),
                &[&["profile", small, "--bind", "N=10"][..], &place].concat(),
                &[&name],
            );
            continue;
        }
        let random = [
            "profile",
            "--random",
            "smollm2-135m",
            "--layers",
            "1",
            "--context",
            "64",
        ];
        let profiled = run(&[&random[..], &["--prefill", "8", "--past", "8"]].concat());
        assert_eq!(profiled["runs"].as_array().unwrap().len(), 2, "{profiled}");
        let trace = models.path().join("trace.json");
        let page = models.path().join("page.html");
        let (t, h) = (trace.to_str().unwrap(), page.to_str().unwrap());
        let model = decoder.to_str().unwrap();
        let profiled = run(&[
            "profile",
            model,
            "--prefill",
            "16",
            "--past",
            "8",
            "--context",
            "64",
            "--trace",
            t,
            "--html",
            h,
        ]);
        for run in profiled["runs"].as_array().unwrap() {
            assert!(
                number(&run["whole"], "seconds") > 0.0 && number(&run["whole"], "flops") > 0.0,
                "{run}"
            );
            let shares: f64 = run["kinds"]
                .as_array()
                .unwrap()
                .iter()
                .map(|k| number(k, "share"))
                .sum();
            assert!((shares - 1.0).abs() < 1e-6, "shares of operators sum to {shares}");
            let commands: u64 = run["lines"]
                .as_array()
                .unwrap()
                .iter()
                .map(|l| l["launches"].as_u64().unwrap())
                .sum();
            assert_eq!(commands, run["events"].as_array().unwrap().len() as u64);
        }
        let events: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
        let mut last = (0, 0.0);
        for e in events["traceEvents"].as_array().unwrap() {
            let at = (e["pid"].as_u64().unwrap(), e["ts"].as_f64().unwrap());
            assert!(at >= last, "{at:?} behind {last:?}");
            last = at;
        }
        let html = std::fs::read_to_string(&page).unwrap();
        assert_eq!(html.matches("<svg").count(), 2);
        for run in profiled["runs"].as_array().unwrap() {
            for kind in run["kinds"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|k| number(k, "launches") > 0.0)
            {
                let op = kind["op"].as_str().unwrap();
                assert!(
                    html.contains(&format!("data-op=\"{op}\"")),
                    "{op} is not in the picture"
                );
            }
        }
        let dom = tlite_testing::browser::opened(&html, "");
        assert_eq!(dom.matches("<circle").count(), html.matches("<circle").count());
        assert_eq!(
            dom.matches("<polyline").count(),
            html.matches("<polyline").count()
        );
        for word in ["http://", "https://", "src=", "@import", "url(", "<script"] {
            assert!(!html.contains(word), "the page has {word}");
        }
        let other = run(&["profile", small, "--bind", "N=10"]);
        assert_eq!(other["runs"][0]["name"], "run");
        // A speed beside its limit.
        let bench = run(&[
            "bench",
            model,
            "--prefill",
            "16",
            "--decode",
            "4",
            "--repeat",
            "1",
            "--context",
            "64",
        ]);
        let used = |json: &Value| ["act", "kv", "recording"].map(|key| json[key].as_str().map(str::to_owned));
        let way = match caps.kind {
            DeviceKind::Cpu if joins => Some("persistent"),
            // Of a GPU's driver it is not known whether it records.
            DeviceKind::Cpu => Some("off"),
            _ => bench["recording"].as_str(),
        };
        let way = way.map(str::to_owned);
        let some = |text: &str| Some(text.to_owned());
        let float = match caps.kind {
            DeviceKind::Cpu => "f32",
            _ => "f16",
        };
        assert_eq!(used(&bench), [some("float"), some(float), way.clone()], "{bench}");
        let other = run(&[
            "bench",
            "--random",
            "smollm2-135m",
            "--layers",
            "1",
            "--group-size",
            "channel",
            "--prefill",
            "1",
            "--decode",
            "1",
            "--repeat",
            "1",
            "--context",
            "64",
            "--act",
            "int8",
            "--kv",
            "q8",
        ]);
        assert_eq!(used(&other), [some("int8"), some("q8"), way], "{other}");
        let planned = run(&[
            "roofline",
            model,
            "--prefill",
            "16",
            "--depth",
            "2",
            "--context",
            "64",
        ]);
        for (line, work) in std::iter::zip(
            bench["results"].as_array().unwrap(),
            planned["work"].as_array().unwrap(),
        ) {
            assert_eq!(
                line["launches"].as_f64(),
                work["launches"].as_f64(),
                "{line} {work}"
            );
            assert_eq!(line["most_tokens_per_s"], work["most_tokens_per_s"]);
            assert!(
                number(line, "most_tokens_per_s") > 0.0 && number(line, "share_of_most") > 0.0,
                "{line}"
            );
        }
    }
}

#[test]
fn wrong_questions_are_refused() {
    let cache = tempfile::tempdir().unwrap();
    let models = tempfile::tempdir().unwrap();
    product(models.path());
    let small = models.path().to_str().unwrap();
    let at = |args: &[&str], values: &[&str]| refused(cache.path(), args, values);
    at(
        &["devices", "--probe", "--device", "nosuch"],
        &["--device", "nosuch"],
    );
    at(&["roofline", "/no/such"], &["MODEL", "/no/such"]);
    at(&["roofline", small, "--backend", "host"], &["--backend", "host"]);
    at(&["profile", small, "--backend", "host"], &["--backend"]);
    at(
        &["profile", small, "--html", "/no/such/folder/x.html"],
        &["--html"],
    );
    let found = tlite_testing::present();
    if found.is_empty() {
        return;
    }
    let _turns: Vec<_> = found.iter().map(tlite_testing::Device::turn).collect();
    at(&["roofline", small], &["--bind", "N=1"]);
    at(&["roofline", small, "--prefill", "8"], &["--prefill"]);
    for option in [
        ["--context", "64"],
        ["--kv", "q8"],
        ["--act", "int8"],
        ["--padding", "128"],
    ] {
        at(
            &[&["roofline", small, "--bind", "N=1"][..], &option].concat(),
            &[option[0]],
        );
    }
    at(&["profile", small], &["--bind", "N="]);
    let (_dir, decoder) = tlite_testing::tiny_model("llama", Default::default());
    let decoder = decoder.to_str().unwrap();
    at(
        &["roofline", decoder, "--context", "64", "--depth", "64"],
        &["--depth", "65"],
    );
    at(&["roofline", decoder, "--bind", "N=1"], &["--bind", "--prefill"]);
}
