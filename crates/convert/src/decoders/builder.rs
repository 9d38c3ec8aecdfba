//! Building blocks of the graphs of all families: nodes with the exporter's names, constants, size
//! computations, weights, and parts that decoders share.

use super::{Family, Form, Spec};
use crate::onnx_int::onnx_int;
use std::collections::HashMap;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
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

pub(super) struct Builder<'a> {
    pub spec: &'a Spec,
    pub form: Form,
    pub float: DType,
    pub random: Random,
    pub out: ModelWriter,
    /// Number of uses of an operator per scope, for the exporter's names.
    pub used: HashMap<String, usize>,
    /// Constants by value.
    pub numbers: HashMap<String, String>,
}

pub(super) const BATCH: &str = "batch_size";
const SEQUENCE: &str = "sequence_length";
const PAST: &str = "past_sequence_length";
const TOTAL: &str = "past_sequence_length + sequence_length";

type Attrs<'a> = [(&'a str, Attr)];

/// Names of quantized weights and scales, and the attributes of the node that reads them.
type Packed = ([String; 2], [(&'static str, Attr); 2]);

pub(super) fn axis(a: i64) -> [(&'static str, Attr); 1] {
    [("axis", Attr::Int(a))]
}

pub(super) fn perm(p: &[i64]) -> [(&'static str, Attr); 1] {
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

    pub(super) fn node(
        &mut self,
        op: &str,
        scope: &str,
        inputs: &[&str],
        attributes: &Attrs<'_>,
    ) -> Result<String> {
        self.node_of("", op, scope, inputs, attributes, None)
    }

    /// A node with an explicit output name.
    pub(super) fn node_as(
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

    pub(super) fn constant(
        &mut self,
        key: String,
        tensor: Result<HostTensor, TensorError>,
    ) -> Result<String> {
        if let Some(name) = self.numbers.get(&key) {
            return Ok(name.clone());
        }
        let name = format!("onnx::constant_{}", self.numbers.len());
        let tensor = tensor.map_err(|e| Error::other(Stage::Convert, e.to_string()))?;
        self.out.add_constant(&name, &tensor)?;
        self.numbers.insert(key, name.clone());
        Ok(name)
    }

    pub(super) fn ints(&mut self, values: &[i64]) -> Result<String> {
        self.constant(
            format!("{values:?}"),
            HostTensor::from_i64(&[values.len()], values),
        )
    }

    pub(super) fn int(&mut self, value: i64) -> Result<String> {
        self.constant(value.to_string(), HostTensor::from_i64(&[], &[value]))
    }

    pub(super) fn scalar(&mut self, value: f32) -> Result<String> {
        self.constant(
            format!("{value:e}"),
            HostTensor::from_floats(self.float, &[], &[value]),
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
    fn list(&mut self, scope: &str, sizes: &[SizeItem<'_>]) -> Result<String> {
        let mut parts = Vec::new();
        for size in sizes {
            parts.push(match size {
                SizeItem::Of(scalar) => {
                    let zero = self.ints(&[0])?;
                    self.node("Unsqueeze", scope, &[scalar, &zero], &[])?
                }
                SizeItem::Is(n) => self.ints(&[*n])?,
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.node("Concat", scope, &parts, &axis(0))
    }

    pub(super) fn view(&mut self, scope: &str, x: &str, sizes: &[SizeItem<'_>]) -> Result<String> {
        let list = self.list(scope, sizes)?;
        self.node("Reshape", scope, &[x, &list], &[])
    }

    /// `x.expand(sizes)`, where -1 keeps a size, as the exporter writes it.
    pub(super) fn expand(&mut self, scope: &str, x: &str, sizes: &[SizeItem<'_>]) -> Result<String> {
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
    pub(super) fn split<const N: usize>(
        &mut self,
        scope: &str,
        x: &str,
        sizes: [usize; N],
    ) -> Result<[String; N]> {
        let list: Vec<i64> = sizes.iter().map(|s| onnx_int(*s)).collect::<Result<_>>()?;
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

    pub(super) fn cast(&mut self, scope: &str, x: &str, to: DType) -> Result<String> {
        let code = transformer_lite::unstable::graph::onnx::type_code(to);
        self.node("Cast", scope, &[x], &[("to", Attr::Int(code.into()))])
    }

    // ---- weights ----

    /// A weight in the data file: uniform within `spread` around `center`.
    pub(super) fn weight(&mut self, name: &str, shape: &[usize], center: f32, spread: f32) -> Result<()> {
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
                    out.write(&random.word().to_le_bytes()[..4])?;
                }
                Ok(())
            })?;
        let shape = [k.div_ceil(group), n, 2];
        let scale = 1.0 / (k as f32).sqrt();
        self.out
            .add_initializer_external(&names[1], DType::F16, &shape, |out| {
                // Quantized values are 2 to 4, so weights are from -scale to scale.
                let pair = [half::f16::from_f32(scale), half::f16::from_f32(3.0)];
                let bytes: Vec<u8> = pair.iter().flat_map(|h| h.to_le_bytes()).collect();
                for _ in 0..shape[0] * shape[1] {
                    out.write(&bytes)?;
                }
                Ok(())
            })?;
        let attributes = [
            ("bits", Attr::Int(bits.count().into())),
            ("group_size", Attr::Int(onnx_int(group)?)),
        ];
        Ok((names, attributes))
    }

    /// `x` times a `k` x `n` matrix, optionally plus a bias.
    pub(super) fn linear(
        &mut self,
        scope: &str,
        name: &str,
        x: &str,
        [k, n]: [usize; 2],
        bias: bool,
    ) -> Result<String> {
        let product = self.product(scope, &format!("{name}.weight"), x, [k, n], Bits::Four, None)?;
        if !bias {
            return Ok(product);
        }
        let bias = format!("{name}.bias");
        self.weight(&bias, &[n], 0.0, 0.1)?;
        self.node("Add", scope, &[&bias, &product], &[])
    }

    pub(super) fn product(
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
    pub(super) fn embed(&mut self, scope: &str, weight: &str, ids: &str) -> Result<String> {
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

    /// Matmul with the output matrix.
    pub(super) fn head(
        &mut self,
        scope: &str,
        embedding: &str,
        x: &str,
        output: Option<&str>,
    ) -> Result<String> {
        let size = [self.spec.hidden, self.spec.vocab];
        if !self.spec.tied {
            return self.product(scope, "lm_head.weight", x, size, Bits::Eight, output);
        }
        match self.form {
            Form::E0m4(asked) => {
                let attributes = [
                    ("bits", Attr::Int(8)),
                    ("group_size", Attr::Int(onnx_int(group_size(asked, size[0]))?)),
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

    /// RMS normalization.
    pub(super) fn norm(&mut self, scope: &str, name: &str, x: &str) -> Result<String> {
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

    pub(super) fn inputs(&mut self) -> Result<()> {
        let ids = [BATCH.into(), SEQUENCE.into()];
        self.out.add_input("input_ids", DType::I64, &ids)?;
        self.out
            .add_input("attention_mask", DType::I64, &[BATCH.into(), TOTAL.into()])?;
        self.out.add_input("position_ids", DType::I64, &ids)?;
        let (float, vocab) = (self.float, self.spec.vocab);
        self.out
            .add_output("logits", float, &[BATCH.into(), SEQUENCE.into(), vocab.into()])
    }

    pub(super) fn caches(&mut self, shape: impl Fn(&str) -> [Size; 4]) -> Result<()> {
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
            &[
                SizeItem::Of(&batch),
                SizeItem::Is(1),
                SizeItem::Is(-1),
                SizeItem::Is(-1),
            ],
        )?;
        let padding = self.unsqueeze(scope, "attention_mask", &[1, 2])?;
        let padding = self.cast(scope, &padding, self.float)?;
        let sum = self.node("Add", scope, &[&causal, &padding], &[])?;
        let hidden = self.node("Equal", scope, &[&sum, &seen], &[])?;
        self.node("Where", scope, &[&hidden, &lowest, &causal], &[])
    }
}

/// An element of a list of sizes.
#[derive(Clone, Copy)]
pub(super) enum SizeItem<'a> {
    /// The scalar with this name.
    Of(&'a str),
    Is(i64),
}
