//! Reading, decoding and conversion, on golden files and tiny random models.

use super::convert::convert;
use super::dequant::{GgmlType, SUPPORTED, dequantize};
use super::params::params;
use super::read::{Array, Gguf, Value};
use super::testing::{self, File, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, Traits, VOCAB, tiny};
use super::tokenizer::Vocabulary;
use std::path::Path;
use tlite_testing::onnx::read_back::{self, Model};
use tlite_testing::{assert_carries, assert_error, assert_usage, carries};
use tokenizers::{PreTokenizer, Tokenizer};
use transformer_lite::unstable::error::{Error, ErrorKind};

fn golden() -> Gguf {
    Gguf::open(&Path::new(tlite_testing::ROOT).join("tests/golden/gguf/dequant.gguf")).unwrap()
}

/// Fails unless the result is an error of a damaged file that carries each of `values`.
#[track_caller]
fn invalid<T>(result: Result<T, Error>, values: &[&str]) {
    assert_error(&result.err().unwrap(), ErrorKind::InvalidFile, values);
}

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

fn written(file: &File) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    (folder, path)
}

fn converted(file: &File) -> (tempfile::TempDir, Model) {
    let (folder, path) = written(file);
    let out = folder.path().join("out");
    let mut last = (0, 0);
    convert(&path, &out, false, &mut |p| {
        assert!(p.done > last.0 && p.done <= p.total);
        last = (p.done, p.total);
    })
    .unwrap();
    assert_eq!(last.0, last.1, "progress ends at the total");
    let model = read_back::open(&out.join("model.onnx"));
    (folder, model)
}

