//! Builds operators of the integer domain.

use super::find::{Form, Pooling, Product, Site};
use super::values::{Quantized, Result8, known};
use super::{Refusal, moves, refuse};
use crate::graph::op::int8::{self, padded};
use crate::graph::op::int8_binary::Int8Binary;
use crate::graph::op::int8_conv::{Int8Conv, Kind};
use crate::graph::op::int8_layout::{Int8Enter, Int8Leave};
use crate::graph::op::int8_matmul::Int8MatMul;
use crate::graph::op::int8_pool::Int8Pool;
use crate::graph::op::int8_quantize::{Int8Dequantize, Int8Quantize, thresholds};
use crate::graph::op::int8_softmax::Int8Softmax;
use crate::graph::op::int8_table::Int8Table;
use crate::graph::op::quantize_linear::{DequantizeLinear, QuantizeLinear};
use crate::graph::op::reshape::Reshape;
use crate::graph::pass::pattern::input;
use crate::graph::{Edit, NodeId, Op, OpError, ValueId};
use crate::num;
use crate::quant::fixed::{Arithmetic, Factor, Output};
use crate::shape::Dim;
use crate::tensor::{DType, HostTensor};
use std::collections::HashMap;
use std::sync::Arc;

type Built<T> = Result<T, OpError>;

/// Weights as operators of the integer domain store them.
struct Packed {
    kind: Kind,
    shape: Vec<usize>,
    data: Vec<i8>,
    bias: Vec<i64>,
    factors: Vec<Factor>,
}

/// Checks that sums fit 32 bits and factors exist.
pub(super) fn check_product(p: &Product, to: &Result8, arithmetic: Arithmetic) -> Result<(), Refusal> {
    pack(p, to, arithmetic).map(|_| ())
}

/// Number of groups.
fn groups(p: &Product) -> usize {
    match &p.form {
        Form::Matmul { .. } => 1,
        Form::Conv { group, .. } => *group,
    }
}

/// Rows of weights in the order output channel, tap, input channel of a group.
struct Rows {
    outputs: usize,
    taps: usize,
    depth: usize,
    data: Vec<i8>,
}

impl Rows {
    fn new(p: &Product) -> Result<Self, Refusal> {
        let (shape, w) = (&p.weights.shape, &p.weights.data);
        let (outputs, taps, depth, transposed) = match (&p.form, shape.as_slice()) {
            (Form::Matmul { transposed }, [a, b]) if *transposed => (*a, 1, *b, true),
            (Form::Matmul { .. }, [a, b]) => (*b, 1, *a, false),
            (Form::Conv { .. }, [m, c, kernel @ ..]) => (*m, kernel.iter().product(), *c, true),
            _ => return Err(refuse("weights with too few axes")),
        };
        let mut data = Vec::with_capacity(w.len());
        for o in 0..outputs {
            for t in 0..taps {
                for c in 0..depth {
                    let at = if transposed {
                        (o * depth + c) * taps + t
                    } else {
                        c * outputs + o
                    };
                    data.push(w.get(at).copied().unwrap_or(0));
                }
            }
        }
        Ok(Self {
            outputs,
            taps,
            depth,
            data,
        })
    }

    fn row(&self, o: usize) -> &[i8] {
        let n = self.taps * self.depth;
        self.data.get(o * n..(o + 1) * n).unwrap_or_default()
    }
}

/// The weights, biases and factors of a product. Padding channels get 0.
fn pack(p: &Product, to: &Result8, arithmetic: Arithmetic) -> Result<Packed, Refusal> {
    let rows = Rows::new(p)?;
    let group = groups(p);
    let whole = |n: usize| n.next_multiple_of(int8::WORD);
    let stored = whole(rows.outputs);
    let (mut bias, mut factors) = (Vec::with_capacity(stored), Vec::with_capacity(stored));
    for o in 0..rows.outputs {
        let scale = p.weights.scale(o);
        let sum: i64 = rows.row(o).iter().map(|w| i64::from(*w)).sum();
        let most: i64 = rows.row(o).iter().map(|w| i64::from(w.unsigned_abs())).sum();
        let own = p.bias.integer(o, f64::from(p.x.map.scale) * f64::from(scale));
        let folded = own - i64::from(p.x.map.zero) * sum;
        // What kernels add up on the way is also within these bounds.
        if folded.abs() + 256 * most > i64::from(i32::MAX) {
            return Err(refuse("sums that may exceed 32 bits"));
        }
        bias.push(folded);
        let factor = Factor::of_scales(arithmetic, p.x.map.scale, scale, to.to.map.scale);
        factors.push(factor.ok_or_else(|| refuse("a scale that is too small for its product"))?);
    }
    let none = Factor::of_scales(arithmetic, 0.0, 1.0, 1.0);
    bias.resize(stored, 0);
    factors.resize(stored, none.ok_or_else(|| refuse("a factor of 0"))?);
    let (kind, shape, data) = stored_weights(p, &rows, group)?;
    Ok(Packed {
        kind,
        shape,
        data,
        bias,
        factors,
    })
}

