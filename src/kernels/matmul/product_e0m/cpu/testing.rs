//! Random weights and activations, and memory of operands, for tests.

use crate::backend::cpu::args::{Bound, Memory, NativeKernel, Scratch, Store};
use crate::backend::kernel::{Arguments, KernelSpec, Signature};
use crate::quant::{Bits, Format, Scales, nested};
use half::f16;

/// Memory aligned to 64 bytes.
#[derive(Clone)]
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    /// Read through pointers.
    _bytes: [u8; 64],
}

impl Buffer {
    /// `count` elements of 4 bytes with arbitrary contents.
    pub fn new(count: usize) -> Self {
        Self {
            lines: vec![Line { _bytes: [0xA5; 64] }; (count * 4).div_ceil(64)],
            len: count * 4,
        }
    }

    pub fn of<T: bytemuck::Pod>(values: &[T]) -> Self {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut buffer = Self::new(bytes.len() / 4);
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: lines hold at least as many bytes.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    pub fn memory(&mut self) -> Memory {
        // SAFETY: tests keep the buffer while they use the memory.
        unsafe { Memory::new(self.lines.as_mut_ptr().cast(), self.len) }
    }

    pub fn floats(&mut self) -> &[f32] {
        bytemuck::cast_slice(self.bytes_mut())
    }
}

pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub fn uniform(&mut self) -> f64 {
        ((self.next() & 0xFFFF_FFFF) as f64 + 0.5) / 4_294_967_296.0
    }

    pub fn normal(&mut self) -> f32 {
        let (u, v) = (self.uniform(), self.uniform());
        ((-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()) as f32
    }

    pub fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }
}

/// Packed weights and what they decode to.
pub struct Weights {
    pub codes: Buffer,
    pub scales: Buffer,
    /// `[k][n]`: scale, and `w1 - bias`; or a number of the size of the terms, and the weight
    /// relative to it.
    pub decoded: Vec<(f64, f64)>,
}

impl Weights {
    pub fn new(bits: usize, group: usize, k: usize, n: usize, seed: u64) -> Self {
        let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ seed);
        let panels = n.div_ceil(16);
        let (rows, groups) = (k * bits / 32, k.div_ceil(group));
        let mut codes = vec![0u32; panels * rows * 16];
        let mut scales = vec![0u32; panels * groups * 16];
        let mut decoded = vec![(0.0, 0.0); k * n];
        for c in 0..n {
            let panel = c / 16;
            for g in 0..groups {
                let scale = f16::from_f64(0.01 + 0.02 * rng.uniform());
                let bias = f16::from_f64(2.875 + (rng.next() % 3) as f64 * 0.125);
                scales[(panel * groups + g) * 16 + c % 16] =
                    u32::from(scale.to_bits()) | u32::from(bias.to_bits()) << 16;
                for i in g * group..k.min((g + 1) * group) {
                    let code = (rng.next() >> 5) as u32 & ((1 << bits) - 1);
                    put(&mut codes[panel * rows * 16..], bits, i, c % 16, code);
                    let level = 2.0 + f64::from(code) / f64::from(1u32 << (bits - 1));
                    decoded[i * n + c] = (scale.to_f64(), level - bias.to_f64());
                }
            }
        }
        Self {
            codes: Buffer::of(&codes),
            scales: Buffer::of(&scales),
            decoded,
        }
    }

    /// With nested scales.
    pub fn nested(bits: usize, k: usize, n: usize, seed: u64) -> Self {
        let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ seed);
        let format = Format::nested(Bits::new(bits as i64).unwrap()).unwrap();
        let Scales::Nested(nested) = format.scales else {
            panic!("{format}")
        };
        let columns = n.next_multiple_of(16);
        let (mut rows, mut codes) = (
            vec![0; nested.rows(k) * columns],
            vec![0; k * bits / 32 * columns],
        );
        let mut decoded = vec![(0.0, 0.0); k * n];
        for j in 0..n {
            for b in 0..k / nested::BLOCK {
                let mut block = nested::Block {
                    halves: [0.002, 0.004].map(|most| f16::from_f64(most * (2.0 * rng.uniform() - 1.0))),
                    ..Default::default()
                };
                for g in 0..nested.groups() {
                    let number = rng.next() >> 9;
                    let (scale, minimum) = match (nested.minima, nested.is_six()) {
                        (true, true) => (number as i8 & 63, (number >> 8) as u8 & 63),
                        (true, false) => (number as i8 & 15, (number >> 8) as u8 & 15),
                        (false, true) => ((number as i8 & 63) - 32, 0),
                        (false, false) => (number as i8, 0),
                    };
                    (block.scales[g], block.minima[g]) = (scale, minimum);
                }
                assert!(nested.set(&mut rows, columns, k, (b, j), &block));
            }
            for i in 0..k {
                let code = (rng.next() >> 5) as u32 & ((1 << bits) - 1);
                put(&mut codes[j / 16 * (k * bits / 32 * 16)..], bits, i, j % 16, code);
                let [unit, rest] = nested
                    .get(&rows, columns, k, (i / nested.group, j))
                    .map(f64::from);
                let weight = unit * (f64::from(code) - f64::from(nested.zero())) + rest;
                // The size of what is added.
                let size = unit.abs() * f64::from(1u32 << bits) + rest.abs();
                decoded[i * n + j] = (size, if size > 0.0 { weight / size } else { 0.0 });
            }
        }
        let mut scales = vec![0; rows.len()];
        let height = nested.rows(k);
        for (at, word) in rows.iter().enumerate() {
            let (row, j) = (at / columns, at % columns);
            scales[(j / 16 * height + row) * 16 + j % 16] = *word;
        }
        Self {
            codes: Buffer::of(&codes),
            scales: Buffer::of(&scales),
            decoded,
        }
    }

    /// Row `x` times column `c` of `n`, and the sum of the magnitudes of what is added.
    pub fn product(&self, x: &[f64], c: usize, n: usize) -> (f64, f64) {
        x.iter().enumerate().fold((0.0, 0.0), |(sum, all), (i, x)| {
            let (scale, w) = self.decoded[i * n + c];
            (sum + x * scale * w, all + (x * scale).abs() * 3.0)
        })
    }
}

