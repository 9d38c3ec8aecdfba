//! What an operator uses to choose its kernels.

use super::{Condition, Options, views};
use crate::backend::Caps;
use crate::backend::kernel::epilogue::{Beside, Epilogue};
use crate::backend::kernel::image::{ImageKind, Pixel};
use crate::backend::kernel::wave::WAVE;
use crate::backend::kernel::{self, Arg, Kernel, Language, OperandOf, Signature, Ty, TypedKernel};
use crate::backend::tunable::Tuning;
use crate::graph::op::{Op, OpError, OpResult};
use crate::graph::{Graph, NodeId, ValueId};
use crate::shape::{Bindings, Constraints, Dim, Fact, Shape};
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::marker::PhantomData;

/// The packed form of a constant, or a part of it, that a kernel wants. The constant is seen as a
/// matrix with all axes but the last as rows. The items of a packed tensor are 4-byte words,
/// whatever its element type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pack {
    /// The whole tensor, row-major.
    Plain {
        /// Element type on the device.
        dtype: DType,
    },
    /// Slices `first .. first + count` along the first axis.
    Rows {
        /// Element type on the device.
        dtype: DType,
        /// First row.
        first: usize,
        /// Number of rows.
        count: usize,
    },
    /// Columns `first .. first + count`, zero-padded to `stride` and cut into panels of `panel`
    /// columns. The panels are contiguous, each row-major. With `panel == stride` the result is one
    /// row-major matrix.
    Columns {
        /// Element type on the device; [`DType::U32`] takes 4-byte items as they are.
        dtype: DType,
        /// Transpose the matrix first.
        transpose: bool,
        /// First column.
        first: usize,
        /// Number of columns.
        count: usize,
        /// Number of columns with padding, a multiple of `panel`.
        stride: usize,
        /// Columns of a panel.
        panel: usize,
    },
    /// The bytes without conversion, padded to a whole number of words.
    Bytes,
    /// Slices along the first axis in groups of `rows`, each group cut into tiles of `tile` slices
    /// and zero-padded to a whole number of tiles. Within a tile, the `tile` elements at the same
    /// position of the slices are adjacent. Selects the tiles `first .. first + count`, counted
    /// over all groups.
    Tiles {
        /// Element type on the device.
        dtype: DType,
        /// Slices in a group.
        rows: usize,
        /// Slices in a tile.
        tile: usize,
        /// First tile.
        first: usize,
        /// Number of tiles.
        count: usize,
    },
}

impl Pack {
    /// Element type on the device.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Bytes => DType::U32,
            Self::Plain { dtype }
            | Self::Rows { dtype, .. }
            | Self::Columns { dtype, .. }
            | Self::Tiles { dtype, .. } => *dtype,
        }
    }

    /// Bytes on the device of a constant with this shape and host type; `None` on overflow.
    pub fn bytes(&self, shape: &[usize], host: DType) -> Option<u64> {
        let count = |sizes: &[usize]| {
            sizes
                .iter()
                .try_fold(1u64, |n, d| n.checked_mul(u64::try_from(*d).ok()?))
        };
        let (last, before) = match shape.split_last() {
            Some((last, before)) => (u64::try_from(*last).ok()?, count(before)?),
            None => (1, 1),
        };
        let size = |dtype: DType| if dtype == DType::F16 { 2 } else { 4 };
        let bytes = match self {
            Self::Plain { dtype } => count(shape)?.checked_mul(size(*dtype))?,
            Self::Bytes => count(shape)?.checked_mul(u64::try_from(host.size()).ok()?)?,
            Self::Rows {
                dtype, count: rows, ..
            } => {
                let row = count(shape.get(1..)?)?;
                row.checked_mul(u64::try_from(*rows).ok()?)?
                    .checked_mul(size(*dtype))?
            }
            Self::Tiles {
                dtype,
                tile,
                count: tiles,
                ..
            } => count(&[*tiles, *tile])?
                .checked_mul(count(shape.get(1..)?)?)?
                .checked_mul(size(*dtype))?,
            Self::Columns {
                dtype: device,
                transpose,
                stride,
                ..
            } => {
                let rows = match (*device, *transpose) {
                    // The items of a packed tensor have 4 bytes, whatever its last axis says.
                    (DType::U32, _) => u64::try_from(*shape.first().unwrap_or(&1)).ok()?.max(1),
                    (_, true) => last,
                    (_, false) => before,
                };
                rows.checked_mul(u64::try_from(*stride).ok()?)?
                    .checked_mul(size(*device))?
            }
        };
        Some(bytes.checked_next_multiple_of(8)?.max(8))
    }
}

