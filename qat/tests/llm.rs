//! Distillation of tiny decoders.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transformer_lite::unstable::llm::load::{Loaded, Purpose};
use transformer_lite::unstable::num::random_uniform;
use transformer_lite::unstable::quant::{Bits, Method};
use transformer_lite::unstable::tensor::DType;
use transformer_lite::{BackendChoice, LoadOptions, ModelFolder};
use transformer_lite_convert::decoders::{Form, QWEN25, SMOLLM2, Spec, write};
use transformer_lite_convert::quantize::{Options, quantize};
use transformer_lite_qat::llm::decoder::{Decoder, Values, tensors, tokens};
use transformer_lite_qat::llm::distill::{self, Job, Progress};
use transformer_lite_qat::llm::grid::{Grid, Start};
use transformer_lite_qat::llm::loss::{Loss, cross_entropy, divergence};
use transformer_lite_qat::llm::student::{Configuration, Measured, Quantizing};
use transformer_lite_qat::llm::text::{self, Settings};
use transformer_lite_qat::network::numbers;
use transformer_lite_qat::run::Files;
use transformer_lite_qat::{Error, Result};

const GROUP: usize = 32;
const LENGTH: usize = 12;

fn untied() -> Spec {
    Spec::find("llama2-7b").unwrap()
}

/// A decoder with random weights.
fn model(folder: &Path, spec: &Spec) -> PathBuf {
    let path = folder.join("float");
    std::fs::create_dir(&path).unwrap();
    write(&spec.clone().small(), Form::Float(DType::F32), Some(7), &path).unwrap();
    path
}

fn engine(folder: &Path, ids: &[u32]) -> Vec<f32> {
    let mut options = LoadOptions {
        context: Some(32),
        ..LoadOptions::default()
    };
    options.place.backend = BackendChoice::Reference;
    let folder = ModelFolder::holding("model", folder, &[]).unwrap();
    let loaded = Loaded::new(&folder, &options, Purpose::Evaluation, &mut |_| {}).unwrap();
    loaded.model().unwrap().forward_all(ids).unwrap()
}

fn burn(decoder: &Decoder, values: &Values, ids: &[u32]) -> Vec<f32> {
    let device = Device::flex();
    let weights = tensors(&decoder.parameters, values, &device);
    let positions = decoder.positions(ids.len(), &device);
    numbers(decoder.forward(&weights, tokens(&[ids], &device), &positions)).unwrap()
}

fn most_apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn noise(count: usize, seed: u64) -> Vec<f32> {
    (0..count)
        .map(|i| random_uniform(seed, i as u64, 24) as f32 - 0.5)
        .collect()
}

fn sequences(count: usize) -> Vec<Vec<u32>> {
    let token = |i: usize, j: usize| (random_uniform(i as u64, j as u64, 24) * 128.0) as u32;
    (0..count)
        .map(|i| (0..=LENGTH).map(|j| token(i, j)).collect())
        .collect()
}

const IDS: [u32; 10] = [1, 127, 5, 5, 64, 33, 0, 99, 12, 7];

#[test]
fn logits_are_those_of_the_engine() {
    for spec in [SMOLLM2, QWEN25, untied()] {
        let dir = tempfile::tempdir().unwrap();
        let folder = model(dir.path(), &spec);
        let (decoder, values) = Decoder::open(&folder).unwrap();
        let apart = most_apart(&engine(&folder, &IDS), &burn(&decoder, &values, &IDS));
        assert!(apart < 1e-4, "{}: {apart}", spec.name);
        distill::check(&folder, &decoder, &values, &Device::flex()).unwrap();
    }
}

#[test]
fn sequences_of_a_batch_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let (decoder, values) = Decoder::open(&model(dir.path(), &SMOLLM2)).unwrap();
    let device = Device::flex();
    let weights = tensors(&decoder.parameters, &values, &device);
    let positions = decoder.positions(LENGTH + 1, &device);
    let all = sequences(3);
    let parts: Vec<&[u32]> = all.iter().map(Vec::as_slice).collect();
    let together = numbers(decoder.forward(&weights, tokens(&parts, &device), &positions)).unwrap();
    let alone: Vec<f32> = all.iter().flat_map(|s| burn(&decoder, &values, s)).collect();
    assert!(most_apart(&together, &alone) < 1e-5);
}

