//! Runs any model on any backend: named inputs to named outputs.
//!
//! Every size may change from run to run; memory grows to the sizes that occur (see
//! [`crate::plan::Plan::reserve`]). A decoder's KV cache is ordinary inputs and outputs here;
//! [`crate::llm`] keeps it on the device. Small inputs whose values decide shapes or kernels (axes,
//! pads, repeat counts) may get a plan for their values: see [`crate::graph::Op::decides`].
#![warn(missing_docs)]

use crate::backend::{Backend, Caps};
use crate::cache::Store;
use crate::cancel::Cancel;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::executor::Timing;
use crate::graph::interp::Interpreter;
use crate::graph::onnx::{self, ImportOptions};
use crate::graph::pass::{PassReport, Pipeline, Target};
use crate::graph::sizes::{self, Rules};
use crate::graph::{Graph, ValueId};
use crate::limits::Limits;
use crate::note::Note;
use crate::plan::{Plan, bind};
use crate::quant::fixed::Arithmetic;
use crate::quota::{self, Quota};
use crate::shape::{Bindings, DimError, Fact, Shape, Symbol};
use crate::tensor::{DType, HostTensor};
use crate::validate::first_run::{FirstRun, OnProgress};
use device::Device;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

mod device;

enum Engine {
    Reference(Interpreter),
    Device(Box<Device>),
}

/// Whether kernels that are new on a device are validated with the inputs of the first run.
#[derive(Clone, Debug, Default)]
pub enum Checks {
    /// No validation.
    #[default]
    Off,
    /// An incorrect variant is not used; an incorrect kernel without an alternative fails the run.
    /// The store holds the results of earlier runs; without one, no kernel counts as new.
    On(Option<Arc<Store>>),
}

/// A loaded model.
pub struct Runner {
    graph: Arc<Graph>,
    engine: Engine,
    passes: Vec<PassReport>,
    /// Applies to every call: a run may plan, too.
    quota: Quota,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runner of {} nodes", self.graph.nodes().count())
    }
}

/// A tensor with its input or output name.
pub type Named = (String, HostTensor);

/// How a [`Runner`] loads and runs a model.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Element type of activations on a device.
    pub float: DType,
    /// Validation of new kernels on a device.
    pub checks: Checks,
    /// What the model may consume.
    pub limits: Limits,
    /// How quantized operators are computed with integers; `None` computes them as floats.
    pub integer: Option<Arithmetic>,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            float: DType::F32,
            checks: Checks::Off,
            limits: Limits::default(),
            integer: Some(Arithmetic::Float),
        }
    }
}

impl RunnerOptions {
    /// Reads the ONNX file `path`.
    #[doc(hidden)]
    pub fn import(&self, path: &Path) -> Result<Graph> {
        let options = ImportOptions {
            read_files: self.limits.read_files,
            ..ImportOptions::default()
        };
        onnx::import_with(path, options)
    }
}

impl Runner {
    /// Loads the ONNX file `path` on `backend`, or for the interpreter if `None`. Weight files stay
    /// mapped, under the condition of [`Model::load`](crate::Model::load).
    pub fn load(path: &Path, backend: Option<Box<dyn Backend>>, options: &RunnerOptions) -> Result<Self> {
        let pipeline = Self::pipeline(backend.is_some(), options.integer);
        Self::after(&pipeline, || options.import(path), backend, options)
    }

    /// Like [`Runner::load`], for a graph.
    #[doc(hidden)]
    pub fn of(graph: Graph, backend: Option<Box<dyn Backend>>, options: &RunnerOptions) -> Result<Self> {
        let pipeline = Self::pipeline(backend.is_some(), options.integer);
        Self::after(&pipeline, || Ok(graph), backend, options)
    }

    /// The passes of [`Runner::of`] for the interpreter or a device.
    #[doc(hidden)]
    pub fn pipeline(device: bool, integer: Option<Arithmetic>) -> Pipeline {
        let place = if device { Target::DEVICE } else { Target::HOST };
        Pipeline::of(&Target {
            caches: false,
            integer,
            ..place
        })
    }

    /// Like [`Runner::of`], with the given passes. `import` makes the graph, within the limits.
    #[doc(hidden)]
    pub fn after(
        pipeline: &Pipeline,
        import: impl FnOnce() -> Result<Graph>,
        backend: Option<Box<dyn Backend>>,
        options: &RunnerOptions,
    ) -> Result<Self> {
        let quota = options.limits.quota();
        let _call = quota.enter();
        let mut graph = import()?;
        let model = graph.clone();
        let passes = pipeline.run(&mut graph)?;
        let graph = Arc::new(graph);
        let engine = match backend {
            None => Engine::Reference(Interpreter::new(graph.clone())?),
            Some(backend) => Engine::Device(Box::new(Device::new(
                backend,
                pipeline.clone(),
                model,
                graph.clone(),
                options,
            )?)),
        };
        Ok(Self {
            graph,
            engine,
            passes,
            quota,
        })
    }

