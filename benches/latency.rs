//! How a long prompt delays sequences that decode, and what a cached prefix saves.
//!
//! `cargo bench --bench latency -- [backend] [model]`, by default `cpu smollm2-135m`, with random
//! weights. While eight sequences decode, a prompt of 2000 tokens arrives, and later a prompt that
//! shares 1000 tokens with it. Bounds:
//!
//! * The 95th percentile of inter-token latency at most doubles while the first prompt is fed.
//! * The time to first token of the first prompt is at most 1.5 times that without the sequences.
//! * The time to first token of the second prompt is at most 1.5 times the inter-token latency.

#[path = "support/rows.rs"]
mod rows;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use transformer_lite::unstable::llm::{BatchSequence, LanguageModel, StepRunner};

const STREAMS: u32 = 8;
const PROMPT: u32 = 2000;
const PREFIX: usize = 1000;

fn prompt(length: u32, seed: u32) -> Vec<u32> {
    (0..length)
        .map(|i| (i * 7919 + seed * 104_729) % 30_000)
        .collect()
}

fn first_token(steps: &StepRunner, prompt: &[u32]) -> Duration {
    let mut sequence = steps.sequence();
    let start = Instant::now();
    sequence.most_likely(prompt).expect("a first token");
    start.elapsed()
}

/// Start and time of each token, until `stop` or a full context.
fn decode(mut sequence: BatchSequence, stop: &AtomicBool) -> Vec<Instant> {
    let mut times = vec![Instant::now()];
    let mut token = 1;
    while !stop.load(Ordering::Relaxed) && sequence.len() < sequence.context() {
        token = sequence.most_likely(&[token]).expect("a token");
        times.push(Instant::now());
    }
    times
}

/// 95th percentile in milliseconds of the gaps between tokens that overlap a period.
fn p95(streams: &[Vec<Instant>], from: Instant, to: Instant) -> f64 {
    let gaps = streams.iter().flat_map(|times| times.windows(2));
    let within = gaps.filter_map(|pair| match pair {
        [a, b] if *b > from && *a < to => Some((*b - *a).as_secs_f64() * 1e3),
        _ => None,
    });
    let mut gaps: Vec<f64> = within.collect();
    gaps.sort_by(f64::total_cmp);
    let at = gaps.len() * 95 / 100;
    gaps.get(at).copied().unwrap_or(f64::NAN)
}

fn main() {
    let steps = rows::start(["cpu", "smollm2-135m"], 2304, 10);
    // Warm up, and learn how long rows take.
    first_token(&steps, &prompt(PROMPT, 1));
    let alone = first_token(&steps, &prompt(PROMPT, 2));
    let stop = AtomicBool::new(false);
    let (streams, marks, beside, known) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..STREAMS)
            .map(|seed| {
                let mut sequence = steps.sequence();
                sequence.most_likely(&prompt(100, 10 + seed)).expect("a token");
                scope.spawn(|| decode(sequence, &stop))
            })
            .collect();
        std::thread::sleep(2 * alone);
        let start = Instant::now();
        std::thread::sleep(2 * alone);
        let arrival = Instant::now();
        let beside = first_token(&steps, &prompt(PROMPT, 3));
        let end = Instant::now();
        let mut shared = prompt(PROMPT, 3);
        shared.truncate(PREFIX);
        shared.push(5);
        let known = first_token(&steps, &shared);
        stop.store(true, Ordering::Relaxed);
        let streams: Vec<_> = threads.into_iter().map(|t| t.join().expect("a stream")).collect();
        (streams, [start, arrival, end], beside, known)
    });
    let [start, arrival, end] = marks;
    for times in &streams {
        let last = times.last().expect("a token");
        assert!(
            *last >= end,
            "a stream ended before the prompt: its context is full"
        );
    }
    let (before, during) = (p95(&streams, start, arrival), p95(&streams, arrival, end));
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    println!(
        "p95 of gaps        {before:8.2} ms, {during:8.2} ms beside a prompt: {:.2}",
        during / before
    );
    println!(
        "first token alone  {:8.2} ms, {:8.2} ms beside streams: {:.2}",
        ms(alone),
        ms(beside),
        ms(beside) / ms(alone)
    );
    println!(
        "known prefix       {:8.2} ms: {:.2} steps",
        ms(known),
        ms(known) / before
    );
}
