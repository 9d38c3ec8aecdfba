//! Runs kernels in tests: every instruction set, several numbers of pieces, with and without an
//! epilogue.

use crate::backend::cpu::args::{Bound, Memory, NativeKernel, Scratch, Store};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::{Arguments, KernelSpec, Signature};
use crate::tensor::DType;
use bytemuck::Pod;
use std::marker::PhantomData;

/// Pseudorandom numbers from -1 to 1, determined by a seed.
pub fn floats(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Memory with these elements. It is never freed.
pub fn memory<T: Pod>(data: &[T]) -> Memory {
    let bytes = bytemuck::cast_slice::<T, u8>(data);
    let words = vec![[0u8; 64]; bytes.len().div_ceil(64) + 1].leak();
    let flat: &mut [u8] = words.as_flattened_mut();
    let start = flat.as_ptr().align_offset(64);
    let own = &mut flat[start..start + bytes.len()];
    own.copy_from_slice(bytes);
    // SAFETY: leaked.
    unsafe { Memory::new(own.as_mut_ptr(), own.len()) }
}

pub struct Case<K> {
    pub words: Vec<u32>,
    pub operands: Vec<Option<(DType, Memory)>>,
    pub defines: Vec<(&'static str, i64)>,
    pub kernel: PhantomData<K>,
}

impl<K: NativeKernel> Case<K> {
    fn results(&self, isa: Isa, count: usize, threads: usize, epilogue: bool) -> Vec<f32> {
        let mut operands = self.operands.clone();
        let y = memory(&vec![f32::NAN; count]);
        operands.push(Some((DType::F32, y)));
        let spec = KernelSpec {
            defines: self.defines.iter().copied().collect(),
            operands: operands.iter().map(|o| o.map(|o| o.0)).collect(),
            ..crate::kernels::cpu::blank()
        };
        let kernel = K::new(&spec, isa).expect("a kernel");
        let memory: Vec<_> = operands.iter().map(|o| o.map(|o| o.1)).collect();
        let args = <K::Signature as Signature>::On::<Bound>::read(&self.words, &memory).expect("arguments");
        let f = |first: usize, values: &mut [f32], _: Option<&[f32]>| {
            for (i, v) in (first..).zip(values) {
                *v = 2.0 * *v + (i % 7) as f32;
            }
        };
        let store = Store {
            y,
            epilogue: if epilogue { Some(&f) } else { None },
        };
        assert!(kernel.fits(&args), "{:?}", self.words);
        let pieces = if threads == 0 {
            5
        } else {
            kernel.pieces(&args, threads)
        };
        let mut scratch = Scratch::default();
        for piece in 0..pieces {
            // SAFETY: the operands fit; one piece runs after another.
            unsafe { kernel.run(&args, &store, piece, pieces, &mut scratch) };
        }
        // SAFETY: no piece runs any more.
        unsafe { y.slice::<f32>() }.to_vec()
    }

    /// Compares results with `want`; `slack` is relative to the largest magnitude in `want`.
    pub fn check(&self, want: &[f64], slack: f64, name: &str) {
        let largest = want
            .iter()
            .fold(1.0, |m: f64, v| if v.is_finite() { m.max(v.abs()) } else { m });
        for isa in Isa::supported() {
            for (threads, epilogue) in [(1, false), (2, true), (0, false), (0, true)] {
                let got = self.results(isa, want.len(), threads, epilogue);
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    let want = if epilogue {
                        2.0 * want + (i % 7) as f64
                    } else {
                        *want
                    };
                    let close = (f64::from(*got) - want).abs() <= 2.0 * slack * largest
                        || f64::from(*got) == want
                        || got.is_nan() && want.is_nan();
                    assert!(
                        close,
                        "{name} {isa:?} {threads} {epilogue}: result {i} is {got}, not {want}"
                    );
                }
            }
        }
    }
}

/// A convolution, and its reference.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    pub images: usize,
    pub groups: usize,
    pub channels: usize,
    pub rows: usize,
    pub size: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub pads: [i32; 2],
    pub after: [i32; 2],
    pub bias: bool,
}

impl Conv {
    pub const fn new(
        [images, groups, channels, rows]: [usize; 4],
        size: [usize; 2],
        kernel: [usize; 2],
    ) -> Self {
        Self {
            images,
            groups,
            channels,
            rows,
            size,
            kernel,
            strides: [1, 1],
            dilations: [1, 1],
            pads: [0, 0],
            after: [0, 0],
            bias: false,
        }
    }

    pub const fn padded(self, pads: [i32; 2], after: [i32; 2]) -> Self {
        Self { pads, after, ..self }
    }

    pub const fn strided(self, strides: [usize; 2], dilations: [usize; 2]) -> Self {
        Self {
            strides,
            dilations,
            ..self
        }
    }

    pub const fn biased(self) -> Self {
        Self { bias: true, ..self }
    }

    pub const fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    pub fn out(&self, axis: usize) -> usize {
        let size = self.size[axis] as i32 + self.pads[axis] + self.after[axis];
        let extent = (self.kernel[axis] - 1) * self.dilations[axis] + 1;
        (size as usize - extent) / self.strides[axis] + 1
    }

