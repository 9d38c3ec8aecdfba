//! Options and subcommands.

mod distill;

use burn::tensor::{Device, Tensor};
use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transformer_lite_qat::arch::{self, Activation, Architecture, Design};
use transformer_lite_qat::data::{Augmentation, Data, Fit, Normalization};
use transformer_lite_qat::evaluate::{self, Integer, Place};
use transformer_lite_qat::fake::Bits;
use transformer_lite_qat::network::Network;
use transformer_lite_qat::optimizer::Optimizer;
use transformer_lite_qat::run::{self, Files, Progress};
use transformer_lite_qat::task::Task;
use transformer_lite_qat::train::{Configuration, Folding, Measured, Quantizing, Schedule, checksum};
use transformer_lite_qat::{Error, Result};

/// Trains ONNX networks for 8-bit integers
#[derive(Debug, Parser)]
#[command(name = "tlite-qat", version)]
pub struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write a built-in network with random weights
    New(NewArgs),
    /// Train a network in floats
    Train(TrainArgs),
    /// Train a network with fake quantization, and write it with integers
    QuantizeAware(QuantizeArgs),
    /// Measure the accuracy of a float or int8 model in the engine
    Evaluate(EvaluateArgs),
    /// Fine-tune a language model with fake 4-bit weights, and write it with 4-bit weights
    Distill(distill::DistillArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    #[arg(value_enum)]
    architecture: Architecture,
    /// Folder to create
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Number of classes; 1 for a network that finds angles
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole(1, 100_000))]
    classes: u64,
    /// Height and width of pictures [default: 28 for lenet, 96 for ssdlite, 32 for others]
    #[arg(long, value_name = "N", value_parser = whole(1, 4096))]
    resolution: Option<u64>,
    /// Channels of pictures: 1 for grey, 3 for color
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1, 64))]
    channels: u64,
    /// Multiplies the numbers of channels of `mobilenet_v1` and `ssdlite`
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = positive)]
    dm: f64,
    /// Activation function
    #[arg(long, value_enum, default_value = "relu")]
    activation: Activation,
    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Use the weights of this model where names and shapes agree
    #[arg(long, value_name = "MODEL")]
    weights: Option<PathBuf>,
}

/// Options of labelled pictures.
#[derive(Debug, Args)]
#[command(next_help_heading = "Data")]
struct DataArgs {
    /// Folder with IDX files, CSV file, or folder with a folder of pictures for each class
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// What the network learns
    #[arg(long, value_enum, default_value = "classes")]
    task: Task,
    /// What to do with pictures of another size than the model's
    #[arg(long, value_enum, default_value = "exact")]
    fit: Fit,
    /// Subtract this from each channel (0 to 1), one number or one for each
    #[arg(long, value_name = "F,F,F", value_delimiter = ',', default_value = "0")]
    mean: Vec<f32>,
    /// Divide each channel by this after that
    #[arg(long, value_name = "F,F,F", value_delimiter = ',', default_value = "1")]
    std: Vec<f32>,
}

#[derive(Debug, Args)]
struct TrainArgs {
    /// Float model: a folder with `model.onnx`, or an ONNX file
    model: PathBuf,
    /// Folder to create
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    /// Passes over the training pictures
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    epochs: u64,
    /// Pictures of a step
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole(1, 65536))]
    batch: u64,
    /// Learning rate at the start [default: 0.05; quantize-aware: 0.005]
    #[arg(long, value_name = "F", value_parser = positive)]
    learning_rate: Option<f64>,
    /// How the learning rate falls
    #[arg(long, value_enum, default_value = "staircase")]
    schedule: Schedule,
    /// How gradients change weights
    #[arg(long, value_enum, default_value = "sgd")]
    optimizer: Optimizer,
    /// What a step keeps of earlier gradients [default: 0.9; adagrad has none]
    #[arg(long, value_name = "F", value_parser = share)]
    momentum: Option<f64>,
    /// Weight decay
    #[arg(long, value_name = "F", default_value_t = 1e-4, value_parser = share)]
    weight_decay: f64,
    /// Mirror half of the training pictures
    #[arg(long)]
    flip: bool,
    /// Move training pictures by up to N pixels
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole(0, 64))]
    shift: u64,
    /// Seed of the order of pictures and of their changes
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Use only the first N training pictures
    #[arg(long, value_name = "N", value_parser = whole(1, 1 << 40))]
    items: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
}

