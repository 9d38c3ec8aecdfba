//! Elementwise operators as expressions over broadcast operands.
//!
//! Every elementwise operator of ONNX becomes one [`Pointwise`] with a small [`Expr`]; fusing two
//! of them is substitution. An expression has one evaluator (the reference) and two printers
//! (OpenCL C and WGSL). A simple function is one line in a table of `functions`.
//!
//! Opsets from 6 on. Before opset 7, an attribute states the axis that the second operand is
//! aligned with; from 7 on, broadcasting is multidirectional. `Cast` to and from strings is not
//! supported; casts to 8-bit and 4-bit floats are a separate operator,
//! [`CastMini`](crate::graph::op::cast_like::CastMini). `f64` elements are computed in `f64`,
//! narrower floats in `f32`.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::types::Types;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, operand};
use crate::graph::rules;
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::fmt;

mod bounds;
mod cases;
mod dims;
mod eval;
pub(crate) mod import;
mod integer_cases;
mod legacy;
mod lower;
mod print;
mod steps;
#[cfg(test)]
mod tests;

pub use crate::backend::kernel::functions::{Binary, Test, Unary};
pub(crate) use dims::arithmetic;
pub use legacy::AxisBroadcast;
pub(crate) use lower::{ExprSource, epilogue, fill, index, stored_as};

#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    Input(usize),
    /// A number, as a float or, with an integer type, as an integer. Next to another float (or
    /// integer) type it adopts that type.
    Const(f64, DType),
    /// A function of one float.
    Unary(Unary, Box<Expr>),
    /// A predicate of one float; the result is a truth value.
    Test(Test, Box<Expr>),
    Not(Box<Expr>),
    /// A function of two values.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// Condition, value if true, value if false.
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    /// Conversion: float to integer truncates, anything to `bool` is `!= 0`.
    Cast(DType, Box<Expr>),
}

/// The common type of two values; constants adopt the other's type.
fn common(a: (&Expr, DType), b: (&Expr, DType)) -> OpResult<DType> {
    let gives_way = |(e, t): (&Expr, DType), to: DType| {
        matches!(e, Expr::Const(..)) && (t.is_float() && to.is_float() || t.is_int() && to.is_int())
    };
    if a.1 == b.1 || gives_way(b, a.1) {
        Ok(a.1)
    } else if gives_way(a, b.1) {
        Ok(b.1)
    } else {
        Err(OpError::mismatch("element types", a.1, b.1))
    }
}

/// The type, if it is one of `types`.
fn required(dtype: DType, types: Types) -> OpResult<DType> {
    if (types.contains)(dtype) {
        Ok(dtype)
    } else {
        Err(OpError::expected("element type", types.name, dtype))
    }
}

/// The types for which ONNX defines a function of one operand.
fn operands_of_unary(f: Unary) -> Types {
    use Unary::*;
    match f {
        Neg | Abs | Sign | Relu | Erf => Types::NUMBER,
        _ => Types::FLOAT,
    }
}

/// The types for which ONNX defines a function of two operands; `None` for all.
fn operands_of_binary(f: Binary) -> Option<Types> {
    match f {
        Binary::Equal => None,
        f if f.is_logical() => Some(Types::BOOL),
        f if f.is_bitwise() => Some(Types::INTEGER),
        _ => Some(Types::NUMBER),
    }
}

impl Expr {
    /// Number of functions, the cost of an element; conversions and selections are not counted.
    pub fn operations(&self) -> u64 {
        match self {
            Self::Input(_) | Self::Const(..) => 0,
            Self::Unary(_, x) | Self::Test(_, x) | Self::Not(x) => 1 + x.operations(),
            Self::Binary(_, a, b) => 1 + a.operations() + b.operations(),
            Self::Select(a, b, c) => a.operations() + b.operations() + c.operations(),
            Self::Cast(_, x) => x.operations(),
        }
    }

    /// Type of the result for these operand types.
    fn dtype(&self, inputs: &[DType]) -> OpResult<DType> {
        Ok(match self {
            Self::Input(i) => *inputs
                .get(*i)
                .ok_or_else(|| OpError::expected("operand", "given", i))?,
            Self::Const(_, t) | Self::Cast(t, _) => *t,
            Self::Unary(f, x) => required(x.dtype(inputs)?, operands_of_unary(*f))?,
            Self::Not(x) => required(x.dtype(inputs)?, Types::BOOL)?,
            Self::Test(_, x) => {
                required(x.dtype(inputs)?, Types::FLOAT)?;
                DType::Bool
            }
            Self::Binary(f, a, b) => {
                let (ta, tb) = (a.dtype(inputs)?, b.dtype(inputs)?);
                if *f == Binary::Pow {
                    required(tb, Types::NUMBER)?;
                    return required(ta, Types::NUMBER);
                }
                let t = common((a, ta), (b, tb))?;
                if let Some(types) = operands_of_binary(*f) {
                    required(t, types)?;
                }
                if f.is_comparison() || f.is_logical() {
                    DType::Bool
                } else {
                    t
                }
            }
            Self::Select(c, a, b) => {
                let (tc, ta, tb) = (c.dtype(inputs)?, a.dtype(inputs)?, b.dtype(inputs)?);
                if tc != DType::Bool {
                    return Err(OpError::expected("condition", DType::Bool, tc));
                }
                common((a, ta), (b, tb))?
            }
        })
    }

