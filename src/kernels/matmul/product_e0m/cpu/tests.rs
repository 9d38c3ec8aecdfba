use super::testing::{Buffer, Epilogue, Rng, Weights, run, spec};
use super::{Isa, NativeKernel, ProductE0m};
use crate::kernels::product_e0m::cpu_quantize::Quantize;

/// A product with quantized activations.
#[derive(Clone, Copy, Debug)]
struct Case {
    bits: usize,
    group: usize,
    nested: bool,
    block: usize,
    planes: usize,
    m: usize,
    k: usize,
    n: usize,
}

impl Case {
    /// The largest block of at most `most` that divides the group.
    fn new([bits, group, planes, most]: [usize; 4], [m, k, n]: [usize; 3]) -> Self {
        let block = (8..=most).step_by(8).filter(|b| group % b == 0).max().unwrap();
        Self {
            bits,
            group,
            nested: false,
            block,
            planes,
            m,
            k,
            n,
        }
    }

    fn quantize(&self, isa: Isa, x: &[f32], threads: usize) -> [Buffer; 2] {
        let Self { m, k, .. } = *self;
        let rows = if m == 1 { 1 } else { m + 15 };
        let mut y = Buffer::new(self.planes * rows * k.next_multiple_of(8) / 4);
        let mut factors = Buffer::new(2 * k.div_ceil(self.block) * rows);
        let mut defines = vec![("BLOCK", self.block), ("PLANES", self.planes)];
        if self.bits == 8 {
            defines.push(("PER4", 1));
        }
        let kernel = Quantize::new(&spec(&defines), isa).unwrap();
        let out = y.memory();
        let mut x = Buffer::of(x);
        let operands = [Some(x.memory()), None, Some(out), Some(factors.memory())];
        run(&kernel, &[m as u32, k as u32, 0], &operands, (out, None), threads);
        [y, factors]
    }

    /// Results `[m][n]`, in a matrix of `stride` columns from column `column` on.
    fn run(&self, isa: Isa, x: &[f32], weights: &mut [Weights], threads: usize, more: &More<'_>) -> Vec<f32> {
        let Self { m, k, n, .. } = *self;
        let [mut q, mut factors] = self.quantize(isa, x, threads);
        let mut y = Buffer::new(m * more.stride.max(n));
        let mut defines = vec![
            ("BITS", self.bits),
            ("GROUP", self.group),
            ("BLOCK", self.block),
            ("PLANES", self.planes),
        ];
        if more.parts.is_some() {
            defines.push(("PARTS", 1));
        }
        if self.nested {
            defines.push(("NESTED", 256 / self.group));
        }
        let kernel = ProductE0m::new(&spec(&defines), isa).unwrap();
        let [end0, end1, start1, start2] = more.parts.unwrap_or([7; 4]);
        let words = [
            m,
            n,
            k,
            more.stride.max(n),
            more.column,
            end0,
            end1,
            start1,
            start2,
        ]
        .map(|v| v as u32);
        let mut operands = vec![Some(q.memory()), Some(factors.memory())];
        for i in 0..2 {
            operands.push(weights.get_mut(i).map(|w| w.codes.memory()));
            operands.push(weights.get_mut(i).map(|w| w.scales.memory()));
        }
        let out = y.memory();
        operands.push(Some(out));
        run(&kernel, &words, &operands, (out, more.epilogue), threads);
        y.floats().to_vec()
    }

    /// The activations that integers stand for.
    fn rounded(&self, x: &[f32]) -> Vec<f64> {
        let top = if self.planes == 2 { 32512.0 } else { 127.0 };
        let blocks = x.chunks(self.k).flat_map(|row| row.chunks(self.block));
        let mut out = vec![];
        for block in blocks {
            let most = block.iter().fold(0.0f32, |a, v| a.max(v.abs()));
            let inverse = if (top / most).is_finite() { top / most } else { 0.0 };
            out.extend(
                block
                    .iter()
                    .map(|v| f64::from((v * inverse).round_ties_even()) * f64::from(most / top)),
            );
        }
        out
    }

    /// Compares results of the first rows and columns with those of the rounded activations.
    fn check(&self, isa: Isa, x: &[f32], weights: &Weights, y: &[f32]) {
        let rounded = self.rounded(x);
        for row in (0..self.m).step_by(1 + self.m / 8) {
            for c in (0..self.n).step_by(1 + self.n / 40) {
                let x = &rounded[row * self.k..][..self.k];
                let (want, size) = weights.product(x, c, self.n);
                let got = f64::from(y[row * self.n + c]);
                let fine = (got - want).abs() <= 2e-6 * size + 1e-37;
                assert!(fine, "{isa:?} {self:?}: row {row}, column {c}: {got}, not {want}");
            }
        }
    }
}

