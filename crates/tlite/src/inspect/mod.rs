//! What a model is and what running it takes, from its file alone: a summary, symbols, operators,
//! passes, plans, memory. No weight is read and no device is opened. The command `tlite inspect`
//! prints a [`Report`] as text, as JSON, or as an HTML page.

mod gguf;
mod nodes;
mod plans;
mod summary;
mod symbols;

pub use gguf::{GgufReport, TypeReport, inspect_gguf};
pub use nodes::{Becomes, How, NodeReport, Operator, Run};
pub use plans::{Device, Gains, PaddingReport, PlanReport, SegmentReport, StepReport, TensorReport};
pub use summary::{FileReport, Summary, WeightsReport, operator_counts, parameters_text};
pub use symbols::{BoundFrom, SymbolReport, parse_bind, parse_bounds};

use serde::Serialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use symbols::Symbols;
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::kind::not_a_file;
use transformer_lite::unstable::graph::onnx::describe::{Description, elements};
use transformer_lite::unstable::graph::onnx::{ImportOptions, import_with};
use transformer_lite::unstable::graph::pass::integer::{Coverage, coverage};
use transformer_lite::unstable::graph::pass::{Logits, PassReport, Pipeline, Target};
use transformer_lite::unstable::graph::{Edit, Graph, ValueId, class, derive};
use transformer_lite::unstable::limits::Limits;
use transformer_lite::unstable::llm::engine::{CHUNK, Decoder, DecoderBuilder, PADDING, SequenceConfig};
use transformer_lite::unstable::llm::folder::check_form;
use transformer_lite::unstable::llm::{Activations, KvType, ModelFolder};
use transformer_lite::unstable::num;
use transformer_lite::unstable::plan::{Options, Plan, weight_bytes};
use transformer_lite::unstable::shape::{Bindings, Constraints};
use transformer_lite::unstable::tensor::DType;

#[derive(Clone, Debug)]
pub struct Request {
    /// The device to plan for.
    pub caps: Caps,
    /// Symbols with a fixed value, which shapes and plans then have.
    pub bind: Bindings,
    /// Bounds of symbols and equations between them.
    pub bounds: Constraints,
    /// Context length of a decoder; by default the model's limit, at most 4096.
    pub context: Option<usize>,
    /// Tokens of one prefill run of a decoder.
    pub chunk: usize,
    /// Lengths in decoding are padded to multiples of this.
    pub padding: usize,
    /// Type of a decoder's KV cache.
    pub kv: KvType,
    /// Activations of a decoder's matmuls.
    pub act: Activations,
    /// Type of activations; by default the type with which the model would run.
    pub float: Option<DType>,
    /// What the model may consume.
    pub limits: Limits,
}

impl Default for Request {
    /// A generic device, and no values or bounds of symbols.
    fn default() -> Self {
        Self {
            caps: Caps::generic_gpu(),
            bind: Bindings::new(),
            bounds: Constraints::default(),
            context: None,
            chunk: CHUNK,
            padding: PADDING,
            kv: KvType::default(),
            act: Activations::default(),
            float: None,
            limits: Limits::default(),
        }
    }
}

