//! The likeliest tokens of rows of logits: all that sampling with a small top-k needs.

use super::sampler::arg_max;
use crate::error::Result;

/// The likeliest tokens of some rows of logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    ids: Vec<u32>,
    logits: Vec<f32>,
    /// See [`CandidateRow::log_total`].
    log_totals: Vec<f64>,
}

/// The likeliest tokens of a row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CandidateRow<'a> {
    /// By logit, largest first, then by ID.
    pub ids: &'a [u32],
    /// Their logits.
    pub logits: &'a [f32],
    /// Logarithm of the sum of `exp(logit - largest logit)` over the whole row.
    pub log_total: f64,
}

impl CandidateRow<'_> {
    /// Tokens with their logits.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f32)> {
        self.ids.iter().copied().zip(self.logits.iter().copied())
    }
}

impl Candidates {
    /// Number of candidates of a row, or all tokens of a smaller vocabulary.
    pub const COUNT: usize = crate::graph::pass::CANDIDATE_COUNT;

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.logits.clear();
        self.log_totals.clear();
    }

    /// Keeps the first rows.
    pub fn truncate(&mut self, rows: usize) {
        let each = self.ids.len() / self.rows().max(1);
        self.ids.truncate(rows * each);
        self.logits.truncate(rows * each);
        self.log_totals.truncate(rows);
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.log_totals.len()
    }

    /// Row `index`, if it exists.
    pub fn row(&self, index: usize) -> Option<CandidateRow<'_>> {
        let log_total = *self.log_totals.get(index)?;
        let each = self.ids.len() / self.rows();
        let range = index * each..(index + 1) * each;
        Some(CandidateRow {
            ids: self.ids.get(range.clone())?,
            logits: self.logits.get(range)?,
            log_total,
        })
    }

    /// Appends the likeliest tokens of a whole row. Returns the errors of [`arg_max`].
    pub fn push(&mut self, logits: &[f32]) -> Result<()> {
        arg_max(logits)?;
        let best = likeliest(logits, Self::COUNT);
        self.ids.extend(best.iter().map(|(id, _)| *id));
        self.logits.extend(best.iter().map(|(_, logit)| *logit));
        self.log_totals.push(log_total(logits));
        Ok(())
    }

    /// Appends a row whose likeliest tokens are known.
    pub fn push_row(&mut self, row: CandidateRow<'_>) {
        self.ids.extend_from_slice(row.ids);
        self.logits.extend_from_slice(row.logits);
        self.log_totals.push(row.log_total);
    }

    /// Appends the rows of `other` that are in `rows` and exist.
    pub fn extend(&mut self, other: &Self, rows: std::ops::Range<usize>) {
        rows.filter_map(|i| other.row(i))
            .for_each(|row| self.push_row(row));
    }
}

/// Logarithm of the sum of `exp(logit - largest logit)`.
pub(super) fn log_total(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|v| f64::from(v - most).exp()).sum();
    sum.ln()
}

/// The `count` most likely tokens and their logits, largest first; ties by ID.
pub(super) fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let order = |a: &(u32, f32), b: &(u32, f32)| {
        // The sum makes zeros equal, whatever their sign.
        (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0))
    };
    if count == 0 {
        return Vec::new();
    }
    let mut all: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
    if count < all.len() {
        all.select_nth_unstable_by(count - 1, order);
        all.truncate(count);
    }
    all.sort_unstable_by(order);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_the_largest_logits_in_order() {
        let mut found = Candidates::default();
        let row = |i: u32| (0..100).map(|j| ((j * 37 + i) % 50) as f32).collect::<Vec<f32>>();
        for i in 0..3 {
            found.push(&row(i)).unwrap();
        }
        assert_eq!((found.rows(), found.row(3)), (3, None));
        for i in 0..3 {
            let logits = row(i);
            let mut want: Vec<u32> = (0..100).collect();
            want.sort_by_key(|id| (-logits[*id as usize] as i32, *id));
            let row = found.row(i as usize).unwrap();
            assert_eq!(row.ids, &want[..Candidates::COUNT]);
            assert!(row.iter().all(|(id, logit)| logits[id as usize] == logit));
            let sum: f64 = logits.iter().map(|v| f64::from(*v).exp()).sum();
            assert!((row.log_total + 49.0 - sum.ln()).abs() < 1e-9);
        }
        let mut some = Candidates::default();
        some.extend(&found, 1..2);
        assert_eq!((some.rows(), some.row(0)), (1, found.row(1)));
        // A vocabulary of two tokens; zeros are equal.
        let mut few = Candidates::default();
        few.push(&[-0.0, 0.0]).unwrap();
        assert_eq!(few.row(0).unwrap().ids, [0, 1]);
        assert!(few.push(&[f32::NAN, 1.0]).is_err());
        assert!(few.push(&[f32::NEG_INFINITY; 2]).is_err());
        assert_eq!(few.rows(), 1);
    }
}
