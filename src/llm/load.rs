//! Loading a decoder for where it is to run.

use super::engine::{
    Decoder, DecoderMemory, DeviceDecoder, DeviceModel, HostModel, Lengths, Logits, PADDING, Planned, Tuner,
    Uncached, Watch,
};
use super::folder::ModelFolder;
use super::roles;
use crate::backend::kernel::KernelSpec;
use crate::backend::{Caps, Stats};
use crate::cache::Store;
use crate::error::{Error, Result, Stage};
use crate::executor::WeightSource;
use crate::graph::onnx::ImportOptions;
use crate::graph::pass::{FUSE, GREEDY, INT8_ACTIVATIONS, KV_Q8, Pipeline};
use crate::graph::{Graph, State, onnx};
use crate::placement::{BackendChoice, Opened, Placement};
use crate::plan::{Arithmetic, NodeCost};
use crate::tensor::DType;
use schemars::JsonSchema;
use serde::Serialize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// What [`LoadOptions::padding`] may be.
pub const PADDINGS: RangeInclusive<usize> = 32..=256;
/// Most tokens of a guess: the largest [`LoadOptions::drafts`].
pub const MOST_DRAFTS: usize = 64;

/// Storage types of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// As activations: `f16` unless [`LoadOptions::float`] says otherwise.
    #[default]
    F16,
    /// 8 bits, and a factor for each head of a token.
    Q8,
}

impl KvType {
    /// Adds to the passes of a device what stores a cache so.
    pub fn store(self, pipeline: &mut Pipeline) {
        if self == Self::Q8 {
            pipeline.insert_before(FUSE.name, KV_Q8);
        }
    }
}

impl FromStr for KvType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "f16" => Ok(Self::F16),
            "q8" => Ok(Self::Q8),
            _ => Err(Error::usage("kv", format!("\"{text}\" is none of f16, q8"))),
        }
    }
}

/// Activation precision of matmuls with E0M weights of 4 and 8 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// The fastest precision that keeps the answers of the float model: [`Float`](Self::Float) on every backend.
    #[default]
    Auto,
    /// The precision in which activations are stored.
    Float,
    /// 8 bits, quantized at run time ("W4A8"). Faster on CPUs with byte dot products; answers can differ from the
    /// float model's.
    Int8,
}

impl Activations {
    /// Adds the pass that this precision needs.
    pub fn store(self, pipeline: &mut Pipeline) {
        if self == Self::Int8 {
            pipeline.insert_before(FUSE.name, INT8_ACTIVATIONS);
        }
    }
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
                format!("\"{text}\" is none of auto, float, int8"),
            )),
        }
    }
}

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Backend and device.
    pub place: Placement,
    /// Tokens that the cache of a sequence holds, at least 1; without a number what the model was made for, at most
    /// [`DEFAULT_CONTEXT`](super::folder::DEFAULT_CONTEXT).
    pub context: Option<usize>,
    /// Storage of activations on a device, `f16` or `f32`; without it `f16`, or `f32` where the model quantizes at run time.
    pub float: Option<DType>,
    /// Storage of the cache on a device.
    pub kv: KvType,
    /// Activations of quantized products on a device.
    pub act: Activations,
    /// As [`Lengths::padding`], within [`PADDINGS`].
    pub padding: usize,
    /// Most tokens that are to be guessed ahead and verified at once, up to [`MOST_DRAFTS`]; 0 for generation without drafts.
    pub drafts: usize,
    /// Where the weights come from; what is made up is made up on a device.
    pub weights: WeightSource,
    /// A device finds the most likely token itself. That makes greedy generation faster and other generation a little slower.
    pub greedy: bool,
}

