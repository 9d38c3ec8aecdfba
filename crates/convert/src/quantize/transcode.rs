//! Weights that the model stores quantized already: those of `MatMulNBits`, and of
//! `DequantizeLinear` before a matmul or embedding. They keep their quantized values.

use super::nodes::{Change, Facts, attribute, int, standard};
use super::source::Source;
use super::{Left, Quantized};
use std::collections::{HashMap, HashSet};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::graph::onnx;
use transformer_lite::unstable::graph::onnx::proto::{AttributeProto, GraphProto, NodeProto};
use transformer_lite::unstable::graph::onnx::weights::Weights;
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::graph::op::matmul_nbits::MatMulNBits;
use transformer_lite::unstable::num::signed;
use transformer_lite::unstable::quant::{
    Bits, Format, GROUP_STEP, Grid, GridColumn, Grids, Loss, Packed, QuantError,
};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// A weight that keeps its quantized values.
pub struct Kept {
    /// Index of its quantized values among the initializers; the new weight takes this place.
    pub initializer: usize,
    /// Initializers that only it needs: scales, zero points.
    gone: Vec<usize>,
    kind: Kind,
    shape: Vec<usize>,
    /// Names of the new initializers.
    codes: String,
    scales: String,
    /// Name of the row order, if rows are reordered.
    order: String,
    /// Nodes that read it.
    readers: Vec<usize>,
    /// Nodes that only compute it.
    dropped: Vec<usize>,
}

enum Kind {
    NBits(MatMulNBits, NBitsInputs),
    Dequantize(Dequantize),
}

/// Indices of the operands of `MatMulNBits` among the initializers.
struct NBitsInputs {
    scales: usize,
    zeros: Option<usize>,
    g_idx: Option<usize>,
}

/// A weight read by `DequantizeLinear`.
struct Dequantize {
    scales: usize,
    zeros: Option<usize>,
    bits: Bits,
    k: usize,
    n: usize,
    group: usize,
    /// The matrix is the transpose of the initializer.
    transposed: bool,
    /// Granularity of the scales.
    scale_of: ScaleOf,
}

#[derive(Clone, Copy, PartialEq)]
enum ScaleOf {
    All,
    Column,
    Group,
}

/// A weight in E0M format.
pub struct Transcoded {
    pub packed: Packed,
    pub loss: Loss,
    /// The order of its rows, if it differs from that of the inputs.
    pub order: Option<Vec<usize>>,
    /// Bytes of all operands.
    pub bytes_before: u64,
}

/// The quantized weights of a graph that can be kept, and those that cannot with the reason. New
/// names are added to `names`, the names of the graph. Fails if the row order of a weight cannot be
/// read.
pub fn find(
    graph: &GraphProto,
    weights: &mut Weights,
    names: &mut HashSet<String>,
) -> Result<(Vec<Kept>, Vec<Left>)> {
    let facts = Facts::new(graph);
    let (mut kept, mut left) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for (at, node) in graph.node.iter().enumerate() {
        let found = if node.domain == "com.microsoft" && node.op_type == "MatMulNBits" {
            nbits(graph, &facts, weights, at, node)?
        } else if standard(node) && node.op_type == "DequantizeLinear" {
            dequantize(graph, &facts, at, node)
        } else {
            None
        };
        let Some((initializer, found)) = found else {
            continue;
        };
        let tensor = &graph.initializer[initializer];
        let sizes = tensor.dims.iter().map(|d| usize::try_from(*d).unwrap_or(0));
        let shape: Vec<usize> = sizes.collect();
        let found = found.and_then(|found| match seen.insert(initializer) {
            true => Ok(found),
            false => Err("several nodes dequantize it".to_owned()),
        });
        match found {
            Ok((kind, readers, dropped)) => {
                let mut fresh = |suffix: &str| {
                    let mut name = format!("{}.{suffix}", tensor.name);
                    while !names.insert(name.clone()) {
                        name.push('_');
                    }
                    name
                };
                kept.push(Kept {
                    initializer,
                    gone: kind.others(),
                    shape,
                    codes: fresh("codes"),
                    scales: fresh("scales"),
                    order: fresh("order"),
                    kind,
                    readers,
                    dropped,
                });
            }
            Err(reason) => left.push(Left {
                name: tensor.name.clone(),
                shape,
                reason,
            }),
        }
    }
    // Scales that other nodes read too are kept.
    let mut readers: HashMap<usize, usize> = HashMap::new();
    for k in &kept {
        k.gone.iter().for_each(|i| *readers.entry(*i).or_default() += 1);
    }
    for k in &mut kept {
        k.gone.retain(|i| {
            let name = graph.initializer[*i].name.as_str();
            !facts.outside.contains(name) && facts.readers.get(name).map_or(0, Vec::len) <= readers[i]
        });
    }
    Ok((kept, left))
}

