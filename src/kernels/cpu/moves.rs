//! Element types and results, for kernels that move elements.

use crate::backend::cpu::args::{Memory, Scratch, Store, dtype};
use crate::backend::kernel::KernelSpec;
use crate::tensor::DType;
use bytemuck::Pod;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;

/// Results that are computed in scratch memory at once, before an epilogue is applied.
pub(crate) const RUN: usize = 1024;

/// Type of the results of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elem {
    Float,
    Int,
}

impl Elem {
    /// The type of result operand `i`.
    pub fn of(spec: &KernelSpec, i: usize) -> Option<Self> {
        match dtype(spec, i)? {
            DType::F32 => Some(Self::Float),
            DType::F16 => None,
            other if other.is_float() => None,
            _ => Some(Self::Int),
        }
    }

    /// Whether operand `i` holds halves; `None` if its elements cannot become results of this
    /// type. An omitted operand counts as words.
    pub fn halves(self, spec: &KernelSpec, i: usize) -> Option<bool> {
        match (dtype(spec, i), self) {
            (None, _) | (Some(DType::F32), Self::Float) => Some(false),
            (Some(DType::F16), Self::Float) => Some(true),
            (Some(other), Self::Int) if !other.is_float() => Some(false),
            _ => None,
        }
    }
}

/// An element that becomes a 32-bit word: words stay as they are, halves become f32.
pub(crate) trait Word: Pod + Send + Sync {
    fn word(self) -> u32;
    /// Copies slices of the same length.
    fn copy(from: &[Self], to: &mut [u32]);
}

impl Word for u32 {
    #[inline(always)]
    fn word(self) -> u32 {
        self
    }
    #[inline(always)]
    fn copy(from: &[Self], to: &mut [u32]) {
        to.copy_from_slice(from);
    }
}

impl Word for f16 {
    #[inline(always)]
    fn word(self) -> u32 {
        self.to_f32().to_bits()
    }
    #[inline(always)]
    fn copy(from: &[Self], to: &mut [u32]) {
        from.convert_to_f32_slice(bytemuck::cast_slice_mut(to));
    }
}

/// Calls `$f::<T>($args)` with the element type `T` of an operand.
macro_rules! by_word {
    ($halves:expr, $f:ident($($arg:expr),* $(,)?)) => {
        if $halves { $f::<half::f16>($($arg),*) } else { $f::<u32>($($arg),*) }
    };
}
pub(crate) use by_word;

/// The first element of an operand, as a word.
/// # Safety
/// As for [`Memory::slice`].
pub(crate) unsafe fn first_word(x: Memory, halves: bool) -> Option<u32> {
    unsafe {
        if halves {
            x.slice::<f16>().first().map(|v| v.word())
        } else {
            x.slice::<u32>().first().copied()
        }
    }
}

/// Results of a dispatch as words.
#[derive(Clone, Copy)]
pub(crate) struct Sink<'a, 'b> {
    pub store: &'a Store<'b>,
}

impl Sink<'_, '_> {
    /// Whether results are stored without an epilogue.
    pub fn is_direct(&self) -> bool {
        self.store.epilogue.is_none()
    }

    /// The results `range` themselves, if no epilogue is applied.
    /// # Safety
    /// The caller owns them.
    pub unsafe fn direct<'c>(&self, range: Range<usize>) -> Option<&'c mut [u32]> {
        // SAFETY: owned by the caller.
        self.is_direct().then(|| unsafe { self.store.y.slice_mut(range) })
    }

    /// Stores `values` as the results from element `first` on. May overwrite `values`.
    /// # Safety
    /// The caller owns these results.
    pub unsafe fn put(&self, first: usize, values: &mut [u32]) {
        // SAFETY: owned by the caller.
        unsafe {
            self.store.put::<u32>(first, values, None);
        }
    }

    /// Stores the results `range`, which `f(first, values)` computes: all at once, or in runs of at
    /// most `run` elements if there is an epilogue.
    /// # Safety
    /// The caller owns these results.
    #[inline(always)]
    pub unsafe fn fill(
        &self,
        range: Range<usize>,
        run: usize,
        scratch: &mut Scratch,
        mut f: impl FnMut(usize, &mut [u32]),
    ) {
        // SAFETY: owned by the caller.
        if let Some(y) = unsafe { self.direct(range.clone()) } {
            if !y.is_empty() {
                f(range.start, y);
            }
            return;
        }
        for first in range.clone().step_by(run.max(1)) {
            let values = scratch.of(run.max(1).min(range.end - first));
            f(first, values);
            // SAFETY: owned by the caller.
            unsafe { self.put(first, values) };
        }
    }
}

