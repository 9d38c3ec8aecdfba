//! Operators, one file each: its shape rule, reference evaluation and kernel selection. The folders
//! are groups. Paths leave the group out: `op::softmax` is in the folder `reduce`.

use crate::backend::kernel::Kernel;
use crate::graph::ValueId;
use crate::graph::bounds::{Bounds, BoundsCx};
use crate::lower::LowerCx;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};
use parts::Parts;
use sizes::Sizes;
use std::any::Any;
use std::fmt::Debug;

pub mod case;
pub mod composite;
mod error;
mod host;
mod import;
mod indices;
mod infer;
pub mod int8;
mod local_tile;
pub mod parts;
pub mod sizes;
pub mod types;
pub mod window;

/// The groups. Other modules use the operators by their paths without the group.
#[path = "."]
#[expect(clippy::module_inception, reason = "some groups have the name of an operator")]
mod groups {
    pub mod attention;
    pub mod contrib;
    pub mod control;
    pub mod conv;
    pub mod elementwise;
    pub mod matmul;
    pub mod movement;
    pub mod norm;
    pub mod quantized;
    pub mod reduce;
    pub mod signal;
}
pub use groups::{
    attention::*, contrib::*, control::*, conv::*, elementwise::*, matmul::*, movement::*, norm::*,
    quantized::*, reduce::*, signal::*,
};

pub(crate) use crate::num::{max_nan, min_nan, no_number};
pub use error::{OpError, OpResult};
pub use host::{
    Inputs, around, as_usize, axes, axis, count, gather_strided, one_int, operand, strides, to_sizes,
};
pub(crate) use host::{filled, fit, fit_with_contents, fixed_size, nothing, offset_lists, room};
pub use import::{ANY, Attributes, OWN_DOMAIN, OnnxName, microsoft, onnx, own};
pub use infer::{Assumption, DataDependentDim, DimSource, InferCx};

/// Object-safe equality, cloning and down-casting; implemented for every operator by the compiler.
pub trait DynOp {
    fn as_any(&self) -> &dyn Any;
    /// True for the same operator with the same attributes.
    fn dyn_eq(&self, other: &dyn Op) -> bool;
    fn boxed(&self) -> Box<dyn Op>;
}

impl<T: Op + PartialEq + Clone + 'static> DynOp for T {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn dyn_eq(&self, other: &dyn Op) -> bool {
        other.as_any().downcast_ref::<T>().is_some_and(|o| o == self)
    }
    fn boxed(&self) -> Box<dyn Op> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Op> {
    fn clone(&self) -> Self {
        self.as_ref().boxed()
    }
}

impl dyn Op + '_ {
    /// Evaluates the operator on the host with [`Op::eval`]. If no result has an element, shape
    /// inference alone is enough.
    pub fn run(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        if inputs.iter().flatten().any(|x| x.is_empty()) && !self.runs_graphs() {
            // If shape inference fails, the evaluation reports why.
            let derived = host::infer(self, inputs, |_, _| true);
            if let Some(nothing) = derived.ok().as_deref().and_then(nothing) {
                return Ok(nothing);
            }
        }
        self.eval(inputs)
    }
}

impl dyn Op {
    /// The operator as `T`, if it is one.
    pub fn downcast<T: 'static>(&self) -> Option<&T> {
        self.as_any().downcast_ref()
    }
}

/// An operator with its attributes.
pub trait Op: DynOp + Debug + Send + Sync {
    /// ONNX operator type, or its name in the engine's own domain.
    fn name(&self) -> &str;

    /// Types, shapes and known contents of the results.
    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>>;

    /// Evaluates the operator on the host: the reference for every kernel.
    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>>;

    /// Selects kernels and emits their dispatches. Returns [`OpError::NoKernel`] if there is no
    /// kernel for the operands; the node then runs on the host.
    fn lower(&self, _cx: &mut LowerCx<'_>) -> OpResult<()> {
        Err(OpError::NoKernel(format!("{} has no kernel", self.name())))
    }

    /// True if an elementwise function can be applied to result 0 before it is stored. Requires
    /// that kernels write each element of result 0 exactly once, through the accessors of their
    /// only result, and never read it; that the result is a float; and that it is neither a view
    /// nor part of another value. See [`crate::backend::kernel::epilogue`].
    fn supports_epilogue(&self) -> bool {
        false
    }

    /// Builds the nodes that implement this operator by others and returns the values of its
    /// results; unread results may be omitted at the end. `None` (the default) if devices support
    /// the operator directly. All operands are given.
    fn parts(&self, _cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        Ok(None)
    }

    /// True for an operator that runs subgraphs, so that derivation does not know the cost of an
    /// evaluation.
    fn runs_graphs(&self) -> bool {
        false
    }

    /// False for an operand of which only the type, shape or known contents are used: its data need
    /// not exist at run time.
    fn reads(&self, _input: usize) -> bool {
        true
    }

    /// True for an operand whose elements decide shapes or kernels, so that they should be known
    /// when planning. Must be false for an operand that is not read and of which only the shape or
    /// type matters.
    fn decides(&self, input: usize) -> bool {
        !self.reads(input)
    }

