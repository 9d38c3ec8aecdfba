//! The rows that sequences run in a step, and their results.

use super::scheduler::SequenceId;
use super::sequence::Wanted;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::llm::Candidates;
use crate::llm::engine::{RowModel, Span};
use std::ops::Range;

/// The rows of a sequence in a step.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub sequence: SequenceId,
    /// Position of the first token.
    pub start: usize,
    /// In [`Step::tokens`].
    pub tokens: Range<usize>,
    /// In [`Step::pages`].
    pub pages: Range<usize>,
    /// How many of the last tokens have results.
    pub outputs: usize,
    pub wanted: Wanted,
    pub alone: bool,
}

impl Part {
    /// Where its results end among IDs, rows of candidates and logits, if they start at `from`.
    pub fn end_of_results(&self, from: [usize; 3], vocab: usize) -> [usize; 3] {
        let [ids, candidates, logits] = from;
        let rows = self.outputs;
        match self.wanted {
            Wanted::MostLikely => [ids + rows, candidates, logits],
            Wanted::Candidates => [ids, candidates + rows, logits],
            Wanted::Logits => [ids, candidates, logits + rows * vocab],
        }
    }
}

/// What a model runs at once.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub parts: Vec<Part>,
    pub tokens: Vec<u32>,
    pub pages: Vec<u32>,
    /// Pages to copy before the step: source and destination.
    pub copies: Vec<[u32; 2]>,
    /// Rows of prompts.
    pub prompt: usize,
    /// Rows with results, and how many may have some.
    pub outputs: usize,
    pub most_outputs: usize,
}

impl Step {
    pub fn clear(&mut self) {
        self.parts.clear();
        self.tokens.clear();
        self.pages.clear();
        self.copies.clear();
        (self.prompt, self.outputs) = (0, 0);
    }

    /// The parts as spans.
    pub fn spans(&self) -> impl Iterator<Item = Span<'_>> {
        self.parts.iter().map(|part| Span {
            tokens: &self.tokens[part.tokens.clone()],
            start: part.start,
            pages: &self.pages[part.pages.clone()],
            logits: part.outputs,
            alone: part.alone,
        })
    }
}

/// Results of the parts of a step, for those that want them.
#[derive(Debug, Default)]
pub(super) struct StepOutput {
    pub ids: Vec<u32>,
    pub candidates: Candidates,
    pub logits: Vec<f32>,
    /// Parts without results, by index, and why.
    pub failed: Vec<(usize, Error)>,
}

impl StepOutput {
    /// Reads the results of a step that has run. Logits that are not finite fail their part. Any
    /// other error may be one of the device, and fails the step.
    pub fn read(&mut self, model: &mut dyn RowModel, step: &Step) -> Result<()> {
        self.ids.clear();
        self.candidates.clear();
        self.logits.clear();
        self.failed.clear();
        let mut first = 0;
        for (i, part) in step.parts.iter().enumerate() {
            let rows = part.outputs;
            let lengths = self.lengths();
            let read = match part.wanted {
                _ if rows == 0 => Ok(()),
                Wanted::MostLikely => model.most_likely(first, rows, &mut self.ids),
                Wanted::Candidates => model.candidates(first, rows, &mut self.candidates),
                Wanted::Logits => model.logits(first, rows, &mut self.logits),
            };
            first += rows;
            let wanted = part.end_of_results(lengths, model.vocab());
            let found = self.lengths();
            let read = read.and_then(|()| match found == wanted {
                true => Ok(()),
                false => {
                    let what = format!("{found:?} tokens, candidates and logits, expected {wanted:?}");
                    Err(Error::internal(Stage::Run, what))
                }
            });
            if let Err(e) = read {
                if e.kind() != ErrorKind::NotFinite {
                    return Err(e);
                }
                let [ids, candidates, logits] = lengths;
                self.ids.truncate(ids);
                self.candidates.truncate(candidates);
                self.logits.truncate(logits);
                self.failed.push((i, e));
            }
        }
        Ok(())
    }

    fn lengths(&self) -> [usize; 3] {
        [self.ids.len(), self.candidates.rows(), self.logits.len()]
    }
}
