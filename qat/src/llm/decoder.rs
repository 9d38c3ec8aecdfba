//! A decoder in `burn` tensors, for whole sequences. Weights and sizes are read from a float folder
//! by the names that `tlite convert` gives them.

use crate::error::{Error, Result};
use crate::run::MODEL;
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::decode;
use transformer_lite::unstable::graph::onnx::proto::TensorProto;
use transformer_lite::unstable::graph::onnx::weights::Weights;

/// Operators of graphs that this module computes.
const OPERATORS: [&str; 24] = [
    "Add",
    "And",
    "Cast",
    "Concat",
    "Cos",
    "Gather",
    "LessOrEqual",
    "MatMul",
    "Mul",
    "Neg",
    "Pow",
    "Range",
    "Reciprocal",
    "ReduceMean",
    "Reshape",
    "Shape",
    "Sigmoid",
    "Sin",
    "Slice",
    "Softmax",
    "Sqrt",
    "Transpose",
    "Unsqueeze",
    "Where",
];
/// Constants that have the same value in all models of the supported families.
const CONSTANTS: [&str; 17] = [
    "/model/constants/axis_2",
    "/model/constants/axis_3",
    "/model/constants/end",
    "/model/constants/groups",
    "/model/constants/half_head",
    "/model/constants/last_axis",
    "/model/constants/merged_groups",
    "/model/constants/merged_heads",
    "/model/constants/one",
    "/model/constants/two",
    "/model/constants/zero",
    "/model/mask/masked",
    "/model/mask/one",
    "/model/mask/outer_axes",
    "/model/mask/two",
    "/model/mask/visible",
    "/model/mask/zero",
];
/// Added to the scores of tokens that come later.
const HIDDEN: f32 = -1e30;

/// How a weight is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Embedding, `[vocab, hidden]`; also the output head if the model has no other.
    Table,
    /// `[inputs, outputs]`; the output head or another matrix.
    Matrix {
        head: bool,
    },
    Vector,
}

/// A weight that is trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub kind: Kind,
    /// Rows and columns; a vector is a row.
    pub shape: [usize; 2],
}

/// Indices of a matrix and its bias among the parameters.
#[derive(Clone, Copy, Debug)]
struct Linear {
    weight: usize,
    bias: Option<usize>,
}

#[derive(Clone, Debug)]
struct Layer {
    norms: [usize; 2],
    /// Queries, keys, values.
    qkv: [Linear; 3],
    /// Norms of the heads of queries and keys.
    heads: Option<[usize; 2]>,
    o: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// The structure of a decoder.
#[derive(Clone, Debug)]
pub struct Decoder {
    pub path: PathBuf,
    pub parameters: Vec<Parameter>,
    pub vocab: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    eps: f32,
    /// Multiplies the scores of attention.
    scale: f32,
    /// Multiplies cosines and sines.
    magnitude: f32,
    frequencies: Vec<f32>,
    layers: Vec<Layer>,
    table: usize,
    norm: usize,
    head: Option<usize>,
}

/// The values of all parameters, in order.
pub type Values = Vec<Vec<f32>>;

/// What all sequences of a length share: cosines and sines of the rotary angles, and the mask.
#[derive(Clone, Debug)]
pub struct Positions {
    cos: Tensor<4>,
    sin: Tensor<4>,
    mask: Tensor<4>,
}

/// Initializers by name; those that were read are removed.
struct Reader<'a> {
    path: &'a Path,
    left: BTreeMap<String, TensorProto>,
    weights: Weights,
    parameters: Vec<Parameter>,
    values: Values,
}

