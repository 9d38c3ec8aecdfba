//! Epilogues: programs of elementwise steps. They run over chunks of results that stay in the L1
//! cache.

use super::args::{Finish, Memory};
use super::isa::Isa;
use super::simd::{self, Job, Simd};
use crate::backend::kernel::epilogue::{Argument, Beside, Epilogue, Function, MAX_AXES, MAX_OPERANDS};
use crate::backend::kernel::functions::{Binary, Unary};
use crate::backend::kernel::program::{Program, Step};
use crate::tensor::DType;
use half::f16;
use std::mem::MaybeUninit;

mod wide;

/// Words of stack memory for the results of steps.
const WORDS: usize = 4096;
/// Largest number of steps in a program.
const MAX_STEPS: usize = 128;
/// Largest number of elements in a chunk.
const CHUNK: usize = 256;

/// Which element of an operand belongs to a result, with the parameters of a dispatch.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Same,
    Row {
        n: usize,
    },
    Plane {
        n: usize,
        m: usize,
    },
    /// Sizes and strides of the axes, innermost first.
    Apart {
        sizes: [usize; MAX_AXES],
        strides: [usize; MAX_AXES],
        axes: usize,
    },
}

/// An epilogue bound to operands and parameters.
#[derive(Debug)]
pub struct Apply<'a> {
    program: &'a Program,
    arguments: &'a [Argument],
    operands: [Option<(Memory, Layout)>; MAX_OPERANDS],
    /// Types of the operands.
    types: &'a [Option<DType>],
    /// Type of the results.
    result: DType,
    isa: Isa,
}

/// Whether programs can run this epilogue with operands of these types.
pub fn supports(epilogue: &Epilogue, operands: &[Option<DType>]) -> bool {
    let Function::Program(program) = &epilogue.function else {
        return false;
    };
    let fits = |t: &DType| matches!(t, DType::F32 | DType::I32) || *t == DType::I64 && program.is_wide();
    operands.iter().flatten().all(fits)
        && program.steps().len() <= MAX_STEPS
        && epilogue.operands.len() <= MAX_OPERANDS
}

impl<'a> Apply<'a> {
    /// Binds an epilogue to its parameters `words` and its operands; `None` if they do not fit it.
    /// `types` are those of the operands and of the result.
    pub fn new(
        epilogue: &'a Epilogue,
        words: &[u32],
        operands: &[Option<Memory>],
        (types, result): (&'a [Option<DType>], DType),
        isa: Isa,
    ) -> Option<Self> {
        let Function::Program(program) = &epilogue.function else {
            return None;
        };
        let mut words = words.iter().map(|w| *w as usize);
        let axes = epilogue.axes;
        let mut sizes = [1; MAX_AXES];
        if epilogue.operands.iter().any(|o| o.beside == Beside::Apart) {
            let _count = words.next()?;
            for size in sizes.iter_mut().take(axes.saturating_sub(1)) {
                *size = words.next()?;
            }
            // The outermost axis is bounded only by the number of results.
            *sizes.get_mut(axes.saturating_sub(1))? = usize::MAX;
        }
        let mut bound = [None; MAX_OPERANDS];
        for (slot, (further, memory)) in bound.iter_mut().zip(epilogue.operands.iter().zip(operands)) {
            let layout = match further.beside {
                Beside::Same => Layout::Same,
                Beside::Row { .. } => Layout::Row {
                    n: words.next()?.max(1),
                },
                Beside::Plane { .. } => Layout::Plane {
                    n: words.next()?.max(1),
                    m: words.next()?.max(1),
                },
                Beside::Apart => {
                    let mut strides = [0; MAX_AXES];
                    for stride in strides.iter_mut().take(axes) {
                        *stride = words.next()?;
                    }
                    Layout::Apart { sizes, strides, axes }
                }
            };
            *slot = Some(((*memory)?, layout));
        }
        Some(Self {
            program,
            arguments: &epilogue.arguments,
            operands: bound,
            types,
            result,
            isa,
        })
    }
}

impl Finish for Apply<'_> {
    fn is_long(&self) -> bool {
        self.result == DType::I64
    }

    fn clamp(&self) -> Option<[f32; 2]> {
        let (argument, bounds) = self.program.clamp()?;
        matches!(self.arguments.get(argument), Some(Argument::Result)).then_some(bounds)
    }

