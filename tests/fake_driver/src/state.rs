//! What the fake driver knows: its configuration, the objects that calls made, and the log.

use crate::command_buffer::CommandBuffer;
use crate::config::{CONFIG, Config};
use crate::images::Shadow;
use crate::recording::Recording;
use crate::{Code, Handle, cl};
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The value of a kernel's argument.
#[derive(Clone, Debug)]
pub(crate) enum Arg {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// So many bytes of local memory.
    Local(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) program: usize,
    pub(crate) name: String,
    pub(crate) args: BTreeMap<u32, Arg>,
    references: usize,
}

impl Arg {
    /// The number of the object that it is, if it is one.
    pub(crate) fn object(&self) -> Option<usize> {
        match self {
            Self::Bytes(bytes) => bytes.as_slice().try_into().ok().map(usize::from_ne_bytes),
            Self::Local(_) => None,
        }
    }
}

/// A buffer or sub-buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: u64,
    /// Its first byte in the buffer that it is a part of.
    pub(crate) origin: u64,
    pub(crate) part_of: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) source: String,
    /// Its build was made to fail.
    pub(crate) broken: bool,
    /// Its own and those of its kernels.
    references: usize,
}

/// Everything known; objects by the numbers of their handles.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) config: Config,
    log: Option<File>,
    /// Calls that each of the faults has looked at.
    counts: Vec<u64>,
    lost: Option<Code>,
    pub(crate) programs: HashMap<usize, Program>,
    pub(crate) kernels: HashMap<usize, Kernel>,
    pub(crate) buffers: HashMap<usize, Memory>,
    /// Images in buffers, those that the real driver does not make with what stands for them.
    pub(crate) images: HashMap<usize, Option<Shadow>>,
    /// Recordable queues, with the recording that each is making.
    pub(crate) recordable: HashMap<usize, Option<usize>>,
    pub(crate) recordings: HashMap<usize, Recording>,
    pub(crate) made_recordings: usize,
    pub(crate) command_buffers: HashMap<usize, CommandBuffer>,
    /// Functions of the driver's extensions that were asked for, by name.
    pub(crate) addresses: HashMap<String, usize>,
    /// Nanoseconds that the device's clock is ahead of the driver's.
    pub(crate) ahead: u64,
    /// The same at the start and at the end of commands, by their events.
    pub(crate) events: HashMap<usize, (u64, u64)>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// What stands in the file that the environment names. A file that cannot be read is a mistake in
/// the test, which is told and ends the process: a run without the faults that it asked for would
/// look like one that recovered.
fn configured() -> Config {
    let Some(path) = std::env::var_os(CONFIG) else {
        return Config::default();
    };
    let read = std::fs::read(&path).map_err(|e| e.to_string());
    read.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|e| e.to_string()))
        .unwrap_or_else(|e| {
            eprintln!("{CONFIG}={}: {e}", path.display());
            std::process::exit(99)
        })
}

impl State {
    fn new(config: Config) -> Self {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        Self {
            log: config.log.as_ref().and_then(|path| open(path).ok()),
            counts: vec![0; config.faults.len()],
            config,
            ..Self::default()
        }
    }