impl Reader<'_> {
    fn bad(&self, what: impl Into<String>) -> Error {
        Error::model(self.path, what)
    }

    /// Shape and elements; `None` if there is no such initializer.
    fn take(&mut self, name: &str) -> Result<Option<(Vec<usize>, Vec<f32>)>> {
        let Some(proto) = self.left.remove(name) else {
            return Ok(None);
        };
        let tensor = self.weights.tensor(&proto)?;
        let values: Vec<f32> = match tensor.dtype().is_float() {
            true => tensor.to_f32()?.into_owned(),
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            false => tensor.to_i64()?.iter().map(|v| *v as f32).collect(),
        };
        Ok(Some((tensor.shape().to_vec(), values)))
    }

    fn need(&mut self, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
        let found = self.take(name)?;
        found.ok_or_else(|| {
            self.bad(format!(
                "there is no weight \"{name}\"; expected a float model that `tlite convert` wrote, of the \
                 families llama, mistral, qwen2 or qwen3"
            ))
        })
    }

    fn scalar(&mut self, name: &str) -> Result<f32> {
        match self.need(name)?.1.as_slice() {
            [v] => Ok(*v),
            list => Err(self.bad(format!(
                "constant \"{name}\": expected 1 number, found {}",
                list.len()
            ))),
        }
    }

    /// Number of heads and their width, from the shape to which queries or keys are reshaped.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole numbers"
    )]
    fn heads(&mut self, name: &str) -> Result<[usize; 2]> {
        match self.need(name)?.1.as_slice() {
            [_, _, heads, width] if *heads >= 1.0 && *width >= 2.0 => Ok([*heads as usize, *width as usize]),
            list => Err(self.bad(format!(
                "constant \"{name}\": expected 0, 0, heads, width, found {list:?}"
            ))),
        }
    }

    fn add(
        &mut self,
        name: &str,
        kind: Kind,
        shape: [usize; 2],
        found: (Vec<usize>, Vec<f32>),
    ) -> Result<usize> {
        let expected = if kind == Kind::Vector {
            &shape[1..]
        } else {
            &shape[..]
        };
        if found.0 != expected {
            return Err(self.bad(format!(
                "weight \"{name}\": expected shape {expected:?}, found {:?}",
                found.0
            )));
        }
        if let Some(v) = found.1.iter().find(|v| !v.is_finite()) {
            return Err(self.bad(format!("weight \"{name}\": expected finite numbers, found {v}")));
        }
        self.parameters.push(Parameter {
            name: name.to_owned(),
            kind,
            shape,
        });
        self.values.push(found.1);
        Ok(self.parameters.len() - 1)
    }

    fn vector(&mut self, name: &str, width: usize) -> Result<usize> {
        let found = self.need(name)?;
        self.add(name, Kind::Vector, [1, width], found)
    }

    fn linear(&mut self, scope: &str, shape: [usize; 2]) -> Result<Linear> {
        let (weight, bias) = (format!("{scope}.weight"), format!("{scope}.bias"));
        let found = self.need(&weight)?;
        let weight = self.add(&weight, Kind::Matrix { head: false }, shape, found)?;
        let bias = match self.take(&bias)? {
            Some(found) => Some(self.add(&bias, Kind::Vector, [1, shape[1]], found)?),
            None => None,
        };
        Ok(Linear { weight, bias })
    }
}

impl Decoder {
    /// Reads the model in a folder. An error for a model that this module does not compute.
    pub fn open(folder: &Path) -> Result<(Self, Values)> {
        let path = &folder.join(MODEL);
        let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
        let model = decode::model(Stage::Import, path, &bytes)?;
        let graph = model.graph.unwrap_or_default();
        let own = |n: &&transformer_lite::unstable::graph::onnx::proto::NodeProto| {
            !n.domain.is_empty() || !OPERATORS.contains(&n.op_type.as_str())
        };
        if let Some(n) = graph.node.iter().find(own) {
            let what = if n.op_type.ends_with("E0M") {
                "the model is quantized; convert its source with `tlite convert --float`, or use `tlite dequantize` first"
            } else {
                "the operator is not one of a decoder of the families llama, mistral, qwen2 or qwen3"
            };
            return Err(Error::Untrainable {
                path: path.clone(),
                op: n.op_type.clone(),
                node: n.name.clone(),
                reason: what.to_owned(),
            });
        }
        let left = graph
            .initializer
            .into_iter()
            .map(|t| (t.name.clone(), t))
            .collect();
        let (parameters, values) = (Vec::new(), Vec::new());
        let mut r = Reader {
            path,
            left,
            weights: Weights::new(path),
            parameters,
            values,
        };
        let decoder = Self::read(&mut r)?;
        r.left.retain(|name, _| !CONSTANTS.contains(&name.as_str()));
        if let Some(name) = r.left.keys().next() {
            return Err(r.bad(format!(
                "the weight \"{name}\" is not one of a decoder of the families llama, mistral, qwen2 or qwen3"
            )));
        }
        Ok((
            Self {
                parameters: r.parameters,
                ..decoder
            },
            r.values,
        ))
    }

