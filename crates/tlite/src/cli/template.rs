//! Values for a chat template beside the messages.

use super::options::read_text;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::llm::template::Values;
use transformer_lite::unstable::llm::{Codec, ModelFolder};

/// Values that the conversation itself gives to templates.
const TAKEN: [&str; 2] = ["messages", "add_generation_prompt"];

/// Options of every command that renders a chat template.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Chat template")]
pub struct TemplateOptions {
    /// JSON file with the list of tools that the model may call, in the format of the chat template
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    tools: Option<PathBuf>,
    /// Set a variable of the chat template, such as `enable_thinking=false`; VALUE is JSON or text;
    /// can be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = named_value, hide_short_help = true)]
    template_value: Vec<(String, Value)>,
    /// Special tokens in messages are text
    ///
    /// By default, a special token such as `<|im_end|>` that a message contains acts as a control
    /// token, as in transformers.
    #[arg(long, hide_short_help = true)]
    plain_messages: bool,
}

fn named_value(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, _)) if TAKEN.contains(&name) => {
            Err(format!("{name} comes from the conversation and cannot be set"))
        }
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            Ok((name.to_owned(), value))
        }
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

impl TemplateOptions {
    /// The option that was given, if any.
    pub fn given(&self) -> Option<&'static str> {
        let value = (!self.template_value.is_empty()).then_some("--template-value");
        let plain = self.plain_messages.then_some("--plain-messages");
        self.tools.as_ref().map(|_| "--tools").or(value).or(plain)
    }

    /// The tokenizer and the template of `folder`.
    pub fn codec(&self, folder: &ModelFolder) -> Result<Arc<Codec>> {
        let mut codec = Codec::load(folder.clone())?;
        codec.set_plain_messages(self.plain_messages);
        Ok(Arc::new(codec))
    }

    /// The values by name. A usage error for a file that is not a JSON list.
    pub fn values(&self) -> Result<Values> {
        let mut values: Values = self.template_value.iter().cloned().collect();
        if let Some(path) = &self.tools {
            let bad = |what: String| Error::usage("--tools", format!("{}: {what}", path.display()));
            let text = read_text("--tools", path)?;
            let tools: Vec<Value> =
                serde_json::from_str(&text).map_err(|e| bad(format!("expected a JSON list: {e}")))?;
            values.insert("tools".to_owned(), tools.into());
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_json_or_texts() {
        let value = |text| named_value(text).unwrap().1;
        assert_eq!(value("a=false"), json!(false));
        assert_eq!(value("a={\"b\": [1]}"), json!({"b": [1]}));
        assert_eq!(value("a=26 Jul = 2024"), json!("26 Jul = 2024"));
        assert_eq!(value("a="), json!(""));
        assert!(named_value("a").is_err() && named_value("=1").is_err());
        assert!(named_value("messages=3").unwrap_err().contains("messages"));
    }

    #[test]
    fn tools_are_a_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tools.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let options = TemplateOptions {
                tools: Some(path.clone()),
                template_value: vec![("x".to_owned(), json!(1))],
                plain_messages: false,
            };
            options.values()
        };
        let values = read("[{\"name\": \"f\"}]").unwrap();
        assert_eq!(Value::from(values), json!({"x": 1, "tools": [{"name": "f"}]}));
        for bad in ["{}", "[", "", "null"] {
            let e = read(bad).unwrap_err();
            assert!(e.is_usage() && e.to_string().starts_with("--tools: "), "{e}");
        }
    }
}
