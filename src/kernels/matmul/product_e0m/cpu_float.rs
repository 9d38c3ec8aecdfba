//! Matmul of f32 activations and E0M weights, in f32.

mod tile;

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, product};
use crate::backend::cpu::isa::Isa;
use crate::backend::cpu::simd::{self, Job, Simd};
use crate::backend::kernel::KernelSpec;
use crate::kernels::product_e0m::cpu::places::{Grid, Places, Results};
use crate::kernels::product_e0m::cpu::scales::{DecodeScales, Meaning};
use crate::kernels::product_e0m::cpu::unpack::{self, Matrix};
use crate::kernels::product_e0m::cpu::words;
use crate::kernels::product_e0m::cpu::{PANEL, format_of};
use crate::quant::{Bits, Format};
use std::ops::Range;
use tile::{Call, Decode, MOST_PANELS, MOST_ROWS, Tile};

type Args = super::FloatArgs<Bound>;

/// The kernel `product_e0m_float`.
pub struct ProductE0mFloat {
    isa: Isa,
    format: Format,
    parts: bool,
}

/// Numbers of rows and panels of a tile.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    panels: usize,
}

impl ProductE0mFloat {
    fn shape(&self, m: usize) -> Shape {
        let shape = tile::shape(self.isa);
        let rows = m.max(1).div_ceil(m.max(1).div_ceil(shape.rows));
        let rows = if m > 1 { rows.next_multiple_of(2) } else { 1 };
        Shape {
            rows,
            panels: shape.panels[usize::from(m > 1)],
        }
    }

    fn grid(&self, args: &Args) -> Grid {
        Grid {
            panels: args.n.div_ceil(PANEL),
            tiles: args.m.div_ceil(self.shape(args.m).rows),
        }
    }

    /// The function for tiles of `rows` rows, of weights that are decoded before or in the tile.
    fn function(&self, decoded: bool, rows: usize) -> Option<Tile> {
        tile::pick(self.isa, if decoded { 0 } else { self.bits() }, rows)
    }

    /// Whether tile functions can decode weights. They can decode only the usual widths.
    const fn decodes_in_tile(&self) -> bool {
        matches!(self.format.bits, Bits::Four | Bits::Eight)
    }

    const fn bits(&self) -> usize {
        self.format.bits.count() as usize
    }
}

impl NativeKernel for ProductE0mFloat {
    type Signature = super::FloatArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        let format = format_of(spec).filter(|f| f.group.is_multiple_of(tile::STEP))?;
        Some(Self {
            isa,
            format,
            parts: spec.defines.contains_key(crate::kernels::matmul_e0m::PARTS),
        })
    }

    /// Results are checked as they are stored.
    fn fits(&self, args: &Args) -> bool {
        let Args { m, n, k, .. } = *args;
        let rows = self.shape(m).rows;
        m == 0
            || n == 0
            || self.function(true, rows).is_some()
                && (!self.decodes_in_tile() || self.function(false, rows).is_some())
                && Matrix::fit(
                    [args.codes, args.scales],
                    [args.codes2, args.scales2],
                    [n, k],
                    self.format,
                )
                && args.x.holds::<f32>(product(&[m, k]))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let matrices = 1 + usize::from(args.codes2.is_some());
        let weights = args.n.saturating_mul(args.k).saturating_mul(matrices);
        let bytes = weights.saturating_mul(self.bits()) / 8;
        self.grid(args)
            .pieces(threads, bytes, weights.saturating_mul(args.m))
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        if args.m == 0 || args.n == 0 {
            return;
        }
        let (panels, tiles) = self.grid(args).piece(piece, pieces);
        let shape = self.shape(args.m);
        // A single tile decodes weights where it uses them; more tiles share weights that are
        // decoded once.
        let decoded = tiles.len() > 1 || !self.decodes_in_tile();
        // The arguments fit, so there is a function.
        let Some(function) = self.function(decoded, shape.rows) else {
            return;
        };
        // SAFETY: inputs are only read.
        let work = unsafe {
            let size = [args.n, args.k];
            let matrix = |codes, scales| Matrix::new([codes, scales], size, self.format);
            Work {
                kernel: self,
                args,
                shape,
                function,
                decoded,
                x: &args.x.slice()[..args.m * args.k],
                matrices: [
                    Some(matrix(args.codes, args.scales)),
                    args.codes2.zip(args.scales2).map(|(c, s)| matrix(c, s)),
                ],
            }
        };
        // SAFETY: this piece owns the results of its panels and tiles.
        unsafe { work.run(store, panels, tiles, scratch) };
    }
}

