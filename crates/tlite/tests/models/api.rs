//! The interfaces of programs: sessions over one model, on the host and on every device; and that
//! of C, whose program is compiled and run here.

mod c;

use std::path::{Path, PathBuf};
use tlite_testing::gguf::Traits;
use tlite_testing::suite::Suite;
use tlite_testing::{Device, Outcome, Text, equal, refusal, speaking_model};
use transformer_lite::unstable::backend::{Backend as _, BackendKind, OpenOptions};
use transformer_lite::unstable::error::{Error, ErrorKind};
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{Decoder, DeviceDecoder, Logits, SequenceConfig};
use transformer_lite::unstable::llm::{
    BatchOptions, Batcher, BeamOptions, Finish, GenerateOptions, KvType, LanguageModel, LoadOptions, Message,
    Model, NgramDraft, Request, Sampler, SamplerConfig, Session,
};
use transformer_lite::unstable::note::Note;
use transformer_lite::unstable::placement::{BackendChoice, Placement};
use transformer_lite::unstable::tensor::DType;

pub fn trials(suite: &mut Suite) {
    let devices = suite.devices();
    for d in &devices {
        let device = d.clone();
        suite.add(
            format!("executors_share_weights@{}", d.label(&devices)),
            move || executors_share_weights(&device),
        );
    }
    let mut places = vec![BackendChoice::Reference];
    for choice in BackendKind::ALL.map(BackendChoice::On) {
        if devices.iter().any(|d| d.kind.to_string() == choice.name()) {
            places.push(choice);
        }
    }
    for place in places {
        suite.add(format!("sessions@{place}"), move || sessions(place));
        suite.add(format!("sessions_in_threads@{place}"), move || in_threads(place));
        suite.add(format!("c@{place}"), move || c::runs(place));
        suite.add(format!("batches@{place}"), move || batches(place));
    }
    suite.add("loads_that_are_refused", refused);
    suite.add("c_header", c::header);
    suite.add("c_header_in_old_c_and_in_cpp", c::header_in_old_c_and_in_cpp);
    suite.add("c@reference_under_valgrind", c::under_valgrind);
    if cfg!(target_os = "linux") {
        suite.add("c_symbols", c::symbols);
    }
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    match (folder("TLITE_TEST_MODELS"), folder("TLITE_TEST_MODEL_DIR")) {
        (Some(models), Some(chat)) => suite.add("c_real_models", move || {
            c::real_models(&models.join("mobilenetv2/model.onnx"), &chat.join("e0m4"))
        }),
        _ => suite.not_set("TLITE_TEST_MODELS and TLITE_TEST_MODEL_DIR name no folders with models"),
    }
}

fn options(place: BackendChoice) -> LoadOptions {
    LoadOptions {
        place: Placement {
            backend: place,
            options: OpenOptions::default(),
        },
        ..LoadOptions::default()
    }
}

fn tokens(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ..GenerateOptions::default()
    }
}

/// Requests at the same time get what sessions give them one after another; the host says that it
/// runs them so.
fn batches(place: BackendChoice) -> Outcome {
    let (_dir, model) = speaking_model();
    let batcher = Batcher::load(&model, &options(place), &BatchOptions::default()).text()?;
    let in_turns = batcher
        .notes()
        .iter()
        .any(|n| matches!(n, Note::OneSequence { .. }));
    equal(&in_turns, &(place == BackendChoice::Reference))?;
    let prompts = ["one two", "one two three", "two", "three one two"];
    let submit = |prompt: &&str| {
        let request = Request {
            options: tokens(12),
            ..Request::default()
        };
        batcher.submit(*prompt, request).text()
    };
    let tickets = prompts.iter().map(submit).collect::<Result<Vec<_>, _>>()?;
    let loaded = Model::load(&model, &options(place)).text()?;
    let mut session = loaded.session().text()?;
    let again = Batcher::from_model(loaded, &BatchOptions::default()).text()?;
    equal(&again.notes(), &batcher.notes())?;
    let mut ticket = again
        .submit(
            prompts[1],
            Request {
                options: tokens(12),
                ..Request::default()
            },
        )
        .text()?;
    equal(&ticket.text().text()?, &text(&mut session, prompts[1], 12)?)?;
    for (prompt, mut ticket) in prompts.iter().zip(tickets) {
        equal(&ticket.text().text()?, &text(&mut session, prompt, 12)?)?;
        equal(&ticket.metrics().tokens, &12)?;
    }
    let mut own = batcher.session().text()?;
    equal(
        &text(&mut own, prompts[0], 12)?,
        &text(&mut session, prompts[0], 12)?,
    )?;
    equal(&own.fork().is_ok(), &!in_turns)?;
    let search = BeamOptions {
        length_penalty: 0.0,
        beams: 1,
        max_tokens: 12,
        ..BeamOptions::default()
    };
    match batcher.beam_search(prompts[0], &search) {
        Err(e) if in_turns => refusal(&e, ErrorKind::Unsupported, &["reference"]),
        beams => equal(&beams.text()?[0].text, &text(&mut session, prompts[0], 12)?),
    }
}

