//! Reads candidates for the next token from a device.

use crate::error::{Error, Result, Stage};
use crate::executor::Executor;
use crate::graph::Graph;
use crate::graph::pass::{CANDIDATE_IDS, CANDIDATE_LOGITS, LOG_SUM};
use crate::llm::{CandidateRow, Candidates};
use std::ops::Range;

const COUNT: usize = Candidates::COUNT;

/// True if plans of `graph` find candidates.
pub(super) fn are_found(graph: &Graph) -> bool {
    graph.output(LOG_SUM).is_some()
}

/// The outputs of plans that hold candidates. Most runs do not need them.
pub(super) const OUTPUTS: &[&str] = &[CANDIDATE_IDS, CANDIDATE_LOGITS, LOG_SUM];

/// Candidates of rows of a run. They are kept, so that a step allocates nothing.
#[derive(Debug, Default)]
pub(super) struct RunCandidates {
    /// The rows of logits that were read.
    rows: Range<usize>,
    ids: Vec<u32>,
    logits: Vec<f32>,
    /// Logarithms of the sums of `exp(logit)`; none if the plan does not find candidates.
    sums: Vec<f32>,
    /// A row of logits.
    row: Vec<f32>,
}

impl RunCandidates {
    /// Finds the candidates of the last run, which used plan `plan` of `graph`, and reads those of
    /// `rows`.
    pub fn read(
        &mut self,
        executor: &mut Executor,
        plan: usize,
        graph: &Graph,
        rows: Range<usize>,
    ) -> Result<()> {
        let count = if are_found(graph) { rows.len() } else { 0 };
        self.ids.resize(count * COUNT, 0);
        self.logits.resize(count * COUNT, 0.0);
        self.sums.resize(count, 0.0);
        self.rows = rows;
        if count == 0 {
            return Ok(());
        }
        let first = self.rows.start;
        executor.run_rest(plan)?;
        executor.read_indices(plan, CANDIDATE_IDS, first * COUNT, &mut self.ids)?;
        executor.read_f32(plan, CANDIDATE_LOGITS, first * COUNT, &mut self.logits)?;
        executor.read_f32(plan, LOG_SUM, first, &mut self.sums)
    }

    /// Appends the candidates of row `at`, one of those that were read. Candidates that the device
    /// did not find are found from the whole row.
    pub fn push(
        &mut self,
        executor: &mut Executor,
        plan: usize,
        vocab: usize,
        at: usize,
        found: &mut Candidates,
    ) -> Result<()> {
        let index = at
            .checked_sub(self.rows.start)
            .filter(|_| self.rows.contains(&at));
        let index = index.ok_or_else(|| {
            let what = format!("candidates of row {at}, but those of {:?} were read", self.rows);
            Error::internal(Stage::Run, what)
        })?;
        let range = index * COUNT..(index + 1) * COUNT;
        let lists = self.ids.get(range.clone()).zip(self.logits.get(range));
        if let Some(((ids, logits), sum)) = lists.zip(self.sums.get(index)) {
            let most = logits.first().copied().unwrap_or(f32::NAN);
            let log_total = f64::from(*sum) - f64::from(most);
            let known = |id: &u32| usize::try_from(*id).is_ok_and(|id| id < vocab);
            if log_total.is_finite() && ids.iter().all(known) {
                found.push_row(CandidateRow {
                    ids,
                    logits,
                    log_total,
                });
                return Ok(());
            }
        }
        // Some logits are NaN or infinite, or fewer than COUNT exceed the padding value.
        self.row.resize(vocab, 0.0);
        executor.read_f32(plan, "logits", at * vocab, &mut self.row)?;
        found.push(&self.row)
    }
}
