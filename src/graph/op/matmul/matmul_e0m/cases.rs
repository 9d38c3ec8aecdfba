//! Conformance cases of [`QuantizedMatMul`].

use super::{ActivationType, QuantizedMatMul};
use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::pointwise::import::{binary, input as arg, unary};
use crate::graph::op::pointwise::{Binary, Expr, Unary};
use crate::quant::nested::{self, Block, Nested};
use crate::quant::{Bits, ByGroup, Format, GridColumn, Grids, Method, Packed, Scales};
use crate::tensor::HostTensor;
use half::f16;

/// Packed operands of a pseudo-random K x N matrix.
pub(crate) fn packed_case(format: Format, k: usize, n: usize) -> Option<(HostTensor, HostTensor)> {
    scaled_case(format, k, n, 1.0)
}

/// Like [`packed_case`], with weights up to about `scale`.
fn scaled_case(format: Format, k: usize, n: usize, scale: f32) -> Option<(HostTensor, HostTensor)> {
    let Format { bits, group, scales } = format;
    if let Scales::Nested(nested) = scales {
        let packed = nested_case(format, nested, k, n)?;
        let (_, shape) = format.scale_tensor(k, n);
        return Some((
            HostTensor::from_u32(&[bits.rows(k), n], &packed.codes).ok()?,
            HostTensor::from_u32(&shape, &packed.scales).ok()?,
        ));
    }
    #[expect(clippy::cast_precision_loss, reason = "small test numbers")]
    let at = |i: usize, j: usize| (((i * 37 + j * 101 + i * j % 13) % 257) as f32 / 128.0 - 0.9) * scale;
    // Fast, but its biases have no low bits, so some are added.
    let p = Packed::quantize(bits, group, k, n, &ByGroup::from(Method::Rtn), &at).ok()?;
    let codes = HostTensor::from_u32(&[bits.rows(k), n], &p.codes).ok()?;
    #[expect(clippy::cast_precision_loss, reason = "small test numbers")]
    let low = |i: usize| (i % 8) as f32 / 512.0;
    let flat: Vec<f16> = p
        .pairs()
        .iter()
        .enumerate()
        .flat_map(|(i, [scale, bias])| [*scale, f16::from_f32((bias.to_f32() + low(i)).min(3.998))])
        .collect();
    Some((
        codes,
        HostTensor::from_f16(&[k.div_ceil(group), n, 2], &flat).ok()?,
    ))
}

/// A matrix with nested scales and weights up to about 1.
fn nested_case(format: Format, nested: Nested, k: usize, n: usize) -> Option<Packed> {
    let columns = (0..n).map(|j| nested_column(format, nested, k, j));
    let columns = columns.collect::<Option<Vec<_>>>()?;
    let column = Box::new(move |j: usize, out: &mut GridColumn| out.clone_from(&columns[j]));
    let grids = Grids { format, k, n, column };
    Some(grids.pack().ok()?.0)
}

/// Column `j` of [`nested_case`].
fn nested_column(format: Format, nested: Nested, k: usize, j: usize) -> Option<GridColumn> {
    let number = |i: usize, below: usize| (i * 37 + j * 101 + i * j % 13) % below;
    // The largest scale, and the least.
    let (most, least) = match (nested.minima, nested.is_six()) {
        (true, true) => (63i32, 0i32),
        (true, false) => (15, 0),
        (false, true) => (31, -32),
        (false, false) => (127, -128),
    };
    let levels = usize::from(format.bits.top()) + 1;
    let span = usize::try_from(most - least + 1).ok()?;
    let codes = (0..k).map(|i| u8::try_from(number(i, levels)).ok());
    let mut out = GridColumn {
        codes: codes.collect::<Option<_>>()?,
        ..GridColumn::default()
    };
    for b in 0..k / nested::BLOCK {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let d = (8 - number(b, 4)) as f32 / (4 * levels) as f32 / most as f32;
        // GGML writes factors of both signs.
        let d = if number(b, 3) == 1 { -d } else { d };
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let dmin = match (nested.minima, number(b + 1, 3)) {
            (false, _) => 0.0,
            (true, 0) => d * levels as f32 / -4.0,
            (true, more) => d * (levels * more) as f32 / 4.0,
        };
        let mut block = Block {
            halves: [d, dmin].map(f16::from_f32),
            ..Block::default()
        };
        for g in 0..nested.groups() {
            let scale = least + i32::try_from(number(b * 16 + g + 5, span)).ok()?;
            block.scales[g] = i8::try_from(scale).ok()?;
            if nested.minima {
                block.minima[g] = u8::try_from(number(b + g + 3, span)).ok()?;
            }
        }
        out.blocks.push(block);
    }
    Some(out)
}

