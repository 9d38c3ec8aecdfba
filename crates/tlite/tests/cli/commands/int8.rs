//! `tlite quantize --format int8`.

use super::{fails, names, path, stderr};
use std::path::Path;
use tlite_testing::browser::opened;
use tlite_testing::tlite;
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// A folder with `net.onnx`, a convolution over pictures of 8 x 8 pixels with `Relu`, and `set`,
/// four pictures.
fn folder() -> tempfile::TempDir {
    folder_with(|| 8.into())
}

/// The same with another height and width of the pictures.
fn folder_with(side: impl Fn() -> Size) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut w = ModelWriter::without_data(Stage::Quantize, dir.path(), "net.onnx", "net");
    w.opset("", 13);
    w.add_input("x", DType::F32, &[1.into(), 3.into(), side(), side()])
        .unwrap();
    let data: Vec<f32> = (0..108u8).map(|i| (f32::from(i) * 0.7).sin()).collect();
    w.add_constant("w", &HostTensor::from_f32(&[4, 3, 3, 3], &data).unwrap())
        .unwrap();
    for (op, name, inputs, attributes) in [
        (
            "Conv",
            "conv",
            &["x", "w"][..],
            &[("pads", Attr::Ints(vec![1; 4]))][..],
        ),
        ("Relu", "relu", &["conv_out"], &[]),
    ] {
        let out = if name == "relu" { "y" } else { "conv_out" };
        w.add_node(NodeSpec {
            domain: "",
            op,
            name,
            inputs,
            outputs: &[out],
            attributes,
        })
        .unwrap();
    }
    w.add_output("y", DType::F32, &[1.into(), 4.into(), side(), side()])
        .unwrap();
    w.finish().unwrap();
    let set = dir.path().join("set");
    std::fs::create_dir(&set).unwrap();
    for i in 0..4u8 {
        let pixel = |x: u32, y: u32| image::Rgb([(x * 30) as u8, (y * 30) as u8, 60 * i]);
        let picture = image::RgbImage::from_fn(8, 8, pixel);
        picture.save(set.join(format!("{i}.png"))).unwrap();
    }
    dir
}

fn quantize<'a>(model: &'a Path, out: &'a Path, set: &'a Path) -> Vec<&'a str> {
    let options = [
        "--format",
        "int8",
        "--backend",
        "reference",
        "--calibration",
        path(set),
    ];
    [&["quantize", path(model), "-o", path(out)][..], &options].concat()
}

#[test]
fn int8_writes_a_file_or_a_folder_and_reports() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (model, set, file) = (at("net.onnx"), at("set"), at("int8.onnx"));
    let (page, numbers) = (at("page.html"), at("numbers.json"));
    let mut command = quantize(&model, &file, &set);
    command.extend([
        "--report",
        path(&page),
        "--report-json",
        path(&numbers),
        "--image-mean",
        "imagenet",
    ]);
    let output = tlite(&command);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("conv") && text.contains("output y: median SNR"),
        "{text}"
    );
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(opened(&html, "").contains("SNR of y"), "{html}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&numbers).unwrap()).unwrap();
    assert_eq!(json["layers"][0]["ops"], serde_json::json!(["Conv", "Relu"]));
    assert_eq!(json["items"], 4);
    assert!(
        json["outputs"][0]["median_snr"].as_f64().unwrap() > 30.0,
        "{json}"
    );
    assert_eq!(json["outputs"][0]["last_layer"]["name"], "conv");
    for (model, notes) in [(&file, 0), (&model, 1)] {
        let picture = set.join("0.png");
        let command = [
            "run",
            path(model),
            path(&picture),
            "--backend",
            "reference",
            "--integer",
            "fixed",
        ];
        let run = tlite(&command);
        assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));
        assert_eq!(stderr(&run).matches("--integer").count(), notes);
    }

    let out = at("out");
    let mut command = quantize(&model, &out, &set);
    command.extend([
        "--per-tensor",
        "--ranges",
        "mse",
        "--calibration-items",
        "2",
        "--json",
    ]);
    let output = tlite(&command);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (json["items"].as_u64(), json["per_tensor"].as_bool()),
        (Some(2), Some(true))
    );
    assert_eq!(names(&out), ["model.onnx"]);
}

