//! Answers of sessions.

use crate::args::{array, json_object, null, object, text, text_or_none};
use crate::error::{guarded, remember, stopped};
use crate::options::{Options, options_of, write_defaults};
use crate::session::TliteSession;
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use transformer_lite::options::{Dry, Penalties};
use transformer_lite::{
    Cancel, Codec, DefaultBound, Error, ErrorKind, Finish, GenerateOptions, Grammar, LogProbs, Message,
    Metrics, Piece, Prompt, Result, Sampler, SamplerConfig, SchemaOptions, StopStrings, TopToken,
};

/// How tokens are chosen and when an answer ends. Initialize it with `tlite_generate_defaults`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TliteGenerateOptions {
    /// Size of this struct in bytes, as the program was compiled with it.
    pub size: usize,
    /// Maximum number of tokens to generate. 0 generates none.
    pub max_tokens: usize,
    /// Sample only from this many most likely tokens. 0 disables the filter.
    pub top_k: usize,
    /// Seed of the random generator. Equal seeds give equal texts on the same device with the same
    /// options, if the same part of the prompt comes from the KV cache. A reused part can round
    /// differently from one that is run again, and then other tokens may be chosen.
    pub seed: u64,
    /// 0 always picks the most likely token. Higher values make the choice more random.
    pub temperature: f32,
    /// Sample from the fewest tokens whose probabilities reach this sum. 1 disables the filter.
    pub top_p: f32,
    /// Sample only from tokens at least this many times as likely as the most likely one. 0
    /// disables the filter.
    pub min_p: f32,
    /// Divide positive logits of recent tokens by this, and multiply negative ones by it. 1
    /// disables the penalty.
    pub repetition_penalty: f32,
    /// If not 0, generation continues when the context is full. A conversation drops its oldest
    /// turns but keeps system messages. A text keeps the prompt and the last half of what followed
    /// it.
    pub context_shift: c_int,
    /// `stop_count` UTF-8 strings that end the answer and are not part of it. None may be empty.
    /// NULL if there are none.
    pub stop: *const *const c_char,
    /// Number of strings in `stop`.
    pub stop_count: usize,
    /// A JSON object in UTF-8 with extra variables for the chat template, such as
    /// `{"tools": [...], "enable_thinking": false}`, or NULL.
    pub template_values: *const c_char,
    /// A grammar in UTF-8 that the answer must match: in Lark notation with the entry rule `start`,
    /// or in GBNF, the notation of llama.cpp, with the rule `root`. NULL for none.
    pub grammar: *const c_char,
    /// A JSON schema in UTF-8; the answer is JSON that matches it. NULL for none. An answer has a
    /// grammar or a schema, not both.
    pub json_schema: *const c_char,
    /// Receives tokens with their log-probabilities. NULL for none.
    pub on_token: TliteTokenCallback,
    /// How many of the most likely tokens `on_token` receives for each position. -1 disables
    /// log-probabilities, which slow greedy decoding.
    pub log_probs: isize,
    /// Number of last tokens that `repetition_penalty`, `frequency_penalty` and `presence_penalty`
    /// apply to. 0 disables them.
    pub penalty_last_n: usize,
    /// Subtracted from the logit of a token for each time that it occurs. 0 disables the penalty.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of a token that occurs. 0 disables the penalty.
    pub presence_penalty: f32,
    /// Locally typical sampling: sample from the tokens whose information is closest to the
    /// entropy, with at least this total probability. 1 disables the filter.
    pub typical_p: f32,
    /// Strength of the penalty for tokens that would repeat a sequence (DRY). 0 disables it.
    pub dry_multiplier: f32,
    /// `logit_bias_count` changes of logits. NULL if there are none.
    pub logit_bias: *const TliteLogitBias,
    /// Number of elements in `logit_bias`.
    pub logit_bias_count: usize,
    /// If not 0, values that `json_schema` does not bound may be of any length. Otherwise, numbers
    /// have at most 40 digits, strings 4096 characters, and arrays 256 items.
    pub json_unbounded: usize,
}

/// A change of a token's logit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TliteLogitBias {
    /// Token ID.
    pub token: u32,
    /// Added to the logit. Minus infinity forbids the token.
    pub bias: f32,
}

// SAFETY: as the trait requires.
unsafe impl Options for TliteGenerateOptions {
    const FIRST: usize = offset_of!(Self, template_values) + size_of::<*const c_char>();

