//! Runs kernels in tests.

use crate::backend::cpu::args::{Bound, Memory, NativeKernel, Scratch, Store};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::{Arguments, KernelSpec, Signature};
use crate::tensor::DType;

/// Test data, determined by a seed.
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// From -1 to 1.
    pub fn float(&mut self) -> f32 {
        self.word() as f32 / (1u64 << 31) as f32 - 1.0
    }

    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.word() as usize % n.max(1)
    }
}

pub fn spec(defines: &[(&'static str, i64)], operands: &[Option<DType>]) -> KernelSpec {
    KernelSpec {
        defines: defines.iter().copied().collect(),
        operands: operands.to_vec(),
        ..crate::kernels::cpu::blank()
    }
}

/// The memory of a vector.
pub fn memory<T>(data: &mut [T]) -> Memory {
    // SAFETY: tests keep the vector while kernels run.
    unsafe { Memory::new(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// Runs a kernel on one thread, in the pieces for `threads` threads, last piece first.
pub fn run<K: NativeKernel>(
    spec: &KernelSpec,
    isa: Isa,
    words: &[u32],
    operands: &[Option<Memory>],
    y: Memory,
    epilogue: bool,
    threads: usize,
) {
    let kernel = K::new(spec, isa).expect("a kernel for the spec");
    let args = <K::Signature as Signature>::On::<Bound>::read(words, operands).expect("arguments");
    assert_eq!(words.len(), K::Signature::PARAMS.len());
    assert_eq!(operands.len(), K::Signature::OPERANDS.len());
    let f = |first: usize, values: &mut [f32], _: Option<&[f32]>| {
        for (i, v) in values.iter_mut().enumerate() {
            *v = after(first + i, *v);
        }
    };
    let store = Store {
        y,
        epilogue: if epilogue { Some(&f) } else { None },
    };
    assert!(kernel.fits(&args), "{words:?}");
    let pieces = kernel.pieces(&args, threads);
    let mut scratch = Scratch::default();
    for piece in (0..pieces).rev() {
        // SAFETY: the operands fit.
        unsafe { kernel.run(&args, &store, piece, pieces, &mut scratch) };
    }
}

/// The tests' epilogue, applied to result `i`.
pub fn after(i: usize, v: f32) -> f32 {
    2.0 * v + (i % 7) as f32
}

/// Compares with a reference, to which the epilogue is applied if `epilogue` is set.
pub fn compare(what: &str, y: &[f32], want: &[f64], epilogue: bool, tolerance: f64) {
    assert_eq!(y.len(), want.len(), "{what}");
    for (i, (y, want)) in y.iter().zip(want).enumerate() {
        let want = if epilogue {
            2.0 * want + (i % 7) as f64
        } else {
            *want
        };
        let off = (f64::from(*y) - want).abs();
        assert!(
            off <= tolerance * (1.0 + want.abs()),
            "{what}: result {i} is {y}, not {want}"
        );
    }
}
