//! The C interface; its header is `include/tlite.h`.
//!
//! Every function may be called from any thread. NULL pointers are checked, and no panic crosses
//! the boundary. A failed call returns an error value and records a message and a code, which
//! [`tlite_last_error`] and [`tlite_last_error_code`] return. These two and the log callback
//! ([`tlite_set_log`]) are the only global state.
//!
//! Option structs begin with their size, so new members can be added at the end.
#![warn(missing_docs)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header copies these comments; it states the callers' duties in plain sentences"
)]

mod answer;
mod args;
mod listener;
mod options;

use self::answer::{Over, finish, stream};
use self::args::{array, json_object, null, object, text};
use self::options::{kernel_cache_in, load_options, options_of, write_defaults};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::llm::sampler::Penalties;
use crate::llm::{
    Cancel, Conversation, GenerateOptions, Message, Model, Sampler, SamplerConfig, StopStrings,
};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, TryLockError};

/// A loaded model: weights, compiled kernels, tokenizer and chat template. Sessions on any threads
/// may share it.
pub struct TliteModel(Model);

/// A token sequence with its own KV cache. Only one call at a time may use it, except
/// `tlite_cancel` and `tlite_cancel_clear`, which may be called at any time.
pub struct TliteSession {
    conversation: Mutex<Conversation>,
    cancel: Cancel,
}

/// Where and how to load a model. Initialize it with `tlite_load_defaults`. Strings are UTF-8 and
/// are read only during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TliteLoadOptions {
    /// Size of this struct in bytes, as the program was compiled with it.
    pub size: usize,
    /// "auto", "opencl", "wgpu", "cpu" or "reference". NULL means "auto": a GPU if there is one,
    /// else "cpu".
    pub backend: *const c_char,
    /// Device name, or text that the name contains. NULL selects the best device.
    pub device: *const c_char,
    /// Context length in tokens. 0 selects the model's own length, at most 4096.
    pub context: usize,
    /// KV cache type on a device: "f16" or "q8". NULL means "f16".
    pub kv: *const c_char,
    /// Decode lengths are padded to multiples of this, 32 to 256. 0 means 64.
    pub padding: usize,
    /// GPU scheduling priority: "low", "normal" or "high". NULL means "low" on GPUs that share
    /// memory with the host, otherwise the driver's default.
    pub priority: *const c_char,
    /// Folder that caches compiled kernels, at most 4 GB. A folder that another user owns or can
    /// write to is not used, because drivers execute its contents. NULL disables the cache.
    pub kernel_cache: *const c_char,
    /// Activation precision of matmuls with 4-bit and 8-bit E0M weights on a device: "auto",
    /// "float", "int16" or "int8". NULL means "auto", which keeps the answers of the float model:
    /// "int16" on "cpu", else "float". "int8" is faster on some CPUs, and its answers can differ.
    pub act: *const c_char,
    /// How matmuls read activations on an OpenCL device: "1d" or "2d" (through images), "off" (from
    /// buffers) or "auto". NULL means "auto": through images on Adreno.
    pub images: *const c_char,
    /// How repeated commands, such as decode steps, are submitted to an OpenCL device: "auto",
    /// "command-buffer", "qcom" or "off". NULL means "auto": recorded on GPUs whose driver supports
    /// it.
    pub recording: *const c_char,
    /// Longest time in milliseconds that queued work may occupy an OpenCL device before other work
    /// gets a turn, at most 10000. 0 means no limit. -1 means 8 on GPUs that share memory with the
    /// host, otherwise no limit.
    pub slice_ms: isize,
    /// What the model may consume, as a list such as "memory=4G,time=30s": memory (host memory of
    /// tensors), time (of loading, and of each token or part of a prompt), iterations (of all loops
    /// in a run), tokenizer (bytes of tokenizer.json), template-steps and template-output (of the
    /// chat template), files (map, or read to copy the files into memory). NULL or a name left out
    /// means the default: half of the machine's memory, no time limit, bounds that no usual model
    /// reaches, and mapped files.
    pub limits: *const c_char,
    /// Threads of the backend "cpu", at most the cores that the process may use. 0 means all.
    pub threads: usize,
}

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

