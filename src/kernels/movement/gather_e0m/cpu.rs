//! Columns of an E0M matrix as rows: the rows of a quantized embedding.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part, pieces_of};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::gather::cpu::place;
use half::f16;

type Args = super::Args<Bound>;

/// Weights of a block, which takes a whole number of words in each plane.
const BLOCK: usize = 32;

/// The kernel `gather_e0m`.
pub struct GatherE0m {
    bits: usize,
    /// Weights that share a scale and a bias.
    group: usize,
}

/// Width and first row of each plane of bits, highest bits first.
fn planes(bits: usize) -> &'static [(usize, usize)] {
    match bits {
        2 => &[(2, 0)],
        3 => &[(2, 0), (1, 2)],
        4 => &[(4, 0)],
        5 => &[(4, 0), (1, 4)],
        6 => &[(4, 0), (2, 4)],
        8 => &[(8, 0)],
        _ => &[],
    }
}

impl NativeKernel for GatherE0m {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        let number = |name| {
            spec.defines
                .get(name)
                .and_then(|n| usize::try_from(*n).ok())
                .filter(|n| *n > 0)
        };
        let bits = number(crate::kernels::matmul_e0m::BITS).filter(|b| !planes(*b).is_empty())?;
        let group = number(crate::kernels::matmul_e0m::GROUP)?
            .checked_mul(number(crate::kernels::matmul_e0m::SPAN).unwrap_or(1))?;
        Some(Self { bits, group })
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces_of(args.count / args.k.max(1), args.k, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let k = args.k.max(1);
        // SAFETY: nobody writes operands that are only read.
        let index = unsafe { args.index.slice::<i32>() };
        for i in part(args.count / k, 1, piece, pieces) {
            let Some(from) = place(index.get(i).copied(), args.table_rows, args.first, args.part_rows) else {
                continue;
            };
            // SAFETY: results of this row belong to the piece.
            unsafe {
                if let Some(y) = store.direct(i * k..(i + 1) * k) {
                    self.row(args, from, y);
                } else {
                    let values = scratch.floats(k);
                    self.row(args, from, values);
                    store.put(i * k, values, None);
                }
            }
        }
    }
}

