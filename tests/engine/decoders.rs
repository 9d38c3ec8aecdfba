//! Decoders at the true sizes of the paper's models, without weights: derived, fused and planned;
//! and small ones of the same form, with random weights.

mod launches;

use std::collections::BTreeMap;
use std::path::Path;
use tlite_testing::{assert_error, present as devices};
use transformer_lite::unstable::backend::{Backend, Caps, View};
use transformer_lite::unstable::error::{Error, ErrorKind};
use transformer_lite::unstable::executor::WeightSource;
use transformer_lite::unstable::executor::random::{Numbers, fill};
use transformer_lite::unstable::graph::onnx::{ImportOptions, import, import_with};
use transformer_lite::unstable::graph::pass::{Pipeline, Target};
use transformer_lite::unstable::graph::text;
use transformer_lite::unstable::llm::LanguageModel;
use transformer_lite::unstable::llm::engine::{
    Decoder, DecoderBuilder, DeviceDecoder, HostModel, Logits, Observe, SequenceConfig,
};
use transformer_lite::unstable::plan::{LaunchState, Plan, weight_bytes};
use transformer_lite::unstable::shape::Bindings;
use transformer_lite::unstable::tensor::DType;
use transformer_lite_convert::decoders::{self, Form, SPECS, Spec};
use transformer_lite_convert::quantize::{self, quantize};

const GB: u64 = 1_000_000_000;
const ABSENT: ImportOptions = ImportOptions::PLANNING;

fn model(folder: &Path) -> std::path::PathBuf {
    folder.join("model.onnx")
}

fn builder() -> DecoderBuilder {
    DecoderBuilder::new(&Target::DEVICE.with(Logits::Last))
}

fn load(folder: &Path) -> Decoder {
    builder().load(&model(folder), ABSENT).unwrap()
}

/// Number of nodes of each operator.
fn count(decoder: &Decoder) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for (_, n) in decoder.graph().nodes() {
        *count.entry(n.op.name().to_owned()).or_insert(0) += 1;
    }
    count
}

/// A planned decoder: prefill in chunks, and decoding, with room for `context` tokens.
struct Planned {
    decoder: Decoder,
    plans: [Plan; 2],
    weights: u64,
}

impl Planned {
    fn new(spec: &Spec, form: Form, context: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let written = decoders::write(spec, form, None, dir.path()).unwrap();
        let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "a model file alone");
        assert!(written.data_bytes > 1 << 16, "its weights would fill a file");
        let decoder = load(dir.path());
        let plans = decoder
            .plans(&tlite_testing::fake_caps(), &SequenceConfig::of(context))
            .unwrap();
        let weights = weight_bytes(decoder.graph(), &plans).unwrap();
        Self {
            decoder,
            plans,
            weights,
        }
    }

    /// Bytes of device memory: weights, caches, and one arena for both plans.
    fn bytes(&self) -> u64 {
        let [prefill, decode] = &self.plans;
        self.weights + prefill.memory.states + prefill.memory.arena.max(decode.memory.arena)
    }
}

fn number_of_weights(spec: &Spec) -> usize {
    let (q, kv) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let layer = spec.hidden * (q + 2 * kv) + q * spec.hidden + 3 * spec.hidden * spec.inner;
    let tables = if spec.tied { 1 } else { 2 };
    spec.layers * layer + tables * spec.vocab * spec.hidden
}

/// The sizes are the models' own, by the numbers of parameters that their makers state.
#[test]
fn specifications_have_the_known_numbers_of_parameters() {
    for (name, billions) in [
        ("gemma-2b", 2.51),
        ("qwen1.5-4b", 3.95),
        ("chatglm2-6b", 6.24),
        ("llama2-7b", 6.74),
        ("qwen1.5-14b", 14.17),
        ("qwen2.5-1.5b", 1.54),
    ] {
        let found = number_of_weights(&Spec::find(name).unwrap()) as f64 / 1e9;
        assert!(
            (found - billions).abs() < 0.01,
            "{name}: {found}, stated {billions}"
        );
    }
}

