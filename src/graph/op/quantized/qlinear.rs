//! Quantized operators of ONNX Runtime's domain `com.microsoft`: `QLinearAdd`,
//! `QLinearMul`, `QLinearSigmoid`, `QLinearLeakyRelu`, `QLinearSoftmax`, `QLinearConcat`,
//! `QLinearAveragePool`, `QLinearGlobalAveragePool` and `QGemm`.
//!
//! Each is a float operator between conversions of its operands and its result. The pass `integer`
//! replaces those with constant scales by integer operators.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, constant, given};
use crate::graph::op::concat::Concat;
use crate::graph::op::gemm::Gemm;
use crate::graph::op::global_pool::GlobalPool;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, input as arg, number, prelu, unary};
use crate::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use crate::graph::op::pool::{Kind, Pool};
use crate::graph::op::quantize_linear::{DequantizeLinear, Grid, QuantizeLinear};
use crate::graph::op::softmax::Softmax;
use crate::graph::op::window::Window;
use crate::graph::op::{ANY, Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, microsoft, operand};
use crate::shape::Fact;
use crate::tensor::{DType, HostTensor};

/// Positions of the operands of one quantized value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The integers.
    pub data: usize,
    pub scale: usize,
    /// The zero point, which may be omitted.
    pub zero: usize,
}

impl Place {
    /// Data, scale and zero point at `first` and the two positions after it.
    const fn from(first: usize) -> Self {
        Self {
            data: first,
            scale: first + 1,
            zero: first + 2,
        }
    }
}

#[derive(Clone, Debug)]
pub struct QLinear {
    name: String,
    op: Box<dyn Op>,
    operands: Vec<Place>,
    bias: Option<usize>,
    /// Positions of the scale and the zero point of the result.
    result: [usize; 2],
}

impl PartialEq for QLinear {
    fn eq(&self, o: &Self) -> bool {
        let fields = |q: &Self| (q.name.clone(), q.operands.clone(), q.bias, q.result);
        self.op.dyn_eq(o.op.as_ref()) && fields(self) == fields(o)
    }
}

/// Several scales are those of the columns of a matrix.
const GRID: Grid = Grid { axis: 1, block: 0 };

impl QLinear {
    /// The float operator.
    pub fn op(&self) -> &(dyn Op + 'static) {
        self.op.as_ref()
    }

    /// Positions of the operands of the float operator.
    pub fn operands(&self) -> &[Place] {
        &self.operands
    }

    /// Position of the 32-bit bias. Its scale is the product of the operand scales and of `alpha`.
    pub fn bias(&self) -> Option<usize> {
        self.bias
    }

    /// Positions of the scale and the zero point of the result.
    pub fn result(&self) -> [usize; 2] {
        self.result
    }

    fn dequantize() -> DequantizeLinear {
        DequantizeLinear {
            grid: GRID,
            dtype: Some(DType::F32),
        }
    }

    fn quantize(dtype: DType) -> QuantizeLinear {
        QuantizeLinear {
            grid: GRID,
            dtype: Some(dtype),
            saturate: true,
        }
    }

    /// The scale of the bias as a function of the operand scales: their product times `alpha`.
    fn bias_scale(&self) -> Expr {
        let alpha = self.op.downcast::<Gemm>().map_or(1.0, |gemm| gemm.alpha);
        let scale = binary(Binary::Mul, arg(0), arg(1));
        binary(Binary::Mul, scale, number(alpha))
    }

    /// Several scales are those of the elements of the bias.
    fn dequantize_bias() -> DequantizeLinear {
        DequantizeLinear {
            grid: Grid { axis: -1, block: 0 },
            ..Self::dequantize()
        }
    }

    /// The type of the result: that of its zero point, otherwise that of the first operand.
    fn dtype(&self, zero: Option<DType>, first: DType) -> OpResult<DType> {
        match zero.unwrap_or(first) {
            dtype @ (DType::I8 | DType::U8) => Ok(dtype),
            other => Err(OpError::expected(
                format!("result of {}", self.name),
                "i8 or u8",
                other,
            )),
        }
    }
}

