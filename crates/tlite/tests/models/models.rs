//! Real models as their authors exported them: what planning changes, and what devices compute.
//!
//! `TLITE_TEST_MODELS` names a folder with one folder for each model, as `tools/fetch_model.py`
//! makes them; `tools/setup.sh` does it. Without the variable one ignored trial says so, which
//! fails when `REQUIRE_BACKENDS` is set. CLIP and what Optimum exports are no package's: they are
//! tested where `tools/setup.sh` has put them into that folder, and an ignored trial says where it
//! has not.

use serde_json::Value;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tlite::inspect::{Request, inspect};
use tlite_testing::suite::Suite;
use tlite_testing::{Device, Outcome, Text, Tier};
use transformer_lite::unstable::executor::Executor;
use transformer_lite::unstable::graph::interp::Interpreter;
use transformer_lite::unstable::graph::pass::{Pipeline, Target};
use transformer_lite::unstable::graph::{Edit, Graph, derive, onnx};
use transformer_lite::unstable::llm::LanguageModel;
use transformer_lite::unstable::llm::engine::{Decoder, DeviceModel, HostModel, Logits, SequenceConfig};
use transformer_lite::unstable::num;
use transformer_lite::unstable::plan::{Options, Plan};
use transformer_lite::unstable::shape::{Bindings, Symbol};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// A model and the sizes of its inputs, from the largest to others.
struct Real {
    name: &'static str,
    /// Operators that passes make of its decomposed ones, or leave, with their number.
    made: &'static [(&'static str, usize)],
    sizes: &'static [&'static [(&'static str, i64)]],
    kind: Kind,
}

/// What a model asks of the tests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its plan depends on no value.
    Plain,
    /// An `If` asks for values of the run.
    Branches,
    /// It is there only where it was exported.
    Exported,
    /// It is quantized: fusing moves roundings to 8 bits, which are steps.
    Integers,
    /// It amplifies what is rounded, to 1e-4 in `f32`: see [`STEEP`].
    Steep,
}

/// The largest difference over the range of the interpreter's output, by the storage of
/// activations.
const BOUNDS: [(DType, f32); 2] = [(DType::F32, 1e-3), (DType::F16, 2e-2)];

/// The bound in `f16` of a model that tells text from ground by a steep function. The boxes are the
/// same. ONNX Runtime differs by 0.07 from itself when all that it stores is rounded to halves
/// (`tools/compare_ort.py --round-activations`).
const STEEP: f32 = 0.1;

/// How far a quantized model may be from what it says when its sums are integers. One of another
/// step at an early layer moves many at the last.
const QUANTIZED: f32 = 0.1;