    unsafe fn run(
        &self,
        first: usize,
        values: Option<&[u32]>,
        second: Option<&[u32]>,
        out: *mut u32,
        count: usize,
    ) {
        if self.program.is_wide() {
            let dtype = if self.result == DType::I64 {
                DType::I32
            } else {
                self.result
            };
            let computed = wide::Computed {
                values,
                second,
                dtype,
            };
            return unsafe { wide::run(self, first, computed, out, count) };
        }
        let steps = self.program.steps().len().max(1);
        let width = (WORDS / steps / 16 * 16).min(CHUNK);
        let mut memory = Registers([MaybeUninit::uninit(); WORDS]);
        for at in (0..count).step_by(width) {
            let n = width.min(count - at);
            let part = |words: Option<&[u32]>| {
                let words = words.and_then(|w| w.get(at..at + n));
                words.map_or(std::ptr::null(), <[u32]>::as_ptr)
            };
            let chunk = Chunk {
                apply: self,
                first: first + at,
                count: n,
                width,
                values: part(values),
                second: part(second),
                registers: &mut memory,
                out: out.wrapping_add(at),
            };
            // SAFETY: the backend was opened for an instruction set that the processor has.
            unsafe { simd::run(self.isa, chunk) };
        }
    }
}

#[repr(align(64))]
struct Registers([MaybeUninit<u32>; WORDS]);

/// A run of the program over one chunk of results.
struct Chunk<'a> {
    apply: &'a Apply<'a>,
    first: usize,
    count: usize,
    width: usize,
    values: *const u32,
    second: *const u32,
    registers: &'a mut Registers,
    out: *mut u32,
}

impl Job for Chunk<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.count;
        let mut at = [std::ptr::null::<u32>(); MAX_STEPS];
        for (i, step) in self.apply.program.steps().iter().enumerate() {
            // SAFETY: a register has `width` words, and at most `width` elements are computed; the
            // registers of earlier steps are filled.
            unsafe {
                let y = self.registers.0.as_mut_ptr().add(i * self.width).cast::<u32>();
                at[i] = y;
                match *step {
                    Step::Argument(a) => at[i] = self.argument(a, y),
                    Step::Float(bits) => std::slice::from_raw_parts_mut(y, n).fill(bits),
                    Step::Int(v) => ints_mut(y, n).fill(v as i32),
                    Step::Unary(f, x) => unary::<S>(f, at[x], y, n),
                    Step::IntUnary(f, x) => int_unary(f, ints(at[x], n), ints_mut(y, n)),
                    Step::Test(test, x) => {
                        each(floats(at[x], n), ints_mut(y, n), |x| i32::from(test.holds(x)));
                    }
                    Step::Not(x) => each(ints(at[x], n), ints_mut(y, n), |x| 1 - x),
                    Step::Binary(f, a, b) => binary::<S>(f, [at[a], at[b]], y, n),
                    Step::IntBinary(f, a, b) | Step::UnsignedBinary(f, a, b) => {
                        int_binary(f, ints(at[a], n), ints(at[b], n), ints_mut(y, n));
                    }
                    Step::Select(c, a, b) => {
                        let (c, a, b) = (ints(at[c], n), ints(at[a], n), ints(at[b], n));
                        for (i, y) in ints_mut(y, n).iter_mut().enumerate() {
                            *y = if c[i] == 0 { b[i] } else { a[i] };
                        }
                    }
                    Step::ToHalf(x) => {
                        each(floats(at[x], n), floats_mut(y, n), |x| f16::from_f32(x).to_f32());
                    }
                    Step::ToFloat(x) | Step::UnsignedToFloat(x) => {
                        each(ints(at[x], n), floats_mut(y, n), |x| x as f32);
                    }
                    Step::ToInt(x) => to_ints(floats(at[x], n), ints_mut(y, n)),
                    Step::ToNearestInt(x) | Step::ToUnsigned(x) => {
                        each(floats(at[x], n), ints_mut(y, n), |x| x as i32);
                    }
                    Step::FloatIsTrue(x) => each(floats(at[x], n), ints_mut(y, n), |x| i32::from(x != 0.0)),
                    Step::IntIsTrue(x) => each(ints(at[x], n), ints_mut(y, n), |x| i32::from(x != 0)),
                    Step::Wrap {
                        of,
                        bits,
                        signed: true,
                    } => {
                        let by = 32 - bits;
                        each(ints(at[of], n), ints_mut(y, n), |x| (x << by) >> by);
                    }
                    Step::Wrap { of, bits, .. } => {
                        let mask = (1 << bits) - 1;
                        each(ints(at[of], n), ints_mut(y, n), |x| x & mask);
                    }
                }
            }
        }
        let value = at.get(self.apply.program.value()).copied();
        if let Some(value) = value.filter(|v| !v.is_null()) {
            // SAFETY: both have `count` words. The value may be an operand that the results
            // overwrite, hence `copy`.
            unsafe { std::ptr::copy(value, self.out, n) };
        }
    }
}

