//! The methods of `tlite quantize`, and the text that some of them learn from.

use super::load::{load_watching, open_folder};
use super::options::{DeviceOptions, ExecOptions, Kv, from_one};
use super::perplexity::{encode, read_text, window};
use crate::error::{Error, Result};
use crate::graph::onnx::import;
use crate::graph::onnx::quantize::{Methods, Options};
use crate::graph::products::Products;
use crate::llm::Tokenizer;
use crate::llm::calibrate::{Calibration, Compensate, Progress, Weighted};
use crate::llm::engine::PADDING;
use crate::quant::Integers;
use indicatif::ProgressBar;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// What a method makes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learning {
    /// It looks at weights only.
    Nothing,
    /// The same, and it makes integers.
    Integers,
    /// With a text, it weighs the errors of weights by their inputs' squares.
    Weighs,
    /// It compensates errors, by the moments of the inputs.
    Compensates,
    /// It scales weights, by the moments of the inputs.
    Scales,
}

/// Options of the methods that look at what the model computes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Calibration")]
pub struct CalibrationOptions {
    /// Text on which the inputs of weights are looked at, a file in UTF-8: like what the model is to be used for, and not
    /// what it is measured with
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Use the first N tokens of the text
    #[arg(long, value_name = "N", default_value = "8192", value_parser = from_one, allow_negative_numbers = true)]
    calibration_tokens: NonZeroUsize,
    /// Where the model runs over the text.
    #[command(flatten)]
    on: DeviceOptions,
}

/// Calls `work` with the methods that `learning` means for the weights of the model in the folder `model`. Usage errors: a
/// calibration that is missing or of no use to the method, a model that is no decoder.
pub fn with_methods<T>(
    learning: Learning,
    given: &CalibrationOptions,
    model: &Path,
    options: &Options,
    bar: &ProgressBar,
    work: &mut dyn FnMut(&dyn Methods) -> Result<T>,
) -> Result<T> {
    let file = match (&given.calibration, learning) {
        (Some(_), Learning::Nothing | Learning::Integers) => {
            return Err(Error::usage("--calibration", "this method looks at weights only"));
        }
        (None, Learning::Integers) => return work(&Integers),
        (None, Learning::Compensates | Learning::Scales) => {
            let what = "gptq and awq need a text to run the model on";
            return Err(Error::usage("--calibration", what));
        }
        (None, _) => return work(&options.method),
        (Some(file), _) => file,
    };
    let text = read_text("--calibration", file)?;
    let folder = open_folder(model, &["tokenizer.json", "model.onnx"])?;
    let text = encode(&Tokenizer::load(folder.dir())?, &text)?;
    let window = window(&[&folder], None)?;
    let exec = ExecOptions {
        on: given.on.clone(),
        context: NonZeroUsize::new(window),
        float: None,
        kv: Kv::F16,
        padding: PADDING,
    };
    let open = |names: &[String]| load_watching(&folder, &exec, names);
    let progress = |p: Progress| {
        bar.set_message(format!("calibration, window {} of {}", p.done, p.total));
    };
    let limit = given.calibration_tokens.get();
    let calibration = Calibration::new(&text, window, limit, &open, &progress)?;
    let graph = import(&folder.onnx())?;
    let products = Products::of(&graph);
    match learning {
        Learning::Compensates => work(&Compensate::new(&calibration, &products, options.method)),
        Learning::Scales => work(&Weighted::scaled(&calibration, &products, options)?),
        Learning::Nothing | Learning::Integers | Learning::Weighs => {
            work(&Weighted::new(&calibration, &products, options.method)?)
        }
    }
}
