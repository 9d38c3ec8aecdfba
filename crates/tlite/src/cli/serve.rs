//! `tlite serve`.

use super::interrupt::Interrupt;
use super::load::model_folder;
use super::options::{ExecOptions, Verbosity, from_one, from_zero, read_text};
use super::output::{note, warning};
use crate::inspect;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::llm::Codec;
use transformer_lite::unstable::llm::load::LoadOptions;
use transformer_lite::{BatchOptions, Batcher};
use transformer_lite_convert::models::ModelStore;
use transformer_lite_serve::{Address, Engine, ModelSource, ServeOptions, Stop, bind, serve};

const EXAMPLES: &str = "\
Examples:
  tlite serve MODEL
  tlite serve MODEL OTHER --parallel 8
  tlite serve MODEL --host 0.0.0.0 --api-key KEY";

/// Answer requests over HTTP, in the forms of the OpenAI API
///
/// The first model is loaded at once, each other when a request first names it. Without MODEL,
/// these are the models that `tlite list` prints.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Models: folders, .gguf files, hf:OWNER/REPO, or names from `tlite list`
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// The same as MODEL
    #[arg(short, long, value_name = "MODEL", hide_short_help = true)]
    model: Vec<PathBuf>,
    /// Address to listen on: an IP address, localhost, or unix:PATH
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", help_heading = SERVER)]
    host: String,
    /// Port; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080, help_heading = SERVER)]
    port: u16,
    /// Answers that are generated at the same time
    #[arg(long, value_name = "N", value_parser = from_one, default_value = "4", help_heading = SERVER)]
    parallel: NonZeroUsize,
    /// Size of the KV cache in tokens, for all answers together [default: as many as all may need,
    /// if there is memory]
    #[arg(long, value_name = "N", value_parser = from_one, help_heading = SERVER)]
    cache_tokens: Option<NonZeroUsize>,
    /// Answers that may wait; more are refused with status 503
    #[arg(long, value_name = "N", value_parser = from_zero::<usize>, default_value_t = 64, help_heading = SERVER)]
    queue: usize,
    /// Key that clients must send; can be given more than once. Also: `TLITE_API_KEY`
    #[arg(long, value_name = "KEY", help_heading = SERVER)]
    api_key: Vec<String>,
    /// File with keys, one on each line
    #[arg(long, value_name = "FILE", help_heading = SERVER)]
    api_key_file: Option<PathBuf>,
    /// Let other machines send requests without a key
    #[arg(long, help_heading = SERVER)]
    insecure: bool,
    /// Let pages of ORIGIN, such as `http://localhost:3000`, send requests; can be given more than
    /// once
    #[arg(long, value_name = "ORIGIN", hide_short_help = true, help_heading = SERVER)]
    cors: Vec<String>,
    /// Unload a model that has had no request for N seconds
    #[arg(long, value_name = "N", value_parser = from_one, hide_short_help = true, help_heading = SERVER)]
    idle: Option<NonZeroUsize>,
    /// Seconds in which running answers may end after Ctrl-C or SIGTERM
    #[arg(long, value_name = "N", value_parser = from_zero::<u64>, default_value_t = 30, hide_short_help = true, help_heading = SERVER)]
    grace: u64,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    exec: ExecOptions,
}

const SERVER: &str = "Server";
/// The variable with a key.
const KEY: &str = "TLITE_API_KEY";

