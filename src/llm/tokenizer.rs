//! Tokenizers: text to tokens and back, from `tokenizer.json`.

use super::folder::CUT_OFF;
use super::grammar::ForGrammars;
use crate::error::{Cause, Error, ErrorKind, Result, Stage};
use crate::files::read::read_file;
use crate::limits::Limits;
use crate::parallel;
use crate::quota;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub(super) mod marked;

/// Bytes of the stack on which texts are encoded.
const STACK: usize = 8 << 20;

/// A tokenizer loaded from `tokenizer.json`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    byte_fallback: bool,
    /// True if the vocabulary writes bytes as printable characters.
    byte_level: bool,
    /// Made for the first grammar.
    pub(super) for_grammars: OnceLock<Arc<ForGrammars>>,
}

/// The meaning of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenText {
    /// The bytes that it adds to a text; for a special token, its name.
    pub bytes: Vec<u8>,
    /// True for a special token, which adds no text.
    pub special: bool,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model folder. Its padding and truncation settings are ignored: a
    /// prompt keeps its length.
    pub fn load(dir: &Path) -> Result<Self> {
        Self::within(dir, Limits::default().tokenizer)
    }

    /// Like [`Tokenizer::load`], for a file of at most `most` bytes.
    pub fn within(dir: &Path, most: u64) -> Result<Self> {
        let path = dir.join("tokenizer.json");
        let bytes = read_file(&path, most).map_err(|e| match e.kind() {
            ErrorKind::LimitExceeded => {
                let what = format!(
                    "the file is larger than {most} bytes; {}",
                    quota::raise("tokenizer")
                );
                Error::file(Stage::Text, &path, what).of_kind(ErrorKind::LimitExceeded)
            }
            _ => e,
        })?;
        let mut inner = contained(|| tokenizers::Tokenizer::from_bytes(&bytes)).map_err(|e| {
            let json = e.downcast_ref::<serde_json::Error>();
            let what = match json.is_some_and(serde_json::Error::is_eof) {
                true => CUT_OFF,
                false => "not a tokenizer description",
            };
            Error::parse(Stage::Text, &path, what, e)
        })?;
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|e| Error::parse(Stage::Text, &path, "truncation cannot be turned off", e))?;
        let decoder = serde_json::to_string(&inner.get_decoder())
            .map_err(|e| Error::parse(Stage::Text, &path, "the decoder cannot be read back", e))?;
        Ok(Self {
            inner,
            path,
            byte_fallback: decoder.contains("\"ByteFallback\""),
            byte_level: decoder.contains("\"ByteLevel\""),
            for_grammars: OnceLock::new(),
        })
    }

    /// The tokens of `text`. Special tokens written in `text` are always recognized. `add_special`
    /// also adds the tokens that surround every text, such as the start token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encoded(|| {
            let encoding = self.inner.encode_fast(text, add_special)?;
            Ok(encoding.get_ids().to_vec())
        })
    }

    /// Runs `encode` on a thread of its own.
    fn encoded(&self, encode: impl FnOnce() -> Result<Vec<u32>, Cause> + Send) -> Result<Vec<u32>> {
        // A thread keeps the words of each tokenizer that it used until it ends.
        parallel::on_thread("tokenizer", STACK, encode)
            .map_err(|e| Error::caused(Stage::Text, "cannot start a thread for the tokenizer", e))?
            .unwrap_or_else(|panic| Err(inconsistent(panic.as_ref())))
            .map_err(|e| Error::parse(Stage::Text, &self.path, "the text cannot be encoded", e))
    }

    /// The special tokens before every text, often one or none.
    pub fn start(&self) -> Result<Vec<u32>> {
        const PROBE: &str = "a";
        let (mut with, plain) = (self.encode(PROBE, true)?, self.encode(PROBE, false)?);
        let at = with.windows(plain.len().max(1)).position(|w| w == plain);
        with.truncate(at.unwrap_or(0));
        Ok(with)
    }

    /// The text of `ids`, without special tokens. Invalid UTF-8 becomes U+FFFD; unknown IDs are
    /// skipped.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        contained(|| self.inner.decode(ids, true))
            .map_err(|e| Error::parse(Stage::Text, &self.path, "the tokens cannot be decoded", e))
    }

    /// A decoder for tokens that arrive one at a time.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream {
            tokenizer: self,
            context: Vec::new(),
            shown: String::new(),
            pending: Vec::new(),
        }
    }

    /// The file that the tokenizer was read from.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// ID of the token with exactly this text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Number of tokens, including added ones.
    pub fn vocab(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// All tokens with their meaning, by ascending ID, without gaps.
    pub fn tokens(&self) -> impl Iterator<Item = (u32, TokenText)> + '_ {
        let mut ids: Vec<u32> = self.inner.get_vocab(true).into_values().collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().filter_map(|id| Some((id, self.token(id)?)))
    }

    /// The meaning of the token `id`; `None` if there is no such token.
    pub fn token(&self, id: u32) -> Option<TokenText> {
        let text = self.inner.id_to_token(id)?;
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        Some(match added.get(&id) {
            Some(a) => TokenText {
                bytes: text.into_bytes(),
                special: a.special,
            },
            None => TokenText {
                bytes: self.bytes_of(id, &text),
                special: false,
            },
        })
    }

    /// The text that the token `id` adds, or its name if it is special. Incomplete UTF-8 becomes
    /// U+FFFD. Empty if there is no such token.
    pub fn text_of(&self, id: u32) -> String {
        let token = self.token(id).unwrap_or_default();
        String::from_utf8_lossy(&token.bytes).into_owned()
    }

    /// The bytes that a vocabulary token adds to a text.
    fn bytes_of(&self, id: u32, written: &str) -> Vec<u8> {
        if self.byte_level {
            let bytes: Option<Vec<u8>> = written.chars().map(byte_of).collect();
            return bytes.unwrap_or_else(|| written.as_bytes().to_vec());
        }
        if self.is_byte(id) {
            let byte = written.get(3..5).and_then(|hex| u8::from_str_radix(hex, 16).ok());
            return byte.map_or_else(|| written.as_bytes().to_vec(), |b| vec![b]);
        }
        written.replace('\u{2581}', " ").into_bytes()
    }

    /// The special tokens with their names, by ID.
    pub(super) fn specials(&self) -> BTreeMap<u32, String> {
        let added = self.inner.get_added_tokens_decoder().into_iter();
        let special = added.filter(|(_, token)| token.special);
        special.map(|(id, token)| (id, token.content)).collect()
    }

    /// True if both have the same tokens with the same IDs.
    pub fn has_tokens_of(&self, other: &Self) -> bool {
        self.inner.get_vocab(true) == other.inner.get_vocab(true)
    }

    /// True for a special token: it is matched in text before all others, and decoding skips it.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary();
        self.inner
            .id_to_token(id)
            .is_some_and(|t| added.is_special_token(&t))
    }

    /// False for tokens that decoding skips: special and unknown ones.
    fn has_text(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some() && !self.is_special(id)
    }

    /// True for a single-byte token, which decodes together with adjacent ones.
    fn is_byte(&self, id: u32) -> bool {
        self.byte_fallback
            && self
                .inner
                .id_to_token(id)
                .is_some_and(|t| t.len() == 6 && t.starts_with("<0x") && t.ends_with('>'))
    }
}