const MODELS: &[Real] = &[
    Real {
        name: "minilm",
        made: &[("LayerNormalization", 13), ("ReduceMean", 0), ("Erf", 0)],
        sizes: &[
            &[("batch_size", 2), ("sequence_length", 19)],
            &[("batch_size", 1), ("sequence_length", 6)],
            &[("batch_size", 2), ("sequence_length", 1)],
        ],
        kind: Kind::Plain,
    },
    Real {
        name: "mobilenetv2",
        made: &[("Conv", 54), ("BatchNormalization", 0)],
        sizes: &[&[]],
        kind: Kind::Plain,
    },
    Real {
        name: "ppocr-det",
        made: &[("BatchNormalization", 1)],
        sizes: &[
            &[
                ("p2o_DynamicDimension_0", 1),
                ("p2o_DynamicDimension_1", 96),
                ("p2o_DynamicDimension_2", 128),
            ],
            &[
                ("p2o_DynamicDimension_0", 1),
                ("p2o_DynamicDimension_1", 64),
                ("p2o_DynamicDimension_2", 96),
            ],
            &[
                ("p2o_DynamicDimension_0", 1),
                ("p2o_DynamicDimension_1", 32),
                ("p2o_DynamicDimension_2", 128),
            ],
        ],
        kind: Kind::Steep,
    },
    Real {
        name: "ppocr-rec",
        made: &[("LayerNormalization", 5)],
        sizes: &[
            &[
                ("p2o_DynamicDimension_0", 1),
                ("x_2", 48),
                ("p2o_DynamicDimension_1", 100),
            ],
            &[
                ("p2o_DynamicDimension_0", 1),
                ("x_2", 48),
                ("p2o_DynamicDimension_1", 64),
            ],
            &[
                ("p2o_DynamicDimension_0", 1),
                ("x_2", 48),
                ("p2o_DynamicDimension_1", 37),
            ],
        ],
        kind: Kind::Plain,
    },
    Real {
        name: "yolo11n",
        made: &[("Sigmoid", 1)],
        sizes: &[
            &[("batch", 1), ("height", 96), ("width", 128)],
            &[("batch", 1), ("height", 64), ("width", 64)],
            &[("batch", 1), ("height", 32), ("width", 96)],
        ],
        kind: Kind::Plain,
    },
    Real {
        name: "ppocr-cls",
        made: &[("BatchNormalization", 0)],
        sizes: &[&[("x_0", 2), ("x_2", 48), ("x_3", 192)]],
        kind: Kind::Plain,
    },
    Real {
        name: "sscd-distilled",
        made: &[("Conv", 45)],
        sizes: &[
            &[("batch", 2), ("height", 96), ("width", 128)],
            &[("batch", 1), ("height", 64), ("width", 50)],
        ],
        kind: Kind::Plain,
    },
    Real {
        name: "sscd",
        made: &[("Int8Conv", 53), ("Int8Add", 16), ("Conv", 0)],
        sizes: &[
            &[("batch", 2), ("height", 96), ("width", 128)],
            &[("batch", 1), ("height", 64), ("width", 50)],
        ],
        kind: Kind::Integers,
    },
    Real {
        name: "smart-turn",
        made: &[("Int8Linear", 29), ("LayerNormalization", 10)],
        sizes: &[&[("s6", 1)]],
        kind: Kind::Integers,
    },
    Real {
        name: "silero-vad",
        made: &[],
        sizes: &[
            &[("input_0", 2), ("input_1", 576), ("state_1", 2)],
            &[("input_0", 1), ("input_1", 576), ("state_1", 1)],
        ],
        kind: Kind::Branches,
    },
    Real {
        name: "clip-image",
        made: &[("LayerNormalization", 26)],
        sizes: &[&[("batch", 2)], &[("batch", 1)]],
        kind: Kind::Exported,
    },
    Real {
        name: "clip-text",
        made: &[("LayerNormalization", 25)],
        sizes: &[
            &[("batch", 2), ("sequence", 77)],
            &[("batch", 2), ("sequence", 9)],
            &[("batch", 1), ("sequence", 1)],
        ],
        kind: Kind::Exported,
    },
];

/// A decoder with integer products; see [`decoder_of_integers`].
const DECODER: &str = "minimind2-small";
const VOCABULARY: usize = 6400;
/// Its products quantize their operands to 8 bits at run time: a last bit of difference moves some
/// by a whole step, and logits by parts of their range. ONNX Runtime differs by as much from
/// itself, between its levels of optimization.
const OF_INTEGERS: f32 = 2.5e-2;

