//! `tlite pull`.

use super::interrupt::Interrupt;
use super::model::View;
use super::output::print_report;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::fmt::size_text;
use transformer_lite_convert::models::ModelStore;
use transformer_lite_convert::models::hub::{Hub, Spec};

/// Download a model from the Hugging Face Hub
///
/// Files go to the hub's own cache, where other tools find them too, and are converted into the
/// models folder. An interrupted download resumes. Without FILE, tlite picks a GGUF file,
/// preferably with 4-bit weights; if there is none, it uses the safetensors files.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tlite pull [OPTIONS] OWNER/REPO[:FILE|QUANT]",
    after_help = "\
Examples:
  tlite pull bartowski/SmolLM2-135M-Instruct-GGUF
  tlite pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q8_0.gguf
  HF_TOKEN=hf_... tlite pull meta-llama/Llama-3.2-1B-Instruct"
)]
pub struct Args {
    /// Repository on the Hugging Face Hub, optionally with one of its GGUF files
    #[arg(value_name = "OWNER/REPO[:FILE|QUANT]")]
    model: String,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    let spec: Spec = args.model.parse()?;
    let store = ModelStore::open_default()?;
    let mut view = View::new(interrupt);
    let entry = store.pull(&Hub::from_env()?, &spec, true, &mut |event| view.show(event))?;
    drop(view);
    let (name, manifest) = (entry.name(), entry.manifest());
    let line = || {
        format!(
            "{name}: {}, {:.1} M weights of {:.1} bits, {}\nTry: tlite chat {name}\n",
            manifest.architecture,
            manifest.parameters as f64 / 1e6,
            manifest.bits,
            size_text(entry.bytes()),
        )
    };
    print_report(args.json, &super::list::Row::new(&entry), line)
}
