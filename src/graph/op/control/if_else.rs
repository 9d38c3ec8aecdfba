//! Runs one of two subgraphs, selected by a condition. ONNX `If` from opset 1.
//!
//! Both branches must have results of the same types and ranks. Sizes that differ are known only in
//! the run. If ranks differ, the branch that alone assumes sizes is taken, as exporters write
//! "squeeze the axis if its size is 1"; its assumptions are checked before each run.

use crate::graph::body::{Body, DerivedBody};
use crate::graph::op::case::Case;
use crate::graph::op::{
    ANY, Assumption, Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand,
};
use crate::shape::{Fact, Known};
use crate::tensor::{DType, HostTensor};

#[derive(Clone, Debug, PartialEq)]
pub struct If {
    /// Runs if the condition is true.
    pub then: Body,
    /// Runs if the condition is false.
    pub otherwise: Body,
}

impl If {
    /// The branch for the value of the condition.
    pub fn branch(&self, condition: bool) -> &Body {
        if condition { &self.then } else { &self.otherwise }
    }
}

/// The value of a condition, if known.
pub fn decided(fact: &Fact) -> Option<bool> {
    match fact.as_dims()?.as_slice() {
        [one] => one.as_const().map(|v| v != 0),
        _ => None,
    }
}

/// The single truth value of an operand.
pub(crate) fn truth(x: &HostTensor) -> OpResult<bool> {
    match x.to_i64()?.as_slice() {
        [one] => Ok(*one != 0),
        _ => Err(OpError::expected(
            "condition",
            "one truth value",
            format!("{x:?}"),
        )),
    }
}

/// The branch that alone assumes sizes to be equal, if exactly one does.
fn narrower<'a>(a: &'a DerivedBody, b: &'a DerivedBody) -> Option<&'a DerivedBody> {
    let alone = |x: &DerivedBody, y: &DerivedBody| {
        x.assumed()
            .any(|p| p.equal && !y.assumed().any(|q| p.same_condition(q)))
    };
    match (alone(a, b), alone(b, a)) {
        (true, false) => Some(a),
        (false, true) => Some(b),
        _ => None,
    }
}

impl Op for If {
    fn name(&self) -> &str {
        "If"
    }

    fn decides(&self, input: usize) -> bool {
        input == 0
    }

