//! Tests of byte convolutions: shapes around the sizes of tiles and vectors, extreme values, both
//! arithmetics, every instruction set, and several thread counts.

use crate::backend::cpu::args::Memory;
use crate::backend::cpu::isa::Isa;
use crate::kernels::cpu::harness::{Random, memory, run, spec};
use crate::kernels::int8_conv::cpu::Int8Conv;
use crate::kernels::int8_conv::cpu_depthwise::Int8Depthwise;
use crate::tensor::DType;

/// A convolution. `channels` and `outputs` are those of one group; a depthwise convolution has
/// groups of one channel.
#[derive(Clone, Copy, Debug)]
struct Conv {
    images: usize,
    size: [usize; 2],
    channels: usize,
    outputs: usize,
    groups: usize,
    kernel: [usize; 2],
    strides: [usize; 2],
    dilations: [usize; 2],
    pads: [usize; 2],
    after: [usize; 2],
    is_depthwise: bool,
    is_fixed: bool,
}

const ZERO: i32 = 11;
const X_ZERO: i32 = -9;
const BOUNDS: [i32; 2] = [-90, 120];

/// The operands of a convolution.
struct Data {
    x: Vec<i8>,
    w: Vec<i8>,
    bias: Vec<i32>,
    factors: Vec<i32>,
}

/// gemmlowp's arithmetic, written as in its reference implementation.
fn fixed(x: i32, mantissa: i32, shift: i32) -> i32 {
    let left = (i64::from(x) << shift.max(0)).clamp(i32::MIN.into(), i32::MAX.into());
    let product = left * i64::from(mantissa);
    let nudge = if product >= 0 { 1 << 30 } else { 1 - (1 << 30) };
    let high = ((product + nudge) / (1 << 31)) as i32;
    let mask = (1i64 << (-shift).max(0)) - 1;
    let threshold = (mask >> 1) + i64::from(high < 0);
    (high >> (-shift).max(0)) + i32::from((i64::from(high) & mask) > threshold)
}

impl Conv {
    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    fn out(&self, i: usize) -> usize {
        let extent = (self.kernel[i] - 1) * self.dilations[i] + 1;
        (self.size[i] + self.pads[i] + self.after[i] - extent) / self.strides[i] + 1
    }

    /// Total numbers of input and output channels.
    fn all(&self) -> [usize; 2] {
        [self.groups * self.channels, self.groups * self.outputs]
    }

    fn data(&self, random: &mut Random, extreme: bool) -> Data {
        let [inputs, outputs] = self.all();
        let mut bytes = |count: usize| -> Vec<i8> {
            let mut byte = || match extreme {
                true => [-128, 127, -127, -128][random.below(4)],
                false => random.word() as i8,
            };
            (0..count).map(|_| byte()).collect()
        };
        let x = bytes(self.images * self.size[0] * self.size[1] * inputs);
        let w = bytes(outputs * self.taps() * self.channels);
        let bias = (0..outputs)
            .map(|_| random.below(20_001) as i32 - 10_000)
            .collect();
        let terms = (self.taps() * self.channels) as f32;
        let mut factors: Vec<i32> = Vec::new();
        for i in 0..outputs {
            factors.push(match (self.is_fixed, i % 3) {
                (true, 0) => 1 << 30,
                (true, _) => (1 << 30) + (random.word() >> 2).cast_signed(),
                // Powers of two cause ties.
                (_, 0) => 2f32.powi(-9).to_bits().cast_signed(),
                (_, 1) => (random.float().abs() * 0.02 / terms.sqrt())
                    .to_bits()
                    .cast_signed(),
                _ => 3f32.to_bits().cast_signed(),
            });
        }
        if self.is_fixed {
            factors.extend((0..outputs).map(|i| match i % 7 {
                0 => random.below(20) as i32 - 15,
                _ => -6 - random.below(6) as i32,
            }));
        }
        Data { x, w, bias, factors }
    }

