//! The context of lowering: what an operator can query about its node, and the operands that it can
//! request.

use super::{Collected, Condition, Location, Operand, Pack, WeightKey, WithOperands};
use crate::backend::DeviceProfile;
use crate::graph::bounds::Bounds;
use crate::graph::op::{OpError, OpResult, device_dtype};
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::shape::{Bindings, Constraints, Dim, Fact, Shape};
use crate::tensor::DType;

/// What lowering knows besides the node. It is the same for all nodes of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    pub graph: &'a Graph,
    /// Facts with the plan's fixed symbols replaced, by value.
    pub facts: &'a [Option<Fact>],
    /// Bounds of integer values, by value.
    pub integers: &'a [Option<Bounds>],
    /// The maximum values of symbols.
    pub limits: &'a Bindings,
    pub device: &'a DeviceProfile,
    /// The type in which the plan stores floats.
    pub float: DType,
    /// The type in which it stores floats of states.
    pub state_float: DType,
    /// For each of the graph's states: the capacity in rows if it is a ring buffer.
    pub rings: &'a [Option<i64>],
}

/// The context for lowering one node.
#[derive(Debug)]
pub struct LowerCx<'a> {
    pub(super) scope: Scope<'a>,
    /// Name of the node.
    pub(super) name: &'a str,
    /// The node's operands and results.
    pub(super) inputs: &'a [Option<ValueId>],
    pub(super) outputs: &'a [ValueId],
    pub(super) id: NodeId,
    /// The epilogue that is applied to result 0 before it is stored.
    pub(super) epilogue: Option<&'a WithOperands>,
    pub(super) out: &'a mut Collected,
}

impl<'a> LowerCx<'a> {
    pub(crate) fn new(scope: Scope<'a>, id: NodeId, node: &'a Node, out: &'a mut Collected) -> Self {
        Self {
            scope,
            name: &node.name,
            inputs: &node.inputs,
            outputs: &node.outputs,
            id,
            epilogue: None,
            out,
        }
    }
}

