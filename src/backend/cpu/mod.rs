//! The CPU backend: kernels in Rust, for the instruction sets of the processor.
//!
//! There is no compiler and no queue. [`Backend::compile`] chooses a function by the name of the
//! kernel and resolves element types, defines and instruction set. [`Backend::submit`] calls the
//! functions of a recording one after another. Each function divides its dispatch into pieces for
//! the threads of a [`pool`]. Activations are `f32`. Nodes without a kernel run in the interpreter,
//! between two recordings.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "kernels convert between element types; sizes are those of memory"
)]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "most blocks need what the function's `# Safety` states; others have a comment"
)]

pub mod args;
pub mod bytes;
pub mod dispatch;
pub mod epilogue;
pub mod pool;
pub mod simd;

pub use super::isa;

use super::compiled::{Built, Kernels};
use super::kernel::{self, KernelSpec};
use super::{
    Backend, BackendError, BufferId, Caps, Command, DeviceKind, DeviceProfile, KernelCode, KernelId, Launch,
    NativeKernels, OpenOptions, PackedDot, RecordingId, Stats, View, choose, nanoseconds_since, validation,
};
use crate::quota::{self, Reservation};
use crate::tensor::Bytes;
use args::Memory;
use dispatch::{Compiled, Table};
use isa::Isa;
use pool::Pool;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

const NAME: &str = "cpu";
/// Alignment of buffers and views in bytes: that of a cache line and of the longest vector.
const ALIGN: usize = 64;

/// What this processor offers with the kernels of a table.
pub fn list(table: &'static Table) -> Vec<Caps> {
    vec![caps(table, Isa::best(), crate::parallel::cores())]
}

/// Memory of a buffer.
struct Buffer {
    memory: Memory,
    /// Set for shared memory, which commands and writes must not change.
    read_only: bool,
    /// Keeps the memory alive.
    _owner: Box<dyn Send>,
}

struct Allocation {
    base: *mut u8,
    layout: Layout,
    _reservation: Reservation,
}

// SAFETY: the allocation belongs only to its owner.
unsafe impl Send for Allocation {}

