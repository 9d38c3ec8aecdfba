//! Decoders in the interpreter.

use super::{Decoder, Logits, Observe, check_room, check_rows};
use crate::error::{Error, Result, Stage};
use crate::graph::interp::Interpreter;
use crate::graph::pass::ROWS;
use crate::graph::{State, ValueId};
use crate::llm::LanguageModel;
use crate::llm::prompt_cache::States;
use crate::tensor::{DType, HostTensor, TensorError};
use std::collections::HashMap;
use std::sync::Arc;

/// A decoder in the interpreter.
#[derive(Debug)]
pub struct HostModel {
    pub(super) decoder: Arc<Decoder>,
    interpreter: Interpreter,
    pub(super) states: HashMap<ValueId, HostTensor>,
    context: usize,
    pub(super) len: usize,
}

impl HostModel {
    /// Prepares `decoder`, which may be shared, for the interpreter.
    pub fn new(decoder: impl Into<Arc<Decoder>>, context: usize) -> Result<Self> {
        let decoder = decoder.into();
        let interpreter = Interpreter::new(decoder.graph.clone())?.within_quota();
        let mut model = Self {
            decoder,
            interpreter,
            states: HashMap::new(),
            context,
            len: 0,
        };
        model.states = model.empty_states()?;
        Ok(model)
    }

    /// States without rows.
    fn empty_states(&self) -> Result<HashMap<ValueId, HostTensor>> {
        let (none, graph) = (self.decoder.sizes(0, 0), &self.decoder.graph);
        let empty = |s: &State| {
            let fact = graph.fact(s.input)?;
            let shape = fact
                .shape
                .eval(&none)
                .map_err(|e| Error::other(Stage::Run, e.to_string()))?;
            let empty = HostTensor::zeros(fact.dtype, &shape);
            Ok((
                s.input,
                empty.map_err(|e| Error::other(Stage::Run, e.to_string()))?,
            ))
        };
        graph.states().iter().map(empty).collect()
    }

    /// The first `len` rows of all states.
    fn first_rows(&self, len: usize) -> Result<HashMap<ValueId, HostTensor>> {
        let first = |s: &State| {
            let missing = || Error::internal(Stage::Run, "a state has fewer rows than tokens");
            let t = self.states.get(&s.input).ok_or_else(missing)?;
            let failed = |e: TensorError| Error::other(Stage::Run, e.to_string());
            // All axes before the growing one have size 1, so the first rows are a prefix of the
            // bytes.
            let mut shape = t.shape().to_vec();
            let rows = shape.get_mut(s.axis).ok_or_else(missing)?;
            let row = t.byte_len().checked_div(*rows).unwrap_or(0);
            *rows = len;
            let bytes = t.bytes().map_err(failed)?.get(..row * len).ok_or_else(missing)?;
            let part = HostTensor::from_bytes(t.dtype(), &shape, bytes).map_err(failed)?;
            Ok((s.input, part))
        };
        self.decoder.graph.states().iter().map(first).collect()
    }

    /// Appends `tokens` and returns the graph's outputs.
    fn results(&mut self, tokens: &[u32], wanted: Logits) -> Result<HashMap<ValueId, HostTensor>> {
        check_room(self.len, tokens.len(), self.context)?;
        let mut given = self.states.clone();
        if let Some(v) = self.decoder.graph.input(ROWS) {
            let rows = if wanted == Logits::All { tokens.len() } else { 1 };
            let counted = HostTensor::zeros(DType::I64, &[rows]);
            given.insert(v, counted.map_err(|e| Error::other(Stage::Run, e.to_string()))?);
        }
        for (name, tensor) in self.decoder.inputs(tokens, self.len)? {
            if let Some(id) = self.decoder.graph.input(name) {
                given.insert(id, tensor);
            }
        }
        let mut results = self.interpreter.run(given)?;
        for s in self.decoder.graph.states() {
            if let Some(t) = results.remove(&s.output) {
                self.states.insert(s.input, t);
            }
        }
        self.len += tokens.len();
        Ok(results)
    }

    /// Takes the elements of an output from the results of a run.
    fn taken(&self, results: &mut HashMap<ValueId, HostTensor>, name: &str) -> Result<Vec<f32>> {
        let found = self.decoder.graph.output(name).and_then(|v| results.remove(&v));
        let tensor =
            found.ok_or_else(|| Error::other(Stage::Run, format!("the model has no output \"{name}\"")))?;
        let elements = tensor.to_f32();
        Ok(elements
            .map_err(|e| Error::other(Stage::Run, format!("output \"{name}\": {e}")))?
            .into_owned())
    }

    /// Appends `tokens` and returns the computed logits: of all rows or the last.
    fn run(&mut self, tokens: &[u32], wanted: Logits) -> Result<Vec<f32>> {
        let mut results = self.results(tokens, wanted)?;
        self.taken(&mut results, "logits")
    }
}

impl LanguageModel for HostModel {
    fn vocab(&self) -> usize {
        self.decoder.vocab
    }

    fn context(&self) -> usize {
        self.context
    }

    fn len(&self) -> usize {
        self.len
    }

    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        let all = self.run(tokens, Logits::Last)?;
        logits.clear();
        logits.extend_from_slice(&all[all.len() - self.decoder.vocab..]);
        Ok(())
    }

    fn forward_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let all = self.run(tokens, Logits::All)?;
        check_rows(tokens.len(), all.len() / self.decoder.vocab.max(1))?;
        Ok(all)
    }

    fn most_rows(&self) -> usize {
        if self.decoder.all_rows || self.decoder.rows.is_some() {
            usize::MAX
        } else {
            1
        }
    }

    fn states(&mut self) -> Option<&mut dyn States> {
        Some(self)
    }

    fn truncate(&mut self, len: usize) -> usize {
        if len < self.len {
            let kept = self.first_rows(len).map(|states| (states, len));
            // Without memory for a copy, all tokens are fed again. Without states, runs fail.
            (self.states, self.len) = kept.unwrap_or_else(|e| {
                log::warn!(
                    "the cache is emptied, since it cannot be truncated: {}",
                    e.chain()
                );
                (self.empty_states().unwrap_or_default(), 0)
            });
        }
        self.len
    }
}

impl Observe for HostModel {
    fn observe(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
        let mut results = self.results(tokens, Logits::Last)?;
        for (i, name) in self.decoder.observed.clone().iter().enumerate() {
            take(i, &self.taken(&mut results, name)?)?;
        }
        Ok(())
    }
}