#[test]
fn fake_weights_are_what_the_engine_decodes() {
    let dir = tempfile::tempdir().unwrap();
    let (decoder, mut values) = Decoder::open(&model(dir.path(), &QWEN25)).unwrap();
    let device = Device::flex();
    for bits in [Bits::Four, Bits::Three] {
        let start = Start::fit(&decoder, values.clone(), bits, GROUP, Method::Mse).unwrap();
        // Weights far from where ranges were chosen, some of them outside.
        for (i, v) in values.iter_mut().enumerate() {
            let count = v.len();
            v.iter_mut()
                .zip(noise(count, i as u64))
                .for_each(|(v, n)| *v += 0.2 * n);
        }
        let mut quantized = 0;
        for ((p, v), grid) in decoder.parameters.iter().zip(&values).zip(&start.grids) {
            let Some((layout, pairs)) = grid else { continue };
            quantized += 1;
            let packed = layout.pack(v, pairs).unwrap();
            let on_device = Grid::new(*layout, pairs, &device);
            let w = Tensor::<2>::from_data(TensorData::new(v.clone(), p.shape), &device);
            let found = numbers(on_device.fake(w.clone())).unwrap();
            let clipped = numbers(on_device.fake(on_device.clip(w))).unwrap();
            for (at, (found, clipped)) in found.iter().zip(&clipped).enumerate() {
                let [r, c] = [at / p.shape[1], at % p.shape[1]];
                let expected = if layout.transposed {
                    packed.get(c, r)
                } else {
                    packed.get(r, c)
                };
                assert_eq!(*found, expected, "{} at {r}, {c}", p.name);
                assert_eq!(*clipped, expected, "{} at {r}, {c}, clipped", p.name);
            }
        }
        assert_eq!(quantized, 15);
    }
}

#[test]
fn gradients_of_losses_are_those_of_autodiff() {
    let device = Device::flex();
    let tensor =
        |seed| Tensor::<2>::from_data(TensorData::new(noise(60, seed), [6, 10]), &device).mul_scalar(6.0);
    let compare = |loss: Loss, value: Tensor<1>, x: &Tensor<2>| {
        let sums = numbers(loss.sums).unwrap();
        assert!((sums[0] - numbers(value.clone().inner()).unwrap()[0]).abs() < 1e-4);
        let expected = x.grad(&value.backward()).unwrap();
        assert!(most_apart(&numbers(expected).unwrap(), &numbers(loss.gradient).unwrap()) < 1e-5);
    };
    let leaf = || tensor(1).autodiff().require_grad();
    let (x, t, c) = (leaf(), tensor(2), 0.3);
    let (log_s, log_t) = (log_softmax(x.clone(), 1), log_softmax(t.clone(), 1));
    let reverse = (log_s.clone().exp() * (log_s.clone() - log_t.clone())).sum();
    let forward = (log_t.clone().exp() * (log_t - log_s)).sum();
    let value = reverse.mul_scalar(c) + forward.mul_scalar(1.0 - c);
    compare(divergence(x.clone().inner(), t, c), value, &x);
    let (x, next) = (leaf(), tokens(&[&[3, 0, 9, 9, 1, 4]], &device));
    let value = log_softmax(x.clone(), 1)
        .gather(1, next.clone().reshape([6, 1]))
        .neg()
        .sum();
    compare(cross_entropy(x.clone().inner(), next), value, &x);
}

/// Keeps the lines of metrics.
#[derive(Default)]
struct Lines(Vec<Value>);

impl Progress for Lines {
    fn begin(&mut self, _: u64, _: u64) {}
    fn step(&mut self, _: u64, _: &Measured) {}
    fn line(&mut self, line: &Value) {
        self.0.push(line.clone());
    }
}

struct Setup {
    _dir: tempfile::TempDir,
    folder: PathBuf,
    root: PathBuf,
    decoder: Decoder,
    values: Values,
    start: Start,
    sequences: Vec<Vec<u32>>,
}

impl Setup {
    fn new(spec: &Spec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = model(dir.path(), spec);
        let (decoder, values) = Decoder::open(&folder).unwrap();
        let start = Start::fit(&decoder, values.clone(), Bits::Four, GROUP, Method::Mse).unwrap();
        std::fs::write(folder.join("config.json"), "{}").unwrap();
        let root = dir.path().to_owned();
        Self {
            _dir: dir,
            folder,
            root,
            decoder,
            values,
            start,
            sequences: sequences(20),
        }
    }

    fn configuration(&self) -> Configuration {
        Configuration {
            model: distill::model_checksum(&self.folder, &self.values).unwrap(),
            text: distill::text_checksum(&self.sequences),
            distilled: true,
            quantizing: Some(Quantizing {
                bits: 4,
                group_size: GROUP,
                start: "mse".to_owned(),
            }),
            steps: 20,
            batch: 5,
            length: LENGTH,
            learning_rate: 2e-4,
            seed: 1,
            held_out: 4,
        }
    }

