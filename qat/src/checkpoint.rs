//! The state of a run on disk: a safetensors file, which appears complete or not at all.

use crate::error::{Error, Result};
use crate::fake::Range;
use crate::network::{Network, numbers};
use crate::train::Configuration;
use crate::value::RANK;
use burn::tensor::{Device, Tensor, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::de::DeserializeOwned;
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
    pub parameters: Vec<Tensor<RANK>>,
    /// What the optimizer keeps of earlier gradients: lists as long as that of parameters.
    pub kept: Vec<Vec<Tensor<RANK>>>,
    pub ranges: Vec<Option<Range>>,
}

/// Prefix of the names of parameters.
const PARAMETER: &str = "parameter.";

impl State {
    /// Writes the state.
    pub fn save(&self, path: &Path, network: &Network, configuration: &Configuration) -> Result<()> {
        let header = Header {
            configuration: configuration.clone(),
            step: self.step,
            ranges: self.ranges.clone(),
        };
        let kept = configuration
            .optimizer
            .prefixes()
            .zip(self.kept.iter().map(Vec::as_slice));
        let groups: Vec<_> = std::iter::once((PARAMETER, &self.parameters[..]))
            .chain(kept)
            .collect();
        write(path, KEY, &header, &named(network), &groups)
    }

    /// Reads a state of this network. If `configuration` is given, that of the file must be equal.
    pub fn load(
        path: &Path,
        network: &Network,
        configuration: Option<&Configuration>,
        device: &Device,
    ) -> Result<(Self, Configuration)> {
        let ranges = network.model.placement.ranges.len();
        let check = |header: &Header| {
            if let Some(wanted) = configuration {
                header.configuration.check(wanted)?;
            }
            match header.ranges.len() {
                found if found == ranges => Ok(header.configuration.optimizer.prefixes().collect()),
                found => Err(format!("expected {ranges} ranges, found {found}")),
            }
        };
        let (header, [parameters], kept) =
            read::<Header, _, _>(path, KEY, check, &named(network), [PARAMETER], device)?;
        let state = Self {
            step: header.step,
            parameters,
            kept,
            ranges: header.ranges,
        };
        Ok((state, header.configuration))
    }
}

fn named(network: &Network) -> Vec<Named<'_, RANK>> {
    let parameters = network.parameters.iter();
    parameters.map(|p| (p.name.as_str(), p.shape)).collect()
}

/// A tensor for each parameter.
type Group<const D: usize> = Vec<Tensor<D>>;

/// Name and shape of a parameter.
pub(crate) type Named<'a, const D: usize> = (&'a str, [usize; D]);

/// Writes `header`, as the metadata `key`, and groups of tensors: one for each of `parameters`, with
/// the group's prefix before its name. The file appears complete or not at all.
pub(crate) fn write<const D: usize>(
    path: &Path,
    key: &str,
    header: &impl Serialize,
    parameters: &[Named<'_, D>],
    groups: &[(&str, &[Tensor<D>])],
) -> Result<()> {
    let failed = |what: String| Error::Checkpoint {
        path: path.to_owned(),
        what,
    };
    let header = serde_json::to_string(header).map_err(|e| failed(e.to_string()))?;
    let mut data: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (prefix, tensors) in groups {
        for ((name, shape), t) in parameters.iter().zip(*tensors) {
            let bytes = numbers(t.clone())?.iter().flat_map(|v| v.to_le_bytes()).collect();
            data.push((format!("{prefix}{name}"), shape.to_vec(), bytes));
        }
    }
    let views = data
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?)));
    let views: std::result::Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
    let metadata = HashMap::from([(key.to_owned(), header)]);
    let bytes = views.and_then(|v| safetensors::serialize(v, Some(metadata)));
    let bytes = bytes.map_err(|e| failed(e.to_string()))?;
    Ok(write_whole(path, |file| file.write_all(&bytes))?)
}

/// Reads the header, the groups with these prefixes, and those whose prefixes `check` returns, of a
/// file that [`write`] wrote. `check` says why it refuses a header.
pub(crate) fn read<H: DeserializeOwned, const D: usize, const N: usize>(
    path: &Path,
    key: &str,
    check: impl FnOnce(&H) -> std::result::Result<Vec<&'static str>, String>,
    parameters: &[Named<'_, D>],
    prefixes: [&str; N],
    device: &Device,
) -> Result<(H, [Group<D>; N], Vec<Group<D>>)> {
    let failed = |what: String| Error::Checkpoint {
        path: path.to_owned(),
        what,
    };
    let damaged = |e: &dyn std::fmt::Display| failed(format!("is damaged or cut off: {e}"));
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(&e))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|e| damaged(&e))?;
    let header = metadata.metadata().as_ref().and_then(|m| m.get(key));
    let header = header.ok_or_else(|| failed(format!("is not of {key}")))?;
    let header: H = serde_json::from_str(header).map_err(|e| damaged(&e))?;
    let more = check(&header).map_err(failed)?;
    let tensor = |prefix: &str, (name, shape): &Named<'_, D>| {
        let view = tensors.tensor(&format!("{prefix}{name}"));
        let view = view.map_err(|e| damaged(&e))?;
        if view.shape() != shape || view.dtype() != Dtype::F32 {
            let (dtype, found) = (view.dtype(), view.shape());
            let what = format!("\"{name}\": expected f32{shape:?}, found {dtype:?}{found:?}");
            return Err(failed(what));
        }
        let values = view.data().as_chunks::<4>().0.iter();
        let values: Vec<f32> = values.map(|b| f32::from_le_bytes(*b)).collect();
        Ok(Tensor::from_data(TensorData::new(values, *shape), device))
    };
    let read = |prefix: &str| {
        parameters
            .iter()
            .map(|p| tensor(prefix, p))
            .collect::<Result<_>>()
    };
    let mut groups = [const { Vec::new() }; N];
    for (group, prefix) in groups.iter_mut().zip(prefixes) {
        *group = read(prefix)?;
    }
    let more = more.into_iter().map(read).collect::<Result<_>>()?;
    Ok((header, groups, more))
}
