//! Requests and responses of the OpenAI API, and their conversion to requests of the engine and
//! back. Nothing here knows of HTTP or waits.

mod chat;
mod common;
mod completion;
mod error;
mod message;
mod messages;
mod part;
mod tools;

pub use chat::{
    Chat, ChatBody, ChatChoice, ChatChunk, ChatDelta, ChatMessage, ChatResponse, ChunkChoice, NamedSchema,
    ResponseFormat,
};
pub use common::{Common, Job, Limits, Model, OneOrMany, Source, StreamOptions, parse};
pub use completion::{
    Completion, CompletionBody, CompletionChoice, CompletionLogProbs, CompletionPrompt, CompletionResponse,
};
pub use error::{ApiError, ErrorBody, ErrorResponse};
pub use message::{Content, ContentPart, InputMessage};
pub use messages::{
    AnswerBlock, Block, Blocks, Messages, MessagesChoice, MessagesError, MessagesErrorBody, MessagesResponse,
    MessagesTool, MessagesUsage, StopReason, Turn,
};
pub use part::{
    FinishReason, LogProb, LogProbContent, Part, Parts, PromptDetails, TopLogProb, Usage, unique,
};
pub use tools::{
    CalledFunction, Family, Function, FunctionName, Marks, NamedTool, Output, Splitter, Tool, ToolCall,
    ToolChoice,
};