impl LowerCx<'_> {
    /// Number of operands, including omitted ones.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    pub fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// Name of the node.
    pub fn name(&self) -> &str {
        self.name
    }

    /// The properties of the device.
    pub fn device(&self) -> &DeviceProfile {
        self.scope.device
    }

    /// The maximum of `dim` over all runs, if the plan bounds its symbols.
    pub fn upper_bound(&self, dim: &Dim) -> Option<i64> {
        dim.upper_bound(self.scope.limits).ok()
    }

    /// The known constraints on the symbols.
    pub fn constraints(&self) -> &Constraints {
        self.scope.graph.constraints()
    }

    /// The type in which the plan stores floats.
    pub fn float(&self) -> DType {
        self.scope.float
    }

    pub(super) fn input_id(&self, i: usize) -> OpResult<ValueId> {
        self.inputs
            .get(i)
            .copied()
            .flatten()
            .ok_or_else(|| OpError::expected(format!("input {i}"), "a value", "nothing"))
    }

    pub(super) fn output_id(&self, i: usize) -> OpResult<ValueId> {
        self.outputs
            .get(i)
            .copied()
            .ok_or_else(|| OpError::expected(format!("output {i}"), "a value", "nothing"))
    }

    pub(super) fn fact_of(&self, id: ValueId) -> OpResult<&Fact> {
        self.scope
            .facts
            .get(id.index())
            .and_then(Option::as_ref)
            .ok_or_else(|| OpError::expected("shape", "derived", "unknown"))
    }

    /// Whether operand `i` is given.
    pub fn has(&self, i: usize) -> bool {
        self.input_id(i).is_ok()
    }

    /// The fact of operand `i` with the plan's fixed symbols replaced.
    pub fn fact(&self, i: usize) -> OpResult<&Fact> {
        self.fact_of(self.input_id(i)?)
    }

    /// The fact of result `i` with the plan's fixed symbols replaced.
    pub fn out_fact(&self, i: usize) -> OpResult<&Fact> {
        self.fact_of(self.output_id(i)?)
    }

    fn bounds_of(&self, id: ValueId) -> Option<Bounds> {
        self.scope.integers.get(id.index()).copied().flatten()
    }

    /// Bounds of operand `i`; `None` if it holds floats.
    pub fn bounds(&self, i: usize) -> OpResult<Option<Bounds>> {
        Ok(self.bounds_of(self.input_id(i)?))
    }

    /// Bounds of result `i`; `None` if it holds floats.
    pub fn out_bounds(&self, i: usize) -> OpResult<Option<Bounds>> {
        Ok(self.bounds_of(self.output_id(i)?))
    }

    /// The shape of operand `i`.
    pub fn shape(&self, i: usize) -> OpResult<Shape> {
        Ok(self.fact(i)?.shape.clone())
    }

    /// The integer elements of operand `i` as expressions. Fails if they are not known.
    pub fn dims(&self, i: usize) -> OpResult<Vec<Dim>> {
        self.fact(i)?
            .as_dims()
            .ok_or_else(|| OpError::NoKernel(format!("input {i} depends on data")))
    }

    pub(super) fn root(&self, id: ValueId) -> ValueId {
        self.out.root(id)
    }

    /// The capacity in rows of the state that operand `i` refers to, if that is a ring buffer. Row
    /// `n` is then stored at `n` modulo the capacity.
    pub fn ring(&self, i: usize) -> OpResult<Option<i64>> {
        let root = self.root(self.input_id(i)?);
        let state = self.scope.graph.state_of(root);
        Ok(state.and_then(|i| self.scope.rings.get(i).copied().flatten()))
    }

    /// The operand for reading a value.
    pub(super) fn resolve(&mut self, id: ValueId) -> OpResult<Operand> {
        let root = self.root(id);
        let fact = self.fact_of(root)?;
        if let (Some(elements), None, Some(_)) =
            (fact.as_dims(), fact.as_const(), self.scope.graph.producer(root))
        {
            if let Some(bounds) = self.bounds_of(root).filter(|b| !b.fits_32()) {
                let what = format!("sizes that kernels read may be {} to {}", bounds.low, bounds.high);
                return Err(OpError::NoKernel(what));
            }
            return Ok(Operand {
                location: Location::Known(self.out.known.insert((root, elements))),
                dtype: DType::I32,
            });
        }
        let operand = self.stored(root)?;
        // A name of bytes whose elements have another type.
        let own = self.out.storage_types.get(&id).filter(|_| id != root);
        Ok(Operand {
            dtype: own.copied().unwrap_or(operand.dtype),
            ..operand
        })
    }

    /// The operand for writing a value, or for reading what a kernel or the caller wrote.
    pub(super) fn stored(&mut self, root: ValueId) -> OpResult<Operand> {
        if let Some(i) = self.scope.graph.state_of(root) {
            let dtype = device_dtype(self.fact_of(root)?.dtype, self.scope.state_float, None);
            return Ok(Operand {
                location: Location::State(i),
                dtype,
            });
        }
        let fact = self.fact_of(root)?;
        if fact.as_const().is_some() {
            let dtype = device_dtype(fact.dtype, DType::F32, self.bounds_of(root));
            return Ok(self.packed(vec![root], Pack::Plain { dtype }, dtype));
        }
        let dtype =
            self.out.storage_types.get(&root).copied().ok_or_else(|| {
                OpError::Unsupported("a value that is known only as expressions".to_owned())
            })?;
        Ok(Operand {
            location: Location::Value(root),
            dtype,
        })
    }

    fn packed(&mut self, values: Vec<ValueId>, pack: Pack, dtype: DType) -> Operand {
        let key = WeightKey { values, pack };
        Operand {
            location: Location::Weight(self.out.weights.insert(key)),
            dtype,
        }
    }

    /// Operand `i` as stored in memory. Constants are uploaded whole, with floats in `f32`. Values
    /// known as expressions are read from the table of live values, which is exact at every step.
    pub fn input(&mut self, i: usize) -> OpResult<Operand> {
        let id = self.input_id(i)?;
        self.resolve(id)
    }

    pub fn output(&mut self, i: usize) -> OpResult<Operand> {
        let root = self.root(self.output_id(i)?);
        self.stored(root)
    }

    /// Result `i`, or scratch memory of `count` elements if the node has no such result.
    pub fn result(&mut self, i: usize, dtype: DType, count: &Dim) -> OpResult<Operand> {
        if i < self.output_count() {
            return self.output(i);
        }
        Ok(self.temp(dtype, count.clone()))
    }

    /// Constant operand `i` in packed form.
    pub fn weight(&mut self, i: usize, pack: Pack) -> OpResult<Operand> {
        self.weights(&[i], pack)
    }

    /// Constant operands in packed form, with their columns side by side; see
    /// [`WeightKey::values`].
    pub fn weights(&mut self, operands: &[usize], pack: Pack) -> OpResult<Operand> {
        let mut values = Vec::with_capacity(operands.len());
        for i in operands {
            let root = self.root(self.input_id(*i)?);
            if self.fact_of(root)?.as_const().is_none() {
                return Err(OpError::expected(
                    format!("input {i}"),
                    "a constant",
                    "a computed value",
                ));
            }
            values.push(root);
        }
        let dtype = pack.dtype();
        Ok(self.packed(values, pack, dtype))
    }

    /// Scratch memory of this node.
    pub fn temp(&mut self, dtype: DType, count: Dim) -> Operand {
        self.out.temps.push((dtype, count));
        Operand {
            location: Location::Temp(self.out.temps.len() - 1),
            dtype,
        }
    }

    /// Requires that `dim` is not negative in any run. Otherwise binding fails with an error that
    /// contains `meaning` and the node's name.
    pub fn require(&mut self, dim: Dim, meaning: &str) {
        if dim.as_const().is_none_or(|v| v < 0) {
            let meaning = format!("node \"{}\": {meaning}", self.name);
            self.out.conditions.push(Condition {
                given: dim.clone(),
                dim,
                equal: false,
                meaning,
            });
        }
    }

    /// Declares how many iterations all loops of a work-item have together. Sizes that exceed
    /// [`DeviceProfile::max_loops`] have no kernel; sizes without a bound are checked in each run.
    pub fn loops(&mut self, what: &str, iterations: &Dim) -> OpResult<()> {
        let Some(most) = self.device().max_loops else {
            return Ok(());
        };
        let what = format!("{what}: {iterations} iterations; the device runs at most {most}");
        match self.upper_bound(iterations) {
            Some(n) if n <= most => {}
            Some(_) => return Err(OpError::NoKernel(what)),
            None => self.require(Dim::from(most).sub(iterations)?, &what),
        }
        Ok(())
    }

    /// An integer that the kernel reads from the table of live values: the table as an operand, and
    /// the integer's position. Use this for values that must be exact at every step and change
    /// with every token, such as a write position or the cache length; padded sizes are not exact.
    pub fn live(&mut self, dim: &Dim) -> (Operand, Dim) {
        let at = self.out.live.insert(dim.clone());
        let operand = Operand {
            location: Location::Live,
            dtype: DType::I32,
        };
        (operand, Dim::from_usize(at))
    }

    /// The word that a kernel sets if operand `i` does not have what `expected` names, and the
    /// number that it writes there. The run then fails. Several kernels may write it at once.
    pub fn fault(&mut self, i: usize, expected: &str) -> OpResult<(Operand, Dim)> {
        let operand = &self.scope.graph.value(self.input_id(i)?).name;
        let what = format!(
            "node \"{}\": operand \"{operand}\": expected {expected}, found one outside",
            self.name
        );
        let at = self.out.faults.insert(what);
        let word = Operand {
            location: Location::Fault,
            dtype: DType::I32,
        };
        Ok((word, Dim::from_usize(at + 1)))
    }

    /// Counters with which work-groups determine which of them finishes last: 32-bit words that are
    /// zero when the dispatch begins. The dispatch must reset them to zero. All dispatches share
    /// them, since they run one after another.
    pub fn counters(&mut self, count: u64) -> Operand {
        self.out.counters = self.out.counters.max(count);
        Operand {
            location: Location::Counters,
            dtype: DType::U32,
        }
    }
}
