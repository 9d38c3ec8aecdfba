//! Folders written by the published layouts of GPTQ and AWQ, against the float models that they
//! stand for.

use super::awq::Awq;
use super::folder::convert;
use super::gptq::{Gptq, Parts};
use super::testing::{Folder, HIDDEN, INTERMEDIATE, Order, VOCAB, awq, gptq};
use super::{Summary, safetensors::Shards};
use half::f16;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tlite_testing::onnx::read_back;
use tlite_testing::{assert_carries, assert_error};
use transformer_lite::unstable::error::{Error, ErrorKind};
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::LanguageModel as _;
use transformer_lite::unstable::llm::engine::{Decoder, HostModel};
use transformer_lite::unstable::quant::Bits;

/// Converts the folder; the temporary one, the result, the summary.
fn converted(f: &Folder) -> Result<(tempfile::TempDir, PathBuf, Summary), Error> {
    let (dir, input) = f.write();
    let out = dir.path().join("out");
    let mut last = (0, 1);
    let summary = convert(&input, &out, &mut |p| last = (p.done, p.total))?;
    assert_eq!(last.0, last.1, "progress ends at the total");
    Ok((dir, out, summary))
}

/// The error of a conversion.
fn failure(f: &Folder) -> Error {
    match converted(f) {
        Ok(_) => panic!("expected an error"),
        Err(e) => e,
    }
}

/// Fails unless the conversion finds the folder damaged, with an error that carries each of
/// `values`.
#[track_caller]
fn invalid(f: &Folder, values: &[&str]) {
    assert_error(&failure(f), ErrorKind::InvalidFile, values);
}

/// Fails unless the conversion finds what is not implemented, with an error that carries each of
/// `values`.
#[track_caller]
fn unsupported(f: &Folder, values: &[&str]) {
    assert_error(&failure(f), ErrorKind::Unsupported, values);
}

fn logits(folder: &Path) -> Vec<f32> {
    let decoder = Decoder::load(&folder.join("model.onnx"), &Target::HOST).unwrap();
    let tokens: Vec<u32> = (0..9).map(|i| (i * 23 + 5) % VOCAB as u32).collect();
    let mut model = HostModel::new(decoder, tokens.len()).unwrap();
    model.forward_all(&tokens).unwrap()
}

/// Converts both and compares all weights and the logits.
#[track_caller]
fn same(quantized: &Folder, plain: &Folder, gathers: usize) {
    let (_a, kept, summary) = converted(quantized).unwrap();
    let (_b, wanted, floats) = converted(plain).unwrap();
    assert_eq!((summary.kept.len(), floats.kept.len()), (14, 0));
    assert_eq!(summary.parameters, floats.parameters);
    for w in &summary.kept {
        assert_eq!((w.max_error, w.relative_error), (0.0, 0.0), "{}", w.name);
    }
    let model = read_back::open(&kept.join("model.onnx"));
    assert_eq!((model.count("MatMulE0M"), model.count("GatherE0M")), (14, 0));
    let mask = read_back::open(&wanted.join("model.onnx")).count("Gather");
    assert_eq!(model.count("Gather") - mask, gathers);
    let (wanted, found) = (logits(&wanted), logits(&kept));
    let square = |a: &f32, b: &f32| f64::from(a - b) * f64::from(a - b);
    let norm: f64 = wanted.iter().map(|v| square(v, &0.0)).sum();
    let error: f64 = wanted.iter().zip(&found).map(|(a, b)| square(a, b)).sum();
    assert!(norm > 0.0 && error / norm < 1e-10, "{:e}", error / norm);
    let config: Value = serde_json::from_slice(&std::fs::read(kept.join("config.json")).unwrap()).unwrap();
    assert!(config.get("quantization_config").is_none() && config["vocab_size"] == VOCAB);
    assert!(kept.join("tokenizer.json").is_file());
}

#[test]
fn gptq_of_all_widths_and_groups_is_exact() {
    for (bits, group, v2, model_type) in [
        (4, 32, false, "llama"),
        (4, 64, true, "qwen2"),
        (4, -1, false, "llama"),
        (8, 32, false, "qwen2"),
        (2, 16, true, "llama"),
        (3, 32, false, "llama"),
        (3, 128, true, "qwen2"),
    ] {
        let (quantized, plain) = gptq(bits, group, Order::Plain, v2, model_type);
        same(&quantized, &plain, 0);
    }
}

