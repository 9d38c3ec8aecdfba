//! Which files of a repository are the model.

use crate::checkpoint::folder::COPIED;
use crate::checkpoint::tokenizer::{SENTENCE_PIECE, TOKENIZER};
use crate::gguf::split::PartName;

/// Names of quantizations in names of files, the preferred ones first.
const PREFERRED: [&str; 20] = [
    "Q4_0", "Q4_1", "Q4_K_M", "Q8_0", "F16", "FP16", "Q4_K_S", "Q5_K_M", "Q5_K_S", "Q6_K", "Q5_1", "Q5_0",
    "Q4_K", "Q5_K", "BF16", "F32", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K",
];

/// What is downloaded of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// A GGUF file, or the first part of one that is split.
    Gguf(String),
    Checkpoint,
    /// Nothing: its GGUF files are parts of larger ones, of which some are missing.
    Split,
    None,
}

/// The GGUF files among `names`.
pub(super) fn ggufs(names: &[String]) -> Vec<String> {
    let mut found: Vec<String> = names
        .iter()
        .filter(|n| has_extension(n, "gguf"))
        .cloned()
        .collect();
    found.sort();
    found
}

/// True for a GGUF file of a language model, or for the first part of one whose parts are all among
/// `names`, as far as names tell.
pub(super) fn is_model(name: &str, names: &[String]) -> bool {
    let lower = file_name(name).to_ascii_lowercase();
    let other = lower.contains("mmproj") || lower.contains("imatrix");
    let first = PartName::of(name).is_none_or(|part| part.number == 1);
    has_extension(name, "gguf")
        && !other
        && first
        && other_parts(name).iter().all(|part| names.contains(part))
}

/// The parts after the first part `name` of a GGUF file that is split; none for other names.
pub(super) fn other_parts(name: &str) -> Vec<String> {
    let part = PartName::of(name).filter(|part| part.number == 1);
    part.iter().flat_map(PartName::others).collect()
}

/// The model among the files `names` of a repository. With `quant`, a GGUF file of this
/// quantization.
pub(super) fn choose(names: &[String], quant: Option<&str>) -> Choice {
    let all = ggufs(names);
    let suits = |n: &&String| is_model(n, names) && quant.is_none_or(|q| holds(file_name(n), q));
    let best = all.iter().filter(suits).min_by_key(|n| {
        let rank = PREFERRED.iter().position(|q| holds(file_name(n), q));
        // Of several models a single file, then the one with the shortest name.
        let split = !other_parts(n).is_empty();
        (split, rank.unwrap_or(PREFERRED.len()), n.len(), n.as_str())
    });
    let checkpoint = || {
        names.iter().any(|n| n == "config.json")
            && names
                .iter()
                .any(|n| has_extension(n, "safetensors") && !n.contains('/'))
    };
    match best {
        Some(name) => Choice::Gguf(name.clone()),
        None if quant.is_some() => Choice::None,
        None if checkpoint() => Choice::Checkpoint,
        None if all.iter().any(|n| PartName::of(n).is_some()) => Choice::Split,
        None => Choice::None,
    }
}

/// The small files of a checkpoint among `names`.
pub(super) fn small(names: &[String]) -> Vec<&str> {
    let whole = names.iter().any(|n| n == TOKENIZER);
    let wanted = |n: &&str| *n == "config.json" || COPIED.contains(n) || !whole && *n == SENTENCE_PIECE;
    names.iter().map(String::as_str).filter(wanted).collect()
}

pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn has_extension(name: &str, extension: &str) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, e)| e.eq_ignore_ascii_case(extension))
}

/// True where `name` holds the word `quant`, in capitals or not: `Q4_0` is not in
/// `x-Q4_0_4_8.gguf`.
fn holds(name: &str, quant: &str) -> bool {
    let (name, quant) = (name.to_ascii_lowercase(), quant.to_ascii_lowercase());
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.match_indices(&quant).any(|(at, _)| {
        let before = name.get(..at).unwrap_or_default();
        let after = name.get(at + quant.len()..).unwrap_or_default();
        !before.ends_with(|c: char| c.is_ascii_alphanumeric()) && !after.starts_with(inside)
    })
}

#[cfg(test)]
mod tests;