impl Args {
    fn keys(&self) -> Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        keys.extend(std::env::var(KEY));
        if let Some(path) = &self.api_key_file {
            let text = read_text("--api-key-file", path)?;
            let before = keys.len();
            keys.extend(
                text.lines()
                    .map(str::trim)
                    .filter(|k| !k.is_empty())
                    .map(str::to_owned),
            );
            if keys.len() == before {
                let what = format!("{} has no key; expected one on each line", path.display());
                return Err(Error::usage("--api-key-file", what));
            }
        }
        if keys.iter().any(|key| key.trim().is_empty()) {
            return Err(Error::usage("--api-key", "is empty; expected a key"));
        }
        Ok(keys)
    }

    /// The models, as MODEL or as `tlite list` names them.
    fn models(&self) -> Result<Vec<PathBuf>> {
        let given = [&self.models[..], &self.model].concat();
        if !given.is_empty() {
            return Ok(given);
        }
        let entries = ModelStore::open_default()?.entries()?;
        if entries.is_empty() {
            let what = "no model is given, and `tlite list` has none; write `tlite serve MODEL`";
            return Err(Error::usage("MODEL", what));
        }
        Ok(entries.iter().map(|entry| entry.name().into()).collect())
    }

    fn options(&self, keys: Vec<String>) -> ServeOptions {
        ServeOptions {
            keys,
            origins: self.cors.clone(),
            grace: Duration::from_secs(self.grace),
            idle: self.idle.map(|n| Duration::from_secs(n.get() as u64)),
            ..ServeOptions::default()
        }
    }

    fn load_options(&self) -> LoadOptions {
        LoadOptions {
            candidates: true,
            greedy: true,
            ..self.exec.load_options()
        }
    }

    fn batch(&self) -> BatchOptions {
        BatchOptions {
            sequences: self.parallel.get(),
            tokens: self.cache_tokens.map(NonZeroUsize::get),
            queue: self.queue,
            ..BatchOptions::default()
        }
    }

    /// The model `model` for the server.
    fn source(&self, model: &Path, interrupt: &Interrupt) -> Result<ModelSource> {
        let mut folder = model_folder("MODEL", model, &["tokenizer.json"], interrupt)?;
        folder.limits = self.exec.on.limits.limits.clone();
        let (options, batch) = (self.load_options(), self.batch());
        let last = model.file_name().filter(|_| model.exists());
        let id = last.map_or_else(|| model.to_string_lossy(), |name| name.to_string_lossy());
        let id = id.strip_suffix(".gguf").unwrap_or(&id).to_owned();
        let (path, wanted) = (folder.dir().to_owned(), options.clone());
        let report = move || {
            let request = inspect::Request {
                caps: wanted.place.caps()?,
                context: wanted.context,
                kv: wanted.kv,
                act: wanted.act,
                float: wanted.float,
                limits: wanted.limits.clone(),
                ..inspect::Request::default()
            };
            let text = serde_json::to_string(&inspect::inspect(&path, &request)?);
            text.map_err(|e| Error::caused(Stage::Run, "cannot write the report", e))
        };
        let load = move || {
            let mut codec = Codec::load(folder.clone())?;
            // Messages of clients must not forge turns of others.
            codec.set_plain_messages(true);
            let batcher = Batcher::with_codec(&folder, Arc::new(codec), &options, &batch)?;
            Ok(Engine {
                batcher,
                folder: folder.clone(),
            })
        };
        Ok(ModelSource {
            id,
            load: Box::new(load),
            report: Some(Box::new(report)),
        })
    }
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(false);
    let (keys, models) = (args.keys()?, args.models()?);
    let bound = bind(&args.host, args.port)?;
    let address = bound.address().clone();
    if !address.is_local() && keys.is_empty() && !args.insecure {
        let what = format!(
            "{}: other machines could send requests; give --api-key KEY, or --insecure to allow that",
            args.host
        );
        return Err(Error::usage("--host", what));
    }
    let mut sources = Vec::new();
    for model in models {
        let source = args.source(&model, interrupt)?;
        if sources.iter().any(|other: &ModelSource| other.id == source.id) {
            let what = format!("two models are called {}; rename one of their folders", source.id);
            return Err(Error::usage("MODEL", what));
        }
        sources.push(source);
    }
    let stop = Stop::default();
    let (ended, end) = mpsc::channel::<()>();
    let end = Mutex::new(end);
    let (first, last) = (stop.clone(), stop.clone());
    let grace = Duration::from_secs(args.grace.saturating_add(1));
    let _hint = interrupt.hinting(move || {
        note("stopping; Ctrl-C again ends the server at once");
        first.stop();
    });
    let _parting = interrupt.parting(move || {
        if !last.is_stopped() {
            last.stop();
            let end = end.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let _late = end.recv_timeout(grace);
        }
    });
    let served = serve(bound, sources, args.options(keys), &stop, |engine| {
        print_ready(engine, &address);
    });
    drop(ended);
    served
}

/// What a user needs to know to send requests.
fn print_ready(engine: &Engine, address: &Address) {
    let place = engine.batcher.place();
    let context = engine.batcher.context();
    for text in engine.batcher.notes() {
        warning(&text.to_string());
    }
    note(&format!(
        "{} on {} ({}), context {context} tokens",
        engine.folder.name(),
        place.device,
        place.backend
    ));
    note(&format!("OpenAI base URL: {address}/v1"));
    if matches!(address, Address::Tcp(_)) {
        note(&format!("page: {address}/"));
    }
}
