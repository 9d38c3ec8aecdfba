//! Matmul with a low-bit weight in ONNX Runtime's format: `MatMulNBits` of the domain
//! `com.microsoft`, version 1.
//!
//! For K rows, N columns, blocks of b rows and x bits (2, 4 or 8), the operands are:
//!
//! * `x [.., K]`;
//! * quantized weights `u8[N][ceil(K / b)][b * x / 8]`, the first weight in the lowest bits;
//! * scales `[N][ceil(K / b)]`, floats;
//! * optional zero points: packed like the weights, in whole bytes per column, or as many floats as
//!   scales; by default half the number of levels;
//! * optional `g_idx i32[K]`, the block of each row; elements beyond K are padding;
//! * optional bias `[N]`.
//!
//! A weight is `scale * (code - zero)`. Attributes: `K`, `N`, `bits`, `block_size`;
//! `accuracy_level` permits rounding that is not needed here.
//!
//! With constant operands it becomes a `QuantizedMatMul` if `f16` holds scales and biases exactly,
//! else a float `MatMul`.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::gather::Gather;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::matmul_e0m::QuantizedMatMul;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::pointwise::import::{binary, input as arg};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, microsoft, operand,
};
use crate::num;
use crate::quant::{Bits, Format, Grid, GridColumn, Grids, Packed, by_group};
use crate::shape::{Dim, Fact, Known, Shape};
use crate::tensor::product::gemm;
use crate::tensor::{DType, HostTensor};
use std::borrow::Cow;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatMulNBits {
    /// Rows of the weight.
    pub k: usize,
    /// Columns of the weight.
    pub n: usize,
    /// Bits per weight: 2, 4 or 8.
    pub bits: Bits,
    pub block: usize,
}

/// Zero points of a weight.
enum Zeros<'a> {
    /// The default: half the number of levels.
    Middle,
    Packed(&'a [u8]),
    Floats(Cow<'a, [f32]>),
}

/// The constants of a weight.
pub struct Weight<'a> {
    layout: &'a MatMulNBits,
    codes: &'a [u8],
    scales: Cow<'a, [f32]>,
    zeros: Zeros<'a>,
    /// Block of each row, if `g_idx` is given.
    groups: Option<Vec<usize>>,
}

impl MatMulNBits {
    /// Checks the attributes: an error for unsupported bits or blocks, and for sizes that overflow.
    pub fn new(bits: i64, block: usize, k: usize, n: usize) -> OpResult<Self> {
        let known = Bits::new(bits).filter(|b| matches!(b, Bits::Two | Bits::Four | Bits::Eight));
        let bits = known.ok_or_else(|| OpError::expected("attribute `bits`", "2, 4 or 8", bits))?;
        if block < 16 || !block.is_power_of_two() {
            let expected = "a power of two of 16 or more";
            return Err(OpError::expected("attribute `block_size`", expected, block));
        }
        // Bounds all sizes that are computed from these.
        let whole = k.checked_next_multiple_of(block).and_then(|k| k.checked_mul(n));
        let size = whole.and_then(|codes| codes.checked_mul(bits.count() as usize));
        if size.is_none_or(|size| size == 0) {
            return Err(OpError::expected(
                "attributes `K`, `N` and `block_size`",
                "a non-empty matrix that fits into memory",
                format!("{k} x {n} in blocks of {block}"),
            ));
        }
        Ok(Self { k, n, bits, block })
    }