impl Chunk<'_> {
    /// The elements of an argument, in place or copied to `to`.
    ///
    /// # Safety
    ///
    /// See [`Finish::run`]; `to` has room for the chunk.
    #[inline(always)]
    unsafe fn argument(&self, i: usize, to: *mut u32) -> *const u32 {
        let given = match self.apply.arguments.get(i) {
            Some(Argument::Result) => self.values,
            Some(Argument::Other) => self.second,
            Some(Argument::Operand(o)) => {
                let Some((memory, layout)) = self.apply.operands.get(*o).copied().flatten() else {
                    return self.zeros(to);
                };
                if matches!(layout, Layout::Same) && self.first + self.count <= memory.elements::<u32>() {
                    // SAFETY: inside the operand.
                    return unsafe { memory.as_ptr::<u32>().add(self.first) };
                }
                // SAFETY: `to` has room; operands are written only if they are the results too.
                unsafe { fetch(memory, layout, self.first, ints_mut(to, self.count)) };
                return to;
            }
            None => std::ptr::null(),
        };
        if given.is_null() { self.zeros(to) } else { given }
    }

    /// Zeros, for what a kernel does not compute.
    fn zeros(&self, to: *mut u32) -> *const u32 {
        // SAFETY: a register has room for the chunk.
        unsafe { to.write_bytes(0, self.count) };
        to
    }
}

/// Copies the elements of an operand that belong to the results from `first` on.
///
/// # Safety
///
/// No one writes the operand at the same time.
unsafe fn fetch(memory: Memory, layout: Layout, first: usize, out: &mut [i32]) {
    let x: &[i32] = unsafe { memory.slice() };
    let count = out.len();
    let mut done = 0;
    match layout {
        Layout::Same => copy(x, first, out),
        Layout::Row { n } => {
            while done < count {
                let from = (first + done) % n;
                let run = (n - from).min(count - done);
                copy(x, from, &mut out[done..done + run]);
                done += run;
            }
        }
        Layout::Plane { n, m } => {
            while done < count {
                let i = first + done;
                let run = (n - i % n).min(count - done);
                out[done..done + run].fill(x.get(i / n % m).copied().unwrap_or(0));
                done += run;
            }
        }
        Layout::Apart { sizes, strides, axes } => {
            while done < count {
                let mut rest = first + done;
                let inner = rest % sizes[0];
                let mut from = 0;
                for axis in 0..axes {
                    from += rest % sizes[axis] * strides[axis];
                    rest /= sizes[axis];
                }
                let run = (sizes[0] - inner).min(count - done);
                let part = &mut out[done..done + run];
                match strides[0] {
                    0 => part.fill(x.get(from).copied().unwrap_or(0)),
                    1 => copy(x, from, part),
                    step => {
                        for (i, y) in part.iter_mut().enumerate() {
                            *y = x.get(from + i * step).copied().unwrap_or(0);
                        }
                    }
                }
                done += run;
            }
        }
    }
}

/// The elements of an operand that belong to the `count` results from `first` on.
fn each_element(layout: Layout, first: usize, count: usize) -> impl Iterator<Item = usize> {
    (first..first + count).map(move |i| match layout {
        Layout::Same => i,
        Layout::Row { n } => i % n,
        Layout::Plane { n, m } => i / n % m,
        Layout::Apart { sizes, strides, axes } => {
            let axes = sizes.iter().zip(&strides).take(axes);
            let (at, _) = axes.fold((0, i), |(at, rest), (n, step)| (at + rest % n * step, rest / n));
            at
        }
    })
}

/// Copies the elements of `x` from `first` on; zeros where there are none.
fn copy(x: &[i32], first: usize, out: &mut [i32]) {
    let from = x.split_at(first.min(x.len())).1;
    let n = from.len().min(out.len());
    out[..n].copy_from_slice(&from[..n]);
    out[n..].fill(0);
}

/// # Safety
///
/// There are `n` initialized words.
#[inline(always)]
unsafe fn floats<'a>(x: *const u32, n: usize) -> &'a [f32] {
    unsafe { std::slice::from_raw_parts(x.cast(), n) }
}

