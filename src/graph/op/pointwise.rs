//! Elementwise operators as expressions over broadcast operands.
//!
//! Every elementwise operator of ONNX becomes one [`Pointwise`] with a small [`Expr`]; fusing two
//! of them is substitution. An expression has one evaluator (the reference) and two printers
//! (OpenCL C and WGSL). A simple function is one line in a table of `functions`.
//!
//! Opsets from 6 on. Before opset 7, an attribute states the axis that the second operand is
//! aligned with; from 7 on, broadcasting is multidirectional. `Cast` to and from strings is not
//! supported; casts to 8-bit and 4-bit floats are a separate operator,
//! [`CastMini`](super::cast_like::CastMini). `f64` elements are computed in `f64`, narrower floats
//! in `f32`.

use super::parts::Parts;
use super::sizes::Sizes;
use super::{InferCx, Inputs, Op, OpDef, OpError, OpResult, operand};
use crate::graph::{ValueId, rules};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::fmt;

mod cases;
mod dims;
mod finite;
mod functions;
pub(super) mod import;
mod legacy;
mod lower;
mod real;

pub(super) use dims::arithmetic;
pub use functions::{Binary, Unary};
pub use legacy::AxisBroadcast;
pub(super) use lower::{ExprSource, KERNEL, epilogue, fill};
use real::{Real, rounded};

/// An elementwise expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// Operand by index.
    Input(usize),
    /// A number, as a float or, with an integer type, as an integer. Next to another float (or
    /// integer) type it adopts that type.
    Const(f64, DType),
    /// A function of one float.
    Unary(Unary, Box<Expr>),
    /// A predicate of one float; the result is a truth value.
    Test(Test, Box<Expr>),
    /// Logical negation.
    Not(Box<Expr>),
    /// A function of two values.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// Condition, value if true, value if false.
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    /// Conversion: float to integer truncates, anything to `bool` is `!= 0`.
    Cast(DType, Box<Expr>),
}

/// A predicate of a float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// Not a number.
    Nan,
    /// Infinite, with the selected signs.
    Infinite {
        /// Minus infinity counts.
        negative: bool,
        /// Plus infinity counts.
        positive: bool,
    },
}