/// A packed constant. Equal keys share one device buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightKey {
    /// The constant, or several whose columns are placed side by side ([`Pack::Columns`] of 4-byte
    /// items).
    pub values: Vec<ValueId>,
    /// Its form.
    pub pack: Pack,
}

impl WeightKey {
    /// Bytes on the device; `None` if shapes are unknown, do not fit or overflow.
    pub fn bytes(&self, graph: &Graph) -> Option<u64> {
        let (first, more) = self.values.split_first()?;
        let fact = |v: &ValueId| graph.fact(*v).ok();
        let mut shape = fact(first)?.shape.as_fixed()?;
        for v in more {
            let columns = *fact(v)?.shape.as_fixed()?.get(1)?;
            let all = shape.get_mut(1)?;
            *all = all.checked_add(columns)?;
        }
        self.pack.bytes(&shape, fact(first)?.dtype)
    }

    /// Names of the constants.
    pub fn names<'g>(&self, graph: &'g Graph) -> Vec<&'g str> {
        let name = |v: &ValueId| graph.value(*v).name.as_str();
        self.values.iter().map(name).collect()
    }
}

/// Where an operand is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// An activation: a slot of the arena.
    Value(ValueId),
    /// Scratch memory of one node.
    Temp(usize),
    /// A packed constant, by index into the plan's weights.
    Weight(usize),
    /// A state, by index into the graph's states.
    State(usize),
    /// The plan's table of values that change at every step; see [`LowerCx::live`].
    Live,
    /// A tensor whose elements are known as expressions: a range of that table, by index.
    Known(usize),
    /// Words that are zero between dispatches; see [`LowerCx::counters`].
    Counters,
}

/// The position of something inside something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The container, which may itself be a part.
    pub of: Home,
    /// Byte offset from its start.
    pub offset: u64,
}

/// An operand of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Place.
    pub home: Home,
    /// Element type on the device.
    pub dtype: DType,
}

/// Several results in one range of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The whole range.
    pub operand: Operand,
    /// First element of each result.
    pub starts: Vec<u64>,
}

/// The value of a field in a kernel's parameter struct.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// An integer, evaluated at each bind.
    Dim(Dim),
    /// A constant float.
    F32(f32),
}

impl From<Dim> for Field {
    fn from(d: Dim) -> Self {
        Self::Dim(d)
    }
}

impl From<&Dim> for Field {
    fn from(d: &Dim) -> Self {
        Self::Dim(d.clone())
    }
}

impl From<f32> for Field {
    fn from(v: f32) -> Self {
        Self::F32(v)
    }
}

/// The arguments of a kernel: a structure that [`kernel!`](crate::kernel) declares, with a field
/// for each operand and parameter.
pub trait Arguments: Signature {
    /// The operands and the values of the parameters, each in the order of the declaration.
    fn into_parts(self) -> (Vec<Option<Operand>>, Vec<Field>);
}

/// A dispatch of a kernel with arguments `A`, under construction.
#[derive(Debug)]
pub struct Call<A> {
    dispatch: Dispatch,
    epilogue: Option<WithOperands>,
    /// Operands that the kernel reads only in vectors of four.
    vec4: Vec<usize>,
    args: PhantomData<fn(A)>,
}

/// A dispatch. Operands and fields of the epilogue come last.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub kernel: &'static Kernel,
    pub workgroup: u32,
    pub defines: BTreeMap<&'static str, i64>,
    pub operands: Vec<Option<Operand>>,
    pub grid: [Dim; 3],
    pub fields: Vec<Field>,
    pub epilogue: Option<Epilogue>,
    pub in_place: bool,
    pub padded: bool,
    pub tuning: Option<Tuning>,
    pub images: BTreeMap<usize, ImageKind>,
    pub vec4: BTreeSet<usize>,
}

impl Dispatch {
    /// The operands as the kernel declares them; those of the epilogue come last.
    pub fn args(&self) -> impl Iterator<Item = &'static Arg> + '_ {
        kernel::args(self.kernel, self.epilogue.as_ref())
    }

