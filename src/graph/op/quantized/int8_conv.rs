//! Convolution and matmul of 8-bit integers with constant weights and 8-bit results.
//!
//! `y = clamp(round(factor * (bias + sum x w)) + zero)` for each output channel (equation 7 of
//! *Integer-Arithmetic-Only Inference*). The bias includes the contribution of the zero point of
//! the input. Convolution padding holds that zero point.

use crate::graph::op::case::{Case, constant};
use crate::graph::op::int8::{
    self, Footprint, WORD, byte_operand, check_factors, fact, read_factors, tensor, word_operand,
};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::window::{self, Line, Window};
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, fixed_size, operand};
use crate::kernels::int8_conv::{Args, DEPTHWISE, DepthwiseArgs, KERNEL};
use crate::lower::{Call, LowerCx, Pack, Planned, dots};
use crate::num::{self, OutOfRange};
use crate::quant::fixed::{Arithmetic, Factor, Output};
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor, PANEL};

/// Operands are x `i8[n, spatial.., c]`, w, bias `i32[m]`, and the factors of m channels
/// ([`int8::factors`]). The result is `i8[n, windows.., m]`. [`Kind`] gives the shape of w.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Int8Conv {
    /// The kind of product, which decides the shape of w.
    pub kind: Kind,
    /// The zero point of x.
    pub x_zero: i32,
    pub output: Output,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A matmul: x is `i8[.., k]`, w is `i8[m, k]`.
    Matmul,
    /// w is `i8[m, kernel.., c / group]`.
    Conv {
        window: Window,
        /// Number of groups; each has whole words of input and output channels.
        group: i64,
    },
    /// Each channel has its own weights: w is `i8[kernel.., c]`.
    Depthwise { window: Window },
}

/// The window of a matmul.
static NO_WINDOW: Window = Window {
    kernel: Vec::new(),
    strides: Vec::new(),
    dilations: Vec::new(),
    pads: Vec::new(),
    auto_pad: window::AutoPad::Explicit,
    ceil: false,
};

impl Int8Conv {
    fn window(&self) -> &Window {
        match &self.kind {
            Kind::Matmul => &NO_WINDOW,
            Kind::Conv { window, .. } | Kind::Depthwise { window } => window,
        }
    }

    fn group(&self) -> i64 {
        match &self.kind {
            Kind::Conv { group, .. } => *group,
            Kind::Matmul | Kind::Depthwise { .. } => 1,
        }
    }

    fn is_depthwise(&self) -> bool {
        matches!(self.kind, Kind::Depthwise { .. })
    }

    /// Window sizes, the number of output channels, and the number of input channels per group.
    fn weights(&self, w: &[Dim]) -> OpResult<(Vec<i64>, Dim, Dim)> {
        let fixed = |d: &Dim| {
            d.as_const()
                .ok_or_else(|| OpError::expected("window size", "a constant", d))
        };
        let (m, kernel, c) = match (self.is_depthwise(), w) {
            (true, [kernel @ .., c]) => (c, kernel, c),
            (false, [m, kernel @ .., c]) => (m, kernel, c),
            _ => return Err(OpError::expected("rank of the weights", "2 or more", w.len())),
        };
        let kernel: Vec<i64> = kernel.iter().map(fixed).collect::<OpResult<_>>()?;
        let whole = self.window().kernel.is_empty() || self.window().kernel == kernel;
        if !whole {
            return Err(OpError::mismatch(
                "window sizes of attribute and weights",
                format!("{:?}", self.window().kernel),
                format!("{kernel:?}"),
            ));
        }
        Ok((kernel, m.clone(), c.clone()))
    }
}

/// Dot products of a patch `[taps, channels]` with the weights.
struct Sums<'a> {
    weights: &'a [i8],
    /// Input channels per group.
    depth: usize,
    /// All output channels.
    outputs: usize,
    /// Output channels per group.
    rows: usize,
    /// All input channels.
    channels: usize,
}

