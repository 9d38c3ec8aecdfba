//! What all routes that generate text have in common.

use super::error::ApiError;
use super::part::unique;
use super::tools::Marks;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use transformer_lite::options::Values;
use transformer_lite::{
    Cancel, Codec, GenerateOptions, Grammar, Message, ModelFolder, Prompt, Request, Sampler, SamplerConfig,
    StopStrings,
};
use utoipa::ToSchema;

/// The most that a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Answers to a prompt.
    pub n: usize,
    /// Prompts of a request for completions.
    pub prompts: usize,
    /// Log-probabilities at a token.
    pub top_log_probs: usize,
    /// Stop strings.
    pub stops: usize,
    /// Tools.
    pub tools: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            n: 8,
            prompts: 64,
            top_log_probs: 20,
            stops: 16,
            tools: 64,
        }
    }
}

/// What a request's conversion needs of a model.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    /// Its folder, which names its sampling settings.
    pub folder: &'a ModelFolder,
    /// Its tokenizer.
    pub codec: &'a Codec,
}

/// `T` from a JSON text. The error names the field.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut reader).map_err(|e| {
        let path = e.path().to_string();
        match e.inner().classify() {
            serde_json::error::Category::Data if path != "." => ApiError::field(path, e.inner().to_string()),
            _ => ApiError::new(400, format!("the body is not valid: {}", e.inner())),
        }
    })?;
    reader
        .end()
        .map_err(|e| ApiError::new(400, format!("the body is not valid: {e}")))?;
    Ok(parsed)
}

/// A value or a list.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// A single text.
    One(String),
    /// Several texts.
    Many(Vec<String>),
}

impl OneOrMany {
    fn list(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// Options of streams.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// A last event has the counts of tokens.
    #[serde(default)]
    pub include_usage: Option<bool>,
}

/// Fields that all routes share. A setting of the sampler that is not given is the model's.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct Common {
    /// A model that `/v1/models` lists; the first one if it is not given.
    pub model: Option<String>,
    /// Events while the answer is generated.
    pub stream: Option<bool>,
    /// Options of streams.
    pub stream_options: Option<StreamOptions>,
    /// Number of answers.
    #[schema(minimum = 1, maximum = 8)]
    pub n: Option<usize>,
    /// Maximum number of tokens. Without it, an answer ends when the model ends it or the context
    /// is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer and are not part of it.
    pub stop: Option<OneOrMany>,
    /// Randomness; 0 is greedy.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Samples from the most likely tokens whose probabilities sum to this.
    pub top_p: Option<f32>,
    /// Samples from this many of the most likely tokens; 0 is off.
    pub top_k: Option<i64>,
    /// Samples from tokens at least this many times as likely as the most likely one.
    pub min_p: Option<f32>,
    /// Samples from the most typical tokens whose probabilities sum to this.
    pub typical_p: Option<f32>,
    /// Divides the logits of repeated tokens.
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    /// Is subtracted for each time a token occurred.
    pub frequency_penalty: Option<f32>,
    /// Is subtracted if a token occurred.
    pub presence_penalty: Option<f32>,
    /// Number of last tokens that these penalties consider.
    #[serde(alias = "repeat_last_n")]
    pub penalty_last_n: Option<usize>,
    /// Is added to the logits of tokens, which are named by their IDs.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Seed of the sampler.
    pub seed: Option<i64>,
    /// A grammar that the answer matches: Lark (entry rule `start`) or GBNF (`root`).
    pub grammar: Option<String>,
}

/// What is generated from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A conversation.
    Chat {
        /// Its messages.
        messages: Vec<Message>,
        /// Whether the last message is continued in place of answered.
        continues: bool,
    },
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
}

/// What constrains an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Constraint {
    Grammar(String),
    Schema(String),
}

/// A request in the terms of the engine, whatever route it came by.
#[derive(Clone, Debug)]
pub struct Job {
    /// What is generated from. All are answered `n` times.
    pub sources: Vec<Source>,
    /// Number of answers to each.
    pub n: usize,
    /// Further variables of the chat template.
    pub values: Values,
    /// What to look for in the answers.
    pub marks: Marks,
    pub(super) constraint: Option<(&'static str, Constraint)>,
    pub(super) log_probs: Option<usize>,
    config: SamplerConfig,
    max_tokens: usize,
    stop: StopStrings,
}

/// Bounds of `logit_bias`.
const BIAS: f32 = 100.0;

impl Common {
    /// Whether a stream ends with the counts of tokens.
    pub fn wants_usage(&self) -> bool {
        self.stream_options
            .and_then(|options| options.include_usage)
            .unwrap_or(false)
    }

