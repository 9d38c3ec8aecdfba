//! Dot products of the integers of a tile of several rows and a panel, written once for all
//! instruction sets.

use super::layout::STEP;
use super::tile::{SPAN, Tile};
use super::words::Words;
use crate::backend::cpu::simd::Simd;
use crate::tensor::PANEL;

/// Sums of products for each row and vector. The second array is used where [`two_sums`] holds.
pub type Sums<A, const M: usize, const V: usize> = [[[<A as Multiply>::Sum; V]; M]; 2];

/// How an instruction set multiplies the integers of weights and activations: bytes, or 16-bit
/// integers. As for [`Simd`], the processor must have the instruction set.
///
/// For several rows, weights have 4 or 8 `BITS`, or 3 (which stands for 2, too), 5 or 6, unpacked
/// to bytes. There are `M` rows and `V` vectors of columns.
pub trait Multiply: Copy + Sized + 'static {
    type S: Words;
    /// Sums for a vector of columns.
    type Sum: Copy;
    /// Bits of the integers that are multiplied, which are those of an activation.
    const LANE: usize = 8;
    /// Number of products of a step that are added in one lane of 16 bits; 0 if sums have 32 bits.
    const NARROW: usize = 0;
    /// Tiles of at most this many rows have two sums per row: dot products take several cycles, so
    /// one sum alone would wait for itself.
    const TWO_SUMS: usize = 0;
    /// XOR mask that makes weights of 8 bits signed, or 0; `Form::level` is the level of the
    /// result.
    const FLIP: u32 = 0;
    /// Whether vectors of columns are multiplied one after another, because registers are scarce.
    const ONE_BY_ONE: bool = false;
    /// Whether the four steps of the usual block are written out.
    const UNROLL: bool = false;

    unsafe fn zero() -> Self::Sum;
    /// Adds the products of the integers of words to each lane of a sum.
    unsafe fn madd(sum: Self::Sum, weights: Vector<Self>, x: Vector<Self>) -> Self::Sum;
    /// Adds a sum of [`Multiply::madd`] times `2^shift` to a sum in 32 bits.
    unsafe fn add(total: Self::Sum, sum: Self::Sum, shift: u32) -> Self::Sum;
    /// Sums in 32 bits as floats.
    unsafe fn float(total: Self::Sum) -> Floats<Self>;

    /// The same pointer, which the compiler does not look into. It would address all operands by
    /// one index, and instructions with such addresses are split.
    #[inline(always)]
    fn opaque<T>(at: *const T) -> *const T {
        at
    }

    /// The function for tiles of this height, at least 2.
    fn tile<const BITS: usize, const PLANES: usize>(height: usize) -> Option<Tile>;
    /// The function for one row.
    fn row<const BITS: usize, const NESTED: bool, const PLANES: usize>() -> Tile;

    /// Adds the products of a step.
    #[inline(always)]
    unsafe fn step<const BITS: usize, const M: usize, const V: usize>(
        sums: &mut Sums<Self, M, V>,
        codes: *const u32,
        x: *const u32,
    ) {
        unsafe { step::<Self, BITS, M, V>(sums, codes, x) }
    }

    /// All sums as floats.
    #[inline(always)]
    unsafe fn floats<const M: usize, const V: usize>(totals: [[Self::Sum; V]; M]) -> [[Floats<Self>; V]; M] {
        unsafe {
            let mut out = [[Self::S::splat(0.0); V]; M];
            for m in 0..M {
                for j in 0..V {
                    out[m][j] = Self::float(totals[m][j]);
                }
            }
            out
        }
    }
}

pub type Vector<A> = <<A as Multiply>::S as Words>::U;
pub type Floats<A> = <<A as Multiply>::S as Simd>::F;

/// Rows of words of a step of weights.
pub const fn rows(bits: usize) -> usize {
    if bits == 4 { 1 } else { 2 }
}

/// Words of a step of activations of a row and a plane.
pub const fn words<A: Multiply>() -> usize {
    A::LANE * STEP / 32
}