    fn blocks(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Bytes of the quantized weights of a column.
    fn column_bytes(&self) -> usize {
        self.blocks() * self.block_bytes()
    }

    fn block_bytes(&self) -> usize {
        self.block * self.bits.count() as usize / 8
    }

    /// Bytes of the zero points of a column.
    fn zero_bytes(&self) -> usize {
        (self.blocks() * self.bits.count() as usize).div_ceil(8)
    }

    /// Checks the operands after x, if given.
    fn check(&self, codes: &Fact, scales: &Fact, rest: [Option<&Fact>; 3]) -> OpResult<()> {
        let fits = |what: &str, f: &Fact, size: usize, good: bool, expected: &str| {
            let elements = f.shape.as_fixed().map(|s| count(&s)).transpose()?;
            if good && elements == Some(size) {
                return Ok(());
            }
            Err(OpError::expected(
                what,
                format!("{size} elements of {expected}"),
                f,
            ))
        };
        let per_block = self.n * self.blocks();
        let size = self.n * self.column_bytes();
        fits("quantized weights", codes, size, codes.dtype == DType::U8, "u8")?;
        fits("scales", scales, per_block, scales.dtype.is_float(), "floats")?;
        let [zeros, g_idx, bias] = rest;
        if let Some(z) = zeros {
            let floats = z.dtype.is_float();
            let size = if floats {
                per_block
            } else {
                self.n * self.zero_bytes()
            };
            fits(
                "zero points",
                z,
                size,
                floats || z.dtype == DType::U8,
                "u8 or floats",
            )?;
        }
        if let Some(g) = g_idx {
            let padded = g
                .shape
                .as_fixed()
                .is_some_and(|s| s == [self.blocks() * self.block]);
            let size = if padded {
                self.blocks() * self.block
            } else {
                self.k
            };
            fits("g_idx", g, size, g.dtype == DType::I32, "i32")?;
        }
        if let Some(b) = bias {
            fits("bias", b, self.n, b.dtype.is_float(), "floats")?;
        }
        Ok(())
    }

    /// The block of each row.
    fn blocks_of_rows(&self, g_idx: &HostTensor) -> OpResult<Vec<usize>> {
        let blocks = self.blocks();
        let block = |b: i64| {
            let inside = usize::try_from(b).ok().filter(|b| *b < blocks);
            inside.ok_or_else(|| OpError::expected("g_idx", format!("0 to {}", blocks.saturating_sub(1)), b))
        };
        let all = g_idx.to_i64()?.into_iter().take(self.k).map(block);
        let all: Vec<usize> = all.collect::<OpResult<_>>()?;
        if all.len() != self.k {
            return Err(OpError::expected("g_idx", format!("{} rows", self.k), all.len()));
        }
        Ok(all)
    }

    /// The order that sorts the rows by block, if they are not sorted. Fails if the blocks have
    /// other sizes than E0M groups.
    pub fn order(&self, g_idx: &HostTensor) -> OpResult<Option<Vec<usize>>> {
        self.order_of(&self.blocks_of_rows(g_idx)?)
    }

    /// See [`MatMulNBits::order`]; `blocks` holds the block of each row.
    fn order_of(&self, blocks: &[usize]) -> OpResult<Option<Vec<usize>>> {
        by_group(self.k, self.block, |i| blocks[i]).map_err(|(block, found, wanted)| {
            OpError::expected("g_idx", format!("{wanted} rows of block {block}"), found)
        })
    }

    /// The weight with these constants, which must be checked.
    pub fn weight<'a>(
        &'a self,
        codes: &'a HostTensor,
        scales: &'a HostTensor,
        zeros: Option<&'a HostTensor>,
        g_idx: Option<&HostTensor>,
    ) -> OpResult<Weight<'a>> {
        let fact = |t: &HostTensor| Fact::new(t.dtype(), Shape::fixed(t.shape()));
        let rest = [zeros.map(fact), g_idx.map(fact), None];
        self.check(&fact(codes), &fact(scales), rest.each_ref().map(Option::as_ref))?;
        let groups = g_idx.map(|g| self.blocks_of_rows(g)).transpose()?;
        let plain = |g: &Vec<usize>| g.iter().enumerate().all(|(i, b)| *b == i / self.block);
        Ok(Weight {
            layout: self,
            codes: num::part(codes.bytes()?, ..self.n * self.column_bytes())?,
            scales: scales.to_f32()?,
            zeros: match zeros {
                None => Zeros::Middle,
                Some(z) if z.dtype().is_float() => Zeros::Floats(z.to_f32()?),
                Some(z) => Zeros::Packed(num::part(z.bytes()?, ..self.n * self.zero_bytes())?),
            },
            groups: groups.filter(|g| !plain(g)),
        })
    }
}

/// Value `i` of packed values.
fn packed(bits: Bits, bytes: &[u8], i: usize) -> u8 {
    let at = i * bits.count() as usize;
    bytes[at / 8] >> (at % 8) & bits.top()
}

