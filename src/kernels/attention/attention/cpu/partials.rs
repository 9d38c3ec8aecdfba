//! Results over parts of the keys, until those of all parts are there.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sums over parts of the keys. Each piece adds its own, and that which comes last merges them.
#[derive(Default)]
pub struct Partials {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Vec<Open>,
    /// Memory for later use.
    free: Vec<Vec<f32>>,
}

/// The parts of a unit.
struct Open {
    /// The address of the result, and the unit.
    owner: (usize, usize),
    /// A bit for each part that is there.
    arrived: u64,
    data: Vec<f32>,
}

impl Partials {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds part `split` of `splits` (at most 64). With the last one, all of them in order are the
    /// result; give it to [`Self::free`] afterwards.
    pub fn add(&self, owner: (usize, usize), split: usize, splits: usize, own: &[f32]) -> Option<Vec<f32>> {
        let mut state = self.state();
        let found = state.open.iter().position(|o| o.owner == owner);
        let i = found.unwrap_or_else(|| {
            let mut data = state.free.pop().unwrap_or_default();
            data.resize(splits * own.len(), 0.0);
            state.open.push(Open {
                owner,
                arrived: 0,
                data,
            });
            state.open.len() - 1
        });
        let open = &mut state.open[i];
        open.arrived |= 1 << split;
        open.data[split * own.len()..][..own.len()].copy_from_slice(own);
        (open.arrived.count_ones() as usize == splits).then(|| state.open.swap_remove(i).data)
    }

    /// Forgets parts whose others will not come.
    pub fn abandon(&self) {
        self.state().open.clear();
    }

    /// Takes memory back.
    pub fn free(&self, data: Vec<f32>) {
        self.state().free.push(data);
    }
}
