//! From scores of a block of keys to weights.

use super::{BLOCK, FEW, Problem, Unit};
use crate::backend::cpu::simd::{Simd, exp, tanh};

/// The softmax of vectors so far.
#[derive(Clone, Copy)]
pub struct Running {
    /// The largest score of each vector, and the sum of weights relative to it.
    pub top: *mut f32,
    pub total: *mut f32,
}

/// A block of keys.
#[derive(Clone, Copy)]
pub struct Keys {
    pub first: usize,
    /// Keys whose scores are known, and this as a multiple of the lanes.
    pub count: usize,
    pub width: usize,
}

/// Turns the scores of vectors `from .. from + count` of a unit (at most [`FEW`], in rows of
/// [`BLOCK`]) into weights relative to the new maximum. The result is the factor of what was summed
/// before.
/// # Safety
/// As for [`Simd`]; rows and `running` (from its first entry on) have as many entries.
#[inline(always)]
pub unsafe fn soften<S: Simd>(
    p: &Problem,
    unit: &Unit,
    keys: &Keys,
    scores: *mut f32,
    [from, count]: [usize; 2],
    running: Running,
) -> [f32; FEW] {
    let (mut keep, mut tops) = ([0.0; FEW], [0.0; FEW]);
    let last = unit.rows * p.group - 1;
    unsafe {
        for m in 0..count {
            let (row, head) = p.of_vector(unit, (from + m).min(last));
            let line = scores.add(m * BLOCK);
            bend::<S>(p, unit, keys, line, row, head);
            let mut top = S::splat(*running.top.add(m));
            for t in (0..keys.width).step_by(S::LANES) {
                top = S::max(S::load(line.add(t)), top);
            }
            tops[m] = S::largest(top);
            keep[m] = *running.top.add(m) - tops[m];
            *running.top.add(m) = tops[m];
        }
        for m in (0..count).step_by(S::LANES) {
            let at = keep.as_mut_ptr().add(m);
            S::store(at, exp::<S>(S::load(at)));
        }
        for m in 0..count {
            let line = scores.add(m * BLOCK);
            let (top, mut sum) = (S::splat(tops[m]), S::splat(0.0));
            for t in (0..keys.width).step_by(S::LANES) {
                let e = exp::<S>(S::sub(S::load(line.add(t)), top));
                S::store(line.add(t), e);
                sum = S::add(sum, e);
            }
            let total = running.total.add(m);
            *total = *total * keep[m] + S::sum(sum);
        }
    }
    keep
}

/// Applies soft cap and mask to the scores of a vector, and hides keys that its row does not see.
#[inline(always)]
unsafe fn bend<S: Simd>(p: &Problem, unit: &Unit, keys: &Keys, line: *mut f32, row: usize, head: usize) {
    // SAFETY: the mask has an element for each score, since it fits.
    unsafe {
        if let Some(cap) = p.cap {
            let (cap, inverse) = (S::splat(cap), S::splat(1.0 / cap));
            for t in (0..keys.width).step_by(S::LANES) {
                let at = line.add(t);
                S::store(at, S::mul(cap, tanh::<S>(S::mul(S::load(at), inverse))));
            }
        }
        if let Some(mask) = p.mask {
            let [b, h, s, step] = mask.strides;
            let at = mask
                .at
                .add(unit.batch * b + head * h + row * s + keys.first * step);
            let whole = if step == 1 {
                keys.count / S::LANES * S::LANES
            } else {
                0
            };
            for t in (0..whole).step_by(S::LANES) {
                S::store(line.add(t), S::add(S::load(line.add(t)), S::load(at.add(t))));
            }
            for t in whole..keys.count {
                *line.add(t) += *at.add(t * step);
            }
        }
        let seen = p.seen(row);
        let hidden = seen.start.saturating_sub(keys.first).min(keys.width);
        for t in 0..hidden {
            *line.add(t) = f32::NEG_INFINITY;
        }
        for t in seen.end.saturating_sub(keys.first).min(keys.count)..keys.width {
            *line.add(t) = f32::NEG_INFINITY;
        }
    }
}