pub fn trials(suite: &mut Suite) {
    let devices = suite.devices();
    let Some(folder) = std::env::var_os("TLITE_TEST_MODELS").map(PathBuf::from) else {
        suite.not_set("TLITE_TEST_MODELS names no folder with models");
        return;
    };
    let file = |name: &str| folder.join(name).join("model.onnx");
    let quantized = Arc::new(Quantized::default());
    let not_made = |suite: &mut Suite, name: &str, by: &str| {
        let why = format!("{name}: {by} makes it");
        suite.left_out(format_args!("NOT TESTED: {why}"), &why, false);
    };
    for (i, real) in MODELS.iter().enumerate() {
        let path = file(real.name);
        if real.kind == Kind::Exported && !path.is_file() {
            not_made(suite, real.name, "tools/export_clip.py");
            continue;
        }
        suite.add(format!("{}@reference", real.name), move || on_host(&path, real));
        for (j, d) in devices.iter().enumerate() {
            let label = d.label(&devices);
            let types = d.caps.profile.storage_types();
            // Drivers that emulate a GPU take minutes to compile kernels: one of two runs a model.
            let tier = |rare: bool| [Tier::Quick, Tier::Nightly][usize::from(rare && d.is_slow())];
            let sampled = tier((i + j) % 2 == 0);
            for (float, bound) in BOUNDS.into_iter().filter(|(float, _)| types.contains(float)) {
                let (path, device) = (file(real.name), d.clone());
                let steep = real.kind == Kind::Steep && float == DType::F16;
                let bound = if steep { STEEP } else { bound };
                let tier = sampled.max(tier(float == DType::F16));
                suite.add_in(tier, format!("{}@{label} {float}", real.name), move || {
                    on_device(&path, real, &device, float, bound)
                });
            }
            if real.kind == Kind::Exported {
                let (path, device, small) = (file(real.name), d.clone(), quantized.clone());
                suite.add_in(sampled, format!("{} E0M4@{label}", real.name), move || {
                    let path = small.path(real.name, &path)?;
                    on_device(&path, real, &device, DType::F32, BOUNDS[0].1)
                });
            }
        }
    }
    let path = file(DECODER);
    suite.add(format!("{DECODER}@reference"), move || {
        decoder_of_integers(&path, None)
    });
    for d in &devices {
        let (path, device) = (file(DECODER), d.clone());
        suite.add(format!("{DECODER}@{}", d.label(&devices)), move || {
            decoder_of_integers(&path, Some(&device))
        });
    }
    for greedy in GREEDY {
        let path = file(greedy.name);
        if let (Some(by), false) = (greedy.exported, path.is_file()) {
            not_made(suite, greedy.name, by);
            continue;
        }
        let name = format!("{}: greedy tokens", greedy.name);
        for d in &devices {
            let (path, device) = (path.clone(), d.clone());
            let name = format!("{name}@{}", d.label(&devices));
            suite.add_in(d.tier_of_long_trials(), name, move || {
                greedy_tokens(&path, greedy, Some(&device))
            });
        }
        suite.add(format!("{name}@reference"), move || {
            greedy_tokens(&path, greedy, None)
        });
    }
}

/// A decoder's own file and what ONNX Runtime generates with it.
struct Greedy {
    name: &'static str,
    /// What makes the file, where it is no package's.
    exported: Option<&'static str>,
    /// Keys and values of its layers.
    states: usize,
    /// Prompts and the 64 tokens behind each, by `tests/data/greedy/make.py`.
    generated: &'static str,
}

const GREEDY: &[Greedy] = &[
    Greedy {
        name: DECODER,
        exported: None,
        states: 16,
        generated: include_str!("../../../../tests/data/greedy/minimind2-small.json"),
    },
    Greedy {
        name: "smollm2-optimum",
        exported: Some("tools/export_llm.py --form optimum"),
        states: 60,
        generated: include_str!("../../../../tests/data/greedy/smollm2-optimum.json"),
    },
];
/// How many of them a device must choose, and the host where ONNX Runtime itself is not steady.
const MIN_SAME: usize = 60;

