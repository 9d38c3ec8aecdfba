//! What a kernel gets from a dispatch: memory of operands, parameters, and where results go.

use crate::backend::kernel::{Concrete, KernelSpec, Signature, Stage};
use crate::tensor::DType;
use bytemuck::Pod;
use half::f16;
use std::ops::Range;

use super::isa::Isa;

/// The memory of an operand, aligned to 64 bytes. Pieces of one dispatch run on several threads at
/// once. So this is a pointer, and a kernel makes slices only of the parts that a piece owns.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    at: *mut u8,
    len: usize,
}

// SAFETY: a pointer and a length; callers that make slices of it ensure that these are disjoint or
// read-only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// `at` is valid for reads and writes of `len` bytes for as long as the value is used.
    pub const unsafe fn new(at: *mut u8, len: usize) -> Self {
        Self { at, len }
    }

    /// The `len` bytes from byte `offset` on; `None` if they are out of bounds.
    pub fn view(self, offset: usize, len: usize) -> Option<Self> {
        let inside = offset.checked_add(len)? <= self.len;
        // SAFETY: inside the memory.
        inside.then(|| unsafe { Self::new(self.at.add(offset), len) })
    }

    /// Number of elements.
    pub fn elements<T>(self) -> usize {
        self.len / size_of::<T>()
    }

    /// Number of floats, which are halves (f16) or f32.
    pub fn floats(self, halves: bool) -> usize {
        if halves {
            self.elements::<f16>()
        } else {
            self.elements::<f32>()
        }
    }

    /// Whether there are at least `count` elements.
    pub fn holds<T>(self, count: usize) -> bool {
        count <= self.elements::<T>()
    }

    pub fn as_ptr<T>(self) -> *mut T {
        self.at.cast()
    }

    /// All elements.
    /// # Safety
    /// No one writes them during `'a`.
    pub unsafe fn slice<'a, T: Pod>(self) -> &'a [T] {
        // SAFETY: views are aligned to 64 bytes.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.elements::<T>()) }
    }

    /// Elements `range`; panics if they are out of bounds.
    /// # Safety
    /// No one else reads or writes them during `'a`.
    pub unsafe fn slice_mut<'a, T: Pod>(self, range: Range<usize>) -> &'a mut [T] {
        let at = self.checked::<T>(range.clone());
        // SAFETY: inside the memory, and owned by the caller.
        unsafe { std::slice::from_raw_parts_mut(at, range.len()) }
    }

    /// The address of elements `range`; panics if they are out of bounds.
    fn checked<T>(self, range: Range<usize>) -> *mut T {
        assert!(
            range.start <= range.end && range.end <= self.elements::<T>(),
            "{range:?} of {}",
            self.elements::<T>()
        );
        self.at.cast::<T>().wrapping_add(range.start)
    }
}

/// The arguments of a native kernel: the operands are memory, and the parameters numbers.
#[derive(Clone, Copy, Debug)]
pub struct Bound;

impl Stage for Bound {
    type Operand = Memory;
    type U32 = usize;
    type I32 = i32;
    type F32 = f32;
}

impl Concrete for Bound {
    fn to_u32(word: u32) -> usize {
        word as usize
    }
    fn to_i32(word: u32) -> i32 {
        word.cast_signed()
    }
    fn to_f32(word: u32) -> f32 {
        f32::from_bits(word)
    }
}

/// Bounds that change nothing.
pub const UNBOUNDED: [f32; 2] = [f32::NEG_INFINITY, f32::INFINITY];

/// Turns the results of a kernel into those that are stored.
pub trait Finish: Sync {
    /// Whether results have 64 bits instead of 32.
    fn is_long(&self) -> bool {
        false
    }

    /// The bounds, if this is what the results are clamped to and nothing else.
    fn clamp(&self) -> Option<[f32; 2]> {
        None
    }

    /// Writes the final results from element `first` on to `out`. `values` are those that the
    /// kernel computed, and `second` the second ones of kernels that compute two per element.
    ///
    /// # Safety
    ///
    /// The caller owns the `count` results at `out`, and the values have as many. If `out` shares
    /// memory with an operand, that operand has one element for each result.
    unsafe fn run(
        &self,
        first: usize,
        values: Option<&[u32]>,
        second: Option<&[u32]>,
        out: *mut u32,
        count: usize,
    );
}

