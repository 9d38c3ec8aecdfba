//! The product of some rows and some panels in f32.
//!
//! With weights `s * (w - 2) + r`, the sum over a group is `s * (sum(x * w) - 2 * sum(x)) + r *
//! sum(x)`. Products are added in the order of K, for any number of rows.

use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd;
use crate::kernels::product_e0m::cpu::PANEL;
use crate::kernels::product_e0m::cpu::words::{Words, WordsJob, level, step};

/// Weights per step.
pub const STEP: usize = 8;
/// The most rows and panels of a tile.
pub const MOST_ROWS: usize = 8;
pub const MOST_PANELS: usize = 4;

/// A tile.
#[derive(Clone, Copy)]
pub struct Call {
    /// Words of each panel; without them, `levels` is read.
    pub codes: [*const u32; MOST_PANELS],
    /// 16 scales `s` and 16 weights `r` of each group.
    pub scales: [*const f32; MOST_PANELS],
    /// `[k][panels * 16]` weights before scale and bias.
    pub levels: *const f32,
    pub x: [*const f32; MOST_ROWS],
    /// Sums of each group of x, for each row.
    pub sums: [*const f32; MOST_ROWS],
    pub k: usize,
    pub group: usize,
    /// Rows of `panels * 16` sums, `stride` floats apart.
    pub out: *mut f32,
    pub stride: usize,
}

/// Multiplies a tile.
///
/// # Safety
/// The processor has the instruction set, and the pointers of the call are valid.
pub type Tile = unsafe fn(&Call);

/// Tile sizes of an instruction set. A tile has one row or an even number.
#[derive(Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    /// Panels of a tile of one row, and of more.
    pub panels: [usize; 2],
}

pub fn shape(isa: Isa) -> Shape {
    match isa {
        Isa::Avx512Vnni => Shape {
            rows: 8,
            panels: [4, 2],
        },
        Isa::Avx2 | Isa::AvxVnni => Shape {
            rows: 6,
            panels: [2, 1],
        },
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => Shape {
            rows: 6,
            panels: [1, 1],
        },
        Isa::Portable => Shape {
            rows: 2,
            panels: [1, 1],
        },
    }
}

/// `BITS` is 0 if weights are read from `levels`. A row has `C` vectors, of whole panels.
#[inline(always)]
unsafe fn tile<S: Words, const BITS: usize, const M: usize, const C: usize>(call: &Call) {
    let per_panel = PANEL / S::LANES;
    // SAFETY: all places are inside of panels, rows and sums.
    unsafe {
        let mut acc = [[S::splat(0.0); C]; M];
        let mut i = 0;
        let mut g = 0;
        while i < call.k {
            let end = (i + call.group).min(call.k);
            let mut t = [[S::splat(0.0); C]; M];
            while i < end {
                let count = (end - i).min(STEP);
                if BITS == 0 {
                    for k in 0..count {
                        let mut w = [S::splat(0.0); C];
                        for (v, w) in w.iter_mut().enumerate() {
                            *w = S::load(call.levels.add((i + k) * C * S::LANES + v * S::LANES));
                        }
                        madd::<S, M, C>(&mut t, w, call, i + k);
                    }
                } else {
                    let mut words = [step::<S, BITS>(call.codes[0], i / STEP, count < STEP); C];
                    if M == 1 {
                        for codes in call.codes.iter().take(C / per_panel) {
                            // The processor's own prefetchers stop at the end of a page.
                            S::prefetch(codes.add(i / STEP * BITS * PANEL / 4).wrapping_add(1024).cast());
                        }
                    }
                    for (v, words) in words.iter_mut().enumerate().skip(1) {
                        let panel = call.codes[v / per_panel].add(v % per_panel * S::LANES);
                        *words = step::<S, BITS>(panel, i / STEP, count < STEP);
                    }
                    if count == STEP {
                        eight::<S, BITS, M, C>(&mut t, words, call, i);
                    } else {
                        for k in 0..4 {
                            madd::<S, M, C>(&mut t, levels::<S, BITS, C>(words, k), call, i + k);
                        }
                    }
                }
                i += count;
            }
            for v in 0..C {
                let at = call.scales[v / per_panel].add(2 * g * PANEL + v % per_panel * S::LANES);
                let (scale, rest) = (S::load(at), S::load(at.add(PANEL)));
                for m in 0..M {
                    let sum = S::splat(*call.sums[m].add(g));
                    let above = S::fma(S::splat(-2.0), sum, t[m][v]);
                    acc[m][v] = S::fma(rest, sum, S::fma(scale, above, acc[m][v]));
                }
            }
            g += 1;
        }
        for (m, acc) in acc.into_iter().enumerate() {
            for (v, acc) in acc.into_iter().enumerate() {
                S::store(call.out.add(m * call.stride + v * S::LANES), acc);
            }
        }
    }
}

