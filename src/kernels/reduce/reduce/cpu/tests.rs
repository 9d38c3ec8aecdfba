//! Reductions against plain loops.

use super::Reduce;
use crate::kernels::cpu::moves::check::{Given, blank, expect, floats, ints};

/// Parameters of a reduction of a tensor of `shape` over `axes`, and for each result the places
/// of its elements.
fn case(shape: &[usize], axes: &[usize]) -> (Vec<u32>, Vec<Vec<usize>>) {
    let rank = shape.len();
    let mut steps = vec![1; rank];
    for i in (1..rank).rev() {
        steps[i - 1] = steps[i] * shape[i];
    }
    let walk = |reduced: bool| -> Vec<(usize, usize)> {
        let all = (0..rank)
            .rev()
            .filter(|i| axes.contains(i) == reduced && shape[*i] != 1);
        let mut list: Vec<(usize, usize)> = Vec::new();
        for i in all {
            match list.last_mut() {
                Some((n, s)) if *n * *s == steps[i] => *n *= shape[i],
                _ => list.push((shape[i], steps[i])),
            }
        }
        list
    };
    let (kept, reduced) = (walk(false), walk(true));
    let places = |list: &[(usize, usize)]| -> Vec<usize> {
        list.iter().fold(vec![0], |all, (n, s)| {
            (0..*n).flat_map(|i| all.iter().map(move |a| a + i * s)).collect()
        })
    };
    let (rows, cols) = (places(&kept), places(&reduced));
    let size = |list: &[(usize, usize)], i: usize| list.get(i).map_or(1, |a| a.0) as u32;
    let step = |list: &[(usize, usize)], i: usize| list.get(i).map_or(0, |a| a.1) as u32;
    let mut params = vec![
        rows.len() as u32,
        cols.len() as u32,
        size(&kept, 0),
        size(&kept, 1),
    ];
    params.extend((0..3).map(|i| step(&kept, i)));
    params.extend([size(&reduced, 0), size(&reduced, 1)]);
    params.extend((0..3).map(|i| step(&reduced, i)));
    (
        params,
        rows.iter()
            .map(|r| cols.iter().map(|c| r + c).collect())
            .collect(),
    )
}

fn reduced(v: &[f32], [map, join, finish]: [i64; 3]) -> f32 {
    let most = v.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let top = if map == 3 && most.is_finite() {
        f64::from(most)
    } else {
        0.0
    };
    let all = v.iter().map(|v| f64::from(*v)).map(|v| match map {
        0 => v,
        1 => v.abs(),
        2 => v * v,
        _ => (v - top).exp(),
    });
    let is_number = !v.iter().any(|v| v.is_nan());
    let s = match join {
        0 => all.sum(),
        1 if is_number => all.fold(f64::NEG_INFINITY, f64::max),
        2 if is_number => all.fold(f64::INFINITY, f64::min),
        3 => all.product(),
        _ => f64::NAN,
    };
    (match finish {
        0 => s,
        1 => s / v.len() as f64,
        2 => s.sqrt(),
        _ => s.ln() + top,
    }) as f32
}

const KINDS: [[i64; 3]; 10] = [
    [0, 0, 0],
    [0, 0, 1],
    [0, 1, 0],
    [0, 2, 0],
    [0, 3, 0],
    [1, 0, 0],
    [2, 0, 2],
    [0, 0, 3],
    [3, 0, 3],
    [2, 0, 0],
];

fn shapes() -> Vec<(Vec<usize>, Vec<usize>)> {
    vec![
        (vec![], vec![]),
        (vec![3, 7], vec![1]),
        (vec![5, 130], vec![1]),
        (vec![2, 1025], vec![1]),
        (vec![37, 49], vec![1]),
        (vec![3, 5], vec![0]),
        (vec![4, 3], vec![0]),
        (vec![700, 3], vec![0]),
        (vec![41, 1100], vec![0]),
        (vec![3, 30, 17], vec![1]),
        (vec![3, 5, 9, 41], vec![0, 2, 3]),
        (vec![2, 3, 4, 5, 6], vec![0, 2, 4]),
        (vec![2, 3, 4, 5, 6], vec![1, 3]),
        (vec![2, 3, 1, 5, 2], vec![1, 3]),
        (vec![5, 7], vec![0, 1]),
        (vec![5, 7], vec![]),
        (vec![3, 0, 4], vec![1]),
        (vec![3, 0], vec![1]),
        (vec![0, 4], vec![1]),
    ]
}

#[test]
fn reductions_of_floats_match() {
    for (shape, axes) in shapes() {
        let (params, places) = case(&shape, &axes);
        for kind in KINDS {
            let defines: Vec<_> = ["MAP", "JOIN", "FINISH"].into_iter().zip(kind).collect();
            let n: usize = shape.iter().product();
            let mut x = floats(n, 4);
            if kind[1] == 3 || kind[2] == 3 {
                x.iter_mut().for_each(|v| *v = 1.25 + *v / 4.0);
            }
            let want = places
                .iter()
                .map(|p| reduced(&p.iter().map(|p| x[*p]).collect::<Vec<_>>(), kind));
            let want = Given::F(want.collect());
            let tolerance = if kind[1] == 3 { 1e-4 } else { 1e-5 };
            expect::<Reduce>(
                &defines,
                &params,
                &[Given::F(x), blank(&want)],
                &[want],
                tolerance,
            );
        }
    }
}

#[test]
fn reductions_of_infinities_and_nan_match() {
    let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38];
    for (shape, axes) in [
        (vec![40, 70], vec![1]),
        (vec![40, 70], vec![0]),
        (vec![3, 40], vec![1]),
    ] {
        let (params, places) = case(&shape, &axes);
        for kind in [[0, 1, 0], [0, 2, 0], [3, 0, 3], [0, 0, 0]] {
            for special in specials {
                let mut x = floats(shape.iter().product(), 4);
                let n = x.len();
                for i in [0, 9, n / 3, n / 3 + 1, n - 1] {
                    x[i] = special;
                }
                if kind[1] > 0 {
                    x[n / 2] = f32::INFINITY;
                    x[n / 2 + 1] = f32::NEG_INFINITY;
                }
                let defines: Vec<_> = ["MAP", "JOIN", "FINISH"].into_iter().zip(kind).collect();
                let want = places
                    .iter()
                    .map(|p| reduced(&p.iter().map(|p| x[*p]).collect::<Vec<_>>(), kind));
                let want = Given::F(want.collect());
                expect::<Reduce>(&defines, &params, &[Given::F(x), blank(&want)], &[want], 1e-5);
            }
        }
    }
}

#[test]
fn reductions_of_integers_match() {
    for (shape, axes) in shapes() {
        let (params, places) = case(&shape, &axes);
        for [map, join] in [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [2, 0]] {
            let x = ints(shape.iter().product(), 4, 1 << 20);
            let of = |p: &Vec<usize>| {
                let all = p.iter().map(|p| x[*p]).map(|v| match map {
                    0 => v,
                    1 => v.abs(),
                    _ => v.wrapping_mul(v),
                });
                match join {
                    0 => all.fold(0, i32::wrapping_add),
                    1 => all.fold(i32::MIN, i32::max),
                    2 => all.fold(i32::MAX, i32::min),
                    _ => all.fold(1, i32::wrapping_mul),
                }
            };
            let want = Given::I(places.iter().map(of).collect());
            let defines = [("MAP", map), ("JOIN", join), ("FINISH", 0)];
            expect::<Reduce>(&defines, &params, &[Given::I(x), blank(&want)], &[want], 0.0);
        }
    }
}
