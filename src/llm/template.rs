//! Chat templates: from messages to the text that a chat model was trained on.
//!
//! Templates are Jinja as Hugging Face renders it: blocks are trimmed, methods of Python's types work,
//! `tojson` writes as Python does, and `raise_exception` and `strftime_now` exist.

use super::folder::{ModelFolder, TemplateSource};
use crate::error::{Error, Result, Stage};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, ErrorKind, Output, State, Value, escape_formatter};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One turn of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
}

impl Message {
    /// Instructions before the chat.
    pub fn system(content: impl Into<String>) -> Self {
        Self {
            role: "system",
            content: content.into(),
        }
    }

    /// What the user wrote.
    pub fn user(content: impl Into<String>) -> Self {
        Self {
            role: "user",
            content: content.into(),
        }
    }

    /// What the model wrote.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self {
            role: "assistant",
            content: content.into(),
        }
    }
}

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    path: PathBuf,
    bos: Option<String>,
    eos: Option<String>,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// The template of `chat_template.jinja`, else the one in `tokenizer_config.json`: the only one there,
    /// or the one named `default`. `None` when the folder has none; an error when it cannot be parsed.
    pub fn find(folder: &ModelFolder) -> Result<Option<Self>> {
        let path = folder.dir().join("chat_template.jinja");
        match std::fs::read_to_string(&path) {
            Ok(text) => return Self::parse(folder, path, text).map(Some),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("cannot read", &path, e)),
        }
        let path = folder.dir().join("tokenizer_config.json");
        let text = match &folder.tokenizer.chat_template {
            None => return Ok(None),
            Some(TemplateSource::One(text)) => text.clone(),
            Some(TemplateSource::Named(list)) => match list.as_slice() {
                [] => return Ok(None),
                [only] => only.template.clone(),
                several => match several.iter().find(|t| t.name == "default") {
                    Some(t) => t.template.clone(),
                    None => {
                        let names: Vec<_> = several.iter().map(|t| t.name.as_str()).collect();
                        let what =
                            format!("no chat template is named `default`; found: {}", names.join(", "));
                        return Err(Error::file(Stage::Text, &path, what));
                    }
                },
            },
        };
        Self::parse(folder, path, text).map(Some)
    }

    /// As [`ChatTemplate::find`]; an error that names the folder when there is no template.
    pub fn load(folder: &ModelFolder) -> Result<Self> {
        Self::find(folder)?.ok_or_else(|| Self::missing(folder))
    }

    /// The error of a folder without a template.
    pub(super) fn missing(folder: &ModelFolder) -> Error {
        let what =
            "no chat template: neither chat_template.jinja nor `chat_template` in tokenizer_config.json";
        Error::file(Stage::Text, folder.dir(), what)
    }

    fn parse(folder: &ModelFolder, path: PathBuf, text: String) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| Error::parse(Stage::Text, &path, "the template engine refuses its settings", e))?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(format_like_python);
        environment.add_filter("tojson", to_json);
        environment.add_function(
            "raise_exception",
            |what: String| -> Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, what))
            },
        );
        environment.add_function("strftime_now", |format: String| {
            strftime(&format, SystemTime::now())
        });
        environment
            .add_template_owned(NAME, without_generation_blocks(&text))
            .map_err(|e| Error::parse(Stage::Text, &path, "the chat template has a syntax error", e))?;
        let text_of = |t: &Option<super::folder::TokenText>| t.as_ref().map(|t| t.as_str().to_owned());
        let (bos, eos) = (
            text_of(&folder.tokenizer.bos_token),
            text_of(&folder.tokenizer.eos_token),
        );
        Ok(Self {
            environment,
            path,
            bos,
            eos,
        })
    }

    /// The file that the template stands in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of a chat, special tokens included, to be encoded without adding any. With
    /// `add_generation_prompt` it ends where the model's next turn starts. An error when the template
    /// refuses the messages, for instance a role that the model does not know.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|m| Value::from_pairs([("role", m.role), ("content", m.content.as_str())]))
            .collect();
        let mut values = vec![
            ("messages", Value::from(messages)),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ];
        // An absent token stays undefined, as templates test for it with `is defined`.
        values.extend(self.bos.as_deref().map(|t| ("bos_token", Value::from(t))));
        values.extend(self.eos.as_deref().map(|t| ("eos_token", Value::from(t))));
        self.environment
            .get_template(NAME)
            .and_then(|t| t.render(Value::from_pairs(values)))
            .map_err(|e| {
                Error::parse(
                    Stage::Text,
                    &self.path,
                    "the chat template refuses the messages",
                    e,
                )
            })
    }
}

