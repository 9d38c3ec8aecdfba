//! Filters for candidate tokens. Each takes the probabilities left by the previous filter and keeps
//! at least one token.

use std::cmp::Ordering;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub id: u32,
    pub logit: f64,
    /// Not normalized: `exp(logit - largest logit)`.
    pub weight: f64,
}

/// Fills the list with those tokens whose logit is above minus infinity.
pub(super) fn collect(all: &mut Vec<Candidate>, tokens: impl Iterator<Item = (u32, f32)>) {
    all.clear();
    let tokens = tokens.filter(|(_, logit)| *logit > f32::NEG_INFINITY);
    all.extend(tokens.map(|(id, logit)| Candidate {
        id,
        // The sum makes zeros equal, whatever their sign.
        logit: f64::from(logit) + 0.0,
        weight: 0.0,
    }));
}

/// Sets the weights for `temperature` (above 0) and returns their sum.
pub(super) fn weigh(all: &mut [Candidate], temperature: f64) -> f64 {
    let most = all.iter().map(|c| c.logit).fold(f64::NEG_INFINITY, f64::max);
    let mut total = 0.0;
    for c in all {
        c.weight = ((c.logit - most) / temperature).exp();
        total += c.weight;
    }
    total
}

/// Orders by weight, largest first; ties by ID.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Keeps the `k` likeliest in order; 0 keeps all. Fewer than `k` stay as they are.
pub(super) fn top_k(all: &mut Vec<Candidate>, k: usize) {
    if k == 0 || k > all.len() {
        return;
    }
    all.select_nth_unstable_by(k - 1, likelier);
    all.truncate(k);
    all.sort_unstable_by(likelier);
}

/// Keeps the shortest prefix of the list whose weights sum to at least `wanted`.
fn keep_until(all: &mut Vec<Candidate>, wanted: f64) {
    let mut sum = 0.0;
    let enough = all.iter().position(|c| {
        sum += c.weight;
        sum >= wanted
    });
    all.truncate(enough.map_or(all.len(), |at| at + 1));
}

/// Keeps the tokens whose information is closest to the entropy, with a total probability of at
/// least `p` (Meister et al., 2022, "Locally Typical Sampling"); 1 keeps all.
pub(super) fn typical_p(all: &mut Vec<Candidate>, p: f64) {
    if p >= 1.0 {
        return;
    }
    let total = weigh(all, 1.0);
    let information = |c: &Candidate| -(c.weight / total).ln();
    let some = all.iter().filter(|c| c.weight > 0.0);
    let entropy: f64 = some.map(|c| c.weight / total * information(c)).sum();
    // Bits of non-negative floats sort like the floats.
    all.sort_by_cached_key(|c| ((information(c) - entropy).abs().to_bits(), c.id));
    keep_until(all, p * total);
}

/// Keeps the fewest likeliest with a total probability of at least `p` (Holtzman et al., 2020); 1
/// keeps all.
pub(super) fn top_p(all: &mut Vec<Candidate>, p: f64) {
    if p >= 1.0 {
        return;
    }
    let total = weigh(all, 1.0);
    let wanted = p * total;
    // Weights below this sum to less than what is dropped, so only a few candidates need sorting.
    let floor = (total - wanted) / all.len() as f64;
    all.retain(|c| c.weight >= floor);
    all.sort_unstable_by(likelier);
    keep_until(all, wanted);
}

