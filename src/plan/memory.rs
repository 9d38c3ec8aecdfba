//! Placement of tensors with known lifetimes in one arena.

use crate::num;
use crate::shape::{Bindings, Constraints, Dim, DimError};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};

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

/// Maximum number of slots for which orders are compared. The time for one order grows with the
/// square of the number of slots.
const MAX_SEARCHED: usize = 1 << 13;

/// Places `slots` at offsets that are multiples of `align`. Slots whose lifetimes intersect never
/// overlap. Several orders are tried, each with lowest-offset and best-fit placement, and the best
/// result is kept. Then the search repeatedly places the topmost slots first, as long as that
/// helps. More than `MAX_SEARCHED` slots are placed once, in the order of their first steps.
pub fn pack(slots: &[Slot], align: u64) -> PackedSlots {
    if slots.len() > MAX_SEARCHED {
        return pack_in_time(slots, align);
    }
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

/// Places slots in the order of their first steps, each in the smallest gap that fits.
fn pack_in_time(slots: &[Slot], align: u64) -> PackedSlots {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|i| (slots[*i].first, Reverse(slots[*i].bytes)));
    let mut offsets = vec![0u64; slots.len()];
    let mut gaps = Gaps::default();
    let mut live: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    let length = |i: usize| slots[i].bytes.next_multiple_of(align);
    for i in order {
        while let Some(Reverse((last, past))) = live.peek().copied()
            && last < slots[i].first
        {
            live.pop();
            gaps.free(offsets[past], length(past));
        }
        offsets[i] = gaps.take(length(i));
        live.push(Reverse((slots[i].last, i)));
    }
    PackedSlots {
        offsets,
        total: gaps.end,
    }
}

/// The free ranges of an arena that grows.
#[derive(Debug, Default)]
struct Gaps {
    /// Length of each gap, by its offset. No two gaps touch.
    lengths: BTreeMap<u64, u64>,
    /// Lengths and offsets.
    by_length: BTreeSet<(u64, u64)>,
    end: u64,
}

impl Gaps {
    fn insert(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.lengths.insert(offset, length);
            self.by_length.insert((length, offset));
        }
    }

    fn remove(&mut self, offset: u64, length: u64) {
        self.lengths.remove(&offset);
        self.by_length.remove(&(length, offset));
    }

    /// Takes `length` bytes and returns their offset: in the smallest gap, or at the end.
    fn take(&mut self, length: u64) -> u64 {
        if let Some((whole, offset)) = self.by_length.range((length, 0)..).next().copied() {
            self.remove(offset, whole);
            self.insert(offset + length, whole - length);
            return offset;
        }
        let mut offset = self.end;
        if let Some((start, rest)) = self.lengths.last_key_value().map(|(o, l)| (*o, *l))
            && start + rest == self.end
        {
            self.remove(start, rest);
            offset = start;
        }
        self.end = offset + length;
        offset
    }

    /// Makes a range that was taken a gap, together with the gaps beside it.
    fn free(&mut self, mut offset: u64, mut length: u64) {
        let before = self.lengths.range(..offset).next_back().map(|(o, l)| (*o, *l));
        if let Some((start, rest)) = before.filter(|(o, l)| o + l == offset) {
            self.remove(start, rest);
            (offset, length) = (start, rest + length);
        }
        if let Some(rest) = self.lengths.get(&(offset + length)).copied() {
            self.remove(offset + length, rest);
            length += rest;
        }
        self.insert(offset, length);
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

/// Total number of sums that [`formula`] may look at.
const MAX_SUMS: usize = 1_000_000;

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
    samples: [Bindings; 3],
    values: HashMap<Dim, [Option<i64>; 3]>,
    proofs: HashMap<(Dim, Dim), bool>,
}

impl<'a> SizeOrder<'a> {
    fn new<'b>(constraints: &'a Constraints, sizes: impl Iterator<Item = &'b Dim>) -> Self {
        let mut symbols = BTreeSet::new();
        sizes.for_each(|d| d.symbols(&mut symbols));
        let mut samples = [Bindings::new(), Bindings::new(), Bindings::new()];
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

