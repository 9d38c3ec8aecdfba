//! Rows of several sequences in one run, against each sequence alone in the interpreter.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tlite_testing::{Device, assert_error, present as devices, tiny_model};
use transformer_lite::unstable::backend::SharedBackend;
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::graph::onnx::{self, ImportOptions};
use transformer_lite::unstable::graph::op::pointwise::{Binary, Pointwise};
use transformer_lite::unstable::graph::op::slice::Slice;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::graph::{Edit, Graph};
use transformer_lite::unstable::llm::batch::beam_search;
use transformer_lite::unstable::llm::engine::{
    BatchConfig, BatchModel, Decoder, DecoderBuilder, HostModel, Logits, Reproducible, RowModel, Span,
    UNIFORM_ROWS,
};
use transformer_lite::unstable::llm::sampler::SplitMix64;
use transformer_lite::unstable::llm::{
    BatchSequence, BeamOptions, Codec, Finish, LanguageModel, LogProbs, ModelFolder, StepRunner,
};
use transformer_lite::unstable::tensor::{DType, HostTensor};

const CONFIG: BatchConfig = BatchConfig {
    pages: 9,
    context: 200,
    rows: 64,
    logits: 64,
    reproducible: Reproducible::No,
};

/// Tokens that every model knows.
const VOCAB: u32 = 32;

/// A model file, and the window that it gets, if any.
struct Model {
    file: PathBuf,
    window: Option<usize>,
}

impl Model {
    fn builder(&self, target: &Target) -> DecoderBuilder {
        let builder = DecoderBuilder::new(target);
        match self.window {
            Some(window) => builder.with_window(window),
            None => builder,
        }
    }

    /// The decoder for `target`.
    fn load(&self, target: &Target) -> Decoder {
        let builder = self.builder(target).stored_in(DType::F32);
        builder.load(&self.file, ImportOptions::default()).unwrap()
    }

    fn tiny(folder: &Path) -> Self {
        Self {
            file: folder.join("model.onnx"),
            window: None,
        }
    }

    /// A model whose mask is an input.
    fn windowed(window: usize) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/decoders");
        Self {
            file: folder.join("llama3-paper.onnx"),
            window: Some(window),
        }
    }
}

/// A sequence: its tokens, and its pages in no order.
struct Sequence {
    tokens: Vec<u32>,
    pages: Vec<u32>,
    done: usize,
}

impl Sequence {
    fn new(seed: u32, length: usize, pages: &[u32]) -> Self {
        let length = u32::try_from(length).unwrap();
        let token = |i: u32| (i * 7 + i / 29 + seed * 13) % VOCAB;
        Self {
            tokens: (0..length).map(token).collect(),
            pages: pages.to_vec(),
            done: 0,
        }
    }

    /// The next tokens, with the logits of the last `logits`.
    fn span(&self, count: usize, logits: usize) -> Span<'_> {
        Span {
            tokens: &self.tokens[self.done..self.done + count],
            start: self.done,
            pages: &self.pages,
            logits,
            alone: false,
        }
    }
}

/// A model in single precision.
fn batch_of(device: &Device, model: &Model) -> BatchModel {
    let decoder = model.load(&Target::DEVICE.with(Logits::Chosen).on(&device.caps));
    assert_eq!(decoder.has_windows(), model.window.is_some(), "{:?}", device.kind);
    batch_with(device, decoder)
}

fn batch_with(device: &Device, decoder: Decoder) -> BatchModel {
    let backend = SharedBackend::new(Box::new(device.share()));
    BatchModel::load(decoder, backend, &CONFIG, None).unwrap().0
}

#[test]
fn rows_of_several_sequences_compute_what_each_does_alone() {
    let (_dir, model) = tiny_model("llama", Default::default());
    each_computes_what_it_does_alone(&Model::tiny(&model));
}

