//! Sums of products in Einstein notation. ONNX `Einsum` from opset 12.
//!
//! An operand's axes are letters; `...` stands for axes that broadcast. A letter that occurs twice
//! in one operand selects its diagonal. Without `->`, the result has the axes of `...`, then the
//! letters that occur once, in alphabetical order (capitals first).

use crate::graph::op::case::{Case, input};
use crate::graph::op::types::Types;
use crate::graph::op::{
    ANY, Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, count, onnx, operand, room,
    strides,
};
use crate::graph::rules;
use crate::num::{self, OutOfRange};
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Einsum {
    /// The equation, without blanks.
    equation: String,
    /// Labels of each operand's axes.
    terms: Vec<Term>,
    /// Labels of the result's axes; `None` to derive them from the operands.
    result: Option<Term>,
}

/// Labels of one operand: letters before `...`, whether `...` occurs, letters after it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Term {
    before: Vec<char>,
    ellipsis: bool,
    after: Vec<char>,
}

/// An axis: a letter, or the n-th axis of `...`, counted from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Rest(usize),
    Letter(char),
}

impl Term {
    fn parse(text: &str) -> OpResult<Self> {
        let mut term = Self::default();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if let Some(tail) = rest.strip_prefix("...") {
                if std::mem::replace(&mut term.ellipsis, true) {
                    return Err(OpError::expected(
                        "attribute `equation`",
                        "at most one `...` per term",
                        text,
                    ));
                }
                rest = tail;
            } else if let Some(tail) = rest.strip_prefix(|c: char| c.is_ascii_alphabetic()) {
                if term.ellipsis {
                    term.after.push(c);
                } else {
                    term.before.push(c);
                }
                rest = tail;
            } else {
                return Err(OpError::expected(
                    "attribute `equation`",
                    "letters, `...`, `,` and `->`",
                    text,
                ));
            }
        }
        Ok(term)
    }

    /// Labels if `...` stands for `rest` axes.
    fn labels(&self, rest: usize) -> Vec<Label> {
        let middle = if self.ellipsis { rest } else { 0 };
        let letters = |l: &[char]| l.iter().map(|c| Label::Letter(*c)).collect::<Vec<_>>();
        let mut out = letters(&self.before);
        out.extend((0..middle).rev().map(Label::Rest));
        out.extend(letters(&self.after));
        out
    }
}

impl Einsum {
    pub fn new(equation: &str) -> OpResult<Self> {
        let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match equation.split_once("->") {
            Some((left, right)) => (left, Some(Term::parse(right)?)),
            None => (equation.as_str(), None),
        };
        let terms = left.split(',').map(Term::parse).collect::<OpResult<_>>()?;
        Ok(Self {
            terms,
            result: right,
            equation,
        })
    }

    /// Labels of the operands, which have these ranks, and of the result.
    fn labels(&self, ranks: &[usize]) -> OpResult<(Vec<Vec<Label>>, Vec<Label>)> {
        if ranks.len() != self.terms.len() {
            return Err(OpError::mismatch(
                "numbers of terms and operands",
                self.terms.len(),
                ranks.len(),
            ));
        }
        let (mut operands, mut most) = (Vec::new(), 0);
        for (term, rank) in self.terms.iter().zip(ranks) {
            let letters = term.before.len() + term.after.len();
            let rest = rank
                .checked_sub(letters)
                .filter(|rest| term.ellipsis || *rest == 0);
            let rest = rest.ok_or_else(|| {
                OpError::expected(
                    format!("rank of an operand of \"{}\"", self.equation),
                    letters,
                    rank,
                )
            })?;
            most = most.max(rest);
            operands.push(term.labels(rest));
        }
        let result = match &self.result {
            Some(term) => term.labels(most),
            None => {
                let all: Vec<Label> = operands.iter().flatten().copied().collect();
                let mut letters: Vec<Label> = all
                    .iter()
                    .copied()
                    .filter(|l| matches!(l, Label::Letter(_)))
                    .collect();
                letters.retain(|l| all.iter().filter(|o| *o == l).count() == 1);
                letters.sort_unstable();
                (0..most).rev().map(Label::Rest).chain(letters).collect()
            }
        };
        for (i, label) in result.iter().enumerate() {
            let known = operands.iter().flatten().any(|o| o == label);
            if !known || result.get(..i).is_some_and(|before| before.contains(label)) {
                let what = "labels of the operands, each once";
                return Err(OpError::expected("result of the equation", what, &self.equation));
            }
        }
        Ok((operands, result))
    }
}