    /// Reports of the passes.
    pub fn passes(&self) -> &[PassReport] {
        &self.passes
    }

    /// Notes so far about kernels that are not used.
    pub fn notes(&self) -> &[Note] {
        self.first_run().map_or(&[], FirstRun::notes)
    }

    /// Number of kernels validated so far.
    pub fn validated_kernels(&self) -> usize {
        self.first_run().map_or(0, FirstRun::validated)
    }

    /// Calls `on_progress` after each validated kernel, with the number validated and the total.
    pub fn on_kernel_validated(&mut self, on_progress: OnProgress) {
        if let Engine::Device(device) = &mut self.engine {
            device.on_kernel_validated(on_progress);
        }
    }

    fn first_run(&self) -> Option<&FirstRun> {
        match &self.engine {
            Engine::Reference(_) => None,
            Engine::Device(device) => device.first_run(),
        }
    }

    /// Capabilities of the device; `None` for the interpreter.
    #[doc(hidden)]
    pub fn caps(&self) -> Option<&Caps> {
        match &self.engine {
            Engine::Reference(_) => None,
            Engine::Device(device) => Some(device.caps()),
        }
    }

    /// The plan on the device, of the last run if plans depend on input values; `None` for the
    /// interpreter.
    #[doc(hidden)]
    pub fn plan(&self) -> Option<&Plan> {
        match &self.engine {
            Engine::Reference(_) => None,
            Engine::Device(device) => device.plan(),
        }
    }

    fn facts<'a>(&'a self, list: &'a [ValueId]) -> impl Iterator<Item = (&'a str, &'a Fact)> {
        let values = list.iter().map(|v| self.graph.value(*v));
        values.filter_map(|v| Some((v.name.as_str(), v.fact.as_ref()?)))
    }

    /// Names, types and shapes of the inputs, in model order.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.facts(self.graph.inputs())
    }

    /// Names, types and shapes of the outputs, in model order.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.facts(self.graph.outputs())
    }

    /// Checks names, element types, ranks and sizes of `given` and returns the values of the
    /// symbols. The error lists every problem.
    pub fn check(&self, given: &[Named]) -> Result<Bindings> {
        let tensors = given.iter().rev().map(|(name, t)| (name.as_str(), t));
        let tensors: HashMap<&str, &HostTensor> = tensors.collect();
        let find = |name: &str| tensors.get(name).copied();
        let (mut wrong, mut kind) = (Vec::new(), ErrorKind::Other);
        for (name, fact) in self.inputs() {
            match find(name) {
                None => {
                    kind = ErrorKind::MissingInput;
                    wrong.push(format!("input \"{name}\" is missing; expected {fact}"));
                }
                Some(t) if t.dtype() != fact.dtype || t.shape().len() != fact.shape.rank() => {
                    if kind == ErrorKind::Other {
                        kind = ErrorKind::ShapeMismatch;
                    }
                    wrong.push(format!("input \"{name}\": expected {fact}, found {t:?}"));
                }
                Some(_) => {}
            }
        }
        let inputs: HashSet<&str> = self.inputs().map(|(name, _)| name).collect();
        let mut seen = HashSet::new();
        for (name, _) in given {
            if !inputs.contains(name.as_str()) {
                let known: Vec<&str> = self.inputs().map(|(n, _)| n).collect();
                wrong.push(format!(
                    "the model has no input \"{name}\"; its inputs are {}",
                    known.join(", ")
                ));
            }
            if !seen.insert(name) {
                wrong.push(format!("input \"{name}\" is given twice"));
            }
        }
        if !wrong.is_empty() {
            return Err(Error::other(Stage::Run, wrong.join("\n  ")).of_kind(kind));
        }
        let shapes = self
            .inputs()
            .filter_map(|(name, fact)| Some((name, &fact.shape, find(name)?.shape())));
        bind::solve(shapes)
    }

    /// Checks sizes before a run; the error names the node or value that rejects them. A run may
    /// still fail, because sizes may depend on its data.
    #[doc(hidden)]
    pub fn admits(&self, bindings: &Bindings) -> Result<()> {
        sizes::check(&self.graph, bindings).map_err(|what| Error::other(Stage::Run, what))
    }

    /// Small sizes for the symbols `open` that, together with `fixed`, satisfy the model's shapes;
    /// `None` if none are found.
    #[doc(hidden)]
    pub fn small_sizes(&self, open: &BTreeSet<Symbol>, fixed: &Bindings) -> Option<Bindings> {
        let mut rules = Rules::of(&self.graph);
        for c in self.plan().iter().flat_map(|p| p.conditions()) {
            rules.add(&c.dim, c.equal);
        }
        rules.smallest(open, fixed)
    }

    /// Runs the model with one tensor per input, in any order, and returns the outputs in model
    /// order. On a device, integers must fit in 32 bits. `cancel` ends the run before its next node
    /// on the host or its next segment on the device, with an error of kind
    /// [`ErrorKind::Interrupted`].
    pub fn run(&mut self, given: &[Named], cancel: &Cancel) -> Result<Vec<Named>> {
        let _cancellable = quota::cancellable(cancel);
        let _call = self.quota.enter();
        let bindings = self.check(given)?;
        let graph = self.graph.clone();
        let outputs = graph.outputs().iter().map(|v| (*v, graph.value(*v).name.clone()));
        match &mut self.engine {
            Engine::Reference(interpreter) => {
                let given = given.iter().map(|(name, t)| (name.as_str(), t));
                let given: HashMap<&str, &HostTensor> = given.collect();
                let inputs: HashMap<ValueId, HostTensor> = graph
                    .inputs()
                    .iter()
                    .filter_map(|v| Some((*v, (*given.get(graph.value(*v).name.as_str())?).clone())))
                    .collect();
                let results = interpreter.run(inputs)?;
                let mut out = Vec::with_capacity(results.len());
                for (v, name) in outputs {
                    let tensor = results.get(&v).cloned();
                    let missing = || Error::other(Stage::Run, format!("output \"{name}\" has no value"));
                    out.push((name.clone(), tensor.ok_or_else(missing)?));
                }
                Ok(out)
            }
            Engine::Device(device) => {
                let executor = device.executor(given, &bindings)?;
                executor.run(0, &bindings)?;
                let read = outputs.map(|(_, name)| executor.read(0, &name).map(|t| (name, t)));
                read.collect()
            }
        }
    }

    /// The quota that calls draw on. Code that makes inputs enters it, too.
    #[doc(hidden)]
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Like [`Runner::run`], but returns the time of each step instead of outputs; empty on the
    /// host.
    pub fn profile(&mut self, given: &[Named]) -> Result<Vec<Timing>> {
        let _call = self.quota.enter();
        let bindings = self.check(given)?;
        let Engine::Device(device) = &mut self.engine else {
            return Ok(Vec::new());
        };
        let executor = device.executor(given, &bindings)?;
        executor.profile(0, &bindings)
    }
}

