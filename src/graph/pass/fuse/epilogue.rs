//! Fuses an elementwise operator into the operator that makes one of its operands, as its epilogue
//! (paper, section 2.2: "we automatically fuse the elementary-wise operator with other operators").
//!
//! Both sides are general: any elementwise expression, and any operator whose kernels [take an
//! epilogue](crate::graph::op::Op::supports_epilogue).

use crate::error::Result;
use crate::graph::op::fused::Fused;
use crate::graph::op::pointwise::{Expr, Pointwise};
use crate::graph::pass::Pass;
use crate::graph::pass::pattern::shape;
use crate::graph::{Edit, NodeId, ValueId};

pub const EPILOGUE: Pass = Pass {
    name: "epilogue",
    does: "fuses an elementwise operator into the operator before it",
    refuses: "integers; more than 3 additional operands; repeated results",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    for id in edit.order()? {
        let Some(found) = find(edit, id) else {
            continue;
        };
        let name = edit.node(id).map_or("", |n| &n.name);
        let base = edit.node(found.base).map_or("", |n| &n.name);
        if !edit.begin(&format!("\"{name}\" becomes the epilogue of \"{base}\"")) {
            return Ok(());
        }
        edit.replace_node(id, Box::new(found.op), found.inputs, found.origin);
        edit.remove_node(found.base);
    }
    Ok(())
}

struct EpilogueMatch {
    base: NodeId,
    op: Fused,
    inputs: Vec<Option<ValueId>>,
    origin: Vec<String>,
}

fn find(g: &Edit<'_>, id: NodeId) -> Option<EpilogueMatch> {
    let node = g.node(id)?;
    let op = node.op.downcast::<Pointwise>()?;
    let out = *node.outputs.first()?;
    let dtype = |v: ValueId| g.value(v).fact.as_ref().map(|f| f.dtype);
    let float = |v: ValueId| dtype(v).is_some_and(|t| t.is_float());
    // Types that stay on the host must not keep the other operator from a device.
    let on_devices = |v: &ValueId| dtype(*v).is_some_and(|t| t.on_devices());
    for v in node.inputs.iter().flatten().copied() {
        let Some((from, base)) = g.producer(v).filter(|(_, n)| n.op.supports_epilogue()) else {
            continue;
        };
        let refuse = |why: &str| {
            log::debug!(
                "\"{}\" cannot be the epilogue of \"{}\": {why}",
                node.name,
                base.name
            );
        };
        let alone = g.readers(v).all(|reader| reader == id);
        if g.is_kept(v) || !alone || base.outputs.len() != 1 {
            refuse("the result has other readers");
            continue;
        }
        if shape(g, v)? != shape(g, out)? {
            refuse("the result is broadcast");
            continue;
        }
        if !node.inputs.iter().flatten().chain([&out]).all(on_devices) {
            refuse("devices do not support its types");
            continue;
        }
        if !float(v) || !float(out) {
            refuse("it converts between floats and other types");
            continue;
        }
        let mut further: Vec<ValueId> = Vec::new();
        for other in node.inputs.iter().flatten().filter(|o| **o != v) {
            if !further.contains(other) {
                further.push(*other);
            }
        }
        if dtype(v) != dtype(out) && !further.is_empty() {
            refuse("it converts the result and has other operands");
            continue;
        }
        if further.len() > Fused::MAX_FURTHER {
            refuse("it has too many operands");
            continue;
        }
        let places: Vec<usize> = node
            .inputs
            .iter()
            .flatten()
            .map(|i| further.iter().position(|f| f == i).map_or(0, |p| p + 1))
            .collect();
        let expr = op
            .expr
            .map_inputs(&mut |i| Expr::Input(places.get(i).copied().unwrap_or(i)));
        let types = std::iter::once(v).chain(further.iter().copied());
        let types: Option<Vec<_>> = types.map(|v| Some(g.value(v).fact.as_ref()?.dtype)).collect();
        if !expr.has_kernel(&types?) {
            refuse("there is no kernel for its expression");
            continue;
        }
        let mut inputs = base.inputs.clone();
        inputs.extend(further.into_iter().map(Some));
        let mut origin = base.origin.clone();
        origin.extend(node.origin.iter().cloned());
        return Some(EpilogueMatch {
            base: from,
            op: Fused::new(base.op.clone(), base.inputs.len(), expr),
            inputs,
            origin,
        });
    }
    None
}
