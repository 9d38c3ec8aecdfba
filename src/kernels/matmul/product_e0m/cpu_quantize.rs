//! Quantizes rows of activations for `product_e0m`, to 8 or 16 bits with a scale per block.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part, pieces_of};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::product_e0m::cpu::layout::{Layout, STEP, Words};
use std::ops::Range;

type Args = super::QuantizeArgs<Bound>;

/// The kernel `quantize_activations`.
pub struct Quantize {
    isa: Isa,
    block: usize,
    planes: usize,
    /// E0M words hold four weights instead of eight, which changes the order of bytes.
    per4: bool,
    norm: bool,
}

impl NativeKernel for Quantize {
    type Signature = super::QuantizeArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let define = |name| spec.defines.get(name).copied();
        let block = usize::try_from(define(super::BLOCK)?).ok()?;
        let planes = usize::try_from(define(super::PLANES).unwrap_or(1)).ok()?;
        (block > 0 && block.is_multiple_of(STEP) && (1..=2).contains(&planes)).then(|| Self {
            isa,
            block,
            planes,
            per4: define(crate::kernels::matmul_e0m::PER4).is_some(),
            norm: define(super::NORM).is_some(),
        })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let layout = Layout::new(self.isa, self.planes, args.rows);
        // About 1.5 activations per nanosecond.
        pieces_of(layout.tiles(args.rows), layout.height * args.k * 2 / 3, threads)
    }

    unsafe fn run(&self, args: &Args, _: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        if args.rows == 0 || args.k == 0 {
            return;
        }
        let layout = Layout::new(self.isa, self.planes, args.rows);
        let tiles = part(layout.tiles(args.rows), 1, piece, pieces);
        let floats = layout.factors(args.k, self.block);
        let words = layout.tile(args.k);
        // SAFETY: a piece owns the memory of its tiles; inputs are only read.
        let work = unsafe {
            Work {
                kernel: self,
                layout,
                k: args.k,
                epsilon: args.epsilon,
                rows: tiles.start * layout.height..(tiles.end * layout.height).min(args.rows),
                x: &args.x.slice()[..args.rows * args.k],
                gain: args.gain.filter(|_| self.norm).map(|g| &g.slice()[..args.k]),
                y: args.y.slice_mut(tiles.start * words..tiles.end * words),
                factors: args.factors.slice_mut(tiles.start * floats..tiles.end * floats),
                row: scratch.floats(args.k),
            }
        };
        // SAFETY: the processor has the instruction set.
        unsafe {
            match self.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => x86::run(work),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => work.run::<simd::arm::Neon>(),
                _ => work.run::<simd::Portable>(),
            }
        }
    }
}

/// Eight integers. As for [`Simd`], the processor must have the instruction set.
trait Integers: Simd {
    type Q: Copy;

    unsafe fn zero() -> Self::Q;
    /// The bits of the magnitudes of eight floats. As integers, they have the same order; NaN is
    /// the largest.
    unsafe fn magnitudes(at: *const f32) -> Self::Q;
    unsafe fn max(a: Self::Q, b: Self::Q) -> Self::Q;
    unsafe fn largest(q: Self::Q) -> i32;
    /// Eight floats times `scale`, rounded to the nearest integers, ties to even.
    unsafe fn integers(at: *const f32, scale: f32) -> Self::Q;
    unsafe fn plus(a: Self::Q, b: Self::Q) -> Self::Q;
    unsafe fn total(q: Self::Q) -> i32;
    /// Splits `q = 256 h + l` into signed bytes h and l.
    unsafe fn split(q: Self::Q) -> [Self::Q; 2];
    /// Signed bytes, in the order of the weights in E0M words of eight or four weights.
    unsafe fn bytes(q: Self::Q, per4: bool) -> [u32; 2];
    unsafe fn int16(q: Self::Q) -> [u32; 4];
}

/// The work of a piece.
struct Work<'a> {
    kernel: &'a Quantize,
    layout: Layout,
    k: usize,
    epsilon: f32,
    /// The rows of the piece: a whole number of tiles, except at the end.
    rows: Range<usize>,
    x: &'a [f32],
    gain: Option<&'a [f32]>,
    /// The words and scales of these tiles.
    y: &'a mut [u32],
    factors: &'a mut [f32],
    /// Space for a normalized row.
    row: &'a mut [f32],
}

