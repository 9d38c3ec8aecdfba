//! Loading of models and devices, with progress and notes on standard error.

use super::interrupt::Interrupt;
pub use super::model::model_path;
use super::options::{DeviceOptions, ExecOptions};
use super::output::{self, detail, note, warning};
use std::fmt;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use transformer_lite::unstable::backend::Backend;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::fmt::count_text;
use transformer_lite::unstable::llm::LanguageModel;
use transformer_lite::unstable::llm::folder::ModelFolder;
use transformer_lite::unstable::llm::load::{LoadOptions, Loaded, Loading, PlaceName, Purpose};
use transformer_lite::unstable::placement::{BackendChoice, Opened};

/// A model ready to run, and where it runs.
pub struct LoadedModel {
    /// The model with an empty cache.
    pub model: Box<dyn LanguageModel>,
    pub place: PlaceName,
    /// What the model was made from.
    pub all: Loaded,
}

/// The folder of the language model that `option` names as `given`, with the files `needed`. Errors
/// are those of [`model_path`] and [`ModelFolder::holding`].
pub fn model_folder(
    option: &str,
    given: &Path,
    needed: &[&str],
    interrupt: &Interrupt,
) -> Result<ModelFolder> {
    let path = model_path(given, interrupt).map_err(|e| match e {
        Error::Usage { name, what, kind } if name == "model" => Error::usage(option, what).of_kind(kind),
        e => e,
    })?;
    ModelFolder::holding(option, &path, needed)
}

/// Opens the device that `options` name; `None` is the interpreter. A note says so if `auto` chose
/// it.
pub fn open(options: &DeviceOptions) -> Result<Option<Box<dyn Backend>>> {
    match options.placement().open()? {
        Opened::Device(backend) => Ok(Some(backend)),
        Opened::Reference { for_want } => {
            if for_want.is_some() {
                warning(NO_DEVICE);
            }
            Ok(None)
        }
    }
}

/// Names everything that decides about the last bits of what a model computes with `options`:
/// device, driver, and storage of activations. If the backend is left open and it is the
/// interpreter, `options` name it from here on. Errors are those of [`open`].
pub fn place(options: &mut ExecOptions) -> Result<String> {
    let float = options.on.storage_type(options.precision.float)?;
    let float = float.map_or_else(|| "its floats".to_owned(), |f| f.to_string());
    Ok(match open(&options.on)? {
        Some(backend) => {
            let caps = backend.caps();
            format!("{}, {}, {}, in {float}", caps.backend, caps.device, caps.driver)
        }
        None => {
            options.on.backend = BackendChoice::Reference;
            "the host".to_owned()
        }
    })
}

/// Prints the notes of a loaded model.
pub fn print_notes(notes: &[impl fmt::Display]) {
    for text in notes {
        note(&text.to_string());
    }
}

/// Prints the notes of a loaded model and, with `--verbose`, where it runs and how long loading
/// took.
pub fn print_loaded(notes: &[impl fmt::Display], place: &PlaceName, time: LoadTime) {
    print_notes(notes);
    let what = format!("{} on {}, {time}", place.backend, place.device);
    detail(&what);
}

/// Time that loading took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTime {
    /// From the start until the model was ready.
    pub all: Duration,
    /// The part of it in which new kernels were compiled.
    pub compiling: Duration,
}

/// A time as JSON output has it, to the microsecond.
pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

impl fmt::Display for LoadTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loading = self.all.saturating_sub(self.compiling).as_secs_f64();
        write!(f, "loaded in {loading:.1} s")?;
        if !self.compiling.is_zero() {
            let compiling = self.compiling.as_secs_f64();
            write!(f, ", plus {compiling:.1} s to compile kernels")?;
        }
        Ok(())
    }
}

/// Said when `auto` finds no device.
const NO_DEVICE: &str =
    "no device found (see `tlite devices`); running on the reference interpreter, which is slow";

/// How often it reports.
const SIGN: Duration = Duration::from_secs(15);