#[inline(always)]
unsafe fn eight<S: Words, const BITS: usize, const M: usize, const C: usize>(
    t: &mut [[S::F; C]; M],
    words: [[S::U; 2]; C],
    call: &Call,
    i: usize,
) {
    unsafe {
        madd::<S, M, C>(t, levels::<S, BITS, C>(words, 0), call, i);
        madd::<S, M, C>(t, levels::<S, BITS, C>(words, 1), call, i + 1);
        madd::<S, M, C>(t, levels::<S, BITS, C>(words, 2), call, i + 2);
        madd::<S, M, C>(t, levels::<S, BITS, C>(words, 3), call, i + 3);
        madd::<S, M, C>(t, levels::<S, BITS, C>(words, 4), call, i + 4);
        madd::<S, M, C>(t, levels::<S, BITS, C>(words, 5), call, i + 5);
        madd::<S, M, C>(t, levels::<S, BITS, C>(words, 6), call, i + 6);
        madd::<S, M, C>(t, levels::<S, BITS, C>(words, 7), call, i + 7);
    }
}

#[inline(always)]
unsafe fn levels<S: Words, const BITS: usize, const C: usize>(words: [[S::U; 2]; C], k: usize) -> [S::F; C] {
    unsafe {
        let mut out = [S::splat(0.0); C];
        for (out, words) in out.iter_mut().zip(words) {
            *out = level::<S, BITS>(words, k);
        }
        out
    }
}

/// Adds weights `w` times element `i` of each row.
#[inline(always)]
unsafe fn madd<S: Words, const M: usize, const C: usize>(
    t: &mut [[S::F; C]; M],
    w: [S::F; C],
    call: &Call,
    i: usize,
) {
    for (m, t) in t.iter_mut().enumerate() {
        unsafe {
            let x = S::splat(*call.x[m].add(i));
            for (t, w) in t.iter_mut().zip(w) {
                *t = S::fma(w, x, *t);
            }
        }
    }
}

/// Decodes `k` weights of each column of a panel, before scale and bias, to rows of floats that are
/// `stride` floats apart. The panel has the weights, and `out` the rows.
pub struct Decode<'a> {
    pub bits: usize,
    pub panel: &'a [u32],
    pub k: usize,
    pub out: &'a mut [f32],
    pub stride: usize,
}

impl WordsJob for Decode<'_> {
    #[inline(always)]
    unsafe fn run<S: Words>(self) {
        unsafe {
            match self.bits {
                2 => self.decode::<S, 2>(),
                3 => self.decode::<S, 3>(),
                4 => self.decode::<S, 4>(),
                5 => self.decode::<S, 5>(),
                6 => self.decode::<S, 6>(),
                _ => self.decode::<S, 8>(),
            }
        }
    }
}

impl Decode<'_> {
    #[inline(always)]
    unsafe fn decode<S: Words, const BITS: usize>(self) {
        for i in (0..self.k).step_by(STEP) {
            let count = (self.k - i).min(STEP);
            for c in (0..PANEL).step_by(S::LANES) {
                unsafe {
                    let words = step::<S, BITS>(self.panel.as_ptr().add(c), i / STEP, count < STEP);
                    for j in 0..count {
                        let at = self.out.as_mut_ptr().add((i + j) * self.stride + c);
                        S::store(at, level::<S, BITS>(words, j));
                    }
                }
            }
        }
    }
}

/// Defines the function that chooses a tile of an instruction set: the numbers of vectors, and the
/// numbers of rows that have them.
macro_rules! tiles {
    ($name:ident, $simd:ty, $($feature:literal)?; $($vectors:literal: $($rows:literal)*);*) => {
        fn $name(bits: usize, rows: usize) -> Option<Tile> {
            $(#[target_feature(enable = $feature)])?
            unsafe fn run<const BITS: usize, const M: usize, const C: usize>(call: &Call) {
                unsafe { tile::<$simd, BITS, M, C>(call) }
            }
            match (bits, rows) {
                $($((0, $rows) => Some(run::<0, $rows, $vectors>),
                (4, $rows) => Some(run::<4, $rows, $vectors>),
                (8, $rows) => Some(run::<8, $rows, $vectors>),)*)*
                _ => None,
            }
        }
    };
}

tiles!(portable, simd::Portable, ; 4: 1 2);
#[cfg(target_arch = "x86_64")]
tiles!(avx2, simd::x86::Avx2, "avx2,fma,f16c"; 4: 1; 2: 2 4 6);
#[cfg(target_arch = "x86_64")]
tiles!(
    avx512, simd::x86::Avx512, "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c";
    4: 1; 2: 2 4 6 8
);
#[cfg(target_arch = "aarch64")]
tiles!(neon, simd::arm::Neon, ; 4: 1 2 4 6);

/// The function for tiles of `rows` rows; `bits` is 0 for decoded weights.
pub fn pick(isa: Isa, bits: usize, rows: usize) -> Option<Tile> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => avx2(bits, rows),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => avx512(bits, rows),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => neon(bits, rows),
        _ => portable(bits, rows),
    }
}
