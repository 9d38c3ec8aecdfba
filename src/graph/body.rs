//! Subgraphs that nodes run: branches and loop bodies.

use super::interp::Interpreter;
use super::op::{Assumption, InferCx, Inputs, OpError, OpResult, operand};
use super::{Graph, derive};
use crate::error::Result;
use crate::shape::{Dim, Fact, Known, Symbol};
use crate::tensor::HostTensor;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A subgraph of a node. Its inputs are the values that the node passes, then the values captured
/// from the enclosing graphs; captured values are operands of the node. Two bodies are equal if
/// they are the same object.
#[derive(Clone)]
pub struct Body {
    run: Arc<Interpreter>,
    /// Operands of the node that are captured: they are the last inputs.
    outer: Range<usize>,
}

/// Result of shape derivation for a body.
#[derive(Debug)]
pub struct DerivedBody {
    /// Facts of the results.
    pub facts: Vec<Fact>,
    /// Symbols that are defined only inside the body.
    inner: BTreeSet<Symbol>,
    /// What the facts assume in the body.
    assumed: Vec<Assumption>,
}

impl DerivedBody {
    /// True if the size is meaningful outside the body.
    pub fn is_outer(&self, size: &Dim) -> bool {
        let mut symbols = BTreeSet::new();
        size.symbols(&mut symbols);
        symbols.is_disjoint(&self.inner)
    }

    /// The assumptions that are meaningful outside the body. Evaluation checks the rest by
    /// comparing the sizes it meets.
    pub fn assumed(&self) -> impl Iterator<Item = &Assumption> {
        self.assumed.iter().filter(|a| self.is_outer(&a.dim))
    }

    /// True if the facts assume nothing that is not in `list`.
    pub fn rests_on(&self, list: &[Assumption]) -> bool {
        self.assumed
            .iter()
            .all(|a| list.iter().any(|b| a.same_condition(b)))
    }

    /// Facts of the `carried` values after all iterations. Their results start at result number
    /// `first` of the body. Sizes that an iteration changes are unknown.
    pub fn kept(&self, cx: &InferCx<'_>, carried: &[Fact], first: usize) -> Vec<Fact> {
        let mut facts = Vec::with_capacity(carried.len());
        for (i, start) in carried.iter().enumerate() {
            let mut fact = Fact::new(start.dtype, start.shape.clone());
            let next = self.facts.get(first + i);
            for (axis, size) in fact.shape.0.iter_mut().enumerate() {
                let after = next.and_then(|n| n.shape.0.get(axis));
                if after.is_none_or(|n| n != size || !self.is_outer(n)) {
                    *size = cx.unknown(i, axis, None);
                }
            }
            facts.push(fact);
        }
        facts
    }

    /// The fact of a result, as result `output` of the node. Sizes defined only inside the body
    /// become unknown.
    pub fn fact(&self, cx: &InferCx<'_>, output: usize) -> OpResult<Fact> {
        let mut fact = self.facts.get(output).cloned();
        if let Some(fact) = &mut fact {
            for (axis, size) in fact.shape.0.iter_mut().enumerate() {
                if !self.is_outer(size) {
                    *size = cx.unknown(output, axis, None);
                }
            }
            let inner = match &fact.known {
                Known::Dims(elements) => elements.iter().any(|e| !self.is_outer(e)),
                Known::Quotients(elements) => elements.iter().any(|q| !self.is_outer(&q.num)),
                _ => false,
            };
            if inner {
                fact.known = Known::No;
            }
        }
        fact.ok_or_else(|| OpError::expected("result of the body", output, self.facts.len()))
    }
}

impl Body {
    /// A body whose last inputs are the captured operands `outer` of its node.
    pub fn new(graph: Graph, outer: Range<usize>) -> Result<Self> {
        let run = Arc::new(Interpreter::new(Arc::new(graph))?);
        Ok(Self { run, outer })
    }

    /// The subgraph. The facts of its inputs are not set.
    pub fn graph(&self) -> &Graph {
        self.run.graph()
    }

    /// Operands of the node that are captured: they are the last inputs.
    pub fn outer(&self) -> Range<usize> {
        self.outer.clone()
    }

    /// Number of inputs that the node passes itself.
    pub fn input_count(&self) -> usize {
        self.graph().inputs().len().saturating_sub(self.outer.len())
    }

    /// Fails if the body does not have exactly `inputs` inputs and at least `outputs` results.
    pub fn check(&self, what: &str, inputs: usize, outputs: usize) -> OpResult<()> {
        let found = (self.input_count(), self.graph().outputs().len());
        if found.0 == inputs && found.1 >= outputs {
            return Ok(());
        }
        let text = |(i, o)| format!("{i} inputs and {o} results");
        Err(OpError::expected(what, text((inputs, outputs)), text(found)))
    }

