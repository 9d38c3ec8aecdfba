//! Elementwise operators as expressions over broadcast operands.
//!
//! Every elementwise operator of ONNX becomes one [`Pointwise`] with a small [`Expr`]; fusing two is substitution.
//! An expression has one evaluator (the reference) and two printers (OpenCL C and WGSL). A plain function is
//! one line of a table below.
//!
//! Opsets: all from 13, where broadcasting is multidirectional. `Cast` from 13; to and from strings is refused.

use super::{Attributes, InferCx, Inputs, OnnxName, Op, OpDef, OpError, OpResult, onnx, operand, own};
use crate::backend::kernel::{Kernel, Snippet};
use crate::plan::lower::{Call, LowerCx};
use crate::graph::rules;
use crate::shape::{Dim, Fact, Known, Shape};
use crate::tensor::{DType, HostTensor};
use std::fmt;

/// Declares the functions of one argument: name, reference, and one expression for both languages in `x`.
macro_rules! unary {
    ($($name:ident $reference:expr, $cl:literal, $wgsl:literal;)*) => {
        /// A function of one float.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Unary { $(#[doc = stringify!($name)] $name),* }
        const UNARY: &[Unary] = &[$(Unary::$name),*];
        impl Unary {
            fn apply(self, x: f32) -> f32 {
                match self { $(Self::$name => { let f: fn(f32) -> f32 = $reference; f(x) })* }
            }
            /// OpenCL C and WGSL texts with `x` for the argument.
            fn text(self) -> (&'static str, &'static str) {
                match self { $(Self::$name => ($cl, $wgsl)),* }
            }
        }
    };
}

// The bounds keep every intermediate finite, since WGSL may assume that no infinity occurs.
unary! {
    Neg |x| -x, "(-x)", "(-x)";
    Abs f32::abs, "fabs(x)", "abs(x)";
    Exp f32::exp, "exp(fmin(x, 88.0f))", "exp(min(x, 88.0))";
    Log f32::ln, "log(x)", "log(x)";
    Sqrt f32::sqrt, "sqrt(x)", "sqrt(x)";
    Reciprocal f32::recip, "(1.0f / x)", "(1.0 / x)";
    Sigmoid |x| 1.0 / (1.0 + (-x).exp()), "(1.0f / (1.0f + exp(fmin(-x, 80.0f))))", "(1.0 / (1.0 + exp(min(-x, 80.0))))";
    Tanh f32::tanh, "tanh(clamp(x, -20.0f, 20.0f))", "tanh(clamp(x, -20.0, 20.0))";
    Relu |x| x.max(0.0), "fmax(x, 0.0f)", "max(x, 0.0)";
    Sin f32::sin, "sin(x)", "sin(x)";
    Cos f32::cos, "cos(x)", "cos(x)";
    Floor f32::floor, "floor(x)", "floor(x)";
    Ceil f32::ceil, "ceil(x)", "ceil(x)";
}

/// A function of two arguments of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the ONNX operators")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Min,
    Max,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    And,
    Or,
}

const BINARY: &[Binary] = {
    use Binary::*;
    &[Add, Sub, Mul, Div, Pow, Min, Max, Less, LessOrEqual, Greater, GreaterOrEqual, Equal, And, Or]
};

impl Binary {
    fn is_comparison(self) -> bool {
        use Binary::*;
        matches!(self, Less | LessOrEqual | Greater | GreaterOrEqual | Equal)
    }

    fn is_logical(self) -> bool {
        matches!(self, Self::And | Self::Or)
    }

    fn floats(self, a: f32, b: f32) -> f32 {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
            Self::Pow => a.powf(b),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            _ => f32::NAN,
        }
    }

    fn ints(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => a.checked_div(b).unwrap_or(0),
            Self::Pow => a.wrapping_pow(u32::try_from(b).unwrap_or(0)),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            Self::And => i64::from(a != 0 && b != 0),
            Self::Or => i64::from(a != 0 || b != 0),
            _ => 0,
        }
    }

    fn compare<T: PartialOrd>(self, a: &T, b: &T) -> bool {
        match self {
            Self::Less => a < b,
            Self::LessOrEqual => a <= b,
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
            _ => a == b,
        }
    }
}

