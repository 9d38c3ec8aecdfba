//! Folders written by the published layouts of GPTQ and AWQ, against the float models that they stand for.

use super::folder::convert;
use super::{Summary, safetensors::Shards};
use crate::graph::onnx::write::read_back;
use crate::graph::pass::Pipeline;
use crate::llm::Model as _;
use crate::llm::engine::{Decoder, HostModel, Logits};
use half::f16;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const INTERMEDIATE: usize = 96;
const VOCAB: usize = 40;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }

    fn float(&mut self) -> f32 {
        self.next(2001) as f32 / 1000.0 - 1.0
    }

    fn order(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            all.swap(i, self.next(i + 1));
        }
        all
    }
}

/// A tensor of a file: type, shape, bytes.
type Entry = (&'static str, Vec<usize>, Vec<u8>);

/// A checkpoint under construction.
#[derive(Clone)]
struct Folder {
    tensors: BTreeMap<String, Entry>,
    config: Value,
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn f16s(values: &[f16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn i32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

impl Folder {
    fn write(&self) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in");
        std::fs::create_dir(&input).unwrap();
        std::fs::write(input.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(input.join("tokenizer.json"), "{}").unwrap();
        // In two files, with an index.
        let (mut maps, mut weight_map) = ([BTreeMap::new(), BTreeMap::new()], BTreeMap::new());
        for (i, (name, entry)) in self.tensors.iter().enumerate() {
            maps[i % 2].insert(name.clone(), entry);
            weight_map.insert(name.clone(), format!("model-{}.safetensors", i % 2));
        }
        for (i, map) in maps.iter().enumerate() {
            let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
            header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
            for (name, (dtype, shape, bytes)) in map {
                let start = data.len();
                data.extend_from_slice(bytes);
                let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
                header.insert(name.clone(), entry);
            }
            let header = Value::Object(header).to_string();
            let mut all = (header.len() as u64).to_le_bytes().to_vec();
            all.extend_from_slice(header.as_bytes());
            all.extend(data);
            std::fs::write(input.join(format!("model-{i}.safetensors")), all).unwrap();
        }
        let index = json!({"weight_map": weight_map}).to_string();
        std::fs::write(input.join("model.safetensors.index.json"), index).unwrap();
        (dir, input)
    }

    fn convert(&self) -> Result<(tempfile::TempDir, PathBuf, Summary), String> {
        let (dir, input) = self.write();
        let out = dir.path().join("out");
        let mut last = (0, 1);
        let summary = convert(&input, &out, &mut |p| last = (p.done, p.total)).map_err(|e| e.to_string())?;
        assert_eq!(last.0, last.1, "progress ends at the total");
        Ok((dir, out, summary))
    }

    /// The error of a conversion.
    fn error(&self) -> String {
        match self.convert() {
            Ok(_) => panic!("expected an error"),
            Err(e) => e,
        }
    }
}

/// Widths of the projections of a layer: name, inputs, outputs.
const PROJECTIONS: [(&str, usize, usize); 7] = [
    ("self_attn.q_proj", HIDDEN, HEADS * HEAD_DIM),
    ("self_attn.k_proj", HIDDEN, KV_HEADS * HEAD_DIM),
    ("self_attn.v_proj", HIDDEN, KV_HEADS * HEAD_DIM),
    ("self_attn.o_proj", HEADS * HEAD_DIM, HIDDEN),
    ("mlp.gate_proj", HIDDEN, INTERMEDIATE),
    ("mlp.up_proj", HIDDEN, INTERMEDIATE),
    ("mlp.down_proj", INTERMEDIATE, HIDDEN),
];

/// A quantized matrix: what each file format stores, and what it means.
struct Quantized {
    k: usize,
    n: usize,
    /// `[k][n]`.
    codes: Vec<u32>,
    /// `[groups][n]`.
    zeros: Vec<u32>,
    scales: Vec<f16>,
    g_idx: Vec<usize>,
}

impl Quantized {
    fn new(r: &mut Random, bits: usize, group: usize, g_idx: Vec<usize>, n: usize) -> Self {
        let (k, top) = (g_idx.len(), 1 << bits);
        let groups = k.div_ceil(group);
        let step = 0.25 / top as f32;
        Self {
            k,
            n,
            codes: (0..k * n).map(|_| r.next(top) as u32).collect(),
            // Zero points from 1 on, as those less 1 are stored.
            zeros: (0..groups * n).map(|_| 1 + r.next(top - 1) as u32).collect(),
            scales: (0..groups * n)
                .map(|_| f16::from_f32(step * (1.5 + r.float())))
                .collect(),
            g_idx,
        }
    }

    /// `[n][k]`, as a plain checkpoint has it.
    fn floats(&self) -> Vec<f32> {
        let mut out = Vec::new();
        for j in 0..self.n {
            for i in 0..self.k {
                let g = self.g_idx[i] * self.n + j;
                let level = self.codes[i * self.n + j] as f32 - self.zeros[g] as f32;
                out.push(self.scales[g].to_f32() * level);
            }
        }
        out
    }
}

/// Rows of `values` packed along the first axis, as the packages for GPTQ do it.
fn pack_rows(values: &[u32], rows: usize, columns: usize, bits: usize) -> Vec<u32> {
    let mut out = vec![0u32; rows * bits / 32 * columns];
    for c in 0..columns {
        let at = |i: usize| values[i * columns + c];
        let mut put = |row: usize, v: u32| out[row * columns + c] |= v;
        if bits == 3 {
            for (block, i) in (0..rows).step_by(32).enumerate() {
                let row = 3 * block;
                (0..10).for_each(|j| put(row, at(i + j) << (3 * j)));
                put(row, at(i + 10) << 30);
                put(row + 1, at(i + 10) >> 2 & 1);
                (0..10).for_each(|j| put(row + 1, at(i + 11 + j) << (3 * j + 1)));
                put(row + 1, at(i + 21) << 31);
                put(row + 2, at(i + 21) >> 1 & 3);
                (0..10).for_each(|j| put(row + 2, at(i + 22 + j) << (3 * j + 2)));
            }
        } else {
            let per = 32 / bits;
            (0..rows).for_each(|i| put(i / per, at(i) << (bits * (i % per))));
        }
    }
    out
}

fn transposed(values: &[u32], rows: usize, columns: usize) -> Vec<u32> {
    let at = |i: usize| values[i % rows * columns + i / rows];
    (0..rows * columns).map(at).collect()
}

/// A model without quantized matrices, and the rest of `config.json`.
fn base(r: &mut Random, model_type: &str) -> Folder {
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, shape: Vec<usize>, r: &mut Random| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| r.float()).collect();
        tensors.insert(name, ("F32", shape, f32s(&values)));
    };
    add("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN], r);
    add("model.norm.weight".to_owned(), vec![HIDDEN], r);
    add("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN], r);
    for layer in 0..2 {
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(format!("model.layers.{layer}.{norm}.weight"), vec![HIDDEN], r);
        }
        if model_type == "qwen2" {
            for (name, _, n) in &PROJECTIONS[..3] {
                add(format!("model.layers.{layer}.{name}.bias"), vec![*n], r);
            }
        }
    }
    Folder {
        tensors,
        config: json!({
            "model_type": model_type, "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "num_hidden_layers": 2,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": VOCAB,
            "tie_word_embeddings": false, "rope_scaling": null,
        }),
    }
}

/// How the groups of inputs lie.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Plain,
    /// Queries, keys and values share an order, as do gates and ups.
    Shared,
    /// Each matrix has its own.
    Own,
}

/// A folder of GPTQ, and the plain one with the same weights.
fn gptq(bits: usize, group: i64, order: Order, v2: bool, model_type: &str) -> (Folder, Folder) {
    let r = &mut Random(bits as u64 * 1000 + 7);
    let mut quantized = base(r, model_type);
    let mut plain = quantized.clone();
    for layer in 0..2 {
        let mut orders: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
        for (name, k, n) in PROJECTIONS {
            let size = usize::try_from(group).unwrap_or(k);
            let key = match (order, name) {
                (Order::Shared, "self_attn.q_proj" | "self_attn.k_proj" | "self_attn.v_proj") => "qkv",
                (Order::Shared, "mlp.gate_proj" | "mlp.up_proj") => "mlp",
                _ => name,
            };
            let places = orders.entry((k, key)).or_insert_with(|| match order {
                Order::Plain => (0..k).collect(),
                _ => r.order(k),
            });
            let g_idx: Vec<usize> = places.iter().map(|p| p / size).collect();
            let q = Quantized::new(r, bits, size, g_idx, n);
            let groups = k.div_ceil(size);
            let base = format!("model.layers.{layer}.{name}");
            plain
                .tensors
                .insert(format!("{base}.weight"), ("F32", vec![n, k], f32s(&q.floats())));
            let stored: Vec<u32> = q.zeros.iter().map(|z| if v2 { *z } else { z - 1 }).collect();
            let zeros = pack_rows(&transposed(&stored, groups, n), n, groups, bits);
            let zeros = transposed(&zeros, n * bits / 32, groups);
            let g_idx: Vec<u32> = q.g_idx.iter().map(|g| *g as u32).collect();
            let mut put = |what: &str, dtype, shape, bytes| {
                quantized
                    .tensors
                    .insert(format!("{base}.{what}"), (dtype, shape, bytes));
            };
            let codes = pack_rows(&q.codes, k, n, bits);
            put("qweight", "I32", vec![k * bits / 32, n], i32s(&codes));
            put("qzeros", "I32", vec![groups, n * bits / 32], i32s(&zeros));
            put("scales", "F16", vec![groups, n], f16s(&q.scales));
            put("g_idx", "I32", vec![k], i32s(&g_idx));
        }
    }
    let format = if v2 { "gptq_v2" } else { "gptq" };
    quantized.config["quantization_config"] = json!({
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order != Order::Plain, "sym": false,
        "checkpoint_format": format,
    });
    (quantized, plain)
}

/// A folder of AWQ, and the plain one with the same weights.
fn awq(group: usize) -> (Folder, Folder) {
    let r = &mut Random(99);
    let mut quantized = base(r, "qwen2");
    let mut plain = quantized.clone();
    for layer in 0..2 {
        for (name, k, n) in PROJECTIONS {
            let q = Quantized::new(r, 4, group, (0..k).map(|i| i / group).collect(), n);
            let base = format!("model.layers.{layer}.{name}");
            plain
                .tensors
                .insert(format!("{base}.weight"), ("F32", vec![n, k], f32s(&q.floats())));
            let pack = |values: &[u32]| -> Vec<u32> {
                let order_map = [0, 2, 4, 6, 1, 3, 5, 7];
                let word = |eight: &[u32]| (0..8).fold(0, |w, i| w | eight[order_map[i]] << (4 * i));
                values.chunks(8).map(word).collect()
            };
            let mut put = |what: &str, dtype, shape, bytes| {
                quantized
                    .tensors
                    .insert(format!("{base}.{what}"), (dtype, shape, bytes));
            };
            let groups = k.div_ceil(group);
            put("qweight", "I32", vec![k, n / 8], i32s(&pack(&q.codes)));
            put("qzeros", "I32", vec![groups, n / 8], i32s(&pack(&q.zeros)));
            put("scales", "F16", vec![groups, n], f16s(&q.scales));
        }
    }
    quantized.config["quantization_config"] = json!({
        "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": "gemm",
    });
    (quantized, plain)
}

fn logits(folder: &Path) -> Vec<f32> {
    let decoder = Decoder::load(&folder.join("model.onnx"), &Pipeline::host(), Logits::All).unwrap();
    let tokens: Vec<u32> = (0..9).map(|i| (i * 23 + 5) % VOCAB as u32).collect();
    let mut model = HostModel::new(decoder, tokens.len()).unwrap();
    model.forward_all(&tokens).unwrap()
}

/// Converts both and compares all weights and the logits.
#[track_caller]
fn same(quantized: &Folder, plain: &Folder, gathers: usize) {
    let (_a, kept, summary) = quantized.convert().unwrap();
    let (_b, wanted, floats) = plain.convert().unwrap();
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
    // A layer has one for the projections of attention, one behind attention, one for gate and up; that of down is in their columns.
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
fn zero_points_wrap_as_the_packages_read_them() {
    let (mut quantized, _) = gptq(4, 32, Order::Plain, false, "llama");
    // All bits set: 15 and 1 is 0.
    let name = "model.layers.0.mlp.up_proj";
    let (_, _, bytes) = quantized.tensors.get_mut(&format!("{name}.qzeros")).unwrap();
    bytes.fill(0xff);
    let (_dir, out, _) = quantized.convert().unwrap();
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
        folder.error()
    };
    let config = |key: &str, value: Value| with(&|f| f.config["quantization_config"][key] = value.clone());
    for part in ["qweight", "qzeros", "scales"] {
        let key = format!("{name}.{part}");
        let text = with(&|f| {
            f.tensors.remove(&key);
        });
        let wanted = if part == "qweight" {
            format!("{name}.weight")
        } else {
            key
        };
        assert!(
            text.contains(&format!("tensor \"{wanted}\": is missing")),
            "{text}"
        );
    }
    let text = with(&|f| {
        f.tensors.get_mut(&format!("{name}.scales")).unwrap().1 = vec![HIDDEN / 32 * INTERMEDIATE];
    });
    assert!(
        text.contains(&format!(
            "tensor \"{name}.scales\": expected shape [2, 96] by the configuration, found [192]"
        )),
        "{text}"
    );
    let text = with(&|f| {
        f.tensors.get_mut(&format!("{name}.qzeros")).unwrap().0 = "F32";
    });
    assert!(
        text.contains("qzeros\": expected elements of type I32, found F32"),
        "{text}"
    );
    let text = with(&|f| {
        f.tensors.get_mut(&format!("{name}.g_idx")).unwrap().2[..4].fill(0);
        f.tensors.get_mut(&format!("{name}.g_idx")).unwrap().2[4..8].copy_from_slice(&[7, 0, 0, 0]);
    });
    assert!(
        text.contains(&format!("tensor \"{name}.g_idx\": expected 32 inputs in group ")),
        "{text}"
    );
    let text = with(&|f| {
        let extra = f.tensors["model.norm.weight"].clone();
        f.tensors.insert("model.layers.0.extra".to_owned(), extra);
    });
    assert!(
        text.contains("tensor \"model.layers.0.extra\": has no place in this architecture"),
        "{text}"
    );
    let text = with(&|f| {
        f.tensors.get_mut(&format!("{name}.scales")).unwrap().2[..2].copy_from_slice(&[0, 0x7e]);
    });
    assert!(
        text.contains(&format!("tensor \"{name}.scales\": element 0 is NaN")),
        "{text}"
    );

    assert!(
        config("quant_method", json!("hqq"))
            .contains("\"quantization_config.quant_method\": \"hqq\" is not supported")
    );
    assert!(
        config("bits", json!(5)).contains("\"quantization_config.bits\": expected 2, 3, 4 or 8, found 5")
    );
    assert!(config("group_size", json!(0)).contains("expected a positive number or -1, found 0"));
    assert!(config("group_size", json!(null)).contains("\"quantization_config.group_size\": is missing"));
    assert!(config("checkpoint_format", json!("marlin")).contains("\"marlin\" is not supported"));
    assert!(config("group_size", json!(64)).contains("qzeros\": expected shape"));
    let (small, _) = gptq(4, 4, Order::Plain, false, "llama");
    assert!(
        small
            .error()
            .contains("groups of 4 weights: the size must be a multiple of 8")
    );
    let text = with(&|f| {
        f.config.as_object_mut().unwrap().remove("quantization_config");
    });
    assert!(
        text.contains("qweight\": is quantized, but config.json has no quantization_config"),
        "{text}"
    );
    let (mut folder, _) = awq(32);
    folder.config["quantization_config"]["version"] = json!("gemv");
    assert!(
        folder
            .error()
            .contains("\"quantization_config.version\": \"gemv\" is not supported; supported: gemm")
    );

    let mut folder = plain.clone();
    folder.config["model_type"] = json!("gpt2");
    assert!(
        folder
            .error()
            .contains("\"model_type\": \"gpt2\" is not supported; supported: llama, qwen2")
    );
    let mut folder = plain.clone();
    folder.config["vocab_size"] = json!(1u64 << 40);
    assert!(
        folder
            .error()
            .contains("tensor \"model.embed_tokens.weight\": expected shape")
    );
    let mut folder = plain;
    folder.config["rope_scaling"] = json!({"rope_type": "yarn", "factor": 2.0});
    assert!(
        folder
            .error()
            .contains("\"rope_scaling.rope_type\": \"yarn\" is not supported")
    );
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
        let error = Shards::open(&input).err().map(|e| e.to_string());
        assert!(
            error.is_some_and(|e| e.contains("model-0.safetensors")),
            "{length}"
        );
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
    let (_dir, out, _) = plain.convert().unwrap();
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
