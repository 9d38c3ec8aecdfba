//! Conversations in files.

use crate::cli::options::read_text;
use serde_json::{Value, json};
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::write_whole;
use transformer_lite::unstable::llm::Message;

/// Larger files are refused.
const MAX_BYTES: u64 = 64 << 20;

/// A saved conversation.
///
/// As JSON: `{"model": NAME, "messages": [{"role": ROLE, "content": TEXT}, ...]}`.
#[derive(Debug, PartialEq)]
pub struct Saved {
    /// The name of the model that answered.
    pub model: Option<String>,
    /// System prompt, questions and answers.
    pub messages: Vec<Message>,
}

impl Saved {
    /// Writes the file `path`, whole or not at all. A usage error if it exists and is not a saved
    /// conversation.
    pub fn write(&self, path: &Path) -> Result<()> {
        if path.exists() && Self::read(path).is_err() {
            let what = "exists and is not a saved conversation; choose another name";
            return Err(Error::usage(path.display().to_string(), what));
        }
        let value = json!({"model": self.model, "messages": self.messages});
        write_whole(path, |out| {
            serde_json::to_writer_pretty(&mut *out, &value)?;
            out.write_all(b"\n")
        })
    }

    /// Reads the file `path`, an object as above or only its list of messages. Usage errors: the
    /// file does not exist or has another form.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |what: String| Error::usage(path.display().to_string(), what);
        if std::fs::metadata(path).is_ok_and(|file| file.len() > MAX_BYTES) {
            return Err(wrong("is too large for a saved conversation".to_owned()));
        }
        let value: Value = serde_json::from_str(&read_text("/load", path)?)
            .map_err(|e| wrong(format!("is not a saved conversation: {e}")))?;
        let (model, messages) = match value {
            Value::Array(list) => (None, Some(list)),
            Value::Object(mut map) => {
                let model = map.remove("model").and_then(|m| m.as_str().map(str::to_owned));
                let list = match map.remove("messages") {
                    Some(Value::Array(list)) => Some(list),
                    _ => None,
                };
                (model, list)
            }
            _ => (None, None),
        };
        let messages =
            messages.ok_or_else(|| wrong("expected an object with a list \"messages\"".to_owned()))?;
        let messages = messages.into_iter().enumerate().map(|(at, value)| {
            let wrong = || {
                wrong(format!(
                    "message {}: expected \"role\" and \"content\", both texts",
                    at + 1
                ))
            };
            message(value).ok_or_else(wrong)
        });
        Ok(Self {
            model,
            messages: messages.collect::<Result<_>>()?,
        })
    }
}

/// The message in `value`, with all its fields.
fn message(value: Value) -> Option<Message> {
    let Value::Object(mut map) = value else {
        return None;
    };
    let Some(Value::String(role)) = map.remove("role") else {
        return None;
    };
    let mut message = match map.get("content") {
        Some(Value::String(text)) => Message::new(role, text.clone()),
        // A message that only calls tools has no text.
        Some(Value::Null) if map.contains_key("tool_calls") => Message::new(role, ""),
        _ => return None,
    };
    if map.get("content").is_some_and(Value::is_string) {
        map.remove("content");
    }
    message.extra = map;
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use transformer_lite::unstable::error::ErrorKind;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chat.json");
        let saved = Saved {
            model: Some("m".to_owned()),
            messages: vec![
                Message::system("be kind"),
                Message::user("日本\n\u{1b}[31m \"x\""),
                Message::assistant("ok"),
                Message::tool("f", "{}"),
            ],
        };
        for _ in 0..2 {
            saved.write(&path).unwrap();
            assert_eq!(Saved::read(&path).unwrap(), saved);
        }
        let others = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(others, 1, "no temporary file is left");
        std::fs::write(&path, r#"[{"role": "user", "content": "a"}]"#).unwrap();
        let read = Saved::read(&path).unwrap();
        assert_eq!((read.model, read.messages), (None, vec![Message::user("a")]));
    }

    #[test]
    fn other_files_are_neither_read_nor_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        let saved = Saved {
            model: None,
            messages: vec![Message::user("a")],
        };
        for text in [
            "dear diary",
            "{}",
            "3",
            "{\"messages\": 3}",
            "[{\"role\": \"user\"}]",
            "[{\"role\": 3, \"content\": \"\"}]",
            "[\"a\"]",
            "",
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Saved::read(&path).unwrap_err().kind(), ErrorKind::Usage, "{text}");
            assert_eq!(saved.write(&path).unwrap_err().kind(), ErrorKind::Usage, "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(Saved::read(&dir.path().join("absent")).is_err());
        assert!(Saved::read(dir.path()).is_err());
        assert!(saved.write(dir.path()).is_err());
        assert!(saved.write(&dir.path().join("absent/chat.json")).is_err());
    }
}
