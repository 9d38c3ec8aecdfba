//! Files and options that cannot be used are named before the first step.

mod support;

use burn::tensor::Device;
use std::path::Path;
use support::{Silent, bars, configuration, files, load, quantizing, small};
use transformer_lite_qat::Error;
use transformer_lite_qat::arch::{Activation, Architecture, Design, write};
use transformer_lite_qat::data::{Data, Fit};
use transformer_lite_qat::network::Network;
use transformer_lite_qat::optimizer::Optimizer;
use transformer_lite_qat::run::run;
use transformer_lite_qat::task::Task;

fn assert_has(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "\"{part}\" is missing in: {text}");
    }
}

fn picture(path: &Path, side: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    image::RgbImage::new(side, side).save(path).unwrap();
}

const SIZE: [usize; 3] = [3, 8, 8];

#[test]
fn a_class_without_pictures_is_named() {
    let folder = tempfile::tempdir().unwrap();
    picture(&folder.path().join("cats/1.png"), 8);
    std::fs::create_dir(folder.path().join("dogs")).unwrap();
    let e = Data::load(folder.path(), SIZE, 2, Fit::Exact).unwrap_err();
    assert_has(&e, &["dogs", "without pictures"]);
}

#[test]
fn pictures_of_another_size_and_damaged_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..6 {
        picture(
            &folder.path().join(format!("cats/{i}.png")),
            if i == 4 { 9 } else { 8 },
        );
    }
    let e = Data::load(folder.path(), SIZE, 1, Fit::Exact).unwrap_err();
    assert_has(&e, &["4.png", "9 x 9", "8 x 8", "--fit"]);
    let data = Data::load(folder.path(), SIZE, 1, Fit::Crop).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (4, 2));
    std::fs::write(folder.path().join("cats/5.png"), "no picture").unwrap();
    let e = Data::load(folder.path(), SIZE, 1, Fit::Crop).unwrap_err();
    assert_has(&e, &["5.png", "not a usable picture"]);
}

#[test]
fn labels_and_classes_out_of_range_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let csv = bars(folder.path(), 30);
    let e = Data::load(&csv, [1, 8, 8], 2, Fit::Exact).unwrap_err();
    assert_has(&e, &["bars.csv", "label 2", "expected 0 to 1"]);
    let e = Data::load(&csv, [1, 7, 7], 3, Fit::Exact).unwrap_err();
    assert_has(&e, &["1 x 8 x 8", "1 x 7 x 7"]);
    assert_eq!(
        Data::load(&csv, [1, 12, 10], 3, Fit::Exact).unwrap().train.len(),
        24
    );
    for class in ["a", "b", "c"] {
        picture(&folder.path().join("set").join(class).join("1.png"), 8);
    }
    let e = Data::load(&folder.path().join("set"), SIZE, 2, Fit::Exact).unwrap_err();
    assert_has(&e, &["3 classes", "2 outputs"]);
}

#[test]
fn damaged_idx_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("train-images-idx3-ubyte");
    let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1];
    std::fs::write(&images, &bytes[..9]).unwrap();
    let read = || Data::load(folder.path(), [1, 1, 1], 2, Fit::Exact).unwrap_err();
    assert_has(&read(), &["train-labels-idx1-ubyte"]);
    std::fs::write(
        folder.path().join("train-labels-idx1-ubyte"),
        [0, 0, 8, 1, 0, 0, 0, 1, 0],
    )
    .unwrap();
    assert_has(&read(), &["train-images", "cut off"]);
    bytes.push(1);
    std::fs::write(&images, &bytes).unwrap();
    assert_has(&read(), &["train-images", "1 bytes of data"]);
    bytes.push(1);
    std::fs::write(&images, &bytes).unwrap();
    assert_has(&read(), &["train-labels", "1 labels", "2 pictures"]);
}

#[test]
fn a_node_that_cannot_be_trained_is_named() {
    use transformer_lite::unstable::error::Stage;
    use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec};
    use transformer_lite::unstable::tensor::{DType, HostTensor};
    let folder = tempfile::tempdir().unwrap();
    let mut w = ModelWriter::without_data(Stage::Convert, folder.path(), "model.onnx", "g");
    w.opset("", 17);
    w.add_input("x", DType::F32, &["batch".into(), 1.into(), 4.into(), 4.into()])
        .unwrap();
    w.add_output("y", DType::F32, &["batch".into(), 1.into(), 2.into(), 2.into()])
        .unwrap();
    w.add_constant("w", &HostTensor::from_f32(&[1, 1, 3, 3], &[1.0; 9]).unwrap())
        .unwrap();
    for (op, name, inputs, output) in [
        ("Conv", "conv", vec!["x", "w"], "h"),
        ("Sin", "wave", vec!["h"], "y"),
    ] {
        let outputs = [output];
        w.add_node(NodeSpec {
            domain: "",
            op,
            name,
            inputs: &inputs,
            outputs: &outputs,
            attributes: &[],
        })
        .unwrap();
    }
    w.finish().unwrap();
    let e = Network::open(&folder.path().join("model.onnx")).unwrap_err();
    assert_has(&e, &["Sin \"wave\" cannot be trained"]);
}

