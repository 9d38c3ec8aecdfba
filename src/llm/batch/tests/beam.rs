//! Beam search, against searches that feed every text alone.

use super::{CONFIG, FakeRows, VOCAB, steps};
use crate::error::{Error, ErrorKind};
use crate::llm::batch::batcher::{Batcher, Request, Sessions};
use crate::llm::batch::beam::{Beam, BeamOptions, beam_search};
use crate::llm::batch::steps::{BatchSequence, StepRunner};
use crate::llm::codec::Codec;
use crate::llm::engine::BatchConfig;
use crate::llm::folder::ModelFolder;
use crate::llm::load::PlaceName;
use crate::llm::testing::byte_codec;
use crate::llm::{Finish, GenerateOptions, LanguageModel, LogProbs, Session};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A codec with these end tokens.
fn codec(eos: &[u32]) -> (tempfile::TempDir, Arc<Codec>) {
    let (dir, _) = byte_codec("{}");
    let config = format!(r#"{{"eos_token_id": {eos:?}}}"#);
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let codec = Codec::load(ModelFolder::open(dir.path()).unwrap()).unwrap();
    assert_eq!(codec.eos(), eos);
    (dir, Arc::new(codec))
}

fn prompt(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|i| (i * (seed + 1) + seed) % VOCAB).collect()
}

fn options(beams: usize, max_tokens: usize, length_penalty: f64) -> BeamOptions {
    BeamOptions {
        beams,
        max_tokens,
        length_penalty,
        ..BeamOptions::default()
    }
}

/// Tokens with the end token, log-probability and score.
type Found = (Vec<u32>, f64, f64);

fn found(beams: &[Beam]) -> Vec<Found> {
    let parts = |beam: &Beam| {
        let end = match beam.finish {
            Finish::Eos(id) => Some(id),
            _ => None,
        };
        let tokens = beam.tokens.iter().copied().chain(end).collect();
        (tokens, beam.log_prob, beam.score)
    };
    beams.iter().map(parts).collect()
}

/// Log-probabilities after texts that are fed alone.
struct Alone<'a> {
    prompt: &'a [u32],
    eos: &'a [u32],
    known: HashMap<Vec<u32>, Vec<(u32, f32)>>,
}

impl<'a> Alone<'a> {
    fn new(prompt: &'a [u32], eos: &'a [u32]) -> Self {
        Self {
            prompt,
            eos,
            known: HashMap::new(),
        }
    }

    /// All tokens with their log-probabilities after `text`, the most likely first.
    fn after(&mut self, text: &[u32]) -> Vec<(u32, f32)> {
        let run = || {
            let mut sequence = steps(None).sequence();
            let mut row = Vec::new();
            sequence.forward(self.prompt, &mut row).unwrap();
            for token in text {
                sequence.forward(&[*token], &mut row).unwrap();
            }
            let all = LogProbs::of(&row, 0, VOCAB as usize).top;
            all.into_iter().map(|t| (t.id, t.log_prob)).collect()
        };
        self.known.entry(text.to_vec()).or_insert_with(run).clone()
    }

