//! One view of nodes with quantized operands and results, in both forms of ONNX: a float operator
//! between conversions, or one operator with scales and zero points among its operands.

use super::chain::{first_result, results};
use super::values::{
    Bias, Quantized, Result8, Weights, clamp, dequantized, is_known, known, quantized, quantized_by, result,
    weights, weights_of,
};
use super::{Matched, refuse, table};
use crate::graph::op::Op;
use crate::graph::op::conv_integer::ConvInteger;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::matmul_integer::MatMulInteger;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise};
use crate::graph::op::qlinear::{Place, QLinear};
use crate::graph::op::quantize_linear::DequantizeLinear;
use crate::graph::pass::pattern::{input, producer, scalar};
use crate::graph::{Edit, Node, NodeId, ValueId};
use crate::quant::fixed::Affine;
use crate::tensor::DType;

/// Positions of data, scales and zero points among the operands.
struct Places {
    operands: Vec<Place>,
    bias: Option<usize>,
    result: [usize; 2],
}

pub(super) struct View<'a, 'b> {
    edit: &'a Edit<'b>,
    id: NodeId,
    node: &'a Node,
    /// The float operator.
    pub op: &'a (dyn Op + 'static),
    /// `None` for a float operator between conversions.
    places: Option<Places>,
}

static MATMUL: MatMul = MatMul { trans_b: false };