/// Kind of failure.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TliteError {
    /// No call on this thread has failed.
    #[default]
    None = 0,
    /// A failure without a code of its own.
    Other = 1,
    /// An argument or an option has an invalid value.
    Usage = 2,
    /// A prompt or conversation has more tokens than the context holds.
    ContextExceeded = 3,
    /// The model has no chat template, so it cannot answer a conversation.
    NoTemplate = 4,
    /// The chat template rejected the messages.
    TemplateRefused = 5,
    /// A token ID is outside the model's vocabulary.
    TokenOutOfRange = 6,
    /// The prompt cache file is damaged or is not a prompt cache.
    PromptCacheDamaged = 7,
    /// The prompt cache was written by another model or with another KV cache type.
    PromptCacheMismatch = 8,
    /// No driver was found, or no device has the given name.
    NoDevice = 9,
    /// A device or the host ran out of memory.
    OutOfMemory = 10,
    /// The device was lost. Models and sessions on it can no longer be used.
    DeviceLost = 11,
    /// The operating system refused an operation on a file.
    Io = 12,
    /// A file's content is not valid for its format.
    InvalidFile = 13,
    /// The work was interrupted.
    Interrupted = 14,
    /// A bug in the library.
    Internal = 15,
    /// Valid, but not implemented: an operator, a tensor type, an architecture.
    Unsupported = 16,
    /// Sizes or element types do not fit one another, or the model's.
    ShapeMismatch = 17,
    /// An input, the size of an open dimension or the elements of a weight are not given.
    MissingInput = 18,
    /// Another call or process is using the session, file or folder.
    Busy = 19,
    /// A model or a file exceeds one of the limits.
    LimitExceeded = 20,
    /// The model computed logits that are NaN or infinite.
    NotFinite = 21,
}

impl From<ErrorKind> for TliteError {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Usage => Self::Usage,
            ErrorKind::ContextExceeded => Self::ContextExceeded,
            ErrorKind::NoTemplate => Self::NoTemplate,
            ErrorKind::TemplateRefused => Self::TemplateRefused,
            ErrorKind::TokenOutOfRange => Self::TokenOutOfRange,
            ErrorKind::PromptCacheDamaged => Self::PromptCacheDamaged,
            ErrorKind::PromptCacheMismatch => Self::PromptCacheMismatch,
            ErrorKind::NoDevice => Self::NoDevice,
            ErrorKind::OutOfMemory => Self::OutOfMemory,
            ErrorKind::DeviceLost => Self::DeviceLost,
            ErrorKind::Io => Self::Io,
            ErrorKind::InvalidFile => Self::InvalidFile,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::ShapeMismatch => Self::ShapeMismatch,
            ErrorKind::MissingInput => Self::MissingInput,
            ErrorKind::Busy => Self::Busy,
            ErrorKind::NotFinite => Self::NotFinite,
            ErrorKind::LimitExceeded => Self::LimitExceeded,
            ErrorKind::Interrupted => Self::Interrupted,
            ErrorKind::Internal => Self::Internal,
            ErrorKind::Other => Self::Other,
        }
    }
}

/// Receives a piece of text: `length` bytes of UTF-8, always whole characters, followed by a 0
/// byte. The text itself may contain 0 bytes. `text` is valid only during the call. Returns 0 to
/// continue, any other value to end the answer. It must return normally (no `longjmp`, no
/// exception), and must not generate with, clear or free the session.
pub type TliteCallback =
    Option<unsafe extern "C" fn(text: *const c_char, length: usize, user: *mut c_void) -> c_int>;

/// Severity of a log line.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TliteLogLevel {
    /// A failure that no call returns as its own error.
    Error = 1,
    /// Something differs from what was requested or from the best case: notes of loading,
    /// rejections by drivers.
    Warning = 2,
    /// Information, such as memory use.
    Info = 3,
}

/// Receives a line of the log, in UTF-8 and valid only during the call. It may be called from any
/// thread and from several at once. It must return normally and must not call any function of this
/// library.
pub type TliteLogCallback =
    Option<unsafe extern "C" fn(level: TliteLogLevel, text: *const c_char, user: *mut c_void)>;

