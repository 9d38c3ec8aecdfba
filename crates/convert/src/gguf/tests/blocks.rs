//! Models whose quantized weights are kept.

use super::*;

/// Where the halves of scales and minima stand in a block of a type, and the upper byte of positive
/// ones that make weights of about 0.5 at most. Those of `Q6_K` are subnormal, as in real files.
fn halves(kind: GgmlType) -> (&'static [usize], u8) {
    match kind {
        GgmlType::Q4_1 | GgmlType::Q5_1 => (&[0, 2], 0x24),
        GgmlType::Q2_K => (&[80, 82], 0x14),
        GgmlType::Q3_K => (&[108], 0x0c),
        GgmlType::Q4_K | GgmlType::Q5_K => (&[0, 2], 0x0c),
        GgmlType::Q6_K => (&[208], 0x01),
        _ => (&[0], 0x24),
    }
}

/// A pseudo-random model whose matrices are blocks of a type.
fn of_blocks(kind: GgmlType, architecture: &str) -> File {
    let traits = Traits {
        untied: architecture == "qwen2",
        rope_freqs: false,
    };
    let (per_block, size) = kind.block().unwrap();
    let sizes = [HIDDEN.max(per_block), testing::INTERMEDIATE.max(per_block)];
    let mut file = testing::tiny_of(architecture, traits, sizes);
    let (places, upper) = halves(kind);
    let mut seed = 11u32;
    let mut byte = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    for t in file.tensors.iter_mut().filter(|t| t.dims.len() == 2) {
        t.ggml_type = kind.0;
        t.data.clear();
        for _ in 0..t.dims.iter().product::<usize>() / per_block {
            let mut block: Vec<u8> = (0..size).map(|_| byte()).collect();
            for at in places {
                block[at + 1] = upper | block[at + 1] & 0x80;
            }
            t.data.extend(block);
        }
    }
    file
}

fn logits(model: &Path) -> Vec<f32> {
    use transformer_lite::unstable::graph::pass::Target;
    use transformer_lite::unstable::llm::LanguageModel as _;
    use transformer_lite::unstable::llm::engine::{Decoder, HostModel};
    let decoder = Decoder::load(&model.join("model.onnx"), &Target::HOST).unwrap();
    let tokens: Vec<u32> = (0..9).map(|i| (i * 89 + 5) % VOCAB as u32).collect();
    HostModel::new(decoder, tokens.len())
        .unwrap()
        .forward_all(&tokens)
        .unwrap()
}

#[test]
fn grids_of_all_types_are_kept_up_to_the_rounding_of_halves() {
    use transformer_lite::unstable::quant::{Bits, GridColumn, Grids, Scales};
    let g = golden();
    let mut seen = 0;
    for kind in SUPPORTED {
        let Some(format) = kind.grid_format() else {
            continue;
        };
        seen += 1;
        let blocks = g.tensor(&format!("{kind}.blocks")).unwrap();
        let expected = g.tensor(&format!("{kind}.values")).unwrap();
        let &[k, n] = &blocks.dims[..] else {
            panic!("{kind}: {:?}", blocks.dims)
        };
        let mut wanted = vec![0.0; k * n];
        g.read_f32(expected, 0, &mut wanted).unwrap();
        let data = g.data(blocks).unwrap();
        let column = |j: usize, out: &mut GridColumn| {
            let row = data.len() / n;
            assert!(super::super::dequant::grids(
                kind,
                &data[j * row..(j + 1) * row],
                out
            ));
        };
        let column = Box::new(column);
        let grids = Grids { format, k, n, column };
        let (packed, loss) = grids.pack().unwrap();
        let nested = format.scales != Scales::Pairs;
        let exact = nested || matches!(kind, GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0);
        if nested {
            let bytes = 4 * (packed.codes.len() + packed.scales.len());
            assert!(
                bytes <= data.len() + 2 * n,
                "{kind}: {bytes} bytes, {} in the file",
                data.len()
            );
        }
        let mut worst = 0f32;
        for j in 0..n {
            for i in 0..k {
                let (found, wanted) = (packed.get(i, j), wanted[j * k + i]);
                let bound = if exact {
                    0.0
                } else {
                    let [s, b] = packed.pairs()[i / format.group * n + j].map(|h| h.to_f32());
                    (wanted.abs() + (s * b).abs()) / 2048.0 * 1.01
                };
                assert!(
                    (found - wanted).abs() <= bound,
                    "{kind} [{i}, {j}]: {found} instead of {wanted}"
                );
                worst = worst.max((found - wanted).abs());
            }
        }
        assert_eq!(loss.max, worst, "{kind}");
    }
    assert_eq!((seen, Bits::ALL.len()), (10, 6));
}