fn floats(t: &testing::Tensor) -> Vec<f32> {
    t.data
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

#[test]
fn weights_are_transposed_and_query_rows_reordered() {
    for architecture in ["llama", "qwen2"] {
        let mut file = tiny(
            architecture,
            Traits {
                untied: true,
                rope_freqs: false,
            },
        );
        let (_folder, model) = converted(&file);
        for (source, target, heads) in [
            ("attn_q", "q_proj", HEADS),
            ("attn_k", "k_proj", KV_HEADS),
            ("attn_v", "v_proj", KV_HEADS),
        ] {
            let rows = heads * HEAD_DIM;
            let stored = floats(file.tensor(&format!("blk.1.{source}.weight")));
            let (shape, found) = model.f32s(&format!("model.layers.1.self_attn.{target}.weight"));
            assert_eq!(shape, [HIDDEN, rows]);
            // The files of `llama` were made by splitting each head's rows into two halves and
            // swapping the axes (half, index): row (index, half) of the file is row (half, index)
            // of the graph.
            let mut of_file = vec![0; rows];
            for head in 0..heads {
                for index in 0..HEAD_DIM / 2 {
                    for half in 0..2 {
                        let interleaved = head * HEAD_DIM + index * 2 + half;
                        let split = head * HEAD_DIM + half * (HEAD_DIM / 2) + index;
                        let permuted = architecture == "llama" && source != "attn_v";
                        of_file[split] = if permuted { interleaved } else { split };
                    }
                }
            }
            for row in 0..rows {
                for column in 0..HIDDEN {
                    assert_eq!(found[column * rows + row], stored[of_file[row] * HIDDEN + column]);
                }
            }
        }
        let (shape, found) = model.f32s("model.embed_tokens.weight");
        assert_eq!(shape, [VOCAB, HIDDEN]);
        assert_eq!(found, floats(file.tensor("token_embd.weight")));
        let (shape, found) = model.f32s("lm_head.weight");
        assert_eq!(shape, [HIDDEN, VOCAB]);
        assert_eq!(
            found[3 * VOCAB + 5],
            floats(file.tensor("output.weight"))[5 * HIDDEN + 3]
        );
    }
}

#[test]
fn graphs_have_the_inputs_and_operators_of_their_architecture() {
    let (_folder, llama) = converted(&tiny(
        "llama",
        Traits {
            untied: false,
            rope_freqs: true,
        },
    ));
    assert_eq!(llama.inputs.len(), 3 + 4);
    assert_eq!(llama.inputs[0], "input_ids[batch_size,sequence_length]");
    assert_eq!(
        llama.inputs[1],
        "attention_mask[batch_size,past_sequence_length + sequence_length]"
    );
    assert_eq!(
        llama.inputs[3],
        "past_key_values.0.key[batch_size,2,past_sequence_length,8]"
    );
    assert_eq!(llama.outputs[0], "logits[batch_size,sequence_length,270]");
    assert_eq!(
        llama.outputs[4],
        "present.1.value[batch_size,2,past_sequence_length + sequence_length,8]"
    );
    assert_eq!(llama.count("MatMul"), 2 * 9 + 1);
    assert_eq!(
        llama.count("Add"),
        2 * (2 + 2 + 2 + 1) + 1 + 1,
        "norms, rotary, residuals, mask; last norm; length"
    );
    assert_eq!(
        llama.node_inputs("/lm_head/MatMul")[1],
        "/lm_head/Transpose_output_0"
    );
    let (shape, found) = llama.f32s("model.rotary_emb.inv_freq");
    assert_eq!(shape, [1, 1, HEAD_DIM / 2]);
    for (found, expected) in found.iter().zip([1.0, 0.1, 0.01 / 2.0, 0.001 / 8.0]) {
        assert!(
            (found / expected - 1.0).abs() < 1e-6,
            "{found} instead of {expected}"
        );
    }

    let (_folder, qwen) = converted(&tiny(
        "qwen2",
        Traits {
            untied: true,
            rope_freqs: false,
        },
    ));
    assert_eq!(
        qwen.count("Add"),
        llama.count("Add") + 2 * 3,
        "three biases a layer"
    );
    assert_eq!(qwen.node_inputs("/lm_head/MatMul")[1], "lm_head.weight");
    assert_eq!(
        qwen.node_inputs("/model/layers.1/self_attn/k_proj/Add")[1],
        "model.layers.1.self_attn.k_proj.bias"
    );
}

#[test]
fn quantized_weights_are_decoded() {
    let mut file = tiny("llama", Traits::default());
    let t = file.tensor("blk.0.ffn_up.weight");
    t.ggml_type = GgmlType::Q8_0.0;
    // Row r has scale 1 and the values r, r + 1, ...
    t.data = (0..t.dims[1] as u8)
        .flat_map(|r| [0, 0x3c].into_iter().chain((0..32).map(move |c| r + c)))
        .collect();
    let (_folder, model) = converted(&file);
    let (shape, found) = model.f32s("model.layers.0.mlp.up_proj.weight");
    assert_eq!(found[7 * shape[1] + 11], 18.0);
}

#[test]
fn configuration_files_tell_the_metadata() {
    let mut file = tiny("qwen2", Traits::default());
    file.set("tokenizer.ggml.eot_token_id", Value::U32(0));
    let (folder, _) = converted(&file);
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.path().join("out").join(name)).unwrap()).unwrap()
    };
    let config = json("config.json");
    assert_eq!(config["model_type"], "qwen2");
    assert_eq!(config["architectures"][0], "Qwen2ForCausalLM");
    assert_eq!(config["num_key_value_heads"], 2);
    assert_eq!(config["head_dim"], 8);
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!(config["tie_word_embeddings"], true);
    assert_eq!(config["vocab_size"], VOCAB);
    let generation = json("generation_config.json");
    assert_eq!(generation["eos_token_id"], serde_json::json!([2, 0]));
    assert_eq!(generation["pad_token_id"], 2);
    let tokenizer = json("tokenizer_config.json");
    assert_eq!(tokenizer["tokenizer_class"], "Qwen2Tokenizer");
    assert_eq!(tokenizer["chat_template"], "{{ messages }}");
    assert_eq!(tokenizer["eos_token"], "<|im_end|>");
    assert_eq!(tokenizer["bos_token"], "<|im_start|>");
    assert_eq!(tokenizer["add_bos_token"], false);
    assert_eq!(tokenizer["unk_token"], serde_json::Value::Null);
}

/// The error of a conversion, after a check that it left nothing behind.
fn failure(file: &File) -> Error {
    let (folder, path) = written(file);
    let error = convert(&path, &folder.path().join("out"), false, &mut |_| ()).unwrap_err();
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["model.gguf"], "{error}");
    error
}

