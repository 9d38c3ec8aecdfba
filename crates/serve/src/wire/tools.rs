//! Tools: what clients declare, and the calls of models.
//!
//! Each family of models writes calls in its own way; [`FAMILIES`] says how.

use super::error::ApiError;
use super::part::unique;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// A tool that a model may call.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Tool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function.
    pub function: Function,
}

/// A function that a model may call.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// Whether arguments must match the schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Which tool is called.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    /// `none`, `auto` or `required`.
    Mode(String),
    /// A certain function.
    Named(NamedTool),
}

/// A function by its name.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct NamedTool {
    /// The function.
    pub function: FunctionName,
}

/// The name of a function.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct FunctionName {
    /// The name.
    pub name: String,
}

/// A call of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolCall {
    /// Its number in the answer; only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Its name, which the result refers to.
    pub id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The function and its arguments.
    pub function: CalledFunction,
}

/// A function that is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CalledFunction {
    /// Its name.
    pub name: String,
    /// Its arguments as JSON.
    pub arguments: String,
}

impl ToolCall {
    fn new(name: &str, arguments: &Value) -> Self {
        Self {
            index: None,
            id: format!("call_{:016x}", unique()),
            kind: "function",
            function: CalledFunction {
                name: name.to_owned(),
                arguments: match arguments {
                    // Some models write the arguments as a text that holds JSON.
                    Value::String(text) => text.clone(),
                    Value::Null => "{}".to_owned(),
                    other => other.to_string(),
                },
            },
        }
    }
}

/// How a family of models writes calls.
#[derive(Debug)]
pub struct Family {
    /// In the chat template of such a model.
    template: &'static str,
    /// Before a call or a list of calls; empty where the whole answer is one.
    open: &'static str,
    /// After it; empty where the answer ends.
    close: &'static str,
}

/// The first whose mark is in a template counts.
const FAMILIES: [Family; 5] = [
    // Hermes, Qwen, SmolLM.
    Family {
        template: "<tool_call>",
        open: "<tool_call>",
        close: "</tool_call>",
    },
    Family {
        template: "[TOOL_CALLS]",
        open: "[TOOL_CALLS]",
        close: "",
    },
    // Phi.
    Family {
        template: "<|tool_call|>",
        open: "<|tool_call|>",
        close: "<|/tool_call|>",
    },
    // Llama 3 calls built-in tools so, and others as a whole answer.
    Family {
        template: "<|python_tag|>",
        open: "<|python_tag|>",
        close: "",
    },
    Family {
        template: "tools",
        open: "",
        close: "",
    },
];

/// Begins and ends what a model thinks.
const THOUGHT: [&str; 2] = ["<think>", "</think>"];

impl Family {
    fn of(template: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| template.contains(family.template))
    }
}

/// The schema of a call of one of `tools`, and `named` if only that one may be called.
pub(super) fn call_schema(tools: &[Tool], named: Option<&str>) -> Result<Value, ApiError> {
    let allowed = tools
        .iter()
        .filter(|tool| named.is_none_or(|name| tool.function.name == name));
    let calls: Vec<Value> = allowed
        .map(|tool| {
            let any = json!({"type": "object"});
            json!({
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    "arguments": tool.function.parameters.clone().unwrap_or(any),
                },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        })
        .collect();
    match calls.len() {
        0 => {
            let what = format!("{:?} is not among the tools", named.unwrap_or_default());
            Err(ApiError::field("tool_choice", what))
        }
        1 => Ok(calls.into_iter().next().unwrap_or_default()),
        _ => Ok(json!({ "anyOf": calls })),
    }
}

/// What an answer consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Text for the user.
    Text(String),
    /// What the model thinks.
    Thought(String),
    /// A call of a tool.
    Call(ToolCall),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Text,
    Thought,
    Calls,
}

/// What to look for in answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    family: Option<&'static Family>,
    thinks: bool,
    /// The whole answer is a call.
    only_call: bool,
}

impl Marks {
    /// For a model with the chat template `template`; calls are looked for if `calls` is set.
    pub fn new(template: &str, calls: bool, only_call: bool) -> Self {
        Self {
            family: Family::of(template).filter(|_| calls && !only_call),
            thinks: template.contains(THOUGHT[1]),
            only_call,
        }
    }

