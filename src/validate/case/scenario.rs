//! An operator with operands, and the graphs in which it is tested.

use crate::error::{Error, Result as LibResult, Stage};
use crate::graph::derive::derive;
use crate::graph::op::InferCx;
use crate::graph::op::case::Case;
use crate::graph::op::pointwise::{Expr, Pointwise};
use crate::graph::op::reshape::Reshape;
use crate::graph::pass::{DECOMPOSE, Pipeline};
use crate::graph::{Edit, Graph, Op, ValueId};
use crate::plan::Options;
use crate::shape::{Bindings, Constraints, Dim, Fact, Known, Shape};
use crate::tensor::{DType, HostTensor, TensorError};
use std::sync::Arc;

/// An operator and its operands, whose sizes may be symbols. The values of the symbols differ
/// between the runs of one plan.
#[derive(Debug)]
pub struct Scenario {
    pub op: Box<dyn Op>,
    /// One fact per operand. Operands with unknown contents are inputs of the graph.
    pub operands: Vec<Fact>,
    /// Largest values of the symbols.
    pub bounds: Bindings,
    /// Values of the symbols, and all operands, for each run.
    pub runs: Vec<(Bindings, Vec<HostTensor>)>,
    /// Factor by which the error bound is multiplied.
    pub slack: f64,
    /// Expected number of dispatches if no weight is split; `None` if any number is valid.
    pub dispatches: Option<usize>,
}

/// The operator's surroundings in the graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    /// The result is not a graph output: another operator reads it under another name, so it is
    /// stored like the plan's other floats.
    pub inner: bool,
    /// The operands are also graph outputs, so nothing may overwrite them.
    pub keep: bool,
}

impl Surroundings {
    pub const ALONE: Self = Self::of(false, false);
    const KEPT: Self = Self::of(false, true);
    const INNER: Self = Self::of(true, false);
    const INNER_KEPT: Self = Self::of(true, true);
    pub const ALL: [Self; 4] = [Self::ALONE, Self::KEPT, Self::INNER, Self::INNER_KEPT];

    const fn of(inner: bool, keep: bool) -> Self {
        Self { inner, keep }
    }

    /// The surroundings to test with floats stored as `storage_type`. The first is the usual one.
    pub const fn tried(storage_type: DType) -> &'static [Self] {
        match storage_type {
            DType::F16 => &[Self::INNER, Self::INNER_KEPT, Self::ALONE],
            _ => &[Self::ALONE, Self::KEPT],
        }
    }
}

/// Rounds floats to the precision of `storage_type`.
pub(super) fn rounded(t: &HostTensor, storage_type: DType) -> Result<HostTensor, TensorError> {
    if t.dtype() != DType::F32 || storage_type != DType::F16 {
        return Ok(t.clone());
    }
    let floats = t.f32s()?;
    let halves = floats.iter().map(|v| half::f16::from_f32(*v).to_f32());
    HostTensor::from_f32(t.shape(), &halves.collect::<Vec<f32>>())
}

impl Scenario {
    /// The scenario of a conformance case. If every operand is constant, shape inference would fold
    /// the operator. Integer operands then become known expressions, as in a model with symbols.
    pub fn of(case: &Case) -> Result<Self, String> {
        let tensors: Vec<HostTensor> = (1..)
            .zip(&case.inputs)
            .map(|(seed, i)| i.make(seed).map_err(|e| e.to_string()))
            .collect::<Result<_, _>>()?;
        let folds = case.inputs.iter().all(|i| i.is_const);
        let operands = case
            .inputs
            .iter()
            .zip(&tensors)
            .map(|(i, t)| {
                let mut fact = Fact::new(t.dtype(), Shape::fixed(t.shape()));
                if folds && t.dtype().is_int() {
                    let list = t.to_i64().map_err(|e| e.to_string())?;
                    fact.known = Known::Dims(list.into_iter().map(Dim::from).collect());
                } else if i.is_const {
                    fact = Fact::of(Arc::new(t.clone()));
                }
                Ok(fact)
            })
            .collect::<Result<_, String>>()?;
        Ok(Self {
            op: case.op.clone(),
            operands,
            bounds: Bindings::new(),
            runs: vec![(Bindings::new(), tensors)],
            slack: case.slack,
            dispatches: case.dispatches,
        })
    }

    /// The operator's results on the host.
    pub fn reference(&self, operands: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
        let inputs: Vec<Option<&HostTensor>> = operands.iter().map(Some).collect();
        let results = self.op.eval(&inputs).map_err(|e| format!("reference: {e}"))?;
        if results.is_empty() {
            return Err("reference: expected a result".to_owned());
        }
        Ok(results)
    }