    /// Whether the output may alias operand `i`: each element is read by the same work-item before
    /// it is written.
    pub fn reads_what_it_writes(&self, i: usize) -> bool {
        match i.checked_sub(self.kernel.args.len()) {
            None => self.in_place,
            Some(further) => self
                .epilogue
                .as_ref()
                .and_then(|e| e.operands.get(further))
                .is_some_and(|o| o.beside == Beside::Same),
        }
    }
}

impl<A> Call<A> {
    /// A dispatch of `kernel` in work-groups of `workgroup` work-items, by default over one
    /// work-group.
    pub fn new(kernel: &'static TypedKernel<A>, workgroup: u32) -> Self {
        let dispatch = Dispatch {
            kernel,
            workgroup,
            defines: BTreeMap::new(),
            operands: Vec::new(),
            grid: [1.into(), 1.into(), 1.into()],
            fields: Vec::new(),
            epilogue: None,
            in_place: false,
            padded: false,
            tuning: None,
            images: BTreeMap::new(),
            vec4: BTreeSet::new(),
        };
        Self {
            dispatch,
            epilogue: None,
            vec4: Vec::new(),
            args: PhantomData,
        }
    }

    /// Sets the number of work-items of a work-group.
    #[must_use]
    pub fn workgroup(mut self, items: u32) -> Self {
        self.dispatch.workgroup = items;
        self
    }

    /// Sets the tuning that determined how the dispatch is cut. Measurement may choose another one.
    /// Also requests the subgroup width in it.
    #[must_use]
    pub fn tuned_by(mut self, tuning: Tuning) -> Self {
        if let Some(wave) = tuning.tunable.wave(&tuning.choice) {
            self.dispatch.defines.insert(WAVE, i64::from(wave.number()));
        }
        self.dispatch.tuning = Some(tuning);
        self
    }

    /// Sets a numeric constant of the kernel's source.
    #[must_use]
    pub fn define(mut self, name: &'static str, value: i64) -> Self {
        self.dispatch.defines.insert(name, value);
        self
    }

    /// Whether a constant of the kernel's source is set.
    pub fn is_defined(&self, name: &str) -> bool {
        self.dispatch.defines.contains_key(name)
    }

    /// Sets the number of work-groups on each axis.
    #[must_use]
    pub fn grid(mut self, x: impl Into<Dim>, y: impl Into<Dim>, z: impl Into<Dim>) -> Self {
        self.dispatch.grid = [x.into(), y.into(), z.into()];
        self
    }

    /// Sets what is applied to each result before it is stored.
    #[must_use]
    pub fn epilogue(mut self, with: WithOperands) -> Self {
        self.epilogue = Some(with);
        self
    }

    /// Declares that the kernel reads element `i` of its inputs only to compute element `i` of its
    /// output, so that the output may overwrite an input that is not read later.
    #[must_use]
    pub fn may_work_in_place(mut self) -> Self {
        self.dispatch.in_place = true;
        self
    }

    /// Declares that the kernel reads an operand only in aligned vectors of four (`x_at4`). It can
    /// then be read through an image if plans use images ([`crate::backend::kernel::image`]), or in
    /// WGSL from a buffer of vectors if that is faster ([`Caps::lane_vectors`]).
    #[must_use]
    pub fn reads_vec4(mut self, operand: OperandOf<A>) -> Self {
        self.vec4.push(operand.index);
        self
    }

    /// Declares that the dispatch stays correct if a length in its sizes is padded: elements after
    /// the live ones of its operands affect only elements after the live ones of its results. A
    /// plan pads a length only if every dispatch that depends on it declares this.
    #[must_use]
    pub fn may_be_padded(mut self) -> Self {
        self.dispatch.padded = true;
        self
    }
}

/// An epilogue with its operands and the values of its parameters.
#[derive(Clone, Debug)]
pub struct WithOperands {
    /// The function and the layouts of its operands.
    pub epilogue: Epilogue,
    /// The operands.
    pub operands: Vec<Operand>,
    /// Values of [`Epilogue::fields`].
    pub fields: Vec<Field>,
}

/// An emitted dispatch with the node that it belongs to.
#[derive(Debug)]
pub(super) struct Emitted {
    pub call: Dispatch,
    pub node: NodeId,
}