    fn read(r: &mut Reader<'_>) -> Result<Self> {
        let [heads, head_dim] = r.heads("/model/constants/query_heads")?;
        let [kv_heads, key_dim] = r.heads("/model/constants/key_heads")?;
        let (eps, scale) = (
            r.scalar("/model/constants/eps")?,
            r.scalar("/model/constants/scale")?,
        );
        let frequencies = r.need("model.rotary_emb.inv_freq")?.1;
        let magnitude = r.take("/model/rotary_emb/magnitude")?;
        let magnitude = magnitude.and_then(|(_, v)| v.first().copied()).unwrap_or(1.0);
        if !heads.is_multiple_of(kv_heads) || key_dim != head_dim || 2 * frequencies.len() != head_dim {
            return Err(r.bad(format!(
                "{heads} heads of {head_dim}, {kv_heads} key heads of {key_dim} and {} rotary frequencies do not fit",
                frequencies.len()
            )));
        }
        let name = "model.embed_tokens.weight";
        let found = r.need(name)?;
        let &[vocab, hidden] = found.0.as_slice() else {
            return Err(r.bad(format!("weight \"{name}\": expected 2 axes, found {:?}", found.0)));
        };
        let table = r.add(name, Kind::Table, [vocab, hidden], found)?;
        let mut layers = Vec::new();
        while r
            .left
            .contains_key(&format!("model.layers.{}.input_layernorm.weight", layers.len()))
        {
            let scope = format!("model.layers.{}", layers.len());
            let at = |name: &str| format!("{scope}.{name}");
            let width = |r: &Reader<'_>, name: &str| {
                let dims = r.left.get(&at(name)).map(|t| t.dims.clone()).unwrap_or_default();
                dims.get(1).and_then(|n| usize::try_from(*n).ok()).unwrap_or(0)
            };
            let inner = width(r, "mlp.up_proj.weight");
            let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
            let norms = [
                r.vector(&at("input_layernorm.weight"), hidden)?,
                r.vector(&at("post_attention_layernorm.weight"), hidden)?,
            ];
            let qkv = [
                r.linear(&at("self_attn.q_proj"), [hidden, queries])?,
                r.linear(&at("self_attn.k_proj"), [hidden, keys])?,
                r.linear(&at("self_attn.v_proj"), [hidden, keys])?,
            ];
            let normed = r.left.contains_key(&at("self_attn.q_norm.weight"));
            let heads = match normed {
                true => Some([
                    r.vector(&at("self_attn.q_norm.weight"), head_dim)?,
                    r.vector(&at("self_attn.k_norm.weight"), head_dim)?,
                ]),
                false => None,
            };
            layers.push(Layer {
                norms,
                qkv,
                heads,
                o: r.linear(&at("self_attn.o_proj"), [queries, hidden])?,
                gate: r.linear(&at("mlp.gate_proj"), [hidden, inner])?,
                up: r.linear(&at("mlp.up_proj"), [hidden, inner])?,
                down: r.linear(&at("mlp.down_proj"), [inner, hidden])?,
            });
        }
        let norm = r.vector("model.norm.weight", hidden)?;
        let head = match r.take("lm_head.weight")? {
            Some(found) => Some(r.add(
                "lm_head.weight",
                Kind::Matrix { head: true },
                [hidden, vocab],
                found,
            )?),
            None => None,
        };
        Ok(Self {
            path: r.path.to_owned(),
            parameters: Vec::new(),
            vocab,
            heads,
            kv_heads,
            head_dim,
            eps,
            scale,
            magnitude,
            frequencies,
            layers,
            table,
            norm,
            head,
        })
    }

    /// Angles and mask of sequences of `length` tokens.
    #[expect(clippy::cast_precision_loss, reason = "positions")]
    pub fn positions(&self, length: usize, device: &Device) -> Positions {
        let angles = |f: fn(f32) -> f32| {
            let row = |p: usize| {
                let both = self.frequencies.iter().chain(&self.frequencies);
                both.map(move |w| self.magnitude * f(p as f32 * w))
            };
            let all: Vec<f32> = (0..length).flat_map(row).collect();
            Tensor::from_data(TensorData::new(all, [1, length, 1, self.head_dim]), device)
        };
        let hidden = |i: usize| if i % length > i / length { HIDDEN } else { 0.0 };
        let mask: Vec<f32> = (0..length * length).map(hidden).collect();
        Positions {
            cos: angles(f32::cos),
            sin: angles(f32::sin),
            mask: Tensor::from_data(TensorData::new(mask, [1, 1, length, length]), device),
        }
    }

    /// The logits `[batch * length, vocab]` after each token of sequences of the length of
    /// `positions`. `weights` are those of the parameters, and tokens are less than the vocabulary.
    pub fn forward(&self, weights: &[Tensor<2>], tokens: Tensor<1, Int>, positions: &Positions) -> Tensor<2> {
        let pass = Pass {
            decoder: self,
            weights,
            positions,
        };
        let mut x = pass.weight(self.table).select(0, tokens);
        for layer in &self.layers {
            let attention = pass.attention(layer, pass.norm(x.clone(), layer.norms[0]));
            x = x + attention;
            let normed = pass.norm(x.clone(), layer.norms[1]);
            let gate = silu(pass.linear(normed.clone(), layer.gate));
            let inner = gate * pass.linear(normed, layer.up);
            x = x + pass.linear(inner, layer.down);
        }
        let x = pass.norm(x, self.norm);
        match self.head {
            Some(head) => x.matmul(pass.weight(head)),
            None => x.matmul(pass.weight(self.table).transpose()),
        }
    }
}