    fn defaults() -> Self {
        let (answer, sampling) = (GenerateOptions::default(), SamplerConfig::default());
        Self {
            size: size_of::<Self>(),
            max_tokens: answer.max_tokens,
            top_k: sampling.top_k,
            seed: sampling.seed,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition_penalty: sampling.penalties.repetition,
            context_shift: 0,
            stop: std::ptr::null(),
            stop_count: 0,
            template_values: std::ptr::null(),
            grammar: std::ptr::null(),
            json_schema: std::ptr::null(),
            on_token: None,
            log_probs: -1,
            penalty_last_n: sampling.penalties.last_n,
            frequency_penalty: sampling.penalties.frequency,
            presence_penalty: sampling.penalties.presence,
            typical_p: sampling.typical_p,
            dry_multiplier: sampling.dry.multiplier,
            logit_bias: std::ptr::null(),
            logit_bias_count: 0,
            json_unbounded: 0,
        }
    }
}

/// A message of a conversation.
#[repr(C)]
pub struct TliteMessage {
    /// "system", "user", "assistant" or "tool".
    pub role: *const c_char,
    /// Text of the message, in UTF-8.
    pub content: *const c_char,
    /// A JSON object in UTF-8 with further fields for the chat template, such as `tool_calls`,
    /// `tool_call_id` or `name`, or NULL. A `content` field in it, which may be null, replaces the
    /// member above.
    pub extra: *const c_char,
}

/// Why an answer ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TliteFinish {
    /// The call failed; see `tlite_last_error`. Text delivered before is valid.
    Error = -1,
    /// The model ended the answer.
    EndOfText = 0,
    /// A stop string was generated.
    StopString = 1,
    /// The maximum number of tokens was generated.
    MaxTokens = 2,
    /// The KV cache has no room for another token.
    ContextFull = 3,
    /// `tlite_cancel` was called.
    Cancelled = 4,
    /// A callback returned a value other than 0; `tlite_last_error` names it. Text delivered before
    /// is valid.
    Callback = 5,
}

/// Receives a piece of text: `length` bytes of UTF-8, always whole characters, followed by a 0
/// byte. The text itself may contain 0 bytes. `text` is valid only during the call. Returns 0 to
/// continue, any other value to end the answer. It must return normally (no `longjmp`, no
/// exception), and must not generate with, clear or free the session.
pub type TliteCallback =
    Option<unsafe extern "C" fn(text: *const c_char, length: usize, user: *mut c_void) -> c_int>;

/// A token at a position, and its natural log-probability before the sampler changes it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TliteLogProb {
    /// Token ID.
    pub token: u32,
    /// The log-probability; NaN unless the option `log_probs` is set.
    pub log_prob: f32,
    /// The text in UTF-8 that it adds, or its name if it is special. Bytes that are not whole
    /// characters become U+FFFD.
    pub text: *const c_char,
    /// Length of `text` in bytes, without the 0 byte that follows it.
    pub length: usize,
}

/// Receives a token that was chosen, and `top_count` of the most likely tokens at its position,
/// largest first. It is called before the callback for the token's text, with the same `user`, and
/// under the same rules. Pointers are valid only during the call.
pub type TliteTokenCallback = Option<
    unsafe extern "C" fn(
        chosen: *const TliteLogProb,
        top: *const TliteLogProb,
        top_count: usize,
        user: *mut c_void,
    ) -> c_int,
>;

/// Counts and times of an answer. Times cover the model and the sampler, not the callbacks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TliteMetrics {
    /// Size of this struct in bytes, as the program was compiled with it.
    pub size: usize,
    /// Prompt tokens that were computed.
    pub prompt_tokens: usize,
    /// Prompt tokens that the KV cache held.
    pub reused_tokens: usize,
    /// Tokens of the answer, without an end token.
    pub tokens: usize,
    /// Tokens after the first one, including an end token.
    pub decode_tokens: usize,
    /// Tokens that were dropped because the context was full.
    pub forgotten_tokens: usize,
    /// Seconds from the start of the prompt to the first token.
    pub first_token_s: f64,
    /// Seconds for `decode_tokens`.
    pub decode_s: f64,
}

// SAFETY: as the trait requires.
unsafe impl Options for TliteMetrics {
    const FIRST: usize = size_of::<Self>();

