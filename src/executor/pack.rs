//! Converts tensors to the form that a device stores: activations, constants, and weights packed
//! for their kernels.

use crate::lower::Pack;
use crate::tensor::{Bytes, DType, HostTensor, Panels};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;
use std::sync::Arc;

/// A tensor's elements in device form: floats as `f16` or `f32`, integers in 32 or 64 bits. Padded
/// to an even number of elements.
pub(super) fn to_device(t: &HostTensor, device: DType) -> Result<Vec<u8>, String> {
    let mut bytes = match device {
        DType::F32 | DType::F16 => return Ok(floats(&t.to_f32().map_err(|e| e.to_string())?, device)),
        DType::U32 | DType::I8 | DType::U8 => t.bytes().map_err(|e| e.to_string())?.to_vec(),
        DType::I64 => bytemuck::cast_slice(&t.to_bits().map_err(|e| e.to_string())?).to_vec(),
        _ => {
            let mut out = Vec::with_capacity(t.len() * 4);
            for v in t.to_i64().map_err(|e| e.to_string())? {
                let v = i32::try_from(v)
                    .map_err(|_| format!("{v} does not fit in a 32-bit integer on the device"))?;
                out.extend_from_slice(&v.to_le_bytes());
            }
            out
        }
    };
    pad(&mut bytes, device);
    Ok(bytes)
}

/// Pads to a multiple of [`DType::device_padding`].
pub(super) fn pad(bytes: &mut Vec<u8>, device: DType) {
    let unit = device.device_padding();
    bytes.resize(bytes.len().next_multiple_of(unit).max(unit), 0);
}

/// Converts `bytes`, elements of the device type `device`, to a tensor of type `dtype`. Bytes after
/// its elements are ignored.
pub(super) fn from_device(
    bytes: &[u8],
    dtype: DType,
    device: DType,
    shape: &[usize],
) -> Result<HostTensor, String> {
    let count: usize = shape.iter().product();
    let size = device.device_bytes();
    let too_few = || {
        format!(
            "found {} bytes, expected {count} elements of {size} bytes",
            bytes.len()
        )
    };
    let bytes = bytes.get(..count * size).ok_or_else(too_few)?;
    let words = || bytes.chunks_exact(4).filter_map(|b| b.first_chunk::<4>());
    let tensor = match device {
        DType::F16 => {
            let halves = bytes.chunks_exact(2).filter_map(|b| b.first_chunk::<2>());
            let data: Vec<f32> = halves.map(|b| f16::from_le_bytes(*b).to_f32()).collect();
            HostTensor::from_floats(dtype, shape, &data)
        }
        DType::F32 => {
            let data: Vec<f32> = words().map(|b| f32::from_le_bytes(*b)).collect();
            HostTensor::from_floats(dtype, shape, &data)
        }
        DType::I8 | DType::U8 => HostTensor::from_bytes(dtype, shape, bytes),
        DType::I64 => {
            let pairs = bytes.chunks_exact(8).filter_map(|b| b.first_chunk::<8>());
            let data: Vec<i64> = pairs.map(|b| i64::from_le_bytes(*b)).collect();
            HostTensor::from_ints(dtype, shape, &data)
        }
        _ => {
            let data: Vec<i64> = words().map(|b| i64::from(i32::from_le_bytes(*b))).collect();
            HostTensor::from_ints(dtype, shape, &data)
        }
    };
    tensor.map_err(|e| e.to_string())
}

fn floats(data: &[f32], dtype: DType) -> Vec<u8> {
    let mut bytes = match dtype {
        DType::F16 => floats_to_halves(data),
        _ => bytemuck::cast_slice(data).to_vec(),
    };
    pad(&mut bytes, dtype);
    bytes
}

