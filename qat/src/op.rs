//! Operators of a graph as functions of `burn` tensors.

use crate::value::{RANK, Value};
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::module::{avg_pool2d, conv_transpose2d, conv2d, max_pool2d};
use burn::tensor::ops::PadMode;
use burn::tensor::ops::{AvgPoolOptions, ConvOptions, ConvTransposeOptions, MaxPoolOptions};
use burn::tensor::{Device, Slice, Tensor};
use transformer_lite::unstable::graph::op::axis;
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::conv_transpose::ConvTranspose;
use transformer_lite::unstable::graph::op::dropout::Dropout;
use transformer_lite::unstable::graph::op::gemm::Gemm;
use transformer_lite::unstable::graph::op::global_pool::GlobalPool;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use transformer_lite::unstable::graph::op::pool::{Kind as PoolKind, Pool};
use transformer_lite::unstable::graph::op::reduce::{Kind as ReduceKind, Reduce};
use transformer_lite::unstable::graph::op::reshape::Reshape;
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::op::transpose::Transpose;
use transformer_lite::unstable::graph::op::window::{AutoPad, Axis, Window};
use transformer_lite::unstable::graph::{Graph, Node};
use transformer_lite::unstable::tensor::DType;

/// Why an operator has no gradient here.
pub type Reason = String;

/// An operator that is differentiable here.
#[derive(Clone, Debug)]
pub enum Function {
    Conv(Conv),
    ConvTranspose(ConvTranspose),
    Gemm(Gemm),
    MatMul(MatMul),
    Pointwise(Expr),
    Concat(i64),
    Pool(Pool),
    /// Mean or maximum of all spatial axes.
    Global(GlobalPool),
    /// Mean over axes; they keep size 1 if `keep`, as the result's rank tells.
    Mean(Vec<i64>),
    /// The elements in the shape of the result.
    Reshape,
    Transpose(Vec<usize>),
    Softmax(i64),
    Identity,
}

fn rank(graph: &Graph, node: &Node, i: usize) -> Option<usize> {
    let v = node.inputs.get(i).copied().flatten()?;
    graph.value(v).fact.as_ref().map(|f| f.shape.rank())
}

fn ints(graph: &Graph, node: &Node, i: usize) -> Option<Vec<i64>> {
    let v = node.inputs.get(i).copied().flatten()?;
    let tensor = graph.value(v).fact.as_ref()?.as_const()?;
    tensor.to_i64().ok()
}

/// The only element of a constant operand.
fn scalar(graph: &Graph, node: &Node, i: usize) -> Option<f32> {
    let v = node.inputs.get(i).copied().flatten()?;
    let tensor = graph.value(v).fact.as_ref()?.as_const()?;
    match tensor.to_f32().ok()?.as_ref() {
        [v] => Some(*v),
        _ => None,
    }
}

/// Functions of one number that [`unary`] computes.
fn is_known(f: Unary) -> bool {
    use Unary::{Abs, Erf, Exp, HardSwish, Log, Neg, Reciprocal, Relu, Sigmoid, Softplus, Sqrt, Tanh};
    matches!(
        f,
        Neg | Abs | Exp | Log | Sqrt | Reciprocal | Sigmoid | Tanh | Relu | Erf | Softplus | HardSwish
    )
}

/// Checks that [`evaluate`] computes an expression.
fn check(expr: &Expr) -> Result<(), Reason> {
    match expr {
        Expr::Input(_) | Expr::Const(..) => Ok(()),
        Expr::Unary(f, x) if is_known(*f) => check(x),
        Expr::Binary(f, a, b) => match f {
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Max | Binary::Min => {
                check(a).and_then(|()| check(b))
            }
            f => Err(format!("the function {f:?} has no gradient here")),
        },
        Expr::Unary(f, _) => Err(format!("the function {f:?} has no gradient here")),
        _ => Err("it selects, tests or converts".to_owned()),
    }
}