/// Number of pieces for `work` moved elements, which can be cut into at most `parts` parts.
pub(crate) fn pieces(work: usize, parts: usize, threads: usize) -> usize {
    const LEAST: usize = 16384;
    if threads < 2 || work < 2 * LEAST {
        return 1;
    }
    (work / LEAST).min(8 * threads).min(parts).max(1)
}

/// Drops axes of one element and merges neighbouring axes that can be walked as one. Returns sizes,
/// steps and the number of axes, innermost first. Axes beyond that number have size 1 and step 0.
pub(crate) fn merged<const N: usize>(
    sizes: [usize; N],
    steps: [isize; N],
) -> ([usize; N], [isize; N], usize) {
    let (mut all, mut by, mut rank) = ([1usize; N], [0isize; N], 0);
    for (n, s) in sizes.into_iter().zip(steps).filter(|(n, _)| *n != 1) {
        if rank > 0 && by[rank - 1] * all[rank - 1].cast_signed() == s {
            all[rank - 1] *= n;
        } else {
            (all[rank], by[rank]) = (n, s);
            rank += 1;
        }
    }
    (all, by, rank)
}

/// An index in a row-major box, and its offset in an operand with a step for each axis. Axes are
/// innermost first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<const N: usize> {
    pub sizes: [usize; N],
    steps: [isize; N],
    pub index: [usize; N],
    pub offset: isize,
}

impl<const N: usize> Cursor<N> {
    /// The cursor at element `first` of a box of `sizes`; the last axis is unbounded.
    pub fn new(sizes: [usize; N], steps: [isize; N], start: isize, first: usize) -> Self {
        let (mut index, mut rest, mut offset) = ([0; N], first, start);
        for i in 0..N {
            let n = if i + 1 == N { usize::MAX } else { sizes[i].max(1) };
            index[i] = rest % n;
            rest /= n;
            offset += index[i].cast_signed() * steps[i];
        }
        Self {
            sizes,
            steps,
            index,
            offset,
        }
    }

    /// Number of elements up to the end of the row.
    pub fn row(&self) -> usize {
        self.sizes[0] - self.index[0]
    }

    /// Moves on by `n` elements of the same row.
    #[inline(always)]
    pub fn advance(&mut self, n: usize) {
        self.index[0] += n;
        self.offset += n.cast_signed() * self.steps[0];
        for i in 0..N - 1 {
            if self.index[i] < self.sizes[i] {
                break;
            }
            self.offset += self.steps[i + 1] - self.index[i].cast_signed() * self.steps[i];
            self.index[i] = 0;
            self.index[i + 1] += 1;
        }
    }
}

#[cfg(test)]
pub(crate) mod check {
    //! Runs kernels on all instruction sets and compares results.

    use crate::backend::cpu::args::{Bound, Memory, NativeKernel, Scratch, Store};
    use crate::backend::cpu::isa::Isa;
    use crate::backend::kernel::{Arguments, KernelSpec, Signature};
    use crate::tensor::DType;
    use half::f16;

    /// An operand: its contents, or its size if it is a result.
    #[derive(Clone, Debug)]
    pub enum Given {
        F(Vec<f32>),
        H(Vec<f16>),
        I(Vec<i32>),
        None,
    }

    impl Given {
        pub fn dtype(&self) -> Option<DType> {
            match self {
                Self::F(_) => Some(DType::F32),
                Self::H(_) => Some(DType::F16),
                Self::I(_) => Some(DType::I32),
                Self::None => None,
            }
        }

        fn memory(&mut self) -> Option<Memory> {
            let (at, len) = match self {
                Self::F(v) => (v.as_mut_ptr().cast(), 4 * v.len()),
                Self::H(v) => (v.as_mut_ptr().cast(), 2 * v.len()),
                Self::I(v) => (v.as_mut_ptr().cast(), 4 * v.len()),
                Self::None => return None,
            };
            // SAFETY: the vectors outlive the run.
            Some(unsafe { Memory::new(at, len) })
        }
    }

