//! Elementwise operators of ONNX as expressions.

use super::{AxisBroadcast, Binary, Expr, Pointwise, Test, Unary};
use crate::backend::kernel::functions::{BINARY, UNARY};
use crate::graph::op::cast_like::{self, CastMini};
use crate::graph::op::{ANY, Attributes, OnnxName, Op, OpError, OpResult, microsoft, onnx, own};
use crate::tensor::DType;

pub(super) const ONNX: &[OnnxName] = &[
    onnx("Neg", 6, 1),
    onnx("Abs", 6, 1),
    onnx("Exp", 6, 1),
    onnx("Log", 6, 1),
    onnx("Sqrt", 6, 1),
    onnx("Reciprocal", 6, 1),
    onnx("Sigmoid", 6, 1),
    onnx("Tanh", 6, 1),
    onnx("Relu", 6, 1),
    onnx("Floor", 6, 1),
    onnx("Ceil", 6, 1),
    onnx("Round", 11, 1),
    onnx("Sign", 9, 1),
    onnx("Erf", 9, 1),
    onnx("Softplus", 1, 1),
    onnx("Softsign", 1, 1),
    onnx("HardSwish", 14, 1),
    onnx("Sin", 7, 1),
    onnx("Cos", 7, 1),
    onnx("Tan", 7, 1),
    onnx("Asin", 7, 1),
    onnx("Acos", 7, 1),
    onnx("Atan", 7, 1),
    onnx("Sinh", 9, 1),
    onnx("Cosh", 9, 1),
    onnx("Asinh", 9, 1),
    onnx("Acosh", 9, 1),
    onnx("Atanh", 9, 1),
    onnx("Add", 6, 2),
    onnx("Sub", 6, 2),
    onnx("Mul", 6, 2),
    onnx("Div", 6, 2),
    onnx("Pow", 1, 2),
    onnx("Min", 6, ANY),
    onnx("Max", 6, ANY),
    onnx("Sum", 6, ANY),
    onnx("Mean", 6, ANY),
    onnx("Less", 1, 2),
    onnx("LessOrEqual", 12, 2),
    onnx("Greater", 1, 2),
    onnx("GreaterOrEqual", 12, 2),
    onnx("Equal", 1, 2),
    onnx("And", 1, 2),
    onnx("Or", 1, 2),
    onnx("Xor", 1, 2),
    onnx("Not", 1, 1),
    onnx("Mod", 10, 2),
    onnx("BitShift", 11, 2),
    onnx("BitwiseAnd", 18, 2),
    onnx("BitwiseOr", 18, 2),
    onnx("BitwiseXor", 18, 2),
    onnx("BitwiseNot", 18, 1),
    onnx("IsNaN", 9, 1),
    onnx("IsInf", 10, 1),
    onnx("Where", 9, 3),
    onnx("Cast", 6, 1),
    onnx("Clip", 6, 3),
    onnx("LeakyRelu", 6, 1),
    onnx("PRelu", 6, 2),
    onnx("Elu", 6, 1),
    onnx("Selu", 6, 1),
    onnx("Celu", 12, 1),
    onnx("ThresholdedRelu", 10, 1),
    onnx("HardSigmoid", 6, 1),
    onnx("Shrink", 9, 1),
    onnx("Mish", 18, 1),
    onnx("Gelu", 20, 1),
    onnx("Swish", 24, 1),
    onnx("SwiGLU", 28, 2),
    microsoft("Gelu", 1),
    microsoft("BiasGelu", 2),
    microsoft("FastGelu", 2),
    microsoft("QuickGelu", 1),
    own("Fused", ANY),
];

/// Maximum number of operands of variadic operators.
const MAX_VARIADIC: usize = 64;

fn boxed(e: Expr) -> Box<Expr> {
    Box::new(e)
}

pub(crate) fn input(i: usize) -> Expr {
    Expr::Input(i)
}

/// A float constant, in the type of the other operand.
pub(crate) fn number(v: f32) -> Expr {
    Expr::Const(f64::from(v), DType::F32)
}