/// Keeps tokens at least `p` times as likely as the likeliest (Nguyen et al., 2024); 0 keeps all.
pub(super) fn min_p(all: &mut Vec<Candidate>, p: f64) {
    if p <= 0.0 {
        return;
    }
    weigh(all, 1.0);
    // The likeliest has weight 1.
    all.retain(|c| c.weight >= p);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn of(logits: &[f32]) -> Vec<Candidate> {
        let mut all = Vec::new();
        collect(&mut all, (0..).zip(logits.iter().copied()));
        all
    }

    fn ids(all: &[Candidate]) -> BTreeSet<u32> {
        all.iter().map(|c| c.id).collect()
    }

    /// Probabilities of all tokens by the plain softmax.
    fn softmax(logits: &[f32]) -> Vec<f64> {
        let all: Vec<f64> = logits.iter().map(|l| f64::from(*l).exp()).collect();
        let total: f64 = all.iter().sum();
        all.iter().map(|w| w / total).collect()
    }

    /// Ids in the order of `key`, cut where the probabilities sum to `p`; `None` where the cut is
    /// too close to tell.
    fn cut(probabilities: &[f64], key: &dyn Fn(f64) -> f64, p: f64) -> Option<BTreeSet<u32>> {
        let mut order: Vec<u32> = (0u32..).take(probabilities.len()).collect();
        let at = |id: &u32| probabilities[*id as usize];
        order.sort_by(|a, b| key(at(a)).total_cmp(&key(at(b))).then(a.cmp(b)));
        let mut sum = 0.0;
        let mut kept = BTreeSet::new();
        for id in &order {
            if kept.is_empty() || sum < p {
                kept.insert(*id);
                sum += at(id);
                if (sum - p).abs() < 1e-9 {
                    return None;
                }
            }
        }
        // Neighbours in the order may be too close as well, where one of them is left out.
        let next = order.get(kept.len()).map(|id| key(at(id)));
        let last = order.get(kept.len() - 1).map(|id| key(at(id)));
        let tied =
            matches!((next, last), (Some(a), Some(b)) if (a - b).abs() < 1e-9 && a.to_bits() != b.to_bits());
        (!tied).then_some(kept)
    }

    fn rows() -> impl Strategy<Value = Vec<f32>> {
        // Halves, so that there are ties.
        proptest::collection::vec((-12i8..12).prop_map(|v| f32::from(v) / 2.0), 1..40)
    }

    proptest! {
        #[test]
        fn top_k_keeps_those_with_fewer_than_k_before_them(logits in rows(), k in 0usize..50) {
            let mut all = of(&logits);
            top_k(&mut all, k);
            let before = |i: usize| (0..logits.len()).filter(|j| {
                logits[*j] > logits[i] || logits[*j] == logits[i] && *j < i
            }).count();
            let wanted: BTreeSet<u32> = (0..logits.len())
                .filter(|i| k == 0 || before(*i) < k)
                .map(|i| i as u32)
                .collect();
            prop_assert_eq!(ids(&all), wanted);
        }

        #[test]
        fn top_p_keeps_the_smallest_sufficient_set(logits in rows(), p in 0.01f64..1.0) {
            let mut all = of(&logits);
            top_p(&mut all, p);
            if let Some(wanted) = cut(&softmax(&logits), &|q| -q, p) {
                prop_assert_eq!(ids(&all), wanted);
            }
        }

        #[test]
        fn typical_p_keeps_what_is_nearest_to_the_entropy(logits in rows(), p in 0.01f64..1.0) {
            let mut all = of(&logits);
            typical_p(&mut all, p);
            let q = softmax(&logits);
            let entropy: f64 = q.iter().map(|q| -q * q.ln()).sum();
            let distance = |q: f64| (-q.ln() - entropy).abs();
            // Two distances on either side of the entropy may be equal up to rounding.
            let d: Vec<f64> = q.iter().map(|q| distance(*q)).collect();
            let unclear = d.iter().any(|a| d.iter().any(|b| a != b && (a - b).abs() < 1e-9));
            if let Some(wanted) = cut(&q, &distance, p).filter(|_| !unclear) {
                prop_assert_eq!(ids(&all), wanted);
            }
        }

        #[test]
        fn min_p_keeps_a_share_of_the_likeliest(logits in rows(), p in 0.0f64..1.0) {
            let mut all = of(&logits);
            min_p(&mut all, p);
            let q = softmax(&logits);
            let most = q.iter().copied().fold(0.0, f64::max);
            if q.iter().all(|q| (q / most - p).abs() > 1e-9) {
                let wanted: BTreeSet<u32> = (0u32..).zip(&q).filter(|(_, q)| **q >= p * most).map(|(i, _)| i).collect();
                prop_assert_eq!(ids(&all), wanted);
            }
        }

        #[test]
        fn weights_are_the_softmax(logits in rows(), temperature in 0.1f64..5.0) {
            let mut all = of(&logits);
            let total = weigh(&mut all, temperature);
            let scaled: Vec<f64> = logits.iter().map(|l| (f64::from(*l) / temperature).exp()).collect();
            let sum: f64 = scaled.iter().sum();
            for (c, w) in all.iter().zip(&scaled) {
                prop_assert!((c.weight / total - w / sum).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn one_token_always_stays() {
        for logits in [&[1.0f32][..], &[f32::NEG_INFINITY, -3e38], &[0.0; 5]] {
            let mut all = of(logits);
            top_k(&mut all, 1);
            typical_p(&mut all, 1e-9);
            top_p(&mut all, 1e-9);
            min_p(&mut all, 1.0);
            assert_eq!(all.len(), 1, "{logits:?}");
        }
    }
}