/// The weights in the form that suits their groups.
fn stored_weights(p: &Product, rows: &Rows, group: usize) -> Result<(Kind, Vec<usize>, Vec<i8>), Refusal> {
    let whole = |n: usize| n.next_multiple_of(int8::WORD);
    let outputs = whole(rows.outputs);
    let Form::Conv { window, .. } = &p.form else {
        let depth = whole(rows.depth);
        let mut data = vec![0; outputs * depth];
        for (to, o) in data.chunks_mut(depth.max(1)).zip(0..rows.outputs) {
            to.iter_mut().zip(rows.row(o)).for_each(|(to, w)| *to = *w);
        }
        return Ok((Kind::Matmul, vec![outputs, depth], data));
    };
    let (window, kernel) = (window.clone(), p.weights.shape.get(2..).unwrap_or_default());
    let per_group = rows.outputs / group.max(1);
    if group > 1 && rows.depth == 1 && per_group == 1 {
        let mut data = vec![0; rows.taps * outputs];
        for o in 0..rows.outputs {
            for (t, w) in rows.row(o).iter().enumerate() {
                data[t * outputs + o] = *w;
            }
        }
        let mut shape = kernel.to_vec();
        shape.push(outputs);
        return Ok((Kind::Depthwise { window }, shape, data));
    }
    // Groups of other sizes are parts of one group, with weights of 0 for the channels of others.
    let grouped = group > 1 && rows.depth.is_multiple_of(int8::WORD) && per_group.is_multiple_of(int8::WORD);
    let depth = whole(if grouped { rows.depth } else { rows.depth * group });
    if rows.taps * depth * outputs > 1 << 28 {
        return Err(refuse("weights of groups that do not fit words"));
    }
    let mut data = vec![0; outputs * rows.taps * depth];
    for o in 0..rows.outputs {
        let first = if grouped {
            0
        } else {
            o / per_group.max(1) * rows.depth
        };
        for (t, part) in rows.row(o).chunks(rows.depth.max(1)).enumerate() {
            let at = (o * rows.taps + t) * depth + first;
            data[at..at + part.len()].copy_from_slice(part);
        }
    }
    let mut shape = vec![outputs];
    shape.extend(kernel);
    shape.push(depth);
    let group = if grouped { num::signed(group) } else { 1 };
    Ok((Kind::Conv { window, group }, shape, data))
}

/// A value of the integer domain and the axis that it stores last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub value: ValueId,
    pub axis: usize,
}

/// What the pass has built.
pub(super) struct Domain {
    arithmetic: Arithmetic,
    /// For each quantized value: its forms in the integer domain.
    stored: HashMap<ValueId, Vec<Stored>>,
    /// For each quantized value: the same integers, computed without floats.
    plain: HashMap<ValueId, ValueId>,
    /// Results of replaced nodes.
    results: Vec<Quantized>,
}

/// A node to add.
pub(super) struct New<'a> {
    pub name: &'a str,
    pub origin: Vec<String>,
}

impl Domain {
    pub fn new(arithmetic: Arithmetic) -> Self {
        Self {
            arithmetic,
            stored: HashMap::new(),
            plain: HashMap::new(),
            results: Vec::new(),
        }
    }

    /// Adds a node with one result.
    pub fn add(edit: &mut Edit<'_>, new: &New<'_>, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
        let value = edit.add_value(&format!("{}/int8", new.name), None);
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        edit.add_node(new.name, new.origin.clone(), Box::new(op), inputs, vec![value]);
        value
    }

    fn constant(edit: &mut Edit<'_>, name: &str, t: HostTensor) -> ValueId {
        edit.add_const(name, Arc::new(t))
    }

    /// The form of `q` with any axis last, if there is one.
    pub fn any(&self, q: &Quantized) -> Option<Stored> {
        self.stored.get(&q.value)?.first().copied()
    }

    /// `q` with axis `axis` stored last.
    pub fn request(&mut self, edit: &mut Edit<'_>, q: &Quantized, axis: usize) -> Built<ValueId> {
        let forms = self.stored.get(&q.value);
        if let Some(found) = forms.into_iter().flatten().find(|s| s.axis == axis) {
            return Ok(found.value);
        }
        let value = self.enter(edit, q, axis)?;
        self.stored
            .entry(q.value)
            .or_default()
            .push(Stored { value, axis });
        Ok(value)
    }

