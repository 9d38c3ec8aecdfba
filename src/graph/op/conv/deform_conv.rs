//! Deformable convolution: the positions of taps are data. ONNX `DeformConv` from opset 19.
//!
//! Operands: `x [n, c, sizes..]`, weights `[o, c / group, taps..]`, offsets
//! `[n, groups * taps * axes, places..]`, a bias `[o]`, and a tap mask
//! `[n, groups * taps, places..]`. Taps between elements are interpolated linearly; outside are
//! zeros.

use crate::graph::op::case::{Case, input};
use crate::graph::op::conv::{parts, sizes};
use crate::graph::op::window::Window;
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, filled, fit, onnx, operand, strides,
};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeformConv {
    /// Window; omitted sizes are those of the weights.
    pub window: Window,
    /// Number of channel groups.
    pub group: i64,
    /// Number of channel groups that share offsets.
    pub offset_group: i64,
}

impl DeformConv {
    fn kernel(&self, weights: &[Dim]) -> OpResult<Vec<i64>> {
        let fixed: Option<Vec<i64>> = weights.iter().skip(2).map(Dim::as_const).collect();
        let fixed = fixed.ok_or_else(|| OpError::Unsupported("weights of variable size".to_owned()))?;
        if self.window.kernel.is_empty() || self.window.kernel == fixed {
            return Ok(fixed);
        }
        let stated = format!("{:?}", self.window.kernel);
        Err(OpError::mismatch(
            "sizes of weights and window",
            format!("{fixed:?}"),
            stated,
        ))
    }
}

