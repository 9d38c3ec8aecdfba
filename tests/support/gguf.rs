//! GGUF files for tests: any content, and tiny random models. The library's own tests include this
//! file too; the parent module gives it the names of the library.

use super::{Array, GgmlType, Gguf, Value};
use std::path::Path;

/// A file under construction. Everything may be changed before [`File::bytes`].
#[derive(Clone, Default)]
pub struct File {
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    /// Innermost first.
    pub dims: Vec<usize>,
    pub ggml_type: u32,
    pub data: Vec<u8>,
}

/// Which traits a tiny model has.
#[derive(Clone, Copy, Default)]
pub struct Traits {
    /// It has an output matrix of its own.
    pub untied: bool,
    /// It has `rope_freqs.weight`.
    pub rope_freqs: bool,
}

pub const VOCAB: usize = 270;
pub const HIDDEN: usize = 32;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 8;
pub const INTERMEDIATE: usize = 64;

fn string(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn array(out: &mut Vec<u8>, a: &Array) {
    macro_rules! numbers {
        ($code:expr, $v:expr) => {{
            out.extend(u32::to_le_bytes($code));
            out.extend(($v.len() as u64).to_le_bytes());
            for x in $v {
                out.extend(x.to_le_bytes());
            }
        }};
    }
    match a {
        Array::U8(v) => numbers!(0, v),
        Array::I8(v) => numbers!(1, v),
        Array::U16(v) => numbers!(2, v),
        Array::I16(v) => numbers!(3, v),
        Array::U32(v) => numbers!(4, v),
        Array::I32(v) => numbers!(5, v),
        Array::F32(v) => numbers!(6, v),
        Array::U64(v) => numbers!(10, v),
        Array::I64(v) => numbers!(11, v),
        Array::F64(v) => numbers!(12, v),
        Array::Bool(v) => numbers!(7, v.iter().map(|b| u8::from(*b)).collect::<Vec<_>>()),
        Array::String(v) => {
            out.extend(8u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|s| string(out, s));
        }
        Array::Array(v) => {
            out.extend(9u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|a| array(out, a));
        }
    }
}

fn value(out: &mut Vec<u8>, v: &Value) {
    macro_rules! number {
        ($code:expr, $v:expr) => {{
            out.extend(u32::to_le_bytes($code));
            out.extend($v.to_le_bytes());
        }};
    }
    match v {
        Value::U8(v) => number!(0, v),
        Value::I8(v) => number!(1, v),
        Value::U16(v) => number!(2, v),
        Value::I16(v) => number!(3, v),
        Value::U32(v) => number!(4, v),
        Value::I32(v) => number!(5, v),
        Value::F32(v) => number!(6, v),
        Value::Bool(v) => number!(7, u8::from(*v)),
        Value::U64(v) => number!(10, v),
        Value::I64(v) => number!(11, v),
        Value::F64(v) => number!(12, v),
        Value::String(v) => {
            out.extend(8u32.to_le_bytes());
            string(out, v);
        }
        Value::Array(v) => {
            out.extend(9u32.to_le_bytes());
            array(out, v);
        }
    }
}

impl File {
    /// The file's bytes, version 3, alignment 32.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, v) in &self.metadata {
            string(&mut out, key);
            value(&mut out, v);
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            string(&mut out, &t.name);
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend((*d as u64).to_le_bytes()));
            out.extend(t.ggml_type.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + t.data.len() as u64).next_multiple_of(32);
        }
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&t.data);
        }
        out
    }

    /// The file, opened from memory.
    pub fn open(&self) -> super::Result<Gguf> {
        open(self.bytes())
    }

    /// The bytes of two parts that the model is split into.
    pub fn split(&self) -> [Vec<u8>; 2] {
        let (mut first, mut second) = (self.clone(), Self::default());
        second.tensors = first.tensors.split_off(7);
        for (number, part) in [&mut first, &mut second].into_iter().enumerate() {
            part.set("split.no", Value::U16(number as u16));
            part.set("split.count", Value::U16(2));
            part.set("split.tensors.count", Value::I32(self.tensors.len() as i32));
        }
        [first.bytes(), second.bytes()]
    }

    /// Sets or replaces a metadata value.
    pub fn set(&mut self, key: &str, value: Value) {
        self.unset(key);
        self.metadata.push((key.to_owned(), value));
    }

    /// Removes a metadata value.
    pub fn unset(&mut self, key: &str) {
        self.metadata.retain(|(k, _)| k != key);
    }

    /// The texts of the vocabulary.
    pub fn tokens(&self) -> Vec<String> {
        let value = self.metadata.iter().find(|(k, _)| k == "tokenizer.ggml.tokens");
        value.and_then(|(_, v)| v.as_strings()).unwrap().to_vec()
    }

    /// A tensor by name.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    /// Adds an `f32` tensor.
    pub fn add_f32(&mut self, name: &str, dims: &[usize], data: &[f32]) {
        let data = data.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dims: dims.to_vec(),
            ggml_type: GgmlType::F32.0,
            data,
        });
    }
}