impl Function {
    /// The function of a node; or why there is none.
    pub fn of(graph: &Graph, node: &Node) -> Result<Self, Reason> {
        for i in 0..node.inputs.len() {
            if rank(graph, node, i).is_some_and(|r| r > RANK) {
                return Err(format!("operand {i} has more than {RANK} axes"));
            }
        }
        let op = &node.op;
        let spatial = || match rank(graph, node, 0) {
            Some(RANK) => Ok(()),
            _ => Err("only windows over two axes are supported".to_owned()),
        };
        if let Some(conv) = op.downcast::<Conv>() {
            spatial()?;
            return Ok(Self::Conv(conv.clone()));
        }
        if let Some(conv) = op.downcast::<ConvTranspose>() {
            spatial()?;
            return check_transposed(conv).map(|()| Self::ConvTranspose(conv.clone()));
        }
        if let Some(gemm) = op.downcast::<Gemm>() {
            return match gemm.trans_a {
                true => Err("its first operand is transposed".to_owned()),
                false => Ok(Self::Gemm(*gemm)),
            };
        }
        if let Some(matmul) = op.downcast::<MatMul>() {
            return match rank(graph, node, 0).min(rank(graph, node, 1)) {
                Some(0..=1) | None => Err("an operand has a single axis".to_owned()),
                Some(_) => Ok(Self::MatMul(matmul.clone())),
            };
        }
        if let Some(pointwise) = op.downcast::<Pointwise>() {
            let number = |i: usize| match scalar(graph, node, i) {
                Some(v) => Expr::Const(f64::from(v), DType::F32),
                None => Expr::Input(i),
            };
            let expr = pointwise.expr.map_inputs(&mut { number });
            return check(&expr).map(|()| Self::Pointwise(expr));
        }
        if let Some(concat) = op.downcast::<Concat>() {
            return Ok(Self::Concat(concat.axis));
        }
        if let Some(pool) = op.downcast::<Pool>() {
            spatial()?;
            return match pool.kind {
                PoolKind::Max { indices: true, .. } => Err("positions have no gradient".to_owned()),
                PoolKind::Lp { .. } => Err("only maximum and mean are supported".to_owned()),
                _ => Ok(Self::Pool(pool.clone())),
            };
        }
        if let Some(pool) = op.downcast::<GlobalPool>() {
            spatial()?;
            return match pool {
                GlobalPool::Lp { .. } => Err("only maximum and mean are supported".to_owned()),
                pool => Ok(Self::Global(*pool)),
            };
        }
        if let Some(reduce) = op.downcast::<Reduce>() {
            let axes = reduce
                .axes
                .clone()
                .or_else(|| ints(graph, node, 1))
                .unwrap_or_default();
            let whole = axes.is_empty() && !reduce.noop_without_axes;
            return match (reduce.kind, rank(graph, node, 0)) {
                (ReduceKind::Mean, Some(rank)) if whole => Ok(Self::Mean((0i64..).take(rank).collect())),
                (ReduceKind::Mean, _) => Ok(Self::Mean(axes)),
                _ => Err("only means are supported".to_owned()),
            };
        }
        if op.downcast::<Reshape>().is_some() {
            return Ok(Self::Reshape);
        }
        if let Some(transpose) = op.downcast::<Transpose>() {
            let rank = rank(graph, node, 0).unwrap_or_default();
            return transpose
                .axes(rank)
                .map(Self::Transpose)
                .map_err(|e| e.to_string());
        }
        if let Some(softmax) = op.downcast::<Softmax>() {
            return match softmax.flatten {
                true => Err("it joins axes".to_owned()),
                false => Ok(Self::Softmax(softmax.axis)),
            };
        }
        if op.downcast::<Dropout>().is_some() {
            return Ok(Self::Identity);
        }
        Err("the operator has no gradient here".to_owned())
    }

    /// The first result. `shape` is its shape, of rank `rank`.
    pub fn apply(&self, x: &[Value], shape: [usize; RANK], rank: usize) -> Result<Value, Reason> {
        let missing = || "an operand is missing".to_owned();
        let first = x.first().ok_or_else(missing)?;
        let second = || x.get(1).map(|v| v.tensor.clone()).ok_or_else(missing);
        let plain = first.tensor.clone();
        let tensor = match self {
            Self::Conv(conv) => convolution(conv, plain, second()?, x.get(2).map(|v| v.tensor.clone()))?,
            Self::ConvTranspose(conv) => {
                transposed(conv, plain, second()?, x.get(2).map(|v| v.tensor.clone()))
            }
            Self::Gemm(gemm) => {
                let b = second()?;
                let b = if gemm.trans_b { b.swap_dims(2, 3) } else { b };
                let y = scaled(plain.matmul(b), gemm.alpha);
                match x.get(2) {
                    Some(c) => y + scaled(c.tensor.clone(), gemm.beta),
                    None => y,
                }
            }
            Self::MatMul(matmul) => {
                let b = second()?;
                plain.matmul(if matmul.trans_b { b.swap_dims(2, 3) } else { b })
            }
            Self::Pointwise(expr) => evaluate(expr, x)?,
            Self::Concat(a) => {
                let a = axis(*a, first.rank).map_err(|e| e.to_string())?;
                Tensor::cat(x.iter().map(|v| v.tensor.clone()).collect(), first.axis(a))
            }
            Self::Pool(pool) => pooled(pool, plain)?,
            Self::Global(GlobalPool::Max) => plain.max_dim(3).max_dim(2),
            Self::Global(_) => plain.mean_dim(3).mean_dim(2),
            Self::Mean(axes) => {
                let mut y = plain;
                for a in axes {
                    y = y.mean_dim(first.axis(axis(*a, first.rank).map_err(|e| e.to_string())?));
                }
                y.reshape(shape)
            }
            Self::Reshape => plain.reshape(shape),
            Self::Transpose(axes) => {
                let lead = RANK - axes.len().min(RANK);
                let mut order = [0, 1, 2, 3];
                for (to, from) in order.iter_mut().skip(lead).zip(axes) {
                    *to = from + lead;
                }
                plain.permute(order)
            }
            Self::Softmax(a) => softmax(
                plain,
                first.axis(axis(*a, first.rank).map_err(|e| e.to_string())?),
            ),
            Self::Identity => plain,
        };
        Ok(Value { tensor, rank })
    }
}

