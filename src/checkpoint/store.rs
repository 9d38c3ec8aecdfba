//! What a checkpoint must tell of its tensors.

use crate::error::{Error, Result};
use crate::quant::{GridColumn, Grids};
use std::collections::BTreeMap;

/// Reads rows as `f32`: from the given row on, as many as the buffer holds.
pub type Rows<'a> = Box<dyn Fn(usize, &mut [f32]) -> Result<()> + 'a>;

/// A tensor as a checkpoint stores it, in the order of the graph's heads.
pub struct Stored<'a> {
    /// Its elements.
    pub rows: Rows<'a>,
    /// Where they are codes on grids: the matrix of `inputs` rows and `outputs` columns, whose column j is row j of the tensor.
    pub grids: Option<Grids<'a>>,
    /// Row i of `grids` is for input `order[i]`; `None` where that is i.
    pub order: Option<Vec<usize>>,
    /// Name of the type.
    pub kind: String,
    /// Bytes in the file.
    pub bytes: u64,
}

/// The tensors of a checkpoint, by the names that they have in checkpoints of Hugging Face. Errors name them as the file does.
pub trait Tensors {
    /// The tensor of this name and shape, a weight `[outputs, inputs]`. An error where there is none or it has another shape or a type that
    /// cannot be read.
    fn stored(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>>;

    /// An error about the tensor of this name.
    fn bad(&self, name: &str, what: &str) -> Error;

    /// An error about all of it.
    fn bad_file(&self, what: &str) -> Error;

    /// How many tensors of each type there are, by the type's name.
    fn types(&self) -> BTreeMap<String, usize>;

    /// An error naming a tensor that nothing has asked for, if there is one.
    fn all_used(&self) -> Result<()>;
}

/// Rows of a matrix on grids.
pub fn decoded<'a>(grids: Grids<'a>, order: Option<Vec<usize>>) -> Rows<'a> {
    Box::new(move |first, out| {
        let (mut column, mut weights) = (GridColumn::default(), Vec::new());
        for (j, row) in (first..).zip(out.chunks_exact_mut(grids.k)) {
            column.clear();
            weights.clear();
            (grids.column)(j, &mut column);
            column.weights(grids.group, &mut weights);
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
