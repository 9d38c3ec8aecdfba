use super::*;
use crate::calibrate::tests::node;
use crate::calibrate::{GptqMethods, Opener, Progress};
use crate::quantize::{self, Options, Summary, quantize_with};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tlite_testing::onnx::read_back::make_input;
use transformer_lite::unstable::graph::derive::derive;
use transformer_lite::unstable::graph::interp::Interpreter;
use transformer_lite::unstable::graph::onnx::import;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter};
use transformer_lite::unstable::llm::LanguageModel;
use transformer_lite::unstable::llm::engine::Observe;
use transformer_lite::unstable::llm::perplexity::Text;
use transformer_lite::unstable::tensor::{DType, HostTensor};

const K: usize = 64;
const INNER: usize = 96;

/// Tells rows of which every fifth element is large.
struct Uneven(Vec<usize>);

impl LanguageModel for Uneven {
    fn vocab(&self) -> usize {
        1
    }
    fn context(&self) -> usize {
        8
    }
    fn len(&self) -> usize {
        0
    }
    fn forward(&mut self, _: &[u32], _: &mut Vec<f32>) -> Result<()> {
        Ok(())
    }
    fn forward_all(&mut self, _: &[u32]) -> Result<Vec<f32>> {
        Ok(vec![])
    }
    fn truncate(&mut self, _: usize) -> usize {
        0
    }
}

fn uneven(rows: usize, k: usize) -> Vec<f32> {
    let size = |i: usize| if i.is_multiple_of(5) { 30.0 } else { 1.0 };
    (0..rows * k)
        .map(|at| (at as f32 * 1.7).sin() * size(at % k))
        .collect()
}

impl Observe for Uneven {
    fn observe(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
        for (i, k) in self.0.iter().enumerate() {
            take(i, &uneven(tokens.len() * 20, *k))?;
        }
        Ok(())
    }
}

/// Where a constant of the model is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Initializer,
    /// It may be given by the caller, too.
    InitializerAndInput,
    Node,
}

/// `x * norm`, a gated product of it with `gate` and `up`, and the product of that with `down`.
struct Gated {
    norm: Place,
    norm_type: DType,
    up: Place,
    /// Columns of `down`, and of a third product of what the norm makes.
    outer: usize,
    extra: usize,
}

const PLAIN: Gated = Gated {
    norm: Place::Initializer,
    norm_type: DType::F32,
    up: Place::Initializer,
    outer: 34,
    extra: 32,
};

fn wave(shape: &[usize], by: f32) -> HostTensor {
    let data: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|i| (i as f32 * by).sin() + 0.1)
        .collect();
    HostTensor::from_f32(shape, &data).unwrap()
}

impl Gated {
    fn write(&self, folder: &Path) {
        let mut w = ModelWriter::create(Stage::Convert, folder, "model.onnx", "g").unwrap();
        w.opset("", 18);
        w.add_input("x", DType::F32, &["n".into(), K.into()]).unwrap();
        w.add_output("y", DType::F32, &["n".into(), self.outer.into()])
            .unwrap();
        w.add_output("z", DType::F32, &["n".into(), self.extra.into()])
            .unwrap();
        let norm: Vec<f32> = (0..K).map(|i| 0.5 + (i % 7) as f32 * 0.25).collect();
        let norm = HostTensor::from_floats(self.norm_type, &[K], &norm).unwrap();
        for (name, place, tensor) in [
            ("norm", self.norm, norm),
            ("gate", Place::Initializer, wave(&[K, INNER], 0.37)),
            ("up", self.up, wave(&[K, INNER], 0.77)),
            ("down", Place::Initializer, wave(&[INNER, self.outer], 0.53)),
            ("extra", Place::Initializer, wave(&[K, self.extra], 0.91)),
        ] {
            if place == Place::Node {
                let attributes = &[("value", Attr::Tensor(tensor))];
                node(&mut w, "Constant", &[], name, attributes);
                continue;
            }
            w.add_initializer(name, &tensor).unwrap();
        }
        let mut norm = "norm";
        if self.norm_type != DType::F32 {
            node(&mut w, "Cast", &["norm"], "wide", &[("to", Attr::Int(1))]);
            norm = "wide";
        }
        node(&mut w, "Mul", &["x", norm], "h", &[]);
        node(&mut w, "MatMul", &["h", "gate"], "g", &[]);
        node(&mut w, "Sigmoid", &["g"], "s", &[]);
        node(&mut w, "MatMul", &["h", "up"], "u", &[]);
        node(&mut w, "Mul", &["s", "u"], "m", &[]);
        node(&mut w, "MatMul", &["m", "down"], "y", &[]);
        node(&mut w, "MatMul", &["h", "extra"], "z", &[]);
        w.finish().unwrap();
        for (name, place) in [("norm", self.norm), ("up", self.up)] {
            if place == Place::InitializerAndInput {
                make_input(&folder.join("model.onnx"), name);
            }
        }
    }
}

