//! Runs of training from end to end, on small networks and pictures.

mod support;

use burn::tensor::Device;
use std::path::Path;
use support::{Silent, bars, configuration, files, load, quantizing, small};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec};
use transformer_lite::unstable::tensor::{DType, HostTensor};
use transformer_lite_qat::Error;
use transformer_lite_qat::arch::{Activation, Architecture, Design, write};
use transformer_lite_qat::checkpoint::State;
use transformer_lite_qat::data::Fit;
use transformer_lite_qat::evaluate::{Integer, Place, Report, evaluate};
use transformer_lite_qat::export::Integers;
use transformer_lite_qat::fake::Bits;
use transformer_lite_qat::network::Network;
use transformer_lite_qat::optimizer::Optimizer;
use transformer_lite_qat::run::{CHECKPOINT, FLOAT, MODEL, run};
use transformer_lite_qat::task::{Score, Task};
use transformer_lite_qat::train::{Folding, Quantizing, Trainer};

/// Trains in floats, then with quantization; returns the folder of the second run.
fn trained(folder: &std::path::Path, quantizing: Quantizing) -> std::path::PathBuf {
    let data = bars(folder, 240);
    let network = Network::open(&small(folder)).unwrap();
    let data = load(&data, &network);
    let (floats, ints) = (folder.join("floats"), folder.join("ints"));
    let c = configuration(&network, None);
    let found = run(&network, &data, c, &Device::flex(), &files(&floats), &mut Silent)
        .unwrap()
        .unwrap();
    assert!(found > 0.9, "float accuracy {found}");
    let network = Network::open(&floats.join(MODEL)).unwrap();
    let c = configuration(&network, Some(quantizing));
    let found = run(&network, &data, c, &Device::flex(), &files(&ints), &mut Silent)
        .unwrap()
        .unwrap();
    assert!(found > 0.9, "accuracy with quantization {found}");
    ints
}

/// Compares the exported file in the engine with the trained network, and exported with fake weights.
fn check(quantizing: Quantizing) {
    let folder = tempfile::tempdir().unwrap();
    let ints = trained(folder.path(), quantizing.clone());
    let network = Network::open(&ints.join(FLOAT)).unwrap();
    let (state, c) = State::load(&ints.join(CHECKPOINT), &network, None, &Device::flex()).unwrap();
    let made = Integers::of(&network, &state, &quantizing).unwrap();
    let exported = made.dequantized(&network).unwrap();
    let fake = network.fake_weights(&made.pass()).unwrap();
    assert_eq!(
        exported.iter().flatten().count(),
        10,
        "9 convolutions and a matmul"
    );
    for (e, f) in exported.iter().zip(&fake) {
        let bits = |v: &Option<Vec<f32>>| {
            v.iter()
                .flatten()
                .map(|x| (x + 0.0).to_bits())
                .collect::<Vec<u32>>()
        };
        assert!(bits(e) == bits(f), "exported and fake-quantized weights differ");
    }
    let mut data = load(&folder.path().join("bars.csv"), &network);
    data.test.truncate(48);
    for (place, integer) in [
        (Place::Cpu, Integer::Float),
        (Place::Reference, Integer::Fixed),
        (Place::Cpu, Integer::Off),
    ] {
        let found = evaluate(
            &ints.join(MODEL),
            Task::Classes,
            &data.test,
            &c.normalization,
            (place, integer),
            Some(&ints),
        )
        .unwrap();
        let agreement = found.trained.unwrap();
        assert!(
            agreement.same_top1.unwrap() >= 0.995,
            "{integer:?}: {agreement:?}"
        );
        assert!(agreement.most_steps.unwrap() <= 2.0, "{integer:?}: {agreement:?}");
    }
    for file in ["metrics.jsonl", "curves.html"] {
        assert!(ints.join(file).is_file(), "{file}");
    }
}

#[test]
fn exported_integers_equal_the_trained_network() {
    check(quantizing());
}

#[test]
fn few_bits_per_tensor_and_frozen_statistics_are_exported() {
    check(Quantizing {
        weights: Bits::try_from(6).unwrap(),
        activations: Bits::try_from(7).unwrap(),
        per_tensor: true,
        folding: Folding::BatchThenFreeze,
        ..quantizing()
    });
}

