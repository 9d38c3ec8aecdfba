//! Prompt caches: a model's KV cache and its tokens in a file.
//!
//! Little-endian layout: the bytes `TLITEKV2`; the length of the header in 4 bytes; the header, a
//! JSON object; the token IDs, 4 bytes each; the rows of each state, one per token (for a
//! sliding-window state, only those of the last tokens); the CRC-32 of everything before it, 4
//! bytes.

use super::LanguageModel;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::files::read::read_file;
use crate::files::write_whole;
use crate::fmt::count_text;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind::NotFound;
use std::path::Path;

const MAGIC: &[u8; 8] = b"TLITEKV2";
/// Larger files are not read.
const MAX_BYTES: u64 = 64 << 30;

/// The model that a cache belongs to, and the cache format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Checksums of the names, types and shapes of the model's weights, and of samples of their
    /// bytes.
    pub model: String,
    /// Element type of the states.
    pub float: String,
    /// Layout of each state.
    pub states: Vec<Layout>,
}

/// Layout of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Name of the state.
    pub name: String,
    /// Bytes per row; a row belongs to one token.
    pub row: usize,
    /// Sliding-window size: a token reads at most this many rows, its own included. Older rows may
    /// be missing. `None` means that all rows are needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, row, window } = self;
        let window = window.map_or_else(String::new, |w| format!(" in a window of {w}"));
        write!(f, "\"{name}\" with rows of {row} bytes{window}")
    }
}

impl Layout {
    /// How many of the last rows must be present for a cache of `tokens` tokens.
    fn needed(&self, tokens: usize) -> usize {
        self.window.map_or(tokens, |w| tokens.min(w.saturating_sub(1)))
    }
}

/// Access to the contents of a model's cache as bytes.
pub trait States {
    /// Identity of the states.
    fn identity(&self) -> Result<Identity>;

    /// The rows of state `index` of [`Identity::states`]: all, or the last ones of a sliding-window
    /// state.
    fn read_state(&mut self, index: usize) -> Result<Vec<u8>>;

    /// Replaces the cache by one of `tokens` tokens. `states` holds the last rows of each state:
    /// all, or for a sliding-window state at least one fewer than its window. After an error the
    /// contents of the cache are unspecified; truncate it to 0 tokens.
    fn write_states(&mut self, tokens: usize, states: &[&[u8]]) -> Result<()>;
}

#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(flatten)]
    identity: Identity,
    tokens: usize,
    /// Number of rows of each state in the file.
    rows: Vec<usize>,
}

impl Header {
    /// Bytes after the header: tokens and rows.
    fn bytes(&self) -> Option<usize> {
        let rows = self.identity.states.iter().zip(&self.rows);
        rows.map(|(state, rows)| state.row.checked_mul(*rows))
            .chain([self.tokens.checked_mul(4)])
            .try_fold(0usize, |sum, part| sum.checked_add(part?))
    }
}

fn states<'a>(model: &'a mut dyn LanguageModel, path: &Path) -> Result<&'a mut dyn States> {
    model.states().ok_or_else(|| {
        let what = format!(
            "{}: the KV cache of this session can be neither saved nor loaded",
            path.display()
        );
        Error::usage("prompt_cache", what)
    })
}