    /// The subgraph with facts derived from the inputs that the node passes and from the node's
    /// operands.
    pub fn derived(&self, cx: &InferCx<'_>, given: &[Fact]) -> OpResult<Graph> {
        let mut graph = self.graph().clone();
        graph.constraints = cx.constraints().clone();
        let mut facts = given.to_vec();
        for i in self.outer.clone() {
            facts.push(cx.fact(i)?.clone());
        }
        for (v, fact) in self.graph().inputs().iter().zip(facts) {
            graph.values[v.index()].fact = Some(fact);
        }
        derive::derive(&mut graph).map_err(OpError::from)?;
        Ok(graph)
    }

    /// Facts of the results; see [`Body::derived`].
    pub fn infer(&self, cx: &InferCx<'_>, given: &[Fact]) -> OpResult<DerivedBody> {
        let graph = self.derived(cx, given)?;
        let facts = graph.outputs().iter().map(|v| graph.fact(*v).cloned());
        let facts = facts.collect::<Result<_>>().map_err(OpError::from)?;
        let inner = graph.made().iter().map(|m| m.symbol.clone()).collect();
        let assumed = graph.assumptions().iter().map(|a| a.assumed.clone()).collect();
        Ok(DerivedBody {
            facts,
            inner,
            assumed,
        })
    }

    /// Facts of the results of a loop body. Its inputs are `before`, then `carried`, then `after`.
    /// Each iteration takes `carried` from the results of the previous one, starting at result
    /// number `first`. Carried sizes that an iteration changes are unknown inside.
    pub fn repeated(
        &self,
        cx: &InferCx<'_>,
        before: &[Fact],
        carried: &[Fact],
        after: &[Fact],
        first: usize,
    ) -> OpResult<DerivedBody> {
        let mut carried: Vec<Fact> = carried
            .iter()
            .map(|f| Fact::new(f.dtype, f.shape.clone()))
            .collect();
        let mut taken = cx.constraints().symbols();
        for fact in cx.inputs.iter().flatten() {
            fact.shape.0.iter().for_each(|size| size.symbols(&mut taken));
            match &fact.known {
                Known::Dims(elements) => elements.iter().for_each(|e| e.symbols(&mut taken)),
                Known::Quotients(elements) => elements.iter().for_each(|q| q.num.symbols(&mut taken)),
                Known::No | Known::Const(_) => {}
            }
        }
        let mut changing: BTreeSet<Symbol> = BTreeSet::new();
        loop {
            let mut derived = self.infer(cx, &[before, &carried, after].concat())?;
            derived.inner.extend(changing.iter().cloned());
            let known = changing.len();
            for (i, fact) in carried.iter_mut().enumerate() {
                let missing = || OpError::expected("result of the body", first + i, derived.facts.len());
                let result = derived.facts.get(first + i).ok_or_else(missing)?;
                if result.dtype != fact.dtype || result.shape.rank() != fact.shape.rank() {
                    return Err(OpError::mismatch(
                        "a value before and after the body",
                        &*fact,
                        result,
                    ));
                }
                for (axis, (size, next)) in fact.shape.0.iter_mut().zip(&result.shape.0).enumerate() {
                    let varies = derived.is_outer(size) && (size != next || !derived.is_outer(next));
                    if varies {
                        let mut name = format!("each_{i}_{axis}");
                        while taken.contains(&Symbol::new(&name)) {
                            name.push('_');
                        }
                        changing.insert(Symbol::new(&name));
                        *size = Dim::symbol(&name);
                    }
                }
            }
            if changing.len() == known {
                return Ok(derived);
            }
        }
    }

    /// Evaluates the body for the inputs that the node passes and the node's operands.
    pub fn eval(&self, given: Vec<HostTensor>, operands: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let graph = self.graph();
        let mut values = HashMap::new();
        let outer = self.outer.clone().map(|i| operand(operands, i).cloned());
        for (v, tensor) in graph.inputs().iter().zip(given.into_iter().map(Ok).chain(outer)) {
            values.insert(*v, tensor?);
        }
        let results = self.run.run(values).map_err(OpError::from)?;
        let missing = || OpError::expected("result of the body", "a value", "none");
        graph
            .outputs()
            .iter()
            .map(|v| results.get(v).cloned().ok_or_else(missing))
            .collect()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.run, &other.run) && self.outer == other.outer
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} nodes)", self.graph().nodes().count())
    }
}