/// A weight, its readers, and the nodes to remove.
type Found = Option<(usize, std::result::Result<(Kind, Vec<usize>, Vec<usize>), String>)>;

/// The initializer that is operand `i` of a node.
fn operand(facts: &Facts<'_>, node: &NodeProto, i: usize) -> Option<usize> {
    let name = node.input.get(i).filter(|n| !n.is_empty())?;
    facts.constants.get(name.as_str()).copied()
}

/// Like [`operand`]; fails if the operand is given but not an initializer.
fn optional(facts: &Facts<'_>, node: &NodeProto, i: usize) -> std::result::Result<Option<usize>, String> {
    match node.input.get(i).filter(|n| !n.is_empty()) {
        None => Ok(None),
        Some(name) => operand(facts, node, i)
            .map(Some)
            .ok_or_else(|| format!("\"{name}\" is not a constant")),
    }
}

fn nbits(
    graph: &GraphProto,
    facts: &Facts<'_>,
    weights: &mut Weights,
    at: usize,
    node: &NodeProto,
) -> Result<Found> {
    let Some(codes) = operand(facts, node, 1) else {
        return Ok(None);
    };
    let decide = || {
        let size = |name: &str| {
            let found = attribute(node, name).and_then(|a| usize::try_from(a.i).ok());
            found.ok_or_else(|| format!("attribute `{name}` is missing or invalid"))
        };
        let bits = attribute(node, "bits").map_or(4, |a| a.i);
        let layout = MatMulNBits::new(bits, size("block_size")?, size("K")?, size("N")?);
        let layout = layout.map_err(|e| e.to_string())?;
        fits(layout.bits, layout.k, layout.n, layout.block)?;
        let name = graph.initializer[codes].name.as_str();
        if facts.readers.get(name).map_or(0, Vec::len) > 1 || facts.outside.contains(name) {
            return Err("another node reads it too".to_owned());
        }
        let inputs = NBitsInputs {
            scales: operand(facts, node, 2).ok_or("its scales are not constant")?,
            zeros: optional(facts, node, 3)?,
            g_idx: optional(facts, node, 4)?,
        };
        Ok((layout, inputs))
    };
    let (layout, inputs) = match decide() {
        Ok(found) => found,
        Err(why) => return Ok(Some((codes, Err(why)))),
    };
    if let Some(g_idx) = inputs.g_idx {
        let blocks = weights.tensor(&graph.initializer[g_idx])?;
        if let Err(why) = layout.order(&blocks) {
            return Ok(Some((codes, Err(why.to_string()))));
        }
    }
    Ok(Some((
        codes,
        Ok((Kind::NBits(layout, inputs), vec![at], Vec::new())),
    )))
}

fn fits(bits: Bits, k: usize, n: usize, group: usize) -> std::result::Result<(), String> {
    Packed::check(Format::new(bits, group), k, n).map_err(|e| e.to_string())
}