    fn defaults() -> Self {
        Metrics::default().into()
    }
}

impl From<Metrics> for TliteMetrics {
    fn from(m: Metrics) -> Self {
        Self {
            size: size_of::<Self>(),
            prompt_tokens: m.prompt_tokens,
            reused_tokens: m.reused_tokens,
            tokens: m.tokens,
            decode_tokens: m.decode_tokens,
            forgotten_tokens: m.forgotten,
            first_token_s: m.first_token.as_secs_f64(),
            decode_s: m.decode.as_secs_f64(),
        }
    }
}

/// Writes the defaults to `options`; `size` is `sizeof *options`. The defaults are at most 256
/// tokens and greedy decoding. Returns 0, or -1 if the library does not know this size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_generate_defaults(options: *mut TliteGenerateOptions, size: usize) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { write_defaults(options, size) }
}

/// Continues the text `prompt`, in UTF-8, and passes each piece of new text to `callback` with
/// `user`. `options` may be NULL. A prefix that the prompt shares with the session's KV cache is
/// not computed again.
///
/// The session must not be freed before the call ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_generate(
    session: *const TliteSession,
    prompt: *const c_char,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> TliteFinish {
    guarded(TliteFinish::Error, || {
        // SAFETY: as the caller promises.
        unsafe {
            let prompt = text("prompt", prompt)?;
            generate(session, Prompt::Text(prompt), options, callback, user)
        }
    })
}

/// Like `tlite_generate`, but answers a conversation of `count` messages, formatted with the
/// model's chat template. Pass the whole conversation at each turn, including earlier answers:
/// their tokens stay in the cache, and only new messages are computed. The session must not be
/// freed before the call ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_chat(
    session: *const TliteSession,
    messages: *const TliteMessage,
    count: usize,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> TliteFinish {
    guarded(TliteFinish::Error, || {
        // SAFETY: as the caller promises.
        unsafe {
            let messages = messages_of(messages, count)?;
            generate(session, Prompt::Chat(&messages), options, callback, user)
        }
    })
}

/// Messages of the Rust interface.
///
/// # Safety
///
/// As for [`tlite_chat`].
pub(crate) unsafe fn messages_of(messages: *const TliteMessage, count: usize) -> Result<Vec<Message>> {
    // SAFETY: as the caller promises.
    unsafe {
        array("messages", messages, count)?
            .iter()
            .map(|m| message(m))
            .collect()
    }
}

/// Converts a message to that of the Rust interface.
///
/// # Safety
///
/// As for [`tlite_chat`].
unsafe fn message(given: &TliteMessage) -> Result<Message> {
    // SAFETY: as the caller promises.
    let (role, content, extra) = unsafe {
        (
            text("role", given.role)?,
            text("content", given.content)?,
            json_object("extra", given.extra)?,
        )
    };
    if !["system", "user", "assistant", "tool"].contains(&role) {
        let what = format!("\"{role}\" is not valid; expected system, user, assistant or tool");
        return Err(Error::usage("role", what));
    }
    Ok(Message {
        extra,
        ..Message::new(role.to_owned(), content)
    })
}

/// The text that an answer must match.
enum Constraint {
    Grammar(String),
    JsonSchema { text: String, unbounded: bool },
}

/// A call's options, as those of the Rust interface.
pub(crate) struct Settings {
    /// Without [`GenerateOptions::cancel`].
    pub(crate) answer: GenerateOptions,
    sampling: SamplerConfig,
    constraint: Option<Constraint>,
    pub(crate) slides: bool,
    on_token: TliteTokenCallback,
}

