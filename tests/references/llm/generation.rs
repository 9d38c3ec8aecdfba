//! What generation asks of a decoder beyond the last row of logits: rows of short runs, the most
//! likely token, drafts, and caches that are saved and restored.

use super::{AGAINST_HOST, Outcome, close, decoder, halves, host_rows, tokens};
use std::path::Path;
use tlite_testing::gguf::{Traits, VOCAB};
use tlite_testing::suite::Suite;
use tlite_testing::{self, Device, Text};
use transformer_lite::unstable::error::{ErrorKind, Stage};
use transformer_lite::unstable::executor::Executor;
use transformer_lite::unstable::graph::Graph;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec};
use transformer_lite::unstable::graph::onnx::{self, ImportOptions};
use transformer_lite::unstable::graph::pass::{
    CANDIDATE_IDS, CANDIDATE_LOGITS, LOG_SUM, Pipeline, TOKEN, Target,
};
use transformer_lite::unstable::llm::engine::{DeviceDecoder, HostModel, Logits, SequenceConfig};
use transformer_lite::unstable::llm::sampler::arg_max;
use transformer_lite::unstable::llm::{
    Candidates, DecodeOptions, Draft, Generator, LanguageModel, ModelDraft, NgramDraft, Sampler,
    SamplerConfig, Speculation, prompt_cache,
};
use transformer_lite::unstable::plan::{Options, Plan};
use transformer_lite::unstable::shape::{Bindings, Symbol};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// The trials for the host and for `devices`.
pub fn trials(suite: &mut Suite, devices: &[Device]) {
    let places: Vec<(String, Option<Device>)> = std::iter::once(("reference".to_owned(), None))
        .chain(devices.iter().map(|d| (d.label(devices), Some(d.clone()))))
        .collect();
    type Work = fn(Option<&Device>) -> Outcome;
    let works: [(&str, Work); 4] = [
        ("rows_of_short_runs", rows_of_short_runs),
        ("the_most_likely_token", the_most_likely_token),
        ("drafts_change_nothing", drafts_change_nothing),
        ("caches_come_back", caches_come_back),
    ];
    for (name, work) in works {
        for (place, device) in &places {
            let device = device.clone();
            suite.add(format!("{name}@{place}"), move || {
                let _turn = device.as_ref().map(Device::turn);
                work(device.as_ref())
            });
        }
    }
    suite.add(
        "a_choice_of_rows_changes_no_other_plan",
        a_choice_of_rows_changes_no_other_plan,
    );
    for d in devices {
        let device = d.clone();
        suite.add(format!("ties_go_to_the_first@{}", d.label(devices)), move || {
            ties_go_to_the_first(&device)
        });
        let device = d.clone();
        suite.add(
            format!("rows_that_are_not_finite_have_no_token@{}", d.label(devices)),
            move || rows_that_are_not_finite_have_no_token(&device),
        );
        let device = d.clone();
        suite.add(
            format!("candidates_are_the_largest@{}", d.label(devices)),
            move || candidates_are_the_largest(&device),
        );
    }
}

const CONTEXT: usize = 80;
/// Tokens of a run with all its logits.
const ROWS: usize = 6;

/// As `tlite generate` loads a model: on a device with the most likely token as an output.
fn loaded(
    model: &Path,
    device: Option<&Device>,
    logits: Logits,
    greedy: bool,
) -> Result<Box<dyn LanguageModel + Send>, String> {
    let Some(device) = device else {
        let decoder = decoder(model, &Target::HOST, logits)?;
        return Ok(Box::new(HostModel::new(decoder, CONTEXT).text()?));
    };
    let target = Target {
        greedy,
        ..Target::DEVICE
    };
    let lengths = SequenceConfig {
        verify_tokens: ROWS,
        ..SequenceConfig::of(CONTEXT)
    };
    let decoder = halves(model, &target, logits)?;
    let decoder = DeviceDecoder::new(decoder, Box::new(device.share()), &lengths).text()?;
    match decoder.host_steps() {
        [] => Ok(Box::new(decoder.model().text()?)),
        steps => Err(format!("{} nodes run on the host", steps.len())),
    }
}

