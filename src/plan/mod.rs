//! One static plan of a graph for a device: steps, places, and formulas for what changes from run to run.

pub mod lower;
pub mod memory;
pub mod text;

use crate::backend::kernel::{FieldTy, KernelSpec, Role, Ty};
use crate::backend::{Caps, Launch};
use crate::error::{Error, Result, Stage};
use crate::graph::op::device_dtype;
use crate::graph::{Graph, NodeId, ValueId};
use crate::shape::{Bindings, Dim, Fact, Shape, Symbol};
use crate::tensor::DType;
use lower::{Collected, Field, Home, LowerCx, Operand, WeightKey};
use memory::Slot;
use std::collections::{HashMap, HashSet};

/// What a plan is made for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Storage type of float activations and states: `f16` or `f32`.
    pub float: DType,
    /// Symbols replaced by numbers before lowering (`batch = 1`, `sequence = 1` for decode).
    pub fixed: Bindings,
    /// Largest values of all other symbols. Memory is placed for them; binding more is an error.
    pub bounds: Bindings,
    /// Rows that each state has room for.
    pub state_rows: i64,
}

/// Where an operand of a step lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Bytes of the arena.
    Arena {
        /// First byte, aligned to [`Caps::view_align`].
        offset: u64,
        /// Length.
        len: u64,
    },
    /// A packed constant, whole.
    Weight(usize),
    /// A state, whole.
    State(usize),
}

/// The value of one parameter field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Expr(usize),
    F32(f32),
}

/// One dispatch.
#[derive(Clone, Debug)]
pub struct Step {
    /// Index into [`Plan::kernels`].
    pub kernel: usize,
    /// Places of the bound operands, in binding order.
    pub args: Vec<Place>,
    /// Byte range of this step's parameters in [`Launch::params`].
    pub params: std::ops::Range<u32>,
    /// Names of the model's nodes that this step computes.
    pub nodes: Vec<String>,
    grid: [usize; 3],
    fields: Vec<(FieldTy, Value)>,
}

/// A value that the caller writes or reads.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name in the model.
    pub name: String,
    /// Element type in the model.
    pub dtype: DType,
    /// Element type on the device.
    pub device: DType,
    /// Shape with the fixed symbols replaced.
    pub shape: Shape,
    /// Place.
    pub place: Place,
}

/// A state's device form.
#[derive(Clone, Debug)]
pub struct StateSlot {
    /// Name of the input that it replaces.
    pub name: String,
    /// Element type on the device.
    pub dtype: DType,
    /// Bytes for all rows.
    pub bytes: u64,
}

/// Sizes that `inspect` and tests look at, in bytes, at the plan's bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Sum of all activations without any reuse.
    pub without_reuse: u64,
    /// The arena.
    pub arena: u64,
    /// Largest live set: no plan needs less.
    pub lower_bound: u64,
    /// All states.
    pub states: u64,
}

/// A compiled graph; see the module documentation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Dispatches in order.
    pub steps: Vec<Step>,
    /// Specialised kernels.
    pub kernels: Vec<KernelSpec>,
    /// Packed constants.
    pub weights: Vec<WeightKey>,
    /// States, in the graph's order.
    pub states: Vec<StateSlot>,
    /// Graph inputs that some step reads.
    pub inputs: Vec<Port>,
    /// Names of graph inputs that no step reads.
    pub unread: Vec<String>,
    /// Graph outputs.
    pub outputs: Vec<Port>,
    /// Sizes.
    pub memory: MemoryReport,
    bounds: Bindings,
    /// Expressions that must not be negative in any run, with what a negative one means.
    conditions: Vec<(Dim, String)>,
    exprs: Vec<Dim>,
    params_bytes: u32,
}

fn device_bytes(dtype: DType, count: u64) -> u64 {
    let size = if dtype == DType::F16 { 2 } else { 4 };
    // An even number of elements, since work-items store pairs; whole 8 bytes, since halves are read as such.
    count.saturating_mul(size).next_multiple_of(8).max(8)
}