/// An elementwise expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// Operand by index.
    Input(usize),
    /// A number, as a float or, with an integer type, as an integer.
    Const(f64, DType),
    /// A function of one float.
    Unary(Unary, Box<Expr>),
    /// Logical negation.
    Not(Box<Expr>),
    /// A function of two.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// Condition, value if true, value if false.
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    /// Conversion: float to integer truncates, anything to `bool` is `!= 0`.
    Cast(DType, Box<Expr>),
}

/// A dense intermediate of the evaluator.
enum Buffer {
    Floats(Vec<f32>),
    Ints(Vec<i64>),
}

impl Expr {
    /// Type of the result, given the operands' types.
    fn dtype(&self, inputs: &[DType]) -> OpResult<DType> {
        Ok(match self {
            Self::Input(i) => *inputs.get(*i).ok_or_else(|| OpError::expected("operand", "given", i))?,
            Self::Const(_, t) | Self::Cast(t, _) => *t,
            Self::Unary(_, x) => x.dtype(inputs)?,
            Self::Not(_) => DType::Bool,
            Self::Binary(f, a, b) => {
                let (ta, tb) = (a.dtype(inputs)?, b.dtype(inputs)?);
                if ta != tb && *f != Binary::Pow {
                    return Err(OpError::mismatch("element types", ta, tb));
                }
                if f.is_comparison() || f.is_logical() { DType::Bool } else { ta }
            }
            Self::Select(c, a, b) => {
                let (tc, ta, tb) = (c.dtype(inputs)?, a.dtype(inputs)?, b.dtype(inputs)?);
                if tc != DType::Bool {
                    return Err(OpError::expected("condition", DType::Bool, tc));
                }
                if ta != tb {
                    return Err(OpError::mismatch("element types", ta, tb));
                }
                ta
            }
        })
    }

