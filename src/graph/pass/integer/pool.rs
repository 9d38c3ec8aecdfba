//! Maxima and means over windows, and over all spatial axes.

use super::domain::{Domain, New};
use super::shapes::{channels, check_window, reduced, spatial, taps};
use super::values::Quantized;
use super::view::View;
use super::{Built, Found, Matched, Site, moves, refuse, table};
use crate::graph::op::global_pool::GlobalPool;
use crate::graph::op::int8::{self, padded};
use crate::graph::op::int8_pool::{self, Int8Pool, mean_factors};
use crate::graph::op::pool::{self, Pool};
use crate::graph::op::reduce::{self, Reduce};
use crate::graph::op::window::Window;
use crate::graph::{Edit, OpError, ValueId};
use crate::quant::fixed::{Arithmetic, Factor, Output};

#[derive(Debug)]
struct Pooling {
    x: Quantized,
    kind: int8_pool::Kind,
    factors: Vec<Factor>,
    window: Window,
    output: Output,
    /// Rescales maxima to the map of the result, if it differs from that of x.
    table: Option<Vec<i8>>,
    to: Quantized,
}

impl Site for Pooling {
    fn build(&self, domain: &mut Domain, edit: &mut Edit<'_>, new: &New<'_>) -> Built<()> {
        let mut inputs = vec![domain.request(edit, &self.x, 1)?];
        if !self.factors.is_empty() {
            let list = int8::factors(&self.factors)?;
            inputs.push(Domain::constant(edit, &format!("{}/factors", new.name), list));
        }
        let op = Int8Pool {
            kind: self.kind,
            window: self.window.clone(),
            x_zero: self.x.map.zero,
            output: self.output,
        };
        let y = Domain::add(edit, new, op, &inputs);
        let mut y = self.without_axes(edit, new, y)?;
        if let Some(table) = &self.table {
            y = table::looked_up(edit, new, y, table)?;
        }
        domain.set(&self.to, 1, y);
        Ok(())
    }
}

impl Pooling {
    /// Removes the spatial axes of the result `y` if the model's result has none.
    fn without_axes(&self, edit: &mut Edit<'_>, new: &New<'_>, y: ValueId) -> Built<ValueId> {
        if self.to.shape.len() == self.x.shape.len() {
            return Ok(y);
        }
        let [n, c] = self.to.shape.as_slice() else {
            return Err(OpError::expected("rank of the result", 2, self.to.shape.len()));
        };
        let shape = [n.clone(), padded(c)?];
        moves::reshaped(edit, new, y, &shape)
    }
}

/// A pool over windows.
pub(super) fn windows(view: &View<'_, '_>, pool: &Pool, arithmetic: Arithmetic) -> Found {
    let kind = match pool.kind {
        pool::Kind::Max { indices: false, .. } => None,
        pool::Kind::Average { include_pad } => Some(include_pad),
        _ => return Err(refuse("a pooling other than maximum or average, or with indices")),
    };
    pooled(view, kind, pool.window.clone(), arithmetic)
}

/// A global pool or a reduction.
pub(super) fn whole(view: &View<'_, '_>, arithmetic: Arithmetic) -> Found {
    let (is_max, window) = over_all(view)?;
    pooled(view, (!is_max).then_some(false), window, arithmetic)
}

/// A maximum (`None`), or a mean that includes padding or not.
fn pooled(view: &View<'_, '_>, mean: Option<bool>, window: Window, arithmetic: Arithmetic) -> Found {
    let (x, to) = (view.operand(0)?, view.result()?);
    if x.shape.len() < 3 {
        return Err(refuse("an operand without spatial axes"));
    }
    check_window(&window)?;
    channels(&x.shape, 1)?;
    let same = x.map == to.to.map;
    let windows = view.op.downcast::<Pool>().is_some();
    let output = to.output(arithmetic);
    let taps = taps(&window.kernel)?;
    let (kind, factors) = match mean {
        None => (int8_pool::Kind::Max, Vec::new()),
        // In TensorFlow Lite, windowed means divide; means over all elements multiply.
        Some(include_pad) if same && windows && arithmetic == Arithmetic::Fixed => {
            (int8_pool::Kind::Mean { include_pad }, Vec::new())
        }
        Some(include_pad) => {
            let factors = mean_factors(arithmetic, x.map.scale, to.to.map.scale, taps);
            let factors = factors.ok_or_else(|| refuse("scales that are too far apart"))?;
            (int8_pool::Kind::Scaled { include_pad }, factors)
        }
    };
    let (output, table) = if mean.is_none() && !same {
        let table = table::rescaling(x.map, to.to.map, output, arithmetic);
        (Output::new(x.map.zero), Some(table))
    } else {
        (output, None)
    };
    Ok(Box::new(Pooling {
        x,
        kind,
        factors,
        window,
        output,
        table,
        to: to.to,
    }))
}

/// For a pool over all spatial axes: whether it takes the maximum, and its window.
fn over_all(view: &View<'_, '_>) -> Matched<(bool, Window)> {
    let shape = view.operand(0)?.shape;
    if let Some(pool) = view.op.downcast::<GlobalPool>() {
        let sizes = spatial(&shape)?;
        return match pool {
            GlobalPool::Average => Ok((false, Window::new(&sizes))),
            GlobalPool::Max => Ok((true, Window::new(&sizes))),
            GlobalPool::Lp { .. } => Err(refuse("a pooling other than maximum or average")),
        };
    }
    let reduce = view
        .op
        .downcast::<Reduce>()
        .ok_or_else(|| refuse("an operator that is not a reduction"))?;
    let is_max = match reduce.kind {
        reduce::Kind::Mean => false,
        reduce::Kind::Max => true,
        _ => return Err(refuse("a reduction other than maximum or mean")),
    };
    let list = match &reduce.axes {
        Some(axes) => axes.clone(),
        None => view.integers(1)?,
    };
    Ok((is_max, Window::new(&reduced(&shape, Some(&list))?)))
}
