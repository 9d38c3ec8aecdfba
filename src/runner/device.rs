//! A model on a device, planned for the values of inputs that decide shapes.
//!
//! If a plan for all values leaves nodes on the host, and small inputs decide the shapes of those
//! nodes ([`crate::graph::Op::decides`]), the plan is made for the input values of the first run,
//! which become constants. Other values get a new plan. If this does not help, or the values change
//! often, the plan for all values is used from then on.
//!
//! Kernels that are new on the device can be validated with the inputs of a plan's first run
//! ([`crate::validate::first_run`]).

use crate::backend::{Backend, Caps, SharedBackend};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::executor::{Executor, Program, WeightSource};
use crate::graph::pass::Pipeline;
use crate::graph::{Edit, Graph, ValueId, derive};
use crate::placement::DeviceOnly;
use crate::plan::{Options, Plan};
use crate::shape::{Bindings, Fact};
use crate::tensor::{DType, HostTensor};
use crate::validate::first_run::{FirstRun, OnProgress};
use std::collections::HashSet;
use std::sync::Arc;

use super::cases::{MAX_ELEMENTS, same};
use super::{Checks, Named, RunnerOptions, named};

/// Number of plans for values before the plan for all values is kept.
const MAX_PLANS: usize = 8;

/// State for planning by input values.
struct Special {
    /// The model before any pass.
    model: Graph,
    inputs: Vec<ValueId>,
    /// The input values of the loaded plan.
    values: Option<Vec<HostTensor>>,
    plans: usize,
}

pub(super) struct Device {
    backend: SharedBackend,
    float: DType,
    pipeline: Pipeline,
    /// The model after the passes; `plan` is its plan for all values.
    graph: Arc<Graph>,
    plan: Option<Plan>,
    special: Option<Special>,
    /// `None` before the first run of a model that is planned for values, and after loading a plan
    /// failed.
    executor: Option<Loaded>,
    /// Validation of new kernels, if enabled.
    first_run: Option<FirstRun>,
}

struct Loaded {
    executor: Executor,
    /// The graph of the plan.
    graph: Arc<Graph>,
    /// True if its kernels need no further validation.
    is_validated: bool,
}

fn compile(graph: &Graph, caps: &Caps, float: DType) -> Result<Plan> {
    let options = Options {
        float,
        ..Options::default()
    };
    Plan::compile(graph, caps, &options)
}

/// Writes the inputs of `graph`; other tensors are constants in it.
fn write(executor: &mut Executor, graph: &Graph, given: &[Named]) -> Result<()> {
    let mut inputs = given.iter().filter(|(name, _)| graph.input(name).is_some());
    inputs.try_for_each(|(name, tensor)| executor.write(0, name, tensor))
}

/// The most elements of a list from which values are computed that decide shapes: few for floats,
/// such as the scales of a resize.
fn most(fact: &Fact) -> usize {
    const MAX_FLOATS: usize = 8;
    if fact.dtype.is_float() {
        MAX_FLOATS
    } else {
        MAX_ELEMENTS
    }
}

/// The graph with shapes, as far as they can be derived.
pub(super) fn derived(model: &Graph) -> Graph {
    let mut derived = model.clone();
    if let Err(e) = derive::derive(&mut derived) {
        log::debug!("looking for inputs that decide shapes: {e}");
    }
    derived
}