impl Buffer {
    /// Zeroed memory, counted by the reservation; `None` if there is not enough memory.
    fn new(bytes: usize, reservation: Reservation) -> Option<Self> {
        // The allocator maps fresh zero pages only for its own alignment.
        let layout = Layout::from_size_align(bytes.checked_add(ALIGN)?, align_of::<u64>()).ok()?;
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return None;
        }
        let offset = base.align_offset(ALIGN);
        // SAFETY: `ALIGN` further bytes were allocated.
        let memory = unsafe { Memory::new(base.add(offset), bytes) };
        Some(Self {
            memory,
            read_only: false,
            _owner: Box::new(Allocation {
                base,
                layout,
                _reservation: reservation,
            }),
        })
    }

    /// A range of bytes of the source, not copied; `None` if it is empty, not aligned or outside.
    fn share(source: &Arc<dyn Bytes>, range: Range<usize>) -> Option<Self> {
        let bytes = source.bytes().get(range)?;
        let aligned = bytes.as_ptr().align_offset(ALIGN) == 0 && !bytes.is_empty();
        aligned.then(|| Self {
            // SAFETY: the source keeps the bytes; weights are only read.
            memory: unsafe { Memory::new(bytes.as_ptr().cast_mut(), bytes.len()) },
            read_only: true,
            _owner: Box::new(Arc::clone(source)),
        })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `Buffer::new` with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// A compiled kernel, with the index of the view of each operand.
struct Prepared {
    spec: KernelSpec,
    compiled: Arc<dyn Compiled>,
    views: Vec<Option<usize>>,
}

/// A command whose operands are resolved.
enum Action {
    Dispatch {
        kernel: Arc<dyn Compiled>,
        operands: Vec<Option<Memory>>,
        step: usize,
        params: std::ops::Range<usize>,
        /// The kernel, for errors.
        id: KernelId,
    },
    Copy {
        src: Memory,
        dst: Memory,
    },
    Fill {
        dst: Memory,
        byte: u8,
    },
}

/// The processor, opened for work.
pub struct Cpu {
    caps: Caps,
    table: &'static Table,
    isa: Isa,
    pool: Arc<Pool>,
    buffers: HashMap<u32, Buffer>,
    next_buffer: u32,
    kernels: Kernels<Prepared>,
    recordings: HashMap<u32, Vec<Action>>,
    next_recording: u32,
    stats: Stats,
}

fn caps(table: &'static Table, isa: Isa, threads: usize) -> Caps {
    let memory = crate::limits::usable_memory();
    let largest = memory.unwrap_or(isize::MAX as u64) & !3;
    let profile = DeviceProfile {
        code: KernelCode::Native(NativeKernels {
            has: table.has,
            runs: table.runs,
        }),
        view_align: ALIGN as u64,
        max_view_bytes: largest,
        local_bytes: 0,
        compute_units: u32::try_from(threads).unwrap_or(u32::MAX),
        max_workgroup: 1024,
        max_grid: u32::MAX,
        packed_dot: match isa {
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => PackedDot::Native,
            _ => PackedDot::None,
        },
        ..DeviceProfile::generic_gpu()
    };
    Caps {
        backend: NAME,
        device: isa::processor(),
        driver: isa.name().to_owned(),
        kind: DeviceKind::Cpu,
        profile,
        params_align: 4,
        max_buffer_bytes: largest,
        memory_bytes: memory.unwrap_or(0),
        profiling: true,
        priorities: false,
        refused: Vec::new(),
    }
}

/// The pool with this number of threads, which all sessions of the process share.
fn shared_pool(threads: usize) -> Arc<Pool> {
    static POOLS: Mutex<BTreeMap<usize, Weak<Pool>>> = Mutex::new(BTreeMap::new());
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(&threads).and_then(Weak::upgrade) {
        return pool;
    }
    let pool = Arc::new(Pool::new(threads));
    pools.insert(threads, Arc::downgrade(&pool));
    pool
}

impl Cpu {
    /// Opens the processor with the kernels of a table.
    ///
    /// # Errors
    ///
    /// [`BackendError::NoDevice`] if its name does not match the options, and
    /// [`BackendError::NotOffered`] for an instruction set that it lacks or a number of threads
    /// that is not available.
    pub fn open(options: &OpenOptions, table: &'static Table) -> Result<Self, BackendError> {
        let isa = options.isa.unwrap_or_else(Isa::best);
        if !isa.is_supported() {
            let all = Isa::supported().map(Isa::name);
            let why = format!(
                "this processor does not support {isa}; it supports {}",
                all.collect::<Vec<_>>().join(", ")
            );
            return Err(BackendError::NotOffered {
                field: "cpu_isa",
                why,
            });
        }
        let cores = crate::parallel::cores();
        let threads = options.threads.unwrap_or(cores);
        if threads == 0 || threads > cores {
            let why = format!(
                "{threads} is out of range; expected 1 to {cores}, the cores that this process may use"
            );
            return Err(BackendError::NotOffered {
                field: "threads",
                why,
            });
        }
        let mut caps = caps(table, isa, threads);
        choose(std::slice::from_ref(&caps), options.device.as_deref())?;
        validation::apply(options.cache.as_deref(), &mut caps);
        Ok(Self {
            caps,
            table,
            isa,
            pool: shared_pool(threads),
            buffers: HashMap::new(),
            next_buffer: 0,
            kernels: Kernels::new(),
            recordings: HashMap::new(),
            next_recording: 0,
            stats: Stats::default(),
        })
    }

    fn add(&mut self, buffer: Buffer) -> BufferId {
        let id = self.next_buffer;
        self.next_buffer += 1;
        if !buffer.read_only {
            self.stats.allocations += 1;
            self.stats.bytes += buffer.memory.elements::<u8>() as u64;
        }
        self.buffers.insert(id, buffer);
        BufferId(id)
    }

    /// The memory of a view that commands and writes may change.
    fn writable(&self, view: View) -> Result<Memory, BackendError> {
        match self.buffers.get(&view.buffer.0).is_some_and(|b| b.read_only) {
            true => Err(internal(
                "view",
                format!("{view:?} is of shared bytes, which are only read"),
            )),
            false => self.memory(view),
        }
    }

    fn memory(&self, view: View) -> Result<Memory, BackendError> {
        let buffer = self.buffers.get(&view.buffer.0);
        let memory = buffer.and_then(|b| {
            b.memory.view(
                usize::try_from(view.offset).ok()?,
                usize::try_from(view.len).ok()?,
            )
        });
        memory.ok_or_else(|| internal("view", format!("{view:?} is outside its buffer")))
    }

    fn action(&self, command: &Command) -> Result<Action, BackendError> {
        Ok(match command {
            Command::Dispatch {
                kernel: id,
                args,
                step,
                params,
            } => {
                let kernel = self.kernels.get(*id)?;
                let spec = &kernel.spec;
                let roles = kernel::args(spec.kernel, spec.epilogue.as_ref()).map(|a| a.role.writes());
                let memory = |(i, writes): (&Option<usize>, bool)| {
                    let view = i.and_then(|i| args.get(i));
                    let find = if writes { Self::writable } else { Self::memory };
                    let aligned = |v: &View| match v.offset.is_multiple_of(ALIGN as u64) {
                        true => find(self, *v),
                        false => Err(internal("view", format!("{v:?} is not aligned to {ALIGN} bytes"))),
                    };
                    view.map(aligned).transpose()
                };
                Action::Dispatch {
                    kernel: Arc::clone(&kernel.compiled),
                    operands: kernel
                        .views
                        .iter()
                        .zip(roles)
                        .map(memory)
                        .collect::<Result<_, _>>()?,
                    step: *step as usize,
                    params: params.start as usize..params.end as usize,
                    id: *id,
                }
            }
            Command::Copy { src, dst } if src.len != dst.len => {
                return Err(internal("copy", format!("{src:?} and {dst:?} differ in length")));
            }
            Command::Copy { src, dst } => Action::Copy {
                src: self.memory(*src)?,
                dst: self.writable(*dst)?,
            },
            Command::Fill { dst, byte } => Action::Fill {
                dst: self.writable(*dst)?,
                byte: *byte,
            },
        })
    }

    fn run(&self, action: &Action, launch: &Launch) -> Result<(), BackendError> {
        match action {
            Action::Dispatch {
                kernel,
                operands,
                step,
                params,
                id,
            } => {
                let fault = |why: String| BackendError::Fault {
                    step: *step,
                    kernel: self
                        .kernels
                        .get(*id)
                        .map_or_else(|_| String::new(), |k| k.spec.to_string()),
                    why,
                };
                let grid = launch.grids.get(*step).copied();
                let grid = grid.ok_or_else(|| fault("has no grid".to_owned()))?;
                if grid.contains(&0) {
                    return Ok(());
                }
                let bytes = launch.params.get(params.clone());
                let bytes = bytes.ok_or_else(|| fault("has no parameters".to_owned()))?;
                let words = bytemuck::try_cast_slice(bytes).map_or_else(
                    |_| Cow::Owned(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()),
                    Cow::Borrowed,
                );
                // SAFETY: the caller holds `&mut self`, so no other command runs; the executor
                // shares memory of operands only as descriptors allow.
                let done = unsafe { kernel.run(&self.pool, grid, &words, operands) };
                done.map_err(|e| fault(e.to_string()))
            }
            Action::Copy { src, dst } => {
                let bytes = src.elements::<u8>();
                // SAFETY: no kernel runs, and both have this length.
                unsafe { std::ptr::copy(src.as_ptr::<u8>(), dst.as_ptr(), bytes) };
                Ok(())
            }
            // SAFETY: no kernel runs.
            Action::Fill { dst, byte } => unsafe {
                dst.slice_mut::<u8>(0..dst.elements::<u8>()).fill(*byte);
                Ok(())
            },
        }
    }

    fn actions(&self, recording: RecordingId) -> Result<&[Action], BackendError> {
        let actions = self.recordings.get(&recording.0).map(Vec::as_slice);
        actions.ok_or_else(|| internal("submit", format!("{recording:?} does not exist")))
    }
}

fn internal(call: &str, why: String) -> BackendError {
    BackendError::Driver {
        call: call.to_owned(),
        why,
    }
}

impl Backend for Cpu {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn create_buffer(&mut self, label: &str, bytes: u64) -> Result<BufferId, BackendError> {
        let full = |why: &str| BackendError::OutOfMemory {
            label: label.to_owned(),
            bytes,
            why: why.to_owned(),
        };
        if bytes > self.caps.max_buffer_bytes {
            return Err(full(
                "more than the memory of the machine, or the limit of the process",
            ));
        }
        let size = usize::try_from(bytes).map_err(|_| full("the address space is smaller"))?;
        let buffer = Buffer::new(size, quota::reserve(size)?);
        let buffer = buffer.ok_or_else(|| full("the system does not have enough memory"))?;
        Ok(self.add(buffer))
    }

    fn share_buffer(&mut self, source: &Arc<dyn Bytes>, range: Range<usize>) -> Option<BufferId> {
        Buffer::share(source, range).map(|buffer| self.add(buffer))
    }

    fn destroy_buffer(&mut self, buffer: BufferId) {
        if let Some(buffer) = self.buffers.remove(&buffer.0)
            && !buffer.read_only
        {
            self.stats.bytes -= buffer.memory.elements::<u8>() as u64;
        }
    }

    fn write(&mut self, dst: View, bytes: &[u8]) -> Result<(), BackendError> {
        let memory = self.writable(dst)?;
        let part = memory.view(0, bytes.len());
        let part = part.ok_or_else(|| internal("write", format!("{} bytes to {dst:?}", bytes.len())))?;
        // SAFETY: no kernel runs.
        unsafe { part.slice_mut::<u8>(0..bytes.len()) }.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, src: View, out: &mut [u8]) -> Result<(), BackendError> {
        let part = self.memory(src)?.view(0, out.len());
        let part = part.ok_or_else(|| internal("read", format!("{} bytes of {src:?}", out.len())))?;
        // SAFETY: no kernel runs.
        out.copy_from_slice(unsafe { part.slice() });
        Ok(())
    }

    fn compile(&mut self, spec: &KernelSpec) -> Result<KernelId, BackendError> {
        if let Some(id) = self.kernels.ids.get(spec) {
            return Ok(*id);
        }
        let compiled =
            dispatch::compile(self.table.entries, spec, self.isa).ok_or_else(|| BackendError::Unsuited {
                kernel: spec.to_string(),
                device: self.caps.device.clone(),
                why: "there is no CPU kernel for these types and defines".to_owned(),
            })?;
        let kernel = Prepared {
            spec: spec.clone(),
            compiled: compiled.into(),
            views: dispatch::views(spec),
        };
        let stored = false;
        self.kernels.add(spec, Built { kernel, stored }, &mut self.stats)
    }

    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, BackendError> {
        let actions = commands
            .iter()
            .map(|c| self.action(c))
            .collect::<Result<_, _>>()?;
        let id = self.next_recording;
        self.next_recording += 1;
        self.recordings.insert(id, actions);
        self.stats.recordings += 1;
        Ok(RecordingId(id))
    }

    fn submit(&mut self, recording: RecordingId, launch: &Launch) -> Result<(), BackendError> {
        let actions = self.actions(recording)?;
        for action in actions {
            self.run(action, launch)?;
        }
        self.stats.launches += actions.len() as u64;
        self.stats.submits += 1;
        Ok(())
    }

    fn profile(&mut self, recording: RecordingId, launch: &Launch) -> Result<Vec<u64>, BackendError> {
        let timed = self.actions(recording)?.iter().map(|action| {
            let start = Instant::now();
            self.run(action, launch).map(|()| nanoseconds_since(start))
        });
        timed.collect()
    }

    fn wait(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn release(&mut self, recording: RecordingId) {
        self.recordings.remove(&recording.0);
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    /// The instruction sets of the processor.
    fn extensions(&self) -> Vec<String> {
        let all = Isa::supported();
        all.map(|isa| isa.name().to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Result<Cpu, BackendError> {
        Cpu::open(&OpenOptions::default(), &crate::kernels::cpu::TABLE)
    }
    use crate::quota::{Exceeded, Quota};

    /// Bytes at a multiple of the alignment.
    #[repr(align(64))]
    struct Aligned([u8; 192]);

    impl Bytes for Aligned {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    #[test]
    fn shared_bytes_are_read_in_place_and_never_written() {
        let mut cpu = open().unwrap();
        let source: Arc<dyn Bytes> = Arc::new(Aligned(std::array::from_fn(|i| i as u8)));
        let buffer = cpu.share_buffer(&source, 64..192).unwrap();
        assert_eq!(Arc::strong_count(&source), 2);
        let view = View {
            buffer,
            offset: 64,
            len: 8,
        };
        let mut found = [0; 8];
        cpu.read(view, &mut found).unwrap();
        assert_eq!(found, [128, 129, 130, 131, 132, 133, 134, 135]);
        let refused = |e: BackendError| matches!(e, BackendError::Driver { .. });
        assert!(refused(cpu.write(view, &[0; 8]).unwrap_err()));
        let fill = Command::Fill { dst: view, byte: 1 };
        assert!(refused(cpu.record(&[fill]).unwrap_err()));
        let copy = Command::Copy { src: view, dst: view };
        assert!(refused(cpu.record(&[copy]).unwrap_err()));
        // Shared bytes do not count as memory of the backend.
        assert_eq!((cpu.stats().allocations, cpu.stats().bytes), (0, 0));
        cpu.destroy_buffer(buffer);
        assert_eq!((Arc::strong_count(&source), cpu.stats().bytes), (1, 0));
        // Ranges that are not aligned, empty or out of bounds.
        for range in [60..124, 64..64, 128..256] {
            assert!(cpu.share_buffer(&source, range.clone()).is_none(), "{range:?}");
        }
    }

    #[test]
    fn dispatch_with_too_small_operand_is_refused() {
        let mut cpu = open().unwrap();
        let buffer = cpu.create_buffer("rows", 128).unwrap();
        let spec = KernelSpec {
            operands: vec![Some(crate::tensor::DType::F32); 2],
            ..crate::kernels::cpu::blank()
        };
        let kernel = cpu.compile(&spec).unwrap();
        let view = |offset, len| View { buffer, offset, len };
        // Three rows of five elements.
        let launch = Launch {
            params: bytemuck::cast_slice(&[3u32, 5]).to_vec(),
            grids: vec![[3, 1, 1]],
        };
        for (x, y, fits) in [(60, 60, true), (56, 60, false), (60, 56, false)] {
            let dispatch = Command::Dispatch {
                kernel,
                args: vec![view(0, x), view(64, y)],
                step: 0,
                params: 0..8,
            };
            let recording = cpu.record(&[dispatch]).unwrap();
            match cpu.submit(recording, &launch) {
                Ok(()) => assert!(fits, "{x} and {y} bytes"),
                Err(BackendError::Fault { step: 0, why, .. }) => {
                    assert!(!fits && why == "does not fit its arguments", "{why}");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn buffers_count_under_the_limit_of_memory() {
        let mut cpu = open().unwrap();
        let quota = Quota::new(100, None, 0);
        let _call = quota.enter();
        let first = cpu.create_buffer("first", 60).unwrap();
        let exceeded = Exceeded::Memory {
            wanted: 48,
            used: 60,
            limit: 100,
        };
        match cpu.create_buffer("second", 48).unwrap_err() {
            BackendError::Exceeded(found) => assert_eq!(found, exceeded),
            other => panic!("{other}"),
        }
        assert_eq!(quota.used(), 60);
        cpu.destroy_buffer(first);
        assert_eq!(quota.used(), 0);
    }
}
