//! Against a reference in double precision.

use super::*;
use crate::kernels::cpu::harness::{Random, compare, memory, run, spec};
use half::f16;

/// Sizes and attributes of a test.
#[derive(Clone, Copy, Debug)]
struct Shape {
    batch: usize,
    rows: usize,
    keys: usize,
    /// Keys that exist.
    live: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    causal: bool,
    cap: f32,
    window: Option<usize>,
    ring: Option<usize>,
    mask: Masked,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Masked {
    None,
    /// Sizes of a mask of random numbers.
    Random([usize; 4]),
    /// All keys of the second sequence and some of the first are hidden by this number.
    Hidden(f32),
}

const PLAIN: Shape = Shape {
    batch: 1,
    rows: 1,
    keys: 1,
    live: 1,
    heads: 1,
    kv_heads: 1,
    dim: 64,
    causal: false,
    cap: 0.0,
    window: None,
    ring: None,
    mask: Masked::None,
};

const fn sized(
    batch: usize,
    rows: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    causal: bool,
) -> Shape {
    Shape {
        batch,
        rows,
        keys,
        live: keys,
        heads,
        kv_heads,
        dim,
        causal,
        ..PLAIN
    }
}

/// The mask of a shape, with its strides.
fn mask(s: &Shape) -> Option<(Vec<f32>, [usize; 4])> {
    let mut random = Random(31);
    match s.mask {
        Masked::None => None,
        Masked::Random(sizes) => {
            let data = random
                .floats(sizes.iter().product())
                .iter()
                .map(|v| 2.0 * v - 2.0)
                .collect();
            let mut strides = [0; 4];
            let mut step = 1;
            for i in (0..4).rev() {
                if sizes[i] != 1 {
                    strides[i] = step;
                    step *= sizes[i];
                }
            }
            Some((data, strides))
        }
        Masked::Hidden(least) => {
            let hidden = |b: usize, j: usize| b == 1 || j < s.keys / 2 || j / 16 == 6;
            let all = (0..s.batch).flat_map(|b| (0..s.keys).map(move |j| (b, j)));
            let data = all.map(|(b, j)| if hidden(b, j) { least } else { 0.0 }).collect();
            Some((data, [s.keys, 0, 0, 1]))
        }
    }
}

/// The scale of the scores.
fn scale(s: &Shape) -> f32 {
    if matches!(s.mask, Masked::Hidden(_)) {
        0.25
    } else {
        2.0 / (s.dim as f32).sqrt()
    }
}

fn reference(s: &Shape, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
    let group = s.heads / s.kv_heads;
    let mask = mask(s);
    let scale = f64::from(scale(s));
    let mut y = Vec::new();
    for (b, i) in (0..s.batch).flat_map(|b| (0..s.rows).map(move |i| (b, i))) {
        for h in 0..s.heads {
            let q = &q[((b * s.rows + i) * s.heads + h) * s.dim..][..s.dim];
            let row = |j: usize| ((b * s.keys + j) * s.kv_heads + h / group) * s.dim;
            let first = s
                .window
                .map_or(0, |w| (s.live + i + 1).saturating_sub(s.rows + w));
            let end = if s.causal { s.live + i + 1 - s.rows } else { s.live };
            let score = |j: usize| {
                if !(first..end).contains(&j) {
                    return f64::NEG_INFINITY;
                }
                let k = &k[row(j)..][..s.dim];
                let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let mut score = dot * scale;
                if s.cap > 0.0 {
                    score = f64::from(s.cap) * (score / f64::from(s.cap)).tanh();
                }
                let extra = mask
                    .as_ref()
                    .map_or(0.0, |(m, [mb, mh, ms, mt])| m[b * mb + h * mh + i * ms + j * mt]);
                score + f64::from(extra)
            };
            let scores: Vec<f64> = (0..s.live).map(score).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|v| (v - top).exp()).sum();
            for c in 0..s.dim {
                let of = |(j, w): (usize, &f64)| (w - top).exp() / sum * f64::from(v[row(j) + c]);
                y.push(scores.iter().enumerate().map(of).sum());
            }
        }
    }
    y
}