/// What lowering collects over all nodes.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Element type of each value on the device, set when its producer is lowered.
    pub storage: HashMap<ValueId, DType>,
    /// Values that are only other names for the bytes of earlier ones.
    pub alias: HashMap<ValueId, ValueId>,
    /// Values that are stored inside others.
    pub parts: HashMap<Home, Part>,
    pub calls: Vec<Emitted>,
    pub weights: Vec<WeightKey>,
    pub temps: Vec<(DType, Dim)>,
    /// What operators assume about the symbols.
    pub conditions: Vec<Condition>,
    /// The table of [`LowerCx::live`].
    pub live: Vec<Dim>,
    /// Tensors known as expressions that kernels read, with their elements.
    pub known: Vec<(ValueId, Vec<Dim>)>,
    /// Maximum number of words that a dispatch counts in.
    pub counters: u64,
}

/// Memory layout of the table of live values: numbers that kernels read by position, then whole
/// tensors.
#[derive(Debug, Default)]
pub(super) struct LiveTable {
    /// Positions of 32-bit integers, and their expressions.
    pub values: Vec<(usize, Dim)>,
    /// First byte and length of each tensor of [`Collected::known`].
    pub known: Vec<(u64, u64)>,
}

impl Collected {
    pub fn root(&self, mut id: ValueId) -> ValueId {
        while let Some(next) = self.alias.get(&id) {
            id = *next;
        }
        id
    }

    /// Lays out the table; tensors begin at multiples of `align`, where a view can begin.
    pub fn live_table(&self, align: u64) -> LiveTable {
        let align = usize::try_from(align.div_ceil(4)).unwrap_or(usize::MAX).max(2);
        let mut table = LiveTable {
            values: self.live.iter().cloned().enumerate().collect(),
            known: Vec::with_capacity(self.known.len()),
        };
        let mut end = self.live.len();
        for (_, elements) in &self.known {
            let first = end.next_multiple_of(align);
            end = first + elements.len().next_multiple_of(2).max(2);
            table.values.extend((first..).zip(elements.iter().cloned()));
            table.known.push((first as u64 * 4, (end - first) as u64 * 4));
        }
        table
    }
}

/// What lowering sees of one node.
#[derive(Debug)]
pub struct LowerCx<'a> {
    pub(super) graph: &'a Graph,
    /// Name of the node.
    pub(super) name: &'a str,
    /// Its operands and results.
    pub(super) inputs: &'a [Option<ValueId>],
    pub(super) outputs: &'a [ValueId],
    pub(super) id: NodeId,
    /// What is applied to result 0 before it is stored.
    pub(super) epilogue: Option<&'a WithOperands>,
    pub(super) facts: &'a [Option<Fact>],
    /// The largest values of symbols.
    pub(super) limits: &'a Bindings,
    pub(super) caps: &'a Caps,
    pub(super) options: &'a Options,
    pub(super) out: &'a mut Collected,
}

