//! `EmbedLayerNormalization` of the domain `com.microsoft`: the normalized sum of embeddings of
//! tokens, positions and segments.
//!
//! Operands: tokens `[batch, sequence]`; optionally segments of the same shape; the tables of
//! tokens, positions and optionally segments; scale; shift; and optionally a mask `[batch,
//! sequence]` and positions. Results: the normalized sum; the number of tokens in the mask of each
//! batch entry, 0 without a mask; and the sum.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::composite::{Composed, Composite};
use crate::graph::op::gather::Gather;
use crate::graph::op::norm::{Norm, Over};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, cast, input as arg, number};
use crate::graph::op::pointwise::{Binary, Pointwise};
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::op::{Attributes, Op, OpDef, OpResult, microsoft};
use crate::tensor::DType;

#[derive(Clone, Debug, PartialEq)]
pub struct EmbedNorm {
    pub epsilon: f32,
}

impl Composed for EmbedNorm {
    fn name(&self) -> &str {
        "EmbedLayerNormalization"
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let tokens = cx.input(0)?;
        let positions = match cx.opt(8) {
            Some(positions) => positions,
            None => {
                let length = cx.size("length", tokens, 1)?;
                cx.count_to("positions", length)?
            }
        };
        let rows = [
            ("tokens", cx.opt(2), Some(tokens)),
            ("places", cx.opt(3), Some(positions)),
            ("segments", cx.opt(4), cx.opt(1)),
        ];
        let mut sum: Option<ValueId> = None;
        for (name, table, index) in rows.into_iter().filter(|r| r.1.is_some() && r.2.is_some()) {
            let row = cx.node(name, Gather { axis: 0 }, &[table, index])?;
            sum = Some(match sum {
                None => row,
                Some(sum) => {
                    let add = Pointwise::binary("Add", Binary::Add);
                    cx.node(&format!("{name}/sum"), add, &[Some(sum), Some(row)])?
                }
            });
        }
        let norm = Norm {
            over: Over::Layer { axis: -1 },
            epsilon: self.epsilon,
            results: 1,
        };
        let y = cx.node("norm", norm, &[sum, cx.opt(5), cx.opt(6)])?;
        let mask = match cx.opt(7) {
            Some(mask) => mask,
            None => {
                let none = binary(
                    Binary::Mul,
                    cast(DType::I32, arg(0)),
                    cast(DType::I32, number(0.0)),
                );
                cx.pointwise("no_mask", none, &[tokens])?
            }
        };
        let count = Reduce {
            kind: Kind::Sum,
            axes: Some(vec![1]),
            keep: false,
            noop_without_axes: false,
        };
        let count = cx.node("mask/count", count, &[Some(mask)])?;
        Ok([vec![y, count], sum.into_iter().collect()].concat())
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    a.int("mask_index_type")?;
    Ok(Box::new(Composite(EmbedNorm {
        epsilon: a.float("epsilon")?.unwrap_or(1e-12),
    })))
}

pub static DEF: OpDef = OpDef {
    onnx: &[microsoft("EmbedLayerNormalization", 9).outputs(3)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let table = |rows: usize| input(&[rows, 8]).constant();
    let tokens = || input(&[2, 3]).ints(0, 1);
    let scale = || input(&[8]).constant();
    let op = Composite(EmbedNorm { epsilon: 1e-5 });
    let inputs = vec![tokens(), tokens(), table(9), table(5), table(2), scale(), scale()];
    vec![Case::new(op, inputs)]
}
