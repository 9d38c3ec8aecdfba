//! Interpolation along one or two axes: `y[o, i, m, j, t]` from `x[o, in_h, m, in_w, t]`.

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, dtype, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm;
use crate::tensor::DType;
use crate::tensor::resample::{Axis, Mode, Nearest, Positions};

type Args = super::Args<Bound>;

/// How positions of results map to positions of the operand (`COORDINATES`).
#[derive(Clone, Copy, PartialEq)]
enum Coordinates {
    /// That of result `i` is `(i * step + first) / unit`.
    Line,
    /// The same, but a single result is at 0.
    OneIsFirst,
    /// A region.
    Crop,
}

pub struct Resize {
    isa: Isa,
    coordinates: Coordinates,
    mode: Mode,
    /// Whether both axes are resized.
    high: bool,
    /// Whether elements outside have weight 0.
    inside_only: bool,
    /// Whether elements are words, which are only copied.
    words: bool,
}

impl NativeKernel for Resize {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let number = |name| spec.defines.get(name).copied();
        let is_set = |name| number(name).is_some_and(|v| v != 0);
        let coordinates = match number(super::COORDINATES)? {
            0 => Coordinates::Line,
            1 => Coordinates::OneIsFirst,
            2 => Coordinates::Crop,
            _ => return None,
        };
        let mode = match number(super::TAPS)? {
            1 => Mode::Nearest(*Nearest::ALL.get(usize::try_from(number(super::ROUNDING)?).ok()?)?),
            2 => Mode::Linear,
            4 => Mode::Cubic,
            _ => return None,
        };
        let x = dtype(spec, 0)?;
        let words = x != DType::F32;
        (!words || x != DType::F16 && mode.taps() == 1).then_some(Self {
            isa,
            coordinates,
            mode,
            high: is_set(super::HIGH),
            inside_only: is_set(super::INSIDE_ONLY),
            words,
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let (rows, high) = (rows(args), product(&[args.mid, args.out_h]));
        let row = product(&[args.in_h, args.mid, args.in_w, args.inner]);
        // Elements of a row have numbers below that of `OUTSIDE`.
        let numbered = product(&[args.in_w, args.inner]) < OUTSIDE as usize;
        let held = || args.x.holds::<f32>(product(&[rows.div_ceil(high), row]));
        rows == 0 || high > 0 && row > 0 && numbered && held()
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let work = args.count.saturating_mul(4 * (2 * self.mode.taps() + 1));
        gemm::pieces(work, threads).min(rows(args)).max(1)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        // SAFETY: the processor supports the instruction set.
        unsafe { simd::run(self.isa, Piece::new(self, args, store, piece, pieces, scratch)) }
    }
}

/// Rows of results.
fn rows(args: &Args) -> usize {
    args.count.checked_div(args.out_w * args.inner).unwrap_or(0)
}

/// The element of results outside the operand.
const OUTSIDE: u32 = u32::MAX;

impl Resize {
    /// The axes `in_h` and `in_w`.
    fn axes(&self, a: &Args) -> [Axis; 2] {
        let axis = |size, out, [step, unit]: [usize; 2], first: i32, bounds| Axis {
            size,
            positions: match self.coordinates {
                Coordinates::Crop => Positions::Region { bounds, out },
                Coordinates::OneIsFirst if out <= 1 => Positions::FIRST,
                _ => Positions::Line {
                    step: step as i128,
                    first: first.into(),
                    unit: unit as i128,
                },
            },
            mode: self.mode,
            cubic: a.cubic,
            inside_only: self.inside_only,
            shrinks: step > unit,
            stretch: 1.0,
        };
        let mut high = axis(
            a.in_h,
            a.out_h,
            [a.step_h, a.unit_h],
            a.first_h,
            (a.start_h, a.end_h),
        );
        if !self.high {
            (high.positions, high.mode) = (Positions::SAME, Mode::Nearest(Nearest::Floor));
        }
        let wide = axis(
            a.in_w,
            a.out_w,
            [a.step_w, a.unit_w],
            a.first_w,
            (a.start_w, a.end_w),
        );
        [high, wide]
    }
}

impl Job for Piece<'_, Resize> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (kernel, args, rows) = (self.kernel, self.args, self.part(rows(self.args), 1));
        if rows.is_empty() {
            return;
        }
        let ([high, wide], count) = (kernel.axes(args), kernel.mode.taps());
        let (from, to) = (args.in_w * args.inner, args.out_w * args.inner);
        // Words are moved as floats, which keeps their bits.
        let outside = match kernel.words {
            true => f32::from_bits((args.outside as i32).cast_unsigned()),
            false => args.outside,
        };
        let space = self.scratch.floats(from + to + 2 * count * args.out_w);
        let (x, rest) = space.split_at_mut(from);
        let (y, rest) = rest.split_at_mut(to);
        // Tap t of result j is at `t * out_w + j`.
        let (weights, elements) = rest.split_at_mut(count * args.out_w);
        let elements = bytemuck::cast_slice_mut::<f32, u32>(elements);
        let mut taps = [(0, 0f32); 4];
        for j in 0..args.out_w {
            let inside = wide.taps(j, &mut taps[..count]);
            for (t, (element, weight)) in taps[..count].iter().enumerate() {
                let element = (element * args.inner) as u32;
                elements[t * args.out_w + j] = if inside { element } else { OUTSIDE };
                weights[t * args.out_w + j] = *weight;
            }
        }
        let taps = &mut taps[..high.mode.taps()];
        for row in rows {
            let (m, i) = (row % args.mid, row / args.mid % args.out_h);
            let o = row / args.mid / args.out_h;
            if high.taps(i, taps) {
                // SAFETY: rows of x, which fits.
                let row = |element: usize| unsafe {
                    let at = ((o * args.in_h + element) * args.mid + m) * from;
                    std::slice::from_raw_parts(args.x.as_ptr::<f32>().add(at), from)
                };
                let (first, w) = taps[0];
                let source = if taps.len() == 1 {
                    row(first)
                } else {
                    x.iter_mut().zip(row(first)).for_each(|(s, v)| *s = w * v);
                    for (element, w) in taps[1..].iter().copied() {
                        x.iter_mut().zip(row(element)).for_each(|(s, v)| *s += w * v);
                    }
                    &*x
                };
                along(source, elements, weights, args.inner, outside, y);
            } else {
                y.fill(outside);
            }
            // SAFETY: results of this piece.
            unsafe { self.store.put(row * to, y, None) };
        }
    }
}

