//! The methods of `tlite quantize`, and the text that some of them learn from.

use super::load::{load, place};
use super::options::{DeviceOptions, ExecOptions, Float, from_one, read_text};
use super::perplexity::{encode, window};
use crate::error::{Error, Result};
use crate::graph::onnx::import;
use crate::graph::onnx::quantize::{Methods, Options};
use crate::graph::products::Products;
use crate::llm::calibrate::{AwqMethods, Calibration, GptqMethods, Progress, WeightedMethods};
use crate::llm::engine::{PADDING, Watch};
use crate::llm::load::Purpose;
use crate::llm::{Activations, KvType, ModelFolder, Tokenizer};
use crate::quant::Integers;
use indicatif::ProgressBar;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// What a method makes of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalibratedBy {
    /// Nothing: it looks at weights only.
    Nothing,
    /// Nothing, and it makes integers.
    Integers,
    /// With a text, it weighs the errors of weights by their inputs' mean squares.
    Squares,
    /// GPTQ: it compensates errors, by the Hessians of the inputs.
    Gptq,
    /// AWQ: it scales weights, by the Hessians of the inputs.
    Awq,
    /// Both: scaled weights are rounded with compensation.
    AwqGptq,
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
    /// Storage of activations on a device [default: f16, or f32 where the model quantizes at run time]
    #[arg(long, value_enum, value_name = "TYPE")]
    float: Option<Float>,
}

/// Calls `work` with the methods that `by` means for the weights of the model in the folder `model`; the model runs when they are prepared, or later. Usage
/// errors: a calibration that is missing or of no use to the method, a model that is no decoder.
pub fn with_methods<T>(
    by: CalibratedBy,
    given: &CalibrationOptions,
    model: &Path,
    options: &Options,
    bar: &ProgressBar,
    work: &mut dyn FnMut(&mut dyn Methods) -> Result<T>,
) -> Result<T> {
    let file = match (&given.calibration, by) {
        (Some(_), CalibratedBy::Nothing | CalibratedBy::Integers) => {
            return Err(Error::usage("--calibration", "this method looks at weights only"));
        }
        (None, CalibratedBy::Integers) => return work(&mut Integers),
        (None, CalibratedBy::Gptq | CalibratedBy::Awq | CalibratedBy::AwqGptq) => {
            let what = "gptq, awq and awq-gptq need a text to run the model on";
            return Err(Error::usage("--calibration", what));
        }
        (None, _) => {
            let mut method = options.method;
            return work(&mut method);
        }
        (Some(file), _) => file,
    };
    let text = read_text("--calibration", file)?;
    let folder = ModelFolder::holding("MODEL", model, &["tokenizer.json", "model.onnx"])?;
    let text = encode(&Tokenizer::load(folder.dir())?, &text)?;
    let window = window(&[&folder], None)?;
    let mut exec = ExecOptions {
        on: given.on.clone(),
        context: NonZeroUsize::new(window),
        float: given.float,
        kv: KvType::F16,
        act: Activations::Float,
        padding: PADDING,
    };
    let place = place(&mut exec)?;
    let load_options = exec.load_options();
    let open = |names: &[String]| -> Result<Box<dyn Watch>> {
        Ok(load(&folder, &load_options, Purpose::Watching(names), &mut |_| ())?.model()?)
    };
    let progress = |p: Progress| {
        bar.set_message(format!("calibration, window {} of {}", p.done, p.total));
    };
    let limit = given.calibration_tokens.get();
    let calibration = Calibration::new(&text, window, limit, &place, &open, &progress)?;
    let graph = import(&folder.onnx())?;
    let products = Products::of(&graph);
    match by {
        CalibratedBy::Gptq => work(&mut GptqMethods::new(&calibration, &products, options.method)),
        CalibratedBy::Awq => work(&mut AwqMethods::new(&calibration, &products, options.method)),
        CalibratedBy::AwqGptq => {
            work(&mut AwqMethods::new(&calibration, &products, options.method).compensated())
        }
        CalibratedBy::Nothing | CalibratedBy::Integers | CalibratedBy::Squares => {
            work(&mut WeightedMethods::new(&calibration, &products, options.method))
        }
    }
}
