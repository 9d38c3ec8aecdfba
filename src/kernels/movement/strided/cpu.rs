//! Copies by strides: transposes, slices, broadcasts.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, dtype, part};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Cursor, Elem, RUN, Sink, Word, by_word, merged, pieces};

type Args = super::Args<Bound>;

const MAX_RANK: usize = 6;

/// `y[m] = x[start + sum(m * step)]` over multi-indices `m`.
pub struct Strided {
    isa: Isa,
    halves: bool,
    rank: usize,
}

/// Sizes and steps of the merged axes, innermost first.
#[derive(Clone, Copy, Debug)]
struct Axes {
    sizes: [usize; MAX_RANK],
    steps: [isize; MAX_RANK],
    rank: usize,
}

impl Axes {
    fn new(a: &Args, rank: usize) -> Self {
        let given = [a.n1, a.n2, a.n3, a.n4, a.n5];
        let steps = [a.s0, a.s1, a.s2, a.s3, a.s4, a.s5].map(|s| s as isize);
        let inner: usize = given.iter().take(rank - 1).product();
        let last = if inner == 0 { 0 } else { a.count.div_ceil(inner) };
        let sizes = std::array::from_fn(|i| match i + 1 {
            n if n < rank => given[i],
            n if n == rank => last,
            _ => 1,
        });
        let (sizes, steps, rank) = merged(sizes, steps);
        Self { sizes, steps, rank }
    }

    /// The axis along which elements of the operand are contiguous, if the copy is a transposition.
    fn across(&self, count: usize) -> Option<usize> {
        if (-1..=1).contains(&self.steps[0]) || self.sizes.iter().product::<usize>() != count {
            return None;
        }
        (1..self.rank).find(|i| self.steps[*i] == 1)
    }

    /// The smallest and the largest offset.
    fn reach(&self) -> (isize, isize) {
        let ends = self
            .sizes
            .iter()
            .zip(&self.steps)
            .map(|(n, s)| (n.cast_signed() - 1) * s);
        ends.fold((0, 0), |(low, high), e| (low + e.min(0), high + e.max(0)))
    }
}

/// Copies `to.len()` elements that are `step` apart in `x`, from `at` on.
#[inline(always)]
fn copy_row<T: Word>(x: &[T], at: isize, step: isize, to: &mut [u32]) {
    let Some(more) = to.len().checked_sub(1) else {
        return;
    };
    let (from, last) = (
        at.cast_unsigned(),
        (at + more.cast_signed() * step).cast_unsigned(),
    );
    match step {
        1 => T::copy(&x[from..=last], to),
        0 => to.fill(x[from].word()),
        2.. => {
            for (to, v) in to
                .iter_mut()
                .zip(x[from..=last].iter().step_by(step.unsigned_abs()))
            {
                *to = v.word();
            }
        }
        _ => {
            for (to, v) in to
                .iter_mut()
                .zip(x[last..=from].iter().rev().step_by(step.unsigned_abs()))
            {
                *to = v.word();
            }
        }
    }
}

/// Copies elements `range` of the results, row by row.
/// # Safety
/// As for [`NativeKernel::run`].
unsafe fn by_rows<T: Word>(
    args: &Args,
    (axes, start): (&Axes, isize),
    sink: Sink<'_, '_>,
    range: std::ops::Range<usize>,
    scratch: &mut Scratch,
) {
    // SAFETY: nobody writes the operand.
    let x = unsafe { args.x.slice::<T>() };
    let mut sizes = axes.sizes;
    if axes.rank == 0 {
        sizes[0] = args.count;
    }
    let rows = |first: usize, y: &mut [u32]| {
        let mut cursor = Cursor::new(sizes, axes.steps, start, first);
        let mut rest = y;
        while !rest.is_empty() {
            let n = cursor.row().min(rest.len());
            let (row, next) = rest.split_at_mut(n);
            copy_row(x, cursor.offset, axes.steps[0], row);
            cursor.advance(n);
            rest = next;
        }
    };
    // SAFETY: the piece owns these results.
    unsafe { sink.fill(range, RUN, scratch, rows) }
}

/// Side of the square blocks that are transposed at once.
const TILE: usize = 16;

/// Rows of `cols` results that are transposed together.
const fn block(cols: usize) -> usize {
    if cols < 8 { 1024 } else { 64 }
}

