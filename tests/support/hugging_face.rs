//! Folders as Hugging Face's libraries write them, for tests: any tensors, and tiny models that
//! GPTQ or AWQ quantized, by the published layouts. The library's own tests include this file too.

use half::f16;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub const HIDDEN: usize = 64;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 16;
pub const INTERMEDIATE: usize = 96;
pub const VOCAB: usize = 40;

/// Numbers that look random.
pub struct Random(pub u64);

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
pub type Entry = (&'static str, Vec<usize>, Vec<u8>);

/// A checkpoint under construction.
#[derive(Clone)]
pub struct Folder {
    pub tensors: BTreeMap<String, Entry>,
    pub config: Value,
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn f16s(values: &[f16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn i32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

impl Folder {
    /// The folder, inside a temporary one.
    pub fn write(&self) -> (tempfile::TempDir, PathBuf) {
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
}

/// Widths of the projections of a layer: name, inputs, outputs.
pub const PROJECTIONS: [(&str, usize, usize); 7] = [
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
pub enum Order {
    Plain,
    /// Queries, keys and values share an order, as do gates and ups.
    Shared,
    /// Each matrix has its own.
    Own,
}

/// A folder of GPTQ, and the plain one with the same weights.
pub fn gptq(bits: usize, group: i64, order: Order, v2: bool, model_type: &str) -> (Folder, Folder) {
    let r = &mut Random(bits as u64 * 1000 + 7);
    let mut quantized = base(r, model_type);
    let mut plain = quantized.clone();
    for layer in 0..2 {
        let mut orders: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
        for (name, k, n) in PROJECTIONS {
            let size = if group < 0 {
                k
            } else {
                usize::try_from(group).unwrap()
            };
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
pub fn awq(group: usize) -> (Folder, Folder) {
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
