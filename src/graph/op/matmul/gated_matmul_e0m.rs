//! Fused gate-up (SwiGLU): two matmuls of one operand with E0M weights of the same size and form,
//! and an elementwise function of both results (made by the pass `gate_up`). Operands:
//! `x [.., K]`, then quantized weights and scales of the first and of the second matmul, as in
//! [`crate::graph::op::matmul_e0m`].
//!
//! For one row, and for more on some devices, a dispatch computes both matmuls and stores only the
//! function's result, so the gate of a feed-forward layer needs no launch of its own (paper,
//! section 2.2, counts launches among the costs of a decode step). Otherwise there are two
//! dispatches: a matmul into scratch memory, and one with the function as its epilogue.

use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::matmul_e0m::{ActivationType, MatMulE0m, Weights, packed_case, packed_size, rows};
use crate::graph::op::pointwise::{self, Binary, Expr, ExprSource, Pointwise, Unary};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files};
use crate::lower::LowerCx;
use crate::quant::Bits;
use crate::shape::{Dim, Fact};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq)]
pub struct GatedMatMulE0m {
    /// Form of each matmul.
    pub product: MatMulE0m,
    function: Pointwise,
}

/// Index of the scale operand of [`MatMulE0m::norm`].
const GAIN: usize = 5;

impl GatedMatMulE0m {
    /// Applies `expr` to the results of both matmuls, its operands 0 and 1.
    pub fn new(product: MatMulE0m, expr: Expr) -> Self {
        let function = Pointwise {
            name: "Gate".to_owned(),
            expr,
        };
        Self { product, function }
    }

    /// The same function with another matmul, for example with [`MatMulE0m::norm`], whose scale is
    /// the last operand.
    #[must_use]
    pub fn with_product(&self, product: MatMulE0m) -> Self {
        Self {
            product,
            ..self.clone()
        }
    }

    /// Operand indices of a matmul.
    fn operands(&self, first: usize) -> Vec<usize> {
        let own = [0, first, first + 1];
        own.into_iter().chain(self.product.norm.map(|_| GAIN)).collect()
    }

    fn check(&self, operands: usize) -> OpResult<()> {
        let expected = GAIN + usize::from(self.product.norm.is_some());
        if operands == expected {
            Ok(())
        } else {
            Err(OpError::expected("operands", expected, operands))
        }
    }
}

impl Op for GatedMatMulE0m {
    fn name(&self) -> &str {
        "GatedMatMulE0M"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        self.check(cx.inputs.len())?;
        let of = |first| {
            let own = self.operands(first).into_iter();
            let own: Vec<_> = own.map(|i| cx.inputs.get(i).copied().flatten()).collect();
            let facts = cx.of(&self.product, &own)?;
            facts
                .into_iter()
                .next()
                .ok_or_else(|| OpError::expected("results", 1, 0))
        };
        let (a, b) = (of(1)?, of(3)?);
        if a != b {
            return Err(OpError::mismatch("results of both matmuls", a, b));
        }
        let facts = cx.of(&self.function, &[Some(&a), Some(&b)])?;
        match facts.as_slice() {
            [y] if y.shape == a.shape && y.dtype == a.dtype => Ok(facts),
            _ => Err(OpError::expected(
                "a function of two floats",
                &a,
                format!("{facts:?}"),
            )),
        }
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        self.check(inputs.len())?;
        let of = |first| {
            let own = self.operands(first).into_iter();
            let own: Vec<_> = own.map(|i| inputs.get(i).copied().flatten()).collect();
            self.product.eval(&own)
        };
        let (a, b) = (of(1)?, of(3)?);
        self.function.eval(&[a.first(), b.first()])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let product = &self.product;
        let (k, n) = packed_size(product.bits, product.group, cx.fact(1)?, cx.fact(2)?)?;
        let y = cx.output(0)?;
        let mut weights = Weights::whole(1, n, GAIN);
        let place = if product.supports_two_weights(cx, k, n)? {
            weights.second = Some(3);
            ExprSource::Other
        } else {
            let count = rows(&cx.shape(0)?)?.mul(&Dim::from_usize(n))?;
            let other = cx.temp(y.dtype, count);
            product.emit(cx, k, &Weights::whole(3, n, GAIN), other)?;
            ExprSource::Beside(other)
        };
        let epilogue = pointwise::epilogue(&self.function.expr, cx, &[ExprSource::Result, place])?;
        cx.storing(&epilogue, self.name(), |cx| product.emit(cx, k, &weights, y))
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes
            .row_products()
            .saturating_mul(2)
            .saturating_add(self.function.flops(sizes))
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let value = |i| Box::new(Expr::Input(i));
    let of = |f, a, b| Box::new(Expr::Binary(f, a, b));
    // SwiGLU: the second result is the gate.
    let silu = of(
        Binary::Mul,
        value(1),
        Box::new(Expr::Unary(Unary::Sigmoid, value(1))),
    );
    let swiglu = of(Binary::Mul, value(0), silu);
    let case = |bits, group, int8, normed: bool, rows: usize, k, n| {
        let weights = [packed_case(bits, group, k, n)?, packed_case(bits, group, k, n)?];
        let product = MatMulE0m {
            activations: if int8 {
                ActivationType::Int8
            } else {
                ActivationType::Float
            },
            norm: normed.then_some(1e-5),
            ..MatMulE0m::new(bits, group)
        };
        let mut inputs = vec![input(&[1, rows, k])];
        inputs.extend(weights.into_iter().flat_map(|(c, s)| [constant(c), constant(s)]));
        if normed {
            inputs.push(input(&[k]).range(0.5, 1.5).constant());
        }
        let case = Case::new(GatedMatMulE0m::new(product, (*swiglu).clone()), inputs);
        Some(if rows == 1 && !normed {
            case.dispatches(1)
        } else {
            case
        })
    };
    use Bits::{Eight, Five, Four};
    [
        case(Four, 32, false, false, 1, 96, 66),
        case(Four, 32, false, true, 1, 576, 130),
        case(Four, 128, false, true, 1, 1056, 98),
        case(Eight, 64, false, true, 1, 192, 66),
        case(Eight, 64, false, false, 1, 96, 190),
        case(Five, 32, false, true, 1, 96, 66),
        case(Four, 32, false, false, 9, 96, 130),
        case(Four, 32, false, true, 9, 96, 64),
        case(Four, 128, false, true, 40, 160, 132),
        case(Eight, 64, false, false, 70, 144, 68),
        case(Four, 64, false, false, 100, 64, 164),
        case(Four, 32, true, false, 1, 96, 66),
        case(Four, 32, true, true, 1, 576, 130),
        case(Eight, 64, true, true, 1, 100, 34),
        case(Four, 32, true, true, 9, 96, 66),
    ]
    .into_iter()
    .flatten()
    .collect()
}
