//! Finds the group size of weights that were quantized before and are stored as floats, such as
//! those of a converted GGUF file: within a group they lie on a grid, and a scale per group of that
//! size keeps them.

use super::plan::plan;
use super::source::Source;
use super::weight::{Weight, sample};
use super::{MODEL, Options, Weights};
use std::path::Path;
use transformer_lite::unstable::error::{Result, Stage};
use transformer_lite::unstable::files::kind::check_file;
use transformer_lite::unstable::quant::{Bits, ByGroup, Method, Packed};

/// Group sizes that are tried, the largest first: a larger group takes fewer bits.
const SIZES: [usize; 3] = [64, 32, 16];
/// Matrices that are looked at, and columns of each.
const MATRICES: usize = 9;
const COLUMNS: usize = 8;
/// Weights lie on a grid where the error is this small a part of that with the usual group size.
/// Without a grid, groups of 16 have about two thirds of the error of groups of 128.
const NEAR_ZERO: f64 = 0.25;

/// The group size, smaller than that of `options`, with which weights of the width of `options`
/// keep most matrices of the model in the folder `input` almost exactly. `None` where there is no
/// such size. Looks at a sample of columns.
///
/// Errors: those of [`super::quantize`] for a model that cannot be read.
pub fn grid_group(input: &Path, options: &Options) -> Result<Option<usize>> {
    let path = input.join(MODEL);
    check_file("folder", &path)?;
    let source = Source::open(Stage::Quantize, path)?;
    let mut weights = Weights::new(&source.path);
    let plan = plan(&source.graph, &mut weights, options)?;
    let body: Vec<&Weight> = plan.weights.iter().filter(|w| !w.head).collect();
    let mut votes = Vec::new();
    for w in body.iter().step_by(body.len().div_ceil(MATRICES).max(1)) {
        let Some(t) = source.graph.initializer.get(w.initializer) else {
            continue;
        };
        let tensor = weights.tensor(t)?;
        let columns = sample(source.elements(&t.name, &tensor)?, w, COLUMNS);
        votes.push(group_of(&columns, w.k, w.bits, w.group));
    }
    let most = SIZES.into_iter().find(|size| {
        let found = votes.iter().filter(|v| **v == Some(*size)).count();
        2 * found > votes.len()
    });
    Ok(most)
}

/// The largest group size below `usual` with which `columns` of `k` weights are kept almost
/// exactly.
fn group_of(columns: &[f32], k: usize, bits: Bits, usual: usize) -> Option<usize> {
    let error = |group: usize| {
        let packed = Packed::from_columns(bits, group, k, columns, &ByGroup::from(Method::Mse));
        packed.ok().map(|(_, loss)| loss.relative_rms())
    };
    let now = error(usual)?;
    // Without a grid the error is about one level, or more.
    let kept = 0.1 / f64::from(1u32 << bits.count());
    if now < kept {
        return None;
    }
    let limit = NEAR_ZERO * now;
    let mut sizes = SIZES.into_iter().filter(|size| *size < usual);
    sizes.find(|size| error(*size).is_some_and(|e| e < limit))
}

#[cfg(test)]
mod tests;
