//! Moves between bytes whose last axis holds the channels and ordinary 8-bit tensors, which devices
//! store as 32-bit integers.

use super::moves::{Elem, RUN, Sink, pieces};
use crate::backend::cpu::args::{Kernel, Scratch, Store, arguments, dtype, part, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::tensor::DType;
use std::ops::Range;

arguments! {
    pub struct EnterArgs { count, channels, words, inner, flip: U32 } [x: In, y: Out]
}

arguments! {
    pub struct LeaveArgs { count, channels, stride, inner: U32; offset: I32 } [x: In, y: Out]
}

/// Integers `[.., channels, inner]`, which are stored as words or as bytes, as bytes
/// `[.., inner, 4 * words]`.
pub struct Int8Enter {
    is_bytes: bool,
}

/// Bytes `[.., inner, stride]` as integers `[.., channels, inner]`.
pub struct Int8Leave;

/// Whether an operand has words for `rows` rows of bytes, and another one as many integers.
fn inside(rows: usize, inner: usize, [stored, logical]: [usize; 2]) -> [usize; 2] {
    let outer = rows.div_ceil(inner.max(1));
    [product(&[rows, stored]), product(&[outer, inner, logical])]
}

impl Kernel for Int8Enter {
    type Args = EnterArgs;

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

/// Computes words `range` of element `i` of x.
fn enter(args: &EnterArgs, range: Range<usize>, y: &mut [u32], x: impl Fn(usize) -> u8) {
    let EnterArgs {
        channels,
        words,
        inner,
        ..
    } = *args;
    for (i, y) in range.zip(y) {
        let (word, row) = (i % words, i / words);
        let from = row / inner * channels * inner + row % inner;
        let bytes = [0, 1, 2, 3].map(|b| {
            let c = 4 * word + b;
            match c < channels {
                true => x(from + c * inner) ^ args.flip as u8,
                false => 0,
            }
        });
        *y = u32::from_le_bytes(bytes);
    }
}

impl Kernel for Int8Leave {
    type Args = LeaveArgs;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        (Elem::of(spec, 1)? == Elem::Int).then_some(Self)
    }

    fn fits(&self, args: &LeaveArgs) -> bool {
        if args.count == 0 {
            return true;
        }
        if args.channels == 0 || args.inner == 0 || args.channels > args.stride {
            return false;
        }
        let outer = args.count.div_ceil(args.channels).div_ceil(args.inner);
        args.x.holds::<u8>(product(&[outer, args.inner, args.stride]))
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
        let LeaveArgs {
            channels,
            stride,
            inner,
            ..
        } = *args;
        // SAFETY: nobody writes it.
        let x: &[i8] = unsafe { args.x.slice() };
        let fill = |first: usize, y: &mut [u32]| {
            for (i, y) in (first..).zip(y) {
                let (b, c) = (i % inner, i / inner % channels);
                let outer = i / inner / channels;
                let v = i32::from(x[(outer * inner + b) * stride + c]) + args.offset;
                *y = v.cast_unsigned();
            }
        };
        // SAFETY: the piece owns the results.
        unsafe { (Sink { store }).fill(part(args.count, 16, piece, pieces), RUN, scratch, fill) }
    }
}
