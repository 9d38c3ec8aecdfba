//! Conformance cases of the elementwise operators.

use super::import::{binary, cast, input as arg, select, unary};
use super::{Binary, Expr, Pointwise, Test, Unary, import};
use crate::backend::kernel::functions::{BINARY, UNARY};
use crate::graph::op::case::{Case, EDGES, Input, given, input};
use crate::tensor::{DType, HostTensor};

/// Broadcasts of every kind, odd counts, every function.
pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = UNARY.iter().map(|f| of_unary(*f)).collect();
    all.extend(edges());
    all.extend(BINARY.iter().flat_map(|f| of_binary(*f)));
    all.extend(broadcasts());
    all.extend(activations());
    all.extend(expressions());
    all.extend(super::integer_cases::cases());
    all
}

fn case(name: &str, expr: Expr, inputs: Vec<Input>) -> Case {
    let name = name.to_owned();
    Case::new(Pointwise { name, expr }, inputs)
}

fn of_unary(f: Unary) -> Case {
    let (low, high) = match f {
        Unary::Log | Unary::Sqrt | Unary::Reciprocal => (0.25, 4.0),
        Unary::Asin | Unary::Acos | Unary::Atanh => (-0.9375, 0.9375),
        Unary::Acosh => (1.25, 9.0),
        Unary::Tan => (-1.25, 1.25),
        _ => (-3.0, 4.0),
    };
    case(
        &format!("{f:?}"),
        unary(f, arg(0)),
        vec![input(&[3, 43]).range(low, high)],
    )
}

/// NaN, infinities and zeros, and numbers whose results are infinite.
fn edges() -> Vec<Case> {
    let all = || input(&[11, 1]).floats(EDGES);
    // Not all devices compute these functions well far from 0.
    let near = || input(&[7]).floats(EDGES.split_at_checked(7).map_or(EDGES, |(near, _)| near));
    let functions = UNARY.iter().map(|f| {
        let x = match f {
            Unary::Sin | Unary::Cos | Unary::Tan => near(),
            _ => all(),
        };
        case(&format!("{f:?}"), unary(*f, arg(0)), vec![x])
    });
    let pairs = BINARY.iter().filter(|f| !f.is_logical() && !f.is_bitwise());
    let pairs = pairs.map(|f| {
        let b = if *f == Binary::Pow {
            near()
        } else {
            input(&[11]).floats(EDGES)
        };
        Case::new(Pointwise::binary(&format!("{f:?}"), *f), vec![all(), b])
    });
    let number = |v: f32| Expr::Const(f64::from(v), DType::F32);
    let by = |f, v| binary(f, arg(0), number(v));
    let infinite = |negative, positive| Test::Infinite { negative, positive };
    let test = |t| Expr::Test(t, Box::new(arg(0)));
    let expressions = [
        by(Binary::Mul, 0.0),
        by(Binary::Mul, f32::INFINITY),
        by(Binary::Div, 0.0),
        by(Binary::Div, -0.0),
        by(Binary::Div, f32::NEG_INFINITY),
        binary(Binary::Div, number(0.0), arg(0)),
        binary(Binary::Div, arg(0), arg(0)),
        by(Binary::Pow, 0.5),
        by(Binary::Max, f32::NEG_INFINITY),
        by(Binary::Add, f32::NAN),
        binary(Binary::Sub, arg(0), arg(0)),
        binary(Binary::Equal, arg(0), arg(0)),
        select(by(Binary::Less, 0.0), number(f32::NEG_INFINITY), arg(0)),
        cast(DType::Bool, arg(0)),
        test(Test::Nan),
        test(infinite(true, true)),
        test(infinite(true, false)),
        test(infinite(false, true)),
        test(infinite(false, false)),
        import::prelu(number(0.01)),
        import::elu(0.7),
        import::hard_sigmoid(0.2, 0.5),
        import::gelu(false),
        import::clip(Some(number(-1.5)), Some(number(2.0))),
    ];
    let expressions = expressions.map(|expr| case("Edges", expr, vec![all()]));
    let truth = cast(DType::I32, cast(DType::F32, cast(DType::Bool, arg(0))));
    let remainder = binary(Binary::Mod, truth, cast(DType::I32, arg(1)));
    let remainder = case("Edges", remainder, vec![all(), input(&[5]).ints(-2, 2)]);
    // Numbers of every size rounded to halves and used as floats, some too small or too large.
    let rounded = [0.37, 1.003e-4, 1.7e-6, 1e4].map(|factor| {
        let half = cast(DType::F16, by(Binary::Mul, factor));
        let x = input(&[5, 33]).range(-9.0, 9.0);
        case("Cast", cast(DType::F32, half), vec![x])
    });
    functions
        .chain(pairs)
        .chain(expressions)
        .chain(rounded)
        .chain([remainder])
        .collect()
}