#[derive(Default)]
struct More<'a> {
    stride: usize,
    column: usize,
    parts: Option<[usize; 4]>,
    epilogue: Option<Epilogue<'a>>,
}

const SIZES: [[usize; 3]; 11] = [
    [1, 576, 130],
    [1, 64, 34],
    [2, 96, 16],
    [3, 64, 2],
    [5, 96, 34],
    [9, 1536, 34],
    [13, 96, 130],
    [17, 576, 34],
    [64, 288, 130],
    [4, 32, 16],
    [1, 1536, 1536],
];

#[test]
fn products_match_for_all_widths_and_groups() {
    for isa in Isa::supported() {
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [8, 24, 32, 40, 128, 576] {
                for planes in [1, 2] {
                    for (i, size) in SIZES.into_iter().enumerate() {
                        if (i + bits + group / 8 + planes) % 3 > 0 {
                            continue;
                        }
                        let most = [32, 128, 576][i % 3];
                        let case = Case::new([bits, group, planes, most], size);
                        let mut weights = [Weights::new(bits, group, case.k, case.n, 1)];
                        let x = Rng(5).normals(case.m * case.k);
                        let y = case.run(isa, &x, &mut weights, 1 + i % 3, &More::default());
                        case.check(isa, &x, &weights[0], &y);
                    }
                }
            }
        }
    }
}

#[test]
fn nested_scales_match_and_rows_do_not_depend_on_others() {
    for isa in Isa::supported() {
        for (bits, group) in [(2, 16), (3, 16), (4, 32), (5, 32), (6, 16)] {
            let (k, n) = (768, 34);
            let mut weights = [Weights::nested(bits, k, n, 3)];
            let x = Rng(7).normals(17 * k);
            for planes in [1, 2] {
                let mut rows = |from: usize, m: usize, threads| {
                    let case = Case {
                        nested: true,
                        ..Case::new([bits, group, planes, 32], [m, k, n])
                    };
                    let x = &x[from * k..][..m * k];
                    let y = case.run(isa, x, &mut weights, threads, &More::default());
                    case.check(isa, x, &weights[0], &y);
                    y
                };
                let all = rows(0, 17, 3);
                for m in [1, 2, 3, 5, 12] {
                    let some = rows(3, m, 2);
                    assert_eq!(some, all[3 * n..][..m * n], "{isa:?}, {bits} bits, {m} rows");
                }
            }
        }
    }
}

#[test]
fn columns_of_odd_lengths_match() {
    for isa in Isa::supported() {
        for (bits, k) in [
            (4, 8),
            (4, 40),
            (4, 136),
            (8, 8),
            (8, 40),
            (8, 100),
            (8, 4),
            (2, 48),
        ] {
            for (m, n) in [(1, 2), (3, 34), (17, 16)] {
                for planes in [1, 2] {
                    let case = Case::new([bits, 32, planes, 32], [m, k, n]);
                    let mut weights = [Weights::new(bits, 32, k, n, 2)];
                    let x = Rng(6).normals(m * k);
                    let y = case.run(isa, &x, &mut weights, 2, &More::default());
                    case.check(isa, &x, &weights[0], &y);
                }
            }
        }
    }
}

#[test]
fn results_of_a_row_do_not_depend_on_other_rows() {
    for isa in Isa::supported() {
        for (bits, planes) in [(4, 1), (4, 2), (8, 1), (8, 2), (3, 1), (3, 2), (6, 1)] {
            let (k, n) = (1536, 66);
            let mut weights = [Weights::new(bits, 128, k, n, 3)];
            let x = Rng(7).normals(17 * k);
            let rows = |weights: &mut [Weights], from: usize, m: usize, threads| {
                let case = Case::new([bits, 128, planes, 32], [m, k, n]);
                case.run(isa, &x[from * k..][..m * k], weights, threads, &More::default())
            };
            let all = rows(&mut weights, 0, 17, 3);
            for m in 1..=14 {
                for row in [0, 3] {
                    let some = rows(&mut weights, row, m, 2);
                    assert_eq!(some, all[row * n..][..m * n], "{isa:?}, {bits} bits, {m} rows");
                }
            }
        }
    }
}

