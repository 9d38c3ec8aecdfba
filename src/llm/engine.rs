//! Runs ONNX decoders as [`LanguageModel`]s: on a device through an
//! [`Executor`](crate::executor::Executor), on the host through the interpreter.
//!
//! The graph takes `input_ids [batch, sequence]`, optionally `position_ids` and `attention_mask`,
//! and returns `logits`. Every other input must have become state (pass `kv_cache`); without caches
//! the model runs uncached. One sequence is run (`batch = 1`).

mod batch;
mod build;
mod candidates;
mod cost;
mod decoder;
mod device;
mod host;
mod loaded;
mod memory;
mod plans;
mod ring;
mod states;
mod tune;
mod uncached;
mod validate;

pub use crate::graph::pass::Logits;
pub use batch::{BatchConfig, BatchModel, Reproducible, RowModel, Span, UNIFORM_ROWS};
pub use build::DecoderBuilder;
pub use decoder::Decoder;
pub use device::DeviceModel;
pub use host::HostModel;
pub use loaded::DeviceDecoder;
pub use memory::{DecoderMemory, Planned};
pub use tune::{Tuner, TuningRow};
pub(super) use uncached::Uncached;

use super::LanguageModel;
use crate::backend::Caps;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::plan::Breakpoints;

/// Maximum tokens per prefill run, unless the device prefers more ([`SequenceConfig::on`]).
pub const CHUNK: usize = 128;

/// Maximum for devices with a breakpoint in rows, which need more of them to be fully used.
const LONG_CHUNK: usize = 1024;

/// Decode lengths are padded to multiples of this.
pub const PADDING: usize = 64;

/// Sizes for which a decoder is planned, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceConfig {
    /// Context length: tokens that the cache holds.
    pub context: usize,
    /// Maximum tokens per prefill run. A sliding-window cache has this much room in addition to its
    /// window.
    pub chunk: usize,
    /// Prefill runs of at most this many tokens use their own plan, with kernels for few rows. 0
    /// means none.
    pub short_prefill: [usize; 5],
    /// Decode grids and parameters are computed for the next multiple of this many tokens, so they
    /// change only at multiples.
    pub padding: usize,
    /// Maximum tokens of a run that returns the logits of all of them, for a decoder with
    /// [`Logits::Tail`]: one token plus its draft. Below 2 there is no plan for such runs.
    pub verify_tokens: usize,
}

impl SequenceConfig {
    /// A context of `context` tokens, with the defaults for the rest.
    pub fn of(context: usize) -> Self {
        Self {
            context,
            chunk: CHUNK.min(context),
            short_prefill: [0; 5],
            padding: PADDING,
            verify_tokens: 0,
        }
    }

    /// Sets the prefill run length that the device prefers.
    #[must_use]
    pub fn on(mut self, caps: &Caps) -> Self {
        let breakpoints = Breakpoints::on(caps);
        if breakpoints.rows.iter().any(Option::is_some) {
            self.chunk = LONG_CHUNK.min(self.context);
            self.short_prefill = breakpoints
                .rows
                .map(|n| n.filter(|n| *n < self.chunk).unwrap_or(0));
        } else if caps.profile.divides_work() {
            // More tokens keep more threads busy. Longer runs would answer Ctrl-C late.
            let chunk = match caps.profile.compute_units {
                ..=2 => CHUNK,
                3..=7 => 2 * CHUNK,
                _ => 4 * CHUNK,
            };
            self.chunk = chunk.min(self.context);
        }
        self
    }
}

/// A decoder that returns intermediate values, those of [`DecoderBuilder::observing`].
pub trait Observe: LanguageModel {
    /// Appends `tokens` (at least one) to the cache and passes the elements of each observed value
    /// to `take`, with its index in the list, in consecutive pieces along the tokens. Errors of
    /// `take` are returned. As with [`LanguageModel::forward`], an error leaves the cache at an
    /// unspecified length.
    fn observe(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()>;
}

pub(super) fn check_room(have: usize, more: usize, context: usize) -> Result<()> {
    if have + more > context {
        let what = format!("the cache holds {have} tokens; {more} more exceed the context of {context}");
        return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::ContextExceeded));
    }
    if more == 0 {
        return Err(Error::other(Stage::Run, "a run needs at least one token"));
    }
    Ok(())
}

/// An error for a token outside a vocabulary of `vocab` tokens.
pub(super) fn check_tokens(tokens: &[u32], vocab: usize) -> Result<()> {
    let Some(t) = tokens.iter().find(|t| **t as usize >= vocab) else {
        return Ok(());
    };
    let what = format!("token ID {t} is out of range; the vocabulary has {vocab} tokens");
    Err(Error::other(Stage::Run, what).of_kind(ErrorKind::TokenOutOfRange))
}

fn check_rows(tokens: usize, rows: usize) -> Result<()> {
    if tokens == rows {
        return Ok(());
    }
    let what = format!(
        "found {rows} rows of logits for {tokens} tokens: the decoder was loaded for the last row only"
    );
    Err(Error::other(Stage::Run, what))
}