#[test]
fn what_cannot_be_converted_is_named_and_leaves_nothing() {
    let base = || tiny("llama", Traits::default());
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.merges",
    ] {
        let mut f = base();
        f.unset(key);
        assert_error(&failure(&f), ErrorKind::InvalidFile, &[&format!("\"{key}\"")]);
    }
    let with = |key: &str, value: Value, kind, values: &[&str]| {
        let mut f = base();
        f.set(key, value);
        assert_error(&failure(&f), kind, values);
    };
    let (damaged, unsupported) = (ErrorKind::InvalidFile, ErrorKind::Unsupported);
    let text = |s: &str| Value::String(s.to_owned());
    with(
        "general.architecture",
        text("mamba"),
        unsupported,
        &["\"mamba\"", "llama, qwen2, qwen3, gemma"],
    );
    with(
        "tokenizer.ggml.pre",
        text("chameleon"),
        unsupported,
        &["tokenizer.ggml.pre", "\"chameleon\""],
    );
    with(
        "tokenizer.ggml.model",
        text("t5"),
        unsupported,
        &["tokenizer.ggml.model", "\"t5\""],
    );
    with("llama.rope.scaling.type", text("ntk"), unsupported, &["\"ntk\""]);
    with(
        "llama.rope.dimension_count",
        Value::U32(4),
        damaged,
        &["rope.dimension_count", "8", "4"],
    );
    with(
        "llama.expert_count",
        Value::U32(8),
        unsupported,
        &["llama.expert_count"],
    );
    let heads = "llama.attention.head_count_kv";
    with(heads, Value::U32(3), damaged, &["3"]);
    with(heads, Value::Array(Array::I32(vec![2, 2])), damaged, &[heads]);
    with(
        "llama.attention.key_length",
        Value::U64(1 << 62),
        damaged,
        &["blk.0.attn_q.weight"],
    );
    with(
        "llama.embedding_length",
        Value::U32(64),
        damaged,
        &["token_embd.weight", "[64, 270]", "[32, 270]"],
    );
    with(
        "llama.feed_forward_length",
        Value::U32(32),
        damaged,
        &["\"blk.0.ffn_up.weight\"", "32"],
    );
    let layers = "llama.block_count";
    with(layers, Value::U32(3), damaged, &["\"blk.2.attn_norm.weight\""]);
    with(layers, Value::U32(1), damaged, &["\"blk.1."]);
    with(layers, Value::U64(u64::MAX), damaged, &["18446744073709551615"]);
    with(
        "tokenizer.ggml.eos_token_id",
        Value::U32(VOCAB as u32),
        damaged,
        &["tokenizer.ggml.eos_token_id", "270"],
    );
    let merges = "tokenizer.ggml.merges";
    with(merges, testing::strings(&["h q"]), damaged, &["\"hq\""]);
    with(merges, testing::strings(&["hq"]), damaged, &[merges, "hq"]);
    let mut f = base();
    f.unset("tokenizer.ggml.token_type");
    f.set("tokenizer.ggml.tokens", testing::strings(&["a", "b", "a"]));
    assert_error(&failure(&f), damaged, &["0", "2"]);

    let mut f = base();
    let name = "\"blk.1.attn_v.weight\"";
    let t = f.tensor("blk.1.attn_v.weight");
    (t.ggml_type, t.dims) = (16, vec![256, 2]);
    assert_error(&failure(&f), unsupported, &[name, "IQ2_XXS", "F32, F16"]);
    f.tensor("blk.1.attn_v.weight").ggml_type = 200;
    assert_error(&failure(&f), unsupported, &[name, "200"]);
    for name in [
        "token_embd.weight",
        "blk.1.ffn_norm.weight",
        "blk.0.attn_k.weight",
    ] {
        let mut f = base();
        let t = f.tensor(name);
        let last = t.data.len() - 4;
        t.data[last..].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_error(&failure(&f), damaged, &[&format!("\"{name}\""), "NaN"]);
    }
    let mut f = base();
    f.add_f32("rope_factors_long.weight", &[4], &[1.0; 4]);
    assert_error(&failure(&f), damaged, &["\"rope_factors_short.weight\""]);
    with(
        "llama.attention.sliding_window",
        Value::U32(16),
        unsupported,
        &["16", "llama"],
    );
    with(
        "llama.feed_forward_length",
        Value::U64(1 << 61),
        damaged,
        &["blk.0.ffn_up.weight"],
    );
    let mut f = base();
    f.add_f32("blk.0.attn_sinks.weight", &[4], &[0.0; 4]);
    assert_error(&failure(&f), damaged, &["\"blk.0.attn_sinks.weight\""]);
}