impl Weight<'_> {
    fn code(&self, i: usize, j: usize) -> u8 {
        let l = self.layout;
        packed(l.bits, &self.codes[j * l.column_bytes()..], i)
    }

    /// The grid of a block in column `j`.
    fn grid(&self, block: usize, j: usize) -> Grid {
        let l = self.layout;
        let at = j * l.blocks() + block;
        let zero = match &self.zeros {
            Zeros::Middle => f64::from(l.bits.top() / 2 + 1),
            Zeros::Packed(bytes) => f64::from(packed(l.bits, &bytes[j * l.zero_bytes()..], block)),
            Zeros::Floats(z) => z.get(at).map_or(f64::NAN, |z| f64::from(*z)),
        };
        let scale = self.scales.get(at).map_or(f64::NAN, |s| f64::from(*s));
        Grid::around(scale, zero)
    }

    /// Decodes columns from `first` on to `f32`, one after the other, as many as `out` holds.
    fn columns(&self, first: usize, out: &mut [f32]) {
        let l = self.layout;
        let mut grids = Vec::new();
        for (j, column) in (first..).zip(out.chunks_exact_mut(l.k)) {
            grids.clear();
            grids.extend((0..l.blocks()).map(|b| self.grid(b, j)));
            for (i, w) in column.iter_mut().enumerate() {
                let block = self.groups.as_ref().map_or(i / l.block, |g| g[i]);
                *w = grids[block].weight(self.code(i, j));
            }
        }
    }

    /// The weight as grids, and its row order if rows are reordered. Fails if the E0M layout does
    /// not support it.
    pub fn grids(&self) -> OpResult<(Grids<'_>, Option<Vec<usize>>)> {
        let l = self.layout;
        Packed::check(Format::new(l.bits, l.block), l.k, l.n)
            .map_err(|e| OpError::Unsupported(e.to_string()))?;
        let order = match &self.groups {
            Some(groups) => l.order_of(groups)?,
            None => None,
        };
        let rows = order.clone();
        let column = move |j: usize, out: &mut GridColumn| {
            out.grids.extend((0..l.blocks()).map(|b| self.grid(b, j)));
            match &rows {
                Some(rows) => out.codes.extend(rows.iter().map(|i| self.code(*i, j))),
                None => out.codes.extend((0..l.k).map(|i| self.code(i, j))),
            }
        };
        let grids = Grids {
            format: Format::new(l.bits, l.block),
            k: l.k,
            n: l.n,
            column: Box::new(column),
        };
        Ok((grids, order))
    }
}

/// The operands in file order, without x and bias.
type Constants = [Option<Arc<HostTensor>>; 4];

impl MatMulNBits {
    /// The weights and scales as E0M, with the row order; `None` if E0M is not exact.
    fn exact(&self, [codes, scales, zeros, g_idx]: &Constants) -> OpResult<Option<Exact>> {
        let (Some(codes), Some(scales)) = (codes, scales) else {
            return Ok(None);
        };
        let layout = [self.bits.rows(self.k), self.n];
        let groups = [self.blocks(), self.n, 2];
        if [Some(codes), Some(scales), zeros.as_ref(), g_idx.as_ref()]
            .into_iter()
            .flatten()
            .any(|t| t.is_absent())
        {
            // The size of a model can be computed without its weights, assuming they are typical.
            let fits = Packed::check(Format::new(self.bits, self.block), self.k, self.n).is_ok();
            let absent =
                |dtype, shape: &[usize]| HostTensor::absent(dtype, shape, "quantized weights of MatMulNBits");
            return Ok(match fits && g_idx.is_none() {
                true => Some((absent(DType::U32, &layout)?, absent(DType::F16, &groups)?, None)),
                false => None,
            });
        }
        let weight = self.weight(codes, scales, zeros.as_deref(), g_idx.as_deref())?;
        // Unsupported layouts are decoded to floats.
        let Ok((grids, order)) = weight.grids() else {
            return Ok(None);
        };
        match grids.pack() {
            Ok((packed, loss)) if loss.max == 0.0 => {
                let flat: &[half::f16] = bytemuck::cast_slice(&packed.scales);
                let codes = HostTensor::from_u32(&layout, &packed.codes)?;
                Ok(Some((codes, HostTensor::from_f16(&groups, flat)?, order)))
            }
            _ => Ok(None),
        }
    }
}