/// Writes the cache of `model`, which holds `tokens`, to `path`. The file is written completely or
/// not at all.
pub fn save(path: &Path, model: &mut dyn LanguageModel, tokens: &[u32]) -> Result<()> {
    if model.len() != tokens.len() {
        let what = format!(
            "the cache holds {}, but {} were given",
            count_text(model.len(), "token"),
            tokens.len()
        );
        return Err(Error::other(Stage::Run, what));
    }
    let states = states(model, path)?;
    let identity = states.identity()?;
    let parts: Vec<Vec<u8>> = (0..identity.states.len())
        .map(|i| states.read_state(i))
        .collect::<Result<_>>()?;
    let rows = identity.states.iter().zip(&parts);
    let header = Header {
        rows: rows.map(|(s, part)| part.len() / s.row.max(1)).collect(),
        identity,
        tokens: tokens.len(),
    };
    let json = serde_json::to_vec(&header)
        .map_err(|e| Error::parse(Stage::Text, path, "the header cannot be written", e))?;
    let size = u32::try_from(json.len())
        .map_err(|e| Error::parse(Stage::Text, path, "the header is too long", e))?;
    write_whole(path, |out| {
        let mut crc = crc32fast::Hasher::new();
        let mut put = |bytes: &[u8]| {
            crc.update(bytes);
            out.write_all(bytes)
        };
        put(MAGIC)?;
        put(&size.to_le_bytes())?;
        put(&json)?;
        for token in tokens {
            put(&token.to_le_bytes())?;
        }
        for part in &parts {
            put(part)?;
        }
        out.write_all(&crc.finalize().to_le_bytes())
    })
}

/// Fills the cache of `model` from `path` and returns its tokens, at most as many as the context
/// holds. Returns none, and empties the cache, if the file does not exist. An error if the model
/// has no cache, or the file is damaged or belongs to another model or KV cache type; the cache is
/// then unchanged. If the device fails while the cache is written, the cache is empty afterwards.
pub fn load(path: &Path, model: &mut dyn LanguageModel) -> Result<Vec<u32>> {
    let context = model.context();
    let states = states(model, path)?;
    let bytes = match read_file(path, MAX_BYTES) {
        Err(Error::Io { source, .. }) if source.kind() == NotFound => {
            model.truncate(0);
            return Ok(Vec::new());
        }
        read => read?,
    };
    let wanted = states.identity()?;
    let (header, mut rest) = header(body(&bytes, path)?, path)?;
    check_identity(&header.identity, &wanted, path)?;
    let ids = rest.rows(header.tokens, 4)?;
    let mut tokens: Vec<u32> = ids
        .chunks_exact(4)
        .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        .collect();
    tokens.truncate(context);
    let parts = state_parts(&header, &mut rest, tokens.len())?;
    if !rest.bytes.is_empty() {
        let what = format!(
            "the prompt cache has {} too many for {}",
            count_text(rest.bytes.len(), "byte"),
            count_text(header.tokens, "token")
        );
        return Err(damaged(path, &what));
    }
    let written = states.write_states(tokens.len(), &parts);
    if written.is_err() {
        // Some states may have been written.
        model.truncate(0);
    }
    written.map(|()| tokens)
}

/// The file without its checksum, which must be right.
fn body<'a>(bytes: &'a [u8], path: &Path) -> Result<&'a [u8]> {
    if !bytes.starts_with(MAGIC) {
        let what = "not a prompt cache: it does not start with TLITEKV2";
        return Err(damaged(path, what));
    }
    let (body, sum) = bytes
        .split_last_chunk::<4>()
        .ok_or_else(|| damaged(path, "the prompt cache is truncated"))?;
    let (found, computed) = (u32::from_le_bytes(*sum), crc32fast::hash(body));
    if found == computed {
        return Ok(body);
    }
    let whole = header(bytes, path).ok().and_then(|(header, rest)| {
        let before = bytes.len() - rest.bytes.len();
        header.bytes()?.checked_add(before + sum.len())
    });
    let what = match whole.filter(|whole| *whole > bytes.len()) {
        Some(whole) => format!(
            "the prompt cache is truncated: found {} bytes, expected {whole}",
            bytes.len()
        ),
        None => format!(
            "the prompt cache is damaged: its checksum is {computed:08x}, but the file records {found:08x}"
        ),
    };
    Err(damaged(path, &what))
}

