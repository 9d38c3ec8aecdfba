//! Tables of functions of one 8-bit integer.

use super::domain::{Domain, New};
use super::shapes::usual_axis;
use super::values::{Quantized, Result8};
use super::view::View;
use super::{Built, Found, Matched, Site, refuse};
use crate::graph::op::int8;
use crate::graph::op::int8_table::Int8Table;
use crate::graph::{Edit, ValueId};
use crate::quant::fixed::{Affine, Arithmetic, Multiplier, Output};
use crate::tensor::{DType, HostTensor};

/// A function of one activation.
#[derive(Debug)]
struct Table {
    x: Quantized,
    table: Vec<i8>,
    to: Quantized,
}

impl Site for Table {
    fn build(&self, domain: &mut Domain, edit: &mut Edit<'_>, new: &New<'_>) -> Built<()> {
        let axis = domain.axis(&self.x)?;
        let mut value = domain.request(edit, &self.x, axis)?;
        let is_identity = (-128..=127).eq(self.table.iter().map(|v| i32::from(*v)));
        if !is_identity {
            value = looked_up(edit, new, value, &self.table)?;
        }
        domain.set(&self.to, axis, value);
        Ok(())
    }
}

/// Looks up each element of `x` in a table.
pub(super) fn looked_up(edit: &mut Edit<'_>, new: &New<'_>, x: ValueId, table: &[i8]) -> Built<ValueId> {
    let table = int8::tensor(&[table.len()], table)?;
    let table = Domain::constant(edit, &format!("{}/table", new.name), table);
    Ok(Domain::add(edit, new, Int8Table, &[x, table]))
}

/// The site of a function of one activation that is given as a table.
pub(super) fn tabulated(x: Quantized, table: Vec<i8>, to: Quantized) -> Found {
    if x.shape != to.shape {
        return Err(refuse("constants that add axes"));
    }
    usual_axis(&x.shape)?;
    Ok(Box::new(Table { x, table, to }))
}

/// A quantization of integers to another map.
pub(super) fn requantized(view: &View<'_, '_>, arithmetic: Arithmetic) -> Found {
    let to = view.rescaled()?;
    let (x, output) = (view.operand(0)?, Output::new(to.map.zero));
    let table = rescaling(x.map, to.map, output, arithmetic);
    tabulated(x, table, to)
}

/// An elementwise function of operand `x` alone.
pub(super) fn of_one(view: &View<'_, '_>, x: usize, arithmetic: Arithmetic) -> Found {
    let (x, to) = (view.operand(x)?, view.result()?);
    if let Some(bounds) = view.clamp() {
        let both = Result8 {
            bounds: [0, 1].map(|i| bounds[i].clamp(to.bounds[0], to.bounds[1])),
            ..to.clone()
        };
        let table = rescaling(x.map, to.to.map, both.output(arithmetic), arithmetic);
        return tabulated(x, table, to.to);
    }
    let (reals, output) = (view.function(x.map)?, to.output(arithmetic));
    let table = of_results(&reals, x.map, to.to.map, output, arithmetic);
    tabulated(x, table, to.to)
}

/// The float results of a function for the integers -128 to 127 with this map, which it gets as
/// elements of `dtype`.
pub(super) fn sampled(
    dtype: DType,
    map: Affine,
    function: impl FnOnce(HostTensor) -> Matched<HostTensor>,
) -> Matched<Vec<f32>> {
    let reals: Vec<f32> = (-128..=127).map(|q| map.real(q)).collect();
    let x = HostTensor::from_floats(dtype, &[reals.len()], &reals).map_err(|e| refuse(&e.to_string()))?;
    let y = function(x)?;
    if y.len() != reals.len() || !y.dtype().is_float() {
        return Err(refuse("a function whose result is not one float per element"));
    }
    Ok(y.to_f32().map_err(|e| refuse(&e.to_string()))?.into_owned())
}

/// The table of a function of `x` with these float results for the integers -128 to 127. In fixed
/// point, a function with one slope on each side of 0 is computed as in TensorFlow Lite.
pub(super) fn of_results(
    results: &[f32],
    x: Affine,
    to: Affine,
    output: Output,
    arithmetic: Arithmetic,
) -> Vec<i8> {
    match slopes(x, results) {
        Some(slopes) if arithmetic == Arithmetic::Fixed => entries(x, to, output, arithmetic, slopes),
        _ => results
            .iter()
            .map(|real| output.quantized(*real, to.scale))
            .collect(),
    }
}

/// The table that rescales integers with map `x` to map `to`.
pub(super) fn rescaling(x: Affine, to: Affine, output: Output, arithmetic: Arithmetic) -> Vec<i8> {
    entries(x, to, output, arithmetic, [1.0, 1.0])
}

/// The table of a function that multiplies negative numbers by the first slope and all others by
/// the second one.
fn entries(x: Affine, to: Affine, output: Output, arithmetic: Arithmetic, slopes: [f32; 2]) -> Vec<i8> {
    let ratio = f64::from(x.scale) / f64::from(to.scale);
    let [below, above] = slopes.map(|s| Multiplier::new(ratio * f64::from(s)));
    let of = |q: i32| {
        let is_above = q >= x.zero;
        match (arithmetic, if is_above { above } else { below }) {
            (Arithmetic::Fixed, Some(factor)) => output.of(factor.apply(q - x.zero)),
            _ => output.quantized(x.real(q) * slopes[usize::from(is_above)], to.scale),
        }
    };
    (-128..=127).map(of).collect()
}

/// The slopes below and above 0 of a function such as `LeakyRelu`: linear on both sides, and 0 at
/// 0. `f` holds its results for all 8-bit integers.
fn slopes(x: Affine, f: &[f32]) -> Option<[f32; 2]> {
    let slope = |q: i32| {
        let at = usize::try_from(q + 128).ok()?;
        let (real, result) = (x.real(q), *f.get(at)?);
        (real != 0.0).then(|| result / real)
    };
    let ends = [-128, 127].map(|q| slope(q).filter(|s| s.is_finite() && *s >= 0.0));
    let [below, above] = [ends[0].or(ends[1])?, ends[1].or(ends[0])?];
    let close = |q: i32| {
        let wanted = if q < x.zero { below } else { above };
        slope(q).is_none_or(|s| (s - wanted).abs() <= 1e-5 * wanted.abs())
    };
    (x.zero > -128 && x.zero < 127 && (-128..=127).all(close)).then_some([below, above])
}
