//! Loads decoders onto a device or for the interpreter.

mod options;
mod prepare;
mod rows;

pub use options::{Activations, KvType, LoadOptions, MAX_DRAFTS, PADDINGS, Purpose};
pub use prepare::PlannedDecoder;
pub use rows::{BatchOptions, LoadedRows};

use super::engine::{
    Decoder, DecoderMemory, DeviceDecoder, DeviceModel, HostModel, Observe, Planned, Tuner, Uncached,
};
use super::folder::ModelFolder;
use crate::backend::{Backend, Caps, Stats};
use crate::cache::Store;
use crate::error::Result;
use crate::graph::pass::Target;
use crate::note::Note;
use crate::placement::{BackendChoice, Opened};
use crate::plan::{Arithmetic, NodeCost};
use crate::quota::Quota;
use crate::tensor::DType;
use prepare::{decoder, fitted, model_file, prepared};
use serde::Serialize;
use std::sync::Arc;

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
    Reference { decoder: Arc<Decoder>, context: usize },
}

/// A decoder with loaded weights. Its models, one per sequence, share the weights. Each has its own
/// cache and may be sent to another thread; commands to one device are serialized.
#[derive(Debug)]
pub struct Loaded {
    engine: Engine,
    /// Shared by the load and all models.
    quota: Quota,
    notes: Vec<Note>,
}

/// Where a model runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceName {
    /// `opencl`, `wgpu`, `cpu` or `reference`.
    pub backend: &'static str,
    /// Device name as reported by the driver.
    pub device: String,
    /// Name and version of the driver.
    pub driver: String,
}

impl PlaceName {
    fn of(caps: &Caps) -> Self {
        Self {
            backend: caps.backend,
            device: caps.device.clone(),
            driver: caps.driver.clone(),
        }
    }
}

/// Settings that a model actually uses, which may differ from the requested ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Used {
    /// Activation precision of matmuls with E0M weights: `int8` or `int16` if any uses it, else
    /// `float`.
    pub act: &'static str,
    /// KV cache type: `q8` if any cache uses it, else the float type; `None` without a cache.
    pub kv: Option<String>,
    /// How commands are replayed, named as by the option `--recording`; `None` for
    /// the interpreter.
    pub recording: Option<&'static str>,
}

/// Hint for models that do not generate text.
pub const OTHERS: &str = "`tlite run` runs any ONNX file";

impl Loaded {
    /// Loads `model.onnx` of `folder` and reports progress to `on_progress`. Usage errors: file not
    /// found, not a decoder, no such device, a context that the model does not support or the
    /// device has no memory for, numbers out of range.
    pub fn new(
        folder: &ModelFolder,
        options: &LoadOptions,
        purpose: Purpose<'_>,
        on_progress: &mut dyn FnMut(Loading<'_>),
    ) -> Result<Self> {
        options.check()?;
        let quota = options.limits.quota();
        let _call = quota.enter();
        // A missing file is reported before a missing device.
        model_file(folder)?;
        let context = folder.context(options.context)?;
        let mut notes = Vec::new();
        let engine = match options.place.open()? {
            Opened::Reference { for_want } => {
                options.check_weights_on_host()?;
                notes.extend(options.place.notes(None));
                notes.extend(for_want.map(|_| Note::NoDevice));
                notes.extend(options.device_only().map(|lacking| lacking.note()));
                let builder = options.builder(Target::HOST, purpose);
                let decoder = decoder(folder, options.import(), context, builder, &mut notes)?;
                let decoder = Arc::new(fitted(decoder, folder, options, &mut notes)?);
                Engine::Reference { decoder, context }
            }
            Opened::Device(backend) => {
                let caps = backend.caps();
                options.check_on(caps)?;
                notes.extend(options.place.notes(Some(caps)));
                let planned = prepared(folder, options, purpose, caps, options.import(), &mut notes)?;
                Engine::Device(on_device(
                    backend,
                    planned,
                    options,
                    context,
                    &mut notes,
                    on_progress,
                )?)
            }
        };
        Ok(Self { engine, quota, notes })
    }

    /// A tuner for `model.onnx` of `folder`, with the defaults measured; results go to `store`.
    /// Returns the errors of [`Loaded::new`]. The interpreter, and devices whose times cannot be
    /// measured, are usage errors.
    pub fn tuner<'s>(
        folder: &ModelFolder,
        options: &LoadOptions,
        store: Option<&'s Store>,
    ) -> Result<Tuner<'s>> {
        options.check()?;
        let _call = options.limits.quota().enter();
        let lacks = "the reference interpreter cannot be tuned; use a device";
        let backend = options.place.open_device(lacks)?;
        options.check_on(backend.caps())?;
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
            Engine::Device(decoder) => PlaceName::of(decoder.caps()),
            Engine::Reference { .. } => PlaceName {
                backend: BackendChoice::Reference.name(),
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
        let any = |arithmetic| costs.iter().flatten().any(|c| c.arithmetic == arithmetic);
        let act = match (any(Arithmetic::Bytes), any(Arithmetic::Int16)) {
            (true, _) => "int8",
            (false, true) => "int16",
            (false, false) => "float",
        };
        let states = decoder.states();
        let quantized = states.iter().any(|s| !s.dtype.is_float());
        let floats = || states.first().map(|s| s.dtype.to_string());
        Ok(Used {
            act,
            kv: quantized.then(|| "q8".to_owned()).or_else(floats),
            recording: Some(decoder.replay_mode().name()),
        })
    }

