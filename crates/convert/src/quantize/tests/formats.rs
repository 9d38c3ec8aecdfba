//! Types of floats, formats under a budget, sizes of files, numbers of threads.

use super::*;

#[test]
fn a_budget_is_kept_and_spent() {
    // A weight of signs takes two bits, and leaves its share to the others.
    let signs: Vec<f32> = noise(&[64, INNER], 2)
        .to_f32()
        .unwrap()
        .iter()
        .map(|v| 0.25f32.copysign(*v))
        .collect();
    let mut tiny = Tiny::new();
    tiny.body_of(64, &HostTensor::from_f32(&[64, INNER], &signs).unwrap());
    let dir = tiny.finish();
    let with = |name: &str, options: Options| {
        quantize(
            &dir.path().join("in"),
            &dir.path().join(name),
            &options,
            &mut |_| (),
        )
        .unwrap()
    };
    let budget = |bits| Options {
        budget: Some(bits),
        group_size: 64,
        head_bits: Bits::Two,
        ..Options::default()
    };
    let even = with(
        "even",
        Options {
            group_size: 64,
            head_bits: Bits::Four,
            ..Options::default()
        },
    );
    let mixed = with("mixed", budget(even.bits_per_weight));
    let used = mixed.bits_per_weight / even.bits_per_weight;
    assert!(used <= 1.0 && used > 0.9, "{used}");
    let chosen: Vec<Bits> = mixed.weights.iter().map(|w| w.bits).collect();
    assert!(
        chosen[1] == Bits::Two && chosen[0] >= Bits::Four && chosen[2] > Bits::Four,
        "{chosen:?}"
    );
    assert_eq!(logits(&dir.path().join("mixed")).len(), 5 * VOCAB);
    // What is spent more evenly has a larger error of this kind.
    let total = |s: &Summary| s.weights.iter().map(|w| w.relative_error.powi(2)).sum::<f64>();
    assert!(total(&mixed) < total(&even), "{} {}", total(&mixed), total(&even));
    // The head and the embedding keep the bits that are asked for, whatever else that costs.
    let wide = Options {
        head_bits: Bits::Eight,
        ..budget(mixed.bits_per_weight + 2.0)
    };
    let wide = with("wide", wide);
    assert_eq!(wide.weights[0].bits, Bits::Eight);
    assert!(
        wide.weights[1].bits == Bits::Two && wide.weights[2].bits < Bits::Eight,
        "{:?}",
        wide.weights
    );
    let e = quantize(
        &dir.path().join("in"),
        &dir.path().join("none"),
        &budget(2.1),
        &mut |_| (),
    )
    .unwrap_err();
    assert_usage(&e, "bits", &["2.1"]);
    assert!(
        !names(&dir).iter().any(|n| n.contains("none")),
        "{:?}",
        names(&dir)
    );
}

/// The relative difference of what a model makes of its tokens.
fn relative(dir: &tempfile::TempDir, out: &str) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let (given, found) = (logits(&dir.path().join("in")), logits(&dir.path().join(out)));
    norm(&mut given.iter().zip(&found).map(|(a, b)| a - b)) / norm(&mut given.iter().copied())
}

