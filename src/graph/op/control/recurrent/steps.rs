//! Unrolls a recurrent layer into nodes: matmuls, and elementwise expressions for the gates.

use super::{Activation, Cell, Function, Recurrent};
use crate::graph::ValueId;
use crate::graph::op::concat::Concat;
use crate::graph::op::gather::Gather;
use crate::graph::op::matmul::MatMul;
use crate::graph::op::parts::Parts;
use crate::graph::op::pointwise::import::{binary, input as arg, number, select, unary};
use crate::graph::op::pointwise::{Binary, Expr, Unary};
use crate::graph::op::transpose::Transpose;
use crate::graph::op::{OpError, OpResult, as_usize};
use crate::num;
use crate::tensor::HostTensor;

/// Maximum number of steps to unroll.
const MAX_STEPS: usize = 64;

fn add(a: Expr, b: Expr) -> Expr {
    binary(Binary::Add, a, b)
}

fn mul(a: Expr, b: Expr) -> Expr {
    binary(Binary::Mul, a, b)
}

impl Activation {
    /// Applies the function to an expression.
    fn of(self, x: Expr) -> Expr {
        #[expect(clippy::cast_possible_truncation, reason = "attributes of the file are f32")]
        let (a, b) = (self.alpha as f32, self.beta as f32);
        let below = |x: &Expr| binary(Binary::Less, x.clone(), number(0.0));
        match self.function {
            Function::Affine => add(mul(x, number(a)), number(b)),
            Function::Elu => {
                let bent = binary(Binary::Sub, unary(Unary::Exp, x.clone()), number(1.0));
                select(below(&x), mul(bent, number(a)), x)
            }
            Function::HardSigmoid => {
                let line = add(mul(x, number(a)), number(b));
                binary(Binary::Min, binary(Binary::Max, line, number(0.0)), number(1.0))
            }
            Function::LeakyRelu => select(below(&x), mul(x.clone(), number(a)), x),
            Function::Relu => unary(Unary::Relu, x),
            Function::ScaledTanh => mul(unary(Unary::Tanh, mul(x, number(b))), number(a)),
            Function::Sigmoid => unary(Unary::Sigmoid, x),
            Function::Softplus => unary(Unary::Softplus, x),
            Function::Softsign => unary(Unary::Softsign, x),
            Function::Tanh => unary(Unary::Tanh, x),
            Function::ThresholdedRelu => {
                select(binary(Binary::Greater, x.clone(), number(a)), x, number(0.0))
            }
        }
    }
}

/// Weights that the steps of one direction share.
struct Direction {
    index: usize,
    /// Recurrent weights `[gates * hidden, hidden]`.
    r: ValueId,
    /// For a GRU, the weights of the gates and those of the new state.
    split: Option<[ValueId; 2]>,
    /// For a GRU that resets after the matmul, the bias of the new state.
    late: Option<ValueId>,
    /// Peepholes of an LSTM, each `[hidden]`: input, output, forget.
    peep: Option<[ValueId; 3]>,
    hidden: i64,
}

/// The lengths of sequences `[batch]` as `[batch, 1]`. A run with one outside of 0 to `full` fails.
fn checked(cx: &mut Parts<'_, '_>, lengths: ValueId, full: i64) -> OpResult<ValueId> {
    let dtype = cx.fact(lengths)?.dtype;
    let all: Vec<i64> = (0..=full).collect();
    let table = cx.constant("lengths/all", HostTensor::from_ints(dtype, &[all.len()], &all)?);
    // As an index, a negative number would count from the end.
    #[expect(clippy::cast_precision_loss, reason = "a few steps")]
    let [zero, outside] = [0.0, (full + 1) as f64].map(|v| Expr::Const(v, dtype));
    let index = select(binary(Binary::Less, arg(0), zero), outside, arg(0));
    let index = cx.pointwise("lengths/index", index, &[lengths])?;
    let lengths = cx.node("lengths", Gather { axis: 0 }, &[Some(table), Some(index)])?;
    cx.reshape("lengths/column", lengths, &[-1, 1])
}

