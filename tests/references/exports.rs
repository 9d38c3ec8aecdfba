//! Decoders as exporters write them: whatever their form, the cache is state, attention is one
//! operator, and logits are those of ONNX Runtime.
//!
//! The files and what they should compute stand in `golden/decoders`, made by the script there.

use serde_json::json;
use std::path::PathBuf;
use tlite_testing::suite::Suite;
use tlite_testing::{Device, Outcome, Text, carries};
use transformer_lite::unstable::backend::SharedBackend;
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::graph::onnx::ImportOptions;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::graph::{Edit, Node, onnx};
use transformer_lite::unstable::llm::engine::{
    BatchConfig, BatchModel, Decoder, DecoderBuilder, DeviceDecoder, HostModel, Logits, Reproducible,
    RowModel, SequenceConfig, Span,
};
use transformer_lite::unstable::llm::load::{Loaded, Purpose};
use transformer_lite::unstable::llm::prompt_cache;
use transformer_lite::unstable::llm::sampler::arg_max;
use transformer_lite::unstable::llm::{LanguageModel, LoadOptions, ModelFolder};
use transformer_lite::unstable::note::Note;
use transformer_lite::unstable::placement::{BackendChoice, Placement};

/// A file, and its layers.
const FILES: [(&str, usize); 31] = [
    ("llama2-paper", 1),
    ("llama2-plain", 1),
    ("llama3-paper", 1),
    ("llama3-plain", 1),
    ("mistral-paper", 1),
    ("mistral-plain", 1),
    ("mistral-optimum", 1),
    ("qwen1.5-paper", 1),
    ("qwen1.5-plain", 1),
    ("qwen2.5-paper", 1),
    ("qwen2.5-plain", 1),
    ("qwen3-paper", 1),
    ("qwen3-plain", 1),
    ("gemma-paper", 1),
    ("gemma-plain", 1),
    ("gemma2-paper", 2),
    ("gemma2-plain", 2),
    ("gemma3-paper", 2),
    ("gemma3-plain", 2),
    ("phi3-paper", 1),
    ("phi3-plain", 1),
    ("phi4-mini-plain", 1),
    ("chatglm2-paper", 1),
    ("chatglm2-plain", 1),
    ("smollm-paper", 1),
    ("smollm-optimum", 1),
    ("gqa", 1),
    ("gqa-packed", 1),
    ("mha", 1),
    ("attention", 1),
    ("alibi", 1),
];

const TOKENS: [u32; 25] = [
    3, 17, 30, 4, 9, 9, 25, 1, 14, 28, 6, 19, 2, 2, 11, 31, 0, 8, 23, 5, 12, 29, 7, 16, 20,
];
/// Tokens that are run at once; the others follow one at a time.
const PREFILL: usize = 9;

/// Bounds on the relative error of each row of logits: sums in `f32`, and activations stored in
/// halves.
const HOST: f64 = 1e-3;
const DEVICE: f64 = 2e-2;

pub fn trials(suite: &mut Suite) {
    let devices = suite.devices();
    for (name, layers) in FILES {
        suite.add(format!("{name}@reference"), move || on_host(name, layers));
        for d in &devices {
            let device = d.clone();
            suite.add(format!("{name}@{}", d.label(&devices)), move || {
                on_device(name, layers, &device)
            });
            let device = d.clone();
            suite.add(format!("{name} in rows@{}", d.label(&devices)), move || {
                in_rows(name, &device)
            });
        }
    }
    suite.add("windows of config.json@reference", windows_of_config);
    suite.add("smollm-uncached@reference", || uncached("reference"));
    suite.add("caches that do not come out@reference", kept_in);
    for d in &devices {
        let (label, device) = (d.label(&devices), d.clone());
        suite.add(format!("windows of masks@{label}"), move || {
            window_of_mask(&device)
        });
        let device = d.clone();
        suite.add(format!("smollm-uncached@{label}"), move || {
            let _turn = device.turn();
            uncached(device.caps.backend)
        });
    }
}

fn file(name: &str, kind: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/decoders");
    folder.join(format!("{name}.{kind}"))
}

/// The decoder for `target`, with keys and values of each layer as state.
fn decoder(name: &str, layers: usize, target: &Target) -> Result<Decoder, String> {
    let decoder = Decoder::load(&file(name, "onnx"), target).text()?;
    let graph = decoder.graph();
    if graph.states().len() != 2 * layers || graph.outputs().len() != 1 {
        return Err(format!(
            "{} states and {} outputs of {layers} layers",
            graph.states().len(),
            graph.outputs().len()
        ));
    }
    Ok(decoder)
}

