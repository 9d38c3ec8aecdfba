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
use crate::plan::Plan;
use crate::quant::fixed::Arithmetic;
use crate::quota::{self, Quota};
use crate::shape::{Bindings, DimError, Fact, Shape, Symbol};
use crate::tensor::{DType, HostTensor};
use crate::validate::first_run::{FirstRun, OnProgress};
use cases::{Case, Granted};
use device::Device;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

mod cases;
mod device;

/// What runs the model. The interpreters are `None` until one is needed.
enum Engine {
    Reference(Option<Interpreter>),
    /// The interpreter serves runs that cannot be planned.
    Device(Box<Device>, Option<Interpreter>),
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
    /// The model before any pass.
    model: Graph,
    pipeline: Pipeline,
    /// The model after the passes if its shapes can be derived for all runs, otherwise `model`.
    general: Arc<Graph>,
    /// Whether shapes for all runs can be derived.
    is_planned: bool,
    /// What the engine can run; `None` until a run supplies the sizes that planning needs, and
    /// after planning failed.
    ready: Option<Ready>,
    engine: Engine,
    passes: Vec<PassReport>,
    notes: Vec<Note>,
    /// Applies to every call: a run may plan, too.
    quota: Quota,
}

/// A graph that the engine runs, and what it takes for granted.
struct Ready {
    granted: Granted,
    graph: Arc<Graph>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runner of {} nodes", self.model.nodes().count())
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
    /// Seed of operators that draw random numbers, unless the node has its own attribute `seed`.
    /// Each run draws the same numbers.
    pub seed: u64,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            float: DType::F32,
            checks: Checks::Off,
            limits: Limits::default(),
            integer: Some(Arithmetic::Float),
            seed: 0,
        }
    }
}

