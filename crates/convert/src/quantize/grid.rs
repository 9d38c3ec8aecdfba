//! Finds the group size of weights that were quantized before and are stored as floats, such as
//! those of a converted GGUF file: within a group they lie on a grid, and a scale per group of that
//! size keeps them.

use super::panels::sample;
use super::plan::{Weight, plan};
use super::source::Source;
use super::{MODEL, Options, Weights};
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result, Stage};
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
    if !path.is_file() {
        let what = format!("there is no file {}", path.display());
        return Err(Error::usage("folder", what));
    }
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
mod tests {
    use super::*;

    /// Numbers from 0 to 1.
    fn noise(count: usize) -> impl Iterator<Item = f32> {
        (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32)
    }

    /// Two columns of 256 weights on grids of `levels`, with a scale for each group.
    fn grid(group: usize, levels: f32) -> Vec<f32> {
        let scales: Vec<f32> = noise(512 / group).map(|v| 0.5 + v).collect();
        noise(512)
            .enumerate()
            .map(|(i, v)| scales[i / group] * ((v * levels).floor() - levels / 2.0) / levels)
            .collect()
    }

    #[test]
    fn grids_are_found_by_their_group() {
        for group in [16, 32, 64] {
            assert_eq!(
                group_of(&grid(group, 16.0), 256, Bits::Four, 128),
                Some(group),
                "{group}"
            );
        }
    }

    #[test]
    fn floats_and_finer_grids_have_no_group() {
        let floats: Vec<f32> = noise(512).map(|v| v - 0.5).collect();
        for bits in [Bits::Four, Bits::Eight] {
            assert_eq!(group_of(&floats, 256, bits, 128), None, "{bits}");
        }
        assert_eq!(group_of(&grid(32, 256.0), 256, Bits::Four, 128), None);
        // What the usual size keeps needs no smaller one.
        assert_eq!(group_of(&grid(128, 16.0), 256, Bits::Four, 128), None);
        assert_eq!(group_of(&[f32::NAN; 256], 256, Bits::Four, 128), None);
    }
}
