//! `tlite quantize` and `tlite convert`: what they write, refuse and leave behind.

use super::{fails, fails_as, names, onnx_folder, path, stderr};
use std::path::Path;
use tlite_testing::browser::opened;
use tlite_testing::hugging_face::{Order, gptq};
use tlite_testing::{carries, tlite};

#[test]
fn quantize_writes_a_folder_and_a_table() {
    let dir = onnx_folder();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let output = tlite(&["quantize", path(&input), "-o", path(&out), "--format", "e0m4"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(
        lines[1].starts_with("first ") && carries(lines[1], "4") && carries(lines[2], "8"),
        "{text}"
    );
    tlite_testing::assert_carries(lines[3], &["2"]);
    assert_eq!(names(&out), ["model.onnx", "model.onnx.data", "tokenizer.json"]);
    assert_eq!(names(dir.path()), ["in", "out"]);

    let second = dir.path().join("second");
    let command = ["quantize", path(&input), "-o", path(&second), "--format", "e0m4"];
    let output = tlite(
        &[
            &command[..],
            &["--json", "--group-size", "32", "--head-bits", "4"],
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["weights"].as_array().unwrap();
    let first = &rows[0];
    assert_eq!(
        (first["name"].as_str(), first["shape"][1].as_u64()),
        (Some("first"), Some(64))
    );
    assert!(rows.iter().all(|r| r["bits"] == 4 && r["group_size"] == 32));
    assert!(json["relative_error"].as_f64().unwrap() < 0.1);
    assert!(json["bytes_after"].as_u64() < json["bytes_before"].as_u64());
    fails(&command, 2, &["output", "second"]);
}

#[test]
fn quantize_reports_and_dequantize_goes_back() {
    let dir = onnx_folder();
    let (input, out, back) = (
        dir.path().join("in"),
        dir.path().join("out"),
        dir.path().join("back"),
    );
    let (page, numbers) = (dir.path().join("page.html"), dir.path().join("numbers.json"));
    let options = [
        "--method",
        "mae",
        "--report",
        path(&page),
        "--report-json",
        path(&numbers),
    ];
    let command = [
        &["quantize", path(&input), "-o", path(&out), "--bits", "4"][..],
        &options,
    ]
    .concat();
    let output = tlite(&command);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(!html.contains("://"), "{html}");
    let dom = opened(&html, "");
    assert!(dom.contains(">first<") && dom.contains("tlite quantize"), "{dom}");
    tlite_testing::assert_carries(&dom, &["E0M4", "mae", "in \u{2192} out"]);
    for method in ["rtn", "mse", "mae", "written"] {
        let strip = dom.split(&format!("class=\"v-strip-{method}\"")).nth(1);
        let strip = strip.and_then(|s| s.split("</svg>").next()).unwrap();
        // The head takes 8 bits and is not compared with 4.
        assert_eq!(strip.matches("<circle").count(), 1, "{method}");
    }
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&numbers).unwrap()).unwrap();
    for row in json["weights"].as_array().unwrap() {
        assert!(row["name"].is_string() && row["bits"].is_u64() && row["group_size"].is_u64());
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(
            number("mae") > 0.0 && number("mse") > 0.0 && number("mae_int4") > number("mae"),
            "{row}"
        );
    }
    let output = tlite(&["dequantize", path(&out), "-o", path(&back)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    tlite_testing::assert_carries(String::from_utf8(output.stdout).unwrap(), &["2", "f16"]);
    assert_eq!(names(&back), ["model.onnx", "model.onnx.data", "tokenizer.json"]);
    fails(
        &["dequantize", path(&input), "-o", path(&dir.path().join("x"))],
        1,
        &["model.onnx"],
    );
    assert_eq!(
        names(dir.path()),
        ["back", "in", "numbers.json", "out", "page.html"]
    );
}

#[test]
fn quantize_options_are_checked() {
    let dir = onnx_folder();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let refused = |options: &str, values: &[&str]| {
        let mut args = vec!["quantize", path(&input), "-o", path(&out)];
        args.extend(options.split(' '));
        fails(&args, 2, values);
        assert_eq!(names(dir.path()), ["in"]);
    };
    refused("--method gptq2", &["--method", "rtn", "mixed"]);
    refused("--bits 7", &["--bits", "7"]);
    refused("--bits 4 --format e0m4", &["--bits", "--format"]);
    refused("--method mixed --format e0m4", &["--method", "mixed"]);
    refused("--method mixed --bits 1", &["--bits", "1", "--head-bits"]);
    // The second matrix makes the logits and keeps 8 bits.
    refused("--method mixed --bits 4.5", &["--bits", "4.5", "--head-bits"]);
    refused(
        "--method mixed --bits 2.2 --head-bits 3",
        &["--bits", "2.2", "--head-bits"],
    );
    refused("--format q4", &["--format", "q4", "e0m4"]);
    for (option, values) in [
        ("--group-size", &["0", "8", "20", "264", "-32", "many"][..]),
        ("--head-bits", &["0", "7", "16", "-4", "all"]),
    ] {
        for value in values {
            refused(&format!("--format e0m4 {option} {value}"), &[option, value]);
        }
    }
}

#[test]
fn paths_of_quantize_and_convert_are_checked() {
    let dir = onnx_folder();
    let [input, out, absent] = ["in", "out", "absent"].map(|name| dir.path().join(name));
    let (report, nowhere) = (absent.join("report.json"), absent.join("out"));
    let (file, empty) = (input.join("model.onnx"), tempfile::tempdir().unwrap());
    let quantize = |from: &Path, more: &[&str], values: &[&str]| {
        fails(
            &[&["quantize", path(from), "--format", "e0m4"], more].concat(),
            2,
            values,
        );
    };
    let convert = |from: &Path, more: &[&str], values: &[&str]| {
        fails(&[&["convert", path(from)], more].concat(), 2, values);
    };
    let to = ["-o", path(&out)];
    quantize(&input, &[], &["--output"]);
    convert(&input, &[], &["--output"]);
    quantize(&absent, &to, &["absent", "model.onnx"]);
    quantize(&input, &["-o", path(&input)], &["output", path(&input)]);
    convert(&absent, &to, &["FILE", "absent"]);
    convert(&input, &to, &["FILE", path(&input), "model.onnx"]);
    convert(empty.path(), &to, &["FILE", "config.json", "safetensors", "GGUF"]);
    for command in ["convert", "quantize"] {
        let more = [&to[..], &["--report-json", path(&report)]].concat();
        fails(
            &[&[command, path(&input)], &more[..]].concat(),
            2,
            &["--report-json", path(&absent)],
        );
    }
    convert(&file, &["-o", path(&input)], &["output", path(&input)]);
    let args = ["quantize", path(&input), "-o", path(&nowhere), "--format", "e0m4"];
    fails_as(&args, 1, "NotFound", &[path(&absent)]);
    assert_eq!(names(dir.path()), ["in"]);
}

#[test]
fn conversions_tell_what_keeping_bits_costs() {
    let dir = tempfile::tempdir().unwrap();
    let (_checkpoint, input) = gptq(4, 32, Order::Own, false, "llama").0.write();
    let (out, file) = (dir.path().join("out"), dir.path().join("errors.json"));
    let args = [
        "convert",
        path(&input),
        "-o",
        path(&out),
        "--json",
        "--report-json",
        path(&file),
    ];
    let output = tlite(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(found, written);
    let weights = found["weights"].as_array().unwrap();
    assert_eq!(
        (weights.len(), found["architecture"].as_str()),
        (14, Some("llama"))
    );
    for w in weights {
        let numbers = ["bits", "group_size", "mae", "mse", "max_error"].map(|key| w[key].as_f64());
        assert_eq!(
            numbers,
            [Some(4.0), Some(32.0), Some(0.0), Some(0.0), Some(0.0)],
            "{w}"
        );
    }
    assert_eq!(found["left"].as_array().map(Vec::len), Some(0));
    let sizes = std::fs::read_dir(&input)
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().len());
    assert_eq!(found["bytes_before"].as_u64(), Some(sizes.sum()));
}

#[test]
fn reports_take_no_models_place() {
    let dir = onnx_folder();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let (model, new) = (input.join("model.onnx"), input.join("new.json"));
    let before = std::fs::read(&model).unwrap();
    let other = dir.path().join("x");
    for (args, values) in [
        (
            &["--report-json", path(&model)][..],
            &["--report-json", path(&model)][..],
        ),
        (&["--report", path(&new)], &["--report", path(&new)]),
        (
            &["--report", path(&other), "--report-json", path(&other)],
            &["--report", "--report-json"],
        ),
    ] {
        let base = ["quantize", path(&input), "-o", path(&out)];
        fails(&[&base[..], args].concat(), 2, values);
    }
    assert!(std::fs::read(&model).unwrap() == before && !new.exists() && !out.exists());
}

#[test]
fn damaged_models_are_named_and_leave_nothing() {
    let dir = onnx_folder();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let (model, data) = (input.join("model.onnx"), input.join("model.onnx.data"));
    let (good, weights) = (std::fs::read(&model).unwrap(), std::fs::read(&data).unwrap());
    let refused = |values: &[&str]| {
        let args = ["quantize", path(&input), "-o", path(&out), "--format", "e0m4"];
        fails_as(&args, 1, "InvalidFile", values);
        assert_eq!(names(dir.path()), ["in"]);
    };
    std::fs::write(&model, &good[..good.len() / 2]).unwrap();
    refused(&["model.onnx", &(good.len() / 2).to_string()]);
    std::fs::write(&model, "just text").unwrap();
    refused(&["model.onnx"]);
    std::fs::write(&model, "").unwrap();
    refused(&["model.onnx"]);

    let place = b"model.onnx.data";
    let moved = |to: &[u8; 15]| {
        let mut bytes = good.clone();
        while let Some(at) = bytes.windows(place.len()).position(|w| w == place) {
            bytes[at..at + place.len()].copy_from_slice(to);
        }
        std::fs::write(&model, bytes).unwrap();
    };
    std::fs::write(dir.path().join("in/other"), &weights).unwrap();
    for to in [b"../in/./a.data1", b"/tmp/absolute.x", b"a/../../../data"] {
        moved(to);
        refused(&["first", std::str::from_utf8(to).unwrap()]);
    }
    moved(b"other-file.data");
    refused(&["\"first\"", "other-file.data"]);
    std::fs::write(&model, &good).unwrap();
    std::fs::write(&data, &weights[..weights.len() - 1]).unwrap();
    let size = weights.len() - 1;
    refused(&["second", "model.onnx.data", &size.to_string()]);
    std::fs::remove_file(&data).unwrap();
    refused(&["\"first\"", "model.onnx.data"]);
    std::fs::create_dir(&data).unwrap();
    refused(&["\"first\"", "model.onnx.data"]);
}

/// As in the cache of the Hugging Face Hub, where each file of a folder is a link to one that is
/// named by its contents.
#[cfg(unix)]
#[test]
fn files_of_a_model_may_be_links_and_folders_in_it_may_not() {
    use std::os::unix::fs::symlink;
    let dir = onnx_folder();
    let (input, blobs) = (dir.path().join("in"), dir.path().join("blobs"));
    std::fs::create_dir(&blobs).unwrap();
    for name in ["model.onnx", "model.onnx.data"] {
        std::fs::rename(input.join(name), blobs.join(name)).unwrap();
        symlink(Path::new("../blobs").join(name), input.join(name)).unwrap();
    }
    let out = dir.path().join("out");
    let output = tlite(&["quantize", path(&input), "-o", path(&out)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));

    let (model, place, below) = (input.join("model.onnx"), b"model.onnx.data", b"sub/./././a.bin");
    let mut bytes = std::fs::read(&model).unwrap();
    while let Some(at) = bytes.windows(place.len()).position(|w| w == place) {
        bytes[at..at + place.len()].copy_from_slice(below);
    }
    std::fs::remove_file(&model).unwrap();
    std::fs::write(&model, bytes).unwrap();
    std::fs::rename(blobs.join("model.onnx.data"), blobs.join("a.bin")).unwrap();
    symlink("../blobs", input.join("sub")).unwrap();
    let other = dir.path().join("other");
    let args = ["quantize", path(&input), "-o", path(&other)];
    fails(&args, 1, &["first", "sub/", "link"]);
    std::fs::remove_file(input.join("sub")).unwrap();
    std::fs::create_dir(input.join("sub")).unwrap();
    symlink("../../blobs/a.bin", input.join("sub/a.bin")).unwrap();
    let output = tlite(&args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn damaged_gguf_files_are_named_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("m.gguf"), dir.path().join("out"));
    let golden =
        std::fs::read(Path::new(tlite_testing::ROOT).join("tests/golden/gguf/dequant.gguf")).unwrap();
    for (bytes, values) in [
        (&golden[..], &["m.gguf", "llama"][..]),
        (&golden[..golden.len() - 1], &["m.gguf"]),
        (&golden[..100], &["m.gguf"]),
        (
            b"PK\x03\x04 another format, of many bytes",
            &["m.gguf", "GGUF", "\"PK"],
        ),
        (
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01",
            &["m.gguf", "GGUF", "\"\\x89PNG\""],
        ),
        (
            b"Call me Ishmael. Some years ago",
            &["m.gguf", "GGUF", "\"Call\""],
        ),
        (b"GG", &["m.gguf", "24", "2"]),
        (b"", &["m.gguf", "GGUF"]),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let args = ["convert", path(&file), "-o", path(&out)];
        fails(&args, 1, values);
        assert_eq!(names(dir.path()), ["m.gguf"]);
    }
}
