//! Matmul of operands that are computed at run time: `y[z, m, n] = a[z, m, k] * b[z, k, n]` for
//! batches `z`.
//!
//! Blocks of the right operand are packed into panels in scratch; with few rows, they are read in
//! place.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, dtype, part, product, reach};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm::{self, COLUMNS, Element, PANEL, Panels, Product, Results, Right, Rows};
use crate::tensor::DType;
use half::f16;
use std::ops::Range;

type Args = super::Args<Bound>;

/// Rows of a block: so many that packing b again for each block costs little.
const ROWS: usize = 384;
/// With at most this many rows, b is read in place.
const FEW: usize = 3;

pub struct MatMul {
    isa: Isa,
    b: DType,
    trans_b: bool,
}

impl MatMul {
    /// Elements of the right matrix of a batch, up to the last one that is read.
    fn right(&self, args: &Args) -> usize {
        let Args { n, k, b_stride, .. } = *args;
        match self.trans_b {
            true => reach(&[[n, b_stride]], k),
            false => reach(&[[k, b_stride]], n),
        }
    }
}

impl NativeKernel for MatMul {
    type Signature = super::Args;
    const HALVES: &'static [&'static str] = &["b"];

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let b = dtype(spec, 1)?;
        let trans_b = spec.defines.get(super::TRANS_B).is_some_and(|v| *v != 0);
        (dtype(spec, 0)? == DType::F32 && b.is_float()).then_some(Self { isa, b, trans_b })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args { m, n, k, batches, .. } = *args;
        if m == 0 || n == 0 || batches == 0 {
            return true;
        }
        let (n1, n2) = (args.n1.max(1), args.n2.max(1));
        let sizes = [
            n1.min(batches),
            n2.min(batches.div_ceil(n1)),
            batches.div_ceil(n1).div_ceil(n2),
        ];
        let of_batches = |steps: [usize; 3], len: usize| {
            let axes: [_; 3] = std::array::from_fn(|i| [sizes[i], steps[i]]);
            reach(&axes, len)
        };
        let rows = of_batches([args.a0, args.a1, args.a2], product(&[m, k]));
        let columns = of_batches([args.b0, args.b1, args.b2], self.right(args));
        let width = args.column.saturating_add(n);
        let results = reach(&[[product(&[batches, m]), args.y_stride]], width);
        args.a.holds::<f32>(rows)
            && columns <= args.b.floats(self.b == DType::F16)
            && args.y.holds::<f32>(results)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let work = [args.batches, args.m, args.n]
            .iter()
            .fold(args.k, |n, v| n.saturating_mul(*v));
        // With few rows, memory limits the speed.
        let work = if args.m <= FEW {
            work.saturating_mul(4)
        } else {
            work
        };
        let pieces = gemm::pieces(work, threads);
        pieces.min(units(args, pieces).0).max(1)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports the instruction set.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

/// Number of parts of all batches, and of the rows and the columns of a batch.
fn units(args: &Args, pieces: usize) -> (usize, (usize, usize)) {
    let grid = gemm::grid(args.m, args.n, ROWS, (pieces / args.batches.max(1)).max(1));
    (args.batches * grid.0 * grid.1, grid)
}

/// The element type of b.
trait Item: Element {
    fn float(self) -> f32;
}

impl Item for f32 {
    #[inline(always)]
    fn float(self) -> f32 {
        self
    }
}

impl Item for f16 {
    #[inline(always)]
    fn float(self) -> f32 {
        self.to_f32()
    }
}

impl Job for Piece<'_, MatMul> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: b has this type.
        unsafe {
            match self.kernel.b {
                DType::F16 => self.blocks::<S, f16>(),
                _ => self.blocks::<S, f32>(),
            }
        }
    }
}

