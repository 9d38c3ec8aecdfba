//! `tlite generate` and `tlite chat`: what they take beside a prompt.

use super::{fails, fails_as, path, stderr};
use std::path::Path;
use std::process::Stdio;
use tlite_testing::assert_carries;
use tlite_testing::gguf::{self, Traits};
use tlite_testing::{converted, tiny_model, tlite};

/// A prompt without a template, on the host.
fn raw_prompt(model: &Path) -> [&str; 7] {
    [
        "generate",
        path(model),
        "--raw",
        "--prompt",
        "x",
        "--backend",
        "reference",
    ]
}

/// The object that `generate --json` prints on the host, with these further options.
fn generate(model: &Path, more: &[&str]) -> serde_json::Value {
    let base = [
        "generate",
        path(model),
        "--raw",
        "--prompt",
        "hello world",
        "--backend",
        "reference",
        "--max-tokens",
        "30",
        "--temperature",
        "0",
        "--json",
    ];
    let output = tlite(&[&base[..], more].concat());
    assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn drafts_and_caches_change_no_token() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let plain = generate(&model, &[]);
    assert_eq!(plain["tokens"].as_array().unwrap().len(), 30, "{plain}");
    assert_eq!(
        (&plain["reused_tokens"], &plain["drafted_tokens"]),
        (&0.into(), &0.into())
    );
    let drafted = generate(&model, &["--draft-model", path(&model), "--draft-tokens", "3"]);
    assert_eq!(drafted["tokens"], plain["tokens"]);
    assert!(drafted["accepted_tokens"].as_u64().unwrap() > 0, "{drafted}");
    let drafted = generate(&model, &["--draft", "ngram"]);
    assert_eq!(drafted["tokens"], plain["tokens"]);

    let file = dir.path().join("prompt.cache");
    for reused in [0, plain["prompt_tokens"].as_u64().unwrap() - 1] {
        let found = generate(&model, &["--prompt-cache", path(&file)]);
        assert_eq!(found["tokens"], plain["tokens"]);
        assert_eq!(found["reused_tokens"], reused);
    }
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (_other_dir, other) = tiny_model("qwen2", Traits::default());
    let base = [
        "--raw",
        "--prompt",
        "x",
        "--backend",
        "reference",
        "--prompt-cache",
        path(&file),
    ];
    fails_as(
        &[&["generate", path(&model)], &base[..]].concat(),
        2,
        "PromptCacheDamaged",
        &["--prompt-cache", "prompt.cache"],
    );
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes[..bytes.len() - 7]).unwrap();
    fails_as(
        &[&["generate", path(&model)], &base[..]].concat(),
        2,
        "PromptCacheDamaged",
        &[
            "--prompt-cache",
            &(bytes.len() - 7).to_string(),
            &bytes.len().to_string(),
        ],
    );
    std::fs::write(&file, &bytes).unwrap();
    fails_as(
        &[&["generate", path(&other)], &base[..]].concat(),
        2,
        "PromptCacheMismatch",
        &["--prompt-cache", "prompt.cache"],
    );
    assert_eq!(
        std::fs::read(&file).unwrap(),
        bytes,
        "what was refused is left alone"
    );
}

#[test]
fn texts_end_and_keep_to_a_grammar() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let plain = generate(&model, &[]);
    let text = plain["text"].as_str().unwrap();
    let chars: Vec<char> = text.chars().collect();
    let stop: String = chars[chars.len() / 2..chars.len() / 2 + 2].iter().collect();
    let stopped = generate(&model, &["--stop", &stop]);
    assert_eq!(stopped["stop"], "stop_string");
    assert_eq!(stopped["text"], text.split(&stop).next().unwrap());

    let file = dir.path().join("answer.lark");
    std::fs::write(&file, "start: (\"hello\" | \"world\") \"!\"").unwrap();
    let kept = generate(&model, &["--grammar", path(&file)]);
    assert!(
        ["hello!", "world!"].contains(&kept["text"].as_str().unwrap()),
        "{kept}"
    );
    assert_eq!(kept["stop"], "grammar_complete");
    let schema = dir.path().join("schema.json");
    std::fs::write(&schema, "{\"enum\": [12, true]}").unwrap();
    let kept = generate(&model, &["--json-schema", path(&schema), "--draft", "ngram"]);
    assert!(["12", "true"].contains(&kept["text"].as_str().unwrap()), "{kept}");
    let base = raw_prompt(&model);
    fails(
        &[&base[..], &["--grammar", path(&schema)]].concat(),
        2,
        &["--grammar", "schema.json"],
    );
    fails(
        &[&base[..], &["--json-schema", path(&file)]].concat(),
        2,
        &["--json-schema", "answer.lark"],
    );
    for option in ["--grammar", "--json-schema", "--tools", "--draft-model"] {
        let values = [option, "absent"];
        // Tools go through a template, so not with a raw prompt.
        let base = [
            "generate",
            path(&model),
            "--prompt",
            "x",
            "--backend",
            "reference",
        ];
        let template = model.join("chat_template.jinja");
        std::fs::write(&template, "{{ messages[0].content }}{{ tools | tojson }}").unwrap();
        fails(&[&base[..], &[option, "absent"]].concat(), 2, &values);
        std::fs::remove_file(&template).unwrap();
    }
    fails(&[&base[..], &["--stop", ""]].concat(), 2, &["--stop"]);
    fails(
        &[&base[..], &["--logit-bias", "999999=1"]].concat(),
        2,
        &["--logit-bias", "999999"],
    );
}