/// A cache in a storage format, and its elements after rounding, as `[batch, keys, kv_heads, dim]`.
fn stored(s: &Shape, format: Stored, data: &mut [f32]) -> Vec<u32> {
    let mut words = Vec::new();
    for row in data.chunks_exact_mut(s.dim) {
        match format {
            Stored::Floats => words.extend(row.iter().map(|v| v.to_bits())),
            Stored::Halves => {
                let halves = row.chunks_exact(2).map(|p| {
                    let [a, b] = [p[0], p[1]].map(|v| u32::from(f16::from_f32(v).to_bits()));
                    a | b << 16
                });
                words.extend(halves);
                row.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
            }
            Stored::Bytes => {
                let scale = row.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
                let codes: Vec<i8> = row.iter().map(|v| (v / scale).round() as i8).collect();
                let word = |c: &[i8]| u32::from_le_bytes([0, 1, 2, 3].map(|i| c[i].cast_unsigned()));
                words.extend(codes.chunks_exact(4).map(word));
                words.push(scale.to_bits());
                row.iter_mut()
                    .zip(codes)
                    .for_each(|(v, c)| *v = f32::from(c) * scale);
            }
        }
    }
    // A ring keeps the last keys, each at its place.
    let Some(ring) = s.ring else { return words };
    let per = words.len() / s.keys;
    let mut kept = vec![0; ring * per];
    for key in s.live.saturating_sub(ring)..s.live {
        kept[key % ring * per..][..per].copy_from_slice(&words[key * per..][..per]);
    }
    kept
}

fn check(s: Shape) {
    let mut random = Random(17);
    let q: Vec<f32> = random
        .floats(s.batch * s.rows * s.heads * s.dim)
        .iter()
        .map(|v| 2.0 * v)
        .collect();
    let [k, v] = [0, 1].map(|_| random.floats(s.batch * s.keys * s.kv_heads * s.dim));
    let mut formats = vec![Stored::Floats, Stored::Halves];
    formats.extend((s.dim.is_multiple_of(4)).then_some(Stored::Bytes));
    for format in formats {
        let (mut q, mut k, mut v) = (q.clone(), k.clone(), v.clone());
        if matches!(s.mask, Masked::Hidden(_)) {
            // Scores with few bits, which sums with a large number preserve.
            q.iter_mut().for_each(|v| *v = v.round());
            k.iter_mut().for_each(|v| *v = v.round());
        }
        let (mut k_words, mut v_words) = (stored(&s, format, &mut k), stored(&s, format, &mut v));
        let want = reference(&s, &q, &k, &v);
        let (mut mask, strides) = mask(&s).map_or((None, [0; 4]), |(m, strides)| (Some(m), strides));
        let mut live = vec![3, s.live as i32];
        let mut defines = vec![("DIM", s.dim as i64)];
        let mut define = |name, set, value: usize| defines.extend(bool::then(set, || (name, value as i64)));
        define("CAUSAL", s.causal, 1);
        define("CAPPED", s.cap > 0.0, 1);
        define("WINDOW", s.window.is_some(), s.window.unwrap_or(0));
        define("RING", s.ring.is_some(), s.ring.unwrap_or(0));
        define("Q8", format == Stored::Bytes, 1);
        let kind = match format {
            Stored::Floats => DType::F32,
            Stored::Halves => DType::F16,
            Stored::Bytes => DType::I32,
        };
        let f = Some(DType::F32);
        let types = [
            f,
            Some(kind),
            Some(kind),
            mask.as_ref().and(f),
            None,
            None,
            Some(DType::I32),
            f,
        ];
        let spec = spec(&defines, &types);
        let [mb, mh, ms, mt] = strides;
        let words = [s.heads, s.kv_heads, s.rows, s.keys, 1, mb, mh, ms, mt].map(|v| v as u32);
        let words = [
            &words[..],
            &[scale(&s).to_bits(), s.cap.to_bits(), s.batch as u32],
        ]
        .concat();
        for (isa, epilogue, threads) in
            Isa::supported().flat_map(|i| [(i, false, 1), (i, true, 1), (i, false, 2), (i, true, 5)])
        {
            let mut y = vec![f32::NAN; q.len()];
            let y_at = memory(&mut y);
            let operands = [
                Some(memory(&mut q)),
                Some(memory(&mut k_words)),
                Some(memory(&mut v_words)),
                mask.as_mut().map(|m| memory(m)),
                None,
                None,
                Some(memory(&mut live)),
                Some(y_at),
            ];
            run::<Attention>(&spec, isa, &words, &operands, y_at, epilogue, threads);
            let what = format!("{isa:?} {format:?} {threads} threads {s:?}");
            compare(&what, &y, &want, epilogue, 1e-5);
        }
    }
}

