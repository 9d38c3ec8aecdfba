//! The vocabulary of a GGUF file. description.rs writes it as `tokenizer.json` and
//! `tokenizer_config.json`.

mod description;
mod pre;

use super::read::{Array, Gguf, Value as Entry};
use crate::checkpoint::write_json;
use crate::memory;
use pre::Pre;
use std::collections::HashMap;
use std::path::Path;
use transformer_lite::unstable::backend::NOTE;
use transformer_lite::unstable::error::{Error, Result};

pub use description::{config_json, tokenizer_json};
#[cfg(test)]
pub use pre::names as pre_names;

/// Writes `tokenizer.json` and `tokenizer_config.json` of the GGUF file `input` to the existing
/// folder `folder`. The file needs no tensors. Errors: a damaged file, an unsupported tokenizer, a
/// failure to write.
pub fn write_tokenizer(input: &Path, folder: &Path) -> Result<()> {
    let gguf = Gguf::open(input)?;
    let architecture = gguf.opt_str("general.architecture")?.unwrap_or_default();
    let context = gguf.opt_usize(&format!("{architecture}.context_length"))?;
    Vocabulary::read(&gguf)?.write(context.unwrap_or(usize::MAX), folder)
}

/// Marks the beginning of a word in SentencePiece's vocabularies, and in those of BERT as GGUF
/// files have them.
const WORD: char = '\u{2581}';

/// The key of the merges of a byte-level vocabulary.
const MERGES: &str = "tokenizer.ggml.merges";

/// Bytes of memory that a token or a merge takes, roughly: as read and indexed, or as JSON.
const ENTRY: usize = 640;

/// Tokens with these texts always end an answer. They are control tokens, whatever type the file
/// gives them.
const ENDS: [&str; 12] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[EOT]",
    "<EOT>",
    "<|EOT|>",
];