/// What all pieces of a dispatch share.
struct Work<'a> {
    kernel: &'a ProductE0mFloat,
    args: &'a Args,
    shape: Shape,
    function: Tile,
    /// Whether weights are decoded before they are multiplied.
    decoded: bool,
    x: &'a [f32],
    matrices: [Option<Matrix<'a>>; 2],
}

impl Work<'_> {
    fn places(&self) -> Places {
        let a = self.args;
        Places::new(
            a.y_stride,
            self.kernel.parts,
            [a.end0, a.end1],
            [a.start1, a.start2],
        )
    }

    /// # Safety
    /// The caller owns the results of these panels and tiles.
    unsafe fn run(
        &self,
        store: &Store<'_>,
        panels: Range<usize>,
        tiles: Range<usize>,
        scratch: &mut Scratch,
    ) {
        // Decoded weights and scales of a block of panels stay in the L2 cache.
        const CACHE: usize = 256 << 10;
        const MOST: usize = 16;
        let Args { n, k, column, m, .. } = *self.args;
        let (width, rows) = (self.shape.panels, self.shape.rows);
        let matrices = self.matrices.iter().flatten().count();
        let groups = k.div_ceil(self.kernel.format.group);
        // Floats of the decoded panels of a tile, and of the scales of a panel.
        let decoded = if self.decoded { k * width * PANEL } else { 0 };
        let scales = 2 * groups * PANEL;
        let each = matrices * (decoded + width * scales);
        let at_once = (CACHE / 4 / each.max(1)).clamp(1, MOST / width) * width;
        let own = tiles.start * rows..(tiles.end * rows).min(m);
        let (results, levels) = (rows * at_once * PANEL, matrices * at_once / width * decoded);
        let scales = matrices * at_once * scales;
        let all = scratch.floats(own.len() * groups + matrices * results + scales + levels);
        let (sums, all) = all.split_at_mut(own.len() * groups);
        let (results_of, all) = all.split_at_mut(matrices * results);
        let (scales_of, levels_of) = all.split_at_mut(scales);
        let (values, second) = results_of.split_at_mut(results);
        let x = &self.x[own.start * k..own.end * k];
        let group_sums = GroupSums {
            x,
            k,
            group: self.kernel.format.group,
            sums,
        };
        // SAFETY: the processor has the instruction set.
        unsafe { simd::run(self.kernel.isa, group_sums) };
        for first in panels.clone().step_by(at_once) {
            let end = (first + at_once).min(panels.end);
            self.decode_scales(first..end, scales_of);
            self.decode_all(first..end, levels_of);
            for tile in tiles.clone() {
                let sums = &sums[(tile - tiles.start) * rows * groups..];
                for panel in (first..end).step_by(width) {
                    for (i, matrix) in self.matrices.iter().flatten().enumerate() {
                        let out = if i == 0 { &mut *values } else { &mut *second };
                        let out = (&mut out[(panel - first) * PANEL..], at_once * PANEL);
                        let at = ((panel - first) / width * matrices + i) * decoded;
                        let levels = &levels_of[at..][..decoded];
                        let scales = |panel: usize| {
                            let each = 2 * groups * PANEL;
                            scales_of[((panel - first) * matrices + i) * each..][..each].as_ptr()
                        };
                        let decoded = Decoded {
                            sums,
                            levels,
                            scales: &scales,
                        };
                        self.tile(matrix, panel..end, tile, decoded, out);
                    }
                }
                let columns = column + first * PANEL..column + (end * PANEL).min(n);
                let results = Results {
                    values: &mut *values,
                    second: (matrices > 1).then_some(&mut *second),
                    width: at_once * PANEL,
                };
                let rows = tile * rows..((tile + 1) * rows).min(m);
                unsafe { self.places().store(store, results, rows, columns) };
            }
        }
    }

    /// Decodes the scales of panels, of each matrix.
    fn decode_scales(&self, panels: Range<usize>, out: &mut [f32]) {
        let (format, k) = (self.kernel.format, self.args.k);
        let words = format.scale_rows(k) * PANEL;
        let mut out = out.chunks_exact_mut((2 * k.div_ceil(format.group) * PANEL).max(1));
        for panel in panels {
            for (matrix, out) in self.matrices.iter().flatten().zip(&mut out) {
                let decode = DecodeScales {
                    format,
                    scales: &matrix.scales[panel * words..][..words],
                    k,
                    meaning: Meaning {
                        unit: 1.0,
                        level: 2.0,
                    },
                    out,
                };
                // SAFETY: the processor has the instruction set.
                unsafe { words::run(self.kernel.isa, decode) };
            }
        }
    }

    /// Decodes panels if tiles share them, as `[k][columns of a tile]` for each tile and matrix.
    fn decode_all(&self, panels: Range<usize>, levels: &mut [f32]) {
        if !self.decoded {
            return;
        }
        let (k, width) = (self.args.k, self.shape.panels);
        let words = unpack::rows(self.kernel.bits(), k) * PANEL;
        let stride = width * PANEL;
        let mut levels = levels.chunks_exact_mut((k * stride).max(1));
        for first in panels.clone().step_by(width) {
            for (matrix, levels) in self.matrices.iter().flatten().zip(&mut levels) {
                for i in 0..width {
                    let panel = (first + i).min(panels.end - 1);
                    let decode = Decode {
                        bits: self.kernel.bits(),
                        panel: &matrix.codes[panel * words..][..words],
                        k,
                        out: &mut levels[i * PANEL..],
                        stride,
                    };
                    // SAFETY: the processor has the instruction set; a panel has `k` weights per
                    // column, and `levels` as many rows.
                    unsafe { words::run(self.kernel.isa, decode) };
                }
            }
        }
    }

    /// Multiplies a tile of rows and as many of `panels` as a tile has, from the first one on.
    fn tile(
        &self,
        matrix: &Matrix<'_>,
        panels: Range<usize>,
        tile: usize,
        decoded: Decoded<'_>,
        (out, stride): (&mut [f32], usize),
    ) {
        let Shape { rows, panels: width } = self.shape;
        let (k, group) = (self.args.k, self.kernel.format.group);
        let words = unpack::rows(self.kernel.bits(), k) * PANEL;
        let groups = k.div_ceil(group);
        let panel = |i: usize| (panels.start + i.min(width - 1)).min(panels.end - 1);
        // Surplus rows and panels of a tile repeat the last ones.
        let last = (self.args.m - 1).min((tile + 1) * rows - 1) - tile * rows;
        let out = &mut out[..(rows - 1) * stride + width * PANEL];
        let call = Call {
            codes: std::array::from_fn(|i| matrix.codes[panel(i) * words..][..words].as_ptr()),
            scales: std::array::from_fn(|i| (decoded.scales)(panel(i))),
            levels: decoded.levels.as_ptr(),
            x: std::array::from_fn(|i| self.x[(tile * rows + i.min(last)) * k..][..k].as_ptr()),
            sums: std::array::from_fn(|i| decoded.sums[i.min(last) * groups..][..groups].as_ptr()),
            k,
            group,
            out: out.as_mut_ptr(),
            stride,
        };
        debug_assert!(rows <= MOST_ROWS && width <= MOST_PANELS, "pointers for all");
        // SAFETY: the slices are those of the tile's rows and panels.
        unsafe { (self.function)(&call) };
    }
}

