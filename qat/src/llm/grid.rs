//! Fake quantization of weights in groups, to the numbers that the engine's E0M formats represent.

use super::decoder::{Decoder, Kind, Parameter, Values};
use crate::error::{Error, Result};
use crate::run::MODEL;
use burn::tensor::{Device, Tensor, TensorData};
use half::f16;
use std::path::Path;
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::decode;
use transformer_lite::unstable::graph::onnx::proto::TensorProto;
use transformer_lite::unstable::graph::onnx::weights::Weights;
use transformer_lite::unstable::num::signed;
use transformer_lite::unstable::parallel;
use transformer_lite::unstable::quant::{
    Bits, ByGroup, Column, ColumnMethod, Format, Method, Packed, PackedView, QuantError, Scratch, encode,
    group_size, scale_words,
};

/// The largest number below 4, where `w1` ends.
const BELOW_FOUR: f32 = f32::from_bits(4.0f32.to_bits() - 1);

/// How a weight is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub format: Format,
    /// Inputs and outputs.
    pub k: usize,
    pub n: usize,
    /// Columns are stored as rows.
    pub transposed: bool,
}

/// Scales and biases on the host: those of column 0, then those of column 1, and so on.
pub type Pairs = Vec<[f16; 2]>;

impl Layout {
    /// The layout that `tlite quantize` chooses for a parameter; `None` if it stays in floats.
    pub fn of(parameter: &Parameter, bits: Bits, group: usize) -> Option<Self> {
        let [rows, columns] = parameter.shape;
        let (k, n, bits, transposed) = match parameter.kind {
            Kind::Vector => return None,
            Kind::Table => (columns, rows, Bits::Eight, true),
            Kind::Matrix { head } => (rows, columns, if head { Bits::Eight } else { bits }, false),
        };
        let format = Format::new(bits, group_size(group, k));
        Packed::check(format, k, n).ok()?;
        Some(Self {
            format,
            k,
            n,
            transposed,
        })
    }

    /// Groups of a column.
    fn groups(&self) -> usize {
        self.k.div_ceil(self.format.group)
    }

    /// Elements of column `j`.
    fn column(&self, values: &[f32], j: usize) -> Vec<f32> {
        let (first, step) = if self.transposed {
            (j * self.k, 1)
        } else {
            (j, self.n)
        };
        values
            .iter()
            .skip(first)
            .step_by(step)
            .take(self.k)
            .copied()
            .collect()
    }

    /// The scales and biases that a method chooses for these weights.
    pub fn fit(&self, values: &[f32], method: Method) -> std::result::Result<Pairs, QuantError> {
        let mut out = vec![[f16::ZERO; 2]; self.n * self.groups()];
        let work = |scratch: &mut Scratch, j: usize| {
            let mut made = Column::default();
            let (bits, group) = (self.format.bits, self.format.group);
            ByGroup::from(method).column(bits, group, &self.column(values, j), scratch, &mut made)?;
            Ok(made.scales)
        };
        parallel::for_each(parallel::cores(), self.n, Scratch::default, work, |j, scales| {
            let of = out.iter_mut().skip(j * self.groups());
            of.zip(scales).for_each(|(to, from)| *to = from);
        })?;
        Ok(out)
    }

    /// The quantized matrix.
    pub fn pack(&self, values: &[f32], pairs: &[[f16; 2]]) -> std::result::Result<Packed, QuantError> {
        let mut packed = Packed::empty(self.format, self.k, self.n)?;
        let Format { bits, group, .. } = self.format;
        for (j, scales) in pairs.chunks(self.groups()).enumerate() {
            let column = self.column(values, j);
            let groups = column.chunks(group).zip(scales);
            let codes = groups.flat_map(|(part, [s, b])| part.iter().map(|w| encode(bits, *s, *b, *w)));
            let made = Column {
                codes: codes.collect(),
                scales: scales.to_vec(),
            };
            packed.set_column(j, &made)?;
        }
        Ok(packed)
    }
}

/// Scales and biases of a weight on a device.
#[derive(Clone, Debug)]
pub struct Grid {
    pub layout: Layout,
    /// One row of groups, or one column for a transposed weight.
    pub scales: Tensor<2>,
    pub biases: Tensor<2>,
}

