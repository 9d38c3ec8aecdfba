//! Decoder graphs as exporters from Python write them, at the sizes of known models or small ones, with random weights or none.
//!
//! Shapes and plans need no weight bytes: without weights the data file is announced and not made, and the model is read with
//! `ImportOptions { absent_weights: true }`. The forms follow the models' own Python code: sizes come from chains of
//! `Shape`, `Gather`, `Concat`; `expand` is the exporter's chain around `Expand`; normalisation, rotary embedding, mask and
//! attention are decomposed; the cache goes in as past and out as present.

#[path = "decoders/chat_glm.rs"]
mod chat_glm;

use std::collections::HashMap;
use std::path::Path;
use transformer_lite::error::{Error, Result, Stage};
use transformer_lite::graph::onnx::write::{Attr, ModelWriter, NodeSpec, Size, Written};
use transformer_lite::graph::op::OWN_DOMAIN;
use transformer_lite::quant::{Bits, group_size};
use transformer_lite::tensor::{DType, HostTensor, TensorError};

/// Whose code the graph follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama; the rotary embedding turns halves of a head.
    Llama,
    /// As Llama, with biases in the projections of queries, keys and values.
    Qwen,
    /// As Llama, with a scaled embedding, normalisation by `1 + w`, and a tanh-GELU in the MLP.
    Gemma,
    /// Sequence first; fused projections; the rotary embedding turns neighbours in the first half of a head.
    ChatGlm,
}

/// Sizes of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub name: &'static str,
    pub family: Family,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width between the matrices of the MLP.
    pub inner: usize,
    pub vocab: usize,
    /// Base of the rotary frequencies.
    pub theta: f32,
    pub eps: f32,
    /// The embedding is the output matrix too.
    pub tied: bool,
    /// Tokens that the device has room for in the paper's deployments: prompt and answer.
    pub context: usize,
}

/// The models of the paper's section 3.
pub const SPECS: [Spec; 5] = [
    Spec {
        name: "gemma-2b",
        family: Family::Gemma,
        layers: 18,
        hidden: 2048,
        heads: 8,
        kv_heads: 1,
        head_dim: 256,
        inner: 16_384,
        vocab: 256_000,
        theta: 1e4,
        eps: 1e-6,
        tied: true,
        context: 2304,
    },
    Spec {
        name: "qwen1.5-4b",
        family: Family::Qwen,
        layers: 40,
        hidden: 2560,
        heads: 20,
        kv_heads: 20,
        head_dim: 128,
        inner: 6912,
        vocab: 151_936,
        theta: 5e6,
        eps: 1e-6,
        tied: false,
        context: 2304,
    },
    Spec {
        name: "chatglm2-6b",
        family: Family::ChatGlm,
        layers: 28,
        hidden: 4096,
        heads: 32,
        kv_heads: 2,
        head_dim: 128,
        inner: 13_696,
        vocab: 65_024,
        theta: 1e4,
        eps: 1e-5,
        tied: false,
        context: 2304,
    },
    Spec {
        name: "llama2-7b",
        family: Family::Llama,
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 32,
        head_dim: 128,
        inner: 11_008,
        vocab: 32_000,
        theta: 1e4,
        eps: 1e-5,
        tied: false,
        context: 900,
    },
    Spec {
        name: "qwen1.5-14b",
        family: Family::Qwen,
        layers: 40,
        hidden: 5120,
        heads: 40,
        kv_heads: 40,
        head_dim: 128,
        inner: 13_696,
        vocab: 152_064,
        theta: 1e6,
        eps: 1e-6,
        tied: false,
        context: 2304,
    },
];

/// The small model that the demo runs.
pub const SMOLLM2: Spec = Spec {
    name: "smollm2-135m",
    family: Family::Llama,
    layers: 30,
    hidden: 576,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    inner: 1536,
    vocab: 49_152,
    theta: 1e5,
    eps: 1e-5,
    tied: true,
    context: 2048,
};

/// Few heads of keys and values for many of queries: what decoding behind many tokens is measured on.
pub const QWEN25: Spec = Spec {
    name: "qwen2.5-0.5b",
    family: Family::Qwen,
    layers: 24,
    hidden: 896,
    heads: 14,
    kv_heads: 2,
    head_dim: 64,
    inner: 4864,
    vocab: 151_936,
    theta: 1e6,
    eps: 1e-6,
    tied: true,
    context: 4096,
};

