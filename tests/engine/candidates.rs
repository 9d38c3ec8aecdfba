//! Candidates for the next token, found by devices.

use std::path::{Path, PathBuf};
use tlite_testing::{Device, present as devices};
use transformer_lite::unstable::backend::{Caps, SharedBackend};
use transformer_lite::unstable::graph::onnx::ImportOptions;
use transformer_lite::unstable::graph::pass::{CANDIDATE_IDS, CANDIDATE_LOGITS, LOG_SUM, Target};
use transformer_lite::unstable::llm::engine::{
    BatchConfig, BatchModel, Decoder, DecoderBuilder, DeviceDecoder, Logits, Reproducible, SequenceConfig,
};
use transformer_lite::unstable::llm::{
    Candidates, DecodeOptions, Generator, LanguageModel, LogProbs, NgramDraft, Sampler, SamplerConfig,
    Speculation, StepRunner,
};
use transformer_lite::unstable::plan::{LaunchState, Segment};
use transformer_lite::unstable::shape::Symbol;
use transformer_lite::unstable::tensor::DType;
use transformer_lite_convert::decoders::{self, Form, Spec};

const VOCAB: usize = 5000;
const CONTEXT: usize = 128;
const DRAFTS: usize = 4;

/// A model with a large vocabulary.
fn written() -> (tempfile::TempDir, PathBuf) {
    let spec = Spec {
        vocab: VOCAB,
        context: CONTEXT,
        ..Spec::find("llama2-7b").unwrap().small()
    };
    let dir = tempfile::tempdir().unwrap();
    decoders::write(&spec, Form::Float(DType::F32), Some(3), dir.path()).unwrap();
    let file = dir.path().join("model.onnx");
    (dir, file)
}

fn decoder(file: &Path, device: &Device, logits: Logits, candidates: bool) -> Decoder {
    let target = Target {
        candidates,
        ..Target::DEVICE.with(logits).on(&device.caps)
    };
    DecoderBuilder::new(&target)
        .load(file, ImportOptions::default())
        .unwrap()
}

fn lengths() -> SequenceConfig {
    SequenceConfig {
        verify_tokens: DRAFTS + 1,
        ..SequenceConfig::of(CONTEXT)
    }
}

/// One sequence, or a sequence of a batch.
fn model(file: &Path, device: &Device, batch: bool, candidates: bool) -> Box<dyn LanguageModel> {
    if !batch {
        let decoder = decoder(file, device, Logits::Tail, candidates);
        let loaded = DeviceDecoder::new(decoder, Box::new(device.share()), &lengths()).unwrap();
        return Box::new(loaded.model().unwrap());
    }
    let config = BatchConfig {
        pages: 4,
        context: CONTEXT,
        rows: 128,
        logits: 64,
        reproducible: Reproducible::No,
    };
    let decoder = decoder(file, device, Logits::Chosen, candidates);
    let backend = SharedBackend::new(Box::new(device.share()));
    let (model, _) = BatchModel::load(decoder, backend, &config, None).unwrap();
    Box::new(StepRunner::start(model).unwrap().sequence())
}

/// Tokens with their log-probabilities.
fn text(
    model: &mut dyn LanguageModel,
    config: &SamplerConfig,
    log_probs: Option<usize>,
    drafts: bool,
) -> (Vec<u32>, Vec<LogProbs>) {
    model.truncate(0);
    let mut sampler = Sampler::new(config.clone()).unwrap();
    let options = DecodeOptions {
        max_tokens: 40,
        log_probs,
        ..DecodeOptions::default()
    };
    let mut speculation = Speculation::fixed(Box::new(NgramDraft::default()), DRAFTS);
    let mut generator = Generator::new(model, &mut sampler, &[3, 1, 4, 1, 5, 9, 2, 6], options).unwrap();
    if drafts {
        generator = generator.speculating(&mut speculation);
    }
    let (mut ids, mut probs) = (Vec::new(), Vec::new());
    while let Some(token) = generator.next() {
        ids.push(token.unwrap().id);
        probs.extend(generator.log_probs().cloned());
    }
    assert_eq!(ids.len(), 40, "{ids:?}");
    (ids, probs)
}