#[test]
fn kept_bits_make_the_model_that_floats_make() {
    for (kind, architecture, bound) in [
        (GgmlType::Q4_0, "llama", 1e-11),
        // Biases are rounded: a few thousandths of a weight, squared.
        (GgmlType::Q4_1, "qwen2", 1e-5),
        (GgmlType::Q5_0, "qwen2", 1e-11),
        (GgmlType::Q5_1, "llama", 1e-5),
        (GgmlType::Q8_0, "llama", 1e-11),
        (GgmlType::Q2_K, "llama", 1e-10),
        (GgmlType::Q3_K, "qwen2", 1e-10),
        (GgmlType::Q4_K, "qwen2", 1e-10),
        (GgmlType::Q5_K, "llama", 1e-10),
        (GgmlType::Q6_K, "llama", 1e-10),
    ] {
        let (folder, path) = written(&of_blocks(kind, architecture));
        let (plain, kept) = (folder.path().join("plain"), folder.path().join("kept"));
        convert(&path, &plain, false, &mut |_| ()).unwrap();
        let mut last = (0, 1);
        let summary = convert(&path, &kept, true, &mut |p| last = (p.done, p.total)).unwrap();
        assert_eq!(last.0, last.1, "progress ends at the total");
        let matrices = if architecture == "qwen2" { 16 } else { 15 };
        assert_eq!((summary.kept.len(), summary.left.len()), (matrices, 0), "{kind}");
        let format = kind.grid_format().unwrap();
        for w in &summary.kept {
            assert_eq!((w.bits, w.group), (format.bits, format.group), "{}", w.name);
            assert!(
                bound > 1e-9 || w.max_error == 0.0,
                "{kind} {}: {}",
                w.name,
                w.max_error
            );
            assert!(w.relative_error < 2e-3, "{kind} {}: {}", w.name, w.relative_error);
        }
        let (wanted, found) = (logits(&plain), logits(&kept));
        let square = |a: &f32, b: &f32| f64::from(a - b) * f64::from(a - b);
        let norm: f64 = wanted.iter().map(|v| square(v, &0.0)).sum();
        let error: f64 = wanted.iter().zip(&found).map(|(a, b)| square(a, b)).sum();
        assert!(norm > 0.0 && error / norm < bound, "{kind}: {:e}", error / norm);
    }
}

#[test]
fn what_has_no_few_bits_stays_float_and_is_listed() {
    let mut file = of_blocks(GgmlType::Q4_0, "llama");
    let plain = tiny("llama", Traits::default());
    *file.tensor("blk.1.ffn_up.weight") = plain.clone().tensor("blk.1.ffn_up.weight").clone();
    let (folder, path) = written(&file);
    let out = folder.path().join("out");
    let summary = convert(&path, &out, true, &mut |_| ()).unwrap();
    let [left] = &summary.left[..] else {
        panic!("{:?}", summary.left)
    };
    assert_eq!(left.name, "model.layers.1.mlp.up_proj.weight");
    assert_eq!(left.shape, [testing::INTERMEDIATE, HIDDEN]);
    assert_carries(&left.reason, &["F32"]);
    let model = read_back::open(&out.join("model.onnx"));
    assert_eq!((model.count("MatMulE0M"), model.count("GatherE0M")), (14, 1));
    // A scale that is not finite.
    let t = file.tensor("blk.0.ffn_down.weight");
    t.data[1] = 0x7c;
    let (folder, path) = written(&file);
    let converted = convert(&path, &folder.path().join("out"), true, &mut |_| ());
    invalid(converted, &["\"blk.0.ffn_down.weight\"", "0"]);
}