    fn enter(&mut self, edit: &mut Edit<'_>, q: &Quantized, axis: usize) -> Built<ValueId> {
        let name = edit.value(q.value).name.clone();
        let fill =
            i8::try_from(q.map.zero).map_err(|_| OpError::expected("zero point", "8 bits", q.map.zero))?;
        let enter = Int8Enter { axis, fill };
        if let Some(t) = known(edit, q.value) {
            let stored = enter.eval(&[Some(&t)])?.pop();
            let stored = stored.ok_or_else(|| OpError::expected("results", 1, 0))?;
            return Ok(Self::constant(edit, &format!("{name}/int8"), stored));
        }
        let made = edit.producer(q.value).map(|(_, node)| node);
        let origin = made.map(|n| n.origin.clone()).unwrap_or_default();
        let new = New { name: &name, origin };
        let computed = self.plain.contains_key(&q.value) || self.stored.contains_key(&q.value);
        let float = made.filter(|n| n.op.downcast::<QuantizeLinear>().is_some() && !computed);
        let float = float.and_then(|n| input(n, 0));
        let wide = |v: &ValueId| {
            edit.fact(*v)
                .is_ok_and(|f| f.dtype.is_float() && f.dtype != DType::F64)
        };
        if let Some(x) = float.filter(wide) {
            let output = Output::new(q.map.zero);
            let list = thresholds(q.map.scale, output)?;
            let list = Self::constant(edit, &format!("{name}/thresholds"), list);
            let op = Int8Quantize {
                axis,
                scale: q.map.scale,
                output,
            };
            return Ok(Self::add(edit, &new, op, &[x, list]));
        }
        let plain = if computed { self.plain(edit, q)? } else { q.value };
        Ok(Self::add(edit, &new, enter, &[plain]))
    }

    /// `q` as an ordinary tensor of its type.
    pub fn plain(&mut self, edit: &mut Edit<'_>, q: &Quantized) -> Built<ValueId> {
        if let Some(v) = self.plain.get(&q.value) {
            return Ok(*v);
        }
        let Some(form) = self.any(q) else {
            return Ok(q.value);
        };
        let name = edit.value(q.value).name.clone();
        let new = New {
            name: &name,
            origin: Vec::new(),
        };
        let op = leave(q, form.axis)?;
        let v = Self::add(edit, &new, op, &[form.value]);
        self.plain.insert(q.value, v);
        Ok(v)
    }

    /// Declares how the integers of result `to` are computed.
    pub fn set(&mut self, to: &Quantized, axis: usize, value: ValueId) {
        self.stored.insert(to.value, vec![Stored { value, axis }]);
        self.results.push(to.clone());
    }

    /// Declares an ordinary tensor with the integers of result `to`.
    pub fn set_plain(&mut self, to: &Quantized, value: ValueId) {
        self.plain.insert(to.value, value);
        self.results.push(to.clone());
    }

    /// `q` with each integer replaced by its entry in a table, so that it has the map of `to`.
    pub fn remapped(
        &mut self,
        edit: &mut Edit<'_>,
        new: &New<'_>,
        q: &Quantized,
        table: &[i8],
        to: &Quantized,
    ) -> Built<Quantized> {
        let usual = super::find::usual_axis(q.shape.len());
        let axis = self.any(q).map_or(usual, |s| s.axis);
        let x = self.request(edit, q, axis)?;
        let value = Self::by_table(edit, new, x, table)?;
        self.stored.insert(value, vec![Stored { value, axis }]);
        Ok(Quantized {
            value,
            dtype: to.dtype,
            map: to.map,
            ..q.clone()
        })
    }

