//! Loads decoders onto a device or the host.

use super::engine::{
    Decoder, DecoderBuilder, DecoderMemory, DeviceDecoder, DeviceModel, HostModel, Lengths, PADDING, Planned,
    Tuner, Uncached, Watch,
};
use super::folder::ModelFolder;
use super::roles;
use crate::backend::kernel::KernelSpec;
use crate::backend::{Caps, Stats};
use crate::cache::Store;
use crate::error::{Error, Result, Stage};
use crate::executor::WeightSource;
use crate::graph::onnx::ImportOptions;
use crate::graph::pass::{Logits, Target};
use crate::graph::{Graph, State, onnx};
use crate::note::{Note, Unused};
use crate::placement::{BackendChoice, Opened, Placement};
use crate::plan::{Arithmetic, NodeCost};
use crate::tensor::DType;
use serde::Serialize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Valid values of [`LoadOptions::padding`].
pub const PADDINGS: RangeInclusive<usize> = 32..=256;
/// Largest value of [`LoadOptions::drafts`].
pub const MOST_DRAFTS: usize = 64;

/// Element types of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// Same as activations, see [`LoadOptions::float`].
    #[default]
    Float,
    /// 8 bits, with one scale per head and token.
    Q8,
}

impl FromStr for KvType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "float" | "f16" => Ok(Self::Float),
            "q8" => Ok(Self::Q8),
            _ => Err(Error::usage(
                "kv",
                format!("\"{text}\" is not valid; expected float or q8"),
            )),
        }
    }
}

/// Activation precision of matmuls with E0M weights of 4 and 8 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// The fastest precision that keeps the answers of the float model: [`Float`](Self::Float) on
    /// every backend.
    #[default]
    Auto,
    /// The precision in which activations are stored.
    Float,
    /// 8 bits, quantized at run time ("W4A8"). Faster on CPUs with byte dot products; answers can
    /// differ from the float model's.
    Int8,
}

impl FromStr for Activations {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "float" => Ok(Self::Float),
            "int8" => Ok(Self::Int8),
            _ => Err(Error::usage(
                "act",
                format!("\"{text}\" is not valid; expected auto, float or int8"),
            )),
        }
    }
}

/// How to load a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Backend and device.
    pub place: Placement,
    /// Context length in tokens, at least 1. `None` selects the model's own length, at most
    /// [`DEFAULT_CONTEXT`](super::folder::DEFAULT_CONTEXT).
    pub context: Option<usize>,
    /// Activation type on a device, `f16` or `f32`. `None` selects `f16` on GPUs, and `f32` on CPUs
    /// or if the model quantizes at run time.
    pub float: Option<DType>,
    /// KV cache type on a device.
    pub kv: KvType,
    /// Activation precision of quantized matmuls on a device.
    pub act: Activations,
    /// See [`Lengths::padding`]; within [`PADDINGS`].
    pub padding: usize,
    /// Maximum draft length in tokens, up to [`MOST_DRAFTS`]; 0 disables speculative decoding.
    pub drafts: usize,
    /// Source of the weights. Random weights are generated on the device.
    pub weights: WeightSource,
    /// Finds the most likely token on the device. Greedy generation becomes faster, other
    /// generation slightly slower.
    pub greedy: bool,
}

impl Default for LoadOptions {
    /// Greedy generation without drafts, on the best device.
    fn default() -> Self {
        Self {
            place: Placement::default(),
            context: None,
            float: None,
            kv: KvType::default(),
            act: Activations::default(),
            padding: PADDING,
            drafts: 0,
            weights: WeightSource::default(),
            greedy: true,
        }
    }
}