/// Stores results, through the epilogue if the dispatch has one. Elements have 32 bits, or 64
/// without an epilogue.
#[derive(Clone, Copy)]
pub struct Store<'a> {
    /// The memory of the results.
    pub y: Memory,
    /// The epilogue.
    pub epilogue: Option<&'a dyn Finish>,
}

impl Store<'_> {
    /// The results `range` themselves, if there is no epilogue.
    ///
    /// # Safety
    ///
    /// The caller owns them.
    pub unsafe fn direct<'b, T: Pod>(&self, range: Range<usize>) -> Option<&'b mut [T]> {
        // SAFETY: owned by the caller.
        self.epilogue
            .is_none()
            .then(|| unsafe { self.y.slice_mut(range) })
    }

    /// The address of result `first` under the conditions of [`Store::direct`]. It is for kernels
    /// that may work in place and therefore must not hold slices.
    pub fn address<T>(&self, first: usize) -> Option<*mut T> {
        self.epilogue
            .is_none()
            .then(|| self.y.as_ptr::<T>().wrapping_add(first))
    }

    /// The bounds to which a kernel may clamp results before it writes them itself; infinite if
    /// there is no epilogue. `None` if results must go through [`Store::put`].
    pub fn clamp(&self) -> Option<[f32; 2]> {
        self.epilogue.map_or(Some(UNBOUNDED), Finish::clamp)
    }

    /// Stores `values` as the results from element `first` on. `second` are the second results of
    /// kernels that compute two per element.
    ///
    /// # Safety
    ///
    /// The caller owns these results.
    pub unsafe fn put<T: Pod>(&self, first: usize, values: &[T], second: Option<&[T]>) {
        let count = values.len();
        let y = self.y.checked::<T>(first..first + count).cast::<u32>();
        let words: &[u32] = bytemuck::cast_slice(values);
        // SAFETY: inside the memory, and owned by the caller; the values are elsewhere.
        unsafe {
            match self.epilogue {
                Some(apply) => apply.run(first, Some(words), second.map(bytemuck::cast_slice), y, count),
                None => y.copy_from_nonoverlapping(words.as_ptr(), words.len()),
            }
        }
    }

    /// Computes the results `range` with the epilogue alone; does nothing without an epilogue.
    ///
    /// # Safety
    ///
    /// The caller owns these results.
    pub unsafe fn fill(&self, range: Range<usize>) {
        if let Some(apply) = self.epilogue {
            let y = match apply.is_long() {
                true => self.y.checked::<i64>(range.clone()).cast::<u32>(),
                false => self.y.checked::<u32>(range.clone()),
            };
            // SAFETY: inside the memory, and owned by the caller.
            unsafe { apply.run(range.start, None, None, y, range.len()) };
        }
    }
}

/// Functions of floats act as epilogues in tests.
#[cfg(test)]
impl<F: Fn(usize, &mut [f32], Option<&[f32]>) + Sync> Finish for F {
    unsafe fn run(
        &self,
        first: usize,
        values: Option<&[u32]>,
        second: Option<&[u32]>,
        out: *mut u32,
        count: usize,
    ) {
        // SAFETY: owned by the caller; these functions have no other operands.
        let out = unsafe { std::slice::from_raw_parts_mut(out, count) };
        if let Some(values) = values {
            out.copy_from_slice(values);
        }
        self(
            first,
            bytemuck::cast_slice_mut(out),
            second.map(bytemuck::cast_slice),
        );
    }
}

/// Scratch memory of a thread. It grows as needed and is kept between dispatches.
#[derive(Default)]
pub struct Scratch {
    words: Vec<[u64; 8]>,
}

impl Scratch {
    /// `count` elements with arbitrary contents, aligned as the allocator aligns a `Vec<[u64; 8]>`.
    pub fn floats(&mut self, count: usize) -> &mut [f32] {
        self.of(count)
    }

    pub fn of<T: Pod>(&mut self, count: usize) -> &mut [T] {
        let need = (count * size_of::<T>()).div_ceil(64);
        if self.words.len() < need {
            self.words.resize(need, [0; 8]);
        }
        &mut bytemuck::cast_slice_mut(&mut self.words)[..count]
    }
}

/// The arguments of a native kernel.
pub(crate) type BoundArgs<K> = <<K as NativeKernel>::Signature as Signature>::On<Bound>;

