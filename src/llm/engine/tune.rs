//! Numbers of kernels chosen by measuring a decoder on its device.
//!
//! The decoder is planned with the next set of numbers of a kernel for all shapes at once, the kernels that this makes are checked as a first load
//! does, and each dispatch of a prefill and of a decode step is timed. Of each kernel and shape the fastest set is kept.

use super::{Decoder, DeviceDecoder, DeviceModel, Lengths, Rows};
use crate::backend::tunable::{ANY, Tunable, Tuned, Tuning};
use crate::backend::{Backend, BackendError, SharedBackend, verdicts};
use crate::cache::Store;
use crate::error::{Error, Result};
use crate::llm::LanguageModel;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Runs whose least time counts.
const PREFILLS: usize = 2;
const DECODES: usize = 5;
/// Tokens in the cache when decoding is timed, on which nothing that is tuned depends.
const SHORT: usize = 12;
/// Of the default's time; what gains less is noise.
const WORTH: f64 = 0.97;

/// A kernel and a shape, and what was measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TuningRow {
    /// Name of the kernel.
    pub kernel: String,
    /// What it computes.
    pub shape: String,
    /// The default set of numbers.
    pub default: String,
    /// The fastest that is right.
    pub best: String,
    /// Nanoseconds of all dispatches of the shape in a run, by the default.
    pub default_ns: u64,
    /// The same by the fastest.
    pub best_ns: u64,
    /// Sets of the kernel that were measured, the default among them.
    pub tried: usize,
    /// All that it has.
    pub sets: usize,
}

/// Times by kernel and shape.
type Times = BTreeMap<(&'static str, String), (Tuning, u64)>;

/// A decoder that is being tuned.
pub struct Tuner<'s> {
    decoder: Arc<Decoder>,
    backend: SharedBackend,
    lengths: Lengths,
    store: Option<&'s Store>,
    default: Times,
    best: Times,
    sets: Vec<(&'static Tunable, Vec<u32>)>,
    /// Sets that were measured.
    done: usize,
}

impl std::fmt::Debug for Tuner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tuner, {} of {} sets measured", self.done, self.sets.len())
    }
}

impl<'s> Tuner<'s> {
    /// Measures the defaults. Errors: those of planning and loading; a device without times of dispatches; a kernel that is wrong.
    pub fn new(
        decoder: Decoder,
        backend: Box<dyn Backend>,
        lengths: Lengths,
        store: Option<&'s Store>,
    ) -> Result<Self> {
        let backend = SharedBackend::new(backend);
        if !backend.caps().profiling {
            let what = format!("{} tells no times of single dispatches", backend.caps().device);
            return Err(Error::usage("device", what));
        }
        let mut tuner = Self {
            decoder: Arc::new(decoder),
            backend,
            lengths,
            store,
            default: Times::new(),
            best: Times::new(),
            sets: Vec::new(),
            done: 0,
        };
        let default = tuner.measure(Vec::new())?;
        let mut tunables: Vec<&'static Tunable> = default.values().map(|(t, _)| t.tunable).collect();
        tunables.dedup_by_key(|t| t.kernel.name);
        let mut sets = Vec::new();
        for tunable in tunables {
            let choices = (tunable.choices)(tuner.backend.caps());
            // All but the default.
            sets.extend(
                choices
                    .into_iter()
                    .enumerate()
                    .skip(1)
                    .map(|(i, c)| (i, tunable, c)),
            );
        }
        // Kernels take turns, as time may run out.
        sets.sort_by_key(|(i, ..)| *i);
        tuner.sets = sets
            .into_iter()
            .map(|(_, tunable, choice)| (tunable, choice))
            .collect();
        tuner.best.clone_from(&default);
        tuner.default = default;
        Ok(tuner)
    }

    /// Sets of numbers that there are beside the defaults.
    pub fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Sets that were measured.
    pub fn measured(&self) -> usize {
        self.done
    }

    /// Measures the next set of numbers, and keeps in the store what is known so far. False where there is none left. A set that does not build, or
    /// is wrong, is passed over.
    pub fn measure_next(&mut self) -> Result<bool> {
        let Some((tunable, choice)) = self.sets.get(self.done).cloned() else {
            return Ok(false);
        };
        self.done += 1;
        match self.measure(vec![tunable.entry(ANY, &choice)]) {
            Ok(times) => {
                for (key, (tuning, ns)) in times {
                    let better = self.best.get(&key).is_none_or(|(_, least)| ns < *least);
                    if !tuning.is_default && better {
                        self.best.insert(key, (tuning, ns));
                    }
                }
            }
            Err(
                e @ Error::Device {
                    source:
                        BackendError::Build { .. }
                        | BackendError::Unsuited { .. }
                        | BackendError::Wrong { .. }
                        | BackendError::Driver { .. },
                    ..
                },
            ) => log::warn!(
                "{}, {}, is passed over: {}",
                tunable.kernel.name,
                tunable.text(&choice),
                e.chain()
            ),
            Err(e) => return Err(e),
        }
        self.keep();
        Ok(true)
    }

