//! Several matmuls of one operand with E0M weights of the same form, such as QKV (made by the pass
//! of this name). Operands: `x [.., K]`, then quantized weights and scales of each matmul, as in
//! [`crate::graph::op::matmul_e0m`]; one result per matmul.
//!
//! If a kernel can bind all results as one buffer, one dispatch computes all of them, over the
//! columns of all weights side by side. Otherwise, for example if the number of rows is unbounded,
//! each matmul has its own dispatch and weights. A result starts after the maximum size of the
//! previous ones, at an offset where a view can start, so its offset is the same in all runs.

use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::matmul_e0m::{ActivationType, MatMulE0m, Weights, packed_case, packed_size, rows};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files};
use crate::lower::{LowerCx, Operand};
use crate::quant::Bits;
use crate::shape::Fact;
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq)]
pub struct JointMatMulE0m {
    /// Form of each matmul.
    pub product: MatMulE0m,
}

impl JointMatMulE0m {
    /// Maximum number of matmuls.
    pub const MAX_MATMULS: usize = 3;

    /// Operand indices of each matmul, for `inputs` operands in total. All share the last operand,
    /// the scale of [`MatMulE0m::norm`], if there is one.
    fn operands(&self, inputs: usize) -> OpResult<Vec<Vec<usize>>> {
        let gain = usize::from(self.product.norm.is_some());
        let products = inputs.saturating_sub(1 + gain) / 2;
        if inputs != 2 * products + 1 + gain || !(2..=Self::MAX_MATMULS).contains(&products) {
            let expected = format!(
                "quantized weights and scales of 2 to {} matmuls",
                Self::MAX_MATMULS
            );
            return Err(OpError::expected("operands", expected, inputs));
        }
        let of = |i: usize| {
            let own = [0, 2 * i + 1, 2 * i + 2];
            own.into_iter().chain((gain == 1).then_some(inputs - 1)).collect()
        };
        Ok((0..products).map(of).collect())
    }

    /// K, the combined weights, and the operand that holds all results; the reason if they cannot
    /// share one buffer.
    fn together(&self, cx: &mut LowerCx<'_>) -> OpResult<Result<(usize, Weights, Operand), String>> {
        let rows = rows(&cx.shape(0)?)?;
        let Some(most) = cx.upper_bound(&rows).and_then(|n| u64::try_from(n).ok()) else {
            return Ok(Err(format!("{rows} rows have no bound")));
        };
        let (mut depth, mut end) = (0, 0);
        let (mut codes, mut ends, mut room) = (Vec::new(), Vec::new(), Vec::new());
        for operands in self.operands(cx.input_count())? {
            let of = &self.product;
            let (words, scales) = (operands[1], operands[2]);
            let (k, n) = packed_size(of.bits, of.group, cx.fact(words)?, cx.fact(scales)?)?;
            (depth, end) = (k, end + n);
            codes.push(words);
            ends.push(end);
            room.push(most.max(1).saturating_mul(n as u64));
        }
        Ok(cx.block(&room)?.map(|block| {
            let (starts, gain) = (block.starts, cx.input_count() - 1);
            let weights = Weights {
                codes,
                ends,
                starts,
                second: None,
                gain,
            };
            (depth, weights, block.operand)
        }))
    }
}

impl Op for JointMatMulE0m {
    fn name(&self) -> &str {
        "JointMatMulE0M"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let mut facts = Vec::new();
        for operands in self.operands(cx.inputs.len())? {
            facts.extend(
                cx.of(
                    &self.product,
                    &operands
                        .iter()
                        .map(|i| cx.inputs.get(*i).copied().flatten())
                        .collect::<Vec<_>>(),
                )?,
            );
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let mut results = Vec::new();
        for operands in self.operands(inputs.len())? {
            results.extend(
                self.product.eval(
                    &operands
                        .iter()
                        .map(|i| inputs.get(*i).copied().flatten())
                        .collect::<Vec<_>>(),
                )?,
            );
        }
        Ok(results)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        match self.together(cx)? {
            Ok((k, weights, y)) => return self.product.emit(cx, k, &weights, y),
            Err(why) => log::debug!("matmuls of \"{}\" use separate dispatches: {why}", cx.name()),
        }
        let operands = self.operands(cx.input_count())?;
        for (o, operands) in (0..cx.output_count()).zip(operands) {
            cx.part(&self.product, &operands, o)?;
        }
        Ok(())
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.row_products()
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case =
        |bits, group, int8, rows, k, columns: &[usize]| joint(bits, group, [int8, false], rows, k, columns);
    let normed =
        |bits, group, rows, k, columns: &[usize]| joint(bits, group, [false, true], rows, k, columns);
    use Bits::{Eight, Four};
    [
        case(Four, 32, false, 1, 64, &[64, 64]),
        case(Four, 32, false, 1, 96, &[256, 66, 130]),
        case(Eight, 64, false, 1, 96, &[64, 32, 96]),
        case(Four, 32, false, 9, 96, &[130, 64, 64]),
        case(Four, 32, false, 8, 96, &[64, 32, 96]),
        case(Four, 128, false, 17, 136, &[66, 10]),
        case(Eight, 64, false, 5, 100, &[34, 2, 256]),
        case(Eight, 64, false, 8, 100, &[64, 32]),
        case(Four, 32, true, 1, 96, &[256, 66, 130]),
        case(Four, 32, true, 9, 96, &[130, 64, 64]),
        case(Four, 128, true, 17, 136, &[66, 10]),
        case(Eight, 64, true, 5, 100, &[34, 2, 256]),
        normed(Four, 32, 1, 96, &[256, 66, 130]),
        normed(Eight, 64, 1, 192, &[64, 32, 96]),
        normed(Four, 32, 9, 96, &[64, 32]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn joint(
    bits: Bits,
    group: usize,
    [int8, normed]: [bool; 2],
    rows: usize,
    k: usize,
    columns: &[usize],
) -> Option<Case> {
    let mut inputs = vec![input(&[1, rows, k])];
    for n in columns {
        let (codes, scales) = packed_case(bits, group, k, *n)?;
        inputs.extend([constant(codes), constant(scales)]);
    }
    if normed {
        inputs.push(input(&[k]).range(0.5, 1.5).constant());
    }
    let product = MatMulE0m {
        activations: if int8 {
            ActivationType::Int8
        } else {
            ActivationType::Float
        },
        norm: normed.then_some(1e-5),
        ..MatMulE0m::new(bits, group)
    };
    let case = Case::new(JointMatMulE0m { product }, inputs);
    Some(match (int8, normed) {
        (_, true) => case,
        (true, _) if rows > 1 => case.dispatches(2),
        _ => case.dispatches(1),
    })
}
