//! Rows of a table stored as the transpose of a quantized weight (own domain, `GatherE0M` in
//! files). Operands: indices, quantized weights, scales. Row `i` of the result is column `index[i]`
//! of the packed K x N matrix, so an embedding and a tied output head share one tensor. Attributes
//! as for `MatMulE0M`, indices as for `Gather`.

use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::matmul_e0m::{
    K_BLOCK, format_defines, import_format, packed_case, packed_parts, packed_size,
};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, indices, operand, own};
use crate::kernels::gather_e0m::{Args, KERNEL};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::quant::{Bits, Format, PackedView, scale_words};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizedGather {
    pub format: Format,
}

impl Op for QuantizedGather {
    fn name(&self) -> &str {
        "QuantizedGather"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let index = cx.fact(0)?;
        let (k, _) = packed_size(self.format, cx.fact(1)?, cx.fact(2)?)?;
        let mut shape = index.shape.0.clone();
        shape.push(Dim::from_usize(k));
        Ok(vec![Fact::new(DType::F32, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (index, codes, scales) = (operand(inputs, 0)?, operand(inputs, 1)?, operand(inputs, 2)?);
        let facts = [codes, scales].map(|t| Fact::new(t.dtype(), Shape::fixed(t.shape())));
        let (k, n) = packed_size(self.format, &facts[0], &facts[1])?;
        let (codes, scales) = (codes.u32s()?, scale_words(scales)?);
        let matrix = PackedView {
            format: self.format,
            k,
            n,
            codes: &codes,
            scales: &scales,
        };
        let mut y = Vec::new();
        for i in index.to_i64()? {
            let signed = num::signed(n);
            let j = usize::try_from(if i < 0 { i + signed } else { i })
                .ok()
                .filter(|j| *j < n)
                .ok_or_else(|| OpError::expected("index", format!("-{n} to {}", n - 1), i))?;
            let row = y.len();
            y.resize(row + k, 0.0);
            matrix.decode_column(j, &mut y[row..]);
        }
        let mut shape = index.shape().to_vec();
        shape.push(k);
        Ok(vec![HostTensor::from_f32(&shape, &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (k, n) = packed_size(self.format, cx.fact(1)?, cx.fact(2)?)?;
        let count = cx.out_fact(0)?.shape.count()?;
        let index = indices::checked(cx, 0, &[Dim::from_usize(n)])?;
        // Split like the matmul, so that a tied head shares the parts.
        for part in packed_parts(cx, &[1], self.format, k, n)? {
            let call = format_defines(Call::new(&KERNEL, 64), self.format, K_BLOCK);
            let call = call.grid(count.ceil_div(2 * 64)?, 1, 1);
            let args = Args {
                codes: part.codes,
                scales: part.scales,
                index,
                y: cx.output(0)?,
                count: count.clone(),
                k: Dim::from_usize(k),
                panel: Dim::from_usize(part.panel),
                table_rows: Dim::from_usize(n),
                first: Dim::from_usize(part.first),
                part_rows: Dim::from_usize(part.count),
            };
            cx.emit(call, args)?;
        }
        Ok(())
    }

    fn accepts(&self, input: usize, cx: &BoundsCx<'_>) -> Option<Bounds> {
        let (_, n) = packed_size(self.format, cx.fact(1)?, cx.fact(2)?).ok()?;
        (input == 0).then(|| Bounds::indices(num::signed(n).into()))
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.results().saturating_mul(2)
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        let all = sizes.input_elements(input);
        let columns = sizes.input(1).last().copied().unwrap_or(1).max(1);
        if input == 0 {
            all
        } else {
            all.min((all / columns).saturating_mul(sizes.input_elements(0)))
        }
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let format = import_format(a)?;
    Ok(Box::new(QuantizedGather { format }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[own("GatherE0M", 3)],
    import,
    kernels: &[&KERNEL.kernel, &crate::kernels::check_indices::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |format, k, n: usize, rows| {
        let (codes, scales) = packed_case(format, k, n)?;
        let top = i64::try_from(n).ok()?;
        Some(Case::new(
            QuantizedGather { format },
            vec![
                input(&[1, rows]).ints(-top, top - 1),
                constant(codes),
                constant(scales),
            ],
        ))
    };
    let pairs = [
        (Bits::Eight, 64, 576, 130, 5),
        (Bits::Four, 32, 64, 50, 1),
        (Bits::Four, 128, 136, 10, 3),
        (Bits::Two, 32, 80, 50, 4),
        (Bits::Three, 16, 96, 34, 4),
        (Bits::Five, 32, 96, 50, 3),
        (Bits::Six, 288, 288, 66, 5),
    ]
    .map(|(bits, group, k, n, rows)| case(Format::new(bits, group), k, n, rows));
    let nested = Bits::ALL.into_iter().filter_map(Format::nested);
    let nested = nested.map(|format| case(format, 768, 34, 3));
    pairs.into_iter().chain(nested).flatten().collect()
}
