//! Runs of training from end to end, on small networks and pictures.

mod support;

use burn::tensor::Device;
use support::{Silent, bars, configuration, files, load, quantizing, small};
use transformer_lite_qat::Error;
use transformer_lite_qat::checkpoint::State;
use transformer_lite_qat::evaluate::{Integer, Place, evaluate};
use transformer_lite_qat::export::Integers;
use transformer_lite_qat::fake::Bits;
use transformer_lite_qat::network::Network;
use transformer_lite_qat::optimizer::Optimizer;
use transformer_lite_qat::run::{CHECKPOINT, FLOAT, MODEL, run};
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
            &data.test,
            &c.normalization,
            (place, integer),
            Some(&ints),
        )
        .unwrap();
        let agreement = found.trained.unwrap();
        assert!(agreement.same_top1 >= 0.995, "{integer:?}: {agreement:?}");
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
