//! A vocabulary as `tokenizer.json` and `tokenizer_config.json`.

use super::pre::byte_level;
use super::{Kind, Role, Vocabulary, WORD};
use serde_json::{Map, Value, json};

/// Special tokens that keep the white space behind them, where others do not.
const NEVER_STRIP: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

fn sequence(of: &str, parts: &[Value]) -> Value {
    json!({"type": "Sequence", (of): parts})
}

/// The content of `tokenizer.json`.
pub fn tokenizer_json(v: &Vocabulary) -> Value {
    let (normalizer, pre_tokenizer, decoder) = match v.kind {
        Kind::ByteLevel(pre) => {
            let normalizer = if pre.nfc {
                json!({"type": "NFC"})
            } else {
                Value::Null
            };
            (normalizer, pre.json(), byte_level(true))
        }
        Kind::SentencePiece { prefix } => sentence_piece(prefix),
        Kind::WordPiece => (
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true}),
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        ),
    };
    let vocab: Map<String, Value> = v
        .tokens
        .iter()
        .enumerate()
        .map(|(id, t)| (t.clone(), id.into()))
        .collect();
    let merges: Vec<Value> = v.merges.iter().map(|(l, r)| json!([l, r])).collect();
    let sentence_piece = matches!(v.kind, Kind::SentencePiece { .. });
    let mut model = match v.kind {
        Kind::WordPiece => json!({
            "type": "WordPiece",
            "unk_token": v.text(v.unk),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        }),
        Kind::ByteLevel(_) | Kind::SentencePiece { .. } => json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": if sentence_piece { v.text(v.unk) } else { None },
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": sentence_piece,
            "byte_fallback": sentence_piece,
            "ignore_merges": matches!(v.kind, Kind::ByteLevel(pre) if pre.whole_words),
        }),
    };
    // Moved, as `json!` would copy the whole vocabulary.
    model["vocab"] = vocab.into();
    if v.kind != Kind::WordPiece {
        model["merges"] = merges.into();
    }
    let mut tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(v).map(|(_, token)| token).collect::<Vec<_>>(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": template(v),
        "decoder": decoder,
    });
    tokenizer["model"] = model;
    tokenizer
}

/// Normalizer, pre-tokenizer and decoder of SentencePiece: spaces are a character of their own.
fn sentence_piece(prefix: bool) -> (Value, Value, Value) {
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let word = WORD.to_string();
    let mut normalizers = vec![replace(" ", &word)];
    let mut decoders = vec![
        replace(&word, " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": word}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    (
        sequence("normalizers", &normalizers),
        Value::Null,
        sequence("decoders", &decoders),
    )
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
                "rstrip": v.strips_right && special && !NEVER_STRIP.contains(&text.as_str()),
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
    let template = match (&v.chat_template, v.named_templates.as_slice()) {
        (None, []) => return config,
        (Some(one), []) => Value::from(one.as_str()),
        (default, named) => {
            let default = default.iter().map(|text| ("default", text.as_str()));
            let named = named.iter().map(|(name, text)| (name.as_str(), text.as_str()));
            default
                .chain(named)
                .map(|(name, text)| json!({"name": name, "template": text}))
                .collect()
        }
    };
    config["chat_template"] = template;
    config
}