#[test]
fn true_sizes_fuse_and_plan_without_weights() {
    for spec in SPECS {
        let planned = Planned::new(&spec, Form::E0m4(128), spec.context);
        let found = count(&planned.decoder);
        let of = |op: &str| found.get(op).copied().unwrap_or(0);
        let (name, layers) = (spec.name, spec.layers);
        assert_eq!(of("RMSNormalization"), 2 * layers + 1, "{name}");
        assert_eq!(of("Attention"), layers, "{name}");
        assert_eq!(of("KvAppend"), 2 * layers, "{name}");
        assert_eq!(of("Softmax") + of("MatMul"), 0, "{name}");
        assert_eq!(of("Rotary"), 2 * layers, "{name}");
        for plan in &planned.plans {
            let m = &plan.memory;
            assert!(m.arena * 10 <= m.lower_bound * 11, "{name}: {m:?}");
            assert!(m.arena * 2 <= m.without_reuse, "{name}: {m:?}");
            assert!(
                plan.host.is_empty(),
                "{name}: on the host {:?}",
                plan.host.first()
            );
            assert_eq!(plan.segments.len(), 1, "{name}");
            // Read as they are: nothing is left to convert for each token.
            assert_eq!(plan.output("logits").unwrap().device, DType::F32, "{name}");
        }
        // Four bits and a pair of halves for 128 weights, eight for embedding and head; norms,
        // biases, padding are small.
        let tables = spec.vocab * spec.hidden * if spec.tied { 1 } else { 2 };
        let estimate = (number_of_weights(&spec) - tables) as f64 * (0.5 + 4.0 / 128.0)
            + tables as f64 * (1.0 + 4.0 / 128.0);
        let found = planned.weights as f64;
        assert!(
            found > 0.999 * estimate && found < 1.02 * estimate,
            "{name}: {found} of {estimate}"
        );
        let cache = 2 * 2 * layers * spec.context * spec.kv_heads * spec.head_dim;
        assert_eq!(planned.plans[0].memory.states, cache as u64, "{name}");
    }
}

/// Within a block of padding and across its end, and nothing is allocated. Within a block nothing
/// is computed but three live values: where rows are appended, how many there are, and the
/// position.
#[test]
fn binding_allocates_nothing() {
    for spec in SPECS {
        let planned = Planned::new(&spec, Form::E0m4(128), 1024);
        let [_, decode] = &planned.plans;
        let at = |past: i64| {
            let mut b = Bindings::new();
            b.set(planned.decoder.past(), past);
            b
        };
        let lengths: Vec<Bindings> = (0..300).map(at).collect();
        let mut bound = LaunchState::default();
        decode.bind(&lengths[0], &mut bound).unwrap();
        let counted = allocation_counter::measure(|| {
            for b in &lengths {
                decode.bind(b, &mut bound).unwrap();
            }
        });
        assert_eq!(counted.count_total, 0, "{}: {counted:?}", spec.name);
        decode.bind(&lengths[70], &mut bound).unwrap();
        let (evaluated, params) = (bound.evaluated(), bound.launch.params.clone());
        for b in &lengths[71..81] {
            decode.bind(b, &mut bound).unwrap();
        }
        assert_eq!(bound.evaluated() - evaluated, 10 * 2, "{}", spec.name);
        assert_eq!(bound.launch.params, params, "{}", spec.name);
        assert!(decode.bind(&at(1024), &mut bound).is_err());
        decode.bind(&lengths[7], &mut bound).unwrap();
    }
}

/// The largest deployments of the paper's section 3.
#[test]
fn the_papers_deployments_fit() {
    let llama = Planned::new(&Spec::find("llama2-7b").unwrap(), Form::E0m4(128), 900);
    assert!(llama.bytes() < 12 * GB, "{} bytes", llama.bytes());
    let qwen = Planned::new(&Spec::find("qwen1.5-14b").unwrap(), Form::E0m4(128), 2048 + 256);
    assert!(qwen.bytes() < 24 * GB, "{} bytes", qwen.bytes());
    // Not so in halves.
    let halves = Planned::new(&Spec::find("qwen1.5-14b").unwrap(), Form::Float(DType::F16), 2304);
    assert!(halves.bytes() > 24 * GB, "{} bytes", halves.bytes());
}

/// What the generator writes as 4-bit is what the quantizer makes of its floats.
#[test]
fn the_packed_form_is_the_quantizers() {
    for spec in SPECS {
        let spec = spec.small();
        let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let [floats, packed, written] = [0, 1, 2].map(|i: usize| dirs[i].path());
        decoders::write(&spec, Form::Float(DType::F32), Some(7), floats).unwrap();
        quantize(floats, packed, &quantize::Options::default(), &mut |_| {}).unwrap();
        decoders::write(&spec, Form::E0m4(128), None, written).unwrap();
        let shown = |folder| {
            let mut graph = import_with(&model(folder), ABSENT).unwrap();
            Pipeline::of(&Target::HOST).run(&mut graph).unwrap();
            text::print(&graph).unwrap()
        };
        let (found, wanted) = (shown(written), shown(packed));
        for (f, w) in found.lines().zip(wanted.lines()) {
            assert_eq!(f, w, "{}", spec.name);
        }
        assert_eq!(found.len(), wanted.len(), "{}", spec.name);
    }
}