/// A forward pass.
struct Pass<'a> {
    decoder: &'a Decoder,
    weights: &'a [Tensor<2>],
    positions: &'a Positions,
}

impl Pass<'_> {
    /// A weight; parameters and weights have the same order.
    fn weight(&self, i: usize) -> Tensor<2> {
        #[expect(clippy::indexing_slicing, reason = "one weight for each parameter")]
        self.weights[i].clone()
    }

    fn normed<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let mean = x.clone().square().mean_dim(D - 1);
        x * mean.add_scalar(self.decoder.eps).sqrt().recip()
    }

    fn norm(&self, x: Tensor<2>, weight: usize) -> Tensor<2> {
        self.normed(x) * self.weight(weight)
    }

    fn linear(&self, x: Tensor<2>, linear: Linear) -> Tensor<2> {
        let product = x.matmul(self.weight(linear.weight));
        match linear.bias {
            Some(bias) => product + self.weight(bias),
            None => product,
        }
    }

    /// Rotates the halves of heads by the angles of their positions.
    fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let width = self.decoder.head_dim;
        let [lower, upper] =
            [(0, width / 2), (width / 2, width / 2)].map(|(from, n)| x.clone().narrow(3, from, n));
        let turned = Tensor::cat(vec![upper.neg(), lower], 3);
        x * self.positions.cos.clone() + turned * self.positions.sin.clone()
    }

    fn attention(&self, layer: &Layer, x: Tensor<2>) -> Tensor<2> {
        let d = self.decoder;
        let length = self.positions.mask.dims()[2];
        let batch = x.dims()[0] / length;
        let [mut q, mut k, v] = layer.qkv.map(|l| {
            let y = self.linear(x.clone(), l);
            let heads = y.dims()[1] / d.head_dim;
            y.reshape([batch, length, heads, d.head_dim])
        });
        if let Some([of_q, of_k]) = layer.heads {
            let weight = |i: usize| self.weight(i).reshape([1, 1, 1, d.head_dim]);
            q = self.normed(q) * weight(of_q);
            k = self.normed(k) * weight(of_k);
        }
        // Query heads that share a key head form one matrix.
        let grouped = [batch, d.kv_heads, d.heads / d.kv_heads * length, d.head_dim];
        let q = self.rotate(q).swap_dims(1, 2).reshape(grouped);
        let k = self.rotate(k).swap_dims(1, 2);
        let v = v.swap_dims(1, 2);
        let scores = q.matmul(k.swap_dims(2, 3)).mul_scalar(d.scale);
        let scores = scores.reshape([batch, d.heads, length, length]) + self.positions.mask.clone();
        let shares = softmax(scores, 3).reshape([batch, d.kv_heads, grouped[2], length]);
        let mixed = shares.matmul(v).reshape([batch, d.heads, length, d.head_dim]);
        let mixed = mixed
            .swap_dims(1, 2)
            .reshape([batch * length, d.heads * d.head_dim]);
        self.linear(mixed, layer.o)
    }
}

/// Parameters on a device.
pub fn tensors(parameters: &[Parameter], values: &[Vec<f32>], device: &Device) -> Vec<Tensor<2>> {
    let tensor =
        |(p, v): (&Parameter, &Vec<f32>)| Tensor::from_data(TensorData::new(v.clone(), p.shape), device);
    parameters.iter().zip(values).map(tensor).collect()
}

/// Tokens of sequences on a device, one sequence after the other.
pub fn tokens(sequences: &[&[u32]], device: &Device) -> Tensor<1, Int> {
    let all: Vec<i64> = sequences
        .iter()
        .copied()
        .flatten()
        .map(|t| i64::from(*t))
        .collect();
    let count = all.len();
    Tensor::from_data(TensorData::new(all, [count]), device)
}
