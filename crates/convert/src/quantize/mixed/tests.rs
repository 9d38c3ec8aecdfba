use super::*;

fn choice(bits: Bits, bytes: u64, error: f64) -> Choice {
    Choice {
        bits,
        group: 32,
        bytes,
        error,
    }
}

#[test]
fn the_budget_goes_where_it_saves_most() {
    use Bits::{Eight, Four, Six, Two};
    let sensitive = hull(vec![
        choice(Two, 20, 9.0),
        choice(Four, 40, 1.0),
        choice(Eight, 80, 0.1),
    ]);
    // Six bits are worse than the mean of four and eight: never chosen.
    let robust = hull(vec![
        choice(Two, 20, 1.0),
        choice(Eight, 80, 0.01),
        choice(Six, 60, 0.29),
        choice(Four, 40, 0.3),
    ]);
    assert_eq!(
        robust.iter().map(|c| c.bits).collect::<Vec<_>>(),
        [Two, Four, Eight]
    );
    let ladders = [sensitive, robust];
    let chosen = |budget| {
        let all = spend(&ladders, &[80, 80], budget).unwrap();
        let bytes: u64 = all.iter().map(|c| c.bytes).sum();
        assert!(bytes as f64 * 8.0 <= budget * 160.0);
        [all[0].bits, all[1].bits]
    };
    assert_eq!(chosen(2.0), [Two, Two]);
    assert_eq!(chosen(3.0), [Four, Two]);
    assert_eq!(chosen(4.0), [Four, Four]);
    assert_eq!(chosen(6.0), [Eight, Four]);
    assert_eq!(chosen(100.0), [Eight, Eight]);
    let e = spend(&ladders, &[80, 80], 1.9).unwrap_err();
    tlite_testing::assert_usage(&e, "bits", &["2.000"]);
}

#[test]
fn what_no_input_comes_to_costs_nothing() {
    const K: usize = 64;
    // The first half of the rows is rough, the second a constant.
    let weight = |i: usize, j: usize| {
        if i < K / 2 {
            ((i * 7 + j) as f32).sin()
        } else {
            0.25
        }
    };
    let bytes: Vec<u8> = (0..K * 4)
        .flat_map(|at| weight(at / 4, at % 4).to_le_bytes())
        .collect();
    let elements = Elements::of(transformer_lite::unstable::tensor::DType::F32, &bytes).unwrap();
    let w = |head| Weight {
        initializer: 0,
        transposed: false,
        bits: Bits::Eight,
        group: 32,
        k: K,
        n: 4,
        codes: String::new(),
        scales: String::new(),
        readers: Vec::new(),
        head,
    };
    let options = Options {
        group_size: 32,
        head_bits: Bits::Five,
        ..Options::default()
    };
    let inputs = |quiet: std::ops::Range<usize>| {
        let mut h = Hessian::new(K);
        let rows = (0..K * 40).map(|at| match quiet.contains(&(at % K)) {
            true => 0.0,
            false => (at as f32 * 1.3).cos(),
        });
        h.add(&rows.collect::<Vec<f32>>()).unwrap();
        h
    };
    let ladder = |h: Option<&Hessian>| measure(elements, &w(false), &options, h).unwrap();
    let bits = |l: &[Choice]| l.iter().map(|c| c.bits).collect::<Vec<_>>();
    let alone = ladder(None);
    assert!(alone.len() > 3 && alone[0].bits == Bits::Two && alone[0].error > 0.0);
    let exact = ladder(Some(&inputs(0..K / 2)));
    assert_eq!((bits(&exact), exact[0].error), (vec![Bits::Two], 0.0));
    // What comes to the rough half alone is lost as a part of what it makes, more than of all
    // weights.
    let rough = ladder(Some(&inputs(K / 2..K)));
    assert!(rough[0].error > 0.0 && rough.len() > 3);
    // The head is no narrower than is asked for.
    let head = measure(elements, &w(true), &options, None).unwrap();
    assert!(
        head.iter().all(|c| c.bits >= Bits::Five) && head[0].bits == Bits::Five,
        "{head:?}"
    );
}
