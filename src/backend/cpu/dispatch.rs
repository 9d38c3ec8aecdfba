//! Kernels with their epilogues, compiled for a spec.

use super::args::{BoundArgs, Finish, Memory, NativeKernel, Scratch, Store};
use super::epilogue::{self, Apply};
use super::isa::Isa;
use super::pool::{Panicked, Pool};
use crate::backend::kernel::epilogue::Epilogue;
use crate::backend::kernel::{Arguments, Kernel, KernelSpec, Role, Signature, TypedKernel, args};
use crate::tensor::DType;
use std::cell::RefCell;

/// A kernel for one spec.
pub trait Compiled: Send + Sync {
    /// Runs a dispatch with its grid, the words of the parameter struct, and the operands in the
    /// order of the descriptor and the epilogue.
    ///
    /// # Safety
    ///
    /// No other command runs at the same time. The result shares memory with another operand only
    /// if the descriptor allows it.
    unsafe fn run(
        &self,
        pool: &Pool,
        grid: [u32; 3],
        words: &[u32],
        operands: &[Option<Memory>],
    ) -> Result<(), Fault>;
}

/// Why a dispatch did not run to its end. Each is a bug in this library.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Parameters or operands are missing, operands have fewer elements than the kernel reads or
    /// writes, or the kernel cannot run with these parameters.
    #[error("does not fit its arguments")]
    Unfit,
    /// The kernel panicked.
    #[error("panicked: {}", .0.0)]
    Panicked(Panicked),
}

/// A [`NativeKernel`] with its epilogue.
struct Resolved<K> {
    kernel: K,
    epilogue: Option<Epilogue>,
    /// Types of all operands.
    types: Vec<Option<DType>>,
    /// Index of the operand that receives the results.
    result: usize,
    isa: Isa,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl<K: NativeKernel> Compiled for Resolved<K> {
    unsafe fn run(
        &self,
        pool: &Pool,
        grid: [u32; 3],
        words: &[u32],
        operands: &[Option<Memory>],
    ) -> Result<(), Fault> {
        let (args, apply) = self.bind(words, operands).ok_or(Fault::Unfit)?;
        let y = operands.get(self.result).copied().flatten();
        let store = Store {
            y: y.ok_or(Fault::Unfit)?,
            epilogue: apply.as_ref().map(|a| a as &dyn Finish),
        };
        if !self.kernel.fits(&args) {
            return Err(Fault::Unfit);
        }
        let pieces = self.kernel.work_groups(&args, grid);
        let pieces = pieces.unwrap_or_else(|| self.kernel.pieces(&args, pool.threads()));
        let run = |piece| {
            SCRATCH.with_borrow_mut(|scratch| {
                // SAFETY: the arguments fit; the pool runs each piece once; the rest by the
                // contract.
                unsafe { self.kernel.run(&args, &store, piece, pieces, scratch) };
            });
        };
        pool.run(pieces, &run).map_err(|panicked| {
            self.kernel.abandon();
            Fault::Panicked(panicked)
        })
    }
}

impl<K: NativeKernel> Resolved<K> {
    /// The arguments of a dispatch, and its epilogue with its own; `None` if some are missing.
    fn bind<'a>(
        &'a self,
        words: &[u32],
        operands: &[Option<Memory>],
    ) -> Option<(BoundArgs<K>, Option<Apply<'a>>)> {
        let (params, own) = (K::Signature::PARAMS.len(), K::Signature::OPERANDS.len());
        let args = BoundArgs::<K>::read(words.get(..params)?, operands.get(..own)?)?;
        let apply = match &self.epilogue {
            Some(e) => Some(Apply::new(
                e,
                words.get(params..)?,
                operands.get(own..)?,
                (self.types.get(own..)?, (*self.types.get(self.result)?)?),
                self.isa,
            )?),
            None => None,
        };
        Some((args, apply))
    }
}

/// A native kernel and its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    kernel: &'static Kernel,
    halves: &'static [&'static str],
    longs: &'static [&'static str],
    compile: fn(&KernelSpec, Isa) -> Option<Box<dyn Compiled>>,
}

impl Entry {
    /// The native kernel `K` of a descriptor.
    pub const fn new<K: NativeKernel>(kernel: &'static TypedKernel<K::Signature>) -> Self {
        Self {
            kernel: &kernel.kernel,
            halves: K::HALVES,
            longs: K::LONGS,
            compile: compile_as::<K>,
        }
    }

    /// Whether this is the kernel of a descriptor.
    pub fn is_of(&self, kernel: &Kernel) -> bool {
        let names = |kernel: &Kernel| kernel.args.iter().map(|a| a.name);
        self.kernel.name == kernel.name
            && self.kernel.params == kernel.params
            && names(self.kernel).eq(names(kernel))
    }
}

/// The native kernels that a [`Cpu`](super::Cpu) runs.
#[derive(Debug)]
pub struct Table {
    pub entries: &'static [Entry],
    /// Whether there is a kernel for these types and defines on this processor.
    pub has: fn(&KernelSpec) -> bool,
    /// Whether there is a kernel for some types and defines.
    pub runs: fn(&Kernel) -> bool,
}

fn compile_as<K: NativeKernel>(spec: &KernelSpec, isa: Isa) -> Option<Box<dyn Compiled>> {
    let result = spec.kernel.args.iter().position(|a| a.role.writes())?;
    Some(Box::new(Resolved {
        kernel: K::new(spec, isa)?,
        epilogue: spec.epilogue.clone(),
        types: spec.operands.clone(),
        result,
        isa,
    }))
}

/// The kernel in `table` for a spec; `None` if there is none for its name, types or defines.
pub fn compile(table: &[Entry], spec: &KernelSpec, isa: Isa) -> Option<Box<dyn Compiled>> {
    let entry = table.iter().find(|e| e.is_of(spec.kernel))?;
    let own = spec.kernel.args.len();
    let further = spec.operands.get(own..)?;
    let runs = spec
        .epilogue
        .as_ref()
        .is_none_or(|e| epilogue::supports(e, further));
    let sized = spec.kernel.args.iter().zip(&spec.operands).all(|(arg, dtype)| {
        let halves = entry.halves.contains(&arg.name) && *dtype == Some(DType::F16);
        let longs = entry.longs.contains(&arg.name) && *dtype == Some(DType::I64);
        halves
            || longs
            || dtype.is_none_or(|d| d.size() == size_of::<u32>() || matches!(d, DType::I8 | DType::U8))
    });
    (runs && sized).then(|| (entry.compile)(spec, isa)).flatten()
}

/// For each operand of a spec, in the order of the descriptor and the epilogue: the index of its
/// view, if it has one.
pub fn views(spec: &KernelSpec) -> Vec<Option<usize>> {
    let mut next = 0;
    let mut own = Vec::new();
    for (arg, dtype) in args(spec.kernel, spec.epilogue.as_ref()).zip(&spec.operands) {
        let shared = spec.in_place.is_some() && arg.role == Role::Out;
        own.push((dtype.is_some() && !shared).then(|| {
            next += 1;
            next - 1
        }));
    }
    if let Some(of) = spec.in_place.and_then(|i| own.get(i).copied()) {
        for (arg, slot) in args(spec.kernel, spec.epilogue.as_ref()).zip(&mut own) {
            if arg.role == Role::Out {
                *slot = of;
            }
        }
    }
    own
}
