//! Options that several commands share, and the checks of their values.

use super::cache::CacheOptions;
use super::choices;
use super::fields::in_file_of;
use super::output::{self, Level, note};
use clap::ValueEnum;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use transformer_lite::unstable::backend::isa::Isa;
use transformer_lite::unstable::backend::{ImageUse, OpenOptions, Priority, ReplayMode};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::executor::WeightSource;
use transformer_lite::unstable::files::kind::check_file;
use transformer_lite::unstable::files::read::{MAX_TEXT_FILE, read_given};
use transformer_lite::unstable::files::temporary;
use transformer_lite::unstable::graph::Graph;
use transformer_lite::unstable::graph::pass::Pipeline;
use transformer_lite::unstable::graph::quantization::quantized_node;
use transformer_lite::unstable::limits::Limits;
use transformer_lite::unstable::llm::engine::PADDING;
use transformer_lite::unstable::llm::load::{Activations, KvType, LoadOptions, PADDINGS};
use transformer_lite::unstable::placement::{BackendChoice, DeviceOnly, Placement};
use transformer_lite::unstable::quant::fixed::Arithmetic;
use transformer_lite::unstable::tensor::DType;

/// Heading of the options about where and how a model runs.
pub const EXECUTION: &str = "Execution";
/// Heading of the options for experts, which `-h` does not show.
pub const ADVANCED: &str = "Advanced";

/// Help of the argument MODEL, in `-h`.
pub const MODEL: &str = "Model folder, .gguf file, hf:OWNER/REPO, or name from `tlite list`";
/// The same in `--help`.
pub const MODEL_LONG: &str = "The model: a folder with model.onnx, a .gguf file, a Hugging Face checkpoint folder, \
                              hf:OWNER/REPO[:FILE|QUANT], or a name that `tlite list` prints";
/// Help of the option `--model`.
pub const MODEL_OPTION: &str = "Same as the argument MODEL";

/// The model of a command, as an argument or with `-m`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ModelArg {
    #[arg(
        help = MODEL,
        long_help = MODEL_LONG,
        required_unless_present = "model_option",
        conflicts_with = "model_option"
    )]
    model: Option<PathBuf>,
    #[arg(help = MODEL_OPTION, id = "model_option", short = 'm', long = "model", value_name = "MODEL")]
    option: Option<PathBuf>,
}

impl ModelArg {
    /// The model as it was given. A usage error without one, which the parser reports first.
    pub fn given(&self) -> Result<&Path> {
        let given = self.option.as_deref().or(self.model.as_deref());
        given.ok_or_else(|| Error::usage("MODEL", "no model is given"))
    }
}