/// What has no effect, or cannot be had, is told before anything is loaded.
#[test]
fn options_that_do_nothing_are_refused() {
    let folder = super::model_folder();
    let base = ["generate", path(folder.path()), "--raw", "--prompt", "hello"];
    let refused = |more: &[&str], values: &[&str]| {
        let args = [&base[..], more].concat();
        fails(&args, 2, values);
        assert_eq!(
            stderr(&tlite(&args))
                .lines()
                .next()
                .map(|l| l.starts_with("error: ")),
            Some(true)
        );
    };
    refused(&["--draft-tokens", "5"], &["--draft-tokens", "--draft"]);
    refused(
        &["--template-value", "messages=3"],
        &["--template-value", "messages"],
    );
    refused(
        &["--cache-dir", path(&folder.path().join("tokenizer.json"))],
        &["--cache-dir", "tokenizer.json"],
    );
    let file = folder.path().join("endless.lark");
    std::fs::write(&file, "start: start \"a\"").unwrap();
    let args = [&base[..], &["--grammar", path(&file)]].concat();
    fails(&args, 2, &["--grammar", "endless.lark"]);
    assert_eq!(stderr(&tlite(&args)).lines().count(), 1);
}

/// Keys that exceed the range of the default cache.
#[test]
fn keys_too_large_for_f16_are_an_error_that_f32_avoids() {
    let mut file = gguf::tiny("llama", Traits::default());
    for v in file.tensor("blk.1.attn_k.weight").data.chunks_exact_mut(4) {
        let large = f32::from_le_bytes(v.try_into().unwrap()) * 1e7;
        v.copy_from_slice(&large.to_le_bytes());
    }
    let (_dir, model) = converted(&file);
    let base = [
        "generate",
        path(&model),
        "--raw",
        "--prompt",
        "x",
        "--backend",
        "cpu",
        "--max-tokens",
        "4",
    ];
    for sampling in [["--temperature", "0"], ["--seed", "1"]] {
        let args = [&base[..], &sampling].concat();
        fails(&args, 1, &["logits", "--float", "f32"]);
        let output = tlite(&[&args[..], &["--float", "f32"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

#[test]
fn no_tokens_are_generated_where_none_are_asked_for() {
    let (_dir, model) = tiny_model("llama", Traits::default());
    let output = tlite(&[&raw_prompt(&model)[..], &["--max-tokens", "0"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    assert_carries(stderr(&output), &["0"]);
}

/// `--context` is that of the model; a draft model that was made for fewer tokens guesses as far as
/// it can.
#[test]
fn a_draft_model_may_have_a_shorter_context() {
    let (_dir, model) = tiny_model("llama", Traits::default());
    let (_short, short) = tiny_model("llama", Traits::default());
    let file = short.join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    config["max_position_embeddings"] = 24.into();
    std::fs::write(&file, config.to_string()).unwrap();
    let plain = generate(&model, &["--context", "48"]);
    let drafted = generate(&model, &["--context", "48", "--draft-model", path(&short)]);
    assert_eq!(drafted["tokens"], plain["tokens"]);
    assert!(drafted["accepted_tokens"].as_u64().unwrap() > 0, "{drafted}");
    // What goes wrong with it is said of it.
    std::fs::write(short.join("model.onnx"), "no graph").unwrap();
    let values = ["--draft-model", path(&short), "model.onnx"];
    let base = raw_prompt(&model);
    fails(
        &[&base[..], &["--draft-model", path(&short)]].concat(),
        1,
        &values,
    );
}

#[test]
fn drafts_need_the_same_vocabulary() {
    let (_dir, model) = tiny_model("llama", Traits::default());
    let other = super::model_folder();
    std::fs::write(other.path().join("model.onnx"), "never read").unwrap();
    let base = raw_prompt(&model);
    fails(
        &[&base[..], &["--draft-model", path(other.path())]].concat(),
        2,
        &["--draft-model", path(other.path())],
    );
    fails(
        &[&base[..], &["--draft-model", "a", "--draft", "ngram"]].concat(),
        2,
        &["--draft-model", "--draft"],
    );
}

/// What tells an answer's place: before a model is loaded.
#[test]
fn caches_that_cannot_be_written_are_refused_at_once() {
    let folder = super::model_folder();
    let base = [
        "generate",
        path(folder.path()),
        "--raw",
        "--prompt",
        "hello",
        "--prompt-cache",
    ];
    let absent = folder.path().join("absent").join("cache");
    let refused = |file: &str, values: &[&str]| {
        let values = [&["--prompt-cache"], values].concat();
        // The folder has no model; that would be the next thing to be told.
        fails(&[&base[..], &[file]].concat(), 2, &values);
        fails(&["chat", path(folder.path()), "--prompt-cache", file], 2, &values);
    };
    refused(path(&absent), &["absent"]);
    refused(path(folder.path()), &[path(folder.path())]);
    #[cfg(target_os = "linux")]
    refused("/proc/cache", &["/proc/cache"]);
    fails(&[&base[..], &["new.cache"]].concat(), 2, &["model.onnx"]);
}

/// Values of the template reach it, and tools are JSON there.
#[test]
fn templates_take_tools_and_values() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let template = "{{ messages[-1].content }}{% if mode is defined %}{{ mode }}{% endif %}{% if tools %}{{ tools | tojson }}{% endif %}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let tools = dir.path().join("tools.json");
    std::fs::write(&tools, "[{\"name\": \"f\"}]").unwrap();
    let count = |prompt: &str, more: &[&str]| {
        let base = [
            "generate",
            path(&model),
            "--prompt",
            prompt,
            "--backend",
            "reference",
            "--max-tokens",
            "1",
            "--json",
        ];
        let output = tlite(&[&base[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["prompt_tokens"].as_u64().unwrap()
    };
    let with = count("x", &["--tools", path(&tools), "--template-value", "mode=a b"]);
    assert_eq!(with, count("xa b[{\"name\": \"f\"}]", &[]));
    assert!(with > count("x", &[]));
    let base = raw_prompt(&model);
    fails(
        &[&base[..], &["--tools", path(&tools)]].concat(),
        2,
        &["--tools", "--raw"],
    );
    std::fs::write(&tools, "{}").unwrap();
    let base = ["chat", path(&model), "--tools", path(&tools)];
    fails(&base, 2, &["--tools", "JSON"]);
}

/// Starts the command, interrupts it after a time and gives what it left.
#[cfg(target_os = "linux")]
pub fn interrupted(args: &[&str], wait: std::time::Duration) -> std::process::Output {
    let child = tlite_testing::command()
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(wait);
    super::send_interrupt(&child);
    child.wait_with_output().unwrap()
}

/// Sends Ctrl-C to a command of hours once it has something to show.
#[cfg(target_os = "linux")]
pub fn interrupted_at_work(args: &[&str]) -> std::process::Output {
    // Loading takes some milliseconds; a machine that is busy gets more time.
    let mut wait = std::time::Duration::from_secs(1);
    loop {
        let output = interrupted(args, wait);
        if !output.stdout.is_empty() || wait.as_secs() > 60 {
            return output;
        }
        wait *= 4;
    }
}

/// Ctrl-C in the middle of measurements ends them; what was measured is shown.
#[cfg(target_os = "linux")]
#[test]
fn interrupted_measurements_are_shown() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let bench = [
        "bench",
        path(&model),
        "--backend",
        "reference",
        "--prefill",
        "1",
        "--decode",
        "1",
        "--repeat",
        "1000000000",
        "--json",
    ];
    let text = dir.path().join("text");
    std::fs::write(&text, "hello world ".repeat(200_000)).unwrap();
    let perplexity = [
        "perplexity",
        path(&model),
        "--text",
        path(&text),
        "--backend",
        "reference",
        "--context",
        "16",
        "--json",
    ];
    for args in [&bench[..], &perplexity] {
        let output = interrupted_at_work(args);
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["interrupted"], true, "{json}");
        let measured = json["results"][0]["min"].as_f64().or(json["perplexity"].as_f64());
        assert!(measured.unwrap() > 0.0, "{json}");
    }
}

/// Ctrl-C in the middle of an answer ends it; what came is shown.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_answer_is_shown() {
    use std::io::Read;
    let (_dir, model) = tiny_model("llama", Traits::default());
    let mut child = tlite_testing::command()
        .args([
            "generate",
            path(&model),
            "--raw",
            "--prompt",
            "hello",
            "--backend",
            "reference",
        ])
        // It goes on for hours: both tokens that end a text are forbidden.
        .args([
            "--max-tokens",
            "1000000000",
            "--context-shift",
            "--logit-bias",
            "0=-inf,2=-inf",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0; 1];
    out.read_exact(&mut first).unwrap();
    super::send_interrupt(&child);
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert_eq!(rest.last(), Some(&b'\n'), "the line is ended");
    assert!(!stderr(&output).contains("error:"), "{}", stderr(&output));
}
