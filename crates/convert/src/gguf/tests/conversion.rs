use super::*;

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

#[test]
fn known_end_tokens_end_an_answer_whatever_their_type() {
    let mut file = tiny("llama", Traits::default());
    let mut roles = vec![1; VOCAB];
    roles[1] = 3;
    // `<|endoftext|>` as a normal token, `<|im_end|>` as one of the user.
    roles[2] = 4;
    file.set("tokenizer.ggml.token_type", Value::Array(Array::I32(roles)));
    file.set("tokenizer.ggml.eos_token_id", Value::U32(1));
    let (folder, _) = converted(&file);
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.path().join("out").join(name)).unwrap()).unwrap()
    };
    let generation = json("generation_config.json");
    assert_eq!(generation["eos_token_id"], serde_json::json!([1, 2, 0]));
    let tokenizer = json("tokenizer.json");
    for (at, token) in tokenizer["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .take(3)
        .enumerate()
    {
        assert_eq!((&token["id"], &token["special"]), (&at.into(), &true.into()));
    }
}

/// The error of a conversion, after a check that it left nothing behind.
fn failure(file: &File) -> Error {
    failure_of(file, false)
}

/// Like [`failure`], for a conversion that keeps the bits of weights if `keep_bits`.
fn failure_of(file: &File, keep_bits: bool) -> Error {
    let (folder, path) = written(file);
    let error = convert(&path, &folder.path().join("out"), keep_bits, &mut |_| ()).unwrap_err();
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
    with(
        heads,
        Value::Array(Array::I32(vec![2])),
        damaged,
        &[heads, "2", "1"],
    );
    with(
        heads,
        Value::Array(Array::U32(vec![2, 4])),
        unsupported,
        &[heads, "2 and 4"],
    );
    with(
        heads,
        Value::Array(Array::I32(vec![-1, -1])),
        damaged,
        &[heads, "-1"],
    );
    with(
        "llama.logit_scale",
        Value::F32(0.5),
        unsupported,
        &["llama.logit_scale"],
    );
    with(
        "llama.attention.key_length",
        Value::U64(1 << 62),
        damaged,
        &["llama.attention.key_length"],
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
fn scales_that_are_not_finite_are_named_by_their_place_in_the_file() {
    let mut file = tiny("llama", Traits::default());
    // Its rows change places.
    let t = file.tensor("blk.1.attn_q.weight");
    t.ggml_type = GgmlType::Q8_0.0;
    // Row r has the values r.
    t.data = (0..t.dims[1] as u8)
        .flat_map(|r| [0, 0x3c].into_iter().chain([r; 32]))
        .collect();
    // NaN and minus infinity.
    for half in [0x7e00_u16, 0xfc00] {
        let [low, high] = half.to_le_bytes();
        let block = [&[low, high][..], &[5; 32]].concat();
        file.tensor("blk.1.attn_q.weight").data[5 * 34..6 * 34].copy_from_slice(&block);
        let at = file.bytes().windows(34).position(|w| w == block).unwrap();
        for keep_bits in [false, true] {
            let error = failure_of(&file, keep_bits);
            let values = ["\"blk.1.attn_q.weight\"", "160", "NaN", "Q8_0", &at.to_string()];
            assert_error(&error, ErrorKind::InvalidFile, &values);
        }
    }
}

#[test]
fn files_in_other_forms_are_converted() {
    let layers = |n: i32| Value::Array(Array::I32(vec![n, n]));
    let (plain_folder, plain) = converted(&tiny("llama", Traits::default()));
    let config = |folder: &tempfile::TempDir| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.path().join("out/config.json")).unwrap()).unwrap()
    };
    for (key, value) in [
        ("llama.attention.head_count", layers(HEADS as i32)),
        ("llama.attention.head_count_kv", layers(KV_HEADS as i32)),
        ("llama.feed_forward_length", layers(testing::INTERMEDIATE as i32)),
        ("llama.logit_scale", Value::F32(1.0)),
        ("llama.residual_scale", Value::F64(1.0)),
        ("llama.embedding_scale", Value::U32(1)),
        ("llama.attention.sliding_window", Value::U32(64)),
        (
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vec![0; VOCAB])),
        ),
        ("tokenizer.ggml.pre", Value::String("default".to_owned())),
        ("tokenizer.ggml.pre", Value::String(String::new())),
    ] {
        let mut file = tiny("llama", Traits::default());
        file.set(key, value);
        let (folder, model) = converted(&file);
        assert_eq!(model.inputs, plain.inputs, "{key}");
        assert_eq!(config(&folder)["num_attention_heads"], HEADS, "{key}");
    }
    assert_eq!(config(&plain_folder)["model_type"], "llama");
    // All layers have the window, which makes it the architecture of Mistral.
    let mut file = tiny("llama", Traits::default());
    file.set("llama.attention.sliding_window", Value::U32(16));
    let (folder, model) = converted(&file);
    assert_eq!(config(&folder)["model_type"], "mistral");
    assert_eq!(config(&folder)["sliding_window"], 16);
    assert!(model.count("And") > plain.count("And"), "the mask has a window");
}

/// Writes the parts that a model is split into.
fn split(file: &File, folder: &Path) -> [std::path::PathBuf; 2] {
    let paths = [1, 2].map(|n| folder.join(format!("tiny-{n:05}-of-00002.gguf")));
    for (path, bytes) in paths.iter().zip(file.split()) {
        std::fs::write(path, bytes).unwrap();
    }
    paths
}

#[test]
fn split_files_are_read_from_their_first_part() {
    let file = tiny("llama", Traits::default());
    let (_folder, whole) = converted(&file);
    let folder = tempfile::tempdir().unwrap();
    let parts = split(&file, folder.path());
    let out = |name: &str| folder.path().join(name);
    convert(&parts[0], &out("out"), false, &mut |_| ()).unwrap();
    let joined = read_back::open(&out("out").join("model.onnx"));
    for name in ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"] {
        assert_eq!(joined.f32s(name), whole.f32s(name), "{name}");
    }
    assert_eq!(Gguf::open(&parts[0]).unwrap().paths(), parts);
    assert_eq!(super::super::files(&parts[0]), parts);

    let open = |path: &Path| Gguf::open(path).map(drop);
    invalid(open(&parts[1]), &["part 2 of 2", "tiny-00001-of-00002.gguf"]);
    let other = out("other.gguf");
    std::fs::copy(&parts[0], &other).unwrap();
    invalid(open(&other), &["other.gguf", "-00001-of-00002.gguf"]);
    std::fs::copy(&parts[0], &parts[1]).unwrap();
    invalid(
        open(&parts[0]),
        &["tiny-00002-of-00002.gguf", "part 2 of 2", "part 1 of 2"],
    );
    std::fs::remove_file(&parts[1]).unwrap();
    invalid(
        open(&parts[0]),
        &["part 2", "tiny-00002-of-00002.gguf", "missing"],
    );
    let mut less = file.clone();
    less.tensors.pop();
    let parts = split(&less, folder.path());
    let mut first = less.clone();
    first.tensors.truncate(7);
    first.set("split.no", Value::U16(0));
    first.set("split.count", Value::U16(2));
    first.set("split.tensors.count", Value::I32(99));
    std::fs::write(&parts[0], first.bytes()).unwrap();
    invalid(open(&parts[0]), &["split.tensors.count", "99"]);
    first.tensors.push(less.tensors[7].clone());
    std::fs::write(&parts[0], first.bytes()).unwrap();
    invalid(
        open(&parts[0]),
        &["tiny-00002-of-00002.gguf", &less.tensors[7].name],
    );
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