fn scaled(x: Tensor<4>, by: f32) -> Tensor<4> {
    if by == 1.0 { x } else { x.mul_scalar(by) }
}

/// Windows over the last two axes of `x`.
fn axes(window: &Window, kernel: [usize; 2], x: &Tensor<4>) -> Result<[Axis; 2], Reason> {
    let [_, _, height, width] = x.dims();
    let kernel = kernel.map(|k| i64::try_from(k).unwrap_or(i64::MAX));
    let axes = window
        .axes(&kernel, &[height, width])
        .map_err(|e| e.to_string())?;
    axes.try_into()
        .map_err(|_| "windows do not have two axes".to_owned())
}

/// The bias of a convolution, `[1, 1, 1, channels]`, as its result is laid out.
fn along_channels(bias: Tensor<4>) -> Tensor<4> {
    let count = bias.dims().iter().product();
    bias.reshape([1, count, 1, 1])
}

fn convolution(
    conv: &Conv,
    x: Tensor<4>,
    w: Tensor<4>,
    bias: Option<Tensor<4>>,
) -> Result<Tensor<4>, Reason> {
    let [outputs, inputs, height, width] = w.dims();
    let at = axes(&conv.window, [height, width], &x)?;
    let groups = usize::try_from(conv.group).map_err(|e| e.to_string())?;
    let depthwise = inputs == 1 && groups == outputs;
    // Gradients of burn's convolutions are convolutions with kernels as large as pictures, which are
    // slow on GPUs.
    let y = match depthwise || x.device() == Device::flex() {
        true => direct(&at, groups, x, w),
        false => by_matmul(&at, groups, x, w),
    };
    Ok(match bias {
        Some(b) => y + along_channels(b),
        None => y,
    })
}

fn direct(at: &[Axis; 2], groups: usize, x: Tensor<4>, w: Tensor<4>) -> Tensor<4> {
    let each = |f: fn(&Axis) -> usize| [f(&at[0]), f(&at[1])];
    let pads = [(at[0].before, at[0].after), (at[1].before, at[1].after)];
    let (strides, dilations) = (each(|a| a.stride), each(|a| a.dilation));
    conv2d(
        x,
        w,
        None,
        ConvOptions::new_with_padding(strides, pads, dilations, groups),
    )
}

/// Matmul of the weights with the elements of all windows.
fn by_matmul(at: &[Axis; 2], groups: usize, x: Tensor<4>, w: Tensor<4>) -> Tensor<4> {
    let ([batch, ..], [outputs, inputs, height, width]) = (x.dims(), w.dims());
    let w = w
        .permute([0, 2, 3, 1])
        .reshape([1, groups, outputs / groups, height * width * inputs]);
    let y = w.matmul(windows(at, groups, x));
    y.reshape([batch, outputs, at[0].out, at[1].out])
}