#[test]
fn act_order_is_kept() {
    let (quantized, plain) = gptq(4, 32, Order::Shared, false, "qwen2");
    // A layer has one for the projections of attention, one behind attention, one for gate and up;
    // that of down is in their columns.
    same(&quantized, &plain, 2 * 3);
    let (quantized, plain) = gptq(4, 32, Order::Own, true, "llama");
    same(&quantized, &plain, 2 * 6);
}

#[test]
fn awq_is_exact() {
    for group in [32, 64] {
        let (quantized, plain) = awq(group);
        same(&quantized, &plain, 0);
    }
}

#[test]
fn the_chat_template_for_tools_is_kept() {
    let (dir, input) = awq(32).1.write();
    let name = "additional_chat_templates/tool_use.jinja";
    std::fs::create_dir(input.join("additional_chat_templates")).unwrap();
    std::fs::write(input.join(name), "tools").unwrap();
    let out = dir.path().join("out");
    convert(&input, &out, &mut |_| ()).unwrap();
    assert_eq!(std::fs::read_to_string(out.join(name)).unwrap(), "tools");
}

/// `tests/data/quantized/make.py` wrote the file by `AutoGPTQ` and `AutoAWQ`.
#[test]
fn files_of_the_public_packages_are_read_as_these_read_them() {
    let folder = Path::new(tlite_testing::ROOT).join("tests/data/quantized");
    let shards = Shards::open(&folder).unwrap();
    let (k, n, group) = (64, 32, Some(16));
    for (name, bits) in [
        ("gptq_4", Some(Bits::Four)),
        ("gptq_4_act_order", Some(Bits::Four)),
        ("gptq_8_act_order", Some(Bits::Eight)),
        ("gptq_2", Some(Bits::Two)),
        ("gptq_3_act_order", Some(Bits::Three)),
        ("awq", None),
    ] {
        let part = |what: &str| shards.get(&format!("{name}.{what}")).unwrap();
        let [qweight, qzeros, scales] = ["qweight", "qzeros", "scales"].map(part);
        let stored = match bits {
            None => Awq { group }.stored([qweight, qzeros, scales], k, n).unwrap(),
            Some(bits) => {
                let parts = Parts {
                    qweight,
                    qzeros,
                    scales,
                    g_idx: Some(part("g_idx")),
                };
                let plain_zeros = false;
                let gptq = Gptq {
                    bits,
                    group,
                    plain_zeros,
                };
                gptq.stored(parts, k, n).unwrap()
            }
        };
        assert_eq!(stored.order.is_some(), name.contains("act_order"), "{name}");
        let (mut found, mut wanted) = (vec![0.0; k * n], vec![0.0; k * n]);
        (stored.rows)(0, &mut found).unwrap();
        part("dequantized").floats(0, &mut wanted).unwrap();
        // They compute in halves.
        let halves: Vec<f32> = found.iter().map(|v| f16::from_f32(*v).to_f32()).collect();
        assert_eq!(halves, wanted, "{name}");
        let (packed, loss) = stored.grids.unwrap().pack().unwrap();
        assert_eq!((packed.k, packed.n, loss.max), (k, n, 0.0), "{name}");
    }
}

