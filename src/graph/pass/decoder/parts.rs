//! What passes that search rows of logits share: rows in parts. Named nodes, for any pass.

use crate::error::{Error, Result, Stage};
use crate::graph::op::pad::{Mode, Pad};
use crate::graph::op::reshape::Reshape;
use crate::graph::{Edit, Op, ValueId};
use crate::tensor::{HostTensor, TensorError};
use std::sync::Arc;

/// Padding value: the smallest finite `f16`, below every relevant logit.
const MIN_F16: f32 = -65504.0;

/// The output `logits` of rank 3 and its number of columns; `name` is the output to be added.
pub(super) fn logits(edit: &Edit<'_>, name: &str) -> Option<(ValueId, i64)> {
    let logits = edit.output("logits");
    let shape = logits.and_then(|v| Some(edit.value(v).fact.as_ref()?.shape.0.clone()));
    let (Some(logits), Some([_, _, vocab])) = (logits, shape.as_deref()) else {
        log::debug!("no output \"{name}\": there is no output \"logits\" of rank 3");
        return None;
    };
    let columns = vocab.as_const().filter(|v| *v > 0);
    if columns.is_none() {
        log::debug!("no output \"{name}\": the vocabulary has {vocab} entries");
    }
    Some((logits, columns?))
}

/// Number of parts of a row of `vocab` elements and their length: at least `length`, at most four
/// times that, and without a remainder if possible.
pub(super) fn parts(vocab: i64, length: i64) -> (i64, i64) {
    let even = (length..=4 * length).find(|n| vocab % n == 0);
    let length = even.unwrap_or(length).min(vocab);
    ((vocab + length - 1) / length, length)
}

/// Adds nodes and values whose names begin with `prefix`, except outputs. The nodes come from those
/// that `origin` names.
pub(super) struct Nodes<'e, 'g> {
    pub edit: &'e mut Edit<'g>,
    pub prefix: String,
    pub origin: Vec<String>,
}

impl Nodes<'_, '_> {
    /// Adds a node with results of these names.
    pub fn add<const N: usize>(
        &mut self,
        names: [String; N],
        op: Box<dyn Op>,
        operands: &[ValueId],
    ) -> [ValueId; N] {
        let node = names.first().cloned().unwrap_or_default();
        let results = names.map(|name| self.edit.add_value(&name, None));
        let operands = operands.iter().copied().map(Some).collect();
        let origin = self.origin.clone();
        (self.edit).add_node(&node, origin, op, operands, results.to_vec());
        results
    }

    pub fn named(&self, what: &str) -> String {
        format!("{}/{what}", self.prefix)
    }

    /// Adds a node with several results.
    pub fn several<const N: usize>(
        &mut self,
        results: [&str; N],
        op: Box<dyn Op>,
        operands: &[ValueId],
    ) -> [ValueId; N] {
        let names = results.map(|what| self.named(what));
        self.add(names, op, operands)
    }

    /// Adds a node with one result.
    pub fn one(&mut self, result: &str, op: Box<dyn Op>, operands: &[ValueId]) -> ValueId {
        let [result] = self.several([result], op, operands);
        result
    }

    /// Adds an output and the node that computes it.
    pub fn output(&mut self, name: &str, op: Box<dyn Op>, operands: &[ValueId]) -> ValueId {
        let [result] = self.add([name.to_owned()], op, operands);
        self.edit.add_output(result);
        result
    }

    pub fn constant(&mut self, what: &str, value: Result<HostTensor, TensorError>) -> Result<ValueId> {
        let value = value.map_err(|e| Error::other(Stage::Pass, e.to_string()))?;
        let name = self.named(what);
        Ok(self.edit.add_const(&name, Arc::new(value)))
    }

    /// `x` with another shape, in which 0 keeps the size of an axis.
    pub fn reshaped(&mut self, result: &str, x: ValueId, shape: &[i64]) -> Result<ValueId> {
        let shape = HostTensor::from_i64(&[shape.len()], shape);
        let shape = self.constant(&format!("{result}_shape"), shape)?;
        let op = Reshape::Reshape { allow_zero: false };
        Ok(self.one(result, Box::new(op), &[x, shape]))
    }

    /// Rows of logits with `count` elements added that are below all others.
    pub fn padded(&mut self, logits: ValueId, count: i64) -> ValueId {
        if count == 0 {
            return logits;
        }
        let pad = Pad {
            mode: Mode::Constant,
            pads: Some(vec![0, 0, 0, 0, 0, count]),
            value: MIN_F16,
        };
        self.one("padded", Box::new(pad), &[logits])
    }
}