/// Pairs of tokens that are joined, in order.
type Merges = Vec<(String, String)>;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Byte-level BPE.
    ByteLevel(&'static Pre),
    /// SentencePiece BPE with byte tokens.
    SentencePiece {
        /// A space is put before the text.
        prefix: bool,
    },
    /// `WordPiece` of lower-case words, after BERT.
    WordPiece,
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
            // 0 stands for undefined.
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub struct Vocabulary {
    kind: Kind,
    class: &'static str,
    /// Texts by id, as `tokenizer.json` writes them; no text occurs twice.
    pub tokens: Vec<String>,
    roles: Vec<Role>,
    merges: Merges,
    /// Beginning of a sequence.
    pub bos: Option<u32>,
    /// Ends of an answer; the first is the end of a sequence.
    pub eos: Vec<u32>,
    pub pad: Option<u32>,
    unk: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    /// Special tokens include the white space after them.
    strips_right: bool,
    chat_template: Option<String>,
    /// Further templates with their names.
    named_templates: Vec<(String, String)>,
    /// Texts of [`ENDS`] that the file does not mark as control tokens.
    mistyped: Vec<&'static str>,
}

fn missing_or<T>(g: &Gguf, key: &str, value: Result<Option<T>>) -> Result<T> {
    g.required(key, value?)
}

/// A vocabulary that other files than GGUF describe.
#[derive(Debug, Default)]
pub struct Parts {
    pub tokens: Vec<String>,
    /// For each token, what it is for, as a GGUF file numbers it.
    pub roles: Vec<i64>,
    /// Scores of SentencePiece's tokens, or the merges of a byte-level vocabulary with the name of
    /// its pre-tokenizer.
    pub segmentation: Segmentation,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    /// Tokens are put around a text.
    pub add_bos: bool,
    pub add_eos: bool,
}

/// How text becomes tokens.
#[derive(Debug)]
pub enum Segmentation {
    Scores { scores: Vec<f32>, prefix: bool },
    Merges { merges: Vec<String>, pre: &'static str },
}

impl Default for Segmentation {
    fn default() -> Self {
        Self::Scores {
            scores: Vec::new(),
            prefix: false,
        }
    }
}

impl Vocabulary {
    /// The vocabulary of `parts`. `bad` makes an error of what is wrong.
    pub fn of_parts(parts: Parts, bad: impl Fn(&str) -> Error) -> Result<Self> {
        let mut tokens = parts.tokens;
        let mut roles: Vec<Role> = parts
            .roles
            .iter()
            .map(|code| Role::of(*code).ok_or_else(|| bad(&format!("unknown type {code} of a token"))))
            .collect::<Result<_>>()?;
        check_memory(tokens.len(), "the vocabulary")?;
        rename_duplicates(&mut tokens, &mut roles);
        let index: HashMap<&str, u32> = (0..).zip(&tokens).map(|(id, t)| (t.as_str(), id)).collect();
        let (kind, class, merges) = match &parts.segmentation {
            Segmentation::Scores { scores, prefix } => {
                let merges = implied_merges(&tokens, scores, &roles, &index);
                (Kind::SentencePiece { prefix: *prefix }, "LlamaTokenizer", merges)
            }
            Segmentation::Merges { merges, pre } => {
                let pre = Pre::named(pre).unwrap_or(&Pre::GPT2);
                (
                    Kind::ByteLevel(pre),
                    pre.class,
                    parsed_merges(merges, &index, &bad)?,
                )
            }
        };
        Ok(Self {
            kind,
            class,
            tokens,
            roles,
            merges,
            bos: parts.bos,
            eos: parts.eos.into_iter().collect(),
            pad: None,
            unk: parts.unk,
            add_bos: parts.add_bos && parts.bos.is_some(),
            add_eos: parts.add_eos && parts.eos.is_some(),
            strips_right: false,
            mistyped: Vec::new(),
            chat_template: None,
            named_templates: Vec::new(),
        })
    }

    /// Reads and checks the vocabulary of a file.
    pub fn read(g: &Gguf) -> Result<Self> {
        let key = "tokenizer.ggml.model";
        let model = missing_or(g, key, g.opt_str(key))?;
        let key = "tokenizer.ggml.tokens";
        let tokens = missing_or(g, key, g.opt_strings(key))?;
        let merges = g.opt_strings(MERGES)?.unwrap_or_default();
        check_memory(tokens.len() + merges.len(), "the vocabulary")?;
        let mut tokens = tokens.to_vec();
        let mut roles = roles(g, tokens.len())?;
        if model == "bert" {
            tokens = word_pieces(g, &tokens, &roles)?;
        }
        rename_duplicates(&mut tokens, &mut roles);
        let index = indexed(g, &tokens)?;
        let mistyped = retyped_ends(&index, &mut roles);
        let (kind, class, merges) = segmentation(g, model, &tokens, &roles, &index)?;
        // BERT puts classification and separator tokens around a text; GGUF spells the latter so.
        let (first, last): (_, &[_]) = match kind {
            Kind::WordPiece => ("cls", &["seperator"]),
            _ => ("bos", &["eos", "eot", "eom"]),
        };
        let id = |name: &str| token_id(g, name, tokens.len());
        let mut eos = Vec::new();
        for name in last {
            eos.extend(id(name)?.filter(|v| !eos.contains(v)));
        }
        for id in ENDS.iter().filter_map(|text| index.get(text)) {
            if !eos.contains(id) {
                eos.push(*id);
            }
        }
        let sentence_piece = matches!(kind, Kind::SentencePiece { .. });
        let starts = match kind {
            Kind::ByteLevel(pre) => pre.starts,
            Kind::SentencePiece { .. } | Kind::WordPiece => true,
        };
        let flag = |name: &str| g.opt_bool(&format!("tokenizer.ggml.add_{name}_token"));
        let add_bos = flag("bos")?.unwrap_or(starts);
        let add_eos = flag("eos")?.unwrap_or(kind == Kind::WordPiece);
        let bos = id(first)?;
        let needed = |what: &str, name: &str| {
            g.bad(format!(
                "the tokenizer adds a {what} token, but metadata \"tokenizer.ggml.{name}_token_id\" is missing"
            ))
        };
        if add_bos && bos.is_none() {
            return Err(needed("first", first));
        }
        if add_eos
            && let [name, ..] = last
            && id(name)?.is_none()
        {
            return Err(needed("last", name));
        }
        let unk = match id("unknown")? {
            None if sentence_piece => (0..)
                .zip(&roles)
                .find(|(_, r)| **r == Role::Unknown)
                .map(|(id, _)| id),
            v => v,
        };
        // As in the tokenizer.json of Phi-3; GGUF files do not tell.
        let strips_right = sentence_piece && g.opt_str("general.architecture")? == Some("phi3");
        Ok(Self {
            kind,
            class,
            chat_template: g.opt_str("tokenizer.chat_template")?.map(str::to_owned),
            named_templates: named_templates(g)?,
            pad: id("padding")?,
            tokens,
            roles,
            merges,
            bos,
            eos,
            unk,
            add_bos,
            add_eos,
            strips_right,
            mistyped,
        })
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json`, for sequences of up to `context`
    /// tokens.
    pub fn write(&self, context: usize, folder: &Path) -> Result<()> {
        check_memory(self.tokens.len() + self.merges.len(), "tokenizer.json")?;
        if !self.mistyped.is_empty() {
            log::warn!(
                target: NOTE,
                "the GGUF file does not mark {} as control tokens, which is an error of the file; \
                 they end an answer anyway",
                self.mistyped.join(", ")
            );
        }
        write_json(folder, "tokenizer.json", &tokenizer_json(self), false)?;
        write_json(folder, "tokenizer_config.json", &config_json(self, context), true)
    }

    fn text(&self, id: Option<u32>) -> Option<&str> {
        id.and_then(|id| self.tokens.get(id as usize)).map(String::as_str)
    }
}

/// Makes the tokens of [`ENDS`] control tokens. Returns those that the file marks otherwise.
fn retyped_ends(index: &HashMap<&str, u32>, roles: &mut [Role]) -> Vec<&'static str> {
    let mut mistyped = Vec::new();
    for text in ENDS {
        let role = index.get(text).and_then(|id| roles.get_mut(*id as usize));
        if let Some(role) = role.filter(|role| **role != Role::Control) {
            *role = Role::Control;
            mistyped.push(text);
        }
    }
    mistyped
}

/// Fails if there is too little memory for `entries` tokens and merges.
fn check_memory(entries: usize, what: &str) -> Result<()> {
    memory::check(entries.saturating_mul(ENTRY), what)
}

/// Gives another text to tokens whose text a second token has, since `tokenizer.json` finds tokens
/// by their texts. Such a token is not found in texts: the other one stands for it, which is the
/// first control token, else the first one that is used.
fn rename_duplicates(tokens: &mut [String], roles: &mut [Role]) {
    let rank = |role: Option<&Role>| match role {
        Some(Role::Control) => 0,
        Some(Role::UserDefined) => 1,
        Some(Role::Unused) | None => 3,
        Some(_) => 2,
    };
    let mut owners: HashMap<&str, usize> = HashMap::new();
    for (id, token) in tokens.iter().enumerate() {
        let owner = owners.entry(token).or_insert(id);
        if rank(roles.get(id)) < rank(roles.get(*owner)) {
            *owner = id;
        }
    }
    let mut names = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        let owner = owners.get(token.as_str()).copied().unwrap_or(id);
        if owner != id {
            let mut name = format!("[{id}, a duplicate of {owner}]");
            while owners.contains_key(name.as_str()) {
                name.push(']');
            }
            names.push((id, name));
        }
    }
    for (id, name) in names {
        if let (Some(token), Some(role)) = (tokens.get_mut(id), roles.get_mut(id)) {
            (*token, *role) = (name, Role::Unused);
        }
    }
}

/// Ids by text, which is unique. An error for a vocabulary that is empty or too large.
fn indexed<'t>(g: &Gguf, tokens: &'t [String]) -> Result<HashMap<&'t str, u32>> {
    if u32::try_from(tokens.len()).is_err() || tokens.is_empty() {
        return Err(g.bad(format!(
            "a vocabulary of {} tokens is not supported",
            tokens.len()
        )));
    }
    Ok((0..)
        .zip(tokens)
        .map(|(id, token)| (token.as_str(), id))
        .collect())
}

/// How text becomes tokens, the class of the tokenizer in Hugging Face's library, and the merges.
fn segmentation(
    g: &Gguf,
    model: &str,
    tokens: &[String],
    roles: &[Role],
    index: &HashMap<&str, u32>,
) -> Result<(Kind, &'static str, Merges)> {
    let prefix = g.opt_bool("tokenizer.ggml.add_space_prefix")?;
    Ok(match model {
        "gpt2" => {
            let key = "tokenizer.ggml.pre";
            // Files from before May 2024 do not name it; the default is that of llama.cpp.
            let name = g
                .opt_str(key)?
                .filter(|name| !name.is_empty())
                .unwrap_or("default");
            let pre = Pre::named(name).ok_or_else(|| {
                g.unsupported(format!(
                    "metadata \"{key}\": pre-tokenizer \"{name}\" is not supported; supported: {}",
                    Pre::names()
                ))
            })?;
            (Kind::ByteLevel(pre), pre.class, stored_merges(g, index)?)
        }
        "llama" => {
            let prefix = prefix.unwrap_or(true);
            let merges = scored_merges(g, tokens, roles, index)?;
            (Kind::SentencePiece { prefix }, "LlamaTokenizer", merges)
        }
        "gemma4" => {
            let prefix = prefix.unwrap_or(false);
            let merges = stored_merges(g, index)?;
            (Kind::SentencePiece { prefix }, "GemmaTokenizer", merges)
        }
        "bert" => (Kind::WordPiece, "BertTokenizer", Vec::new()),
        _ => {
            return Err(g.unsupported(format!(
                "metadata \"tokenizer.ggml.model\": tokenizer \"{model}\" is not supported; supported: \
                 gpt2, llama, gemma4, bert"
            )));
        }
    })
}

/// The id of a special token, of `count` tokens.
fn token_id(g: &Gguf, name: &str, count: usize) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    // -1 stands for none, also in 32 bits without a sign.
    let none = matches!(
        g.get(&key),
        Some(Entry::I32(-1) | Entry::I64(-1) | Entry::U32(u32::MAX))
    );
    if none {
        return Ok(None);
    }
    let Some(id) = g.opt_usize(&key)? else {
        return Ok(None);
    };
    match u32::try_from(id) {
        Ok(found) if id < count => Ok(Some(found)),
        _ => Err(g.bad(format!(
            "metadata \"{key}\": expected an id below {count}, found {id}"
        ))),
    }
}

fn named_templates(g: &Gguf) -> Result<Vec<(String, String)>> {
    let mut names = g
        .opt_strings("tokenizer.chat_templates")?
        .unwrap_or_default()
        .to_vec();
    // Some files have this template without the list of names.
    if names.is_empty() && g.get("tokenizer.chat_template.tool_use").is_some() {
        names.push("tool_use".to_owned());
    }
    let template = |name: &String| {
        let key = format!("tokenizer.chat_template.{name}");
        let text = missing_or(g, &key, g.opt_str(&key))?;
        Ok((name.clone(), text.to_owned()))
    };
    names.iter().map(template).collect()
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
        .map(|c| Role::of(*c).ok_or_else(|| g.bad(format!("metadata \"{key}\": expected 0 to 6, found {c}"))))
        .collect()
}

/// The tokens of a `WordPiece` vocabulary as BERT writes them: GGUF marks the beginning of a word,
/// BERT the continuation.
fn word_pieces(g: &Gguf, tokens: &[String], roles: &[Role]) -> Result<Vec<String>> {
    let mut pieces = Vec::with_capacity(tokens.len());
    for (token, role) in tokens.iter().zip(roles) {
        if *role != Role::Normal {
            pieces.push(token.clone());
            continue;
        }
        if token.contains(|c: char| c.is_ascii_uppercase()) {
            return Err(g.bad(format!(
                "token {token:?} has a capital letter; tokenizers of type \"bert\" are supported only in lower case"
            )));
        }
        let word = token.strip_prefix(WORD).map(str::to_owned);
        pieces.push(word.unwrap_or_else(|| format!("##{token}")));
    }
    Ok(pieces)
}

/// The merges of a byte-level vocabulary, each of which joins two tokens to a third.
fn stored_merges(g: &Gguf, index: &HashMap<&str, u32>) -> Result<Merges> {
    let merges = missing_or(g, MERGES, g.opt_strings(MERGES))?;
    parsed_merges(merges, index, |what| {
        g.bad(format!("metadata \"{MERGES}\": {what}"))
    })
}

/// Merges from texts of two tokens with a space between them.
fn parsed_merges(
    merges: &[String],
    index: &HashMap<&str, u32>,
    bad: impl Fn(&str) -> Error,
) -> Result<Merges> {
    let parse = |(i, merge): (usize, &String)| {
        let bad = |what: &str| bad(&format!("entry {i}, {merge:?}: {what}"));
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
    };
    merges.iter().enumerate().map(parse).collect()
}

/// The merges that a SentencePiece vocabulary implies.
fn scored_merges(g: &Gguf, tokens: &[String], roles: &[Role], index: &HashMap<&str, u32>) -> Result<Merges> {
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
    Ok(implied_merges(tokens, scores, roles, index))
}

/// All pairs of tokens whose joint text is a token, best score of the joint token first.
fn implied_merges(tokens: &[String], scores: &[f32], roles: &[Role], index: &HashMap<&str, u32>) -> Merges {
    let normal = |id: u32| roles.get(id as usize) == Some(&Role::Normal);
    let mut merges = Vec::new();
    for (id, (token, score)) in (0..).zip(tokens.iter().zip(scores)).filter(|(id, _)| normal(*id)) {
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
    merges.into_iter().map(|m| m.3).collect()
}
