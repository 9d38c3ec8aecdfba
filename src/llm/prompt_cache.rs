//! Prompt caches: the cache of a model with the tokens in it, as a file.
//!
//! Little-endian: the bytes `TLITEKV1`; the length of a JSON object in 4 bytes, and the object, the header; the ids of the tokens,
//! 4 bytes each; for each state its rows, a row for a token; the CRC-32 of all before it, 4 bytes.

use super::LanguageModel;
use crate::error::{Error, Result, Stage};
use crate::files::write_whole;
use serde::{Deserialize, Serialize};
use std::path::Path;

const MAGIC: &[u8; 8] = b"TLITEKV1";

/// Whose cache it is, and in which form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Checksums of the names, types and shapes of the model's weights, and of samples of their bytes.
    pub model: String,
    /// Element type of the states.
    pub float: String,
    /// Name of each state and bytes of one of its rows, which are those of one token.
    pub states: Vec<(String, usize)>,
}

/// The cache of a model as bytes.
pub trait States {
    /// Whose states these are.
    fn identity(&self) -> Result<Identity>;

    /// The rows of all tokens in state `index` of [`Identity::states`].
    fn read_state(&mut self, index: usize) -> Result<Vec<u8>>;

    /// Replaces the cache by `tokens` rows of each state.
    fn write_states(&mut self, tokens: usize, states: &[&[u8]]) -> Result<()>;
}

#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(flatten)]
    identity: Identity,
    tokens: usize,
}

fn states<'a>(model: &'a mut dyn LanguageModel, path: &Path) -> Result<&'a mut dyn States> {
    model.states().ok_or_else(|| {
        let what = format!("{}: this model's cache cannot be read or written", path.display());
        Error::usage("--prompt-cache", what)
    })
}

/// Writes the cache of `model`, which holds `tokens`, to `path`, whole or not at all.
pub fn save(path: &Path, model: &mut dyn LanguageModel, tokens: &[u32]) -> Result<()> {
    if model.len() != tokens.len() {
        let what = format!(
            "the cache holds {} tokens, {} are given",
            model.len(),
            tokens.len()
        );
        return Err(Error::other(Stage::Run, what));
    }
    let states = states(model, path)?;
    let header = Header {
        identity: states.identity()?,
        tokens: tokens.len(),
    };
    let json = serde_json::to_vec(&header)
        .map_err(|e| Error::parse(Stage::Text, path, "the header cannot be written", e))?;
    let size = u32::try_from(json.len())
        .map_err(|e| Error::parse(Stage::Text, path, "the header is too long", e))?;
    let parts: Vec<Vec<u8>> = (0..header.identity.states.len())
        .map(|i| states.read_state(i))
        .collect::<Result<_>>()?;
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

/// Fills the cache of `model` from `path` and returns the tokens in it, at most as many as its context holds; none where there is no
/// such file. An error for a damaged file, and for that of another model or form, which leaves the cache as it was.
pub fn load(path: &Path, model: &mut dyn LanguageModel) -> Result<Vec<u32>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io("cannot read", path, e)),
    };
    let context = model.context();
    let states = states(model, path)?;
    let wanted = states.identity()?;
    let wrong = |what: &str| Error::file(Stage::Text, path, what);
    if !bytes.starts_with(MAGIC) {
        return Err(wrong("not a prompt cache: it does not begin with TLITEKV1"));
    }
    let (body, sum) = bytes
        .split_last_chunk::<4>()
        .ok_or_else(|| wrong("the prompt cache is cut off"))?;
    let (found, computed) = (u32::from_le_bytes(*sum), crc32fast::hash(body));
    if found != computed {
        return Err(wrong(&format!(
            "the prompt cache is damaged: its checksum is {computed:08x}, the file says {found:08x}"
        )));
    }
    let mut rest = Rest { bytes: body, path };
    rest.take(MAGIC.len())?;
    let size = rest.number()?;
    let header: Header = serde_json::from_slice(rest.take(size)?)
        .map_err(|e| Error::parse(Stage::Text, path, "not the header of a prompt cache", e))?;
    let identity = &header.identity;
    for (what, found, wanted) in [
        ("model", &identity.model, &wanted.model),
        ("storage (--kv, --float)", &identity.float, &wanted.float),
    ] {
        if found != wanted {
            return Err(wrong(&format!(
                "the prompt cache is that of another {what}: {found}, this one is {wanted}"
            )));
        }
    }
    if identity.states != wanted.states {
        return Err(wrong(&format!(
            "the prompt cache has states of another form: {:?}, expected {:?}",
            identity.states, wanted.states
        )));
    }
    let ids = rest.rows(header.tokens, 4)?;
    let mut tokens: Vec<u32> = ids
        .chunks_exact(4)
        .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        .collect();
    tokens.truncate(context);
    let mut parts = Vec::with_capacity(identity.states.len());
    for (_, row) in &identity.states {
        let part = rest.rows(header.tokens, *row)?;
        parts.push(part.get(..tokens.len() * row).unwrap_or(part));
    }
    if !rest.bytes.is_empty() {
        return Err(wrong(&format!(
            "{} bytes too many for {} tokens",
            rest.bytes.len(),
            header.tokens
        )));
    }
    states.write_states(tokens.len(), &parts)?;
    Ok(tokens)
}