    fn runs_graphs(&self) -> bool {
        true
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let condition = cx.fact(0)?;
        if condition.dtype != DType::Bool {
            return Err(OpError::expected("condition", DType::Bool, condition));
        }
        if let Some(holds) = decided(condition) {
            let branch = self.branch(holds).infer(cx, &[])?;
            cx.assume(branch.assumed().cloned());
            return (0..branch.facts.len()).map(|i| branch.fact(cx, i)).collect();
        }
        let (a, b) = (self.then.infer(cx, &[])?, self.otherwise.infer(cx, &[])?);
        if a.facts
            .iter()
            .zip(&b.facts)
            .any(|(x, y)| x.shape.rank() != y.shape.rank())
            && let Some(branch) = narrower(&a, &b)
        {
            cx.assume(branch.assumed().cloned());
            return (0..branch.facts.len()).map(|i| branch.fact(cx, i)).collect();
        }
        // An assumption of one branch must not fail a run of the other. Such results are compared
        // by size in the run, and nothing is known of their elements.
        let both: Vec<Assumption> = a
            .assumed()
            .filter(|p| b.assumed().any(|q| p.same_condition(q)))
            .cloned()
            .collect();
        let sure = a.rests_on(&both) && b.rests_on(&both);
        cx.assume(both);
        let mut facts = Vec::new();
        for (i, (x, y)) in a.facts.iter().zip(&b.facts).enumerate() {
            if x.dtype != y.dtype {
                return Err(OpError::mismatch("results of the branches", x, y));
            }
            if x.shape.rank() != y.shape.rank() {
                return Err(OpError::Unsupported(format!(
                    "branches of different rank, {x} and {y}, with a condition that is not known before \
                     the run"
                )));
            }
            let mut fact = Fact::new(x.dtype, x.shape.clone());
            for (axis, (p, q)) in fact.shape.0.iter_mut().zip(&y.shape.0).enumerate() {
                if p != q || !a.is_outer(p) || !b.is_outer(q) {
                    *p = cx.unknown(i, axis, None);
                }
            }
            if let (Some(p), Some(q)) = (x.as_dims(), y.as_dims())
                && sure
                && p == q
                && p.iter().all(|d| a.is_outer(d) && b.is_outer(d))
            {
                fact.known = Known::Dims(p);
            }
            facts.push(fact);
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        self.branch(truth(operand(inputs, 0)?)?).eval(Vec::new(), inputs)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let branch = |name: &str| -> OpResult<Body> {
        let body = a
            .graph(name, 1)?
            .ok_or_else(|| OpError::expected(format!("attribute `{name}`"), "a graph", "nothing"))?;
        body.check(&format!("attribute `{name}`"), 0, a.output_count())?;
        Ok(body)
    };
    Ok(Box::new(If {
        then: branch("then_branch")?,
        otherwise: branch("else_branch")?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("If", 1, 1).outputs(ANY)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    // Subgraphs come from models: see `tests/references/onnx_nodes.rs`.
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::pointwise::{Binary, Pointwise};
    use crate::graph::{Edit, Graph};
    use crate::shape::{Constraints, Dim, Shape};

    /// A branch that combines its inputs, which are operands of the node from `first` on.
    fn branch(f: Binary, operands: [usize; 2], first: usize) -> Body {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let inputs = ["x", "y"].map(|n| edit.add_value(n, None));
        inputs.into_iter().for_each(|v| edit.add_input(v));
        let z = edit.add_value("z", None);
        let op = Box::new(Pointwise::binary("f", f));
        edit.add_node(
            "inner",
            vec![],
            op,
            operands.map(|i| Some(inputs[i])).to_vec(),
            vec![z],
        );
        edit.add_output(z);
        Body::new(graph, first..first + 2).unwrap()
    }

    /// The shape of the result over `x [n]` and `y [m]`, and what is assumed.
    fn derived(op: &If, condition: Option<bool>) -> (String, Vec<String>) {
        let condition = match condition {
            Some(v) => Fact::of(HostTensor::from_bool(&[], &[v]).unwrap().into()),
            None => Fact::new(DType::Bool, Shape::default()),
        };
        let vector = |size| Fact::new(DType::F32, Shape(vec![Dim::symbol(size)]));
        let (x, y) = (vector("n"), vector("m"));
        let (inputs, known) = (
            [Some(&condition), Some(&x), Some(&y), Some(&x), Some(&y)],
            Constraints::default(),
        );
        let cx = InferCx::new(&inputs, &known).named(&["c", "x", "y", "x", "y"], &["z"]);
        let shape = op.infer(&cx).unwrap()[0].shape.to_string();
        (
            shape,
            cx.finish().1.into_iter().map(|a| a.dim.to_string()).collect(),
        )
    }

    #[test]
    fn what_branches_assume() {
        let both = If {
            then: branch(Binary::Add, [0, 1], 1),
            otherwise: branch(Binary::Mul, [0, 1], 3),
        };
        let one = If {
            then: branch(Binary::Add, [0, 1], 1),
            otherwise: branch(Binary::Mul, [0, 0], 3),
        };
        assert_eq!(derived(&both, None), ("[n]".into(), vec!["-m + n".into()]));
        assert_eq!(
            derived(&one, None),
            ("[n]".into(), vec![]),
            "the other branch needs no equal sizes"
        );
        assert_eq!(derived(&one, Some(true)).1, ["-m + n"]);
        assert_eq!(derived(&one, Some(false)).1, Vec::<String>::new());
    }
}
