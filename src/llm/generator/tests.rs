//! Generation with models that have no weights.

use super::*;
use crate::llm::testing::FakeModel;
use crate::llm::{Draft, SamplerConfig};
use crate::testing::{assert_carries, assert_error, assert_usage};

fn greedy() -> Sampler {
    Sampler::new(SamplerConfig::default()).unwrap()
}

fn options(max_tokens: usize, eos: &[u32]) -> DecodeOptions {
    DecodeOptions {
        max_tokens,
        eos: eos.to_vec(),
        ..DecodeOptions::default()
    }
}

/// Counts upward from the last token.
fn counting(context: usize) -> FakeModel {
    FakeModel::new(32, context, |cache| (cache.last().unwrap() + 1) % 32)
}

fn run(model: &mut FakeModel, prompt: &[u32], options: DecodeOptions) -> (Vec<u32>, Option<Finish>, Metrics) {
    let mut sampler = greedy();
    let mut generator = Generator::new(model, &mut sampler, prompt, options).unwrap();
    let ids = generator.by_ref().map(|t| t.unwrap().id).collect();
    (ids, generator.finish(), generator.metrics())
}

#[test]
fn stops_at_an_end_token() {
    let mut model = counting(100);
    let (ids, finish, metrics) = run(&mut model, &[1, 2, 3], options(50, &[9, 7]));
    assert_eq!(ids, [4, 5, 6]);
    assert_eq!(finish, Some(Finish::Eos(7)));
    assert_eq!(model.calls, [vec![1, 2, 3], vec![4], vec![5], vec![6]]);
    assert_eq!((metrics.prompt_tokens, metrics.decode_tokens), (3, 3));
}

#[test]
fn stops_at_the_token_limit_without_a_wasted_step() {
    let mut model = counting(100);
    let (ids, finish, _) = run(&mut model, &[1], options(2, &[]));
    assert_eq!((ids, finish), (vec![2, 3], Some(Finish::MaxTokens)));
    assert_eq!(model.cache, [1, 2], "the last token is not fed");
    let (ids, finish, metrics) = run(&mut model, &[1], options(0, &[]));
    assert_eq!((ids, finish), (vec![], Some(Finish::MaxTokens)));
    assert_eq!(metrics.prefill_tokens_per_s(), None);
}

#[test]
fn stops_when_the_context_is_full() {
    let mut model = counting(4);
    let (ids, finish, _) = run(&mut model, &[1, 2, 3], options(50, &[]));
    assert_eq!((ids, finish), (vec![4, 5], Some(Finish::ContextFull)));
    assert_eq!(model.cache, [1, 2, 3, 4]);
    model.truncate(0);
    let (ids, _, _) = run(&mut model, &[1, 2, 3, 4], options(50, &[]));
    assert_eq!(ids, [5], "a prompt of the context's size has one answer");
}

#[test]
fn continues_after_what_the_cache_holds() {
    let mut model = FakeModel::new(32, 100, |cache| u32::try_from(cache.len()).unwrap());
    model.cache = vec![3, 3, 3];
    let mut sampler = greedy();
    let tokens: Vec<Token> = Generator::new(&mut model, &mut sampler, &[4], options(2, &[]))
        .unwrap()
        .map(|t| t.unwrap())
        .collect();
    assert_eq!(
        tokens,
        [Token { id: 4, position: 4 }, Token { id: 5, position: 5 }]
    );
}

#[test]
fn stops_when_cancelled() {
    let mut model = counting(100);
    let options = options(50, &[]);
    let cancel = options.cancel.clone();
    let mut sampler = greedy();
    let mut generator =
        Generator::new(&mut model as &mut dyn LanguageModel, &mut sampler, &[1], options).unwrap();
    assert!(generator.next().is_some());
    cancel.cancel();
    assert!(generator.next().is_none());
    assert_eq!(generator.finish(), Some(Finish::Cancelled));
    cancel.reset();
    assert!(generator.next().is_none(), "the end is final");
}

#[test]
fn prompts_that_cannot_be_fed_are_refused() {
    let mut model = counting(4);
    model.cache = vec![1, 1];
    let mut sampler = greedy();
    let e = Generator::new(&mut model, &mut sampler, &[1, 2, 3], options(1, &[]))
        .err()
        .unwrap();
    assert_usage(&e, "prompt", &["5", "4"]);
    assert_eq!(e.kind(), ErrorKind::ContextExceeded);
    let e = Generator::new(&mut model, &mut sampler, &[], options(1, &[]))
        .err()
        .unwrap();
    assert!(e.is_usage(), "{e}");
    let e = Generator::new(&mut model, &mut sampler, &[32], options(1, &[]))
        .err()
        .unwrap();
    assert_error(&e, ErrorKind::TokenOutOfRange, &["32"]);
    assert!(model.calls.is_empty());
}

