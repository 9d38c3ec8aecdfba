//! The values of the integer domain that the sites of a graph have built.

use super::shapes::{self, usual_axis};
use super::values::{self, Quantized, known};
use super::{Built, table};
use crate::error::{Error, Stage};
use crate::graph::op::int8_layout::{Int8Enter, Int8Leave};
use crate::graph::op::int8_quantize::{Int8Dequantize, Int8Quantize, thresholds};
use crate::graph::op::quantize_linear::DequantizeLinear;
use crate::graph::op::reshape::Reshape;
use crate::graph::pass::pattern::input;
use crate::graph::{Edit, NodeId, Op, OpError, ValueId};
use crate::quant::fixed::Output;
use crate::tensor::{DType, HostTensor};
use std::collections::HashMap;
use std::sync::Arc;

/// A value of the integer domain and the axis that it stores last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub value: ValueId,
    pub axis: usize,
}

/// The values that the pass has built so far.
#[derive(Default)]
pub(super) struct Domain {
    /// For each quantized value: its forms in the integer domain, by the axis stored last.
    stored: HashMap<ValueId, Vec<Stored>>,
    /// For each quantized value: the same integers as an ordinary tensor, computed without floats.
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
    /// Adds a node with one result.
    pub fn add(edit: &mut Edit<'_>, new: &New<'_>, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
        let value = edit.add_value(&format!("{}/int8", new.name), None);
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        edit.add_node(new.name, new.origin.clone(), Box::new(op), inputs, vec![value]);
        value
    }

    pub fn constant(edit: &mut Edit<'_>, name: &str, t: HostTensor) -> ValueId {
        edit.add_const(name, Arc::new(t))
    }

    /// Any stored form of `q`, if there is one.
    pub fn any(&self, q: &Quantized) -> Option<Stored> {
        self.stored.get(&q.value)?.first().copied()
    }

    /// The axis that the first stored form of `q` has last, or that a new one would.
    pub fn axis(&self, q: &Quantized) -> Built<usize> {
        self.any(q)
            .map_or_else(|| Ok(usual_axis(&q.shape)?), |s| Ok(s.axis))
    }