/// The size of each label.
fn sizes(labels: &[Vec<Label>], shapes: &[&[Dim]], same: rules::Same<'_>) -> OpResult<BTreeMap<Label, Dim>> {
    let mut sizes: BTreeMap<Label, Dim> = BTreeMap::new();
    for (label, size) in labels.iter().zip(shapes).flat_map(|(l, s)| l.iter().zip(*s)) {
        let joint = match sizes.get(label) {
            Some(have) => rules::broadcast_dim(have, size, same)?,
            None => size.clone(),
        };
        sizes.insert(*label, joint);
    }
    Ok(sizes)
}

impl Op for Einsum {
    fn name(&self) -> &str {
        "Einsum"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let facts = (0..cx.inputs.len())
            .map(|i| cx.typed(i, Types::NUMBER))
            .collect::<OpResult<Vec<_>>>()?;
        let dtype = cx.fact(0)?.dtype;
        if let Some(other) = facts.iter().find(|f| f.dtype != dtype) {
            return Err(OpError::mismatch("element types", dtype, other.dtype));
        }
        let ranks: Vec<usize> = facts.iter().map(|f| f.shape.rank()).collect();
        let (operands, result) = self.labels(&ranks)?;
        let shapes: Vec<&[Dim]> = facts.iter().map(|f| f.shape.0.as_slice()).collect();
        let sizes = sizes(&operands, &shapes, &|what, a, b| cx.same(what, a, b))?;
        Ok(vec![Fact::new(
            dtype,
            Shape(result.iter().filter_map(|l| sizes.get(l).cloned()).collect()),
        )])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let tensors = (0..inputs.len())
            .map(|i| operand(inputs, i))
            .collect::<OpResult<Vec<_>>>()?;
        let ranks: Vec<usize> = tensors.iter().map(|t| t.shape().len()).collect();
        let (operands, result) = self.labels(&ranks)?;
        let fixed: Vec<Shape> = tensors.iter().map(|t| Shape::fixed(t.shape())).collect();
        let shapes: Vec<&[Dim]> = fixed.iter().map(|s| s.0.as_slice()).collect();
        let sizes = sizes(&operands, &shapes, &rules::equal)?;
        let size = |l: &Label| -> OpResult<usize> {
            let size = sizes.get(l).and_then(as_usize);
            size.ok_or_else(|| OpError::expected("size of a label", "a constant", "none"))
        };
        let summed: Vec<Label> = sizes.keys().copied().filter(|l| !result.contains(l)).collect();
        let loops: Vec<Label> = result.iter().chain(&summed).copied().collect();
        let extents = loops.iter().map(size).collect::<OpResult<Vec<_>>>()?;
        // The step of each operand per loop.
        let mut steps = Vec::new();
        for (labels, tensor) in operands.iter().zip(&tensors) {
            let own = strides(tensor.shape());
            let along = |l: &Label| {
                let axes = labels.iter().zip(tensor.shape()).zip(&own);
                axes.filter(|((label, n), _)| *label == l && **n != 1)
                    .map(|(_, s)| *s)
                    .sum::<usize>()
            };
            steps.push(loops.iter().map(along).collect::<Vec<_>>());
        }
        let out = result.iter().map(size).collect::<OpResult<Vec<_>>>()?;
        let (results, terms) = (count(&out)?, count(num::part(&extents, result.len()..)?)?);
        count(&extents)?;
        let dtype = operand(inputs, 0)?.dtype();
        let walk = Walk {
            extents: &extents,
            steps: &steps,
            results,
            terms,
        };
        if dtype.is_float() {
            let data = tensors
                .iter()
                .map(|t| t.to_f64())
                .collect::<Result<Vec<_>, _>>()?;
            let read = |t: usize, i: usize| Ok(*num::at(num::at(&data, t)?, i)?);
            let sums = walk.run(1.0, 0.0, read, |a, b| a * b, |a, b| a + b)?;
            return Ok(vec![HostTensor::from_f64s(dtype, &out, &sums)?]);
        }
        let data = tensors
            .iter()
            .map(|t| t.to_bits())
            .collect::<Result<Vec<_>, _>>()?;
        let read = |t: usize, i: usize| Ok(*num::at(num::at(&data, t)?, i)?);
        let y = walk.run(1, 0, read, i64::wrapping_mul, i64::wrapping_add)?;
        Ok(vec![HostTensor::from_ints(dtype, &out, &y)?])
    }
}

/// Terms between two checks of the time.
const UNCHECKED: usize = 1 << 16;

/// Nested loops, outer ones over results, inner ones over the terms of a sum.
struct Walk<'a> {
    extents: &'a [usize],
    steps: &'a [Vec<usize>],
    results: usize,
    terms: usize,
}

