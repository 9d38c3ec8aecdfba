//! Shared by the model examples: options, files in the cache, models on a device.
#![expect(dead_code, reason = "each example uses a part")]

pub mod draw;

use clap::{Args, ValueEnum};
use image::RgbImage;
use std::path::{Path, PathBuf};
use std::time::Instant;
use transformer_lite::unstable::backend::{self, Backend, BackendKind};
use transformer_lite::unstable::devices;
use transformer_lite::unstable::runner::{Named, Runner, RunnerOptions};
use transformer_lite::unstable::shape::Fact;
use transformer_lite::unstable::vision::picture::{self, PictureOptions, Prepared};
use transformer_lite::{Cancel, DType, HostTensor};

/// Any error returned by an example's `main`.
pub type AnyError = Box<dyn std::error::Error>;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum On {
    /// The first OpenCL device, else the first of wgpu, else the interpreter
    #[default]
    Auto,
    Opencl,
    Wgpu,
    /// The reference interpreter
    #[value(alias = "host")]
    Reference,
}

/// Options of all examples.
#[derive(Debug, Args)]
pub struct Common {
    /// Where the models run
    #[arg(long, value_enum, default_value_t, value_name = "NAME")]
    backend: On,
    /// Device name, or text that the name contains
    #[arg(long, value_name = "TEXT")]
    device: Option<String>,
    /// Store activations in 16 bits
    #[arg(long)]
    f16: bool,
    /// Folder of models and images [default: the cache of the tools, ~/.cache/transformer-lite]
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
}

impl Common {
    fn folder(&self) -> PathBuf {
        let given = self.models.clone();
        let cache = || std::env::var_os("TLITE_CACHE").map(PathBuf::from);
        let usual = || {
            let of_user = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
            of_user.unwrap_or_else(home).join("transformer-lite")
        };
        given.or_else(cache).unwrap_or_else(usual)
    }

    /// The path of a file that `tools/fetch_model.py NAME` downloads; the error gives the command
    /// if it is missing.
    pub fn file(&self, name: &str, file: &str) -> Result<PathBuf, AnyError> {
        let folder = self.folder();
        let path = folder.join(name).join(file);
        if path.is_file() {
            return Ok(path);
        }
        let (path, folder) = (path.display(), folder.display());
        let tool = if name.starts_with("clip-") {
            "tools/export_clip.py".to_owned()
        } else {
            format!("tools/fetch_model.py {name}")
        };
        Err(format!("file not found: {path}; download it with:  python3 {tool} --dir {folder}").into())
    }

    /// The file of an image: the given one, else one from `tools/fetch_model.py pictures`.
    pub fn picture_file(&self, given: Option<&Path>, usual: &str) -> Result<PathBuf, AnyError> {
        given.map_or_else(|| self.file("pictures", usual), |path| Ok(path.to_owned()))
    }

    /// The image in that file.
    pub fn picture(&self, given: Option<&Path>, usual: &str) -> Result<RgbImage, AnyError> {
        Ok(picture::open(&self.picture_file(given, usual)?)?)
    }

    fn open(&self) -> Result<Option<Box<dyn Backend>>, AnyError> {
        let options = backend::OpenOptions::of(self.device.as_deref());
        match self.backend {
            On::Reference => Ok(None),
            On::Opencl => Ok(Some(devices::open(BackendKind::OpenCl, &options)?)),
            On::Wgpu => Ok(Some(devices::open(BackendKind::Wgpu, &options)?)),
            On::Auto => {
                let mut kinds = BackendKind::compiled();
                Ok(kinds.find_map(|kind| devices::open(kind, &options).ok()))
            }
        }
    }

    /// Loads the model of this name and prints where it runs.
    pub fn model(&self, name: &str) -> Result<Model, AnyError> {
        let path = self.file(name, "model.onnx")?;
        let options = RunnerOptions {
            float: if self.f16 { DType::F16 } else { DType::F32 },
            ..RunnerOptions::default()
        };
        let runner = Runner::load(&path, self.open()?, &options)?;
        let place = runner.caps().map_or("the host", |c| c.device.as_str());
        eprintln!("{name}: on {place}");
        Ok(Model { runner, path })
    }
}

/// A model whose first input and output are used.
pub struct Model {
    runner: Runner,
    /// Its file.
    pub path: PathBuf,
}

impl Model {
    /// The sizes of the first input; `None` for dynamic ones.
    pub fn input_sizes(&self) -> Vec<Option<usize>> {
        let dims = self.runner.inputs().next().map(|(_, f)| f.shape.0.clone());
        let size = |d: &transformer_lite::unstable::shape::Dim| d.as_const().and_then(|n| n.try_into().ok());
        dims.unwrap_or_default().iter().map(size).collect()
    }

    /// Name, type and shape of the first input.
    fn input(&self) -> Result<(String, Fact), AnyError> {
        let input = self.runner.inputs().next();
        let (name, fact) = input.ok_or("the model has no input")?;
        Ok((name.to_owned(), fact.clone()))
    }

    /// Reads a picture for the first input.
    pub fn prepare(&self, file: &Path, options: &PictureOptions) -> Result<Prepared, AnyError> {
        Ok(picture::prepare(file, &self.input()?.1, options)?)
    }

    /// Runs with the first input and returns the outputs.
    pub fn outputs(&mut self, input: HostTensor) -> Result<Vec<Named>, AnyError> {
        let start = Instant::now();
        let outputs = self.runner.run(&[(self.input()?.0, input)], &Cancel::default())?;
        log::info!("{:.1} ms", start.elapsed().as_secs_f64() * 1e3);
        Ok(outputs)
    }

    /// Runs with the first input and returns the first output's shape and values.
    pub fn run(&mut self, input: HostTensor) -> Result<(Vec<usize>, Vec<f32>), AnyError> {
        let outputs = self.outputs(input)?;
        let (_, output) = outputs.first().ok_or("the model has no output")?;
        Ok((output.shape().to_vec(), output.to_f32()?.into_owned()))
    }

    /// Metadata that the exporter stored in the file.
    pub fn metadata(&self, key: &str) -> Result<Option<String>, AnyError> {
        let all = transformer_lite::unstable::graph::onnx::describe::Description::read(&self.path)?;
        Ok(all.get(key).map(str::to_owned))
    }
}

/// Softmax of the scores.
pub fn softmax(scores: &[f32]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

/// Writes an image as PNG or JPEG, by file extension.
pub fn save(picture: &RgbImage, file: &Path) -> Result<(), AnyError> {
    picture
        .save(file)
        .map_err(|e| format!("{}: {e}", file.display()))?;
    println!("saved {}", file.display());
    Ok(())
}
