//! Interface to the tensors of a checkpoint.

use super::Params;
use std::collections::BTreeMap;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::quant::{GridColumn, Grids};

/// Reads rows as `f32`: from the given row, as many as the buffer holds.
pub type ReadRows<'a> = Box<dyn Fn(usize, &mut [f32]) -> Result<()> + 'a>;

/// A stored tensor, in the order of the graph's heads.
pub struct Stored<'a> {
    pub rows: ReadRows<'a>,
    /// For quantized tensors: the matrix of `inputs` rows and `outputs` columns; its column j is
    /// row j of the tensor.
    pub grids: Option<Grids<'a>>,
    /// Row i of `grids` is for input `order[i]`; `None` if that is i.
    pub order: Option<Vec<usize>>,
    /// Name of the type.
    pub kind: String,
    /// Bytes in the file.
    pub bytes: u64,
}

/// The tensors of a checkpoint, by their Hugging Face names. Errors use the names of the file.
pub trait Tensors {
    /// The tensor with this name and shape; a weight is `[outputs, inputs]`. An error if it is
    /// missing, has another shape, or has an unsupported type.
    fn stored(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>>;

    /// The name of this tensor in the file.
    fn name(&self, name: &str) -> String;

    /// An error about the tensor with this name.
    fn bad(&self, name: &str, what: &str) -> Error {
        self.bad_file(&format!("tensor \"{}\": {what}", self.name(name)))
    }

    /// An error about the checkpoint as a whole.
    fn bad_file(&self, what: &str) -> Error;

    /// Number of tensors per type, by type name.
    fn types(&self) -> BTreeMap<String, usize>;

    /// An error naming a tensor that was never requested, if there is one.
    fn all_used(&self) -> Result<()>;
}

/// An error for sizes whose product overflows.
pub fn too_large(tensors: &dyn Tensors) -> Error {
    tensors.bad_file("a model of these sizes is too large")
}

/// Checks the sizes that a file claims against its tensors before anything is allocated.
pub(crate) fn check_sizes(tensors: &dyn Tensors, p: &Params) -> Result<()> {
    let stored = |name: &str, outputs: usize| tensors.stored(name, &[outputs, p.hidden]);
    stored("model.embed_tokens.weight", p.vocab)?;
    if p.elements().is_none() {
        // The error of a tensor says more, if there is such a tensor.
        if !p.family.joins_projections {
            stored("model.layers.0.mlp.up_proj.weight", p.intermediate)?;
        }
        return Err(too_large(tensors));
    }
    let widths = if p.family.joins_projections {
        vec![
            ("self_attn.qkv_proj", p.q_width() + 2 * p.kv_width()),
            ("mlp.gate_up_proj", 2 * p.intermediate),
        ]
    } else {
        vec![
            ("self_attn.q_proj", p.q_width()),
            ("self_attn.k_proj", p.kv_width()),
            ("mlp.up_proj", p.intermediate),
        ]
    };
    for (name, outputs) in widths {
        stored(&format!("model.layers.0.{name}.weight"), outputs)?;
    }
    Ok(())
}

/// Reads rows of a quantized matrix.
pub fn decoded<'a>(grids: Grids<'a>, order: Option<Vec<usize>>) -> ReadRows<'a> {
    Box::new(move |first, out| {
        let (mut column, mut weights) = (GridColumn::default(), Vec::new());
        for (j, row) in (first..).zip(out.chunks_exact_mut(grids.k)) {
            column.clear();
            weights.clear();
            (grids.column)(j, &mut column);
            column.weights(grids.format, &mut weights);
            for (i, w) in weights.iter().enumerate() {
                let at = order.as_ref().map_or(Some(i), |o| o.get(i).copied());
                if let Some(to) = at.and_then(|at| row.get_mut(at)) {
                    *to = *w;
                }
            }
        }
        Ok(())
    })
}
