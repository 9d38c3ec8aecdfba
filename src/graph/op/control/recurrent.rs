//! Recurrent layers. ONNX `RNN`, `GRU` and `LSTM` from opset 7.
//!
//! Operands: x `[sequence, batch, input]`, weights `[directions, gates * hidden, input]`, recurrent
//! weights, biases (input, then recurrent), lengths, initial states; for `LSTM` also initial cells
//! and peepholes. Results: all states `[sequence, directions, batch, hidden]`, the last states, the
//! last cells. With `layout` 1, the batch axis comes first.

use crate::graph::ValueId;
use crate::graph::op::case::{Case, input};
use crate::graph::op::parts::Parts;
use crate::graph::op::quantize_linear::bytes_of;
use crate::graph::op::transpose::Transpose;
use crate::graph::op::types::Types;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, onnx, operand};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

mod steps;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    Rnn,
    /// Gates z, r, h.
    Gru {
        /// The reset gate is applied after the recurrent matmul instead of before it.
        linear_before_reset: bool,
    },
    /// Gates i, o, f, c.
    Lstm {
        /// The forget gate is one minus the input gate.
        coupled: bool,
    },
}

/// An activation function with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activation {
    function: Function,
    alpha: f64,
    beta: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Affine,
    Elu,
    HardSigmoid,
    LeakyRelu,
    Relu,
    ScaledTanh,
    Sigmoid,
    Softplus,
    Softsign,
    Tanh,
    ThresholdedRelu,
}

impl Activation {
    /// The function with this name and its default parameters.
    fn new(name: &str) -> OpResult<Self> {
        let (function, alpha, beta) = match name.to_ascii_lowercase().as_str() {
            "affine" => (Function::Affine, 1.0, 0.0),
            "elu" => (Function::Elu, 1.0, 0.0),
            "hardsigmoid" => (Function::HardSigmoid, 0.2, 0.5),
            "leakyrelu" => (Function::LeakyRelu, 0.01, 0.0),
            "relu" => (Function::Relu, 0.0, 0.0),
            "scaledtanh" => (Function::ScaledTanh, 1.0, 1.0),
            "sigmoid" => (Function::Sigmoid, 0.0, 0.0),
            "softplus" => (Function::Softplus, 0.0, 0.0),
            "softsign" => (Function::Softsign, 0.0, 0.0),
            "tanh" => (Function::Tanh, 0.0, 0.0),
            "thresholdedrelu" => (Function::ThresholdedRelu, 1.0, 0.0),
            _ => return Err(OpError::Unsupported(format!("activation `{name}`"))),
        };
        Ok(Self {
            function,
            alpha,
            beta,
        })
    }

    /// Which parameters the function takes from the node's lists.
    fn parameters(self) -> (bool, bool) {
        match self.function {
            Function::Affine | Function::HardSigmoid | Function::ScaledTanh => (true, true),
            Function::Elu | Function::LeakyRelu | Function::ThresholdedRelu => (true, false),
            _ => (false, false),
        }
    }