/// Converts to halves; finite values beyond the range saturate.
fn floats_to_halves(data: &[f32]) -> Vec<u8> {
    const AT_ONCE: usize = 256;
    let max = f16::MAX.to_f32();
    let mut halves = vec![f16::ZERO; data.len()];
    let mut bounded = [0f32; AT_ONCE];
    for (to, from) in halves.chunks_mut(AT_ONCE).zip(data.chunks(AT_ONCE)) {
        for (b, v) in bounded.iter_mut().zip(from) {
            *b = if v.is_infinite() { *v } else { v.clamp(-max, max) };
        }
        to.convert_from_f32_slice(&bounded[..from.len()]);
    }
    bytemuck::cast_slice(&halves).to_vec()
}

/// The bytes of constants in the form `pack`: of one constant, or of several with their columns
/// side by side.
pub(super) fn pack(tensors: &[&HostTensor], pack: &Pack) -> Result<Vec<u8>, String> {
    if let Pack::Columns {
        dtype: DType::U32,
        transpose: false,
        first,
        count,
        stride,
        panel,
    } = pack
    {
        return items(tensors, *first..first + count, *stride, *panel);
    }
    let [t] = tensors else {
        return Err(format!(
            "expected one tensor in this packed form, found {}",
            tensors.len()
        ));
    };
    match *pack {
        Pack::Plain { dtype } => to_device(t, dtype),
        Pack::Bytes => to_device(t, DType::U32),
        Pack::Words { tile, sums } => words(t, tile.max(1), sums),
        Pack::Rows { dtype, first, count } => to_device(&rows(t, first, count)?, dtype),
        Pack::Columns {
            dtype,
            transpose,
            first,
            count,
            stride,
            panel,
        } => Ok(floats(
            &columns(t, transpose, first..first + count, stride, panel.max(1))?,
            dtype,
        )),
        Pack::Tiles {
            dtype,
            rows,
            tile,
            first,
            count,
        } => Ok(floats(&tiles(t, rows, tile, first..first + count)?, dtype)),
    }
}

/// Where a tensor that is stored in the form `pack` has its bytes; `None` if it is not.
pub(super) fn already_packed<'a>(
    tensors: &[&'a HostTensor],
    pack: &Pack,
) -> Option<(&'a Arc<dyn Bytes>, Range<usize>)> {
    let [tensor] = tensors else { return None };
    let panels = tensor.panels()?;
    let whole = Pack::Columns {
        dtype: DType::U32,
        transpose: false,
        first: 0,
        count: panels.columns(),
        stride: panels.columns(),
        panel: panels.width(),
    };
    let (source, start) = panels.source();
    (*pack == whole).then(|| (source, start..start + tensor.byte_len()))
}

/// A range of rows, the elements of the first axis.
fn rows(t: &HostTensor, first: usize, count: usize) -> Result<HostTensor, String> {
    let mut shape = t.shape().to_vec();
    let axis = shape
        .first_mut()
        .ok_or("cannot select rows of a tensor without axes")?;
    let size = t.byte_len().checked_div(*axis).unwrap_or(0);
    let bytes = t
        .bytes()
        .map_err(|e| e.to_string())?
        .get(first * size..(first + count) * size)
        .ok_or("rows outside the tensor")?;
    *axis = count;
    HostTensor::from_bytes(t.dtype(), &shape, bytes).map_err(|e| e.to_string())
}

/// A range of the columns of a matrix of floats, zero-padded to `stride` and cut into panels of
/// `panel`.
fn columns(
    t: &HostTensor,
    transpose: bool,
    columns: Range<usize>,
    stride: usize,
    panel: usize,
) -> Result<Vec<f32>, String> {
    if !stride.is_multiple_of(panel) {
        return Err(format!(
            "{stride} columns are not a multiple of panels of {panel}"
        ));
    }
    let (last, before) = match t.shape().split_last() {
        Some((last, before)) => (*last, before.iter().product()),
        None => (1, 1),
    };
    // Logical rows, and the strides of a logical (row, column).
    let (depth, row_step, column_step) = match transpose {
        true => (last, 1, last),
        false => (before, last, 1),
    };
    let data = t.to_f32().map_err(|e| e.to_string())?;
    let mut out = vec![0f32; depth * stride];
    for (i, row) in out.chunks_exact_mut(panel).enumerate() {
        let (start, r) = (i / depth.max(1) * panel, i % depth.max(1));
        for (c, item) in columns.clone().skip(start).zip(row) {
            *item = *data
                .get(r * row_step + c * column_step)
                .ok_or("columns outside the tensor")?;
        }
    }
    Ok(out)
}

