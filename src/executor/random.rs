//! Random weights generated on the device, to measure the speed of a model of any size without its
//! files.

use crate::backend::kernel::{Kernel, KernelSpec};
use crate::backend::{Backend, BackendError, Command, Launch, View};
use crate::graph::op::gather_e0m::QuantizedGather;
use crate::graph::{Graph, ValueId};
use crate::kernels::probe::{BITS, RANDOM};
use crate::lower::WeightKey;
use crate::num;
use crate::tensor::DType;
use std::collections::BTreeMap;

/// The kernels of this module.
pub const KERNELS: &[&Kernel] = &[&RANDOM.kernel];

/// Source of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightSource {
    /// The constants of the graph. An [absent](crate::tensor::HostTensor::absent) constant is an
    /// error.
    #[default]
    Files,
    /// Absent constants are generated on the device from this seed: quantized weights with random
    /// bits, in matrices that preserve the magnitude of their input, and other tensors near 1. The
    /// numbers depend on the seed, the names of the constants and their packed form, so two plans
    /// that pack a weight differently have different weights.
    Random(u32),
}

/// The kind of numbers that [`fill`] generates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Numbers {
    /// Words with random bits.
    Words,
    /// Floats: those at even and at odd indices are each uniformly distributed around a center,
    /// within a spread.
    Floats {
        /// Element type, `f16` or `f32`.
        dtype: DType,
        /// Center and spread at even indices.
        even: [f32; 2],
        /// Center and spread at odd indices.
        odd: [f32; 2],
    },
}

/// Number of terms in the sums of a matrix with these scales. Their shape does not say, so it
/// follows from the row that the node reads or produces.
fn terms(graph: &Graph, scales: ValueId) -> Option<i64> {
    let mut nodes = graph.nodes();
    let (_, node) = nodes.find(|(_, n)| n.inputs.iter().skip(1).any(|v| *v == Some(scales)))?;
    let row = match node.op.downcast::<QuantizedGather>() {
        Some(_) => node.outputs.first().copied(),
        None => node.inputs.first().copied().flatten(),
    };
    graph.fact(row?).ok()?.shape.0.last()?.as_const()
}

impl Numbers {
    /// The numbers that replace an absent constant, or several side by side.
    pub(super) fn of(graph: &Graph, key: &WeightKey) -> Self {
        let fact = key.values.first().and_then(|v| graph.fact(*v).ok());
        let dtype = fact.map_or(DType::F32, |f| f.dtype);
        let shape = fact.and_then(|f| f.shape.as_fixed()).unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "a spread need not be exact")]
        let first = shape.first().copied().unwrap_or(1).max(1) as f32;
        let device = key.pack.dtype();
        match (device, dtype) {
            // Scale and bias of an E0M group, whose weights stand for 2 to 4: `scale * (w1 - bias)`
            // has mean 0.
            (DType::U32, DType::F16) => {
                let terms = key.values.first().and_then(|v| terms(graph, *v));
                #[expect(clippy::cast_precision_loss, reason = "a spread need not be exact")]
                let terms = terms.map_or(first, |n| n.max(1) as f32);
                let scale = (3.0 / terms).sqrt();
                Self::Floats {
                    dtype: DType::F16,
                    even: [scale, scale / 4.0],
                    odd: [3.0, 0.0],
                }
            }
            (DType::F16 | DType::F32, _) => {
                // Gains of norms and biases are vectors; each column of a matrix gets length 1.
                let of = if shape.len() < 2 {
                    [1.0, 0.1]
                } else {
                    [0.0, (3.0 / first).sqrt()]
                };
                Self::Floats {
                    dtype: device,
                    even: of,
                    odd: of,
                }
            }
            _ => Self::Words,
        }
    }

    fn dtype(self) -> DType {
        match self {
            Self::Words => DType::I32,
            Self::Floats { dtype, .. } => dtype,
        }
    }
}

const WORKGROUP: u32 = 64;

fn spec(numbers: Numbers) -> KernelSpec {
    let bits = (numbers == Numbers::Words).then_some((BITS, 1));
    KernelSpec {
        kernel: &RANDOM,
        workgroup: WORKGROUP,
        defines: bits.into_iter().collect(),
        operands: vec![Some(numbers.dtype())],
        in_place: None,
        epilogue: None,
        images: BTreeMap::new(),
    }
}