impl Plan {
    /// Plans `graph`, whose facts are derived, for a device.
    pub fn compile(graph: &Graph, caps: &Caps, options: &Options) -> Result<Self> {
        let mut facts = Vec::with_capacity(graph.values.len());
        for v in &graph.values {
            let mut fact = v.fact.clone();
            if let Some(f) = &mut fact {
                f.shape = f
                    .shape
                    .substitute(&options.fixed)
                    .map_err(|e| Error::other(Stage::Plan, e.to_string()))?;
                if let crate::shape::Known::Dims(d) = &mut f.known {
                    for d in d {
                        *d = d
                            .substitute(&options.fixed)
                            .map_err(|e| Error::other(Stage::Plan, e.to_string()))?;
                    }
                }
            }
            facts.push(fact);
        }
        let order = graph.order()?;
        let (needed_nodes, needed_values) = needed(graph);
        let mut collected = Collected::default();
        for id in graph.inputs() {
            let dtype = graph.fact(*id)?.dtype;
            collected.storage.insert(*id, device_dtype(dtype, options.float));
        }
        for id in order.iter().filter(|id| needed_nodes[id.index()]) {
            lower_node(graph, *id, &facts, caps, options.float, &mut collected)?;
        }
        Assembler {
            graph,
            facts: &facts,
            caps,
            options,
            collected: &collected,
            needed: &needed_values,
        }
        .assemble()
    }

    /// Writes the parameters and grids of one run into `launch`, whose memory is reused. Every symbol must be
    /// bound within the plan's bounds.
    pub fn bind(&self, bindings: &Bindings, scratch: &mut Vec<i64>, launch: &mut Launch) -> Result<()> {
        for (symbol, bound) in self.bounds.iter() {
            match bindings.get(symbol) {
                Some(v) if (0..=bound).contains(&v) => {}
                Some(v) => {
                    return Err(Error::other(
                        Stage::Run,
                        format!("{symbol} = {v} is outside 0..={bound} of this plan"),
                    ));
                }
                None => return Err(Error::other(Stage::Run, format!("symbol {symbol} has no value"))),
            }
        }
        for (dim, meaning) in &self.conditions {
            let v = dim
                .eval(bindings)
                .map_err(|e| Error::other(Stage::Run, e.to_string()))?;
            if v < 0 {
                return Err(Error::other(Stage::Run, format!("{meaning}: {dim} is {v}")));
            }
        }
        scratch.clear();
        for e in &self.exprs {
            scratch.push(
                e.eval(bindings)
                    .map_err(|e| Error::other(Stage::Run, e.to_string()))?,
            );
        }
        launch.params.clear();
        launch.params.resize(self.params_bytes as usize, 0);
        launch.grids.clear();
        let range = |step: &Step, v: i64| {
            Error::other(
                Stage::Run,
                format!("{v} is out of range in a step of {}", step.nodes.join(", ")),
            )
        };
        for step in &self.steps {
            let mut at = step.params.start as usize;
            for (ty, value) in &step.fields {
                let bytes = match (ty, value) {
                    (_, Value::F32(v)) => v.to_le_bytes(),
                    (FieldTy::I32, Value::Expr(e)) => i32::try_from(scratch[*e])
                        .map_err(|_| range(step, scratch[*e]))?
                        .to_le_bytes(),
                    (_, Value::Expr(e)) => u32::try_from(scratch[*e])
                        .map_err(|_| range(step, scratch[*e]))?
                        .to_le_bytes(),
                };
                if let Some(slot) = launch.params.get_mut(at..at + 4) {
                    slot.copy_from_slice(&bytes);
                }
                at += 4;
            }
            let mut grid = [0u32; 3];
            for (g, e) in grid.iter_mut().zip(step.grid) {
                *g = u32::try_from(scratch[e]).map_err(|_| range(step, scratch[e]))?;
            }
            launch.grids.push(grid);
        }
        Ok(())
    }

    /// The input port of this name, if any step reads it.
    pub fn input(&self, name: &str) -> Option<&Port> {
        self.inputs.iter().find(|p| p.name == name)
    }

    /// The output port of this name.
    pub fn output(&self, name: &str) -> Option<&Port> {
        self.outputs.iter().find(|p| p.name == name)
    }

