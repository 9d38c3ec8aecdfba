//! Interpolation along one or two axes: `y[o, i, m, j, t]` from `x[o, in_h, m, in_w, t]`.

use crate::backend::cpu::args::{Bound, Kernel, Memory, Scratch, Store, dtype, part, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::gemm;
use crate::tensor::DType;
use std::cmp::Ordering;
use std::ops::Range;

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

/// How the nearest element is chosen (`ROUNDING`).
#[derive(Clone, Copy, PartialEq)]
enum Rounding {
    Down,
    Up,
    NearestOrDown,
    NearestOrUp,
    UpIfSmaller,
}

#[derive(Clone, Copy)]
struct Mode {
    coordinates: Coordinates,
    rounding: Rounding,
    /// Elements per result along an axis: 1 (nearest), 2 (linear) or 4 (cubic).
    taps: usize,
    /// Whether both axes are resized.
    high: bool,
    /// Whether elements outside have weight 0.
    inside_only: bool,
}

pub struct Resize {
    isa: Isa,
    mode: Mode,
    x: DType,
}

impl Kernel for Resize {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let number = |name| spec.defines.get(name).copied();
        let is_set = |name| number(name).is_some_and(|v| v != 0);
        let coordinates = match number("COORDINATES")? {
            0 => Coordinates::Line,
            1 => Coordinates::OneIsFirst,
            2 => Coordinates::Crop,
            _ => return None,
        };
        let rounding = match number("ROUNDING").unwrap_or(0) {
            0 => Rounding::Down,
            1 => Rounding::Up,
            2 => Rounding::NearestOrDown,
            3 => Rounding::NearestOrUp,
            4 => Rounding::UpIfSmaller,
            _ => return None,
        };
        let taps = match number("TAPS")? {
            1 => 1,
            2 => 2,
            4 => 4,
            _ => return None,
        };
        let mode = Mode {
            coordinates,
            rounding,
            taps,
            high: is_set("HIGH"),
            inside_only: is_set("INSIDE_ONLY"),
        };
        let x = dtype(spec, 0)?;
        // Elements of other types are words, which are only copied.
        (x == DType::F32 || x != DType::F16 && taps == 1).then_some(Self { isa, mode, x })
    }

    fn fits(&self, args: &Args) -> bool {
        let (rows, high) = (rows(args), product(&[args.mid, args.out_h]));
        let row = product(&[args.in_h, args.mid, args.in_w, args.inner]);
        rows == 0 || high > 0 && args.x.holds::<f32>(product(&[rows.div_ceil(high), row]))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let work = args.count.saturating_mul(4 * (2 * self.mode.taps + 1));
        gemm::pieces(work, threads).min(rows(args)).max(1)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let rows = part(rows(args), 1, piece, pieces);
        let (mode, y) = (self.mode, store.y);
        if rows.is_empty() || args.in_h == 0 || args.in_w == 0 {
            return;
        }
        // SAFETY: the processor supports the instruction set; the rest by the contract.
        unsafe {
            if self.x == DType::F32 {
                simd::run(
                    self.isa,
                    Floats {
                        args,
                        mode,
                        store,
                        rows,
                        scratch,
                    },
                );
            } else {
                #[allow(clippy::cast_possible_truncation, reason = "saturates")]
                let outside = (args.outside as i32).cast_unsigned();
                words(args, mode, y, rows, outside, scratch);
            }
        }
    }
}

/// Rows of results.
fn rows(args: &Args) -> usize {
    args.count.checked_div(args.out_w * args.inner).unwrap_or(0)
}

/// An axis.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    out: usize,
    step: u32,
    first: i32,
    unit: u32,
    start: f32,
    end: f32,
    cubic: f32,
}

/// A position in the operand: `low + part`, where `part` is at least 0 and less than 1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Position {
    low: i64,
    part: f64,
    /// How `part` compares with one half, exactly.
    half: Ordering,
}

impl Position {
    #[allow(clippy::cast_possible_truncation, reason = "positions are near the operand")]
    fn of(x: f64) -> Self {
        let part = x - x.floor();
        Self {
            low: x.floor() as i64,
            part,
            half: part.total_cmp(&0.5),
        }
    }

