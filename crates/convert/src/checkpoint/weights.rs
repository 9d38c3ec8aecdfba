//! Writes the weights and nodes of a converted model.

use super::{Kept, Params, Stored, Tensors};
use crate::onnx_int::onnx_int;
use crate::quantize::{Left, Quantized};
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::graph::onnx::write::{Attr, ExternalData, ModelWriter, NodeSpec};
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::quant::{Bits, Grids, Packed as PackedMatrix, QuantError};
use transformer_lite::unstable::tensor::{DType, HostTensor, TensorError};

/// Elements decoded at once when a tensor is copied in its own order.
const CHUNK: usize = 1 << 20;
/// Rows of a transposed matrix gathered at once.
const STRIPE: usize = 64;

/// Writes the graph and its weights.
pub struct Builder<'a> {
    pub(super) tensors: &'a dyn Tensors,
    pub(super) params: &'a Params,
    pub(super) out: ModelWriter,
    pub(super) keep_bits: bool,
    pub(super) kept: Kept,
    /// The last reordered value, its order, and the result.
    ordered: Option<(String, Vec<usize>, String)>,
    /// Receives a tensor's name and the number of written bytes, in `f32`.
    progress: &'a mut dyn FnMut(&str, u64),
}

/// A constant matrix of the graph, `[inputs, outputs]`.
#[derive(Clone, Debug)]
pub(super) enum Matrix {
    /// Name of a float matrix.
    Float(String),
    Packed(Packed),
}

#[derive(Clone, Debug)]
pub(super) struct Packed {
    codes: String,
    scales: String,
    bits: Bits,
    group: usize,
    /// Row i is for input `order[i]`.
    pub(super) order: Option<Vec<usize>>,
}

impl Packed {
    fn attributes(&self) -> Result<[(&'static str, Attr); 2]> {
        let group = onnx_int(self.group)?;
        Ok([
            ("bits", Attr::Int(i64::from(self.bits.count()))),
            ("group_size", Attr::Int(group)),
        ])
    }
}

fn heap<T: Clone + Default>(length: usize, name: &str) -> Result<Vec<T>> {
    let mut v = Vec::new();
    v.try_reserve_exact(length).map_err(|e| {
        let error = Error::caused(Stage::Convert, format!("tensor \"{name}\""), e);
        error.of_kind(ErrorKind::OutOfMemory)
    })?;
    v.resize(length, T::default());
    Ok(v)
}

impl<'a> Builder<'a> {
    /// A builder for an empty model file. With `keep_bits`, quantized matrices are stored as E0M.
    /// `progress` receives the name of a weight and the bytes written since the last call, each
    /// weight counted as an `f32`.
    pub fn new(
        tensors: &'a dyn Tensors,
        params: &'a Params,
        out: ModelWriter,
        keep_bits: bool,
        progress: &'a mut dyn FnMut(&str, u64),
    ) -> Self {
        Self {
            tensors,
            params,
            out,
            keep_bits,
            kept: Kept::default(),
            ordered: None,
            progress,
        }
    }

