//! Appends rows of heads to an 8-bit state. A row is stored as words of four signed bytes, followed
//! by its scale: the largest magnitude / 127.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, pieces_of, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::kv_append::cpu::{live_value, place};

type Args = super::Args<Bound>;

/// The kernel `kv_append_q8`.
pub struct KvAppendQ8 {
    isa: Isa,
    dim: usize,
    /// Number of rows in the ring, if the state is one: later ones wrap around to its start.
    ring: Option<usize>,
}

impl KvAppendQ8 {
    /// Words of a row of the state.
    const fn words(&self) -> usize {
        self.dim / 4 + 1
    }
}

impl NativeKernel for KvAppendQ8 {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let number = |name| {
            spec.defines
                .get(name)
                .and_then(|n| usize::try_from(*n).ok())
                .filter(|n| *n > 0)
        };
        let dim = number(super::DIM).filter(|d| d.is_multiple_of(4))?;
        Some(Self {
            isa,
            dim,
            ring: number(crate::kernels::kv_append::RING),
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let ring = product(&[self.ring.unwrap_or(0), self.words()]);
        let tokens = args.rows.div_ceil(args.heads.max(1));
        args.x.holds::<f32>(product(&[args.rows, self.dim]))
            && args.places.is_none_or(|m| m.holds::<i32>(tokens))
            && args.start < args.live.elements::<i32>()
            && args.state.holds::<u32>(ring)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces_of(args.rows, self.dim, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports `isa`, and `x` has these rows.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

impl Job for Piece<'_, KvAppendQ8> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (dim, words) = (self.kernel.dim, self.kernel.words());
        let mut rows = self.part(self.args.rows, 1);
        if let Some(ring) = self.kernel.ring {
            // If several rows have the same place, the last one is kept.
            let first = self.args.rows.saturating_sub(ring);
            rows.start = rows.start.max(first).min(rows.end);
        }
        // SAFETY: the table is read only.
        let start = unsafe { live_value(self.args.live, self.args.start) };
        for row in rows {
            let at = start + row;
            let heads = self.args.heads.max(1);
            let place = match self.args.places {
                None => self.kernel.ring.map_or(at, |n| at % n),
                // SAFETY: there is a place for each token; no one writes them.
                Some(places) => match unsafe { place(places, row / heads) } {
                    None => continue,
                    Some(place) => place.saturating_mul(heads).saturating_add(row % heads),
                },
            };
            // A padded length may reach beyond the state.
            if place.saturating_add(1).saturating_mul(words) > self.args.state.elements::<u32>() {
                continue;
            }
            // SAFETY: `x` has the row; the row of the state is inside its memory and belongs to
            // this piece.
            unsafe {
                let x = self.args.x.as_ptr::<f32>().cast_const().add(row * dim);
                let to = self.args.state.as_ptr::<u32>().add(place * words);
                encode::<S>(x, dim, to);
            }
        }
    }
}

/// Quantizes a row of `dim` elements, a multiple of 4.
#[inline(always)]
unsafe fn encode<S: Simd>(x: *const f32, dim: usize, to: *mut u32) {
    unsafe {
        let whole = dim / S::LANES * S::LANES;
        let mut most = S::splat(0.0);
        for i in (0..whole).step_by(S::LANES) {
            most = S::max(S::abs(S::load(x.add(i))), most);
        }
        let mut most = S::largest(most);
        for i in whole..dim {
            most = most.max((*x.add(i)).abs());
        }
        let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
        let bytes = to.cast::<i8>();
        for i in (0..whole).step_by(S::LANES) {
            let mut lanes = [0f32; 16];
            S::store(
                lanes.as_mut_ptr(),
                S::round(S::mul(S::load(x.add(i)), S::splat(inverse))),
            );
            for (k, v) in lanes.iter().take(S::LANES).enumerate() {
                *bytes.add(i + k) = *v as i32 as i8;
            }
        }
        for i in whole..dim {
            *bytes.add(i) = (*x.add(i) * inverse).round_ties_even() as i32 as i8;
        }
        *to.add(dim / 4) = (most / 127.0).to_bits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, memory, run, spec};
    use crate::tensor::DType;

    #[test]
    fn rows_are_encoded_like_the_reference() {
        for (rows, dim, start, size, ring, heads) in [
            (6, 64, 9, 30, None, 0),
            (3, 12, 0, 3, None, 0),
            (700, 20, 3, 800, None, 0),
            (9, 8, 5, 7, Some(7), 0),
            // At places.
            (8, 12, 0, 9, None, 2),
        ] {
            let mut places = vec![3, -1, 0, 2];
            let mut random = Random(2);
            let mut x = random.floats(rows * dim);
            x[..dim].fill(0.0);
            let mut live = vec![start];
            let words = dim / 4 + 1;
            let mut want = vec![0u32; size * words];
            for (i, row) in x.chunks_exact(dim).enumerate() {
                let mut at = (start as usize + i) % ring.unwrap_or(usize::MAX);
                if let Some(token) = usize::checked_div(i, heads) {
                    let Ok(place) = usize::try_from(places[token]) else {
                        continue;
                    };
                    at = place * heads + i % heads;
                }
                let most = row.iter().fold(0f32, |m, v| m.max(v.abs()));
                let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
                let code = |v: &f32| ((v * inverse).round_ties_even() as i8).cast_unsigned();
                for (w, four) in row.chunks_exact(4).enumerate() {
                    want[at * words + w] = u32::from_le_bytes([0, 1, 2, 3].map(|k| code(&four[k])));
                }
                want[at * words + words - 1] = (most / 127.0).to_bits();
            }
            let mut defines = vec![("DIM", dim as i64)];
            defines.extend(ring.map(|n| ("RING", n as i64)));
            let spec = spec(
                &defines,
                &[Some(DType::F32), None, Some(DType::I32), Some(DType::I32)],
            );
            for isa in Isa::supported() {
                let mut state = vec![0u32; size * words];
                let y = memory(&mut state);
                let places = (heads > 0).then(|| memory(&mut places));
                let operands = [Some(memory(&mut x)), places, Some(memory(&mut live)), Some(y)];
                let words = [rows as u32, 0, heads as u32];
                run::<KvAppendQ8>(&spec, isa, &words, &operands, y, false, 2);
                assert_eq!(state, want, "{isa:?}");
            }
        }
    }
}