fn result(folder: &Path) -> Vec<f32> {
    let mut graph = import(&folder.join("model.onnx")).unwrap();
    derive(&mut graph).unwrap();
    let x = graph.input("x").unwrap();
    let outputs = ["y", "z"].map(|name| graph.output(name).unwrap());
    let rows = HostTensor::from_f32(&[6, K], &uneven(6, K)).unwrap();
    let made = Interpreter::new(Arc::new(graph))
        .unwrap()
        .run(HashMap::from([(x, rows)]));
    let made = made.unwrap();
    // Each as a part of its own size, so that none is lost beside the other.
    let relative = |v: &transformer_lite::unstable::graph::ValueId| {
        let found = made[v].to_f32().unwrap().into_owned();
        let size = found.iter().map(|v| v * v).sum::<f32>().sqrt();
        (found, size)
    };
    outputs
        .iter()
        .flat_map(|v| {
            let (found, size) = relative(v);
            found.into_iter().map(move |v| v / size.max(1.0))
        })
        .collect()
}

/// Calls `work` with a calibration of the model in a folder, and tells how often the model was
/// opened.
fn calibrated<T>(
    input: &Path,
    (place, budget): (&str, usize),
    work: impl FnOnce(&Calibration<'_>, &Products<'_>) -> T,
) -> (T, usize) {
    let graph = import(&input.join("model.onnx")).unwrap();
    let products = Products::of(&graph);
    let opened = AtomicUsize::new(0);
    let open = |names: &[String]| -> Result<Box<dyn Observe>> {
        opened.fetch_add(1, Ordering::Relaxed);
        let k = |name: &String| products.all().iter().find(|p| p.input == *name).unwrap().k;
        Ok(Box::new(Uneven(names.iter().map(k).collect())))
    };
    let text = Text {
        tokens: vec![1, 2, 3, 4],
        start: vec![],
    };
    let quiet = |_: Progress| ();
    let open: &Opener<'_> = &open;
    let calibration = Calibration::new(&text, 8, 4, place, open, &quiet).unwrap();
    let made = work(&calibration.with_budget(budget), &products);
    (made, opened.into_inner())
}

/// Where nothing is, with room for all Hessians.
const ANYWHERE: (&str, usize) = ("nowhere", 1 << 30);

/// Quantizes with AWQ; tells how often the model was opened.
fn quantized(input: &Path, output: &Path, budget: usize, options: &Options) -> (Result<Summary>, usize) {
    calibrated(input, ("nowhere", budget), |calibration, products| {
        let mut methods = AwqMethods::new(calibration, products, Method::Mse);
        quantize_with(input, output, options, &mut methods, &mut |_| ())
    })
}

