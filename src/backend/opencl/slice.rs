//! Slices: batches of queued work, so that other work of the device, such as drawing the screen,
//! gets its turn in between.
//!
//! The first run of a recording measures each command (`pilot`). From then on, commands are
//! joined into slices that are predicted to stay within the time budget. A command above the budget
//! is cut along its grid if its kernel can run in parts. Predictions follow the measured times of
//! slices, within bounds, so that a busy host does not lead to ever smaller slices.

use super::driver::Queue;
use super::record::{GroupRange, Job, Step};
use super::replay::{Queued, Recording, Target};
use crate::backend::{BackendError, KernelId, Launch, RecordingId, nanoseconds_since};
use crate::num;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

/// Share of the budget that predictions aim for.
const FILL: f64 = 0.75;

/// Bound on the ratio between a command's predicted time and its time when measured alone, in both
/// directions.
const BELIEF: f64 = 8.0;

/// Maximum number of parts of a dispatch.
pub(super) const PARTS: f64 = 64.0;

/// Maximum number of kernels with parameters whose cost is remembered.
const MAX_KNOWN_COSTS: usize = 1 << 12;

/// How the work of a recording is cut into slices.
#[derive(Debug)]
pub(super) struct Slices {
    pub(super) jobs: Vec<Job>,
    /// End index of each slice among the jobs.
    ends: Vec<usize>,
    /// Predicted nanoseconds of each slice.
    predicted: Vec<f64>,
    /// Nanoseconds per work-group of each step; negative if it has not run. Empty before the first
    /// run.
    costs: Vec<f64>,
    /// The same, as measured in the first run.
    measured: Vec<f64>,
    /// The grids for which the cut was made.
    grids: Vec<[u32; 3]>,
    /// A slice took longer than the budget.
    stale: bool,
    /// Number of this cut.
    version: u64,
}

impl Slices {
    /// Everything in one slice.
    pub(super) fn whole(steps: usize) -> Self {
        Self {
            jobs: (0..steps).map(|step| Job { step, part: None }).collect(),
            ends: vec![steps],
            predicted: Vec::new(),
            costs: Vec::new(),
            measured: Vec::new(),
            grids: Vec::new(),
            stale: true,
            version: 0,
        }
    }