/// The result of [`inspect`]. Sizes are bytes for the largest values of the symbols. Shapes and
/// formulas are expressions of the symbols, which [`transformer_lite::unstable::shape::Dim::parse`]
/// reads.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// The model.
    pub model: Model,
    /// The device of the plans.
    pub device: Device,
    /// Symbols of the inputs, and symbols whose values are known during a run only.
    pub symbols: Vec<SymbolReport>,
    /// Relations between symbols, as given.
    pub constraints: Vec<String>,
    /// Conditions on which the derived shapes rely; each run checks them.
    pub assumptions: Vec<AssumptionReport>,
    /// Inputs of the model.
    pub inputs: Vec<ValueReport>,
    /// Outputs of the model.
    pub outputs: Vec<ValueReport>,
    /// KV caches and other tensors that persist between runs.
    pub states: Vec<StateReport>,
    /// How the operators between quantized values are computed; null if there are none.
    pub integer: Option<Coverage>,
    /// Graph passes, with their rewrites.
    pub passes: Vec<PassReport>,
    /// Operators that compute shapes.
    pub shape_ops_total: usize,
    /// Operators that compute shapes at run time.
    pub shape_ops_at_runtime: usize,
    /// The arena for activations; plans share the largest one.
    pub arena_bytes: u64,
    /// The largest set of activations that live at one time: a lower bound of the arena.
    pub arena_lower_bound_bytes: u64,
    /// All activations without reuse of memory.
    pub arena_no_reuse_bytes: u64,
    /// The arena as an expression.
    pub arena_formula: String,
    /// What reuse of memory saves.
    pub gained: Gains,
    /// All KV caches and other states.
    pub states_bytes: u64,
    /// All weights, as kernels read them.
    pub weights_bytes: u64,
    /// Weights, states and arena.
    pub total_bytes: u64,
    /// The plan `run`, or for a decoder the plans `prefill` and `decode`, which share arena, states
    /// and weights.
    pub plans: Vec<PlanReport>,
    /// The operators of the model, in an order in which they can run.
    pub operators: Vec<Operator>,
    /// The nodes after the passes, in execution order.
    pub nodes: Vec<NodeReport>,
    /// All values of the model with their derived shapes, before any pass.
    pub values: Vec<ValueReport>,
}

/// A model.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Model {
    /// Name of its folder, or of the file.
    pub name: String,
    /// Name in the file: from its metadata, else that of the graph unless it is an exporter's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_name: Option<String>,
    /// The file.
    pub path: PathBuf,
    /// Versions of operator sets, by domain.
    pub opsets: Vec<(String, i64)>,
    /// Lengths of a decoder.
    pub decoder: Option<DecoderReport>,
    /// What the model is.
    pub summary: Summary,
}

/// The lengths of a decoder.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct DecoderReport {
    /// Context length in tokens.
    pub context: usize,
    /// Tokens of one prefill run.
    pub chunk: usize,
    /// Lengths in decoding are padded to multiples of this.
    pub padding: usize,
    /// The symbol for the number of tokens in a run.
    pub sequence: String,
    /// The symbol for the number of tokens before the run.
    pub past: String,
}

/// A value with its type and shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct ValueReport {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: String,
    /// Sizes as expressions.
    pub shape: Vec<String>,
    /// Elements of a constant of at most 16; a number for a scalar.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<serde_json::Number>>")]
    pub constant: Option<serde_json::Value>,
}

/// A tensor that persists from run to run.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct StateReport {
    /// The model's input that it replaces.
    pub name: String,
    /// The model's output that it replaces.
    pub output: String,
    /// Shape before a run.
    pub shape: Vec<String>,
    /// Element type on the device.
    pub dtype: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Capacity in rows.
    pub rows: i64,
    /// Number of last rows that are read, if it is not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<i64>,
}

/// A condition for the derived shapes.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct AssumptionReport {
    /// The node that requires it.
    pub node: String,
    /// The condition.
    pub condition: String,
    /// What is wrong if it does not hold.
    pub meaning: String,
}

/// The ONNX file of `path`: the file itself, or `model.onnx` in a folder. A usage error if there is
/// none.
pub fn model_file(path: &Path) -> Result<PathBuf> {
    check_form("MODEL", path)?;
    let file = if path.is_dir() {
        path.join("model.onnx")
    } else {
        path.to_owned()
    };
    let what = match std::fs::metadata(&file) {
        Ok(meta) if meta.is_file() => return Ok(file),
        Ok(_) => not_a_file(&file),
        Err(_) if path.is_dir() => {
            let inner = folders_with_models(path);
            let hint = match inner.is_empty() {
                true => String::new(),
                false => format!("; did you mean {}?", inner.join(" or ")),
            };
            format!("{} has no model.onnx{hint}", path.display())
        }
        Err(_) => format!(
            "there is no file or folder {}; `tlite list` shows the language models here, `tlite pull OWNER/REPO` \
             downloads one",
            path.display()
        ),
    };
    Err(Error::usage("MODEL", what))
}

