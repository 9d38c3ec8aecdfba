//! Why a model or a calibration set cannot be quantized to 8 bits.

use transformer_lite::unstable::error::{Error, Stage};
use transformer_lite::unstable::graph::{Graph, Node, ValueId};

/// What is wrong with a node or one of its values.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// An activation or weight is infinite or NaN.
    #[error("\"{value}\" holds {found} ({place}); expected finite numbers")]
    NotFinite {
        value: String,
        found: f32,
        /// The calibration item, or whatever else the value belongs to.
        place: String,
    },
    /// The value has no elements for any calibration item.
    #[error("\"{value}\" has no elements for any calibration item; add items that reach this node")]
    Unseen { value: String },
    /// A range without a usable scale.
    #[error(
        "the scale for the range of \"{value}\", {low:e} to {high:e}, is not a normal number; keep the node \
         in floats with --keep-float"
    )]
    Scale { value: String, low: f32, high: f32 },
    /// Products whose sum can overflow 32 bits.
    #[error(
        "the sum of output channel {channel} can reach {reach:e}, but 32 bits hold at most 2147483647; keep \
         the node in floats with --keep-float"
    )]
    Overflow { channel: usize, reach: f64 },
}

impl Refused {
    /// The error, with the name of a node.
    pub(super) fn at(self, node: &Node) -> Error {
        Error::Node {
            stage: Stage::Quantize,
            op: node.op.name().to_owned(),
            node: node.name.clone(),
            inputs: String::new(),
            source: self.into(),
        }
    }

    /// The error, with the node that computes `value`.
    pub(super) fn of(self, graph: &Graph, value: ValueId) -> Error {
        match graph.producer(value) {
            Some((_, node)) => self.at(node),
            None => {
                let what = format!("input \"{}\"", graph.value(value).name);
                Error::caused(Stage::Quantize, what, self)
            }
        }
    }
}