/// A range of tiles of `tile` rows, whose elements are side by side, of matrices with this many
/// rows.
fn tiles(t: &HostTensor, rows: usize, tile: usize, tiles: Range<usize>) -> Result<Vec<f32>, String> {
    let data = t.to_f32().map_err(|e| e.to_string())?;
    let matrices = *t.shape().first().ok_or("tiles of a tensor without axes")?;
    let depth = data.len().checked_div(matrices).unwrap_or(0);
    let per_matrix = rows.div_ceil(tile).max(1);
    let mut out = vec![0f32; tiles.len() * tile * depth];
    for (i, part) in tiles.zip(out.chunks_exact_mut((tile * depth).max(1))) {
        let (matrix, row) = (i / per_matrix, i % per_matrix * tile);
        for r in row..(row + tile).min(rows) {
            let from = (matrix * rows + r) * depth;
            let values = data.get(from..from + depth).ok_or("tiles outside the tensor")?;
            for (to, v) in part.iter_mut().skip(r - row).step_by(tile).zip(values) {
                *to = *v;
            }
        }
    }
    Ok(out)
}

/// Slices of bytes along the first axis, as words in panels of `tile` slices; see [`Pack::Words`].
fn words(t: &HostTensor, tile: usize, sums: bool) -> Result<Vec<u8>, String> {
    let slices = *t.shape().first().ok_or("slices of a tensor without axes")?;
    let bytes = t.bytes().map_err(|e| e.to_string())?;
    let each = bytes.len().checked_div(slices).unwrap_or(0);
    let rows = each.div_ceil(4) + usize::from(sums);
    let mut out = vec![0u8; slices.next_multiple_of(tile) * rows * 4];
    for (i, slice) in bytes.chunks(each.max(1)).enumerate() {
        let (panel, lane) = (i / tile * rows * tile, i % tile);
        let mut put = |row: usize, word: &[u8]| {
            let at = (panel + row * tile + lane) * 4;
            let room = out.get_mut(at..at + word.len());
            room.ok_or("a word outside the panels")
                .map(|room| room.copy_from_slice(word))
        };
        for (row, word) in slice.chunks(4).enumerate() {
            put(row, word)?;
        }
        if sums {
            let sum: i32 = slice.iter().map(|v| i32::from(v.cast_signed())).sum();
            put(rows - 1, &sum.to_le_bytes())?;
        }
    }
    pad(&mut out, DType::U32);
    Ok(out)
}

