//! Names of classes, from a file.

use serde_json::Value;
use std::collections::HashMap;

/// Class numbers are below this.
pub(super) const MAX_CLASSES: usize = 1_000_000;

/// A class number; `None` for another text.
fn number(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|n| *n < MAX_CLASSES)
}

/// Names by class number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(HashMap<usize, String>);

impl Labels {
    /// The names in the text of a file: a JSON array; a JSON object with numbers as keys, or with
    /// such an object as `id2label`; or one name per line. `None` for another form.
    pub fn parse(text: &str) -> Option<Self> {
        let named = if text.trim_start().starts_with(['[', '{']) {
            Self::of_json(&serde_json::from_str(text).ok()?)
        } else {
            let lines = text.lines().map(str::trim_end).enumerate();
            let named = lines.filter(|(_, name)| !name.is_empty());
            Some(Self(named.map(|(i, name)| (i, name.to_owned())).collect()))
        };
        named.filter(|l| !l.0.is_empty())
    }

    /// The names in a model's metadata, as detectors have them: a dictionary of Python, such as
    /// `{0: 'person', 1: "driver's cab"}`. `None` for another form.
    pub fn of_metadata(text: &str) -> Option<Self> {
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        let mut found = HashMap::new();
        while !rest.is_empty() {
            let (number, after) = rest.split_once(':')?;
            let after = after.trim_start();
            let quote = after.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
            let (mut name, mut end, mut escaped) = (String::new(), None, false);
            for (at, c) in after.char_indices().skip(1) {
                match c {
                    '\\' if !escaped => escaped = true,
                    c if c == quote && !escaped => {
                        end = Some(at + 1);
                        break;
                    }
                    c => {
                        escaped = false;
                        name.push(c);
                    }
                }
            }
            found.insert(self::number(number)?, name);
            rest = after.get(end?..)?.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        Some(Self(found)).filter(|l| !l.0.is_empty())
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
                let pair = |(key, v): (&String, &Value)| Some((number(key)?, name(v)?));
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
        for text in [
            r#"["cat", "dog"]"#,
            r#"{"0": "cat", "1": "dog"}"#,
            r#"{"1": ["n1", "dog"], "0": ["n0", "cat"]}"#,
            r#"{"model_type": "vit", "id2label": {"0": "cat", "1": "dog"}}"#,
            "cat\r\ndog\n",
        ] {
            let labels = Labels::parse(text).unwrap();
            let names = [0, 1, 2].map(|i| labels.get(i));
            assert_eq!(names, [Some("cat"), Some("dog"), None], "{text}");
            assert_eq!(labels.classes(), 2, "{text}");
        }
        let large = format!(r#"{{"{}": "cat"}}"#, usize::MAX);
        for text in ["", "[1, 2]", r#"{"cat": "0"}"#, "{", "[]", &large] {
            assert_eq!(Labels::parse(text), None, "{text}");
        }
    }

    #[test]
    fn names_of_detectors_are_read() {
        let text = r#"{0: 'person', 2: "driver's cab", 3: 'it\'s, a: {b}',}"#;
        let labels = Labels::of_metadata(text).unwrap();
        let names = [0, 1, 2, 3].map(|i| labels.get(i));
        assert_eq!(
            names,
            [Some("person"), None, Some("driver's cab"), Some("it's, a: {b}")]
        );
        for text in [
            "",
            "{}",
            "{18446744073709551615: 'a'}",
            "{0: person}",
            "{0: 'a",
            "{0: 'a'",
            "{a: 'b'}",
            "['a']",
        ] {
            assert_eq!(Labels::of_metadata(text), None, "{text}");
        }
    }
}
