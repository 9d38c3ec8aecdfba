//! The tokenizer of a checkpoint without `tokenizer.json`: `tokenizer.model` of SentencePiece, or
//! `vocab.json` with `merges.txt`.

use super::write_json;
use crate::gguf::tokenizer::{Parts, Segmentation, Vocabulary, config_json, tokenizer_json};
use prost::Message;
use serde_json::{Map, Value};
use std::path::Path;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::read::{read_config, read_file};

pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const SENTENCE_PIECE: &str = "tokenizer.model";
const VOCABULARY: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const CONFIG: &str = "tokenizer_config.json";
/// What a checkpoint without a tokenizer lacks.
pub(crate) const MISSING: &str = "it has no tokenizer.json, no tokenizer.model, and no vocab.json with merges.txt; \
    save its tokenizer there with `save_pretrained` of transformers";

/// Bytes of `tokenizer.model` at most.
const MAX_MODEL: u64 = 256 << 20;
/// What tokens are for, as GGUF files number it.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;
/// Ids of added tokens are below this.
const MAX_TOKENS: usize = 1 << 21;

/// SentencePiece's file. Fields that do not matter here are left out.
#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    space_as_suffix: Option<bool>,
    #[prost(int32, optional, tag = "40")]
    unk: Option<i32>,
    #[prost(int32, optional, tag = "41")]
    bos: Option<i32>,
    #[prost(int32, optional, tag = "42")]
    eos: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    characters: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    removes_spaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    escapes_spaces: Option<bool>,
}

/// True where files with these names hold a tokenizer.
pub(crate) fn is_among(has: impl Fn(&str) -> bool) -> bool {
    has(TOKENIZER) || has(SENTENCE_PIECE) || has(VOCABULARY) && has(MERGES)
}

/// An error if the tokenizer of the checkpoint in `folder` is missing or cannot be read.
pub(crate) fn check(folder: &Path) -> Result<()> {
    read(folder).map(drop)
}

/// Writes `tokenizer.json` to the folder `to` if the checkpoint in `folder` has none, and
/// `tokenizer_config.json` if it has no such file either. Errors as of [`check`].
pub(crate) fn write(folder: &Path, to: &Path, context: usize) -> Result<()> {
    let Some(vocabulary) = read(folder)? else {
        return Ok(());
    };
    write_json(to, TOKENIZER, &tokenizer_json(&vocabulary), false)?;
    if !folder.join(CONFIG).is_file() {
        write_json(to, CONFIG, &config_json(&vocabulary, context), true)?;
    }
    Ok(())
}

/// The vocabulary that other files than `tokenizer.json` describe; `None` if that file exists.
fn read(folder: &Path) -> Result<Option<Vocabulary>> {
    let has = |name: &str| folder.join(name).is_file();
    if has(TOKENIZER) {
        return Ok(None);
    }
    if !is_among(has) {
        return Err(Error::file(Stage::Convert, folder, MISSING));
    }
    let config = json(&folder.join(CONFIG))?.unwrap_or_default();
    let path = folder.join(if has(SENTENCE_PIECE) {
        SENTENCE_PIECE
    } else {
        VOCABULARY
    });
    let mut parts = match has(SENTENCE_PIECE) {
        true => sentence_piece(&path)?,
        false => byte_level(folder, &path, &config)?,
    };
    add_tokens(folder, &config, &mut parts)?;
    let flag = |name: &str, default| config.get(name).and_then(Value::as_bool).unwrap_or(default);
    let starts = matches!(parts.segmentation, Segmentation::Scores { .. });
    parts.add_bos = flag("add_bos_token", starts);
    parts.add_eos = flag("add_eos_token", false);
    // What may still be wrong are merges.
    let path = if starts { path } else { folder.join(MERGES) };
    Vocabulary::of_parts(parts, |what| Error::file(Stage::Convert, &path, what)).map(Some)
}

