//! One place where commands get a model that can run.

use super::options::{BackendChoice, DeviceOptions, ExecOptions, Kv, note_unused};
use super::output;
use crate::backend::{self, Backend, BackendError, BackendKind, Caps, DeviceKind};
use crate::error::{Error, Result, Stage};
use crate::graph::State;
use crate::graph::onnx;
use crate::graph::pass::{GREEDY, Pipeline};
use crate::llm::Model;
use crate::llm::engine::{Decoder, DeviceModel, HostModel, Lengths, Logits, Watch};
use crate::llm::folder::ModelFolder;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A model ready to run, and where it runs.
pub struct LoadedModel {
    /// The model with an empty cache.
    pub model: Box<dyn Model>,
    /// `opencl`, `wgpu` or `host`.
    pub backend: String,
    /// Device name as the driver prints it.
    pub device: String,
    /// Driver name and version.
    pub driver: String,
    /// Time from the call to the model being ready, in milliseconds.
    pub load_ms: f64,
}

/// Opens the device that `options` name; `None` is the host. `auto` takes the first backend with a GPU, else the first with any
/// device, and the host only when there is none, saying so on stderr.
pub fn open(options: &DeviceOptions) -> Result<Option<Box<dyn Backend>>> {
    let device = options.device.as_deref();
    let failed = |e| match e {
        e @ BackendError::NoDevice { .. } => Error::usage("--device", e.to_string()),
        e @ BackendError::NoDriver { .. } => Error::usage("--backend", e.to_string()),
        e => Error::device(Stage::Plan, "opening a device", e),
    };
    match options.backend {
        BackendChoice::Host if device.is_some() => {
            Err(Error::usage("--device", "the host has no devices to choose from"))
        }
        BackendChoice::Host => Ok(None),
        BackendChoice::Opencl => backend::open(BackendKind::OpenCl, device)
            .map(Some)
            .map_err(failed),
        BackendChoice::Wgpu => backend::open(BackendKind::Wgpu, device).map(Some).map_err(failed),
        BackendChoice::Auto => {
            let mut reasons = Vec::new();
            let mut on_cpu = None;
            for kind in backend::COMPILED {
                match backend::open(*kind, device) {
                    Ok(b) if b.caps().kind != DeviceKind::Cpu => return Ok(Some(b)),
                    Ok(b) => on_cpu = on_cpu.or(Some(b)),
                    Err(e) => reasons.push(reason(*kind, &e)),
                }
            }
            if on_cpu.is_some() {
                return Ok(on_cpu);
            }
            match device {
                Some(_) => Err(Error::usage("--device", reasons.join("; "))),
                None => {
                    let what = "no device, `tlite devices` says why; running on the host, slowly";
                    output::note(&mut std::io::stderr(), what);
                    Ok(None)
                }
            }
        }
    }
}

/// Names what decides about the last bits of what a model computes with `options`: device, driver, and storage of activations. Where they leave the choice of a backend
/// open and it is the host, they say so from here on. Errors as for [`load`].
pub fn place(options: &mut ExecOptions) -> Result<String> {
    let float = options.on.storage(options.float)?;
    let float = float.map_or_else(|| "its floats".to_owned(), |f| f.to_string());
    Ok(match open(&options.on)? {
        Some(backend) => {
            let Caps {
                backend,
                device,
                driver,
                ..
            } = backend.caps();
            format!("{backend}, {device}, {driver}, in {float}")
        }
        None => {
            options.on.backend = BackendChoice::Host;
            "the host".to_owned()
        }
    })
}

/// The error of one of several backends.
fn reason(kind: BackendKind, e: &BackendError) -> String {
    match e {
        // It names its backend.
        BackendError::NoDriver { .. } => e.to_string(),
        _ => format!("{kind}: {e}"),
    }
}

/// Capabilities of the device that `options` name, without opening it for work; `None` where they name none.
pub fn caps(options: &DeviceOptions) -> Result<Option<Caps>> {
    let kinds: &[BackendKind] = match options.backend {
        BackendChoice::Auto if options.device.is_none() => return Ok(None),
        BackendChoice::Auto => backend::COMPILED,
        BackendChoice::Opencl => &[BackendKind::OpenCl],
        BackendChoice::Wgpu => &[BackendKind::Wgpu],
        BackendChoice::Host => {
            return Err(Error::usage(
                "--backend",
                "the host has no plan; give opencl or wgpu, or nothing for a device that does not exist",
            ));
        }
    };
    let mut reasons = Vec::new();
    for kind in kinds {
        let found = backend::list(*kind).and_then(|all| backend::pick(all, options.device.as_deref()));
        match found {
            Ok(caps) => return Ok(Some(caps)),
            Err(e) => reasons.push(reason(*kind, &e)),
        }
    }
    Err(Error::usage(
        if options.device.is_some() {
            "--device"
        } else {
            "--backend"
        },
        reasons.join("; "),
    ))
}

/// The folder of a language model, which holds `needed`. Usage errors: no such folder, a file in its place, a file of it that is missing.
pub fn open_folder(path: &Path, needed: &[&str]) -> Result<ModelFolder> {
    if path.is_file() {
        let what = format!(
            "{} is a file; expected a folder with model.onnx and tokenizer.json; {OTHERS}",
            path.display()
        );
        return Err(Error::usage("MODEL", what));
    }
    let folder = ModelFolder::open(path)?;
    match needed.iter().find(|n| !folder.dir().join(n).is_file()) {
        Some(name) => {
            let what = format!(
                "{} has no {name}; expected a folder with model.onnx and tokenizer.json; {OTHERS}",
                path.display()
            );
            Err(Error::usage("MODEL", what))
        }
        None => Ok(folder),
    }
}

