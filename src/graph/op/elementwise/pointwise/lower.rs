//! Elementwise expressions as separate kernels and as epilogues.

use super::print::Style;
use super::{Binary, Expr, MAX_INPUTS, NAMES, join_axes};
use crate::backend::KernelCode;
use crate::backend::kernel::epilogue::{Argument, Beside, Epilogue, Function, Further, MAX_AXES};
use crate::backend::kernel::functions;
use crate::backend::kernel::{ByLanguage, Language};
use crate::graph::bounds::Bounds;
use crate::graph::op::{OpError, OpResult};
use crate::graph::rules;
use crate::kernels::pointwise::{Args, KERNEL};
use crate::lower::{Call, Field, LowerCx, Operand, WithOperands};
use crate::shape::{Dim, Shape};
use crate::tensor::DType;

/// Source of an operand of an expression in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExprSource {
    Result,
    /// The second of the kernel's two results, with the same size and type.
    Other,
    /// Scratch memory with one element of the result type per result.
    Beside(Operand),
    /// An operand of the node.
    Operand(usize),
}

/// Emits a kernel that computes `expr` over all operands of the node.
pub fn emit(expr: &Expr, cx: &mut LowerCx<'_>) -> OpResult<()> {
    let n = cx.input_count();
    if expr.tests_numbers() && cx.device().keeps_special == Some(false) {
        let what = "a test for NaN or infinity, which this device does not keep";
        return Err(OpError::NoKernel(what.to_owned()));
    }
    if n > MAX_INPUTS {
        return Err(OpError::NoKernel(format!(
            "{n} elementwise operands (limit {MAX_INPUTS})"
        )));
    }
    let places: Vec<ExprSource> = (0..n).map(ExprSource::Operand).collect();
    emit_over(expr, cx, &places)
}

/// Emits a kernel that fills result 0 with one value.
pub fn fill(cx: &mut LowerCx<'_>, value: f64) -> OpResult<()> {
    let dtype = cx.out_fact(0)?.dtype;
    emit_over(&Expr::Const(value, dtype), cx, &[])
}

fn emit_over(expr: &Expr, cx: &mut LowerCx<'_>, places: &[ExprSource]) -> OpResult<()> {
    let with = epilogue(expr, cx, places)?;
    let count = cx.out_fact(0)?.shape.count()?;
    let call = Call::new(&KERNEL, 64)
        .grid(count.ceil_div(2 * 64)?, 1, 1)
        .may_be_padded()
        .epilogue(with);
    let y = cx.output(0)?;
    cx.emit(call, Args { y, count })
}

/// Builds an epilogue for result 0 of the node: `expr` over operands at `places`.
pub fn epilogue(expr: &Expr, cx: &mut LowerCx<'_>, places: &[ExprSource]) -> OpResult<WithOperands> {
    let result = cx.out_fact(0)?.shape.clone();
    let storage_type = cx.output(0)?.dtype;
    let result_bounds = cx.out_bounds(0)?;
    let mut types = Vec::new();
    let mut bounds = Vec::new();
    let mut arguments = Vec::new();
    let mut shapes = Vec::new();
    let mut operands = Vec::new();
    for place in places {
        match *place {
            ExprSource::Result => {
                types.push(cx.out_fact(0)?.dtype);
                bounds.push(result_bounds);
                arguments.push(Argument::Result);
            }
            ExprSource::Other => {
                types.push(cx.out_fact(0)?.dtype);
                bounds.push(result_bounds);
                arguments.push(Argument::Other);
            }
            ExprSource::Beside(operand) => {
                types.push(cx.out_fact(0)?.dtype);
                bounds.push(result_bounds);
                shapes.push(result.clone());
                arguments.push(Argument::Operand(operands.len()));
                operands.push(operand);
            }
            ExprSource::Operand(i) => {
                let fact = cx.fact(i)?;
                types.push(fact.dtype);
                bounds.push(cx.bounds(i)?);
                shapes.push(fact.shape.clone());
                arguments.push(Argument::Operand(operands.len()));
                operands.push(cx.input(i)?);
            }
        }
    }
    let (forms, axes, fields) = layouts(&shapes, &result)?;
    let saturates = storage_type == DType::I32;
    let wide = storage_type == DType::I64 || expr.is_wide(&types, &bounds, saturates)?;
    let vectors = expr.is_of_floats(&types);
    let further = forms.iter().map(|f| Further {
        beside: f.beside,
        weight: false,
    });
    let epilogue = Epilogue {
        function: function(cx.device().code, expr, &types, storage_type, wide)?,
        vectors,
        wide,
        arguments,
        operands: further.collect(),
        axes,
    };
    Ok(WithOperands {
        epilogue,
        operands,
        fields,
    })
}