    fn sampled(&mut self, d: &Dim) -> [Option<i64>; 3] {
        if let Some(v) = self.values.get(d) {
            return *v;
        }
        let v = self.samples.each_ref().map(|b| d.eval(b).ok());
        self.values.insert(d.clone(), v);
        v
    }

    /// Whether `a >= b` is proved for every binding.
    fn covers(&mut self, a: &Dim, b: &Dim) -> bool {
        if let (Some(a), Some(b)) = (a.as_const(), b.as_const()) {
            return a >= b;
        }
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
/// that of the packing. `None` if the expression would be long, or takes long to find.
pub fn formula(slots: &[Slot], packed: &PackedSlots, align: u64, constraints: &Constraints) -> Option<Dim> {
    if slots.iter().all(|s| s.size.as_const().is_some()) {
        return i64::try_from(packed.total).ok().map(Dim::from);
    }
    if slots.len() > MAX_SEARCHED {
        return None;
    }
    let mut sizes = SizeOrder::new(constraints, slots.iter().map(|s| &s.size));
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|i| packed.offsets[*i]);
    // For each slot, the sums whose maximum is its end.
    let mut ends: Vec<Vec<Dim>> = vec![Vec::new(); slots.len()];
    let mut total: Vec<Dim> = Vec::new();
    let mut sums = 0;
    for (k, i) in order.iter().enumerate() {
        let below = order[..k].iter().filter(|j| {
            slots[**j].meets(&slots[*i]) && packed.offsets[**j] + slots[**j].bytes <= packed.offsets[*i]
        });
        let (mut starts, mut known): (Vec<Dim>, HashSet<&Dim>) = (Vec::new(), HashSet::new());
        for e in below.flat_map(|j| &ends[*j]) {
            sums += 1;
            if known.insert(e) {
                starts.push(e.clone());
            }
        }
        if sums > MAX_SUMS {
            return None;
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
        if total.len() > 16 * ALTERNATIVES {
            return None;
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
/// size. For sizes without bounds. If there are very many pools, not all are compared.
pub fn by_proof(slots: &[Slot], align: u64, constraints: &Constraints) -> Result<Pools, DimError> {
    let mut sizes = SizeOrder::new(constraints, slots.iter().map(|s| &s.size));
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|i| slots[*i].first);
    let mut pools = Pools {
        pool: vec![0; slots.len()],
        sizes: Vec::new(),
    };
    let mut busy: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    let mut free: BTreeSet<usize> = BTreeSet::new();
    let mut effort = 0;
    for i in order {
        while let Some(Reverse((last, p))) = busy.peek().copied()
            && last < slots[i].first
        {
            busy.pop();
            free.insert(p);
        }
        let most = if effort < MAX_SUMS {
            usize::MAX
        } else {
            ALTERNATIVES
        };
        let size = aligned(&slots[i].size, align)?;
        // Prefer the smallest pool that is large enough, else the largest that must grow, as far as
        // an order is proved.
        let (mut enough, mut small): (Option<usize>, Option<usize>) = (None, None);
        for p in free.iter().copied().take(most) {
            effort += 1;
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
                pools.sizes.len() - 1
            }
        };
        free.remove(&p);
        busy.push(Reverse((slots[i].last, p)));
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
            for PackedSlots { offsets, total } in [pack(&slots, 128), pack_in_time(&slots, 128)] {
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

    /// A chain in which each tensor lives for two steps needs memory for two, however long it is.
    #[test]
    fn many_slots_reuse_memory() {
        let slot = |i: usize| Slot {
            first: i,
            last: i + 1,
            bytes: 1000,
            size: 1000.into(),
        };
        let slots: Vec<Slot> = (0..3 * MAX_SEARCHED).map(slot).collect();
        assert_eq!(pack(&slots, 8).total, 2000);
        let packed = pack(&slots, 8);
        let total = formula(&slots, &packed, 8, &Constraints::default());
        assert_eq!(total, Some(Dim::from(2000)));
        let pools = by_proof(&slots, 8, &Constraints::default()).unwrap();
        assert_eq!(pools.sizes, [1000, 1000].map(Dim::from));
    }
}
