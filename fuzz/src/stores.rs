//! Files that the engine writes for itself. Checksums are set right, since otherwise nothing behind
//! them is reached.

use crate::work::{emptied, folder, put};
use transformer_lite::unstable::cache::{Kind, Store};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::llm::prompt_cache::{self, Identity, Layout};
use transformer_lite::unstable::llm::{LanguageModel, States};

/// Lists a store with a file of each kind.
pub fn cache(data: &[u8]) {
    let mut file = data.to_vec();
    if let Some((head, rest)) = file.split_at_mut_checked(16) {
        head[12..].copy_from_slice(&crc32fast::hash(rest).to_le_bytes());
    }
    let store = folder().join("store");
    if !store.exists() {
        emptied("store");
    }
    for kind in Kind::ALL {
        put(&format!("store/{kind}-0123456789abcdef.tlc"), &file);
    }
    let _ = Store::new(store, 1 << 20).entries();
}

/// A model with a cache of two states.
struct Cached;

impl States for Cached {
    fn identity(&self) -> Result<Identity> {
        let layout = |name: &str, row, window| Layout {
            name: name.into(),
            row,
            window,
        };
        Ok(Identity {
            model: "1234".into(),
            float: "f16".into(),
            states: vec![layout("k", 2, None), layout("v", 1, Some(4))],
        })
    }

    fn read_state(&mut self, _: usize) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn write_states(&mut self, tokens: usize, states: &[&[u8]]) -> Result<()> {
        let [whole, window] = states else {
            panic!("expected two states, found {}", states.len());
        };
        assert_eq!(whole.len(), tokens * 2, "rows of the first state");
        assert!(
            (tokens.min(3)..=tokens).contains(&window.len()),
            "rows of the second state"
        );
        Ok(())
    }
}

impl LanguageModel for Cached {
    fn vocab(&self) -> usize {
        32
    }

    fn context(&self) -> usize {
        10
    }

    fn len(&self) -> usize {
        0
    }

    fn forward(&mut self, _: &[u32], _: &mut Vec<f32>) -> Result<()> {
        Ok(())
    }

    fn truncate(&mut self, tokens: usize) -> usize {
        tokens
    }

    fn states(&mut self) -> Option<&mut dyn States> {
        Some(self)
    }
}

/// Loads a prompt cache.
pub fn prompt_cache(data: &[u8]) {
    let sum = crc32fast::hash(data).to_le_bytes();
    let path = put("prompt.cache", &[data, &sum].concat());
    let _ = prompt_cache::load(&path, &mut Cached);
}
