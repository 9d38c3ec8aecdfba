//! From a model's folder to a decoder that is ready: two layers at the width of `SmolLM2`, weights
//! of 4 bits that are made up.
//!
//! `cargo bench --bench load`. On devices the store of compiled kernels is full, as from the second
//! start on.

#[path = "support/devices.rs"]
mod devices;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use transformer_lite::unstable::backend::OpenOptions;
use transformer_lite::unstable::cache::{DEFAULT_LIMIT, Store};
use transformer_lite::unstable::graph::onnx;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{Decoder, Logits};
use transformer_lite::unstable::llm::folder::ModelFolder;
use transformer_lite::unstable::llm::load::{LoadOptions, Loaded, Purpose};
use transformer_lite::unstable::placement::{BackendChoice, Placement};
use transformer_lite_convert::decoders::{self, Form, SMOLLM2, Spec};

fn load(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    let spec = Spec {
        layers: 2,
        vocab: 8192,
        ..SMOLLM2
    };
    decoders::write(&spec, Form::E0m4(32), Some(3), dir.path()).expect("room for a model");
    let config = format!(
        r#"{{"model_type": "llama", "vocab_size": {}, "max_position_embeddings": 256}}"#,
        spec.vocab
    );
    std::fs::write(dir.path().join("config.json"), config).expect("room for a file");
    let folder = ModelFolder::open(dir.path()).expect("a folder of a model");
    let path = dir.path().join("model.onnx");
    let files = std::fs::read_dir(dir.path()).expect("the folder").flatten();
    let bytes = files.filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum();

    let mut group = c.benchmark_group("load");
    group.sample_size(10).throughput(Throughput::Bytes(bytes));
    group.bench_function("graph and checksums", |b| {
        b.iter(|| onnx::import(black_box(&path)).expect("a model"));
    });
    group.bench_function("graph and passes", |b| {
        b.iter(|| Decoder::load(black_box(&path), &Target::DEVICE.with(Logits::Last)).expect("a decoder"));
    });
    let mut places = vec![("reference".to_owned(), BackendChoice::Reference)];
    for kind in devices::backends() {
        places.push((kind.to_string(), BackendChoice::On(kind)));
    }
    for (name, backend) in places {
        let store = tempfile::tempdir().expect("a folder for temporary files");
        let cache = Some(Arc::new(Store::new(store.path().to_owned(), DEFAULT_LIMIT)));
        let options = LoadOptions {
            place: Placement {
                backend,
                options: OpenOptions {
                    cache,
                    ..OpenOptions::default()
                },
            },
            ..LoadOptions::default()
        };
        let ready =
            || Loaded::new(&folder, &options, Purpose::Generation, &mut |_| {}).expect("a model that fits");
        drop(ready());
        group.bench_function(name, |b| b.iter(ready));
    }
    group.finish();
}

criterion_group!(benches, load);
criterion_main!(benches);