    /// The continuations of texts, the most likely first.
    fn continued(&mut self, texts: &[(Vec<u32>, f64)]) -> Vec<(Vec<u32>, f64)> {
        let mut all = Vec::new();
        for (text, log_prob) in texts {
            for (token, more) in self.after(text) {
                all.push(([&text[..], &[token]].concat(), log_prob + f64::from(more)));
            }
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all
    }

    /// A beam search that goes on to the maximum length; with `beams` of `None`, of all texts.
    fn search(&mut self, beams: Option<usize>, max_tokens: usize, penalty: f64) -> Vec<Found> {
        let beams = beams.unwrap_or(usize::MAX);
        let mut all: Vec<Found> = Vec::new();
        let mut running = vec![(Vec::new(), 0.0)];
        for length in 1..=max_tokens {
            let continued = self.continued(&running);
            running.clear();
            for (place, (text, log_prob)) in continued.into_iter().enumerate() {
                if length < max_tokens && !self.eos.contains(text.last().unwrap()) {
                    running.push((text, log_prob));
                } else if place < beams {
                    all.push((text, log_prob, log_prob / (length as f64).powf(penalty)));
                }
            }
            running.truncate(beams);
        }
        all.sort_by(|a, b| b.2.total_cmp(&a.2));
        all.truncate(beams);
        all
    }
}

#[test]
fn wide_beams_find_the_best_of_all_texts() {
    let eos: Vec<u32> = (3..VOCAB).collect();
    let (_dir, codec) = codec(&eos);
    // 27 texts of 3 tokens go on; the 64 best of all are wanted.
    let config = BatchConfig { pages: 65, ..CONFIG };
    for seed in 0..4 {
        let prompt = prompt(seed, 61);
        let mut alone = Alone::new(&prompt, &eos);
        for penalty in [-1.0, 0.0, 0.7, 3.0] {
            let steps = StepRunner::start(FakeRows::new(config, true)).unwrap();
            let beams = beam_search(steps.sequence(), &codec, &prompt, &options(64, 4, penalty)).unwrap();
            let mut want = alone.search(None, 4, penalty);
            assert_eq!(want.len(), 8 * (1 + 3 + 9) + 27 * 11);
            want.truncate(64);
            assert_eq!(found(&beams), want, "{seed} {penalty}");
            assert_eq!(steps.used_pages()[0], 0);
        }
    }
}

#[test]
fn searches_end_early_with_the_same_texts() {
    let eos = [0, 1];
    let (_dir, codec) = codec(&eos);
    let batcher = |model| {
        let sessions = Sessions::Batch(StepRunner::start(model).unwrap());
        Batcher::start(sessions, codec.clone(), 1, PlaceName::default(), Vec::new())
    };
    let mut early = [0; 5];
    for seed in 0..12 {
        let prompt = prompt(seed, 58);
        let mut alone = Alone::new(&prompt, &eos);
        for beams in [1, 2, 3, 5] {
            for (i, penalty) in [-0.5, 0.0, 0.5, 1.0, 2.0].into_iter().enumerate() {
                let model = FakeRows::new(BatchConfig { pages: 10, ..CONFIG }, true);
                let count = model.steps.clone();
                let options = options(beams, 16, penalty);
                let all = batcher(model).beam_search(prompt.as_slice(), &options).unwrap();
                let want = alone.search(Some(beams), 16, penalty);
                assert_eq!(found(&all), want, "{seed} {beams} {penalty}");
                for beam in &all {
                    let text: Vec<u32> = beam.text.bytes().map(u32::from).collect();
                    assert_eq!(text, beam.tokens);
                }
                early[i] += usize::from(count.load(Ordering::Relaxed) < 16);
            }
        }
    }
    assert!(early[0] > 24 && early[1] > 24 && early[2] > 0, "{early:?} of 48");
    assert!(early.is_sorted_by(|a, b| a >= b), "{early:?}");
}

#[test]
fn one_beam_without_a_penalty_is_greedy() {
    for eos in [&[] as &[u32], &[2, 5]] {
        let (_dir, codec) = codec(eos);
        let mut finishes = Vec::new();
        for seed in 0..20 {
            let prompt = prompt(seed, 40);
            let mut session = Session::new(Box::new(steps(None).sequence()), codec.clone());
            let greedy = GenerateOptions {
                max_tokens: 9,
                ..GenerateOptions::default()
            };
            let mut answer = session.generate(prompt.as_slice(), &greedy).unwrap();
            let text = answer.text().unwrap();
            let beams = beam_search(steps(None).sequence(), &codec, &prompt, &options(1, 9, 0.0)).unwrap();
            let [beam] = &beams[..] else {
                panic!("{beams:?}");
            };
            assert_eq!((&beam.text, Some(beam.finish)), (&text, answer.finish()));
            assert_eq!(beam.log_prob, beam.score);
            finishes.push(matches!(beam.finish, Finish::Eos(_)));
        }
        assert!(finishes.contains(&false), "{eos:?}");
        assert_eq!(finishes.contains(&true), !eos.is_empty());
    }
}

#[test]
fn beams_share_steps_and_pages_and_feed_nothing_again() {
    let (_dir, codec) = codec(&[]);
    // 100 tokens and 5 times 19: a shared page, and one for each beam.
    let model = FakeRows::new(CONFIG, true);
    let count = model.steps.clone();
    let steps = StepRunner::start(model).unwrap();
    let beams = beam_search(steps.sequence(), &codec, &prompt(1, 100), &options(5, 20, 1.0)).unwrap();
    assert_eq!((beams.len(), count.load(Ordering::Relaxed)), (5, 20));
    assert_eq!(steps.used_pages()[0], 0);
    assert!(beams.iter().all(|beam| beam.finish == Finish::MaxTokens));
    // The context holds all tokens but the last.
    let beams = beam_search(steps.sequence(), &codec, &prompt(1, 250), &options(3, 20, 1.0)).unwrap();
    let ends: Vec<_> = beams
        .iter()
        .map(|beam| (beam.tokens.len(), beam.finish))
        .collect();
    assert_eq!(ends, [(7, Finish::ContextFull); 3]);
    let beams = beam_search(steps.sequence(), &codec, &prompt(1, 256), &options(9, 1, 1.0)).unwrap();
    assert_eq!(
        (beams.len(), beams[0].tokens.len(), beams[8].finish),
        (9, 1, Finish::MaxTokens)
    );
}

#[test]
fn searches_and_requests_get_what_they_get_alone() {
    let eos = [4];
    let (_dir, codec) = codec(&eos);
    // Too few pages for all of them, so that tokens are fed again.
    let model = FakeRows::new(CONFIG, true);
    let sessions = Sessions::Batch(StepRunner::start(model).unwrap());
    let batcher = Batcher::start(sessions, codec.clone(), 3, PlaceName::default(), Vec::new());
    let options = options(4, 25, 1.0);
    let mut tickets: Vec<_> = (0..4)
        .map(|seed| {
            batcher
                .submit(prompt(seed, 90).as_slice(), Request::default())
                .unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (batcher, codec, options) = (&batcher, &codec, &options);
            scope.spawn(move || {
                let prompt = prompt(seed, 100);
                let beams = batcher.beam_search(prompt.as_slice(), options).unwrap();
                let alone = beam_search(steps(None).sequence(), codec, &prompt, options).unwrap();
                assert_eq!(beams, alone, "{seed}");
            });
        }
    });
    for (seed, ticket) in (0..).zip(&mut tickets) {
        let mut session = Session::new(Box::new(steps(None).sequence()), codec.clone());
        let prompt = prompt(seed, 90);
        let mut answer = session
            .generate(prompt.as_slice(), &GenerateOptions::default())
            .unwrap();
        assert_eq!(ticket.text().unwrap(), answer.text().unwrap(), "{seed}");
    }
}