impl LowerCx<'_> {
    /// Number of operands, including omitted ones.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Number of results.
    pub fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// Name of the node.
    pub fn name(&self) -> &str {
        self.name
    }

    /// The device.
    pub fn caps(&self) -> &Caps {
        self.caps
    }

    /// The largest value of `dim` in any run, if the plan bounds its symbols.
    pub fn upper_bound(&self, dim: &Dim) -> Option<i64> {
        dim.upper_bound(self.limits).ok()
    }

    /// The known constraints on the symbols.
    pub fn constraints(&self) -> &Constraints {
        self.graph.constraints()
    }

    /// The plan's storage type of floats.
    pub fn float(&self) -> DType {
        self.options.float
    }

    fn input_id(&self, i: usize) -> OpResult<ValueId> {
        self.inputs
            .get(i)
            .copied()
            .flatten()
            .ok_or_else(|| OpError::expected(format!("input {i}"), "a value", "nothing"))
    }

    fn output_id(&self, i: usize) -> OpResult<ValueId> {
        self.outputs
            .get(i)
            .copied()
            .ok_or_else(|| OpError::expected(format!("output {i}"), "a value", "nothing"))
    }

    fn fact_of(&self, id: ValueId) -> OpResult<&Fact> {
        self.facts
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

    fn root(&self, id: ValueId) -> ValueId {
        self.out.root(id)
    }

    /// The capacity in rows of the state behind operand `i` if it is a ring buffer; row `n` is then
    /// stored at `n` modulo the capacity.
    pub fn ring(&self, i: usize) -> OpResult<Option<i64>> {
        let root = self.root(self.input_id(i)?);
        let mut states = self.graph.states().iter();
        let state = states.find(|s| s.input == root || s.output == root);
        let rows = state.map(|s| self.options.rows(s));
        Ok(rows.filter(|n| *n < self.options.state_rows))
    }

    /// Where a kernel reads the value.
    fn resolve(&mut self, id: ValueId) -> OpResult<Operand> {
        let root = self.root(id);
        let fact = self.fact_of(root)?;
        if let (Some(elements), None, Some(_)) = (fact.as_dims(), fact.as_const(), self.graph.producer(root))
        {
            let at = self.out.known.iter().position(|(v, _)| *v == root);
            let at = at.unwrap_or_else(|| {
                self.out.known.push((root, elements));
                self.out.known.len() - 1
            });
            return Ok(Operand {
                home: Home::Known(at),
                dtype: DType::I32,
            });
        }
        self.stored(root)
    }

    /// Where a kernel writes the value, or reads what a kernel or the caller wrote.
    fn stored(&mut self, root: ValueId) -> OpResult<Operand> {
        if let Some(i) = self
            .graph
            .states()
            .iter()
            .position(|s| s.input == root || s.output == root)
        {
            let dtype = crate::graph::op::device_dtype(self.fact_of(root)?.dtype, self.options.float);
            return Ok(Operand {
                home: Home::State(i),
                dtype,
            });
        }
        let fact = self.fact_of(root)?;
        if fact.as_const().is_some() {
            let dtype = crate::graph::op::device_dtype(fact.dtype, DType::F32);
            return Ok(self.packed(vec![root], Pack::Plain { dtype }, dtype));
        }
        let dtype =
            self.out.storage.get(&root).copied().ok_or_else(|| {
                OpError::Unsupported("a value that is known only as expressions".to_owned())
            })?;
        Ok(Operand {
            home: Home::Value(root),
            dtype,
        })
    }

    fn packed(&mut self, values: Vec<ValueId>, pack: Pack, dtype: DType) -> Operand {
        let key = WeightKey { values, pack };
        let i = self
            .out
            .weights
            .iter()
            .position(|w| *w == key)
            .unwrap_or_else(|| {
                self.out.weights.push(key);
                self.out.weights.len() - 1
            });
        Operand {
            home: Home::Weight(i),
            dtype,
        }
    }

    /// Operand `i` as stored in memory. Constants are uploaded whole, floats in `f32`. Values known
    /// as expressions are a range of the table of live values, exact at every step.
    pub fn input(&mut self, i: usize) -> OpResult<Operand> {
        let id = self.input_id(i)?;
        self.resolve(id)
    }

    /// Result `i`.
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

    /// Constant operands in packed form with their columns side by side; see [`WeightKey::values`].
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

    /// Splits `count` items, each of `elements` elements of `size` bytes, into ranges (first,
    /// count) that a kernel can bind and index. Each range but the last is a multiple of `unit`
    /// items.
    pub fn split(
        &self,
        count: usize,
        (elements, size): (usize, usize),
        unit: usize,
    ) -> OpResult<Vec<(usize, usize)>> {
        views::split(self.caps, count, (elements, size), unit)
    }

    /// Scratch memory of this node.
    pub fn temp(&mut self, dtype: DType, count: Dim) -> Operand {
        self.out.temps.push((dtype, count));
        Operand {
            home: Home::Temp(self.out.temps.len() - 1),
            dtype,
        }
    }

    /// Requires that `dim` is not negative in any run. Binding refuses a run that violates this,
    /// with `meaning` and the node's name.
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

    /// Requires that a kernel can count the `count` elements of an operand or result; `what` names
    /// it in errors.
    pub fn countable(&mut self, what: &str, count: &Dim) -> OpResult<()> {
        let most = i64::from(views::MOST_ELEMENTS);
        if self.upper_bound(count).is_some_and(|n| n <= most) {
            return Ok(());
        }
        let room = Dim::from(most).sub(count)?;
        self.require(
            room,
            &format!("kernels count the elements of the {what} in 32 bits"),
        );
        Ok(())
    }

    /// An integer that the kernel reads from a small buffer, exact at every step, and its position
    /// there. For values such as a write position or the live length, which change with every token
    /// while padded sizes do not.
    pub fn live(&mut self, dim: &Dim) -> (Operand, Dim) {
        let at = self.out.live.iter().position(|d| d == dim).unwrap_or_else(|| {
            self.out.live.push(dim.clone());
            self.out.live.len() - 1
        });
        let operand = Operand {
            home: Home::Live,
            dtype: DType::I32,
        };
        (operand, Dim::from_usize(at))
    }

    /// Words that are zero when the dispatch begins and that it must leave at zero, so that
    /// work-groups can determine which of them finishes last. All dispatches share them, since they
    /// run one after another.
    pub fn counters(&mut self, count: u64) -> Operand {
        self.out.counters = self.out.counters.max(count);
        Operand {
            home: Home::Counters,
            dtype: DType::U32,
        }
    }

    /// Byte offset of element `start` in a tensor of `dtype` on the device, if it is constant and a
    /// view can begin there.
    fn view_offset(&self, dtype: DType, start: &Dim) -> Option<u64> {
        let size = if dtype == DType::F16 { 2 } else { 4 };
        let bytes = u64::try_from(start.as_const()?).ok()?.checked_mul(size)?;
        bytes.is_multiple_of(self.caps.view_align.max(8)).then_some(bytes)
    }

    /// Whether a view can begin at element `start` of result `o` in all runs.
    pub fn is_view_start(&mut self, o: usize, start: &Dim) -> OpResult<bool> {
        let to = self.output(o)?;
        Ok(matches!(to.home, Home::Value(_)) && self.view_offset(to.dtype, start).is_some())
    }

    /// Declares that result `o` consists of the contiguous elements of operand `i` from `start` on.
    /// Returns `false` without effect if a view cannot begin there; then the elements must be
    /// copied.
    pub fn view(&mut self, o: usize, i: usize, start: &Dim) -> OpResult<bool> {
        let (out, input) = (self.output_id(o)?, self.input_id(i)?);
        let from = self.resolve(input)?;
        if !matches!(from.home, Home::Value(_)) {
            return Ok(false);
        }
        let Some(offset) = self.view_offset(from.dtype, start) else {
            return Ok(false);
        };
        if self.graph.outputs().contains(&out) && self.out.storage.get(&out) != Some(&from.dtype) {
            return Ok(false);
        }
        let of = from.home;
        self.out.parts.insert(Home::Value(out), Part { of, offset });
        self.out.storage.insert(out, from.dtype);
        Ok(true)
    }

    /// Requests that operand `i` be written directly to the elements of result `o` from `start` on.
    /// Returns `false` if that is not possible; then the elements must be copied. Nothing emitted
    /// later may read operand `i` at another place.
    pub fn join(&mut self, i: usize, o: usize, start: &Dim) -> OpResult<bool> {
        let (out, input) = (self.output_id(o)?, self.input_id(i)?);
        let to = self.stored(self.root(out))?;
        let from = self.resolve(input)?;
        let (Home::Value(_), Home::Value(root)) = (to.home, from.home) else {
            return Ok(false);
        };
        let Some(offset) = self.view_offset(to.dtype, start) else {
            return Ok(false);
        };
        let given = self.graph.inputs().contains(&root) || self.graph.outputs().contains(&root);
        if given || from.dtype != to.dtype || self.out.parts.contains_key(&from.home) {
            return Ok(false);
        }
        let of = to.home;
        self.out.parts.insert(from.home, Part { of, offset });
        Ok(true)
    }

    /// The `count` elements of result `o` from `start` on, as an operand to write. `None` if a view
    /// cannot begin there.
    pub fn window(&mut self, o: usize, start: &Dim, count: Dim) -> OpResult<Option<Operand>> {
        let to = self.output(o)?;
        let (Home::Value(_), Some(offset)) = (to.home, self.view_offset(to.dtype, start)) else {
            return Ok(None);
        };
        let window = self.temp(to.dtype, count);
        self.out.parts.insert(window.home, Part { of: to.home, offset });
        Ok(Some(window))
    }

    /// Scratch memory that holds all results one after another, each with room for its number of
    /// elements and aligned for a view. The inner error is the reason, without effect, if they
    /// cannot share one range that a kernel can bind.
    pub fn block(&mut self, room: &[u64]) -> OpResult<Result<Block, String>> {
        let mut homes = Vec::with_capacity(room.len());
        let mut stored = None;
        for o in 0..self.output_count() {
            let out = self.output(o)?;
            if !matches!(out.home, Home::Value(_)) {
                return Ok(Err(format!("result {o} is already placed")));
            }
            if *stored.get_or_insert(out.dtype) != out.dtype {
                return Ok(Err("the results have different storage types".to_owned()));
            }
            homes.push(out.home);
        }
        let (Some(dtype), true) = (stored, homes.len() == room.len()) else {
            return Err(OpError::expected("results", room.len(), homes.len()));
        };
        let size = if dtype == DType::F16 { 2 } else { 4 };
        let align = self.caps.view_align.max(8);
        let mut starts = Vec::with_capacity(room.len());
        let end = room.iter().try_fold(0u64, |end, count| {
            let start = end.checked_next_multiple_of(align)?;
            starts.push(start / size);
            start.checked_add(count.checked_mul(size)?)
        });
        let most = views::largest(self.caps, size);
        let end = end.and_then(|n| n.checked_next_multiple_of(8));
        let Some(bytes) = end.filter(|n| *n <= most) else {
            let bytes = end.map_or_else(|| "too many bytes".to_owned(), |n| format!("{n} bytes"));
            return Ok(Err(format!("the results take {bytes}, a kernel can bind {most}")));
        };
        let operand = self.temp(dtype, i64::try_from(bytes / size).unwrap_or(i64::MAX).into());
        for (home, start) in homes.into_iter().zip(&starts) {
            let (of, offset) = (operand.home, start * size);
            self.out.parts.insert(home, Part { of, offset });
        }
        Ok(Ok(Block { operand, starts }))
    }

    /// The same context with other operands, results and epilogue.
    fn with<'s>(
        &'s mut self,
        inputs: &'s [Option<ValueId>],
        outputs: &'s [ValueId],
        epilogue: Option<&'s WithOperands>,
    ) -> LowerCx<'s> {
        LowerCx {
            graph: self.graph,
            name: self.name,
            inputs,
            outputs,
            id: self.id,
            epilogue,
            facts: self.facts,
            limits: self.limits,
            caps: self.caps,
            options: self.options,
            out: self.out,
        }
    }

    /// Lowers `op` over these operands of the node, with result `o` as its only result.
    pub fn part(&mut self, op: &dyn Op, operands: &[usize], o: usize) -> OpResult<()> {
        let inputs: Vec<Option<ValueId>> = operands
            .iter()
            .map(|i| self.input_id(*i).map(Some))
            .collect::<OpResult<_>>()?;
        let output = self.output_id(o)?;
        op.lower(&mut self.with(&inputs, &[output], None))
    }

    /// Declares that result `o` is the bytes of operand `i` with another shape. No dispatch is
    /// emitted.
    pub fn alias(&mut self, o: usize, i: usize) -> OpResult<()> {
        let (out, input) = (self.output_id(o)?, self.input_id(i)?);
        let root = self.root(input);
        self.out.alias.insert(out, root);
        self.out.storage.remove(&out);
        Ok(())
    }

    /// Lowers `op` over the first `inputs` operands of the node and applies `epilogue` to its
    /// result. `op` must [support that](Op::takes_epilogue).
    pub fn with_epilogue(&mut self, op: &dyn Op, inputs: usize, epilogue: &WithOperands) -> OpResult<()> {
        let operands = self.inputs.get(..inputs).unwrap_or(self.inputs);
        self.storing(epilogue, op.name(), |cx| {
            let (outputs, epilogue) = (cx.outputs, cx.epilogue);
            op.lower(&mut cx.with(operands, outputs, epilogue))
        })
    }

    /// Runs `emit` for the operator `name` and applies `epilogue` to result 0 of the node.
    pub fn storing(
        &mut self,
        epilogue: &WithOperands,
        name: &str,
        emit: impl FnOnce(&mut LowerCx<'_>) -> OpResult<()>,
    ) -> OpResult<()> {
        if self.epilogue.is_some() {
            return Err(OpError::Unsupported("nested epilogues".to_owned()));
        }
        let result = self.output(0)?;
        let before = self.out.calls.len();
        emit(&mut self.with(self.inputs, self.outputs, Some(epilogue)))?;
        let mut emitted = self.out.calls.iter().skip(before);
        let applied = |e: &Emitted| e.call.epilogue.is_some() && e.call.operands.contains(&Some(result));
        if emitted.any(applied) {
            return Ok(());
        }
        Err(OpError::Unsupported(format!(
            "an epilogue of {name}, which does not store the result"
        )))
    }

    /// Maximum number of bytes of an operand in any run, if known.
    fn most_bytes(&self, operand: Operand) -> Option<u64> {
        let count = match operand.home {
            Home::Value(v) => self.fact_of(v).ok()?.shape.count().ok()?,
            Home::Temp(i) => self.out.temps.get(i)?.1.clone(),
            Home::Weight(i) => return self.out.weights.get(i)?.bytes(self.graph),
            Home::State(_) | Home::Live | Home::Known(_) | Home::Counters => return None,
        };
        let count = u64::try_from(self.upper_bound(&count)?).ok()?;
        count.checked_mul(if operand.dtype == DType::F16 { 2 } else { 4 })
    }

    /// The images through which the operands of a call are read.
    fn images(&self, call: &Dispatch, vec4: &[usize]) -> BTreeMap<usize, ImageKind> {
        let images = &self.caps.images;
        let Some(kind) = self.caps.images_of(call.kernel) else {
            return BTreeMap::new();
        };
        let fits = |i: &usize| {
            let (arg, operand) = (call.kernel.args.get(*i)?, (*call.operands.get(*i)?)?);
            let pixel = Pixel::of(arg.ty, operand.dtype)?;
            let bytes = self.most_bytes(operand)?.checked_next_multiple_of(8)?;
            images.shape(kind, pixel, bytes).map(|_| *i)
        };
        let found = vec4.iter().filter_map(|i| {
            let fitting = fits(i);
            if fitting.is_none() {
                log::debug!(
                    "\"{}\": operand {i} of kernel {} is read from its buffer: it does not fit {kind}",
                    self.name,
                    call.kernel.name
                );
            }
            fitting
        });
        found.map(|i| (i, kind)).collect()
    }

    /// The operands of a call that are bound as vectors of four elements.
    fn vec4(&self, call: &Dispatch, vec4: &[usize]) -> BTreeSet<usize> {
        let given = |i: usize| call.operands.get(i).is_some_and(Option::is_some);
        let elements = |i: &&usize| given(**i) && call.kernel.args.get(**i).is_some_and(|a| a.ty == Ty::Elem);
        let wanted = if self.caps.lane_vectors() { vec4 } else { &[] };
        wanted.iter().filter(elements).copied().collect()
    }

    /// Emits a dispatch with these arguments.
    pub fn emit<A: Arguments>(&mut self, call: Call<A>, args: A) -> OpResult<()> {
        let mut dispatch = call.dispatch;
        (dispatch.operands, dispatch.fields) = args.into_parts();
        self.emit_dispatch(dispatch, call.epilogue, &call.vec4)
    }

    fn emit_dispatch(
        &mut self,
        mut call: Dispatch,
        mut epilogue: Option<WithOperands>,
        vec4: &[usize],
    ) -> OpResult<()> {
        let k = call.kernel;
        let language = Language::of(self.caps);
        if k.sources.of(language).is_none() {
            return Err(OpError::NoKernel(format!(
                "kernel {} has no source in {language}",
                k.name
            )));
        }
        if let Some(with) = self.epilogue {
            let result = self.output(0)?;
            let stores = |(arg, o): (&Arg, &Option<Operand>)| arg.role.writes() && *o == Some(result);
            if k.args.iter().zip(&call.operands).any(stores) {
                if epilogue.is_some() {
                    return Err(OpError::Unsupported("nested epilogues".to_owned()));
                }
                let mut with = with.clone();
                // If a kernel binds weights read-only, all operands in their buffer must be bound
                // that way.
                let weights = k.args.iter().any(|a| a.role.is_weight());
                for (further, operand) in with.epilogue.operands.iter_mut().zip(&with.operands) {
                    further.weight = weights && matches!(operand.home, Home::Weight(_));
                }
                epilogue = Some(with);
            }
        }
        if let Some(with) = epilogue {
            call.operands.extend(with.operands.into_iter().map(Some));
            call.fields.extend(with.fields);
            call.epilogue = Some(with.epilogue);
        }
        let most = i64::from(self.caps.max_grid);
        let [x, y, z] = &call.grid;
        // If an axis can hold nearly every grid, an axis without a bound is not worth the extra
        // arithmetic.
        let too_long = x.upper_bound(self.limits).map_or(most < 1 << 19, |n| n > most);
        if k.is_linear && y.is(1) && z.is(1) && too_long {
            call.grid = [x.minimum(&most.into())?, x.ceil_div(most)?, 1.into()];
            call.defines.insert(kernel::FOLDED, 1);
        }
        call.images = self.images(&call, vec4);
        call.vec4 = self.vec4(&call, vec4);
        self.out.calls.push(Emitted { call, node: self.id });
        Ok(())
    }
}
