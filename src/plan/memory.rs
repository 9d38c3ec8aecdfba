//! Placement of tensors with known lifetimes in one arena.

use crate::num;
use crate::shape::{Bindings, Constraints, Dim, DimError};
use std::collections::{BTreeSet, HashMap};

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
pub struct PackedSlots {
    /// First byte of each slot, a multiple of the alignment.
    pub offsets: Vec<u64>,
    /// Size of the arena.
    pub total: u64,
}

/// Total number of slot comparisons that the search for a smaller arena may make.
const EFFORT: usize = 20_000_000;
/// Number of orders that the search may try after the first few.
const ROUNDS: usize = 256;

/// Places `slots` at offsets that are multiples of `align`. Slots whose lifetimes intersect never
/// overlap. Several orders are tried, each with lowest-offset and best-fit placement, and the best
/// result is kept. Then the search repeatedly places the topmost slots first, as long as that
/// helps.
pub fn pack(slots: &[Slot], align: u64) -> PackedSlots {
    let rounded = |s: &Slot| Slot {
        bytes: s.bytes.next_multiple_of(align),
        ..s.clone()
    };
    let goal = lower_bound(&slots.iter().map(rounded).collect::<Vec<_>>());
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
    let mut best: Option<(PackedSlots, Vec<usize>, bool)> = None;
    let mut effort = 0;
    for order in orders {
        for tight in [false, true] {
            if effort > EFFORT && best.is_some() {
                break;
            }
            let packed = pack_in(slots, &order, align, tight, &mut effort);
            if best.as_ref().is_none_or(|(b, _, _)| packed.total < b.total) {
                best = Some((packed, order.clone(), tight));
            }
        }
    }
    let Some((mut packed, mut order, tight)) = best else {
        return PackedSlots {
            offsets: Vec::new(),
            total: 0,
        };
    };
    let mut rounds = 0;
    while packed.total > goal && effort < EFFORT && rounds < ROUNDS {
        rounds += 1;
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
fn pack_in(slots: &[Slot], order: &[usize], align: u64, tight: bool, effort: &mut usize) -> PackedSlots {
    let mut offsets = vec![0u64; slots.len()];
    let mut total = 0;
    // Placed slots, sorted by offset.
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
    PackedSlots {
        offsets,
        total: total.next_multiple_of(align),
    }
}

/// The largest sum of sizes alive at one step. No placement needs less.
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
    num::saturating(most.unsigned_abs())
}

/// Maximum number of sums that [`formula`] compares for one slot.
const ALTERNATIVES: usize = 24;

fn aligned(size: &Dim, align: u64) -> Result<Dim, DimError> {
    let align = i64::try_from(align).map_err(|_| DimError::Overflow(align.to_string()))?;
    size.ceil_div(align)?.mul(&align.into())
}

/// Maximum number of proofs per plan.
const PROOFS: usize = 20_000;

/// Decides which of two sizes is never the smaller one. Values at a few bindings refute most claims
/// without a proof, and proofs are cached.
struct SizeOrder<'a> {
    constraints: &'a Constraints,
    samples: Vec<Bindings>,
    values: HashMap<Dim, Vec<Option<i64>>>,
    proofs: HashMap<(Dim, Dim), bool>,
}

impl<'a> SizeOrder<'a> {
    fn new<'b>(constraints: &'a Constraints, sizes: impl Iterator<Item = &'b Dim>) -> Self {
        let mut symbols = BTreeSet::new();
        sizes.for_each(|d| d.symbols(&mut symbols));
        let mut samples = vec![Bindings::new(), Bindings::new(), Bindings::new()];
        for (n, s) in (1i64..).zip(&symbols) {
            let (lo, hi) = constraints.range(&s.into());
            let (lo, hi) = (lo.unwrap_or(0).max(1), hi.unwrap_or(1 << 12));
            for (sample, v) in samples.iter_mut().zip([hi, lo, (hi / (n + 1)).max(lo)]) {
                sample.set(s, v);
            }
        }
        Self {
            constraints,
            samples,
            values: HashMap::new(),
            proofs: HashMap::new(),
        }
    }

    fn sampled(&mut self, d: &Dim) -> Vec<Option<i64>> {
        if let Some(v) = self.values.get(d) {
            return v.clone();
        }
        let v: Vec<_> = self.samples.iter().map(|b| d.eval(b).ok()).collect();
        self.values.insert(d.clone(), v.clone());
        v
    }

    /// Whether `a >= b` is proved for every binding.
    fn covers(&mut self, a: &Dim, b: &Dim) -> bool {
        if a == b {
            return true;
        }
        let (x, y) = (self.sampled(a), self.sampled(b));
        if x.iter().zip(&y).any(|(x, y)| x < y) {
            return false;
        }
        let key = (a.clone(), b.clone());
        if let Some(known) = self.proofs.get(&key) {
            return *known;
        }
        let spent = self.proofs.len() >= PROOFS;
        let proved = !spent
            && a.sub(b)
                .is_ok_and(|d| self.constraints.at_least(&d, 0) == Some(true));
        self.proofs.insert(key, proved);
        proved
    }

    /// Removes from `all` sizes that another one always covers.
    fn prune(&mut self, all: &mut Vec<Dim>) {
        let mut kept: Vec<Dim> = Vec::with_capacity(all.len());
        for d in all.drain(..) {
            if !kept.iter().any(|k| self.covers(k, &d)) {
                kept.retain(|k| !self.covers(&d, k));
                kept.push(d);
            }
        }
        *all = kept;
    }
}

