//! One place where commands get a model that can run.

use super::options::ExecOptions;
use crate::error::{Error, Result, Stage};
use crate::llm::Model;
use std::path::Path;

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

/// Loads `model.onnx` of `dir` for the device that `options` name. Usage errors: no such file, no such
/// device, a context that the model does not have.
pub fn load(dir: &Path, options: &ExecOptions) -> Result<LoadedModel> {
    let graph = dir.join("model.onnx");
    if !graph.is_file() {
        return Err(Error::usage(
            "MODEL",
            format!("there is no file {}", graph.display()),
        ));
    }
    let what = format!(
        "{}: this build has no engine for backend {}",
        graph.display(),
        options.backend
    );
    Err(Error::other(Stage::Plan, what))
}