    pub(crate) fn log(&mut self, line: &str) {
        if let Some(file) = &mut self.log {
            // The test that reads it fails where lines are missing.
            let _lost = file.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// Writes what is done that a driver would not do, and when.
    pub(crate) fn log_injected(&mut self, what: &str) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.log(&format!("inject {what} ms={}", since.as_millis()));
    }

    /// Writes that a call is made to fail.
    pub(crate) fn log_fault(&mut self, call: &str, code: Code) {
        self.log_injected(&format!("{call} code={code}"));
    }

    /// A program was made.
    pub(crate) fn add_program(&mut self, object: usize, source: String) {
        let program = Program {
            source,
            broken: false,
            references: 1,
        };
        self.programs.insert(object, program);
    }

    pub(crate) fn retain_program(&mut self, object: usize) {
        if let Some(program) = self.programs.get_mut(&object) {
            program.references += 1;
        }
    }

    /// Forgets a program with its last reference. Before the driver is told, which may give its
    /// number to another then.
    pub(crate) fn release_program(&mut self, object: usize) {
        if let Some(program) = self.programs.get_mut(&object) {
            program.references -= 1;
            if program.references == 0 {
                self.programs.remove(&object);
            }
        }
    }

    /// A kernel object was made of a program, which it keeps.
    pub(crate) fn add_kernel(
        &mut self,
        object: usize,
        program: usize,
        name: String,
        args: BTreeMap<u32, Arg>,
    ) {
        self.retain_program(program);
        let kernel = Kernel {
            program,
            name,
            args,
            references: 1,
        };
        self.kernels.insert(object, kernel);
    }

    pub(crate) fn retain_kernel(&mut self, object: usize) {
        if let Some(kernel) = self.kernels.get_mut(&object) {
            kernel.references += 1;
        }
    }

    /// As [`Self::release_program`].
    pub(crate) fn release_kernel(&mut self, object: usize) {
        let Some(kernel) = self.kernels.get_mut(&object) else {
            return;
        };
        kernel.references -= 1;
        if kernel.references == 0 {
            let program = kernel.program;
            self.kernels.remove(&object);
            self.release_program(program);
        }
    }

    /// The program of a kernel object.
    pub(crate) fn program(&self, object: usize) -> Option<&Program> {
        let kernel = self.kernels.get(&object)?;
        self.programs.get(&kernel.program)
    }

    /// The forms that the program of a kernel object has, as words of a line.
    pub(crate) fn form(&self, object: usize) -> String {
        let program = self.program(object);
        let defines = |name: &str| {
            let starts = |line: &str| {
                line.strip_prefix("#define ")?
                    .split_whitespace()
                    .next()
                    .map(|n| n == name)
            };
            program.is_some_and(|p| p.source.lines().any(|line| starts(line) == Some(true)))
        };
        let forms = self.config.forms.iter().filter(|name| defines(name));
        forms.map(|name| format!(" form={name}")).collect()
    }

    /// The results of this kernel object are to be wrong.
    pub(crate) fn is_spoilt(&self, object: usize, name: &str) -> bool {
        let program = self.program(object);
        let holds = |text: &String| program.is_some_and(|p| p.source.contains(text.as_str()));
        self.config.corrupt.as_deref() == Some(name) && self.config.corrupt_text.as_ref().is_none_or(holds)
    }

    /// The last buffer that a kernel object writes, and its bytes.
    pub(crate) fn result(&self, object: usize) -> Option<(usize, u64)> {
        let (kernel, program) = (self.kernels.get(&object)?, self.program(object)?);
        let (_, signature) = program.source.split_once(&format!("void {}(", kernel.name))?;
        let signature = signature.split_once(')').map_or(signature, |(args, _)| args);
        let written = signature.split(',').zip(0u32..).filter_map(|(arg, i)| {
            let is_written = arg.contains("__global") && !arg.contains("const");
            let handle = kernel.args.get(&i).filter(|_| is_written)?.object()?;
            Some((handle, self.buffers.get(&handle)?.bytes))
        });
        written.last()
    }

    /// The fault for this call, if it is to fail now.
    fn fault(&mut self, call: &str, kernel: Option<&str>, needs_device: bool) -> Option<Code> {
        let mut found = self.lost.filter(|_| needs_device);
        for (fault, count) in self.config.faults.iter().zip(&mut self.counts) {
            let about = fault.kernel.is_none() || fault.kernel.as_deref() == kernel;
            if fault.call != call || !about {
                continue;
            }
            *count += 1;
            if *count == fault.nth {
                found = found.or(Some(fault.code));
                self.lost = self.lost.or(fault.lost.then_some(fault.code));
            }
        }
        if let Some(code) = found {
            self.log_fault(call, code);
        }
        found
    }
}

/// Runs `f` with the state. Not for calls of the real library, which may take long.
pub(crate) fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    f(state.get_or_insert_with(|| State::new(configured())))
}

/// Plays `config` from here on, and forgets all objects. For tests that call the fake driver in
/// their own process, one at a time.
pub fn configure(config: Config) {
    *STATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(State::new(config));
}

/// Something is known of a program of this handle. For the same tests.
pub fn knows_program(program: Handle) -> bool {
    with(|s| s.programs.contains_key(&id(program)))
}

/// What comes before every call that makes, queues or waits: delays it, and gives the code with
/// which it must fail.
pub(crate) fn before(call: &str, kernel: Option<&str>) -> Option<Code> {
    let (delay, fault) = with(|s| {
        let delay = s
            .config
            .delays
            .iter()
            .find(|d| d.call == call)
            .map_or(0, |d| d.ms);
        if delay > 0 {
            s.log_injected(&format!("{call} delay={delay}"));
        }
        (delay, s.fault(call, kernel, true))
    });
    if delay > 0 {
        std::thread::sleep(Duration::from_millis(delay));
    }
    fault
}

/// The code with which a query must fail. A lost device still answers.
pub(crate) fn refused_query(call: &str) -> Option<Code> {
    with(|s| s.fault(call, None, false))
}

/// The code that a release returns, which is done all the same. A lost device still releases.
pub(crate) fn released(call: &str, code: Code) -> Code {
    refused_query(call).unwrap_or(code)
}

/// What comes after a call: its line in the log. Returns `code`.
pub(crate) fn after(call: &str, words: &str, code: Code) -> Code {
    with(|s| s.log(&format!("{call}{words} = {code}")));
    code
}

/// The end of a call that makes an object: writes `code` to `place` and the line to the log;
/// returns the object.
///
/// # Safety
///
/// `place` is null or takes a code.
pub(crate) unsafe fn made(call: &str, words: &str, object: Handle, code: Code, place: *mut Code) -> Handle {
    after(call, words, code);
    if !place.is_null() {
        // SAFETY: as the caller promises.
        unsafe { *place = code };
    }
    if code == cl::SUCCESS {
        object
    } else {
        std::ptr::null_mut()
    }
}

/// The number by which an object is known here.
pub(crate) fn id(handle: Handle) -> usize {
    handle as usize
}