    fn eval(&self, inputs: &Inputs<'_>, shape: &[usize]) -> OpResult<Buffer> {
        let count: usize = shape.iter().product();
        Ok(match self {
            Self::Input(i) => {
                let x = operand(inputs, *i)?;
                let full = broadcast_to(x, shape)?;
                if x.dtype().is_float() {
                    Buffer::Floats(full.to_f32()?.into_owned())
                } else {
                    Buffer::Ints(full.to_i64()?)
                }
            }
            #[expect(clippy::cast_possible_truncation, reason = "constants are stored widened from these types")]
            Self::Const(v, t) if t.is_float() => Buffer::Floats(vec![*v as f32; count]),
            #[expect(clippy::cast_possible_truncation, reason = "constants are stored widened from these types")]
            Self::Const(v, _) => Buffer::Ints(vec![*v as i64; count]),
            Self::Unary(f, x) => match x.eval(inputs, shape)? {
                Buffer::Floats(v) => Buffer::Floats(v.into_iter().map(|x| f.apply(x)).collect()),
                Buffer::Ints(v) => Buffer::Ints(match f {
                    Unary::Neg => v.into_iter().map(i64::wrapping_neg).collect(),
                    Unary::Abs => v.into_iter().map(i64::wrapping_abs).collect(),
                    _ => return Err(OpError::Unsupported(format!("{f:?} of integers"))),
                }),
            },
            Self::Not(x) => match x.eval(inputs, shape)? {
                Buffer::Ints(v) => Buffer::Ints(v.into_iter().map(|x| i64::from(x == 0)).collect()),
                Buffer::Floats(_) => return Err(OpError::expected("operand of Not", DType::Bool, "a float")),
            },
            Self::Binary(f, a, b) => {
                match (a.eval(inputs, shape)?, b.eval(inputs, shape)?) {
                    (Buffer::Floats(a), Buffer::Floats(b)) if f.is_comparison() => {
                        Buffer::Ints(a.iter().zip(&b).map(|(a, b)| i64::from(f.compare(a, b))).collect())
                    }
                    (Buffer::Ints(a), Buffer::Ints(b)) if f.is_comparison() => {
                        Buffer::Ints(a.iter().zip(&b).map(|(a, b)| i64::from(f.compare(a, b))).collect())
                    }
                    (Buffer::Floats(a), Buffer::Floats(b)) => {
                        Buffer::Floats(a.iter().zip(&b).map(|(a, b)| f.floats(*a, *b)).collect())
                    }
                    (Buffer::Ints(a), Buffer::Ints(b)) => {
                        Buffer::Ints(a.iter().zip(&b).map(|(a, b)| f.ints(*a, *b)).collect())
                    }
                    #[expect(clippy::cast_precision_loss, reason = "an integer exponent of a float base is small")]
                    (Buffer::Floats(a), Buffer::Ints(b)) => {
                        Buffer::Floats(a.iter().zip(&b).map(|(a, b)| f.floats(*a, *b as f32)).collect())
                    }
                    (Buffer::Ints(_), Buffer::Floats(_)) => {
                        return Err(OpError::Unsupported("integer base with a float exponent".to_owned()));
                    }
                }
            }
            Self::Select(c, a, b) => {
                let Buffer::Ints(c) = c.eval(inputs, shape)? else {
                    return Err(OpError::expected("condition", DType::Bool, "a float"));
                };
                match (a.eval(inputs, shape)?, b.eval(inputs, shape)?) {
                    (Buffer::Floats(a), Buffer::Floats(b)) => {
                        Buffer::Floats(c.iter().zip(a.iter().zip(&b)).map(|(c, (a, b))| if *c != 0 { *a } else { *b }).collect())
                    }
                    (Buffer::Ints(a), Buffer::Ints(b)) => {
                        Buffer::Ints(c.iter().zip(a.iter().zip(&b)).map(|(c, (a, b))| if *c != 0 { *a } else { *b }).collect())
                    }
                    _ => return Err(OpError::mismatch("element types", "float", "integer")),
                }
            }
            Self::Cast(t, x) => match (x.eval(inputs, shape)?, t) {
                (Buffer::Floats(v), DType::Bool) => Buffer::Ints(v.iter().map(|x| i64::from(*x != 0.0)).collect()),
                (Buffer::Ints(v), DType::Bool) => Buffer::Ints(v.iter().map(|x| i64::from(*x != 0)).collect()),
                (Buffer::Floats(v), DType::F32) => Buffer::Floats(v),
                (Buffer::Floats(v), DType::F16) => {
                    Buffer::Floats(v.iter().map(|x| half::f16::from_f32(*x).to_f32()).collect())
                }
                #[expect(clippy::cast_possible_truncation, reason = "ONNX Cast of floats truncates")]
                (Buffer::Floats(v), _) => Buffer::Ints(v.iter().map(|x| *x as i64).collect()),
                #[expect(clippy::cast_precision_loss, reason = "ONNX Cast to float rounds")]
                (Buffer::Ints(v), t) if t.is_float() => Buffer::Floats(v.iter().map(|x| *x as f32).collect()),
                (Buffer::Ints(v), _) => Buffer::Ints(v),
            },
        })
    }

    /// The value over integer expressions, where the functions allow it.
    fn dims(&self, inputs: &[Option<&Fact>], at: usize) -> Option<Dim> {
        let pick = |v: &[Dim]| if v.len() == 1 { v.first().cloned() } else { v.get(at).cloned() };
        match self {
            Self::Input(i) => pick(&inputs.get(*i).copied().flatten()?.as_dims()?),
            #[expect(clippy::cast_possible_truncation, reason = "integer constants are stored widened")]
            Self::Const(v, t) if t.is_int() => Some(Dim::from(*v as i64)),
            Self::Cast(t, x) if t.is_int() => x.dims(inputs, at),
            Self::Unary(Unary::Neg, x) => x.dims(inputs, at)?.mul(&(-1).into()).ok(),
            Self::Binary(f, a, b) => {
                let (a, b) = (a.dims(inputs, at)?, b.dims(inputs, at)?);
                match f {
                    Binary::Add => a.add(&b).ok(),
                    Binary::Sub => a.sub(&b).ok(),
                    Binary::Mul => a.mul(&b).ok(),
                    Binary::Min => a.minimum(&b).ok(),
                    Binary::Max => a.maximum(&b).ok(),
                    // Truncation and flooring agree on what is not negative.
                    Binary::Div if a.is_non_negative() => b.as_const().and_then(|n| a.floor_div(n).ok()),
                    Binary::Equal => {
                        let apart = |a: &Dim, b: &Dim| a.is_non_negative() && b.as_const().is_some_and(|b| b < 0);
                        match a.sub(&b).ok()?.as_const() {
                            Some(d) => Some(i64::from(d == 0).into()),
                            None if apart(&a, &b) || apart(&b, &a) => Some(0.into()),
                            None => None,
                        }
                    }
                    _ => None,
                }
            }
            Self::Select(c, a, b) => match c.dims(inputs, at)?.as_const()? {
                0 => b.dims(inputs, at),
                _ => a.dims(inputs, at),
            },
            _ => None,
        }
    }