impl LoadOptions {
    /// Usage errors: numbers out of range, types that the host does not support.
    fn check(&self) -> Result<()> {
        let on_host = self.place.backend == BackendChoice::Host;
        let wrong = |name: &str, what: String| Err(Error::usage(name, what));
        if self.context == Some(0) {
            return wrong("context", "0 is too small; expected at least 1".to_owned());
        }
        if !PADDINGS.contains(&self.padding) {
            let (from, to) = (PADDINGS.start(), PADDINGS.end());
            return wrong(
                "padding",
                format!("{} is out of range; expected {from} to {to}", self.padding),
            );
        }
        if self.drafts > MOST_DRAFTS {
            let what = format!(
                "{} tokens are too many; expected at most {MOST_DRAFTS}",
                self.drafts
            );
            return wrong("drafts", what);
        }
        match self.float {
            Some(DType::F16) if on_host => {
                let what = "f16 applies to devices only; the host keeps the model's own types";
                return wrong("float", what.to_owned());
            }
            None | Some(DType::F16 | DType::F32) => {}
            Some(other) => return wrong("float", format!("{other} is not valid; expected f16 or f32")),
        }
        if self.kv == KvType::Q8 && on_host {
            let what = "q8 applies to devices only; the host keeps the model's own types";
            return wrong("kv", what.to_owned());
        }
        if self.act == Activations::Int8 && on_host {
            let what = "int8 applies to devices only; the host multiplies floats";
            return wrong("act", what.to_owned());
        }
        if on_host {
            self.check_weights_on_host()?;
        }
        Ok(())
    }
}

impl LoadOptions {
    fn check_weights_on_host(&self) -> Result<()> {
        match self.weights {
            WeightSource::Files => Ok(()),
            WeightSource::Random(_) => Err(Error::usage(
                "backend",
                "random weights are generated on a device; use opencl or wgpu",
            )),
        }
    }

    fn import(&self) -> ImportOptions {
        ImportOptions {
            absent_weights: self.weights != WeightSource::Files,
        }
    }
}

/// Purpose of loading a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// Generation: logits of the last token of each run, plus what drafts and greedy decoding need.
    Generation,
    /// Evaluation: logits of every token.
    Evaluation,
    /// Watching the named intermediate values: [`Watch`].
    Watching(&'a [String]),
}

impl<'a> Purpose<'a> {
    fn watched(self) -> &'a [String] {
        match self {
            Self::Watching(names) => names,
            Self::Generation | Self::Evaluation => &[],
        }
    }

    fn logits(self, options: &LoadOptions) -> Logits {
        match self {
            Self::Evaluation => Logits::All,
            Self::Generation if options.drafts > 0 => Logits::Tail,
            Self::Generation | Self::Watching(_) => Logits::Last,
        }
    }
}

/// Progress of loading a model onto a device.
#[derive(Clone, Copy, Debug)]
pub enum Loading<'a> {
    /// Memory about to be allocated.
    Memory(&'a DecoderMemory),
    /// Kernels that are new on this device; they are compiled and validated next.
    New {
        /// The device.
        device: &'a str,
        /// Number of new kernels.
        kernels: usize,
        /// True if the results are stored, so that this happens only once.
        kept: bool,
    },
    /// Progress of compiling kernels or finding them in the cache.
    Kernels {
        /// Kernels that are ready.
        ready: usize,
        /// Kernels of the model.
        all: usize,
    },
}

#[derive(Debug)]
enum Engine {
    Device(DeviceDecoder),
    Host { decoder: Arc<Decoder>, context: usize },
}

/// A decoder with loaded weights. Its models, one per sequence, share the weights. Each has its own
/// cache and may be sent to another thread; commands to one device are serialized.
#[derive(Debug)]
pub struct Loaded {
    engine: Engine,
    notes: Vec<Note>,
}

/// Where a model runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceName {
    /// `opencl`, `wgpu` or `host`.
    pub backend: &'static str,
    /// Device name as reported by the driver.
    pub device: String,
    /// Name and version of the driver.
    pub driver: String,
}

/// Settings that a model actually uses, which may differ from the requested ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Used {
    /// Activation precision of matmuls with E0M weights: `int8` if any uses it, else `float`.
    pub act: &'static str,
    /// KV cache type: `q8` if any cache uses it, else the float type; `None` without a cache.
    pub kv: Option<String>,
    /// How commands are replayed, named as by the option `--recording`; `None` on the host.
    pub recording: Option<&'static str>,
}

/// Hint for models that do not generate text.
pub const OTHERS: &str = "`tlite run` runs any ONNX file";