/// The elements of all windows: `[batch, groups, kernel height * width * channels, windows]`.
fn windows(at: &[Axis; 2], groups: usize, x: Tensor<4>) -> Tensor<4> {
    let [batch, channels, ..] = x.dims();
    let shape = [batch, groups, channels / groups, at[0].out * at[1].out];
    let pads = at.map(|a| (a.before, a.after));
    let x = match pads {
        [(0, 0), (0, 0)] => x,
        pads => x.pad(pads, PadMode::Constant(0.0)),
    };
    let line = |a: &Axis, tap: usize| {
        let from = tap * a.dilation;
        Slice::new(
            from.cast_signed(),
            Some((from + (a.out - 1) * a.stride + 1).cast_signed()),
            a.stride.cast_signed(),
        )
    };
    let mut taps = Vec::with_capacity(at[0].kernel * at[1].kernel);
    for i in 0..at[0].kernel {
        for j in 0..at[1].kernel {
            let tap = x
                .clone()
                .slice([Slice::full(), Slice::full(), line(&at[0], i), line(&at[1], j)]);
            taps.push(tap.reshape(shape));
        }
    }
    Tensor::cat(taps, 2)
}

fn check_transposed(conv: &ConvTranspose) -> Result<(), Reason> {
    let w = &conv.window;
    let even = |i: usize| {
        let (before, after) = w.explicit(i, 2);
        before == after
    };
    let plain = matches!(w.auto_pad, AutoPad::Explicit | AutoPad::Valid) && conv.output_shape.is_empty();
    match plain && even(0) && even(1) {
        true => Ok(()),
        false => Err("its padding differs between the ends of an axis or follows from its size".to_owned()),
    }
}

fn transposed(conv: &ConvTranspose, x: Tensor<4>, w: Tensor<4>, bias: Option<Tensor<4>>) -> Tensor<4> {
    let size = |v: i64| usize::try_from(v).unwrap_or(0);
    let each = |f: &dyn Fn(usize) -> i64| [size(f(0)), size(f(1))];
    let window = &conv.window;
    let options = ConvTransposeOptions::new(
        each(&|i| window.stride(i)),
        each(&|i| window.explicit(i, 2).0),
        each(&|i| conv.output_padding.get(i).copied().unwrap_or(0)),
        each(&|i| window.dilation(i)),
        size(conv.group),
    );
    let y = conv_transpose2d(x, w, None, options);
    match bias {
        Some(b) => y + along_channels(b),
        None => y,
    }
}

fn pooled(pool: &Pool, x: Tensor<4>) -> Result<Tensor<4>, Reason> {
    let kernel: Vec<usize> = pool
        .window
        .kernel
        .iter()
        .filter_map(|k| usize::try_from(*k).ok())
        .collect();
    let kernel: [usize; 2] = kernel
        .try_into()
        .map_err(|_| "windows do not have two axes".to_owned())?;
    let at = axes(&pool.window, kernel, &x)?;
    let (stride, dilation) = (at.map(|a| a.stride), at.map(|a| a.dilation));
    let padding = at.map(|a| (a.before, a.after));
    let ceil_mode = pool.window.ceil;
    Ok(match pool.kind {
        PoolKind::Average { .. } if dilation != [1, 1] => {
            return Err("means over dilated windows are not supported".to_owned());
        }
        PoolKind::Average { include_pad } => avg_pool2d(
            x,
            AvgPoolOptions {
                kernel_size: kernel,
                stride,
                padding,
                count_include_pad: include_pad,
                ceil_mode,
            },
        ),
        _ => max_pool2d(
            x,
            MaxPoolOptions {
                kernel_size: kernel,
                stride,
                padding,
                dilation,
                ceil_mode,
            },
        ),
    })
}

/// A number, or a tensor.
#[expect(clippy::large_enum_variant, reason = "short-lived")]
enum Term {
    Number(f32),
    Tensor(Tensor<4>),
}

fn evaluate(expr: &Expr, x: &[Value]) -> Result<Tensor<4>, Reason> {
    match term(expr, x)? {
        Term::Tensor(t) => Ok(t),
        Term::Number(_) => Err("the result depends on no operand".to_owned()),
    }
}

fn term(expr: &Expr, x: &[Value]) -> Result<Term, Reason> {
    Ok(match expr {
        Expr::Input(i) => {
            let value = x.get(*i).ok_or_else(|| "an operand is missing".to_owned())?;
            Term::Tensor(value.tensor.clone())
        }
        #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
        Expr::Const(v, _) => Term::Number(*v as f32),
        Expr::Unary(f, of) => match term(of, x)? {
            Term::Number(v) => Term::Number(f.apply(v)),
            Term::Tensor(t) => Term::Tensor(unary(*f, t)),
        },
        Expr::Binary(f, a, b) => binary(*f, term(a, x)?, term(b, x)?),
        _ => return Err("it selects, tests or converts".to_owned()),
    })
}