thread_local! {
    static LAST_ERROR: RefCell<(TliteError, CString)> = RefCell::default();
}

/// A text for C, cut at its first zero byte.
fn c_text(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().take_while(|b| *b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

fn remember(code: TliteError, message: &str) {
    let message = c_text(message);
    // A thread that is ending may have destroyed its value; the message is then lost.
    let _lost = LAST_ERROR.try_with(|last| last.replace((code, message)));
}

fn panicked(payload: &(dyn Any + Send)) -> String {
    let words = payload.downcast_ref::<&str>().copied();
    let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("internal error: {}", words.unwrap_or("a panic without a message"))
}

/// Returns the result of `work`, or `failed` after an error or a panic, whose message is recorded.
fn guarded<T>(failed: T, work: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(e)) => {
            remember(e.kind().into(), &e.chain());
            failed
        }
        Err(payload) => {
            remember(TliteError::Internal, &panicked(payload.as_ref()));
            failed
        }
    }
}

/// The version of the library, such as "0.1.0". The pointer stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The error message of the last failed call on this thread, in UTF-8; empty if none has failed. It
/// stays valid until the next failed call on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_last_error() -> *const c_char {
    // A thread that is ending may have destroyed its value.
    let message = LAST_ERROR.try_with(|last| last.try_borrow().map(|l| l.1.as_ptr()));
    match message {
        Ok(Ok(pointer)) => pointer,
        _ => c"".as_ptr(),
    }
}

/// The kind of failure that `tlite_last_error` describes, or `TLITE_ERROR_NONE`. Later versions may
/// add codes.
#[unsafe(no_mangle)]
pub extern "C" fn tlite_last_error_code() -> TliteError {
    let code = LAST_ERROR.try_with(|last| last.try_borrow().map(|l| l.0));
    code.map_or(TliteError::None, |code| code.unwrap_or_default())
}

/// Sends log lines of all threads to `callback`, together with `user`: warnings, and notes of
/// loading a model about what differs from the options. NULL stops this. When this function
/// returns, the previous callback is no longer running. Returns 0, or -1 if a Rust program has set
/// its own logger, which then receives the lines.
///
/// `callback` may be called with `user` until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_set_log(callback: TliteLogCallback, user: *mut c_void) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let listener = callback.map(|callback| unsafe { listener::Listener::new(callback, user) });
        listener::set(listener).map(|()| 0)
    })
}

/// Writes the defaults to `options`; `size` is `sizeof *options`. The defaults select the best
/// device and the model's own settings. Returns 0, or -1 if the library does not know this size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_load_defaults(options: *mut TliteLoadOptions, size: usize) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { write_defaults(options, size) }
}

/// Loads the model folder `path`: `model.onnx`, `tokenizer.json` and the configuration files that
/// exporters write next to them. `options` may be NULL. Returns a model, to be freed with
/// `tlite_model_free`, or NULL on failure.
///
/// The files of the model stay mapped into memory until it and its sessions are freed, unless
/// `limits` contains "files=read". Do not change or truncate them meanwhile: that changes the
/// weights, or ends the process with a bus error (SIGBUS). To update a model, write a new file and
/// rename it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_model_load(
    path: *const c_char,
    options: *const TliteLoadOptions,
) -> *mut TliteModel {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let (path, options) = unsafe { (text("path", path)?, load_options(options)?) };
        let model = Model::load(path, &options)?;
        Ok(Box::into_raw(Box::new(TliteModel(model))))
    })
}

/// Frees a model. Its sessions keep what they need of it. NULL is allowed.
///
/// `model` is NULL or from `tlite_model_load`, is not freed yet, and no other call is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_model_free(model: *mut TliteModel) {
    guarded((), || {
        if !model.is_null() {
            // SAFETY: the pointer is from `Box::into_raw` and is returned once.
            drop(unsafe { Box::from_raw(model) });
        }
        Ok(())
    });
}