impl Default for LoadOptions {
    /// For greedy generation without drafts, on the best device.
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
    /// Usage errors: numbers out of range, storage that the host does not have.
    fn check(&self) -> Result<()> {
        let on_host = self.place.backend == BackendChoice::Host;
        let wrong = |name: &str, what: String| Err(Error::usage(name, what));
        if self.context == Some(0) {
            return wrong("context", "0: a run needs room for a token".to_owned());
        }
        if !PADDINGS.contains(&self.padding) {
            let (from, to) = (PADDINGS.start(), PADDINGS.end());
            return wrong("padding", format!("{} is not from {from} to {to}", self.padding));
        }
        if self.drafts > MOST_DRAFTS {
            let what = format!("{} tokens, at most {MOST_DRAFTS} can be guessed", self.drafts);
            return wrong("drafts", what);
        }
        match self.float {
            Some(DType::F16) if on_host => {
                let what = "f16 is storage on a device; the host keeps the model's own types";
                return wrong("float", what.to_owned());
            }
            None | Some(DType::F16 | DType::F32) => {}
            Some(other) => return wrong("float", format!("{other} is none of f16, f32")),
        }
        if self.kv == KvType::Q8 && on_host {
            let what = "q8 is storage on a device; the host keeps the model's own types";
            return wrong("kv", what.to_owned());
        }
        if self.act == Activations::Int8 && on_host {
            let what = "int8 is arithmetic on a device; the host multiplies floats";
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
                "random weights are made on a device, and the host is none",
            )),
        }
    }

    fn import(&self) -> ImportOptions {
        ImportOptions {
            absent_weights: self.weights != WeightSource::Files,
        }
    }
}

/// What a model is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// The logits after the last token of each run, and what drafts and greedy choices need.
    Generation,
    /// The logits after each token.
    Evaluation,
    /// These values in the middle, by name: [`Watch`].
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

/// What happens while a model is loaded for a device.
#[derive(Clone, Copy, Debug)]
pub enum Loading<'a> {
    /// So much memory is taken next.
    Memory(&'a DecoderMemory),
    /// So many kernels are new on the device: they are compiled and checked next.
    New {
        /// The device.
        device: &'a str,
        /// How many.
        kernels: usize,
        /// What comes of it is stored, so that they are new once.
        kept: bool,
    },
    /// So many of all kernels are compiled or found in the cache.
    Kernels {
        /// They are ready.
        ready: usize,
        /// All that the model asks for.
        all: usize,
    },
}

#[derive(Debug)]
enum Engine {
    Device(DeviceDecoder),
    Host { decoder: Arc<Decoder>, context: usize },
}

/// A decoder whose weights are where it runs. Its models, one for each sequence, share them; each has a cache of its own, and may go to
/// another thread. Commands to one device are made one after another, whichever thread they come from.
#[derive(Debug)]
pub struct Loaded {
    engine: Engine,
    notes: Vec<String>,
}

/// The name of the place where a model runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceName {
    /// `opencl`, `wgpu` or `host`.
    pub backend: &'static str,
    /// The device as its driver calls it.
    pub device: String,
    /// Name and version of the driver.
    pub driver: String,
}

/// What a model really uses, whatever its options asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Used {
    /// Activations of quantized matmuls: `int8` if any of them quantizes, else `float`.
    pub act: &'static str,
    /// Storage of the KV cache: `q8` or a float type; null without a cache.
    pub kv: Option<String>,
    /// How commands reach the device, as named by `--recording`; null on the host.
    pub recording: Option<&'static str>,
}

/// What there is for models that generate no text.
pub const OTHERS: &str = "`tlite run` runs ONNX files of any kind";

