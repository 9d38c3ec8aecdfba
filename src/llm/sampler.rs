//! Chooses the next token from logits. Steps, in the usual order: logit bias; repetition, frequency
//! and presence penalties; DRY; grammar; top-k; typical-p; top-p; min-p; temperature; the draw.

mod filters;
mod penalties;
mod range;

pub use penalties::{Dry, Penalties};
pub use range::Range;

use super::candidates::{CandidateRow, Candidates};
use super::constraint::Constraint;
use super::schema::DefaultBound;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::num;
use filters::Candidate;

/// Sampling settings.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Added to the logits of these tokens; minus infinity forbids a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Penalties for tokens in the context.
    pub penalties: Penalties,
    /// Penalties for tokens that would repeat a sequence of the context.
    pub dry: Dry,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Locally typical sampling: keeps the tokens whose information is closest to the entropy, with
    /// at least this total probability; 1 keeps all.
    pub typical_p: f32,
    /// Keeps the fewest most likely tokens whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Keeps the tokens at least this many times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides the remaining logits; 0 always picks the most likely token.
    pub temperature: f32,
    /// Seed of the random generator. Equal seeds give equal texts if the logits are equal: on the
    /// same device, with the same options and the same part of the prompt from the KV cache. Drafts
    /// may resolve near-ties differently from run to run, since their lengths follow measured
    /// times.
    pub seed: u64,
}

impl Default for SamplerConfig {
    /// Greedy.
    fn default() -> Self {
        Self {
            logit_bias: Vec::new(),
            penalties: Penalties::default(),
            dry: Dry::default(),
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            temperature: 0.0,
            seed: 0,
        }
    }
}

impl SamplerConfig {
    /// Sampling with the usual settings: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, seed 0.
    pub fn sampling() -> Self {
        Self {
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            temperature: 0.8,
            ..Self::default()
        }
    }

    /// True if random numbers take part in the choice.
    pub fn is_random(&self) -> bool {
        self.temperature > 0.0 && self.top_k != 1
    }
}

/// Name of a number in [`SamplerConfig`] for errors, and its valid range.
pub type Setting = (&'static str, Range);

/// [`SamplerConfig::temperature`].
pub const TEMPERATURE: Setting = ("temperature", Range::of(0.0, f32::INFINITY));
/// [`SamplerConfig::top_p`].
pub const TOP_P: Setting = ("top_p", Range::above(0.0, 1.0));
/// [`SamplerConfig::typical_p`].
pub const TYPICAL_P: Setting = ("typical_p", Range::above(0.0, 1.0));
/// [`SamplerConfig::min_p`].
pub const MIN_P: Setting = ("min_p", Range::of(0.0, 1.0));
/// [`Penalties::repetition`].
pub const REPETITION: Setting = ("repetition_penalty", Range::of(0.01, 100.0));
/// [`Penalties::frequency`].
pub const FREQUENCY: Setting = ("frequency_penalty", Range::of(-2.0, 2.0));
/// [`Penalties::presence`].
pub const PRESENCE: Setting = ("presence_penalty", Range::of(-2.0, 2.0));
/// [`Dry::multiplier`].
pub const DRY_MULTIPLIER: Setting = ("dry_multiplier", Range::of(0.0, f32::INFINITY));
/// [`Dry::base`].
pub const DRY_BASE: Setting = ("dry_base", Range::of(1.0, f32::INFINITY));

impl SamplerConfig {
    /// A usage error for a number out of range.
    fn check(&self) -> Result<()> {
        let numbers = [
            (TEMPERATURE, self.temperature),
            (TOP_P, self.top_p),
            (TYPICAL_P, self.typical_p),
            (MIN_P, self.min_p),
            (REPETITION, self.penalties.repetition),
            (FREQUENCY, self.penalties.frequency),
            (PRESENCE, self.penalties.presence),
            (DRY_MULTIPLIER, self.dry.multiplier),
            (DRY_BASE, self.dry.base),
        ];
        for ((name, range), found) in numbers {
            if !range.holds(found) {
                return Err(Error::usage(
                    name,
                    format!("{found} is out of range; expected {range}"),
                ));
            }
        }
        match self
            .logit_bias
            .iter()
            .find(|(_, b)| b.is_nan() || *b == f32::INFINITY)
        {
            Some((id, bias)) => Err(Error::usage(
                "logit_bias",
                format!("{bias} for token {id} is not valid; expected a finite number or -inf"),
            )),
            None => Ok(()),
        }
    }

    /// True if the logits are used unchanged.
    fn is_plain(&self) -> bool {
        self.logit_bias.is_empty() && self.penalties.is_off() && self.dry.is_off()
    }
}

/// The random sequence of [`num::random_bits`]; not cryptographically secure.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    seed: u64,
    next: u64,
}

