//! Runs a plan and captures what some nodes read and write, to compare their kernels with the
//! reference.

use super::load::create;
use super::pack::from_device;
use super::run::Work;
use super::{Executor, zeros};
use crate::backend::{Backend, BackendError, Command, View};
use crate::error::{Error, Result, Stage};
use crate::graph::Op;
use crate::num;
use crate::plan::{HostRead, HostWork, Plan, Port, Sample};
use crate::shape::Bindings;
use crate::tensor::{DType, HostTensor};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A node as computed in a run on the device.
#[derive(Debug)]
pub struct Observed {
    pub op: Box<dyn Op>,
    pub name: String,
    /// The kernels that computed it, by index into [`crate::plan::Plan::kernels`].
    pub kernels: Vec<usize>,
    /// Operands before the node ran.
    pub inputs: Vec<Option<HostTensor>>,
    /// Results with their element types on the device; `None` for a result that nothing reads.
    pub results: Vec<Option<(HostTensor, DType)>>,
}

/// Captured nodes of a run.
#[derive(Debug)]
pub struct Observation {
    /// The nodes whose values could be captured.
    pub nodes: Vec<Observed>,
    /// There was no room for other wanted nodes; another run may capture them.
    pub more: bool,
}

/// Alignment in bytes at which every device can copy and read.
const ALIGN: u64 = 256;

/// How many bytes a run may capture.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// For all nodes together, if they are several.
    pub together: u64,
    /// For one node; a larger node is skipped.
    pub each: u64,
}

/// A tensor that is copied during the run.
struct Kept {
    from: View,
    at: u64,
    shape: Vec<usize>,
}

/// The copies for a node: operands in the order of those on the device, then results.
struct Capture {
    sample: Sample,
    reads: Vec<Option<Kept>>,
    writes: Vec<Option<Kept>>,
}

impl Executor {
    /// Runs `plan` like [`Executor::run`] and captures what its `wanted` samples read and write.
    /// Values are copied to a buffer on the device during the run, as far as there is `room`, and
    /// read at the end. A node whose values cannot be captured is skipped.
    ///
    /// After [`BackendError::OutOfMemory`], try again with less room; the inputs must be written
    /// again.
    pub fn observe(
        &mut self,
        plan: usize,
        bindings: &Bindings,
        room: Room,
        wanted: &dyn Fn(&Plan, &Sample) -> bool,
    ) -> Result<Observation> {
        self.bind(plan, bindings)?;
        let planned = Arc::clone(&self.loaded(plan)?.plan);
        let mut captures = Vec::new();
        let (mut bytes, mut more) = (0, false);
        for sample in planned.samples.iter().filter(|s| wanted(&planned, s)) {
            let start = bytes;
            match self.prepare(plan, sample.clone(), &mut bytes) {
                Ok(_) if bytes - start > room.each.min(self.backend.caps().max_buffer_bytes) => {
                    log::debug!(
                        "node \"{}\" is not captured: it takes {} bytes",
                        sample.node.name,
                        bytes - start
                    );
                    bytes = start;
                }
                Ok(_) if start > 0 && bytes > room.together => (bytes, more) = (start, true),
                Ok(w) => captures.push(w),
                Err(e) => {
                    bytes = start;
                    let name = &sample.node.name;
                    log::debug!("node \"{name}\" cannot be captured: {}", e.chain());
                }
            }
        }
        let aside = create(&mut self.backend, "observed values", bytes.max(ALIGN))?;
        let found = self
            .run_observed(plan, &captures, aside)
            .and_then(|()| self.collect(plan, captures, aside));
        // The driver may still use queued memory.
        let waited = self.wait();
        self.backend.destroy_buffer(aside.buffer);
        // A lost device refuses launches, too, which is no fault of a kernel.
        let refused = |e: &Error| matches!(e.backend(), Some(BackendError::Launch { .. }));
        match (found, waited) {
            (Err(e), Ok(())) => Err(e),
            (Err(e), Err(_)) if !refused(&e) => Err(e),
            (_, Err(e)) => Err(e),
            (Ok(nodes), Ok(())) => Ok(Observation { nodes, more }),
        }
    }

    /// Decides what is captured for a node, at byte `end` of the buffer, and advances `end`.
    fn prepare(&self, plan: usize, sample: Sample, end: &mut u64) -> Result<Capture> {
        let mut keep = |port: &Port| -> Result<Option<Kept>> {
            let loaded = self.loaded(plan)?;
            let shape = port.shape.eval(loaded.bound.bindings());
            let shape = shape.map_err(|e| Error::other(Stage::Run, format!("\"{}\": {e}", port.name)))?;
            let size = port.device.device_bytes();
            let count = shape.iter().try_fold(size, |n: usize, d| n.checked_mul(*d));
            let len = count.and_then(|n| u64::try_from(n).ok()?.checked_next_multiple_of(4));
            let len =
                len.ok_or_else(|| Error::other(Stage::Run, format!("\"{}\" is too large", port.name)))?;
            if len == 0 || port.storage.is_none() {
                return Ok(None);
            }
            let mut from = self.port_view(loaded, port)?;
            if len > from.len {
                let what = format!(
                    "\"{}\" needs {len} bytes, but has room for {}",
                    port.name, from.len
                );
                return Err(Error::other(Stage::Run, what));
            }
            from.len = len;
            let at = *end;
            *end = (at + len).next_multiple_of(ALIGN);
            Ok(Some(Kept { from, at, shape }))
        };
        let reads = sample.node.reads.iter().map(|r| match r {
            Some(HostRead::Device(port)) => keep(port),
            _ => Ok(None),
        });
        let reads = reads.collect::<Result<_>>()?;
        let writes = sample.node.writes.iter().map(|w| keep(&w.port));
        let writes = writes.collect::<Result<_>>()?;
        Ok(Capture {
            sample,
            reads,
            writes,
        })
    }