impl Sums<'_> {
    /// For output channel `o` with weights `[m, taps, depth]`.
    fn of_row(&self, patch: &[i8], o: usize) -> Result<i32, OutOfRange> {
        let taps = patch.len().checked_div(self.channels).unwrap_or(0);
        let row = num::part(self.weights, o * taps * self.depth..)?;
        if self.depth == self.channels {
            return Ok(int8::dot(patch, row));
        }
        let first = o.checked_div(self.rows).unwrap_or(0) * self.depth;
        let mut pairs = patch
            .chunks(self.channels.max(1))
            .zip(row.chunks(self.depth.max(1)));
        pairs.try_fold(0i32, |sum, (x, w)| {
            Ok(sum.wrapping_add(int8::dot(num::part(x, first..)?, w)))
        })
    }

    /// For output channel `o` with weights `[taps, m]`.
    fn of_channel(&self, patch: &[i8], o: usize) -> i32 {
        let lines = patch.iter().skip(o).step_by(self.channels.max(1));
        let weights = self.weights.iter().skip(o).step_by(self.outputs.max(1));
        let products = lines.zip(weights).map(|(x, w)| i32::from(*x) * i32::from(*w));
        products.fold(0, i32::wrapping_add)
    }
}

impl Op for Int8Conv {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Matmul => "Int8Linear",
            Kind::Conv { .. } => "Int8Conv",
            Kind::Depthwise { .. } => "Int8DepthwiseConv",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, w) = (fact(cx, 0)?, fact(cx, 1)?);
        let (kernel, m, per_group) = self.weights(&w.shape.0)?;
        let (lead, c) = int8::last(&x.shape.0)?;
        cx.same(
            "channels of input and of weights times groups",
            c,
            &per_group.mul(&self.group().into())?,
        )?;
        cx.same(
            "channels of bias and result",
            int8::only(&cx.fact(2)?.shape.0)?,
            &m,
        )?;
        check_factors(cx, 3, &m)?;
        let mut out = match (&self.kind, lead) {
            (Kind::Matmul, _) => lead.to_vec(),
            (_, [n, spatial @ ..]) => {
                let mut out = vec![n.clone()];
                out.extend(self.window().derive(cx, &kernel, spatial)?);
                out
            }
            _ => return Err(OpError::expected("rank", "3 or more", x.shape.rank())),
        };
        out.push(m);
        Ok(vec![Fact::new(x.dtype, Shape(out))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let ((x, dx), (w, dw)) = (byte_operand(inputs, 0)?, byte_operand(inputs, 1)?);
        let (kernel, m, per_group) = self.weights(&Shape::fixed(w.shape()).0)?;
        let (m, per_group) = (fixed_size(&m)?, fixed_size(&per_group)?);
        let (lead, c) = int8::last(x.shape())?;
        let (images, axes) = match (&self.kind, lead) {
            (Kind::Matmul, _) => (crate::graph::op::count(lead)?, Vec::new()),
            (_, [n, spatial @ ..]) => (*n, self.window().axes(&kernel, spatial)?),
            _ => return Err(OpError::expected("rank", "3 or more", x.shape().len())),
        };
        let mut shape = match self.kind {
            Kind::Matmul => lead.to_vec(),
            _ => vec![images],
        };
        shape.extend(axes.iter().map(|a| a.out));
        shape.push(m);
        let bias = operand(inputs, 2)?.to_i64()?;
        let factors = read_factors(operand(inputs, 3)?)?;
        if bias.len() != m || factors.len() != m {
            return Err(OpError::mismatch("channels of bias and result", bias.len(), m));
        }
        let pad =
            i8::try_from(self.x_zero).map_err(|_| OpError::expected("zero point", "8 bits", self.x_zero))?;
        let footprint = Footprint::new(&axes, *c, pad);
        let plane = crate::graph::op::count(&axes.iter().map(|a| a.size).collect::<Vec<_>>())? * c;
        let sums = Sums {
            weights: dw,
            depth: per_group,
            outputs: m,
            channels: *c,
            rows: m / num::exact::<usize, _>(self.group().max(1), "a number of groups")?,
        };
        let (mut y, mut patch) = (
            crate::graph::op::room(&shape)?,
            crate::graph::op::room(&[footprint.len()])?,
        );
        for image in 0..images {
            let x = num::part(dx, image * plane..(image + 1) * plane)?;
            for at in window::indices(&axes.iter().map(|a| a.out).collect::<Vec<_>>()) {
                quota::check()?;
                footprint.gather(x, &at, &mut patch);
                for (o, (bias, factor)) in bias.iter().zip(&factors).enumerate() {
                    let sum = if self.is_depthwise() {
                        sums.of_channel(&patch, o)
                    } else {
                        sums.of_row(&patch, o)?
                    };
                    let sum = num::exact::<i32, _>(i64::from(sum) + bias, "a sum of products")?;
                    y.push(self.output.of(factor.apply(sum)));
                }
            }
        }
        Ok(vec![tensor(&shape, &y)?])
    }

    fn stores_bytes(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (x, w, out) = (cx.shape(0)?, cx.shape(1)?, cx.out_fact(0)?.shape.clone());
        let (kernel, m, per_group) = self.weights(&w.0)?;
        let ((x_lead, c), (out_lead, _)) = (int8::last(&x.0)?, int8::last(&out.0)?);
        let (images, mut lines) = match (&self.kind, x_lead, out_lead) {
            (Kind::Matmul, ..) => (Dim::from(1), int8::flat(x_lead)?),
            (_, [n, spatial @ ..], [_, windows @ ..]) => {
                (n.clone(), self.window().plane(&kernel, spatial, windows)?)
            }
            _ => return Err(OpError::expected("rank", "3 or more", x.rank())),
        };
        let mut images = images;
        if lines.iter().all(Line::is_identity) && !self.is_depthwise() {
            lines = int8::flat(&[images, lines[0].size.clone(), lines[1].size.clone()])?;
            images = 1.into();
        }
        let [h, v] = &lines;
        let rows = images.mul(&h.out)?.mul(&v.out)?;
        let fields = (
            c.exact_div(&4.into()),
            m.exact_div(&4.into()),
            per_group.exact_div(&4.into()),
        );
        let (Some(words), Some(outputs), Some(depth)) = fields else {
            return Err(OpError::expected("channels", "whole words", c));
        };
        let taps = h.kernel.saturating_mul(v.kernel);
        cx.loops("sums", &depth.mul(&taps.saturating_mul(3).into())?)?;
        if self.is_depthwise() {
            return self.lower_depthwise(cx, &lines, words, rows);
        }
        let panels = cx.device().reads_panels();
        let tile = if panels { PANEL } else { WORD };
        let group = fixed_size(&m)? / fixed_size(&self.group().into())?.max(1);
        let args = Args::<Planned> {
            x: word_operand(cx, 0)?,
            w: cx.weight(1, Pack::Words { tile, sums: panels })?,
            bias: cx.input(2)?,
            factors: cx.input(3)?,
            y: cx.output(0)?,
            in_h: h.size.clone(),
            in_w: v.size.clone(),
            out_h: h.out.clone(),
            out_w: v.out.clone(),
            depth,
            words,
            group: Dim::from_usize(group / WORD),
            outputs,
            rows,
            pad_h: h.before.clone(),
            pad_w: v.before.clone(),
            x_zero: self.x_zero.into(),
            zero: self.output.zero.into(),
            low: self.output.low.into(),
            high: self.output.high.into(),
        };
        let call = window::define(Call::new(&KERNEL, ITEMS), &lines).define("RUN", RUN);
        let call = int8::define_arithmetic(call, cx.fact(3)?);
        let call = dots::select(cx.device(), &KERNEL, call);
        let grid = args.rows.ceil_div(RUN * i64::from(ITEMS))?;
        cx.emit(call.grid(grid, args.outputs.clone(), 1), args)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let w = sizes.input(1);
        let summed = match self.kind {
            Kind::Depthwise { .. } => w.split_last().map_or(&[] as &[u64], |(_, rest)| rest),
            _ => sizes.taps(),
        };
        sizes.multiply_adds(crate::graph::op::sizes::elements(summed))
    }
}