    /// Copies a matrix in its own order.
    pub(super) fn copy(&mut self, name: &str, [rows, width]: [usize; 2], stored: &Stored<'_>) -> Result<()> {
        let at_once = (CHUNK / width.max(1)).clamp(1, rows.max(1));
        let mut buffer: Vec<f32> = heap(at_once * width, name)?;
        let (tensors, progress) = (self.tensors, &mut *self.progress);
        self.out
            .add_initializer_external(name, DType::F32, &[rows, width], |out| {
                for first in (0..rows).step_by(at_once) {
                    let count = at_once.min(rows - first);
                    let part = buffer.get_mut(..count * width).unwrap_or_default();
                    read(tensors, name, stored, first, part)?;
                    emit(out, name, part, progress)?;
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
        let stored = self.tensors.stored(name, &[length])?;
        let mut values: Vec<f32> = heap(length, name)?;
        read(self.tensors, name, &stored, 0, &mut values)?;
        values.iter_mut().for_each(|v| *v += offset);
        if let Some(columns) = columns {
            values = columns.iter().filter_map(|c| values.get(*c).copied()).collect();
        }
        let progress = &mut *self.progress;
        self.out
            .add_initializer_external(name, DType::F32, &[length], |out| {
                emit(out, name, &values, progress)
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
        let mut stored = self.tensors.stored(name, &[outputs, inputs])?;
        if let Some(grids) = self.grids(name, &[outputs, inputs], &mut stored) {
            return Ok(Matrix::Packed(self.pack(name, grids, &stored, columns)?));
        }
        let mut all: Vec<f32> = heap(inputs * outputs, name)?;
        read(self.tensors, name, &stored, 0, &mut all)?;
        let mut stripe: Vec<f32> = heap(STRIPE.min(inputs) * outputs, name)?;
        let progress = &mut *self.progress;
        self.out
            .add_initializer_external(name, DType::F32, &[inputs, outputs], |out| {
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
                    emit(out, name, part, progress)?;
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
        if !self.keep_bits {
            return None;
        }
        let grids = stored.grids.take();
        let reason = match &grids {
            None => format!("it is stored as {}", stored.kind),
            Some(g) => match PackedMatrix::check(g.bits, g.group, g.k, g.n) {
                Err(e @ QuantError::Size { .. }) => e.to_string(),
                // Packing reports other errors.
                _ => return grids,
            },
        };
        self.kept.left.push(Left {
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
        let packed = grids.pack().map_err(|e| self.tensors.bad(name, &e.to_string()));
        let (packed, loss) = packed?;
        let out = Packed {
            codes: format!("{name}.codes"),
            scales: format!("{name}.scales"),
            bits: packed.bits,
            group: packed.group,
            order: stored.order.clone(),
        };
        let (codes, scales): (&[u8], &[u8]) = (
            bytemuck::cast_slice(&packed.codes),
            bytemuck::cast_slice(&packed.scales),
        );
        let shape = [packed.bits.rows(packed.k), packed.n];
        self.out
            .add_initializer_external(&out.codes, DType::U32, &shape, |to| to.write(codes))?;
        let shape = [packed.k.div_ceil(packed.group), packed.n, 2];
        self.out
            .add_initializer_external(&out.scales, DType::F16, &shape, |to| to.write(scales))?;
        (self.progress)(name, (packed.k * packed.n * size_of::<f32>()) as u64);
        let (format, after) = ((packed.bits, packed.group), (codes.len() + scales.len()) as u64);
        let shape = [packed.n, packed.k];
        let row = Quantized::new(name, &shape, format, &loss, stored.bytes, after);
        self.kept.weights.push(row);
        Ok(out)
    }

    /// Adds the matmul of `x` and a matrix: node `path`, value `output`.
    pub(super) fn product(&mut self, path: &str, x: &str, matrix: &Matrix, output: &str) -> Result<()> {
        let packed = match matrix {
            Matrix::Float(name) => return self.node_as("MatMul", path, &[x, name], &[], output),
            Matrix::Packed(packed) => packed,
        };
        let x = match &packed.order {
            Some(order) => self.in_order(path, x, order)?,
            None => x.to_owned(),
        };
        self.own_node("MatMulE0M", path, &x, packed, output)
    }

    /// Adds a node of this project's domain that reads a packed matrix.
    pub(super) fn own_node(
        &mut self,
        op: &str,
        path: &str,
        x: &str,
        packed: &Packed,
        output: &str,
    ) -> Result<()> {
        self.out.add_node(NodeSpec {
            domain: OWN_DOMAIN,
            op,
            name: path,
            inputs: &[x, &packed.codes, &packed.scales],
            outputs: &[output],
            attributes: &packed.attributes()?,
        })
    }

    /// Reorders `x` along its last axis. Matmuls that read one value in one order share the result.
    fn in_order(&mut self, path: &str, x: &str, order: &[usize]) -> Result<String> {
        if let Some((of, known, result)) = &self.ordered
            && of == x
            && known == order
        {
            return Ok(result.clone());
        }
        let list: Vec<i64> = order.iter().map(|i| onnx_int(*i)).collect::<Result<_>>()?;
        let name = format!("{path}/order");
        let tensor = HostTensor::from_i64(&[list.len()], &list).map_err(|e| constant_error(&name, e))?;
        self.out.add_initializer(&name, &tensor)?;
        let result = self.node(
            "Gather",
            &format!("{path}/Gather"),
            &[x, &name],
            &[("axis", Attr::Int(-1))],
        )?;
        self.ordered = Some((x.to_owned(), order.to_vec(), result.clone()));
        Ok(result)
    }

    pub(super) fn constant(&mut self, name: &str, tensor: Result<HostTensor, TensorError>) -> Result<String> {
        let tensor = tensor.map_err(|e| constant_error(name, e))?;
        self.out.add_constant(name, &tensor)?;
        Ok(name.to_owned())
    }

    pub(super) fn ints(&mut self, name: &str, values: &[i64]) -> Result<String> {
        self.constant(name, HostTensor::from_i64(&[values.len()], values))
    }

    pub(super) fn scalar_int(&mut self, name: &str, value: i64) -> Result<String> {
        self.constant(name, HostTensor::from_i64(&[], &[value]))
    }

    pub(super) fn scalar(&mut self, name: &str, value: f32) -> Result<String> {
        self.constant(name, HostTensor::from_f32(&[], &[value]))
    }

    /// Adds a node named `path` with one named output.
    pub(super) fn node_as(
        &mut self,
        op: &str,
        path: &str,
        inputs: &[&str],
        attributes: &[(&str, Attr)],
        output: &str,
    ) -> Result<()> {
        self.out.add_node(NodeSpec {
            domain: "",
            op,
            name: path,
            inputs,
            outputs: &[output],
            attributes,
        })
    }

    /// Adds a node named `path` and returns its output.
    pub(super) fn node(
        &mut self,
        op: &str,
        path: &str,
        inputs: &[&str],
        attributes: &[(&str, Attr)],
    ) -> Result<String> {
        let output = format!("{path}_output_0");
        self.node_as(op, path, inputs, attributes, &output)?;
        Ok(output)
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

fn emit(
    out: &mut ExternalData<'_>,
    name: &str,
    values: &[f32],
    progress: &mut dyn FnMut(&str, u64),
) -> Result<()> {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    out.write(bytes)?;
    progress(name, bytes.len() as u64);
    Ok(())
}

fn constant_error(name: &str, e: TensorError) -> Error {
    Error::caused(Stage::Convert, format!("constant \"{name}\""), e)
}