/// Computes a row of results from a row of elements. `elements` and `weights` have a row for each
/// tap.
#[inline(always)]
fn along(x: &[f32], elements: &[u32], weights: &[f32], inner: usize, outside: f32, y: &mut [f32]) {
    let out = y.len() / inner;
    let rows = elements.chunks_exact(out).zip(weights.chunks_exact(out));
    let taps = rows.len();
    for (t, (elements, weights)) in rows.enumerate() {
        let pairs = elements.iter().zip(weights);
        let put = |y: &mut f32, v: f32, w: f32| {
            *y = if taps == 1 {
                v
            } else if t == 0 {
                w * v
            } else {
                *y + w * v
            };
        };
        if inner == 1 {
            for (y, (e, w)) in y.iter_mut().zip(pairs) {
                match x.get(*e as usize) {
                    Some(v) => put(y, *v, *w),
                    None => *y = outside,
                }
            }
        } else {
            for (y, (e, w)) in y.chunks_exact_mut(inner).zip(pairs) {
                match x.get(*e as usize..) {
                    Some(x) => y.iter_mut().zip(x).for_each(|(y, v)| put(y, *v, *w)),
                    None => y.fill(outside),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::kernel::Arguments;
    use crate::kernels::cpu::testing::{self, Case};

    /// o, `in_h`, `out_h`, mid, `in_w`, `out_w`, inner.
    type Sizes = [usize; 7];

    const SIZES: [Sizes; 6] = [
        [3, 5, 10, 1, 7, 21, 1],
        [2, 9, 4, 2, 8, 3, 3],
        [1, 1, 1, 1, 13, 26, 1],
        [4, 1, 1, 1, 5, 9, 2],
        [1, 6, 1, 3, 4, 1, 1],
        [2, 4, 8, 1, 20, 40, 16],
    ];

    fn args(s: &Sizes, high: bool) -> Vec<u32> {
        let count = s[0] * s[2] * s[3] * s[5] * s[6];
        let [_, in_h, out_h, mid, in_w, out_w, inner] = s.map(|v| v as u32);
        let (step_h, unit_h) = if high { (2 * in_h, 2 * out_h) } else { (2, 2) };
        let sizes = [count as u32, in_h, out_h, mid, in_w, out_w, inner];
        let steps = [step_h, unit_h, 2 * in_w, 2 * out_w];
        let first_h = (step_h as i32 - unit_h as i32) / 2;
        let firsts = [first_h, in_w as i32 - out_w as i32].map(i32::cast_unsigned);
        let floats = [0.1, 1.2, -0.2, 0.8, -0.75, 9.5].map(f32::to_bits);
        let lists: [&[u32]; 4] = [&sizes, &steps, &firsts, &floats];
        lists.concat()
    }

    fn reference(a: &Args, kernel: &Resize, x: &[f32]) -> Vec<f64> {
        let [high, wide] = kernel.axes(a);
        (0..a.count)
            .map(|at| {
                let (t, rest) = (at % a.inner, at / a.inner);
                let (j, rest) = (rest % a.out_w, rest / a.out_w);
                let (m, rest) = (rest % a.mid, rest / a.mid);
                let (i, o) = (rest % a.out_h, rest / a.out_h);
                let (mut rows, mut columns) = ([(0, 0f64); 4], [(0, 0f64); 4]);
                let rows = &mut rows[..high.mode.taps()];
                let columns = &mut columns[..wide.mode.taps()];
                if !high.taps(i, rows) || !wide.taps(j, columns) {
                    return f64::from(a.outside);
                }
                let mut sum = 0.0;
                for (row, u) in &*rows {
                    for (column, w) in &*columns {
                        let at = ((o * a.in_h + row) * a.mid + m) * a.in_w + column;
                        sum += u * w * f64::from(x[at * a.inner + t]);
                    }
                }
                sum
            })
            .collect()
    }

    #[test]
    fn all_modes_match() {
        for s in &SIZES {
            let x = testing::floats(8, s[0] * s[1] * s[3] * s[4] * s[6]);
            for mode in 0..3 * 5 * 3 * 2 {
                let (coordinates, rounding) = (mode % 3, mode / 3 % 5);
                let (taps, inside_only) = ([1, 2, 4][mode / 15 % 3], mode / 45);
                let high = s[1] != 1;
                let defines = vec![
                    ("COORDINATES", coordinates as i64),
                    ("ROUNDING", rounding as i64),
                    ("TAPS", taps),
                    ("HIGH", i64::from(high)),
                    ("INSIDE_ONLY", inside_only as i64),
                ];
                let spec = KernelSpec {
                    defines: defines.iter().copied().collect(),
                    operands: vec![Some(DType::F32); 2],
                    ..crate::kernels::cpu::blank()
                };
                let memory = testing::memory(&x);
                let words = args(s, high);
                let args = Args::read(&words, &[Some(memory); 2]).unwrap();
                let kernel = Resize::new(&spec, Isa::Portable).unwrap();
                let want = reference(&args, &kernel, &x);
                let name = format!("{s:?} {defines:?}");
                let operands = vec![Some((DType::F32, memory))];
                let case = Case::<Resize> {
                    words,
                    operands,
                    defines,
                    kernel: std::marker::PhantomData,
                };
                case.check(&want, 1e-5, &name);
            }
        }
    }

    #[test]
    fn nearest_integers_are_copied() {
        let x: Vec<u32> = (0..12).collect();
        let words = args(&[1, 3, 6, 1, 4, 8, 1], true);
        let y = testing::memory(&[0u32; 48]);
        let spec = KernelSpec {
            defines: [("COORDINATES", 0), ("ROUNDING", 2), ("TAPS", 1), ("HIGH", 1)]
                .into_iter()
                .collect(),
            operands: vec![Some(DType::I32); 2],
            ..crate::kernels::cpu::blank()
        };
        let args = Args::read(&words, &[Some(testing::memory(&x)), Some(y)]).unwrap();
        let kernel = Resize::new(&spec, Isa::best()).unwrap();
        let store = Store { y, epilogue: None };
        // SAFETY: one piece does all.
        let got = unsafe {
            kernel.run(&args, &store, 0, 1, &mut Scratch::default());
            y.slice::<u32>()
        };
        let want: Vec<u32> = (0..48).map(|i| i / 8 / 2 * 4 + i % 8 / 2).collect();
        assert_eq!(got, want);
    }
}