/// Turns `{% generation %}` blocks, which mark text for training, into blocks without effect. Their
/// white-space control is kept.
fn without_generation_blocks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let (tag, after) = tag.find("%}").map_or((tag, ""), |end| tag.split_at(end + 2));
        let word = tag
            .trim_start_matches("{%")
            .trim_end_matches("%}")
            .trim_matches(|c: char| "-+ \t\r\n".contains(c));
        out.push_str(&match word {
            "generation" => tag.replace(word, "if true"),
            "endgeneration" => tag.replace(word, "endif"),
            _ => tag.to_owned(),
        });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Prints `True`, `False` and `None` as Jinja does.
fn format_like_python(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), minijinja::Error> {
    match value.kind() {
        ValueKind::None => out.write_str("None").map_err(minijinja::Error::from),
        ValueKind::Bool => out
            .write_str(if value.is_true() { "True" } else { "False" })
            .map_err(minijinja::Error::from),
        _ => escape_formatter(out, state, value),
    }
}

/// JSON with the spaces of Python's `json.dumps` and nothing escaped for HTML.
fn to_json(value: Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let refuse = |e: serde_json::Error| {
        minijinja::Error::new(ErrorKind::BadSerialization, "tojson: the value has no JSON form")
            .with_source(e)
    };
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if ascii == Some(true) {
        return Err(minijinja::Error::new(
            ErrorKind::InvalidOperation,
            "tojson: ensure_ascii=true is not offered",
        ));
    }
    let json = serde_json::to_value(&value).map_err(refuse)?;
    let mut out = Vec::new();
    match indent {
        Some(n) => {
            let spaces = vec![b' '; n.min(64)];
            let pretty = serde_json::ser::PrettyFormatter::with_indent(&spaces);
            json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, pretty))
                .map_err(refuse)?;
        }
        None => json
            .serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced))
            .map_err(refuse)?,
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// `, ` between elements and `: ` after keys.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// `time` in UTC by the usual conversions of C's `strftime`; an error names one that is not offered.
fn strftime(format: &str, time: SystemTime) -> Result<String, minijinja::Error> {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day, day_of_year) = civil_date(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let name = |names: &[&'static str], index: u64| -> &'static str {
        usize::try_from(index)
            .ok()
            .and_then(|i| names.get(i).copied())
            .unwrap_or("")
    };
    let month_name = name(&MONTHS, month - 1);
    let day_name = name(&DAYS, (days + 4) % 7);
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let conversion = match letters.next() {
            Some('-') => letters.next().map(|c| ("-", c)),
            other => other.map(|c| ("", c)),
        };
        out.push_str(&match conversion {
            Some(("", '%')) => "%".to_owned(),
            Some(("", 'Y')) => year.to_string(),
            Some(("", 'y')) => format!("{:02}", year % 100),
            Some(("", 'm')) => format!("{month:02}"),
            Some(("-", 'm')) => month.to_string(),
            Some(("", 'd')) => format!("{day:02}"),
            Some(("-", 'd')) => day.to_string(),
            Some(("", 'e')) => format!("{day:2}"),
            Some(("", 'j')) => format!("{day_of_year:03}"),
            Some(("", 'B')) => month_name.to_owned(),
            Some(("", 'b' | 'h')) => short(month_name).to_owned(),
            Some(("", 'A')) => day_name.to_owned(),
            Some(("", 'a')) => short(day_name).to_owned(),
            Some(("", 'H')) => format!("{hour:02}"),
            Some(("-", 'H')) => hour.to_string(),
            Some(("", 'I')) => format!("{hour12:02}"),
            Some(("-", 'I')) => hour12.to_string(),
            Some(("", 'M')) => format!("{minute:02}"),
            Some(("", 'S')) => format!("{second:02}"),
            Some(("", 'p')) => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some(("", 'F')) => format!("{year}-{month:02}-{day:02}"),
            Some(("", 'T')) => format!("{hour:02}:{minute:02}:{second:02}"),
            Some(("", 'Z')) => "UTC".to_owned(),
            Some(("", 'z')) => "+0000".to_owned(),
            other => {
                let text = other.map_or_else(String::new, |(flag, c)| format!("{flag}{c}"));
                let what = format!("strftime_now: conversion `%{text}` is not offered");
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, what));
            }
        });
    }
    Ok(out)
}

