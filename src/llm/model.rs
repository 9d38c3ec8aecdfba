//! A language model as a folder, ready to generate.

use super::codec::Codec;
use super::folder::ModelFolder;
use super::load::{LoadOptions, Loaded, Loading, PlaceName, Purpose, Used};
use super::session::Session;
use crate::backend::Stats;
use crate::error::Result;
use crate::note::Note;
use std::path::Path;
use std::sync::Arc;

/// A loaded language model: weights, compiled kernels, tokenizer and chat template. It generates in [`Session`]s, which share all of
/// that. Clones are the same model; it and its sessions may be used from any thread.
#[derive(Clone, Debug)]
pub struct Model {
    loaded: Arc<Loaded>,
    codec: Arc<Codec>,
}

impl Model {
    /// Loads the model in the folder `path`: `model.onnx`, `tokenizer.json` and the configuration files that exporters write beside
    /// them. Usage errors: no such folder, a file of it that is missing, no such device, options that do not fit the model. What was
    /// done otherwise than one might expect is logged as a warning, and in [`Model::notes`].
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        let folder = ModelFolder::holding("path", path.as_ref(), &["tokenizer.json"])?;
        let codec = Arc::new(Codec::load(folder.clone())?);
        let model = Self::with_codec(&folder, codec, options, &mut |step| match step {
            Loading::Memory(memory) => log::info!("memory {memory}"),
            Loading::New { kernels, .. } => log::info!("{kernels} kernels are new"),
            Loading::Kernels { ready, all } => log::debug!("kernels: {ready} of {all}"),
        })?;
        for note in model.notes() {
            log::warn!("{note}");
        }
        Ok(model)
    }

    /// As [`Model::load`], with the codec of `folder` at hand and without the log; `hear` as in [`Loaded::new`].
    pub(crate) fn with_codec(
        folder: &ModelFolder,
        codec: Arc<Codec>,
        options: &LoadOptions,
        hear: &mut dyn FnMut(Loading<'_>),
    ) -> Result<Self> {
        let loaded = Arc::new(Loaded::new(folder, options, Purpose::Generation, hear)?);
        Ok(Self { loaded, codec })
    }

    /// A session with an empty KV cache of its own, which takes memory for the whole context and none for weights. Errors: out of memory,
    /// a device that is lost.
    pub fn session(&self) -> Result<Session> {
        Ok(Session::new(self.loaded.model()?, self.codec.clone()))
    }

    /// Tokenizer, chat template and end tokens.
    pub fn codec(&self) -> &Arc<Codec> {
        &self.codec
    }

    /// Where it runs.
    pub fn place(&self) -> PlaceName {
        self.loaded.place()
    }

    /// As [`Loaded::notes`].
    pub fn notes(&self) -> &[Note] {
        self.loaded.notes()
    }

    /// Kernels that were compared with the reference while it was loaded: those of which nothing was known.
    pub fn checked_kernels(&self) -> usize {
        self.loaded.checked_kernels()
    }

    /// As [`Loaded::used`].
    pub fn used(&self) -> Result<Used> {
        self.loaded.used()
    }

    /// Running totals of the device, for all sessions together; `None` on the host.
    pub fn stats(&self) -> Option<Stats> {
        self.loaded.stats()
    }
}
