//! Expressions as text of kernels.

use super::{Binary, Expr, NAMES, Test, Unary};
use crate::backend::kernel::Language;
use crate::graph::op::{OpError, OpResult};
use crate::tensor::DType;

/// How an expression is printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style<'a> {
    /// Element types of the operands.
    pub types: &'a [DType],
    pub language: Language,
    /// Integers have 64 bits instead of 32.
    pub wide: bool,
}

impl Style<'_> {
    fn wgsl(&self) -> bool {
        self.language == Language::Wgsl
    }

    /// Bits of an integer.
    fn bits(&self) -> usize {
        if self.wide { 64 } else { 32 }
    }

    /// Name of the type of integers, and of unsigned ones.
    pub fn ints(&self) -> [&'static str; 2] {
        match (self.wgsl(), self.wide) {
            (true, false) => ["i32", "u32"],
            (true, true) => ["i64", "u64"],
            (false, false) => ["int", "uint"],
            (false, true) => ["long", "ulong"],
        }
    }

    fn int(&self, v: f64) -> String {
        let [name, _] = self.ints();
        match (self.wgsl(), self.wide) {
            (true, _) => format!("{name}({v})"),
            (false, false) => format!("((int){v})"),
            (false, true) => format!("((long){v}L)"),
        }
    }

    /// Tests as an integer.
    fn truth(&self, test: &str) -> String {
        let [one, zero] = [1.0, 0.0].map(|v| self.int(v));
        if self.wgsl() {
            format!("select({zero}, {one}, {test})")
        } else {
            format!("(({test}) ? {one} : {zero})")
        }
    }

    /// An integer as an unsigned one, and back.
    fn unsigned(&self, x: &str, signed: bool) -> String {
        let [int, uint] = self.ints();
        let name = if signed { int } else { uint };
        if self.wgsl() {
            format!("{name}({x})")
        } else {
            format!("(({name})({x}))")
        }
    }
}

/// A printed operand: its text and type.
type Typed = (String, DType);

impl Expr {
    /// Prints the expression over the variables `a`, `b`, ... in WGSL or OpenCL C. Integers wrap to
    /// the bits of their type, as on the host.
    pub(super) fn print(&self, style: Style<'_>) -> OpResult<String> {
        let text = self.print_whole(style)?;
        let computes = match self {
            Self::Cast(..) | Self::Unary(..) => true,
            Self::Binary(f, ..) => !f.is_comparison() && !f.is_logical(),
            _ => false,
        };
        let dtype = self.dtype(style.types)?;
        let Some((bits, signed)) = dtype.bits_below(style.bits()).filter(|_| computes) else {
            return Ok(text);
        };
        Ok(if signed {
            let (by, unsigned) = (style.bits() - bits, if style.wgsl() { "u" } else { "" });
            format!("(({text} << {by}{unsigned}) >> {by}{unsigned})")
        } else {
            #[expect(clippy::cast_precision_loss, reason = "fewer than 53 bits")]
            let mask = style.int(((1u64 << bits) - 1) as f64);
            format!("({text} & {mask})")
        })
    }