/// The kernels that generate weights.
pub fn specs() -> Vec<KernelSpec> {
    let floats = |dtype| Numbers::Floats {
        dtype,
        even: [0.0; 2],
        odd: [0.0; 2],
    };
    [Numbers::Words, floats(DType::F16), floats(DType::F32)]
        .map(spec)
        .into()
}

/// Fills `view`, a multiple of 8 bytes, with numbers that depend only on `seed`, and waits until
/// that is done.
pub fn fill(backend: &mut dyn Backend, view: View, numbers: Numbers, seed: u32) -> Result<(), BackendError> {
    let size = num::wide(numbers.dtype().device_bytes());
    let pairs = view.len / (2 * size);
    let max_grid = backend.caps().profile.max_grid;
    let groups = pairs.div_ceil(u64::from(WORKGROUP)).min(u64::from(max_grid));
    let count = |n: u64| num::exact::<u32, _>(n, "the size of a fill");
    let ([center, spread], [center_odd, spread_odd]) = match numbers {
        Numbers::Words => ([0.0; 2], [0.0; 2]),
        Numbers::Floats { even, odd, .. } => (even, odd),
    };
    let words = [count(pairs)?, count(groups * u64::from(WORKGROUP))?];
    let floats = [center, spread, center_odd, spread_odd].map(f32::to_le_bytes);
    let params = words
        .into_iter()
        .chain([seed])
        .map(u32::to_le_bytes)
        .chain(floats);
    let params: Vec<u8> = params.flatten().collect();
    let kernel = backend.compile(&spec(numbers))?;
    let recording = backend.record(&[Command::Dispatch {
        kernel,
        args: vec![view],
        step: 0,
        params: 0..count(num::wide(params.len()))?,
    }])?;
    let launch = Launch {
        params,
        grids: vec![[count(groups)?, 1, 1]],
    };
    let done = backend.submit(recording, &launch).and_then(|()| backend.wait());
    backend.release(recording);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::matmul_e0m::QuantizedMatMul;
    use crate::graph::{Edit, Op};
    use crate::lower::Pack;
    use crate::quant::{Bits, Format};
    use crate::shape::{Fact, Shape};

    /// Scales of `k` rows in groups of `group`, of a product or of a table.
    fn spread(op: Box<dyn Op>, k: usize, groups: usize) -> f32 {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let is_table = op.downcast::<QuantizedGather>().is_some();
        let mut value =
            |name, shape: &[usize], dtype| edit.add_value(name, Some(Fact::new(dtype, Shape::fixed(shape))));
        let codes = value("codes", &[Bits::Four.rows(k), 64], DType::U32);
        let scales = value("scales", &[groups, 64, 2], DType::F16);
        let long = value("long", &[1, k], DType::F32);
        let short = value("short", &[1], DType::I64);
        let (x, y) = if is_table { (short, long) } else { (long, short) };
        edit.add_node(
            "node",
            Vec::new(),
            op,
            vec![Some(x), Some(codes), Some(scales)],
            vec![y],
        );
        let pack = Pack::Plain { dtype: DType::U32 };
        let key = WeightKey {
            values: vec![scales],
            pack,
        };
        match Numbers::of(&graph, &key) {
            Numbers::Floats { even, .. } => even[0],
            Numbers::Words => panic!("floats are scales"),
        }
    }

    #[test]
    fn scales_follow_the_length_of_a_sum_and_not_the_groups() {
        for k in [96usize, 4096] {
            let wanted = (3.0 / k as f32).sqrt();
            for group in [32, 128, 1 << 20] {
                let groups = k.div_ceil(group);
                let format = Format::new(Bits::Four, group);
                let product = Box::new(QuantizedMatMul::new(format));
                assert_eq!(spread(product, k, groups), wanted, "groups of {group}");
                let table = Box::new(QuantizedGather { format });
                assert_eq!(spread(table, k, groups), wanted, "a table, groups of {group}");
            }
        }
    }
}