/// Greedy tokens of a decoder's own file, its cache in place: on the host those of ONNX Runtime.
/// Where two of its logits are nearly equal or its levels of optimization differ, and on devices,
/// the model is fed its tokens and asked for each next one, as a text that parts once, where two
/// logits are as good as equal, stays another (see [`OF_INTEGERS`]).
fn greedy_tokens(path: &Path, greedy: &Greedy, device: Option<&Device>) -> Outcome {
    let _turn = device.map(Device::turn);
    let cases: Vec<Value> = serde_json::from_str(greedy.generated).text()?;
    let ids = |case: &Value, name: &str| -> Result<Vec<u32>, String> {
        serde_json::from_value(case[name].clone()).text()
    };
    let copies = Arc::new(AtomicUsize::new(0));
    let target = if device.is_some() {
        Target::DEVICE
    } else {
        Target::HOST
    };
    let decoder = Decoder::load(path, &target.with(Logits::Last)).text()?;
    let graph = decoder.graph();
    // None is passed in or out.
    let states = graph.states().len();
    if states != greedy.states || graph.outputs().len() != 1 {
        return Err(format!("{states} states and {} outputs", graph.outputs().len()));
    }
    let mut model: Box<dyn LanguageModel> = match device {
        None => Box::new(HostModel::new(decoder, 128).text()?),
        Some(d) => {
            let shared = d.share().counting_copies(copies.clone());
            Box::new(DeviceModel::new(decoder, Box::new(shared), &SequenceConfig::of(128)).text()?)
        }
    };
    let mut steady = 0;
    // A slow device takes two of the prompts.
    let count = if device.is_some_and(Device::is_slow) {
        2
    } else {
        cases.len()
    };
    for case in cases.iter().take(count) {
        let (prompt, wanted) = (ids(case, "prompt")?, ids(case, "tokens")?);
        let exact = device.is_none() && case["steady"] == true;
        steady += usize::from(case["steady"] == true);
        model.truncate(0);
        let mut found = vec![model.most_likely(&prompt).text()?];
        while found.len() < wanted.len() {
            let before = if exact { &found } else { &wanted };
            let last = before[found.len() - 1];
            found.push(model.most_likely(&[last]).text()?);
        }
        let same = found.iter().zip(&wanted).filter(|(a, b)| a == b).count();
        eprintln!(
            "{}: {same} of {} tokens are the same",
            case["question"],
            wanted.len()
        );
        if wanted.len() != 64 || same < if exact { 64 } else { MIN_SAME } {
            return Err(format!(
                "{}: expected {wanted:?}, found {found:?}",
                case["question"]
            ));
        }
    }
    match copies.load(Ordering::Relaxed) {
        0 if steady > 0 => Ok(()),
        0 => Err("no prompt is steady".to_owned()),
        n => Err(format!("{n} copies or fills in the recordings")),
    }
}

/// Models that the command has quantized, each once.
#[derive(Default)]
struct Quantized(Mutex<HashMap<&'static str, TempDir>>);

impl Quantized {
    fn path(&self, name: &'static str, model: &Path) -> Result<PathBuf, String> {
        let mut made = self.0.lock().text()?;
        let found = match made.entry(name) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(free) => {
                let folder = tempfile::tempdir().text()?;
                let done = tlite_testing::command()
                    .args(["quantize", "--format", "e0m4"])
                    .arg(model.parent().ok_or("no folder")?)
                    .arg("-o")
                    .arg(folder.path())
                    .output()
                    .text()?;
                if !done.status.success() {
                    return Err(String::from_utf8_lossy(&done.stderr).into_owned());
                }
                free.insert(folder)
            }
        };
        Ok(found.path().join("model.onnx"))
    }
}

fn bindings(sizes: &[(&str, i64)]) -> Bindings {
    let mut out = Bindings::new();
    for (name, v) in sizes {
        out.set(&Symbol::new(name), *v);
    }
    out
}

/// Something for every input: random floats, and integers that a model of words can take.
fn inputs(graph: &Graph, sizes: &Bindings) -> Result<Vec<(String, HostTensor)>, String> {
    let mut out = Vec::new();
    for v in graph.inputs() {
        let (name, fact) = (&graph.value(*v).name, graph.fact(*v).text()?);
        let shape = fact.shape.eval(sizes).text()?;
        let count: usize = shape.iter().product();
        let tensor = if fact.dtype.is_float() {
            HostTensor::from_floats(fact.dtype, &shape, &tlite_testing::gguf::random(&mut 7, count))
        } else {
            let value = |i: usize| match name.as_str() {
                "sr" => 16000,
                _ if fact.dtype == DType::U8 => num::signed((i * 89 + 5) % 251),
                n if n.contains("mask") => 1,
                n if n.contains("type") => 0,
                _ => num::signed((i * 89 + 5) % 997),
            };
            HostTensor::from_ints(fact.dtype, &shape, &(0..count).map(value).collect::<Vec<_>>())
        };
        out.push((name.clone(), tensor.text()?));
    }
    Ok(out)
}

