//! Tensors in the form that a device stores: activations, constants, and weights packed for their kernels.

use crate::plan::lower::Pack;
use crate::tensor::{DType, HostTensor};
use half::f16;

/// A tensor's elements in device form: floats as `f16` or `f32`, everything else as 32-bit integers. The length is that of
/// an even number of elements.
pub(super) fn to_device(t: &HostTensor, device: DType) -> Result<Vec<u8>, String> {
    let mut bytes = match device {
        DType::F32 | DType::F16 => return Ok(floats(&t.to_f32().map_err(|e| e.to_string())?, device)),
        DType::U32 => t.bytes().map_err(|e| e.to_string())?.to_vec(),
        _ => {
            let mut out = Vec::with_capacity(t.len() * 4);
            for v in t.to_i64().map_err(|e| e.to_string())? {
                let v = i32::try_from(v)
                    .map_err(|_| format!("{v} does not fit the 32 bits of integers on a device"))?;
                out.extend_from_slice(&v.to_le_bytes());
            }
            out
        }
    };
    bytes.resize(bytes.len().next_multiple_of(8).max(8), 0);
    Ok(bytes)
}

/// Floats as the device stores them, an even number of elements.
fn floats(data: &[f32], dtype: DType) -> Vec<u8> {
    let mut bytes = match dtype {
        DType::F16 => floats_to_halves(data),
        _ => bytemuck::cast_slice(data).to_vec(),
    };
    bytes.resize(bytes.len().next_multiple_of(8).max(8), 0);
    bytes
}

/// Halves of `data`; values beyond the range of a half become its largest.
fn floats_to_halves(data: &[f32]) -> Vec<u8> {
    let max = f16::MAX.to_f32();
    data.iter()
        .flat_map(|v| f16::from_f32(v.clamp(-max, max)).to_le_bytes())
        .collect()
}

/// The bytes of a constant in the form `pack`.
pub(super) fn pack(t: &HostTensor, pack: &Pack) -> Result<Vec<u8>, String> {
    let (last, rows) = match t.shape().split_last() {
        Some((last, before)) => (*last, before.iter().product::<usize>()),
        None => (1, 1),
    };
    match pack {
        Pack::Plain { dtype } => to_device(t, *dtype),
        Pack::Bytes => to_device(t, DType::U32),
        Pack::Rows { dtype, first, count } => {
            let mut shape = t.shape().to_vec();
            let axis = shape.first_mut().ok_or("a tensor without axes has no rows")?;
            let size = t.byte_len().checked_div(*axis).unwrap_or(0);
            let bytes = t
                .bytes()
                .map_err(|e| e.to_string())?
                .get(first * size..(first + count) * size)
                .ok_or("rows outside the tensor")?;
            *axis = *count;
            let part = HostTensor::from_bytes(t.dtype(), &shape, bytes).map_err(|e| e.to_string())?;
            to_device(&part, *dtype)
        }
        Pack::Columns {
            dtype: DType::U32,
            transpose: false,
            first,
            count,
            stride,
            panel,
        } => {
            // Items of 4 bytes: words of codes `[rows, columns]`, or pairs of halves `[rows, columns, 2]`.
            let rows = t.shape().first().copied().unwrap_or(1).max(1);
            let bytes = t.bytes().map_err(|e| e.to_string())?;
            let columns = bytes.len() / 4 / rows;
            let mut out = vec![0u8; (rows * stride * 4).next_multiple_of(8)];
            for (r, from) in bytes.chunks_exact(columns * 4).enumerate() {
                let part = from
                    .get(first * 4..(first + count) * 4)
                    .ok_or("columns outside the tensor")?;
                for (i, piece) in part.chunks(panel * 4).enumerate() {
                    let at = (i * rows + r) * panel * 4;
                    out.get_mut(at..at + piece.len())
                        .ok_or("panels outside the packed form")?
                        .copy_from_slice(piece);
                }
            }
            Ok(out)
        }
        Pack::Columns {
            dtype,
            transpose,
            first,
            count,
            stride,
            panel,
        } => {
            let panel = (*panel).max(1);
            if !stride.is_multiple_of(panel) {
                return Err(format!("{stride} columns in panels of {panel}"));
            }
            let data = t.to_f32().map_err(|e| e.to_string())?;
            // Logical rows and the strides of a logical (row, column).
            let (depth, row_step, column_step) = if *transpose {
                (last, 1, last)
            } else {
                (rows, last, 1)
            };
            let mut out = vec![0f32; depth * stride];
            for (i, row) in out.chunks_exact_mut(panel).enumerate() {
                let (start, r) = (i / depth.max(1) * panel, i % depth.max(1));
                for (c, item) in (start..*count).zip(row) {
                    *item = *data
                        .get(r * row_step + (first + c) * column_step)
                        .ok_or("columns outside the tensor")?;
                }
            }
            Ok(floats(&out, *dtype))
        }
        Pack::Tiles {
            dtype,
            rows,
            tile,
            first,
            count,
        } => {
            let data = t.to_f32().map_err(|e| e.to_string())?;
            let slices = t.shape().first().copied().unwrap_or(0);
            let depth = data.len().checked_div(slices).unwrap_or(0);
            let a_group = rows.div_ceil(*tile).max(1);
            let mut out = vec![0f32; count * tile * depth];
            for (i, part) in out.chunks_exact_mut((tile * depth).max(1)).enumerate() {
                let (group, row) = ((first + i) / a_group, (first + i) % a_group * tile);
                for r in row..(row + tile).min(*rows) {
                    let from = (group * rows + r) * depth;
                    let slice = data.get(from..from + depth).ok_or("tiles outside the tensor")?;
                    for (to, v) in part.iter_mut().skip(r - row).step_by(*tile).zip(slice) {
                        *to = *v;
                    }
                }
            }
            Ok(floats(&out, *dtype))
        }
    }
}
