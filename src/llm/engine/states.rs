//! Caches as bytes, and the identity of their model.

use super::plans::RunKind;
use super::{DeviceModel, HostModel};
use crate::error::{Error, Result, Stage};
use crate::graph::op::device_dtype;
use crate::graph::{Graph, State};
use crate::llm::prompt_cache::{Identity, Layout, States};
use crate::num;
use crate::shape::Bindings;
use crate::tensor::{DType, HostTensor};

/// Number of samples per weight, and bytes per sample.
const SAMPLES: usize = 4;
const SAMPLE: usize = 4096;

/// Identifies the model of an imported graph: a checksum of the names, types and shapes of its
/// constants, and one of sampled bytes of each, so that only a few megabytes are read.
pub(super) fn fingerprint(graph: &Graph) -> Result<String> {
    let mut names = crc32fast::Hasher::new();
    let mut bytes = crc32fast::Hasher::new();
    for value in &graph.values {
        let Some(tensor) = value.fact.as_ref().and_then(|f| f.as_const()) else {
            continue;
        };
        names.update(format!("{} {} {:?};", value.name, tensor.dtype(), tensor.shape()).as_bytes());
        // A model without weights can be planned but not run.
        let Ok(data) = tensor.stored() else { continue };
        for i in 0..SAMPLES {
            let start = data.len().saturating_sub(SAMPLE) / (SAMPLES - 1) * i;
            let end = (start + SAMPLE).min(data.len());
            bytes.update(num::part(data, start..end)?);
        }
    }
    Ok(format!("{:08x}{:08x}", names.finalize(), bytes.finalize()))
}

/// Elements per row of a state.
fn row(graph: &Graph, state: &State) -> Result<usize> {
    let shape = graph.fact(state.input)?.shape.0.clone();
    let others = shape.iter().enumerate().filter(|(i, _)| *i != state.axis);
    let mut elements = 1;
    for (_, d) in others {
        let n = d.eval(&Bindings::new());
        let n = n.map_err(|e| Error::other(Stage::Run, e.to_string()))?;
        elements *= num::exact::<usize, _>(n, "an axis of a state")?;
    }
    Ok(elements)
}

fn identity(
    graph: &Graph,
    fingerprint: &str,
    float: &dyn Fn(&State) -> DType,
    window: &dyn Fn(&State) -> Option<usize>,
) -> Result<Identity> {
    // Quantized types are named like the option that selects them.
    let called = |s: &State| match float(s) {
        DType::I32 => "q8".to_owned(),
        float => float.to_string(),
    };
    let mut types: Vec<String> = graph.states().iter().map(called).collect();
    types.dedup();
    let states = graph.states().iter().map(|s| {
        Ok(Layout {
            name: graph.value(s.input).name.clone(),
            row: row(graph, s)? * float(s).size(),
            window: window(s),
        })
    });
    Ok(Identity {
        model: fingerprint.to_owned(),
        float: types.join(" and "),
        states: states.collect::<Result<_>>()?,
    })
}

impl DeviceModel {
    /// Capacity of a state in rows; row `n` is stored at `n` modulo the capacity.
    fn room(&self, index: usize) -> usize {
        let slot = self.plan(RunKind::Prefill).and_then(|p| p.states.get(index));
        let rows = slot.and_then(|s| usize::try_from(s.rows).ok());
        rows.unwrap_or(self.set.lengths.context).max(1)
    }
}

impl States for DeviceModel {
    fn identity(&self) -> Result<Identity> {
        let graph = &self.decoder.graph;
        let float = self.decoder.state_float_on(self.executor.caps());
        let dtype = |s: &State| {
            let own = graph.fact(s.input).map_or(float, |f| f.dtype);
            device_dtype(own, float, None)
        };
        let window = |s: &State| s.window.and_then(|w| usize::try_from(w).ok());
        identity(graph, &self.decoder.fingerprint, &dtype, &window)
    }

    fn read_state(&mut self, index: usize) -> Result<Vec<u8>> {
        let row = num::at(&self.identity()?.states, index)?.row;
        let room = self.room(index);
        let mut kept = vec![0; row * self.len.min(room)];
        self.executor.read_state(index, &mut kept)?;
        let mut out = Vec::with_capacity(kept.len());
        for place in (self.rings.first(index)..self.len).map(|n| n % room * row) {
            out.extend_from_slice(num::part(&kept, place..place + row)?);
        }
        Ok(out)
    }

    fn write_states(&mut self, tokens: usize, states: &[&[u8]]) -> Result<()> {
        let layouts = self.identity()?.states;
        // Empty until all states are written.
        self.len = self.rings.cut(0);
        for (index, (bytes, layout)) in states.iter().zip(&layouts).enumerate() {
            let (row, room) = (layout.row.max(1), self.room(index));
            let given = bytes.len() / row;
            let first = tokens.saturating_sub(given.min(room));
            let mut kept = vec![0; row * tokens.min(room)];
            let rows = bytes.chunks_exact(row).skip(given.saturating_sub(room));
            for (n, bytes) in (first..tokens).zip(rows) {
                let place = n % room * row;
                num::part_mut(&mut kept, place..place + row)?.copy_from_slice(bytes);
            }
            self.executor.write_state(index, &kept)?;
            self.rings.restore(index, first);
        }
        self.len = tokens;
        Ok(())
    }
}

impl States for HostModel {
    fn identity(&self) -> Result<Identity> {
        let graph = &self.decoder.graph;
        let dtype = |s: &State| graph.fact(s.input).map_or(DType::F32, |f| f.dtype);
        // The interpreter keeps all rows.
        identity(graph, &self.decoder.fingerprint, &dtype, &|_| None)
    }

    fn read_state(&mut self, index: usize) -> Result<Vec<u8>> {
        let state = self.decoder.graph.states().get(index);
        let tensor = state.and_then(|s| self.states.get(&s.input));
        let bytes = tensor.map(|t| t.bytes().map(<[u8]>::to_vec)).transpose();
        let bytes = bytes.map_err(|e| Error::other(Stage::Run, e.to_string()))?;
        bytes.ok_or_else(|| Error::other(Stage::Run, format!("state {index} does not exist")))
    }

    fn write_states(&mut self, tokens: usize, states: &[&[u8]]) -> Result<()> {
        let failed = |e: String| Error::other(Stage::Run, e);
        let mut new = Vec::with_capacity(states.len());
        for (s, bytes) in self.decoder.graph.states().iter().zip(states) {
            let fact = self.decoder.graph.fact(s.input)?;
            let shape = fact.shape.eval(&self.decoder.sizes(0, tokens));
            let shape = shape.map_err(|e| failed(e.to_string()))?;
            let tensor = HostTensor::from_bytes(fact.dtype, &shape, bytes);
            new.push((s.input, tensor.map_err(|e| failed(e.to_string()))?));
        }
        self.states.extend(new);
        self.len = tokens;
        Ok(())
    }
}
