//! Loads a decoder for several sequences.

use super::prepare::{decoder, fitted, kept_floats};
use super::{KvType, LoadOptions, PlaceName, Purpose};
use crate::backend::{Caps, SharedBackend};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::fmt::size_text;
use crate::graph::op::paged_attention::PAGE;
use crate::llm::engine::{BatchConfig, BatchModel, Decoder, Reproducible, SequenceConfig};
use crate::llm::folder::ModelFolder;
use crate::note::Note;
use crate::num;
use crate::placement::Opened;

/// Minimum of [`BatchConfig::logits`].
const LEAST_LOGITS: usize = 64;

/// How many sequences a model runs, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Maximum number of requests that run at the same time, at least 1. Sessions, forks and beams
    /// are not counted.
    pub sequences: usize,
    /// Size of the cache in tokens, for all sequences together; at least the context length. `None`
    /// selects `sequences` times the context length, limited to half of the memory that the model
    /// leaves.
    pub tokens: Option<usize>,
    /// Each sequence gets exactly the tokens that it would get alone, whatever else runs. On GPUs,
    /// steps of all sizes then use the same kernels, which slows prompts and small steps.
    pub reproducible: bool,
    /// Maximum number of requests that wait for others; unlimited by default.
    pub queue: usize,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            sequences: 8,
            tokens: None,
            reproducible: false,
            queue: usize::MAX,
        }
    }
}

/// A decoder that runs rows of several sequences.
#[derive(Debug)]
pub struct LoadedRows {
    /// The decoder.
    pub model: BatchModel,
    /// Where it runs.
    pub place: PlaceName,
    /// Warnings raised while loading, one sentence each.
    pub notes: Vec<Note>,
}

impl LoadedRows {
    /// Loads `model.onnx` of `folder`. Returns the usage errors of
    /// [`Loaded::new`](super::Loaded::new), and an error of kind [`ErrorKind::Unsupported`] if the
    /// model or the interpreter cannot run several sequences in common steps.
    pub fn new(folder: &ModelFolder, options: &LoadOptions, batch: &BatchOptions) -> Result<Self> {
        Self::replacing(folder, options, batch, &mut || {})
    }

    /// Like [`LoadedRows::new`]. Calls `free` before it uploads weights, if nothing in the model or
    /// the options prevents that.
    pub fn replacing(
        folder: &ModelFolder,
        options: &LoadOptions,
        batch: &BatchOptions,
        free: &mut dyn FnMut(),
    ) -> Result<Self> {
        options.check()?;
        batch.check()?;
        let _call = options.limits.quota().enter();
        let backend = match options.place.open()? {
            Opened::Device(backend) => backend,
            Opened::Reference { .. } => {
                let what = "the backend reference runs one sequence at a time; choose another";
                return Err(Error::other(Stage::Plan, what).of_kind(ErrorKind::Unsupported));
            }
        };
        let caps = backend.caps().clone();
        options.check_on(&caps)?;
        let mut notes = options.place.notes(Some(&caps)).into_iter().collect::<Vec<_>>();
        let context = folder.context(options.context)?;
        let builder = options.builder(options.target(&caps, Purpose::Batch), Purpose::Batch);
        let decoder = decoder(folder, options.import(), context, builder, &mut notes)?;
        if options.kv == KvType::Q8 {
            notes.extend(kept_floats(decoder.graph()));
        }
        let decoder = fitted(decoder, folder, options, &mut notes)?;
        let config = config(&decoder, &caps, context, options, batch)?;
        let store = options.place.options.cache.clone();
        free();
        let (model, validation) = BatchModel::load(decoder, SharedBackend::new(backend), &config, store)?;
        notes.extend(validation);
        Ok(Self {
            place: PlaceName::of(&caps),
            model,
            notes,
        })
    }
}

impl BatchOptions {
    fn check(&self) -> Result<()> {
        match self.sequences {
            0 => Err(Error::usage("sequences", "0 is too small; expected at least 1")),
            _ => Ok(()),
        }
    }
}

/// The sizes for a device. A usage error if they do not fit its memory.
fn config(
    decoder: &Decoder,
    caps: &Caps,
    context: usize,
    options: &LoadOptions,
    batch: &BatchOptions,
) -> Result<BatchConfig> {
    let least = context.div_ceil(PAGE);
    let mut config = BatchConfig {
        pages: least,
        context,
        rows: 0,
        logits: 0,
        reproducible: Reproducible::on(caps, batch.reproducible),
    };
    config.rows = match config.reproducible {
        Reproducible::ByPlan => config.least_rows(),
        _ => SequenceConfig::of(usize::MAX)
            .on(caps)
            .chunk
            .max(config.least_rows()),
    };
    let logits = batch.sequences.saturating_mul(options.drafts + 1);
    config.logits = logits.max(LEAST_LOGITS).min(config.rows);
    let memory = decoder.batch_memory(caps, &config)?;
    let free = match memory.device {
        0 => u64::MAX,
        device => device.saturating_sub(memory.weights.saturating_add(memory.activations)),
    };
    let page = (memory.cache / least.max(1) as u64).max(1);
    // Rows of the cache have 32-bit numbers.
    let fit = (free / page).min(num::wide(i32::MAX.unsigned_abs() as usize / PAGE));
    let fit: usize = num::exact(fit, "pages").map_err(|e| Error::internal(Stage::Plan, e))?;
    let too_large = |name: &str, pages: usize| {
        let needed = size_text(page.saturating_mul(pages as u64));
        let what = format!(
            "{} tokens need {needed}, but the model leaves {} of what the device, or the limit \
             `memory`, allows; at most {} tokens fit",
            pages.saturating_mul(PAGE),
            size_text(free),
            fit * PAGE
        );
        Err(Error::usage(name, what).of_kind(ErrorKind::OutOfMemory))
    };
    if fit < least {
        return too_large("context", least);
    }
    config.pages = match batch.tokens.map(|t| t.div_ceil(PAGE)) {
        Some(pages) if pages < least => {
            let tokens = batch.tokens.unwrap_or(0);
            let what = format!("{tokens} is too small; expected at least the context length, {context}");
            return Err(Error::usage("tokens", what));
        }
        Some(pages) if pages > fit => return too_large("tokens", pages),
        Some(pages) => pages,
        None => least.saturating_mul(batch.sequences).min(fit / 2).max(least),
    };
    Ok(config)
}