    /// The expression with operand `i` replaced by `with(i)`.
    pub fn map_inputs(&self, with: &mut dyn FnMut(usize) -> Expr) -> Expr {
        let mut go = |e: &Expr| Box::new(e.map_inputs(with));
        match self {
            Self::Input(i) => with(*i),
            Self::Const(..) => self.clone(),
            Self::Unary(f, x) => Self::Unary(*f, go(x)),
            Self::Not(x) => Self::Not(go(x)),
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
            Self::Unary(_, x) | Self::Not(x) | Self::Cast(_, x) => x.size(),
            Self::Binary(_, a, b) => a.size() + b.size(),
            Self::Select(c, a, b) => c.size() + a.size() + b.size(),
        }
    }

    /// Text in one language over variables `a`, `b`, ... The flag chooses WGSL.
    fn print(&self, types: &[DType], wgsl: bool) -> OpResult<String> {
        Ok(match self {
            Self::Input(i) => NAMES.get(*i).map_or_else(String::new, |n| format!("v{n}")),
            Self::Const(v, t) if t.is_float() => {
                if v.is_nan() {
                    return Err(OpError::NoKernel("a constant that is not a number".to_owned()));
                }
                let v = v.clamp(f64::from(f32::MIN), f64::from(f32::MAX));
                // A literal without suffix is a double in OpenCL C, which many devices lack.
                if wgsl { format!("f32({v:e})") } else { format!("({v:e}f)") }
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
                    (_, false) => return Err(OpError::NoKernel(format!("{f:?} of integers"))),
                    _ => {
                        let (cl, w) = f.text();
                        replace_variable(if wgsl { w } else { cl }, &inner)
                    }
                }
            }
            Self::Not(x) => format!("(1 - {})", x.print(types, wgsl)?),
            Self::Binary(f, a, b) => {
                let float = a.dtype(types)?.is_float();
                let (mut a, mut b, tb) = (a.print(types, wgsl)?, b.print(types, wgsl)?, b.dtype(types)?);
                let infix = |op: &str| format!("({a} {op} {b})");
                let truth = |op: &str| {
                    if wgsl { format!("select(0, 1, {a} {op} {b})") } else { format!("(({a} {op} {b}) ? 1 : 0)") }
                };
                match f {
                    Binary::Add => infix("+"),
                    Binary::Sub => infix("-"),
                    Binary::Mul => infix("*"),
                    Binary::Div => infix("/"),
                    Binary::And => infix("&"),
                    Binary::Or => infix("|"),
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
                        let cast = if wgsl { "f32" } else { "(float)" };
                        if !float {
                            return Err(OpError::NoKernel("Pow of integers".to_owned()));
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
                let (c, a, b) = (c.print(types, wgsl)?, a.print(types, wgsl)?, b.print(types, wgsl)?);
                if wgsl { format!("select({b}, {a}, {c} != 0)") } else { format!("({c} ? {a} : {b})") }
            }
            Self::Cast(t, x) => {
                let from = x.dtype(types)?;
                let x = x.print(types, wgsl)?;
                match (t, wgsl) {
                    (DType::Bool, true) => format!("select(0, 1, {x} != {})", if from.is_float() { "0.0" } else { "0" }),
                    (DType::Bool, false) => format!("(({x} != 0) ? 1 : 0)"),
                    (t, true) if t.is_float() => format!("f32({x})"),
                    (t, false) if t.is_float() => format!("((float)({x}))"),
                    (_, true) => format!("i32({x})"),
                    (_, false) => format!("((int)({x}))"),
                }
            }
        })
    }
}

/// Replaces the free variable `x` of a table text.
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
            Self::Binary(b, x, y) => write!(f, "{b:?}({x}, {y})"),
            Self::Select(c, a, b) => write!(f, "Where({c}, {a}, {b})"),
            Self::Cast(t, x) => write!(f, "Cast<{t}>({x})"),
        }
    }
}