/// A unary function of an expression.
pub(crate) fn unary(f: Unary, x: Expr) -> Expr {
    Expr::Unary(f, boxed(x))
}

/// A binary function of two expressions.
pub(crate) fn binary(f: Binary, a: Expr, b: Expr) -> Expr {
    Expr::Binary(f, boxed(a), boxed(b))
}

fn scale(x: Expr, by: f32) -> Expr {
    binary(Binary::Mul, x, number(by))
}

/// `max(x, 0)` and `min(x, 0)`.
fn halves() -> (Expr, Expr) {
    (
        unary(Unary::Relu, input(0)),
        unary(Unary::Neg, unary(Unary::Relu, unary(Unary::Neg, input(0)))),
    )
}

/// `max(x, 0) + factor * (exp(min(x, 0) * inner) - 1)`.
fn exponential(factor: f32, inner: f64) -> Expr {
    let (above, below) = halves();
    let below = if inner == 1.0 {
        below
    } else {
        binary(Binary::Mul, below, Expr::Const(inner, DType::F32))
    };
    let bend = binary(Binary::Sub, unary(Unary::Exp, below), number(1.0));
    binary(Binary::Add, above, scale(bend, factor))
}

pub(super) fn selu(alpha: f32, gamma: f32) -> Expr {
    scale(exponential(alpha, 1.0), gamma)
}

pub(super) fn elu(alpha: f32) -> Expr {
    exponential(alpha, 1.0)
}

pub(super) fn celu(alpha: f32) -> Expr {
    exponential(alpha, 1.0 / f64::from(alpha))
}

pub(crate) fn prelu(slope: Expr) -> Expr {
    let (above, below) = halves();
    binary(Binary::Add, above, binary(Binary::Mul, slope, below))
}

pub(super) fn hard_sigmoid(alpha: f32, beta: f32) -> Expr {
    let line = binary(Binary::Add, scale(input(0), alpha), number(beta));
    binary(Binary::Max, binary(Binary::Min, line, number(1.0)), number(0.0))
}

pub(super) fn thresholded_relu(alpha: f32) -> Expr {
    let above = binary(Binary::Greater, input(0), number(alpha));
    Expr::Select(boxed(above), boxed(input(0)), boxed(number(0.0)))
}

pub(super) fn shrink(lambda: f32, bias: f32) -> Expr {
    let below = binary(Binary::Less, input(0), number(-lambda));
    let above = binary(Binary::Greater, input(0), number(lambda));
    // The zero has the type of the operand.
    let rest = Expr::Select(
        boxed(above),
        boxed(binary(Binary::Sub, input(0), number(bias))),
        boxed(number(0.0)),
    );
    Expr::Select(
        boxed(below),
        boxed(binary(Binary::Add, input(0), number(bias))),
        boxed(rest),
    )
}

pub(super) fn mish() -> Expr {
    binary(
        Binary::Mul,
        input(0),
        unary(Unary::Tanh, unary(Unary::Softplus, input(0))),
    )
}

pub(super) fn gelu(tanh: bool) -> Expr {
    gelu_of(&input(0), tanh)
}

fn gelu_of(x: &Expr, tanh: bool) -> Expr {
    let bend = if tanh {
        let square = binary(Binary::Mul, x.clone(), x.clone());
        let inner = binary(Binary::Add, scale(square, 0.044_715), number(1.0));
        let root_of_two_over_pi = 0.797_884_6;
        unary(
            Unary::Tanh,
            scale(binary(Binary::Mul, x.clone(), inner), root_of_two_over_pi),
        )
    } else {
        unary(Unary::Erf, scale(x.clone(), std::f32::consts::FRAC_1_SQRT_2))
    };
    binary(
        Binary::Mul,
        scale(x.clone(), 0.5),
        binary(Binary::Add, bend, number(1.0)),
    )
}

pub(super) fn swish(alpha: f32) -> Expr {
    let inner = if alpha == 1.0 {
        input(0)
    } else {
        scale(input(0), alpha)
    };
    binary(Binary::Mul, input(0), unary(Unary::Sigmoid, inner))
}

