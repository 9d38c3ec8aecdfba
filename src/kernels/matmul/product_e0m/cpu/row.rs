//! The product of one row and a panel. Weights are decoded as they are read.

use super::dot::{Floats, Multiply, Vector, field, steps_at_once, words};
use super::layout::STEP;
use super::scales::Reader;
use super::tile::{Call, SPAN};
use super::words::{Words, mask, planes, step};
use crate::backend::cpu::simd::Simd;
use crate::tensor::PANEL;

/// The body of each function for one row, for `V` vectors of columns at once.
///
/// # Safety
/// As for [`super::tile::Tile`].
#[inline(always)]
pub unsafe fn row<A: Multiply, const BITS: usize, const NESTED: bool, const PLANES: usize, const V: usize>(
    call: &Call,
) {
    for column in (0..PANEL).step_by(V * A::S::LANES) {
        // SAFETY: vectors of columns fill the panel.
        unsafe { columns::<A, BITS, NESTED, PLANES, V>(call, column) };
    }
}

#[inline(always)]
unsafe fn columns<A: Multiply, const BITS: usize, const NESTED: bool, const PLANES: usize, const V: usize>(
    call: &Call,
    column: usize,
) {
    let codes = call.codes.wrapping_add(column);
    let (mut x, mut factors) = (call.x, call.factors);
    // SAFETY: the pointers stay inside of the panel and the row.
    unsafe {
        let scales = call.scales.wrapping_add(column);
        let mut scales = Reader::<A::S, BITS, NESTED, V>::new(scales, call.k, call.meaning);
        let mut acc = [A::S::splat(0.0); V];
        let (mut k, mut at) = (call.k, 0);
        while k > 0 {
            let mut group = k.min(call.group);
            k -= group;
            let [unit, rest] = scales.next();
            while group > 0 {
                let block = group.min(call.block);
                group -= block;
                let scale = A::S::splat(*factors);
                // Blocks of 32 and 16 weights are written out.
                let whole = match block {
                    32 => Some(dots::<A, BITS, PLANES, V>(codes, at, x, 4, false)),
                    16 => Some(dots::<A, BITS, PLANES, V>(codes, at, x, 2, false)),
                    _ => None,
                };
                if let Some(dots) = whole {
                    add::<A, V>(&mut acc, dots, scale, unit);
                    at += block / STEP;
                    x = x.add(block / STEP * words::<A>() * PLANES);
                } else {
                    let mut left = block;
                    while left > 0 {
                        // Four weights of 8 bits may be left at the end of a column.
                        let steps = (left.min(SPAN) / STEP).max(1);
                        let dots = dots::<A, BITS, PLANES, V>(codes, at, x, steps, left < STEP);
                        add::<A, V>(&mut acc, dots, scale, unit);
                        left = left.saturating_sub(steps * STEP);
                        at += steps;
                        x = x.add(steps * words::<A>() * PLANES);
                    }
                }
                let sum = A::S::splat(*factors.add(1));
                for j in 0..V {
                    acc[j] = A::S::fma(rest[j], sum, acc[j]);
                }
                factors = factors.add(2);
            }
        }
        for (j, acc) in acc.into_iter().enumerate() {
            A::S::store(call.out.add(column + j * A::S::LANES), acc);
        }
    }
}

#[inline(always)]
unsafe fn add<A: Multiply, const V: usize>(
    acc: &mut [Floats<A>; V],
    dots: [Floats<A>; V],
    scale: Floats<A>,
    unit: [Floats<A>; V],
) {
    for j in 0..V {
        acc[j] = unsafe { A::S::fma(A::S::mul(dots[j], scale), unit[j], acc[j]) };
    }
}