#[test]
fn parts_second_matrices_and_epilogues() {
    for isa in Isa::supported() {
        for (m, threads) in [(1, 2), (5, 1), (33, 2)] {
            let (k, n, column, stride) = (64, 150, 20, 180);
            let case = Case::new([4, 32, 1, 32], [m, k, n]);
            let x = Rng(8).normals(m * k);
            let mut weights = [Weights::new(4, 32, k, n, 4), Weights::new(4, 32, k, n, 5)];
            let [first, second] = [0, 1].map(|i| {
                let y = case.run(isa, &x, &mut weights[i..=i], threads, &More::default());
                case.check(isa, &x, &weights[i], &y);
                y
            });
            let product = |first: usize, y: &mut [f32], second: Option<&[f32]>| {
                for (i, y) in y.iter_mut().enumerate() {
                    *y = *y * second.map_or(1.0, |s| s[i]) + (first + i) as f32;
                }
            };
            let parts = [70, 110, m * 70, m * 110];
            let place = |row: usize, c: usize| match c {
                0..70 => row * 70 + c,
                70..110 => m * 70 + row * 40 + c - 70,
                _ => m * 110 + row * 70 + c - 110,
            };
            for (both, in_parts) in [(false, false), (false, true), (true, false), (true, true)] {
                let parts = in_parts.then_some(parts);
                let more = More {
                    stride,
                    column,
                    parts,
                    epilogue: both.then_some(&product),
                };
                let y = case.run(isa, &x, &mut weights[..1 + usize::from(both)], threads, &more);
                for (i, c) in (0..m).flat_map(|i| (0..n).map(move |c| (i, c))) {
                    let at = if in_parts {
                        place(i, column + c)
                    } else {
                        i * stride + column + c
                    };
                    let want = match both {
                        true => first[i * n + c] * second[i * n + c] + at as f32,
                        false => first[i * n + c],
                    };
                    assert_eq!(y[at], want, "{isa:?}: row {i}, column {c}, {both}, {in_parts}");
                }
            }
        }
    }
}

#[test]
fn extreme_activations() {
    for isa in Isa::supported() {
        for planes in [1, 2] {
            for bits in [4, 8, 5] {
                let (m, k, n) = (3, 128, 34);
                let case = Case::new([bits, 64, planes, 32], [m, k, n]);
                let mut weights = [Weights::new(bits, 64, k, n, 6)];
                for kind in 0..5 {
                    let mut x = Rng(9).normals(m * k);
                    match kind {
                        0 => x.fill(0.0),
                        1 => x[37] = 1e6,
                        2 => x.iter_mut().for_each(|v| *v *= 1e30),
                        3 => x.iter_mut().for_each(|v| *v *= 1e-30),
                        _ => x.fill(-1.0),
                    }
                    let y = case.run(isa, &x, &mut weights, 1, &More::default());
                    case.check(isa, &x, &weights[0], &y);
                }
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = Rng(9).normals(m * k);
                    x[k + 70] = bad;
                    let y = case.run(isa, &x, &mut weights, 1, &More::default());
                    let nan = |row: usize| y[row * n..][..n].iter().filter(|v| v.is_nan()).count();
                    assert_eq!([0, 1, 2].map(nan), [0, n, 0], "{isa:?}: {bad}");
                }
            }
        }
    }
}

#[test]
fn sixteen_bits_are_nearly_exact() {
    let (m, k, n) = (16, 1536, 64);
    for isa in Isa::supported() {
        for (planes, most) in [(1, 6e-3), (2, 3e-5)] {
            let case = Case::new([4, 32, planes, 32], [m, k, n]);
            let mut weights = [Weights::new(4, 32, k, n, 7)];
            let x = Rng(10).normals(m * k);
            let y = case.run(isa, &x, &mut weights, 1, &More::default());
            let (mut error, mut size) = (0.0, 0.0);
            for (i, c) in (0..m).flat_map(|i| (0..n).map(move |c| (i, c))) {
                let row: Vec<f64> = x[i * k..][..k].iter().map(|v| f64::from(*v)).collect();
                let (want, _) = weights[0].product(&row, c, n);
                error += (f64::from(y[i * n + c]) - want).abs();
                size += want.abs();
            }
            assert!(error / size < most, "{isa:?}, {planes} planes: {}", error / size);
        }
    }
}
