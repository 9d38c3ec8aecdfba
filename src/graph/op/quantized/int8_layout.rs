//! Layout changes between the integer domain and ordinary 8-bit tensors, and views of bytes as
//! words.

use crate::graph::op::case::Case;
use crate::graph::op::int8::{self, WORD, bytes, padded, tensor, word_operand};
use crate::graph::op::{
    InferCx, Inputs, Op, OpDef, OpError, OpResult, around, never_in_files, operand, split_at,
};
use crate::kernels::int8_layout::{ENTER, EnterArgs, LEAVE, LeaveArgs};
use crate::lower::{Call, LowerCx, Planned};
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

/// Converts an ordinary `i8` or `u8` tensor to a value of the integer domain that stores `axis`
/// last. 128 is subtracted from `u8`, so that bytes are signed (*Integer-Arithmetic-Only
/// Inference*, appendix B). The padding holds 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Int8Enter {
    pub axis: usize,
}

/// The inverse of [`Int8Enter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Int8Leave {
    pub axis: usize,
    /// Size of that axis.
    pub channels: i64,
    /// `i8` or `u8`.
    pub dtype: DType,
}

/// Views the bytes of an `i8` tensor as `i32` words, or the reverse. The last axis has a quarter of
/// the elements, or four times as many. Operators that move elements along other axes can thus move
/// words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteView {
    Words,
    Bytes,
}

/// The shape with `axis` moved to the end and padded.
pub(crate) fn stored_shape(shape: &Shape, axis: usize) -> OpResult<Shape> {
    let mut sizes = shape.0.clone();
    if axis >= sizes.len() {
        return Err(OpError::expected("axis", format!("below {}", sizes.len()), axis));
    }
    let channels = sizes.remove(axis);
    sizes.push(padded(&channels)?);
    Ok(Shape(sizes))
}

/// The shape in the model of a value whose axis `axis`, of `channels` elements, is stored last.
pub(crate) fn logical_shape(stored: &Shape, axis: usize, channels: i64) -> OpResult<Shape> {
    let (lead, last) = int8::last(&stored.0)?;
    if axis > lead.len() || *last != padded(&channels.into())? {
        return Err(OpError::expected("last axis", padded(&channels.into())?, last));
    }
    let mut sizes = lead.to_vec();
    sizes.insert(axis, channels.into());
    Ok(Shape(sizes))
}

/// Calls `each(stored, logical)` for every element of `shape`, with its position in the stored form
/// that has `axis` last, and in row-major order.
pub(crate) fn positions(shape: &[usize], axis: usize, mut each: impl FnMut(usize, usize)) -> OpResult<()> {
    let (outer, channels, inner) = around(shape, axis)?;
    let stride = channels.next_multiple_of(int8::WORD);
    for a in 0..outer {
        for c in 0..channels {
            for b in 0..inner {
                each((a * inner + b) * stride + c, (a * channels + c) * inner + b);
            }
        }
    }
    Ok(())
}

impl Op for Int8Enter {
    fn name(&self) -> &str {
        "Int8Enter"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        if !matches!(x.dtype, DType::I8 | DType::U8) {
            return Err(OpError::expected("element type", "i8 or u8", x.dtype));
        }
        Ok(vec![Fact::new(DType::I8, stored_shape(&x.shape, self.axis)?)])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let shape = stored_shape(&Shape::fixed(x.shape()), self.axis)?;
        let shape = shape.sizes()?;
        let flip = if x.dtype() == DType::U8 { 0x80 } else { 0 };
        let data = x.bytes()?;
        let mut y = crate::graph::op::filled(&shape, 0i8)?;
        positions(x.shape(), self.axis, |to, from| {
            if let (Some(y), Some(x)) = (y.get_mut(to), data.get(from)) {
                *y = (x ^ flip).cast_signed();
            }
        })?;
        Ok(vec![tensor(&shape, &y)?])
    }

    fn stores_bytes(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let x = cx.fact(0)?.clone();
        let (_, channels, inner) = split_at(&x.shape, self.axis)?;
        let count = int8::words(&cx.out_fact(0)?.shape)?;
        let args = EnterArgs::<Planned> {
            x: cx.input(0)?,
            y: cx.output(0)?,
            words: channels.ceil_div(4)?,
            channels,
            inner,
            flip: (if x.dtype == DType::U8 { 0x80 } else { 0 }).into(),
            count,
        };
        cx.emit(Call::new(&ENTER, 64).grid(args.count.ceil_div(64)?, 1, 1), args)
    }