/// Checks that a file was written with the same model and KV cache type.
fn check_identity(found: &Identity, wanted: &Identity, path: &Path) -> Result<()> {
    let other = |what: String| Error::file(Stage::Text, path, what).of_kind(ErrorKind::PromptCacheMismatch);
    for (what, found, wanted) in [
        ("model", &found.model, &wanted.model),
        ("KV cache type (--kv, --float)", &found.float, &wanted.float),
    ] {
        if found != wanted {
            return Err(other(format!(
                "the prompt cache was written with another {what}: {found}; expected {wanted}"
            )));
        }
    }
    if found.states == wanted.states {
        return Ok(());
    }
    let mut pairs = found.states.iter().zip(&wanted.states);
    let what = match pairs.find(|(a, b)| a != b) {
        Some((found, wanted)) => format!("{found}; expected {wanted}"),
        None => format!("{}; expected {}", found.states.len(), wanted.states.len()),
    };
    Err(other(format!(
        "the prompt cache has other states than the model: {what}"
    )))
}

/// The rows of each state for the first `tokens` tokens.
fn state_parts<'a>(header: &Header, rest: &mut Rest<'a>, tokens: usize) -> Result<Vec<&'a [u8]>> {
    let path = rest.path;
    let states = &header.identity.states;
    if header.rows.len() != states.len() {
        let what = "the header of the prompt cache does not give the row count of each state";
        return Err(damaged(path, what));
    }
    let mut parts = Vec::with_capacity(states.len());
    for (state, rows) in states.iter().zip(&header.rows) {
        let part = rest.rows(*rows, state.row)?;
        let missing = header.tokens.checked_sub(*rows).ok_or_else(|| {
            let what = format!("{state}: found {rows} rows for {} tokens", header.tokens);
            damaged(path, &what)
        })?;
        let kept = tokens.saturating_sub(missing);
        if kept < state.needed(tokens) {
            let what = format!(
                "the prompt cache holds {} tokens but only part of state {state} ({rows} rows); it cannot \
                 be truncated to {tokens} tokens, the context of this model",
                header.tokens
            );
            return Err(damaged(path, &what));
        }
        parts.push(part.get(..kept * state.row).unwrap_or(part));
    }
    Ok(parts)
}

/// The header of a prompt cache, and the bytes after it.
fn header<'a>(bytes: &'a [u8], path: &'a Path) -> Result<(Header, Rest<'a>)> {
    let mut rest = Rest { bytes, path };
    rest.take(MAGIC.len())?;
    let size = rest.number()?;
    let header = serde_json::from_slice(rest.take(size)?)
        .map_err(|e| Error::parse(Stage::Text, path, "not the header of a prompt cache", e))
        .map_err(|e| e.of_kind(ErrorKind::PromptCacheDamaged))?;
    Ok((header, rest))
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::file(Stage::Text, path, what).of_kind(ErrorKind::PromptCacheDamaged)
}

