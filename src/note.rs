//! Warnings raised while a model is loaded.
#![warn(missing_docs)]

use std::fmt;

/// A deviation from what options ask for, or from what a user might expect. It displays as one
/// sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// No device was found; the interpreter runs the model.
    NoDevice,
    /// The driver runs kernels written for GPUs on the processor, which is slow.
    GpuKernelsOnCpu {
        /// The device.
        device: String,
        /// Its backend.
        backend: &'static str,
    },
    /// An option has no effect.
    NoEffect {
        /// The option, named as the field of its options struct.
        option: &'static str,
        /// Its value.
        value: String,
        /// Why it has no effect.
        reason: Unused,
    },
    /// The context is shorter than requested, because device memory is limited.
    ShorterContext {
        /// Tokens of the context.
        context: usize,
        /// Tokens that the model supports.
        wanted: usize,
    },
    /// Nodes run on the host for every token.
    HostNodes {
        /// Number of nodes.
        count: usize,
        /// Operator of the first.
        op: String,
        /// Its name.
        node: String,
        /// Why it runs on the host.
        reason: crate::plan::HostReason,
    },
    /// The model has no KV cache: every token runs all previous tokens again.
    NoCache,
    /// Some caches stay in floats although a quantized cache was requested.
    FloatCaches {
        /// Caches in floats.
        kept: usize,
        /// All caches.
        all: usize,
    },
    /// Inputs whose sizes the model names alike have different sizes. They are treated as
    /// independent.
    SizesDiffer {
        /// The names.
        names: Vec<String>,
    },
    /// The shapes of a run cannot be planned: the interpreter runs it.
    NotPlanned {
        /// Why not.
        why: String,
    },
    /// `config.json` sets a sliding window that the graph does not implement.
    WindowIgnored {
        /// Tokens in the window.
        length: usize,
    },
    /// Several requests run one after another, not in common steps.
    OneSequence {
        /// Why.
        why: String,
    },
    /// The model uses its long-context form for short contexts too.
    LongContext {
        /// Tokens above which the model is meant to use the long form.
        length: i64,
        /// Tokens of the context.
        context: usize,
    },
    /// A kernel variant was quarantined in this start.
    KernelQuarantined {
        /// The variant.
        variant: String,
        /// What is wrong with it.
        why: String,
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
    },
    /// Kernel variants were quarantined in an earlier start.
    KernelsQuarantined {
        /// Each variant and what is wrong with it.
        variants: Vec<(String, String)>,
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
    },
}

/// Why an option has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unused {
    /// The reference interpreter does not support it.
    Reference,
    /// The model has no KV cache.
    NoCache,
    /// The driver does not support it.
    Driver {
        /// The device.
        device: String,
        /// Its backend.
        backend: &'static str,
    },
    /// Only the CPU backend has it.
    NotOnCpu {
        /// The device of another backend.
        device: String,
    },
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reference => f.write_str("on the reference interpreter"),
            Self::NoCache => f.write_str("without a cache"),
            Self::Driver { device, backend } => {
                write!(f, "on {device}: its {backend} driver does not support it")
            }
            Self::NotOnCpu { device } => write!(f, "on {device}: only the cpu backend has it"),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str("no device found (`tlite devices` shows why); running on the reference interpreter, which is slow"),
            Self::GpuKernelsOnCpu { device, backend } => write!(
                f,
                "the {backend} driver runs GPU kernels on the processor ({device}), which is slow; --backend cpu is \
                 the fast way"
            ),
            Self::NoEffect {
                option: "drafts",
                reason: Unused::NoCache,
                ..
            } => f.write_str("drafts have no effect on a device if the model has no KV cache"),
            Self::NoEffect {
                option,
                value,
                reason,
            } => write!(f, "--{option} {value} has no effect {reason}"),
            Self::ShorterContext { context, wanted } => write!(
                f,
                "the context is limited to {context} tokens (of {wanted}): a larger KV cache does not fit in the device's memory or the limit `memory`"
            ),
            Self::HostNodes {
                count,
                op,
                node,
                reason,
            } => write!(
                f,
                "{count} nodes run on the host for every token, for example {op} \"{node}\" ({reason}); \
                 see `tlite inspect --nodes`"
            ),
            Self::NoCache => f.write_str(
                "the model has no KV cache, so all previous tokens are computed again for every token; an export \
                 with past keys and values is many times faster",
            ),
            Self::FloatCaches { kept, all } => write!(
                f,
                "--kv q8 has no effect on {kept} of {all} caches; RUST_LOG=debug shows why"
            ),
            Self::SizesDiffer { names } => sizes_differ(f, &names.join(", ")),
            Self::NotPlanned { why } => write!(
                f,
                "some shapes are known only at run time, so the slow reference interpreter is used: {why}"
            ),
            Self::WindowIgnored { length } => write!(
                f,
                "config.json limits attention to {length} tokens, but model.onnx does not; answers may be \
                 poor beyond {length} tokens; use --context {length} to avoid this"
            ),
            Self::OneSequence { why } => write!(f, "requests are answered one after another: {why}"),
            Self::LongContext { length, context } => write!(
                f,
                "with a context of {context} tokens, this model always uses its rotary embeddings for long contexts; \
                 use --context {length} to use those for short ones"
            ),
            Self::KernelQuarantined {
                variant,
                why,
                device,
                ..
            } => write!(
                f,
                "kernel {variant} {why} on {device}; a fallback is used, which may be slower; run \
                 `tlite selftest` for details"
            ),
            Self::KernelsQuarantined {
                variants,
                device,
                ..
            } => write!(
                f,
                "kernels quarantined in an earlier run on {device}: {}; \
                 `tlite cache clear --kind quarantine` tries them again",
                listed(variants)
            ),
        }
    }
}

/// What [`Note::SizesDiffer`] says of these names.
fn sizes_differ(f: &mut fmt::Formatter<'_>, names: &str) -> fmt::Result {
    write!(
        f,
        "input sizes contradict the dimension names {names}, which are now ignored; check the inputs if \
         this is unexpected"
    )
}

/// Each variant with what is wrong with it.
fn listed(variants: &[(String, String)]) -> String {
    let variants = variants.iter().map(|(name, why)| format!("{name} {why}"));
    variants.collect::<Vec<_>>().join("; ")
}