/// Year, month (from 1), day (from 1) and day of the year (from 1) of a day counted from 1970-01-01, in the
/// Gregorian calendar.
fn civil_date(days: u64) -> (u64, u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // 400 years are a whole number of days, so the loop below is short for any time.
    let mut year = 1970 + days / 146_097 * 400;
    let mut rest = days % 146_097;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        rest -= length;
        year += 1;
    }
    let day_of_year = rest + 1;
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn folder(config: serde_json::Value) -> (tempfile::TempDir, ModelFolder) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let folder = ModelFolder::open(dir.path()).unwrap();
        (dir, folder)
    }

    fn render(template: &str, messages: &[Message]) -> Result<String> {
        let (_dir, folder) =
            folder(json!({"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}));
        ChatTemplate::load(&folder)?.render(messages, true)
    }

    fn cause(e: &Error) -> String {
        std::error::Error::source(e)
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    const CHATML: &str = "{% for message in messages %}\n  {{- '<|im_start|>' + message['role'] + '\\n' + message.content | trim + '<|im_end|>\\n' -}}\n{% endfor %}\n{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

    #[test]
    fn chatml() {
        let chat = [Message::system("Be brief."), Message::user(" Hi <b> & 'you' ")];
        let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b> & 'you'<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(render(CHATML, &chat).unwrap(), expected);
        let (_dir, folder) = folder(json!({"chat_template": CHATML}));
        let template = ChatTemplate::load(&folder).unwrap();
        let plain = template
            .render(&[Message::user("a"), Message::assistant("b")], false)
            .unwrap();
        assert_eq!(
            plain,
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        );
    }

    #[test]
    fn python_methods_and_values() {
        let text = "{{ bos_token }}{% if messages[0].role.startswith('us') and messages[0]['content'].split('/')[-1] == 'b' %}\
            {{ messages[0].content.upper().strip() }}{% endif %}{{ true }} {{ none }} {{ missing }}{{ eos_token }}\
            {% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role != 'user' %}{% break %}{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}";
        assert_eq!(
            render(text, &[Message::user("a/b")]).unwrap(),
            "<s>A/BTrue None </s>1"
        );
    }

    #[test]
    fn json_is_written_as_python_does() {
        let text = "{{ {'a': [1, 'é<>'], 'b': none} | tojson }}|{{ {'a': [1]} | tojson(indent=2) }}";
        let expected = "{\"a\": [1, \"é<>\"], \"b\": null}|{\n  \"a\": [\n    1\n  ]\n}";
        assert_eq!(render(text, &[]).unwrap(), expected);
    }

    #[test]
    fn generation_blocks_have_no_effect() {
        let text = "a  {%- generation -%}  b {% endgeneration %}c{% if x %}{% endif %}";
        assert_eq!(render(text, &[]).unwrap(), "ab c");
    }

    #[test]
    fn refusals_carry_the_words_of_the_template() {
        let e = render("{{ raise_exception('System role not supported') }}", &[]).unwrap_err();
        assert!(e.to_string().contains("tokenizer_config.json"), "{e}");
        assert!(cause(&e).contains("System role not supported"), "{}", cause(&e));
        let e = render("{{ messages[0].content.nosuch() }}", &[Message::user("")]).unwrap_err();
        assert!(cause(&e).contains("nosuch"), "{}", cause(&e));
        let e = render("{% for %}", &[]).unwrap_err();
        assert!(e.to_string().contains("syntax error"), "{e}");
        let e = render("{{ strftime_now('%Q') }}", &[]).unwrap_err();
        assert!(cause(&e).contains("`%Q`"), "{}", cause(&e));
    }

    #[test]
    fn lists_and_files_of_templates() {
        let two = json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
        let (dir, f) = folder(json!({ "chat_template": two }));
        assert_eq!(ChatTemplate::load(&f).unwrap().render(&[], true).unwrap(), "d");
        std::fs::write(dir.path().join("chat_template.jinja"), "file").unwrap();
        assert_eq!(ChatTemplate::load(&f).unwrap().render(&[], true).unwrap(), "file");

        let (_dir, f) = folder(json!({"chat_template": [{"name": "x", "template": "only"}]}));
        assert_eq!(ChatTemplate::load(&f).unwrap().render(&[], true).unwrap(), "only");
        let (_dir, f) =
            folder(json!({"chat_template": [{"name": "x", "template": ""}, {"name": "y", "template": ""}]}));
        assert!(ChatTemplate::load(&f).err().unwrap().to_string().contains("x, y"));

        let (dir, f) = folder(json!({}));
        assert!(ChatTemplate::find(&f).unwrap().is_none());
        let e = ChatTemplate::load(&f).err().unwrap();
        assert!(e.to_string().contains(&dir.path().display().to_string()), "{e}");
    }

    #[test]
    fn dates() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let all = "%Y-%m-%d %H:%M:%S %d %b %Y %A %B %a %j %-d %I %p %%";
        assert_eq!(
            strftime(all, at(0)).unwrap(),
            "1970-01-01 00:00:00 01 Jan 1970 Thursday January Thu 001 1 12 AM %"
        );
        let leap = strftime(all, at(1_709_251_199)).unwrap();
        assert_eq!(
            leap,
            "2024-02-29 23:59:59 29 Feb 2024 Thursday February Thu 060 29 11 PM %"
        );
        assert_eq!(strftime("%F", at(4_102_444_800)).unwrap(), "2100-01-01");
        assert_eq!(strftime("%F %a", at(951_782_400)).unwrap(), "2000-02-29 Tue");
        assert_eq!(strftime("%F", at(1_735_603_200)).unwrap(), "2024-12-31");
        assert!(strftime("%", at(0)).is_err());
    }
}