    /// Those that are worth it, for the store: beside what earlier runs found out for other shapes.
    fn keep(&self) {
        let Some(store) = self.store else { return };
        let mut caps = self.backend.caps().clone();
        let measured = |t: &Tuned| self.default.keys().any(|(k, s)| *k == t.kernel && *s == t.shape);
        caps.tuned.retain(|t| !measured(t));
        for (key, (tuning, ns)) in &self.best {
            let default = self.default.get(key).map_or(0, |(_, ns)| *ns);
            if !tuning.is_default && is_worth(default, *ns) {
                caps.tuned
                    .push(tuning.tunable.entry(&tuning.shape, &tuning.choice));
            }
        }
        verdicts::keep_tuned(store, &caps);
    }

    /// What was found out, those that gain most of a run first.
    pub fn rows(&self) -> Vec<TuningRow> {
        let mut rows: Vec<TuningRow> = Vec::new();
        for (key, (default, default_ns)) in &self.default {
            let (best, best_ns) = match self.best.get(key) {
                Some((best, ns)) if is_worth(*default_ns, *ns) => (best, *ns),
                _ => (default, *default_ns),
            };
            let name = key.0;
            let count = |sets: &[(&'static Tunable, Vec<u32>)]| {
                sets.iter().filter(|(t, _)| t.kernel.name == name).count() + 1
            };
            rows.push(TuningRow {
                tried: count(self.sets.get(..self.done).unwrap_or(&self.sets)),
                sets: count(&self.sets),
                kernel: key.0.to_owned(),
                shape: key.1.clone(),
                default: default.tunable.text(&default.choice),
                best: best.tunable.text(&best.choice),
                default_ns: *default_ns,
                best_ns,
            });
        }
        rows.sort_by_key(|r| std::cmp::Reverse(r.default_ns - r.best_ns));
        rows
    }

    /// Times of the dispatches that can be tuned, with `tuned` in place of all defaults.
    fn measure(&self, tuned: Vec<Tuned>) -> Result<Times> {
        let every = tuned.is_empty();
        let backend = self.backend.tuned(tuned);
        let planned = self.decoder.plan_for(backend.caps(), &self.lengths, true)?;
        let loaded = DeviceDecoder::load(self.decoder.clone(), backend, planned, &mut |_, _| {})?;
        loaded.check_all(self.store)?;
        let mut model = loaded.model()?;
        let vocab = model.vocab().max(1);
        let token = |i: usize| u32::try_from((i * 37 + 5) % vocab).unwrap_or(0);
        let mut times = Times::new();
        let most = model.context().saturating_sub(1).max(1);
        let long = self.lengths.chunk.min(most);
        let prompt: Vec<u32> = (0..long).map(token).collect();
        if every || model.is_tuned(&prompt) {
            for _ in 0..PREFILLS {
                model.truncate(0);
                least(&mut times, model.times(&prompt)?);
            }
        }
        let few = SHORT.min(most);
        let one = [token(7)];
        model.truncate(0);
        if self.decoder.keeps_cache && model.context() > few {
            model.advance(prompt.get(..few).unwrap_or(&one), Rows::Last)?;
            if every || model.is_tuned(&one) {
                for _ in 0..DECODES {
                    model.truncate(few);
                    least(&mut times, model.times(&one)?);
                }
            }
        }
        Ok(times)
    }
}

fn is_worth(default: u64, best: u64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "times of runs")]
    let part = best as f64 / default.max(1) as f64;
    part < WORTH
}

/// Takes the smaller time of each.
fn least(times: &mut Times, run: Times) {
    for (key, (tuning, ns)) in run {
        let entry = times.entry(key).or_insert((tuning, u64::MAX));
        entry.1 = entry.1.min(ns);
    }
}

impl DeviceModel {
    /// Times of a run over `tokens`, of what can be tuned.
    fn times(&mut self, tokens: &[u32]) -> Result<Times> {
        let plan = self.next_plan(tokens);
        let timings = self.profile(tokens)?;
        let steps = self.executor.plan(plan).map_or(&[][..], |p| p.steps.as_slice());
        let mut times = Times::new();
        for timing in timings {
            let step = timing.step.and_then(|i| steps.get(i));
            let Some(tuning) = step.and_then(|s| s.tuning.as_ref()) else {
                continue;
            };
            let key = (tuning.tunable.kernel.name, tuning.shape.clone());
            let entry = times.entry(key).or_insert((tuning.clone(), 0));
            entry.1 += timing.nanoseconds;
        }
        Ok(times)
    }

    /// The plan that a run over `tokens` takes.
    fn next_plan(&self, tokens: &[u32]) -> usize {
        self.decoder.run_of(self.short, tokens.len(), self.len).0
    }

    /// Some dispatch of a run over `tokens` is not cut as by default.
    fn is_tuned(&self, tokens: &[u32]) -> bool {
        let plan = self.executor.plan(self.next_plan(tokens));
        let mut steps = plan.iter().flat_map(|p| &p.steps);
        steps.any(|s| s.tuning.as_ref().is_some_and(|t| !t.is_default))
    }
}