#[test]
fn zero_points_wrap_as_the_packages_read_them() {
    let (mut quantized, _) = gptq(4, 32, Order::Plain, false, "llama");
    // All bits set: 15 and 1 is 0.
    let name = "model.layers.0.mlp.up_proj";
    let (_, _, bytes) = quantized.tensors.get_mut(&format!("{name}.qzeros")).unwrap();
    bytes.fill(0xff);
    let (_dir, out, _) = converted(&quantized).unwrap();
    let model = read_back::open(&out.join("model.onnx"));
    let (_, _, scales) = model.tensor(&format!("{name}.weight.scales"));
    for pair in scales.chunks(4) {
        assert_eq!(f16::from_le_bytes([pair[2], pair[3]]), f16::from_f32(2.0));
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let (good, plain) = gptq(4, 32, Order::Shared, false, "llama");
    let name = "model.layers.1.mlp.gate_proj";
    let with = |change: &dyn Fn(&mut Folder)| {
        let mut folder = good.clone();
        change(&mut folder);
        folder
    };
    let config = |key: &str, value: Value| with(&|f| f.config["quantization_config"][key] = value.clone());
    for part in ["qweight", "qzeros", "scales"] {
        let key = format!("{name}.{part}");
        let folder = with(&|f| {
            f.tensors.remove(&key);
        });
        let wanted = if part == "qweight" {
            format!("\"{name}.weight\"")
        } else {
            format!("\"{key}\"")
        };
        invalid(&folder, &[&wanted]);
    }
    let tensor = |part: &str| format!("\"{name}.{part}\"");
    let folder = with(&|f| {
        f.tensors.get_mut(&format!("{name}.scales")).unwrap().1 = vec![HIDDEN / 32 * INTERMEDIATE];
    });
    invalid(&folder, &[&tensor("scales"), "[2, 96]", "[192]"]);
    let folder = with(&|f| {
        f.tensors.get_mut(&format!("{name}.qzeros")).unwrap().0 = "F32";
    });
    invalid(&folder, &[&tensor("qzeros"), "I32", "F32"]);
    let folder = with(&|f| {
        f.tensors.get_mut(&format!("{name}.g_idx")).unwrap().2[..4].fill(0);
        f.tensors.get_mut(&format!("{name}.g_idx")).unwrap().2[4..8].copy_from_slice(&[7, 0, 0, 0]);
    });
    invalid(&folder, &[&tensor("g_idx"), "32"]);
    let folder = with(&|f| {
        let extra = f.tensors["model.norm.weight"].clone();
        f.tensors.insert("model.layers.0.extra".to_owned(), extra);
    });
    invalid(&folder, &["\"model.layers.0.extra\""]);
    let folder = with(&|f| {
        f.tensors.get_mut(&format!("{name}.scales")).unwrap().2[..2].copy_from_slice(&[0, 0x7e]);
    });
    invalid(&folder, &[&tensor("scales"), "0", "NaN"]);

    let key = |key: &str| format!("\"quantization_config.{key}\"");
    unsupported(
        &config("quant_method", json!("hqq")),
        &[&key("quant_method"), "\"hqq\""],
    );
    invalid(&config("bits", json!(5)), &[&key("bits"), "2, 3, 4", "8", "5"]);
    invalid(&config("group_size", json!(0)), &[&key("group_size"), "-1", "0"]);
    invalid(&config("group_size", json!(null)), &[&key("group_size")]);
    unsupported(
        &config("checkpoint_format", json!("marlin")),
        &[&key("checkpoint_format"), "\"marlin\""],
    );
    let first = "\"model.layers.0.self_attn.q_proj.qzeros\"";
    invalid(&config("group_size", json!(64)), &[first]);
    let (small, _) = gptq(4, 4, Order::Plain, false, "llama");
    invalid(&small, &["4", "8"]);
    let folder = with(&|f| {
        f.config.as_object_mut().unwrap().remove("quantization_config");
    });
    let first = "\"model.layers.0.self_attn.q_proj.qweight\"";
    invalid(&folder, &[first, "quantization_config"]);
    let (mut folder, _) = awq(32);
    folder.config["quantization_config"]["version"] = json!("gemv");
    unsupported(&folder, &[&key("version"), "\"gemv\"", "gemm"]);

    let mut folder = plain.clone();
    folder.config["model_type"] = json!("gpt2");
    let types = "llama, qwen2, qwen3, gemma, gemma2, gemma3_text, phi3, mistral, gemma3";
    unsupported(&folder, &["\"model_type\"", "\"gpt2\"", types]);
    let mut folder = plain.clone();
    folder.config["vocab_size"] = json!(1u64 << 40);
    invalid(&folder, &["\"model.embed_tokens.weight\"", "1099511627776"]);
    let mut folder = plain;
    folder.config["rope_scaling"] = json!({"rope_type": "dynamic", "factor": 2.0});
    unsupported(&folder, &["\"rope_scaling.rope_type\"", "\"dynamic\""]);
}

#[test]
fn sizes_whose_products_are_none_are_errors() {
    let (quantized, _) = gptq(4, 32, Order::Plain, false, "llama");
    for key in [
        "hidden_size",
        "intermediate_size",
        "vocab_size",
        "num_attention_heads",
        "max_position_embeddings",
    ] {
        for size in [1u64 << 62, 1 << 61, (1 << 59) + 1, 1 << 32, (1 << 32) - 2] {
            let mut folder = quantized.clone();
            folder.config[key] = json!(size);
            folder.config["num_key_value_heads"] = json!(2);
            folder.config["head_dim"] = json!(16);
            match converted(&folder) {
                Ok(_) => assert_eq!(key, "max_position_embeddings"),
                Err(e) => assert_eq!(e.kind(), ErrorKind::InvalidFile, "{e}"),
            }
        }
    }
    let words = Gptq {
        bits: Bits::Four,
        group: Some(32),
        plain_zeros: false,
    };
    let (_dir, input) = quantized.write();
    let shards = Shards::open(&input).unwrap();
    let part = |what: &str| shards.get(&format!("model.layers.0.mlp.up_proj.{what}")).unwrap();
    let parts = Parts {
        qweight: part("qweight"),
        qzeros: part("qzeros"),
        scales: part("scales"),
        g_idx: None,
    };
    for (k, n) in [(1 << 62, INTERMEDIATE), (HIDDEN, 1 << 62), (usize::MAX - 31, 8)] {
        let error = words.stored(parts, k, n).err().unwrap();
        assert_carries(error, &["\"model.layers.0.mlp.up_proj.qweight\""]);
    }
}

#[test]
fn weights_that_are_not_finite_are_errors() {
    let (quantized, plain) = gptq(4, 32, Order::Plain, false, "qwen2");
    for name in [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.1.self_attn.k_proj.bias",
    ] {
        for (value, text) in [
            (f32::NAN, "NaN"),
            (f32::INFINITY, "inf"),
            (f32::NEG_INFINITY, "-inf"),
        ] {
            let mut folder = quantized.clone();
            let (_, _, bytes) = folder.tensors.get_mut(name).unwrap();
            let last = bytes.len() - 4;
            bytes[last..].copy_from_slice(&value.to_le_bytes());
            invalid(&folder, &[&format!("\"{name}\""), text]);
        }
    }
    let mut folder = plain;
    let name = "model.layers.0.mlp.down_proj.weight";
    folder.tensors.get_mut(name).unwrap().2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    invalid(&folder, &[&format!("\"{name}\""), "NaN"]);
}

#[test]
fn traits_that_cannot_be_are_named() {
    let (_, plain) = gptq(4, 32, Order::Plain, false, "llama");
    let with = |entries: &[(&str, Value)]| {
        let mut folder = plain.clone();
        for (key, value) in entries {
            folder.config[*key] = value.clone();
        }
        folder
    };
    let windows = [
        ("model_type", json!("qwen2")),
        ("use_sliding_window", json!(true)),
        ("sliding_window", json!(8)),
        ("layer_types", json!(["full_attention"])),
    ];
    let types = ["\"layer_types\"", "2", "full_attention", "sliding_attention"];
    invalid(&with(&windows), &types);
    invalid(&with(&windows[..2]), &["\"use_sliding_window\""]);
    invalid(&with(&windows[1..]), &["\"use_sliding_window\""]);
    let scaling = |value: Value| with(&[("rope_scaling", value)]);
    let long = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]});
    invalid(&scaling(long), &["\"rope_scaling.short_factor\"", "8"]);
    let missing = json!({"rope_type": "yarn"});
    invalid(&scaling(missing), &["\"rope_scaling.factor\""]);
    let nothing = json!({"rope_type": "linear", "factor": 0.0});
    invalid(&scaling(nothing), &["\"rope_scaling.factor\"", "0"]);
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1e6});
    let folder = with(&[("rope_theta", json!(1.0)), ("rope_scaling", yarn)]);
    invalid(&folder, &["NaN"]);
    unsupported(
        &with(&[("partial_rotary_factor", json!(0.5))]),
        &["\"partial_rotary_factor\""],
    );
    let gemma = [("model_type", json!("gemma")), ("hidden_act", json!("relu"))];
    let values = ["\"hidden_act\"", "\"relu\"", "gelu_pytorch_tanh"];
    unsupported(&with(&gemma), &values);
    // The projections of another architecture.
    let joint = [("model_type", json!("phi3"))];
    let first = "\"model.layers.0.self_attn.qkv_proj.weight\"";
    invalid(&with(&joint), &[first]);
    invalid(&with(&[("model_type", json!("gemma3"))]), &["\"text_config\""]);
}