#[test]
fn windows_in_pages_compute_what_each_sequence_does_alone() {
    // Shorter than a page, and across pages.
    for window in [20, 70] {
        each_computes_what_it_does_alone(&Model::windowed(window));
    }
}

fn each_computes_what_it_does_alone(model: &Model) {
    for device in devices() {
        let name = format!("{:?} {:?}", device.kind, model.window);
        let mut batch = batch_of(&device, model);
        let mut all = [
            Sequence::new(1, 150, &[3, 0, 8]),
            Sequence::new(2, 80, &[7, 1]),
            Sequence::new(3, 20, &[5]),
        ];
        let host = || HostModel::new(model.load(&Target::HOST), 200).unwrap();
        let mut alone = [host(), host(), host()];
        // Tokens of each sequence in a step: prompts in parts, single tokens, and both together.
        for counts in [
            [50, 3, 0],
            [14, 1, 17],
            [60, 1, 1],
            [1, 1, 1],
            [0, 60, 0],
            [1, 0, 0],
            [20, 4, 1],
        ] {
            let spans: Vec<Span<'_>> = (all.iter().zip(counts))
                .filter(|(_, n)| *n > 0)
                .map(|(s, n)| s.span(n, n.min(2)))
                .collect();
            batch.step(&mut spans.iter().copied()).unwrap();
            let mut likely = Vec::new();
            let rows = counts.iter().map(|n| *n.min(&2)).sum();
            batch.most_likely(0, rows, &mut likely).unwrap();
            let mut row = 0;
            for ((s, model), count) in all.iter_mut().zip(&mut alone).zip(counts) {
                let vocab = model.vocab();
                let mut found = Vec::new();
                let rows = count.min(2);
                batch.logits(row, rows, &mut found).unwrap();
                let mut want = Vec::new();
                for token in &s.tokens[s.done..s.done + count] {
                    let mut logits = Vec::new();
                    model.forward(std::slice::from_ref(token), &mut logits).unwrap();
                    want.push(logits);
                }
                let want = want[count - rows..].concat();
                let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
                for (i, (f, w)) in found.iter().zip(&want).enumerate() {
                    assert!(
                        (f - w).abs() < 2e-3 * largest,
                        "{name} {counts:?} {i}: {f}, not {w}"
                    );
                }
                for (i, logits) in found.chunks(vocab).enumerate() {
                    let id = usize::try_from(likely[row + i]).unwrap();
                    let most = logits.iter().copied().fold(f32::MIN, f32::max);
                    assert_eq!(logits[id], most, "{name} {counts:?}");
                }
                s.done += count;
                row += rows;
            }
        }
    }
}

/// The tiny model with another head: with a bias, or for the last row only.
fn with_head(model: &Model, bias: bool) -> Graph {
    let vocab = HostModel::new(model.load(&Target::HOST), 200).unwrap().vocab();
    let mut graph = onnx::import(&model.file).unwrap();
    let logits = graph.output("logits").unwrap();
    let (id, node) = graph.producer(logits).unwrap();
    let (op, inputs) = (node.op.clone(), node.inputs.clone());
    let mut edit = Edit::new(&mut graph);
    if bias {
        let values: Vec<f32> = (0..vocab).map(|i| (i % 7) as f32).collect();
        let values = HostTensor::from_f32(&[vocab], &values).unwrap();
        let bias = edit.add_const("bias", Arc::new(values));
        let plain = edit.add_value("plain", None);
        edit.add_node("plain", Vec::new(), op, inputs, vec![plain]);
        let add = Box::new(Pointwise::binary("Add", Binary::Add));
        edit.replace_node(id, add, vec![Some(plain), Some(bias)], Vec::new());
    } else {
        let [start, end, axis] = [("start", -1), ("end", i64::MAX), ("axis", 1)]
            .map(|(name, value)| Some(edit.add_int(name, value).unwrap()));
        let last = edit.add_value("last", None);
        let operands = vec![inputs[0], start, end, axis];
        edit.add_node("last", Vec::new(), Box::new(Slice), operands, vec![last]);
        edit.replace_node(id, op, vec![Some(last), inputs[1]], Vec::new());
    }
    graph
}