    fn files(&self, name: &str) -> Files {
        let output = self.root.join(name);
        Files {
            output,
            restart: false,
            every: Duration::from_secs(60),
            log: 5,
            stop_after: None,
        }
    }

    fn run(&self, configuration: Configuration, files: &Files) -> Result<(Option<Value>, Vec<Value>)> {
        let job = Job {
            model: &self.folder,
            decoder: &self.decoder,
            values: &self.values,
            start: &self.start,
            sequences: &self.sequences,
            at_once: 2,
        };
        let mut lines = Lines::default();
        Ok((
            distill::run(&job, configuration, &Device::flex(), files, &mut lines)?,
            lines.0,
        ))
    }
}

#[test]
fn divergence_falls_and_the_engine_computes_the_result() {
    // Tied weights would make random models certain of repeating the last token.
    let setup = Setup::new(&untied());
    let files = setup.files("out");
    let (returned, lines) = setup.run(setup.configuration(), &files).unwrap();
    let number = |line: &Value, key: &str| line[key].as_f64().unwrap();
    let (first, last) = (lines.first().unwrap(), lines.last().unwrap());
    assert_eq!((lines.len(), number(last, "step")), (5, 20.0));
    let [before, after] = [first, last].map(|l| number(l, "held_out_kl"));
    assert!(after < 0.8 * before, "{before} {after}");
    assert_eq!(returned.as_ref(), Some(last));
    assert!(files.output.join("config.json").exists() && files.output.join("metrics.jsonl").exists());
    assert_eq!(
        std::fs::read_dir(&setup.root).unwrap().count(),
        2,
        "no temporary folder remains"
    );

    // What was measured is what the engine computes.
    let trained = Start::read(&files.output, &setup.decoder, Bits::Four, GROUP).unwrap();
    let scales = |s: &Start| {
        s.grids
            .iter()
            .flatten()
            .map(|(_, pairs)| pairs.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(scales(&trained), scales(&setup.start));
    let apart = most_apart(
        &engine(&files.output, &IDS),
        &burn(&setup.decoder, &trained.values, &IDS),
    );
    assert!(apart < 1e-3, "{apart}");
    let mut kl = 0.0;
    for s in &setup.sequences[16..] {
        let [t, s] = [&setup.folder, &files.output].map(|f| engine(f, &s[..LENGTH]));
        let softmax = |row: &[f32]| {
            let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
            row.iter().map(|v| f64::from(*v) - sum.ln()).collect::<Vec<_>>()
        };
        for (t, s) in t.chunks(128).zip(s.chunks(128)) {
            let (t, s) = (softmax(t), softmax(s));
            kl += t.iter().zip(&s).map(|(t, s)| t.exp() * (t - s)).sum::<f64>() / (4 * LENGTH) as f64;
        }
    }
    assert!((kl / after - 1.0).abs() < 0.01, "{kl} {after}");
}

#[test]
fn resumed_run_ends_with_the_same_bits() {
    let setup = Setup::new(&SMOLLM2);
    let configuration = Configuration {
        steps: 6,
        ..setup.configuration()
    };
    let whole = setup.files("whole");
    setup.run(configuration.clone(), &whole).unwrap();
    let files = setup.files("parts");
    let stopped = Files {
        stop_after: Some(3),
        ..files.clone()
    };
    assert!(setup.run(configuration.clone(), &stopped).unwrap().0.is_none());
    assert!(!files.output.exists());

    let other = Configuration {
        learning_rate: 1.0,
        ..configuration.clone()
    };
    let error = setup.run(other, &files).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("learning_rate was 0.0002 and is now 1"),
        "{error}"
    );
    let checkpoint = setup.root.join(".distill-parts/checkpoint.safetensors");
    let bytes = std::fs::read(&checkpoint).unwrap();
    std::fs::write(&checkpoint, &bytes[..bytes.len() / 2]).unwrap();
    let error = setup.run(configuration.clone(), &files).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { .. }), "{error}");
    std::fs::write(&checkpoint, bytes).unwrap();

    setup.run(configuration, &files).unwrap();
    for name in ["model.onnx", "model.onnx.data"] {
        let [a, b] = [&whole, &files].map(|f| std::fs::read(f.output.join(name)).unwrap());
        assert!(a == b, "{name}");
    }
}

