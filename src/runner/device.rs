//! A model on a device, planned for the values of inputs that decide shapes.
//!
//! Where a plan for all values leaves nodes on the host, and the model has small inputs whose values those nodes want to know
//! ([`crate::graph::Op::decides`]), the plan is made for the values of the first run, which are then constants of the graph. Other values
//! get a new plan. Where that does not help, or values change often, the plan for all values is taken and stays.
//!
//! Kernels of a plan that are new on the device are checked by the inputs of its first run, where that is asked for
//! ([`crate::selftest::first_use`]).

use crate::backend::{Backend, Caps, SharedBackend};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::executor::{Executor, Program, WeightSource};
use crate::graph::pass::Pipeline;
use crate::graph::{Edit, Graph, ValueId};
use crate::plan::{Options, Plan};
use crate::selftest::first_use::{FirstUse, Hear};
use crate::shape::{Bindings, Fact};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

use super::{Checks, Named};

/// Inputs of at most this many elements are worth a plan of their own.
const MOST_ELEMENTS: usize = 64;
/// Plans for values that are made before the plan for all values stays.
const MOST_PLANS: usize = 8;

/// What it takes to plan for values.
struct Special {
    /// The model before any pass.
    model: Graph,
    inputs: Vec<ValueId>,
    /// The values that the loaded plan holds for.
    values: Option<Vec<HostTensor>>,
    plans: usize,
}

/// See the module documentation.
pub(super) struct Device {
    backend: SharedBackend,
    float: DType,
    pipeline: Pipeline,
    /// The model after the passes, with its plan for all values.
    graph: Arc<Graph>,
    plan: Option<Plan>,
    special: Option<Special>,
    /// `None` before the first run of a model that is planned for values, and after an error while a plan was loaded.
    executor: Option<Loaded>,
    /// Checks of new kernels, where they are checked.
    first_use: Option<FirstUse>,
}

/// A plan that is loaded.
struct Loaded {
    executor: Executor,
    /// Of what it was planned.
    graph: Arc<Graph>,
    /// Its kernels need no check, or no further one.
    is_checked: bool,
}

fn compile(graph: &Graph, caps: &Caps, float: DType) -> Result<Plan> {
    let options = Options {
        float,
        ..Options::default()
    };
    Plan::compile(graph, caps, &options)
}

fn write(executor: &mut Executor, given: &[Named]) -> Result<()> {
    let mut all = given.iter();
    all.try_for_each(|(name, tensor)| executor.write(0, name, tensor))
}

/// Inputs of fixed small shapes that nodes want to know: those that decide themselves, and integers that such are computed of.
fn deciding(graph: &Graph) -> Vec<ValueId> {
    let mut work: Vec<(ValueId, bool)> = Vec::new();
    for (_, node) in graph.nodes() {
        let operands = node.inputs.iter().enumerate();
        let wanted = operands.filter(|(i, _)| node.op.decides(*i));
        work.extend(wanted.filter_map(|(_, v)| Some(((*v)?, true))));
    }
    let mut seen = Vec::new();
    let mut found = Vec::new();
    while let Some((v, direct)) = work.pop() {
        if seen.contains(&v) {
            continue;
        }
        seen.push(v);
        if let Some((_, node)) = graph.producer(v) {
            // Sizes and the like are computed of small lists of integers; behind anything else there is data.
            let small = graph.fact(v).is_ok_and(|f| {
                let count = f.shape.count().ok().and_then(|n| n.as_const());
                f.dtype.is_int()
                    && count.is_some_and(|n| usize::try_from(n).is_ok_and(|n| n <= MOST_ELEMENTS))
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
                count.is_some_and(|n| n <= MOST_ELEMENTS)
            });
            small && fact.as_const().is_none() && (direct || !fact.dtype.is_float())
        };
        if graph.inputs().contains(&v) && graph.fact(v).is_ok_and(fits) {
            found.push(v);
        }
    }
    found.sort_unstable();
    found
}

impl Device {
    /// Plans `graph`, which is `model` after the passes of `pipeline`, and loads it unless values of inputs are worth waiting for.
    pub fn new(
        backend: Box<dyn Backend>,
        pipeline: Pipeline,
        model: Graph,
        graph: Arc<Graph>,
        (float, checks): (DType, Checks),
    ) -> Result<Self> {
        let first_use = match checks {
            Checks::Off => None,
            Checks::On(store) => Some(FirstUse::new(backend.caps(), store)),
        };
        let mut device = Self {
            backend: SharedBackend::new(backend),
            first_use,
            float,
            pipeline,
            graph,
            plan: None,
            special: None,
            executor: None,
        };
        let plan = compile(&device.graph, device.backend.caps(), float)?;
        let inputs = deciding(&model);
        if plan.host.is_empty() || inputs.is_empty() {
            device.load(device.graph.clone(), plan)?;
        } else {
            device.plan = Some(plan);
            device.special = Some(Special {
                model,
                inputs,
                values: None,
                plans: 0,
            });
        }
        Ok(device)
    }