impl Test {
    fn holds<F: Real>(self, x: F) -> bool {
        match self {
            Self::Nan => x.is_nan(),
            Self::Infinite { negative, positive } => {
                x.is_infinite() && if x < F::of(0.0) { negative } else { positive }
            }
        }
    }
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

/// A dense intermediate of the evaluator.
enum Buffer<F> {
    Floats(Vec<F>),
    /// Integers; `u64` elements as their bits.
    Ints(Vec<i64>),
}

/// The `u64` elements with these bits.
fn unsigned(bits: &[i64]) -> &[u64] {
    bytemuck::cast_slice(bits)
}

/// Applies `f` to the elements of two lists of equal length.
fn both<A: Copy, B: Copy, T>(a: &[A], b: &[B], f: impl Fn(A, B) -> T) -> Vec<T> {
    a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
}

/// Applies `f` to each element.
fn each<A: Copy, T>(a: &[A], f: impl Fn(A) -> T) -> Vec<T> {
    a.iter().map(|v| f(*v)).collect()
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
            Self::Unary(_, x) => x.dtype(inputs)?,
            Self::Not(_) => DType::Bool,
            Self::Test(_, x) => match x.dtype(inputs)? {
                t if t.is_float() => DType::Bool,
                t => return Err(OpError::expected("element type", "a float", t)),
            },
            Self::Binary(f, a, b) => {
                let (ta, tb) = (a.dtype(inputs)?, b.dtype(inputs)?);
                if *f == Binary::Pow {
                    return Ok(ta);
                }
                let t = common((a, ta), (b, tb))?;
                if f.is_bitwise() && !t.is_int() {
                    return Err(OpError::expected("element type", "an integer type", t));
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

    /// Evaluates the expression to a tensor of type `dtype`.
    fn tensor<F: Real>(&self, inputs: &Inputs<'_>, types: &[DType], shape: &[usize]) -> OpResult<HostTensor> {
        let dtype = self.dtype(types)?;
        Ok(match self.eval::<F>(inputs, types, shape)? {
            Buffer::Floats(v) => F::write(dtype, shape, &v)?,
            Buffer::Ints(v) => HostTensor::from_ints(dtype, shape, &v)?,
        })
    }

    fn eval<F: Real>(&self, inputs: &Inputs<'_>, types: &[DType], shape: &[usize]) -> OpResult<Buffer<F>> {
        use Buffer::{Floats, Ints};
        let go = |e: &Self| e.eval::<F>(inputs, types, shape);
        // Unsigned comparison and division differ from signed.
        let is_unsigned = |e: &Self| Ok::<_, OpError>(e.dtype(types)? == DType::U64);
        Ok(match self {
            Self::Input(i) => {
                let x = operand(inputs, *i)?;
                let full = broadcast_to(x, shape)?;
                if x.dtype().is_float() {
                    Floats(F::read(&full)?.into_owned())
                } else {
                    Ints(full.to_bits()?)
                }
            }
            Self::Const(v, t) if t.is_float() => Floats(super::filled(shape, F::of(*v))?),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "constants are stored widened from these types"
            )]
            Self::Const(v, _) => Ints(super::filled(shape, *v as i64)?),
            Self::Unary(f, x) => match (go(x)?, f) {
                (Floats(v), f) => Floats(v.into_iter().map(|x| f.apply(x)).collect()),
                (Ints(v), Unary::Neg) => Ints(each(&v, i64::wrapping_neg)),
                (Ints(v), Unary::Abs | Unary::Relu) if is_unsigned(x)? => Ints(v),
                (Ints(v), Unary::Sign) if is_unsigned(x)? => Ints(each(&v, |x| i64::from(x != 0))),
                (Ints(v), Unary::Abs) => Ints(each(&v, i64::wrapping_abs)),
                (Ints(v), Unary::Sign) => Ints(each(&v, i64::signum)),
                (Ints(v), Unary::Relu) => Ints(each(&v, |x| x.max(0))),
                _ => return Err(OpError::Unsupported(format!("{f:?} on integers"))),
            },
            Self::Not(x) => match go(x)? {
                Ints(v) => Ints(each(&v, |x| i64::from(x == 0))),
                Floats(_) => return Err(OpError::expected("operand of Not", DType::Bool, "a float")),
            },
            Self::Test(test, x) => match go(x)? {
                Floats(v) => Ints(each(&v, |x| i64::from(test.holds(x)))),
                Ints(_) => return Err(OpError::expected("operand of a test", "a float", "an integer")),
            },
            Self::Binary(f, x, y) => match (go(x)?, go(y)?) {
                (Floats(a), Floats(b)) if f.is_comparison() => {
                    Ints(both(&a, &b, |a, b| i64::from(f.compare(&a, &b))))
                }
                (Floats(a), Floats(b)) => Floats(both(&a, &b, |a, b| f.floats(a, b))),
                (Ints(a), Ints(b)) => match (f.is_comparison(), is_unsigned(x)? || is_unsigned(y)?) {
                    (false, false) => Ints(both(&a, &b, |a, b| f.ints(a, b))),
                    (false, true) => {
                        let y = both(unsigned(&a), unsigned(&b), |a, b| f.ints(a, b));
                        Ints(bytemuck::cast_slice(&y).to_vec())
                    }
                    (true, false) => Ints(both(&a, &b, |a, b| i64::from(f.compare(&a, &b)))),
                    (true, true) => Ints(both(unsigned(&a), unsigned(&b), |a, b| {
                        i64::from(f.compare(&a, &b))
                    })),
                },
                (Floats(a), Ints(b)) if is_unsigned(y)? => {
                    Floats(both(&a, unsigned(&b), |a, b| f.floats(a, F::of_u64(b))))
                }
                (Floats(a), Ints(b)) => Floats(both(&a, &b, |a, b| f.floats(a, F::of_i64(b)))),
                // ONNX `Pow` returns to the base's type.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_precision_loss,
                    reason = "see above"
                )]
                (Ints(a), Floats(b)) => Ints(both(&a, &b, |a, b| (a as f64).powf(b.to_f64()) as i64)),
            },
            Self::Select(c, a, b) => {
                let Ints(c) = go(c)? else {
                    return Err(OpError::expected("condition", DType::Bool, "a float"));
                };
                fn chosen<T: Copy>(c: &[i64], a: &[T], b: &[T]) -> Vec<T> {
                    let pairs = c.iter().zip(a.iter().zip(b));
                    pairs.map(|(c, (a, b))| if *c != 0 { *a } else { *b }).collect()
                }
                match (go(a)?, go(b)?) {
                    (Floats(a), Floats(b)) => Floats(chosen(&c, &a, &b)),
                    (Ints(a), Ints(b)) => Ints(chosen(&c, &a, &b)),
                    _ => return Err(OpError::mismatch("element types", "float", "integer")),
                }
            }
            Self::Cast(t, x) => match (go(x)?, t) {
                (Floats(v), DType::Bool) => Ints(each(&v, |x| i64::from(x != F::of(0.0)))),
                (Ints(v), DType::Bool) => Ints(each(&v, |x| i64::from(x != 0))),
                (Floats(v), t) if t.is_float() => Floats(each(&v, |x| rounded(*t, x))),
                (Floats(v), DType::U64) => {
                    let y = each(&v, F::to_u64);
                    Ints(bytemuck::cast_slice(&y).to_vec())
                }
                // Floats are truncated towards zero.
                (Floats(v), t) => Ints(each(&v, |x| t.wrap(x.to_i64()))),
                (Ints(v), t) if t.is_float() && is_unsigned(x)? => Floats(each(unsigned(&v), F::of_u64)),
                (Ints(v), t) if t.is_float() => Floats(each(&v, F::of_i64)),
                (Ints(v), t) => Ints(each(&v, |x| t.wrap(x))),
            },
        })
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