impl Int8Conv {
    fn lower_depthwise(
        &self,
        cx: &mut LowerCx<'_>,
        lines: &[Line; 2],
        words: Dim,
        rows: Dim,
    ) -> OpResult<()> {
        let [h, v] = lines;
        let args = DepthwiseArgs::<Planned> {
            x: word_operand(cx, 0)?,
            w: word_operand(cx, 1)?,
            bias: cx.input(2)?,
            factors: cx.input(3)?,
            y: cx.output(0)?,
            in_h: h.size.clone(),
            in_w: v.size.clone(),
            out_h: h.out.clone(),
            out_w: v.out.clone(),
            words,
            rows,
            pad_h: h.before.clone(),
            pad_w: v.before.clone(),
            x_zero: self.x_zero.into(),
            zero: self.output.zero.into(),
            low: self.output.low.into(),
            high: self.output.high.into(),
        };
        let call = window::define(Call::new(&DEPTHWISE, ITEMS), lines);
        let call = int8::define_arithmetic(call, cx.fact(3)?);
        let grid = args.words.mul(&args.rows)?.ceil_div(i64::from(ITEMS))?;
        cx.emit(call.grid(grid, 1, 1), args)
    }
}

/// Work-items per work-group.
const ITEMS: u32 = 64;

/// Windows per work-item.
const RUN: i64 = 4;

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: crate::graph::op::never_in_files,
    kernels: &[&KERNEL.kernel, &DEPTHWISE.kernel],
    cases,
};