impl Loaded {
    /// Loads `model.onnx` of `folder` and reports progress to `hear`. Usage errors: file not found,
    /// not a decoder, no such device, a context that the model does not support or the device has
    /// no memory for, numbers out of range.
    pub fn new(
        folder: &ModelFolder,
        options: &LoadOptions,
        purpose: Purpose<'_>,
        hear: &mut dyn FnMut(Loading<'_>),
    ) -> Result<Self> {
        options.check()?;
        let path = model_file(folder)?;
        let context = folder.context(options.context)?;
        let mut notes = Vec::new();
        let backend = match options.place.open()? {
            Opened::Device(backend) => {
                notes.extend(options.place.priority_note(Some(backend.caps())));
                backend
            }
            Opened::Host { for_want } => {
                options.check_weights_on_host()?;
                notes.extend(options.place.priority_note(None));
                if for_want.is_some() {
                    notes.push(Note::NoDevice);
                }
                if options.float == Some(DType::F16) {
                    notes.push(no_effect("float", "f16", Unused::Host));
                }
                if options.kv == KvType::Q8 {
                    notes.push(no_effect("kv", "q8", Unused::Host));
                }
                if options.act == Activations::Int8 {
                    notes.push(no_effect("act", "int8", Unused::Host));
                }
                let weights = options.import();
                let target = Target::HOST.with(purpose.logits(options));
                let how = (DecoderBuilder::new(&target), context);
                let decoder = decoder(&path, weights, how, purpose, &mut notes)?;
                let decoder = Arc::new(fitted(decoder, folder, options, &mut notes)?);
                let engine = Engine::Host { decoder, context };
                return Ok(Self { engine, notes });
            }
        };
        let weights = options.import();
        let (decoder, planned) = prepared(folder, options, purpose, backend.caps(), weights, &mut notes)?;
        let memory = planned.memory();
        if memory.context < context {
            notes.push(Note::ShorterContext {
                context: memory.context,
                wanted: context,
            });
        }
        hear(Loading::Memory(&memory));
        let store = options.place.options.cache.clone();
        let kernels = planned.new_kernels(backend.caps(), store.as_deref());
        if kernels > 0 {
            let kept = store.as_ref().is_some_and(|s| !s.is_refused());
            let device = &backend.caps().device;
            hear(Loading::New {
                device,
                kernels,
                kept,
            });
        }
        let may_be_shorter = options.context.is_none();
        let (loaded, told) = DeviceDecoder::checked(
            decoder,
            backend,
            planned,
            may_be_shorter,
            store,
            &mut |ready, all| {
                hear(Loading::Kernels { ready, all });
            },
        )?;
        notes.extend(told);
        if let [first, ..] = loaded.host_steps() {
            notes.push(Note::HostNodes {
                count: loaded.host_steps().len(),
                op: first.work.name().to_owned(),
                node: first.name.clone(),
                reason: first.why.clone(),
            });
        }
        let engine = Engine::Device(loaded);
        Ok(Self { engine, notes })
    }

    /// A tuner for `model.onnx` of `folder`, with the defaults measured; results go to `store`.
    /// Returns the errors of [`Loaded::new`]. The host, and devices whose times cannot be measured,
    /// are usage errors.
    pub fn tuner<'s>(
        folder: &ModelFolder,
        options: &LoadOptions,
        store: Option<&'s Store>,
    ) -> Result<Tuner<'s>> {
        options.check()?;
        let lacks = "the host cannot be tuned; use a device";
        let backend = options.place.open_device(lacks)?;
        let mut unsaid = Vec::new();
        let weights = options.import();
        let (decoder, planned) = prepared(
            folder,
            options,
            Purpose::Generation,
            backend.caps(),
            weights,
            &mut unsaid,
        )?;
        Tuner::new(decoder, backend, planned.lengths(), store)
    }

    /// Warnings raised while loading, one sentence each.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Where the model runs.
    pub fn place(&self) -> PlaceName {
        match &self.engine {
            Engine::Device(decoder) => {
                let caps = decoder.caps();
                PlaceName {
                    backend: caps.backend,
                    device: caps.device.clone(),
                    driver: caps.driver.clone(),
                }
            }
            Engine::Host { .. } => PlaceName {
                backend: "host",
                device: "interpreter".to_owned(),
                driver: format!("tlite {}", env!("CARGO_PKG_VERSION")),
            },
        }
    }

    /// The settings actually used. Returns the errors of [`Loaded::costs`].
    pub fn used(&self) -> Result<Used> {
        let Engine::Device(decoder) = &self.engine else {
            return Ok(Used {
                act: "float",
                kv: self.keeps_cache().then(|| DType::F32.to_string()),
                recording: None,
            });
        };
        let costs = decoder.costs(1, 0)?;
        let in_bytes = costs.iter().flatten().any(|c| c.arithmetic == Arithmetic::Bytes);
        let states = decoder.states();
        let quantized = states.iter().any(|s| !s.dtype.is_float());
        let floats = || states.first().map(|s| s.dtype.to_string());
        Ok(Used {
            act: if in_bytes { "int8" } else { "float" },
            kv: quantized.then(|| "q8".to_owned()).or_else(floats),
            recording: Some(decoder.recording_way().name()),
        })
    }

    /// Running totals of the device over all models; `None` on the host.
    pub fn stats(&self) -> Option<Stats> {
        match &self.engine {
            Engine::Device(decoder) => Some(decoder.stats()),
            Engine::Host { .. } => None,
        }
    }

    /// Number of kernels validated while loading, because no earlier result was stored.
    pub fn checked_kernels(&self) -> usize {
        match &self.engine {
            Engine::Device(decoder) => decoder.checked_kernels(),
            Engine::Host { .. } => 0,
        }
    }

    /// See [`super::engine::Planned::costs`]; `None` on the host.
    pub fn costs(&self, tokens: usize, past: usize) -> Result<Option<Vec<Vec<NodeCost>>>> {
        match &self.engine {
            Engine::Device(decoder) => decoder.costs(tokens, past).map(Some),
            Engine::Host { .. } => Ok(None),
        }
    }

    /// Capabilities of the device; `None` on the host.
    pub fn caps(&self) -> Option<&Caps> {
        match &self.engine {
            Engine::Device(decoder) => Some(decoder.caps()),
            Engine::Host { .. } => None,
        }
    }

    /// False if the model has no KV cache, so that all tokens are run again for each new one.
    pub fn keeps_cache(&self) -> bool {
        match &self.engine {
            Engine::Device(decoder) => decoder.keeps_cache(),
            Engine::Host { decoder, .. } => decoder.keeps_cache(),
        }
    }

    /// A model with an empty cache.
    pub fn model(&self) -> Result<Box<dyn Watch + Send>> {
        let kept = self.keeps_cache();
        Ok(match &self.engine {
            Engine::Device(decoder) if kept => Box::new(decoder.model()?),
            Engine::Device(decoder) => Box::new(Uncached::new(decoder.model()?)),
            Engine::Host { decoder, context } => {
                let model = HostModel::new(decoder.clone(), *context)?;
                if kept {
                    Box::new(model)
                } else {
                    Box::new(Uncached::new(model))
                }
            }
        })
    }

    /// A model with an empty cache, for operations that only devices support; `None` on the host.
    /// If the decoder has no cache, [truncate](super::LanguageModel::truncate) it to 0 before each
    /// run.
    pub fn device_model(&self) -> Result<Option<DeviceModel>> {
        match &self.engine {
            Engine::Device(decoder) => decoder.model().map(Some),
            Engine::Host { .. } => Ok(None),
        }
    }
}

