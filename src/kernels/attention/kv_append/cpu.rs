//! Appends elements to a state of f32 or f16.

use crate::backend::cpu::args::{Bound, Memory, NativeKernel, Scratch, Store, dtype, part, pieces_of};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::tensor::DType;
use half::f16;
use std::ops::Range;

type Args = super::Args<Bound>;

/// The kernel `kv_append`.
pub struct KvAppend {
    isa: Isa,
    halves: bool,
    /// Number of elements in the ring, if the state is one: later ones wrap around to its start.
    ring: Option<usize>,
}

/// Whether a state of this type has halves; `None` if it has no floats.
pub(crate) fn has_halves(dtype: Option<DType>) -> Option<bool> {
    match dtype? {
        DType::F32 => Some(false),
        DType::F16 => Some(true),
        _ => None,
    }
}

/// Entry `at` of the table of live values.
/// # Safety
/// No one writes the table at the same time.
pub(crate) unsafe fn live_value(live: Memory, at: usize) -> usize {
    let values = unsafe { live.slice::<i32>() };
    values.get(at).and_then(|v| usize::try_from(*v).ok()).unwrap_or(0)
}

impl NativeKernel for KvAppend {
    type Signature = super::Args;
    const HALVES: &'static [&'static str] = &["state"];

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let ring = spec
            .defines
            .get("RING")
            .and_then(|n| usize::try_from(*n).ok())
            .filter(|n| *n > 0);
        Some(Self {
            isa,
            halves: has_halves(dtype(spec, 3))?,
            ring,
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let rows = args.count.div_ceil(args.row.max(1));
        args.x.holds::<f32>(args.count)
            && args.places.is_none_or(|m| m.holds::<i32>(rows))
            && args.start < args.live.elements::<i32>()
            && self.ring.is_none_or(|n| n <= args.state.floats(self.halves))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces_of(args.count.div_ceil(64), 16, threads)
    }

    unsafe fn run(&self, args: &Args, _: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        if let Some(places) = args.places {
            let row = args.row.max(1);
            for i in part(args.count.div_ceil(row), 1, piece, pieces) {
                // SAFETY: there is a place for each row; no one writes them.
                let Some(place) = (unsafe { place(places, i) }) else {
                    continue;
                };
                let job = Copy {
                    from: args.x.as_ptr::<f32>().wrapping_add(i * row),
                    state: args.state,
                    range: place.saturating_mul(row)..place.saturating_add(1).saturating_mul(row),
                    halves: self.halves,
                };
                // SAFETY: the processor supports `isa`; `x` has this row; places are distinct.
                unsafe { simd::run(self.isa, job) };
            }
            return;
        }
        // SAFETY: the table is read only.
        let start = unsafe { live_value(args.live, args.start) };
        let mut range = part(args.count, 64, piece, pieces);
        let size = args.state.floats(self.halves);
        let ring = self.ring.unwrap_or(usize::MAX).min(size.max(1));
        if self.ring.is_none() {
            // A padded length may reach beyond the state.
            range.end = range.end.min(size.saturating_sub(start));
        } else {
            // If several elements have the same place, the last one is kept.
            range.start = range.start.max(args.count.saturating_sub(ring));
        }
        while range.start < range.end && size > 0 {
            let to = (start + range.start) % ring;
            let count = (range.end - range.start).min(ring - to);
            let job = Copy {
                from: args.x.as_ptr::<f32>().wrapping_add(range.start),
                state: args.state,
                range: to..to + count,
                halves: self.halves,
            };
            // SAFETY: the processor supports `isa`; `x` has `count` elements, and this piece owns
            // these elements of the state.
            unsafe { simd::run(self.isa, job) };
            range.start += count;
        }
    }
}

/// The row of a state that row `row` becomes, if any.
/// # Safety
/// `places` has that many elements, and no one writes them at the same time.
#[inline(always)]
pub(crate) unsafe fn place(places: Memory, row: usize) -> Option<usize> {
    let place = unsafe { *places.as_ptr::<i32>().add(row) };
    usize::try_from(place).ok()
}