    /// Prints the expression over the variables `a`, `b`, ... in WGSL or OpenCL C. 8-bit integers
    /// wrap to their low bits, as on the host, although devices use 32 bits for each.
    fn print(&self, types: &[DType], wgsl: bool) -> OpResult<String> {
        let text = self.print_wide(types, wgsl)?;
        let computes = match self {
            Self::Cast(..) | Self::Unary(..) => true,
            Self::Binary(f, ..) => !f.is_comparison() && !f.is_logical(),
            _ => false,
        };
        Ok(match self.dtype(types)? {
            DType::U8 if computes => format!("({text} & 255)"),
            DType::I8 if computes && wgsl => format!("(({text} << 24u) >> 24u)"),
            DType::I8 if computes => format!("(({text} << 24) >> 24)"),
            _ => text,
        })
    }

    fn print_wide(&self, types: &[DType], wgsl: bool) -> OpResult<String> {
        Ok(match self {
            Self::Input(i) => NAMES.get(*i).map_or_else(String::new, |n| format!("v{n}")),
            Self::Const(v, t) if t.is_float() => {
                if v.is_nan() {
                    return Err(OpError::NoKernel("a NaN constant".to_owned()));
                }
                let v = v.clamp(f64::from(f32::MIN), f64::from(f32::MAX));
                // A literal without suffix is a double in OpenCL C, which many devices lack.
                if wgsl {
                    format!("f32({v:e})")
                } else {
                    format!("((FLOAT)({v:e}f))")
                }
            }
            Self::Const(v, _) => {
                if wgsl {
                    format!("i32({v})")
                } else {
                    format!("((int){v})")
                }
            }
            Self::Unary(f, x) => {
                let float = x.dtype(types)?.is_float();
                let inner = x.print(types, wgsl)?;
                match (f, float) {
                    (Unary::Neg, false) => format!("(-{inner})"),
                    (Unary::Abs, false) if wgsl => format!("abs({inner})"),
                    (Unary::Abs, false) => format!("((int)abs({inner}))"),
                    (Unary::Sign, false) if wgsl => format!("sign({inner})"),
                    (Unary::Sign, false) => format!("clamp({inner}, -1, 1)"),
                    (Unary::Relu, false) => format!("max({inner}, 0)"),
                    (_, false) => return Err(OpError::NoKernel(format!("{f:?} on integers"))),
                    _ => {
                        let (cl, w) = f.text();
                        replace_variable(if wgsl { w } else { cl }, &inner)
                    }
                }
            }
            Self::Not(x) => format!("(1 - {})", x.print(types, wgsl)?),
            Self::Test(..) => {
                return Err(OpError::NoKernel(
                    "NaN and infinity tests (kernels assume finite floats)".to_owned(),
                ));
            }
            Self::Binary(f, a, b) => {
                let float = a.dtype(types)?.is_float();
                let (mut a, mut b, tb) = (a.print(types, wgsl)?, b.print(types, wgsl)?, b.dtype(types)?);
                let infix = |op: &str| format!("({a} {op} {b})");
                let truth = |op: &str| {
                    if wgsl {
                        format!("select(0, 1, {a} {op} {b})")
                    } else {
                        format!("(({a} {op} {b}) ? 1 : 0)")
                    }
                };
                match f {
                    Binary::Add => infix("+"),
                    Binary::Sub => infix("-"),
                    Binary::Mul => infix("*"),
                    Binary::Div => infix("/"),
                    Binary::And | Binary::BitwiseAnd => infix("&"),
                    Binary::Or | Binary::BitwiseOr => infix("|"),
                    Binary::Xor | Binary::BitwiseXor => infix("^"),
                    Binary::FMod if float => format!("float_mod({a}, {b})"),
                    Binary::FMod => format!("trunc_mod({a}, {b})"),
                    Binary::Mod if !float => format!("floor_mod({a}, {b})"),
                    // Devices use 32 bits for each integer, whatever its type.
                    Binary::Mod | Binary::ShiftLeft | Binary::ShiftRight => {
                        return Err(OpError::NoKernel(format!(
                            "{f:?} has no kernel for {}",
                            self.dtype(types)?
                        )));
                    }
                    Binary::Less => truth("<"),
                    Binary::LessOrEqual => truth("<="),
                    Binary::Greater => truth(">"),
                    Binary::GreaterOrEqual => truth(">="),
                    Binary::Equal => truth("=="),
                    Binary::Min if !wgsl && float => format!("fmin({a}, {b})"),
                    Binary::Max if !wgsl && float => format!("fmax({a}, {b})"),
                    Binary::Min => format!("min({a}, {b})"),
                    Binary::Max => format!("max({a}, {b})"),
                    Binary::Pow => {
                        let cast = if wgsl { "f32" } else { "(FLOAT)" };
                        if !float {
                            return Err(OpError::NoKernel("Pow on integers".to_owned()));
                        }
                        if !tb.is_float() {
                            b = format!("{cast}({b})");
                        }
                        a = format!("{cast}({a})");
                        format!("signed_pow({a}, {b})")
                    }
                }
            }
            Self::Select(c, a, b) => {
                let (c, a, b) = (
                    c.print(types, wgsl)?,
                    a.print(types, wgsl)?,
                    b.print(types, wgsl)?,
                );
                if wgsl {
                    format!("select({b}, {a}, {c} != 0)")
                } else {
                    format!("({c} ? {a} : {b})")
                }
            }
            Self::Cast(t, _) if !t.on_devices() => {
                return Err(OpError::NoKernel(format!("elements of type {t}")));
            }
            Self::Cast(t, x) => {
                let from = x.dtype(types)?;
                let x = x.print(types, wgsl)?;
                match (t, wgsl) {
                    (DType::Bool, true) => format!(
                        "select(0, 1, {x} != {})",
                        if from.is_float() { "0.0" } else { "0" }
                    ),
                    (DType::Bool, false) => format!("(({x} != 0) ? 1 : 0)"),
                    (t, true) if t.is_float() => format!("f32({x})"),
                    (t, false) if t.is_float() && from.is_float() => x,
                    (t, false) if t.is_float() => format!("((float)({x}))"),
                    (_, true) => format!("i32({x})"),
                    (_, false) => format!("((int)({x}))"),
                }
            }
        })
    }
}

