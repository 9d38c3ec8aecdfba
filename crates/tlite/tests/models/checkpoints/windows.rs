//! Caches that keep a window of the latest tokens, on devices against the interpreter, which keeps
//! all rows.

use super::{Case, DEVICE, Family, Outcome, close, decoder, from_folder};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tlite::inspect::{Request, inspect};
use tlite_testing::suite::Suite;
use tlite_testing::{self, Device, Text, Tier, Traffic, carries};
use transformer_lite::unstable::backend::DeviceKind;
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::graph::onnx::ImportOptions;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::graph::text;
use transformer_lite::unstable::llm::engine::{
    DecoderBuilder, DeviceModel, HostModel, Logits, SequenceConfig,
};
use transformer_lite::unstable::llm::{
    DecodeOptions, Generator, LanguageModel, NgramDraft, Sampler, SamplerConfig, Speculation, prompt_cache,
};
use transformer_lite::unstable::num;
use transformer_lite::unstable::plan::text as plan_text;
use transformer_lite::unstable::tensor::DType;

/// Whether a layer has a window.
type Windowed = fn(usize) -> bool;

/// Tokens of one prefill run.
const CHUNK: usize = 16;
/// Room for more tokens than any trial feeds but the longest.
const CONTEXT: usize = 200;
/// What the longest trials feed.
const LONG: usize = 4096;
const LONGEST: &str = "4000_tokens";

/// Families with their windows and the layers that have them. All layers of the last are as those
/// of Mistral.
const MODELS: [(&str, usize, Windowed); 3] = [
    ("gemma2", 5, |layer| layer % 2 == 0),
    ("gemma3", 5, |layer| layer % 6 != 5),
    ("qwen2", 7, |_| true),
];

pub fn trials(suite: &mut Suite, all: &[Arc<Case>], devices: &[Device]) {
    let find = |name: &str| all.iter().find(|c| c.family.name == name).cloned();
    for (name, window, windowed) in MODELS {
        let case = find(name).unwrap_or_else(|| panic!("no family {name}"));
        let this = case.clone();
        suite.add(format!("windows/{name}/bytes"), move || {
            exact_bytes(&this.family, window, windowed)
        });
        for d in devices {
            let mut add = |what: &str, run: fn(&Family, usize, &Device) -> Outcome| {
                let (this, device) = (case.clone(), d.clone());
                let tier = match what {
                    LONGEST => d.tier_of_long_trials(),
                    _ => Tier::Quick,
                };
                let name = format!("windows/{name}/{what}@{}", d.label(devices));
                suite.add_in(tier, name, move || {
                    let _turn = device.turn();
                    run(&this.family, window, &device)
                });
            };
            add("steps", steps);
            add("cuts", cuts);
            add("prompt_cache", prompt_caches);
            if name == "gemma2" {
                add("steps_of_8_bits", steps_of_8_bits);
                add("drafts", drafts);
                add(LONGEST, many_tokens);
            }
            if name == "qwen2" {
                add("split", split);
            }
            add("traffic", traffic);
        }
    }
}

/// The model with this window in the layers that have one.
fn model(family: &Family, window: usize) -> Result<(tempfile::TempDir, PathBuf), String> {
    let mut folder = family.folder();
    folder.config["sliding_window"] = json!(window);
    folder.config["max_position_embeddings"] = json!(LONG);
    if family.architecture == "qwen2" {
        folder.config["use_sliding_window"] = json!(true);
        folder.config["layer_types"] = json!(["sliding_attention", "sliding_attention"]);
    }
    from_folder(&folder)
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count)
        .map(|i| u32::try_from((i * 7 + i * i * 3 + i / 5) % 32).unwrap())
        .collect()
}

fn lengths(context: usize) -> SequenceConfig {
    SequenceConfig {
        chunk: CHUNK,
        ..SequenceConfig::of(context)
    }
}

fn q8() -> Target {
    Target {
        kv_q8: true,
        ..Target::DEVICE
    }
}

fn on(
    device: &Device,
    model: &Path,
    target: &Target,
    lengths: &SequenceConfig,
) -> Result<DeviceModel, String> {
    let logits = if lengths.verify_tokens > 1 {
        Logits::Tail
    } else {
        Logits::Last
    };
    // As GPUs store them.
    let builder = DecoderBuilder::new(&target.with(logits)).stored_in(DType::F16);
    let path = model.join("model.onnx");
    let decoder = builder.load(&path, ImportOptions::default()).text()?;
    DeviceModel::new(decoder, Box::new(device.share()), lengths).text()
}