impl Spec {
    /// All models: the paper's and the small ones.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        SPECS.iter().chain([&SMOLLM2, &QWEN25])
    }

    /// The model of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::all().find(|s| s.name == name).cloned()
    }

    /// The same form, small: two layers, four heads of 16, the same kind of grouping.
    pub fn small(mut self) -> Self {
        self.kv_heads = match self.heads / self.kv_heads {
            1 => 4,
            g if g == self.heads => 1,
            _ => 2,
        };
        (self.layers, self.heads, self.head_dim) = (2, 4, 16);
        (self.hidden, self.inner, self.vocab, self.context) = (64, 96, 128, 64);
        self
    }
}

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As `tlite quantize` stores them: 4 bits, and 8 for embedding and output head, in groups of this size.
    E0m4(usize),
    /// Floats of this type, activations too.
    Float(DType),
}

/// Random weights of this seed, or none.
pub type Weights = Option<u64>;

/// Writes `model.onnx` into `folder`, and its data beside it where there are weights.
pub fn write(spec: &Spec, form: Form, weights: Weights, folder: &Path) -> Result<Written> {
    let out = match weights {
        Some(_) => ModelWriter::create(Stage::Convert, folder, "model.onnx", spec.name)?,
        None => ModelWriter::without_data(Stage::Convert, folder, "model.onnx", spec.name),
    };
    let float = match form {
        Form::E0m4(_) => DType::F32,
        Form::Float(dtype) => dtype,
    };
    let mut b = Builder {
        spec,
        form,
        float,
        random: Random(weights.unwrap_or(0)),
        out,
        used: HashMap::new(),
        numbers: HashMap::new(),
    };
    b.out.opset("", 17);
    if matches!(form, Form::E0m4(_)) {
        b.out.opset(OWN_DOMAIN, 1);
    }
    match spec.family {
        Family::ChatGlm => b.chat_glm()?,
        _ => b.llama()?,
    }
    b.out.finish()
}

/// Evenly distributed numbers from -1 to 1 (SplitMix64).
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn number(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

struct Builder<'a> {
    spec: &'a Spec,
    form: Form,
    /// Element type of activations.
    float: DType,
    random: Random,
    out: ModelWriter,
    /// How often an operator was used in a scope, for the exporter's names.
    used: HashMap<String, usize>,
    /// Constants by what they hold.
    numbers: HashMap<String, String>,
}

const BATCH: &str = "batch_size";
const SEQUENCE: &str = "sequence_length";
const PAST: &str = "past_sequence_length";
const TOTAL: &str = "past_sequence_length + sequence_length";

type Attrs<'a> = [(&'a str, Attr)];