/// Replaces the free variable `x` in a table text.
fn replace_variable(text: &str, with: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain([' ']) {
        if c.is_ascii_alphanumeric() || c == '_' || c == '.' {
            word.push(c);
        } else {
            out.push_str(if word == "x" { with } else { &word });
            word.clear();
            out.push(c);
        }
    }
    out.trim_end().to_owned()
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
    for ((i, d), s) in x.shape().iter().enumerate().zip(super::strides(x.shape())) {
        if *d != 1 {
            if *d != shape[lead + i] {
                return Err(OpError::mismatch("sizes of a broadcast axis", d, shape[lead + i]));
            }
            step[lead + i] = num::signed(s);
        }
    }
    super::gather_strided(x, shape, 0, &step)
}

/// Maximum number of operands of one kernel.
pub const MAX_INPUTS: usize = 4;
const NAMES: [&str; MAX_INPUTS] = ["a", "b", "c", "d"];

/// An elementwise operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Pointwise {
    /// ONNX operator type, or `Fused`.
    pub name: String,
    /// The computation.
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
pub(super) struct Walk {
    /// Sizes of the merged axes, innermost first.
    pub sizes: Vec<Dim>,
    /// For each operand, its stride along each merged axis.
    pub strides: Vec<Vec<Dim>>,
}

/// Merges neighbouring axes that every operand walks contiguously or not at all.
pub(super) fn join_axes(out: &Shape, inputs: &[&Shape]) -> OpResult<Walk> {
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
        let shape = shape.as_fixed().unwrap_or_default();
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

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        finite::parts(self, cx)
    }

    fn keeps_precision(&self) -> bool {
        true
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.results().saturating_mul(self.expr.operations())
    }
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: import::ONNX,
    import: import::import,
    kernels: &[&KERNEL.kernel],
    cases: cases::cases,
};