    /// True for an operand whose elements the operator only moves, repeats or drops, controlled by
    /// its other operands. Results then hold only such elements and zeros, and derivation tracks
    /// small integers through the operator.
    fn moves(&self, _input: usize) -> bool {
        false
    }

    /// Bounds of the elements of integer results; `None` for one that only its type bounds. The
    /// default serves operators that move elements.
    fn bounds(&self, cx: &BoundsCx<'_>) -> Vec<Option<Bounds>> {
        let moved = (0..cx.input_count()).filter(|i| self.moves(*i) && cx.fact(*i).is_some());
        let zero = Bounds::new(0, 0);
        let all = moved
            .map(|i| cx.input(i))
            .try_fold(zero, |all, b| Some(all.join(b?)));
        vec![all.filter(|_| self.moves(0)); cx.results]
    }

    /// The values of an integer operand with which the operator runs. It fails with any other, on
    /// every backend. `None` if it runs with all.
    fn accepts(&self, _input: usize, _cx: &BoundsCx<'_>) -> Option<Bounds> {
        None
    }

    /// True if result 0 contains every element of the operand, unchanged.
    fn keeps_all(&self, _input: usize, _cx: &BoundsCx<'_>) -> bool {
        false
    }

    /// True if kernels saturate result 0 at the ends of the type in which it is stored. A plan then
    /// stores it in 32 bits if its readers accept no more.
    fn saturates(&self, _cx: &BoundsCx<'_>) -> bool {
        false
    }

    /// True if 8-bit results are stored with one byte per element, as kernels of the integer domain
    /// store them. Otherwise elements take 32 bits.
    fn stores_bytes(&self) -> bool {
        false
    }

    /// True if kernels read 8-bit operands of one byte per element.
    fn reads_bytes(&self) -> bool {
        self.stores_bytes()
    }

    /// True for a float operand that is stored in 32 bits whatever the type of other floats: the
    /// operator turns the smallest differences into steps.
    fn reads_wide(&self, _input: usize) -> bool {
        false
    }

    /// True if a result is stored in 32 bits whenever an operand is. This holds for operators that
    /// move or transform single elements; other results use the plan's storage type.
    fn keeps_precision(&self) -> bool {
        self.moves(0)
    }

    /// Arithmetic operations of a run with these sizes; a multiply-add counts as two. Counts what
    /// the operator defines, not what a kernel does: the terms of matmuls, convolutions, attention
    /// and reductions; one per result element for other operators, which are memory-bound; none for
    /// moves.
    fn flops(&self, sizes: &Sizes) -> u64 {
        if self.moves(0) { 0 } else { sizes.results() }
    }

    /// How many elements of operand `input` a run reads. For moved operands, at most as many as
    /// there are results.
    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        let all = sizes.input_elements(input);
        if self.moves(input) {
            all.min(sizes.results())
        } else {
            all
        }
    }
}

/// Registry entry of one operator file.
#[derive(Debug)]
pub struct OpDef {
    /// Names of the operator in model files.
    pub onnx: &'static [OnnxName],
    /// Creates the operator from a node's attributes.
    pub import: fn(&dyn Attributes) -> OpResult<Box<dyn Op>>,
    /// Kernels that it may use.
    pub kernels: &'static [&'static Kernel],
    /// Conformance cases, also used by benchmarks and the self-test.
    pub cases: fn() -> Vec<case::Case>,
}

/// Import function of an operator that only passes create.
fn never_in_files(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Err(OpError::Unsupported(format!(
        "operator {} in a model file",
        a.op_type()
    )))
}

/// Every operator of this build.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    let groups = [
        groups::attention::OPS,
        groups::contrib::OPS,
        groups::control::OPS,
        groups::conv::OPS,
        groups::elementwise::OPS,
        groups::matmul::OPS,
        groups::movement::OPS,
        groups::norm::OPS,
        groups::quantized::OPS,
        groups::reduce::OPS,
        groups::signal::OPS,
    ];
    groups.into_iter().flatten().copied()
}

/// The device type of elements of a host type with these bounds, given the storage type of floats.
/// Integers take 64 bits, as [`DType::I64`] whatever their signedness, unless the bounds fit 32.
/// Types that devices do not [support](DType::on_devices) are unchanged; they are never stored on a
/// device.
pub fn device_dtype(dtype: DType, float: DType, bounds: Option<Bounds>) -> DType {
    match (dtype, bounds.or_else(|| Bounds::of(dtype))) {
        (DType::F32 | DType::F16, _) => float,
        (_, Some(bounds)) if bounds.fits_32() => DType::I32,
        (_, Some(_)) => DType::I64,
        (other, None) => other,
    }
}

/// Splits a symbolic shape at `axis`: the product of the sizes before, the size at, and the product
/// of the sizes after it.
pub fn split_at(shape: &Shape, axis: usize) -> OpResult<(Dim, Dim, Dim)> {
    let (before, rest) = shape.0.split_at(axis);
    let (at, after) = rest
        .split_first()
        .ok_or_else(|| OpError::expected("axis", "within the shape", axis))?;
    Ok((
        crate::shape::product(before)?,
        at.clone(),
        crate::shape::product(after)?,
    ))
}
