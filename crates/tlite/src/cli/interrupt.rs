//! Signals. Ctrl-C stops an answer or shows a hint first, then ends the program. `SIGTERM` and
//! `SIGHUP` end it at once.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::llm::Cancel;
use transformer_lite_convert::new_folder::set_aside;

/// Exit code after Ctrl-C: 128 plus the number of the signal, as for other signals.
pub const INTERRUPTED: u8 = 130;
/// How long the end of the program waits for output to be flushed.
const FLUSH: Duration = Duration::from_millis(500);
/// How many times removal of an unfinished path is tried.
const ATTEMPTS: usize = 100;

/// What `mutex` holds, also after a thread has panicked with it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something to call once.
#[derive(Default)]
struct Callback(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Callback {
    /// Sets it while the guard exists.
    fn hold(&self, callback: impl FnOnce() + Send + 'static) -> Held<'_> {
        *lock(&self.0) = Some(Box::new(callback));
        Held(self)
    }

    /// Calls it. False if it is not set.
    fn call(&self) -> bool {
        let callback = lock(&self.0).take();
        callback.map(|callback| callback()).is_some()
    }
}

/// Unsets a callback when it is dropped.
pub struct Held<'a>(&'a Callback);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *lock(&self.0.0) = None;
    }
}

#[derive(Default)]
struct State {
    generating: AtomicBool,
    cancel: Cancel,
    scratch: Mutex<Vec<PathBuf>>,
    parting: Callback,
    hint: Callback,
}

impl State {
    /// Handles a signal with the exit code `code`.
    fn handle(&self, code: u8) {
        if code != INTERRUPTED || !self.interrupt() {
            self.remove_scratch();
            self.parting.call();
            end(code);
        }
    }

    /// Handles Ctrl-C. False if the program must end.
    fn interrupt(&self) -> bool {
        self.generating.load(Ordering::SeqCst) && self.cancel.cancel() || self.hint.call()
    }

    fn remove_scratch(&self) {
        for path in lock(&self.scratch).drain(..) {
            // Work continues until the program ends. If it renames the path to its final name now,
            // that must win whole or not at all.
            let path = match set_aside(&path) {
                Ok(aside) => aside,
                Err(_) if !path.exists() => continue,
                Err(_) => path,
            };
            // A folder can gain files while it is removed.
            for _ in 0..ATTEMPTS {
                // A path that cannot be removed stays; there is no better report.
                let _gone = if path.is_dir() {
                    std::fs::remove_dir_all(&path)
                } else {
                    std::fs::remove_file(&path)
                };
                if !path.exists() {
                    break;
                }
            }
        }
    }
}

/// Ends the program at once, without exit handlers: those of drivers can crash threads that still
/// work inside the driver.
fn end(code: u8) -> ! {
    use std::io::Write;
    // Another thread may hold the lock of a stream while it waits for input.
    let (done, waiting) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Output to a closed stream is lost.
        let _closed = (std::io::stdout().flush(), std::io::stderr().flush());
        let _late = done.send(());
    });
    let _late = waiting.recv_timeout(FLUSH);
    #[cfg(unix)]
    {
        unsafe extern "C" {
            fn _exit(code: std::ffi::c_int) -> !;
        }
        // SAFETY: POSIX allows `_exit` in any thread at any time. It does not touch memory.
        unsafe { _exit(code.into()) }
    }
    #[cfg(not(unix))]
    std::process::exit(code.into())
}