impl Walk<'_> {
    fn run<T: Copy>(
        &self,
        one: T,
        zero: T,
        read: impl Fn(usize, usize) -> Result<T, OutOfRange>,
        product: impl Fn(T, T) -> T,
        sum: impl Fn(T, T) -> T,
    ) -> OpResult<Vec<T>> {
        let mut index = vec![0usize; self.extents.len()];
        let mut at = vec![0usize; self.steps.len()];
        let mut out = room(&[self.results])?;
        let mut unchecked = 0;
        for _ in 0..self.results {
            let mut total = zero;
            for _ in 0..self.terms {
                unchecked += 1;
                if unchecked == UNCHECKED {
                    unchecked = 0;
                    quota::check()?;
                }
                let mut factors = at.iter().enumerate();
                let term = factors.try_fold(one, |p, (t, i)| read(t, *i).map(|x| product(p, x)));
                total = sum(total, term?);
                for axis in (0..index.len()).rev() {
                    index[axis] += 1;
                    let wraps = index[axis] == self.extents[axis];
                    for (at, steps) in at.iter_mut().zip(self.steps) {
                        *at += steps[axis];
                        if wraps {
                            *at -= steps[axis] * self.extents[axis];
                        }
                    }
                    if !wraps {
                        break;
                    }
                    index[axis] = 0;
                }
            }
            out.push(total);
        }
        Ok(out)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let equation = a.string("equation")?;
    let equation = equation.ok_or_else(|| OpError::expected("attribute `equation`", "a string", "none"))?;
    Ok(Box::new(Einsum::new(&equation)?))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Einsum", 12, ANY)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |equation, shapes: &[&[usize]]| {
        let inputs = shapes.iter().map(|s| input(s)).collect();
        Einsum::new(equation)
            .ok()
            .map(|op| Case::new(op, inputs).host_only("no kernel"))
    };
    [
        case("bhwc,hkc->bhwk", &[&[2, 3, 4, 5], &[3, 7, 5]]),
        case("...ij,...jk", &[&[2, 1, 3, 4], &[5, 4, 2]]),
        case("ii->i", &[&[4, 4]]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Constraints;
    use crate::tensor::DType;

    fn shape(equation: &str, shapes: &[&str]) -> OpResult<String> {
        let fact = |s: &&str| {
            let dims = s
                .split(',')
                .filter(|d| !d.is_empty())
                .map(|d| Dim::parse(d).unwrap())
                .collect();
            Fact::new(DType::F32, Shape(dims))
        };
        let facts: Vec<Fact> = shapes.iter().map(fact).collect();
        let inputs: Vec<_> = facts.iter().map(Some).collect();
        let facts = Einsum::new(equation)?.infer(&InferCx::new(&inputs, &Constraints::default()))?;
        Ok(facts[0].shape.to_string())
    }

    #[test]
    fn symbolic_shapes() {
        assert_eq!(
            shape("bqhd,bkhd->bhqk", &["b,q,8,64", "b,k,8,64"]).unwrap(),
            "[b, 8, q, k]"
        );
        assert_eq!(shape("i,j", &["n", "m"]).unwrap(), "[n, m]");
        assert_eq!(shape("...a,a...", &["x,y,3", "3,y"]).unwrap(), "[x, y]");
        assert_eq!(shape("ij->", &["n,m"]).unwrap(), "[]");
        for (equation, shapes) in [
            ("ij,jk->ik", &["2,3", "4,5"] as &[_]),
            ("ij->ik", &["2,3"]),
            ("ij->ii", &["2,2"]),
            ("i", &["2,3"]),
        ] {
            assert!(shape(equation, shapes).is_err(), "{equation}");
        }
        for equation in ["i..j", "i1", "......"] {
            assert!(Einsum::new(equation).is_err(), "{equation}");
        }
    }

    #[test]
    fn sums() {
        let x = HostTensor::from_f32(&[2, 2], &[1., 2., 3., 4.]).unwrap();
        let run = |e: &str, n| {
            Einsum::new(e).unwrap().eval(&vec![Some(&x); n]).unwrap()[0]
                .f32s()
                .unwrap()
                .into_owned()
        };
        assert_eq!(run("ii", 1), [5.0]);
        assert_eq!(run("ij,jk->ik", 2), [7., 10., 15., 22.]);
        assert_eq!(run("ij->j", 1), [4., 6.]);
    }

    #[test]
    fn sums_are_rounded_once_to_narrow_types() {
        let bf16 = |data: &[f32]| HostTensor::from_floats(DType::BF16, &[data.len()], data).unwrap();
        // In bf16, 256 + 1 is 256.
        let x = bf16(&[256.0, 1.0, 1.0, 1.0, 1.0]);
        let y = Einsum::new("i->").unwrap().eval(&[Some(&x)]).unwrap().remove(0);
        assert_eq!((y.dtype(), y.to_f64().unwrap()[0]), (DType::BF16, 260.0));
    }
}
