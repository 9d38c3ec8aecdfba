//! Replaces quantized operators by operators of the integer domain: nodes between
//! `DequantizeLinear` and `QuantizeLinear`, and operators such as `QLinearConv`, run with integers
//! only.
//!
//! A node is replaced if each of its activation operands is dequantized with one constant scale and
//! zero point, its weights are 8-bit constants, and its result is only quantized, possibly after a
//! clamp. Several elementwise nodes are replaced together if their result is a function of one
//! activation. Operands of operators that only move elements are rescaled where needed. Every other
//! node stays float between its conversions, as the model says. Sums of products are requantized in
//! one of two arithmetics ([`Arithmetic`]).
//!
//! | ONNX node | module of the `Site` | operators | kernels |
//! |---|---|---|---|
//! | `QuantizeLinear`, `DequantizeLinear` at the border | | `Int8Quantize`, `Int8Dequantize`, `Int8Enter`, `Int8Leave` | `int8_quantize`, `int8_dequantize`, `int8_enter`, `int8_leave` |
//! | `Conv`, `ConvTranspose`, `ConvInteger`, `QLinearConv`; `MatMul`, `Gemm`, `QLinearMatMul` of constants | `product` | `Int8Conv` | `int8_conv`, `int8_depthwise` |
//! | `MatMul`, `QLinearMatMul` of two activations | `matmul` | `Int8MatMul` | `int8_matmul` |
//! | `Add`, `Sub`, `Mul`, `QLinearAdd`, `QLinearMul` | `binary` | `Int8Binary` | `int8_binary` |
//! | functions of one activation, such as `Sigmoid`, `HardSwish`, `LeakyRelu` | `table` | `Int8Table` | `int8_table` |
//! | `MaxPool`, `AveragePool`, global pools, `ReduceMean` of an image | `pool` | `Int8Pool` | `int8_pool` |
//! | `Softmax`, `QLinearSoftmax` | `softmax` | `Int8Softmax` | `int8_softmax` |
//! | `Reshape`, `Transpose`, `Slice`, `Concat`, `Pad`, `Gather` and others | `moves` | the same operator over bytes, `Int8Table` to rescale | those of the operator |

mod binary;
mod chain;
mod domain;
mod find;
mod matmul;
mod moves;
mod pack;
mod pool;
mod product;
pub(crate) mod shapes;
mod softmax;
mod table;
mod values;
mod view;

use super::Pass;
use crate::error::{Error, Result, Stage};
use crate::graph::{Edit, Graph, OpError};
use crate::num::OutOfRange;
use crate::quant::fixed::Arithmetic;
use domain::{Domain, New};

const DOES: &str = "computes quantized operators with 8-bit integers";
const REFUSES: &str = "operands or results that are not quantized, or have more than one scale";

pub const INTEGER_FLOAT: Pass = Pass {
    name: "integer_float",
    does: DOES,
    refuses: REFUSES,
    run: |edit| run(edit, Arithmetic::Float),
};

pub const INTEGER_FIXED: Pass = Pass {
    name: "integer_fixed",
    does: DOES,
    refuses: REFUSES,
    run: |edit| run(edit, Arithmetic::Fixed),
};

/// Why a node between quantized values stays float: a noun phrase that users read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) String);

impl From<OutOfRange> for Refusal {
    fn from(e: OutOfRange) -> Self {
        Self(e.to_string())
    }
}

impl From<Refusal> for OpError {
    fn from(Refusal(why): Refusal) -> Self {
        Self::Unsupported(why)
    }
}

type Matched<T> = std::result::Result<T, Refusal>;
type Built<T> = std::result::Result<T, OpError>;
type Found = Matched<Box<dyn Site>>;

/// Nodes that operators of the integer domain replace, with what these need. The module that
/// defines a site also finds it.
trait Site: std::fmt::Debug {
    /// Adds the operators and declares the form of each result.
    fn build(&self, domain: &mut Domain, edit: &mut Edit<'_>, new: &New<'_>) -> Built<()>;
}

fn refuse(why: &str) -> Refusal {
    Refusal(why.to_owned())
}

/// A node between quantized values that is nevertheless computed with floats.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FloatNode {
    /// Name of the node.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Why it has no integer form.
    pub reason: String,
}

/// How the nodes that read quantized values are computed.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Coverage {
    /// Number of nodes that are computed with integers.
    pub nodes: usize,
    /// Those that stay float.
    pub float_nodes: Vec<FloatNode>,
}

/// Reports what the pass would do with the nodes of a graph. Its shapes have been derived.
pub fn coverage(graph: &Graph, arithmetic: Arithmetic) -> Result<Coverage> {
    let mut copy = graph.clone();
    let edit = Edit::new(&mut copy);
    let sites = find::sites(&edit, arithmetic)?;
    let mut coverage = Coverage {
        nodes: sites.covered.len(),
        float_nodes: Vec::new(),
    };
    for (nodes, site) in sites.found {
        let last = nodes.last().and_then(|id| edit.node(*id));
        let Some(node) = last else { continue };
        match site {
            // Those of several nodes are counted already.
            Ok(_) if nodes.len() > 1 => {}
            Ok(_) => coverage.nodes += 1,
            Err(Refusal(reason)) => coverage.float_nodes.push(FloatNode {
                node: node.name.clone(),
                op: node.op.name().to_owned(),
                reason,
            }),
        }
    }
    Ok(coverage)
}

fn run(edit: &mut Edit<'_>, arithmetic: Arithmetic) -> Result<()> {
    let mut domain = Domain::default();
    for (nodes, site) in find::sites(edit, arithmetic)?.found {
        let replaced = nodes.iter().filter_map(|id| edit.node(*id));
        let Some(name) = replaced.clone().last().map(|n| n.name.clone()) else {
            continue;
        };
        let origin = replaced.flat_map(|n| n.origin.iter().cloned()).collect();
        match site {
            Err(Refusal(why)) => log::debug!("\"{name}\" stays float: {why}"),
            Ok(site) => {
                if !edit.begin(&format!("\"{name}\" is computed with integers")) {
                    break;
                }
                let new = New { name: &name, origin };
                site.build(&mut domain, edit, &new)
                    .map_err(|e| Error::other(Stage::Pass, format!("\"{name}\": {e}")))?;
            }
        }
    }
    domain.finish(edit)
}