impl SplitMix64 {
    /// The sequence for `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, next: 0 }
    }

    fn count(&mut self) -> u64 {
        let i = self.next;
        self.next = i.wrapping_add(1);
        i
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        num::random_bits(self.seed, self.count())
    }

    /// Uniform in [0, 1), in multiples of 2^-53.
    pub fn next_f64(&mut self) -> f64 {
        num::random_uniform(self.seed, self.count(), 53)
    }
}

/// What a choice needs of a row of logits. Each includes the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SamplerNeeds {
    /// The ID of the largest logit.
    MostLikely,
    /// The likeliest tokens ([`Candidates`]).
    Candidates,
    /// All logits.
    Row,
}

/// Chooses tokens. Equal settings, contexts and logits give equal tokens.
pub struct Sampler {
    config: SamplerConfig,
    random: SplitMix64,
    /// Constraint on the allowed tokens.
    constraint: Option<Box<dyn Constraint>>,
    /// The tokens of the context.
    history: Vec<u32>,
    /// Modified logits and candidate tokens; kept to avoid allocations.
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler")
            .field("config", &self.config)
            .field("constrained", &self.constraint.is_some())
            .field("history", &self.history.len())
            .finish_non_exhaustive()
    }
}

impl Default for Sampler {
    /// Greedy.
    fn default() -> Self {
        let config = SamplerConfig::default();
        Self {
            random: SplitMix64::new(config.seed),
            config,
            constraint: None,
            history: Vec::new(),
            logits: Vec::new(),
            candidates: Vec::new(),
        }
    }
}