impl Recurrent {
    /// `None` for symbolic sizes, many steps, or variable lengths with a backward direction.
    pub(super) fn as_steps(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let turn = |cx: &mut Parts<'_, '_>, what: &str, v: ValueId| {
            if !self.batch_first {
                return Ok(v);
            }
            let perm = Some(vec![1, 0, 2]);
            cx.node(&format!("{what}/turned"), Transpose { perm }, &[Some(v)])
        };
        let x = cx.input(0)?;
        let x = turn(cx, "x", x)?;
        let (shape, recurrent) = (cx.fact(x)?.shape, cx.fact(cx.input(2)?)?.shape);
        let sizes: Option<Vec<usize>> = shape.0.iter().chain(recurrent.0.last()).map(as_usize).collect();
        let Some([sequence, batch, _, hidden]) = sizes.as_deref() else {
            return Ok(None);
        };
        let (sequence, batch, hidden) = (*sequence, *batch, *hidden);
        if !(1..=MAX_STEPS).contains(&sequence) {
            return Ok(None);
        }
        let mut lengths = cx.opt(4);
        if let Some(list) = lengths {
            let full = num::signed(sequence);
            let known = cx.fact(list)?.as_const().map(|t| t.to_i64()).transpose()?;
            if known.is_some_and(|l| l.iter().all(|n| *n == full)) {
                lengths = None;
            } else if self.backwards.contains(&true) {
                return Ok(None);
            } else {
                lengths = Some(checked(cx, list, full)?);
            }
        }
        let first = |cx: &mut Parts<'_, '_>, i: usize, name: &str| match cx.opt(i) {
            Some(v) => turn(cx, name, v),
            None => {
                let dtype = cx.fact(x)?.dtype;
                let zeros = HostTensor::zeros(dtype, &[self.backwards.len(), batch, hidden])?;
                Ok(cx.constant(&format!("{name}/zeros"), zeros))
            }
        };
        let firsts = [first(cx, 5, "h")?, first(cx, 6, "c")?];
        let (mut all, mut last) = (Vec::new(), [Vec::new(), Vec::new()]);
        for d in 0..self.backwards.len() {
            let (rows, h, c) = self.direction(cx, x, d, sequence, firsts, lengths)?;
            all.push(Some(cx.node(&format!("y{d}"), Concat { axis: 0 }, &rows)?));
            for (list, v) in last.iter_mut().zip([h, c]) {
                list.push(Some(cx.unsqueeze(&format!("last{d}"), v, &[0])?));
            }
        }
        let joined = |cx: &mut Parts<'_, '_>, what: &str, list: &[Option<ValueId>], axis| match list {
            [Some(one)] => Ok(*one),
            list => cx.node(what, Concat { axis }, list),
        };
        let y = joined(cx, "all", &all, 1)?;
        let mut results = vec![y];
        for (what, list) in ["last_h", "last_c"].into_iter().zip(&last) {
            results.push(joined(cx, what, list, 0)?);
        }
        if self.batch_first {
            for (what, v) in ["all", "last_h", "last_c"].into_iter().zip(&mut results) {
                let perm = if what == "all" {
                    vec![2, 0, 1, 3]
                } else {
                    vec![1, 0, 2]
                };
                *v = cx.node(
                    &format!("{what}/turned"),
                    Transpose { perm: Some(perm) },
                    &[Some(*v)],
                )?;
            }
        }
        if !matches!(self.cell, Cell::Lstm { .. }) {
            results.truncate(2);
        }
        Ok(Some(results))
    }

    /// The products of the inputs, plus the biases `b` of a direction that can be added to all
    /// steps.
    fn with_biases(
        &self,
        cx: &mut Parts<'_, '_>,
        own: &mut Direction,
        b: ValueId,
        inputs: ValueId,
    ) -> OpResult<ValueId> {
        let (d, hidden, gates) = (own.index, own.hidden, num::signed(self.gates()));
        let b = cx.entry(&format!("b{d}"), b, 0, d)?;
        let first = cx.slice(&format!("wb{d}"), b, 0, 0..gates * hidden)?;
        let inputs = cx.pointwise(&format!("with_wb{d}"), add(arg(0), arg(1)), &[inputs, first])?;
        let mut second = cx.slice(&format!("rb{d}"), b, 0, gates * hidden..2 * gates * hidden)?;
        if self.cell
            == (Cell::Gru {
                linear_before_reset: true,
            })
        {
            own.late = Some(cx.slice(&format!("late{d}"), second, 0, 2 * hidden..3 * hidden)?);
            let early = cx.slice(&format!("early{d}"), second, 0, 0..2 * hidden)?;
            let length = num::exact(hidden, "a size")?;
            let zeros = HostTensor::zeros(cx.fact(early)?.dtype, &[length])?;
            let zeros = cx.constant(&format!("none{d}"), zeros);
            second = cx.node(
                &format!("rb{d}/early"),
                Concat { axis: 0 },
                &[Some(early), Some(zeros)],
            )?;
        }
        cx.pointwise(&format!("with_rb{d}"), add(arg(0), arg(1)), &[inputs, second])
    }

