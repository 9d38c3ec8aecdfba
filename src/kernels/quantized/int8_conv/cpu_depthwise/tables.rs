//! Weights, bias and factors in the order in which vectors take them.

use super::{Args, Sizes, TAPS};
use crate::backend::cpu::bytes::{Arithmetic, Bytes, Limits, MOST_BYTES, any_left};
use crate::kernels::cpu::window::Window;

/// Repeats weights, bias and factors, in the order in which sums come. `repeated` has room for four
/// vectors of each set.
/// # Safety
/// As for `NativeKernel::run`.
#[inline(always)]
pub unsafe fn prepare<S: Bytes, A: Arithmetic>(
    args: &Args,
    window: Window,
    sizes: Sizes,
    tables: *mut u32,
    repeated: *mut u8,
) {
    let Sizes {
        channels,
        sets,
        words,
        groups,
        ..
    } = sizes;
    let vector = 4 * S::LANES;
    let length = sets * vector;
    let each = (groups + 3) * vector;
    // SAFETY: sizes are those of the scratch.
    unsafe {
        for group in 0..groups {
            let (ky, first) = (group / words, group % words * TAPS);
            for tap in 0..TAPS {
                let to = repeated.add(tap * length);
                if first + tap >= window.columns.kernel {
                    to.write_bytes(0, length);
                    continue;
                }
                let tap = ky * window.columns.kernel + first + tap;
                let from = args.w.as_ptr::<u8>().add(tap * channels);
                for at in (0..length).step_by(channels) {
                    std::ptr::copy_nonoverlapping(from, to.add(at), channels);
                }
            }
            for set in 0..sets {
                let mut taps = [S::load_bytes(repeated); TAPS];
                for (tap, v) in taps.iter_mut().enumerate() {
                    *v = S::load_bytes(repeated.add(tap * length + set * vector));
                }
                let all = S::interleave(taps);
                for (q, v) in all.into_iter().enumerate() {
                    S::store(tables.add(set * each + group * vector + q * S::LANES).cast(), v);
                }
            }
        }
        let bias = args.bias.as_ptr::<u32>();
        let first = args.factors.as_ptr::<u32>();
        let second = if A::LISTS == 2 { first.add(channels) } else { first };
        for set in 0..sets {
            let table = tables.add(set * each);
            for block in 0..vector / 4 {
                // Words of neighbouring channels stay together.
                let channel = (set * vector + 4 * block) % channels;
                let at = table.add(groups * vector + block % 4 * S::LANES + block / 4 * 4);
                for (i, list) in [bias, first, second].into_iter().enumerate() {
                    at.add(i * vector).copy_from_nonoverlapping(list.add(channel), 4);
                }
            }
            if S::FLIP != 0 {
                let flipped = S::activations(S::splat(S::FLIP.cast_signed()));
                for q in 0..4 {
                    let mut moved = S::splat(0);
                    for group in 0..groups {
                        let w = S::weights(S::load(table.add(group * vector + q * S::LANES).cast()));
                        moved = S::dot(moved, w, flipped);
                    }
                    let start = table.add(groups * vector + q * S::LANES).cast::<i32>();
                    S::store(start, S::sub(S::load(start), moved));
                }
            }
        }
    }
}

/// What is the same for all windows of a set of channels.
pub struct Set<S: Bytes, A: Arithmetic> {
    table: *const i32,
    pub start: [S::I; 4],
    factors: [A::Factors<S>; 4],
    limits: [S::I; 3],
    /// Whether factors shift to the left.
    is_left: bool,
}

impl<S: Bytes, A: Arithmetic> Set<S, A> {
    /// # Safety
    /// As for `NativeKernel::run`.
    #[inline(always)]
    pub unsafe fn new(table: *const u32, groups: usize, limits: Limits) -> Self {
        let vector = 4 * S::LANES;
        unsafe {
            let lists = table.add(groups * vector);
            let mut set = Self {
                table: table.cast(),
                start: [S::splat(0); 4],
                factors: [A::load::<S>(lists, lists); 4],
                limits: limits.vectors::<S>(),
                is_left: false,
            };
            if A::LISTS == 2 {
                set.is_left = any_left(std::slice::from_raw_parts(lists.add(2 * vector), vector));
            }
            for q in 0..4 {
                let list = lists.add(q * S::LANES);
                set.start[q] = S::load(list.cast());
                set.factors[q] = A::load::<S>(list.add(vector), list.add(2 * vector));
            }
            set
        }
    }

    /// Adds the products of words of a row of taps and their weights, group `group`.
    /// # Safety
    /// As for `NativeKernel::run`.
    #[inline(always)]
    pub unsafe fn dot(&self, sums: [S::I; 4], group: usize, words: [S::I; 4]) -> [S::I; 4] {
        let mut sums = sums;
        for q in 0..4 {
            unsafe {
                let w = S::weights(S::load(self.table.add((4 * group + q) * S::LANES)));
                sums[q] = S::dot(sums[q], w, S::activations(words[q]));
            }
        }
        sums
    }

    /// Stores `count` bytes of results.
    /// # Safety
    /// As for `NativeKernel::run`.
    #[inline(always)]
    pub unsafe fn put(&self, sums: [S::I; 4], y: *mut u8, count: usize) {
        // SAFETY: the piece owns the results.
        unsafe {
            let mut scaled = sums;
            if self.is_left {
                for (v, factors) in scaled.iter_mut().zip(self.factors) {
                    *v = A::raised::<S>(*v, factors);
                }
            }
            for (v, factors) in scaled.iter_mut().zip(self.factors) {
                *v = A::apply::<S>(*v, factors);
            }
            let v = S::narrow(scaled, &self.limits);
            if count >= 4 * S::LANES {
                S::store_bytes(y, v);
            } else {
                let mut part = [0u8; MOST_BYTES];
                S::store_bytes(part.as_mut_ptr(), v);
                y.copy_from_nonoverlapping(part.as_ptr(), count);
            }
        }
    }
}
