use super::*;
use crate::quant::{ByGroup, Format, Packed};

/// Numbers from -1 to 1.
fn random(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// Rows of `k` inputs that are mixtures of few, with noise.
fn inputs(k: usize, rows: usize) -> Vec<f32> {
    let (hidden, mix, noise) = (k / 4, random(k / 4 * k, 5), random(rows * k, 6));
    let source = random(rows * hidden, 7);
    (0..rows * k)
        .map(|at| {
            let (row, i) = (at / k, at % k);
            let sum: f32 = (0..hidden)
                .map(|h| source[row * hidden + h] * mix[h * k + i])
                .sum();
            sum * (1.0 + i as f32 / k as f32) + 0.1 * noise[at]
        })
        .collect()
}

fn hessian(k: usize, rows: usize) -> Hessian {
    let mut m = Hessian::new(k);
    m.add(&inputs(k, rows)).unwrap();
    m
}

fn errors(columns: &[f32], packed: &Packed) -> Vec<f32> {
    let at = |(i, w): (usize, &f32)| w - packed.get(i % packed.k, i / packed.k);
    columns.iter().enumerate().map(at).collect()
}

fn packed(bits: Bits, group: usize, k: usize, columns: &[f32], method: &dyn ColumnMethod) -> Packed {
    Packed::from_columns(bits, group, k, columns, method).unwrap().0
}

#[test]
fn the_factor_is_that_of_the_damped_hessian() {
    // More than a block, and no multiple of one.
    for k in [1, 5, 64, 65, 150] {
        let m = hessian(k.max(4), 300);
        let k = m.k();
        let f = CholeskyFactor::new(&m, DAMPING).unwrap();
        let mean = (0..k).map(|i| f64::from(m.get(i, i))).sum::<f64>() / k as f64;
        for i in 0..k {
            for j in 0..=i {
                // (L^T L)_ij, the sum over rows r >= i.
                let product =
                    |r: usize| f64::from(f.weight[r]) * f64::from(f.at(r, i)) * f64::from(f.at(r, j));
                let found: f64 = (i..k).map(product).sum();
                let wanted = f64::from(m.get(i, j)) / mean + if i == j { DAMPING } else { 0.0 };
                assert!((found - wanted).abs() < 1e-4, "{k}: {i} {j}: {found} {wanted}");
            }
        }
    }
}

#[test]
fn correlated_inputs_lose_less_than_by_rounding() {
    let (k, n) = (96, 40);
    let (m, weights) = (hessian(k, 400), random(k * n, 3));
    let factor = Arc::new(CholeskyFactor::new(&m, DAMPING).unwrap());
    for (bits, group) in [
        (Bits::Four, 32),
        (Bits::Four, 96),
        (Bits::Three, 40),
        (Bits::Two, 16),
    ] {
        for method in [Method::Rtn, Method::Mse] {
            let gptq = Gptq {
                factor: factor.clone(),
                method,
            };
            let loss = |method: &dyn ColumnMethod| {
                m.output_error(&errors(&weights, &packed(bits, group, k, &weights, method)))
            };
            let (plain, ours) = (loss(&ByGroup::from(method)), loss(&gptq));
            assert!(
                ours < 0.6 * plain,
                "{bits}, groups of {group}, {method:?}: {ours} of {plain}"
            );
        }
    }
}

#[test]
fn solutions_satisfy_the_damped_equations() {
    let (k, n) = (70, 3);
    let m = hessian(k, 300);
    let mean = (0..k).map(|i| f64::from(m.get(i, i))).sum::<f64>() / k as f64;
    let factor = CholeskyFactor::new(&m, 0.5).unwrap();
    let columns = random(k * n, 3);
    let found = factor.solve(&columns).unwrap();
    for (x, b) in found.chunks(k).zip(columns.chunks(k)) {
        for i in 0..k {
            let row = (0..k).map(|j| f64::from(m.get(i, j)) / mean * f64::from(x[j]));
            let sum = row.sum::<f64>() + 0.5 * f64::from(x[i]);
            assert!((sum - f64::from(b[i])).abs() < 1e-3, "{i}: {sum} {}", b[i]);
        }
    }
    assert!(factor.solve(&columns[1..]).is_err());
}

#[test]
fn integers_lose_less_than_by_rounding() {
    // More than a block.
    let (k, n) = (96, 5);
    let (m, weights) = (hessian(k, 400), random(k * n, 3));
    let factor = CholeskyFactor::new(&m, DAMPING).unwrap();
    let steps: Vec<f32> = (1..=n).map(|i| i as f32 / 16.0).collect();
    let loss = |codes: &[i8]| {
        let real = |(i, c): (usize, &i8)| weights[i] - f32::from(*c) * steps[i / k];
        m.output_error(&codes.iter().enumerate().map(real).collect::<Vec<_>>())
    };
    let nearest: Vec<i8> = (0..k * n)
        .map(|i| (weights[i] / steps[i / k]).round() as i8)
        .collect();
    let ours = factor.integers(&weights, &steps, 127).unwrap();
    assert!(loss(&ours) < 0.6 * loss(&nearest));
    let limited = factor.integers(&weights, &steps, 2).unwrap();
    assert_eq!(limited.iter().map(|c| c.abs()).max(), Some(2));
    // Without inputs, each is rounded as it is.
    let none = CholeskyFactor::new(&Hessian::new(k), DAMPING).unwrap();
    assert_eq!(none.integers(&weights, &steps, 127).unwrap(), nearest);
    assert!(factor.integers(&weights, &steps[1..], 127).is_err());
}

#[test]
fn independent_inputs_are_rounded_as_they_are() {
    let (k, n) = (64, 6);
    let mut m = Hessian::new(k);
    for i in 0..k {
        let mut row = vec![0.0; k];
        row[i] = 2.0;
        m.add(&row).unwrap();
    }
    let weights = random(k * n, 9);
    let none = CholeskyFactor::new(&Hessian::new(k), DAMPING).unwrap();
    for factor in [CholeskyFactor::new(&m, DAMPING).unwrap(), none].map(Arc::new) {
        for method in [Method::Rtn, Method::Mse, Method::Mae] {
            let gptq = Gptq {
                factor: factor.clone(),
                method,
            };
            let ours = packed(Bits::Four, 32, k, &weights, &gptq);
            let plain = packed(Bits::Four, 32, k, &weights, &ByGroup::from(method));
            assert_eq!(ours, plain, "{method:?}");
        }
    }
}

#[test]
fn columns_do_not_depend_on_their_neighbours() {
    let (k, n) = (72, 8);
    let (m, weights) = (hessian(k, 200), random(k * n, 4));
    let factor = Arc::new(CholeskyFactor::new(&m, DAMPING).unwrap());
    let gptq = Gptq {
        factor: factor.clone(),
        method: Method::Mse,
    };
    let all = packed(Bits::Four, 32, k, &weights, &gptq);
    assert_eq!(all, packed(Bits::Four, 32, k, &weights, &gptq), "twice the same");
    let last = packed(Bits::Four, 32, k, &weights[k * (n - 2)..], &gptq);
    let column = |p: &Packed, j: usize| (0..k).map(|i| p.get(i, j)).collect::<Vec<_>>();
    assert_eq!(column(&all, n - 1), column(&last, 1));
    let mut one = Column::default();
    let mut scratch = Scratch::default();
    gptq.column(Bits::Four, 32, &weights[..k], &mut scratch, &mut one)
        .unwrap();
    let mut alone = Packed::empty(Format::new(Bits::Four, 32), k, 2).unwrap();
    alone.set_column(0, &one).unwrap();
    assert_eq!(column(&all, 0), column(&alone, 0));
}

#[test]
fn inputs_that_are_always_zero_or_the_same() {
    let k = 32;
    let mut m = Hessian::new(k);
    // Half of the inputs never come; the others are copies of one.
    for v in [1.0f32, -2.0, 0.5] {
        let row: Vec<f32> = (0..k).map(|i| if i % 2 == 0 { v } else { 0.0 }).collect();
        m.add(&row).unwrap();
    }
    let factor = Arc::new(CholeskyFactor::new(&m, DAMPING).unwrap());
    let gptq = Gptq {
        factor: factor.clone(),
        method: Method::Mse,
    };
    let weights = random(k * 2, 8);
    let ours = packed(Bits::Four, 16, k, &weights, &gptq);
    let plain = packed(Bits::Four, 16, k, &weights, &ByGroup::from(Method::Mse));
    let loss = |p: &Packed| m.output_error(&errors(&weights, p));
    assert!(loss(&ours) < loss(&plain));
    let wrong = Gptq {
        factor: Arc::new(CholeskyFactor::new(&Hessian::new(16), DAMPING).unwrap()),
        method: Method::Mse,
    };
    assert!(Packed::from_columns(Bits::Four, 16, k, &weights, &wrong).is_err());
}

#[test]
fn groups_of_equal_weights_stay_what_they_are() {
    let (k, n, group) = (64, 6, 16);
    let mut weights = random(k * n, 12);
    // Of column 1 the second group, of column 4 all.
    weights[k + group..k + 2 * group].fill(-0.3125);
    weights[4 * k..5 * k].fill(0.0);
    for method in [Method::Mse, Method::Mae] {
        let factor = Arc::new(CholeskyFactor::new(&hessian(k, 200), DAMPING).unwrap());
        let ours = packed(Bits::Four, group, k, &weights, &Gptq { factor, method });
        let rounded = packed(Bits::Four, group, k, &weights, &ByGroup::from(method));
        let column = |p: &Packed, j: usize| (0..k).map(|i| p.get(i, j)).collect::<Vec<_>>();
        assert_eq!(column(&ours, 1)[group..2 * group], [-0.3125; 16]);
        assert_eq!(column(&ours, 4), [0.0; 64]);
        // The others do make up for what is before them.
        assert_ne!(column(&ours, 1)[2 * group..], column(&rounded, 1)[2 * group..]);
    }
}

#[test]
fn a_hessian_that_is_not_positive_definite_is_damped_more() {
    // Rounding has made an eigenvalue -0.05 of the mean diagonal; and one that no damping
    // mends.
    let two = |off: f32| Hessian::from_sum(2, vec![1.0, off, off, 1.0], 1).unwrap();
    let f = CholeskyFactor::new(&two(1.05), DAMPING).unwrap();
    // 0.01, 0.02, 0.04, 0.08: l_11^2 = 1.08, and l_00^2 = 1.08 - 1.05^2 / 1.08.
    assert!((f.weight[1] - 1.08).abs() < 1e-6, "{:?}", f.weight);
    assert!(
        (f.weight[0] - (1.08 - 1.05 * 1.05 / 1.08)).abs() < 1e-6,
        "{:?}",
        f.weight
    );
    let e = CholeskyFactor::new(&two(2.5), DAMPING).unwrap_err();
    assert_eq!(e, HessianError::NotPositive { damping: 0.64 });
    let e = CholeskyFactor::new(&two(f32::NAN), DAMPING).unwrap_err();
    assert_eq!(e, HessianError::NotFinite);
}
