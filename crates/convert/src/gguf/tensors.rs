//! The tensors of a GGUF file by the names of Hugging Face checkpoints.

use super::dequant;
use super::params::{ROPE_TENSORS, expect_dims, missing};
use super::read::{Gguf, TensorInfo};
use crate::checkpoint::{Params, Stored, Tensors};
use crate::memory::zeros;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::quant::Grids;

/// Names of tensors in checkpoints, those of layers without prefix and suffix, and in GGUF files.
const NAMES: &[(&str, &str)] = &[
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The tensors of a file.
pub struct GgufTensors<'a> {
    gguf: &'a Gguf,
    params: &'a Params,
    used: RefCell<HashSet<String>>,
}

/// Row of the file that becomes `row` of the graph: files of `llama` have the two halves of each
/// head of queries and keys interleaved, as they pair neighbours for the rotation; the graph pairs
/// element `i` with `i + head_dim / 2`.
fn interleaved(head_dim: usize, row: usize) -> usize {
    let (head, i) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + 2 * (i % half) + i / half
}

impl<'a> GgufTensors<'a> {
    /// Those of a file that has these parameters.
    pub fn new(gguf: &'a Gguf, params: &'a Params) -> Self {
        Self {
            gguf,
            params,
            used: RefCell::new(ROPE_TENSORS.map(str::to_owned).into()),
        }
    }

    /// Row of the file by row of the graph.
    fn order(&self, name: &str) -> Option<impl Fn(usize) -> usize + Sync + Copy + use<>> {
        let turned = name.contains(".q_proj.") || name.contains(".k_proj.");
        let head_dim = self.params.head_dim;
        (turned && self.params.family.interleaved).then_some(move |row| interleaved(head_dim, row))
    }

    fn read(&self, info: &TensorInfo, width: usize, name: &str, first: usize, out: &mut [f32]) -> Result<()> {
        match self.order(name) {
            None => self.gguf.read_f32(info, first * width, out),
            Some(order) if width > 1 => {
                for (row, to) in (first..).zip(out.chunks_exact_mut(width)) {
                    self.gguf.read_f32(info, order(row) * width, to)?;
                }
                Ok(())
            }
            // A vector is a row of blocks.
            Some(order) => {
                let mut all = zeros(info.elements, &info.name)?;
                self.gguf.read_f32(info, 0, &mut all)?;
                for (row, to) in (first..).zip(out) {
                    *to = all.get(order(row)).copied().unwrap_or_default();
                }
                Ok(())
            }
        }
    }
}

impl Tensors for GgufTensors<'_> {
    fn stored(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>> {
        let source = self.name(name);
        let info = self
            .gguf
            .tensor(&source)
            .ok_or_else(|| missing(self.gguf, &source))?;
        let dims: Vec<usize> = shape.iter().rev().copied().collect();
        expect_dims(self.gguf, info, &dims)?;
        self.used.borrow_mut().insert(source);
        let width = if let [_, width] = shape { *width } else { 1 };
        let data = self.gguf.data(info)?;
        let kind = info.ggml_type;
        let grids = match (kind.grid_format(), shape) {
            (Some(format), &[n, k]) => {
                let order = self.order(name);
                let row_bytes = data.len() / n;
                Some(Grids {
                    format,
                    k,
                    n,
                    column: Box::new(move |j, out| {
                        let row = order.map_or(j, |order| order(j));
                        let row = data.get(row * row_bytes..(row + 1) * row_bytes);
                        // A missing row, or one of another type, has no codes; packing refuses it.
                        let _ = dequant::grids(kind, row.unwrap_or_default(), out);
                    }),
                })
            }
            _ => None,
        };
        let name = name.to_owned();
        Ok(Stored {
            rows: Box::new(move |first, out| self.read(info, width, &name, first, out)),
            grids,
            order: None,
            kind: kind.to_string(),
            bytes: data.len() as u64,
        })
    }

    fn name(&self, name: &str) -> String {
        let own = self.params.family.gguf_tensors;
        let renamed = |part: &str| {
            let mut names = own.iter().chain(NAMES);
            names.find(|(known, _)| *known == part).map(|(_, name)| *name)
        };
        let inner = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split_once('.'));
        match inner {
            Some((layer, part)) => {
                let (part, kind) = part.rsplit_once('.').unwrap_or((part, ""));
                format!("blk.{layer}.{}.{kind}", renamed(part).unwrap_or(part))
            }
            None => renamed(name).unwrap_or_default().to_owned(),
        }
    }

    fn bad_file(&self, what: &str) -> Error {
        self.gguf.bad(what)
    }

    fn types(&self) -> BTreeMap<String, usize> {
        let mut types = BTreeMap::new();
        for tensor in self.gguf.tensors() {
            *types.entry(tensor.ggml_type.to_string()).or_insert(0) += 1;
        }
        types
    }

    fn all_used(&self) -> Result<()> {
        self.gguf.check_all_used(&self.used.borrow())
    }
}
