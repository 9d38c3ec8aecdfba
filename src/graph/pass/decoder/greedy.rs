//! Greedy decoding needs only the index of the largest logit: an additional output holds it, so one
//! number per row leaves the device.
//!
//! A row is split into about as many parts as each part is long. The largest element of each part
//! is found in parallel, then the largest of those. The first of equal elements wins, within the
//! parts and among them.
//!
//! NaN counts as the largest element, so the largest logit tells whether the row has a token.

use super::parts::{Nodes, logits, parts};
use crate::error::Result;
use crate::graph::Edit;
use crate::graph::op::arg_max::ArgMax;
use crate::graph::op::gather_elements::GatherElements;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::pass::Pass;
use crate::tensor::DType;

pub const GREEDY: Pass = Pass {
    name: "greedy",
    does: "adds an output with the index of the largest logit",
    refuses: "a vocabulary of unknown size",
    run,
};

/// The output: for each row of the output `logits` the index of its first largest element,
/// `[batch, rows, 1]`. An index after the last element of a row means that the host must search it:
/// an element is NaN or plus infinity, or none is above minus infinity.
pub const TOKEN: &str = "most_likely_token";

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let Some((logits, vocab)) = logits(edit, TOKEN) else {
        return Ok(());
    };
    if !edit.begin("index of the largest logit") {
        return Ok(());
    }
    let (count, length) = cut(vocab);
    let mut nodes = Nodes {
        edit,
        prefix: TOKEN.to_owned(),
        origin: Vec::new(),
    };
    let x = nodes.padded(logits, count * length - vocab);
    let x = nodes.reshaped("parts", x, &[0, 0, count, length])?;
    let find = |keep| ArgMax {
        min: false,
        axis: -1,
        keep,
        last: false,
    };
    let max = Reduce {
        kind: Kind::Max,
        axes: Some(vec![-1]),
        keep: false,
        noop_without_axes: false,
    };
    let places = nodes.one("places", Box::new(find(false)), &[x]);
    let largest = nodes.one("largest", Box::new(max), &[x]);
    let part = nodes.one("part", Box::new(find(true)), &[largest]);
    let place = nodes.one("place", Box::new(GatherElements { axis: -1 }), &[places, part]);
    let value = nodes.one("value", Box::new(GatherElements { axis: -1 }), &[largest, part]);
    nodes.output(
        TOKEN,
        Box::new(index_in_row(length, vocab)),
        &[part, place, value],
    );
    Ok(())
}

/// The index of an element of a part, or `vocab` if the largest element of the row is not finite.
fn index_in_row(length: i64, vocab: i64) -> Pointwise {
    let [part, place, largest] = [0, 1, 2].map(|i| Box::new(Expr::Input(i)));
    let index = |n: i64| Box::new(Expr::Const(n as f64, DType::I64));
    let start = Box::new(Expr::Binary(Binary::Mul, part, index(length)));
    let found = Box::new(Expr::Binary(Binary::Add, start, place));
    let most = Box::new(Expr::Const(f64::from(f32::MAX), DType::F32));
    let magnitude = Box::new(Expr::Unary(Unary::Abs, largest));
    let is_finite = Box::new(Expr::Binary(Binary::LessOrEqual, magnitude, most));
    Pointwise {
        name: "Fused".to_owned(),
        expr: Expr::Select(is_finite, found, index(vocab)),
    }
}

/// Number of parts and their length, which are about equal.
fn cut(vocab: i64) -> (i64, i64) {
    parts(vocab, (1..).find(|n| n * n >= vocab).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_vocabulary() {
        let found = [1, 2, 258, 32_000, 49_152, 65_537, 151_936, 256_000].map(cut);
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
        assert_eq!(cut(49_152), (192, 256));
        assert_eq!(cut(65_537), (256, 257), "a prime leaves parts of padding");
    }
}
