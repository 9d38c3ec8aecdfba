//! `tlite inspect`: its summary, the keys of its JSON, and what it says to wrong questions.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use tlite_testing::{carries, tlite};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::{DType, HostTensor};

fn inspect(model: &Path, more: &[&str]) -> Output {
    tlite(&[&["inspect", model.to_str().unwrap()], more].concat())
}

#[track_caller]
fn stdout(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn json(model: &Path, more: &[&str]) -> Value {
    let text = stdout(&inspect(model, &[more, &["--json"]].concat()));
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Fails with wrong usage, nothing on standard output, and an error that carries `values`.
#[track_caller]
fn refused(model: &Path, more: &[&str], values: &[&str]) {
    let args = [&["inspect", model.to_str().unwrap()], more].concat();
    tlite_testing::assert_fails(&args, 2, values);
}

/// `y = relu(x[1..])` joined with its own half, of `x [N, 8]`; without weights.
fn small(dir: &Path) -> PathBuf {
    let mut w = ModelWriter::without_data(Stage::Convert, dir, "small.onnx", "small");
    w.opset("", 17);
    w.add_input("x", DType::F32, &["N".into(), Size::Fixed(8)])
        .unwrap();
    for (name, v) in [("one", 1), ("end", i64::MAX), ("axis", 0)] {
        w.add_constant(name, &HostTensor::from_i64(&[1], &[v]).unwrap())
            .unwrap();
    }
    let weight = HostTensor::absent(DType::F32, &[8, 512], "w").unwrap();
    w.add_external("w", &weight).unwrap();
    let mut node = |op: &str, inputs: &[&str], output: &str| {
        let name = format!("make {output}");
        w.add_node(NodeSpec {
            domain: "",
            op,
            name: &name,
            inputs,
            outputs: &[output],
            attributes: &[],
        })
        .unwrap();
    };
    node("Slice", &["x", "one", "end", "axis"], "rest");
    node("Relu", &["rest"], "a");
    node("MatMul", &["a", "w"], "y");
    w.add_output("y", DType::F32, &["N - 1".into(), Size::Fixed(512)])
        .unwrap();
    w.finish().unwrap();
    assert!(
        !dir.join("small.onnx.data").exists(),
        "there are no weights to read"
    );
    dir.join("small.onnx")
}

#[test]
fn a_decoder_needs_so_many_bytes() {
    let (_dir, model) = tlite_testing::tiny_model("llama", Default::default());
    let all = json(&model, &["--context", "32", "--chunk", "16"]);
    let number = |key: &str| {
        all[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key} is {}", all[key]))
    };
    let (arena, weights, states, total) = (
        number("arena_bytes"),
        number("weights_bytes"),
        number("states_bytes"),
        number("total_bytes"),
    );
    assert_eq!(total, arena + weights + states);
    // Two layers, keys and values, 32 rows of 2 heads of 8 halves.
    assert_eq!(states, 2 * 2 * 32 * 2 * 8 * 2);
    assert!(number("arena_lower_bound_bytes") <= arena && arena <= number("arena_no_reuse_bytes"));
    assert!(number("shape_ops_total") >= number("shape_ops_at_runtime"));
    assert_eq!(number("shape_ops_at_runtime"), 0);
    assert!(all["arena_formula"].as_str().unwrap().contains('*'));
    let plans = all["plans"].as_array().unwrap();
    assert_eq!(
        plans
            .iter()
            .map(|p| p["name"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["prefill", "decode"]
    );
    assert_eq!(
        arena,
        plans
            .iter()
            .map(|p| p["arena_bytes"].as_u64().unwrap())
            .max()
            .unwrap()
    );
    let symbols: Vec<&str> = all["symbols"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["name"].as_str().unwrap())
        .collect();
    assert!(symbols.len() >= 2, "{symbols:?}");
    for key in ["inputs", "outputs", "values", "operators", "nodes", "passes"] {
        assert!(!all[key].as_array().unwrap().is_empty(), "{key}");
    }
    for value in all["values"].as_array().unwrap() {
        assert!(value["name"].is_string() && value["dtype"].is_string(), "{value}");
        assert!(
            value["shape"].as_array().unwrap().iter().all(Value::is_string),
            "{value}"
        );
    }
    let text = stdout(&inspect(&model, &["--context", "32", "--chunk", "16"]));
    let size = |bytes: u64| format!("{:.1} kB", bytes as f64 / 1e3);
    for part in ["context 32".to_owned(), size(total), size(weights), size(states)] {
        assert!(text.contains(&part), "{part} is missing in {text}");
    }
    let more = stdout(&inspect(&model, &["--context", "32", "--verbose"]));
    assert!(more.lines().count() > text.lines().count() + 20, "{more}");
    // A longer context needs a larger cache and nothing else that counts.
    let longer = json(&model, &["--context", "64", "--chunk", "16"]);
    assert_eq!(longer["states_bytes"].as_u64().unwrap(), 2 * states);
    assert_eq!(longer["weights_bytes"].as_u64().unwrap(), weights);
}

#[test]
fn a_model_is_summarized() {
    let (_dir, model) = tlite_testing::tiny_model("llama", Default::default());
    let all = json(&model, &[]);
    let summary = &all["model"]["summary"];
    let number = |key: &str| {
        summary[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {summary}"))
    };
    assert_eq!(summary["architecture"], "llama");
    assert_eq!(
        (number("layers"), number("kv_heads"), number("head_size")),
        (2, 2, 8)
    );
    assert_eq!(number("vocabulary"), 270);
    assert_eq!(
        number("max_context"),
        all["model"]["decoder"]["context"].as_u64().unwrap()
    );
    assert!(summary["chat_template"].is_boolean() && summary["tokenizer"].is_string());
    let weights = summary["weights"].as_array().unwrap();
    let parameters: u64 = weights.iter().map(|w| w["parameters"].as_u64().unwrap()).sum();
    assert_eq!(number("parameters"), parameters);
    assert_eq!(summary["bits_per_weight"], 32.0);
    let files = summary["files"].as_array().unwrap();
    assert!(files.iter().any(|f| f["name"] == "model.onnx"), "{files:?}");

    let dir = tempfile::tempdir().unwrap();
    let other = json(&small(dir.path()), &[]);
    let summary = &other["model"]["summary"];
    assert_eq!(
        (summary["parameters"].as_u64(), &other["model"]["name"]),
        (Some(8 * 512), &"small".into())
    );
    assert!(summary["layers"].is_null() && summary["chat_template"].is_null());
}

#[test]
fn packed_weights_are_counted() {
    let mut file = tlite_testing::gguf::tiny("llama", Default::default());
    let names: Vec<String> = file.tensors.iter().map(|t| t.name.clone()).collect();
    assert!(names.iter().any(|n| n == "blk.0.ffn_up.weight"));
    let parameters = |model: &Path| {
        json(model, &[])["model"]["summary"]["parameters"]
            .as_u64()
            .unwrap()
    };
    let (dir, model) = tlite_testing::converted(&file);
    let floats = parameters(&model);
    let packed = dir.path().join("e0m4");
    let output = tlite(&[
        "quantize",
        model.to_str().unwrap(),
        "-o",
        packed.to_str().unwrap(),
    ]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let summary = json(&packed, &[])["model"]["summary"].clone();
    assert_eq!(parameters(&packed), floats);
    let weights = summary["weights"].as_array().unwrap();
    let bits = |head: bool| {
        let of = |w: &&Value| w["head"] == head && w["matrix"] == true;
        weights.iter().find(of).map(|w| w["bits"].as_u64().unwrap())
    };
    assert_eq!((bits(false), bits(true)), (Some(4), Some(8)), "{weights:?}");
    let mean = summary["bits_per_weight"].as_f64().unwrap();
    assert!(mean > 4.0 && mean < 6.0, "{mean}");

    // The header of the same model as a GGUF file.
    let path = dir.path().join("m.gguf");
    file.set(
        "general.name",
        transformer_lite_convert::gguf::Value::String("Tiny".to_owned()),
    );
    std::fs::write(&path, file.bytes()).unwrap();
    let header = json(&path, &[]);
    assert_eq!(
        (&header["name"], &header["architecture"]),
        (&"Tiny".into(), &"llama".into())
    );
    assert_eq!(
        (header["layers"].as_u64(), header["vocabulary"].as_u64()),
        (Some(2), Some(270))
    );
    assert!(header["unsupported"].is_null(), "{header}");
    let tensors: u64 = header["types"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["tensors"].as_u64().unwrap())
        .sum();
    assert_eq!(tensors, file.tensors.len() as u64);
    assert!(stdout(&inspect(&path, &[])).contains("Tiny"));
    // What the header does not tell is that of the converted model.
    let planned = json(&path, &["--context", "32"]);
    assert_eq!(planned["model"]["decoder"]["context"], 32);
    assert_eq!(planned["model"]["summary"]["parameters"].as_u64(), Some(floats));
    std::fs::write(&path, &file.bytes()[..1000]).unwrap();
    let output = inspect(&path, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has 1000"));
    // Another architecture is shown, with the reason why it does not run.
    file.set(
        "general.architecture",
        transformer_lite_convert::gguf::Value::String("falco".to_owned()),
    );
    std::fs::write(&path, file.bytes()).unwrap();
    assert!(
        json(&path, &[])["unsupported"]
            .as_str()
            .unwrap()
            .contains("falco")
    );
}

#[test]
fn other_models_say_what_was_assumed() {
    let dir = tempfile::tempdir().unwrap();
    let model = small(dir.path());
    let text = stdout(&inspect(&model, &[]));
    let bounded = stdout(&inspect(&model, &["--bounds", "2 <= N <= 100"]));
    assert!(text.contains(" N=") && carries(&bounded, "N=100"), "{bounded}");
    // What was assumed comes with the option that changes it.
    let hints = |text: &str| text.matches("--bounds").count();
    assert!(hints(&text) > hints(&bounded), "{text}\n{bounded}");
    let all = json(&model, &["--bounds", "2 <= N <= 100"]);
    assert_eq!(all["weights_bytes"], 8 * 512 * 4);
    assert_eq!(all["plans"][0]["bounds"]["N"], 100);
    assert_eq!(all["symbols"][0]["lower"], 2);
    let y = all["values"]
        .as_array()
        .unwrap()
        .iter()
        .find(|v| v["name"] == "y")
        .unwrap();
    assert_eq!(y["shape"], serde_json::json!(["N - 1", "512"]));
    let nodes = stdout(&inspect(&model, &["--nodes", "--bounds", "2 <= N <= 100"]));
    assert!(
        nodes.contains("tensor MatMul \"make y\": f32[N - 1, 8], f32[8, 512] -> f32[N - 1, 512]"),
        "{nodes}"
    );
    // What is known of N says that there are rows behind the first.
    let nodes = stdout(&inspect(&model, &["--nodes"]));
    assert!(nodes.contains("f32[max(1, N) - 1, 8]"), "{nodes}");
    stdout(&inspect(&model, &["--bind", "N=0"]));
    // With a value there is nothing left to bound.
    let bound = json(&model, &["--bind", "N=9"]);
    assert_eq!(bound["plans"][0]["fixed"]["N"], 9);
    assert!(bound["arena_bytes"].as_u64() < all["arena_bytes"].as_u64());
}

#[test]
fn wrong_questions() {
    let dir = tempfile::tempdir().unwrap();
    let model = small(dir.path());
    for (more, words) in [
        (&["--bind", "M=3"][..], &["--bind", "M", "N"][..]),
        (&["--bounds", "M <= 3"], &["--bounds", "M", "N"]),
        (&["--bind", "2N=3"], &["--bind", "2N"]),
        (&["--bind", "N"], &["--bind", "NAME=VALUE"]),
        (&["--bind", "N=-4"], &["--bind", "N=-4"]),
        (&["--bind", "N=1.5"], &["--bind", "1.5"]),
        (&["--bind", "N=3,N=4"], &["N", "3", "4"]),
        (
            &["--bind", "N=300", "--bounds", "N <= 200"],
            &["--bind", "N", "300", "N <= 200"],
        ),
        (&["--bounds", "N <"], &["--bounds"]),
        (&["--bounds", "N"], &["--bounds", "`N`"]),
        (&["--bounds", "N <= 4, N >= 5"], &["--bounds", "N >= 5"]),
        (
            &["--bounds", "N <= 9000000000000000000"],
            &["--bounds", "[N, 8]", "N=9000000000000000000"],
        ),
        (&["--context", "0"], &["--context"]),
        (&["--backend", "reference"], &["--backend"]),
        (&["--json", "--nodes"], &["--nodes"]),
    ] {
        refused(&model, more, words);
    }
    refused(&dir.path().join("absent"), &[], &["MODEL", "absent"]);
    refused(Path::new("/dev/null"), &[], &["MODEL", "/dev/null"]);
    let outer = tempfile::tempdir().unwrap();
    let inner = outer.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join("model.onnx"), "x").unwrap();
    refused(outer.path(), &[], &["MODEL", inner.to_str().unwrap()]);
    let (_dir, decoder) = tlite_testing::tiny_model("llama", Default::default());
    let symbols = json(&decoder, &[])["model"]["decoder"].clone();
    let past = symbols["past"].as_str().unwrap();
    refused(
        &decoder,
        &["--context", "64", "--bind", &format!("{past}=65")],
        &["--bind", "65", "--context"],
    );
    refused(
        &decoder,
        &["--context", "64", "--bind", &format!("{past}=64")],
        &["--bind", "64"],
    );
}

#[test]
fn the_page_is_written_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let model = small(dir.path());
    let page = dir.path().join("page.html");
    let path = page.to_str().unwrap();
    stdout(&inspect(&model, &["--html", path]));
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
    // Another one takes its place.
    stdout(&inspect(&model, &["--html", path, "--bind", "N=9"]));
    assert_ne!(std::fs::read_to_string(&page).unwrap(), text);
    let missing = dir.path().join("no/page.html");
    let output = inspect(&model, &["--html", missing.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    refused(
        &model,
        &["--html", dir.path().to_str().unwrap()],
        &["--html", dir.path().to_str().unwrap()],
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        2,
        "the model and the page"
    );
}

/// `y = relu(x)` of an input with this name and rank.
fn named(dir: &Path, name: &str, rank: usize) -> PathBuf {
    let mut w = ModelWriter::without_data(Stage::Convert, dir, "named.onnx", "named");
    w.opset("", 17);
    w.add_input(name, DType::F32, &vec![Size::Fixed(1); rank])
        .unwrap();
    w.add_node(NodeSpec {
        domain: "",
        op: "Relu",
        name,
        inputs: &[name],
        outputs: &["y"],
        attributes: &[],
    })
    .unwrap();
    w.add_output("y", DType::F32, &[]).unwrap();
    w.finish().unwrap();
    dir.join("named.onnx")
}

#[test]
fn ranks_and_names_of_any_length_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(200_000);
    for (name, rank) in [("x", 100_000), (&long, 2)] {
        let model = named(dir.path(), name, rank);
        let text = stdout(&inspect(&model, &["--verbose", "--nodes"]));
        assert!(carries(&text, name), "a name of {} bytes", name.len());
        let run = [
            "run",
            model.to_str().unwrap(),
            "--random",
            "--backend",
            "reference",
        ];
        stdout(&tlite(&run));
    }
}