    /// The texts that may be special tokens, which are not part of a text otherwise.
    pub fn names(&self) -> Vec<&'static str> {
        let calls = self.family.iter().flat_map(|family| [family.open, family.close]);
        let thoughts = THOUGHT.into_iter().filter(|_| self.thinks);
        calls.chain(thoughts).filter(|name| !name.is_empty()).collect()
    }
}

/// Divides the text of an answer, which comes in pieces, into its parts.
#[derive(Clone, Debug)]
pub struct Splitter {
    marks: Marks,
    mode: Mode,
    /// Text that may begin a mark, or belongs to a call.
    held: String,
    /// The mark before the text of a call.
    opened: &'static str,
    /// Something was said, so that what follows cannot be the whole answer.
    began: bool,
    /// A mark has just ended: white space is no text.
    fresh: bool,
}

impl Splitter {
    /// For an answer to a prompt that ends with `end`.
    pub fn new(marks: Marks, end: &str) -> Self {
        let in_thought = marks.thinks && end.trim_end().ends_with(THOUGHT[0]);
        let mode = match (marks.only_call, in_thought) {
            (true, _) => Mode::Calls,
            (false, true) => Mode::Thought,
            (false, false) => Mode::Text,
        };
        Self {
            marks,
            mode,
            held: String::new(),
            opened: "",
            began: false,
            fresh: false,
        }
    }

    /// The parts that are certain after more text.
    pub fn push(&mut self, text: &str) -> Vec<Output> {
        self.held += text;
        self.trim();
        let mut out = Vec::new();
        while self.step(&mut out) {}
        out
    }

