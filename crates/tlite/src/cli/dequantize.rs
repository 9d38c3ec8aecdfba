//! `tlite dequantize`.

use super::interrupt::Interrupt;
use super::output::{advance, byte_bar, put, text_output};
use std::path::PathBuf;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::fmt::size_text;
use transformer_lite::unstable::llm::folder::check_form;
use transformer_lite_convert::new_folder::{DEQUANTIZE, NewFolder};
use transformer_lite_convert::quantize::{Progress, dequantize_into};

/// Convert a quantized model back to 16-bit floats
///
/// Reads a folder that `tlite quantize` or `tlite convert` wrote and writes one with plain 16-bit
/// float weights, which other ONNX tools can run.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite dequantize --output DIR MODEL", after_help = EXAMPLES)]
pub struct Args {
    /// Folder with the quantized model.onnx and its companion files
    model: PathBuf,
    /// Output folder; must be empty or not exist yet
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tlite dequantize MODEL -o float
  tlite dequantize models/qwen-q4 -o models/qwen-f16
  tlite quantize MODEL -o small && tlite dequantize small -o float";

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    check_form("MODEL", &args.model)?;
    let new = NewFolder::create(&args.output, DEQUANTIZE)?;
    let _unfinished = interrupt.scratch(new.temporary());
    let bar = byte_bar();
    let result = dequantize_into(&args.model, new.path(), &mut |p: Progress<'_>| {
        advance(&bar, p.done, p.total, p.tensor);
    });
    bar.finish_and_clear();
    let done = result?;
    new.commit()?;
    let text = format!(
        "{} weights converted to f16, {} -> {}, written to {}\n",
        done.weights,
        size_text(done.bytes_before),
        size_text(done.bytes_after),
        args.output.display()
    );
    put(&mut text_output(), &text)
}
