//! The kernels, found by the names of their descriptors.
//!
//! A kernel implements [`Native`] for the arguments of its descriptor. They are declared again with
//! `arguments!`, because this module is a layer below the operators. Compiling a kernel compares
//! their names and types with those of the descriptor.

mod arg_max;
mod attention;
mod check_indices;
mod concat;
mod conv;
mod conv_depthwise;
mod conv_panels;
mod cumulative;
mod dynamic_quantize;
#[cfg(test)]
mod fits;
mod gather;
mod gather_e0m;
mod gather_places;
mod gemm;
mod grid_sample;
#[cfg(test)]
pub mod harness;
mod int8_binary;
mod int8_conv;
mod int8_depthwise;
mod int8_layout;
mod int8_matmul;
mod int8_pool;
mod int8_quantize;
mod int8_softmax;
mod int8_table;
#[cfg(test)]
mod int8_testing;
mod int8_tile;
mod kv_append;
mod kv_append_q8;
mod lrn;
mod matmul;
mod matmul_integer;
mod matmul_panels;
mod moves;
mod norm;
mod pad;
mod pointwise;
mod pool;
mod probe;
mod product_e0m;
mod product_e0m_float;
mod quantize;
mod range;
mod reduce;
mod resize;
mod rotary;
mod rotary_append;
mod softmax;
mod softmax_axis;
mod strided;
#[cfg(test)]
mod testing;
mod top_k;
mod trilu;
mod window;

use super::args::{Arguments, Finish, Kernel as Native, Memory, Scratch, Store};
use super::epilogue::{self, Apply};
use super::isa::Isa;
use super::pool::{Panicked, Pool};
use crate::backend::kernel::epilogue::Epilogue;
use crate::backend::kernel::{FieldTy, Kernel, KernelSpec, Role, args};
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

/// A [`Native`] kernel with its epilogue.
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

impl<K: Native> Compiled for Resolved<K> {
    unsafe fn run(
        &self,
        pool: &Pool,
        grid: [u32; 3],
        words: &[u32],
        operands: &[Option<Memory>],
    ) -> Result<(), Fault> {
        let (args, apply) = self.bind(grid, words, operands).ok_or(Fault::Unfit)?;
        let y = operands.get(self.result).copied().flatten();
        let store = Store {
            y: y.ok_or(Fault::Unfit)?,
            epilogue: apply.as_ref().map(|a| a as &dyn Finish),
        };
        if !self.kernel.fits(&args) {
            return Err(Fault::Unfit);
        }
        let pieces = self.kernel.pieces(&args, pool.threads());
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

impl<K: Native> Resolved<K> {
    /// The arguments of a dispatch, and its epilogue with its own; `None` if some are missing.
    fn bind<'a>(
        &'a self,
        grid: [u32; 3],
        words: &[u32],
        operands: &[Option<Memory>],
    ) -> Option<(K::Args, Option<Apply<'a>>)> {
        let (params, own) = (K::Args::PARAMS.len(), K::Args::OPERANDS.len());
        let mut args = K::Args::read(words.get(..params)?, operands.get(..own)?)?;
        args.set_grid(grid);
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

/// A kernel by name.
struct Entry {
    name: &'static str,
    params: &'static [(&'static str, FieldTy)],
    operands: &'static [&'static str],
    halves: &'static [&'static str],
    longs: &'static [&'static str],
    compile: fn(&KernelSpec, Isa) -> Option<Box<dyn Compiled>>,
}

fn compile_as<K: Native>(spec: &KernelSpec, isa: Isa) -> Option<Box<dyn Compiled>> {
    let result = spec.kernel.args.iter().position(|a| a.role.writes())?;
    Some(Box::new(Resolved {
        kernel: K::new(spec, isa)?,
        epilogue: spec.epilogue.clone(),
        types: spec.operands.clone(),
        result,
        isa,
    }))
}

/// Lists the kernels, each by the descriptor's name and its type.
macro_rules! kernels {
    ($($name:literal $kernel:ty,)*) => {
        static KERNELS: &[Entry] = &[$(Entry {
            name: $name,
            params: <<$kernel as Native>::Args as Arguments>::PARAMS,
            operands: <<$kernel as Native>::Args as Arguments>::OPERANDS,
            halves: <$kernel as Native>::HALVES,
            longs: <$kernel as Native>::LONGS,
            compile: compile_as::<$kernel>,
        }),*];
    };
}