/// Runs a prefill and single tokens, and compares each row.
fn compare(name: &str, model: &mut dyn LanguageModel, bound: f64) -> Outcome {
    let mut found = Vec::new();
    let (prompt, rest) = TOKENS.split_at(PREFILL);
    for part in std::iter::once(prompt).chain(rest.chunks(1)) {
        found.extend(model.forward_all(part).text()?);
    }
    same_rows(name, &found, model.vocab(), bound)
}

/// Compares rows of logits with those of ONNX Runtime.
fn same_rows(name: &str, found: &[f32], vocab: usize, bound: f64) -> Outcome {
    let bytes = std::fs::read(file(name, "f32")).text()?;
    let wanted: Vec<f32> = bytes
        .chunks_exact(4)
        .filter_map(|b| b.try_into().ok().map(f32::from_le_bytes))
        .collect();
    if found.len() != wanted.len() || found.len() != TOKENS.len() * vocab {
        return Err(format!("{} logits, {} are right", found.len(), wanted.len()));
    }
    let rows = wanted.chunks(vocab).zip(found.chunks(vocab));
    for (i, (wanted, found)) in rows.enumerate() {
        let square = |v: f64| v * v;
        let norm: f64 = wanted.iter().map(|v| square(f64::from(*v))).sum();
        let pairs = wanted.iter().zip(found);
        let error: f64 = pairs.map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
        let error = (error / norm).sqrt();
        if std::env::var_os("CONFORMANCE_ERRORS").is_some() {
            eprintln!("{name}, row {i}: {error:.2e} of {bound:.0e}");
        }
        if error.is_nan() || error > bound {
            return Err(format!("row {i} is off by {error:.2e} of its length"));
        }
    }
    Ok(())
}

/// The interpreter with the host's passes, and with those of devices.
fn on_host(name: &str, layers: usize) -> Outcome {
    for target in [Target::HOST, Target::DEVICE] {
        let decoder = decoder(name, layers, &target)?;
        compare(name, &mut HostModel::new(decoder, TOKENS.len()).text()?, HOST)?;
    }
    Ok(())
}

fn on_device(name: &str, layers: usize, device: &Device) -> Outcome {
    let _turn = device.turn();
    let decoder = decoder(name, layers, &Target::DEVICE)?;
    let count = |op: &str| decoder.graph().nodes().filter(|(_, n)| n.op.name() == op).count();
    let (fused, left, appended) = (count("Attention"), count("Softmax"), count("KvAppend"));
    if (fused, left, appended) != (layers, 0, 2 * layers) {
        return Err(format!(
            "{fused} attentions, {left} softmaxes and {appended} appends in {layers} layers"
        ));
    }
    let masked =
        |(_, n): &(_, &Node)| n.op.name() == "Attention" && n.inputs.get(3).is_some_and(Option::is_some);
    let masks = decoder.graph().nodes().filter(masked).count();
    let expected = match name {
        // A bias by distance.
        "alibi" => 1,
        // Its window is counted from the first new row.
        "gemma2-plain" => 1,
        _ => 0,
    };
    if masks != expected || decoder.graph().input("attention_mask").is_some() {
        return Err(format!("{masks} attentions with masks, expected {expected}"));
    }
    let windows: Vec<i64> = decoder.graph().states().iter().filter_map(|s| s.window).collect();
    let windowed = match name {
        // The library that "gemma2-plain" is from counts a window from the first new row: single
        // tokens see all.
        "gemma2-paper" | "gqa-packed" | "mistral-paper" | "mistral-plain" | "mistral-optimum" => &[4, 4][..],
        "gemma3-paper" | "gemma3-plain" => &[4, 4, 4, 4],
        "phi3-paper" | "phi3-plain" => &[24, 24],
        _ => &[],
    };
    if windows != windowed {
        return Err(format!(
            "caches with windows of {windows:?}, expected {windowed:?}"
        ));
    }
    let mut lengths = SequenceConfig::of(TOKENS.len());
    if !windowed.is_empty() {
        // Caches that keep a window come round in the prefill and in the tokens after it.
        lengths.chunk = 3;
    }
    let decoder = DeviceDecoder::new(decoder, Box::new(device.share()), &lengths).text()?;
    if let [step, ..] = decoder.host_steps() {
        return Err(format!(
            "\"{}\" runs on the host in decoding: {}",
            step.name, step.why
        ));
    }
    compare(name, &mut decoder.model().text()?, DEVICE)
}

