//! Building blocks of decoder graphs: nodes named as exporters name them, constants, and the inputs
//! and outputs of a decoder.

use std::collections::HashMap;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::num;
use transformer_lite::unstable::quant::{Format, Scales, nested};
use transformer_lite::unstable::tensor::{DType, HostTensor, TensorError};

pub const BATCH: &str = "batch_size";
const SEQUENCE: &str = "sequence_length";
const PAST: &str = "past_sequence_length";
const TOTAL: &str = "past_sequence_length + sequence_length";

/// Writes the graph of a decoder. `S` is the source of its sizes and weights.
///
/// Each node belongs to a scope: `/model/layers.0/mlp` is the module `model.layers.0.mlp`. The name
/// of a node is `{scope}/{operator}`; if the name is already used, a number is appended (`_1`,
/// `_2`, and so on). Its output is `{name}_output_0`.
pub struct Builder<S> {
    pub source: S,
    pub out: ModelWriter,
    /// Number of nodes for each name without a number.
    used: HashMap<String, usize>,
}

type Attrs<'a> = [(&'a str, Attr)];

/// A packed matrix in the graph.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Names of the quantized weights and the scales.
    pub operands: [String; 2],
    pub format: Format,
    /// Row `i` of the matrix belongs to input `order[i]`; `None` if the order is unchanged.
    pub order: Option<Vec<usize>>,
}

pub fn axis(a: i64) -> [(&'static str, Attr); 1] {
    [("axis", Attr::Int(a))]
}

pub fn perm(p: &[i64]) -> [(&'static str, Attr); 1] {
    [("perm", Attr::Ints(p.to_vec()))]
}

/// The name of a scope's module.
pub fn module(scope: &str) -> String {
    scope.trim_start_matches('/').replace('/', ".")
}

/// The names of a layer's cache as an input and as an output; `part` is `key` or `value`.
pub fn cache_names(layer: usize, part: &str) -> [String; 2] {
    ["past_key_values", "present"].map(|name| format!("{name}.{layer}.{part}"))
}

impl<S> Builder<S> {
    pub fn new(out: ModelWriter, source: S) -> Self {
        Self {
            source,
            out,
            used: HashMap::new(),
        }
    }

    fn name(&mut self, op: &str, scope: &str) -> String {
        // The quantizer keeps the names of the nodes that it replaces.
        let name = format!("{scope}/{}", op.trim_end_matches("E0M"));
        let n = self.used.entry(name.clone()).or_insert(0);
        *n += 1;
        if *n == 1 {
            name
        } else {
            format!("{name}_{}", *n - 1)
        }
    }

    pub fn node(&mut self, op: &str, scope: &str, inputs: &[&str], attributes: &Attrs<'_>) -> Result<String> {
        let name = self.name(op, scope);
        self.named_node(op, &name, inputs, attributes)
    }

    /// Adds a node with an explicit name and returns its output.
    pub fn named_node(
        &mut self,
        op: &str,
        name: &str,
        inputs: &[&str],
        attributes: &Attrs<'_>,
    ) -> Result<String> {
        let output = format!("{name}_output_0");
        self.add("", op, name, inputs, attributes, &[&output])?;
        Ok(output)
    }

    /// Adds a node with an explicit output.
    pub fn node_as(
        &mut self,
        op: &str,
        scope: &str,
        inputs: &[&str],
        attributes: &Attrs<'_>,
        output: &str,
    ) -> Result<()> {
        let name = self.name(op, scope);
        self.add("", op, &name, inputs, attributes, &[output])
    }

    pub fn matmul(&mut self, scope: &str, x: &str, weight: &str, output: Option<&str>) -> Result<String> {
        match output {
            None => self.node("MatMul", scope, &[x, weight], &[]),
            Some(output) => {
                self.node_as("MatMul", scope, &[x, weight], &[], output)?;
                Ok(output.to_owned())
            }
        }
    }

    /// Adds a node of this project's operator domain that reads `x` and a packed matrix.
    pub fn packed_node(
        &mut self,
        op: &str,
        scope: &str,
        x: &str,
        packed: &Packed,
        output: Option<&str>,
    ) -> Result<String> {
        let name = self.name(op, scope);
        let output = output.map_or_else(|| format!("{name}_output_0"), str::to_owned);
        let [weights, scales] = &packed.operands;
        let mut attributes = vec![
            ("bits", Attr::Int(packed.format.bits.count().into())),
            ("group_size", Attr::Int(num::signed(packed.format.group))),
        ];
        if let Scales::Nested(_) = packed.format.scales {
            attributes.push(("scale_block", Attr::Int(num::signed(nested::BLOCK))));
        }
        self.add(
            OWN_DOMAIN,
            op,
            &name,
            &[x, weights, scales],
            &attributes,
            &[&output],
        )?;
        Ok(output)
    }

    /// Splits the last axis of `x`; the value `sizes` holds the sizes of the parts.
    pub fn split<const N: usize>(&mut self, scope: &str, x: &str, sizes: &str) -> Result<[String; N]> {
        let name = self.name("Split", scope);
        let parts: [String; N] = std::array::from_fn(|i| format!("{name}_output_{i}"));
        let outputs = parts.each_ref().map(String::as_str);
        self.add("", "Split", &name, &[x, sizes], &axis(-1), &outputs)?;
        Ok(parts)
    }

    fn add(
        &mut self,
        domain: &str,
        op: &str,
        name: &str,
        inputs: &[&str],
        attributes: &Attrs<'_>,
        outputs: &[&str],
    ) -> Result<()> {
        self.out.add_node(NodeSpec {
            domain,
            op,
            name,
            inputs,
            outputs,
            attributes,
        })
    }

    pub fn constant(&mut self, name: &str, tensor: Result<HostTensor, TensorError>) -> Result<String> {
        let tensor = tensor.map_err(|e| constant_error(name, e))?;
        self.out.add_constant(name, &tensor)?;
        Ok(name.to_owned())
    }

    /// Declares the inputs and outputs of a decoder: token IDs, mask, positions, logits, and caches
    /// of the shape `cache(length)`.
    pub fn signature(
        &mut self,
        float: DType,
        vocab: usize,
        layers: usize,
        cache: impl Fn(&str) -> [Size; 4],
    ) -> Result<()> {
        let ids = [BATCH.into(), SEQUENCE.into()];
        let mask = [BATCH.into(), TOTAL.into()];
        self.out.add_input("input_ids", DType::I64, &ids)?;
        self.out.add_input("attention_mask", DType::I64, &mask)?;
        self.out.add_input("position_ids", DType::I64, &ids)?;
        let logits = [BATCH.into(), SEQUENCE.into(), vocab.into()];
        self.out.add_output("logits", float, &logits)?;
        for layer in 0..layers {
            for part in ["key", "value"] {
                let [past, present] = cache_names(layer, part);
                self.out.add_input(&past, float, &cache(PAST))?;
                self.out.add_output(&present, float, &cache(TOTAL))?;
            }
        }
        Ok(())
    }
}

/// An error about the constant `name`.
pub fn constant_error(name: &str, e: TensorError) -> Error {
    Error::caused(Stage::Convert, format!("constant \"{name}\""), e)
}
