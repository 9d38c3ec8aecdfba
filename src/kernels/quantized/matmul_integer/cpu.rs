//! Matmul of 8-bit integers.

use crate::backend::cpu::args::{Bound, Memory, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::pieces;
use crate::tensor::DType;
use bytemuck::Pod;

type Args = super::Args<Bound>;

/// `y[z, i, j] = sum_k (a[z, i, k] - za[i]) * (b[z, k, j] - zb[j])` in 32-bit integers, which wrap.
/// A constant `b` is given as bytes in `w` instead.
pub struct MatMulInteger {
    isa: Isa,
    signed: bool,
}

/// Columns of a panel of `b`.
const PANEL: usize = 16;
/// Rows of a tile.
const TILE: usize = 4;
/// Rows that share a panel after it is unpacked.
const CHUNK: usize = 64;

/// Multiplies `rows` rows of `a`, which start `k` elements apart, and a panel of `b`. Calls
/// `store(row, sums)` for each row.
struct Tiles<'a, F> {
    a: &'a [i32],
    panel: &'a [[i32; PANEL]],
    rows: usize,
    store: F,
}

#[inline(always)]
fn tile<const R: usize>(a: &[i32], panel: &[[i32; PANEL]]) -> [[i32; PANEL]; R] {
    let k = panel.len();
    let mut rows: [&[i32]; R] = [&[]; R];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = &a[i * k..(i + 1) * k];
    }
    let mut sums = [[0i32; PANEL]; R];
    for (i, b) in panel.iter().enumerate() {
        for (row, sums) in rows.iter().zip(&mut sums) {
            let v = row[i];
            for (s, b) in sums.iter_mut().zip(b) {
                *s = s.wrapping_add(v.wrapping_mul(*b));
            }
        }
    }
    sums
}

impl<F: FnMut(usize, &[i32; PANEL])> Job for Tiles<'_, F> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let k = self.panel.len();
        let whole = self.rows / TILE * TILE;
        for i in (0..whole).step_by(TILE) {
            let sums = tile::<TILE>(&self.a[i * k..], self.panel);
            for (r, sums) in sums.iter().enumerate() {
                (self.store)(i + r, sums);
            }
        }
        for i in whole..self.rows {
            let [sums] = tile::<1>(&self.a[i * k..], self.panel);
            (self.store)(i, &sums);
        }
    }
}

/// Element `i` of an optional operand; 0 without it.
/// # Safety
/// No one writes it.
unsafe fn zero(list: Option<Memory>, i: usize) -> i32 {
    list.map_or(0, |list| unsafe { list.slice::<i32>()[i] })
}

/// An element of `b`.
trait Int: Pod {
    fn int(self) -> i32;
}

impl Int for i32 {
    #[inline(always)]
    fn int(self) -> i32 {
        self
    }
}

impl Int for i8 {
    #[inline(always)]
    fn int(self) -> i32 {
        self.into()
    }
}

impl Int for u8 {
    #[inline(always)]
    fn int(self) -> i32 {
        self.into()
    }
}

/// Columns of a row that are computed together, without unpacking `b`.
const WIDE: usize = 64;

/// Multiplies a row of `a` and columns of `b`.
struct Row<'a, T> {
    a: &'a [i32],
    /// The zero point of `a`.
    low: i32,
    /// `b` from the first element of the first column on; its rows are `n` apart.
    b: &'a [T],
    n: usize,
    zeros: &'a [i32],
    y: &'a mut [i32],
}

impl<T: Int> Row<'_, T> {
    /// Computes `C` columns from `j` on.
    #[inline(always)]
    fn columns<const C: usize>(&mut self, j: usize) {
        let mut sums = [0i32; C];
        let mut total = 0i32;
        for (a, b) in self.a.iter().zip(self.b.chunks(self.n)) {
            let v = a.wrapping_sub(self.low);
            total = total.wrapping_add(v);
            for (s, b) in sums.iter_mut().zip(&b[j..][..C]) {
                *s = s.wrapping_add(v.wrapping_mul(b.int()));
            }
        }
        let to = self.y[j..j + C].iter_mut().zip(&self.zeros[j..j + C]);
        for ((y, zero), sum) in to.zip(&sums) {
            *y = sum.wrapping_sub(total.wrapping_mul(*zero));
        }
    }
}

impl<T: Int> Job for Row<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let n = self.y.len();
        let mut j = 0;
        while j + WIDE <= n {
            self.columns::<WIDE>(j);
            j += WIDE;
        }
        while j + PANEL <= n {
            self.columns::<PANEL>(j);
            j += PANEL;
        }
        while j < n {
            self.columns::<1>(j);
            j += 1;
        }
    }
}