    /// Running totals of the device over all models; `None` for the interpreter.
    pub fn stats(&self) -> Option<Stats> {
        match &self.engine {
            Engine::Device(decoder) => Some(decoder.stats()),
            Engine::Reference { .. } => None,
        }
    }

    /// Number of kernels validated while loading, because no earlier result was stored.
    pub fn validated_kernels(&self) -> usize {
        match &self.engine {
            Engine::Device(decoder) => decoder.validated_kernels(),
            Engine::Reference { .. } => 0,
        }
    }

    /// See [`super::engine::Planned::costs`]; `None` for the interpreter.
    pub fn costs(&self, tokens: usize, past: usize) -> Result<Option<Vec<Vec<NodeCost>>>> {
        match &self.engine {
            Engine::Device(decoder) => decoder.costs(tokens, past).map(Some),
            Engine::Reference { .. } => Ok(None),
        }
    }

    /// Capabilities of the device; `None` for the interpreter.
    pub fn caps(&self) -> Option<&Caps> {
        match &self.engine {
            Engine::Device(decoder) => Some(decoder.caps()),
            Engine::Reference { .. } => None,
        }
    }

    /// False if the model has no KV cache, so that all tokens are run again for each new one.
    pub fn keeps_cache(&self) -> bool {
        match &self.engine {
            Engine::Device(decoder) => decoder.keeps_cache(),
            Engine::Reference { decoder, .. } => decoder.keeps_cache(),
        }
    }

    /// A model with an empty cache.
    pub fn model(&self) -> Result<Box<dyn Observe + Send>> {
        let kept = self.keeps_cache();
        let _call = self.quota.enter();
        Ok(match &self.engine {
            Engine::Device(decoder) if kept => Box::new(decoder.model()?),
            Engine::Device(decoder) => Box::new(Uncached::new(decoder.model()?)),
            Engine::Reference { decoder, context } => {
                let model = HostModel::new(decoder.clone(), *context)?;
                if kept {
                    Box::new(model)
                } else {
                    Box::new(Uncached::new(model))
                }
            }
        })
    }

    /// A model with an empty cache, for operations that only devices support; `None` for the
    /// interpreter.
    /// If the decoder has no cache, [truncate](super::LanguageModel::truncate) it to 0 before each
    /// run.
    pub fn device_model(&self) -> Result<Option<DeviceModel>> {
        match &self.engine {
            Engine::Device(decoder) => decoder.model().map(Some),
            Engine::Reference { .. } => Ok(None),
        }
    }
}

/// Loads a decoder onto its device; adds notes.
fn on_device(
    backend: Box<dyn Backend>,
    (decoder, planned): (Decoder, Planned),
    options: &LoadOptions,
    context: usize,
    notes: &mut Vec<Note>,
    on_progress: &mut dyn FnMut(Loading<'_>),
) -> Result<DeviceDecoder> {
    let memory = planned.memory();
    if memory.context < context {
        notes.push(Note::ShorterContext {
            context: memory.context,
            wanted: context,
        });
    }
    on_progress(Loading::Memory(&memory));
    let store = options.place.options.cache.clone();
    let kernels = planned.new_kernels(backend.caps(), store.as_deref());
    if kernels > 0 {
        on_progress(Loading::New {
            device: &backend.caps().device,
            kernels,
            kept: store.as_ref().is_some_and(|s| !s.is_refused()),
        });
    }
    let may_be_shorter = options.context.is_none();
    let mut progress = |ready, all| on_progress(Loading::Kernels { ready, all });
    let (loaded, validation_notes) =
        DeviceDecoder::load_validated(decoder, backend, planned, may_be_shorter, store, &mut progress)?;
    notes.extend(validation_notes);
    if let [first, ..] = loaded.host_steps() {
        notes.push(Note::HostNodes {
            count: loaded.host_steps().len(),
            op: first.work.name().to_owned(),
            node: first.name.clone(),
            reason: first.why.clone(),
        });
    }
    Ok(loaded)
}