fn text(session: &mut Session, prompt: &str, max_tokens: usize) -> Result<String, String> {
    session
        .generate(prompt, &tokens(max_tokens))
        .text()?
        .text()
        .text()
}

/// A second model of a decoder takes memory for its own state and for nothing else, and gives it
/// back.
fn executors_share_weights(device: &Device) -> Outcome {
    let _turn = device.turn();
    let (_dir, model) = tlite_testing::tiny_model("llama", Traits::default());
    let target = Target {
        greedy: true,
        ..Target::DEVICE.with(Logits::Last)
    };
    let decoder = Decoder::load(&model.join("model.onnx"), &target).text()?;
    let backend = device.share();
    let before = device.share().stats();
    let loaded = DeviceDecoder::new(decoder, Box::new(backend), &SequenceConfig::of(48)).text()?;
    let weights = loaded.stats().bytes - before.bytes;
    let with = |bytes: u64| loaded.stats().bytes - before.bytes - bytes;
    let mut first = loaded.model().text()?;
    let own = with(weights);
    let prompt = [5, 6, 7, 8, 9];
    let mut wanted = Vec::new();
    first.forward(&prompt, &mut wanted).text()?;
    let base = loaded.stats();
    let mut second = loaded.model().text()?;
    let now = loaded.stats();
    equal(&(now.bytes - base.bytes), &own)?;
    equal(&now.compiles, &base.compiles)?;
    // What a model takes is its own arena, states and small tables; with weights it would be more.
    let [(prefill, _), (decode, _)] = first.memory();
    let planned = prefill.arena.max(decode.arena) + prefill.states;
    if own < planned || own >= planned + weights {
        return Err(format!(
            "{own} bytes for a model, {planned} planned, {weights} of weights"
        ));
    }
    // Neither sees the other's cache.
    let (mut row, mut next) = (Vec::new(), Vec::new());
    second.forward(&[100, 101], &mut row).text()?;
    first.forward(&[11], &mut next).text()?;
    second.truncate(0);
    second.forward(&prompt, &mut row).text()?;
    equal(&row, &wanted)?;
    second.forward(&[11], &mut row).text()?;
    equal(&row, &next)?;
    drop(first);
    second.truncate(5);
    second.forward(&[11], &mut row).text()?;
    equal(&row, &next)?;
    drop(second);
    let third = loaded.model().text()?;
    drop(third);
    drop(loaded);
    let after = device.share().stats();
    // The staging buffer for reads is kept.
    let kept = after.bytes - before.bytes;
    if kept > base.bytes - before.bytes - weights - own {
        return Err(format!("{kept} bytes are still held"));
    }
    Ok(())
}

/// Answers of a conversation are sampled: the same for one seed, and others for another.
fn seeds_decide(session: &mut Session, options: &GenerateOptions) -> Outcome {
    let mut sampled = Vec::new();
    for seed in [1, 1, 2] {
        let sampler = Sampler::new(SamplerConfig {
            temperature: 2.0,
            seed,
            ..SamplerConfig::default()
        });
        session.clear();
        session.set_sampler(sampler.text()?);
        let mut answer = session.generate(&[Message::user("hello")], options).text()?;
        sampled.push(answer.text().text()?);
    }
    let same = (sampled[0] == sampled[1], sampled[0] == sampled[2]);
    equal(&same, &(true, false))
}