/// The same as on a GPU with its own memory.
fn as_gpu(
    device: &Device,
    model: &Path,
    target: &Target,
    lengths: &SequenceConfig,
) -> Result<DeviceModel, String> {
    let decoder = decoder(model, target, Logits::Last)?;
    let backend = device.share().with_caps(|c| {
        c.kind = DeviceKind::Discrete;
        c.profile.dedicated_memory = true;
    });
    DeviceModel::new(decoder, Box::new(backend), lengths).text()
}

/// Logits after each token, of the interpreter with all rows in its caches.
fn host_rows(model: &Path, target: &Target, tokens: &[u32]) -> Result<Vec<Vec<f32>>, String> {
    let mut host = HostModel::new(decoder(model, target, Logits::All)?, tokens.len()).text()?;
    let all = host.forward_all(tokens).text()?;
    Ok(all.chunks(host.vocab()).map(<[f32]>::to_vec).collect())
}

/// Bytes of a cache for `rows` rows, in halves.
fn bytes(family: &Family, rows: usize) -> u64 {
    let dim = match family.config.get("head_dim").and_then(serde_json::Value::as_u64) {
        Some(dim) => usize::try_from(dim).unwrap(),
        None => family.size("hidden_size") / family.size("num_attention_heads"),
    };
    (family.size("num_key_value_heads") * dim * rows * 2) as u64
}

/// With a context of 4096 a cache has room for as many rows, or for the window and one prefill
/// chunk; and is shown so.
fn exact_bytes(family: &Family, window: usize, windowed: Windowed) -> Outcome {
    let (_dir, model) = model(family, window)?;
    let decoder = decoder(&model, &Target::DEVICE, Logits::Last)?;
    let lengths = SequenceConfig::of(LONG);
    let ring = window + lengths.chunk;
    let rows = |layer| if windowed(layer) { ring } else { LONG };
    let layers = family.size("num_hidden_layers");
    let wanted: Vec<u64> = (0..layers)
        .flat_map(|layer| [bytes(family, rows(layer)); 2])
        .collect();
    for plan in decoder.plans(&tlite_testing::fake_caps(), &lengths).text()? {
        let found: Vec<u64> = plan.states.iter().map(|s| s.bytes).collect();
        if found != wanted || plan.memory.states != wanted.iter().sum::<u64>() {
            return Err(format!("caches of {found:?} bytes, expected {wanted:?}"));
        }
        let text = plan_text::print(&plan, decoder.graph());
        let values = [wanted[0], ring as u64, window as u64].map(|n| n.to_string());
        if !text.lines().any(|l| values.iter().all(|v| carries(l, v))) {
            return Err(format!("no line with {values:?} in\n{text}"));
        }
    }
    let text = text::print(decoder.graph()).text()?;
    // Names of layers hold numbers, too: the window stands at the end of a state's line.
    let of_window = |l: &&str| {
        let end = l.rsplit(", ").next().unwrap_or_default();
        l.starts_with("state ") && carries(end, &window.to_string())
    };
    let windows = 2 * (0..layers).filter(|l| windowed(*l)).count();
    if text.lines().filter(of_window).count() != windows {
        return Err(format!(
            "expected {windows} lines with a window of {window} in\n{text}"
        ));
    }
    let request = Request {
        context: Some(LONG),
        ..Request::default()
    };
    let report = inspect(&model.join("model.onnx"), &request).text()?;
    let kept = |s: &&tlite::inspect::StateReport| {
        (s.rows, s.window) == (num::signed(ring), Some(num::signed(window)))
    };
    if report.states_bytes != wanted.iter().sum::<u64>()
        || report.states.iter().filter(kept).count() != windows
    {
        return Err(format!(
            "inspect says {} bytes, {:?}",
            report.states_bytes, report.states
        ));
    }
    Ok(())
}

/// Prefill in chunks across the wrap, then single tokens, each against the row of the reference.
fn compare(
    found: &mut DeviceModel,
    rows: &[Vec<f32>],
    tokens: &[u32],
    prefill: usize,
    bound: f32,
) -> Outcome {
    let mut logits = Vec::new();
    let done = found.len();
    found.forward(&tokens[done..prefill], &mut logits).text()?;
    close(
        &format!("prefill of {prefill}"),
        &rows[prefill - 1],
        &logits,
        bound,
    )?;
    for (i, t) in tokens.iter().enumerate().skip(prefill) {
        found.forward(&[*t], &mut logits).text()?;
        close(&format!("token {i}"), &rows[i], &logits, bound)?;
    }
    Ok(())
}

