//! Builds kernels from their source, or loads the programs that an earlier start has stored.

use super::driver::{Code, Context, DeviceHandle, Program};
use crate::backend::compiled::Built;
use crate::backend::kernel::image::{ImageKind, Pixel};
use crate::backend::kernel::{self, BUILD_OPTIONS, Feature, KernelSpec, Language};
use crate::backend::{BackendError, Caps, DeviceKind, validation};
use crate::cache::{Key, Kind, Store};
use crate::num;
use std::ffi::{CStr, CString};
use std::sync::Arc;

/// A kernel ready for recordings.
pub(super) struct Compiled {
    pub(super) program: Program,
    pub(super) entry: CString,
    /// Kernel and defines, for errors.
    pub(super) name: Arc<str>,
    pub(super) workgroup: u32,
    /// Number of operands; the parameter struct follows them.
    pub(super) operands: u32,
    /// For each operand, the image through which it is read.
    pub(super) images: Vec<Option<(ImageKind, Pixel)>>,
    pub(super) params_bytes: u32,
}

/// Result of testing whether the compiler accepts a program.
pub(super) enum Tried {
    /// Accepted; the program came from the store.
    Stored,
    Compiled,
    /// The reason why it is refused, now or in an earlier start.
    Refused(String),
}

/// What building kernels needs. Several threads may build at once, each its own program.
#[derive(Clone, Copy)]
pub(super) struct Builder<'a> {
    pub(super) context: &'a Context,
    pub(super) device: DeviceHandle,
    pub(super) caps: &'a Caps,
    pub(super) store: Option<&'a Store>,
}

/// A kernel that is being built.
struct Job<'a> {
    spec: &'a KernelSpec,
    text: Text,
    entry: CString,
}

/// The source of a program.
struct Text {
    name: String,
    source: String,
}

impl Text {
    /// The source including the build options.
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
    /// Loads the kernel for `spec` from the store if the driver accepts it; otherwise compiles and
    /// stores it.
    pub(super) fn build(&self, spec: &KernelSpec) -> Result<Built<Compiled>, BackendError> {
        self.made(&self.job(spec)?)
    }

    /// Whether the compiler accepts a program, from the stored answer or by compiling it.
    pub(super) fn tries(&self, name: &str, source: String) -> Result<Tried, BackendError> {
        let text = Text {
            name: name.to_owned(),
            source,
        };
        let whole = text.whole();
        if validation::program_result(self.store, self.caps, name, &whole) == Some(false) {
            return Ok(Tried::Refused(
                "the compiler rejected it in an earlier run; run `tlite cache clear --kind verdict` to try \
                 again"
                    .to_owned(),
            ));
        }
        match self.program(&text, Ok) {
            Ok((_, true)) => Ok(Tried::Stored),
            Ok((_, false)) => Ok(Tried::Compiled),
            Err(BackendError::Build { log, .. }) => {
                if let Some(store) = self.store.filter(|_| self.compiles_anything()) {
                    validation::store_refused_program(store, self.caps, name, &whole);
                }
                let line = log.lines().find(|l| l.contains("error:")).or(log.lines().next());
                Ok(Tried::Refused(line.unwrap_or_default().to_owned()))
            }
            Err(other) => Err(other),
        }
    }

    /// Whether the compiler works at all: a full disk, for example, makes every build fail.
    fn compiles_anything(&self) -> bool {
        let empty = Text {
            name: "empty".to_owned(),
            source: "__kernel void empty(__global uint *x) { x[0] = 0; }".to_owned(),
        };
        self.of_source(&empty).is_ok()
    }

    fn made(&self, job: &Job<'_>) -> Result<Built<Compiled>, BackendError> {
        let (kernel, stored) = self.program(&job.text, |program| self.checked(job, program))?;
        Ok(Built { kernel, stored })
    }

