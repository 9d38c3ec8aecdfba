//! Reads and quantizes weights in panels of columns, on all cores.

use super::weight::{Elements, Scaling, Weight, read_columns};
use transformer_lite::unstable::parallel;
use transformer_lite::unstable::quant::{ColumnMethod, Loss, Packed, QuantError, int4_error};

/// The error of a panel, with the element's index in the stored weight.
pub(super) fn explain(w: &Weight, first: usize, width: usize, e: QuantError) -> String {
    match e {
        QuantError::NotFinite { index, value } => {
            let (row, column) = (index / width.max(1), first + index % width.max(1));
            let at = if w.transposed {
                [column, row]
            } else {
                [row, column]
            };
            format!("element {at:?} is {value}")
        }
        other => other.to_string(),
    }
}

/// Error of a quantized weight, and of INT4 for comparison.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    pub loss: Loss,
    /// Sum of absolute errors of [`int4_error`] with the same groups.
    pub int4: f64,
}

/// A block of quantized columns.
pub(super) struct Panel {
    pub first: usize,
    pub packed: Packed,
}

/// First column and width of a panel that failed, and the error.
pub(super) type PanelError = (usize, usize, QuantError);

/// Quantizes a weight in panels of columns on `threads` threads and passes them on as they finish.
/// The result does not depend on the number of threads; of several errors, the one of the first
/// panel is returned.
pub(super) fn panels(
    threads: usize,
    tensor: Elements<'_>,
    w: &Weight,
    method: &dyn ColumnMethod,
    take: &mut dyn FnMut(Panel),
) -> Result<Losses, PanelError> {
    /// Floats per panel: enough to keep a core busy, few enough to fit its cache.
    const PANEL: usize = 1 << 16;
    let width = (PANEL / w.k).clamp(1, 64).next_multiple_of(2).min(w.n);
    let count = w.n.div_ceil(width);
    let mut losses = vec![Losses::default(); count];
    let make = |columns: &mut Vec<f32>, panel: usize| {
        let first = panel * width;
        let wide = width.min(w.n - first);
        read_columns(tensor, w, first, wide, columns);
        let groups = columns.chunks(w.k).flat_map(|c| c.chunks(w.group));
        let int4 = groups.map(int4_error).sum();
        let (packed, loss) =
            scaled_columns(tensor.scaling, w, first, columns, method).map_err(|e| (first, wide, e))?;
        Ok((packed, Losses { loss, int4 }))
    };
    parallel::for_each(threads, count, Vec::new, make, |panel, (packed, loss)| {
        losses[panel] = loss;
        let first = panel * width;
        take(Panel { first, packed });
    })?;
    let mut sum = Losses::default();
    for l in &losses {
        sum.loss.add(&l.loss);
        sum.int4 += l.int4;
    }
    Ok(sum)
}

/// The error of a weight that is quantized already.
pub(super) fn losses(tensor: Elements<'_>, w: &Weight, packed: &Packed) -> Losses {
    let (mut sum, mut column) = (Losses::default(), Vec::new());
    for j in 0..w.n {
        read_columns(tensor, w, j, 1, &mut column);
        sum.int4 += column.chunks(w.group).map(int4_error).sum::<f64>();
        for (i, given) in column.iter().enumerate() {
            sum.loss.note(*given, packed.get(i, j));
        }
    }
    sum
}

/// Scales and quantizes columns from `first` on. The loss refers to the original weights: decoded
/// values are scaled back.
fn scaled_columns(
    scaling: Scaling<'_>,
    w: &Weight,
    first: usize,
    given: &[f32],
    method: &dyn ColumnMethod,
) -> Result<(Packed, Loss), QuantError> {
    if scaling == Scaling::default() {
        return Packed::from_columns(w.bits, w.group, w.k, given, method);
    }
    let factor = |i: usize, j: usize| {
        let divisor = scaling.columns.and_then(|c| c.get(first + j)).map_or(1.0, |d| *d);
        scaling.rows.and_then(|r| r.get(i)).map_or(1.0, |f| *f) / divisor
    };
    let place = |at: usize| (at % w.k, at / w.k);
    let scaled = given.iter().enumerate().map(|(at, v)| {
        let (i, j) = place(at);
        v * factor(i, j)
    });
    let scaled: Vec<f32> = scaled.collect();
    let (packed, _) = Packed::from_columns(w.bits, w.group, w.k, &scaled, method)?;
    let mut loss = Loss::default();
    for (at, v) in given.iter().enumerate() {
        let (i, j) = place(at);
        loss.note(*v, packed.get(i, j) / factor(i, j));
    }
    Ok((packed, loss))
}