/// Names of codes and scales, and the attributes of the node that reads them.
type Packed = ([String; 2], [(&'static str, Attr); 2]);

fn axis(a: i64) -> [(&'static str, Attr); 1] {
    [("axis", Attr::Int(a))]
}

fn perm(p: &[i64]) -> [(&'static str, Attr); 1] {
    [("perm", Attr::Ints(p.to_vec()))]
}

impl Builder<'_> {
    // ---- nodes and constants ----

    fn name(&mut self, op: &str, scope: &str) -> String {
        let name = format!("{scope}/{op}");
        let n = self.used.entry(name.clone()).or_insert(0);
        *n += 1;
        if *n == 1 {
            name
        } else {
            format!("{name}_{}", *n - 1)
        }
    }

    fn node_of(
        &mut self,
        domain: &str,
        op: &str,
        scope: &str,
        inputs: &[&str],
        attributes: &Attrs<'_>,
        output: Option<&str>,
    ) -> Result<String> {
        // The quantizer keeps the names of the nodes that it replaces.
        let name = self.name(op.trim_end_matches("E0M"), scope);
        let output = output.map_or_else(|| format!("{name}_output_0"), str::to_owned);
        self.out.add_node(NodeSpec {
            domain,
            op,
            name: &name,
            inputs,
            outputs: &[&output],
            attributes,
        })?;
        Ok(output)
    }

    fn node(&mut self, op: &str, scope: &str, inputs: &[&str], attributes: &Attrs<'_>) -> Result<String> {
        self.node_of("", op, scope, inputs, attributes, None)
    }

    /// A node whose result has a name of its own.
    fn node_as(
        &mut self,
        op: &str,
        scope: &str,
        inputs: &[&str],
        attributes: &Attrs<'_>,
        output: &str,
    ) -> Result<()> {
        self.node_of("", op, scope, inputs, attributes, Some(output))
            .map(|_| ())
    }

    fn constant(&mut self, key: String, tensor: Result<HostTensor, TensorError>) -> Result<String> {
        if let Some(name) = self.numbers.get(&key) {
            return Ok(name.clone());
        }
        let name = format!("onnx::constant_{}", self.numbers.len());
        let tensor = tensor.map_err(|e| Error::other(Stage::Convert, e.to_string()))?;
        self.out.add_constant(&name, &tensor)?;
        self.numbers.insert(key, name.clone());
        Ok(name)
    }

    fn ints(&mut self, values: &[i64]) -> Result<String> {
        self.constant(
            format!("{values:?}"),
            HostTensor::from_i64(&[values.len()], values),
        )
    }

    fn int(&mut self, value: i64) -> Result<String> {
        self.constant(value.to_string(), HostTensor::from_i64(&[], &[value]))
    }

    fn scalar(&mut self, value: f32) -> Result<String> {
        self.constant(
            format!("{value:e}"),
            HostTensor::from_floats(self.float, &[], &[value]),
        )
    }

    // ---- sizes ----

    /// Size `a` of `x`, a scalar.
    fn size(&mut self, scope: &str, x: &str, a: i64) -> Result<String> {
        let shape = self.node("Shape", scope, &[x], &[])?;
        let at = self.int(a)?;
        self.node("Gather", scope, &[&shape, &at], &axis(0))
    }

    /// A list of sizes, each the scalar of a name or a number.
    fn list(&mut self, scope: &str, sizes: &[Part<'_>]) -> Result<String> {
        let mut parts = Vec::new();
        for size in sizes {
            parts.push(match size {
                Part::Of(scalar) => {
                    let zero = self.ints(&[0])?;
                    self.node("Unsqueeze", scope, &[scalar, &zero], &[])?
                }
                Part::Is(n) => self.ints(&[*n])?,
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.node("Concat", scope, &parts, &axis(0))
    }

    fn view(&mut self, scope: &str, x: &str, sizes: &[Part<'_>]) -> Result<String> {
        let list = self.list(scope, sizes)?;
        self.node("Reshape", scope, &[x, &list], &[])
    }

    /// `x.expand(sizes)`, where -1 keeps a size: the chain of the exporter.
    fn expand(&mut self, scope: &str, x: &str, sizes: &[Part<'_>]) -> Result<String> {
        let list = self.list(scope, sizes)?;
        let rank = self.node("Shape", scope, &[&list], &[])?;
        let one =
            HostTensor::from_i64(&[1], &[1]).map_err(|e| Error::other(Stage::Convert, e.to_string()))?;
        let ones = self.node(
            "ConstantOfShape",
            scope,
            &[&rank],
            &[("value", Attr::Tensor(one))],
        )?;
        let minus = self.int(-1)?;
        let minus = self.node("Mul", scope, &[&ones, &minus], &[])?;
        let keeps = self.node("Equal", scope, &[&list, &minus], &[])?;
        let list = self.node("Where", scope, &[&keeps, &ones, &list], &[])?;
        self.node("Expand", scope, &[x, &list], &[])
    }

    fn unsqueeze(&mut self, scope: &str, x: &str, axes: &[i64]) -> Result<String> {
        let axes = self.ints(axes)?;
        self.node("Unsqueeze", scope, &[x, &axes], &[])
    }

    /// Elements `from .. to` along `a`.
    fn part(&mut self, scope: &str, x: &str, a: i64, from: i64, to: i64) -> Result<String> {
        let (from, to, a, step) = (
            self.ints(&[from])?,
            self.ints(&[to])?,
            self.ints(&[a])?,
            self.ints(&[1])?,
        );
        self.node("Slice", scope, &[x, &from, &to, &a, &step], &[])
    }

    /// The parts of these sizes along the last axis.
    fn split<const N: usize>(&mut self, scope: &str, x: &str, sizes: [usize; N]) -> Result<[String; N]> {
        let list: Vec<i64> = sizes.iter().map(|s| *s as i64).collect();
        let list = self.ints(&list)?;
        let name = self.name("Split", scope);
        let parts: [String; N] = std::array::from_fn(|i| format!("{name}_output_{i}"));
        let outputs: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.out.add_node(NodeSpec {
            domain: "",
            op: "Split",
            name: &name,
            inputs: &[x, &list],
            outputs: &outputs,
            attributes: &axis(-1),
        })?;
        Ok(parts)
    }

    fn cast(&mut self, scope: &str, x: &str, to: DType) -> Result<String> {
        let code = transformer_lite::graph::onnx::type_code(to);
        self.node("Cast", scope, &[x], &[("to", Attr::Int(code.into()))])
    }

    // ---- weights ----

    /// A weight in the data file: `center` and evenly distributed around it up to `spread`.
    fn weight(&mut self, name: &str, shape: &[usize], center: f32, spread: f32) -> Result<()> {
        let (float, random) = (self.float, &mut self.random);
        self.out.add_initializer_external(name, float, shape, |out| {
            let row: Vec<f32> = (0..shape.iter().product())
                .map(|_| center + spread * random.number())
                .collect();
            let tensor = HostTensor::from_floats(float, shape, &row)
                .map_err(|e| Error::other(Stage::Convert, e.to_string()))?;
            out.write(
                tensor
                    .bytes()
                    .map_err(|e| Error::other(Stage::Convert, e.to_string()))?,
            )
        })
    }

    /// The operands of a packed `k` x `n` matrix and the attributes of the node that reads them.
    fn packed(&mut self, name: &str, k: usize, n: usize, bits: Bits, asked: usize) -> Result<Packed> {
        let group = group_size(asked, k);
        let names = [format!("{name}.codes"), format!("{name}.scales")];
        let random = &mut self.random;
        let shape = [bits.rows(k), n];
        self.out
            .add_initializer_external(&names[0], DType::U32, &shape, |out| {
                for _ in 0..shape[0] * shape[1] {
                    out.write(&(random.word() as u32).to_le_bytes())?;
                }
                Ok(())
            })?;
        let shape = [k.div_ceil(group), n, 2];
        let scale = 1.0 / (k as f32).sqrt();
        self.out
            .add_initializer_external(&names[1], DType::F16, &shape, |out| {
                // Codes are from 2 to 4: weights are from -scale to scale.
                let pair = [half::f16::from_f32(scale), half::f16::from_f32(3.0)];
                let bytes: Vec<u8> = pair.iter().flat_map(|h| h.to_le_bytes()).collect();
                for _ in 0..shape[0] * shape[1] {
                    out.write(&bytes)?;
                }
                Ok(())
            })?;
        let attributes = [
            ("bits", Attr::Int(bits.count().into())),
            ("group_size", Attr::Int(group as i64)),
        ];
        Ok((names, attributes))
    }

    /// `x` times a `k` x `n` matrix, with a bias if asked for.
    fn linear(&mut self, scope: &str, name: &str, x: &str, [k, n]: [usize; 2], bias: bool) -> Result<String> {
        let product = self.product(scope, &format!("{name}.weight"), x, [k, n], Bits::Four, None)?;
        if !bias {
            return Ok(product);
        }
        let bias = format!("{name}.bias");
        self.weight(&bias, &[n], 0.0, 0.1)?;
        self.node("Add", scope, &[&bias, &product], &[])
    }

    fn product(
        &mut self,
        scope: &str,
        weight: &str,
        x: &str,
        [k, n]: [usize; 2],
        bits: Bits,
        output: Option<&str>,
    ) -> Result<String> {
        match self.form {
            Form::E0m4(asked) => {
                let ([codes, scales], attributes) = self.packed(weight, k, n, bits, asked)?;
                let operands = [x, &codes, &scales];
                self.node_of(OWN_DOMAIN, "MatMulE0M", scope, &operands, &attributes, output)
            }
            Form::Float(_) => {
                self.weight(weight, &[k, n], 0.0, 1.0 / (k as f32).sqrt())?;
                self.node_of("", "MatMul", scope, &[x, weight], &[], output)
            }
        }
    }

    /// Rows of the embedding for `ids`.
    fn embed(&mut self, scope: &str, weight: &str, ids: &str) -> Result<String> {
        let (vocab, hidden) = (self.spec.vocab, self.spec.hidden);
        match self.form {
            Form::E0m4(asked) => {
                let ([codes, scales], attributes) = self.packed(weight, hidden, vocab, Bits::Eight, asked)?;
                let operands = [ids, &codes, &scales];
                self.node_of(OWN_DOMAIN, "GatherE0M", scope, &operands, &attributes, None)
            }
            Form::Float(_) => {
                self.weight(weight, &[vocab, hidden], 0.0, 1.0)?;
                self.node("Gather", scope, &[weight, ids], &[])
            }
        }
    }

    /// The product with the output matrix.
    fn head(&mut self, scope: &str, embedding: &str, x: &str, output: Option<&str>) -> Result<String> {
        let size = [self.spec.hidden, self.spec.vocab];
        if !self.spec.tied {
            return self.product(scope, "lm_head.weight", x, size, Bits::Eight, output);
        }
        match self.form {
            Form::E0m4(asked) => {
                let attributes = [
                    ("bits", Attr::Int(8)),
                    ("group_size", Attr::Int(group_size(asked, size[0]) as i64)),
                ];
                let (codes, scales) = (format!("{embedding}.codes"), format!("{embedding}.scales"));
                let operands = [x, codes.as_str(), scales.as_str()];
                self.node_of(OWN_DOMAIN, "MatMulE0M", scope, &operands, &attributes, output)
            }
            Form::Float(_) => {
                let turned = self.node("Transpose", scope, &[embedding], &perm(&[1, 0]))?;
                self.node_of("", "MatMul", scope, &[x, &turned], &[], output)
            }
        }
    }

    // ---- what all families share ----

    /// Root mean square normalisation.
    fn norm(&mut self, scope: &str, name: &str, x: &str) -> Result<String> {
        let weight = format!("{name}.weight");
        let gemma = self.spec.family == Family::Gemma;
        self.weight(&weight, &[self.spec.hidden], if gemma { 0.0 } else { 1.0 }, 0.1)?;
        let two = self.scalar(2.0)?;
        let square = self.node("Pow", scope, &[x, &two], &[])?;
        let attributes = [("axes", Attr::Ints(vec![-1])), ("keepdims", Attr::Int(1))];
        let mean = self.node("ReduceMean", scope, &[&square], &attributes)?;
        let eps = self.scalar(self.spec.eps)?;
        let sum = self.node("Add", scope, &[&mean, &eps], &[])?;
        let root = self.node("Sqrt", scope, &[&sum], &[])?;
        let one = self.scalar(1.0)?;
        let inverse = self.node("Div", scope, &[&one, &root], &[])?;
        let scaled = self.node("Mul", scope, &[x, &inverse], &[])?;
        if gemma {
            let weight = self.node("Add", scope, &[&weight, &one], &[])?;
            return self.node("Mul", scope, &[&scaled, &weight], &[]);
        }
        self.node("Mul", scope, &[&weight, &scaled], &[])
    }

    fn inputs(&mut self) -> Result<()> {
        let ids = [BATCH.into(), SEQUENCE.into()];
        self.out.add_input("input_ids", DType::I64, &ids)?;
        self.out
            .add_input("attention_mask", DType::I64, &[BATCH.into(), TOTAL.into()])?;
        self.out.add_input("position_ids", DType::I64, &ids)?;
        let (float, vocab) = (self.float, self.spec.vocab);
        self.out
            .add_output("logits", float, &[BATCH.into(), SEQUENCE.into(), vocab.into()])
    }

    fn caches(&mut self, shape: impl Fn(&str) -> [Size; 4]) -> Result<()> {
        for layer in 0..self.spec.layers {
            for part in ["key", "value"] {
                let (past, present) = (
                    format!("past_key_values.{layer}.{part}"),
                    format!("present.{layer}.{part}"),
                );
                self.out.add_input(&past, self.float, &shape(PAST))?;
                self.out.add_output(&present, self.float, &shape(TOTAL))?;
            }
        }
        Ok(())
    }

    /// 0 where a query sees a key, the lowest number elsewhere: `[batch, 1, sequence, total]`. `past` is a scalar.
    fn mask(&mut self, scope: &str, past: &str) -> Result<String> {
        let batch = self.size(scope, "input_ids", 0)?;
        let sequence = self.size(scope, "input_ids", 1)?;
        let total = self.node("Add", scope, &[past, &sequence], &[])?;
        let (zero, one) = (self.int(0)?, self.int(1)?);
        let keys = self.node("Range", scope, &[&zero, &total, &one], &[])?;
        let queries = self.node("Range", scope, &[past, &total, &one], &[])?;
        let column = self.ints(&[-1, 1])?;
        let queries = self.node("Reshape", scope, &[&queries, &column], &[])?;
        let later = self.node("Greater", scope, &[&keys, &queries], &[])?;
        let lowest = if self.float == DType::F16 {
            -65504.0
        } else {
            f32::MIN
        };
        let (lowest, seen) = (self.scalar(lowest)?, self.scalar(0.0)?);
        let causal = self.node("Where", scope, &[&later, &lowest, &seen], &[])?;
        let causal = self.unsqueeze(scope, &causal, &[0, 1])?;
        let causal = self.expand(
            scope,
            &causal,
            &[Part::Of(&batch), Part::Is(1), Part::Is(-1), Part::Is(-1)],
        )?;
        let padding = self.unsqueeze(scope, "attention_mask", &[1, 2])?;
        let padding = self.cast(scope, &padding, self.float)?;
        let sum = self.node("Add", scope, &[&causal, &padding], &[])?;
        let hidden = self.node("Equal", scope, &[&sum, &seen], &[])?;
        self.node("Where", scope, &[&hidden, &lowest, &causal], &[])
    }

    // ---- Llama, Qwen, Gemma ----

    fn llama(&mut self) -> Result<()> {
        let s = self.spec;
        self.inputs()?;
        self.caches(|length| [BATCH.into(), s.kv_heads.into(), length.into(), s.head_dim.into()])?;
        let embedding = "model.embed_tokens.weight";
        let mut x = self.embed("/model/embed_tokens", embedding, "input_ids")?;
        let past = self.size("/model", "past_key_values.0.key", 2)?;
        let mask = self.mask("/model", &past)?;
        let angles = self.angles("/model/rotary_emb")?;
        if s.family == Family::Gemma {
            let scale = self.scalar((s.hidden as f32).sqrt())?;
            x = self.node("Mul", "/model", &[&x, &scale], &[])?;
        }
        for layer in 0..s.layers {
            let (name, scope) = (format!("model.layers.{layer}"), format!("/model/layers.{layer}"));
            let normed = self.norm(
                &format!("{scope}/input_layernorm"),
                &format!("{name}.input_layernorm"),
                &x,
            )?;
            let mixed = self.attention(layer, &normed, &mask, &angles)?;
            x = self.node("Add", &scope, &[&x, &mixed], &[])?;
            let after = "post_attention_layernorm";
            let normed = self.norm(&format!("{scope}/{after}"), &format!("{name}.{after}"), &x)?;
            let mlp = self.mlp(&format!("{scope}/mlp"), &format!("{name}.mlp"), &normed)?;
            x = self.node("Add", &scope, &[&x, &mlp], &[])?;
        }
        let x = self.norm("/model/norm", "model.norm", &x)?;
        self.head("/lm_head", embedding, &x, Some("logits")).map(|_| ())
    }

    /// Cosines and sines of the positions' angles, `[batch, sequence, head_dim]` with an axis of 1 for the heads.
    fn angles(&mut self, scope: &str) -> Result<[String; 2]> {
        let frequencies = self.frequencies(self.spec.head_dim);
        let shape = [1, frequencies.len(), 1];
        let frequencies = self.constant("inv_freq".to_owned(), HostTensor::from_f32(&shape, &frequencies))?;
        let batch = self.size(scope, "position_ids", 0)?;
        let frequencies = self.expand(
            scope,
            &frequencies,
            &[Part::Of(&batch), Part::Is(-1), Part::Is(1)],
        )?;
        let positions = self.unsqueeze(scope, "position_ids", &[1])?;
        let positions = self.cast(scope, &positions, DType::F32)?;
        let angles = self.node("MatMul", scope, &[&frequencies, &positions], &[])?;
        let angles = self.node("Transpose", scope, &[&angles], &perm(&[0, 2, 1]))?;
        let angles = self.node("Concat", scope, &[&angles, &angles], &axis(-1))?;
        let mut out = [String::new(), String::new()];
        for (out, op) in out.iter_mut().zip(["Cos", "Sin"]) {
            let mut v = self.node(op, scope, &[&angles], &[])?;
            if self.float != DType::F32 {
                v = self.cast(scope, &v, self.float)?;
            }
            *out = self.unsqueeze(scope, &v, &[1])?;
        }
        Ok(out)
    }

    fn frequencies(&self, dim: usize) -> Vec<f32> {
        (0..dim / 2)
            .map(|i| 1.0 / self.spec.theta.powf(2.0 * i as f32 / dim as f32))
            .collect()
    }

    /// `x * cos + rotate_half(x) * sin` over `[batch, heads, sequence, head_dim]`.
    fn rotate(&mut self, scope: &str, x: &str, [cos, sin]: &[String; 2]) -> Result<String> {
        let plain = self.node("Mul", scope, &[x, cos], &[])?;
        // `x.shape[-1] // 2`, as the exporter writes it.
        let mut half = || -> Result<String> {
            let width = self.size(scope, x, 3)?;
            let two = self.int(2)?;
            let half = self.node("Div", scope, &[&width, &two], &[])?;
            let half = self.cast(scope, &half, DType::I64)?;
            self.unsqueeze(scope, &half, &[0])
        };
        let (first, second) = (half()?, half()?);
        let (zero, end, last, one) = (
            self.ints(&[0])?,
            self.ints(&[i64::MAX])?,
            self.ints(&[3])?,
            self.ints(&[1])?,
        );
        let low = self.node("Slice", scope, &[x, &zero, &first, &last, &one], &[])?;
        let high = self.node("Slice", scope, &[x, &second, &end, &last, &one], &[])?;
        let high = self.node("Neg", scope, &[&high], &[])?;
        let turned = self.node("Concat", scope, &[&high, &low], &axis(-1))?;
        let turned = self.node("Mul", scope, &[&turned, sin], &[])?;
        self.node("Add", scope, &[&plain, &turned], &[])
    }

    fn attention(&mut self, layer: usize, x: &str, mask: &str, angles: &[String; 2]) -> Result<String> {
        let s = self.spec;
        let (name, scope) = (
            format!("model.layers.{layer}.self_attn"),
            format!("/model/layers.{layer}/self_attn"),
        );
        let scope = scope.as_str();
        let dim = s.head_dim;
        let bias = s.family == Family::Qwen;
        let (batch, sequence) = (self.size(scope, x, 0)?, self.size(scope, x, 1)?);
        let mut heads = |part: &str, heads: usize| -> Result<String> {
            let v = self.linear(
                &format!("{scope}/{part}"),
                &format!("{name}.{part}"),
                x,
                [s.hidden, heads * dim],
                bias,
            )?;
            let sizes = [
                Part::Of(&batch),
                Part::Of(&sequence),
                Part::Is(heads as i64),
                Part::Is(dim as i64),
            ];
            let v = self.view(scope, &v, &sizes)?;
            self.node("Transpose", scope, &[&v], &perm(&[0, 2, 1, 3]))
        };
        let (q, k, v) = (
            heads("q_proj", s.heads)?,
            heads("k_proj", s.kv_heads)?,
            heads("v_proj", s.kv_heads)?,
        );
        let (q, k) = (self.rotate(scope, &q, angles)?, self.rotate(scope, &k, angles)?);
        let mut whole = Vec::new();
        for (part, new) in [("key", &k), ("value", &v)] {
            let (past, present) = (
                format!("past_key_values.{layer}.{part}"),
                format!("present.{layer}.{part}"),
            );
            self.node_as("Concat", scope, &[&past, new], &axis(-2), &present)?;
            whole.push(self.repeat(scope, present)?);
        }
        let (k, v) = (&whole[0], &whole[1]);
        let turned = self.node("Transpose", scope, &[k], &perm(&[0, 1, 3, 2]))?;
        let scores = self.node("MatMul", scope, &[&q, &turned], &[])?;
        let root = self.scalar((dim as f32).sqrt())?;
        let scores = self.node("Div", scope, &[&scores, &root], &[])?;
        let total = self.size(scope, k, 2)?;
        let total = self.unsqueeze(scope, &total, &[0])?;
        let (zero, last, one) = (self.ints(&[0])?, self.ints(&[3])?, self.ints(&[1])?);
        let mask = self.node("Slice", scope, &[mask, &zero, &total, &last, &one], &[])?;
        let scores = self.node("Add", scope, &[&scores, &mask], &[])?;
        let weights = self.node("Softmax", scope, &[&scores], &axis(-1))?;
        let mixed = self.node("MatMul", scope, &[&weights, v], &[])?;
        let mixed = self.node("Transpose", scope, &[&mixed], &perm(&[0, 2, 1, 3]))?;
        let width = (s.heads * dim) as i64;
        let mixed = self.view(
            scope,
            &mixed,
            &[Part::Of(&batch), Part::Of(&sequence), Part::Is(width)],
        )?;
        let out = format!("{scope}/o_proj");
        self.linear(
            &out,
            &format!("{name}.o_proj"),
            &mixed,
            [s.heads * dim, s.hidden],
            false,
        )
    }

    /// Keys or values `[batch, kv_heads, total, head_dim]` once for each query head.
    fn repeat(&mut self, scope: &str, x: String) -> Result<String> {
        let s = self.spec;
        let times = s.heads / s.kv_heads;
        if times == 1 {
            return Ok(x);
        }
        let sizes: Vec<String> = (0..4).map(|a| self.size(scope, &x, a)).collect::<Result<_>>()?;
        let of = |i: usize| Part::Of(&sizes[i]);
        let wide = self.unsqueeze(scope, &x, &[2])?;
        let wide = self.expand(
            scope,
            &wide,
            &[of(0), of(1), Part::Is(times as i64), of(2), of(3)],
        )?;
        let times = self.int(times as i64)?;
        let heads = self.node("Mul", scope, &[&sizes[1], &times], &[])?;
        self.view(scope, &wide, &[of(0), Part::Of(&heads), of(2), of(3)])
    }

    fn mlp(&mut self, scope: &str, name: &str, x: &str) -> Result<String> {
        let s = self.spec;
        let mut linear = |part: &str, x: &str, size| {
            self.linear(
                &format!("{scope}/{part}"),
                &format!("{name}.{part}"),
                x,
                size,
                false,
            )
        };
        let gate = linear("gate_proj", x, [s.hidden, s.inner])?;
        let up = linear("up_proj", x, [s.hidden, s.inner])?;
        let act = format!("{scope}/act_fn");
        let gate = if s.family == Family::Gemma {
            self.gelu(&act, &gate)?
        } else {
            let sigmoid = self.node("Sigmoid", &act, &[&gate], &[])?;
            self.node("Mul", &act, &[&gate, &sigmoid], &[])?
        };
        let gated = self.node("Mul", scope, &[&gate, &up], &[])?;
        let down = format!("{scope}/down_proj");
        self.linear(
            &down,
            &format!("{name}.down_proj"),
            &gated,
            [s.inner, s.hidden],
            false,
        )
    }

    /// The tanh form of GELU.
    fn gelu(&mut self, scope: &str, x: &str) -> Result<String> {
        let square = self.node("Mul", scope, &[x, x], &[])?;
        let cube = self.node("Mul", scope, &[x, &square], &[])?;
        let (kappa, beta) = (self.scalar(0.044_715)?, self.scalar(0.797_884_6)?);
        let (one, half) = (self.scalar(1.0)?, self.scalar(0.5)?);
        let inner = self.node("Mul", scope, &[&kappa, &cube], &[])?;
        let inner = self.node("Add", scope, &[x, &inner], &[])?;
        let inner = self.node("Mul", scope, &[&beta, &inner], &[])?;
        let tanh = self.node("Tanh", scope, &[&inner], &[])?;
        let sum = self.node("Add", scope, &[&one, &tanh], &[])?;
        let product = self.node("Mul", scope, &[x, &sum], &[])?;
        self.node("Mul", scope, &[&half, &product], &[])
    }
}

/// An element of a list of sizes.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// The scalar of this name.
    Of(&'a str),
    /// A number.
    Is(i64),
}
