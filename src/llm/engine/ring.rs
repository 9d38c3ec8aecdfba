//! What caches that keep a window still hold.

use crate::plan::StateSlot;

/// A state of which the last rows are read, and which rows of it are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    /// Its place among the states.
    state: usize,
    /// Rows that a query reads, its own among them; at least 1.
    window: usize,
    /// Rows that there is room for.
    rows: usize,
    /// Rows before this one are gone, though the cache may have been cut back to where they would be read.
    lost: usize,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rings(Vec<Ring>);

impl Rings {
    /// Of an empty cache.
    pub fn new(states: &[StateSlot]) -> Self {
        let number = |n: i64| usize::try_from(n).unwrap_or(0);
        let ring = |(state, slot): (usize, &StateSlot)| {
            Some(Ring {
                state,
                window: number(slot.window?).max(1),
                rows: number(slot.rows),
                lost: 0,
            })
        };
        Self(states.iter().enumerate().filter_map(ring).collect())
    }

    /// A run writes rows up to the first `len`.
    pub fn grow(&mut self, len: usize) {
        for r in &mut self.0 {
            r.lost = r.lost.max(len.saturating_sub(r.rows));
        }
    }

    /// Cuts the cache back to its first `len` tokens, or to none where a row is gone that what follows these would read. Returns how many are left.
    pub fn cut(&mut self, len: usize) -> usize {
        // A token behind `len` others reads the rows of `window - 1` of them.
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

    /// The first row of a state that is there.
    pub fn first(&self, state: usize) -> usize {
        self.0.iter().find(|r| r.state == state).map_or(0, |r| r.lost)
    }

    /// The rows of a state were written from `first` on, behind a cache that was emptied.
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
        Rings::new(&all.iter().map(slot).collect::<Vec<_>>())
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