impl Grid {
    /// Scales and biases in the order of [`Pairs`].
    pub fn new(layout: Layout, pairs: &[[f16; 2]], device: &Device) -> Self {
        let part = |i: usize| {
            let all: Vec<f32> = pairs
                .iter()
                .filter_map(|p| p.get(i))
                .map(|v| v.to_f32())
                .collect();
            let all = Tensor::<2>::from_data(TensorData::new(all, [layout.n, layout.groups()]), device);
            if layout.transposed { all } else { all.transpose() }
        };
        Self {
            layout,
            scales: part(0),
            biases: part(1),
        }
    }

    /// One number for each weight instead of one for each group.
    fn spread(&self, x: Tensor<2>) -> Tensor<2> {
        let Layout {
            k,
            n,
            transposed,
            format,
        } = self.layout;
        let (groups, group) = (self.layout.groups(), format.group);
        if transposed {
            let all = x.reshape([n, groups, 1]).expand([n, groups, group]);
            all.reshape([n, groups * group]).narrow(1, 0, k)
        } else {
            let all = x.reshape([groups, 1, n]).expand([groups, group, n]);
            all.reshape([groups * group, n]).narrow(0, 0, k)
        }
    }

    /// What the engine decodes after it encoded `w`.
    pub fn fake(&self, w: Tensor<2>) -> Tensor<2> {
        let bits = self.layout.format.bits;
        let (step, top) = (bits.step(), f32::from(bits.top()));
        let (scales, biases) = (self.spread(self.scales.clone()), self.spread(self.biases.clone()));
        let w1 = (w / scales.clone() + biases.clone()).clamp(2.0, BELOW_FOUR);
        let code = w1
            .sub_scalar(2.0)
            .div_scalar(step)
            .add_scalar(0.5)
            .floor()
            .clamp_max(top);
        (code.mul_scalar(step).add_scalar(2.0) - biases) * scales
    }

    /// The weights, moved to the nearest end of the range of their group if they are outside.
    pub fn clip(&self, w: Tensor<2>) -> Tensor<2> {
        let span = f32::from(self.layout.format.bits.top()) * self.layout.format.bits.step();
        let low = (self.biases.clone().neg().add_scalar(2.0)) * self.scales.clone();
        let high = low.clone() + self.scales.clone().mul_scalar(span);
        let least = self.spread(low.clone().min_pair(high.clone()));
        w.max_pair(least).min_pair(self.spread(low.max_pair(high)))
    }
}

/// Weights to start from, with the layout, scales and biases of those that are quantized.
#[derive(Clone, Debug)]
pub struct Start {
    pub values: Values,
    pub grids: Vec<Option<(Layout, Pairs)>>,
}

impl Start {
    /// The weights of the float model, with the grids that a method chooses for them.
    pub fn fit(decoder: &Decoder, values: Values, bits: Bits, group: usize, method: Method) -> Result<Self> {
        let grids = decoder.parameters.iter().zip(&values).map(|(p, v)| {
            let Some(layout) = Layout::of(p, bits, group) else {
                return Ok(None);
            };
            let pairs = layout
                .fit(v, method)
                .map_err(|e| bad(&decoder.path, &p.name, e))?;
            Ok(Some((layout, pairs)))
        });
        let grids = grids.collect::<Result<_>>()?;
        Ok(Self { values, grids })
    }

