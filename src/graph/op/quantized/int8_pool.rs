//! Max and average pooling of 8-bit integers.

use crate::graph::op::case::{Case, constant};
use crate::graph::op::int8::{
    self, Footprint, byte_operand, check_factors, fact, read_factors, tensor, word_operand,
};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::window::{self, Window};
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files, operand};
use crate::kernels::int8_pool::{Args, KERNEL, MEAN, PADDED, SUM};
use crate::lower::{Call, LowerCx, Planned};
use crate::num;
use crate::quant::fixed::{Arithmetic, Factor, Output};
use crate::quota;
use crate::shape::{Fact, Shape};
use crate::tensor::HostTensor;

/// What is computed from the elements of a window that are inside the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Max,
    /// The mean, rounded to nearest, ties away from zero, as in TensorFlow Lite. Operand and result
    /// share scale and zero point.
    Mean {
        /// Padding counts as elements with the real value 0.
        include_pad: bool,
    },
    /// The sum without zero points, times a factor that depends on the number of elements. Operand
    /// 1 holds the factors for 1, 2, ... elements.
    Scaled {
        /// Padding counts as elements with the real value 0.
        include_pad: bool,
    },
}

/// Operand x is `i8[n, spatial.., c]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Int8Pool {
    pub kind: Kind,
    pub window: Window,
    /// The zero point of the operand.
    pub x_zero: i32,
    /// Its zero point is ignored for `Max` and `Mean`, whose values include it.
    pub output: Output,
}

/// `sum / count`, rounded to nearest, ties away from zero.
fn mean(sum: i32, count: i32) -> i32 {
    let half = if sum > 0 { count / 2 } else { -(count / 2) };
    (sum + half) / count.max(1)
}

impl Int8Pool {
    fn result(&self, window: &[Option<i8>], counted: usize, factors: &[Factor]) -> OpResult<i8> {
        let inside = window.iter().flatten();
        let sum = |zero: i32| {
            inside
                .clone()
                .map(|v| i32::from(*v) - zero)
                .fold(0, i32::wrapping_add)
        };
        Ok(match self.kind {
            Kind::Max => self.kept(inside.max().copied().map_or(-128, i32::from)),
            Kind::Mean { .. } => {
                let count = |n: usize| num::exact::<i32, _>(n, "elements of a window");
                let (all, own) = (count(counted)?, count(inside.clone().count())?);
                self.kept(mean(sum(0) + (all - own) * self.x_zero, all))
            }
            Kind::Scaled { .. } => {
                let factor = factors.get(counted.max(1) - 1);
                let factor = factor.ok_or_else(|| OpError::expected("factors", counted, factors.len()))?;
                self.output.of(factor.apply(sum(self.x_zero)))
            }
        })
    }

    fn includes_pad(&self) -> bool {
        match self.kind {
            Kind::Max => false,
            Kind::Mean { include_pad } | Kind::Scaled { include_pad } => include_pad,
        }
    }

    /// Clamps a result that includes its zero point.
    fn kept(&self, v: i32) -> i8 {
        Output {
            zero: 0,
            ..self.output
        }
        .of(v)
    }
}