/// Of each family, on each device: the same numbers of the same seed.
#[test]
fn made_up_weights_compute_numbers() {
    for device in devices() {
        for spec in SPECS {
            let small = spec.clone().small();
            let dir = tempfile::tempdir().unwrap();
            decoders::write(&small, Form::E0m4(32), None, dir.path()).unwrap();
            let new = |source| {
                let decoder = builder()
                    .with_weights(source)
                    .load(&model(dir.path()), ABSENT)
                    .unwrap();
                DeviceDecoder::new(
                    decoder,
                    Box::new(device.share()),
                    &SequenceConfig::of(small.context),
                )
            };
            let logits = |seed| {
                let mut model = new(WeightSource::Random(seed)).unwrap().model().unwrap();
                let (mut all, mut logits) = (Vec::new(), Vec::new());
                for tokens in [&[3, 1, 100, 7, 7][..], &[9], &[127]] {
                    model.forward(tokens, &mut logits).unwrap();
                    all.extend_from_slice(&logits);
                }
                all
            };
            let (first, name) = (logits(1), format!("{} on {}", spec.name, device.caps.device));
            let most = first.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert!(
                first.iter().all(|v| v.is_finite()) && most > 0.1 && most < 100.0,
                "{name}: {most}"
            );
            assert_eq!(first, logits(1), "{name}");
            assert_ne!(first, logits(2), "{name}");
            let e = new(WeightSource::Files).err().unwrap();
            assert_eq!(e.kind(), ErrorKind::MissingInput, "{}", e.chain());
        }
    }
}

/// After the first tokens, one more allocates the bindings and the shape of the logits, and neither
/// inputs, plan nor kernels anything.
#[test]
fn decoding_allocates_its_bindings_only() {
    for device in devices()
        .into_iter()
        .filter(|d| d.caps.profile.language().is_none())
    {
        for spec in SPECS {
            let small = spec.clone().small();
            let dir = tempfile::tempdir().unwrap();
            decoders::write(&small, Form::E0m4(32), Some(3), dir.path()).unwrap();
            let decoder = load(dir.path());
            let config = SequenceConfig::of(small.context);
            let mut model = DeviceDecoder::new(decoder, Box::new(device.share()), &config)
                .unwrap()
                .model()
                .unwrap();
            let mut logits = Vec::new();
            let mut decode = |tokens: &[u32]| model.forward(tokens, &mut logits).unwrap();
            decode(&[3, 1, 100, 7, 7]);
            (0..3).for_each(|t| decode(&[t]));
            let counted = allocation_counter::measure(|| (4..8).for_each(|t| decode(&[t])));
            let of_bindings = counted.count_total <= 4 * 3 && counted.bytes_total <= 4 * 600;
            assert!(
                of_bindings && counted.count_current == 0,
                "{}: {counted:?}",
                spec.name
            );
        }
    }
}

/// Rotary embedding of neighbours and appends along axis 0 in one dispatch: the same logits, by
/// whatever lengths the tokens come, with three dispatches a layer less.
#[test]
fn neighbours_turn_and_are_appended_in_one_dispatch() {
    for device in devices() {
        // By two neighbours, and, where vectors are written out, by rows of heads.
        for head_dim in [16, 64] {
            let spec = Spec {
                head_dim,
                ..Spec::find("chatglm2-6b").unwrap().small()
            };
            let dir = tempfile::tempdir().unwrap();
            decoders::write(&spec, Form::E0m4(32), Some(9), dir.path()).unwrap();
            let run = |target: &Target, float| {
                let builder = DecoderBuilder::new(&target.with(Logits::Last)).stored_in(float);
                let decoder = builder
                    .load(&model(dir.path()), ImportOptions::default())
                    .unwrap();
                let plans = decoder.plans(&device.caps, &SequenceConfig::of(64)).unwrap();
                let dispatches = plans.map(|p| p.steps.len());
                let loaded =
                    DeviceDecoder::new(decoder, Box::new(device.share()), &SequenceConfig::of(64)).unwrap();
                let mut model = loaded.model().unwrap();
                let (mut all, mut logits) = (Vec::new(), Vec::new());
                for tokens in [&[3, 1, 100, 7, 7][..], &[9], &[127, 5, 5], &[1]] {
                    model.forward(tokens, &mut logits).unwrap();
                    all.extend_from_slice(&logits);
                }
                (dispatches, all)
            };
            let joined = Target {
                rotary_append: true,
                ..Target::DEVICE
            };
            for float in [DType::F16, DType::F32] {
                let (apart, wanted) = run(&Target::DEVICE, float);
                let (fewer, found) = run(&joined, float);
                let what = format!("heads of {head_dim} in {float} on {}", device.caps.device);
                assert_eq!(apart, fewer.map(|n| n + 3 * spec.layers), "{what}");
                let most = wanted.iter().fold(0f32, |m, v| m.max(v.abs()));
                for (w, f) in wanted.iter().zip(&found) {
                    assert!((w - f).abs() <= 1e-3 * most, "{what}: {w}, {f}");
                }
            }
        }
    }
}