/// The byte that byte-level vocabularies write as `c`: printable Latin-1 as itself, the others in
/// order from U+0100 (Radford et al., 2019, GPT-2).
fn byte_of(c: char) -> Option<u8> {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(c) {
        n @ 0..=0xff => u8::try_from(n).ok().filter(printable),
        n => {
            let at = usize::try_from(n - 0x100).ok()?;
            (0..=u8::MAX).filter(|b| !printable(b)).nth(at)
        }
    }
}

/// Runs `work` of the tokenizer library and turns panics, which contradictory files can cause, into
/// errors. `work` changes only the library's word cache, so the tokenizer stays usable.
fn contained<T>(work: impl FnOnce() -> Result<T, Cause>) -> Result<T, Cause> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(inconsistent(panic.as_ref())))
}

/// The error for a file whose use makes the library panic.
fn inconsistent(panic: &(dyn Any + Send)) -> Cause {
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or(panic.downcast_ref::<&str>().copied());
    format!(
        "the tokenizer file is inconsistent: {}",
        words.unwrap_or("no reason given")
    )
    .into()
}

/// Decodes tokens one at a time. The joined pieces of [`TextStream::push`] and
/// [`TextStream::finish`] equal [`Tokenizer::decode`] of all tokens, and no piece ends within a
/// character.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens already shown. The next ones are decoded after them, so that the decoder treats only
    /// the real start of the text as a start.
    context: Vec<u32>,
    /// The part of the text of `context` and `pending` that has been shown.
    shown: String,
    /// Tokens not yet shown completely.
    pending: Vec<u32>,
}

