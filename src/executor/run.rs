//! Runs a plan: binds symbols, queues device segments, and evaluates host nodes between them.

use super::{Executor, Loaded, loaded_mut};
use crate::backend::{Backend, BackendError, RecordingId, nanoseconds_since};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::graph::OpError;
use crate::limits;
use crate::num;
use crate::plan::host::{self, HostRead, HostStep};
use crate::plan::{HostWork, Plan, Segment, bind};
use crate::quota::Quota;
use crate::shape::Bindings;
use crate::tensor::HostTensor;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Time of one step in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The dispatch, by index into [`Plan::steps`](crate::plan::Plan::steps); `None` for a node on
    /// the host.
    pub step: Option<usize>,
    /// Display text of the specialised kernel; `None` for a node on the host.
    pub kernel: Option<String>,
    /// Names of the model's nodes that the step computes.
    pub nodes: Vec<String>,
    pub nanoseconds: u64,
}

/// One segment of a plan.
pub(super) enum Work {
    /// A recording, and the steps in it.
    Device(RecordingId, Range<usize>),
    /// A step on the host.
    Host(usize),
}

fn host_step(loaded: &Loaded, step: usize) -> Result<&HostStep> {
    let missing = || Error::internal(Stage::Run, format!("host step {step} of a plan does not exist"));
    loaded.plan.host.get(step).ok_or_else(missing)
}

/// A recording of `plan` failed; `what` was attempted. The nodes of a kernel at fault are named.
fn failed(plan: &Plan, what: &str, e: BackendError) -> Error {
    let step = match &e {
        BackendError::Fault { step, .. } => plan.steps.get(*step),
        _ => None,
    };
    let what = step.map_or_else(
        || what.to_owned(),
        |step| format!("{what} nodes \"{}\"", step.nodes.join("\", \"")),
    );
    Error::device(Stage::Run, what, e)
}

impl Executor {
    pub(super) fn bind(&mut self, plan: usize, bindings: &Bindings) -> Result<()> {
        if self.loaded(plan)?.plan.must_grow(bindings) {
            // Checked first, so that no memory is reserved for shapes that contradict the tensors.
            self.check_shapes(plan, bindings)?;
            self.grow(plan, bindings)?;
        }
        let loaded = loaded_mut(&mut self.plans, plan)?;
        let (p, bound) = (&loaded.plan, &mut loaded.bound);
        p.bind(bindings, bound)?;
        self.check_shapes(plan, bindings)?;
        let loaded = loaded_mut(&mut self.plans, plan)?;
        let (p, bound) = (&loaded.plan, &mut loaded.bound);
        for (i, symbol, scalar) in &p.defined_by_inputs {
            let value = p
                .inputs
                .get(*i)
                .and_then(|p| p.host)
                .and_then(|h| loaded.host.get(h)?.as_ref());
            let value = value.and_then(|t| host::scalar(t, *scalar)).ok_or_else(|| {
                let what = format!("the input that defines {symbol} has not been written");
                Error::other(Stage::Run, what).of_kind(ErrorKind::MissingInput)
            })?;
            p.define(symbol, value, bound)?;
        }
        for at in 0..self.loaded(plan)?.pending.len() {
            let loaded = loaded_mut(&mut self.plans, plan)?;
            let Some(tensor) = loaded.pending[at].take() else {
                continue;
            };
            let port = loaded
                .plan
                .inputs
                .get(at)
                .filter(|p| p.storage.is_some())
                .cloned();
            let Some(port) = port else { continue };
            self.upload(plan, "input", &port, &tensor)?;
        }
        self.refresh(plan)
    }

    fn check_shapes(&self, plan: usize, bindings: &Bindings) -> Result<()> {
        let loaded = self.loaded(plan)?;
        let ports = loaded.plan.inputs.iter().chain(&loaded.plan.unread);
        for (port, shape) in ports.zip(&loaded.written) {
            let Some(shape) = shape else { continue };
            let name = format_args!("input \"{}\"", port.name);
            bind::check_shape(&name, &port.shape, shape, bindings)?;
        }
        Ok(())
    }