#[test]
fn an_interrupted_run_ends_with_the_same_bits() {
    for optimizer in [Optimizer::Sgd, Optimizer::Rmsprop, Optimizer::Adagrad] {
        interrupted(optimizer);
    }
}

fn interrupted(optimizer: Optimizer) {
    let folder = tempfile::tempdir().unwrap();
    let data = bars(folder.path(), 100);
    let network = Network::open(&small(folder.path())).unwrap();
    let data = load(&data, &network);
    let mut c = configuration(&network, Some(quantizing()));
    c.optimizer = optimizer;
    c.momentum = optimizer.usual_momentum().unwrap_or(0.0);
    let go = |name: &str, stop_after: Option<u64>| {
        let files = support::Files {
            stop_after,
            ..files(&folder.path().join(name))
        };
        run(&network, &data, c.clone(), &Device::flex(), &files, &mut Silent).unwrap()
    };
    assert!(go("whole", None).is_some());
    for step in [1, 4, 7] {
        assert_eq!(go("broken", Some(step)), None);
        assert!(!folder.path().join("broken").exists());
    }
    let mut file = std::fs::read(folder.path().join(".train-broken").join(CHECKPOINT)).unwrap();
    file.truncate(1 << 16);
    let names = String::from_utf8_lossy(&file);
    let kept = ["momentum.", "square."].map(|prefix| names.contains(prefix));
    let expected = [optimizer != Optimizer::Adagrad, optimizer != Optimizer::Sgd];
    assert_eq!(kept, expected, "{optimizer:?}");
    assert!(go("broken", None).is_some());
    for name in [MODEL, FLOAT, CHECKPOINT] {
        let read = |run: &str| std::fs::read(folder.path().join(run).join(name)).unwrap();
        assert!(read("whole") == read("broken"), "{name} differs");
    }
    let lines = |run: &str| {
        let text = std::fs::read_to_string(folder.path().join(run).join("metrics.jsonl")).unwrap();
        text.lines().count()
    };
    assert_eq!(lines("whole"), lines("broken"));
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_with_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = bars(folder.path(), 100);
    let network = Network::open(&small(folder.path())).unwrap();
    let data = load(&data, &network);
    let mut c = configuration(&network, None);
    c.learning_rate = 1e30;
    let mut trainer = Trainer::new(&network, &data, c, None, Device::flex()).unwrap();
    let failed = (0..10).find_map(|_| trainer.step().err()).unwrap();
    assert!(matches!(failed, Error::NotFinite { step: 2..=4, .. }), "{failed}");
}

/// Trains a task with quantization and compares the exported file with the trained network.
fn agrees(task: Task, make: impl FnOnce(&Path)) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let (csv, new) = (bars(folder.path(), 100), folder.path().join("new"));
    make(&new);
    let network = Network::open(&new).unwrap();
    let path = &network.model.path;
    let data = task.load(&csv, path, network.picture, &network.output, Fit::Exact);
    let data = data.unwrap();
    assert_eq!(data.test.size, network.picture);
    let mut c = configuration(&network, Some(quantizing()));
    c.task = task;
    let out = folder.path().join("out");
    let done = run(
        &network,
        &data,
        c.clone(),
        &Device::flex(),
        &files(&out),
        &mut Silent,
    );
    let found = done.unwrap().unwrap();
    let how = (Place::Cpu, Integer::Float);
    let (model, tests) = (out.join(MODEL), &data.test);
    let report = evaluate(&model, task, tests, &c.normalization, how, Some(&out)).unwrap();
    let agreement = report.trained.clone().unwrap();
    assert!(agreement.most_steps.unwrap() <= 2.0, "{agreement:?}");
    assert_eq!(agreement.same_top1, None);
    assert!(
        (agreement.trained_score - found).abs() < 1e-9,
        "{agreement:?}, {found}"
    );
    let other = evaluate(&model, Task::Classes, tests, &c.normalization, how, Some(&out));
    let text = other.unwrap_err().to_string();
    let parts = [
        "--trained",
        "expected a run of the task classes",
        &format!("found {task}"),
    ];
    assert!(parts.iter().all(|p| text.contains(p)), "{text}");
    report
}

