//! Tunes kernel parameters by measuring a decoder on its device.
//!
//! The decoder is planned with the next parameter set of a kernel for all shapes, next to a plan
//! with the defaults that shares the weights. New kernels are validated as on first use. Then every
//! dispatch of a prefill and of a decode step is timed, alternating between the defaults and the
//! set. For each kernel and shape, the fastest set is kept if its gain exceeds measurement noise.

use super::{Decoder, DeviceDecoder, DeviceModel, Logits, SequenceConfig};
use crate::backend::tunable::{ANY, Tunable, Tuned, Tuning};
use crate::backend::{Backend, BackendError, SharedBackend, validation};
use crate::cache::Store;
use crate::error::{Error, Result};
use crate::llm::LanguageModel;
use crate::num;
use crate::quota::Exceeded;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Timed runs per set, after one warm-up run; the median counts.
const PREFILLS: usize = 3;
const DECODES: usize = 5;
/// Tokens in the cache while decode is timed; tuned kernels do not depend on it.
const SHORT: usize = 12;
/// Tokens that caches hold in addition to a prefill.
const BESIDE: usize = 64;
/// A set must take less than this share of the default's time; smaller gains are noise.
const WORTH: f64 = 0.97;

/// Measurement of a kernel and shape.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TuningRow {
    /// Kernel name.
    pub kernel: String,
    /// Shape of the computation.
    pub shape: String,
    /// The default parameters.
    pub default: String,
    /// The parameters used: the default unless another set gains more than noise.
    pub best: String,
    /// Nanoseconds of all dispatches of the shape in a run with the default: the median of runs
    /// alternating with `best`.
    pub default_ns: u64,
    /// Nanoseconds with `best`.
    pub best_ns: u64,
    /// True if another set was faster than the default, but only within noise.
    pub within_noise: bool,
    /// Number of measured sets, including the default.
    pub tried: usize,
    /// Number of available sets.
    pub sets: usize,
}

/// A kernel and a shape.
type Key = (&'static str, String);

/// Times of runs, by kernel and shape.
#[derive(Default)]
struct Times(BTreeMap<Key, (Tuning, Vec<u64>)>);

impl Times {
    /// Adds the times of a run.
    fn add(&mut self, run: BTreeMap<Key, (Tuning, u64)>) {
        for (key, (tuning, ns)) in run {
            let entry = self.0.entry(key).or_insert_with(|| (tuning, Vec::new()));
            entry.1.push(ns);
        }
    }
}

/// The median of times, and the spread of the middle ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    median: u64,
    spread: u64,
}

impl Level {
    /// Zero if there are no times.
    fn of(times: &[u64]) -> Self {
        let mut times = times.to_vec();
        times.sort_unstable();
        let outer = usize::from(times.len() > 3);
        let middle = times.get(outer..times.len() - outer).unwrap_or(&times);
        let ends = middle.first().zip(middle.last());
        Self {
            median: times.get(times.len() / 2).copied().unwrap_or(0),
            spread: ends.map_or(0, |(first, last)| last - first),
        }
    }
}

/// A set measured in alternation with the default.
#[derive(Clone, Debug)]
struct Pair {
    tuning: Tuning,
    default: Level,
    own: Level,
}

impl Pair {
    /// Share of the default's time.
    #[expect(clippy::cast_precision_loss, reason = "times of runs")]
    fn part(&self) -> f64 {
        self.own.median as f64 / self.default.median.max(1) as f64
    }

    /// True if it gains more than noise.
    fn is_worth(&self) -> bool {
        let gain = self.default.median.saturating_sub(self.own.median);
        self.part() < WORTH && gain > self.default.spread.max(self.own.spread)
    }
}

/// The decoder with one parameter set.
struct Loaded {
    decoder: DeviceDecoder,
    model: DeviceModel,
}

/// Tunes a decoder.
pub struct Tuner<'s> {
    decoder: Arc<Decoder>,
    backend: SharedBackend,
    lengths: SequenceConfig,
    store: Option<&'s Store>,
    /// The decoder with the defaults, and its times.
    plain: Loaded,
    default: BTreeMap<Key, (Tuning, Level)>,
    /// The best worthwhile set of each shape.
    best: BTreeMap<Key, Pair>,
    /// Shapes for which a set was faster only within noise.
    close: Vec<Key>,
    sets: Vec<(&'static Tunable, Vec<u32>)>,
    /// Number of tried sets.
    done: usize,
    /// Tried sets that the device had no resources for, so that nothing is known about them.
    unmeasured: Vec<usize>,
}

