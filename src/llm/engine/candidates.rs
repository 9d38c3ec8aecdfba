//! Reads candidates for the next token from a device.

use crate::error::Result;
use crate::executor::Executor;
use crate::graph::Graph;
use crate::graph::pass::{CANDIDATE_IDS, CANDIDATE_LOGITS, LOG_SUM};
use crate::llm::{CandidateRow, Candidates};
use std::ops::Range;

/// True if plans of `graph` find candidates.
pub(super) fn are_found(graph: &Graph) -> bool {
    graph.output(LOG_SUM).is_some()
}

/// The outputs of plans that hold candidates. Most runs do not need them.
pub(super) const OUTPUTS: &[&str] = &[CANDIDATE_IDS, CANDIDATE_LOGITS, LOG_SUM];

/// Finds the candidates of the last run, that of a plan of `graph`, and appends those of some rows.
pub(super) fn read(
    executor: &mut Executor,
    plan: usize,
    graph: &Graph,
    vocab: usize,
    rows: Range<usize>,
    found: &mut Candidates,
) -> Result<()> {
    const COUNT: usize = Candidates::COUNT;
    let mut row = Vec::new();
    let mut whole = |executor: &mut Executor, at: usize, found: &mut Candidates| {
        row.resize(vocab, 0.0);
        executor.read_f32(plan, "logits", at * vocab, &mut row)?;
        found.push(&row)
    };
    if !are_found(graph) {
        return rows.into_iter().try_for_each(|at| whole(executor, at, found));
    }
    executor.run_rest(plan)?;
    let mut ids = vec![0; rows.len() * COUNT];
    let mut logits = vec![0.0; rows.len() * COUNT];
    let mut sums = vec![0.0; rows.len()];
    executor.read_indices(plan, CANDIDATE_IDS, rows.start * COUNT, &mut ids)?;
    executor.read_f32(plan, CANDIDATE_LOGITS, rows.start * COUNT, &mut logits)?;
    executor.read_f32(plan, LOG_SUM, rows.start, &mut sums)?;
    let each = ids.chunks(COUNT).zip(logits.chunks(COUNT)).zip(&sums);
    for (at, ((ids, logits), sum)) in rows.zip(each) {
        let most = logits.first().copied().unwrap_or(f32::NAN);
        let log_total = f64::from(*sum) - f64::from(most);
        let known = |id: &u32| usize::try_from(*id).is_ok_and(|id| id < vocab);
        // Otherwise some logits are NaN or infinite, or few are above the device's padding.
        if log_total.is_finite() && ids.iter().all(known) {
            found.push_row(CandidateRow {
                ids,
                logits,
                log_total,
            });
        } else {
            whole(executor, at, found)?;
        }
    }
    Ok(())
}