impl Op for DeformConv {
    fn name(&self) -> &str {
        "DeformConv"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, w, offset) = (cx.float(0)?, cx.float(1)?, cx.float(2)?);
        let (n, c, spatial) = parts("the input", &x.shape.0)?;
        let (outs, own, _) = parts("the weights", &w.shape.0)?;
        let kernel = self.kernel(&w.shape.0)?;
        let places = self.window.derive(cx, &kernel, spatial)?;
        cx.same(
            "channels of operand and weights",
            c,
            &own.mul(&self.group.into())?,
        )?;
        let groups = [("channels", c, self.offset_group), ("outputs", outs, self.group)];
        for (what, size, group) in groups {
            if size.exact_div(&group.into()).is_none() {
                return Err(OpError::expected(
                    what,
                    format!("a multiple of {group} groups"),
                    size,
                ));
            }
        }
        let taps = kernel.iter().product::<i64>().saturating_mul(self.offset_group);
        let axes = num::signed(kernel.len());
        let wanted = [(2, Some(offset), taps.saturating_mul(axes)), (4, cx.opt(4), taps)];
        for (i, fact, channels) in wanted {
            let Some(fact) = fact else { continue };
            let (batch, found, sizes) =
                parts(if i == 2 { "the offsets" } else { "the factors" }, &fact.shape.0)?;
            cx.same("batch sizes", n, batch)?;
            cx.same(
                "channels of offsets or mask and their number of taps",
                found,
                &channels.into(),
            )?;
            if sizes.len() != places.len() {
                return Err(OpError::mismatch("ranks", &x.shape, &fact.shape));
            }
            for (a, b) in places.iter().zip(sizes) {
                cx.same("spatial sizes", a, b)?;
            }
        }
        if let Some(bias) = cx.opt(3) {
            cx.same("outputs of weights and bias", outs, &product(&bias.shape.0)?)?;
        }
        let shape = [n.clone(), outs.clone()].into_iter().chain(places).collect();
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let facts = fit(self, inputs)?;
        let shape = num::at(&facts, 0)?.shape.sizes()?;
        let (x, w) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let (_, channels, spatial) = sizes(x)?;
        let (outs, own, taps) = sizes(w)?;
        let places = num::part(&shape, 2..)?;
        let list = |i: usize| match inputs.get(i).copied().flatten() {
            Some(t) => t.to_f32().map(Some),
            None => Ok(None),
        };
        let (data, weights, offsets) = (x.to_f32()?, w.to_f32()?, operand(inputs, 2)?.to_f32()?);
        let (bias, factors) = (list(3)?, list(4)?);
        let (plane, area, all) = (count(spatial)?, count(places)?, count(taps)?);
        let (place_steps, tap_steps, steps) = (strides(places), strides(taps), strides(spatial));
        let number = |v: i64| num::exact::<usize, _>(v, "a number of groups");
        let (groups, rank) = (number(self.offset_group)?, spatial.len());
        let (share, outs_share) = (channels / groups, outs / number(self.group)?);
        let at = |list: &[f32], i: usize| num::at(list, i).map(|v| f64::from(*v));
        let mut y = filled(&shape, 0f64)?;
        // Index of batch, offset group, tap and position; the last one varies fastest.
        for i in 0..count(&[*num::at(&shape, 0)?, groups, all, area])? {
            let (place, tap, group, n) = (
                i % area,
                i / area % all,
                i / area / all % groups,
                i / area / all / groups,
            );
            #[expect(clippy::cast_precision_loss, reason = "positions near the operand")]
            let position = |d: usize| -> OpResult<f64> {
                let (before, _) = self.window.explicit(d, rank);
                let tap = tap / tap_steps[d] % taps[d];
                let window = place / place_steps[d] % places[d];
                let start = window as f64 * self.window.stride(d) as f64 - before as f64;
                let offset = at(
                    &offsets,
                    ((n * groups + group) * all * rank + (i / area % all) * rank + d) * area + place,
                )?;
                Ok(start + tap as f64 * self.window.dilation(d) as f64 + offset)
            };
            // Neighbours along the axes processed so far, with their weights.
            let mut near = vec![(0usize, 1.0f64)];
            for d in 0..rank {
                let p = position(d)?;
                let low = p.floor();
                let ends = [(low, 1.0 - (p - low)), (low + 1.0, p - low)];
                let pairs = near.iter().flat_map(|from| ends.map(|to| (*from, to)));
                let next = pairs.filter_map(|((base, w), (v, share))| {
                    #[expect(clippy::cast_possible_truncation, reason = "positions outside saturate")]
                    let j = usize::try_from(v as i64).ok().filter(|j| *j < spatial[d])?;
                    Some((base + j * steps[d], w * share))
                });
                near = next.collect();
            }
            quota::check()?;
            let factor = factors.as_ref().map_or(Ok(1.0), |f| at(f, i))?;
            for c in group * share..(group + 1) * share {
                let base = (n * channels + c) * plane;
                let terms = near.iter().map(|(j, w)| Ok(w * at(&data, base + j)?));
                let v = terms.sum::<OpResult<f64>>()?;
                let of_group = c / own.max(1);
                for o in of_group * outs_share..(of_group + 1) * outs_share {
                    let weight = at(&weights, (o * own + c % own) * all + tap)?;
                    if let Some(y) = y.get_mut((n * outs + o) * area + place) {
                        *y += weight * factor * v;
                    }
                }
            }
        }
        if let Some(bias) = bias {
            for (i, y) in y.iter_mut().enumerate() {
                *y += at(&bias, i / area % outs)?;
            }
        }
        Ok(vec![HostTensor::from_f64s(x.dtype(), &shape, &y)?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let groups = |name| match a.int(name)?.unwrap_or(1) {
        n if (1..=i64::from(i32::MAX)).contains(&n) => Ok(n),
        n => Err(OpError::expected(format!("attribute `{name}`"), "1 or more", n)),
    };
    Ok(Box::new(DeformConv {
        window: Window::import(a)?,
        group: groups("group")?,
        offset_group: groups("offset_group")?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("DeformConv", 19, 5)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let op = |group, offset_group, pads: &[i64]| DeformConv {
        window: Window {
            pads: pads.to_vec(),
            ..Window::new(&[])
        },
        group,
        offset_group,
    };
    let mut whole = vec![input(&[2, 4, 5, 4]), input(&[6, 2, 3, 2]), input(&[2, 24, 5, 3])];
    whole.extend([input(&[6]), input(&[2, 12, 5, 3])]);
    vec![
        Case::new(
            op(1, 1, &[]),
            vec![input(&[1, 1, 3, 3]), input(&[1, 1, 2, 2]), input(&[1, 8, 2, 2])],
        )
        .host_only("no kernel"),
        Case::new(op(2, 2, &[1, 0, 1, 0]), whole).host_only("no kernel"),
    ]
}
