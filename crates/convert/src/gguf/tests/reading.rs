use super::*;

#[test]
fn metadata_of_another_writer_is_read() {
    let g = golden();
    assert_eq!(g.version(), 3);
    assert_eq!(g.opt_str("golden.text").unwrap(), Some("naïve"));
    assert_eq!(g.opt_strings("golden.texts").unwrap().unwrap(), ["a", "", "ccc"]);
    assert_eq!(
        g.get("golden.numbers"),
        Some(&Value::Array(Array::I32(vec![1, -2, 3])))
    );
    assert_eq!(g.get("golden.u64"), Some(&Value::U64((1 << 63) + 1)));
    assert_eq!(g.get("golden.i8"), Some(&Value::I8(-5)));
    assert_eq!(g.get("golden.f64"), Some(&Value::F64(0.1)));
    assert_eq!(g.opt_bool("golden.bool").unwrap(), Some(true));
    invalid(g.opt_bool("golden.i8"), &["golden.i8"]);
}

#[test]
fn blocks_decode_to_the_golden_values() {
    let g = golden();
    for kind in SUPPORTED {
        let blocks = g.tensor(&format!("{kind}.blocks")).unwrap();
        assert_eq!(blocks.ggml_type, kind);
        let expected = g.tensor(&format!("{kind}.values")).unwrap();
        let mut found = vec![0.0; blocks.elements];
        let mut wanted = vec![0.0; blocks.elements];
        g.read_f32(blocks, 0, &mut found).unwrap();
        g.read_f32(expected, 0, &mut wanted).unwrap();
        assert!(wanted.iter().any(|v| *v != 0.0));
        assert_eq!(found, wanted, "{kind}");
        let row = blocks.dims[0];
        let mut second = vec![0.0; row];
        g.read_f32(blocks, row, &mut second).unwrap();
        assert_eq!(second, wanted[row..], "{kind}, second row");
        assert!(
            g.read_f32(blocks, 2 * row, &mut second).is_err(),
            "{kind}, beyond the end"
        );
    }
}

#[test]
fn wrong_lengths_and_types_are_not_decoded() {
    assert!(!dequantize(GgmlType::Q8_0, &[0; 33], &mut [0.0; 32]));
    assert!(!dequantize(GgmlType::Q8_0, &[0; 34], &mut [0.0; 31]));
    assert!(!dequantize(GgmlType(16), &[0; 66], &mut [0.0; 256]));
    assert!(!dequantize(GgmlType(77), &[0; 4], &mut [0.0; 1]));
}

#[test]
fn every_value_type_survives() {
    let mut file = File::default();
    let values = [
        Value::U8(200),
        Value::I8(-3),
        Value::U16(60_000),
        Value::I16(-300),
        Value::U32(4_000_000_000),
        Value::I32(-70_000),
        Value::F32(0.5),
        Value::Bool(true),
        Value::String("ü".to_owned()),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(1e300),
        Value::Array(Array::U8(vec![1, 2])),
        Value::Array(Array::I8(vec![-1])),
        Value::Array(Array::U16(vec![])),
        Value::Array(Array::I16(vec![-2])),
        Value::Array(Array::U32(vec![3])),
        Value::Array(Array::F32(vec![0.25, -1.0])),
        Value::Array(Array::Bool(vec![true, false])),
        Value::Array(Array::U64(vec![9])),
        Value::Array(Array::I64(vec![-9])),
        Value::Array(Array::F64(vec![2.5])),
        Value::Array(Array::Array(vec![
            Array::I32(vec![1]),
            Array::String(vec!["x".to_owned()]),
        ])),
    ];
    for (i, v) in values.iter().enumerate() {
        file.set(&format!("key.{i}"), v.clone());
    }
    let g = file.open().unwrap();
    for (i, v) in values.iter().enumerate() {
        assert_eq!(g.get(&format!("key.{i}")), Some(v));
    }
}

#[test]
fn impossible_headers_are_named() {
    let good = tiny("llama", Traits::default()).bytes();
    let with = |at: usize, bytes: &[u8], values: &[&str]| {
        let mut b = good.clone();
        b[at..at + bytes.len()].copy_from_slice(bytes);
        invalid(testing::open(b), values);
    };
    with(0, b"GGML", &["memory.gguf", "GGUF"]);
    with(4, &1u32.to_le_bytes(), &["2", "3", "1"]);
    with(4, &3u32.to_be_bytes(), &["big-endian"]);
    // Counts and lengths that the file cannot hold.
    let size = good.len().to_string();
    with(8, &u64::MAX.to_le_bytes(), &[&size]);
    with(16, &(u64::MAX / 2).to_le_bytes(), &[&size]);
    with(24, &u64::MAX.to_le_bytes(), &[&size, "18446744073709551615"]);

    let mut nested = Array::U8(vec![]);
    for _ in 0..9 {
        nested = Array::Array(vec![nested]);
    }
    let mut file = File::default();
    file.set("deep", Value::Array(nested));
    invalid(file.open(), &["deep"]);

    let mut file = tiny("llama", Traits::default());
    file.tensors.push(file.tensors[0].clone());
    invalid(file.open(), &["\"token_embd.weight\""]);
    let mut file = tiny("llama", Traits::default());
    file.tensor("output_norm.weight").dims = vec![usize::MAX, 2];
    invalid(file.open(), &["output_norm.weight", &usize::MAX.to_string()]);
    let mut file = tiny("llama", Traits::default());
    file.tensor("output_norm.weight").ggml_type = GgmlType::Q4_K.0;
    invalid(file.open(), &["output_norm.weight", "32", "256", "Q4_K"]);
    let mut file = tiny("llama", Traits::default());
    file.set("general.alignment", Value::U32(24));
    invalid(file.open(), &["alignment", "24"]);
}

/// Everything of a conversion that depends on the file's content, without writing.
fn inspect(bytes: Vec<u8>) -> Result<(), Error> {
    let g = testing::open(bytes)?;
    let params = params(&g)?;
    Vocabulary::read(&g)?;
    let mut row = vec![0.0; params.hidden];
    for t in g.tensors().iter().filter(|t| t.elements >= params.hidden) {
        g.read_f32(t, 0, &mut row)?;
    }
    Ok(())
}

#[test]
fn cut_files_are_errors() {
    let good = tiny("qwen2", Traits::default()).bytes();
    inspect(good.clone()).unwrap();
    let data = good.len() - 100_000;
    let lengths = (0..8_000)
        .chain((data..good.len()).step_by(997))
        .chain([good.len() - 1]);
    for length in lengths.filter(|n| *n < good.len()) {
        let error = inspect(good[..length].to_vec()).unwrap_err();
        assert!(carries(&error.to_string(), "memory.gguf"), "{length}: {error}");
        // Behind the header the length of the whole file is known.
        if length >= data {
            let sizes = [length, good.len()].map(|n| n.to_string());
            assert_error(&error, ErrorKind::InvalidFile, &[&sizes[0], &sizes[1]]);
        }
    }
}

#[test]
fn flipped_bytes_never_panic() {
    let good = tiny(
        "llama",
        Traits {
            untied: true,
            rope_freqs: true,
        },
    )
    .bytes();
    let header = 10_000.min(good.len());
    let mut errors = 0;
    for at in 0..header {
        for flip in [0x01, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            errors += usize::from(inspect(bad).is_err());
        }
    }
    assert!(errors > header, "{errors} of {} flips were found", 3 * header);
}