impl Work<'_> {
    #[inline(always)]
    unsafe fn run<S: Integers>(mut self) {
        for row in self.rows.clone() {
            let local = row - self.rows.start;
            let x = &self.x[row * self.k..][..self.k];
            if self.kernel.norm {
                let mut normalized = std::mem::take(&mut self.row);
                unsafe {
                    normalize::<S>(x, self.gain, self.epsilon, normalized);
                    self.quantize::<S>(local, normalized);
                }
                std::mem::swap(&mut self.row, &mut normalized);
            } else {
                unsafe { self.quantize::<S>(local, x) };
            }
        }
    }

    /// Quantizes `x`, row `row` of the piece.
    #[inline(always)]
    unsafe fn quantize<S: Integers>(&mut self, row: usize, x: &[f32]) {
        let Layout { height, planes, .. } = self.layout;
        let (tile, row) = (row / height, row % height);
        let per_tile = (
            self.layout.tile(self.k),
            self.layout.factors(self.k, self.kernel.block),
        );
        let y = &mut self.y[tile * per_tile.0..][..per_tile.0];
        let factors = &mut self.factors[tile * per_tile.1..][..per_tile.1];
        let top = if planes == 2 { 32512.0 } else { 127.0 };
        let places = Places::new(self.layout, row, self.kernel.per4);
        let mut steps = y.chunks_exact_mut(self.layout.step());
        for (block, factors) in x
            .chunks(self.kernel.block)
            .zip(factors.chunks_exact_mut(2 * height))
        {
            let (whole, rest) = block.as_chunks::<STEP>();
            let mut tail = [0.0; STEP];
            tail[..rest.len()].copy_from_slice(rest);
            let tail = if rest.is_empty() {
                [].as_slice()
            } else {
                std::slice::from_ref(&tail)
            };
            // SAFETY: places are inside a step.
            unsafe {
                let (scale, inverse) = scale::<S>(whole, tail, top);
                let mut sum = S::zero();
                for (x, step) in whole.iter().zip(&mut steps) {
                    sum = S::plus(sum, put::<S>(x, inverse, step, &places));
                }
                for (x, step) in tail.iter().zip(&mut steps) {
                    sum = S::plus(sum, put::<S>(x, inverse, step, &places));
                }
                factors[row] = scale;
                factors[height + row] = scale * S::total(sum) as f32;
            }
        }
    }
}

/// Quantizes eight activations into a step; returns their integers.
#[inline(always)]
unsafe fn put<S: Integers>(x: &[f32; STEP], inverse: f32, step: &mut [u32], places: &Places) -> S::Q {
    let y = step.as_mut_ptr();
    unsafe {
        let q = S::integers(x.as_ptr(), inverse);
        let set = |i: usize, words: [u32; 2]| {
            y.add(places.at[i]).write(words[0]);
            y.add(places.at[i + 1]).write(words[1]);
        };
        match (places.int16, places.planes) {
            (true, _) => {
                let [a, b, c, d] = S::int16(q);
                set(0, [a, b]);
                set(2, [c, d]);
            }
            (false, 1) => set(0, S::bytes(q, places.per4)),
            (false, _) => {
                let [h, l] = S::split(q);
                set(0, S::bytes(h, places.per4));
                set(2, S::bytes(l, places.per4));
            }
        }
        q
    }
}

/// Where the words of a row are in a step, and what they contain.
struct Places {
    at: [usize; 4],
    int16: bool,
    planes: usize,
    per4: bool,
}

impl Places {
    fn new(layout: Layout, row: usize, per4: bool) -> Self {
        let int16 = layout.words == Words::Int16;
        let planes = layout.planes;
        let at = std::array::from_fn(|i| match int16 {
            true => i * layout.height + row,
            // With one plane, only the first two are used.
            false => layout.place(i / 2 % planes, i % 2, row),
        });
        Self {
            at,
            int16,
            planes,
            per4,
        }
    }
}

/// The scale of a block whose integers are at most `top`, and the inverse of the scale. The scale
/// is NaN if a value is not finite. Both are 0 if the inverse would not be finite.
#[inline(always)]
unsafe fn scale<S: Integers>(whole: &[[f32; STEP]], tail: &[[f32; STEP]], top: f32) -> (f32, f32) {
    let most = unsafe {
        let mut most = S::zero();
        for part in [whole, tail] {
            for x in part {
                most = <S as Integers>::max(most, S::magnitudes(x.as_ptr()));
            }
        }
        f32::from_bits(<S as Integers>::largest(most).cast_unsigned())
    };
    let inverse = top / most;
    match most.is_finite() {
        true if inverse.is_finite() => (most / top, inverse),
        true => (0.0, 0.0),
        false => (f32::NAN, 0.0),
    }
}