impl Loaded {
    /// Loads `model.onnx` of `folder`. Usage errors: no such file, a model that is no decoder, no such device, a context that the model does
    /// not have or the device has no room for, numbers out of range. `hear` is told how far it has come.
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
                    notes.push(
                        "no device found (see `tlite devices`); running on the host, which is slow"
                            .to_owned(),
                    );
                }
                if options.float == Some(DType::F16) {
                    notes.push("--float f16 has no effect on the host".to_owned());
                }
                if options.kv == KvType::Q8 {
                    notes.push("--kv q8 has no effect on the host".to_owned());
                }
                if options.act == Activations::Int8 {
                    notes.push("--act int8 has no effect on the host".to_owned());
                }
                let weights = options.import();
                let how = (&Pipeline::host(), context);
                let decoder = decoder(&path, weights, how, options, purpose, &mut notes)?;
                let decoder = Arc::new(fitted(decoder, folder, options, &mut notes)?);
                let engine = Engine::Host { decoder, context };
                return Ok(Self { engine, notes });
            }
        };
        let weights = options.import();
        let (decoder, planned) = prepared(folder, options, purpose, backend.caps(), weights, &mut notes)?;
        let memory = planned.memory();
        if memory.context < context {
            notes.push(format!(
                "the context is {} tokens instead of {context}; no more fit in the device's memory",
                memory.context
            ));
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
            notes.push(format!(
                "{} nodes run on the host at each token, such as {} \"{}\" ({}); see `tlite inspect --nodes`",
                loaded.host_steps().len(),
                first.work.name(),
                first.name,
                first.why
            ));
        }
        let engine = Engine::Device(loaded);
        Ok(Self { engine, notes })
    }

    /// A tuner of `model.onnx` of `folder`, with the defaults measured; `store` keeps what it finds. Errors are those of [`Loaded::new`]; a device of
    /// which times cannot be measured is a usage error, and so is the host.
    pub fn tuner<'s>(
        folder: &ModelFolder,
        options: &LoadOptions,
        store: Option<&'s Store>,
    ) -> Result<Tuner<'s>> {
        options.check()?;
        let lacks = "tune needs a device; the host interpreter has no kernel settings";
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

    /// What happened that was perhaps not expected, a sentence each: the host in place of a device, options without effect.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Where it runs.
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

    /// What it really uses. Errors are those of [`Loaded::costs`].
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

    /// Running totals of the device, for all models together; `None` on the host.
    pub fn stats(&self) -> Option<Stats> {
        match &self.engine {
            Engine::Device(decoder) => Some(decoder.stats()),
            Engine::Host { .. } => None,
        }
    }

    /// Kernels that were compared with the reference while it was loaded: those of which nothing was known.
    pub fn checked_kernels(&self) -> usize {
        match &self.engine {
            Engine::Device(decoder) => decoder.checked_kernels(),
            Engine::Host { .. } => 0,
        }
    }

    /// As [`super::engine::Planned::costs`]; `None` on the host.
    pub fn costs(&self, tokens: usize, past: usize) -> Result<Option<Vec<Vec<NodeCost>>>> {
        match &self.engine {
            Engine::Device(decoder) => decoder.costs(tokens, past).map(Some),
            Engine::Host { .. } => Ok(None),
        }
    }

    /// What the device offers; `None` on the host.
    pub fn caps(&self) -> Option<&Caps> {
        match &self.engine {
            Engine::Device(decoder) => Some(decoder.caps()),
            Engine::Host { .. } => None,
        }
    }

    /// False where the model has no cache, so that all tokens are run again for each new one.
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

    /// A model with an empty cache, for what only devices do; `None` on the host. Without a cache each of its runs starts from no tokens:
    /// [`LanguageModel::truncate`](super::LanguageModel::truncate) it before.
    pub fn device_model(&self) -> Result<Option<DeviceModel>> {
        match &self.engine {
            Engine::Device(decoder) => decoder.model().map(Some),
            Engine::Host { .. } => Ok(None),
        }
    }
}

/// `decoder` as `config.json` and the options have it, with what there is to note.
fn fitted(
    decoder: Decoder,
    folder: &ModelFolder,
    options: &LoadOptions,
    notes: &mut Vec<String>,
) -> Result<Decoder> {
    if !decoder.keeps_cache() {
        if let Some(other) = folder.config.other_purpose() {
            let what =
                format!("config.json calls it {other}, which is not a text-generation model; {OTHERS}");
            return Err(Error::usage("folder", what));
        }
        notes.push(
            "no KV cache was found in the model, so every token runs the whole text again; an export with past keys and values is \
             many times faster"
                .to_owned(),
        );
        if options.kv == KvType::Q8 {
            notes.push("--kv q8 has no effect on a model without a KV cache".to_owned());
        }
    }
    let context = folder.context(options.context)?;
    windowed(decoder, folder, context, notes)
}

/// `decoder` with the window that `config.json` tells of and its graph does not have, as far as the mask is for us to make; else `notes` says that it
/// is not there. Within a `context` that is no longer there is nothing to do.
fn windowed(
    decoder: Decoder,
    folder: &ModelFolder,
    context: usize,
    notes: &mut Vec<String>,
) -> Result<Decoder> {
    let Some(window) = folder.config.window().filter(|w| w.length < context) else {
        return Ok(decoder);
    };
    if window.everywhere && decoder.adds_mask() {
        return decoder.with_window(window.length);
    }
    // The passes of the host look for no windows.
    let absent = ImportOptions { absent_weights: true };
    let planned = Decoder::load_with(&folder.onnx(), absent, &Pipeline::standard(), Logits::Last)?;
    if !planned.has_windows() {
        let length = window.length;
        notes.push(format!(
            "config.json limits attention to {length} tokens, but model.onnx does not: after {length} tokens answers may get worse; \
             --context {length} avoids that"
        ));
    }
    Ok(decoder)
}

/// `model.onnx` of a folder; a usage error where it is not there.
fn model_file(folder: &ModelFolder) -> Result<PathBuf> {
    let path = folder.onnx();
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::usage(
        "folder",
        format!("there is no file {}", path.display()),
    ))
}

