//! Operators that are defined by their parts alone, such as those of ONNX Runtime.

use super::parts::Parts;
use super::{InferCx, Inputs, Op, OpError, OpResult};
use crate::graph::body::Body;
use crate::graph::{Edit, Graph, Node, ValueId};
use crate::shape::{Constraints, Fact};
use crate::tensor::HostTensor;
use std::fmt::Debug;
use std::sync::Arc;

/// Maximum number of results of a composite operator.
const RESULTS: usize = 8;

/// Attributes of an operator, and the nodes that it stands for.
pub trait Composed: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// ONNX operator type.
    fn name(&self) -> &str;

    /// Builds the nodes and returns the values of all results.
    fn build(&self, cx: &mut Parts<'_, '_>) -> OpResult<Vec<ValueId>>;
}

/// An operator within a composite one.
#[derive(Clone, Debug)]
pub struct Inner(pub Box<dyn Op>);

impl PartialEq for Inner {
    fn eq(&self, other: &Self) -> bool {
        self.0.dyn_eq(other.0.as_ref())
    }
}

/// Implements [`Op`] for a [`Composed`] operator: inference and evaluation run its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Composite<T>(pub T);

impl<T: Composed> Composite<T> {
    /// The parts as a graph, with an input for each operand that is given.
    fn body(&self, operands: &[Option<&Fact>], constraints: &Constraints) -> OpResult<Body> {
        let mut graph = Graph {
            constraints: constraints.clone(),
            ..Graph::default()
        };
        let mut edit = Edit::new(&mut graph);
        let mut inputs = Vec::with_capacity(operands.len());
        for (i, fact) in operands.iter().enumerate() {
            inputs.push(fact.map(|fact| {
                let v = edit.add_value(&format!("operand{i}"), Some(fact.clone()));
                edit.add_input(v);
                v
            }));
        }
        let outputs = (0..RESULTS).map(|i| edit.add_value(&format!("result{i}"), None));
        let node = Node {
            name: self.0.name().to_owned(),
            origin: Vec::new(),
            op: Box::new(self.clone()),
            inputs,
            outputs: outputs.collect(),
        };
        let results = self.0.build(&mut Parts::new(&mut edit, &node))?;
        for v in results {
            edit.add_output(v);
        }
        Body::new(graph, 0..0).map_err(OpError::from)
    }
}

impl<T: Composed> Op for Composite<T> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let body = self.body(cx.inputs, cx.constraints())?;
        let given: Vec<Fact> = cx.inputs.iter().flatten().map(|f| (*f).clone()).collect();
        let derived = body.infer(cx, &given)?;
        cx.assume(derived.assumed().cloned());
        (0..derived.facts.len()).map(|i| derived.fact(cx, i)).collect()
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let facts: Vec<Option<Fact>> = inputs
            .iter()
            .map(|x| x.map(|x| Fact::of(Arc::new(x.clone()))))
            .collect();
        let facts: Vec<Option<&Fact>> = facts.iter().map(Option::as_ref).collect();
        let given = inputs.iter().flatten().map(|x| (*x).clone()).collect();
        self.body(&facts, &Constraints::default())?.eval(given, &[])
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let mut results = self.0.build(cx)?;
        results.truncate(cx.output_count());
        Ok(Some(results))
    }
}