impl RunnerOptions {
    /// Reads the ONNX file `path`.
    #[doc(hidden)]
    pub fn import(&self, path: &Path) -> Result<Graph> {
        let options = ImportOptions {
            read_files: self.limits.read_files,
            seed: self.seed,
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
        let model = import()?;
        let mut graph = model.clone();
        let planned = pipeline.run(&mut graph);
        let (general, passes, is_planned) = match planned {
            Ok(passes) => (graph, passes, true),
            Err(e) if cases::is_open(&model) && cases::may_pass(&e) => (model.clone(), Vec::new(), false),
            Err(e) => return Err(e),
        };
        let device = |backend| Device::new(backend, pipeline.clone(), options).map(Box::new);
        let mut runner = Self {
            model,
            pipeline: pipeline.clone(),
            general: Arc::new(general),
            is_planned,
            ready: None,
            engine: match backend {
                None => Engine::Reference(None),
                Some(backend) => Engine::Device(device(backend)?, None),
            },
            passes,
            notes: Vec::new(),
            quota: quota.clone(),
        };
        if is_planned {
            let granted = Granted::of(Case::Any, &runner.model, &[], &[]);
            let graph = runner.general.clone();
            match runner.make_ready(granted, runner.model.clone(), graph) {
                Err(e) if !(cases::is_open(&runner.model) && cases::may_pass(&e)) => return Err(e),
                _ => {}
            }
        }
        Ok(runner)
    }

    /// Prepares the engine for `graph`, which is `model` after the passes.
    fn make_ready(&mut self, granted: Granted, model: Graph, graph: Arc<Graph>) -> Result<()> {
        self.ready = None;
        let interpreted = || {
            let interpreter = Interpreter::new(graph.clone())?;
            Ok::<_, Error>(match granted.case {
                Case::Run => interpreter.underived(),
                _ => interpreter,
            })
        };
        match &mut self.engine {
            Engine::Reference(interpreter) => *interpreter = Some(interpreted()?),
            Engine::Device(_, interpreter) if granted.case == Case::Run => {
                *interpreter = Some(interpreted()?);
            }
            Engine::Device(device, interpreter) => {
                *interpreter = None;
                device.load(model, graph.clone())?;
            }
        }
        self.ready = Some(Ready { granted, graph });
        Ok(())
    }

    /// Prepares the engine for a run with these inputs, unless it is, and returns the values of
    /// the symbols in its graph.
    fn prepare(&mut self, given: &[Named]) -> Result<Bindings> {
        if let Some(Ready { granted, graph }) = &self.ready
            && granted.is(&Granted::of(granted.case, &self.model, given, &granted.names()))
            && let Ok(bindings) = cases::solved(graph, given)
            && (granted.case == Case::Run || cases::holds(graph, &bindings))
        {
            return Ok(bindings);
        }
        let axes = cases::misnamed(&self.model, given);
        let (model, names) = cases::renamed(&self.model, &axes);
        let mut failed = None;
        let mut values = Vec::new();
        for case in Case::ALL {
            let mut why = None;
            match case {
                // Known from loading the model.
                Case::Any if axes.is_empty() && !self.is_planned => continue,
                Case::Values => {
                    let sizes = Granted::of(Case::Sizes, &model, given, &[]);
                    values = cases::deciding(&sizes.applied(&model, given)?, given);
                }
                Case::Run => {
                    why = failed.take_if(|e: &mut Error| e.kind() == ErrorKind::Unsupported);
                    if why.is_none() {
                        break;
                    }
                }
                Case::Any | Case::Ones | Case::Sizes => {}
            }
            let granted = Granted::of(case, &model, given, &values);
            let ready = self.planned(&granted, &model, given).and_then(|planned| {
                let Some((applied, graph, bindings)) = planned else {
                    return Ok(None);
                };
                let graph = Arc::new(graph);
                self.make_ready(granted, applied, graph.clone())?;
                Ok(Some((graph, bindings)))
            });
            match ready {
                Ok(None) => {}
                Ok(Some((graph, bindings))) => {
                    log::debug!("planned for a run: {case:?}");
                    if let Some(e) = why {
                        self.not_planned(e.chain());
                    }
                    if !names.is_empty() {
                        self.notes.push(Note::SizesDiffer { names });
                    }
                    if !axes.is_empty() {
                        self.general = if case == Case::Any {
                            graph
                        } else {
                            Arc::new(model.clone())
                        };
                        self.model = model;
                        self.is_planned = case == Case::Any;
                    }
                    return Ok(bindings);
                }
                Err(e) if cases::may_pass(&e) || cases::is_mismatch(&e) => failed = Some(e),
                Err(e) => return Err(e),
            }
        }
        // Report contradictory sizes rather than the errors that follow from them.
        cases::solved(&self.model, given)?;
        let impossible = || Error::internal(Stage::Plan, "a run of known sizes fits no plan");
        Err(failed.unwrap_or_else(impossible))
    }

    /// Notes once that the interpreter runs what cannot be planned.
    fn not_planned(&mut self, why: String) {
        if !self.notes.iter().any(|n| matches!(n, Note::NotPlanned { .. })) {
            self.notes.push(Note::NotPlanned { why });
        }
    }

    /// The model with what is taken for granted, before and after the passes, and the values of its
    /// symbols in a run; `None` if the run contradicts the assumptions of its shapes.
    fn planned(
        &self,
        granted: &Granted,
        model: &Graph,
        given: &[Named],
    ) -> Result<Option<(Graph, Graph, Bindings)>> {
        let applied = granted.applied(model, given)?;
        let mut graph = applied.clone();
        if granted.case != Case::Run {
            self.pipeline.run(&mut graph)?;
        }
        let bindings = cases::solved(&graph, given)?;
        let holds = granted.case == Case::Run || cases::holds(&graph, &bindings);
        Ok(holds.then_some((applied, graph, bindings)))
    }

    /// Reports of the passes.
    pub fn passes(&self) -> &[PassReport] {
        &self.passes
    }

    /// Notes so far: kernels that are not used, sizes that contradict their names, runs that cannot
    /// be planned.
    pub fn notes(&self) -> impl Iterator<Item = &Note> {
        let kernels = self.first_run().map_or(&[][..], FirstRun::notes);
        kernels.iter().chain(&self.notes)
    }

    /// Number of kernels validated so far.
    pub fn validated_kernels(&self) -> usize {
        self.first_run().map_or(0, FirstRun::validated)
    }

    /// Calls `on_progress` after each validated kernel, with the number validated and the total.
    pub fn on_kernel_validated(&mut self, on_progress: OnProgress) {
        if let Engine::Device(device, _) = &mut self.engine {
            device.on_kernel_validated(on_progress);
        }
    }

    fn first_run(&self) -> Option<&FirstRun> {
        match &self.engine {
            Engine::Reference(_) => None,
            Engine::Device(device, _) => device.first_run(),
        }
    }

    /// Capabilities of the device; `None` for the interpreter.
    #[doc(hidden)]
    pub fn caps(&self) -> Option<&Caps> {
        match &self.engine {
            Engine::Reference(_) => None,
            Engine::Device(device, _) => Some(device.caps()),
        }
    }

    /// The plan on the device, of the last run if plans depend on input values; `None` for the
    /// interpreter, also if it ran what cannot be planned.
    #[doc(hidden)]
    pub fn plan(&self) -> Option<&Plan> {
        match &self.engine {
            Engine::Reference(_) | Engine::Device(_, Some(_)) => None,
            Engine::Device(device, None) => device.plan(),
        }
    }

    fn facts<'a>(&'a self, list: &'a [ValueId]) -> impl Iterator<Item = (&'a str, &'a Fact)> {
        let values = list.iter().map(|v| self.general.value(*v));
        values.filter_map(|v| Some((v.name.as_str(), v.fact.as_ref()?)))
    }

