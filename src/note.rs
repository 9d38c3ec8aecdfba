//! What is done otherwise than options ask for, or than one might expect.

use std::fmt;

/// Something that is done otherwise than options ask for, or than one might expect. Displayed it is a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// There is no device; the model runs on the host.
    NoDevice,
    /// An option has no effect.
    NoEffect {
        /// The option, as the field of an options struct is called.
        option: &'static str,
        /// Its value.
        value: String,
        /// Why it has none.
        reason: Unused,
    },
    /// The context is shorter than the model's: so many tokens fit the device.
    ShorterContext {
        /// Tokens.
        context: usize,
        /// Tokens of the model's.
        wanted: usize,
    },
    /// Nodes run on the host for each token.
    HostNodes {
        /// How many.
        count: usize,
        /// Operator of the first.
        op: String,
        /// Its name.
        node: String,
        /// Why it runs there.
        reason: crate::plan::HostReason,
    },
    /// The model has no KV cache: each token takes a run over all before it.
    NoCache,
    /// Caches keep their floats where quantized ones were asked for.
    FloatCaches {
        /// How many.
        kept: usize,
        /// Of how many.
        all: usize,
    },
    /// `config.json` names a sliding window that the graph does not have.
    WindowIgnored {
        /// Tokens in the window.
        length: usize,
    },
    /// The model computes what it is for long contexts for short ones too.
    LongContext {
        /// Tokens from which the model is meant to do so.
        length: i64,
        /// Tokens of the context.
        context: usize,
    },
    /// A variant of a kernel is not used from now on.
    KernelLeft {
        /// The variant.
        variant: String,
        /// What is wrong with it.
        why: String,
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
    },
    /// Variants of kernels are not used, as an earlier start has found.
    KernelsLeft {
        /// Each with what is wrong with it.
        variants: Vec<(String, String)>,
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
    },
    /// Kernels are used although they could not be checked.
    KernelsUnchecked {
        /// How many.
        count: usize,
        /// One of them.
        first: String,
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
    /// The host has no such thing.
    Host,
    /// The model has no KV cache.
    NoCache,
    /// The device's driver has no such thing.
    Driver {
        /// The device.
        device: String,
        /// Its backend.
        backend: &'static str,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str("no device, `tlite devices` says why; running on the host, slowly"),
            Self::NoEffect {
                option: "drafts",
                reason: Unused::NoCache,
                ..
            } => f.write_str("note: drafts have no effect on a device without a cache"),
            Self::NoEffect {
                option,
                value,
                reason,
            } => {
                write!(f, "note: --{option} {value} has no effect ")?;
                match reason {
                    Unused::Host => f.write_str("on the host"),
                    Unused::NoCache => f.write_str("without a cache"),
                    Unused::Driver { device, backend } => {
                        write!(f, "on {device}, whose {backend} driver takes none")
                    }
                }
            }
            Self::ShorterContext { context, wanted } => write!(
                f,
                "note: the context is {context} tokens, as many as fit the device, and not {wanted}"
            ),
            Self::HostNodes {
                count,
                op,
                node,
                reason,
            } => write!(
                f,
                "{count} nodes run on the host at each token, such as {op} \"{node}\" ({reason}); see `tlite inspect --nodes`"
            ),
            Self::NoCache => f.write_str(
                "note: the model has no KV cache, or none that could be recognised: for each token all before it are run again; an export with \
                 past keys and values is many times faster",
            ),
            Self::FloatCaches { kept, all } => write!(
                f,
                "note: {kept} of {all} caches keep their floats, which --kv q8 could not change; see RUST_LOG=debug"
            ),
            Self::WindowIgnored { length } => write!(
                f,
                "note: config.json tells of layers that see {length} tokens, model.onnx does not do so: behind {length} tokens the model may not be \
                 what it was made to be; --context {length} stays within"
            ),
            Self::LongContext { length, context } => write!(
                f,
                "note: what the model computes depends on whether there are more than {length} tokens, as rotary embeddings for long contexts do; within a \
                 context of {context} it is always what it is for more: --context {length} is for less"
            ),
            Self::KernelLeft {
                variant,
                why,
                device,
                driver,
            } => write!(
                f,
                "note: kernel {variant} {why} on {device} ({driver}) and is not used there; results are right, perhaps slower; \
                 `tlite selftest` says more"
            ),
            Self::KernelsLeft {
                variants,
                device,
                driver,
            } => {
                let variants: Vec<String> =
                    variants.iter().map(|(name, why)| format!("{name} {why}")).collect();
                write!(
                    f,
                    "note: kernels that are not used on {device} ({driver}), as found earlier: {}",
                    variants.join("; ")
                )
            }
            Self::KernelsUnchecked {
                count,
                first,
                device,
                driver,
            } => write!(
                f,
                "note: {} could not be checked on {device} ({driver}) and are used all the same, such as {first}: what they computed in these runs tells nothing",
                crate::units::count_text(*count, "kernel")
            ),
        }
    }
}
