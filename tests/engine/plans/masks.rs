//! Masks of the least float, as models in single precision have them.

use super::*;

/// Attention of `s` queries over 70 keys, in heads of 64, and what its mask hides.
fn masked(batch: usize, s: usize, hides: impl Fn(usize, usize) -> bool) {
    let keys = 70;
    let mut b = Build::default();
    let q = b.input("q", DType::F32, &format!("{batch} {s} 4 64"));
    let k = b.input("k", DType::F32, &format!("{batch} {keys} 2 64"));
    let v = b.input("v", DType::F32, &format!("{batch} {keys} 2 64"));
    let mask = b.input("mask", DType::F32, &format!("{batch} 1 1 {keys}"));
    let y = b.node(Attention::scaled(0.125), &[q, k, v, mask]);
    let graph = b.finish(&[y]);
    let hidden = |(i, key)| if hides(i, key) { f32::MIN } else { 0.0 };
    let places = (0..batch).flat_map(|i| (0..keys).map(move |key| (i, key)));
    let mask: Vec<f32> = places.map(hidden).collect();
    let given = [
        ("q", random(&[batch, s, 4, 64], 1)),
        ("k", random(&[batch, keys, 2, 64], 2)),
        ("v", random(&[batch, keys, 2, 64], 3)),
        ("mask", HostTensor::from_f32(&[batch, 1, 1, keys], &mask).unwrap()),
    ];
    let options = Options {
        float: DType::F32,
        ..Options::default()
    };
    for device in devices() {
        let _turn = device.turn();
        let plan = Plan::compile(&graph, &device.caps, &options).unwrap();
        let mut executor = Executor::new(Box::new(device.share()), &graph, vec![plan]).unwrap();
        check(&mut executor, &graph, &given);
    }
}

/// Keys that are not there, behind the last ones of a tile, have no weight then either.
#[test]
fn a_row_that_sees_no_key_has_the_mean_of_all() {
    for (batch, rows) in [(1, 1), (1, 5), (2, 1), (2, 5)] {
        masked(batch, rows, |i, _| i + 1 == batch);
        masked(batch, rows, |i, key| i == 0 && key < 20);
    }
}
