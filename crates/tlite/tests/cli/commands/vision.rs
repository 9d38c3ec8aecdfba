//! `tlite run` with pictures: sets of them, classes, boxes and masks.

use super::{fails, path, stderr};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tlite_testing::{assert_carries, tlite};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Operator, operands and result of a node.
type Node<'a> = (&'a str, &'a [&'a str], &'a str);

/// A folder with the model `net.onnx` from `x`, grey pictures of `sides`, to `y`, and `set`, three
/// pictures of 4 x 4 pixels of different brightness and one that is broken.
fn folder(batch: Size, sides: [Size; 2], nodes: &[Node<'_>]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut w = ModelWriter::without_data(Stage::Quantize, dir.path(), "net.onnx", "net");
    w.opset("", 13);
    let [height, width] = sides;
    w.add_input("x", DType::F32, &[batch, 1.into(), height, width])
        .unwrap();
    let weights: Vec<f32> = (0..160u8).map(|i| f32::from(i % 10) / 4.0).collect();
    w.add_constant("w", &HostTensor::from_f32(&[16, 10], &weights).unwrap())
        .unwrap();
    w.add_constant("one", &HostTensor::from_i64(&[1], &[1]).unwrap())
        .unwrap();
    for (op, inputs, output) in nodes {
        w.add_node(NodeSpec {
            domain: "",
            op,
            name: output,
            inputs,
            outputs: &[*output],
            attributes: &[],
        })
        .unwrap();
    }
    w.add_output("y", DType::F32, &["n".into(), "classes".into()])
        .unwrap();
    w.finish().unwrap();
    let set = dir.path().join("set");
    std::fs::create_dir_all(set.join("more")).unwrap();
    for (name, grey) in [("a.png", 51), ("b.bmp", 102), ("more/c.webp", 255)] {
        let picture = image::RgbImage::from_pixel(4, 4, image::Rgb([grey; 3]));
        picture.save(set.join(name)).unwrap();
    }
    std::fs::write(set.join("broken.jpg"), "no picture").unwrap();
    dir
}

/// A classifier with ten classes, whose logits are 4 times the brightness times the class.
fn classifier(batch: Size) -> tempfile::TempDir {
    let nodes: [Node<'_>; 2] = [("Flatten", &["x"], "flat"), ("MatMul", &["flat", "w"], "y")];
    folder(batch, [4.into(), 4.into()], &nodes)
}

/// A detector whose boxes are the rows of its picture.
fn detector(dir: &Path) -> (tempfile::TempDir, PathBuf) {
    let nodes: [Node<'_>; 1] = [("Squeeze", &["x", "one"], "y")];
    let folder = folder("n".into(), [6.into(), 12.into()], &nodes);
    // Center, size, and the scores of two classes.
    let column = |x: u32| match x {
        3 => [255, 255, 255, 255, 0, 204],
        5 => [255, 255, 255, 255, 0, 153],
        _ => [0; 6],
    };
    let picture = image::RgbImage::from_fn(12, 6, |x, y| image::Rgb([column(x)[y as usize]; 3]));
    let file = dir.join("boxes.png");
    picture.save(&file).unwrap();
    (folder, file)
}

fn lines(output: &std::process::Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

const HOST: [&str; 2] = ["--backend", "reference"];

#[test]
fn a_folder_is_answered_but_for_its_broken_picture() {
    for batch in ["n".into(), 1.into()] {
        let dir = classifier(batch);
        let at = |name: &str| dir.path().join(name);
        let (model, set) = (at("net.onnx"), at("set"));
        let base = [&["run", path(&model), path(&set), "--softmax"][..], &HOST].concat();
        let output = tlite(&[&base[..], &["--json", "--top-k", "2"]].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert_carries(stderr(&output), &["broken.jpg", "1 of 4"]);
        let lines = lines(&output);
        let files: Vec<&str> = lines.iter().filter_map(|l| l["picture"].as_str()).collect();
        assert_eq!(files.len(), 4, "{lines:?}");
        assert!(files.iter().any(|f| f.ends_with("c.webp")), "{files:?}");
        for (line, brightness) in lines.iter().zip([0.2, 0.4, f64::NAN, 1.0]) {
            let top = &line["outputs"][0]["top"];
            if brightness.is_nan() {
                assert!(
                    line["error"].as_str().is_some_and(|e| e.contains("broken.jpg")),
                    "{line}"
                );
                continue;
            }
            assert_eq!(top.as_array().map(Vec::len), Some(2), "{line}");
            assert_eq!(top[0]["index"], 9, "{line}");
            let value = 16.0 * brightness * 9.0 / 4.0;
            assert!((top[0]["value"].as_f64().unwrap() - value).abs() < 1e-4, "{line}");
            let sum: f64 = (0..10)
                .map(|i| (16.0 * brightness * f64::from(i) / 4.0 - value).exp())
                .sum();
            let p = top[0]["probability"].as_f64().unwrap();
            assert!((p - 1.0 / sum).abs() < 1e-5, "{line}");
        }
        let table = tlite(&base);
        assert_eq!(table.status.code(), Some(1));
        let text = String::from_utf8(table.stdout).unwrap();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert_carries(text, &["a.png", "class 9", "failed"]);
    }
}

#[test]
fn labels_of_logits_get_probabilities() {
    let dir = classifier(1.into());
    let at = |name: &str| dir.path().join(name);
    let (model, picture, labels) = (at("net.onnx"), at("set/a.png"), at("labels.txt"));
    let base = [&["run", path(&model), path(&picture)][..], &HOST].concat();
    let top = |more: &[&str]| {
        let output = tlite(&[&base[..], &["--json"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (
            lines(&output)[0]["outputs"][0]["top"].clone(),
            stderr(&output).to_owned(),
        )
    };
    let (plain, _) = top(&[]);
    assert!(plain[0].get("probability").is_none(), "{plain}");
    std::fs::write(&labels, "zero\none\ntwo\n").unwrap();
    let (named, notes) = top(&["--labels", path(&labels), "--top-k", "9"]);
    assert!(
        named[0]["probability"].as_f64().is_some_and(|p| p > 0.5),
        "{named}"
    );
    assert_eq!(
        (&named[8]["label"], named.as_array().unwrap().len()),
        (&"one".into(), 9)
    );
    // Labels of another length.
    assert_carries(notes, &["--labels", "3 names", "10 classes"]);
    fails(&[&base[..], &["--top-k", "0"]].concat(), 2, &["--top-k", "0"]);
}

#[test]
fn options_that_do_not_fit_are_named() {
    let nodes: [Node<'_>; 2] = [("Flatten", &["x"], "flat"), ("Softmax", &["flat"], "y")];
    let dir = folder(1.into(), [4.into(), 4.into()], &nodes);
    let at = |name: &str| dir.path().join(name);
    let (model, set, a, b) = (at("net.onnx"), at("set"), at("set/a.png"), at("set/b.bmp"));
    let with = |more: &[&str], values: &[&str]| {
        fails(&[&["run", path(&model)][..], &HOST, more].concat(), 2, values);
    };
    with(&[path(&a), "--softmax"], &["--softmax", "y"]);
    with(&[path(&a), path(&b), "--repeat", "2"], &["--repeat"]);
    with(&[path(&set), "--compare", path(&set)], &["--compare"]);
    with(&[path(&a), "--min-score", "0.5"], &["--boxes"]);
    with(&[path(&a), "--boxes", "--min-score", "2"], &["--min-score", "2"]);
    with(&["-i", "x=a.npy", "--boxes"], &["a.npy"]);
    with(&[path(&a), "--mask"], &["--output-dir"]);
    with(&[path(&a), path(&a)], &["a.png"]);
    let none = at("none");
    std::fs::create_dir(&none).unwrap();
    with(&[path(&none)], &["none", ".webp"]);
    // No detector: named once, with the shapes and the known forms.
    with(
        &[path(&set), "--boxes"],
        &["--boxes", "y", "[1, 16]", "[1, n, 6]"],
    );
}

#[test]
fn boxes_are_found_named_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let (model, picture) = detector(dir.path());
    let model = model.path().join("net.onnx");
    let base = [&["run", path(&model), path(&picture), "--boxes"][..], &HOST].concat();
    let output = tlite(&[&base[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let line = &lines(&output)[0];
    let objects = line["objects"].as_array().unwrap();
    assert_eq!(objects.len(), 1, "the other box overlaps: {line}");
    assert_eq!(objects[0]["class"], 1, "{line}");
    assert!(
        (objects[0]["score"].as_f64().unwrap() - 0.8).abs() < 1e-6,
        "{line}"
    );
    assert_eq!(
        objects[0]["box"],
        serde_json::json!([0.5, 0.5, 1.5, 1.5]),
        "{line}"
    );
    assert_eq!(
        line["outputs"][0]["shape"],
        serde_json::json!([1, 6, 12]),
        "{line}"
    );
    let text = String::from_utf8(tlite(&base).stdout).unwrap();
    assert_carries(text, &["boxes.png", "class 1", "80.0 %"]);
    let none = tlite(&[&base[..], &["--min-score", "0.9", "--json"]].concat());
    assert_eq!(lines(&none)[0]["objects"], serde_json::json!([]));
}

#[test]
fn outputs_are_written_and_replaced_only_if_asked() {
    let nodes: [Node<'_>; 1] = [("Identity", &["x"], "y")];
    let dir = folder("n".into(), ["h".into(), "w".into()], &nodes);
    let at = |name: &str| dir.path().join(name);
    let (model, picture, out) = (at("net.onnx"), at("set/a.png"), at("out"));
    let base = [
        &["run", path(&model), path(&picture), "-o", path(&out), "--mask"][..],
        &HOST,
    ]
    .concat();
    assert_eq!(tlite(&base).status.code(), Some(0));
    let mask = image::open(out.join("y.png")).unwrap().into_luma8();
    assert_eq!((mask.dimensions(), mask.get_pixel(0, 0).0), ((4, 4), [51]));
    fails(&base, 2, &["--output-dir", "y.npy", "--force"]);
    assert_eq!(tlite(&[&base[..], &["--force"]].concat()).status.code(), Some(0));
    // Of several pictures, each has its folder.
    let (set, more) = (at("set"), at("more"));
    let several = [&["run", path(&model), path(&set), "-o", path(&more)][..], &HOST].concat();
    assert_eq!(tlite(&several).status.code(), Some(1), "one is broken");
    for file in ["a.png/y.npy", "b.bmp/y.npy", "more/c.webp/y.npy"] {
        assert!(more.join(file).is_file(), "{file}");
    }
    assert!(!more.join("broken.jpg").exists());
    let e = tlite(
        &[
            &["run", path(&model), path(&picture), "--image-size", "8", "--json"][..],
            &HOST,
        ]
        .concat(),
    );
    assert_eq!(
        lines(&e)[0]["outputs"][0]["shape"],
        serde_json::json!([1, 1, 8, 8])
    );
}

#[test]
fn a_picture_that_fails_does_not_end_its_set() {
    // Black pixels become NaN, and others 1.
    let nodes: [Node<'_>; 2] = [("Div", &["x", "x"], "d"), ("Squeeze", &["d", "one"], "y")];
    let dir = folder("n".into(), [6.into(), 12.into()], &nodes);
    let at = |name: &str| dir.path().join(name);
    let (model, set, out) = (at("net.onnx"), at("mixed"), at("out"));
    std::fs::create_dir(&set).unwrap();
    for (name, grey) in [("a.png", 0), ("b.png", 255), ("c.png", 9)] {
        let picture = image::RgbImage::from_pixel(12, 6, image::Rgb([grey; 3]));
        picture.save(set.join(name)).unwrap();
    }
    let base = [
        &["run", path(&model), path(&set), "-o", path(&out), "--json"][..],
        &HOST,
    ]
    .concat();
    let boxes = tlite(&[&base[..], &["--boxes"]].concat());
    assert_eq!(boxes.status.code(), Some(1), "{}", stderr(&boxes));
    assert_carries(stderr(&boxes), &["a.png", "NaN", "1 of 3"]);
    let found = lines(&boxes);
    let objects = found.iter().map(|line| line["objects"].as_array().map(Vec::len));
    assert_eq!(objects.collect::<Vec<_>>(), [None, Some(1), Some(1)], "{found:?}");
    assert!(
        found[0]["error"].as_str().is_some_and(|e| e.contains("a.png")),
        "{found:?}"
    );
    // Now the files of two pictures exist.
    let again = tlite(&base);
    assert_eq!(again.status.code(), Some(1));
    assert_carries(stderr(&again), &["b.png", "c.png", "--force", "2 of 3"]);
    assert!(out.join("a.png/y.npy").is_file());
    let outputs = lines(&again)[0]["outputs"].as_array().map(Vec::len);
    assert_eq!(outputs, Some(1));
}

#[test]
fn options_of_a_set_are_checked_once() {
    let dir = tempfile::tempdir().unwrap();
    let labels = dir.path().join("labels.txt");
    std::fs::write(&labels, "zero\none\ntwo\n").unwrap();
    let said = |model: &Path, input: &Path, more: &[&str]| {
        let base = ["run", path(model), path(input)];
        stderr(&tlite(&[&base[..], &HOST, more].concat())).to_owned()
    };
    let of_classes = classifier("n".into());
    let at = |name: &str| of_classes.path().join(name);
    let text = said(&at("net.onnx"), &at("set"), &["--labels", path(&labels)]);
    assert_eq!(text.matches("3 names for 10 classes").count(), 1, "{text}");
    let (model, picture) = detector(dir.path());
    std::fs::copy(&picture, dir.path().join("second.png")).unwrap();
    let options = ["--boxes", "--labels", path(&labels), "--top-k", "2"];
    let text = said(&model.path().join("net.onnx"), dir.path(), &options);
    assert_eq!(text.matches("3 names for 2 classes").count(), 1, "{text}");
    assert_eq!(text.matches("--top-k").count(), 1, "{text}");
    assert_eq!(text.matches("--labels has no effect").count(), 0, "{text}");
    let nodes: [Node<'_>; 1] = [("Identity", &["x"], "y")];
    let plain = folder("n".into(), ["h".into(), "w".into()], &nodes);
    let at = |name: &str| plain.path().join(name);
    let text = said(&at("net.onnx"), &at("set"), &["--softmax"]);
    assert_eq!(text.matches("--softmax").count(), 1, "{text}");
}