/// What a tile reads besides codes and rows.
struct Decoded<'a> {
    /// Sums of each group of the rows.
    sums: &'a [f32],
    /// Weights, or empty.
    levels: &'a [f32],
    /// The scales of a panel.
    scales: &'a dyn Fn(usize) -> *const f32,
}

/// Sums each group of the rows, which have `k` elements.
struct GroupSums<'a> {
    x: &'a [f32],
    k: usize,
    group: usize,
    sums: &'a mut [f32],
}

impl Job for GroupSums<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let groups = self
            .x
            .chunks(self.k.max(1))
            .flat_map(|row| row.chunks(self.group));
        for (group, out) in groups.zip(self.sums) {
            let vectors = group.chunks_exact(S::LANES);
            let rest: f32 = vectors.remainder().iter().sum();
            // SAFETY: chunks have `LANES` elements.
            unsafe {
                let mut sum = S::splat(0.0);
                for v in vectors {
                    sum = S::add(sum, S::load(v.as_ptr()));
                }
                *out = S::sum(sum) + rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::product_e0m::cpu::testing::{Buffer, Epilogue, Rng, Weights, run, spec};

    /// Width, group, and m, k, n.
    type Case = (usize, usize, [usize; 3]);

    fn product(
        isa: Isa,
        (bits, group, [m, k, n]): Case,
        x: &[f32],
        weights: &mut [Weights],
        epilogue: Option<Epilogue<'_>>,
        threads: usize,
    ) -> Vec<f32> {
        let kernel = ProductE0mFloat::new(&spec(&[("BITS", bits), ("GROUP", group)]), isa).unwrap();
        let (mut x, mut y) = (Buffer::of(x), Buffer::new(m * n));
        let mut operands = vec![Some(x.memory())];
        for i in 0..2 {
            operands.push(weights.get_mut(i).map(|w| w.codes.memory()));
            operands.push(weights.get_mut(i).map(|w| w.scales.memory()));
        }
        let out = y.memory();
        operands.push(Some(out));
        let words = [m, n, k, n, 0, 0, 0, 0, 0].map(|v| v as u32);
        run(&kernel, &words, &operands, (out, epilogue), threads);
        y.floats().to_vec()
    }

    fn check(isa: Isa, case: Case, x: &[f32], weights: &Weights, y: &[f32]) {
        let (_, _, [m, k, n]) = case;
        for row in (0..m).step_by(1 + m / 8) {
            let x: Vec<f64> = x[row * k..][..k].iter().map(|v| f64::from(*v)).collect();
            for c in (0..n).step_by(1 + n / 40) {
                let (want, size) = weights.product(&x, c, n);
                let got = f64::from(y[row * n + c]);
                let fine = (got - want).abs() <= 2e-6 * size + 1e-37;
                assert!(fine, "{isa:?} {case:?}: row {row}, column {c}: {got}, not {want}");
            }
        }
    }

    #[test]
    fn float_products_match_for_all_widths_and_groups() {
        let sizes = [
            [1, 576, 130],
            [1, 64, 34],
            [2, 96, 16],
            [3, 64, 2],
            [7, 96, 34],
            [9, 1536, 34],
            [13, 96, 130],
            [17, 576, 34],
            [64, 288, 130],
        ];
        for isa in Isa::supported() {
            for bits in [2, 3, 4, 5, 6, 8] {
                for (i, group) in [8, 24, 32, 40, 128, 576].into_iter().enumerate() {
                    for (j, size) in sizes
                        .into_iter()
                        .enumerate()
                        .filter(|(j, _)| (i + j + bits) % 2 == 0)
                    {
                        let (case, [m, k, n]) = ((bits, group, size), size);
                        let mut weights = [Weights::new(bits, group, k, n, 1)];
                        let x = Rng(5).normals(m * k);
                        let y = product(isa, case, &x, &mut weights, None, 1 + j % 3);
                        check(isa, case, &x, &weights[0], &y);
                    }
                }
            }
            for (bits, k) in [(4, 8), (4, 40), (4, 136), (8, 4), (8, 40), (8, 100), (2, 48)] {
                for (m, n) in [(1, 2), (3, 34), (17, 16)] {
                    let case = (bits, 32, [m, k, n]);
                    let mut weights = [Weights::new(bits, 32, k, n, 1)];
                    let x = Rng(5).normals(m * k);
                    let y = product(isa, case, &x, &mut weights, None, 2);
                    check(isa, case, &x, &weights[0], &y);
                }
            }
        }
    }

    #[test]
    fn float_products_with_nested_scales_match() {
        for isa in Isa::supported() {
            for (bits, group) in [(2, 16), (3, 16), (4, 32), (5, 32), (6, 16)] {
                for [m, k, n] in [[1, 512, 34], [7, 256, 66], [17, 768, 18]] {
                    let mut weights = Weights::nested(bits, k, n, 2);
                    let x = Rng(5).normals(m * k);
                    let defines = [("BITS", bits), ("GROUP", group), ("NESTED", 256 / group)];
                    let kernel = ProductE0mFloat::new(&spec(&defines), isa).unwrap();
                    let (mut input, mut y) = (Buffer::of(&x), Buffer::new(m * n));
                    let out = y.memory();
                    let operands = [
                        Some(input.memory()),
                        Some(weights.codes.memory()),
                        Some(weights.scales.memory()),
                        None,
                        None,
                        Some(out),
                    ];
                    let words = [m, n, k, n, 0, 0, 0, 0, 0].map(|v| v as u32);
                    run(&kernel, &words, &operands, (out, None), 2);
                    check(isa, (bits, group, [m, k, n]), &x, &weights, y.floats());
                }
            }
        }
    }

    #[test]
    fn float_results_of_a_row_do_not_depend_on_other_rows() {
        for isa in Isa::supported() {
            for bits in [4, 8, 3] {
                let (k, n) = (1536, 66);
                let mut weights = [Weights::new(bits, 128, k, n, 3)];
                let x = Rng(7).normals(29 * k);
                let all = product(isa, (bits, 128, [29, k, n]), &x, &mut weights, None, 3);
                for m in 1..=14 {
                    for row in [0, 5] {
                        let x = &x[row * k..][..m * k];
                        let some = product(isa, (bits, 128, [m, k, n]), x, &mut weights, None, 2);
                        assert_eq!(some, all[row * n..][..m * n], "{isa:?}, {bits} bits, {m} rows");
                    }
                }
            }
        }
    }

    #[test]
    fn float_second_matrix_and_epilogue() {
        for isa in Isa::supported() {
            for m in [1, 5, 33] {
                let (k, n) = (64, 150);
                let case = (4, 32, [m, k, n]);
                let x = Rng(8).normals(m * k);
                let mut weights = [Weights::new(4, 32, k, n, 4), Weights::new(4, 32, k, n, 5)];
                let [a, b] = [0, 1].map(|i| product(isa, case, &x, &mut weights[i..=i], None, 1));
                let epilogue = |first: usize, y: &mut [f32], second: Option<&[f32]>| {
                    for (i, (y, s)) in y.iter_mut().zip(second.unwrap()).enumerate() {
                        *y = *y * s + (first + i) as f32;
                    }
                };
                let y = product(isa, case, &x, &mut weights, Some(&epilogue), 2);
                for (i, y) in y.iter().enumerate() {
                    assert_eq!(*y, a[i] * b[i] + i as f32, "{isa:?}: {m} rows, element {i}");
                }
            }
        }
    }

    #[test]
    fn float_extreme_activations() {
        for isa in Isa::supported() {
            let case = (4, 64, [3, 128, 34]);
            let mut weights = [Weights::new(4, 64, 128, 34, 6)];
            for factor in [0.0, 1e30, 1e-30] {
                let x: Vec<f32> = Rng(9).normals(3 * 128).into_iter().map(|v| v * factor).collect();
                let y = product(isa, case, &x, &mut weights, None, 1);
                check(isa, case, &x, &weights[0], &y);
            }
        }
    }
}