    /// The slices, as ranges of the jobs.
    pub(super) fn slices(&self) -> Vec<Range<usize>> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(a, b)| *a..*b).collect()
    }

    /// Nanoseconds per work-group of a step, if known.
    pub(super) fn cost(&self, step: usize) -> Option<f64> {
        self.costs.get(step).copied().filter(|cost| *cost >= 0.0)
    }

    /// Nanoseconds per work-group of a step, as measured in the first run.
    pub(super) fn alone(&self, step: usize) -> Option<f64> {
        self.measured.get(step).copied()
    }

    /// Sets the cost of a work-group of each step when it runs alone, negative if it has not run.
    /// The next submission is cut accordingly.
    pub(super) fn learn_alone(&mut self, costs: Vec<f64>) {
        self.measured.clone_from(&costs);
        self.costs = costs;
        self.stale = true;
    }

    /// Whether there are steps to run whose cost is unknown.
    pub(super) fn is_unknown(&self, steps: &[Step], launch: &Launch) -> bool {
        let unknown = |(step, cost): (&Step, &f64)| *cost < 0.0 && step.groups(launch) > 0;
        self.costs.len() != steps.len() || steps.iter().zip(&self.costs).any(unknown)
    }

    /// Whether measurements require a new cut.
    pub(super) fn is_stale(&self, launch: &Launch) -> bool {
        self.stale || self.grids != launch.grids
    }

    /// The parts of each step that is cut.
    pub(super) fn parts(&self) -> BTreeMap<usize, Vec<GroupRange>> {
        let mut all: BTreeMap<usize, Vec<GroupRange>> = BTreeMap::new();
        for job in &self.jobs {
            if let Some(part) = job.part {
                all.entry(job.step).or_default().push(part);
            }
        }
        all
    }

    /// Steps with a part that is predicted to exceed the budget, with their number of parts.
    pub(super) fn above_in_parts(&self, budget: u64) -> BTreeMap<usize, usize> {
        #[expect(clippy::cast_precision_loss, reason = "a budget is far less than 2^52 ns")]
        let budget = budget as f64;
        let slices = self.slices().into_iter().zip(&self.predicted);
        let above = slices
            .filter(|(_, time)| **time > budget)
            .filter_map(|(jobs, _)| {
                let job = self.jobs.get(jobs.start)?;
                job.part.map(|_| job.step)
            });
        let parts = self.parts();
        above
            .map(|step| (step, parts.get(&step).map_or(1, Vec::len)))
            .collect()
    }

    fn predict(&self, step: usize, groups: u64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 work-groups")]
        let groups = groups as f64;
        self.cost(step).map(|cost| cost * groups)
    }

    /// Steps that are predicted to exceed the budget by themselves.
    pub(super) fn above(&self, budget: u64, steps: &[Step], launch: &Launch) -> Vec<usize> {
        let above = |(i, step): (usize, &Step)| {
            let time = self.predict(i, step.groups(launch))?;
            (time > fill(budget)).then_some(i)
        };
        steps.iter().enumerate().filter_map(above).collect()
    }

    /// Makes a new cut. `axis` returns the axis along which a step can run in parts.
    pub(super) fn renew(
        &mut self,
        budget: u64,
        steps: &[Step],
        launch: &Launch,
        axis: &dyn Fn(usize) -> Option<usize>,
    ) {
        let most = fill(budget);
        let (mut jobs, mut ends, mut predicted) = (Vec::new(), Vec::new(), Vec::new());
        let mut sum = 0.0;
        let mut begun = false;
        for (i, step) in steps.iter().enumerate() {
            let groups = step.groups(launch);
            let time = self.predict(i, groups).unwrap_or(0.0);
            let parts = parts(time, most);
            let along = axis(i).filter(|_| parts > 1);
            let grid = match step {
                Step::Dispatch(d) => launch.grids.get(d.step).copied().unwrap_or_default(),
                _ => [1; 3],
            };
            let pieces = along.map_or_else(Vec::new, |axis| divide(grid, axis, parts));
            if begun && (pieces.len() > 1 || sum + time > most) {
                ends.push(jobs.len());
                predicted.push(sum);
                (sum, begun) = (0.0, false);
            }
            if pieces.len() > 1 {
                #[expect(clippy::cast_precision_loss, reason = "a few parts")]
                let each = time / pieces.len() as f64;
                for part in pieces {
                    jobs.push(Job {
                        step: i,
                        part: Some(part),
                    });
                    ends.push(jobs.len());
                    predicted.push(each);
                }
                continue;
            }
            jobs.push(Job { step: i, part: None });
            sum += time;
            begun = true;
        }
        if begun {
            ends.push(jobs.len());
            predicted.push(sum);
        }
        (self.jobs, self.ends, self.predicted) = (jobs, ends, predicted);
        self.grids.clone_from(&launch.grids);
        self.stale = false;
        self.version += 1;
    }

    /// Learns the measured time of slice `slice` of this cut.
    fn learn(&mut self, slice: usize, took: u64, budget: u64) {
        let Some(range) = self.slices().get(slice).cloned() else {
            return;
        };
        #[expect(clippy::cast_precision_loss, reason = "a slice takes far less than 2^52 ns")]
        let time = took as f64;
        let expected = self.predicted.get(slice).copied().unwrap_or(0.0);
        let ratio = time / expected.max(1.0);
        log::trace!("opencl: slice {slice} took {took} ns, expected {expected:.0} ns");
        if expected > 0.0 && !(0.5..=1.25).contains(&ratio) {
            for job in self.jobs.iter().take(range.end).skip(range.start) {
                // The time of a part counts by its share of the whole.
                let parts = match job.part {
                    Some(_) => self.jobs.iter().filter(|j| j.step == job.step).count(),
                    None => 1,
                };
                #[expect(clippy::cast_precision_loss, reason = "a few parts")]
                let factor = 1.0 + (ratio - 1.0) / parts as f64;
                if let (Some(cost), Some(alone)) = (self.costs.get_mut(job.step), self.measured.get(job.step))
                {
                    // Negative means unknown and stays so.
                    if *alone > 0.0 {
                        *cost = (*cost * factor).clamp(alone / BELIEF, alone * BELIEF);
                    }
                }
            }
            if let Some(predicted) = self.predicted.get_mut(slice) {
                *predicted = time;
            }
        }
        // A slice of one job that cannot be cut does not become shorter.
        self.stale |= took > budget && ratio > 1.25;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a budget is far less than 2^52 ns")]
fn fill(budget: u64) -> f64 {
    budget as f64 * FILL
}

/// Number of parts, at most `most` long each, into which `time` is split.
fn parts(time: f64, most: f64) -> u32 {
    let parts = (time / most.max(1.0)).ceil().clamp(1.0, PARTS);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped above"
    )]
    let parts = parts as u32;
    parts
}