impl std::fmt::Debug for Tuner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tuner, {} of {} sets measured", self.done, self.sets.len())
    }
}

impl<'s> Tuner<'s> {
    /// Measures the defaults. Errors: planning or loading fails, the device cannot time dispatches,
    /// or a kernel is incorrect.
    pub fn new(
        decoder: Decoder,
        backend: Box<dyn Backend>,
        lengths: SequenceConfig,
        store: Option<&'s Store>,
    ) -> Result<Self> {
        let mut backend = SharedBackend::new(backend);
        if !backend.caps().profiling {
            let what = format!(
                "{} cannot time individual dispatches, which tuning needs",
                backend.caps().device
            );
            return Err(Error::usage("device", what));
        }
        // Tuned kernels do not depend on the context, and both models have their own cache.
        let context = lengths.context.min(lengths.chunk.saturating_add(BESIDE));
        let (decoder, lengths) = (Arc::new(decoder), SequenceConfig { context, ..lengths });
        let plain = loop {
            match load(&decoder, &backend, &lengths, store, None)? {
                Some(plain) => break plain,
                None => backend = backend.without_images(),
            }
        };
        let mut tuner = Self {
            decoder,
            backend,
            lengths,
            store,
            plain,
            default: BTreeMap::new(),
            best: BTreeMap::new(),
            close: Vec::new(),
            sets: Vec::new(),
            done: 0,
            unmeasured: Vec::new(),
        };
        tuner.measure_defaults()?;
        let mut tunables: Vec<&'static Tunable> = tuner.default.values().map(|(t, _)| t.tunable).collect();
        tunables.dedup_by_key(|t| t.kernel.name);
        let mut sets = Vec::new();
        for tunable in tunables {
            let choices = (tunable.choices)(&tuner.backend.caps().profile);
            // All sets except the default.
            sets.extend(
                choices
                    .into_iter()
                    .enumerate()
                    .skip(1)
                    .map(|(i, c)| (i, tunable, c)),
            );
        }
        // Kernels alternate because time may run out; earlier choices are measured first.
        let stored = &tuner.backend.caps().profile.tuned;
        let is_stored = |t: &Tunable, c: &[u32]| stored.iter().any(|s| is_of(s, t, c));
        sets.sort_by_key(|(i, tunable, choice)| (!is_stored(tunable, choice), *i));
        tuner.sets = sets
            .into_iter()
            .map(|(_, tunable, choice)| (tunable, choice))
            .collect();
        Ok(tuner)
    }

    /// Number of sets besides the defaults.
    pub fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Number of measured sets.
    pub fn measured(&self) -> usize {
        self.done
    }

    fn measure_defaults(&mut self) -> Result<()> {
        let runs = Runs::of(&self.decoder, &self.lengths, &self.plain.model)?;
        let mut times = Times::default();
        runs.take(&mut [(&mut self.plain.model, &mut times)], true)?;
        let levels = times.0.into_iter();
        self.default = levels
            .map(|(key, (tuning, ns))| (key, (tuning, Level::of(&ns))))
            .collect();
        Ok(())
    }

    /// Measures the next set and stores the results so far. Returns false if none is left. A set
    /// that does not compile or is incorrect is skipped.
    pub fn measure_next(&mut self) -> Result<bool> {
        let Some((tunable, choice)) = self.sets.get(self.done).cloned() else {
            return Ok(false);
        };
        self.done += 1;
        match self.measure(tunable.entry(ANY, &choice)) {
            Ok(Some(pairs)) => {
                for (key, pair) in pairs {
                    self.take(key, pair);
                }
            }
            // The driver now rejects images: earlier measurements are of other kernels.
            Ok(None) => {
                self.backend = self.backend.without_images();
                let plain = load(&self.decoder, &self.backend, &self.lengths, self.store, None)?;
                if let Some(plain) = plain {
                    self.plain = plain;
                }
                self.measure_defaults()?;
                self.best.clear();
                self.close.clear();
                self.unmeasured.clear();
                self.done = 0;
            }
            Err(e) if is_survivable(&e) => {
                log::warn!(
                    "skipping parameters of {}, {}: {}",
                    tunable.kernel.name,
                    tunable.text(&choice),
                    e.chain()
                );
                if !is_of_the_set(&e) {
                    self.unmeasured.push(self.done - 1);
                }
            }
            Err(e) => return Err(e),
        }
        self.keep();
        Ok(true)
    }