impl Piece<'_, MatMul> {
    /// # Safety
    /// As for [`Job::run`]; b has elements of type `E`.
    #[inline(always)]
    unsafe fn blocks<S: Simd, E: Item>(self) {
        let (args, store, trans_b) = (self.args, self.store, self.kernel.trans_b);
        let (units, (down, across)) = units(args, self.pieces);
        let own = self.part(units, 1);
        let step = gemm::k_step(args.k, 1);
        // A matmul of no rows has no units with results; one of no terms is zero.
        let most = args.m.min(ROWS);
        let sums = gemm::sums(most, COLUMNS);
        let (sums, space) = self.scratch.floats(sums + step * COLUMNS).split_at_mut(sums);
        for unit in own {
            let (z, rest) = (unit / (down * across), unit % (down * across));
            let walk = [
                z % args.n1.max(1),
                z / args.n1.max(1) % args.n2.max(1),
                z / args.n1.max(1) / args.n2.max(1),
            ];
            let start = |strides: [usize; 3]| walk.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>();
            let (a, b) = (
                start([args.a0, args.a1, args.a2]),
                start([args.b0, args.b1, args.b2]),
            );
            let rows = part(args.m, 1, rest % down, down);
            let columns = part(args.n, PANEL, rest / down, across);
            let blocks = rows.len().div_ceil(ROWS);
            for block in 0..blocks {
                let own = part(rows.len(), 1, block, blocks);
                let row = rows.start + own.start;
                // SAFETY: inside the operands, which fit.
                let (at, b) = unsafe {
                    (
                        args.a.as_ptr::<f32>().add(a + row * args.k),
                        args.b.as_ptr::<E>().add(b),
                    )
                };
                let y = Results {
                    store,
                    first: (z * args.m + row) * args.y_stride + args.column,
                    stride: args.y_stride,
                };
                let left = Rows { at, stride: args.k };
                let product = Product {
                    left,
                    rows: own.len(),
                    k: args.k,
                    step,
                    bias: std::ptr::null(),
                    y,
                };
                let block = Block { args, trans_b, b };
                unsafe { block.columns::<S>(&product, columns.clone(), sums, space) };
            }
        }
    }
}

/// Rows of the matmul of one batch.
struct Block<'a, E> {
    args: &'a Args,
    trans_b: bool,
    /// The right matrix of the batch.
    b: *const E,
}

impl<E: Item> Block<'_, E> {
    #[inline(always)]
    unsafe fn columns<S: Simd>(
        &self,
        product: &Product<'_, Rows>,
        columns: Range<usize>,
        sums: &mut [f32],
        space: &mut [f32],
    ) {
        let few = product.rows <= FEW;
        if few && self.trans_b {
            for column in columns.clone().step_by(COLUMNS) {
                let own = column..(column + COLUMNS).min(columns.end);
                unsafe { self.dots::<S>(product, own, sums) };
            }
            return;
        }
        let mut column = columns.start;
        while column < columns.end {
            let mut count = COLUMNS.min(columns.end - column);
            // SAFETY: the columns are inside b.
            unsafe {
                if few && !self.trans_b && count >= PANEL {
                    count -= count % PANEL;
                    let mut right = InPlace {
                        at: self.b.wrapping_add(column),
                        row: self.args.b_stride,
                    };
                    product.columns::<S, _>(column, count, &mut right, sums);
                } else {
                    let mut right = Pack {
                        block: self,
                        column,
                        count,
                        space: &mut *space,
                    };
                    product.columns::<S, _>(column, count, &mut right, sums);
                }
            }
            column += count;
        }
    }

    /// Multiplies few rows and columns whose terms are adjacent.
    #[inline(always)]
    unsafe fn dots<S: Simd>(&self, product: &Product<'_, Rows>, columns: Range<usize>, sums: &mut [f32]) {
        const TOGETHER: usize = 4;
        let k = product.k;
        for row in 0..product.rows {
            let mut column = columns.start;
            while column < columns.end {
                let count = TOGETHER.min(columns.end - column);
                // SAFETY: the row is inside a, and the columns are inside b.
                unsafe {
                    let x = product.left.at.add(row * product.left.stride);
                    let mut at = [self.b; TOGETHER];
                    for (i, at) in at.iter_mut().enumerate() {
                        *at = self.b.add((column + i.min(count - 1)) * self.args.b_stride);
                    }
                    let mut totals = [S::splat(0.0); TOGETHER];
                    let mut i = 0;
                    while i + S::LANES <= k {
                        let x = S::load(x.add(i));
                        for (sum, at) in totals.iter_mut().zip(&at) {
                            *sum = S::fma(x, E::load::<S>(at.add(i)), *sum);
                        }
                        i += S::LANES;
                    }
                    for (j, sum) in totals.iter().enumerate().take(count) {
                        let mut total = S::sum(*sum);
                        for i in i..k {
                            total += *x.add(i) * (*at[j].add(i)).float();
                        }
                        sums[column - columns.start + j] = total;
                    }
                }
                column += count;
            }
            let first = product.y.first + row * product.y.stride + columns.start;
            // SAFETY: results of this piece.
            unsafe { product.y.store.put(first, &sums[..columns.len()], None) };
        }
    }
}