    /// The element of a channel that tap `tap` of window `[image, oy, ox]` reads.
    fn element(&self, x: &[i8], [image, oy, ox]: [usize; 3], tap: usize, channel: usize) -> i32 {
        let at = |i: usize, o: usize, k: usize| {
            let at = (o * self.strides[i] + k * self.dilations[i]).checked_sub(self.pads[i])?;
            (at < self.size[i]).then_some(at)
        };
        let (y, column) = (at(0, oy, tap / self.kernel[1]), at(1, ox, tap % self.kernel[1]));
        let (Some(y), Some(column)) = (y, column) else {
            return X_ZERO;
        };
        let row = (image * self.size[0] + y) * self.size[1] + column;
        x[row * self.all()[0] + channel].into()
    }

    fn reference(&self, data: &Data) -> Vec<i8> {
        let mut y = Vec::new();
        let [_, outputs] = self.all();
        let windows = self.out(0) * self.out(1);
        for row in 0..self.images * windows {
            let at = [row / windows, row % windows / self.out(1), row % self.out(1)];
            for o in 0..outputs {
                let mut sum = data.bias[o];
                for tap in 0..self.taps() {
                    for c in 0..self.channels {
                        let channel = o / self.outputs * self.channels + c;
                        let w = match self.is_depthwise {
                            true => tap * outputs + o,
                            false => (o * self.taps() + tap) * self.channels + c,
                        };
                        sum += self.element(&data.x, at, tap, channel) * i32::from(data.w[w]);
                    }
                }
                let factor = data.factors[o];
                let rounded = match self.is_fixed {
                    true => fixed(sum, factor, data.factors[outputs + o]),
                    false => (sum as f32 * f32::from_bits(factor.cast_unsigned())).round_ties_even() as i32,
                };
                y.push(rounded.saturating_add(ZERO).clamp(BOUNDS[0], BOUNDS[1]) as i8);
            }
        }
        y
    }

    /// The parameters of the kernel.
    fn words(&self) -> Vec<u32> {
        let [inputs, outputs] = self.all();
        let rows = self.images * self.out(0) * self.out(1);
        let mut sizes = vec![self.size[0], self.size[1], self.out(0), self.out(1)];
        if self.is_depthwise {
            sizes.extend([inputs / 4, rows]);
        } else {
            sizes.extend([self.channels / 4, inputs / 4, self.outputs / 4, outputs / 4, rows]);
        }
        let ends = [
            self.pads[0] as i32,
            self.pads[1] as i32,
            X_ZERO,
            ZERO,
            BOUNDS[0],
            BOUNDS[1],
        ];
        let sizes = sizes.iter().map(|v| *v as u32);
        sizes.chain(ends.map(i32::cast_unsigned)).collect()
    }

    fn check(&self, random: &mut Random, extreme: bool) {
        let mut data = self.data(random, extreme);
        let want = self.reference(&data);
        let mut w = match self.is_depthwise {
            true => data.w.clone(),
            false => packed(&data.w, self.all()[1]),
        };
        let mut defines = vec![
            ("KH", self.kernel[0] as i64),
            ("KW", self.kernel[1] as i64),
            ("SH", self.strides[0] as i64),
            ("SW", self.strides[1] as i64),
            ("DH", self.dilations[0] as i64),
            ("DW", self.dilations[1] as i64),
        ];
        if self.is_fixed {
            defines.push(("FIXED", 1));
        }
        let spec = spec(&defines, &[Some(DType::I8); 5]);
        for isa in Isa::supported() {
            for threads in [1, 4] {
                // Bytes after the results must not change.
                let mut y = vec![77i8; want.len() + 64];
                let at = memory(&mut y[..want.len()]);
                let operands: Vec<Option<Memory>> = vec![
                    Some(memory(&mut data.x)),
                    Some(memory(&mut w)),
                    Some(memory(&mut data.bias)),
                    Some(memory(&mut data.factors)),
                    Some(at),
                ];
                if self.is_depthwise {
                    run::<Int8Depthwise>(&spec, isa, &self.words(), &operands, at, false, threads);
                } else {
                    run::<Int8Conv>(&spec, isa, &self.words(), &operands, at, false, threads);
                }
                let (own, rest) = y.split_at(want.len());
                let first = own.iter().zip(&want).position(|(y, want)| y != want);
                assert_eq!(first, None, "{isa:?} {threads} {self:?}");
                assert!(rest.iter().all(|v| *v == 77), "{isa:?} {self:?}");
            }
        }
    }
}