#[test]
fn exported_angles_equal_the_trained_network() {
    let design = Design {
        architecture: Architecture::Resnet8,
        resolution: 32,
        channels: 1,
        classes: 1,
        width: 1.0,
        activation: Activation::Relu6,
        seed: 1,
    };
    let report = agrees(Task::Angle, |new| {
        write(&design, new, None).unwrap();
    });
    let Score::Angle { mean_error, .. } = report.score else {
        panic!("{report:?}")
    };
    assert!(mean_error < 45.0, "{report:?}");
}

/// A network for scenes of 32 x 32 pixels with 3 classes: two layers for each feature map.
fn shallow(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    let mut w = ModelWriter::without_data(Stage::Convert, folder, "model.onnx", "g");
    w.opset("", 17);
    let size = ["batch".into(), 1.into(), 32.into(), 32.into()];
    w.add_input("x", DType::F32, &size).unwrap();
    w.add_output("y", DType::F32, &["batch".into(), 30.into(), 8.into()])
        .unwrap();
    let mut node = |op: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attr)]| {
        let (name, outputs) = (format!("{output}.node"), [output]);
        let spec = NodeSpec {
            domain: "",
            op,
            name: &name,
            inputs,
            outputs: &outputs,
            attributes,
        };
        w.add_node(spec).unwrap();
    };
    let mut constants = Vec::new();
    for (map, stride, anchors) in [("a", 16, 24), ("b", 32, 6)] {
        let n = |part: &str| format!("{map}.{part}");
        let side = usize::try_from(stride).unwrap();
        for (weights, shape) in [("w1", [8, 1, side, side]), ("w2", [48, 8, 1, 1])] {
            let count = shape.iter().product();
            let values: Vec<f32> = (0..count)
                .map(|i| ((i * 37 % 101) as f32 - 50.0) / 500.0)
                .collect();
            constants.push((n(weights), HostTensor::from_f32(&shape, &values).unwrap()));
        }
        let shape = HostTensor::from_ints(DType::I64, &[3], &[0, anchors, 8]).unwrap();
        constants.push((n("shape"), shape));
        let strides = [("strides", Attr::Ints(vec![stride; 2]))];
        node("Conv", &["x", &n("w1")], &n("conv"), &strides);
        node("Relu", &[&n("conv")], &n("relu"), &[]);
        node("Conv", &[&n("relu"), &n("w2")], &n("head"), &[]);
        let order = [("perm", Attr::Ints(vec![0, 2, 3, 1]))];
        node("Transpose", &[&n("head")], &n("last"), &order);
        node("Reshape", &[&n("last"), &n("shape")], &n("rows"), &[]);
    }
    node("Concat", &["a.rows", "b.rows"], "y", &[("axis", Attr::Int(1))]);
    for (name, tensor) in &constants {
        w.add_constant(name, tensor).unwrap();
    }
    w.finish().unwrap();
}

#[test]
fn exported_boxes_equal_the_trained_network() {
    let report = agrees(Task::Scenes, shallow);
    let Score::Scenes { map, ap50 } = report.score else {
        panic!("{report:?}")
    };
    assert!((0.0..=1.0).contains(&map) && map <= ap50, "{report:?}");
}

#[test]
fn all_layers_of_ssdlite_have_integers() {
    let folder = tempfile::tempdir().unwrap();
    let design = Design {
        architecture: Architecture::Ssdlite,
        resolution: 96,
        channels: 1,
        classes: 3,
        width: 0.25,
        activation: Activation::Relu6,
        seed: 1,
    };
    let new = folder.path().join("new");
    write(&design, &new, None).unwrap();
    let network = Network::open(&new.join(MODEL)).unwrap();
    assert_eq!(network.output, [270, 8]);
    let layers = &network.model.placement.layers;
    let count = |kind: &str| layers.iter().filter(|l| l.kind.name() == kind).count();
    // Two convolutions in each of 13 blocks and 2 heads, and one before; a transposition and a
    // change of shape in each head.
    assert_eq!((count("product"), count("move")), (31, 4));
}