/// Whole panels of a row-major matrix.
struct InPlace<E> {
    at: *const E,
    row: usize,
}

impl<E: Element> Right for InPlace<E> {
    type E = E;
    #[inline(always)]
    unsafe fn panels<S: Simd>(&mut self, k: Range<usize>, _: usize) -> Panels<E> {
        // SAFETY: inside the operand.
        let at = unsafe { self.at.add(k.start * self.row) };
        Panels {
            at,
            row: self.row,
            panel: PANEL,
        }
    }
}

/// Packs columns, for each k-block again.
struct Pack<'a, E> {
    block: &'a Block<'a, E>,
    column: usize,
    count: usize,
    space: &'a mut [f32],
}

impl<E: Item> Right for Pack<'_, E> {
    type E = f32;
    #[inline(always)]
    unsafe fn panels<S: Simd>(&mut self, k: Range<usize>, panels: usize) -> Panels<f32> {
        let size = k.len() * PANEL;
        let to = self.space.as_mut_ptr();
        let whole = self.count / PANEL;
        debug_assert!(panels * size <= self.space.len(), "space for {panels} panels");
        // SAFETY: the panels are inside the space, and the columns inside b.
        unsafe {
            if self.block.trans_b {
                for panel in 0..panels {
                    self.transposed::<S>(k.clone(), panel * PANEL, to.add(panel * size));
                }
            } else {
                for (i, k) in k.clone().enumerate() {
                    let from = self.block.b.add(k * self.block.args.b_stride + self.column);
                    let to = to.add(i * PANEL);
                    for panel in 0..whole {
                        let mut lane = 0;
                        while lane < PANEL {
                            S::store(
                                to.add(panel * size + lane),
                                E::load::<S>(from.add(panel * PANEL + lane)),
                            );
                            lane += S::LANES;
                        }
                    }
                    for j in 0..(panels - whole) * PANEL {
                        let column = whole * PANEL + j;
                        let value = if column < self.count {
                            (*from.add(column)).float()
                        } else {
                            0.0
                        };
                        *to.add(whole * size + j) = value;
                    }
                }
            }
        }
        Panels {
            at: to,
            row: PANEL,
            panel: size,
        }
    }
}