fn unary(f: Unary, x: Tensor<4>) -> Tensor<4> {
    match f {
        Unary::Neg => x.neg(),
        Unary::Abs => x.abs(),
        Unary::Exp => x.exp(),
        Unary::Log => x.log(),
        Unary::Sqrt => x.sqrt(),
        Unary::Reciprocal => x.recip(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Tanh => x.tanh(),
        Unary::Erf => x.erf(),
        Unary::Softplus => x.exp().add_scalar(1.0).log(),
        Unary::HardSwish => {
            let gate = x.clone().div_scalar(6.0).add_scalar(0.5).clamp(0.0, 1.0);
            x * gate
        }
        // Relu; others were refused.
        _ => burn::tensor::activation::relu(x),
    }
}

fn binary(f: Binary, a: Term, b: Term) -> Term {
    use Term::{Number, Tensor};
    Tensor(match (f, a, b) {
        (Binary::Add, Tensor(a), Tensor(b)) => a + b,
        (Binary::Sub, Tensor(a), Tensor(b)) => a - b,
        (Binary::Mul, Tensor(a), Tensor(b)) => a * b,
        (Binary::Div, Tensor(a), Tensor(b)) => a / b,
        (Binary::Max, Tensor(a), Tensor(b)) => a.max_pair(b),
        (Binary::Add, Tensor(a), Number(b)) | (Binary::Add, Number(b), Tensor(a)) => a.add_scalar(b),
        (Binary::Mul, Tensor(a), Number(b)) | (Binary::Mul, Number(b), Tensor(a)) => a.mul_scalar(b),
        (Binary::Max, Tensor(a), Number(b)) | (Binary::Max, Number(b), Tensor(a)) => a.clamp_min(b),
        (Binary::Min, Tensor(a), Number(b)) | (Binary::Min, Number(b), Tensor(a)) => a.clamp_max(b),
        (Binary::Sub, Tensor(a), Number(b)) => a.sub_scalar(b),
        (Binary::Sub, Number(a), Tensor(b)) => b.neg().add_scalar(a),
        (Binary::Div, Tensor(a), Number(b)) => a.div_scalar(b),
        (Binary::Div, Number(a), Tensor(b)) => b.recip().mul_scalar(a),
        (f, Number(a), Number(b)) => return Number(f.floats(a, b)),
        // Minimum; others were refused.
        (_, Tensor(a), Tensor(b)) => a.min_pair(b),
        (_, Tensor(a), Number(_)) | (_, Number(_), Tensor(a)) => a,
    })
}

#[cfg(test)]
mod tests {
    use super::{by_matmul, direct};
    use burn::tensor::{Device, Distribution, Tensor};
    use transformer_lite::unstable::graph::op::window::Axis;

    #[test]
    fn convolution_as_matmul_has_the_same_value_and_gradients() {
        let device = Device::flex();
        let axis = |size, kernel, stride, dilation, before, after| Axis {
            size,
            out: (size + before + after - dilation * (kernel - 1) - 1) / stride + 1,
            kernel,
            stride,
            dilation,
            before,
            after,
        };
        let cases = [
            ([axis(7, 3, 1, 1, 1, 1), axis(5, 3, 1, 1, 1, 1)], 1),
            ([axis(7, 3, 2, 1, 0, 1), axis(6, 2, 3, 2, 1, 0)], 1),
            ([axis(4, 1, 1, 1, 0, 0), axis(5, 1, 1, 1, 0, 0)], 1),
            ([axis(6, 3, 2, 1, 1, 1), axis(6, 1, 2, 1, 0, 0)], 2),
        ];
        for (i, (at, groups)) in cases.into_iter().enumerate() {
            let random =
                |shape: [usize; 4]| Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device);
            let x = random([3, 4, at[0].size, at[1].size]);
            let w = random([6, 4 / groups, at[0].kernel, at[1].kernel]);
            let target = random([3, 6, at[0].out, at[1].out]);
            let run = |f: fn(&[Axis; 2], usize, Tensor<4>, Tensor<4>) -> Tensor<4>| {
                let (x, w) = (
                    x.clone().autodiff().require_grad(),
                    w.clone().autodiff().require_grad(),
                );
                let y = f(&at, groups, x.clone(), w.clone());
                let mut gradients = (y.clone() * Tensor::from_inner(target.clone())).sum().backward();
                [
                    y.inner(),
                    x.grad_remove(&mut gradients).unwrap(),
                    w.grad_remove(&mut gradients).unwrap(),
                ]
            };
            for (a, b) in run(direct).into_iter().zip(run(by_matmul)) {
                let far = (a - b).abs().max().into_scalar::<f32>();
                assert!(far < 1e-4, "case {i}: {far}");
            }
        }
    }
}