fn no_effect(option: &'static str, value: impl ToString, reason: Unused) -> Note {
    Note::NoEffect {
        option,
        value: value.to_string(),
        reason,
    }
}

/// Adapts `decoder` to `config.json` and the options; adds notes.
fn fitted(
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
            notes.push(no_effect("kv", "q8", Unused::NoCache));
        }
    }
    let context = folder.context(options.context)?;
    windowed(decoder, folder, context, notes)
}

/// Applies the sliding window of `config.json` if the graph lacks it and the mask is an input that
/// the runtime makes; otherwise adds a note. A `context` within the window needs no change.
fn windowed(
    decoder: Decoder,
    folder: &ModelFolder,
    context: usize,
    notes: &mut Vec<Note>,
) -> Result<Decoder> {
    let Some(window) = folder.config.window().filter(|w| w.length < context) else {
        return Ok(decoder);
    };
    if window.everywhere && decoder.adds_mask() {
        return decoder.with_window(window.length);
    }
    if decoder.has_windows() {
        return Ok(decoder);
    }
    // The host's passes do not look for windows.
    let absent = ImportOptions { absent_weights: true };
    let target = Target::DEVICE.with(Logits::Last);
    let planned = DecoderBuilder::new(&target).load(&folder.onnx(), absent)?;
    if !planned.has_windows() {
        notes.push(Note::WindowIgnored {
            length: window.length,
        });
    }
    Ok(decoder)
}