/// All outputs by name, from the interpreter.
fn interpret(
    graph: &Arc<Graph>,
    given: &[(String, HostTensor)],
) -> Result<HashMap<String, HostTensor>, String> {
    let find = |(name, tensor): &(String, HostTensor)| Some((graph.input(name)?, tensor.clone()));
    let given: Option<HashMap<_, _>> = given.iter().map(find).collect();
    let out = Interpreter::new(graph.clone())
        .text()?
        .run(given.ok_or("an input went away")?)
        .text()?;
    Ok(out
        .into_iter()
        .map(|(v, t)| (graph.value(v).name.clone(), t))
        .collect())
}

fn derived(path: &Path, pipeline: Option<Pipeline>) -> Result<Arc<Graph>, String> {
    let mut graph = onnx::import(path).text()?;
    match pipeline {
        Some(p) => drop(p.run(&mut graph).text()?),
        None => derive::derive(&mut graph).text()?,
    }
    Ok(Arc::new(graph))
}

/// The largest difference over the range of the wanted elements.
fn distance(found: &HostTensor, wanted: &HostTensor) -> Result<f32, String> {
    if found.shape() != wanted.shape() || found.dtype() != wanted.dtype() {
        return Err(format!("found {found:?}, wanted {wanted:?}"));
    }
    let (found, wanted) = (found.to_f32().text()?, wanted.to_f32().text()?);
    apart(&found, &wanted)
}

fn apart(found: &[f32], wanted: &[f32]) -> Result<f32, String> {
    let low = wanted.iter().copied().fold(f32::INFINITY, f32::min);
    let high = wanted.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    // No number must stay none.
    let most = most.fold(0.0, |m: f32, v| if v > m || v.is_nan() { v } else { m });
    // Of equal elements the size, 1 at least, as `tlite run --compare` has it.
    let range = if high > low {
        high - low
    } else {
        low.abs().max(1.0)
    };
    if found.len() == wanted.len() && most.is_finite() && range.is_finite() {
        Ok(most / range)
    } else {
        Err(format!("{most} apart, wanted from {low} to {high}"))
    }
}

/// Every value has the shape that was derived for it.
fn shapes_hold(graph: &Arc<Graph>, given: &[(String, HostTensor)], sizes: &Bindings) -> Outcome {
    let mut all = graph.as_ref().clone();
    let made: Vec<_> = all.nodes().flat_map(|(_, n)| n.outputs.clone()).collect();
    for v in made {
        if !all.outputs().contains(&v) {
            Edit::new(&mut all).add_output(v);
        }
    }
    let all = Arc::new(all);
    let mut checked = 0;
    for (name, tensor) in interpret(&all, given)? {
        let fact = all.output(&name).and_then(|v| all.fact(v).ok());
        let fact = fact.ok_or_else(|| format!("no fact of \"{name}\""))?;
        let wanted = fact.shape.eval(sizes).text()?;
        if wanted != tensor.shape() || fact.dtype != tensor.dtype() {
            return Err(format!(
                "\"{name}\" at {sizes:?}: derived {fact}, found {tensor:?}"
            ));
        }
        checked += 1;
    }
    eprintln!("{checked} shapes at {sizes:?}");
    Ok(())
}