#[test]
fn a_search_that_ends_with_an_error_leaves_nothing_behind() {
    let (_dir, codec) = codec(&[]);
    let prompt = prompt(2, 70);
    let cancelled = options(4, 150, 1.0);
    let model = FakeRows {
        time: Duration::from_millis(1),
        ..FakeRows::new(BatchConfig { pages: 14, ..CONFIG }, true)
    };
    let count = model.steps.clone();
    let all = StepRunner::start(model).unwrap();
    let e = std::thread::scope(|scope| {
        scope.spawn(|| {
            while count.load(Ordering::Relaxed) < 5 {
                std::thread::yield_now();
            }
            cancelled.cancel.cancel();
        });
        beam_search(all.sequence(), &codec, &prompt, &cancelled).unwrap_err()
    });
    let ran = count.load(Ordering::Relaxed);
    assert_eq!((e.kind(), all.used_pages()[0]), (ErrorKind::Interrupted, 0));
    assert!((5..150).contains(&ran), "{ran} steps");
    let e = beam_search(all.sequence(), &codec, &prompt, &cancelled).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Interrupted, "before the first step");
    let fails = steps(Some(3));
    let full = |e: Error| assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    full(beam_search(fails.sequence(), &codec, &prompt, &options(4, 9, 1.0)).unwrap_err());
    assert_eq!(fails.used_pages()[0], 0);
    let search =
        |steps: &StepRunner| beam_search(steps.sequence(), &codec, &prompt, &options(4, 9, 1.0)).unwrap();
    assert_eq!(search(&fails), search(&steps(None)));
    assert_eq!(search(&all), search(&steps(None)));
}