    /// Removes white space after a mark.
    fn trim(&mut self) {
        if self.fresh {
            self.held = self.held.trim_start().to_owned();
            self.fresh = self.held.is_empty();
        }
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> Vec<Output> {
        let mut out = Vec::new();
        let held = std::mem::take(&mut self.held);
        match self.mode {
            Mode::Calls => match calls(&held) {
                Some(found) => out.extend(found.into_iter().map(Output::Call)),
                // What the model says wrongly is text.
                None => say(&mut out, Mode::Text, &(self.opened.to_owned() + &held)),
            },
            mode => say(&mut out, mode, &held),
        }
        out
    }

    /// Handles the next mark in the text that is held. False if there is none.
    fn step(&mut self, out: &mut Vec<Output>) -> bool {
        match self.mode {
            Mode::Thought => {
                let Some((before, after)) = self.cut(&[THOUGHT[1]], out) else {
                    return false;
                };
                say(out, Mode::Thought, before.trim_end());
                (self.held, self.mode, self.fresh) = (after, Mode::Text, true);
                self.trim();
                true
            }
            Mode::Text => self.step_text(out),
            Mode::Calls => self.step_calls(out),
        }
    }

    fn step_text(&mut self, out: &mut Vec<Output>) -> bool {
        let family = self.marks.family;
        let open = family.map_or("", |family| family.open);
        // A whole answer that is a call.
        let whole = family.is_some_and(|family| family.close.is_empty());
        if whole && !self.began && self.held.trim_start().starts_with('{') {
            (self.mode, self.opened) = (Mode::Calls, "");
            return true;
        }
        let think = if self.marks.thinks { THOUGHT[0] } else { "" };
        let marks: Vec<&str> = [open, think]
            .into_iter()
            .filter(|mark| !mark.is_empty())
            .collect();
        let found = marks
            .iter()
            .filter_map(|mark| Some((self.held.find(mark)?, *mark)))
            .min();
        if found.is_none() && whole && !self.began && self.held.trim().is_empty() {
            return false;
        }
        let Some((before, after)) = self.cut(&marks, out) else {
            return false;
        };
        self.began |= !before.trim().is_empty();
        let is_thought = found.is_some_and(|(_, mark)| mark == think);
        // Line breaks before a call or a thought are no text.
        let before = if before.trim().is_empty() {
            ""
        } else {
            before.as_str()
        };
        say(out, Mode::Text, before);
        self.held = after.trim_start_matches('\n').to_owned();
        (self.mode, self.opened) = match is_thought {
            true => (Mode::Thought, ""),
            false => (Mode::Calls, open),
        };
        true
    }

    fn step_calls(&mut self, out: &mut Vec<Output>) -> bool {
        let close = self.marks.family.map_or("", |family| family.close);
        if close.is_empty() {
            return false;
        }
        let Some((inside, after)) = self.held.split_once(close) else {
            return false;
        };
        match calls(inside) {
            Some(found) => out.extend(found.into_iter().map(Output::Call)),
            None => say(out, Mode::Text, &format!("{}{inside}{close}", self.opened)),
        }
        (self.held, self.mode, self.began) = (after.trim_start_matches('\n').to_owned(), Mode::Text, true);
        true
    }

    /// What is before and after the first of `marks`. If there is none, says what cannot be the
    /// beginning of one.
    fn cut(&mut self, marks: &[&str], out: &mut Vec<Output>) -> Option<(String, String)> {
        let found = marks
            .iter()
            .filter_map(|mark| Some((self.held.find(mark)?, mark.len())))
            .min();
        if let Some((at, length)) = found {
            let after = self.held.split_off(at + length);
            self.held.truncate(at);
            return Some((std::mem::take(&mut self.held), after));
        }
        let may_begin = |at: &usize| {
            let rest = self.held.get(*at..).unwrap_or_default();
            marks.iter().any(|mark| mark.starts_with(rest))
        };
        let ends = self.held.char_indices().map(|(at, _)| at);
        let kept = ends.filter(may_begin).min().unwrap_or(self.held.len());
        let rest = self.held.split_off(kept);
        let text = std::mem::replace(&mut self.held, rest);
        self.began |= !text.trim().is_empty();
        say(out, self.mode, &text);
        None
    }
}

fn say(out: &mut Vec<Output>, mode: Mode, text: &str) {
    if !text.is_empty() {
        out.push(match mode {
            Mode::Thought => Output::Thought(text.to_owned()),
            Mode::Text | Mode::Calls => Output::Text(text.to_owned()),
        });
    }
}

/// The calls in `text`: objects or lists of them, `name{...}`, `name[ARGS]{...}`, or in tags.
fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    if let Some(tagged) = text.strip_prefix("<function=") {
        return tagged_call(tagged).map(|call| vec![call]);
    }
    if !text.starts_with(['{', '[']) {
        let (name, arguments) = text.split_once('{')?;
        let name = name.trim().trim_end_matches("[ARGS]");
        let is_name = !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        let arguments: Value = serde_json::from_str(&format!("{{{arguments}")).ok()?;
        return is_name.then(|| vec![ToolCall::new(name, &arguments)]);
    }
    let mut found = Vec::new();
    // Several objects may follow one another, separated by semicolons or line breaks.
    for value in serde_json::Deserializer::from_str(&text.replace("};", "}")).into_iter::<Value>() {
        match value.ok()? {
            Value::Array(list) => {
                for call in &list {
                    found.push(call_of(call)?);
                }
            }
            call => found.push(call_of(&call)?),
        }
    }
    (!found.is_empty()).then_some(found)
}

fn call_of(value: &Value) -> Option<ToolCall> {
    let object = value.as_object()?;
    let object = object
        .get("function")
        .and_then(Value::as_object)
        .unwrap_or(object);
    let name = object.get("name")?.as_str()?;
    let arguments = object.get("arguments").or_else(|| object.get("parameters"));
    Some(ToolCall::new(name, arguments.unwrap_or(&Value::Null)))
}