impl Op for Int8Pool {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Max => "Int8MaxPool",
            Kind::Mean { .. } | Kind::Scaled { .. } => "Int8AveragePool",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = fact(cx, 0)?;
        let (lead, c) = int8::last(&x.shape.0)?;
        let [n, spatial @ ..] = lead else {
            return Err(OpError::expected("rank", "3 or more", x.shape.rank()));
        };
        if matches!(self.kind, Kind::Scaled { .. }) {
            let taps = self.window.kernel.iter().product::<i64>();
            check_factors(cx, 1, &taps.into())?;
        }
        let mut shape = vec![n.clone()];
        shape.extend(self.window.derive(cx, &self.window.kernel, spatial)?);
        shape.push(c.clone());
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, data) = byte_operand(inputs, 0)?;
        let (lead, c) = int8::last(x.shape())?;
        let [n, spatial @ ..] = lead else {
            return Err(OpError::expected("rank", "3 or more", x.shape().len()));
        };
        let factors = match self.kind {
            Kind::Scaled { .. } => read_factors(operand(inputs, 1)?)?,
            _ => Vec::new(),
        };
        let axes = self.window.axes(&self.window.kernel, spatial)?;
        let include_pad = self.includes_pad();
        let outs: Vec<usize> = axes.iter().map(|a| a.out).collect();
        let mut shape = vec![*n];
        shape.extend(&outs);
        shape.push(*c);
        let footprint = Footprint::new(&axes, *c, 0);
        let plane = crate::graph::op::count(spatial)? * c;
        let (mut y, mut window) = (crate::graph::op::room(&shape)?, Vec::new());
        for image in 0..*n {
            let x = num::part(data, image * plane..(image + 1) * plane)?;
            for at in window::indices(&outs) {
                quota::check()?;
                let counted = axes
                    .iter()
                    .zip(&at)
                    .map(|(a, at)| a.taps(*at, include_pad))
                    .product();
                for channel in 0..*c {
                    window.clear();
                    let element = |p: Option<usize>| p.and_then(|p| x.get(p + channel).copied());
                    window.extend(footprint.positions(&at).map(element));
                    y.push(self.result(&window, counted, &factors)?);
                }
            }
        }
        Ok(vec![tensor(&shape, &y)?])
    }

    fn stores_bytes(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (x, out) = (cx.shape(0)?, cx.out_fact(0)?.shape.clone());
        let ((x_lead, c), (out_lead, _)) = (int8::last(&x.0)?, int8::last(&out.0)?);
        let ([_, spatial @ ..], [_, windows @ ..]) = (x_lead, out_lead) else {
            return Err(OpError::expected("rank", "3 or more", x.rank()));
        };
        let lines = self.window.plane(&self.window.kernel, spatial, windows)?;
        cx.loops("windows", &self.window.taps().saturating_mul(2).into())?;
        let scaled = matches!(self.kind, Kind::Scaled { .. });
        let [h, v] = &lines;
        let args = Args::<Planned> {
            x: word_operand(cx, 0)?,
            factors: if scaled { Some(cx.input(1)?) } else { None },
            y: cx.output(0)?,
            count: int8::words(&out)?,
            words: c.ceil_div(4)?,
            in_h: h.size.clone(),
            in_w: v.size.clone(),
            out_h: h.out.clone(),
            out_w: v.out.clone(),
            pad_h: h.before.clone(),
            pad_w: v.before.clone(),
            end_h: h.size.add(&h.after)?,
            end_w: v.size.add(&v.after)?,
            x_zero: self.x_zero.into(),
            zero: self.output.zero.into(),
            low: self.output.low.into(),
            high: self.output.high.into(),
        };
        let mut call = window::define(Call::new(&KERNEL, 64), &lines);
        match self.kind {
            Kind::Max => {}
            Kind::Mean { .. } => call = call.define(MEAN, 1),
            Kind::Scaled { .. } => call = int8::define_arithmetic(call.define(SUM, 1), cx.fact(1)?),
        }
        call = call.define_if(PADDED, self.includes_pad());
        cx.emit(call.grid(args.count.ceil_div(64)?, 1, 1), args)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let taps = self.window.kernel.iter().filter_map(|n| u64::try_from(*n).ok());
        taps.fold(sizes.results(), u64::saturating_mul)
    }
}

/// The factors of means over 1 to `count` elements, from scale x to scale y.
pub fn mean_factors(arithmetic: Arithmetic, x: f32, y: f32, count: u32) -> Option<Vec<Factor>> {
    let of = |n: u32| match Factor::of_scales(arithmetic, x, 1.0, y)? {
        Factor::Fixed(whole) => Some(Factor::Fixed(whole.divided(n))),
        #[expect(clippy::cast_precision_loss, reason = "a window is small")]
        Factor::Float(_) => Factor::of_scales(arithmetic, x, 1.0, y * n as f32),
    };
    (1..=count).map(of).collect()
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let padded = Window {
        strides: vec![2, 2],
        pads: vec![1, 0, 1, 1],
        ..Window::new(&[3, 2])
    };
    let mut all = Vec::new();
    let mut add = |kind, window: &Window, shape: &[usize], factors: Option<HostTensor>| {
        let op = Int8Pool {
            kind,
            window: window.clone(),
            x_zero: -7,
            output: Output {
                low: -100,
                ..Output::new(5)
            },
        };
        let mut inputs = vec![int8::case_input(shape)];
        inputs.extend(factors.map(constant));
        all.push(Case::new(op, inputs));
    };
    let shape = [2, 7, 5, 8];
    add(Kind::Max, &padded, &shape, None);
    for include_pad in [false, true] {
        add(Kind::Mean { include_pad }, &padded, &shape, None);
    }
    add(
        Kind::Mean { include_pad: false },
        &Window::new(&[7, 5]),
        &shape,
        None,
    );
    for arithmetic in [Arithmetic::Fixed, Arithmetic::Float] {
        let list = |taps| mean_factors(arithmetic, 0.05, 0.04, taps).and_then(|f| int8::factors(&f).ok());
        for include_pad in [false, true] {
            add(Kind::Scaled { include_pad }, &padded, &shape, list(6));
        }
        add(
            Kind::Scaled { include_pad: false },
            &Window::new(&[7, 5]),
            &shape,
            list(35),
        );
    }
    all
}
