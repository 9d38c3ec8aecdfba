//! Selects boxes of each class by falling score, dropping those that overlap a selected one.
//!
//! ONNX `NonMaxSuppression` from opset 10. Operands: boxes `[batches, boxes, 4]`, scores
//! `[batches, classes, boxes]`, the maximum number of boxes per class, the overlap (intersection
//! over union) above which a box is dropped, and the minimum score. The result lists (batch, class,
//! box); their number is known only in the run.

use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::types::Types;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::num;
use crate::quota;
use crate::shape::{Fact, Shape, product};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonMaxSuppression {
    /// Boxes are given by center and size; otherwise by two opposite corners, y before x.
    pub center: bool,
}

/// Lower corner and upper corner.
type Corners = [f32; 4];

impl NonMaxSuppression {
    fn corners(&self, b: &[f32]) -> Corners {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| b.get(i).copied().unwrap_or(0.0));
        if self.center {
            [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0]
        } else {
            [a.min(c), b.min(d), a.max(c), b.max(d)]
        }
    }
}

fn overlap(a: &Corners, b: &Corners) -> f32 {
    let area = |r: &Corners| (r[2] - r[0]) * (r[3] - r[1]);
    let side = |low: usize, high: usize| (a[high].min(b[high]) - a[low].max(b[low])).max(0.0);
    let both = side(0, 2) * side(1, 3);
    let union = area(a) + area(b) - both;
    if union > 0.0 { both / union } else { 0.0 }
}

impl Op for NonMaxSuppression {
    fn name(&self) -> &str {
        "NonMaxSuppression"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (boxes, scores) = (cx.typed(0, Types::FLOAT)?, cx.typed(1, Types::FLOAT)?);
        let ([batches, n, four], [score_batches, classes, score_n]) =
            (boxes.shape.0.as_slice(), scores.shape.0.as_slice())
        else {
            return Err(OpError::mismatch(
                "ranks of boxes and scores (each 3)",
                boxes,
                scores,
            ));
        };
        cx.same("coordinates per box and 4", four, &4.into())?;
        cx.same("batch sizes of boxes and scores", batches, score_batches)?;
        cx.same("numbers of boxes and scores", n, score_n)?;
        let most = match cx.opt(2).map(Fact::as_dims) {
            None => 0.into(),
            Some(Some(list)) => list
                .first()
                .map_or_else(|| Ok(n.clone()), |most| most.minimum(n))?,
            Some(None) => n.clone(),
        };
        let at_most = product(&[batches.clone(), classes.clone(), most])?;
        Ok(vec![Fact::new(
            DType::I64,
            Shape(vec![cx.unknown(0, 0, Some(at_most)), 3.into()]),
        )])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (boxes, scores) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let ([batches, n, 4], [_, classes, _]) = (boxes.shape(), scores.shape()) else {
            return Err(OpError::mismatch(
                "shapes of boxes and scores",
                format!("{boxes:?}"),
                format!("{scores:?}"),
            ));
        };
        let optional = |i: usize| inputs.get(i).copied().flatten();
        let number = |i: usize| -> OpResult<Option<f32>> {
            Ok(optional(i)
                .map(HostTensor::to_f32)
                .transpose()?
                .and_then(|v| v.first().copied()))
        };
        let most = optional(2)
            .map(HostTensor::to_i64)
            .transpose()?
            .and_then(|v| v.first().copied())
            .unwrap_or(0);
        let (most, iou, floor) = (
            num::exact::<usize, _>(most.max(0), "a number of boxes")?,
            number(3)?.unwrap_or(0.0),
            number(4)?,
        );
        let (box_data, score_data) = (boxes.to_f32()?, scores.to_f32()?);
        let mut out = Vec::new();
        for (b, c) in (0..*batches).flat_map(|b| (0..*classes).map(move |c| (b, c))) {
            let corners: Vec<Corners> = box_data
                .chunks_exact(4)
                .skip(b * n)
                .take(*n)
                .map(|x| self.corners(x))
                .collect();
            let row = num::part(&score_data, (b * classes + c) * n..(b * classes + c + 1) * n)?;
            let mut order: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
            order.retain(|(_, score)| floor.is_none_or(|floor| *score > floor));
            order.sort_by(|(_, a), (_, b)| num::ascending(b, a));
            let mut taken: Vec<(usize, Corners)> = Vec::new();
            for (i, _) in order {
                if taken.len() == most {
                    break;
                }
                quota::check()?;
                let Some(own) = corners.get(i) else { continue };
                if taken.iter().all(|(_, other)| overlap(own, other) <= iou) {
                    taken.push((i, *own));
                }
            }
            out.extend(
                taken
                    .into_iter()
                    .flat_map(|(i, _)| [num::signed(b), num::signed(c), num::signed(i)]),
            );
        }
        Ok(vec![HostTensor::from_i64(&[out.len() / 3, 3], &out)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(match a.int("center_point_box")?.unwrap_or(0) {
        0 => NonMaxSuppression { center: false },
        1 => NonMaxSuppression { center: true },
        other => return Err(OpError::expected("attribute `center_point_box`", "0 or 1", other)),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("NonMaxSuppression", 10, 5)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let half = HostTensor::from_f32(&[1], &[0.5]).map(constant);
    let inputs = half.map(|half| {
        let most = input(&[1]).values(&[3]).constant();
        vec![input(&[1, 9, 4]).range(0.0, 1.0), input(&[1, 2, 9]), most, half]
    });
    let op = NonMaxSuppression { center: false };
    inputs
        .map(|i| Case::new(op, i).host_only("the size of the result depends on data"))
        .into_iter()
        .collect()
}