/// Copies floats to elements `range` of a state.
struct Copy {
    from: *const f32,
    state: Memory,
    range: Range<usize>,
    halves: bool,
}

impl Job for Copy {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        unsafe { store_row::<S>(self.from, self.state, self.range, self.halves) }
    }
}

/// Copies floats to elements `range` of a state. It does nothing if they are out of bounds: a
/// padded length may reach beyond the state.
/// # Safety
/// That many floats can be read, and the caller owns these elements.
#[inline(always)]
pub(crate) unsafe fn store_row<S: Simd>(from: *const f32, state: Memory, range: Range<usize>, halves: bool) {
    let n = range.len();
    if range.end > state.floats(halves) {
        return;
    }
    // SAFETY: inside the memory.
    unsafe {
        if !halves {
            std::ptr::copy_nonoverlapping(from, state.as_ptr::<f32>().add(range.start), n);
            return;
        }
        let to = state.as_ptr::<f16>().add(range.start);
        let whole = n / S::LANES * S::LANES;
        for i in (0..whole).step_by(S::LANES) {
            S::store_f16(to.add(i), S::load(from.add(i)));
        }
        for i in whole..n {
            *to.add(i) = f16::from_f32(*from.add(i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, memory, run, spec};

    /// Appends, or with places of rows of 4 elements scatters.
    fn check(count: usize, start: usize, size: usize, ring: Option<i64>, places: &[i32]) {
        let mut places = places.to_vec();
        let mut random = Random(2);
        let mut x = random.floats(count);
        let mut live = vec![-1, start as i32];
        let ring_define: Vec<_> = ring.map(|n| ("RING", n)).into_iter().collect();
        let mut want = vec![9.0f32; size];
        for (i, v) in x.iter().enumerate() {
            let at = match places.get(i / 4) {
                None => start + i,
                Some(place) => usize::try_from(*place).map_or(usize::MAX, |p| 4 * p + i % 4),
            };
            if let Some(w) = want.get_mut(ring.map_or(at, |n| at % n as usize)) {
                *w = *v;
            }
        }
        for (isa, dtype) in Isa::supported().flat_map(|i| [(i, DType::F32), (i, DType::F16)]) {
            let spec = spec(
                &ring_define,
                &[Some(DType::F32), None, Some(DType::I32), Some(dtype)],
            );
            let (mut floats, mut halves) = (vec![9.0f32; size], vec![f16::from_f32(9.0); size]);
            let state = if dtype == DType::F32 {
                memory(&mut floats)
            } else {
                memory(&mut halves)
            };
            let scattered = (!places.is_empty()).then(|| memory(&mut places));
            let operands = [
                Some(memory(&mut x)),
                scattered,
                Some(memory(&mut live)),
                Some(state),
            ];
            run::<KvAppend>(&spec, isa, &[count as u32, 1, 4], &operands, state, false, 2);
            if dtype == DType::F32 {
                assert_eq!(floats, want, "{isa:?}");
            } else {
                assert!(
                    halves.iter().zip(&want).all(|(h, w)| *h == f16::from_f32(*w)),
                    "{isa:?}"
                );
            }
        }
    }

    #[test]
    fn elements_are_appended() {
        let append = |count, start, size, ring| check(count, start, size, ring, &[]);
        append(192, 64, 320, None);
        append(66, 10, 77, None);
        append(20_000, 30, 20_100, None);
        append(64, 300, 320, None);
        append(100, 150, 200, Some(200));
        append(500, 150, 200, Some(200));
        append(0, 5, 10, Some(10));
    }

    #[test]
    fn rows_go_to_their_places() {
        check(16, 0, 40, None, &[7, -1, 0, 9]);
        // The last place is outside of the state.
        check(12, 0, 40, None, &[9, 3, 10]);
    }
}