/// How training runs, which its result does not depend on.
#[derive(Debug, Args)]
struct RunArgs {
    /// Where to train
    #[arg(long, value_enum, default_value = "flex")]
    device: Where,
    /// Delete what an interrupted run to the same folder left
    #[arg(long)]
    restart: bool,
    /// Seconds between checkpoints
    #[arg(long, value_name = "N", default_value_t = 60)]
    checkpoint_every: u64,
    /// Steps between lines of metrics
    #[arg(long, value_name = "N", default_value_t = 50)]
    log_every: u64,
    /// Stop after step N, as if interrupted
    #[arg(long, value_name = "N", hide = true)]
    stop_after: Option<u64>,
    /// Print metrics as JSON lines
    #[arg(long)]
    json: bool,
}

impl RunArgs {
    fn files(&self, output: &Path) -> Files {
        Files {
            output: output.to_owned(),
            restart: self.restart,
            every: Duration::from_secs(self.checkpoint_every),
            log: self.log_every,
            stop_after: self.stop_after,
        }
    }
}

#[derive(Debug, Args)]
struct QuantizeArgs {
    #[command(flatten)]
    train: TrainArgs,
    /// Bits of weights, 4 to 8
    #[arg(long, value_name = "N", default_value = "8")]
    bits_w: Bits,
    /// Bits of activations, 4 to 8; pictures have 8
    #[arg(long, value_name = "N", default_value = "8")]
    bits_a: Bits,
    /// One scale for each weight tensor, instead of one for each output channel
    #[arg(long)]
    per_tensor: bool,
    /// Share of the run after which activations are quantized
    #[arg(long, value_name = "F", default_value_t = 0.2, value_parser = share)]
    act_delay: f64,
    /// What moving averages of ranges keep at each step
    #[arg(long, value_name = "F", default_value_t = 0.99, value_parser = share)]
    ema: f64,
    /// How batch normalization is folded
    #[arg(long, value_enum, default_value = "ema")]
    bn: Folding,
}