    fn take(&mut self, key: Key, pair: Pair) {
        if pair.is_worth() {
            let better = self.best.get(&key).is_none_or(|best| pair.part() < best.part());
            if better {
                self.best.insert(key, pair);
            }
        } else if pair.own.median < pair.default.median {
            self.close.push(key);
        }
    }

    /// Stores the worthwhile sets, in addition to earlier results that were not measured again.
    fn keep(&self) {
        let Some(store) = self.store else { return };
        let mut caps = self.backend.caps().clone();
        let done = self.sets.iter().enumerate().take(self.done);
        let tried: Vec<_> = done.filter(|(i, _)| !self.unmeasured.contains(i)).collect();
        let best = self.best.values().map(|pair| {
            let t = &pair.tuning;
            t.tunable.entry(&t.shape, &t.choice)
        });
        let shape = |t: &Tuned| self.default.keys().any(|(k, s)| *k == t.kernel && *s == t.shape);
        let again = |t: &Tuned| shape(t) && tried.iter().any(|(_, (tunable, c))| is_of(t, tunable, c));
        caps.profile.tuned = kept(&caps.profile.tuned, &again, best.collect());
        validation::store_tuned(store, &caps);
    }

    /// Results, largest gain first.
    pub fn rows(&self) -> Vec<TuningRow> {
        let mut rows: Vec<TuningRow> = Vec::new();
        for (key, (default, level)) in &self.default {
            let best = self.best.get(key);
            let name = key.0;
            let count = |sets: &[(&'static Tunable, Vec<u32>)]| {
                sets.iter().filter(|(t, _)| t.kernel.name == name).count() + 1
            };
            let used = best.map_or(default, |pair| &pair.tuning);
            rows.push(TuningRow {
                tried: count(self.sets.get(..self.done).unwrap_or(&self.sets)),
                sets: count(&self.sets),
                kernel: key.0.to_owned(),
                shape: key.1.clone(),
                default: default.tunable.text(&default.choice),
                best: used.tunable.text(&used.choice),
                default_ns: best.map_or(level, |pair| &pair.default).median,
                best_ns: best.map_or(level, |pair| &pair.own).median,
                within_noise: best.is_none() && self.close.contains(key),
            });
        }
        rows.sort_by_key(|r| std::cmp::Reverse(r.default_ns.saturating_sub(r.best_ns)));
        rows
    }

    /// Times with `tuned` and with the defaults, in alternation, for shapes that `tuned` changes.
    /// `None` if the driver rejects images, because other kernels would run than planned.
    fn measure(&mut self, tuned: Tuned) -> Result<Option<Vec<(Key, Pair)>>> {
        let backend = self.backend.tuned(vec![tuned]);
        let beside = Some(&self.plain.decoder);
        let Some(mut other) = load(&self.decoder, &backend, &self.lengths, self.store, beside)? else {
            return Ok(None);
        };
        let runs = Runs::of(&self.decoder, &self.lengths, &self.plain.model)?;
        let (mut default, mut own) = (Times::default(), Times::default());
        let mut models = [
            (&mut other.model, &mut own),
            (&mut self.plain.model, &mut default),
        ];
        runs.take(&mut models, false)?;
        let pairs = own.0.into_iter().filter_map(|(key, (tuning, ns))| {
            let (_, beside) = default.0.get(&key)?;
            let pair = Pair {
                default: Level::of(beside),
                own: Level::of(&ns),
                tuning,
            };
            (!pair.tuning.is_default).then_some((key, pair))
        });
        Ok(Some(pairs.collect()))
    }
}

/// Plans the decoder for `backend`, validates its new kernels and shares weights with `beside`.
/// `None` if the driver rejects images.
fn load(
    decoder: &Arc<Decoder>,
    backend: &SharedBackend,
    lengths: &SequenceConfig,
    store: Option<&Store>,
    beside: Option<&DeviceDecoder>,
) -> Result<Option<Loaded>> {
    let backend = match beside {
        None => backend.tuned(Vec::new()),
        Some(_) => backend.clone(),
    };
    let planned = decoder.plan_for(backend.caps(), lengths, true)?;
    let decoder = DeviceDecoder::load_beside(decoder.clone(), backend, planned, beside, &mut |_, _| {})?;
    if !decoder.validate_all(store)? {
        return Ok(None);
    }
    let model = decoder.model()?;
    Ok(Some(Loaded { decoder, model }))
}

/// The runs to time: a prefill, and decode steps with a short cache.
struct Runs {
    prompt: Vec<u32>,
    /// Maximum tokens of short prefill runs with their own plan, or 0.
    short_prefill: usize,
    /// Tokens in the cache of decode steps.
    past: usize,
    token: u32,
    decodes: bool,
}

impl Runs {
    fn of(decoder: &Decoder, lengths: &SequenceConfig, model: &DeviceModel) -> Result<Self> {
        let most = model.context().saturating_sub(1).max(1);
        let past = SHORT.min(most);
        let prompt = (0..lengths.chunk.min(most)).map(|i| decoder.sample_token(i));
        Ok(Self {
            prompt: prompt.collect::<Result<_>>()?,
            short_prefill: match decoder.keeps_cache {
                true => lengths.short_prefill.into_iter().max().unwrap_or(0),
                false => 0,
            },
            past,
            token: decoder.sample_token(7)?,
            decodes: decoder.keeps_cache && model.context() > past,
        })
    }

