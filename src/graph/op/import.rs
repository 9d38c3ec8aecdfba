//! Names and attributes of operators in model files.

use super::OpResult;
use crate::graph::body::Body;
use crate::tensor::HostTensor;

/// Typed access to the attributes of a node during import. Import fails if an attribute is not
/// read.
pub trait Attributes {
    /// Operator type in the file.
    fn op_type(&self) -> &str;
    /// Opset version of the operator's domain that the model declares.
    fn opset(&self) -> i64;
    /// Number of operands, without trailing omitted ones.
    fn input_count(&self) -> usize;
    /// True if operand `i` is given.
    fn has_input(&self, i: usize) -> bool;
    /// Removes omitted operands from the node; later operands move forward.
    fn drop_omitted(&self);
    /// Appends a constant operand, to convert older forms of an operator to newer ones.
    fn add_operand(&self, tensor: HostTensor);
    fn int(&self, name: &str) -> OpResult<Option<i64>>;
    fn float(&self, name: &str) -> OpResult<Option<f32>>;
    /// A list of integers.
    fn ints(&self, name: &str) -> OpResult<Option<Vec<i64>>>;
    fn tensor(&self, name: &str) -> OpResult<Option<HostTensor>>;
    fn string(&self, name: &str) -> OpResult<Option<String>>;
    /// A list of strings.
    fn strings(&self, name: &str) -> OpResult<Option<Vec<String>>>;
    /// A list of floats.
    fn floats(&self, name: &str) -> OpResult<Option<Vec<f32>>>;
    /// A subgraph of the node. Values that it captures become further operands of the node, after
    /// those that [`Attributes::input_count`] counts and after the first `after`.
    fn graph(&self, name: &str, after: usize) -> OpResult<Option<Body>>;
    /// Number of results, without trailing omitted ones.
    fn output_count(&self) -> usize;
    /// Number of results, including omitted ones.
    fn result_count(&self) -> usize;
    /// The node's random seed, derived from the import options and the node's position. An error
    /// inside a loop, whose iterations would draw the same numbers.
    fn seed(&self) -> OpResult<u64>;
    /// True if result `i` is named.
    fn has_output(&self, i: usize) -> bool;
}

/// The name of an operator in a domain, from an opset version on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnnxName {
    /// Domain; empty for standard ONNX.
    pub domain: &'static str,
    pub name: &'static str,
    /// First opset version with the semantics that the import function implements.
    pub since: i64,
    /// The most operands that a node can have in any version.
    pub inputs: usize,
    /// The most results.
    pub outputs: usize,
}

/// Any number of operands or results.
pub const ANY: usize = usize::MAX;

/// Domain of the operators that are specific to this engine.
pub const OWN_DOMAIN: &str = "ai.transformer_lite";

/// A standard operator from opset `since` on, with at most `inputs` operands and one result.
pub const fn onnx(name: &'static str, since: i64, inputs: usize) -> OnnxName {
    OnnxName {
        domain: "",
        name,
        since,
        inputs,
        outputs: 1,
    }
}

/// An operator of [`OWN_DOMAIN`]; see [`onnx`].
pub const fn own(name: &'static str, inputs: usize) -> OnnxName {
    OnnxName {
        domain: OWN_DOMAIN,
        ..onnx(name, 1, inputs)
    }
}

/// An operator of `com.microsoft`; see [`onnx`].
pub const fn microsoft(name: &'static str, inputs: usize) -> OnnxName {
    OnnxName {
        domain: "com.microsoft",
        ..onnx(name, 1, inputs)
    }
}

impl OnnxName {
    /// The same with at most `outputs` results.
    #[must_use]
    pub const fn outputs(self, outputs: usize) -> Self {
        Self { outputs, ..self }
    }
}