    fn print_whole(&self, style: Style<'_>) -> OpResult<String> {
        let typed = |e: &Self| Ok::<Typed, OpError>((e.print(style)?, e.dtype(style.types)?));
        let wgsl = style.wgsl();
        Ok(match self {
            Self::Input(i) => NAMES.get(*i).map_or_else(String::new, |n| format!("v{n}")),
            Self::Const(v, t) if t.is_float() => float(*v, wgsl),
            Self::Const(v, _) => style.int(*v),
            Self::Unary(f, x) => unary(*f, typed(x)?, style)?,
            Self::Not(x) => format!("({} - {})", style.int(1.0), x.print(style)?),
            Self::Test(t, x) => test(*t, &x.print(style)?, style),
            Self::Binary(f, a, b) => {
                let mut operands = [typed(a)?, typed(b)?];
                for (i, (text, dtype)) in operands.iter_mut().enumerate() {
                    let zero = [a, b].get(i).is_some_and(|e| matches!(***e, Self::Const(0.0, _)));
                    if dtype.is_float()
                        && (i == 1 && a == b || zero && matches!(f, Binary::Mul | Binary::Div))
                    {
                        *text = format!("same_of({text})");
                    }
                }
                match binary(*f, operands, style)? {
                    Some(text) => text,
                    None => {
                        let dtype = self.dtype(style.types)?;
                        return Err(OpError::NoKernel(format!("{f:?} has no kernel for {dtype}")));
                    }
                }
            }
            Self::Select(c, a, b) => {
                let (c, a, b) = (c.print(style)?, a.print(style)?, b.print(style)?);
                if wgsl {
                    format!("select({b}, {a}, {c} != 0)")
                } else {
                    format!("({c} ? {a} : {b})")
                }
            }
            Self::Cast(t, _) if !t.on_devices() => {
                return Err(OpError::NoKernel(format!("elements of type {t}")));
            }
            Self::Cast(t, x) => cast(*t, typed(x)?, style),
        })
    }
}

fn float(v: f64, wgsl: bool) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "constants are `f32`")]
    let narrow = v as f32;
    let sign = if narrow < 0.0 { "-" } else { "" };
    match (narrow.is_nan(), narrow.is_infinite(), wgsl) {
        (true, _, true) => "nan()".to_owned(),
        (true, _, false) => "((FLOAT)(NAN))".to_owned(),
        (_, true, true) => format!("({sign}infinity())"),
        (_, true, false) => format!("((FLOAT)({sign}INFINITY))"),
        _ if wgsl => format!("f32({v:e})"),
        // A literal without suffix is a double in OpenCL C, which many devices lack.
        _ => format!("((FLOAT)({v:e}f))"),
    }
}

fn test(test: Test, x: &str, style: Style<'_>) -> String {
    let bits = if style.wgsl() {
        format!("bitcast<u32>({x})")
    } else {
        format!("as_uint({x})")
    };
    let is = |condition: &str| style.truth(&format!("{bits}{condition}"));
    let size = |condition: &str| style.truth(&format!("({bits} & 0x7fffffffu) {condition}"));
    match test {
        Test::Nan => size("> 0x7f800000u"),
        Test::Infinite { negative, positive } => match (negative, positive) {
            (true, true) => size("== 0x7f800000u"),
            (true, false) => is(" == 0xff800000u"),
            (false, true) => is(" == 0x7f800000u"),
            (false, false) => format!("({} * {})", style.int(0.0), is(" == 0u")),
        },
    }
}

fn unary(f: Unary, (x, dtype): Typed, style: Style<'_>) -> OpResult<String> {
    let ([int, _], wgsl) = (style.ints(), style.wgsl());
    let zero = style.int(0.0);
    Ok(match (f, dtype) {
        (f, t) if t.is_float() => {
            let (cl, w) = f.text();
            replace_variable(if wgsl { w } else { cl }, &x)
        }
        (Unary::Neg, _) => format!("(-{x})"),
        (Unary::Abs | Unary::Relu, DType::U64) => x,
        (Unary::Sign, DType::U64) => style.truth(&format!("{x} != {zero}")),
        (Unary::Abs, _) if wgsl => format!("abs({x})"),
        (Unary::Abs, _) => format!("(({int})abs({x}))"),
        (Unary::Sign, _) if wgsl => format!("sign({x})"),
        (Unary::Sign, _) => format!("clamp({x}, {}, {})", style.int(-1.0), style.int(1.0)),
        (Unary::Relu, _) => format!("max({x}, {zero})"),
        _ => return Err(OpError::NoKernel(format!("{f:?} on integers"))),
    })
}

