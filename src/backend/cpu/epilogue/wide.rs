//! Programs whose integers have 64 bits.

use super::{Apply, Argument, Layout, each_element};
use crate::backend::cpu::args::Memory;
use crate::backend::kernel::functions::{Binary, Unary};
use crate::backend::kernel::program::Step;
use crate::tensor::DType;
use std::cell::RefCell;

/// Elements that are computed at once.
const CHUNK: usize = 64;

/// The elements of a chunk.
#[expect(
    clippy::large_enum_variant,
    reason = "registers are kept in a list and hold arrays"
)]
enum Register {
    Float([f32; CHUNK]),
    Int([i64; CHUNK]),
}

use Register::{Float, Int};

thread_local! {
    /// The results of the steps. The memory is kept between dispatches.
    static REGISTERS: RefCell<Vec<Register>> = RefCell::default();
}

impl Register {
    fn ints(&self) -> &[i64; CHUNK] {
        match self {
            Int(v) => v,
            Float(_) => &[0; CHUNK],
        }
    }

    fn floats(&self) -> &[f32; CHUNK] {
        match self {
            Float(v) => v,
            Int(_) => &[0.0; CHUNK],
        }
    }
}

/// What a kernel computed for a run of results, as words.
#[derive(Clone, Copy)]
pub(super) struct Computed<'a> {
    pub values: Option<&'a [u32]>,
    pub second: Option<&'a [u32]>,
    /// The type of both.
    pub dtype: DType,
}

/// Computes the results `first .. first + count` and stores them at `out`.
///
/// # Safety
///
/// As for [`Finish::run`](super::Finish::run).
pub(super) unsafe fn run(
    apply: &Apply<'_>,
    first: usize,
    computed: Computed<'_>,
    out: *mut u32,
    count: usize,
) {
    REGISTERS.with_borrow_mut(|registers| {
        for at in (0..count).step_by(CHUNK) {
            let n = CHUNK.min(count - at);
            registers.clear();
            for step in apply.program.steps() {
                let value = unsafe { compute(apply, *step, registers, [first, at, n], computed) };
                registers.push(value);
            }
            let Some(value) = registers.get(apply.program.value()) else {
                continue;
            };
            // SAFETY: the caller owns `count` results at `out`.
            unsafe { store(value, apply.result, out, at, n) };
        }
    });
}

/// Stores `n` elements of a register at element `at` of `out`.
///
/// # Safety
///
/// The caller owns these elements.
unsafe fn store(value: &Register, dtype: DType, out: *mut u32, at: usize, n: usize) {
    // SAFETY: results are aligned to their size.
    unsafe {
        match value {
            Float(v) => out.cast::<f32>().add(at).copy_from_nonoverlapping(v.as_ptr(), n),
            Int(v) if dtype == DType::I64 => {
                out.cast::<i64>().add(at).copy_from_nonoverlapping(v.as_ptr(), n);
            }
            Int(v) => {
                for (i, v) in v.iter().take(n).enumerate() {
                    out.cast::<i32>().add(at + i).write(*v as i32);
                }
            }
        }
    }
}

/// The elements of an argument of the function.
///
/// # Safety
///
/// No one writes the operands, unless they are the results too.
unsafe fn argument(
    apply: &Apply<'_>,
    i: usize,
    [first, at, n]: [usize; 3],
    computed: Computed<'_>,
) -> Register {
    let words = |words: Option<&[u32]>| {
        let words = words.and_then(|w| w.get(at..at + n)).unwrap_or_default();
        if computed.dtype.is_float() {
            Float(filled(words.iter().map(|w| f32::from_bits(*w))))
        } else {
            Int(filled(words.iter().map(|w| i64::from(w.cast_signed()))))
        }
    };
    match apply.arguments.get(i) {
        Some(Argument::Result) => words(computed.values),
        Some(Argument::Other) => words(computed.second),
        Some(Argument::Operand(o)) => {
            let Some(((memory, layout), dtype)) =
                apply.operands.get(*o).copied().flatten().zip(apply.types.get(*o))
            else {
                return Int([0; CHUNK]);
            };
            unsafe {
                match dtype {
                    Some(DType::I64) => Int(fetch(memory, layout, first + at, n, |v: i64| v)),
                    Some(DType::F32) => Float(fetch(memory, layout, first + at, n, |v: f32| v)),
                    _ => Int(fetch(memory, layout, first + at, n, |v: i32| i64::from(v))),
                }
            }
        }
        None => Int([0; CHUNK]),
    }
}

