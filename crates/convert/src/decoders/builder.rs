//! Building blocks of the graphs of all families: constants, size computations, weights, and parts
//! that decoders share.

use super::{Family, Form, Spec};
use crate::builder::{Builder, Packed, axis, module, perm};
use Length::{Is, Of};
use std::collections::HashMap;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::{type_code, write::Attr};
use transformer_lite::unstable::num::signed;
use transformer_lite::unstable::quant::{Bits, group_size};
use transformer_lite::unstable::tensor::{DType, HostTensor, TensorError};

/// Uniform numbers from -1 to 1 (SplitMix64).
pub(super) struct Random(pub u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn number(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// A known model, as the source of a graph with random weights or none.
pub(super) struct Exporter<'a> {
    pub spec: &'a Spec,
    pub form: Form,
    pub float: DType,
    pub random: Random,
    /// Constants by value.
    pub numbers: HashMap<String, String>,
}

impl Builder<Exporter<'_>> {
    // ---- constants ----

    /// The constant of this key, which all nodes that need it share.
    pub(super) fn shared(&mut self, key: String, tensor: Result<HostTensor, TensorError>) -> Result<String> {
        if let Some(name) = self.source.numbers.get(&key) {
            return Ok(name.clone());
        }
        let name = self.constant(&format!("onnx::constant_{}", self.source.numbers.len()), tensor)?;
        self.source.numbers.insert(key, name.clone());
        Ok(name)
    }

    pub(super) fn ints(&mut self, values: &[i64]) -> Result<String> {
        self.shared(
            format!("{values:?}"),
            HostTensor::from_i64(&[values.len()], values),
        )
    }

    pub(super) fn int(&mut self, value: i64) -> Result<String> {
        self.shared(value.to_string(), HostTensor::from_i64(&[], &[value]))
    }

    pub(super) fn scalar(&mut self, value: f32) -> Result<String> {
        self.shared(
            format!("{value:e}"),
            HostTensor::from_floats(self.source.float, &[], &[value]),
        )
    }

    // ---- sizes ----

    /// Size `a` of `x`, a scalar.
    pub(super) fn size(&mut self, scope: &str, x: &str, a: i64) -> Result<String> {
        let shape = self.node("Shape", scope, &[x], &[])?;
        let at = self.int(a)?;
        self.node("Gather", scope, &[&shape, &at], &axis(0))
    }

    /// A list of sizes, each a named scalar or a number.
    fn list(&mut self, scope: &str, sizes: &[Length<'_>]) -> Result<String> {
        let mut parts = Vec::new();
        for size in sizes {
            parts.push(match size {
                Of(scalar) => {
                    let zero = self.ints(&[0])?;
                    self.node("Unsqueeze", scope, &[scalar, &zero], &[])?
                }
                Is(n) => self.ints(&[*n])?,
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.node("Concat", scope, &parts, &axis(0))
    }

    pub(super) fn view(&mut self, scope: &str, x: &str, sizes: &[Length<'_>]) -> Result<String> {
        let list = self.list(scope, sizes)?;
        self.node("Reshape", scope, &[x, &list], &[])
    }

    /// `x.expand(sizes)`, where -1 keeps a size, as the exporter writes it.
    pub(super) fn expand(&mut self, scope: &str, x: &str, sizes: &[Length<'_>]) -> Result<String> {
        let list = self.list(scope, sizes)?;
        let rank = self.node("Shape", scope, &[&list], &[])?;
        let one = HostTensor::from_i64(&[1], &[1]).map_err(tensor_error)?;
        let value = [("value", Attr::Tensor(one))];
        let ones = self.node("ConstantOfShape", scope, &[&rank], &value)?;
        let minus = self.int(-1)?;
        let minus = self.node("Mul", scope, &[&ones, &minus], &[])?;
        let keeps = self.node("Equal", scope, &[&list, &minus], &[])?;
        let list = self.node("Where", scope, &[&keeps, &ones, &list], &[])?;
        self.node("Expand", scope, &[x, &list], &[])
    }

    pub(super) fn unsqueeze(&mut self, scope: &str, x: &str, axes: &[i64]) -> Result<String> {
        let axes = self.ints(axes)?;
        self.node("Unsqueeze", scope, &[x, &axes], &[])
    }

    /// Elements `from .. to` along axis `a`.
    pub(super) fn part(&mut self, scope: &str, x: &str, a: i64, from: i64, to: i64) -> Result<String> {
        let (from, to, a, step) = (
            self.ints(&[from])?,
            self.ints(&[to])?,
            self.ints(&[a])?,
            self.ints(&[1])?,
        );
        self.node("Slice", scope, &[x, &from, &to, &a, &step], &[])
    }

    /// Splits the last axis into parts of these sizes.
    pub(super) fn split_into<const N: usize>(
        &mut self,
        scope: &str,
        x: &str,
        sizes: [usize; N],
    ) -> Result<[String; N]> {
        let sizes = self.ints(&sizes.map(signed))?;
        self.split(scope, x, &sizes)
    }

    pub(super) fn cast(&mut self, scope: &str, x: &str, to: DType) -> Result<String> {
        self.node("Cast", scope, &[x], &[("to", Attr::Int(type_code(to).into()))])
    }

    // ---- weights ----

    /// A weight in the data file: uniform within `spread` around `center`.
    pub(super) fn weight(&mut self, name: &str, shape: &[usize], center: f32, spread: f32) -> Result<()> {
        let (float, random) = (self.source.float, &mut self.source.random);
        self.out.add_initializer_external(name, float, shape, |out| {
            let row: Vec<f32> = (0..shape.iter().product())
                .map(|_| center + spread * random.number())
                .collect();
            let tensor = HostTensor::from_floats(float, shape, &row).map_err(tensor_error)?;
            out.write(tensor.bytes().map_err(tensor_error)?)
        })
    }

    /// A packed `k` x `n` matrix, which is not written.
    fn matrix(name: &str, k: usize, bits: Bits, asked: usize) -> Packed {
        Packed {
            operands: [format!("{name}.codes"), format!("{name}.scales")],
            bits,
            group: group_size(asked, k),
            order: None,
        }
    }

    /// Writes a packed `k` x `n` matrix.
    fn packed(&mut self, name: &str, k: usize, n: usize, bits: Bits, asked: usize) -> Result<Packed> {
        let packed = Self::matrix(name, k, bits, asked);
        let random = &mut self.source.random;
        let shape = [bits.rows(k), n];
        self.out
            .add_initializer_external(&packed.operands[0], DType::U32, &shape, |out| {
                for _ in 0..shape[0] * shape[1] {
                    out.write(&random.word().to_le_bytes()[..4])?;
                }
                Ok(())
            })?;
        let shape = [k.div_ceil(packed.group), n, 2];
        let scale = 1.0 / (k as f32).sqrt();
        self.out
            .add_initializer_external(&packed.operands[1], DType::F16, &shape, |out| {
                // Quantized values are 2 to 4, so weights are from -scale to scale.
                let pair = [half::f16::from_f32(scale), half::f16::from_f32(3.0)];
                let bytes: Vec<u8> = pair.iter().flat_map(|h| h.to_le_bytes()).collect();
                for _ in 0..shape[0] * shape[1] {
                    out.write(&bytes)?;
                }
                Ok(())
            })?;
        Ok(packed)
    }

    /// `x` times the `k` x `n` matrix of the scope's module, optionally plus its bias.
    pub(super) fn linear(&mut self, scope: &str, x: &str, size: [usize; 2], bias: bool) -> Result<String> {
        let name = module(scope);
        let product = self.product(scope, &format!("{name}.weight"), x, size, Bits::Four, None)?;
        if !bias {
            return Ok(product);
        }
        let bias = format!("{name}.bias");
        self.weight(&bias, &[size[1]], 0.0, 0.1)?;
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
        match self.source.form {
            Form::E0m4(asked) => {
                let packed = self.packed(weight, k, n, bits, asked)?;
                self.packed_node("MatMulE0M", scope, x, &packed, output)
            }
            Form::Float(_) => {
                self.weight(weight, &[k, n], 0.0, 1.0 / (k as f32).sqrt())?;
                self.matmul(scope, x, weight, output)
            }
        }
    }

    /// Rows of the embedding for `ids`.
    pub(super) fn embed(&mut self, scope: &str, weight: &str, ids: &str) -> Result<String> {
        let (vocab, hidden) = (self.source.spec.vocab, self.source.spec.hidden);
        match self.source.form {
            Form::E0m4(asked) => {
                let packed = self.packed(weight, hidden, vocab, Bits::Eight, asked)?;
                self.packed_node("GatherE0M", scope, ids, &packed, None)
            }
            Form::Float(_) => {
                self.weight(weight, &[vocab, hidden], 0.0, 1.0)?;
                self.node("Gather", scope, &[weight, ids], &[])
            }
        }
    }

    /// Matmul with the output matrix.
    pub(super) fn head(
        &mut self,
        scope: &str,
        embedding: &str,
        x: &str,
        output: Option<&str>,
    ) -> Result<String> {
        let size = [self.source.spec.hidden, self.source.spec.vocab];
        if !self.source.spec.tied {
            return self.product(scope, "lm_head.weight", x, size, Bits::Eight, output);
        }
        match self.source.form {
            Form::E0m4(asked) => {
                let packed = Self::matrix(embedding, size[0], Bits::Eight, asked);
                self.packed_node("MatMulE0M", scope, x, &packed, output)
            }
            Form::Float(_) => {
                let turned = self.node("Transpose", scope, &[embedding], &perm(&[1, 0]))?;
                self.matmul(scope, x, &turned, output)
            }
        }
    }

    // ---- what all families share ----

    /// RMS normalization.
    pub(super) fn norm(&mut self, scope: &str, x: &str) -> Result<String> {
        let weight = format!("{}.weight", module(scope));
        let gemma = self.source.spec.family == Family::Gemma;
        self.weight(
            &weight,
            &[self.source.spec.hidden],
            if gemma { 0.0 } else { 1.0 },
            0.1,
        )?;
        let two = self.scalar(2.0)?;
        let square = self.node("Pow", scope, &[x, &two], &[])?;
        let attributes = [("axes", Attr::Ints(vec![-1])), ("keepdims", Attr::Int(1))];
        let mean = self.node("ReduceMean", scope, &[&square], &attributes)?;
        let eps = self.scalar(self.source.spec.eps)?;
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

    /// `x * sigmoid(x)`.
    pub(super) fn silu(&mut self, scope: &str, x: &str) -> Result<String> {
        let sigmoid = self.node("Sigmoid", scope, &[x], &[])?;
        self.node("Mul", scope, &[x, &sigmoid], &[])
    }

    /// Scaled products of queries and keys.
    pub(super) fn scores(&mut self, scope: &str, q: &str, k: &str) -> Result<String> {
        let turned = self.node("Transpose", scope, &[k], &perm(&[0, 1, 3, 2]))?;
        let scores = self.node("MatMul", scope, &[q, &turned], &[])?;
        let root = self.scalar((self.source.spec.head_dim as f32).sqrt())?;
        self.node("Div", scope, &[&scores, &root], &[])
    }

    /// Values weighted by masked scores; the heads of each token are joined by a transposition and
    /// a view.
    pub(super) fn mix(
        &mut self,
        scope: &str,
        [scores, mask, v]: [&str; 3],
        order: &[i64],
        sizes: &[Length<'_>],
    ) -> Result<String> {
        let scores = self.node("Add", scope, &[scores, mask], &[])?;
        let weights = self.node("Softmax", scope, &[&scores], &axis(-1))?;
        let mixed = self.node("MatMul", scope, &[&weights, v], &[])?;
        let mixed = self.node("Transpose", scope, &[&mixed], &perm(order))?;
        self.view(scope, &mixed, sizes)
    }

    /// 0 where a query sees a key, else the lowest number: `[batch, 1, sequence, total]`. `past` is
    /// a scalar.
    pub(super) fn mask(&mut self, scope: &str, past: &str) -> Result<String> {
        let batch = self.size(scope, "input_ids", 0)?;
        let sequence = self.size(scope, "input_ids", 1)?;
        let total = self.node("Add", scope, &[past, &sequence], &[])?;
        let (zero, one) = (self.int(0)?, self.int(1)?);
        let keys = self.node("Range", scope, &[&zero, &total, &one], &[])?;
        let queries = self.node("Range", scope, &[past, &total, &one], &[])?;
        let column = self.ints(&[-1, 1])?;
        let queries = self.node("Reshape", scope, &[&queries, &column], &[])?;
        let later = self.node("Greater", scope, &[&keys, &queries], &[])?;
        let lowest = if self.source.float == DType::F16 {
            -65504.0
        } else {
            f32::MIN
        };
        let (lowest, seen) = (self.scalar(lowest)?, self.scalar(0.0)?);
        let causal = self.node("Where", scope, &[&later, &lowest, &seen], &[])?;
        let causal = self.unsqueeze(scope, &causal, &[0, 1])?;
        let sizes = [Of(&batch), Is(1), Is(-1), Is(-1)];
        let causal = self.expand(scope, &causal, &sizes)?;
        let padding = self.unsqueeze(scope, "attention_mask", &[1, 2])?;
        let padding = self.cast(scope, &padding, self.source.float)?;
        let sum = self.node("Add", scope, &[&causal, &padding], &[])?;
        let hidden = self.node("Equal", scope, &[&sum, &seen], &[])?;
        self.node("Where", scope, &[&hidden, &lowest, &causal], &[])
    }
}

/// An element of a list of sizes.
#[derive(Clone, Copy)]
pub(super) enum Length<'a> {
    /// The scalar with this name.
    Of(&'a str),
    Is(i64),
}

fn tensor_error(e: TensorError) -> Error {
    Error::other(Stage::Convert, e.to_string())
}