#[test]
fn an_output_in_the_way_is_refused() {
    let (folder, path) = written(&tiny("llama", Traits::default()));
    let full = folder.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("kept"), "x").unwrap();
    let error = convert(&path, &full, false, &mut |_| ()).unwrap_err();
    assert_usage(&error, &format!("output {}", full.display()), &[]);
    assert!(full.join("kept").exists());
    let error = convert(&path, &full.join("kept"), false, &mut |_| ()).unwrap_err();
    let file = full.join("kept");
    assert_usage(&error, &format!("output {}", file.display()), &[]);
    let error = convert(&path, &folder.path().join("no/such"), false, &mut |_| ()).unwrap_err();
    assert_error(&error, ErrorKind::Io, &["no"]);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    convert(&path, &empty, false, &mut |_| ()).unwrap();
    assert!(empty.join("model.onnx").exists());
    let (none, out) = (folder.path().join("none"), folder.path().join("o"));
    let error = convert(&none, &out, false, &mut |_| ()).unwrap_err();
    assert_error(&error, ErrorKind::Io, &["none"]);
}

fn load(file: &File) -> Tokenizer {
    let v = Vocabulary::read(&file.open().unwrap()).unwrap();
    Tokenizer::from_bytes(serde_json::to_vec(&super::tokenizer::tokenizer_json(&v)).unwrap()).unwrap()
}

fn encode(t: &Tokenizer, text: &str) -> Vec<String> {
    t.encode(text, true).unwrap().get_tokens().to_vec()
}

#[test]
fn byte_level_tokenizers_split_and_round_trip() {
    let of_one_digit = [
        "smollm",
        "qwen2",
        "command-r",
        "tekken",
        "deepseek-llm",
        "deepseek-coder",
    ];
    let of_more = ["gpt-2", "llama-bpe", "smaug-bpe", "mpt", "falcon", "gpt-4o"];
    for pre in of_one_digit.into_iter().chain(of_more) {
        let mut file = File::default();
        testing::byte_vocabulary(&mut file, pre);
        let t = load(&file);
        for text in [
            "hello world",
            "  two\n\n lines\t",
            "naïve 日本 🙂",
            "12 1 2",
            "x[user]y<|im_end|>\nI'll",
            "",
        ] {
            let ids = t.encode(text, true).unwrap();
            assert_eq!(t.decode(ids.get_ids(), false).unwrap(), text, "{pre}");
        }
        assert_eq!(encode(&t, "hello world"), ["hello", "Ġwor", "ld"], "{pre}");
        let digits: &[&str] = if of_one_digit.contains(&pre) {
            &["1", "2"]
        } else {
            &["12"]
        };
        assert_eq!(encode(&t, "12"), digits, "{pre}");
        assert_eq!(
            encode(&t, "<|im_start|>hello[user]"),
            ["<|im_start|>", "hello", "[user]"],
            "{pre}"
        );
        let ids = t.encode("<|im_start|>hello[user]", true).unwrap();
        assert_eq!(
            t.decode(ids.get_ids(), true).unwrap(),
            "hello[user]",
            "only control tokens are special"
        );
    }
}

/// Pieces that a pre-tokenizer cuts a text into.
fn cut(pre: &str, text: &str) -> Vec<String> {
    let mut file = File::default();
    testing::byte_vocabulary(&mut file, pre);
    let t = load(&file);
    let mut pieces = tokenizers::PreTokenizedString::from(text);
    t.get_pre_tokenizer().unwrap().pre_tokenize(&mut pieces).unwrap();
    let pieces = pieces.get_splits(
        tokenizers::OffsetReferential::Original,
        tokenizers::OffsetType::Byte,
    );
    pieces
        .iter()
        .map(|(_, (from, to), _)| text[*from..*to].to_owned())
        .collect()
}

