//! `FusedMatMul`, `FusedGemm` and `FusedConv` of the domain `com.microsoft`: matmuls with
//! transposed operands; GEMM and convolution with a fused activation.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::composite::{Composed, Composite, Inner};
use crate::graph::op::matmul::MatMul;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, fused_activation, input as arg, number};
use crate::graph::op::pointwise::{Binary, Expr};
use crate::graph::op::transpose::Transpose;
use crate::graph::op::{Attributes, Op, OpDef, OpError, OpResult, conv, gemm, microsoft};
use crate::num;

/// `alpha * a * b`, with the last two axes of operands transposed.
#[derive(Clone, Debug, PartialEq)]
pub struct FusedMatMul {
    pub alpha: f32,
    pub transposed: [bool; 2],
}

impl Composed for FusedMatMul {
    fn name(&self) -> &str {
        "FusedMatMul"
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let mut operands = [cx.input(0)?, cx.input(1)?];
        for ((v, turned), name) in operands.iter_mut().zip(self.transposed).zip(["a", "b"]) {
            let rank = num::signed(cx.fact(*v)?.shape.rank());
            // ONNX Runtime ignores the attributes for vectors.
            if turned && rank > 1 {
                let perm = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
                *v = cx.node(name, Transpose { perm: Some(perm) }, &[Some(*v)])?;
            }
        }
        let y = cx.node("matmul", MatMul { trans_b: false }, &operands.map(Some))?;
        #[expect(clippy::float_cmp, reason = "the attribute's default")]
        if self.alpha == 1.0 {
            return Ok(vec![y]);
        }
        let scaled = binary(Binary::Mul, arg(0), number(self.alpha));
        Ok(vec![cx.pointwise("scaled", scaled, &[y])?])
    }
}

/// A matmul or convolution of operands 0 to 2, plus operand 3, then an activation.
#[derive(Clone, Debug, PartialEq)]
pub struct Activated {
    pub name: String,
    pub product: Inner,
    pub activation: Expr,
}

impl Composed for Activated {
    fn name(&self) -> &str {
        &self.name
    }

    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>> {
        let operands = [0, 1, 2].map(|i| cx.opt(i));
        let mut y = cx.boxed("product", self.product.0.clone(), &operands)?;
        if let Some(added) = cx.opt(3) {
            y = cx.pointwise("sum", binary(Binary::Add, arg(0), arg(1)), &[y, added])?;
        }
        Ok(vec![cx.pointwise("activation", self.activation.clone(), &[y])?])
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let flag = |name| Ok::<_, OpError>(a.int(name)?.unwrap_or(0) != 0);
    let product = match a.op_type() {
        "FusedConv" => (conv::DEF.import)(a)?,
        "FusedGemm" => (gemm::DEF.import)(a)?,
        _ if flag("transBatchA")? || flag("transBatchB")? => {
            return Err(OpError::Unsupported("transBatchA or transBatchB".to_owned()));
        }
        _ => {
            return Ok(Box::new(Composite(FusedMatMul {
                alpha: a.float("alpha")?.unwrap_or(1.0),
                transposed: [flag("transA")?, flag("transB")?],
            })));
        }
    };
    let parameters = match a.floats("activation_params")? {
        Some(list) => list.into_iter().map(Some).collect(),
        None => vec![a.float("activation_alpha")?, a.float("activation_beta")?],
    };
    a.float("activation_gamma")?;
    let function = a.string("activation")?.filter(|f| !f.is_empty());
    Ok(Box::new(Composite(Activated {
        name: a.op_type().to_owned(),
        product: Inner(product),
        activation: match function {
            Some(function) => fused_activation(&function, &parameters)?,
            None => arg(0),
        },
    })))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        microsoft("FusedMatMul", 2),
        microsoft("TransposeMatMul", 2),
        microsoft("FusedGemm", 3),
        microsoft("FusedConv", 4),
    ],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |alpha, transposed, shapes: [&[usize]; 2]| {
        let op = Composite(FusedMatMul { alpha, transposed });
        Case::new(op, shapes.map(input).to_vec())
    };
    let mut all = vec![
        case(0.5, [true, false], [&[2, 5, 3], &[2, 5, 4]]),
        case(1.0, [false, true], [&[3, 5], &[4, 5]]),
        case(2.0, [true, true], [&[5, 3], &[2, 4, 5]]),
    ];
    if let Ok(activation) = fused_activation("LeakyRelu", &[Some(0.1)]) {
        let product = Inner(Box::new(MatMul { trans_b: false }));
        let op = Composite(Activated {
            name: "FusedGemm".to_owned(),
            product,
            activation,
        });
        let shapes: [&[usize]; 2] = [&[3, 5], &[5, 4]];
        all.push(Case::new(op, shapes.map(input).to_vec()));
    }
    all
}
