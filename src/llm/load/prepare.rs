//! Reads and plans a decoder as [`LoadOptions`] demand.

use super::{KvType, LoadOptions, OTHERS, Purpose};
use crate::backend::Caps;
use crate::error::{Error, Result, Stage};
use crate::files::kind::check_file;
use crate::graph::onnx::ImportOptions;
use crate::graph::pass::{Logits, Target};
use crate::graph::{Graph, State, onnx};
use crate::llm::engine::{Decoder, DecoderBuilder, Planned, SequenceConfig};
use crate::llm::folder::ModelFolder;
use crate::llm::roles;
use crate::note::{Note, Unused};
use crate::plan::NodeCost;
use std::path::PathBuf;

/// A decoder planned like [`Loaded::new`](super::Loaded::new) would, without weights and without
/// the device, for reports.
#[derive(Debug)]
pub struct PlannedDecoder {
    decoder: Decoder,
    planned: Planned,
}

impl PlannedDecoder {
    /// Plans `model.onnx` of `folder` for generation. Returns the usage errors of
    /// [`Loaded::new`](super::Loaded::new).
    pub fn new(folder: &ModelFolder, options: &LoadOptions, caps: &Caps) -> Result<Self> {
        options.check()?;
        let weights = ImportOptions::PLANNING;
        // Reports cost, not answers, so notes are dropped.
        let mut unsaid = Vec::new();
        let (decoder, planned) = prepared(folder, options, Purpose::Generation, caps, weights, &mut unsaid)?;
        Ok(Self { decoder, planned })
    }

    /// Context length in tokens.
    pub fn context(&self) -> usize {
        self.planned.memory().context
    }

    /// See [`Planned::costs`].
    pub fn costs(&self, tokens: usize, past: usize) -> Result<Vec<Vec<NodeCost>>> {
        self.planned.costs(&self.decoder, tokens, past)
    }
}

/// A note that an option has no effect without a cache.
fn needs_cache(option: &'static str, value: impl ToString) -> Note {
    Note::NoEffect {
        option,
        value: value.to_string(),
        reason: Unused::NoCache,
    }
}

/// Adapts `decoder` to `config.json` and the options; adds notes.
pub(super) fn fitted(
    decoder: Decoder,
    folder: &ModelFolder,
    options: &LoadOptions,
    notes: &mut Vec<Note>,
) -> Result<Decoder> {
    if !decoder.keeps_cache() {
        if let Some(other) = folder.config.other_purpose() {
            let what = format!("config.json names the class {other}, which does not generate text; {OTHERS}");
            return Err(Error::usage("folder", what));
        }
        notes.push(Note::NoCache);
        if options.kv == KvType::Q8 {
            notes.push(needs_cache("kv", "q8"));
        }
    }
    let context = folder.context(options.context)?;
    windowed(decoder, folder, context, notes)
}

/// The sliding window of all layers in `config.json`, if a `context` can exceed it.
fn common_window(folder: &ModelFolder, context: usize) -> Option<usize> {
    let window = folder.config.window()?;
    (window.everywhere && window.length < context).then_some(window.length)
}

/// Adds a note if the graph lacks the sliding window of `config.json` and the runtime could not
/// apply it. A `context` within the window needs none.
fn windowed(
    decoder: Decoder,
    folder: &ModelFolder,
    context: usize,
    notes: &mut Vec<Note>,
) -> Result<Decoder> {
    let Some(window) = folder.config.window().filter(|w| w.length < context) else {
        return Ok(decoder);
    };
    if decoder.has_given_window() || decoder.has_windows() {
        return Ok(decoder);
    }
    // The host's passes do not look for windows.
    let absent = ImportOptions::PLANNING;
    let target = Target::DEVICE.with(Logits::Last);
    let planned = DecoderBuilder::new(&target).load(&folder.onnx(), absent)?;
    if !planned.has_windows() {
        notes.push(Note::WindowIgnored {
            length: window.length,
        });
    }
    Ok(decoder)
}

/// Path of `model.onnx` in a folder; a usage error if it is not a regular file.
pub(super) fn model_file(folder: &ModelFolder) -> Result<PathBuf> {
    let path = folder.onnx();
    check_file("folder", &path)?;
    Ok(path)
}

/// A decoder with its plans for a device with these capabilities; adds notes.
pub(super) fn prepared(
    folder: &ModelFolder,
    options: &LoadOptions,
    purpose: Purpose<'_>,
    caps: &Caps,
    weights: ImportOptions,
    notes: &mut Vec<Note>,
) -> Result<(Decoder, Planned)> {
    let context = folder.context(options.context)?;
    let builder = options.builder(options.target(caps, purpose), purpose);
    let decoder = decoder(folder, weights, context, builder, notes)?;
    if options.kv == KvType::Q8 {
        notes.extend(kept_floats(decoder.graph()));
    }
    let decoder = fitted(decoder, folder, options, notes)?;
    let drafts = purpose == Purpose::Generation && options.drafts > 0;
    if drafts && !decoder.keeps_cache() {
        notes.push(needs_cache("drafts", options.drafts));
    }
    let lengths = SequenceConfig {
        padding: options.padding,
        verify_tokens: if drafts { options.drafts + 1 } else { 0 },
        ..SequenceConfig::of(context).on(caps)
    };
    let planned = decoder.plan_for(caps, &lengths, options.context.is_none())?;
    Ok((decoder, planned))
}

/// A note with the number of caches that stay in floats, if any.
pub(super) fn kept_floats(graph: &Graph) -> Option<Note> {
    let floats = |s: &&State| graph.fact(s.input).is_ok_and(|f| f.dtype.is_float());
    let kept = graph.states().iter().filter(floats).count();
    let all = graph.states().len();
    (kept > 0).then_some(Note::FloatCaches { kept, all })
}

/// Reads a decoder; adds notes. A usage error with the reason if the model is not a decoder.
pub(super) fn decoder(
    folder: &ModelFolder,
    weights: ImportOptions,
    context: usize,
    builder: DecoderBuilder,
    notes: &mut Vec<Note>,
) -> Result<Decoder> {
    let path = model_file(folder)?;
    let mut graph = onnx::import_with(&path, weights)?;
    if let Some(length) = roles::decide_lengths(&mut graph, context)? {
        notes.push(Note::LongContext { length, context });
    }
    let builder = match common_window(folder, context) {
        Some(window) => builder.with_window(window),
        None => builder,
    };
    builder.build(graph).map_err(|e| match e {
        // After reading, errors of this stage come from identifying inputs and outputs.
        Error::Other {
            stage: Stage::Import,
            what,
            ..
        } => Error::usage(
            "folder",
            format!(
                "{} is not a text-generation model: {what}; {OTHERS}",
                path.display()
            ),
        ),
        e => e,
    })
}