    /// A program that passes `check`: from the store if the driver accepts it, otherwise compiled
    /// and stored. `true` if it came from the store.
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
                    log::info!("kernel {name}: the driver rejects the stored program, recompiling: {why}");
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
                    log::debug!("kernel {name}: the driver does not return a program binary");
                }
                Ok(binary) => store.put(Kind::Program, key, &binary),
                Err(code) => log::debug!("kernel {name}: clGetProgramInfo: {code}"),
            }
        }
        Ok((made, false))
    }

    /// The whole source of a kernel as it is compiled.
    fn source(&self, spec: &KernelSpec) -> Result<String, kernel::ExpandError> {
        Ok(format!("{}{}", self.halves(), spec.expand(Language::OpenClC)?))
    }

    /// Defines that select how the source converts halves: some compilers do it in software, one at
    /// a time (cl/common/half.cl).
    fn halves(&self) -> &'static str {
        match self.caps.kind == DeviceKind::Cpu && !self.caps.profile.f16_math {
            true => "#define SOFT_HALF\n",
            false => "",
        }
    }

    /// Checks what can be checked without a compiler. `prefix` is put before the source.
    fn job<'s>(&self, spec: &'s KernelSpec) -> Result<Job<'s>, BackendError> {
        let name = spec.to_string();
        if spec.workgroup == 0 || spec.params_bytes() == 0 {
            let why = "a work-group and the parameter struct must not be empty";
            return Err(refused(&name, why.to_owned()));
        }
        self.check_workgroup(spec, &name, u64::from(self.caps.profile.max_workgroup))?;
        let source = self.source(spec);
        let source = source.map_err(|error| {
            let text = spec.kernel.sources.opencl_c.unwrap_or_default();
            self.failed(&name, error.reason.to_string(), kernel::excerpt(text, None))
        })?;
        let entry = CString::new(spec.kernel.name)
            .map_err(|_| refused(&name, "the kernel's name contains a zero byte".to_owned()))?;
        let text = Text { name, source };
        Ok(Job { spec, text, entry })
    }

    fn key(&self, text: &Text) -> Key {
        Key {
            device: self.caps.device.clone(),
            // Includes the platform and its version.
            driver: self.caps.driver.clone(),
            subject: text.name.clone(),
            text: text.whole(),
        }
    }

    /// The error for a code with which the driver refuses to create a kernel. `log` is the
    /// compiler's output if the kernel is at fault.
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
                bytes: num::wide(text.source.len()),
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
                        format!("clBuildProgram: {code}; the compiler's log is empty")
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

    /// The kernel of a built program, after checking that it matches its spec and that the device
    /// can run it.
    fn checked(&self, job: &Job<'_>, program: Program) -> Result<Compiled, BackendError> {
        let (spec, name, source) = (job.spec, &job.text.name, &job.text.source);
        let call = |call: &str| format!("{call} of kernel {name}");
        let object = program.kernel(&job.entry).map_err(|code| {
            self.refusal(&job.text, "clCreateKernel", code, || {
                let log = format!(
                    "clCreateKernel: {code}; the source has no kernel named `{}`",
                    spec.kernel.name
                );
                self.failed(name, log, kernel::excerpt(source, None))
            })
        })?;
        let operands = num::exact(spec.bound().count(), "the number of operands")?;
        let found = object
            .arg_count()
            .map_err(|code| code.at(call("clGetKernelInfo")))?;
        if found != u64::from(operands) + 1 {
            let why = format!(
                "expected {operands} operands and the parameters, found a kernel with {found} arguments"
            );
            return Err(refused(name, why));
        }
        let limit = object
            .max_workgroup(self.device)
            .map_err(|code| code.at(call("clGetKernelWorkGroupInfo(CL_KERNEL_WORK_GROUP_SIZE)")))?;
        // For kernels with many registers, NVIDIA's driver reports the limit that would apply if
        // the source did not require a work-group size, which it does.
        if !spec.uses(Language::OpenClC, Feature::TensorCores) {
            self.check_workgroup(spec, name, limit)?;
        }
        let local_bytes = object
            .local_bytes(self.device)
            .map_err(|code| code.at(call("clGetKernelWorkGroupInfo(CL_KERNEL_LOCAL_MEM_SIZE)")))?;
        if local_bytes > u64::from(self.caps.profile.local_bytes) {
            let why = format!(
                "it needs {local_bytes} bytes of local memory, the device has {}",
                self.caps.profile.local_bytes
            );
            return Err(self.unsuited(name, why));
        }
        Ok(Compiled {
            program,
            entry: job.entry.clone(),
            name: name.as_str().into(),
            workgroup: spec.workgroup,
            operands,
            images: spec.bound_images().collect(),
            params_bytes: spec.params_bytes(),
        })
    }

    fn check_workgroup(&self, spec: &KernelSpec, name: &str, limit: u64) -> Result<(), BackendError> {
        if u64::from(spec.workgroup) <= limit {
            return Ok(());
        }
        let why = format!(
            "it needs work-groups of {} work-items, the device allows {limit}",
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

/// The line number of the first error in a compiler's log, in the form `:<line>:<column>`.
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
