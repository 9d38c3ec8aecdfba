//! Writes the weights and nodes of a converted model.

use super::{Kept, Params, Stored, Tensors};
use crate::builder::{Builder, Packed, axis, constant_error};
use crate::memory::zeros;
use crate::quantize::{Left, Quantized};
use half::f16;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::graph::onnx::write::ExternalData;
use transformer_lite::unstable::num;
use transformer_lite::unstable::quant::{Grids, Loss, Packed as PackedMatrix, QuantError};
use transformer_lite::unstable::tensor::{DType, HostTensor, PANEL};

/// Elements decoded at once when a tensor is copied in its own order.
const CHUNK: usize = 1 << 20;
/// Rows of a transposed matrix gathered at once.
const STRIPE: usize = 64;

/// A checkpoint, as the source of a graph.
pub struct Checkpoint<'a> {
    pub tensors: &'a dyn Tensors,
    pub params: &'a Params,
    /// True if quantized matrices are stored as E0M.
    pub keep_bits: bool,
    /// Type of floats: weights, activations, logits and caches.
    pub float: DType,
    /// False if weights are declared and not written.
    pub written: bool,
    pub kept: Kept,
    /// The last reordered value, its order, and the result.
    ordered: Option<(String, Vec<usize>, String)>,
    /// Receives the name of a weight and the bytes written since the last call, each weight counted
    /// as an `f32`.
    progress: &'a mut dyn FnMut(&str, u64),
}

/// A constant matrix of the graph, `[inputs, outputs]`.
#[derive(Clone, Debug)]
pub(super) enum Matrix {
    /// Name of a float matrix.
    Float(String),
    Packed(Packed),
}

impl<'a> Checkpoint<'a> {
    pub fn new(
        tensors: &'a dyn Tensors,
        params: &'a Params,
        keep_bits: bool,
        progress: &'a mut dyn FnMut(&str, u64),
    ) -> Self {
        Self {
            tensors,
            params,
            keep_bits,
            float: DType::F32,
            written: true,
            kept: Kept::default(),
            ordered: None,
            progress,
        }
    }
}

impl Checkpoint<'_> {
    /// Notes that `x` has the order of a matrix that reads it.
    pub(super) fn is_in_order(&mut self, x: &str, order: Vec<usize>) {
        self.ordered = Some((x.to_owned(), order, x.to_owned()));
    }
}

