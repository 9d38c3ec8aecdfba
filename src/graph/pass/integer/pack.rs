//! Packs weights, biases and factors of matmuls and convolutions for the integer domain.

use super::values::{Bias, Quantized, Result8, Weights};
use super::{Refusal, refuse};
use crate::graph::op::int8;
use crate::graph::op::int8_conv::Kind;
use crate::graph::op::window::Window;
use crate::num;
use crate::quant::fixed::{Arithmetic, Factor};

/// A matmul or convolution with constant weights.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub x: Quantized,
    pub weights: Weights,
    pub bias: Bias,
    pub form: ProductKind,
}

/// The kind of product, and the layout of its weights in the model.
#[derive(Clone, Debug)]
pub(super) enum ProductKind {
    /// `[k, n]`, or `[n, k]` if transposed.
    Matmul { transposed: bool },
    /// `[m, c / group, kernel..]`.
    Conv { window: Window, group: usize },
}

/// Weights as operators of the integer domain store them.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    pub kind: Kind,
    pub shape: Vec<usize>,
    pub data: Vec<i8>,
    /// Integers with the scale of the sums.
    pub bias: Vec<i64>,
    pub factors: Vec<Factor>,
}

/// Number of groups.
fn groups(p: &Product) -> usize {
    match &p.form {
        ProductKind::Matmul { .. } => 1,
        ProductKind::Conv { group, .. } => *group,
    }
}

/// Largest number of groups that run as one group, which multiplies the work by that number.
const MOST_GROUPS: usize = 8;

/// Weights as `[output channel, tap, input channel of the group]`.
struct TapRows {
    outputs: usize,
    taps: usize,
    depth: usize,
    data: Vec<i8>,
}

impl TapRows {
    fn new(p: &Product) -> Result<Self, Refusal> {
        let (shape, w) = (&p.weights.shape, &p.weights.data);
        let (outputs, taps, depth, transposed) = match (&p.form, shape.as_slice()) {
            (ProductKind::Matmul { transposed }, [a, b]) if *transposed => (*a, 1, *b, true),
            (ProductKind::Matmul { .. }, [a, b]) => (*b, 1, *a, false),
            (ProductKind::Conv { .. }, [m, c, kernel @ ..]) => (*m, kernel.iter().product(), *c, true),
            _ => return Err(refuse("weights with too few axes")),
        };
        let mut data = Vec::with_capacity(w.len());
        for o in 0..outputs {
            for t in 0..taps {
                for c in 0..depth {
                    let at = if transposed {
                        (o * depth + c) * taps + t
                    } else {
                        c * outputs + o
                    };
                    data.push(*num::at(w, at)?);
                }
            }
        }
        Ok(Self {
            outputs,
            taps,
            depth,
            data,
        })
    }

    fn row(&self, o: usize) -> &[i8] {
        let n = self.taps * self.depth;
        &self.data[o * n..(o + 1) * n]
    }
}

/// The weights, biases and factors of a product. Those of padding channels are 0. Refuses products
/// whose sums may exceed 32 bits.
pub(super) fn pack(p: &Product, to: &Result8, arithmetic: Arithmetic) -> Result<Packed, Refusal> {
    let rows = TapRows::new(p)?;
    let group = groups(p);
    let whole = |n: usize| n.next_multiple_of(int8::WORD);
    let stored = whole(rows.outputs);
    let (mut bias, mut factors) = (Vec::with_capacity(stored), Vec::with_capacity(stored));
    for o in 0..rows.outputs {
        let scale = p.weights.scale(o)?;
        let sum: i64 = rows.row(o).iter().map(|w| i64::from(*w)).sum();
        let most: i64 = rows.row(o).iter().map(|w| i64::from(w.unsigned_abs())).sum();
        let of_sums = f64::from(p.x.map.scale) * f64::from(scale);
        let folded = p
            .bias
            .integer(o, of_sums)
            .saturating_sub(i64::from(p.x.map.zero) * sum);
        if most == 0 && i32::try_from(folded).is_err() {
            let (own, factor) = alone(p.bias.real(o, of_sums), to, arithmetic)?;
            bias.push(own);
            factors.push(factor);
            continue;
        }
        // This also bounds the partial sums of kernels.
        if folded.saturating_abs().saturating_add(256 * most) > i64::from(i32::MAX) {
            return Err(refuse("sums that may exceed 32 bits"));
        }
        bias.push(folded);
        let factor = Factor::of_scales(arithmetic, p.x.map.scale, scale, to.to.map.scale);
        factors
            .push(factor.ok_or_else(|| refuse("an output scale far below the product of the input scales"))?);
    }
    let none = Factor::of_scales(arithmetic, 0.0, 1.0, 1.0);
    bias.resize(stored, 0);
    factors.resize(stored, none.ok_or_else(|| refuse("a factor of 0"))?);
    let (kind, shape, data) = stored_weights(p, &rows, group)?;
    Ok(Packed {
        kind,
        shape,
        data,
        bias,
        factors,
    })
}