/// Inputs with small fixed shapes that decide shapes: directly, or short lists from which deciding
/// values are computed.
pub(super) fn deciding(graph: &Graph) -> Vec<ValueId> {
    let mut work: Vec<(ValueId, bool)> = Vec::new();
    for (_, node) in graph.nodes() {
        let operands = node.inputs.iter().enumerate();
        let wanted = operands.filter(|(i, _)| node.op.decides(*i));
        work.extend(wanted.filter_map(|(_, v)| Some(((*v)?, true))));
    }
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    while let Some((v, direct)) = work.pop() {
        if !seen.insert(v) {
            continue;
        }
        if let Some((_, node)) = graph.producer(v) {
            // Shape values are computed from short lists; anything else comes from data.
            let small = graph.fact(v).is_ok_and(|f| {
                let count = f.shape.count().ok().and_then(|n| n.as_const());
                count.is_some_and(|n| usize::try_from(n).is_ok_and(|n| n <= most(f)))
            });
            if !small {
                continue;
            }
            work.extend(node.inputs.iter().flatten().map(|v| (*v, false)));
            continue;
        }
        let fits = |fact: &Fact| {
            let small = fact.shape.as_fixed().is_some_and(|s| {
                let count = s.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
                count.is_some_and(|n| n <= if direct { MAX_ELEMENTS } else { most(fact) })
            });
            small && fact.as_const().is_none()
        };
        if graph.is_input(v) && graph.fact(v).is_ok_and(fits) {
            found.push(v);
        }
    }
    found.sort_unstable();
    found
}

impl Device {
    /// A device without a plan. `pipeline` makes the graphs of plans for values.
    pub fn new(backend: Box<dyn Backend>, pipeline: Pipeline, options: &RunnerOptions) -> Result<Self> {
        let float = options.float;
        if !backend.caps().profile.storage_types().contains(&float) {
            return Err(DeviceOnly::halves_on_native());
        }
        let backend = SharedBackend::new(backend);
        let (backend, first_run) = match &options.checks {
            Checks::Off => (backend, None),
            Checks::On(store) => {
                let first_run = FirstRun::new(backend.caps(), store.clone());
                (backend.tried(store.as_deref()), Some(first_run))
            }
        };
        Ok(Self {
            backend,
            first_run,
            float,
            pipeline,
            graph: Arc::default(),
            plan: None,
            special: None,
            executor: None,
        })
    }

    /// Plans `graph`, which is `model` after the passes. Loads the plan unless it should wait for
    /// input values. The previous one is freed first.
    pub fn load(&mut self, model: Graph, graph: Arc<Graph>) -> Result<()> {
        (self.plan, self.special, self.executor) = (None, None, None);
        let plan = compile(&graph, self.backend.caps(), self.float)?;
        self.graph = graph;
        // Deriving the model again takes time, so only if it may help.
        let inputs = match plan.host.is_empty() {
            true => Vec::new(),
            false => deciding(&derived(&model)),
        };
        if inputs.is_empty() {
            return self.load_plan(self.graph.clone(), plan);
        }
        self.plan = Some(plan);
        self.special = Some(Special {
            model,
            inputs,
            values: None,
            plans: 0,
        });
        Ok(())
    }

    /// Loads a plan of `graph`. The previous one is freed first.
    fn load_plan(&mut self, graph: Arc<Graph>, mut plan: Plan) -> Result<()> {
        self.executor = None;
        if let Some(first_run) = &mut self.first_run {
            while first_run.quarantine_unbuilt(&mut self.backend, std::slice::from_ref(&plan))? {
                plan = compile(&graph, self.backend.caps(), self.float)?;
            }
        }
        let program = Program::load(
            self.backend.clone(),
            &graph,
            vec![plan],
            WeightSource::Files,
            &mut |_, _| {},
        )?;
        self.executor = Some(Loaded {
            executor: Executor::of(&Arc::new(program))?,
            graph,
            is_validated: self.first_run.is_none(),
        });
        Ok(())
    }

    /// Runs the loaded plan on these inputs, validates its new kernels, and reloads it without
    /// incorrect ones. An error if an incorrect kernel has no alternative.
    fn check(&mut self, given: &[Named], bindings: &Bindings) -> Result<()> {
        loop {
            let (Some(first_run), Some(loaded)) = (&mut self.first_run, &mut self.executor) else {
                return Ok(());
            };
            if loaded.is_validated {
                return Ok(());
            }
            let program = loaded.executor.program().clone();
            let (executor, graph) = (&mut loaded.executor, &loaded.graph);
            let is_right = first_run.validate(&mut self.backend, &program, &mut |observer| {
                while !observer.is_empty() {
                    write(executor, graph, given)?;
                    if !observer.run(executor, 0, bindings)? {
                        break;
                    }
                }
                Ok(())
            })?;
            if is_right {
                loaded.is_validated = true;
                return Ok(());
            }
            let graph = loaded.graph.clone();
            // Free the memory of the incorrect program before loading its replacement.
            drop(program);
            self.executor = None;
            let plan = compile(&graph, self.backend.caps(), self.float)?;
            self.load_plan(graph, plan)?;
        }
    }