/// The first folders in `path` that hold a model.
fn folders_with_models(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries
        .map(|e| e.path())
        .filter(|p| p.join("model.onnx").is_file());
    let mut names: Vec<String> = folders.map(|p| p.display().to_string()).collect();
    names.sort();
    names.truncate(3);
    names
}

/// The name of a model: of its folder or file. A usage error if there is no such file.
pub fn model_name(path: &Path) -> Result<String> {
    Ok(named(path, &model_file(path)?))
}

/// Names of folders that say how a model is stored, not which one it is.
const STORAGE: [&str; 9] = [
    "onnx",
    "model",
    "e0m2",
    "e0m3",
    "e0m4",
    "e0m5",
    "e0m6",
    "e0m8",
    "quantized",
];

fn named(path: &Path, file: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let last = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned());
    let folder = if path.is_dir() {
        Some(whole.as_path())
    } else if file.file_name() == Some("model.onnx".as_ref()) {
        whole.parent()
    } else {
        None
    };
    let own = || Some(Description::read(file).ok()?.name()?.to_owned());
    let name = match folder.and_then(last) {
        // Where the cache keeps a converted model.
        Some(name) if name == "model" && own().is_some() => own(),
        Some(name) if STORAGE.contains(&name.as_str()) => {
            let outer = folder.and_then(Path::parent).and_then(last);
            Some(outer.map_or(name.clone(), |outer| format!("{outer}/{name}")))
        }
        Some(name) => Some(name),
        None => file.file_stem().map(|n| n.to_string_lossy().into_owned()),
    };
    name.unwrap_or_else(|| file.display().to_string())
}

pub(crate) fn value_report(graph: &Graph, v: ValueId) -> ValueReport {
    let value = graph.value(v);
    let fact = value.fact.as_ref();
    ValueReport {
        name: value.name.clone(),
        dtype: fact.map_or_else(|| "?".to_owned(), |f| f.dtype.to_string()),
        shape: fact.map(|f| texts(&f.shape.0)).unwrap_or_default(),
        constant: fact.and_then(|f| elements(f.as_const()?)),
    }
}

fn texts(dims: &[transformer_lite::unstable::shape::Dim]) -> Vec<String> {
    dims.iter().map(ToString::to_string).collect()
}