    /// Builds what a site becomes.
    pub fn build(&mut self, edit: &mut Edit<'_>, id: NodeId, site: &Site) -> Built<()> {
        let Some(node) = edit.node(id) else { return Ok(()) };
        let (name, origin) = (node.name.clone(), node.origin.clone());
        let new = New { name: &name, origin };
        match site {
            Site::Product(product, to) => self.product(edit, &new, product, to),
            Site::MatMul {
                operands,
                transposed,
                factor,
                to,
            } => self.matmul(edit, &new, operands, *transposed, *factor, to),
            Site::Binary {
                operands,
                axis,
                op,
                to,
            } => self.binary(edit, &new, operands, *axis, op, to),
            Site::Table { x, table, to } => {
                let axis = self
                    .any(x)
                    .map_or_else(|| super::find::usual_axis(x.shape.len()), |s| s.axis);
                let value = self.request(edit, x, axis)?;
                let is_identity = (-128..=127).eq(table.iter().map(|v| i32::from(*v)));
                if is_identity {
                    self.set(to, axis, value);
                    return Ok(());
                }
                let y = Self::by_table(edit, &new, value, table)?;
                self.set(to, axis, y);
                Ok(())
            }
            Site::Pool(pool) => self.pool(edit, &new, pool),
            Site::Softmax {
                x,
                axis,
                channels,
                table,
                to,
            } => {
                let value = self.request(edit, x, *axis)?;
                let table = Self::constant(edit, &format!("{name}/table"), table.clone());
                let op = Int8Softmax { channels: *channels };
                let y = Self::add(edit, &new, op, &[value, table]);
                self.set(to, *axis, y);
                Ok(())
            }
            Site::Move(site) => moves::build(self, edit, &new, site),
        }
    }

    /// The entries of a table for the elements of `x`.
    fn by_table(edit: &mut Edit<'_>, new: &New<'_>, x: ValueId, table: &[i8]) -> Built<ValueId> {
        let table = int8::tensor(&[table.len()], table)?;
        let table = Self::constant(edit, &format!("{}/table", new.name), table);
        Ok(Self::add(edit, new, Int8Table, &[x, table]))
    }

    fn matmul(
        &mut self,
        edit: &mut Edit<'_>,
        new: &New<'_>,
        [a, b]: &[Quantized; 2],
        transposed: bool,
        factor: Factor,
        to: &Result8,
    ) -> Built<()> {
        let last = b.shape.len().saturating_sub(1);
        let k = if transposed { last } else { last.saturating_sub(1) };
        let inputs = [
            self.request(edit, a, a.shape.len().saturating_sub(1))?,
            self.request(edit, b, k)?,
        ];
        let op = Int8MatMul {
            a_zero: a.map.zero,
            b_zero: b.map.zero,
            factor,
            output: to.output(self.arithmetic),
        };
        let y = Self::add(edit, new, op, &inputs);
        self.set(&to.to, to.to.shape.len().saturating_sub(1), y);
        Ok(())
    }

    fn pool(&mut self, edit: &mut Edit<'_>, new: &New<'_>, pool: &Pooling) -> Built<()> {
        let mut inputs = vec![self.request(edit, &pool.x, 1)?];
        if !pool.factors.is_empty() {
            let list = int8::factors(&pool.factors)?;
            inputs.push(Self::constant(edit, &format!("{}/factors", new.name), list));
        }
        let op = Int8Pool {
            kind: pool.kind,
            window: pool.window.clone(),
            x_zero: pool.x.map.zero,
            output: pool.output,
        };
        let y = Self::add(edit, new, op, &inputs);
        let mut y = self.without_axes(edit, new, y, &pool.x, &pool.to)?;
        if let Some(table) = &pool.table {
            y = Self::by_table(edit, new, y, table)?;
        }
        self.set(&pool.to, 1, y);
        Ok(())
    }

    /// The result of a pool over all spatial axes without them, if the result has none.
    fn without_axes(
        &self,
        edit: &mut Edit<'_>,
        new: &New<'_>,
        y: ValueId,
        x: &Quantized,
        to: &Quantized,
    ) -> Built<ValueId> {
        if to.shape.len() == x.shape.len() {
            return Ok(y);
        }
        let [n, c] = to.shape.as_slice() else {
            return Err(OpError::expected("rank of the result", 2, to.shape.len()));
        };
        let shape = [n.clone(), padded(c)?];
        moves::reshaped(edit, new, y, &shape)
    }

    fn product(&mut self, edit: &mut Edit<'_>, new: &New<'_>, p: &Product, to: &Result8) -> Built<()> {
        let axis = match p.form {
            Form::Matmul { .. } => p.x.shape.len().saturating_sub(1),
            Form::Conv { .. } => 1,
        };
        let packed = pack(p, to, self.arithmetic).map_err(|why| OpError::Unsupported(why.0))?;
        let mut x = self.request(edit, &p.x, axis)?;
        if let Some(steps) = &p.steps {
            x = moves::spread(edit, new, x, &p.x, steps)?;
        }
        let w = int8::tensor(&packed.shape, &packed.data)?;
        let bias = HostTensor::from_ints(DType::I32, &[packed.bias.len()], &packed.bias)?;
        let factors = int8::factors(&packed.factors)?;
        let mut inputs = vec![x];
        for (what, t) in [("weights", w), ("bias", bias), ("factors", factors)] {
            inputs.push(Self::constant(edit, &format!("{}/{what}", new.name), t));
        }
        let op = Int8Conv {
            kind: packed.kind,
            x_zero: p.x.map.zero,
            output: to.output(self.arithmetic),
        };
        let y = Self::add(edit, new, op, &inputs);
        self.set(&to.to, axis, y);
        Ok(())
    }