/// `NAME>` and `<parameter=KEY>VALUE</parameter>` for each argument, as Qwen's coders write.
fn tagged_call(text: &str) -> Option<ToolCall> {
    let (name, mut rest) = text.split_once('>')?;
    let mut arguments = Map::new();
    while let Some((_, after)) = rest.split_once("<parameter=") {
        let (key, after) = after.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.trim_matches('\n');
        let parsed = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        arguments.insert(key.to_owned(), parsed);
        rest = after;
    }
    Some(ToolCall::new(name, &Value::Object(arguments)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of `text`, which comes in pieces of `length` bytes, joined.
    fn split(template: &str, text: &str, length: usize) -> Vec<Output> {
        let mut splitter = Splitter::new(Marks::new(template, true, false), "");
        let mut all: Vec<Output> = Vec::new();
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(length) {
            all.extend(splitter.push(&piece.iter().collect::<String>()));
        }
        all.extend(splitter.finish());
        let mut joined: Vec<Output> = Vec::new();
        for mut output in all {
            if let Output::Call(call) = &mut output {
                call.id.clear();
            }
            match (joined.last_mut(), &output) {
                (Some(Output::Text(last)), Output::Text(more))
                | (Some(Output::Thought(last)), Output::Thought(more)) => last.push_str(more),
                _ => joined.push(output),
            }
        }
        joined
    }

    fn call(name: &str, arguments: &Value) -> Output {
        let mut call = ToolCall::new(name, arguments);
        call.id.clear();
        Output::Call(call)
    }

    #[test]
    fn calls_of_all_families_are_found_in_pieces_of_any_length() {
        let paris = json!({"city": "Paris"});
        let both = |first: &str| vec![Output::Text(first.to_owned()), call("weather", &paris)];
        for (template, text, wanted) in [
            (
                "<tool_call>",
                "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
                both("I look.\n"),
            ),
            (
                "<tool_call>",
                "<tool_call>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]</tool_call>",
                vec![call("weather", &paris)],
            ),
            (
                "<tool_call>",
                "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
                vec![call("weather", &paris)],
            ),
            (
                "[TOOL_CALLS]",
                "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]",
                vec![call("weather", &paris)],
            ),
            (
                "[TOOL_CALLS]",
                "[TOOL_CALLS]weather[ARGS]{\"city\": \"Paris\"}",
                vec![call("weather", &paris)],
            ),
            (
                "<|python_tag|>",
                "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}",
                vec![call("weather", &paris)],
            ),
            (
                "<|tool_call|>",
                "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]<|/tool_call|>",
                vec![call("weather", &paris)],
            ),
            (
                "<tool_call>",
                "5 < 7 and <tool",
                vec![Output::Text("5 < 7 and <tool".to_owned())],
            ),
            (
                "<tool_call>",
                "<tool_call>nonsense</tool_call> x",
                vec![Output::Text("<tool_call>nonsense</tool_call> x".to_owned())],
            ),
            (
                "<|python_tag|>",
                "It is {x}.",
                vec![Output::Text("It is {x}.".to_owned())],
            ),
            (
                "<tool_call></think>",
                "<think>\nHm.\n</think>\n\nYes.",
                vec![Output::Thought("Hm.".to_owned()), Output::Text("Yes.".to_owned())],
            ),
        ] {
            for length in [1, 2, 3, 7, 1000] {
                let found = split(template, text, length);
                let trimmed: Vec<Output> = found
                    .into_iter()
                    .map(|output| match output {
                        Output::Thought(text) => Output::Thought(text.trim().to_owned()),
                        other => other,
                    })
                    .collect();
                assert_eq!(trimmed, wanted, "{text} in pieces of {length}");
            }
        }
    }

    #[test]
    fn a_prompt_may_begin_the_thought() {
        let marks = Marks::new("</think>", false, false);
        let mut splitter = Splitter::new(marks, "assistant\n<think>\n");
        let mut all = splitter.push("Hm.</think>Yes.");
        all.extend(splitter.finish());
        assert_eq!(
            all,
            [Output::Thought("Hm.".to_owned()), Output::Text("Yes.".to_owned())]
        );
    }

    #[test]
    fn a_schema_allows_the_calls_of_its_tools() {
        let tool = |name: &str| Tool {
            kind: "function".to_owned(),
            function: Function {
                name: name.to_owned(),
                description: None,
                parameters: None,
                strict: None,
            },
        };
        let tools = [tool("a"), tool("b")];
        let names = |schema: &Value| schema.to_string().matches("const").count();
        assert_eq!(names(&call_schema(&tools, None).unwrap()), 2);
        assert_eq!(names(&call_schema(&tools, Some("b")).unwrap()), 1);
        assert_eq!(call_schema(&tools, Some("c")).unwrap_err().status, 400);
    }
}