/// A gate, operand 0, through `swish`, times operand 1.
pub(super) fn swiglu(alpha: f32) -> Expr {
    binary(Binary::Mul, swish(alpha), input(1))
}

pub(crate) fn cast(to: DType, x: Expr) -> Expr {
    Expr::Cast(to, boxed(x))
}

/// A selection: condition, value if true, value if false.
pub(crate) fn select(condition: Expr, yes: Expr, no: Expr) -> Expr {
    Expr::Select(boxed(condition), boxed(yes), boxed(no))
}

/// `x` clipped to optional bounds.
pub(super) fn clip(low: Option<Expr>, high: Option<Expr>) -> Expr {
    let x = low
        .into_iter()
        .fold(input(0), |x, low| binary(Binary::Max, x, low));
    high.into_iter().fold(x, |x, high| binary(Binary::Min, x, high))
}

fn clip_of(a: &dyn Attributes) -> OpResult<Expr> {
    if a.opset() < 11 {
        return Ok(clip(a.float("min")?.map(number), a.float("max")?.map(number)));
    }
    let (low, high) = (a.has_input(1), a.has_input(2));
    a.drop_omitted();
    Ok(clip(
        low.then(|| input(1)),
        high.then(|| input(1 + usize::from(low))),
    ))
}

fn variadic(a: &dyn Attributes, f: Binary) -> OpResult<Expr> {
    let n = a.input_count();
    if !(1..=MAX_VARIADIC).contains(&n) {
        return Err(OpError::Unsupported(format!(
            "{} with {n} operands (expected 1 to {MAX_VARIADIC})",
            a.op_type()
        )));
    }
    Ok((1..n).fold(input(0), |e, i| binary(f, e, input(i))))
}

fn cast_to(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let code = a
        .int("to")?
        .ok_or_else(|| OpError::expected("attribute `to`", "an element type", "nothing"))?;
    let (to, rounding) = (crate::graph::onnx::dtype_of(code)?, cast_like::rounding(a)?);
    if to.is_mini() {
        return Ok(Box::new(CastMini { to, rounding }));
    }
    Ok(Box::new(Pointwise {
        name: a.op_type().to_owned(),
        expr: cast(to, input(0)),
    }))
}

/// The functions with parameters.
fn activation(a: &dyn Attributes) -> OpResult<Option<Expr>> {
    let float = |name: &str, default: f32| Ok::<_, OpError>(a.float(name)?.unwrap_or(default));
    Ok(Some(match a.op_type() {
        "Clip" => clip_of(a)?,
        "LeakyRelu" => prelu(number(float("alpha", 0.01)?)),
        "PRelu" => prelu(input(1)),
        "Elu" => elu(float("alpha", 1.0)?),
        "Selu" => selu(float("alpha", 1.673_263_2)?, float("gamma", 1.050_701)?),
        "Celu" => match float("alpha", 1.0)? {
            alpha if alpha > 0.0 => celu(alpha),
            alpha => return Err(OpError::expected("attribute `alpha`", "above 0", alpha)),
        },
        "ThresholdedRelu" => thresholded_relu(float("alpha", 1.0)?),
        "HardSigmoid" => hard_sigmoid(float("alpha", 0.2)?, float("beta", 0.5)?),
        "Shrink" => shrink(float("lambd", 0.5)?, float("bias", 0.0)?),
        "Mish" => mish(),
        "Gelu" => match a.string("approximate")?.as_deref() {
            None | Some("none") => gelu(false),
            Some("tanh") => gelu(true),
            Some(other) => {
                return Err(OpError::expected(
                    "attribute `approximate`",
                    "none or tanh",
                    other,
                ));
            }
        },
        "BiasGelu" => gelu_of(&binary(Binary::Add, input(0), input(1)), false),
        "FastGelu" if a.has_input(1) => gelu_of(&binary(Binary::Add, input(0), input(1)), true),
        "FastGelu" => gelu(true),
        "QuickGelu" => swish(float("alpha", 1.702)?),
        "Swish" => swish(float("alpha", 1.0)?),
        "SwiGLU" => swiglu(float("alpha", 1.0)?),
        _ => return Ok(None),
    }))
}

