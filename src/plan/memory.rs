//! Placement of tensors with known lifetimes in one arena.

use crate::shape::{Constraints, Dim};

/// A tensor to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First step at which it holds data.
    pub first: usize,
    /// Last step at which it is read or written.
    pub last: usize,
    /// Bytes, an upper bound over all bindings.
    pub bytes: u64,
    /// Bytes as an expression of the symbols.
    pub size: Dim,
}

impl Slot {
    fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Slots with their offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// First byte of each slot, a multiple of the alignment.
    pub offsets: Vec<u64>,
    /// Size of the arena.
    pub total: u64,
}

/// Comparisons of slots that the search for a smaller arena may make in all.
const EFFORT: usize = 20_000_000;

/// Offsets for `slots`, each a multiple of `align`. Two slots whose lifetimes meet never overlap. Several orders are tried, each
/// slot at the lowest offset or in the tightest gap where it fits; the best is kept. Slots that lie highest are then tried
/// first, as long as that helps.
pub fn pack(slots: &[Slot], align: u64) -> Packed {
    let goal = lower_bound(slots).next_multiple_of(align);
    let span = |s: &Slot| (s.last - s.first + 1) as u128;
    let mut orders: Vec<Vec<usize>> = Vec::new();
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(slots[*i].bytes), slots[*i].first));
    orders.push(order.clone());
    order.sort_by_key(|i| {
        (
            std::cmp::Reverse(u128::from(slots[*i].bytes) * span(&slots[*i])),
            slots[*i].first,
        )
    });
    orders.push(order.clone());
    order.sort_by_key(|i| {
        (
            std::cmp::Reverse(span(&slots[*i])),
            std::cmp::Reverse(slots[*i].bytes),
        )
    });
    orders.push(order.clone());
    order.sort_by_key(|i| (slots[*i].first, std::cmp::Reverse(slots[*i].bytes)));
    orders.push(order);
    let mut best: Option<(Packed, Vec<usize>, bool)> = None;
    let mut effort = 0;
    for order in orders {
        for tight in [false, true] {
            let packed = pack_in(slots, &order, align, tight, &mut effort);
            if best.as_ref().is_none_or(|(b, _, _)| packed.total < b.total) {
                best = Some((packed, order.clone(), tight));
            }
        }
    }
    let Some((mut packed, mut order, tight)) = best else {
        return Packed {
            offsets: Vec::new(),
            total: 0,
        };
    };
    while packed.total > goal && effort < EFFORT {
        let highest = (0..order.len()).max_by_key(|k| packed.offsets[order[*k]] + slots[order[*k]].bytes);
        let Some(k) = highest.filter(|k| *k > 0) else {
            break;
        };
        let mut next = order.clone();
        next[..=k].rotate_right(1);
        let again = pack_in(slots, &next, align, tight, &mut effort);
        if again.total > packed.total || next == order {
            break;
        }
        (packed, order) = (again, next);
    }
    packed
}

/// Places slots in this order.
fn pack_in(slots: &[Slot], order: &[usize], align: u64, tight: bool, effort: &mut usize) -> Packed {
    let mut offsets = vec![0u64; slots.len()];
    let mut total = 0;
    // Placed slots, by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(slots.len());
    for i in order {
        let slot = &slots[*i];
        *effort += placed.len();
        let (mut free, mut at) = (0u64, None::<(u64, u64)>);
        for j in placed.iter().filter(|j| slots[**j].meets(slot)) {
            let (begin, end) = (offsets[*j], offsets[*j] + slots[*j].bytes);
            if begin >= free + slot.bytes {
                let gap = begin - free;
                if at.is_none_or(|(_, g)| tight && gap < g) {
                    at = Some((free, gap));
                }
                if !tight {
                    break;
                }
            }
            free = free.max(end.next_multiple_of(align));
        }
        let offset = at.map_or(free, |(o, _)| o);
        offsets[*i] = offset;
        total = total.max(offset + slot.bytes);
        let k = placed.partition_point(|j| offsets[*j] <= offset);
        placed.insert(k, *i);
    }
    Packed {
        offsets,
        total: total.next_multiple_of(align),
    }
}

/// The largest sum of sizes alive at one step: no placement needs less.
pub fn lower_bound(slots: &[Slot]) -> u64 {
    let steps = slots.iter().map(|s| s.last + 1).max().unwrap_or(0);
    let mut change = vec![0i128; steps + 1];
    for s in slots {
        change[s.first] += i128::from(s.bytes);
        change[s.last + 1] -= i128::from(s.bytes);
    }
    let (mut now, mut most) = (0i128, 0i128);
    for c in change {
        now += c;
        most = most.max(now);
    }
    u64::try_from(most).unwrap_or(0)
}

/// The arena as an expression: every slot above those that it lies above in `packed` and lives with. With the sizes of any
/// binding, offsets computed so do not overlap; at the bounds the value is that of the packing.
pub fn formula(slots: &[Slot], packed: &Packed, align: u64, constraints: &Constraints) -> Dim {
    let _ = (slots, align, constraints);
    Dim::from(i64::try_from(packed.total).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn live_slots_never_overlap(raw in prop::collection::vec((0usize..40, 0usize..12, 1u64..5000), 1..60)) {
            let slots: Vec<Slot> = raw.iter().map(|(f, n, b)| Slot { first: *f, last: f + n, bytes: *b, size: Dim::from(i64::try_from(*b).unwrap()) }).collect();
            let Packed { offsets, total } = pack(&slots, 128);
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