/// `x / sqrt(mean(x^2) + epsilon) * gain`.
#[inline(always)]
unsafe fn normalize<S: Simd>(x: &[f32], gain: Option<&[f32]>, epsilon: f32, y: &mut [f32]) {
    let vectors = x.len() / S::LANES * S::LANES;
    // SAFETY: places below `vectors` are whole vectors of slices of one length.
    unsafe {
        let mut sums = [S::splat(0.0); 4];
        for i in (0..vectors).step_by(S::LANES) {
            let v = S::load(x.as_ptr().add(i));
            let sum = &mut sums[i / S::LANES % 4];
            *sum = S::fma(v, v, *sum);
        }
        let [a, b, c, d] = sums;
        let mut sum = S::sum(S::add(S::add(a, b), S::add(c, d)));
        sum += x[vectors..].iter().map(|v| v * v).sum::<f32>();
        let factor = 1.0 / (sum / x.len() as f32 + epsilon).sqrt();
        let scaled = S::splat(factor);
        for i in (0..vectors).step_by(S::LANES) {
            let v = S::mul(S::load(x.as_ptr().add(i)), scaled);
            let v = match gain {
                Some(gain) => S::mul(v, S::load(gain.as_ptr().add(i))),
                None => v,
            };
            S::store(y.as_mut_ptr().add(i), v);
        }
        for i in vectors..x.len() {
            y[i] = x[i] * factor * gain.map_or(1.0, |g| g[i]);
        }
    }
}

impl Integers for simd::Portable {
    type Q = [i32; 8];