/// Calls [`State::handle`] for each signal from now on.
#[cfg(unix)]
fn listen(state: Arc<State>) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let failed = |e| Error::caused(Stage::Run, "cannot install the signal handlers", e);
    let hangup = (!ignores(SIGHUP)).then_some(SIGHUP);
    let signals = [SIGINT, SIGTERM].into_iter().chain(hangup);
    let mut signals = signal_hook::iterator::Signals::new(signals).map_err(failed)?;
    let listen = move || {
        for signal in signals.forever() {
            state.handle(u8::try_from(128 + signal).unwrap_or(INTERRUPTED));
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(listen).map(drop).map_err(failed)
}

/// True if this process was started with the signal `number` ignored, as by `nohup`. It is ignored
/// from now on, until it gets a handler.
#[cfg(unix)]
fn ignores(number: std::ffi::c_int) -> bool {
    const IGNORE: usize = 1;
    unsafe extern "C" {
        #[link_name = "signal"]
        fn set_handler(number: std::ffi::c_int, handler: usize) -> usize;
    }
    // SAFETY: `SIG_IGN`, which is 1 on all systems, is a valid handler for each signal.
    unsafe { set_handler(number, IGNORE) == IGNORE }
}

/// Calls [`State::handle`] for each Ctrl-C from now on, and when the console is closed.
#[cfg(not(unix))]
fn listen(state: Arc<State>) -> Result<()> {
    ctrlc::set_handler(move || state.handle(INTERRUPTED))
        .map_err(|e| Error::caused(Stage::Run, "cannot install the Ctrl-C handler", e))
}

/// The handler of signals.
pub struct Interrupt(Arc<State>);

impl Interrupt {
    /// Installs the handler. To be called once in a process.
    pub fn install() -> Result<Self> {
        let state = Arc::new(State::default());
        listen(state.clone())?;
        Ok(Self(state))
    }

    /// While the guard exists, the first Ctrl-C sets its flag instead of ending the program.
    pub fn generating(&self) -> Generating<'_> {
        self.0.cancel.reset();
        self.0.generating.store(true, Ordering::SeqCst);
        Generating(&self.0)
    }

    /// True if Ctrl-C stopped the last generation.
    pub fn stopped(&self) -> bool {
        self.0.cancel.is_cancelled()
    }

    /// While the guard exists, `path`, an unfinished file or folder, is removed if a signal ends
    /// the program. Dropping the guard removes nothing.
    pub fn scratch(&self, path: &Path) -> Scratch<'_> {
        lock(&self.0.scratch).push(path.to_owned());
        Scratch {
            state: &self.0,
            path: path.to_owned(),
        }
    }

    /// While the guard exists, `message` is called before a signal ends the program, for example to
    /// print partial results. Work continues meanwhile.
    pub fn parting(&self, message: impl FnOnce() + Send + 'static) -> Held<'_> {
        self.0.parting.hold(message)
    }

    /// While the guard exists, the first Ctrl-C calls `hint` and only the second ends the program.
    pub fn hinting(&self, hint: impl FnOnce() + Send + 'static) -> Held<'_> {
        self.0.hint.hold(hint)
    }

    #[cfg(test)]
    pub(super) fn without_handler() -> Self {
        Self(Arc::default())
    }

    #[cfg(test)]
    pub(super) fn remove_scratch(&self) {
        self.0.remove_scratch();
    }
}

pub struct Generating<'a>(&'a State);

impl Generating<'_> {
    /// Set by the first Ctrl-C.
    pub fn flag(&self) -> Cancel {
        self.0.cancel.clone()
    }
}

impl Drop for Generating<'_> {
    fn drop(&mut self) {
        self.0.generating.store(false, Ordering::SeqCst);
    }
}

pub struct Scratch<'a> {
    state: &'a State,
    path: PathBuf,
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let mut paths = lock(&self.state.scratch);
        if let Some(at) = paths.iter().position(|p| *p == self.path) {
            paths.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_ends_a_generation_and_the_second_the_program() {
        let interrupt = Interrupt::without_handler();
        assert!(!interrupt.0.interrupt(), "outside of generation");
        for _ in 0..2 {
            let generating = interrupt.generating();
            let flag = generating.flag();
            assert!(!flag.is_cancelled(), "an old signal does not count");
            assert!(interrupt.0.interrupt() && flag.is_cancelled());
            assert!(!interrupt.0.interrupt());
        }
        assert!(!interrupt.0.interrupt());
    }

    #[test]
    fn the_first_signal_at_a_prompt_is_hinted_at() {
        let interrupt = Interrupt::without_handler();
        let hints = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for round in 1..3 {
            let seen = hints.clone();
            let hinting = interrupt.hinting(move || {
                seen.fetch_add(1, Ordering::SeqCst);
            });
            assert!(interrupt.0.interrupt());
            assert!(!interrupt.0.interrupt(), "the second one ends the program");
            assert_eq!(hints.load(Ordering::SeqCst), round);
            drop(hinting);
            drop(interrupt.hinting(|| panic!("the prompt is over")));
            assert!(!interrupt.0.interrupt());
        }
    }

    #[test]
    fn unfinished_output_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["folder", "file", "finished"].map(|n| dir.path().join(n));
        std::fs::create_dir(&paths[0]).unwrap();
        std::fs::write(paths[0].join("inside"), "").unwrap();
        std::fs::write(&paths[1], "").unwrap();
        std::fs::write(&paths[2], "").unwrap();
        let interrupt = Interrupt::without_handler();
        let mut guards: Vec<_> = paths.iter().map(|p| interrupt.scratch(p)).collect();
        drop(guards.pop());
        interrupt.0.remove_scratch();
        assert_eq!(paths.map(|p| p.exists()), [false, false, true]);
    }

    #[test]
    fn words_at_the_end_are_said_once_and_only_in_their_time() {
        let interrupt = Interrupt::without_handler();
        let printed = Arc::new(AtomicBool::new(false));
        let words = || {
            let printed = printed.clone();
            move || assert!(!printed.swap(true, Ordering::SeqCst))
        };
        drop(interrupt.parting(words()));
        interrupt.0.parting.call();
        assert!(!printed.load(Ordering::SeqCst));
        let _guard = interrupt.parting(words());
        interrupt.0.parting.call();
        interrupt.0.parting.call();
        assert!(printed.load(Ordering::SeqCst));
    }
}
