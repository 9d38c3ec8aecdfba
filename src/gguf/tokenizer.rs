//! The vocabulary of a GGUF file as `tokenizer.json` and `tokenizer_config.json`.

use super::read::{Array, Gguf, Value as Entry};
use crate::error::Result;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Values of `tokenizer.ggml.pre` that are known.
const PRES: [&str; 6] = ["smollm", "qwen2", "gpt-2", "llama-bpe", "llama3", "llama-v3"];

/// Control tokens with one of these texts end an answer, whatever else the file says of them.
const ENDS: [&str; 9] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<EOT>",
    "<|EOT|>",
];

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Byte-level BPE after GPT-2.
    Gpt2,
    /// Byte-level BPE, digits one by one.
    SmolLm,
    /// Byte-level BPE on NFC text.
    Qwen2,
    /// Byte-level BPE, digits by three, whole words first.
    Llama3,
    /// SentencePiece BPE with byte tokens.
    SentencePiece {
        /// A space is put before the text.
        prefix: bool,
    },
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Role {
    fn of(code: i64) -> Option<Self> {
        Some(match code {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// A checked vocabulary.
#[derive(Debug)]
pub struct Vocabulary {
    kind: Kind,
    class: &'static str,
    /// Texts by id; no text occurs twice.
    pub tokens: Vec<String>,
    roles: Vec<Role>,
    merges: Vec<(String, String)>,
    /// Beginning of a sequence.
    pub bos: Option<u32>,
    /// Ends of an answer; the first is the end of a sequence.
    pub eos: Vec<u32>,
    /// Filler.
    pub pad: Option<u32>,
    unk: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    chat_template: Option<String>,
}

fn missing_or<T>(g: &Gguf, key: &str, value: Result<Option<T>>) -> Result<T> {
    g.required(key, value?)
}

impl Vocabulary {
    /// Reads and checks the vocabulary of a file.
    pub fn read(g: &Gguf) -> Result<Self> {
        let key = "tokenizer.ggml.model";
        let model = missing_or(g, key, g.opt_str(key))?;
        let key = "tokenizer.ggml.tokens";
        let tokens = missing_or(g, key, g.opt_strings(key))?.to_vec();
        let mut index: HashMap<&str, usize> = HashMap::new();
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = index.insert(token, id) {
                return Err(g.bad(format!("tokens {first} and {id} have the same text {token:?}")));
            }
        }
        if u32::try_from(tokens.len()).is_err() || tokens.is_empty() {
            return Err(g.bad(format!("a vocabulary of {} tokens cannot be used", tokens.len())));
        }
        let roles = roles(g, tokens.len())?;
        let (kind, class, merges) = match model {
            "gpt2" => {
                let key = "tokenizer.ggml.pre";
                let pre = missing_or(g, key, g.opt_str(key))?;
                let (kind, class) = match pre {
                    "smollm" => (Kind::SmolLm, "GPT2Tokenizer"),
                    "gpt-2" => (Kind::Gpt2, "GPT2Tokenizer"),
                    "qwen2" => (Kind::Qwen2, "Qwen2Tokenizer"),
                    "llama-bpe" | "llama3" | "llama-v3" => (Kind::Llama3, "PreTrainedTokenizerFast"),
                    _ => {
                        return Err(g.bad(format!(
                            "metadata \"{key}\": pre-tokenizer \"{pre}\" is not supported; supported are {}",
                            PRES.join(", ")
                        )));
                    }
                };
                (kind, class, stored_merges(g, &index)?)
            }
            "llama" => {
                let prefix = g.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
                let merges = scored_merges(g, &tokens, &roles, &index)?;
                (Kind::SentencePiece { prefix }, "LlamaTokenizer", merges)
            }
            _ => {
                return Err(g.bad(format!(
                    "metadata \"{key}\": tokenizer \"{model}\" is not supported; supported are gpt2, llama",
                    key = "tokenizer.ggml.model"
                )));
            }
        };
        let id = |name: &str| -> Result<Option<u32>> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            g.opt_usize(&key)?
                .map(|id| {
                    u32::try_from(id)
                        .ok()
                        .filter(|_| id < tokens.len())
                        .ok_or_else(|| {
                            g.bad(format!(
                                "metadata \"{key}\": expected an id below {}, found {id}",
                                tokens.len()
                            ))
                        })
                })
                .transpose()
        };
        let mut eos = Vec::new();
        for name in ["eos", "eot", "eom"] {
            eos.extend(id(name)?.filter(|v| !eos.contains(v)));
        }
        for id in ENDS.iter().filter_map(|text| index.get(text)) {
            let v = u32::try_from(*id).unwrap_or(u32::MAX);
            if roles.get(*id) == Some(&Role::Control) && !eos.contains(&v) {
                eos.push(v);
            }
        }
        let sentence_piece = matches!(kind, Kind::SentencePiece { .. });
        let add_bos = g
            .opt_bool("tokenizer.ggml.add_bos_token")?
            .unwrap_or(sentence_piece || kind == Kind::Llama3);
        let add_eos = g.opt_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let bos = id("bos")?;
        if add_bos && bos.is_none() {
            return Err(g.bad(
                "a first token is to be added, but metadata \"tokenizer.ggml.bos_token_id\" is missing",
            ));
        }
        if add_eos && id("eos")?.is_none() {
            return Err(g.bad(
                "a last token is to be added, but metadata \"tokenizer.ggml.eos_token_id\" is missing",
            ));
        }
        let unk = match id("unknown")? {
            None if sentence_piece => roles
                .iter()
                .position(|r| *r == Role::Unknown)
                .and_then(|id| u32::try_from(id).ok()),
            v => v,
        };
        let chat_template = g.opt_str("tokenizer.chat_template")?.map(str::to_owned);
        let pad = id("padding")?;
        Ok(Self {
            kind,
            class,
            tokens,
            roles,
            merges,
            bos,
            eos,
            pad,
            unk,
            add_bos,
            add_eos,
            chat_template,
        })
    }

    fn text(&self, id: Option<u32>) -> Option<&str> {
        id.and_then(|id| self.tokens.get(id as usize)).map(String::as_str)
    }
}

fn roles(g: &Gguf, count: usize) -> Result<Vec<Role>> {
    let key = "tokenizer.ggml.token_type";
    let codes: Vec<i64> = match g.get(key) {
        None => vec![1; count],
        Some(Entry::Array(Array::I32(v))) => v.iter().map(|v| i64::from(*v)).collect(),
        Some(Entry::Array(Array::U32(v))) => v.iter().map(|v| i64::from(*v)).collect(),
        Some(v) => {
            return Err(g.bad(format!(
                "metadata \"{key}\": expected an array of i32, found a value of type {}",
                v.kind()
            )));
        }
    };
    if codes.len() != count {
        return Err(g.bad(format!(
            "metadata \"{key}\": expected {count} entries, one per token, found {}",
            codes.len()
        )));
    }
    codes
        .iter()
        .map(|c| Role::of(*c).ok_or_else(|| g.bad(format!("metadata \"{key}\": expected 1 to 6, found {c}"))))
        .collect()
}

/// The merges of a byte-level vocabulary, each of which joins two tokens to a third.
fn stored_merges(g: &Gguf, index: &HashMap<&str, usize>) -> Result<Vec<(String, String)>> {
    let key = "tokenizer.ggml.merges";
    let merges = missing_or(g, key, g.opt_strings(key))?;
    merges
        .iter()
        .enumerate()
        .map(|(i, merge)| {
            let bad = |what: &str| g.bad(format!("metadata \"{key}\": entry {i}, {merge:?}: {what}"));
            // The first character is never the separator.
            let first = merge.chars().next().map_or(0, char::len_utf8);
            let split = merge
                .get(first..)
                .and_then(|rest| rest.find(' '))
                .map(|at| first + at);
            let (left, right) = split
                .and_then(|at| Some((merge.get(..at)?, merge.get(at + 1..)?)))
                .filter(|(_, right)| !right.is_empty())
                .ok_or_else(|| bad("expected two tokens with a space between them"))?;
            for token in [left, right, &format!("{left}{right}")] {
                if !index.contains_key(token) {
                    return Err(bad(&format!("{token:?} is not in the vocabulary")));
                }
            }
            Ok((left.to_owned(), right.to_owned()))
        })
        .collect()
}

/// The merges that a SentencePiece vocabulary implies: all pairs of tokens whose joint text is a token, best
/// score of the joint token first.
fn scored_merges(
    g: &Gguf,
    tokens: &[String],
    roles: &[Role],
    index: &HashMap<&str, usize>,
) -> Result<Vec<(String, String)>> {
    let key = "tokenizer.ggml.scores";
    let scores = match g.get(key) {
        Some(Entry::Array(Array::F32(v))) => v,
        Some(v) => {
            return Err(g.bad(format!(
                "metadata \"{key}\": expected an array of f32, found a value of type {}",
                v.kind()
            )));
        }
        None => return Err(g.bad(format!("metadata \"{key}\" is missing"))),
    };
    if scores.len() != tokens.len() {
        let (count, found) = (tokens.len(), scores.len());
        return Err(g.bad(format!(
            "metadata \"{key}\": expected {count} entries, one per token, found {found}"
        )));
    }
    let normal = |id: usize| roles.get(id) == Some(&Role::Normal);
    let mut merges = Vec::new();
    for (id, (token, score)) in tokens
        .iter()
        .zip(scores)
        .enumerate()
        .filter(|(id, _)| normal(*id))
    {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (index.get(left), index.get(right))
                && normal(*l)
                && normal(*r)
            {
                merges.push((*score, id, (*l, *r), (left.to_owned(), right.to_owned())));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    Ok(merges.into_iter().map(|m| m.3).collect())
}

const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn sequence(of: &str, parts: &[Value]) -> Value {
    json!({"type": "Sequence", (of): parts})
}

fn split(pattern: &str) -> Value {
    let split =
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    sequence("pretokenizers", &[split, byte_level(false)])
}

/// The content of `tokenizer.json`.
pub fn tokenizer_json(v: &Vocabulary) -> Value {
    let (normalizer, pre_tokenizer, decoder) = match v.kind {
        Kind::Gpt2 => (Value::Null, byte_level(true), byte_level(true)),
        Kind::SmolLm => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            (
                Value::Null,
                sequence("pretokenizers", &[digits, byte_level(true)]),
                byte_level(true),
            )
        }
        Kind::Qwen2 => (json!({"type": "NFC"}), split(QWEN2_SPLIT), byte_level(true)),
        Kind::Llama3 => (Value::Null, split(LLAMA3_SPLIT), byte_level(true)),
        Kind::SentencePiece { prefix } => {
            let replace =
                |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
            let mut normalizers = vec![replace(" ", "\u{2581}")];
            let mut decoders = vec![
                replace("\u{2581}", " "),
                json!({"type": "ByteFallback"}),
                json!({"type": "Fuse"}),
            ];
            if prefix {
                normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
                decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
            }
            (
                sequence("normalizers", &normalizers),
                Value::Null,
                sequence("decoders", &decoders),
            )
        }
    };
    let sentence_piece = matches!(v.kind, Kind::SentencePiece { .. });
    let vocab: Map<String, Value> = v
        .tokens
        .iter()
        .enumerate()
        .map(|(id, t)| (t.clone(), id.into()))
        .collect();
    let merges: Vec<Value> = v.merges.iter().map(|(l, r)| json!([l, r])).collect();
    let unk = if sentence_piece { v.text(v.unk) } else { None };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(v).map(|(_, token)| token).collect::<Vec<_>>(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": template(v),
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unk,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": sentence_piece,
            "byte_fallback": sentence_piece,
            "ignore_merges": v.kind == Kind::Llama3,
            "vocab": vocab,
            "merges": merges,
        },
    })
}

/// Tokens that are found in text before anything else, with their ids.
fn added_tokens(v: &Vocabulary) -> impl Iterator<Item = (usize, Value)> {
    v.tokens
        .iter()
        .zip(&v.roles)
        .enumerate()
        .filter_map(|(id, (text, role))| {
            let special = match role {
                Role::Control | Role::Unknown => true,
                Role::UserDefined => false,
                Role::Normal | Role::Unused | Role::Byte => return None,
            };
            let token = json!({
                "id": id,
                "content": text,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special,
            });
            Some((id, token))
        })
}

/// The post-processor, when tokens are to be added around a text.
fn template(v: &Vocabulary) -> Value {
    let ends = [
        v.bos.filter(|_| v.add_bos),
        v.eos.first().copied().filter(|_| v.add_eos),
    ];
    if ends.iter().all(Option::is_none) {
        return Value::Null;
    }
    let mut special = Map::new();
    for id in ends.iter().flatten() {
        if let Some(text) = v.text(Some(*id)) {
            special.insert(
                text.to_owned(),
                json!({"id": text, "ids": [id], "tokens": [text]}),
            );
        }
    }
    let around = |name: &str, type_id: usize| {
        let end = |id: Option<u32>| {
            v.text(id)
                .map(|t| json!({"SpecialToken": {"id": t, "type_id": type_id}}))
        };
        let text = json!({"Sequence": {"id": name, "type_id": type_id}});
        let [first, last] = ends;
        [end(first), Some(text), end(last)]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
    };
    let single = around("A", 0);
    let pair: Vec<Value> = single.iter().cloned().chain(around("B", 1)).collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special})
}