/// The layouts of operands of these shapes relative to a result, the number of axes over which they
/// are walked if one is [`Beside::Apart`], and the fields of all.
fn layouts(shapes: &[Shape], result: &Shape) -> OpResult<(Vec<OperandLayout>, usize, Vec<Field>)> {
    let forms: Vec<OperandLayout> = shapes
        .iter()
        .map(|s| OperandLayout::of(s, result))
        .collect::<OpResult<_>>()?;
    let apart = || {
        forms
            .iter()
            .zip(shapes)
            .filter(|(f, _)| f.beside == Beside::Apart)
    };
    let mut walk = join_axes(result, &apart().map(|(_, s)| s).collect::<Vec<_>>())?;
    let axes = walk.sizes.len();
    if apart().next().is_some() && axes > MAX_AXES {
        return Err(OpError::NoKernel(format!(
            "a broadcast over {axes} axes that cannot be merged (limit {MAX_AXES})"
        )));
    }
    let mut fields: Vec<Field> = Vec::new();
    if apart().next().is_some() {
        fields.push(result.count()?.into());
        fields.extend(walk.sizes.iter().take(axes.saturating_sub(1)).map(Field::from));
    }
    let mut strides = walk.strides.drain(..);
    for form in &forms {
        if form.beside == Beside::Apart {
            fields.extend(strides.next().unwrap_or_default().into_iter().map(Field::from));
        } else {
            fields.extend(form.fields.iter().map(Field::from));
        }
    }
    Ok((forms, axes, fields))
}

/// Layout of an operand relative to a result, with its own fields.
struct OperandLayout {
    beside: Beside,
    fields: Vec<Dim>,
}

/// The largest power of two up to 16 that provably divides `d` for all values of its symbols.
fn aligned(d: &Dim) -> u32 {
    let divides = |n: &u32| d.exact_div(&i64::from(*n).into()).is_some();
    [16, 8, 4, 2].into_iter().find(divides).unwrap_or(1)
}

impl OperandLayout {
    fn of(shape: &Shape, result: &Shape) -> OpResult<Self> {
        let own = rules::without_leading_ones(&shape.0);
        let tail = own.iter().rev().take_while(|d| d.is(1)).count();
        let core = &own[..own.len() - tail];
        let count = Shape(own.to_vec()).count()?;
        if let Some(outside) = result.0.strip_suffix(own) {
            // A row that covers the whole result has one element for each result.
            return Ok(if outside.iter().all(|d| d.is(1)) {
                Self {
                    beside: Beside::Same,
                    fields: Vec::new(),
                }
            } else {
                Self {
                    beside: Beside::Row {
                        aligned: aligned(&count),
                    },
                    fields: vec![count],
                }
            });
        }
        let (planes, inner) = result.0.split_at(result.rank().saturating_sub(tail));
        if !core.is_empty() && planes.ends_with(core) {
            let inner = Shape(inner.to_vec()).count()?;
            return Ok(Self {
                beside: Beside::Plane {
                    aligned: aligned(&inner),
                },
                fields: vec![inner, count],
            });
        }
        Ok(Self {
            beside: Beside::Apart,
            fields: Vec::new(),
        })
    }
}

impl Expr {
    /// True if kernels can compute the expression for operands of these types.
    pub fn has_kernel(&self, types: &[DType]) -> bool {
        Language::ALL.into_iter().all(|language| {
            let style = Style {
                types,
                language,
                wide: false,
            };
            self.print(style).is_ok()
        })
    }

    /// True if all values are floats and OpenCL C supports all functions on vectors.
    fn is_of_floats(&self, types: &[DType]) -> bool {
        match self {
            Self::Input(i) => types.get(*i).is_some_and(|t| t.is_float()),
            Self::Const(_, t) => t.is_float(),
            Self::Unary(_, x) => x.is_of_floats(types),
            Self::Binary(f, a, b) => {
                let plain = !f.is_comparison() && !f.is_logical() && !f.is_bitwise() && *f != Binary::Mod;
                plain && a.is_of_floats(types) && b.is_of_floats(types)
            }
            Self::Cast(t, x) => t.is_float() && x.is_of_floats(types),
            Self::Test(..) | Self::Not(_) | Self::Select(..) => false,
        }
    }
}

/// The function of an epilogue in the form that a device needs.
fn function(
    code: KernelCode,
    expr: &Expr,
    types: &[DType],
    storage_type: DType,
    wide: bool,
) -> OpResult<Function> {
    Ok(match code {
        KernelCode::Source(_) => Function::Source(ByLanguage {
            opencl_c: opencl_c(expr, types, storage_type, wide)?,
            wgsl: wgsl(expr, types, storage_type, wide)?,
        }),
        KernelCode::Native(_) => Function::Program(expr.program(types, wide)?),
    })
}

/// The expression as text, bounded by the range of halves if it is stored as one.
fn body(expr: &Expr, style: Style<'_>, storage_type: DType) -> OpResult<String> {
    let body = expr.print(style)?;
    Ok(if storage_type == DType::F16 {
        format!("half_range({body})")
    } else {
        body
    })
}

