//! Text to tokens and back, and from logits to tokens.
//!
//! `cargo bench --bench tokens`. The vocabulary is learned here, of the text that is measured:
//! byte-level BPE, as most models have it. Logits are made up, as many as models have tokens.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::fmt::Write as _;
use std::hint::black_box;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use transformer_lite::unstable::llm::sampler::{Dry, Penalties, SplitMix64};
use transformer_lite::unstable::llm::{Grammar, Sampler, SamplerConfig, Tokenizer};

const EOS: &str = "<|endoftext|>";
const VOCABULARY: usize = 4096;
/// Tokens of `SmolLM2` and `Qwen2.5`.
const LOGITS: [usize; 2] = [49_152, 151_936];

/// Some 150 KB of words of a book, of numbers and of signs, in an order that does not repeat.
fn text() -> String {
    let book = include_str!("../tests/data/pride_and_prejudice.txt");
    let words: Vec<&str> = book.split_inclusive(' ').collect();
    let mut random = SplitMix64::new(1);
    let mut text = String::new();
    while text.len() < 150_000 {
        let draw = random.next_u64();
        let at = usize::try_from(draw % words.len() as u64).expect("less than the words");
        text.push_str(words[at]);
        match draw >> 60 {
            0 => write!(text, "{} ", draw >> 32 & 0xFFFF).expect("a text takes what is written"),
            1 => text.push_str("été — 日本語, "),
            2 => text.push_str("fn f(x: &[u8]) -> u32 {\n    x.len()\n}\n"),
            _ => {}
        }
    }
    text
}

/// A folder with a `tokenizer.json` that is learned of `text`.
fn vocabulary(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    let file = dir.path().join("text.txt");
    std::fs::write(&file, text).expect("room for a text");
    let mut tokenizer = tokenizers::Tokenizer::new(ModelWrapper::BPE(BPE::default()));
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(VOCABULARY)
        .min_frequency(1)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![tokenizers::AddedToken::from(EOS, true)])
        .build()
        .into();
    let files = vec![file.to_string_lossy().into_owned()];
    tokenizer
        .train_from_files(&mut trainer, files)
        .expect("a text to learn from");
    tokenizer
        .save(dir.path().join("tokenizer.json"), false)
        .expect("room for a vocabulary");
    dir
}

fn tokenization(c: &mut Criterion) {
    let text = text();
    let dir = vocabulary(&text);
    let tokenizer = Tokenizer::load(dir.path()).expect("a vocabulary");
    let ids = tokenizer.encode(&text, true).expect("tokens");
    assert_eq!(
        tokenizer.decode(&ids).expect("a text"),
        text,
        "decoding undoes encoding"
    );

    let mut group = c.benchmark_group("tokenization");
    group.sample_size(20);
    group.bench_function("load", |b| {
        b.iter(|| Tokenizer::load(black_box(dir.path())).expect("a vocabulary"));
    });
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("encode", |b| {
        b.iter(|| tokenizer.encode(black_box(&text), true).expect("tokens"));
    });
    group.bench_function("decode", |b| {
        b.iter(|| tokenizer.decode(black_box(&ids)).expect("a text"));
    });
    // As an answer comes: the text of each token as soon as it is whole.
    let part = &ids[..ids.len().min(2048)];
    group.throughput(Throughput::Elements(part.len() as u64));
    group.bench_function("stream", |b| {
        b.iter(|| {
            let mut stream = tokenizer.stream();
            part.iter()
                .map(|id| stream.push(*id).expect("a token").len())
                .sum::<usize>()
        });
    });
    group.finish();

    let eos = tokenizer.token_id(EOS).expect("the special token");
    let schema = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}"#;
    let grammar = || Grammar::json_schema(schema, &tokenizer, &[eos]).expect("a schema");
    let sampler = Sampler::new(SamplerConfig::default()).expect("greedy");
    let mut sampler = sampler.constrained(Box::new(grammar()));
    let row = logits(tokenizer.vocab());
    let mut group = c.benchmark_group("grammar");
    group.sample_size(20);
    group.bench_function("of a schema", |b| b.iter(grammar));
    group.bench_function("first eight tokens", |b| {
        b.iter(|| {
            sampler.start(&[]).expect("a start");
            for _ in 0..8 {
                let token = sampler.sample(black_box(&row)).expect("an allowed token");
                sampler.accept(token).expect("an allowed token");
            }
        });
    });
    group.finish();
}

/// Logits of nearly normal distribution, a few of them far above the others.
fn logits(count: usize) -> Vec<f32> {
    let mut random = SplitMix64::new(2);
    let mut one = || (0..4).map(|_| random.next_f64() as f32 - 0.5).sum::<f32>() * 4.0;
    let mut row: Vec<f32> = (0..count).map(|_| one()).collect();
    row.iter_mut().step_by(997).for_each(|v| *v += 8.0);
    row
}

fn sampling(c: &mut Criterion) {
    let greedy = SamplerConfig::default();
    let warm = SamplerConfig {
        temperature: 0.8,
        ..greedy.clone()
    };
    let usual = SamplerConfig {
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        ..warm.clone()
    };
    let penalties = Penalties {
        repetition: 1.1,
        frequency: 0.1,
        presence: 0.1,
        ..Penalties::default()
    };
    let dry = Dry {
        multiplier: 0.8,
        ..Dry::default()
    };
    let configurations = [
        ("greedy", greedy),
        ("temperature", warm.clone()),
        (
            "top-p",
            SamplerConfig {
                top_p: 0.95,
                ..warm.clone()
            },
        ),
        (
            "typical-p",
            SamplerConfig {
                typical_p: 0.95,
                ..warm
            },
        ),
        ("top-k, top-p, min-p", usual.clone()),
        (
            "the same with penalties and DRY",
            SamplerConfig {
                penalties,
                dry,
                ..usual
            },
        ),
    ];
    for count in LOGITS {
        let row = logits(count);
        let context: Vec<u32> = (0..2048u32).map(|i| i * 7919 % 1000).collect();
        let mut group = c.benchmark_group(format!("sampling of {count}"));
        group.sample_size(20);
        for (name, config) in &configurations {
            let mut sampler = Sampler::new(config.clone()).expect("a configuration");
            sampler.start(&context).expect("a context");
            group.bench_function(*name, |b| {
                b.iter(|| sampler.sample(black_box(&row)).expect("a token"));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, tokenization, sampling);
criterion_main!(benches);