fn steps(family: &Family, window: usize, device: &Device) -> Outcome {
    let (_dir, model) = model(family, window)?;
    let tokens = tokens(110);
    let rows = host_rows(&model, &Target::HOST, &tokens)?;
    // A chunk that begins and ends anywhere in the ring, a prefill within the window, and one that
    // ends with it.
    for prefill in [60, 3, window + CHUNK, 67] {
        let mut found = on(device, &model, &Target::DEVICE, &lengths(CONTEXT))?;
        compare(&mut found, &rows, &tokens[..prefill + 43], prefill, DEVICE)?;
    }
    let mut found = as_gpu(device, &model, &Target::DEVICE, &lengths(CONTEXT))?;
    compare(&mut found, &rows, &tokens, 60, DEVICE)?;
    // Pieces of all lengths, one of them as long as a chunk.
    let mut found = on(device, &model, &Target::DEVICE, &lengths(CONTEXT))?;
    let (mut at, mut logits) = (0, Vec::new());
    for n in [2, 15, 16, 1, 3, 16, 7, 1, 1, 13, 31] {
        found.forward(&tokens[at..at + n], &mut logits).text()?;
        at += n;
        close(&format!("{n} tokens up to {at}"), &rows[at - 1], &logits, DEVICE)?;
    }
    Ok(())
}

fn steps_of_8_bits(family: &Family, window: usize, device: &Device) -> Outcome {
    let (_dir, model) = model(family, window)?;
    let tokens = tokens(110);
    let rows = host_rows(&model, &q8(), &tokens)?;
    let mut found = on(device, &model, &q8(), &lengths(CONTEXT))?;
    let floats = on(device, &model, &Target::DEVICE, &lengths(CONTEXT))?;
    // Heads of 8 elements: 12 bytes in place of 16.
    let states = |m: &DeviceModel| m.memory()[0].0.states;
    if states(&found) * 4 != states(&floats) * 3 {
        return Err(format!("{} bytes of 8-bit caches", states(&found)));
    }
    compare(&mut found, &rows, &tokens, 60, DEVICE)?;
    let mut found = as_gpu(device, &model, &q8(), &lengths(CONTEXT))?;
    compare(&mut found, &rows, &tokens, 60, DEVICE)
}

/// One query over a window that is split among work-groups, in a ring.
fn split(family: &Family, _: usize, device: &Device) -> Outcome {
    let (_dir, model) = model(family, 300)?;
    let tokens = tokens(800);
    let rows = host_rows(&model, &Target::HOST, &tokens)?;
    let lengths = SequenceConfig {
        chunk: 64,
        ..SequenceConfig::of(1000)
    };
    for open in [on, as_gpu] {
        let mut found = open(device, &model, &Target::DEVICE, &lengths)?;
        if found.memory()[0].0.states != 4 * bytes(family, 364) {
            return Err(format!("{} bytes of caches", found.memory()[0].0.states));
        }
        compare(&mut found, &rows, &tokens, 755, DEVICE)?;
    }
    Ok(())
}

