//! Upgrades nodes of older operator sets to the first one in which `DequantizeLinear` takes a scale
//! for each channel.

use super::write::{int_tensor, scalar_tensor};
use std::collections::HashSet;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::graph::Graph;
use transformer_lite::unstable::graph::onnx::proto::{AttributeProto, ModelProto, NodeProto, TensorProto};

/// The oldest operator set of quantized models.
pub(super) const OPSET: i64 = 13;
/// The oldest file format version that goes with it.
const IR_VERSION: i64 = 7;

/// Operators that mean the same in [`OPSET`] as in earlier sets from the given one on.
const UNCHANGED: &[(&[&str], i64)] = &[
    (
        &[
            "Abs",
            "Ceil",
            "Concat",
            "Constant",
            "Conv",
            "ConvTranspose",
            "Elu",
            "Exp",
            "Flatten",
            "Floor",
            "Gather",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "HardSigmoid",
            "Identity",
            "InstanceNormalization",
            "LRN",
            "LeakyRelu",
            "Log",
            "LpNormalization",
            "MatMul",
            "Neg",
            "Not",
            "Reciprocal",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
            "ReduceMin",
            "ReduceProd",
            "ReduceSumSquare",
            "Relu",
            "Reshape",
            "Selu",
            "Shape",
            "Sigmoid",
            "Size",
            "Softplus",
            "Softsign",
            "SpaceToDepth",
            "Sqrt",
            "Tanh",
            "Tile",
            "Transpose",
            "Max",
            "Min",
            "Mean",
            "Sum",
            "Cast",
            "ArgMax",
            "ArgMin",
            "MaxPool",
        ],
        6,
    ),
    (
        &[
            "Add",
            "And",
            "AveragePool",
            "Cos",
            "Div",
            "Equal",
            "GRU",
            "Gemm",
            "Greater",
            "LSTM",
            "Less",
            "Mul",
            "Or",
            "PRelu",
            "Pow",
            "RNN",
            "Sin",
            "Sub",
            "Xor",
        ],
        7,
    ),
    (&["Expand"], 8),
    (
        &[
            "BatchNormalization",
            "ConstantOfShape",
            "Erf",
            "EyeLike",
            "IsNaN",
            "NonZero",
            "OneHot",
            "Sign",
            "Where",
            "Cosh",
            "Sinh",
        ],
        9,
    ),
    (&["IsInf", "Mod", "Slice", "RoiAlign"], 10),
    (
        &[
            "BitShift",
            "Clip",
            "CumSum",
            "DepthToSpace",
            "Det",
            "GatherElements",
            "GatherND",
            "If",
            "Loop",
            "Pad",
            "Range",
            "Resize",
            "Round",
            "Scan",
            "ScatterElements",
            "ScatterND",
            "TopK",
            "Unique",
            "NonMaxSuppression",
        ],
        11,
    ),
    (
        &["Celu", "Dropout", "Einsum", "GreaterOrEqual", "LessOrEqual"],
        12,
    ),
];

/// Changes the nodes of `model` so that they mean the same in [`OPSET`]. The facts of `graph`, the
/// same model, must be derived. An error names the first node that cannot be changed.
pub(super) fn upgrade(model: &mut ModelProto, graph: &Graph) -> Result<()> {
    model.ir_version = model.ir_version.max(IR_VERSION);
    let standard = |d: &str| d.is_empty() || d == "ai.onnx";
    let Some(set) = model.opset_import.iter_mut().find(|o| standard(&o.domain)) else {
        return Ok(());
    };
    let from = set.version;
    if from >= OPSET {
        return Ok(());
    }
    set.version = OPSET;
    let Some(proto) = &mut model.graph else {
        return Ok(());
    };
    let initializers = proto.initializer.iter().map(|t| &t.name);
    let results = proto.node.iter().flat_map(|n| &n.output);
    let inputs = proto.input.iter().map(|v| &v.name);
    let names = initializers.chain(results).chain(inputs).cloned();
    let mut made = Made {
        used: names.collect(),
        tensors: Vec::new(),
    };
    for (i, node) in proto
        .node
        .iter_mut()
        .enumerate()
        .filter(|(_, n)| standard(&n.domain))
    {
        let nested = node.attribute.iter().filter_map(|a| a.g.as_ref());
        if nested
            .into_iter()
            .any(|g| !g.node.iter().all(|n| unchanged(n, from)))
        {
            return Err(refused(node, from));
        }
        if !unchanged(node, from) {
            change(node, i, graph, from, &mut made)?;
        }
    }
    proto.initializer.extend(made.tensors);
    Ok(())
}