/// Copies `y[j * ys + i] = x[i * xs + j]` for `i` below `cols` and `j` below `rows`.
trait Transposer<T: Word> {
    /// # Safety
    /// `x` is valid for reads and `y` for writes at these places.
    unsafe fn transpose(x: *const T, xs: isize, y: *mut u32, ys: usize, rows: usize, cols: usize);
}

/// Transposes a block of any size, element by element.
/// # Safety
/// As for [`Transposer`].
#[inline(always)]
unsafe fn by_elements<T: Word>(x: *const T, xs: isize, y: *mut u32, ys: usize, rows: usize, cols: usize) {
    unsafe {
        match cols {
            2 => by_short_rows::<T, 2>(x, xs, y, ys, rows),
            3 => by_short_rows::<T, 3>(x, xs, y, ys, rows),
            4 => by_short_rows::<T, 4>(x, xs, y, ys, rows),
            _ => {
                for j in 0..rows {
                    for i in 0..cols {
                        *y.add(j * ys + i) = (*x.offset(i.cast_signed() * xs).add(j)).word();
                    }
                }
            }
        }
    }
}

/// # Safety
/// As for [`Transposer`].
#[inline(always)]
unsafe fn by_short_rows<T: Word, const N: usize>(
    x: *const T,
    xs: isize,
    y: *mut u32,
    ys: usize,
    rows: usize,
) {
    for j in 0..rows {
        unsafe {
            let v: [u32; N] = std::array::from_fn(|i| (*x.offset(i.cast_signed() * xs).add(j)).word());
            y.add(j * ys).cast::<[u32; N]>().write(v);
        }
    }
}

struct Plain;

