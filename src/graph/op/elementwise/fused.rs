//! An operator with an elementwise function applied to its result, as the epilogue of its kernel
//! (paper, section 2.2; made by the pass `epilogue`).
//!
//! Operands: those of the operator, then the other operands of the function, whose operand 0 is the
//! operator's result. The function's result has the same shape, and both are floats.

use crate::backend::kernel::epilogue::MAX_OPERANDS;
use crate::graph::op::case::{Case, Input, input};
use crate::graph::op::conv::Conv;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::pointwise::import::{binary, cast, input as arg, number, select, unary};
use crate::graph::op::pointwise::{self, Binary, Expr, Pointwise, Unary};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::window::{AutoPad, Window};
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files};
use crate::lower::LowerCx;
use crate::shape::Fact;
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug)]
pub struct Fused {
    name: String,
    base: Box<dyn Op>,
    inputs: usize,
    function: Pointwise,
}

impl PartialEq for Fused {
    fn eq(&self, o: &Self) -> bool {
        self.base.dyn_eq(o.base.as_ref()) && self.inputs == o.inputs && self.function == o.function
    }
}

impl Fused {
    /// Maximum number of other operands of the function.
    pub const MAX_FURTHER: usize = MAX_OPERANDS - 1;

    /// `base` over the first `inputs` operands, then `expr` over its result and the other operands.
    pub fn new(base: Box<dyn Op>, inputs: usize, expr: Expr) -> Self {
        let function = Pointwise {
            name: "Epilogue".to_owned(),
            expr,
        };
        Self {
            name: format!("{}+", base.name()),
            base,
            inputs,
            function,
        }
    }

    /// The operator whose result the function is applied to.
    pub fn base(&self) -> &(dyn Op + 'static) {
        self.base.as_ref()
    }

    /// Number of operands of [`Fused::base`], including omitted ones.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The function; its operand 0 is the result of [`Fused::base`].
    pub fn expr(&self) -> &Expr {
        &self.function.expr
    }
}

impl Op for Fused {
    fn name(&self) -> &str {
        &self.name
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (own, further) = cx.inputs.split_at(self.inputs.min(cx.inputs.len()));
        let base = cx.of(self.base.as_ref(), own)?;
        let [result] = base.as_slice() else {
            return Err(OpError::expected("results", 1, base.len()));
        };
        let mut operands = vec![Some(result)];
        operands.extend(further);
        let facts = cx.of(&self.function, &operands)?;
        let same = |f: &Fact| f.shape == result.shape && f.dtype.is_float() && result.dtype.is_float();
        match facts.iter().find(|f| !same(f)) {
            Some(other) => Err(OpError::mismatch(
                "results before and after the function",
                result,
                other,
            )),
            None => Ok(facts),
        }
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (own, further) = inputs.split_at(self.inputs.min(inputs.len()));
        let base = self.base.run(own)?;
        let mut operands: Vec<Option<&HostTensor>> = base.iter().map(Some).collect();
        operands.extend(further);
        self.function.eval(&operands)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let further = self.inputs..cx.input_count();
        let operands = further.map(pointwise::ExprSource::Operand);
        let places: Vec<_> = std::iter::once(pointwise::ExprSource::Result)
            .chain(operands)
            .collect();
        let epilogue = pointwise::epilogue(&self.function.expr, cx, &places)?;
        cx.with_epilogue(self.base.as_ref(), self.inputs, &epilogue)
    }

    fn reads(&self, input: usize) -> bool {
        input >= self.inputs || self.base.reads(input)
    }

    fn keeps_precision(&self) -> bool {
        self.base.keeps_precision()
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let own = sizes.inputs.get(..self.inputs).unwrap_or(&sizes.inputs).to_vec();
        let base = Sizes {
            inputs: own,
            outputs: sizes.outputs.clone(),
        };
        self.base.flops(&base).saturating_add(self.function.flops(sizes))
    }

    fn elements_read(&self, input: usize, sizes: &Sizes) -> u64 {
        if input < self.inputs {
            self.base.elements_read(input, sizes)
        } else {
            sizes.input_elements(input)
        }
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let clipped = || {
        let low = || Expr::Const(-0.5, DType::F32);
        select(binary(Binary::Less, arg(0), low()), low(), arg(0))
    };
    let silu = || binary(Binary::Mul, arg(0), unary(Unary::Sigmoid, arg(0)));
    let gelu = || {
        let shifted = binary(Binary::Add, unary(Unary::Erf, arg(0)), number(1.0));
        binary(Binary::Mul, arg(0), shifted)
    };
    let add = || binary(Binary::Add, arg(0), arg(1));
    let both = || {
        let product = |a, b| binary(Binary::Mul, arg(a), arg(b));
        binary(Binary::Add, product(0, 1), product(2, 3))
    };
    let after = |base: Box<dyn Op>, x: &[usize], w: &[usize], expr, further: Vec<Input>| {
        let inputs = [input(x), input(w).constant()].into_iter().chain(further);
        Case::new(Fused::new(base, 2, expr), inputs.collect())
    };
    let plain = |shapes: &[&[usize]]| shapes.iter().map(|s| input(s)).collect();
    let given = |expr, further| {
        let base = Box::new(MatMul { trans_b: false });
        after(base, &[9, 32], &[32, 48], expr, further)
    };
    let matmul = |a: &[usize], b: &[usize], expr, further: &[&[usize]]| {
        after(Box::new(MatMul { trans_b: false }), a, b, expr, plain(further))
    };
    let conv = |x: &[usize], w: &[usize], expr, further: &[&[usize]]| {
        let window = Window {
            auto_pad: AutoPad::SameUpper,
            ..Window::new(&[])
        };
        after(Box::new(Conv { window, group: 1 }), x, w, expr, plain(further))
    };
    vec![
        matmul(&[9, 32], &[32, 48], add(), &[&[9, 48]]),
        matmul(&[9, 32], &[32, 48], add(), &[&[48]]),
        matmul(&[9, 31], &[31, 7], add(), &[&[9, 7]]),
        matmul(&[9, 31], &[31, 7], add(), &[&[7]]),
        matmul(
            &[2, 9, 32],
            &[32, 48],
            both(),
            &[&[2, 1, 48], &[9, 1], &[2, 9, 48]],
        ),
        matmul(&[1, 64], &[64, 66], gelu(), &[]),
        matmul(&[13, 40], &[40, 160], silu(), &[]),
        matmul(&[13, 40], &[40, 32], clipped(), &[]),
        conv(&[2, 3, 8, 9], &[5, 3, 3, 3], silu(), &[]),
        conv(&[2, 3, 5, 35], &[5, 3, 3, 3], add(), &[&[2, 5, 5, 35]]),
        conv(&[2, 3, 5, 7], &[5, 3, 1, 1], add(), &[&[5, 1, 1]]),
        conv(
            &[1, 3, 4, 16],
            &[8, 3, 1, 1],
            both(),
            &[&[1, 8, 1, 1], &[16], &[8, 4, 16]],
        ),
        conv(&[1, 4, 6, 6], &[8, 4, 1, 1], clipped(), &[]),
        // Constants, truth values and integers besides the result.
        given(add(), vec![input(&[48]).constant()]),
        given(
            select(arg(1), arg(0), cast(DType::F32, arg(2))),
            vec![input(&[9, 48]).bools(), input(&[9, 1]).ints(-9, 9)],
        ),
    ]
}
