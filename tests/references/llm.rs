//! Decoders on the host and on every device: cache, counters, split weights, and a real model.
//!
//! The real model is a folder named by `TLITE_TEST_MODEL_DIR` that holds `e0m4`, a quantized model.
//! Without the variable these trials are ignored, or fail when `REQUIRE_BACKENDS` is set.

mod agreement;
mod answers;
mod batches;
mod generation;
#[cfg(feature = "opencl")]
mod recordings;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tlite_testing::gguf::{Traits, VOCAB};
use tlite_testing::suite::Suite;
use tlite_testing::{Device, Outcome, Text, Tier, Traffic};
#[cfg(feature = "opencl")]
use transformer_lite::unstable::backend::BackendKind;
use transformer_lite::unstable::backend::OpenOptions;
#[cfg(feature = "opencl")]
use transformer_lite::unstable::backend::device_presets::Family;
use transformer_lite::unstable::graph::onnx::ImportOptions;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{
    Decoder, DecoderBuilder, DeviceModel, HostModel, Logits, SequenceConfig,
};
use transformer_lite::unstable::llm::{
    Conversation, GenerateOptions, LanguageModel, LoadOptions, Message, Model, Sampler, SamplerConfig,
    Tokenizer,
};
use transformer_lite::unstable::placement::Placement;
use transformer_lite::unstable::plan::Storage;
use transformer_lite::unstable::tensor::DType;

type OnDevice = fn(&Device) -> Outcome;
type OnModel = Box<dyn FnOnce(&Path, &Device) -> Outcome + Send>;

pub fn trials(suite: &mut Suite) {
    let devices = suite.devices();
    for architecture in ["llama", "qwen2"] {
        suite.add(format!("tiny/{architecture}@reference"), move || {
            tiny_host(architecture)
        });
        for d in &devices {
            let device = d.clone();
            suite.add(format!("tiny/{architecture}@{}", d.label(&devices)), move || {
                tiny_device(&device, architecture)
            });
        }
    }
    suite.add("states_are_appended_in_place", states_are_appended_in_place);
    let on_each: [(&str, OnDevice); 6] = [
        ("decode_allocates_nothing", decode_allocates_nothing),
        ("paddings_change_nothing", paddings_change_nothing),
        ("long_caches", long_caches),
        ("caches_of_8_bits", caches_of_8_bits),
        ("rotary_append", rotary_append),
        ("split_weights", split_weights),
    ];
    for d in &devices {
        let label = d.label(&devices);
        for (name, run) in on_each {
            // A processor binds views of any size.
            if name == "split_weights" && d.caps.profile.language().is_none() {
                continue;
            }
            let device = d.clone();
            suite.add(format!("{name}@{label}"), move || run(&device));
        }
        #[cfg(feature = "opencl")]
        if d.kind == BackendKind::OpenCl {
            let device = d.clone();
            suite.add(format!("ways_change_nothing@{label}"), move || {
                let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
                let _turn = device.turn();
                recordings::ways_change_nothing(&model, &device)
            });
        }
    }
    generation::trials(suite, &devices);
    if let Some(dir) = std::env::var_os("TLITE_TEST_LARGE_MODEL_DIR").map(PathBuf::from) {
        for d in &devices {
            let (dir, device) = (dir.clone(), d.clone());
            suite.add(format!("large/agreement@{}", d.label(&devices)), move || {
                agreement::check(&dir, &device, None, &agreement::FLOATS)
            });
        }
    } else if Tier::of_environment() == Tier::Nightly {
        suite.not_set("TLITE_TEST_LARGE_MODEL_DIR names no folder with a model");
    }
    match std::env::var_os("TLITE_TEST_MODEL_DIR") {
        Some(dir) => real_trials(suite, &devices, &PathBuf::from(dir).join("e0m4")),
        None => suite.not_set("TLITE_TEST_MODEL_DIR names no folder with a model"),
    }
}