    fn apply(self, x: f64) -> f64 {
        match self.function {
            Function::Affine => self.alpha * x + self.beta,
            Function::Elu => {
                if x < 0.0 {
                    self.alpha * x.exp_m1()
                } else {
                    x
                }
            }
            Function::HardSigmoid => (self.alpha * x + self.beta).clamp(0.0, 1.0),
            Function::LeakyRelu => {
                if x < 0.0 {
                    self.alpha * x
                } else {
                    x
                }
            }
            Function::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Function::ScaledTanh => self.alpha * (self.beta * x).tanh(),
            Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Function::Softplus => x.exp().ln_1p(),
            Function::Softsign => x / (1.0 + x.abs()),
            Function::Tanh => x.tanh(),
            Function::ThresholdedRelu => {
                if x > self.alpha {
                    x
                } else {
                    0.0
                }
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    pub cell: Cell,
    /// For each direction, whether it runs backward.
    backwards: Vec<bool>,
    /// Activation functions of each direction.
    activations: Vec<Vec<Activation>>,
    /// Clips sums to this magnitude.
    clip: Option<f64>,
    /// The batch axis comes first.
    batch_first: bool,
    /// Operand 0 and each state are rounded to 8 bits before a product, as ONNX Runtime's
    /// `DynamicQuantizeLSTM` does.
    rounds: bool,
}

impl Recurrent {
    fn gates(&self) -> usize {
        match self.cell {
            Cell::Rnn => 1,
            Cell::Gru { .. } => 3,
            Cell::Lstm { .. } => 4,
        }
    }

    /// Applies activation `i` of a direction to a sum.
    fn activate(&self, direction: usize, i: usize, x: f64) -> f64 {
        let x = self.clip.map_or(x, |c| x.clamp(-c, c));
        self.activations
            .get(direction)
            .and_then(|a| a.get(i))
            .map_or(x, |a| a.apply(x))
    }

    /// Evaluates operands whose first axis is the sequence.
    fn run(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let recurrent = operand(inputs, 2)?;
        let ([sequence, batch, width], [directions, rows, hidden]) = (x.shape(), recurrent.shape()) else {
            return Err(OpError::mismatch(
                "ranks (each 3)",
                format!("{x:?}"),
                format!("{recurrent:?}"),
            ));
        };
        let (sequence, batch, width, directions, hidden) = (*sequence, *batch, *width, *directions, *hidden);
        let gates = self.gates();
        if *rows != gates * hidden || directions != self.backwards.len() {
            return Err(OpError::expected(
                "recurrent weights",
                format!("{} rows", gates * hidden),
                format!("{recurrent:?}"),
            ));
        }
        let floats = |i: usize, shape: &[usize]| floats(inputs, i, shape);
        let zeros = |n: usize| vec![0.0; n];
        let missing = || OpError::expected("weights", "a value", "nothing");
        let data = self.rounded(floats(0, x.shape())?.ok_or_else(missing)?);
        let w = floats(1, &[directions, gates * hidden, width])?.ok_or_else(missing)?;
        let r = floats(2, recurrent.shape())?.ok_or_else(missing)?;
        let b = floats(3, &[directions, 2 * gates * hidden])?
            .unwrap_or_else(|| zeros(directions * 2 * gates * hidden));
        let states = count(&[directions, batch, hidden])?;
        let mut h = floats(5, &[directions, batch, hidden])?.unwrap_or_else(|| zeros(states));
        let mut c = floats(6, &[directions, batch, hidden])?.unwrap_or_else(|| zeros(states));
        let p = floats(7, &[directions, 3 * hidden])?.unwrap_or_else(|| zeros(directions * 3 * hidden));
        let lengths = lengths(inputs, batch, sequence)?;
        let mut y = zeros(count(&[sequence, directions, batch, hidden])?);
        for (d, n) in (0..directions).flat_map(|d| (0..batch).map(move |n| (d, n))) {
            let at = (d * batch + n) * hidden;
            let weights = Weights {
                w: num::part(&w, d * gates * hidden * width..)?,
                r: num::part(&r, d * gates * hidden * hidden..)?,
                b: num::part(&b, d * 2 * gates * hidden..)?,
                p: num::part(&p, d * 3 * hidden..)?,
                hidden,
                gates,
            };
            let length = *num::at(&lengths, n)?;
            for step in 0..length {
                quota::check()?;
                let t = if self.backwards.get(d) == Some(&true) {
                    length - 1 - step
                } else {
                    step
                };
                let from = (t * batch + n) * width;
                let x = num::part(&data, from..from + width)?;
                let (old, cell) = (
                    self.rounded(h[at..at + hidden].to_vec()),
                    c[at..at + hidden].to_vec(),
                );
                let (new, cell) = self.step(d, &weights, x, &old, &cell)?;
                h[at..at + hidden].copy_from_slice(&new);
                c[at..at + hidden].copy_from_slice(&cell);
                let to = ((t * directions + d) * batch + n) * hidden;
                y[to..to + hidden].copy_from_slice(&new);
            }
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rounding to the result type is intended"
        )]
        let tensor = |shape: &[usize], data: Vec<f64>| {
            let data: Vec<f32> = data.into_iter().map(|v| v as f32).collect();
            HostTensor::from_floats(x.dtype(), shape, &data)
        };
        Ok(vec![
            tensor(&[sequence, directions, batch, hidden], y)?,
            tensor(&[directions, batch, hidden], h)?,
            tensor(&[directions, batch, hidden], c)?,
        ])
    }

    /// `data` after dynamic 8-bit quantization and back, if `rounds`; otherwise unchanged.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "floats and 8-bit integers"
    )]
    fn rounded(&self, data: Vec<f64>) -> Vec<f64> {
        if !self.rounds {
            return data;
        }
        let data: Vec<f32> = data.into_iter().map(|v| v as f32).collect();
        let (bytes, scale, zero) = bytes_of(&data);
        bytes
            .into_iter()
            .map(|b| (b - zero) as f64 * f64::from(scale))
            .collect()
    }

