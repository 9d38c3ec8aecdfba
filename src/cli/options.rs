//! Options that several commands share, and the checks of their values.

use super::cache::CacheOptions;
use super::output::note;
use crate::backend::{ImageUse, OpenOptions, Priority, RecordingWay};
use crate::error::{Error, Result};
use crate::executor::WeightSource;
use crate::graph::pass::Pipeline;
use crate::llm::engine::PADDING;
use crate::llm::load::{Activations, KvType, LoadOptions, PADDINGS};
use crate::placement::{BackendChoice, Placement};
use crate::tensor::DType;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::str::FromStr;

impl ValueEnum for BackendChoice {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Auto => "OpenCL or wgpu, whichever has a GPU; else whichever has a device; else the host",
            Self::Opencl => "OpenCL",
            Self::Wgpu => "WGSL through wgpu",
            Self::Host => "The interpreter on the CPU: slow, for comparison",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

impl ValueEnum for KvType {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::F16, Self::Q8]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::F16 => PossibleValue::new("f16").help("As activations: f16 unless --float says otherwise"),
            Self::Q8 => PossibleValue::new("q8").help("8 bits"),
        })
    }
}

impl ValueEnum for Activations {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Auto, Self::Float, Self::Int8]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Auto => {
                PossibleValue::new("auto").help("int8 on CPUs that multiply bytes faster, else float")
            }
            Self::Float => PossibleValue::new("float").help("As they are stored"),
            Self::Int8 => PossibleValue::new("int8").help("8 bits, quantized at run time"),
        })
    }
}

