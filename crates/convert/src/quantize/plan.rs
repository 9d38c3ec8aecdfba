//! Decides which weights of a graph are quantized, and how the nodes that read them change.

use super::nodes::{Change, Facts, Use, int};
use super::transcode::{self, Kept};
use super::weight::Weight;
use super::{Left, Options};
use std::collections::HashSet;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::graph::onnx::proto::{GraphProto, NodeProto};
use transformer_lite::unstable::graph::onnx::weights::Weights;
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::num::signed;
use transformer_lite::unstable::quant::{Bits, Format, Packed, group_size};

/// The changes of a graph.
pub struct Plan {
    /// In the order of the initializers.
    pub weights: Vec<Weight>,
    /// Weights that are quantized already.
    pub kept: Vec<Kept>,
    pub left: Vec<Left>,
    /// Transposes that are removed with their readers.
    dropped: Vec<usize>,
}

impl Plan {
    /// The change of each node of `graph`.
    pub fn changes(&self, graph: &GraphProto) -> Result<Vec<Change>> {
        let mut nodes = vec![Change::Keep; graph.node.len()];
        for w in &self.weights {
            for n in &w.readers {
                nodes[*n] = Change::Replace(vec![replacement(&graph.node[*n], w)?]);
            }
        }
        for n in &self.dropped {
            nodes[*n] = Change::Drop;
        }
        Ok(nodes)
    }
}

/// Decides what to quantize. A damaged graph yields a useless plan, but the importer rejects such
/// graphs. Fails if `weights` needed for a decision cannot be read.
pub fn plan(graph: &GraphProto, weights: &mut Weights, options: &Options) -> Result<Plan> {
    let facts = Facts::new(graph);
    let head = facts.head();
    let mut names: HashSet<String> = facts.names();
    let (kept, left) = transcode::find(graph, weights, &mut names)?;
    let mut out = Plan {
        weights: Vec::new(),
        kept,
        left,
        dropped: Vec::new(),
    };
    for (i, t) in graph.initializer.iter().enumerate() {
        let [rows, columns] = t.dims[..] else { continue };
        let (Ok(rows), Ok(columns)) = (usize::try_from(rows), usize::try_from(columns)) else {
            continue;
        };
        let (uses, transposes) = facts.uses(&t.name);
        let float = matches!(t.data_type, 1 | 10 | 11 | 16);
        if !facts.wants(&uses) || !float {
            continue;
        }
        let mut decide = || -> std::result::Result<Weight, String> {
            let transposed = facts.orientation(&t.name, t.data_type, &uses, &transposes)?;
            let (k, n) = if transposed {
                (columns, rows)
            } else {
                (rows, columns)
            };
            let large = uses.iter().any(|(u, _)| match u {
                Use::Rows(_) => true,
                Use::Product(n) | Use::Other(n) => Some(*n) == head,
            });
            // With a budget, the format is chosen later among those that K fits. A weight that fits
            // any format fits this one.
            let bits = match options.budget {
                Some(_) => Bits::Eight,
                None if large => options.head_bits,
                None => options.bits,
            };
            let group = group_size(options.group_size, k);
            Packed::check(Format::new(bits, group), k, n).map_err(|e| e.to_string())?;
            let mut fresh = |suffix: &str| {
                let mut name = format!("{}.{suffix}", t.name);
                while !names.insert(name.clone()) {
                    name.push('_');
                }
                name
            };
            let (codes, scales) = (fresh("codes"), fresh("scales"));
            Ok(Weight {
                initializer: i,
                transposed,
                bits,
                group,
                k,
                n,
                codes,
                scales,
                readers: uses.iter().filter_map(|(u, _)| u.reader()).collect(),
                head: large,
            })
        };
        match decide() {
            Ok(weight) => {
                out.dropped.extend(transposes);
                out.weights.push(weight);
            }
            Err(reason) => out.left.push(Left {
                name: t.name.clone(),
                shape: vec![rows, columns],
                reason,
            }),
        }
    }
    Ok(out)
}

/// The node that reads the packed weight instead of `n`.
fn replacement(n: &NodeProto, w: &Weight) -> Result<NodeProto> {
    let product = n.op_type == "MatMul";
    let operand = n.input.get(usize::from(!product)).cloned().unwrap_or_default();
    Ok(NodeProto {
        input: vec![operand, w.codes.clone(), w.scales.clone()],
        output: n.output.clone(),
        name: n.name.clone(),
        op_type: if product { "MatMulE0M" } else { "GatherE0M" }.to_owned(),
        attribute: vec![
            int("bits", i64::from(w.bits.count())),
            int("group_size", signed(w.group)),
        ],
        domain: OWN_DOMAIN.to_owned(),
        ..NodeProto::default()
    })
}
