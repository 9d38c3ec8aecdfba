//! The float model that is quantized, and where.

use super::{MODEL, upgrade, walk};
use crate::quantize::external_files;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::kind::check_file;
use transformer_lite::unstable::graph::onnx::proto::ModelProto;
use transformer_lite::unstable::graph::onnx::weights::map;
use transformer_lite::unstable::graph::onnx::{decode, import};
use transformer_lite::unstable::graph::quantization::{LayerKind, Placement, quantized_node};
use transformer_lite::unstable::graph::{Graph, derive};
use transformer_lite::unstable::tensor::{Bytes, DType};

/// A float model and the placement of its quantization, which post-training quantization and
/// quantization-aware training share.
#[derive(Debug)]
pub struct FloatModel {
    /// The ONNX file.
    pub path: PathBuf,
    /// Its contents, in an operator set that quantized models can use.
    pub proto: ModelProto,
    /// The graph, with what depends on constants alone computed.
    pub graph: Graph,
    pub placement: Placement,
    /// Files with weights.
    pub(super) external: HashSet<PathBuf>,
}

impl FloatModel {
    /// Reads a folder with `model.onnx` or an ONNX file. Nodes whose names are in `keep_float` stay
    /// in floats.
    ///
    /// Errors: a model that [`import`] rejects, that is already quantized or that has nothing to
    /// quantize; a name in `keep_float` that no node has.
    pub fn open(input: &Path, keep_float: &HashSet<String>) -> Result<Self> {
        let path = if input.is_dir() {
            input.join(MODEL)
        } else {
            input.to_owned()
        };
        check_file("model", &path)?;
        let mut graph = import(&path)?;
        derive::derive(&mut graph)?;
        let mut proto = decode::model(Stage::Quantize, &path, map(&path)?.bytes())?;
        let external = proto
            .graph
            .as_ref()
            .map(|g| external_files(&path, g))
            .unwrap_or_default();
        walk::fold_constants(&mut graph)?;
        let placement = Placement::of(&graph, keep_float)?;
        check_model(&path, &graph, &placement, keep_float)?;
        upgrade::upgrade(&mut proto, &graph)?;
        Ok(Self {
            path,
            proto,
            graph,
            placement,
            external,
        })
    }
}

/// Rejects models with nothing to quantize, models that are already quantized, and unknown names.
fn check_model(
    path: &Path,
    graph: &Graph,
    placement: &Placement,
    keep_float: &HashSet<String>,
) -> Result<()> {
    if let Some(node) = quantized_node(graph) {
        let what = format!(
            "{} \"{}\": the model is quantized already",
            node.op.name(),
            node.name
        );
        return Err(Error::file(Stage::Quantize, path, what));
    }
    let known: HashSet<&str> = graph.nodes().map(|(_, n)| n.name.as_str()).collect();
    if let Some(name) = keep_float.iter().find(|n| !known.contains(n.as_str())) {
        let what = format!("the model has no node \"{name}\"");
        return Err(Error::usage("nodes to keep in floats", what));
    }
    if placement
        .layers
        .iter()
        .any(|l| matches!(l.kind, LayerKind::Product(_)))
    {
        return Ok(());
    }
    let half = graph.nodes().flat_map(|(_, n)| &n.outputs);
    let half = half
        .filter_map(|v| graph.fact(*v).ok())
        .any(|f| f.dtype == DType::F16);
    let why = match placement
        .left
        .iter()
        .find_map(|l| Some((graph.node(l.node)?, &l.reason)))
    {
        Some((node, reason)) => format!("{} \"{}\": {reason}", node.op.name(), node.name),
        None if half => "its activations are f16; only f32 can be quantized to int8".to_owned(),
        None => "it has no convolution or matmul over f32".to_owned(),
    };
    Err(Error::file(
        Stage::Quantize,
        path,
        format!("nothing to quantize: {why}"),
    ))
}
