//! What a choice of the next token costs by what is read from the device.
//!
//! `cargo bench --bench sampling -- [backend] [model]`, by default `opencl qwen2.5-1.5b`; random
//! weights. Streams decode 64 tokens each in shared steps, and read the likeliest token
//! (greedy choices), 64 candidates (sampling with a top-k, log-probabilities), or all logits.

#[path = "support/rows.rs"]
mod rows;

use std::time::Instant;
use transformer_lite::unstable::llm::{BatchSequence, Candidates, LanguageModel, StepRunner};

const TOKENS: u32 = 64;
const STREAMS: [u32; 3] = [1, 8, 32];

#[derive(Clone, Copy)]
enum Reads {
    MostLikely,
    Candidates,
    Logits,
}

fn decode(mut sequence: BatchSequence, reads: Reads) {
    let (mut candidates, mut logits) = (Candidates::default(), Vec::new());
    for token in 0..TOKENS {
        match reads {
            Reads::MostLikely => sequence.most_likely(&[token]).map(|_| ()),
            Reads::Candidates => sequence.candidates(&[token], &mut candidates),
            Reads::Logits => sequence.forward(&[token], &mut logits),
        }
        .expect("a token");
    }
}

/// Milliseconds of a step in which `streams` sequences decode.
fn step(steps: &StepRunner, streams: u32, reads: Reads) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..streams {
            let sequence = steps.sequence();
            scope.spawn(move || decode(sequence, reads));
        }
    });
    start.elapsed().as_secs_f64() * 1e3 / f64::from(TOKENS)
}

fn main() {
    let steps = rows::start(["opencl", "qwen2.5-1.5b"], 256, 32);
    println!("ms of a step        greedy  candidates      logits");
    for streams in STREAMS {
        let time = |reads| {
            step(&steps, streams, reads);
            step(&steps, streams, reads)
        };
        let [greedy, candidates, logits] = [Reads::MostLikely, Reads::Candidates, Reads::Logits].map(time);
        println!("{streams:2} streams     {greedy:11.2} {candidates:11.2} {logits:11.2}");
    }
}