/// The bias of a channel whose weights are all 0, and a factor for it. At the scale of such weights
/// the bias may exceed 32 bits.
fn alone(bias: f64, to: &Result8, arithmetic: Arithmetic) -> Result<(i64, Factor), Refusal> {
    /// Integers of the bias per step of the result.
    const PARTS: f32 = 65536.0;
    let steps = (bias / f64::from(to.to.map.scale)).clamp(-1024.0, 1024.0);
    let factor = Factor::of_scales(arithmetic, 1.0 / PARTS, 1.0, 1.0);
    #[expect(clippy::cast_possible_truncation, reason = "at most 26 bits")]
    let own = (steps * f64::from(PARTS)).round() as i64;
    Ok((
        own,
        factor.ok_or_else(|| refuse("a factor that is not a number"))?,
    ))
}

/// The weights in the layout for their groups.
fn stored_weights(p: &Product, rows: &TapRows, group: usize) -> Result<(Kind, Vec<usize>, Vec<i8>), Refusal> {
    let whole = |n: usize| n.next_multiple_of(int8::WORD);
    let outputs = whole(rows.outputs);
    let ProductKind::Conv { window, .. } = &p.form else {
        let depth = whole(rows.depth);
        let mut data = vec![0; outputs * depth];
        for (to, o) in data.chunks_mut(depth.max(1)).zip(0..rows.outputs) {
            to.iter_mut().zip(rows.row(o)).for_each(|(to, w)| *to = *w);
        }
        return Ok((Kind::Matmul, vec![outputs, depth], data));
    };
    let (window, kernel) = (window.clone(), num::part(&p.weights.shape, 2..)?);
    let per_group = rows.outputs / group.max(1);
    if group > 1 && rows.depth == 1 && per_group == 1 {
        let mut data = vec![0; rows.taps * outputs];
        for o in 0..rows.outputs {
            for (t, w) in rows.row(o).iter().enumerate() {
                data[t * outputs + o] = *w;
            }
        }
        let mut shape = kernel.to_vec();
        shape.push(outputs);
        return Ok((Kind::Depthwise { window }, shape, data));
    }
    // Groups that do not fill words run as one, with weights of 0 for channels of other groups.
    let grouped = group > 1 && rows.depth.is_multiple_of(int8::WORD) && per_group.is_multiple_of(int8::WORD);
    let depth = whole(if grouped { rows.depth } else { rows.depth * group });
    let grows = !grouped && group > MOST_GROUPS;
    if grows || rows.taps * depth * outputs > 1 << 28 {
        return Err(refuse(
            "groups whose channels are not multiples of 4, or weights that are too large",
        ));
    }
    let mut data = vec![0; outputs * rows.taps * depth];
    for o in 0..rows.outputs {
        let first = if grouped {
            0
        } else {
            o / per_group.max(1) * rows.depth
        };
        for (t, part) in rows.row(o).chunks(rows.depth.max(1)).enumerate() {
            let at = (o * rows.taps + t) * depth + first;
            data[at..at + part.len()].copy_from_slice(part);
        }
    }
    let mut shape = vec![outputs];
    shape.extend(kernel);
    shape.push(depth);
    let group = if grouped { num::signed(group) } else { 1 };
    Ok((Kind::Conv { window, group }, shape, data))
}