/// Sums of integer products over `count` steps from step `first` on, at most `SPAN / STEP`, as
/// floats. `half`: the step has four weights of 8 bits, and its other activations are 0.
#[inline(always)]
unsafe fn dots<A: Multiply, const BITS: usize, const PLANES: usize, const V: usize>(
    codes: *const u32,
    first: usize,
    x: *const u32,
    count: usize,
    half: bool,
) -> [Floats<A>; V] {
    let narrow = A::NARROW > 0;
    // Nibbles of weights of 8 bits have sums of their own.
    let high = if narrow && BITS == 8 { 4 } else { 0 };
    let operands = const {
        if A::LANE == 16 || A::NARROW > 0 && BITS == 8 {
            4
        } else {
            2
        }
    };
    unsafe {
        let mut totals = [A::zero(); V];
        let mut sums = [[[A::zero(); V]; 2]; PLANES];
        for v in 0..count {
            let x = x.add(v * PLANES * words::<A>());
            let mut read = [[A::S::word(codes); 2]; V];
            for (j, read) in read.iter_mut().enumerate() {
                let codes = codes.wrapping_add(j * A::S::LANES);
                *read = step::<A::S, BITS>(codes, first + v, half);
                if BITS != 4 && BITS != 8 && A::LANE == 8 {
                    let [high, low] = const { planes(BITS) };
                    *read = [spread::<A::S>(read[0], high), spread::<A::S>(read[1], low)];
                }
            }
            // The processor's own prefetchers stop at the end of a page.
            let ahead = codes.wrapping_add((first + v) * BITS * PANEL / 4 + 1024);
            A::S::prefetch(ahead.cast());
            if BITS > 4 {
                A::S::prefetch(ahead.wrapping_add(PANEL).cast());
            }
            for i in 0..operands {
                let mut weights = [A::S::word(codes); V];
                for (weights, read) in weights.iter_mut().zip(read) {
                    *weights = if matches!(BITS, 4 | 8) {
                        field::<A, BITS>(read[i * 2 / operands], i)
                    } else {
                        joined::<A, BITS>(read, i)
                    };
                }
                for (plane, sums) in sums.iter_mut().enumerate() {
                    let x = A::S::word(x.add(plane * words::<A>() + i * words::<A>() / operands));
                    for (sum, weights) in sums[i % 2].iter_mut().zip(weights) {
                        *sum = A::madd(*sum, weights, x);
                    }
                }
            }
            if narrow && ((v + 1) % const { steps_at_once::<A>(BITS) } == 0 || v + 1 == count) {
                flush::<A, V>(&mut totals, &sums[0], high);
                sums = [[[A::zero(); V]; 2]; PLANES];
            }
        }
        if !narrow {
            flush::<A, V>(&mut totals, &sums[0], 0);
            for low in &sums[1..] {
                // The first plane holds the high bytes.
                for total in &mut totals {
                    *total = A::add(A::zero(), *total, 8);
                }
                flush::<A, V>(&mut totals, low, 0);
            }
        }
        let mut out = [A::S::splat(0.0); V];
        for (out, total) in out.iter_mut().zip(totals) {
            *out = A::float(total);
        }
        out
    }
}

/// Adds both sums of columns to those in 32 bits, the second one times `2^high`.
#[inline(always)]
unsafe fn flush<A: Multiply, const V: usize>(totals: &mut [A::Sum; V], sums: &[[A::Sum; V]; 2], high: u32) {
    for (total, (first, second)) in totals.iter_mut().zip(sums[0].into_iter().zip(sums[1])) {
        unsafe {
            *total = A::add(*total, first, 0);
            *total = A::add(*total, second, high);
        }
    }
}

/// Moves the lowest four fields of `width` bits of each half of a word: fields 0 and 1 stay in its
/// low byte, and fields 2 and 3 come to the same places in its high byte.
#[inline(always)]
unsafe fn spread<S: Words>(words: S::U, width: usize) -> S::U {
    match width {
        0 | 4 => words,
        _ => unsafe {
            let fields = S::and(words, ((1 << (4 * width)) - 1) * 0x0001_0001);
            S::or(fields, S::left(fields, 8 - 2 * width))
        },
    }
}

/// Operand `i` of a step of weights of two planes or fewer than 4 bits, from [`spread`] words if
/// lanes have 8 bits.
#[inline(always)]
unsafe fn joined<A: Multiply, const BITS: usize>(read: [Vector<A>; 2], i: usize) -> Vector<A> {
    let [high, low] = const { planes(BITS) };
    unsafe {
        let weights = A::S::and(A::S::right(read[0], i * high), mask(A::LANE, high));
        if low == 0 {
            return weights;
        }
        let rest = A::S::and(A::S::right(read[1], i * low), mask(A::LANE, low));
        A::S::or(A::S::left(weights, low), rest)
    }
}