/// A case of `op` with `rows` rows of `k` elements and weights of these numbers of columns. The
/// norm's scale is constant for one row.
fn case(op: QuantizedMatMul, rows: usize, k: usize, columns: &[usize]) -> Option<Case> {
    let mut inputs = vec![input(&[1, rows, k])];
    for n in columns {
        let (codes, scales) = packed_case(op.format, k, *n)?;
        inputs.extend([constant(codes), constant(scales)]);
    }
    if op.norm.is_some() {
        let gain = input(&[k]).range(0.5, 1.5);
        inputs.push(if rows == 1 { gain.constant() } else { gain });
    }
    Some(Case::new(op, inputs))
}

/// A matmul of this format, with int8 activations if `int8`, and behind a norm if `normed`.
fn op(bits: Bits, group: usize, int8: bool, normed: bool) -> QuantizedMatMul {
    QuantizedMatMul {
        activations: if int8 {
            ActivationType::Int8
        } else {
            ActivationType::Float
        },
        norm: normed.then_some(1e-5),
        ..QuantizedMatMul::new(Format::new(bits, group))
    }
}

pub(super) fn cases() -> Vec<Case> {
    let all = float_cases().into_iter().chain([largest_halves()]);
    let all = all.chain(normed_cases()).chain(int8_cases());
    let all = all.chain(joint_cases()).chain(gated_cases());
    all.chain(nested_cases()).flatten().collect()
}

/// Nested scales of each width, and several weights, norms, gates and int8 activations with them.
fn nested_cases() -> Vec<Option<Case>> {
    let mut all = Vec::new();
    let mut add = |bits, [int8, normed]: [bool; 2], rows: usize, k, columns: &[usize]| {
        let Some(format) = Format::nested(bits) else {
            return;
        };
        let op = QuantizedMatMul {
            weights: columns.len(),
            format,
            ..op(bits, format.group, int8, normed)
        };
        all.push(case(op, rows, k, columns));
    };
    for bits in Bits::ALL {
        add(bits, [false, false], 1, 512, &[66]);
        add(bits, [false, true], 1, 768, &[34]);
        add(bits, [false, false], 9, 256, &[34]);
        add(bits, [false, false], 100, 512, &[132]);
    }
    add(Bits::Four, [false, false], 5, 1280, &[98]);
    add(Bits::Four, [false, false], 16, 256, &[130]);
    add(Bits::Four, [false, true], 8, 768, &[66]);
    add(Bits::Four, [false, false], 100, 512, &[260]);
    add(Bits::Four, [false, false], 70, 256, &[7684]);
    add(Bits::Four, [false, false], 1, 256, &[64, 32, 96]);
    add(Bits::Four, [false, true], 9, 256, &[64, 32]);
    add(Bits::Six, [false, false], 1, 512, &[64, 66]);
    for rows in [1, 9] {
        add(Bits::Four, [true, false], rows, 512, &[66]);
        add(Bits::Four, [true, true], rows, 256, &[64, 32]);
    }
    for (rows, bits) in [(1, Bits::Four), (9, Bits::Four), (1, Bits::Six), (9, Bits::Six)] {
        all.push(Format::nested(bits).and_then(|format| {
            let op = op(bits, format.group, false, rows == 1);
            let op = QuantizedMatMul { format, ..op };
            case(op.gated(swiglu()), rows, 512, &[66, 66])
        }));
    }
    all
}

fn float_cases() -> Vec<Option<Case>> {
    use Bits::{Eight, Five, Four, Six, Three, Two};
    let all = [
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
    ];
    let case = |(bits, group, rows, k, n)| case(op(bits, group, false, false), rows, k, &[n]);
    all.map(case).into()
}

/// Activations as large as `f16` allows, whose products with a step of weights must stay finite.
fn largest_halves() -> Option<Case> {
    let op = op(Bits::Four, 32, false, false);
    let (codes, scales) = scaled_case(op.format, 96, 34, 1.0 / 256.0)?;
    let x = input(&[1, 1, 96]).range(65_000.0, 65_500.0);
    Some(Case::new(op, vec![x, constant(codes), constant(scales)]))
}

/// Rows that are normalized, inside the kernels for one row or before them.
fn normed_cases() -> [Option<Case>; 9] {
    use Bits::{Eight, Five, Four};
    let case = |(bits, group, rows, k, n)| case(op(bits, group, false, true), rows, k, &[n]);
    [
        (Four, 32, 1, 576, 130),
        (Four, 128, 1, 1056, 98),
        (Eight, 64, 1, 1040, 66),
        (Five, 32, 1, 96, 34),
        (Four, 40, 1, 496, 66),
        (Four, 32, 9, 96, 66),
        (Four, 128, 5, 1056, 98),
        (Four, 32, 13, 576, 130),
        (Eight, 64, 27, 1040, 66),
    ]
    .map(case)
}