/// Offsets of batch `z` in `a` and `b`; a constant `b` has one batch.
fn batch(args: &Args, z: usize) -> (usize, usize) {
    let (n1, n2) = (args.n1.max(1), args.n2.max(1));
    let parts = [z % n1, z / n1 % n2, z / n1 / n2];
    let dot = |steps: [usize; 3]| parts.iter().zip(steps).map(|(i, s)| i * s).sum();
    let a = dot([args.a0, args.a1, args.a2]);
    (
        a,
        if args.w.is_some() {
            0
        } else {
            dot([args.b0, args.b1, args.b2])
        },
    )
}

impl MatMulInteger {
    /// Computes units `range` if rows are few. A unit is [`WIDE`] columns of a row.
    /// # Safety
    /// As for [`NativeKernel::run`]; `b` is the operand of this type.
    unsafe fn few<T: Int>(&self, args: &Args, y: Memory, range: std::ops::Range<usize>, b: Memory) {
        let Args { m, n, k, .. } = *args;
        let parts = n.div_ceil(WIDE);
        for unit in range {
            let (z, i, j) = (unit / parts / m, unit / parts % m, unit % parts * WIDE);
            let cols = WIDE.min(n - j);
            let (a_start, b_start) = batch(args, z);
            let mut zeros = [0; WIDE];
            let first = (z * m + i) * n + j;
            // SAFETY: nobody writes the operands; the piece owns these results; the processor
            // supports `isa`.
            unsafe {
                for (c, value) in zeros[..cols].iter_mut().enumerate() {
                    *value = zero(args.zb, (j + c) * args.zb_step);
                }
                let row = Row {
                    a: &args.a.slice::<i32>()[a_start + i * k..a_start + (i + 1) * k],
                    low: zero(args.za, i * args.za_step),
                    b: &b.slice::<T>()[(b_start + j).min(b.elements::<T>())..],
                    n,
                    zeros: &zeros,
                    y: y.slice_mut(first..first + cols),
                };
                simd::run(self.isa, row);
            }
        }
    }

    /// Computes units `range` if rows are many. A unit is a panel of columns of [`CHUNK`] rows.
    /// # Safety
    /// As for [`NativeKernel::run`]; `b` is the operand of this type.
    unsafe fn many<T: Int>(
        &self,
        args: &Args,
        y: Memory,
        range: std::ops::Range<usize>,
        (b, scratch): (Memory, &mut Scratch),
    ) {
        let Args { m, n, k, .. } = *args;
        // SAFETY: nobody writes the operands.
        let (a, b) = unsafe { (args.a.slice::<i32>(), b.slice::<T>()) };
        let panel = scratch.of::<[i32; PANEL]>(k);
        let mut totals = [0i32; PANEL];
        let (chunks, panels) = (m.div_ceil(CHUNK), n.div_ceil(PANEL));
        let mut ready = None;
        for unit in range {
            let (z, j, from) = (
                unit / chunks / panels,
                unit / chunks % panels * PANEL,
                unit % chunks * CHUNK,
            );
            let (rows, cols) = (CHUNK.min(m - from), PANEL.min(n - j));
            let (a_start, b_start) = batch(args, z);
            if ready != Some((z, j)) {
                ready = Some((z, j));
                totals.fill(0);
                let mut zeros = [0; PANEL];
                for (c, value) in zeros[..cols].iter_mut().enumerate() {
                    // SAFETY: nobody writes it.
                    *value = unsafe { zero(args.zb, (j + c) * args.zb_step) };
                }
                for (i, row) in panel.iter_mut().enumerate() {
                    row.fill(0);
                    let at = b_start + i * n + j;
                    for (c, b) in b[at..at + cols].iter().enumerate() {
                        row[c] = b.int().wrapping_sub(zeros[c]);
                        totals[c] = totals[c].wrapping_add(row[c]);
                    }
                }
            }
            let store = |i: usize, sums: &[i32; PANEL]| {
                // SAFETY: nobody writes it.
                let low = unsafe { zero(args.za, (from + i) * args.za_step) };
                let first = (z * m + from + i) * n + j;
                // SAFETY: the piece owns these results.
                let y = unsafe { y.slice_mut::<i32>(first..first + cols) };
                for ((y, sum), total) in y.iter_mut().zip(sums).zip(&totals) {
                    *y = sum.wrapping_sub(low.wrapping_mul(*total));
                }
            };
            let a = &a[a_start + from * k..a_start + (from + rows) * k];
            // SAFETY: the processor supports `isa`.
            unsafe {
                simd::run(
                    self.isa,
                    Tiles {
                        a,
                        panel,
                        rows,
                        store,
                    },
                );
            };
        }
    }

    fn units(args: &Args) -> usize {
        let of_batch = if args.m < TILE {
            args.m * args.n.div_ceil(WIDE)
        } else {
            args.n.div_ceil(PANEL) * args.m.div_ceil(CHUNK)
        };
        args.batches * of_batch
    }