/// Those of which no vocabulary with expected ids is at hand.
#[test]
fn pre_tokenizers_cut_words() {
    let text = "We've GPUs, HelloWorld's 12345\n/x";
    assert_eq!(
        cut("tekken", text),
        [
            "We", "'ve", " GPUs", ",", " Hello", "World", "'s", " ", "1", "2", "3", "4", "5", "\n", "/x"
        ]
    );
    assert_eq!(
        cut("gpt-4o", text),
        [
            "We've", " GPUs", ",", " Hello", "World's", " ", "123", "45", "\n", "/x"
        ]
    );
    assert_eq!(
        cut("llama-bpe", text),
        [
            "We",
            "'ve",
            " GPUs",
            ",",
            " HelloWorld",
            "'s",
            " ",
            "123",
            "45",
            "\n",
            "/x"
        ]
    );
}

#[test]
fn a_first_token_is_added_when_asked() {
    let mut file = File::default();
    testing::byte_vocabulary(&mut file, "smollm");
    file.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    assert_eq!(encode(&load(&file), "hello"), ["<|im_start|>", "hello"]);
    file.set("tokenizer.ggml.add_eos_token", Value::Bool(true));
    assert_eq!(
        encode(&load(&file), "hello"),
        ["<|im_start|>", "hello", "<|im_end|>"]
    );
    file.unset("tokenizer.ggml.bos_token_id");
    invalid(
        Vocabulary::read(&file.open().unwrap()),
        &["tokenizer.ggml.bos_token_id"],
    );
}