/// Opens a file's bytes.
pub fn open(bytes: Vec<u8>) -> super::Result<Gguf> {
    Gguf::from_bytes(Path::new("memory.gguf"), Box::new(bytes))
}

/// Numbers between -0.5 and 0.5 from a seed that is moved on.
pub fn random(seed: &mut u64, count: usize) -> Vec<f32> {
    let mut next = || {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

/// The characters that stand for the 256 bytes in byte-level vocabularies.
pub fn byte_characters() -> Vec<char> {
    let plain = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut shifted = 256..;
    (0..256)
        .map(|b| char::from_u32(if plain(b) { b } else { shifted.next().unwrap() }).unwrap())
        .collect()
}

pub fn strings(list: &[&str]) -> Value {
    Value::Array(Array::String(list.iter().map(|s| (*s).to_owned()).collect()))
}

/// A byte-level vocabulary of [`VOCAB`] tokens: three control tokens, the bytes, some merges, one
/// token of the user.
pub fn byte_vocabulary(file: &mut File, pre: &str) {
    let mut tokens: Vec<String> = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        .map(str::to_owned)
        .to_vec();
    tokens.extend(byte_characters().iter().map(char::to_string));
    let merges = [
        "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "1 2", "l d", "Ġ Ġ",
    ];
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    tokens.push("[user]".to_owned());
    let mut roles = vec![1; tokens.len()];
    roles[..3].fill(3);
    roles[VOCAB - 1] = 4;
    assert_eq!(tokens.len(), VOCAB, "the vocabulary is full");
    file.set("tokenizer.ggml.model", Value::String("gpt2".to_owned()));
    file.set("tokenizer.ggml.pre", Value::String(pre.to_owned()));
    file.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    file.set("tokenizer.ggml.token_type", Value::Array(Array::I32(roles)));
    file.set("tokenizer.ggml.merges", strings(&merges));
    file.set("tokenizer.ggml.bos_token_id", Value::U32(1));
    file.set("tokenizer.ggml.eos_token_id", Value::U32(2));
    file.set("tokenizer.ggml.padding_token_id", Value::U32(2));
    file.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
    file.set(
        "tokenizer.chat_template",
        Value::String("{{ messages }}".to_owned()),
    );
}

/// A random model of two layers of `llama` or `qwen2`.
pub fn tiny(architecture: &str, traits: Traits) -> File {
    tiny_of(architecture, traits, [HIDDEN, INTERMEDIATE])
}

/// The same with other sizes of hidden and intermediate vectors.
pub fn tiny_of(architecture: &str, traits: Traits, [hidden, intermediate]: [usize; 2]) -> File {
    let mut file = File::default();
    file.set("general.architecture", Value::String(architecture.to_owned()));
    file.set("general.name", Value::String("tiny".to_owned()));
    for (key, v) in [
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", hidden),
        ("feed_forward_length", intermediate),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
    ] {
        file.set(&format!("{architecture}.{key}"), Value::U32(v as u32));
    }
    file.set(&format!("{architecture}.rope.freq_base"), Value::F32(10_000.0));
    file.set(
        &format!("{architecture}.attention.layer_norm_rms_epsilon"),
        Value::F32(1e-5),
    );
    byte_vocabulary(
        &mut file,
        if architecture == "qwen2" {
            "qwen2"
        } else {
            "smollm"
        },
    );

    let mut seed = 7;
    let mut add = |file: &mut File, name: &str, dims: &[usize]| {
        let data = random(&mut seed, dims.iter().product());
        file.add_f32(name, dims, &data);
    };
    add(&mut file, "token_embd.weight", &[hidden, VOCAB]);
    for layer in 0..2 {
        let (q, kv) = (hidden, KV_HEADS * hidden / HEADS);
        for (name, dims) in [
            ("attn_norm.weight", vec![hidden]),
            ("ffn_norm.weight", vec![hidden]),
            ("attn_q.weight", vec![hidden, q]),
            ("attn_k.weight", vec![hidden, kv]),
            ("attn_v.weight", vec![hidden, kv]),
            ("attn_output.weight", vec![q, hidden]),
            ("ffn_gate.weight", vec![hidden, intermediate]),
            ("ffn_up.weight", vec![hidden, intermediate]),
            ("ffn_down.weight", vec![intermediate, hidden]),
        ] {
            add(&mut file, &format!("blk.{layer}.{name}"), &dims);
        }
        if architecture == "qwen2" {
            for (name, width) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                add(&mut file, &format!("blk.{layer}.{name}.bias"), &[width]);
            }
        }
    }
    add(&mut file, "output_norm.weight", &[hidden]);
    if traits.untied {
        add(&mut file, "output.weight", &[hidden, VOCAB]);
    }
    if traits.rope_freqs {
        file.add_f32("rope_freqs.weight", &[HEAD_DIM / 2], &[1.0, 1.0, 2.0, 8.0]);
    }
    file
}