    /// Loads a plan of `graph` in the place of the one before, whose memory is freed first.
    fn load(&mut self, graph: Arc<Graph>, mut plan: Plan) -> Result<()> {
        self.executor = None;
        if let Some(first_use) = &mut self.first_use {
            while first_use.leaves_unbuilt(&mut self.backend, std::slice::from_ref(&plan)) {
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
            is_checked: self.first_use.is_none(),
        });
        Ok(())
    }

    /// Runs what is loaded on these inputs and compares its new kernels with the reference, and loads it anew without those that are wrong. An
    /// error where it cannot do without.
    fn check(&mut self, given: &[Named], bindings: &Bindings) -> Result<()> {
        loop {
            let (Some(first_use), Some(loaded)) = (&mut self.first_use, &mut self.executor) else {
                return Ok(());
            };
            if loaded.is_checked {
                return Ok(());
            }
            let program = loaded.executor.program().clone();
            let executor = &mut loaded.executor;
            let is_right = first_use.is_right(&mut self.backend, &program, &mut |watch| {
                while !watch.is_empty() {
                    write(executor, given)?;
                    if !watch.run(executor, 0, bindings)? {
                        break;
                    }
                }
                Ok(())
            })?;
            if is_right {
                loaded.is_checked = true;
                return Ok(());
            }
            let graph = loaded.graph.clone();
            // The memory of what is wrong is freed before other takes its place.
            drop(program);
            self.executor = None;
            let plan = compile(&graph, self.backend.caps(), self.float)?;
            self.load(graph, plan)?;
        }
    }

    /// What the device offers.
    pub fn caps(&self) -> &Caps {
        self.backend.caps()
    }

    /// The plan that is loaded; before the first run perhaps the one for all values.
    pub fn plan(&self) -> Option<&Plan> {
        let loaded = self.executor.as_ref();
        loaded.map_or(self.plan.as_ref(), |l| l.executor.plan(0))
    }

    /// `hear` is told how far checks of kernels have come, where they are checked.
    pub fn hear_checks(&mut self, hear: Hear) {
        if let Some(first_use) = &mut self.first_use {
            first_use.heard_by(hear);
        }
    }

    /// The checks of its kernels, where they are checked.
    pub fn first_use(&self) -> Option<&FirstUse> {
        self.first_use.as_ref()
    }

    /// The executor with a plan for these inputs, which are all there, of sizes of `bindings`, and written.
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
        let loaded = loaded.ok_or_else(|| {
            Error::other(Stage::Run, "no plan is loaded, after the error of an earlier run")
        })?;
        write(&mut loaded.executor, given)?;
        Ok(&mut loaded.executor)
    }

    /// Loads the plan for these inputs unless it is there. False where the plan for all values stays. After an error of planning all is as it
    /// was; where an executor could not be made there is none until the next run.
    fn fit(&mut self, special: &mut Special, given: &[Named]) -> Result<bool> {
        let name = |v: &ValueId| special.model.value(*v).name.as_str();
        let value = |v: &ValueId| given.iter().find(|(n, _)| n == name(v)).map(|(_, t)| t.clone());
        let values: Vec<HostTensor> = special.inputs.iter().filter_map(value).collect();
        if values.len() != special.inputs.len() {
            let missing = Error::other(Stage::Run, "an input is missing");
            return Err(missing.of_kind(ErrorKind::MissingInput));
        }
        let same = |a: &HostTensor, b: &HostTensor| {
            a.dtype() == b.dtype() && a.shape() == b.shape() && a.bytes().ok() == b.bytes().ok()
        };
        let fits = |old: &Vec<HostTensor>| old.iter().zip(&values).all(|(a, b)| same(a, b));
        if special.values.as_ref().is_some_and(fits) {
            return Ok(true);
        }
        if special.plans < MOST_PLANS {
            let mut graph = special.model.clone();
            let mut edit = Edit::new(&mut graph);
            for (v, tensor) in special.inputs.iter().zip(&values) {
                edit.set_fact(*v, Fact::of(Arc::new(tensor.clone())));
            }
            self.pipeline.run(&mut graph)?;
            let plan = compile(&graph, self.backend.caps(), self.float)?;
            if self.plan.as_ref().is_none_or(|p| plan.host.len() < p.host.len()) {
                special.values = None;
                self.load(Arc::new(graph), plan)?;
                special.values = Some(values);
                special.plans += 1;
                return Ok(true);
            }
            log::debug!("the values of small inputs do not help: the plan for all values stays");
        } else {
            log::debug!(
                "{MOST_PLANS} plans for values of small inputs were made: the plan for all values stays"
            );
        }
        if let Some(plan) = self.plan.take() {
            self.load(self.graph.clone(), plan)?;
        }
        Ok(false)
    }
}