/// At most `parts` parts of nearly equal size along `axis`.
pub(super) fn divide(grid: [u32; 3], axis: usize, parts: u32) -> Vec<GroupRange> {
    let groups = grid.get(axis).copied().unwrap_or(0);
    let parts = parts.min(groups);
    let at =
        |i: u32| u32::try_from(u64::from(groups) * u64::from(i) / u64::from(parts.max(1))).unwrap_or(groups);
    (0..parts)
        .map(|i| GroupRange {
            axis,
            first: at(i),
            count: at(i + 1) - at(i),
        })
        .collect()
}

/// A slice that has been queued.
#[derive(Debug)]
struct Running {
    recording: RecordingId,
    version: u64,
    slice: usize,
    events: Queued,
    /// There is something to wait for.
    runs: bool,
}

/// The slices of one queue, which must measure times.
#[derive(Debug)]
pub(super) struct Slicer {
    /// Maximum nanoseconds of a slice.
    pub(super) budget: u64,
    running: VecDeque<Running>,
    /// Measured slices: recording, number of the cut, slice, nanoseconds.
    done: Vec<(RecordingId, u64, usize, u64)>,
    /// End of the last one, by the device's clock.
    ended: u64,
    /// Nanoseconds of the longest slice, and of the largest batch that first runs queue at once.
    pub(super) longest: u64,
    /// Nanoseconds per work-group of each kernel with parameters that a first run has measured.
    known: HashMap<(KernelId, Box<[u8]>), f64>,
}

impl Slicer {
    pub(super) fn new(budget: u64) -> Self {
        Self {
            budget,
            running: VecDeque::new(),
            done: Vec::new(),
            ended: 0,
            longest: 0,
            known: HashMap::new(),
        }
    }

    /// Nanoseconds that predictions aim for.
    pub(super) fn fill(&self) -> f64 {
        fill(self.budget)
    }

    /// Nanoseconds per work-group of `kernel` with these parameters, if a first run has measured
    /// it.
    pub(super) fn known(&self, kernel: KernelId, params: &[u8]) -> Option<f64> {
        self.known.get(&(kernel, params.into())).copied()
    }

    /// Stores what [`Slicer::known`] returns.
    pub(super) fn know(&mut self, kernel: KernelId, params: &[u8], cost: f64) {
        if self.known.len() >= MAX_KNOWN_COSTS {
            // Entries are measured again after a reset, which keeps short-lived sizes from piling
            // up.
            self.known.clear();
        }
        self.known.insert((kernel, params.into()), cost);
    }

    /// Waits for the oldest slices in `queue` until at most `left` are running.
    pub(super) fn drain(&mut self, left: usize, queue: &Queue) -> Result<(), BackendError> {
        while self.running.len() > left {
            let Some(oldest) = self.running.pop_front() else {
                return Ok(());
            };
            let events = &oldest.events;
            let (Some(first), Some(last)) = (&events.first, events.last.as_ref().or(events.first.as_ref()))
            else {
                if oldest.runs {
                    // The driver returned no event.
                    queue.finish().map_err(|code| code.while_waiting("clFinish"))?;
                }
                continue;
            };
            last.wait()
                .map_err(|code| code.while_waiting("clWaitForEvents"))?;
            last.check().map_err(|code| code.while_waiting("a slice"))?;
            let (begun, ended) = match (first.start(), last.end()) {
                (Ok(begun), Ok(ended)) => (begun, ended),
                (Err(code), _) | (_, Err(code)) => {
                    // Recordings may lack times.
                    log::debug!("opencl: the driver reports no time for a slice: {code}");
                    continue;
                }
            };
            // Recordings may report a start before the end of the previous work.
            let took = ended.saturating_sub(begun.max(self.ended));
            self.ended = ended;
            self.longest = self.longest.max(took);
            self.done
                .push((oldest.recording, oldest.version, oldest.slice, took));
        }
        Ok(())
    }

    /// Registers queued work.
    #[cfg(test)]
    pub(super) fn ran(&mut self, events: Queued, runs: bool) {
        self.running.push_back(Running {
            recording: RecordingId(0),
            version: 0,
            slice: 0,
            events,
            runs,
        });
    }

    /// Forgets a recording.
    pub(super) fn forget(&mut self, id: RecordingId) {
        self.done.retain(|d| d.0 != id);
    }
}