impl<T: Word> Transposer<T> for Plain {
    #[inline(always)]
    unsafe fn transpose(x: *const T, xs: isize, y: *mut u32, ys: usize, rows: usize, cols: usize) {
        const SIDE: usize = 4;
        let (whole_rows, whole_cols) = (rows / SIDE * SIDE, cols / SIDE * SIDE);
        unsafe {
            for j in (0..whole_rows).step_by(SIDE) {
                for i in (0..whole_cols).step_by(SIDE) {
                    let x = x.offset(i.cast_signed() * xs).add(j);
                    let v: [[T; SIDE]; SIDE] =
                        std::array::from_fn(|k| x.offset(k.cast_signed() * xs).cast::<[T; SIDE]>().read());
                    let v: [[u32; SIDE]; SIDE] = std::array::from_fn(|k| v.map(|row| row[k].word()));
                    for (k, row) in v.into_iter().enumerate() {
                        y.add((j + k) * ys + i).cast::<[u32; SIDE]>().write(row);
                    }
                }
                let x = x.offset(whole_cols.cast_signed() * xs).add(j);
                by_elements(x, xs, y.add(j * ys + whole_cols), ys, SIDE, cols - whole_cols);
            }
            by_elements(
                x.add(whole_rows),
                xs,
                y.add(whole_rows * ys),
                ys,
                rows - whole_rows,
                cols,
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Transposition of blocks of 8 x 8 with AVX2.

    use super::{Transposer, by_elements};
    use std::arch::x86_64::*;

    pub struct Avx2;

    /// # Safety
    /// As for [`Transposer`], for a block of 8 x 8; the processor has AVX.
    #[inline(always)]
    unsafe fn eight(x: *const f32, xs: isize, y: *mut f32, ys: usize) {
        unsafe {
            // One register holds half of row i and half of row i + 4.
            let pair = |i: isize, j: usize| {
                let low = _mm256_castps128_ps256(_mm_loadu_ps(x.offset(i * xs).add(j)));
                _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(x.offset((i + 4) * xs).add(j)))
            };
            for j in [0, 4] {
                let (a, b, c, d) = (pair(0, j), pair(1, j), pair(2, j), pair(3, j));
                let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                let to = |k: usize| y.add((j + k) * ys);
                _mm256_storeu_ps(to(0), _mm256_shuffle_ps::<0x44>(ab, cd));
                _mm256_storeu_ps(to(1), _mm256_shuffle_ps::<0xee>(ab, cd));
                _mm256_storeu_ps(to(2), _mm256_shuffle_ps::<0x44>(ab_high, cd_high));
                _mm256_storeu_ps(to(3), _mm256_shuffle_ps::<0xee>(ab_high, cd_high));
            }
        }
    }

    impl Transposer<u32> for Avx2 {
        #[inline(always)]
        unsafe fn transpose(x: *const u32, xs: isize, y: *mut u32, ys: usize, rows: usize, cols: usize) {
            let (whole_rows, whole_cols) = (rows / 8 * 8, cols / 8 * 8);
            unsafe {
                for i in (0..whole_cols).step_by(8) {
                    for j in (0..whole_rows).step_by(8) {
                        let x = x.offset(i.cast_signed() * xs).add(j);
                        eight(x.cast(), xs, y.add(j * ys + i).cast(), ys);
                    }
                }
                for j in (0..whole_rows).step_by(8) {
                    let x = x.offset(whole_cols.cast_signed() * xs).add(j);
                    by_elements(x, xs, y.add(j * ys + whole_cols), ys, 8, cols - whole_cols);
                }
                by_elements(
                    x.add(whole_rows),
                    xs,
                    y.add(whole_rows * ys),
                    ys,
                    rows - whole_rows,
                    cols,
                );
            }
        }
    }
}

/// A matrix to transpose, and where its transpose goes.
#[derive(Clone, Copy)]
struct Matrix<T> {
    x: *const T,
    xs: isize,
    y: *mut u32,
    ys: usize,
    rows: usize,
    cols: usize,
}

impl<T: Word> Matrix<T> {
    /// # Safety
    /// As for [`Transposer`].
    #[inline(always)]
    unsafe fn transpose<K: Transposer<T>>(self) {
        let (xs, ys, rows, cols) = (self.xs, self.ys, self.rows, self.cols);
        // A narrow matrix is one tile.
        let [high, wide] = if rows < 8 || cols < 8 {
            [rows, cols]
        } else {
            [TILE, TILE]
        };
        for i in (0..cols).step_by(wide) {
            for j in (0..rows).step_by(high) {
                let (rows, cols) = (high.min(rows - j), wide.min(cols - i));
                unsafe {
                    let (x, y) = (self.x.offset(i.cast_signed() * xs).add(j), self.y.add(j * ys + i));
                    if rows == TILE && cols == TILE {
                        // A buffer in between lets whole cache lines be written.
                        let mut buffer = [0; TILE * TILE];
                        K::transpose(x, xs, buffer.as_mut_ptr(), TILE, rows, cols);
                        for (j, row) in buffer.chunks_exact(TILE).enumerate() {
                            y.add(j * ys).copy_from_nonoverlapping(row.as_ptr(), TILE);
                        }
                    } else {
                        K::transpose(x, xs, y, ys, rows, cols);
                    }
                }
            }
        }
    }
}

/// # Safety
/// As for [`Transposer`]; the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_avx2(m: Matrix<u32>) {
    unsafe { m.transpose::<x86::Avx2>() }
}

/// # Safety
/// As for [`Transposer`]; the processor supports `isa`.
unsafe fn transpose<T: Word>(isa: Isa, m: Matrix<T>) {
    // SAFETY: the cast keeps the type.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if std::any::TypeId::of::<T>() == std::any::TypeId::of::<u32>()
            && matches!(isa, Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni)
        {
            return transpose_avx2((&raw const m).cast::<Matrix<u32>>().read());
        }
        let _ = isa;
        m.transpose::<Plain>();
    }
}

/// Number of blocks of results to transpose. A block has [`block`] indices of axis `across`, one
/// index of the axes outside it, and all indices of the axes inside it.
fn blocks(axes: &Axes, across: usize) -> usize {
    axes.sizes[across].div_ceil(block(axes.sizes[0])) * axes.sizes[across + 1..].iter().product::<usize>()
}