#[test]
fn wrong_options_and_prompts_are_errors() {
    let (_dir, codec) = codec(&[]);
    let sessions = Sessions::Batch(steps(None));
    let batcher = Batcher::start(sessions, codec, 1, PlaceName::default(), Vec::new());
    let error = |length: u32, options: BeamOptions| {
        let prompt = prompt(1, length);
        batcher.beam_search(prompt.as_slice(), &options).unwrap_err()
    };
    let cases = [
        (9, options(0, 9, 1.0), "beams: 0 is too small"),
        (
            9,
            options(65, 1, 1.0),
            "beams: 65 is too large; expected at most 64",
        ),
        // A shared page, and one for each beam.
        (
            100,
            options(6, 20, 1.0),
            "6 beams of 20 tokens after 100 need a cache of 448 tokens; it holds 384",
        ),
        (9, options(2, 0, 1.0), "max_tokens: 0 is too small"),
        (
            9,
            options(2, 9, f64::NAN),
            "length_penalty: NaN is not a finite number",
        ),
        (9, options(2, 9, f64::INFINITY), "length_penalty: inf"),
        (0, options(2, 9, 1.0), "prompt: has no tokens"),
        (257, options(2, 9, 1.0), "prompt: has 257 tokens"),
    ];
    for (length, options, want) in cases {
        let e = error(length, options);
        assert!(e.is_usage() && e.to_string().contains(want), "{e}, not {want}");
    }
    assert_eq!(
        error(257, BeamOptions::default()).kind(),
        ErrorKind::ContextExceeded
    );
    let e = batcher
        .beam_search(&[VOCAB][..], &BeamOptions::default())
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TokenOutOfRange);
}

#[test]
fn sequences_that_cannot_all_be_fed_are_not_fed() {
    let (steps, others) = (steps(None), steps(None));
    let feed = |sequences: &mut [BatchSequence], tokens: &[u32]| {
        let kind = |e: Error| e.kind();
        BatchSequence::forward_each(sequences, tokens).map_err(kind)
    };
    let mut mixed = [steps.sequence(), others.sequence()];
    assert_eq!(feed(&mut mixed, &[1, 2]), Err(ErrorKind::Internal));
    let mut all = [steps.sequence(), steps.sequence()];
    assert_eq!(feed(&mut all, &[1]), Err(ErrorKind::Internal));
    assert_eq!(feed(&mut all, &[1, VOCAB]), Err(ErrorKind::TokenOutOfRange));
    assert_eq!(all.each_ref().map(|s| s.len()), [0, 0]);
    let rows = feed(&mut all, &[1, 2]).unwrap();
    assert_eq!(all.each_ref().map(|s| s.len()), [1, 1]);
    for (row, token) in rows.iter().zip([1, 2]) {
        let mut alone = Vec::new();
        mixed[1].forward(&[token], &mut alone).unwrap();
        assert_eq!(row, &alone);
        mixed[1].truncate(0);
    }
    assert_eq!(feed(&mut [], &[]), Ok(Vec::new()));
}
