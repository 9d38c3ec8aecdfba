//! Messages of a chat, as clients send them.

use super::error::ApiError;
use serde::Deserialize;
use serde_json::{Map, Value};
use transformer_lite::Message;
use utoipa::ToSchema;

/// A message of a request.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct InputMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text, whole or in parts. May be null in an assistant's message with tool calls.
    #[serde(default)]
    pub content: Option<Content>,
    /// The author's name, or that of the tool.
    #[serde(default)]
    pub name: Option<String>,
    /// Calls of an assistant.
    #[serde(default)]
    pub tool_calls: Option<Vec<Value>>,
    /// The call that a tool's message answers.
    #[serde(default)]
    pub tool_call_id: Option<String>,
    /// What the assistant thought, for templates that show it.
    #[serde(default)]
    pub reasoning_content: Option<String>,
}

/// The content of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts of a text.
    Parts(Vec<ContentPart>),
}

/// A part of a message's content.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ContentPart {
    /// `text`. Pictures, sounds and files are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    #[serde(default)]
    pub text: Option<String>,
}

impl Content {
    fn text(&self, at: &str) -> Result<String, ApiError> {
        let parts = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Parts(parts) => parts,
        };
        let mut all = String::new();
        for (i, part) in parts.iter().enumerate() {
            match (part.kind.as_str(), &part.text) {
                ("text" | "input_text" | "output_text", Some(text)) => all.push_str(text),
                (kind, _) => {
                    let what = format!("\"{kind}\" is not supported; expected \"text\" with a text");
                    return Err(ApiError::field(format!("{at}.content[{i}].type"), what));
                }
            }
        }
        Ok(all)
    }
}

impl InputMessage {
    /// The message for a chat template. `at` is its place in the request.
    pub fn message(&self, at: &str) -> Result<Message, ApiError> {
        let role = match self.role.as_str() {
            "developer" => "system",
            role @ ("system" | "user" | "assistant" | "tool") => role,
            role => {
                let what = format!("{role:?}: expected system, developer, user, assistant or tool");
                return Err(ApiError::field(format!("{at}.role"), what));
            }
        };
        let has_calls = self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        let text = match &self.content {
            Some(content) => content.text(at)?,
            None if role == "assistant" && has_calls => String::new(),
            None => {
                return Err(ApiError::field(
                    format!("{at}.content"),
                    "is missing; expected a text",
                ));
            }
        };
        let mut message = Message::new(role.to_owned(), text);
        if let Some(name) = &self.name {
            message = message.with("name", name.as_str());
        }
        if let Some(id) = &self.tool_call_id {
            message = message.with("tool_call_id", id.as_str());
        }
        if let Some(thought) = &self.reasoning_content {
            message = message.with("reasoning_content", thought.as_str());
        }
        if let Some(calls) = self.tool_calls.as_ref().filter(|_| has_calls) {
            let calls: Result<Vec<Value>, ApiError> = calls
                .iter()
                .enumerate()
                .map(|(i, call)| tool_call(call, &format!("{at}.tool_calls[{i}]")))
                .collect();
            message = message.with("tool_calls", calls?);
        }
        Ok(message)
    }
}

/// A tool call as templates expect it: with arguments as an object, which clients send as text.
fn tool_call(call: &Value, at: &str) -> Result<Value, ApiError> {
    let wrong = |what: &str| ApiError::field(format!("{at}.function"), what);
    let function = call
        .get("function")
        .and_then(Value::as_object)
        .ok_or_else(|| wrong("is missing; expected an object with `name` and `arguments`"))?;
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(wrong("has no name; expected a text in `name`"));
    }
    let mut function: Map<String, Value> = function.clone();
    if let Some(Value::String(text)) = function.get("arguments") {
        let arguments: Value = match text.trim() {
            "" => Value::Object(Map::new()),
            text => serde_json::from_str(text).map_err(|e| {
                ApiError::field(format!("{at}.function.arguments"), format!("is not JSON: {e}"))
            })?,
        };
        function.insert("arguments".to_owned(), arguments);
    }
    let mut call = call.as_object().cloned().unwrap_or_default();
    call.insert("function".to_owned(), Value::Object(function));
    Ok(Value::Object(call))
}