#[test]
fn made_up_numbers_are_spread_evenly() {
    let mut words = Vec::new();
    for device in devices() {
        let mut backend = device.share();
        // More than the largest grid has work-items for.
        let len = 8 * (64 * u64::from(device.caps.profile.max_grid.min(65_535)) + 77);
        let buffer = backend.create_buffer("numbers", len).unwrap();
        let view = View {
            buffer,
            offset: 0,
            len,
        };
        let mut made = |numbers, seed| {
            fill(&mut backend, view, numbers, seed).unwrap();
            let mut bytes = vec![0; len as usize];
            backend.read(view, &mut bytes).unwrap();
            bytes
        };
        let bytes = made(Numbers::Words, 5);
        for bit in 0..32 {
            let set = bytes
                .chunks_exact(4)
                .filter(|w| w[bit / 8] >> (bit % 8) & 1 == 1)
                .count() as f64;
            let share = set / (len / 4) as f64;
            assert!((share - 0.5).abs() < 0.01, "bit {bit}: {share}");
        }
        assert_ne!(bytes, made(Numbers::Words, 6));
        words.push(bytes[..4096].to_vec());
        let (even, odd) = ([0.5, 0.25], [3.0, 0.0]);
        for dtype in [DType::F16, DType::F32] {
            let bytes = made(Numbers::Floats { dtype, even, odd }, 5);
            let floats: Vec<f32> = match dtype {
                DType::F16 => bytes
                    .chunks_exact(2)
                    .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                    .collect(),
                _ => bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect(),
            };
            assert!(floats.iter().skip(1).step_by(2).all(|v| *v == 3.0), "{dtype}");
            let evens: Vec<f64> = floats.iter().step_by(2).map(|v| f64::from(*v)).collect();
            assert!(evens.iter().all(|v| (0.25..=0.75).contains(v)), "{dtype}");
            let mean = evens.iter().sum::<f64>() / evens.len() as f64;
            let square = evens.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / evens.len() as f64;
            assert!(
                (mean - 0.5).abs() < 1e-3 && (square * 48.0 - 1.0).abs() < 0.01,
                "{dtype}: {mean}, {square}"
            );
        }
        backend.destroy_buffer(buffer);
    }
    assert!(words.windows(2).all(|w| w[0] == w[1]), "devices differ");
}

/// Fused and decomposed graphs compute the same, in chunks and in single steps.
#[test]
fn small_decoders_compute_the_same_fused_and_decomposed() {
    for spec in SPECS {
        let spec = spec.small();
        let dir = tempfile::tempdir().unwrap();
        decoders::write(&spec, Form::Float(DType::F32), Some(11), dir.path()).unwrap();
        let tokens: Vec<u32> = (0..9).map(|i| (i * 37 + 5) % spec.vocab as u32).collect();
        let run = |target: Target| -> Vec<f32> {
            let decoder = Decoder::load(&model(dir.path()), &target.with(Logits::Last)).unwrap();
            let mut host = HostModel::new(decoder, spec.context).unwrap();
            let (mut all, mut logits) = (Vec::new(), Vec::new());
            for part in [&tokens[..6], &tokens[6..7], &tokens[7..]] {
                host.forward(part, &mut logits).unwrap();
                all.extend_from_slice(&logits);
            }
            all
        };
        let (plain, fused) = (run(Target::HOST), run(Target::DEVICE));
        assert_eq!(plain.len(), 3 * spec.vocab, "{}", spec.name);
        let spread = plain.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!(spread > 0.1, "{}: logits of {spread}", spec.name);
        for (a, b) in plain.iter().zip(&fused) {
            assert!((a - b).abs() < 1e-4 * spread.max(1.0), "{}: {a}, {b}", spec.name);
        }
    }
}

