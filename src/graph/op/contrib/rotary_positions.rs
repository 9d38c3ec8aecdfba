//! `RotaryEmbedding` of the domain `com.microsoft`. Operands: x `[batch, sequence, heads * size]`
//! or `[batch, heads, sequence, size]`; the positions `[batch, sequence]`, or that of the first
//! token `[1]`; tables of cosines and sines.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::composite::{Composed, Composite};
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::pointwise::import::{binary, input as arg};
use crate::graph::op::rotary_embedding::RotaryEmbedding;
use crate::graph::op::{Attributes, Op, OpDef, OpError, OpResult, as_usize, microsoft};
use crate::graph::op::{concat::Concat, expand::Expand};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotaryPositions(pub RotaryEmbedding);

impl Composed for RotaryPositions {
    fn name(&self) -> &str {
        "RotaryEmbedding"
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let (x, given) = (cx.input(0)?, cx.input(1)?);
        let (cosines, sines) = (cx.input(2)?, cx.input(3)?);
        let shape = cx.fact(x)?.shape;
        let mut op = self.0.clone();
        if shape.rank() == 3 && op.heads == 0 {
            let (joined, pairs) = (shape.0.last().and_then(as_usize), cx.fact(cosines)?.shape);
            let size = pairs.0.last().and_then(as_usize).map(|n| 2 * n);
            let heads = joined
                .zip(size)
                .and_then(|(joined, size)| joined.checked_div(size));
            op.heads = heads.ok_or_else(|| OpError::expected("heads", "a constant number", &shape))?;
        }
        let mut positions = given;
        if cx.fact(given)?.shape.rank() == 1 {
            let tokens = if shape.rank() == 3 { 1 } else { 2 };
            let (batch, length) = (cx.size("batch", x, 0)?, cx.size("length", x, tokens)?);
            let places = cx.count_to("places", length)?;
            let places = cx.pointwise("positions", binary(Binary::Add, arg(0), arg(1)), &[places, given])?;
            let shape = cx.node("shape", Concat { axis: 0 }, &[Some(batch), Some(length)])?;
            positions = cx.node("rows", Expand, &[Some(places), Some(shape)])?;
        }
        let operands = [x, cosines, sines, positions].map(Some);
        Ok(vec![cx.node("turned", op, &operands)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    #[expect(clippy::float_cmp, reason = "the attribute's default")]
    if let Some(scale) = a.float("scale")?.filter(|s| *s != 1.0) {
        return Err(OpError::Unsupported(format!(
            "attribute `scale` = {scale} (only 1 is)"
        )));
    }
    if a.int("is_packed_batching")?.unwrap_or(0) != 0 {
        return Err(OpError::Unsupported("attribute `is_packed_batching`".to_owned()));
    }
    Ok(Box::new(Composite(RotaryPositions(RotaryEmbedding::import(a)?))))
}

pub static DEF: OpDef = OpDef {
    onnx: &[microsoft("RotaryEmbedding", 4)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let op = |heads| {
        Composite(RotaryPositions(RotaryEmbedding {
            interleaved: false,
            rotated: 0,
            heads,
        }))
    };
    let table = || input(&[9, 4]).constant();
    let joined = || input(&[2, 3, 16]);
    vec![
        Case::new(op(2), vec![joined(), input(&[2, 3]).ints(0, 8), table(), table()]),
        Case::new(op(0), vec![joined(), input(&[1]).values(&[4]), table(), table()]),
    ]
}