/// The unread part of a file.
struct Rest<'a> {
    bytes: &'a [u8],
    path: &'a Path,
}

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (part, rest) = self.bytes.split_at_checked(count).ok_or_else(|| {
            let what = format!(
                "the prompt cache is truncated: {} bytes left, expected {count}",
                self.bytes.len()
            );
            damaged(self.path, &what)
        })?;
        self.bytes = rest;
        Ok(part)
    }

    fn rows(&mut self, count: usize, bytes: usize) -> Result<&'a [u8]> {
        self.take(count.saturating_mul(bytes))
    }

    fn number(&mut self) -> Result<usize> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing::{FakeModel, byte_codec};
    use crate::llm::{GenerateOptions, Session};
    use crate::testing::{assert_carries, assert_error, carries};
    use std::sync::Arc;

    fn layout(name: &str, row: usize) -> Layout {
        Layout {
            name: name.to_owned(),
            row,
            window: None,
        }
    }

    /// Keeps two bytes a token in one state, and one in another, of which it may keep a window.
    struct Saved {
        model: FakeModel,
        identity: Identity,
        /// Rows that the second state has no longer.
        gone: usize,
        /// Writing fails after the first state.
        fails: bool,
    }

    impl Saved {
        fn new(context: usize) -> Self {
            Self {
                model: FakeModel::new(32, context, |_| 1),
                identity: Identity {
                    model: "1234".to_owned(),
                    float: "f16".to_owned(),
                    states: vec![layout("k", 2), layout("v", 1)],
                },
                gone: 0,
                fails: false,
            }
        }
    }

    impl States for Saved {
        fn identity(&self) -> Result<Identity> {
            Ok(self.identity.clone())
        }

        fn read_state(&mut self, index: usize) -> Result<Vec<u8>> {
            let cache = self.model.cache.iter().map(|t| *t as u8);
            Ok(if index == 0 {
                cache.flat_map(|t| [t, t + 1]).collect()
            } else {
                cache.skip(self.gone).collect()
            })
        }

        fn write_states(&mut self, tokens: usize, states: &[&[u8]]) -> Result<()> {
            let (rows, last) = states[0].as_chunks::<2>();
            assert_eq!((rows.len(), last.len()), (tokens, 0));
            self.model.cache = rows.iter().map(|t| u32::from(t[0])).collect();
            if self.fails {
                return Err(Error::other(Stage::Run, "device lost"));
            }
            self.gone = tokens - states[1].len();
            assert_eq!(self.read_state(1).unwrap(), states[1]);
            Ok(())
        }
    }

    impl LanguageModel for Saved {
        fn vocab(&self) -> usize {
            self.model.vocab()
        }

        fn context(&self) -> usize {
            self.model.context()
        }

        fn len(&self) -> usize {
            self.model.len()
        }

        fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
            self.model.forward(tokens, logits)
        }

        fn truncate(&mut self, len: usize) -> usize {
            self.model.truncate(len)
        }

        fn states(&mut self) -> Option<&mut dyn States> {
            Some(self)
        }
    }

    #[test]
    fn what_is_saved_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let mut model = Saved::new(10);
        assert_eq!(load(&path, &mut model).unwrap(), [0; 0], "no file, no tokens");
        model.model.cache = vec![5, 6, 7];
        save(&path, &mut model, &[5, 6, 7]).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let mut other = Saved::new(10);
        other.model.cache = vec![1; 8];
        assert_eq!(load(&path, &mut other).unwrap(), [5, 6, 7]);
        assert_eq!(other.model.cache, [5, 6, 7]);
        let mut short = Saved::new(2);
        assert_eq!(load(&path, &mut short).unwrap(), [5, 6]);
        assert_eq!(short.model.cache, [5, 6]);
        let e = save(&path, &mut model, &[5]).unwrap_err();
        assert_carries(e, &["3", "1"]);
        let e = save(&path, &mut model.model, &[5, 6, 7]).unwrap_err();
        assert!(e.is_usage(), "{e}");
    }

    #[test]
    fn a_failed_load_leaves_no_foreign_keys() {
        let (dir, codec) = byte_codec("{}");
        let path = dir.path().join("cache");
        let mut model = Saved::new(10);
        model.model.cache = vec![5, 6, 7];
        save(&path, &mut model, &[5, 6, 7]).unwrap();
        let mut session = Session::new(Box::new(Saved::new(10)), Arc::new(codec));
        session.load_cache(&path).unwrap();
        assert_eq!(session.cached(), [5, 6, 7]);
        // The file is refused before anything is written.
        std::fs::write(dir.path().join("bad"), "x").unwrap();
        session.load_cache(&dir.path().join("bad")).unwrap_err();
        assert_eq!(session.cached(), [5, 6, 7]);
        session.load_cache(&dir.path().join("none")).unwrap();
        assert_eq!(session.cached(), [0; 0]);
        let mut model = Saved::new(10);
        model.fails = true;
        assert!(load(&path, &mut model).is_err());
        assert!(model.is_empty());
        let codec = session.codec().clone();
        let mut session = Session::new(Box::new(model), codec);
        session
            .generate(&[5, 6][..], &GenerateOptions::default())
            .unwrap()
            .next();
        assert_eq!(session.cached(), [5, 6]);
        session.load_cache(&path).unwrap_err();
        assert_eq!(session.cached(), [0; 0]);
    }

    #[test]
    fn of_a_window_the_last_rows_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let windowed = |context| {
            let mut model = Saved::new(context);
            model.identity.states[1].window = Some(4);
            model
        };
        let mut model = windowed(10);
        (model.model.cache, model.gone) = (vec![5, 6, 7, 8, 9, 1, 2], 2);
        save(&path, &mut model, &[5, 6, 7, 8, 9, 1, 2]).unwrap();
        let mut other = windowed(20);
        assert_eq!(load(&path, &mut other).unwrap().len(), 7);
        assert_eq!((other.gone, other.model.cache.len()), (2, 7));
        // The first 5 tokens can be gone on from with rows 2 to 4, the first 4 cannot with rows 2
        // and 3.
        let mut short = windowed(5);
        assert_eq!(load(&path, &mut short).unwrap(), [5, 6, 7, 8, 9]);
        assert_eq!((short.gone, short.read_state(1).unwrap()), (2, vec![7, 8, 9]));
        let e = load(&path, &mut windowed(4)).unwrap_err();
        assert_error(&e, ErrorKind::PromptCacheDamaged, &["\"v\"", "7", "4"]);
        // All rows of what keeps no window.
        let mut model = Saved::new(10);
        (model.model.cache, model.gone) = (vec![5, 6, 7], 1);
        save(&path, &mut model, &[5, 6, 7]).unwrap();
        let e = load(&path, &mut Saved::new(10)).unwrap_err();
        assert_error(&e, ErrorKind::PromptCacheDamaged, &["\"v\"", "3", "2"]);
    }

    #[test]
    fn every_damage_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let mut model = Saved::new(10);
        model.model.cache = vec![5, 6, 7];
        save(&path, &mut model, &[5, 6, 7]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            model.model.cache = vec![9];
            let e = load(&path, &mut model).unwrap_err();
            assert_error(&e, ErrorKind::PromptCacheDamaged, &[&path.display().to_string()]);
            assert_eq!(model.model.cache, [9], "nothing was changed");
            e.chain()
        };
        let sum = |body: &[u8]| format!("{:08x}", crc32fast::hash(body));
        for i in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[i] ^= 0x10;
            let e = refused(&bytes);
            let expected = if i < 8 {
                "TLITEKV2".to_owned()
            } else {
                sum(&bytes[..bytes.len() - 4])
            };
            assert!(carries(&e, &expected), "byte {i}: {e}");
            let e = refused(&whole[..i]);
            let size = usize::from(whole[8]) + 12;
            if i >= size {
                assert_carries(e, &[&i.to_string(), &whole.len().to_string()]);
            }
        }
        // With a checksum that is right.
        let signed = |body: &[u8]| [body, &crc32fast::hash(body).to_le_bytes()].concat();
        let body = &whole[..whole.len() - 4];
        let mut signed = |body: &[u8], values: &[&str]| {
            let e = refused(&signed(body));
            assert!(!carries(&e, &sum(body)), "{e}");
            assert_carries(e, values);
        };
        signed(&body[..body.len() - 1], &[]);
        signed(&[body, &[0]].concat(), &["1", "3"]);
        signed(b"TLITEKV2\x02\0\0\0{}", &[]);
        signed(b"TLITEKV2\xff\xff\xff\xff{}", &["2", &u32::MAX.to_string()]);
    }

    #[test]
    fn another_model_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let mut model = Saved::new(10);
        save(&path, &mut model, &[]).unwrap();
        let refused = |change: &dyn Fn(&mut Identity), values: &[&str]| {
            let mut other = Saved::new(10);
            change(&mut other.identity);
            let e = load(&path, &mut other).unwrap_err();
            assert_error(&e, ErrorKind::PromptCacheMismatch, &[&path.display().to_string()]);
            assert_carries(e, values);
        };
        refused(&|i| i.model = "5678".to_owned(), &["1234", "5678"]);
        refused(&|i| i.float = "f32".to_owned(), &["f16", "f32"]);
        refused(&|i| i.states[0].row = 4, &["\"k\"", "2", "4"]);
        refused(&|i| i.states[1].window = Some(5), &["\"v\"", "1", "5"]);
        refused(&|i| i.states.truncate(1), &["2", "1"]);
    }
}