/// The object in a JSON file, if the file exists.
fn json(path: &Path) -> Result<Option<Map<String, Value>>> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = read_config(path)?;
    let parsed = serde_json::from_slice(&text);
    parsed
        .map(Some)
        .map_err(|e| Error::parse(Stage::Convert, path, "expected a JSON object", e))
}

/// The tokens of `tokenizer.model`.
fn sentence_piece(path: &Path) -> Result<Parts> {
    const BPE: i32 = 2;
    let bytes = read_file(path, MAX_MODEL)?;
    let model = Model::decode(bytes.as_slice())
        .map_err(|e| Error::parse(Stage::Convert, path, "expected a model of SentencePiece", e))?;
    let lacks = |what: String| Error::file(Stage::Convert, path, what).of_kind(ErrorKind::Unsupported);
    let (trainer, normalizer) = (
        model.trainer.unwrap_or_default(),
        model.normalizer.unwrap_or_default(),
    );
    if model.pieces.is_empty() {
        return Err(Error::damaged(
            Stage::Convert,
            path,
            "it has no tokens".to_owned(),
        ));
    }
    if trainer.model_type != Some(BPE) {
        let found = match trainer.model_type {
            None | Some(1) => "unigram".to_owned(),
            Some(3) => "word".to_owned(),
            Some(4) => "char".to_owned(),
            Some(other) => other.to_string(),
        };
        return Err(lacks(format!(
            "a model of type {found} is not supported; supported: BPE; add tokenizer.json"
        )));
    }
    let name = normalizer.name.unwrap_or_default();
    if normalizer.characters.is_some_and(|c| !c.is_empty()) {
        return Err(lacks(format!(
            "the normalization \"{name}\" is not supported; supported: identity; add tokenizer.json"
        )));
    }
    for (found, what) in [
        (
            normalizer.removes_spaces.unwrap_or(true),
            "remove_extra_whitespaces",
        ),
        (
            !normalizer.escapes_spaces.unwrap_or(true),
            "escape_whitespaces = false",
        ),
        (
            trainer.space_as_suffix.unwrap_or(false),
            "treat_whitespace_as_suffix",
        ),
    ] {
        if found {
            return Err(lacks(format!("{what} is not supported; add tokenizer.json")));
        }
    }
    let count = model.pieces.len();
    // A negative number stands for no token.
    let id = |given: Option<i32>, default: u32| match given {
        Some(id) => u32::try_from(id).ok().filter(|id| (*id as usize) < count),
        None => Some(default).filter(|id| (*id as usize) < count),
    };
    Ok(Parts {
        roles: model
            .pieces
            .iter()
            .map(|p| p.kind.map_or(NORMAL, i64::from))
            .collect(),
        segmentation: Segmentation::Scores {
            scores: model.pieces.iter().map(|p| p.score.unwrap_or(0.0)).collect(),
            prefix: normalizer.prefix.unwrap_or(true),
        },
        tokens: model
            .pieces
            .into_iter()
            .map(|p| p.text.unwrap_or_default())
            .collect(),
        unk: id(trainer.unk, 0),
        bos: id(trainer.bos, 1),
        eos: id(trainer.eos, 2),
        ..Parts::default()
    })
}