/// Bits of a weight that are multiplied at once: few enough that products fit in 16-bit sums.
const fn width<A: Multiply>(bits: usize) -> usize {
    if bits == 4 || A::NARROW > 0 && bits == 8 {
        4
    } else {
        8
    }
}

/// Vectors of weights of a step.
const fn operands<A: Multiply>(bits: usize) -> usize {
    rows(bits) * A::LANE / width::<A>(bits)
}

/// Whether operands are added to two sums in turn.
const fn two_sums<A: Multiply>(bits: usize, rows: usize) -> bool {
    rows <= A::TWO_SUMS || operands::<A>(bits) > words::<A>()
}

/// Number of steps whose products fit in the sums. Activations are at most 128.
pub const fn steps_at_once<A: Multiply>(bits: usize) -> usize {
    let width = width::<A>(bits);
    let largest = (1 << if bits < width { bits } else { width }) - 1;
    match A::NARROW {
        0 => SPAN / STEP,
        products => (1 << 15) / (128 * products * largest),
    }
}

/// Operand `i` of a step: a field of the words of some columns.
#[inline(always)]
pub unsafe fn operand<A: Multiply, const BITS: usize>(codes: *const u32, i: usize) -> Vector<A> {
    let width = const { width::<A>(BITS) };
    unsafe { field::<A, BITS>(A::S::words(codes.add(i / (A::LANE / width) * PANEL)), i) }
}

/// The field that is operand `i` of a step of 4 or 8 bits, of the words that have it.
#[inline(always)]
pub unsafe fn field<A: Multiply, const BITS: usize>(words: Vector<A>, i: usize) -> Vector<A> {
    let width = const { width::<A>(BITS) };
    unsafe {
        let field = A::S::field(words, A::LANE, width, i % (A::LANE / width));
        if BITS == 8 && A::FLIP != 0 {
            A::S::xor(field, A::FLIP)
        } else {
            field
        }
    }
}

/// Adds the products of a step.
#[inline(always)]
unsafe fn step<A: Multiply, const BITS: usize, const M: usize, const V: usize>(
    sums: &mut Sums<A, M, V>,
    codes: *const u32,
    x: *const u32,
) {
    let (operands, two) = const { (operands::<A>(BITS), two_sums::<A>(BITS, M)) };
    unsafe {
        for i in 0..operands {
            let mut weights = [A::S::word(codes); V];
            for (j, weights) in weights.iter_mut().enumerate() {
                *weights = operand::<A, BITS>(codes.add(j * A::S::LANES), i);
            }
            let x = x.add(i * words::<A>() / operands * M);
            let sums = &mut sums[if two { i % 2 } else { 0 }];
            for (m, sums) in sums.iter_mut().enumerate() {
                let x = A::S::word(x.add(m));
                for j in 0..V {
                    sums[j] = A::madd(sums[j], weights[j], x);
                }
            }
        }
    }
}

/// Adds sums to those in 32 bits.
#[inline(always)]
unsafe fn add<A: Multiply, const BITS: usize, const M: usize, const V: usize>(
    totals: &mut [[A::Sum; V]; M],
    sums: &Sums<A, M, V>,
) {
    unsafe {
        for m in 0..M {
            for j in 0..V {
                totals[m][j] = A::add(totals[m][j], sums[0][m][j], 0);
                if const { two_sums::<A>(BITS, M) } {
                    // The second ones may be of the high 4 bits of weights.
                    let shift = if A::NARROW > 0 { 4 } else { 0 };
                    totals[m][j] = A::add(totals[m][j], sums[1][m][j], shift);
                }
            }
        }
    }
}

/// Adds the products of step `v` of `count`.
#[inline(always)]
unsafe fn next<A: Multiply, const BITS: usize, const PLANES: usize, const M: usize, const V: usize>(
    totals: &mut [[A::Sum; V]; M],
    sums: &mut Sums<A, M, V>,
    codes: *const u32,
    x: *const u32,
    [plane, v, count]: [usize; 3],
) {
    unsafe {
        let codes = codes.add(v * rows(BITS) * PANEL);
        let x = x.add((v * PLANES + plane) * words::<A>() * M);
        A::step::<BITS, M, V>(sums, codes, x);
        let end = v + 1;
        if A::NARROW > 0 && (end % const { steps_at_once::<A>(BITS) } == 0 || end == count) {
            add::<A, BITS, M, V>(totals, sums);
            *sums = [[[A::zero(); V]; M]; 2];
        }
    }
}

