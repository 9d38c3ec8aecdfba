//! Chat templates: turn messages into the text format that a chat model was trained on.
//!
//! Templates are Jinja as Hugging Face renders it: blocks are trimmed, Python's methods work,
//! values and JSON are written as in Python, and `raise_exception` and `strftime_now` exist.
//! Unsupported features are errors.
//!
//! Templates and the values that they read are untrusted. A template is compiled and rendered on a
//! thread of its own with a stack of fixed size, and its work is counted (`guard`), so that it ends
//! with an error before it takes too much time, memory or stack.

mod call;
mod date;
mod engine;
mod filters;
mod guard;
mod meter;
mod objects;
mod printf;
mod python;
mod sequences;
mod source;
mod strformat;
mod text;

use super::folder::{ModelFolder, TemplateSource};
use crate::cancel::Cancel;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::files::read::{if_exists, read_file};
use crate::limits::Limits;
use crate::parallel;
use crate::quota;
use engine::{compiled, environment, syntax};
use meter::{Meter, Stopped};
use minijinja::machinery::{eval, make_string_output};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Value};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`, or another role that the model's chat template
    /// supports.
    pub role: Cow<'static, str>,
    /// The text.
    pub content: String,
    /// Further fields for templates, such as `tool_calls` of an assistant's message, or `name` and
    /// `tool_call_id` of a tool's. A field called `role` or `content` replaces that field: for
    /// example `"content": null`.
    pub extra: Values,
}

impl Message {
    /// A message with any role.
    pub fn new(role: impl Into<Cow<'static, str>>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            extra: Values::new(),
        }
    }

    /// A system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A user message.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// An assistant message.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// The result, often JSON, of the tool `name` that the model called.
    pub fn tool(name: impl Into<String>, content: impl Into<String>) -> Self {
        Self::new("tool", content).with("name", name.into())
    }

    /// Sets the field `name` of [`Message::extra`].
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.extra.insert(name.into(), value.into());
        self
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = [("role", self.role.as_ref()), ("content", self.content.as_str())];
        let own = own
            .into_iter()
            .filter(|(name, _)| !self.extra.contains_key(*name));
        let mut map = serializer.serialize_map(None)?;
        for (name, text) in own {
            map.serialize_entry(name, text)?;
        }
        for (name, value) in &self.extra {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The message with which a template rejects a conversation, through `raise_exception`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Raised(pub String);

/// Extra template variables, such as `tools` or `enable_thinking`, by name.
pub type Values = serde_json::Map<String, serde_json::Value>;

/// A model's chat template, or two: one for plain chats and one for chats with tools.
pub struct ChatTemplate {
    plain: Option<Source>,
    tool_use: Option<Source>,
    path: PathBuf,
    bos: Option<String>,
    eos: Option<String>,
    limits: Limits,
}

const NAME: &str = "chat_template";

/// Bytes of a template.
const MAX_TEMPLATE: u64 = 1 << 20;

/// Bytes of the stack on which templates are compiled and rendered. Templates may nest 150 levels
/// and call macros 125 levels deep.
const STACK: usize = 16 << 20;

/// Bytes of the message with which a template may reject a conversation.
const MAX_RAISED: usize = 4096;

/// Work that a template may do for each byte that it may write.
const WORK_PER_BYTE: u64 = 8;

/// The name of the template for plain chats.
const PLAIN: &str = "default";
/// The name of the template for chats with tools.
const TOOL_USE: &str = "tool_use";

/// The text of a template.
struct Source {
    path: PathBuf,
    text: String,
    /// The text to compile, set once it has been parsed without an error.
    prepared: OnceLock<String>,
}

impl Source {
    fn new(path: &Path, text: &str) -> Result<Self> {
        if meter::units(text.len()) > MAX_TEMPLATE {
            let what = format!("the chat template is larger than {MAX_TEMPLATE} bytes, the limit");
            return Err(Error::file(Stage::Text, path, what).of_kind(ErrorKind::LimitExceeded));
        }
        Ok(Self {
            path: path.to_owned(),
            text: text.to_owned(),
            prepared: OnceLock::new(),
        })
    }

    /// The content of the file `path`, if it exists.
    fn read(path: &Path) -> Result<Option<Self>> {
        let Some(bytes) = if_exists(read_file(path, MAX_TEMPLATE))? else {
            return Ok(None);
        };
        let text =
            String::from_utf8(bytes).map_err(|e| Error::parse(Stage::Text, path, "expected UTF-8", e))?;
        Self::new(path, &text).map(Some)
    }

    /// The text to compile. Fails if it cannot be parsed.
    fn prepared(&self) -> Result<&str> {
        if let Some(prepared) = self.prepared.get() {
            return Ok(prepared);
        }
        let prepared = on_thread(|| {
            let prepared = source::prepared(&self.text, syntax()?)?;
            compiled(&prepared)?;
            Ok(prepared)
        });
        let what = "the chat template has a syntax error";
        let prepared = prepared?.map_err(|e| refusal(&self.path, what, e, &Limits::default()))?;
        Ok(self.prepared.get_or_init(|| prepared))
    }
}

impl ChatTemplate {
    /// The templates in `chat_template.jinja` and `additional_chat_templates/tool_use.jinja`, or
    /// else those in `tokenizer_config.json`: either a single one, or those named `default` and
    /// `tool_use`. `None` if the folder has none. Fails if they have other names, or if the
    /// template for plain chats cannot be parsed.
    pub fn find(folder: &ModelFolder) -> Result<Option<Self>> {
        let path = folder.dir().join("chat_template.jinja");
        let tool_path = folder.dir().join("additional_chat_templates/tool_use.jinja");
        let (plain, tool_use) = (Source::read(&path)?, Source::read(&tool_path)?);
        if plain.is_some() || tool_use.is_some() {
            return Self::new(folder, plain, tool_use).map(Some);
        }
        let path = folder.dir().join("tokenizer_config.json");
        let list = match &folder.tokenizer.chat_template {
            None => return Ok(None),
            Some(TemplateSource::One(text)) => {
                return Self::new(folder, Some(Source::new(&path, text)?), None).map(Some);
            }
            Some(TemplateSource::Named(list)) => list,
        };
        let named = |name: &str| {
            let template = list.iter().rfind(|t| t.name == name);
            template.map(|t| Source::new(&path, &t.template)).transpose()
        };
        match (named(PLAIN)?, named(TOOL_USE)?) {
            (None, None) if list.is_empty() => Ok(None),
            (None, None) => {
                let names: Vec<_> = list.iter().map(|t| t.name.as_str()).collect();
                let what = format!(
                    "no chat template is named `{PLAIN}` or `{TOOL_USE}`; found: {}",
                    names.join(", ")
                );
                Err(Error::file(Stage::Text, &path, what))
            }
            (plain, tool_use) => Self::new(folder, plain, tool_use).map(Some),
        }
    }

    /// Like [`ChatTemplate::find`], but an error if there is no template.
    pub fn load(folder: &ModelFolder) -> Result<Self> {
        Self::find(folder)?.ok_or_else(|| Self::missing(folder))
    }

    /// The error for a folder without a template.
    pub(super) fn missing(folder: &ModelFolder) -> Error {
        let what =
            "no chat template: neither chat_template.jinja nor `chat_template` in tokenizer_config.json";
        Error::file(Stage::Text, folder.dir(), what).of_kind(ErrorKind::NoTemplate)
    }

    fn new(folder: &ModelFolder, plain: Option<Source>, tool_use: Option<Source>) -> Result<Self> {
        if let Some(plain) = &plain {
            plain.prepared()?;
        }
        let text_of = |t: &Option<super::folder::TokenText>| t.as_ref().map(|t| t.as_str().to_owned());
        let path = plain
            .as_ref()
            .or(tool_use.as_ref())
            .map(|source| source.path.clone());
        Ok(Self {
            path: path.unwrap_or_default(),
            plain,
            tool_use,
            bos: text_of(&folder.tokenizer.bos_token),
            eos: text_of(&folder.tokenizer.eos_token),
            limits: Limits::default(),
        })
    }

    /// The template for these variables, chosen as in transformers.
    fn source(&self, values: &Values) -> Result<&Source> {
        let tools = values.get("tools").is_some_and(|tools| !tools.is_null());
        let source = self.tool_use.as_ref().filter(|_| tools).or(self.plain.as_ref());
        source.ok_or_else(|| {
            let what = format!(
                "the only chat template is named `{TOOL_USE}`, which is for chats with tools; \
                 expected one named `{PLAIN}`, or tools"
            );
            Error::file(Stage::Text, &self.path, what).of_kind(ErrorKind::NoTemplate)
        })
    }

    /// Sets the limits of each rendering: [`Limits::template_steps`] and
    /// [`Limits::template_output`].
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The text of the template for these variables, chosen as by [`ChatTemplate::render`]. Returns
    /// its error if there is none.
    pub fn text(&self, values: &Values) -> Result<&str> {
        Ok(&self.source(values)?.text)
    }

    /// The file that contains the template. If there are two, that of the one for plain chats.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of a chat, including special tokens; encode it without adding any. Messages are
    /// [`Message`]s or JSON objects. `values` take precedence over special tokens of the same name,
    /// but not over `messages`. If they contain `tools`, a template named `tool_use` is preferred.
    /// With `add_generation_prompt` the text ends where the model's next turn starts.
    ///
    /// An error if the template rejects the messages, for instance an unsupported role; the cause
    /// is [`Raised`] if the template gave a message. An error of kind
    /// [`LimitExceeded`](ErrorKind::LimitExceeded) if it exceeds the limits, and
    /// [`Error::Interrupted`] if `cancel` is set before it ends.
    pub fn render<M: Serialize>(
        &self,
        messages: &[M],
        values: &Values,
        add_generation_prompt: bool,
        cancel: &Cancel,
    ) -> Result<String> {
        let source = self.source(values)?;
        let prepared = source.prepared()?;
        // Missing variables are none, as in Hugging Face.
        let mut all = vec![("tools", Value::from(())), ("documents", Value::from(()))];
        // A missing token stays undefined, because templates test it with `is defined`.
        all.extend(self.bos.as_deref().map(|t| ("bos_token", Value::from(t))));
        all.extend(self.eos.as_deref().map(|t| ("eos_token", Value::from(t))));
        all.extend(values.iter().map(|(k, v)| (k.as_str(), Value::from(Serde(v)))));
        all.push(("messages", Value::from(Serde(messages))));
        all.push(("add_generation_prompt", Value::from(add_generation_prompt)));
        let values = Value::from_pairs(all);
        let most = self.limits.template_output;
        let work = meter::units(most).saturating_mul(WORK_PER_BYTE);
        let meter = Arc::new(Meter::new(work, cancel.clone()));
        let text = on_thread(|| {
            meter.weigh(&values)?;
            let mut environment = environment(&meter);
            // The engine of templates counts down in signed numbers.
            let steps = self.limits.template_steps.min(u64::MAX / 2);
            environment.set_fuel(Some(steps));
            let (main, blocks) = compiled(prepared)?;
            let mut text = String::new();
            let mut out = make_string_output(&mut text);
            eval(&environment, &main, values, &blocks, &mut out, AutoEscape::None)?;
            if text.len() > most {
                return Err(Stopped::Output.into());
            }
            Ok(text)
        });
        text?.map_err(|e| {
            match refusal(
                &source.path,
                "the chat template rejects the messages",
                e,
                &self.limits,
            ) {
                e if e.kind() == ErrorKind::InvalidFile => e.of_kind(ErrorKind::TemplateRefused),
                e => e,
            }
        })
    }
}

/// Runs `work` on a thread whose stack has a known size.
fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    parallel::on_thread("chat template", STACK, work)
        .map_err(|e| Error::caused(Stage::Text, "cannot start a thread for the chat template", e))?
        .map_err(|_| Error::internal(Stage::Text, "the chat template made its engine panic"))
}

/// The error for a template that failed within `limits`: `what` it did, unless the cause says more.
fn refusal(path: &Path, what: &str, e: minijinja::Error, limits: &Limits) -> Error {
    let exceeded = |what: &str| {
        let what = format!("the chat template exceeds a limit: {what}");
        Error::file(Stage::Text, path, what).of_kind(ErrorKind::LimitExceeded)
    };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&e);
    while let Some(c) = cause {
        if let Some(raised) = c.downcast_ref::<Raised>() {
            return Error::parse(Stage::Text, path, format!("{what}: {raised}"), raised.clone());
        }
        match c.downcast_ref() {
            Some(Stopped::Bound(what)) => return exceeded(what),
            Some(Stopped::Output) => {
                return exceeded(&format!(
                    "its output exceeds {} bytes; {}",
                    limits.template_output,
                    quota::raise("template-output")
                ));
            }
            Some(Stopped::Work) => {
                return exceeded(&format!(
                    "it needs more memory or time than an output of {} bytes allows; {}",
                    limits.template_output,
                    quota::raise("template-output")
                ));
            }
            Some(Stopped::Cancelled) => return Error::Interrupted,
            None => {}
        }
        let engine = c.downcast_ref::<minijinja::Error>().map(minijinja::Error::kind);
        if engine == Some(minijinja::ErrorKind::OutOfFuel) {
            return exceeded(&format!(
                "it takes more than {} steps; {}",
                limits.template_steps,
                quota::raise("template-steps")
            ));
        }
        cause = c.source();
    }
    Error::parse(Stage::Text, path, what, e)
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod reference_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_carries, assert_error};
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
        ChatTemplate::load(&folder)?.render(messages, &Values::new(), true, &Cancel::default())
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
            .render(
                &[Message::user("a"), Message::assistant("b")],
                &Values::new(),
                false,
                &Cancel::default(),
            )
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
    fn messages_carry_what_templates_know() {
        let text = "{% for m in messages %}{{ m.role }}|{{ m.content }}|{{ m.name }}|{{ m.tool_call_id }}|\
            {% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}\
            {{ tools | tojson }}{{ bos_token }}{{ messages | length }}";
        let call = json!([{"id": "7", "function": {"name": "add", "arguments": {"a": 1}}}]);
        let asked = Message::assistant("")
            .with("tool_calls", call)
            .with("content", json!(null));
        let result = Message::tool("add", "{\"sum\": 2}").with("tool_call_id", "7");
        let (_dir, folder) = folder(json!({"chat_template": text, "bos_token": "<s>"}));
        let values = json!({"tools": [{"name": "add"}], "bos_token": "<b>", "messages": []});
        let serde_json::Value::Object(values) = values else {
            panic!()
        };
        let template = ChatTemplate::load(&folder).unwrap();
        let found = template
            .render(&[asked, result], &values, true, &Cancel::default())
            .unwrap();
        let expected = "assistant|None|||add{\"a\": 1};tool|{\"sum\": 2}|add|7|;[{\"name\": \"add\"}]<b>2";
        assert_eq!(found, expected);
    }

    #[test]
    fn generation_blocks_have_no_effect() {
        let text = "a  {%- generation -%}  b {% endgeneration %}c{% if x %}{% endif %}";
        assert_eq!(render(text, &[]).unwrap(), "ab c");
    }

    #[test]
    fn refusals_carry_the_words_of_the_template() {
        let e = render("{{ raise_exception('no system role') }}", &[]).unwrap_err();
        assert_error(&e, ErrorKind::TemplateRefused, &["tokenizer_config.json"]);
        let raised = std::error::Error::source(&e).and_then(|e| e.downcast_ref::<Raised>());
        assert_eq!(raised.unwrap().0, "no system role");
        let e = render("{{ messages[0].content.nosuch() }}", &[Message::user("")]).unwrap_err();
        assert_carries(cause(&e), &["nosuch"]);
        let e = render("{% for %}", &[]).unwrap_err();
        assert_error(&e, ErrorKind::InvalidFile, &["tokenizer_config.json"]);
    }

    fn rendered(folder: &ModelFolder, tools: Option<serde_json::Value>) -> Result<String> {
        let values: Values = tools.into_iter().map(|v| ("tools".to_owned(), v)).collect();
        ChatTemplate::load(folder)?.render::<Message>(&[], &values, true, &Cancel::default())
    }

    #[test]
    fn lists_and_files_of_templates() {
        let named = |name: &str, text: &str| json!({"name": name, "template": text});
        let list = [
            named("tool_use", "t{{ tools }}"),
            named("rag", "{% r"),
            named("default", "d"),
        ];
        let (dir, f) = folder(json!({ "chat_template": list }));
        assert_eq!(rendered(&f, None).unwrap(), "d");
        assert_eq!(rendered(&f, Some(json!(null))).unwrap(), "d");
        assert_eq!(rendered(&f, Some(json!([]))).unwrap(), "t[]");
        let file = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        file("chat_template.jinja", "file");
        assert_eq!(rendered(&f, Some(json!([]))).unwrap(), "file");
        std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
        file("additional_chat_templates/tool_use.jinja", "tool file");
        assert_eq!(rendered(&f, None).unwrap(), "file");
        assert_eq!(rendered(&f, Some(json!([]))).unwrap(), "tool file");

        let (_dir, f) = folder(json!({"chat_template": [named("default", "only"), named("rag", "r")]}));
        assert_eq!(rendered(&f, Some(json!([]))).unwrap(), "only");
        let (_dir, f) = folder(json!({"chat_template": [named("tool_use", "t")]}));
        assert_eq!(rendered(&f, Some(json!([]))).unwrap(), "t");
        assert_error(
            &rendered(&f, None).unwrap_err(),
            ErrorKind::NoTemplate,
            &["tokenizer_config.json", "`default`"],
        );
        // The template for tools is parsed only when it is needed.
        let (_dir, f) = folder(json!({"chat_template": [named("default", "d"), named("tool_use", "{% t")]}));
        assert_eq!(rendered(&f, None).unwrap(), "d");
        let e = rendered(&f, Some(json!([]))).unwrap_err();
        assert_error(&e, ErrorKind::InvalidFile, &["tokenizer_config.json"]);
        let (_dir, f) = folder(json!({"chat_template": [named("x", ""), named("y", "")]}));
        assert_carries(ChatTemplate::load(&f).err().unwrap(), &["x, y"]);

        let (dir, f) = folder(json!({}));
        assert!(ChatTemplate::find(&f).unwrap().is_none());
        let e = ChatTemplate::load(&f).err().unwrap();
        assert_error(&e, ErrorKind::NoTemplate, &[&dir.path().display().to_string()]);
    }

    #[test]
    fn line_ends_are_line_feeds() {
        let text = "a\r\n{% if true %}\r\nb{{ 'c\r\nd\re' }}\r{% endif %}\r\n\r\n";
        assert_eq!(render(text, &[Message::user("")]).unwrap(), "a\nbc\nd\ne\n");
        // Line ends in values are kept.
        let text = "{{ messages[0].content }}{{ '\\r\\n' }}";
        assert_eq!(render(text, &[Message::user("\r\n\r")]).unwrap(), "\r\n\r\r\n");
    }
}
