//! Operators. Each file holds one operator's shape rule, reference evaluation and kernel selection.
//!
//! To add an operator: add a file here, its name in the `ops!` list below, and its pair of kernels.

use crate::backend::kernel::Kernel;
use crate::graph::ValueId;
use crate::graph::body::Body;
use crate::graph::rules;
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Constraints, Dim, DimError, Fact, MAX_KNOWN, Shape, Symbol};
use crate::tensor::{DType, HostTensor, TensorError};
use parts::Parts;
use sizes::Sizes;
use std::any::Any;
use std::cell::RefCell;
use std::fmt::Debug;

/// Why an operator cannot be imported, derived, evaluated or lowered. The caller adds the node's
/// name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    /// Two things that must agree differ.
    #[error("{what} differ: {left} (left) and {right} (right)")]
    Mismatch {
        /// What was compared, in the plural.
        what: &'static str,
        /// First value.
        left: String,
        /// Second value.
        right: String,
    },
    /// Something does not meet a requirement of the operator.
    #[error("{what}: expected {expected}, found {found}")]
    Expected {
        /// What was checked.
        what: String,
        /// The requirement.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// Valid ONNX that this engine does not support.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// No kernel for these operands; the node can run on the host.
    #[error("no kernel: {0}")]
    NoKernel(String),
    /// An error inside the body of a node.
    #[error("{0}")]
    Body(String),
    /// A shape expression failed.
    #[error(transparent)]
    Dim(#[from] DimError),
    /// A host tensor failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A bug in this library.
    #[error("{0} (a bug in this library; please report it with the model's name)")]
    Internal(#[from] crate::num::OutOfRange),
}

impl OpError {
    /// Builds [`OpError::Expected`] from displayable parts.
    pub fn expected(what: impl Into<String>, expected: impl ToString, found: impl ToString) -> Self {
        Self::Expected {
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Builds [`OpError::Mismatch`] from displayable parts.
    pub fn mismatch(what: &'static str, left: impl ToString, right: impl ToString) -> Self {
        Self::Mismatch {
            what,
            left: left.to_string(),
            right: right.to_string(),
        }
    }
}

/// Result of an operator's functions.
pub type OpResult<T> = Result<T, OpError>;

/// Source of the value of a symbol that derivation introduced for data of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An element of an integer operand.
    Element {
        /// The node's operand.
        input: usize,
        /// Position, row-major.
        index: usize,
    },
    /// A size of a result, known after the node has run on the host.
    Size {
        /// The node's result.
        output: usize,
        /// The axis.
        axis: usize,
    },
}

/// A symbol that a node defines; see [`Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDependentDim {
    /// The symbol.
    pub symbol: Symbol,
    /// Where its value comes from.
    pub source: Source,
    /// An upper bound, if the operator knows one.
    pub at_most: Option<Dim>,
}

/// A condition that derivation could not decide but the shapes depend on; checked in each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumed {
    /// Must not be negative; must be zero if `equal`.
    pub dim: Dim,
    /// The expression must be zero.
    pub equal: bool,
    /// What a violation means, with both sides as the model states them.
    pub meaning: String,
}

impl Assumed {
    /// True if the other states the same condition.
    pub fn says(&self, other: &Self) -> bool {
        self.equal == other.equal && self.dim == other.dim
    }
}

/// Input of [`Op::infer`].
#[derive(Debug)]
pub struct InferCx<'a> {
    /// Facts of the operands.
    pub inputs: &'a [Option<&'a Fact>],
    /// Names of operands and results, used to name symbols of unknown sizes.
    names: Option<(&'a [&'a str], &'a [&'a str])>,
    constraints: &'a Constraints,
    made: RefCell<Vec<DataDependentDim>>,
    assumed: RefCell<Vec<Assumed>>,
}