/// # Safety
///
/// As for [`argument`].
unsafe fn fetch<T: bytemuck::Pod, V: Copy + Default>(
    memory: Memory,
    layout: Layout,
    first: usize,
    n: usize,
    of: impl Fn(T) -> V,
) -> [V; CHUNK] {
    let x: &[T] = unsafe { memory.slice() };
    filled(each_element(layout, first, n).map(|at| x.get(at).map_or_else(V::default, |v| of(*v))))
}

fn filled<V: Copy + Default>(values: impl Iterator<Item = V>) -> [V; CHUNK] {
    let mut out = [V::default(); CHUNK];
    for (out, v) in out.iter_mut().zip(values) {
        *out = v;
    }
    out
}

/// The result of a step.
///
/// # Safety
///
/// As for [`argument`].
unsafe fn compute(
    apply: &Apply<'_>,
    step: Step,
    registers: &[Register],
    place: [usize; 3],
    computed: Computed<'_>,
) -> Register {
    const NONE: Register = Int([0; CHUNK]);
    let at = |r: usize| registers.get(r).unwrap_or(&NONE);
    let (ints, floats) = (|r| at(r).ints(), |r| at(r).floats());
    let unsigned = |r| ints(r).map(i64::cast_unsigned);
    match step {
        Step::Argument(i) => unsafe { argument(apply, i, place, computed) },
        Step::Float(bits) => Float([f32::from_bits(bits); CHUNK]),
        Step::Int(v) => Int([v; CHUNK]),
        Step::Unary(f, x) => Float(floats(x).map(|x| f.apply(x))),
        Step::IntUnary(f, x) => Int(ints(x).map(|x| match f {
            Unary::Neg => x.wrapping_neg(),
            Unary::Abs => x.wrapping_abs(),
            Unary::Sign => x.signum(),
            _ => x.max(0),
        })),
        Step::Test(test, x) => Int(floats(x).map(|x| i64::from(test.holds(x)))),
        Step::Not(x) => Int(ints(x).map(|x| 1 - x)),
        Step::Binary(f, a, b) if f.is_comparison() => {
            Int(both(floats(a), floats(b), |a, b| i64::from(f.compare(&a, &b))))
        }
        Step::Binary(f, a, b) => Float(both(floats(a), floats(b), |a, b| f.floats(a, b))),
        Step::IntBinary(f, a, b) => Int(both(ints(a), ints(b), |a, b| of_ints(f, a, b))),
        Step::UnsignedBinary(f, a, b) => Int(both(&unsigned(a), &unsigned(b), |a, b| {
            if f.is_comparison() {
                i64::from(f.compare(&a, &b))
            } else {
                f.ints(a, b).cast_signed()
            }
        })),
        Step::Select(c, a, b) => match (ints(c), at(a), at(b)) {
            (c, Float(a), Float(b)) => Float(chosen(c, a, b)),
            (c, a, b) => Int(chosen(c, a.ints(), b.ints())),
        },
        Step::ToHalf(x) => Float(floats(x).map(|x| half::f16::from_f32(x).to_f32())),
        Step::ToFloat(x) => Float(ints(x).map(|x| x as f32)),
        Step::UnsignedToFloat(x) => Float(unsigned(x).map(|x| x as f32)),
        Step::ToInt(x) | Step::ToNearestInt(x) => Int(floats(x).map(|x| x as i64)),
        Step::ToUnsigned(x) => Int(floats(x).map(|x| (x as u64).cast_signed())),
        Step::FloatIsTrue(x) => Int(floats(x).map(|x| i64::from(x != 0.0))),
        Step::IntIsTrue(x) => Int(ints(x).map(|x| i64::from(x != 0))),
        Step::Wrap {
            of,
            bits,
            signed: true,
        } => Int(ints(of).map(|x| (x << (64 - bits)) >> (64 - bits))),
        Step::Wrap { of, bits, .. } => Int(ints(of).map(|x| x & !(-1 << bits))),
    }
}

fn of_ints(f: Binary, a: i64, b: i64) -> i64 {
    if f.is_comparison() {
        i64::from(f.compare(&a, &b))
    } else {
        f.ints(a, b)
    }
}

fn both<A: Copy, B>(a: &[A; CHUNK], b: &[A; CHUNK], f: impl Fn(A, A) -> B) -> [B; CHUNK] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

fn chosen<T: Copy>(c: &[i64; CHUNK], a: &[T; CHUNK], b: &[T; CHUNK]) -> [T; CHUNK] {
    std::array::from_fn(|i| if c[i] == 0 { b[i] } else { a[i] })
}