    /// Checks the grids and writes the table of live values, if they changed.
    fn refresh(&mut self, plan: usize) -> Result<()> {
        let max_grid = self.backend.caps().profile.max_grid;
        let loaded = loaded_mut(&mut self.plans, plan)?;
        if loaded.bound.grids_changed() {
            for (grid, step) in loaded.bound.launch.grids.iter().zip(&loaded.plan.steps) {
                if grid.iter().any(|g| *g > max_grid) {
                    let spec = &loaded.plan.kernels[step.kernel];
                    return Err(Error::other(
                        Stage::Run,
                        format!(
                            "kernel {spec}, nodes \"{}\": grid {grid:?} exceeds the device's limit of {max_grid}",
                            step.nodes.join("\", \"")
                        ),
                    ));
                }
            }
            loaded.bound.grids_are_checked();
        }
        if loaded.bound.live_changed() {
            if !loaded.bound.live.is_empty() {
                let live = bytemuck::cast_slice(&loaded.bound.live);
                let written = self.backend.write(loaded.live, live);
                written.map_err(|e| Error::device(Stage::Run, "writing the live values", e))?;
            }
            loaded.bound.live_is_written();
        }
        Ok(())
    }

    /// Runs `plan`. Device segments are queued; host nodes wait for the values that they read.
    pub fn run(&mut self, plan: usize, bindings: &Bindings) -> Result<()> {
        self.bind(plan, bindings)?;
        let main = self.loaded(plan)?.plan.main_segments;
        self.submit(plan, 0..main)
    }

    /// Computes the outputs of [`Options::on_request`](crate::plan::Options::on_request) of `plan`,
    /// which was the last to run.
    pub fn run_rest(&mut self, plan: usize) -> Result<()> {
        let p = &self.loaded(plan)?.plan;
        let rest = p.main_segments..p.segments.len();
        if rest.is_empty() {
            return Ok(());
        }
        self.submit(plan, rest)
    }

    fn submit(&mut self, plan: usize, segments: Range<usize>) -> Result<()> {
        self.walk(plan, segments, &mut |executor, work| match work {
            Work::Device(recording, _) => {
                let loaded = &executor.plans[plan];
                let submitted = executor.backend.submit(recording, &loaded.bound.launch);
                submitted.map_err(|e| failed(&loaded.plan, "submitting", e))
            }
            Work::Host(step) => executor.run_on_host(plan, step),
        })
    }