#[test]
fn an_error_ends_it() {
    let mut model = counting(100);
    model.fail_at = Some(1);
    let mut sampler = greedy();
    let mut generator = Generator::new(&mut model, &mut sampler, &[1], options(9, &[])).unwrap();
    assert!(generator.next().unwrap().is_ok());
    assert!(generator.next().unwrap().is_err());
    assert!(generator.next().is_none());
    assert_eq!(generator.finish(), None);
}

/// A model whose runs are counted, with every row of a short run at once, as devices have it.
struct Rows(FakeModel, Vec<usize>);

impl LanguageModel for Rows {
    fn vocab(&self) -> usize {
        self.0.vocab()
    }

    fn context(&self) -> usize {
        self.0.context()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn forward(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        self.1.push(tokens.len());
        self.0.forward(tokens, logits)
    }

    fn forward_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.1.push(tokens.len());
        self.0.forward_all(tokens)
    }

    fn most_rows(&self) -> usize {
        5
    }

    fn truncate(&mut self, len: usize) -> usize {
        self.0.truncate(len)
    }
}

/// Goes on by the last two tokens, so that stretches come back.
fn looping(context: usize) -> FakeModel {
    FakeModel::new(7, context, |cache| match cache {
        [.., a, b] => (a * 2 + b * 3 + 1) % 7,
        _ => 1,
    })
}

/// Guesses right as long as the counter allows, then wrong.
struct Flaky(usize);

impl Draft for Flaky {
    fn propose(&mut self, context: &[u32], most: usize, _: &Cancel) -> Result<Vec<u32>> {
        let mut model = looping(1000);
        let mut all = context.to_vec();
        self.0 = (self.0 + 1) % 6;
        for i in 0..most {
            model.cache.clear();
            let right = model.most_likely(&all).unwrap();
            all.push(match i.cmp(&self.0) {
                std::cmp::Ordering::Less => right,
                std::cmp::Ordering::Equal => (right + 1) % 7,
                // A token that the model does not have.
                std::cmp::Ordering::Greater => 9,
            });
        }
        Ok(all.split_off(context.len()))
    }
}

fn configs() -> [SamplerConfig; 2] {
    let warm = SamplerConfig {
        temperature: 3.0,
        seed: 11,
        penalties: crate::llm::sampler::Penalties {
            presence: 0.5,
            ..Default::default()
        },
        ..SamplerConfig::default()
    };
    [SamplerConfig::default(), warm]
}

#[test]
fn drafts_change_runs_and_not_tokens() {
    let mut accepted = 0;
    for config in configs() {
        for (max, eos, context) in [(40, 6, 100), (40, 99, 30), (13, 99, 100), (1, 99, 100)] {
            let mut sampler = Sampler::new(config.clone()).unwrap();
            let mut plain = looping(context);
            let mut generator =
                Generator::new(&mut plain, &mut sampler, &[1, 2, 3], options(max, &[eos])).unwrap();
            let wanted: Vec<Token> = generator.by_ref().map(|t| t.unwrap()).collect();
            let end = generator.finish();
            let drafts: [Box<dyn Draft>; 3] = [
                Box::new(Flaky(0)),
                Box::new(crate::llm::NgramDraft::default()),
                Box::new(crate::llm::ModelDraft::new(Box::new(looping(1000)))),
            ];
            for draft in drafts {
                let mut draft = Speculation::fixed(draft, 8);
                let mut sampler = Sampler::new(config.clone()).unwrap();
                let mut model = Rows(looping(context), Vec::new());
                let mut generator =
                    Generator::new(&mut model, &mut sampler, &[1, 2, 3], options(max, &[eos]))
                        .unwrap()
                        .speculating(&mut draft);
                let found: Vec<Token> = generator.by_ref().map(|t| t.unwrap()).collect();
                assert_eq!((&found, generator.finish()), (&wanted, end));
                let metrics = generator.metrics();
                let text: Vec<u32> = [1, 2, 3].into_iter().chain(found.iter().map(|t| t.id)).collect();
                assert!(text.starts_with(generator.cached()), "the cache holds the text");
                assert_eq!(model.0.cache.len(), model.len());
                assert!(metrics.accepted <= metrics.drafted);
                assert!(model.1.iter().all(|n| *n <= 5));
                // Each run gives a token, and one more for each right guess.
                let sampled = found.len() + usize::from(matches!(end, Some(Finish::Eos(_))));
                assert_eq!(model.1.len() + metrics.accepted, sampled);
                accepted += metrics.accepted;
            }
        }
    }
    assert!(accepted > 100, "{accepted} guesses were right");
}