    #[inline(always)]
    unsafe fn zero() -> Self::Q {
        [0; 8]
    }
    #[inline(always)]
    unsafe fn magnitudes(at: *const f32) -> Self::Q {
        let x = unsafe { at.cast::<[i32; 8]>().read_unaligned() };
        x.map(|v| v & i32::MAX)
    }
    #[inline(always)]
    unsafe fn max(a: Self::Q, b: Self::Q) -> Self::Q {
        std::array::from_fn(|i| a[i].max(b[i]))
    }
    #[inline(always)]
    unsafe fn largest(q: Self::Q) -> i32 {
        q.into_iter().fold(0, i32::max)
    }
    #[inline(always)]
    unsafe fn integers(at: *const f32, scale: f32) -> Self::Q {
        let x = unsafe { at.cast::<[f32; 8]>().read_unaligned() };
        x.map(|v| (v * scale).round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn plus(a: Self::Q, b: Self::Q) -> Self::Q {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn total(q: Self::Q) -> i32 {
        q.into_iter().fold(0, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn split(q: Self::Q) -> [Self::Q; 2] {
        let h = q.map(|q| q.wrapping_add(128) >> 8);
        [h, std::array::from_fn(|i| q[i].wrapping_sub(h[i] << 8))]
    }
    #[inline(always)]
    unsafe fn bytes(q: Self::Q, per4: bool) -> [u32; 2] {
        let order = if per4 {
            [0, 2, 1, 3, 4, 6, 5, 7]
        } else {
            [0, 4, 1, 5, 2, 6, 3, 7]
        };
        let word = |i: usize| u32::from_le_bytes(std::array::from_fn(|j| q[order[4 * i + j]] as u8));
        [word(0), word(1)]
    }
    #[inline(always)]
    unsafe fn int16(q: Self::Q) -> [u32; 4] {
        std::array::from_fn(|i| (q[2 * i] & 0xFFFF | q[2 * i + 1] << 16).cast_unsigned())
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Integers, Work};
    use crate::backend::cpu::simd::x86::Avx2;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn run(work: Work<'_>) {
        unsafe { work.run::<Avx2>() }
    }

    impl Integers for Avx2 {
        type Q = __m256i;

        #[inline(always)]
        unsafe fn zero() -> __m256i {
            unsafe { _mm256_setzero_si256() }
        }
        #[inline(always)]
        unsafe fn magnitudes(at: *const f32) -> __m256i {
            unsafe { _mm256_and_si256(_mm256_loadu_si256(at.cast()), _mm256_set1_epi32(i32::MAX)) }
        }
        #[inline(always)]
        unsafe fn max(a: __m256i, b: __m256i) -> __m256i {
            unsafe { _mm256_max_epi32(a, b) }
        }
        #[inline(always)]
        unsafe fn largest(q: __m256i) -> i32 {
            unsafe {
                let v = _mm_max_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
                let v = _mm_max_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
                _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
            }
        }
        #[inline(always)]
        unsafe fn integers(at: *const f32, scale: f32) -> __m256i {
            unsafe { _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(at), _mm256_set1_ps(scale))) }
        }
        #[inline(always)]
        unsafe fn plus(a: __m256i, b: __m256i) -> __m256i {
            unsafe { _mm256_add_epi32(a, b) }
        }
        #[inline(always)]
        unsafe fn total(q: __m256i) -> i32 {
            unsafe {
                let v = _mm_add_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
                let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
                _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
            }
        }
        #[inline(always)]
        unsafe fn split(q: __m256i) -> [__m256i; 2] {
            unsafe {
                let h = _mm256_srai_epi32::<8>(_mm256_add_epi32(q, _mm256_set1_epi32(128)));
                [h, _mm256_sub_epi32(q, _mm256_slli_epi32::<8>(h))]
            }
        }
        #[inline(always)]
        unsafe fn bytes(q: __m256i, per4: bool) -> [u32; 2] {
            unsafe {
                let v = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
                let v = _mm_packs_epi16(v, v);
                let order = if per4 {
                    0x0705_0604_0301_0200
                } else {
                    0x0703_0602_0501_0400
                };
                let v = _mm_cvtsi128_si64(_mm_shuffle_epi8(v, _mm_cvtsi64_si128(order))).cast_unsigned();
                [v as u32, (v >> 32) as u32]
            }
        }
        #[inline(always)]
        unsafe fn int16(q: __m256i) -> [u32; 4] {
            unsafe {
                let v = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
                std::mem::transmute::<__m128i, [u32; 4]>(v)
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Integers;
    use crate::backend::cpu::simd::arm::Neon;
    use std::arch::aarch64::*;

    impl Integers for Neon {
        type Q = [int32x4_t; 2];

        #[inline(always)]
        unsafe fn zero() -> Self::Q {
            unsafe { [vdupq_n_s32(0); 2] }
        }
        #[inline(always)]
        unsafe fn magnitudes(at: *const f32) -> Self::Q {
            unsafe { [0, 4].map(|i| vandq_s32(vld1q_s32(at.add(i).cast()), vdupq_n_s32(i32::MAX))) }
        }
        #[inline(always)]
        unsafe fn max(a: Self::Q, b: Self::Q) -> Self::Q {
            unsafe { [vmaxq_s32(a[0], b[0]), vmaxq_s32(a[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn largest(q: Self::Q) -> i32 {
            unsafe { vmaxvq_s32(vmaxq_s32(q[0], q[1])) }
        }
        #[inline(always)]
        unsafe fn integers(at: *const f32, scale: f32) -> Self::Q {
            unsafe { [0, 4].map(|i| vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(at.add(i)), scale))) }
        }
        #[inline(always)]
        unsafe fn plus(a: Self::Q, b: Self::Q) -> Self::Q {
            unsafe { [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])] }
        }
        #[inline(always)]
        unsafe fn total(q: Self::Q) -> i32 {
            unsafe { vaddvq_s32(vaddq_s32(q[0], q[1])) }
        }
        #[inline(always)]
        unsafe fn split(q: Self::Q) -> [Self::Q; 2] {
            unsafe {
                let h = q.map(|q| vshrq_n_s32::<8>(vaddq_s32(q, vdupq_n_s32(128))));
                [h, [0, 1].map(|i| vsubq_s32(q[i], vshlq_n_s32::<8>(h[i])))]
            }
        }
        #[inline(always)]
        unsafe fn bytes(q: Self::Q, per4: bool) -> [u32; 2] {
            unsafe {
                let v = vqmovn_s16(vcombine_s16(vqmovn_s32(q[0]), vqmovn_s32(q[1])));
                let order: u64 = if per4 {
                    0x0705_0604_0301_0200
                } else {
                    0x0703_0602_0501_0400
                };
                let v = vtbl1_s8(v, vcreate_s8(order));
                let v = vget_lane_u64::<0>(vreinterpret_u64_s8(v));
                [v as u32, (v >> 32) as u32]
            }
        }
        #[inline(always)]
        unsafe fn int16(q: Self::Q) -> [u32; 4] {
            unsafe {
                let v = vcombine_s16(vqmovn_s32(q[0]), vqmovn_s32(q[1]));
                std::mem::transmute::<int16x8_t, [u32; 4]>(v)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::product_e0m::cpu::testing::{Buffer, Rng, run, spec};

    /// The integers of a row, and the factors of its blocks.
    fn row(y: &[u32], factors: &[f32], kernel: &Quantize, row: usize, rows: usize, k: usize) -> Row {
        let layout = Layout::new(kernel.isa, kernel.planes, rows);
        let (tile, row) = (row / layout.height, row % layout.height);
        let steps = y[tile * layout.tile(k)..].chunks_exact(layout.step());
        let order = if kernel.per4 {
            [0, 2, 1, 3, 4, 6, 5, 7]
        } else {
            [0, 4, 1, 5, 2, 6, 3, 7]
        };
        let integers = (0..k)
            .zip(steps.flat_map(|step| (0..STEP).map(move |i| (step, i))))
            .map(|(_, (step, i))| {
                if layout.words == Words::Int16 {
                    let word = step[i / 2 * layout.height + row];
                    return i32::from((word >> (i % 2 * 16)) as i16);
                }
                let at = order.iter().position(|o| *o == i).unwrap();
                let byte = |plane| (step[layout.place(plane, at / 4, row)] >> (at % 4 * 8)) as i8;
                match kernel.planes {
                    1 => i32::from(byte(0)),
                    _ => 256 * i32::from(byte(0)) + i32::from(byte(1)),
                }
            });
        let height = layout.height;
        let blocks = factors[tile * layout.factors(k, kernel.block)..].chunks_exact(2 * height);
        let blocks = blocks.take(k.div_ceil(kernel.block));
        Row {
            integers: integers.collect(),
            factors: blocks
                .take(k.div_ceil(kernel.block))
                .map(|b| [b[row], b[layout.height + row]])
                .collect(),
        }
    }

    struct Row {
        integers: Vec<i32>,
        factors: Vec<[f32; 2]>,
    }

    #[test]
    fn integers_are_the_nearest_in_each_block() {
        for isa in Isa::supported() {
            for (rows, k, block) in [
                (1, 8, 8),
                (1, 136, 32),
                (2, 100, 40),
                (5, 64, 32),
                (17, 72, 128),
                (40, 4096, 32),
            ] {
                for (planes, per4, norm) in [
                    (1, false, false),
                    (2, false, true),
                    (1, true, true),
                    (2, true, false),
                    (1, false, true),
                ] {
                    let mut defines = vec![("BLOCK", block), ("PLANES", planes)];
                    defines.extend(per4.then_some(("PER4", 1)));
                    defines.extend(norm.then_some(("NORM", 1)));
                    let kernel = Quantize::new(&spec(&defines), isa).unwrap();
                    let (x, gain) = (Rng(3).normals(rows * k), Rng(4).normals(k));
                    let room = if rows == 1 { 1 } else { rows + 15 };
                    let mut y = Buffer::new(planes * room * k.next_multiple_of(8) / 4);
                    let mut factors = Buffer::new(2 * room * k.div_ceil(block));
                    let (mut input, mut gains) = (Buffer::of(&x), Buffer::of(&gain));
                    let out = y.memory();
                    let operands = [
                        Some(input.memory()),
                        norm.then(|| gains.memory()),
                        Some(out),
                        Some(factors.memory()),
                    ];
                    run(
                        &kernel,
                        &[rows as u32, k as u32, 0.01f32.to_bits()],
                        &operands,
                        (out, None),
                        3,
                    );
                    for r in 0..rows {
                        let x = &x[r * k..][..k];
                        let squares: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
                        let factor = 1.0 / (squares / k as f64 + f64::from(0.01f32)).sqrt();
                        let want: Vec<f64> = x
                            .iter()
                            .zip(&gain)
                            .map(|(x, g)| f64::from(*x) * if norm { factor * f64::from(*g) } else { 1.0 })
                            .collect();
                        let words: &[u32] = bytemuck::cast_slice(y.floats());
                        let got = row(words, factors.floats(), &kernel, r, rows, k);
                        let blocks = want
                            .chunks(block)
                            .zip(got.integers.chunks(block))
                            .zip(&got.factors);
                        for ((want, got), [scale, sum]) in blocks {
                            let most = want.iter().fold(0.0f64, |a, v| a.max(v.abs()));
                            let top = if planes == 2 { 32512.0 } else { 127.0 };
                            let scale = f64::from(*scale);
                            assert!(
                                (scale * top - most).abs() <= 1e-5 * most,
                                "{isa:?}: {scale} of {most}"
                            );
                            for (want, got) in want.iter().zip(got) {
                                let error = (want - f64::from(*got) * scale).abs();
                                assert!(error <= 0.6 * scale, "{isa:?}: {got} * {scale} for {want}");
                            }
                            let all = scale * f64::from(got.iter().sum::<i32>());
                            assert!(
                                (all - f64::from(*sum)).abs() <= 1e-6 * all.abs(),
                                "{isa:?}: {sum}, not {all}"
                            );
                        }
                    }
                }
            }
        }
    }
}