kernels! {
    "arg_max" arg_max::ArgMax,
    "attention" attention::Attention,
    "check_indices" check_indices::CheckIndices,
    "concat" concat::Concat,
    "conv" conv::Conv,
    "conv_depthwise" conv_depthwise::ConvDepthwise,
    "conv_panels" conv_panels::ConvPanels,
    "cumulative" cumulative::Cumulative,
    "dynamic_quantize" dynamic_quantize::DynamicQuantize,
    "gather" gather::Gather,
    "gather_e0m" gather_e0m::GatherE0m,
    "gather_places" gather_places::GatherPlaces,
    "grid_sample" grid_sample::GridSample,
    "int8_binary" int8_binary::Int8Binary,
    "int8_conv" int8_conv::Int8Conv,
    "int8_depthwise" int8_depthwise::Int8Depthwise,
    "int8_dequantize" int8_quantize::Int8Dequantize,
    "int8_enter" int8_layout::Int8Enter,
    "int8_leave" int8_layout::Int8Leave,
    "int8_matmul" int8_matmul::Int8MatMul,
    "int8_pool" int8_pool::Int8Pool,
    "int8_quantize" int8_quantize::Int8Quantize,
    "int8_softmax" int8_softmax::Int8Softmax,
    "int8_table" int8_table::Int8Table,
    "kv_append" kv_append::KvAppend,
    "kv_append_q8" kv_append_q8::KvAppendQ8,
    "lrn" lrn::Lrn,
    "matmul" matmul::MatMul,
    "matmul_integer" matmul_integer::MatMulInteger,
    "matmul_panels" matmul_panels::MatMulPanels,
    "norm" norm::Norm,
    "pad" pad::Pad,
    "pointwise" pointwise::Pointwise,
    "pool" pool::Pool,
    "probe_copy" probe::Copy,
    "probe_dot" probe::Dots,
    "probe_f32" probe::Floats,
    "probe_read" probe::Read,
    "product_e0m" product_e0m::ProductE0m,
    "product_e0m_float" product_e0m_float::ProductE0mFloat,
    "quantize_activations" quantize::Quantize,
    "random" probe::Random,
    "range" range::Range,
    "reduce" reduce::Reduce,
    "resize" resize::Resize,
    "rotary" rotary::Rotary,
    "rotary_append" rotary_append::RotaryAppend,
    "scatter" gather_places::Scatter,
    "softmax" softmax::Softmax,
    "softmax_axis" softmax_axis::SoftmaxAxis,
    "strided" strided::Strided,
    "top_k" top_k::TopK,
    "trilu" trilu::Trilu,
}

/// The kernel for a spec; `None` if there is none for its name, types or defines.
pub fn compile(spec: &KernelSpec, isa: Isa) -> Option<Box<dyn Compiled>> {
    let entry = KERNELS.iter().find(|e| e.name == spec.kernel.name)?;
    let own = spec.kernel.args.len();
    let further = spec.operands.get(own..)?;
    let runs = spec
        .epilogue
        .as_ref()
        .is_none_or(|e| epilogue::supports(e, further));
    let sized = entry.operands.iter().zip(&spec.operands).all(|(name, dtype)| {
        let halves = entry.halves.contains(name) && *dtype == Some(DType::F16);
        let longs = entry.longs.contains(name) && *dtype == Some(DType::I64);
        halves
            || longs
            || dtype.is_none_or(|d| d.size() == size_of::<u32>() || matches!(d, DType::I8 | DType::U8))
    });
    (runs && sized && fits(entry, spec.kernel))
        .then(|| (entry.compile)(spec, isa))
        .flatten()
}

/// Names of all kernels.
pub fn names() -> impl Iterator<Item = &'static str> {
    KERNELS.iter().map(|e| e.name)
}

/// Whether a kernel has the name and the arguments of a descriptor.
pub fn matches(kernel: &Kernel) -> bool {
    KERNELS.iter().any(|e| e.name == kernel.name && fits(e, kernel))
}

/// Whether a kernel declares the arguments of a descriptor.
fn fits(entry: &Entry, kernel: &Kernel) -> bool {
    let names = kernel.args.iter().map(|a| a.name);
    entry.params == kernel.params && names.eq(entry.operands.iter().copied())
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

/// A spec without defines and operands.
#[cfg(test)]
pub fn blank() -> KernelSpec {
    static KERNEL: Kernel = crate::kernel!("softmax" { rows, cols: U32 } [x: In, y: Out]);
    KernelSpec {
        kernel: &KERNEL,
        workgroup: 1,
        defines: std::collections::BTreeMap::new(),
        operands: Vec::new(),
        in_place: None,
        epilogue: None,
        images: std::collections::BTreeMap::new(),
    }
}