#[test]
fn floats_of_all_types_are_read_as_what_they_are() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let mut tiny = Tiny::new();
        tiny.weight("embed", &noise(&[VOCAB, HIDDEN], 1));
        let of = |shape: &[usize], seed| {
            let data = noise(shape, seed);
            HostTensor::from_floats(dtype, shape, &data.to_f32().unwrap()).unwrap()
        };
        tiny.weight("first", &of(&[HIDDEN, INNER], 2));
        tiny.weight("second", &of(&[VOCAB, INNER], 3));
        let to = |code: i64| [("to", Attr::Int(code))];
        let (narrow, wide) = (
            to(i64::from(transformer_lite::unstable::graph::onnx::type_code(
                dtype,
            ))),
            to(1),
        );
        let cast = |attributes, from, to| NodeSpec {
            attributes,
            ..node("Cast", from, to)
        };
        tiny.node(node("Gather", &["embed", "input_ids"], &["x"]));
        tiny.node(cast(&narrow, &["x"], &["xn"]));
        tiny.node(node("MatMul", &["xn", "first"], &["h"]));
        tiny.node(NodeSpec {
            attributes: &[("perm", Attr::Ints(vec![1, 0]))],
            ..node("Transpose", &["second"], &["turned"])
        });
        tiny.node(node("MatMul", &["h", "turned"], &["l"]));
        tiny.node(cast(&wide, &["l"], &["logits"]));
        tiny.output("logits", VOCAB);
        let dir = tiny.finish();
        let options = Options {
            bits: Bits::Eight,
            ..Options::default()
        };
        let summary = run(&dir, &options).unwrap();
        assert_eq!((summary.weights.len(), summary.left.len()), (3, 0), "{dtype}");
        assert!(
            summary.weights.iter().all(|w| w.relative_error < 0.01),
            "{dtype}: {:?}",
            summary.weights
        );
        let off = relative(&dir, "out");
        assert!(off > 1e-5 && off < 0.02, "{dtype}: {off}");
    }
    // What single precision cannot hold is refused with its name.
    let mut tiny = Tiny::new();
    let mut data = vec![1.0; HIDDEN * INNER];
    data[INNER + 3] = 1e300;
    tiny.weight("embed", &noise(&[VOCAB, HIDDEN], 1));
    tiny.weight("far", &HostTensor::from_f64(&[HIDDEN, INNER], &data).unwrap());
    tiny.node(node("Gather", &["embed", "input_ids"], &["x"]));
    tiny.node(NodeSpec {
        attributes: &[("to", Attr::Int(11))],
        ..node("Cast", &["x"], &["wide"])
    });
    tiny.node(node("MatMul", &["wide", "far"], &["l"]));
    tiny.node(NodeSpec {
        attributes: &[("to", Attr::Int(1))],
        ..node("Cast", &["l"], &["logits"])
    });
    tiny.output("logits", INNER);
    let e = run(&tiny.finish(), &Options::default()).unwrap_err();
    assert_error(&e, ErrorKind::InvalidFile, &["\"far\"", "[1, 3]", "inf"]);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let tensor = noise(&[INNER, 700], 8);
    let w = weight::Weight {
        initializer: 0,
        transposed: false,
        bits: Bits::Four,
        group: 32,
        k: INNER,
        n: 700,
        codes: String::new(),
        scales: String::new(),
        readers: Vec::new(),
        head: false,
    };
    let rows: Vec<f32> = (0..INNER).map(|i| 0.5 + i as f32 / 64.0).collect();
    let scaling = Scaling {
        rows: Some(&rows),
        columns: None,
    };
    let made = |threads| {
        let elements = weight::Elements::of(DType::F32, tensor.bytes().unwrap())
            .unwrap()
            .scaled(scaling);
        let mut all = Vec::new();
        let method = transformer_lite::unstable::quant::ByGroup::from(Method::Mae);
        let losses = panels::panels(threads, elements, &w, &method, &mut |p| {
            all.push((p.first, p.packed));
        });
        all.sort_by_key(|(first, _)| *first);
        let losses = losses.ok().unwrap();
        (all, losses.loss, losses.int4)
    };
    let one = made(1);
    assert!(one.0.len() > 5);
    for threads in [2, 3, 16] {
        assert!(made(threads) == one, "{threads}");
    }
}

/// Bytes of the files of a quantized model against bits times weights and scales.
#[test]
fn files_are_as_large_as_their_codes_and_scales() {
    let (k, n) = (512, 2048);
    let mut tiny = Tiny::new();
    tiny.weight("embed", &noise(&[VOCAB, k], 1));
    tiny.weight("up", &noise(&[k, n], 2));
    tiny.weight("down", &noise(&[n, k], 3));
    tiny.weight("head", &noise(&[k, VOCAB], 4));
    tiny.node(node("Gather", &["embed", "input_ids"], &["x"]));
    tiny.node(node("MatMul", &["x", "up"], &["u"]));
    tiny.node(node("MatMul", &["u", "down"], &["d"]));
    tiny.node(node("MatMul", &["d", "head"], &["logits"]));
    tiny.output("logits", VOCAB);
    let dir = tiny.finish();
    for (bits, group) in [(Bits::Four, 128), (Bits::Three, 64), (Bits::Eight, 32)] {
        let out = dir.path().join(format!("{bits}"));
        let options = Options {
            bits,
            group_size: group,
            ..Options::default()
        };
        quantize(&dir.path().join("in"), &out, &options, &mut |_| ()).unwrap();
        let size = |file: &str| std::fs::metadata(out.join(file)).unwrap().len() as f64;
        let weight = |bits: Bits, count: usize| {
            count as f64 * f64::from(bits.count()) / 8.0 + count as f64 / group as f64 * 4.0
        };
        let wanted = weight(bits, 2 * k * n) + weight(Bits::Eight, 2 * VOCAB * k);
        let ratio = (size(MODEL) + size(DATA)) / wanted;
        assert!((1.0..1.02).contains(&ratio), "{bits}, groups of {group}: {ratio}");
    }
}