#[test]
fn floats_are_trained_on_a_text() {
    let setup = Setup::new(&QWEN25);
    let configuration = Configuration {
        distilled: false,
        quantizing: None,
        ..setup.configuration()
    };
    let files = setup.files("out");
    let (_, lines) = setup.run(configuration, &files).unwrap();
    let loss = |l: &Value| l["loss"].as_f64();
    let (first, last) = (loss(&lines[1]).unwrap(), loss(lines.last().unwrap()).unwrap());
    assert!(last < first, "{first} {last}");
    let (decoder, values) = Decoder::open(&files.output).unwrap();
    assert!(values != setup.values);
    let apart = most_apart(&engine(&files.output, &IDS), &burn(&decoder, &values, &IDS));
    assert!(apart < 1e-4, "{apart}");
}

#[test]
fn runs_start_from_quantized_folders() {
    let setup = Setup::new(&QWEN25);
    let folder = setup.root.join("rtn");
    let options = Options {
        group_size: GROUP,
        method: Method::Rtn,
        ..Options::default()
    };
    quantize(&setup.folder, &folder, &options, &mut |_| {}).unwrap();
    let read = Start::read(&folder, &setup.decoder, Bits::Four, GROUP).unwrap();
    let fit = Start::fit(
        &setup.decoder,
        setup.values.clone(),
        Bits::Four,
        GROUP,
        Method::Rtn,
    )
    .unwrap();
    assert_eq!(read.grids, fit.grids);
    for ((grid, w), exact) in read.grids.iter().zip(&read.values).zip(&setup.values) {
        match grid {
            Some((layout, pairs)) => assert_eq!(layout.pack(w, pairs), layout.pack(exact, pairs)),
            None => assert_eq!(w, exact),
        }
    }
    let error = Start::read(&folder, &setup.decoder, Bits::Four, 64)
        .unwrap_err()
        .to_string();
    assert!(error.contains("expected E0M8, groups of 64, found"), "{error}");
    let error = Start::read(&setup.folder, &setup.decoder, Bits::Four, GROUP)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("\"model.embed_tokens.weight\": expected E0M8, groups of 32"),
        "{error}"
    );
}

#[test]
fn unusable_models_and_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path(), &Spec::find("gemma-2b").unwrap());
    let error = Decoder::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("Gelu") && error.contains("/model/layers.0/mlp/act_fn/Gelu"),
        "{error}"
    );
    let setup = Setup::new(&SMOLLM2);
    let quantized = setup.root.join("quantized");
    quantize(&setup.folder, &quantized, &Options::default(), &mut |_| {}).unwrap();
    let error = Decoder::open(&quantized).unwrap_err().to_string();
    assert!(error.contains("the model is quantized"), "{error}");
    assert!(matches!(
        Decoder::open(&setup.root.join("none")),
        Err(Error::Io { .. })
    ));

    // A decoder that computes something else.
    let mut other = setup.values.clone();
    other[0].iter_mut().for_each(|v| *v *= 1.5);
    let error = distill::check(&setup.folder, &setup.decoder, &other, &Device::flex()).unwrap_err();
    assert!(error.to_string().contains("logits differ by"), "{error}");

    let many = Configuration {
        held_out: 20,
        ..setup.configuration()
    };
    let error = setup.run(many, &setup.files("out")).unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains("--held-out"),
        "{error}"
    );

    let file = setup.root.join("text.jsonl");
    let settings = Settings {
        model: "m".to_owned(),
        sequences: 1,
        tokens: 2,
        seed: 0,
    };
    let read = |text: &str, settings: &Settings| {
        std::fs::write(&file, text).unwrap();
        text::teacher(&setup.folder, &file, settings, &mut |_| {})
    };
    let good =
        "{\"settings\":{\"model\":\"m\",\"sequences\":1,\"tokens\":2,\"seed\":0}}\n{\"tokens\":[1,2]}\n";
    assert_eq!(read(good, &settings).unwrap(), [[1, 2]]);
    let error = read(
        good,
        &Settings {
            seed: 5,
            ..settings.clone()
        },
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("is of other options"), "{error}");
    for text in ["", "{}\n", &good[..good.len() - 4], &good.replace("[1,2]", "[1]")] {
        assert!(matches!(read(text, &settings), Err(Error::Data { .. })), "{text}");
    }
}

#[test]
fn infinite_loss_stops_with_the_step() {
    let setup = Setup::new(&SMOLLM2);
    let configuration = Configuration {
        learning_rate: 1e30,
        quantizing: None,
        ..setup.configuration()
    };
    let error = setup.run(configuration, &setup.files("out")).unwrap_err();
    assert!(matches!(error, Error::NotFinite { step: 2..=3, .. }), "{error}");
}