impl Recording {
    /// Moves the measurements of a recording's slices into it.
    pub(super) fn learn(&mut self, id: RecordingId, slicer: &mut Slicer) {
        let budget = slicer.budget;
        let version = self.cut.version;
        let cut = &mut self.cut;
        slicer.done.retain(|(of, made, slice, took)| {
            if *of == id && *made == version {
                cut.learn(*slice, *took, budget);
            }
            *of != id
        });
    }

    /// Queues all slices, each after the one before the last is done. `true` if the driver replayed
    /// all dispatches.
    pub(super) fn submit_slices(
        &mut self,
        id: RecordingId,
        launch: &Launch,
        slicer: &mut Slicer,
        to: &mut Target<'_>,
    ) -> Result<bool, BackendError> {
        self.prepare(launch, to)?;
        let mut replayed = true;
        for (slice, jobs) in self.cut.slices().into_iter().enumerate() {
            let start = Instant::now();
            slicer.drain(1, to.queue)?;
            to.time.nanoseconds += nanoseconds_since(start);
            let events = self.enqueue(&jobs, launch, true, to)?;
            replayed &= events.replayed;
            to.time
                .of(|| to.queue.flush())
                .map_err(|code| code.while_waiting("clFlush"))?;
            let steps = &self.steps;
            let runs = |job: &Job| steps.get(job.step).is_some_and(|s| s.groups(launch) > 0);
            slicer.running.push_back(Running {
                recording: id,
                version: self.cut.version,
                slice,
                events,
                runs: num::part(&self.cut.jobs, jobs)?.iter().any(runs),
            });
        }
        Ok(replayed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_follow_within_bounds() {
        let mut cut = Slices::whole(2);
        let whole = |step| Job { step, part: None };
        let part = |first| Job {
            step: 1,
            part: Some(GroupRange {
                axis: 0,
                first,
                count: 5,
            }),
        };
        (cut.jobs, cut.ends) = (vec![whole(0), part(0), part(5)], vec![1, 2, 3]);
        (cut.predicted, cut.costs, cut.measured) = (vec![1e6, 3e6, 3e6], vec![1e4, 6e5], vec![1e4, 6e5]);
        cut.stale = false;
        cut.learn(0, 1_100_000, 4_000_000);
        assert!(cut.costs == [1e4, 6e5] && !cut.stale, "near enough: {cut:?}");
        cut.learn(0, 3_000_000, 4_000_000);
        assert!(
            cut.costs == [3e4, 6e5] && !cut.stale,
            "within the budget: {cut:?}"
        );
        // A half of it took twice as long.
        cut.learn(1, 6_000_000, 4_000_000);
        assert!((cut.costs[1] - 9e5).abs() < 1.0 && cut.stale, "{cut:?}");
        cut.learn(2, 900_000_000, 4_000_000);
        assert!((cut.costs[1] - 48e5).abs() < 1.0, "at most eightfold: {cut:?}");
        // What was learned of a slice is what is expected of it.
        cut.learn(0, 3_000_000, 4_000_000);
        assert_eq!(cut.costs[0], 3e4);
    }

    #[test]
    fn parts_above_the_budget_are_told() {
        let mut cut = Slices::whole(2);
        let part = |first| Job {
            step: 1,
            part: Some(GroupRange {
                axis: 0,
                first,
                count: 1,
            }),
        };
        (cut.jobs, cut.ends) = (vec![Job { step: 0, part: None }, part(0), part(1)], vec![1, 2, 3]);
        cut.predicted = vec![9e6, 3e6, 3e6];
        assert_eq!(cut.above_in_parts(4_000_000), BTreeMap::new());
        assert_eq!(cut.above_in_parts(2_000_000), BTreeMap::from([(1, 2)]));
    }

    #[test]
    fn grids_are_divided_without_a_gap() {
        for (groups, parts) in [(10, 3), (3, 7), (1, 4), (4096, 4096), (7, 1)] {
            let all = divide([5, groups, 2], 1, parts);
            assert_eq!(all.len(), parts.min(groups) as usize);
            let mut next = 0;
            for part in &all {
                assert_eq!((part.axis, part.first), (1, next));
                assert!(part.count > 0);
                next += part.count;
            }
            assert_eq!(next, groups);
        }
    }

    #[test]
    fn parts_fit_the_budget() {
        assert_eq!(
            (parts(5.0, 10.0), parts(10.0, 10.0), parts(10.1, 10.0)),
            (1, 1, 2)
        );
        assert_eq!(parts(f64::MAX, 1.0), 64);
    }
}
