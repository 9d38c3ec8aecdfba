//! What the examples of models share: options, files in the cache, models on a device.
#![allow(dead_code, reason = "each example uses a part")]

pub mod draw;

use clap::{Args, ValueEnum};
use image::RgbImage;
use std::path::{Path, PathBuf};
use std::time::Instant;
use transformer_lite::backend::{self, Backend, BackendKind};
use transformer_lite::files::picture;
use transformer_lite::runner::{Named, Runner};
use transformer_lite::tensor::{DType, HostTensor};

/// Any error, as an example's `main` returns it.
pub type AnyError = Box<dyn std::error::Error>;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum On {
    /// The first device of OpenCL, else of wgpu, else the host
    #[default]
    Auto,
    Opencl,
    Wgpu,
    Host,
}

/// Options of all examples.
#[derive(Debug, Args)]
pub struct Common {
    /// Where the models run
    #[arg(long, value_enum, default_value_t, value_name = "NAME")]
    backend: On,
    /// Device of this name, or with this text in its name or driver
    #[arg(long, value_name = "TEXT")]
    device: Option<String>,
    /// Store activations in 16 bits
    #[arg(long)]
    f16: bool,
    /// Folder of models and pictures [default: the cache of the tools, ~/.cache/transformer-lite]
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

    /// The path of a file that `tools/fetch_model.py NAME` brings; the error says what to type where it is not there.
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
        Err(format!("there is no {path}; to get it, type:  python3 {tool} --dir {folder}").into())
    }

    /// A picture: the given one, else one of those of `tools/fetch_model.py pictures`.
    pub fn picture(&self, given: Option<&Path>, usual: &str) -> Result<RgbImage, AnyError> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => self.file("pictures", usual)?,
        };
        Ok(picture::open(&path)?)
    }

    fn open(&self) -> Result<Option<Box<dyn Backend>>, AnyError> {
        let options = backend::OpenOptions::of(self.device.as_deref());
        match self.backend {
            On::Host => Ok(None),
            On::Opencl => Ok(Some(backend::open(BackendKind::OpenCl, &options)?)),
            On::Wgpu => Ok(Some(backend::open(BackendKind::Wgpu, &options)?)),
            On::Auto => {
                let mut kinds = backend::COMPILED.iter();
                Ok(kinds.find_map(|kind| backend::open(*kind, &options).ok()))
            }
        }
    }

    /// Loads the model of this name, and says where it runs.
    pub fn model(&self, name: &str) -> Result<Model, AnyError> {
        let path = self.file(name, "model.onnx")?;
        let float = if self.f16 { DType::F16 } else { DType::F32 };
        let runner = Runner::load(&path, self.open()?, float)?;
        let place = runner.caps().map_or("the host", |c| c.device.as_str());
        eprintln!("{name}: on {place}");
        Ok(Model { runner, path })
    }
}

/// A model of one input and one output that matter.
pub struct Model {
    runner: Runner,
    /// Its file.
    pub path: PathBuf,
}

impl Model {
    /// The sizes of the first input; `None` for those that are free.
    pub fn input_sizes(&self) -> Vec<Option<usize>> {
        let dims = self.runner.inputs().next().map(|(_, f)| f.shape.0.clone());
        let size = |d: &transformer_lite::shape::Dim| d.as_const().and_then(|n| n.try_into().ok());
        dims.unwrap_or_default().iter().map(size).collect()
    }

    /// Gives the first input and returns the first output's shape and numbers.
    pub fn run(&mut self, input: HostTensor) -> Result<(Vec<usize>, Vec<f32>), AnyError> {
        let name = self.runner.inputs().next().map(|(name, _)| name.to_owned());
        let given: [Named; 1] = [(name.ok_or("the model has no input")?, input)];
        let start = Instant::now();
        let outputs = self.runner.run(&given)?;
        let (name, output) = outputs.first().ok_or("the model has no output")?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        log::info!("\"{name}\" in {ms:.1} ms");
        Ok((output.shape().to_vec(), output.to_f32()?.into_owned()))
    }

    /// A text that the exporter left in the file.
    pub fn metadata(&self, key: &str) -> Result<Option<String>, AnyError> {
        let all = transformer_lite::graph::onnx::metadata(&self.path)?;
        Ok(all.into_iter().find(|(k, _)| k == key).map(|(_, v)| v))
    }
}

/// Probabilities of scores.
pub fn softmax(scores: &[f32]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

/// Writes a picture, PNG or JPEG by the name of its file.
pub fn save(picture: &RgbImage, file: &Path) -> Result<(), AnyError> {
    picture
        .save(file)
        .map_err(|e| format!("{}: {e}", file.display()))?;
    println!("the picture is in {}", file.display());
    Ok(())
}
