//! Methods and layout together.

use super::*;
use half::f16;
use proptest::prelude::*;

fn group(bits: Bits, method: Method, weights: &[f32]) -> Result<(f16, f16, Vec<u8>), QuantError> {
    let (s, b) = method.fit(bits, weights, None, &mut Scratch::default())?;
    Ok((s, b, weights.iter().map(|w| encode(bits, s, b, *w)).collect()))
}

fn back(bits: Bits, method: Method, weights: &[f32]) -> Vec<f32> {
    let (s, b, codes) = group(bits, method, weights).unwrap();
    codes.iter().map(|c| decode(bits, s, b, *c)).collect()
}

/// Sum of the errors to the power `p`.
fn error(weights: &[f32], found: &[f32], p: i32) -> f64 {
    let off = weights
        .iter()
        .zip(found)
        .map(|(w, y)| (f64::from(*w) - f64::from(*y)).abs().powi(p));
    off.sum()
}

fn packed(bits: Bits, size: usize, k: usize, n: usize, at: &(dyn Fn(usize, usize) -> f32 + Sync)) -> Packed {
    Packed::quantize(bits, size, k, n, &ByGroup::default(), at).unwrap()
}

/// Pseudo-random numbers that look like a normal distribution.
fn normal(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..count)
        .map(|_| (0..6).map(|_| uniform()).sum::<f32>())
        .collect()
}

const SEARCHED: [Method; 2] = [Method::Mse, Method::Mae];
const ALL: [Method; 3] = [Method::Rtn, Method::Mse, Method::Mae];

#[test]
fn golden_bytes() {
    let weights: Vec<f32> = (0..8).map(|i| i as f32 - 3.0).collect();
    let p = packed(Bits::Four, 8, 8, 2, &|i, j| weights[i] * (j as f32 + 1.0));
    // Distance 1 is scale 8; zero is code 3, so the bias is 2 + 3/8. Codes 0..7: even weights in
    // the low half-word.
    assert_eq!(p.pairs()[0], [f16::from_f32(8.0), f16::from_f32(2.375)]);
    assert_eq!(p.codes, [0x7531_6420, 0x7531_6420]);
    assert_eq!(p.pairs()[1][0], f16::from_f32(16.0));
    let p = packed(Bits::Eight, 8, 4, 2, &|i, _| [0.0, 255.0, 1.0, 2.0][i]);
    assert_eq!(p.codes[0], 0x02FF_0100, "weight 1 is byte 2, weight 2 byte 1");
}

#[test]
fn golden_bytes_of_formats_with_planes() {
    // A grid whose codes are i % 2^x: a column of 32 weights is one block of x words.
    let codes = |bits: Bits| {
        let levels = usize::from(bits.top()) + 1;
        let p = packed(bits, 32, 32, 2, &|i, _| (i % levels) as f32);
        assert_eq!(
            p.pairs()[0],
            [f16::from_f32(1.0 / bits.step()), f16::from_f32(2.0)]
        );
        p.codes.into_iter().step_by(2).collect::<Vec<u32>>()
    };
    // Two bits: codes 0 to 3 again and again; even weights are 0, 2, odd ones 1, 3.
    assert_eq!(codes(Bits::Two), [0xDDDD_8888; 2]);
    // Three bits: of codes 0 to 7 the high two bits, 0 0 1 1 2 2 3 3, then the low one, which is
    // that of the weight's number.
    assert_eq!(codes(Bits::Three), [0xE4E4_E4E4, 0xE4E4_E4E4, 0xFFFF_0000]);
    assert_eq!(
        codes(Bits::Four),
        [0x7531_6420, 0xFDB9_ECA8, 0x7531_6420, 0xFDB9_ECA8]
    );
    assert_eq!(
        codes(Bits::Five),
        [0x3210_3210, 0x7654_7654, 0xBA98_BA98, 0xFEDC_FEDC, 0xFFFF_0000]
    );
    // Six bits: codes 0 to 31; the high four bits change every fourth weight, the low two repeat.
    assert_eq!(
        codes(Bits::Six),
        [
            0x1100_1100,
            0x3322_3322,
            0x5544_5544,
            0x7766_7766,
            0xDDDD_8888,
            0xDDDD_8888
        ]
    );
}