/// The tokens of `vocab.json` and the merges of `merges.txt`.
fn byte_level(folder: &Path, path: &Path, config: &Map<String, Value>) -> Result<Parts> {
    let class = config
        .get("tokenizer_class")
        .and_then(Value::as_str)
        .map(|c| c.trim_end_matches("Fast"));
    let kind = json(&folder.join("config.json"))?.unwrap_or_default();
    let kind = kind.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let pre = match class {
        Some("Qwen2Tokenizer") => "qwen2",
        Some("GPT2Tokenizer") => "gpt-2",
        None if kind.starts_with("qwen") => "qwen2",
        other => {
            let what = format!(
                "\"tokenizer_class\": expected GPT2Tokenizer or Qwen2Tokenizer, found {}; add tokenizer.json",
                other.unwrap_or("none")
            );
            let error = Error::file(Stage::Convert, &folder.join(CONFIG), what);
            return Err(error.of_kind(ErrorKind::Unsupported));
        }
    };
    let entries = json(path)?.unwrap_or_default();
    let mut parts = Parts::default();
    for (text, id) in &entries {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let bad = || {
            Error::damaged(
                Stage::Convert,
                path,
                format!("token {text:?}: expected an id below {MAX_TOKENS}"),
            )
        };
        put(&mut parts, id.ok_or_else(bad)?, text, NORMAL).ok_or_else(bad)?;
    }
    let path = folder.join(MERGES);
    let text = read_file(&path, MAX_MODEL)?;
    let text = String::from_utf8(text)
        .map_err(|e| Error::parse(Stage::Convert, &path, "expected text in UTF-8", e))?;
    let lines = text.lines().enumerate();
    // The first line may name the version.
    let merges = lines.filter(|(i, line)| !line.is_empty() && (*i > 0 || !line.starts_with("#version")));
    parts.segmentation = Segmentation::Merges {
        merges: merges.map(|(_, line)| line.to_owned()).collect(),
        pre,
    };
    Ok(parts)
}

/// Sets the text of a token, with unused tokens before it where there are none. `None` for an id
/// that is too large.
fn put(parts: &mut Parts, id: usize, text: &str, role: i64) -> Option<()> {
    if id >= MAX_TOKENS {
        return None;
    }
    while parts.tokens.len() <= id {
        parts.tokens.push(format!("[unused {}]", parts.tokens.len()));
        parts.roles.push(UNUSED);
        if let Segmentation::Scores { scores, .. } = &mut parts.segmentation {
            scores.push(0.0);
        }
    }
    text.clone_into(parts.tokens.get_mut(id)?);
    *parts.roles.get_mut(id)? = role;
    Some(())
}

/// Adds tokens that are listed apart, and marks special ones.
fn add_tokens(folder: &Path, config: &Map<String, Value>, parts: &mut Parts) -> Result<()> {
    let path = folder.join("added_tokens.json");
    let bad = |path: &Path, text: &str| {
        let what = format!("token {text:?}: expected an id below {MAX_TOKENS}");
        Error::damaged(Stage::Convert, path, what)
    };
    for (text, id) in json(&path)?.unwrap_or_default() {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let set = id.and_then(|id| put(parts, id, &text, USER_DEFINED));
        set.ok_or_else(|| bad(&path, &text))?;
    }
    let path = folder.join(CONFIG);
    let decoder = config.get("added_tokens_decoder").and_then(Value::as_object);
    for (id, token) in decoder.into_iter().flatten() {
        let text = token.get("content").and_then(Value::as_str).unwrap_or_default();
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        let role = if special { CONTROL } else { USER_DEFINED };
        let set = id.parse().ok().and_then(|id| put(parts, id, text, role));
        set.ok_or_else(|| bad(&path, text))?;
    }
    let map = json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    let mut named = |name: &str| {
        let token = config.get(name).or(map.get(name)).filter(|v| !v.is_null())?;
        let text = token.as_str().or(token.get("content").and_then(Value::as_str))?;
        let id = parts.tokens.iter().position(|t| t == text)?;
        *parts.roles.get_mut(id)? = CONTROL;
        u32::try_from(id).ok()
    };
    let [bos, eos, unk] = ["bos_token", "eos_token", "unk_token"].map(&mut named);
    named("pad_token");
    let end = parts.tokens.iter().position(|t| t == "<|endoftext|>");
    if let Some(role) = end.and_then(|id| parts.roles.get_mut(id)) {
        *role = CONTROL;
    }
    parts.bos = bos.or(parts.bos);
    parts.eos = eos.or(parts.eos);
    parts.unk = unk.or(parts.unk);
    Ok(())
}

#[cfg(test)]
mod tests;
