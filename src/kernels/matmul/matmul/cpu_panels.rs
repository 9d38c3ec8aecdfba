//! Matmul with a constant right operand: `y[m, n] = x[m, k] * w[k, n]`.
//!
//! `w` is packed when the model is loaded, as `Pack::Columns` with panels of 16 columns.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm::{
    self, COLUMNS, Element, Halves, PANEL, Packed, Product, Results, Right, Rows,
};
use crate::tensor::DType;
use half::f16;
use std::marker::PhantomData;

type Args = super::PanelArgs<Bound>;

/// Rows of a block, of which a k-block stays in the L2 cache.
const ROWS: usize = 96;
/// With at most this many rows, weights are read once, in order.
const FEW: usize = 3;
/// Columns of a block with few rows.
const FEW_COLUMNS: usize = 8 * COLUMNS;

pub struct MatMulPanels {
    isa: Isa,
    weights: DType,
}

impl NativeKernel for MatMulPanels {
    type Signature = super::PanelArgs;
    const HALVES: &'static [&'static str] = &["w"];

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let weights = dtype(spec, 1)?;
        (dtype(spec, 0)? == DType::F32 && weights.is_float()).then_some(Self { isa, weights })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args { m, n, k, .. } = *args;
        let weights = product(&[n.div_ceil(PANEL), PANEL, k]);
        m == 0
            || args.x.holds::<f32>(product(&[m, k]))
                && weights <= args.w.floats(self.weights == DType::F16)
                && args.y.holds::<f32>(product(&[m, n]))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let threads = threads.max(1);
        let work = args.m.saturating_mul(args.n).saturating_mul(args.k);
        let count = if args.m <= FEW {
            // Limited by memory: at least about 200 KB per piece.
            (args.n.saturating_mul(args.k) / 50_000).clamp(1, threads)
        } else {
            gemm::pieces(work, threads)
        };
        let (down, across) = gemm::grid(args.m, args.n, ROWS, count);
        down * across
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let piece = Piece {
            args,
            store,
            piece,
            pieces,
            scratch,
        };
        // SAFETY: the processor supports the instruction set.
        unsafe {
            match self.weights {
                DType::F16 if args.m > gemm::TILE => {
                    simd::run(self.isa, Blocks(piece, PhantomData::<Converted>));
                }
                DType::F16 => simd::run(self.isa, Blocks(piece, PhantomData::<Stored<f16>>)),
                _ => simd::run(self.isa, Blocks(piece, PhantomData::<Stored<f32>>)),
            }
        }
    }
}

struct Piece<'a> {
    args: &'a Args,
    store: &'a Store<'a>,
    piece: usize,
    pieces: usize,
    scratch: &'a mut Scratch,
}

/// How tiles read weights.
trait Weights {
    type E;
    type Right<'a>: Right;
    /// Scratch elements for sums of `k` terms.
    fn space(k: usize) -> usize;
    fn right(at: *const Self::E, depth: usize, space: &mut [f32]) -> Self::Right<'_>;
}

/// Weights as they are stored.
struct Stored<E>(PhantomData<E>);

impl<E: Element> Weights for Stored<E> {
    type E = E;
    type Right<'a> = Packed<E>;
    fn space(_: usize) -> usize {
        0
    }
    #[inline(always)]
    fn right(at: *const E, depth: usize, _: &mut [f32]) -> Packed<E> {
        Packed { at, depth }
    }
}

/// Weights in halves, converted once for many rows.
struct Converted;

impl Weights for Converted {
    type E = f16;
    type Right<'a> = Halves<'a>;
    fn space(k: usize) -> usize {
        COLUMNS * gemm::k_step(k, 1)
    }
    #[inline(always)]
    fn right(at: *const f16, depth: usize, space: &mut [f32]) -> Halves<'_> {
        Halves {
            packed: Packed { at, depth },
            space,
        }
    }
}

struct Blocks<'a, W>(Piece<'a>, PhantomData<W>);

impl<W: Weights> Job for Blocks<'_, W> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Piece {
            args,
            store,
            piece,
            pieces,
            scratch,
        } = self.0;
        let Args { m, n, k, x, w, .. } = *args;
        let (down, across) = gemm::grid(m, n, ROWS, pieces);
        if piece >= down * across {
            return;
        }
        let rows = part(m, 1, piece % down, down);
        let columns = part(n, PANEL, piece / down, across);
        let most = if m <= FEW { FEW_COLUMNS } else { COLUMNS };
        // Few rows read weights in order.
        let step = if m <= FEW { k } else { gemm::k_step(k, 1) };
        let space = W::space(k);
        let blocks = rows.len().div_ceil(ROWS);
        let (sums, space) = scratch
            .floats(gemm::sums(rows.len().min(ROWS), most) + space)
            .split_at_mut(gemm::sums(rows.len().min(ROWS), most));
        for block in 0..blocks {
            let own = part(rows.len(), 1, block, blocks);
            let row = rows.start + own.start;
            // SAFETY: a row of x.
            let at = unsafe { x.as_ptr::<f32>().add(row * k) };
            let left = Rows { at, stride: k };
            let y = Results {
                store,
                first: row * n,
                stride: n,
            };
            let product = Product {
                left,
                rows: own.len(),
                k,
                step,
                bias: std::ptr::null(),
                y,
            };
            let mut column = columns.start;
            while column < columns.end {
                let count = most.min(columns.end - column);
                // SAFETY: a panel of w.
                unsafe {
                    let mut right = W::right(w.as_ptr::<W::E>().add(column * k), k, space);
                    product.columns::<S, _>(column, count, &mut right, sums);
                }
                column += count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::testing::{self, Case};

    fn packed(w: &[f32], n: usize, k: usize) -> Vec<f32> {
        let mut out = vec![0.0; n.next_multiple_of(PANEL) * k];
        for i in 0..k {
            for j in 0..n {
                out[(j / PANEL * k + i) * PANEL + j % PANEL] = w[i * n + j];
            }
        }
        out
    }

    fn check(m: usize, n: usize, k: usize, weights: DType) {
        let (x, mut w) = (testing::floats(1, m * k), testing::floats(2, k * n));
        if weights == DType::F16 {
            w.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
        }
        let mut want = vec![0f64; m * n];
        for r in 0..m {
            for i in 0..k {
                for c in 0..n {
                    want[r * n + c] += f64::from(x[r * k + i]) * f64::from(w[i * n + c]);
                }
            }
        }
        let w = packed(&w, n, k);
        let halves: Vec<f16> = w.iter().map(|v| f16::from_f32(*v)).collect();
        let w = if weights == DType::F16 {
            testing::memory(&halves)
        } else {
            testing::memory(&w)
        };
        let case = Case::<MatMulPanels> {
            words: vec![m as u32, n as u32, k as u32],
            operands: vec![Some((DType::F32, testing::memory(&x))), Some((weights, w))],
            defines: Vec::new(),
            kernel: PhantomData,
        };
        case.check(&want, 1e-5, &format!("{m}x{n}x{k} {weights:?}"));
    }

    #[test]
    fn products_match_for_odd_sizes() {
        for dtype in [DType::F32, DType::F16] {
            for m in [1, 2, 3, 4, 5, 6, 7, 11, 13, 25] {
                for (n, k) in [(1, 1), (16, 5), (17, 33), (70, 64), (150, 7), (1100, 9)] {
                    check(m, n, k, dtype);
                }
            }
            check(400, 130, 20, dtype);
            check(50, 144, 700, dtype);
            check(3, 5, 0, dtype);
            check(0, 5, 3, dtype);
            check(5, 0, 3, dtype);
        }
    }
}
