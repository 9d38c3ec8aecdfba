//! Names of classes, from a file.

use crate::cli::options::read_text;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result};

/// Names by class number.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Labels(HashMap<usize, String>);

const OPTION: &str = "--labels";

impl Labels {
    /// The names in `path`: a JSON array; a JSON object with numbers as keys, or with such an
    /// object as `id2label`; or a text file with one name per line. A usage error for another form.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(OPTION, path)?;
        let bad = |what: &str| Error::usage(OPTION, format!("{}: {what}", path.display()));
        let named = if text.trim_start().starts_with(['[', '{']) {
            let json: Value =
                serde_json::from_str(&text).map_err(|e| bad(&format!("not valid JSON: {e}")))?;
            Self::of_json(&json)
        } else {
            let lines = text.lines().map(str::trim_end).enumerate();
            let named = lines.filter(|(_, name)| !name.is_empty());
            Some(Self(named.map(|(i, name)| (i, name.to_owned())).collect()))
        };
        let expected =
            "expected a JSON array of names, a JSON object of numbers and names, or one name per line";
        named.filter(|l| !l.0.is_empty()).ok_or_else(|| bad(expected))
    }

    fn of_json(json: &Value) -> Option<Self> {
        let pairs: Option<HashMap<usize, String>> = match json {
            Value::Array(all) => all
                .iter()
                .map(name)
                .enumerate()
                .map(|(i, n)| Some((i, n?)))
                .collect(),
            Value::Object(all) => {
                if let Some(inner) = all.get("id2label") {
                    return Self::of_json(inner);
                }
                let pair = |(key, v): (&String, &Value)| Some((key.trim().parse().ok()?, name(v)?));
                all.iter().map(pair).collect()
            }
            _ => None,
        };
        pairs.map(Self)
    }

    /// The name of a class.
    pub fn get(&self, class: usize) -> Option<&str> {
        self.0.get(&class).map(String::as_str)
    }

    /// One more than the largest class number.
    pub fn classes(&self) -> usize {
        self.0.keys().max().map_or(0, |n| n + 1)
    }
}

/// A name, or the last of several, as `["n02124075", "Egyptian_cat"]` has them.
fn name(value: &Value) -> Option<String> {
    match value {
        Value::String(name) => Some(name.clone()),
        Value::Array(all) => name(all.last()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_from_each_form() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("labels");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Labels::read(&file)
        };
        for text in [
            r#"["cat", "dog"]"#,
            r#"{"0": "cat", "1": "dog"}"#,
            r#"{"1": ["n1", "dog"], "0": ["n0", "cat"]}"#,
            r#"{"model_type": "vit", "id2label": {"0": "cat", "1": "dog"}}"#,
            "cat\r\ndog\n",
        ] {
            let labels = read(text).unwrap();
            assert_eq!(
                (labels.get(0), labels.get(1)),
                (Some("cat"), Some("dog")),
                "{text}"
            );
            assert_eq!((labels.classes(), labels.get(2)), (2, None), "{text}");
        }
        for text in ["", "[1, 2]", r#"{"cat": "0"}"#, "{", "[]"] {
            assert!(read(text).unwrap_err().is_usage(), "{text}");
        }
    }
}