impl TextStream<'_> {
    /// Takes the next token and returns the text that is now certain; empty while a character is
    /// incomplete.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if !self.tokenizer.has_text(id) {
            return Ok(String::new());
        }
        self.pending.push(id);
        // One invalid byte changes how its whole run of byte tokens is decoded, so wait for the end
        // of the run.
        if self.tokenizer.is_byte(id) {
            return Ok(String::new());
        }
        let text = self.text()?;
        let certain = text.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(&text);
        let piece = self.unseen(certain)?.to_owned();
        if certain.len() < text.len() {
            self.shown.push_str(&piece);
            return Ok(piece);
        }
        // If the new tokens alone give no text, a decoder would treat what follows as the start of
        // the text, so keep the previous tokens too.
        let alone = self.tokenizer.decode(&self.pending)?;
        if alone.is_empty() {
            self.context.append(&mut self.pending);
            self.shown = text;
        } else {
            self.context = std::mem::take(&mut self.pending);
            self.shown = alone;
        }
        Ok(piece)
    }

    /// Ends the text and returns the held text.
    pub fn finish(self) -> Result<String> {
        self.held()
    }

    /// The text that would be certain if no token followed.
    pub(super) fn held(&self) -> Result<String> {
        let text = self.text()?;
        Ok(self.unseen(&text)?.to_owned())
    }

    fn text(&self) -> Result<String> {
        let ids: Vec<u32> = self.context.iter().chain(&self.pending).copied().collect();
        self.tokenizer.decode(&ids)
    }

    fn unseen<'t>(&self, text: &'t str) -> Result<&'t str> {
        if let Some(rest) = text.strip_prefix(&self.shown) {
            return Ok(rest);
        }
        let what = format!(
            "the decoder changed text that was already delivered: {:?} became {text:?}",
            self.shown
        );
        Err(Error::file(Stage::Text, &self.tokenizer.path, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing;

    fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> (Vec<String>, String) {
        let mut stream = tokenizer.stream();
        let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        pieces.push(stream.finish().unwrap());
        let joined = pieces.concat();
        (pieces, joined)
    }

    fn byte_level() -> (tempfile::TempDir, Tokenizer) {
        let dir = tempfile::tempdir().unwrap();
        testing::write_byte_level_tokenizer(dir.path());
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        (dir, tokenizer)
    }

    fn byte_fallback() -> (tempfile::TempDir, Tokenizer) {
        let dir = tempfile::tempdir().unwrap();
        testing::write_byte_fallback_tokenizer(dir.path());
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        (dir, tokenizer)
    }

    #[test]
    fn tokens_stand_for_bytes() {
        let (_dir, tokenizer) = byte_level();
        let tokens: Vec<(u32, TokenText)> = tokenizer.tokens().collect();
        assert_eq!(tokens.len(), 258);
        for (id, token) in &tokens[..256] {
            assert_eq!((token.bytes.as_slice(), token.special), (&[*id as u8][..], false));
        }
        assert_eq!(
            (tokens[257].1.bytes.as_slice(), tokens[257].1.special),
            (&b"<end>"[..], true)
        );
        let (_dir, tokenizer) = byte_fallback();
        let tokens: Vec<(u32, TokenText)> = tokenizer.tokens().collect();
        let texts: Vec<&[u8]> = tokens.iter().take(7).map(|(_, t)| t.bytes.as_slice()).collect();
        assert_eq!(texts, [&b"<unk>"[..], b"</s>", b" ", b"a", b" a", &[0], &[1]]);
        assert!(tokens[1].1.special && !tokens[2].1.special);
    }

    #[test]
    fn only_equal_vocabularies_are_shared() {
        let (_a, a) = byte_level();
        let (_b, b) = byte_level();
        let (_c, c) = byte_fallback();
        assert!(a.has_tokens_of(&b) && !a.has_tokens_of(&c));
    }

    #[test]
    fn split_characters_wait() {
        let (_dir, tokenizer) = byte_level();
        let text = "aé€😀 b";
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(ids.len(), text.len(), "one token for each byte");
        let (pieces, joined) = streamed(&tokenizer, &ids);
        assert_eq!(joined, text);
        assert_eq!(
            pieces,
            ["a", "", "é", "", "", "€", "", "", "", "😀", " ", "b", ""]
        );
    }

    #[test]
    fn special_tokens_are_added_on_request_and_not_shown() {
        let (_dir, tokenizer) = byte_level();
        let start = tokenizer.token_id("<start>").unwrap();
        let plain = tokenizer.encode("hi", false).unwrap();
        let added = tokenizer.encode("hi", true).unwrap();
        assert_eq!(added.split_first().unwrap(), (&start, plain.as_slice()));
        assert_eq!(
            tokenizer.encode("<start>hi", false).unwrap(),
            added,
            "written tokens are recognized"
        );
        assert_eq!(streamed(&tokenizer, &added).1, "hi");
        assert_eq!(tokenizer.decode(&[u32::MAX]).unwrap(), "");
    }

    #[test]
    fn marked_special_tokens_are_text() {
        for (_dir, tokenizer) in [byte_level(), byte_fallback()] {
            let names = tokenizer.specials();
            let (id, name) = names.iter().next_back().unwrap();
            let mut text = serde_json::json!([{"role": name, "content": [format!("a{name} a{name}")]}]);
            marked::mark(&tokenizer, &mut text);
            assert_eq!(text[0]["role"], name.as_str());
            let text = format!("a{name}{}{name}a", text[0]["content"][0].as_str().unwrap());
            let ids = tokenizer.encode_marked(&text).unwrap();
            assert_eq!(ids.iter().filter(|found| *found == id).count(), 2, "{name}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), format!("aa{name} a{name}a"));
            let parts = ids.split(|found| found == id).map(<[u32]>::to_vec);
            let outer: Vec<Vec<u32>> = parts.collect();
            let whole = tokenizer.encode(&format!("a{name}b{name}a"), false).unwrap();
            let plain: Vec<Vec<u32>> = whole.split(|found| found == id).map(<[u32]>::to_vec).collect();
            assert_eq!((&outer[0], &outer[2]), (&plain[0], &plain[2]));
        }
    }

    /// Every short sequence over tokens that interact: halves of characters, bad bytes, leading
    /// spaces, tokens without text.
    #[test]
    fn stream_equals_whole() {
        let (_a, level) = byte_level();
        let (_b, fallback) = byte_fallback();
        let level_ids: Vec<u32> = ["a", "Ġ", "Ã", "©", "ð", "Ł", "ÿ", "<end>"]
            .iter()
            .map(|t| level.token_id(t).unwrap())
            .collect();
        let fallback_ids: Vec<u32> = ["▁", "a", "▁a", "<0xC3>", "<0xA9>", "<0x41>", "<0xFF>", "</s>"]
            .iter()
            .map(|t| fallback.token_id(t).unwrap())
            .collect();
        for (tokenizer, set) in [(&level, level_ids), (&fallback, fallback_ids)] {
            for code in 0..8usize.pow(5) {
                let ids: Vec<u32> = (0..5).map(|i| set[code / 8usize.pow(i) % 8]).collect();
                assert_eq!(
                    streamed(tokenizer, &ids).1,
                    tokenizer.decode(&ids).unwrap(),
                    "{ids:?}"
                );
            }
        }
    }

    #[test]
    fn spaces_survive_streaming() {
        let (_dir, tokenizer) = byte_fallback();
        let ids: Vec<u32> = ["▁a", "▁", "▁", "▁a"]
            .iter()
            .map(|t| tokenizer.token_id(t).unwrap())
            .collect();
        assert_eq!(tokenizer.decode(&ids).unwrap(), "a   a");
        assert_eq!(streamed(&tokenizer, &ids).0, ["a", " ", " ", " a", ""]);
    }

    #[test]
    fn corrupt_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let e = Tokenizer::load(dir.path()).err().unwrap();
        assert!(
            matches!(&e, Error::Io { path, .. } if path.ends_with("tokenizer.json")),
            "{e}"
        );
        testing::write_byte_level_tokenizer(dir.path());
        let good = std::fs::read(dir.path().join("tokenizer.json")).unwrap();
        let half = good.get(..good.len() / 2).unwrap();
        for bad in [half, b"", b"null", b"{\"version\": \"1.0\"}", b"\xff\xfe"] {
            std::fs::write(dir.path().join("tokenizer.json"), bad).unwrap();
            let e = Tokenizer::load(dir.path()).err().unwrap();
            assert!(
                matches!(&e, Error::File { path, .. } if path.ends_with("tokenizer.json")),
                "{e}"
            );
        }
    }

    #[test]
    fn contradictions_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        testing::write_byte_level_tokenizer(dir.path());
        let path = dir.path().join("tokenizer.json");
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json["post_processor"]["special_tokens"] = serde_json::json!({});
        std::fs::write(&path, json.to_string()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        assert_eq!(tokenizer.encode("a", false).unwrap(), [97]);
        let e = tokenizer.encode("a", true).unwrap_err();
        assert!(matches!(&e, Error::File { path: p, .. } if *p == path), "{e}");
        testing::write_byte_fallback_tokenizer(dir.path());
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json["decoder"]["decoders"][3]["stop"] = serde_json::json!(9);
        std::fs::write(&path, json.to_string()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let decoded = tokenizer.decode(&[2]);
        assert!(decoded.is_err_and(|e| matches!(e, Error::File { path: p, .. } if p == path)));
    }

    #[test]
    fn truncation_and_padding_of_the_file_are_off() {
        let dir = tempfile::tempdir().unwrap();
        testing::write_byte_level_tokenizer(dir.path());
        let path = dir.path().join("tokenizer.json");
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json["truncation"] = serde_json::json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
        json["padding"] = serde_json::json!({"strategy": {"Fixed": 9}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
        std::fs::write(&path, json.to_string()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        assert_eq!(tokenizer.encode("abcdef", false).unwrap().len(), 6);
        assert_eq!(tokenizer.encode("a", false).unwrap().len(), 1);
    }
}