/// Rows of two sequences; one is ahead of the other.
fn in_rows(name: &str, device: &Device) -> Outcome {
    let _turn = device.turn();
    let target = Target::DEVICE.with(Logits::Chosen).on(&device.caps);
    // The first two need a mask; see `on_device`. The caches of the others grow along axis 0.
    let refused = matches!(
        name,
        "alibi" | "gemma2-plain" | "chatglm2-paper" | "chatglm2-plain"
    );
    let decoder = match Decoder::load(&file(name, "onnx"), &target) {
        Ok(_) if refused => return Err("it runs, but should be refused".to_owned()),
        Err(e) if refused && e.kind() == ErrorKind::Unsupported => return Ok(()),
        decoder => decoder.text()?,
    };
    let config = BatchConfig {
        pages: 2,
        context: TOKENS.len(),
        rows: 128,
        logits: 64,
        reproducible: Reproducible::No,
    };
    let backend = SharedBackend::new(Box::new(device.share()));
    let (mut model, _) = BatchModel::load(decoder, backend, &config, None).text()?;
    let mut done = [0; 2];
    let mut found = [Vec::new(), Vec::new()];
    while done[1] < TOKENS.len() {
        let count = |done: usize| if done == 0 { PREFILL } else { 1 };
        let counts = [
            count(done[0]).min(TOKENS.len() - done[0]),
            if done[0] == 0 { 0 } else { count(done[1]) },
        ];
        let parts = [0, 1].map(|i| Span {
            tokens: &TOKENS[done[i]..done[i] + counts[i]],
            start: done[i],
            pages: &[[1], [0]][i],
            logits: counts[i],
            alone: false,
        });
        let spans: Vec<Span<'_>> = parts.into_iter().filter(|s| s.logits > 0).collect();
        model.step(&mut spans.iter().copied()).text()?;
        let mut row = 0;
        for i in [0, 1] {
            model.logits(row, counts[i], &mut found[i]).text()?;
            row += counts[i];
            done[i] += counts[i];
        }
    }
    let vocab = model.vocab();
    found
        .iter()
        .try_for_each(|found| same_rows(name, found, vocab, DEVICE))
}

/// Keys that a query sees in the trials of windows.
const WINDOW: usize = 4;

/// The logits behind `TOKENS`, all but the last [`WINDOW`] of which are replaced by others if
/// `changed`.
fn last_logits(model: &mut dyn LanguageModel, changed: bool) -> Result<Vec<f32>, String> {
    let mut tokens = TOKENS;
    if changed {
        let far = tokens.len() - WINDOW;
        tokens[..far].iter_mut().for_each(|t| *t = (*t + 5) % 32);
    }
    model.truncate(0);
    let mut logits = Vec::new();
    let (prompt, rest) = tokens.split_at(PREFILL);
    for part in std::iter::once(prompt).chain(rest.chunks(1)) {
        model.forward(part, &mut logits).text()?;
    }
    Ok(logits)
}

