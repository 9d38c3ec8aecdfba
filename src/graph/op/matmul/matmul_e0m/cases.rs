//! Conformance cases of [`MatMulE0m`].

use super::{MatMulE0m, int8};
use crate::graph::op::case::{Case, constant, input};
use crate::quant::{Bits, ByGroup, Method, Packed};
use crate::tensor::HostTensor;
use half::f16;

/// Packed operands of a pseudo-random K x N matrix.
pub(crate) fn packed_case(bits: Bits, group: usize, k: usize, n: usize) -> Option<(HostTensor, HostTensor)> {
    scaled_case(bits, group, k, n, 1.0)
}

/// Like [`packed_case`], with weights up to about `scale`.
fn scaled_case(bits: Bits, group: usize, k: usize, n: usize, scale: f32) -> Option<(HostTensor, HostTensor)> {
    #[expect(clippy::cast_precision_loss, reason = "small test numbers")]
    let at = |i: usize, j: usize| (((i * 37 + j * 101 + i * j % 13) % 257) as f32 / 128.0 - 0.9) * scale;
    // Fast, but its biases have no low bits, so some are added.
    let p = Packed::quantize(bits, group, k, n, &ByGroup::from(Method::Rtn), &at).ok()?;
    let codes = HostTensor::from_u32(&[bits.rows(k), n], &p.codes).ok()?;
    #[expect(clippy::cast_precision_loss, reason = "small test numbers")]
    let low = |i: usize| (i % 8) as f32 / 512.0;
    let flat: Vec<f16> = p
        .scales
        .iter()
        .enumerate()
        .flat_map(|(i, [scale, bias])| [*scale, f16::from_f32((bias.to_f32() + low(i)).min(3.998))])
        .collect();
    Some((
        codes,
        HostTensor::from_f16(&[k.div_ceil(group), n, 2], &flat).ok()?,
    ))
}

pub(super) fn cases() -> Vec<Case> {
    let case = |bits, group, rows: usize, k, n| {
        let (codes, scales) = packed_case(bits, group, k, n)?;
        let op = MatMulE0m::new(bits, group);
        Some(Case::new(
            op,
            vec![input(&[1, rows, k]), constant(codes), constant(scales)],
        ))
    };
    use Bits::{Eight, Five, Four, Six, Three, Two};
    [
        (Four, 32, 1, 64, 64),
        (Four, 32, 1, 576, 130),
        (Four, 64, 1, 192, 66),
        (Four, 128, 1, 136, 10),
        (Eight, 64, 1, 96, 190),
        (Four, 32, 2, 64, 64),
        (Four, 32, 9, 96, 130),
        (Four, 128, 17, 136, 66),
        (Eight, 64, 5, 100, 34),
        (Two, 32, 1, 80, 66),
        (Three, 16, 1, 96, 10),
        (Five, 128, 1, 288, 66),
        (Six, 32, 1, 96, 130),
        (Two, 24, 3, 80, 34),
        (Three, 128, 9, 160, 66),
        (Five, 48, 5, 96, 34),
        (Six, 64, 9, 96, 130),
        (Four, 576, 1, 576, 34),
        // Whole blocks of tensor cores: k-blocks that end early, several tiles, a partial tile.
        (Four, 128, 1, 1056, 98),
        (Eight, 128, 1, 1040, 66),
        // Few rows, along one side of tensor cores.
        (Four, 128, 5, 1056, 98),
        (Four, 32, 16, 96, 130),
        (Eight, 128, 12, 1040, 66),
        (Eight, 64, 8, 144, 68),
        (Four, 128, 70, 288, 164),
        (Four, 32, 100, 1056, 260),
        (Four, 64, 140, 192, 132),
        (Eight, 64, 45, 144, 68),
        (Eight, 64, 100, 80, 4096),
        (Four, 128, 19, 160, 68),
        (Four, 64, 100, 96, 4164),
        (Four, 32, 70, 64, 7684),
        (Four, 32, 1030, 64, 36),
        (Eight, 64, 1030, 64, 36),
        // Groups that the vector kernel splits into k-blocks when many work-items share a column.
        (Four, 40, 1, 496, 66),
        (Four, 72, 1, 496, 34),
        (Five, 80, 1, 512, 34),
        (Eight, 960, 1, 960, 34),
        (Five, 288, 3, 288, 34),
        (Eight, 520, 9, 520, 10),
    ]
    .into_iter()
    .filter_map(|(b, g, r, k, n)| case(b, g, r, k, n))
    .chain(largest_halves())
    .chain(normed_cases())
    .chain(int8::cases())
    .collect()
}

/// Rows that are normalized, inside the kernels for one row or before them.
fn normed_cases() -> Vec<Case> {
    use Bits::{Eight, Five, Four};
    let case = |bits, group, rows: usize, k, n| {
        let (codes, scales) = packed_case(bits, group, k, n)?;
        let op = MatMulE0m {
            norm: Some(1e-5),
            ..MatMulE0m::new(bits, group)
        };
        let gain = input(&[k]).range(0.5, 1.5).constant();
        Some(Case::new(
            op,
            vec![input(&[1, rows, k]), constant(codes), constant(scales), gain],
        ))
    };
    [
        case(Four, 32, 1, 576, 130),
        case(Four, 128, 1, 1056, 98),
        case(Eight, 64, 1, 1040, 66),
        case(Five, 32, 1, 96, 34),
        case(Four, 40, 1, 496, 66),
        case(Four, 32, 9, 96, 66),
        case(Four, 128, 5, 1056, 98),
        case(Four, 32, 13, 576, 130),
        case(Eight, 64, 27, 1040, 66),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Activations as large as `f16` allows, whose products with a step of weights must stay finite.
fn largest_halves() -> Option<Case> {
    let (codes, scales) = scaled_case(Bits::Four, 32, 96, 34, 1.0 / 256.0)?;
    let op = MatMulE0m::new(Bits::Four, 32);
    let x = input(&[1, 1, 96]).range(65_000.0, 65_500.0);
    Some(Case::new(op, vec![x, constant(codes), constant(scales)]))
}