    /// # Safety
    /// As for [`NativeKernel::run`]; `b` is the operand of this type.
    unsafe fn go<T: Int>(
        &self,
        args: &Args,
        y: Memory,
        range: std::ops::Range<usize>,
        (b, scratch): (Memory, &mut Scratch),
    ) {
        unsafe {
            if args.m < TILE {
                self.few::<T>(args, y, range, b);
            } else {
                self.many::<T>(args, y, range, (b, scratch));
            }
        }
    }
}

impl NativeKernel for MatMulInteger {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let ints = (0..6).all(|i| !dtype(spec, i).is_some_and(DType::is_float));
        let has_b = dtype(spec, 1).is_some() || dtype(spec, 2).is_some();
        let signed = spec.defines.contains_key(super::SIGNED);
        (ints && has_b).then_some(Self { isa, signed })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let work = args.batches * args.m * args.n * args.k / 4;
        pieces(work, Self::units(args), threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let range = part(Self::units(args), 1, piece, pieces);
        unsafe {
            match (args.w, args.b) {
                (Some(w), _) if self.signed => self.go::<i8>(args, store.y, range, (w, scratch)),
                (Some(w), _) => self.go::<u8>(args, store.y, range, (w, scratch)),
                (None, Some(b)) => self.go::<i32>(args, store.y, range, (b, scratch)),
                (None, None) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MatMulInteger;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, ints};

    struct Case {
        /// Batches along two axes, rows, columns, and elements of a sum.
        sizes: [usize; 5],
        /// Each batch has its own `b`.
        own: bool,
        za_step: usize,
        zb_step: usize,
        zeros: bool,
    }

    fn try_case(case: &Case, bytes: bool, signed: bool) {
        let [n1, n2, m, n, k] = case.sizes;
        let batches = n1 * n2;
        let bytes_of = |n: usize, seed: u32, signed: bool| -> Vec<i32> {
            ints(n, seed, 1 << 20)
                .iter()
                .map(|v| if signed { *v as i8 as i32 } else { *v as u8 as i32 })
                .collect()
        };
        let a = bytes_of(batches * m * k, 1, false);
        let b = bytes_of(if case.own { batches } else { 1 } * k * n, 2, signed);
        let (za, zb) = (bytes_of(m, 3, false), bytes_of(n, 4, signed));
        let mut want = vec![0; batches * m * n];
        for (i, y) in want.iter_mut().enumerate() {
            let (z, r, j) = (i / n / m, i / n % m, i % n);
            let own = if case.own { z } else { 0 };
            let (low, right) = if case.zeros {
                (za[r * case.za_step], zb[j * case.zb_step])
            } else {
                (0, 0)
            };
            *y = (0..k)
                .map(|c| (a[(z * m + r) * k + c] - low) * (b[(own * k + c) * n + j] - right))
                .sum();
        }
        let step = if case.own { k * n } else { 0 };
        let params = [
            m,
            n,
            k,
            case.za_step,
            case.zb_step,
            batches,
            n1,
            n2,
            m * k,
            m * k * n1,
            0,
            step,
            step * n1,
            0,
        ];
        let mut packed: Vec<i32> = Vec::new();
        for four in b.chunks(4) {
            let mut word = [0; 4];
            word.iter_mut().zip(four).for_each(|(w, v)| *w = *v as u8);
            packed.push(i32::from_le_bytes(word));
        }
        let want = Given::I(want);
        let [b, w] = if bytes {
            [Given::None, Given::I(packed)]
        } else {
            [Given::I(b), Given::None]
        };
        let [za, zb] = if case.zeros {
            [Given::I(za), Given::I(zb)]
        } else {
            [Given::None, Given::None]
        };
        let defines: &[(&'static str, i64)] = if signed {
            &[("SIGNED", 1), ("ROWS", 4)]
        } else {
            &[]
        };
        let operands = [Given::I(a), b, w, za, zb, blank(&want)];
        expect::<MatMulInteger>(defines, &params.map(|p| p as u32), &operands, &[want], 0.0);
    }

    #[test]
    fn integer_products_are_exact() {
        for (sizes, own) in [
            ([1, 1, 1, 16, 33], false),
            ([1, 1, 6, 20, 17], false),
            ([2, 3, 3, 7, 5], true),
            ([1, 1, 130, 40, 65], false),
            ([3, 1, 5, 4, 9], true),
            ([1, 1, 5, 33, 0], false),
            ([1, 1, 1, 20, 0], false),
            ([1, 1, 0, 33, 4], false),
        ] {
            for (za_step, zb_step, zeros) in [(0, 0, false), (0, 0, true), (1, 1, true), (0, 1, true)] {
                let case = Case {
                    sizes,
                    own,
                    za_step,
                    zb_step,
                    zeros,
                };
                for signed in [false, true] {
                    try_case(&case, false, signed);
                    if sizes[0] * sizes[1] == 1 {
                        try_case(&case, true, signed);
                    }
                }
            }
        }
    }
}