/// A model of one layer tells the same of equal last tokens exactly if it sees no others.
fn sees_no_more(model: &mut dyn LanguageModel, wanted: bool) -> Outcome {
    let (a, b) = (last_logits(model, false)?, last_logits(model, true)?);
    let most = a.iter().zip(&b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    if (most < 1e-5) == wanted {
        Ok(())
    } else {
        Err(format!(
            "{most} apart, {} were expected to be equal",
            if wanted { "logits" } else { "no logits" }
        ))
    }
}

/// A window of which `config.json` alone tells is in the mask where that is ours to make; else a
/// note says that it is not there.
fn windows_of_config() -> Outcome {
    let all = json!({"model_type": "mistral", "sliding_window": WINDOW});
    let some = json!({"model_type": "gemma2", "sliding_window": WINDOW});
    let off = json!({"model_type": "mistral", "sliding_window": null});
    for (name, config, context, sees, notes) in [
        ("llama3-paper", &all, TOKENS.len(), Some(true), 0),
        ("llama3-paper", &off, TOKENS.len(), Some(false), 0),
        ("llama3-paper", &some, TOKENS.len(), Some(false), 1),
        ("qwen3-plain", &all, TOKENS.len(), Some(false), 1),
        ("qwen3-plain", &all, WINDOW, None, 0),
        ("gemma2-plain", &some, TOKENS.len(), None, 1),
        ("gemma2-paper", &some, TOKENS.len(), None, 0),
    ] {
        let options = LoadOptions {
            place: Placement {
                backend: BackendChoice::Reference,
                ..Placement::default()
            },
            context: Some(context),
            ..LoadOptions::default()
        };
        let (_dir, folder) = folder(name, config)?;
        let loaded = Loaded::new(&folder, &options, Purpose::Generation, &mut |_| ()).text()?;
        let told = loaded.notes().iter();
        let told = told.filter(|n| matches!(n, Note::WindowIgnored { length } if *length == WINDOW));
        if told.count() != notes {
            return Err(format!(
                "{name} with {config}: {:?}, {notes} notes were expected",
                loaded.notes()
            ));
        }
        if let Some(sees) = sees {
            let mut model = loaded.model().text()?;
            sees_no_more(model.as_mut(), sees).map_err(|e| format!("{name} with {config}: {e}"))?;
        }
    }
    Ok(())
}

fn window_of_mask(device: &Device) -> Outcome {
    let _turn = device.turn();
    for windowed in [true, false] {
        let mut builder = DecoderBuilder::new(&Target::DEVICE.with(Logits::Last));
        if windowed {
            builder = builder.with_window(WINDOW);
        }
        let path = file("llama3-paper", "onnx");
        let decoder = builder.load(&path, ImportOptions::default()).text()?;
        let lengths = SequenceConfig::of(TOKENS.len());
        let decoder = DeviceDecoder::new(decoder, Box::new(device.share()), &lengths).text()?;
        sees_no_more(&mut decoder.model().text()?, windowed)?;
    }
    Ok(())
}

/// A folder of the file alone, with this `config.json`.
fn folder(name: &str, config: &serde_json::Value) -> Result<(tempfile::TempDir, ModelFolder), String> {
    let dir = tempfile::tempdir().text()?;
    std::fs::copy(file(name, "onnx"), dir.path().join("model.onnx")).text()?;
    std::fs::write(dir.path().join("config.json"), config.to_string()).text()?;
    let folder = ModelFolder::open(dir.path()).text()?;
    Ok((dir, folder))
}

/// A model without caches runs all tokens again for each new one, and says so.
fn uncached(backend: &str) -> Outcome {
    let name = "smollm-uncached";
    let options = LoadOptions {
        place: Placement {
            backend: backend.parse().text()?,
            ..Placement::default()
        },
        context: Some(TOKENS.len()),
        ..LoadOptions::default()
    };
    let (_dir, folder_) = folder(name, &json!({"architectures": ["LlamaForCausalLM"]}))?;
    let load = |purpose| Loaded::new(&folder_, &options, purpose, &mut |_| ()).text();
    let loaded = load(Purpose::Evaluation)?;
    if loaded.keeps_cache() || !loaded.notes().contains(&Note::NoCache) {
        return Err(format!("notes {:?}", loaded.notes()));
    }
    let mut model = loaded.model().text()?;
    let bound = if backend == "reference" { HOST } else { DEVICE };
    compare(name, model.as_mut(), bound)?;
    let cache = std::path::Path::new("no such file");
    if prompt_cache::load(cache, model.as_mut()).is_ok() {
        return Err("a prompt cache of a model without a cache".to_owned());
    }
    let Err(full) = model.forward(&[1], &mut Vec::new()) else {
        return Err("a token behind a full context".to_owned());
    };
    tlite_testing::refusal(&full, ErrorKind::ContextExceeded, &[])?;
    // Greedy choices go on from what is left of the tokens, as those of all logits do.
    let mut chosen = load(Purpose::Generation)?.model().text()?;
    model.truncate(PREFILL);
    chosen.forward(&TOKENS[..PREFILL], &mut Vec::new()).text()?;
    for token in &TOKENS[PREFILL..] {
        let rows = model.forward_all(&[*token]).text()?;
        let (wanted, found) = (arg_max(&rows).text()?, chosen.most_likely(&[*token]).text()?);
        if wanted != found || model.len() != chosen.len() {
            return Err(format!("token {found} where logits say {wanted}"));
        }
    }
    let drafts = LoadOptions {
        drafts: 4,
        ..options.clone()
    };
    let notes = Loaded::new(&folder_, &drafts, Purpose::Generation, &mut |_| ()).text()?;
    let drafts = |n: &Note| matches!(n, Note::NoEffect { option: "drafts", .. });
    let told = notes.notes().iter().any(drafts);
    if told != (backend != "reference") {
        return Err(format!("{backend}: notes of drafts {:?}", notes.notes()));
    }
    let (_dir, other) = folder(name, &json!({"architectures": ["BertForMaskedLM"]}))?;
    match Loaded::new(&other, &options, Purpose::Generation, &mut |_| ()) {
        Err(e) if e.is_usage() && carries(&e.to_string(), "BertForMaskedLM") => Ok(()),
        other => Err(format!("a model for other purposes: {other:?}")),
    }
}

/// Caches that go in and do not come out stay empty.
fn kept_in() -> Outcome {
    let mut graph = onnx::import(&file("smollm-optimum", "onnx")).text()?;
    let logits = graph.output("logits");
    Edit::new(&mut graph).keep_outputs(|v| Some(v) == logits);
    for target in [Target::HOST, Target::DEVICE] {
        let decoder = Decoder::of(graph.clone(), &target).text()?;
        if decoder.keeps_cache() || graph.inputs().len() <= decoder.graph().inputs().len() {
            return Err("the caches are still there".to_owned());
        }
        let mut model = HostModel::new(decoder, TOKENS.len()).text()?;
        let rows = model.forward_all(&TOKENS).text()?;
        same_rows("smollm-optimum", &rows, model.vocab(), HOST)?;
        if model.forward_all(&[1]).is_ok() {
            return Err("a run that goes on without a cache".to_owned());
        }
    }
    Ok(())
}
