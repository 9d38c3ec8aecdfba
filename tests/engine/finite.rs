//! Logits that are not finite are errors, whoever searches them.

use std::sync::Arc;
use tlite_testing::gguf::{self, Traits};
use tlite_testing::{Device, present as devices, tiny_model};
use transformer_lite::unstable::backend::SharedBackend;
use transformer_lite::unstable::error::{ErrorKind, Result};
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::graph::{Edit, Graph, ValueId, onnx};
use transformer_lite::unstable::llm::engine::{
    BatchConfig, BatchModel, Decoder, DecoderBuilder, DeviceDecoder, HostModel, Logits, Reproducible,
    SequenceConfig,
};
use transformer_lite::unstable::llm::{BatchSequence, Candidates, LanguageModel, StepRunner};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Its embedding is NaN.
const BAD: u32 = 200;

/// A tiny model of which every token but [`BAD`] computes numbers.
fn graph() -> Graph {
    let traits = Traits {
        untied: true,
        ..Traits::default()
    };
    let (_dir, folder) = tiny_model("llama", traits);
    let mut graph = onnx::import(&folder.join("model.onnx")).unwrap();
    let ids = graph.input("input_ids").unwrap();
    let constant = |graph: &Graph, v: ValueId| graph.value(v).fact.as_ref()?.as_const().cloned();
    let readers = graph.nodes().filter(|(_, node)| node.inputs.contains(&Some(ids)));
    let tables = readers.filter_map(|(_, node)| node.inputs[0].filter(|v| *v != ids));
    let tables: Vec<ValueId> = tables.collect();
    for table in tables {
        let rows = constant(&graph, table).unwrap();
        let mut data = rows.to_f32().unwrap().into_owned();
        let row = data.chunks_exact_mut(gguf::HIDDEN).nth(BAD as usize);
        row.unwrap().fill(f32::NAN);
        let changed = HostTensor::from_floats(rows.dtype(), rows.shape(), &data).unwrap();
        let mut edit = Edit::new(&mut graph);
        let changed = edit.add_const("changed", Arc::new(changed));
        edit.replace_readers(table, changed);
    }
    graph
}

fn assert_not_finite<T: std::fmt::Debug>(result: Result<T>, what: &str) {
    let e = result.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{what}: {e}");
    assert!(e.to_string().contains("--float f32"), "{what}: {e}");
}

/// Each way to a token, after `tokens` in an empty cache, whose logits are finite if `good`.
fn check(model: &mut dyn LanguageModel, tokens: &[u32], good: bool, what: &str) {
    let mut found = Candidates::default();
    let mut each = |ask: &mut dyn FnMut(&mut dyn LanguageModel) -> Result<u32>| {
        model.truncate(0);
        match good {
            true => assert!(ask(model).unwrap() < gguf::VOCAB as u32, "{what}"),
            false => assert_not_finite(ask(model), what),
        }
    };
    each(&mut |model| model.most_likely(tokens));
    each(&mut |model| Ok(model.most_likely_all(tokens)?[0]));
    each(&mut |model| model.candidates(tokens, &mut found).map(|()| 0));
    each(&mut |model| model.candidates_all(tokens, &mut found).map(|()| 0));
}

fn batch(device: &Device, decoder: Decoder) -> StepRunner {
    let config = BatchConfig {
        pages: 4,
        context: 64,
        rows: 128,
        logits: 8,
        reproducible: Reproducible::No,
    };
    let backend = SharedBackend::new(Box::new(device.share()));
    StepRunner::start(BatchModel::load(decoder, backend, &config, None).unwrap().0).unwrap()
}

/// Two sequences in common steps, of which one fails.
fn check_neighbours(steps: &StepRunner, what: &str) {
    let mut other = steps.sequence();
    let wanted = other.most_likely_all(&[4, 5, 6]).unwrap();
    let run = |mut sequence: BatchSequence, tokens: &'static [u32]| {
        std::thread::spawn(move || sequence.most_likely_all(tokens))
    };
    for _ in 0..4 {
        let [good, bad] = [&[4, 5, 6][..], &[4, BAD, 6]].map(|tokens| run(steps.sequence(), tokens));
        assert_eq!(good.join().unwrap().unwrap(), wanted, "{what}");
        assert_not_finite(bad.join().unwrap(), what);
    }
}

#[test]
fn logits_that_are_not_finite_are_errors() {
    let graph = graph();
    let load = |target: &Target| {
        let builder = DecoderBuilder::new(target).stored_in(DType::F32);
        builder.build(graph.clone()).unwrap()
    };
    let check_both = |model: &mut dyn LanguageModel, what: &str| {
        check(model, &[3, 4, 5], true, what);
        check(model, &[3, 5, BAD], false, what);
    };
    let host = load(&Target::HOST.with(Logits::Tail));
    check_both(&mut HostModel::new(host, 64).unwrap(), "reference");
    for device in devices() {
        for greedy in [true, false] {
            let what = format!("{:?}, greedy {greedy}", device.kind);
            let target = |logits| Target {
                greedy,
                ..Target::DEVICE.with(logits).on(&device.caps)
            };
            let lengths = SequenceConfig {
                verify_tokens: 4,
                ..SequenceConfig::of(64)
            };
            let decoder = load(&target(Logits::Tail));
            let decoder = DeviceDecoder::new(decoder, Box::new(device.share()), &lengths).unwrap();
            check_both(&mut decoder.model().unwrap(), &what);
            let steps = batch(&device, load(&target(Logits::Chosen)));
            check_both(&mut steps.sequence(), &what);
            check_neighbours(&steps, &what);
        }
    }
}