/// A range of the columns of tensors that stand side by side and have 4-byte items: words of
/// quantized weights `[rows, columns]`, or pairs of halves `[rows, columns, 2]`. Columns are
/// zero-padded to `stride` and cut into panels of `panel`.
fn items(
    tensors: &[&HostTensor],
    columns: Range<usize>,
    stride: usize,
    panel: usize,
) -> Result<Vec<u8>, String> {
    let rows = |t: &HostTensor| t.shape().first().copied().unwrap_or(1).max(1);
    let depth = tensors.first().map_or(1, |t| rows(t));
    let mut out = vec![0u8; (depth * stride * 4).next_multiple_of(8)];
    let mut start = 0;
    for t in tensors {
        if rows(t) != depth {
            return Err(format!(
                "expected tensors of {depth} rows, found one of {}",
                rows(t)
            ));
        }
        let own = t.byte_len() / 4 / depth;
        // A row-major tensor is one panel.
        let (bytes, width) = (
            t.stored().map_err(|e| e.to_string())?,
            t.panels().map_or(own, Panels::width),
        );
        // The requested columns of this tensor, counted over all tensors.
        let wanted = columns.start.max(start)..columns.end.min(start + own);
        let mut column = wanted.start;
        while column < wanted.end {
            // Those within one panel of both.
            let (from, to) = (column - start, column - columns.start);
            let count = (panel - to % panel)
                .min(width - from % width)
                .min(wanted.end - column);
            let place = |column: usize, width: usize, row: usize| {
                let at = ((column / width * depth + row) * width + column % width) * 4;
                at..at + count * 4
            };
            for row in 0..depth {
                let piece = bytes
                    .get(place(from, width, row))
                    .ok_or("columns outside the tensor")?;
                out.get_mut(place(to, panel, row))
                    .ok_or("panels outside the packed form")?
                    .copy_from_slice(piece);
            }
            column += count;
        }
        start += own;
    }
    if columns.end > start {
        return Err("columns outside the tensor".to_owned());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::in_panels;

    /// Words `1000 * which + 100 * row + column` of so many columns.
    fn words(which: u32, rows: u32, columns: u32) -> HostTensor {
        let all = (0..rows).flat_map(|r| (0..columns).map(move |c| 1000 * which + 100 * r + c));
        let shape = [rows as usize, columns as usize];
        HostTensor::from_u32(&shape, &all.collect::<Vec<_>>()).unwrap()
    }

    fn stored_in_panels(t: &HostTensor, width: usize) -> HostTensor {
        let [rows, columns] = t.shape().try_into().unwrap();
        let bytes = in_panels(t.bytes().unwrap(), rows, width).unwrap();
        let panels = Panels::new(Arc::new(bytes), 0, [rows, columns], width).unwrap();
        HostTensor::from_panels(t.dtype(), t.shape(), panels).unwrap()
    }

    fn columns(
        tensors: &[HostTensor],
        (first, count): (usize, usize),
        panel: usize,
    ) -> Result<Vec<u32>, String> {
        let form = Pack::Columns {
            dtype: DType::U32,
            transpose: false,
            first,
            count,
            stride: count.next_multiple_of(16),
            panel,
        };
        let bytes = pack(&tensors.iter().collect::<Vec<_>>(), &form)?;
        Ok(bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }

    #[test]
    fn columns_of_several_tensors_stand_side_by_side() {
        let tensors = [words(1, 3, 66), words(2, 3, 10), words(3, 3, 20)];
        let stored = [tensors.clone(), tensors.map(|t| stored_in_panels(&t, 2))];
        let item = |row: usize, column: usize| {
            let ends = [66, 76, 96];
            let which = ends.iter().position(|end| column < *end).unwrap();
            let start = if which == 0 { 0 } else { ends[which - 1] };
            u32::try_from(1000 * (which + 1) + 100 * row + column - start).unwrap()
        };
        // Ranges that begin and end in each of them; panels in which tensors meet, and a panel of
        // all.
        for (first, count) in [
            (0usize, 96usize),
            (0, 76),
            (64, 32),
            (66, 10),
            (70, 26),
            (60, 9),
            (80, 2),
        ] {
            let stride = count.next_multiple_of(16);
            for (tensors, panel) in [8, 16, stride]
                .map(|p| stored.each_ref().map(|s| (s, p)))
                .concat()
            {
                let packed = columns(tensors, (first, count), panel).unwrap();
                assert_eq!(packed.len(), 3 * stride);
                for (i, found) in packed.into_iter().enumerate() {
                    let (block, row) = (i / panel / 3, i / panel % 3);
                    let column = block * panel + i % panel;
                    let wanted = if column < count {
                        item(row, first + column)
                    } else {
                        0
                    };
                    assert_eq!(
                        found, wanted,
                        "{first}+{count}, panels of {panel}: row {row}, column {column}"
                    );
                }
            }
        }
    }

    #[test]
    fn columns_that_are_not_there_are_errors() {
        let alike = [words(1, 3, 66), words(2, 3, 10)];
        assert!(columns(&alike, (70, 6), 16).is_ok());
        assert_eq!(
            columns(&alike, (70, 7), 16).unwrap_err(),
            "columns outside the tensor"
        );
        let unlike = [words(1, 3, 66), words(2, 4, 10)];
        crate::testing::assert_carries(columns(&unlike, (0, 76), 16).unwrap_err(), &["4", "3"]);
    }
}