/// Reports at intervals that long work goes on, until the result is dropped.
fn sign(every: Duration, mut report: impl FnMut(u64) + Send + 'static) -> Sender<()> {
    let (stop, stopped) = channel();
    let start = Instant::now();
    std::thread::spawn(move || {
        while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            report(start.elapsed().as_secs());
        }
    });
    stop
}

/// Loads the model in `folder`. `on_progress` and errors are those of [`Loaded::new`].
pub fn load(
    folder: &ModelFolder,
    options: &LoadOptions,
    purpose: Purpose<'_>,
    on_progress: &mut dyn FnMut(Loading<'_>),
) -> Result<Loaded> {
    let loaded = Loaded::new(folder, options, purpose, on_progress)?;
    print_notes(loaded.notes());
    Ok(loaded)
}

/// As [`load`], with progress on standard error.
pub fn load_model(folder: &ModelFolder, options: &LoadOptions, purpose: Purpose<'_>) -> Result<LoadedModel> {
    let (loaded, time) = waiting(folder, |on_progress| load(folder, options, purpose, on_progress))?;
    let place = loaded.place();
    let printed: &[String] = &[];
    print_loaded(printed, &place, time);
    Ok(LoadedModel {
        model: loaded.model()?,
        place,
        all: loaded,
    })
}

/// Runs `work`, which loads the model in `folder`, with progress on standard error. Returns its
/// result and the time it took.
pub fn waiting<T>(
    folder: &ModelFolder,
    work: impl FnOnce(&mut dyn FnMut(Loading<'_>)) -> Result<T>,
) -> Result<(T, LoadTime)> {
    let start = Instant::now();
    let progress = output::spinner(format!("loading {}", folder.name()));
    let mut reports = None;
    let (mut compiling, mut compiled) = (None, None);
    let done = work(&mut |step| match step {
        Loading::Memory(memory) => detail(&format!("memory {memory}")),
        Loading::New {
            device,
            kernels,
            kept,
        } => {
            compiling = Some(Instant::now());
            let once = if kept { " (first start only)" } else { "" };
            let what = format!("compiling kernels for {device}{once}");
            note(&what);
            // On a terminal, the bar shows that work goes on.
            if !std::io::stderr().is_terminal() {
                reports = Some(sign(SIGN, |seconds| {
                    let what = format!("still compiling and checking kernels ({seconds} s)");
                    note(&what);
                }));
            }
            let what = format!("{} to compile and check", count_text(kernels, "kernel"));
            detail(&what);
        }
        Loading::Kernels { all: 0, .. } => {}
        Loading::Kernels { ready, all } => {
            compiled = (ready == all).then(Instant::now);
            output::count(&progress, ready, all, "kernels");
        }
    });
    drop(reports);
    progress.finish_and_clear();
    let end = Instant::now();
    let compiling = compiling.map(|from| compiled.unwrap_or(end).duration_since(from));
    let time = LoadTime {
        all: end.duration_since(start),
        compiling: compiling.unwrap_or_default(),
    };
    Ok((done?, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_reports_until_it_is_dropped() {
        let (sender, receiver) = channel();
        let sign = sign(Duration::from_millis(1), move |_| {
            let _gone = sender.send(());
        });
        receiver.recv().unwrap();
        drop(sign);
        // Everything it sent before is followed by its end.
        while receiver.recv().is_ok() {}
    }

    #[test]
    fn load_time_shows_compiling_apart() {
        let ms = Duration::from_millis;
        let time = |all, compiling| LoadTime {
            all: ms(all),
            compiling: ms(compiling),
        };
        assert_eq!(time(1500, 0).to_string(), "loaded in 1.5 s");
        let both = time(16_700, 15_200).to_string();
        assert!(both.contains("1.5 s") && both.contains("15.2 s"), "{both}");
        assert_eq!((milliseconds(ms(1500)), milliseconds(ms(20))), (1500.0, 20.0));
    }
}
