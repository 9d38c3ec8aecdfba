//! Counts the work of one rendering and ends it at a limit or on request.

use crate::cancel::Cancel;
use crate::num;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::sync::atomic::{AtomicU64, Ordering};

/// Work per value that is visited or stored, about its size in bytes. A text also counts its bytes.
pub(super) const NODE: u64 = 32;

/// Levels of nested lists and objects. JSON parsers allow 128.
const MAX_DEPTH: usize = 200;

/// Why a rendering ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stopped {
    /// A fixed bound, which no limit changes.
    #[error("{0}")]
    Bound(&'static str),
    /// The limit `template-output`.
    #[error("the output is too long")]
    Output,
    /// The memory and time that the limit `template-output` allows.
    #[error("too much memory or time")]
    Work,
    #[error("interrupted")]
    Cancelled,
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Self {
        Self::new(ErrorKind::InvalidOperation, stopped.to_string()).with_source(stopped)
    }
}

/// The work that one rendering may still do. One unit is roughly one byte read, written or
/// allocated, so units bound both time and memory.
#[derive(Debug)]
pub(super) struct Meter {
    left: AtomicU64,
    cancel: Cancel,
}

/// What [`Meter::weigh`] found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    pub units: u64,
    pub depth: usize,
}

impl Meter {
    pub(super) fn new(units: u64, cancel: Cancel) -> Self {
        Self {
            left: AtomicU64::new(units),
            cancel,
        }
    }

    /// Counts `units` of work.
    pub(super) fn charge(&self, units: u64) -> Result<(), Error> {
        if self.cancel.is_cancelled() {
            return Err(Stopped::Cancelled.into());
        }
        // Only the thread that renders counts.
        let left = self.left.load(Ordering::Relaxed).checked_sub(units);
        self.left.store(left.unwrap_or(0), Ordering::Relaxed);
        match left {
            Some(_) => Ok(()),
            None => Err(Stopped::Work.into()),
        }
    }

    /// Counts a value without what it contains.
    pub(super) fn touch(&self, value: &Value) -> Result<(), Error> {
        self.charge(head(value))
    }

    /// Counts a value and all that it contains.
    pub(super) fn weigh(&self, value: &Value) -> Result<Weight, Error> {
        self.visit(value, &mut |value| Ok(head(value)))
    }

    /// Counts the places that a value takes, without the bytes of its texts, and refuses values
    /// nested too deeply.
    pub(super) fn places(&self, value: &Value) -> Result<Weight, Error> {
        self.visit(value, &mut |_| Ok(NODE))
    }

    /// Calls `units` with a value and all that it contains, and counts what it returns.
    pub(super) fn visit(
        &self,
        value: &Value,
        units: &mut dyn FnMut(&Value) -> Result<u64, Error>,
    ) -> Result<Weight, Error> {
        self.visit_below(value, 1, units)
    }

    fn visit_below(
        &self,
        value: &Value,
        level: usize,
        units: &mut dyn FnMut(&Value) -> Result<u64, Error>,
    ) -> Result<Weight, Error> {
        if level > MAX_DEPTH {
            return Err(Stopped::Bound("its values are nested too deeply").into());
        }
        let own = units(value)?;
        self.charge(own)?;
        let mut all = Weight {
            units: own,
            depth: level,
        };
        let mut add = |value: &Value| {
            let part = self.visit_below(value, level + 1, units)?;
            all.units = all.units.saturating_add(part.units);
            all.depth = all.depth.max(part.depth);
            Ok::<_, Error>(())
        };
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.try_for_each(|v| add(&v))?,
            ValueKind::Map => {
                let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
                for (key, value) in pairs.into_iter().flatten() {
                    add(&key)?;
                    add(&value)?;
                }
            }
            _ => {}
        }
        Ok(all)
    }
}

fn head(value: &Value) -> u64 {
    let bytes = value.as_str().map(str::len).or(value.as_bytes().map(<[u8]>::len));
    NODE.saturating_add(units(bytes.unwrap_or(0)))
}

/// A size as units of work.
pub(super) fn units(size: usize) -> u64 {
    num::wide(size)
}