impl Settings {
    /// # Safety
    ///
    /// As for [`tlite_generate`].
    pub(crate) unsafe fn new(options: *const TliteGenerateOptions) -> Result<Self> {
        // SAFETY: as the caller promises.
        let given = unsafe { options_of(options) }?.unwrap_or_else(TliteGenerateOptions::defaults);
        // SAFETY: as the caller promises.
        let (stop, template_values, bias, grammar, schema) = unsafe {
            let stop = array("stop", given.stop, given.stop_count)?.iter();
            (
                stop.map(|s| Ok(text("stop", *s)?.to_owned()))
                    .collect::<Result<Vec<_>>>()?,
                json_object("template_values", given.template_values)?,
                array("logit_bias", given.logit_bias, given.logit_bias_count)?,
                text_or_none("grammar", given.grammar)?.map(str::to_owned),
                text_or_none("json_schema", given.json_schema)?.map(str::to_owned),
            )
        };
        let constraint = match (grammar, schema) {
            (Some(_), Some(_)) => {
                return Err(Error::usage(
                    "json_schema",
                    "cannot be used with `grammar`; set one of them",
                ));
            }
            (grammar, schema) => {
                grammar
                    .map(Constraint::Grammar)
                    .or(schema.map(|text| Constraint::JsonSchema {
                        text,
                        unbounded: given.json_unbounded != 0,
                    }))
            }
        };
        let log_probs = usize::try_from(given.log_probs).ok();
        if log_probs.is_none() && given.log_probs != -1 {
            let what = format!("is {}, expected -1 or more", given.log_probs);
            return Err(Error::usage("log_probs", what));
        }
        if log_probs.is_some() && given.on_token.is_none() {
            return Err(Error::usage("log_probs", "needs `on_token`, which receives them"));
        }
        let sampling = SamplerConfig {
            logit_bias: bias.iter().map(|b| (b.token, b.bias)).collect(),
            penalties: Penalties {
                last_n: given.penalty_last_n,
                repetition: given.repetition_penalty,
                frequency: given.frequency_penalty,
                presence: given.presence_penalty,
            },
            dry: Dry {
                multiplier: given.dry_multiplier,
                ..Dry::default()
            },
            top_k: given.top_k,
            typical_p: given.typical_p,
            top_p: given.top_p,
            min_p: given.min_p,
            temperature: given.temperature,
            seed: given.seed,
        };
        Ok(Self {
            answer: GenerateOptions {
                max_tokens: given.max_tokens,
                stop: StopStrings::new(stop)?,
                log_probs,
                template_values,
                ..GenerateOptions::default()
            },
            sampling,
            constraint,
            slides: given.context_shift != 0,
            on_token: given.on_token,
        })
    }

    /// The sampler for a model.
    pub(crate) fn sampler(&self, codec: &Codec) -> Result<Sampler> {
        let sampler = Sampler::new(self.sampling.clone())?;
        let (tokenizer, eos) = (codec.tokenizer(), codec.eos());
        let (name, grammar) = match &self.constraint {
            None => return Ok(sampler),
            Some(Constraint::Grammar(text)) => ("grammar", Grammar::lark(text, tokenizer, eos)),
            Some(Constraint::JsonSchema { text, unbounded }) => {
                let options = SchemaOptions {
                    json_unbounded: *unbounded,
                    ..SchemaOptions::default()
                };
                let grammar = Grammar::json_schema_with(text, &options, tokenizer, eos);
                ("json_schema", grammar)
            }
        };
        let grammar = grammar.map_err(|e| Error::usage(name, e.chain()))?;
        Ok(sampler.constrained(Box::new(grammar)))
    }
}

/// The callbacks of an answer.
#[derive(Clone, Copy)]
pub(crate) struct Receiver {
    text: TliteCallback,
    token: TliteTokenCallback,
    user: *mut c_void,
}

// SAFETY: callbacks of requests may be called on another thread, as their creator promises; others
// stay on the thread of their call.
unsafe impl Send for Receiver {}

impl Receiver {
    /// # Safety
    ///
    /// The callbacks may be called with `user` until the receiver is dropped; from another thread
    /// if it is sent there.
    pub(crate) unsafe fn new(
        callback: TliteCallback,
        settings: &Settings,
        user: *mut c_void,
    ) -> Result<Self> {
        Ok(Self {
            text: Some(callback.ok_or_else(|| null("callback"))?),
            token: settings.on_token,
            user,
        })
    }