#[test]
fn weights_that_are_absent_are_named_and_never_zeros() {
    let spec = SPECS[0].clone().small();
    let dir = tempfile::tempdir().unwrap();
    decoders::write(&spec, Form::Float(DType::F32), None, dir.path()).unwrap();
    let error = import(&model(dir.path())).unwrap_err();
    assert_error(&error, ErrorKind::InvalidFile, &["model.onnx.data"]);
    let mut host = HostModel::new(load(dir.path()), spec.context).unwrap();
    let error = host.forward(&[1, 2], &mut Vec::new()).unwrap_err();
    assert_error(&error, ErrorKind::MissingInput, &["model.embed_tokens.weight"]);
}

#[test]
fn a_watched_decoder_ends_with_what_is_watched() {
    let (_dir, folder) = tlite_testing::tiny_model("llama", tlite_testing::gguf::Traits::default());
    let first = "/model/layers.0/input_layernorm/Mul_1_output_0";
    let last = "/model/layers.1/post_attention_layernorm/Mul_1_output_0";
    let observing = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let graph = import(&model(&folder)).unwrap();
        DecoderBuilder::new(&Target::HOST)
            .observing(&names)
            .build(graph)
            .unwrap()
    };
    let size = |d: &Decoder| (d.graph().nodes().count(), d.graph().states().len());
    let sizes = [&[first][..], &[first, last], &[first, last, "logits"]].map(|names| size(&observing(names)));
    // Before the first layer there is no cache but the one that a decoder has.
    assert_eq!(sizes.map(|(_, states)| states), [1, 4, 4]);
    assert!(
        sizes[0].0 * 2 < sizes[1].0 && sizes[1].0 + 5 < sizes[2].0,
        "{sizes:?}"
    );
    assert!(observing(&[first, last]).graph().output("logits").is_none());
    let rows = |names: &[&str]| {
        let mut model = HostModel::new(observing(names), 16).unwrap();
        let mut found = Vec::new();
        // In two pieces, of which the second sees the first through the cache.
        for tokens in [&[5, 9, 200][..], &[7]] {
            let mut take = |i: usize, rows: &[f32]| {
                found.push((i, rows.to_vec()));
                Ok(())
            };
            model.observe(tokens, &mut take).unwrap();
        }
        found.retain(|(i, _)| *i == 0);
        found
    };
    let whole = rows(&[last, "logits"]);
    assert!(whole.len() == 2 && whole[0].1.len() == 3 * whole[1].1.len());
    assert_eq!(rows(&[last]), whole);
    assert_eq!(rows(&[first]), rows(&[first, "logits"]));
}

#[test]
fn contexts_fit_the_memory_of_the_device() {
    let dir = tempfile::tempdir().unwrap();
    decoders::write(
        &Spec::find("llama2-7b").unwrap(),
        Form::E0m4(128),
        None,
        dir.path(),
    )
    .unwrap();
    let decoder = load(dir.path());
    let lengths = SequenceConfig::of(4096);
    let on = |memory_bytes: u64| Caps {
        memory_bytes,
        ..tlite_testing::fake_caps()
    };
    let whole = decoder.plan_for(&on(0), &lengths, false).unwrap().memory();
    assert_eq!((whole.context, whole.cache), (4096, 2 * 32 * 4096 * 4096 * 2));
    assert_eq!(
        decoder
            .plan_for(&on(whole.total()), &lengths, false)
            .unwrap()
            .memory()
            .total(),
        whole.total()
    );
    // A byte less, and some half of the cache.
    for memory in [whole.total() - 1, whole.weights + whole.cache / 2] {
        let less = decoder.plan_for(&on(memory), &lengths, true).unwrap().memory();
        assert!(
            less.total() <= memory && less.context < 4096 && less.context.is_multiple_of(64),
            "{less}"
        );
        // No more than some hundred tokens are given away.
        let room = (memory - less.total()) / (whole.cache / 4096);
        assert!(room < 256, "{room} tokens more of {less}");
        let e = decoder.plan_for(&on(memory), &lengths, false).err().unwrap();
        assert!(
            matches!(&e, Error::Usage { name, .. } if name == "context"),
            "{e}"
        );
        let needed = format!("{:.1} GB", whole.total() as f64 / GB as f64);
        let most = less.context.to_string();
        assert_error(&e, ErrorKind::OutOfMemory, &["4096", &most, &needed]);
    }
    let e = decoder.plan_for(&on(GB), &lengths, true).err().unwrap();
    assert!(matches!(&e, Error::Usage { name, .. } if name == "device"), "{e}");
    assert_error(&e, ErrorKind::OutOfMemory, &["1.0 GB"]);
}