/// Bits of quantized values of this type.
fn integer_bits(data_type: i32) -> Result<Bits, String> {
    match onnx::dtype_of(i64::from(data_type)) {
        Ok(DType::I4 | DType::U4) => Ok(Bits::Four),
        Ok(DType::I8 | DType::U8) => Ok(Bits::Eight),
        Ok(DType::I2 | DType::U2) => Ok(Bits::Two),
        _ => {
            let name = onnx::type_name(i64::from(data_type));
            Err(format!("its quantized values are of type {name}"))
        }
    }
}

/// What a scale of a `DequantizeLinear` is for, and the group size: scales have the shape `dims`.
fn scale_layout(
    node: &NodeProto,
    dims: &[i64],
    [k, n]: [usize; 2],
    transposed: bool,
) -> Result<(ScaleOf, usize), String> {
    let of = |name: &str, default: i64| attribute(node, name).map_or(default, |a| a.i);
    let (axis, block) = (of("axis", 1), of("block_size", 0));
    let axis = if axis < 0 { axis + 2 } else { axis };
    // The axis of the initializer that is K.
    let k_axis = i64::from(transposed);
    // The last group of a column may extend beyond its end.
    let whole = k.next_multiple_of(GROUP_STEP);
    if block == 0 && (dims.is_empty() || dims == [1]) {
        Ok((ScaleOf::All, whole))
    } else if block == 0 && axis != k_axis && usize::try_from(dims.iter().product::<i64>()) == Ok(n) {
        Ok((ScaleOf::Column, whole))
    } else if block > 0 && axis == k_axis {
        Ok((ScaleOf::Group, usize::try_from(block).map_err(|e| e.to_string())?))
    } else {
        Err("its scales vary along K".to_owned())
    }
}

fn dequantize(graph: &GraphProto, facts: &Facts<'_>, at: usize, node: &NodeProto) -> Found {
    let codes = operand(facts, node, 0)?;
    let tensor = &graph.initializer[codes];
    let [rows, columns] = tensor.dims[..] else {
        return None;
    };
    let (rows, columns) = (usize::try_from(rows).ok()?, usize::try_from(columns).ok()?);
    let result = node.output.first()?;
    let (uses, transposes) = facts.uses(result);
    if !facts.wants(&uses) {
        return None;
    }
    let decide = || {
        let bits = integer_bits(tensor.data_type)?;
        if facts.readers.get(tensor.name.as_str()).map_or(0, Vec::len) > 1
            || facts.outside.contains(tensor.name.as_str())
        {
            return Err("another node reads its quantized values too".to_owned());
        }
        let scales = operand(facts, node, 1).ok_or("its scales are not constant")?;
        let zeros = optional(facts, node, 2)?;
        let scale = &graph.initializer[scales];
        // From opset 23 on, the type of the results may differ from that of the scales.
        let data_type = match attribute(node, "output_dtype").map_or(0, |a| a.i) {
            0 => scale.data_type,
            given => {
                i32::try_from(given).map_err(|_| format!("its results have the unknown type {given}"))?
            }
        };
        let transposed = facts.orientation(result, data_type, &uses, &transposes)?;
        let (k, n) = if transposed {
            (columns, rows)
        } else {
            (rows, columns)
        };
        let (scale_of, group) = scale_layout(node, &scale.dims, [k, n], transposed)?;
        fits(bits, k, n, group)?;
        let readers = uses.iter().filter_map(|(u, _)| u.reader()).collect();
        let mut dropped = transposes.clone();
        dropped.push(at);
        let kind = Dequantize {
            scales,
            zeros,
            bits,
            k,
            n,
            group,
            transposed,
            scale_of,
        };
        Ok((Kind::Dequantize(kind), readers, dropped))
    };
    Some((codes, decide()))
}

impl Kind {
    fn others(&self) -> Vec<usize> {
        match self {
            Self::NBits(_, i) => [Some(i.scales), i.zeros, i.g_idx].into_iter().flatten().collect(),
            Self::Dequantize(d) => [Some(d.scales), d.zeros].into_iter().flatten().collect(),
        }
    }
}