impl Sampler {
    /// A sampler at the start of its random sequence. A usage error if a setting is out of range.
    pub fn new(config: SamplerConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            random: SplitMix64::new(config.seed),
            config,
            ..Self::default()
        })
    }

    /// Chooses only tokens that `constraint` allows.
    #[must_use]
    pub fn constrained(mut self, constraint: Box<dyn Constraint>) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// Begins a text after the tokens of `context`. The random sequence continues.
    pub fn start(&mut self, context: &[u32]) -> Result<()> {
        self.history.clear();
        self.history.extend_from_slice(context);
        self.constraint.as_mut().map_or(Ok(()), |c| c.start())
    }

    /// Appends `token` to the text. An error if the constraint does not allow it.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        self.history.push(token);
        self.constraint.as_mut().map_or(Ok(()), |c| c.accept(token))
    }

    /// True if the constraint is complete and only the end may follow.
    pub fn is_complete(&self) -> bool {
        self.constraint.as_ref().is_some_and(|c| c.is_complete())
    }

    /// The default bounds at which values of the text ended ([`Constraint::reached`]).
    pub fn reached(&self) -> Vec<DefaultBound> {
        self.constraint.as_ref().map_or_else(Vec::new, |c| c.reached())
    }

    /// True if the choice is always the first largest logit.
    pub fn is_greedy(&self) -> bool {
        let c = &self.config;
        let most_likely = c.temperature == 0.0 && c.typical_p >= 1.0 || c.top_k == 1;
        most_likely && c.is_plain() && self.constraint.is_none()
    }

    /// What [`Sampler::sample`] needs of a row.
    pub fn needs(&self) -> SamplerNeeds {
        let c = &self.config;
        let few = (1..=Candidates::COUNT).contains(&c.top_k);
        if self.is_greedy() {
            SamplerNeeds::MostLikely
        } else if few && c.is_plain() && self.constraint.is_none() {
            SamplerNeeds::Candidates
        } else {
            SamplerNeeds::Row
        }
    }

    /// The token that [`Sampler::sample`] chooses for the row with these candidates. An error if it
    /// [needs](Sampler::needs) the row, or if there are none.
    pub fn sample_candidates(&mut self, row: CandidateRow<'_>) -> Result<u32> {
        let best = row
            .ids
            .first()
            .copied()
            .filter(|_| self.needs() < SamplerNeeds::Row);
        let best =
            best.ok_or_else(|| Error::internal(Stage::Text, "candidates do not determine the next token"))?;
        if self.is_greedy() {
            return Ok(best);
        }
        filters::collect(&mut self.candidates, row.iter());
        // Like those of a row.
        self.candidates.sort_unstable_by_key(|c| c.id);
        Ok(self.pick(best))
    }

    /// The next token for a row of logits. Ties go to the smaller ID. An error if a logit is NaN or
    /// plus infinity, if none is above minus infinity, or if a biased token has no logit.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let best = arg_max(logits)?;
        if self.is_greedy() {
            return Ok(best);
        }
        let config = &self.config;
        let mut changed = std::mem::take(&mut self.logits);
        changed.clear();
        changed.extend_from_slice(logits);
        for (id, bias) in &config.logit_bias {
            let logit = usize::try_from(*id).ok().and_then(|id| changed.get_mut(id));
            *logit.ok_or_else(|| {
                let what = format!(
                    "token ID {id} is out of range; the vocabulary has {} tokens",
                    logits.len()
                );
                Error::usage("logit_bias", what).of_kind(ErrorKind::TokenOutOfRange)
            })? += bias;
        }
        config.penalties.apply(&self.history, &mut changed);
        config.dry.apply(&self.history, &mut changed);
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(&mut changed)?;
        }
        let best = arg_max(&changed)?;
        filters::collect(&mut self.candidates, (0..).zip(changed.iter().copied()));
        self.logits = changed;
        Ok(self.pick(best))
    }

    /// Chooses one of the candidates, which are in the order of their IDs; `best` is the likeliest.
    fn pick(&mut self, best: u32) -> u32 {
        let (config, all) = (&self.config, &mut self.candidates);
        filters::top_k(all, config.top_k);
        filters::typical_p(all, f64::from(config.typical_p));
        if config.temperature == 0.0 {
            let first = |a: &Candidate, b: &Candidate| a.logit.total_cmp(&b.logit).then(b.id.cmp(&a.id));
            return all.iter().copied().max_by(first).map_or(best, |c| c.id);
        }
        filters::top_p(all, f64::from(config.top_p));
        filters::min_p(all, f64::from(config.min_p));
        let total = filters::weigh(all, f64::from(config.temperature));
        let mut rest = self.random.next_f64() * total;
        let mut chosen = best;
        for c in all.iter().filter(|c| c.weight > 0.0) {
            chosen = c.id;
            rest -= c.weight;
            if rest < 0.0 {
                break;
            }
        }
        chosen
    }
}

/// The error for logits that are NaN or infinite; `what` names them.
pub(super) fn not_finite(what: impl std::fmt::Display) -> Error {
    let what = format!(
        "logits are not finite: {what}; use --float f32 (LoadOptions::float), since values may exceed \
         the range of f16; if that does not help, the weights are damaged"
    );
    Error::other(Stage::Run, what).of_kind(ErrorKind::NotFinite)
}

/// Index of the first largest logit. An error of kind [`ErrorKind::NotFinite`] if a logit is NaN or
/// plus infinity, and an error if none is above minus infinity.
pub fn arg_max(logits: &[f32]) -> Result<u32> {
    let mut best = None;
    let mut max = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(not_finite(format!("logit {id} of {} is {logit}", logits.len())));
        }
        if logit > max {
            max = logit;
            best = Some(id);
        }
    }
    best.ok_or_else(|| {
        Error::other(
            Stage::Text,
            format!("all {} logits are minus infinity", logits.len()),
        )
    })
}

#[cfg(test)]
mod tests;
