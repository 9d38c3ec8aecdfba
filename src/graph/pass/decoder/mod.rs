//! Passes for language models: KV caches, precision, and which logits are computed.
#![expect(missing_docs, reason = "`Pass::does` documents each pass")]

mod candidates;
mod causal;
mod greedy;
mod kv_cache;
mod kv_q8;
mod last_row;
mod masks;
mod parts;
mod positions;
mod quantize_activations;
mod rows;
mod window;

pub use candidates::{CANDIDATE_IDS, CANDIDATE_LOGITS, CANDIDATES, COUNT as CANDIDATE_COUNT, LOG_SUM};
pub use causal::CAUSAL;
pub use greedy::{GREEDY, TOKEN};
pub use kv_cache::KV_CACHE;
pub use kv_q8::KV_Q8;
pub use last_row::{CHOSEN_ROWS, LAST_ROW, LAST_ROWS, ROWS};
pub use positions::{POSITIONS, ROW_POSITIONS};
pub use quantize_activations::{INT8_ACTIVATIONS, INT16_ACTIVATIONS};
pub use rows::{CHOSEN, PAGES, PLACES, ROW_INPUTS, ROW_POOL, TILES, refusal};
pub use window::{RINGS, WINDOW};
