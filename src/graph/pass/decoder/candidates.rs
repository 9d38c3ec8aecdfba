//! Top-k sampling needs few logits of a row. Additional outputs hold the [`COUNT`] largest, their
//! indices, and the log-sum-exp of the row, which normalizes them.
//!
//! A row is split into parts, and only the [`COUNT`] parts with the largest maxima are searched.
//! This is enough: an element of another part comes after all these maxima, that is, after at least
//! [`COUNT`] elements. Parts are searched in the order of the row, so that the first of equal
//! elements wins.

use super::parts::{Nodes, logits, parts};
use crate::error::Result;
use crate::graph::op::gather_elements::GatherElements;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise};
use crate::graph::op::reduce::{Kind, Reduce};
use crate::graph::op::top_k::TopK;
use crate::graph::pass::Pass;
use crate::graph::{Edit, ValueId};
use crate::num;
use crate::tensor::{DType, HostTensor};

pub const CANDIDATES: Pass = Pass {
    name: "candidates",
    does: "adds outputs with the 64 largest logits, their indices and the log-sum-exp",
    refuses: "vocabularies of unknown size, of less than 4096 entries, or too large to search",
    run,
};

/// Number of candidates of a row.
pub const COUNT: usize = 64;
const KEPT: i64 = num::wide(COUNT).cast_signed();

/// The output with the largest elements of each row of the output `logits`, in order, of shape
/// `[batch, rows, COUNT]`. The first of equal ones comes first.
pub const CANDIDATE_LOGITS: &str = "candidate_logits";
/// The output with their indices, of the same shape. Indices after the last element of a row mean
/// that the row has fewer logits above -65504.
pub const CANDIDATE_IDS: &str = "candidate_ids";
/// The output with the logarithm of the sum of the exponentials of each row, `[batch, rows, 1]`.
pub const LOG_SUM: &str = "candidate_log_sum";

/// Rows with fewer elements are read whole.
const LEAST: i64 = 4096;
/// Maximum number of parts, and of elements in the parts that are searched: `TopK` compares each
/// with all others.
const MOST: i64 = 8192;

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let Some((logits, vocab)) = logits(edit, CANDIDATE_LOGITS) else {
        return Ok(());
    };
    let (count, length) = cut(vocab);
    if vocab < LEAST || count.max(KEPT * length) > MOST {
        log::debug!("no output \"{CANDIDATE_LOGITS}\": the vocabulary has {vocab} entries");
        return Ok(());
    }
    if !edit.begin("candidates for the next token") {
        return Ok(());
    }
    let mut nodes = Nodes {
        edit,
        prefix: "candidates".to_owned(),
        origin: Vec::new(),
    };
    let row = nodes.padded(logits, count * length - vocab);
    let x = nodes.reshaped("parts", row, &[0, 0, count, length])?;
    let reduce = |kind, keep| Reduce {
        kind,
        axes: Some(vec![-1]),
        keep,
        noop_without_axes: false,
    };
    let first = |largest| TopK {
        axis: -1,
        k: Some(KEPT),
        largest,
    };
    let sums = nodes.one("sums", Box::new(reduce(Kind::LogSumExp, false)), &[x]);
    nodes.output(LOG_SUM, Box::new(reduce(Kind::LogSumExp, true)), &[sums]);
    let maxima = nodes.one("maxima", Box::new(reduce(Kind::Max, false)), &[x]);
    let [_, near] = nodes.several(["best", "near"], Box::new(first(true)), &[maxima]);
    let [near, _] = nodes.several(["ordered", "order"], Box::new(first(false)), &[near]);
    let index = indices(&mut nodes, near, length)?;
    let found = nodes.one("found", Box::new(GatherElements { axis: -1 }), &[row, index]);
    let names = [CANDIDATE_LOGITS.to_owned(), nodes.named("at")];
    let [largest, at] = nodes.add(names, Box::new(first(true)), &[found]);
    nodes.edit.add_output(largest);
    nodes.output(CANDIDATE_IDS, Box::new(GatherElements { axis: -1 }), &[index, at]);
    Ok(())
}

/// The indices in a row of all elements of the parts `near`.
fn indices(nodes: &mut Nodes<'_, '_>, near: ValueId, length: i64) -> Result<ValueId> {
    let near = nodes.reshaped("column", near, &[0, 0, KEPT, 1])?;
    let offsets: Vec<i64> = (0..length).collect();
    let offsets = nodes.constant("offsets", HostTensor::from_i64(&[offsets.len()], &offsets))?;
    let [part, offset] = [0, 1].map(|i| Box::new(Expr::Input(i)));
    let length_of_part = Box::new(Expr::Const(length as f64, DType::I64));
    let start = Box::new(Expr::Binary(Binary::Mul, part, length_of_part));
    let sum = Pointwise {
        name: "Fused".to_owned(),
        expr: Expr::Binary(Binary::Add, start, offset),
    };
    let index = nodes.one("places", Box::new(sum), &[near, offsets]);
    nodes.reshaped("index", index, &[0, 0, KEPT * length])
}

/// Number of parts and their length: about as many parts as there are elements to search.
fn cut(vocab: i64) -> (i64, i64) {
    let length = (1..).find(|n| KEPT * n * n >= vocab).unwrap_or(1);
    parts(vocab, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_about_as_many_as_elements_to_search() {
        for vocab in [4096, 32_000, 49_152, 65_537, 128_256, 151_936, 256_000, 262_144] {
            let (count, length) = cut(vocab);
            assert!(count * length >= vocab && (count - 1) * length < vocab, "{vocab}");
            assert!(count >= KEPT, "{vocab}");
            assert!(count.max(KEPT * length) <= MOST, "{vocab}: {count} of {length}");
        }
        assert_eq!(cut(151_936), (2374, 64));
        assert_eq!(cut(49_152), (1536, 32));
    }
}