#[test]
fn checkpoints_that_are_cut_off_or_of_other_options_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = bars(folder.path(), 60);
    let network = Network::open(&small(folder.path())).unwrap();
    let data = load(&data, &network);
    let mut c = configuration(&network, Some(quantizing()));
    let output = folder.path().join("out");
    let go = |c: &_, stop_after, restart| {
        let files = support::Files {
            stop_after,
            restart,
            ..files(&output)
        };
        run(
            &network,
            &data,
            Clone::clone(c),
            &Device::flex(),
            &files,
            &mut Silent,
        )
    };
    assert_eq!(go(&c, Some(2), false).unwrap(), None);
    c.seed = 8;
    assert_has(
        &go(&c, Some(3), false).unwrap_err(),
        &["seed was 7 and is now 8", "--restart"],
    );
    c.seed = 7;
    c.optimizer = Optimizer::Rmsprop;
    assert_has(
        &go(&c, Some(3), false).unwrap_err(),
        &["optimizer was \"sgd\" and is now \"rmsprop\"", "--restart"],
    );
    c.optimizer = Optimizer::Sgd;
    c.task = Task::Angle;
    assert_has(
        &go(&c, Some(3), false).unwrap_err(),
        &["task was \"classes\" and is now \"angle\"", "--restart"],
    );
    c.task = Task::Classes;
    let path = folder.path().join(".train-out/checkpoint.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for length in [0, 7, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert_has(
            &go(&c, Some(3), false).unwrap_err(),
            &["checkpoint.safetensors", "damaged or cut off"],
        );
    }
    assert_eq!(go(&c, Some(3), true).unwrap(), None);
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let csv = bars(folder.path(), 10);
    let network = Network::open(&small(folder.path())).unwrap();
    let data = load(&csv, &network);
    let c = configuration(&network, None);
    let e = run(
        &network,
        &data,
        c,
        &Device::flex(),
        &files(&folder.path().join("out")),
        &mut Silent,
    )
    .unwrap_err();
    assert_has(&e, &["--batch", "1 to the 8 training pictures", "found 16"]);
}

fn design(architecture: Architecture, classes: usize) -> Design {
    Design {
        architecture,
        resolution: 32,
        channels: 1,
        classes,
        width: 0.25,
        activation: Activation::Relu,
        seed: 1,
    }
}

/// The error of training pictures for a task with a new network.
fn refused(task: Task, architecture: Architecture, classes: usize) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let (csv, output) = (bars(folder.path(), 30), folder.path().join("net"));
    write(&design(architecture, classes), &output, None).unwrap();
    let network = Network::open(&output).unwrap();
    let (picture, output) = (network.picture, &network.output);
    let path = &network.model.path;
    task.load(&csv, path, picture, output, Fit::Exact).unwrap_err()
}

#[test]
fn networks_that_do_not_fit_a_task_are_named() {
    let e = refused(Task::Angle, Architecture::MobilenetV1, 10);
    assert_has(
        &e,
        &["--task", "angle", "model.onnx", "expected one output", "found 10"],
    );
    assert!(e.is_usage());
    let e = refused(Task::Scenes, Architecture::MobilenetV1, 10);
    assert_has(
        &e,
        &["--task", "scenes", "expected an output of 30 anchors", "found 10"],
    );
    let e = refused(Task::Classes, Architecture::Ssdlite, 3);
    assert_has(
        &e,
        &["--task", "classes", "one output for each class", "found 30 x 8"],
    );
    let e = refused(Task::Angle, Architecture::Ssdlite, 3);
    assert_has(&e, &["--task", "angle", "expected one output", "found 240"]);
    let e = refused(Task::Scenes, Architecture::Ssdlite, 2);
    assert_has(&e, &["bars.csv", "label 2", "expected 0 to 1"]);
}

#[test]
fn pictures_too_small_for_ssdlite_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let small = Design {
        resolution: 31,
        ..design(Architecture::Ssdlite, 3)
    };
    let e = write(&small, &folder.path().join("net"), None).unwrap_err();
    assert_has(&e, &["--resolution", "expected 32 to 4096", "found 31"]);
}

#[test]
fn momentum_of_an_optimizer_without_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, model) = (bars(folder.path(), 30), small(folder.path()));
    let output = folder.path().join("out");
    let made = std::process::Command::new(env!("CARGO_BIN_EXE_tlite-qat"))
        .args(["train", "--optimizer", "adagrad", "--momentum", "0.5"])
        .args([
            model.as_os_str(),
            "--data".as_ref(),
            csv.as_os_str(),
            "-o".as_ref(),
        ])
        .arg(&output)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&made.stderr);
    assert_eq!(made.status.code(), Some(2), "{text}");
    assert!(
        text.contains("--momentum") && text.contains("adagrad") && text.contains("0.5"),
        "{text}"
    );
    assert!(!output.exists());
}
