//! Replaces `Gemm` by a matmul, with elementwise operators for its factors and its bias.

use crate::error::{Error, Result, Stage};
use crate::graph::op::gemm::Gemm;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pointwise::{Binary, Pointwise};
use crate::graph::op::transpose::Transpose;
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::{all, input};
use crate::graph::{Edit, Graph, NodeId, Op, ValueId};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

pub const DECOMPOSE_GEMM: Pass = Pass {
    name: "decompose_gemm",
    does: "replaces `Gemm` by a matmul with elementwise operators",
    refuses: "",
    run,
};

struct GemmMatch {
    node: NodeId,
    op: Gemm,
    a: ValueId,
    b: ValueId,
    c: Option<ValueId>,
    dtype: DType,
}

fn run(edit: &mut Edit<'_>) -> Result<()> {
    for f in all(edit, find) {
        let Some(node) = edit.node(f.node) else { continue };
        let (name, origin) = (node.name.clone(), node.origin.clone());
        if !edit.begin(&format!("\"{name}\" becomes a matmul")) {
            continue;
        }
        let mut parts = Replacement {
            name: &name,
            origin: &origin,
            dtype: f.dtype,
        };
        let a = if f.op.trans_a {
            let turned = Transpose {
                perm: Some(vec![1, 0]),
            };
            parts.node(edit, "a", Box::new(turned), vec![Some(f.a)])
        } else {
            f.a
        };
        let product = Box::new(MatMul {
            trans_b: f.op.trans_b,
        });
        let operands = vec![Some(a), Some(f.b)];
        let bias = f.c.filter(|_| f.op.beta != 0.0);
        if bias.is_none() && f.op.alpha == 1.0 {
            edit.replace_node(f.node, product, operands, origin);
            continue;
        }
        let y = parts.node(edit, "product", product, operands);
        let Some(c) = bias else {
            let factor = parts.factor(edit, "alpha", f.op.alpha)?;
            let scaled = Box::new(Pointwise::binary("Mul", Binary::Mul));
            edit.replace_node(f.node, scaled, vec![Some(y), Some(factor)], origin);
            continue;
        };
        let y = parts.scaled(edit, "alpha", y, f.op.alpha)?;
        let c = parts.scaled(edit, "beta", c, f.op.beta)?;
        let sum = Box::new(Pointwise::binary("Add", Binary::Add));
        edit.replace_node(f.node, sum, vec![Some(y), Some(c)], origin);
    }
    Ok(())
}

fn find(g: &Graph, id: NodeId) -> Option<GemmMatch> {
    let node = g.node(id)?;
    Some(GemmMatch {
        node: id,
        op: *node.op.downcast::<Gemm>()?,
        a: input(node, 0)?,
        b: input(node, 1)?,
        c: input(node, 2),
        dtype: g.value(input(node, 0)?).fact.as_ref()?.dtype,
    })
}

/// Builds the nodes that replace one.
struct Replacement<'a> {
    name: &'a str,
    origin: &'a [String],
    dtype: DType,
}

impl Replacement<'_> {
    fn node(
        &mut self,
        edit: &mut Edit<'_>,
        what: &str,
        op: Box<dyn Op>,
        inputs: Vec<Option<ValueId>>,
    ) -> ValueId {
        let name = format!("{}/{what}", self.name);
        let y = edit.add_value(&name, None);
        edit.add_node(&name, self.origin.to_vec(), op, inputs, vec![y]);
        y
    }

    fn factor(&mut self, edit: &mut Edit<'_>, what: &str, v: f32) -> Result<ValueId> {
        let factor = HostTensor::from_floats(self.dtype, &[], &[v]);
        let factor = factor.map_err(|e| Error::other(Stage::Pass, e.to_string()))?;
        Ok(edit.add_const(&format!("{}/{what}", self.name), Arc::new(factor)))
    }

    /// `x` multiplied by a factor; `x` itself if the factor is 1.
    fn scaled(&mut self, edit: &mut Edit<'_>, what: &str, x: ValueId, by: f32) -> Result<ValueId> {
        if by == 1.0 {
            return Ok(x);
        }
        let factor = self.factor(edit, what, by)?;
        let op = Box::new(Pointwise::binary("Mul", Binary::Mul));
        Ok(self.node(edit, &format!("{what}/scaled"), op, vec![Some(x), Some(factor)]))
    }
}