    /// Capabilities of the device.
    pub fn caps(&self) -> &Caps {
        self.backend.caps()
    }

    /// The loaded plan; before the first run possibly the one for all values.
    pub fn plan(&self) -> Option<&Plan> {
        let loaded = self.executor.as_ref();
        loaded.map_or(self.plan.as_ref(), |l| l.executor.plan(0))
    }

    /// Reports progress of kernel validation to `on_progress`, if enabled.
    pub fn on_kernel_validated(&mut self, on_progress: OnProgress) {
        if let Some(first_run) = &mut self.first_run {
            first_run.set_on_progress(on_progress);
        }
    }

    /// Kernel validation, if enabled.
    pub fn first_run(&self) -> Option<&FirstRun> {
        self.first_run.as_ref()
    }

    /// The executor with a plan for these inputs, which are complete and match `bindings`. The
    /// inputs are written.
    pub fn executor(&mut self, given: &[Named], bindings: &Bindings) -> Result<&mut Executor> {
        if let Some(mut special) = self.special.take() {
            let fits = self.fit(&mut special, given);
            if !matches!(fits, Ok(false)) {
                self.special = Some(special);
            }
            fits?;
        }
        self.check(given, bindings)?;
        let loaded = self.executor.as_mut();
        let loaded = loaded
            .ok_or_else(|| Error::other(Stage::Run, "no plan is loaded because an earlier run failed"))?;
        write(&mut loaded.executor, &loaded.graph, given)?;
        Ok(&mut loaded.executor)
    }

    /// Loads the plan for these inputs if needed. Returns false if the plan for all values is to be
    /// used. A planning error changes nothing; if creating an executor fails, there is none until
    /// the next run.
    fn fit(&mut self, special: &mut Special, given: &[Named]) -> Result<bool> {
        let name = |v: &ValueId| special.model.value(*v).name.as_str();
        let value = |v: &ValueId| named(given, name(v)).cloned();
        let values: Vec<HostTensor> = special.inputs.iter().filter_map(value).collect();
        if values.len() != special.inputs.len() {
            let missing = Error::other(Stage::Run, "an input that decides shapes is missing");
            return Err(missing.of_kind(ErrorKind::MissingInput));
        }
        let fits = |old: &Vec<HostTensor>| old.iter().zip(&values).all(|(a, b)| same(a, b));
        if special.values.as_ref().is_some_and(fits) {
            return Ok(true);
        }
        if special.plans < MAX_PLANS {
            let mut graph = special.model.clone();
            let mut edit = Edit::new(&mut graph);
            for (v, tensor) in special.inputs.iter().zip(&values) {
                edit.set_fact(*v, Fact::of(Arc::new(tensor.clone())));
            }
            self.pipeline.run(&mut graph)?;
            let plan = compile(&graph, self.backend.caps(), self.float)?;
            if self.plan.as_ref().is_none_or(|p| plan.host.len() < p.host.len()) {
                special.values = None;
                self.load_plan(Arc::new(graph), plan)?;
                special.values = Some(values);
                special.plans += 1;
                return Ok(true);
            }
            log::debug!(
                "planning for the values of small inputs does not help; keeping the plan for all values"
            );
        } else {
            log::debug!("made {MAX_PLANS} plans for values of small inputs; keeping the plan for all values");
        }
        if let Some(plan) = self.plan.take() {
            self.load_plan(self.graph.clone(), plan)?;
        }
        Ok(false)
    }
}
