//! Options of commands that generate text: how tokens are chosen.

use super::options::{from_one, from_zero};
use crate::error::Result;
use crate::llm::sampler::{
    DRY_BASE, DRY_MULTIPLIER, Dry, FREQUENCY, MIN_P, PRESENCE, Penalties, REPETITION, Range, SamplerConfig,
    Setting, TEMPERATURE, TOP_P, TYPICAL_P,
};
use crate::llm::{Sampler, Tokenizer};
use std::collections::HashSet;
use std::num::NonZeroUsize;

/// Options of every command that samples tokens, in the order in which they take effect.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// Largest number of tokens to generate; 0 generates none
    #[arg(long, value_name = "N", default_value = "256", value_parser = from_zero::<usize>, allow_negative_numbers = true)]
    pub max_tokens: usize,
    /// Add BIAS to the logit of the token ID; -inf forbids it
    #[arg(long, value_name = "ID=BIAS,...", value_delimiter = ',', value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// How many of the last tokens the next three penalties look at; 0 is none
    #[arg(long, value_name = "N", default_value = "64", value_parser = from_zero::<usize>, allow_negative_numbers = true)]
    pub penalty_last_n: usize,
    /// Divide logits of tokens that occurred by F, where they are positive, else multiply; 1 is off
    #[arg(long, value_name = "F", default_value = "1", allow_negative_numbers = true, value_parser = number(REPETITION))]
    pub repetition_penalty: f32,
    /// Subtract F, from -2 to 2, from the logit of a token for each time that it occurred; 0 is off
    #[arg(long, value_name = "F", default_value = "0", allow_negative_numbers = true, value_parser = number(FREQUENCY))]
    pub frequency_penalty: f32,
    /// Subtract F, from -2 to 2, from the logit of a token that occurred; 0 is off
    #[arg(long, value_name = "F", default_value = "0", allow_negative_numbers = true, value_parser = number(PRESENCE))]
    pub presence_penalty: f32,
    /// DRY: subtract F * base ^ (length - allowed length) where a token would repeat a longer stretch; 0 is off
    #[arg(long, value_name = "F", default_value = "0", allow_negative_numbers = true, value_parser = number(DRY_MULTIPLIER))]
    pub dry_multiplier: f32,
    /// DRY: the base
    #[arg(long, value_name = "F", default_value = "1.75", allow_negative_numbers = true, value_parser = number(DRY_BASE))]
    pub dry_base: f32,
    /// DRY: the allowed length, in tokens
    #[arg(long, value_name = "N", default_value = "2", value_parser = from_one, allow_negative_numbers = true)]
    pub dry_allowed_length: NonZeroUsize,
    /// DRY: how many of the last tokens are looked at [default: all]
    #[arg(long, value_name = "N", value_parser = from_one, allow_negative_numbers = true)]
    pub dry_last_n: Option<NonZeroUsize>,
    /// DRY: no stretch reaches over a token that holds TEXT; may be given several times [default: line ends, : " *]
    #[arg(long, value_name = "TEXT", value_parser = some_text, allow_hyphen_values = true)]
    pub dry_breaker: Vec<String>,
    /// Choose among the N most likely tokens; 0 is off
    #[arg(long, value_name = "N", default_value = "0", value_parser = from_zero::<usize>, allow_negative_numbers = true)]
    pub top_k: usize,
    /// Choose among the tokens nearest to the expected information, as many as have a probability of F; 1 is off
    #[arg(long, value_name = "F", default_value = "1", allow_negative_numbers = true, value_parser = number(TYPICAL_P))]
    pub typical_p: f32,
    /// Choose among the fewest tokens whose probabilities sum to F; 1 is off
    #[arg(long, value_name = "F", default_value = "1", allow_negative_numbers = true, value_parser = number(TOP_P))]
    pub top_p: f32,
    /// Choose among the tokens at least F times as likely as the most likely one; 0 is off
    #[arg(long, value_name = "F", default_value = "0", allow_negative_numbers = true, value_parser = number(MIN_P))]
    pub min_p: f32,
    /// 0 takes the most likely token always; higher values take others more often
    #[arg(long, value_name = "F", default_value = "0", allow_negative_numbers = true, value_parser = number(TEMPERATURE))]
    pub temperature: f32,
    /// Start of the random sequence; equal seeds give equal texts
    #[arg(long, value_name = "N", default_value = "0", value_parser = from_zero::<u64>, allow_negative_numbers = true)]
    pub seed: u64,
}

/// What ends a stretch for DRY unless told otherwise.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

impl SamplingOptions {
    /// The sampler, for the tokens of `tokenizer`.
    pub fn sampler(&self, tokenizer: &Tokenizer) -> Result<Sampler> {
        let mut breakers = HashSet::new();
        if self.dry_multiplier > 0.0 {
            let texts: Vec<&[u8]> = if self.dry_breaker.is_empty() {
                BREAKERS.iter().map(|t| t.as_bytes()).collect()
            } else {
                self.dry_breaker.iter().map(String::as_bytes).collect()
            };
            let holds = |bytes: &[u8]| texts.iter().any(|t| bytes.windows(t.len()).any(|w| w == *t));
            breakers.extend(
                tokenizer
                    .tokens()
                    .filter(|(_, t)| holds(&t.bytes))
                    .map(|(id, _)| id),
            );
        }
        Sampler::new(SamplerConfig {
            logit_bias: self.logit_bias.clone(),
            penalties: Penalties {
                last_n: self.penalty_last_n,
                repetition: self.repetition_penalty,
                frequency: self.frequency_penalty,
                presence: self.presence_penalty,
            },
            dry: Dry {
                multiplier: self.dry_multiplier,
                base: self.dry_base,
                allowed_length: self.dry_allowed_length.get(),
                last_n: self.dry_last_n.map_or(usize::MAX, NonZeroUsize::get),
                breakers,
            },
            top_k: self.top_k,
            typical_p: self.typical_p,
            top_p: self.top_p,
            min_p: self.min_p,
            temperature: self.temperature,
            seed: self.seed,
        })
    }
}

/// A parser of numbers in the range of a setting.
fn number((_, range): Setting) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| in_range(text, range)
}

fn in_range(text: &str, range: Range) -> Result<f32, String> {
    let value = text.parse().ok().filter(|v| range.holds(*v));
    value.ok_or_else(|| format!("must be {range}"))
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').unwrap_or((text, ""));
    let bias = bias
        .trim()
        .parse()
        .ok()
        .filter(|b: &f32| b.is_finite() || *b == f32::NEG_INFINITY);
    match (id.trim().parse(), bias) {
        (Ok(id), Some(bias)) => Ok((id, bias)),
        _ => Err("must be a token's id, =, and a finite number or -inf".to_owned()),
    }
}

/// The value of an option that is a text of at least one character.
pub fn some_text(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("must not be empty".to_owned());
    }
    Ok(text.to_owned())
}