/// Evaluates the shape of an input with every symbol bound; the error names unbound symbols.
pub fn shape_at(name: &str, shape: &Shape, bindings: &Bindings) -> Result<Vec<usize>> {
    shape.eval(bindings).map_err(|e| {
        let kind = match e {
            DimError::Unbound(_) => ErrorKind::MissingInput,
            _ => ErrorKind::Other,
        };
        Error::other(Stage::Run, format!("input \"{name}\" of shape {shape}: {e}")).of_kind(kind)
    })
}

/// Difference of two tensors.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Difference {
    /// Largest absolute difference; NaN if only one of two elements is NaN.
    pub max_abs: f32,
    /// `max_abs` divided by the range of the reference's finite elements. If they are all equal, it
    /// is divided by their magnitude, at least 1.
    pub relative: f32,
    /// Number of differing elements in integer or `bool` tensors.
    pub unequal: usize,
}

/// Compares `found` with `wanted`. An error if type or shape differ.
pub fn compare(found: &HostTensor, wanted: &HostTensor) -> std::result::Result<Difference, String> {
    if found.dtype() != wanted.dtype() || found.shape() != wanted.shape() {
        return Err(format!("expected {wanted:?}, found {found:?}"));
    }
    if !wanted.dtype().is_float() {
        let list = |t: &HostTensor| t.to_i128().map_err(|e| e.to_string());
        let (a, b) = (list(found)?, list(wanted)?);
        let apart = a.iter().zip(&b).filter(|(a, b)| a != b);
        #[expect(clippy::cast_precision_loss, reason = "a measure of difference")]
        let most = apart
            .clone()
            .map(|(a, b)| a.abs_diff(*b) as f32)
            .fold(0.0, f32::max);
        let unequal = apart.count();
        return Ok(Difference {
            max_abs: most,
            relative: if unequal == 0 { 0.0 } else { f32::INFINITY },
            unequal,
        });
    }
    let list = |t: &HostTensor| {
        let data = t.to_f64().map_err(|e| e.to_string());
        data.map(std::borrow::Cow::into_owned)
    };
    let (a, b) = (list(found)?, list(wanted)?);
    let finite = || b.iter().copied().filter(|v| v.is_finite());
    let (low, high) = (
        finite().fold(f64::INFINITY, f64::min),
        finite().fold(f64::NEG_INFINITY, f64::max),
    );
    let mut most = 0f64;
    for (x, y) in a.iter().zip(&b) {
        let same = x == y || x.is_nan() && y.is_nan();
        let d = if same { 0.0 } else { (x - y).abs() };
        if d.is_nan() || d > most {
            most = d;
        }
        if most.is_nan() {
            break;
        }
    }
    let range = if high > low {
        high - low
    } else {
        low.abs().clamp(1.0, f64::MAX)
    };
    #[expect(clippy::cast_possible_truncation, reason = "a measure of difference")]
    Ok(Difference {
        max_abs: most as f32,
        relative: if most == 0.0 { 0.0 } else { (most / range) as f32 },
        unequal: 0,
    })
}