fn real_trials(suite: &mut Suite, devices: &[Device], model: &Path) {
    let model = Arc::new(model.to_owned());
    let dir = model.clone();
    suite.add_in(Tier::Nightly, "real/answers@reference", move || {
        answers::agree(&dir, None)
    });
    for d in devices {
        let label = d.label(devices);
        let mut add = |tier: Tier, name: String, run: OnModel| {
            let (name, dir, device) = (format!("real/{name}@{label}"), model.clone(), d.clone());
            suite.add_in(tier, name, move || run(&dir, &device));
        };
        let (each, long) = (Tier::Quick, d.tier_of_long_trials());
        let floats: OnModel = Box::new(|dir, d| agreement::check(dir, d, None, &agreement::FLOATS));
        add(each, "agreement".to_owned(), floats);
        let bytes: OnModel = Box::new(|dir, d| agreement::check(dir, d, None, &agreement::BYTES));
        add(long, "agreement_in_8_bits".to_owned(), bytes);
        // All phones that matter here have half arithmetic.
        #[cfg(feature = "opencl")]
        if d.kind == BackendKind::OpenCl && d.caps.profile.f16_math {
            for family in Family::ALL {
                let run = move |dir: &Path, d: &Device| agreement::of_family(dir, d, family);
                add(each, format!("agreement_as_{family:?}"), Box::new(run));
            }
        }
        if d.caps.profile.language().is_none() {
            add(
                each,
                "weights_stay_in_their_file".to_owned(),
                Box::new(weights_stay_in_their_file),
            );
            add(
                each,
                "schedules_change_nothing".to_owned(),
                Box::new(batches::schedules_change_nothing),
            );
        }
        add(long, "conversation".to_owned(), Box::new(conversation));
        let answers: OnModel = Box::new(|dir, d| answers::agree(dir, Some(d)));
        add(long, "answers".to_owned(), answers);
        #[cfg(feature = "opencl")]
        if d.kind == BackendKind::OpenCl {
            let run = |dir: &Path, d: &Device| {
                let _turn = d.turn();
                recordings::ways_change_nothing(dir, d)
            };
            add(Tier::Nightly, "ways_change_nothing".to_owned(), Box::new(run));
        }
    }
}

/// Square of the distance of two rows over the square of the first.
fn nmse(wanted: &[f32], found: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let norm: f64 = wanted.iter().map(|v| square(f64::from(*v))).sum();
    let error: f64 = wanted
        .iter()
        .zip(found)
        .map(|(a, b)| square(f64::from(*a) - f64::from(*b)))
        .sum();
    if wanted.len() == found.len() {
        error / norm
    } else {
        f64::NAN
    }
}

#[track_caller]
fn close(what: &str, wanted: &[f32], found: &[f32], bound: f64) -> Outcome {
    let e = nmse(wanted, found);
    if std::env::var_os("CONFORMANCE_ERRORS").is_some() {
        eprintln!("{what}: {e:.2e} of {bound:.0e}");
    }
    if e <= bound {
        Ok(())
    } else {
        Err(format!("{what}: NMSE {e:.3e} is above {bound:.0e}"))
    }
}

/// Different tokens of the tiny vocabulary.
fn tokens(count: usize) -> Vec<u32> {
    (0..count)
        .map(|i| u32::try_from((i * 89 + i * i * 7 + 5) % VOCAB).unwrap())
        .collect()
}

fn decoder(model: &Path, target: &Target, logits: Logits) -> Result<Decoder, String> {
    Decoder::load(&model.join("model.onnx"), &target.with(logits)).text()
}

/// A decoder whose activations are halves on every device.
fn halves(model: &Path, target: &Target, logits: Logits) -> Result<Decoder, String> {
    let builder = DecoderBuilder::new(&target.with(logits)).stored_in(DType::F16);
    let path = model.join("model.onnx");
    builder.load(&path, ImportOptions::default()).text()
}

/// A model whose activations are halves, as GPUs store them.
fn on_device(model: &Path, device: &Device, logits: Logits, context: usize) -> Result<DeviceModel, String> {
    let decoder = halves(model, &Target::DEVICE, logits)?;
    DeviceModel::new(decoder, Box::new(device.share()), &SequenceConfig::of(context)).text()
}

/// Logits after each of `tokens` on the host, row by row.
fn host_rows(model: &Path, tokens: &[u32]) -> Result<Vec<Vec<f32>>, String> {
    let mut host = HostModel::new(decoder(model, &Target::HOST, Logits::All)?, tokens.len()).text()?;
    let all = host.forward_all(tokens).text()?;
    Ok(all.chunks(host.vocab()).map(<[f32]>::to_vec).collect())
}