/// A kernel for one spec: element types, defines and instruction set are resolved.
pub trait NativeKernel: Sized + Send + Sync + 'static {
    /// The declared arguments of the descriptor.
    type Signature: Signature<On<Bound>: Sync>;
    /// Names of the operands that may hold halves (f16). All others hold 32-bit words.
    const HALVES: &'static [&'static str] = &[];
    /// Names of the operands that may hold 64-bit integers.
    const LONGS: &'static [&'static str] = &[];

    /// The kernel for a spec; `None` if there is no CPU form for its types or defines. The caller
    /// has checked element sizes against [`Self::HALVES`].
    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self>;

    /// Whether the operands have all elements that the kernel reads and writes, and it can run with
    /// these parameters. It is called once per dispatch and takes constant time. Kernels that check
    /// their reads and writes one by one need no check before.
    fn fits(&self, args: &BoundArgs<Self>) -> bool {
        let _unused = args;
        true
    }

    /// Forgets what pieces share, since one panicked.
    fn abandon(&self) {}

    /// Number of independent pieces into which the dispatch is cut for this many threads. For a
    /// matmul of one row as many as threads, of many rows about 8 per thread; 1 for less than about
    /// 20 microseconds of work.
    fn pieces(&self, args: &BoundArgs<Self>, threads: usize) -> usize;

    /// The number of pieces for kernels that measure devices: one for each work-group of the grid.
    fn work_groups(&self, args: &BoundArgs<Self>, grid: [u32; 3]) -> Option<usize> {
        let _unused = (args, grid);
        None
    }

    /// Runs piece `piece` of `pieces`.
    /// # Safety
    /// [`fits`](Self::fits) is true; each piece runs once; no other command runs at the same time.
    unsafe fn run(
        &self,
        args: &BoundArgs<Self>,
        store: &Store<'_>,
        piece: usize,
        pieces: usize,
        scratch: &mut Scratch,
    );
}

/// What [`NativeKernel::run`] gets. A kernel whose pieces are compiled for each instruction set
/// implements `simd::Job` or `bytes::ScaledJob` for it.
pub(crate) struct Piece<'a, K: NativeKernel> {
    pub kernel: &'a K,
    pub args: &'a BoundArgs<K>,
    pub store: &'a Store<'a>,
    pub piece: usize,
    pub pieces: usize,
    pub scratch: &'a mut Scratch,
}

impl<'a, K: NativeKernel> Piece<'a, K> {
    pub fn new(
        kernel: &'a K,
        args: &'a BoundArgs<K>,
        store: &'a Store<'a>,
        piece: usize,
        pieces: usize,
        scratch: &'a mut Scratch,
    ) -> Self {
        Self {
            kernel,
            args,
            store,
            piece,
            pieces,
            scratch,
        }
    }

    /// The own part of `0..count`, as [`part`] cuts it.
    pub fn part(&self, count: usize, step: usize) -> Range<usize> {
        part(count, step, self.piece, self.pieces)
    }
}

/// The product of sizes. If it overflows, the result is more than any memory holds.
pub fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |n, size| n.saturating_mul(*size))
}

/// Number of elements up to the last one of strided runs of `len` elements. There is a run for each
/// combination of indices along the axes, which have a size and a step. If the number overflows,
/// the result is more than any memory holds.
pub fn reach(axes: &[[usize; 2]], len: usize) -> usize {
    if len == 0 || axes.iter().any(|[size, _]| *size == 0) {
        return 0;
    }
    let last = |[size, step]: &[usize; 2]| (size - 1).saturating_mul(*step);
    axes.iter().map(last).fold(len, usize::saturating_add)
}

/// Part `piece` of `0..count`, which is cut into `pieces` parts at multiples of `step`.
pub fn part(count: usize, step: usize, piece: usize, pieces: usize) -> Range<usize> {
    let units = count.div_ceil(step);
    let at = |i: usize| (units * i / pieces * step).min(count);
    at(piece)..at(piece + 1)
}

/// Number of pieces for `units` units of about `nanos` nanoseconds each, which may be cut between
/// any two units: one if all take less than 20 microseconds, at most 8 per thread.
pub fn pieces_of(units: usize, nanos: usize, threads: usize) -> usize {
    let total = units.saturating_mul(nanos);
    if total < 20_000 || threads < 2 {
        return 1;
    }
    (total / 10_000).clamp(threads, 8 * threads).min(units).max(1)
}

/// The element type of operand `i`.
pub fn dtype(spec: &KernelSpec, i: usize) -> Option<DType> {
    spec.operands.get(i).copied().flatten()
}