/// Activations of 8 bits.
fn int8_cases() -> [Option<Case>; 16] {
    use Bits::{Eight, Four};
    let case = |(bits, group, normed, rows, k, n)| {
        let dispatches = match (rows, normed) {
            (1, _) => 1,
            (_, false) => 2,
            (_, true) => 3,
        };
        Some(case(op(bits, group, true, normed), rows, k, &[n])?.dispatches(dispatches))
    };
    [
        (Four, 32, false, 1, 64, 64),
        (Four, 32, false, 1, 576, 130),
        (Four, 128, false, 1, 136, 10),
        (Four, 40, false, 1, 496, 66),
        (Four, 576, false, 1, 576, 34),
        (Eight, 64, false, 1, 96, 190),
        (Eight, 520, false, 1, 520, 34),
        (Four, 32, false, 2, 64, 64),
        (Four, 32, false, 9, 96, 130),
        (Four, 128, false, 17, 136, 66),
        (Four, 24, false, 8, 88, 32),
        (Eight, 64, false, 5, 100, 34),
        (Eight, 64, false, 33, 144, 68),
        (Four, 32, true, 1, 576, 130),
        (Eight, 64, true, 1, 100, 34),
        (Four, 32, true, 9, 96, 66),
    ]
    .map(case)
}

/// Several weights.
fn joint_cases() -> [Option<Case>; 15] {
    use Bits::{Eight, Four};
    let case = |(bits, group, [int8, normed], rows, k, columns): (_, _, [bool; 2], _, _, &[usize])| {
        let op = QuantizedMatMul {
            weights: columns.len(),
            ..op(bits, group, int8, normed)
        };
        let case = case(op, rows, k, columns)?;
        Some(match (int8, normed) {
            (_, true) => case,
            (true, _) if rows > 1 => case.dispatches(2),
            _ => case.dispatches(1),
        })
    };
    [
        (Four, 32, [false, false], 1, 64, &[64, 64][..]),
        (Four, 32, [false, false], 1, 96, &[256, 66, 130]),
        (Eight, 64, [false, false], 1, 96, &[64, 32, 96]),
        (Four, 32, [false, false], 9, 96, &[130, 64, 64]),
        (Four, 32, [false, false], 8, 96, &[64, 32, 96]),
        (Four, 128, [false, false], 17, 136, &[66, 10]),
        (Eight, 64, [false, false], 5, 100, &[34, 2, 256]),
        (Eight, 64, [false, false], 8, 100, &[64, 32]),
        (Four, 32, [true, false], 1, 96, &[256, 66, 130]),
        (Four, 32, [true, false], 9, 96, &[130, 64, 64]),
        (Four, 128, [true, false], 17, 136, &[66, 10]),
        (Eight, 64, [true, false], 5, 100, &[34, 2, 256]),
        (Four, 32, [false, true], 1, 96, &[256, 66, 130]),
        (Eight, 64, [false, true], 1, 192, &[64, 32, 96]),
        (Four, 32, [false, true], 9, 96, &[64, 32]),
    ]
    .map(case)
}

/// The second product is the gate.
fn swiglu() -> Expr {
    let silu = binary(Binary::Mul, arg(1), unary(Unary::Sigmoid, arg(1)));
    binary(Binary::Mul, arg(0), silu)
}

/// SwiGLU of two weights.
fn gated_cases() -> [Option<Case>; 15] {
    use Bits::{Eight, Five, Four};
    let case = |(bits, group, [int8, normed], rows, k, n): (_, _, [bool; 2], _, _, _)| {
        let case = case(op(bits, group, int8, normed).gated(swiglu()), rows, k, &[n, n])?;
        Some(if rows == 1 && !normed {
            case.dispatches(1)
        } else {
            case
        })
    };
    [
        (Four, 32, [false, false], 1, 96, 66),
        (Four, 32, [false, true], 1, 576, 130),
        (Four, 128, [false, true], 1, 1056, 98),
        (Eight, 64, [false, true], 1, 192, 66),
        (Eight, 64, [false, false], 1, 96, 190),
        (Five, 32, [false, true], 1, 96, 66),
        (Four, 32, [false, false], 9, 96, 130),
        (Four, 32, [false, true], 9, 96, 64),
        (Four, 128, [false, true], 40, 160, 132),
        (Eight, 64, [false, false], 70, 144, 68),
        (Four, 64, [false, false], 100, 64, 164),
        (Four, 32, [true, false], 1, 96, 66),
        (Four, 32, [true, true], 1, 576, 130),
        (Eight, 64, [true, true], 1, 100, 34),
        (Four, 32, [true, true], 9, 96, 66),
    ]
    .map(case)
}
