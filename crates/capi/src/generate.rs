//! Answers of sessions.

use crate::args::{array, json_object, null, object, text};
use crate::error::guarded;
use crate::options::{Options, options_of, write_defaults};
use crate::session::TliteSession;
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use transformer_lite::options::Penalties;
use transformer_lite::{
    Cancel, Error, Finish, GenerateOptions, Message, Piece, Result, Sampler, SamplerConfig, StopStrings,
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
    /// The callback returned a value other than 0.
    Callback = 5,
}

/// Receives a piece of text: `length` bytes of UTF-8, always whole characters, followed by a 0
/// byte. The text itself may contain 0 bytes. `text` is valid only during the call. Returns 0 to
/// continue, any other value to end the answer. It must return normally (no `longjmp`, no
/// exception), and must not generate with, clear or free the session.
pub type TliteCallback =
    Option<unsafe extern "C" fn(text: *const c_char, length: usize, user: *mut c_void) -> c_int>;

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
            generate(session, Asked::Text(prompt), options, callback, user)
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
            let given = array("messages", messages, count)?;
            let messages: Vec<Message> = given.iter().map(|m| message(m)).collect::<Result<_>>()?;
            generate(session, Asked::Chat(messages), options, callback, user)
        }
    })
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

/// Converts the options to those of the Rust interface, without [`GenerateOptions::cancel`]. Also
/// returns whether a full context slides.
///
/// # Safety
///
/// As for [`tlite_generate`].
unsafe fn generate_options(
    options: *const TliteGenerateOptions,
) -> Result<(GenerateOptions, SamplerConfig, bool)> {
    let (mut answer, mut sampling) = (GenerateOptions::default(), SamplerConfig::default());
    // SAFETY: as the caller promises.
    let Some(given) = (unsafe { options_of(options) })? else {
        return Ok((answer, sampling, false));
    };
    // SAFETY: as the caller promises.
    let stop: Vec<String> = unsafe {
        let given = array("stop", given.stop, given.stop_count)?;
        let texts = given.iter().map(|s| Ok(text("stop", *s)?.to_owned()));
        texts.collect::<Result<_>>()?
    };
    // SAFETY: as the caller promises.
    answer.template_values = unsafe { json_object("template_values", given.template_values) }?;
    answer.max_tokens = given.max_tokens;
    answer.stop = StopStrings::new(stop)?;
    sampling.temperature = given.temperature;
    sampling.top_k = given.top_k;
    sampling.top_p = given.top_p;
    sampling.min_p = given.min_p;
    sampling.seed = given.seed;
    sampling.penalties = Penalties {
        repetition: given.repetition_penalty,
        ..sampling.penalties
    };
    Ok((answer, sampling, given.context_shift != 0))
}

/// The prompt of a call.
enum Asked<'a> {
    Text(&'a str),
    Chat(Vec<Message>),
}

/// Common part of [`tlite_generate`] and [`tlite_chat`].
///
/// # Safety
///
/// As for [`tlite_generate`].
unsafe fn generate(
    session: *const TliteSession,
    asked: Asked<'_>,
    options: *const TliteGenerateOptions,
    callback: TliteCallback,
    user: *mut c_void,
) -> Result<TliteFinish> {
    // SAFETY: as the caller promises.
    let (handle, (mut options, sampling, slides)) =
        unsafe { (object("session", session)?, generate_options(options)?) };
    let callback = callback.ok_or_else(|| null("callback"))?;
    let sampler = Sampler::new(sampling)?;
    let mut put = |text: &str| {
        let bytes = [text.as_bytes(), &[0]].concat();
        // SAFETY: the bytes outlive the call and end with a 0; the caller guarantees the rest.
        unsafe { callback(bytes.as_ptr().cast(), text.len(), user) == 0 }
    };
    let finished = handle.with(|conversation| {
        options.cancel = handle.cancel.clone();
        // A cancellation ends with the call, however the call ends.
        let _over = Over(&handle.cancel);
        let session = conversation.session();
        session.set_sampler(sampler);
        match asked {
            Asked::Text(text) => {
                let tokens = session
                    .codec()
                    .encode(text, &options.template_values, &options.cancel)?;
                options.slide = slides.then_some(tokens.len());
                let mut answer = session.generate(tokens.as_slice(), &options)?;
                let wanted = stream(&mut answer, &mut put)?;
                Ok(finish(wanted, answer.finish()))
            }
            Asked::Chat(messages) => {
                conversation.set_slides(slides);
                let mut answer = conversation.answer(messages, &options)?;
                let wanted = stream(&mut answer, &mut put)?;
                Ok(finish(wanted, answer.finish()))
            }
        }
    });
    match finished {
        // Before the first token.
        Err(Error::Interrupted) => Ok(TliteFinish::Cancelled),
        finished => finished,
    }
}

/// Clears a flag when it is dropped.
struct Over<'a>(pub &'a Cancel);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.reset();
    }
}

/// Passes the texts of `pieces` to `put` until it returns false. Returns whether `put` took them
/// all.
fn stream(
    pieces: &mut dyn Iterator<Item = Result<Piece>>,
    put: &mut dyn FnMut(&str) -> bool,
) -> Result<bool> {
    for piece in pieces {
        let text = piece?.text;
        if !text.is_empty() && !put(&text) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn finish(wanted: bool, finish: Option<Finish>) -> TliteFinish {
    match finish {
        _ if !wanted => TliteFinish::Callback,
        Some(Finish::Stop) => TliteFinish::StopString,
        Some(Finish::MaxTokens) => TliteFinish::MaxTokens,
        Some(Finish::ContextFull) => TliteFinish::ContextFull,
        Some(Finish::Cancelled) => TliteFinish::Cancelled,
        Some(Finish::Eos(_) | Finish::Complete) | None => TliteFinish::EndOfText,
    }
}
