//! Greedy decoding needs only the index of the largest logit: an additional output holds it, so one
//! number per row leaves the device.
//!
//! A row is split into about as many parts as each part is long. The largest element of each part
//! is found in parallel, then the largest of those. The first of equal elements wins, within the
//! parts and among them.

use crate::error::{Error, Result, Stage};
use crate::graph::op::arg_max::ArgMax;
use crate::graph::op::gather_elements::GatherElements;
use crate::graph::op::pad::{Mode, Pad};
use crate::graph::op::pointwise::{Binary, Expr, Pointwise};
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::op::reshape::Reshape;
use crate::graph::pass::Pass;
use crate::graph::{Edit, Op, ValueId};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

pub const GREEDY: Pass = Pass {
    name: "greedy",
    does: "adds an output with the index of the largest logit",
    refuses: "a vocabulary of unknown size",
    run,
};

/// The output: for each row of the output `logits` the index of its first largest element,
/// `[batch, rows, 1]`.
pub const TOKEN: &str = "most_likely_token";

/// Padding value: the smallest finite `f16`, below every relevant logit.
const MIN_F16: f32 = -65504.0;

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let logits = edit.output("logits");
    let shape = logits.and_then(|v| Some(edit.value(v).fact.as_ref()?.shape.0.clone()));
    let (Some(logits), Some([_, _, vocab])) = (logits, shape.as_deref()) else {
        log::debug!("no output \"{TOKEN}\": there is no output \"logits\" of rank 3");
        return Ok(());
    };
    let Some(vocab) = vocab.as_const().filter(|v| *v > 0) else {
        log::debug!("no output \"{TOKEN}\": the vocabulary has {vocab} entries");
        return Ok(());
    };
    if !edit.begin("index of the largest logit") {
        return Ok(());
    }
    let (parts, length) = parts(vocab);
    let cut = HostTensor::from_i64(&[4], &[0, 0, parts, length]);
    let cut = cut.map_err(|e| Error::other(Stage::Pass, e.to_string()))?;
    let cut = edit.add_const(&format!("{TOKEN}/shape"), Arc::new(cut));
    let mut add = |what: &str, op: Box<dyn Op>, operands: Vec<ValueId>| {
        let name = format!("{TOKEN}/{what}");
        let value = edit.add_value(if what.is_empty() { TOKEN } else { &name }, None);
        let operands = operands.into_iter().map(Some).collect();
        edit.add_node(&name, Vec::new(), op, operands, vec![value]);
        value
    };
    let mut x = logits;
    if parts * length > vocab {
        let pads = vec![0, 0, 0, 0, 0, parts * length - vocab];
        let pad = Pad {
            mode: Mode::Constant,
            pads: Some(pads),
            value: MIN_F16,
        };
        x = add("padded", Box::new(pad), vec![x]);
    }
    x = add(
        "parts",
        Box::new(Reshape::Reshape { allow_zero: false }),
        vec![x, cut],
    );
    let find = |keep| ArgMax {
        min: false,
        axis: -1,
        keep,
        last: false,
    };
    let most = Reduce {
        kind: Kind::Max,
        axes: Some(vec![-1]),
        keep: false,
        noop_without_axes: false,
    };
    let places = add("places", Box::new(find(false)), vec![x]);
    let largest = add("largest", Box::new(most), vec![x]);
    let part = add("part", Box::new(find(true)), vec![largest]);
    let place = add("place", Box::new(GatherElements { axis: -1 }), vec![places, part]);
    let start = Expr::Binary(
        Binary::Mul,
        Box::new(Expr::Input(0)),
        Box::new(Expr::Const(length as f64, DType::I64)),
    );
    let sum = Pointwise {
        name: "Fused".to_owned(),
        expr: Expr::Binary(Binary::Add, Box::new(start), Box::new(Expr::Input(1))),
    };
    let token = add("", Box::new(sum), vec![part, place]);
    edit.add_output(token);
    Ok(())
}

/// Number of parts and their length for `vocab` elements: about equal, and without a remainder if
/// possible.
fn parts(vocab: i64) -> (i64, i64) {
    let root = (1..).find(|n| n * n >= vocab).unwrap_or(1);
    let near = (root..=4 * root).find(|n| vocab % n == 0);
    let length = near.unwrap_or(root).min(vocab);
    ((vocab + length - 1) / length, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_vocabulary() {
        let found = [1, 2, 258, 32_000, 49_152, 65_537, 151_936, 256_000].map(parts);
        assert_eq!(found[..2], [(1, 1), (1, 2)]);
        for (vocab, (parts, length)) in [1, 2, 258, 32_000, 49_152, 65_537, 151_936, 256_000]
            .iter()
            .zip(found)
        {
            assert!(
                parts * length >= *vocab && (parts - 1) * length < *vocab,
                "{vocab}"
            );
            assert!(parts <= 520 && length <= 2100, "{vocab}: {parts} of {length}");
        }
        assert_eq!(parts(49_152), (192, 256));
        assert_eq!(parts(65_537), (256, 257), "a prime leaves parts of padding");
    }
}