    /// Passes a piece to the callbacks; an error if one of them wants no more.
    fn put(&self, piece: &Piece, codec: &Codec) -> Result<()> {
        if let (Some(callback), Some(token)) = (self.token, piece.token) {
            let unknown = || LogProbs {
                chosen: f32::NAN,
                text: codec.tokenizer().text_of(token.id),
                top: Vec::new(),
            };
            let found = piece.log_probs.clone().unwrap_or_else(unknown);
            let chosen = TopToken {
                id: token.id,
                log_prob: found.chosen,
                text: found.text,
            };
            let all = std::iter::once(chosen).chain(found.top);
            let texts = all.map(|t| (t.id, t.log_prob, t.text.len(), with_end(&t.text)));
            let texts: Vec<_> = texts.collect();
            let of_c = texts.iter().map(|(token, log_prob, length, text)| TliteLogProb {
                token: *token,
                log_prob: *log_prob,
                text: text.as_ptr().cast(),
                length: *length,
            });
            let of_c: Vec<TliteLogProb> = of_c.collect();
            if let Some((chosen, top)) = of_c.split_first() {
                // SAFETY: the texts outlive the call; the rest is as promised to `new`.
                let returned = unsafe { callback(chosen, top.as_ptr(), top.len(), self.user) };
                if returned != 0 {
                    return Err(stopped("on_token", returned));
                }
            }
        }
        if let (Some(callback), false) = (self.text, piece.text.is_empty()) {
            let bytes = with_end(&piece.text);
            // SAFETY: the bytes outlive the call and end with a 0; the rest is as promised to
            // `new`.
            let returned = unsafe { callback(bytes.as_ptr().cast(), piece.text.len(), self.user) };
            if returned != 0 {
                return Err(stopped("callback", returned));
            }
        }
        Ok(())
    }

    /// Passes `pieces` to the callbacks. Returns false after one of them wanted no more, which the
    /// last error of this thread then says.
    pub(crate) fn receive(
        &self,
        pieces: &mut dyn Iterator<Item = Result<Piece>>,
        codec: &Codec,
    ) -> Result<bool> {
        for piece in pieces {
            match self.put(&piece?, codec) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {
                    remember(e.kind().into(), &e.chain());
                    return Ok(false);
                }
                done => done?,
            }
        }
        Ok(true)
    }
}

/// A text that a 0 byte follows.
fn with_end(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// Common part of [`tlite_generate`] and [`tlite_chat`].
///
/// # Safety
///
/// As for [`tlite_generate`].
unsafe fn generate(
    session: *const TliteSession,
    prompt: Prompt<'_>,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> Result<TliteFinish> {
    // SAFETY: as the caller promises.
    let (handle, mut settings) = unsafe { (object("session", session)?, Settings::new(options)?) };
    // SAFETY: as the caller promises.
    let receiver = unsafe { Receiver::new(callback, &settings, user) }?;
    let finished = handle.with(|conversation| {
        settings.answer.cancel = handle.cancel.clone();
        // A cancellation ends with the call, however the call ends.
        let _over = Over(&handle.cancel);
        let session = conversation.session();
        let codec = session.codec().clone();
        session.set_sampler(settings.sampler(&codec)?);
        let options = &mut settings.answer;
        let (wanted, metrics, reached, end) = match prompt {
            Prompt::Chat(messages) => {
                conversation.set_slides(settings.slides);
                let mut answer = conversation.answer(messages.to_vec(), options)?;
                let wanted = receiver.receive(&mut answer, &codec);
                (wanted, answer.metrics(), answer.reached(), answer.finish())
            }
            prompt => {
                let tokens = codec.encode(prompt, &options.template_values, &options.cancel)?;
                options.slide = settings.slides.then_some(tokens.len());
                let mut answer = session.generate(tokens.as_slice(), options)?;
                let wanted = receiver.receive(&mut answer, &codec);
                (wanted, answer.metrics(), answer.reached(), answer.finish())
            }
        };
        handle.set_metrics(metrics);
        Ok(finish(wanted?, &reached, end))
    });
    match finished {
        // Before the first token.
        Err(Error::Interrupted) => Ok(TliteFinish::Cancelled),
        finished => finished,
    }
}

/// Clears a flag when it is dropped.
pub(crate) struct Over<'a>(pub(crate) &'a Cancel);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.reset();
    }
}

/// Why an answer ended. The default bounds that it reached are logged.
pub(crate) fn finish(wanted: bool, reached: &[DefaultBound], finish: Option<Finish>) -> TliteFinish {
    reached.iter().for_each(|bound| log::warn!("{bound}"));
    match finish {
        _ if !wanted => TliteFinish::Callback,
        Some(Finish::Stop) => TliteFinish::StopString,
        Some(Finish::MaxTokens) => TliteFinish::MaxTokens,
        Some(Finish::ContextFull) => TliteFinish::ContextFull,
        Some(Finish::Cancelled) => TliteFinish::Cancelled,
        Some(Finish::Eos(_) | Finish::Complete) | None => TliteFinish::EndOfText,
    }
}
