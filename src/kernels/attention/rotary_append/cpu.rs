//! Applies rotary embedding to queries and new keys, and appends keys and values to their states.

use crate::backend::cpu::args::{
    Bound, Memory, NativeKernel, Scratch, Store, dtype, part, pieces_of, product, reach,
};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::kv_append::cpu::{has_halves, live_value, place, store_row};
use crate::kernels::rotary::cpu::{Turn, turn};
use std::ops::Range;

type Args = super::Args<Bound>;

/// The kernel `rotary_append`.
pub struct RotaryAppend {
    isa: Isa,
    neighbors: bool,
    /// Whether the states of keys and of values hold halves.
    halves: [bool; 2],
}

impl Args {
    /// Number of tokens.
    fn tokens(&self) -> usize {
        self.queries
            .div_ceil(product(&[self.heads, self.dim]).max(1))
            .max(self.count.div_ceil(product(&[self.kv_heads, self.dim]).max(1)))
    }
}

impl RotaryAppend {
    fn turn(&self, args: &Args) -> Turn {
        Turn {
            dim: args.dim,
            angles: args.angles,
            neighbors: self.neighbors,
        }
    }
}

impl NativeKernel for RotaryAppend {
    type Signature = super::Args;
    const HALVES: &'static [&'static str] = &["keys", "values"];

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let halves = [has_halves(dtype(spec, 8))?, has_halves(dtype(spec, 9))?];
        Some(Self {
            isa,
            neighbors: spec.defines.contains_key(crate::kernels::rotary::NEIGHBOURS),
            halves,
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args {
            dim, queries, count, ..
        } = *args;
        if dim == 0 {
            return true;
        }
        let angles = reach(&[[args.tokens(), args.angles]], self.turn(args).reads());
        // Rows outside of the states are skipped: their place depends on a live value.
        dim.is_multiple_of(2)
            && queries.is_multiple_of(dim)
            && count.is_multiple_of(dim)
            && args.q.holds::<f32>(queries)
            && args.y.holds::<f32>(queries)
            && args.k.holds::<f32>(count)
            && args.v.holds::<f32>(count)
            && args.cosine.holds::<f32>(angles)
            && args.sine.holds::<f32>(angles)
            && args.places.is_none_or(|m| m.holds::<i32>(args.tokens()))
            && args.start < args.live.elements::<i32>()
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces_of(
            args.tokens(),
            (args.heads + 2 * args.kv_heads) * args.dim / 3,
            threads,
        )
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let tokens = part(args.tokens(), 1, piece, pieces);
        // SAFETY: the table is read only.
        let start = unsafe { live_value(args.live, args.start) };
        let turn = self.turn(args);
        let job = Tokens {
            args,
            store,
            tokens,
            start,
            turn,
            halves: self.halves,
            scratch,
        };
        // SAFETY: the processor supports `isa`; the operands fit.
        unsafe { simd::run(self.isa, job) }
    }
}

struct Tokens<'a, 'b> {
    args: &'a Args,
    store: &'a Store<'b>,
    tokens: Range<usize>,
    /// The first element of the states that is written.
    start: usize,
    turn: Turn,
    halves: [bool; 2],
    scratch: &'a mut Scratch,
}

