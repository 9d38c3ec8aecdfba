//! Slices: batches of queued work, so that other work of the device, such as drawing the screen,
//! gets its turn in between.
//!
//! A command that has not run yet is a slice of its own, which measures it. From then on, commands
//! are joined into slices that are predicted to stay within the time budget; a command above the
//! budget stays alone. Predictions follow the measured times of slices, within bounds, so that a
//! busy host does not lead to ever smaller slices.

use super::driver::{Event, Queue};
use super::record::Step;
use super::replay::Queued;
use crate::backend::{BackendError, Launch, RecordingId, nanoseconds_since};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Share of the budget that predictions aim for.
const FILL: f64 = 0.75;

/// Bound on the ratio between a command's predicted time and its time when measured alone, in both
/// directions.
const BELIEF: f64 = 8.0;

/// Nanoseconds per work-group of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    /// As predicted.
    now: f64,
    /// As measured alone.
    alone: f64,
}

/// Steps that are queued together.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    pub(super) steps: Range<usize>,
    /// Number of work-groups of all steps.
    groups: u64,
    /// Predicted nanoseconds; infinite for a single step that has not run yet.
    predicted: f64,
}

/// How the work of a recording is cut into slices.
#[derive(Debug)]
pub(super) struct Slices {
    pub(super) all: Vec<Slice>,
    /// Costs of the steps; `None` before the first run.
    costs: Vec<Option<Cost>>,
    /// The grids for which the cut was made.
    grids: Vec<[u32; 3]>,
    /// Measurements require a new cut.
    stale: bool,
    /// Number of this cut.
    version: u64,
}

#[expect(clippy::cast_precision_loss, reason = "times and grids are far below 2^52")]
fn float(n: u64) -> f64 {
    n as f64
}

impl Slices {
    /// Everything in one slice.
    pub(super) fn whole(steps: usize) -> Self {
        Self {
            all: vec![Slice {
                steps: 0..steps,
                groups: 0,
                predicted: 0.0,
            }],
            costs: vec![None; steps],
            grids: Vec::new(),
            stale: true,
            version: 0,
        }
    }

    /// Learns what `slicer` has measured of recording `id`. `true` if a new cut was made, which
    /// measurements or other grids require.
    pub(super) fn follow(
        &mut self,
        id: RecordingId,
        slicer: &mut Slicer,
        steps: &[Step],
        launch: &Launch,
    ) -> bool {
        let budget = slicer.budget;
        slicer.done.retain(|(of, version, slice, took)| {
            if *of == id && *version == self.version {
                self.learn(*slice, *took, budget);
            }
            *of != id
        });
        let renews = self.stale || self.grids != launch.grids;
        if renews {
            self.renew(budget, steps.iter().map(|step| step.groups(launch)));
            self.grids.clone_from(&launch.grids);
        }
        renews
    }

    /// Makes a new cut for slices of `budget` nanoseconds of steps with so many work-groups.
    fn renew(&mut self, budget: u64, groups: impl Iterator<Item = u64>) {
        let most = float(budget) * FILL;
        self.all.clear();
        for (i, (groups, cost)) in groups.zip(&self.costs).enumerate() {
            let time = match cost {
                _ if groups == 0 => 0.0,
                Some(cost) => cost.now * float(groups),
                None => f64::INFINITY,
            };
            match self.all.last_mut() {
                Some(slice) if slice.predicted + time <= most => {
                    slice.steps.end = i + 1;
                    slice.groups += groups;
                    slice.predicted += time;
                }
                _ => self.all.push(Slice {
                    steps: i..i + 1,
                    groups,
                    predicted: time,
                }),
            }
        }
        self.stale = false;
        self.version += 1;
    }

    /// Learns the measured time of a slice of this cut.
    fn learn(&mut self, slice: usize, took: u64, budget: u64) {
        let Some(slice) = self.all.get_mut(slice) else {
            return;
        };
        let (time, expected) = (float(took), slice.predicted);
        log::trace!(
            "opencl: slice of steps {:?} took {took} ns, expected {expected:.0} ns",
            slice.steps
        );
        let ratio = time / expected.max(1.0);
        if expected.is_infinite() {
            let each = time / float(slice.groups);
            if let Some(cost) = self.costs.get_mut(slice.steps.start) {
                *cost = Some(Cost {
                    now: each,
                    alone: each,
                });
            }
            self.stale = true;
        } else if expected > 0.0 && !(0.5..=1.25).contains(&ratio) {
            let costs = self.costs.iter_mut().skip(slice.steps.start);
            for cost in costs.take(slice.steps.len()).flatten() {
                cost.now = (cost.now * ratio).clamp(cost.alone / BELIEF, cost.alone * BELIEF);
            }
            slice.predicted = time;
        }
        // A slice of one step does not become shorter.
        self.stale |= took > budget && ratio > 1.25;
    }
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
    /// It measures a step for the first time.
    is_first: bool,
    queued: Instant,
}

/// The slices of one queue, which must measure times.
#[derive(Debug)]
pub(super) struct Slicer {
    /// Maximum nanoseconds of a slice.
    budget: u64,
    running: VecDeque<Running>,
    /// Measured slices: recording, number of the cut, slice, nanoseconds.
    done: Vec<(RecordingId, u64, usize, u64)>,
    /// End of the last one, by the device's clock.
    ended: u64,
    /// When the last one was seen to have ended, by the host's clock.
    seen: Instant,
    /// Nanoseconds of the longest slice.
    pub(super) longest: u64,
}

