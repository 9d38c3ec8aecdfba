//! Dispatches of a recording that run as the stages of persistent kernels
//! (`backend/persistent.rs`).
//!
//! Such a kernel is another program and relies on more driver features than others. Before it is
//! used, everything it writes is compared bit for bit with what its dispatches write one by one,
//! once per device and driver. If that differs, they stay separate dispatches.

use super::build::{JOINED_DIFFERS, Joined};
use super::driver::{KernelObject, Queue};
use super::record::{Block, DriverTime, Step};
use super::replay::{Recorder, Recording};
use super::{OpenCl, with_operands_of};
use crate::backend::kernel::KernelSpec;
use crate::backend::{BackendError, KernelId, Launch, persistent};
use crate::num;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of stages in a kernel.
const MAX_STAGES: usize = 12;
/// How often a sequence of stages must repeat in a recording, as layers do, to be worth a
/// compilation.
const MIN_USES: usize = 4;
/// Number of launches that a program must save per recording to be worth compiling.
const PROGRAM: usize = 16;
/// Maximum size in bytes of the arguments that every device accepts.
const MAX_BYTES: usize = 1024;
/// Maximum number of work-groups in a stage, including failed requests, that its counter can hold.
const MAX_GROUPS: u64 = 1 << 31;

/// The persistent kernels of a device.
#[derive(Default)]
pub(super) struct Persistents {
    /// By the kernels of their stages; `None` for those that are not used.
    made: HashMap<Vec<KernelId>, Option<Joined>>,
    /// Whether a kernel may be a stage.
    stages: HashMap<KernelId, bool>,
    /// The counters, shared by all of them since they run one after another.
    counters: Option<Arc<Block>>,
}

/// Several dispatches of a recording as one.
#[derive(Debug)]
pub(super) struct Persistent {
    object: KernelObject,
    name: Arc<str>,
    kernels: Vec<KernelId>,
    /// The dispatches, among the steps of the recording.
    pub(super) steps: Range<usize>,
    /// Index of the parameters of the first stage among the arguments.
    first_value: u32,
    /// Number of its work-groups.
    groups: usize,
    /// Bytes of its operands.
    bytes: u64,
    /// Parameters and grid of each stage, as the kernel object holds them.
    held: Vec<(Vec<u8>, [u32; 3])>,
}

impl Persistent {
    /// Queues it. `false` if the dispatches are too large for it, and nothing was queued. `steps`
    /// are those of the recording.
    pub(super) fn enqueue(
        &mut self,
        steps: &[Step],
        launch: &Launch,
        queue: &Queue,
        time: &mut DriverTime,
    ) -> Result<bool, BackendError> {
        let name = &self.name;
        let stages = steps.get(self.steps.clone()).unwrap_or_default();
        if stages.iter().any(|step| step.groups(launch) >= MAX_GROUPS) {
            return Ok(false);
        }
        let indices = (self.first_value..).step_by(2);
        for ((step, index), held) in stages.iter().zip(indices).zip(&mut self.held) {
            let Step::Dispatch(dispatch) = step else { continue };
            let (params, grid) = (dispatch.values(launch)?, dispatch.grid(launch)?);
            let mut set = |index: u32, bytes: &[u8]| {
                time.of(|| self.object.set_bytes(index, bytes))
                    .map_err(|code| code.at(format!("clSetKernelArg of kernel {name}")))
            };
            if held.0 != params {
                set(index, params)?;
                held.0.clear();
                held.0.extend_from_slice(params);
            }
            if held.1 != grid {
                let [x, y, z] = grid;
                set(index + 1, bytemuck::cast_slice(&[x, y, z, 0]))?;
                held.1 = grid;
            }
        }
        let global = [self.groups, 1, 1];
        time.of(|| queue.dispatch(&self.object, [0; 3], global, [1; 3], false))
            .map_err(|code| queue.refused_launch(code, name, self.bytes, global))?;
        Ok(true)
    }
}

/// Sequences of kernels with their positions.
type Pieces<K> = Vec<(Vec<K>, Range<usize>)>;

