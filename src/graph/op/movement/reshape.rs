//! Operators that change only the shape; nothing runs on a device.
//!
//! ONNX `Reshape` (5; `allowzero` from 14), `Unsqueeze` and `Squeeze` (1 with axes as an attribute,
//! 13 as an operand), `Flatten` (1), `Identity` (1).

use crate::graph::bounds::BoundsCx;
use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, axis, onnx, operand,
};
use crate::graph::rules::{self, Same};
use crate::lower::LowerCx;
use crate::shape::{Dim, Fact, MAX_KNOWN, Shape, product};
use crate::tensor::HostTensor;

/// Rule for the new shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reshape {
    /// Operand 1 is the shape: -1 is inferred, 0 copies the input's size unless `allow_zero`.
    Reshape {
        /// 0 means 0.
        allow_zero: bool,
    },
    /// Operand 1 lists axes of the result that have size 1.
    Unsqueeze,
    /// Operand 1 lists axes of size 1 to remove; without it, all of them are removed.
    Squeeze,
    /// A matrix: the axes before `axis`, and the rest.
    Flatten {
        /// First axis of the second part.
        axis: i64,
    },
    Identity,
}

type Fill<'a> = &'a dyn Fn(usize, &Dim, &Dim) -> OpResult<Dim>;

/// [`Fill`] for a quotient that must be known.
fn quotient(_: usize, have: &Dim, want: &Dim) -> OpResult<Dim> {
    have.exact_div(want)
        .ok_or_else(|| OpError::mismatch("element counts (the size for -1 is not an integer)", have, want))
}

/// The sizes `x` reshaped to `wanted`, which may hold 0 for a copied size and -1 for the rest.
fn reshaped(
    x: &[Dim],
    wanted: Vec<Dim>,
    allow_zero: bool,
    same: Same<'_>,
    fill: Fill<'_>,
) -> OpResult<Vec<Dim>> {
    let mut out = Vec::new();
    let mut hole = None;
    // A copied size cancels out, even if it is 0.
    let (mut left, mut made) = (x.to_vec(), Vec::new());
    for (i, d) in wanted.into_iter().enumerate() {
        if d.is(-1) {
            if hole.replace(i).is_some() {
                return Err(OpError::expected("shape", "at most one -1", "two"));
            }
            out.push(1.into());
        } else if d.is(0) && !allow_zero {
            let size = x
                .get(i)
                .ok_or_else(|| OpError::expected("rank of the input", format!("above {i}"), x.len()))?;
            out.push(size.clone());
            left[i] = 1.into();
        } else {
            made.push(d.clone());
            out.push(d);
        }
    }
    if let Some(i) = hole {
        out[i] = fill(i, &product(&left)?, &product(&made)?)?;
    } else {
        same("element counts", &product(x)?, &product(&out)?)?;
    }
    Ok(out)
}

impl Reshape {
    /// The new shape. `operand` holds the values of operand 1, if given. `fill` computes the size
    /// for -1 from its position, the number of elements, and the product of the other sizes.
    fn shape(
        &self,
        x: &[Dim],
        operand: Option<Vec<Dim>>,
        same: Same<'_>,
        fill: Fill<'_>,
    ) -> OpResult<Vec<Dim>> {
        let needs = || {
            operand
                .clone()
                .ok_or_else(|| OpError::expected("input 1", "known integers", "unknown values"))
        };
        let axes = |rank: usize| -> OpResult<Vec<usize>> {
            let list: Vec<i64> = needs()?
                .iter()
                .map(|d| {
                    d.as_const()
                        .ok_or_else(|| OpError::expected("axes", "constants", d))
                })
                .collect::<OpResult<_>>()?;
            crate::graph::op::axes(Some(&list), rank)
        };
        match self {
            Self::Identity => Ok(x.to_vec()),
            Self::Flatten { axis: a } => {
                let at = if usize::try_from(*a).ok() == Some(x.len()) {
                    x.len()
                } else {
                    axis(*a, x.len())?
                };
                Ok(vec![product(&x[..at])?, product(&x[at..])?])
            }
            Self::Unsqueeze => {
                let rank = x.len() + needs()?.len();
                let new = axes(rank)?;
                let mut rest = x.iter();
                Ok((0..rank)
                    .filter_map(|i| {
                        if new.contains(&i) {
                            Some(1.into())
                        } else {
                            rest.next().cloned()
                        }
                    })
                    .collect())
            }
            Self::Squeeze => {
                let gone = match operand {
                    Some(_) => axes(x.len())?,
                    None => (0..x.len()).filter(|i| x[*i].is(1)).collect(),
                };
                for i in &gone {
                    same("squeezed size and 1", &x[*i], &1.into())?;
                }
                Ok((0..x.len())
                    .filter(|i| !gone.contains(i))
                    .map(|i| x[i].clone())
                    .collect())
            }
            Self::Reshape { allow_zero } => reshaped(x, needs()?, *allow_zero, same, fill),
        }
    }
}

