//! Selects elements one by one along an axis. ONNX `GatherElements` from opset 11; negative indices
//! count from the end.

use crate::backend::kernel::TypedKernel;
use crate::graph::bounds::{Bounds, BoundsCx};
use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, axis, indices, onnx, operand, strides,
    transpose,
};
use crate::kernels::gather_places::{Args, KERNEL, TUPLE};
use crate::lower::{Call, LowerCx, Operand};
use crate::num;
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::HostTensor;

/// How indices address a tensor, in the form that kernels use.
pub(crate) struct Places {
    /// Number of elements of the tensor with the shape of the indices.
    pub count: Dim,
    /// Indices per tuple; `None` for one index per element.
    tuple: Option<usize>,
    row: Dim,
    /// Sizes and strides of the axes that indices address.
    along: Vec<(Dim, Dim)>,
    /// Sizes and strides of the other axes, innermost first.
    others: Vec<(Dim, Dim)>,
}

/// Largest number of axes besides the one that is indexed.
const MAX_OTHERS: usize = 5;

impl Places {
    /// One index per element, along axis `a` of a tensor of shape `x`.
    pub fn along(x: &Shape, index: &Shape, a: usize) -> OpResult<Self> {
        let mut step = transpose::dim_strides(&x.0)?;
        let own = std::mem::replace(&mut step[a], 0.into());
        let others = transpose::joined(&index.0, &step)?;
        Ok(Self {
            count: index.count()?,
            tuple: None,
            row: 1.into(),
            along: vec![(x.0[a].clone(), own)],
            others,
        })
    }

    /// Tuples of indices along the last axis of `index`, which address slices of a tensor of shape
    /// `x`.
    pub fn tuples(x: &Shape, index: &Shape) -> OpResult<Self> {
        let bad = || OpError::mismatch("shapes of operand and indices", x, index);
        let (last, lead) = index.0.split_last().ok_or_else(bad)?;
        let tuple = crate::graph::op::as_usize(last).ok_or_else(bad)?;
        if tuple > 4 {
            return Err(OpError::NoKernel(format!(
                "tuples of {tuple} indices; kernels support up to 4"
            )));
        }
        let row = product(x.0.get(tuple..).ok_or_else(bad)?)?;
        let along =
            x.0.iter()
                .cloned()
                .zip(transpose::dim_strides(&x.0)?)
                .take(tuple)
                .collect();
        Ok(Self {
            count: product(lead)?.mul(&row)?,
            tuple: Some(tuple),
            row,
            along,
            others: Vec::new(),
        })
    }

    /// Emits `kernel`, whose work-items process `each` elements, from `x` to `y`.
    pub fn emit(
        mut self,
        cx: &mut LowerCx<'_>,
        kernel: &'static TypedKernel<Args>,
        each: i64,
        [x, y]: [Operand; 2],
    ) -> OpResult<()> {
        let ((x, words), (y, of_result)) = (x.words(), y.words());
        if words != of_result {
            return Err(OpError::NoKernel(transpose::differ()));
        }
        let sizes: Vec<Dim> = self.along.iter().map(|(n, _)| n.clone()).collect();
        let index = indices::checked(cx, 1, &sizes)?;
        if words > 1 {
            let steps = self
                .along
                .iter_mut()
                .chain(&mut self.others)
                .map(|(_, step)| step);
            for size in steps.chain([&mut self.row, &mut self.count]) {
                *size = size.mul(&words.into())?;
            }
            if self.tuple.is_none() {
                self.others.insert(0, (words.into(), 1.into()));
            }
        }
        if self.others.len() > MAX_OTHERS {
            return Err(OpError::NoKernel(format!(
                "indices over {} axes that cannot be merged (limit {MAX_OTHERS})",
                self.others.len()
            )));
        }
        let call = Call::new(kernel, 64).grid(self.count.ceil_div(each * 64)?, 1, 1);
        let call = match self.tuple {
            Some(n) => call.define(TUPLE, num::signed(n)),
            None => call,
        };
        let size = |list: &[(Dim, Dim)], i: usize| list.get(i).map_or(Dim::from(1), |(n, _)| n.clone());
        let step = |list: &[(Dim, Dim)], i: usize| list.get(i).map_or(Dim::from(0), |(_, s)| s.clone());
        let [n0, n1, n2, n3] = std::array::from_fn(|i| size(&self.along, i));
        let [s0, s1, s2, s3] = std::array::from_fn(|i| step(&self.along, i));
        let [m1, m2, m3, m4] = std::array::from_fn(|i| size(&self.others, i));
        let [t0, t1, t2, t3, t4] = std::array::from_fn(|i| step(&self.others, i));
        let (count, row) = (self.count, self.row);
        #[rustfmt::skip]
        let args = Args {
            x, index, y, count, row, n0, n1, n2, n3, s0, s1, s2, s3, m1, m2, m3, m4, t0, t1, t2, t3, t4,
        };
        cx.emit(call, args)
    }
}

