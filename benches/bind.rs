//! What a change of length costs before anything is submitted: parameters and grids of a decode
//! step from the values of its symbols; and planning itself.
//!
//! `cargo bench --bench bind`. The graphs are those of known models, without weights. Bounds: a
//! decode step within a padding block under 20 us for `smollm2-135m` and under 100 us for
//! `llama2-7b`, across its end under 2 ms; planning `qwen1.5-14b` from its file under 2 s.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::path::Path;
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::graph::onnx::ImportOptions;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{DecoderBuilder, Logits, PADDING, SequenceConfig};
use transformer_lite::unstable::plan::{LaunchState, Plan};
use transformer_lite::unstable::shape::Bindings;
use transformer_lite_convert::decoders::{self, Form, SMOLLM2, Spec};

fn write(spec: &Spec) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    decoders::write(spec, Form::E0m4(128), None, dir.path()).expect("room for a graph");
    dir
}

fn plan(folder: &Path, context: usize) -> [Plan; 2] {
    let absent = ImportOptions::PLANNING;
    let path = folder.join("model.onnx");
    let decoder = DecoderBuilder::new(&Target::DEVICE.with(Logits::Last))
        .load(&path, absent)
        .expect("a decoder");
    decoder
        .plans(&Caps::generic_gpu(), &SequenceConfig::of(context))
        .expect("a plan")
}

fn bind(c: &mut Criterion) {
    let llama = Spec::find("llama2-7b").expect("a known model");
    for spec in [SMOLLM2, llama] {
        let [_, decode] = plan(write(&spec).path(), 2048);
        assert!(decode.padding.is_ok(), "{:?}", decode.padding);
        let past = decode
            .bounds()
            .iter()
            .next()
            .expect("the length of the cache")
            .0
            .clone();
        let at = |v: i64| {
            let mut b = Bindings::new();
            b.set(&past, v);
            b
        };
        let padding = i64::try_from(PADDING).expect("a small number");
        // Tokens of one block, and two on either side of its end.
        let block: Vec<Bindings> = (padding..2 * padding - 1).map(at).collect();
        let ends = [at(padding - 1), at(padding)];
        let mut group = c.benchmark_group(format!("bind {}, {} steps", spec.name, decode.steps.len()));
        for (name, values) in [("within a block", block.as_slice()), ("across its end", &ends)] {
            let mut bound = LaunchState::default();
            values
                .iter()
                .for_each(|b| decode.bind(b, &mut bound).expect("a length within bounds"));
            let before = bound.evaluated();
            values
                .iter()
                .for_each(|b| decode.bind(b, &mut bound).expect("a length within bounds"));
            let each = (bound.evaluated() - before) as f64 / values.len() as f64;
            let mut i = 0;
            group.bench_function(format!("{name}, {each:.1} expressions"), |b| {
                b.iter(|| {
                    i = (i + 1) % values.len();
                    decode
                        .bind(black_box(&values[i]), &mut bound)
                        .expect("a length within bounds");
                });
            });
        }
    }
}

fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("from the file to both plans");
    group.sample_size(10);
    for name in ["llama2-7b", "qwen1.5-14b"] {
        let spec = Spec::find(name).expect("a known model");
        let dir = write(&spec);
        group.bench_function(name, |b| b.iter(|| black_box(plan(dir.path(), spec.context))));
    }
}

criterion_group!(benches, bind, planning);
criterion_main!(benches);