fn unchanged(node: &NodeProto, from: i64) -> bool {
    let since = UNCHANGED
        .iter()
        .find(|(names, _)| names.contains(&node.op_type.as_str()));
    since.is_some_and(|(_, since)| from >= *since)
}

fn refused(node: &NodeProto, from: i64) -> Error {
    let what = format!(
        "{} \"{}\" of opset {from} has no equivalent in opset {OPSET}, which int8 models need; convert the model \
         first, for example with onnx.version_converter",
        node.op_type, node.name
    );
    Error::other(Stage::Quantize, what).of_kind(ErrorKind::Unsupported)
}

/// New initializers, and all names in the file.
struct Made {
    used: HashSet<String>,
    tensors: Vec<TensorProto>,
}

/// Removes an attribute from a node and returns it.
fn take(node: &mut NodeProto, name: &str) -> Option<AttributeProto> {
    let at = node.attribute.iter().position(|a| a.name == name)?;
    Some(node.attribute.remove(at))
}

/// Sets the operand at this position; missing operands before it count as omitted.
fn put(node: &mut NodeProto, position: usize, mut tensor: TensorProto, made: &mut Made) {
    while !made.used.insert(tensor.name.clone()) {
        tensor.name.push('#');
    }
    if node.input.len() <= position {
        node.input.resize(position + 1, String::new());
    }
    if let Some(input) = node.input.get_mut(position) {
        input.clone_from(&tensor.name);
    }
    made.tensors.push(tensor);
}

fn change(node: &mut NodeProto, position: usize, graph: &Graph, from: i64, made: &mut Made) -> Result<()> {
    // Attributes that became operands, with their positions.
    let lists: &[(&str, usize)] = match node.op_type.as_str() {
        "Squeeze" | "Unsqueeze" | "ReduceSum" => &[("axes", 1)],
        "Split" => &[("split", 1)],
        "Pad" => &[("pads", 1)],
        "Slice" => &[("starts", 1), ("ends", 2), ("axes", 3)],
        _ => &[],
    };
    let numbers: &[(&str, usize, f32)] = match node.op_type.as_str() {
        "Clip" => &[("min", 1, f32::MIN), ("max", 2, f32::MAX)],
        "Pad" => &[("value", 2, 0.0)],
        _ => &[],
    };
    for (part, at) in lists {
        let name = format!("{}#{position}/{part}", node.op_type);
        if let Some(a) = take(node, part) {
            put(node, *at, int_tensor(&name, &a.ints), made);
        }
    }
    for (part, at, default) in numbers {
        let name = format!("{}#{position}/{part}", node.op_type);
        let value = take(node, part).map_or(*default, |a| a.f);
        put(node, *at, scalar_tensor(&name, value), made);
    }
    match node.op_type.as_str() {
        _ if !lists.is_empty() || !numbers.is_empty() => {}
        "DepthToSpace" => {}
        "Dropout" => {
            take(node, "ratio");
        }
        "BatchNormalization" => {
            if take(node, "spatial").is_some_and(|a| a.i != 1) {
                return Err(refused(node, from));
            }
        }
        "Hardmax" | "Softmax" | "LogSoftmax" if along_last(node, graph) => {
            take(node, "axis");
            node.attribute.push(AttributeProto {
                name: "axis".to_owned(),
                i: -1,
                r#type: 2,
                ..Default::default()
            });
        }
        _ => return Err(refused(node, from)),
    }
    Ok(())
}

/// Before opset 13, `Softmax` and its kin join the axes from `axis` on, 1 by default. True if that
/// is only the last one.
fn along_last(node: &NodeProto, graph: &Graph) -> bool {
    let axis = node
        .attribute
        .iter()
        .find(|a| a.name == "axis")
        .map_or(1, |a| a.i);
    let fact = node
        .input
        .first()
        .and_then(|x| graph.find(x))
        .and_then(|v| graph.value(v).fact.as_ref());
    fact.is_some_and(|f| axis == -1 || usize::try_from(axis).is_ok_and(|a| a + 1 == f.shape.rank()))
}
