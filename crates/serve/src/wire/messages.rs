//! `/v1/messages`, Anthropic's form of chats.

use super::chat::Chat;
use super::common::{Common, OneOrMany, StreamOptions};
use super::error::ApiError;
use super::message::{Content, ContentPart, InputMessage};
use super::part::{FinishReason, Usage};
use super::tools::{Function, FunctionName, NamedTool, Tool, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

/// A request.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct Messages {
    /// A model that `/v1/models` lists.
    #[serde(default)]
    pub model: Option<String>,
    /// Maximum number of tokens. Counting tokens needs none.
    #[serde(default)]
    pub max_tokens: Option<usize>,
    /// The conversation.
    #[schema(min_items = 1)]
    pub messages: Vec<Turn>,
    /// The system prompt.
    #[serde(default)]
    pub system: Option<Blocks>,
    /// Texts that end the answer.
    #[serde(default)]
    pub stop_sequences: Option<Vec<String>>,
    /// Events while the answer is generated.
    #[serde(default)]
    pub stream: Option<bool>,
    /// Randomness; 0 is greedy.
    #[serde(default)]
    pub temperature: Option<f32>,
    /// As in `/v1/chat/completions`.
    #[serde(default)]
    pub top_p: Option<f32>,
    /// As in `/v1/chat/completions`.
    #[serde(default)]
    pub top_k: Option<i64>,
    /// Tools that the model may call.
    #[serde(default)]
    pub tools: Option<Vec<MessagesTool>>,
    /// `{"type": "auto"}`, `any`, `none`, or `tool` with a name.
    #[serde(default)]
    pub tool_choice: Option<MessagesChoice>,
}

/// A message of a request.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct Turn {
    /// `user` or `assistant`.
    pub role: String,
    /// The content.
    pub content: Blocks,
}

/// A text, whole or in blocks.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Blocks {
    /// A text.
    Text(String),
    /// Blocks.
    List(Vec<Block>),
}

/// A block of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct Block {
    /// `text`, `thinking`, `tool_use` or `tool_result`. Pictures and documents are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    #[serde(default)]
    pub text: Option<String>,
    /// The thought.
    #[serde(default)]
    pub thinking: Option<String>,
    /// The name of a call.
    #[serde(default)]
    pub id: Option<String>,
    /// The tool of a call.
    #[serde(default)]
    pub name: Option<String>,
    /// The arguments of a call.
    #[serde(default)]
    pub input: Option<Value>,
    /// The call of a result.
    #[serde(default)]
    pub tool_use_id: Option<String>,
    /// A result: a text or a list of blocks.
    #[serde(default)]
    pub content: Option<Value>,
}

/// A tool.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct MessagesTool {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(default)]
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    #[serde(default)]
    pub input_schema: Option<Value>,
    /// The kind of a tool that the server would run: not supported.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
}

/// Which tool is called.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct MessagesChoice {
    /// `auto`, `any`, `none` or `tool`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The tool.
    #[serde(default)]
    pub name: Option<String>,
}

impl Blocks {
    /// The text of blocks that are all texts.
    fn text(&self, at: &str) -> Result<String, ApiError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::List(blocks) => blocks
                .iter()
                .enumerate()
                .map(|(i, block)| block.text(&format!("{at}[{i}]")))
                .collect(),
        }
    }
}

impl Block {
    fn text(&self, at: &str) -> Result<String, ApiError> {
        match (self.kind.as_str(), &self.text) {
            ("text", Some(text)) => Ok(text.clone()),
            (kind, _) => {
                let what = format!("{kind:?} is not supported; expected text");
                Err(ApiError::field(format!("{at}.type"), what))
            }
        }
    }

    /// The text of a result.
    fn result(&self, at: &str) -> Result<String, ApiError> {
        match &self.content {
            None | Some(Value::Null) => Ok(String::new()),
            Some(value) => {
                let blocks: Blocks = serde_json::from_value(value.clone())
                    .map_err(|e| ApiError::field(format!("{at}.content"), e.to_string()))?;
                blocks.text(&format!("{at}.content"))
            }
        }
    }
}