    /// The position `over / unit`.
    fn fraction(over: i128, unit: u32) -> Self {
        let unit = i128::from(unit.max(1));
        let (low, rest) = (over.div_euclid(unit), over.rem_euclid(unit));
        Self {
            low: i64::try_from(low).unwrap_or(i64::MAX),
            part: rest as f64 / unit as f64,
            half: (2 * rest).cmp(&unit),
        }
    }
}

/// The elements that make a result along an axis.
#[derive(Clone, Copy)]
struct Taps {
    elements: [u32; 4],
    weights: [f32; 4],
    is_inside: bool,
}

fn axes(args: &Args) -> [Axis; 2] {
    let high = Axis {
        size: args.in_h,
        out: args.out_h,
        step: word(args.step_h),
        first: args.first_h,
        unit: word(args.unit_h),
        start: args.start_h,
        end: args.end_h,
        cubic: args.cubic,
    };
    let wide = Axis {
        size: args.in_w,
        out: args.out_w,
        step: word(args.step_w),
        first: args.first_w,
        unit: word(args.unit_w),
        start: args.start_w,
        end: args.end_w,
        cubic: args.cubic,
    };
    [high, wide]
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "elements of an axis of at most u32::MAX elements"
)]
impl Axis {
    /// The position of result `i` in the operand.
    fn position(self, coordinates: Coordinates, i: usize) -> Position {
        match coordinates {
            Coordinates::OneIsFirst if self.out <= 1 => Position::of(0.0),
            Coordinates::Line | Coordinates::OneIsFirst => {
                let over = i as i128 * i128::from(self.step) + i128::from(self.first);
                Position::fraction(over, self.unit)
            }
            Coordinates::Crop => {
                let (start, end) = (f64::from(self.start), f64::from(self.end));
                let last = self.size as f64 - 1.0;
                Position::of(if self.out <= 1 {
                    0.5 * (start + end) * last
                } else {
                    start * last + i as f64 * (end - start) * last / (self.out - 1) as f64
                })
            }
        }
    }

    fn nearest(self, rounding: Rounding, at: Position) -> u32 {
        let up = match rounding {
            Rounding::NearestOrDown => at.half.is_gt(),
            Rounding::NearestOrUp => at.half.is_ge(),
            Rounding::Up => at.part > 0.0,
            Rounding::UpIfSmaller => self.step > self.unit && at.part > 0.0,
            Rounding::Down => false,
        };
        self.inside(at.low.saturating_add(i64::from(up)))
    }

    /// The nearest element of the operand.
    fn inside(self, at: i64) -> u32 {
        at.clamp(0, self.size as i64 - 1) as u32
    }

    fn taps(self, mode: Mode, i: usize) -> Taps {
        let last = self.size as i64 - 1;
        let mut at = self.position(mode.coordinates, i);
        let within = (0..last).contains(&at.low) && at.part < 1.0;
        let mut taps = Taps {
            elements: [0; 4],
            weights: [1.0, 0.0, 0.0, 0.0],
            is_inside: mode.coordinates != Coordinates::Crop || within || at.low == last && at.part == 0.0,
        };
        if mode.taps == 1 {
            taps.elements[0] = self.nearest(mode.rounding, at);
            return taps;
        }
        if mode.taps == 2 && !(0..last).contains(&at.low) {
            (at.low, at.part) = (at.low.clamp(0, last), 0.0);
        }
        let mut sum = 0.0;
        let found = taps.elements.iter_mut().zip(&mut taps.weights);
        for (t, (element, weight)) in found.take(mode.taps).enumerate() {
            let beside = t as i64 - (mode.taps as i64 / 2 - 1);
            let place = at.low.saturating_add(beside);
            let distance = (at.part - beside as f64).abs() as f32;
            *weight = if mode.taps == 4 {
                cubic(self.cubic, distance)
            } else {
                (1.0 - distance).max(0.0)
            };
            if mode.inside_only && !(0..=last).contains(&place) {
                *weight = 0.0;
            }
            sum += *weight;
            *element = self.inside(place);
        }
        taps.weights.iter_mut().take(mode.taps).for_each(|w| *w /= sum);
        taps
    }
}

/// The cubic convolution kernel with parameter `a`.
fn cubic(a: f32, d: f32) -> f32 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}