/// A function of two operands. `None` if there is no kernel for their type.
fn binary(f: Binary, [a, b]: [Typed; 2], style: Style<'_>) -> OpResult<Option<String>> {
    let is_float = a.1.is_float();
    // Unsigned comparison and division differ from signed. Narrower integers are never negative.
    let is_unsigned = [a.1, b.1].contains(&DType::U64);
    let ((a, _), (b, type_b)) = (a, b);
    let by_sign = |x: &str| {
        if is_unsigned {
            style.unsigned(x, false)
        } else {
            x.to_owned()
        }
    };
    let [sa, sb] = [by_sign(&a), by_sign(&b)];
    let back = |text: String| {
        if is_unsigned {
            style.unsigned(&text, true)
        } else {
            text
        }
    };
    let infix = |op: &str| format!("({a} {op} {b})");
    let truth = |op: &str| style.truth(&format!("{sa} {op} {sb}"));
    let of_ints = |name: &str| match is_unsigned {
        false => format!("{name}({a}, {b})"),
        true => back(format!("u{name}({sa}, {sb})")),
    };
    Ok(Some(match f {
        Binary::Add => infix("+"),
        Binary::Sub => infix("-"),
        Binary::Mul => infix("*"),
        Binary::Div if is_float => infix("/"),
        Binary::Div => of_ints("int_div"),
        Binary::And | Binary::BitwiseAnd => infix("&"),
        Binary::Or | Binary::BitwiseOr => infix("|"),
        Binary::Xor | Binary::BitwiseXor => infix("^"),
        Binary::FMod if is_float => format!("float_mod({a}, {b})"),
        Binary::FMod => of_ints("int_rem"),
        Binary::Mod if is_float => format!("floored_float_mod({a}, {b})"),
        Binary::Mod if is_unsigned => of_ints("int_rem"),
        Binary::Mod => of_ints("int_mod"),
        // Kernels do not know the width of each type.
        Binary::ShiftLeft | Binary::ShiftRight => return Ok(None),
        Binary::Less => truth("<"),
        Binary::LessOrEqual => truth("<="),
        Binary::Greater => truth(">"),
        Binary::GreaterOrEqual => truth(">="),
        Binary::Equal => truth("=="),
        Binary::Min if is_float => format!("min_of({a}, {b})"),
        Binary::Max if is_float => format!("max_of({a}, {b})"),
        Binary::Min => back(format!("min({sa}, {sb})")),
        Binary::Max => back(format!("max({sa}, {sb})")),
        Binary::Pow if !is_float => return Err(OpError::NoKernel("Pow on integers".to_owned())),
        Binary::Pow => {
            let cast = if style.wgsl() { "f32" } else { "(FLOAT)" };
            let b = if type_b.is_float() {
                b
            } else {
                format!("{cast}({b})")
            };
            format!("signed_pow({cast}({a}), {b})")
        }
    }))
}

/// A conversion. Kernels compute in `f32` whatever the type of a float, so a conversion to `f16`
/// rounds.
fn cast(to: DType, (x, from): Typed, style: Style<'_>) -> String {
    let number = match from {
        DType::U64 if style.wide => style.unsigned(&x, false),
        _ => x.clone(),
    };
    let float = match (from.is_float(), style.wgsl()) {
        (true, _) => x.clone(),
        (false, true) => format!("f32({number})"),
        (false, false) => format!("((float)({number}))"),
    };
    match to {
        DType::Bool if from.is_float() && style.wgsl() => format!("{}(truth_of({x}))", style.ints()[0]),
        DType::Bool if from.is_float() => format!("truth_of({x})"),
        DType::Bool => style.truth(&format!("{x} != {}", style.int(0.0))),
        DType::F16 if from != DType::F16 => format!("half_of({float})"),
        t if t.is_float() => float,
        _ if !from.is_float() => x,
        DType::U64 if style.wide => format!("ulong_of({x})"),
        _ if style.wide => format!("long_of({x})"),
        // Only values that fit reach a reader that accepts them.
        DType::I64 => format!("int_near({x})"),
        _ => format!("int_of({x})"),
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