    fn flops(&self, _sizes: &crate::graph::op::sizes::Sizes) -> u64 {
        0
    }
}

impl Op for Int8Leave {
    fn name(&self) -> &str {
        "Int8Leave"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = int8::fact(cx, 0)?;
        Ok(vec![Fact::new(
            self.dtype,
            logical_shape(&x.shape, self.axis, self.channels)?,
        )])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let shape = logical_shape(&Shape::fixed(x.shape()), self.axis, self.channels)?;
        let shape = shape.sizes()?;
        let flip = if self.dtype == DType::U8 { 0x80 } else { 0 };
        let (data, mut y) = (bytes(x)?, crate::graph::op::filled(&shape, 0u8)?);
        positions(&shape, self.axis, |from, to| {
            if let (Some(y), Some(x)) = (y.get_mut(to), data.get(from)) {
                *y = x.cast_unsigned() ^ flip;
            }
        })?;
        Ok(vec![HostTensor::from_bytes(self.dtype, &shape, &y)?])
    }

    fn reads_bytes(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let out = cx.out_fact(0)?.shape.clone();
        let (_, channels, inner) = split_at(&out, self.axis)?;
        let args = LeaveArgs::<Planned> {
            x: word_operand(cx, 0)?,
            y: cx.output(0)?,
            count: out.count()?,
            stride: padded(&channels)?,
            channels,
            inner,
            offset: (if self.dtype == DType::U8 { 128 } else { 0 }).into(),
        };
        cx.emit(
            Call::new(&LEAVE, 64).grid(args.count.ceil_div(2 * 64)?, 1, 1),
            args,
        )
    }

    fn flops(&self, _sizes: &crate::graph::op::sizes::Sizes) -> u64 {
        0
    }
}

impl Op for ByteView {
    fn name(&self) -> &str {
        match self {
            Self::Words => "Int8Words",
            Self::Bytes => "Int8Bytes",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let four = Dim::from_usize(WORD);
        let (x, dtype) = match self {
            Self::Words => (int8::fact(cx, 0)?, DType::I32),
            Self::Bytes => (cx.fact(0)?, DType::I8),
        };
        let (lead, last) = int8::last(&x.shape.0)?;
        let last = match self {
            Self::Words => {
                (last.exact_div(&four)).ok_or_else(|| OpError::expected("channels", "whole words", last))?
            }
            Self::Bytes if x.dtype == DType::I32 => last.mul(&four)?,
            Self::Bytes => return Err(OpError::expected("element type", "i32", x.dtype)),
        };
        let mut shape = lead.to_vec();
        shape.push(last);
        Ok(vec![Fact::new(dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let (lead, last) = int8::last(x.shape())?;
        let mut shape = lead.to_vec();
        let dtype = match self {
            Self::Words => {
                shape.push(last / WORD);
                DType::I32
            }
            Self::Bytes => {
                shape.push(last * WORD);
                DType::I8
            }
        };
        Ok(vec![HostTensor::from_bytes(dtype, &shape, x.bytes()?)?])
    }

    fn stores_bytes(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        cx.alias_as(
            0,
            0,
            match self {
                Self::Words => DType::I32,
                Self::Bytes => DType::I8,
            },
        )
    }

    fn flops(&self, _sizes: &crate::graph::op::sizes::Sizes) -> u64 {
        0
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&ENTER.kernel, &LEAVE.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let shapes: [(&[usize], usize); 4] = [
        (&[1, 3, 5, 7], 1),
        (&[2, 8, 3], 1),
        (&[3, 10], 1),
        (&[2, 5, 6], 0),
    ];
    for (shape, axis) in shapes {
        let Ok(Ok(stored)) = stored_shape(&Shape::fixed(shape), axis).map(|s| s.sizes()) else {
            continue;
        };
        for dtype in [DType::I8, DType::U8] {
            let enter = Int8Enter { axis };
            all.push(Case::new(enter, vec![int8::case_of(dtype, shape)]));
            let leave = Int8Leave {
                axis,
                channels: num::signed(shape[axis]),
                dtype,
            };
            all.push(Case::new(leave, vec![int8::case_input(&stored)]));
        }
    }
    all
}
