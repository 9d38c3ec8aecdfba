//! `tlite bench --draft`.

use super::measure::median;
use crate::cli::output::titled;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;
use std::time::Duration;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::llm::metrics::rate;
use transformer_lite::unstable::llm::{
    Cancel, Codec, DecodeOptions, Generator, LanguageModel, Message, Metrics, Sampler, Speculation,
};

/// The prompts by kind, as JSON Lines.
const SETS: [(&str, &str); 2] = [
    ("code edits", include_str!("prompts/code-edits.jsonl")),
    ("chat", include_str!("prompts/chat.jsonl")),
];

#[derive(Deserialize)]
struct PromptLine {
    name: String,
    prompt: String,
}

/// The prompts of one kind as tokens.
pub(super) struct Set {
    kind: &'static str,
    /// Name and tokens.
    prompts: Vec<(String, Vec<u32>)>,
}

/// All prompts, as messages of a conversation. An error if the model has no chat template.
pub(super) fn prompts(codec: &Codec) -> Result<Vec<Set>> {
    let of_kind = |(kind, text): (&'static str, &str)| {
        let lines = text.lines().map(|line| {
            let line: PromptLine = serde_json::from_str(line)
                .map_err(|e| Error::internal(Stage::Run, format!("the prompts of {kind}: {e}")))?;
            let messages = [Message::user(&line.prompt)];
            let tokens = codec.encode(&messages[..], &Default::default(), &Cancel::default())?;
            Ok((line.name, tokens))
        });
        Ok(Set {
            kind,
            prompts: lines.collect::<Result<_>>()?,
        })
    };
    SETS.into_iter().map(of_kind).collect()
}

/// Number of prompts and tokens of the longest one.
pub(super) fn extent(sets: &[Set]) -> (usize, usize) {
    let lengths = sets
        .iter()
        .flat_map(|set| &set.prompts)
        .map(|(_, tokens)| tokens.len());
    (lengths.clone().count(), lengths.max().unwrap_or(0))
}

/// Decoding with and without a draft after the prompts of one kind. Speeds are those of all answers
/// together, each the median of its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(in crate::cli) struct DraftLine {
    /// Kind of prompts.
    pub(super) prompts: String,
    /// Decoded tokens of one run.
    pub(super) tokens: usize,
    /// Decoded tokens per second without a draft.
    pub(super) plain_tokens_per_s: f64,
    /// Decoded tokens per second with a draft.
    pub(super) draft_tokens_per_s: f64,
    /// The second as a multiple of the first.
    pub(super) ratio: f64,
    /// The lowest ratio of a prompt.
    pub(super) worst_ratio: f64,
    /// The prompt with this ratio.
    pub(super) worst_prompt: String,
    /// Drafted tokens of one run.
    pub(super) drafted: usize,
    /// Accepted draft tokens.
    pub(super) accepted: usize,
    /// Answers that differ from those without a draft, because two tokens were almost equally
    /// likely.
    pub(super) different: usize,
}

/// Titles and cells of the table.
pub(super) fn rows(lines: &[DraftLine]) -> Vec<Vec<String>> {
    let accepted = |l: &DraftLine| 100.0 * l.accepted as f64 / l.drafted.max(1) as f64;
    titled(
        lines,
        &[
            ("prompts", &|l| l.prompts.clone()),
            ("tokens", &|l| l.tokens.to_string()),
            ("plain tokens/s", &|l| format!("{:.2}", l.plain_tokens_per_s)),
            ("draft tokens/s", &|l| format!("{:.2}", l.draft_tokens_per_s)),
            ("ratio", &|l| format!("{:.2}", l.ratio)),
            ("worst", &|l| format!("{:.2}", l.worst_ratio)),
            ("drafted", &|l| l.drafted.to_string()),
            ("accepted", &|l| format!("{:.1} %", accepted(l))),
            ("different", &|l| l.different.to_string()),
        ],
    )
}

/// An answer, and its counts and times.
type Answer = (Vec<u32>, Metrics);