/// Size of the arena as an expression: every slot is above those that it is above in `packed` and
/// lives with. Offsets computed this way do not overlap for any binding; at the bounds the size is
/// that of the packing. `None` if the expression would be long.
pub fn formula(slots: &[Slot], packed: &PackedSlots, align: u64, constraints: &Constraints) -> Option<Dim> {
    let mut sizes = SizeOrder::new(constraints, slots.iter().map(|s| &s.size));
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|i| packed.offsets[*i]);
    // For each slot, the sums whose maximum is its end.
    let mut ends: Vec<Vec<Dim>> = vec![Vec::new(); slots.len()];
    let mut total: Vec<Dim> = Vec::new();
    for (k, i) in order.iter().enumerate() {
        let below = order[..k].iter().filter(|j| {
            slots[**j].meets(&slots[*i]) && packed.offsets[**j] + slots[**j].bytes <= packed.offsets[*i]
        });
        let mut starts: Vec<Dim> = Vec::new();
        for j in below {
            for e in &ends[*j] {
                if !starts.contains(e) {
                    starts.push(e.clone());
                }
            }
        }
        sizes.prune(&mut starts);
        if starts.is_empty() {
            starts.push(Dim::from(0));
        }
        if starts.len() > ALTERNATIVES {
            return None;
        }
        let size = aligned(&slots[*i].size, align).ok()?;
        ends[*i] = starts
            .iter()
            .map(|s| s.add(&size))
            .collect::<Result<_, _>>()
            .ok()?;
        total.extend(
            ends[*i]
                .iter()
                .filter(|e| !total.contains(e))
                .cloned()
                .collect::<Vec<_>>(),
        );
        if total.len() > 2 * ALTERNATIVES {
            sizes.prune(&mut total);
        }
    }
    sizes.prune(&mut total);
    if total.len() > ALTERNATIVES {
        return None;
    }
    let mut total = total.into_iter();
    let first = total.next().unwrap_or_default();
    total.try_fold(first, |a, b| a.maximum(&b)).ok()
}

/// Slots that share memory in pools, based on proofs only (paper, section 2.1 "Memory reuse").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    /// The pool of each slot.
    pub pool: Vec<usize>,
    /// Size of each pool, a multiple of the alignment.
    pub sizes: Vec<Dim>,
}

