//! Conformance cases of the elementwise operators.

use super::functions::{BINARY, UNARY};
use super::{Binary, Expr, Pointwise, Test, Unary, import};
use crate::graph::op::case::{Case, input};
use crate::tensor::DType;

/// Broadcasts of every kind, odd counts, every function.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for f in UNARY {
        let (low, high) = match f {
            Unary::Log | Unary::Sqrt | Unary::Reciprocal => (0.25, 4.0),
            Unary::Asin | Unary::Acos | Unary::Atanh => (-0.9375, 0.9375),
            Unary::Acosh => (1.25, 9.0),
            Unary::Tan => (-1.25, 1.25),
            _ => (-3.0, 4.0),
        };
        let op = Pointwise {
            name: format!("{f:?}"),
            expr: Expr::Unary(*f, Box::new(Expr::Input(0))),
        };
        all.push(Case::new(op, vec![input(&[3, 43]).range(low, high)]));
    }
    for f in BINARY {
        let op = Pointwise::binary(&format!("{f:?}"), *f);
        if f.is_logical() {
            all.push(Case::new(
                op,
                vec![input(&[2, 5, 7]).bools(), input(&[5, 1]).bools()],
            ));
            continue;
        }
        if f.is_bitwise() {
            let case = Case::new(op, vec![input(&[2, 5, 7]).ints(0, 99), input(&[5, 1]).ints(0, 9)]);
            let shift = matches!(f, Binary::ShiftLeft | Binary::ShiftRight);
            all.push(if shift {
                case.host_only("integers beyond 32 bits")
            } else {
                case
            });
            continue;
        }
        if *f == Binary::Mod {
            all.push(Case::new(
                op,
                vec![input(&[129]).ints(-9, 9), input(&[43, 1]).ints(-4, 4)],
            ));
            continue;
        }
        let base = if *f == Binary::Pow { 0.25 } else { -3.0 };
        all.push(Case::new(
            op.clone(),
            vec![input(&[2, 5, 7]).range(base, 3.0), input(&[5, 1]).range(0.5, 3.0)],
        ));
        if !matches!(f, Binary::Pow) {
            all.push(Case::new(
                op,
                vec![input(&[129]).ints(-9, 9), input(&[1]).ints(1, 9)],
            ));
        }
    }
    let add =
        |a: &[usize], b: &[usize]| Case::new(Pointwise::binary("Add", Binary::Add), vec![input(a), input(b)]);
    all.extend([
        add(&[1], &[1]),
        add(&[1025], &[1025]),
        add(&[4, 1, 3], &[1, 5, 1]),
        add(&[2, 1, 3, 1, 5], &[2, 4, 1, 3, 1]),
        add(&[3, 2, 2], &[]),
    ]);
    let made = |name: &str, expr| Pointwise {
        name: name.to_owned(),
        expr,
    };
    let wide = || input(&[3, 43]).range(-6.0, 6.0);
    let bound = |v: f64| Some(Expr::Const(v, DType::F32));
    for (name, expr) in [
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
    ] {
        all.push(Case::new(made(name, expr), vec![wide()]));
    }
    let clip = import::clip(Some(Expr::Input(1)), Some(Expr::Input(2)));
    all.push(Case::new(
        made("Clip", clip),
        vec![wide(), input(&[]).range(-2.0, -1.0), input(&[]).range(1.0, 2.0)],
    ));
    all.push(Case::new(
        made("PRelu", import::prelu(Expr::Input(1))),
        vec![wide(), input(&[3, 1])],
    ));
    let not = Expr::Binary(
        Binary::Sub,
        Box::new(Expr::Const(-1.0, DType::I64)),
        Box::new(Expr::Input(0)),
    );
    all.push(Case::new(made("BitwiseNot", not), vec![input(&[33]).ints(-9, 9)]));
    for test in [
        Test::Nan,
        Test::Infinite {
            negative: true,
            positive: false,
        },
    ] {
        let expr = Expr::Test(test, Box::new(Expr::Input(0)));
        all.push(Case::new(made("Test", expr), vec![wide()]).host_only("numbers that are not finite"));
    }
    let [a, b, c] = [0, 1, 2].map(|i| Box::new(Expr::Input(i)));
    let silu = Expr::Binary(
        Binary::Mul,
        Box::new(Expr::Unary(Unary::Sigmoid, a.clone())),
        a.clone(),
    );
    let gated = Expr::Binary(Binary::Mul, Box::new(silu), b.clone());
    all.push(Case::new(
        Pointwise {
            name: "Fused".into(),
            expr: gated,
        },
        vec![input(&[3, 1537]), input(&[3, 1537])],
    ));
    let select = Expr::Select(a.clone(), b, c);
    let inputs = vec![input(&[2, 1, 9]).bools(), input(&[1]), input(&[5, 1])];
    all.push(Case::new(
        Pointwise {
            name: "Where".into(),
            expr: select,
        },
        inputs,
    ));
    let pick = |i| Box::new(Expr::Input(i));
    // Squares and cubes of negative numbers, as in normalizations.
    for exponent in [2.0, 3.0] {
        let expr = Expr::Binary(Binary::Pow, pick(0), Box::new(Expr::Const(exponent, DType::F32)));
        all.push(Case::new(
            Pointwise {
                name: "Fused".into(),
                expr,
            },
            vec![input(&[5, 9]).range(-3.0, 3.0)],
        ));
    }
    // `f16` values below the smallest normal number, around it, and large ones.
    for (low, high) in [(-6e-5, 6e-5), (-2e-4, 2e-4), (-6e4, 6e4)] {
        let expr = Expr::Binary(Binary::Mul, pick(0), Box::new(Expr::Const(0.7, DType::F32)));
        all.push(Case::new(
            Pointwise {
                name: "Fused".into(),
                expr,
            },
            vec![input(&[7, 37]).range(low, high)],
        ));
    }
    for f in [Unary::Neg, Unary::Abs, Unary::Sign, Unary::Relu] {
        let op = Pointwise {
            name: format!("{f:?}"),
            expr: Expr::Unary(f, pick(0)),
        };
        all.push(Case::new(op, vec![input(&[3, 11]).ints(-9, 9)]));
    }
    let choose = Pointwise {
        name: "Where".into(),
        expr: Expr::Select(pick(0), pick(1), pick(2)),
    };
    all.push(Case::new(
        choose,
        vec![
            input(&[3, 7]).bools(),
            input(&[7]).ints(-5, 5),
            input(&[3, 1]).ints(-5, 5),
        ],
    ));
    // All four operands, each broadcast differently.
    let sum = Expr::Binary(
        Binary::Add,
        Box::new(Expr::Binary(Binary::Mul, pick(0), pick(1))),
        pick(2),
    );
    let scaled = Expr::Binary(
        Binary::Mul,
        Box::new(sum),
        Box::new(Expr::Const(-0.1, DType::F32)),
    );
    let expr = Expr::Binary(Binary::Max, Box::new(scaled), pick(3));
    let shapes: [&[usize]; 4] = [&[2, 3, 5], &[3, 1], &[5], &[2, 1, 1]];
    all.push(Case::new(
        Pointwise {
            name: "Fused".into(),
            expr,
        },
        shapes.iter().map(|s| input(s)).collect(),
    ));
    for (to, from) in [
        (DType::I32, input(&[33]).range(-5.0, 5.0)),
        (DType::F32, input(&[33]).ints(-5, 5)),
        (DType::Bool, input(&[33]).ints(-1, 1)),
        (DType::Bool, input(&[33])),
    ] {
        all.push(Case::new(
            Pointwise {
                name: "Cast".into(),
                expr: Expr::Cast(to, a.clone()),
            },
            vec![from],
        ));
    }
    all.push(Case::new(
        Pointwise {
            name: "Not".into(),
            expr: Expr::Not(a),
        },
        vec![input(&[7, 3]).bools()],
    ));
    all
}