/// Transposes the blocks `range`.
/// # Safety
/// As for [`NativeKernel::run`].
unsafe fn by_blocks<T: Word>(
    (args, isa, sink): (&Args, Isa, Sink<'_, '_>),
    (axes, start, across): (&Axes, isize, usize),
    range: std::ops::Range<usize>,
    scratch: &mut Scratch,
) {
    let (low, high) = axes.reach();
    let inside = start + low >= 0 && (start + high).cast_unsigned() < args.x.elements::<T>();
    assert!(
        inside && args.count <= args.y.elements::<u32>(),
        "operands have the sizes that parameters state"
    );
    let x: *const T = args.x.as_ptr();
    let y: *mut u32 = args.y.as_ptr();
    let [n0, t] = [axes.sizes[0], axes.sizes[across]];
    let inner: usize = axes.sizes[..across].iter().product();
    let mid = inner / n0;
    let mut outer_axes = ([1; MAX_RANK], [0; MAX_RANK]);
    let outer_rank = axes.rank - across - 1;
    outer_axes.0[..outer_rank].copy_from_slice(&axes.sizes[across + 1..axes.rank]);
    outer_axes.1[..outer_rank].copy_from_slice(&axes.steps[across + 1..axes.rank]);
    let mut mid_axes = ([1; MAX_RANK], [0; MAX_RANK]);
    mid_axes.0[..across - 1].copy_from_slice(&axes.sizes[1..across]);
    mid_axes.1[..across - 1].copy_from_slice(&axes.steps[1..across]);
    // With an epilogue, columns are cut so that a block fits in the L1 cache.
    let cols_at_once = if sink.is_direct() { n0 } else { 64.min(n0) };
    let per_outer = t.div_ceil(block(n0));
    for i in range {
        let (outer, from) = (i / per_outer, i % per_outer * block(n0));
        let rows = block(n0).min(t - from);
        let outer_offset = Cursor::new(outer_axes.0, outer_axes.1, start, outer).offset;
        let mut cursor = Cursor::new(mid_axes.0, mid_axes.1, outer_offset + from.cast_signed(), 0);
        for m in 0..mid {
            for col in (0..n0).step_by(cols_at_once) {
                let cols = cols_at_once.min(n0 - col);
                let first = (outer * t + from) * inner + m * n0 + col;
                let at = cursor.offset + col.cast_signed() * axes.steps[0];
                // SAFETY: within the operand, by the assertion.
                let x = unsafe { x.offset(at) };
                if sink.is_direct() {
                    // SAFETY: within the results, by the assertion, and owned by the piece.
                    let m = unsafe {
                        Matrix {
                            x,
                            xs: axes.steps[0],
                            y: y.add(first),
                            ys: inner,
                            rows,
                            cols,
                        }
                    };
                    // SAFETY: as above; the processor supports `isa`.
                    unsafe { transpose(isa, m) };
                    continue;
                }
                let values = scratch.of::<u32>(rows * cols);
                let m = Matrix {
                    x,
                    xs: axes.steps[0],
                    y: values.as_mut_ptr(),
                    ys: cols,
                    rows,
                    cols,
                };
                // SAFETY: `values` has room for the block.
                unsafe { transpose(isa, m) };
                for (j, values) in values.chunks_exact_mut(cols).enumerate() {
                    // SAFETY: owned by the piece.
                    unsafe { sink.put(first + j * inner, values) };
                }
            }
            cursor.advance(1);
        }
    }
}

