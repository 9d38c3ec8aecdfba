//! Rotary position embedding.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, pieces_of, reach};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;

type Args = super::Args<Bound>;

/// The kernel `rotary`.
pub struct Rotary {
    isa: Isa,
    neighbors: bool,
}

/// How rows of a head are rotated.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub dim: usize,
    /// Number of angles in a row.
    pub angles: usize,
    /// Pairs are neighboring elements, not elements of the two halves.
    pub neighbors: bool,
}

impl Turn {
    /// Number of angles of a row that are read.
    pub fn reads(&self) -> usize {
        if self.neighbors {
            self.angles.min(self.dim / 2)
        } else {
            self.dim
        }
    }
}

impl Rotary {
    fn turn(&self, args: &Args) -> Turn {
        Turn {
            dim: args.dim,
            angles: args.angles,
            neighbors: self.neighbors,
        }
    }
}

impl NativeKernel for Rotary {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        Some(Self {
            isa,
            neighbors: spec.defines.contains_key(super::NEIGHBOURS),
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let rows = args.count / args.dim.max(1);
        let turns = rows.div_ceil(args.heads.max(1));
        let angles = reach(&[[turns, args.angles]], self.turn(args).reads());
        args.dim.is_multiple_of(2)
            && args.x.holds::<f32>(args.count)
            && args.y.holds::<f32>(args.count)
            && args.cosine.holds::<f32>(angles)
            && args.sine.holds::<f32>(angles)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces_of(args.count / args.dim.max(1), args.dim / 2, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports `isa`; the operands fit.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

impl Job for Piece<'_, Rotary> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Args {
            heads,
            dim,
            angles,
            x,
            cosine,
            sine,
            ..
        } = *self.args;
        let own = self.kernel.turn(self.args);
        for row in self.part(self.args.count / dim.max(1), 1) {
            let angle = row / heads.max(1) * angles;
            // SAFETY: the operands have these elements; rows belong to the piece.
            unsafe {
                let x = x.as_ptr::<f32>().cast_const().add(row * dim);
                let cosine = cosine.as_ptr::<f32>().cast_const().add(angle);
                let sine = sine.as_ptr::<f32>().cast_const().add(angle);
                if let Some(y) = self.store.address(row * dim) {
                    turn::<S>(own, x, cosine, sine, y);
                } else {
                    let values = self.scratch.floats(dim);
                    turn::<S>(own, x, cosine, sine, values.as_mut_ptr());
                    self.store.put(row * dim, values, None);
                }
            }
        }
    }
}

/// Rotates a row of a head; `y` may be `x`.
/// # Safety
/// The row has `dim` elements, an even number. There are as many angles as [`Turn::reads`] states.
#[inline(always)]
pub(crate) unsafe fn turn<S: Simd>(
    turn: Turn,
    x: *const f32,
    cosine: *const f32,
    sine: *const f32,
    y: *mut f32,
) {
    let half = turn.dim / 2;
    unsafe {
        if turn.neighbors {
            for j in 0..half {
                let (a, b) = (*x.add(2 * j), *x.add(2 * j + 1));
                let (c, s) = if j < turn.angles {
                    (*cosine.add(j), *sine.add(j))
                } else {
                    (1.0, 0.0)
                };
                *y.add(2 * j) = a * c - b * s;
                *y.add(2 * j + 1) = b * c + a * s;
            }
            return;
        }
        let whole = half / S::LANES * S::LANES;
        for j in (0..whole).step_by(S::LANES) {
            let (a, b) = (S::load(x.add(j)), S::load(x.add(j + half)));
            let low = S::sub(S::mul(a, S::load(cosine.add(j))), S::mul(b, S::load(sine.add(j))));
            let high = S::fma(
                b,
                S::load(cosine.add(j + half)),
                S::mul(a, S::load(sine.add(j + half))),
            );
            S::store(y.add(j), low);
            S::store(y.add(j + half), high);
        }
        for j in whole..half {
            let (a, b) = (*x.add(j), *x.add(j + half));
            *y.add(j) = a * *cosine.add(j) - b * *sine.add(j);
            *y.add(j + half) = b * *cosine.add(j + half) + a * *sine.add(j + half);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, compare, memory, run, spec};
    use crate::tensor::DType;

    /// The rotated rows of `heads` heads for each row of angles.
    pub fn reference(turn: Turn, heads: usize, x: &[f32], cosine: &[f32], sine: &[f32]) -> Vec<f64> {
        let mut y = Vec::new();
        for (row, x) in x.chunks_exact(turn.dim).enumerate() {
            let half = turn.dim / 2;
            for (j, v) in x.iter().enumerate() {
                let (angle, other, sign) = match turn.neighbors {
                    true => (j / 2, j ^ 1, if j % 2 == 0 { -1.0 } else { 1.0 }),
                    false if j < half => (j, j + half, -1.0),
                    false => (j, j - half, 1.0),
                };
                let at = row / heads * turn.angles + angle;
                y.push(match angle < turn.angles {
                    true => f64::from(*v * cosine[at]) + sign * f64::from(x[other]) * f64::from(sine[at]),
                    false => f64::from(*v),
                });
            }
        }
        y
    }

    #[test]
    fn halves_and_neighbors_match() {
        let mut random = Random(11);
        for (rows, heads, dim, angles, neighbors) in [
            (5, 3, 64, 64, false),
            (1, 9, 64, 64, false),
            (3, 2, 6, 6, false),
            (7, 1, 130, 130, false),
            (200, 9, 64, 64, false),
            (5, 3, 64, 16, true),
            (3, 2, 6, 1, true),
            (7, 1, 130, 65, true),
            (0, 1, 2, 2, false),
        ] {
            let x = random.floats(rows * heads * dim);
            let (mut cosine, mut sine) = (random.floats(rows * angles), random.floats(rows * angles));
            let want = reference(
                Turn {
                    dim,
                    angles,
                    neighbors,
                },
                heads,
                &x,
                &cosine,
                &sine,
            );
            let spec = spec(
                if neighbors {
                    &[(super::super::NEIGHBOURS, 1)]
                } else {
                    &[]
                },
                &[Some(DType::F32); 4],
            );
            for (isa, epilogue) in Isa::supported().flat_map(|i| [(i, false), (i, true)]) {
                let (mut x, mut y) = (x.clone(), vec![f32::NAN; x.len()]);
                let y_at = memory(&mut y);
                let operands = [memory(&mut x), memory(&mut cosine), memory(&mut sine), y_at].map(Some);
                let words = [x.len(), heads, dim, angles].map(|v| v as u32);
                run::<Rotary>(&spec, isa, &words, &operands, y_at, epilogue, 2);
                compare(&format!("{isa:?} {dim} {neighbors}"), &y, &want, epilogue, 1e-6);
            }
        }
    }
}