/// # Safety
///
/// As for [`floats`].
#[inline(always)]
unsafe fn ints<'a>(x: *const u32, n: usize) -> &'a [i32] {
    unsafe { std::slice::from_raw_parts(x.cast(), n) }
}

/// # Safety
///
/// There are `n` words, which no one else uses. They are written before they are read.
#[inline(always)]
unsafe fn floats_mut<'a>(x: *mut u32, n: usize) -> &'a mut [f32] {
    unsafe { std::slice::from_raw_parts_mut(x.cast(), n) }
}

/// # Safety
///
/// As for [`floats_mut`].
#[inline(always)]
unsafe fn ints_mut<'a>(x: *mut u32, n: usize) -> &'a mut [i32] {
    unsafe { std::slice::from_raw_parts_mut(x.cast(), n) }
}

#[inline(always)]
fn each<A: Copy, B>(x: &[A], y: &mut [B], f: impl Fn(A) -> B) {
    for (x, y) in x.iter().zip(y) {
        *y = f(*x);
    }
}

#[inline(always)]
fn both<A: Copy, B>(a: &[A], b: &[A], y: &mut [B], f: impl Fn(A, A) -> B) {
    for ((a, b), y) in a.iter().zip(b).zip(y) {
        *y = f(*a, *b);
    }
}

/// A function of `N` vectors. A closure would be compiled without the instruction set of its
/// [`Job`].
trait Map<const N: usize> {
    /// # Safety
    ///
    /// As for [`Simd`].
    unsafe fn of<S: Simd>(v: [S::F; N]) -> S::F;
}

/// Defines functions of vectors.
macro_rules! functions {
    ($($name:ident<$S:ident>([$($v:ident),*]: $n:literal) $body:expr;)*) => {$(
        struct $name;

        impl Map<$n> for $name {
            #[inline(always)]
            unsafe fn of<$S: Simd>([$($v),*]: [$S::F; $n]) -> $S::F {
                unsafe { $body }
            }
        }
    )*};
}

functions! {
    Exp<S>([v]: 1) simd::exp_all::<S>(v);
    Sigmoid<S>([v]: 1) {
        let e = simd::exp_all::<S>(S::sub(S::splat(0.0), v));
        S::div(S::splat(1.0), S::add(S::splat(1.0), e))
    };
    Tanh<S>([v]: 1) simd::tanh::<S>(v);
    Erf<S>([v]: 1) simd::erf::<S>(v);
    Sqrt<S>([v]: 1) S::sqrt(v);
    // `v` is the second operand, so that NaN is kept.
    Relu<S>([v]: 1) S::max(S::splat(0.0), v);
    Round<S>([v]: 1) S::round(v);
    Add<S>([a, b]: 2) S::add(a, b);
    Sub<S>([a, b]: 2) S::sub(a, b);
    Mul<S>([a, b]: 2) S::mul(a, b);
    Div<S>([a, b]: 2) S::div(a, b);
}

/// Applies a function to `n` elements, a vector at a time; the last vector is padded.
///
/// # Safety
///
/// `x` and `y` have `n` elements; as for [`Simd`].
#[inline(always)]
unsafe fn vectors<S: Simd, F: Map<N>, const N: usize>(x: [*const u32; N], y: *mut u32, n: usize) {
    let whole = n / S::LANES * S::LANES;
    let y = y.cast::<f32>();
    // SAFETY: the remainder goes through a buffer of at least a vector.
    unsafe {
        let mut v = [S::splat(0.0); N];
        for i in (0..whole).step_by(S::LANES) {
            for (v, x) in v.iter_mut().zip(x) {
                *v = S::load(x.cast::<f32>().add(i));
            }
            S::store(y.add(i), F::of::<S>(v));
        }
        if whole < n {
            let mut rest = [0.0; 16];
            for (v, x) in v.iter_mut().zip(x) {
                std::ptr::copy_nonoverlapping(x.cast::<f32>().add(whole), rest.as_mut_ptr(), n - whole);
                *v = S::load(rest.as_ptr());
            }
            S::store(rest.as_mut_ptr(), F::of::<S>(v));
            std::ptr::copy_nonoverlapping(rest.as_ptr(), y.add(whole), n - whole);
        }
    }
}

