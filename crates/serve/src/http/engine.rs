//! Models, loaded when they are needed.

use crate::wire::{ApiError, Model};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use transformer_lite::{Batcher, ModelFolder, Result};

/// A loaded model.
#[derive(Debug)]
pub struct Engine {
    /// Answers requests.
    pub batcher: Batcher,
    /// The model's folder.
    pub folder: ModelFolder,
}

impl Engine {
    /// What conversions need.
    pub(super) fn model(&self) -> Model<'_> {
        Model {
            folder: &self.folder,
            codec: self.batcher.codec(),
        }
    }
}

/// A model that a server lists.
pub struct ModelSource {
    /// Its name in requests.
    pub id: String,
    /// Loads it. Called again after it was unloaded, or if an attempt failed.
    pub load: Box<dyn Fn() -> Result<Engine> + Send + Sync>,
    /// Describes it in JSON, as `tlite inspect --json` does; `None` if that is not possible.
    pub report: Option<Box<dyn Fn() -> Result<String> + Send + Sync>>,
}

impl fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelSource {:?}", self.id)
    }
}

struct Slot {
    source: Arc<ModelSource>,
    /// Taken while the model is loaded, so that it is loaded once.
    engine: tokio::sync::Mutex<Option<Arc<Engine>>>,
    used: Mutex<Instant>,
}

/// The models of a server.
pub(super) struct Models {
    slots: Vec<Slot>,
    pub created: u64,
}

impl Models {
    pub fn new(sources: Vec<ModelSource>) -> Self {
        let slot = |source| Slot {
            source: Arc::new(source),
            engine: tokio::sync::Mutex::new(None),
            used: Mutex::new(Instant::now()),
        };
        Self {
            slots: sources.into_iter().map(slot).collect(),
            created: super::now(),
        }
    }

    pub fn names(&self) -> Vec<String> {
        self.slots.iter().map(|slot| slot.source.id.clone()).collect()
    }

    fn slot(&self, name: Option<&str>) -> std::result::Result<&Slot, ApiError> {
        let slot = match name {
            Some(name) => self.slots.iter().find(|slot| slot.source.id == name),
            None => self.slots.first(),
        };
        slot.ok_or_else(|| ApiError::no_model(name.unwrap_or_default(), &self.names()))
    }

    /// The source of the model `name`, or of the first one.
    pub fn source(&self, name: Option<&str>) -> std::result::Result<Arc<ModelSource>, ApiError> {
        Ok(self.slot(name)?.source.clone())
    }

    /// The model `name`, or the first one; loaded if it is not.
    pub async fn get(&self, name: Option<&str>) -> std::result::Result<(String, Arc<Engine>), ApiError> {
        let slot = self.slot(name)?;
        *slot.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let mut engine = slot.engine.lock().await;
        if let Some(engine) = &*engine {
            return Ok((slot.source.id.clone(), engine.clone()));
        }
        let source = slot.source.clone();
        let loaded = super::blocking(move || {
            (source.load)()
                .map_err(|e| ApiError::new(503, format!("cannot load {}: {}", source.id, e.chain())))
        });
        let loaded = Arc::new(loaded.await?);
        *engine = Some(loaded.clone());
        Ok((slot.source.id.clone(), loaded))
    }

    /// The models that are loaded and not being loaded now.
    pub fn loaded(&self) -> Vec<(String, Arc<Engine>)> {
        let loaded = |slot: &Slot| {
            let engine = slot.engine.try_lock().ok()?.clone()?;
            Some((slot.source.id.clone(), engine))
        };
        self.slots.iter().filter_map(loaded).collect()
    }

    /// Unloads models that no request has used for this long.
    pub async fn unload(&self, idle: Duration) {
        for slot in &self.slots {
            let used = *slot.used.lock().unwrap_or_else(PoisonError::into_inner);
            let mut engine = slot.engine.lock().await;
            let is_free = engine
                .as_ref()
                .is_some_and(|engine| Arc::strong_count(engine) == 1);
            if is_free && used.elapsed() >= idle {
                let engine = engine.take();
                log::info!("unloading {}", slot.source.id);
                // Frees memory of the device.
                let _joined = tokio::task::spawn_blocking(move || drop(engine)).await;
            }
        }
    }
}