/// Bias and factors of `n` channels for conformance cases.
fn case_scales(arithmetic: Arithmetic, n: usize) -> Option<[HostTensor; 2]> {
    let factor = |i: usize| {
        #[expect(clippy::cast_precision_loss, reason = "few channels")]
        let w = 0.002 + 0.0003 * i as f32;
        // Powers of two cause ties.
        let w = if i.is_multiple_of(3) { 0.007_812_5 } else { w };
        Factor::of_scales(arithmetic, 0.5, w, 1.0)
    };
    let factors: Option<Vec<_>> = (0..n).map(factor).collect();
    let bias: Vec<i64> = (0..num::signed(n)).map(|i| i * 977 % 4001 - 2000).collect();
    Some([
        HostTensor::from_ints(DType::I32, &[n], &bias).ok()?,
        int8::factors(&factors?).ok()?,
    ])
}

fn cases() -> Vec<Case> {
    let padded = Window {
        strides: vec![2, 1],
        pads: vec![1, 1, 1, 1],
        dilations: vec![1, 2],
        ..Window::new(&[3, 3])
    };
    let conv = |window: &Window, group| Kind::Conv {
        window: window.clone(),
        group,
    };
    let depthwise = |window: &Window| Kind::Depthwise {
        window: window.clone(),
    };
    let strided = Window {
        strides: vec![2],
        ..Window::new(&[3])
    };
    let kinds: [(Kind, &[usize], &[usize], usize); 9] = [
        (Kind::Matmul, &[7, 12], &[20, 12], 20),
        (Kind::Matmul, &[2, 3, 64], &[36, 64], 36),
        (
            conv(&Window::new(&[1, 1]), 1),
            &[2, 5, 3, 16],
            &[40, 1, 1, 16],
            40,
        ),
        (conv(&padded, 1), &[2, 9, 11, 4], &[8, 3, 3, 4], 8),
        (conv(&padded, 2), &[1, 9, 11, 16], &[24, 3, 3, 8], 24),
        (conv(&strided, 1), &[1, 12, 8], &[4, 3, 8], 4),
        (depthwise(&padded), &[2, 9, 11, 20], &[3, 3, 20], 20),
        (
            depthwise(&Window {
                strides: vec![2, 2],
                pads: vec![0, 0, 1, 1],
                ..Window::new(&[3, 3])
            }),
            &[1, 8, 8, 36],
            &[3, 3, 36],
            36,
        ),
        (depthwise(&strided), &[1, 12, 8], &[3, 8], 8),
    ];
    let mut all = Vec::new();
    for arithmetic in [Arithmetic::Fixed, Arithmetic::Float] {
        for (kind, x, w, m) in kinds.clone() {
            let Some(scales) = case_scales(arithmetic, m) else {
                continue;
            };
            let op = Int8Conv {
                kind,
                x_zero: -9,
                output: Output {
                    low: -90,
                    ..Output::new(11)
                },
            };
            let mut inputs = vec![int8::case_input(x), int8::case_input(w).constant()];
            inputs.extend(scales.map(constant));
            all.push(Case::new(op, inputs));
        }
    }
    all
}