impl<E: Item> Pack<'_, E> {
    /// Packs the panel of columns from `first` on, whose terms are adjacent.
    #[inline(always)]
    unsafe fn transposed<S: Simd>(&self, k: Range<usize>, first: usize, to: *mut f32) {
        const SIDE: usize = 8;
        let stride = self.block.args.b_stride;
        let last = self.count.saturating_sub(1);
        // SAFETY: inside b; for columns beyond, the last one is read.
        unsafe {
            for half in (0..PANEL).step_by(SIDE) {
                let mut at = [self.block.b; SIDE];
                for (j, at) in at.iter_mut().enumerate() {
                    let column = self.column + (first + half + j).min(last);
                    *at = self.block.b.add(column * stride + k.start);
                }
                let mut i = 0;
                while i + SIDE <= k.len() {
                    let mut rows = [[0f32; SIDE]; SIDE];
                    for (row, at) in rows.iter_mut().zip(&at) {
                        let mut lane = 0;
                        while lane < SIDE && S::LANES <= SIDE {
                            S::store(row.as_mut_ptr().add(lane), E::load::<S>(at.add(i + lane)));
                            lane += S::LANES;
                        }
                        while lane < SIDE {
                            row[lane] = (*at.add(i + lane)).float();
                            lane += 1;
                        }
                    }
                    let columns: [[f32; SIDE]; SIDE] =
                        std::array::from_fn(|t| std::array::from_fn(|j| rows[j][t]));
                    for (t, column) in columns.iter().enumerate() {
                        to.add((i + t) * PANEL + half)
                            .cast::<[f32; SIDE]>()
                            .write_unaligned(*column);
                    }
                    i += SIDE;
                }
                while i < k.len() {
                    for (j, at) in at.iter().enumerate() {
                        *to.add(i * PANEL + half + j) = (*at.add(i)).float();
                    }
                    i += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::testing::{self, Case};

    /// Two axes of batches; b has only the inner one. There are gaps between rows.
    fn check([outer, inner]: [usize; 2], [m, n, k]: [usize; 3], b_type: DType, trans_b: bool) {
        let batches = outer * inner;
        let stride = if trans_b { k } else { n } + 3;
        let matrix = stride * if trans_b { n } else { k };
        let a = testing::floats(1, batches * m * k);
        let mut b = testing::floats(2, inner * matrix);
        if b_type == DType::F16 {
            b.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
        }
        let mut want = vec![0f64; batches * m * n];
        for (i, want) in want.iter_mut().enumerate() {
            let (z, row, column) = (i / (m * n), i / n % m, i % n);
            for t in 0..k {
                let at = if trans_b {
                    column * stride + t
                } else {
                    t * stride + column
                };
                *want += f64::from(a[(z * m + row) * k + t]) * f64::from(b[z % inner * matrix + at]);
            }
        }
        let halves: Vec<f16> = b.iter().map(|v| f16::from_f32(*v)).collect();
        let b = if b_type == DType::F16 {
            testing::memory(&halves)
        } else {
            testing::memory(&b)
        };
        let words = [
            m,
            n,
            k,
            stride,
            n,
            0,
            inner,
            outer,
            m * k,
            inner * m * k,
            0,
            matrix,
            0,
            0,
            batches,
        ];
        let case = Case::<MatMul> {
            words: words.iter().map(|v| *v as u32).collect(),
            operands: vec![Some((DType::F32, testing::memory(&a))), Some((b_type, b))],
            defines: if trans_b { vec![("TRANS_B", 1)] } else { Vec::new() },
            kernel: std::marker::PhantomData,
        };
        case.check(&want, 1e-5, &format!("{m}x{n}x{k} {b_type:?} {trans_b}"));
    }

    #[test]
    fn products_of_batches_match() {
        for b_type in [DType::F32, DType::F16] {
            for trans_b in [false, true] {
                for m in [1, 2, 3, 4, 7, 12, 25] {
                    for (n, k) in [(1, 1), (16, 5), (17, 33), (70, 64), (150, 7)] {
                        check([2, 3], [m, n, k], b_type, trans_b);
                    }
                }
                check([1, 1], [800, 40, 20], b_type, trans_b);
                check([1, 2], [50, 144, 700], b_type, trans_b);
                check([1, 1], [1, 300, 700], b_type, trans_b);
                check([1, 2], [3, 5, 0], b_type, trans_b);
                check([1, 2], [9, 5, 0], b_type, trans_b);
                check([0, 2], [3, 5, 2], b_type, trans_b);
                check([1, 2], [0, 5, 3], b_type, trans_b);
                check([1, 2], [5, 0, 3], b_type, trans_b);
            }
        }
    }
}
