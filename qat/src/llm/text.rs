//! Sequences of tokens to train on: text that the model itself wrote, or the user's.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::num::{random_bits, signed};
use transformer_lite::unstable::tensor::DType;
use transformer_lite::{
    BatchOptions, Batcher, Finish, GenerateOptions, LoadOptions, Request, Sampler, SamplerConfig, Tokenizer,
};

/// What text depends on that a model writes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Settings {
    /// Checksum of the model.
    pub model: String,
    pub sequences: usize,
    /// Tokens of a sequence, the first one included.
    pub tokens: usize,
    pub seed: u64,
}

/// Number of sequences that are generated at the same time.
const AT_ONCE: usize = 16;

/// A line of the file of sequences.
#[derive(Deserialize)]
struct Line {
    tokens: Vec<u32>,
}

/// The sequences in `file` if it exists, else those that the model in `folder` writes, which are
/// stored in `file`. `progress` gets the number of sequences that are done.
pub fn teacher(
    folder: &Path,
    file: &Path,
    settings: &Settings,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Vec<u32>>> {
    if file.exists() {
        return read(file, settings);
    }
    let made = write(folder, settings, progress)?;
    let tokenizer = Tokenizer::load(folder)?;
    let mut text = format!("{}\n", json!({ "settings": settings }));
    for tokens in &made {
        text.push_str(&format!(
            "{}\n",
            json!({ "tokens": tokens, "text": tokenizer.decode(tokens)? })
        ));
    }
    write_whole(file, |f| f.write_all(text.as_bytes()))?;
    Ok(made)
}

fn read(file: &Path, settings: &Settings) -> Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(file).map_err(|e| Error::io("read", file, e))?;
    let mut lines = text.lines();
    let found = lines.next().and_then(|l| serde_json::from_str::<Value>(l).ok());
    let found = found.and_then(|l| serde_json::from_value::<Settings>(l.get("settings")?.clone()).ok());
    let found = found.ok_or_else(|| Error::data(file, "expected sequences that tlite-qat wrote"))?;
    if found != *settings {
        return Err(Error::data(
            file,
            format!(
                "is of other options: expected {}, found {}; choose another file",
                json!(settings),
                json!(found)
            ),
        ));
    }
    let parsed = lines.map(|l| serde_json::from_str::<Line>(l).map(|l| l.tokens));
    let all = parsed.collect::<std::result::Result<Vec<_>, _>>();
    let all = all.map_err(|e| Error::data(file, format!("is damaged or cut off: {e}")))?;
    if all.len() != settings.sequences || all.iter().any(|s| s.len() != settings.tokens) {
        let what = format!(
            "expected {} sequences of {} tokens, found {}",
            settings.sequences,
            settings.tokens,
            all.len()
        );
        return Err(Error::data(file, what));
    }
    Ok(all)
}

/// Samples at temperature 1. A sequence begins with the tokenizer's start tokens or, if it has
/// none, with a random token. End tokens are part of the text, which goes on after them.
fn write(folder: &Path, settings: &Settings, progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<u32>>> {
    let options = LoadOptions {
        context: Some(settings.tokens),
        float: Some(DType::F32),
        greedy: false,
        candidates: false,
        ..LoadOptions::default()
    };
    let batch = BatchOptions {
        sequences: AT_ONCE,
        tokens: None,
        reproducible: true,
        ..BatchOptions::default()
    };
    let batcher = Batcher::load(folder, &options, &batch)?;
    let tokenizer = batcher.codec().tokenizer();
    let start = tokenizer.start()?;
    let submit = |i: usize, round: u64, tokens: &[u32]| {
        let seed = random_bits(settings.seed, signed(i).unsigned_abs());
        let config = SamplerConfig {
            temperature: 1.0,
            seed: random_bits(seed, round),
            ..SamplerConfig::default()
        };
        let options = GenerateOptions {
            max_tokens: settings.tokens - tokens.len(),
            ..GenerateOptions::default()
        };
        let sampler = Sampler::new(config)?;
        batcher.submit(
            tokens,
            Request {
                options,
                sampler,
                ..Request::default()
            },
        )
    };
    let first = |i: usize| match start.is_empty() {
        false => start.clone(),
        true => vec![random_token(
            tokenizer,
            random_bits(!settings.seed, signed(i).unsigned_abs()),
        )],
    };
    let mut all: Vec<Vec<u32>> = (0..settings.sequences).map(first).collect();
    let mut done = 0;
    for (c, chunk) in all.chunks_mut(4 * AT_ONCE).enumerate() {
        let mut round = 0;
        loop {
            let short = chunk
                .iter_mut()
                .enumerate()
                .filter(|(_, s)| s.len() < settings.tokens);
            let mut tickets = Vec::new();
            for (i, tokens) in short {
                let ticket = submit(c * 4 * AT_ONCE + i, round, tokens)?;
                tickets.push((tokens, ticket));
            }
            if tickets.is_empty() {
                break;
            }
            for (tokens, mut ticket) in tickets {
                for piece in ticket.by_ref() {
                    tokens.extend(piece?.token.map(|t| t.id));
                }
                match ticket.finish() {
                    Some(Finish::Eos(id)) => tokens.push(id),
                    Some(Finish::MaxTokens | Finish::ContextFull) if tokens.len() == settings.tokens => {}
                    other => {
                        let what = format!("generation ended early: {other:?}");
                        return Err(Error::data(folder, what));
                    }
                }
            }
            round += 1;
        }
        done += chunk.len();
        progress(done);
    }
    Ok(all)
}

/// A token that is not special, if one is found soon.
fn random_token(tokenizer: &Tokenizer, seed: u64) -> u32 {
    let vocab = u64::try_from(tokenizer.vocab()).unwrap_or(1).max(1);
    let random = |i: u64| u32::try_from(random_bits(seed, i) % vocab).unwrap_or(0);
    (0..64)
        .map(random)
        .find(|t| !tokenizer.is_special(*t))
        .unwrap_or(0)
}

/// The text in `file` in sequences of `tokens`, each after the tokenizer's start tokens.
pub fn user(folder: &Path, file: &Path, tokens: usize) -> Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(file).map_err(|e| Error::io("read", file, e))?;
    let tokenizer = Tokenizer::load(folder)?;
    let (all, start) = (tokenizer.encode(&text, false)?, tokenizer.start()?);
    let each = tokens.saturating_sub(start.len()).max(1);
    let sequence = |part: &[u32]| start.iter().chain(part).copied().collect();
    let made: Vec<Vec<u32>> = all.chunks_exact(each).map(sequence).collect();
    if made.is_empty() {
        let what = format!(
            "expected at least {each} tokens, one sequence, found {}",
            all.len()
        );
        return Err(Error::data(file, what));
    }
    Ok(made)
}