/// Emits a gather of the elements of operand 0 that operand 1 points to.
pub(crate) fn emit(cx: &mut LowerCx<'_>, places: Places) -> OpResult<()> {
    let operands = [cx.input(0)?, cx.output(0)?];
    places.emit(cx, &KERNEL, 2, operands)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherElements {
    /// The axis that indices address; negative values count from the end.
    pub axis: i64,
}

/// Converts an index along an axis of `n` elements, which may be negative, to 0 or more.
pub(crate) fn wrap(index: i64, n: usize) -> OpResult<usize> {
    let size = num::signed(n);
    usize::try_from(if index < 0 {
        index.saturating_add(size)
    } else {
        index
    })
    .ok()
    .filter(|i| *i < n)
    .ok_or_else(|| OpError::expected("index", format!("-{n} to {}", size - 1), index))
}

/// Requires that indices of shape `index` along axis `a` of a tensor of shape `x` are no larger
/// than that tensor along its other axes.
pub(crate) fn within(cx: &InferCx<'_>, x: &Shape, index: &Shape, a: usize) -> OpResult<()> {
    let sizes = index.0.iter().zip(&x.0).enumerate();
    for (_, (own, size)) in sizes.filter(|(i, _)| *i != a) {
        cx.require(
            size.sub(own)?,
            "size of the data minus size of the indices along another axis",
        )?;
    }
    Ok(())
}

/// For each element of `indices`, the offset of the addressed element in a tensor of `shape`, along
/// axis `a`.
pub(crate) fn targets(shape: &[usize], indices: &HostTensor, a: usize) -> OpResult<Vec<usize>> {
    let own = indices.shape();
    if own.len() != shape.len() {
        return Err(OpError::mismatch(
            "ranks",
            format!("{shape:?}"),
            format!("{own:?}"),
        ));
    }
    if let Some((i, _)) = own
        .iter()
        .zip(shape)
        .enumerate()
        .find(|(i, (n, size))| *i != a && n > size)
    {
        return Err(OpError::expected(
            format!("axis {i} of the indices"),
            format!("at most {}", shape[i]),
            own[i],
        ));
    }
    let (from, to) = (strides(own), strides(shape));
    let place = |(i, index): (usize, i64)| {
        let others: usize = (0..own.len())
            .filter(|x| *x != a)
            .map(|x| i / from[x] % own[x] * to[x])
            .sum();
        Ok(others + wrap(index, *num::at(shape, a)?)? * num::at(&to, a)?)
    };
    indices.to_i64()?.into_iter().enumerate().map(place).collect()
}

impl Op for GatherElements {
    fn name(&self) -> &str {
        "GatherElements"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, index) = (cx.fact(0)?, cx.fact(1)?);
        let a = axis(self.axis, x.shape.rank())?;
        if !index.dtype.is_int() || index.shape.rank() != x.shape.rank() {
            return Err(OpError::expected(
                "indices",
                format!("integers of {} axes", x.shape.rank()),
                index,
            ));
        }
        within(cx, &x.shape, &index.shape, a)?;
        Ok(vec![Fact::new(x.dtype, index.shape.clone())])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, index) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let a = axis(self.axis, x.shape().len())?;
        let size = x.dtype().size();
        let mut out = Vec::with_capacity(index.len() * size);
        for at in targets(x.shape(), index, a)? {
            out.extend_from_slice(num::part(x.bytes()?, at * size..(at + 1) * size)?);
        }
        Ok(vec![HostTensor::from_bytes(x.dtype(), index.shape(), &out)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (x, index) = (cx.shape(0)?, cx.shape(1)?);
        let places = Places::along(&x, &index, axis(self.axis, x.rank())?)?;
        emit(cx, places)
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }

    fn accepts(&self, input: usize, cx: &BoundsCx<'_>) -> Option<Bounds> {
        (input == 1).then(|| Bounds::indices(cx.axis(0, self.axis)))
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(GatherElements {
        axis: a.int("axis")?.unwrap_or(0),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("GatherElements", 11, 2)],
    import,
    kernels: &[&KERNEL.kernel, &crate::kernels::check_indices::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |axis, x: &[usize], index: &[usize], n: i64| {
        Case::new(
            GatherElements { axis },
            vec![input(x), input(index).ints(-n, n - 1)],
        )
    };
    let ints = vec![input(&[3, 5]).ints(-99, 99), input(&[2, 5]).ints(-3, 2)];
    vec![
        case(0, &[5, 3], &[2, 3], 5),
        case(-1, &[2, 3, 7], &[2, 2, 9], 7),
        case(1, &[2, 3, 2, 5, 3], &[1, 4, 2, 3, 3], 3),
        case(0, &[1], &[1], 1),
        Case::new(GatherElements { axis: 0 }, ints),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Constraints;
    use crate::tensor::DType;

    /// Indices of this shape into data of sizes n, 3, along axis 0.
    fn inferred(index: &[&str]) -> OpResult<usize> {
        let fact = |dtype, sizes: &[&str]| {
            let dims = sizes.iter().map(|d| Dim::parse(d).unwrap());
            Fact::new(dtype, Shape(dims.collect()))
        };
        let (x, index) = (fact(DType::F32, &["n", "3"]), fact(DType::I64, index));
        let (inputs, constraints) = ([Some(&x), Some(&index)], Constraints::default());
        let cx = InferCx::new(&inputs, &constraints);
        GatherElements { axis: 0 }.infer(&cx)?;
        Ok(cx.finish().1.len())
    }

    #[test]
    fn indices_are_no_larger_than_the_data_along_other_axes() {
        assert_eq!(inferred(&["7", "3"]).unwrap(), 0);
        assert_eq!(inferred(&["m", "k"]).unwrap(), 1, "each run checks k");
        assert!(matches!(inferred(&["m", "4"]), Err(OpError::Expected { .. })));
    }
}