    /// States `[1, 1, batch, hidden]` of one direction in sequence order, and the last state and
    /// cell.
    fn direction(
        &self,
        cx: &mut Parts<'_, '_>,
        x: ValueId,
        d: usize,
        sequence: usize,
        firsts: [ValueId; 2],
        lengths: Option<ValueId>,
    ) -> OpResult<(Vec<Option<ValueId>>, ValueId, ValueId)> {
        let (w, r) = (cx.input(1)?, cx.input(2)?);
        let (w, r) = (
            cx.entry(&format!("w{d}"), w, 0, d)?,
            cx.entry(&format!("r{d}"), r, 0, d)?,
        );
        let hidden = cx.fact(r)?.shape.0.last().and_then(|d| d.as_const());
        let hidden = hidden.ok_or_else(|| OpError::expected("hidden size", "a constant", "none"))?;
        let mut own = Direction {
            index: d,
            r,
            split: None,
            late: None,
            peep: None,
            hidden,
        };
        let product = MatMul { trans_b: true };
        let mut inputs = cx.node(&format!("inputs{d}"), product, &[Some(x), Some(w)])?;
        if let Some(b) = cx.opt(3) {
            inputs = self.with_biases(cx, &mut own, b, inputs)?;
        }
        if let (Cell::Lstm { .. }, Some(p)) = (self.cell, cx.opt(7)) {
            let p = cx.entry(&format!("p{d}"), p, 0, d)?;
            let mut list = [p; 3];
            for (i, v) in (0i64..).zip(&mut list) {
                *v = cx.slice(&format!("p{d}_{i}"), p, 0, i * hidden..(i + 1) * hidden)?;
            }
            own.peep = Some(list);
        }
        if let Cell::Gru { .. } = self.cell {
            let first = cx.slice(&format!("r{d}/gates"), r, 0, 0..2 * hidden)?;
            own.split = Some([
                first,
                cx.slice(&format!("r{d}/new"), r, 0, 2 * hidden..3 * hidden)?,
            ]);
        }
        let [h, c] = firsts;
        let mut h = cx.entry(&format!("h{d}"), h, 0, d)?;
        let mut c = cx.entry(&format!("c{d}"), c, 0, d)?;
        let mut rows = vec![None; sequence];
        for step in 0..sequence {
            let backwards = self.backwards.get(d) == Some(&true);
            let t = if backwards { sequence - 1 - step } else { step };
            let now = cx.entry(&format!("x{d}_{t}"), inputs, 0, t)?;
            let (mut new, mut cell) = self.cell(cx, &own, t, now, h, c)?;
            let mut y = new;
            if let Some(lengths) = lengths {
                let at = num::signed(t);
                let at = cx.constant(
                    &format!("t{d}_{t}"),
                    HostTensor::from_ints(cx.fact(lengths)?.dtype, &[], &[at])?,
                );
                let live = || binary(Binary::Greater, arg(0), arg(1));
                y = cx.pointwise(
                    &format!("y{d}_{t}"),
                    select(live(), arg(2), number(0.0)),
                    &[lengths, at, new],
                )?;
                let kept = select(live(), arg(2), arg(3));
                new = cx.pointwise(&format!("h{d}_{t}/kept"), kept.clone(), &[lengths, at, new, h])?;
                if matches!(self.cell, Cell::Lstm { .. }) {
                    cell = cx.pointwise(&format!("c{d}_{t}/kept"), kept, &[lengths, at, cell, c])?;
                }
            }
            (h, c) = (new, cell);
            if let Some(row) = rows.get_mut(t) {
                *row = Some(cx.unsqueeze(&format!("row{d}_{t}"), y, &[0, 1])?);
            }
        }
        Ok((rows, h, c))
    }

    /// Activation `i` of direction `d`, of `x` clipped.
    fn activation(&self, d: usize, i: usize, x: Expr) -> Expr {
        #[expect(clippy::cast_possible_truncation, reason = "attributes of the file are f32")]
        let x = self.clip.map_or(x.clone(), |c| {
            binary(
                Binary::Max,
                binary(Binary::Min, x, number(c as f32)),
                number(-c as f32),
            )
        });
        let list = self.activations.get(d);
        list.and_then(|a| a.get(i)).map_or(x.clone(), |a| a.of(x))
    }