impl<'a> InferCx<'a> {
    /// A context for operands with these facts; `constraints` are those of their symbols.
    pub fn new(inputs: &'a [Option<&'a Fact>], constraints: &'a Constraints) -> Self {
        Self {
            inputs,
            names: None,
            constraints,
            made: RefCell::default(),
            assumed: RefCell::default(),
        }
    }

    /// Sets the names of operands and results.
    #[must_use]
    pub fn named(mut self, inputs: &'a [&'a str], outputs: &'a [&'a str]) -> Self {
        self.names = Some((inputs, outputs));
        self
    }

    /// The symbols and assumptions made by [`Op::infer`].
    pub fn finish(self) -> (Vec<DataDependentDim>, Vec<Assumed>) {
        (self.made.into_inner(), self.assumed.into_inner())
    }

    /// Constraints on the symbols.
    pub fn constraints(&self) -> &Constraints {
        self.constraints
    }

    /// Number of results that are read, if known.
    pub fn output_count(&self) -> Option<usize> {
        self.names.map(|(_, outputs)| outputs.len())
    }

    /// The fact of operand `i`; an error if it is omitted.
    pub fn fact(&self, i: usize) -> OpResult<&Fact> {
        self.opt(i)
            .ok_or_else(|| OpError::expected(format!("input {i}"), "a value", "none"))
    }

    /// The fact of operand `i`, which must be a float of at most 32 bits.
    pub fn float(&self, i: usize) -> OpResult<&Fact> {
        let fact = self.fact(i)?;
        if fact.dtype.is_float() && fact.dtype != DType::F64 {
            return Ok(fact);
        }
        let what = if i == 0 {
            "element type".to_owned()
        } else {
            format!("element type of input {i}")
        };
        let wide = fact.dtype == DType::F64;
        Err(if wide {
            OpError::Unsupported(format!("{what} f64"))
        } else {
            OpError::expected(what, "a float", fact.dtype)
        })
    }

    /// The fact of operand `i`, if given.
    pub fn opt(&self, i: usize) -> Option<&Fact> {
        self.inputs.get(i).copied().flatten()
    }

    /// The elements of integer operand `i` as expressions; an error if they are unknown.
    pub fn dims(&self, i: usize) -> OpResult<Vec<Dim>> {
        self.fact(i)?.as_dims().ok_or_else(|| {
            OpError::Unsupported(format!(
                "input {i} that depends on data (its values must be known before the run)"
            ))
        })
    }

    /// The elements of integer operand `i`, interpreted as sizes. An element that depends on data
    /// becomes a new symbol, whose value is read in the run. Only the number of elements must be
    /// known.
    pub fn sizes(&self, i: usize) -> OpResult<Vec<Dim>> {
        let fact = self.fact(i)?;
        if let Some(dims) = fact.as_dims() {
            return Ok(dims);
        }
        let count = fact
            .shape
            .count()?
            .as_const()
            .and_then(|n| usize::try_from(n).ok());
        let count = count
            .filter(|n| *n <= MAX_KNOWN && fact.dtype.is_int())
            .ok_or_else(|| {
                OpError::expected(
                    format!("input {i}"),
                    format!("a fixed number of integers (at most {MAX_KNOWN})"),
                    fact,
                )
            })?;
        let name = self
            .names
            .and_then(|(inputs, _)| inputs.get(i).copied())
            .unwrap_or("data");
        let make = |index| {
            self.make(
                &format!("{name}_{index}"),
                Source::Element { input: i, index },
                None,
            )
        };
        Ok((0..count).map(make).collect())
    }

    /// A new symbol for the size of result `output` along `axis`, which is known only in the run.
    /// The node then runs on the host. `at_most` is an upper bound, if known.
    pub fn unknown(&self, output: usize, axis: usize, at_most: Option<Dim>) -> Dim {
        let name = self
            .names
            .and_then(|(_, outputs)| outputs.get(output).copied())
            .unwrap_or("result");
        self.make(&format!("{name}_{axis}"), Source::Size { output, axis }, at_most)
    }

    fn make(&self, name: &str, source: Source, at_most: Option<Dim>) -> Dim {
        let symbol = Symbol::new(name);
        let dim = Dim::from(&symbol);
        let mut made = self.made.borrow_mut();
        if made.iter().all(|m| m.source != source) {
            made.push(DataDependentDim {
                symbol,
                source,
                at_most,
            });
        }
        dim
    }

    /// One of two sizes that must be equal. An equality that depends on symbols becomes an
    /// assumption that each run checks. `what` names the two, in the plural.
    pub fn same(&self, what: &'static str, a: &Dim, b: &Dim) -> OpResult<Dim> {
        match self.constraints.equal(a, b) {
            Some(true) => Ok(a.clone()),
            Some(false) => Err(OpError::mismatch(what, a, b)),
            None => {
                let meaning = format!("{what} differ: {a} (left) and {b} (right)");
                self.assumed.borrow_mut().push(Assumed {
                    dim: a.sub(b)?,
                    equal: true,
                    meaning,
                });
                // Prefer a number over an expression, and a polynomial over `min` or `max`.
                let plainer = b.as_const().is_some() || b.is_polynomial() && !a.is_polynomial();
                Ok(if plainer { b.clone() } else { a.clone() })
            }
        }
    }

    /// Two shapes under multidirectional broadcasting; see [`rules::broadcast`].
    pub fn broadcast(&self, a: &[Dim], b: &[Dim]) -> OpResult<Shape> {
        rules::broadcast(a, b, &|what, a, b| self.same(what, a, b))
    }

    /// Requires that `dim` is not negative in any run; `meaning` describes `dim` in the error.
    pub fn require(&self, dim: Dim, meaning: &str) -> OpResult<()> {
        match self.constraints.at_least(&dim, 0) {
            Some(true) => Ok(()),
            Some(false) => Err(OpError::expected(meaning, "0 or more", &dim)),
            None => {
                self.assumed.borrow_mut().push(Assumed {
                    dim,
                    equal: false,
                    meaning: meaning.to_owned(),
                });
                Ok(())
            }
        }
    }

    /// Adds the assumptions of nested operators.
    pub fn assume(&self, list: impl IntoIterator<Item = Assumed>) {
        self.assumed.borrow_mut().extend(list);
    }

    /// Infers the results of another operator for operands with these facts, adding its
    /// assumptions.
    pub fn of(&self, op: &dyn Op, inputs: &[Option<&Fact>]) -> OpResult<Vec<Fact>> {
        let inner = InferCx::new(inputs, self.constraints);
        let facts = op.infer(&inner)?;
        self.assume(inner.finish().1);
        Ok(facts)
    }

    /// The elements of integer operand `i`; an error unless they are constant.
    pub fn ints(&self, i: usize) -> OpResult<Vec<i64>> {
        self.dims(i)?
            .iter()
            .map(|d| {
                d.as_const()
                    .ok_or_else(|| OpError::expected(format!("input {i}"), "constant integers", d))
            })
            .collect()
    }
}