/// An element as a `u32`.
fn word(element: usize) -> u32 {
    u32::try_from(element).unwrap_or(u32::MAX)
}

/// What row `row` of results is made from: the first element of each row of x, and the taps.
fn row_of(args: &Args, mode: Mode, axis: Axis, row: usize) -> ([usize; 4], Taps) {
    let (m, i, o) = (
        row % args.mid,
        row / args.mid % args.out_h,
        row / args.mid / args.out_h,
    );
    let taps = if mode.high {
        axis.taps(mode, i)
    } else {
        let elements = [word(i.min(args.in_h - 1)); 4];
        Taps {
            elements,
            weights: [1.0, 0.0, 0.0, 0.0],
            is_inside: true,
        }
    };
    let width = args.in_w * args.inner;
    let start = |element: u32| ((o * args.in_h + element as usize) * args.mid + m) * width;
    (taps.elements.map(start), taps)
}

/// Fills rows of results with the nearest words of the operand.
/// # Safety
/// The operands fit, and the caller owns the results.
unsafe fn words(args: &Args, mode: Mode, y: Memory, rows: Range<usize>, outside: u32, scratch: &mut Scratch) {
    let [high, wide] = axes(args);
    let (width, inner) = (args.out_w * args.inner, args.inner);
    let columns = scratch.of::<u32>(args.out_w);
    for (j, column) in columns.iter_mut().enumerate() {
        let taps = wide.taps(mode, j);
        *column = if taps.is_inside {
            taps.elements[0]
        } else {
            u32::MAX
        };
    }
    for row in rows {
        let (starts, taps) = row_of(args, mode, high, row);
        // SAFETY: a row of results of this piece, and one of x.
        let (y, x) = unsafe {
            let x = args.x.as_ptr::<u32>().add(starts[0]);
            (
                y.slice_mut::<u32>(row * width..(row + 1) * width),
                std::slice::from_raw_parts(x, args.in_w * inner),
            )
        };
        for (y, column) in y.chunks_exact_mut(inner).zip(&*columns) {
            let at = *column as usize * inner;
            match x.get(at..at + inner) {
                Some(x) if taps.is_inside => y.copy_from_slice(x),
                _ => y.fill(outside),
            }
        }
    }
}

struct Floats<'a> {
    args: &'a Args,
    mode: Mode,
    store: &'a Store<'a>,
    rows: Range<usize>,
    scratch: &'a mut Scratch,
}

impl Job for Floats<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            args,
            mode,
            store,
            rows,
            scratch,
        } = self;
        let [high, wide] = axes(args);
        let (from, to, inner, taps) = (
            args.in_w * args.inner,
            args.out_w * args.inner,
            args.inner,
            mode.taps,
        );
        let (x, rest) = scratch
            .floats(from + to + 2 * taps * args.out_w)
            .split_at_mut(from);
        let (y, rest) = rest.split_at_mut(to);
        // Tap t of result j is at `t * out_w + j`.
        let (weights, elements) = rest.split_at_mut(taps * args.out_w);
        let elements = bytemuck::cast_slice_mut::<f32, u32>(elements);
        let mut leaves = false;
        for j in 0..args.out_w {
            let found = wide.taps(mode, j);
            leaves |= !found.is_inside;
            for t in 0..taps {
                elements[t * args.out_w + j] = word(found.elements[t] as usize * inner);
                weights[t * args.out_w + j] = found.weights[t];
            }
        }
        for row in rows {
            let (starts, found) = row_of(args, mode, high, row);
            let sources = if mode.high { taps } else { 1 };
            if found.is_inside {
                // SAFETY: rows of x, which fits.
                let row = |a: usize| unsafe {
                    std::slice::from_raw_parts(args.x.as_ptr::<f32>().add(starts[a]), from)
                };
                let source = if sources == 1 {
                    row(0)
                } else {
                    let w = found.weights;
                    x.iter_mut().zip(row(0)).for_each(|(s, v)| *s = w[0] * v);
                    for (a, w) in w.iter().enumerate().take(sources).skip(1) {
                        x.iter_mut().zip(row(a)).for_each(|(s, v)| *s += w * v);
                    }
                    &*x
                };
                along(source, elements, weights, inner, taps, y);
            }
            if !found.is_inside {
                y.fill(args.outside);
            } else if leaves {
                for (j, y) in y.chunks_exact_mut(inner).enumerate() {
                    if !wide.taps(mode, j).is_inside {
                        y.fill(args.outside);
                    }
                }
            }
            // SAFETY: results of this piece.
            unsafe { store.put(row * to, y, None) };
        }
    }
}

