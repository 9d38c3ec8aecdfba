//! Kernels from their text, or from what an earlier start has made of it.

use super::device::x86_vectors;
use super::driver::{Code, Context, DeviceHandle, Program};
use crate::backend::image::{ImageKind, Pixel};
use crate::backend::kernel::{self, BUILD_OPTIONS, KernelSpec, Language};
use crate::backend::{BackendError, Caps, DeviceKind, persistent, verdicts};
use crate::cache::{Key, Kind, Store};
use std::ffi::{CStr, CString};
use std::sync::Arc;

/// Why dispatches are not joined.
pub(super) const JOINED_DIFFERS: &str = "it gives other results than its stages one by one";

/// Why a kernel does not run in parts: what is noted of it.
pub const PARTS_DIFFER: &str = "its parts give other results than it as a whole";

/// A kernel compiled so that parts of a grid can run.
pub(super) struct InParts {
    pub(super) program: Program,
    /// Kernel and defines.
    pub(super) name: String,
    /// The whole text, as long as its results have not been compared with those of the kernel as it is.
    pub(super) unchecked: Option<String>,
    /// Comparisons that told nothing.
    pub(super) tries: u32,
}

/// A persistent kernel.
pub(super) struct Joined {
    pub(super) program: Program,
    /// The stages, for errors.
    pub(super) name: Arc<str>,
    /// The whole text, as long as its results have not been compared with those of its stages.
    pub(super) unchecked: Option<String>,
}

/// A kernel ready for recordings.
pub(super) struct Compiled {
    pub(super) program: Program,
    /// The same for parts of a grid, once it was needed, or why it cannot be had.
    pub(super) in_parts: Option<Result<InParts, String>>,
    /// Axes of whose number of work-groups the text does not ask.
    pub(super) free_axes: [bool; 3],
    /// It was said that the kernel cannot run in parts.
    pub(super) told: bool,
    pub(super) entry: CString,
    /// Kernel and defines, for errors.
    pub(super) name: Arc<str>,
    pub(super) workgroup: u32,
    /// Number of operands; the parameter struct follows them.
    pub(super) operands: u32,
    /// Those that it writes.
    pub(super) writes: Vec<bool>,
    /// It may read of what it writes, so that it must not run twice.
    pub(super) rereads: bool,
    /// The image that each of them is.
    pub(super) images: Vec<Option<(ImageKind, Pixel)>>,
    pub(super) params_bytes: u32,
}

/// A kernel, and whether its program came from the store.
pub(super) struct Built {
    pub(super) kernel: Compiled,
    pub(super) stored: bool,
}

/// What became of a program that tells whether the compiler takes its text.
pub(super) enum Tried {
    /// It came from the store.
    Stored,
    Compiled,
    /// In words why it is refused, now or in an earlier start.
    Refused(String),
}

/// What kernels are made with. Several threads may build at once, each a program of its own.
#[derive(Clone, Copy)]
pub(super) struct Builder<'a> {
    pub(super) context: &'a Context,
    pub(super) device: DeviceHandle,
    pub(super) caps: &'a Caps,
    pub(super) store: Option<&'a Store>,
}

/// A kernel on its way.
struct Job<'a> {
    spec: &'a KernelSpec,
    text: Text,
    entry: CString,
}

/// What a program is made of.
struct Text {
    /// Kernel and defines.
    name: String,
    source: String,
}

impl Text {
    /// The source with the options that it is built with.
    fn whole(&self) -> String {
        format!("// {}\n{}", words(BUILD_OPTIONS), self.source)
    }
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        context: &'a Context,
        device: DeviceHandle,
        caps: &'a Caps,
        store: Option<&'a Store>,
    ) -> Self {
        Self {
            context,
            device,
            caps,
            store,
        }
    }
}

