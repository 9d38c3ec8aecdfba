//! Prepares runs: reserves memory, checks and records dispatches.

use super::{Executor, Loaded};
use crate::backend::kernel::KernelSpec;
use crate::backend::{Backend, BackendError, BufferId, Command, KernelId, RecordingId, View};
use crate::error::{Error, Result, Stage};
use crate::plan::{LaunchState, Plan, Segment};
use crate::shape::Bindings;
use std::sync::Arc;

impl Executor {
    /// Reserves the memory of a plan of the program, and records its dispatches unless it is open.
    pub(super) fn load(&mut self, plan: Arc<Plan>, kernels: Arc<[KernelId]>) -> Result<()> {
        let live = create(&mut self.backend, "live values", plan.live_bytes())?;
        let ports = plan.inputs.len() + plan.unread.len();
        self.plans.push(Loaded {
            recordings: Vec::new(),
            bound: LaunchState::default(),
            live,
            host: vec![None; plan.host_values()],
            kernels,
            pending: vec![None; ports],
            written: vec![None; ports],
            plan,
        });
        let last = self.plans.len() - 1;
        if self.plans[last].plan.is_open() {
            Ok(())
        } else {
            self.record(last)
        }
    }

    /// Reserves memory for an open plan, for values up to `bindings`, and records its dispatches
    /// again. An error leaves everything unchanged.
    pub(super) fn grow(&mut self, plan: usize, bindings: &Bindings) -> Result<()> {
        let loaded = self.loaded(plan)?;
        let mut next = Plan::clone(&loaded.plan);
        next.reserve(bindings)?;
        let bytes = next.memory.arena.next_multiple_of(16);
        let (mut again, mut old_arena) = (vec![plan], None);
        if bytes > self.arena.len {
            again = (0..self.plans.len())
                .filter(|i| *i == plan || !self.plans[*i].recordings.is_empty())
                .collect();
            let arena = create(&mut self.backend, "arena", bytes)?;
            old_arena = Some(std::mem::replace(&mut self.arena, arena));
        }
        let old_plan = std::mem::replace(&mut self.plans[plan].plan, Arc::new(next));
        let mut old: Vec<Vec<RecordingId>> = again
            .iter()
            .map(|i| std::mem::take(&mut self.plans[*i].recordings))
            .collect();
        let recorded = again.iter().try_for_each(|i| self.record(*i));
        if recorded.is_err() {
            for (i, old) in again.iter().zip(&mut old) {
                std::mem::swap(&mut self.plans[*i].recordings, old);
            }
            self.plans[plan].plan = old_plan;
            if let Some(arena) = &mut old_arena {
                std::mem::swap(&mut self.arena, arena);
            }
        } else {
            self.plans[plan].bound = LaunchState::default();
        }
        // Unused now: the old recordings and buffers, or the new ones after an error.
        for r in old.into_iter().flatten() {
            self.backend.release(r);
        }
        if let Some(arena) = old_arena {
            self.backend.destroy_buffer(arena.buffer);
        }
        recorded
    }

    /// Checks every dispatch of a plan and returns the commands.
    pub(super) fn commands(&self, index: usize) -> Result<Vec<Command>> {
        let loaded = self.loaded(index)?;
        let plan = &loaded.plan;
        let commands = plan.steps.iter().zip(0u32..).map(|(step, i)| {
            let spec = &plan.kernels[step.kernel];
            let views = step.args.iter().map(|p| {
                let view = self.view(plan, loaded.live, *p);
                view.ok_or_else(|| format!("{p:?} does not exist"))
            });
            let views = views.collect::<Result<Vec<View>, String>>();
            let views = views.and_then(|views| self.check_views(spec, &views).map(|()| views));
            let args = views.map_err(|what| {
                let nodes = step.nodes.join("\", \"");
                let what = format!("step {i}, kernel {spec}, nodes \"{nodes}\": {what}");
                Error::other(Stage::Plan, what)
            })?;
            Ok(Command::Dispatch {
                kernel: loaded.kernels[step.kernel],
                args,
                step: i,
                params: step.params.clone(),
            })
        });
        commands.collect()
    }

    /// Checks number, alignment, size and aliasing of the operands of a kernel.
    fn check_views(&self, spec: &KernelSpec, views: &[View]) -> Result<(), String> {
        let profile = &self.backend.caps().profile;
        let expected = spec.bound().count();
        if views.len() != expected {
            return Err(format!("expected {expected} operands, found {}", views.len()));
        }
        for ((view, (arg, _)), image) in views.iter().zip(spec.bound()).zip(spec.bound_images()) {
            let Some((kind, pixel)) = image else { continue };
            let fits = profile.images.shape(kind, pixel, view.len).is_some();
            if !fits || !view.offset.is_multiple_of(profile.images.align(kind, pixel)) {
                return Err(format!("operand {} at {view:?} does not fit in {kind}", arg.name));
            }
        }
        for (n, (view, (arg, _))) in views.iter().zip(spec.bound()).enumerate() {
            let (name, end) = (arg.name, view.offset + view.len);
            let align = profile.view_align;
            if !view.offset.is_multiple_of(align) || !view.len.is_multiple_of(4) || view.len == 0 {
                return Err(format!(
                    "operand {name} at {view:?} is not aligned to {align} bytes"
                ));
            }
            if view.len > profile.max_view_bytes {
                return Err(format!(
                    "operand {name} has {} bytes, but the device binds at most {}",
                    view.len, profile.max_view_bytes
                ));
            }
            if view.buffer == self.arena.buffer && end > self.arena.len {
                return Err(format!(
                    "operand {name} ends at byte {end}, after the end of the arena at {}",
                    self.arena.len
                ));
            }
            for (other, (arg2, _)) in views.iter().zip(spec.bound()).take(n) {
                let same = other.buffer == view.buffer;
                let overlap = same && other.offset < end && view.offset < other.offset + other.len;
                let mixed = same && arg.role.is_weight() != arg2.role.is_weight();
                if mixed || overlap && (arg.role.writes() || arg2.role.writes()) {
                    return Err(format!(
                        "operands {name} and {} conflict: {view:?} and {other:?}",
                        arg2.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks every dispatch of a plan and records its segments.
    fn record(&mut self, index: usize) -> Result<()> {
        let commands = self.commands(index)?;
        let segments = self.loaded(index)?.plan.segments.iter().filter_map(|s| match s {
            Segment::Device(range) => Some(range.clone()),
            Segment::Host(_) => None,
        });
        for range in segments.collect::<Vec<_>>() {
            let outside = || Error::internal(Stage::Plan, "a segment exceeds the steps of its plan");
            let part = commands.get(range).ok_or_else(outside)?;
            let recording = self.backend.record(part);
            let recording = recording.map_err(|e| Error::device(Stage::Plan, "recording", e))?;
            self.plans[index].recordings.push(recording);
        }
        Ok(())
    }
}

pub(super) fn create(backend: &mut dyn Backend, label: &str, bytes: u64) -> Result<View> {
    let bytes = bytes.next_multiple_of(4).max(4);
    let limit = backend.caps().max_buffer_bytes;
    let failed = |e| Error::device(Stage::Plan, format!("allocating \"{label}\""), e);
    if bytes > limit {
        return Err(failed(BackendError::OutOfMemory {
            label: label.to_owned(),
            bytes,
            why: format!("the device's buffers are limited to {limit} bytes"),
        }));
    }
    let buffer: BufferId = backend.create_buffer(label, bytes).map_err(failed)?;
    Ok(View {
        buffer,
        offset: 0,
        len: bytes,
    })
}