    /// The form of `q` with axis `axis` last; it is built on the first request.
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
        let enter = Int8Enter { axis };
        if let Some(t) = known(edit, q.value) {
            return Self::entered(edit, &name, &enter, &t);
        }
        let made = edit.producer(q.value).map(|(_, node)| node);
        let origin = made.map(|n| n.origin.clone()).unwrap_or_default();
        let new = New { name: &name, origin };
        let computed = self.plain.contains_key(&q.value) || self.stored.contains_key(&q.value);
        // The map is that of the quantization; a reader may dequantize with another one.
        let by = edit.producer(q.value).map(|(id, _)| id).filter(|_| !computed);
        let by = by.and_then(|id| values::quantizer(edit, id)?.ok());
        let float = by.and_then(|by| Some((input(edit.node(by.node)?, 0)?, by.map)));
        let narrow = |v: ValueId| {
            edit.fact(v)
                .is_ok_and(|f| f.dtype.is_float() && f.dtype != DType::F64)
        };
        if let Some((x, map)) = float.filter(|(x, _)| narrow(*x)) {
            let output = Output::new(map.zero);
            let list = thresholds(map.scale, output)?;
            let list = Self::constant(edit, &format!("{name}/thresholds"), list);
            let op = Int8Quantize {
                axis,
                scale: map.scale,
                output,
            };
            return Ok(Self::add(edit, &new, op, &[x, list]));
        }
        let plain = if computed { self.plain(edit, q)? } else { q.value };
        Ok(Self::add(edit, &new, enter, &[plain]))
    }

    /// A constant in the stored form.
    pub fn entered(edit: &mut Edit<'_>, name: &str, enter: &Int8Enter, t: &HostTensor) -> Built<ValueId> {
        let stored = enter.eval(&[Some(t)])?.pop();
        let stored = stored.ok_or_else(|| OpError::expected("results", 1, 0))?;
        Ok(Self::constant(edit, &format!("{name}/int8"), stored))
    }

    /// `q` as an ordinary tensor of its element type.
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

    /// Declares the stored form that holds result `to`.
    pub fn set(&mut self, to: &Quantized, axis: usize, value: ValueId) {
        self.stored.insert(to.value, vec![Stored { value, axis }]);
        self.results.push(to.clone());
    }

    /// Declares the ordinary tensor that holds result `to`.
    pub fn set_plain(&mut self, to: &Quantized, value: ValueId) {
        self.plain.insert(to.value, value);
        self.results.push(to.clone());
    }

    /// `q` with each integer replaced by its table entry, which rescales it to the map of `to`.
    pub fn remapped(
        &mut self,
        edit: &mut Edit<'_>,
        new: &New<'_>,
        q: &Quantized,
        table: &[i8],
        to: &Quantized,
    ) -> Built<Quantized> {
        let axis = self.axis(q)?;
        let x = self.request(edit, q, axis)?;
        let value = table::looked_up(edit, new, x, table)?;
        self.stored.insert(value, vec![Stored { value, axis }]);
        Ok(Quantized {
            value,
            dtype: to.dtype,
            map: to.map,
            ..q.clone()
        })
    }

    /// Connects the readers of results that are outside the integer domain.
    pub fn finish(mut self, edit: &mut Edit<'_>) -> crate::error::Result<()> {
        for to in std::mem::take(&mut self.results) {
            let finished = self.finish_result(edit, &to);
            finished.map_err(|e| {
                let name = &edit.value(to.value).name;
                Error::other(Stage::Pass, format!("quantized value \"{name}\": {e}"))
            })?;
        }
        Ok(())
    }

    fn finish_result(&mut self, edit: &mut Edit<'_>, to: &Quantized) -> Built<()> {
        let readers: Vec<NodeId> = edit.readers(to.value).collect();
        let mut others = edit.is_kept(to.value);
        for id in readers {
            let Some(node) = edit.node(id) else { continue };
            if node.op.downcast::<DequantizeLinear>().is_none() {
                others = true;
                continue;
            }
            let (origin, inputs) = (node.origin.clone(), node.inputs.clone());
            let (op, dtype) = (node.op.clone(), node.outputs.first().copied());
            let dtype = dtype
                .map(|v| edit.fact(v))
                .transpose()?
                .map_or(DType::F32, |f| f.dtype);
            // It may dequantize with a map of its own.
            let own = values::quantized(edit, to.value, input(node, 1), input(node, 2), id);
            if let (Some(form), Ok(own)) = (self.any(to), own) {
                let op = Int8Dequantize {
                    axis: form.axis,
                    channels: channels(to, form.axis)?,
                    map: own.map,
                    dtype,
                };
                edit.replace_node(id, Box::new(op), vec![Some(form.value)], origin);
            } else {
                let plain = self.plain(edit, to)?;
                let inputs = std::iter::once(Some(plain)).chain(inputs.into_iter().skip(1));
                edit.replace_node(id, op, inputs.collect(), origin);
            }
        }
        if !others {
            return Ok(());
        }
        let origin = edit.node(to.node).map(|n| n.origin.clone()).unwrap_or_default();
        if let Some(form) = self.any(to) {
            let op = leave(to, form.axis)?;
            edit.replace_node(to.node, Box::new(op), vec![Some(form.value)], origin);
        } else if let Some(plain) = self.plain.get(&to.value) {
            edit.replace_node(to.node, Box::new(Reshape::Identity), vec![Some(*plain)], origin);
        }
        Ok(())
    }
}

/// The size of an axis that is stored last.
pub(super) fn channels(q: &Quantized, axis: usize) -> Built<i64> {
    Ok(shapes::channels(&q.shape, axis)?)
}

fn leave(q: &Quantized, axis: usize) -> Built<Int8Leave> {
    Ok(Int8Leave {
        axis,
        channels: channels(q, axis)?,
        dtype: q.dtype,
    })
}