    /// Times `models` in alternation. Unless `every` is set, only runs in which the first model
    /// uses non-default parameters.
    fn take(&self, models: &mut [(&mut DeviceModel, &mut Times)], every: bool) -> Result<()> {
        let differs = |models: &[(&mut DeviceModel, &mut Times)], tokens: &[u32]| {
            every || models.first().is_some_and(|(m, _)| m.is_tuned(tokens))
        };
        for (model, _) in &mut *models {
            model.truncate(0);
        }
        if differs(models, &self.prompt) {
            in_turn(models, &self.prompt, 0, PREFILLS)?;
        }
        let short = num::part(&self.prompt, ..self.short_prefill)?;
        if !short.is_empty() && differs(models, short) {
            in_turn(models, short, 0, PREFILLS)?;
        }
        if !self.decodes {
            return Ok(());
        }
        let one = [self.token];
        let past = self.prompt.get(..self.past).unwrap_or(&one);
        for (model, _) in &mut *models {
            model.truncate(0);
            model.advance(past, Logits::Last)?;
        }
        if differs(models, &one) {
            in_turn(models, &one, short.len(), DECODES)?;
        }
        Ok(())
    }
}

/// Times several runs per model over `tokens` after the first `past` cached tokens, after one
/// untimed run.
fn in_turn(
    models: &mut [(&mut DeviceModel, &mut Times)],
    tokens: &[u32],
    past: usize,
    runs: usize,
) -> Result<()> {
    for run in 0..=runs {
        for (model, times) in &mut *models {
            model.truncate(past);
            let found = model.times(tokens)?;
            if run > 0 {
                times.add(found);
            }
        }
    }
    Ok(())
}

/// True if other sets can still be measured after this error.
fn is_survivable(e: &Error) -> bool {
    matches!(
        e.backend(),
        Some(
            BackendError::Build { .. }
                | BackendError::Unsuited { .. }
                | BackendError::Launch { .. }
                | BackendError::Wrong { .. }
                | BackendError::OutOfMemory { .. }
                | BackendError::Exceeded(Exceeded::Memory { .. })
                | BackendError::Driver { .. }
        )
    )
}

/// True if the error concerns the set itself, false if the device lacked resources.
fn is_of_the_set(e: &Error) -> bool {
    matches!(
        e.backend(),
        Some(BackendError::Build { .. } | BackendError::Unsuited { .. } | BackendError::Wrong { .. })
    )
}

/// True if a stored choice is this set.
fn is_of(stored: &Tuned, tunable: &Tunable, choice: &[u32]) -> bool {
    stored.kernel == tunable.kernel.name && stored.choice == choice
}

/// What to store: `best`, and every `stored` choice that has no better one in `best` and was not
/// measured `again`.
fn kept(stored: &[Tuned], again: &dyn Fn(&Tuned) -> bool, best: Vec<Tuned>) -> Vec<Tuned> {
    let same = |a: &Tuned, b: &Tuned| (&a.kernel, &a.shape) == (&b.kernel, &b.shape);
    let replaced = |t: &Tuned| best.iter().any(|b| same(t, b));
    let left = stored.iter().filter(|t| !replaced(t) && !again(t));
    left.cloned()
        .collect::<Vec<_>>()
        .into_iter()
        .chain(best.iter().cloned())
        .collect()
}

impl DeviceModel {
    /// Times of the tunable dispatches in a run over `tokens`.
    fn times(&mut self, tokens: &[u32]) -> Result<BTreeMap<Key, (Tuning, u64)>> {
        let plan = self.next_run(tokens, Logits::Last).plan;
        let timings = self.profile(tokens)?;
        let steps = self.executor.plan(plan).map_or(&[][..], |p| p.steps.as_slice());
        let mut times = BTreeMap::new();
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

    /// True if a dispatch of a run over `tokens` uses non-default parameters.
    fn is_tuned(&self, tokens: &[u32]) -> bool {
        let plan = self.executor.plan(self.next_run(tokens, Logits::Last).plan);
        let mut steps = plan.iter().flat_map(|p| &p.steps);
        steps.any(|s| s.tuning.as_ref().is_some_and(|t| !t.is_default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(times: &[u64]) -> Level {
        Level::of(times)
    }

    #[test]
    fn a_level_is_a_median_and_the_spread_of_the_middle() {
        let of = |median, spread| Level { median, spread };
        assert_eq!(level(&[]), of(0, 0));
        assert_eq!(level(&[7]), of(7, 0));
        assert_eq!(level(&[9, 2, 4]), of(4, 7));
        // One run that something else held up does not count.
        assert_eq!(level(&[5, 900, 4, 6, 5]), of(5, 1));
    }

    #[test]
    fn what_gains_no_more_than_noise_is_not_worth_it() {
        let tunable: &'static Tunable = Box::leak(Box::new(Tunable {
            kernel: &KERNEL,
            names: &["items"],
            choices: |_| vec![vec![64], vec![32]],
        }));
        let pair = |default: &[u64], own: &[u64]| Pair {
            tuning: tunable.of(&crate::backend::DeviceProfile::generic_gpu(), "a".to_owned()),
            default: level(default),
            own: level(own),
        };
        assert!(pair(&[100, 101, 102], &[80, 81, 82]).is_worth());
        assert!(!pair(&[100, 101, 102], &[98, 99, 100]).is_worth(), "too little");
        assert!(
            !pair(&[80, 100, 120], &[80, 82, 84]).is_worth(),
            "the default's noise"
        );
        assert!(!pair(&[100, 101, 102], &[60, 80, 99]).is_worth(), "its own");
        assert!(!pair(&[80, 81, 82], &[100, 101, 102]).is_worth(), "slower");
    }

    static KERNEL: crate::backend::kernel::Kernel =
        crate::kernel!("reduce/softmax" { rows, cols: U32 } [x: In, y: Out]);

    #[test]
    fn what_was_not_measured_again_stays() {
        let entry = |shape: &str, items: u32| Tuned {
            kernel: "softmax".to_owned(),
            checksum: 1,
            shape: shape.to_owned(),
            choice: vec![items],
        };
        let stored = [entry("a", 1), entry("b", 2), entry("c", 1)];
        // The set of `a` and `c` was measured again for both shapes, that of `b` was not; `c` has a
        // better one.
        let again = |t: &Tuned| t.choice == [1];
        let all = kept(&stored, &again, vec![entry("c", 4)]);
        assert_eq!(all, [entry("b", 2), entry("c", 4)]);
        assert_eq!(kept(&stored, &|_| false, Vec::new()), stored);
        assert_eq!(kept(&stored, &|_| false, vec![entry("b", 4)])[2], entry("b", 4));
    }
}