impl Builder<'_> {
    /// The kernel for `spec`: from the store, where it is there and the driver takes it, else compiled, and then stored.
    pub(super) fn build(&self, spec: &KernelSpec) -> Result<Built, BackendError> {
        self.made(&self.job(spec)?)
    }

    /// The program for `spec` of which parts of a grid can run, made as [`Builder::build`] makes kernels, and whether it came from the store. An
    /// error in words for one that was not right on an earlier start.
    pub(super) fn build_in_parts(
        &self,
        spec: &KernelSpec,
    ) -> Result<Result<(InParts, bool), String>, BackendError> {
        let mut job = self.job(spec)?;
        job.text.name.push_str(" in parts");
        job.text.source = kernel::in_parts(&job.text.source);
        let text = job.text.whole();
        let known = verdicts::of_program(self.store, self.caps, &job.text.name, &text);
        if known == Some(false) {
            return Ok(Err(PARTS_DIFFER.to_owned()));
        }
        let built = self.made(&job)?;
        let parts = InParts {
            program: built.kernel.program,
            name: job.text.name,
            unchecked: known.is_none().then_some(text),
            tries: 0,
        };
        Ok(Ok((parts, built.stored)))
    }

    /// Keeps whether a program gives the same as another that it takes the place of.
    pub(super) fn keep_program(&self, name: &str, text: &str, is_right: bool) {
        if let Some(store) = self.store {
            verdicts::keep_program(store, self.caps, name, text, is_right);
        }
    }

    /// Whether the compiler takes a program, as it told an earlier start or tells now.
    pub(super) fn tries(&self, name: &str, source: String) -> Result<Tried, BackendError> {
        let text = Text {
            name: name.to_owned(),
            source,
        };
        let whole = text.whole();
        if verdicts::of_program(self.store, self.caps, name, &whole) == Some(false) {
            return Ok(Tried::Refused(
                "the compiler refused it in an earlier start; `tlite cache clear` has it asked again"
                    .to_owned(),
            ));
        }
        match self.program(&text, Ok) {
            Ok((_, true)) => Ok(Tried::Stored),
            Ok((_, false)) => Ok(Tried::Compiled),
            Err(BackendError::Build { log, .. }) => {
                self.keep_program(name, &whole, false);
                let line = log.lines().find(|l| l.contains("error:")).or(log.lines().next());
                Ok(Tried::Refused(line.unwrap_or_default().to_owned()))
            }
            Err(other) => Err(other),
        }
    }

    fn made(&self, job: &Job<'_>) -> Result<Built, BackendError> {
        let (kernel, stored) = self.program(&job.text, |program| self.checked(job, program))?;
        Ok(Built { kernel, stored })
    }

    /// The program of a persistent kernel of these stages, of which it is not known that it gives other results than they one by one. With it
    /// whether it came from the store.
    pub(super) fn build_persistent(
        &self,
        stages: &[&KernelSpec],
    ) -> Result<Result<(Joined, bool), String>, BackendError> {
        let names: Vec<String> = stages.iter().map(ToString::to_string).collect();
        let name = format!("{} of {}", persistent::ENTRY, names.join(", "));
        let source = persistent::text(stages).map_err(|error| refused(&name, error.to_string()))?;
        let text = Text {
            source: self.halves() + &source,
            name,
        };
        let known = verdicts::of_program(self.store, self.caps, &text.name, &text.whole());
        if known == Some(false) {
            return Ok(Err(JOINED_DIFFERS.to_owned()));
        }
        let (program, stored) = self.program(&text, Ok)?;
        let unchecked = known.is_none().then(|| text.whole());
        let joined = Joined {
            program,
            name: text.name.into(),
            unchecked,
        };
        Ok(Ok((joined, stored)))
    }

    /// A program that passes `check`: from the store, where it is there and the driver takes it, else compiled, and then stored. True for one from
    /// the store.
    fn program<T>(
        &self,
        text: &Text,
        check: impl Fn(Program) -> Result<T, BackendError>,
    ) -> Result<(T, bool), BackendError> {
        let name = &text.name;
        let key = self.store.map(|store| (store, self.key(text)));
        if let Some((store, key)) = &key
            && let Some(binary) = store.get(Kind::Program, key)
        {
            match self.of_binary(text, &binary).and_then(&check) {
                Ok(made) => return Ok((made, true)),
                Err(why) => {
                    log::info!("kernel {name}: the stored program is refused and compiled anew: {why}");
                    store.remove(Kind::Program, key);
                }
            }
        }
        let program = self.of_source(text)?;
        let binary = key.as_ref().map(|_| program.binary());
        let made = check(program)?;
        if let (Some((store, key)), Some(binary)) = (&key, binary) {
            match binary {
                Ok(binary) if binary.is_empty() => {
                    log::debug!("kernel {name}: the driver gives no program away");
                }
                Ok(binary) => store.put(Kind::Program, key, &binary),
                Err(code) => log::debug!("kernel {name}: clGetProgramInfo: {code}"),
            }
        }
        Ok((made, false))
    }

    /// The whole text of a kernel, as it is compiled.
    fn source(&self, spec: &KernelSpec) -> Result<String, kernel::ExpandError> {
        Ok(self.halves() + &spec.expand(Language::OpenCl)?)
    }

    /// How texts convert halves: some compilers do it in software, one at a time (cl/common/half.cl).
    fn halves(&self) -> String {
        let soft = self.caps.kind == DeviceKind::Cpu && !self.caps.f16_math;
        match (soft, x86_vectors(self.caps)) {
            (true, true) => "#define X86_HALF\n#define SOFT_HALF\n".to_owned(),
            (true, false) => "#define SOFT_HALF\n".to_owned(),
            (false, _) => String::new(),
        }
    }

    /// Checks what can be checked without a compiler. The text begins with `prefix`.
    fn job<'s>(&self, spec: &'s KernelSpec) -> Result<Job<'s>, BackendError> {
        let name = spec.to_string();
        if spec.workgroup == 0 || spec.params_bytes() == 0 {
            let why = "a work-group and the parameter struct must not be empty";
            return Err(refused(&name, why.to_owned()));
        }
        self.check_workgroup(spec, &name, u64::from(self.caps.max_workgroup))?;
        let source = self.source(spec);
        let source =
            source.map_err(|error| self.failed(&name, error.why, kernel::excerpt(spec.kernel.cl, None)))?;
        let entry = CString::new(spec.kernel.name)
            .map_err(|_| refused(&name, "the kernel's name contains a zero byte".to_owned()))?;
        let text = Text { name, source };
        Ok(Job { spec, text, entry })
    }

    fn key(&self, text: &Text) -> Key {
        Key {
            device: self.caps.device.clone(),
            // Platform and its version included.
            driver: self.caps.driver.clone(),
            subject: text.name.clone(),
            text: text.whole(),
        }
    }

    /// The error for a code with which the driver refuses to make a kernel. `log` is the compiler's, where the kernel is to blame.
    fn refusal(
        &self,
        text: &Text,
        call: &str,
        code: Code,
        log: impl FnOnce() -> BackendError,
    ) -> BackendError {
        if code.is_of_program() {
            log()
        } else if code.is_out_of_memory() {
            BackendError::OutOfMemory {
                label: format!("the program of kernel {}", text.name),
                bytes: u64::try_from(text.source.len()).unwrap_or(u64::MAX),
                why: format!("{call}: {code}"),
            }
        } else {
            code.at(format!("{call} of kernel {}", text.name))
        }
    }

    fn of_binary(&self, text: &Text, binary: &[u8]) -> Result<Program, BackendError> {
        let call = |call: &str| format!("{call} of kernel {}", text.name);
        let program = self
            .context
            .program_of(self.device, binary)
            .map_err(|code| code.at(call("clCreateProgramWithBinary")))?;
        program
            .build(self.device)
            .map_err(|code| code.at(call("clBuildProgram")))?;
        Ok(program)
    }

    fn of_source(&self, text: &Text) -> Result<Program, BackendError> {
        let Text { name, source } = text;
        let program = self
            .context
            .program(source)
            .map_err(|code| code.at(format!("clCreateProgramWithSource of kernel {name}")))?;
        if let Err(code) = program.build(self.device) {
            return Err(self.refusal(text, "clBuildProgram", code, || {
                let log = match program.build_log(self.device) {
                    Ok(log) if log.is_empty() => {
                        format!("clBuildProgram: {code}, and the compiler says nothing")
                    }
                    Ok(log) => log,
                    Err(log_code) => format!("clBuildProgram: {code}; no log: {log_code}"),
                };
                let line = error_line(&log, source.lines().count());
                self.failed(name, log, kernel::excerpt(source, line))
            }));
        }
        Ok(program)
    }

    /// The kernel of a built program, if it is what its spec says and the device can run it.
    fn checked(&self, job: &Job<'_>, program: Program) -> Result<Compiled, BackendError> {
        let (spec, name, source) = (job.spec, &job.text.name, &job.text.source);
        let call = |call: &str| format!("{call} of kernel {name}");
        let object = program.kernel(&job.entry).map_err(|code| {
            self.refusal(&job.text, "clCreateKernel", code, || {
                let log = format!(
                    "clCreateKernel: {code}; the text has no kernel of the name `{}`",
                    spec.kernel.name
                );
                self.failed(name, log, kernel::excerpt(source, None))
            })
        })?;
        let operands = u32::try_from(spec.bound().count()).unwrap_or(u32::MAX);
        let found = object
            .arg_count()
            .map_err(|code| code.at(call("clGetKernelInfo")))?;
        if found != u64::from(operands) + 1 {
            let why = format!(
                "{operands} operands and the parameters expected, the compiled kernel takes {found} arguments"
            );
            return Err(refused(name, why));
        }
        let limit = object
            .max_workgroup(self.device)
            .map_err(|code| code.at(call("clGetKernelWorkGroupInfo(CL_KERNEL_WORK_GROUP_SIZE)")))?;
        // NVIDIA's driver tells of kernels with many registers what it would take if their text did not require a size, as it does: such
        // a kernel was compiled for that.
        if !spec.kernel.needs_matrix_units(Language::OpenCl) {
            self.check_workgroup(spec, name, limit)?;
        }
        let local_bytes = object
            .local_bytes(self.device)
            .map_err(|code| code.at(call("clGetKernelWorkGroupInfo(CL_KERNEL_LOCAL_MEM_SIZE)")))?;
        if local_bytes > u64::from(self.caps.local_bytes) {
            let why = format!(
                "needs {local_bytes} bytes of local memory, the device has {}",
                self.caps.local_bytes
            );
            return Err(self.unsuited(name, why));
        }
        let shared = spec.shared().map(|arg| arg.name);
        Ok(Compiled {
            program,
            in_parts: None,
            free_axes: kernel::free_axes(source),
            told: false,
            entry: job.entry.clone(),
            name: name.as_str().into(),
            workgroup: spec.workgroup,
            operands,
            writes: spec
                .bound()
                .map(|(arg, _)| arg.role.writes() || shared == Some(arg.name))
                .collect(),
            rereads: shared.is_some() || spec.bound().any(|(arg, _)| arg.role.rereads()),
            images: spec.bound_images().collect(),
            params_bytes: spec.params_bytes(),
        })
    }

    fn check_workgroup(&self, spec: &KernelSpec, name: &str, limit: u64) -> Result<(), BackendError> {
        if u64::from(spec.workgroup) <= limit {
            return Ok(());
        }
        let why = format!(
            "work-groups of {} work-items asked for, it allows {limit}",
            spec.workgroup
        );
        Err(self.unsuited(name, why))
    }

    fn unsuited(&self, name: &str, why: String) -> BackendError {
        BackendError::Unsuited {
            kernel: name.to_owned(),
            device: format!("{} ({})", self.caps.device, self.caps.driver),
            why,
        }
    }

    fn failed(&self, name: &str, log: String, source_excerpt: String) -> BackendError {
        BackendError::Build {
            kernel: name.to_owned(),
            device: format!("{} ({})", self.caps.device, self.caps.driver),
            log,
            source_excerpt,
        }
    }
}

fn refused(name: &str, why: String) -> BackendError {
    BackendError::Driver {
        call: format!("kernel {name}"),
        why,
    }
}

fn words(options: &CStr) -> std::borrow::Cow<'_, str> {
    options.to_string_lossy()
}

/// The first line number that a compiler's log gives for an error, in the form `:<line>:<column>`.
pub(super) fn error_line(log: &str, lines: usize) -> Option<usize> {
    let place = |text: &str| {
        let mut fields = text
            .split(':')
            .map(|field| field.trim().parse::<usize>().ok())
            .skip(1)
            .peekable();
        while let Some(field) = fields.next() {
            if let (Some(line), Some(Some(_))) = (field, fields.peek()) {
                return Some(line);
            }
        }
        None
    };
    let numbers = log
        .lines()
        .filter(|text| text.contains("error"))
        .filter_map(place);
    numbers.into_iter().find(|line| (1..=lines).contains(line))
}
