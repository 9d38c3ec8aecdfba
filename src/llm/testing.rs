//! Small tokenizers and a model without weights, for tests.

use super::{Codec, LanguageModel, ModelFolder};
use crate::error::{Error, Result, Stage};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The printable character for `byte` in byte-level vocabularies.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let hidden = (0..byte).filter(|b| !printable(*b)).count();
    char::from_u32(256 + u32::try_from(hidden).unwrap()).unwrap()
}

fn special(id: usize, text: &str) -> Value {
    json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

/// One token per byte (ID = byte), `<start>` = 256 before every text, `<end>` = 257.
pub fn write_byte_level_tokenizer(dir: &Path) {
    let vocab: Map<String, Value> = (0..=255u8)
        .map(|b| (byte_char(b).to_string(), json!(b)))
        .collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(256, "<start>"), special(257, "<end>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<start>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<start>": {"id": "<start>", "ids": [256], "tokens": ["<start>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
    });
    std::fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
}

/// Pieces `▁`, `a`, `▁a`, one per byte, and `</s>`, with the decoder of SentencePiece models.
pub fn write_byte_fallback_tokenizer(dir: &Path) {
    let pieces = ["<unk>", "</s>", "▁", "a", "▁a"].map(str::to_owned);
    let bytes = (0..=255u8).map(|b| format!("<0x{b:02X}>"));
    let vocab: Map<String, Value> = pieces
        .into_iter()
        .chain(bytes)
        .enumerate()
        .map(|(i, t)| (t, json!(i)))
        .collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(1, "</s>")],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": ["▁ a"]}
    });
    std::fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
}

/// A codec with the tokenizer of [`write_byte_level_tokenizer`], the end token 257 and `config` as
/// `tokenizer_config.json`. The folder must outlive it.
pub fn byte_codec(config: &str) -> (tempfile::TempDir, Codec) {
    let dir = tempfile::tempdir().unwrap();
    write_byte_level_tokenizer(dir.path());
    std::fs::write(dir.path().join("config.json"), r#"{"eos_token_id": 257}"#).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    let codec = Codec::load(ModelFolder::open(dir.path()).unwrap()).unwrap();
    (dir, codec)
}

type Next = dyn Fn(&[u32]) -> u32 + Send;

/// A model whose next token is a function of all tokens in its cache.
pub struct FakeModel {
    vocab: usize,
    context: usize,
    next: Box<Next>,
    /// Tokens in the cache.
    pub cache: Vec<u32>,
    /// Tokens of each forward call.
    pub calls: Vec<Vec<u32>>,
    /// Index of the call that fails.
    pub fail_at: Option<usize>,
    /// Maximum number of tokens that can be truncated; more empties the cache.
    pub reach: Option<usize>,
}

impl FakeModel {
    pub fn new(vocab: usize, context: usize, next: impl Fn(&[u32]) -> u32 + Send + 'static) -> Self {
        Self {
            vocab,
            context,
            next: Box::new(next),
            cache: Vec::new(),
            calls: Vec::new(),
            fail_at: None,
            reach: None,
        }
    }
}

impl LanguageModel for FakeModel {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn context(&self) -> usize {
        self.context
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        assert!(!tokens.is_empty(), "forward needs a token");
        assert!(
            self.cache.len() + tokens.len() <= self.context,
            "the caller checks the context"
        );
        if self.fail_at == Some(self.calls.len()) {
            return Err(Error::other(Stage::Run, "device lost"));
        }
        self.calls.push(tokens.to_vec());
        self.cache.extend_from_slice(tokens);
        logits.clear();
        logits.resize(self.vocab, 0.0);
        logits[(self.next)(&self.cache) as usize] = 5.0;
        Ok(())
    }

    fn truncate(&mut self, len: usize) -> usize {
        let enough = self.reach.is_none_or(|reach| len + reach >= self.cache.len());
        self.cache.truncate(if enough { len } else { 0 });
        self.cache.len()
    }
}

/// A [`FakeModel`] lent to a session, for inspection afterwards.
#[derive(Clone)]
pub struct Lent(Arc<Mutex<FakeModel>>);

impl Lent {
    /// Takes the model out of `place` until [`Lent::give_back`].
    pub fn of(place: &mut FakeModel) -> Self {
        Self(Arc::new(Mutex::new(std::mem::replace(
            place,
            FakeModel::new(1, 1, |_| 0),
        ))))
    }

    pub fn give_back(&self, place: &mut FakeModel) {
        std::mem::swap(place, &mut self.0.lock().unwrap());
    }
}

impl LanguageModel for Lent {
    fn vocab(&self) -> usize {
        self.0.lock().unwrap().vocab()
    }

    fn context(&self) -> usize {
        self.0.lock().unwrap().context()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        self.0.lock().unwrap().forward(tokens, logits)
    }

    fn truncate(&mut self, len: usize) -> usize {
        self.0.lock().unwrap().truncate(len)
    }
}