    /// Names, types and shapes of the inputs, in model order, without those of
    /// [`Runner::unranked`].
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.facts(self.general.inputs())
    }

    /// Names and types of the inputs whose number of axes the model does not state.
    pub fn unranked(&self) -> impl Iterator<Item = (&str, DType)> {
        let all = self.general.unranked().iter();
        all.map(|(v, dtype)| (self.general.value(*v).name.as_str(), *dtype))
    }

    /// Names, types and shapes of constants that a run may replace: initializers that the model
    /// also lists as inputs. A new value makes the next run plan again.
    pub fn defaults(&self) -> impl Iterator<Item = (&str, &Fact)> {
        let values = self.model.defaults().iter().map(|v| self.model.value(*v));
        values.filter_map(|v| Some((v.name.as_str(), v.fact.as_ref()?)))
    }

    /// Names, types and shapes of the outputs, in model order, as far as they are known before a
    /// run.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.facts(self.general.outputs())
    }

    /// Checks names, element types and ranks, then sizes, and returns the values of the symbols.
    /// Sizes may contradict the model's dimension names. The error lists every problem with names,
    /// types and ranks, or the first with sizes.
    pub fn check(&self, given: &[Named]) -> Result<Bindings> {
        self.check_tensors(given)?;
        let misnamed = cases::misnamed(&self.model, given);
        if misnamed.is_empty() {
            return cases::solved(&self.general, given);
        }
        // The model's names for sizes do not hold; the run tries without them.
        cases::solved(&cases::renamed(&self.model, &misnamed).0, given)
    }

    /// Checks names, element types and ranks. The error lists every problem.
    fn check_tensors(&self, given: &[Named]) -> Result<()> {
        let (mut wrong, mut kind) = (Vec::new(), ErrorKind::Other);
        let mut known = HashSet::new();
        let ranked = self.inputs().map(|(name, fact)| (name, fact.dtype, Some(fact)));
        let unranked = self.unranked().map(|(name, dtype)| (name, dtype, None));
        for (name, dtype, fact) in ranked.chain(unranked) {
            known.insert(name);
            let fits =
                |t: &HostTensor| t.dtype() == dtype && fact.is_none_or(|f| t.shape().len() == f.shape.rank());
            let expected = || fact.map_or_else(|| dtype.to_string(), ToString::to_string);
            match named(given, name) {
                None => {
                    kind = ErrorKind::MissingInput;
                    wrong.push(format!("input \"{name}\" is missing; expected {}", expected()));
                }
                Some(t) if !fits(t) => {
                    if kind == ErrorKind::Other {
                        kind = ErrorKind::ShapeMismatch;
                    }
                    wrong.push(format!("input \"{name}\": expected {}, found {t:?}", expected()));
                }
                Some(_) => {}
            }
        }
        let defaults: HashMap<&str, &Fact> = self.defaults().collect();
        let mut seen = HashSet::new();
        for (name, t) in given {
            match defaults.get(name.as_str()) {
                Some(fact) if t.dtype() != fact.dtype || t.shape().len() != fact.shape.rank() => {
                    wrong.push(format!("input \"{name}\": expected {fact}, found {t:?}"));
                }
                None if !known.contains(name.as_str()) => {
                    let all = self.inputs().map(|(n, _)| n);
                    let all = all.chain(self.unranked().map(|(n, _)| n));
                    let mut all: Vec<String> = all.map(str::to_owned).collect();
                    // Weights that may be replaced; a network can have hundreds.
                    match defaults.len() {
                        0 => {}
                        n @ 1..=8 => all.extend(self.defaults().take(n).map(|(n, _)| n.to_owned())),
                        n => all.push(format!("and {n} weights")),
                    }
                    wrong.push(format!(
                        "the model has no input \"{name}\"; its inputs are {}",
                        all.join(", ")
                    ));
                }
                _ => {}
            }
            if !seen.insert(name) {
                wrong.push(format!("input \"{name}\" is given twice"));
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Error::other(Stage::Run, wrong.join("\n  ")).of_kind(kind))
    }

    /// Checks sizes before a run; the error names the node or value that rejects them. A run may
    /// still fail, because sizes may depend on its data.
    #[doc(hidden)]
    pub fn admits(&self, bindings: &Bindings) -> Result<()> {
        sizes::check(&self.general, bindings).map_err(|what| Error::other(Stage::Run, what))
    }

    /// Small sizes for the symbols `open` that, together with `fixed`, satisfy the model's shapes;
    /// `None` if none are found.
    #[doc(hidden)]
    pub fn small_sizes(&self, open: &BTreeSet<Symbol>, fixed: &Bindings) -> Option<Bindings> {
        let mut rules = Rules::of(&self.general);
        for c in self.plan().iter().flat_map(|p| p.conditions()) {
            rules.add(&c.dim, c.equal);
        }
        rules.smallest(open, fixed)
    }

    /// Runs the model with one tensor per input, in any order, and returns the outputs in model
    /// order. Tensors for [`Runner::defaults`] are optional. If the inputs break the current plan's
    /// assumptions, the run first plans again; without a plan, the interpreter runs it and
    /// [`Runner::notes`] says why. On a device, an integer input that its readers do not accept is
    /// an error, such as an index outside its axis. `cancel` ends the run before its next node on
    /// the host or its next segment on the device, with an error of kind
    /// [`ErrorKind::Interrupted`].
    pub fn run(&mut self, given: &[Named], cancel: &Cancel) -> Result<Vec<Named>> {
        let _cancellable = quota::cancellable(cancel);
        let _call = self.quota.enter();
        self.check_tensors(given)?;
        let bindings = self.prepare(given)?;
        match self.execute(given, &bindings) {
            // A data-dependent size may be 1 on a broadcast axis.
            Err(e) if e.kind() == ErrorKind::ShapeMismatch && self.depends_on_data() => {
                let granted = Granted::of(Case::Run, &self.model, given, &[]);
                let applied = granted.applied(&self.model, given)?;
                self.make_ready(granted, applied.clone(), Arc::new(applied))?;
                let results = self.execute(given, &bindings)?;
                self.not_planned(e.chain());
                Ok(results)
            }
            found => found,
        }
    }

    /// Whether the plan on a device assumes something of sizes that data defines.
    fn depends_on_data(&self) -> bool {
        let made = |r: &Ready| r.granted.case != Case::Run && !r.graph.made().is_empty();
        matches!(self.engine, Engine::Device(..)) && self.ready.as_ref().is_some_and(made)
    }

    /// Runs what is ready.
    fn execute(&mut self, given: &[Named], bindings: &Bindings) -> Result<Vec<Named>> {
        let Some(Ready { graph, .. }) = &self.ready else {
            return Err(Error::internal(Stage::Run, "nothing is ready to run"));
        };
        let outputs = graph.outputs().iter().map(|v| (*v, graph.value(*v).name.clone()));
        let (Engine::Reference(interpreter) | Engine::Device(_, interpreter)) = &self.engine;
        if let Some(interpreter) = interpreter {
            let inputs = graph.inputs().iter();
            let inputs: HashMap<ValueId, HostTensor> = inputs
                .filter_map(|v| Some((*v, named(given, &graph.value(*v).name)?.clone())))
                .collect();
            let results = interpreter.run(inputs)?;
            let mut out = Vec::with_capacity(results.len());
            for (v, name) in outputs {
                let tensor = results.get(&v).cloned();
                let missing = || Error::other(Stage::Run, format!("output \"{name}\" has no value"));
                out.push((name.clone(), tensor.ok_or_else(missing)?));
            }
            return Ok(out);
        }
        let Engine::Device(device, _) = &mut self.engine else {
            return Err(Error::internal(Stage::Run, "the interpreter is not ready"));
        };
        let executor = device.executor(given, bindings)?;
        executor.run(0, bindings)?;
        let read = outputs.map(|(_, name)| executor.read(0, &name).map(|t| (name, t)));
        read.collect()
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
        self.check_tensors(given)?;
        let bindings = self.prepare(given)?;
        let Engine::Device(device, None) = &mut self.engine else {
            return Ok(Vec::new());
        };
        let executor = device.executor(given, &bindings)?;
        executor.profile(0, &bindings)
    }
}

/// The tensor with this name.
fn named<'a>(given: &'a [Named], name: &str) -> Option<&'a HostTensor> {
    given.iter().find(|(n, _)| n == name).map(|(_, t)| t)
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