/// What of a file is still to be read.
struct Rest<'a> {
    bytes: &'a [u8],
    path: &'a Path,
}

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (part, rest) = self.bytes.split_at_checked(count).ok_or_else(|| {
            let what = format!("the prompt cache ends {} bytes before {count}", self.bytes.len());
            Error::file(Stage::Text, self.path, what)
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
    use crate::llm::testing::FakeModel;

    /// Keeps two bytes a token in one state, and one in another.
    struct Saved {
        model: FakeModel,
        identity: Identity,
    }

    impl Saved {
        fn new(context: usize) -> Self {
            Self {
                model: FakeModel::new(32, context, |_| 1),
                identity: Identity {
                    model: "1234".to_owned(),
                    float: "f16".to_owned(),
                    states: vec![("k".to_owned(), 2), ("v".to_owned(), 1)],
                },
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
                cache.collect()
            })
        }

        fn write_states(&mut self, tokens: usize, states: &[&[u8]]) -> Result<()> {
            assert_eq!((states[0].len(), states[1].len()), (2 * tokens, tokens));
            self.model.cache = states[1].iter().map(|t| u32::from(*t)).collect();
            assert_eq!(self.read_state(0).unwrap(), states[0]);
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

        fn truncate(&mut self, len: usize) {
            self.model.truncate(len);
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
        assert!(e.to_string().contains("holds 3 tokens, 1 are given"), "{e}");
        let e = save(&path, &mut model.model, &[5, 6, 7]).unwrap_err();
        assert!(e.is_usage() && e.to_string().contains("cannot be read"), "{e}");
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
            let e = load(&path, &mut model).unwrap_err().to_string();
            assert!(e.contains("cache"), "{e}");
            assert_eq!(model.model.cache, [9], "nothing was changed");
            e
        };
        for i in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[i] ^= 0x10;
            let e = refused(&bytes);
            let expected = if i < 8 { "not a prompt cache" } else { "damaged" };
            assert!(e.contains(expected), "byte {i}: {e}");
            refused(&whole[..i]);
        }
        // With a checksum that is right.
        let signed = |body: &[u8]| [body, &crc32fast::hash(body).to_le_bytes()].concat();
        let body = &whole[..whole.len() - 4];
        assert!(refused(&signed(&body[..body.len() - 1])).contains("ends"));
        assert!(refused(&signed(&[body, &[0]].concat())).contains("1 bytes too many"));
        assert!(refused(&signed(b"TLITEKV1\x02\0\0\0{}")).contains("header"));
        assert!(refused(&signed(b"TLITEKV1\xff\xff\xff\xff{}")).contains("ends"));
    }

    #[test]
    fn another_model_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let mut model = Saved::new(10);
        save(&path, &mut model, &[]).unwrap();
        let refused = |change: &dyn Fn(&mut Identity), words: &str| {
            let mut other = Saved::new(10);
            change(&mut other.identity);
            let e = load(&path, &mut other).unwrap_err().to_string();
            assert!(e.contains(words) && e.contains("cache"), "{e}");
        };
        refused(
            &|i| i.model = "5678".to_owned(),
            "another model: 1234, this one is 5678",
        );
        refused(
            &|i| i.float = "f32".to_owned(),
            "another storage (--kv, --float): f16, this one is f32",
        );
        refused(&|i| i.states[0].1 = 4, "states of another form");
    }
}
