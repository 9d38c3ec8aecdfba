//! The chain as a whole.

use super::*;
use crate::testing::{assert_carries, assert_usage};
use proptest::collection::vec;
use proptest::prelude::*;

fn counts(config: SamplerConfig, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(config).unwrap();
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(logits).unwrap() as usize] += 1;
    }
    counts
}

fn hot() -> SamplerConfig {
    SamplerConfig {
        temperature: 1.0,
        seed: 7,
        ..SamplerConfig::default()
    }
}

#[test]
fn splitmix_matches_its_reference() {
    let mut random = SplitMix64::new(1234567);
    assert_eq!(random.next_u64(), 6457827717110365317);
    assert_eq!(random.next_u64(), 3203168211198807973);
}

#[test]
fn greedy_takes_the_first_of_equals() {
    let mut sampler = Sampler::new(SamplerConfig::default()).unwrap();
    assert_eq!(sampler.sample(&[0.0, 2.0, 2.0, -1.0]).unwrap(), 1);
    assert_eq!(sampler.sample(&[f32::NEG_INFINITY, -3e38]).unwrap(), 1);
    let config = SamplerConfig { top_k: 1, ..hot() };
    assert_eq!(counts(config, &[1.0, 1.0, 1.0], 100), [100, 0, 0]);
}

#[test]
fn frequencies_follow_the_softmax() {
    let logits: Vec<f32> = [0.1f32, 0.2, 0.3, 0.4].iter().map(|p| p.ln() + 3.0).collect();
    let draws = 40_000;
    for (count, p) in counts(hot(), &logits, draws).iter().zip([0.1, 0.2, 0.3, 0.4]) {
        let error = (*count as f64 / draws as f64 - p).abs();
        assert!(error < 0.01, "{count} of {draws} for {p}");
    }
    let config = SamplerConfig {
        temperature: 0.5,
        ..hot()
    };
    let squares = [1.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0, 16.0 / 30.0];
    for (count, p) in counts(config, &logits, draws).iter().zip(squares) {
        assert!(
            (*count as f64 / draws as f64 - p).abs() < 0.01,
            "{count} of {draws} for {p}"
        );
    }
}

#[test]
fn top_k_keeps_the_likeliest_and_zero_keeps_all() {
    let logits = [1.0, 3.0, 2.0, 3.0, 0.5];
    let c = counts(SamplerConfig { top_k: 2, ..hot() }, &logits, 2000);
    assert!(c[1] > 800 && c[3] > 800 && c[0] + c[2] + c[4] == 0, "{c:?}");
    let c = counts(SamplerConfig { top_k: 3, ..hot() }, &[1.0; 6], 3000);
    assert!(
        c[..3].iter().all(|n| *n > 850) && c[3..].iter().all(|n| *n == 0),
        "ties by id: {c:?}"
    );
    for k in [0, 5, 99] {
        let c = counts(SamplerConfig { top_k: k, ..hot() }, &logits, 5000);
        assert!(c.iter().all(|n| *n > 0), "top_k {k}: {c:?}");
    }
}

#[test]
fn top_p_keeps_the_smallest_sufficient_set() {
    let logits: Vec<f32> = [0.1f32, 0.5, 0.15, 0.25].iter().map(|p| p.ln()).collect();
    for (top_p, kept) in [(1e-6, 1), (0.49, 1), (0.6, 2), (0.8, 3), (0.95, 4), (1.0, 4)] {
        let c = counts(SamplerConfig { top_p, ..hot() }, &logits, 5000);
        assert_eq!(c.iter().filter(|n| **n > 0).count(), kept, "top_p {top_p}: {c:?}");
        assert!(c[1] > 0);
    }
    let c = counts(SamplerConfig { top_p: 0.5, ..hot() }, &[0.0; 8], 4000);
    assert!(
        c[..4].iter().all(|n| *n > 850) && c[4..].iter().all(|n| *n == 0),
        "ties by id: {c:?}"
    );
}

