//! Chat templates of many models against what Python's transformers renders.
//!
//! `tests/data/templates` holds the chats, a few templates and, made by its `make.py`, what comes
//! of them. The other templates lie in the folder that `TLITE_TEST_MODELS` names, as
//! `tools/fetch_model.py` makes it. Without the variable one ignored trial says so, which fails
//! when `REQUIRE_BACKENDS` is set.

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tlite_testing::suite::Suite;
use tlite_testing::{Outcome, Text};
use transformer_lite::Cancel;
use transformer_lite::unstable::llm::{ChatTemplate, ModelFolder, Raised};
use transformer_lite_convert::gguf::Gguf;

/// The template whose loop over tools Python refuses without tools; here it is empty.
const LOOPS_OVER_NONE: &str = "file:NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja";
const OVER_NONE: &str = "'NoneType' object is not iterable";

pub fn trials(suite: &mut Suite) {
    let models = std::env::var_os("TLITE_TEST_MODELS").map(PathBuf::from);
    if models.is_none() {
        suite.not_set("TLITE_TEST_MODELS names no folder with chat templates");
    }
    let chats = Arc::new(chats());
    let Value::Object(expected) = data("expected.json") else {
        panic!("expected.json holds no object");
    };
    for (place, wanted) in expected {
        let models = match (place.starts_with("data:"), &models) {
            (true, _) => None,
            (false, Some(models)) => Some(models.clone()),
            (false, None) => continue,
        };
        let chats = chats.clone();
        suite.add(place.clone(), move || {
            let lenient = place == LOOPS_OVER_NONE;
            renders(&template(&place, models.as_deref())?, &chats, &wanted, lenient)
        });
    }
}

fn data(name: &str) -> Value {
    let path = folder().join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates")
}

/// The chats, their tools filled in.
fn chats() -> Value {
    let (mut chats, tools) = (data("chats.json"), data("tools.json"));
    for chat in chats.as_object_mut().unwrap().values_mut() {
        if let Some(place) = chat.get_mut("tools") {
            *place = tools.clone();
        }
    }
    chats
}

/// The text of a template by its place, as `make.py` writes it.
fn template(place: &str, models: Option<&Path>) -> Result<String, String> {
    let (kind, name) = place.split_once(':').ok_or("no place")?;
    let models = models.unwrap_or(Path::new(""));
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
    match kind {
        "data" => read(&folder().join(name)),
        "file" => read(&models.join("chat-templates").join(name)),
        "gguf" => {
            let file = Gguf::open(&models.join("vocabularies").join(format!("{name}.gguf"))).text()?;
            let text = file.opt_str("tokenizer.chat_template").text()?;
            text.map(str::to_owned).ok_or_else(|| "no template".to_owned())
        }
        // A string of C that JSON reads, too.
        "test" => {
            let source = read(&models.join("chat-templates/test-chat-template.cpp"))?;
            let at = source
                .find(&format!("/* .name= */ \"{name}\","))
                .ok_or("no such name")?;
            let (_, rest) = source[at..]
                .split_once("/* .template_str= */ ")
                .ok_or("no template there")?;
            let (line, _) = rest.split_once(",\n").ok_or("no end")?;
            serde_json::from_str(line).text()
        }
        _ => Err(format!("no kind {kind}")),
    }
}

/// A text in which each date stands as it is today.
fn dated(text: &str) -> Result<String, String> {
    let mut parts = text.split('\u{1}');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (format, rest) = part.split_once('\u{2}').ok_or("a date without end")?;
        let date = std::process::Command::new("date")
            .arg("-u")
            .arg(format!("+{format}"))
            .output()
            .text()?;
        out += String::from_utf8(date.stdout).text()?.trim_end_matches('\n');
        out += rest;
    }
    Ok(out)
}

fn renders(template: &str, chats: &Value, expected: &Value, lenient: bool) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    std::fs::write(dir.path().join("chat_template.jinja"), template).text()?;
    let config = json!({"bos_token": "<s>", "eos_token": "</s>"}).to_string();
    std::fs::write(dir.path().join("tokenizer_config.json"), config).text()?;
    let folder = ModelFolder::open(dir.path()).text()?;
    let mut wrong = Vec::new();
    for (name, chat) in chats.as_object().ok_or("no chats")? {
        let mut values: Map<String, Value> = chat.as_object().ok_or("no chat")?.clone();
        values.insert("date_string".to_owned(), json!("26 Jul 2024"));
        let messages = values.remove("messages").ok_or("no messages")?;
        let prompt = values.remove("add_generation_prompt") != Some(json!(false));
        let template = ChatTemplate::load(&folder).text()?;
        let found = template.render(
            messages.as_array().ok_or("no list")?,
            &values,
            prompt,
            &Cancel::default(),
        );
        let wanted = &expected[name];
        let (text, error) = (wanted["text"].as_str(), wanted["error"].as_str());
        match (found, text, error) {
            (Ok(found), Some(text), _) if found == dated(text)? => {}
            (Ok(found), ..)
                if lenient && wanted["refused"] == OVER_NONE && found.contains("<tools>  </tools>") => {}
            (Ok(found), ..) => wrong.push(format!("{name}: expected {wanted}\n  found {found:?}")),
            (Err(e), None, Some(error)) => {
                let raised = std::error::Error::source(&e).and_then(|e| e.downcast_ref::<Raised>());
                if raised.is_none_or(|r| r.0 != error) || !e.to_string().contains(error) {
                    wrong.push(format!("{name}: expected {error:?}, found {}", e.chain()));
                }
            }
            (Err(_), None, None) => {}
            (Err(e), ..) => wrong.push(format!("{name}: expected {wanted}, found {}", e.chain())),
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}