/// The parts of a list of kernels (`None` for a kernel that cannot be a stage) that are worth a
/// persistent kernel: those that save the most launches. `fits` decides whether the arguments of a
/// part fit.
fn pieces<K: Copy + Eq + Hash>(kernels: &[Option<K>], fits: &dyn Fn(&[K]) -> bool) -> Vec<Range<usize>> {
    let all = |length: usize, first: usize| -> Pieces<K> {
        let mut found: Pieces<K> = Vec::new();
        let mut at = first;
        while let Some(piece) = kernels.get(at..at + length) {
            let stages: Option<Vec<K>> = piece.iter().copied().collect();
            found.extend(stages.map(|stages| (stages, at..at + length)));
            at += length;
        }
        let mut uses: HashMap<Vec<K>, usize> = HashMap::new();
        for (stages, _) in &found {
            *uses.entry(stages.clone()).or_default() += 1;
        }
        uses.retain(|stages, count| *count >= MIN_USES && fits(stages));
        found.retain(|(stages, _)| uses.contains_key(stages));
        found
    };
    let starts = (2..=MAX_STAGES).flat_map(|length| (0..length).map(move |first| (length, first)));
    let tried = starts.map(|(length, first)| (length, all(length, first)));
    let saved = |(length, found): &(usize, Pieces<K>)| {
        let programs: HashSet<&[K]> = found.iter().map(|(stages, _)| stages.as_slice()).collect();
        ((length - 1) * found.len()).saturating_sub(PROGRAM * programs.len())
    };
    // Of those that save the same, the shortest, which comes first.
    let best = tried.reduce(|best, next| if saved(&next) > saved(&best) { next } else { best });
    let best = best.filter(|best| saved(best) > 0);
    best.map_or_else(Vec::new, |(_, found)| {
        found.into_iter().map(|(_, range)| range).collect()
    })
}

/// Bytes of the arguments of a stage.
fn argument_bytes(spec: &KernelSpec) -> usize {
    8 * spec.bound().count() + spec.params_bytes() as usize + 24
}

/// Whether the arguments of a kernel with these stages fit every device.
fn fit<'a>(stages: impl Iterator<Item = &'a KernelSpec>) -> bool {
    stages.map(argument_bytes).sum::<usize>() + 8 <= MAX_BYTES
}

impl OpenCl {
    /// Whether dispatches are joined at all; not if they are sliced.
    fn joins(&self) -> bool {
        self.slicer.is_none() && matches!(self.recorder, Recorder::Persistent)
    }

    /// The dispatches of these kernels that [`OpenCl::persistent`] would join.
    pub(super) fn joined_of(&self, kernels: &[&KernelSpec]) -> Vec<Range<usize>> {
        if !self.joins() {
            return Vec::new();
        }
        let mut stages: HashMap<&KernelSpec, bool> = HashMap::new();
        let mut stage = |spec| {
            let is_stage = || persistent::is_stage(spec).unwrap_or(false);
            (*stages.entry(spec).or_insert_with(is_stage)).then_some(spec)
        };
        let stages: Vec<Option<&KernelSpec>> = kernels.iter().map(|spec| stage(spec)).collect();
        pieces(&stages, &|stages| fit(stages.iter().copied()))
    }

    /// The kernel of a dispatch, if it can be a stage.
    fn stage(&mut self, step: &Step) -> Option<KernelId> {
        let Step::Dispatch(dispatch) = step else {
            return None;
        };
        let kernel = dispatch.kernel;
        if !self.persistents.stages.contains_key(&kernel) {
            let spec = self
                .cache
                .iter()
                .find(|(_, id)| **id == kernel)
                .map(|(spec, _)| spec);
            let is_stage = spec.is_some_and(|spec| persistent::is_stage(spec).unwrap_or(false));
            self.persistents.stages.insert(kernel, is_stage);
        }
        let is_stage = self.persistents.stages.get(&kernel);
        is_stage.is_some_and(|is| *is).then_some(kernel)
    }

    /// Persistent kernels for those of `steps` that can be joined.
    pub(super) fn persistent(&mut self, steps: &[Step]) -> Result<Vec<Persistent>, BackendError> {
        if !self.joins() {
            return Ok(Vec::new());
        }
        let kernels: Vec<Option<KernelId>> = steps.iter().map(|step| self.stage(step)).collect();
        let specs: HashMap<KernelId, KernelSpec> = self
            .cache
            .iter()
            .filter(|(_, id)| kernels.contains(&Some(**id)))
            .map(|(spec, id)| (*id, spec.clone()))
            .collect();
        let fits = |stages: &[KernelId]| fit(stages.iter().filter_map(|id| specs.get(id)));
        let mut all = Vec::new();
        for range in pieces(&kernels, &fits) {
            let stages: Vec<KernelId> = kernels
                .get(range.clone())
                .unwrap_or_default()
                .iter()
                .flatten()
                .copied()
                .collect();
            all.extend(self.joined(&stages, &specs, range, steps)?);
        }
        Ok(all)
    }