    /// Weights and grids of a folder that `tlite quantize` made from the model.
    pub fn read(folder: &Path, decoder: &Decoder, bits: Bits, group: usize) -> Result<Self> {
        let path = &folder.join(MODEL);
        let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
        let graph = decode::model(Stage::Import, path, &bytes)?
            .graph
            .unwrap_or_default();
        let mut weights = Weights::new(path);
        let find = |name: &str| graph.initializer.iter().find(|t| t.name == name);
        let mut start = Self {
            values: Vec::new(),
            grids: Vec::new(),
        };
        for p in &decoder.parameters {
            let Some(layout) = Layout::of(p, bits, group) else {
                let tensor = find(&p.name).map(|t| weights.tensor(t)).transpose()?;
                let tensor =
                    tensor.ok_or_else(|| bad(path, &p.name, "expected floats of this name, found none"))?;
                if tensor.len() != p.shape[0] * p.shape[1] {
                    return Err(bad(
                        path,
                        &p.name,
                        format!("expected shape {:?}, found {:?}", p.shape, tensor.shape()),
                    ));
                }
                start.values.push(tensor.to_f32()?.into_owned());
                start.grids.push(None);
                continue;
            };
            let names = ["codes", "scales"].map(|part| format!("{}.{part}", p.name));
            let [Some(codes), Some(scales)] = names.each_ref().map(|n| find(n)) else {
                return Err(bad(
                    path,
                    &p.name,
                    format!("expected {}, found no such weight", layout.format),
                ));
            };
            let reader = graph.node.iter().find(|n| n.input.get(1) == names.first());
            let int = |name: &str| reader?.attribute.iter().find(|a| a.name == name).map(|a| a.i);
            let found = [int("bits"), int("group_size"), int("super_block")];
            if found
                != [
                    Some(i64::from(layout.format.bits.count())),
                    Some(signed(layout.format.group)),
                    None,
                ]
            {
                let found = found.map(|v| v.unwrap_or(0));
                return Err(bad(
                    path,
                    &p.name,
                    format!(
                        "expected {}, found [bits, group, block] = {found:?}",
                        layout.format
                    ),
                ));
            }
            let (made, pairs) =
                unpack(&mut weights, layout, codes, scales).map_err(|e| bad(path, &p.name, e))?;
            start.values.push(made);
            start.grids.push(Some((layout, pairs)));
        }
        Ok(start)
    }

    /// The grids on a device.
    pub fn grids(&self, device: &Device) -> Vec<Option<Grid>> {
        let grid = |g: &Option<(Layout, Pairs)>| g.as_ref().map(|(l, pairs)| Grid::new(*l, pairs, device));
        self.grids.iter().map(grid).collect()
    }
}

fn bad(path: &Path, name: &str, what: impl std::fmt::Display) -> Error {
    Error::model(path, format!("weight \"{name}\": {what}"))
}

/// The weights of a packed matrix in the order of its layout, and its scales and biases.
fn unpack(
    weights: &mut Weights,
    layout: Layout,
    codes: &TensorProto,
    scales: &TensorProto,
) -> std::result::Result<(Vec<f32>, Pairs), String> {
    let Layout {
        format,
        k,
        n,
        transposed,
    } = layout;
    let [codes, scales] = [codes, scales].map(|t| weights.tensor(t));
    let (codes, scales) = (
        codes.map_err(|e| e.to_string())?,
        scales.map_err(|e| e.to_string())?,
    );
    let shapes = [codes.shape(), scales.shape()];
    let expected = [vec![format.bits.rows(k), n], vec![layout.groups(), n, 2]];
    if shapes != expected {
        return Err(format!(
            "expected codes and scales of shapes {expected:?}, found {shapes:?}"
        ));
    }
    let halves = scales.to_f32().map_err(|e| e.to_string())?;
    let pair = |j: usize, g: usize| {
        let at = (g * n + j) * 2;
        [at, at + 1].map(|i| halves.get(i).copied().map_or(f16::ZERO, f16::from_f32))
    };
    let pairs: Pairs = (0..n)
        .flat_map(|j| (0..layout.groups()).map(move |g| (j, g)))
        .map(|(j, g)| pair(j, g))
        .collect();
    if let Some([scale, bias]) = pairs
        .iter()
        .find(|[s, b]| !s.is_finite() || !b.is_finite() || *s == f16::ZERO)
    {
        return Err(format!(
            "expected finite scales other than 0, found scale {scale} with bias {bias}"
        ));
    }
    let words = scale_words(&scales).map_err(|e| e.to_string())?;
    let codes = codes.u32s().map_err(|e| e.to_string())?;
    let view = PackedView {
        format,
        k,
        n,
        codes: &codes,
        scales: &words,
    };
    let values = match transposed {
        true => (0..n)
            .flat_map(|j| (0..k).map(move |i| (i, j)))
            .map(|(i, j)| view.get(i, j))
            .collect(),
        false => (0..k)
            .flat_map(|i| (0..n).map(move |j| (i, j)))
            .map(|(i, j)| view.get(i, j))
            .collect(),
    };
    Ok((values, pairs))
}