/// The first option that is given.
pub fn first_given(options: &[(&'static str, bool)]) -> Option<&'static str> {
    let first = options.iter().find(|(_, given)| *given);
    first.map(|(option, _)| *option)
}

/// How much a command prints beside its result.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Verbosity {
    /// Hide notes and statistics
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Show more notes and all statistics
    #[arg(short, long)]
    pub verbose: bool,
}

impl Verbosity {
    /// Sets what this process prints from now on. With `json` there are no figures: the object has
    /// them.
    pub fn apply(self, json: bool) {
        let level = match self {
            Self { quiet: true, .. } => Level::Quiet,
            Self { verbose: true, .. } => Level::Verbose,
            _ => Level::Normal,
        };
        output::set_level(level, !json);
    }
}

fn slice_ms(text: &str) -> Result<u32, String> {
    whole(text, 0, 10_000)
}

/// Where a model runs.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = EXECUTION)]
pub struct DeviceOptions {
    /// Backend to run on
    #[arg(long, value_parser = choices::backend(), default_value = "auto", value_name = "NAME")]
    pub backend: BackendChoice,
    /// Device whose name contains TEXT
    ///
    /// `cpu` is the `cpu` backend. Append #2 for the second device that matches. `tlite devices`
    /// lists the devices. A GPU that a driver emulates on the CPU is used only if --backend names
    /// its backend.
    #[arg(long, value_name = "TEXT")]
    pub device: Option<String>,
    /// Scheduling priority, on drivers that support it [default: low on GPUs that share the host's
    /// memory, else the driver's]
    #[arg(long, value_parser = choices::priority(), value_name = "NAME", hide_short_help = true, help_heading = ADVANCED)]
    pub priority: Option<Priority>,
    /// Compiled kernels of earlier runs.
    #[command(flatten)]
    pub cache: CacheOptions,
    /// How repeated commands, such as decoding steps, are submitted to an OpenCL device
    #[arg(long, value_parser = choices::recording(), default_value = "auto", value_name = "WAY", hide_short_help = true, help_heading = ADVANCED)]
    pub recording: ReplayMode,
    /// How matmuls read activations on an OpenCL device
    #[arg(long, value_parser = choices::images(), default_value = "auto", value_name = "KIND", hide_short_help = true, help_heading = ADVANCED)]
    pub images: ImageUse,
    /// Maximum time in milliseconds that queued work occupies an OpenCL device before other
    /// programs get a turn; 0 means no limit [default: 8 on GPUs that share the host's memory, else
    /// 0]
    #[arg(long, value_name = "MS", value_parser = slice_ms, hide_short_help = true, help_heading = ADVANCED)]
    pub slice_ms: Option<u32>,
    /// Threads of the `cpu` backend [default: all cores that the process may use]
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = ADVANCED)]
    pub threads: Option<usize>,
    /// Instruction set of the `cpu` backend, for comparison [default: the best that the processor
    /// supports]
    #[arg(long, value_parser = choices::isa(), value_name = "NAME", hide_short_help = true, help_heading = ADVANCED)]
    pub cpu_isa: Option<Isa>,
    /// What the model may consume.
    #[command(flatten)]
    pub limits: LimitOptions,
}

/// Limits on what a model may consume.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LimitOptions {
    /// Limits on what the model may consume, such as `memory=4G,time=30s`
    ///
    /// A list of NAME=VALUE, separated by commas. Names and defaults: memory (bytes of tensors in
    /// host memory and of buffers of `cpu`; half of the machine's), time (of loading, of a run,
    /// and of each token or part of a prompt, such as 30s or 500ms; unlimited), iterations (of all
    /// loops in a run; 1M), tokenizer (bytes of tokenizer.json; 256M), template-steps
    /// (instructions of the chat template; 5000000), template-output (bytes of a rendered chat
    /// template; 16M), files (map or read: whether files are mapped or copied into memory, so that
    /// other programs may change them; map). K, M and G are powers of 1024.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true, hide_short_help = true, help_heading = ADVANCED)]
    pub limits: Limits,
}

impl DeviceOptions {
    /// The options as the library takes them.
    pub fn placement(&self) -> Placement {
        Placement {
            backend: self.backend,
            options: OpenOptions {
                priority: self.priority,
                cache: self.cache.store(),
                recording: self.recording,
                images: self.images,
                slice_ms: self.slice_ms,
                threads: self.threads,
                isa: self.cpu_isa,
                ..OpenOptions::of(self.device.as_deref())
            },
        }
    }

    /// Storage type of activations, if `float` is given. A usage error for f16 on the
    /// interpreter, which keeps the model's types.
    pub fn storage_type(&self, float: Option<DType>) -> Result<Option<DType>> {
        match (float, self.backend) {
            (Some(DType::F16), BackendChoice::Reference) => Err(DeviceOnly::F16.refusal()),
            _ => Ok(float),
        }
    }
}

/// Notes that `--float f16` has no effect when `auto` chose the interpreter.
pub fn note_unused(float: Option<DType>) {
    if float == Some(DType::F16) {
        note(&DeviceOnly::F16.note().to_string());
    }
}

/// How quantized operators are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Integer {
    /// 8-bit integers, rescaled in floats as ONNX specifies.
    Float,
    /// Integers only, as TensorFlow Lite's reference kernels compute.
    Fixed,
    /// Floats between conversions; slow, for comparison.
    Off,
}

/// The arithmetic of quantized models.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct IntegerOption {
    /// Arithmetic of operators between 8-bit values in quantized models [default: float]
    #[arg(long, value_enum, value_name = "TYPE", hide_short_help = true)]
    integer: Option<Integer>,
}