/// The float operator of one with scales among its operands, and the positions of its operands.
fn with_places(node: &Node) -> Option<(&(dyn Op + 'static), Places)> {
    let place = |data| Place {
        data,
        scale: data + 1,
        zero: data + 2,
    };
    let two = |bias| Places {
        operands: vec![place(0), place(3)],
        bias,
        result: [6, 7],
    };
    if let Some(op) = node.op.downcast::<ConvInteger>() {
        return op.scaled.then(|| (&op.conv as &(dyn Op + 'static), two(Some(8))));
    }
    if let Some(op) = node.op.downcast::<MatMulInteger>() {
        let scaled = *op == MatMulInteger::Scaled;
        return scaled.then(|| (&MATMUL as &(dyn Op + 'static), two(None)));
    }
    let op = node.op.downcast::<QLinear>()?;
    let places = Places {
        operands: op.operands().to_vec(),
        bias: op.bias(),
        result: op.result(),
    };
    Some((op.op(), places))
}

impl<'a, 'b> View<'a, 'b> {
    /// The node, if it reads quantized activations.
    pub fn new(edit: &'a Edit<'b>, id: NodeId) -> Option<Self> {
        let node = edit.node(id)?;
        if let Some((op, places)) = with_places(node) {
            return Some(Self {
                edit,
                id,
                node,
                op,
                places: Some(places),
            });
        }
        let is_activation = |v: &ValueId| {
            let made = producer::<DequantizeLinear>(edit, *v);
            made.is_some_and(|(_, dq, _)| input(dq, 0).is_some_and(|q| !is_known(edit, q)))
        };
        let inputs = node.inputs.iter().enumerate().filter(|(i, _)| node.op.reads(*i));
        let reads = inputs.filter_map(|(_, v)| v.as_ref()).any(is_activation);
        reads.then(|| Self {
            edit,
            id,
            node,
            op: node.op.as_ref(),
            places: None,
        })
    }

    fn input(&self, i: usize) -> Option<ValueId> {
        input(self.node, i)
    }

    fn place(&self, places: &Places, i: usize) -> Matched<[Option<ValueId>; 3]> {
        let place = places.operands.get(i);
        let place = place.ok_or_else(|| refuse("a missing operand"))?;
        Ok([place.data, place.scale, place.zero].map(|i| self.input(i)))
    }

    /// Number of operands of the float operator, without a bias that [`Places`] names.
    pub fn operand_count(&self) -> usize {
        let places = self.places.as_ref();
        places.map_or(self.node.inputs.len(), |p| p.operands.len())
    }

    /// Operand `i` of the float operator, an activation or a constant.
    pub fn operand(&self, i: usize) -> Matched<Quantized> {
        let missing = || refuse("a missing operand");
        let Some(places) = &self.places else {
            return dequantized(self.edit, self.input(i).ok_or_else(missing)?);
        };
        let [data, scale, zero] = self.place(places, i)?;
        quantized(self.edit, data.ok_or_else(missing)?, scale, zero, self.id)
    }

    /// Whether operand `i` is constant.
    pub fn is_constant(&self, i: usize) -> bool {
        let value = match &self.places {
            None => self.input(i),
            Some(places) => self.place(places, i).ok().and_then(|[data, ..]| data),
        };
        value.is_some_and(|v| self.is_known(v))
    }

    pub fn is_known(&self, v: ValueId) -> bool {
        is_known(self.edit, v)
    }

    /// The operands after the first `count`, which are not quantized.
    pub fn others(&self, count: usize) -> Vec<Option<ValueId>> {
        if self.places.is_some() {
            return Vec::new();
        }
        self.node.inputs.iter().skip(count).copied().collect()
    }

    /// The floats of operand `i`, if it is a constant that is not empty.
    pub fn floats(&self, i: usize) -> Option<Vec<f32>> {
        let t = known(self.edit, self.input(i)?)?;
        Some(t.to_f32().ok()?.into_owned()).filter(|list| !list.is_empty())
    }

    /// The number in a constant operand, or `otherwise` if the operand is omitted.
    pub fn number(&self, v: Option<ValueId>, otherwise: f32) -> Matched<f32> {
        match v {
            None => Ok(otherwise),
            Some(v) => scalar(self.edit, v).ok_or_else(|| refuse("an operand that is not constant")),
        }
    }

    /// The integers of constant operand `i`.
    pub fn integers(&self, i: usize) -> Matched<Vec<i64>> {
        let list = self.input(i).and_then(|v| known(self.edit, v));
        let list = list.and_then(|t| t.to_i64().ok());
        list.ok_or_else(|| refuse("an operand that is not constant"))
    }

    /// Operand `i` as constant weights. Several scales are along `axis`, unless `DequantizeLinear`
    /// names another axis.
    pub fn weights(&self, i: usize, axis: i64) -> Matched<Weights> {
        match &self.places {
            None => {
                let v = self.input(i);
                weights(self.edit, v.ok_or_else(|| refuse("a missing operand"))?)
            }
            Some(places) => weights_of(self.edit, self.place(places, i)?, axis),
        }
    }

    /// Whether there is a bias, which is operand `i` of the float operator.
    pub fn has_bias(&self, i: usize) -> bool {
        let at = self.places.as_ref().map_or(Some(i), |p| p.bias);
        at.is_some_and(|at| self.input(at).is_some())
    }

    /// The bias of `n` channels, which is operand `i` of the float operator.
    pub fn bias(&self, i: usize, n: usize) -> Matched<Bias> {
        match &self.places {
            None => Bias::new(self.edit, self.input(i), n),
            Some(places) => Bias::of_integers(self.edit, places.bias.and_then(|i| self.input(i)), n),
        }
    }

    fn output(&self) -> Matched<ValueId> {
        let first = self.node.outputs.first().copied();
        first.ok_or_else(|| refuse("a missing output"))
    }

    /// The only result.
    pub fn result(&self) -> Matched<Result8> {
        let Some(places) = &self.places else {
            return result(self.edit, self.output()?);
        };
        let [scale, zero] = places.result.map(|i| self.input(i));
        Ok(Result8 {
            to: quantized(self.edit, self.output()?, scale, zero, self.id)?,
            bounds: [f32::NEG_INFINITY, f32::INFINITY],
        })
    }

    /// All results.
    pub fn results(&self) -> Matched<Vec<Result8>> {
        if self.places.is_some() {
            return Ok(vec![self.result()?]);
        }
        let outputs = self.node.outputs.iter();
        outputs.map(|v| result(self.edit, *v)).collect()
    }

    /// The result of a node that is itself a quantization.
    pub fn rescaled(&self) -> Matched<Quantized> {
        quantized_by(self.edit, self.id)
    }

    /// The bias and the result of a matmul with `n` columns. The bias is a constant that a
    /// following `Add` adds, or 0.
    pub fn biased_result(&self, n: usize) -> Matched<(Bias, Result8)> {
        let sum = self.places.is_none().then(|| self.sum()).flatten();
        match sum {
            Some((bias, y)) => Ok((Bias::new(self.edit, Some(bias), n)?, result(self.edit, y)?)),
            None => Ok((Bias::new(self.edit, None, n)?, self.result()?)),
        }
    }

    /// The constant row that the only reader adds to the result, and the sum.
    fn sum(&self) -> Option<(ValueId, ValueId)> {
        let y = self.output().ok()?;
        let node = self.edit.node(self.edit.only_reader(y)?)?;
        let Expr::Binary(Binary::Add, a, b) = &node.op.downcast::<Pointwise>()?.expr else {
            return None;
        };
        let (Expr::Input(a), Expr::Input(b)) = (&**a, &**b) else {
            return None;
        };
        let [a, b] = [input(node, *a)?, input(node, *b)?];
        let bias = if a == y { b } else { a };
        let list = known(self.edit, bias)?;
        let rank = self.edit.fact(y).ok()?.shape.rank();
        let is_row = list.len() == list.shape().last().copied().unwrap_or(1) && list.shape().len() <= rank;
        (bias != y && is_row).then_some((bias, *node.outputs.first()?))
    }

    /// Position of the only operand that is not constant, if all others are scalars.
    pub fn only_operand(&self) -> Option<usize> {
        if let Some(places) = &self.places {
            return (places.operands.len() == 1).then_some(0);
        }
        let mut data = None;
        for (i, v) in self.node.inputs.iter().enumerate() {
            let Some(v) = *v else { continue };
            let number = || known(self.edit, v).is_some_and(|t| t.len() == 1);
            match self.is_known(v) {
                true if number() => {}
                true => return None,
                false if data.is_none_or(|(_, d)| d == v) => data = data.or(Some((i, v))),
                false => return None,
            }
        }
        data.map(|(i, _)| i)
    }

    /// The bounds to which an elementwise node clamps its only operand, if that is all it does.
    pub fn clamp(&self) -> Option<[f32; 2]> {
        if self.places.is_some() {
            return None;
        }
        clamp(self.edit, self.node, self.input(self.only_operand()?)?)
    }

    /// The results of a function of one operand for the integers -128 to 127 with this map.
    pub fn function(&self, map: Affine) -> Matched<Vec<f32>> {
        if self.places.is_none() {
            let x = self.only_operand().and_then(|i| self.input(i));
            let x = x.ok_or_else(|| refuse("a missing operand"))?;
            return results(self.edit, &[x], &[self.node], map);
        }
        table::sampled(DType::F32, map, |x| first_result(self.op.eval(&[Some(&x)])))
    }
}
