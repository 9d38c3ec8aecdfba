//! What several tests use.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transformer_lite_qat::data::{Augmentation, Data, Fit, Normalization};
use transformer_lite_qat::fake::Bits;
use transformer_lite_qat::network::Network;
use transformer_lite_qat::optimizer::Optimizer;
pub use transformer_lite_qat::run::Files;
use transformer_lite_qat::run::Progress;
use transformer_lite_qat::task::Task;
use transformer_lite_qat::train::{Configuration, Folding, Measured, Quantizing, Schedule};

/// A CSV file of pictures of 8 x 8 pixels: a bright bar at a place that the label decides.
pub fn bars(folder: &Path, count: usize) -> PathBuf {
    let mut text = String::new();
    for i in 0..count {
        let label = i % 3;
        for y in 0..8 {
            for x in 0..8 {
                let bright = x / 3 == label;
                let noise = (i * 31 + y * 17 + x * 7) % 60;
                text.push_str(&format!("{},", if bright { 195 + noise } else { noise }));
            }
        }
        text.push_str(&format!("{label}\n"));
    }
    let path = folder.join("bars.csv");
    std::fs::write(&path, text).unwrap();
    path
}

/// A new network for the bars.
pub fn small(folder: &Path) -> PathBuf {
    use transformer_lite_qat::arch::{Activation, Architecture, Design, write};
    let design = Design {
        architecture: Architecture::Resnet8,
        resolution: 8,
        channels: 1,
        classes: 3,
        width: 1.0,
        activation: Activation::Relu,
        seed: 1,
    };
    let output = folder.join("new");
    write(&design, &output, None).unwrap();
    output.join("model.onnx")
}

pub fn load(path: &Path, network: &Network) -> Data {
    Data::load(path, network.picture, network.outputs(), Fit::Exact).unwrap()
}

pub fn quantizing() -> Quantizing {
    Quantizing {
        weights: Bits::EIGHT,
        activations: Bits::EIGHT,
        per_tensor: false,
        folding: Folding::Ema,
        delay: 0.2,
        decay: 0.9,
    }
}

pub fn configuration(network: &Network, quantizing: Option<Quantizing>) -> Configuration {
    Configuration {
        model: "m".to_owned(),
        data: "d".to_owned(),
        task: Task::Classes,
        epochs: 2,
        batch: 16,
        learning_rate: if quantizing.is_some() { 0.005 } else { 0.05 },
        schedule: Schedule::Cosine,
        optimizer: Optimizer::Sgd,
        momentum: 0.9,
        weight_decay: 1e-4,
        seed: 7,
        augmentation: Augmentation {
            flip: false,
            shift: 1,
        },
        normalization: Normalization::none(network.picture[0]),
        quantizing,
    }
}

pub fn files(output: &Path) -> Files {
    Files {
        output: output.to_owned(),
        restart: false,
        every: Duration::from_secs(60),
        log: 5,
        stop_after: None,
    }
}

/// No reports.
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _: u64, _: u64) {}
    fn step(&mut self, _: u64, _: &Measured) {}
    fn line(&mut self, _: &Value) {}
}