#[test]
fn heads_compute_chosen_rows_or_are_refused() {
    let (_dir, model) = tiny_model("llama", Default::default());
    let model = Model::tiny(&model);
    let biased = with_head(&model, true);
    for device in devices() {
        let target = Target::DEVICE.with(Logits::Chosen).on(&device.caps);
        let decoder = |graph| DecoderBuilder::new(&target).stored_in(DType::F32).build(graph);
        let mut batch = batch_with(&device, decoder(biased.clone()).unwrap());
        let sequence = Sequence::new(1, 20, &[3]);
        batch.step(&mut std::iter::once(sequence.span(20, 2))).unwrap();
        let mut found = Vec::new();
        batch.logits(0, 2, &mut found).unwrap();
        let alone = DecoderBuilder::new(&Target::HOST).build(biased.clone()).unwrap();
        let want = HostModel::new(alone, 200).unwrap().forward_all(&sequence.tokens);
        let want = want.unwrap();
        let want = &want[want.len() - found.len()..];
        let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (found, want) in found.iter().zip(want) {
            assert!((found - want).abs() < 2e-3 * largest, "{found}, not {want}");
        }
        let e = decoder(with_head(&model, false)).unwrap_err();
        assert_error(&e, ErrorKind::Unsupported, &[]);
    }
}

/// Two rows at one place, and positions and pages that do not exist.
#[test]
fn wrong_spans_are_errors() {
    let (_dir, model) = tiny_model("llama", Default::default());
    for device in devices() {
        let mut batch = batch_of(&device, &Model::tiny(&model));
        let [first, second] = [Sequence::new(1, 150, &[3, 0, 8]), Sequence::new(2, 80, &[7, 1])];
        let wrong = [
            vec![first.span(1, 1), first.span(1, 1)],
            vec![Span {
                start: 200,
                ..second.span(1, 1)
            }],
            vec![Span {
                pages: &[9, 9],
                ..second.span(1, 1)
            }],
            vec![],
        ];
        for spans in wrong {
            let e = batch.step(&mut spans.into_iter()).unwrap_err();
            assert_error(&e, ErrorKind::Internal, &[]);
        }
    }
}

#[test]
fn native_rows_do_not_depend_on_the_step() {
    let (_dir, model) = tiny_model("llama", Default::default());
    let file = model.join("model.onnx");
    for device in devices()
        .into_iter()
        .filter(|d| d.caps.profile.language().is_none())
    {
        let target = Target::DEVICE.with(Logits::Chosen).on(&device.caps);
        let decoder = DecoderBuilder::new(&target)
            .load(&file, ImportOptions::default())
            .unwrap();
        let backend = SharedBackend::new(Box::new(device.share()));
        let (mut batch, _) = BatchModel::load(decoder, backend, &CONFIG, None).unwrap();
        let mut row = Vec::new();
        let mut runs = Vec::new();
        for company in [false, true] {
            let mut one = Sequence::new(1, 100, &[4, 2]);
            let other = Sequence::new(2, 60, &[1]);
            let mut found = Vec::new();
            for (count, beside) in [(64, 0), (1, 60), (1, 3), (30, 20), (1, 1), (1, 60)] {
                let mut spans = vec![one.span(count, 1)];
                if company && count + beside <= CONFIG.rows && beside > 0 {
                    spans.insert(0, other.span(beside, 1));
                }
                batch.step(&mut spans.iter().copied()).unwrap();
                row.clear();
                batch.logits(spans.len() - 1, 1, &mut row).unwrap();
                found.push(row.clone());
                one.done += count;
            }
            runs.push(found);
        }
        assert_eq!(runs[0], runs[1]);
    }
}

