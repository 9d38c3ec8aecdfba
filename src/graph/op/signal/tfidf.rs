//! Counts occurrences of n-grams of integers. ONNX `TfIdfVectorizer` from opset 9, without strings.
//!
//! The operand has one or more rows; each row of the result has one number per index in the list.

use crate::graph::op::case::{Case, input};
use crate::graph::op::types::Types;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, filled, onnx, operand};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::collections::HashMap;

#[derive(Clone, Debug, PartialEq)]
pub struct Tfidf {
    /// The n-grams to count, with their positions in a row of the result.
    pub places: HashMap<Vec<i64>, usize>,
    /// Length of a row of the result.
    pub size: usize,
    /// Minimum and maximum n-gram length.
    pub lengths: (usize, usize),
    /// Maximum number of elements skipped between two elements of an n-gram; the same number
    /// between each two.
    pub skips: usize,
    /// Report presence (0 or 1) instead of counts.
    pub once: bool,
    /// Weights of the counts; empty for none.
    pub weights: Vec<f32>,
}

impl Op for Tfidf {
    fn name(&self) -> &str {
        "TfIdfVectorizer"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.typed(0, Types::INTEGER)?;
        let mut shape = match x.shape.0.as_slice() {
            [] | [_] => Vec::new(),
            [rows, _] => vec![rows.clone()],
            _ => return Err(OpError::expected("rank", "at most 2", x)),
        };
        shape.push(Dim::from_usize(self.size));
        Ok(vec![Fact::new(DType::F32, Shape(shape))])
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of occurrences")]
    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let (shape, length) = match x.shape() {
            [] => (vec![self.size], 1),
            [n] => (vec![self.size], *n),
            [rows, n] => (vec![*rows, self.size], *n),
            _ => return Err(OpError::expected("rank", "at most 2", format!("{x:?}"))),
        };
        let data = x.to_i64()?;
        let mut counts = filled(&shape, 0u32)?;
        let rows = data
            .chunks(length.max(1))
            .zip(counts.chunks_mut(self.size.max(1)));
        for (row, counts) in rows {
            for n in self.lengths.0..=self.lengths.1 {
                // A unigram has nothing to skip.
                for step in 1..=if n == 1 { 1 } else { self.skips + 1 } {
                    let Some(last) = row.len().checked_sub((n - 1) * step + 1) else {
                        break;
                    };
                    for start in 0..=last {
                        quota::check()?;
                        let sequence: Vec<i64> =
                            row.iter().skip(start).step_by(step).take(n).copied().collect();
                        if let Some(count) = self.places.get(&sequence).and_then(|p| counts.get_mut(*p)) {
                            *count = count.saturating_add(1);
                        }
                    }
                }
            }
        }
        let weigh = |(i, n): (usize, &u32)| {
            let n = if self.once { u32::from(*n > 0) } else { *n };
            n as f32 * self.weights.get(i % self.size).copied().unwrap_or(1.0)
        };
        let y: Vec<f32> = counts.iter().enumerate().map(weigh).collect();
        Ok(vec![HostTensor::from_f32(&shape, &y)?])
    }
}

/// The n-grams: first those of length 1, then of length 2, and so on; `starts` holds the start of
/// each length.
fn sequences(pool: &[i64], starts: &[i64], indexes: &[i64]) -> OpResult<HashMap<Vec<i64>, usize>> {
    let bad = |v: i64| OpError::expected("attribute `ngram_counts`", "ascending positions in the pool", v);
    let mut places = HashMap::new();
    let mut index = indexes.iter();
    for (i, start) in starts.iter().enumerate() {
        let from = usize::try_from(*start).map_err(|_| bad(*start))?;
        let to = starts
            .get(i + 1)
            .map_or(Ok(pool.len()), |v| usize::try_from(*v).map_err(|_| bad(*v)))?;
        let part = pool.get(from..to).ok_or_else(|| bad(*start))?;
        for sequence in part.chunks_exact(i + 1) {
            let at = index.next().and_then(|v| usize::try_from(*v).ok());
            let at = at.ok_or_else(|| {
                OpError::expected(
                    "attribute `ngram_indexes`",
                    "one non-negative number per sequence",
                    "fewer",
                )
            })?;
            places.insert(sequence.to_vec(), at);
        }
    }
    Ok(places)
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    if a.strings("pool_strings")?.is_some_and(|pool| !pool.is_empty()) {
        return Err(OpError::Unsupported("n-grams of strings".to_owned()));
    }
    let list = |name| Ok::<_, OpError>(a.ints(name)?.unwrap_or_default());
    let (pool, starts, indexes) = (
        list("pool_int64s")?,
        list("ngram_counts")?,
        list("ngram_indexes")?,
    );
    let number = |name: &str, least: usize| match a.int(name)? {
        Some(v) if (0..1 << 16).contains(&v) => Ok(num::exact::<usize, _>(v, "a length")?.max(least)),
        found => Err(OpError::expected(
            format!("attribute `{name}`"),
            "0 to 65535",
            format!("{found:?}"),
        )),
    };
    let once = match a.string("mode")?.as_deref() {
        Some("TF" | "TFIDF") => false,
        Some("IDF") => true,
        found => {
            return Err(OpError::expected(
                "attribute `mode`",
                "TF, IDF or TFIDF",
                format!("{found:?}"),
            ));
        }
    };
    let weighs = a.string("mode")?.is_some_and(|mode| mode != "TF");
    let places = sequences(&pool, &starts, &indexes)?;
    let most = indexes.iter().copied().max().unwrap_or(-1);
    Ok(Box::new(Tfidf {
        places,
        size: num::exact(most.saturating_add(1).max(0), "a number of n-grams")?,
        lengths: (number("min_gram_length", 1)?, number("max_gram_length", 1)?),
        skips: number("max_skip_count", 0)?,
        once,
        weights: a.floats("weights")?.filter(|_| weighs).unwrap_or_default(),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("TfIdfVectorizer", 9, 1)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let places = HashMap::from([(vec![1], 0), (vec![0, 2], 2), (vec![2, 2], 1)]);
    let op = Tfidf {
        places,
        size: 3,
        lengths: (1, 2),
        skips: 1,
        once: false,
        weights: vec![1.0, 0.5, 2.0],
    };
    vec![Case::new(op, vec![input(&[3, 9]).ints(0, 2)]).host_only("no kernel")]
}