/// The function of a fused operator of ONNX Runtime, with its parameters in the order of the
/// attributes of the function's own operator.
pub(crate) fn fused_activation(name: &str, parameters: &[Option<f32>]) -> OpResult<Expr> {
    let at = |i: usize, default: f32| parameters.get(i).copied().flatten().unwrap_or(default);
    Ok(match name {
        "LeakyRelu" => prelu(number(at(0, 0.01))),
        "Elu" => elu(at(0, 1.0)),
        "HardSigmoid" => hard_sigmoid(at(0, 0.2), at(1, 0.5)),
        "Clip" => clip(Some(number(at(0, f32::MIN))), Some(number(at(1, f32::MAX)))),
        "Gelu" => gelu(false),
        name => from_table(name)?,
    })
}

/// A function that is one line in a table of `functions`.
fn from_table(name: &str) -> OpResult<Expr> {
    if let Some(f) = UNARY.iter().find(|f| format!("{f:?}") == name) {
        Ok(unary(*f, input(0)))
    } else if let Some(f) = BINARY.iter().find(|f| format!("{f:?}") == name) {
        Ok(binary(*f, input(0), input(1)))
    } else {
        Err(OpError::Unsupported(format!("elementwise function {name}")))
    }
}

pub(super) fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let name = a.op_type();
    if name == "Cast" {
        return cast_to(a);
    }
    let expr = match name {
        "Not" => Expr::Not(boxed(input(0))),
        "Where" => Expr::Select(boxed(input(0)), boxed(input(1)), boxed(input(2))),
        "Min" => variadic(a, Binary::Min)?,
        "Max" => variadic(a, Binary::Max)?,
        "Sum" => variadic(a, Binary::Add)?,
        #[expect(clippy::cast_precision_loss, reason = "a number of operands")]
        "Mean" => match a.input_count() {
            1 => variadic(a, Binary::Add)?,
            n => binary(Binary::Div, variadic(a, Binary::Add)?, number(n as f32)),
        },
        "Mod" => binary(
            if a.int("fmod")?.unwrap_or(0) != 0 {
                Binary::FMod
            } else {
                Binary::Mod
            },
            input(0),
            input(1),
        ),
        "BitShift" => match a.string("direction")?.as_deref() {
            Some("LEFT") => binary(Binary::ShiftLeft, input(0), input(1)),
            Some("RIGHT") => binary(Binary::ShiftRight, input(0), input(1)),
            found => {
                return Err(OpError::expected(
                    "attribute `direction`",
                    "LEFT or RIGHT",
                    format!("{found:?}"),
                ));
            }
        },
        // In two's complement.
        "BitwiseNot" => binary(Binary::Sub, Expr::Const(-1.0, DType::I64), input(0)),
        "IsNaN" => Expr::Test(Test::Nan, boxed(input(0))),
        "IsInf" => {
            let flag = |name| Ok::<_, OpError>(a.int(name)?.unwrap_or(1) != 0);
            let test = Test::Infinite {
                negative: flag("detect_negative")?,
                positive: flag("detect_positive")?,
            };
            Expr::Test(test, boxed(input(0)))
        }
        _ => match activation(a)? {
            Some(expr) => expr,
            None => from_table(name)?,
        },
    };
    let op = Pointwise {
        name: name.to_owned(),
        expr,
    };
    if a.opset() < 7 && a.input_count() == 2 {
        // PRelu has a slope per channel, at axis 1; other operators state the axis of the second
        // operand.
        let axis = if name == "PRelu" { Some(1) } else { a.int("axis")? };
        let broadcast = a.int("broadcast")?.unwrap_or(0) != 0 || name == "PRelu";
        if let Some(axis) = axis.filter(|_| broadcast) {
            return Ok(Box::new(AxisBroadcast { op, axis }));
        }
    }
    Ok(Box::new(op))
}
