//! Placement of tensors with known lifetimes in one arena.

/// A tensor to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First step at which it holds data.
    pub first: usize,
    /// Last step at which it is read or written.
    pub last: usize,
    /// Bytes, an upper bound over all bindings.
    pub bytes: u64,
}

/// Offsets for `slots`, each a multiple of `align`, and the arena's size. Two slots whose lifetimes meet never
/// overlap. Largest first, each at the lowest offset where it fits.
pub fn place(slots: &[Slot], align: u64) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(slots[*i].bytes), slots[*i].first));
    let mut offsets = vec![0u64; slots.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let slot = &slots[i];
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|j| slots[**j].first <= slot.last && slot.first <= slots[**j].last)
            .map(|j| (offsets[*j], offsets[*j] + slots[*j].bytes))
            .collect();
        taken.sort_unstable();
        let mut at = 0u64;
        for (begin, end) in taken {
            if at + slot.bytes <= begin {
                break;
            }
            at = at.max(end.next_multiple_of(align));
        }
        offsets[i] = at;
        total = total.max(at + slot.bytes);
        placed.push(i);
    }
    (offsets, total.next_multiple_of(align))
}

/// The largest sum of sizes alive at one step: no placement needs less.
pub fn lower_bound(slots: &[Slot]) -> u64 {
    let steps = slots.iter().map(|s| s.last).max().map_or(0, |l| l + 1);
    (0..steps)
        .map(|t| {
            slots
                .iter()
                .filter(|s| s.first <= t && t <= s.last)
                .map(|s| s.bytes)
                .sum()
        })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn live_slots_never_overlap(raw in prop::collection::vec((0usize..40, 0usize..12, 1u64..5000), 1..60)) {
            let slots: Vec<Slot> = raw.iter().map(|(f, n, b)| Slot { first: *f, last: f + n, bytes: *b }).collect();
            let (offsets, total) = place(&slots, 128);
            for (i, a) in slots.iter().enumerate() {
                prop_assert!(offsets[i] % 128 == 0 && offsets[i] + a.bytes <= total);
                for (j, b) in slots.iter().enumerate().skip(i + 1) {
                    let meet = a.first <= b.last && b.first <= a.last;
                    let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                    prop_assert!(!meet || apart, "{a:?} at {} and {b:?} at {}", offsets[i], offsets[j]);
                }
            }
            prop_assert!(total >= lower_bound(&slots));
        }
    }
}