    /// Runs `plan`, which must be bound, and copies each node's operands before it and its results
    /// after it.
    fn run_observed(&mut self, plan: usize, captures: &[Capture], aside: View) -> Result<()> {
        let copy = |kept: &Kept| Command::Copy {
            src: kept.from,
            dst: View {
                buffer: aside.buffer,
                offset: aside.offset + kept.at,
                len: kept.from.len,
            },
        };
        let (mut before, mut after): (BTreeMap<usize, Vec<Command>>, BTreeMap<usize, Vec<Command>>) =
            (BTreeMap::new(), BTreeMap::new());
        for w in captures {
            if let (Some(first), Some(last)) = (w.sample.steps.iter().min(), w.sample.steps.iter().max()) {
                before
                    .entry(*first)
                    .or_default()
                    .extend(w.reads.iter().flatten().map(copy));
                after
                    .entry(*last)
                    .or_default()
                    .extend(w.writes.iter().flatten().map(copy));
            }
        }
        let commands = self.commands(plan)?;
        let all = self.loaded(plan)?.plan.segments.len();
        self.walk(plan, 0..all, &mut |executor, work| {
            let steps = match work {
                Work::Host(step) => return executor.run_on_host(plan, step),
                Work::Device(_, steps) => steps,
            };
            let mut part = Vec::new();
            for i in steps {
                part.extend(before.get(&i).into_iter().flatten().cloned());
                part.extend(commands.get(i).cloned());
                part.extend(after.get(&i).into_iter().flatten().cloned());
            }
            let failed = |e| Error::device(Stage::Run, "running with captured values", e);
            let recording = executor.backend.record(&part).map_err(failed)?;
            let launch = &executor.plans[plan].bound.launch;
            let submitted = executor.backend.submit(recording, launch);
            let done = submitted.and_then(|()| executor.backend.wait());
            executor.backend.release(recording);
            done.map_err(failed)
        })
    }

    /// The captured values. A node whose values cannot be read is skipped.
    fn collect(&mut self, plan: usize, captures: Vec<Capture>, aside: View) -> Result<Vec<Observed>> {
        let mut bytes = zeros(aside.len)?;
        let read = self.backend.read(aside, &mut bytes);
        read.map_err(|e| Error::device(Stage::Run, "reading captured values", e))?;
        let mut all = Vec::with_capacity(captures.len());
        for w in captures {
            let name = w.sample.node.name.clone();
            match self.observed(plan, w, &bytes) {
                Ok(observed) => all.extend(observed),
                Err(e) => log::debug!("node \"{name}\" cannot be captured: {}", e.chain()),
            }
        }
        Ok(all)
    }

    fn observed(&mut self, plan: usize, w: Capture, bytes: &[u8]) -> Result<Option<Observed>> {
        let node = w.sample.node;
        let HostWork::Op(op) = node.work else {
            return Ok(None);
        };
        let wrong = |port: &Port, e: String| Error::other(Stage::Run, format!("\"{}\": {e}", port.name));
        let tensor = |port: &Port, kept: &Kept| {
            let start: usize = num::exact(kept.at, "the offset of a captured value")?;
            let from = num::part(bytes, start..)?;
            let tensor = from_device(from, port.dtype, port.device, &kept.shape);
            tensor.map_err(|e| wrong(port, e))
        };
        let mut inputs = Vec::with_capacity(node.reads.len());
        for (read, kept) in node.reads.iter().zip(&w.reads) {
            inputs.push(match (read, kept) {
                (None, _) => None,
                (Some(HostRead::Device(port)), Some(kept)) => Some(tensor(port, kept)?),
                // For an operand without memory, only the shape is used.
                (Some(HostRead::Device(port)), None) => {
                    let shape = port.shape.eval(self.loaded(plan)?.bound.bindings());
                    let shape = shape.map_err(|e| wrong(port, e.to_string()))?;
                    Some(HostTensor::zeros(port.dtype, &shape).map_err(|e| wrong(port, e.to_string()))?)
                }
                (Some(read), _) => Some(self.host_operand(plan, &node.name, read)?),
            });
        }
        let results = node.writes.iter().zip(&w.writes).map(|(write, kept)| {
            let port = &write.port;
            let found = kept.as_ref().map(|kept| tensor(port, kept)).transpose()?;
            Ok(found.map(|t| (t, port.device)))
        });
        let results = results.collect::<Result<_>>()?;
        let loaded = self.loaded(plan)?;
        let grids = &loaded.bound.launch.grids;
        let ran = |s: &&usize| grids.get(**s).is_some_and(|grid| !grid.contains(&0));
        let kernels = w
            .sample
            .steps
            .iter()
            .filter(ran)
            .filter_map(|s| loaded.plan.steps.get(*s))
            .map(|s| s.kernel);
        let kernels: BTreeSet<usize> = kernels.collect();
        Ok(Some(Observed {
            op,
            name: node.name,
            kernels: kernels.into_iter().collect(),
            inputs,
            results,
        }))
    }
}