/// Operands of [`Op::eval`]; `None` for an omitted optional operand.
pub type Inputs<'a> = [Option<&'a HostTensor>];

/// Operand `i` of an evaluation; an error if it is omitted.
pub fn operand<'a>(inputs: &Inputs<'a>, i: usize) -> OpResult<&'a HostTensor> {
    inputs
        .get(i)
        .copied()
        .flatten()
        .ok_or_else(|| OpError::expected(format!("input {i}"), "a value", "none"))
}

/// Runs [`Op::infer`] on the types and shapes of operands and fails if they do not match, so that
/// an evaluation needs no checks of its own.
pub(super) fn fit(op: &dyn Op, inputs: &Inputs<'_>) -> OpResult<Vec<Fact>> {
    let plain = |x: &HostTensor| Fact::new(x.dtype(), Shape::fixed(x.shape()));
    let facts: Vec<Option<Fact>> = inputs.iter().map(|x| x.map(plain)).collect();
    let facts: Vec<Option<&Fact>> = facts.iter().map(Option::as_ref).collect();
    op.infer(&InferCx::new(&facts, &Constraints::default()))
}

/// Tensors with these facts, if all sizes are known and no tensor has an element.
pub(crate) fn nothing<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Option<Vec<HostTensor>> {
    let empty = |fact: &Fact| {
        let shape = fact.shape.as_fixed().filter(|s| s.contains(&0))?;
        HostTensor::zeros(fact.dtype, &shape).ok()
    };
    facts.into_iter().map(empty).collect()
}