/// Products of some vectors of columns.
#[inline(always)]
unsafe fn columns<A: Multiply, const BITS: usize, const PLANES: usize, const M: usize, const V: usize>(
    codes: *const u32,
    x: *const u32,
    count: usize,
) -> [[Floats<A>; V]; M] {
    unsafe {
        let mut totals = [[A::zero(); V]; M];
        let mut sums = [totals; 2];
        for plane in 0..PLANES {
            if plane == 1 {
                // The first plane holds the high bytes.
                for sum in sums.as_flattened_mut().as_flattened_mut() {
                    *sum = A::add(A::zero(), *sum, 8);
                }
            }
            if A::UNROLL && count == 4 {
                next::<A, BITS, PLANES, M, V>(&mut totals, &mut sums, codes, x, [plane, 0, count]);
                next::<A, BITS, PLANES, M, V>(&mut totals, &mut sums, codes, x, [plane, 1, count]);
                next::<A, BITS, PLANES, M, V>(&mut totals, &mut sums, codes, x, [plane, 2, count]);
                next::<A, BITS, PLANES, M, V>(&mut totals, &mut sums, codes, x, [plane, 3, count]);
            } else {
                for v in 0..count {
                    next::<A, BITS, PLANES, M, V>(&mut totals, &mut sums, codes, x, [plane, v, count]);
                }
            }
        }
        if A::NARROW == 0 {
            add::<A, BITS, M, V>(&mut totals, &sums);
        }
        A::floats(totals)
    }
}

/// Sums of integer products over `count` steps, 1 to `SPAN / STEP`, as floats.
///
/// # Safety
/// The processor has the instruction set; panel and tile have the steps.
#[inline(always)]
pub unsafe fn dot<A: Multiply, const BITS: usize, const PLANES: usize, const M: usize, const V: usize>(
    codes: *const u32,
    x: *const u32,
    count: usize,
) -> [[Floats<A>; V]; M] {
    unsafe {
        if !A::ONE_BY_ONE {
            return columns::<A, BITS, PLANES, M, V>(codes, x, count);
        }
        let mut out = [[A::S::splat(0.0); V]; M];
        for j in 0..V {
            let one = columns::<A, BITS, PLANES, M, 1>(codes.add(j * A::S::LANES), x, count);
            for (out, one) in out.iter_mut().zip(one) {
                out[j] = one[0];
            }
        }
        out
    }
}

/// Defines the functions of an instruction set: the number of vectors for one row, and numbers of
/// vectors for several, with the heights that have them.
macro_rules! tiles {
    ($($feature:literal)?; $row:literal; $($vectors:literal: $($height:literal)*);*) => {
        fn row<const BITS: usize, const NESTED: bool, const PLANES: usize>() -> Tile {
            $(#[target_feature(enable = $feature)])?
            unsafe fn run<A: Multiply, const BITS: usize, const NESTED: bool, const PLANES: usize>(
                call: &Call,
            ) {
                unsafe { row::<A, BITS, NESTED, PLANES, $row>(call) }
            }
            run::<Self, BITS, NESTED, PLANES>
        }


        fn tile<const BITS: usize, const PLANES: usize>(height: usize) -> Option<Tile> {
            $(#[target_feature(enable = $feature)])?
            unsafe fn run<A: Multiply, const BITS: usize, const PLANES: usize, const M: usize, const V: usize>(
                call: &Call,
            ) {
                unsafe { tile::<A, BITS, PLANES, M, V>(call) }
            }
            match height {
                $($($height => Some(run::<Self, BITS, PLANES, $height, $vectors>),)*)*
                _ => None,
            }
        }
    };
}
pub(super) use tiles;
