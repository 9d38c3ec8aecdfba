//! What commands do around loading: options, notes on standard error, times.

use super::options::{DeviceOptions, ExecOptions};
use super::output;
use crate::backend::{Backend, Caps};
use crate::error::Result;
use crate::llm::LanguageModel;
use crate::llm::folder::ModelFolder;
use crate::llm::load::{LoadOptions, Loaded, Loading, PlaceName, Purpose};
use crate::placement::{BackendChoice, Opened};
use crate::units::count_text;
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A model ready to run, and where it runs.
pub struct LoadedModel {
    /// The model with an empty cache.
    pub model: Box<dyn LanguageModel>,
    /// Where it runs.
    pub place: PlaceName,
    /// What it is one of.
    pub all: Loaded,
}

/// Opens the device that `options` name; `None` is the host, of which standard error says so where it was not asked for.
pub fn open(options: &DeviceOptions) -> Result<Option<Box<dyn Backend>>> {
    match options.placement().open()? {
        Opened::Device(backend) => Ok(Some(backend)),
        Opened::Host { for_want } => {
            if for_want.is_some() {
                let what = "no device, `tlite devices` says why; running on the host, slowly";
                output::note(&mut std::io::stderr(), what);
            }
            Ok(None)
        }
    }
}

/// Names what decides about the last bits of what a model computes with `options`: device, driver, and storage of activations. Where they leave the choice of a backend
/// open and it is the host, they say so from here on. Errors as for [`open`].
pub fn place(options: &mut ExecOptions) -> Result<String> {
    let float = options.on.storage(options.float)?;
    let float = float.map_or_else(|| "its floats".to_owned(), |f| f.to_string());
    Ok(match open(&options.on)? {
        Some(backend) => {
            let Caps {
                backend,
                device,
                driver,
                ..
            } = backend.caps();
            format!("{backend}, {device}, {driver}, in {float}")
        }
        None => {
            options.on.backend = BackendChoice::Host;
            "the host".to_owned()
        }
    })
}

/// Prints what happened while a model was loaded.
pub fn print_notes(notes: &[impl std::fmt::Display]) {
    for note in notes {
        output::note(&mut std::io::stderr(), &note.to_string());
    }
}

/// Tells now and then, from its making until it is dropped, that work which takes long goes on.
struct Sign {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How often it tells.
const SIGN: Duration = Duration::from_secs(15);

impl Sign {
    fn new(every: Duration, mut tell: impl FnMut(u64) + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let start = Instant::now();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                tell(start.elapsed().as_secs());
            }
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked tells nothing any more.
            let _ended = thread.join();
        }
    }
}

/// Loads the model in `folder`. `hear` and errors as of [`Loaded::new`].
pub fn load(
    folder: &ModelFolder,
    options: &LoadOptions,
    purpose: Purpose<'_>,
    hear: &mut dyn FnMut(Loading<'_>),
) -> Result<Loaded> {
    let loaded = Loaded::new(folder, options, purpose, hear)?;
    print_notes(loaded.notes());
    Ok(loaded)
}

/// As [`load`], with what it takes and a turning sign on standard error meanwhile.
pub fn load_model(folder: &ModelFolder, options: &LoadOptions, purpose: Purpose<'_>) -> Result<LoadedModel> {
    let (loaded, _) = waiting(folder, |hear| load(folder, options, purpose, hear))?;
    Ok(LoadedModel {
        model: loaded.model()?,
        place: loaded.place(),
        all: loaded,
    })
}

/// Runs `work`, which loads the model in `folder`, with a turning sign on standard error, which becomes a bar while kernels are compiled. The memory
/// that it hears of is printed there too.
/// Returns what it gives and the milliseconds that it took.
pub fn waiting<T>(
    folder: &ModelFolder,
    work: impl FnOnce(&mut dyn FnMut(Loading<'_>)) -> Result<T>,
) -> Result<(T, f64)> {
    let start = Instant::now();
    let progress = output::spinner(format!("loading {}", folder.name()));
    let mut sign = None;
    let done = work(&mut |step| match step {
        Loading::Memory(memory) => {
            progress.suspend(|| output::note(&mut std::io::stderr(), &format!("memory {memory}")));
        }
        // A bar tells it on a terminal.
        Loading::New {
            device,
            kernels,
            kept,
        } => {
            if !std::io::stderr().is_terminal() {
                let kept = if kept { "; kept for the next start" } else { "" };
                let kernels = count_text(kernels, "kernel");
                let what = format!("note: compiling and checking {kernels} for {device}{kept}");
                output::note(&mut std::io::stderr(), &what);
                sign = Some(Sign::new(SIGN, |seconds| {
                    let what = format!("note: compiling and checking goes on, {seconds} s so far");
                    output::note(&mut std::io::stderr(), &what);
                }));
            }
        }
        Loading::Kernels { all: 0, .. } => {}
        Loading::Kernels { ready, all } => output::count(&progress, ready, all, "kernels"),
    });
    drop(sign);
    progress.finish_and_clear();
    Ok((done?, start.elapsed().as_secs_f64() * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_tells_until_it_is_dropped() {
        let (told, heard) = channel();
        let sign = Sign::new(Duration::from_millis(1), move |_| {
            let _gone = told.send(());
        });
        heard.recv().unwrap();
        drop(sign);
        // What it sent before is followed by its end.
        while heard.recv().is_ok() {}
    }
}