impl ValueEnum for Priority {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Low => "After other programs' work: a screen stays smooth",
            Self::Normal => "As drivers have it",
            Self::High => "Before other programs' work, at the highest clocks",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

impl ValueEnum for RecordingWay {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Auto => "Recorded on GPUs whose driver can, persistent on CPUs",
            Self::Persistent => "Dispatches that repeat are stages of one kernel, on CPUs",
            Self::CommandBuffer => "By cl_khr_command_buffer",
            Self::Qcom => "By cl_qcom_recordable_queues",
            Self::Off => "Queued one by one",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

impl ValueEnum for ImageUse {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        use crate::backend::image::ImageKind;
        let help = match self {
            Self::Auto => "Where that is known to be faster: on Adreno",
            Self::Of(ImageKind::Image1dBuffer) => "Through image1d_buffer_t",
            Self::Of(ImageKind::Image2d) => "Through image2d_t, by cl_khr_image2d_from_buffer",
            Self::Off => "From buffers",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

fn slice_ms(text: &str) -> Result<u32, String> {
    whole(text, 0, 10_000)
}

/// Where a model runs.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Execution")]
pub struct DeviceOptions {
    /// Where the model runs
    #[arg(long, value_enum, default_value_t, value_name = "NAME")]
    pub backend: BackendChoice,
    /// Device of this name, or with this text in its name or driver, and #2 behind it for the second; see `tlite devices`
    #[arg(long, value_name = "SUBSTRING")]
    pub device: Option<String>,
    /// Whose work a device does first, where its driver takes a hint [default: low on GPUs that share the host's memory, else the driver's]
    #[arg(long, value_enum, value_name = "NAME")]
    pub priority: Option<Priority>,
    /// Compiled kernels of earlier runs.
    #[command(flatten)]
    pub cache: CacheOptions,
    /// How commands that repeat, as those of decoding, reach an OpenCL device
    #[arg(long, value_enum, default_value_t, value_name = "WAY")]
    pub recording: RecordingWay,
    /// How products of matrices read activations on an OpenCL device
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub images: ImageUse,
    /// Milliseconds that queued work may hold an OpenCL device before other work gets its turn; 0 for no limit [default: 8 on GPUs that
    /// share the host's memory, else 0]
    #[arg(long, value_name = "MS", value_parser = slice_ms, allow_negative_numbers = true)]
    pub slice_ms: Option<u32>,
}

impl DeviceOptions {
    /// The place as the library takes it.
    pub fn placement(&self) -> Placement {
        Placement {
            backend: self.backend,
            options: OpenOptions {
                priority: self.priority,
                cache: self.cache.store(),
                recording: self.recording,
                images: self.images,
                slice_ms: self.slice_ms,
                ..OpenOptions::of(self.device.as_deref())
            },
        }
    }

    /// Storage of activations, where `float` is asked for. A usage error for halves on the host, whose floats have the model's type.
    pub fn storage(&self, float: Option<Float>) -> Result<Option<DType>> {
        match (float, self.backend) {
            (Some(Float::F16), BackendChoice::Host) => Err(Error::usage(
                "--float",
                "f16 is storage on a device; the host keeps the model's own types",
            )),
            _ => Ok(float.map(Float::dtype)),
        }
    }
}

/// Says that an asked for storage type has no effect, where `auto` came to the host.
pub fn note_unused(float: Option<DType>) {
    if float == Some(DType::F16) {
        note(
            &mut std::io::stderr(),
            "note: --float f16 has no effect on the host",
        );
    }
}

/// Storage types of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Float {
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
}

impl Float {
    /// As element type.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
        }
    }
}

/// Options that find what a rewrite of the graph does wrong, or gains.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Passes")]
pub struct PassOptions {
    /// Leave out passes by name; without a name that is known the error lists them
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub skip_pass: Vec<String>,
    /// Stop after N rewrites of all passes together, to bisect a wrong result
    #[arg(long, value_name = "N", value_parser = from_zero::<usize>, allow_negative_numbers = true)]
    pub edit_limit: Option<usize>,
}

impl PassOptions {
    /// `pipeline` as the options change it.
    pub fn apply(&self, mut pipeline: Pipeline) -> Result<Pipeline> {
        let known: Vec<&str> = pipeline.passes.iter().map(|p| p.name).collect();
        if let Some(name) = self.skip_pass.iter().find(|n| !known.contains(&n.as_str())) {
            let what = format!("there is no pass \"{name}\" here; there are {}", known.join(", "));
            return Err(Error::usage("--skip-pass", what));
        }
        let names: Vec<&str> = self.skip_pass.iter().map(String::as_str).collect();
        pipeline = pipeline.without(&names);
        pipeline.edit_limit = self.edit_limit.unwrap_or(pipeline.edit_limit);
        Ok(pipeline)
    }
}

/// Options of every command that executes a decoder.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Execution")]
pub struct ExecOptions {
    /// Backend and device.
    #[command(flatten)]
    pub on: DeviceOptions,
    /// Number of tokens to hold in the cache [default: what the model was made for, at most 4096]
    #[arg(long, value_name = "N", value_parser = from_one, allow_negative_numbers = true)]
    pub context: Option<NonZeroUsize>,
    /// Storage of activations and cache on a device [default: f16, or f32 where the model quantizes at run time]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub float: Option<Float>,
    /// Storage of the cache on a device; q8 is 8 bits and a factor for each head of a token, of half the size
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    pub kv: KvType,
    /// Activations in products with E0M weights of 4 and 8 bits, on a device
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    pub act: Activations,
    /// Pad the lengths of decoding to multiples of N, 32 to 256
    #[arg(long, value_name = "N", default_value_t = PADDING, value_parser = padding, allow_negative_numbers = true)]
    pub padding: usize,
}

impl ExecOptions {
    /// The options as the library takes them, for runs that read logits and verify no drafts.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions {
            place: self.on.placement(),
            context: self.context.map(NonZeroUsize::get),
            float: self.float.map(Float::dtype),
            kv: self.kv,
            act: self.act,
            padding: self.padding,
            drafts: 0,
            greedy: false,
            weights: WeightSource::Files,
        }
    }
}

/// The value of an option `--padding`.
pub fn padding(text: &str) -> Result<usize, String> {
    whole(text, *PADDINGS.start(), *PADDINGS.end())
}

/// The value of an option that counts something.
pub fn from_one(text: &str) -> Result<NonZeroUsize, String> {
    whole(text, NonZeroUsize::MIN, NonZeroUsize::MAX)
}

/// The value of an option that is a whole number.
pub fn from_zero<T: Whole>(text: &str) -> Result<T, String> {
    whole(text, T::LEAST, T::MOST)
}

/// The value of an option that is a whole number in a range. All such options say in the same words which numbers they take.
pub fn whole<T: Whole>(text: &str, from: T, to: T) -> Result<T, String> {
    let value = text.parse().ok().filter(|n| (from..=to).contains(n));
    // The largest number of a type says nothing, but to who asks for more.
    let more = text.bytes().all(|b| b.is_ascii_digit())
        && text.bytes().any(|b| b != b'0')
        && text.parse::<T>().is_err();
    value.ok_or_else(|| match more || to < T::MOST {
        true => format!("must be a whole number from {from} to {to}"),
        false => format!("must be a whole number of at least {from}"),
    })
}