/// Steps of eight sequences that decode.
#[test]
fn steps_allocate_nothing_once_they_have_run() {
    let (_dir, model) = tiny_model("llama", Default::default());
    let file = model.join("model.onnx");
    for device in devices()
        .into_iter()
        .filter(|d| d.caps.profile.language().is_none())
    {
        let target = Target {
            greedy: true,
            ..Target::DEVICE.with(Logits::Chosen).on(&device.caps)
        };
        let decoder = DecoderBuilder::new(&target)
            .load(&file, ImportOptions::default())
            .unwrap();
        let backend = SharedBackend::new(Box::new(device.share()));
        let (mut batch, _) = BatchModel::load(decoder, backend, &CONFIG, None).unwrap();
        let mut all: Vec<Sequence> = (0..8).map(|i| Sequence::new(i, 64, &[i])).collect();
        let mut ids = Vec::new();
        let mut decode = |count: usize| {
            for _ in 0..count {
                ids.clear();
                batch.step(&mut all.iter().map(|s| s.span(1, 1))).unwrap();
                batch.most_likely(0, 8, &mut ids).unwrap();
                all.iter_mut().for_each(|s| s.done += 1);
            }
        };
        decode(3);
        let counted = allocation_counter::measure(|| decode(20));
        assert_eq!(counted.count_total, 0, "{counted:?}");
        assert_eq!(ids.len(), 8);
    }
}

/// Runs steps of a model on a device, with few pages.
fn steps(device: &Device, model: &Model, reproducible: bool, kv_q8: bool) -> StepRunner {
    let reproducible = Reproducible::on(&device.caps, reproducible);
    let rows = match reproducible {
        Reproducible::ByPlan => UNIFORM_ROWS,
        _ => 128,
    };
    let config = BatchConfig {
        pages: 7,
        rows,
        logits: rows.min(CONFIG.logits),
        reproducible,
        ..CONFIG
    };
    let target = Target {
        kv_q8,
        ..Target::DEVICE.with(Logits::Chosen).on(&device.caps)
    };
    let backend = SharedBackend::new(Box::new(device.share()));
    let (batch, _) = BatchModel::load(model.load(&target), backend, &config, None).unwrap();
    StepRunner::start(batch).unwrap()
}

/// Runs a random program of one sequence, and returns the bits of all logits.
fn program(model: &mut BatchSequence, seed: u64) -> Vec<u32> {
    let mut random = SplitMix64::new(seed);
    let mut below = |n: u64| usize::try_from(random.next_u64() % n).unwrap();
    let mut bits = Vec::new();
    let token = |n: usize| u32::try_from(n).unwrap() % VOCAB;
    for _ in 0..9 {
        let len = model.len();
        match below(4) {
            // A prompt; some begin alike.
            0 if len < 100 => {
                let (kind, count) = (below(2), 1 + below(90));
                let tokens: Vec<u32> = (0..count).map(|i| token(i * (3 + kind))).collect();
                let mut logits = Vec::new();
                model.forward(&tokens, &mut logits).unwrap();
                bits.extend(logits.iter().map(|v| v.to_bits()));
            }
            1 if len < 190 => {
                let tokens = [1, 2, 3].map(token);
                let logits = model.forward_all(&tokens).unwrap();
                bits.extend(logits.iter().map(|v| v.to_bits()));
            }
            2 => {
                model.truncate(below(len as u64 + 1));
            }
            _ => {
                for _ in 0..below(12) {
                    if model.len() < 200 {
                        let mut logits = Vec::new();
                        model.forward(&[token(below(200))], &mut logits).unwrap();
                        bits.extend(logits.iter().map(|v| v.to_bits()));
                    }
                }
            }
        }
    }
    bits
}

#[test]
fn sequences_in_threads_get_what_they_get_alone() {
    let (_dir, model) = tiny_model("llama", Default::default());
    each_gets_what_it_gets_alone(
        &Model::tiny(&model),
        &[(false, false), (false, true), (true, true)],
    );
}