/// Feeds `tokens` to an empty cache in runs of these lengths and returns the last logits.
fn feed(model: &mut dyn LanguageModel, tokens: &[u32], lengths: &[usize]) -> Result<Vec<f32>, String> {
    model.truncate(0);
    let (mut rest, mut logits) = (tokens, Vec::new());
    for n in lengths {
        let (part, after) = rest.split_at(*n);
        model.forward(part, &mut logits).text()?;
        rest = after;
    }
    if rest.is_empty() && model.len() == tokens.len() {
        Ok(logits)
    } else {
        Err(format!("{} tokens in the cache of {}", model.len(), tokens.len()))
    }
}

/// Ways to cut 29 tokens in runs: at once, one by one, odd and even parts, single tokens in
/// between.
const CUTS: &[&[usize]] = &[
    &[29],
    &[1; 29],
    &[7, 1, 21],
    &[2, 27],
    &[13, 16],
    &[28, 1],
    &[1, 28],
    &[3, 3, 3, 1, 1, 8, 10],
];

/// The same result however `tokens` reach the cache; and after steps back.
fn any_cut(model: &mut dyn LanguageModel, rows: &[Vec<f32>], same: f64, wanted: f64) -> Outcome {
    let tokens = tokens(29);
    let whole = feed(model, &tokens, CUTS[0])?;
    close("against the host", &rows[28], &whole, wanted)?;
    for cut in CUTS {
        let found = feed(model, &tokens, cut)?;
        close(&format!("29 tokens in runs of {cut:?}"), &whole, &found, same)?;
    }
    for n in [1, 2, 3, 5, 8, 17, 28] {
        let found = feed(model, &tokens[..n], &[n])?;
        close(&format!("{n} tokens"), &rows[n - 1], &found, wanted)?;
    }
    let mut logits = Vec::new();
    feed(model, &tokens, CUTS[0])?;
    for (keep, upto) in [(11, 20), (20, 21), (3, 29), (28, 29)] {
        model.truncate(keep);
        model.forward(&tokens[keep..upto], &mut logits).text()?;
        close(
            &format!("{keep} tokens kept, then up to {upto}"),
            &rows[upto - 1],
            &logits,
            wanted,
        )?;
    }
    if model.forward(&tokens[..1], &mut logits).is_ok() && model.len() <= 29 {
        return Err("a token was lost".to_owned());
    }
    Ok(())
}

/// Room for 29 tokens, and one more.
const CONTEXT: usize = 30;

/// The host stores `f32`: cuts differ by the order of sums only.
fn tiny_host(architecture: &str) -> Outcome {
    let (_dir, model) = tlite_testing::tiny_model(architecture, Traits::default());
    let rows = host_rows(&model, &tokens(29))?;
    let mut host = HostModel::new(decoder(&model, &Target::HOST, Logits::Last)?, CONTEXT).text()?;
    any_cut(&mut host, &rows, 1e-10, 1e-10)?;
    // What devices run, on the host: the passes change nothing.
    let mut passes = HostModel::new(decoder(&model, &Target::DEVICE, Logits::Last)?, CONTEXT).text()?;
    any_cut(&mut passes, &rows, 1e-10, 1e-10)
}

/// Bound on the NMSE between a device and the host. Each of some ten roundings to `f16` on the way
/// through a layer errs by 2^-12 of the value on average, 6e-8 of its square; two layers with sums
/// that cancel stay below this.
const AGAINST_HOST: f64 = 1e-5;
/// Bound between two runs on one device, whose roundings are mostly the same ones.
const AGAINST_ITSELF: f64 = 1e-5;

fn tiny_device(device: &Device, architecture: &str) -> Outcome {
    let _turn = device.turn();
    let traits = Traits {
        untied: architecture == "qwen2",
        rope_freqs: architecture == "llama",
    };
    let (_dir, model) = tlite_testing::tiny_model(architecture, traits);
    let long = tokens(200);
    let rows = host_rows(&model, &long)?;
    let mut last = on_device(&model, device, Logits::Last, CONTEXT)?;
    any_cut(&mut last, &rows, AGAINST_ITSELF, AGAINST_HOST)?;
    // More than one chunk, and a context that is no multiple of one.
    let mut chunks = on_device(&model, device, Logits::Last, 201)?;
    let found = feed(&mut chunks, &long, &[200])?;
    close("200 tokens", &rows[199], &found, AGAINST_HOST)?;
    let found = feed(&mut chunks, &long, &[1, 130, 69])?;
    close("200 tokens in odd runs", &rows[199], &found, AGAINST_HOST)?;
    let mut all = on_device(&model, device, Logits::All, 201)?;
    let found = all.forward_all(&long).text()?;
    for (i, (wanted, found)) in rows.iter().zip(found.chunks(VOCAB)).enumerate() {
        close(&format!("row {i}"), wanted, found, AGAINST_HOST)?;
    }
    if found.len() == rows.len() * VOCAB {
        Ok(())
    } else {
        Err(format!("{} logits", found.len()))
    }
}