    /// Whether each result of the operator is a float. Empty if inference fails; building the graph
    /// then reports the error.
    pub(super) fn results(&self) -> Vec<bool> {
        let facts: Vec<Option<&Fact>> = self.operands.iter().map(Some).collect();
        let constraints = Constraints::default();
        let found = self.op.infer(&InferCx::new(&facts, &constraints));
        let found: Vec<bool> = found.iter().flatten().map(|fact| fact.dtype.is_float()).collect();
        if found.is_empty() { vec![false] } else { found }
    }

    /// Number of operators in `form` that read the results; each takes one dispatch.
    pub(super) fn readers(&self, form: Surroundings) -> usize {
        let floats = self.results().into_iter().filter(|float| *float);
        floats.filter(|_| form.inner).count()
    }

    /// The graph of the operator in these surroundings. Operand `i` is named `x{i}`.
    pub(super) fn graph(&self, form: Surroundings, storage_type: DType) -> LibResult<Graph> {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let inputs = self.add_operands(&mut edit, form, storage_type).map_err(other)?;
        let floats = self.results();
        let results: Vec<ValueId> = (0..floats.len())
            .map(|i| edit.add_value(&format!("y{i}"), None))
            .collect();
        edit.add_node("node", Vec::new(), self.op.clone(), inputs, results.clone());
        if form.inner {
            add_readers(&mut edit, results, &floats).map_err(other)?;
        } else {
            results.into_iter().for_each(|y| edit.add_output(y));
        }
        derive(&mut graph)?;
        Ok(graph)
    }

    fn add_operands(
        &self,
        edit: &mut Edit<'_>,
        form: Surroundings,
        storage_type: DType,
    ) -> Result<Vec<Option<ValueId>>, TensorError> {
        let mut inputs = Vec::new();
        for (i, fact) in self.operands.iter().enumerate() {
            let fact = match &fact.known {
                Known::Const(t) => Fact::of(Arc::new(rounded(t, storage_type)?)),
                _ => fact.clone(),
            };
            let is_input = fact.known == Known::No;
            // Inputs that are also outputs are not stored as bytes.
            let as_bytes = matches!(fact.dtype, DType::I8 | DType::U8) && self.op.reads_bytes();
            let v = edit.add_value(&format!("x{i}"), Some(fact));
            if is_input {
                edit.add_input(v);
                if form.keep && !as_bytes {
                    edit.add_output(v);
                }
            }
            inputs.push(Some(v));
        }
        Ok(inputs)
    }

    /// The graph of the operators into which the operator decomposes; `None` if it does not.
    pub(super) fn parts(&self, form: Surroundings, storage_type: DType) -> LibResult<Graph> {
        let mut graph = self.graph(form, storage_type)?;
        // Values known as expressions have no producer, which a pass would refuse.
        let known = |f: &Fact| matches!(f.known, Known::Dims(_) | Known::Quotients(_));
        if self.operands.iter().any(known) {
            return Ok(graph);
        }
        let pipeline = Pipeline {
            passes: vec![DECOMPOSE],
            edit_limit: usize::MAX,
        };
        pipeline.run(&mut graph)?;
        Ok(graph)
    }

    pub(super) fn options(&self, storage_type: DType) -> Options {
        Options {
            float: storage_type,
            bounds: self.bounds.clone(),
            ..Options::default()
        }
    }

    /// Upper bound on the number of terms in any sum: the largest axis or, for reductions over
    /// several axes, the size of the largest operand divided by that of the result.
    pub(super) fn terms(tensors: &[HostTensor], result: &HostTensor) -> usize {
        let axis = tensors
            .iter()
            .flat_map(|t| t.shape().iter().copied())
            .max()
            .unwrap_or(1);
        let fold = tensors
            .iter()
            .map(|t| t.len() / result.len().max(1))
            .max()
            .unwrap_or(1);
        axis.max(fold)
    }
}

/// Adds an operator that reads each result under another name. The graph outputs what they compute.
fn add_readers(edit: &mut Edit<'_>, results: Vec<ValueId>, floats: &[bool]) -> Result<(), TensorError> {
    let axis = edit.add_const("axis", Arc::new(HostTensor::from_i64(&[1], &[0])?));
    for (i, (y, float)) in results.into_iter().zip(floats).enumerate() {
        let out = edit.add_value(&format!("out{i}"), None);
        let name = match float {
            true => edit.add_value(&format!("name{i}"), None),
            false => out,
        };
        let alias = Box::new(Reshape::Unsqueeze);
        let operands = vec![Some(y), Some(axis)];
        edit.add_node(&format!("alias{i}"), Vec::new(), alias, operands, vec![name]);
        if *float {
            let same = Box::new(Pointwise {
                name: "Identity".to_owned(),
                expr: Expr::Input(0),
            });
            edit.add_node(
                &format!("reader{i}"),
                Vec::new(),
                same,
                vec![Some(name)],
                vec![out],
            );
        }
        edit.add_output(out);
    }
    Ok(())
}

fn other(e: TensorError) -> Error {
    Error::other(Stage::Run, e.to_string())
}