impl Builder<Checkpoint<'_>> {
    /// Copies a matrix in its own order.
    pub(super) fn copy(&mut self, name: &str, [rows, width]: [usize; 2], stored: &Stored<'_>) -> Result<()> {
        let at_once = (CHUNK / width.max(1)).clamp(1, rows.max(1));
        let (tensors, progress) = (self.source.tensors, &mut *self.source.progress);
        let float = self.source.float;
        self.out
            .add_initializer_external(name, float, &[rows, width], |out| {
                let mut buffer: Vec<f32> = zeros(at_once * width, name)?;
                for first in (0..rows).step_by(at_once) {
                    let count = at_once.min(rows - first);
                    let part = buffer.get_mut(..count * width).unwrap_or_default();
                    read(tensors, name, stored, first, part)?;
                    emit(out, name, float, part, progress)?;
                }
                Ok(())
            })
    }

    /// Copies a vector, adds `offset` to its elements, and reorders it by `columns` if given.
    pub(super) fn vector(
        &mut self,
        name: &str,
        length: usize,
        offset: f32,
        columns: Option<&[usize]>,
    ) -> Result<()> {
        let stored = self.source.tensors.stored(name, &[length])?;
        let mut values: Vec<f32> = zeros(length, name)?;
        read(self.source.tensors, name, &stored, 0, &mut values)?;
        values.iter_mut().for_each(|v| *v += offset);
        if let Some(columns) = columns {
            values = columns.iter().filter_map(|c| values.get(*c).copied()).collect();
        }
        let (float, progress) = (self.source.float, &mut *self.source.progress);
        self.out.add_initializer_external(name, float, &[length], |out| {
            emit(out, name, float, &values, progress)
        })
    }

    /// Copies a matrix of `outputs` rows as its transpose `[inputs, outputs]`, with columns in the
    /// order `columns` if given.
    pub(super) fn matrix(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        columns: Option<&[usize]>,
    ) -> Result<Matrix> {
        let mut stored = self.source.tensors.stored(name, &[outputs, inputs])?;
        if let Some(grids) = self.grids(name, &[outputs, inputs], &mut stored) {
            return Ok(Matrix::Packed(self.pack(name, grids, &stored, columns)?));
        }
        let (tensors, progress) = (self.source.tensors, &mut *self.source.progress);
        let float = self.source.float;
        self.out
            .add_initializer_external(name, float, &[inputs, outputs], |out| {
                let mut all: Vec<f32> = zeros(inputs * outputs, name)?;
                read(tensors, name, &stored, 0, &mut all)?;
                let mut stripe: Vec<f32> = zeros(STRIPE.min(inputs) * outputs, name)?;
                for first in (0..inputs).step_by(STRIPE) {
                    let height = STRIPE.min(inputs - first);
                    for column in 0..outputs {
                        let row = columns.map_or(column, |c| c.get(column).copied().unwrap_or(column));
                        let start = row * inputs + first;
                        let values = all.get(start..start + height).unwrap_or_default();
                        for (target, value) in stripe.iter_mut().skip(column).step_by(outputs).zip(values) {
                            *target = *value;
                        }
                    }
                    let part = stripe.get(..height * outputs).unwrap_or_default();
                    emit(out, name, float, part, progress)?;
                }
                Ok(())
            })?;
        Ok(Matrix::Float(name.to_owned()))
    }

    /// The grids of a matrix that keeps its bits. Records matrices that cannot keep them.
    pub(super) fn grids<'s>(
        &mut self,
        name: &str,
        shape: &[usize],
        stored: &mut Stored<'s>,
    ) -> Option<Grids<'s>> {
        if !self.source.keep_bits {
            return None;
        }
        let grids = stored.grids.take();
        let reason = match &grids {
            None => format!("it is stored as {}", stored.kind),
            Some(g) => match PackedMatrix::check(g.format, g.k, g.n) {
                Err(e @ QuantError::Size { .. }) => e.to_string(),
                // Packing reports other errors.
                _ => return grids,
            },
        };
        self.source.kept.left.push(Left {
            name: name.to_owned(),
            shape: shape.to_vec(),
            reason,
        });
        None
    }

    /// Writes a quantized matrix, with columns in the order `columns` if given.
    pub(super) fn pack<'g>(
        &mut self,
        name: &str,
        mut grids: Grids<'g>,
        stored: &Stored<'_>,
        columns: Option<&'g [usize]>,
    ) -> Result<Packed> {
        if let Some(columns) = columns {
            let column = grids.column;
            grids.column = Box::new(move |j, out| column(columns.get(j).copied().unwrap_or(j), out));
        }
        let out = Packed {
            operands: [format!("{name}.codes"), format!("{name}.scales")],
            format: grids.format,
            order: stored.order.clone(),
        };
        let codes_shape = [grids.format.bits.rows(grids.k), grids.n];
        let (scales_type, scales_shape) = grids.format.scale_tensor(grids.k, grids.n);
        if !self.source.written {
            let [codes, scales] = &out.operands;
            self.out
                .add_initializer_external(codes, DType::U32, &codes_shape, |_| Ok(()))?;
            self.out
                .add_initializer_external(scales, scales_type, &scales_shape, |_| Ok(()))?;
            return Ok(out);
        }
        let tensors = self.source.tensors;
        let size = [grids.k, grids.n];
        let bad = |e: QuantError| {
            match e {
                // Reading the rows names the place in the file.
                QuantError::NotFinite { .. } => unreadable(stored, size),
                _ => None,
            }
            .unwrap_or_else(|| tensors.bad(name, &e.to_string()))
        };
        let [codes, scales] = &out.operands;
        let (mut loss, mut words) = (Loss::default(), Vec::new());
        if grids.n.is_multiple_of(PANEL) {
            // Each panel is written while others are packed; scales come after all of them.
            self.out.add_panels(codes, DType::U32, &codes_shape, |out| {
                let mut written = Ok(());
                let packed = grids.panels(|panel| {
                    words.extend_from_slice(&panel.scales);
                    if written.is_ok() {
                        written = out.write(bytemuck::cast_slice(&panel.codes));
                    }
                });
                loss = packed.map_err(bad)?;
                written
            })?;
            self.out.add_panels(scales, scales_type, &scales_shape, |out| {
                out.write(bytemuck::cast_slice(&words))
            })?;
        } else {
            let packed;
            (packed, loss) = grids.pack().map_err(bad)?;
            let parts = [
                (DType::U32, &codes_shape[..], packed.codes),
                (scales_type, &scales_shape[..], packed.scales),
            ];
            for (name, (dtype, shape, words)) in out.operands.iter().zip(parts) {
                self.out
                    .add_matrix(name, dtype, shape, bytemuck::cast_slice(&words))?;
            }
        }
        (self.source.progress)(name, (grids.k * grids.n * size_of::<f32>()) as u64);
        let rows = codes_shape[0] + grids.format.scale_rows(grids.k);
        let after = (rows * grids.n * size_of::<u32>()) as u64;
        let row = Quantized::new(
            name,
            &[grids.n, grids.k],
            grids.format,
            &loss,
            stored.bytes,
            after,
        );
        self.source.kept.weights.push(row);
        Ok(out)
    }

    /// The matmul of `x` and a matrix.
    pub(super) fn product(
        &mut self,
        scope: &str,
        x: &str,
        matrix: &Matrix,
        output: Option<&str>,
    ) -> Result<String> {
        match matrix {
            Matrix::Float(name) => self.matmul(scope, x, name, output),
            Matrix::Packed(packed) => {
                let x = match &packed.order {
                    Some(order) => self.in_order(&format!("{scope}/MatMul"), x, order)?,
                    None => x.to_owned(),
                };
                self.packed_node("MatMulE0M", scope, &x, packed, output)
            }
        }
    }

    /// Reorders `x` along its last axis. Matmuls that read one value in one order share the result.
    fn in_order(&mut self, scope: &str, x: &str, order: &[usize]) -> Result<String> {
        if let Some((of, known, result)) = &self.source.ordered
            && of == x
            && known == order
        {
            return Ok(result.clone());
        }
        let list: Vec<i64> = order.iter().map(|i| num::signed(*i)).collect();
        let name = format!("{scope}/order");
        let tensor = HostTensor::from_i64(&[list.len()], &list).map_err(|e| constant_error(&name, e))?;
        self.out.add_initializer(&name, &tensor)?;
        let result = self.node("Gather", scope, &[x, &name], &axis(-1))?;
        self.source.ordered = Some((x.to_owned(), order.to_vec(), result.clone()));
        Ok(result)
    }

    pub(super) fn ints(&mut self, name: &str, values: &[i64]) -> Result<String> {
        self.constant(name, HostTensor::from_i64(&[values.len()], values))
    }

    pub(super) fn scalar_int(&mut self, name: &str, value: i64) -> Result<String> {
        self.constant(name, HostTensor::from_i64(&[], &[value]))
    }

    pub(super) fn scalar(&mut self, name: &str, value: f32) -> Result<String> {
        let float = self.source.float;
        self.constant(name, HostTensor::from_floats(float, &[], &[value]))
    }
}

/// Reads rows of a tensor from `first` on. An error if an element is not finite.
fn read(tensors: &dyn Tensors, name: &str, stored: &Stored<'_>, first: usize, out: &mut [f32]) -> Result<()> {
    (stored.rows)(first, out)?;
    match out.iter().find(|v| !v.is_finite()) {
        Some(v) => Err(tensors.bad(name, &format!("has the element {v}; expected finite numbers"))),
        None => Ok(()),
    }
}

/// The error of the first row that cannot be read, of `n` rows of `k` elements.
fn unreadable(stored: &Stored<'_>, [k, n]: [usize; 2]) -> Option<Error> {
    let mut row = vec![0.0; k];
    (0..n).find_map(|j| (stored.rows)(j, &mut row).err())
}

fn emit(
    out: &mut ExternalData<'_>,
    name: &str,
    float: DType,
    values: &[f32],
    progress: &mut dyn FnMut(&str, u64),
) -> Result<()> {
    if float == DType::F16 {
        let halves: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
        out.write(bytemuck::cast_slice(&halves))?;
    } else {
        out.write(bytemuck::cast_slice(values))?;
    }
    progress(name, size_of_val(values) as u64);
    Ok(())
}