/// The content of `tokenizer_config.json`, for sequences of up to `context` tokens.
pub fn config_json(v: &Vocabulary, context: usize) -> Value {
    let decoder: Map<String, Value> = added_tokens(v)
        .map(|(id, mut token)| {
            if let Some(map) = token.as_object_mut() {
                map.shift_remove("id");
            }
            (id.to_string(), token)
        })
        .collect();
    let special: Vec<&str> = v
        .tokens
        .iter()
        .zip(&v.roles)
        .filter(|(_, role)| **role == Role::Control)
        .map(|(text, _)| text.as_str())
        .collect();
    let mut config = json!({
        "tokenizer_class": v.class,
        "add_bos_token": v.add_bos,
        "add_eos_token": v.add_eos,
        "add_prefix_space": v.kind == Kind::SentencePiece { prefix: true },
        "added_tokens_decoder": decoder,
        "additional_special_tokens": special,
        "bos_token": v.text(v.bos),
        "eos_token": v.text(v.eos.first().copied()),
        "pad_token": v.text(v.pad),
        "unk_token": v.text(v.unk),
        "clean_up_tokenization_spaces": false,
        "model_max_length": context,
    });
    if let (Some(map), Some(template)) = (config.as_object_mut(), &v.chat_template) {
        map.insert("chat_template".to_owned(), template.as_str().into());
    }
    config
}