/// Single tokens behind many others, whose keys are split, and on both sides of where that begins.
fn long_caches(device: &Device) -> Outcome {
    let _turn = device.turn();
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let long = tokens(420);
    let rows = host_rows(&model, &long)?;
    let mut found = on_device(&model, device, Logits::Last, 421)?;
    for (start, steps) in [(250, 12), (400, 20), (3, 2), (419, 1)] {
        let lengths = [&[start][..], &vec![1; steps]].concat();
        let logits = feed(&mut found, &long[..start + steps], &lengths)?;
        let what = format!("{start} tokens and {steps} single ones");
        close(&what, &rows[start + steps - 1], &logits, AGAINST_HOST)?;
    }
    Ok(())
}

/// Bound on the NMSE that caches of 8 bits cost: a code errs by at most half of 1/127 of its row's
/// largest, of the square some 1e-5, in each of two layers.
const EIGHT_BITS: f64 = 1e-3;

/// A cache of 8 bits: as the interpreter computes it, near to what floats give, and smaller.
fn caches_of_8_bits(device: &Device) -> Outcome {
    let _turn = device.turn();
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let target = Target {
        kv_q8: true,
        ..Target::DEVICE
    };
    let load = |logits| halves(&model, &target, logits);
    let long = tokens(300);
    let rows = host_rows(&model, &long)?;
    let mut host = HostModel::new(load(Logits::All)?, 301).text()?;
    let eight = host.forward_all(&long).text()?;
    let eight: Vec<_> = eight.chunks(VOCAB).map(<[f32]>::to_vec).collect();
    for (floats, eight) in rows.iter().zip(&eight) {
        close("8 bits next to floats", floats, eight, EIGHT_BITS)?;
    }
    let mut found = DeviceModel::new(
        load(Logits::Last)?,
        Box::new(device.share()),
        &SequenceConfig::of(301),
    )
    .text()?;
    for lengths in [&[300][..], &[1, 130, 1, 168], &[&[290][..], &[1; 10]].concat()] {
        let logits = feed(&mut found, &long, lengths)?;
        close("next to the interpreter", &eight[299], &logits, EIGHT_BITS / 10.0)?;
    }
    let floats = on_device(&model, device, Logits::Last, 301)?;
    let states = |m: &DeviceModel| m.memory()[0].0.states;
    let (wide, narrow) = (states(&floats), states(&found));
    // Heads of 8 elements: 12 bytes in place of 16.
    if narrow * 4 != wide * 3 {
        return Err(format!("caches of 8 bits take {narrow} bytes, of f16 {wide}"));
    }
    Ok(())
}

/// Rotary embedding and appends in one dispatch: the same logits, by whatever lengths the tokens
/// come, with three dispatches a layer less.
fn rotary_append(device: &Device) -> Outcome {
    let _turn = device.turn();
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let target = Target {
        rotary_append: true,
        ..Target::DEVICE
    };
    let joined = decoder(&model, &target, Logits::Last)?;
    let dispatches = |d: &Decoder| -> Result<Vec<usize>, String> {
        let plans = d
            .plans(&tlite_testing::fake_caps(), &SequenceConfig::of(64))
            .text()?;
        Ok(plans.iter().map(|p| p.steps.len()).collect())
    };
    let apart = dispatches(&decoder(&model, &Target::DEVICE, Logits::Last)?)?;
    let fewer: Vec<usize> = dispatches(&joined)?.iter().map(|n| n + 2 * 3).collect();
    if apart != fewer {
        return Err(format!(
            "{apart:?} dispatches, and with the pass, two layers of three more, {fewer:?}"
        ));
    }
    let long = tokens(40);
    let rows = host_rows(&model, &long)?;
    let mut found = DeviceModel::new(joined, Box::new(device.share()), &SequenceConfig::of(64)).text()?;
    for lengths in [&[40][..], &[1, 30, 9], &[&[30][..], &[1; 10]].concat()] {
        let logits = feed(&mut found, &long, lengths)?;
        close("next to the interpreter", &rows[39], &logits, AGAINST_HOST)?;
    }
    Ok(())
}