/// A type of whole numbers from 0 or 1 on.
pub trait Whole: FromStr + PartialOrd + Copy + std::fmt::Display {
    /// The smallest of them.
    const LEAST: Self;
    /// The largest of them.
    const MOST: Self;
}

macro_rules! whole {
    ($($ty:ty),*) => {
        $(impl Whole for $ty {
            const LEAST: Self = Self::MIN;
            const MOST: Self = Self::MAX;
        })*
    };
}

whole!(u32, u64, usize, NonZeroU64, NonZeroUsize);

/// A usage error, before any work, where `option` names a file to read that is not there.
pub fn check_file(option: &str, path: &Path) -> Result<()> {
    if path.is_file() {
        return Ok(());
    }
    let what = if path.is_dir() {
        format!("{} is a folder; expected a file", path.display())
    } else {
        format!("there is no file {}", path.display())
    };
    Err(Error::usage(option, what))
}

/// As [`check_writable`], for a report on `model`, a file or a folder: a usage error also where it would take the place of a part of it.
pub fn check_report(option: &str, path: &Path, model: &Path) -> Result<()> {
    check_writable(option, path)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let real = |p: &Path| std::fs::canonicalize(p).ok();
    let within = real(folder.unwrap_or(Path::new("."))).zip(real(model));
    let is_part = within.is_some_and(|(folder, model)| folder.starts_with(&model))
        || real(path).is_some_and(|path| real(model) == Some(path));
    if is_part {
        let what = format!(
            "{} is a part of the model; expected another place",
            path.display()
        );
        return Err(Error::usage(option, what));
    }
    Ok(())
}

/// A usage error, before any work, where `option` names a file that could not be written in the end.
pub fn check_writable(option: &str, path: &Path) -> Result<()> {
    let refused = |what: String| Err(Error::usage(option, format!("{}: {what}", path.display())));
    if path == Path::new("-") {
        return refused(
            "standard output is for the report; expected a file, ./- for one of this name".to_owned(),
        );
    }
    if path.is_dir() {
        return refused("is a folder; expected a file".to_owned());
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return refused(format!("there is no folder {}", folder.display()));
    }
    // As it will be written: beside its place.
    match tempfile::Builder::new().prefix(".tlite-").tempfile_in(folder) {
        Ok(_removed) => Ok(()),
        Err(e) => refused(format!("cannot be written: {e}")),
    }
}

/// The text of the file that `option` names. Usage errors for one that is not there, and for bytes that are no UTF-8.
pub fn read_text(option: &str, path: &Path) -> Result<String> {
    check_file(option, path)?;
    let bytes = std::fs::read(path).map_err(|e| Error::io("cannot read", path, e))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::usage(option, format!("{}: not UTF-8 at byte {at}", path.display()))
    })
}

/// A usage error when `tokens`, asked for by `option`, do not fit `context`.
pub fn check_fits(option: &str, tokens: usize, context: usize) -> Result<()> {
    if tokens <= context {
        return Ok(());
    }
    Err(Error::usage(
        option,
        format!("{tokens} tokens are more than the context of {context}; see --context"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_one_text() {
        assert_eq!((whole("7", 1usize, 8), from_zero::<u64>("0")), (Ok(7), Ok(0)));
        let from_to = "must be a whole number from 0 to 10000";
        for text in ["-1", "1e9", "", "x", "10001", "1.5", "99999999999999999999"] {
            assert_eq!(slice_ms(text), Err(from_to.to_owned()), "{text}");
        }
        let least = |n: u8| Err(format!("must be a whole number of at least {n}"));
        for text in ["-1", "x", "", "1e3", " 1"] {
            assert_eq!(from_zero::<usize>(text), least(0).map(|()| 0), "{text}");
        }
        for text in ["0", "00", "-3"] {
            assert_eq!(from_one(text).map(drop), least(1), "{text}");
        }
        let many = from_zero::<u64>("18446744073709551616").unwrap_err();
        assert!(many.ends_with("from 0 to 18446744073709551615"), "{many}");
    }
}