/// Ends a run when the weight `name` is begun.
fn ended_at(name: &str, run: impl FnOnce(&mut dyn FnMut(quantize::Progress<'_>)) -> Result<Summary>) {
    let call = std::panic::AssertUnwindSafe(|| {
        run(&mut |p| {
            if p.tensor == name {
                std::panic::resume_unwind(Box::new("ended"));
            }
        })
    });
    assert!(std::panic::catch_unwind(call).is_err());
}

/// The relative change of the result by AWQ, and whether the norm and `up` are scaled.
fn change(model: &Gated, options: &Options) -> (f64, Summary, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let [input, output] = ["in", "out"].map(|f| dir.path().join(f));
    std::fs::create_dir(&input).unwrap();
    model.write(&input);
    let summary = quantized(&input, &output, 1 << 30, options).0.unwrap();
    let (given, found) = (result(&input), result(&output));
    let square = |v: f32| f64::from(v) * f64::from(v);
    let off: f64 = given.iter().zip(&found).map(|(a, b)| square(a - b)).sum();
    let all: f64 = given.iter().map(|a| square(*a)).sum();
    ((off / all).sqrt(), summary, dir)
}

fn options(bits: transformer_lite::unstable::quant::Bits) -> Options {
    Options {
        bits,
        head_bits: bits,
        group_size: 32,
        ..Options::default()
    }
}

/// The norm's weight in a model folder.
fn norm(folder: &Path) -> Vec<f32> {
    let graph = import(&folder.join("model.onnx")).unwrap();
    let fact = graph.value(graph.find("norm").unwrap()).fact.clone().unwrap();
    fact.as_const().unwrap().to_f32().unwrap().into_owned()
}

#[test]
fn folding_keeps_the_model() {
    use transformer_lite::unstable::quant::Bits::Eight;
    let scaled = |dir: &tempfile::TempDir| norm(&dir.path().join("in")) != norm(&dir.path().join("out"));
    let (off, _, dir) = change(&PLAIN, &options(Eight));
    assert!(off < 0.03 && scaled(&dir), "{off}");
    let half = Gated {
        norm_type: DType::BF16,
        ..PLAIN
    };
    // The vector is read through a cast, which does not produce the products' input.
    assert!(change(&half, &options(Eight)).0 < 0.03);
    // A weight that stays what it is; a norm that cannot be divided; a weight that is none of the
    // file's initialisers.
    for (what, model, scales) in [
        (
            "the last has an odd number of columns",
            Gated { outer: 33, ..PLAIN },
            true,
        ),
        (
            "another product has an odd number of columns",
            Gated { extra: 33, ..PLAIN },
            false,
        ),
        (
            "the norm is a node",
            Gated {
                norm: Place::Node,
                ..PLAIN
            },
            false,
        ),
        (
            "a weight is a node",
            Gated {
                up: Place::Node,
                ..PLAIN
            },
            false,
        ),
        (
            "the norm is an input",
            Gated {
                norm: Place::InitializerAndInput,
                ..PLAIN
            },
            false,
        ),
        (
            "a weight is an input",
            Gated {
                up: Place::InitializerAndInput,
                ..PLAIN
            },
            false,
        ),
    ] {
        let (off, _, dir) = change(&model, &options(Eight));
        assert!(off < 0.03, "{what}: {off}");
        assert_eq!(scaled(&dir), scales, "{what}");
    }
}

#[test]
fn scaling_helps_and_errors_are_those_of_the_weights() {
    let four = options(transformer_lite::unstable::quant::Bits::Four);
    let (awq, summary, dir) = change(&PLAIN, &four);
    // The same method without scaling, errors weighed by the same squares.
    let [input, output] = ["in", "weighted"].map(|f| dir.path().join(f));
    calibrated(&input, ANYWHERE, |calibration, products| {
        let mut methods = WeightedMethods::new(calibration, products, Method::Mse);
        quantize_with(&input, &output, &four, &mut methods, &mut |_| ()).unwrap();
    });
    let (given, found) = (result(&input), result(&output));
    let square = |v: f32| f64::from(v) * f64::from(v);
    let off: f64 = given.iter().zip(&found).map(|(a, b)| square(a - b)).sum();
    let weighted = (off / given.iter().map(|a| square(*a)).sum::<f64>()).sqrt();
    assert!(awq < 0.95 * weighted, "{awq} of {weighted}");
    // Errors of scaled weights are told as those of the weights: of 16 levels, not times the
    // factors.
    for w in &summary.weights {
        let ratio = w.mae / w.mae_int4.unwrap();
        assert!((0.7..3.0).contains(&ratio) && w.relative_error < 0.3, "{w:?}");
    }
}

#[test]
fn a_run_that_goes_on_does_not_calibrate_again_and_batches_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    std::fs::create_dir(&input).unwrap();
    PLAIN.write(&input);
    let options = options(transformer_lite::unstable::quant::Bits::Four);
    let bytes = |name: &str| std::fs::read(dir.path().join(name).join("model.onnx.data")).unwrap();
    let (made, opened) = quantized(&input, &dir.path().join("whole"), 1 << 30, &options);
    made.unwrap();
    assert_eq!(opened, 2, "once for the squares, once for all Hessians");
    let (made, opened) = quantized(&input, &dir.path().join("pieces"), 1, &options);
    made.unwrap();
    assert_eq!(opened, 3, "a run for each of two inputs");
    assert!(bytes("whole") == bytes("pieces"));
    // A folder in the way is found before anything is run.
    let (made, opened) = quantized(&input, &dir.path().join("whole"), 1 << 30, &options);
    assert!(made.unwrap_err().is_usage() && opened == 0);
    // What a run that was ended found out is there for the next, unless it has other options.
    let parts = dir.path().join(".quantize-again/parts");
    let again = dir.path().join("again");
    std::fs::create_dir_all(dir.path().join(".quantize-again")).unwrap();
    calibrated(&input, ANYWHERE, |calibration, products| {
        let mut methods = AwqMethods::new(calibration, products, Method::Mse);
        ended_at("down", |progress| {
            quantize_with(&input, &again, &options, &mut methods, progress)
        });
    });
    assert!(parts.join("squares.json").exists() && parts.join("factors-1.json").exists());
    let (made, opened) = quantized(&input, &again, 1 << 30, &options);
    assert_eq!((made.unwrap().resumed, opened), (2, 0), "gate and up");
    assert!(bytes("whole") == bytes("again"));
}

#[test]
fn what_gptq_made_is_of_one_model_and_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let [input, output] = ["in", "out"].map(|f| dir.path().join(f));
    std::fs::create_dir(&input).unwrap();
    let options = options(transformer_lite::unstable::quant::Bits::Four);
    let gptq = |place: &str, progress: &mut dyn FnMut(quantize::Progress<'_>)| {
        let (made, _) = calibrated(&input, (place, 1 << 30), |calibration, products| {
            let mut methods = GptqMethods::new(calibration, products, Method::Mse);
            quantize_with(&input, &output, &options, &mut methods, progress)
        });
        made
    };
    let resumed = |place: &str| {
        let summary = gptq(place, &mut |_| ()).unwrap();
        std::fs::remove_dir_all(&output).unwrap();
        summary.resumed
    };
    for (model, place, wanted) in [
        (PLAIN, "a device", 2),
        (PLAIN, "another device", 0),
        // The weights that were finished are the same, what comes to them is not.
        (
            Gated {
                norm: Place::Node,
                ..PLAIN
            },
            "a device",
            0,
        ),
    ] {
        PLAIN.write(&input);
        ended_at("down", |progress| gptq("a device", progress));
        model.write(&input);
        assert_eq!(resumed(place), wanted);
    }
}