    /// True if the expression tests for NaN or infinity.
    fn tests_numbers(&self) -> bool {
        match self {
            Self::Input(_) | Self::Const(..) => false,
            Self::Test(..) => true,
            Self::Unary(_, x) | Self::Not(x) | Self::Cast(_, x) => x.tests_numbers(),
            Self::Binary(_, a, b) => a.tests_numbers() || b.tests_numbers(),
            Self::Select(c, a, b) => c.tests_numbers() || a.tests_numbers() || b.tests_numbers(),
        }
    }

    /// True if the type occurs in the expression.
    fn names(&self, dtype: DType) -> bool {
        match self {
            Self::Input(_) | Self::Const(..) => false,
            Self::Cast(t, x) => *t == dtype || x.names(dtype),
            Self::Unary(_, x) | Self::Not(x) | Self::Test(_, x) => x.names(dtype),
            Self::Binary(_, a, b) => a.names(dtype) || b.names(dtype),
            Self::Select(c, a, b) => c.names(dtype) || a.names(dtype) || b.names(dtype),
        }
    }

    /// Replaces each operand `i` by `with(i)`.
    pub fn map_inputs(&self, with: &mut dyn FnMut(usize) -> Expr) -> Expr {
        let mut go = |e: &Expr| Box::new(e.map_inputs(with));
        match self {
            Self::Input(i) => with(*i),
            Self::Const(..) => self.clone(),
            Self::Unary(f, x) => Self::Unary(*f, go(x)),
            Self::Not(x) => Self::Not(go(x)),
            Self::Test(t, x) => Self::Test(*t, go(x)),
            Self::Binary(f, a, b) => {
                let a = go(a);
                Self::Binary(*f, a, go(b))
            }
            Self::Select(c, a, b) => {
                let (c, a) = (go(c), go(a));
                Self::Select(c, a, go(b))
            }
            Self::Cast(t, x) => Self::Cast(*t, go(x)),
        }
    }

    /// Number of operators in the expression.
    pub fn size(&self) -> usize {
        1 + match self {
            Self::Input(_) | Self::Const(..) => 0,
            Self::Unary(_, x) | Self::Not(x) | Self::Test(_, x) | Self::Cast(_, x) => x.size(),
            Self::Binary(_, a, b) => a.size() + b.size(),
            Self::Select(c, a, b) => c.size() + a.size() + b.size(),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(i) => f.write_str(NAMES.get(*i).unwrap_or(&"?")),
            Self::Const(v, _) => write!(f, "{v}"),
            Self::Unary(u, x) => write!(f, "{u:?}({x})"),
            Self::Not(x) => write!(f, "Not({x})"),
            Self::Test(t, x) => write!(f, "{t:?}({x})"),
            Self::Binary(b, x, y) => write!(f, "{b:?}({x}, {y})"),
            Self::Select(c, a, b) => write!(f, "Where({c}, {a}, {b})"),
            Self::Cast(t, x) => write!(f, "Cast<{t}>({x})"),
        }
    }
}

/// Broadcasts `x` to `shape`.
pub fn broadcast_to(x: &HostTensor, shape: &[usize]) -> OpResult<HostTensor> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    let lead = shape
        .len()
        .checked_sub(x.shape().len())
        .ok_or_else(|| OpError::mismatch("ranks", format!("{:?}", x.shape()), format!("{shape:?}")))?;
    let mut step = vec![0i64; shape.len()];
    for ((i, d), s) in x
        .shape()
        .iter()
        .enumerate()
        .zip(crate::graph::op::strides(x.shape()))
    {
        if *d != 1 {
            if *d != shape[lead + i] {
                return Err(OpError::mismatch("sizes of a broadcast axis", d, shape[lead + i]));
            }
            step[lead + i] = num::signed(s);
        }
    }
    crate::graph::op::gather_strided(x, shape, 0, &step)
}

/// Maximum number of operands of one kernel.
pub const MAX_INPUTS: usize = 4;
const NAMES: [&str; MAX_INPUTS] = ["a", "b", "c", "d"];

#[derive(Clone, Debug, PartialEq)]
pub struct Pointwise {
    /// ONNX operator type, or `Fused`.
    pub name: String,
    pub expr: Expr,
}