fn of_binary(f: Binary) -> Vec<Case> {
    let case = |a, b| Case::new(Pointwise::binary(&format!("{f:?}"), f), vec![a, b]);
    let (wide, narrow) = (input(&[2, 5, 7]), input(&[5, 1]));
    if f.is_logical() {
        return vec![case(wide.bools(), narrow.bools())];
    }
    if f.is_bitwise() {
        return vec![match f {
            Binary::ShiftLeft | Binary::ShiftRight => {
                case(wide.ints(-99, 99), narrow.ints(-9, 70)).host_only("integers beyond 32 bits")
            }
            _ => case(wide.ints(0, 99), narrow.ints(0, 9)),
        }];
    }
    let floats = |low| case(wide.range(low, 3.0), narrow.range(0.5, 3.0));
    match f {
        Binary::Mod => {
            let negative = input(&[5, 1]).range(-3.0, -0.5);
            let mut all = vec![
                case(input(&[129]).ints(-9, 9), input(&[43, 1]).ints(-4, 4)),
                floats(-3.0),
                case(input(&[3, 5, 7]).range(-40.0, 40.0), negative),
            ];
            // Multiples of the divisor, and operands smaller than it.
            let x = HostTensor::from_f32(&[9], &[6.0, -6.0, 7.5, -7.5, 0.0, 2.0, -2.0, 1.5, -1.5]);
            let y = HostTensor::from_f32(&[2, 1], &[1.5, -1.5]);
            all.extend(x.ok().zip(y.ok()).map(|(x, y)| case(given(x), given(y))));
            all
        }
        Binary::Pow => vec![floats(0.25)],
        _ => vec![
            floats(-3.0),
            case(input(&[129]).ints(-9, 9), input(&[1]).ints(1, 9)),
        ],
    }
}

fn broadcasts() -> [Case; 5] {
    let add =
        |a: &[usize], b: &[usize]| Case::new(Pointwise::binary("Add", Binary::Add), vec![input(a), input(b)]);
    [
        add(&[1], &[1]),
        add(&[1025], &[1025]),
        add(&[4, 1, 3], &[1, 5, 1]),
        add(&[2, 1, 3, 1, 5], &[2, 4, 1, 3, 1]),
        add(&[3, 2, 2], &[]),
    ]
}