impl Dequantize {
    fn transcode(
        &self,
        codes: &HostTensor,
        scales: &HostTensor,
        zeros: Option<&HostTensor>,
    ) -> std::result::Result<(Packed, Loss), String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let (k, n, groups) = (self.k, self.n, self.k.div_ceil(self.group));
        // Signed values are counted from the lowest one.
        let lowest = codes.dtype().int_range().map_or(0, |(low, _)| low);
        #[expect(clippy::cast_precision_loss, reason = "at most 8 bits")]
        let lowest = lowest as f64;
        let bytes = codes.bytes().map_err(|e| text(&e))?;
        let steps = scales.to_f32().map_err(|e| text(&e))?;
        let zeros = zeros.map(HostTensor::to_i64).transpose().map_err(|e| text(&e))?;
        let wanted = match self.scale_of {
            ScaleOf::All => 1,
            ScaleOf::Column => n,
            ScaleOf::Group => groups * n,
        };
        let found = [Some(steps.len()), zeros.as_ref().map(Vec::len)];
        if let Some(found) = found.into_iter().flatten().find(|c| *c != wanted) {
            return Err(format!("expected {wanted} scales and zero points, found {found}"));
        }
        let flip = if lowest < 0.0 {
            1u8 << (self.bits.count() - 1)
        } else {
            0
        };
        let place = |i: usize, j: usize, rows: usize| if self.transposed { j * rows + i } else { i * n + j };
        let column = |j: usize, out: &mut GridColumn| {
            out.grids.extend((0..groups).map(|g| {
                let at = match self.scale_of {
                    ScaleOf::All => 0,
                    ScaleOf::Column => j,
                    ScaleOf::Group => place(g, j, groups),
                };
                #[expect(clippy::cast_precision_loss, reason = "at most 8 bits")]
                let zero = zeros.as_ref().map_or(0.0, |z| z[at] as f64);
                Grid::around(f64::from(steps[at]), zero - lowest)
            }));
            out.codes
                .extend((0..k).map(|i| (bytes[place(i, j, k)] ^ flip) & self.bits.top()));
        };
        let grids = Grids {
            format: Format::new(self.bits, self.group),
            k,
            n,
            column: Box::new(column),
        };
        grids.pack().map_err(|e| e.to_string())
    }
}

impl Kept {
    /// Converts the weight to E0M. Errors name the initializer.
    pub fn transcode(&self, source: &Source, weights: &mut Weights) -> Result<Transcoded> {
        let all = &source.graph.initializer;
        let name = &all[self.initializer].name;
        let mut read = |i: usize| weights.tensor(&all[i]);
        let codes = read(self.initializer)?;
        let bad = |what: String| source.bad(format!("weight \"{name}\": {what}"));
        let mut bytes_before = codes.len() * codes.dtype().bits() / 8;
        let mut other = |i: usize| {
            let tensor = read(i)?;
            bytes_before += tensor.len() * tensor.dtype().bits() / 8;
            Ok::<_, transformer_lite::Error>(tensor)
        };
        let (packed, loss, order) = match &self.kind {
            Kind::NBits(layout, inputs) => {
                let scales = other(inputs.scales)?;
                let zeros = inputs.zeros.map(&mut other).transpose()?;
                let g_idx = inputs.g_idx.map(&mut other).transpose()?;
                let weight = layout
                    .weight(&codes, &scales, zeros.as_ref(), g_idx.as_ref())
                    .map_err(|e| bad(e.to_string()))?;
                let (grids, order) = weight.grids().map_err(|e| bad(e.to_string()))?;
                let packed = grids.pack().map_err(|e: QuantError| bad(e.to_string()))?;
                (packed.0, packed.1, order)
            }
            Kind::Dequantize(d) => {
                let scales = other(d.scales)?;
                let zeros = d.zeros.map(&mut other).transpose()?;
                let made = d.transcode(&codes, &scales, zeros.as_ref()).map_err(bad)?;
                (made.0, made.1, None)
            }
        };
        Ok(Transcoded {
            packed,
            loss,
            order,
            bytes_before: bytes_before as u64,
        })
    }