#[test]
fn seeds_repeat_and_differ() {
    let logits: Vec<f32> = (0..100).map(|i| (i as f32 * 0.37).sin()).collect();
    let run = |seed| {
        let mut s = Sampler::new(SamplerConfig {
            seed,
            top_p: 0.9,
            top_k: 50,
            ..hot()
        })
        .unwrap();
        (0..50).map(|_| s.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn masked_tokens_are_never_drawn() {
    let c = counts(hot(), &[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0], 500);
    assert_eq!((c[0], c[2]), (0, 0));
    let tiny = SamplerConfig {
        temperature: 1e-38,
        ..hot()
    };
    assert_eq!(counts(tiny, &[-3e38, 3e38, 0.0], 100), [0, 100, 0]);
}

#[test]
fn bad_logits_and_values_are_errors() {
    for config in [SamplerConfig::default(), hot()] {
        let mut sampler = Sampler::new(config).unwrap();
        let e = sampler.sample(&[0.0, f32::NAN]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFinite);
        assert_carries(e, &["1", "2", "NaN", "--float f32"]);
        let e = sampler.sample(&[0.0, f32::INFINITY]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFinite);
        assert!(sampler.sample(&[f32::NEG_INFINITY]).is_err());
        assert!(sampler.sample(&[]).is_err());
    }
    for (temperature, top_p, option) in [
        (-1.0, 1.0, "temperature"),
        (f32::NAN, 1.0, "temperature"),
        (f32::INFINITY, 1.0, "temperature"),
        (1.0, 0.0, "top_p"),
        (1.0, 1.5, "top_p"),
        (1.0, f32::NAN, "top_p"),
    ] {
        let e = Sampler::new(SamplerConfig {
            temperature,
            top_p,
            ..hot()
        })
        .unwrap_err();
        assert_usage(&e, option, &[]);
    }
}

/// Allows tokens in a fixed order.
struct InOrder(Vec<u32>, usize);

impl Constraint for InOrder {
    fn start(&mut self) -> Result<()> {
        self.1 = 0;
        Ok(())
    }

    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        for (id, logit) in (0u32..).zip(logits) {
            if self.0.get(self.1) != Some(&id) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        assert_eq!(self.0[self.1], token);
        self.1 += 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.1 == self.0.len()
    }
}

#[test]
fn a_constraint_rules_out_before_anything_is_chosen() {
    for config in [
        SamplerConfig::default(),
        SamplerConfig { top_k: 1, ..hot() },
        SamplerConfig {
            top_k: 2,
            typical_p: 0.5,
            top_p: 0.5,
            min_p: 0.9,
            ..hot()
        },
    ] {
        let mut sampler = Sampler::new(config)
            .unwrap()
            .constrained(Box::new(InOrder(vec![3, 0, 2], 0)));
        assert!(!sampler.is_greedy());
        for _ in 0..2 {
            sampler.start(&[1, 1]).unwrap();
            for wanted in [3, 0, 2] {
                assert!(!sampler.is_complete());
                assert_eq!(sampler.sample(&[0.0, 9.0, 0.0, -5.0]).unwrap(), wanted);
                sampler.accept(wanted).unwrap();
            }
            assert!(sampler.is_complete());
        }
    }
}

#[test]
fn the_chain_looks_at_the_context() {
    let config = SamplerConfig {
        penalties: Penalties {
            presence: 1.0,
            ..Penalties::default()
        },
        logit_bias: vec![(2, 3.0), (3, f32::NEG_INFINITY)],
        ..SamplerConfig::default()
    };
    let mut sampler = Sampler::new(config).unwrap();
    let logits = [2.0, 1.5, -0.8, 9.0];
    let mut text = Vec::new();
    for _ in 0..3 {
        let id = sampler.sample(&logits).unwrap();
        sampler.accept(id).unwrap();
        text.push(id);
    }
    // 2, 1.5, 2.2; then 2, 1.5, 1.2; then 1, 1.5, 1.2.
    assert_eq!(text, [2, 0, 1]);
    sampler.start(&[1, 2]).unwrap();
    assert_eq!(
        sampler.sample(&logits).unwrap(),
        0,
        "a new text has a context of its own"
    );
    let e = sampler.sample(&logits[..2]).unwrap_err();
    assert_usage(&e, "logit_bias", &["2"]);
}

#[test]
fn filters_look_at_probabilities_before_the_temperature() {
    // At temperature 100 all three are about as likely.
    let config = SamplerConfig {
        top_p: 0.9,
        temperature: 100.0,
        seed: 3,
        ..SamplerConfig::default()
    };
    let logits: Vec<f32> = [0.85f32, 0.1, 0.05].iter().map(|p| p.ln()).collect();
    let c = counts(config, &logits, 1000);
    assert!(c[0] > 400 && c[1] > 400 && c[2] == 0, "{c:?}");
}

#[test]
fn only_an_unchanged_largest_logit_is_greedy() {
    let greedy = |config: SamplerConfig| Sampler::new(config).unwrap().is_greedy();
    assert!(greedy(SamplerConfig::default()));
    assert!(greedy(SamplerConfig { top_k: 1, ..hot() }));
    assert!(greedy(SamplerConfig {
        top_p: 0.5,
        ..SamplerConfig::default()
    }));
    assert!(!greedy(hot()));
    for config in [
        SamplerConfig {
            typical_p: 0.5,
            ..SamplerConfig::default()
        },
        SamplerConfig {
            logit_bias: vec![(0, 1.0)],
            ..SamplerConfig::default()
        },
        SamplerConfig {
            dry: Dry {
                multiplier: 1.0,
                ..Dry::default()
            },
            ..SamplerConfig::default()
        },
    ] {
        assert!(!greedy(config));
    }
}

#[test]
fn candidates_are_enough_for_few_unchanged_logits() {
    let needs = |config: SamplerConfig| Sampler::new(config).unwrap().needs();
    assert_eq!(needs(SamplerConfig::default()), SamplerNeeds::MostLikely);
    assert_eq!(needs(SamplerConfig::sampling()), SamplerNeeds::Candidates);
    assert_eq!(
        needs(SamplerConfig { top_k: 64, ..hot() }),
        SamplerNeeds::Candidates
    );
    for config in [
        hot(),
        SamplerConfig { top_k: 65, ..hot() },
        SamplerConfig {
            logit_bias: vec![(0, 1.0)],
            ..SamplerConfig::sampling()
        },
        SamplerConfig {
            penalties: Penalties {
                frequency: 0.5,
                ..Penalties::default()
            },
            ..SamplerConfig::sampling()
        },
    ] {
        let mut sampler = Sampler::new(config).unwrap();
        assert_eq!(sampler.needs(), SamplerNeeds::Row);
        let mut found = Candidates::default();
        found.push(&[0.0; 3]).unwrap();
        assert!(sampler.sample_candidates(found.row(0).unwrap()).is_err());
    }
}

proptest! {
    #[test]
    fn candidates_give_the_token_of_the_row(
        // Few different logits, so that there are ties, and some tokens that are forbidden.
        rows in vec(vec((-20i8..20).prop_map(|v| match v {
            -20 => f32::NEG_INFINITY,
            -19 => -0.0,
            v => f32::from(v / 3),
        }), 1..200), 1..6),
        top_k in 1usize..=64,
        typical_p in prop_oneof![Just(1.0f32), 0.05f32..1.0],
        top_p in prop_oneof![Just(1.0f32), 0.05f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        temperature in prop_oneof![Just(0.0f32), 0.1f32..3.0],
        seed: u64,
    ) {
        let config = SamplerConfig { top_k, typical_p, top_p, min_p, temperature, seed, ..SamplerConfig::default() };
        let (mut of_rows, mut of_candidates) = (Sampler::new(config.clone()).unwrap(), Sampler::new(config).unwrap());
        for row in rows {
            let mut found = Candidates::default();
            if found.push(&row).is_err() {
                prop_assert!(of_rows.sample(&row).is_err());
                continue;
            }
            for _ in 0..4 {
                let want = of_rows.sample(&row).unwrap();
                prop_assert_eq!(of_candidates.sample_candidates(found.row(0).unwrap()).unwrap(), want);
            }
        }
    }
}

#[test]
fn numbers_out_of_range_name_their_option() {
    let plain = SamplerConfig::default;
    let penalties = |p| SamplerConfig {
        penalties: p,
        ..plain()
    };
    let dry = |d| SamplerConfig { dry: d, ..plain() };
    for (config, option, values) in [
        (
            SamplerConfig {
                typical_p: 0.0,
                ..plain()
            },
            "typical_p",
            &["0", "1"][..],
        ),
        (
            SamplerConfig {
                min_p: -0.1,
                ..plain()
            },
            "min_p",
            &["-0.1", "0", "1"],
        ),
        (
            penalties(Penalties {
                repetition: 0.0,
                ..Penalties::default()
            }),
            "repetition_penalty",
            &["0", "0.01", "100"],
        ),
        (
            penalties(Penalties {
                repetition: 1e-40,
                ..Penalties::default()
            }),
            "repetition_penalty",
            &["0.01", "100"],
        ),
        (
            penalties(Penalties {
                frequency: 2.5,
                ..Penalties::default()
            }),
            "frequency_penalty",
            &["2.5", "-2", "2"],
        ),
        (
            penalties(Penalties {
                presence: f32::NAN,
                ..Penalties::default()
            }),
            "presence_penalty",
            &["NaN"],
        ),
        (
            dry(Dry {
                base: 0.5,
                ..Dry::default()
            }),
            "dry_base",
            &["0.5"],
        ),
        (
            dry(Dry {
                multiplier: -1.0,
                ..Dry::default()
            }),
            "dry_multiplier",
            &["-1"],
        ),
        (
            SamplerConfig {
                logit_bias: vec![(4, f32::INFINITY)],
                ..plain()
            },
            "logit_bias",
            &["inf", "4"],
        ),
    ] {
        let e = Sampler::new(config).unwrap_err();
        assert_usage(&e, option, values);
    }
}