/// Creates a session with an empty KV cache, to be freed with `tlite_session_free`, or returns NULL
/// on failure. Sessions share weights and compiled kernels; each allocates its own cache.
///
/// `model` is NULL or from `tlite_model_load` and is not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_new(model: *const TliteModel) -> *mut TliteSession {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let model = unsafe { object("model", model) }?;
        let session = TliteSession {
            conversation: Mutex::new(Conversation::new(model.0.session()?, Vec::new())),
            cancel: Cancel::default(),
        };
        Ok(Box::into_raw(Box::new(session)))
    })
}

/// Frees a session. NULL is allowed.
///
/// `session` is NULL or from `tlite_session_new`, is not freed yet, and no other call is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_free(session: *mut TliteSession) {
    guarded((), || {
        if !session.is_null() {
            // SAFETY: the pointer is from `Box::into_raw` and is returned once.
            drop(unsafe { Box::from_raw(session) });
        }
        Ok(())
    });
}

/// Empties the KV cache of a session. Returns 0, or -1 if another call is using the session.
///
/// `session` is NULL or from `tlite_session_new` and is not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_session_clear(session: *const TliteSession) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let session = unsafe { object("session", session) }?;
        session.with(|c| {
            c.clear();
            Ok(0)
        })
    })
}

/// Stops the answer that the session is generating, within one step. If there is none, the next
/// answer ends before its first token, so a call just before an answer starts is not lost. May be
/// called from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_cancel(session: *const TliteSession) {
    guarded((), || {
        // SAFETY: as the caller promises.
        unsafe { object("session", session) }?.cancel.cancel();
        Ok(())
    });
}

/// Clears a `tlite_cancel` that arrived while no answer was being generated. The end of each answer
/// clears it as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_cancel_clear(session: *const TliteSession) {
    guarded((), || {
        // SAFETY: as the caller promises.
        unsafe { object("session", session) }?.cancel.reset();
        Ok(())
    });
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

impl TliteSession {
    /// Runs `work` with the session's conversation; an error if another call is using it.
    fn with<T>(&self, work: impl FnOnce(&mut Conversation) -> Result<T>) -> Result<T> {
        match self.conversation.try_lock() {
            Ok(mut conversation) => work(&mut conversation),
            Err(TryLockError::WouldBlock) => {
                let used = Error::usage("session", "is in use by another call");
                Err(used.of_kind(ErrorKind::Busy))
            }
            Err(TryLockError::Poisoned(_)) => {
                let what = "the session is unusable after an internal error; free it";
                Err(Error::other(Stage::Run, what))
            }
        }
    }
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

/// Passes a JSON array to `callback`, with `user`: the kernel variants that models loaded with the
/// folder `kernel_cache` do not use because they failed on a device. Each element has `backend`,
/// `device`, `driver` and `kernels`. Each kernel has `variant`, `cause` ("wrong-results",
/// "does-not-build" or "launch-refused"), `why`, and `since`, the time in seconds since 1970. All
/// but wrong results are tried again after 7 days. Returns the number of kernels, or -1 on failure.
///
/// `callback` is called once, and its result is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_quarantine_list(
    kernel_cache: *const c_char,
    callback: TliteCallback,
    user: *mut c_void,
) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let folder = unsafe { text("kernel_cache", kernel_cache) }?;
        let callback = callback.ok_or_else(|| null("callback"))?;
        let lists = kernel_cache_in(folder).quarantined()?;
        let json = serde_json::to_string(&lists)
            .map_err(|e| Error::internal(Stage::Run, format!("the list of kernels: {e}")))?;
        // SAFETY: the text outlives the call; the caller guarantees the rest.
        unsafe { callback(c_text(&json).as_ptr(), json.len(), user) };
        Ok(count(lists.iter().map(|list| list.kernels.len()).sum()))
    })
}

/// Ends the quarantine of all kernel variants in the folder `kernel_cache`: models loaded later try
/// them again. Returns their number, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_quarantine_clear(kernel_cache: *const c_char) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let folder = unsafe { text("kernel_cache", kernel_cache) }?;
        kernel_cache_in(folder).clear_quarantined().map(count)
    })
}

fn count(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests;