/// A short run tells the logits after each of its tokens; longer ones tell the last, as before.
fn rows_of_short_runs(device: Option<&Device>) -> Outcome {
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let all = tokens(40);
    let rows = host_rows(&model, &all)?;
    let mut tail = loaded(&model, device, Logits::Tail, false)?;
    let mut logits = Vec::new();
    tail.forward(&all[..20], &mut logits).text()?;
    close("row 19", &rows[19], &logits, AGAINST_HOST)?;
    let mut at = 20;
    for n in [2, 1, ROWS, 3, 1] {
        let found = tail.forward_all(&all[at..at + n]).text()?;
        if found.len() != n * VOCAB {
            return Err(format!("{} logits for {n} tokens", found.len()));
        }
        for (i, row) in found.chunks(VOCAB).enumerate() {
            close(&format!("row {}", at + i), &rows[at + i], row, AGAINST_HOST)?;
        }
        // A guess that was wrong is taken back.
        tail.truncate(at + n - 1);
        tail.forward(&all[at + n - 1..at + n], &mut logits).text()?;
        at += n;
        close(&format!("row {}", at - 1), &rows[at - 1], &logits, AGAINST_HOST)?;
    }
    let most = tail.most_rows();
    if device.is_none() {
        return if most >= CONTEXT {
            Ok(())
        } else {
            Err(format!("{most} rows"))
        };
    }
    let longer = tail.forward_all(&all[..=ROWS]);
    if most == ROWS && longer.is_err() {
        Ok(())
    } else {
        Err(format!("{most} rows, expected {ROWS}"))
    }
}

/// Prefill and decode run the same kernels in the same order, whether drafts are asked for or not.
fn a_choice_of_rows_changes_no_other_plan() -> Outcome {
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let dispatches = |logits: Logits| -> Result<Vec<Vec<String>>, String> {
        let plans = decoder(&model, &Target::DEVICE, logits)?
            .plans(&tlite_testing::fake_caps(), &SequenceConfig::of(CONTEXT))
            .text()?;
        let kernels =
            |p: &Plan| -> Vec<String> { p.steps.iter().map(|s| p.kernels[s.kernel].to_string()).collect() };
        Ok(plans.iter().map(kernels).collect())
    };
    let (last, tail) = (dispatches(Logits::Last)?, dispatches(Logits::Tail)?);
    if last == tail && !last.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "for the last row {last:#?}\nfor as many as asked for {tail:#?}"
        ))
    }
}

/// The model's own choice is the first largest of its logits, of one row and of several.
fn the_most_likely_token(device: Option<&Device>) -> Outcome {
    for (architecture, traits) in [
        ("llama", Traits::default()),
        (
            "qwen2",
            Traits {
                untied: true,
                ..Traits::default()
            },
        ),
    ] {
        let (_dir, model) = tlite_testing::tiny_model(architecture, traits);
        let all = tokens(30);
        for logits in [Logits::Last, Logits::Tail] {
            let mut model = loaded(&model, device, logits, true)?;
            let mut row = Vec::new();
            for n in [1, 2, 7, 29, 30] {
                model.truncate(0);
                model.forward(&all[..n], &mut row).text()?;
                let wanted = arg_max(&row).text()?;
                model.truncate(0);
                let found = model.most_likely(&all[..n]).text()?;
                if found != wanted || model.len() != n {
                    return Err(format!("after {n} tokens {found}, the logits say {wanted}"));
                }
            }
            if logits == Logits::Tail {
                model.truncate(10);
                let rows = model.forward_all(&all[10..14]).text()?;
                model.truncate(10);
                let found = model.most_likely_all(&all[10..14]).text()?;
                let wanted: Vec<u32> = rows.chunks(VOCAB).map(arg_max).collect::<Result<_, _>>().text()?;
                if found != wanted {
                    return Err(format!("{found:?}, the logits say {wanted:?}"));
                }
            }
        }
    }
    Ok(())
}