/// Folding and planning of shapes changes no bit; fused operators round otherwise.
fn on_host(path: &Path, real: &Real) -> Outcome {
    let plain = derived(path, None)?;
    let folded = derived(path, Some(Pipeline::of(&Target::HOST).without(&["trans_b"])))?;
    let fused = derived(path, Some(Pipeline::of(&Target::DEVICE)))?;
    for (op, wanted) in real.made {
        // An operator that others joined has a plus behind its name.
        let named = |name: &str| name.strip_suffix('+').unwrap_or(name) == *op;
        let found = fused.nodes().filter(|(_, n)| named(n.op.name())).count();
        if found != *wanted {
            return Err(format!("{found} nodes {op} after the passes, expected {wanted}"));
        }
    }
    let report = inspect(path, &Request::default()).text()?;
    if report.shape_ops_at_runtime > 0 && real.kind != Kind::Branches {
        let (total, left) = (report.shape_ops_total, report.shape_ops_at_runtime);
        return Err(format!("of {total} operators that compute shapes {left} run"));
    }
    let (arena, least) = (report.arena_bytes, report.arena_lower_bound_bytes);
    if arena * 10 > least * 11 {
        return Err(format!("an arena of {arena} bytes, {least} are needed"));
    }
    for sizes in real.sizes {
        let given = inputs(&plain, &bindings(sizes))?;
        shapes_hold(&plain, &given, &bindings(sizes))?;
        let wanted = interpret(&plain, &given)?;
        let (same, near) = (interpret(&folded, &given)?, interpret(&fused, &given)?);
        for (name, wanted) in &wanted {
            let missing = || format!("output \"{name}\" went away");
            let (same, near) = (
                same.get(name).ok_or_else(missing)?,
                near.get(name).ok_or_else(missing)?,
            );
            // The host's passes make integers, too.
            let exact = real.kind != Kind::Integers;
            if exact && same.bytes().text()? != wanted.bytes().text()? || same.shape() != wanted.shape() {
                let error = distance(same, wanted);
                return Err(format!(
                    "\"{name}\" at {sizes:?}: folding changes {same:?}: {error:?}"
                ));
            }
            let error = distance(near, wanted)?;
            let most = if real.kind == Kind::Integers {
                QUANTIZED
            } else {
                1e-4
            };
            eprintln!("{} at {sizes:?}, \"{name}\": {error:.2e}", real.name);
            if error > most {
                return Err(format!("\"{name}\" at {sizes:?}: fused it is {error:.2e} apart"));
            }
        }
    }
    Ok(())
}

/// One load runs every size, within `most` of the interpreter; in `f16` the first alone. A slow
/// device runs the smaller ones, where there are several.
fn on_device(path: &Path, real: &Real, device: &Device, float: DType, most: f32) -> Outcome {
    let _turn = device.turn();
    let graph = derived(path, Some(Pipeline::of(&Target::DEVICE)))?;
    let options = Options {
        bounds: bindings(real.sizes[0]),
        float,
        ..Options::default()
    };
    let plan = Plan::compile(&graph, &device.caps, &options).text()?;
    let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).text()?;
    let mut before = None;
    let largest = usize::from(device.is_slow() && real.sizes.len() > 1);
    let count = if float == DType::F16 { 1 } else { real.sizes.len() };
    for sizes in real.sizes.iter().skip(largest).take(count) {
        let given = inputs(&graph, &bindings(sizes))?;
        for (name, tensor) in &given {
            executor.write(0, name, tensor).text()?;
        }
        let bound = executor.bindings(0).text()?;
        executor.run(0, &bound).text()?;
        for (name, wanted) in &interpret(&graph, &given)? {
            let error = distance(&executor.read(0, name).text()?, wanted)?;
            eprintln!("{} in {float} at {sizes:?}, \"{name}\": {error:.2e}", real.name);
            if error > most {
                return Err(format!("\"{name}\" at {sizes:?} is {error:.2e} apart"));
            }
        }
        // The first run may take staging memory for transfers.
        let stats = executor.stats();
        let now = (stats.allocations, stats.compiles, stats.recordings);
        if *before.get_or_insert(now) != now {
            return Err(format!("a run changed the counters from {before:?} to {now:?}"));
        }
    }
    Ok(())
}

