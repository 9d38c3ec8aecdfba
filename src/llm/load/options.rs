//! How to load a model, and what for.

use crate::backend::Caps;
use crate::error::{Error, Result};
use crate::executor::WeightSource;
use crate::graph::onnx::ImportOptions;
use crate::graph::op::matmul_e0m::ActivationType;
use crate::graph::pass::{Logits, Target};
use crate::limits::Limits;
use crate::llm::engine::{DecoderBuilder, PADDING};
use crate::placement::{BackendChoice, DeviceOnly, Placement};
use crate::tensor::DType;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Valid values of [`LoadOptions::padding`].
pub const PADDINGS: RangeInclusive<usize> = 32..=256;
/// Largest value of [`LoadOptions::drafts`].
pub const MAX_DRAFTS: usize = 64;

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
    /// The fastest precision that keeps the answers of the float model: [`Int16`](Self::Int16) on
    /// the CPU backend, [`Float`](Self::Float) on others.
    #[default]
    Auto,
    /// The precision in which activations are stored.
    Float,
    /// 16 bits, quantized at run time, with an error below that of storing activations as `f16`.
    /// CPU backend only.
    Int16,
    /// 8 bits, quantized at run time ("W4A8"). Faster on CPUs with byte dot products; answers can
    /// differ from the float model's.
    Int8,
}

impl Activations {
    /// What it is on a device with these capabilities.
    pub fn on(self, caps: &Caps) -> ActivationType {
        match self {
            Self::Auto if caps.profile.multiplies_int16() => ActivationType::Int16,
            Self::Auto | Self::Float => ActivationType::Float,
            Self::Int16 => ActivationType::Int16,
            Self::Int8 => ActivationType::Int8,
        }
    }
}

impl FromStr for Activations {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "float" => Ok(Self::Float),
            "int16" => Ok(Self::Int16),
            "int8" => Ok(Self::Int8),
            _ => Err(Error::usage(
                "act",
                format!("\"{text}\" is not valid; expected auto, float, int16 or int8"),
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
    /// [`DEFAULT_CONTEXT`](crate::llm::folder::DEFAULT_CONTEXT).
    pub context: Option<usize>,
    /// Activation type on a device, `f16` or `f32`. `None` selects `f16` on GPUs, and `f32` on CPUs
    /// or if the model quantizes at run time.
    pub float: Option<DType>,
    /// KV cache type on a device.
    pub kv: KvType,
    /// Activation precision of quantized matmuls on a device.
    pub act: Activations,
    /// See [`SequenceConfig::padding`](crate::llm::engine::SequenceConfig::padding); within
    /// [`PADDINGS`].
    pub padding: usize,
    /// Maximum draft length in tokens, up to [`MAX_DRAFTS`]; 0 disables speculative decoding.
    pub drafts: usize,
    /// Source of the weights. Random weights are generated on the device.
    pub weights: WeightSource,
    /// Finds the most likely token on the device. Greedy generation becomes faster, other
    /// generation slightly slower.
    pub greedy: bool,
    /// Finds candidates for the next token on a GPU when they are needed. Sampling with a
    /// [`top_k`](crate::llm::SamplerConfig::top_k) of 1 to
    /// [`Candidates::COUNT`](crate::llm::Candidates::COUNT) and log-probabilities become faster
    /// with large vocabularies. Costs some kernels to compile, and memory.
    pub candidates: bool,
    /// What the model may consume.
    pub limits: Limits,
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
            candidates: true,
            limits: Limits::default(),
        }
    }
}