/// Assigns every slot to a pool that holds one slot at a time. A slot joins a pool only if one of
/// the two sizes is proved to be at least the other for every binding; the pool then has the larger
/// size. For sizes without bounds.
pub fn by_proof(slots: &[Slot], align: u64, constraints: &Constraints) -> Result<Pools, DimError> {
    let mut sizes = SizeOrder::new(constraints, slots.iter().map(|s| &s.size));
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|i| slots[*i].first);
    let mut pools = Pools {
        pool: vec![0; slots.len()],
        sizes: Vec::new(),
    };
    let mut busy: Vec<usize> = Vec::new();
    for i in order {
        let size = aligned(&slots[i].size, align)?;
        // Prefer the smallest pool that is large enough, else the largest that must grow, as far as
        // an order is proved.
        let (mut enough, mut small): (Option<usize>, Option<usize>) = (None, None);
        for p in (0..pools.sizes.len()).filter(|p| busy[*p] < slots[i].first) {
            let have = &pools.sizes[p];
            if sizes.covers(have, &size) {
                if enough.is_none_or(|q| sizes.covers(&pools.sizes[q], have)) {
                    enough = Some(p);
                }
            } else if sizes.covers(&size, have) && small.is_none_or(|q| sizes.covers(have, &pools.sizes[q])) {
                small = Some(p);
            }
        }
        let p = match (enough, small) {
            (Some(p), _) => p,
            (None, Some(p)) => {
                pools.sizes[p] = size;
                p
            }
            (None, None) => {
                pools.sizes.push(size);
                busy.push(0);
                busy.len() - 1
            }
        };
        busy[p] = slots[i].last;
        pools.pool[i] = p;
    }
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn live_slots_never_overlap(raw in prop::collection::vec((0usize..40, 0usize..12, 1u64..5000), 1..60)) {
            let slots: Vec<Slot> = raw.iter().map(|(f, n, b)| Slot { first: *f, last: f + n, bytes: *b, size: Dim::from(i64::try_from(*b).unwrap()) }).collect();
            let PackedSlots { offsets, total } = pack(&slots, 128);
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

        /// Random lifetimes with sizes that are products of symbols: neither the formula's stacking
        /// nor pools let two live slots share bytes at any binding, and the formula is the arena.
        #[test]
        fn no_binding_makes_live_slots_overlap(
            raw in prop::collection::vec((0usize..12, 0usize..5, 0usize..6, 1i64..5), 1..14),
            n in 1i64..40, m in 1i64..40,
        ) {
            let terms = ["n*64", "m*64", "n*m*32", "n*64 + 128", "m*96 + n*32", "4096"];
            let bounds = Bindings::from([("n", 40), ("m", 40)]);
            let here = Bindings::from([("n", n), ("m", m)]);
            let slots: Vec<Slot> = raw.iter().map(|(first, life, t, k)| {
                let size = Dim::parse(terms[*t]).unwrap().mul(&(*k).into()).unwrap();
                let bytes = u64::try_from(size.upper_bound(&bounds).unwrap()).unwrap();
                Slot { first: *first, last: first + life, bytes, size }
            }).collect();
            let constraints = Constraints::default();
            let at = |d: &Dim, b: &Bindings| u64::try_from(d.eval(b).unwrap()).unwrap();
            let packed = pack(&slots, 64);
            if let Some(f) = formula(&slots, &packed, 64, &constraints) {
                prop_assert_eq!(at(&f, &bounds), packed.total, "{}", f);
                // The stacking at this binding, computed slot by slot.
                let mut order: Vec<usize> = (0..slots.len()).collect();
                order.sort_by_key(|i| packed.offsets[*i]);
                let mut place: Vec<(usize, u64, u64)> = Vec::new();
                for i in order {
                    let size = at(&slots[i].size, &here).next_multiple_of(64);
                    let low = |j: usize| slots[j].meets(&slots[i]) && packed.offsets[j] + slots[j].bytes <= packed.offsets[i];
                    let start = place.iter().filter(|(j, ..)| low(*j)).map(|(_, _, e)| *e).max().unwrap_or(0);
                    for (j, s, e) in &place {
                        prop_assert!(!slots[*j].meets(&slots[i]) || *e <= start || start + size <= *s);
                    }
                    place.push((i, start, start + size));
                }
                prop_assert_eq!(place.iter().map(|p| p.2).max().unwrap(), at(&f, &here));
                prop_assert!(at(&f, &here) <= packed.total);
            }
            let pools = by_proof(&slots, 64, &constraints).unwrap();
            for (i, a) in slots.iter().enumerate() {
                prop_assert!(at(&pools.sizes[pools.pool[i]], &here) >= at(&a.size, &here));
                for (j, b) in slots.iter().enumerate().skip(i + 1) {
                    prop_assert!(pools.pool[i] != pools.pool[j] || !a.meets(b));
                }
            }
        }
    }

    #[test]
    fn the_papers_examples_of_reuse() {
        let slot = |first, size: &str| Slot {
            first,
            last: first,
            bytes: 0,
            size: Dim::parse(size).unwrap(),
        };
        let pools = |a: &str, b: &str| {
            by_proof(&[slot(0, a), slot(1, b)], 8, &Constraints::default())
                .unwrap()
                .sizes
                .len()
        };
        assert_eq!(pools("N*4096", "N*32*128"), 1);
        assert_eq!(pools("N*4096", "N*2048"), 1);
        assert_eq!(pools("N*4096", "sumN*2*128"), 2);
    }
}