    /// Symbols that every run must bind, with their largest values.
    pub fn bounds(&self) -> &Bindings {
        &self.bounds
    }
}

/// Bytes of the packed constants of `plans` of one graph on the device; what several of them read is there once.
pub fn weight_bytes(graph: &Graph, plans: &[Plan]) -> Result<u64> {
    let keys: HashSet<&WeightKey> = plans.iter().flat_map(|p| &p.weights).collect();
    keys.into_iter().try_fold(0u64, |sum, key| {
        let value = graph.value(key.value);
        let shape = graph.fact(key.value)?.shape.as_fixed();
        let bytes = shape.and_then(|s| key.pack.bytes(&s));
        bytes.and_then(|n| sum.checked_add(n)).ok_or_else(|| {
            Error::other(
                Stage::Plan,
                format!("the bytes of weight \"{}\" cannot be counted", value.name),
            )
        })
    })
}

/// Nodes and values that the outputs and states need as data.
fn needed(graph: &Graph) -> (Vec<bool>, Vec<bool>) {
    let mut nodes = vec![false; graph.nodes.len()];
    let mut values = vec![false; graph.values.len()];
    let mut work: Vec<ValueId> = graph
        .outputs()
        .iter()
        .copied()
        .chain(graph.states().iter().map(|s| s.output))
        .collect();
    while let Some(v) = work.pop() {
        if std::mem::replace(&mut values[v.index()], true) {
            continue;
        }
        if graph
            .value(v)
            .fact
            .as_ref()
            .is_some_and(|f| f.as_const().is_some())
        {
            continue;
        }
        if let Some((id, node)) = graph.producer(v)
            && !std::mem::replace(&mut nodes[id.index()], true)
        {
            let read = node.inputs.iter().enumerate().filter(|(i, _)| node.op.reads(*i));
            work.extend(read.filter_map(|(_, v)| *v));
        }
    }
    (nodes, values)
}

fn lower_node(
    graph: &Graph,
    id: NodeId,
    facts: &[Option<Fact>],
    caps: &Caps,
    float: DType,
    collected: &mut Collected,
) -> Result<()> {
    let Some(node) = graph.node(id) else { return Ok(()) };
    let precise = node.op.keeps_precision() && {
        let data: Vec<_> = node
            .inputs
            .iter()
            .flatten()
            .filter(|v| facts[v.index()].as_ref().is_some_and(|f| f.as_const().is_none()))
            .collect();
        let root = |v: &ValueId| {
            let mut v = *v;
            while let Some(next) = collected.alias.get(&v) {
                v = *next;
            }
            v
        };
        let float_inputs: Vec<_> = data
            .iter()
            .filter(|v| facts[v.index()].as_ref().is_some_and(|f| f.dtype.is_float()))
            .collect();
        // An integer made a float keeps its 24 bits: positions exceed what f16 counts.
        float_inputs.is_empty()
            || float_inputs
                .iter()
                .any(|v| collected.storage.get(&root(v)) == Some(&DType::F32))
    };
    for out in &node.outputs {
        let Some(fact) = &facts[out.index()] else { continue };
        let wide = precise || graph.outputs().contains(out);
        collected.storage.insert(
            *out,
            device_dtype(fact.dtype, if wide { DType::F32 } else { float }),
        );
    }
    let mut cx = LowerCx {
        graph,
        node,
        index: id.index(),
        facts,
        caps,
        float,
        out: collected,
    };
    node.op
        .lower(&mut cx)
        .map_err(|e| graph.node_error(Stage::Plan, node, e))
}

/// Turns collected calls into a plan.
struct Assembler<'a> {
    graph: &'a Graph,
    facts: &'a [Option<Fact>],
    caps: &'a Caps,
    options: &'a Options,
    collected: &'a Collected,
    needed: &'a [bool],
}

/// Lifetimes of everything that lies in the arena.
#[derive(Default)]
struct Lives {
    index: HashMap<Home, usize>,
    slots: Vec<Slot>,
}