/// # Safety
///
/// As for [`vectors`].
#[inline(always)]
unsafe fn unary<S: Simd>(f: Unary, x: *const u32, y: *mut u32, n: usize) {
    unsafe {
        match f {
            Unary::Exp => vectors::<S, Exp, 1>([x], y, n),
            Unary::Sigmoid => vectors::<S, Sigmoid, 1>([x], y, n),
            Unary::Tanh => vectors::<S, Tanh, 1>([x], y, n),
            Unary::Erf => vectors::<S, Erf, 1>([x], y, n),
            Unary::Sqrt => vectors::<S, Sqrt, 1>([x], y, n),
            Unary::Relu => vectors::<S, Relu, 1>([x], y, n),
            Unary::Round => vectors::<S, Round, 1>([x], y, n),
            Unary::Neg => each(floats(x, n), floats_mut(y, n), |x| -x),
            Unary::Abs => each(floats(x, n), floats_mut(y, n), f32::abs),
            Unary::Reciprocal => each(floats(x, n), floats_mut(y, n), |x| 1.0 / x),
            Unary::HardSwish => each(floats(x, n), floats_mut(y, n), |x| {
                x * (x / 6.0 + 0.5).clamp(0.0, 1.0)
            }),
            f => each(floats(x, n), floats_mut(y, n), |x| f.apply(x)),
        }
    }
}

#[inline(always)]
fn int_unary(f: Unary, x: &[i32], y: &mut [i32]) {
    match f {
        Unary::Neg => each(x, y, i32::wrapping_neg),
        Unary::Abs => each(x, y, i32::wrapping_abs),
        Unary::Sign => each(x, y, i32::signum),
        _ => each(x, y, |x| x.max(0)),
    }
}

/// The low 32 bits of the nearest 64-bit integers.
#[inline(always)]
fn to_ints(x: &[f32], y: &mut [i32]) {
    if x.iter().all(|x| x.abs() < 2_147_483_648.0) {
        each(x, y, |x| x as i32);
    } else {
        each(x, y, |x| x as i64 as i32);
    }
}

/// # Safety
///
/// As for [`vectors`].
#[inline(always)]
unsafe fn binary<S: Simd>(f: Binary, x: [*const u32; 2], y: *mut u32, n: usize) {
    unsafe {
        match f {
            Binary::Add => return vectors::<S, Add, 2>(x, y, n),
            Binary::Sub => return vectors::<S, Sub, 2>(x, y, n),
            Binary::Mul => return vectors::<S, Mul, 2>(x, y, n),
            Binary::Div => return vectors::<S, Div, 2>(x, y, n),
            _ => {}
        }
    }
    let [a, b] = unsafe { x.map(|x| floats(x, n)) };
    if f.is_comparison() {
        let y = unsafe { ints_mut(y, n) };
        return match f {
            Binary::Less => both(a, b, y, |a, b| i32::from(a < b)),
            Binary::LessOrEqual => both(a, b, y, |a, b| i32::from(a <= b)),
            Binary::Greater => both(a, b, y, |a, b| i32::from(a > b)),
            Binary::GreaterOrEqual => both(a, b, y, |a, b| i32::from(a >= b)),
            _ => both(a, b, y, |a, b| i32::from(a == b)),
        };
    }
    let y = unsafe { floats_mut(y, n) };
    match f {
        Binary::Min => both(a, b, y, |a, b| Binary::Min.floats(a, b)),
        Binary::Max => both(a, b, y, |a, b| Binary::Max.floats(a, b)),
        f => both(a, b, y, |a, b| f.floats(a, b)),
    }
}

#[inline(always)]
fn int_binary(f: Binary, a: &[i32], b: &[i32], y: &mut [i32]) {
    match f {
        Binary::Add => both(a, b, y, i32::wrapping_add),
        Binary::Sub => both(a, b, y, i32::wrapping_sub),
        Binary::Mul => both(a, b, y, i32::wrapping_mul),
        Binary::Min => both(a, b, y, i32::min),
        Binary::Max => both(a, b, y, i32::max),
        Binary::Less => both(a, b, y, |a, b| i32::from(a < b)),
        Binary::LessOrEqual => both(a, b, y, |a, b| i32::from(a <= b)),
        Binary::Greater => both(a, b, y, |a, b| i32::from(a > b)),
        Binary::GreaterOrEqual => both(a, b, y, |a, b| i32::from(a >= b)),
        Binary::Equal => both(a, b, y, |a, b| i32::from(a == b)),
        f => both(a, b, y, |a, b| f.ints(a, b)),
    }
}