/// Quantized weights, scales, row order.
type Exact = (HostTensor, HostTensor, Option<Vec<usize>>);

impl Op for MatMulNBits {
    fn name(&self) -> &str {
        "MatMulNBits"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.float(0)?;
        self.check(cx.fact(1)?, cx.fact(2)?, [cx.opt(3), cx.opt(4), cx.opt(5)])?;
        let Some((last, before)) = x.shape.0.split_last() else {
            return Err(OpError::expected("rank of x", "1 or more", 0));
        };
        cx.same("inner dimensions", last, &Dim::from_usize(self.k))?;
        let mut shape = before.to_vec();
        shape.push(Dim::from_usize(self.n));
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        /// Number of weights decoded at a time.
        const BAND: usize = 1 << 22;
        let opt = |i: usize| inputs.get(i).copied().flatten();
        let x = operand(inputs, 0)?;
        let weight = self.weight(operand(inputs, 1)?, operand(inputs, 2)?, opt(3), opt(4))?;
        let bias = opt(5).map(HostTensor::to_f32).transpose()?;
        let data = x.to_f32()?;
        let rows = data.len() / self.k;
        let mut y = vec![0f32; rows * self.n];
        let at_once = (BAND / self.k).clamp(1, self.n);
        let (mut columns, mut part) = (vec![0f32; at_once * self.k], vec![0f32; rows * at_once]);
        for first in (0..self.n).step_by(at_once) {
            let count = at_once.min(self.n - first);
            weight.columns(first, &mut columns[..count * self.k]);
            gemm(rows, count, self.k, &data, &columns, true, &mut part)?;
            for (y, part) in y.chunks_exact_mut(self.n).zip(part.chunks_exact(count)) {
                y[first..first + count].copy_from_slice(part);
            }
        }
        if let Some(bias) = bias {
            for row in y.chunks_exact_mut(self.n) {
                row.iter_mut().zip(bias.iter()).for_each(|(y, b)| *y += b);
            }
        }
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.n;
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let mut constants: Constants = [const { None }; 4];
        for (i, place) in constants.iter_mut().enumerate() {
            if let Some(v) = cx.opt(i + 1) {
                let Known::Const(tensor) = cx.fact(v)?.known else {
                    return Ok(None);
                };
                *place = Some(tensor);
            }
        }
        let mut x = cx.input(0)?;
        let dtype = cx.fact(x)?.dtype;
        let mut y = if let Some((codes, scales, order)) = self.exact(&constants)? {
            if let Some(order) = order {
                let order: Vec<i64> = order.iter().map(|i| num::signed(*i)).collect();
                let order = cx.ints("order", &order)?;
                x = cx.node("ordered", Gather { axis: -1 }, &[Some(x), Some(order)])?;
            }
            let (codes, scales) = (cx.constant("codes", codes), cx.constant("scales", scales));
            let op = QuantizedMatMul::new(Format::new(self.bits, self.block));
            cx.node("product", op, &[Some(x), Some(codes), Some(scales)])?
        } else {
            let [Some(codes), Some(scales), zeros, g_idx] = &constants else {
                return Ok(None);
            };
            let weight = self.weight(codes, scales, zeros.as_deref(), g_idx.as_deref())?;
            let mut columns = vec![0f32; self.n * self.k];
            weight.columns(0, &mut columns);
            let weight = HostTensor::from_floats(dtype, &[self.n, self.k], &columns)?;
            let weight = cx.constant("weight", weight);
            cx.node("product", MatMul { trans_b: true }, &[Some(x), Some(weight)])?
        };
        if let Some(bias) = cx.opt(5) {
            y = cx.pointwise("biased", binary(Binary::Add, arg(0), arg(1)), &[y, bias])?;
        }
        Ok(Some(vec![y]))
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let size = |name: &str| -> OpResult<usize> {
        let found = a.int(name)?;
        found
            .and_then(|v| usize::try_from(v).ok())
            .filter(|v| *v > 0)
            .ok_or_else(|| {
                let found = found.map_or_else(|| "none".to_owned(), |v| v.to_string());
                OpError::expected(format!("attribute `{name}`"), "a positive integer", found)
            })
    };
    let bits = a.int("bits")?.unwrap_or(4);
    // The permitted rounding of the kernel; ours are more precise.
    a.int("accuracy_level")?;
    let op = MatMulNBits::new(bits, size("block_size")?, size("K")?, size("N")?)?;
    Ok(Box::new(op))
}

pub static DEF: OpDef = OpDef {
    onnx: &[microsoft("MatMulNBits", 6)],
    import,
    kernels: &[],
    cases,
};

/// Optional operands of a case, and whether `f16` represents its scales.
#[derive(Clone, Copy, Default)]
struct Given {
    packed_zeros: bool,
    float_zeros: bool,
    g_idx: bool,
    bias: bool,
    rough: bool,
}

fn case(bits: Bits, block: usize, [rows, k, n]: [usize; 3], given: Given) -> Option<Case> {
    let op = MatMulNBits { k, n, bits, block };
    let blocks = op.blocks();
    let noise = |i: usize| u8::try_from((i * 167 + i / 7 * 59) % 256).unwrap_or(0);
    let bytes = |count: usize| (0..count).map(noise).collect::<Vec<u8>>();
    let size = n * op.column_bytes();
    let codes = HostTensor::from_bytes(DType::U8, &[n, blocks, op.block_bytes()], &bytes(size));
    let step = if given.rough { 0.001 } else { 1.0 / 1024.0 };
    #[expect(clippy::cast_precision_loss, reason = "small test numbers")]
    let scales: Vec<f32> = (0..n * blocks).map(|i| step * (1 + i * 5 % 31) as f32).collect();
    let mut inputs = vec![
        input(&[1, rows, k]),
        constant(codes.ok()?),
        constant(HostTensor::from_f32(&[n * blocks], &scales).ok()?),
    ];
    if given.packed_zeros {
        let zeros = bytes(n * op.zero_bytes());
        inputs.push(constant(
            HostTensor::from_bytes(DType::U8, &[zeros.len()], &zeros).ok()?,
        ));
    } else if given.float_zeros {
        let zeros: Vec<f32> = (0..n * blocks).map(|i| f32::from(noise(i) % 15)).collect();
        inputs.push(constant(HostTensor::from_f32(&[n, blocks], &zeros).ok()?));
    }
    let omitted = |inputs: &mut Vec<_>, upto: usize| {
        // The default, stated explicitly.
        while inputs.len() < upto {
            let middle = vec![f32::from(bits.top() / 2 + 1); n * blocks];
            inputs.extend(HostTensor::from_f32(&[n, blocks], &middle).ok().map(constant));
        }
    };
    if given.g_idx {
        omitted(&mut inputs, 4);
        let of = |i: usize| i32::try_from(i * 7 % k / block).unwrap_or(0);
        let g_idx: Vec<i32> = (0..k).map(of).collect();
        inputs.push(constant(HostTensor::from_i32(&[k], &g_idx).ok()?));
    }
    if given.bias {
        inputs.push(input(&[n]));
    }
    Some(Case::new(op, inputs))
}

fn cases() -> Vec<Case> {
    use Bits::{Eight, Four, Two};
    let plain = Given::default();
    let packed_zeros = Given {
        packed_zeros: true,
        ..plain
    };
    let float_zeros = Given {
        float_zeros: true,
        ..plain
    };
    let g_idx = Given {
        g_idx: true,
        ..packed_zeros
    };
    [
        (Four, 32, [1, 64, 34], plain),
        (Four, 32, [3, 64, 34], packed_zeros),
        (Four, 16, [2, 40, 10], packed_zeros),
        (Four, 128, [1, 200, 66], float_zeros),
        (Eight, 32, [1, 96, 34], packed_zeros),
        (Two, 64, [5, 128, 10], plain),
        (Four, 32, [2, 96, 34], g_idx),
        (Four, 32, [2, 96, 34], Given { bias: true, ..g_idx }),
        // Not representable as E0M: an odd number of columns, and scales that `f16` cannot hold.
        (Four, 32, [2, 64, 9], packed_zeros),
        (
            Four,
            32,
            [2, 64, 10],
            Given {
                rough: true,
                ..packed_zeros
            },
        ),
    ]
    .into_iter()
    .filter_map(|(bits, block, sizes, given)| case(bits, block, sizes, given))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_by_hand() {
        // Two columns of 20 rows in blocks of 16: the second block is short, and its padding is not
        // read.
        let op = MatMulNBits {
            k: 20,
            n: 2,
            bits: Bits::Four,
            block: 16,
        };
        let mut bytes = vec![0xffu8; 32];
        // Column 1, rows 17 and 16.
        bytes[24] = 0x3a;
        let codes = HostTensor::from_bytes(DType::U8, &[2, 2, 8], &bytes).unwrap();
        let scales = HostTensor::from_f32(&[4], &[1.0, 2.0, 4.0, 0.5]).unwrap();
        let zeros = HostTensor::from_bytes(DType::U8, &[2, 1], &[0x51, 0x72]).unwrap();
        let weight = op.weight(&codes, &scales, Some(&zeros), None).unwrap();
        let mut columns = vec![0.0; 40];
        weight.columns(0, &mut columns);
        assert_eq!(columns[..16], [14.0; 16]);
        assert_eq!(columns[16..20], [20.0; 4]);
        assert_eq!(columns[20..36], [52.0; 16]);
        assert_eq!(columns[36..], [0.5 * (10.0 - 7.0), 0.5 * (3.0 - 7.0), 4.0, 4.0]);
        let middle = op.weight(&codes, &scales, None, None).unwrap();
        assert_eq!(middle.grid(0, 1).weight(9), 4.0);
    }

    #[test]
    fn sizes_beyond_count_are_refused() {
        let new = |bits, block, k, n| MatMulNBits::new(bits, block, k, n).map(|op| op.column_bytes());
        // Padded to whole blocks, whatever they are longer than.
        assert_eq!(new(4, 128, 16, 1).unwrap(), 64);
        assert_eq!(new(2, 16, 17, 3).unwrap(), 8);
        let top = usize::BITS as usize;
        for (bits, block, k, n) in [
            (8, 1 << (top - 3), 1, 1),
            (8, 1 << (top - 1), 1, 1),
            (4, 16, usize::MAX, 1),
            (4, 16, 1 << (top / 2), 1 << (top / 2)),
            (2, 16, 16, 1 << (top - 5)),
            (4, 16, 0, 2),
            (3, 16, 16, 2),
            (4, 24, 24, 2),
            (4, 8, 16, 2),
        ] {
            assert!(new(bits, block, k, n).is_err(), "{bits} bits, {block}, {k} x {n}");
        }
        // 2^64 + 16 elements are not 16.
        let op = MatMulNBits::new(4, 16, 16, 2).unwrap();
        let fact = |dtype, shape: &[usize]| Fact::new(dtype, Shape::fixed(shape));
        let scales = fact(DType::F32, &[2]);
        assert!(op.check(&fact(DType::U8, &[2, 1, 8]), &scales, [None; 3]).is_ok());
        let codes = fact(DType::U8, &[(1 << (top - 4)) + 1, 16]);
        assert!(op.check(&codes, &scales, [None; 3]).is_err());
    }

    #[test]
    fn exact_weights_are_packed_and_others_are_not() {
        let pack = |case: Option<Case>| {
            let case = case.unwrap();
            let op: &MatMulNBits = case.op.downcast().unwrap();
            let mut constants: Constants = [const { None }; 4];
            for (i, place) in constants.iter_mut().enumerate() {
                *place = case.inputs.get(i + 1).map(|t| Arc::new(t.make(0).unwrap()));
            }
            op.exact(&constants).unwrap().map(|(.., order)| order.is_some())
        };
        let given = Given {
            packed_zeros: true,
            ..Given::default()
        };
        assert_eq!(pack(case(Bits::Four, 32, [1, 96, 34], given)), Some(false));
        let order = Given { g_idx: true, ..given };
        assert_eq!(pack(case(Bits::Four, 32, [1, 96, 34], order)), Some(true));
        assert_eq!(pack(case(Bits::Four, 32, [1, 96, 33], given)), None);
        let rough = Given { rough: true, ..given };
        assert_eq!(pack(case(Bits::Four, 32, [1, 96, 34], rough)), None);
    }
}