impl IntegerOption {
    pub fn arithmetic(self) -> Option<Arithmetic> {
        match self.integer {
            None | Some(Integer::Float) => Some(Arithmetic::Float),
            Some(Integer::Fixed) => Some(Arithmetic::Fixed),
            Some(Integer::Off) => None,
        }
    }

    /// Notes that the option has no effect on a float model.
    pub fn note_unused(self, graph: &Graph) {
        if self.integer.is_some() && quantized_node(graph).is_none() {
            let what = "--integer has no effect: the model has no 8-bit operators";
            note(what);
        }
    }
}

/// Options that find which graph pass breaks or speeds up a model.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Passes")]
pub struct PassOptions {
    /// Skip these graph passes; an unknown name prints the list of passes
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', hide_short_help = true)]
    pub skip_pass: Vec<String>,
    /// Stop after N rewrites of all passes together, to bisect a wrong result
    #[arg(long, value_name = "N", value_parser = from_zero::<usize>, hide_short_help = true)]
    pub edit_limit: Option<usize>,
}

impl PassOptions {
    /// `pipeline` with the options applied.
    pub fn apply(&self, mut pipeline: Pipeline) -> Result<Pipeline> {
        let known: Vec<&str> = pipeline.passes.iter().map(|p| p.name).collect();
        if let Some(name) = self.skip_pass.iter().find(|n| !known.contains(&n.as_str())) {
            let what = format!(
                "no pass is called \"{name}\"; expected one of {}",
                known.join(", ")
            );
            return Err(Error::usage("--skip-pass", what));
        }
        let names: Vec<&str> = self.skip_pass.iter().map(String::as_str).collect();
        pipeline = pipeline.without(&names);
        pipeline.edit_limit = self.edit_limit.unwrap_or(pipeline.edit_limit);
        Ok(pipeline)
    }
}

/// Types of activations and KV cache of a decoder.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Precision {
    /// Storage of activations and KV cache on a device [default: f16 on GPUs; f32, with a cache in
    /// f16, on `cpu`; f32 on other CPUs or if the model quantizes at run time]
    #[arg(long, value_parser = choices::float(), value_name = "TYPE", hide_short_help = true, help_heading = EXECUTION)]
    pub float: Option<DType>,
    /// Storage of the KV cache on a device
    #[arg(
        long,
        value_parser = choices::kv(),
        default_value = "float",
        value_name = "TYPE",
        hide_short_help = true,
        help_heading = EXECUTION
    )]
    pub kv: KvType,
    /// Precision of activations in matmuls with 4-bit and 8-bit weights, on a device
    #[arg(
        long,
        value_parser = choices::activations(),
        default_value = "auto",
        value_name = "TYPE",
        hide_short_help = true,
        help_heading = EXECUTION
    )]
    pub act: Activations,
}

/// Options of every command that executes a decoder.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = EXECUTION)]
pub struct ExecOptions {
    /// Backend and device.
    #[command(flatten)]
    pub on: DeviceOptions,
    /// Context length in tokens [default: up to 4096]
    ///
    /// The default is the length that the model was made for, at most 4096.
    #[arg(short, long, value_name = "N", value_parser = from_one, help_heading = EXECUTION)]
    pub context: Option<NonZeroUsize>,
    #[command(flatten)]
    pub precision: Precision,
    /// Round the attended length of each decoding step up to a multiple of N (32 to 256)
    #[arg(
        long,
        value_name = "N",
        default_value_t = PADDING,
        value_parser = padding,
        hide_short_help = true,
        help_heading = ADVANCED
    )]
    pub padding: usize,
}

impl ExecOptions {
    /// The options as the library takes them, for runs that read all logits and use no drafts.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions {
            place: self.on.placement(),
            context: self.context.map(NonZeroUsize::get),
            float: self.precision.float,
            kv: self.precision.kv,
            act: self.precision.act,
            padding: self.padding,
            drafts: 0,
            greedy: false,
            candidates: false,
            weights: WeightSource::Files,
            limits: self.on.limits.limits.clone(),
        }
    }
}