#[test]
fn golden_groups_of_the_papers_rounding() {
    // The range of 1.93 takes 2 - 2^-9 of w1: scale 0.96609.. becomes the next half, 0.966309. The
    // bias 2 + 1 / s = 3.0349 is cut to 3.
    let (s, b, codes) = group(Bits::Four, Method::Rtn, &[-1.0, 0.0, 0.013, 0.4, 0.93]).unwrap();
    assert_eq!((s.to_f32(), b.to_f32()), (0.966_308_6, 3.0));
    // -1 is w1 = 1.965, below the interval: it is clamped, not wrapped. 0.93 is 3.9624, whose next
    // bit does not carry over.
    assert_eq!(codes, [0, 8, 8, 11, 15]);
    // Zero belongs to the range, and its code is exact.
    let (s, b, codes) = group(Bits::Four, Method::Rtn, &[4.0, 3.0, 3.9]).unwrap();
    assert_eq!(
        (s.to_f32(), b.to_f32(), codes),
        (2.003_906_3, 2.0, vec![15, 12, 15])
    );
    let (_, b, codes) = group(Bits::Four, Method::Rtn, &[-4.0, -3.0]).unwrap();
    assert_eq!((b.to_f32(), codes), (3.875, vec![0, 3]));
    assert_eq!(back(Bits::Four, Method::Rtn, &[0.0; 3]), [0.0; 3]);
}