    /// Pseudorandom numbers from -1 to 1.
    pub fn floats(n: usize, seed: u32) -> Vec<f32> {
        ints(n, seed, 1 << 20)
            .into_iter()
            .map(|v| v as f32 / (1 << 20) as f32)
            .collect()
    }

    pub fn ints(n: usize, seed: u32, limit: i32) -> Vec<i32> {
        let mut s = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut next = || {
            s ^= s << 13;
            s ^= s >> 17;
            s ^= s << 5;
            (s >> 4) as i32 % (2 * limit + 1) - limit
        };
        (0..n).map(|_| next()).collect()
    }

    fn change(i: usize, v: f32) -> f32 {
        2.0 * v + (i % 7) as f32
    }

    fn epilogue(first: usize, values: &mut [f32], _: Option<&[f32]>) {
        for (i, v) in values.iter_mut().enumerate() {
            *v = change(first + i, *v);
        }
    }

    fn same(got: &Given, want: &Given, tolerance: f32, what: &str) {
        match (got, want) {
            (Given::F(got), Given::F(want)) => {
                for (i, (g, w)) in got.iter().zip(want).enumerate() {
                    let near = (g - w).abs() <= tolerance * (1.0 + w.abs());
                    assert!(
                        g == w || near || g.is_nan() && w.is_nan(),
                        "{what}: {g}, not {w} at {i}"
                    );
                }
            }
            (Given::I(got), Given::I(want)) => assert_eq!(got, want, "{what}"),
            _ => panic!("{what}: types"),
        }
    }

    /// Runs kernel `K` in several cuts, with and without an epilogue of the first result. Compares
    /// the operands from `first_result` on with `want`. Before the run, they hold what `operands`
    /// says.
    pub fn expect<K: NativeKernel>(
        defines: &[(&'static str, i64)],
        params: &[u32],
        operands: &[Given],
        want: &[Given],
        tolerance: f32,
    ) {
        assert_eq!(params.len(), K::Signature::PARAMS.len());
        assert_eq!(operands.len(), K::Signature::OPERANDS.len());
        let first = operands.len() - want.len();
        let spec = KernelSpec {
            defines: defines.iter().copied().collect(),
            operands: operands.iter().map(Given::dtype).collect(),
            ..crate::kernels::cpu::blank()
        };
        let floats = matches!(want[0], Given::F(_));
        for isa in Isa::supported() {
            let kernel = K::new(&spec, isa).expect("a kernel");
            for (cut, with) in (0..5)
                .flat_map(|c| [(c, false), (c, true)])
                .filter(|c| floats || !c.1)
            {
                let mut operands = operands.to_vec();
                let memory: Vec<_> = operands.iter_mut().map(Given::memory).collect();
                let args =
                    <K::Signature as Signature>::On::<Bound>::read(params, &memory).expect("arguments");
                assert!(kernel.fits(&args), "{params:?}");
                let y = memory[first].expect("a result");
                let store = Store {
                    y,
                    epilogue: if with { Some(&epilogue) } else { None },
                };
                let pieces = [1, 2, 3, 7, kernel.pieces(&args, 2)][cut];
                let mut scratch = Scratch::default();
                for piece in (0..pieces).rev() {
                    // SAFETY: the operands fit.
                    unsafe { kernel.run(&args, &store, piece, pieces, &mut scratch) };
                }
                let mut want = want.to_vec();
                if let (true, Given::F(w)) = (with, &mut want[0]) {
                    for (i, w) in w.iter_mut().enumerate() {
                        *w = change(i, *w);
                    }
                }
                for (got, want) in operands[first..].iter().zip(&want) {
                    same(
                        got,
                        want,
                        tolerance,
                        &format!("{isa:?} {defines:?} {params:?} {pieces} {with}"),
                    );
                }
            }
        }
    }

    /// Results, filled with values that no kernel is likely to write.
    pub fn blank(want: &Given) -> Given {
        match want {
            Given::F(v) => Given::F(vec![-77.0; v.len()]),
            Given::I(v) => Given::I(vec![-77; v.len()]),
            other => other.clone(),
        }
    }
}