/// What there is for models that generate no text.
const OTHERS: &str = "`tlite run` runs ONNX files of any kind";

/// Reads a decoder that tells the values `watched`. A usage error, which says what is missing, for a model that is none.
fn decoder(path: &Path, watched: &[String], pipeline: &Pipeline, logits: Logits) -> Result<Decoder> {
    let graph = onnx::import(path)?;
    Decoder::watching(graph, watched, pipeline, logits).map_err(|e| match e {
        // Once it is read, this stage is the search for the inputs and outputs of a decoder.
        Error::Other {
            stage: Stage::Import,
            what,
            ..
        } => Error::usage(
            "MODEL",
            format!("{} is no decoder: {what}; {OTHERS}", path.display()),
        ),
        e => e,
    })
}

/// The model file of `folder` and the number of tokens to hold.
fn model_and_context(folder: &ModelFolder, options: &ExecOptions) -> Result<(PathBuf, usize)> {
    let path = folder.onnx();
    if !path.is_file() {
        return Err(Error::usage(
            "MODEL",
            format!("there is no file {}", path.display()),
        ));
    }
    let context = folder.context(options.context.map(usize::from))?;
    Ok((path, context))
}

/// What a model is to compute.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Rows of the logits.
    pub logits: Logits,
    /// As [`Lengths::rows`].
    pub rows: usize,
    /// The most likely token is found on the device, where the choice is greedy.
    pub token: bool,
    /// Values in the middle that are told, by name.
    pub watched: &'a [String],
}

impl Wanted<'_> {
    /// These rows of the logits and nothing else.
    pub fn of(logits: Logits) -> Self {
        Self {
            logits,
            rows: 0,
            token: false,
            watched: &[],
        }
    }
}

/// Loads the model for the device that `options` name; `None` where they mean the host. Errors as for [`load`].
pub fn load_device(
    folder: &ModelFolder,
    options: &ExecOptions,
    wanted: &Wanted<'_>,
) -> Result<Option<DeviceModel>> {
    let (path, context) = model_and_context(folder, options)?;
    let float = options.on.storage(options.float)?;
    let mut pipeline = options.pipeline()?;
    let Some(backend) = open(&options.on)? else {
        note_unused(float);
        if options.kv == Kv::Q8 {
            output::note(&mut std::io::stderr(), "note: --kv q8 has no effect on the host");
        }
        return Ok(None);
    };
    pipeline = pipeline.on(backend.caps());
    if wanted.token {
        pipeline.passes.push(GREEDY);
    }
    let mut decoder = decoder(&path, wanted.watched, &pipeline, wanted.logits)?;
    if let Some(float) = float {
        decoder = decoder.stored_in(float);
    }
    let lengths = Lengths {
        padding: options.padding,
        rows: wanted.rows,
        ..Lengths::of(context).on(backend.caps())
    };
    if options.kv == Kv::Q8 {
        let graph = decoder.graph();
        let floats = |s: &&State| graph.fact(s.input).is_ok_and(|f| f.dtype.is_float());
        let kept = graph.states().iter().filter(floats).count();
        if kept > 0 {
            let what = format!(
                "note: {kept} of {} caches keep their floats, which --kv q8 could not change; see RUST_LOG=debug",
                graph.states().len()
            );
            output::note(&mut std::io::stderr(), &what);
        }
    }
    let model = DeviceModel::new(decoder, backend, &lengths)?;
    if let [first, ..] = model.host_steps() {
        let what = format!(
            "{} nodes run on the host at each token, such as {} \"{}\" ({}); see `tlite inspect --nodes`",
            model.host_steps().len(),
            first.work.name(),
            first.name,
            first.why
        );
        output::note(&mut std::io::stderr(), &what);
    }
    Ok(Some(model))
}

/// Loads the model so that it tells the values `watched`, for the device that `options` name. Errors as for [`load`].
pub fn load_watching(
    folder: &ModelFolder,
    options: &ExecOptions,
    watched: &[String],
) -> Result<Box<dyn Watch>> {
    let wanted = Wanted {
        watched,
        ..Wanted::of(Logits::Last)
    };
    if let Some(model) = load_device(folder, options, &wanted)? {
        return Ok(Box::new(model));
    }
    let (path, context) = model_and_context(folder, options)?;
    let decoder = decoder(&path, watched, &Pipeline::host(), Logits::Last)?;
    Ok(Box::new(HostModel::new(decoder, context)?))
}

/// Loads `model.onnx` of `dir`, which is to compute the rows `logits`, for the device that `options` name. Usage errors: no such file, no such
/// device, a context that the model does not have.
pub fn load(dir: &Path, options: &ExecOptions, logits: Logits) -> Result<LoadedModel> {
    load_wanted(dir, options, &Wanted::of(logits))
}

/// As [`load`], for a model that is to compute what is `wanted`.
pub fn load_wanted(dir: &Path, options: &ExecOptions, wanted: &Wanted<'_>) -> Result<LoadedModel> {
    let start = Instant::now();
    let folder = ModelFolder::open(dir)?;
    let since = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    if let Some(model) = load_device(&folder, options, wanted)? {
        let caps = model.caps().clone();
        return Ok(LoadedModel {
            model: Box::new(model),
            backend: caps.backend.to_owned(),
            device: caps.device,
            driver: caps.driver,
            load_ms: since(start),
        });
    }
    let (path, context) = model_and_context(&folder, options)?;
    let decoder = decoder(&path, wanted.watched, &Pipeline::host(), wanted.logits)?;
    Ok(LoadedModel {
        model: Box::new(HostModel::new(decoder, context)?),
        backend: "host".to_owned(),
        device: "interpreter".to_owned(),
        driver: format!("tlite {}", env!("CARGO_PKG_VERSION")),
        load_ms: since(start),
    })
}