#[test]
fn windows_do_not_depend_on_the_step() {
    each_gets_what_it_gets_alone(&Model::windowed(20), &[(false, true), (true, true)]);
}

/// For each pair, whether caches have 8 bits, and whether results are the same bits.
fn each_gets_what_it_gets_alone(model: &Model, kinds: &[(bool, bool)]) {
    for device in devices() {
        let native = device.caps.profile.language().is_none();
        for &(kv_q8, exact) in kinds {
            let alone = steps(&device, model, exact, kv_q8);
            let together = steps(&device, model, exact, kv_q8);
            let (rounds, threads) = if native { (12, 8) } else { (1, 4) };
            for round in 0..rounds {
                let seeds = || (0..threads).map(|i| round * 100 + i);
                let found: Vec<Vec<u32>> = std::thread::scope(|scope| {
                    let threads: Vec<_> = seeds()
                        .map(|seed| {
                            let mut sequence = together.sequence();
                            scope.spawn(move || program(&mut sequence, seed))
                        })
                        .collect();
                    threads.into_iter().map(|t| t.join().unwrap()).collect()
                });
                for (seed, found) in seeds().zip(found) {
                    let want = program(&mut alone.sequence(), seed);
                    assert_eq!(found.len(), want.len(), "{:?} {seed}", device.kind);
                    if exact {
                        assert!(found == want, "{:?} {seed} {kv_q8}", device.kind);
                        continue;
                    }
                    let float = |bits: &[u32]| bits.iter().map(|b| f32::from_bits(*b)).collect::<Vec<_>>();
                    let (found, want) = (float(&found), float(&want));
                    let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
                    let error = found
                        .iter()
                        .zip(&want)
                        .map(|(a, b)| (a - b).abs())
                        .fold(0f32, f32::max);
                    assert!(
                        error < 5e-3 * largest,
                        "{:?} {seed}: {error} of {largest}",
                        device.kind
                    );
                }
            }
            assert_eq!(together.used_pages()[0], 0, "{:?}", device.kind);
        }
    }
}

#[test]
fn beams_have_the_log_probabilities_of_their_texts() {
    let (_dir, model) = tiny_model("llama", Default::default());
    let file = model.join("model.onnx");
    let codec = Codec::load(ModelFolder::open(&model).unwrap()).unwrap();
    let mut alone = HostModel::new(Decoder::load(&file, &Target::HOST).unwrap(), 200).unwrap();
    // The beams share a page and copy another, and their texts go on in a third.
    let prompt = Sequence::new(1, 120, &[]).tokens;
    let options = BeamOptions {
        beams: 3,
        max_tokens: 12,
        ..BeamOptions::default()
    };
    for device in devices() {
        let steps = steps(&device, &Model::tiny(&model), false, false);
        let beams = beam_search(steps.sequence(), &codec, &prompt, &options).unwrap();
        assert_eq!((beams.len(), steps.used_pages()[0]), (3, 0));
        assert!(beams.is_sorted_by(|a, b| a.score >= b.score));
        for beam in &beams {
            alone.truncate(0);
            let mut row = Vec::new();
            alone.forward(&prompt, &mut row).unwrap();
            let mut want = f64::from(LogProbs::of(&row, beam.tokens[0], 0).chosen);
            for pair in beam.tokens.windows(2) {
                alone.forward(&pair[..1], &mut row).unwrap();
                want += f64::from(LogProbs::of(&row, pair[1], 0).chosen);
            }
            let name = format!("{:?} {:?}", device.kind, beam.tokens);
            assert_eq!(beam.finish, Finish::MaxTokens, "{name}");
            let error = (beam.log_prob - want).abs();
            assert!(error < 1e-3, "{name}: {}, not {want}", beam.log_prob);
            assert_eq!(beam.score, beam.log_prob / 12.0);
        }
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            assert_ne!(beams[a].tokens, beams[b].tokens, "{:?}", device.kind);
        }
    }
}