impl GatherE0m {
    /// Decodes a column of the matrix; writes zeros if there is none.
    ///
    /// # Safety
    /// As for [`NativeKernel::run`].
    unsafe fn row(&self, args: &Args, column: Option<usize>, y: &mut [f32]) {
        let panel = args.panel.max(1);
        // SAFETY: nobody writes operands that are only read.
        let (codes, scales) = unsafe { (args.codes.slice::<u32>(), args.scales.slice::<u32>()) };
        let (groups, words) = (args.k.div_ceil(self.group), args.k * self.bits / 32);
        let of = |data: &'_ [u32], rows: usize, column: usize| {
            (column / panel * rows * panel + column % panel).min(data.len())
        };
        let columns = column.map(|c| (&scales[of(scales, groups, c)..], &codes[of(codes, words, c)..]));
        let Some((scales, codes)) = columns else {
            y.fill(0.0);
            return;
        };
        let step = 2.0 / (1u32 << self.bits) as f32;
        for (g, part) in y.chunks_mut(self.group).enumerate() {
            let pair = scales.get(g * panel).copied().unwrap_or(0);
            let [scale, bias] = [pair, pair >> 16].map(|h| f16::from_bits(h as u16).to_f32());
            for (i, y) in part.iter_mut().enumerate() {
                let code = self.code(codes, panel, g * self.group + i);
                *y = scale * (2.0 + code as f32 * step - bias);
            }
        }
    }

    /// The code of weight `k` of a column.
    #[inline]
    fn code(&self, codes: &[u32], panel: usize, k: usize) -> u32 {
        let (block, k) = (k / BLOCK * self.bits, k % BLOCK);
        planes(self.bits).iter().fold(0, |code, &(width, row)| {
            let (per, row) = (32 / width, block + row);
            let i = k % per;
            let word = codes.get((row + k / per) * panel).copied().unwrap_or(0);
            code << width | word >> (i / 2 * width + i % 2 * 16) & ((1 << width) - 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, compare, memory, run, spec};
    use crate::tensor::DType;

    /// Packs codes `[k][n]` into rows of words of panels.
    fn pack(bits: usize, codes: &[u32], k: usize, n: usize, panel: usize) -> Vec<u32> {
        let (rows, stride) = (k * bits / 32, n.next_multiple_of(panel));
        let mut words = vec![0; rows * stride];
        for (at, code) in codes.iter().enumerate() {
            let (t, j) = (at / n, at % n);
            let mut below = bits;
            for (width, first) in planes(bits) {
                below -= width;
                let (per, i) = (32 / width, t % 32 % (32 / width));
                let row = t / 32 * bits + first + t % 32 / per;
                let part = code >> below & ((1 << width) - 1);
                let word = &mut words[(j / panel * rows + row) * panel + j % panel];
                *word |= part << (i / 2 * width + i % 2 * 16);
            }
        }
        words
    }

    fn check(bits: usize, group: usize, span: usize, [k, n, count]: [usize; 3], panel: usize) {
        let mut random = Random(6);
        let codes: Vec<u32> = (0..k * n).map(|_| random.word() & ((1 << bits) - 1)).collect();
        let groups = k.div_ceil(group * span);
        let pairs: Vec<[f16; 2]> = (0..groups * n)
            .map(|_| [random.float(), 3.0 + random.float()].map(f16::from_f32))
            .collect();
        let mut index: Vec<i32> = (0..count)
            .map(|_| random.below(2 * n) as i32 - n as i32)
            .collect();
        index[count / 2] = -1000;
        let mut want = Vec::new();
        for i in &index {
            let j = if *i < 0 { *i + n as i32 } else { *i };
            want.extend((0..k).map(|t| {
                let Some(j) = usize::try_from(j).ok() else {
                    return 0.0;
                };
                let [s, b] = pairs[t / (group * span) * n + j].map(f64::from);
                s * (2.0 + f64::from(codes[t * n + j]) * 2.0 / f64::from(1 << bits) - b)
            }));
        }
        let mut defines = vec![("BITS", bits as i64), ("GROUP", group as i64)];
        defines.extend((span > 1).then_some(("SPAN", span as i64)));
        let types = [DType::U32, DType::U32, DType::I32, DType::F32].map(Some);
        let spec = spec(&defines, &types);
        let cut = n / 2 / panel * panel;
        for epilogue in [false, true] {
            let mut y = vec![f32::NAN; count * k];
            let y_at = memory(&mut y);
            for (first, end) in [(0, cut), (cut, n)] {
                let width = end - first;
                let part: Vec<u32> = (0..k)
                    .flat_map(|t| codes[t * n + first..t * n + end].to_vec())
                    .collect();
                let mut words = pack(bits, &part, k, width, panel);
                let stride = width.next_multiple_of(panel);
                let mut scales = vec![0u32; groups * stride];
                for (g, j) in (0..groups).flat_map(|g| (0..width).map(move |j| (g, j))) {
                    let [s, b] = pairs[g * n + first + j].map(|h| u32::from(h.to_bits()));
                    scales[(j / panel * groups + g) * panel + j % panel] = s | b << 16;
                }
                let operands = [memory(&mut words), memory(&mut scales), memory(&mut index), y_at].map(Some);
                let numbers = [count * k, k, panel, n, first, width].map(|v| v as u32);
                if width > 0 {
                    run::<GatherE0m>(&spec, Isa::Portable, &numbers, &operands, y_at, epilogue, 2);
                }
            }
            compare(&format!("{bits} bits"), &y, &want, epilogue, 1e-6);
        }
    }

    #[test]
    fn all_widths_match() {
        check(8, 64, 1, [576, 130, 5], 16);
        check(4, 32, 1, [64, 50, 3], 16);
        check(4, 64, 2, [136, 10, 3], 16);
        check(2, 32, 1, [80, 50, 4], 64);
        check(3, 16, 1, [96, 34, 4], 16);
        check(5, 32, 1, [96, 50, 3], 16);
        check(6, 96, 3, [288, 66, 50], 16);
    }
}
