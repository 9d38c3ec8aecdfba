//! The methods of `tlite quantize`, and the calibration text that some of them need.

use super::choices;
use super::load::{load, place};
use super::options::{DeviceOptions, ExecOptions, Precision, from_one, read_text};
use super::perplexity::{encode, window};
use super::quantize::By;
use indicatif::ProgressBar;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::graph::onnx::import;
use transformer_lite::unstable::llm::engine::{Observe, PADDING};
use transformer_lite::unstable::llm::load::Purpose;
use transformer_lite::unstable::llm::{Activations, KvType, ModelFolder, Tokenizer};
use transformer_lite::unstable::quant::Integers;
use transformer_lite::unstable::tensor::DType;
use transformer_lite_convert::calibrate::{
    AwqMethods, Calibration, GptqMethods, Products, Progress, WeightedMethods,
};
use transformer_lite_convert::quantize::{Methods, Options};

/// Number of tokens of a calibration text that are used by default.
const TOKENS: usize = 8192;

/// Options of the methods that run the model over a text.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Calibration")]
pub struct CalibrationOptions {
    /// Data like that of the intended use
    ///
    /// It should differ from your evaluation data. For weights only: a text (UTF-8). For int8: a
    /// folder or file of pictures (.png, .jpg) or .npy files, or a text with a line for each item.
    /// A model with several inputs takes a folder with one folder per item that holds NAME.npy for
    /// each input.
    #[arg(long, value_name = "PATH")]
    pub calibration: Option<PathBuf>,
    /// Use the first N tokens of the text [default: 8192]
    #[arg(long, value_name = "N", value_parser = from_one, hide_short_help = true)]
    calibration_tokens: Option<NonZeroUsize>,
    /// Where the model runs.
    #[command(flatten)]
    pub on: DeviceOptions,
    /// Storage of activations on a device [default: f16 on GPUs; f32 on CPUs or if the model
    /// quantizes at run time]
    #[arg(long, value_parser = choices::float(), value_name = "TYPE", hide_short_help = true)]
    float: Option<DType>,
}

impl CalibrationOptions {
    /// The first given option that applies to weight formats only.
    pub fn of_weights(&self) -> Option<&'static str> {
        let tokens = self.calibration_tokens.map(|_| "--calibration-tokens");
        tokens.or(self.float.map(|_| "--float"))
    }
}

/// Calls `work` with the methods that `by` means for the weights of the model in the folder
/// `model`; the model runs when they are prepared, or later. Usage errors: a calibration text that
/// is missing or that the method cannot use, a model that does not generate text.
pub fn with_methods<T>(
    by: By,
    given: &CalibrationOptions,
    model: &Path,
    options: &Options,
    bar: &ProgressBar,
    work: &mut dyn FnMut(&mut dyn Methods) -> Result<T>,
) -> Result<T> {
    let file = match (&given.calibration, by) {
        (Some(_), By::Rtn | By::Int) => {
            return Err(Error::usage(
                "--calibration",
                "this method takes no calibration text",
            ));
        }
        (None, By::Int) => return work(&mut Integers),
        (None, By::Gptq | By::Awq | By::AwqGptq) => {
            let what = "gptq, awq and awq-gptq need a calibration text; give --calibration FILE";
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
        precision: Precision {
            float: given.float,
            kv: KvType::Float,
            act: Activations::Float,
        },
        padding: PADDING,
    };
    let place = place(&mut exec)?;
    let load_options = exec.load_options();
    let open = |names: &[String]| -> Result<Box<dyn Observe>> {
        Ok(load(&folder, &load_options, Purpose::Watching(names), &mut |_| ())?.model()?)
    };
    let progress = |p: Progress| {
        bar.set_message(format!("calibration, window {} of {}", p.done, p.total));
    };
    let limit = given.calibration_tokens.map_or(TOKENS, NonZeroUsize::get);
    let calibration = Calibration::new(&text, window, limit, &place, &open, &progress)?;
    let graph = import(&folder.onnx())?;
    let products = Products::of(&graph);
    match by {
        By::Gptq => work(&mut GptqMethods::new(&calibration, &products, options.method)),
        By::Awq => work(&mut AwqMethods::new(&calibration, &products, options.method)),
        By::AwqGptq => work(&mut AwqMethods::new(&calibration, &products, options.method).compensated()),
        By::Rtn | By::Mse | By::Mae | By::Mixed | By::Int => {
            work(&mut WeightedMethods::new(&calibration, &products, options.method))
        }
    }
}