/// In every plan, states are written by `kv_append` only, once each.
fn states_are_appended_in_place() -> Outcome {
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let decoder = decoder(&model, &Target::DEVICE, Logits::Last)?;
    let states = decoder.graph().states().len();
    if states != 4 {
        return Err(format!("{states} states; two layers have four"));
    }
    for plan in decoder
        .plans(
            &tlite_testing::fake_caps(),
            &SequenceConfig {
                chunk: 8,
                ..SequenceConfig::of(16)
            },
        )
        .text()?
    {
        let mut written = vec![0; states];
        for step in &plan.steps {
            let spec = &plan.kernels[step.kernel];
            let shared = spec.shared().map(|a| a.name);
            for (storage, (arg, _)) in step.args.iter().zip(spec.bound()) {
                let writes = arg.role.writes() || shared == Some(arg.name);
                if let (true, Storage::State(i)) = (writes, storage) {
                    if spec.kernel.name != "kv_append" {
                        return Err(format!("{spec} writes state {i}"));
                    }
                    written[*i] += 1;
                }
            }
        }
        if written.iter().any(|n| *n != 1) {
            return Err(format!("states are written {written:?} times"));
        }
        if let Some(p) = plan
            .inputs
            .iter()
            .chain(&plan.outputs)
            .find(|p| matches!(p.storage, Some(Storage::State(_))))
        {
            return Err(format!("\"{}\" is a state and passes through the host", p.name));
        }
    }
    Ok(())
}

fn decode_allocates_nothing(device: &Device) -> Outcome {
    const STEPS: usize = 100;
    let _turn = device.turn();
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let decoder = decoder(&model, &Target::DEVICE, Logits::Last)?;
    let copies = Arc::new(AtomicUsize::new(0));
    let shared = device.share().counting_copies(copies.clone());
    let mut model = DeviceModel::new(decoder, Box::new(shared), &SequenceConfig::of(128)).text()?;
    let mut logits = Vec::new();
    model.forward(&tokens(5), &mut logits).text()?;
    model.forward(&[7], &mut logits).text()?;
    let before = model.stats();
    for t in tokens(STEPS) {
        model.forward(&[t], &mut logits).text()?;
    }
    let after = model.stats();
    let counters =
        |s: &transformer_lite::unstable::backend::Stats| (s.allocations, s.bytes, s.compiles, s.recordings);
    if counters(&before) != counters(&after) {
        return Err(format!(
            "decoding changed the counters: {before:?}, then {after:?}"
        ));
    }
    if after.submits != before.submits + STEPS as u64 {
        return Err(format!(
            "{STEPS} tokens took {} submissions",
            after.submits - before.submits
        ));
    }
    match copies.load(Ordering::Relaxed) {
        0 => Ok(()),
        n => Err(format!("{n} copies or fills in the recordings")),
    }
}

/// Decoding computes the same whatever multiple its lengths are padded to, also where the cache
/// ends within one.
fn paddings_change_nothing(device: &Device) -> Outcome {
    let _turn = device.turn();
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let (tokens, context) = (tokens(100), 100);
    let lengths = [&[27][..], &[1; 73]].concat();
    let mut first: Option<Vec<f32>> = None;
    // Multiples of 1 pad nothing.
    for padding in [1, 32, 64, 256] {
        let lengths_of = SequenceConfig {
            padding,
            ..SequenceConfig::of(context)
        };
        let decoder = decoder(&model, &Target::DEVICE, Logits::Last)?;
        let [_, plan] = decoder.plans(&device.caps, &lengths_of).text()?;
        let multiple = plan.padding.as_ref().map(|p| p.multiple);
        if multiple != Ok(i64::try_from(padding).text()?) {
            return Err(format!("asked for a padding of {padding}, planned {multiple:?}"));
        }
        let mut on_device = DeviceModel::new(decoder, Box::new(device.share()), &lengths_of).text()?;
        let found = feed(&mut on_device, &tokens, &lengths)?;
        match &first {
            None => first = Some(found),
            Some(wanted) => close(&format!("padding {padding}"), wanted, &found, 0.0)?,
        }
    }
    Ok(())
}