/// After a cut that the ring bears the rest goes on, after any other the cache is empty; either way
/// what follows is right.
fn cuts(family: &Family, window: usize, device: &Device) -> Outcome {
    let (_dir, model) = model(family, window)?;
    let tokens = tokens(140);
    let rows = host_rows(&model, &Target::HOST, &tokens)?;
    let mut found = on(device, &model, &Target::DEVICE, &lengths(CONTEXT))?;
    let mut logits = Vec::new();
    found.forward(&tokens[..100], &mut logits).text()?;
    // A token behind n others needs rows from n + 1 - window on; after 101 tokens those before 101
    // - window - CHUNK are gone.
    let least = 101 - CHUNK - 1;
    for (cut, kept) in [
        (120, 100),
        (99, 99),
        (least, least),
        (least, least),
        (least - 1, 0),
    ] {
        let found_kept = found.truncate(cut);
        if (found_kept, found.len()) != (kept, kept) {
            return Err(format!(
                "{found_kept} tokens left, {kept} expected after a cut to {cut}"
            ));
        }
        if kept > 0 {
            found.forward(&tokens[kept..=kept], &mut logits).text()?;
            close(&format!("a cut to {kept}"), &rows[kept], &logits, DEVICE)?;
            found.truncate(kept);
        }
    }
    compare(&mut found, &rows, &tokens[..110], 90, DEVICE)?;
    // Cut twice: what the longer text overwrote stays gone.
    let mut again = |feed: usize, cut: usize, kept: usize| -> Outcome {
        let done = found.len();
        found.forward(&tokens[done..feed], &mut logits).text()?;
        close(&format!("up to {feed}"), &rows[feed - 1], &logits, DEVICE)?;
        match found.truncate(cut) {
            n if n == kept => Ok(()),
            n => Err(format!(
                "{n} tokens left, {kept} expected after {feed} and a cut to {cut}"
            )),
        }
    };
    again(130, 115, 115)?;
    again(118, 114, 114 * usize::from(114 >= 130 - CHUNK - 1))?;
    again(140, 100, 0)?;
    // Behind an emptied cache nothing is gone.
    again(CHUNK, 2, 2)?;
    again(60, 59, 59)?;
    again(61, 61, 61)
}

fn prompt_caches(family: &Family, window: usize, device: &Device) -> Outcome {
    let (_dir, model) = model(family, window)?;
    let tokens = tokens(110);
    let rows = host_rows(&model, &Target::HOST, &tokens)?;
    let dir = tempfile::tempdir().text()?;
    let path = dir.path().join("cache");
    let of = |context| on(device, &model, &Target::DEVICE, &lengths(context));
    let mut saved = of(CONTEXT)?;
    let mut logits = Vec::new();
    saved.forward(&tokens[..80], &mut logits).text()?;
    saved.truncate(78);
    prompt_cache::save(&path, &mut saved, &tokens[..78]).text()?;
    let size = std::fs::metadata(&path).text()?.len();
    for context in [CONTEXT, CONTEXT + 50] {
        let mut found = of(context)?;
        found.forward(&tokens[40..60], &mut logits).text()?;
        if prompt_cache::load(&path, &mut found).text()? != tokens[..78] {
            return Err("other tokens came back".to_owned());
        }
        compare(&mut found, &rows, &tokens, 95, DEVICE)?;
        // What was saved bears as large a cut as before, and no more.
        if prompt_cache::load(&path, &mut found).text()?.len() != 78 || found.truncate(80 - CHUNK - 1) == 0 {
            return Err("rows were lost".to_owned());
        }
        compare(&mut found, &rows, &tokens[..70], 66, DEVICE)?;
        if found.truncate(20) != 0 {
            return Err("rows came back".to_owned());
        }
    }
    // Without a wrap, into a cache with room for all, and back.
    saved.truncate(0);
    saved.forward(&tokens[..12], &mut logits).text()?;
    prompt_cache::save(&path, &mut saved, &tokens[..12]).text()?;
    let mut small = of(18)?;
    if prompt_cache::load(&path, &mut small).text()?.len() != 12 || small.truncate(4) != 4 {
        return Err("a cache without a ring lost rows".to_owned());
    }
    compare(&mut small, &rows, &tokens[..18], 9, DEVICE)?;
    prompt_cache::save(&path, &mut small, &tokens[..18]).text()?;
    let mut found = of(CONTEXT)?;
    prompt_cache::load(&path, &mut found).text()?;
    compare(&mut found, &rows, &tokens[..60], 40, DEVICE)?;
    // More tokens than there is room for, of which the last rows alone are kept.
    prompt_cache::save(&path, &mut found, &tokens[..60]).text()?;
    let Err(error) = prompt_cache::load(&path, &mut small) else {
        return Err("a cache of 60 tokens in a context of 18 is taken".to_owned());
    };
    tlite_testing::refusal(&error, ErrorKind::PromptCacheDamaged, &["60", "18"])?;
    if small.len() != 18 {
        return Err("a cache that is refused was filled".to_owned());
    }
    // Rows of windows do not grow with the tokens.
    let layers = family.size("num_hidden_layers");
    let all = 2 * layers as u64 * bytes(family, 78);
    if size >= all + 78 * 4 {
        return Err(format!("{size} bytes for rows of {all}"));
    }
    Ok(())
}