/// Generates up to `most` tokens after `prompt`; `None` if it was cancelled.
fn answer(
    model: &mut dyn LanguageModel,
    prompt: &[u32],
    options: &DecodeOptions,
    speculation: Option<&mut Speculation>,
) -> Result<Option<Answer>> {
    model.truncate(0);
    let mut sampler = Sampler::default();
    let mut generator = Generator::new(model, &mut sampler, prompt, options.clone())?;
    if let Some(speculation) = speculation {
        speculation.reset();
        generator = generator.speculating(speculation);
    }
    let tokens = generator
        .by_ref()
        .map(|token| Ok(token?.id))
        .collect::<Result<_>>()?;
    let metrics = generator.metrics();
    Ok((!options.cancel.is_cancelled()).then_some((tokens, metrics)))
}

/// The median time to decode, for an answer of a single token one nanosecond.
fn seconds(times: &mut [f64]) -> f64 {
    median(times).unwrap_or(0.0).max(1e-9)
}

/// Measures the answers to the prompts of `set`; `None` if cancelled. Runs with and without a draft
/// take turns, the first of each to warm up.
fn measure(
    model: &mut dyn LanguageModel,
    speculation: &mut Speculation,
    set: &Set,
    repeat: NonZeroUsize,
    options: &DecodeOptions,
    step: &mut dyn FnMut(&str),
) -> Result<Option<DraftLine>> {
    let mut line = DraftLine {
        prompts: set.kind.to_owned(),
        worst_ratio: f64::INFINITY,
        ..DraftLine::default()
    };
    let mut total = [0.0; 2];
    let mut decoded = [0; 2];
    for (name, prompt) in &set.prompts {
        let mut times = [Vec::new(), Vec::new()];
        let mut last: [Answer; 2] = Default::default();
        step(&format!("{}: {name}", set.kind));
        for run in 0..=repeat.get() {
            for (drafts, (times, last)) in times.iter_mut().zip(&mut last).enumerate() {
                let speculation = (drafts == 1).then_some(&mut *speculation);
                let Some(answer) = answer(model, prompt, options, speculation)? else {
                    return Ok(None);
                };
                if run > 0 {
                    let per_token = answer.1.decode.as_secs_f64() / answer.1.decode_tokens.max(1) as f64;
                    times.push(per_token);
                }
                *last = answer;
            }
        }
        let [plain, drafted] = &last;
        let counts = [plain, drafted].map(|(_, metrics)| metrics.decode_tokens);
        let each = times.each_mut().map(|times| seconds(times));
        if each[0] / each[1] < line.worst_ratio {
            (line.worst_ratio, line.worst_prompt) = (each[0] / each[1], name.clone());
        }
        for (i, count) in counts.into_iter().enumerate() {
            total[i] += each[i] * count as f64;
            decoded[i] += count;
        }
        line.drafted += drafted.1.drafted;
        line.accepted += drafted.1.accepted;
        line.different += usize::from(plain.0 != drafted.0);
    }
    let speed = |i: usize| {
        let time = Duration::try_from_secs_f64(total[i]).unwrap_or_default();
        rate(decoded[i], time).unwrap_or(0.0)
    };
    line.tokens = decoded[0];
    line.plain_tokens_per_s = speed(0);
    line.draft_tokens_per_s = speed(1);
    line.ratio = speed(1) / speed(0);
    Ok(Some(line))
}

/// Measures all sets until `cancel` is set. `step` is called before each prompt.
pub(super) fn bench(
    model: &mut dyn LanguageModel,
    speculation: &mut Speculation,
    sets: &[Set],
    (tokens, repeat): (usize, NonZeroUsize),
    codec: &Codec,
    cancel: &Cancel,
    step: &mut dyn FnMut(&str),
) -> Result<Vec<DraftLine>> {
    let options = DecodeOptions {
        max_tokens: tokens,
        eos: codec.eos().to_vec(),
        cancel: cancel.clone(),
        ..DecodeOptions::default()
    };
    let mut lines = Vec::new();
    for set in sets {
        lines.extend(measure(model, speculation, set, repeat, &options, step)?);
        if cancel.is_cancelled() {
            break;
        }
    }
    model.truncate(0);
    Ok(lines)
}