/// Stores a quantized weight in a panel as src/quant/format.rs does.
fn put(panel: &mut [u32], bits: usize, k: usize, column: usize, code: u32) {
    let planes: &[(usize, usize)] = match bits {
        3 => &[(2, 0), (1, 2)],
        5 => &[(4, 0), (1, 4)],
        6 => &[(4, 0), (2, 4)],
        _ => &[(bits, 0)],
    };
    let mut left = bits;
    for (width, row) in planes {
        left -= width;
        let (per, k32) = (32 / width, k % 32);
        let i = k32 % per;
        let row = k / 32 * bits + row + k32 / per;
        let part = code >> left & ((1 << width) - 1);
        panel[row * 16 + column] |= part << (i / 2 * width + i % 2 * 16);
    }
}

pub fn spec(defines: &[(&'static str, usize)]) -> KernelSpec {
    let defines = defines
        .iter()
        .map(|(name, v)| (*name, i64::try_from(*v).unwrap()))
        .collect();
    KernelSpec {
        defines,
        operands: vec![],
        ..crate::kernels::cpu::blank()
    }
}

pub type Epilogue<'a> = &'a (dyn Fn(usize, &mut [f32], Option<&[f32]>) + Sync);

/// Runs a kernel as `threads` threads would, piece after piece.
pub fn run<K: NativeKernel>(
    kernel: &K,
    words: &[u32],
    operands: &[Option<Memory>],
    (y, epilogue): (Memory, Option<Epilogue<'_>>),
    threads: usize,
) {
    let args = <K::Signature as Signature>::On::<Bound>::read(words, operands).unwrap();
    assert!(kernel.fits(&args), "the operands have the sizes that they state");
    let pieces = kernel.pieces(&args, threads);
    let (store, mut scratch) = (
        Store {
            y,
            epilogue: epilogue
                .as_ref()
                .map(|f| f as &dyn crate::backend::cpu::args::Finish),
        },
        Scratch::default(),
    );
    for piece in 0..pieces {
        // SAFETY: the operands fit.
        unsafe { kernel.run(&args, &store, piece, pieces, &mut scratch) };
    }
}
