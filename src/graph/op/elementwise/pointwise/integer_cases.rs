//! Conformance cases of integers up to the ends of their types.

use super::import::{binary, cast, input as arg, select, unary};
use super::{Binary, Expr, Pointwise, Unary};
use crate::graph::op::case::{Case, Input, given, input};
use crate::tensor::{DType, HostTensor};
use DType::{Bool, F32, I8, I16, I32, I64, U8, U16, U32, U64};

/// Values around 0, around the ends of 32 bits, and of 64 bits. Narrower types keep the low bits.
const VALUES: [i64; 16] = [
    0,
    1,
    -1,
    3,
    -7,
    100_000,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 31,
    i32::MIN as i64 - 1,
    u32::MAX as i64,
    (1 << 53) + 1,
    -1_000_000_000_000,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];

/// Floats that halves hold. Times [`FACTORS`], they are inside and outside the range of each type.
const FLOATS: [f32; 13] = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    7.75,
    -7.75,
    300.0,
    -129.5,
    3000.0,
    -3000.0,
    57344.0,
    -57344.0,
    f32::NAN,
];

/// Up to around 2^32, and far beyond 64 bits.
const FACTORS: [f64; 3] = [1.0, 1e6, 1e26];

fn all(dtype: DType, shape: &[usize]) -> Option<Input> {
    HostTensor::from_ints(dtype, shape, &VALUES).ok().map(given)
}

fn of_pairs(f: Binary, dtype: DType) -> Option<Case> {
    let n = VALUES.len();
    let inputs = vec![all(dtype, &[n, 1])?, all(dtype, &[n])?];
    let name = format!("{f:?}<{dtype}>");
    Some(Case::new(Pointwise::binary(&name, f), inputs))
}

fn of_each(name: &str, expr: Expr, x: Option<Input>) -> Option<Case> {
    let name = name.to_owned();
    Some(Case::new(Pointwise { name, expr }, vec![x?]))
}

pub fn cases() -> Vec<Case> {
    use Binary::{Add, BitwiseAnd, BitwiseXor, Div, Equal, FMod, Greater, Less, Max, Min, Mod, Mul, Sub};
    let n = VALUES.len();
    let pairs = [
        (
            I64,
            &[Add, Sub, Mul, Div, Mod, FMod, Min, Max, Less, Equal, BitwiseAnd][..],
        ),
        (
            U64,
            &[Sub, Mul, Div, Mod, FMod, Min, Max, Less, Greater, BitwiseXor],
        ),
        (U32, &[Sub, Mul, Div, Mod, Max, Less]),
        (I32, &[Mul, Div, Mod, FMod]),
        (I8, &[Div, Mod]),
    ];
    let pairs = pairs
        .into_iter()
        .flat_map(|(t, fs)| fs.iter().map(move |f| of_pairs(*f, t)));
    let functions = [Unary::Neg, Unary::Abs, Unary::Sign, Unary::Relu];
    let functions = functions.map(|f| of_each(&format!("{f:?}<i64>"), unary(f, arg(0)), all(I64, &[n])));
    let casts = [
        (I64, &[F32, Bool, I32, U32, U64, I8, U16][..]),
        (U64, &[F32, I64, U32]),
        (U32, &[F32, I64, I16]),
        (I32, &[U32, U64, U8]),
    ];
    let casts = casts
        .into_iter()
        .flat_map(|(from, to)| to.iter().map(move |to| (from, *to)));
    let casts = casts.map(|(from, to)| of_each(&format!("Cast<{from}>"), cast(to, arg(0)), all(from, &[n])));
    let floats = [I64, U64, I32, U32, I16, U16, I8, U8]
        .into_iter()
        .zip(FACTORS.into_iter().cycle());
    let floats = floats.chain([(I64, 1e6), (U64, 1e26), (I32, 1e6), (U32, 1e6)]);
    let floats = floats.map(|(to, factor)| {
        let x = HostTensor::from_f32(&[FLOATS.len()], &FLOATS).ok().map(given);
        let x_times = binary(Mul, arg(0), Expr::Const(factor, F32));
        of_each(&format!("Cast<f32 * {factor:e}>"), cast(to, x_times), x)
    });
    // Chosen by a float of the same expression, and a sum that exceeds 32 bits in between.
    let below = binary(Less, cast(F32, arg(0)), Expr::Const(0.0, F32));
    let chosen = of_each(
        "Where",
        select(below, Expr::Const(-5.0, I64), arg(0)),
        all(I64, &[n]),
    );
    let hashed = binary(
        Mod,
        binary(Mul, arg(0), Expr::Const(73_856_093.0, I64)),
        Expr::Const(1_000_003.0, I64),
    );
    let hashed = Some(Case::new(
        Pointwise {
            name: "Hash".to_owned(),
            expr: hashed,
        },
        vec![input(&[33]).ints(-100_000, 100_000)],
    ));
    let rest = functions.into_iter().chain(floats).chain([chosen, hashed]);
    pairs.chain(casts).chain(rest).flatten().collect()
}