/// A decoder with its plans for a device of these capabilities, and what there is to note.
fn prepared(
    folder: &ModelFolder,
    options: &LoadOptions,
    purpose: Purpose<'_>,
    caps: &Caps,
    weights: ImportOptions,
    notes: &mut Vec<String>,
) -> Result<(Decoder, Planned)> {
    let context = folder.context(options.context)?;
    let mut pipeline = Pipeline::standard().on(caps);
    options.kv.store(&mut pipeline);
    options.act.store(&mut pipeline);
    if options.greedy && purpose == Purpose::Generation {
        pipeline.passes.push(GREEDY);
    }
    let how = (&pipeline, context);
    let mut decoder = decoder(&model_file(folder)?, weights, how, options, purpose, notes)?;
    if let Some(float) = options.float {
        decoder = decoder.stored_in(float);
    }
    if options.kv == KvType::Q8 {
        notes.extend(kept_floats(decoder.graph()));
    }
    let decoder = fitted(decoder, folder, options, notes)?.with_weights(options.weights);
    let drafts = purpose == Purpose::Generation && options.drafts > 0;
    if drafts && !decoder.keeps_cache() {
        notes.push("drafts have no effect on a model without a KV cache".to_owned());
    }
    let lengths = Lengths {
        padding: options.padding,
        rows: if drafts { options.drafts + 1 } else { 0 },
        ..Lengths::of(context).on(caps)
    };
    let planned = decoder.plan_for(caps, &lengths, options.context.is_none())?;
    Ok((decoder, planned))
}

/// A decoder planned as [`Loaded::new`] would for a device of these capabilities, without its weights and without the device: for reports.
#[derive(Debug)]
pub struct PlannedDecoder {
    decoder: Decoder,
    planned: Planned,
}

impl PlannedDecoder {
    /// Plans `model.onnx` of `folder` for generation. Usage errors are those of [`Loaded::new`].
    pub fn new(folder: &ModelFolder, options: &LoadOptions, caps: &Caps) -> Result<Self> {
        options.check()?;
        let weights = ImportOptions { absent_weights: true };
        // A report is about work, not about answers.
        let mut unsaid = Vec::new();
        let (decoder, planned) = prepared(folder, options, Purpose::Generation, caps, weights, &mut unsaid)?;
        Ok(Self { decoder, planned })
    }

    /// Tokens that the cache has room for.
    pub fn context(&self) -> usize {
        self.planned.memory().context
    }

    /// As [`Planned::costs`].
    pub fn costs(&self, tokens: usize, past: usize) -> Result<Vec<Vec<NodeCost>>> {
        self.planned.costs(&self.decoder, tokens, past)
    }

    /// As [`Planned::launches`].
    pub fn launches(
        &self,
        of: &mut dyn FnMut(&[&KernelSpec]) -> usize,
        tokens: usize,
        past: usize,
    ) -> Result<usize> {
        self.planned.launches(&self.decoder, of, tokens, past)
    }
}

/// Says how many caches keep their floats, where any do.
fn kept_floats(graph: &Graph) -> Option<String> {
    let floats = |s: &&State| graph.fact(s.input).is_ok_and(|f| f.dtype.is_float());
    let kept = graph.states().iter().filter(floats).count();
    (kept > 0).then(|| {
        format!(
            "{kept} of {} caches stay in floats despite --kv q8; RUST_LOG=debug says why",
            graph.states().len()
        )
    })
}

/// Reads a decoder, for these passes and a context. A usage error, which says what is missing, for a model that is none.
fn decoder(
    path: &Path,
    weights: ImportOptions,
    (pipeline, context): (&Pipeline, usize),
    options: &LoadOptions,
    purpose: Purpose<'_>,
    notes: &mut Vec<String>,
) -> Result<Decoder> {
    let mut graph = onnx::import_with(path, weights)?;
    if let Some(length) = roles::decide_lengths(&mut graph, context)? {
        notes.push(format!(
            "the model computes differently beyond {length} tokens (rotary embeddings for long contexts); with a context of {context} it \
             always uses the long form, with --context {length} the short one"
        ));
    }
    let decoder = Decoder::watching(graph, purpose.watched(), pipeline, purpose.logits(options));
    decoder.map_err(|e| match e {
        // Once it is read, this stage is the search for the inputs and outputs of a decoder.
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