impl Op for QLinear {
    fn name(&self) -> &str {
        &self.name
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let mut floats = Vec::new();
        for place in &self.operands {
            let list = [
                Some(cx.fact(place.data)?),
                Some(cx.fact(place.scale)?),
                cx.opt(place.zero),
            ];
            floats.extend(cx.of(&Self::dequantize(), &list)?);
        }
        if let Some(bias) = self.bias.and_then(|i| cx.opt(i)) {
            floats.push(Fact::new(DType::F32, bias.shape.clone()));
        }
        let list: Vec<Option<&Fact>> = floats.iter().map(Some).collect();
        let mut facts = cx.of(self.op.as_ref(), &list)?;
        let first = self.operands.first().map_or(0, |p| p.data);
        let dtype = self.dtype(cx.opt(self.result[1]).map(|z| z.dtype), cx.fact(first)?.dtype)?;
        cx.float(self.result[0])?;
        facts.iter_mut().for_each(|f| f.dtype = dtype);
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let optional = |i: usize| inputs.get(i).copied().flatten();
        let mut floats = Vec::new();
        for p in &self.operands {
            let list = [optional(p.data), optional(p.scale), optional(p.zero)];
            floats.extend(Self::dequantize().eval(&list)?);
        }
        if let Some(bias) = self.bias.and_then(optional) {
            let scales: Vec<&HostTensor> = self.operands.iter().filter_map(|p| optional(p.scale)).collect();
            let product = Pointwise {
                name: "Mul".to_owned(),
                expr: self.bias_scale(),
            };
            let both: Vec<Option<&HostTensor>> = scales.into_iter().map(Some).collect();
            let scale = product.eval(&both)?.pop();
            floats.extend(Self::dequantize_bias().eval(&[Some(bias), scale.as_ref()])?);
        }
        let list: Vec<Option<&HostTensor>> = floats.iter().map(Some).collect();
        let y = self.op.run(&list)?.pop();
        let first = operand(inputs, self.operands.first().map_or(0, |p| p.data))?;
        let dtype = self.dtype(optional(self.result[1]).map(HostTensor::dtype), first.dtype())?;
        let list = [y.as_ref(), optional(self.result[0]), optional(self.result[1])];
        Self::quantize(dtype).eval(&list)
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let mut floats = Vec::new();
        for p in &self.operands {
            let list = [cx.opt(p.data), cx.opt(p.scale), cx.opt(p.zero)];
            floats.push(Some(cx.node("dequantized", Self::dequantize(), &list)?));
        }
        if let Some(bias) = self.bias.and_then(|i| cx.opt(i)) {
            let scales: Vec<ValueId> = self.operands.iter().filter_map(|p| cx.opt(p.scale)).collect();
            let scale = cx.pointwise("bias_scale", self.bias_scale(), &scales)?;
            floats.push(Some(cx.node(
                "bias",
                Self::dequantize_bias(),
                &[Some(bias), Some(scale)],
            )?));
        }
        let y = cx.boxed("float", self.op.clone(), &floats)?;
        let zero = cx.opt(self.result[1]);
        let zero_type = zero.map(|z| Ok::<_, OpError>(cx.fact(z)?.dtype)).transpose()?;
        let first = cx.input(self.operands.first().map_or(0, |p| p.data))?;
        let dtype = self.dtype(zero_type, cx.fact(first)?.dtype)?;
        let list = [Some(y), cx.opt(self.result[0]), zero];
        Ok(Some(vec![cx.node("quantized", Self::quantize(dtype), &list)?]))
    }
}