    /// Runs `plan` and returns the time of each step: dispatches by the device's clock, host nodes
    /// including the transfers of their operands and results.
    pub fn profile(&mut self, plan: usize, bindings: &Bindings) -> Result<Vec<Timing>> {
        self.bind(plan, bindings)?;
        let mut all = Vec::new();
        let main = self.loaded(plan)?.plan.main_segments;
        self.walk(plan, 0..main, &mut |executor, work| {
            match work {
                Work::Device(recording, steps) => {
                    let loaded = &executor.plans[plan];
                    let p = &loaded.plan;
                    let times = executor.backend.profile(recording, &loaded.bound.launch);
                    let times = times.map_err(|e| failed(p, "profiling", e))?;
                    let dispatches = num::part(&p.steps, steps.clone())?;
                    let timed = steps.zip(dispatches).zip(times);
                    all.extend(timed.map(|((step, s), nanoseconds)| Timing {
                        step: Some(step),
                        kernel: Some(p.kernels[s.kernel].to_string()),
                        nodes: s.nodes.clone(),
                        nanoseconds,
                    }));
                }
                Work::Host(step) => {
                    let start = Instant::now();
                    executor.run_on_host(plan, step)?;
                    all.push(Timing {
                        step: None,
                        kernel: None,
                        nodes: host_step(executor.loaded(plan)?, step)?.nodes.clone(),
                        nanoseconds: nanoseconds_since(start),
                    });
                }
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Passes some segments of a plan, which must be bound, to `run` in order.
    pub(super) fn walk(
        &mut self,
        plan: usize,
        segments: Range<usize>,
        run: &mut dyn FnMut(&mut Self, Work) -> Result<()>,
    ) -> Result<()> {
        if self.is_cut_short {
            self.clear_counters()?;
        }
        let _call = self.program.quota.as_ref().map(Quota::enter);
        // A failed run may have executed only some parts of a dispatch.
        self.is_cut_short = true;
        if !self.loaded(plan)?.plan.faults.is_empty() && !self.faulty.contains(&plan) {
            self.faulty.push(plan);
        }
        self.segments(plan, segments, run)?;
        self.is_cut_short = false;
        Ok(())
    }

    fn segments(
        &mut self,
        plan: usize,
        segments: Range<usize>,
        run: &mut dyn FnMut(&mut Self, Work) -> Result<()>,
    ) -> Result<()> {
        let p = Arc::clone(&self.loaded(plan)?.plan);
        let on_device = |s: &&Segment| matches!(s, Segment::Device(_));
        let before = num::part(&p.segments, ..segments.start)?;
        let mut recording = before.iter().filter(on_device).count();
        for next in num::part(&p.segments, segments)? {
            limits::check(Stage::Run)?;
            match next {
                Segment::Device(steps) => {
                    self.refresh(plan)?;
                    let id = self.loaded(plan)?.recordings.get(recording).copied();
                    let id = id.ok_or_else(|| Error::internal(Stage::Run, "a segment has no recording"))?;
                    run(self, Work::Device(id, steps.clone()))?;
                    recording += 1;
                }
                Segment::Host(step) => run(self, Work::Host(*step))?,
            }
        }
        Ok(())
    }

    /// Runs one node on the host: reads back operands from the device, evaluates, uploads results
    /// that kernels read.
    pub(super) fn run_on_host(&mut self, plan: usize, step: usize) -> Result<()> {
        let step = host_step(self.loaded(plan)?, step)?.clone();
        let fail = |source: OpError, inputs: &[Option<HostTensor>]| {
            let facts: Vec<String> = inputs
                .iter()
                .map(|t| t.as_ref().map_or_else(|| "-".to_owned(), |t| format!("{t:?}")))
                .collect();
            Error::Node {
                stage: Stage::Run,
                op: step.work.name().to_owned(),
                node: step.name.clone(),
                inputs: facts.join(", "),
                source: source.into(),
            }
        };
        let mut inputs = Vec::with_capacity(step.reads.len());
        for read in &step.reads {
            inputs.push(match read {
                None => None,
                Some(read) => Some(self.host_operand(plan, &step.name, read)?),
            });
        }
        let results = match &step.work {
            HostWork::Op(op) => {
                let operands: Vec<Option<&HostTensor>> = inputs.iter().map(Option::as_ref).collect();
                op.run(&operands).map_err(|e| fail(e, &inputs))?
            }
            HostWork::Known | HostWork::Observe => inputs.iter().flatten().cloned().collect(),
        };
        if results.len() < step.writes.len() {
            return Err(fail(
                OpError::expected("results", step.writes.len(), results.len()),
                &inputs,
            ));
        }
        for (write, tensor) in step.writes.iter().zip(results) {
            let loaded = loaded_mut(&mut self.plans, plan)?;
            for (symbol, scalar) in &write.defines {
                let value = host::scalar(&tensor, *scalar).ok_or_else(|| {
                    fail(
                        OpError::expected(
                            format!("result for {symbol}"),
                            format!("{scalar:?}"),
                            format!("{tensor:?}"),
                        ),
                        &inputs,
                    )
                })?;
                loaded.plan.define(symbol, value, &mut loaded.bound)?;
            }
            let name = format_args!("result \"{}\" of node \"{}\"", write.port.name, step.name);
            bind::check_shape(&name, &write.port.shape, tensor.shape(), loaded.bound.bindings())?;
            if step.is_uploaded(write) {
                self.upload(plan, "result", &write.port, &tensor)?;
            }
            let host = self
                .plans
                .get_mut(plan)
                .and_then(|l| l.host.get_mut(write.port.host?));
            if let Some(slot) = host {
                *slot = Some(tensor);
            }
        }
        Ok(())
    }

    pub(super) fn host_operand(&mut self, plan: usize, node: &str, read: &HostRead) -> Result<HostTensor> {
        let loaded = self.loaded(plan)?;
        let missing = || {
            Error::other(
                Stage::Run,
                format!("node \"{node}\" reads a value that has not been written"),
            )
        };
        match read {
            HostRead::Const(t) => Ok(t.as_ref().clone()),
            HostRead::Host(i) => loaded.host.get(*i).and_then(Clone::clone).ok_or_else(missing),
            HostRead::Dims {
                dtype,
                shape,
                elements,
            } => {
                let failed = |e: String| Error::other(Stage::Run, format!("node \"{node}\": {e}"));
                let shape = shape
                    .eval(loaded.bound.bindings())
                    .map_err(|e| failed(e.to_string()))?;
                let values: Result<Vec<i64>, _> = elements
                    .iter()
                    .map(|q| q.num.eval(loaded.bound.bindings()))
                    .collect();
                let values = values.map_err(|e| failed(e.to_string()))?;
                let tensor = if dtype.is_float() {
                    #[expect(
                        clippy::cast_precision_loss,
                        clippy::cast_possible_truncation,
                        reason = "the nearest float"
                    )]
                    let divided = values
                        .iter()
                        .zip(elements)
                        .map(|(v, q)| (*v as f64 / q.den as f64) as f32);
                    HostTensor::from_floats(*dtype, &shape, &divided.collect::<Vec<f32>>())
                } else {
                    HostTensor::from_ints(*dtype, &shape, &values)
                };
                tensor.map_err(|e| failed(e.to_string()))
            }
            HostRead::Device(port) => self.download(plan, port),
        }
    }
}