    /// The tensors to write: name, type, shape, bytes.
    pub fn tensors(&self, t: &Transcoded) -> Vec<(String, DType, Vec<usize>, Vec<u8>)> {
        let p = &t.packed;
        let (scales_type, scales_shape) = p.format.scale_tensor(p.k, p.n);
        let mut out = vec![
            (
                self.codes.clone(),
                DType::U32,
                vec![p.format.bits.rows(p.k), p.n],
                bytemuck::cast_slice(&p.codes).to_vec(),
            ),
            (
                self.scales.clone(),
                scales_type,
                scales_shape,
                bytemuck::cast_slice(&p.scales).to_vec(),
            ),
        ];
        if let Some(order) = &t.order {
            let bytes = order.iter().flat_map(|i| (*i as u64).to_le_bytes()).collect();
            out.push((self.order.clone(), DType::I64, vec![order.len()], bytes));
        }
        out
    }

    /// The entry of the summary.
    pub fn summary(&self, name: &str, t: &Transcoded, bytes_after: u64) -> Quantized {
        Quantized::new(
            name,
            &self.shape,
            t.packed.format,
            &t.loss,
            t.bytes_before,
            bytes_after,
        )
    }

    /// True for an initializer that is no longer needed.
    pub fn replaces(&self, initializer: usize) -> bool {
        self.gone.contains(&initializer)
    }

    /// Changes the nodes around the weight. `ordered`: its rows are reordered.
    pub fn change(&self, graph: &GraphProto, ordered: bool, changes: &mut [Change]) -> Result<()> {
        for at in &self.dropped {
            changes[*at] = Change::Drop;
        }
        for at in &self.readers {
            changes[*at] = Change::Replace(self.replacement(&graph.node[*at], ordered)?);
        }
        Ok(())
    }

    fn replacement(&self, node: &NodeProto, ordered: bool) -> Result<Vec<NodeProto>> {
        let (bits, group) = match &self.kind {
            Kind::NBits(layout, _) => (layout.bits, layout.block),
            Kind::Dequantize(d) => (d.bits, d.group),
        };
        let rows = node.op_type == "Gather";
        let mut x = node.input.get(usize::from(rows)).cloned().unwrap_or_default();
        let result = node.output.first().cloned().unwrap_or_default();
        let bias = match &self.kind {
            Kind::NBits(..) => node.input.get(5).filter(|b| !b.is_empty()),
            Kind::Dequantize(_) => None,
        };
        let mut out = Vec::new();
        let plain =
            |op: &str, name: String, input: Vec<String>, output: &str, attribute: Vec<AttributeProto>| {
                NodeProto {
                    input,
                    output: vec![output.to_owned()],
                    name,
                    op_type: op.to_owned(),
                    attribute,
                    domain: String::new(),
                    ..NodeProto::default()
                }
            };
        if ordered {
            // The names of the new initializers are unused, so these are unused too.
            let to = format!("{}.input", self.order);
            let name = format!("{}/ordered", node.name);
            out.push(plain(
                "Gather",
                name,
                vec![x, self.order.clone()],
                &to,
                vec![int("axis", -1)],
            ));
            x = to;
        }
        let product = match bias {
            Some(_) => format!("{}.product", self.codes),
            None => result.clone(),
        };
        out.push(NodeProto {
            input: vec![x, self.codes.clone(), self.scales.clone()],
            output: vec![product.clone()],
            name: node.name.clone(),
            op_type: if rows { "GatherE0M" } else { "MatMulE0M" }.to_owned(),
            attribute: vec![
                int("bits", i64::from(bits.count())),
                int("group_size", signed(group)),
            ],
            domain: OWN_DOMAIN.to_owned(),
            ..NodeProto::default()
        });
        if let Some(bias) = bias {
            let name = format!("{}/biased", node.name);
            out.push(plain(
                "Add",
                name,
                vec![product, bias.clone()],
                &result,
                Vec::new(),
            ));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