#[test]
fn int8_models_know_how_pictures_are_prepared() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (model, set, file) = (at("net.onnx"), at("set"), at("int8.onnx"));
    let made = quantize(&model, &file, &set);
    let made = tlite(&[&made[..], &["--image-mean", "imagenet"]].concat());
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    let outputs = |more: &[&str]| {
        let picture = set.join("0.png");
        let command = [
            "run",
            path(&file),
            path(&picture),
            "--backend",
            "reference",
            "--json",
        ];
        let run = tlite(&[&command[..], more].concat());
        assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));
        let json: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        (
            json["inputs"][0]["mean"].as_f64().unwrap(),
            stderr(&run).to_owned(),
        )
    };
    let (stored, notes) = outputs(&[]);
    assert!(notes.contains("--image-mean 0.485,0.456,0.406"), "{notes}");
    assert_eq!(stored, outputs(&["--image-mean", "imagenet"]).0);
    assert_ne!(stored, outputs(&["--image-mean", "0"]).0);
    // A file is replaced only if asked.
    let again = quantize(&model, &file, &set);
    fails(&again, 2, &["int8.onnx", "--force"]);
    let replaced = tlite(&[&again[..], &["--force"]].concat());
    assert_eq!(replaced.status.code(), Some(0), "{}", stderr(&replaced));
    assert_ne!(stored, outputs(&[]).0, "now without a mean");
}

#[test]
fn int8_refuses_bad_sets_and_options() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (model, set, out, empty) = (at("net.onnx"), at("set"), at("out"), at("empty"));
    std::fs::create_dir(&empty).unwrap();
    fails(&quantize(&model, &out, &empty), 2, &["--calibration", "empty"]);
    fails(
        &quantize(&model, &out, &at("none")),
        2,
        &["--calibration", "none"],
    );
    let command = ["quantize", path(&model), "-o", path(&out), "--format", "int8"];
    fails(&command, 2, &["--calibration"]);
    let with = |more: &[&'static str]| [quantize(&model, &out, &set), more.to_vec()].concat();
    fails(&with(&["--method", "gptq"]), 2, &["--method", "int8"]);
    fails(&with(&["--float", "f16"]), 2, &["--float", "int8"]);
    fails(
        &with(&["--calibration-tokens", "9"]),
        2,
        &["--calibration-tokens", "int8"],
    );
    fails(&with(&["--percentile", "99"]), 2, &["--percentile", "percentile"]);
    fails(&with(&["--keep-float", "other"]), 2, &["--keep-float", "other"]);
    // Pictures beside a tensor.
    let mixed = at("set/tensor.npy");
    std::fs::write(&mixed, "").unwrap();
    fails(
        &quantize(&model, &out, &set),
        2,
        &["--calibration", "set", path(&mixed)],
    );
    std::fs::remove_file(&mixed).unwrap();
    let weights = ["quantize", path(dir.path()), "-o", path(&out), "--per-tensor"];
    fails(&weights, 2, &["--per-tensor", "int8"]);
    assert_eq!(names(dir.path()), ["empty", "net.onnx", "set"]);
}

#[test]
fn int8_notes_that_pictures_keep_their_sizes() {
    let dir = folder_with(|| "side".into());
    let at = |name: &str| dir.path().join(name);
    let (model, set) = (at("net.onnx"), at("set"));
    // One other file counts; a hidden one does not.
    std::fs::write(set.join("other.gif"), "").unwrap();
    std::fs::write(set.join("._0.png"), "").unwrap();
    for (more, notes) in [(&[][..], 1), (&["--image-size", "8x8"], 0)] {
        let out = at(&format!("out{notes}.onnx"));
        let output = tlite(&[quantize(&model, &out, &set), more.to_vec()].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output).matches("--image-size").count(), notes);
        assert!(stderr(&output).contains("1 file ignored"), "{}", stderr(&output));
    }
}