    /// The next state and cell; `now` is the input's contribution to the gates.
    fn cell(
        &self,
        cx: &mut Parts<'_, '_>,
        own: &Direction,
        t: usize,
        now: ValueId,
        h: ValueId,
        c: ValueId,
    ) -> OpResult<(ValueId, ValueId)> {
        let (d, n) = (own.index, own.hidden);
        let name = |what: &str| format!("{what}{d}_{t}");
        let product = MatMul { trans_b: true };
        let act = |i: usize, x: Expr| self.activation(d, i, x);
        let sum = || add(arg(0), arg(1));
        match self.cell {
            Cell::Rnn => {
                let before = cx.node(&name("hr"), product, &[Some(h), Some(own.r)])?;
                Ok((cx.pointwise(&name("h"), act(0, sum()), &[now, before])?, c))
            }
            Cell::Gru { linear_before_reset } => {
                let [gates, new] = own.split.unwrap_or([own.r; 2]);
                let before = cx.node(&name("hr"), product.clone(), &[Some(h), Some(gates)])?;
                let both = cx.slice(&name("both"), now, -1, 0..2 * n)?;
                let both = cx.pointwise(&name("gates"), act(0, sum()), &[both, before])?;
                let z = cx.slice(&name("z"), both, -1, 0..n)?;
                let r = cx.slice(&name("r"), both, -1, n..2 * n)?;
                let x = cx.slice(&name("xh"), now, -1, 2 * n..3 * n)?;
                let state = if linear_before_reset {
                    let product = cx.node(&name("hh"), product, &[Some(h), Some(new)])?;
                    let product = match own.late {
                        Some(b) => cx.pointwise(&name("late"), sum(), &[product, b])?,
                        None => product,
                    };
                    cx.pointwise(&name("reset"), mul(arg(0), arg(1)), &[r, product])?
                } else {
                    let reset = cx.pointwise(&name("reset"), mul(arg(0), arg(1)), &[r, h])?;
                    cx.node(&name("hh"), product, &[Some(reset), Some(new)])?
                };
                let fresh = act(1, add(arg(0), arg(1)));
                let rest = binary(Binary::Sub, number(1.0), arg(2));
                let mixed = add(mul(rest, fresh), mul(arg(2), arg(3)));
                Ok((cx.pointwise(&name("h"), mixed, &[x, state, z, h])?, c))
            }
            Cell::Lstm { coupled } => {
                let before = cx.node(&name("hr"), product, &[Some(h), Some(own.r)])?;
                let gates = cx.pointwise(&name("gates"), sum(), &[now, before])?;
                let part = |cx: &mut Parts<'_, '_>, what: &str, i: i64| {
                    cx.slice(&name(what), gates, -1, i * n..(i + 1) * n)
                };
                let [mut i, mut o, mut f, g] = [
                    part(cx, "i", 0)?,
                    part(cx, "o", 1)?,
                    part(cx, "f", 2)?,
                    part(cx, "g", 3)?,
                ];
                let peep = |cx: &mut Parts<'_, '_>, what: &str, at: usize, x: ValueId, c: ValueId| {
                    let Some(p) = own.peep.and_then(|p| p.get(at).copied()) else {
                        return Ok(x);
                    };
                    let seen = add(arg(0), mul(arg(1), arg(2)));
                    cx.pointwise(&name(what), seen, &[x, p, c])
                };
                i = peep(cx, "pi", 0, i, c)?;
                f = peep(cx, "pf", 2, f, c)?;
                let (open, new) = (act(0, arg(0)), act(1, arg(1)));
                let forget = if coupled {
                    binary(Binary::Sub, number(1.0), open.clone())
                } else {
                    act(0, arg(3))
                };
                let next = add(mul(forget, arg(2)), mul(open, new));
                let operands = if coupled { vec![i, g, c] } else { vec![i, g, c, f] };
                let cell = cx.pointwise(&name("c"), next, &operands)?;
                o = peep(cx, "po", 1, o, cell)?;
                let shown = mul(act(0, arg(0)), act(2, arg(1)));
                Ok((cx.pointwise(&name("h"), shown, &[o, cell])?, cell))
            }
        }
    }
}
