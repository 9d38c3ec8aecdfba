//! Matrices whose columns are stored in panels, the layout that native kernels read.

use super::write::{ALIGN, ExternalData, ModelWriter};
use crate::error::Result;
use crate::tensor::{Bytes, DType, HostTensor, PANEL, Panels, in_panels};
use std::sync::Arc;

/// Metadata key for the layout of a tensor in a data file. Without it a tensor is row-major.
pub(super) const LAYOUT: &str = "layout";

/// Panels of [`PANEL`] columns, one after the other, each row-major. The dimensions of the tensor
/// are those of what is stored, `[panels, rows, PANEL]` and for pairs of halves a last 2, so that a
/// reader that ignores the layout refuses it.
const PANELS: &str = "panels16";

/// A matrix of 4-byte items as a file has it.
pub(super) struct Stored {
    /// Shape of the row-major tensor.
    pub shape: Vec<usize>,
    /// Rows and columns.
    size: [usize; 2],
}

impl Stored {
    /// The matrix of a tensor with this layout, type and stored dimensions.
    pub fn new(layout: &str, dtype: DType, dims: &[usize]) -> Result<Self, String> {
        if layout != PANELS {
            return Err(format!(
                "its layout is \"{layout}\", expected \"{PANELS}\" or none; convert the model again with \
                 this version"
            ));
        }
        let no_matrix = || format!("{dtype}{dims:?} is not a matrix in the layout \"{PANELS}\"");
        let (panels, rows, pair) = match (dtype, dims) {
            (DType::U32, [panels, rows, PANEL]) => (*panels, *rows, None),
            (DType::F16, [panels, rows, PANEL, 2]) => (*panels, *rows, Some(2)),
            _ => return Err(no_matrix()),
        };
        let columns = panels.checked_mul(PANEL).filter(|c| *c > 0 && rows > 0);
        let columns = columns.ok_or_else(no_matrix)?;
        Ok(Self {
            shape: [rows, columns].into_iter().chain(pair).collect(),
            size: [rows, columns],
        })
    }

    /// The tensor at byte `offset` of `file`.
    pub fn tensor(&self, dtype: DType, file: Arc<dyn Bytes>, offset: usize) -> Result<HostTensor, String> {
        if !(offset as u64).is_multiple_of(ALIGN) {
            return Err(format!(
                "its panels start at byte {offset} of the data file, expected a multiple of {ALIGN}; convert \
                 the model again"
            ));
        }
        let panels = Panels::new(file, offset, self.size, PANEL).ok_or("its panels are cut off")?;
        HostTensor::from_panels(dtype, &self.shape, panels).map_err(|e| e.to_string())
    }
}

impl ModelWriter {
    /// Adds a matrix of 4-byte items in the data file: words `[rows, columns]`, or pairs of halves
    /// `[rows, columns, 2]`. Its columns are stored in panels of [`PANEL`], unless the last would
    /// not be whole.
    pub fn add_matrix(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<()> {
        let panels = match shape {
            [rows, columns, ..] if columns.is_multiple_of(PANEL) => in_panels(bytes, *rows, PANEL),
            _ => None,
        };
        match panels {
            Some(bytes) => self.add_panels(name, dtype, shape, |out| out.write(&bytes)),
            None => self.add_initializer_external(name, dtype, shape, |out| out.write(bytes)),
        }
    }

    /// Like [`ModelWriter::add_matrix`] for whole panels, which `fill` writes one after the other.
    /// See [`ModelWriter::add_initializer_external`].
    pub fn add_panels(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        fill: impl FnOnce(&mut ExternalData<'_>) -> Result<()>,
    ) -> Result<()> {
        let dims = match shape {
            [rows, columns, pair @ ..] => [&[columns / PANEL, *rows, PANEL], pair].concat(),
            _ => shape.to_vec(),
        };
        self.add_initializer_external(name, dtype, &dims, fill)?;
        self.describe_last(LAYOUT, PANELS);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, Stage};
    use crate::graph::onnx::weights::Weights;
    use crate::graph::onnx::{proto, type_code};
    use crate::testing::assert_error;
    use prost::Message;

    #[test]
    fn matrices_in_panels_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut w = ModelWriter::create(Stage::Quantize, folder.path(), "model.onnx", "g").unwrap();
        let words: Vec<u32> = (0..3 * 32).collect();
        let pairs: Vec<half::f16> = (0..2 * 32 * 2).map(|i| half::f16::from_f32(i as f32)).collect();
        let matrices = [
            ("words", HostTensor::from_u32(&[3, 32], &words).unwrap()),
            ("pairs", HostTensor::from_f16(&[2, 32, 2], &pairs).unwrap()),
            ("part", HostTensor::from_u32(&[3, 10], &words[..30]).unwrap()),
        ];
        for (name, t) in &matrices {
            w.add_matrix(name, t.dtype(), t.shape(), t.bytes().unwrap())
                .unwrap();
        }
        w.finish().unwrap();
        let path = folder.path().join("model.onnx");
        let model = proto::ModelProto::decode(std::fs::read(&path).unwrap().as_slice()).unwrap();
        let tensors = model.graph.unwrap().initializer;
        let dims: Vec<&[i64]> = tensors.iter().map(|t| t.dims.as_slice()).collect();
        assert_eq!(dims, [&[2, 3, 16][..], &[2, 2, 16, 2], &[3, 10]]);
        let read = |t: &proto::TensorProto| Weights::new(&path).tensor(t);
        for (stored, (name, t)) in tensors.iter().zip(&matrices) {
            let found = read(stored).unwrap();
            assert_eq!(found.shape(), t.shape(), "{name}");
            assert_eq!(found.bytes().unwrap(), t.bytes().unwrap(), "{name}");
            assert_eq!(found.panels().is_some(), *name != "part");
        }
        let refused = |change: &dyn Fn(&mut proto::TensorProto), values: &[&str]| {
            let mut t = tensors[0].clone();
            change(&mut t);
            assert_error(&read(&t).unwrap_err(), ErrorKind::InvalidFile, values);
        };
        refused(
            &|t| t.metadata_props[0].value = "panels8".to_owned(),
            &["\"panels8\"", PANELS],
        );
        refused(&|t| t.dims = vec![4, 3, 8], &["[4, 3, 8]"]);
        refused(&|t| t.dims = vec![3, 32], &["[3, 32]"]);
        refused(&|t| t.data_type = type_code(DType::F32), &["[2, 3, 16]"]);
        refused(&|t| t.external_data[1].value = "4".to_owned(), &["byte 4", "64"]);
        refused(&|t| (t.data_location, t.raw_data) = (0, vec![0; 384]), &[PANELS]);
    }
}