/// Guesses that are wrong are cut off; the text is that of single steps, also where it is fed again
/// from the start.
fn drafts(family: &Family, window: usize, device: &Device) -> Outcome {
    let (_dir, model) = model(family, window)?;
    let prompt = tokens(50);
    let generate = |rows: usize, most: usize| -> Result<(Vec<u32>, usize), String> {
        let lengths = SequenceConfig {
            verify_tokens: rows,
            ..lengths(CONTEXT)
        };
        let mut model = on(device, &model, &Target::DEVICE, &lengths)?;
        let config = SamplerConfig {
            temperature: 0.0,
            ..SamplerConfig::default()
        };
        let mut sampler = Sampler::new(config).text()?;
        let options = DecodeOptions {
            max_tokens: 60,
            ..DecodeOptions::default()
        };
        let draft = NgramDraft {
            longest: 2,
            shortest: 1,
        };
        let mut draft = Speculation::fixed(Box::new(draft), most);
        let mut generator = Generator::new(&mut model, &mut sampler, &prompt, options).text()?;
        if most > 0 {
            generator = generator.speculating(&mut draft);
        }
        let mut text = Vec::new();
        for token in generator.by_ref() {
            text.push(token.text()?.id);
        }
        Ok((text, generator.metrics().drafted))
    };
    let (plain, _) = generate(0, 0)?;
    let (drafted, guesses) = generate(8, 7)?;
    if plain != drafted || plain.len() != 60 || guesses == 0 {
        return Err(format!("{guesses} guesses: {plain:?}, with drafts {drafted:?}"));
    }
    Ok(())
}

/// Device memory and recordings are the same before and after 4000 single tokens, and the last of
/// these sees what it would see of a prefill.
fn many_tokens(family: &Family, window: usize, device: &Device) -> Outcome {
    let (_dir, model) = model(family, window)?;
    let mut found = on(device, &model, &Target::DEVICE, &SequenceConfig::of(LONG))?;
    let tokens = tokens(4010);
    let mut logits = Vec::new();
    found.forward(&tokens[..9], &mut logits).text()?;
    found.forward(&tokens[9..10], &mut logits).text()?;
    let before = found.stats();
    for t in &tokens[10..] {
        found.forward(&[*t], &mut logits).text()?;
    }
    let after = found.stats();
    let counters =
        |s: &transformer_lite::unstable::backend::Stats| (s.allocations, s.bytes, s.compiles, s.recordings);
    if counters(&before) != counters(&after) || after.submits != before.submits + 4000 {
        return Err(format!("{before:?}, after 4000 tokens {after:?}"));
    }
    let stepped = logits.clone();
    found.truncate(0);
    found.forward(&tokens, &mut logits).text()?;
    close("4000 steps against prefill", &logits, &stepped, DEVICE)
}

/// Over 100 steps nothing is copied between results and caches: up go a token, its position and the
/// live values, down comes the next token.
fn traffic(family: &Family, window: usize, device: &Device) -> Outcome {
    let (_dir, model) = model(family, window)?;
    let target = Target {
        greedy: true,
        ..Target::DEVICE
    };
    let decoder = decoder(&model, &target, Logits::Last)?;
    let (copies, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(Traffic::default()));
    let backend = device
        .share()
        .counting_copies(copies.clone())
        .counting_bytes(bytes.clone());
    let live = decoder.plans(&device.caps, &lengths(CONTEXT)).text()?[1].live_bytes();
    let mut model = DeviceModel::new(decoder, Box::new(backend), &lengths(CONTEXT)).text()?;
    let mut next = model.most_likely(&tokens(40)).text()?;
    bytes.take();
    let mut tables = Vec::new();
    for past in 40..140u64 {
        next = model.most_likely(&[next]).text()?;
        // Elements of 4 bytes, in pairs: token and position; and the id of the next token.
        let (up, down) = (8 + 8, 4);
        let (written, read) = bytes.take();
        tables.push(written.saturating_sub(up));
        if read != down {
            return Err(format!("token {past}: {read} bytes down, expected {down}"));
        }
    }
    // What is left is the table of live values, which was rounded up to 16 bytes.
    if tables.iter().any(|n| *n != tables[0]) || tables[0].next_multiple_of(16) != live {
        return Err(format!(
            "tables of {live} bytes, and {tables:?} bytes beyond the inputs"
        ));
    }
    match copies.load(Ordering::Relaxed) {
        0 => Ok(()),
        n => Err(format!("{n} copies or fills in the recordings")),
    }
}
