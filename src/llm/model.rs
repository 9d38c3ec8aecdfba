//! A language model loaded from a folder.

use super::codec::Codec;
use super::folder::ModelFolder;
use super::grammar::Grammar;
use super::load::{LoadOptions, Loaded, Loading, PlaceName, Purpose, Used};
use super::session::Session;
use crate::backend::Stats;
use crate::error::Result;
use crate::note::Note;
use std::path::Path;
use std::sync::Arc;

/// A loaded language model: weights, compiled kernels, tokenizer and chat template. Its
/// [`Session`]s share them. Clones refer to the same model. Models and sessions may be used from
/// any thread.
#[derive(Clone, Debug)]
pub struct Model {
    loaded: Arc<Loaded>,
    codec: Arc<Codec>,
    origin: Arc<Origin>,
}

/// What a model was loaded from.
#[derive(Debug)]
pub(super) struct Origin {
    pub folder: ModelFolder,
    pub options: LoadOptions,
}

impl Model {
    /// Loads the model folder `path`: `model.onnx`, `tokenizer.json` and the configuration files
    /// that exporters write next to them. Usage errors: folder or file not found, no such device,
    /// options that do not fit the model. Notes are logged as warnings and returned by
    /// [`Model::notes`].
    ///
    /// The weight files of the model stay mapped into memory, unless
    /// [`Limits::read_files`](crate::Limits::read_files) is set. As long as the model exists,
    /// neither this process nor another may change or truncate them in place: the weights would
    /// change under it, which is undefined behaviour, or the process would end with SIGBUS.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        let mut log = |ready, all| log::debug!("kernels: {ready} of {all}");
        Self::load_with(path, options, &mut log)
    }

    /// Like [`Model::load`]. `on_progress` receives how many kernels are ready, of how many.
    pub fn load_with(
        path: impl AsRef<Path>,
        options: &LoadOptions,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let mut folder = ModelFolder::holding("path", path.as_ref(), &["tokenizer.json"])?;
        folder.limits = options.limits.clone();
        let codec = Arc::new(Codec::load(folder.clone())?);
        let model = Self::with_codec(&folder, codec, options, &mut |step| match step {
            Loading::Memory(memory) => log::info!("memory {memory}"),
            Loading::New { kernels, .. } => log::info!("{kernels} kernels are new on this device"),
            Loading::Kernels { ready, all } => on_progress(ready, all),
        })?;
        for note in model.notes() {
            log::warn!("{note}");
        }
        Ok(model)
    }

    /// Like [`Model::load`], with a loaded codec and without logging. Progress goes to
    /// `on_progress`, as in [`Loaded::new`].
    pub fn with_codec(
        folder: &ModelFolder,
        codec: Arc<Codec>,
        options: &LoadOptions,
        on_progress: &mut dyn FnMut(Loading<'_>),
    ) -> Result<Self> {
        let loaded = Arc::new(Loaded::new(folder, options, Purpose::Generation, on_progress)?);
        let origin = Arc::new(Origin {
            folder: folder.clone(),
            options: options.clone(),
        });
        Ok(Self {
            loaded,
            codec,
            origin,
        })
    }

    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// A session with its own empty KV cache. It allocates memory for the whole context, but none
    /// for weights. Errors: out of memory, device lost.
    pub fn session(&self) -> Result<Session> {
        Ok(Session::new(self.loaded.model()?, self.codec.clone()))
    }

    /// Tokenizer, chat template and end tokens.
    pub fn codec(&self) -> &Arc<Codec> {
        &self.codec
    }

    /// JSON that matches the schema `text`, for a sampler of this model. Errors as of
    /// [`Grammar::json_schema_with`].
    pub fn json_schema(&self, text: &str) -> Result<Grammar> {
        Grammar::json_schema(text, self.codec.tokenizer(), self.codec.eos())
    }

    /// Where the model runs.
    pub fn place(&self) -> PlaceName {
        self.loaded.place()
    }

    /// Warnings raised while loading, one sentence each.
    pub fn notes(&self) -> &[Note] {
        self.loaded.notes()
    }

    /// Number of kernels validated while loading, because no earlier result was stored.
    pub fn validated_kernels(&self) -> usize {
        self.loaded.validated_kernels()
    }

    /// See [`Loaded::used`].
    pub fn used(&self) -> Result<Used> {
        self.loaded.used()
    }

    /// Running totals of the device over all sessions; `None` for the interpreter.
    pub fn stats(&self) -> Option<Stats> {
        self.loaded.stats()
    }
}