impl Turn {
    /// The messages that the turn becomes: results of tools are messages of their own.
    fn messages(&self, at: &str, out: &mut Vec<InputMessage>) -> Result<(), ApiError> {
        if !matches!(self.role.as_str(), "user" | "assistant") {
            let what = format!("{:?}: expected user or assistant", self.role);
            return Err(ApiError::field(format!("{at}.role"), what));
        }
        let blocks = match &self.content {
            Blocks::Text(text) => {
                out.push(message(&self.role, text.clone()));
                return Ok(());
            }
            Blocks::List(blocks) => blocks,
        };
        let (mut text, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
        for (i, block) in blocks.iter().enumerate() {
            let at = format!("{at}.content[{i}]");
            match block.kind.as_str() {
                "thinking" => thought += block.thinking.as_deref().unwrap_or_default(),
                "redacted_thinking" => {}
                "tool_use" => {
                    let name = block.name.as_deref();
                    let name = name.ok_or_else(|| ApiError::field(format!("{at}.name"), "is missing"))?;
                    calls.push(json!({
                        "id": block.id, "type": "function",
                        "function": {"name": name, "arguments": block.input.clone().unwrap_or_else(|| json!({}))},
                    }));
                }
                "tool_result" => {
                    let mut result = message("tool", block.result(&at)?);
                    result.tool_call_id.clone_from(&block.tool_use_id);
                    out.push(result);
                }
                _ => text += &block.text(&at)?,
            }
        }
        if !text.is_empty() || !calls.is_empty() || !thought.is_empty() {
            let mut own = message(&self.role, text);
            own.tool_calls = (!calls.is_empty()).then_some(calls);
            own.reasoning_content = (!thought.is_empty()).then_some(thought);
            out.push(own);
        }
        Ok(())
    }
}

fn message(role: &str, text: String) -> InputMessage {
    InputMessage {
        role: role.to_owned(),
        content: Some(Content::Parts(vec![ContentPart {
            kind: "text".to_owned(),
            text: Some(text),
        }])),
        name: None,
        tool_calls: None,
        tool_call_id: None,
        reasoning_content: None,
    }
}

impl Messages {
    /// The same request in the form of `/v1/chat/completions`.
    pub fn chat(&self) -> Result<(Common, Chat), ApiError> {
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            messages.push(message("system", system.text("system")?));
        }
        for (i, turn) in self.messages.iter().enumerate() {
            turn.messages(&format!("messages[{i}]"), &mut messages)?;
        }
        // An assistant's last message is the beginning of the answer.
        let continues = self.messages.last().is_some_and(|turn| turn.role == "assistant");
        let tools: Result<Vec<Tool>, ApiError> = self
            .tools
            .iter()
            .flatten()
            .enumerate()
            .map(|(i, tool)| tool.tool(&format!("tools[{i}]")))
            .collect();
        let tools = tools?;
        let common = Common {
            model: self.model.clone(),
            stream: self.stream,
            stream_options: Some(StreamOptions {
                include_usage: Some(true),
            }),
            max_tokens: self.max_tokens,
            stop: self.stop_sequences.clone().map(OneOrMany::Many),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            ..Common::default()
        };
        let chat = Chat {
            messages,
            tools: (!tools.is_empty()).then_some(tools),
            tool_choice: self
                .tool_choice
                .as_ref()
                .map(MessagesChoice::choice)
                .transpose()?,
            continue_final_message: Some(continues),
            ..Chat::default()
        };
        Ok((common, chat))
    }
}

impl MessagesTool {
    fn tool(&self, at: &str) -> Result<Tool, ApiError> {
        if let Some(kind) = self.kind.as_deref().filter(|kind| *kind != "custom") {
            let what = format!("{kind:?} is not supported; expected custom");
            return Err(ApiError::field(format!("{at}.type"), what));
        }
        Ok(Tool {
            kind: "function".to_owned(),
            function: Function {
                name: self.name.clone(),
                description: self.description.clone(),
                parameters: self.input_schema.clone(),
                strict: None,
            },
        })
    }
}

impl MessagesChoice {
    fn choice(&self) -> Result<ToolChoice, ApiError> {
        let mode = |mode: &str| Ok(ToolChoice::Mode(mode.to_owned()));
        match (self.kind.as_str(), &self.name) {
            (kind @ ("auto" | "none"), _) => mode(kind),
            ("any", _) => mode("required"),
            ("tool", Some(name)) => Ok(ToolChoice::Named(NamedTool {
                function: FunctionName { name: name.clone() },
            })),
            (kind, _) => {
                let what = format!("{kind:?}: expected auto, any, none, or tool with a name");
                Err(ApiError::field("tool_choice.type", what))
            }
        }
    }
}

/// A block of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnswerBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// What the model thought.
    Thinking {
        /// The thought.
        thinking: String,
        /// Always empty.
        signature: String,
    },
    /// A call.
    ToolUse {
        /// Its name.
        id: String,
        /// The tool.
        name: String,
        /// The arguments.
        input: Value,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended it.
    EndTurn,
    /// At its maximum number of tokens, or because the context is full.
    MaxTokens,
    /// At a stop sequence.
    StopSequence,
    /// The model calls tools.
    ToolUse,
}

impl StopReason {
    /// For an answer that ended with `finish`, perhaps at a stop sequence.
    pub fn of(finish: FinishReason, stop: Option<&str>) -> Self {
        match (finish, stop) {
            (FinishReason::Length, _) => Self::MaxTokens,
            (FinishReason::ToolCalls, _) => Self::ToolUse,
            (FinishReason::Stop, Some(_)) => Self::StopSequence,
            (FinishReason::Stop, None) => Self::EndTurn,
        }
    }
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct MessagesUsage {
    /// Tokens of the prompt that were not in the cache.
    pub input_tokens: usize,
    /// Generated tokens.
    pub output_tokens: usize,
    /// Tokens of the prompt that were in the cache.
    pub cache_read_input_tokens: usize,
    /// Always 0.
    pub cache_creation_input_tokens: usize,
}

impl From<Usage> for MessagesUsage {
    fn from(usage: Usage) -> Self {
        let cached = usage.prompt_tokens_details.cached_tokens;
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            output_tokens: usage.completion_tokens,
            cache_read_input_tokens: cached,
            cache_creation_input_tokens: 0,
        }
    }
}

/// The response to a request without `stream`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MessagesResponse {
    /// Its name.
    pub id: String,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `assistant`.
    pub role: &'static str,
    /// The model.
    pub model: String,
    /// The answer.
    pub content: Vec<AnswerBlock>,
    /// Why it ended.
    pub stop_reason: Option<StopReason>,
    /// The stop sequence that ended it.
    pub stop_sequence: Option<String>,
    /// Counts of tokens.
    pub usage: MessagesUsage,
}

/// An error in this form.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MessagesError {
    /// `error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is wrong.
    pub error: MessagesErrorBody,
}

/// What is wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MessagesErrorBody {
    /// As in the other routes.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The message.
    pub message: String,
}

impl From<ApiError> for MessagesError {
    fn from(e: ApiError) -> Self {
        Self {
            kind: "error",
            error: MessagesErrorBody {
                kind: e.body.kind,
                message: e.body.message,
            },
        }
    }
}
