//! Columns of an E0M matrix as rows: the rows of a quantized embedding.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part, pieces_of};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::gather::cpu::place;
use crate::kernels::product_e0m::cpu::format_of;
use crate::quant::{Format, PackedView};

type Args = super::Args<Bound>;

/// The kernel `gather_e0m`.
pub struct GatherE0m {
    format: Format,
}

impl NativeKernel for GatherE0m {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, _: Isa) -> Option<Self> {
        format_of(spec).map(|format| Self { format })
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

/// Panel `index` of `words` words.
fn panel_of(data: &[u32], words: usize, index: usize) -> Option<&[u32]> {
    data.get(index * words..)?.get(..words)
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
        let of = |column: usize| {
            Some(PackedView {
                format: self.format,
                k: args.k,
                n: panel,
                codes: panel_of(codes, self.format.bits.rows(args.k) * panel, column / panel)?,
                scales: panel_of(scales, self.format.scale_rows(args.k) * panel, column / panel)?,
            })
        };
        match column.and_then(|c| Some((of(c)?, c % panel))) {
            Some((matrix, column)) => matrix.decode_column(column, y),
            None => y.fill(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, compare, memory, run, spec};
    use crate::quant::Bits;
    use crate::tensor::DType;
    use half::f16;

    /// Packs codes `[k][n]` into rows of words of panels.
    fn pack(bits: usize, codes: &[u32], k: usize, n: usize, panel: usize) -> Vec<u32> {
        let (rows, stride) = (k * bits / 32, n.next_multiple_of(panel));
        let mut words = vec![0; rows * stride];
        for (at, code) in codes.iter().enumerate() {
            let (t, j) = (at / n, at % n);
            let mut below = bits;
            for plane in Bits::new(bits as i64).unwrap().planes() {
                let (width, first) = (plane.width as usize, plane.row);
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