/// Computes a row of results from a row of elements. `elements` and `weights` have a row for each
/// tap.
#[inline(always)]
fn along(x: &[f32], elements: &[u32], weights: &[f32], inner: usize, taps: usize, y: &mut [f32]) {
    let out = elements.len() / taps;
    for t in 0..taps {
        let (elements, weights) = (
            &elements[t * out..(t + 1) * out],
            &weights[t * out..(t + 1) * out],
        );
        let pairs = elements.iter().zip(weights);
        if inner == 1 {
            for (y, (e, w)) in y.iter_mut().zip(pairs) {
                let v = x.get(*e as usize).copied().unwrap_or_default();
                *y = if taps == 1 {
                    v
                } else if t == 0 {
                    w * v
                } else {
                    *y + w * v
                };
            }
            continue;
        }
        for (y, (e, w)) in y.chunks_exact_mut(inner).zip(pairs) {
            // Results outside the operand are filled afterwards.
            let Some(x) = x.get(*e as usize..) else { continue };
            for (y, v) in y.iter_mut().zip(x) {
                *y = if taps == 1 {
                    *v
                } else if t == 0 {
                    w * v
                } else {
                    *y + w * v
                };
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

    fn reference(a: &Args, mode: Mode, x: &[f32]) -> Vec<f64> {
        let [high, wide] = axes(a);
        let one = Taps {
            elements: [0; 4],
            weights: [1.0, 0.0, 0.0, 0.0],
            is_inside: true,
        };
        (0..a.count)
            .map(|at| {
                let (t, rest) = (at % a.inner, at / a.inner);
                let (j, rest) = (rest % a.out_w, rest / a.out_w);
                let (m, rest) = (rest % a.mid, rest / a.mid);
                let (i, o) = (rest % a.out_h, rest / a.out_h);
                let rows = if mode.high {
                    high.taps(mode, i)
                } else {
                    Taps {
                        elements: [i as u32; 4],
                        ..one
                    }
                };
                let columns = wide.taps(mode, j);
                if !(rows.is_inside && columns.is_inside) {
                    return f64::from(a.outside);
                }
                let mut sum = 0.0;
                for (row, u) in rows.elements.iter().zip(rows.weights) {
                    for (column, w) in columns.elements.iter().zip(columns.weights) {
                        let at = ((o * a.in_h + *row as usize) * a.mid + m) * a.in_w + *column as usize;
                        sum += f64::from(u) * f64::from(w) * f64::from(x[at * a.inner + t]);
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
                let want = reference(&args, kernel.mode, &x);
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

    #[test]
    fn coordinates_have_known_values() {
        let axis = |step, first, unit| Axis {
            size: 50,
            out: 15,
            step,
            first,
            unit,
            start: 0.25,
            end: 0.75,
            cubic: -0.75,
        };
        let asymmetric = axis(100, 0, 30);
        let at = asymmetric.position(Coordinates::Line, 3);
        assert_eq!((at.low, at.part), (10, 0.0), "3 * 50 / 15, exactly");
        let half_pixel = axis(60, 21, 18);
        let at = half_pixel.position(Coordinates::Line, 1);
        assert_eq!((at.low, at.part, at.half), (4, 0.5, Ordering::Equal));
        assert_eq!(half_pixel.nearest(Rounding::NearestOrDown, at), 4);
        assert_eq!(half_pixel.nearest(Rounding::NearestOrUp, at), 5);
        assert_eq!(half_pixel.nearest(Rounding::UpIfSmaller, at), 5);
        assert_eq!(half_pixel.nearest(Rounding::Up, Position::of(99.5)), 49);
        assert_eq!(axis(9, -4, 18).position(Coordinates::Line, 0).low, -1);
        let crop = asymmetric.position(Coordinates::Crop, 7);
        assert_eq!((crop.low, crop.part), (24, 0.5));
    }
}