impl Job for Tokens<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let args = self.args;
        let (dim, row, kv_row) = (args.dim, args.heads * args.dim, args.kv_heads * args.dim);
        if dim == 0 {
            return;
        }
        for token in self.tokens {
            // SAFETY: the operands have these elements; the rows of a token belong to the piece.
            unsafe {
                let at = |m: Memory, i: usize| m.as_ptr::<f32>().cast_const().add(i);
                let angle = token * args.angles;
                let (cosine, sine) = (at(args.cosine, angle), at(args.sine, angle));
                for i in (token * row..((token + 1) * row).min(args.queries)).step_by(dim) {
                    if let Some(y) = self.store.address(i) {
                        turn::<S>(self.turn, at(args.q, i), cosine, sine, y);
                    } else {
                        let values = self.scratch.floats(dim);
                        turn::<S>(self.turn, at(args.q, i), cosine, sine, values.as_mut_ptr());
                        self.store.put(i, values, None);
                    }
                }
                let end = ((token + 1) * kv_row).min(args.count);
                let first = match args.places {
                    None => self.start + token * kv_row,
                    Some(places) => match place(places, token) {
                        None => continue,
                        // A place that is too large is outside of the states.
                        Some(place) => place.saturating_mul(kv_row).min(usize::MAX / 2),
                    },
                };
                for i in (token * kv_row..end).step_by(dim) {
                    let to = first + i - token * kv_row;
                    let key = self.scratch.floats(dim).as_mut_ptr();
                    turn::<S>(self.turn, at(args.k, i), cosine, sine, key);
                    store_row::<S>(key, args.keys, to..to + dim, self.halves[0]);
                }
                if let Some(count) = end.checked_sub(token * kv_row) {
                    let i = token * kv_row;
                    store_row::<S>(at(args.v, i), args.values, first..first + count, self.halves[1]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, compare, memory, run, spec};
    use crate::kernels::rotary::cpu::tests::reference;
    use crate::tensor::DType;
    use half::f16;

    struct Shape {
        tokens: usize,
        heads: usize,
        kv_heads: usize,
        dim: usize,
        angles: usize,
        neighbors: bool,
    }

    /// A state of `size` elements with new rows after `past` ones, or at places.
    fn placed(new: &[f64], row: usize, size: usize, past: usize, places: &[i32]) -> Vec<f64> {
        let mut all = vec![0.0; size];
        for (token, values) in new.chunks_exact(row).enumerate() {
            let given = places.get(token).map(|p| usize::try_from(*p));
            if let Ok(place) = given.unwrap_or(Ok(past + token)) {
                all[place * row..][..row].copy_from_slice(values);
            }
        }
        all
    }

    /// Appends after `past` rows, or scatters to places.
    fn check(s: &Shape, past: usize, places: &[i32]) {
        let mut places = places.to_vec();
        let mut random = Random(4);
        let (row, kv_row) = (s.heads * s.dim, s.kv_heads * s.dim);
        let mut q = random.floats(s.tokens * row);
        let [mut k, mut v] = [0, 1].map(|_| random.floats(s.tokens * kv_row));
        let [mut cosine, mut sine] = [0, 1].map(|_| random.floats(s.tokens * s.angles));
        let mut live = vec![0, 0, (past * kv_row) as i32];
        let turn = Turn {
            dim: s.dim,
            angles: s.angles,
            neighbors: s.neighbors,
        };
        let want_q = reference(turn, s.heads, &q, &cosine, &sine);
        let rotated = reference(turn, s.kv_heads, &k, &cosine, &sine);
        let size = (past + s.tokens + 2) * kv_row;
        let full = |new: &[f64]| placed(new, kv_row, size, past, &places);
        let values: Vec<f64> = v.iter().map(|v| f64::from(*v)).collect();
        let wants = [full(&rotated), full(&values)];
        let words = [q.len(), k.len(), s.heads, s.kv_heads, s.dim, s.angles, 2].map(|v| v as u32);
        for (isa, dtype, epilogue) in Isa::supported().flat_map(|i| {
            [
                (i, DType::F32, false),
                (i, DType::F16, false),
                (i, DType::F16, true),
            ]
        }) {
            let f32s = [Some(DType::F32); 5];
            let types = [
                &f32s[..],
                &[None, Some(DType::I32), Some(DType::F32), Some(dtype), Some(dtype)],
            ]
            .concat();
            let spec = spec(if s.neighbors { &[("NEIGHBOURS", 1)] } else { &[] }, &types);
            let mut y = vec![f32::NAN; q.len()];
            let mut floats = [vec![0f32; size], vec![0f32; size]];
            let mut halves = [vec![f16::ZERO; size], vec![f16::ZERO; size]];
            let [keys, values] = [0, 1].map(|i| match dtype {
                DType::F32 => memory(&mut floats[i]),
                _ => memory(&mut halves[i]),
            });
            let y_at = memory(&mut y);
            let inputs = [&mut q, &mut k, &mut v, &mut cosine, &mut sine].map(|m| Some(memory(m)));
            let operands = [
                &inputs[..],
                &[
                    (!places.is_empty()).then(|| memory(&mut places)),
                    Some(memory(&mut live)),
                    Some(y_at),
                    Some(keys),
                    Some(values),
                ],
            ]
            .concat();
            run::<RotaryAppend>(&spec, isa, &words, &operands, y_at, epilogue, 2);
            compare(&format!("{isa:?} queries"), &y, &want_q, epilogue, 1e-6);
            for (i, want) in wants.iter().enumerate() {
                let found: Vec<f32> = match dtype {
                    DType::F32 => floats[i].clone(),
                    _ => halves[i].iter().map(|h| h.to_f32()).collect(),
                };
                let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-3 };
                compare(
                    &format!("{isa:?} state {i} {dtype:?}"),
                    &found,
                    want,
                    false,
                    tolerance,
                );
            }
        }
    }

    #[test]
    fn queries_and_states_match() {
        let shape = |tokens, heads, kv_heads, dim, angles, neighbors| Shape {
            tokens,
            heads,
            kv_heads,
            dim,
            angles,
            neighbors,
        };
        check(&shape(1, 9, 3, 64, 64, false), 5, &[]);
        check(&shape(70, 9, 3, 64, 64, false), 0, &[]);
        check(&shape(3, 4, 2, 10, 10, false), 2, &[]);
        check(&shape(5, 4, 2, 8, 2, true), 3, &[]);
        check(&shape(5, 4, 4, 26, 13, true), 3, &[]);
        check(&shape(0, 4, 4, 26, 26, false), 3, &[]);
        check(&shape(3, 9, 3, 64, 64, false), 5, &[6, -1, 2]);
    }
}
