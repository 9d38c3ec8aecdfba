//! Rows of several sequences in one run, against each sequence alone in the interpreter.

use tlite_testing::{assert_error, present as devices, tiny_model};
use transformer_lite::unstable::backend::SharedBackend;
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::graph::onnx::ImportOptions;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::LanguageModel;
use transformer_lite::unstable::llm::engine::{
    BatchConfig, BatchModel, Decoder, DecoderBuilder, HostModel, Logits, Span,
};
use transformer_lite::unstable::tensor::DType;

const CONFIG: BatchConfig = BatchConfig {
    pages: 9,
    context: 200,
    rows: 64,
    logits: 64,
};

/// A sequence: its tokens, and its pages in no order.
struct Sequence {
    tokens: Vec<u32>,
    pages: Vec<u32>,
    done: usize,
}

impl Sequence {
    fn new(seed: u32, length: usize, pages: &[u32]) -> Self {
        let length = u32::try_from(length).unwrap();
        Self {
            tokens: (0..length).map(|i| (i * 7 + seed * 13) % 200 + 3).collect(),
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

#[test]
fn rows_of_several_sequences_compute_what_each_does_alone() {
    let (_dir, model) = tiny_model("llama", Default::default());
    let file = model.join("model.onnx");
    for device in devices() {
        let name = format!("{:?}", device.kind);
        let target = Target::DEVICE.with(Logits::Chosen).on(&device.caps);
        let builder = DecoderBuilder::new(&target).stored_in(DType::F32);
        let decoder = builder.load(&file, ImportOptions::default()).unwrap();
        let backend = SharedBackend::new(Box::new(device.share()));
        let (mut batch, _) = BatchModel::load(decoder, backend, &CONFIG, None, None).unwrap();
        let mut all = [
            Sequence::new(1, 150, &[3, 0, 8]),
            Sequence::new(2, 80, &[7, 1]),
            Sequence::new(3, 20, &[5]),
        ];
        let host = || HostModel::new(Decoder::load(&file, &Target::HOST).unwrap(), 200).unwrap();
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
            batch.step(&spans).unwrap();
            let likely = batch.most_likely().unwrap();
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
        // Two rows at one place, and positions and pages that do not exist.
        let [first, second, _] = &all;
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
            assert_error(&batch.step(&spans).unwrap_err(), ErrorKind::Internal, &[]);
        }
    }
}

#[test]
fn native_rows_do_not_depend_on_the_step() {
    let (_dir, model) = tiny_model("llama", Default::default());
    let file = model.join("model.onnx");
    for device in devices().into_iter().filter(|d| d.caps.profile.is_native()) {
        let target = Target::DEVICE.with(Logits::Chosen).on(&device.caps);
        let decoder = DecoderBuilder::new(&target)
            .load(&file, ImportOptions::default())
            .unwrap();
        let backend = SharedBackend::new(Box::new(device.share()));
        let (mut batch, _) = BatchModel::load(decoder, backend, &CONFIG, None, None).unwrap();
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
                batch.step(&spans).unwrap();
                batch.logits(spans.len() - 1, 1, &mut row).unwrap();
                found.push(row.clone());
                one.done += count;
            }
            runs.push(found);
        }
        assert_eq!(runs[0], runs[1]);
    }
}