/// `x` repeated to `shape`.
pub fn broadcast_to(x: &HostTensor, shape: &[usize]) -> OpResult<HostTensor> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    let lead = shape
        .len()
        .checked_sub(x.shape().len())
        .ok_or_else(|| OpError::mismatch("ranks", format!("{:?}", x.shape()), format!("{shape:?}")))?;
    let mut step = vec![0isize; shape.len()];
    for ((i, d), s) in x.shape().iter().enumerate().zip(super::strides(x.shape())) {
        if *d != 1 {
            if *d != shape[lead + i] {
                return Err(OpError::mismatch("broadcast sizes", d, shape[lead + i]));
            }
            step[lead + i] = isize::try_from(s).unwrap_or(isize::MAX);
        }
    }
    super::gather_strided(x, shape, 0, &step)
}

/// Largest number of operands of one kernel.
pub const MAX_INPUTS: usize = 4;
/// Largest number of axes left after joining those that every operand walks alike.
const MAX_RANK: usize = 5;
const NAMES: [&str; MAX_INPUTS] = ["a", "b", "c", "d"];

static KERNEL: Kernel = crate::kernel!(pointwise {
    count: U32, n1: U32, n2: U32, n3: U32, n4: U32,
    a0: U32, a1: U32, a2: U32, a3: U32, a4: U32,
    b0: U32, b1: U32, b2: U32, b3: U32, b4: U32,
    c0: U32, c1: U32, c2: U32, c3: U32, c4: U32,
    d0: U32, d1: U32, d2: U32, d3: U32, d4: U32,
} [a: In Elem, b: OptionalIn Elem, c: OptionalIn Elem, d: OptionalIn Elem, y: Out Elem]);

/// An elementwise operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Pointwise {
    /// ONNX operator type, or `Fused`.
    pub name: String,
    /// What it computes.
    pub expr: Expr,
}

impl Pointwise {
    /// The operator for one ONNX function of `inputs` operands.
    pub fn binary(name: &str, f: Binary) -> Self {
        let [a, b] = [0, 1].map(|i| Box::new(Expr::Input(i)));
        Self { name: name.to_owned(), expr: Expr::Binary(f, a, b) }
    }
}

/// One operand's strides over joined axes.
pub(super) struct Walk {
    /// Sizes of the joined axes, innermost first.
    pub sizes: Vec<Dim>,
    /// For each operand, its stride along each joined axis.
    pub strides: Vec<Vec<Dim>>,
}