impl Assembler<'_> {
    fn dim_error(e: &crate::shape::DimError) -> Error {
        Error::other(Stage::Plan, e.to_string())
    }

    fn bytes(&self, dtype: DType, count: &Dim) -> Result<u64> {
        let n = count
            .upper_bound(&self.options.bounds)
            .map_err(|e| Self::dim_error(&e))?;
        Ok(device_bytes(dtype, u64::try_from(n).unwrap_or(0)))
    }

    fn home_bytes(&self, home: Home, dtype: DType) -> Result<u64> {
        let count = match home {
            Home::Value(v) => match &self.facts[v.index()] {
                Some(f) => f.shape.count().map_err(|e| Self::dim_error(&e))?,
                None => Dim::from(0),
            },
            Home::Temp(t) => self.collected.temps[t].1.clone(),
            Home::Weight(_) | Home::State(_) => Dim::from(0),
        };
        self.bytes(dtype, &count)
    }

    fn root(&self, mut v: ValueId) -> ValueId {
        while let Some(next) = self.collected.alias.get(&v) {
            v = *next;
        }
        v
    }

    fn touch(&self, lives: &mut Lives, operand: Operand, step: usize) -> Result<()> {
        if !matches!(operand.home, Home::Value(_) | Home::Temp(_)) {
            return Ok(());
        }
        let bytes = self.home_bytes(operand.home, operand.dtype)?;
        let next = lives.slots.len();
        let i = *lives.index.entry(operand.home).or_insert(next);
        if i == next {
            lives.slots.push(Slot {
                first: step,
                last: step,
                bytes,
            });
        }
        lives.slots[i].last = lives.slots[i].last.max(step);
        Ok(())
    }

    /// An input that the output of `call` may overwrite: same size and type, an arena slot, read for the last time here.
    fn in_place(&self, lives: &Lives, call: &lower::Call, step: usize) -> Option<usize> {
        let out = call.kernel.args.iter().position(|a| a.role == Role::Out)?;
        let y = call.operands.get(out).copied().flatten()?;
        let y_slot = &lives.slots[*lives.index.get(&y.home)?];
        if !call.in_place || y_slot.first != step {
            return None;
        }
        call.operands.iter().enumerate().position(|(i, o)| {
            let Some(x) = o.filter(|_| i != out && call.kernel.args[i].ty == Ty::Elem) else {
                return false;
            };
            let Some(slot) = lives.index.get(&x.home) else {
                return false;
            };
            let slot = &lives.slots[*slot];
            let once = call
                .operands
                .iter()
                .flatten()
                .filter(|o| o.home == x.home)
                .count()
                == 1;
            once && slot.last == step && x.dtype == y.dtype && slot.bytes == y_slot.bytes
        })
    }

    fn assemble(&self) -> Result<Plan> {
        let calls = &self.collected.calls;
        let end = calls.len();
        let mut lives = Lives::default();
        let input_ports: Vec<ValueId> = self
            .graph
            .inputs()
            .iter()
            .copied()
            .filter(|v| self.needed[v.index()])
            .collect();
        for v in &input_ports {
            let dtype = self.collected.storage.get(v).copied().unwrap_or(DType::F32);
            self.touch(
                &mut lives,
                Operand {
                    home: Home::Value(*v),
                    dtype,
                },
                0,
            )?;
        }
        for (step, emitted) in calls.iter().enumerate() {
            for operand in emitted.call.operands.iter().flatten() {
                self.touch(&mut lives, *operand, step)?;
            }
        }
        for v in self.graph.outputs() {
            let root = self.root(*v);
            let dtype = self.collected.storage.get(&root).copied().unwrap_or(DType::F32);
            if !self
                .graph
                .states()
                .iter()
                .any(|s| s.input == root || s.output == root)
            {
                self.touch(
                    &mut lives,
                    Operand {
                        home: Home::Value(root),
                        dtype,
                    },
                    end,
                )?;
            }
        }
        // In-place results join the slot of the input that they overwrite.
        let mut joined: HashMap<Home, Home> = HashMap::new();
        let mut in_place = vec![None; calls.len()];
        for (step, emitted) in calls.iter().enumerate() {
            let Some(i) = self.in_place(&lives, &emitted.call, step) else {
                continue;
            };
            let out = emitted.call.kernel.args.iter().position(|a| a.role == Role::Out);
            let (Some(x), Some(y)) = (
                emitted.call.operands[i],
                out.and_then(|o| emitted.call.operands[o]),
            ) else {
                continue;
            };
            let mut home = x.home;
            while let Some(h) = joined.get(&home) {
                home = *h;
            }
            joined.insert(y.home, home);
            let (xi, yi) = (lives.index[&home], lives.index[&y.home]);
            lives.slots[xi].last = lives.slots[xi].last.max(lives.slots[yi].last);
            in_place[step] = Some(i);
        }
        let mut memory = MemoryReport {
            without_reuse: lives.slots.iter().map(|s| s.bytes).sum(),
            ..MemoryReport::default()
        };
        for home in joined.keys() {
            // Placed with its partner.
            lives.slots[lives.index[home]].bytes = 0;
        }
        memory.lower_bound = memory::lower_bound(&lives.slots);
        let (offsets, arena) = memory::place(&lives.slots, self.caps.view_align.max(4));
        memory.arena = arena.max(4);
        let place = |home: Home| -> Place {
            let mut root = home;
            while let Some(h) = joined.get(&root) {
                root = *h;
            }
            match root {
                Home::Weight(i) => Place::Weight(i),
                Home::State(i) => Place::State(i),
                _ => lives
                    .index
                    .get(&root)
                    .map_or(Place::Arena { offset: 0, len: 4 }, |i| Place::Arena {
                        offset: offsets[*i],
                        len: lives.slots[*i].bytes,
                    }),
            }
        };
        let mut plan = Plan {
            steps: Vec::with_capacity(calls.len()),
            kernels: Vec::new(),
            weights: self.collected.weights.clone(),
            states: self.states()?,
            inputs: Vec::new(),
            unread: self.unread(),
            outputs: Vec::new(),
            memory,
            conditions: self.conditions()?,
            bounds: self.options.bounds.clone(),
            exprs: Vec::new(),
            params_bytes: 0,
        };
        plan.memory.states = plan.states.iter().map(|s| s.bytes).sum();
        let mut expr_index: HashMap<Dim, usize> = HashMap::new();
        for (step, emitted) in calls.iter().enumerate() {
            self.step(&mut plan, &mut expr_index, emitted, in_place[step], &place)?;
        }
        for v in input_ports {
            plan.inputs.push(self.port(v, &place)?);
        }
        for v in self.graph.outputs() {
            plan.outputs.push(self.port(*v, &place)?);
        }
        Ok(plan)
    }

    fn port(&self, v: ValueId, place: &dyn Fn(Home) -> Place) -> Result<Port> {
        let fact = self.graph.fact(v)?;
        if fact.as_const().is_some() {
            let name = &self.graph.value(v).name;
            return Err(Error::other(
                Stage::Plan,
                format!("output \"{name}\" is a constant of the model; there is nothing to run for it"),
            ));
        }
        let root = self.root(v);
        let state = self
            .graph
            .states()
            .iter()
            .position(|s| s.input == root || s.output == root);
        Ok(Port {
            name: self.graph.value(v).name.clone(),
            dtype: fact.dtype,
            device: self.collected.storage.get(&root).copied().unwrap_or(DType::F32),
            shape: self.facts[v.index()]
                .as_ref()
                .map_or_else(Shape::default, |f| f.shape.clone()),
            place: state.map_or_else(|| place(Home::Value(root)), Place::State),
        })
    }

    fn unread(&self) -> Vec<String> {
        let unread = self.graph.inputs().iter().filter(|v| !self.needed[v.index()]);
        unread.map(|v| self.graph.value(*v).name.clone()).collect()
    }

    /// What the operators assumed, and that every state has room for its rows.
    fn conditions(&self) -> Result<Vec<(Dim, String)>> {
        let mut all = self.collected.conditions.clone();
        for s in self.graph.states() {
            let rows = self.facts[s.output.index()]
                .as_ref()
                .and_then(|f| f.shape.0.get(s.axis).cloned());
            if let Some(rows) = rows {
                let left = Dim::from(self.options.state_rows)
                    .sub(&rows)
                    .map_err(|e| Self::dim_error(&e))?;
                let condition = (left, "the rows exceed the room of the states".to_owned());
                if !all.contains(&condition) {
                    all.push(condition);
                }
            }
        }
        Ok(all)
    }

    fn states(&self) -> Result<Vec<StateSlot>> {
        let mut out = Vec::new();
        for s in self.graph.states() {
            let fact = self.facts[s.input.index()].as_ref();
            let shape = fact.map(|f| f.shape.0.clone()).unwrap_or_default();
            let mut row = Dim::from(1);
            for (i, d) in shape.iter().enumerate() {
                if i != s.axis {
                    row = row.mul(d).map_err(|e| Self::dim_error(&e))?;
                }
            }
            let count = row
                .mul(&self.options.state_rows.into())
                .map_err(|e| Self::dim_error(&e))?;
            out.push(StateSlot {
                name: self.graph.value(s.input).name.clone(),
                dtype: self.options.float,
                bytes: self.bytes(self.options.float, &count)?.next_multiple_of(4),
            });
        }
        Ok(out)
    }

    fn step(
        &self,
        plan: &mut Plan,
        expr_index: &mut HashMap<Dim, usize>,
        emitted: &lower::Emitted,
        in_place: Option<usize>,
        place: &dyn Fn(Home) -> Place,
    ) -> Result<()> {
        let call = &emitted.call;
        let mut expr = |exprs: &mut Vec<Dim>, d: &Dim| -> usize {
            *expr_index.entry(d.clone()).or_insert_with(|| {
                exprs.push(d.clone());
                exprs.len() - 1
            })
        };
        let spec = KernelSpec {
            kernel: call.kernel,
            workgroup: call.workgroup,
            defines: call.defines.clone(),
            operands: call.operands.iter().map(|o| o.map(|o| o.dtype)).collect(),
            in_place,
            snippet: call.snippet.clone(),
        };
        let args = spec
            .kernel
            .args
            .iter()
            .zip(&call.operands)
            .filter(|(a, _)| !(in_place.is_some() && a.role == Role::Out))
            .filter_map(|(_, o)| o.map(|o| place(o.home)))
            .collect();
        let start = plan.params_bytes;
        let align = u32::try_from(self.caps.params_align).unwrap_or(4).max(4);
        plan.params_bytes = (start + spec.params_bytes()).next_multiple_of(align);
        let node = self.graph.nodes[emitted.node].as_ref();
        let fields = call
            .kernel
            .params
            .fields
            .iter()
            .zip(&call.fields)
            .map(|((_, ty), f)| {
                (
                    *ty,
                    match f {
                        Field::Dim(d) => Value::Expr(expr(&mut plan.exprs, d)),
                        Field::F32(v) => Value::F32(*v),
                    },
                )
            })
            .collect();
        let [x, y, z] = &call.grid;
        let grid = [
            expr(&mut plan.exprs, x),
            expr(&mut plan.exprs, y),
            expr(&mut plan.exprs, z),
        ];
        let params = start..start + spec.params_bytes();
        let kernel = plan.kernels.iter().position(|k| *k == spec).unwrap_or_else(|| {
            plan.kernels.push(spec);
            plan.kernels.len() - 1
        });
        plan.steps.push(Step {
            kernel,
            args,
            params,
            nodes: node
                .map(|n| {
                    if n.origin.is_empty() {
                        vec![n.name.clone()]
                    } else {
                        n.origin.clone()
                    }
                })
                .unwrap_or_default(),
            grid,
            fields,
        });
        Ok(())
    }
}

/// The symbols of a graph's inputs and states.
pub fn symbols(graph: &Graph) -> Result<Vec<Symbol>> {
    let mut all = std::collections::BTreeSet::new();
    for v in graph
        .inputs()
        .iter()
        .copied()
        .chain(graph.states().iter().map(|s| s.input))
    {
        for d in &graph.fact(v)?.shape.0 {
            d.symbols(&mut all);
        }
    }
    Ok(all.into_iter().collect())
}