#[test]
fn int8_refuses_reports_that_would_overwrite_models() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (model, set, file, out) = (at("net.onnx"), at("set"), at("int8.onnx"), at("out"));
    std::os::unix::fs::symlink(dir.path(), at("link")).unwrap();
    let link = at("link/int8.onnx");
    for (output, option, report) in [
        (&file, "--report", &file),
        (&file, "--report-json", &file),
        (&file, "--report", &link),
        (&file, "--report", &model),
        (&out, "--report", &out),
        (&file, "--report", &at("set/0.png")),
        (&file, "--report-json", &at("set/new.json")),
    ] {
        let command = [quantize(&model, output, &set), vec![option, path(report)]].concat();
        fails(&command, 2, &[option, path(report)]);
    }
    // A set that is one file.
    let picture = at("set/0.png");
    let command = [
        quantize(&model, &file, &picture),
        vec!["--report", path(&picture)],
    ]
    .concat();
    fails(&command, 2, &["--report", path(&picture)]);
    // An unrelated file.
    let other = at("other.json");
    std::fs::write(&other, "{}").unwrap();
    let command = [quantize(&model, &file, &set), vec!["--report-json", path(&other)]].concat();
    fails(&command, 2, &["--report-json", "other.json"]);
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "{}");
    std::fs::remove_file(&other).unwrap();
    let (page, json) = (at("page"), at("link/page"));
    let both = ["--report", path(&page), "--report-json", path(&json)];
    fails(
        &[&quantize(&model, &file, &set)[..], &both].concat(),
        2,
        &["--report-json", "--report"],
    );
    fails(
        &quantize(&model, &at("none/x.onnx"), &set),
        2,
        &["output", "none"],
    );
    fails(&quantize(&model, &at("none/x"), &set), 2, &["output", "none"]);
    assert_eq!(names(dir.path()), ["link", "net.onnx", "set"]);
}

#[test]
fn int8_keeps_nodes_in_floats_that_a_pattern_names() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (model, set, out) = (at("net.onnx"), at("set"), at("int8.onnx"));
    let command = [
        quantize(&model, &out, &set),
        vec!["--keep-float", "*lu", "--json"],
    ]
    .concat();
    let output = tlite(&command);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["layers"][0]["ops"], serde_json::json!(["Conv"]));
    assert_eq!(json["left"][0]["name"], "relu");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_int8_quantization_leaves_nothing() {
    use std::time::{Duration, Instant};
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (model, set) = (at("net.onnx"), at("many.npy"));
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (20000, 3, 8, 8), }";
    let mut rows = [
        &b"\x93NUMPY\x01\x00\x76\x00"[..],
        format!("{header:<118}").as_bytes(),
    ]
    .concat();
    let pixels = (0..20_000 * 192u32).map(|i| (i % 251) as f32);
    rows.extend(pixels.flat_map(f32::to_le_bytes));
    std::fs::write(&set, rows).unwrap();
    let before = names(dir.path());
    for output in ["out", "out.onnx"] {
        let out = at(output);
        let mut command = quantize(&model, &out, &set);
        command.extend(["--calibration-items", "20000"]);
        let child = tlite_testing::command().args(&command).spawn().unwrap();
        let start = Instant::now();
        while names(dir.path()) == before {
            assert!(start.elapsed() < Duration::from_secs(20), "no temporary file");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The file exists shortly before Ctrl-C would remove it.
        std::thread::sleep(Duration::from_millis(100));
        super::send_interrupt(&child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        assert_eq!(names(dir.path()), before);
    }
}