/// The helpers that a text calls in OpenCL C, by name, with the names of integers. The printer adds
/// those of WGSL.
fn helpers(text: &str, style: Style<'_>) -> impl Iterator<Item = (&'static str, String)> {
    let [integer, unsigned] = style.ints();
    let all = functions::HELPERS.iter().filter(|h| text.contains(h.0));
    all.map(move |(name, cl, _)| {
        (
            *name,
            cl.replace("INTEGER", integer).replace("UNSIGNED", unsigned),
        )
    })
}

/// The `apply` functions in OpenCL C.
fn opencl_c(expr: &Expr, types: &[DType], storage_type: DType, wide: bool) -> OpResult<String> {
    let style = Style {
        types,
        language: Language::OpenClC,
        wide,
    };
    let (dtype, vectors) = (expr.dtype(types)?, expr.is_of_floats(types));
    let (text, mut cl) = (body(expr, style, storage_type)?, String::new());
    for width in [1, 2, 4, 8, 16] {
        if width > 1 && !vectors {
            break;
        }
        let suffix = if width == 1 {
            String::new()
        } else {
            width.to_string()
        };
        let float = format!("float{suffix}");
        let of_width = |part: &str| {
            let named = helpers(&text, style).fold(part.to_owned(), |t, (name, _)| {
                t.replace(name, &format!("{name}{suffix}"))
            });
            let unsigned = format!("uint{suffix}");
            named.replace("FLOAT", &float).replace("UINT", &unsigned)
        };
        for (_, helper) in helpers(&text, style) {
            cl += &of_width(&helper);
        }
        let [int, _] = style.ints();
        let name = |t: DType| if t.is_float() { float.as_str() } else { int };
        let arguments = types.iter().zip(NAMES).map(|(t, n)| format!("{} v{n}", name(*t)));
        let arguments = arguments.collect::<Vec<_>>().join(", ");
        cl += &format!(
            "inline {} apply{suffix}({}) {{ return {}; }}\n",
            name(dtype),
            if arguments.is_empty() { "void" } else { &arguments },
            of_width(&text)
        );
    }
    Ok(cl)
}

/// The `apply` function in WGSL.
fn wgsl(expr: &Expr, types: &[DType], storage_type: DType, wide: bool) -> OpResult<String> {
    let style = Style {
        types,
        language: Language::Wgsl,
        wide,
    };
    let text = body(expr, style, storage_type)?;
    let [int, _] = style.ints();
    let name = |t: DType| if t.is_float() { "f32" } else { int };
    let arguments = types
        .iter()
        .zip(NAMES)
        .map(|(t, n)| format!("v{n}: {}", name(*t)));
    let stored = match storage_type {
        DType::I64 => "i64",
        t if t.is_float() => "f32",
        _ => "i32",
    };
    Ok(format!(
        "fn apply({}) -> {stored} {{ return {stored}({text}); }}\n",
        arguments.collect::<Vec<_>>().join(", "),
    ))
}

/// Operand `i` of the node with integers of 32 bits, for kernels that compare it with sizes. Wider
/// integers are converted first; those that do not fit become the nearest that do, which are no
/// index of any axis, since kernels count elements in 32 bits.
pub fn index(cx: &mut LowerCx<'_>, i: usize) -> OpResult<Operand> {
    let dtype = cx.fact(i)?.dtype;
    let at = |f, v: i128, x: Expr| {
        #[expect(clippy::cast_precision_loss, reason = "32 bits")]
        let limit = Expr::Const(v as f64, dtype);
        Expr::Binary(f, Box::new(x), Box::new(limit))
    };
    let Bounds { low, high } = Bounds::WORD;
    let mut near = at(Binary::Min, high, Expr::Input(0));
    if dtype != DType::U64 {
        near = at(Binary::Max, low, near);
    }
    convert(cx, i, DType::I32, &near)
}

/// Operand `i` of the node, stored as `dtype`.
pub fn stored_as(cx: &mut LowerCx<'_>, i: usize, dtype: DType) -> OpResult<Operand> {
    convert(cx, i, dtype, &Expr::Input(0))
}

/// Operand `i` as it is if it is stored as `dtype`, otherwise a copy to which `expr` is applied.
fn convert(cx: &mut LowerCx<'_>, i: usize, dtype: DType, expr: &Expr) -> OpResult<Operand> {
    let x = cx.input(i)?;
    if x.dtype == dtype {
        return Ok(x);
    }
    let fact = cx.fact(i)?;
    let (types, count) = ([fact.dtype], fact.shape.count()?);
    let y = cx.temp(dtype, count.clone());
    let epilogue = Epilogue {
        function: function(cx.device().code, expr, &types, dtype, true)?,
        vectors: false,
        wide: true,
        arguments: vec![Argument::Operand(0)],
        operands: vec![Further {
            beside: Beside::Same,
            weight: false,
        }],
        axes: 0,
    };
    let call = Call::new(&KERNEL, 64)
        .grid(count.ceil_div(2 * 64)?, 1, 1)
        .epilogue(WithOperands {
            epilogue,
            operands: vec![x],
            fields: Vec::new(),
        });
    cx.emit(call, Args { y, count })?;
    Ok(y)
}