fn generated(
    model: &mut dyn LanguageModel,
    draft: Option<&mut Speculation>,
) -> Result<(Vec<u32>, usize), String> {
    model.truncate(0);
    let mut sampler = Sampler::new(SamplerConfig::default()).text()?;
    let options = DecodeOptions {
        max_tokens: 50,
        ..DecodeOptions::default()
    };
    let mut generator = Generator::new(model, &mut sampler, &tokens(9), options).text()?;
    if let Some(draft) = draft {
        generator = generator.speculating(draft);
    }
    let ids = generator.by_ref().map(|t| t.map(|t| t.id));
    let ids = ids.collect::<Result<_, _>>().text()?;
    Ok((ids, generator.metrics().accepted))
}

/// Greedy text is the same with and without drafts, right and wrong ones.
fn drafts_change_nothing(device: Option<&Device>) -> Outcome {
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let (_other_dir, other) = tlite_testing::tiny_model("qwen2", Traits::default());
    for greedy in [true, false] {
        let mut plain = loaded(&model, device, Logits::Last, greedy)?;
        let (wanted, _) = generated(plain.as_mut(), None)?;
        let model_itself = ModelDraft::new(loaded(&model, None, Logits::Last, false)?);
        let stranger = ModelDraft::new(loaded(&other, None, Logits::Last, false)?);
        let drafts: [(&str, Box<dyn Draft>, usize); 3] = [
            ("the model itself", Box::new(model_itself), 20),
            ("another model", Box::new(stranger), 0),
            ("n-grams", Box::new(NgramDraft::default()), 0),
        ];
        let mut tail = loaded(&model, device, Logits::Tail, greedy)?;
        for (name, draft, least) in drafts {
            let (found, accepted) = generated(tail.as_mut(), Some(&mut Speculation::fixed(draft, 8)))?;
            if found != wanted {
                return Err(format!("drafts of {name}: {found:?}, without {wanted:?}"));
            }
            if accepted < least {
                return Err(format!("only {accepted} drafts of {name} were right"));
            }
        }
    }
    Ok(())
}