    /// A persistent kernel with these stages; `None` if it is not available, which is logged.
    fn joined(
        &mut self,
        stages: &[KernelId],
        specs: &HashMap<KernelId, KernelSpec>,
        range: Range<usize>,
        steps: &[Step],
    ) -> Result<Option<Persistent>, BackendError> {
        if !self.persistents.made.contains_key(stages) {
            let of: Vec<&KernelSpec> = stages.iter().filter_map(|id| specs.get(id)).collect();
            let made = match self.builder().build_persistent(&of) {
                Err(lost @ BackendError::Lost(_)) => return Err(lost),
                Err(why) => Err(why.to_string()),
                Ok(made) => made,
            };
            match &made {
                Ok((_, true)) => self.stats.cached += 1,
                Ok((_, false)) => self.stats.compiles += 1,
                Err(why) => {
                    let names: Vec<&str> = of.iter().map(|spec| spec.kernel.name).collect();
                    log::warn!("opencl: kernels {} are not joined: {why}", names.join(", "));
                }
            }
            let made = made.ok().map(|(joined, _)| joined);
            self.persistents.made.insert(stages.to_vec(), made);
        }
        match self.armed(stages, range, steps) {
            Ok(persistent) => Ok(persistent),
            Err(lost @ BackendError::Lost(_)) => Err(lost),
            Err(why) => {
                log::warn!("opencl: dispatches are not joined: {why}");
                self.persistents.made.insert(stages.to_vec(), None);
                Ok(None)
            }
        }
    }

    /// A persistent kernel with its operands set; `None` if there is none for these stages.
    fn armed(
        &mut self,
        stages: &[KernelId],
        range: Range<usize>,
        steps: &[Step],
    ) -> Result<Option<Persistent>, BackendError> {
        let counters = self.counters()?;
        let Some(Some(made)) = self.persistents.made.get(stages) else {
            return Ok(None);
        };
        let mut operands: Vec<Arc<Block>> = Vec::new();
        for step in steps.get(range.clone()).unwrap_or_default() {
            if let Step::Dispatch(dispatch) = step {
                operands.extend(dispatch.args.iter().cloned());
            }
        }
        let name = &made.name;
        let entry = CString::new(persistent::ENTRY).map_err(|why| BackendError::Driver {
            call: format!("kernel {name}"),
            why: why.to_string(),
        })?;
        let mut object = with_operands_of(&made.program, &entry, name, &operands)?;
        let first_value = num::exact(operands.len(), "the number of operands")?;
        let counters_arg = num::exact(operands.len() + 2 * stages.len(), "the index of an argument")?;
        object
            .set_mem(counters_arg, &counters.mem)
            .map_err(|code| counters.error(&format!("clSetKernelArg of kernel {name}"), code))?;
        Ok(Some(Persistent {
            object,
            name: Arc::clone(name),
            kernels: stages.to_vec(),
            steps: range,
            first_value,
            groups: self.caps.profile.assumed_compute_units().max(1) as usize,
            bytes: operands.iter().map(|block| block.bytes).sum(),
            held: vec![(Vec::new(), [u32::MAX; 3]); stages.len()],
        }))
    }

    fn counters(&mut self) -> Result<Arc<Block>, BackendError> {
        if let Some(counters) = &self.persistents.counters {
            return Ok(Arc::clone(counters));
        }
        let bytes = persistent::counter_bytes(MAX_STAGES);
        let mem = self.context.buffer(bytes);
        let label = "counters of stages";
        let mem = mem.map_err(|code| match code.is_out_of_memory() {
            true => BackendError::OutOfMemory {
                label: label.to_owned(),
                bytes: bytes as u64,
                why: format!("clCreateBuffer: {code}"),
            },
            false => code.at(format!("clCreateBuffer of {label}")),
        })?;
        let block = Block {
            mem,
            label: label.into(),
            bytes: bytes as u64,
        };
        self.queue
            .write(&block.mem, 0, &vec![0; bytes])
            .map_err(|code| block.error("clEnqueueWriteBuffer", code))?;
        let block = Arc::new(block);
        self.persistents.counters = Some(Arc::clone(&block));
        Ok(block)
    }

    fn is_unchecked_joined(&self, kernels: &[KernelId]) -> bool {
        let made = self.persistents.made.get(kernels).and_then(Option::as_ref);
        made.is_some_and(|m| m.unchecked.is_some())
    }

    /// If some persistent kernels of a recording have not yet been compared with their dispatches,
    /// runs the recording one by one and compares them. `false` if there was nothing to compare,
    /// and nothing ran.
    pub(super) fn check_persistent(
        &mut self,
        recording: &mut Recording,
        launch: &Launch,
    ) -> Result<bool, BackendError> {
        let unchecked = |p: &Persistent| self.is_unchecked_joined(&p.kernels);
        if !recording.persistent.iter().any(unchecked) {
            return Ok(false);
        }
        let mut all = std::mem::take(&mut recording.persistent);
        let checked = self.check_all(&mut all, recording, launch);
        all.retain(|p| matches!(self.persistents.made.get(&p.kernels), Some(Some(_))));
        recording.persistent = all;
        checked.map(|()| true)
    }