/// The float operator that the operator type stands for.
fn inner(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let pointwise = |expr| -> Box<dyn Op> {
        Box::new(Pointwise {
            name: a.op_type().trim_start_matches("QLinear").to_owned(),
            expr,
        })
    };
    if a.int("channels_last")?.unwrap_or(0) != 0 {
        return Err(OpError::Unsupported(format!(
            "{} with channels last",
            a.op_type()
        )));
    }
    Ok(match a.op_type() {
        "QLinearAdd" => pointwise(binary(Binary::Add, arg(0), arg(1))),
        "QLinearMul" => pointwise(binary(Binary::Mul, arg(0), arg(1))),
        "QLinearSigmoid" => pointwise(unary(Unary::Sigmoid, arg(0))),
        "QLinearLeakyRelu" => pointwise(prelu(number(a.float("alpha")?.unwrap_or(0.01)))),
        "QLinearSoftmax" => {
            let flatten = a.int("opset")?.unwrap_or(13) < 13;
            Box::new(Softmax {
                axis: a.int("axis")?.unwrap_or(if flatten { 1 } else { -1 }),
                flatten,
            })
        }
        "QLinearConcat" => Box::new(Concat {
            axis: a
                .int("axis")?
                .ok_or_else(|| OpError::expected("attribute `axis`", "an axis", "nothing"))?,
        }),
        "QLinearAveragePool" => {
            let window = Window::import(a)?;
            if window.kernel.is_empty() {
                return Err(OpError::expected("attribute `kernel_shape`", "sizes", "nothing"));
            }
            let include_pad = a.int("count_include_pad")?.unwrap_or(0) != 0;
            Box::new(Pool {
                kind: Kind::Average { include_pad },
                window,
            })
        }
        "QLinearGlobalAveragePool" => Box::new(GlobalPool::Average),
        _ => Box::new(Gemm {
            alpha: a.float("alpha")?.unwrap_or(1.0),
            beta: 1.0,
            trans_a: a.int("transA")?.unwrap_or(0) != 0,
            trans_b: a.int("transB")?.unwrap_or(0) != 0,
        }),
    })
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let (operands, bias, result) = match a.op_type() {
        "QLinearAdd" | "QLinearMul" => (vec![Place::from(0), Place::from(3)], None, [6, 7]),
        "QGemm" => (vec![Place::from(0), Place::from(3)], Some(6), [7, 8]),
        "QLinearConcat" => {
            let count = a.input_count().saturating_sub(2);
            if count == 0 || !count.is_multiple_of(3) {
                return Err(OpError::expected(
                    "inputs",
                    "2 and 3 for each operand",
                    a.input_count(),
                ));
            }
            let places = (0..count / 3).map(|i| Place::from(2 + 3 * i));
            (places.collect(), None, [0, 1])
        }
        _ => (vec![Place::from(0)], None, [3, 4]),
    };
    if !a.has_input(result[0]) {
        return Err(OpError::Unsupported(format!(
            "{} with a float result",
            a.op_type()
        )));
    }
    Ok(Box::new(QLinear {
        name: a.op_type().to_owned(),
        op: inner(a)?,
        operands,
        bias,
        result,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        microsoft("QLinearAdd", 8),
        microsoft("QLinearMul", 8),
        microsoft("QLinearSigmoid", 5),
        microsoft("QLinearLeakyRelu", 5),
        microsoft("QLinearSoftmax", 5),
        microsoft("QLinearConcat", ANY),
        microsoft("QLinearAveragePool", 5),
        microsoft("QLinearGlobalAveragePool", 5),
        microsoft("QGemm", 9),
    ],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let Ok(data) = HostTensor::from_ints(DType::I8, &[2, 3], &[-128, -7, 0, 5, 90, 127]) else {
        return Vec::new();
    };
    let map = |scale: f32, zero: i64| {
        let scale = HostTensor::from_f32(&[], &[scale]).ok()?;
        Some([scale, HostTensor::from_ints(DType::I8, &[], &[zero]).ok()?])
    };
    let (Some(a), Some(b), Some(y)) = (map(0.05, 3), map(0.02, -9), map(0.1, 1)) else {
        return Vec::new();
    };
    let op = QLinear {
        name: "QLinearAdd".to_owned(),
        op: Box::new(Pointwise {
            name: "Add".to_owned(),
            expr: binary(Binary::Add, arg(0), arg(1)),
        }),
        operands: vec![Place::from(0), Place::from(3)],
        bias: None,
        result: [6, 7],
    };
    let mut inputs = vec![given(data.clone())];
    inputs.extend(a.map(constant));
    inputs.push(given(data));
    inputs.extend(b.map(constant));
    inputs.extend(y.map(constant));
    vec![Case::new(op, inputs)]
}