    /// The settings of the sampler: those of the model, where the request has none.
    fn sampler(&self, folder: &ModelFolder) -> Result<SamplerConfig, ApiError> {
        let samples = self.temperature.is_some_and(|t| t > 0.0)
            || self.top_k.is_some_and(|k| k != 1)
            || [self.top_p, self.min_p, self.typical_p]
                .iter()
                .any(Option::is_some);
        let mut config = match samples {
            true => folder.generation.sampling(),
            false => folder.sampling(),
        };
        let set = |to: &mut f32, from: Option<f32>| *to = from.unwrap_or(*to);
        set(&mut config.temperature, self.temperature);
        set(&mut config.top_p, self.top_p);
        set(&mut config.min_p, self.min_p);
        set(&mut config.typical_p, self.typical_p);
        set(&mut config.penalties.repetition, self.repetition_penalty);
        set(&mut config.penalties.frequency, self.frequency_penalty);
        set(&mut config.penalties.presence, self.presence_penalty);
        if let Some(last) = self.penalty_last_n {
            config.penalties.last_n = last;
        }
        if let Some(k) = self.top_k {
            // Negative numbers are off, as in other servers.
            config.top_k = usize::try_from(k).unwrap_or_default();
        }
        for (token, bias) in self.logit_bias.iter().flatten() {
            let field = || format!("logit_bias.{token}");
            let id = token
                .parse()
                .map_err(|_| ApiError::field(field(), "expected a token ID"))?;
            if !(-BIAS..=BIAS).contains(bias) {
                let what = format!("{bias} is out of range; expected -{BIAS} to {BIAS}");
                return Err(ApiError::field(field(), what));
            }
            config.logit_bias.push((id, *bias));
        }
        config.seed = match self.seed {
            Some(seed) if seed >= 0 => seed.cast_unsigned(),
            _ => unique(),
        };
        Ok(config)
    }

    /// The job that these fields describe, from `sources`.
    pub(super) fn job(
        &self,
        model: Model<'_>,
        limits: &Limits,
        sources: Vec<Source>,
    ) -> Result<Job, ApiError> {
        let n = self.n.unwrap_or(1);
        if !(1..=limits.n).contains(&n) {
            let what = format!("{n} is out of range; expected 1 to {}", limits.n);
            return Err(ApiError::field("n", what));
        }
        let stops = self.stop.as_ref().map_or(&[][..], OneOrMany::list);
        if stops.len() > limits.stops {
            let what = format!("has {} texts; at most {} are allowed", stops.len(), limits.stops);
            return Err(ApiError::field("stop", what));
        }
        let config = self.sampler(model.folder)?;
        // Finds numbers that are out of range now, not while the answer is generated.
        Sampler::new(config.clone())?;
        Ok(Job {
            sources,
            n,
            values: Values::new(),
            marks: Marks::default(),
            constraint: self
                .grammar
                .clone()
                .map(|text| ("grammar", Constraint::Grammar(text))),
            log_probs: None,
            config,
            max_tokens: self.max_tokens.unwrap_or(usize::MAX),
            stop: StopStrings::new(stops.to_vec())?,
        })
    }
}

impl Job {
    /// Whether a grammar or schema constrains the answers.
    pub fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Whether answers have log-probabilities.
    pub fn wants_log_probs(&self) -> bool {
        self.log_probs.is_some()
    }

    /// The tokens of each source. May take long, since templates are programs of the model's
    /// author; `cancel` ends it.
    pub fn prompts(&self, codec: &Codec, cancel: &Cancel) -> Result<Vec<Vec<u32>>, ApiError> {
        self.sources
            .iter()
            .map(|source| {
                let prompt = match source {
                    Source::Chat { messages, continues } => match continues {
                        true => Prompt::Continued(messages),
                        false => Prompt::Chat(messages),
                    },
                    Source::Text(text) => Prompt::Text(text),
                    Source::Tokens(tokens) => Prompt::Tokens(tokens),
                };
                Ok(codec.encode(prompt, &self.values, cancel)?)
            })
            .collect()
    }

    /// The grammar that constrains each answer; compiling it may take long.
    pub fn grammar(&self, codec: &Codec) -> Result<Option<Grammar>, ApiError> {
        let (tokenizer, eos) = (codec.tokenizer(), codec.eos());
        let Some((field, constraint)) = &self.constraint else {
            return Ok(None);
        };
        let grammar = match constraint {
            Constraint::Grammar(text) => Grammar::lark(text, tokenizer, eos),
            Constraint::Schema(text) => Grammar::json_schema(text, tokenizer, eos),
        };
        grammar
            .map(Some)
            .map_err(|e| ApiError::field(*field, e.chain()).with_code("invalid_grammar"))
    }

    /// The request for the answer number `at` of its prompt.
    pub fn request(&self, at: usize, grammar: Option<&Grammar>) -> Result<Request, ApiError> {
        let mut config = self.config.clone();
        config.seed = config.seed.wrapping_add(at as u64);
        let mut sampler = Sampler::new(config)?;
        if let Some(grammar) = grammar {
            sampler = sampler.constrained(Box::new(grammar.clone()));
        }
        let options = GenerateOptions {
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            log_probs: self.log_probs,
            ..GenerateOptions::default()
        };
        Ok(Request {
            options,
            sampler,
            ..Request::default()
        })
    }
}

/// A count within bounds. The error names the field.
pub(super) fn at_most(field: &str, found: usize, most: usize) -> Result<usize, ApiError> {
    match found <= most {
        true => Ok(found),
        false => Err(ApiError::field(
            field,
            format!("{found} is too large; expected at most {most}"),
        )),
    }
}

/// Refuses a field that would change the answer and is not supported.
pub(super) fn refuse(field: &str, value: Option<&Value>, instead: &str) -> Result<(), ApiError> {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => Ok(()),
        Some(_) => Err(ApiError::field(field, format!("is not supported; {instead}"))),
    }
}