fn sessions(place: BackendChoice) -> Outcome {
    let (_dir, folder) = speaking_model();
    let model = Model::load(&folder, &options(place)).text()?;
    equal(&model.place().backend, &place.name())?;
    let mut first = model.session().text()?;
    let base = model.stats();
    let mut second = model.session().text()?;
    if let (Some(base), Some(now)) = (base, model.stats()) {
        equal(&now.compiles, &base.compiles)?;
        equal(&(now.recordings > base.recordings), &true)?;
    }
    let whole = text(&mut first, "hello", 12)?;
    if whole.len() < 12 || !whole.bytes().all(|b| b.is_ascii_lowercase()) {
        return Err(format!("{whole:?} are not letters"));
    }
    // Another text in between, and the sessions taking turns piece by piece.
    text(&mut second, "world 12", 7)?;
    let (few, many) = (tokens(12), tokens(9));
    let mut one = first.generate("world 12", &few).text()?;
    let mut two = second.generate("hello", &many).text()?;
    let mut texts = [String::new(), String::new()];
    loop {
        let pieces = [one.next().transpose().text()?, two.next().transpose().text()?];
        if pieces.iter().all(Option::is_none) {
            break;
        }
        for (text, piece) in texts.iter_mut().zip(pieces.into_iter().flatten()) {
            text.push_str(&piece.text);
        }
    }
    equal(&[one.finish(), two.finish()], &[Some(Finish::MaxTokens); 2])?;
    drop((one, two));
    first.clear();
    equal(&texts[0].len(), &12)?;
    equal(&text(&mut first, "hello", 12)?, &whole)?;

    // A cancelled answer keeps what it fed, and the next one is what it would have been.
    let many = tokens(usize::MAX);
    let mut answer = first.generate("hello", &many).text()?;
    answer.next().transpose().text()?;
    let cancel = many.cancel.clone();
    let stopped = std::thread::spawn(move || cancel.cancel()).join();
    equal(&stopped.map_err(|_| "the thread panicked")?, &true)?;
    equal(&answer.next().is_none(), &true)?;
    equal(&answer.finish(), &Some(Finish::Cancelled))?;
    drop(answer);
    equal(&text(&mut first, "hello", 12)?, &whole)?;

    // Until the context is full, which is that of the model.
    equal(&first.context(), &64)?;
    let long = tokens(1000);
    let mut answer = first.generate("hello", &long).text()?;
    answer.text().text()?;
    equal(&answer.finish(), &Some(Finish::ContextFull))?;
    drop(answer);

    seeds_decide(&mut first, &few)?;

    // Drafts change nothing.
    let drafting = LoadOptions {
        drafts: 4,
        ..options(place)
    };
    let mut third = Model::load(&folder, &drafting).text()?.session().text()?;
    third.set_draft(Box::new(NgramDraft::default()), 4);
    let mut answer = third.generate("hello hello hello", &few).text()?;
    let guessed = answer.text().text()?;
    drop(answer);
    first.clear();
    first.set_sampler(Sampler::default());
    equal(&text(&mut first, "hello hello hello", 12)?, &guessed)
}

/// Sessions of one model in threads of their own say what they say alone.
fn in_threads(place: BackendChoice) -> Outcome {
    let (_dir, folder) = speaking_model();
    let model = Model::load(&folder, &options(place)).text()?;
    let prompts = ["hello", "world", "12", "[user]"];
    let mut wanted = Vec::new();
    for prompt in prompts {
        wanted.push(text(&mut model.session().text()?, prompt, 10)?);
    }
    let found = std::thread::scope(|scope| {
        let threads = prompts.map(|prompt| {
            let model = model.clone();
            scope.spawn(move || -> Result<String, String> {
                let mut session = model.session().text()?;
                text(&mut session, prompt, 10)
            })
        });
        threads.map(|t| t.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
    });
    for (found, wanted) in found.into_iter().zip(&wanted) {
        equal(&found?, wanted)?;
    }
    Ok(())
}

fn refused() -> Outcome {
    let (_dir, folder) = speaking_model();
    let host = || options(BackendChoice::Reference);
    let refused = |path: &Path, options: &LoadOptions, option: &str, values: &[&str]| {
        let Err(e) = Model::load(path, options) else {
            return Err(format!("loaded, expected an error of {option:?}"));
        };
        match &e {
            Error::Usage { name, .. } if name == option => tlite_testing::refusal(&e, e.kind(), values),
            _ => Err(format!(
                "expected a usage error of {option:?}, found {}",
                e.chain()
            )),
        }
    };
    refused(Path::new("no/such/folder"), &host(), "path", &["no/such/folder"])?;
    refused(&folder.join("model.onnx"), &host(), "path", &["model.onnx"])?;
    let base = host();
    let changed = [
        (
            ("context", "0"),
            LoadOptions {
                context: Some(0),
                ..base.clone()
            },
        ),
        (
            ("context", "64"),
            LoadOptions {
                context: Some(65),
                ..base.clone()
            },
        ),
        (
            ("padding", "31"),
            LoadOptions {
                padding: 31,
                ..base.clone()
            },
        ),
        (
            ("drafts", "65"),
            LoadOptions {
                drafts: 65,
                ..base.clone()
            },
        ),
        (
            ("kv", "q8"),
            LoadOptions {
                kv: KvType::Q8,
                ..base.clone()
            },
        ),
        (
            ("float", "f16"),
            LoadOptions {
                float: Some(DType::F16),
                ..base.clone()
            },
        ),
    ];
    for ((option, value), options) in changed {
        refused(&folder, &options, option, &[value])?;
    }
    let mut options = base;
    options.place.options.device = Some("x".to_owned());
    refused(&folder, &options, "device", &["x"])?;
    let empty = tempfile::tempdir().map_err(|e| e.to_string())?;
    refused(empty.path(), &host(), "path", &["tokenizer.json"])?;
    std::fs::copy(folder.join("tokenizer.json"), empty.path().join("tokenizer.json"))
        .map_err(|e| e.to_string())?;
    refused(empty.path(), &host(), "folder", &["model.onnx"])
}