/// The fact of the result if operand 1 depends on data: only its rank is known.
fn unknown(cx: &InferCx<'_>, rule: &Reshape, x: &Fact, list: &Fact) -> OpResult<Fact> {
    let length = match list.shape.0.as_slice() {
        [n] => as_usize(n).filter(|n| *n <= MAX_KNOWN),
        _ => None,
    };
    let length = length.ok_or_else(|| {
        OpError::expected("input 1", format!("a list of at most {MAX_KNOWN} integers"), list)
    })?;
    let own = x.shape.rank();
    let rank = match rule {
        Reshape::Unsqueeze => own + length,
        Reshape::Squeeze => own
            .checked_sub(length)
            .ok_or_else(|| OpError::expected("axes", format!("at most {own}"), length))?,
        _ => length,
    };
    // Without elements, any size is possible.
    let most = Some(x.shape.count()?).filter(|count| !count.is(0));
    let sizes = (0..rank).map(|axis| cx.unknown(0, axis, most.clone())).collect();
    Ok(Fact::new(x.dtype, Shape(sizes)))
}

impl Op for Reshape {
    fn name(&self) -> &str {
        match self {
            Self::Reshape { .. } => "Reshape",
            Self::Unsqueeze => "Unsqueeze",
            Self::Squeeze => "Squeeze",
            Self::Flatten { .. } => "Flatten",
            Self::Identity => "Identity",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let same: Same<'_> = &|what, a, b| cx.same(what, a, b);
        let operand = match (self, cx.opt(1)) {
            (_, None) => None,
            (_, Some(list)) if list.as_dims().is_none() => return Ok(vec![unknown(cx, self, x, list)?]),
            (_, Some(_)) => Some(cx.dims(1)?),
        };
        if *self == Self::Squeeze && operand.is_none() {
            for size in x.shape.0.iter().filter(|d| d.as_const().is_none()) {
                cx.require(
                    size.sub(&2.into())?,
                    "a size minus 2 (Squeeze without axes must not find a size of 1)",
                )?;
            }
        }
        let fill: Fill<'_> = &|axis, have, want| {
            if let Some(size) = cx.constraints().divide(have, want) {
                return Ok(size);
            }
            match cx.constraints().at_least(want, 1) {
                Some(true) => {
                    let size = have.div_floor(want)?;
                    cx.same("element counts", have, &size.mul(want)?)?;
                    Ok(size)
                }
                Some(false) => quotient(axis, have, want),
                None => Ok(cx.unknown(0, axis, Some(have.clone()))),
            }
        };
        Ok(vec![Fact::new(
            x.dtype,
            Shape(self.shape(&x.shape.0, operand, same, fill)?),
        )])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let list = match inputs.get(1).copied().flatten() {
            Some(t) => Some(t.to_i64()?.into_iter().map(Dim::from).collect()),
            None => None,
        };
        let shape = Shape(self.shape(&Shape::fixed(x.shape()).0, list, &rules::equal, &quotient)?);
        let fixed = shape
            .as_fixed()
            .ok_or_else(|| OpError::expected("shape", "sizes of 0 or more", &shape))?;
        Ok(vec![x.reshape(&fixed)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        cx.alias(0, 0)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }

    fn moves(&self, input: usize) -> bool {
        input == 0
    }

    fn keeps_all(&self, input: usize, _: &BoundsCx<'_>) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    if matches!(a.op_type(), "Unsqueeze" | "Squeeze")
        && a.opset() < 13
        && let Some(axes) = a.ints("axes")?
    {
        a.add_operand(HostTensor::from_i64(&[axes.len()], &axes)?);
    }
    Ok(Box::new(match a.op_type() {
        "Reshape" => Reshape::Reshape {
            allow_zero: a.int("allowzero")?.unwrap_or(0) != 0,
        },
        "Unsqueeze" => Reshape::Unsqueeze,
        "Squeeze" => Reshape::Squeeze,
        "Flatten" => Reshape::Flatten {
            axis: a.int("axis")?.unwrap_or(1),
        },
        _ => Reshape::Identity,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("Reshape", 5, 2),
        onnx("Unsqueeze", 1, 2),
        onnx("Squeeze", 1, 2),
        onnx("Flatten", 1, 1),
        onnx("Identity", 1, 1),
    ],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    // A reshape runs nothing on a device; these cases check the rules on the host.
    let case = |op, x: &[usize], list: Vec<i64>| {
        Case::new(op, vec![input(x), input(&[list.len()]).values(&list).constant()])
            .host_only("runs nothing on a device")
    };
    vec![
        case(Reshape::Reshape { allow_zero: false }, &[2, 3, 4], vec![0, -1]),
        case(Reshape::Unsqueeze, &[2, 3], vec![0, -1]),
        case(Reshape::Squeeze, &[1, 3, 1], vec![-1]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(text: &str) -> Vec<Dim> {
        text.split(',').map(|d| Dim::parse(d).unwrap()).collect()
    }

    #[test]
    fn axes_of_symbolic_sizes_are_not_squeezed() {
        let x = Fact::new(crate::tensor::DType::F32, Shape(dims("1,s,8")));
        let (inputs, known) = ([Some(&x)], crate::shape::Constraints::default());
        let cx = InferCx::new(&inputs, &known);
        assert_eq!(Reshape::Squeeze.infer(&cx).unwrap()[0].shape.0, dims("s,8"));
        assert_eq!(
            cx.finish()
                .1
                .iter()
                .map(|a| a.dim.to_string())
                .collect::<Vec<_>>(),
            ["s - 2"]
        );
    }

    #[test]
    fn symbolic_reshape() {
        let r = Reshape::Reshape { allow_zero: false };
        let shape = |x: &str, s: &str| r.shape(&dims(x), Some(dims(s)), &rules::equal, &quotient);
        assert_eq!(
            shape("1,N,4096", "1,-1,32,128").unwrap(),
            dims("1,N,32,128"),
            "the paper's example"
        );
        assert_eq!(shape("b,9,s,64", "0,9,-1,64").unwrap(), dims("b,9,s,64"));
        assert!(shape("2,3", "4,2").is_err());
        assert!(shape("2,3", "-1,-1").is_err());
        assert!(shape("2,3", "0,0,0").is_err());
        assert_eq!(
            Reshape::Unsqueeze
                .shape(&dims("s"), Some(dims("0,-1")), &rules::equal, &quotient)
                .unwrap(),
            dims("1,s,1")
        );
        assert!(
            Reshape::Unsqueeze
                .shape(&dims("s"), Some(dims("0,0")), &rules::equal, &quotient)
                .is_err()
        );
        assert!(
            Reshape::Squeeze
                .shape(&dims("s,1"), Some(dims("0")), &rules::equal, &quotient)
                .is_err()
        );
    }
}