#[test]
fn mistral_is_llama_with_a_window() {
    let (_, plain) = gptq(4, 32, Order::Plain, false, "llama");
    let with = |entries: &[(&str, Value)]| {
        let mut folder = plain.clone();
        for (key, value) in entries {
            folder.config[*key] = value.clone();
        }
        let (dir, out, _) = converted(&folder).unwrap();
        let masks = read_back::open(&out.join("model.onnx")).count("Where");
        (logits(&out), masks, dir)
    };
    let (llama, one_mask, _a) = with(&[]);
    let mistral = ("model_type", json!("mistral"));
    let (off, _, _b) = with(&[mistral.clone(), ("sliding_window", Value::Null)]);
    assert_eq!(off, llama);
    let (found, _, _c) = with(&[mistral.clone(), ("sliding_window", json!(4))]);
    let (wanted, _, _d) = with(&[
        ("model_type", json!("qwen2")),
        ("use_sliding_window", json!(true)),
        ("sliding_window", json!(4)),
        ("layer_types", json!(["sliding_attention", "sliding_attention"])),
    ]);
    assert_eq!(found, wanted);
    assert_ne!(found, llama);
    // What is not there is as the library has it: 4096 keys.
    let (_, masks, _e) = with(&[mistral, ("max_position_embeddings", json!(8192))]);
    assert_eq!(masks, one_mask + 1);
}