/// Weights as `Pack::Words` packs them: panels of 16 channels, each followed by its sums.
fn packed(w: &[i8], outputs: usize) -> Vec<i8> {
    let each = w.len() / outputs;
    let panel = (each + 4) * 16;
    let mut all = vec![0i8; outputs.div_ceil(16) * panel];
    for (o, slice) in w.chunks(each).enumerate() {
        let at = |row: usize| o / 16 * panel + (row * 16 + o % 16) * 4;
        for (row, word) in slice.chunks(4).enumerate() {
            all[at(row)..at(row) + 4].copy_from_slice(word);
        }
        let sum: i32 = slice.iter().map(|v| i32::from(*v)).sum();
        let sum = sum.to_le_bytes().map(u8::cast_signed);
        all[at(each / 4)..at(each / 4) + 4].copy_from_slice(&sum);
    }
    all
}

const PLAIN: Conv = Conv {
    images: 1,
    size: [1, 1],
    channels: 4,
    outputs: 4,
    groups: 1,
    kernel: [1, 1],
    strides: [1, 1],
    dilations: [1, 1],
    pads: [0, 0],
    after: [0, 0],
    is_depthwise: false,
    is_fixed: false,
};

#[test]
fn products_of_any_size_match() {
    let mut random = Random(1);
    for rows in [1, 2, 3, 5, 7, 9, 12, 13, 25] {
        for outputs in [4, 12, 16, 20, 36, 48, 52, 64, 68, 132] {
            let c = Conv {
                size: [1, rows],
                channels: 4 * (1 + random.below(20)),
                outputs,
                is_fixed: random.below(2) == 0,
                ..PLAIN
            };
            c.check(&mut random, rows % 3 == 0);
        }
    }
}

/// Random windows, strides, dilations and padding.
fn windows(random: &mut Random, c: Conv) -> Conv {
    let mut pick = |from: usize, count: usize| from + random.below(count);
    let kernel = [[3, 3], [3, 3], [1, 1], [3, 1], [2, 4], [3, 5], [5, 2]][pick(0, 7)];
    let plain = pick(0, 2) == 0;
    let dilations = if plain { [1, 1] } else { [pick(1, 2), pick(1, 2)] };
    let reach = [0, 1].map(|i| (kernel[i] - 1) * dilations[i]);
    Conv {
        images: pick(1, 2),
        size: [0, 1].map(|i| (pick(1, 12)).max(reach[i])),
        kernel,
        strides: if plain {
            [pick(1, 2); 2]
        } else {
            [pick(1, 3), pick(1, 3)]
        },
        dilations,
        pads: reach.map(|r| r.min(1)),
        after: reach.map(|r| r.min(2)),
        is_fixed: pick(0, 2) == 0,
        ..c
    }
}

#[test]
fn convolutions_match() {
    let mut random = Random(2);
    for i in 0..60 {
        let c = Conv {
            channels: 4 * (1 + random.below(5)),
            outputs: 4 * (1 + random.below(17)),
            groups: [1, 1, 2, 3][random.below(4)],
            ..PLAIN
        };
        windows(&mut random, c).check(&mut random, i % 5 == 0);
    }
}

#[test]
fn depthwise_convolutions_match() {
    let mut random = Random(3);
    for i in 0..80 {
        let words = match i % 4 {
            0 => 16 * (1 + random.below(3)),
            1 => [1, 2, 4, 8][random.below(4)],
            _ => 1 + random.below(40),
        };
        let c = Conv {
            channels: 1,
            outputs: 1,
            groups: 4 * words,
            is_depthwise: true,
            ..PLAIN
        };
        windows(&mut random, c).check(&mut random, i % 5 == 0);
    }
}