    fn binary(
        &mut self,
        edit: &mut Edit<'_>,
        new: &New<'_>,
        operands: &[Quantized; 2],
        axis: usize,
        op: &Int8Binary,
        to: &Quantized,
    ) -> Built<()> {
        let mut inputs = Vec::with_capacity(2);
        for q in operands {
            let value = match known(edit, q.value) {
                Some(t) => {
                    let full = full_rank(&t, to, axis)?;
                    let fill = i8::try_from(q.map.zero)
                        .map_err(|_| OpError::expected("zero point", "8 bits", q.map.zero))?;
                    let stored = Int8Enter { axis, fill }.eval(&[Some(&full)])?.pop();
                    let stored = stored.ok_or_else(|| OpError::expected("results", 1, 0))?;
                    let name = format!("{}/int8", edit.value(q.value).name);
                    Self::constant(edit, &name, stored)
                }
                None => self.request(edit, q, axis)?,
            };
            inputs.push(value);
        }
        let y = Self::add(edit, new, op.clone(), &inputs);
        self.set(to, axis, y);
        Ok(())
    }

    /// Connects readers outside the integer domain.
    pub fn finish(mut self, edit: &mut Edit<'_>) -> Built<()> {
        for to in std::mem::take(&mut self.results) {
            let readers: Vec<NodeId> = edit.readers(to.value).collect();
            let mut others = edit.is_kept(to.value);
            for id in readers {
                let Some(node) = edit.node(id) else { continue };
                let origin = node.origin.clone();
                if node.op.downcast::<DequantizeLinear>().is_none() {
                    others = true;
                } else if let Some(form) = self.any(&to) {
                    let op = Int8Dequantize {
                        axis: form.axis,
                        channels: channels(&to, form.axis)?,
                        map: to.map,
                    };
                    edit.replace_node(id, Box::new(op), vec![Some(form.value)], origin);
                } else if let Some(plain) = self.plain.get(&to.value) {
                    let rest = node.inputs.get(1..).unwrap_or_default();
                    let inputs = std::iter::once(Some(*plain)).chain(rest.iter().copied());
                    let (op, inputs) = (node.op.clone(), inputs.collect());
                    edit.replace_node(id, op, inputs, origin);
                }
            }
            if !others {
                continue;
            }
            let origin = edit.node(to.node).map(|n| n.origin.clone()).unwrap_or_default();
            if let Some(form) = self.any(&to) {
                let op = leave(&to, form.axis)?;
                edit.replace_node(to.node, Box::new(op), vec![Some(form.value)], origin);
            } else if let Some(plain) = self.plain.get(&to.value) {
                edit.replace_node(to.node, Box::new(Reshape::Identity), vec![Some(*plain)], origin);
            }
        }
        Ok(())
    }
}

/// The size of an axis that is stored last.
pub(super) fn channels(q: &Quantized, axis: usize) -> Built<i64> {
    let size = q.shape.get(axis).and_then(Dim::as_const);
    size.ok_or_else(|| OpError::expected("the axis that is stored last", "a constant size", axis))
}

fn leave(q: &Quantized, axis: usize) -> Built<Int8Leave> {
    Ok(Int8Leave {
        axis,
        channels: channels(q, axis)?,
        dtype: q.dtype,
    })
}

/// A constant operand with as many axes as the result, repeated along `axis`.
fn full_rank(t: &HostTensor, to: &Quantized, axis: usize) -> Built<HostTensor> {
    let mut shape = vec![1; to.shape.len().saturating_sub(t.shape().len())];
    shape.extend(t.shape());
    let wanted = num::exact::<usize, _>(channels(to, axis)?, "a number of channels")?;
    let t = t.reshape(&shape)?;
    if shape.get(axis) == Some(&wanted) {
        return Ok(t);
    }
    // One element for all channels.
    let (outer, _, inner) = crate::graph::op::around(&shape, axis)?;
    let bytes = t.bytes()?;
    let mut out = Vec::with_capacity(outer * wanted * inner);
    for part in bytes.chunks(inner.max(1)) {
        for _ in 0..wanted {
            out.extend_from_slice(part);
        }
    }
    shape[axis] = wanted;
    Ok(HostTensor::from_bytes(t.dtype(), &shape, &out)?)
}