#[test]
fn a_base_beside_newer_objects_is_read() {
    let (_, plain) = gptq(4, 32, Order::Plain, false, "llama");
    let base = |change: &dyn Fn(&mut Value)| {
        let mut folder = plain.clone();
        change(&mut folder.config);
        let (_dir, out, _) = converted(&folder).unwrap();
        let model = read_back::open(&out.join("model.onnx"));
        let (_, found) = model.f32s("model.rotary_emb.inv_freq");
        found[1].powf(-8.0)
    };
    for (found, wanted) in [
        (base(&|c| c["rope_theta"] = json!(5e5)), 5e5),
        (
            base(&|c| {
                c["rope_theta"] = json!(5e5);
                c["rope_parameters"] = json!({"rope_type": "default"});
            }),
            5e5,
        ),
        (
            base(&|c| c["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 7e5})),
            7e5,
        ),
    ] {
        assert!((found / wanted - 1.0f32).abs() < 1e-4, "{found}");
    }
}

#[test]
fn damaged_files_are_errors() {
    let (folder, _) = awq(32);
    let (dir, input) = folder.write();
    let file = input.join("model-0.safetensors");
    let good = std::fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for length in (1..header).step_by(97).chain((header..good.len()).step_by(4999)) {
        std::fs::write(&file, &good[..length]).unwrap();
        let error = Shards::open(&input).err().unwrap();
        assert_error(&error, ErrorKind::InvalidFile, &["model-0.safetensors"]);
        if length >= header {
            // Behind the header the length of the whole file is known.
            let sizes = [length, good.len()].map(|n| n.to_string());
            assert_error(&error, ErrorKind::InvalidFile, &[&sizes[0], &sizes[1]]);
        }
    }
    std::fs::remove_file(&file).unwrap();
    assert!(convert(&input, &dir.path().join("out"), &mut |_| ()).is_err());
    assert!(!dir.path().join("out").exists());
}

#[test]
fn frequencies_of_long_contexts() {
    let (_, mut plain) = gptq(4, 32, Order::Plain, false, "llama");
    plain.config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    });
    let (_dir, out, _) = converted(&plain).unwrap();
    let model = read_back::open(&out.join("model.onnx"));
    let (_, found) = model.f32s("model.rotary_emb.inv_freq");
    for (i, found) in found.iter().enumerate() {
        // As the library transformers has it.
        let frequency = 10_000f64.powf(-(i as f64) / 8.0);
        let wavelength = std::f64::consts::TAU / frequency;
        let wanted = if wavelength < 32.0 / 4.0 {
            frequency
        } else if wavelength > 32.0 {
            frequency / 8.0
        } else {
            let smooth = (32.0 / wavelength - 1.0) / (4.0 - 1.0);
            (1.0 - smooth) * frequency / 8.0 + smooth * frequency
        };
        assert!(
            (f64::from(*found) / wanted - 1.0).abs() < 1e-6,
            "{i}: {found} instead of {wanted}"
        );
    }
}