#[derive(Debug, Args)]
struct EvaluateArgs {
    /// Float or int8 model: a folder with `model.onnx`, or an ONNX file
    model: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    /// Use only the first N test pictures
    #[arg(long, value_name = "N", value_parser = whole(1, 1 << 40))]
    items: Option<u64>,
    /// Where the engine runs the model
    #[arg(long, value_enum, default_value = "cpu")]
    backend: Place,
    /// How quantized operators are computed
    #[arg(long, value_enum, default_value = "float")]
    integer: Integer,
    /// Compare with the network that `quantize-aware` trained, in its output folder
    #[arg(long, value_name = "FOLDER")]
    trained: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Devices of `burn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// The CPU
    Flex,
    /// An NVIDIA GPU
    #[cfg(feature = "cuda")]
    Cuda,
    /// A GPU through Vulkan, Metal or Direct3D 12
    #[cfg(feature = "wgpu")]
    Wgpu,
}

impl Where {
    /// Errors: the device does not compute.
    fn open(self) -> Result<Device> {
        let made = || match self {
            Self::Flex => Device::flex(),
            #[cfg(feature = "cuda")]
            Self::Cuda => Device::cuda(0),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        };
        // A missing driver or GPU makes burn panic, in a thread of its own.
        let (told, tell) = std::sync::mpsc::channel();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |p| drop(told.send(p.to_string()))));
        let tried = std::panic::catch_unwind(|| {
            let device = made();
            Tensor::<1>::ones([1], &device).into_data();
            device
        });
        std::panic::set_hook(hook);
        tried.map_err(|_| {
            let first = tell.try_iter().next().unwrap_or_default();
            let what = first.lines().last().unwrap_or("it panicked").to_owned();
            Error::option("--device", format!("there is no such device here: {what}"))
        })
    }
}

fn whole(least: u64, most: u64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(least..=most)
}

fn positive(text: &str) -> std::result::Result<f64, String> {
    let v: Option<f64> = text.parse().ok().filter(|v: &f64| v.is_finite() && *v > 0.0);
    v.ok_or_else(|| "expected a number above 0".to_owned())
}

fn share(text: &str) -> std::result::Result<f64, String> {
    let v: Option<f64> = text.parse().ok().filter(|v| (0.0..=1.0).contains(v));
    v.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

fn size(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// An error with its causes.
pub fn message(error: &Error) -> String {
    match error {
        Error::Engine(e) => e.lines().join("\n  caused by: "),
        e => e.to_string(),
    }
}

impl DataArgs {
    /// Mean and deviation for each channel.
    fn normalization(&self, channels: usize) -> Result<Normalization> {
        let all = |name, given: &[f32]| match given {
            [one] => Ok(vec![*one; channels]),
            list if list.len() == channels => Ok(list.to_vec()),
            list => Err(Error::option(
                name,
                format!("expected 1 or {channels} numbers, found {}", list.len()),
            )),
        };
        let (mean, deviation) = (all("--mean", &self.mean)?, all("--std", &self.std)?);
        let finite = |v: &f32| v.is_finite();
        if !mean.iter().all(finite) || !deviation.iter().all(|v| v.is_normal()) {
            return Err(Error::option(
                "--mean, --std",
                "expected numbers, and deviations other than 0",
            ));
        }
        Ok(Normalization { mean, deviation })
    }

    fn load(&self, model: &Path, picture: [usize; 3], output: &[usize]) -> Result<Data> {
        self.task.load(&self.data, model, picture, output, self.fit)
    }
}

/// The file in a model folder.
fn model_file(path: &Path) -> PathBuf {
    if path.is_dir() {
        path.join(run::MODEL)
    } else {
        path.to_owned()
    }
}

/// Runs a subcommand.
pub fn run(command: Command) -> Result<()> {
    match command.action {
        Action::New(args) => new(&args),
        Action::Train(args) => train(&args, None),
        Action::QuantizeAware(args) => {
            #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
            let quantizing = Quantizing {
                weights: args.bits_w,
                activations: args.bits_a,
                per_tensor: args.per_tensor,
                folding: args.bn,
                delay: args.act_delay,
                decay: args.ema as f32,
            };
            train(&args.train, Some(quantizing))
        }
        Action::Evaluate(args) => evaluate(&args),
        Action::Distill(args) => distill::distill(&args),
    }
}

/// Prints a line; a reader that is gone is not an error.
fn print(line: &str) {
    let _closed = writeln!(std::io::stdout(), "{line}");
}

fn new(args: &NewArgs) -> Result<()> {
    let usual = match args.architecture {
        Architecture::Lenet => 28,
        Architecture::Ssdlite => 96,
        _ => 32,
    };
    let design = Design {
        architecture: args.architecture,
        resolution: args.resolution.map_or(usual, size),
        channels: size(args.channels),
        classes: size(args.classes),
        width: args.dm,
        activation: args.activation,
        seed: args.seed,
    };
    let [copied, all] = arch::write(&design, &args.output, args.weights.as_deref())?;
    if args.weights.is_some() {
        print(&format!("{copied} of {all} weights copied"));
    }
    print(&args.output.display().to_string());
    Ok(())
}

/// The momentum of a run; 0 for an optimizer without one, which cannot be given any.
fn momentum(args: &TrainArgs) -> Result<f64> {
    match (args.optimizer.usual_momentum(), args.momentum) {
        (None, Some(found)) => {
            let what = format!("expected none, since adagrad has no momentum, found {found}");
            Err(Error::option("--momentum", what))
        }
        (usual, given) => Ok(given.or(usual).unwrap_or(0.0)),
    }
}

fn train(args: &TrainArgs, quantizing: Option<Quantizing>) -> Result<()> {
    let path = model_file(&args.model);
    let network = Network::open(&path)?;
    let mut data = args.data.load(&path, network.picture, &network.output)?;
    if let Some(n) = args.items {
        data.train.truncate(size(n));
    }
    let bytes = std::fs::read(&path).map_err(|source| Error::Io {
        action: "read",
        path: path.clone(),
        source,
    })?;
    let configuration = Configuration {
        model: checksum(&[&bytes]),
        data: data.checksum(),
        task: args.data.task,
        epochs: args.epochs,
        batch: size(args.batch),
        learning_rate: args
            .learning_rate
            .unwrap_or(if quantizing.is_some() { 0.005 } else { 0.05 }),
        schedule: args.schedule,
        optimizer: args.optimizer,
        momentum: momentum(args)?,
        weight_decay: args.weight_decay,
        seed: args.seed,
        augmentation: Augmentation {
            flip: args.flip,
            shift: size(args.shift),
        },
        normalization: args.data.normalization(network.picture[0])?,
        quantizing,
    };
    let files = args.run.files(&args.output);
    let mut bar = Bar {
        bar: ProgressBar::hidden(),
        json: args.run.json,
        smooth: None,
        metric: args.data.task.rules().metric(),
    };
    let accuracy = run::run(
        &network,
        &data,
        configuration,
        &args.run.device.open()?,
        &files,
        &mut bar,
    )?;
    bar.bar.finish_and_clear();
    if let Some(accuracy) = accuracy.filter(|_| !args.run.json) {
        let pictures = data.test.len();
        print(&format!(
            "{}: {} {:.2} % of {pictures} test pictures",
            args.output.display(),
            bar.metric,
            100.0 * accuracy
        ));
    }
    Ok(())
}

/// A progress bar with loss and accuracy.
struct Bar {
    bar: ProgressBar,
    json: bool,
    /// Smoothed loss and accuracy.
    smooth: Option<(f64, f64)>,
    /// Name of the main number of a score.
    metric: &'static str,
}

impl Progress for Bar {
    fn begin(&mut self, step: u64, steps: u64) {
        self.bar = ProgressBar::new(steps);
        self.bar.set_position(step);
        self.bar.reset_eta();
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} steps, {msg}, {eta} left");
        if let Ok(style) = style {
            self.bar.set_style(style);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of predictions")]
    fn step(&mut self, step: u64, m: &Measured) {
        let new = (f64::from(m.loss), m.right as f64 / m.of.max(1) as f64);
        let mixed = |old: f64, new: f64| 0.95 * old + 0.05 * new;
        let (loss, accuracy) = self
            .smooth
            .map_or(new, |old| (mixed(old.0, new.0), mixed(old.1, new.1)));
        self.smooth = Some((loss, accuracy));
        self.bar.set_position(step);
        self.bar
            .set_message(format!("loss {loss:.3}, accuracy {:.1} %", 100.0 * accuracy));
    }

    fn line(&mut self, line: &Value) {
        if self.json {
            self.bar.suspend(|| print(&line.to_string()));
        } else if let Some(test) = line.get("test_accuracy").and_then(Value::as_f64) {
            let epoch = line.get("epoch").and_then(Value::as_u64).unwrap_or(0);
            let metric = self.metric;
            let text = format!(
                "epoch {epoch}: {metric} {:.2} % of the test pictures",
                100.0 * test
            );
            self.bar.suspend(|| print(&text));
        }
    }
}

fn evaluate(args: &EvaluateArgs) -> Result<()> {
    let path = model_file(&args.model);
    let (picture, output) = evaluate::sizes(&path)?;
    let mut data = args.data.load(&path, picture, &output)?;
    if let Some(n) = args.items {
        data.test.truncate(size(n));
    }
    let normalization = args.data.normalization(picture[0])?;
    let how = (args.backend, args.integer);
    let task = args.data.task;
    let report = evaluate::evaluate(
        &path,
        task,
        &data.test,
        &normalization,
        how,
        args.trained.as_deref(),
    )?;
    if args.json {
        print(&serde_json::json!(report).to_string());
        return Ok(());
    }
    print(&format!("{} of {} pictures", report.score, report.pictures));
    if let Some(t) = report.trained {
        let same = t.same_top1.map(|s| format!(", the same for {:.2} %", 100.0 * s));
        print(&format!(
            "trained network: {} {:.2} %{}",
            task.rules().metric(),
            100.0 * t.trained_score,
            same.as_deref().unwrap_or("")
        ));
        if let Some(steps) = t.most_steps {
            print(&format!("largest difference of outputs: {steps:.1} steps"));
        }
    }
    Ok(())
}
