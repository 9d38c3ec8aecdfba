//! The state of a run on disk: a safetensors file, which appears complete or not at all.

use crate::error::{Error, Result};
use crate::fake::Range;
use crate::network::{Network, numbers};
use crate::train::Configuration;
use burn::tensor::{Device, Tensor, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;
use transformer_lite::unstable::files::write_whole;

/// Name of the entry of the file's metadata.
const KEY: &str = "tlite_qat";

/// What is not a tensor.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Header {
    configuration: Configuration,
    step: u64,
    ranges: Vec<Option<Range>>,
}

/// Everything that later steps depend on.
#[derive(Clone, Debug)]
pub struct State {
    /// Number of steps that are done.
    pub step: u64,
    pub parameters: Vec<Tensor<4>>,
    /// Moving averages of gradients.
    pub momenta: Vec<Tensor<4>>,
    pub ranges: Vec<Option<Range>>,
}

/// Prefixes of the names of tensors.
const PARAMETER: &str = "parameter.";
const MOMENTUM: &str = "momentum.";

impl State {
    /// Writes the state.
    pub fn save(&self, path: &Path, network: &Network, configuration: &Configuration) -> Result<()> {
        let failed = |what: String| Error::Checkpoint {
            path: path.to_owned(),
            what,
        };
        let header = Header {
            configuration: configuration.clone(),
            step: self.step,
            ranges: self.ranges.clone(),
        };
        let header = serde_json::to_string(&header).map_err(|e| failed(e.to_string()))?;
        let mut data: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
        for (prefix, tensors) in [(PARAMETER, &self.parameters), (MOMENTUM, &self.momenta)] {
            for (p, t) in network.parameters.iter().zip(tensors) {
                let bytes = numbers(t.clone()).iter().flat_map(|v| v.to_le_bytes()).collect();
                data.push((format!("{prefix}{}", p.name), p.shape.to_vec(), bytes));
            }
        }
        let views = data.iter().map(|(name, shape, bytes)| {
            Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?))
        });
        let views: std::result::Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
        let metadata = HashMap::from([(KEY.to_owned(), header)]);
        let bytes = views.and_then(|v| safetensors::serialize(v, Some(metadata)));
        let bytes = bytes.map_err(|e| failed(e.to_string()))?;
        Ok(write_whole(path, |file| file.write_all(&bytes))?)
    }

    /// Reads a state of this network. If `configuration` is given, that of the file must be equal.
    pub fn load(
        path: &Path,
        network: &Network,
        configuration: Option<&Configuration>,
        device: &Device,
    ) -> Result<(Self, Configuration)> {
        let failed = |what: String| Error::Checkpoint {
            path: path.to_owned(),
            what,
        };
        let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
        let damaged = |e: &dyn std::fmt::Display| failed(format!("is damaged or cut off: {e}"));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(&e))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| damaged(&e))?;
        let header = metadata.metadata().as_ref().and_then(|m| m.get(KEY));
        let header = header.ok_or_else(|| failed("is not of tlite-qat".to_owned()))?;
        let header: Header = serde_json::from_str(header).map_err(|e| damaged(&e))?;
        if let Some(wanted) = configuration {
            header.configuration.check(wanted).map_err(failed)?;
        }
        let read = |prefix: &str| -> Result<Vec<Tensor<4>>> {
            let all = network.parameters.iter().map(|p| {
                let view = tensors
                    .tensor(&format!("{prefix}{}", p.name))
                    .map_err(|e| damaged(&e))?;
                if view.shape() != p.shape || view.dtype() != Dtype::F32 {
                    let what = format!(
                        "\"{}\": expected f32{:?}, found {:?}{:?}",
                        p.name,
                        p.shape,
                        view.dtype(),
                        view.shape()
                    );
                    return Err(failed(what));
                }
                let values = view
                    .data()
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                Ok(Tensor::from_data(
                    TensorData::new(values.collect::<Vec<f32>>(), p.shape),
                    device,
                ))
            });
            all.collect()
        };
        let ranges = network.model.placement.ranges.len();
        if header.ranges.len() != ranges {
            return Err(failed(format!(
                "expected {ranges} ranges, found {}",
                header.ranges.len()
            )));
        }
        let state = Self {
            step: header.step,
            parameters: read(PARAMETER)?,
            momenta: read(MOMENTUM)?,
            ranges: header.ranges,
        };
        Ok((state, header.configuration))
    }
}