impl Pointwise {
    /// The operator for a binary ONNX function.
    pub fn binary(name: &str, f: Binary) -> Self {
        let [a, b] = [0, 1].map(|i| Box::new(Expr::Input(i)));
        Self {
            name: name.to_owned(),
            expr: Expr::Binary(f, a, b),
        }
    }
}

/// Strides of operands over merged axes.
pub(crate) struct Walk {
    /// Sizes of the merged axes, innermost first.
    pub sizes: Vec<Dim>,
    /// For each operand, its stride along each merged axis.
    pub strides: Vec<Vec<Dim>>,
}

/// Merges neighbouring axes that every operand walks contiguously or not at all.
pub(crate) fn join_axes(out: &Shape, inputs: &[&Shape]) -> OpResult<Walk> {
    let rank = out.rank();
    let mut strides: Vec<Vec<Dim>> = Vec::new();
    for shape in inputs {
        let mut s = vec![Dim::from(0); rank];
        let mut step = Dim::from(1);
        for i in (0..shape.rank()).rev() {
            if !shape.0[i].is(1) {
                s[rank - shape.rank() + i] = step.clone();
                step = step.mul(&shape.0[i])?;
            }
        }
        strides.push(s);
    }
    let mut walk = Walk {
        sizes: Vec::new(),
        strides: vec![Vec::new(); inputs.len()],
    };
    for axis in (0..rank).rev() {
        let size = &out.0[axis];
        if size.is(1) {
            continue;
        }
        // Axes are pushed innermost first; the last one pushed is the inner neighbour.
        let joins = match walk.sizes.last() {
            None => false,
            Some(inner) => strides.iter().zip(&walk.strides).all(|(s, w)| {
                w.last()
                    .is_some_and(|inner_step| inner_step.mul(inner).is_ok_and(|p| p == s[axis]))
            }),
        };
        if joins {
            if let Some(last) = walk.sizes.last_mut() {
                *last = last.mul(size)?;
            }
        } else {
            walk.sizes.push(size.clone());
            for (w, s) in walk.strides.iter_mut().zip(&strides) {
                w.push(s[axis].clone());
            }
        }
    }
    Ok(walk)
}

impl Op for Pointwise {
    fn name(&self) -> &str {
        &self.name
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let mut shape = cx.fact(0)?.shape.clone();
        let mut types = vec![cx.fact(0)?.dtype];
        for i in 1..cx.inputs.len() {
            let f = cx.fact(i)?;
            shape = cx.broadcast(&shape.0, &f.shape.0)?;
            types.push(f.dtype);
        }
        let dtype = self.expr.dtype(&types)?;
        let mut fact = Fact::new(dtype, shape);
        fact.known = dims::known(&self.expr, cx, &fact)?;
        Ok(vec![fact])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let mut shape = Shape::default();
        let mut types = Vec::new();
        for i in 0..inputs.len() {
            let x = operand(inputs, i)?;
            shape = rules::broadcast(&shape.0, &Shape::fixed(x.shape()).0, &rules::equal)?;
            types.push(x.dtype());
        }
        let shape = shape.sizes()?;
        self.expr.dtype(&types)?;
        let wide = types.contains(&DType::F64) || self.expr.names(DType::F64);
        Ok(vec![if wide {
            self.expr.tensor::<f64>(inputs, &types, &shape)?
        } else {
            self.expr.tensor::<f32>(inputs, &types, &shape)?
        }])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        lower::emit(&self.expr, cx)
    }

    fn keeps_precision(&self) -> bool {
        true
    }

    fn bounds(&self, cx: &BoundsCx<'_>) -> Vec<Option<Bounds>> {
        let (types, inputs) = operands(cx);
        vec![types.and_then(|types| self.expr.bounds(&types, &inputs).ok().flatten())]
    }

    fn keeps_all(&self, input: usize, _: &BoundsCx<'_>) -> bool {
        input == 0 && self.expr == Expr::Input(0)
    }

    fn saturates(&self, cx: &BoundsCx<'_>) -> bool {
        let (types, inputs) = operands(cx);
        types.is_some_and(|types| {
            let is_wide = self.expr.is_wide(&types, &inputs, true);
            let is_cast = self.expr.is_cast_of_float(&types);
            is_cast.is_ok_and(|is| is) && is_wide.is_ok_and(|is| !is)
        })
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.results().saturating_mul(self.expr.operations())
    }
}

/// Types and bounds of the operands.
fn operands(cx: &BoundsCx<'_>) -> (Option<Vec<DType>>, Vec<Option<Bounds>>) {
    let all = 0..cx.input_count();
    let types = all.clone().map(|i| Some(cx.fact(i)?.dtype)).collect();
    (types, all.map(|i| cx.input(i)).collect())
}

pub static DEF: OpDef = OpDef {
    onnx: import::ONNX,
    import: import::import,
    kernels: &[&crate::kernels::pointwise::KERNEL.kernel],
    cases: cases::cases,
};