impl Slicer {
    pub(super) fn new(budget: u64) -> Self {
        Self {
            budget,
            running: VecDeque::new(),
            done: Vec::new(),
            ended: 0,
            seen: Instant::now(),
            longest: 0,
        }
    }

    /// Waits for the oldest slices in `queue` until at most `left` are running.
    pub(super) fn drain(&mut self, left: usize, queue: &Queue) -> Result<(), BackendError> {
        while self.running.len() > left {
            let Some(oldest) = self.running.pop_front() else {
                return Ok(());
            };
            let Queued { first, last, .. } = &oldest.events;
            let last = last.as_ref().or(first.as_ref());
            match last {
                Some(last) => {
                    last.wait()
                        .map_err(|code| code.while_waiting("clWaitForEvents"))?;
                    last.check().map_err(|code| code.while_waiting("a slice"))?;
                }
                // The driver returned no event.
                None if oldest.runs => queue.finish().map_err(|code| code.while_waiting("clFinish"))?,
                None => continue,
            }
            let by_host = nanoseconds_since(self.seen.max(oldest.queued));
            self.seen = Instant::now();
            let took = match (first.as_ref().map(Event::start), last.map(Event::end)) {
                // Recordings may report a start before the end of the previous work.
                (Some(Ok(begun)), Some(Ok(ended))) => {
                    ended.saturating_sub(begun.max(std::mem::replace(&mut self.ended, ended)))
                }
                // The host's clock shows more, but enough to join commands.
                _ if oldest.is_first => by_host,
                // Recordings may lack times.
                _ => continue,
            };
            self.longest = self.longest.max(took);
            self.done
                .push((oldest.recording, oldest.version, oldest.slice, took));
        }
        Ok(())
    }

    /// Adds a slice of `cut`, the one of recording `id`, that has been queued.
    pub(super) fn push(&mut self, id: RecordingId, cut: &Slices, slice: usize, events: Queued) {
        let queued = cut.all.get(slice);
        self.running.push_back(Running {
            recording: id,
            version: cut.version,
            slice,
            events,
            runs: queued.is_some_and(|s| s.groups > 0),
            is_first: queued.is_some_and(|s| s.predicted.is_infinite()),
            queued: Instant::now(),
        });
    }

    /// Forgets a recording.
    pub(super) fn forget(&mut self, id: RecordingId) {
        self.done.retain(|d| d.0 != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices of steps with these predicted times, and costs of their work-groups.
    fn cut(slices: &[(Range<usize>, f64)], costs: &[f64]) -> Slices {
        let slice = |(steps, predicted): &(Range<usize>, f64)| Slice {
            steps: steps.clone(),
            groups: 100,
            predicted: *predicted,
        };
        let cost = |cost: &f64| {
            Some(Cost {
                now: *cost,
                alone: *cost,
            })
        };
        Slices {
            all: slices.iter().map(slice).collect(),
            costs: costs.iter().map(cost).collect(),
            stale: false,
            ..Slices::whole(0)
        }
    }

    fn costs(cut: &Slices) -> Vec<f64> {
        cut.costs.iter().map(|c| c.unwrap().now).collect()
    }

    #[test]
    fn predictions_follow_within_bounds() {
        let mut cut = cut(&[(0..1, 1e6), (1..3, 3e6)], &[1e4, 1e4, 2e4]);
        cut.learn(0, 1_100_000, 4_000_000);
        assert!(
            costs(&cut) == [1e4, 1e4, 2e4] && !cut.stale,
            "near enough: {cut:?}"
        );
        cut.learn(0, 3_000_000, 4_000_000);
        assert!(
            costs(&cut) == [3e4, 1e4, 2e4] && !cut.stale,
            "within the budget: {cut:?}"
        );
        cut.learn(1, 6_000_000, 4_000_000);
        assert!(costs(&cut) == [3e4, 2e4, 4e4] && cut.stale, "{cut:?}");
        cut.learn(1, 900_000_000, 4_000_000);
        assert_eq!(costs(&cut), [3e4, 8e4, 16e4], "at most eightfold");
        // What was learned of a slice is what is expected of it.
        cut.learn(0, 3_000_000, 4_000_000);
        assert_eq!(costs(&cut)[0], 3e4);
    }

    #[test]
    fn slices_are_filled() {
        let mut cut = cut(&[], &[1e4, 1e4, 2e4, 9e4, 1e4, 1e4]);
        cut.costs[4] = None;
        let steps = |cut: &mut Slices, groups: [u64; 6]| {
            cut.renew(4_000_000, groups.into_iter());
            cut.all.iter().map(|s| s.steps.clone()).collect::<Vec<_>>()
        };
        // The fourth is too long, and the fifth has not run yet.
        assert_eq!(steps(&mut cut, [100; 6]), [0..2, 2..3, 3..4, 4..5, 5..6]);
        assert_eq!(cut.all[3].predicted, f64::INFINITY);
        // What does not run takes no time.
        let whole = steps(&mut cut, [100, 100, 0, 0, 0, 100]);
        assert_eq!(whole, std::slice::from_ref(&(0..6)));
        assert_eq!(steps(&mut cut, [100, 100, 0, 0, 0, 101]), [0..5, 5..6]);
    }

    #[test]
    fn what_has_not_run_is_measured_alone() {
        let mut cut = cut(&[(0..1, f64::INFINITY), (1..2, 1e6)], &[0.0, 1e4]);
        cut.costs[0] = None;
        cut.learn(0, 5_000_000, 4_000_000);
        assert!(costs(&cut) == [5e4, 1e4] && cut.stale, "{cut:?}");
    }
}