pub fn padding(text: &str) -> Result<usize, String> {
    whole(text, *PADDINGS.start(), *PADDINGS.end())
}

/// Parses a whole number of at least 1.
pub fn from_one(text: &str) -> Result<NonZeroUsize, String> {
    whole(text, NonZeroUsize::MIN, NonZeroUsize::MAX)
}

/// Parses a whole number of at least 0.
pub fn from_zero<T: Whole>(text: &str) -> Result<T, String> {
    whole(text, T::MIN, T::MAX)
}

/// Parses a whole number in a range. The error names the range.
pub fn whole<T: Whole>(text: &str, from: T, to: T) -> Result<T, String> {
    let value = text.parse().ok().filter(|n| (from..=to).contains(n));
    // The largest number of the type matters only to those who ask for more.
    let more = text.bytes().all(|b| b.is_ascii_digit())
        && text.bytes().any(|b| b != b'0')
        && text.parse::<T>().is_err();
    value.ok_or_else(|| match more || to < T::MAX {
        true => format!("must be a whole number from {from} to {to}"),
        false => format!("must be a whole number of at least {from}"),
    })
}

/// A type of whole numbers from 0 or 1 on.
pub trait Whole: FromStr + PartialOrd + Copy + std::fmt::Display {
    /// The smallest of them.
    const MIN: Self;
    /// The largest of them.
    const MAX: Self;
}

macro_rules! whole {
    ($($ty:ty),*) => {
        $(impl Whole for $ty {
            const MIN: Self = Self::MIN;
            const MAX: Self = Self::MAX;
        })*
    };
}

whole!(u32, u64, usize, NonZeroU64, NonZeroUsize);

/// As [`check_writable`], for a report. A usage error also if something with this name exists, or
/// if it would become a part of one of `others`: files or folders, with what they are.
pub fn check_report(option: &str, path: &Path, others: &[(&Path, &str)]) -> Result<()> {
    check_writable(option, path)?;
    let report = real(path);
    for (whole, name) in others {
        if report.starts_with(real(whole)) {
            let what = format!("{} is part of {name}; choose another path", path.display());
            return Err(Error::usage(option, what));
        }
    }
    if path.symlink_metadata().is_ok() {
        let what = format!("{} exists; delete it or choose another path", path.display());
        return Err(Error::usage(option, what));
    }
    Ok(())
}

/// Whether two paths name the same file, which need not exist.
pub fn is_same(a: &Path, b: &Path) -> bool {
    real(a) == real(b)
}

/// The absolute path without links, `.` and `..`; `path` itself if its folder does not exist.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
        let joined = folder.ok().zip(path.file_name()).map(|(f, name)| f.join(name));
        joined.unwrap_or_else(|| path.to_owned())
    })
}

/// A usage error if the file that `option` names cannot be written; called before any work.
pub fn check_writable(option: &str, path: &Path) -> Result<()> {
    let refused = |what: String| Err(Error::usage(option, format!("{}: {what}", path.display())));
    if path == Path::new("-") {
        return refused(
            "standard output is for the report; expected a file (./- for a file called -)".to_owned(),
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
    match temporary::create(folder, 0o600) {
        Ok(_removed) => Ok(()),
        Err(e) => refused(format!("cannot be written: {e}")),
    }
}

/// The text of the file or pipe that `option` names. A usage error if it does not exist, is too
/// large or is not UTF-8.
pub fn read_text(option: &str, path: &Path) -> Result<String> {
    if path.is_dir() || !path.exists() {
        check_file(option, path)?;
    }
    let bytes = read_given(path, MAX_TEXT_FILE).map_err(|e| in_file_of(option, e))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::usage(option, format!("{}: not UTF-8 at byte {at}", path.display()))
    })
}

/// A usage error if the `tokens` that `option` asks for exceed `context`.
pub fn check_fits(option: &str, tokens: usize, context: usize) -> Result<()> {
    if tokens <= context {
        return Ok(());
    }
    Err(Error::usage(
        option,
        format!("{tokens} tokens do not fit in the context of {context}; raise --context"),
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