/// `MiniMind2`: the form of its author without a cache, and that of the engine with one, fed in
/// parts.
fn decoder_of_integers(path: &Path, device: Option<&Device>) -> Outcome {
    let tokens: Vec<u32> = (0..12).map(|i| (i * 89 + 5) % VOCABULARY as u32).collect();
    match device {
        None => integers_on_host(path, &tokens),
        Some(device) => integers_on_device(path, device, &tokens),
    }
}

fn integers_on_host(path: &Path, tokens: &[u32]) -> Outcome {
    let graph = derived(path, None)?;
    let count = num::signed(tokens.len());
    let mut sizes = bindings(&[("batch_size", 1), ("past_sequence_length", 0)]);
    sizes.set(&Symbol::new("sequence_length"), count);
    let mut given = inputs(&graph, &sizes)?;
    for (name, t) in &mut given {
        let list: Vec<i64> = match name.as_str() {
            "input_ids" => tokens.iter().map(|t| i64::from(*t)).collect(),
            "position_ids" => (0..count).collect(),
            _ => continue,
        };
        *t = HostTensor::from_i64(&[1, tokens.len()], &list).text()?;
    }
    let wanted = interpret(&graph, &given)?.remove("logits").ok_or("no logits")?;
    let decoder = Decoder::load(path, &Target::HOST).text()?;
    let found = HostModel::new(decoder, 32).text()?.forward_all(tokens).text()?;
    if found == *wanted.to_f32().text()? {
        Ok(())
    } else {
        Err("the form with a cache differs".to_owned())
    }
}

fn integers_on_device(path: &Path, device: &Device, tokens: &[u32]) -> Outcome {
    let load = |target: &Target| Decoder::load(path, target).text();
    let lengths = SequenceConfig::of(32);
    let _turn = device.turn();
    let mut host = HostModel::new(load(&Target::HOST)?, lengths.context).text()?;
    let decoder = load(&Target::DEVICE)?;
    let norms = decoder.graph().nodes();
    let norms = norms.filter(|(_, n)| n.op.name() == "RMSNormalization").count();
    if norms != 17 {
        return Err(format!("{norms} normalisations, of 8 layers 17 were expected"));
    }
    let plans: Result<Vec<Plan>, _> = decoder
        .options(&device.caps, &lengths)
        .into_iter()
        .map(|options| {
            let options = Options {
                float: DType::F32,
                ..options
            };
            Plan::compile(decoder.graph(), &device.caps, &options)
        })
        .collect();
    let graph = decoder.graph();
    let mut executor = Executor::new(Box::new(device.share()), graph, plans.text()?).text()?;
    let mut past = 0;
    for part in [&tokens[..9], &tokens[9..10], &tokens[10..11], &tokens[11..]] {
        let wanted = host.forward_all(part).text()?;
        let plan = usize::from(part.len() == 1);
        let list = |list: Vec<i64>| HostTensor::from_i64(&[1, list.len()], &list).text();
        let total = past + part.len();
        let given = [
            ("input_ids", list(part.iter().map(|t| i64::from(*t)).collect())?),
            (
                "position_ids",
                list((num::signed(past)..num::signed(total)).collect())?,
            ),
        ];
        for (name, tensor) in &given {
            executor.write(plan, name, tensor).text()?;
        }
        let mut bound = executor.bindings(plan).text()?;
        bound.set(decoder.past(), num::signed(past));
        executor.run(plan, &bound).text()?;
        past = total;
        let found = executor.read(plan, "logits").text()?;
        let found = found.to_f32().text()?;
        let error = apart(&found, &wanted)?;
        eprintln!("{DECODER}, {} tokens: {error:.2e}", part.len());
        if error > OF_INTEGERS {
            return Err(format!("{} tokens: {error:.2e} apart", part.len()));
        }
        let best = |row: &[f32]| (0..row.len()).max_by(|i, j| row[*i].total_cmp(&row[*j]));
        let rows = found.chunks(VOCABULARY).zip(wanted.chunks(VOCABULARY));
        if let Some(i) = rows.into_iter().position(|(a, b)| best(a) != best(b)) {
            return Err(format!("{} tokens: another best token in row {i}", part.len()));
        }
    }
    Ok(())
}
