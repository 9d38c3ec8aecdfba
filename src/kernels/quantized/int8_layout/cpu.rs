//! Conversions between bytes with the channels last and ordinary 8-bit tensors, which are stored as
//! 32-bit integers or as bytes.

use crate::backend::cpu::args::{Bound, Memory, NativeKernel, Scratch, Store, dtype, part, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::moves::{Elem, RUN, Sink, pieces};
use crate::tensor::DType;
use std::ops::Range;

type EnterArgs = super::EnterArgs<Bound>;

type LeaveArgs = super::LeaveArgs<Bound>;

/// Converts integers `[.., channels, inner]`, stored as words or as bytes, to bytes
/// `[.., inner, 4 * words]`.
pub struct Int8Enter {
    is_bytes: bool,
}

/// Converts bytes `[.., inner, stride]` to integers `[.., channels, inner]`.
pub struct Int8Leave;

/// Sizes of the stored form and of the ordinary tensor for `rows` rows.
fn inside(rows: usize, inner: usize, [stored, logical]: [usize; 2]) -> [usize; 2] {
    let outer = rows.div_ceil(inner.max(1));
    [product(&[rows, stored]), product(&[outer, inner, logical])]
}

impl NativeKernel for Int8Enter {
    type Signature = super::EnterArgs;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let is_bytes = matches!(dtype(spec, 0)?, DType::I8 | DType::U8);
        (Elem::of(spec, 0)? == Elem::Int).then_some(Self { is_bytes })
    }

    fn fits(&self, args: &EnterArgs) -> bool {
        if args.count == 0 {
            return true;
        }
        if args.words == 0 || args.inner == 0 {
            return false;
        }
        let [words, ints] = inside(
            args.count.div_ceil(args.words),
            args.inner,
            [args.words, args.channels],
        );
        let held = match self.is_bytes {
            true => args.x.holds::<u8>(ints),
            false => args.x.holds::<u32>(ints),
        };
        args.channels <= args.words * 4 && held && args.y.holds::<u32>(words)
    }

    fn pieces(&self, args: &EnterArgs, threads: usize) -> usize {
        pieces(args.count.saturating_mul(4), args.count, threads)
    }

    unsafe fn run(&self, args: &EnterArgs, _: &Store<'_>, piece: usize, pieces: usize, _: &mut Scratch) {
        let range = part(args.count, 16, piece, pieces);
        // SAFETY: nobody writes x; the piece owns these results.
        unsafe {
            let y: &mut [u32] = args.y.slice_mut(range.clone());
            if self.is_bytes {
                let x: &[u8] = args.x.slice();
                enter(args, range, y, |i| x[i]);
            } else {
                let x: &[u32] = args.x.slice();
                enter(args, range, y, |i| x[i] as u8);
            }
        }
    }
}

/// Computes the words `range` of y; `x` reads an element.
fn enter(args: &EnterArgs, range: Range<usize>, y: &mut [u32], x: impl Fn(usize) -> u8) {
    let EnterArgs {
        channels,
        words,
        inner,
        ..
    } = *args;
    let mut done = 0;
    while done < y.len() {
        let (row, first) = ((range.start + done) / words, (range.start + done) % words);
        let count = (words - first).min(y.len() - done);
        let mut from = row / inner * channels * inner + row % inner + 4 * first * inner;
        for (word, y) in (first..).zip(&mut y[done..done + count]) {
            let valid = channels.saturating_sub(4 * word).min(4);
            let byte = |b: usize| {
                if b < valid {
                    x(from + b * inner) ^ args.flip as u8
                } else {
                    0
                }
            };
            *y = u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]);
            from += 4 * inner;
        }
        done += count;
    }
}

impl NativeKernel for Int8Leave {
    type Signature = super::LeaveArgs;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        (Elem::of(spec, 1)? == Elem::Int).then_some(Self)
    }

    fn fits(&self, args: &LeaveArgs) -> bool {
        args.stored().fits(args.x, args.count)
    }

    fn pieces(&self, args: &LeaveArgs, threads: usize) -> usize {
        pieces(args.count, args.count, threads)
    }

    unsafe fn run(
        &self,
        args: &LeaveArgs,
        store: &Store<'_>,
        piece: usize,
        pieces: usize,
        scratch: &mut Scratch,
    ) {
        // SAFETY: nobody writes it.
        let x: &[i8] = unsafe { args.x.slice() };
        let word = |x: i8| (i32::from(x) + args.offset).cast_unsigned();
        let fill = |first: usize, y: &mut [u32]| args.stored().read(x, first, y, word);
        // SAFETY: the piece owns the results.
        unsafe { (Sink { store }).fill(part(args.count, 16, piece, pieces), RUN, scratch, fill) }
    }
}

impl LeaveArgs {
    fn stored(&self) -> Stored {
        Stored::new(self.channels, self.stride, self.inner)
    }
}

/// How bytes `[.., inner, stride]` hold elements `[.., channels, inner]`.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    channels: usize,
    stride: usize,
    inner: usize,
}

impl Stored {
    pub fn new(channels: usize, stride: usize, inner: usize) -> Self {
        Self {
            channels,
            stride,
            inner,
        }
    }

    /// Whether `x` holds `count` elements.
    pub fn fits(self, x: Memory, count: usize) -> bool {
        if count == 0 {
            return true;
        }
        if self.channels == 0 || self.inner == 0 || self.channels > self.stride {
            return false;
        }
        let outer = count.div_ceil(self.channels).div_ceil(self.inner);
        x.holds::<u8>(product(&[outer, self.inner, self.stride]))
    }

    /// Computes `y` from the elements of x from index `first` on.
    #[inline(always)]
    pub fn read(self, x: &[i8], first: usize, y: &mut [u32], value: impl Fn(i8) -> u32) {
        let Self {
            channels,
            stride,
            inner,
        } = self;
        // Elements along the inner axis, or along the channels if it has size 1, have a constant
        // distance in x.
        let length = if inner == 1 { channels } else { inner };
        let mut done = 0;
        while done < y.len() {
            let i = first + done;
            let count = (length - i % length).min(y.len() - done);
            let (b, c, outer) = (i % inner, i / inner % channels, i / inner / channels);
            let x = &x[(outer * inner + b) * stride + c..];
            let to = &mut y[done..done + count];
            let step = if inner == 1 { 1 } else { stride };
            if step == 1 {
                to.iter_mut().zip(x).for_each(|(y, x)| *y = value(*x));
            } else {
                to.iter_mut()
                    .zip(x.iter().step_by(step))
                    .for_each(|(y, x)| *y = value(*x));
            }
            done += count;
        }
    }
}
