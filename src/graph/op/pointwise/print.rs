//! Expressions as text of kernels.

use super::{Binary, Expr, NAMES, Unary};
use crate::graph::op::{OpError, OpResult};
use crate::tensor::DType;

impl Expr {
    /// Prints the expression over the variables `a`, `b`, ... in WGSL or OpenCL C. Integers of less
    /// than 32 bits wrap to their low bits, as on the host.
    pub(super) fn print(&self, types: &[DType], wgsl: bool) -> OpResult<String> {
        let text = self.print_wide(types, wgsl)?;
        let computes = match self {
            Self::Cast(..) | Self::Unary(..) => true,
            Self::Binary(f, ..) => !f.is_comparison() && !f.is_logical(),
            _ => false,
        };
        let dtype = self.dtype(types)?;
        Ok(match dtype.narrow_bits().filter(|_| computes) {
            Some((bits, false)) => format!("({text} & {})", (1u32 << bits) - 1),
            Some((bits, true)) => {
                let (by, unsigned) = (32 - bits, if wgsl { "u" } else { "" });
                format!("(({text} << {by}{unsigned}) >> {by}{unsigned})")
            }
            None => text,
        })
    }

    fn print_wide(&self, types: &[DType], wgsl: bool) -> OpResult<String> {
        let go = |e: &Self| e.print(types, wgsl);
        let is_float = |e: &Self| Ok::<_, OpError>(e.dtype(types)?.is_float());
        Ok(match self {
            Self::Input(i) => NAMES.get(*i).map_or_else(String::new, |n| format!("v{n}")),
            Self::Const(v, t) if t.is_float() => float(*v, wgsl)?,
            Self::Const(v, _) if wgsl => format!("i32({v})"),
            Self::Const(v, _) => format!("((int){v})"),
            Self::Unary(f, x) => unary(*f, &go(x)?, is_float(x)?, wgsl)?,
            Self::Not(x) => format!("(1 - {})", go(x)?),
            Self::Test(..) => {
                return Err(OpError::NoKernel(
                    "NaN and infinity tests (kernels assume finite floats)".to_owned(),
                ));
            }
            Self::Binary(f, a, b) => {
                let operands = [(go(a)?, is_float(a)?), (go(b)?, is_float(b)?)];
                match binary(*f, operands, wgsl)? {
                    Some(text) => text,
                    None => {
                        let dtype = self.dtype(types)?;
                        return Err(OpError::NoKernel(format!("{f:?} has no kernel for {dtype}")));
                    }
                }
            }
            Self::Select(c, a, b) => {
                let (c, a, b) = (go(c)?, go(a)?, go(b)?);
                if wgsl {
                    format!("select({b}, {a}, {c} != 0)")
                } else {
                    format!("({c} ? {a} : {b})")
                }
            }
            Self::Cast(t, _) if !t.on_devices() => {
                return Err(OpError::NoKernel(format!("elements of type {t}")));
            }
            Self::Cast(t, x) => cast(*t, go(x)?, is_float(x)?, wgsl),
        })
    }
}

fn float(v: f64, wgsl: bool) -> OpResult<String> {
    if v.is_nan() {
        return Err(OpError::NoKernel("a NaN constant".to_owned()));
    }
    let v = v.clamp(f64::from(f32::MIN), f64::from(f32::MAX));
    // A literal without suffix is a double in OpenCL C, which many devices lack.
    Ok(if wgsl {
        format!("f32({v:e})")
    } else {
        format!("((FLOAT)({v:e}f))")
    })
}

fn unary(f: Unary, x: &str, float: bool, wgsl: bool) -> OpResult<String> {
    Ok(match (f, float) {
        (Unary::Neg, false) => format!("(-{x})"),
        (Unary::Abs, false) if wgsl => format!("abs({x})"),
        (Unary::Abs, false) => format!("((int)abs({x}))"),
        (Unary::Sign, false) if wgsl => format!("sign({x})"),
        (Unary::Sign, false) => format!("clamp({x}, -1, 1)"),
        (Unary::Relu, false) => format!("max({x}, 0)"),
        (_, false) => return Err(OpError::NoKernel(format!("{f:?} on integers"))),
        _ => {
            let (cl, w) = f.text();
            replace_variable(if wgsl { w } else { cl }, x)
        }
    })
}

/// A function of two operands, each with whether it is a float. `None` if there is no kernel for
/// their type.
fn binary(f: Binary, operands: [(String, bool); 2], wgsl: bool) -> OpResult<Option<String>> {
    let [(a, float), (b, float_b)] = operands;
    let infix = |op: &str| format!("({a} {op} {b})");
    let truth = |op: &str| {
        if wgsl {
            format!("select(0, 1, {a} {op} {b})")
        } else {
            format!("(({a} {op} {b}) ? 1 : 0)")
        }
    };
    Ok(Some(match f {
        Binary::Add => infix("+"),
        Binary::Sub => infix("-"),
        Binary::Mul => infix("*"),
        Binary::Div => infix("/"),
        Binary::And | Binary::BitwiseAnd => infix("&"),
        Binary::Or | Binary::BitwiseOr => infix("|"),
        Binary::Xor | Binary::BitwiseXor => infix("^"),
        Binary::FMod if float => format!("float_mod({a}, {b})"),
        Binary::FMod => format!("trunc_mod({a}, {b})"),
        Binary::Mod if float => format!("floored_mod({a}, {b})"),
        Binary::Mod => format!("floor_mod({a}, {b})"),
        // Devices use 32 bits for each integer, whatever its type.
        Binary::ShiftLeft | Binary::ShiftRight => return Ok(None),
        Binary::Less => truth("<"),
        Binary::LessOrEqual => truth("<="),
        Binary::Greater => truth(">"),
        Binary::GreaterOrEqual => truth(">="),
        Binary::Equal => truth("=="),
        Binary::Min if !wgsl && float => format!("fmin({a}, {b})"),
        Binary::Max if !wgsl && float => format!("fmax({a}, {b})"),
        Binary::Min => format!("min({a}, {b})"),
        Binary::Max => format!("max({a}, {b})"),
        Binary::Pow if !float => return Err(OpError::NoKernel("Pow on integers".to_owned())),
        Binary::Pow => {
            let cast = if wgsl { "f32" } else { "(FLOAT)" };
            let b = if float_b { b } else { format!("{cast}({b})") };
            format!("signed_pow({cast}({a}), {b})")
        }
    }))
}

fn cast(to: DType, x: String, from_float: bool, wgsl: bool) -> String {
    let zero = if from_float { "0.0" } else { "0" };
    match (to, wgsl) {
        (DType::Bool, true) => format!("select(0, 1, {x} != {zero})"),
        (DType::Bool, false) => format!("(({x} != 0) ? 1 : 0)"),
        (t, true) if t.is_float() => format!("f32({x})"),
        (t, false) if t.is_float() && from_float => x,
        (t, false) if t.is_float() => format!("((float)({x}))"),
        (_, true) => format!("i32({x})"),
        (_, false) => format!("((int)({x}))"),
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
