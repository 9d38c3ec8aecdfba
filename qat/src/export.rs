//! Writes trained networks: as integers in QDQ form, or as floats.

use crate::checkpoint::State;
use crate::error::{Error, Result};
use crate::fake::Grid;
use crate::network::{Network, Pass, Quantization, Statistics, numbers};
use crate::train::{Quantizing, grids};
use burn::tensor::{Device, Tensor};
use transformer_lite::unstable::graph::ValueId;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite_convert::int8::{Trained, TrainedProduct, TrainedRange};

/// What a trained network becomes as integers.
#[derive(Clone, Debug)]
pub struct Integers {
    products: Vec<Option<TrainedProduct>>,
    grids: Vec<Option<Grid>>,
    ranges: Vec<TrainedRange>,
    quantizing: Quantizing,
    parameters: Vec<Tensor<4>>,
}

impl Integers {
    /// Computed on the CPU, on which divisions are exact.
    ///
    /// Errors: a range that no step observed.
    pub fn of(network: &Network, state: &State, quantizing: &Quantizing) -> Result<Self> {
        let cpu = Device::flex();
        let to_cpu = |t: &Tensor<4>| t.clone().to_device(&cpu);
        let mut made = Self {
            products: Vec::new(),
            ranges: Vec::new(),
            grids: grids(network, &state.ranges, quantizing.activations)?,
            quantizing: quantizing.clone(),
            parameters: state.parameters.iter().map(to_cpu).collect(),
        };
        for (grid, range) in made.grids.iter().zip(&network.model.placement.ranges) {
            let Some(grid) = grid else {
                let name = range
                    .values
                    .first()
                    .map(|v| network.model.graph.value(*v).name.clone());
                let what = format!(
                    "\"{}\" has no range; train for at least one step",
                    name.unwrap_or_default()
                );
                return Err(Error::model(&network.model.path, what));
            };
            made.ranges.push(TrainedRange {
                affine: grid.affine(),
                most: grid.most,
            });
        }
        made.products = network.products(&made.pass())?;
        Ok(made)
    }

    /// A forward pass as the integers compute.
    pub fn pass(&self) -> Pass<'_> {
        Pass {
            parameters: &self.parameters,
            statistics: Statistics::Frozen,
            quantization: Some(Quantization {
                weights: self.quantizing.weights,
                per_tensor: self.quantizing.per_tensor,
                grids: &self.grids,
            }),
            observe: false,
        }
    }

    /// For each output for a picture, the step between two integers; `None` if an output stays a float.
    pub fn steps_of_logits(&self, network: &Network) -> Option<Vec<f32>> {
        let graph = &network.model.graph;
        let logits = network.logits();
        let steps = |v: ValueId| {
            let range = network.model.placement.range_of(v)?;
            let scale = self.grids.get(range).copied().flatten()?.scale;
            let sizes = graph.value(v).fact.as_ref()?.shape.0.get(1..)?.iter();
            let sizes: Option<Vec<usize>> = sizes.map(|d| usize::try_from(d.as_const()?).ok()).collect();
            Some(vec![scale; sizes?.iter().product()])
        };
        // Values that are joined along the first axis after the batch keep their own steps.
        let join = graph.producer(logits).map(|(_, node)| node);
        let join = join.filter(|node| node.op.downcast::<Concat>().is_some_and(|c| c.axis == 1));
        let parts = join.map(|node| node.inputs.iter().flatten().map(|v| steps(*v)));
        steps(logits).or_else(|| Some(parts?.collect::<Option<Vec<_>>>()?.concat()))
    }

    fn trained<'a>(&'a self, method: &'a str) -> Trained<'a> {
        Trained {
            products: &self.products,
            ranges: &self.ranges,
            per_channel: !self.quantizing.per_tensor,
            largest: self.quantizing.weights.largest_weight(),
            method,
        }
    }

    /// For each layer, the weights that the exported integers stand for.
    pub fn dequantized(&self, network: &Network) -> Result<Vec<Option<Vec<f32>>>> {
        Ok(network.model.dequantized(&self.trained(""))?)
    }

    /// The bytes of the QDQ file.
    pub fn encode(&self, network: &Network, steps: u64) -> Result<Vec<u8>> {
        let q = &self.quantizing;
        let method = format!(
            "int8, {} weights, trained with quantization for {steps} steps, {} bits for weights and {} for activations",
            if q.per_tensor { "per-tensor" } else { "per-channel" },
            q.weights,
            q.activations
        );
        Ok(network.model.encode_trained(&self.trained(&method))?)
    }
}

/// The bytes of the float model with trained parameters.
pub fn encode_floats(network: &Network, state: &State) -> Result<Vec<u8>> {
    let all = network.parameters.iter().zip(&state.parameters);
    let values: Result<Vec<(&str, Vec<f32>)>> = all
        .map(|(p, t)| Ok((p.name.as_str(), numbers(t.clone())?)))
        .collect();
    Ok(network.model.encode_with(&values?)?)
}