/// A cache from a file goes on bit by bit as the one that was saved; that of another model or form
/// is refused.
fn caches_come_back(device: Option<&Device>) -> Outcome {
    let (dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let file = dir.path().join("cache.bin");
    let all = tokens(31);
    let mut first = loaded(&model, device, Logits::Last, false)?;
    let (mut wanted, mut found) = (Vec::new(), Vec::new());
    first.forward(&all[..21], &mut wanted).text()?;
    prompt_cache::save(&file, first.as_mut(), &all[..21]).text()?;
    let mut second = loaded(&model, device, Logits::Last, false)?;
    let held = prompt_cache::load(&file, second.as_mut()).text()?;
    if held != all[..21] || second.len() != 21 {
        return Err(format!(
            "{held:?} came back, {} tokens in the cache",
            second.len()
        ));
    }
    for model in [&mut first, &mut second] {
        model.truncate(20);
    }
    for t in &all[20..] {
        first.forward(&[*t], &mut wanted).text()?;
        second.forward(&[*t], &mut found).text()?;
        if wanted != found {
            return Err("logits after the restored cache differ".to_owned());
        }
    }
    let refused = |other: &mut dyn LanguageModel, values: &[&str]| -> Outcome {
        let Err(e) = prompt_cache::load(&file, other) else {
            return Err("a cache that differs is taken".to_owned());
        };
        let values = [&["cache.bin"], values].concat();
        tlite_testing::refusal(&e, ErrorKind::PromptCacheMismatch, &values)?;
        match other.is_empty() {
            true => Ok(()),
            false => Err("a cache that is refused was filled".to_owned()),
        }
    };
    let untied = Traits {
        untied: true,
        ..Traits::default()
    };
    let (_other_dir, other) = tlite_testing::tiny_model("llama", untied);
    refused(loaded(&other, device, Logits::Last, false)?.as_mut(), &[])?;
    if device.is_some() {
        refused(
            loaded(&model, None, Logits::Last, false)?.as_mut(),
            &["f16", "f32"],
        )?;
    }
    Ok(())
}

/// A model whose logits are its input.
fn logits_of(vocab: usize) -> Result<Graph, String> {
    let dir = tempfile::tempdir().text()?;
    let mut w = ModelWriter::create(Stage::Convert, dir.path(), "model.onnx", "g").text()?;
    w.opset("", 18);
    w.add_input("x", DType::F32, &[1.into(), "rows".into(), vocab.into()])
        .text()?;
    w.add_output("logits", DType::F32, &[1.into(), "rows".into(), vocab.into()])
        .text()?;
    w.add_node(NodeSpec {
        domain: "",
        op: "Neg",
        name: "n",
        inputs: &["x"],
        outputs: &["logits"],
        attributes: &[],
    })
    .text()?;
    w.finish().text()?;
    let mut graph = onnx::import_with(&dir.path().join("model.onnx"), ImportOptions::default()).text()?;
    let target = Target {
        greedy: true,
        candidates: true,
        ..Target::DEVICE
    };
    Pipeline::of(&target).run(&mut graph).text()?;
    Ok(graph)
}

/// Loads a model whose logits are its input for `rows` rows in `float`, and runs it.
fn run_logits_of(
    device: &Device,
    graph: &Graph,
    float: DType,
    rows: usize,
    data: &[f32],
) -> Result<Executor, String> {
    let symbol = Symbol::new("rows");
    let mut options = Options {
        float,
        ..Options::default()
    };
    options.bounds.set(&symbol, rows as i64);
    let plan = Plan::compile(graph, &device.caps, &options).text()?;
    if !plan.host.is_empty() {
        return Err(format!("{} nodes run on the host", plan.host.len()));
    }
    let mut executor = Executor::new(Box::new(device.share()), graph, vec![plan]).text()?;
    let given: Vec<f32> = data.iter().map(|v| -v).collect();
    let x = HostTensor::from_f32(&[1, rows, data.len() / rows], &given).text()?;
    executor.write(0, "x", &x).text()?;
    let mut bindings = Bindings::new();
    bindings.set(&symbol, rows as i64);
    executor.run(0, &bindings).text()?;
    Ok(executor)
}

fn ties_go_to_the_first(device: &Device) -> Outcome {
    let _turn = device.turn();
    // Parts of equal length, with something left over, primes, one part.
    for vocab in [1, 2, 257, 258, 1000, 49_152, 65_537] {
        let graph = logits_of(vocab)?;
        for &float in device.caps.profile.storage_types() {
            // All equal; two largest in different parts; the last; small differences; only negative
            // ones, the largest repeated.
            let logit = |row: usize, i: usize| -> f32 {
                let spread = ((i * 7919) % 1013) as f32;
                match row {
                    0 => 3.0,
                    1 if i == vocab / 3 || i == 2 * vocab / 3 => 9.0,
                    2 if i + 1 == vocab => 1.0,
                    3 => spread * 0.125,
                    4 => -1.0 - (spread % 17.0),
                    _ => 0.0,
                }
            };
            let data: Vec<f32> = (0..5 * vocab).map(|i| logit(i / vocab, i % vocab)).collect();
            let mut executor = run_logits_of(device, &graph, float, 5, &data)?;
            let found = executor.read(0, TOKEN).text()?.to_i64().text()?;
            let wanted: Vec<i64> = data
                .chunks(vocab)
                .map(|row| arg_max(row).map(i64::from))
                .collect::<Result<_, _>>()
                .text()?;
            if found != wanted {
                return Err(format!("of {vocab} in {float}: {found:?}, expected {wanted:?}"));
            }
        }
    }
    Ok(())
}

/// The host then searches the row.
fn rows_that_are_not_finite_have_no_token(device: &Device) -> Outcome {
    let _turn = device.turn();
    for vocab in [1, 258, 1000, 65_537] {
        let graph = logits_of(vocab)?;
        for &float in device.caps.profile.storage_types() {
            for place in [0, vocab / 2, vocab - 1] {
                // Infinite inputs are stored as the largest halves.
                let most = if float == DType::F16 { 2 } else { 5 };
                let logit = |row: usize, i: usize| match row {
                    0 => (i % 7) as f32 * -0.5 + if i == place { 9.0 } else { 0.0 },
                    1 => f32::NAN,
                    2 if i == place => f32::NAN,
                    3 if i == place => f32::INFINITY,
                    4 => f32::NEG_INFINITY,
                    5 if i != place => f32::NEG_INFINITY,
                    _ => 1.0,
                };
                let rows = 0..=most;
                let data: Vec<f32> = rows
                    .flat_map(|row| (0..vocab).map(move |i| logit(row, i)))
                    .collect();
                let mut executor = run_logits_of(device, &graph, float, most + 1, &data)?;
                let found = executor.read(0, TOKEN).text()?.to_i64().text()?;
                let mut wanted = vec![vocab as i64; most + 1];
                wanted[0] = place as i64;
                if let Some(masked) = wanted.get_mut(5) {
                    *masked = place as i64;
                }
                let none = |v: &i64| (*v).min(vocab as i64);
                let found: Vec<i64> = found.iter().map(none).collect();
                if found != wanted {
                    return Err(format!("of {vocab} in {float}: {found:?}, expected {wanted:?}"));
                }
            }
        }
    }
    Ok(())
}

/// The largest logits of a row and their indices, the first of equal ones first, and the logarithm
/// of the sum of all exponentials.
fn candidates_are_the_largest(device: &Device) -> Outcome {
    const COUNT: usize = Candidates::COUNT;
    let _turn = device.turn();
    if logits_of(4095)?.output(CANDIDATE_IDS).is_some() {
        return Err("a small vocabulary has candidates".to_owned());
    }
    // Parts of equal length, and with something left over.
    for vocab in [4096, 32_000, 65_537] {
        let graph = logits_of(vocab)?;
        for &float in device.caps.profile.storage_types() {
            // All equal; large ones side by side, among equal ones; in reverse order; small
            // differences with ties; logits of a usual size.
            let logit = |row: usize, i: usize| -> f32 {
                let spread = (i * 7919) % vocab;
                match row {
                    0 => -2.0,
                    1 if (1000..1040).contains(&i) => 8.0,
                    2 => (i as f32 * -64.0 / vocab as f32).floor(),
                    3 => (spread % 97) as f32 * 0.125,
                    4 => (spread as f32 / vocab as f32).powi(9) * 24.0 - 6.0,
                    _ => 0.0,
                }
            };
            let narrow = |v: f32| match float {
                DType::F16 => half::f16::from_f32(v).to_f32(),
                _ => v,
            };
            let data: Vec<f32> = (0..5 * vocab)
                .map(|i| narrow(logit(i / vocab, i % vocab)))
                .collect();
            let mut executor = run_logits_of(device, &graph, float, 5, &data)?;
            let (mut ids, mut logits, mut sums) = (vec![0; 5 * COUNT], vec![0.0; 5 * COUNT], [0.0; 5]);
            executor.read_indices(0, CANDIDATE_IDS, 0, &mut ids).text()?;
            executor.read_f32(0, CANDIDATE_LOGITS, 0, &mut logits).text()?;
            executor.read_f32(0, LOG_SUM, 0, &mut sums).text()?;
            let mut wanted = Candidates::default();
            data.chunks(vocab).try_for_each(|row| wanted.push(row)).text()?;
            for (i, found) in sums.iter().enumerate() {
                let want = wanted.row(i).ok_or("no row")?;
                let range = i * COUNT..(i + 1) * COUNT;
                if &ids[range.clone()] != want.ids || &logits[range.clone()] != want.logits {
                    let (ids, logits) = (&ids[range.clone()], &logits[range]);
                    return Err(format!(
                        "row {i} of {vocab} in {float}: {ids:?} {logits:?}, not {want:?}"
                    ));
                }
                let sum = f64::from(want.logits[0]) + want.log_total;
                if (f64::from(*found) - sum).abs() > 1e-4 {
                    return Err(format!("row {i} of {vocab} in {float}: {found}, not {sum}"));
                }
            }
            // Some of a row.
            let mut part = [0; 7];
            executor
                .read_indices(0, CANDIDATE_IDS, COUNT + 3, &mut part)
                .text()?;
            if part[..] != ids[COUNT + 3..COUNT + 10] {
                return Err(format!("{part:?}"));
            }
        }
    }
    Ok(())
}
