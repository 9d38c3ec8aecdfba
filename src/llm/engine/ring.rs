//! Which rows sliding-window caches still hold.

use crate::num::{self, OutOfRange};
use crate::plan::StateSlot;

/// A state whose last rows are read, and which of its rows exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    /// Index of the state.
    state: usize,
    /// Rows that a query reads, including its own; at least 1.
    window: usize,
    /// Capacity in rows.
    rows: usize,
    /// Rows before this one are overwritten, even if the cache was truncated to where they would be
    /// read.
    lost: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rings(Vec<Ring>);

impl Rings {
    /// The rings of an empty cache.
    pub fn new(states: &[StateSlot]) -> Result<Self, OutOfRange> {
        let windows = states
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some((i, s, s.window?)));
        let rings = windows.map(|(state, slot, window)| {
            Ok(Ring {
                state,
                window: num::exact::<usize, _>(window, "the length of a window")?.max(1),
                rows: num::exact(slot.rows, "the rows of a state")?,
                lost: 0,
            })
        });
        Ok(Self(rings.collect::<Result<_, _>>()?))
    }

    /// Records that a run wrote rows up to length `len`.
    pub fn grow(&mut self, len: usize) {
        for r in &mut self.0 {
            r.lost = r.lost.max(len.saturating_sub(r.rows));
        }
    }

    /// Truncates to the first `len` tokens, or to none if rows that the next token would read are
    /// overwritten. Returns the length that remains.
    pub fn cut(&mut self, len: usize) -> usize {
        // A token after `len` others reads the rows of `window - 1` of them.
        if self
            .0
            .iter()
            .all(|r| r.lost <= (len + 1).saturating_sub(r.window))
        {
            return len;
        }
        self.0.iter_mut().for_each(|r| r.lost = 0);
        0
    }

    /// First existing row of a state.
    pub fn first(&self, state: usize) -> usize {
        self.0.iter().find(|r| r.state == state).map_or(0, |r| r.lost)
    }

    /// Records that the rows of a state were written from `first` on, after the cache was emptied.
    pub fn restore(&mut self, state: usize, first: usize) {
        if let Some(r) = self.0.iter_mut().find(|r| r.state == state) {
            r.lost = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn rings(all: &[(Option<i64>, i64)]) -> Rings {
        let slot = |(window, rows): &(Option<i64>, i64)| StateSlot {
            name: String::new(),
            dtype: DType::F16,
            bytes: 0,
            rows: *rows,
            window: *window,
        };
        Rings::new(&all.iter().map(slot).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn rows_are_there_until_they_are_overwritten() {
        let mut r = rings(&[(None, 100), (Some(5), 9)]);
        r.grow(9);
        assert_eq!(r.cut(1), 1, "nothing is overwritten");
        r.grow(4);
        r.grow(13);
        // Rows 0 to 3 are gone; a token behind 8 others reads rows 4 to 7.
        assert_eq!((r.first(0), r.first(1)), (0, 4));
        assert_eq!(r.cut(8), 8);
        assert_eq!(r.clone().cut(7), 0);
        // What was written before the cut stays lost, whatever is written now.
        r.grow(9);
        assert_eq!((r.clone().cut(8), r.clone().cut(7)), (8, 0));
        assert_eq!(r.cut(0), 0);
        r.grow(6);
        assert_eq!(r.cut(2), 2, "behind a cache that was emptied all is new");
    }

    #[test]
    fn the_narrowest_cache_decides() {
        let mut r = rings(&[(Some(3), 5), (Some(8), 100)]);
        r.grow(20);
        assert_eq!((r.clone().cut(17), r.clone().cut(16)), (17, 0));
        r.restore(1, 12);
        assert_eq!((r.clone().cut(19), r.clone().cut(18)), (19, 0));
    }
}
