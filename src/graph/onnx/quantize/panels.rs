//! Weights read and quantized in panels of columns, on all cores.

use super::Scaling;
use super::plan::Weight;
use crate::quant::{ColumnMethod, Loss, Packed, QuantError, int4_error};
use crate::tensor::DType;
use half::f16;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// An error of a panel, with the element's place in the weight as it is stored.
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

/// How far a weight is from what was given, and how far INT4 would be.
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

/// First column and width of a panel that failed, and why.
pub(super) type PanelError = (usize, usize, QuantError);

/// A weight as it is stored.
#[derive(Clone, Copy)]
pub(super) struct Elements<'a> {
    pub dtype: DType,
    pub bytes: &'a [u8],
    /// What its columns are multiplied by when they are read.
    pub scaling: Scaling<'a>,
}

/// Quantizes a weight in panels of columns on all cores, and hands them over as they get done. The result does not
/// depend on the number of cores; of several errors the one of the first panel is told.
pub(super) fn panels(
    tensor: Elements<'_>,
    w: &Weight,
    method: &dyn ColumnMethod,
    take: &mut dyn FnMut(Panel),
) -> Result<Losses, PanelError> {
    /// Floats in a panel: enough to keep a core busy, few enough to stay in its cache.
    const PANEL: usize = 1 << 16;
    let width = (PANEL / w.k).clamp(1, 64).next_multiple_of(2).min(w.n);
    let count = w.n.div_ceil(width);
    let threads = std::thread::available_parallelism()
        .map_or(1, NonZeroUsize::get)
        .min(count);
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut losses = vec![Losses::default(); count];
    let mut error: Option<PanelError> = None;
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(2 * threads);
        for _ in 0..threads {
            let send = send.clone();
            let (next, failed) = (&next, &failed);
            scope.spawn(move || {
                let mut columns = Vec::new();
                while !failed.load(Ordering::Relaxed) {
                    let panel = next.fetch_add(1, Ordering::Relaxed);
                    if panel >= count {
                        break;
                    }
                    let first = panel * width;
                    let wide = width.min(w.n - first);
                    read_columns(tensor, w, first, wide, &mut columns);
                    let result =
                        Packed::from_columns(w.bits, w.group, w.k, &columns, method).map(|(packed, loss)| {
                            let groups = columns.chunks(w.k).flat_map(|c| c.chunks(w.group));
                            let int4 = groups.map(int4_error).sum();
                            (packed, Losses { loss, int4 })
                        });
                    if result.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    if send.send((panel, first, wide, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        for (panel, first, wide, result) in receive {
            match result {
                Ok((packed, loss)) => {
                    losses[panel] = loss;
                    take(Panel { first, packed });
                }
                Err(e) if error.as_ref().is_none_or(|(at, ..)| first < *at) => error = Some((first, wide, e)),
                Err(_) => {}
            }
        }
    });
    match error {
        Some(e) => Err(e),
        None => {
            let mut sum = Losses::default();
            for l in &losses {
                sum.loss.add(&l.loss);
                sum.int4 += l.int4;
            }
            Ok(sum)
        }
    }
}

/// At most `most` columns, evenly spread, one after the other.
pub(super) fn sample(tensor: Elements<'_>, w: &Weight, most: usize) -> Vec<f32> {
    let count = most.min(w.n);
    let (mut all, mut column) = (Vec::with_capacity(count * w.k), Vec::new());
    for i in 0..count {
        read_columns(tensor, w, i * w.n / count, 1, &mut column);
        all.extend_from_slice(&column);
    }
    all
}

/// Columns `first .. first + wide` of the matrix to pack, scaled, one after the other.
pub(super) fn read_columns(
    tensor: Elements<'_>,
    w: &Weight,
    first: usize,
    wide: usize,
    columns: &mut Vec<f32>,
) {
    columns.clear();
    columns.resize(wide * w.k, 0.0);
    let chunks = tensor.bytes;
    if tensor.dtype == DType::F16 {
        spread(chunks.as_chunks().0, w, first, wide, columns, |b| {
            f16::from_le_bytes(b).to_f32()
        });
    } else {
        spread(chunks.as_chunks().0, w, first, wide, columns, f32::from_le_bytes);
    }
    scale(tensor.scaling, w.k, first, columns);
}

/// Multiplies columns from `first` on by the factors of rows, and divides them by theirs.
fn scale(scaling: Scaling<'_>, k: usize, first: usize, columns: &mut [f32]) {
    if scaling == Scaling::default() {
        return;
    }
    for (j, column) in columns.chunks_exact_mut(k).enumerate() {
        let divisor = scaling.columns.and_then(|c| c.get(first + j)).map_or(1.0, |d| *d);
        for (i, w) in column.iter_mut().enumerate() {
            let factor = scaling.rows.and_then(|r| r.get(i)).map_or(1.0, |f| *f);
            *w *= factor / divisor;
        }
    }
}

fn spread<const SIZE: usize>(
    elements: &[[u8; SIZE]],
    w: &Weight,
    first: usize,
    wide: usize,
    columns: &mut [f32],
    value: impl Fn([u8; SIZE]) -> f32,
) {
    if w.transposed {
        for (to, from) in columns.iter_mut().zip(&elements[first * w.k..]) {
            *to = value(*from);
        }
    } else {
        for (i, row) in elements.chunks_exact(w.n).enumerate() {
            for (column, from) in columns.chunks_exact_mut(w.k).zip(&row[first..first + wide]) {
                column[i] = value(*from);
            }
        }
    }
}