#[test]
fn sentence_piece_vocabularies_merge_by_score() {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    let pieces = ["▁", "a", "b", "c", "bc", "ab", "▁a", "abc"];
    tokens.extend(pieces.map(str::to_owned));
    let mut roles = vec![6; tokens.len()];
    roles[..3].copy_from_slice(&[2, 3, 3]);
    roles[259..].fill(1);
    let mut scores = vec![0.0; tokens.len()];
    scores[259..].copy_from_slice(&[-10.0, -11.0, -12.0, -13.0, -1.0, -2.0, -3.0, -4.0]);
    let mut file = File::default();
    file.set("tokenizer.ggml.model", Value::String("llama".to_owned()));
    file.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    file.set("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    file.set("tokenizer.ggml.token_type", Value::Array(Array::I32(roles)));
    file.set("tokenizer.ggml.bos_token_id", Value::U32(1));
    let t = load(&file);
    assert_eq!(encode(&t, "abc"), ["<s>", "▁a", "bc"]);
    assert_eq!(encode(&t, "ab"), ["<s>", "▁", "ab"], "the better score wins");
    assert_eq!(encode(&t, "é"), ["<s>", "▁", "<0xC3>", "<0xA9>"]);
    for text in ["abc abc", " a", "é\n日"] {
        let ids = t.encode(text, true).unwrap();
        assert_eq!(t.decode(ids.get_ids(), true).unwrap(), text);
    }
    file.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    assert_eq!(encode(&load(&file), "abc"), ["<s>", "abc"]);
    // Phi-3 takes white space to the special token before it.
    assert_eq!(encode(&load(&file), "</s> a"), ["<s>", "</s>", "▁a"]);
    file.set("general.architecture", Value::String("phi3".to_owned()));
    assert_eq!(encode(&load(&file), "</s> a"), ["<s>", "</s> ", "a"]);
    file.unset("tokenizer.ggml.scores");
    invalid(
        Vocabulary::read(&file.open().unwrap()),
        &["tokenizer.ggml.scores"],
    );
}

#[test]
fn word_pieces_are_written_as_bert_has_them() {
    let mut file = File::default();
    let tokens = ["[UNK]", "[CLS]", "[SEP]", "▁play", "ing", "▁ing", "▁."];
    file.set("tokenizer.ggml.model", Value::String("bert".to_owned()));
    file.set("tokenizer.ggml.tokens", testing::strings(&tokens));
    file.set(
        "tokenizer.ggml.token_type",
        Value::Array(Array::I32(vec![3, 3, 3, 1, 1, 1, 1])),
    );
    for (name, id) in [("unknown", 0), ("cls", 1), ("seperator", 2)] {
        file.set(&format!("tokenizer.ggml.{name}_token_id"), Value::U32(id));
    }
    let t = load(&file);
    assert_eq!(
        encode(&t, "Playing ing. x"),
        ["[CLS]", "play", "##ing", "ing", ".", "[UNK]", "[SEP]"]
    );
    assert_eq!(t.decode(&[3, 4, 5, 6], true).unwrap(), "playing ing.");
    let cased = ["[UNK]", "[CLS]", "[SEP]", "▁Play", "ing", "▁ing", "▁."];
    file.set("tokenizer.ggml.tokens", testing::strings(&cased));
    let read = Vocabulary::read(&file.open().unwrap());
    assert!(read.as_ref().is_err_and(|e| e.to_string().contains("Play\"")));
    invalid(read, &[]);
    file.set("tokenizer.ggml.tokens", testing::strings(&tokens));
    file.unset("tokenizer.ggml.seperator_token_id");
    invalid(
        Vocabulary::read(&file.open().unwrap()),
        &["tokenizer.ggml.seperator_token_id"],
    );
}

#[test]
fn templates_with_names_are_kept() {
    let mut file = File::default();
    testing::byte_vocabulary(&mut file, "smollm");
    let text = |s: &str| Value::String(s.to_owned());
    file.set("tokenizer.chat_template", text("plain"));
    file.set("tokenizer.chat_templates", testing::strings(&["tool_use"]));
    let read = |file: &File| Vocabulary::read(&file.open().unwrap());
    invalid(read(&file), &["\"tokenizer.chat_template.tool_use\""]);
    file.set("tokenizer.chat_template.tool_use", text("with tools"));
    let config = super::tokenizer::config_json(&read(&file).unwrap(), 8);
    let named = |name: &str, text: &str| serde_json::json!({"name": name, "template": text});
    assert_eq!(
        config["chat_template"],
        serde_json::json!([named("default", "plain"), named("tool_use", "with tools")])
    );
}

/// A pseudo-random model whose matrices are blocks of a type; halves where scales stand are small.
fn of_blocks(kind: GgmlType, architecture: &str) -> File {
    let traits = Traits {
        untied: architecture == "qwen2",
        rope_freqs: false,
    };
    let mut file = tiny(architecture, traits);
    let (per_block, size) = kind.block().unwrap();
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
            // Scales of either sign around 1/64, and minima likewise.
            for at in [0, 2]
                .into_iter()
                .take(if kind == GgmlType::Q4_1 || kind == GgmlType::Q5_1 {
                    2
                } else {
                    1
                })
            {
                block[at + 1] = 0x24 | block[at + 1] & 0x80;
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
    use transformer_lite::unstable::quant::{Bits, GridColumn, Grids};
    let g = golden();
    let mut seen = 0;
    for kind in SUPPORTED {
        let Some((bits, group)) = kind.grid_format() else {
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
            assert!(super::dequant::grids(kind, &data[j * row..(j + 1) * row], out));
        };
        let column = Box::new(column);
        let grids = Grids {
            bits,
            group,
            k,
            n,
            column,
        };
        let (packed, loss) = grids.pack().unwrap();
        let exact = matches!(kind, GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0);
        let mut worst = 0f32;
        for j in 0..n {
            for i in 0..k {
                let (found, wanted) = (packed.get(i, j), wanted[j * k + i]);
                let [s, b] = packed.scales[i / group * n + j].map(|h| h.to_f32());
                let bound = if exact {
                    0.0
                } else {
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
    ] {
        let (folder, path) = written(&of_blocks(kind, architecture));
        let (plain, kept) = (folder.path().join("plain"), folder.path().join("kept"));
        convert(&path, &plain, false, &mut |_| ()).unwrap();
        let mut last = (0, 1);
        let summary = convert(&path, &kept, true, &mut |p| last = (p.done, p.total)).unwrap();
        assert_eq!(last.0, last.1, "progress ends at the total");
        let matrices = if architecture == "qwen2" { 16 } else { 15 };
        assert_eq!((summary.kept.len(), summary.left.len()), (matrices, 0), "{kind}");
        let (bits, group) = kind.grid_format().unwrap();
        for w in &summary.kept {
            assert_eq!((w.bits, w.group), (bits, group), "{}", w.name);
            assert!(
                bound > 1e-10 || w.max_error == 0.0,
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