#[test]
fn special_groups() {
    for bits in Bits::ALL {
        for method in SEARCHED {
            for v in [0.0, -0.0, 1.5, -3.25, 65504.0] {
                assert_eq!(back(bits, method, &[v; 5]), [v; 5], "constant groups are exact");
            }
            for v in [1e5f32, -70000.0, 2e-6, -2e-7] {
                let y = back(bits, method, &[v; 4])[0];
                assert!((y - v).abs() <= v.abs() / 2000.0, "{v} became {y}");
            }
            assert_eq!(back(bits, method, &[1e-20; 4]), [0.0; 4]);
        }
        for method in ALL {
            let y = back(bits, method, &[-1.0, 0.0, 0.37, 2.2]);
            assert_eq!(y[1], 0.0);
            // Denormal halves.
            let y = back(bits, method, &[0.0, 1e-7, 3e-7]);
            assert_eq!(y[0], 0.0);
            // One outlier.
            let y = back(bits, method, &[0.01, -0.02, 100.0, 0.0]);
            assert!(
                (y[2] - 100.0).abs() < 100.0 / f32::from(bits.top()) * 1.05 && y[3] == 0.0,
                "{bits} {method:?} {y:?}"
            );
            for far in [[1e8, 1.1e8], [0.0, 2e5], [f32::MIN, f32::MAX]] {
                assert!(
                    matches!(group(bits, method, &far), Err(QuantError::Range { .. })),
                    "{far:?}"
                );
            }
            assert!(group(bits, method, &[]).unwrap().2.is_empty());
        }
    }
    for far in [[4e5; 2], [-1e38, -1e38]] {
        assert!(matches!(
            group(Bits::Four, Method::Mse, &far),
            Err(QuantError::Range { .. })
        ));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let make = |bits, size, k, at: &(dyn Fn(usize, usize) -> f32 + Sync)| {
        Packed::quantize(bits, size, k, 2, &ByGroup::default(), at).unwrap_err()
    };
    assert!(matches!(
        make(Bits::Four, 32, 32, &|i, _| if i == 3 { f32::NAN } else { 1.0 }),
        QuantError::NotFinite { index: 6, .. }
    ));
    assert_eq!(
        make(Bits::Four, 12, 32, &|_, _| 1.0),
        QuantError::Group { group: 12, step: 8 }
    );
    for (bits, k) in [
        (Bits::Four, 12),
        (Bits::Five, 48),
        (Bits::Two, 8),
        (Bits::Eight, 6),
    ] {
        let step = bits.k_step();
        assert_eq!(make(bits, 32, k, &|_, _| 1.0), QuantError::Size { k, n: 2, step });
    }
    assert!(Packed::from_columns(Bits::Four, 32, 0, &[], &ByGroup::default()).is_err());

    let mut p = Packed::empty(Format::new(Bits::Four, 16), 40, 2).unwrap();
    assert!(
        p.set_group(2, 1, f16::ONE, f16::ONE, &[15; 8]).is_ok(),
        "the last group is short"
    );
    for (g, j, codes) in [
        (2, 1, &[0; 16][..]),
        (3, 0, &[0; 8]),
        (0, 2, &[0; 16]),
        (1, 0, &[16; 16]),
    ] {
        let e = p.set_group(g, j, f16::ONE, f16::ONE, codes).unwrap_err();
        assert!(
            matches!(e, QuantError::Codes { group, column, .. } if (group, column) == (g, j)),
            "{e}"
        );
    }
    assert!(p.set_column(0, &Column::default()).is_err());
}

#[test]
fn groups_far_from_zero_tiny_and_large() {
    for bits in Bits::ALL {
        let levels = f32::from(bits.top());
        for (at, range) in [
            (10.0f32, 1.0f32),
            (-300.0, 1.0),
            (1e3, 1.0),
            (-6e4, 1.0),
            (9e4, 3.0),
            (1.0, 1e-4),
            (1e-5, 1e-6),
            (-2e-6, 1e-6),
        ] {
            let weights: Vec<f32> = (0..32)
                .map(|i| at + range * ((i * 7 % 32) as f32 / 31.0).powi(2))
                .collect();
            // Half a level, a coarser scale far from zero, and a scale below the normal halves.
            let bound = range / levels * 0.6 + at.abs() / 512.0 / levels + 6e-8 * 2.0;
            for method in SEARCHED {
                let rms = (error(&weights, &back(bits, method, &weights), 2) / 32.0).sqrt();
                assert!(
                    rms <= f64::from(bound),
                    "{bits} {method:?} at {at}: {rms}, bound {bound}"
                );
            }
        }
    }
}

#[test]
fn columns_and_their_loss() {
    let at = |i: usize, j: usize| ((i * 31 + j * 17) % 101) as f32 / 37.0 - 1.2;
    let columns: Vec<f32> = (0..6 * 40).map(|c| at(c % 40, c / 40)).collect();
    let (p, loss) = Packed::from_columns(Bits::Four, 32, 40, &columns, &ByGroup::default()).unwrap();
    assert_eq!(p, packed(Bits::Four, 32, 40, 6, &at));
    let found: Vec<f32> = (0..240).map(|c| p.get(c % 40, c / 40)).collect();
    let off = |c: usize| (columns[c] - found[c]).abs();
    assert_eq!(loss.max, (0..240).map(off).fold(0.0, f32::max));
    assert!((loss.squared - error(&columns, &found, 2)).abs() < 1e-9);
    assert!((loss.mean_absolute() - error(&columns, &found, 1) / 240.0).abs() < 1e-9);
    assert!(loss.count == 240 && loss.relative_rms() > 0.01 && loss.relative_rms() < 0.1);
    assert_eq!(
        (Loss::default().relative_rms(), Loss::default().mean_squared()),
        (0.0, 0.0)
    );
}

#[test]
fn group_sizes() {
    let sizes = [
        (128, 4096),
        (128, 576),
        (128, 96),
        (32, 576),
        (128, 40),
        (PER_CHANNEL, 576),
        (PER_CHANNEL, 12),
    ];
    assert_eq!(
        sizes.map(|(asked, k)| group_size(asked, k)),
        [128, 128, 128, 32, 128, 576, 16]
    );
}

#[test]
fn the_search_finds_what_trying_everything_finds() {
    for (seed, bits) in (0..24).zip(
        [Bits::Four, Bits::Three, Bits::Two, Bits::Five]
            .into_iter()
            .cycle(),
    ) {
        let mut weights = normal(64, seed + 1);
        if seed % 3 == 0 {
            weights[5] *= 6.0;
        }
        let (lo, hi) = weights
            .iter()
            .fold((0f32, 0f32), |(l, h), w| (l.min(*w), h.max(*w)));
        let mut least = [f64::INFINITY; 3];
        for i in 0..400 {
            let distance = (hi - lo) / f32::from(bits.top()) * (0.2 + 0.0025 * i as f32);
            for zero in 0..=bits.top() {
                let a = affine(bits, f64::from(distance), f64::from(zero)).unwrap();
                let found: Vec<f32> = weights
                    .iter()
                    .map(|w| decode(bits, a.scale, a.bias, encode(bits, a.scale, a.bias, *w)))
                    .collect();
                for p in [1, 2] {
                    least[p] = least[p].min(error(&weights, &found, p as i32));
                }
            }
        }
        for (p, method) in [(2, Method::Mse), (1, Method::Mae)] {
            let found = error(&weights, &back(bits, method, &weights), p as i32);
            assert!(
                found <= least[p] * 1.03,
                "{bits} {method:?} {seed}: {found}, at best {}",
                least[p]
            );
        }
    }
}

#[test]
fn importance_moves_the_error_to_what_is_unimportant() {
    let weights = normal(128, 3);
    let importance: Vec<f32> = weights
        .iter()
        .map(|w| if w.abs() < 0.4 { 100.0 } else { 0.5 })
        .collect();
    let weighted = |method: Method, h: Option<&[f32]>| {
        let (s, b) = method
            .fit(Bits::Three, &weights, h, &mut Scratch::default())
            .unwrap();
        let off = |(w, h): (&f32, &f32)| {
            let y = decode(Bits::Three, s, b, encode(Bits::Three, s, b, *w));
            f64::from(*h) * f64::from(w - y).powi(2)
        };
        weights.iter().zip(&importance).map(off).sum::<f64>()
    };
    let (with, without) = (
        weighted(Method::Mse, Some(&importance)),
        weighted(Method::Mse, None),
    );
    assert!(with < without * 0.95, "{with} against {without}");
    // What tells nothing changes nothing.
    for nothing in [vec![0.0; 128], vec![f32::NAN; 128], vec![1.0; 3]] {
        assert_eq!(weighted(Method::Mse, Some(&nothing)), without);
    }
}

proptest! {
    #[test]
    fn error_of_the_papers_rounding_is_bounded(
        weights in prop::collection::vec(-2.0f32..3.0, 2..64),
        scale in prop_oneof![Just(1e-3f32), Just(1.0), Just(100.0)],
    ) {
        let weights: Vec<f32> = weights.iter().map(|w| w * scale).collect();
        let (lo, hi) = weights.iter().fold((0f32, 0f32), |(l, h), w| (l.min(*w), h.max(*w)));
        for bits in Bits::ALL {
            // A level for the cut bias and the clamp at the top; half precision of the scale.
            let bound = (hi - lo) * (bits.step() / 2.0 + 3e-3);
            for (w, y) in weights.iter().zip(back(bits, Method::Rtn, &weights)) {
                prop_assert!((w - y).abs() <= bound, "{bits}: {w} became {y}, bound {bound}");
            }
        }
    }

    #[test]
    fn methods_minimise_what_they_say(
        weights in prop::collection::vec(-2.0f32..3.0, 2..64),
        scale in prop_oneof![Just(1e-3f32), Just(1.0), Just(100.0)],
        shift in prop_oneof![Just(0.0f32), Just(7.0)],
    ) {
        let weights: Vec<f32> = weights.iter().map(|w| (w + shift) * scale).collect();
        for bits in Bits::ALL {
            let [rtn, mse, mae] = ALL.map(|m| back(bits, m, &weights));
            for (p, found) in [(2, &mse), (1, &mae)] {
                let (found, base) = (error(&weights, found, p), error(&weights, &rtn, p));
                // A grid that is kept may be met less well than by the last digit.
                let slack = f64::from(scale / f32::from(bits.top()) / 4.0).powi(p) * weights.len() as f64;
                prop_assert!(found <= base * 1.0001 + slack, "{bits}: {found}, rtn {base}");
            }
        }
    }

    #[test]
    fn zero_stays_zero(weights in prop::collection::vec(-5.0f32..5.0, 1..40), at in 0usize..40) {
        let mut weights = weights;
        let at = at % weights.len();
        weights[at] = 0.0;
        for bits in Bits::ALL {
            for method in ALL {
                prop_assert_eq!(back(bits, method, &weights)[at], 0.0);
            }
        }
    }

    #[test]
    fn an_affine_source_grid_is_kept(d in 0.001f32..0.5, m in -4.0f32..4.0, q in prop::collection::vec(0u8..16, 32)) {
        let d = f16::from_f32(d).to_f32();
        let m = f16::from_f32(m * d * 4.0).to_f32();
        let weights: Vec<f32> = q.iter().map(|q| d * f32::from(*q) + m).collect();
        for method in SEARCHED {
            for (w, y) in weights.iter().zip(back(Bits::Four, method, &weights)) {
                prop_assert!((w - y).abs() <= d * 0.13, "{w} became {y} at distance {d}");
            }
        }
    }

    #[test]
    fn rows_agree_with_single_weights(seed in 0u32..1000) {
        let at = |i: usize, j: usize| ((i * 31 + j * 17 + seed as usize * 7) % 101) as f32 / 37.0 - 1.2;
        for bits in Bits::ALL {
            for size in [16, 24, 32, 256, 96] {
                let p = packed(bits, size, 96, 4, &at);
                let mut rows = vec![0.0; 53 * 4];
                p.view().decode_rows(35, &mut rows);
                for i in 0..53 {
                    for j in 0..4 {
                        prop_assert_eq!(rows[i * 4 + j], p.get(i + 35, j));
                    }
                }
            }
        }
    }
}