/// Path of `model.onnx` in a folder; a usage error if it does not exist.
fn model_file(folder: &ModelFolder) -> Result<PathBuf> {
    let path = folder.onnx();
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::usage(
        "folder",
        format!("file not found: {}", path.display()),
    ))
}

/// A decoder with its plans for a device with these capabilities; adds notes.
fn prepared(
    folder: &ModelFolder,
    options: &LoadOptions,
    purpose: Purpose<'_>,
    caps: &Caps,
    weights: ImportOptions,
    notes: &mut Vec<Note>,
) -> Result<(Decoder, Planned)> {
    let context = folder.context(options.context)?;
    let target = Target {
        kv_q8: options.kv == KvType::Q8,
        int8_activations: options.act == Activations::Int8,
        logits: purpose.logits(options),
        greedy: options.greedy && purpose == Purpose::Generation,
        ..Target::DEVICE.on(caps)
    };
    let mut builder = DecoderBuilder::new(&target).with_weights(options.weights);
    if let Some(float) = options.float {
        builder = builder.stored_in(float);
    }
    let how = (builder, context);
    let decoder = decoder(&model_file(folder)?, weights, how, purpose, notes)?;
    if options.kv == KvType::Q8 {
        notes.extend(kept_floats(decoder.graph()));
    }
    let decoder = fitted(decoder, folder, options, notes)?;
    let drafts = purpose == Purpose::Generation && options.drafts > 0;
    if drafts && !decoder.keeps_cache() {
        notes.push(no_effect("drafts", options.drafts, Unused::NoCache));
    }
    let lengths = Lengths {
        padding: options.padding,
        rows: if drafts { options.drafts + 1 } else { 0 },
        ..Lengths::of(context).on(caps)
    };
    let planned = decoder.plan_for(caps, &lengths, options.context.is_none())?;
    Ok((decoder, planned))
}

/// A decoder planned like [`Loaded::new`] would, without weights and without the device, for
/// reports.
#[derive(Debug)]
pub struct PlannedDecoder {
    decoder: Decoder,
    planned: Planned,
}

impl PlannedDecoder {
    /// Plans `model.onnx` of `folder` for generation. Returns the usage errors of [`Loaded::new`].
    pub fn new(folder: &ModelFolder, options: &LoadOptions, caps: &Caps) -> Result<Self> {
        options.check()?;
        let weights = ImportOptions { absent_weights: true };
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

    /// See [`Planned::launches`].
    pub fn launches(
        &self,
        of: &mut dyn FnMut(&[&KernelSpec]) -> usize,
        tokens: usize,
        past: usize,
    ) -> Result<usize> {
        self.planned.launches(&self.decoder, of, tokens, past)
    }
}

/// A note with the number of caches that stay in floats, if any.
fn kept_floats(graph: &Graph) -> Option<Note> {
    let floats = |s: &&State| graph.fact(s.input).is_ok_and(|f| f.dtype.is_float());
    let kept = graph.states().iter().filter(floats).count();
    let all = graph.states().len();
    (kept > 0).then_some(Note::FloatCaches { kept, all })
}

/// Reads a decoder. A usage error with the reason if the model is
/// not a decoder.
fn decoder(
    path: &Path,
    weights: ImportOptions,
    (builder, context): (DecoderBuilder, usize),
    purpose: Purpose<'_>,
    notes: &mut Vec<Note>,
) -> Result<Decoder> {
    let mut graph = onnx::import_with(path, weights)?;
    if let Some(length) = roles::decide_lengths(&mut graph, context)? {
        notes.push(Note::LongContext { length, context });
    }
    let decoder = builder.watching(purpose.watched()).build(graph);
    decoder.map_err(|e| match e {
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
