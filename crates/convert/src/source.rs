//! Converts what a user names: a GGUF file or the folder of a checkpoint.

use crate::checkpoint::{self, Progress, Summary};
use crate::gguf;
use crate::new_folder::{CONVERT, NewFolder};
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::kind::not_a_file;
use transformer_lite::unstable::files::read::read_config;

/// Converts the GGUF file or checkpoint folder `path` to the new folder `output`. With `float`, the
/// quantized weights of a GGUF file become `f32`; otherwise they keep their bits. `begin` gets the
/// temporary folder, which whoever ends the process before the call returns may remove.
///
/// Errors as of [`gguf::convert`] and [`checkpoint::folder::convert`]. Usage errors for the
/// argument `name`: no such file or folder, a model folder, a folder without `config.json`.
pub fn convert(
    name: &str,
    path: &Path,
    output: &Path,
    float: bool,
    begin: &mut dyn FnMut(&Path),
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let folder = path.is_dir();
    check(name, path, folder)?;
    if folder && float && is_quantized(path) {
        let what = "applies to GGUF files only; GPTQ and AWQ weights keep their bits (`tlite dequantize` can convert them afterwards)";
        return Err(Error::usage("--float", what));
    }
    let new = NewFolder::create(output, CONVERT)?;
    begin(new.temporary());
    let summary = match folder {
        true => checkpoint::folder::convert_into(path, new.path(), progress),
        false => gguf::convert_into(path, new.path(), !float, progress),
    }?;
    new.commit()?;
    Ok(summary)
}

fn check(name: &str, path: &Path, folder: bool) -> Result<()> {
    let place = path.display();
    let what = if folder && path.join("model.onnx").is_file() {
        format!("{place} is a model folder already (it has model.onnx); nothing to convert")
    } else if folder && !path.join("config.json").is_file() {
        format!(
            "{place} has no config.json; expected a folder with config.json and .safetensors files, or a GGUF file"
        )
    } else if folder || path.is_file() {
        return Ok(());
    } else if path.exists() {
        not_a_file(path)
    } else {
        format!("there is no file or folder {place}")
    };
    Err(Error::usage(name, what))
}

/// True for a checkpoint whose `config.json` says that its weights are quantized.
fn is_quantized(folder: &Path) -> bool {
    let text = read_config(&folder.join("config.json")).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    config.get("quantization_config").is_some_and(|q| !q.is_null())
}