/// Embedding and head above what a device binds are cut in parts; the result is the same.
fn split_weights(device: &Device) -> Outcome {
    let _turn = device.turn();
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let (tokens, context) = (tokens(13), 16);
    let limit = 6 << 10;
    let count = |name: &str, bytes: u64| -> Result<usize, String> {
        let mut caps = device.caps.clone();
        caps.profile.max_view_bytes = bytes;
        let decoder = halves(&model, &Target::DEVICE, Logits::Last)?;
        let [plan, _] = decoder
            .plans(
                &caps,
                &SequenceConfig {
                    chunk: context,
                    ..SequenceConfig::of(context)
                },
            )
            .text()?;
        Ok(plan
            .steps
            .iter()
            .filter(|s| plan.kernels[s.kernel].kernel.name == name)
            .count())
    };
    for name in ["gather", "matmul"] {
        // 270 rows or columns of 32 halves: 17 280 bytes.
        let (whole, parts) = (
            count(name, device.caps.profile.max_view_bytes)?,
            count(name, limit)?,
        );
        if parts != whole + 2 {
            return Err(format!(
                "{whole} dispatches of {name}, {parts} with small views; expected 2 more"
            ));
        }
    }
    let whole = feed(
        &mut on_device(&model, device, Logits::Last, context)?,
        &tokens,
        &[12, 1],
    )?;
    let small = device.share().with_caps(|c| c.profile.max_view_bytes = limit);
    let decoder = halves(&model, &Target::DEVICE, Logits::Last)?;
    let mut split = DeviceModel::new(decoder, Box::new(small), &SequenceConfig::of(context)).text()?;
    let found = feed(&mut split, &tokens, &[12, 1])?;
    if whole == found {
        Ok(())
    } else {
        close("split weights", &whole, &found, 0.0)
    }
}

/// A native device copies only the weights that are packed together, which one product reads: those
/// of query, key and value.
fn weights_stay_in_their_file(dir: &Path, device: &Device) -> Outcome {
    let _turn = device.turn();
    let traffic = Arc::new(Traffic::default());
    let decoder = decoder(dir, &Target::DEVICE, Logits::Last)?;
    let share = device.share().counting_bytes(traffic.clone());
    DeviceModel::new(decoder, Box::new(share), &SequenceConfig::of(64)).text()?;
    let (written, _) = traffic.take();
    let stored = std::fs::metadata(dir.join("model.onnx.data")).text()?.len();
    eprintln!("{written} of {stored} bytes are written");
    if written * 4 < stored {
        Ok(())
    } else {
        Err(format!("{written} of {stored} bytes were written"))
    }
}

/// A conversation of 20 turns: each turn feeds its own tokens, whatever tokens the answers had.
fn conversation(dir: &Path, device: &Device) -> Outcome {
    let _turn = device.turn();
    let backend = device.kind.to_string().parse().text()?;
    let options = LoadOptions {
        place: Placement {
            backend,
            options: OpenOptions::of(Some(&device.caps.device)),
        },
        context: Some(1024),
        ..LoadOptions::default()
    };
    let model = Model::load(dir, &options).text()?;
    let mut session = model.session().text()?;
    let sampling = SamplerConfig {
        temperature: 1.5,
        seed: 3,
        ..SamplerConfig::default()
    };
    session.set_sampler(Sampler::new(sampling).text()?);
    let mut conversation = Conversation::new(session, Vec::new());
    let options = GenerateOptions {
        max_tokens: if device.is_slow() { 2 } else { 8 },
        ..GenerateOptions::default()
    };
    let tokenizer = Tokenizer::load(dir).text()?;
    for i in 0..20 {
        let message = format!("Tell me fact number {i} about the sea, briefly.");
        let mut reply = conversation
            .send(Message::user(message.as_str()), &options)
            .text()?;
        reply.text().text()?;
        let turn = format!("<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n");
        let (new, fed) = (
            tokenizer.encode(&turn, false).text()?.len(),
            reply.metrics().prompt_tokens,
        );
        // The last token of an answer that was cut short was not fed yet.
        if i > 0 && !(new..=new + 1).contains(&fed) {
            return Err(format!("a turn of {new} tokens feeds {fed}"));
        }
    }
    Ok(())
}
