//! `/v1/chat/completions`.

use super::common::{Common, Constraint, Job, Limits, Model, Source, at_most, refuse};
use super::error::ApiError;
use super::message::InputMessage;
use super::part::{FinishReason, LogProbContent, Usage};
use super::tools::{Marks, Tool, ToolCall, ToolChoice, call_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// Fields of a request for a chat beside [`Common`].
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct Chat {
    /// The conversation.
    #[schema(min_items = 1)]
    pub messages: Vec<InputMessage>,
    /// Another name of `max_tokens`, which it overrides.
    #[serde(default)]
    pub max_completion_tokens: Option<usize>,
    /// Log-probabilities of the tokens.
    #[serde(default)]
    pub logprobs: Option<bool>,
    /// Log-probabilities of this many of the most likely tokens, too. Needs `logprobs`.
    #[serde(default)]
    #[schema(maximum = 20)]
    pub top_logprobs: Option<usize>,
    /// What the answer looks like: `{"type": "text"}`, `{"type": "json_object"}`, or
    /// `{"type": "json_schema", "json_schema": {"schema": ...}}`.
    #[serde(default)]
    pub response_format: Option<ResponseFormat>,
    /// Variables of the model's chat template, such as `enable_thinking`.
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Continues the last message in place of answering it.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
    /// Must not be true together with `continue_final_message`.
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Tools that the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Tool>>,
    /// `auto`, `none`, `required`, or `{"type": "function", "function": {"name": ...}}`.
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    /// Not supported: write `tools`.
    #[serde(default)]
    pub functions: Option<Value>,
    /// Not supported: answers are texts.
    #[serde(default)]
    pub audio: Option<Value>,
}

/// Form of an answer.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The schema and its name.
    #[serde(default)]
    pub json_schema: Option<NamedSchema>,
    /// The schema, for clients of llama.cpp.
    #[serde(default)]
    pub schema: Option<Value>,
}

/// A JSON schema with a name.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct NamedSchema {
    /// The schema.
    #[serde(default)]
    pub schema: Option<Value>,
    /// Its name; not used.
    #[serde(default)]
    pub name: Option<String>,
}

/// The body of a request, for its documentation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ChatBody {
    /// What all routes share.
    #[serde(flatten)]
    pub common: Common,
    /// What only chats have.
    #[serde(flatten)]
    pub chat: Chat,
}