#[test]
fn causal_rows_match() {
    for s in [
        sized(1, 1, 70, 4, 2, 16, true),
        sized(1, 5, 5, 4, 2, 64, true),
        sized(1, 64, 64, 3, 3, 64, true),
        sized(1, 70, 150, 4, 2, 128, true),
        sized(1, 130, 130, 9, 3, 64, true),
        sized(1, 68, 140, 4, 1, 256, true),
        sized(1, 5, 70, 4, 2, 10, true),
        sized(2, 9, 23, 4, 2, 12, true),
        sized(1, 40, 40, 2, 1, 512, true),
        Shape {
            mask: Masked::Random([2, 4, 64, 66]),
            ..sized(2, 64, 66, 4, 4, 64, true)
        },
        Shape {
            mask: Masked::Random([1, 1, 70, 133]),
            ..sized(1, 70, 133, 4, 2, 16, true)
        },
        Shape {
            window: Some(3),
            ..sized(1, 70, 70, 6, 2, 16, true)
        },
        Shape {
            window: Some(100),
            ..sized(1, 130, 260, 4, 1, 16, true)
        },
    ] {
        check(s);
    }
}

#[test]
fn all_keys_match() {
    for s in [
        sized(1, 1, 1, 2, 1, 64, false),
        sized(1, 1, 513, 14, 2, 64, false),
        sized(1, 1, 1100, 3, 1, 256, false),
        sized(1, 1, 700, 2, 2, 10, false),
        sized(1, 6, 70, 14, 2, 64, false),
        sized(1, 9, 40, 16, 1, 128, false),
        sized(1, 3, 7, 2, 2, 6, false),
        sized(1, 2, 64, 3, 1, 130, false),
        sized(3, 5, 7, 4, 2, 8, false),
        sized(1, 1, 300, 40, 1, 64, false),
        sized(1, 2, 2, 1, 1, 2, false),
        Shape {
            live: 77,
            ..sized(1, 1, 130, 9, 3, 64, false)
        },
        Shape {
            live: 77,
            ..sized(1, 33, 130, 9, 3, 64, false)
        },
    ] {
        check(s);
    }
}

#[test]
fn masks_and_caps_match() {
    let shape = |batch, rows, keys, mask| Shape {
        mask,
        ..sized(batch, rows, keys, 4, 2, 12, false)
    };
    for s in [
        shape(2, 5, 70, Masked::Random([2, 1, 1, 70])),
        shape(3, 1, 9, Masked::Random([1, 4, 1, 9])),
        shape(2, 6, 6, Masked::Random([2, 4, 6, 6])),
        shape(1, 6, 6, Masked::Random([1, 1, 6, 1])),
        shape(1, 40, 90, Masked::Random([1, 4, 40, 90])),
        Shape {
            cap: 2.0,
            ..shape(1, 1, 70, Masked::Random([1, 1, 1, 70]))
        },
        Shape {
            cap: 2.0,
            ..shape(1, 35, 70, Masked::Random([1, 1, 35, 70]))
        },
        shape(2, 5, 64, Masked::Hidden(-65504.0)),
        shape(2, 1, 40, Masked::Hidden(-65504.0)),
        shape(2, 70, 133, Masked::Hidden(-65504.0)),
        shape(2, 9, 150, Masked::Hidden(f32::MIN)),
        shape(1, 9, 150, Masked::Hidden(f32::NEG_INFINITY)),
        shape(1, 1, 150, Masked::Hidden(f32::NEG_INFINITY)),
    ] {
        check(s);
    }
}

#[test]
fn windows_and_rings_match() {
    let shape = |rows, keys, heads, kv_heads, window| Shape {
        window: Some(window),
        ..sized(1, rows, keys, heads, kv_heads, 16, false)
    };
    for s in [
        Shape {
            mask: Masked::Random([1, 1, 1, 200]),
            ..shape(1, 200, 4, 2, 70)
        },
        shape(1, 900, 3, 3, 600),
        shape(1, 9, 4, 1, 9),
        shape(11, 150, 4, 2, 5),
        shape(70, 70, 2, 2, 3),
        Shape {
            ring: Some(80),
            ..shape(1, 200, 4, 2, 70)
        },
        Shape {
            ring: Some(80),
            causal: true,
            ..shape(11, 197, 4, 2, 70)
        },
        Shape {
            ring: Some(200),
            causal: true,
            ..shape(50, 399, 4, 2, 150)
        },
        Shape {
            ring: Some(600),
            ..shape(1, 900, 3, 3, 600)
        },
    ] {
        check(s);
    }
}