fn activations() -> Vec<Case> {
    let wide = || input(&[3, 43]).range(-6.0, 6.0);
    let bound = |v: f64| Some(Expr::Const(v, DType::F32));
    let functions = [
        ("Selu", import::selu(1.673_263_2, 1.050_701)),
        ("Elu", import::elu(0.7)),
        ("Celu", import::celu(1.5)),
        ("LeakyRelu", import::prelu(Expr::Const(0.1, DType::F32))),
        ("HardSigmoid", import::hard_sigmoid(0.2, 0.5)),
        ("ThresholdedRelu", import::thresholded_relu(0.5)),
        ("Shrink", import::shrink(0.5, 0.25)),
        ("Mish", import::mish()),
        ("Gelu", import::gelu(false)),
        ("Gelu", import::gelu(true)),
        ("Swish", import::swish(1.5)),
        ("Clip", import::clip(bound(-1.5), bound(2.0))),
    ];
    let mut all: Vec<Case> = functions
        .into_iter()
        .map(|(name, expr)| case(name, expr, vec![wide()]))
        .collect();
    let bounds = [input(&[]).range(-2.0, -1.0), input(&[]).range(1.0, 2.0)];
    let clip = import::clip(Some(arg(1)), Some(arg(2)));
    all.push(case("Clip", clip, [wide()].into_iter().chain(bounds).collect()));
    all.push(case("PRelu", import::prelu(arg(1)), vec![wide(), input(&[3, 1])]));
    all.extend([(1.0, [3, 43]), (0.5, [1, 1025])].map(|(alpha, shape)| {
        let inputs = vec![input(&shape).range(-6.0, 6.0), input(&shape)];
        case("SwiGLU", import::swiglu(alpha), inputs)
    }));
    let not = binary(Binary::Sub, Expr::Const(-1.0, DType::I64), arg(0));
    all.push(case("BitwiseNot", not, vec![input(&[33]).ints(-9, 9)]));
    all
}

/// Functions of several operands, as the fusion of nodes makes them, and casts.
fn expressions() -> Vec<Case> {
    let by = |f, v: f64| binary(f, arg(0), Expr::Const(v, DType::F32));
    let where_ = || select(arg(0), arg(1), arg(2));
    let silu = binary(Binary::Mul, unary(Unary::Sigmoid, arg(0)), arg(0));
    let gated = binary(Binary::Mul, silu, arg(1));
    let mut all = vec![
        case("Fused", gated, vec![input(&[3, 1537]), input(&[3, 1537])]),
        case(
            "Where",
            where_(),
            vec![input(&[2, 1, 9]).bools(), input(&[1]), input(&[5, 1])],
        ),
    ];
    // Squares and cubes of negative numbers, as in normalizations.
    all.extend([2.0, 3.0].map(|exponent| {
        let x = input(&[5, 9]).range(-3.0, 3.0);
        case("Fused", by(Binary::Pow, exponent), vec![x])
    }));
    // `f16` values below the smallest normal number, around it, and large ones.
    all.extend([6e-5, 2e-4, 6e4].map(|high| {
        let x = input(&[7, 37]).range(-high, high);
        case("Fused", by(Binary::Mul, 0.7), vec![x])
    }));
    all.extend([Unary::Neg, Unary::Abs, Unary::Sign, Unary::Relu].map(|f| {
        let x = input(&[3, 11]).ints(-9, 9);
        case(&format!("{f:?}"), unary(f, arg(0)), vec![x])
    }));
    let (a, b) = (input(&[7]).ints(-5, 5), input(&[3, 1]).ints(-5, 5));
    all.push(case("Where", where_(), vec![input(&[3, 7]).bools(), a, b]));
    // All four operands, each broadcast differently.
    let sum = binary(Binary::Add, binary(Binary::Mul, arg(0), arg(1)), arg(2));
    let scaled = binary(Binary::Mul, sum, Expr::Const(-0.1, DType::F32));
    let shapes: [&[usize]; 4] = [&[2, 3, 5], &[3, 1], &[5], &[2, 1, 1]];
    all.push(case(
        "Fused",
        binary(Binary::Max, scaled, arg(3)),
        shapes.map(input).into(),
    ));
    let casts = [
        (DType::I32, input(&[33]).range(-5.0, 5.0)),
        (DType::F32, input(&[33]).ints(-5, 5)),
        (DType::Bool, input(&[33]).ints(-1, 1)),
        (DType::Bool, input(&[33])),
    ];
    all.extend(casts.map(|(to, x)| case("Cast", cast(to, arg(0)), vec![x])));
    let not = Expr::Not(Box::new(arg(0)));
    all.push(case("Not", not, vec![input(&[7, 3]).bools()]));
    all
}