    /// The next state and cell of one batch entry.
    fn step(&self, d: usize, weights: &Weights<'_>, x: &[f64], h: &[f64], c: &[f64]) -> OpResult<State> {
        let n = weights.hidden;
        let act = |i, v| self.activate(d, i, v);
        let both = |gate: usize, j: usize| -> OpResult<f64> {
            Ok(weights.input(gate, j, x)? + weights.state(gate, j, h)?)
        };
        let gate = |i: usize| -> OpResult<Vec<f64>> { (0..n).map(|j| Ok(act(0, both(i, j)?))).collect() };
        Ok(match self.cell {
            Cell::Rnn => (gate(0)?, c.to_vec()),
            Cell::Gru { linear_before_reset } => {
                let (z, r) = (gate(0)?, gate(1)?);
                let reset: Vec<f64> = h.iter().zip(&r).map(|(h, r)| h * r).collect();
                let state = |j: usize| {
                    let recurrent = if linear_before_reset {
                        r[j] * weights.state(2, j, h)?
                    } else {
                        weights.state(2, j, &reset)?
                    };
                    let new = act(1, weights.input(2, j, x)? + recurrent);
                    Ok((1.0 - z[j]) * new + z[j] * h[j])
                };
                ((0..n).map(state).collect::<OpResult<_>>()?, c.to_vec())
            }
            Cell::Lstm { coupled } => {
                let peep = |gate: usize, j: usize| num::at(weights.p, gate * n + j);
                let mut cells = Vec::with_capacity(n);
                let mut states = Vec::with_capacity(n);
                for (j, c) in c.iter().enumerate().take(n) {
                    let i = act(0, both(0, j)? + peep(0, j)? * c);
                    let f = if coupled {
                        1.0 - i
                    } else {
                        act(0, both(2, j)? + peep(2, j)? * c)
                    };
                    let cell = f * c + i * act(1, both(3, j)?);
                    let o = act(0, both(1, j)? + peep(1, j)? * cell);
                    cells.push(cell);
                    states.push(o * act(2, cell));
                }
                (states, cells)
            }
        })
    }
}

/// The state and the cell of one batch entry.
type State = (Vec<f64>, Vec<f64>);

/// The elements of operand `i`, which must have the number of elements of `shape`.
fn floats(inputs: &Inputs<'_>, i: usize, shape: &[usize]) -> OpResult<Option<Vec<f64>>> {
    let Some(t) = inputs.get(i).copied().flatten() else {
        return Ok(None);
    };
    if t.len() != count(shape)? {
        return Err(OpError::expected(
            format!("input {i}"),
            format!("{shape:?}"),
            format!("{t:?}"),
        ));
    }
    Ok(Some(t.to_f32()?.iter().map(|v| f64::from(*v)).collect()))
}

/// The length of each sequence.
fn lengths(inputs: &Inputs<'_>, batch: usize, sequence: usize) -> OpResult<Vec<usize>> {
    let lengths = match inputs.get(4).copied().flatten() {
        Some(t) => crate::graph::op::to_sizes(t)?,
        None => vec![sequence; batch],
    };
    if lengths.len() != batch || lengths.iter().any(|n| *n > sequence) {
        return Err(OpError::expected(
            "lengths",
            format!("{batch}, each at most {sequence}"),
            format!("{lengths:?}"),
        ));
    }
    Ok(lengths)
}

/// Weights of one direction.
struct Weights<'a> {
    w: &'a [f64],
    r: &'a [f64],
    b: &'a [f64],
    p: &'a [f64],
    hidden: usize,
    gates: usize,
}