impl NativeKernel for Strided {
    type Signature = super::Args;
    const HALVES: &'static [&'static str] = &["x"];

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let elem = Elem::of(spec, 2)?;
        let rank = spec.defines.get(super::RANK).copied().unwrap_or(1);
        let rank = usize::try_from(rank)
            .ok()
            .filter(|r| (1..=MAX_RANK).contains(r))?;
        if dtype(spec, 1).is_some_and(crate::tensor::DType::is_float) {
            return None;
        }
        Some(Self {
            isa,
            halves: elem.halves(spec, 0)?,
            rank,
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let axes = Axes::new(args, self.rank);
        let parts = axes
            .across(args.count)
            .map_or(args.count / RUN, |t| blocks(&axes, t));
        pieces(args.count, parts, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        if args.count == 0 {
            return;
        }
        let axes = Axes::new(args, self.rank);
        let start = match args.live {
            // SAFETY: nobody writes it.
            Some(live) => unsafe { live.slice::<i32>()[args.start as usize] },
            None => args.start,
        } as isize;
        let sink = Sink { store };
        match axes.across(args.count) {
            Some(across) => {
                let range = part(blocks(&axes, across), 1, piece, pieces);
                let given = (args, self.isa, sink);
                unsafe {
                    by_word!(
                        self.halves,
                        by_blocks(given, (&axes, start, across), range, scratch)
                    );
                }
            }
            None => {
                let range = part(args.count, TILE, piece, pieces);
                unsafe { by_word!(self.halves, by_rows(args, (&axes, start), sink, range, scratch)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Strided;
    use crate::kernels::cpu::moves::check::{Given, blank, expect, floats, ints};
    use half::f16;

    /// Parameters of a copy of `shape` (outermost first) by `steps`, and the places of its
    /// elements.
    fn case(shape: &[usize], steps: &[i32], start: i32) -> (Vec<u32>, Vec<usize>) {
        let count: usize = shape.iter().product();
        let mut places = Vec::new();
        for i in 0..count {
            let (mut rest, mut at) = (i, start as isize);
            for (n, s) in shape.iter().zip(steps).rev() {
                at += (rest % n) as isize * *s as isize;
                rest /= n;
            }
            places.push(at as usize);
        }
        let mut params = vec![count as u32, start as u32];
        params.extend((0..5).map(|i| shape.iter().rev().nth(i).map_or(1, |n| *n as u32)));
        params.extend((0..6).map(|i| steps.iter().rev().nth(i).map_or(0, |n| *n as u32)));
        (params, places)
    }

    fn try_case(shape: &[usize], steps: &[i32], start: i32) {
        let (params, places) = case(shape, steps, start);
        let need = places.iter().max().map_or(0, |m| m + 1);
        let defines = [("RANK", shape.len().max(1) as i64)];
        let x = floats(need, 3);
        let want = Given::F(places.iter().map(|p| x[*p]).collect());
        expect::<Strided>(
            &defines,
            &params,
            &[Given::F(x), Given::None, blank(&want)],
            &[want],
            0.0,
        );
        let x: Vec<f16> = floats(need, 4).into_iter().map(f16::from_f32).collect();
        let want = Given::F(places.iter().map(|p| x[*p].to_f32()).collect());
        expect::<Strided>(
            &defines,
            &params,
            &[Given::H(x), Given::None, blank(&want)],
            &[want],
            0.0,
        );
        let x = ints(need, 5, 1 << 20);
        let want = Given::I(places.iter().map(|p| x[*p]).collect());
        expect::<Strided>(
            &defines,
            &params,
            &[Given::I(x.clone()), Given::None, blank(&want)],
            std::slice::from_ref(&want),
            0.0,
        );
        let mut live = params.clone();
        live[1] = 2;
        let operands = [Given::I(x), Given::I(vec![9, 9, start]), blank(&want)];
        expect::<Strided>(&defines, &live, &operands, &[want], 0.0);
    }

    #[test]
    fn strided_slices_and_broadcasts_match() {
        try_case(&[], &[], 3);
        try_case(&[2000], &[1], 5);
        try_case(&[7, 33], &[40, 1], 2);
        try_case(&[5, 31], &[0, 1], 0);
        try_case(&[5, 31], &[1, 0], 1);
        try_case(&[33], &[-1], 40);
        try_case(&[3, 9], &[-40, -3], 130);
        try_case(&[4, 17], &[50, 2], 1);
        try_case(&[3, 0, 5], &[0, 5, 1], 0);
        try_case(&[1, 6, 1, 7], &[3, 7, 99, 1], 0);
    }

    #[test]
    fn strided_transposes_match() {
        for (rows, cols) in [
            (2, 3),
            (8, 8),
            (16, 16),
            (17, 70),
            (65, 40),
            (3, 200),
            (200, 3),
            (130, 97),
        ] {
            try_case(&[cols, rows], &[1, cols as i32], 0);
            try_case(&[3, cols, rows], &[(cols * rows) as i32, 1, cols as i32], 0);
        }
        // [5, 9, 64] to [9, 5, 64], and [2, 3, 5, 7, 2] by [4, 2, 0, 3, 1].
        try_case(&[9, 5, 64], &[64, 576, 1], 0);
        try_case(&[2, 5, 2, 7, 3], &[1, 14, 210, 2, 70], 0);
        try_case(&[2, 3, 2, 4, 3, 5], &[1, 2, 6, 12, 48, 144], 0);
        try_case(&[3, 20, 4, 2, 9], &[7, 1, 3000, 900, 25], 11);
        try_case(&[20, 30], &[1, -21], 700);
    }
}