/// Joins neighbouring axes that every operand walks contiguously or not at all.
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
    let mut walk = Walk { sizes: Vec::new(), strides: vec![Vec::new(); inputs.len()] };
    for axis in (0..rank).rev() {
        let size = &out.0[axis];
        if size.is(1) {
            continue;
        }
        // Axes are pushed innermost first; the last pushed one is the inner neighbour.
        let joins = match walk.sizes.last() {
            None => false,
            Some(inner) => strides.iter().zip(&walk.strides).all(|(s, w)| {
                w.last().is_some_and(|inner_step| inner_step.mul(inner).is_ok_and(|p| p == s[axis]))
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
        if (dtype.is_int() || dtype == DType::Bool)
            && fact.shape.rank() <= 1
            && let Some(count) = fact.shape.count()?.as_const().and_then(|n| usize::try_from(n).ok())
            && count <= 64
            && let Some(dims) = (0..count).map(|i| self.expr.dims(cx.inputs, i)).collect()
        {
            fact.known = Known::Dims(dims);
        }
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
        let dtype = self.expr.dtype(&types)?;
        Ok(vec![match self.expr.eval(inputs, &shape)? {
            Buffer::Floats(v) => HostTensor::from_floats(dtype, &shape, &v)?,
            Buffer::Ints(v) => HostTensor::from_ints(dtype, &shape, &v)?,
        }])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let n = cx.input_count();
        if n > MAX_INPUTS {
            return Err(OpError::NoKernel(format!("{n} elementwise operands; at most {MAX_INPUTS}")));
        }
        let out = cx.out_fact(0)?.shape.clone();
        let mut shapes = Vec::new();
        let mut types = Vec::new();
        for i in 0..n {
            let f = cx.fact(i)?;
            shapes.push(f.shape.clone());
            types.push(f.dtype);
        }
        let walk = join_axes(&out, &shapes.iter().collect::<Vec<_>>())?;
        if walk.sizes.len() > MAX_RANK {
            return Err(OpError::NoKernel(format!(
                "a broadcast over {} axes that cannot be joined; at most {MAX_RANK}",
                walk.sizes.len()
            )));
        }
        let count = out.count()?;
        let (zero, one) = (Dim::from(0), Dim::from(1));
        let flat = walk.sizes.len() <= 1 && walk.strides.iter().all(|s| s.first().is_none_or(|d| d.is(1)));
        let snippet = self.snippet(&types, cx.output(0)?.dtype)?;
        let mut call = Call::new(&KERNEL, 64).snippet(snippet).grid(count.ceil_div(2 * 64)?, 1, 1).field(&count);
        for i in 0..MAX_RANK - 1 {
            call = call.field(walk.sizes.get(i).unwrap_or(&one));
        }
        for input in 0..MAX_INPUTS {
            call = call.optional(if input < n { Some(cx.input(input)?) } else { None });
            for i in 0..MAX_RANK {
                call = call.field(walk.strides.get(input).and_then(|s| s.get(i)).unwrap_or(&zero));
            }
        }
        call = call.operand(cx.output(0)?).may_be_padded();
        if flat {
            call = call.define("FLAT", 1).may_work_in_place();
        }
        if walk.sizes.len() <= 2 {
            call = call.define("RANK2", 1);
        }
        cx.emit(call)
    }

    fn keeps_precision(&self) -> bool {
        true
    }
}

impl Pointwise {
    /// The `apply` functions of both languages.
    fn snippet(&self, types: &[DType], storage: DType) -> OpResult<Snippet> {
        let dtype = self.expr.dtype(types)?;
        let mut texts = [String::new(), String::new()];
        for (wgsl, out) in [false, true].into_iter().zip(&mut texts) {
            let name = |t: DType| match (t.is_float(), wgsl) {
                (true, true) => "f32",
                (true, false) => "float",
                (false, true) => "i32",
                (false, false) => "int",
            };
            let arguments: Vec<String> = types
                .iter()
                .zip(NAMES)
                .map(|(t, n)| if wgsl { format!("v{n}: {}", name(*t)) } else { format!("{} v{n}", name(*t)) })
                .collect();
            let mut body = self.expr.print(types, wgsl)?;
            if storage == DType::F16 {
                body = format!("clamp({body}, MASK_MIN, -MASK_MIN)");
            }
            let arguments = arguments.join(", ");
            *out = if wgsl {
                format!("alias Y = {0};\nfn apply({arguments}) -> {0} {{ return {body}; }}\n", name(dtype))
            } else {
                format!(
                    "typedef {0} Y;\ntypedef {0}2 Y2;\ninline {0} apply({arguments}) {{ return {body}; }}\n",
                    name(dtype)
                )
            };
            if body.contains("signed_pow") {
                out.insert_str(0, if wgsl { POW_WGSL } else { POW_CL });
            }
        }
        let [cl, wgsl] = texts;
        Ok(Snippet { cl, wgsl })
    }
}

// WGSL's pow is undefined for a negative base; an odd integer exponent keeps the sign.
const POW_WGSL: &str = "fn signed_pow(x: f32, y: f32) -> f32 { let r = pow(abs(x), y); return select(r, -r, x < 0.0 && fract(y * 0.5) != 0.0); }\n";
const POW_CL: &str = "inline float signed_pow(float x, float y) { return pow(x, y); }\n";

const ONNX: &[OnnxName] = &[
    onnx("Neg", 13),
    onnx("Abs", 13),
    onnx("Exp", 13),
    onnx("Log", 13),
    onnx("Sqrt", 13),
    onnx("Reciprocal", 13),
    onnx("Sigmoid", 13),
    onnx("Tanh", 13),
    onnx("Relu", 13),
    onnx("Sin", 7),
    onnx("Cos", 7),
    onnx("Floor", 13),
    onnx("Ceil", 13),
    onnx("Add", 13),
    onnx("Sub", 13),
    onnx("Mul", 13),
    onnx("Div", 13),
    onnx("Pow", 13),
    onnx("Min", 13),
    onnx("Max", 13),
    onnx("Less", 13),
    onnx("LessOrEqual", 12),
    onnx("Greater", 13),
    onnx("GreaterOrEqual", 12),
    onnx("Equal", 13),
    onnx("And", 7),
    onnx("Or", 7),
    onnx("Not", 1),
    onnx("Where", 9),
    onnx("Cast", 13),
    own("Fused"),
];

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let name = a.op_type();
    let input = |i| Box::new(Expr::Input(i));
    let expr = match name {
        "Not" => Expr::Not(input(0)),
        "Where" => Expr::Select(input(0), input(1), input(2)),
        "Cast" => {
            let code = a.int("to")?.ok_or_else(|| OpError::expected("attribute `to`", "an element type", "nothing"))?;
            // Concerns only conversion to 8-bit floats, which are refused.
            a.int("saturate")?;
            Expr::Cast(crate::graph::onnx::dtype_of(code)?, input(0))
        }
        "Min" | "Max" => {
            if a.input_count() > 64 {
                return Err(OpError::Unsupported(format!("{name} of {} operands; at most 64", a.input_count())));
            }
            let f = if name == "Min" { Binary::Min } else { Binary::Max };
            (1..a.input_count()).fold(Expr::Input(0), |e, i| Expr::Binary(f, Box::new(e), input(i)))
        }
        _ => {
            if let Some(f) = UNARY.iter().find(|f| format!("{f:?}") == name) {
                Expr::Unary(*f, input(0))
            } else if let Some(f) = BINARY.iter().find(|f| format!("{f:?}") == name) {
                Expr::Binary(*f, input(0), input(1))
            } else {
                return Err(OpError::Unsupported(format!("elementwise function {name}")));
            }
        }
    };
    Ok(Box::new(Pointwise { name: name.to_owned(), expr }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef { onnx: ONNX, import, kernels: &[&KERNEL], cases: cases::cases };

mod cases {
    use super::*;
    use crate::graph::op::case::{Case, input};

    /// Broadcasts of every kind, odd counts, every function.
    pub fn cases() -> Vec<Case> {
        let mut all = Vec::new();
        for f in UNARY {
            let low = if matches!(f, Unary::Log | Unary::Sqrt | Unary::Reciprocal) { 0.25 } else { -3.0 };
            let op = Pointwise { name: format!("{f:?}"), expr: Expr::Unary(*f, Box::new(Expr::Input(0))) };
            all.push(Case::new(op, vec![input(&[3, 43]).range(low, 4.0)]));
        }
        for f in BINARY {
            let op = Pointwise::binary(&format!("{f:?}"), *f);
            if f.is_logical() {
                all.push(Case::new(op, vec![input(&[2, 5, 7]).bools(), input(&[5, 1]).bools()]));
                continue;
            }
            let base = if *f == Binary::Pow { 0.25 } else { -3.0 };
            all.push(Case::new(op.clone(), vec![input(&[2, 5, 7]).range(base, 3.0), input(&[5, 1]).range(0.5, 3.0)]));
            if !matches!(f, Binary::Pow) {
                all.push(Case::new(op, vec![input(&[129]).ints(-9, 9), input(&[1]).ints(1, 9)]));
            }
        }
        let add = |a: &[usize], b: &[usize]| Case::new(Pointwise::binary("Add", Binary::Add), vec![input(a), input(b)]);
        all.extend([
            add(&[1], &[1]),
            add(&[1025], &[1025]),
            add(&[4, 1, 3], &[1, 5, 1]),
            add(&[2, 1, 3, 1, 5], &[2, 4, 1, 3, 1]),
            add(&[3, 2, 2], &[]),
        ]);
        let [a, b, c] = [0, 1, 2].map(|i| Box::new(Expr::Input(i)));
        let silu = Expr::Binary(Binary::Mul, Box::new(Expr::Unary(Unary::Sigmoid, a.clone())), a.clone());
        let gated = Expr::Binary(Binary::Mul, Box::new(silu), b.clone());
        all.push(Case::new(Pointwise { name: "Fused".into(), expr: gated }, vec![input(&[3, 1537]), input(&[3, 1537])]));
        let select = Expr::Select(a.clone(), b, c);
        let inputs = vec![input(&[2, 1, 9]).bools(), input(&[1]), input(&[5, 1])];
        all.push(Case::new(Pointwise { name: "Where".into(), expr: select }, inputs));
        let pick = |i| Box::new(Expr::Input(i));
        // Squares and cubes of negative numbers, as normalisations have them.
        for exponent in [2.0, 3.0] {
            let expr = Expr::Binary(Binary::Pow, pick(0), Box::new(Expr::Const(exponent, DType::F32)));
            all.push(Case::new(Pointwise { name: "Fused".into(), expr }, vec![input(&[5, 9]).range(-3.0, 3.0)]));
        }
        // Halves below the smallest normal one, around it, and large ones.
        for (low, high) in [(-6e-5, 6e-5), (-2e-4, 2e-4), (-6e4, 6e4)] {
            let expr = Expr::Binary(Binary::Mul, pick(0), Box::new(Expr::Const(0.7, DType::F32)));
            all.push(Case::new(Pointwise { name: "Fused".into(), expr }, vec![input(&[7, 37]).range(low, high)]));
        }
        for f in [Unary::Neg, Unary::Abs] {
            let op = Pointwise { name: format!("{f:?}"), expr: Expr::Unary(f, pick(0)) };
            all.push(Case::new(op, vec![input(&[3, 11]).ints(-9, 9)]));
        }
        let choose = Pointwise { name: "Where".into(), expr: Expr::Select(pick(0), pick(1), pick(2)) };
        all.push(Case::new(choose, vec![input(&[3, 7]).bools(), input(&[7]).ints(-5, 5), input(&[3, 1]).ints(-5, 5)]));
        // All four operands, each with a broadcast of its own.
        let sum = Expr::Binary(Binary::Add, Box::new(Expr::Binary(Binary::Mul, pick(0), pick(1))), pick(2));
        let scaled = Expr::Binary(Binary::Mul, Box::new(sum), Box::new(Expr::Const(-0.1, DType::F32)));
        let expr = Expr::Binary(Binary::Max, Box::new(scaled), pick(3));
        let shapes: [&[usize]; 4] = [&[2, 3, 5], &[3, 1], &[5], &[2, 1, 1]];
        all.push(Case::new(Pointwise { name: "Fused".into(), expr }, shapes.iter().map(|s| input(s)).collect()));
        for (to, from) in [
            (DType::I32, input(&[33]).range(-5.0, 5.0)),
            (DType::F32, input(&[33]).ints(-5, 5)),
            (DType::Bool, input(&[33]).ints(-1, 1)),
            (DType::Bool, input(&[33])),
        ] {
            all.push(Case::new(Pointwise { name: "Cast".into(), expr: Expr::Cast(to, a.clone()) }, vec![from]));
        }
        all.push(Case::new(Pointwise { name: "Not".into(), expr: Expr::Not(a) }, vec![input(&[7, 3]).bools()]));
        all
    }
}