    pub fn defines(&self) -> Vec<(&'static str, i64)> {
        let lists = [
            (["KH", "KW"], self.kernel),
            (["SH", "SW"], self.strides),
            (["DH", "DW"], self.dilations),
        ];
        lists
            .iter()
            .flat_map(|(names, v)| [(names[0], v[0] as i64), (names[1], v[1] as i64)])
            .collect()
    }

    pub fn data(&self, seed: u64) -> (Vec<f32>, Vec<f32>, Option<Vec<f32>>) {
        let plane = self.size[0] * self.size[1];
        let x = floats(3 * seed + 1, self.images * self.groups * self.channels * plane);
        let w = floats(
            3 * seed + 2,
            self.groups * self.rows * self.channels * self.taps(),
        );
        (
            x,
            w,
            self.bias.then(|| floats(3 * seed + 3, self.groups * self.rows)),
        )
    }

    pub fn reference(&self, x: &[f32], w: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
        let [h, width] = self.size;
        let mut y = Vec::new();
        for image in 0..self.images {
            for m in 0..self.groups * self.rows {
                for window in 0..self.out(0) * self.out(1) {
                    let (oy, ox) = (window / self.out(1), window % self.out(1));
                    let mut sum = bias.map_or(0.0, |b| f64::from(b[m]));
                    for c in 0..self.channels {
                        let channel = (image * self.groups + m / self.rows) * self.channels + c;
                        for tap in 0..self.taps() {
                            let (ky, kx) = (tap / self.kernel[1], tap % self.kernel[1]);
                            let at = |o: usize, k: usize, i: usize| {
                                (o * self.strides[i] + k * self.dilations[i]) as i32 - self.pads[i]
                            };
                            let (iy, ix) = (at(oy, ky, 0), at(ox, kx, 1));
                            if (0..h as i32).contains(&iy) && (0..width as i32).contains(&ix) {
                                let x = x[(channel * h + iy as usize) * width + ix as usize];
                                let w = w[(m * self.channels + c) * self.taps() + tap];
                                sum += f64::from(x) * f64::from(w);
                            }
                        }
                    }
                    y.push(sum);
                }
            }
        }
        y
    }

    /// Convolutions of all kinds.
    pub fn cases() -> Vec<Self> {
        let pads = |p| ([p, p], [p, p]);
        let (one, ones) = (pads(1), [1, 1]);
        vec![
            Self::new([1, 1, 4, 6], [5, 6], [1, 1]),
            Self::new([3, 1, 5, 17], [7, 7], [1, 1]).biased(),
            Self::new([2, 1, 40, 70], [9, 15], [1, 1]),
            Self::new([2, 1, 9, 10], [1, 1], [1, 1]).biased(),
            Self::new([2, 1, 3, 5], [9, 7], [3, 3])
                .strided([2, 2], ones)
                .padded(one.0, one.1),
            Self::new([2, 1, 16, 67], [11, 13], [3, 3])
                .padded(one.0, one.1)
                .biased(),
            Self::new([1, 1, 8, 8], [20, 48], [3, 3]).padded(one.0, one.1),
            Self::new([1, 1, 3, 16], [40, 42], [7, 7])
                .strided([2, 2], ones)
                .padded([3, 3], [3, 3])
                .biased(),
            Self::new([1, 1, 7, 24], [20, 17], [3, 3])
                .strided([2, 2], ones)
                .padded([1, 0], [0, 1]),
            Self::new([1, 2, 3, 2], [7, 7], [3, 2])
                .strided(ones, [2, 3])
                .padded([2, 1], [2, 1]),
            Self::new([2, 2, 10, 18], [9, 14], [3, 2])
                .strided(ones, [2, 1])
                .padded([2, 1], [2, 2]),
            Self::new([1, 3, 16, 20], [6, 6], [1, 1]).biased(),
            Self::new([1, 1, 3, 9], [8, 41], [1, 1]).strided([2, 2], ones),
            Self::new([1, 1, 2, 3], [1, 70], [1, 5]).padded([0, 2], [0, 2]),
            Self::new([1, 1, 3, 7], [8, 12], [4, 4]).strided([4, 4], ones),
            Self::new([1, 1, 150, 13], [6, 5], [3, 3])
                .padded(one.0, one.1)
                .biased(),
            // One channel in each group.
            Self::new([1, 4, 1, 1], [11, 8], [3, 5])
                .strided([1, 2], ones)
                .padded([0, 2], [1, 3]),
            Self::new([2, 3, 1, 2], [7, 35], [3, 3])
                .padded(one.0, one.1)
                .biased(),
            Self::new([1, 5, 1, 1], [6, 37], [3, 3])
                .strided([2, 2], ones)
                .padded(one.0, one.1),
            Self::new([2, 3, 1, 2], [1, 8], [1, 4]).strided([1, 3], ones),
            Self::new([1, 6, 1, 1], [40, 3], [5, 5])
                .padded([2, 2], [2, 2])
                .biased(),
            Self::new([1, 2, 1, 1], [9, 50], [3, 3])
                .strided([1, 3], [2, 2])
                .padded([2, 2], [2, 2]),
            Self::new([1, 2, 1, 1], [60, 130], [3, 3])
                .strided([1, 1], [1, 1])
                .padded([1, 1], [1, 1]),
        ]
    }
}