impl Weights<'_> {
    fn dot(table: &[f64], line: usize, x: &[f64]) -> OpResult<f64> {
        let row = num::part(table, line * x.len()..(line + 1) * x.len())?;
        Ok(row.iter().zip(x).map(|(w, x)| w * x).sum())
    }

    /// Contribution of the input to a gate.
    fn input(&self, gate: usize, j: usize, x: &[f64]) -> OpResult<f64> {
        let line = gate * self.hidden + j;
        Ok(Self::dot(self.w, line, x)? + num::at(self.b, line)?)
    }

    /// Contribution of the state to a gate.
    fn state(&self, gate: usize, j: usize, h: &[f64]) -> OpResult<f64> {
        let line = gate * self.hidden + j;
        Ok(Self::dot(self.r, line, h)? + num::at(self.b, self.gates * self.hidden + line)?)
    }
}

/// Transposes an operand or result to swap its first axes.
fn turn(x: &HostTensor, perm: &[i64]) -> OpResult<HostTensor> {
    let transposed = Transpose {
        perm: Some(perm.to_vec()),
    }
    .eval(&[Some(x)])?
    .pop();
    transposed.ok_or_else(|| OpError::expected("result", 1, 0))
}

impl Op for Recurrent {
    fn name(&self) -> &str {
        match self.cell {
            Cell::Rnn => "RNN",
            Cell::Gru { .. } => "GRU",
            Cell::Lstm { .. } => "LSTM",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let [x, w, r] = [0, 1, 2].map(|i| cx.typed(i, Types::FLOAT));
        let (x, w, r) = (x?, w?, r?);
        let ([first, second, width], [directions, _, w_width], [_, rows, hidden]) =
            (x.shape.0.as_slice(), w.shape.0.as_slice(), r.shape.0.as_slice())
        else {
            return Err(OpError::expected(
                "operands",
                "rank 3 each",
                format!("{x}, {w}, {r}"),
            ));
        };
        cx.same("input sizes of operand and weights", width, w_width)?;
        cx.same(
            "rows of the recurrent weights and gates times hidden size",
            rows,
            &hidden.mul(&Dim::from_usize(self.gates()))?,
        )?;
        cx.same("directions", directions, &Dim::from_usize(self.backwards.len()))?;
        let (sequence, batch) = if self.batch_first {
            (second, first)
        } else {
            (first, second)
        };
        let lines = |n: usize| hidden.mul(&Dim::from_usize(n));
        let state = if self.batch_first {
            [batch, directions, hidden]
        } else {
            [directions, batch, hidden]
        };
        let state = state.map(Clone::clone).to_vec();
        let others = [
            (2, vec![directions.clone(), rows.clone(), hidden.clone()]),
            (3, vec![directions.clone(), lines(2 * self.gates())?]),
            (4, vec![batch.clone()]),
            (5, state.clone()),
            (6, state),
            (7, vec![directions.clone(), lines(3)?]),
        ];
        for (i, wanted) in others {
            let Some(given) = cx.opt(i) else { continue };
            cx.typed(i, if i == 4 { Types::INTEGER } else { Types::FLOAT })?;
            if given.shape.rank() != wanted.len() {
                return Err(OpError::expected(format!("input {i}"), Shape(wanted), given));
            }
            for (have, want) in given.shape.0.iter().zip(&wanted) {
                cx.same("sizes of the operands of a recurrent layer", have, want)?;
            }
        }
        let fact = |order: [&Dim; 3]| Fact::new(x.dtype, Shape(order.into_iter().cloned().collect()));
        let (all, last) = if self.batch_first {
            (
                fact([batch, sequence, directions]),
                fact([batch, directions, hidden]),
            )
        } else {
            (
                fact([sequence, directions, batch]),
                fact([directions, batch, hidden]),
            )
        };
        let mut all = all;
        all.shape.0.push(hidden.clone());
        let mut facts = vec![all, last.clone()];
        if matches!(self.cell, Cell::Lstm { .. }) {
            facts.push(last);
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let mut results = if self.batch_first {
            let mut transposed = Vec::new();
            for (i, x) in inputs.iter().enumerate() {
                transposed.push(match x {
                    Some(x) if matches!(i, 0 | 5 | 6) => Some(turn(x, &[1, 0, 2])?),
                    other => other.cloned(),
                });
            }
            let results = self.run(&transposed.iter().map(Option::as_ref).collect::<Vec<_>>())?;
            let perm = |x: &HostTensor| {
                if x.shape().len() == 4 {
                    vec![2, 0, 1, 3]
                } else {
                    vec![1, 0, 2]
                }
            };
            results
                .iter()
                .map(|x| turn(x, &perm(x)))
                .collect::<OpResult<Vec<_>>>()?
        } else {
            self.run(inputs)?
        };
        if !matches!(self.cell, Cell::Lstm { .. }) {
            results.truncate(2);
        }
        Ok(results)
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        if self.rounds {
            return Ok(None);
        }
        self.as_steps(cx)
    }

    fn decides(&self, input: usize) -> bool {
        input == 4
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let flag = |name: &str| Ok::<_, OpError>(a.int(name)?.unwrap_or(0) != 0);
    let (cell, functions): (_, &[&str]) = match a.op_type() {
        "GRU" => (
            Cell::Gru {
                linear_before_reset: flag("linear_before_reset")?,
            },
            &["Sigmoid", "Tanh"],
        ),
        "LSTM" | "DynamicQuantizeLSTM" => (
            Cell::Lstm {
                coupled: flag("input_forget")?,
            },
            &["Sigmoid", "Tanh", "Tanh"],
        ),
        _ => (Cell::Rnn, &["Tanh"]),
    };
    let backwards = match a.string("direction")?.as_deref() {
        None | Some("forward") => vec![false],
        Some("reverse") => vec![true],
        Some("bidirectional") => vec![false, true],
        Some(other) => {
            return Err(OpError::expected(
                "attribute `direction`",
                "forward, reverse or bidirectional",
                other,
            ));
        }
    };
    let wanted = functions.len() * backwards.len();
    let names = match a.strings("activations")? {
        // The schema of `RNN` lists two functions for any direction.
        Some(list) if list.len() >= wanted => list,
        Some(list) => {
            return Err(OpError::expected(
                "attribute `activations`",
                format!("{wanted} names"),
                list.len(),
            ));
        }
        None => functions
            .iter()
            .cycle()
            .take(wanted)
            .map(|f| (*f).to_owned())
            .collect(),
    };
    // Functions with parameters take the next values of the lists.
    let (alphas, betas) = (
        a.floats("activation_alpha")?.unwrap_or_default(),
        a.floats("activation_beta")?.unwrap_or_default(),
    );
    let (mut alphas, mut betas) = (alphas.into_iter(), betas.into_iter());
    let mut all = Vec::with_capacity(wanted);
    for name in names.iter().take(wanted) {
        let mut f = Activation::new(name)?;
        let (alpha, beta) = f.parameters();
        if let Some(v) = alpha.then(|| alphas.next()).flatten() {
            f.alpha = f64::from(v);
        }
        if let Some(v) = beta.then(|| betas.next()).flatten() {
            f.beta = f64::from(v);
        }
        all.push(f);
    }
    // Implied by the weights.
    a.int("hidden_size")?;
    Ok(Box::new(Recurrent {
        cell,
        activations: all.chunks(functions.len()).map(<[_]>::to_vec).collect(),
        backwards,
        clip: a.float("clip")?.map(f64::from).filter(|c| *c > 0.0),
        batch_first: flag("layout")?,
        rounds: a.op_type() == "DynamicQuantizeLSTM",
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[
        onnx("RNN", 7, 6).outputs(2),
        onnx("GRU", 7, 6).outputs(2),
        onnx("LSTM", 7, 8).outputs(3),
    ],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let op = |cell, names: &[&str], backwards: &[bool]| {
        let functions = names
            .iter()
            .map(|n| Activation::new(n))
            .collect::<OpResult<Vec<_>>>()
            .ok()?;
        let activations = vec![functions; backwards.len()];
        Some(Recurrent {
            cell,
            activations,
            backwards: backwards.to_vec(),
            clip: None,
            batch_first: false,
            rounds: false,
        })
    };
    let case = |op: Option<Recurrent>| {
        let op = op?;
        let (d, g) = (op.backwards.len(), op.gates());
        let inputs = vec![
            input(&[5, 2, 3]),
            input(&[d, g * 4, 3]),
            input(&[d, g * 4, 4]),
            input(&[d, g * 8]),
        ];
        Some(Case::new(op, inputs).slack(4.0))
    };
    [
        case(op(Cell::Rnn, &["Tanh"], &[true])),
        case(op(
            Cell::Gru {
                linear_before_reset: true,
            },
            &["Sigmoid", "Tanh"],
            &[false],
        )),
        case(op(
            Cell::Lstm { coupled: false },
            &["Sigmoid", "Tanh", "Tanh"],
            &[false, true],
        )),
    ]
    .into_iter()
    .flatten()
    .collect()
}