impl Chat {
    /// The job that the request describes.
    pub fn job(&self, common: &Common, model: Model<'_>, limits: &Limits) -> Result<Job, ApiError> {
        refuse("functions", self.functions.as_ref(), "write `tools`")?;
        refuse("audio", self.audio.as_ref(), "answers are texts")?;
        if self.messages.is_empty() {
            return Err(ApiError::field(
                "messages",
                "is empty; expected at least one message",
            ));
        }
        let messages = self.messages.iter().enumerate();
        let messages: Result<Vec<_>, _> = messages
            .map(|(i, message)| message.message(&format!("messages[{i}]")))
            .collect();
        let messages = messages?;
        let continues = self.continue_final_message.unwrap_or(false);
        if continues && self.add_generation_prompt == Some(true) {
            let what = "must not be true together with continue_final_message";
            return Err(ApiError::field("add_generation_prompt", what));
        }
        let mut common = common.clone();
        common.max_tokens = self.max_completion_tokens.or(common.max_tokens);
        let source = Source::Chat { messages, continues };
        let mut job = common.job(model, limits, vec![source])?;
        job.values = self.chat_template_kwargs.clone().unwrap_or_default();
        let forced = self.tools(&mut job, limits)?;
        let only_call = forced.is_some();
        for (field, constraint) in [("tool_choice", forced), ("response_format", self.constraint()?)] {
            let Some(constraint) = constraint else { continue };
            if let Some((other, _)) = job.constraint {
                let what = format!("must not be given together with {field}");
                return Err(ApiError::field(other, what));
            }
            job.constraint = Some((field, constraint));
        }
        let calls = job.values.contains_key("tools");
        job.marks = Marks::new(model.codec.chat()?.text(&job.values)?, calls, only_call);
        job.log_probs = match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (false, Some(top)) if top > 0 => {
                return Err(ApiError::field("top_logprobs", "needs \"logprobs\": true"));
            }
            (false, _) => None,
            (true, top) => Some(at_most("top_logprobs", top.unwrap_or(0), limits.top_log_probs)?),
        };
        Ok(job)
    }

    /// Declares the tools to the template. Returns what forces a call.
    fn tools(&self, job: &mut Job, limits: &Limits) -> Result<Option<Constraint>, ApiError> {
        let tools = self.tools.as_deref().unwrap_or_default();
        at_most("tools", tools.len(), limits.tools)?;
        if let Some(at) = tools.iter().position(|tool| tool.kind != "function") {
            let what = format!("{:?}: expected function", tools[at].kind);
            return Err(ApiError::field(format!("tools[{at}].type"), what));
        }
        let (required, named) = match &self.tool_choice {
            None => (false, None),
            Some(ToolChoice::Named(named)) => (true, Some(named.function.name.as_str())),
            Some(ToolChoice::Mode(mode)) => match mode.as_str() {
                "none" => return Ok(None),
                "auto" => (false, None),
                "required" => (true, None),
                other => {
                    let what = format!("{other:?}: expected none, auto, required or a function");
                    return Err(ApiError::field("tool_choice", what));
                }
            },
        };
        if tools.is_empty() {
            return match required {
                true => Err(ApiError::field("tool_choice", "needs tools; `tools` has none")),
                false => Ok(None),
            };
        }
        let forced = required.then(|| call_schema(tools, named)).transpose()?;
        job.values.insert("tools".to_owned(), json!(tools));
        Ok(forced.map(|schema| Constraint::Schema(schema.to_string())))
    }

    fn constraint(&self) -> Result<Option<Constraint>, ApiError> {
        let Some(format) = &self.response_format else {
            return Ok(None);
        };
        let named = format
            .json_schema
            .as_ref()
            .and_then(|named| named.schema.as_ref());
        let schema = match (format.kind.as_str(), named.or(format.schema.as_ref())) {
            ("text", _) => return Ok(None),
            ("json_object" | "json_schema", Some(schema)) => schema.to_string(),
            ("json_object", None) => json!({"type": "object"}).to_string(),
            ("json_schema", None) => {
                let what = "is missing; expected a JSON schema";
                return Err(ApiError::field("response_format.json_schema.schema", what));
            }
            (kind, _) => {
                let what = format!("{kind:?}: expected text, json_object or json_schema");
                return Err(ApiError::field("response_format.type", what));
            }
        };
        Ok(Some(Constraint::Schema(schema)))
    }
}

/// A message of an answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatMessage {
    /// `assistant`.
    pub role: &'static str,
    /// The text; null if there are only calls.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// What the model thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls of tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// An answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Its number.
    pub index: usize,
    /// The answer.
    pub message: ChatMessage,
    /// Log-probabilities, if they were asked for.
    pub logprobs: Option<LogProbContent>,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
}

/// The response to a request without `stream`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatResponse {
    /// Its name.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model.
    pub model: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// Counts of tokens.
    pub usage: Usage,
    /// The server's version.
    pub system_fingerprint: &'static str,
}

/// What an event adds to an answer.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ChatDelta {
    /// `assistant`, in the first event of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// What the model thinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls of tools, each as a whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// An answer in an event.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChunkChoice {
    /// Its number.
    pub index: usize,
    /// What is new.
    pub delta: ChatDelta,
    /// Log-probabilities, if they were asked for.
    pub logprobs: Option<LogProbContent>,
    /// Why it ended, in its last event.
    pub finish_reason: Option<FinishReason>,
}

/// An event of a stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChunk {
    /// Its name, the same in all events.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model.
    pub model: String,
    /// The answer to which something is added; none in the event with the counts of tokens.
    pub choices: Vec<ChunkChoice>,
    /// Counts of tokens, in the last event, if `include_usage` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The server's version.
    pub system_fingerprint: &'static str,
}