#[test]
fn a_right_guess_takes_one_run() {
    let mut model = Rows(counting(100), Vec::new());
    let draft = crate::llm::ModelDraft::new(Box::new(counting(100)));
    let mut draft = Speculation::fixed(Box::new(draft), 4);
    let mut sampler = greedy();
    let mut generator = Generator::new(&mut model, &mut sampler, &[1, 2, 3], options(11, &[]))
        .unwrap()
        .speculating(&mut draft);
    let ids: Vec<u32> = generator.by_ref().map(|t| t.unwrap().id).collect();
    assert_eq!(ids, (4..15).collect::<Vec<u32>>());
    let metrics = generator.metrics();
    assert_eq!(
        (metrics.drafted, metrics.accepted, metrics.decode_tokens),
        (8, 8, 10)
    );
    // The prompt, and twice one token with four guesses.
    assert_eq!(model.1, [3, 5, 5]);
}

#[test]
fn a_full_context_slides_where_that_is_wanted() {
    let mut model = counting(10);
    let mut sampler = greedy();
    let slides = DecodeOptions {
        slide: Some(2),
        ..options(12, &[])
    };
    let mut generator = Generator::new(&mut model, &mut sampler, &[1, 2, 3, 4], slides).unwrap();
    let ids: Vec<u32> = generator.by_ref().map(|t| t.unwrap().id).collect();
    assert_eq!(ids, (5..17).collect::<Vec<u32>>());
    assert_eq!(generator.finish(), Some(Finish::MaxTokens));
    let metrics = generator.metrics();
    // 11 tokens: of the nine behind the first two, four go and five are fed again; five tokens
    // later the same once more.
    assert_eq!((metrics.forgotten, metrics.fed_again), (8, 10));
    assert_eq!(model.cache, [1, 2, 11, 12, 13, 14, 15]);
    assert_eq!(model.calls[7], [7, 8, 9, 10, 11]);
}

#[test]
fn what_the_cache_holds_counts_for_penalties() {
    let config = SamplerConfig {
        logit_bias: vec![(7, 4.5)],
        penalties: crate::llm::sampler::Penalties {
            presence: 2.0,
            ..Default::default()
        },
        ..SamplerConfig::default()
    };
    let mut chosen = Vec::new();
    for known in [false, true] {
        let mut model = counting(100);
        model.cache = vec![4, 5];
        let mut sampler = Sampler::new(config.clone()).unwrap();
        let mut generator = Generator::new(&mut model, &mut sampler, &[3], options(1, &[])).unwrap();
        if known {
            generator = generator.after(&[4, 5]).unwrap();
        }
        chosen.push(generator.next().unwrap().unwrap());
    }
    assert_eq!(
        chosen,
        [Token { id: 4, position: 3 }, Token { id: 7, position: 3 }]
    );
    let mut model = counting(100);
    let mut sampler = greedy();
    let generator = Generator::new(&mut model, &mut sampler, &[3], options(1, &[])).unwrap();
    let e = generator.after(&[1]).err().unwrap();
    assert_carries(e, &["0", "1"]);
}

#[test]
fn what_a_window_forgot_is_fed_again() {
    let slides = || DecodeOptions {
        slide: Some(2),
        ..options(12, &[])
    };
    let mut model = counting(10);
    model.reach = Some(5);
    let (ids, _, metrics) = run(&mut model, &[1, 2, 3, 4], slides());
    assert_eq!(ids, (5..17).collect::<Vec<u32>>());
    assert_eq!(
        (metrics.forgotten, metrics.fed_again),
        (8, 14),
        "the first two too"
    );
    assert_eq!(model.calls[7], [1, 2, 7, 8, 9, 10, 11]);
    // What is not known cannot be fed again.
    let mut model = counting(10);
    (model.cache, model.reach) = (vec![1, 2, 3], Some(5));
    let mut sampler = greedy();
    let mut generator = Generator::new(&mut model, &mut sampler, &[4], slides()).unwrap();
    let e = generator.by_ref().find_map(Result::err).unwrap();
    assert_carries(e, &["3"]);
    // Wrong guesses beyond what the window bears.
    for reach in [0, 1, 2, 9] {
        let mut plain = looping(100);
        let (wanted, ..) = run(&mut plain, &[1, 2, 3], options(40, &[]));
        let mut model = looping(100);
        model.reach = Some(reach);
        let (mut draft, mut sampler) = (Speculation::fixed(Box::new(Flaky(0)), 6), greedy());
        let generator = Generator::new(&mut model, &mut sampler, &[1, 2, 3], options(40, &[])).unwrap();
        let found = generator.speculating(&mut draft).map(|t| t.unwrap().id);
        assert_eq!(found.collect::<Vec<_>>(), wanted, "reach {reach}");
    }
}