/// A model prepared for planning.
struct Prepared {
    graph: Graph,
    passes: Vec<PassReport>,
    plans: Vec<(&'static str, Options)>,
    decoder: Option<DecoderReport>,
}

/// A model with its plans.
struct Planned {
    file: PathBuf,
    /// The model before any pass, with derived shapes.
    raw: Graph,
    symbols: Symbols,
    prepared: Prepared,
    plans: Vec<Plan>,
}

/// True if the model in the folder or file `path` is a decoder. A usage error if there is no such
/// file.
pub fn is_decoder(path: &Path) -> Result<bool> {
    let graph = import_with(&model_file(path)?, ImportOptions::PLANNING)?;
    Ok(Decoder::is_form_of(&graph))
}

/// The plans of the model in `path`: one, or for a decoder those of prefill and decode. Errors as
/// of [`inspect`].
pub fn plans(path: &Path, request: &Request) -> Result<Vec<Plan>> {
    Ok(planned(path, request)?.plans)
}

fn planned(path: &Path, request: &Request) -> Result<Planned> {
    let file = model_file(path)?;
    let mut graph = import_with(&file, ImportOptions::PLANNING)?;
    Edit::new(&mut graph).set_constraints(request.bounds.clone());
    let decodes = Decoder::is_form_of(&graph);
    if decodes {
        Decoder::name_lengths(&mut graph)?;
    }
    let mut raw = graph.clone();
    derive::derive(&mut raw)?;
    let mut symbols = Symbols::new(&raw, &request.bounds, &request.bind)?;
    symbols.check_values(&raw)?;
    let prepared = if decodes {
        decoder(&file, graph, request, &mut symbols)?
    } else {
        plain(graph, request, &mut symbols)?
    };
    symbols.check_sizes(&raw)?;
    let mut plans = Vec::with_capacity(prepared.plans.len());
    for (_, options) in &prepared.plans {
        plans.push(Plan::compile(&prepared.graph, &request.caps, options)?);
    }
    for plan in &plans {
        symbols.check_conditions(plan)?;
    }
    Ok(Planned {
        file,
        raw,
        symbols,
        prepared,
        plans,
    })
}

/// Inspects the model in `path`, a folder with `model.onnx` or an ONNX file. Usage errors: there is
/// no such file; the model has no symbol of a given name; a value is out of bounds, contradicts an
/// equation or makes a size negative.
pub fn inspect(path: &Path, request: &Request) -> Result<Report> {
    let _call = request.limits.quota().enter();
    let Planned {
        file,
        raw,
        symbols,
        prepared,
        plans,
    } = planned(path, request)?;
    let Prepared {
        graph,
        passes,
        plans: options,
        decoder,
    } = prepared;
    let weights_bytes = weight_bytes(&graph, &plans)?;
    let reports: Vec<PlanReport> = options
        .iter()
        .zip(&plans)
        .map(|((name, options), plan)| PlanReport::new(name, options, plan, &graph))
        .collect();
    let classes = class::classes(&raw)?;
    let nodes = nodes::nodes(&graph, &plans, &reports)?;
    let description = Description::read(&file)?;
    let operators = nodes::operators(&raw, &classes, &nodes, &description)?;
    let shape_ops = operators.iter().filter(|o| o.class == class::Class::Shape);
    let running: HashSet<&str> = reports.iter().flat_map(PlanReport::running).collect();
    let runs = |o: &&Operator| running.contains(o.name.as_str());
    let largest = reports.iter().max_by_key(|p| p.arena_bytes);
    let largest = largest.ok_or_else(|| Error::other(Stage::Plan, "the model has no plan"))?;
    let states_bytes = plans.first().map_or(0, |p| p.memory.states);
    let total = [weights_bytes, states_bytes, largest.arena_bytes]
        .iter()
        .try_fold(0u64, |sum, n| sum.checked_add(*n));
    let first = plans.first();
    let states = states(&graph, first);
    let outputs: Vec<ValueReport> = raw.outputs().iter().map(|v| value_report(&raw, *v)).collect();
    let report = Report {
        model: Model {
            name: named(path, &file),
            own_name: description.name().map(str::to_owned),
            summary: Summary::new(&file, &raw, &outputs, &states),
            path: file,
            opsets: raw.opsets().to_vec(),
            decoder,
        },
        device: Device::new(&request.caps),
        symbols: symbols.reports(&graph, first),
        constraints: symbols.relations(),
        assumptions: assumptions(&raw),
        inputs: raw.inputs().iter().map(|v| value_report(&raw, *v)).collect(),
        outputs,
        states,
        shape_ops_total: shape_ops.clone().count(),
        shape_ops_at_runtime: shape_ops.filter(runs).count(),
        integer: integer(&raw)?,
        passes,
        arena_bytes: largest.arena_bytes,
        arena_lower_bound_bytes: largest.arena_lower_bound_bytes,
        arena_no_reuse_bytes: largest.arena_no_reuse_bytes,
        arena_formula: largest.arena_formula.clone(),
        gained: largest.gained,
        states_bytes,
        weights_bytes,
        total_bytes: total
            .ok_or_else(|| Error::other(Stage::Plan, "the total size of all memory overflows"))?,
        operators,
        nodes,
        values: values(&raw)?,
        plans: reports,
    };
    Ok(report)
}

/// How a model's quantized operators are computed by default.
fn integer(graph: &Graph) -> Result<Option<Coverage>> {
    let Some(arithmetic) = Target::DEVICE.integer else {
        return Ok(None);
    };
    let coverage = coverage(graph, arithmetic)?;
    Ok((coverage != Coverage::default()).then_some(coverage))
}

/// Inputs, then the results of all nodes in order.
fn values(graph: &Graph) -> Result<Vec<ValueReport>> {
    let mut all: Vec<ValueId> = graph.inputs().to_vec();
    for id in graph.order()? {
        all.extend(graph.node(id).iter().flat_map(|n| &n.outputs));
    }
    Ok(all.into_iter().map(|v| value_report(graph, v)).collect())
}

fn states(graph: &Graph, plan: Option<&Plan>) -> Vec<StateReport> {
    let slots = plan.map(|p| p.states.as_slice()).unwrap_or_default();
    let states = graph.states().iter().zip(slots);
    states
        .map(|(s, slot)| StateReport {
            name: slot.name.clone(),
            output: graph.value(s.output).name.clone(),
            shape: value_report(graph, s.input).shape,
            dtype: slot.dtype.to_string(),
            bytes: slot.bytes,
            rows: slot.rows,
            window: slot.window,
        })
        .collect()
}

fn assumptions(graph: &Graph) -> Vec<AssumptionReport> {
    let all = graph.assumptions().iter();
    all.map(|a| AssumptionReport {
        node: graph.node(a.node).map_or(String::new(), |n| n.name.clone()),
        condition: format!(
            "{} {} 0",
            a.assumed.dim,
            if a.assumed.equal { "==" } else { ">=" }
        ),
        meaning: a.assumed.meaning.clone(),
    })
    .collect()
}

/// Plans a decoder as it runs: one sequence, prefill in chunks, decode with padded lengths.
fn decoder(file: &Path, graph: Graph, request: &Request, symbols: &mut Symbols) -> Result<Prepared> {
    let dir = file.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = ModelFolder::open(dir.unwrap_or(Path::new(".")))?;
    let context = folder.context(request.context)?;
    let lengths = SequenceConfig {
        chunk: request.chunk.min(context).max(1),
        padding: request.padding,
        ..SequenceConfig::of(context)
    };
    let batch = graph.input("input_ids").and_then(|v| graph.fact(v).ok());
    let batch = batch.and_then(|f| f.shape.0.first()?.as_symbol().cloned());
    let device = match request.caps == Caps::generic_gpu() {
        true => Target::DEVICE,
        false => Target::DEVICE.on(&request.caps),
    };
    let target = Target {
        kv_q8: request.kv == KvType::Q8,
        activations: request.act.on(&request.caps),
        logits: Logits::Last,
        ..device
    };
    let mut builder = DecoderBuilder::new(&target);
    if let Some(float) = request.float {
        builder = builder.stored_in(float);
    }
    let decoder = builder.build(graph)?;
    if let Some(batch) = batch {
        symbols.decide(&batch, 1, BoundFrom::OneSequence)?;
    }
    symbols.decide(decoder.sequence(), num::signed(lengths.chunk), BoundFrom::Chunk)?;
    symbols.decide(decoder.past(), num::signed(context), BoundFrom::Context)?;
    symbols.assume_rest(decoder.graph(), Some(num::signed(context)))?;
    let mut plans = Vec::new();
    for (name, mut options) in ["prefill", "decode"]
        .into_iter()
        .zip(decoder.options(&request.caps, &lengths))
    {
        symbols.apply(&mut options);
        plans.push((name, options));
    }
    Ok(Prepared {
        passes: decoder.passes.clone(),
        plans,
        decoder: Some(DecoderReport {
            context,
            chunk: lengths.chunk,
            padding: lengths.padding,
            sequence: decoder.sequence().to_string(),
            past: decoder.past().to_string(),
        }),
        graph: decoder.graph().clone(),
    })
}

/// Plans any other model: one plan, with `f32` activations by default.
fn plain(mut graph: Graph, request: &Request, symbols: &mut Symbols) -> Result<Prepared> {
    let passes = Pipeline::of(&Target::DEVICE).run(&mut graph)?;
    symbols.assume_rest(&graph, None)?;
    let mut options = Options {
        float: request.float.unwrap_or(DType::F32),
        // Without a device the question is what the model needs, not which kernels there are.
        every_on_device: request.caps == Caps::generic_gpu(),
        state_rows: request.context.map_or(0, num::signed),
        ..Options::default()
    };
    symbols.apply(&mut options);
    Ok(Prepared {
        graph,
        passes,
        plans: vec![("run", options)],
        decoder: None,
    })
}