impl LoadOptions {
    /// Usage errors: numbers out of range, types that the interpreter does not support.
    pub(super) fn check(&self) -> Result<()> {
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
        if self.drafts > MAX_DRAFTS {
            let what = format!(
                "{} tokens are too many; expected at most {MAX_DRAFTS}",
                self.drafts
            );
            return wrong("drafts", what);
        }
        if let Some(other) = self.float.filter(|f| !matches!(f, DType::F16 | DType::F32)) {
            return wrong("float", format!("{other} is not valid; expected f16 or f32"));
        }
        if self.place.backend == BackendChoice::Reference {
            if let Some(lacking) = self.device_only().next() {
                return Err(lacking.refusal());
            }
            self.check_weights_on_host()?;
        }
        Ok(())
    }

    /// What the interpreter does not support.
    pub(super) fn device_only(&self) -> impl Iterator<Item = DeviceOnly> {
        let all = [
            (self.float == Some(DType::F16), DeviceOnly::F16),
            (self.kv == KvType::Q8, DeviceOnly::Q8),
            (self.act == Activations::Int8, DeviceOnly::INT8),
            (self.act == Activations::Int16, DeviceOnly::INT16),
        ];
        all.into_iter()
            .filter_map(|(wanted, lacking)| wanted.then_some(lacking))
    }

    /// A usage error if the weights do not come from files.
    pub(super) fn check_weights_on_host(&self) -> Result<()> {
        match self.weights {
            WeightSource::Files => Ok(()),
            WeightSource::Random(_) => Err(Error::usage(
                "backend",
                "random weights are generated on a device; choose another backend",
            )),
        }
    }

    pub(super) fn import(&self) -> ImportOptions {
        ImportOptions {
            absent_weights: self.weights != WeightSource::Files,
            read_files: self.limits.read_files,
            ..ImportOptions::default()
        }
    }

    /// A usage error for options that a device does not support.
    pub(super) fn check_on(&self, caps: &Caps) -> Result<()> {
        if self.act == Activations::Int16 && !caps.profile.multiplies_int16() {
            let what = format!(
                "int16 is not supported by {}; expected the cpu backend, or auto, float or int8",
                caps.backend
            );
            return Err(Error::usage("act", what));
        }
        if self
            .float
            .is_some_and(|float| !caps.profile.storage_types().contains(&float))
        {
            return Err(DeviceOnly::halves_on_native());
        }
        Ok(())
    }

    /// The passes for a device.
    pub(super) fn target(&self, caps: &Caps, purpose: Purpose<'_>) -> Target {
        let generates = matches!(purpose, Purpose::Generation | Purpose::Batch);
        Target {
            kv_q8: self.kv == KvType::Q8,
            activations: self.act.on(caps),
            greedy: self.greedy && generates,
            // The host reads rows in its own memory at once.
            candidates: self.candidates && generates && !caps.profile.uses_host_memory(),
            ..Target::DEVICE.on(caps)
        }
    }

    /// A decoder for a host or device.
    pub(super) fn builder(&self, target: Target, purpose: Purpose<'_>) -> DecoderBuilder {
        let builder = DecoderBuilder::new(&target.with(purpose.logits(self)))
            .observing(purpose.observed())
            .with_weights(self.weights);
        match self.float {
            Some(float) => builder.stored_in(float),
            None => builder,
        }
    }
}

/// Purpose of loading a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// Generation: logits of the last token of each run, plus what drafts and greedy decoding need.
    Generation,
    /// Generation of several sequences in common steps: logits of the rows that a step chooses.
    Batch,
    /// Evaluation: logits of every token.
    Evaluation,
    /// Watching the named intermediate values: [`Observe`](crate::llm::engine::Observe).
    Watching(&'a [String]),
}

impl<'a> Purpose<'a> {
    fn observed(self) -> &'a [String] {
        match self {
            Self::Watching(names) => names,
            Self::Generation | Self::Batch | Self::Evaluation => &[],
        }
    }

    fn logits(self, options: &LoadOptions) -> Logits {
        match self {
            Self::Evaluation => Logits::All,
            Self::Batch => Logits::Chosen,
            Self::Generation if options.drafts > 0 => Logits::Tail,
            Self::Generation | Self::Watching(_) => Logits::Last,
        }
    }
}