#[test]
fn candidates_change_no_text() {
    let (_dir, file) = written();
    for device in devices() {
        for batch in [false, true] {
            let [mut with, mut without] =
                [true, false].map(|candidates| model(&file, &device, batch, candidates));
            assert!(with.finds_candidates() && !without.finds_candidates());
            for drafts in [false, true] {
                let what = format!("{:?}, batch {batch}, drafts {drafts}", device.kind);
                for seed in 0..2 {
                    let config = SamplerConfig {
                        seed,
                        temperature: 1.5,
                        ..SamplerConfig::sampling()
                    };
                    let found = text(with.as_mut(), &config, None, drafts);
                    assert_eq!(found, text(without.as_mut(), &config, None, drafts), "{what}");
                }
                let greedy = SamplerConfig::default();
                let (ids, found) = text(with.as_mut(), &greedy, Some(5), drafts);
                let (want_ids, want) = text(without.as_mut(), &greedy, Some(5), drafts);
                assert_eq!((ids, found.len()), (want_ids, 40), "{what}");
                for (f, w) in found.iter().zip(&want) {
                    assert_eq!(f.top.len(), 5);
                    let pairs = f.top.iter().zip(&w.top);
                    assert!(pairs.clone().all(|(f, w)| f.id == w.id), "{what}: {f:?}, {w:?}");
                    let all = pairs
                        .map(|(f, w)| (f.log_prob, w.log_prob))
                        .chain([(f.chosen, w.chosen)]);
                    for (f, w) in all {
                        assert!((f - w).abs() < 1e-4, "{what}: {f}, {w}");
                    }
                }
            }
        }
    }
}

#[test]
fn many_rows_of_a_large_vocabulary_fit_grids() {
    let spec = Spec {
        vocab: 151_936,
        ..Spec::find("llama2-7b").unwrap().small()
    };
    let dir = tempfile::tempdir().unwrap();
    decoders::write(&spec, Form::E0m4(32), None, dir.path()).unwrap();
    let target = Target {
        candidates: true,
        ..Target::DEVICE.with(Logits::Tail)
    };
    let absent = ImportOptions::PLANNING;
    let file = dir.path().join("model.onnx");
    let decoder = DecoderBuilder::new(&target).load(&file, absent).unwrap();
    let caps = Caps::generic_gpu();
    let lengths = SequenceConfig {
        verify_tokens: 64,
        ..SequenceConfig::of(spec.context)
    };
    for plan in decoder.every_plan(&caps, &lengths).unwrap() {
        let (mut bound, mut sizes) = (LaunchState::default(), plan.bounds().clone());
        // The cache has room for all rows.
        sizes.set(&Symbol::new("past_sequence_length"), 0);
        plan.bind(&sizes, &mut bound).unwrap();
        let largest = bound.launch.grids.iter().flatten().max().unwrap();
        assert!(*largest <= caps.profile.max_grid, "{largest}");
    }
}

/// What is read for each row, and when it is computed.
#[test]
fn candidates_are_few_bytes_on_request() {
    let (_dir, file) = written();
    for device in devices() {
        let decoder = decoder(&file, &device, Logits::Last, true);
        for plan in decoder.plans(&device.caps, &lengths()).unwrap() {
            let bytes = |name: &str| {
                let port = plan.output(name).unwrap();
                let shape = port.shape.as_fixed().unwrap();
                shape.iter().product::<usize>() * port.device.device_bytes()
            };
            let found: usize = [CANDIDATE_IDS, CANDIDATE_LOGITS, LOG_SUM].map(bytes).iter().sum();
            assert_eq!(found, Candidates::COUNT * 8 + 4);
            assert_eq!(bytes("logits"), VOCAB * 4);
            // Found on request only.
            let [main, rest] = [
                &plan.segments[..plan.main_segments],
                &plan.segments[plan.main_segments..],
            ];
            let sorts = |segments: &[Segment]| {
                let steps = segments.iter().flat_map(|s| match s {
                    Segment::Device(steps) => plan.steps[steps.clone()].iter(),
                    Segment::Host(step) => panic!("{}", plan.host[*step].name),
                });
                let names = steps.map(|s| plan.kernels[s.kernel].to_string());
                names.filter(|n| n.starts_with("top_k")).count()
            };
            assert_eq!((sorts(main), sorts(rest)), (0, 3));
        }
    }
}