    fn check_all(
        &mut self,
        all: &mut [Persistent],
        recording: &mut Recording,
        launch: &Launch,
    ) -> Result<(), BackendError> {
        let mut at = 0;
        for persistent in all {
            if !self.is_unchecked_joined(&persistent.kernels) {
                continue;
            }
            let range = persistent.steps.clone();
            self.one_by_one(recording, at..range.start, launch)?;
            at = range.end;
            let verdict = self.compare_joined(persistent, recording, launch)?;
            let Some(made) = self.persistents.made.get_mut(&persistent.kernels) else {
                continue;
            };
            let (name, text) = match (&verdict, made.as_mut()) {
                // Try again later.
                (Ok(None), _) | (_, None) => continue,
                (_, Some(joined)) => (Arc::clone(&joined.name), joined.unchecked.take()),
            };
            match &verdict {
                Ok(Some(false)) => log::warn!("opencl: kernel {name} is not used: {JOINED_DIFFERS}"),
                Err(why) => log::warn!("opencl: kernel {name} is not used: it cannot be compared: {why}"),
                Ok(_) => {}
            }
            if verdict != Ok(Some(true)) {
                *made = None;
            }
            if let (Some(text), Ok(Some(is_right))) = (text, verdict) {
                self.builder().store_program_result(&name, &text, is_right);
            }
        }
        self.one_by_one(recording, at..recording.steps.len(), launch)
    }

    /// Runs a persistent kernel, and then its dispatches over the same initial memory. `true` if
    /// everything they write is the same; `None` if not all of its stages ran. The inner error is
    /// the reason why they could not be compared; the dispatches have run then, too.
    fn compare_joined(
        &mut self,
        persistent: &mut Persistent,
        recording: &mut Recording,
        launch: &Launch,
    ) -> Result<Result<Option<bool>, String>, BackendError> {
        let range = persistent.steps.clone();
        let steps = recording.steps.get(range.clone()).unwrap_or_default();
        let runs = |step: &Step| (1..MAX_GROUPS).contains(&step.groups(launch));
        if !steps.iter().all(runs) {
            self.one_by_one(recording, range, launch)?;
            return Ok(Ok(None));
        }
        let mut written: Vec<Arc<Block>> = Vec::new();
        for step in steps {
            let Step::Dispatch(dispatch) = step else { continue };
            for block in self.written(dispatch) {
                if !written.iter().any(|b| Arc::ptr_eq(b, &block)) {
                    written.push(block);
                }
            }
        }
        let saved = match self.save(&written) {
            Ok(saved) => saved,
            Err(BackendError::OutOfMemory { why, .. }) => {
                self.one_by_one(recording, range, launch)?;
                return Ok(Err(format!("no memory: {why}")));
            }
            Err(error) => return Err(error),
        };
        let queued = persistent.enqueue(&recording.steps, launch, &self.queue, &mut self.time);
        let found = queued.and_then(|_| self.contents(&saved));
        let found = match self.put_back(&saved, found) {
            Ok(found) => found,
            Err(lost @ BackendError::Lost(_)) => return Err(lost),
            Err(why) => {
                self.one_by_one(recording, range, launch)?;
                return Ok(Err(why.to_string()));
            }
        };
        self.restore(&saved)?;
        self.one_by_one(recording, range, launch)?;
        Ok(Ok(Some(found == self.contents(&saved)?)))
    }

    fn one_by_one(
        &mut self,
        recording: &mut Recording,
        range: Range<usize>,
        launch: &Launch,
    ) -> Result<(), BackendError> {
        for step in recording.steps.get_mut(range).unwrap_or_default() {
            step.enqueue(&self.queue, launch, None, false, &mut self.time)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, most: usize) -> Vec<Range<usize>> {
        let kernels: Vec<Option<KernelId>> = text
            .bytes()
            .map(|b| (b != b'-').then(|| KernelId(u32::from(b))))
            .collect();
        pieces(&kernels, &|stages| stages.len() <= most)
    }

    #[test]
    fn layers_are_joined_and_what_comes_once_is_not() {
        let layers = |layer: &str, count: usize| format!("xy{}z", layer.repeat(count));
        assert_eq!(found(&layers("abcdef", 4), 12), [2..8, 8..14, 14..20, 20..26]);
        // Two layers at a time save more launches.
        assert_eq!(
            found(&layers("abcdef", 10), 12),
            [2..14, 14..26, 26..38, 38..50, 50..62]
        );
        // Where that does not fit, one program for all layers is better than two.
        assert_eq!(found(&layers("abcdef", 10), 11).len(), 10);
        for too_few in [
            layers("abcdef", 3),
            layers("ab", 5),
            layers("a-b-c-", 40),
            String::new(),
        ] {
            assert_eq!(found(&too_few, 12), Vec::<Range<usize>>::new());
        }
        assert_eq!(found("", 12), Vec::<Range<usize>>::new());
    }
}
