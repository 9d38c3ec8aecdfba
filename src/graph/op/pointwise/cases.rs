//! Conformance cases of the elementwise operators.

use super::import::{binary, cast, input as arg, select, unary};
use super::{Binary, Expr, Pointwise, Test, Unary, import};
use crate::backend::kernel::functions::{BINARY, UNARY};
use crate::graph::op::case::{Case, Input, given, input};
use crate::tensor::{DType, HostTensor};

/// Broadcasts of every kind, odd counts, every function.
pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = UNARY.iter().map(|f| of_unary(*f)).collect();
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
    let infinite = Test::Infinite {
        negative: true,
        positive: false,
    };
    all.extend([Test::Nan, infinite].map(|test| {
        let expr = Expr::Test(test, Box::new(arg(0)));
        case("Test", expr, vec![wide()]).host_only("numbers that are not finite")
    }));
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