/// Object-safe equality, cloning and down-casting; implemented for every operator by the compiler.
pub trait DynOp {
    /// For down-casting.
    fn as_any(&self) -> &dyn Any;
    /// True for the same operator with the same attributes.
    fn dyn_eq(&self, other: &dyn Op) -> bool;
    /// A copy.
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
            let facts: Vec<Option<Fact>> = inputs
                .iter()
                .map(|x| x.map(|x| Fact::of(x.clone().into())))
                .collect();
            let facts: Vec<Option<&Fact>> = facts.iter().map(Option::as_ref).collect();
            // If shape inference fails, the evaluation reports why.
            let derived = self.infer(&InferCx::new(&facts, &Constraints::default()));
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
    fn takes_epilogue(&self) -> bool {
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

/// Typed access to the attributes of a node during import. Import fails if an attribute is not
/// read.
pub trait Attributes {
    /// Operator type in the file.
    fn op_type(&self) -> &str;
    /// Opset version of the operator's domain that the model declares.
    fn opset(&self) -> i64;
    /// Number of operands, without trailing omitted ones.
    fn input_count(&self) -> usize;
    /// True if operand `i` is given.
    fn has_input(&self, i: usize) -> bool;
    /// Removes omitted operands from the node; later operands move forward.
    fn drop_omitted(&self);
    /// Appends a constant operand, to convert older forms of an operator to newer ones.
    fn add_operand(&self, tensor: HostTensor);
    /// An integer.
    fn int(&self, name: &str) -> OpResult<Option<i64>>;
    /// A float.
    fn float(&self, name: &str) -> OpResult<Option<f32>>;
    /// A list of integers.
    fn ints(&self, name: &str) -> OpResult<Option<Vec<i64>>>;
    /// A tensor.
    fn tensor(&self, name: &str) -> OpResult<Option<HostTensor>>;
    /// A string.
    fn string(&self, name: &str) -> OpResult<Option<String>>;
    /// A list of strings.
    fn strings(&self, name: &str) -> OpResult<Option<Vec<String>>>;
    /// A list of floats.
    fn floats(&self, name: &str) -> OpResult<Option<Vec<f32>>>;
    /// A subgraph of the node. Values that it captures become further operands of the node, after
    /// those that [`Attributes::input_count`] counts and after the first `after`.
    fn graph(&self, name: &str, after: usize) -> OpResult<Option<Body>>;
    /// Number of results, without trailing omitted ones.
    fn output_count(&self) -> usize;
    /// Number of results, including omitted ones.
    fn result_count(&self) -> usize;
}

/// The name of an operator in a domain, from an opset version on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnnxName {
    /// Domain; empty for standard ONNX.
    pub domain: &'static str,
    /// Operator type.
    pub name: &'static str,
    /// First opset version with the semantics that the import function implements.
    pub since: i64,
}

/// Domain of the operators that are specific to this engine.
pub const OWN_DOMAIN: &str = "ai.transformer_lite";

/// A standard operator from opset `since` on.
pub const fn onnx(name: &'static str, since: i64) -> OnnxName {
    OnnxName {
        domain: "",
        name,
        since,
    }
}

/// An operator of [`OWN_DOMAIN`].
pub const fn own(name: &'static str) -> OnnxName {
    OnnxName {
        domain: OWN_DOMAIN,
        name,
        since: 1,
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

/// Declares the operator modules and the list of their definitions.
macro_rules! ops {
    ($($module:ident),* $(,)?) => {
        $(pub mod $module;)*
        /// Every operator of this build.
        pub const ALL: &[&OpDef] = &[$(&$module::DEF),*];
    };
}

pub mod case;
mod local_tile;
pub mod parts;
pub mod sizes;
pub mod window;

ops! {
    affine_grid,
    arg_max,
    attention,
    attention_q8,
    axes_norm,
    batch_norm,
    bit_cast,
    cast_like,
    causal_conv,
    center_crop_pad,
    col2im,
    compress,
    concat,
    constant_of_shape,
    conv,
    conv_integer,
    conv_transpose,
    cumulative,
    deform_conv,
    dequantize_kv,
    depth_to_space,
    det,
    dft,
    dropout,
    einsum,
    expand,
    eye_like,
    fused,
    gather,
    gather_e0m,
    gather_elements,
    gather_nd,
    gemm,
    global_pool,
    grid_sample,
    group_query_attention,
    if_else,
    gated_matmul_e0m,
    joint_matmul_e0m,
    kv_append,
    kv_append_q8,
    linear_attention,
    log_softmax,
    loop_body,
    lrn,
    matmul,
    matmul_e0m,
    matmul_integer,
    matmul_nbits,
    max_unpool,
    mel_weights,
    multi_head_attention,
    non_max_suppression,
    non_zero,
    norm,
    one_hot,
    pad,
    pointwise,
    pool,
    quantize_linear,
    range,
    recurrent,
    reduce,
    reshape,
    resize,
    reverse_sequence,
    rms_norm,
    roi_align,
    rotary,
    rotary_append,
    rotary_embedding,
    scan,
    scatter,
    sdpa,
    shape_of,
    size_of,
    slice,
    softmax,
    split,
    tensor_scatter,
    tfidf,
    tile,
    top_k,
    transpose,
    trilu,
    unique,
    window_function,
}

/// Converts an ONNX axis, which may be negative, to an index below `rank`.
pub fn axis(axis: i64, rank: usize) -> OpResult<usize> {
    let r = num::signed(rank);
    let a = if axis < 0 { axis + r } else { axis };
    usize::try_from(a)
        .ok()
        .filter(|a| *a < rank)
        .ok_or_else(|| OpError::expected("axis", format!("-{rank} to {}", rank.saturating_sub(1)), axis))
}

/// Number of elements of a shape; an error if it overflows.
pub fn count(shape: &[usize]) -> OpResult<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    Ok(count.ok_or_else(|| TensorError::TooLarge(shape.to_vec()))?)
}

/// Size limit of a tensor made by an operator, in bytes. Needed because sizes can come from data.
const MOST_BYTES: usize = 1 << 34;

/// An empty list with room for the elements of a shape; an error if there is not enough memory.
pub(super) fn room<T>(shape: &[usize]) -> OpResult<Vec<T>> {
    let too_large = || OpError::from(TensorError::TooLarge(shape.to_vec()));
    let count = count(shape)?;
    let bytes = count.checked_mul(size_of::<T>());
    bytes.filter(|n| *n <= MOST_BYTES).ok_or_else(too_large)?;
    let mut out = Vec::new();
    out.try_reserve_exact(count).map_err(|_| too_large())?;
    Ok(out)
}

/// A list with one `value` per element of a shape; see [`room`].
pub(super) fn filled<T: Clone>(shape: &[usize], value: T) -> OpResult<Vec<T>> {
    let mut out = room(shape)?;
    out.resize(count(shape)?, value);
    Ok(out)
}

/// The larger number; NaN propagates, as in ONNX. Kernels never see NaN: see the numeric contract.
pub(super) fn max_nan<T: PartialOrd>(a: T, b: T) -> T {
    if a >= b || no_number(&a) { a } else { b }
}

/// The smaller number; see [`max_nan`].
pub(super) fn min_nan<T: PartialOrd>(a: T, b: T) -> T {
    if a <= b || no_number(&a) { a } else { b }
}

/// True for NaN; false for all integers.
pub(super) fn no_number<T: PartialOrd>(v: &T) -> bool {
    v.partial_cmp(v).is_none()
}

/// Offsets of the elements of a shape, as two lists whose pairwise sums are all offsets: along the
/// axes that are not in `axes`, and along those that are.
pub(super) fn places(shape: &[usize], axes: &[usize]) -> OpResult<[Vec<usize>; 2]> {
    let mut lists = [vec![0usize], vec![0usize]];
    for (i, (n, step)) in shape.iter().zip(strides(shape)).enumerate() {
        let list = &mut lists[usize::from(axes.contains(&i))];
        let mut longer = room(&[list.len(), *n])?;
        longer.extend(list.iter().flat_map(|base| (0..*n).map(move |j| base + j * step)));
        *list = longer;
    }
    Ok(lists)
}

/// The size as a number, if it is constant.
pub fn as_usize(d: &Dim) -> Option<usize> {
    d.as_const().and_then(|v| usize::try_from(v).ok())
}

/// The elements of an integer tensor as sizes; an error if one is negative.
pub fn to_sizes(list: &HostTensor) -> OpResult<Vec<usize>> {
    let size = |d| usize::try_from(d).map_err(|_| OpError::expected("size", "0 or more", d));
    list.to_i64()?.into_iter().map(size).collect()
}

/// The only element of an integer tensor; `what` names the operand in the error.
pub fn one_int(tensor: &HostTensor, what: &str) -> OpResult<i64> {
    match tensor.to_i64()?.as_slice() {
        [one] => Ok(*one),
        _ => Err(OpError::expected(what, "one integer", format!("{tensor:?}"))),
    }
}

/// Splits `shape` at `axis`: the product of the sizes before, the size at, and the product of the
/// sizes after it.
pub fn around(shape: &[usize], axis: usize) -> OpResult<(usize, usize, usize)> {
    match shape.split_at_checked(axis) {
        Some((before, [at, after @ ..])) => Ok((count(before)?, *at, count(after)?)),
        _ => Err(OpError::expected("axis", "within the shape", axis)),
    }
}

/// Row-major strides of a shape, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1usize; shape.len()];
    for i in (1..shape.len()).rev() {
        // Without elements, strides may overflow, but are not used.
        out[i - 1] = out[i].saturating_mul(shape[i]);
    }
    out
}

/// Gathers `x` element by element: result element at multi-index `m` of `shape` is
/// `x[start + sum(m * stride)]`.
pub fn gather_strided(x: &HostTensor, shape: &[usize], start: usize, step: &[i64]) -> OpResult<HostTensor> {
    let size = x.dtype().size();
    let count = count(shape)?;
    if count == 0 {
        return Ok(HostTensor::zeros(x.dtype(), shape)?);
    }
    let mut out: Vec<u8> = room(&[count, size])?;
    let bytes = x.bytes()?;
    // Merge neighbouring axes that can be walked as one.
    let mut axes: Vec<(usize, i64)> = Vec::new();
    for (n, step) in shape.iter().zip(step).filter(|(n, _)| **n != 1) {
        match axes.last_mut() {
            Some(outer) if outer.1 == step.saturating_mul(num::signed(*n)) => *outer = (outer.0 * n, *step),
            _ => axes.push((*n, *step)),
        }
    }
    let (inner, inner_step) = axes.pop().unwrap_or((1, 1));
    let mut index = vec![0usize; axes.len()];
    let mut at = num::signed(start);
    for _ in 0..count / inner {
        let last = at.saturating_add(inner_step.saturating_mul(num::signed(inner - 1)));
        let (low, high) = (at.min(last), at.max(last));
        let range = usize::try_from(low)
            .ok()
            .zip(usize::try_from(high).ok())
            .and_then(|(low, high)| {
                bytes.get(low.checked_mul(size)?..high.checked_add(1)?.checked_mul(size)?)
            });
        let row = range.ok_or_else(|| OpError::expected("element", format!("below {}", x.len()), last))?;
        match inner_step {
            1 => out.extend_from_slice(row),
            0 => (0..inner).for_each(|_| out.extend_from_slice(row)),
            s => {
                let apart = num::exact::<usize, _>(s.unsigned_abs(), "a stride")? * size;
                let from = |i: usize| row.get(i..i + size).unwrap_or_default();
                if s > 0 {
                    (0..inner).for_each(|i| out.extend_from_slice(from(i * apart)));
                } else {
                    (0..inner)
                        .rev()
                        .for_each(|i| out.extend_from_slice(from(i * apart)));
                }
            }
        }
        for (i, (n, step)) in index.iter_mut().zip(&axes).rev() {
            *i += 1;
            at += step;
            if *i < *n {
                break;
            }
            at -= step * num::signed(*n);
            *i = 0;
        }
    }
    Ok(HostTensor::from_bytes(x.dtype(), shape, &out)?)
}

/// Limit on the total loop iterations of one work-item. A CPU driver silently stops loops at
/// 65,535.
pub const MOST_LOOPS: i64 = 60_000;

/// The device type of a host type, given the storage type of floats. Types that devices do not
/// [support](DType::on_devices) are unchanged; they are never stored on a device.
pub fn device_dtype(dtype: DType, float: DType) -> DType {
    match dtype {
        DType::F32 | DType::F16 => float,
        DType::I64 | DType::I32 | DType::U8 | DType::I8 | DType::Bool => DType::I32,
        other => other,
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
